//! G1 as far as settings go: MySQL settings decide whether an acknowledged commit survives a power cut. `/readyz`
//! reports that, and with `strict_durability` a runner refuses to start otherwise.

use std::path::Path;

use serde_json::{Value, json};
use sqlx::Executor;
use tickr::app::{App, StartError};
use tickr::handlers::Registry;
use tickr::services::{Options, Services};

use crate::support::{TestApp, connect, eventually};

/// Apply these settings and wait until `/readyz` reports them. Concurrent probes share one result, so the first answer
/// may still be about the settings before.
async fn until_told(tickr: &TestApp, services: &Services, settings: &str, wanted: (Value, Vec<String>)) {
    let mut root = connect(&services.mysql_url("mysql")).await;
    root.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(settings.to_owned()))).await.unwrap();
    eventually(&format!("{settings}: {wanted:?}"), || async {
        let ready = tickr.get("/readyz").await;
        assert_eq!(ready.status, 200, "{:#}", ready.body);
        let weaknesses = ready.body["weaknesses"].as_array().into_iter().flatten();
        let weaknesses = weaknesses.map(|weakness| weakness.as_str().unwrap().to_owned()).collect();
        ((ready.body["durable"].clone(), weaknesses) == wanted).then_some(())
    })
    .await;
}

fn own(binlog: bool) -> Services {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let options = Options::ephemeral_under(root);
    let options = if binlog {
        options.mysql_flag("--log-bin=binlog").mysql_flag("--server-id=1").mysql_flag("--binlog-format=ROW")
    } else {
        options
    };
    Services::start(&options).unwrap()
}

const FLUSH_1: &str = "SET GLOBAL innodb_flush_log_at_trx_commit = 1";
const FLUSH_2: &str = "SET GLOBAL innodb_flush_log_at_trx_commit = 2";

#[tokio::test(flavor = "multi_thread")]
async fn readyz_says_whether_commits_are_durable_without_a_binary_log() {
    let tickr = TestApp::start_on_own(own(false), |_| {}).await;
    let services = tickr.services();
    let weak = vec!["innodb_flush_log_at_trx_commit is 2, not 1".to_owned()];
    until_told(&tickr, services, FLUSH_2, (json!(false), weak)).await;
    // A setting of a binary log that is off is no weakness.
    let off = format!("{FLUSH_1}; SET GLOBAL sync_binlog = 0");
    until_told(&tickr, services, &off, (json!(true), vec![])).await;
    let ready = tickr.get("/readyz").await.body;
    assert_eq!((&ready["topology"], &ready["topology_note"]), (&json!("single"), &Value::Null));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readyz_says_whether_commits_are_durable_with_a_binary_log_and_a_strict_runner_does_not_start_otherwise() {
    let tickr = TestApp::start_on_own(own(true), |_| {}).await;
    let services = tickr.services();
    let binlog = "log_bin is on and sync_binlog is 0, not 1".to_owned();
    let flush = "innodb_flush_log_at_trx_commit is 2, not 1".to_owned();
    let mut strict = tickr.config.clone();
    strict.strict_durability = true;
    for (settings, weaknesses) in [
        (format!("{FLUSH_2}; SET GLOBAL sync_binlog = 0"), vec![flush.clone(), binlog.clone()]),
        (format!("{FLUSH_2}; SET GLOBAL sync_binlog = 1"), vec![flush]),
        (format!("{FLUSH_1}; SET GLOBAL sync_binlog = 0"), vec![binlog]),
    ] {
        until_told(&tickr, services, &settings, (json!(false), weaknesses.clone())).await;
        let refused = App::start(&strict, Registry::new()).await.expect_err("a strict runner does not start");
        let StartError::NotDurable(told) = &refused else { panic!("{refused}") };
        assert_eq!(*told, weaknesses.join("; "));
        let text = refused.to_string();
        for part in ["strict_durability", "innodb_flush_log_at_trx_commit=1", "sync_binlog=1"] {
            assert!(text.contains(part), "{text}");
        }
    }
    let settings = format!("{FLUSH_1}; SET GLOBAL sync_binlog = 1");
    until_told(&tickr, services, &settings, (json!(true), vec![])).await;
    let strict = App::start(&strict, Registry::new()).await.unwrap();
    strict.stop(tokio_util::sync::CancellationToken::new()).await;
    tickr.stop().await;
}
