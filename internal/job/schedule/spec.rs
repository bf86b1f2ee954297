//! What a schedule asks for.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{Cadence, Dst, Zone};
use crate::job::{Name, Priority, RetryPolicy, Timestamp};

/// A schedule as it is asked for: complete and checked.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// When it ticks.
    pub cadence: Cadence,
    /// The anchor of the interval is the moment of asking, because nobody named one.
    pub unanchored: bool,
    /// Whose clock people read its times by. A cron expression's own zone.
    pub zone: Zone,
    /// What becomes of ticks that nobody was there for.
    pub misfire: Misfire,
    /// How late a tick may be without counting as missed.
    pub grace: Duration,
    /// What happens when the job of the tick before has not ended.
    pub overlap: Overlap,
    /// The jobs it makes.
    pub template: Template,
}

/// The jobs that a schedule makes. What is left open is the kind's own when the tick fires.
#[derive(Clone)]
pub struct Template {
    /// Picks the handler.
    pub kind: Name,
    /// The handler's input, JSON text.
    pub payload: Box<RawValue>,
    /// The line they wait in.
    pub queue: Name,
    /// Urgency within the queue.
    pub priority: Priority,
    /// Attempts before a job fails.
    pub max_attempts: Option<u32>,
    /// Time limit of one attempt.
    pub timeout_ms: Option<u64>,
    /// Backoff.
    pub retry: Option<RetryPolicy>,
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The payload is nobody's business but the handler's.
        f.debug_struct("Template").field("kind", &self.kind).field("queue", &self.queue).finish_non_exhaustive()
    }
}

impl Schedule {
    /// Does this ask for what is there already?
    #[must_use]
    pub fn says_the_same(&self, other: &Self) -> bool {
        let (mine, theirs) = (&self.template, &other.template);
        self.ticks_the_same(other)
            && (self.zone, self.misfire, self.grace, self.overlap)
                == (other.zone, other.misfire, other.grace, other.overlap)
            && mine.payload.get() == theirs.payload.get()
            && (&mine.kind, &mine.queue, mine.priority, mine.max_attempts, mine.timeout_ms, mine.retry)
                == (&theirs.kind, &theirs.queue, theirs.priority, theirs.max_attempts, theirs.timeout_ms, theirs.retry)
    }

    /// Does this ask for the times that are there already? An interval that does not say where it begins goes on as it is.
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

/// Words for columns and the API, one for each variant.
macro_rules! words {
    ($type:ident { $($variant:ident => $word:literal),+ }) => {
        impl $type {
            /// Every one.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Its word.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }

            /// The one with this word.
            #[must_use]
            pub fn from_word(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.as_str() == word)
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}
pub(super) use words;

/// What becomes of ticks whose time passed while nobody was there to fire them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Misfire {
    /// Nothing.
    Skip,
    /// The latest of them fires, late.
    #[default]
    One,
    /// Each of them fires, late; of very many, the latest thousand.
    All,
}
words!(Misfire { Skip => "skip", One => "one", All => "all" });

/// What happens to a tick when the schedule's previous job has not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// It fires.
    #[default]
    Allow,
    /// It does not fire.
    Skip,
    /// It fires; the previous job is cancelled if it waits, and asked to stop if it executes.
    Replace,
}
words!(Overlap { Allow => "allow", Skip => "skip", Replace => "replace" });

words!(Dst { Once => "once", Skip => "skip", Both => "both" });

/// The schedule that a job comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduledBy {
    /// The schedule.
    pub name: Name,
    /// The tick: when it was due, or when somebody pulled the trigger.
    pub tick_at: Timestamp,
}
