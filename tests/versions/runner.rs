//! The common part of the older and the newer version of the program: a whole tickr with the kind `parcel`. Each
//! version has its own payload type.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use tickr::handlers::{Context, Kind, Output, Registry};

/// The properties that the payload types of both versions share.
pub(crate) trait Parcel: Kind {
    /// Duration of the delivery, in milliseconds.
    fn ms(&self) -> u64;

    /// Whether the delivery aborts the process.
    fn explodes(&self) -> bool;
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
    tickr::run(kinds)
}
