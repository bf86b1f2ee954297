//! What tickr tells about itself: logs, metrics, and the figures of the last minutes.

mod catalogue;
mod logs;
mod meters;
mod prometheus;

pub use catalogue::{Form, METRICS, Metric, Of, metrics_table};
pub use logs::init_logs;
pub use meters::{Figures, Meters};
pub use prometheus::metrics_page;
