//! Observability: logs, metrics, traces, and recent figures.
//!
//! - `attempt_log`: the newest lines of an attempt, which are stored with it
//! - `metric_table`: the table of metrics
//! - `logs`: log lines and their fields
//! - `meters`: rates and lateness of the last minute
//! - `otlp`: the wire format of spans
//! - `pace`: which lines about a condition that lasts are written
//! - `prometheus`: the metrics page
//! - `slot`: the open slot of the history behind the charts
//! - `traces`: spans, and their export to a collector

mod attempt_log;
mod logs;
mod meters;
mod metric_table;
mod otlp;
mod pace;
mod prometheus;
mod slot;
mod traces;

pub use attempt_log::{AttemptLog, attempt_log_layer, keep_attempt_logs};
pub use logs::{
    LOG_FIELDS, LogScope, change_log_filter, in_log_scope, init_logs, log_as, log_fields_table, without_panic_messages,
};
pub use meters::{MeterReadings, Meters};
pub use metric_table::{Form, METRICS, Metric, Of, metrics_table};
pub use pace::LinePace;
pub use prometheus::{count_samples, metrics_page};
pub use slot::Slot;
pub use traces::{Exporter, RequestSpan, Role, Span, TickSpan, Tracer, TracerError, TracerSettings, Value};
