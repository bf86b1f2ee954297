//! Schedules: jobs that come by the clock.
//!
//! - [`Schedule`]: what is asked for; [`ScheduleDraft`]: as it is worded, before it is checked
//! - [`Cadence`]: when it ticks, and what happens to that when clocks are turned; [`Zone`]: whose clocks
//! - [`plan`]: what becomes of the ticks that are due, also of those that nobody was there for

mod cadence;
mod count;
mod draft;
mod plan;
mod spec;
mod zone;

pub use cadence::{Cadence, CronExpression, Dst};
pub use draft::{ScheduleDraft, WrongField};
pub use plan::{Fate, Plan, Planned, Situation, SkipCause, plan};
pub use spec::{Misfire, Overlap, Schedule, ScheduledBy, Template};
pub use zone::{UnknownZone, Zone};
