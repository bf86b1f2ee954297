//! `[kinds.<kind>]`: what an operator changes about a kind without touching its code.

use std::time::Duration;

use super::setting::Setting;
use super::{duration, parse};

/// Overrides for one kind. What is not set stays as the kind has it; a job's own options win over both.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct KindConfig {
    /// How many attempts a job gets.
    pub max_attempts: Option<u32>,
    /// How long one attempt may take.
    pub timeout: Option<Duration>,
    /// The delay before the first retry.
    pub retry_base: Option<Duration>,
    /// The longest delay between retries; at least `retry_base`.
    pub retry_cap: Option<Duration>,
    /// How much each delay is longer than the one before.
    pub retry_factor: Option<f64>,
    /// How long its completed jobs are kept.
    pub retention_completed: Option<Duration>,
    /// How long its cancelled jobs are kept.
    pub retention_cancelled: Option<Duration>,
    /// How long its failed jobs are kept.
    pub retention_failed: Option<Duration>,
}

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
const DAY: Duration = Duration::from_secs(86_400);

type Row = Setting<KindConfig>;

/// The settings of `[kinds.<kind>]`.
pub(super) static KINDS: &[Setting<KindConfig>] = &[
    Row::new("max_attempts", "N", "Attempts a job gets", |k, t| {
        parse::some(&mut k.max_attempts, parse::number(t, 1..=100))
    })
    .file_only(),
    Row::new("timeout", "DURATION", "How long one attempt may take", |k, t| {
        parse::some(&mut k.timeout, duration::between(t, MS, DAY))
    })
    .file_only(),
    Row::new("retry_base", "DURATION", "The delay before the first retry", |k, t| {
        parse::some(&mut k.retry_base, duration::between(t, MS, DAY))
    })
    .file_only(),
    Row::new("retry_cap", "DURATION", "The longest delay between retries", |k, t| {
        parse::some(&mut k.retry_cap, duration::between(t, MS, 7 * DAY))
    })
    .file_only(),
    Row::new("retry_factor", "NUMBER", "How much each delay is longer than the one before", |k, t| {
        parse::some(&mut k.retry_factor, parse::number(t, 1.0..=100.0))
    })
    .file_only(),
    Row::new("retention_completed", "DURATION", "How long its completed jobs are kept", |k, t| {
        parse::some(&mut k.retention_completed, duration::between(t, SECOND, 3650 * DAY))
    })
    .file_only(),
    Row::new("retention_cancelled", "DURATION", "How long its cancelled jobs are kept", |k, t| {
        parse::some(&mut k.retention_cancelled, duration::between(t, SECOND, 3650 * DAY))
    })
    .file_only(),
    Row::new("retention_failed", "DURATION", "How long its failed jobs are kept", |k, t| {
        parse::some(&mut k.retention_failed, duration::between(t, SECOND, 3650 * DAY))
    })
    .file_only(),
];
