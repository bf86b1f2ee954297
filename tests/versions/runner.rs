//! The common part of the older and the newer version of the program: a whole tickr with the kind `parcel`. Each
//! version has its own payload type. The kind `measure` is for a test that looks at the memory of a process.

use std::process::ExitCode;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tickr::handlers::{Context, Kind, Output, Registry};

/// The properties that the payload types of both versions share.
pub(crate) trait Parcel: Kind {
    /// Duration of the delivery, in milliseconds.
    fn ms(&self) -> u64;

    /// Whether the delivery aborts the process.
    fn explodes(&self) -> bool;
}

/// Records this many samples of a histogram.
#[derive(Serialize, Deserialize, JsonSchema)]
struct Measure {
    samples: u32,
}

impl Kind for Measure {
    const NAME: &'static str = "measure";
}

/// Run until a signal stops it. The result of each parcel names the version that delivered it.
pub(crate) fn run<P: Parcel>(version: &'static str) -> ExitCode {
    let mut kinds = Registry::new();
    kinds.register(move |parcel: P, _: Context| async move {
        tokio::time::sleep(Duration::from_millis(parcel.ms())).await;
        if parcel.explodes() {
            std::process::abort();
        }
        Output::json(&json!({"by": version}))
    });
    kinds.register(|measure: Measure, _: Context| async move {
        tokio::task::spawn_blocking(move || {
            for _ in 0..measure.samples {
                metrics::histogram!("tickr_claim_seconds").record(0.1);
            }
        })
        .await?;
        Ok(Output::default())
    });
    tickr::run(kinds)
}
