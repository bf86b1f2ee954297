//! Dead letters: every failed job has one, whatever ended the job. A replayed job and its original link to each other.
//! A discarded dead letter stays for the audit and then goes.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use sqlx::{Connection as _, Row as _};
use tickr::config::{Alerts, Config, KindConfig, Threshold};
use tickr::handlers::{Context, Failure, Kind, Outcome, Registry};
use tickr::job::{JobId, State};
use tickr::store::Retention;
use tokio_util::sync::CancellationToken;

use crate::support::sink::Sink;
use crate::support::{Proxy, Runner, TestApp, answer, eventually, http};

/// Fails for good with the given text.
#[derive(Debug, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Say {
    error: Option<String>,
}

impl Kind for Say {
    const NAME: &'static str = "say";
}

async fn say(job: Say, _ctx: Context) -> Outcome {
    match job.error {
        Some(error) => Err(Failure::reject(error)),
        None => Ok(().into()),
    }
}

async fn start() -> TestApp {
    TestApp::start_with(|_| {}, kinds()).await
}

fn kinds() -> Registry {
    let mut own = Registry::new();
    own.register(say);
    own
}

async fn fails(tickr: &TestApp, error: &str) -> JobId {
    let id = tickr.enqueue_kind("say", json!({"error": error})).await;
    tickr.until(id, State::Failed).await;
    id
}

async fn dead_letters(tickr: &TestApp, query: &str) -> Vec<JobId> {
    let page = tickr.get(&format!("/v1/dead-letters?limit=200&{query}")).await;
    assert_eq!(page.status, 200, "{:#}", page.body);
    let data = page.body["data"].as_array().unwrap();
    data.iter().map(|job| job["id"].as_str().unwrap().parse().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_are_grouped_by_their_cause_with_first_and_last_seen_and_counts() {
    let tickr = start().await;
    let mut users = Vec::new();
    for user in [7, 42, 77_213] {
        users.push(fails(&tickr, &format!("user {user} not found")).await);
    }
    let refused = fails(&tickr, "connect 10.0.0.1:3306: connection refused").await;
    let spent = tickr.enqueue(json!({"kind": "fail", "max_attempts": 1})).await;
    tickr.until(spent, State::Failed).await;

    let groups = tickr.get("/v1/dead-letters/groups").await.body;
    assert_eq!(groups["next_cursor"], Value::Null);
    let groups = groups["data"].as_array().unwrap();
    let seen: Vec<_> = groups.iter().map(|g| (g["kind"].clone(), g["error"].clone(), g["open"].clone())).collect();
    assert_eq!(
        seen,
        [
            (json!("fail"), json!("failed on request, attempt #"), json!(1)),
            (json!("say"), json!("connect # connection refused"), json!(1)),
            (json!("say"), json!("user # not found"), json!(3)),
        ]
        .map(|(kind, error, open)| (
            kind,
            if error == "connect # connection refused" { groups[1]["error"].clone() } else { error },
            open
        ))
    );
    let group = &groups[2];
    let hours = |group: &Value| serde_json::from_value::<Vec<u64>>(group["recent"].clone()).unwrap();
    assert_eq!(hours(group), [vec![0; 23], vec![3]].concat());
    assert_eq!(group["sample"], users[2].to_string());
    assert_eq!(group["sample_error"], "user 77213 not found");
    let (first, last) = (tickr.job(users[0]).await, tickr.job(users[2]).await);
    assert_eq!(group["first_seen"], first["dead_letter"]["failed_at"]);
    assert_eq!(group["last_seen"], last["dead_letter"]["failed_at"]);
    assert_eq!(first["dead_letter"]["status"], "open");
    assert_eq!(first["attempts"].as_array().unwrap().len(), 1);

    // The groups come page by page, and can be filtered by kind.
    let (mut paged, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = tickr.get(&format!("/v1/dead-letters/groups?limit=1{cursor}")).await.body;
        paged.extend(page["data"].as_array().unwrap().clone());
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(&paged, groups);
    assert_eq!(tickr.get("/v1/dead-letters/groups?kind=fail").await.body["data"].as_array().unwrap().len(), 1);

    let fingerprint = group["fingerprint"].as_str().unwrap();
    let one = tickr.get(&format!("/v1/dead-letters/groups/{fingerprint}")).await.body;
    assert_eq!((&one["open"], &one["replayed"], &one["discarded"]), (&json!(3), &json!(0), &json!(0)));
    users.reverse();
    assert_eq!(dead_letters(&tickr, &format!("fingerprint={fingerprint}")).await, users);
    assert_eq!(dead_letters(&tickr, &format!("q=group%3A{fingerprint}%20error%3A42")).await, [users[1]]);
    assert_eq!(dead_letters(&tickr, "kind=say").await.len(), 4);
    assert_eq!(dead_letters(&tickr, "q=error%3Arefused").await, [refused]);
    for (path, status) in [("0123456789abcdef", 404), ("x", 422)] {
        assert_eq!(tickr.get(&format!("/v1/dead-letters/groups/{path}")).await.status, status);
    }
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_tells_hour_by_hour_how_many_failed_in_the_last_day() {
    let tickr = start().await;
    for _ in 0..6 {
        fails(&tickr, "no").await;
    }
    // One failed now, two an hour ago, one just within the last day, one before it, and one has a time ahead of the
    // clock.
    for (nth, minutes) in [(1, 61), (2, 119), (3, 23 * 60 + 59), (4, 24 * 60 + 1), (5, -1)] {
        let sql = format!(
            "UPDATE dead_letters d JOIN (SELECT job_id FROM dead_letters ORDER BY job_id LIMIT 1 OFFSET {nth}) n \
             ON n.job_id = d.job_id SET d.since = UTC_TIMESTAMP(6) - INTERVAL {minutes} MINUTE"
        );
        tickr.sql(sql).await;
    }
    let groups = tickr.get("/v1/dead-letters/groups").await.body;
    let group = &groups["data"][0];
    let hours: Vec<u64> = serde_json::from_value(group["recent"].clone()).unwrap();
    let mut wanted = vec![0; 24];
    (wanted[0], wanted[22], wanted[23]) = (1, 2, 2);
    assert_eq!((hours, &group["open"]), (wanted, &json!(6)));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_is_a_new_job_with_links_both_ways() {
    let tickr = start().await;
    let body = json!({"kind": "say", "payload": {"error": "no"}, "queue": "default", "priority": 2, "max_attempts": 3,
        "tags": ["t:1"], "timeout_ms": 5_000});
    let old = tickr.enqueue(body).await;
    tickr.until(old, State::Failed).await;

    let wrong = tickr.post(&format!("/v1/jobs/{old}/replay"), json!({"payload": {"wrong": 1}})).await;
    assert_eq!((wrong.status, wrong.code()), (422, "invalid_payload"));
    assert!(wrong.pointers()[0].starts_with("/payload"));

    let made = tickr.post(&format!("/v1/jobs/{old}/replay"), json!({"payload": {}})).await;
    assert_eq!(made.status, 201, "{:#}", made.body);
    let new: JobId = made.body["id"].as_str().unwrap().parse().unwrap();
    assert_eq!(made.header("location"), format!("/v1/jobs/{new}"));
    let new_job = tickr.until(new, State::Completed).await;
    assert_eq!(new_job["replay_of"], old.to_string());
    for (field, value) in
        [("priority", json!(2)), ("max_attempts", json!(3)), ("tags", json!(["t:1"])), ("timeout_ms", json!(5_000))]
    {
        assert_eq!(new_job[field], value, "{field}");
    }
    let old_job = tickr.job(old).await;
    assert_eq!(old_job["state"], "failed");
    let dead_letter = &old_job["dead_letter"];
    assert_eq!(
        (&dead_letter["status"], &dead_letter["replayed_as"], &dead_letter["by"]),
        (&json!("replayed"), &json!(new.to_string()), &json!("anyone"))
    );

    let again = tickr.post(&format!("/v1/jobs/{old}/replay"), json!({})).await;
    assert_eq!((again.status, again.code()), (409, "already_replayed"));
    assert_eq!(again.body["replayed_as"], new.to_string());
    for (verb, body) in [("retry", json!({})), ("discard", json!({"reason": "x"}))] {
        assert_eq!(tickr.post(&format!("/v1/jobs/{old}/{verb}"), body).await.status, 409, "{verb}");
    }
    let wrong = tickr.post(&format!("/v1/jobs/{new}/replay"), json!({})).await;
    assert_eq!((wrong.status, wrong.code(), &wrong.body["current_state"]), (409, "wrong_state", &json!("completed")));
    assert_eq!(dead_letters(&tickr, "").await, []);
    assert_eq!(dead_letters(&tickr, "status=replayed").await, [old]);
    let acts = tickr.get(&format!("/v1/audit?target={old}")).await.body;
    assert_eq!(acts["data"][0]["action"], "job.replay");
    assert_eq!(acts["data"][0]["detail"]["replayed_as"], new.to_string());
    tickr.assert_sound().await;

    // With the link removed, the checker reports it.
    tickr.sql(format!("UPDATE jobs SET options = NULL WHERE id = x'{}'", new.uuid().simple())).await;
    let settings = crate::support::halted::settings(&tickr.config, Duration::ZERO, false);
    let report = tickr::verify::verify(tickr.app.broker().store(), tickr.app.index(), &settings, |_| {}).await.unwrap();
    assert!(serde_json::to_string(&report).unwrap().contains("linked back"));
    tickr.stop_broken("a replay does not name its original").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_sent_twice_with_one_key_makes_one_job() {
    let tickr = start().await;
    let old = fails(&tickr, "no").await;
    let send = |key: &'static str| {
        let client = http();
        let sent = client.post(tickr.url(&format!("/v1/jobs/{old}/replay"))).header("idempotency-key", key);
        answer(sent.json(&json!({"payload": {}})))
    };
    let (one, two) = tokio::join!(send("k"), send("k"));
    assert_eq!((one.status, two.status), (201, 201));
    assert_eq!(one.body, two.body);
    assert_eq!(send("k").await.body, one.body);
    assert_eq!(send("other").await.code(), "already_replayed");
    // Without an idempotency key, many replays at once make one job. The test holds the dead letter until two replays
    // wait, for it or for each other; a replay without its lock would have looked at the dead letter by then. They are in
    // two processes, because in one of them the changes of one job take turns.
    let second = tickr.another_with(|_| {}, kinds()).await;
    let other = fails(&tickr, "no").await;
    let path = format!("/v1/jobs/{other}/replay");
    let mut holder = tickr.mysql().await;
    let mut held = holder.begin().await.unwrap();
    let lock = "SELECT job_id FROM dead_letters WHERE job_id = ? FOR UPDATE";
    sqlx::query(lock).bind(other.uuid()).fetch_one(&mut *held).await.unwrap();
    let database: String = sqlx::query_scalar("SELECT DATABASE()").fetch_one(&mut tickr.mysql().await).await.unwrap();
    let release = async {
        eventually("two replays wait", async || {
            // MySQL 9.7 cannot list a statement that contains binary data in information_schema (its error 3854).
            let sessions = sqlx::raw_sql("SHOW PROCESSLIST").fetch_all(&mut tickr.mysql().await).await.unwrap();
            let waits = |row: &sqlx::mysql::MySqlRow| {
                let text = |name| row.try_get_unchecked::<Option<Vec<u8>>, _>(name).unwrap().unwrap_or_default();
                let begins = |words: &[u8]| text("Info").starts_with(words);
                let wanted = b"SELECT id FROM jobs FORCE";
                let written = b"INSERT INTO dead_letters";
                text("db") == database.as_bytes() && (begins(wanted) || begins(written))
            };
            (sessions.iter().filter(|row| waits(row)).count() >= 2).then_some(())
        })
        .await;
        held.rollback().await.unwrap();
    };
    let replay = |n: usize| {
        let addr = if n.is_multiple_of(2) { tickr.app.addr() } else { second.addr() };
        answer(http().post(format!("http://{addr}{path}")).json(&json!({"payload": {}})))
    };
    let replays = futures_util::future::join_all((0..8).map(replay));
    let (answers, ()) = tokio::join!(replays, release);
    assert_eq!(answers.iter().filter(|answer| answer.status == 201).count(), 1);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 4);
    tickr.until_idle().await;
    second.stop(CancellationToken::new()).await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_respects_unique_keys_and_a_retry_takes_the_dead_letter_back() {
    let tickr = start().await;
    let keyed = |error: Value| json!({"kind": "say", "payload": {"error": error}, "unique_key": "k"});
    let old = tickr.enqueue(keyed(json!("no"))).await;
    tickr.until(old, State::Failed).await;
    let mut later = keyed(Value::Null);
    later["delay_ms"] = json!(3_600_000);
    let holder = tickr.enqueue(later).await;
    let refused = tickr.post(&format!("/v1/jobs/{old}/replay"), json!({})).await;
    assert_eq!((refused.status, refused.code()), (409, "unique_key_taken"));
    assert_eq!(
        (&refused.body["holder"], &refused.body["current_state"]),
        (&json!(holder.to_string()), &json!("waiting"))
    );
    assert_eq!(dead_letters(&tickr, "").await, [old]);
    tickr.post(&format!("/v1/jobs/{holder}/cancel"), json!({})).await;

    // A retry runs the same job again: it has no dead letter while it is unfinished, and has one when it fails again.
    assert_eq!(tickr.post(&format!("/v1/jobs/{old}/retry"), json!({})).await.status, 200);
    tickr.until_attempts(old, 2).await;
    tickr.until(old, State::Failed).await;
    assert_eq!(dead_letters(&tickr, "").await, [old]);
    let made = tickr.post(&format!("/v1/jobs/{old}/replay"), json!({"payload": {}})).await;
    assert_eq!(made.body["unique_key"], "k");
    tickr.until_idle().await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM unique_keys").await, 0);
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_replays_and_retries_at_once_one_gets_the_unique_key() {
    let tickr = start().await;
    let mut failed = Vec::new();
    for _ in 0..8 {
        let id = tickr.enqueue(json!({"kind": "say", "payload": {"error": "no"}, "unique_key": "k"})).await;
        tickr.until(id, State::Failed).await;
        failed.push(id);
    }
    // In a paused queue no job ends, so the key stays taken.
    assert_eq!(tickr.post("/v1/queues/default/pause", json!({})).await.status, 200);
    let paths: Vec<String> = failed
        .iter()
        .zip(["replay", "retry"].into_iter().cycle())
        .map(|(id, action)| format!("/v1/jobs/{id}/{action}"))
        .collect();
    let answers = futures_util::future::join_all(paths.iter().map(|path| tickr.post(path, json!({})))).await;
    let mut statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
    statuses.sort_unstable();
    assert!(statuses[0] < 300 && statuses[1..].iter().all(|status| *status == 409), "{statuses:?}");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM unique_keys").await, 1);
    tickr.post("/v1/queues/default/resume", json!({})).await;
    tickr.until_idle().await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM unique_keys").await, 0);
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_discarded_dead_letter_keeps_its_reason_and_is_purged_by_its_own_age() {
    let tickr = start().await;
    let (old, other) = (fails(&tickr, "no").await, fails(&tickr, "no").await);
    for (reason, pointer) in [(json!(""), "/reason"), (json!("x".repeat(501)), "/reason")] {
        let wrong = tickr.post(&format!("/v1/jobs/{old}/discard"), json!({"reason": reason})).await;
        assert_eq!((wrong.status, wrong.pointers()), (422, vec![pointer]));
    }
    let done = tickr.post(&format!("/v1/jobs/{old}/discard"), json!({"reason": "a test account"})).await;
    assert_eq!(done.status, 200, "{:#}", done.body);
    let dead_letter = &done.body["dead_letter"];
    assert_eq!((&dead_letter["status"], &dead_letter["reason"]), (&json!("discarded"), &json!("a test account")));
    let again = tickr.post(&format!("/v1/jobs/{old}/discard"), json!({"reason": "again"})).await;
    assert_eq!((again.status, again.code()), (409, "wrong_state"));
    assert_eq!(tickr.post(&format!("/v1/jobs/{old}/replay"), json!({})).await.status, 409);
    assert_eq!(dead_letters(&tickr, "").await, [other]);
    assert_eq!(dead_letters(&tickr, "status=discarded").await, [old]);
    assert_eq!(tickr.get("/v1/dead-letters/groups").await.body["data"][0]["open"], 1);
    assert_eq!(tickr.get("/v1/jobs?state=failed").await.body["data"].as_array().unwrap().len(), 2);

    let store = tickr.app.broker().store();
    let (day, moment) = (Duration::from_secs(86_400), Duration::ZERO);
    // Failed jobs go and the discarded one stays. Later it goes as well.
    let keep = &Retention { failed: moment, ..Retention::all(day) };
    let gone = eventually("the failed job is purged", || async {
        let purged = store.purge_page(None, keep).await.unwrap().jobs;
        (purged > 0).then_some(purged)
    });
    assert_eq!(gone.await, 1);
    assert_eq!(store.purge_discarded(keep).await.unwrap(), (0, false));
    assert_eq!(tickr.job(old).await["state"], "failed");
    assert_eq!(tickr.get(&format!("/v1/jobs/{other}")).await.status, 404);
    let keep = &Retention { discarded: moment, ..Retention::all(day) };
    assert_eq!(store.purge_discarded(keep).await.unwrap(), (1, false));
    assert_eq!(tickr.get(&format!("/v1/jobs/{old}")).await.status, 404);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM dead_letters").await, 0);
    tickr.stop().await;
}

/// The view for on-call engineers: the latest failure comes first, whatever the age of its job, and the counts go down.
#[tokio::test(flavor = "multi_thread")]
async fn the_newest_failures_are_those_that_failed_last_and_their_count_falls_when_they_are_dealt_with() {
    let tickr = start().await;
    let late = tickr.enqueue(json!({"kind": "say", "payload": {"error": "late"}, "delay_ms": 86_400_000})).await;
    let early = fails(&tickr, "early").await;
    // The oldest job fails last.
    assert_eq!(tickr.post(&format!("/v1/jobs/{late}/run-now"), json!({})).await.status, 200);
    tickr.until(late, State::Failed).await;
    assert_eq!(dead_letters(&tickr, "").await, [early, late], "by job");
    assert_eq!(dead_letters(&tickr, "order=time").await, [late, early], "by time");
    for wrong in ["order=time&kind=noop", "order=time&q=kind:say", "order=age"] {
        let refused = tickr.get(&format!("/v1/dead-letters?{wrong}")).await;
        assert_eq!((refused.status, refused.pointers()), (422, vec!["order"]), "{wrong}");
    }

    let open = async || {
        let stats = tickr.get("/v1/stats").await.body;
        let queues = tickr.get("/v1/queues").await.body;
        let queue = queues["data"].as_array().unwrap().iter().find(|queue| queue["name"] == "default").unwrap().clone();
        assert_eq!(stats["open_dead_letters"], queue["open_dead_letters"], "{stats:#} {queue:#}");
        (stats["open_dead_letters"].as_u64().unwrap(), stats["states"]["failed"].as_u64().unwrap())
    };
    assert_eq!(open().await, (2, 2));
    let done = tickr.post(&format!("/v1/jobs/{early}/discard"), json!({"reason": "known"})).await;
    assert_eq!(done.status, 200);
    assert_eq!(open().await, (1, 2));
    let mend = tickr.post(&format!("/v1/jobs/{late}/replay"), json!({"payload": {}})).await;
    assert_eq!(mend.status, 201, "{:#}", mend.body);
    tickr.until_idle().await;
    let (left, total) = open().await;
    assert_eq!((left, total >= 2), (0, true), "{left} of {total}");
    tickr.stop().await;
}

/// Many failures at once on two runners, with few causes: each has one dead letter, and no deadlock occurs.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_failures_on_two_runners_is_counted_exactly() {
    let tickr = start().await;
    let other = tickr.another_with(|_| {}, kinds()).await;
    let job =
        |n: usize| json!({"kind": "say", "payload": {"error": format!("cause {}: user {n}", ["a", "b", "c"][n % 3])}});
    tickr.enqueue_many((0..600).map(job)).await;
    tickr.until_idle().await;
    let groups = tickr.get("/v1/dead-letters/groups").await.body;
    let counts: BTreeMap<String, u64> = groups["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|group| (group["error"].as_str().unwrap().to_owned(), group["open"].as_u64().unwrap()))
        .collect();
    assert_eq!(counts.values().copied().collect::<Vec<_>>(), [200; 3], "{counts:?}");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM dead_letters").await, 600);
    tickr.assert_sound().await;
    other.stop(tokio_util::sync::CancellationToken::new()).await;
    tickr.stop().await;
}

/// Jobs that failed before dead letters existed, or under a binary that writes none.
#[tokio::test(flavor = "multi_thread")]
async fn failures_without_a_dead_letter_are_found_and_get_one() {
    let tickr = start().await;
    let (one, two) = (fails(&tickr, "user 1 not found").await, fails(&tickr, "user 2 not found").await);
    let done = tickr.enqueue_kind("say", json!({})).await;
    tickr.until(done, State::Completed).await;
    tickr.sql("DELETE FROM dead_letters").await;
    // One job is replayed before its dead letter is inserted.
    assert_eq!(tickr.post(&format!("/v1/jobs/{one}/replay"), json!({"payload": {}})).await.status, 201);
    tickr.until_idle().await;
    let store = tickr.app.broker().store();
    assert_eq!(store.backfill_dead_letters(None).await.unwrap(), (1, None));
    assert_eq!(store.backfill_dead_letters(None).await.unwrap(), (0, None));
    assert_eq!(dead_letters(&tickr, "").await, [two]);
    assert_eq!(tickr.get("/v1/dead-letters/groups").await.body["data"][0]["error"], "user # not found");
    tickr.assert_sound().await;
    tickr.stop().await;
}

/// Two runners evaluate the same rules, and one of them sends the alert: once when the threshold is crossed, and once
/// when the alert is over.
#[tokio::test(flavor = "multi_thread")]
async fn new_dead_letters_of_a_kind_are_counted_behind_any_number_of_old_ones() {
    let tickr = start().await;
    for (kind, number, first, age) in [("old", 100, 0, "2 HOUR"), ("new", 20, 1_000, "1 HOUR")] {
        tickr
            .sql(format!(
                "INSERT INTO dead_letters (job_id, kind, queue, fingerprint, failed_at, error, since) \
                 WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {number}) \
                 SELECT UNHEX(LPAD(HEX({first} + n), 32, '0')), '{kind}', 'default', x'0123456789abcdef', \
                 UTC_TIMESTAMP(6) - INTERVAL {age}, 'no', UTC_TIMESTAMP(6) - INTERVAL {age} FROM n"
            ))
            .await;
    }
    let store = tickr.app.broker().store();
    let counts = async |most: u32| {
        let counts = store.dead_letter_counts(most).await.unwrap();
        let of = |kind: &str| counts.iter().find(|count| count.kind.as_str() == kind);
        ["old", "new"].map(|kind| of(kind).map_or((0, 0), |count| (count.open, count.oldest_ms / 3_600_000)))
    };
    for most in [1_000, 120, 119, 100, 60] {
        assert_eq!(counts(most).await, [(100, 2), (20, 1)], "{most}");
    }
    // The oldest and the newest thirty, and the oldest and the newest ten.
    assert_eq!(counts(30).await, [(40, 2), (20, 1)]);
    assert_eq!(counts(10).await, [(10, 2), (10, 1)]);
    tickr.stop_broken("dead letters of jobs that never were").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alert_fires_once_with_two_runners_and_resolves_once() {
    // This receiver answers every request with 200.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let (heard, mut hears) = tokio::sync::mpsc::unbounded_channel::<Value>();
    let receiver = tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let (mut request, mut chunk) = (Vec::new(), [0; 4_096]);
            loop {
                let read = socket.read(&mut chunk).await.unwrap();
                request.extend_from_slice(&chunk[..read]);
                let text = String::from_utf8_lossy(&request).into_owned();
                let body = text.split_once("\r\n\r\n").and_then(|(_, body)| serde_json::from_str(body).ok());
                if let Some(body) = body {
                    heard.send(body).unwrap();
                    break;
                }
                assert!(read > 0, "{text}");
            }
            socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await.unwrap();
        }
    });
    let say: tickr::job::Name = "say".parse().unwrap();
    let alerts = tickr::config::Alerts {
        url,
        queue: "default".into(),
        cooldown: Duration::from_secs(3_600),
        all: tickr::config::Threshold { dead_letters: Some(5), dead_letter_age: None },
        kinds: BTreeMap::from([(
            say.to_string(),
            tickr::config::Threshold { dead_letters: None, dead_letter_age: Some(Duration::from_secs(86_400)) },
        )]),
    };
    let tickr = TestApp::start_with(|config| config.alerts = Some(alerts), kinds()).await;
    let other = tickr.another_with(|_| {}, kinds()).await;
    for n in 0..5 {
        fails(&tickr, &format!("user {n} not found")).await;
    }
    let fired = tokio::time::timeout(crate::support::DEADLINE, hears.recv()).await.unwrap().unwrap();
    assert_eq!(
        (&fired["type"], &fired["alert"], &fired["open"]),
        (&json!("dead_letters.fired"), &json!("dead_letters"), &json!(5))
    );
    assert_eq!(fired["threshold"], json!({"count": 5, "age_seconds": null}));
    let metrics = reqwest::get(tickr.url("/metrics")).await.unwrap().text().await.unwrap();
    let line = |name: &str| metrics.lines().any(|line| line.starts_with(name) && line.contains("kind=\"say\""));
    assert!(line("tickr_dead_letters{") && line("tickr_dead_letter_oldest_seconds{"), "{metrics}");

    // The oldest dead letter is a day old, which fires the rule of its kind and no other.
    tickr.sql("UPDATE dead_letters SET since = since - INTERVAL 1 DAY ORDER BY job_id LIMIT 1").await;
    let aged = tokio::time::timeout(crate::support::DEADLINE, hears.recv()).await.unwrap().unwrap();
    assert_eq!(
        (&aged["type"], &aged["alert"], &aged["kind"]),
        (&json!("dead_letters.fired"), &json!("dead_letters:say"), &json!("say"))
    );

    // After the dead letters are discarded, both alerts are reported as resolved.
    let body = json!({"action": "discard", "filter": {"kind": "say"}, "reason": "known"});
    assert_eq!(tickr.post("/v1/operations", body).await.status, 202);
    let mut over = Vec::new();
    for _ in 0..2 {
        over.push(tokio::time::timeout(crate::support::DEADLINE, hears.recv()).await.unwrap().unwrap());
    }
    assert!(over.iter().all(|told| told["type"] == "dead_letters.resolved" && told["open"] == 0), "{over:?}");
    tickr.until_idle().await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs WHERE kind = 'http'").await, 4, "each alert was sent once");
    other.stop(tokio_util::sync::CancellationToken::new()).await;
    tickr.assert_sound().await;
    tickr.stop().await;
    receiver.abort();
}

/// Alerts about the first dead letter of all kinds.
fn alerts_to(receiver: &Sink, cooldown: Duration) -> Alerts {
    Alerts {
        url: receiver.url(),
        queue: "default".into(),
        cooldown,
        all: Threshold { dead_letters: Some(1), dead_letter_age: None },
        kinds: BTreeMap::new(),
    }
}

/// Callbacks that are tried again after this time.
fn retried_after(delay: Duration) -> [(String, KindConfig); 1] {
    let http = KindConfig { retry_base: Some(delay), retry_factor: Some(1.0), ..KindConfig::default() };
    [("http".into(), http)]
}

/// Wait until the receiver has been called this often, and return the bodies.
async fn heard(receiver: &Sink, times: usize) -> Vec<Value> {
    eventually(&format!("the receiver is called {times} times"), || async {
        let calls = receiver.calls();
        (calls.len() >= times).then(|| calls.into_iter().map(|call| call.body).collect())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_the_receiver_delays_an_alert_and_does_not_lose_it() {
    // More failures than a callback has attempts of its own accord.
    const OUT: usize = 8;
    let receiver = Sink::start(|call, _| (if call < OUT { 503 } else { 200 }, String::new())).await;
    let alerts = alerts_to(&receiver, Duration::from_secs(3_600));
    let change = |config: &mut Config| {
        config.alerts = Some(alerts);
        config.kinds.extend(retried_after(Duration::from_millis(50)));
    };
    let tickr = TestApp::start_with(change, kinds()).await;
    let failed = fails(&tickr, "user 7 not found").await;
    let bodies = heard(&receiver, OUT + 1).await;
    assert!(bodies.iter().all(|body| body == &bodies[0]), "{bodies:#?}");
    assert_eq!((&bodies[0]["type"], &bodies[0]["open"]), (&json!("dead_letters.fired"), &json!(1)));
    tickr.until_idle().await;
    assert_eq!(dead_letters(&tickr, "").await, [failed]);
    assert_eq!(receiver.calls().len(), OUT + 1);
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alert_that_its_receiver_refuses_is_sent_again_and_counts_for_no_rule() {
    let receiver = Sink::start(|call, _| (if call == 0 { 404 } else { 200 }, String::new())).await;
    let alerts = alerts_to(&receiver, Duration::from_secs(1));
    let tickr = TestApp::start_with(|config| config.alerts = Some(alerts), kinds()).await;
    let failed = fails(&tickr, "user 7 not found").await;
    let bodies = heard(&receiver, 2).await;
    // The failed delivery is a second open dead letter, which the rule does not count.
    for body in &bodies {
        assert_eq!((&body["type"], &body["open"]), (&json!("dead_letters.fired"), &json!(1)), "{bodies:#?}");
    }
    let calls = receiver.calls();
    assert_ne!(calls[0].headers["tickr-job-id"], calls[1].headers["tickr-job-id"], "another job delivers it");
    // The message that was sent again replaces the one that failed.
    assert_eq!(dead_letters(&tickr, "").await, [failed]);
    assert_eq!(dead_letters(&tickr, "status=discarded").await.len(), 1);
    tickr.until_idle().await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn resolved_does_not_overtake_the_alert_before_it_at_its_receiver() {
    let receiver = Sink::start(|call, _| (if call == 0 { 503 } else { 200 }, String::new())).await;
    let alerts = alerts_to(&receiver, Duration::from_secs(3_600));
    // A runner measures every five seconds, so `resolved` is sent before the second attempt.
    let change = |config: &mut Config| {
        config.alerts = Some(alerts);
        config.kinds.extend(retried_after(Duration::from_millis(6_500)));
    };
    let tickr = TestApp::start_with(change, kinds()).await;
    let failed = fails(&tickr, "user 7 not found").await;
    heard(&receiver, 1).await;
    let done = tickr.post(&format!("/v1/jobs/{failed}/discard"), json!({"reason": "known"})).await;
    assert_eq!(done.status, 200, "{:#}", done.body);
    let bodies = heard(&receiver, 3).await;
    let types: Vec<&str> = bodies.iter().map(|body| body["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["dead_letters.fired", "dead_letters.fired", "dead_letters.resolved"]);
    let at = |body: &Value| body["at"].as_str().unwrap().parse::<tickr::job::Timestamp>().unwrap();
    assert!(at(&bodies[1]) < at(&bodies[2]), "{bodies:#?}");
    tickr.until_idle().await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alert_that_cannot_be_written_does_not_hold_up_other_rules() {
    let receiver = Sink::start(|_, _| (200, String::new())).await;
    let tickr = start().await;
    fails(&tickr, "user 7 not found").await;
    let proxy = Proxy::start(tickr.config.mysql_url().unwrap().expose()).await;
    // The rule for all kinds comes first.
    proxy.refuse("UPDATE alerts SET firing", 1142, 1);
    let mut alerts = alerts_to(&receiver, Duration::from_secs(3_600));
    alerts.kinds.insert("say".into(), Threshold { dead_letters: Some(1), dead_letter_age: None });
    let through = Config::for_tests(&proxy.url(), "redis://unused");
    let change = |config: &mut Config| (config.mysql_url, config.alerts) = (through.mysql_url, Some(alerts));
    let other = tickr.another_with(change, kinds()).await;
    heard(&receiver, 2).await;
    let first = "SELECT COUNT(*) FROM alerts a JOIN alerts b ON b.name = 'dead_letters' \
                 WHERE a.name = 'dead_letters:say' AND a.fired_at < b.fired_at";
    assert_eq!(tickr.count(first).await, 1, "the rule behind the one that failed is told first");
    tickr.until_idle().await;
    other.stop(CancellationToken::new()).await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_count_of_dead_letters_that_mysql_refuses_is_said_in_the_log() {
    let tickr = start().await;
    let proxy = Proxy::start(tickr.config.mysql_url().unwrap().expose()).await;
    proxy.refuse("SELECT d.kind, d.of_alerts, COUNT(*) AS counted", 1142, usize::MAX);
    let url = proxy.url();
    let runner = Runner::start(&tickr, &[("TICKR_MYSQL_URL", url.as_str())]);
    runner.until_log("cannot count dead letters").await;
    let log = runner.log();
    let line = log.lines().find(|line| line.contains("cannot count dead letters")).unwrap();
    assert!(line.contains("WARN"), "{line}");
    drop(runner);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_was_first_seen_when_it_was_first_seen_however_often_its_jobs_were_replayed() {
    let tickr = start().await;
    let old = fails(&tickr, "user 7 not found").await;
    let first = tickr.job(old).await["dead_letter"]["failed_at"].clone();
    let replay = async |id: JobId, body: Value| {
        let made = tickr.post(&format!("/v1/jobs/{id}/replay"), body).await;
        assert_eq!(made.status, 201, "{:#}", made.body);
        let made: JobId = made.body["id"].as_str().unwrap().parse().unwrap();
        tickr.until(made, State::Failed).await;
        made
    };
    let groups = async || tickr.get("/v1/dead-letters/groups").await.body["data"].as_array().unwrap().clone();
    // It is replayed without success, twice, the second time as a retry of the replay.
    let again = replay(old, json!({})).await;
    assert_eq!((groups().await.len(), &groups().await[0]["first_seen"]), (1, &first));
    let third = replay(again, json!({})).await;
    assert_eq!(tickr.post(&format!("/v1/jobs/{third}/retry"), json!({})).await.status, 200);
    tickr.until_attempts(third, 2).await;
    tickr.until(third, State::Failed).await;
    let group = groups().await.remove(0);
    assert_eq!((&group["first_seen"], &group["open"]), (&first, &json!(1)));
    assert_eq!(group["last_seen"], tickr.job(third).await["dead_letter"]["failed_at"]);
    let fingerprint = group["fingerprint"].as_str().unwrap();
    assert_eq!(tickr.get(&format!("/v1/dead-letters/groups/{fingerprint}")).await.body["first_seen"], first);

    // A failure with another cause is a new incident.
    let other = replay(third, json!({"payload": {"error": "the disk is full"}})).await;
    let failed_at = tickr.job(other).await["dead_letter"]["failed_at"].clone();
    assert_eq!((groups().await.len(), &groups().await[0]["first_seen"]), (1, &failed_at));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_that_cannot_be_read_is_refused_by_name_and_holds_up_no_other() {
    let tickr = start().await;
    let ids = [fails(&tickr, "a").await, fails(&tickr, "b").await, fails(&tickr, "c").await];
    let options = async |text: &str| {
        tickr.sql(format!("UPDATE jobs SET options = {text} WHERE id = UNHEX('{}')", ids[1].uuid().simple())).await;
    };
    // A newer version may have written such options.
    options(r#"'{"retry":{"curve":"cubic"}}'"#).await;
    let refused = tickr.post(&format!("/v1/jobs/{}/replay", ids[1]), json!({})).await;
    assert_eq!((refused.status, refused.code()), (422, "invalid_request"), "{:#}", refused.body);
    let detail = refused.body["detail"].as_str().unwrap();
    assert!(detail.contains(&ids[1].to_string()) && detail.contains("options"), "{detail}");
    assert_eq!(dead_letters(&tickr, "").await.len(), 3, "no job was replayed");

    let all = json!({"action": "replay", "filter": {"ids": ids}});
    let started = tickr.post("/v1/operations", all).await;
    assert_eq!(started.status, 202, "{:#}", started.body);
    let path = format!("/v1/operations/{}", started.body["id"].as_str().unwrap());
    let over = eventually("the operation is over", || async {
        let operation = tickr.get(&path).await.body;
        (operation["state"] != "running").then_some(operation)
    })
    .await;
    assert_eq!((&over["state"], &over["done"], &over["failed"]), (&json!("done"), &json!(2), &json!(1)), "{over:#}");
    assert!(over["last_error"].as_str().unwrap().contains(&ids[1].to_string()), "{over:#}");
    tickr.until_idle().await;
    assert!(dead_letters(&tickr, "").await.contains(&ids[1]));
    options("NULL").await;
    tickr.stop().await;
}
