//! A checked schedule.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{Cadence, Dst, Zone};
use crate::{Name, Priority, RetryRequest, Timestamp};

/// A requested schedule: complete and checked.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// The times of its ticks.
    pub cadence: Cadence,
    /// True if the interval begins at the time of the request because the request has no anchor.
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
}

/// The less common options of a schedule's jobs, stored as one JSON object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TemplateOptions {
    /// Time limit of one attempt, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Backoff.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryRequest>,
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Payloads must not appear in logs.
        f.debug_struct("Template").field("kind", &self.kind).field("queue", &self.queue).finish_non_exhaustive()
    }
}

impl Schedule {
    /// Return true if this schedule equals the existing one.
    #[must_use]
    pub fn is_equivalent_to(&self, other: &Self) -> bool {
        let (mine, theirs) = (&self.template, &other.template);
        self.ticks_the_same(other)
            && (self.zone, self.misfire, self.grace, self.overlap)
                == (other.zone, other.misfire, other.grace, other.overlap)
            && mine.payload.get() == theirs.payload.get()
            && (&mine.kind, &mine.queue, mine.priority, mine.max_attempts, mine.timeout_ms, &mine.retry)
                == (&theirs.kind, &theirs.queue, theirs.priority, theirs.max_attempts, theirs.timeout_ms, &theirs.retry)
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
