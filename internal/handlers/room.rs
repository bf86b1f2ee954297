//! Kinds whose jobs need more than a worker each, such as one of a few connections.
//!
//! A job that finds no place is given back as if it had not been claimed, and comes back later. It uses no attempt and
//! leaves no row, so any number of jobs may wait for as long as it takes, and they wait in MySQL. While another worker
//! is free, as many jobs as there are places wait here, with their workers, and take the next places that become free.
//! All others leave their workers to other kinds.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use tickr_job::Priority;

/// Longest time for which a job waits with its worker.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time between two questions whether it may go on waiting. Other jobs may need its worker by then.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Shortest time between two jobs that come back. Each of them costs a claim.
const MIN_GAP: Duration = Duration::from_millis(2);
/// Time between them while nothing is known about the use of the places.
const FIRST_GAP: Duration = Duration::from_millis(50);
/// Longest time between them, and so the longest time for which a free place waits for a job that is given back.
const MAX_GAP: Duration = Duration::from_millis(500);
/// Longest time for which a job is given back. While many wait, each of them costs a claim in this time. The demand of a
/// queue counts no job that rests for longer (`store/jobs/demand.rs`).
const MAX_REST: Duration = Duration::from_secs(60);
/// Number of priorities.
const LEVELS: usize = Priority::LAST.level() as usize + 1;
/// Time between two log lines about a kind without room.
const SAID_EVERY: Duration = Duration::from_secs(60);

/// The places of a kind in this process.
#[derive(Debug)]
pub struct Room {
    kind: &'static str,
    places: u32,
    free: Arc<Semaphore>,
    /// The rights to wait here for a place.
    front: Semaphore,
    pace: Arc<Mutex<Pace>>,
}

/// When jobs that found no place come back: one after the other, about twice as often as a place becomes free.
#[derive(Debug, Default)]
struct Pace {
    /// Mean time for which a place was used.
    used: Option<Duration>,
    /// Moment at which the use of a place last began or ended.
    changed: Option<Instant>,
    /// Moment at which the last job of each priority that was given back comes back.
    last: [Option<Instant>; LEVELS],
    said: Option<Instant>,
}

impl Pace {
    fn lock(pace: &Mutex<Self>) -> MutexGuard<'_, Self> {
        pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record_use(&mut self, used: Duration) {
        self.used = Some(self.used.map_or(used, |mean| (mean * 7 + used) / 8));
    }

    /// Return how long the next job of this priority is given back for. It comes back behind jobs of its own and of
    /// more urgent priorities alone.
    fn next_rest(&mut self, priority: Priority, places: u32, now: Instant) -> Duration {
        let often = places * 2;
        let gap = self.used.map_or(FIRST_GAP, |used| used / often);
        // The places that are used now are used for at least this long.
        let unchanged = self.changed.map_or(Duration::ZERO, |changed| now.saturating_duration_since(changed));
        let gap = gap.max(unchanged / often).clamp(MIN_GAP, MAX_GAP);
        let level = usize::from(priority.level());
        let last = self.last[..=level].iter().copied().flatten().max();
        let next = last.map_or(now, |last| last.max(now)) + gap;
        let next = next.min(now + MAX_REST);
        self.last[level] = Some(next);
        next - now
    }
}

/// A place that a job has until this is dropped.
#[derive(Debug)]
pub struct Place {
    _permit: OwnedSemaphorePermit,
    pace: Arc<Mutex<Pace>>,
    /// When the handler of the job was started.
    since: Option<Instant>,
}

impl Place {
    /// Record that the handler of the job is started. A place that is given up before counts as not used.
    pub fn begin(&mut self) {
        let now = Instant::now();
        self.since = Some(now);
        Pace::lock(&self.pace).changed = Some(now);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(since) = self.since {
            let now = Instant::now();
            let mut pace = Pace::lock(&self.pace);
            pace.record_use(now - since);
            pace.changed = Some(now);
        }
    }
}

impl Room {
    /// Make the room of a kind, with at least one place.
    #[must_use]
    pub fn new(kind: &'static str, places: u32) -> Self {
        let places = places.max(1);
        let [free, front] = [(), ()].map(|()| Semaphore::new(places as usize));
        Self { kind, places, free: Arc::new(free), front, pace: Arc::default() }
    }

    /// Take a place for a job of this priority. Wait a second for it, as long as the job `may_wait`, unless as many jobs
    /// as there are places wait already or `stop` is cancelled.
    ///
    /// # Errors
    /// How long to give the job back for, when it gets no place.
    pub async fn enter(
        &self,
        priority: Priority,
        may_wait: impl Fn() -> bool,
        stop: &CancellationToken,
    ) -> Result<Place, Duration> {
        if let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() {
            return Ok(self.place(permit));
        }
        if let Some(permit) = self.wait_in_front(may_wait, stop).await {
            return Ok(self.place(permit));
        }
        let (kind, now) = (self.kind, Instant::now());
        let mut pace = Pace::lock(&self.pace);
        if pace.said.is_none_or(|said| now - said >= SAID_EVERY) {
            pace.said = Some(now);
            tracing::info!(kind, "there is no room for more jobs of this kind now, further ones wait for their turn");
        }
        Err(pace.next_rest(priority, self.places, now))
    }

    async fn wait_in_front(
        &self,
        may_wait: impl Fn() -> bool,
        stop: &CancellationToken,
    ) -> Option<OwnedSemaphorePermit> {
        let _front = self.front.try_acquire().ok()?;
        let until = Instant::now() + PATIENCE;
        let mut permit = pin!(Arc::clone(&self.free).acquire_owned());
        while Instant::now() < until && may_wait() {
            tokio::select! {
                biased;
                () = stop.cancelled() => return None,
                permit = &mut permit => return permit.ok(),
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
        None
    }

    fn place(&self, permit: OwnedSemaphorePermit) -> Place {
        Place { _permit: permit, pace: Arc::clone(&self.pace), since: None }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const PRIORITY: Priority = Priority::NORMAL;

    #[tokio::test]
    async fn a_job_waits_for_a_place_and_those_behind_it_are_given_back_at_once() {
        let room = Arc::new(Room::new("report", 1));
        let stop = CancellationToken::new();
        let place = room.enter(PRIORITY, || true, &stop).await.unwrap();
        let asked = Instant::now();
        assert_eq!(room.enter(PRIORITY, || false, &stop).await.unwrap_err(), FIRST_GAP);
        assert!(asked.elapsed() < PATIENCE, "it may not wait");
        let waiting = tokio::spawn({
            let (room, stop) = (Arc::clone(&room), stop.clone());
            async move { room.enter(PRIORITY, || true, &stop).await }
        });
        while room.front.available_permits() == 1 {
            tokio::task::yield_now().await;
        }
        let asked = Instant::now();
        room.enter(PRIORITY, || true, &stop).await.unwrap_err();
        assert!(asked.elapsed() < PATIENCE, "it did not wait");
        drop(place);
        let place = waiting.await.unwrap().unwrap();
        // A stop ends the wait.
        stop.cancel();
        let asked = Instant::now();
        room.enter(PRIORITY, || true, &stop).await.unwrap_err();
        assert!(asked.elapsed() < PATIENCE, "it was stopped");
        drop(place);
        room.enter(PRIORITY, || true, &stop).await.unwrap();
    }

    #[tokio::test]
    async fn a_job_that_waits_for_a_place_goes_when_its_worker_is_needed() {
        let room = Room::new("report", 1);
        let stop = CancellationToken::new();
        let _place = room.enter(PRIORITY, || true, &stop).await.unwrap();
        let looks = Cell::new(0);
        let may_wait = || {
            looks.set(looks.get() + 1);
            looks.get() < 3
        };
        let asked = Instant::now();
        room.enter(PRIORITY, may_wait, &stop).await.unwrap_err();
        assert!(asked.elapsed() < PATIENCE, "it looks in between");
        assert_eq!((looks.get(), room.front.available_permits()), (3, 1));
    }

    #[tokio::test]
    async fn a_place_is_used_from_the_start_of_a_handler_on() {
        let room = Room::new("report", 1);
        let stop = CancellationToken::new();
        let pace = || {
            let pace = Pace::lock(&room.pace);
            (pace.used, pace.changed)
        };
        drop(room.enter(PRIORITY, || true, &stop).await.unwrap());
        assert_eq!(pace(), (None, None));
        let mut place = room.enter(PRIORITY, || true, &stop).await.unwrap();
        place.begin();
        let (used, begun) = pace();
        assert_eq!((used, begun.is_some()), (None, true));
        drop(place);
        let (used, ended) = pace();
        assert!(used.is_some() && ended >= begun, "{used:?}");
    }

    #[test]
    fn jobs_come_back_one_after_the_other_about_as_often_as_places_become_free() {
        let now = Instant::now();
        let rests = |used: Option<u64>| {
            let mut pace = Pace { used: used.map(Duration::from_millis), ..Pace::default() };
            (0..3).map(|_| pace.next_rest(PRIORITY, 2, now).as_millis()).collect::<Vec<_>>()
        };
        assert_eq!(rests(None), [50, 100, 150]);
        assert_eq!(rests(Some(1)), [2, 4, 6]);
        assert_eq!(rests(Some(400)), [100, 200, 300]);
        assert_eq!(rests(Some(60_000)), [500, 1_000, 1_500]);

        let mut pace = Pace::default();
        for _ in 0..20_000 {
            assert!(pace.next_rest(PRIORITY, 1, now) <= MAX_REST);
        }
        // The jobs that were given back for so long come back by themselves.
        assert_eq!(pace.next_rest(PRIORITY, 1, now + MAX_REST), FIRST_GAP);
        pace.record_use(Duration::from_secs(8));
        pace.record_use(Duration::ZERO);
        assert_eq!(pace.used, Some(Duration::from_secs(7)));
    }

    #[test]
    fn jobs_come_back_seldom_while_long_ones_hold_the_places() {
        let began = Instant::now();
        let cases = [(None, 0, 50), (None, 60_000, 500), (Some(1), 0, 2), (Some(1), 400, 100), (Some(1), 60_000, 500)];
        for (used, changed_ms, gap_ms) in cases {
            let used = used.map(Duration::from_millis);
            let mut pace = Pace { used, changed: Some(began), ..Pace::default() };
            let rest = pace.next_rest(PRIORITY, 2, began + Duration::from_millis(changed_ms));
            assert_eq!(rest, Duration::from_millis(gap_ms), "{used:?} {changed_ms}");
        }
    }

    #[test]
    fn a_job_comes_back_behind_jobs_of_its_own_and_of_more_urgent_priorities_alone() {
        let now = Instant::now();
        let [urgent, last] = [0_u8, 9].map(|level| Priority::try_from(level).unwrap());
        let mut pace = Pace::default();
        for _ in 0..1_000 {
            pace.next_rest(PRIORITY, 1, now);
        }
        assert_eq!(pace.next_rest(urgent, 1, now), FIRST_GAP);
        assert_eq!(pace.next_rest(urgent, 1, now), FIRST_GAP * 2);
        assert!(pace.next_rest(last, 1, now) > FIRST_GAP * 1_000);
    }
}
