//! The older version of a program. Its parcels have a field and a delivery way that the newer version does not know.

mod runner;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tickr::handlers::Kind;

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Parcel {
    to: String,
    #[serde(default)]
    ms: u64,
    #[serde(default)]
    explodes: bool,
    #[serde(default)]
    way: Way,
    #[serde(default)]
    fax: Option<String>,
}

#[derive(Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Way {
    #[default]
    Road,
    Rail,
}

impl Kind for Parcel {
    const NAME: &'static str = "parcel";
}

impl runner::Parcel for Parcel {
    fn ms(&self) -> u64 {
        self.ms
    }

    fn explodes(&self) -> bool {
        self.explodes
    }
}

fn main() -> std::process::ExitCode {
    runner::run::<Parcel>("old")
}
