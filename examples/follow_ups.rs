//! Jobs in steps: each handler returns the next job, which is committed together with its success. So a step is never
//! lost and never enqueued twice.
//!
//!     export TICKR_MYSQL_URL=mysql://… TICKR_REDIS_URL=redis://…
//!     cargo run --example follow_ups
//!     curl localhost:7070/v1/jobs -H 'content-type: application/json' \
//!       -d '{"kind": "order", "payload": {"number": 7, "articles": ["cup", "lamp"]}}'

use tickr::prelude::*;

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Order {
    number: u64,
    articles: Vec<String>,
}

impl Kind for Order {
    const NAME: &'static str = "order";
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Parcel {
    order: u64,
    article: String,
}

impl Kind for Parcel {
    const NAME: &'static str = "parcel";
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Notice {
    text: String,
}

impl Kind for Notice {
    const NAME: &'static str = "notice";
}

/// One parcel for each article. All of them are enqueued, or none.
async fn order(order: Order, _ctx: Context) -> Outcome {
    let mut done = Output::json(&json!({"parcels": order.articles.len()}))?;
    for article in order.articles {
        done = done.then(&Parcel { order: order.number, article })?;
    }
    Ok(done)
}

async fn parcel(parcel: Parcel, ctx: Context) -> Outcome {
    // The real work would go here. If it fails, no notice is enqueued.
    let text = format!("order {}: the {} is on its way", parcel.order, parcel.article);
    Output::json(&json!({"attempt": ctx.attempt()}))?.then(&Notice { text })
}

async fn notice(notice: Notice, _ctx: Context) -> Outcome {
    Output::json(&notice.text)
}

fn main() -> std::process::ExitCode {
    let mut kinds = Registry::new();
    kinds.register(order).register(parcel).register(notice);
    tickr::run(kinds)
}
