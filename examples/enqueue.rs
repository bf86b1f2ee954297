//! Enqueue from a program that is no runner: a web service, a command, a script. It needs the MySQL and the Redis of the
//! runners, and ends when its jobs are durable.
//!
//!     export TICKR_MYSQL_URL=mysql://… TICKR_REDIS_URL=redis://…
//!     cargo run --example own_kind &    # a runner that has the kind
//!     cargo run --example enqueue

use std::time::Duration;

use tickr::prelude::*;

/// The payload type, usually in a crate that the runner and its clients share.
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

fn thumbnail(image: &str, width: u32) -> Thumbnail {
    Thumbnail { image: image.to_owned(), width }
}

#[tokio::main]
async fn main() -> Result<(), tickr::Error> {
    let client = Client::from_env().await?;

    let now = client.enqueue(&thumbnail("cat.png", 320)).tag("tenant:42").await?;
    println!("now: {}", now.id);

    // While this job is unfinished, a second one with its unique key is not written.
    let upload = thumbnail("dog.png", 320);
    let first = client.enqueue(&upload).unique_key("dog.png").delay(Duration::from_millis(500)).await?;
    let second = client.enqueue(&upload).unique_key("dog.png").await?;
    println!("later: {}, the same job again: {}", first.id, second.existing && second.id == first.id);

    // All of a batch or none of it. Repeated with the same key, it is not carried out again.
    let widths = [64, 128, 256].map(|width| thumbnail("fox.png", width));
    let batch = client.enqueue_many(&widths).priority(7).idempotency_key(format!("fox-{}", now.id)).await?;
    println!("batch: {}", batch.iter().map(|job| job.id.to_string()).collect::<Vec<_>>().join(" "));

    // What does not fit the kind is refused before anything is written.
    match client.enqueue(&thumbnail("huge.png", 1_000_000)).await {
        Err(tickr::Error::Refused { problems, .. }) => println!("refused: {}", problems[0].pointer),
        other => println!("not refused: {other:?}"),
    }
    client.close().await;
    Ok(())
}
