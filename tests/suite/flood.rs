//! More requests than the store can take: the queue of waiting requests is bounded, and clients beyond the bound are
//! told to retry later.

use std::sync::Arc;

use serde_json::json;
use sqlx::Executor as _;
use tickr::broker::Enqueued;
use tickr::store::StoreError;
use tokio::task::JoinSet;

use crate::support::{TestApp, connect, draft};

/// Number of requests at once: half as many again as may wait.
const CALLERS: usize = 30_000;
/// So far ahead that the jobs wait during the whole test.
const LATER_MS: u64 = 3_600_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_enqueues_is_bounded_and_told_to_come_back() {
    let app = TestApp::start().await;
    let mut other = connect(app.config.mysql_url().unwrap().expose()).await;
    // A commit takes long, as on a disk that is too slow, so no enqueue is accepted meanwhile.
    other.execute("LOCK TABLES jobs WRITE").await.unwrap();
    let broker = app.app.broker().clone();
    let wanted = Arc::new(json!({"kind": "noop", "payload": {"from": "a flood"}, "delay_ms": LATER_MS}));
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let (broker, wanted) = (broker.clone(), Arc::clone(&wanted));
        callers.spawn(async move {
            let job = broker.prepare(draft(&wanted)).unwrap();
            broker.enqueue(job).await
        });
    }
    // Requests beyond the limit are answered at once, over HTTP as well, while the others wait.
    let first = callers.join_next().await.unwrap().unwrap();
    assert!(matches!(first, Err(StoreError::Overloaded { .. })), "{first:?}");
    let full = app.post("/v1/jobs", json!({"kind": "noop", "delay_ms": LATER_MS})).await;
    assert_eq!((full.status, &full.body["code"]), (429, &json!("overloaded")));
    assert_eq!(full.headers["retry-after"], "1");
    other.execute("UNLOCK TABLES").await.unwrap();

    let (mut accepted, mut refused) = (0_i64, 1);
    while let Some(answer) = callers.join_next().await {
        match answer.unwrap() {
            Ok(Enqueued::Accepted(_)) => accepted += 1,
            Err(StoreError::Overloaded { .. }) => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(accepted >= 20_000, "{accepted} accepted, {refused} refused");
    let sql = "SELECT COUNT(*) FROM jobs WHERE payload LIKE '%flood%'";
    let written: i64 = sqlx::query_scalar(sql).fetch_one(&mut other).await.unwrap();
    assert_eq!(written, accepted, "a refused request has written nothing");
    app.stop().await;
}
