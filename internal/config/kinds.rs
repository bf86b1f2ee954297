//! `[kinds.<kind>]`: the operator's changes to a kind, without a change of its code.

use std::time::Duration;

use super::setting::Setting;
use super::{duration, parse};

/// Overrides for one kind. Unset values keep the defaults of the kind; the options of a job override both.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct KindConfig {
    /// Maximum attempts of a job.
    pub max_attempts: Option<u32>,
    /// Time limit of one attempt.
    pub timeout: Option<Duration>,
    /// Delay before the first retry.
    pub retry_base: Option<Duration>,
    /// Longest delay between retries; at least `retry_base`.
    pub retry_cap: Option<Duration>,
    /// Factor from one delay to the next.
    pub retry_factor: Option<f64>,
    /// Retention of completed jobs.
    pub retention_completed: Option<Duration>,
    /// Retention of cancelled jobs.
    pub retention_cancelled: Option<Duration>,
    /// Retention of failed jobs.
    pub retention_failed: Option<Duration>,
}

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
const DAY: Duration = Duration::from_secs(86_400);

type Row = Setting<KindConfig>;

/// The settings of `[kinds.<kind>]`.
pub(super) static KINDS: &[Setting<KindConfig>] = &[
    Row::new("max_attempts", "N", "Maximum attempts of a job", |k, t| {
        parse::some(&mut k.max_attempts, parse::number(t, 1..=100))
    })
    .file_only(),
    Row::new("timeout", "DURATION", "Time limit of one attempt", |k, t| {
        parse::some(&mut k.timeout, duration::between(t, MS, DAY))
    })
    .file_only(),
    Row::new("retry_base", "DURATION", "Delay before the first retry", |k, t| {
        parse::some(&mut k.retry_base, duration::between(t, MS, DAY))
    })
    .file_only(),
    Row::new("retry_cap", "DURATION", "Longest delay between retries", |k, t| {
        parse::some(&mut k.retry_cap, duration::between(t, MS, 7 * DAY))
    })
    .file_only(),
    Row::new("retry_factor", "NUMBER", "Factor from one delay to the next", |k, t| {
        parse::some(&mut k.retry_factor, parse::number(t, 1.0..=100.0))
    })
    .file_only(),
    Row::new("retention_completed", "DURATION", "Retention of its completed jobs", |k, t| {
        parse::some(&mut k.retention_completed, duration::between(t, SECOND, 3650 * DAY))
    })
    .file_only(),
    Row::new("retention_cancelled", "DURATION", "Retention of its cancelled jobs", |k, t| {
        parse::some(&mut k.retention_cancelled, duration::between(t, SECOND, 3650 * DAY))
    })
    .file_only(),
    Row::new("retention_failed", "DURATION", "Retention of its failed jobs", |k, t| {
        parse::some(&mut k.retention_failed, duration::between(t, SECOND, 3650 * DAY))
    })
    .file_only(),
];
