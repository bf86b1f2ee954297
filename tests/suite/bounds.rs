//! Limits on the growth of tables and on the cost of reading them: stopped runners, old tallies, and jobs past their
//! retention go, however many there are. A decision that was made before a lock was held is made again under the lock.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;
use sqlx::{AssertSqlSafe, Executor, MySqlConnection, Row};
use tickr::job::{JobId, State};
use tickr::services::Services;
use tickr::store::{HoldReason, KEEP_RUNNERS, Retention, Store, StoreSettings, held_statement};
use tokio_util::sync::CancellationToken;

use crate::support::browser::{Browser, link};
use crate::support::{
    DEADLINE, Halt, Owed, Proxy, TestApp, connect, database, drop_database, eventually, http, server_options,
    table_prefix,
};

const DIGITS: &str = "(SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL \
                      SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)";
const DAY: Duration = Duration::from_secs(86_400);

/// Return SQL for a table of `n` from 0 to 9,999.
fn ten_thousand() -> String {
    format!(
        "(SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d AS n FROM {DIGITS} a, {DIGITS} b, {DIGITS} c, {DIGITS} e) s"
    )
}

/// Return the number of rows that the server has read sequentially, in tables and in indexes.
async fn rows_read(tickr: &TestApp) -> i64 {
    let sql =
        "SHOW GLOBAL STATUS WHERE Variable_name IN ('Handler_read_next', 'Handler_read_prev', 'Handler_read_rnd_next')";
    let rows = sqlx::raw_sql(sql).fetch_all(&mut tickr.mysql().await).await.unwrap();
    rows.iter().map(|row| row.get::<String, _>(1).parse::<i64>().unwrap()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn counting_jobs_costs_the_same_behind_any_backlog_and_says_what_is_a_floor() {
    // The test has its own servers, because it reads their counters. No job runs.
    let tickr = TestApp::start_alone(|_| {}, |config| config.queues = vec!["elsewhere".into()]).await;
    let waiting = |jobs, queue| Owed { jobs, queue, ..Owed::overdue(0) };
    waiting(300, "'mail'").insert_waiting(&tickr, 1).await;
    waiting(2_000, "CONCAT('tenant-', n MOD 10)").insert_waiting(&tickr, 2).await;
    tickr.sql("UPDATE owed SET state = 'retrying', attempt = 1 WHERE queue = 'mail' LIMIT 20").await;
    let stats = tickr.get("/v1/stats").await.body;
    assert_eq!((&stats["exact"], &stats["floors"]), (&json!(true), &json!([])), "{stats:#}");
    assert_eq!((&stats["states"]["waiting"], &stats["states"]["retrying"]), (&json!(2_280), &json!(20)));

    // The jobs of one queue come before the others, more than are counted, and then half as many again.
    let mut costs = Vec::new();
    for (series, jobs) in [(3, 100_000), (4, 50_000)] {
        waiting(jobs, "'default'").insert_waiting(&tickr, series).await;
        let before = rows_read(&tickr).await;
        let stats = tickr.get("/v1/stats").await.body;
        costs.push(rows_read(&tickr).await - before);
        assert_eq!((&stats["exact"], &stats["floors"]), (&json!(false), &json!(["default"])), "{stats:#}");
        let counted = stats["queues"]["default"]["waiting"].as_i64().unwrap();
        assert!((50_000..=100_000).contains(&counted), "{counted}");
        // The counts of the other queues are still exact.
        assert_eq!(stats["queues"]["mail"], json!({"waiting": 280, "retrying": 20}));
        assert_eq!(stats["queues"]["tenant-7"], json!({"waiting": 200}));
    }
    println!("rows read for a count behind 100,000 and 150,000 jobs: {costs:?}");
    // Besides the count, this includes what the loops of the runner read meanwhile.
    assert!(costs[1] < costs[0] + costs[0] / 5 && costs[1] < 300_000, "{costs:?}");
    let exact = |queue: &serde_json::Value| queue["exact"].clone();
    let queues = tickr.get("/v1/queues").await.body;
    assert_eq!(queues["exact"], false);
    for queue in queues["data"].as_array().unwrap() {
        assert_eq!(exact(queue), json!(queue["name"] != "default"), "{queue:#}");
    }
    assert_eq!(exact(&tickr.get("/v1/queues/default").await.body), false);

    // The dashboard shows the difference.
    if let Some(browser) = Browser::shared().await {
        let page = browser.page(&tickr.url("")).await;
        page.visit("/").await;
        page.reads("+ means at least").await;
        page.visit("/queues").await;
        page.reads("not all are counted: + means at least").await;
        let shown = |queue: &str| {
            format!(
                "[...document.querySelectorAll('tr')].some((row) => row.innerText.includes({queue:?}) && row.innerText.includes('k+'))"
            )
        };
        page.has(&link("default")).await;
        assert!(page.eval::<bool>(&shown("default")).await && !page.eval::<bool>(&shown("mail")).await);
        page.assert_calm();
    }
    tickr.stop_broken("its jobs were written by hand").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn counting_held_jobs_costs_the_same_behind_any_backlog() {
    // The test has its own servers, because it reads their counters. No job runs.
    let tickr = TestApp::start_alone(|_| {}, |config| config.queues = vec!["elsewhere".into()]).await;
    // All of them have the same due time.
    let due = "CAST('9999-12-31' AS DATETIME(3)) - INTERVAL n * 1000 MICROSECOND";
    let held = |jobs, queue| Owed { jobs, queue, due, ..Owed::overdue(0) };
    held(300, "'mail'").insert_waiting(&tickr, 1).await;
    let mut costs = Vec::new();
    for (series, jobs) in [(2, 100_000), (4, 50_000)] {
        held(jobs, "'default'").insert_waiting(&tickr, series).await;
        // Jobs that are not held, in front of them.
        Owed::overdue(30_000).insert_waiting(&tickr, series + 1).await;
        tickr.sql("ANALYZE TABLE owed").await;
        let (mut cheapest, mut counts) = (i64::MAX, Vec::new());
        // The loops of the runner count as well now and then, so the cheapest of several counts is the cost of one.
        for _ in 0..4 {
            let before = rows_read(&tickr).await;
            counts = tickr.app.broker().store().held_jobs().await.unwrap();
            cheapest = cheapest.min(rows_read(&tickr).await - before);
        }
        costs.push(cheapest);
        let of = |queue: &str| {
            let found = counts.iter().filter(|count| count.queue.as_str() == queue && count.jobs > 0);
            found.map(|count| (count.reason, count.jobs)).collect::<Vec<_>>()
        };
        assert_eq!(of("mail"), [(HoldReason::OrderKey, 300)]);
        let [(HoldReason::OrderKey, counted)] = of("default")[..] else { panic!("{counts:?}") };
        assert!((50_000..=100_000).contains(&counted), "{counted}");
    }
    println!("rows read for a count of held jobs behind 130,000 and 210,000 jobs: {costs:?}");
    // The counted rows are read once from the index, and once more from the part that was cut off.
    assert!(costs[1] < costs[0] + costs[0] / 5 && costs[1] < 220_000, "{costs:?}");
    let plan = held_statement().replacen("execute_at = ?", "execute_at = '9999-12-31'", 2);
    let plan = plan.replace("queue = ?", "queue = 'default'").replace("priority = ?", "priority = 5");
    let plan = format!("EXPLAIN FORMAT=TRADITIONAL {}", plan.replace("LIMIT ?", "LIMIT 1000"));
    for row in sqlx::raw_sql(AssertSqlSafe(plan)).fetch_all(&mut tickr.mysql().await).await.unwrap() {
        let word = |name| row.try_get::<Option<String>, _>(name).unwrap().unwrap_or_default();
        let told = format!("{} {} {} {}", word("table"), word("key"), word("type"), word("Extra"));
        assert!(word("table") != "owed" || word("key") == "owed_line" && word("type") == "ref", "{told}");
    }
    tickr.stop_broken("its jobs were written by hand").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_job_of_a_key_is_found_without_reading_its_history() {
    // The test has its own servers, because it reads their counters.
    let tickr = TestApp::start_alone(|_| {}, |_| {}).await;
    tickr
        .sql(format!(
            "INSERT INTO order_keys (order_key, head, tail) VALUES ('old', 20001, 20000); \
             INSERT INTO order_places (job_id, order_key, place, due_at, blocks) \
             SELECT UNHEX(CONCAT('0190000000007000', LPAD(HEX(n + 10000 * f.d), 16, '0'))), 'old', 1 + n + 10000 * f.d, \
             UTC_TIMESTAMP(3), TRUE FROM {}, {DIGITS} f WHERE f.d < 2; ANALYZE TABLE order_places",
            ten_thousand()
        ))
        .await;
    let rows_of = async |key: &str, way: &str| {
        let mut job = match way {
            // The end of a success claims the next job.
            "success" => json!({"kind": "noop"}),
            "failure" => json!({"kind": "fail", "payload": {"permanent": true}, "on_failure": "skip"}),
            _ => json!({"kind": "noop", "delay_ms": 600_000}),
        };
        job["order_key"] = json!(key);
        let before = rows_read(&tickr).await;
        let jobs = tickr.enqueue_many((0..8).map(|_| job.clone())).await;
        for id in &jobs {
            if way == "cancel" {
                assert_eq!(tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await.status, 200);
            }
        }
        tickr.until_idle().await;
        rows_read(&tickr).await - before
    };
    for way in ["success", "failure", "cancel"] {
        let (mut of_new, mut of_old) = (i64::MAX, i64::MAX);
        // The loops of the runner count as well now and then, so the cheapest of several rounds is the cost.
        for round in 0..4 {
            of_new = of_new.min(rows_of(&format!("new-{way}-{round}"), way).await);
            of_old = of_old.min(rows_of("old", way).await);
        }
        println!("rows read for eight jobs that end by {way}: {of_new} without a history, {of_old} behind one");
        assert!(of_old < of_new + 10_000, "{way}: {of_old} rows, and {of_new} without a history");
    }
    tickr.sql("DELETE FROM order_places WHERE order_key = 'old' AND place <= 20000").await;

    // The batch that has not ended is found without the ones that ended after it.
    let open = tickr.post("/v1/batches", json!({})).await.body["id"].clone();
    tickr
        .sql(format!(
            "INSERT INTO batches (id, actor, created_at, closed_at, completed_at) \
             SELECT UNHEX(CONCAT('fff0000000007000', LPAD(HEX(n), 16, '0'))), 'anyone', UTC_TIMESTAMP(6), \
             UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) FROM {}; ANALYZE TABLE batches",
            ten_thousand()
        ))
        .await;
    let mut cheapest = i64::MAX;
    for _ in 0..4 {
        let before = rows_read(&tickr).await;
        let listed = tickr.get("/v1/batches?unfinished=true").await.body;
        cheapest = cheapest.min(rows_read(&tickr).await - before);
        assert_eq!((listed["data"].as_array().unwrap().len(), &listed["data"][0]["id"]), (1, &open));
    }
    println!("rows read for the unfinished batch before 10,000 others: {cheapest}");
    assert!(cheapest < 5_000, "{cheapest} rows");
    tickr.sql("DELETE FROM batches").await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn counting_costs_the_same_behind_any_number_of_queues_and_open_dead_letters() {
    // The test has its own servers, because it reads their counters. No job runs.
    let tickr = TestApp::start_alone(|_| {}, |config| config.queues = vec!["elsewhere".into()]).await;
    // The table is too long to be counted as a whole, and no runner serves these queues.
    Owed { queue: "CONCAT('tenant-', n MOD 2000)", ..Owed::overdue(24_000) }.insert_waiting(&tickr, 1).await;
    let letters = |series: u32, tens_of_thousands: u32| {
        format!(
            "INSERT INTO dead_letters (job_id, kind, queue, fingerprint, failed_at, error, since) \
             SELECT UNHEX(CONCAT(LPAD(HEX(1780000000000 + n + 10000 * f.d), 12, '0'), '7{series:03}8000000000000000')), \
             'noop', 'parked', x'0123456789abcdef', UTC_TIMESTAMP(6), 'no', UTC_TIMESTAMP(6) FROM {}, {DIGITS} f \
             WHERE f.d < {tens_of_thousands}",
            ten_thousand()
        )
    };
    let mut costs = Vec::new();
    for (series, tens_of_thousands) in [(1, 10), (2, 5)] {
        tickr.sql(letters(series, tens_of_thousands)).await;
        let (mut cheapest, mut stats) = (i64::MAX, json!(null));
        // The loops of the runner count as well now and then, so the cheapest of several counts is the cost of one.
        for _ in 0..3 {
            let before = rows_read(&tickr).await;
            stats = tickr.get("/v1/stats").await.body;
            cheapest = cheapest.min(rows_read(&tickr).await - before);
        }
        costs.push(cheapest);
        // Two hundred queues by name are counted, and those that runners serve.
        let queues = stats["queues"].as_object().unwrap();
        assert_eq!(
            (&stats["open_dead_letters"], &stats["open_dead_letters_exact"], &stats["exact"], queues.len()),
            (&json!(100_000), &json!(false), &json!(false), 200)
        );
        assert_eq!(queues["tenant-0"], json!({"waiting": 12}));
    }
    // The queues say it as well. One that has all of them is known by its settings, and so is one that has none.
    for (name, counted, exact, listed) in [("parked", 100_000, false, 100_000), ("spare", 0, true, 0)] {
        assert_eq!(tickr.patch(&format!("/v1/queues/{name}"), json!({"priority": 6})).await.status, 200);
        let queue = tickr.get(&format!("/v1/queues/{name}")).await.body;
        let said = (&queue["open_dead_letters"], &queue["open_dead_letters_exact"]);
        assert_eq!(said, (&json!(counted), &json!(exact)), "{queue:#}");
        let queues = tickr.get("/v1/queues").await.body;
        let queue = queues["data"].as_array().unwrap().iter().find(|queue| queue["name"] == name).unwrap();
        let said = (&queue["open_dead_letters"], &queue["open_dead_letters_exact"]);
        assert_eq!(said, (&json!(listed), &json!(false)), "{queue:#}");
    }
    println!("rows read for a count behind 100,000 and 150,000 open dead letters: {costs:?}");
    assert!(costs[1] < costs[0] + costs[0] / 5 && costs[1] < 400_000, "{costs:?}");
    tickr.stop_broken("its dead letters and jobs were written by hand").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_queues_of_ended_jobs_make_no_answer_long_and_no_queue_slow() {
    // The test has its own servers, because it reads their counters. No job runs.
    let tickr = TestApp::start_alone(|_| {}, |config| config.queues = vec!["yonder".into()]).await;
    tickr
        .sql(format!(
            "INSERT INTO tallies (lane, queue, kind, state, n) SELECT n MOD 7, CONCAT('tenant-', LPAD(n, 4, '0')), \
             'noop', 'completed', 3 FROM {}; \
             INSERT INTO tallies (lane, queue, kind, state, n) VALUES (0, 'tenant-0001', 'noop', 'completed', 2), \
             (255, 'yonder', 'noop', 'failed', 1), (0, '_other', 'noop', 'cancelled', 5); ANALYZE TABLE tallies",
            ten_thousand()
        ))
        .await;
    // A queue with settings is shown, wherever its name stands.
    assert_eq!(tickr.patch("/v1/queues/tenant-9000", json!({"priority": 6})).await.status, 200);
    let stats = tickr.get("/v1/stats").await.body;
    let states = &stats["states"];
    assert_eq!(
        (&states["completed"], &states["failed"], &states["cancelled"]),
        (&json!(30_002), &json!(1), &json!(5)),
        "the sums are those of all queues"
    );
    let queues = stats["queues"].as_object().unwrap();
    assert_eq!(queues.len(), 200 + 2, "the first 200 by name, the served one and the one with settings");
    assert_eq!(queues["tenant-0001"], json!({"completed": 5}));
    assert_eq!((&queues["yonder"], &queues["tenant-9000"]), (&json!({"failed": 1}), &json!({"completed": 3})));
    let listed = tickr.get("/v1/queues").await.body;
    let listed: BTreeSet<&str> =
        listed["data"].as_array().unwrap().iter().map(|queue| queue["name"].as_str().unwrap()).collect();
    assert_eq!(listed, queues.keys().map(String::as_str).collect());

    // A queue that is not listed can be asked for, and costs nothing for the others.
    let mut cheapest = i64::MAX;
    // The loops of the runner count as well now and then, so the cheapest of several reads is the cost of one.
    for _ in 0..8 {
        let before = rows_read(&tickr).await;
        let queue = tickr.get("/v1/queues/tenant-8999").await.body;
        cheapest = cheapest.min(rows_read(&tickr).await - before);
        assert_eq!(queue["states"], json!({"completed": 3}));
    }
    println!("rows read for one queue beside 10,000 others: {cheapest}");
    assert!(cheapest < 5_000, "{cheapest} rows");
    tickr.stop_broken("its tallies were written by hand").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_could_be_started_is_known_without_a_walk_through_what_waits() {
    // The test has its own servers, because it reads their counters.
    let served = |config: &mut tickr::config::Config| {
        (config.workers, config.queues) = (2, vec!["here".into(), "limited".into()]);
    };
    let tickr = TestApp::start_alone(|_| {}, served).await;
    Owed { queue: "'elsewhere'", ..Owed::overdue(20_000) }.insert_waiting(&tickr, 1).await;
    let store = tickr.app.broker().store();
    let room = async |queue: &str| {
        let startable = store.startable().await.unwrap();
        startable.has_room_for(&"sleep".parse().unwrap(), &queue.parse().unwrap(), &BTreeSet::new())
    };
    let limit = tickr.patch("/v1/queues/limited", json!({"concurrency": 1})).await;
    assert_eq!(limit.status, 200);
    assert!(room("here").await && room("limited").await && !room("elsewhere").await);
    let sleep = |queue: &str| json!({"kind": "sleep", "queue": queue, "payload": {"ms": 600_000}});
    let first = tickr.enqueue(sleep("limited")).await;
    tickr.until(first, State::Executing).await;
    assert!(room("here").await && !room("limited").await, "one worker is free, and the limit is reached");
    let second = tickr.enqueue(sleep("here")).await;
    tickr.until(second, State::Executing).await;
    let before = rows_read(&tickr).await;
    assert!(!room("here").await, "no worker is free");
    let read = rows_read(&tickr).await - before;
    println!("rows read for what could be started behind 20,000 jobs: {read}");
    // The bound includes what the loops of the runner read meanwhile.
    assert!(read < 5_000, "{read}");
    // A runner of an older version writes no batches of claims. Its attempts are found all the same.
    tickr.sql("UPDATE runners SET claim_batches = FALSE; UPDATE claim_batches SET ids = ''").await;
    assert!(!room("here").await);
    tickr.sql("UPDATE runners SET claim_batches = TRUE").await;
    Owed::remove(&tickr).await;
    for id in [first, second] {
        tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await;
    }
    tickr.until_idle().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_stopped_runners_cost_nobody_anything_and_go_after_a_week() {
    // The test has its own servers, because it reads their counters.
    let tickr = TestApp::start_alone(|_| {}, |_| {}).await;
    tickr
        .sql(format!(
            "INSERT INTO runners (id, version, kinds, queues, slots, lease_ms, started_at, heartbeat_at, stopped_at) \
             SELECT CONCAT('old/', n), '0', CONCAT('[\"noop\",\"', REPEAT('x', 60), '\"]'), '[\"default\"]', 4, 30000, \
             UTC_TIMESTAMP(6) - INTERVAL 30 DAY, UTC_TIMESTAMP(6) - INTERVAL n MINUTE, UTC_TIMESTAMP(6) - INTERVAL 2 * n MINUTE \
             FROM {}; ANALYZE TABLE runners",
            ten_thousand()
        ))
        .await;
    let store = tickr.app.broker().store();
    let before = rows_read(&tickr).await;
    for _ in 0..20 {
        assert_eq!(store.unstopped_runners().await.unwrap().beats.len(), 1);
        assert!(store.is_eldest(tickr.app.runner()).await.unwrap());
        assert_eq!(store.runners(100).await.unwrap().len(), 100);
    }
    let read = rows_read(&tickr).await - before;
    // Twenty times a hundred for the lists, plus what the loops of the runner read meanwhile. One scan would read ten
    // thousand.
    assert!(read < 12_000, "{read} rows for twenty looks");
    let listed = store.runners(3).await.unwrap();
    assert_eq!(&listed[0].id, tickr.app.runner());
    assert_eq!(listed[1].id.as_str(), "old/0", "then the runners that stopped last");

    let (mut gone, mut more) = (0, true);
    while more {
        let (forgotten, rest) = store.forget_runners(KEEP_RUNNERS).await.unwrap();
        (gone, more) = (gone + forgotten, rest);
    }
    // The runners stopped at intervals of two minutes. A week has 10,080 minutes, so 5,040 of them stay.
    assert!((4_950..=4_961).contains(&gone), "{gone}");
    let left = "SELECT COUNT(*) FROM runners WHERE stopped_at < UTC_TIMESTAMP(6) - INTERVAL 169 HOUR";
    assert_eq!(tickr.count(left).await, 0);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM runners WHERE stopped_at IS NULL").await, 1, "the running one stays");
    tickr.stop().await;
}

async fn fold(store: &Store, keep: Duration) {
    let mut place = None;
    loop {
        place = store.fold_lanes(place).await.unwrap().1;
        if place.is_none() {
            break;
        }
    }
    loop {
        place = store.fold_queues(place, keep).await.unwrap().1;
        if place.is_none() {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tallies_of_a_thousand_queues_end_and_every_sum_stays() {
    let tickr = TestApp::start().await;
    let store = tickr.app.broker().store();
    let done = tickr.enqueue_kind("noop", json!({})).await;
    tickr.until(done, State::Completed).await;
    // 1,000 queues, each counted in five lanes by runners that are gone.
    tickr
        .sql(format!(
            "INSERT INTO tallies (lane, queue, kind, state, n, changed_at) SELECT 1 + n DIV 1000, CONCAT('tenant-', n MOD 1000), \
             'noop', 'completed', 7, NOW() - INTERVAL 1 HOUR FROM {} WHERE n < 5000; \
             UPDATE tallies SET n = -3 WHERE queue = 'tenant-0' AND lane = 2; \
             UPDATE tallies SET changed_at = NOW() - INTERVAL 1 HOUR",
            ten_thousand()
        ))
        .await;
    let completed = async || {
        // The answer is long, and comparing it with the document takes longer than the count.
        let stats: serde_json::Value = http().get(tickr.url("/v1/stats")).send().await.unwrap().json().await.unwrap();
        (stats["states"]["completed"].as_i64().unwrap(), stats["queues"]["tenant-0"]["completed"].clone())
    };
    assert_eq!(completed().await, (34_991, json!(25)));
    // A row that changed a moment ago stays, because its writer still adds to it.
    tickr.sql("UPDATE tallies SET n = n + 1 WHERE queue = 'tenant-6' AND lane = 3").await;
    fold(store, DAY).await;
    assert_eq!(completed().await, (34_992, json!(25)));
    let rows = "SELECT COUNT(*) FROM tallies WHERE queue LIKE 'tenant-%'";
    assert_eq!(tickr.count(rows).await, 1_001);
    assert_eq!(tickr.count("SELECT n FROM tallies WHERE lane = 0 AND queue = 'tenant-0'").await, 25);
    fold(store, DAY).await;
    assert_eq!(tickr.count(rows).await, 1_001, "nothing is left to do");

    // After all their jobs have gone, the rows of the queues go as well, and the total stays.
    tickr.sql("UPDATE tallies SET changed_at = NOW() - INTERVAL 400 DAY WHERE queue LIKE 'tenant-%' AND queue <> 'tenant-7'").await;
    fold(store, DAY * 300).await;
    // Two rows stay: lane 0 of tenant-7, and lane 0 of tenant-6, because the count of its lane 3 was just added to it.
    assert_eq!(tickr.count(rows).await, 2);
    assert_eq!(completed().await, (34_992, json!(null)));
    // A queue that counts again gets a row of its own again, and no check misses the counts that were added up.
    let again = tickr.enqueue(json!({"kind": "noop", "queue": "default"})).await;
    tickr.until(again, State::Completed).await;
    assert_eq!(completed().await.0, 34_993);
    tickr.stop().await;
}

/// A job is found old enough, but is retried and ends again before the purge has its lock. Then it must stay.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_ended_anew_before_the_purge_had_its_lock_stays() {
    let tickr = TestApp::start().await;
    let (store, proxy, mut mysql) = store_behind_proxy(tickr.config.mysql_url().unwrap().expose()).await;
    let fails = json!({"kind": "fail", "payload": {"permanent": true}});
    let (aged, discarded) = (tickr.enqueue(fails.clone()).await, tickr.enqueue(fails).await);
    tickr.until(aged, State::Failed).await;
    tickr.until(discarded, State::Failed).await;
    let done = tickr.post(&format!("/v1/jobs/{discarded}/discard"), json!({"reason": "known"})).await;
    assert_eq!(done.status, 200);
    tokio::time::sleep(Duration::from_millis(5)).await;
    for (id, keep) in [
        (aged, Retention { failed: Duration::ZERO, ..Retention::all(DAY) }),
        (discarded, Retention { discarded: Duration::ZERO, ..Retention::all(DAY) }),
    ] {
        proxy.hold_back("SELECT id FROM jobs FORCE INDEX (PRIMARY) WHERE id IN");
        let purge = {
            let (store, keep) = (store.clone(), keep.clone());
            tokio::spawn(async move {
                if keep.failed == Duration::ZERO {
                    store.purge_page(None, &keep).await.unwrap().jobs
                } else {
                    store.purge_discarded(&keep).await.unwrap().0
                }
            })
        };
        eventually("the purge is about to lock the row", || async { proxy.holds_one_back().then_some(()) }).await;
        // These rows are what a retry and its failure leave behind.
        let (now, bytes) = ("UTC_TIMESTAMP(6)", format!("UNHEX('{}')", id.uuid().simple()));
        let anew = format!(
            "INSERT INTO attempts (job_id, number, burned, runner, execute_at, started_at, finished_at, verdict, end_state, error) \
             SELECT job_id, 2, 1, runner, {now}, {now}, {now}, 'rejected', 'failed', error FROM attempts WHERE job_id = {bytes}; \
             UPDATE dead_letters SET standing = 'open', since = {now}, failed_at = {now}, actor = NULL, reason = NULL \
             WHERE job_id = {bytes}"
        );
        mysql.execute(sqlx::raw_sql(AssertSqlSafe(anew))).await.unwrap();
        proxy.pass_held_back();
        assert_eq!(purge.await.unwrap(), 0, "{id}");
        assert_eq!(tickr.job(id).await["attempts"].as_array().unwrap().len(), 2);
    }
    // The jobs go when their retention is over.
    let keep = Retention { failed: Duration::ZERO, ..Retention::all(DAY) };
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(store.purge_page(None, &keep).await.unwrap().jobs, 2);
    store.close().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retried_job_that_waits_or_runs_is_not_purged() {
    let tickr = TestApp::start().await;
    let store = tickr.app.broker().store();
    let later = |queue: &str| json!({"kind": "sleep", "payload": {"ms": 600_000}, "queue": queue, "delay_ms": 600_000});
    let (waits, runs) = (tickr.enqueue(later("still")).await, tickr.enqueue(later("default")).await);
    let ended = tickr.enqueue_kind("noop", json!({})).await;
    tickr.until(ended, State::Completed).await;
    assert_eq!(tickr.post("/v1/queues/still/pause", json!({})).await.status, 200);
    for id in [waits, runs] {
        for action in ["cancel", "retry"] {
            assert_eq!(tickr.post(&format!("/v1/jobs/{id}/{action}"), json!({})).await.status, 200);
        }
    }
    tickr.until(runs, State::Executing).await;
    // The last end in the ledger came long before the retry.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let keep = Retention::all(Duration::from_millis(1));
    assert_eq!(store.purge_page(None, &keep).await.unwrap().jobs, 1, "the job that ended");
    assert_eq!(tickr.get(&format!("/v1/jobs/{ended}")).await.status, 404);
    for (id, state) in [(waits, "waiting"), (runs, "executing")] {
        assert_eq!(tickr.job(id).await["state"], state);
        assert!(tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await.status < 300);
        tickr.until(id, State::Cancelled).await;
    }
    tickr.stop().await;
}

/// A job may have more attempts in the ledger than a page of the purge.
#[tokio::test(flavor = "multi_thread")]
async fn retention_ends_for_jobs_of_thousands_of_lines() {
    let tickr = TestApp::start().await;
    let store = tickr.app.broker().store();
    let ids = tickr.enqueue_many((0..3).map(|_| json!({"kind": "noop"}))).await;
    tickr.until_idle().await;
    // The job in the middle was snoozed 5,000 times.
    let bytes = format!("UNHEX('{}')", ids[1].uuid().simple());
    tickr
        .sql(format!(
            "UPDATE attempts SET number = 5001 WHERE job_id = {bytes}; \
             INSERT INTO attempts (job_id, number, burned, runner, execute_at, started_at, finished_at, verdict) \
             SELECT a.job_id, n + 1, 0, a.runner, a.execute_at, a.started_at, a.started_at, 'snoozed' FROM attempts a, {} \
             WHERE n < 5000 AND a.job_id = {bytes} AND a.number = 5001",
            ten_thousand()
        ))
        .await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    let keep = Retention { completed: Duration::ZERO, ..Retention::all(DAY) };
    let (mut jobs, mut place, mut pages) = (0, None, 0);
    loop {
        let purged = store.purge_page(place, &keep).await.unwrap();
        (jobs, place, pages) = (jobs + purged.jobs, purged.next, pages + 1);
        if place.is_none() {
            break;
        }
        assert!(pages < 20, "the purge does not come to an end");
    }
    assert_eq!((jobs, tickr.count("SELECT COUNT(*) FROM attempts").await), (3, 0));
    tickr.stop().await;
}

/// Insert jobs of schedules that ended last month, `each` of every schedule, with their ticks.
async fn ended_of_schedules(mysql: &mut MySqlConnection, jobs: u32, each: u32) {
    let id = "UNHEX(CONCAT(LPAD(HEX(1780000000000 + n), 12, '0'), '70008000000000000000'))";
    let schedule = format!("CONCAT('poll-', n DIV {each})");
    let of_jobs = format!("FROM {} WHERE n < {jobs}", ten_thousand());
    let sql = format!(
        "INSERT INTO jobs (id, kind, queue, priority, max_attempts, payload, execute_at, created_at, options) \
         SELECT {id}, 'noop', 'default', 5, 1, '{{}}', '2026-06-01', '2026-06-01', \
         CONCAT('{{\"schedule\":{{\"name\":\"', {schedule}, '\",\"tick_at\":\"2026-06-01T00:00:00Z\"}}}}') {of_jobs}; \
         INSERT INTO attempts (job_id, number, burned, runner, execute_at, started_at, finished_at, verdict, end_state) \
         SELECT {id}, 1, 1, 'gone/1-x', '2026-06-01', '2026-06-01', '2026-06-01', 'succeeded', 'completed' {of_jobs}; \
         INSERT INTO ticks (schedule, due_at, outcome, job_id, recorded_at, recorded_by) \
         SELECT {schedule}, '2026-06-01' + INTERVAL n SECOND, 'fired', {id}, '2026-06-01', 'gone/1-x' {of_jobs}"
    );
    mysql.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await.unwrap();
}

/// Return a store behind a proxy, without a runner, and a session beside the proxy.
async fn store_behind_proxy(url: &str) -> (Store, Proxy, MySqlConnection) {
    let proxy = Proxy::start(url).await;
    let settings = StoreSettings { url: proxy.url(), connections: 6, flushers: 1, table_prefix: table_prefix() };
    let store = Store::connect(&settings, Duration::from_secs(10)).await.unwrap();
    store.migrate().await.unwrap();
    (store, proxy, connect(url).await)
}

async fn marked_ticks(mysql: &mut MySqlConnection) -> i64 {
    sqlx::query_scalar("SELECT COUNT(*) FROM ticks WHERE job_removed").fetch_one(mysql).await.unwrap()
}

/// A transaction has 15 seconds, and MySQL may be some milliseconds away.
#[tokio::test(flavor = "multi_thread")]
async fn a_purge_marks_the_ticks_of_hundreds_of_jobs_in_one_statement() {
    let (name, url) = database().await;
    let (store, proxy, mut mysql) = store_behind_proxy(&url).await;
    ended_of_schedules(&mut mysql, 600, 10_000).await;
    // Six hundred jobs of one schedule need three statements.
    proxy.halt_at("UPDATE ticks", 4, Halt::Held);
    let keep = Retention::all(DAY);
    tokio::select! {
        purged = store.purge_page(None, &keep) => assert_eq!(purged.unwrap().jobs, 600),
        () = eventually("too many statements", || async { proxy.has_halted().then_some(()) }) => {
            panic!("the purge has more than three statements for the ticks of one schedule");
        }
    }
    assert_eq!(marked_ticks(&mut mysql).await, 600);
    drop(store);
    drop_database(&url, &name).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_of_jobs_of_many_schedules_goes_on_in_another_transaction() {
    let (name, url) = database().await;
    let (store, _proxy, mut mysql) = store_behind_proxy(&url).await;
    ended_of_schedules(&mut mysql, 500, 2).await;
    let keep = Retention::all(DAY);
    let first = store.purge_page(None, &keep).await.unwrap();
    assert_eq!(first.jobs, 400, "two jobs of each of two hundred schedules");
    assert_eq!(store.purge_page(first.next, &keep).await.unwrap().jobs, 100);
    assert_eq!(marked_ticks(&mut mysql).await, 500);
    drop(store);
    drop_database(&url, &name).await;
}

/// Discard all jobs but the first `kept`.
async fn discard_behind(mysql: &mut MySqlConnection, kept: u32) {
    let sql = format!(
        "INSERT INTO dead_letters (job_id, kind, queue, fingerprint, failed_at, error, standing, since, actor, reason) \
         SELECT id, kind, queue, UNHEX('0123456789abcdef'), created_at, 'broken', 'discarded', created_at, 'test', 'known' \
         FROM jobs FORCE INDEX (PRIMARY) ORDER BY id LIMIT 10000 OFFSET {kept}"
    );
    mysql.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await.unwrap();
}

/// Lock the rows of the oldest jobs, as a runner does that freezes while it removes them.
async fn lock_oldest(session: &mut MySqlConnection, jobs: u32) {
    let lock = format!("SELECT id FROM jobs FORCE INDEX (PRIMARY) ORDER BY id LIMIT {jobs} FOR UPDATE");
    session.execute("START TRANSACTION").await.unwrap();
    session.execute(AssertSqlSafe(lock)).await.unwrap();
}

/// Much shorter than the eight waits for a locked row after which a call fails.
const NO_WAIT: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn ended_jobs_that_another_session_locks_hold_up_the_removal_of_no_other() {
    let (name, url) = database().await;
    let (store, _proxy, mut mysql) = store_behind_proxy(&url).await;
    let mut frozen = connect(&url).await;
    let keep = Retention::all(DAY);
    ended_of_schedules(&mut mysql, 600, 10_000).await;
    discard_behind(&mut mysql, 300).await;
    lock_oldest(&mut frozen, 1).await;
    // The row of a job that stays, in a table with fewer rows than the page has jobs.
    frozen.execute("SELECT job_id FROM dead_letters ORDER BY job_id DESC LIMIT 1 FOR UPDATE").await.unwrap();
    let purged = tokio::time::timeout(NO_WAIT, store.purge_page(None, &keep)).await;
    assert_eq!(purged.expect("the purge waits for a locked row").unwrap().jobs, 299);
    frozen.execute("ROLLBACK").await.unwrap();
    assert_eq!(store.purge_page(None, &keep).await.unwrap().jobs, 1);
    // The discarded ones of a whole page and some more are locked.
    lock_oldest(&mut frozen, 260).await;
    let purged = tokio::time::timeout(NO_WAIT, store.purge_discarded(&keep)).await;
    assert_eq!(purged.expect("the purge waits for a locked row").unwrap(), (40, false));
    frozen.execute("ROLLBACK").await.unwrap();
    assert_eq!(store.purge_discarded(&keep).await.unwrap(), (256, true));
    assert_eq!(store.purge_discarded(&keep).await.unwrap(), (4, false));
    drop(store);
    drop_database(&url, &name).await;
}

/// MySQL may refuse a transaction for its size, as in group replication, or may not end it in time.
#[tokio::test(flavor = "multi_thread")]
async fn a_purge_that_mysql_does_not_carry_out_goes_on_in_smaller_pages() {
    let (name, url) = database().await;
    let (store, proxy, mut mysql) = store_behind_proxy(&url).await;
    ended_of_schedules(&mut mysql, 300, 10_000).await;
    answered(&mut mysql, 10_000).await;
    let keep = Retention::all(DAY);
    // Each page is tried three times. Those of 2,000, 1,000, 500 and 250 attempts are refused.
    proxy.refuse("COMMIT", 3100, 12);
    for _ in 0..4 {
        let refused = store.purge_page(None, &keep).await.unwrap_err();
        assert!(refused.is_transient(), "{refused}");
    }
    assert!(proxy.is_through());
    let (began, mut place, mut gone) = (Instant::now(), None, 0);
    while gone < 300 {
        // The server may still be rolling back the last page, and rows that it has locked are left out.
        assert!(began.elapsed() < DEADLINE, "{gone} jobs are removed");
        let purged = store.purge_page(place, &keep).await.unwrap();
        assert!(purged.jobs <= 125, "{purged:?}");
        (gone, place) = (gone + purged.jobs, purged.next);
    }
    proxy.refuse("COMMIT", 3100, 3);
    store.purge_idempotency_keys(None, 7 * DAY).await.unwrap_err();
    assert_eq!(store.purge_idempotency_keys(None, 7 * DAY).await.unwrap().0, 500);
    drop(store);
    drop_database(&url, &name).await;
}

/// Insert `jobs` jobs that ended last month, in batches of a hundred.
async fn ended(mysql: &mut MySqlConnection, jobs: u32) {
    for thousands in 0..jobs.div_ceil(10_000) {
        let id = |n: &str| {
            format!(
                "UNHEX(CONCAT(LPAD(HEX(1780000000000 + {n} + {thousands} * 10000), 12, '0'), '70008000000000000000'))"
            )
        };
        let sql = format!(
            "INSERT INTO jobs (id, kind, queue, priority, max_attempts, payload, execute_at, created_at, batch_id, batch_size) \
                 SELECT {}, 'noop', 'default', 5, 1, '{{}}', '2026-06-01', '2026-06-01', {}, 100 FROM {}; \
                 INSERT INTO attempts (job_id, number, burned, runner, execute_at, started_at, finished_at, verdict, end_state) \
                 SELECT {}, 1, 1, 'gone/1-x', '2026-06-01', '2026-06-01', '2026-06-01', 'succeeded', 'completed' FROM {}",
            id("n"),
            id("(n DIV 100) * 100"),
            ten_thousand(),
            id("n"),
            ten_thousand(),
        );
        mysql.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(sql))).await.unwrap();
    }
}

/// Purge as the eldest runner does: page after page, with pauses of a quarter of the time of a page. Return the jobs
/// per second.
async fn purge_rate(store: &Store, jobs: u32) -> f64 {
    let keep = Retention::all(DAY);
    let (began, mut place, mut gone): (Instant, Option<JobId>, u32) = (Instant::now(), None, 0);
    loop {
        let page = Instant::now();
        let purged = store.purge_page(place, &keep).await.unwrap();
        gone += purged.jobs as u32;
        place = purged.next;
        if place.is_none() {
            break;
        }
        tokio::time::sleep((page.elapsed() / 4).max(Duration::from_millis(2))).await;
    }
    assert_eq!(gone, jobs);
    f64::from(gone) / began.elapsed().as_secs_f64()
}

/// Purge jobs from tables without a runner, because the janitor of a runner would take part.
async fn purged(jobs: u32) -> f64 {
    let (name, url) = database().await;
    let settings = StoreSettings { url: url.clone(), connections: 6, flushers: 1, table_prefix: table_prefix() };
    let store = Store::connect(&settings, Duration::from_secs(10)).await.unwrap();
    store.migrate().await.unwrap();
    let mut mysql = connect(&url).await;
    ended(&mut mysql, jobs).await;
    let rate = purge_rate(&store, jobs).await;
    println!("{rate:.0} jobs/s");
    // Pages of two thousand attempts leave no batch of a hundred half deleted.
    for table in ["jobs", "attempts", "departures"] {
        let sql = format!("SELECT COUNT(*) FROM {table}");
        let count: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(&mut mysql).await.unwrap();
        assert_eq!(count, 0, "{table}");
    }
    drop(store);
    drop_database(&url, &name).await;
    rate
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_ends_batches_as_a_whole_page_by_page() {
    purged(10_000).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "inserts 400,000 jobs and measures; wants a machine of its own and a release build"]
async fn a_purge_keeps_up_with_fifteen_thousand_jobs_per_second() {
    let rate = purged(400_000).await;
    assert!(rate >= 15_000.0, "{rate:.0} jobs/s");
}

/// Insert this many answers to requests of eight days ago.
async fn answered(mysql: &mut MySqlConnection, answers: u32) {
    for thousands in 0..answers.div_ceil(10_000) {
        // The ids follow the time, and the digests are at random places of their index.
        let sql = format!(
            "INSERT INTO idempotency_keys (id, key_hash, request_hash, status, answer, created_at) \
             SELECT UNHEX(CONCAT(LPAD(HEX((UNIX_TIMESTAMP() - 8 * 86400) * 1000 + {thousands} * 10000 + n), 12, '0'), \
             '70008000000000000000')), UNHEX(SHA2({thousands} * 10000 + n, 256)), UNHEX(SHA2(n, 256)), 201, \
             RPAD('{{}}', 400, ' '), UTC_TIMESTAMP(6) - INTERVAL 8 DAY FROM {}",
            ten_thousand()
        );
        mysql.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await.unwrap();
    }
}

/// Purge this many answers at the pace of the eldest runner. Return the answers per second.
async fn answers_purged(answers: u32) -> f64 {
    let (name, url) = database().await;
    let settings = StoreSettings { url: url.clone(), connections: 6, flushers: 1, table_prefix: table_prefix() };
    let store = Store::connect(&settings, Duration::from_secs(10)).await.unwrap();
    store.migrate().await.unwrap();
    answered(&mut connect(&url).await, answers).await;
    let (began, mut place, mut gone) = (Instant::now(), None, 0);
    loop {
        let page = Instant::now();
        let (forgotten, next) = store.purge_idempotency_keys(place, 7 * DAY).await.unwrap();
        (gone, place) = (gone + forgotten, next);
        if place.is_none() {
            break;
        }
        tokio::time::sleep((page.elapsed() / 4).max(Duration::from_millis(2))).await;
    }
    assert_eq!(gone, answers as usize);
    let rate = f64::from(answers) / began.elapsed().as_secs_f64();
    println!("{rate:.0} answers/s");
    store.close().await;
    drop_database(&url, &name).await;
    rate
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "inserts 400,000 answers and measures; wants a machine of its own and a release build"]
async fn a_purge_keeps_up_with_fifteen_thousand_answers_per_second() {
    let rate = answers_purged(400_000).await;
    assert!(rate >= 15_000.0, "{rate:.0} answers/s");
}

/// Insert this many audit records of two years ago.
async fn acted(mysql: &mut MySqlConnection, acts: u32) {
    for thousands in 0..acts.div_ceil(10_000) {
        let sql = format!(
            "INSERT INTO audit (id, at, actor, action, target) \
             SELECT UNHEX(CONCAT(LPAD(HEX((UNIX_TIMESTAMP() - 730 * 86400) * 1000 + {thousands} * 10000 + n), 12, '0'), \
             '70008000000000000000')), UTC_TIMESTAMP(6) - INTERVAL 730 DAY, 'old', 'queue.pause', 'old' FROM {}",
            ten_thousand()
        );
        mysql.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await.unwrap();
    }
}

/// Rows past their retention: the table, their condition and their number.
const BACKLOG: [(&str, &str, u32); 3] = [
    ("jobs", "created_at = '2026-06-01'", 300_000),
    ("idempotency_keys", "created_at < UTC_TIMESTAMP(6) - INTERVAL 7 DAY", 300_000),
    ("audit", "actor = 'old'", 100_000),
];

/// Return the times at which the oldest and the newest of these rows have gone. The janitor removes them in this order.
async fn gone(url: &str, table: &str, old: &str) -> [Instant; 2] {
    let mut mysql = connect(url).await;
    let sql = format!("SELECT MIN(id) AS oldest, MAX(id) AS newest FROM {table} WHERE {old}");
    let ends = sqlx::query(AssertSqlSafe(sql)).fetch_one(&mut mysql).await.unwrap();
    let mut times = [Instant::now(); 2];
    // The first round of a runner comes within 90 s.
    let deadline = Instant::now() + Duration::from_secs(300);
    for (time, end) in times.iter_mut().zip(["oldest", "newest"]) {
        let id: Vec<u8> = ends.get(end);
        loop {
            // Looking for one key costs the server nothing. A count would read all that is deleted.
            let sql = format!("SELECT COUNT(*) FROM {table} WHERE id = ?");
            let found: i64 = sqlx::query_scalar(AssertSqlSafe(sql)).bind(&id).fetch_one(&mut mysql).await.unwrap();
            *time = Instant::now();
            if found == 0 {
                break;
            }
            assert!(*time < deadline, "the {end} row of {table} is still there");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    times
}

/// Enqueue up to a thousand jobs per second, with idempotency keys, until it is over. Return their number.
async fn load(tickr: &TestApp, over: &CancellationToken) -> u32 {
    let body = json!({"jobs": vec![json!({"kind": "noop"}); 50]});
    let (mut jobs, mut pace) = (0, tokio::time::interval(Duration::from_millis(50)));
    while !over.is_cancelled() {
        pace.tick().await;
        let request = tickr.request(Method::POST, "/v1/jobs/batch").header("idempotency-key", format!("load-{jobs}"));
        assert_eq!(request.json(&body).send().await.unwrap().status().as_u16(), 201);
        jobs += 50;
    }
    jobs
}

/// The janitor of a real runner, which is the eldest because it is alone.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "inserts 700,000 rows and measures; wants a machine of its own and a release build"]
async fn the_janitor_removes_ten_thousand_jobs_and_answers_per_second_beside_load() {
    let own = Services::start(&server_options()).unwrap();
    let url = own.mysql_url("purged");
    Store::create_database(&url).await.unwrap();
    let settings = StoreSettings { url: url.clone(), connections: 6, flushers: 1, table_prefix: table_prefix() };
    let store = Store::connect(&settings, Duration::from_secs(10)).await.unwrap();
    store.migrate().await.unwrap();
    store.close().await;
    let mut mysql = connect(&url).await;
    let [(.., jobs), (.., answers), (.., acts)] = BACKLOG;
    ended(&mut mysql, jobs).await;
    answered(&mut mysql, answers).await;
    acted(&mut mysql, acts).await;

    let configure = |config: &mut tickr::config::Config| (config.retention_completed, config.workers) = (DAY, 64);
    let tickr = TestApp::start_in(own, "purged", configure).await;
    let over = CancellationToken::new();
    let watch = async {
        let seen = futures_util::future::join_all(BACKLOG.map(|(table, old, _)| gone(&url, table, old))).await;
        over.cancel();
        seen
    };
    let (seen, enqueued) = tokio::join!(watch, load(&tickr, &over));
    let began = seen.iter().map(|[began, _]| *began).min().unwrap();
    let mut longest = Duration::ZERO;
    for ((table, _, rows), [_, end]) in BACKLOG.iter().zip(&seen) {
        let took = end.duration_since(began);
        println!("{table}: {rows} rows in {took:.1?}, {:.0}/s", f64::from(*rows) / took.as_secs_f64());
        longest = longest.max(took);
    }
    println!("{enqueued} jobs were enqueued from the start of the runner on");
    for (table, old, _) in BACKLOG {
        assert_eq!(tickr.count(format!("SELECT COUNT(*) FROM {table} WHERE {old}")).await, 0, "{table}");
    }
    tickr.until_idle().await;
    // The janitor removes all three at once, beside the load. Each alone goes at 15,000 rows per second.
    assert!(longest <= Duration::from_secs(u64::from(jobs) / 10_000), "{longest:.1?}");
    tickr.stop_broken("its old jobs were written by hand").await;
}
