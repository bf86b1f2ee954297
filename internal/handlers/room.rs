//! Kinds whose jobs need more than a worker each, such as one of a few connections.
//!
//! A job that finds no place is given back as if it had not been claimed, and comes back later. It uses no attempt and
//! leaves no row, so any number of jobs may wait for as long as it takes, and they wait in MySQL. One job at a time
//! waits here, with its worker, and takes the next place that becomes free. All others leave their workers to other
//! kinds.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// Longest time for which a job waits with its worker, which other jobs may need.
const PATIENCE: Duration = Duration::from_millis(200);
/// Shortest time between two jobs that come back. Each of them costs a claim.
const LEAST_GAP: Duration = Duration::from_millis(10);
/// Time between them before a place was used.
const FIRST_GAP: Duration = Duration::from_millis(50);
/// Longest time between them. A place that becomes free meanwhile is empty for no longer.
const MOST_GAP: Duration = Duration::from_millis(500);
/// Longest time for which a job is given back.
const LONGEST_REST: Duration = Duration::from_secs(60);
/// Time between two log lines about a kind without room.
const SAID_EVERY: Duration = Duration::from_secs(60);

/// The places of a kind in this process.
#[derive(Debug)]
pub struct Room {
    kind: &'static str,
    places: u32,
    free: Arc<Semaphore>,
    /// The right to wait here for a place.
    front: Semaphore,
    pace: Arc<Mutex<Pace>>,
}

/// When jobs that found no place come back: one after the other, about twice as often as a place becomes free.
#[derive(Debug, Default)]
struct Pace {
    /// Mean time for which a place is used.
    used: Option<Duration>,
    /// When a place was taken or became free for the last time. Those that are used now are used for so long at least.
    changed: Option<Instant>,
    /// Moment at which the last job that was given back comes back.
    last: Option<Instant>,
    said: Option<Instant>,
}

impl Pace {
    fn lock(pace: &Mutex<Self>) -> MutexGuard<'_, Self> {
        pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&mut self, used: Duration) {
        self.used = Some(self.used.map_or(used, |mean| (mean * 7 + used) / 8));
    }

    /// Return how long the next job is given back for.
    fn next_rest(&mut self, places: u32, now: Instant) -> Duration {
        let under_way = self.changed.map(|changed| now.saturating_duration_since(changed) / (places * 2));
        let gap = self.used.map_or(FIRST_GAP, |used| used / (places * 2)).max(under_way.unwrap_or_default());
        let gap = gap.clamp(LEAST_GAP, MOST_GAP);
        let next = self.last.map_or(now, |last| last.max(now)) + gap;
        let next = next.min(now + LONGEST_REST);
        self.last = Some(next);
        next - now
    }
}

/// A place that a job has until this is dropped.
#[derive(Debug)]
pub struct Place {
    _permit: OwnedSemaphorePermit,
    pace: Arc<Mutex<Pace>>,
    since: Instant,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut pace = Pace::lock(&self.pace);
        pace.record(self.since.elapsed());
        pace.changed = Some(Instant::now());
    }
}

impl Room {
    /// Make the room of a kind, with at least one place.
    #[must_use]
    pub fn new(kind: &'static str, places: u32) -> Self {
        let places = places.max(1);
        let free = Arc::new(Semaphore::new(places as usize));
        Self { kind, places, free, front: Semaphore::new(1), pace: Arc::default() }
    }

    /// Take a place. Wait a moment for it, unless another job waits already or `stop` is cancelled.
    ///
    /// # Errors
    /// How long to give the job back for, when it gets no place.
    pub async fn enter(&self, stop: &CancellationToken) -> Result<Place, Duration> {
        if let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() {
            return Ok(self.place(permit));
        }
        if let Ok(_front) = self.front.try_acquire() {
            let free = Arc::clone(&self.free).acquire_owned();
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                permit = tokio::time::timeout(PATIENCE, free) => {
                    if let Ok(Ok(permit)) = permit {
                        return Ok(self.place(permit));
                    }
                }
            }
        }
        let (kind, now) = (self.kind, Instant::now());
        let mut pace = Pace::lock(&self.pace);
        if pace.said.is_none_or(|said| now - said >= SAID_EVERY) {
            pace.said = Some(now);
            tracing::info!(kind, "there is no room for more jobs of this kind now, further ones wait for their turn");
        }
        Err(pace.next_rest(self.places, now))
    }

    fn place(&self, permit: OwnedSemaphorePermit) -> Place {
        let since = Instant::now();
        Pace::lock(&self.pace).changed = Some(since);
        Place { _permit: permit, pace: Arc::clone(&self.pace), since }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_job_waits_for_a_place_and_those_behind_it_are_given_back_at_once() {
        let room = Arc::new(Room::new("report", 1));
        let stop = CancellationToken::new();
        let place = room.enter(&stop).await.unwrap();
        let waiting = tokio::spawn({
            let (room, stop) = (Arc::clone(&room), stop.clone());
            async move { room.enter(&stop).await }
        });
        while room.front.available_permits() == 1 {
            tokio::task::yield_now().await;
        }
        let asked = Instant::now();
        assert!(room.enter(&stop).await.unwrap_err() >= FIRST_GAP);
        assert!(asked.elapsed() < PATIENCE, "it did not wait");
        drop(place);
        let place = waiting.await.unwrap().unwrap();
        // A stop ends the wait.
        stop.cancel();
        let asked = Instant::now();
        room.enter(&stop).await.unwrap_err();
        assert!(asked.elapsed() < PATIENCE, "it was stopped");
        drop(place);
        room.enter(&stop).await.unwrap();
    }

    #[test]
    fn jobs_come_back_one_after_the_other_about_as_often_as_places_become_free() {
        let now = Instant::now();
        let rests = |used: Option<u64>| {
            let mut pace = Pace { used: used.map(Duration::from_millis), ..Pace::default() };
            (0..3).map(|_| pace.next_rest(2, now).as_millis()).collect::<Vec<_>>()
        };
        assert_eq!(rests(None), [50, 100, 150]);
        assert_eq!(rests(Some(1)), [10, 20, 30]);
        assert_eq!(rests(Some(400)), [100, 200, 300]);
        assert_eq!(rests(Some(60_000)), [500, 1_000, 1_500]);
        // Jobs before were short, and those that have the places now have had them for a minute.
        for used in [None, Some(Duration::from_millis(1))] {
            let mut pace = Pace { used, changed: Some(now), ..Pace::default() };
            assert_eq!(pace.next_rest(2, now + Duration::from_secs(60)), MOST_GAP);
        }

        let mut pace = Pace::default();
        for _ in 0..20_000 {
            assert!(pace.next_rest(1, now) <= LONGEST_REST);
        }
        // The jobs that were given back for so long come back by themselves.
        assert_eq!(pace.next_rest(1, now + LONGEST_REST), FIRST_GAP);
        pace.record(Duration::from_secs(8));
        pace.record(Duration::ZERO);
        assert_eq!(pace.used, Some(Duration::from_secs(7)));
    }
}
