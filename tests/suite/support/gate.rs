//! Jobs of the kind `gate`, which run until the test lets them end.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tickr::handlers::{Context, Kind, Output, Registry};
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
