//! Limits by key: how many jobs with the same limit key may run at the same time, and how many may start in a period.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Name;

/// Most overrides of one limit.
pub const MAX_OVERRIDES: usize = 1_000;
/// Largest number of jobs at the same time, of starts in a period, and of starts that may come at once.
pub const MAX_BOUND: u32 = 1_000_000;
/// Largest weight of a key.
pub const MAX_WEIGHT: u32 = 1_000;
/// Longest period of a rate, in milliseconds: 31 days.
pub const MAX_PERIOD_MS: u32 = 31 * 24 * 60 * 60 * 1_000;

/// A limit that operators set at run time. It applies to the jobs of its kind and its queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Its name.
    pub name: Name,
    /// Only jobs of this kind; of all kinds when absent.
    pub kind: Option<Name>,
    /// Only jobs in this queue; in all queues when absent.
    pub queue: Option<Name>,
    /// The jobs that share the limit.
    pub shared_by: SharedBy,
    /// True if keys with waiting jobs share the workers of the runners, by their weights. A key alone may use all of them.
    pub fair: bool,
    /// When calls to a host stop. Only for limits that are shared by host.
    pub breaker: Option<Breaker>,
    /// The values for every key without an override.
    pub bounds: Bounds,
    /// Values for single keys. What an override leaves out is as in `bounds`.
    pub overrides: BTreeMap<String, Bounds>,
}

/// When calls to a host stop, and when one is made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Breaker {
    /// Number of failed calls in a row after which calls stop.
    pub failures: u32,
    /// Time until one call is made, in milliseconds. It doubles with each failure of that call.
    pub pause_ms: u32,
    /// Longest such time in milliseconds.
    pub max_pause_ms: u32,
}

impl Breaker {
    /// Largest number of failures in a row.
    pub const MAX_FAILURES: u32 = 1_000;
    /// Shortest pause in milliseconds.
    pub const MIN_PAUSE_MS: u32 = 100;
    /// Longest pause in milliseconds: a day.
    pub const MAX_PAUSE_MS: u32 = 24 * 60 * 60 * 1_000;
}

impl Default for Breaker {
    fn default() -> Self {
        Self { failures: 5, pause_ms: 10_000, max_pause_ms: 600_000 }
    }
}

/// How a call to a host ended, for its breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// The host answered, be it with a refusal that is about this call.
    Answered,
    /// The host did not answer, or said that it cannot serve calls now.
    Failed,
    /// The call was refused before it was made, so it says nothing about the host.
    NotMade,
}

/// The jobs that share a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SharedBy {
    /// Jobs with the same limit key. Jobs without one have no such limit.
    #[default]
    Key,
    /// Jobs whose limit keys have the same part before the first `/`. So a tenant with many keys has one limit.
    Parent,
    /// All jobs to which the limit applies, with or without a limit key.
    All,
    /// Jobs that call the same host. The kind of a job finds the host in its payload. Jobs without one have no such limit.
    Host,
}

/// What a job has that limits count by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountedBy<'k> {
    /// Limit key that the client gave to the job.
    pub limit_key: Option<&'k str>,
    /// Host that the job calls, such as `example.com` or `example.com:8443`.
    pub host: Option<&'k str>,
}

words!(SharedBy {
    Key => "key",
    Parent => "parent",
    All => "all",
    Host => "host",
});

/// The values of a limit for one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bounds {
    /// Most attempts at the same time; no such limit when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// Most starts in a period; no such limit when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Weight of the key, if the limit is fair; 1 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
}

/// Most starts in a period. In no period, wherever it begins, start more than `starts + burst` jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    /// Number of starts in a period.
    pub starts: u32,
    /// Length of the period in milliseconds.
    pub period_ms: u32,
    /// Number of starts that may come at once after a quiet time, or to make up for late ones.
    pub burst: u32,
}

impl Rate {
    /// Return the burst for a rate without one: the starts of a tenth of a second, and at least one. With less, a rate
    /// would not be used up, because jobs start a few milliseconds after their due times.
    #[must_use]
    pub fn default_burst(starts: u32, period_ms: u32) -> u32 {
        let in_a_tenth = u64::from(starts) * 100 / u64::from(period_ms.max(1));
        u32::try_from(in_a_tenth).unwrap_or(u32::MAX).clamp(1, MAX_BOUND)
    }

    /// Return the time between two starts in microseconds, rounded up.
    #[must_use]
    pub fn interval_us(&self) -> i64 {
        i64::from(self.period_ms).saturating_mul(1_000).div_euclid(i64::from(self.starts.max(1)))
            + i64::from(i64::from(self.period_ms) * 1_000 % i64::from(self.starts.max(1)) != 0)
    }

    /// Return how long before its even time a start may come, in microseconds.
    #[must_use]
    pub fn tolerance_us(&self) -> i64 {
        self.interval_us().saturating_mul(i64::from(self.burst))
    }
}

impl Limit {
    /// Return whether the limit applies to jobs of this queue.
    #[must_use]
    pub fn concerns_queue(&self, queue: &Name) -> bool {
        self.queue.as_ref().is_none_or(|own| own == queue)
    }

    /// Return the key under which a job counts against this limit. Nothing if the limit does not apply to the job.
    #[must_use]
    pub fn key_of<'k>(&self, kind: &Name, queue: &Name, by: CountedBy<'k>) -> Option<&'k str> {
        if !self.concerns_queue(queue) || self.kind.as_ref().is_some_and(|own| own != kind) {
            return None;
        }
        match self.shared_by {
            SharedBy::Key => by.limit_key,
            SharedBy::Parent => by.limit_key.map(|key| key.split('/').next().unwrap_or(key)),
            SharedBy::All => Some(""),
            SharedBy::Host => by.host,
        }
    }

    /// Return the values for a key.
    #[must_use]
    pub fn bounds_of(&self, key: &str) -> Bounds {
        let own = self.overrides.get(key).copied().unwrap_or_default();
        Bounds {
            concurrency: own.concurrency.or(self.bounds.concurrency),
            rate: own.rate.or(self.bounds.rate),
            weight: own.weight.or(self.bounds.weight),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(shared_by: SharedBy) -> Limit {
        Limit {
            name: "l".parse().unwrap(),
            kind: Some("email".parse().unwrap()),
            queue: None,
            shared_by,
            fair: false,
            breaker: None,
            bounds: Bounds { concurrency: Some(2), ..Bounds::default() },
            overrides: BTreeMap::from([("acme".to_owned(), Bounds { concurrency: Some(9), ..Bounds::default() })]),
        }
    }

    #[test]
    fn a_job_counts_under_its_key_its_parent_its_host_or_all() {
        let (email, http, queue) = ("email".parse().unwrap(), "http".parse().unwrap(), "default".parse().unwrap());
        let key = |shared_by, kind, limit_key| {
            let by = CountedBy { limit_key, host: Some("example.com") };
            limit(shared_by).key_of(kind, &queue, by).map(str::to_owned)
        };
        assert_eq!(key(SharedBy::Key, &email, Some("acme/7")).as_deref(), Some("acme/7"));
        assert_eq!(key(SharedBy::Parent, &email, Some("acme/7")).as_deref(), Some("acme"));
        assert_eq!(key(SharedBy::Parent, &email, Some("acme")).as_deref(), Some("acme"));
        assert_eq!(key(SharedBy::All, &email, None).as_deref(), Some(""));
        assert_eq!(key(SharedBy::Key, &email, None), None);
        assert_eq!(key(SharedBy::All, &http, None), None);
        assert_eq!(key(SharedBy::Host, &email, Some("acme/7")).as_deref(), Some("example.com"));
        assert_eq!(limit(SharedBy::Host).key_of(&email, &queue, CountedBy::default()), None);
    }

    #[test]
    fn an_override_changes_what_it_names() {
        let limit = limit(SharedBy::Key);
        assert_eq!(limit.bounds_of("acme").concurrency, Some(9));
        assert_eq!(limit.bounds_of("other").concurrency, Some(2));
    }

    #[test]
    fn the_time_between_starts_is_rounded_up() {
        let rate = |starts, period_ms| Rate { starts, period_ms, burst: 1 };
        assert_eq!(rate(100, 1_000).interval_us(), 10_000);
        assert_eq!(rate(3, 1_000).interval_us(), 333_334);
        assert_eq!(rate(1_000_000, 1).interval_us(), 1);
        assert_eq!(Rate::default_burst(100, 1_000), 10);
        assert_eq!(Rate::default_burst(1, 60_000), 1);
    }
}
