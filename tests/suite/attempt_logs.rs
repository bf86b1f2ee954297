//! The log of an attempt: the lines that its handler wrote, stored with it and shown with the job.

use std::sync::Once;
use std::time::Duration;

use reqwest::Method;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tickr::config::{Config, KeptLogs};
use tickr::handlers::{Context, Failure, Handler, Kind, Outcome, Output, Registry};
use tickr::job::limits::MAX_LOG_BYTES;
use tickr::job::{JobId, State};
use tickr::store::Retention;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::prelude::*;

use crate::support::program::{command, outcome, tickr as binary};
use crate::support::{Runner, TestApp, answer, call, make_api_key, make_suspects};

/// A job whose handler writes lines.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Write {
    /// A text in each line.
    text: String,
    /// Number of lines of the level `INFO`.
    #[serde(default)]
    lines: u32,
    /// End of each attempt, in order; the last one is repeated.
    #[serde(default)]
    ends: Vec<End>,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum End {
    #[default]
    Succeed,
    FollowUp,
    Fail,
    Reject,
    Panic,
    Hang,
}

impl Kind for Write {
    const NAME: &'static str = "write";
}

struct Writer;

impl Handler for Writer {
    type Payload = Write;

    async fn run(&self, job: Write, ctx: Context) -> Outcome {
        let attempt = ctx.attempt();
        for line in 0..job.lines {
            tracing::info!(attempt, line, "{}", job.text);
            // Attempts that run at the same time take turns on the threads.
            tokio::task::yield_now().await;
        }
        let end = job.ends.get(attempt as usize - 1).or(job.ends.last()).copied().unwrap_or_default();
        match end {
            End::Succeed => Output::json(&json!({"attempt": attempt})),
            End::FollowUp => Output::default().then(&Write { text: "a follow-up".into(), ..Write::default() }),
            End::Fail => Err(Failure::retry("failed on request")),
            End::Reject => Err(Failure::reject("rejected on request")),
            End::Panic => panic!("panicked on request"),
            End::Hang => std::future::pending().await,
        }
    }
}

/// A job of another handler, which writes in every way.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Speak {}

impl Kind for Speak {
    const NAME: &'static str = "speak";
}

async fn speak(_: Speak, ctx: Context) -> Outcome {
    tracing::error!("an error");
    tracing::warn!(shop = "north", "a warning");
    tracing::info!("a line");
    tracing::debug!("a detail");
    tracing::trace!("a trace");
    // The crates that see requests are held to their errors and warnings.
    tracing::warn!(target: "sqlx::query", "canary statement");
    tracing::info!(target: "hyper::proto", "canary header");
    ctx.log("by hand");
    let _ = tokio::spawn(async { tracing::info!("of no attempt") }).await;
    let _ = tokio::spawn(ctx.in_scope(async { tracing::info!("of a task") })).await;
    Ok(().into())
}

fn kinds() -> Registry {
    static LAYER: Once = Once::new();
    // This is what a program does that has a subscriber of its own. The tests of this process share one.
    LAYER.call_once(|| tracing_subscriber::registry().with(tickr::attempt_log_layer()).init());
    let mut kinds = Registry::new();
    kinds.register_handler(Writer);
    kinds.register(speak);
    kinds
}

async fn start() -> TestApp {
    start_with(|_| {}).await
}

async fn start_with(change: impl FnOnce(&mut Config)) -> TestApp {
    TestApp::start_with(change, kinds()).await
}

fn job(text: &str, lines: u32, ends: &[End]) -> Value {
    let payload = Write { text: text.to_owned(), lines, ends: ends.to_vec() };
    json!({"kind": "write", "payload": payload, "max_attempts": ends.len().max(1), "retry": {"base_ms": 1}})
}

/// Read the log of an attempt.
async fn log(tickr: &TestApp, id: JobId, number: usize) -> String {
    let log = tickr.get(&format!("/v1/jobs/{id}/attempts/{number}/log")).await;
    assert_eq!((log.status, log.header("content-type")), (200, "text/plain; charset=utf-8"), "{:#}", log.body);
    let text = log.body.as_str().unwrap().to_owned();
    let job = tickr.job(id).await;
    assert_eq!(job["attempts"][number - 1]["log_bytes"], text.len(), "{job:#}");
    text
}

/// Return the lines of a log without their times, which are checked.
fn lines(log: &str) -> Vec<&str> {
    log.lines()
        .map(|line| {
            let (time, rest) = line.split_once(' ').unwrap();
            assert!(chrono::NaiveTime::parse_from_str(time, "%H:%M:%S%.3f").is_ok(), "{line}");
            rest
        })
        .collect()
}

const LOGS: &str = "SELECT COUNT(*) FROM attempt_logs";

#[tokio::test(flavor = "multi_thread")]
async fn every_attempt_keeps_the_lines_of_its_handler() {
    let tickr = start().await;
    let said = |attempt: u32| format!("INFO  hello attempt={attempt} line=0");
    for (ends, end, verdicts) in [
        (vec![End::Succeed], State::Completed, vec!["succeeded"]),
        (vec![End::FollowUp], State::Completed, vec!["succeeded"]),
        (vec![End::Fail, End::Fail, End::Succeed], State::Completed, vec!["failed", "failed", "succeeded"]),
        (vec![End::Reject], State::Failed, vec!["rejected"]),
        (vec![End::Panic], State::Failed, vec!["panicked"]),
    ] {
        let id = tickr.enqueue(job("hello", 1, &ends)).await;
        tickr.until(id, end).await;
        assert_eq!(tickr.verdicts(id).await, verdicts);
        for number in 1..=ends.len() {
            assert_eq!(lines(&log(&tickr, id, number).await), [said(number as u32)], "{ends:?}");
        }
    }
    let mut hanging = job("hello", 1, &[End::Hang]);
    hanging["timeout_ms"] = json!(300);
    let id = tickr.enqueue(hanging).await;
    tickr.until(id, State::Failed).await;
    assert_eq!(tickr.verdicts(id).await, ["timed_out"]);
    assert_eq!(lines(&log(&tickr, id, 1).await), [said(1)]);

    // An operator's retry keeps the old log, and the new attempt has its own.
    assert_eq!(tickr.post(&format!("/v1/jobs/{id}/retry"), json!({})).await.status, 200);
    tickr.until_attempts(id, 2).await;
    assert_eq!(lines(&log(&tickr, id, 1).await), [said(1)]);
    assert_eq!(lines(&log(&tickr, id, 2).await), [said(1)], "the retry counts attempts from the start");
    tickr.until_idle().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_without_lines_has_no_log_and_no_row() {
    let tickr = start().await;
    let quiet = tickr.enqueue_many((0..50).map(|_| json!({"kind": "noop"}))).await;
    let failed = tickr.enqueue(job("unused", 0, &[End::Fail, End::Reject])).await;
    tickr.until_idle().await;
    assert_eq!(tickr.count(LOGS).await, 0);
    for id in [quiet[0], failed] {
        let job = tickr.job(id).await;
        assert_eq!(job["attempts"][0].get("log_bytes"), None, "{job:#}");
        let missing = tickr.get(&format!("/v1/jobs/{id}/attempts/1/log")).await;
        assert_eq!((missing.status, missing.code()), (404, "not_found"), "{:#}", missing.body);
        assert_eq!(missing.body["detail"], format!("attempt 1 of job {id} has no log"));
    }
    // An attempt that has not ended has none yet.
    let running = tickr.enqueue(job("hello", 1, &[End::Hang])).await;
    tickr.until(running, State::Executing).await;
    assert_eq!(tickr.get(&format!("/v1/jobs/{running}/attempts/1/log")).await.status, 404);
    tickr.post(&format!("/v1/jobs/{running}/cancel"), json!({})).await;
    tickr.until(running, State::Cancelled).await;
    assert_eq!(lines(&log(&tickr, running, 1).await).len(), 1);

    let unknown = tickr.get(&format!("/v1/jobs/{}/attempts/1/log", JobId::new())).await;
    assert_eq!((unknown.status, unknown.code()), (404, "not_found"));
    for (path, code) in
        [("x/attempts/1/log", "invalid_id"), (&*format!("{running}/attempts/-1/log"), "invalid_request")]
    {
        let wrong = tickr.get(&format!("/v1/jobs/{path}")).await;
        assert_eq!((wrong.status, wrong.code()), (422, code), "{:#}", wrong.body);
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_at_the_same_time_do_not_mix_their_lines() {
    let tickr = start_with(|config| config.workers = 16).await;
    let texts: Vec<String> = (0..60).map(|n| format!("shop-{n}")).collect();
    let ids = tickr.enqueue_many(texts.iter().map(|text| job(text, 40, &[]))).await;
    tickr.until_idle().await;
    for (id, text) in ids.iter().zip(&texts) {
        let log = log(&tickr, *id, 1).await;
        let expected: Vec<String> = (0..40).map(|line| format!("INFO  {text} attempt=1 line={line}")).collect();
        assert_eq!(lines(&log), expected);
    }
    assert_eq!(tickr.count(LOGS).await, 60);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_keeps_its_newest_lines_and_counts_the_dropped_ones() {
    let tickr = start().await;
    let id = tickr.enqueue(job("a line that is repeated, with an ü", 2_000, &[End::Reject])).await;
    tickr.until(id, State::Failed).await;
    let log = log(&tickr, id, 1).await;
    assert!(log.len() <= MAX_LOG_BYTES && log.len() > MAX_LOG_BYTES - 300, "{}", log.len());
    let (note, rest) = log.split_once('\n').unwrap();
    let dropped = note.strip_prefix('[').unwrap().strip_suffix(" earlier lines were dropped]").unwrap();
    let kept = lines(rest);
    assert_eq!(dropped.parse::<usize>().unwrap() + kept.len(), 2_000);
    assert!(kept.last().unwrap().ends_with("line=1999"), "{kept:?}");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_steers_no_terminal_and_has_one_line_for_each_event() {
    let tickr = start().await;
    let odd = "a\nb\r\u{1b}]0;title\u{7}\u{9b}2J\u{202e}c";
    let id = tickr.enqueue(job(odd, 1, &[End::Reject])).await;
    tickr.until(id, State::Failed).await;
    let log = log(&tickr, id, 1).await;
    let said = "INFO  a\\nb\\r\\u{1b}]0;title\\u{7}\\u{9b}2J\\u{202e}c attempt=1 line=0";
    assert_eq!(lines(&log), [said]);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_setting_decides_which_lines_are_kept() {
    let all = [
        "ERROR an error",
        "WARN  a warning shop=north",
        "INFO  a line",
        "DEBUG a detail",
        "INFO  by hand",
        "INFO  of a task",
    ];
    for (level, kept) in [
        (LevelFilter::INFO, vec![0, 1, 2, 4, 5]),
        (LevelFilter::DEBUG, vec![0, 1, 2, 3, 4, 5]),
        (LevelFilter::WARN, vec![0, 1]),
        (LevelFilter::ERROR, vec![0]),
        (LevelFilter::OFF, vec![]),
    ] {
        let tickr = start_with(|config| config.attempt_log = level).await;
        let id = tickr.enqueue(json!({"kind": "speak"})).await;
        tickr.until(id, State::Completed).await;
        if kept.is_empty() {
            assert_eq!(tickr.count(LOGS).await, 0);
        } else {
            let log = log(&tickr, id, 1).await;
            let expected: Vec<&str> = kept.iter().map(|at| all[*at]).collect();
            assert_eq!(lines(&log), expected, "{level}");
        }
        tickr.stop().await;
    }
    let tickr = start_with(|config| config.attempt_log_keep = KeptLogs::Failed).await;
    let id = tickr.enqueue(job("hello", 1, &[End::Fail, End::Succeed])).await;
    tickr.until(id, State::Completed).await;
    assert_eq!(lines(&log(&tickr, id, 1).await).len(), 1);
    assert_eq!(tickr.count(LOGS).await, 1);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_go_with_their_jobs() {
    let tickr = start().await;
    let jobs = tickr.enqueue_many((0..4).map(|_| job("hello", 1, &[End::Fail, End::Succeed]))).await;
    tickr.until_idle().await;
    assert_eq!(tickr.count(LOGS).await, 8);
    let deleted = tickr.post("/v1/operations", json!({"action": "delete", "filter": {"ids": [jobs[0]]}})).await;
    assert_eq!(deleted.status, 202, "{:#}", deleted.body);
    tickr.until_count(LOGS, 6).await;
    tickr.app.broker().store().purge_page(None, &Retention::all(Duration::ZERO)).await.unwrap();
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 0);
    assert_eq!(tickr.count(LOGS).await, 0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_may_not_see_a_job_may_not_read_its_logs() {
    let tickr = start().await;
    let url = tickr.url("");
    let admin = make_api_key(&url, "", "admin", json!({"scope": "admin"})).await;
    let read = make_api_key(&url, &admin, "read", json!({"scope": "read"})).await;
    let shop = make_api_key(&url, &admin, "shop", json!({"scope": "enqueue"})).await;
    let mallory = make_api_key(&url, &admin, "mallory", json!({"scope": "enqueue"})).await;
    let mut order = job("canary", 1, &[End::Reject]);
    order["unique_key"] = json!("order-7");
    let accepted = call(&url, Method::POST, "/v1/jobs", &shop, Some(order)).await;
    assert_eq!(accepted.status, 201, "{:#}", accepted.body);
    tickr.until_count(LOGS, 1).await;
    let path = format!("/v1/jobs/{}/attempts/1/log", accepted.body["id"].as_str().unwrap());
    for (key, status) in [(&admin, 200), (&read, 200), (&shop, 200), (&mallory, 403), (&"no-such-key".to_owned(), 401)]
    {
        let log = answer(tickr.with_key(key, Method::GET, &path)).await;
        assert_eq!((log.status, log.body.to_string().contains("canary")), (status, status == 200), "{:#}", log.body);
    }
    assert_eq!(tickr.get(&path).await.status, 401);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_prints_the_log_of_the_newest_attempt_that_has_one() {
    let tickr = start().await;
    let id = tickr.enqueue(job("hello", 1, &[End::Fail, End::Reject])).await;
    tickr.until(id, State::Failed).await;
    let run = async |args: &[&str]| {
        let mut command = command(&binary(), tickr.dir.path(), args);
        command.env("TICKR_URL", tickr.url(""));
        outcome(command).await
    };
    let id = id.to_string();
    let (code, out, err) = run(&["jobs", "log", &id]).await;
    assert_eq!((code, err.as_str()), (0, "attempt 2 of 2: rejected\n"), "{out}");
    assert_eq!(lines(&out), ["INFO  hello attempt=2 line=0"]);
    let (code, out, err) = run(&["jobs", "log", &id, "--attempt", "1"]).await;
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert_eq!(lines(&out), ["INFO  hello attempt=1 line=0"]);
    let (code, out, err) = run(&["jobs", "log", &id, "--attempt", "3"]).await;
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    assert!(err.contains(&format!("attempt 3 of job {id} has no log (not_found)")), "{err}");
    let (_, out, _) = run(&["jobs", "show", &id]).await;
    assert!(out.contains(&format!("`tickr jobs log {id} --attempt 2`")), "{out}");
    let quiet = tickr.enqueue(json!({"kind": "noop"})).await;
    tickr.until(quiet, State::Completed).await;
    let (code, out, err) = run(&["jobs", "log", &quiet.to_string()]).await;
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains(&format!("no attempt of job {quiet} has a log")), "{err}");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_mysql_refuses_costs_the_attempt_nothing_else() {
    let tickr = start().await;
    // The table takes small logs alone.
    tickr.sql("ALTER TABLE attempt_logs MODIFY log TINYTEXT NOT NULL").await;
    let small = tickr.enqueue(job("small", 1, &[])).await;
    let large = tickr.enqueue(job("large", 100, &[])).await;
    let failed = tickr.enqueue(job("large", 100, &[End::Reject])).await;
    assert_eq!(tickr.until(small, State::Completed).await["result"], json!({"attempt": 1}));
    let job = tickr.until(large, State::Completed).await;
    assert_eq!((&job["result"], job["attempts"][0].get("log_bytes")), (&json!({"attempt": 1}), None), "{job:#}");
    let job = tickr.until(failed, State::Failed).await;
    assert_eq!(job["last_error"], "rejected on request", "{job:#}");
    assert_eq!(tickr.count(LOGS).await, 1);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_served_job_keeps_where_and_why_it_panicked_also_in_a_process_of_its_own() {
    let tickr = TestApp::start_with(|config| config.queues = vec!["elsewhere".into()], Registry::new()).await;
    let panics = |delay_ms: u64| json!({"kind": "panic", "max_attempts": 3, "delay_ms": delay_ms});
    let suspect = tickr.enqueue(panics(3_600_000)).await;
    make_suspects(&mut tickr.mysql().await, &[suspect]).await;
    assert_eq!(tickr.post(&format!("/v1/jobs/{suspect}/run-now"), json!({})).await.status, 200);
    let mut plain = panics(0);
    plain["max_attempts"] = json!(1);
    let plain = tickr.enqueue(plain).await;
    // What the runner shows on standard error does not decide what is stored.
    let mut runner = Runner::start(&tickr, &[("TICKR_LOG", "error")]);
    for (id, number) in [(plain, 1), (suspect, 3)] {
        let job = tickr.until(id, State::Failed).await;
        assert_eq!(job["attempts"][number - 1]["verdict"], "panicked", "{job:#}");
        let log = log(&tickr, id, number).await;
        let [line] = lines(&log)[..] else { panic!("{log}") };
        assert!(line.starts_with("ERROR panicked at internal/handlers/test_kinds.rs:"), "{line}");
        assert!(line.ends_with(": panicked on request"), "{line}");
    }
    assert_eq!(
        tickr.count("SELECT COUNT(*) FROM runners WHERE parent IS NOT NULL").await,
        1,
        "the suspect had a process"
    );
    assert!(!runner.log().contains("panicked on request"), "the message of a panic is not logged:\n{}", runner.log());
    runner.signal("TERM");
    assert_eq!(runner.exit_code().await, Some(0));
    tickr.stop().await;
}
