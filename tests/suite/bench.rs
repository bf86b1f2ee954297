//! `tickr bench`, in one tiny run of every scenario: each one works, keeps its promises and reports that in JSON.
//! Nothing is left on the servers, and what cannot be measured is refused with a reason.

use std::time::Duration;

use serde_json::Value;
use tokio::process::Command;

use crate::support::program::{Program, command, nothing_runs_in, tickr};
use crate::support::{connect, servers};

fn bench(dir: &tempfile::TempDir, args: &[&str]) -> Command {
    command(&tickr(), dir.path(), &[&["bench"], args].concat())
}

/// Use the servers of the suite, as a user with running servers does.
fn on_shared_servers(dir: &tempfile::TempDir, args: &[&str]) -> Command {
    let mut command = bench(dir, args);
    command.args(["--mysql-url", &servers().mysql_url("somebody_elses"), "--redis-url", &servers().redis_url()]);
    command
}

async fn outcome(mut command: Command) -> (i32, String, String) {
    let output = tokio::time::timeout(Duration::from_secs(600), command.output()).await.expect("it ends").unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

async fn databases_like(pattern: &str) -> Vec<String> {
    let mut conn = connect(&servers().mysql_url("")).await;
    let sql = "SELECT SCHEMA_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME LIKE ?";
    sqlx::query_scalar(sql).bind(pattern).fetch_all(&mut conn).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bench_with_a_table_prefix_measures_tables_with_that_prefix() {
    let dir = tempfile::tempdir().unwrap();
    let scenarios = ["drain", "outbox"];
    let args = [&scenarios[..], &["--short", "--jobs", "200", "--json", "--table-prefix", "shop_"]].concat();
    let (code, out, err) = outcome(on_shared_servers(&dir, &args)).await;
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert!(report["ok"] == true && report["lines"].as_array().unwrap().len() >= 2, "{out}");
    let (code, _, err) = outcome(on_shared_servers(&dir, &["drain", "--short", "--table-prefix", "Shop-"])).await;
    assert!(code == 2 && err.contains("a table prefix is 1 to 20 of"), "{err}");
}

/// The scenarios of `all`.
const OF_ALL: [&str; 12] = [
    "enqueue", "batch", "drain", "keys", "batches", "graphs", "outbox", "flow", "lateness", "callback", "rebuild",
    "idle",
];

#[tokio::test(flavor = "multi_thread")]
async fn the_scenarios_of_all_complete_each_job_once_and_leave_nothing_behind() {
    let (batches, others): (Vec<&str>, Vec<&str>) = OF_ALL.into_iter().partition(|scenario| *scenario == "batches");
    let others = [&others[..], &["delayed"]].concat();
    // Fewer jobs than those of a short run: the sizes of the scenarios are not what is looked at.
    scenarios_complete_each_job_once(&others, &others, "200").await;
    // A batch of so few ends before its cancel arrives, and larger ones are made until one does not.
    scenarios_complete_each_job_once(&batches, &batches, "2000").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a machine for a minute; the suite has all scenarios but those of limits and of remote workers"]
async fn every_scenario_completes_each_job_once_and_leaves_nothing_behind() {
    let more = ["delayed", "limits", "workers", "runners"];
    let (named, wanted) = ([&["all"], &more[..]].concat(), [&OF_ALL[..], &more].concat());
    scenarios_complete_each_job_once(&named, &wanted, "200").await;
}

/// Run the bench with these words, which are the scenarios that are `wanted`, and with this number of jobs.
async fn scenarios_complete_each_job_once(named: &[&str], wanted: &[&str], jobs: &str) {
    let dir = tempfile::tempdir().unwrap();
    let args = [named, &["--short", "--jobs", jobs, "--json"]].concat();
    let (code, out, err) = outcome(on_shared_servers(&dir, &args)).await;
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["ok"], true);
    assert!(report["machine"]["cores"].as_u64().unwrap() >= 1 && report["servers"]["mysql"].is_string());
    let lines = report["lines"].as_array().unwrap();
    for scenario in wanted {
        assert!(lines.iter().any(|line| line["scenario"] == *scenario), "{scenario} is missing:\n{out}");
    }
    for line in lines {
        assert!(line["jobs"].as_u64().unwrap() > 0, "{line:#}");
        assert_eq!(line["exactly_once"], true, "{line:#}");
        assert_eq!(line["figure"]["samples"].as_array().unwrap().len(), 1, "{line:#}");
        let compared = ["enqueue", "batch", "drain", "flow", "rebuild"].iter().any(|word| line["scenario"] == *word)
            || line["name"] == "callbacks to one receiver"
            || line["name"].as_str().is_some_and(|name| name.ends_with("beside none"));
        assert_eq!(line["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0), compared, "{line:#}");
        assert_eq!(line["bare"]["median"].as_f64().is_some_and(|median| median > 0.0), compared, "{line:#}");
    }
    if wanted.contains(&"drain") {
        let drain = lines.iter().find(|line| line["scenario"] == "drain").unwrap();
        assert_eq!(drain["aims"][0]["bound"], 30_000.0);
        assert!(drain["aims"][1]["met"].is_boolean(), "{drain:#}");
    }

    let name = report["servers"]["name"].as_str().unwrap();
    assert!(name.starts_with("tickr_bench_"), "{name}");
    assert_eq!(databases_like(&format!("{name}%")).await, Vec::<String>::new());
    assert_eq!(databases_like("somebody_elses").await, Vec::<String>::new(), "the given database is not created");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a machine for half a minute"]
async fn a_delay_of_commits_slows_a_lone_caller_and_private_servers_count_what_runners_do() {
    let dir = tempfile::tempdir().unwrap();
    let sizes = ["--short", "--jobs", "100", "--callers", "1", "--connections", "1"];
    let args = [&["enqueue", "runners", "--commit-delay", "20", "--json"], &sizes[..]].concat();
    let mut command = bench(&dir, &args);
    command.env("TMPDIR", dir.path());
    let (code, out, err) = outcome(command).await;
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["settings"]["commit_delay_ms"], 20);
    assert_eq!(report["servers"]["durable"], true, "{:#}", report["servers"]);
    let lines = report["lines"].as_array().unwrap();
    let median = |name: &str| {
        let line =
            lines.iter().find(|line| line["name"] == name).unwrap_or_else(|| panic!("{name} is missing:\n{out}"));
        line["figure"]["median"].as_f64().unwrap()
    };
    for name in ["enqueue, library, 1 callers", "enqueue, POST, 1 connections"] {
        // 50 in a second. A commit that shares the sync of another one waits for the rest of its time only, so the bound
        // leaves room for those of the runner.
        assert!(median(name) <= 100.0, "{name}: {}", median(name));
    }
    for runners in ["1 runner", "2 runners"] {
        let of = |what: &str| median(&format!("drain, noop, {runners} of 64, {what} for 1,000 jobs"));
        assert!(of("commits") > 0.0 && of("statements to MySQL") > of("commits"), "{out}");
        assert!(of("waits for row locks") >= 0.0);
    }
    assert_eq!(median("deadlocks that InnoDB counted in runners"), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_it_stops_its_servers() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = bench(&dir, &["lateness", "--log", "info"]);
    command.env("TMPDIR", dir.path());
    let mut program = Program::spawn(command);
    // A runner of the bench is up.
    program.says("listening").await;
    program.signal("INT").await;
    assert_eq!(program.ends().await.code(), Some(1), "{}", program.said());
    program.says("stopped by SIGINT").await;
    nothing_runs_in(dir.path()).await;
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "its folder is gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_measured_is_refused_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let (code, _, err) = outcome(bench(&dir, &["dran"])).await;
    assert!(code == 2 && err.contains("dran") && err.contains("drain"), "{err}");
    let (code, _, err) = outcome(bench(&dir, &["drain", "--payload", "3"])).await;
    assert!(code == 2 && err.contains("--payload"), "{err}");
    let (code, _, err) = outcome(bench(&dir, &["drain", "--mysql-url", "mysql://db/x"])).await;
    assert!(code == 2 && err.contains("--redis-url"), "{err}");
    let (code, _, err) = outcome(on_shared_servers(&dir, &["drain", "--commit-delay", "5"])).await;
    assert!(code == 2 && err.contains("--commit-delay") && err.contains("--mysql-url"), "{err}");
    let (code, _, err) = outcome(bench(&dir, &["drain", "--commit-delay", "101"])).await;
    assert!(code == 2 && err.contains("--commit-delay"), "{err}");
    for (mysql, redis, part) in
        [("canary", "redis://h", "mysql url"), ("mysql://u:canary@h", "canary://h", "redis url")]
    {
        let (code, _, err) = outcome(bench(&dir, &["drain", "--mysql-url", mysql, "--redis-url", redis])).await;
        assert!(code == 2 && err.contains(part) && !err.contains("canary"), "{err}");
    }
    let mysql = "mysql://root:canary@127.0.0.1:1";
    let (code, _, err) =
        outcome(bench(&dir, &["drain", "--mysql-url", mysql, "--redis-url", "redis://127.0.0.1:1"])).await;
    assert!(code == 1 && err.contains("127.0.0.1:1") && !err.contains("canary"), "{err}");
    let redis = "redis://:canary@127.0.0.1:1";
    let (code, _, err) =
        outcome(bench(&dir, &["drain", "--mysql-url", &servers().mysql_url("x"), "--redis-url", redis])).await;
    assert!(code == 1 && err.contains("127.0.0.1:1") && err.contains("redis") && !err.contains("canary"), "{err}");
}
