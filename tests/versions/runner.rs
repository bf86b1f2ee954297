//! The common part of the older and the newer version of the program: a whole tickr with the kind `parcel`. Each
//! version has its own payload type. Three more kinds are for tests that look at a whole process: at its memory, its
//! log and its threads.

use std::process::ExitCode;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tickr::handlers::{Context, Handler, Kind, Outcome, Output, Problem, Registry};

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

/// Blocks a thread of the runtime for this many milliseconds, as a badly written handler does. Unlike the test kind
/// `spin`, it takes no processor time.
#[derive(Serialize, Deserialize, JsonSchema)]
struct Block {
    ms: u64,
}

impl Kind for Block {
    const NAME: &'static str = "block";
}

/// A payload over which the check of its kind panics, with a message that quotes it.
#[derive(Serialize, Deserialize, JsonSchema)]
struct Fragile {
    text: String,
}

impl Kind for Fragile {
    const NAME: &'static str = "fragile";
}

struct Glass;

impl Handler for Glass {
    type Payload = Fragile;

    fn check(&self, payload: &Fragile) -> Vec<Problem> {
        panic!("cannot check {}", payload.text)
    }

    async fn run(&self, _: Fragile, _: Context) -> Outcome {
        Ok(Output::default())
    }
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
    kinds.register(|block: Block, _: Context| async move {
        std::thread::sleep(Duration::from_millis(block.ms));
        Ok(Output::default())
    });
    kinds.register_handler(Glass);
    tickr::run(kinds)
}
