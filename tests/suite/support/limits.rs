//! Limits by key, set through the API of a test.

use chrono::{DateTime, Utc};
use reqwest::Method;
use serde_json::Value;
use sqlx::AssertSqlSafe;

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
    until_counted(tickr, name).await;
}

/// Wait until every runner follows this limit.
pub(crate) async fn until_counted(tickr: &TestApp, name: &str) {
    eventually("the limit holds", || async {
        (tickr.get(&format!("/v1/limits/{name}")).await.body["counted"] == true).then_some(())
    })
    .await;
}

/// Return the most attempts of these jobs, `which` of the table `jobs j`, that started within a period of this length,
/// and the time from the first start to the last, in milliseconds, by the ledger.
pub(crate) async fn starts_within(tickr: &TestApp, which: &str, period_ms: i64) -> (usize, i64) {
    let sql = format!(
        "SELECT a.started_at FROM attempts a JOIN jobs j ON j.id = a.job_id WHERE {which} ORDER BY a.started_at"
    );
    let starts: Vec<DateTime<Utc>> =
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(&mut tickr.mysql().await).await.unwrap();
    let within = |from: usize| {
        starts[from..].iter().take_while(|at| (**at - starts[from]).num_milliseconds() < period_ms).count()
    };
    let most = (0..starts.len()).map(within).max().unwrap_or(0);
    (most, (starts[starts.len() - 1] - starts[0]).num_milliseconds())
}

/// Counts the most attempts of one limit key that ever ran at the same time, by the ledger, apart from those that were
/// lost: nothing says when these stopped. All attempts have ended.
pub(crate) const MOST_AT_ONCE: &str = "SELECT CAST(COALESCE(MAX(n), 0) AS SIGNED) FROM (SELECT (SELECT COUNT(*) \
     FROM attempts b JOIN job_limit_keys k ON k.job_id = b.job_id WHERE k.limit_key = l.limit_key \
     AND b.verdict <> 'lost' AND b.started_at <= a.started_at AND b.finished_at > a.started_at) n \
     FROM attempts a JOIN job_limit_keys l ON l.job_id = a.job_id WHERE a.verdict <> 'lost') x";
