//! The OpenAPI document as a contract. schemathesis reads it, makes requests that fit it and requests that do not,
//! follows the links in answers, and checks every answer against it. The version, the seed and the number of examples
//! are fixed. Streams and imports have tests of their own, because streams do not end and imports are not JSON.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tickr::config::Config;
use tickr::handlers::{self, Context, Kind, Registry};

use crate::support::{TestApp, draft};

/// Longest run. An idle machine takes two to three minutes, one with five other busy tests eight.
const PATIENCE: Duration = Duration::from_secs(1_200);

/// The only queue that the runner of this test serves.
const OWN: &str = "jobs-of-this-test";

/// A kind that takes any payload. The kinds for tests include one that aborts its process, and schemathesis would find
/// it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Anything {
    #[serde(default)]
    note: Option<String>,
}

impl Kind for Anything {
    const NAME: &'static str = "anything";
}

/// Return the path of schemathesis, which is fetched once; `None` if this machine is declared offline.
fn program() -> Option<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("internal/services/install.sh");
    let Output { status, stdout, stderr } =
        Command::new("sh").arg(script).arg("--schemathesis").output().expect("there is a shell");
    if status.success() {
        return Some(String::from_utf8(stdout).unwrap().trim().to_owned());
    }
    let tried = String::from_utf8_lossy(&stderr).into_owned();
    assert!(
        std::env::var_os("TICKR_OFFLINE").is_some_and(|value| !value.is_empty()),
        "schemathesis could not be fetched; without network set TICKR_OFFLINE=1\n{tried}"
    );
    None
}

#[tokio::test(flavor = "multi_thread")]
async fn schemathesis_finds_no_answer_that_the_document_does_not_allow() {
    holds_for(2).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a machine for minutes"]
async fn schemathesis_finds_no_answer_that_the_document_does_not_allow_with_many_examples() {
    holds_for(10).await;
}

/// Let schemathesis make requests, with this number of made-up ones for each operation.
async fn holds_for(examples: u32) {
    let Some(program) = tokio::task::spawn_blocking(program).await.unwrap() else {
        println!("skipped: TICKR_OFFLINE is set and schemathesis is not in the cache");
        return;
    };
    let mut own = Registry::new();
    own.register(|_: Anything, _: Context| async { Ok(handlers::Output::default()) });
    let closed = |config: &mut Config| {
        // The runner executes none of the jobs that schemathesis makes up: their URLs are hosts of others.
        config.queues = vec![OWN.into()];
        config.api_tokens = vec!["contract".into()];
        config.test_kinds = false;
        config.callback_allow_private = false;
    };
    let tickr = TestApp::start_with(closed, own).await;
    for n in 0..3_u64 {
        let job = json!({"kind": "anything", "queue": OWN, "delay_ms": n * 3_600_000});
        tickr.enqueue_draft(draft(&job)).await;
    }
    let place = tempfile::tempdir().unwrap();
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/contract/schemathesis.toml");
    let run = tokio::process::Command::new(program)
        .arg("--config-file")
        .arg(config)
        .args(["run", &tickr.url("/openapi.json"), "--no-color"])
        .args(["--header", "Authorization: Bearer contract"])
        .args(["--seed", "7", "--max-examples", &examples.to_string(), "--workers", "1", "--request-timeout", "15"])
        .args(["--generation-database", "none"])
        .args(["--exclude-path-regex", "(/events|/import)$"])
        // All files that it leaves behind are in this folder.
        .current_dir(place.path())
        .env("HOME", place.path())
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true)
        .output();
    let Output { status, stdout, stderr } =
        tokio::time::timeout(PATIENCE, run).await.expect("it ends in time").unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{said}");
    println!("{said}");
    assert!(said.contains("Test cases:") && !said.contains(" 0 generated"), "{said}");
    let called =
        "SELECT COUNT(*) FROM attempts a JOIN jobs j ON j.id = a.job_id WHERE j.kind = 'http' AND a.runner <> ''";
    assert_eq!(tickr.count(called).await, 0, "a request left the machine");
    tickr.assert_sound().await;
    tickr.stop().await;
}
