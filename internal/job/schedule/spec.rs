//! A checked schedule.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{Cadence, Dst, Zone};
use crate::{Name, Order, Priority, RetryRequest, Tag, Timestamp, floor_ms, is_equal_json};

/// A requested schedule: complete and checked.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// The times of its ticks.
    pub cadence: Cadence,
    /// True if the interval begins at the time of the declaration because the request has no anchor.
    pub unanchored: bool,
    /// The time zone in which its times are displayed. The zone of a cron expression.
    pub zone: Zone,
    /// Policy for missed ticks.
    pub misfire: Misfire,
    /// Maximum lateness of a tick before it counts as missed.
    pub grace: Duration,
    /// Policy if the job of the previous tick has not ended.
    pub overlap: Overlap,
    /// The jobs it creates.
    pub template: Template,
}

/// The jobs that a schedule creates. Absent values take the default of the kind when the tick fires.
#[derive(Clone)]
pub struct Template {
    /// Kind, which selects the handler.
    pub kind: Name,
    /// The handler's input, as JSON text.
    pub payload: Box<RawValue>,
    /// Queue in which the jobs wait.
    pub queue: Name,
    /// Urgency within the queue.
    pub priority: Priority,
    /// Attempts before a job fails.
    pub max_attempts: Option<u32>,
    /// Time limit of one attempt, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// Backoff.
    pub retry: Option<RetryRequest>,
    /// Order key, and what the final failure of a job does to the jobs behind it.
    pub order: Option<Order>,
    /// Limit key: the limits that operators set count the jobs with the same one.
    pub limit_key: Option<String>,
    /// Time after the acceptance of a job at which it expires, in milliseconds.
    pub expires_in_ms: Option<u64>,
    /// Tags to find the jobs by, each once.
    pub tags: Vec<Tag>,
}

impl Template {
    /// Return the options that are stored as JSON.
    #[must_use]
    pub fn options(&self) -> TemplateOptions {
        TemplateOptions {
            timeout_ms: self.timeout_ms,
            retry: self.retry.clone(),
            order: self.order.clone(),
            limit_key: self.limit_key.clone(),
            expires_in_ms: self.expires_in_ms,
            tags: self.tags.clone(),
        }
    }
}

/// The less common options of a schedule's jobs, stored as JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TemplateOptions {
    /// Time limit of one attempt, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Backoff.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryRequest>,
    /// Order key, and what the final failure of a job does to the jobs behind it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<Order>,
    /// Limit key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_key: Option<String>,
    /// Time after the acceptance of a job at which it expires, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<u64>,
    /// Tags.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<Tag>,
}

/// Effect of options of a schedule on a binary that does not know them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForOlder {
    /// It cannot read the schedule, and leaves the ticks to binaries that can.
    Unreadable,
    /// It reads the schedule without these options.
    Reduced,
}

impl TemplateOptions {
    /// Return the text to store, or nothing if all options have their defaults. `for_older` concerns binaries from
    /// before order keys, limit keys, expiries and tags of schedules.
    ///
    /// # Errors
    /// When the options cannot be written as JSON.
    pub fn to_stored(&self, for_older: ForOlder) -> Result<Option<String>, serde_json::Error> {
        if *self == Self::default() {
            return Ok(None);
        }
        let known = Self { timeout_ms: self.timeout_ms, retry: self.retry.clone(), ..Self::default() };
        // Those binaries ignore fields that they do not know, but they refuse an array with an object in it.
        let text = if *self == known || for_older == ForOlder::Reduced {
            serde_json::to_string(self)
        } else {
            serde_json::to_string(&[self])
        };
        text.map(Some)
    }

    /// Read a text that [`to_stored`](Self::to_stored) made.
    ///
    /// # Errors
    /// When this binary cannot read the text.
    pub fn from_stored(text: &str) -> Result<Self, serde_json::Error> {
        if text.starts_with('[') {
            let [options] = serde_json::from_str::<[Self; 1]>(text)?;
            return Ok(options);
        }
        serde_json::from_str(text)
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Payloads must not appear in logs.
        f.debug_struct("Template").field("kind", &self.kind).field("queue", &self.queue).finish_non_exhaustive()
    }
}

impl Schedule {
    /// Return this schedule as it is when it is declared at `now`. An interval without an anchor begins then, and its
    /// first tick comes one interval later.
    #[must_use]
    pub fn declared_at(mut self, now: Timestamp) -> Self {
        if let Cadence::Every { anchor, .. } = &mut self.cadence
            && self.unanchored
        {
            *anchor = floor_ms(now);
        }
        self
    }

    /// Return true if this schedule equals the existing one. Their payloads may be spelt differently.
    #[must_use]
    pub fn is_equivalent_to(&self, other: &Self) -> bool {
        let (mine, theirs) = (&self.template, &other.template);
        self.ticks_the_same(other)
            && (self.zone, self.misfire, self.grace, self.overlap)
                == (other.zone, other.misfire, other.grace, other.overlap)
            && is_equal_json(&mine.payload, &theirs.payload)
            && (&mine.kind, &mine.queue, mine.priority, mine.max_attempts)
                == (&theirs.kind, &theirs.queue, theirs.priority, theirs.max_attempts)
            && mine.options() == theirs.options()
    }

    /// Return true if this schedule has the same ticks as the existing one. An interval without an anchor keeps the
    /// existing one.
    #[must_use]
    pub fn ticks_the_same(&self, other: &Self) -> bool {
        match (&self.cadence, &other.cadence) {
            (Cadence::Every { every: mine, .. }, Cadence::Every { every: theirs, .. }) if self.unanchored => {
                mine == theirs
            }
            (mine, theirs) => mine == theirs,
        }
    }
}

/// Policy for missed ticks, whose time passed while no runner could fire them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Misfire {
    /// Fire none of them.
    Skip,
    /// Fire the latest of them, late.
    #[default]
    One,
    /// Fire each of them, late. If there are very many, fire the latest thousand.
    All,
}
words!(Misfire { Skip => "skip", One => "one", All => "all" });

/// Policy for a tick when the schedule's previous job has not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// Fire.
    #[default]
    Allow,
    /// Do not fire.
    Skip,
    /// Fire. The previous job is cancelled if it waits, and asked to stop if it executes.
    Replace,
}
words!(Overlap { Allow => "allow", Skip => "skip", Replace => "replace" });

words!(Dst { Once => "once", Skip => "skip", Both => "both" });

/// The schedule that created a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduledBy {
    /// Name of the schedule.
    pub name: Name,
    /// Due time of the tick, or time of the trigger.
    pub tick_at: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OnFailure;

    /// The options as binaries from before order keys of schedules know them.
    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct OlderOptions {
        timeout_ms: Option<u64>,
        retry: Option<RetryRequest>,
    }

    #[test]
    fn options_are_read_back_and_an_older_binary_reads_only_those_that_it_may() {
        let known = TemplateOptions { timeout_ms: Some(5), ..TemplateOptions::default() };
        let order = Order { key: "customer:42".to_owned(), on_failure: OnFailure::Skip };
        let newer = TemplateOptions {
            order: Some(order),
            limit_key: Some("tenant:7".to_owned()),
            expires_in_ms: Some(60_000),
            tags: vec!["nightly".parse().unwrap()],
            ..known.clone()
        };
        for for_older in [ForOlder::Unreadable, ForOlder::Reduced] {
            assert_eq!(TemplateOptions::default().to_stored(for_older).unwrap(), None);
            for options in [&known, &newer] {
                let text = options.to_stored(for_older).unwrap().unwrap();
                assert_eq!(TemplateOptions::from_stored(&text).unwrap(), *options, "{text}");
                let older = serde_json::from_str::<OlderOptions>(&text).ok();
                let readable = *options == known || for_older == ForOlder::Reduced;
                assert_eq!(older, readable.then_some(OlderOptions { timeout_ms: Some(5), retry: None }), "{text}");
            }
        }
        for each in [
            TemplateOptions { order: newer.order.clone(), ..TemplateOptions::default() },
            TemplateOptions { limit_key: newer.limit_key.clone(), ..TemplateOptions::default() },
            TemplateOptions { expires_in_ms: newer.expires_in_ms, ..TemplateOptions::default() },
            TemplateOptions { tags: newer.tags.clone(), ..TemplateOptions::default() },
        ] {
            let text = each.to_stored(ForOlder::Unreadable).unwrap().unwrap();
            assert!(serde_json::from_str::<OlderOptions>(&text).is_err(), "{text}");
        }
    }
}
