//! Limits by key, set through the API of a test.

use reqwest::Method;
use serde_json::Value;

use super::{Answer, TestApp, call, eventually};

/// Counts the slots that are taken and the jobs that are parked.
pub(crate) const NO_ROWS_LEFT: &str = "SELECT (SELECT COUNT(*) FROM limit_slots) + (SELECT COUNT(*) FROM limit_waits)";

/// Set a limit.
pub(crate) async fn set(tickr: &TestApp, name: &str, limit: Value) -> Answer {
    let path = format!("/v1/limits/{name}");
    let answer = call(&tickr.url(""), Method::PUT, &path, "", Some(limit)).await;
    assert!(matches!(answer.status, 200 | 201), "{:#}", answer.body);
    answer
}

/// Set a limit, and wait until every runner follows it.
pub(crate) async fn set_and_wait(tickr: &TestApp, name: &str, limit: Value) {
    set(tickr, name, limit).await;
    eventually("the limit holds", || async {
        (tickr.get(&format!("/v1/limits/{name}")).await.body["counted"] == true).then_some(())
    })
    .await;
}
