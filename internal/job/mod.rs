//! The domain, pure: no I/O, no clocks of its own, no SQL.
//!
//! - [`JobId`], [`AttemptToken`], [`RunnerId`]: who is meant
//! - [`Actor`], [`Scope`]: who asked, and what they may ask
//! - [`Producer`]: who asks for jobs, and which jobs are its own
//! - [`Name`]: what a queue or a kind may be called
//! - [`State`] and [`next`]: the life of a job; one function knows the legal moves
//! - [`Verdict`]: what one attempt came to, which is not the same thing as the state of its job
//! - [`RetryPolicy`]: when a failed job runs again
//! - [`Edition`]: which version of a payload type a binary has
//! - [`Schedule`], [`plan`]: jobs that come by the clock
//! - [`TraceContext`]: the trace that a job continues
//! - [`NewJob`], [`Job`], [`Attempt`]: what was asked, what it became, what was done
//! - [`DeadLetter`] and [`Fingerprint`]: jobs that failed for good, and which failures are the same
//! - [`Operation`]: what is done to many jobs at once
//! - [`Filter`] and [`query`]: which jobs are meant, and how people write that
//! - [`ReportRecord`]: what is known of a finished report
//! - [`Tally`], [`Step`], [`Span`]: what happened in slots of time, for charts

mod actor;
mod alert;
mod edition;
mod exchange;
mod filter;
mod fingerprint;
mod histogram;
mod history;
mod hours;
mod id;
mod letter;
mod name;
pub mod operation;
mod producer;
pub mod query;
mod record;
mod report;
mod retry;
mod schedule;
mod scope;
mod spec;
mod state;
pub(crate) mod suggest;
mod tag;
mod time;
mod trace;
mod verdict;

pub use actor::{Actor, steers};
pub use alert::{AlertRule, Measured, Told};
pub use edition::{Edition, Editions, InvalidEdition};
pub use exchange::{Exchange, ExchangeResponse};
pub use filter::{Filter, InvalidPath, PayloadPath, Wanted};
pub use fingerprint::{Fingerprint, InvalidFingerprint, normalise};
pub use histogram::{Histogram, InvalidHistogram};
pub use history::{Point, Series, Span, Step, Tally, Window};
pub use hours::Hours;
pub use id::{AttemptToken, JobId, RunnerId, first_id_of};
pub use letter::{DeadLetter, Standing};
pub use name::{InvalidName, Name};
pub use operation::{Action, Among, NewOperation, Operation, OperationParams, OperationState};
pub use producer::Producer;
pub use record::{Attempt, Job, Progress};
pub use report::ReportRecord;
pub use retry::RetryPolicy;
pub use schedule::{
    Cadence, CronExpression, Dst, Fate, Misfire, Overlap, Plan, Planned, Schedule, ScheduleDraft, ScheduledBy,
    Situation, SkipCause, Template, UnknownZone, WrongField, Zone, plan,
};
pub use scope::Scope;
pub use spec::{BatchPlace, Due, JobOptions, NewJob, OnConflict, Priority, limits};
pub use state::{Event, Refused, State, next};
pub use tag::{InvalidTag, Tag};
pub use time::{Timestamp, ceil_ms, floor_ms};
pub use trace::{Place, SpanId, TraceContext};
pub use verdict::Verdict;
