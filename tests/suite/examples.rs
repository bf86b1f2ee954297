//! The examples, run as a reader of the documents runs them.

use serde_json::{Value, json};
use tickr::job::{JobId, State};
use tickr::prelude::*;

use crate::support::program::{Program, command, example, outcome};
use crate::support::{Runner, TestApp, answer, http};

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Thumbnail {
    image: String,
    width: u32,
}

impl Kind for Thumbnail {
    const NAME: &'static str = "thumbnail";
}

/// Start a tickr that runs nothing, for the tables and the verification.
async fn bystander() -> TestApp {
    TestApp::start_with(|config| config.queues = vec!["elsewhere".into()], Registry::new()).await
}

async fn enqueue(url: &str, kind: &str, payload: Value) -> crate::support::Answer {
    answer(http().post(format!("{url}/v1/jobs")).json(&json!({"kind": kind, "payload": payload}))).await
}

fn id_of(job: &Value) -> JobId {
    job["id"].as_str().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn enqueue_from_a_program_that_is_no_runner() {
    let mut kinds = Registry::new();
    kinds.register(|job: Thumbnail, _: Context| async move { Output::json(&job.image) });
    let tickr = TestApp::start_with(|_| {}, kinds).await;
    let none: [&str; 0] = [];
    let mut command = command(&example("enqueue").await, tickr.dir.path(), &none);
    command
        .env("TICKR_MYSQL_URL", tickr.config.mysql_url().unwrap().expose())
        .env("TICKR_REDIS_URL", tickr.config.redis_url().unwrap().expose())
        .env("TICKR_REDIS_PREFIX", &tickr.config.redis_prefix);
    let (code, said, errors) = outcome(command).await;
    assert_eq!(code, 0, "{errors}");
    let line = |mark: &str| said.lines().find_map(|line| line.strip_prefix(mark)).unwrap_or_else(|| panic!("{said}"));
    assert!(line("later: ").ends_with(", the same job again: true"), "{said}");
    assert_eq!(line("refused: "), "/payload/width");
    let ids: Vec<JobId> = [line("now: "), line("batch: "), line("later: ").split(',').next().unwrap()]
        .iter()
        .flat_map(|ids| ids.split(' '))
        .map(|id| id.parse().unwrap())
        .collect();
    assert_eq!(ids.len(), 5);
    for id in ids {
        tickr.until(id, State::Completed).await;
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn handlers_with_state() {
    let tickr = bystander().await;
    let mut runner = Runner::start_program(&tickr, &example("handler_with_state").await, &[]);
    let url = runner.base().await;
    let refused = enqueue(&url, "charge", json!({"customer": "ada", "cents": 100_001})).await;
    assert_eq!((refused.status, refused.pointers()), (422, vec!["/payload/cents"]));
    let charge = enqueue(&url, "charge", json!({"customer": "ada", "cents": 1_250})).await.body;
    assert_eq!((&charge["max_attempts"], charge["kind"].as_str()), (&json!(3), Some("charge")));
    assert_eq!(tickr.until(id_of(&charge), State::Completed).await["result"], json!({"total": 1_250}));
    let receipts = tickr.get("/v1/jobs?kind=receipt").await.body;
    let receipt = tickr.until(id_of(&receipts["data"][0]), State::Completed).await;
    assert_eq!((&receipt["result"]["to"], &receipt["result"]["cents"]), (&json!("ada"), &json!(1_250)));
    runner.signal("TERM");
    assert_eq!(runner.exit_code().await, Some(0));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn follow_ups() {
    let tickr = bystander().await;
    let mut runner = Runner::start_program(&tickr, &example("follow_ups").await, &[]);
    let url = runner.base().await;
    let order = enqueue(&url, "order", json!({"number": 7, "articles": ["cup", "lamp"]})).await.body;
    assert_eq!(tickr.until(id_of(&order), State::Completed).await["result"], json!({"parcels": 2}));
    tickr.until_idle().await;
    let notices = tickr.get("/v1/jobs?kind=notice").await.body;
    let mut texts = Vec::new();
    for notice in notices["data"].as_array().unwrap() {
        texts.push(tickr.job(id_of(notice)).await["result"].as_str().unwrap().to_owned());
    }
    texts.sort();
    assert_eq!(texts, ["order 7: the cup is on its way", "order 7: the lamp is on its way"]);
    runner.signal("TERM");
    assert_eq!(runner.exit_code().await, Some(0));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_test_with_a_whole_runner() {
    let dir = tempfile::tempdir().unwrap();
    let none: [&str; 0] = [];
    let mut program = Program::spawn(command(&example("testing").await, dir.path(), &none));
    program.says("all checks passed").await;
    assert_eq!(program.ends().await.code(), Some(0), "{}", program.said());
}
