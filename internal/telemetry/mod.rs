//! What tickr tells about itself: logs, metrics, and the figures of the last minutes.

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
