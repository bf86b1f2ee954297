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

/// Count the samples of histograms that were recorded since the last call, and free their memory. The exporter keeps
/// each sample until this or the page counts it, so a runner whose page is not read would use up its memory.
pub fn count_samples() {
    if let Some(Some(handle)) = RECORDER.get() {
        handle.run_upkeep();
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Return the memory of this process in KiB.
    fn memory_kib() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }

    #[test]
    fn samples_are_counted_and_freed_without_a_reader_of_the_page() {
        const ROUNDS: usize = 20;
        const SAMPLES: usize = 100_000;
        metrics_page();
        let mut half = 0;
        for round in 0..ROUNDS {
            // Other tests of this process are over by then.
            if round == ROUNDS / 2 {
                half = memory_kib();
            }
            for _ in 0..SAMPLES {
                metrics::histogram!("tickr_claim_seconds").record(0.1);
            }
            count_samples();
        }
        // The samples of the second half are 16 MB.
        let grown = memory_kib().saturating_sub(half);
        assert!(grown < 6_000, "{grown} KiB");
        let page = metrics_page();
        let line = page.lines().find(|line| line.starts_with("tickr_claim_seconds_count")).unwrap();
        assert!(line.ends_with(&format!(" {}", ROUNDS * SAMPLES)), "{line}");
    }
}
