//! The domain: pure types and functions without I/O, clocks or SQL.
//!
//! - `actor`: [`Actor`], the author of a request
//! - `alert`: [`AlertRule`], the thresholds for alerts about dead letters
//! - `canary`: [`Canary`], a release of dead letters in steps that goes on only while the released jobs pass
//! - `canonical_json`: [`write_canonical`], JSON texts that are equal
//! - `differences`: [`differences`], the traits that failed jobs have more often than jobs that passed
//! - `edition`: [`Edition`], the version of a payload type in a binary
//! - `exchange`: [`Exchange`], the HTTP request and response of an attempt
//! - `filter`: [`Filter`], the conditions that select jobs
//! - `fingerprint`: [`Fingerprint`], the group of dead letters with the same cause
//! - `histogram`: [`Histogram`], counts of durations
//! - `history`: [`Tally`], [`SlotWidth`] and [`Extent`], counts per time slot for charts
//! - `hours`: [`Hours`], a part of the day in UTC
//! - `id`: [`JobId`], [`BatchId`], [`AttemptToken`] and [`RunnerId`]
//! - `id_hashes`: [`IdHashes`], the hash of maps whose keys are ids
//! - `limit`: [`Limit`], the bounds of jobs with the same limit key
//! - `declared_kind`: [`DeclaredKind`], a kind that programs in other languages execute
//! - `dead_letter`: [`DeadLetter`], the data of a job that failed for good
//! - `mark`: [`Mark`], an event that charts mark
//! - `name`: [`Name`], the syntax of queue and kind names
//! - `operation`: [`Operation`], a bulk operation: one action on many jobs
//! - `producer`: [`Producer`], the client that enqueues, and the jobs that its unique keys may return or replace
//! - `push`: [`Push`], the receiver that tickr calls with the jobs of a declared kind
//! - `query`: the text form of a filter, as in a search field
//! - `record`: [`Job`], [`Attempt`] and [`Checkpoint`], as the store knows them
//! - `report`: [`ReportRecord`], the data of a finished report without its content
//! - `retry`: [`RetryPolicy`], the delay before a failed job runs again, and [`RetryRequest`], what a client says of it
//! - `schedule`: [`Schedule`] and [`plan`], jobs that are created by a cron expression or an interval
//! - `scope`: [`Scope`], the permissions of an API key
//! - `spec`: [`NewJob`], the job that a client requests, and its limits
//! - `state`: [`State`] and [`next`], the life of a job; one function knows the legal moves
//! - `suggest`: the nearest known name for a misspelt one
//! - `table_prefix`: [`TablePrefix`], the prefix of the tables of one tickr
//! - `tag`: [`Tag`], a search word of a job
//! - `time`: [`Timestamp`] and its rounding
//! - `timeline`: [`timeline`], the life of a job as segments of time with their causes
//! - `trace`: [`TraceContext`], the trace that a job continues
//! - `verdict`: [`Verdict`], the result of one attempt, which differs from the state of its job
//! - `words`: the macro `words`, which gives the variants of an enum their words

#[macro_use]
mod words;

mod actor;
mod alert;
mod canary;
mod canonical_json;
mod dead_letter;
mod declared_kind;
mod differences;
mod edition;
mod exchange;
mod filter;
mod fingerprint;
mod histogram;
mod history;
mod hours;
mod id;
mod id_hashes;
pub mod limit;
mod mark;
mod name;
pub mod operation;
mod producer;
mod push;
pub mod query;
mod record;
mod report;
mod retry;
mod schedule;
mod scope;
mod spec;
mod state;
pub mod suggest;
mod table_prefix;
mod tag;
mod time;
mod timeline;
mod trace;
mod verdict;

pub use actor::{Actor, is_terminal_control};
pub use alert::{AlertChange, AlertRule, LastAlert, Measured};
pub use canary::{Canary, CanaryDecision, CanaryOutcomes, CanaryState, CanaryStep};
pub use canonical_json::{is_equal_json, json_members, write_canonical};
pub use dead_letter::{DeadLetter, DeadLetterStatus};
pub use declared_kind::DeclaredKind;
pub use differences::{Attribute, Difference, Differences, JobTraits, TraitCounts, differences};
pub use edition::{Edition, Editions, InvalidEdition};
pub use exchange::{Exchange, ExchangeResponse};
pub use filter::{Choice, Filter, InvalidPath, PayloadPath, Wanted};
pub use fingerprint::{Fingerprint, InvalidFingerprint, normalise};
pub use histogram::{Histogram, InvalidHistogram};
pub use history::{Extent, Point, Series, SlotWidth, Span, Tally, Window};
pub use hours::Hours;
pub use id::{AttemptToken, BatchId, JobId, RunnerId, first_id_of, moment_of_id};
pub use id_hashes::{IdHasher, IdHashes};
pub use limit::{Bounds, Breaker, CallOutcome, CountedBy, Limit, Rate, SharedBy};
pub use mark::{IndexChange, Mark, MarkedEvent, RunnerStart, marks_of_index_changes, marks_of_losses, marks_of_starts};
pub use name::{InvalidName, Name};
pub use operation::{Action, Among, NewOperation, Operation, OperationParams, OperationState};
pub use producer::Producer;
pub use push::{Push, PushSecret};
pub use record::{Attempt, Checkpoint, Job, Progress, ProgressReport};
pub use report::ReportRecord;
pub use retry::{RetryPolicy, RetryRequest};
pub use schedule::{
    Cadence, CronExpression, Dst, ForOlder, Misfire, Overlap, Plan, Planned, Schedule, ScheduleDraft, ScheduledBy,
    Situation, SkipCause, Template, TemplateOptions, TickDecision, UnknownZone, WrongField, Zone, plan,
};
pub use scope::Scope;
pub use spec::{
    BatchPlace, Due, JobOptions, KindOptions, NewJob, OnConflict, OnFailure, OnParentFailure, Order, Priority,
    UniqueUntil, limits,
};
pub use state::{Refused, State, StateInput, next};
pub use table_prefix::{InvalidTablePrefix, TablePrefix};
pub use tag::{InvalidTag, Tag};
pub use time::{Timestamp, ceil_ms, floor_ms};
pub use timeline::{LimitHold, QueuePause, Segment, TimedAttempt, TimelineFacts, WaitCause, timeline};
pub use trace::{SpanContext, SpanId, TraceContext};
pub use verdict::Verdict;
