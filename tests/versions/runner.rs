//! What the older and the newer version of the program have in common: a whole tickr with the kind `parcel`. Its payload
//! type is another one in each of them.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use tickr::handlers::{Context, Kind, Output, Registry};

/// What both versions of the type say.
pub(crate) trait Parcel: Kind {
    /// How long its delivery takes.
    fn ms(&self) -> u64;

    /// Does it take its runner along?
    fn explodes(&self) -> bool;
}

/// Run until told to stop. The result of each parcel says which version delivered it.
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
