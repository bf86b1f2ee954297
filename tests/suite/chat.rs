//! The chat of `examples/chat`, driven as its users drive it: over its sockets and routes, on several servers, which
//! are killed and stopped meanwhile. Each test is scaled down; those that are ignored have the whole size, and
//! `docs/CHAT.md` has their command.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Executor as _, Row as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::Message as Frame;
use uuid::Uuid;

use crate::support::browser::{Browser, Page, button, field};
use crate::support::chat::{Manner, Person, Seen, Server, World, ask};
use crate::support::program::{Program, command, example, nothing_runs_in};
use crate::support::{Condition, DEADLINE, Proxy, Relay, answer, eventually, http, lasting_addr};

/// Send messages from one user to another at a rate, from client number 1 on.
async fn talk(from: &Person, conversation: &str, count: i64, a_second: u32) -> Vec<String> {
    let mut tick = tokio::time::interval(Duration::from_secs(1) / a_second);
    let mut ids = Vec::new();
    for number in 1..=count {
        tick.tick().await;
        ids.push(from.send(conversation, number, &number.to_string()));
    }
    ids
}

fn numbers(count: i64) -> Vec<String> {
    (1..=count).map(|number| number.to_string()).collect()
}

/// Return the value below which 99 of 100 lie, and the median.
fn quantiles(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort_unstable();
    (times[times.len() * 99 / 100], times[times.len() / 2])
}

/// Return the open dead letters of a kind: error and attempts.
async fn dead_letters(world: &World, kind: &str) -> Vec<(String, i64)> {
    let page = world.tickr.get(&format!("/v1/dead-letters?kind={kind}&limit=200")).await.body;
    let one = |job: &Value| (job["last_error"].as_str().unwrap().to_owned(), job["attempt"].as_i64().unwrap());
    page["data"].as_array().unwrap().iter().map(one).collect()
}

/// Let Redis say that a server which is not there holds the only socket of a user.
async fn haunt(world: &World, user: &str) {
    let key = format!("{}:chat:servers:{user}", world.tickr.config.redis_prefix);
    let mut pipe = redis::pipe();
    pipe.atomic().cmd("DEL").arg(&key).cmd("ZADD").arg(&key).arg(i64::MAX / 1_024).arg("ghost");
    pipe.exec_async(&mut world.tickr.redis().await).await.unwrap();
}

/// Forget the server of [`haunt`].
async fn lay(world: &World, user: &str) {
    let key = format!("{}:chat:servers:{user}", world.tickr.config.redis_prefix);
    redis::cmd("ZREM").arg(&key).arg("ghost").exec_async(&mut world.tickr.redis().await).await.unwrap();
}

/// Two servers, a user at each, and messages at a rate: none is lost, doubled or out of order. Return the time from
/// send to receive, as p99 and median.
async fn flow(count: i64, a_second: u32) -> (Duration, Duration) {
    let world = World::new().await;
    let (one, two) = (world.server(&[]).await, world.server(&[]).await);
    let conversation = one.direct("ada", "bob").await;
    let (ada, bob) = (Person::join("ada", &[&one]).await, Person::join("bob", &[&two]).await);
    let ids = talk(&ada, &conversation, count, a_second).await;
    let count = usize::try_from(count).unwrap();
    bob.until("all messages are here", |seen| seen.messages.len() == count).await;
    ada.until("all are delivered", |seen| ids.iter().all(|id| seen.delivered.contains(id))).await;
    assert_eq!(bob.contents(&conversation), numbers(count as i64));
    let times = {
        let sent = ada.look(|seen| {
            assert_eq!((seen.nacks.len(), seen.errors.len()), (0, 0));
            seen.sent.clone()
        });
        bob.look(|seen| {
            assert_eq!(seen.repeated, 0);
            ids.iter().map(|id| seen.arrived[id] - sent[id]).collect()
        })
    };
    assert_eq!(world.stub.calls(), Vec::<Value>::new(), "bob was online");
    drop((ada, bob));
    world.end([one, two]).await;
    quantiles(times)
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_reach_another_server_once_and_in_order_and_their_delivery_is_told() {
    let (p99, median) = flow(50, 50).await;
    println!("50 messages at 50/s: p99 {p99:?}, median {median:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a machine for itself"]
async fn whole_2000_messages_at_200_a_second() {
    let (p99, median) = flow(2_000, 200).await;
    println!("2,000 messages at 200/s: p99 {p99:?}, median {median:?}");
    assert!(p99 <= Duration::from_millis(100), "{p99:?}");
}

/// Add messages to an inbox without their jobs, behind those that are there.
async fn fill(world: &World, conversation: &str, sender: &str, user: &str, from: i64, to: i64) {
    let mut conn = world.tickr.mysql().await;
    let numbers: Vec<i64> = (from..=to).collect();
    for some in numbers.chunks(500) {
        let row = |n: &i64| {
            format!("('{conversation}', {n}, '{}', '{sender}', {n}, '{n}', UTC_TIMESTAMP(3))", Uuid::new_v4())
        };
        let messages: Vec<String> = some.iter().map(row).collect();
        let row = |n: &i64| format!("('{user}', {n}, '{conversation}', {n})");
        let places: Vec<String> = some.iter().map(row).collect();
        for sql in [
            format!("INSERT INTO chat_messages VALUES {}", messages.join(",")),
            format!("INSERT INTO chat_inbox (user, place, conversation, seq) VALUES {}", places.join(",")),
        ] {
            conn.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await.unwrap();
        }
    }
    let sql = format!(
        "UPDATE chat_conversations SET last_seq = {to} WHERE id = '{conversation}'; \
         UPDATE chat_users SET last_place = {to} WHERE id = '{user}'; \
         UPDATE chat_members SET inbox_seq = {to} WHERE conversation = '{conversation}' AND user = '{user}'"
    );
    conn.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await.unwrap();
}

/// Messages to a user who is offline, and then the inbox in batches.
async fn offline(count: i64, more: i64) {
    let world = World::new().await;
    let server = world.server(&[]).await;
    let conversation = server.direct("ada", "bob").await;
    let ada = Person::join("ada", &[&server]).await;
    let ids = talk(&ada, &conversation, count, 500).await;
    world.stub.until(usize::try_from(count).unwrap()).await;
    world.until_idle().await;
    let pushed: HashSet<String> =
        world.stub.calls().iter().map(|call| call["message_id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(pushed, ids.iter().cloned().collect(), "each message has its push");
    assert!(ada.look(|seen| seen.delivered.is_empty()), "bob is offline");

    let bob = Person::join("bob", &[&server]).await;
    bob.until("the inbox is here", |seen| seen.messages.len() == ids.len()).await;
    assert_eq!(bob.look(|seen| (seen.batches.clone(), seen.repeated)), (vec![ids.len()], 0));
    assert_eq!(bob.contents(&conversation), numbers(count));
    ada.until("all are delivered", |seen| ids.iter().all(|id| seen.delivered.contains(id))).await;
    bob.leave().await;

    // The rest of the inbox comes in batches of a thousand, also for another device.
    fill(&world, &conversation, "ada", "bob", count + 1, more).await;
    let tablet = Person::join_as("bob", "tablet", &[&server], Manner::default()).await;
    let all = usize::try_from(more).unwrap();
    tablet.until("the whole inbox is here", |seen| seen.messages.len() == all).await;
    let last = all - all / 1_000 * 1_000;
    let wanted: Vec<usize> = std::iter::repeat_n(1_000, all / 1_000).chain((last > 0).then_some(last)).collect();
    assert_eq!(tablet.look(|seen| (seen.batches.clone(), seen.repeated)), (wanted, 0));
    assert_eq!(tablet.contents(&conversation), numbers(more));
    drop((ada, tablet));
    world.end([server]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_inbox_keeps_the_messages_of_a_user_who_is_offline_and_comes_in_batches() {
    offline(40, 2_500).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a machine for itself"]
async fn whole_500_messages_to_a_user_who_is_offline() {
    offline(500, 2_500).await;
}

fn members(count: usize) -> Vec<String> {
    (1..count).map(|number| format!("m{number}")).collect()
}

/// A message to a group of which the half is online. Return the time until each member was reached.
async fn group_of(size: usize) -> Duration {
    let world = World::new().await;
    let (one, two) = (world.server(&[]).await, world.server(&[]).await);
    let members = members(size);
    let group = one.group("ada", &members, "full").await;
    let ada = Person::join("ada", &[&one]).await;
    let mut online = Vec::new();
    for (number, member) in members.iter().take(size / 2).enumerate() {
        online.push(Person::join(member, &[if number % 2 == 0 { &one } else { &two }]).await);
    }
    let began = Instant::now();
    let id = ada.send(&group, 1, "hello");
    for member in &online {
        member.until("the message is here", |seen| seen.arrived.contains_key(&id)).await;
    }
    let by_socket = began.elapsed();
    world.stub.until(size - 1 - online.len()).await;
    let all = began.elapsed();
    println!("group of {size}, {} online: by socket {by_socket:?}, with the pushes {all:?}", online.len());
    world.until_idle().await;
    let called: HashSet<String> =
        world.stub.calls().iter().map(|call| call["to"].as_str().unwrap().to_owned()).collect();
    assert_eq!(called, members.iter().skip(size / 2).cloned().collect());
    assert_eq!(world.tickr.count("SELECT COUNT(*) FROM chat_messages").await, 1);
    assert_eq!(world.tickr.count("SELECT COUNT(*) FROM chat_inbox").await, size as i64);
    let shown = one.history("ada", &group).await;
    assert_eq!((&shown[0]["delivered"], &shown[0]["of"]), (&json!(online.len()), &json!(size - 1)));

    // A stranger is refused, and nothing is written.
    one.sign_in(&["eve"]).await;
    let message = json!({"message_id": Uuid::new_v4(), "client_seq": 1, "content": "let me in"});
    let (status, body) = one.send("eve", &group, &message).await;
    assert_eq!((status, body["code"].as_str()), (403, Some("not_a_member")), "{body}");
    assert_eq!(one.ask("eve", Method::GET, &format!("/conversations/{group}/messages"), Value::Null).await.0, 403);
    assert_eq!(world.tickr.count("SELECT COUNT(*) FROM chat_messages").await, 1);
    assert_eq!(world.tickr.count("SELECT COUNT(*) FROM chat_inbox").await, size as i64);
    drop((ada, online));
    world.end([one, two]).await;
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_to_a_group_is_stored_once_and_reaches_sockets_inboxes_and_phones() {
    group_of(24).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a machine for itself"]
async fn whole_group_of_100_with_50_online() {
    let time = group_of(100).await;
    assert!(time <= Duration::from_secs(1), "{time:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn large_groups_have_no_inbox_rows_and_the_largest_are_read_by_their_members() {
    let world = World::new().await;
    let server = world.server(&[]).await;
    let (medium, large) = (members(101), members(1_001));
    for (members, news) in [(medium, 0), (large, 1)] {
        let group = server.group("ada", &members, "full").await;
        let (ada, two) = (Person::join("ada", &[&server]).await, Person::join("m2", &[&server]).await);
        let id = ada.send(&group, 1, "hello");
        if news == 0 {
            two.until("the message is pushed", |seen| seen.arrived.contains_key(&id)).await;
            ada.until("its delivery is told", |seen| seen.delivered.contains(&id)).await;
        } else {
            two.until("there is news", |seen| seen.news.len() == 1).await;
        }
        // A member who was offline reads the conversation, and has it all the same.
        for member in ["m2", "m3"] {
            assert_eq!(server.history(member, &group).await[0]["content"], "hello");
        }
        world.until_idle().await;
        let rows = format!("SELECT COUNT(*) FROM chat_inbox WHERE conversation = '{group}' AND user <> 'ada'");
        assert_eq!(world.tickr.count(rows).await, 0);
        assert_eq!(two.look(|seen| seen.news.len()), news);
        ada.leave().await;
        two.leave().await;
    }
    assert_eq!(world.tickr.count("SELECT COUNT(*) FROM jobs WHERE kind = 'chat.deliver'").await, 1);
    assert_eq!(world.stub.calls(), Vec::<Value>::new());
    world.end([server]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_whose_messages_are_not_pushed_is_read_by_its_members_whatever_its_size() {
    let world = World::new().await;
    let said = world.refused(&[("CHAT_WRITE_UP_TO", "3"), ("CHAT_PUSH_UP_TO", "2")]).await;
    assert!(said.contains("CHAT_WRITE_UP_TO must be CHAT_PUSH_UP_TO or less"), "{said}");
    let server = world.server(&[("CHAT_PUSH_UP_TO", "2")]).await;
    let group = server.group("ada", &members(3), "full").await;
    let reader = Person::join("m1", &[&server]).await;
    server.post("ada", &group, 1, "hello").await;
    reader.until("there is news", |seen| seen.news.len() == 1).await;
    for member in ["m1", "m2"] {
        let shown = server.history(member, &group).await;
        assert_eq!(shown.first().map(|message| &message["content"]), Some(&json!("hello")), "{member}");
    }
    world.until_idle().await;
    reader.leave().await;
    world.end([server]).await;
}

/// Let every fifth message of each conversation fail once on its way into the inbox. The table that remembers it takes
/// no part in transactions.
const EVERY_FIFTH_FAILS: &str = "CREATE TABLE failed_once (conversation VARCHAR(65) NOT NULL, seq BIGINT NOT NULL, \
    PRIMARY KEY (conversation, seq)) ENGINE = MyISAM DEFAULT CHARSET = ascii; \
    CREATE TRIGGER fail BEFORE INSERT ON chat_inbox FOR EACH ROW BEGIN \
    IF NEW.user LIKE 'r%' AND NEW.seq % 5 = 0 \
        AND NOT EXISTS (SELECT 1 FROM failed_once f WHERE f.conversation = NEW.conversation AND f.seq = NEW.seq) THEN \
        INSERT INTO failed_once VALUES (NEW.conversation, NEW.seq); \
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'the test lets this delivery fail'; \
    END IF; END";

/// Conversations under fire: a fifth of the deliveries fails once, others find that a server does not answer, a server
/// is killed, and Redis forgets. Each recipient gets the messages of each conversation in order, and all of them.
async fn fire(world: World, conversations: i64, each: i64, a_second: u32) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tickr.toml");
    // A failed delivery holds up those behind it for a second and more. Here it is less, so that the test is short.
    std::fs::write(
        &file,
        "[kinds.\"chat.deliver\"]\nretry_base = \"100ms\"\nretry_cap = \"200ms\"\nmax_attempts = 20\n",
    )
    .unwrap();
    let env = [("CHAT_PRESENCE_MS", "600"), ("TICKR_CONFIG", file.to_str().unwrap())];
    let (one, mut two) = (world.server(&env).await, world.server(&env).await);
    world.tickr.sql(EVERY_FIFTH_FAILS).await;
    let mut pairs = Vec::new();
    for number in 0..conversations {
        let (from, to) = (format!("s{number}"), format!("r{}", number % 3));
        pairs.push((one.direct(&from, &to).await, from, to));
    }
    let mut people = HashMap::new();
    for (_, from, to) in &pairs {
        for (user, servers) in [(from, [&two, &one]), (to, [&one, &two])] {
            if !people.contains_key(user) {
                people.insert(user.clone(), Person::join(user, &servers).await);
            }
        }
    }
    let whole = Duration::from_secs(1) / a_second * u32::try_from(each).unwrap();
    let trouble = async {
        // The next heartbeat of the server of a user mends it, so each of the three is out for a good part of the time.
        let mut rounds = tokio::time::interval(Duration::from_millis(120));
        let last = u32::try_from(whole.as_millis() / 120).unwrap();
        for round in 0..last {
            rounds.tick().await;
            haunt(&world, &format!("r{}", round % 3)).await;
            match round * 10 / last {
                tenth if round > 0 && (round - 1) * 10 / last == tenth => {}
                2 | 7 => world.forget().await,
                4 => two.runner.kill9(),
                _ => {}
            }
        }
    };
    let sending = async {
        let mut tick = tokio::time::interval(Duration::from_secs(1) / a_second);
        for number in 1..=each {
            tick.tick().await;
            for (conversation, from, _) in &pairs {
                people[from].send(conversation, number, &number.to_string());
            }
        }
    };
    tokio::join!(trouble, sending);
    for number in 0..3 {
        lay(&world, &format!("r{number}")).await;
    }
    let wanted = numbers(each);
    for (conversation, from, to) in &pairs {
        let all = usize::try_from(each).unwrap();
        people[from].until("all are stored", |seen| seen.acked.len() == all).await;
        people[to]
            .until("all have arrived", |seen| {
                seen.messages.iter().filter(|message| message["conversation_id"] == conversation.as_str()).count()
                    == all
            })
            .await;
        assert_eq!(people[to].contents(conversation), wanted, "{conversation}");
    }
    world.until_idle().await;
    let failed = "SELECT COUNT(*) FROM attempts a JOIN jobs j ON j.id = a.job_id \
                  WHERE j.kind = 'chat.deliver' AND a.verdict = 'failed'";
    let (failed, fifth) =
        (world.tickr.count(failed).await, world.tickr.count("SELECT COUNT(*) FROM failed_once").await);
    let all = conversations * each;
    println!("{all} messages, {failed} failed attempts; {fifth} messages failed on their way into the inbox");
    assert_eq!(fifth * 5, all);
    drop(people);
    world.end([one]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deliveries_that_fail_a_killed_server_and_a_forgetful_redis_lose_and_disorder_nothing() {
    fire(World::new().await, 4, 25, 10).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a machine for itself"]
async fn whole_10_conversations_of_200_messages_under_fire() {
    fire(World::alone().await, 10, 200, 10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_sent_fifty_times_at_once_is_stored_once_and_a_hole_in_the_numbers_is_refused() {
    let world = World::new().await;
    let (one, two) = (world.server(&[]).await, world.server(&[]).await);
    let conversation = one.direct("ada", "bob").await;
    let message = json!({"message_id": Uuid::new_v4(), "client_seq": 1, "content": "once"});
    let mut callers = JoinSet::new();
    for number in 0..50 {
        let base = if number % 2 == 0 { one.url.clone() } else { two.url.clone() };
        let (path, message) = (format!("/conversations/{conversation}/messages"), message.clone());
        callers.spawn(async move { ask(&base, "ada", Method::POST, &path, message).await });
    }
    let answers = callers.join_all().await;
    assert!(answers.iter().all(|answer| answer == &answers[0]) && answers[0].0 == 200, "{answers:?}");
    assert_eq!(world.tickr.count("SELECT COUNT(*) FROM chat_messages").await, 1);

    let hole = json!({"message_id": Uuid::new_v4(), "client_seq": 4, "content": "too far"});
    let (status, body) = one.send("ada", &conversation, &hole).await;
    assert_eq!((status, &body["code"], &body["expected"]), (409, &json!("nack"), &json!(2)), "{body}");
    let ada = Person::join("ada", &[&one]).await;
    let id = ada.send(&conversation, 3, "too far");
    ada.until("the hole is refused", |seen| seen.nacks.len() == 1).await;
    let nack = ada.look(|seen| seen.nacks[0].clone());
    assert_eq!((&nack["message_id"], &nack["expected"]), (&json!(id), &json!(2)));
    assert_eq!(world.tickr.count("SELECT COUNT(*) FROM chat_messages").await, 1);

    // The message and its job are one: a job for a recipient exists for each message, and no other.
    ada.send(&conversation, 2, "then this one");
    ada.until("it is stored", |seen| seen.acked.len() == 1).await;
    world.until_idle().await;
    assert_eq!(world.tickr.count("SELECT COUNT(*) FROM jobs WHERE kind = 'chat.deliver'").await, 2);
    // The id belongs to a message of another user.
    let taken = json!({"message_id": message["message_id"], "client_seq": 1, "content": "mine"});
    assert_eq!(one.send("bob", &conversation, &taken).await.0, 400);
    drop(ada);
    world.end([one, two]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_receipt_reads_a_whole_conversation_and_groups_choose_what_it_shows() {
    receipts(20, 8).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a machine for itself"]
async fn whole_receipts_of_50_readers_in_groups_of_100() {
    receipts(100, 50).await;
}

/// Read 500 messages with one receipt, and a message of groups of this size by this many members.
async fn receipts(size: usize, reading: usize) {
    let world = World::new().await;
    let server = world.server(&[]).await;
    let conversation = server.direct("ada", "bob").await;
    let ada = Person::join("ada", &[&server]).await;
    fill(&world, &conversation, "ada", "bob", 1, 500).await;
    let bob = Person::join("bob", &[&server]).await;
    bob.until("all are here", |seen| seen.messages.len() == 500).await;
    let [early, last] = [100, 499].map(|at: usize| bob.look(|seen| seen.messages[at]["message_id"].clone()));
    let read = |id: &Value| json!({"type": "read", "conversation_id": conversation, "read_up_to": id});
    bob.say(read(&last));
    ada.until("the receipt is here", |seen| seen.reads.len() == 1).await;
    let receipt = ada.look(|seen| seen.reads[0].clone());
    assert_eq!((&receipt["read_up_to"], &receipt["seq"], &receipt["user"]), (&last, &json!(500), &json!("bob")));
    let row = "SELECT read_seq FROM chat_members WHERE user = 'bob'";
    assert_eq!(world.tickr.count(row).await, 500);
    // An earlier message later takes nothing back. The next message is the fence behind which nothing came.
    bob.say(read(&early));
    bob.send(&conversation, 1, "fence");
    ada.until("the fence is here", |seen| seen.messages.len() == 1).await;
    assert_eq!((ada.look(|seen| seen.reads.len()), world.tickr.count(row).await), (1, 500));
    let shown = server.history("ada", &conversation).await;
    assert!(shown.iter().take(500).all(|message| message["read"] == 1 && message["of"] == 1));

    let members = members(size);
    for (receipts, read, told) in [("full", json!(reading), reading), ("simple", json!(1), 1), ("none", Value::Null, 0)]
    {
        let group = server.group("ada", &members, receipts).await;
        let sent = server.post("ada", &group, 1, "hello").await;
        ada.look(|seen| seen.reads.clear());
        let first = Person::join("m1", &[&server]).await;
        first.say(json!({"type": "read", "conversation_id": group, "read_up_to": sent["message_id"]}));
        if told > 0 {
            ada.until("the first receipt is here", |seen| !seen.reads.is_empty()).await;
        }
        let mut readers = Vec::new();
        for member in members.iter().take(reading).skip(1) {
            let reader = Person::join(member, &[&server]).await;
            reader.say(json!({"type": "read", "conversation_id": group, "read_up_to": sent["message_id"]}));
            readers.push(reader);
        }
        let have_read = format!("SELECT COUNT(*) FROM chat_members WHERE conversation = '{group}' AND read_seq = 1");
        world.tickr.until_count(&have_read, reading as i64).await;
        if told > 1 {
            ada.until("all receipts are here", |seen| seen.reads.len() == told).await;
        }
        // These clients have read the message before it was in their inboxes.
        eventually("the readers who have the message are counted", || async {
            let shown = server.history("ada", &group).await;
            ((&shown[0]["read"], &shown[0]["of"]) == (&read, &json!(size - 1))).then_some(())
        })
        .await;
        // A message of the last reader is the fence behind which no receipt came.
        readers[reading - 2].send(&group, 1, "fence");
        let fenced = |seen: &Seen| seen.messages.iter().any(|message| message["conversation_id"] == group.as_str());
        ada.until("the fence is here", fenced).await;
        let reads = ada.look(|seen| seen.reads.clone());
        assert_eq!(reads.len(), told, "{receipts}");
        assert!(reads.iter().all(|one| one["user"].is_string() == (receipts == "full")), "{reads:?}");
        // The other readers are not told: they have sent none of what was read.
        first.until("the fence is here", fenced).await;
        assert_eq!(first.look(|seen| seen.reads.len()), 0, "{receipts}");
    }
    world.until_idle().await;
    drop((ada, bob));
    world.end([server]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_of_the_readers_who_come_at_once_is_told_and_messages_may_cross() {
    let world = World::new().await;
    let server = world.server(&[]).await;
    let group = server.group("ada", &["bob", "cem"].map(str::to_owned), "simple").await;
    let (ada, bob) = (Person::join("ada", &[&server]).await, Person::join("bob", &[&server]).await);
    let cem = Person::join("cem", &[&server]).await;
    let read = |sent: &Value| json!({"type": "read", "conversation_id": group, "read_up_to": sent["message_id"]});
    // Their messages cross: Ada has read the one behind her own before Bob reads hers.
    let hers = server.post("ada", &group, 1, "hers").await;
    let his = server.post("bob", &group, 1, "his").await;
    ada.say(read(&his));
    bob.until("his message was read", |seen| seen.reads.len() == 1).await;
    bob.say(read(&hers));
    ada.until("her message was read", |seen| seen.reads.len() == 1).await;
    for number in 2..=20 {
        let sent = server.post("ada", &group, number, "hello").await;
        bob.say(read(&sent));
        cem.say(read(&sent));
        ada.until("it was read", |seen| seen.reads.iter().any(|read| read["seq"] == sent["seq"])).await;
    }
    // A message of each reader is the fence behind which no receipt came.
    bob.send(&group, 2, "fence");
    cem.send(&group, 1, "fence");
    ada.until("both fences are here", |seen| seen.messages.len() == 3).await;
    assert_eq!((ada.look(|seen| seen.reads.len()), bob.look(|seen| seen.reads.len())), (20, 1));
    world.until_idle().await;
    drop((ada, bob, cem));
    world.end([server]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn typing_is_told_once_in_three_seconds_and_leaves_no_row_and_no_job() {
    let world = World::new().await;
    let (one, two) = (world.server(&[]).await, world.server(&[]).await);
    let conversation = one.direct("ada", "bob").await;
    one.sign_in(&["eve"]).await;
    let (ada, bob) = (Person::join("ada", &[&one]).await, Person::join("bob", &[&two]).await);
    let eve = Person::join("eve", &[&one]).await;
    let (began, mut every, mut said) = (Instant::now(), tokio::time::interval(Duration::from_millis(100)), 0);
    // A machine that stands still meanwhile gives time for one more in each three seconds.
    let most = || 1 + began.elapsed().as_secs() / 3;
    let told = || bob.look(|seen| seen.typing.len() as u64);
    // As a page does while its user types, until bob is told once more.
    while told() < 2 {
        assert!(began.elapsed() < 2 * DEADLINE, "bob was told {} times after {said} frames", told());
        every.tick().await;
        for person in [&ada, &eve] {
            person.say(json!({"type": "typing_start", "conversation_id": conversation}));
        }
        said += 1;
        if said == 30 {
            bob.until("ada types", |seen| !seen.typing.is_empty()).await;
            assert!((1..=most()).contains(&told()), "{} of 30 arrived, and {} may", told(), most());
        }
    }
    // Redis counts the three seconds by a clock of its own.
    assert!(began.elapsed() >= Duration::from_millis(2_900), "told again after {:?}", began.elapsed());
    // The frames of a socket are carried out in their order, so all of them have been when this message arrives.
    assert_eq!(world.tickr.count("SELECT COUNT(*) FROM chat_messages").await, 0);
    assert_eq!(world.tickr.count("SELECT COUNT(*) FROM jobs").await, 0);
    ada.send(&conversation, 1, "fence");
    bob.until("the fence is here", |seen| seen.messages.len() == 1).await;
    let wanted = json!({"type": "typing", "conversation_id": conversation, "user": "ada", "expires_ms": 5_000});
    let typing = bob.look(|seen| seen.typing.clone());
    assert!((2..=most()).contains(&(typing.len() as u64)), "{} of {said} arrived, and {} may", typing.len(), most());
    assert!(typing.iter().all(|one| *one == wanted), "{typing:?}");
    drop((ada, bob, eve));
    world.end([one, two]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_hides_after_five_seconds_that_a_user_types() {
    let Some(browser) = Browser::shared().await else { return };
    let world = World::new().await;
    let server = world.server(&[]).await;
    let conversation = server.direct("ada", "bob").await;
    let ada = browser.page(&server.url).await;
    open(&ada, "ada", "bob").await;
    ada.until("ada is online", "document.getElementById('line').textContent === 'online'").await;
    // The page notes what it shows and when, because the test may look too late to see it.
    ada.eval::<()>(
        "void (window.shown = [], new MutationObserver(() => \
         shown.push([document.getElementById('typing').textContent, performance.now()])) \
         .observe(document.getElementById('typing'), { childList: true }))",
    )
    .await;
    let bob = Person::join("bob", &[&server]).await;
    bob.say(json!({"type": "typing_start", "conversation_id": conversation}));
    ada.until("the word has come and is gone", "shown.length > 1 && shown.at(-1)[0] === ''").await;
    let shown: Vec<(String, f64)> = ada.eval("shown").await;
    assert_eq!(shown[0].0, "bob is typing…", "{shown:?}");
    let took = shown[shown.len() - 1].1 - shown[0].1;
    // Timers of a browser may be a little early. They are never a second early, and a busy machine makes them late.
    assert!(took >= 4_900.0, "it was hidden after {took} ms: {shown:?}");
    ada.assert_calm();
    drop((ada, bob));
    world.end([server]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_users_of_a_killed_server_are_offline_after_the_time_to_live_of_their_presence() {
    let took = killed(Duration::from_millis(800)).await;
    println!("offline {took:?} after the kill, with a time to live of 800 ms");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a minute; the suite has a smaller one"]
async fn whole_presence_of_a_killed_server_with_the_default_of_60_seconds() {
    let took = killed(Duration::from_secs(60)).await;
    println!("offline {took:?} after the kill, with a time to live of 60 s");
    assert!(took <= Duration::from_secs(61), "{took:?}");
}

/// Kill the server of a user. Return the time until the user is offline.
async fn killed(ttl: Duration) -> Duration {
    let world = World::new().await;
    let millis = ttl.as_millis().to_string();
    let env = [("CHAT_PRESENCE_MS", millis.as_str())];
    let (one, mut two) = (world.server(&env).await, world.server(&env).await);
    let conversation = one.direct("ada", "bob").await;
    let ada = Person::join("ada", &[&one]).await;
    let bob = Person::join("bob", &[&two]).await;
    ada.say(json!({"type": "open", "conversation_id": conversation}));
    let is = |status: &'static str| {
        move |seen: &Seen| seen.presence.get("bob").is_some_and(|shown| shown["status"] == status)
    };
    ada.until("bob is online", is("online")).await;
    bob.leave().await;
    ada.until("ada hears that bob has left", is("offline")).await;
    assert!(ada.look(|seen| seen.presence["bob"]["last_seen"].is_string()));
    let bob = Person::join("bob", &[&two]).await;
    ada.until("ada hears that bob is back", is("online")).await;

    two.runner.kill9();
    let began = Instant::now();
    // Redis ends it within the time to live. The test may see that later, on a machine that stands still.
    let mut redis = world.tickr.redis().await;
    for what in ["presence", "servers"] {
        let key = format!("{}:chat:{what}:bob", world.tickr.config.redis_prefix);
        let left: i64 = redis::cmd("PTTL").arg(&key).query_async(&mut redis).await.unwrap();
        // -2: the key is gone. -1: it would stay for ever.
        assert!(left == -2 || (0..=ttl.as_millis() as i64).contains(&left), "{key} has {left} ms left");
    }
    let deadline = began + ttl + DEADLINE;
    loop {
        let (_, shown) = one.ask("ada", Method::GET, "/presence?users=bob", Value::Null).await;
        if shown["users"][0]["status"] == "offline" {
            break;
        }
        assert!(Instant::now() < deadline, "{shown:#}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let took = began.elapsed();
    drop((ada, bob));
    world.end([one]).await;
    took
}

#[tokio::test(flavor = "multi_thread")]
async fn presence_is_shown_to_those_only_who_show_theirs_and_five_hundred_users_cost_one_read() {
    let world = World::new().await;
    let server = world.server(&[]).await;
    let privacies = ["everyone", "contacts", "nobody"];
    // Users of each privacy who have the viewer as a contact, or do not; and viewers who have the user, or do not.
    let mut viewers = Vec::new();
    let mut sockets = Vec::new();
    for own in privacies {
        for (user, contact) in [(format!("friend-{own}"), true), (format!("stranger-{own}"), false)] {
            server.sign_in(&[&user]).await;
            server.ask(&user, Method::PUT, "/privacy", json!({"last_seen": own})).await;
            sockets.push(Person::join(&user, &[&server]).await);
            for viewer in privacies {
                for knows in [true, false] {
                    let name = format!("{viewer}-{}", if knows { "knows" } else { "alone" });
                    viewers.push((name.clone(), viewer, knows, user.clone(), own, contact));
                    server.sign_in(&[&name]).await;
                    server.ask(&name, Method::PUT, "/privacy", json!({"last_seen": viewer})).await;
                    if contact {
                        server.ask(&user, Method::PUT, &format!("/contacts/{name}"), Value::Null).await;
                    }
                    if knows {
                        server.ask(&name, Method::PUT, &format!("/contacts/{user}"), Value::Null).await;
                    }
                }
            }
        }
    }
    assert_eq!(viewers.len(), 36);
    for (viewer, viewer_privacy, knows, user, privacy, contact) in viewers {
        let (_, shown) = server.ask(&viewer, Method::GET, &format!("/presence?users={user}"), Value::Null).await;
        let shows = |privacy: &str, is_contact: bool| privacy == "everyone" || privacy == "contacts" && is_contact;
        let wanted = if shows(privacy, contact) && shows(viewer_privacy, knows) { "online" } else { "unavailable" };
        assert_eq!(shown["users"][0]["status"], wanted, "{viewer} looks at {user}");
    }
    server.ask("friend-everyone", Method::PUT, "/blocks/everyone-knows", Value::Null).await;
    let (_, shown) = server.ask("everyone-knows", Method::GET, "/presence?users=friend-everyone", Value::Null).await;
    assert_eq!(shown["users"][0]["status"], "unavailable", "the viewer is blocked");

    let mut crowd = members(501);
    crowd.truncate(500);
    server.group("ada", &crowd, "none").await;
    let client = redis::Client::open(world.tickr.config.redis_url().unwrap().expose()).unwrap();
    let monitor = client.get_async_monitor().await.unwrap();
    let url = format!("{}/presence?users={}", server.url, crowd.join(","));
    let answered = http().get(url).header("chat-user", "ada").send().await.unwrap();
    assert_eq!(answered.headers()["cache-control"], "private, max-age=30");
    let shown: Value = answered.json().await.unwrap();
    assert_eq!(shown["users"].as_array().unwrap().len(), 500);
    assert_eq!(shown["users"][499], json!({"user": "m500", "status": "offline"}));
    // A word of the test ends what the monitor heard of the question.
    let fence = Uuid::new_v4().to_string();
    let _: String = redis::cmd("ECHO").arg(&fence).query_async(&mut world.tickr.redis().await).await.unwrap();
    let (mut heard, mut reads) = (monitor.into_on_message::<String>(), 0);
    while let Some(line) = heard.next().await {
        if line.contains(&fence) {
            break;
        }
        reads += usize::from(line.contains(&world.tickr.config.redis_prefix) && line.contains("presence:m"));
    }
    assert_eq!(reads, 1, "one command reads the presence of all");
    drop(sockets);
    world.end([server]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_device_gets_what_it_lacks_and_nothing_else() {
    let world = World::new().await;
    let server = world.server(&[]).await;
    let conversation = server.direct("ada", "bob").await;
    fill(&world, &conversation, "ada", "bob", 1, 500).await;
    let quiet = Manner { confirms: false, syncs: false, ..Manner::default() };
    for (device, place) in [("phone", 500), ("desktop", 450), ("web", 480)] {
        let before = Person::join_as("bob", device, &[&server], quiet).await;
        before.say(json!({"type": "synced", "place": place}));
        before.leave().await;
        let row = format!(
            "SELECT COALESCE(MAX(synced_place), -1) FROM chat_devices WHERE user = 'bob' AND device = '{device}'"
        );
        world.tickr.until_count(row, place).await;
    }
    // A device may name a place that is not there yet. It must not miss what comes to it.
    let ahead = Person::join_as("bob", "phone", &[&server], quiet).await;
    ahead.say(json!({"type": "synced", "place": 10_000}));
    ahead.leave().await;
    let place = "SELECT synced_place FROM chat_devices WHERE user = 'bob' AND device = 'phone'";
    assert_eq!(world.tickr.count(place).await, 500);
    for (device, lacks) in [("phone", 0), ("desktop", 50), ("web", 20)] {
        let back = Person::join_as("bob", device, &[&server], quiet).await;
        back.say(json!({"type": "sync", "after": null}));
        back.say(json!({"type": "open", "conversation_id": conversation}));
        back.until("the answers are here", |seen| seen.presence.contains_key("ada")).await;
        let wanted = numbers(500).split_off(500 - lacks);
        assert_eq!(back.contents(&conversation), wanted, "{device}");
        back.leave().await;
    }
    // What one device sends, the others of its user have as well.
    let (phone, desktop) = (
        Person::join_as("bob", "phone", &[&server], quiet).await,
        Person::join_as("ada", "desk", &[&server], quiet).await,
    );
    let id = phone.send(&conversation, 1, "from the phone");
    desktop.until("the message is here", |seen| seen.arrived.contains_key(&id)).await;
    assert_eq!(world.tickr.count("SELECT COUNT(*) FROM chat_inbox WHERE user = 'bob' AND seq = 501").await, 1);
    drop((phone, desktop));
    world.end([server]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_takes_the_other_messages_of_its_conversation_along() {
    let world = World::new().await;
    let server = world.server(&[]).await;
    let conversation = server.direct("ada", "bob").await;
    let bob = Person::join("bob", &[&server]).await;
    // Three messages are stored, and their jobs come late: another runner has taken them out of the outbox.
    fill(&world, &conversation, "ada", "bob", 1, 3).await;
    world
        .tickr
        .sql("DELETE FROM chat_inbox; UPDATE chat_members SET inbox_seq = 0; UPDATE chat_users SET last_place = 0")
        .await;
    server.post("ada", &conversation, 4, "4").await;
    bob.until("all four are here", |seen| seen.messages.len() == 4).await;
    assert_eq!(bob.contents(&conversation), numbers(4));
    world.until_idle().await;
    assert_eq!(world.tickr.count("SELECT COUNT(*) FROM chat_inbox WHERE user = 'bob'").await, 4);

    // Three are in the inbox, and no device has confirmed them. The next one does not overtake them.
    let conversation = server.direct("ada", "carl").await;
    let carl = Person::join_as("carl", "phone", &[&server], Manner { syncs: false, ..Manner::default() }).await;
    fill(&world, &conversation, "ada", "carl", 1, 3).await;
    server.post("ada", &conversation, 4, "4").await;
    carl.until("all four are here", |seen| seen.messages.len() == 4).await;
    assert_eq!(carl.contents(&conversation), numbers(4));
    world.until_idle().await;
    drop((bob, carl));
    world.end([server]).await;
}

/// Wait until a delivery to a user is there that satisfies a condition, and return its id.
async fn delivery(world: &World, user: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    eventually(what, || async {
        let page = world.tickr.get(&format!("/v1/jobs?q=order:user:{user}&limit=200")).await.body;
        page["data"].as_array().unwrap().iter().find(|job| is(job)).cloned()
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_delivery_is_a_dead_letter_at_once_and_holds_up_nothing() {
    let world = World::new().await;
    let server = world.server(&[]).await;
    let conversation = server.direct("ada", "bob").await;
    let with_carl = server.direct("ada", "carl").await;
    let bob = Person::join("bob", &[&server]).await;
    assert_eq!(server.ask("bob", Method::PUT, "/blocks/ada", Value::Null).await.0, 204);
    server.post("ada", &conversation, 1, "refused").await;
    let letter = [("the recipient has blocked the sender".to_owned(), 1)];
    eventually("the dead letter is there", || async {
        (dead_letters(&world, "chat.deliver").await == letter).then_some(())
    })
    .await;
    assert_eq!(world.tickr.count("SELECT COUNT(*) FROM chat_inbox WHERE user = 'bob'").await, 0);

    assert_eq!(server.ask("bob", Method::DELETE, "/blocks/ada", Value::Null).await.0, 204);
    server.post("ada", &conversation, 2, "welcome").await;
    bob.until("the next message is here", |seen| seen.messages.len() == 1).await;
    assert_eq!(bob.contents(&conversation), ["welcome"]);
    assert_eq!(stored(&server, "bob", &conversation).await, ["welcome"]);

    assert_eq!(server.ask("carl", Method::DELETE, "/account", Value::Null).await.0, 204);
    server.post("ada", &with_carl, 1, "to a deleted account").await;
    let groups = eventually("both groups are there", || async {
        let groups = world.tickr.get("/v1/dead-letters/groups").await.body["data"].as_array().unwrap().clone();
        (groups.len() == 2).then_some(groups)
    })
    .await;
    let mut errors: Vec<&str> = groups.iter().map(|group| group["error"].as_str().unwrap()).collect();
    errors.sort_unstable();
    assert_eq!(errors, ["the account of the recipient is deleted", "the recipient has blocked the sender"]);

    // A user who comes back gets what is written from then on.
    server.sign_in(&["carl"]).await;
    let carl = Person::join("carl", &[&server]).await;
    server.post("ada", &with_carl, 2, "hello again").await;
    carl.until("the next message is here", |seen| !seen.messages.is_empty()).await;
    assert_eq!(carl.contents(&with_carl), ["hello again"]);
    assert_eq!(stored(&server, "carl", &with_carl).await, ["hello again"]);

    // After the repair an operator replays the letter.
    let old = delivery(&world, "bob", "the failed job", |job| job["state"] == "failed").await;
    let tickr = server.runner.base().await;
    let id = old["id"].as_str().unwrap();
    let made = answer(http().post(format!("{tickr}/v1/jobs/{id}/replay")).json(&json!({}))).await;
    assert_eq!(made.status, 201, "{:#}", made.body);
    bob.until("the replayed message is here", |seen| seen.messages.len() == 2).await;
    assert_eq!(bob.contents(&conversation), ["welcome", "refused"]);
    let old = world.tickr.get(&format!("/v1/jobs/{id}")).await.body;
    assert_eq!(old["dead_letter"]["status"], "replayed");
    world.until_idle().await;
    drop((bob, carl));
    world.end([server]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_answer_is_tried_four_times_and_the_replay_delivers() {
    let world = World::new().await;
    let server = world.server(&[]).await;
    let tickr = server.runner.base().await;
    let conversation = server.direct("ada", "bob").await;
    let ada = Person::join("ada", &[&server]).await;
    haunt(&world, "bob").await;
    let first = ada.send(&conversation, 1, "one");
    let second = ada.send(&conversation, 2, "two");
    for number in 0..2 {
        for (attempt, middle) in [(1, 1_000), (2, 2_000), (3, 4_000)] {
            let job = delivery(&world, "bob", "the attempt has failed", |job| {
                job["state"] == "retrying" && job["attempt"] == attempt
            })
            .await;
            let job: tickr::JobId = job["id"].as_str().unwrap().parse().unwrap();
            let wait = "SELECT TIMESTAMPDIFF(MICROSECOND, a.finished_at, o.execute_at) DIV 1000 AS wait_ms FROM owed o \
                        JOIN attempts a ON a.job_id = o.id AND a.number = o.attempt WHERE o.id = ?";
            let row = sqlx::query(wait).bind(job.uuid()).fetch_one(&mut world.tickr.mysql().await).await.unwrap();
            let wait: i64 = row.try_get("wait_ms").unwrap();
            assert!((middle * 9 / 10 - 1..=middle * 11 / 10 + 1).contains(&wait), "{wait} ms after attempt {attempt}");
            // The test has read the wait, and does not wait for it.
            let now = answer(http().post(format!("{tickr}/v1/jobs/{job}/run-now")).json(&json!({}))).await;
            assert_eq!(now.status, 200, "{:#}", now.body);
        }
        eventually("the dead letter is there", || async {
            (dead_letters(&world, "chat.deliver").await.len() == number + 1).then_some(())
        })
        .await;
    }
    let letters = dead_letters(&world, "chat.deliver").await;
    assert_eq!(letters, vec![("the chat server of the recipient does not answer".to_owned(), 4); 2]);

    // The repair: the ghost is gone, and bob is there without a look into the inbox.
    lay(&world, "bob").await;
    let manner = Manner { syncs: false, ..Manner::default() };
    let bob = Person::join_as("bob", "phone", &[&server], manner).await;
    let page = world.tickr.get("/v1/dead-letters?kind=chat.deliver").await.body;
    for job in page["data"].as_array().unwrap().iter().rev() {
        let path = format!("{tickr}/v1/jobs/{}/replay", job["id"].as_str().unwrap());
        assert_eq!(answer(http().post(path).json(&json!({}))).await.status, 201);
    }
    bob.until("both are here", |seen| seen.messages.len() == 2).await;
    ada.until("both are delivered", |seen| seen.delivered.contains(&first) && seen.delivered.contains(&second)).await;
    world.until_idle().await;
    let replayed = world.tickr.get("/v1/dead-letters?status=replayed").await.body;
    assert_eq!(replayed["data"].as_array().unwrap().len(), 2);
    drop((ada, bob));
    world.end([server]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_operation_replays_the_dead_letters_of_all_recipients_and_delivers_each_once_and_in_order() {
    let world = World::new().await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tickr.toml");
    std::fs::write(&file, "[kinds.\"chat.deliver\"]\nmax_attempts = 1\n").unwrap();
    let server = world.server(&[("TICKR_CONFIG", file.to_str().unwrap())]).await;
    let (each, users) = (15, ["bob", "carl", "dora"]);
    let mut conversations = Vec::new();
    for user in users {
        conversations.push(server.direct("ada", user).await);
        haunt(&world, user).await;
    }
    let ada = Person::join("ada", &[&server]).await;
    for number in 1..=each {
        for conversation in &conversations {
            ada.send(conversation, number, &number.to_string());
        }
    }
    let all = each * users.len() as i64;
    let letters = "SELECT COUNT(*) FROM attempts a JOIN jobs j ON j.id = a.job_id \
                   WHERE j.kind = 'chat.deliver' AND a.end_state = 'failed'";
    world.tickr.until_count(letters, all).await;

    // The repair: the ghosts are gone, and the recipients are there without a look into the inbox.
    let manner = Manner { syncs: false, ..Manner::default() };
    let mut people = Vec::new();
    for user in users {
        lay(&world, user).await;
        people.push(Person::join_as(user, "phone", &[&server], manner).await);
    }
    let replay = json!({"action": "replay", "filter": {"kind": "chat.deliver"}, "reason": "the server is back"});
    // The runner of the test may take an operation too. It does not know the kind, so it replays nothing and says so.
    let done = eventually("an operation is carried out by the server of the chat", || async {
        let started = world.tickr.post("/v1/operations", &replay).await;
        assert_eq!(started.status, 202, "{:#}", started.body);
        let path = format!("/v1/operations/{}", started.body["id"].as_str().unwrap());
        let done = eventually("the operation is over", || async {
            let operation = world.tickr.get(&path).await.body;
            (operation["state"] == "done").then_some(operation)
        })
        .await;
        let error = done["last_error"].as_str().unwrap_or_default();
        if error.contains("no kind is called") {
            assert_eq!((&done["done"], &done["failed"]), (&json!(0), &json!(all)), "{done:#}");
            return None;
        }
        Some(done)
    })
    .await;
    assert_eq!((&done["done"], &done["skipped"], &done["failed"]), (&json!(all), &json!(0), &json!(0)), "{done:#}");
    for (person, conversation) in people.iter().zip(&conversations) {
        person.until("all are here", |seen| seen.messages.len() as i64 == each).await;
        assert_eq!(person.contents(conversation), numbers(each));
        assert_eq!(person.look(|seen| seen.repeated), 0);
    }
    world.until_idle().await;
    let replayed = world.tickr.get("/v1/dead-letters?status=replayed&limit=200").await.body;
    assert_eq!(replayed["data"].as_array().unwrap().len() as i64, all);
    assert_eq!(dead_letters(&world, "chat.deliver").await, []);
    drop((ada, people));
    world.end([server]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_older_than_its_expiry_is_never_delivered() {
    let world = World::new().await;
    for wrong in ["0", "31622400001"] {
        let said = world.refused(&[("CHAT_ADDR", "127.0.0.1:0"), ("CHAT_EXPIRY_MS", wrong)]).await;
        assert!(said.contains("CHAT_EXPIRY_MS must be 1 to 31622400000 (366 days)"), "{said}");
    }
    let server = world.server(&[("CHAT_EXPIRY_MS", "700")]).await;
    let tickr = server.runner.base().await;
    let conversation = server.direct("ada", "bob").await;
    let bob = Person::join("bob", &[&server]).await;
    let pause = answer(http().post(format!("{tickr}/v1/queues/default/pause")).json(&json!({"reason": "test"}))).await;
    assert_eq!(pause.status, 200, "{:#}", pause.body);
    server.post("ada", &conversation, 1, "too old").await;
    let letters = eventually("the message expires", || async {
        let letters = dead_letters(&world, "chat.deliver").await;
        (!letters.is_empty()).then_some(letters)
    })
    .await;
    assert!(letters[0].0.starts_with("expired: ") && letters[0].1 == 0, "{letters:?}");
    let resumed = answer(http().post(format!("{tickr}/v1/queues/default/resume")).json(&json!({}))).await;
    assert_eq!(resumed.status, 200, "{:#}", resumed.body);
    server.post("ada", &conversation, 2, "in time").await;
    bob.until("the next message is here", |seen| seen.messages.len() == 1).await;
    assert_eq!(bob.contents(&conversation), ["in time"]);
    world.until_idle().await;
    // It is not in the conversation either, except for its sender.
    assert_eq!(stored(&server, "bob", &conversation).await, ["in time"]);
    assert_eq!(stored(&server, "ada", &conversation).await, ["too old", "in time"]);
    drop(bob);
    world.end([server]).await;
}

/// Stop both servers in turn while users talk. Their sockets are closed with 1001, and nothing is lost.
async fn stops(count: i64, a_second: u32) {
    let world = World::new().await;
    let places = [lasting_addr().to_string(), lasting_addr().to_string()];
    let one = world.server(&[("CHAT_ADDR", &places[0])]).await;
    let two = world.server(&[("CHAT_ADDR", &places[1])]).await;
    let conversation = one.direct("ada", "bob").await;
    let (ada, bob) = (Person::join("ada", &[&one, &two]).await, Person::join("bob", &[&two, &one]).await);
    let stopping = async {
        let whole = Duration::from_secs(1) / a_second * u32::try_from(count).unwrap();
        let mut running = vec![one, two];
        for place in &places {
            tokio::time::sleep(whole / 4).await;
            let mut stopped = running.remove(0);
            stopped.runner.signal("TERM");
            assert_eq!(stopped.runner.exit_code().await, Some(0), "{}", stopped.runner.log());
            running.push(world.server(&[("CHAT_ADDR", place)]).await);
        }
        running
    };
    let (ids, running) = tokio::join!(talk(&ada, &conversation, count, a_second), stopping);
    bob.until("all are here", |seen| seen.messages.len() == ids.len()).await;
    assert_eq!(bob.contents(&conversation), numbers(count));
    ada.until("all are acknowledged", |seen| seen.acked.len() == ids.len()).await;
    // A receipt is a word to sockets: a sender without one reads the ticks with the conversation.
    eventually("all are delivered", || async {
        let shown = running[0].history("ada", &conversation).await;
        shown.iter().all(|message| message["delivered"] == 1).then_some(())
    })
    .await;
    for person in [&ada, &bob] {
        let closes = person.look(|seen| seen.closes.clone());
        assert!(closes.contains(&1_001), "{}: {closes:?}", person.user);
        assert!(closes.iter().all(|code| *code == 1_001), "{}: {closes:?}", person.user);
    }
    world.until_idle().await;
    drop((ada, bob));
    world.end(running).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_stop_in_turn_close_their_sockets_with_1001_and_lose_nothing() {
    stops(60, 20).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a machine for itself"]
async fn whole_stop_of_both_servers_under_100_messages_a_second() {
    stops(1_000, 100).await;
}

/// Open the conversation of two users in a page.
async fn open(page: &Page, user: &str, other: &str) {
    page.visit(&format!("/?as={user}")).await;
    page.click(&button(other)).await;
    page.has(&field("Message")).await;
}

async fn write(page: &Page, text: &str) {
    page.fill(&field("Message"), text).await;
    page.click(&button("Send")).await;
}

/// Wait until the ticks of the messages of this user, oldest first, are these.
async fn ticks(page: &Page, wanted: &[&str]) {
    let script = format!(
        "JSON.stringify([...document.querySelectorAll('.tick')].map((tick) => tick.dataset.state)) === '{}'",
        serde_json::to_string(wanted).unwrap()
    );
    page.until(&format!("the ticks are {wanted:?}"), &script).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_pages_talk_while_one_is_offline_and_a_server_is_killed() {
    let Some(browser) = Browser::shared().await else { return };
    let world = World::new().await;
    let env = [("CHAT_PRESENCE_MS", "800")];
    let place = lasting_addr().to_string();
    let (one, mut two) = (world.server(&env).await, world.server(&[env[0], ("CHAT_ADDR", &place)]).await);
    one.direct("ada", "bob").await;
    let (ada, bob) = (browser.page(&one.url).await, browser.page(&two.url).await);
    open(&ada, "ada", "bob").await;
    ada.reads("offline").await;

    // Bob is offline: one tick. A text is never read as HTML.
    write(&ada, "<img src=x onerror=alert(1)> one").await;
    ticks(&ada, &["sent"]).await;
    world.stub.until(1).await;
    // Bob comes online, and has the message before the conversation is open: two ticks. Then it is read.
    bob.visit("/?as=bob").await;
    ticks(&ada, &["delivered"]).await;
    bob.click(&button("ada")).await;
    bob.reads("<img src=x onerror=alert(1)> one").await;
    ticks(&ada, &["read"]).await;
    ada.until("bob is online", "document.getElementById('presence').textContent === 'online'").await;
    bob.fill(&field("Message"), "t").await;
    ada.reads("bob is typing…").await;
    bob.press("o").await;
    bob.click(&button("Send")).await;
    ada.reads("to").await;
    ticks(&bob, &["read"]).await;
    ada.reads_not("bob is typing…").await;

    // The server of bob is killed. What both write meanwhile waits, and arrives when the server is back, even if each
    // other call of the page fails then.
    bob.eval::<()>(
        "void (window.first = document.querySelector('#messages li'), window.plainFetch = fetch, \
         window.fetch = () => Promise.reject(new Error('no call passes')))",
    )
    .await;
    two.runner.kill9();
    bob.reads("offline, trying again").await;
    write(&bob, "from a dead line").await;
    ticks(&bob, &["read", "waits"]).await;
    write(&ada, "into a dead line").await;
    ticks(&ada, &["read", "sent"]).await;
    let two = world.server(&[env[0], ("CHAT_ADDR", &place)]).await;
    bob.reads("into a dead line").await;
    ada.reads("from a dead line").await;
    ticks(&ada, &["read", "read"]).await;
    ticks(&bob, &["read", "read"]).await;
    bob.reads("no call passes").await;
    bob.eval::<()>("void (window.fetch = plainFetch)").await;
    bob.reads_not("no call passes").await;
    assert!(bob.eval::<bool>("first === document.querySelector('#messages li')").await, "its element stayed");
    ada.until("bob is back", "document.getElementById('presence').textContent === 'online'").await;
    for page in [&ada, &bob] {
        let contents = texts(page).await;
        assert_eq!(contents.len(), 4, "{contents:?}");
        assert_eq!(page.overflow().await, Vec::<String>::new());
    }

    // A group, made on the page.
    ada.click(&button("New group")).await;
    ada.fill(&field("Group name"), "Tea").await;
    ada.fill(&field("Members, with commas"), "bob, carl").await;
    ada.click(&button("Make the group")).await;
    ada.until("the group is open", "document.getElementById('title').textContent === 'Tea'").await;
    write(&ada, "to the group").await;
    bob.click(&button("Tea")).await;
    bob.reads("to the group").await;
    ada.reads("read by 1 of 2").await;
    let shots = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    ada.shot(&shots.join("chat-ada.png")).await;
    bob.shot(&shots.join("chat-bob.png")).await;
    // The browser logs each connection that the dead server did not take. There is none if the page tried again only
    // after the next server had started.
    bob.allow("WebSocket connection");
    ada.assert_calm();
    let others: Vec<String> =
        bob.troubles().into_iter().filter(|one| !one.contains("ERR_CONNECTION_REFUSED")).collect();
    assert_eq!(others, Vec::<String>::new());
    drop((ada, bob));
    world.end([one, two]).await;
}

/// Note the types of the frames that a page sends from now on.
async fn count_frames(page: &Page) {
    page.eval::<()>(
        "void (window.said = [], WebSocket.prototype.plain = WebSocket.prototype.send, \
         WebSocket.prototype.send = function (text) { said.push(JSON.parse(text).type); this.plain(text); })",
    )
    .await;
}

/// Return the number of frames of a type since [`count_frames`].
async fn frames(page: &Page, kind: &str) -> usize {
    page.eval(&format!("said.filter((one) => one === '{kind}').length")).await
}

/// Return the texts that a page shows in its conversation, oldest first.
async fn texts(page: &Page) -> Vec<String> {
    page.eval("[...document.querySelectorAll('.content')].map((one) => one.textContent)").await
}

/// Return the contents of a conversation, as the server has them.
async fn stored(server: &Server, user: &str, conversation: &str) -> Vec<String> {
    let messages = server.history(user, conversation).await;
    messages.iter().map(|message| message["content"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_wait_in_a_page_keep_their_order_when_another_device_has_sent_meanwhile() {
    let Some(browser) = Browser::shared().await else { return };
    let world = World::new().await;
    let place = lasting_addr().to_string();
    let (one, mut two) = (world.server(&[]).await, world.server(&[("CHAT_ADDR", &place)]).await);
    let conversation = one.direct("ada", "bob").await;
    let ada = browser.page(&two.url).await;
    open(&ada, "ada", "bob").await;
    write(&ada, "before").await;
    ticks(&ada, &["sent"]).await;
    two.runner.kill9();
    ada.reads("offline, trying again").await;
    for text in ["one", "two", "three"] {
        write(&ada, text).await;
    }
    ticks(&ada, &["sent", "waits", "waits", "waits"]).await;
    one.post("ada", &conversation, 2, "another device").await;
    count_frames(&ada).await;
    let two = world.server(&[("CHAT_ADDR", &place)]).await;
    ticks(&ada, &["sent"; 5]).await;
    let wanted = ["before", "another device", "one", "two", "three"];
    assert_eq!(stored(&one, "ada", &conversation).await, wanted);
    assert_eq!(texts(&ada).await, wanted);
    // One is refused, and each is sent once after it. A slow machine may send again.
    let sent = frames(&ada, "send").await;
    assert!(sent <= 8, "{sent} frames for three messages");

    // A message that the server does not take holds up nothing. A control character is white space to it alone.
    write(&ada, "\u{85}").await;
    write(&ada, "four").await;
    ticks(&ada, &["sent", "sent", "sent", "sent", "sent", "refused", "sent"]).await;
    assert_eq!(stored(&one, "ada", &conversation).await, [&wanted[..], &["four"]].concat());
    drop(ada);
    world.end([one, two]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_two_tabs_of_a_user_could_not_send_is_sent_when_a_tab_is_opened_again() {
    let Some(browser) = Browser::shared().await else { return };
    let world = World::new().await;
    let place = lasting_addr().to_string();
    let (one, mut two) = (world.server(&[]).await, world.server(&[("CHAT_ADDR", &place)]).await);
    let conversation = one.direct("ada", "bob").await;
    let first = browser.page(&two.url).await;
    let second = first.beside().await;
    for page in [&first, &second] {
        open(page, "ada", "bob").await;
    }
    two.runner.kill9();
    for (page, text) in [(&first, "from the first tab"), (&second, "from the second tab")] {
        page.reads("offline, trying again").await;
        write(page, text).await;
        ticks(page, &["waits"]).await;
    }
    // Both tabs are closed.
    for page in [&first, &second] {
        page.blank().await;
    }
    let two = world.server(&[("CHAT_ADDR", &place)]).await;
    open(&first, "ada", "bob").await;
    ticks(&first, &["sent", "sent"]).await;
    assert_eq!(stored(&one, "ada", &conversation).await, ["from the first tab", "from the second tab"]);
    assert!(first.eval::<bool>("!Object.keys(localStorage).some((key) => key.includes('outbox'))").await);
    drop((first, second));
    world.end([one, two]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_comes_after_a_receipt_takes_no_tick_back() {
    let Some(browser) = Browser::shared().await else { return };
    let world = World::new().await;
    let server = world.server(&[("CHAT_PRESENCE_MS", "800")]).await;
    server.direct("ada", "bob").await;
    let ada = browser.page(&server.url).await;
    open(&ada, "ada", "bob").await;
    write(&ada, "one").await;
    ticks(&ada, &["sent"]).await;
    world.until_idle().await;
    // The page reads its conversation, and the answer waits.
    ada.eval::<()>(
        "void (window.plainFetch = fetch, window.held = [], window.fetch = async (path, how) => { \
         const answer = await plainFetch(path, how); \
         if (path.includes('/messages')) await new Promise((go) => held.push(go)); return answer; })",
    )
    .await;
    world.forget().await;
    ada.until("an answer waits", "held.length > 0").await;
    let bob = Person::join("bob", &[&server]).await;
    ticks(&ada, &["delivered"]).await;
    ada.eval::<()>(
        "void (window.drawn = false, window.plainParse = JSON.parse, JSON.parse = (text) => { \
         if (text.includes('\"messages\":[')) requestAnimationFrame(() => requestAnimationFrame(() => { drawn = true; })); \
         return plainParse(text); }, window.fetch = plainFetch, held.forEach((go) => go()))",
    )
    .await;
    ada.until("the answer is shown", "drawn").await;
    ticks(&ada, &["delivered"]).await;
    drop((ada, bob));
    world.end([server]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_a_conversation_that_is_not_in_the_list_is_shown() {
    let Some(browser) = Browser::shared().await else { return };
    let world = World::new().await;
    let server = world.server(&[]).await;
    let conversation = server.direct("ada", "bob").await;
    server.post("ada", &conversation, 1, "long ago").await;
    world.until_idle().await;
    // Five hundred groups with newer messages fill the list.
    world
        .tickr
        .sql(
            "INSERT INTO chat_conversations (id, is_group, name, last_seq) \
             SELECT CONCAT('0-', seq), TRUE, CONCAT('group ', seq), 1 FROM (WITH RECURSIVE n AS \
             (SELECT 1 AS seq UNION ALL SELECT seq + 1 FROM n WHERE seq < 500) SELECT seq FROM n) numbers; \
             INSERT INTO chat_members (conversation, user) SELECT id, 'bob' FROM chat_conversations WHERE is_group; \
             INSERT INTO chat_messages (conversation, seq, message_id, sender, client_seq, body, at) \
             SELECT id, 1, UUID(), 'carl', 1, 'new', UTC_TIMESTAMP(3) + INTERVAL 1 HOUR FROM chat_conversations \
             WHERE is_group",
        )
        .await;
    let bob = browser.page(&server.url).await;
    bob.visit("/?as=bob").await;
    bob.has(&button("group 500")).await;
    server.post("ada", &conversation, 2, "not in the list").await;
    bob.click(&button("ada")).await;
    bob.reads("not in the list").await;
    // The newest conversation is the first one the next time.
    world.tickr.sql("UPDATE chat_messages SET at = UTC_TIMESTAMP(3) - INTERVAL 1 HOUR WHERE body = 'new'").await;
    let (_, list) = server.ask("bob", Method::GET, "/conversations", Value::Null).await;
    let list = list["conversations"].as_array().unwrap();
    assert_eq!((list.len(), &list[0]["id"], &list[0]["members"]), (500, &json!(conversation), &json!(["ada", "bob"])));
    assert_eq!(server.ask("eve", Method::GET, &format!("/conversations/{conversation}"), Value::Null).await.0, 404);
    server.sign_in(&["eve"]).await;
    assert_eq!(server.ask("eve", Method::GET, &format!("/conversations/{conversation}"), Value::Null).await.0, 403);

    // The page shows the privacy that the server has.
    assert_eq!(server.ask("bob", Method::PUT, "/privacy", json!({"last_seen": "contacts"})).await.0, 204);
    bob.visit("/?as=bob").await;
    bob.until("the privacy is shown", "document.getElementById('privacy').value === 'contacts'").await;
    drop(bob);
    world.end([server]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_backlog_of_one_user_cuts_no_socket() {
    let world = World::new().await;
    let server = world.server(&[]).await;
    let tickr = server.runner.base().await;
    let conversation = server.direct("ada", "bob").await;
    let quiet = Manner { syncs: false, ..Manner::default() };
    let bob = Person::join_as("bob", "phone", &[&server], quiet).await;
    // Earlier deliveries have placed these messages while bob was away, each a hundred more, and the last hundred is
    // left.
    fill(&world, &conversation, "ada", "bob", 1, 2_000).await;
    world
        .tickr
        .sql(
            "DELETE FROM chat_inbox WHERE seq > 1900; UPDATE chat_members SET inbox_seq = 1900 WHERE user = 'bob'; \
              UPDATE chat_users SET last_place = 1900 WHERE id = 'bob'",
        )
        .await;
    for seq in 1..=20 {
        let payload = json!({"conversation": conversation, "seq": seq, "user": "bob", "stored": true});
        let job = json!({"kind": "chat.deliver", "payload": payload, "order_key": "user:bob"});
        let asked = answer(http().post(format!("{tickr}/v1/jobs")).json(&job)).await;
        assert_eq!(asked.status, 201, "{:#}", asked.body);
    }
    bob.until("a part is here", |seen| seen.messages.len() > 20).await;
    world.until_idle().await;
    let (here, closes) = bob.look(|seen| (seen.messages.len(), seen.closes.clone()));
    assert_eq!(closes, Vec::<u16>::new());
    assert_eq!(bob.contents(&conversation), numbers(here as i64));
    drop(bob);
    world.end([server]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_chat_on_private_servers_prints_two_links_keeps_its_messages_and_leaves_nothing_behind() {
    let (chat, dir) = (example("chat").await, tempfile::tempdir().unwrap());
    // As `make chat` starts it.
    let start = async || {
        let mut line = command(&chat, dir.path(), &["--private", ".tickr/chat"]);
        line.env("CHAT_ADDR", "127.0.0.1:0");
        let mut program = Program::spawn(line);
        let base = program.says("the chat listens on ").await;
        for user in ["ada", "bob"] {
            program.says(&format!("  {base}/?as={user}")).await;
        }
        (program, base)
    };
    let (program, base) = start().await;
    // Both users and their conversation are there.
    let (status, list) = ask(&base, "ada", Method::GET, "/conversations", Value::Null).await;
    assert_eq!((status, &list["conversations"][0]["members"]), (200, &json!(["ada", "bob"])), "{list:#}");
    let path = format!("/conversations/{}/messages", list["conversations"][0]["id"].as_str().unwrap());
    let message = json!({"message_id": Uuid::new_v4(), "client_seq": 1, "content": "kept"});
    let (status, body) = ask(&base, "ada", Method::POST, &path, message).await;
    assert_eq!(status, 200, "{body}");
    program.ends_well().await;
    nothing_runs_in(dir.path()).await;

    let (program, base) = start().await;
    // Its delivery may have been left to this start.
    eventually("bob has the message", || async {
        let (_, shown) = ask(&base, "bob", Method::GET, &path, Value::Null).await;
        (shown["messages"][0]["content"] == "kept").then_some(())
    })
    .await;
    program.ends_well().await;
    nothing_runs_in(dir.path()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_service_that_cannot_be_called_is_named_at_the_start() {
    let world = World::new().await;
    let said = world.refused(&[("CHAT_ADDR", "127.0.0.1:0"), ("CHAT_PUSH_URL", &world.stub.url)]).await;
    for part in ["CHAT_PUSH_URL cannot be called", "callback_allow"] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
    world.end([]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_of_a_large_group_misses_nothing_when_redis_forgets_who_is_online() {
    let Some(browser) = Browser::shared().await else { return };
    let world = World::new().await;
    let server = world.server(&[("CHAT_PRESENCE_MS", "4000"), ("CHAT_WRITE_UP_TO", "2")]).await;
    let group = server.group("ada", &members(4), "full").await;
    let one = browser.page(&server.url).await;
    open(&one, "m1", "a group").await;
    one.until("m1 is online", "document.getElementById('line').textContent === 'online'").await;
    // Until the next heartbeat the fan-out takes the page for one that is not there.
    world.forget().await;
    server.post("ada", &group, 1, "into the dark").await;
    world.until_idle().await;
    one.reads("into the dark").await;
    one.assert_calm();
    drop(one);
    world.end([server]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_shows_every_message_of_a_large_group_that_came_while_it_was_away() {
    let Some(browser) = Browser::shared().await else { return };
    let world = World::new().await;
    let place = lasting_addr().to_string();
    let env = [("CHAT_ADDR", place.as_str()), ("CHAT_WRITE_UP_TO", "2")];
    let mut gone = world.server(&env).await;
    let group = gone.group("ada", &members(3), "full").await;
    let page = browser.page(&gone.url).await;
    open(&page, "m1", "a group").await;
    gone.post("ada", &group, 1, "message 1").await;
    page.reads("message 1").await;
    world.until_idle().await;
    gone.runner.kill9();
    page.reads("offline, trying again").await;
    // More than one part of the answer.
    for (from, to) in [(2, 700), (701, 1_300)] {
        let missed = format!(
            "INSERT INTO chat_messages (conversation, seq, message_id, sender, client_seq, body, at) \
             SELECT '{group}', seq, UUID(), 'ada', seq, CONCAT('message ', seq), UTC_TIMESTAMP(3) FROM \
             (WITH RECURSIVE n AS (SELECT {from} AS seq UNION ALL SELECT seq + 1 FROM n WHERE seq < {to}) \
             SELECT seq FROM n) missed; UPDATE chat_conversations SET last_seq = {to} WHERE id = '{group}'"
        );
        world.tickr.sql(missed).await;
    }
    let server = world.server(&env).await;
    page.until("all are here", "document.querySelectorAll('#messages > li').length === 1300").await;
    let wanted: Vec<String> = (1..=1_300).map(|number| format!("message {number}")).collect();
    assert_eq!(texts(&page).await, wanted);
    drop(page);
    world.end([server]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_redis_loses_no_message_of_a_large_group() {
    let world = World::alone().await;
    // One attempt: a failure that uses it is a dead letter at once.
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tickr.toml");
    std::fs::write(&file, "[kinds.\"chat.fanout\"]\nmax_attempts = 1\n[kinds.\"chat.deliver\"]\nmax_attempts = 1\n")
        .unwrap();
    let env = [("CHAT_PRESENCE_MS", "800"), ("CHAT_WRITE_UP_TO", "2"), ("TICKR_CONFIG", file.to_str().unwrap())];
    let server = world.server(&env).await;
    let group = server.group("ada", &members(4), "full").await;
    let conversation = server.direct("ada", "m1").await;
    let one = Person::join("m1", &[&server]).await;
    world.tickr.services().redis().kill9().unwrap();
    server.post("ada", &group, 1, "to the group").await;
    server.post("ada", &conversation, 1, "to one").await;
    let snoozed = "SELECT COUNT(*) FROM attempts a JOIN jobs j ON j.id = a.job_id \
                   WHERE j.kind = 'KIND' AND a.verdict = 'snoozed'";
    for kind in ["chat.fanout", "chat.deliver"] {
        eventually("the job snoozes", || async {
            (world.tickr.count(snoozed.replace("KIND", kind)).await > 1).then_some(())
        })
        .await;
    }
    world.tickr.services().redis().start_again().unwrap();
    world.until_idle().await;
    assert_eq!(world.tickr.get("/v1/dead-letters").await.body["data"], json!([]));
    one.until("the message is here", |seen| !seen.messages.is_empty()).await;
    // A member whom the fan-out did not find online reads the conversation.
    assert_eq!(stored(&server, "m1", &group).await, ["to the group"]);
    drop(one);
    world.end([server]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_who_was_turned_away_and_one_who_is_not_where_redis_says_are_offline() {
    let world = World::alone().await;
    let server = world.server(&[("CHAT_PRESENCE_MS", "60000")]).await;
    let conversation = server.direct("ada", "bob").await;
    let acl = async |rule: &str| {
        let mut redis = world.tickr.redis().await;
        redis::cmd("ACL").arg("SETUSER").arg("default").arg(rule).exec_async(&mut redis).await.unwrap();
    };
    // Redis fails between the two words of a client who comes.
    acl("-publish").await;
    let url = format!("{}/ws?user=bob&device=phone", server.url.replacen("http", "ws", 1));
    let (mut socket, _) = tokio_tungstenite::connect_async(&url).await.unwrap();
    let said = socket.next().await.unwrap().unwrap();
    assert!(matches!(&said, Frame::Close(Some(frame)) if u16::from(frame.code) == 1_013), "{said:?}");
    acl("+publish").await;
    server.post("ada", &conversation, 1, "one").await;
    world.stub.until(1).await;
    let status = async || {
        let (_, shown) = server.ask("ada", Method::GET, "/presence?users=bob", Value::Null).await;
        shown["users"][0]["status"].as_str().unwrap().to_owned()
    };
    assert_eq!(status().await, "offline");

    // Redis says that bob is here: his socket was signed off, and a late word of a heartbeat registered it again.
    let bob = Person::join("bob", &[&server]).await;
    let servers = format!("{}:chat:servers:bob", world.tickr.config.redis_prefix);
    let presence = format!("{}:chat:presence:bob", world.tickr.config.redis_prefix);
    let mut redis = world.tickr.redis().await;
    let known: Vec<String> = redis::cmd("ZRANGE").arg(&servers).arg(0).arg(-1).query_async(&mut redis).await.unwrap();
    bob.leave().await;
    eventually("bob is signed off", || async { (status().await == "offline").then_some(()) }).await;
    let mut pipe = redis::pipe();
    pipe.cmd("ZADD").arg(&servers).arg(i64::MAX / 1_024).arg(&known[0]).cmd("SET").arg(&presence).arg("{}");
    pipe.exec_async(&mut redis).await.unwrap();
    assert_eq!(status().await, "online");
    server.post("ada", &conversation, 2, "two").await;
    world.stub.until(2).await;
    assert_eq!(status().await, "offline");
    world.until_idle().await;
    let failed = "SELECT COUNT(*) FROM attempts WHERE verdict NOT IN ('succeeded', 'snoozed')";
    assert_eq!(world.tickr.count(failed).await, 0, "no attempt waited in vain");
    world.end([server]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_hears_again_after_its_connections_to_redis_were_forgotten() {
    let world = World::new().await;
    let relay = Relay::start().await;
    relay.lead_to(world.tickr.config.redis_url().unwrap().expose());
    let url = relay.redis_url();
    let server = world.server(&[("CHAT_PRESENCE_MS", "3000"), ("TICKR_REDIS_URL", &url)]).await;
    let conversation = server.direct("ada", "bob").await;
    let bob = Person::join("bob", &[&server]).await;
    server.post("ada", &conversation, 1, "before").await;
    bob.until("the first message is here", |seen| seen.messages.len() == 1).await;
    // A firewall forgets the connections of now, and takes new ones.
    let before = relay.connections();
    relay.set(Condition::HalfOpen);
    eventually("the server tries again", || async { (relay.connections() > before).then_some(()) }).await;
    relay.set(Condition::Pass);
    // The server pushes it at one of the attempts, or lets bob ask for it.
    server.post("ada", &conversation, 2, "after").await;
    bob.until("the second message is here", |seen| seen.messages.len() == 2).await;
    world.until_idle().await;
    assert_eq!(world.tickr.get("/v1/dead-letters").await.body["data"], json!([]));
    drop(bob);
    world.end([server]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_count_of_unread_messages_goes_when_their_conversation_is_opened() {
    let Some(browser) = Browser::shared().await else { return };
    let world = World::new().await;
    let server = world.server(&[]).await;
    let conversation = server.direct("ada", "bob").await;
    server.post("ada", &conversation, 1, "one").await;
    server.post("ada", &conversation, 2, "two").await;
    world.until_idle().await;
    let bob = browser.page(&server.url).await;
    bob.visit("/?as=bob").await;
    bob.until("two messages are here", "document.querySelector('.unread')?.textContent === '2'").await;
    bob.click(&button("ada")).await;
    bob.until("the count is gone", "!document.querySelector('.unread')").await;
    world.end([server]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_asks_again_for_what_the_server_could_not_do() {
    let Some(browser) = Browser::shared().await else { return };
    let world = World::new().await;
    let server = world.server(&[("CHAT_PRESENCE_MS", "800")]).await;
    let conversation = server.direct("ada", "bob").await;
    let bob = browser.page(&server.url).await;
    bob.visit("/?as=bob").await;
    bob.has(&button("ada")).await;
    count_frames(&bob).await;
    // Pauses of the page are a tenth, so that the test is short.
    bob.eval::<()>(
        "void (window.plainTimeout = setTimeout, window.setTimeout = (act, ms) => plainTimeout(act, ms / 10))",
    )
    .await;

    // A message is sent, and was not read for sure when the server could not write it.
    server.post("ada", &conversation, 1, "one").await;
    bob.until("the message is here", "document.querySelector('.unread')?.textContent === '1'").await;
    world.until_idle().await;
    world.tickr.sql("RENAME TABLE chat_members TO members_away").await;
    bob.click(&button("ada")).await;
    bob.reads("try again soon").await;
    world.tickr.sql("RENAME TABLE members_away TO chat_members").await;
    eventually("the message is read", || async {
        (server.history("ada", &conversation).await[0]["read"] == 1).then_some(())
    })
    .await;

    // A message that the page could not send four times in a row.
    bob.has(&field("Message")).await;
    world.tickr.sql("RENAME TABLE chat_messages TO messages_away").await;
    let before = frames(&bob, "send").await;
    write(&bob, "two").await;
    bob.until("it was sent four times", &format!("said.filter((one) => one === 'send').length >= {}", before + 4))
        .await;
    world.tickr.sql("RENAME TABLE messages_away TO chat_messages").await;
    ticks(&bob, &["sent"]).await;

    // The inbox, which the page could not fetch.
    world.until_idle().await;
    bob.eval::<()>("void (document.getElementById('wrong').textContent = '')").await;
    let syncs = frames(&bob, "sync").await;
    world.tickr.sql("RENAME TABLE chat_inbox TO inbox_away").await;
    world.forget().await;
    bob.until("it asked", &format!("said.filter((one) => one === 'sync').length > {syncs}")).await;
    bob.reads("try again soon").await;
    world.tickr.sql("RENAME TABLE inbox_away TO chat_inbox").await;
    let place = world.tickr.count("SELECT last_place FROM chat_users WHERE id = 'bob'").await;
    // A message that no delivery takes along: another device has confirmed it.
    fill(&world, &conversation, "ada", "bob", place + 1, place + 1).await;
    world.tickr.sql("UPDATE chat_inbox SET delivered_at = UTC_TIMESTAMP(3) WHERE delivered_at IS NULL").await;
    server.post("ada", &conversation, place + 2, "last").await;
    bob.reads("last").await;
    let missing = (place + 1).to_string();
    bob.until(
        "the gap is filled",
        &format!("[...document.querySelectorAll('.content')].some((one) => one.textContent === '{missing}')"),
    )
    .await;
    drop(bob);
    world.end([server]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_expires_in_the_inbox_is_delivered_by_a_replay_only() {
    let world = World::new().await;
    let server = world.server(&[("CHAT_EXPIRY_MS", "5000")]).await;
    let tickr = server.runner.base().await;
    let conversation = server.direct("ada", "bob").await;
    // The first delivery ends well, because bob is offline. That of the second one is tried until it expires.
    server.post("ada", &conversation, 1, "one").await;
    world.stub.until(1).await;
    haunt(&world, "bob").await;
    server.post("ada", &conversation, 2, "two").await;
    let letters = eventually("the second message expires", || async {
        let letters = dead_letters(&world, "chat.deliver").await;
        (!letters.is_empty()).then_some(letters)
    })
    .await;
    assert!(letters[0].0.starts_with("expired: "), "{letters:?}");
    lay(&world, "bob").await;
    eventually("nothing is left for bob", || async {
        stored(&server, "bob", &conversation).await.is_empty().then_some(())
    })
    .await;

    let bob = Person::join("bob", &[&server]).await;
    server.post("ada", &conversation, 3, "three").await;
    bob.until("the next message is here", |seen| !seen.messages.is_empty()).await;
    world.until_idle().await;
    assert_eq!(bob.contents(&conversation), ["three"]);
    assert_eq!(stored(&server, "bob", &conversation).await, ["three"]);
    // What bob has read does not say that he had the two.
    bob.say(json!({"type": "read", "conversation_id": conversation, "read_up_to": bob.look(|seen| {
        seen.messages[0]["message_id"].clone()
    })}));
    let ticks = async || {
        let shown = server.history("ada", &conversation).await;
        let ticks: Vec<_> = shown.iter().map(|one| (one["delivered"].clone(), one["read"].clone())).collect();
        json!(ticks)
    };
    eventually("the third message is read", || async { (ticks().await[2] == json!([1, 1])).then_some(()) }).await;
    assert_eq!(ticks().await, json!([[0, 0], [0, 0], [1, 1]]));
    bob.say(json!({"type": "synced", "place": 3}));
    world.tickr.until_count("SELECT COUNT(*) FROM chat_devices WHERE synced_place = 3", 1).await;
    bob.leave().await;

    // An operator may deliver it all the same, also while bob is away.
    let letter = world.tickr.get("/v1/dead-letters?kind=chat.deliver").await.body["data"][0]["id"].clone();
    let path = format!("{tickr}/v1/jobs/{}/replay", letter.as_str().unwrap());
    let replayed = answer(http().post(path).json(&json!({}))).await;
    assert_eq!(replayed.status, 201, "{:#}", replayed.body);
    world.until_idle().await;
    assert_eq!(stored(&server, "bob", &conversation).await, ["two", "three"]);
    // Also to the device that has synced beyond its first place.
    let bob = Person::join("bob", &[&server]).await;
    bob.until("the replayed one is here", |seen| !seen.messages.is_empty()).await;
    assert_eq!(bob.contents(&conversation), ["two"]);
    bob.leave().await;
    let bob = Person::join_as("bob", "new", &[&server], Manner::default()).await;
    bob.until("both are here", |seen| seen.messages.len() == 2).await;
    drop(bob);
    world.end([server]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_confirmation_revives_no_expired_message_between_those_that_were_replayed() {
    let world = World::new().await;
    let server = world.server(&[("CHAT_EXPIRY_MS", "5000")]).await;
    let tickr = server.runner.base().await;
    let conversation = server.direct("ada", "bob").await;
    haunt(&world, "bob").await;
    for (number, text) in [(1, "one"), (2, "two"), (3, "three")] {
        server.post("ada", &conversation, number, text).await;
    }
    // The second attempt of the first delivery takes the others along.
    world.tickr.until_count("SELECT COUNT(*) FROM chat_inbox WHERE user = 'bob'", 3).await;
    eventually("all three expire", || async {
        let letters = dead_letters(&world, "chat.deliver").await;
        (letters.len() == 3 && letters.iter().all(|(why, _)| why.starts_with("expired: "))).then_some(())
    })
    .await;
    // An attempt that began just before the end of its job has made its message a late one, as a replay does.
    world.tickr.sql("DELETE FROM chat_late").await;
    lay(&world, "bob").await;
    let replay = async |seq: i64| {
        let page = world.tickr.get("/v1/dead-letters?kind=chat.deliver").await.body;
        for letter in page["data"].as_array().unwrap() {
            let path = format!("/v1/jobs/{}", letter["id"].as_str().unwrap());
            if world.tickr.get(&path).await.body["payload"]["seq"] == seq {
                let made = answer(http().post(format!("{tickr}{path}/replay")).json(&json!({}))).await;
                assert_eq!(made.status, 201, "{:#}", made.body);
                return;
            }
        }
        panic!("message {seq} has no dead letter: {page:#}");
    };
    // The first one waits for bob in his inbox, and the delivery of the third one takes it along.
    replay(1).await;
    world.until_idle().await;
    let bob = Person::join_as("bob", "phone", &[&server], Manner { syncs: false, ..Manner::default() }).await;
    replay(3).await;
    bob.until("both are here", |seen| seen.messages.len() == 2).await;
    world.until_idle().await;
    assert_eq!(bob.contents(&conversation), ["one", "three"]);
    assert_eq!(stored(&server, "bob", &conversation).await, ["one", "three"]);
    drop(bob);
    world.end([server]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_refused_after_it_was_placed_reaches_no_device() {
    let world = World::new().await;
    let server = world.server(&[]).await;
    let conversation = server.direct("ada", "bob").await;
    let ada = Person::join("ada", &[&server]).await;
    haunt(&world, "bob").await;
    ada.send(&conversation, 1, "placed");
    delivery(&world, "bob", "an attempt has failed", |job| job["state"] == "retrying").await;
    assert_eq!(world.tickr.count("SELECT COUNT(*) FROM chat_inbox WHERE user = 'bob'").await, 1);
    assert_eq!(server.ask("bob", Method::PUT, "/blocks/ada", Value::Null).await.0, 204);
    eventually("the delivery is refused", || async {
        let letters = dead_letters(&world, "chat.deliver").await;
        letters.first().is_some_and(|(why, _)| why == "the recipient has blocked the sender").then_some(())
    })
    .await;
    lay(&world, "bob").await;
    let bob = Person::join("bob", &[&server]).await;
    // What another user writes is the fence behind which nothing came.
    let with_carl = server.direct("carl", "bob").await;
    server.post("carl", &with_carl, 1, "fence").await;
    bob.until("the fence is here", |seen| !seen.messages.is_empty()).await;
    world.until_idle().await;
    assert_eq!(bob.contents(&conversation), Vec::<String>::new());
    assert_eq!(stored(&server, "bob", &conversation).await, Vec::<String>::new());
    assert!(ada.look(|seen| seen.delivered.is_empty()), "nothing was delivered");
    assert_eq!(server.history("ada", &conversation).await[0]["delivered"], 0);
    drop((ada, bob));
    world.end([server]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_answered_is_committed_also_after_clients_that_hung_up() {
    let world = World::new().await;
    let proxy = Proxy::start(world.tickr.config.mysql_url().unwrap().expose()).await;
    let server = world.server(&[("TICKR_MYSQL_URL", &proxy.url())]).await;
    let conversation = server.direct("ada", "bob").await;
    world.until_idle().await;
    // The transactions of tickr begin in longer requests.
    proxy.hold_back("=BEGIN");
    let host = server.url.strip_prefix("http://").unwrap();
    let body = json!({"message_id": Uuid::new_v4(), "client_seq": 1, "content": "kept"}).to_string();
    let mut client = TcpStream::connect(host).await.unwrap();
    let request = format!(
        "POST /conversations/{conversation}/messages HTTP/1.1\r\nhost: {host}\r\nchat-user: ada\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    client.write_all(request.as_bytes()).await.unwrap();
    eventually("the transaction begins", || async { proxy.holds_one_back().then_some(()) }).await;
    // The server drops the request when it sees the end of the connection, and closes its side.
    client.shutdown().await.unwrap();
    let mut rest = Vec::new();
    let _ = tokio::time::timeout(DEADLINE, client.read_to_end(&mut rest)).await.expect("the server closes");
    proxy.pass_held_back();
    // Each connection of the pool is used in turn.
    for number in 1..=30 {
        let path = format!("/blocks/m{number}");
        assert_eq!(server.ask("bob", Method::PUT, &path, Value::Null).await.0, 204);
        assert_eq!(world.tickr.count("SELECT COUNT(*) FROM chat_blocks").await, number, "{number} were answered");
    }
    // The message was under way, and is stored.
    eventually("the message is stored", || async {
        (stored(&server, "ada", &conversation).await == ["kept"]).then_some(())
    })
    .await;
    world.until_idle().await;
    world.end([server]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_to_mysql_that_the_network_forgot_make_no_dead_letter() {
    let world = World::new().await;
    let proxy = Proxy::start(world.tickr.config.mysql_url().unwrap().expose()).await;
    let server = world.server(&[("TICKR_MYSQL_URL", &proxy.url()), ("TICKR_LEASE", "15s")]).await;
    let conversation = server.direct("ada", "bob").await;
    let bob = Person::join("bob", &[&server]).await;
    // Twelve transactions at a time, which wait for the conversation, open as many connections.
    let mut session = world.tickr.mysql().await;
    session.execute("BEGIN").await.unwrap();
    session.execute("SELECT id FROM chat_conversations FOR UPDATE").await.unwrap();
    let message = json!({"message_id": Uuid::new_v4(), "client_seq": 1, "content": "one"});
    let mut callers = JoinSet::new();
    for _ in 0..12 {
        let (base, path, message) =
            (server.url.clone(), format!("/conversations/{conversation}/messages"), message.clone());
        callers.spawn(async move {
            // On a slow machine, the wait for the other callers takes longer than a transaction may.
            while ask(&base, "ada", Method::POST, &path, message.clone()).await.0 != 200 {}
        });
    }
    world.tickr.until_lock_waits(12..).await;
    session.execute("ROLLBACK").await.unwrap();
    callers.join_all().await;
    bob.until("the first message is here", |seen| seen.messages.len() == 1).await;
    world.until_idle().await;
    proxy.forget_connections();
    // The server uses one that it has just used without another question.
    tokio::time::sleep(Duration::from_millis(300)).await;
    server.post("ada", &conversation, 2, "two").await;
    bob.until("the second message is here", |seen| seen.messages.len() == 2).await;
    world.until_idle().await;
    assert_eq!(bob.contents(&conversation), ["one", "two"]);
    assert_eq!(dead_letters(&world, "chat.deliver").await, []);
    drop(bob);
    world.end([server]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_uses_no_attempt_while_mysql_takes_no_work() {
    let world = World::new().await;
    let proxy = Proxy::start(world.tickr.config.mysql_url().unwrap().expose()).await;
    let server = world.server(&[("TICKR_MYSQL_URL", &proxy.url()), ("TICKR_LEASE", "15s")]).await;
    let conversation = server.direct("ada", "bob").await;
    let bob = Person::join("bob", &[&server]).await;
    // Too many connections, and a server that only reads.
    for (number, error) in (1..).zip([1040, 1290]) {
        proxy.refuse("SELECT deleted FROM chat_users", error, 1);
        server.post("ada", &conversation, number, &number.to_string()).await;
        bob.until("the message is here", |seen| seen.messages.len() == usize::try_from(number).unwrap()).await;
        assert!(proxy.is_through());
    }
    world.until_idle().await;
    let verdicts =
        "SELECT COUNT(*) FROM attempts a JOIN jobs j ON j.id = a.job_id WHERE j.kind = 'chat.deliver' AND verdict";
    for (verdict, count) in [("snoozed", 2), ("failed", 0)] {
        assert_eq!(world.tickr.count(&format!("{verdicts} = '{verdict}'")).await, count, "{verdict}");
    }
    drop(bob);
    world.end([server]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_stops_while_mysql_and_redis_stand_still() {
    let world = World::alone().await;
    let mut server = world.server(&[]).await;
    let conversation = server.direct("ada", "bob").await;
    let once = Manner { comes_back: false, ..Manner::default() };
    let ada = Person::join_as("ada", "phone", &[&server], once).await;
    ada.until("ada is there", |seen| seen.hellos == 1).await;
    world.tickr.services().mysql().pause().unwrap();
    world.tickr.services().redis().pause().unwrap();
    // A statement of her socket waits for an answer.
    ada.send(&conversation, 1, "into the standstill");
    let began = Instant::now();
    server.runner.signal("TERM");
    assert_eq!(server.runner.exit_code().await, Some(0), "{}", server.runner.log());
    println!("the server stopped in {:?}", began.elapsed());
    ada.until("her socket is closed", |seen| !seen.closes.is_empty()).await;
    assert_eq!(ada.look(|seen| seen.closes.clone()), [1_001]);
    world.tickr.services().redis().resume().unwrap();
    world.tickr.services().mysql().resume().unwrap();
    drop(ada);
    world.end([]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reads_nothing_is_taken_for_offline() {
    let world = World::new().await;
    let server = world.server(&[]).await;
    let conversation = server.direct("ada", "bob").await;
    fill(&world, &conversation, "ada", "bob", 1, 1_000).await;
    // One batch is larger than the buffers of the connection.
    world.tickr.sql("UPDATE chat_messages SET body = REPEAT('x', 30000)").await;
    let url = format!("{}/ws?user=bob&device=phone", server.url.replacen("http", "ws", 1));
    let (mut socket, _) = tokio_tungstenite::connect_async(&url).await.unwrap();
    socket.send(Frame::Text(json!({"type": "sync", "after": 0}).to_string().into())).await.unwrap();
    let status = async || {
        let (_, shown) = server.ask("ada", Method::GET, "/presence?users=bob,bob", Value::Null).await;
        (shown["users"][0]["status"].clone(), shown["users"][1]["status"].clone())
    };
    eventually("bob is offline", || async { (status().await == (json!("offline"), json!("offline"))).then_some(()) })
        .await;
    server.post("ada", &conversation, 1_001, "to the phone").await;
    world.stub.until(1).await;
    world.until_idle().await;
    assert_eq!(dead_letters(&world, "chat.deliver").await, []);
    drop(socket);
    world.end([server]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn receipts_that_redis_does_not_take_are_told_when_it_does() {
    let world = World::alone().await;
    let server = world.server(&[]).await;
    let conversation = server.direct("ada", "bob").await;
    let (ada, bob) = (Person::join("ada", &[&server]).await, Person::join("bob", &[&server]).await);
    let one = server.post("ada", &conversation, 1, "one").await;
    bob.until("the message is here", |seen| seen.messages.len() == 1).await;
    world.until_idle().await;
    let acl = async |rule: &str| {
        let mut redis = world.tickr.redis().await;
        redis::cmd("ACL").arg("SETUSER").arg("default").arg(rule).exec_async(&mut redis).await.unwrap();
    };
    acl("-publish").await;
    bob.say(json!({"type": "read", "conversation_id": conversation, "read_up_to": one["message_id"]}));
    world.tickr.until_count("SELECT read_seq FROM chat_members WHERE user = 'bob'", 1).await;
    acl("+publish").await;
    ada.until("the receipt is here", |seen| seen.reads.len() == 1).await;
    assert_eq!(bob.look(|seen| seen.errors.clone()), Vec::<Value>::new());
    drop((ada, bob));
    world.end([server]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_or_does_not_exist_is_refused_in_json_and_for_good() {
    let world = World::new().await;
    let server = world.server(&[]).await;
    let conversation = server.direct("ada", "bob").await;
    let huge = "x".repeat(2 << 20);
    let id = Uuid::new_v4().to_string();
    let message = |content: &str| json!({"message_id": id, "client_seq": 1, "content": content});
    for (method, path, body, status, code) in [
        (Method::GET, "/nowhere", Value::Null, 404, "not_found"),
        (Method::GET, "/applications/%C3%A4", Value::Null, 404, "not_found"),
        (Method::GET, "/applications/%C3%A4/chats/1", Value::Null, 404, "not_found"),
        (Method::GET, "/applications/%C3%A4/chats/1/messages/1", Value::Null, 404, "not_found"),
        (Method::GET, "/applications/a/chats/x", Value::Null, 400, "wrong"),
        (Method::POST, "/applications/%C3%A4/chats", Value::Null, 404, "not_found"),
        (Method::POST, "/applications/%C3%A4/chats/1/messages", json!({"body": "x"}), 404, "not_found"),
        (Method::POST, "/applications", json!({"name": 5}), 400, "wrong"),
        (Method::GET, "/conversations/%C3%A4", Value::Null, 403, "not_a_member"),
        (Method::GET, "/conversations/%C3%A4/messages", Value::Null, 403, "not_a_member"),
        (Method::POST, "/conversations/%C3%A4/messages", message("x"), 404, "not_found"),
        (Method::POST, "/conversations/ada~bob/messages", message(&huge), 400, "wrong"),
        (Method::POST, "/conversations/ada~bob/messages", json!({"content": "x"}), 400, "wrong"),
        (Method::GET, "/conversations/ada~bob/messages?after=x", Value::Null, 400, "wrong"),
        (Method::POST, "/conversations", json!({"with": ["bob"]}), 400, "wrong"),
        (Method::POST, "/sign-in", json!("ada"), 400, "wrong"),
        (Method::POST, "/sign-in", json!({"name": "\u{e4}"}), 400, "wrong"),
        (Method::GET, "/presence", Value::Null, 400, "wrong"),
    ] {
        let (answered, body) = server.ask("ada", method.clone(), path, body).await;
        assert_eq!((answered, &body["code"]), (status, &json!(code)), "{method} {path}: {body}");
    }

    // The same over a socket, which stays.
    let ada = Person::join("ada", &[&server]).await;
    let frames = [
        (
            json!({"type": "send", "conversation_id": "\u{e4}", "message_id": id, "client_seq": 1, "content": "x"}),
            "not_found",
        ),
        (json!({"type": "open", "conversation_id": "\u{e4}"}), "wrong"),
        (json!({"type": "typing_start", "conversation_id": &huge[..100_000]}), "wrong"),
        (json!({"type": "nothing"}), "wrong"),
    ];
    for (number, (frame, code)) in frames.into_iter().enumerate() {
        ada.say(frame);
        ada.until("it is refused", |seen| seen.errors.len() == number + 1).await;
        assert_eq!(ada.look(|seen| seen.errors[number]["code"].clone()), code);
    }
    ada.say(json!({"type": "read", "conversation_id": "\u{e4}", "read_up_to": "\u{e4}"}));

    // A deleted account says nothing more.
    assert_eq!(server.ask("ada", Method::DELETE, "/account", Value::Null).await.0, 204);
    ada.say(
        json!({"type": "send", "conversation_id": conversation, "message_id": id, "client_seq": 1, "content": "x"}),
    );
    ada.until("it is refused", |seen| seen.errors.len() == 5).await;
    assert_eq!(ada.look(|seen| (seen.errors[4]["code"].clone(), seen.closes.len())), (json!("not_a_member"), 0));
    assert_eq!(world.tickr.count("SELECT COUNT(*) FROM chat_messages").await, 0);
    drop(ada);
    world.end([server]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_has_one_socket_however_often_its_connection_is_given_up() {
    let Some(browser) = Browser::shared().await else { return };
    let world = World::new().await;
    let server = world.server(&[("CHAT_WRITE_UP_TO", "0"), ("CHAT_PUSH_UP_TO", "0")]).await;
    let group = server.group("ada", &["bob".to_owned()], "full").await;
    let bob = browser.page(&server.url).await;
    open(&bob, "bob", "a group").await;
    bob.until("bob is online", "document.getElementById('line').textContent === 'online'").await;
    // Three words of news fail at the same time, and each gives the connection up.
    bob.eval::<()>(
        "void (window.sockets = 0, window.failing = [], window.plainFetch = fetch, window.PlainSocket = WebSocket, \
         window.fetch = () => new Promise((_, reject) => failing.push(reject)), \
         window.WebSocket = class extends PlainSocket { constructor(url) { super(url); sockets += 1; } })",
    )
    .await;
    for (number, text) in (1..).zip(["one", "two", "three"]) {
        server.post("ada", &group, number, text).await;
    }
    bob.until("all three ask", "failing.length === 3").await;
    bob.eval::<()>("void (window.fetch = plainFetch, failing.forEach((fail) => fail(new Error('gone'))))").await;
    bob.reads("three").await;
    server.post("ada", &group, 4, "four").await;
    bob.reads("four").await;
    assert_eq!(bob.eval::<usize>("sockets").await, 1);
    drop(bob);
    world.end([server]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_keeps_a_draft_in_its_conversation_and_shows_a_group_that_is_new() {
    let Some(browser) = Browser::shared().await else { return };
    let world = World::new().await;
    let server = world.server(&[("CHAT_WRITE_UP_TO", "0"), ("CHAT_PUSH_UP_TO", "0")]).await;
    server.direct("ada", "bob").await;
    server.direct("ada", "cy").await;
    let bob = browser.page(&server.url).await;
    open(&bob, "bob", "ada").await;
    // The news of the first message comes before the page knows the group.
    bob.eval::<()>(
        "void (window.plainFetch = fetch, window.fetch = (...all) => \
         new Promise((done) => setTimeout(done, 300)).then(() => plainFetch(...all)))",
    )
    .await;
    let group = server.group("ada", &["bob".to_owned()], "full").await;
    server.post("ada", &group, 1, "welcome").await;
    bob.fill(&field("Message"), "for ada alone").await;
    bob.click(&button("a group")).await;
    bob.reads("welcome").await;
    let text = "document.getElementById('text').value";
    bob.until("the field is empty", &format!("{text} === ''")).await;
    bob.click(&button("ada")).await;
    bob.until("the draft is back", &format!("{text} === 'for ada alone'")).await;
    drop(bob);
    world.end([server]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_and_programs_of_elsewhere_are_refused() {
    let world = World::new().await;
    let server = world.server(&[]).await;
    let status = async |name: &str, value: &str| {
        http().get(format!("{}/", server.url)).header(name, value).send().await.unwrap().status().as_u16()
    };
    assert_eq!(status("origin", &server.url).await, 200);
    assert_eq!(status("origin", "https://evil.example").await, 403);
    assert_eq!(status("host", "evil.example").await, 403);
    let page = http().get(format!("{}/", server.url)).send().await.unwrap();
    let policy = page.headers()["content-security-policy"].to_str().unwrap().to_owned();
    assert!(policy.contains("default-src 'none'; script-src 'self'") && !policy.contains("unsafe"), "{policy}");
    world.end([server]).await;
}
