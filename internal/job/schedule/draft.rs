//! A requested schedule before it is checked.

use std::time::Duration;

use serde_json::value::RawValue;

use super::{Cadence, CronExpression, Dst, Misfire, Overlap, Schedule, Template, Zone};
use crate::{Name, OnFailure, Order, Priority, RetryPolicy, RetryRequest, Tag, Timestamp, ceil_ms, limits};

/// A requested schedule. Everything except the kind and one of `cron` and `every_ms` is optional.
#[derive(Clone, Debug)]
pub struct ScheduleDraft {
    /// Cron expression; an alternative to `every_ms`.
    pub cron: Option<String>,
    /// Interval in milliseconds; an alternative to `cron`.
    pub every_ms: Option<u64>,
    /// Time of a tick of the interval, from which all others are counted. Without it the interval begins when it is
    /// declared, and the first tick comes one interval later.
    pub anchor: Option<Timestamp>,
    /// Time zone name. Default: UTC.
    pub zone: Option<String>,
    /// Policy for clock changes.
    pub dst: Option<Dst>,
    /// Policy for missed ticks.
    pub misfire: Option<Misfire>,
    /// Maximum lateness of a tick, in milliseconds, before it counts as missed. At least 100 if missed ticks do not
    /// fire.
    pub misfire_grace_ms: Option<u64>,
    /// Policy if the previous job has not ended.
    pub overlap: Option<Overlap>,
    /// Kind of the jobs.
    pub kind: String,
    /// The handler's input.
    pub payload: Box<RawValue>,
    /// Queue name. Default: `default`.
    pub queue: Option<String>,
    /// Priority, 0 (first) to 9 (last).
    pub priority: Option<u8>,
    /// Maximum attempts, 1 to 100; the default of the kind if absent.
    pub max_attempts: Option<u32>,
    /// Time limit of one attempt, in milliseconds; the default of the kind if absent.
    pub timeout_ms: Option<u64>,
    /// Backoff; what is absent is that of the kind.
    pub retry: Option<RetryRequest>,
    /// Order key of the jobs: they run one at a time, in the order of the ticks, with all others that have it.
    pub order_key: Option<String>,
    /// What the final failure of a job does to the jobs behind it. Only together with an order key.
    pub on_failure: Option<OnFailure>,
    /// Limit key of the jobs.
    pub limit_key: Option<String>,
    /// Time after the acceptance of a job at which it expires, in milliseconds.
    pub expires_in_ms: Option<u64>,
    /// Tags of the jobs, at most ten.
    pub tags: Vec<String>,
}

/// One problem of a draft.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongField {
    /// Name of the field in the API; `retry/cap_ms` for a field inside another.
    pub field: String,
    /// The problem, and a correct value.
    pub detail: String,
}

/// Default of the maximum lateness before a tick counts as missed. A runner restarts in less time.
const USUAL_GRACE: Duration = Duration::from_secs(15);
/// Shortest permitted value of that time where a missed tick does not fire.
const LEAST_GRACE_OF_SKIP: Duration = Duration::from_millis(100);
/// Longest permitted value of that time.
const MAX_GRACE: Duration = Duration::from_secs(24 * 60 * 60);

impl ScheduleDraft {
    /// Make a draft with all options unset.
    #[must_use]
    pub fn new(kind: impl Into<String>, payload: Box<RawValue>) -> Self {
        Self {
            cron: None,
            every_ms: None,
            anchor: None,
            zone: None,
            dst: None,
            misfire: None,
            misfire_grace_ms: None,
            overlap: None,
            kind: kind.into(),
            payload,
            queue: None,
            priority: None,
            max_attempts: None,
            timeout_ms: None,
            retry: None,
            order_key: None,
            on_failure: None,
            limit_key: None,
            expires_in_ms: None,
            tags: Vec::new(),
        }
    }

    /// Check everything except what only the kind knows. `now` is the default begin of an interval. A cron expression
    /// must tick at least once after `now`.
    ///
    /// # Errors
    /// All problems found.
    pub fn check(self, now: Timestamp) -> Result<Schedule, Vec<WrongField>> {
        let mut wrong = Vec::new();
        let cadence = self.cadence(now, &mut wrong);
        let mut says = |field: &str, detail: String| wrong.push(WrongField { field: field.to_owned(), detail });
        let mut name =
            |field: &str, text: &str| text.parse::<Name>().map_err(|invalid| says(field, invalid.to_string())).ok();
        let kind = name("kind", &self.kind);
        let queue = name("queue", self.queue.as_deref().unwrap_or("default"));
        let priority = self.priority.map_or(Ok(Priority::NORMAL), Priority::try_from);
        let priority = priority.map_err(|why| says("priority", why.to_owned())).ok();
        if self.max_attempts.is_some_and(|most| !(1..=limits::MAX_ATTEMPTS).contains(&most)) {
            says("max_attempts", format!("must be 1 to {}", limits::MAX_ATTEMPTS));
        }
        let most_ms = millis(limits::MAX_TIMEOUT);
        if self.timeout_ms.is_some_and(|ms| ms == 0 || ms > most_ms) {
            says("timeout_ms", format!("must be 1 to {most_ms}"));
        }
        // The policy of the kind may change until a tick. The job of a tick is checked against it.
        let usual = RetryPolicy::default();
        if let Some((field, why)) = self.retry.as_ref().and_then(|retry| retry.problem(&usual)) {
            says(&format!("retry/{field}"), why.to_owned());
        }
        let grace = self.grace(&mut wrong);
        let tags = self.keys_and_tags(&mut wrong);
        match (cadence, kind, queue, priority, wrong.is_empty()) {
            (Some((cadence, zone)), Some(kind), Some(queue), Some(priority), true) => Ok(Schedule {
                cadence,
                unanchored: self.anchor.is_none(),
                zone,
                misfire: self.misfire.unwrap_or_default(),
                grace,
                overlap: self.overlap.unwrap_or_default(),
                template: Template {
                    kind,
                    payload: self.payload,
                    queue,
                    priority,
                    max_attempts: self.max_attempts,
                    timeout_ms: self.timeout_ms,
                    retry: self.retry,
                    order: self.order_key.map(|key| Order { key, on_failure: self.on_failure.unwrap_or_default() }),
                    limit_key: self.limit_key,
                    expires_in_ms: self.expires_in_ms,
                    tags,
                },
            }),
            _ => Err(wrong),
        }
    }

    /// Check and return the lateness at which a tick counts as missed.
    fn grace(&self, wrong: &mut Vec<WrongField>) -> Duration {
        let grace = self.misfire_grace_ms.map_or(USUAL_GRACE, Duration::from_millis);
        let mut says = |detail: String| wrong.push(WrongField { field: "misfire_grace_ms".to_owned(), detail });
        if grace > MAX_GRACE {
            says(format!("must be at most {}", millis(MAX_GRACE)));
        }
        // Each tick is processed some milliseconds after its due time. With a shorter time few would ever fire.
        if self.misfire == Some(Misfire::Skip) && grace < LEAST_GRACE_OF_SKIP {
            says(format!("must be at least {} with misfire skip", millis(LEAST_GRACE_OF_SKIP)));
        }
        grace
    }

    /// Check the keys, the expiry and the tags of the jobs. Return the tags, each once.
    fn keys_and_tags(&self, wrong: &mut Vec<WrongField>) -> Vec<Tag> {
        let mut says = |field: &str, detail: String| wrong.push(WrongField { field: field.to_owned(), detail });
        for (field, key) in [("order_key", &self.order_key), ("limit_key", &self.limit_key)] {
            if key.as_ref().is_some_and(|key| !(1..=limits::MAX_KEY_BYTES).contains(&key.len())) {
                says(field, format!("must be 1 to {} bytes", limits::MAX_KEY_BYTES));
            }
        }
        if self.on_failure.is_some() && self.order_key.is_none() {
            says("on_failure", "may only be given together with order_key".to_owned());
        }
        let most_ms = millis(limits::MAX_AHEAD);
        if self.expires_in_ms.is_some_and(|ms| ms == 0 || ms > most_ms) {
            says("expires_in_ms", format!("must be 1 to {most_ms} (366 days)"));
        }
        if self.tags.len() > limits::MAX_TAGS {
            says("tags", format!("must be at most {}", limits::MAX_TAGS));
        }
        let mut tags: Vec<Tag> = Vec::with_capacity(self.tags.len().min(limits::MAX_TAGS));
        for (place, tag) in self.tags.iter().take(limits::MAX_TAGS).enumerate() {
            match tag.parse::<Tag>() {
                // Drop a repeated tag.
                Ok(tag) if tags.contains(&tag) => {}
                Ok(tag) => tags.push(tag),
                Err(invalid) => says(&format!("tags/{place}"), invalid.to_string()),
            }
        }
        tags
    }

    fn cadence(&self, now: Timestamp, wrong: &mut Vec<WrongField>) -> Option<(Cadence, Zone)> {
        let mut says = |field: &str, detail: String| wrong.push(WrongField { field: field.to_owned(), detail });
        let zone = match self.zone.as_deref().map_or(Ok(Zone::UTC), Zone::named) {
            Ok(zone) => Some(zone),
            Err(unknown) => {
                says("zone", unknown.to_string());
                None
            }
        };
        match (&self.cron, self.every_ms) {
            (Some(_), Some(_)) => says("every_ms", "give cron or every_ms, not both".to_owned()),
            (None, None) => says("cron", "give cron or every_ms".to_owned()),
            (Some(text), None) => {
                if self.anchor.is_some() {
                    says("anchor", "applies only together with every_ms".to_owned());
                }
                let cron = CronExpression::parse(text).map_err(|why| says("cron", why)).ok()?;
                let zone = zone?;
                let cadence = Cadence::Cron { cron, zone, dst: self.dst.unwrap_or_default() };
                if cadence.next_after(now).is_none() {
                    says("cron", "matches no time in the future".to_owned());
                    return None;
                }
                return Some((cadence, zone));
            }
            (None, Some(ms)) => {
                if self.dst.is_some() {
                    says("dst", "applies only together with cron: an interval does not follow a wall clock".to_owned());
                }
                let (least, most) = (millis(Cadence::MIN_EVERY), millis(Cadence::MAX_EVERY));
                if !(least..=most).contains(&ms) {
                    says("every_ms", format!("must be {least} to {most}"));
                }
                let anchor = self.anchor.unwrap_or(now);
                // Values outside this range overflow the columns and the arithmetic in milliseconds.
                if (anchor - now).abs() > chrono::TimeDelta::days(366 * 100) {
                    says("anchor", "must lie within a century of now".to_owned());
                    return None;
                }
                let anchor = ceil_ms(anchor);
                let cadence = Cadence::Every { every: Duration::from_millis(ms), anchor };
                return zone.map(|zone| (cadence, zone));
            }
        }
        None
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft() -> ScheduleDraft {
        ScheduleDraft::new("noop", RawValue::from_string("{}".into()).unwrap())
    }

    fn fields(draft: ScheduleDraft) -> Vec<String> {
        let now = "2026-11-21T00:00:00Z".parse().unwrap();
        draft.check(now).err().map(|wrong| wrong.into_iter().map(|wrong| wrong.field).collect()).unwrap_or_default()
    }

    #[test]
    fn everything_that_is_wrong_is_said_at_once() {
        let cron = |text: &str| ScheduleDraft { cron: Some(text.to_owned()), ..draft() };
        assert_eq!(fields(cron("0 3 * * *")), [""; 0]);
        assert_eq!(fields(draft()), ["cron"]);
        assert_eq!(fields(cron("0 3 30 2 *")), ["cron"]);
        let all = ScheduleDraft {
            zone: Some("Europe/Warsow".to_owned()),
            every_ms: Some(1),
            kind: "No Kind".to_owned(),
            queue: Some(String::new()),
            priority: Some(10),
            max_attempts: Some(0),
            timeout_ms: Some(0),
            misfire_grace_ms: Some(u64::MAX),
            limit_key: Some("k".repeat(256)),
            on_failure: Some(OnFailure::Skip),
            expires_in_ms: Some(0),
            tags: vec!["nightly".to_owned(), "two words".to_owned()],
            ..cron("0 3 * * *")
        };
        let times = ["zone", "every_ms"];
        let of_jobs = ["kind", "queue", "priority", "max_attempts", "timeout_ms"];
        let rest = ["misfire_grace_ms", "limit_key", "on_failure", "expires_in_ms", "tags/1"];
        assert_eq!(fields(all), [times.as_slice(), &of_jobs, &rest].concat());
        for ms in [0, 999, u64::MAX] {
            assert_eq!(fields(ScheduleDraft { every_ms: Some(ms), ..draft() }), ["every_ms"], "{ms}");
        }
        let every = ScheduleDraft { every_ms: Some(1_000), dst: Some(Dst::Both), ..draft() };
        assert_eq!(fields(every), ["dst"]);
        let grace = |misfire, ms| ScheduleDraft {
            misfire: Some(misfire),
            misfire_grace_ms: Some(ms),
            every_ms: Some(1_000),
            ..draft()
        };
        assert_eq!(fields(grace(Misfire::Skip, 99)), ["misfire_grace_ms"]);
        for may in [grace(Misfire::Skip, 100), grace(Misfire::One, 0), grace(Misfire::All, 0)] {
            assert_eq!(fields(may), [""; 0]);
        }
        let far = ScheduleDraft { every_ms: Some(1_000), anchor: Some(Timestamp::MAX_UTC), ..draft() };
        assert_eq!(fields(far), ["anchor"]);
    }
}
