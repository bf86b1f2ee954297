//! The metrics page, the table of metrics, and the metrics that the dashboard and the alert rules use.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use sqlx::Executor;
use tickr::config::Config;
use tickr::handlers::Registry;
use tickr::job::State;
use tickr::telemetry::{Form, METRICS, Metric, Of, metrics_table};
use tokio::time::Instant;
use yaml_rust2::{Yaml, YamlLoader};

use crate::support::documents;
use crate::support::limits::set_and_wait;
use crate::support::program::example;
use crate::support::{
    Halt, Proxy, Pulse, Runner, TestApp, call, contract, drop_database, eventually, eventually_seen, http, make_api_key,
};

/// Metrics that appear only after events that this file does not cause.
const RARE: &[&str] = &[
    // Defects, and faults that have tests of their own.
    "tickr_loop_panics_total",
    "tickr_index_server_changes_total",
    "tickr_store_repeats_total",
    "tickr_batches_split_total",
    // They need a schedule, a limit by key, a dead letter, a collector or the outbox of an application.
    "tickr_jobs_parked_total",
    "tickr_breaker_openings_total",
    "tickr_schedule_lateness_seconds",
    "tickr_alerts_total",
    "tickr_dead_letters",
    "tickr_dead_letter_oldest_seconds",
    "tickr_http_connections",
    "tickr_spans_total",
    "tickr_outbox_copied_total",
    "tickr_outbox_source_up",
    "tickr_outbox_source_waiting",
    "tickr_outbox_source_oldest_seconds",
];

/// A parsed page of metrics.
#[derive(Debug, Default)]
struct Page {
    types: BTreeMap<String, String>,
    helps: BTreeMap<String, String>,
    samples: Vec<Sample>,
}

#[derive(Debug)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

impl Page {
    fn parse(text: &str) -> Self {
        let mut page = Self::default();
        for line in text.lines().filter(|line| !line.is_empty()) {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, word) = rest.split_once(' ').unwrap();
                assert!(page.types.insert(name.into(), word.into()).is_none(), "{name} is there twice");
            } else if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').unwrap();
                page.helps.insert(name.into(), help.into());
            } else {
                let (series, value) = line.rsplit_once(' ').unwrap();
                let (name, labels) = match series.split_once('{') {
                    Some((name, rest)) => (name, labels(rest.strip_suffix('}').unwrap())),
                    None => (series, BTreeMap::new()),
                };
                page.samples.push(Sample { name: name.into(), labels, value: value.parse().unwrap() });
            }
        }
        page
    }

    /// Return the sum of the samples with this name and these labels.
    fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let fits = |sample: &&Sample| {
            sample.name == name
                && labels.iter().all(|(label, value)| sample.labels.get(*label).is_some_and(|v| v == value))
        };
        self.samples.iter().filter(fits).map(|sample| sample.value).sum()
    }

    /// Return true if the page has the series of this metric with these labels.
    fn has(&self, name: &str, labels: &[(&str, &str)]) -> bool {
        let labels: BTreeMap<String, String> =
            labels.iter().map(|(label, value)| ((*label).to_owned(), (*value).to_owned())).collect();
        self.samples.iter().any(|sample| sample.name == name && sample.labels == labels)
    }
}

/// Parse `a="1",b="2"`. No value of tickr contains a comma or a quote.
fn labels(text: &str) -> BTreeMap<String, String> {
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap();
        (name.to_owned(), value.trim_matches('"').to_owned())
    };
    text.split(',').map(pair).collect()
}

fn metric(name: &str) -> Option<&'static Metric> {
    METRICS.iter().find(|metric| metric.name == name)
}

/// Return the metric that a sample of the page, or a name in an expression, belongs to.
fn metric_of_series(name: &str) -> Option<&'static Metric> {
    let of_histogram = |suffix| {
        let found = name.strip_suffix(suffix).and_then(metric);
        found.filter(|metric| matches!(metric.form, Form::Histogram(_)))
    };
    let plain = metric(name).filter(|metric| !matches!(metric.form, Form::Histogram(_)));
    plain.or_else(|| ["_bucket", "_sum", "_count"].into_iter().find_map(of_histogram))
}

async fn scrape(base: &str) -> Page {
    let answer = http().get(format!("{base}/metrics")).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    Page::parse(&answer.text().await.unwrap())
}

/// Start a tickr that runs nothing: no job goes to its queue.
async fn idle() -> TestApp {
    TestApp::start_with(|config| config.queues = vec!["nowhere".into()], Registry::new()).await
}

async fn post(base: &str, path: &str, body: Value) -> Value {
    http().post(format!("{base}{path}")).json(&body).send().await.unwrap().json().await.unwrap()
}

/// Enqueue work of every sort, through the API at `base`. Return the number of jobs that will end.
async fn work(base: &str) -> usize {
    let jobs = [
        json!({"kind": "noop"}),
        json!({"kind": "noop", "queue": "mail", "delay_ms": 300}),
        json!({"kind": "sleep", "payload": {"ms": 5}, "unique_key": "one"}),
        json!({"kind": "fail", "payload": {"times": 1}, "retry": {"base_ms": 1}}),
        json!({"kind": "fail", "payload": {"permanent": true}}),
        json!({"kind": "panic", "max_attempts": 1}),
        json!({"kind": "sleep", "payload": {"ms": 60_000}, "timeout_ms": 50, "max_attempts": 1}),
    ];
    for job in &jobs {
        let made = post(base, "/v1/jobs", job.clone()).await;
        assert!(made["id"].is_string(), "{made:#}");
    }
    let batch = vec![json!({"kind": "noop"}); 20];
    post(base, "/v1/jobs/batch", json!({"jobs": batch})).await;
    // Names that clients invent must not become labels.
    let strangers: Vec<Value> = (0..40).map(|n| json!({"kind": "noop", "queue": format!("made-up-{n}")})).collect();
    post(base, "/v1/jobs/batch", json!({"jobs": strangers})).await;
    for n in 0..10 {
        post(base, "/v1/jobs", json!({"kind": format!("unknown-{n}")})).await;
        let _ = http().get(format!("{base}/made/up/{n}")).send().await.unwrap();
        let method = reqwest::Method::from_bytes(format!("MADE{n}").as_bytes()).unwrap();
        let _ = http().request(method, format!("{base}/v1/jobs")).send().await.unwrap();
        let _ = http().get(format!("{base}/v1/jobs/{}", uuid::Uuid::now_v7())).send().await.unwrap();
    }
    jobs.len() + batch.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_has_what_the_table_has_and_no_label_that_a_caller_made_up() {
    let tickr = idle().await;
    // No stall of the machine may end an attempt.
    let runner = Runner::start(&tickr, &[("TICKR_QUEUES", "default,mail"), ("TICKR_LEASE", "60s")]);
    let base = runner.base().await;
    let jobs = work(&base).await;
    eventually("the work has ended", || async {
        let ended = tickr.count("SELECT COUNT(*) FROM attempts WHERE end_state IS NOT NULL").await;
        (ended == jobs as i64).then_some(())
    })
    .await;
    let rare = |name: &str| RARE.contains(&name);
    // Wait until the reconciler has made a pass, a reading is newer than the last job, and the runner has counted the
    // end of each attempt. There is one start more than there are jobs. A runner does without Redis for a while after
    // the machine stood still.
    let page = eventually("the page has everything", || async {
        let page = scrape(&base).await;
        let missing: Vec<&str> = METRICS
            .iter()
            .map(|metric| metric.name)
            .filter(|name| !rare(name) && !page.types.contains_key(*name))
            .collect();
        let read = page.sum("tickr_jobs_ended", &[]) as usize == jobs && page.sum("tickr_up", &[]) == 2.0;
        let counted = page.sum("tickr_attempts_total", &[]) as usize == jobs + 1;
        (missing.is_empty() && read && counted && page.sum("tickr_busy_workers", &[]) == 0.0).then_some(page)
    })
    .await;

    for (name, word) in &page.types {
        let metric = metric(name).unwrap_or_else(|| panic!("{name} is on the page and not in the table"));
        assert_eq!(word, metric.type_word(), "{name}");
        assert_eq!(page.helps.get(name).map(String::as_str), Some(metric.help), "{name}");
    }
    let kinds: Value = http().get(format!("{base}/v1/kinds")).send().await.unwrap().json().await.unwrap();
    let kinds: BTreeSet<&str> = kinds["data"].as_array().unwrap().iter().filter_map(|k| k["kind"].as_str()).collect();
    assert!(kinds.len() > 5, "{kinds:?}");
    let paths = contract::document()["paths"].as_object().unwrap();
    let words = |list: &[&'static str]| list.iter().copied().collect::<BTreeSet<&str>>();
    for sample in &page.samples {
        let metric = metric_of_series(&sample.name).unwrap_or_else(|| panic!("{sample:?} is not in the table"));
        let names: BTreeSet<&str> = sample.labels.keys().map(String::as_str).filter(|name| *name != "le").collect();
        assert_eq!(names, metric.labels.iter().copied().collect(), "{sample:?}");
        for (label, value) in sample.labels.iter().filter(|(label, _)| *label != "le") {
            let value = value.as_str();
            let fits = match label.as_str() {
                "kind" => kinds.contains(value),
                "queue" => words(&["default", "mail", "nowhere", "_other"]).contains(value),
                "route" => value == "_other" || paths.contains_key(value),
                "method" => words(&["GET", "POST", "other"]).contains(value),
                "status" => words(&["2xx", "4xx"]).contains(value),
                // An address that an operator or the sentinels named; the number of them is bounded.
                "server" if sample.name == "tickr_index_server" => true,
                "server" => words(&["mysql", "redis"]).contains(value),
                "version" => value == env!("CARGO_PKG_VERSION"),
                // Fixed words of the program.
                _ => value.len() <= 20 && value.chars().all(|c| c.is_ascii_lowercase() || " _".contains(c)),
            };
            assert!(fits, "{sample:?}: {label} may not be {value:?}");
        }
    }

    let attempts = |kind, verdict| page.sum("tickr_attempts_total", &[("kind", kind), ("verdict", verdict)]);
    assert_eq!(attempts("noop", "succeeded"), 22.0);
    assert_eq!(
        (attempts("fail", "failed"), attempts("fail", "succeeded"), attempts("fail", "rejected")),
        (1.0, 1.0, 1.0)
    );
    assert_eq!((attempts("panic", "panicked"), attempts("sleep", "timed_out")), (1.0, 1.0));
    assert_eq!(page.sum("tickr_jobs_accepted_total", &[("kind", "noop")]), 62.0);
    assert_eq!(page.sum("tickr_jobs", &[("queue", "_other"), ("state", "waiting")]), 40.0);
    assert_eq!(page.sum("tickr_jobs_ended", &[("queue", "mail"), ("state", "completed")]), 1.0);
    assert_eq!(page.sum("tickr_jobs_ended", &[("state", "failed")]), 3.0);
    // The wait is counted for first starts only.
    assert_eq!(page.sum("tickr_lateness_seconds_count", &[]), jobs as f64 + 1.0);
    assert_eq!(page.sum("tickr_wait_seconds_count", &[]), jobs as f64);
    let waited = page.sum("tickr_wait_seconds_sum", &[("queue", "mail")]);
    assert!(waited >= 0.3 && page.sum("tickr_lateness_seconds_sum", &[("queue", "mail")]) < waited, "{waited}");
    assert_eq!(page.sum("tickr_run_seconds_count", &[]), jobs as f64 + 1.0);
    assert_eq!(page.sum("tickr_settle_seconds_count", &[]), jobs as f64 + 1.0);
    assert!(page.sum("tickr_claim_seconds_count", &[]) > jobs as f64);
    assert!(page.sum("tickr_oldest_due_seconds", &[]) > 0.0, "forty jobs wait and no runner serves them");
    // On a busy machine a heartbeat may be late by more than the short lease of tests.
    assert_eq!(page.sum("tickr_runners", &[]) + page.sum("tickr_runners_silent", &[]), 2.0);
    assert_eq!(page.sum("tickr_workers", &[]), 64.0);
    assert_eq!(page.sum("tickr_index_state", &[]), 1.0);
    let route = |route, method, status| {
        page.sum("tickr_http_request_seconds_count", &[("route", route), ("method", method), ("status", status)])
    };
    assert_eq!((route("/v1/jobs", "POST", "2xx"), route("/v1/jobs", "POST", "4xx")), (7.0, 10.0));
    assert_eq!((route("_other", "GET", "4xx"), route("/v1/jobs", "other", "4xx")), (10.0, 10.0));
    assert_eq!(route("/v1/jobs/{id}", "GET", "4xx"), 10.0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn counters_that_alerts_watch_begin_at_zero_with_the_process() {
    let tickr = idle().await;
    let runner = Runner::start(&tickr, &[]);
    let page = scrape(&runner.base().await).await;
    let mut wanted = Vec::new();
    for kind in ["sleep", "noop", "http"] {
        wanted.push(("tickr_attempts_total", vec![("kind", kind), ("verdict", "lost")]));
        wanted.push(("tickr_blocked_handlers_total", vec![("kind", kind)]));
    }
    wanted.push(("tickr_schedule_ticks_total", vec![("outcome", "fired"), ("cause", "")]));
    for cause in ["missed", "paused", "overlap", "invalid", "changed"] {
        wanted.push(("tickr_schedule_ticks_total", vec![("outcome", "skipped"), ("cause", cause)]));
    }
    for (name, labels) in wanted {
        assert!(page.has(name, &labels), "{name} {labels:?}: {page:#?}");
        assert_eq!(page.sum(name, &labels), 0.0, "{name} {labels:?}");
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_is_counted_as_silent_after_its_own_lease_and_not_before() {
    let tickr = idle().await;
    // This process has the metrics of other tests as well.
    let runner = Runner::start(&tickr, &[("TICKR_LEASE", "30s")]);
    let base = runner.base().await;
    assert_eq!(tickr.put("/v1/kinds/resize", json!({"queue": "pictures"})).await.status, 201);
    let worker = json!({"name": "slow", "kinds": ["resize"], "slots": 1, "lease_ms": 3_600_000});
    assert_eq!(tickr.post("/v1/workers", worker).await.status, 201);
    let heard = |minutes: u32| {
        format!("UPDATE runners SET heartbeat_at = UTC_TIMESTAMP(6) - INTERVAL {minutes} MINUTE WHERE via = 'http'")
    };
    for (minutes, silent) in [(20, 0.0), (70, 1.0)] {
        tickr.sql(heard(minutes)).await;
        eventually(&format!("after {minutes} minutes {silent} runners are silent"), || async {
            let page = scrape(&base).await;
            let is_read = page.sum("tickr_heartbeat_age_seconds", &[]) > f64::from(minutes * 60) - 1.0;
            let counts = (page.sum("tickr_runners", &[]), page.sum("tickr_runners_silent", &[]));
            (is_read && counts == (3.0 - silent, silent)).then_some(())
        })
        .await;
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_without_workers_are_not_counted_among_runners_with_workers() {
    let tickr = TestApp::start_with(|config| config.workers = 0, Registry::new()).await;
    let runner = Runner::start(&tickr, &[("TICKR_WORKERS", "0"), ("TICKR_LEASE", "30s")]);
    let base = runner.base().await;
    assert_eq!(tickr.put("/v1/kinds/resize", json!({"queue": "pictures"})).await.status, 201);
    // A fleet may have remote workers only.
    let worker = json!({"name": "far", "kinds": ["resize"], "slots": 4, "lease_ms": 3_600_000});
    assert_eq!(tickr.post("/v1/workers", worker).await.status, 201);
    eventually_seen("one of three has workers", || async {
        let page = scrape(&base).await;
        let counts = (page.sum("tickr_runners", &[]), page.sum("tickr_runners_with_workers", &[]));
        if counts == (3.0, 1.0) { Ok(()) } else { Err(format!("{counts:?}")) }
    })
    .await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runners_are_counted_however_many_there_are() {
    let tickr = idle().await;
    let runner = Runner::start(&tickr, &[]);
    let base = runner.base().await;
    // More runners than a list has. The oldest ten are silent. The reaper judges a runner after it has watched for a
    // part of its lease, which is longer than the test.
    let ghosts = "INSERT INTO runners (id, version, kinds, queues, slots, lease_ms, started_at, heartbeat_at) \
                  WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 210) \
                  SELECT CONCAT('ghost/', n), '9.9.9', '[]', \
                  IF(n <= 10, '[\"far-away\"]', '[\"nowhere\"]'), 1, 3600000, \
                  UTC_TIMESTAMP(6) - INTERVAL IF(n <= 10, 2, 0) DAY, \
                  UTC_TIMESTAMP(6) - INTERVAL IF(n <= 10, 2, 0) HOUR FROM n";
    tickr.sql(ghosts).await;
    eventually("all of them are counted", || async {
        let page = scrape(&base).await;
        let age = page.sum("tickr_heartbeat_age_seconds", &[]);
        let counts = (page.sum("tickr_runners", &[]), page.sum("tickr_runners_silent", &[]));
        let is_far_away = |sample: &Sample| {
            sample.name == "tickr_jobs" && sample.labels.get("queue").is_some_and(|queue| queue == "far-away")
        };
        (counts == (202.0, 10.0) && age >= 7_200.0 && page.samples.iter().any(is_far_away)).then_some(())
    })
    .await;
    tickr.sql("DELETE FROM runners WHERE id LIKE 'ghost/%'").await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_jobs_of_queues_that_were_idle_for_long_are_counted_together() {
    let tickr = idle().await;
    let runner = Runner::start(&tickr, &[]);
    let base = runner.base().await;
    // The janitor adds them up under this name.
    tickr.sql("INSERT INTO tallies (lane, queue, kind, state, n) VALUES (0, '_other', 'noop', 'completed', 7)").await;
    eventually("they are counted", || async {
        let ended = scrape(&base).await.sum("tickr_jobs_ended", &[("queue", "_other"), ("state", "completed")]);
        (ended == 7.0).then_some(())
    })
    .await;
    tickr.stop_broken("a count of jobs that never were").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn held_jobs_are_counted_by_queue_and_reason() {
    // The pages of this process show the metrics of other tests as well, so the queues have names of their own.
    let queues = |config: &mut Config| config.queues = vec!["held-here".into(), "held-there".into()];
    let tickr = TestApp::start_with(queues, Registry::new()).await;
    set_and_wait(&tickr, "tenants", json!({"kind": "sleep", "concurrency": 1})).await;
    let breaker = json!({"failures": 1, "pause_ms": 600_000});
    set_and_wait(&tickr, "hosts", json!({"kind": "http", "shared_by": "host", "breaker": breaker})).await;
    let sleep = |more: Value| {
        let mut job = json!({"kind": "sleep", "payload": {"ms": 600_000}, "queue": "held-here"});
        job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        job
    };
    let call = || {
        // No process listens at this port.
        let payload = json!({"url": "http://127.0.0.1:1/"});
        json!({"kind": "http", "payload": payload, "queue": "held-there", "max_attempts": 1})
    };
    let mut held = tickr.enqueue_many((0..4).map(|_| sleep(json!({"order_key": "a"})))).await;
    held.push(tickr.enqueue(sleep(json!({"after": [held[0]]}))).await);
    held.extend(tickr.enqueue_many((0..3).map(|_| sleep(json!({"limit_key": "t"})))).await);
    let failed = tickr.enqueue(call()).await;
    tickr.until(failed, State::Failed).await;
    eventually("the breaker is open", || async {
        let keys = tickr.get("/v1/limits/hosts/keys").await.body;
        (keys["data"][0]["breaker"]["state"] == "open").then_some(())
    })
    .await;
    held.extend(tickr.enqueue_many((0..2).map(|_| call())).await);

    let say = async |counts: [i64; 4], of_breaker: i64| {
        let lines = ["order_key", "limit", "breaker", "parents"].into_iter().zip(counts);
        for (reason, count) in lines {
            tickr.until_metric(&format!("tickr_held_jobs{{queue=\"held-here\",reason=\"{reason}\"}} {count}")).await;
        }
        let there = "tickr_held_jobs{queue=\"held-there\"";
        tickr.until_metric(&format!("{there},reason=\"breaker\"}} {of_breaker}")).await;
        tickr.until_metric(&format!("{there},reason=\"limit\"}} 0")).await;
    };
    say([3, 2, 0, 1], 2).await;
    for job in held.iter().rev() {
        tickr.post(&format!("/v1/jobs/{job}/cancel"), json!({})).await;
    }
    say([0, 0, 0, 0], 0).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_blocked_jobs_and_rows_of_the_outbox_are_counted() {
    let tickr = idle().await;
    // This process has the metrics of other tests as well.
    let runner = Runner::start(&tickr, &[("TICKR_QUEUES", "default")]);
    let base = runner.base().await;
    let later = json!({"kind": "noop", "delay_ms": 3_600_000});
    for body in [json!({}), json!({}), json!({"jobs": [later], "close": true}), json!({"close": true})] {
        let made = tickr.post("/v1/batches", body).await;
        assert_eq!(made.status, 201, "{:#}", made.body);
    }
    tickr.until_count("SELECT COUNT(*) FROM batches WHERE completed_at IS NULL", 3).await;
    let parent = tickr.enqueue(later).await;
    tickr.enqueue_many((0..4).map(|_| json!({"kind": "noop", "after": [parent.to_string()]}))).await;

    // Another runner leads and does not look, so this one moves the rows when it is nudged.
    let row = |options: &str, age_s: u32| {
        let id = uuid::Uuid::now_v7().simple();
        format!("(UNHEX('{id}'), 'noop', '{{}}', {options}, UTC_TIMESTAMP(6) - INTERVAL {age_s} SECOND)")
    };
    let rows: Vec<String> = (0..5).map(|_| row("NULL", 0)).collect();
    tickr
        .sql(format!(
            "INSERT INTO outbox_leader VALUES (1, 'ghost/1-00000000', UTC_TIMESTAMP(6) + INTERVAL 1 HOUR) \
             ON DUPLICATE KEY UPDATE runner = VALUES(runner), lease_until = VALUES(lease_until); \
             INSERT INTO tickr_outbox (id, kind, payload, options, created_at) VALUES {}",
            rows.join(",")
        ))
        .await;
    assert_eq!(call(&base, Method::POST, "/v1/outbox/nudge", "", None).await.status, 204);
    tickr.until_count("SELECT COUNT(*) FROM tickr_outbox", 0).await;
    // A row stays while another session has its unique key.
    let holder = json!({"kind": "noop", "unique_key": "a", "delay_ms": 3_600_000});
    tickr.enqueue(holder).await;
    let mut session = tickr.mysql().await;
    session.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await.unwrap();
    session.execute("BEGIN").await.unwrap();
    assert!(session.fetch_optional("SELECT * FROM unique_keys FOR UPDATE").await.unwrap().is_some());
    let stays = row("'{\"unique_key\":\"a\"}'", 1_000);
    tickr.sql(format!("INSERT INTO tickr_outbox (id, kind, payload, options, created_at) VALUES {stays}")).await;
    eventually_seen("the page counts them", || async {
        let page = scrape(&base).await;
        let sum = |name| page.sum(name, &[]);
        let counts = [sum("tickr_batches_unfinished"), sum("tickr_blocked_jobs"), sum("tickr_outbox_moved_total")];
        let oldest = sum("tickr_outbox_oldest_seconds");
        if counts == [3.0, 4.0, 5.0] && (1_000.0..1_100.0).contains(&oldest) {
            Ok(())
        } else {
            Err(format!("{counts:?}, the oldest row waits for {oldest} s"))
        }
    })
    .await;
    session.execute("ROLLBACK").await.unwrap();
    tickr.until_count("SELECT COUNT(*) FROM tickr_outbox", 0).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scrape_answers_while_mysql_and_redis_do_not_and_says_so() {
    let tickr = TestApp::start_alone(|_| {}, |config| config.queues = vec!["nowhere".into()]).await;
    let runner = Runner::start(&tickr, &[]);
    let base = runner.base().await;
    let up = |page: &Page| (page.sum("tickr_up", &[("server", "mysql")]), page.sum("tickr_up", &[("server", "redis")]));
    eventually("both are up", || async { (up(&scrape(&base).await) == (1.0, 1.0)).then_some(()) }).await;

    // The servers are frozen, not closed: they neither answer nor refuse. Another server watches the machine.
    let (pulse, name, url) = Pulse::apart().await;
    tickr.services().mysql().pause().unwrap();
    tickr.services().redis().pause().unwrap();
    let slowest = Cell::new(Duration::ZERO);
    let page = eventually("both are down", || async {
        let began = Instant::now();
        let page = scrape(&base).await;
        slowest.set(slowest.get().max(pulse.time_since(began)));
        let degraded = page.sum("tickr_index_state", &[("state", "degraded")]) == 1.0;
        (up(&page) == (0.0, 0.0) && degraded).then_some(page)
    })
    .await;
    let slowest = slowest.get();
    drop(pulse);
    drop_database(&url, &name).await;
    println!("slowest scrape while MySQL and Redis are frozen: {} ms", slowest.as_millis());
    // Half a second, plus a margin for a busy machine, beside its stalls. The servers' own limits are 2 and 10 s.
    assert!(slowest < Duration::from_millis(1_500), "{slowest:?}");
    assert!(page.sum("tickr_reading_age_seconds", &[]) > 0.0);

    tickr.services().redis().resume().unwrap();
    tickr.services().mysql().resume().unwrap();
    eventually("both are up again", || async { (up(&scrape(&base).await) == (1.0, 1.0)).then_some(()) }).await;
    tickr.stop().await;
}

/// The first statement of the counts of jobs.
const COUNT: &str = "SELECT IF(queue IN";

/// Start a process whose MySQL is behind this proxy. The metrics of the test's own process have those of other tests as
/// well.
async fn runner_behind(proxy: &Proxy, tickr: &TestApp) -> (Runner, String) {
    let url = proxy.url();
    let runner = Runner::start(tickr, &[("TICKR_MYSQL_URL", url.as_str())]);
    let base = runner.base().await;
    (runner, base)
}

async fn until_mysql_is(up: f64, base: &str) {
    eventually(&format!("tickr_up of MySQL is {up}"), || async {
        let page = scrape(base).await;
        let says = page.has("tickr_up", &[("server", "mysql")]) && page.sum("tickr_up", &[("server", "mysql")]) == up;
        says.then_some(())
    })
    .await;
}

/// Counts that took longer than a second are repeated after a minute, which is longer than the test waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_after_a_long_count_is_told_before_the_next_count() {
    let tickr = idle().await;
    let proxy = Proxy::start(tickr.config.mysql_url().unwrap().expose()).await;
    let (runner, base) = runner_behind(&proxy, &tickr).await;
    proxy.hold_back(COUNT);
    // The runners are known, although the counts are not.
    eventually("the runners are known while the count goes on", || async {
        let page = scrape(&base).await;
        (proxy.holds_one_back() && page.sum("tickr_runners", &[]) == 2.0).then_some(())
    })
    .await;
    tokio::time::sleep(Duration::from_millis(1_300)).await;
    proxy.pass_held_back();
    eventually("the count has ended", || async {
        scrape(&base).await.has("tickr_order_keys_blocked", &[]).then_some(())
    })
    .await;
    proxy.halt_at("SELECT", 1, Halt::Held);
    until_mysql_is(0.0, &base).await;
    proxy.let_in();
    until_mysql_is(1.0, &base).await;
    drop(runner);
    tickr.stop().await;
}

/// The time limits of all reads together are longer than the test waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_mysql_that_stops_amid_the_counts_is_told_before_they_all_time_out() {
    let tickr = idle().await;
    let proxy = Proxy::start(tickr.config.mysql_url().unwrap().expose()).await;
    let (runner, base) = runner_behind(&proxy, &tickr).await;
    proxy.halt_at(COUNT, 1, Halt::Held);
    eventually("MySQL stops", || async {
        let page = scrape(&base).await;
        (proxy.has_halted() && page.sum("tickr_up", &[("server", "mysql")]) == 1.0).then_some(())
    })
    .await;
    until_mysql_is(0.0, &base).await;
    proxy.let_in();
    until_mysql_is(1.0, &base).await;
    drop(runner);
    tickr.stop().await;
}

/// It cannot be read then whether the API key was revoked. Without figures, no alert would tell of MySQL.
#[tokio::test(flavor = "multi_thread")]
async fn a_scrape_with_an_api_key_tells_of_an_outage_that_outlasts_the_hold() {
    let tickr = idle().await;
    let proxy = Proxy::start(tickr.config.mysql_url().unwrap().expose()).await;
    let (runner, base) = runner_behind(&proxy, &tickr).await;
    let url = tickr.url("");
    let admin = make_api_key(&url, "", "ops", json!({"scope": "admin"})).await;
    let former = make_api_key(&url, &admin, "former", json!({"scope": "read"})).await;
    assert_eq!(call(&url, Method::DELETE, "/v1/api-keys/former", &admin, None).await.status, 200);
    let key = make_api_key(&url, &admin, "prometheus", json!({"scope": "read"})).await;
    let page = async |key: &str| http().get(format!("{base}/metrics")).bearer_auth(key).send().await.unwrap();
    let up = async || {
        let answer = page(&key).await;
        assert_eq!(answer.status(), 200);
        Page::parse(&answer.text().await.unwrap()).sum("tickr_up", &[("server", "mysql")])
    };
    // The process learns of the revocation no later than of this API key.
    eventually("the process knows the API key", async || {
        let answer = call(&base, Method::GET, "/v1/whoami", &key, None).await;
        (answer.body["actor"] == "key:prometheus").then_some(())
    })
    .await;
    eventually("tickr_up of MySQL is 1", async || (up().await == 1.0).then_some(())).await;
    proxy.halt_at("SELECT", 1, Halt::Held);
    eventually("the API key does not hold any more, and tickr_up of MySQL is 0", async || {
        let held = call(&base, Method::GET, "/v1/whoami", &key, None).await.status == 200;
        (up().await == 0.0 && !held).then_some(())
    })
    .await;
    // The end of an API key that was read before still counts.
    assert_eq!(page(&former).await.status(), 401);
    proxy.let_in();
    eventually("the API key holds again", async || {
        (call(&base, Method::GET, "/v1/whoami", &key, None).await.status == 200).then_some(())
    })
    .await;
    drop(runner);
    tickr.stop().await;
}

/// An operator who reads of too many busy connections must find each pool of the page in the table.
#[tokio::test(flavor = "multi_thread")]
async fn the_table_names_every_pool_of_the_page() {
    let tickr = idle().await;
    let runner = Runner::start(&tickr, &[]);
    let base = runner.base().await;
    let pools = eventually("the page has the pools", || async {
        let page = scrape(&base).await;
        let of_pools = page.samples.into_iter().filter(|sample| sample.name == "tickr_pool_connections");
        let pools: BTreeSet<String> = of_pools.filter_map(|mut sample| sample.labels.remove("pool")).collect();
        (!pools.is_empty()).then_some(pools)
    })
    .await;
    let help = metric("tickr_pool_connections").unwrap().help;
    for pool in pools {
        let is_word = |word: &str| word == pool;
        assert!(help.split(|c: char| !c.is_ascii_alphanumeric()).any(is_word), "{pool} is not in: {help}");
    }
    tickr.stop().await;
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_documents_have_the_table_of_this_binary() {
    let page = fs::read_to_string(root().join("docs/METRICS.md")).unwrap();
    let (_, rest) = page.split_once("<!-- metrics: made from internal/telemetry/metric_table.rs -->\n").unwrap();
    let (table, _) = rest.split_once("<!-- end of metrics -->").unwrap();
    assert_eq!(
        table.trim(),
        metrics_table().trim(),
        "put this between the marks of docs/METRICS.md:\n{}",
        metrics_table()
    );
}

#[test]
fn what_the_sources_count_is_in_the_table() {
    fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                found.push(path);
            }
        }
    }
    let mut files = Vec::new();
    sources(&root().join("internal"), &mut files);
    let mut counted = 0;
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for word in ["counter", "gauge", "histogram"] {
            for (at, open) in text.match_indices(&format!("{word}!(")) {
                let rest = text[at + open.len()..].trim_start();
                let Some(name) = rest.strip_prefix('"').and_then(|rest| rest.split('"').next()) else { continue };
                let metric = metric(name).unwrap_or_else(|| panic!("{}: {name} is not in the table", file.display()));
                assert_eq!(metric.type_word(), word, "{}: {name}", file.display());
                counted += 1;
            }
        }
    }
    assert!(counted > 25, "{counted}");
}

/// Return the names of tickr's metrics in an expression, each with the labels that the expression selects. Strings are
/// left out.
fn asked(expression: &str) -> Vec<(String, Vec<String>)> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (at, _) in expression.match_indices("tickr_") {
        if expression[..at].ends_with(word) {
            continue;
        }
        let rest = &expression[at..];
        let end = rest.find(|c| !word(c)).unwrap_or(rest.len());
        let (name, rest) = rest.split_at(end);
        let selector = rest.strip_prefix('{').and_then(|rest| rest.split_once('}')).map_or("", |(inside, _)| inside);
        let labels = selector.split(',').filter_map(|one| one.split(['=', '!']).next()).map(str::trim);
        found.push((name.to_owned(), labels.filter(|label| !label.is_empty()).map(str::to_owned).collect()));
    }
    found
}

/// Return each selector inside `function(…[window])`, with its window.
fn over_windows<'a>(expression: &'a str, function: &str) -> Vec<(&'a str, &'a str)> {
    let opening = format!("{function}(");
    let insides = expression.split(opening.as_str()).skip(1).map(|call| call.split_once(']').unwrap().0);
    insides.map(|inside| inside.split_once('[').unwrap()).collect()
}

/// Return the labels that an expression groups by.
fn grouped(expression: &str) -> Vec<String> {
    let lists = expression.split("by (").skip(1).filter_map(|rest| rest.split(')').next());
    lists.flat_map(|list| list.split(',')).map(|label| label.trim().to_owned()).collect()
}

/// Check that every name in an expression is a series of the page, and that every label belongs to it, to the histogram
/// buckets or to the scrape.
fn hold(place: &str, expression: &str) -> BTreeSet<&'static str> {
    let asked = asked(expression);
    assert!(!asked.is_empty(), "{place} uses no metric: {expression}");
    let mut names = BTreeSet::new();
    let mut known = BTreeSet::from(["job", "instance", "le"]);
    for (name, labels) in &asked {
        let metric = metric_of_series(name).unwrap_or_else(|| panic!("{place}: there is no {name}"));
        for label in labels {
            let there = metric.labels.contains(&label.as_str()) || ["job", "instance"].contains(&label.as_str());
            assert!(there, "{place}: {name} has no label {label}");
        }
        if metric.of == Of::All {
            // Every runner reports this value, so a sum over runners would count it several times.
            let before = &expression[..expression.find(name.as_str()).unwrap()];
            let innermost = ["sum", "max", "min", "delta", "absent"].into_iter().max_by_key(|word| before.rfind(word));
            assert_ne!(innermost, Some("sum"), "{place}: {name} is the same from every runner");
        }
        known.extend(metric.labels);
        names.insert(metric.name);
    }
    for label in grouped(expression) {
        assert!(known.contains(label.as_str()), "{place} groups by {label}, which none of its metrics has");
    }
    let (open, close) = (expression.matches('(').count(), expression.matches(')').count());
    assert_eq!(open, close, "{place}: {expression}");
    names
}

#[test]
fn the_dashboard_asks_for_what_there_is_and_shows_all_of_it() {
    let text = fs::read_to_string(root().join("docs/grafana/tickr.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let variables: Vec<&str> =
        dashboard["templating"]["list"].as_array().unwrap().iter().filter_map(|v| v["name"].as_str()).collect();
    assert_eq!(variables, ["datasource", "job"]);
    let mut ids = BTreeSet::new();
    let mut shown = BTreeSet::new();
    let mut taken: BTreeSet<(u64, u64)> = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}");
        let grid = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        for cell in
            (grid("x")..grid("x") + grid("w")).flat_map(|x| (grid("y")..grid("y") + grid("h")).map(move |y| (x, y)))
        {
            assert!(cell.0 < 24 && taken.insert(cell), "{title} lies on another panel");
        }
        if panel["type"] == "row" {
            continue;
        }
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        for target in panel["targets"].as_array().unwrap() {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
            shown.extend(hold(title, target["expr"].as_str().unwrap()));
        }
    }
    let hidden: Vec<&str> = METRICS.iter().map(|metric| metric.name).filter(|name| !shown.contains(name)).collect();
    assert!(hidden.is_empty(), "no panel shows {hidden:?}");
}

/// Load the alert rules.
fn alert_rules() -> Yaml {
    let text = fs::read_to_string(root().join("docs/prometheus/alerts.yaml")).unwrap();
    let mut documents = YamlLoader::load_from_str(&text).unwrap();
    assert_eq!(documents.len(), 1);
    documents.remove(0)
}

/// `increase` of a series that begins within the window does not count its first value. A counter with labels may begin
/// with the event that an alert is about.
#[test]
fn alerts_fire_at_the_first_event_of_a_counter_with_labels() {
    let rules = alert_rules();
    let mut watched = BTreeSet::new();
    for rule in rules["groups"].as_vec().unwrap().iter().flat_map(|group| group["rules"].as_vec().unwrap()) {
        let (name, expression) = (rule["alert"].as_str().unwrap(), rule["expr"].as_str().unwrap());
        let counted = over_windows(expression, "increase").into_iter().chain(over_windows(expression, "delta"));
        for (selector, window) in counted {
            let series = selector.split('{').next().unwrap();
            let metric = metric(series).unwrap_or_else(|| panic!("{name}: there is no {series}"));
            if metric.labels.is_empty() {
                continue;
            }
            let before = format!("{selector} offset {window}");
            // A new runner shows the figures of all from its start, so these are new only if no runner had them.
            let latest = |series: &str| format!("max by (job, kind) ({series})");
            let begins = match metric.of {
                Of::All => format!("({} unless {})", latest(selector), latest(&before)),
                Of::Runner => format!("({selector} unless {before})"),
            };
            assert!(expression.contains(&begins), "{name} lacks {begins}");
            watched.insert(name);
        }
    }
    assert_eq!(
        watched,
        BTreeSet::from(["TickrDeadLettersGrow", "TickrHandlersBlock", "TickrLeasesLost", "TickrTicksMissed"])
    );
}

/// A dead runner is silent between one lease and two. Prometheus evaluates rules once a minute unless it is told
/// otherwise, so an alert about the value of that moment, or one that waits, misses it.
#[test]
fn the_alert_about_silent_runners_looks_back_and_does_not_wait() {
    let rules = alert_rules();
    let mut about = 0;
    for rule in rules["groups"].as_vec().unwrap().iter().flat_map(|group| group["rules"].as_vec().unwrap()) {
        let expression = rule["expr"].as_str().unwrap();
        if expression.contains("tickr_runners_silent") {
            assert_eq!(over_windows(expression, "max_over_time"), [("tickr_runners_silent", "5m")]);
            // A runner that was cut off within that window saw the others as they were before. The first scrape after
            // an outage may still show all of them as silent, so the window of `tickr_up` also has the scrape before.
            assert_eq!(over_windows(expression, "min_over_time"), [("tickr_up{server=\"mysql\"}", "6m")]);
            assert!(rule["for"].is_badvalue(), "{expression}");
            about += 1;
        }
    }
    assert_eq!(about, 1);
}

/// Return the expression of an alert on one line.
fn expression_of(name: &str) -> String {
    let rules = alert_rules();
    let groups = rules["groups"].as_vec().unwrap();
    let mut all = groups.iter().flat_map(|group| group["rules"].as_vec().unwrap());
    let rule = all.find(|rule| rule["alert"].as_str() == Some(name)).unwrap();
    rule["expr"].as_str().unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The API of the Helm chart has no workers. Remote workers are runners with workers, and an idle fleet may be scaled to
/// none.
#[test]
fn the_alert_about_runners_fires_when_only_processes_without_workers_are_left() {
    let expression = expression_of("TickrNoRunner");
    let alone = "or max by (job) (tickr_runners_with_workers and on (job, instance) tickr_up{server=\"mysql\"} == 1) == 0 \
                 and max by (job) (tickr_oldest_due_seconds and on (job, instance) tickr_reading_age_seconds < 180) > 60";
    assert!(expression.contains(alone), "{expression}");
}

/// A runner that is cut off from MySQL keeps the figures of its last reading. By `min` a low one would hide what the
/// others see, and so would a high `up` by `max`.
#[test]
fn a_runner_that_is_cut_off_hides_no_alert_about_the_outbox() {
    let fresh = |series: &str| format!("({series} and on (job, instance) tickr_reading_age_seconds < 180)");
    for (alert, figures, bound) in [
        ("TickrOutboxLate", format!("max by (job) {}", fresh("tickr_outbox_oldest_seconds")), "> 30"),
        ("TickrOutboxSourceDown", format!("min by (job, source) {}", fresh("tickr_outbox_source_up")), "== 0"),
        (
            "TickrOutboxSourceLate",
            format!("max by (job, source) {}", fresh("tickr_outbox_source_oldest_seconds")),
            "> 60",
        ),
    ] {
        assert_eq!(expression_of(alert), format!("{figures} {bound}"));
    }
}

/// A figure of the whole fleet that a runner read before it was cut off would fire an alert, or hold one up, for as long
/// as the runner lives. While MySQL takes no writes every runner seems silent, and `tickr_up` says so. Figures that grow
/// within a window end by themselves when they stand still.
#[test]
fn a_runner_that_is_cut_off_takes_part_in_no_alert_about_the_fleet() {
    let rules = alert_rules();
    let mut guarded = BTreeSet::new();
    for rule in rules["groups"].as_vec().unwrap().iter().flat_map(|group| group["rules"].as_vec().unwrap()) {
        let name = rule["alert"].as_str().unwrap();
        let expression = expression_of(name);
        if !over_windows(&expression, "increase").is_empty() || !over_windows(&expression, "delta").is_empty() {
            continue;
        }
        for (figure, _) in asked(&expression) {
            if metric_of_series(&figure).unwrap().of != Of::All {
                continue;
            }
            let guard = match figure.as_str() {
                "tickr_runners_silent" => {
                    "[5m]) and on (job, instance) min_over_time(tickr_up{server=\"mysql\"}[6m]) == 1)"
                }
                "tickr_runners" | "tickr_runners_with_workers" => {
                    " and on (job, instance) tickr_up{server=\"mysql\"} == 1)"
                }
                _ => " and on (job, instance) tickr_reading_age_seconds < 180)",
            };
            assert!(expression.contains(&format!("({figure}{guard}")), "{name}: {figure} has no guard: {expression}");
            guarded.insert(figure);
        }
    }
    assert_eq!(guarded.len(), 11, "{guarded:?}");
}

/// The engineer on call begins with the name of the alert, or with the link that it carries. Both lead to the same part.
#[test]
fn the_pages_of_the_night_have_every_alert() {
    let night = documents::document("docs/NIGHT.md");
    let anchors = night.anchors();
    let rows: Vec<&str> = night.text.lines().filter(|line| line.starts_with('|') && line.contains("](#")).collect();
    let rules = alert_rules();
    for rule in rules["groups"].as_vec().unwrap().iter().flat_map(|group| group["rules"].as_vec().unwrap()) {
        let name = format!("`{}`", rule["alert"].as_str().unwrap());
        let row = rows.iter().find(|row| row.contains(&name));
        let row = row.unwrap_or_else(|| panic!("no symptom of docs/NIGHT.md has {name}"));
        let page = rule["annotations"]["runbook_url"].as_str().unwrap_or_else(|| panic!("{name} has no runbook_url"));
        let anchor = page.strip_prefix("docs/NIGHT.md#").unwrap_or_else(|| panic!("{name}: {page}"));
        assert!(anchors.iter().any(|heading| heading == anchor), "{name}: docs/NIGHT.md has no part {anchor}");
        assert!(row.contains(&format!("](#{anchor})")), "{name}: its symptom does not lead to {anchor}");
    }
}

#[test]
fn the_alert_rules_ask_for_what_there_is_and_say_what_to_do() {
    let rules = alert_rules();
    let mut names = BTreeSet::new();
    for group in rules["groups"].as_vec().unwrap() {
        for rule in group["rules"].as_vec().unwrap() {
            let name = rule["alert"].as_str().unwrap();
            assert!(names.insert(name) && name.starts_with("Tickr"), "{name}");
            hold(name, rule["expr"].as_str().unwrap());
            let severity = rule["labels"]["severity"].as_str();
            assert!(matches!(severity, Some("page" | "ticket")), "{name}: {severity:?}");
            for part in ["summary", "description"] {
                assert!(rule["annotations"][part].as_str().is_some_and(|text| text.len() > 15), "{name} has no {part}");
            }
            // The labels that an annotation shows must remain after the grouping.
            let texts = format!("{:?}", rule["annotations"]);
            for (at, mark) in texts.match_indices("$labels.") {
                let rest = &texts[at + mark.len()..];
                let label = &rest[..rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap()];
                let groups = grouped(rule["expr"].as_str().unwrap());
                assert!(groups.iter().any(|group| group == label), "{name} shows {label}, which is grouped away");
            }
        }
    }
    for wanted in
        ["TickrLate", "TickrBacklogOld", "TickrNoRunner", "TickrMysqlDown", "TickrIndexDegraded", "TickrLeasesLost"]
    {
        assert!(names.contains(wanted), "{wanted}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn samples_take_no_memory_of_a_runner_whose_page_is_not_read() {
    const ROUNDS: u64 = 4;
    const SAMPLES: u64 = 500_000;
    let tickr = TestApp::start_with(|config| config.queues = vec!["elsewhere".into()], Registry::new()).await;
    let runner = Runner::start_program(&tickr, &example("version_old").await, &[("TICKR_LEASE", "30s")]);
    let base = runner.base().await;
    let before = runner.memory_kib();
    for round in 1..=ROUNDS {
        // Only the runner knows the kind.
        let job = json!({"kind": "measure", "payload": {"samples": SAMPLES}});
        let accepted = call(&base, Method::POST, "/v1/jobs", "", Some(job)).await;
        assert_eq!(accepted.status, 201, "{:#}", accepted.body);
        tickr.until(accepted.body["id"].as_str().unwrap().parse().unwrap(), State::Completed).await;
        // The row of this slot is written when it has ended, and then the samples are counted.
        let slots = "SELECT COUNT(DISTINCT at) FROM samples WHERE step = 5 AND completed > 0";
        eventually("the slot ends", || async {
            (tickr.count(slots).await >= i64::try_from(round).unwrap()).then_some(())
        })
        .await;
    }
    // Each sample has 16 bytes: all of them would take 31,200 KiB, and those of one round take 7,800.
    let grown = runner.memory_kib().saturating_sub(before);
    assert!(grown < 20_000, "{grown} KiB");
    let page = http().get(format!("{base}/metrics")).send().await.unwrap().text().await.unwrap();
    let counted = page.lines().find_map(|line| line.strip_prefix("tickr_claim_seconds_count ")).unwrap();
    let counted: u64 = counted.parse().unwrap();
    assert!((ROUNDS * SAMPLES..ROUNDS * SAMPLES + 100).contains(&counted), "{counted}");
    tickr.stop().await;
}
