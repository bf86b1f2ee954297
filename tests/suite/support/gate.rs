//! Jobs of the kind `gate`, which run until the test lets them end, and of the kind `broken`, which fail until then.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tickr::handlers::{Context, Failure, Kind, Output, Registry};
use tokio_util::sync::CancellationToken;

#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
struct Gate {}

impl Kind for Gate {
    const NAME: &'static str = "gate";
}

/// Return handlers that run until `open` is cancelled.
pub(crate) fn gated(open: &CancellationToken) -> Registry {
    let mut own = Registry::new();
    let open = open.clone();
    own.register(move |_: Gate, _: Context| {
        let open = open.clone();
        async move {
            open.cancelled().await;
            Ok(Output::default())
        }
    });
    own
}

/// The kind `broken`, which fails until `mended` is cancelled.
#[derive(Serialize, Deserialize, JsonSchema)]
pub(crate) struct Broken {}

impl Kind for Broken {
    const NAME: &'static str = "broken";
}

/// Return a registry with the kind `broken`.
pub(crate) fn broken(mended: &CancellationToken) -> Registry {
    let mended = mended.clone();
    let mut registry = Registry::new();
    registry.register(move |_: Broken, _: Context| {
        let mended = mended.is_cancelled();
        async move { if mended { Ok(().into()) } else { Err(Failure::retry("broken until it is mended")) } }
    });
    registry
}
