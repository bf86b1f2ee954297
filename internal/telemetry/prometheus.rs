//! The metrics page.

use std::sync::OnceLock;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

/// One recorder per process, however many runners it holds.
static RECORDER: OnceLock<Option<PrometheusHandle>> = OnceLock::new();

const SECONDS: [f64; 14] = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 300.0];
const ROWS: [f64; 9] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];

/// The metrics of this process in Prometheus's text format. The first call starts the recording.
pub fn metrics_page() -> String {
    let handle = RECORDER.get_or_init(|| {
        let built = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS)
            .and_then(|builder| builder.set_buckets_for_metric(Matcher::Suffix("_rows".into()), &ROWS))
            .and_then(metrics_exporter_prometheus::PrometheusBuilder::install_recorder);
        built.inspect_err(|error| tracing::warn!(%error, "metrics are not recorded")).ok()
    });
    let Some(handle) = handle else { return String::new() };
    handle.run_upkeep();
    handle.render()
}
