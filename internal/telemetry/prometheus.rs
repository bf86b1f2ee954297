//! The metrics page.

use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

use super::metric_table::{Form, METRICS};

/// One recorder per process, also if it has several runners.
static RECORDER: OnceLock<Option<PrometheusHandle>> = OnceLock::new();

/// Return the metrics of this process in Prometheus's text format. The first call starts the recording.
pub fn metrics_page() -> String {
    let handle = RECORDER.get_or_init(|| {
        let installed = install();
        installed.inspect_err(|error| tracing::warn!(%error, "metrics are not recorded")).ok()
    });
    let Some(handle) = handle else { return String::new() };
    handle.run_upkeep();
    handle.render()
}

fn install() -> Result<PrometheusHandle, BuildError> {
    let mut builder = PrometheusBuilder::new();
    for metric in METRICS {
        if let Form::Histogram(bounds) = metric.form {
            builder = builder.set_buckets_for_metric(Matcher::Full(metric.name.to_owned()), bounds)?;
        }
    }
    let handle = builder.install_recorder()?;
    for metric in METRICS {
        metric.announce();
    }
    metrics::gauge!("tickr_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    metrics::gauge!("tickr_start_time_seconds").set(started.as_secs_f64());
    Ok(handle)
}
