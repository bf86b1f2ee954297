//! The history that charts show: the same from every runner, complete, and bounded in size.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::TimeDelta;
use serde_json::{Value, json};
use sqlx::Executor;
use tickr::config::Config;
use tickr::handlers::Registry;
use tickr::job::{Histogram, RunnerId, Series, SlotWidth, Span, State, Tally, Timestamp, Verdict};
use tickr::store::{Figures, Sample};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::support::{Pulse, TestApp, answer, eventually, http, is_full, while_unavailable};

const COUNTS: [&str; 4] = ["accepted", "completed", "failed", "ended"];
const DURATIONS: [&str; 4] = ["lateness_p50_ms", "lateness_p99_ms", "run_p50_ms", "run_p99_ms"];

/// Configure a tickr that accepts jobs and runs none of them.
fn bystander(config: &mut Config) {
    config.queues = vec!["elsewhere".into()];
}

/// Return the sums of the columns: rates times seconds.
fn sums(answer: &Value, columns: &Value) -> [u64; 4] {
    let (step, last) = (answer["step_ms"].as_f64().unwrap() / 1e3, answer["last_ms"].as_f64().unwrap() / 1e3);
    COUNTS.map(|name| {
        let rates: Vec<f64> = columns[name].as_array().unwrap().iter().map(|rate| rate.as_f64().unwrap()).collect();
        let (end, before) = rates.split_last().unwrap();
        let counts = before.iter().map(|rate| (rate * step).round() as u64).sum::<u64>();
        counts + (end * last).round() as u64
    })
}

async fn read(tickr: &TestApp, path: &str) -> Value {
    let answer = while_unavailable(async || tickr.get(path).await).await;
    assert_eq!(answer.status, 200, "{:#}", answer.body);
    answer.body
}

async fn history(tickr: &TestApp, query: &str) -> Value {
    read(tickr, &format!("/v1/history?{query}")).await
}

/// Wait until the history of a span has these sums.
async fn until_sums(tickr: &TestApp, query: &str, wanted: [u64; 4]) {
    let mut seen = [0; 4];
    let what = format!("the history of {query} adds up to {wanted:?}");
    let found = async {
        loop {
            let answer = history(tickr, query).await;
            seen = sums(&answer, &answer["points"]);
            if seen == wanted {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    if tokio::time::timeout(crate::support::DEADLINE, found).await.is_err() {
        panic!("gave up waiting until {what}; it adds up to {seen:?}");
    }
}

/// Return a row of a runner that does not exist.
fn sample(step: SlotWidth, at: Timestamp, series: Series, tally: &Tally) -> Sample {
    Sample { step, at, series, counted_to: at + step.width(), figures: Figures::from(tally) }
}

fn queue(name: &str) -> Series {
    Series::Queue(name.parse().unwrap())
}

fn runner(n: usize) -> RunnerId {
    RunnerId::from_stored(format!("gone/{n}-00000000"))
}

fn lateness(ms: impl IntoIterator<Item = u64>) -> Tally {
    let mut tally = Tally::default();
    for ms in ms {
        tally.lateness.count(Duration::from_millis(ms));
        tally.record_settled(Verdict::Succeeded, State::Completed);
    }
    tally
}

#[tokio::test(flavor = "multi_thread")]
async fn the_history_is_the_same_from_every_runner_and_adds_up_to_what_was_accepted_and_ended() {
    let two = |config: &mut Config| config.queues = vec!["default".into(), "mail".into()];
    let tickr = TestApp::start_with(two, Registry::new()).await;
    let other = tickr.another_with(|_| {}, Registry::new()).await;
    let jobs = (0..300).map(|n| match n % 3 {
        0 => json!({"kind": "noop"}),
        1 => json!({"kind": "sleep", "payload": {"ms": 5}, "queue": "mail"}),
        _ => json!({"kind": "fail", "payload": {"times": 1}, "retry": {"base_ms": 1}, "queue": "mail"}),
    });
    tickr.enqueue_many(jobs).await;
    // Some jobs go through the other runner one by one, and fail for good.
    for _ in 0..10 {
        let job = json!({"kind": "fail", "payload": {"permanent": true}});
        answer(http().post(format!("http://{}/v1/jobs", other.addr())).json(&job)).await;
    }
    tickr.until_idle().await;
    let failed =
        "SELECT COUNT(*) FROM attempts WHERE verdict IN ('failed', 'rejected', 'timed_out', 'panicked', 'lost')";
    assert_eq!(tickr.count(failed).await, 110);
    for span in ["5m", "1h", "24h"] {
        until_sums(&tickr, &format!("span={span}"), [310, 300, 110, 310]).await;
    }
    until_sums(&tickr, "span=5m&queue=mail", [200, 200, 100, 200]).await;
    until_sums(&tickr, "span=1h&queue=default", [110, 100, 10, 110]).await;
    until_sums(&tickr, "span=1h&queue=nobodys", [0; 4]).await;
    assert_eq!(tickr.count("SELECT COUNT(DISTINCT runner) FROM samples").await, 2, "both runners counted some");

    // Every runner answers with the same columns.
    eventually("both runners give the same", || async {
        let there = answer(http().get(format!("http://{}/v1/history?span=24h", other.addr()))).await.body;
        let here = history(&tickr, "span=24h").await;
        (here["last_ms"] == there["last_ms"] && here["points"] == there["points"]).then_some(())
    })
    .await;
    let queues = read(&tickr, "/v1/history/queues?span=1h").await;
    let each = queues["queues"].as_array().unwrap();
    let names: Vec<&str> = each.iter().map(|queue| queue["queue"].as_str().unwrap()).collect();
    assert_eq!((names, &queues["more"]), (vec!["mail", "default"], &json!(false)));
    assert_eq!(sums(&queues, &each[0]), [200, 200, 100, 200]);
    assert_eq!(sums(&queues, &each[1]), [110, 100, 10, 110]);

    // A stop writes the open slot too, including events that came during the stop. What MySQL has not accepted within
    // two seconds is lost, so a stop during which the machine stood still proves nothing, and another runner stops.
    let pulse = Pulse::start(&tickr).await;
    let (mut other, mut stops) = (other, 0);
    let stopped = loop {
        let queue = format!("stop-{stops}");
        let job = json!({"kind": "noop", "queue": queue, "delay_ms": 3_600_000});
        let made = answer(http().post(format!("http://{}/v1/jobs", other.addr())).json(&job)).await;
        assert_eq!(made.status, 201, "{:#}", made.body);
        let began = Instant::now();
        other.stop(CancellationToken::new()).await;
        if pulse.longest_pause(began, Instant::now()) < Duration::from_secs(1) {
            break format!("span=24h&queue={queue}");
        }
        (other, stops) = (tickr.another_with(|_| {}, Registry::new()).await, stops + 1);
    };
    until_sums(&tickr, &stopped, [1, 0, 0, 0]).await;
    let tickr = tickr.restart().await;
    until_sums(&tickr, &stopped, [1, 0, 0, 0]).await;
    until_sums(&tickr, "span=24h&queue=default", [110, 100, 10, 110]).await;
    until_sums(&tickr, "span=24h&queue=mail", [200, 200, 100, 200]).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn percentiles_of_all_runners_together_are_within_the_documented_error() {
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    let store = tickr.app.broker().store();
    for (span, step) in
        [(Span::FiveMinutes, SlotWidth::FiveSeconds), (Span::Hour, SlotWidth::Minute), (Span::Day, SlotWidth::Quarter)]
    {
        let at = step.floor(store.clock().now()) - step.width() * 3;
        // The lateness is 1 to 900 ms on the first runner and 901 to 1,000 ms on the second. Neither runner alone knows
        // the percentiles of both.
        for (n, tally) in [lateness(1..=900), lateness(901..=1_000)].iter().enumerate() {
            let rows = [Series::All, queue("mail")].map(|series| sample(step, at, series, tally));
            store.write_samples(&runner(n), rows.to_vec()).await.unwrap();
            // A repeated write, after a lost answer, is not counted twice. Neither is an older row that comes late.
            store.write_samples(&runner(n), rows.to_vec()).await.unwrap();
            let late =
                Sample { counted_to: at + TimeDelta::seconds(1), ..sample(step, at, Series::All, &lateness([1])) };
            store.write_samples(&runner(n), vec![late]).await.unwrap();
        }
        let queues = read(&tickr, &format!("/v1/history/queues?span={span}")).await;
        let mail = queues["queues"][0].clone();
        for columns in [history(&tickr, &format!("span={span}")).await["points"].clone(), mail] {
            let place = columns["lateness_p50_ms"].as_array().unwrap().iter().position(|ms| !ms.is_null()).unwrap();
            for (name, exact) in [("lateness_p50_ms", 500.0), ("lateness_p99_ms", 990.0)] {
                let read = columns[name][place].as_f64().unwrap();
                assert!((read - exact).abs() <= exact * Histogram::MAX_ERROR + 0.1, "{span} {name}: {read}");
            }
            let rate = columns["completed"][place].as_f64().unwrap();
            assert_eq!((rate * f64::from(step.seconds())).round(), 1_000.0, "{span}");
        }
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_step_is_there_and_gaps_are_zeros() {
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    let store = tickr.app.broker().store();
    for (span, step, steps) in
        [("5m", SlotWidth::FiveSeconds, 60), ("1h", SlotWidth::Minute, 60), ("24h", SlotWidth::Quarter, 96)]
    {
        let at = step.floor(store.clock().now()) - step.width() * 10;
        let rows =
            vec![sample(step, at, Series::All, &lateness([7, 7])), sample(step, at, queue("a"), &lateness([7, 7]))];
        store.write_samples(&runner(1), rows).await.unwrap();
        let answer = history(&tickr, &format!("span={span}")).await;
        assert_eq!((&answer["span"], &answer["step_ms"]), (&json!(span), &json!(u32::from(step.seconds()) * 1_000)));
        let points = &answer["points"];
        let moments: Vec<i64> = points["at_ms"].as_array().unwrap().iter().map(|ms| ms.as_i64().unwrap()).collect();
        assert_eq!(moments.len(), steps);
        assert!(moments.windows(2).all(|pair| pair[1] - pair[0] == i64::from(step.seconds()) * 1_000));
        let end = moments.last().unwrap() + answer["last_ms"].as_i64().unwrap();
        let behind =
            chrono::DateTime::parse_from_rfc3339(answer["at"].as_str().unwrap()).unwrap().timestamp_millis() - end;
        assert!((2_000..7_000).contains(&behind), "{span} ends {behind} ms ago");
        let place = moments.iter().position(|ms| *ms == at.timestamp_millis()).unwrap();
        for name in COUNTS {
            let column = points[name].as_array().unwrap();
            let zeros = column.iter().enumerate().all(|(at, rate)| at == place || rate == &json!(0.0));
            assert!(column.len() == steps && zeros, "{name}: {column:?}");
        }
        for name in DURATIONS {
            let column = points[name].as_array().unwrap();
            let nulls = column.iter().enumerate().all(|(at, ms)| at == place || ms.is_null());
            assert!(column.len() == steps && nulls, "{name}: {column:?}");
        }
        assert_eq!(sums(&answer, points), [0, 2, 0, 2]);
        assert!(points["run_p50_ms"][place].is_null(), "nothing ran");
        assert_eq!(sums(&answer, &history(&tickr, &format!("span={span}&queue=b")).await["points"]), [0; 4]);
    }
    assert_eq!(tickr.get("/v1/history").await.body["span"], "1h");
    for (path, wrong) in [
        ("/v1/history?span=1d", "span"),
        ("/v1/history/queues?span=7d", "span"),
        ("/v1/history?queue=No%20Name", "queue"),
        ("/v1/history?queue=", "queue"),
    ] {
        let answer = tickr.get(path).await;
        assert_eq!((answer.status, answer.pointers()), (422, vec![wrong]), "{path}");
    }
    assert_eq!(tickr.get("/v1/history?by=kind").await.status, 422);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn old_rows_go_and_young_ones_stay() {
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    let now = tickr.app.broker().store().clock().now();
    for step in SlotWidth::ALL {
        // On a slow machine minutes pass before the young ones are looked at.
        let spare = (step.width() * 2).max(TimeDelta::minutes(5));
        for at in [now - step.keep() - step.width() * 2, now - step.keep() + spare] {
            let rows: Vec<Sample> =
                (0..200).map(|n| sample(step, step.floor(at), queue(&format!("q{n}")), &lateness([1]))).collect();
            for n in 0..6 {
                tickr.app.broker().store().write_samples(&runner(n), rows.clone()).await.unwrap();
            }
        }
    }
    // A runner checks for old rows soon after it starts, and two runners that do so at once do not disturb each other.
    let others = [tickr.another().await, tickr.another().await];
    tickr.until_count("SELECT COUNT(*) FROM samples WHERE runner LIKE 'gone/%'", 3 * 1_200).await;
    for step in SlotWidth::ALL {
        let oldest = format!("SELECT COUNT(*) FROM samples WHERE step = {} AND queue = 'q7'", step.seconds());
        let left: i64 =
            sqlx::query_scalar(sqlx::AssertSqlSafe(oldest)).fetch_one(&mut tickr.mysql().await).await.unwrap();
        assert_eq!(left, 6, "{step:?}");
    }
    assert!(!tickr.app.broker().store().purge_samples().await.unwrap());
    for other in others {
        other.stop(CancellationToken::new()).await;
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_whose_database_is_away_goes_on_and_writes_the_history_when_it_is_back() {
    let tickr = TestApp::start_alone(|_| {}, |_| {}).await;
    tickr.enqueue_many((0..50).map(|_| json!({"kind": "noop"}))).await;
    tickr.until_idle().await;
    let errors = async || {
        let page = tickr.get("/metrics").await.body;
        let page = page.as_str().unwrap().to_owned();
        let line = page.lines().find(|line| line.starts_with("tickr_samples_errors_total")).unwrap().to_owned();
        line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()
    };
    // The samples of these jobs are not in the tables when MySQL dies, however long the others took: they wait for a
    // lock.
    let mut lock = tickr.mysql().await;
    lock.execute("SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE").await.unwrap();
    lock.execute("START TRANSACTION").await.unwrap();
    lock.execute("SELECT * FROM samples FOR UPDATE").await.unwrap();
    let later = tickr.enqueue_many((0..5).map(|_| json!({"kind": "noop", "delay_ms": 3_600_000}))).await.len() as u64;
    let (before, killed) = (errors().await, Instant::now());
    tickr.services().mysql().kill9().unwrap();
    // Tests beside this one count in the same metric, so the slot of the jobs has to end as well.
    let slot = SlotWidth::FiveSeconds.width().to_std().unwrap() + Duration::from_secs(1);
    let failed = async || errors().await > before && killed.elapsed() > slot;
    eventually("a write failed", || async { failed().await.then_some(()) }).await;
    tickr.services().mysql().start_again().unwrap();
    let more = eventually("mysql takes jobs again", || async {
        let made = tickr.post("/v1/jobs", json!({"kind": "noop"})).await;
        (made.status == 201).then(|| made.body["id"].as_str().unwrap().parse().unwrap())
    });
    tickr.until(more.await, State::Completed).await;
    let jobs = tickr.count("SELECT COUNT(*) FROM jobs").await.unsigned_abs();
    until_sums(&tickr, "span=24h", [jobs, jobs - later, 0, jobs - later]).await;
    assert_eq!(jobs, 51 + later);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_any_number_of_queues_two_hundred_have_a_history_and_the_rest_share_one() {
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    let jobs = |from: usize| (from..from + 260).map(|n| json!({"kind": "noop", "queue": format!("q{n}")}));
    tickr.enqueue_many(jobs(0)).await;
    tickr.enqueue_many([json!({"kind": "noop", "queue": "elsewhere", "delay_ms": 3_600_000})]).await;
    until_sums(&tickr, "span=24h", [261, 0, 0, 0]).await;
    let kept = tickr.count("SELECT COUNT(DISTINCT queue) FROM samples WHERE queue NOT IN ('', '_other')").await;
    let others = history(&tickr, "span=24h&queue=_other").await;
    // If a new quarter of an hour begins during the test, more queues get a history of their own.
    let shared = sums(&others, &others["points"])[0];
    assert!(
        kept <= 400 && i64::try_from(shared).unwrap() + kept >= 261 && shared > 0 && kept >= 200,
        "{kept} {shared}"
    );
    // A queue that this runner serves has a history of its own, even when its first job comes last.
    until_sums(&tickr, "span=24h&queue=elsewhere", [1, 0, 0, 0]).await;
    let queues = read(&tickr, "/v1/history/queues?span=24h").await;
    let each = queues["queues"].as_array().unwrap();
    assert_eq!((each.len(), &queues["more"], &each[0]["queue"]), (100, &json!(true), &json!("_other")));
    assert_eq!(sums(&queues, &each[0])[0], shared);
    tickr.stop().await;
}

/// The bound of a chart, beside stalls of the machine. It is generous, for an unoptimised build on a machine that is three
/// times as busy as usual.
const QUICK: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread")]
async fn a_chart_is_read_quickly_from_full_tables() {
    read_charts_quickly().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "has the whole size with TICKR_TEST_FULL, which `make test-long` sets"]
async fn a_chart_is_read_quickly_from_tables_of_the_whole_retention() {
    read_charts_quickly().await;
}

/// The cost of a chart with ten runners of twenty queues each, which have samples in every slot that is kept.
async fn read_charts_quickly() {
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    let (runners, queues) = (10, 20);
    let tally = lateness((0..60).map(|n| 1 + n * n * 7));
    let durations = tally.lateness.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let digits = "(SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5 \
                  UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)";
    for step in SlotWidth::ALL {
        let width = i64::from(step.seconds());
        // The table has minutes and quarters for twice the span of a chart, which is all that a chart reads.
        // TICKR_TEST_FULL fills it for the whole retention. A few extra minutes are in the future, because filling
        // takes time.
        let whole = step.keep().num_seconds() / width;
        let kept = match step {
            SlotWidth::Minute if !is_full() => 120,
            SlotWidth::Quarter if !is_full() => 192,
            _ => whole,
        };
        let (ahead, now) = (240 / width + 1, step.floor(tickr.app.broker().store().clock().now()).timestamp());
        let (from, slots) = (now - kept * width, kept + ahead);
        tickr
            .sql(format!(
                "INSERT INTO samples (step, at, queue, runner, counted_to, accepted, completed, failed, ended, lateness, \
                 run_time) SELECT {width}, '1970-01-01' + INTERVAL {from} + s.n * {width} SECOND, q.queue, \
                 CONCAT('gone/', r.d, '-00000000'), '1970-01-01' + INTERVAL {from} + s.n * {width} + {width} SECOND, \
                 60, 60, 0, 60, x'{durations}', x'{durations}' FROM \
                 (SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d AS n FROM {digits} a, {digits} b, {digits} c, {digits} e) s, \
                 (SELECT IF(a.d + 10 * b.d = {queues}, '', CONCAT('q', a.d + 10 * b.d)) AS queue FROM {digits} a, {digits} b \
                 WHERE a.d + 10 * b.d <= {queues}) q, {digits} r WHERE s.n < {slots} AND r.d < {runners}"
            ))
            .await;
    }
    let (pulse, mut slowest) = (Pulse::start(&tickr).await, BTreeMap::new());
    for path in ["/v1/history?", "/v1/history?queue=q3&", "/v1/history/queues?"] {
        for span in Span::ALL {
            let mut took: Vec<Duration> = Vec::new();
            // The median of five, known as soon as three answers were quick.
            while took.len() < 5 && took.iter().filter(|took| **took < QUICK).count() < 3 {
                let began = Instant::now();
                let answer = http().get(tickr.url(&format!("{path}span={span}"))).send().await.unwrap();
                assert_eq!(answer.status(), 200);
                let body = answer.bytes().await.unwrap();
                took.push(pulse.time_since(began));
                assert!(body.len() < 1 << 20, "{path}{span}: {} bytes", body.len());
            }
            took.sort_unstable();
            slowest.insert(format!("{path}span={span}"), took[2]);
        }
    }
    println!("{} rows, medians: {slowest:#?}", tickr.count("SELECT COUNT(*) FROM samples").await);
    let answer = history(&tickr, "span=1h&queue=q3").await;
    assert_eq!(sums(&answer, &answer["points"])[0], 60 * 60 * 10, "every step of every runner");
    assert!(slowest.values().all(|took| *took < QUICK), "{slowest:#?}");
    tickr.stop().await;
}
