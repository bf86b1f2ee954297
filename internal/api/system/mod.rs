//! The state of tickr itself: health, figures, the index, checks and the reference.
//!
//! - `docs.rs`: the HTML reference (`/docs`)
//! - `forecast.rs`: the jobs and ticks of the next 24 hours (`/v1/forecast`)
//! - `health.rs`: `/livez` and `/readyz`
//! - `history.rs`: counts and durations of the last minutes to the last day, for charts (`/v1/history`)
//! - `marks.rs`: events that charts mark (`/v1/history/marks`)
//! - `metrics.rs`: the Prometheus page (`/metrics`)
//! - `readiness.rs`: the probe of MySQL that all calls of `/readyz` share
//! - `redis_index.rs`: the state of Redis compared with MySQL, and its rebuild (`/v1/index`)
//! - `stats.rs`: counts by state and queue, lateness, rates (`/v1/stats`)
//! - `tick_strips.rs`: the ticks of schedules in the last day (`/v1/history/ticks`)
//! - `verify.rs`: the checks of `tickr verify`, run in the background (`/v1/verify`)

pub(super) mod docs;
pub(super) mod forecast;
pub(super) mod health;
pub(super) mod history;
pub(super) mod marks;
pub(super) mod metrics;
pub(super) mod readiness;
pub(super) mod redis_index;
pub(super) mod stats;
pub(super) mod tick_strips;
pub(super) mod verify;
