//! A complete tickr with your own kind: the built-in kinds, the API, the command line of `tickr serve`, and the kind
//! `thumbnail`.
//!
//!     export TICKR_MYSQL_URL=mysql://… TICKR_REDIS_URL=redis://…
//!     cargo run --example own_kind
//!     curl localhost:7070/v1/jobs -H 'content-type: application/json' \
//!       -d '{"kind": "thumbnail", "payload": {"image": "cat.png", "width": 320}}'

use tickr::prelude::*;

/// Payload of a `thumbnail` job. Its JSON Schema is published at `/v1/kinds` and enforced at enqueue.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Thumbnail {
    image: String,
    #[schemars(range(min = 1, max = 4_096))]
    width: u32,
}

impl Kind for Thumbnail {
    const NAME: &'static str = "thumbnail";
}

async fn thumbnail(job: Thumbnail, ctx: Context) -> Outcome {
    if !job.image.ends_with(".png") {
        return Err(Failure::reject(format!("{} is not a PNG", job.image)));
    }
    ctx.progress(50.0, "scaling");
    // The real work would go here. An error returned with `?` means that the attempt is retried.
    let file = format!("{}-{}px.png", job.image.trim_end_matches(".png"), job.width);
    Output::json(&json!({"file": file, "attempt": ctx.attempt()}))
}

fn main() -> std::process::ExitCode {
    let mut kinds = Registry::new();
    kinds.register(thumbnail);
    tickr::run(kinds)
}
