//! Observability: logs, metrics, traces, and recent figures.
//!
//! - `catalogue`: the table of metrics
//! - `logs`: log lines and their fields
//! - `meters`: rates and lateness of the last minute
//! - `otlp`: the wire format of spans
//! - `prometheus`: the metrics page
//! - `slot`: the open slot of the history behind the charts
//! - `traces`: spans, and their export to a collector

mod catalogue;
mod logs;
mod meters;
mod otlp;
mod prometheus;
mod slot;
mod traces;

pub use catalogue::{Form, METRICS, Metric, Of, metrics_table};
pub use logs::{LOG_FIELDS, LogScope, in_log_scope, init_logs, log_as, log_fields_table};
pub use meters::{Figures, Meters};
pub use prometheus::metrics_page;
pub use slot::Slot;
pub use traces::{Exporter, RequestSpan, Role, Span, TickSpan, Tracer, TracerError, TracerSettings, Value};
