//! `[alerts]`: when dead letters are too many or too old, and who is told.

use std::collections::BTreeMap;
use std::time::Duration;

use super::error::Wrong;
use super::setting::Setting;
use super::{duration, parse};

/// Whom to tell of dead letters, and when. Never without a URL and a threshold.
#[derive(Debug, Clone)]
pub struct Alerts {
    /// Where the signed callback goes.
    pub url: String,
    /// The queue of the callback's job.
    pub queue: String,
    /// How long nobody is told again of the same threshold.
    pub cooldown: Duration,
    /// For all kinds together.
    pub all: Threshold,
    /// By kind.
    pub kinds: BTreeMap<String, Threshold>,
}

/// When it is too much.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Threshold {
    /// Open dead letters.
    pub dead_letters: Option<u64>,
    /// Age of the oldest.
    pub dead_letter_age: Option<Duration>,
}

impl Threshold {
    /// Does it say anything?
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
        "Where a signed callback goes when a threshold is crossed; required",
        |a, t| parse::put(&mut a.url, url(t)),
    )
    .file_only(),
    Setting::<Alerts>::new("dead_letters", "N", "So many open dead letters are too many", |a, t| {
        parse::some(&mut a.all.dead_letters, parse::number(t, 1..=100_000))
    })
    .file_only(),
    Setting::<Alerts>::new("dead_letter_age", "DURATION", "The oldest open dead letter is too old then", |a, t| {
        parse::some(&mut a.all.dead_letter_age, duration::between(t, SECOND, YEAR))
    })
    .file_only(),
    Setting::<Alerts>::new("cooldown", "DURATION", "How long nobody is told again of the same threshold", |a, t| {
        parse::put(&mut a.cooldown, duration::between(t, SECOND, YEAR))
    })
    .default("15m")
    .file_only(),
    Setting::<Alerts>::new("queue", "QUEUE", "The queue of the callback's job", |a, t| {
        parse::put(&mut a.queue, parse::name(t))
    })
    .default("default")
    .file_only(),
];

/// The settings of `[alerts.kinds.<kind>]`.
pub(super) static THRESHOLD: &[Setting<Threshold>] = &[
    Setting::<Threshold>::new("dead_letters", "N", "So many open dead letters of this kind are too many", |a, t| {
        parse::some(&mut a.dead_letters, parse::number(t, 1..=100_000))
    })
    .file_only(),
    Setting::<Threshold>::new("dead_letter_age", "DURATION", "The oldest of this kind is too old then", |a, t| {
        parse::some(&mut a.dead_letter_age, duration::between(t, SECOND, YEAR))
    })
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

fn url(text: &str) -> Result<String, Wrong> {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    if rest.is_some_and(|rest| !rest.is_empty() && !rest.contains([' ', '@']) && text.len() <= 2_048) {
        return Ok(text.to_owned());
    }
    Err(Wrong::new("not a usable URL", "write https://host/path, without user name and password"))
}
