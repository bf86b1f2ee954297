//! Recent figures for people: rates and lateness of the last minute on this runner, and the open slot of the history to
//! which all runners contribute.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::slot::Slot;
use tickr_job::{Name, State, Verdict};

/// Time range of the rates.
const WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of lateness samples; the newest are kept.
const MAX_SAMPLES: usize = 10_000;

/// Counts of one runner in the last minute. Cheap to clone; all clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct Meters {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Jobs accepted and attempts ended: one element for each second with an event.
    seconds: VecDeque<(Instant, u64, u64)>,
    /// Lateness in microseconds, with the moment of the start.
    lateness: VecDeque<(Instant, u64)>,
    /// Counts of the open slot by queue. It shares the lock that is taken anyway.
    slot: Slot,
}

/// Values read from the meters.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MeterReadings {
    /// Jobs accepted per second over the last minute.
    pub accepted_per_second: f64,
    /// Attempts ended per second over the last minute.
    pub ended_per_second: f64,
    /// Median of start − execute_at over the last minute, in milliseconds.
    pub lateness_p50_ms: Option<f64>,
    /// 99th percentile of the same.
    pub lateness_p99_ms: Option<f64>,
}

impl Meters {
    /// Reserve positions in the open slot for the queues that this runner serves.
    pub fn serve(&self, queues: &[Name]) {
        let mut inner = self.lock();
        for queue in queues {
            inner.slot.tally(Some(queue));
        }
    }

    /// Count accepted jobs, one item of `queues` for each job.
    pub fn record_accepted<'a>(&self, queues: impl IntoIterator<Item = &'a Name>) {
        let mut inner = self.lock();
        let mut jobs = 0;
        // The jobs of a batch mostly have the same queue, so its tally is looked up once.
        let mut run: Option<(&Name, u64)> = None;
        for queue in queues {
            jobs += 1;
            match &mut run {
                Some((last, count)) if *last == queue => *count += 1,
                _ => {
                    if let Some((last, count)) = run.replace((queue, 1)) {
                        inner.slot.tally(Some(last)).accepted += count;
                    }
                }
            }
        }
        if let Some((last, count)) = run {
            inner.slot.tally(Some(last)).accepted += count;
            inner.count(jobs, 0);
        }
    }

    /// Count the start of an attempt of this queue with this lateness.
    pub fn record_started(&self, queue: &Name, lateness: Duration) {
        let mut inner = self.lock();
        inner.slot.tally(Some(queue)).lateness.count(lateness);
        if inner.lateness.len() >= MAX_SAMPLES {
            inner.lateness.pop_front();
        }
        inner.lateness.push_back((Instant::now(), u64::try_from(lateness.as_micros()).unwrap_or(u64::MAX)));
    }

    /// Count the end of an attempt of this queue and the run time of its handler. `settled` has the written verdict
    /// with the new state of the job, if a verdict was written.
    pub fn record_ended(&self, queue: &Name, ran: Duration, settled: Option<(Verdict, State)>) {
        let mut inner = self.lock();
        let tally = inner.slot.tally(Some(queue));
        tally.run.count(ran);
        if let Some((verdict, state)) = settled {
            tally.record_settled(verdict, state);
        }
        inner.count(0, 1);
    }

    /// Count a verdict that was written here about an attempt of this queue that did not end here.
    pub fn record_settled(&self, queue: Option<&Name>, verdict: Verdict, state: State) {
        self.lock().slot.tally(queue).record_settled(verdict, state);
    }

    /// Close the open slot and return it. From now on events are counted in `next`. If `keep` is true, the queues of
    /// the closed slot keep their positions there.
    #[must_use]
    pub fn close_slot(&self, mut next: Slot, keep: bool) -> Slot {
        let mut inner = self.lock();
        if keep {
            next.add_places_of(&inner.slot);
        }
        std::mem::replace(&mut inner.slot, next)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Read the meters.
    #[must_use]
    pub fn read(&self) -> MeterReadings {
        let now = Instant::now();
        let recent = |moment: &Instant| now.duration_since(*moment) <= WINDOW;
        let inner = self.lock();
        let (accepted, ended) = inner
            .seconds
            .iter()
            .filter(|(began, _, _)| recent(began))
            .fold((0_u64, 0_u64), |(a, e), (_, accepted, ended)| (a + accepted, e + ended));
        let mut lateness: Vec<u64> = inner.lateness.iter().filter(|(at, _)| recent(at)).map(|(_, us)| *us).collect();
        drop(inner);
        lateness.sort_unstable();
        let percentile = |share: f64| {
            let last = lateness.len().checked_sub(1)?;
            Some(lateness[(last as f64 * share).round() as usize] as f64 / 1_000.0)
        };
        MeterReadings {
            accepted_per_second: accepted as f64 / WINDOW.as_secs_f64(),
            ended_per_second: ended as f64 / WINDOW.as_secs_f64(),
            lateness_p50_ms: percentile(0.5),
            lateness_p99_ms: percentile(0.99),
        }
    }
}

impl Inner {
    fn count(&mut self, accepted: u64, ended: u64) {
        let now = Instant::now();
        match self.seconds.back_mut() {
            Some((began, a, e)) if now.duration_since(*began) < Duration::from_secs(1) => {
                *a += accepted;
                *e += ended;
            }
            _ => {
                self.seconds.push_back((now, accepted, ended));
                while self.seconds.front().is_some_and(|(began, _, _)| now.duration_since(*began) > WINDOW) {
                    self.seconds.pop_front();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_and_rates() {
        let (meters, queue, other) = (Meters::default(), "mail".parse().unwrap(), "bulk".parse().unwrap());
        assert_eq!(meters.read(), MeterReadings::default());
        meters.record_accepted([&queue, &queue, &other].into_iter().cycle().take(120));
        for ms in 1..=100 {
            meters.record_started(&queue, Duration::from_millis(ms));
            meters.record_ended(&queue, Duration::from_millis(1), Some((Verdict::Succeeded, State::Completed)));
        }
        let read = meters.read();
        assert_eq!(
            (read.accepted_per_second, read.lateness_p50_ms, read.lateness_p99_ms),
            (2.0, Some(51.0), Some(99.0))
        );
        assert!((read.ended_per_second - 100.0 / 60.0).abs() < 1e-9);
        let slot = meters.close_slot(Slot::default(), true);
        let tally = |name: &Name| slot.tallies().find(|(queue, _)| *queue == Some(name)).unwrap().1;
        assert_eq!((tally(&queue).accepted, tally(&other).accepted), (80, 40));
        assert_eq!(
            (tally(&queue).completed, tally(&queue).lateness.total(), tally(&queue).run.total()),
            (100, 100, 100)
        );
        assert!(meters.close_slot(Slot::default(), true).tallies().all(|(_, tally)| tally.is_empty()));
    }
}
