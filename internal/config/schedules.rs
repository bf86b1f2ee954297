//! `[schedules.<name>]`: schedules that are declared in the configuration file and owned by it.

use std::time::Duration;

use serde_json::value::RawValue;

use super::error::Wrong;
use super::origin::SettingOrigin;
use super::setting::{Secrecy, Setting};
use super::{duration, parse};
use tickr_job::{Dst, Misfire, OnFailure, Overlap, RetryRequest, Schedule, ScheduleDraft, Timestamp};

/// A declared schedule.
#[derive(Debug, Clone)]
pub struct ScheduleConfig {
    /// The schedule. Checked except for what only its kind knows.
    pub schedule: Schedule,
    /// True if the declaration names a queue. Otherwise the jobs go to the queue of their kind, if it has one.
    pub names_queue: bool,
    /// Position of the declaration, for problems found later.
    pub origin: SettingOrigin,
}

/// A declared schedule before its keys are checked together.
#[derive(Default)]
pub(super) struct ScheduleKeys {
    cron: Option<String>,
    every: Option<Duration>,
    anchor: Option<Timestamp>,
    zone: Option<String>,
    dst: Option<Dst>,
    misfire: Option<Misfire>,
    misfire_grace: Option<Duration>,
    overlap: Option<Overlap>,
    kind: String,
    payload: Option<Box<RawValue>>,
    queue: Option<String>,
    priority: Option<u8>,
    max_attempts: Option<u32>,
    timeout: Option<Duration>,
    retry_base: Option<Duration>,
    retry_cap: Option<Duration>,
    retry_factor: Option<f64>,
    order_key: Option<String>,
    on_failure: Option<OnFailure>,
    limit_key: Option<String>,
    expires_in: Option<Duration>,
    tags: Vec<String>,
}

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);
const ON_FAILURE: [(&str, OnFailure); 2] = [("block", OnFailure::Block), ("skip", OnFailure::Skip)];

type Row = Setting<ScheduleKeys>;

/// The settings of `[schedules.<name>]`.
pub(super) static SCHEDULES: &[Setting<ScheduleKeys>] = &[
    Row::new(
        "cron",
        "CRON",
        "Cron expression of five fields, or six with seconds first; alternative to every",
        |s, t| parse::some(&mut s.cron, parse::line(t)),
    )
    .file_only(),
    Row::new("every", "DURATION", "Interval; alternative to cron", |s, t| {
        parse::some(&mut s.every, duration::between(t, SECOND, 366 * DAY))
    })
    .file_only(),
    Row::new(
        "anchor",
        "MOMENT",
        "First tick of the interval; default: one interval after the schedule is first declared",
        |s, t| parse::some(&mut s.anchor, moment(t)),
    )
    .file_only(),
    Row::new("zone", "ZONE", "Time zone; default: UTC", |s, t| parse::some(&mut s.zone, parse::line(t))).file_only(),
    Row::new("dst", "POLICY", "Policy for clock changes: once, skip or both", |s, t| {
        parse::some(&mut s.dst, word(t, &Dst::ALL, Dst::as_str))
    })
    .file_only(),
    Row::new("misfire", "POLICY", "Policy for missed ticks: skip, one or all", |s, t| {
        parse::some(&mut s.misfire, word(t, &Misfire::ALL, Misfire::as_str))
    })
    .file_only(),
    Row::new(
        "misfire_grace",
        "DURATION",
        "Maximum lateness of a tick before it counts as missed; at least 100ms with misfire skip",
        |s, t| parse::some(&mut s.misfire_grace, duration::between(t, Duration::ZERO, DAY)),
    )
    .file_only(),
    Row::new("overlap", "POLICY", "Policy while the previous job has not ended: allow, skip or replace", |s, t| {
        parse::some(&mut s.overlap, word(t, &Overlap::ALL, Overlap::as_str))
    })
    .file_only(),
    Row::new("kind", "KIND", "Kind of its jobs; required", |s, t| parse::put(&mut s.kind, parse::name(t))).file_only(),
    // Payloads are secret, because only the handler may see them.
    Row::new("payload", "JSON", "The handler's input", |s, t| parse::some(&mut s.payload, json(t)))
        .secrecy(Secrecy::Secret)
        .file_only(),
    Row::new("queue", "QUEUE", "Queue of its jobs; default: that of the declared kind, or else default", |s, t| {
        parse::some(&mut s.queue, parse::name(t))
    })
    .file_only(),
    Row::new("priority", "N", "Priority of its jobs: 0 runs first, 9 last", |s, t| {
        parse::some(&mut s.priority, parse::number(t, 0..=9))
    })
    .file_only(),
    Row::new("max_attempts", "N", "Maximum attempts of a job", |s, t| {
        parse::some(&mut s.max_attempts, parse::number(t, 1..=100))
    })
    .file_only(),
    Row::new("timeout", "DURATION", "Time limit of one attempt", |s, t| {
        parse::some(&mut s.timeout, duration::between(t, MS, DAY))
    })
    .file_only(),
    Row::new("retry_base", "DURATION", "Delay before the first retry", |s, t| {
        parse::some(&mut s.retry_base, duration::between(t, MS, DAY))
    })
    .file_only(),
    Row::new("retry_cap", "DURATION", "Longest delay between retries", |s, t| {
        parse::some(&mut s.retry_cap, duration::between(t, MS, 7 * DAY))
    })
    .file_only(),
    Row::new("retry_factor", "NUMBER", "Factor from one delay to the next", |s, t| {
        parse::some(&mut s.retry_factor, parse::number(t, 1.0..=100.0))
    })
    .file_only(),
    Row::new("order_key", "KEY", "Order key of its jobs: they run one at a time, in the order of the ticks", |s, t| {
        parse::some(&mut s.order_key, parse::line(t))
    })
    .file_only(),
    Row::new(
        "on_failure",
        "WORD",
        "Effect of a job that fails for good on the jobs behind it with the same order key: block or skip",
        |s, t| parse::some(&mut s.on_failure, parse::one_of(t, &ON_FAILURE)),
    )
    .file_only(),
    Row::new("limit_key", "KEY", "Limit key of its jobs: limits count the jobs with the same one", |s, t| {
        parse::some(&mut s.limit_key, parse::line(t))
    })
    .file_only(),
    Row::new("expires_in", "DURATION", "Time after its acceptance at which a job expires", |s, t| {
        parse::some(&mut s.expires_in, duration::between(t, MS, 366 * DAY))
    })
    .file_only(),
    Row::new("tags", "TAGS", "Tags of its jobs, at most ten", |s, t| {
        parse::put(&mut s.tags, parse::list(t, parse::line))
    })
    .list()
    .file_only(),
];

fn moment(text: &str) -> Result<Timestamp, Wrong> {
    text.trim().parse().map_err(|_| Wrong::new("not a moment", "write one like 2026-01-31T06:00:00Z"))
}

fn word<T: Copy>(text: &str, all: &[T], as_str: impl Fn(T) -> &'static str) -> Result<T, Wrong> {
    let words: Vec<(&str, T)> = all.iter().map(|one| (as_str(*one), *one)).collect();
    parse::one_of(text, &words)
}

fn json(text: &str) -> Result<Box<RawValue>, Wrong> {
    serde_json::from_str(text.trim()).map_err(|error| {
        Wrong::new(format!("not JSON: {error}"), "write JSON text in single quotes, like '{\"to\": 1}'")
    })
}

impl ScheduleKeys {
    /// Put a usual value in place of each failed key that other keys need, so that they are checked as well.
    pub(super) fn stand_in_for(&mut self, has_failed: impl Fn(&str) -> bool) {
        if has_failed("every") && self.cron.is_none() {
            self.every = Some(DAY);
        }
        if has_failed("order_key") {
            self.order_key = Some("key".to_owned());
        }
    }

    /// Return whether the declaration names a queue.
    pub(super) fn names_queue(&self) -> bool {
        self.queue.is_some()
    }

    /// Check the keys together. Each problem comes with its key.
    pub(super) fn finish(self, now: Timestamp) -> Result<Schedule, Vec<(&'static str, Wrong)>> {
        let mut wrongs = Vec::new();
        if self.kind.is_empty() {
            wrongs.push(("kind", Wrong::new("required but not set", "write kind = \"…\"")));
        }
        // A stand-in for a missing kind lets the other keys be checked.
        let kind = if self.kind.is_empty() { "missing".to_owned() } else { self.kind };
        let payload = self.payload.unwrap_or_else(|| RawValue::from_string("{}".to_owned()).unwrap_or_default());
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let says_retry = self.retry_base.is_some() || self.retry_cap.is_some() || self.retry_factor.is_some();
        let retry = says_retry.then(|| RetryRequest {
            base_ms: self.retry_base.map(ms),
            cap_ms: self.retry_cap.map(ms),
            factor: self.retry_factor,
            ..RetryRequest::default()
        });
        let draft = ScheduleDraft {
            cron: self.cron,
            every_ms: self.every.map(ms),
            anchor: self.anchor,
            zone: self.zone,
            dst: self.dst,
            misfire: self.misfire,
            misfire_grace_ms: self.misfire_grace.map(ms),
            overlap: self.overlap,
            queue: self.queue,
            priority: self.priority,
            max_attempts: self.max_attempts,
            timeout_ms: self.timeout.map(ms),
            retry,
            order_key: self.order_key,
            on_failure: self.on_failure,
            limit_key: self.limit_key,
            expires_in_ms: self.expires_in.map(ms),
            tags: self.tags,
            ..ScheduleDraft::new(kind, payload)
        };
        let of_key = |wrong: tickr_job::WrongField| {
            (
                key_of(&wrong.field),
                Wrong::new(
                    wrong.detail.replace("every_ms", "every"),
                    "see [schedules.<name>] in tickr config --reference",
                ),
            )
        };
        match draft.check(now) {
            Ok(schedule) if wrongs.is_empty() => Ok(schedule),
            checked => {
                wrongs.extend(checked.err().into_iter().flatten().map(of_key));
                Err(wrongs)
            }
        }
    }
}

/// Return the key in the file for a field of the API.
fn key_of(field: &str) -> &'static str {
    match field {
        "every_ms" => "every",
        "misfire_grace_ms" => "misfire_grace",
        "timeout_ms" => "timeout",
        "retry/base_ms" => "retry_base",
        "retry/cap_ms" => "retry_cap",
        "retry/factor" => "retry_factor",
        "expires_in_ms" => "expires_in",
        field if field.starts_with("tags/") => "tags",
        field => SCHEDULES.iter().map(|setting| setting.name).find(|name| *name == field).unwrap_or("cron"),
    }
}
