//! Schedules: jobs that are created by a cron expression or an interval.
//!
//! - `cadence`: [`Cadence`], the times of the ticks, and the policy for clock changes
//! - `count`: the number of ticks between two moments
//! - `draft`: [`ScheduleDraft`], a requested schedule before it is checked
//! - `plan`: [`plan`], the decision about due ticks, including missed ones
//! - `spec`: [`Schedule`], a checked schedule with its policies and the jobs it creates
//! - `zone`: [`Zone`], a time zone and its clock changes

mod cadence;
mod count;
mod draft;
mod plan;
mod spec;
mod zone;

pub use cadence::{Cadence, CronExpression, Dst};
pub use draft::{ScheduleDraft, WrongField};
pub use plan::{Plan, Planned, Situation, SkipCause, TickDecision, plan};
pub use spec::{ForOlder, Misfire, Overlap, Schedule, ScheduledBy, Template, TemplateOptions};
pub use zone::{UnknownZone, Zone};
