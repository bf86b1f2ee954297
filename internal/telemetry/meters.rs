//! The figures of the last minutes, for people: rates and lateness as this runner saw them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How far back the rates look.
const WINDOW: Duration = Duration::from_secs(60);
/// Most lateness samples kept; the newest win.
const MOST_SAMPLES: usize = 10_000;

/// What one runner did in the last minute. Cheap to clone; all clones count together.
#[derive(Clone, Debug, Default)]
pub struct Meters {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Jobs accepted and attempts ended, one element for each second in which anything happened.
    seconds: VecDeque<(Instant, u64, u64)>,
    /// Lateness in microseconds, with the moment of the start.
    lateness: VecDeque<(Instant, u64)>,
}

/// A reading of the meters.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Jobs accepted per second over the last minute.
    pub accepted_per_second: f64,
    /// Attempts ended per second over the last minute.
    pub ended_per_second: f64,
    /// Median of start − execute_at over the last minute, in milliseconds.
    pub lateness_p50_ms: Option<f64>,
    /// Its 99th percentile.
    pub lateness_p99_ms: Option<f64>,
}

impl Meters {
    /// Jobs were accepted.
    pub fn accepted(&self, jobs: u64) {
        self.add(jobs, 0);
    }

    /// An attempt ended.
    pub fn ended(&self) {
        self.add(0, 1);
    }

    /// An attempt started this late.
    pub fn started(&self, lateness: Duration) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.lateness.len() >= MOST_SAMPLES {
            inner.lateness.pop_front();
        }
        inner.lateness.push_back((Instant::now(), u64::try_from(lateness.as_micros()).unwrap_or(u64::MAX)));
    }

    fn add(&self, accepted: u64, ended: u64) {
        let now = Instant::now();
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        match inner.seconds.back_mut() {
            Some((began, a, e)) if now.duration_since(*began) < Duration::from_secs(1) => {
                *a += accepted;
                *e += ended;
            }
            _ => {
                inner.seconds.push_back((now, accepted, ended));
                while inner.seconds.front().is_some_and(|(began, _, _)| now.duration_since(*began) > WINDOW) {
                    inner.seconds.pop_front();
                }
            }
        }
    }

    /// Read the meters.
    #[must_use]
    pub fn read(&self) -> Figures {
        let now = Instant::now();
        let recent = |moment: &Instant| now.duration_since(*moment) <= WINDOW;
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
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
        Figures {
            accepted_per_second: accepted as f64 / WINDOW.as_secs_f64(),
            ended_per_second: ended as f64 / WINDOW.as_secs_f64(),
            lateness_p50_ms: percentile(0.5),
            lateness_p99_ms: percentile(0.99),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_and_rates() {
        let meters = Meters::default();
        assert_eq!(meters.read(), Figures::default());
        meters.accepted(120);
        for ms in 1..=100 {
            meters.started(Duration::from_millis(ms));
            meters.ended();
        }
        let read = meters.read();
        assert_eq!(
            (read.accepted_per_second, read.lateness_p50_ms, read.lateness_p99_ms),
            (2.0, Some(51.0), Some(99.0))
        );
        assert!((read.ended_per_second - 100.0 / 60.0).abs() < 1e-9);
    }
}
