//! The OpenAPI document as a contract. schemathesis reads it, makes requests that fit it and requests that do not,
//! follows the links in answers, and checks every answer against it. The version, the seed and the number of examples
//! are fixed. Streams and imports have tests of their own, because streams do not end and imports are not JSON.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tickr::config::Config;
use tickr::handlers::{self, Context, FinishLater, Kind, Registry};
use tokio::sync::oneshot;

use crate::support::{TestApp, draft};

/// Longest run. An idle machine takes one to two minutes, one with five other busy tests several.
const PATIENCE: Duration = Duration::from_secs(1_200);

/// The only queue that the runner of this test serves.
const OWN: &str = "jobs-of-this-test";

/// Settings that the suite adds. The fields that these operations take are fields of others, whose cases are all made:
/// the jobs are those of `POST /v1/jobs`, and the filters those of `GET /v1/jobs`. They have four in ten of all cases.
const FEWER_CASES: &str = r#"
[[operations]]
include-name = [
    "POST /v1/batches", "POST /v1/jobs/batch", "PUT /v1/schedules/{name}", "GET /v1/jobs/count", "GET /v1/jobs/survey",
    "GET /v1/jobs/differences",
]
phases.coverage.enabled = false
"#;

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
    // The phase that only makes up requests is left to the long test: the others make up some as well.
    holds_for(2, "examples,coverage,stateful", FEWER_CASES).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a machine for minutes"]
async fn schemathesis_finds_no_answer_that_the_document_does_not_allow_with_many_examples() {
    holds_for(10, "examples,coverage,fuzzing,stateful", "").await;
}

/// Let schemathesis make requests in these phases, with this number of made-up ones for each operation, and with more
/// settings.
async fn holds_for(examples: u32, phases: &str, more: &str) {
    let Some(program) = tokio::task::spawn_blocking(program).await.unwrap() else {
        println!("skipped: TICKR_OFFLINE is set and schemathesis is not in the cache");
        return;
    };
    let (give, given) = oneshot::channel();
    let give = Arc::new(Mutex::new(Some(give)));
    let mut own = Registry::new();
    own.register(move |_: Anything, ctx: Context| {
        let give = give.lock().unwrap().take();
        async move {
            // The first attempt is the one that schemathesis reports on and finishes.
            let Some(give) = give else { return Ok(handlers::Output::default()) };
            let key = ctx.finish_key().await?;
            give.send(key.expose().to_owned()).expect("the test waits for the key");
            Ok(handlers::Output::finished_later(FinishLater::within(Duration::from_secs(3_600))))
        }
    });
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
    let key = tokio::time::timeout(PATIENCE, given).await.expect("the first job starts").unwrap();
    let place = tempfile::tempdir().unwrap();
    let settings = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/contract/schemathesis.toml");
    let config = place.path().join("schemathesis.toml");
    std::fs::write(&config, std::fs::read_to_string(settings).unwrap() + more).unwrap();
    let run = tokio::process::Command::new(program)
        .arg("--config-file")
        .arg(config)
        .args(["run", &tickr.url("/openapi.json"), "--no-color"])
        .args(["--header", "Authorization: Bearer contract"])
        .args(["--seed", "7", "--max-examples", &examples.to_string(), "--workers", "1", "--request-timeout", "15"])
        .args(["--generation-database", "none", "--phases", phases])
        .args(["--exclude-path-regex", "(/events|/import)$"])
        // All files that it leaves behind are in this folder.
        .current_dir(place.path())
        .env("HOME", place.path())
        .env("FINISH_KEY", key)
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
