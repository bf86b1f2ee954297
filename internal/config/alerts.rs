//! `[alerts]`: thresholds for the number and age of dead letters, and the target of the alert.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::error::Wrong;
use super::setting::Setting;
use super::url::masked;
use super::{duration, parse};

/// Alerts about dead letters. They always have a URL, and at least one threshold. So has each section for a kind.
///
/// `Debug` masks the URL, which may contain a secret.
#[derive(Clone)]
pub struct Alerts {
    /// Target URL of the signed callback.
    pub url: String,
    /// Queue of the callback's job.
    pub queue: String,
    /// Minimum time between alerts for one rule.
    pub cooldown: Duration,
    /// Threshold for all kinds together.
    pub all: Threshold,
    /// Thresholds by kind.
    pub kinds: BTreeMap<String, Threshold>,
}

impl fmt::Debug for Alerts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url, queue, cooldown, all, kinds } = self;
        let mut shown = f.debug_struct("Alerts");
        shown.field("url", &masked(url)).field("queue", queue).field("cooldown", cooldown);
        shown.field("all", all).field("kinds", kinds).finish()
    }
}

/// Thresholds of one rule.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Threshold {
    /// Number of open dead letters from which the rule fires.
    pub dead_letters: Option<u64>,
    /// Age of the oldest open dead letter from which the rule fires.
    pub dead_letter_age: Option<Duration>,
}

impl Threshold {
    /// Return true if any threshold is set.
    pub fn is_set(&self) -> bool {
        self.dead_letters.is_some() || self.dead_letter_age.is_some()
    }
}

const SECOND: Duration = Duration::from_secs(1);
const YEAR: Duration = Duration::from_secs(366 * 86_400);

/// The settings of `[alerts]`.
pub(super) static ALERTS: &[Setting<Alerts>] = &[
    Setting::<Alerts>::new(
        "url",
        "URL",
        "Target of the signed callback when a threshold is reached; required",
        |a, t| parse::put(&mut a.url, url(t)),
    )
    .file_only(),
    Setting::<Alerts>::new("dead_letters", "N", "Alert at this many open dead letters", |a, t| {
        parse::some(&mut a.all.dead_letters, parse::number(t, 1..=100_000))
    })
    .file_only(),
    Setting::<Alerts>::new(
        "dead_letter_age",
        "DURATION",
        "Alert when the oldest open dead letter reaches this age",
        |a, t| parse::some(&mut a.all.dead_letter_age, duration::between(t, SECOND, YEAR)),
    )
    .file_only(),
    Setting::<Alerts>::new("cooldown", "DURATION", "Minimum time between alerts for one rule", |a, t| {
        parse::put(&mut a.cooldown, duration::between(t, SECOND, YEAR))
    })
    .default("15m")
    .file_only(),
    Setting::<Alerts>::new("queue", "QUEUE", "Queue of the callback's job", |a, t| {
        parse::put(&mut a.queue, parse::name(t))
    })
    .default("default")
    .file_only(),
];

/// The settings of `[alerts.kinds.<kind>]`.
pub(super) static THRESHOLD: &[Setting<Threshold>] = &[
    Setting::<Threshold>::new("dead_letters", "N", "Alert at this many open dead letters of this kind", |a, t| {
        parse::some(&mut a.dead_letters, parse::number(t, 1..=100_000))
    })
    .file_only(),
    Setting::<Threshold>::new(
        "dead_letter_age",
        "DURATION",
        "Alert when the oldest open dead letter of this kind reaches this age",
        |a, t| parse::some(&mut a.dead_letter_age, duration::between(t, SECOND, YEAR)),
    )
    .file_only(),
];

impl Alerts {
    pub(super) fn blank() -> Alerts {
        Alerts {
            url: String::new(),
            queue: String::new(),
            cooldown: Duration::ZERO,
            all: Threshold::default(),
            kinds: BTreeMap::new(),
        }
    }
}

pub(super) fn url(text: &str) -> Result<String, Wrong> {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    if rest.is_some_and(|rest| !rest.is_empty() && !rest.contains([' ', '@']) && text.len() <= 2_048) {
        return Ok(text.to_owned());
    }
    Err(Wrong::new("not a usable URL", "write https://host/path, without user name and password"))
}
