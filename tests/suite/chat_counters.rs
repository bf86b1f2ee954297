//! The counters of `examples/chat`: numbers from a Redis that forgets, rows that lag, counts that follow.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Executor as _, Row as _};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::support::chat::{Server, World};
use crate::support::{DEADLINE, answer, eventually_seen, http, program};

/// Ask for something new. Return the status and the body.
async fn make(base: &str, path: &str, body: &Value) -> Result<(u16, Value), reqwest::Error> {
    make_by(&http(), base, path, body).await
}

/// Do the same with a client that keeps its connections.
async fn make_by(
    client: &reqwest::Client,
    base: &str,
    path: &str,
    body: &Value,
) -> Result<(u16, Value), reqwest::Error> {
    let answer = client.post(format!("{base}{path}")).json(body).send().await?;
    let status = answer.status().as_u16();
    Ok((status, answer.json().await?))
}

async fn application(server: &Server) -> String {
    let (status, body) = make(&server.url, "/applications", &json!({"name": "shop"})).await.unwrap();
    assert_eq!(status, 201, "{body}");
    body["token"].as_str().unwrap().to_owned()
}

async fn number(server: &Server, path: &str, body: &Value) -> i64 {
    let (status, answer) = make(&server.url, path, body).await.unwrap();
    assert_eq!(status, 201, "{path}: {answer}");
    answer["number"].as_i64().unwrap()
}

async fn chat(server: &Server, token: &str) -> i64 {
    number(server, &format!("/applications/{token}/chats"), &json!({})).await
}

async fn message(server: &Server, token: &str, chat: i64, body: &str) -> i64 {
    number(server, &format!("/applications/{token}/chats/{chat}/messages"), &json!({"body": body})).await
}

/// Set the counter of the messages of a chat in Redis.
async fn set_counter(world: &World, token: &str, chat: i64, value: i64) {
    let key = format!("{}:chat:counter:messages:{token}:{chat}", world.tickr.config.redis_prefix);
    redis::cmd("SET").arg(key).arg(value).exec_async(&mut world.tickr.redis().await).await.unwrap();
}

async fn operate(server: &Server, path: &str) {
    let tickr = server.runner.base().await;
    let done = answer(http().post(format!("{tickr}{path}")).json(&json!({"reason": "test"}))).await;
    assert_eq!(done.status, 200, "{:#}", done.body);
}

/// What the callers of a run were answered.
#[derive(Default)]
struct Answered {
    /// Bodies by number, for each chat.
    numbers: Mutex<HashMap<i64, BTreeMap<i64, String>>>,
    repeated: Mutex<Vec<(i64, i64)>>,
    failed: AtomicU64,
    /// The chats in the order of their answers.
    chats: Mutex<Vec<i64>>,
    failed_chats: AtomicU64,
}

/// Callers on two servers, while Redis forgets everything again and again, and both servers and Redis are killed once,
/// at the same moment. They make the chats among the messages, at even distances. Each answered number is there once, and
/// its row comes.
async fn create(callers: usize, total: usize, chats: u64) {
    let world = World::alone().await;
    let counts = [("CHAT_COUNTS_MS", "500")];
    let (one, two) = (world.server(&counts).await, world.server(&counts).await);
    let token = application(&one).await;
    let answered = Arc::<Answered>::default();
    let first = chat(&one, &token).await;
    answered.chats.lock().unwrap().push(first);
    let urls = Arc::new(Mutex::new([one.url.clone(), two.url.clone()]));
    let left = Arc::new(AtomicU64::new(total as u64));
    // Chats that callers make or have made.
    let begun = Arc::new(AtomicU64::new(1));
    let mut calls = JoinSet::new();
    for caller in 0..callers {
        let (answered, urls, left, begun, token) =
            (Arc::clone(&answered), Arc::clone(&urls), Arc::clone(&left), Arc::clone(&begun), token.clone());
        calls.spawn(async move {
            let (client, mut round) = (http(), caller);
            let base = |round: usize| urls.lock().unwrap()[round % 2].clone();
            while let Ok(was_left) = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)) {
                let wanted = (1 + (total as u64 - was_left) * chats / total as u64).min(chats);
                let mut is_due = begun
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |begun| (begun < wanted).then_some(begun + 1))
                    .is_ok();
                while is_due {
                    round += 1;
                    let path = format!("/applications/{token}/chats");
                    match make_by(&client, &base(round), &path, &json!({})).await {
                        Ok((201, made)) => {
                            answered.chats.lock().unwrap().push(made["number"].as_i64().unwrap());
                            is_due = false;
                        }
                        Ok((503, _)) | Err(_) => {
                            answered.failed_chats.fetch_add(1, Ordering::SeqCst);
                            tokio::time::sleep(Duration::from_millis(50)).await;
                        }
                        Ok((status, body)) => panic!("{status}: {body}"),
                    }
                }
                round += 1;
                let chat = {
                    let known = answered.chats.lock().unwrap();
                    known[round % known.len()]
                };
                let base = base(round);
                let body = format!("{caller} {round}");
                let path = format!("/applications/{token}/chats/{chat}/messages");
                match make_by(&client, &base, &path, &json!({"body": body})).await {
                    Ok((201, made)) => {
                        let number = made["number"].as_i64().unwrap();
                        let mut numbers = answered.numbers.lock().unwrap();
                        if numbers.entry(chat).or_default().insert(number, body).is_some() {
                            answered.repeated.lock().unwrap().push((chat, number));
                        }
                    }
                    Ok((503, _)) | Err(_) => {
                        answered.failed.fetch_add(1, Ordering::SeqCst);
                        left.fetch_add(1, Ordering::SeqCst);
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                    Ok((status, body)) => panic!("{status}: {body}"),
                }
            }
        });
    }
    let over = CancellationToken::new();
    // The test does not talk to a Redis that it has killed.
    let redis = tokio::sync::Mutex::new(());
    let forgets = async {
        let (mut every, mut flushed) = (tokio::time::interval(Duration::from_millis(200)), 0);
        while over.run_until_cancelled(every.tick()).await.is_some() {
            let _alive = redis.lock().await;
            world.forget().await;
            flushed += 1;
        }
        flushed
    };
    let deaths = async {
        let mut servers = [one, two];
        let half = total as u64 / 2;
        while left.load(Ordering::SeqCst) > half {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        {
            let _dead = redis.lock().await;
            world.tickr.services().redis().kill9().unwrap();
            servers.iter_mut().for_each(|server| server.runner.kill9());
            world.tickr.services().redis().start_again().unwrap();
        }
        let servers = [world.server(&counts).await, world.server(&counts).await];
        *urls.lock().unwrap() = [servers[0].url.clone(), servers[1].url.clone()];
        while let Some(done) = calls.join_next().await {
            done.unwrap();
        }
        over.cancel();
        servers
    };
    let (flushed, servers) = tokio::join!(forgets, deaths);
    world.until_idle().await;

    assert_eq!(*answered.repeated.lock().unwrap(), []);
    let sql = "SELECT chat, number, body FROM counter_messages WHERE application_token = ?";
    let rows = sqlx::query(sql).bind(&token).fetch_all(&mut world.tickr.mysql().await).await.unwrap();
    let mut written: HashMap<i64, BTreeMap<i64, String>> = HashMap::new();
    for row in &rows {
        let (chat, number): (i64, i64) = (row.try_get("chat").unwrap(), row.try_get("number").unwrap());
        written.entry(chat).or_default().insert(number, row.try_get("body").unwrap());
    }
    let (mut count, mut gaps) = (0, 0);
    for (chat, numbers) in answered.numbers.lock().unwrap().iter() {
        for (number, body) in numbers {
            assert_eq!(written[chat].get(number), Some(body), "message {number} of chat {chat}");
        }
        count += numbers.len();
        gaps += usize::try_from(*written[chat].keys().next_back().unwrap()).unwrap() - written[chat].len();
    }
    let failed = answered.failed.load(Ordering::SeqCst);
    println!("{count} numbers, {failed} failed requests, {gaps} gaps, {flushed} flushes of Redis");
    assert_eq!(count, total);
    assert!(gaps as u64 <= failed, "{gaps} gaps and {failed} failed requests");

    let made = std::mem::take(&mut *answered.chats.lock().unwrap());
    let distinct: BTreeSet<i64> = made.iter().copied().collect();
    assert_eq!((made.len() as u64, distinct.len()), (chats, made.len()), "{made:?}");
    let sql = "SELECT number FROM counter_chats WHERE application_token = ?";
    let rows: Vec<i64> = sqlx::query_scalar(sql).bind(&token).fetch_all(&mut world.tickr.mysql().await).await.unwrap();
    let rows: BTreeSet<i64> = rows.into_iter().collect();
    assert!(distinct.is_subset(&rows), "{distinct:?}, and rows of {rows:?}");
    let gaps = rows.last().unwrap().unsigned_abs() - rows.len() as u64;
    let failed = answered.failed_chats.load(Ordering::SeqCst);
    println!("{} chats, {failed} failed requests for one, {gaps} gaps", made.len());
    assert!(gaps <= failed, "{gaps} gaps and {failed} failed requests");
    world.end(servers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_are_unique_and_rows_come_while_redis_forgets_and_both_servers_are_killed() {
    create(10, 250, 5).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a machine for itself"]
async fn whole_20000_creates_of_50_callers_over_20_chats() {
    create(50, 20_000, 20).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_whose_worker_is_killed_after_it_took_the_job_gets_its_row_from_another_one() {
    let world = World::new().await;
    let soon = [("CHAT_COUNTS_MS", "500")];
    let mut server = world.server(&soon).await;
    let token = application(&server).await;
    let one = chat(&server, &token).await;
    world.tickr.until_count("SELECT COUNT(*) FROM counter_chats", 1).await;
    // Another session has the row and does not commit it. So the worker that took the job waits for it.
    let mut session = world.tickr.mysql().await;
    session.execute("BEGIN").await.unwrap();
    let row = format!(
        "INSERT INTO counter_messages (application_token, chat, number, job, body, asked_at, written_at) \
         VALUES ('{token}', {one}, 1, 'none', 'never there', UTC_TIMESTAMP(3), UTC_TIMESTAMP(3))"
    );
    session.execute(sqlx::raw_sql(AssertSqlSafe(row))).await.unwrap();
    assert_eq!(message(&server, &token, one, "kept").await, 1);
    let taken = "SELECT COUNT(*) FROM owed o JOIN jobs j ON j.id = o.id \
                 WHERE j.payload LIKE '%kept%' AND o.state = 'executing'";
    world.tickr.until_count(taken, 1).await;
    server.runner.kill9();
    session.execute("ROLLBACK").await.unwrap();

    let server = world.server(&soon).await;
    world.tickr.until_count("SELECT COUNT(*) FROM counter_messages WHERE body = 'kept' AND number = 1", 1).await;
    world.until_idle().await;
    assert_eq!(world.tickr.count("SELECT COUNT(*) FROM counter_messages").await, 1);
    let lost = "SELECT COUNT(*) FROM attempts a JOIN jobs j ON j.id = a.job_id \
                WHERE j.payload LIKE '%kept%' AND a.verdict = 'lost'";
    assert!(world.tickr.count(lost).await > 0, "no worker was killed with the job");
    assert_eq!(world.tickr.get("/v1/dead-letters").await.body["data"], json!([]));
    world.end([server]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_counter_that_is_lost_or_old_begins_behind_the_newest_number_also_when_its_row_is_still_to_come() {
    let world = World::new().await;
    let server = world.server(&[("CHAT_COUNTS_MS", "500")]).await;
    let token = application(&server).await;
    let one = chat(&server, &token).await;
    for wanted in 1..=20 {
        assert_eq!(message(&server, &token, one, "a").await, wanted);
    }
    world.tickr.until_count("SELECT COUNT(*) FROM counter_messages", 20).await;
    // The same server meets the same chat, and Redis alone has lost it.
    world.forget().await;
    assert_eq!(message(&server, &token, one, "b").await, 21);

    // The rows lag: more of them than a request draws again.
    world.tickr.until_count("SELECT COUNT(*) FROM counter_messages", 21).await;
    operate(&server, "/v1/queues/default/pause").await;
    for wanted in 22..=42 {
        assert_eq!(message(&server, &token, one, "c").await, wanted);
    }
    let second = chat(&server, &token).await;
    world.forget().await;
    assert_eq!(message(&server, &token, one, "d").await, 43);
    assert_eq!((second, chat(&server, &token).await), (2, 3));
    // A chat without a row is there all the same, and one that was never made is not.
    assert_eq!(message(&server, &token, second, "e").await, 1);
    let none = format!("/applications/{token}/chats/4/messages");
    assert_eq!(make(&server.url, &none, &json!({"body": "f"})).await.unwrap().0, 404);
    assert_eq!(chat(&server, &token).await, 4);
    assert_eq!(number(&server, &none, &json!({"body": "f"})).await, 1, "the answer before was not kept");
    let now = "SELECT CAST(UNIX_TIMESTAMP(UTC_TIMESTAMP(3)) * 1000 AS SIGNED)";
    let resumed_ms = world.tickr.count(now).await;
    operate(&server, "/v1/queues/default/resume").await;
    world.tickr.until_count("SELECT COUNT(*) FROM counter_messages", 45).await;
    // The rows lag by the pause and no longer than usual beyond it.
    let last_ms = "SELECT CAST(UNIX_TIMESTAMP(MAX(written_at)) * 1000 AS SIGNED) FROM counter_messages";
    let lag_ms = world.tickr.count(last_ms).await - resumed_ms;
    println!("the last row came {lag_ms} ms after the resume");
    assert!((0..5_000).contains(&lag_ms), "{lag_ms} ms after the resume");

    // Redis comes back with an old copy. The numbers that it gives are taken, more of them than a request draws again.
    set_counter(&world, &token, one, 3).await;
    assert_eq!(message(&server, &token, one, "g").await, 44);
    // The copy is older than the time for which the jobs keep their keys.
    world.until_idle().await;
    world.tickr.sql("UPDATE unique_keys SET held_until = UTC_TIMESTAMP(3) WHERE held_until IS NOT NULL").await;
    set_counter(&world, &token, one, 3).await;
    assert_eq!(message(&server, &token, one, "h").await, 45);
    let key = format!("{}:chat:counter:chats:{token}", world.tickr.config.redis_prefix);
    redis::cmd("SET").arg(key).arg(1).exec_async(&mut world.tickr.redis().await).await.unwrap();
    assert_eq!(chat(&server, &token).await, 5);
    world.until_idle().await;
    assert_eq!(world.tickr.count("SELECT COUNT(*) FROM counter_messages WHERE body = 'c'").await, 21);
    assert_eq!(world.tickr.count("SELECT COUNT(*) FROM counter_messages WHERE body IN ('g', 'h')").await, 2);
    let letters = world.tickr.get("/v1/dead-letters").await.body;
    assert_eq!(letters["data"], json!([]));
    world.end([server]).await;
}

/// The result of messages at a rate on one application.
struct Counted {
    /// Time until the last number was answered.
    took: Duration,
    /// Time from a number to its row, p99.
    lag: Duration,
    /// Time from the last row to the end of the last update of the counts.
    settled: Duration,
}

/// Read a time between two columns, in milliseconds.
async fn millis(world: &World, sql: &'static str, offset: i64) -> Duration {
    let row = sqlx::query(sql).bind(offset).fetch_one(&mut world.tickr.mysql().await).await.unwrap();
    Duration::from_millis(u64::try_from(row.try_get::<i64, _>("ms").unwrap()).unwrap())
}

/// Send messages at a rate on one application. A server that cannot take one says so, and is asked again.
async fn counted(count: i64, a_second: u32, every: Duration) -> Counted {
    let world = World::new().await;
    let interval = every.as_millis().to_string();
    let server = world.server(&[("CHAT_COUNTS_MS", &interval)]).await;
    let token = application(&server).await;
    let chats = [chat(&server, &token).await, chat(&server, &token).await];
    let began = Instant::now();
    let mut tick = tokio::time::interval(Duration::from_secs(1) / a_second);
    let (client, mut calls) = (http(), JoinSet::new());
    // More calls at a time would use up the descriptors of the process.
    let turns = Arc::new(Semaphore::new(256));
    for number in 0..count {
        tick.tick().await;
        let (client, base, turns) = (client.clone(), server.url.clone(), Arc::clone(&turns));
        let chat = chats[usize::from(number % 2 == 1)];
        let path = format!("/applications/{token}/chats/{chat}/messages");
        calls.spawn(async move {
            let _turn = turns.acquire().await.unwrap();
            let deadline = Instant::now() + DEADLINE;
            loop {
                match make_by(&client, &base, &path, &json!({"body": "m"})).await {
                    Ok((201, _)) => return,
                    Ok((503, _)) => assert!(Instant::now() < deadline, "the server takes no message"),
                    other => panic!("{other:?}"),
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
    }
    calls.join_all().await;
    let took = began.elapsed();
    world.until_idle().await;

    // The counts are those of the rows. An answer of 503 may be late, so there may be more rows than answers of 201.
    let mut all = 0;
    for number in chats {
        let path = format!("{}/applications/{token}/chats/{number}", server.url);
        let shown: Value = http().get(path).send().await.unwrap().json().await.unwrap();
        let rows = world.tickr.count(format!("SELECT COUNT(*) FROM counter_messages WHERE chat = {number}")).await;
        assert_eq!(shown["messages_count"], rows);
        all += rows;
    }
    assert!(all >= count, "{all} rows for {count} numbers");
    let shown: Value =
        http().get(format!("{}/applications/{token}", server.url)).send().await.unwrap().json().await.unwrap();
    assert_eq!((&shown["name"], &shown["chats_count"]), (&json!("shop"), &json!(2)));

    // No interval, wherever it begins, has three updates.
    let sql = "SELECT a.started_at FROM attempts a JOIN jobs j ON j.id = a.job_id \
               WHERE j.kind = 'chat.counts' ORDER BY a.started_at";
    let rows = sqlx::query(sql).fetch_all(&mut world.tickr.mysql().await).await.unwrap();
    let started: Vec<chrono::NaiveDateTime> = rows.iter().map(|row| row.try_get("started_at").unwrap()).collect();
    for three in started.windows(3) {
        assert!((three[2] - three[0]).to_std().unwrap() >= every, "three updates of the counts: {three:?}");
    }
    println!("{all} messages in {took:?}, {} updates of the counts", started.len());
    let lag = "SELECT TIMESTAMPDIFF(MICROSECOND, asked_at, written_at) DIV 1000 AS ms FROM counter_messages \
               ORDER BY ms LIMIT 1 OFFSET ?";
    let lag = millis(&world, lag, all * 99 / 100).await;
    let settled = "SELECT TIMESTAMPDIFF(MICROSECOND, (SELECT MAX(written_at) FROM counter_messages), a.finished_at) \
                   DIV 1000 AS ms FROM attempts a JOIN jobs j ON j.id = a.job_id WHERE j.kind = 'chat.counts' \
                   ORDER BY a.finished_at DESC LIMIT 1 OFFSET ?";
    let settled = millis(&world, settled, 0).await;
    world.end([server]).await;
    Counted { took, lag, settled }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_messages_cost_few_updates_of_the_counts_which_are_right_in_the_end() {
    let Counted { lag, settled, .. } = counted(100, 50, Duration::from_millis(500)).await;
    println!("rows {lag:?} late (p99), counts right {settled:?} after the last row");
    assert!(lag < Duration::from_secs(5), "{lag:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a machine for itself"]
async fn whole_10000_messages_at_1000_a_second_on_one_application() {
    let every = Duration::from_secs(2);
    let Counted { took, lag, settled } = counted(10_000, 1_000, every).await;
    println!("10,000 numbers in {took:?}, rows {lag:?} late (p99), counts right {settled:?} after the last row");
    assert!(settled <= every + Duration::from_secs(1), "{settled:?}");
    // A debug build does not reach the rate.
    assert!(!program::is_release() || took <= Duration::from_secs(11), "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a machine for itself"]
async fn whole_lag_of_the_rows_at_200_a_second() {
    let Counted { took, lag, .. } = counted(4_000, 200, Duration::from_secs(2)).await;
    println!("4,000 numbers in {took:?}, rows {lag:?} late (p99)");
    assert!(lag < Duration::from_secs(5), "{lag:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_collides_is_drawn_again() {
    let world = World::new().await;
    let seed = [("CHAT_TOKEN_SEED", "7")];
    let (one, two) = (world.server(&seed).await, world.server(&seed).await);
    let tokens = [application(&one).await, application(&two).await, application(&one).await];
    let distinct: BTreeSet<&String> = tokens.iter().collect();
    assert_eq!(distinct.len(), 3, "{tokens:?}");
    world.end([one, two]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_without_memory_or_without_life_repeats_no_number() {
    let world = World::alone().await;
    let server = world.server(&[("CHAT_COUNTS_MS", "100")]).await;
    let token = application(&server).await;
    let one = chat(&server, &token).await;
    assert_eq!(message(&server, &token, one, "a").await, 1);
    let config = async |value: &str| {
        let mut redis = world.tickr.redis().await;
        redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(value).exec_async(&mut redis).await.unwrap();
    };
    config("1").await;
    let path = format!("/applications/{token}/chats/{one}/messages");
    let (mut last, mut refused) = (1, 0);
    for _ in 0..10 {
        match make(&server.url, &path, &json!({"body": "b"})).await.unwrap() {
            (201, made) => {
                let number = made["number"].as_i64().unwrap();
                assert!(number > last, "{number} after {last}");
                last = number;
            }
            (status, body) => {
                assert_eq!(status, 503, "{body}");
                refused += 1;
            }
        }
    }
    println!("a full Redis: {refused} of 10 requests are told to come again");
    config("0").await;
    let next = message(&server, &token, one, "b").await;
    assert!(next > last, "{next} after {last}");
    last = next;

    // Redis dies and comes back empty.
    world.tickr.services().redis().kill9().unwrap();
    assert_eq!(make(&server.url, &path, &json!({"body": "c"})).await.unwrap().0, 503);
    world.tickr.services().redis().start_again().unwrap();
    world.tickr.flush_redis().await;
    let next = eventually_seen("the counter is back", || async {
        match make(&server.url, &path, &json!({"body": "d"})).await.unwrap() {
            (201, made) => Ok(made["number"].as_i64().unwrap()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert!(next > last, "{next} after {last}");
    world.until_idle().await;
    let rows = world.tickr.count("SELECT COUNT(*) FROM counter_messages").await;
    assert_eq!(rows, 3 + 10 - refused, "each answered number has its row");
    world.end([server]).await;
}
