//! The store alone, on a real server: its promises without an engine or an index.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::value::RawValue;
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, Row};
use tickr::job::limits::MAX_LOG_BYTES;
use tickr::job::{
    Actor, AttemptToken, BatchId, Bounds, Breaker, CallOutcome, Due, Edition, Editions, JobId, JobOptions, Limit, Name,
    NewJob, OnConflict, OnFailure, OnParentFailure, Order, Priority, Producer, Progress, Rate, RetryPolicy, RunnerId,
    Scope, SharedBy, State, Verdict,
};
use tickr::services::Services;
use tickr::store::{
    ActionOutcome, Again, Answer, BatchCreated, CheckpointUse, Claim, Claimant, Claimed, Condition, Death, Deferral,
    DueJob, EnqueueOutcome, EnqueueReceipts, EnqueueRefusal, HeartbeatConnection, IdempotentOutcome, IdempotentRequest,
    KeyedRow, LapseRule, Lapsed, LimitSweep, LiveAttempt, NewBatch, NewWorker, PoolSizes, RemoteFetch, ResponseBuilder,
    RunnerRow, Settled, Settlement, Store, StoreError, StoreSettings, WaitsFor, Walk,
};
use tokio::task::JoinHandle;

use crate::support::{
    DEADLINE, Halt, Proxy, Pulse, connect, default_queue, drop_database, eventually, halted, migrated_database,
    open_transactions, server_options, table_prefix, unique_name, until_said,
};

struct TestStore {
    store: Store,
    claimant: Claimant,
    url: String,
    name: String,
}

impl TestStore {
    async fn start() -> Self {
        let (name, url) = migrated_database().await;
        Self::at(name, url.clone(), url).await
    }

    /// Make a store that connects through `through`. The test itself connects to `url`.
    async fn at(name: String, url: String, through: String) -> Self {
        Self::with_flushers(name, url, through, 2).await
    }

    async fn with_flushers(name: String, url: String, through: String, flushers: usize) -> Self {
        let settings = StoreSettings { url: through, connections: 4, flushers, table_prefix: table_prefix() };
        let store = Store::connect(&settings, Duration::from_secs(10)).await.unwrap();
        store.migrate().await.unwrap();
        let claimant = claimant(&store);
        Self { store, claimant, url, name }
    }

    async fn claimed(&self, id: JobId) -> Claimed {
        match self.claimant.claim(id, default_queue()).await.unwrap() {
            Claim::Won(claimed) => *claimed,
            other => panic!("{other:?}"),
        }
    }

    async fn mysql(&self) -> MySqlConnection {
        connect(&self.url).await
    }

    async fn count(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql).fetch_one(&mut self.mysql().await).await.unwrap()
    }

    async fn until_said(&self, begins: &str, wanted: usize) {
        until_said(&self.url, &self.name, begins, wanted).await;
    }

    /// Wait until this many sessions of this database wait for a table that another session has locked, or none.
    async fn until_waiting_for_tables(&self, wanted: u32) {
        eventually(&format!("{wanted} sessions wait for a table"), || async {
            let sessions = self.mysql().await.fetch_all("SHOW PROCESSLIST").await.unwrap();
            let waits = |row: &sqlx::mysql::MySqlRow| {
                let text = |name| row.try_get_unchecked::<Option<Vec<u8>>, _>(name).unwrap().unwrap_or_default();
                text("db") == self.name.as_bytes() && text("State").ends_with(b"metadata lock")
            };
            let waiting = sessions.iter().filter(|row| waits(row)).count();
            (if wanted == 0 { waiting == 0 } else { waiting >= wanted as usize }).then_some(())
        })
        .await;
    }

    /// Wait until no session of this database is in the middle of a transaction.
    async fn until_no_transaction_is_open(&self) {
        eventually("no transaction is open", || async { transactions(&self.url).await.is_empty().then_some(()) }).await;
    }

    /// Return whether another session has locked a tally, or is making one.
    async fn is_a_tally_locked(&self) -> bool {
        match self.mysql().await.fetch_all("SELECT n FROM tallies FOR UPDATE NOWAIT").await {
            Ok(_) => false,
            Err(sqlx::Error::Database(_)) => true,
            Err(other) => panic!("{other}"),
        }
    }

    /// End the sessions of the store at the server.
    async fn kill_sessions(&self) {
        let mut killer = self.mysql().await;
        let own: u64 = sqlx::query_scalar("SELECT CONNECTION_ID()").fetch_one(&mut killer).await.unwrap();
        for row in killer.fetch_all("SHOW PROCESSLIST").await.unwrap() {
            let id = row.try_get::<u64, _>("Id").or_else(|_| row.try_get::<i64, _>("Id").map(|id| id as u64)).unwrap();
            let database = row.try_get_unchecked::<Option<Vec<u8>>, _>("db").unwrap().unwrap_or_default();
            if id != own && database == self.name.as_bytes() {
                // It may have ended by itself.
                let _ = killer.execute(AssertSqlSafe(format!("KILL {id}"))).await;
            }
        }
    }

    /// Return the attempts whose lease has expired.
    async fn lapsed(&self) -> Vec<Lapsed> {
        let now = self.store.unstopped_runners().await.unwrap().reading.moment;
        self.store.walk_owed(None, LapseRule::at(now), 1_000).await.unwrap().lapsed
    }

    /// End these attempts as lost. Return the ids of the jobs whose attempts were.
    async fn reap(&self, lapsed: Vec<Lapsed>) -> Vec<JobId> {
        let (reaped, refused) = self.store.reap(lapsed, Arc::default()).await.unwrap();
        assert!(refused.is_empty(), "{refused:?}");
        reaped.iter().map(|reaped| reaped.id).collect()
    }

    /// End the test: check every promise that the tables can show. No index belongs to this store.
    async fn stop(self) {
        halted::assert_sound_without_index(&self.url, &self.name).await;
        self.end().await;
    }

    /// End a test that broke something on purpose.
    async fn stop_broken(self, why: &str) {
        assert!(!why.is_empty(), "a test that leaves something broken says what");
        self.end().await;
    }

    async fn end(self) {
        drop(self.claimant);
        self.store.close().await;
        drop_database(&self.url, &self.name).await;
    }
}

/// Return the open transactions of a database: their state and isolation level.
async fn transactions(url: &str) -> Vec<(String, String)> {
    let open = open_transactions(url).await.into_iter();
    open.map(|transaction| (transaction.state, transaction.isolation)).collect()
}

fn claimant(store: &Store) -> Claimant {
    store.claimant(RunnerId::new_for_host("test"), vec!["noop".parse().unwrap()], Duration::from_secs(30))
}

fn job() -> NewJob {
    NewJob {
        id: JobId::new(),
        kind: "noop".parse().unwrap(),
        queue: "default".parse().unwrap(),
        payload: RawValue::from_string("{}".into()).unwrap(),
        due: Due::Now,
        expires: None,
        priority: Priority::NORMAL,
        max_attempts: 5,
        unique_key: None,
        on_conflict: OnConflict::Reject,
        host: None,
        options: JobOptions::default(),
        batch: None,
    }
}

fn keyed(key: &str) -> NewJob {
    NewJob { unique_key: Some(key.to_owned()), ..job() }
}

fn settlement(claimed: &Claimed, verdict: Verdict) -> Settlement {
    Settlement {
        id: claimed.id,
        token: claimed.token,
        number: claimed.number,
        opened: Some(claimed.opened()),
        verdict,
        error: (verdict != Verdict::Succeeded).then(|| "on request".to_owned()),
        exchange: None,
        log: None,
        result: None,
        follow_ups: Vec::new(),
        again: Again::Backoff(RetryPolicy::default(), 0.5),
        call: None,
        checkpoint: CheckpointUse::Unused,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_inserts_share_their_commits() {
    let own = Services::start(&server_options()).unwrap();
    let url = own.mysql_url("commits");
    Store::create_database(&url).await.unwrap();
    let test = TestStore::at("commits".into(), url.clone(), url).await;
    let commits = async || {
        let (_, n): (String, String) =
            sqlx::query_as("SHOW GLOBAL STATUS LIKE 'Com_commit'").fetch_one(&mut test.mysql().await).await.unwrap();
        n.parse::<i64>().unwrap()
    };
    test.store.insert(vec![job()]).await.unwrap();
    let before = commits().await;
    let inserts = (0..50).map(|_| test.store.insert(vec![job()]));
    for accepted in futures_util::future::join_all(inserts).await {
        assert_eq!(accepted.unwrap().len(), 1);
    }
    let plain = commits().await - before;
    // Requests with idempotency keys share their commits as well.
    let word: ResponseBuilder<EnqueueReceipts> = Arc::new(|_| Answer { status: 201, body: "{}".into() });
    let once = |n: u8| {
        test.store.insert_idempotent(
            Producer::tickr(),
            vec![job()],
            IdempotentRequest::new([n; 32], [n; 32]),
            Arc::clone(&word),
        )
    };
    once(0).await.unwrap();
    let before = commits().await;
    for outcome in futures_util::future::join_all((1..=50).map(once)).await {
        assert!(matches!(outcome.unwrap(), IdempotentOutcome::First { .. }));
    }
    let with_keys = commits().await - before;
    println!("50 inserts in {plain} commits, 50 with idempotency keys in {with_keys}");
    assert!((1..25).contains(&plain) && (1..25).contains(&with_keys), "{plain} {with_keys}");
    assert_eq!(test.count("SELECT COUNT(*) FROM jobs j JOIN owed o USING (id)").await, 102);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_written_whole_or_not_at_all_and_its_neighbours_do_not_suffer() {
    let test = TestStore::start().await;
    let taken = job();
    test.store.insert(vec![taken.clone()]).await.unwrap();
    let bad = vec![job(), taken.clone(), job()];
    let good: Vec<Vec<NewJob>> = (0..10).map(|_| vec![job(), job()]).collect();
    let mut calls = vec![test.store.insert(bad)];
    calls.extend(good.into_iter().map(|jobs| test.store.insert(jobs)));
    let answers = futures_util::future::join_all(calls).await;
    assert!(!answers[0].as_ref().unwrap_err().is_transient());
    assert!(answers[1..].iter().all(Result::is_ok));
    assert_eq!(test.count("SELECT COUNT(*) FROM jobs").await, 21);
    assert_eq!(test.count("SELECT COUNT(*) FROM owed").await, 21);
    test.until_no_transaction_is_open().await;
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_write_leaves_no_lock_behind() {
    let test = TestStore::start().await;
    let taken = job();
    test.store.insert(vec![taken.clone()]).await.unwrap();
    test.store.insert(vec![taken.clone()]).await.unwrap_err();
    test.until_no_transaction_is_open().await;
    // Another session may write the row at once.
    let mut mysql = test.mysql().await;
    mysql.execute("SET SESSION innodb_lock_wait_timeout = 1").await.unwrap();
    mysql.execute("UPDATE jobs SET max_attempts = max_attempts").await.unwrap();
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_and_batches_larger_than_the_servers_packet_are_written_in_pieces() {
    let options = server_options().mysql_flag("--max-allowed-packet=524288");
    let own = Services::start(&options).unwrap();
    let url = own.mysql_url("logs");
    Store::create_database(&url).await.unwrap();
    let test = TestStore::at("logs".into(), url.clone(), url).await;
    let accepted = test.store.insert((0..150).map(|_| job()).collect()).await.unwrap();
    let mut settlements = Vec::new();
    for (place, accepted) in accepted.iter().enumerate() {
        let claimed = test.claimed(accepted.id).await;
        let verdict = if place % 2 == 0 { Verdict::Succeeded } else { Verdict::Rejected };
        // Control characters are written out before they get here. All else is one to four bytes for a character.
        let log = format!("{place} {}", "ü".repeat(MAX_LOG_BYTES)[..MAX_LOG_BYTES - 6].to_owned());
        settlements.push(Settlement { log: Some(log), ..settlement(&claimed, verdict) });
    }
    let settled = settlements.iter().map(|settlement| test.store.settle(settlement.clone()));
    for settled in futures_util::future::join_all(settled).await {
        assert!(matches!(settled.unwrap(), Settled::Done { .. }));
    }
    for settlement in &settlements {
        let log = test.store.attempt_log(settlement.id, settlement.number).await.unwrap();
        assert_eq!(log, settlement.log);
    }
    assert_eq!(test.count("SELECT COUNT(*) FROM attempt_logs WHERE size_bytes = LENGTH(log)").await, 150);

    let most: u64 = sqlx::query_scalar("SELECT CAST(@@max_allowed_packet AS UNSIGNED)")
        .fetch_one(&mut test.mysql().await)
        .await
        .unwrap();
    let payload = format!("{{\"x\":\"{}\"}}", "y".repeat(30_000));
    // If only rows were counted, one group of so many rows would exceed the server's packet.
    let count = usize::try_from(most).unwrap() / payload.len() + 40;
    let heavy = || NewJob { payload: RawValue::from_string(payload.clone()).unwrap(), ..job() };
    let accepted = test.store.insert((0..count).map(|_| heavy()).collect()).await.unwrap();
    assert_eq!(accepted.len(), count);
    assert_eq!(test.count("SELECT COUNT(*) FROM jobs WHERE LENGTH(payload) > 30000").await, count as i64);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unique_key_admits_one_of_twenty_and_is_free_when_its_job_ends() {
    let test = TestStore::start().await;
    // Unique keys are compared as bytes.
    for key in ["order-7", "Order-7", "order-7 ", "ordér-7"] {
        let calls = (0..20).map(|_| test.store.insert_unique(Producer::tickr(), vec![keyed(key)]));
        let answers = futures_util::future::join_all(calls).await;
        let mut winners = BTreeSet::new();
        let mut holders = BTreeSet::new();
        for answer in answers {
            match answer.unwrap() {
                EnqueueOutcome::Accepted(receipts) => winners.extend(receipts.accepted().map(|accepted| accepted.id)),
                EnqueueOutcome::Refused(EnqueueRefusal::KeysTaken(taken)) => {
                    assert!(holders.insert(taken[0].1.id) || holders.len() == 1);
                }
                EnqueueOutcome::Refused(EnqueueRefusal::Links(problems)) => panic!("{problems:?}"),
            }
        }
        assert_eq!((winners.len(), &winners), (1, &holders), "{key:?}");
    }
    assert_eq!(test.count("SELECT COUNT(*) FROM jobs").await, 4);
    // Every end frees the unique key: a success, a failure, a cancel.
    let holders: Vec<uuid::Uuid> =
        sqlx::query_scalar("SELECT job_id FROM unique_keys").fetch_all(&mut test.mysql().await).await.unwrap();
    let holders: Vec<JobId> = holders.into_iter().map(JobId::from_uuid).collect();
    for (id, verdict) in holders.iter().zip([Verdict::Succeeded, Verdict::Rejected, Verdict::Cancelled]) {
        let claimed = test.claimed(*id).await;
        if verdict == Verdict::Cancelled {
            test.store.cancel(*id, &Actor::tickr()).await.unwrap();
        }
        assert!(matches!(test.store.settle(settlement(&claimed, verdict)).await.unwrap(), Settled::Done { .. }));
    }
    assert_eq!(test.store.cancel(holders[3], &Actor::tickr()).await.unwrap(), ActionOutcome::Done(State::Cancelled));
    assert_eq!(test.count("SELECT COUNT(*) FROM unique_keys").await, 0);
    // A retry takes the unique key again, unless another job has it.
    assert!(matches!(test.store.retry(holders[3], &Actor::tickr()).await.unwrap(), ActionOutcome::Waits(_)));
    assert_eq!(test.count("SELECT COUNT(*) FROM unique_keys").await, 1);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_with_parents_wake_the_loops_that_follow_them_also_with_an_idempotency_key() {
    let test = TestStore::start().await;
    let parent = job();
    test.store.insert(vec![parent.clone()]).await.unwrap();
    let child = || NewJob { options: JobOptions { after: vec![parent.id], ..JobOptions::default() }, ..job() };
    let woken = async || {
        let loops = async { tokio::join!(test.store.parents_ended(), test.store.batches_changed()) };
        tokio::time::timeout(Duration::from_secs(10), loops).await.expect("the loops are woken");
    };
    let plain = test.store.insert_unique(Producer::tickr(), vec![child()]).await.unwrap();
    assert!(matches!(plain, EnqueueOutcome::Accepted(_)), "{plain:?}");
    woken().await;
    let word: ResponseBuilder<EnqueueReceipts> = Arc::new(|_| Answer { status: 201, body: "{}".into() });
    let once = IdempotentRequest::new([1; 32], [1; 32]);
    let first = test.store.insert_idempotent(Producer::tickr(), vec![child()], once, word).await.unwrap();
    assert!(matches!(first, IdempotentOutcome::First { .. }), "{first:?}");
    woken().await;
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_with_a_taken_key_writes_nothing() {
    let test = TestStore::start().await;
    let first = keyed("a");
    test.store.insert_unique(Producer::tickr(), vec![first.clone()]).await.unwrap();
    let answer = test.store.insert_unique(Producer::tickr(), vec![job(), keyed("b"), keyed("a"), job()]).await.unwrap();
    let EnqueueOutcome::Refused(EnqueueRefusal::KeysTaken(taken)) = answer else { panic!("{answer:?}") };
    assert_eq!(taken.iter().map(|(place, holder)| (*place, holder.id)).collect::<Vec<_>>(), [(2, first.id)]);
    assert_eq!(test.count("SELECT COUNT(*) FROM jobs").await, 1);
    assert_eq!(test.count("SELECT COUNT(*) FROM unique_keys").await, 1);
    assert!(matches!(
        test.store.insert_unique(Producer::tickr(), vec![keyed("b")]).await.unwrap(),
        EnqueueOutcome::Accepted(_)
    ));
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tables_refuse_what_the_state_machine_never_writes() {
    let test = TestStore::start().await;
    test.store.insert(vec![job()]).await.unwrap();
    let mut mysql = test.mysql().await;
    for impossible in [
        "UPDATE jobs SET priority = 10",
        "UPDATE jobs SET max_attempts = 0",
        "UPDATE jobs SET max_attempts = 101",
        "UPDATE jobs SET batch_size = 2",
        "UPDATE jobs SET batch_id = id, batch_size = 1",
        "UPDATE owed SET state = 'executing'",
        "UPDATE owed SET token = REPEAT('x', 16)",
        "UPDATE owed SET runner = 'somebody'",
        "UPDATE owed SET lease_until = UTC_TIMESTAMP(6)",
        "UPDATE owed SET cancel_requested_at = UTC_TIMESTAMP(6)",
        "UPDATE owed SET state = 'retrying'",
        "UPDATE owed SET spared = 1",
        "INSERT INTO attempts SELECT id, 0, 1, 'r', execute_at, created_at, created_at, 'lost', NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM jobs",
        "INSERT INTO attempts SELECT id, 1, 1, 'r', execute_at, created_at, created_at, 'succeeded', 'completed', 'no', NULL, NULL, NULL, NULL, NULL FROM jobs",
        "INSERT INTO attempts SELECT id, 1, 1, 'r', execute_at, created_at, created_at, 'succeeded', NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM jobs",
        "INSERT INTO attempts SELECT id, 1, 1, 'r', execute_at, created_at, created_at, 'lost', 'completed', NULL, NULL, NULL, NULL, NULL, NULL FROM jobs",
        "INSERT INTO attempts SELECT id, 1, 1, 'r', execute_at, created_at, created_at, 'failed', NULL, NULL, '1', NULL, NULL, NULL, NULL FROM jobs",
        "INSERT INTO attempts SELECT id, 1, 1, '', execute_at, created_at, created_at, 'lost', NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM jobs",
        "INSERT INTO attempts SELECT id, 1, 1, 'r', execute_at, created_at, created_at, 'failed', NULL, NULL, NULL, 'no', NULL, NULL, NULL FROM jobs",
    ] {
        let refused = mysql.execute(sqlx::raw_sql(AssertSqlSafe(impossible))).await.unwrap_err().to_string();
        assert!(refused.to_lowercase().contains("constraint"), "{impossible}: {refused}");
    }
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_holder_of_the_token_can_end_an_attempt() {
    let test = TestStore::start().await;
    let accepted = test.store.insert(vec![job()]).await.unwrap();
    let claimed = test.claimed(accepted[0].id).await;
    assert!(matches!(test.claimant.claim(claimed.id, default_queue()).await.unwrap(), Claim::Gone));

    let mut forged = settlement(&claimed, Verdict::Succeeded);
    forged.token = AttemptToken::new();
    assert!(matches!(test.store.settle(forged.clone()).await.unwrap(), Settled::NotOurs));
    assert_eq!(test.count("SELECT COUNT(*) FROM owed WHERE state = 'executing'").await, 1);
    assert_eq!(test.count("SELECT COUNT(*) FROM attempts").await, 0);

    let done = test.store.settle(settlement(&claimed, Verdict::Failed)).await.unwrap();
    assert!(matches!(done, Settled::Done { state: State::Retrying, .. }));
    // A late writer, whose token was valid once, writes nothing.
    assert!(matches!(test.store.settle(settlement(&claimed, Verdict::Succeeded)).await.unwrap(), Settled::NotOurs));
    assert_eq!(test.count("SELECT COUNT(*) FROM attempts WHERE verdict = 'failed'").await, 1);
    assert_eq!(test.count("SELECT COUNT(*) FROM owed").await, 1);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_refused_before_the_due_time_and_for_other_kinds() {
    let test = TestStore::start().await;
    let later = NewJob { due: Due::After(Duration::from_secs(3_600)), ..job() };
    let other = NewJob { kind: "other".parse::<Name>().unwrap(), ..job() };
    let (later_id, other_id) = (later.id, other.id);
    test.store.insert(vec![later, other]).await.unwrap();
    assert!(matches!(test.claimant.claim(later_id, default_queue()).await.unwrap(), Claim::NotDue(_)));
    assert!(matches!(test.claimant.claim(other_id, default_queue()).await.unwrap(), Claim::OtherKind(_)));
    assert!(matches!(test.claimant.claim(JobId::new(), default_queue()).await.unwrap(), Claim::Gone));
    assert_eq!(test.count("SELECT COUNT(*) FROM owed WHERE attempt = 0").await, 2);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_takes_no_job_that_has_expired() {
    let test = TestStore::start().await;
    let expires = |ms| NewJob { expires: Some(Due::After(Duration::from_millis(ms))), ..job() };
    let limited = NewJob { options: JobOptions { limit_key: Some("a".into()), ..JobOptions::default() }, ..expires(1) };
    let (soon, later) = (expires(1), expires(600_000));
    let (soon_id, later_id, limited_id) = (soon.id, later.id, limited.id);
    test.store.insert(vec![soon, later, limited]).await.unwrap();
    let expired = "SELECT COUNT(*) FROM owed WHERE expires_at <= UTC_TIMESTAMP(6)";
    eventually("two have expired", || async { (test.count(expired).await == 2).then_some(()) }).await;
    assert!(matches!(test.claimant.claim(soon_id, default_queue()).await.unwrap(), Claim::Gone));
    assert!(matches!(test.claimant.claim(later_id, default_queue()).await.unwrap(), Claim::Won(_)));
    let rate = Some(Rate { starts: 1_000, period_ms: 1, burst: 1_000 });
    test.set_limit(Bounds { rate, ..Bounds::default() }).await;
    assert!(matches!(test.claimant.claim(limited_id, default_queue()).await.unwrap(), Claim::Gone));
    // A runner ends them without an attempt, and once.
    let runner = RunnerId::new_for_host("test");
    let ended = test.store.end_expired(&runner).await.unwrap();
    assert_eq!((ended.ended.len(), ended.more), (2, false));
    assert!(test.store.end_expired(&runner).await.unwrap().ended.is_empty());
    assert_eq!(test.count("SELECT COUNT(*) FROM attempts WHERE end_state = 'failed' AND burned = 0").await, 2);
    assert_eq!(test.count("SELECT COUNT(*) FROM dead_letters").await, 2);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_job_whose_row_cannot_be_read_holds_up_no_other() {
    let test = TestStore::start().await;
    let expires = || NewJob { expires: Some(Due::After(Duration::from_millis(1))), ..job() };
    let jobs: Vec<NewJob> = (0..5).map(|_| expires()).collect();
    let bad = jobs[0].id;
    test.store.insert(jobs).await.unwrap();
    let mut mysql = test.mysql().await;
    let spoil = async |mysql: &mut MySqlConnection, kind: &str| {
        sqlx::query("UPDATE owed SET kind = ? WHERE id = ?").bind(kind).bind(bad.uuid()).execute(mysql).await.unwrap();
    };
    spoil(&mut mysql, "NO KIND").await;
    let expired = "SELECT COUNT(*) FROM job_expiries WHERE look_at <= UTC_TIMESTAMP(6)";
    eventually("all have expired", || async { (test.count(expired).await == 5).then_some(()) }).await;
    let runner = RunnerId::new_for_host("test");
    assert_eq!(test.store.end_expired(&runner).await.unwrap().ended.len(), 4);
    // It is left alone for a minute, and ends when it can be read again.
    assert!(test.store.end_expired(&runner).await.unwrap().ended.is_empty());
    assert_eq!(test.count(expired).await, 0);
    spoil(&mut mysql, "noop").await;
    sqlx::query("UPDATE job_expiries SET look_at = UTC_TIMESTAMP(3)").execute(&mut mysql).await.unwrap();
    assert_eq!(test.store.end_expired(&runner).await.unwrap().ended.len(), 1);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_runners_end_each_expired_job_once() {
    let test = TestStore::start().await;
    let expires = || NewJob { expires: Some(Due::After(Duration::from_millis(1))), ..job() };
    test.store.insert((0..500).map(|_| expires()).collect()).await.unwrap();
    let runner = RunnerId::new_for_host("test");
    let ended = async || {
        let mut ended = 0;
        loop {
            let page = test.store.end_expired(&runner).await.unwrap();
            ended += page.ended.len();
            if page.ended.is_empty() && !page.more {
                return ended;
            }
        }
    };
    eventually("all have expired", || async {
        let waits = test.count("SELECT COUNT(*) FROM owed WHERE expires_at > UTC_TIMESTAMP(6)").await;
        (waits == 0).then_some(())
    })
    .await;
    let both = tokio::join!(ended(), ended(), ended());
    // A row that another one locks at this moment is looked at again a few seconds later.
    sqlx::query("UPDATE job_expiries SET look_at = UTC_TIMESTAMP(3)").execute(&mut test.mysql().await).await.unwrap();
    assert_eq!(both.0 + both.1 + both.2 + ended().await, 500);
    assert_eq!(test.count("SELECT COUNT(*) FROM attempts").await, 500);
    assert_eq!(test.count("SELECT COUNT(*) FROM job_expiries").await, 0);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_last_attempt_is_not_claimed_ahead_in_one_batch_with_limited_jobs() {
    let (name, url) = migrated_database().await;
    let test = TestStore::with_flushers(name, url.clone(), url, 1).await;
    let rate = Some(Rate { starts: 1_000, period_ms: 1, burst: 1_000 });
    test.set_limit(Bounds { rate, ..Bounds::default() }).await;
    for _ in 0..5 {
        let limited =
            || NewJob { options: JobOptions { limit_key: Some("a".into()), ..JobOptions::default() }, ..job() };
        let jobs: Vec<NewJob> =
            (0..40).map(|n| if n % 2 == 0 { limited() } else { NewJob { max_attempts: 1, ..job() } }).collect();
        let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
        test.store.insert(jobs).await.unwrap();
        let claim = async |n: usize| match n % 2 {
            0 => test.claimant.claim(ids[n], default_queue()).await,
            _ => test.claimant.claim_ahead(ids[n], default_queue()).await,
        };
        for (n, claim) in futures_util::future::join_all((0..40).map(claim)).await.into_iter().enumerate() {
            match claim.unwrap() {
                Claim::Won(_) if n % 2 == 0 => {}
                Claim::LastAttempt(_) if n % 2 == 1 => {}
                other => panic!("job {n}: {other:?}"),
            }
        }
    }
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_is_claimed_by_one_of_many() {
    let test = TestStore::start().await;
    let claimants: Vec<Claimant> = (0..4).map(|_| claimant(&test.store)).collect();
    let jobs: Vec<NewJob> = (0..100).map(|_| job()).collect();
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    test.store.insert(jobs).await.unwrap();
    let calls = claimants.iter().flat_map(|claimant| ids.iter().rev().map(|id| claimant.claim(*id, default_queue())));
    let won = futures_util::future::join_all(calls).await;
    let won: Vec<JobId> = won
        .into_iter()
        .filter_map(|claim| match claim.unwrap() {
            Claim::Won(claimed) => Some(claimed.id),
            Claim::Gone => None,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(won.len(), 100);
    assert_eq!(won.iter().collect::<BTreeSet<_>>().len(), 100);
    assert_eq!(test.count("SELECT COUNT(*) FROM owed WHERE attempt <> 1").await, 0);
    drop(claimants);
    test.stop().await;
}

/// Spawn a call of the store that joins a group commit. It is in the queue when this returns.
async fn handed_in<T: Send + 'static>(call: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    let (tell, told) = tokio::sync::oneshot::channel();
    let called = tokio::spawn(async move {
        let (mut call, mut tell) = (Box::pin(call), Some(tell));
        std::future::poll_fn(move |context| {
            let polled = call.as_mut().poll(context);
            if let Some(tell) = tell.take() {
                let _ = tell.send(());
            }
            polled
        })
        .await
    });
    told.await.unwrap();
    called
}

/// Claim these jobs in one batch. The batch waits behind a claim of `first` until all claims have arrived.
async fn claimed_together(test: &TestStore, first: JobId, ids: &[JobId]) -> Vec<Claim> {
    let claimant = test.claimant.clone();
    let mut other = test.mysql().await;
    let mut tx = other.begin().await.unwrap();
    sqlx::query("SELECT id FROM owed WHERE id = ? FOR UPDATE").bind(first.uuid()).execute(&mut *tx).await.unwrap();
    let stuck = tokio::spawn({
        let claimant = claimant.clone();
        async move { claimant.claim(first, default_queue()).await }
    });
    test.until_said("UPDATE owed FORCE INDEX", 1).await;
    let mut waiting = Vec::new();
    for id in ids {
        let (claimant, id) = (claimant.clone(), *id);
        waiting.push(handed_in(async move { claimant.claim(id, default_queue()).await.unwrap() }).await);
    }
    tx.commit().await.unwrap();
    stuck.await.unwrap().unwrap();
    let mut claims = Vec::new();
    for claim in waiting {
        claims.push(claim.await.unwrap());
    }
    claims
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_is_twice_in_a_batch_starts_once_whatever_else_is_in_it() {
    let (name, url) = migrated_database().await;
    // There is one flusher, so claims that arrive while it writes make one batch.
    let test = TestStore::with_flushers(name, url.clone(), url, 1).await;
    let jobs: Vec<NewJob> = (0..5).map(|_| job()).collect();
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    test.store.insert(jobs).await.unwrap();
    let won = |claims: &[Claim]| claims.iter().filter(|claim| matches!(claim, Claim::Won(_))).count();

    // One row of the batch cannot be read. It is left alone, and the other jobs are claimed.
    let mut mysql = test.mysql().await;
    let bad = "UPDATE owed SET priority = 77, execute_at = UTC_TIMESTAMP(3) + INTERVAL 1 HOUR WHERE id = ?";
    sqlx::query(bad).bind(ids[1].uuid()).execute(&mut mysql).await.unwrap();
    let claims = claimed_together(&test, ids[0], &[ids[2], ids[2], ids[1]]).await;
    assert_eq!(won(&claims[..2]), 1, "{claims:?}");
    assert!(matches!(claims[2], Claim::Gone), "{claims:?}");

    // MySQL refuses to write one row of the batch. The jobs are claimed one by one, under the same token.
    let refuses = format!(
        "CREATE TRIGGER refuses BEFORE UPDATE ON owed FOR EACH ROW \
         SET NEW.attempt = IF(NEW.id = x'{}' AND NEW.state = 'executing', 0, NEW.attempt)",
        ids[3].uuid().simple()
    );
    mysql.execute(AssertSqlSafe(refuses)).await.unwrap();
    let claimant = test.claimant.clone();
    let (refused, twice) = {
        let mut tx_conn = test.mysql().await;
        let mut tx = tx_conn.begin().await.unwrap();
        let lock = "SELECT id FROM owed WHERE id = ? FOR UPDATE";
        sqlx::query(lock).bind(ids[1].uuid()).execute(&mut *tx).await.unwrap();
        sqlx::query("UPDATE owed SET priority = 5, execute_at = UTC_TIMESTAMP(3) WHERE id = ?")
            .bind(ids[1].uuid())
            .execute(&mut *tx)
            .await
            .unwrap();
        let claim = |id: JobId| {
            let claimant = claimant.clone();
            handed_in(async move { claimant.claim(id, default_queue()).await })
        };
        let stuck = claim(ids[1]).await;
        test.until_said("UPDATE owed FORCE INDEX", 1).await;
        let waiting = [claim(ids[4]).await, claim(ids[4]).await, claim(ids[3]).await];
        tx.commit().await.unwrap();
        stuck.await.unwrap().unwrap();
        let [first, second, refused] = waiting;
        (refused.await.unwrap(), [first.await.unwrap().unwrap(), second.await.unwrap().unwrap()])
    };
    assert!(refused.is_err(), "{refused:?}");
    assert_eq!(won(&twice), 1, "{twice:?}");
    assert_eq!(test.count("SELECT COUNT(*) FROM owed WHERE state = 'executing' AND attempt = 1").await, 4);
    drop(claimant);
    test.stop().await;
}

/// Insert this many jobs and claim them. Return their attempts.
async fn live_attempts(test: &TestStore, count: usize) -> Vec<LiveAttempt> {
    let jobs: Vec<NewJob> = (0..count).map(|_| job()).collect();
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    for jobs in jobs.chunks(300) {
        test.store.insert(jobs.to_vec()).await.unwrap();
    }
    let claimant = test.claimant.clone();
    let claims = ids.iter().map(|id| claimant.claim(*id, default_queue()));
    let mut live = Vec::new();
    for claim in futures_util::future::join_all(claims).await {
        let Claim::Won(claimed) = claim.unwrap() else { panic!("not won") };
        let leased = std::time::Instant::now();
        live.push(LiveAttempt { id: claimed.id, token: claimed.token, progress: None, leased, has_finish_key: false });
    }
    live
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_another_session_locks_keeps_no_other_lease_from_being_renewed() {
    let test = TestStore::start().await;
    let mut live = live_attempts(&test, 3).await;
    for attempt in &mut live {
        attempt.progress = Some(Progress { percent: 50.0, note: None });
    }
    let (id, token) = (live[0].id, live[0].token);
    let mut other = test.mysql().await;
    let mut tx = other.begin().await.unwrap();
    sqlx::query("SELECT id FROM owed WHERE id = ? FOR UPDATE").bind(id.uuid()).execute(&mut *tx).await.unwrap();
    let (runner, lease) = (RunnerId::new_for_host("test"), Duration::from_secs(300));
    let machine = Pulse::at(&test.url).await;
    let mut pulse = test.store.heartbeat_connection();
    // The first heartbeat waits for the row for a second, and the next one does not.
    for _ in 0..2 {
        let began = tokio::time::Instant::now();
        let renewed = std::sync::Mutex::new(Vec::new());
        let hear = |page: &[LiveAttempt]| renewed.lock().unwrap().extend(page.iter().map(|attempt| attempt.id));
        let beat = pulse.beat(&runner, lease, &live, &hear);
        let beat = tokio::time::timeout(DEADLINE, beat).await.unwrap().unwrap();
        machine.assert_within(Duration::from_secs(4), began, "a heartbeat beside a locked row");
        assert_eq!((beat.lost, beat.locked), (vec![], vec![(id, token)]));
        let renewed: BTreeSet<JobId> = renewed.into_inner().unwrap().into_iter().collect();
        assert_eq!(renewed, live[1..].iter().map(|attempt| attempt.id).collect());
        let left = pulse.write_progress(&live).await.unwrap();
        assert_eq!(left.iter().map(|attempt| attempt.id).collect::<Vec<_>>(), [id]);
    }
    let renewed_rows = "SELECT COUNT(*) FROM owed WHERE lease_until > UTC_TIMESTAMP(6) + INTERVAL 100 SECOND";
    assert_eq!(test.count(renewed_rows).await, 2);
    assert_eq!(test.count("SELECT COUNT(*) FROM owed WHERE progress IS NOT NULL").await, 2);
    tx.rollback().await.unwrap();
    let beat = pulse.beat(&runner, lease, &live, &|_| {}).await.unwrap();
    assert_eq!((beat.lost, beat.locked), (vec![], vec![]));
    assert_eq!(test.count(renewed_rows).await, 3);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_of_a_runner_that_another_session_locks_costs_it_no_lease() {
    let test = TestStore::start().await;
    let live = live_attempts(&test, 2).await;
    let row = runner_row();
    let mut pulse = test.store.heartbeat_connection();
    pulse.register(&row).await.unwrap();
    let mut other = test.mysql().await;
    let mut tx = other.begin().await.unwrap();
    let lock = "SELECT id FROM runners WHERE id = ? FOR UPDATE";
    sqlx::query(lock).bind(row.id.as_str()).execute(&mut *tx).await.unwrap();
    let renewed_rows = "SELECT COUNT(*) FROM owed WHERE lease_until > UTC_TIMESTAMP(6) + INTERVAL 100 SECOND";
    assert_eq!(test.count(renewed_rows).await, 0);
    let machine = Pulse::at(&test.url).await;
    // The first heartbeat waits for the row for a second, and the next one does not.
    for _ in 0..2 {
        let began = tokio::time::Instant::now();
        let beat = pulse.beat(&row.id, row.lease, &live, &|_| {});
        let beat = tokio::time::timeout(DEADLINE, beat).await.unwrap().unwrap();
        machine.assert_within(Duration::from_secs(4), began, "a heartbeat beside a locked row");
        assert_eq!((beat.lost, beat.locked, beat.told), (vec![], vec![], false));
        assert_eq!(test.count(renewed_rows).await, 2);
    }
    tx.rollback().await.unwrap();
    assert!(pulse.beat(&row.id, row.lease, &live, &|_| {}).await.unwrap().told);
    let busy = "SELECT CAST(busy AS SIGNED) FROM runners WHERE slot_jobs IS NOT NULL";
    assert_eq!(test.count(busy).await, 2);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_beat_that_renews_some_pages_counts_for_those() {
    let test = TestStore::start().await;
    let live = live_attempts(&test, 600).await;
    let last = live.iter().max_by_key(|attempt| (attempt.leased, attempt.id)).unwrap().id;
    // Before the last page, the table is locked for longer than a heartbeat may take.
    let other = tokio::sync::Mutex::new(test.mysql().await);
    let lock_table = async || sqlx::raw_sql("LOCK TABLES owed WRITE").execute(&mut *other.lock().await).await.unwrap();
    let renewed = std::sync::Mutex::new(Vec::new());
    let hear = |page: &[LiveAttempt]| {
        let count = {
            let mut renewed = renewed.lock().unwrap();
            renewed.extend(page.iter().map(|attempt| attempt.id));
            renewed.len()
        };
        if count == 512 {
            tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(lock_table()));
        }
    };
    let mut pulse = test.store.heartbeat_connection();
    let (runner, lease) = (RunnerId::new_for_host("test"), Duration::from_secs(300));
    let beat = pulse.beat(&runner, lease, &live, &hear);
    // If the machine stands still meanwhile, the last page gives up before it is seen to wait.
    let over = tokio::select! {
        beat = beat => Some(beat),
        () = test.until_waiting_for_tables(1) => None,
    };
    assert!(over.is_none_or(|beat| beat.is_err()), "the last page waits");
    pulse.disconnect(Duration::from_secs(1));
    let heard = renewed.lock().unwrap().len();
    assert_eq!(heard, 512);
    assert!(!renewed.lock().unwrap().contains(&last));
    // The statement that waits for the table gives up within a second.
    test.until_waiting_for_tables(0).await;
    sqlx::raw_sql("UNLOCK TABLES").execute(&mut *other.lock().await).await.unwrap();
    let renewed_rows = "SELECT COUNT(*) FROM owed WHERE lease_until > UTC_TIMESTAMP(6) + INTERVAL 100 SECOND";
    assert_eq!(test.count(renewed_rows).await, 512);
    test.stop().await;
}

fn runner_row() -> RunnerRow {
    RunnerRow {
        id: RunnerId::new_for_host("test"),
        version: "0",
        kinds: Vec::new(),
        editions: Editions { options: Edition::for_options(), kinds: BTreeMap::new() },
        queues: Vec::new(),
        workers: 2,
        lease: Duration::from_secs(300),
        host: "test".into(),
        pid: 1,
        parent: None,
    }
}

/// A heartbeat that leaves locked rows out needs many answers. A runner whose line broke once while MySQL is slow
/// would otherwise try no other one, and each would take too long.
#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_after_a_broken_line_needs_no_more_answers_than_before() {
    let (name, url) = migrated_database().await;
    let proxy = Proxy::start(&url).await;
    let test = TestStore::at(name, url, proxy.url()).await;
    let live = live_attempts(&test, 3).await;
    let row = runner_row();
    let mut pulse = test.store.heartbeat_connection();
    pulse.register(&row).await.unwrap();
    let requests_of_beat = async |pulse: &mut HeartbeatConnection| {
        pulse.connect().await.unwrap();
        let before = proxy.requests();
        assert!(pulse.beat(&row.id, row.lease, &live, &|_| {}).await.unwrap().told);
        proxy.requests() - before
    };
    let usual = requests_of_beat(&mut pulse).await;
    pulse.disconnect(Duration::from_secs(5));
    assert_eq!(requests_of_beat(&mut pulse).await, usual, "a locked row would have been told within the patience");
    // A short patience may have been over before that. So one heartbeat leaves locked rows out, and the next does not.
    pulse.disconnect(Duration::from_secs(1));
    let cautious = requests_of_beat(&mut pulse).await;
    assert!(cautious > 2 * usual, "{cautious} after {usual}");
    pulse.disconnect(Duration::from_secs(1));
    assert_eq!(requests_of_beat(&mut pulse).await, usual);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_could_not_be_renewed_spares_a_job_only_so_often() {
    let test = TestStore::start().await;
    let asked = NewJob { max_attempts: 1, ..job() };
    let id = asked.id;
    test.store.insert(vec![asked]).await.unwrap();
    let interrupted = async |again| {
        let claimed = test.claimed(id).await;
        let settlement = Settlement { again, ..settlement(&claimed, Verdict::Interrupted) };
        match test.store.settle(settlement).await.unwrap() {
            Settled::Done { state, .. } => state,
            Settled::NotOurs => panic!("it was ours"),
        }
    };
    assert_eq!(interrupted(Again::NowWithinBounds).await, State::Waiting);
    test.mysql().await.execute("UPDATE owed SET attempt = 100, spared = 100").await.unwrap();
    // A shutdown never fails a job, however often it interrupts.
    assert_eq!(interrupted(Again::Now).await, State::Waiting);
    assert_eq!(interrupted(Again::NowWithinBounds).await, State::Failed);
    test.stop_broken("the test made up the numbers of 98 attempts").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_waited_for_its_row_begins_after_the_wait() {
    let test = TestStore::start().await;
    let job = job();
    let id = job.id;
    test.store.insert(vec![job]).await.unwrap();
    // At this moment another session ends the last attempt of the job.
    let mut other = test.mysql().await;
    let mut tx = other.begin().await.unwrap();
    sqlx::query("SELECT id FROM owed WHERE id = ? FOR UPDATE").bind(id.uuid()).execute(&mut *tx).await.unwrap();
    let claimant = test.claimant.clone();
    let claim = tokio::spawn(async move { claimant.claim(id, default_queue()).await });
    test.until_said("UPDATE owed", 1).await;
    let ended: chrono::NaiveDateTime = sqlx::query_scalar("SELECT SYSDATE(6)").fetch_one(&mut *tx).await.unwrap();
    tx.commit().await.unwrap();
    let Claim::Won(claimed) = claim.await.unwrap().unwrap() else { panic!("no other claim competes") };
    assert!(claimed.started_at.naive_utc() >= ended, "{} is before {ended}", claimed.started_at);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_and_a_settle_that_waited_for_their_row_come_after_the_wait() {
    let test = TestStore::start().await;
    let jobs = [job(), job(), job()];
    let [waiting, succeeds, fails] = [jobs[0].id, jobs[1].id, jobs[2].id];
    test.store.insert(jobs.into()).await.unwrap();
    let settlements = [
        settlement(&test.claimed(succeeds).await, Verdict::Succeeded),
        settlement(&test.claimed(fails).await, Verdict::Rejected),
    ];
    // At this moment another session ends the last attempt of one job, and asks the other to stop.
    let mut other = test.mysql().await;
    let mut tx = other.begin().await.unwrap();
    sqlx::query("SELECT id FROM owed ORDER BY id FOR UPDATE").execute(&mut *tx).await.unwrap();
    let store = test.store.clone();
    let cancel = tokio::spawn(async move { store.cancel(waiting, &Actor::tickr()).await });
    let settle = |settlement: Settlement| {
        let store = test.store.clone();
        tokio::spawn(async move { store.settle(settlement).await })
    };
    let [success, failure] = settlements;
    // The cancel and the failure read the row first, the success does not. They come one after the other, because
    // otherwise they would share a batch.
    let failing = settle(failure);
    test.until_said("SELECT id, kind, queue", 2).await;
    let settles = [failing, settle(success)];
    test.until_said("DELETE FROM owed", 1).await;
    let before: chrono::NaiveDateTime = sqlx::query_scalar("SELECT SYSDATE(6)").fetch_one(&mut *tx).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(cancel.await.unwrap().unwrap(), ActionOutcome::Done(State::Cancelled));
    for settle in settles {
        assert!(matches!(settle.await.unwrap().unwrap(), Settled::Done { .. }));
    }
    let ends: Vec<chrono::NaiveDateTime> =
        sqlx::query_scalar("SELECT finished_at FROM attempts").fetch_all(&mut test.mysql().await).await.unwrap();
    assert_eq!(ends.len(), 3);
    assert!(ends.iter().all(|end| *end >= before), "{ends:?} and {before}");
    test.stop().await;
}

/// Two claims in one batch have one token. A success that is written with the token of a lost attempt must not end the
/// job's next attempt, whatever else is in its batch.
#[tokio::test(flavor = "multi_thread")]
async fn a_success_ends_only_the_attempt_that_it_names() {
    let (name, url) = migrated_database().await;
    let test = TestStore::with_flushers(name, url.clone(), url, 1).await;
    let jobs = [job(), job(), job()];
    let [moved_on, mate, blocker] = [jobs[0].id, jobs[1].id, jobs[2].id];
    test.store.insert(jobs.into()).await.unwrap();
    let [first, blocking] = [test.claimed(moved_on).await, test.claimed(blocker).await];
    // Its lease is taken away. A batch of claims then claims it again, together with its mate.
    lose(&test, &first, &HashMap::new()).await;
    let due = "UPDATE owed SET execute_at = UTC_TIMESTAMP(3) - INTERVAL 1 SECOND, losses = 0 WHERE id = ?";
    sqlx::query(due).bind(moved_on.uuid()).execute(&mut test.mysql().await).await.unwrap();
    let again = test.claimed(moved_on).await;
    let mut mates = settlement(&test.claimed(mate).await, Verdict::Succeeded);
    mates.token = again.token;
    let same = "UPDATE owed SET token = ? WHERE id = ?";
    sqlx::query(same).bind(again.token.uuid()).bind(mate.uuid()).execute(&mut test.mysql().await).await.unwrap();

    // The only flusher waits for a row, so that the next writes make one batch.
    let mut other = test.mysql().await;
    let mut tx = other.begin().await.unwrap();
    sqlx::query("SELECT id FROM owed WHERE id = ? FOR UPDATE").bind(blocker.uuid()).execute(&mut *tx).await.unwrap();
    let settle = |settlement: Settlement| {
        let store = test.store.clone();
        handed_in(async move { store.settle(settlement).await.unwrap() })
    };
    let front = settle(settlement(&blocking, Verdict::Succeeded)).await;
    test.until_said("DELETE FROM owed", 1).await;
    let (late, mates) = (settle(settlement(&first, Verdict::Succeeded)).await, settle(mates).await);
    tx.commit().await.unwrap();
    assert!(matches!(front.await.unwrap(), Settled::Done { .. }));
    assert!(matches!(late.await.unwrap(), Settled::NotOurs));
    assert!(matches!(mates.await.unwrap(), Settled::Done { state: State::Completed, .. }));
    assert_eq!(test.count("SELECT COUNT(*) FROM owed WHERE state = 'executing' AND attempt = 2").await, 1);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_success_that_was_asked_to_stop_says_so() {
    let test = TestStore::start().await;
    let accepted = test.store.insert(vec![job()]).await.unwrap();
    let claimed = test.claimed(accepted[0].id).await;
    assert_eq!(test.store.cancel(claimed.id, &Actor::tickr()).await.unwrap(), ActionOutcome::StopRequested);
    let done = test.store.settle(settlement(&claimed, Verdict::Succeeded)).await.unwrap();
    assert!(matches!(done, Settled::Done { state: State::Completed, .. }), "{done:?}");
    let asked = "SELECT COUNT(*) FROM attempts WHERE end_state = 'completed' AND cancel_requested_at IS NOT NULL";
    assert_eq!(test.count(asked).await, 1);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_waits_for_a_row_does_not_hold_up_the_others() {
    let test = TestStore::start().await;
    let mut took = Vec::new();
    for _ in 0..5 {
        let (stuck, free) = (job(), job());
        let ids = [stuck.id, free.id];
        test.store.insert(vec![stuck, free]).await.unwrap();
        let [stuck, free] = [test.claimed(ids[0]).await, test.claimed(ids[1]).await];
        let mut other = test.mysql().await;
        let mut tx = other.begin().await.unwrap();
        sqlx::query("SELECT id FROM owed WHERE id = ? FOR UPDATE").bind(ids[0].uuid()).execute(&mut *tx).await.unwrap();
        let store = test.store.clone();
        let waits = tokio::spawn(async move { store.settle(settlement(&stuck, Verdict::Succeeded)).await });
        test.until_said("DELETE FROM owed", 1).await;
        // A batch this small usually waits until the write in front of it ends, but not if that write waits for a lock.
        let began = std::time::Instant::now();
        let done = test.store.settle(settlement(&free, Verdict::Succeeded)).await.unwrap();
        took.push(began.elapsed());
        assert!(matches!(done, Settled::Done { state: State::Completed, .. }));
        assert!(!waits.is_finished());
        tx.commit().await.unwrap();
        assert!(matches!(waits.await.unwrap().unwrap(), Settled::Done { .. }));
    }
    // The write in front waits for a second before it lets others pass. A busy machine may be slow, but not each time.
    let fastest = took.iter().min().unwrap();
    assert!(*fastest < Duration::from_millis(700), "{took:?}");
    test.stop().await;
}

/// The write of a verdict goes on when its caller goes away, and its claim is over in the memory of the process too.
#[tokio::test(flavor = "multi_thread")]
async fn the_row_of_a_claim_goes_also_if_the_caller_of_its_verdict_has_gone_away() {
    let test = TestStore::start().await;
    let runner = RunnerId::new_for_host("test");
    let claimant = test.store.claimant(runner.clone(), vec!["noop".parse().unwrap()], Duration::from_secs(30));
    let accepted = test.store.insert(vec![job()]).await.unwrap();
    let Claim::Won(claimed) = claimant.claim(accepted[0].id, default_queue()).await.unwrap() else {
        panic!("the job is not claimed");
    };
    let mut other = test.mysql().await;
    let held = hold(&mut other, claimed.id).await;
    let caller = tokio::spawn({
        let (store, end) = (test.store.clone(), settlement(&claimed, Verdict::Succeeded));
        async move { store.settle(end).await }
    });
    test.until_said("DELETE FROM owed", 1).await;
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    held.commit().await.unwrap();
    eventually("the row of the claim is deleted", || async {
        test.store.delete_closed_batches(&runner).await.unwrap();
        (test.count("SELECT COUNT(*) FROM claim_batches").await == 0).then_some(())
    })
    .await;
    assert_eq!(test.count("SELECT COUNT(*) FROM attempts WHERE end_state = 'completed'").await, 1);
    drop(claimant);
    test.stop().await;
}

/// Longer than one wait for a lock plus a second for a piece of the batch, and much shorter than two waits.
const ONE_WAIT: Duration = Duration::from_millis(8_500);

/// Hold the row of this job in a transaction, as an operator does who leaves a transaction open.
async fn hold(mysql: &mut MySqlConnection, id: JobId) -> sqlx::Transaction<'_, sqlx::MySql> {
    let mut tx = mysql.begin().await.unwrap();
    sqlx::query("SELECT id FROM owed WHERE id = ? FOR UPDATE").bind(id.uuid()).execute(&mut *tx).await.unwrap();
    tx
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_row_holds_up_none_of_the_ends_in_its_batch_for_more_than_one_wait() {
    let (name, url) = migrated_database().await;
    // With one flusher, every batch has to wait for the one before it.
    let test = TestStore::with_flushers(name, url.clone(), url, 1).await;
    let jobs: Vec<NewJob> = (0..131).map(|_| job()).collect();
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    test.store.insert(jobs).await.unwrap();
    // In a table with few other rows the server reads every row, and waits for the locked one whichever row it needs.
    for _ in 0..4 {
        let later = || NewJob { due: Due::After(Duration::from_secs(86_400)), ..job() };
        test.store.insert((0..1_000).map(|_| later()).collect()).await.unwrap();
    }
    test.mysql().await.execute("ANALYZE TABLE owed").await.unwrap();
    let claimed = futures_util::future::join_all(ids.iter().map(|id| test.claimed(*id))).await;
    let [first, stuck, free @ ..] = &claimed[..] else { panic!("there are more jobs") };
    let (free, later) = free.split_at(64);
    let (mut operator, mut other) = (test.mysql().await, test.mysql().await);
    let held = hold(&mut operator, stuck.id).await;
    let first_held = hold(&mut other, first.id).await;
    let settle = |claimed: &Claimed| {
        let (store, end) = (test.store.clone(), settlement(claimed, Verdict::Succeeded));
        handed_in(async move { store.settle(end).await })
    };
    let machine = Pulse::at(&test.url).await;
    // While the first one waits, all others arrive. So they are one batch, with the stuck one in its middle.
    let mut ends = vec![settle(first).await];
    test.until_said("DELETE FROM owed", 1).await;
    for claimed in &free[..32] {
        ends.push(settle(claimed).await);
    }
    let waits = settle(stuck).await;
    for claimed in &free[32..] {
        ends.push(settle(claimed).await);
    }
    first_held.commit().await.unwrap();
    let began = tokio::time::Instant::now();
    for done in futures_util::future::join_all(ends).await {
        assert!(matches!(done.unwrap().unwrap(), Settled::Done { state: State::Completed, .. }));
    }
    let took = began.elapsed();
    assert!(took > Duration::from_secs(4), "they were not in one batch: {took:?}");
    machine.assert_within(ONE_WAIT, began, "the ends beside a locked row");
    // Later batches do not wait for the locked row at all, after it was found: that takes a second for each of two
    // pieces.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let began = tokio::time::Instant::now();
    let mut ends = Vec::new();
    for claimed in later {
        ends.push(settle(claimed).await);
    }
    for done in futures_util::future::join_all(ends).await {
        assert!(matches!(done.unwrap().unwrap(), Settled::Done { state: State::Completed, .. }));
    }
    machine.assert_within(Duration::from_secs(3), began, "later ends");
    assert!(!waits.is_finished());
    held.commit().await.unwrap();
    assert!(matches!(waits.await.unwrap().unwrap(), Settled::Done { state: State::Completed, .. }));
    assert_eq!(test.count("SELECT COUNT(*) FROM attempts WHERE end_state = 'completed'").await, 131);
    assert_eq!(test.count("SELECT CAST(SUM(n) AS SIGNED) FROM tallies").await, 131);
    test.stop().await;
}

/// A server may end each statement after a time. A wait for a lock then ends with another error than by its own limit.
#[tokio::test(flavor = "multi_thread")]
async fn a_time_limit_of_the_server_ends_no_wait_for_a_locked_row() {
    let is_mysql = std::env::var_os("TICKR_MYSQLD").is_some_and(|path| !path.is_empty());
    // MySQL limits reads only.
    let limit = if is_mysql { "--max-execution-time=3000" } else { "--max-statement-time=3" };
    let own = Services::start(&server_options().mysql_flag(limit)).unwrap();
    let name = unique_name();
    let url = own.mysql_url(&name);
    Store::create_database(&url).await.unwrap();
    // With one flusher, every batch has to wait for the one before it.
    let test = TestStore::with_flushers(name, url.clone(), url, 1).await;
    let jobs: Vec<NewJob> = (0..3).map(|_| job()).collect();
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    test.store.insert(jobs).await.unwrap();
    // In a table with few other rows the server reads every row, and waits for the locked one whichever row it needs.
    for _ in 0..4 {
        let later = || NewJob { due: Due::After(Duration::from_secs(86_400)), ..job() };
        test.store.insert((0..1_000).map(|_| later()).collect()).await.unwrap();
    }
    test.mysql().await.execute("ANALYZE TABLE owed").await.unwrap();
    let [first, stuck, free] = [test.claimed(ids[0]).await, test.claimed(ids[1]).await, test.claimed(ids[2]).await];
    let (mut operator, mut other) = (test.mysql().await, test.mysql().await);
    let held = hold(&mut operator, stuck.id).await;
    let first_held = hold(&mut other, first.id).await;
    let settle = |claimed: &Claimed| {
        let (store, end) = (test.store.clone(), settlement(claimed, Verdict::Succeeded));
        handed_in(async move { store.settle(end).await })
    };
    // While the first one waits, the others arrive. So they are one batch.
    let front = settle(&first).await;
    test.until_said("DELETE FROM owed", 1).await;
    let (waits, free) = (settle(&stuck).await, settle(&free).await);
    first_held.commit().await.unwrap();
    // If the limit ended the wait, no call would learn that a row is locked, and both would fail together.
    for end in [front, free] {
        assert!(matches!(end.await.unwrap().unwrap(), Settled::Done { state: State::Completed, .. }));
    }
    assert!(!waits.is_finished());
    held.commit().await.unwrap();
    assert!(matches!(waits.await.unwrap().unwrap(), Settled::Done { state: State::Completed, .. }));
    test.stop().await;
}

/// The successes of a batch are written before the rest of it. One session may lock rows of both.
#[tokio::test(flavor = "multi_thread")]
async fn locked_rows_of_both_parts_of_a_batch_hold_up_none_of_its_ends_for_more_than_one_wait() {
    let (name, url) = migrated_database().await;
    // With one flusher, every batch has to wait for the one before it.
    let test = TestStore::with_flushers(name, url.clone(), url, 1).await;
    let jobs: Vec<NewJob> = (0..4).map(|_| job()).collect();
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    test.store.insert(jobs).await.unwrap();
    let [first, success, failure] =
        [test.claimed(ids[0]).await, test.claimed(ids[1]).await, test.claimed(ids[2]).await];
    let free = test.claimed(ids[3]).await;
    let (mut other, mut one, mut another) = (test.mysql().await, test.mysql().await, test.mysql().await);
    let first_held = hold(&mut other, first.id).await;
    let held = [hold(&mut one, success.id).await, hold(&mut another, failure.id).await];
    let settle = |claimed: &Claimed, verdict: Verdict| {
        let (store, end) = (test.store.clone(), settlement(claimed, verdict));
        handed_in(async move { store.settle(end).await.unwrap() })
    };
    let machine = Pulse::at(&test.url).await;
    // While the first one waits, all others arrive.
    let front = settle(&first, Verdict::Succeeded).await;
    test.until_said("DELETE FROM owed", 1).await;
    let waiting = [settle(&success, Verdict::Succeeded).await, settle(&failure, Verdict::Failed).await];
    let free = settle(&free, Verdict::Failed).await;
    let began = tokio::time::Instant::now();
    first_held.commit().await.unwrap();
    assert!(matches!(front.await.unwrap(), Settled::Done { state: State::Completed, .. }));
    let free = free.await.unwrap();
    assert!(matches!(free, Settled::Done { state: State::Retrying, .. }), "{free:?}");
    assert!(began.elapsed() > Duration::from_secs(4), "they were not in one batch: {:?}", began.elapsed());
    // A wait, and a second for each of the locked rows and for the batch of the second one.
    machine.assert_within(Duration::from_secs(10), began, "the end beside two locked rows");
    for held in held {
        held.commit().await.unwrap();
    }
    for end in waiting {
        assert!(matches!(end.await.unwrap(), Settled::Done { .. }));
    }
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_row_holds_up_none_of_the_claims_in_its_batch_for_more_than_one_wait_and_loses_none() {
    let (name, url) = migrated_database().await;
    let test = TestStore::with_flushers(name, url.clone(), url, 1).await;
    let jobs: Vec<NewJob> = (0..65).map(|_| job()).collect();
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    test.store.insert(jobs).await.unwrap();
    let (stuck, free) = ids.split_first().unwrap();
    let mut operator = test.mysql().await;
    let held = hold(&mut operator, *stuck).await;
    let claim = |id: &JobId| {
        let (claimant, id) = (test.claimant.clone(), *id);
        tokio::spawn(async move { claimant.claim(id, default_queue()).await })
    };
    let machine = Pulse::at(&test.url).await;
    let began = tokio::time::Instant::now();
    // Each id comes twice: the index may deliver an id again, and only one of the two claims may win.
    let asked: Vec<_> = std::iter::once(stuck).chain(free).chain(free).map(claim).collect();
    let mut won: HashMap<JobId, u32> = HashMap::new();
    for (at, answer) in futures_util::future::join_all(asked).await.into_iter().enumerate() {
        match answer.unwrap().unwrap() {
            Claim::Won(claimed) => *won.entry(claimed.id).or_default() += 1,
            Claim::Gone => {}
            other => panic!("{at}: {other:?}"),
        }
    }
    machine.assert_within(ONE_WAIT, began, "the claims beside a locked row");
    assert!(!won.contains_key(stuck));
    assert_eq!(won.len(), 64, "each free job is claimed");
    assert!(won.values().all(|times| *times == 1), "and each once: {won:?}");
    held.commit().await.unwrap();
    // When the row is offered again, it can be claimed.
    eventually("the row is free", || async {
        matches!(test.claimant.claim(*stuck, default_queue()).await.unwrap(), Claim::Won(_)).then_some(())
    })
    .await;
    assert_eq!(test.count("SELECT COUNT(*) FROM owed WHERE state = 'executing' AND attempt = 1").await, 65);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reaper_takes_only_what_has_expired_under_the_token_it_saw() {
    let test = TestStore::start().await;
    let jobs: Vec<NewJob> = (0..3).map(|_| job()).collect();
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    test.store.insert(jobs).await.unwrap();
    let mut claimed = Vec::new();
    for id in &ids {
        claimed.push(test.claimed(*id).await);
    }
    assert!(test.lapsed().await.is_empty());
    let expire = "UPDATE owed SET lease_until = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND WHERE id IN (?, ?)";
    sqlx::query(expire).bind(ids[0].uuid()).bind(ids[1].uuid()).execute(&mut test.mysql().await).await.unwrap();
    let mut seen = test.lapsed().await;
    seen.sort_by_key(|lapsed| lapsed.id);
    assert_eq!(seen.iter().map(|lapsed| lapsed.id).collect::<Vec<_>>(), ids[..2]);
    // The rows change between the reaper's read and its write: the first is unchanged, the second has another token,
    // the third has a newer lease.
    seen[1].token = AttemptToken::new();
    seen.push(Lapsed { id: ids[2], token: claimed[2].token, until: seen[0].until });
    assert_eq!(test.reap(seen).await, [ids[0]]);
    assert_eq!(test.count("SELECT COUNT(*) FROM owed WHERE state = 'executing'").await, 2);
    // The former holder of the first job comes too late. The others still hold theirs.
    assert!(matches!(test.store.settle(settlement(&claimed[0], Verdict::Succeeded)).await.unwrap(), Settled::NotOurs));
    for claimed in &claimed[1..] {
        let done = test.store.settle(settlement(claimed, Verdict::Succeeded)).await.unwrap();
        assert!(matches!(done, Settled::Done { state: State::Completed, .. }));
    }
    // An end state stays.
    assert!(test.reap(test.lapsed().await).await.is_empty());
    assert_eq!(test.count("SELECT COUNT(*) FROM attempts WHERE end_state = 'completed'").await, 2);
    test.stop().await;
}

/// Lose an attempt, as if its runner had died a lease ago.
async fn lose(test: &TestStore, claimed: &Claimed, policies: &HashMap<Name, RetryPolicy>) -> Settled {
    let expire = "UPDATE owed SET lease_until = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND WHERE id = ?";
    sqlx::query(expire).bind(claimed.id.uuid()).execute(&mut test.mysql().await).await.unwrap();
    let lapsed = test.lapsed().await.into_iter().filter(|lapsed| lapsed.id == claimed.id).collect();
    let (reaped, _) = test.store.reap(lapsed, Arc::new(policies.clone())).await.unwrap();
    reaped.into_iter().next().unwrap().settled
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_fails_after_three_losses_in_a_row_and_a_verdict_of_its_own_clears_them() {
    let test = TestStore::start().await;
    let asked = NewJob { max_attempts: 100, ..job() };
    let id = asked.id;
    test.store.insert(vec![asked]).await.unwrap();
    let due = async || test.store.run_now(id, &Actor::tickr()).await.unwrap();
    let ordinary = async || {
        due().await;
        test.claimed(id).await
    };
    let suspect = async || {
        due().await;
        assert!(matches!(test.claimant.claim(id, default_queue()).await.unwrap(), Claim::Suspect(_)));
        match test.claimant.claim_suspect(id).await.unwrap() {
            Claim::Won(claimed) => *claimed,
            other => panic!("{other:?}"),
        }
    };
    let lost = async |claimed: &Claimed| match lose(&test, claimed, &HashMap::new()).await {
        Settled::Done { state, .. } => state,
        Settled::NotOurs => panic!("it was ours"),
    };
    // One loss makes no suspect.
    assert_eq!(lost(&ordinary().await).await, State::Retrying);
    assert_eq!(lost(&ordinary().await).await, State::Retrying);
    test.store.settle(settlement(&suspect().await, Verdict::Failed)).await.unwrap();
    assert_eq!(lost(&ordinary().await).await, State::Retrying);
    assert_eq!(lost(&ordinary().await).await, State::Retrying);
    // A job that the stop of a runner interrupted is a suspect as before, because it came to no end of its own.
    test.store.settle(settlement(&suspect().await, Verdict::Interrupted)).await.unwrap();
    // The same holds for a job that a runner gave back because it could not read it.
    let unread =
        Settlement { again: Again::ForAnother(Duration::ZERO), ..settlement(&suspect().await, Verdict::Snoozed) };
    test.store.settle(unread).await.unwrap();
    assert_eq!(lost(&suspect().await).await, State::Failed);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_loss_costs_a_job_neither_its_place_nor_time() {
    let test = TestStore::start().await;
    let hour = RetryPolicy { base_ms: 3_600_000, factor: 1.0, cap_ms: 3_600_000, jitter: 0.0, delays_ms: Vec::new() };
    let asked = NewJob { options: JobOptions { retry: Some(hour), ..JobOptions::default() }, ..job() };
    let id = asked.id;
    test.store.insert(vec![asked]).await.unwrap();
    let first = test.claimed(id).await;
    let Settled::Done { execute_at: Some(execute_at), .. } = lose(&test, &first, &HashMap::new()).await else {
        panic!("it waits again")
    };
    assert_eq!(execute_at, first.execute_at);
    // The second loss costs time, because from here on the job itself may be the cause.
    let second = test.claimed(id).await;
    let Settled::Done { execute_at: Some(execute_at), .. } = lose(&test, &second, &HashMap::new()).await else {
        panic!("it waits again")
    };
    assert!(execute_at > second.started_at + chrono::TimeDelta::minutes(50), "{execute_at}");
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_attempt_is_retried_by_the_jobs_own_policy_or_its_kinds() {
    let test = TestStore::start().await;
    let hours = |hours: u64| RetryPolicy::table([Duration::from_secs(hours * 3_600)]);
    let own = NewJob { options: JobOptions { retry: Some(hours(2)), ..JobOptions::default() }, ..job() };
    let jobs = [own, job()];
    let kind = HashMap::from([("noop".parse::<Name>().unwrap(), hours(1))]);
    for (asked, most_hours) in jobs.into_iter().zip([2, 1]) {
        let id = asked.id;
        test.store.insert(vec![asked]).await.unwrap();
        // The first loss costs no time.
        lose(&test, &test.claimed(id).await, &kind).await;
        let claimed = test.claimed(id).await;
        let Settled::Done { execute_at: Some(execute_at), .. } = lose(&test, &claimed, &kind).await else {
            panic!("it waits again")
        };
        let hours = (execute_at - claimed.started_at).num_minutes() as f64 / 60.0;
        assert!((hours - f64::from(most_hours)).abs() < 0.1, "{hours} h");
    }
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_verdict_is_kept_as_a_note_and_changes_nothing_else() {
    let test = TestStore::start().await;
    let accepted = test.store.insert(vec![job()]).await.unwrap();
    let claimed = test.claimed(accepted[0].id).await;
    lose(&test, &claimed, &HashMap::new()).await;
    let everything = async || -> (String, String) {
        let owed = "SELECT CONCAT_WS(' ', state, execute_at, attempt, spared, losses, runner, HEX(token)) FROM owed";
        let done = "SELECT CONCAT_WS(' ', number, burned, runner, finished_at, verdict, end_state, error, result) FROM attempts";
        let mut conn = test.mysql().await;
        let owed = sqlx::query_scalar(owed).fetch_one(&mut conn).await.unwrap();
        (owed, sqlx::query_scalar(done).fetch_one(&mut conn).await.unwrap())
    };
    let before = everything().await;
    let mut late = settlement(&claimed, Verdict::Succeeded);
    late.result = Some(RawValue::from_string(format!("\"{}\"", "ä".repeat(5_000))).unwrap());
    assert!(matches!(test.store.settle(late).await.unwrap(), Settled::NotOurs));
    // The first late verdict stays.
    assert!(matches!(test.store.settle(settlement(&claimed, Verdict::Failed)).await.unwrap(), Settled::NotOurs));
    assert_eq!(everything().await, before);
    let (job, attempts) = test.store.job(claimed.id).await.unwrap().unwrap();
    assert_eq!(job.state, State::Retrying);
    let note = attempts[0].late_note.as_deref().unwrap();
    assert!(note.starts_with("succeeded: \"ää") && note.len() <= 2_000, "{note}");
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tallies_add_up_after_every_kind_of_end() {
    let test = TestStore::start().await;
    let jobs: Vec<NewJob> = (0..40)
        .map(|n| NewJob { queue: if n % 2 == 0 { "default" } else { "mail" }.parse().unwrap(), ..job() })
        .collect();
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    test.store.insert(jobs).await.unwrap();
    for (at, id) in ids.iter().enumerate() {
        let verdict = match at / 2 % 5 {
            0 => Verdict::Succeeded,
            1 => Verdict::Rejected,
            2 => Verdict::Failed,
            3 => {
                assert_eq!(
                    test.store.cancel(*id, &Actor::tickr()).await.unwrap(),
                    ActionOutcome::Done(State::Cancelled)
                );
                continue;
            }
            _ => continue,
        };
        let claimed = test.claimed(*id).await;
        test.store.settle(settlement(&claimed, verdict)).await.unwrap();
    }
    // Two of the rejected jobs are retried, and one of them ends again.
    for at in [2, 12] {
        assert!(matches!(test.store.retry(ids[at], &Actor::tickr()).await.unwrap(), ActionOutcome::Waits(_)));
    }
    let claimed = test.claimed(ids[2]).await;
    assert_eq!((claimed.attempt, claimed.number), (1, 2));
    test.store.settle(settlement(&claimed, Verdict::Succeeded)).await.unwrap();

    let stats = test.store.stats().await.unwrap();
    let told: BTreeSet<(String, State, i64)> =
        stats.owed.iter().chain(&stats.ended).map(|count| (count.queue.to_string(), count.state, count.jobs)).collect();
    let counted: Vec<(String, String, i64)> = sqlx::query_as(
        "SELECT j.queue, COALESCE(o.state, a.end_state), COUNT(*) FROM jobs j LEFT JOIN owed o ON o.id = j.id \
         LEFT JOIN attempts a ON a.job_id = j.id AND a.end_state IS NOT NULL \
         AND a.number = (SELECT MAX(number) FROM attempts WHERE job_id = j.id) GROUP BY 1, 2",
    )
    .fetch_all(&mut test.mysql().await)
    .await
    .unwrap();
    let counted: BTreeSet<(String, State, i64)> =
        counted.into_iter().map(|(queue, word, n)| (queue, State::from_word(&word).unwrap(), n)).collect();
    assert_eq!(told, counted);
    assert_eq!(told.iter().map(|(_, _, n)| n).sum::<i64>(), 40);
    assert!(stats.exact);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_that_go_away_at_any_moment_leave_no_transaction_and_no_dead_connection() {
    let test = Arc::new(TestStore::start().await);
    let standing = job();
    test.store.insert(vec![standing.clone()]).await.unwrap();
    for round in 0..200_u64 {
        let (store, id) = (test.store.clone(), standing.id);
        let call = tokio::spawn(async move {
            match round % 5 {
                0 => drop(store.insert(vec![job(), job()]).await),
                1 => drop(store.insert_unique(Producer::tickr(), vec![keyed(&format!("k{round}")), job()]).await),
                2 => drop(store.run_now(id, &Actor::tickr()).await),
                3 => drop(store.job(id).await),
                _ => drop(store.stats().await),
            }
        });
        tokio::time::sleep(Duration::from_micros(rand::random_range(0..1_500))).await;
        call.abort();
    }
    // There are more calls at once than connections, and each call gets one. It waits for three seconds, in which the
    // machine may stand still.
    let calls = (0..16).map(async |n| {
        let call = || test.store.insert_unique(Producer::tickr(), vec![keyed(&format!("after-{n}"))]);
        match call().await {
            Err(error) if error.is_transient() => call().await,
            answer => answer,
        }
    });
    for answer in futures_util::future::join_all(calls).await {
        let EnqueueOutcome::Accepted(accepted) = answer.unwrap() else { panic!("the key is free") };
        // An acknowledged job is visible to every session.
        let seen: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM owed WHERE id = ?")
            .bind(accepted.accepted().next().unwrap().id.uuid())
            .fetch_one(&mut test.mysql().await)
            .await
            .unwrap();
        assert_eq!(seen, 1);
    }
    test.until_no_transaction_is_open().await;
    // Each insert is complete or absent, even for callers that did not wait for the answer.
    assert_eq!(
        test.count("SELECT COUNT(*) FROM jobs j LEFT JOIN owed o USING (id) WHERE o.id IS NULL").await
            + test
                .count("SELECT COUNT(*) FROM unique_keys k LEFT JOIN owed o ON o.id = k.job_id WHERE o.id IS NULL")
                .await,
        0
    );
    Arc::into_inner(test).unwrap().stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_and_changes_that_hang_leave_the_loops_and_the_controls_their_connections() {
    let test = TestStore::start().await;
    let split = PoolSizes::new(4);
    let mut operator = test.mysql().await;
    operator.execute("LOCK TABLES jobs WRITE").await.unwrap();
    // There are more calls of each sort than connections in all.
    let store = &test.store;
    let read = |store: Store| async move { store.job(JobId::new()).await.err() };
    let reads: Vec<_> = (0..32).map(|_| tokio::spawn(read(store.clone()))).collect();
    test.until_waiting_for_tables(split.reads).await;
    let change = |store: Store, n: u32| async move {
        store.insert_unique(Producer::tickr(), vec![keyed(&n.to_string())]).await.err()
    };
    let changes: Vec<_> = (0..32).map(|n| tokio::spawn(change(store.clone(), n))).collect();
    test.until_waiting_for_tables(split.reads + split.steering).await;
    let machine = Pulse::at(&test.url).await;
    // The loops of runners and the settings of operators continue to work, as long as the other calls hang.
    for _ in 0..5 {
        in_time(&machine, "the reaper", async { test.store.unstopped_runners().await.map(drop) }).await;
        in_time(&machine, "the keys", async { test.store.api_keys().await.map(drop) }).await;
        let key = format!("k{}", uuid::Uuid::new_v4().simple()).parse().unwrap();
        let by = Actor::tickr();
        let made = test.store.make_api_key(&key, Scope::Read, rand::random(), &by);
        in_time(&machine, "a new key", async { made.await.map(drop) }).await;
        let write = async {
            // It says no after two seconds, in which the machine may stand still.
            while !test.store.takes_writes(Duration::from_secs(2)).await {}
            Ok(())
        };
        in_time(&machine, "a write", write).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    operator.execute("UNLOCK TABLES").await.unwrap();
    futures_util::future::join_all(reads.into_iter().chain(changes)).await;
    test.stop().await;
}

/// Check that the call succeeds, within the time that is promised to callers, apart from stalls of the machine.
async fn in_time(machine: &Pulse, what: &str, answer: impl Future<Output = Result<(), StoreError>>) {
    let began = tokio::time::Instant::now();
    let answer = tokio::time::timeout(DEADLINE, answer).await;
    assert!(matches!(answer, Ok(Ok(()))), "{what}: {answer:?}");
    machine.assert_within(Duration::from_secs(2), began, what);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_answer_is_lost_is_recognised_and_not_repeated() {
    let (name, url) = migrated_database().await;
    let proxy = Proxy::start(&url).await;
    let test = TestStore::at(name, url, proxy.url()).await;

    // The job is accepted once, though the answer to the first commit never came.
    proxy.cut_after("COMMIT");
    let one = job();
    let accepted = test.store.insert(vec![one.clone()]).await.unwrap();
    assert_eq!((accepted.len(), accepted[0].id), (1, one.id));
    assert_eq!(proxy.cuts(), 1);

    proxy.cut_after("COMMIT");
    let two = keyed("k");
    let EnqueueOutcome::Accepted(accepted) =
        test.store.insert_unique(Producer::tickr(), vec![two.clone(), job()]).await.unwrap()
    else {
        panic!("the key is its own");
    };
    assert_eq!(accepted.accepted().map(|a| a.id).collect::<Vec<_>>()[0], two.id);
    assert_eq!(accepted.accepted().count(), 2);
    assert_eq!(proxy.cuts(), 2);
    assert_eq!(test.count("SELECT COUNT(*) FROM jobs j JOIN owed o USING (id)").await, 3);

    // The attempt is settled once. The repeated transaction finds its own row in the ledger.
    let claimed = test.claimed(one.id).await;
    proxy.cut_after("COMMIT");
    let settled = test.store.settle(settlement(&claimed, Verdict::Failed)).await.unwrap();
    assert!(matches!(settled, Settled::Done { state: State::Retrying, .. }), "{settled:?}");
    assert_eq!(proxy.cuts(), 3);
    assert_eq!(test.count("SELECT COUNT(*) FROM attempts").await, 1);
    test.stop().await;
}

/// Return the settlement of a claim whose handler was not started.
fn undo(claimed: &Claimed) -> Settlement {
    Settlement { again: Again::Unstarted, ..settlement(claimed, Verdict::Interrupted) }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_undone_claim_whose_commit_was_not_answered_is_no_lost_lease() {
    let (name, url) = migrated_database().await;
    let proxy = Proxy::start(&url).await;
    let test = TestStore::at(name, url, proxy.url()).await;
    let job = job();
    test.store.insert(vec![job.clone()]).await.unwrap();
    let first = test.claimed(job.id).await;
    proxy.cut_after("COMMIT");
    let undone = test.store.settle(undo(&first)).await.unwrap();
    assert_eq!(proxy.cuts(), 1);
    // The runner learns that the job waits, and where, and counts no lost lease.
    let Settled::Done { state: State::Waiting, execute_at: Some(_), line: Some(line), .. } = undone else {
        panic!("{undone:?}");
    };
    assert_eq!(line, (job.queue.clone(), job.priority));
    assert_eq!(test.count("SELECT COUNT(*) FROM attempts").await, 0);

    // The next claim has the same number. When it is lost, an answer to the first one can tell no more, and nothing is
    // noted of a handler that never ran.
    let second = test.claimed(job.id).await;
    assert_eq!(second.number, first.number);
    let expire = "UPDATE owed SET lease_until = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND WHERE id = ?";
    sqlx::query(expire).bind(job.id.uuid()).execute(&mut test.mysql().await).await.unwrap();
    assert_eq!(test.reap(test.lapsed().await).await, [job.id]);
    assert!(matches!(test.store.settle(undo(&second)).await.unwrap(), Settled::NotOurs));
    assert_eq!(test.count("SELECT COUNT(*) FROM attempts WHERE verdict = 'lost' AND late_note IS NULL").await, 1);
    test.stop().await;
}

/// Size of a batch of verdicts that takes fewer requests than this. It is sent as text.
const BATCH: usize = 60;

/// Insert these jobs and claim them. Return their attempts, in this order.
async fn all_claimed(test: &TestStore, jobs: Vec<NewJob>) -> Vec<Claimed> {
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    let outcome = test.store.insert_unique(Producer::tickr(), jobs).await.unwrap();
    assert!(matches!(outcome, EnqueueOutcome::Accepted(_)), "the keys are their own");
    let claims = ids.iter().map(|id| test.claimant.claim(*id, default_queue()));
    let claims = futures_util::future::join_all(claims).await.into_iter();
    let won = |claim: Result<Claim, StoreError>| match claim.unwrap() {
        Claim::Won(claimed) => *claimed,
        other => panic!("{other:?}"),
    };
    claims.map(won).collect()
}

/// Settle these attempts in one batch of the only flusher, behind the success of `front`. `then` runs when all of them
/// wait. Return the answers, and the number of requests.
async fn settled_together(
    (test, proxy): (&TestStore, &Proxy),
    front: &Claimed,
    settlements: Vec<Settlement>,
    then: impl FnOnce(),
) -> (Vec<Settled>, usize) {
    let settle = |settlement: Settlement| {
        let store = test.store.clone();
        handed_in(async move { store.settle(settlement).await.unwrap() })
    };
    let mut other = test.mysql().await;
    let tx = hold(&mut other, front.id).await;
    let in_front = settle(settlement(front, Verdict::Succeeded)).await;
    test.until_said("DELETE FROM owed", 1).await;
    let mut waiting = Vec::new();
    for settlement in settlements {
        waiting.push(settle(settlement).await);
    }
    then();
    let before = proxy.requests();
    tx.commit().await.unwrap();
    assert!(matches!(in_front.await.unwrap(), Settled::Done { .. }));
    let mut answers = Vec::new();
    for settled in waiting {
        answers.push(settled.await.unwrap());
    }
    (answers, proxy.requests() - before)
}

/// A runner whose line was cut brings the verdicts of all its attempts at once, over a line that may be slow.
#[tokio::test(flavor = "multi_thread")]
async fn late_verdicts_of_a_batch_are_noted_with_few_requests() {
    let (name, url) = migrated_database().await;
    let proxy = Proxy::start(&url).await;
    let test = TestStore::with_flushers(name, url, proxy.url(), 1).await;
    let mut claimed = all_claimed(&test, (0..=BATCH).map(|_| job()).collect()).await;
    let front = claimed.pop().unwrap();
    let expire = "UPDATE owed SET lease_until = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND WHERE id <> ?";
    sqlx::query(expire).bind(front.id.uuid()).execute(&mut test.mysql().await).await.unwrap();
    assert_eq!(test.reap(test.lapsed().await).await.len(), BATCH);

    let late = claimed.iter().enumerate().map(|(n, claimed)| {
        let own = claimed.id.uuid().simple();
        if n % 2 == 0 {
            let result = Some(RawValue::from_string(format!("\"{own}\"")).unwrap());
            Settlement { result, ..settlement(claimed, Verdict::Succeeded) }
        } else {
            Settlement { error: Some(own.to_string()), ..settlement(claimed, Verdict::Failed) }
        }
    });
    let (answers, requests) = settled_together((&test, &proxy), &front, late.collect(), || {}).await;
    assert!(answers.iter().all(|answer| matches!(answer, Settled::NotOurs)), "{answers:?}");
    let noted = "SELECT COUNT(*) FROM attempts WHERE verdict = 'lost' AND late_note IN \
                 (CONCAT('succeeded: \"', LOWER(HEX(job_id)), '\"'), CONCAT('failed: ', LOWER(HEX(job_id))))";
    assert_eq!(test.count(noted).await, i64::try_from(BATCH).unwrap());
    println!("{requests} requests for {BATCH} late verdicts");
    assert!(requests < BATCH, "{requests} requests");
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_whose_commit_was_not_answered_is_recognised_with_few_requests() {
    let (name, url) = migrated_database().await;
    let proxy = Proxy::start(&url).await;
    let test = TestStore::with_flushers(name, url, proxy.url(), 1).await;
    // The statements with which successes end, and with which undone claims wait again.
    for (text, successes) in [("BEGIN;DELETE FROM owed", true), ("INSERT INTO owed (id", false)] {
        let mut claimed = all_claimed(&test, (0..=BATCH).map(|_| job()).collect()).await;
        let front = claimed.pop().unwrap();
        let of = |claimed| if successes { settlement(claimed, Verdict::Succeeded) } else { undo(claimed) };
        let (settlements, cuts) = (claimed.iter().map(of).collect(), proxy.cuts());
        let then = || proxy.cut_commit_of(text);
        let (answers, requests) = settled_together((&test, &proxy), &front, settlements, then).await;
        assert_eq!(proxy.cuts() - cuts, 1, "{text}");
        let is_own = |answer: &Settled| match answer {
            Settled::Done { state: State::Completed, .. } => successes,
            Settled::Done { state: State::Waiting, execute_at: Some(_), line: Some(_), .. } => !successes,
            _ => false,
        };
        assert!(answers.iter().all(is_own), "{text}: {answers:?}");
        println!("{requests} requests for {BATCH} verdicts whose COMMIT was not answered: {text}");
        assert!(requests < BATCH, "{text}: {requests} requests");
    }
    // Each success has one line, also those in front, and an undone claim has none.
    assert_eq!(test.count("SELECT COUNT(*) FROM attempts").await, i64::try_from(BATCH + 2).unwrap());
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_unique_keys_of_a_batch_of_ends_are_released_with_few_requests() {
    let (name, url) = migrated_database().await;
    let proxy = Proxy::start(&url).await;
    let test = TestStore::with_flushers(name, url, proxy.url(), 1).await;
    let unique = |n: usize| {
        let unique_for_ms = n.is_multiple_of(2).then_some(3_600_000);
        NewJob { options: JobOptions { unique_for_ms, ..JobOptions::default() }, ..keyed(&format!("k{n}")) }
    };
    let mut claimed = all_claimed(&test, (0..BATCH).map(unique).chain([job()]).collect()).await;
    let front = claimed.pop().unwrap();
    let verdict = |n: usize| if n % 4 < 2 { Verdict::Succeeded } else { Verdict::Rejected };
    let ends = claimed.iter().enumerate().map(|(n, claimed)| settlement(claimed, verdict(n))).collect();
    let (answers, requests) = settled_together((&test, &proxy), &front, ends, || {}).await;
    assert!(answers.iter().all(|answer| matches!(answer, Settled::Done { .. })), "{answers:?}");
    // Only a job that completed leaves its key taken, until its time is over.
    let taken = "SELECT COUNT(*) FROM unique_keys k JOIN attempts a ON a.job_id = k.job_id \
                 WHERE k.held_until IS NOT NULL AND a.end_state = 'completed'";
    let timed = i64::try_from(BATCH / 4).unwrap();
    assert_eq!((test.count(taken).await, test.count("SELECT COUNT(*) FROM unique_keys").await), (timed, timed));
    println!("{requests} requests for {BATCH} ends of jobs with unique keys");
    assert!(requests < BATCH, "{requests} requests");
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_whose_claim_is_undone_is_retrying_again() {
    let test = TestStore::start().await;
    let job = job();
    test.store.insert(vec![job.clone()]).await.unwrap();
    let first = test.claimed(job.id).await;
    let undone = test.store.settle(undo(&first)).await.unwrap();
    assert!(matches!(undone, Settled::Done { state: State::Waiting, .. }), "no attempt has counted: {undone:?}");
    let first = test.claimed(job.id).await;
    let failed = Settlement { again: Again::Now, ..settlement(&first, Verdict::Failed) };
    let failed = test.store.settle(failed).await.unwrap();
    assert!(matches!(failed, Settled::Done { state: State::Retrying, .. }), "{failed:?}");

    let second = test.claimed(job.id).await;
    let undone = test.store.settle(undo(&second)).await.unwrap();
    assert!(matches!(undone, Settled::Done { state: State::Retrying, .. }), "{undone:?}");
    assert_eq!(
        test.count("SELECT COUNT(*) FROM owed WHERE state = 'retrying' AND attempt = 1 AND spared = 0").await,
        1
    );
    let third = test.claimed(job.id).await;
    assert_eq!((third.number, third.attempt), (second.number, second.attempt));
    let done = test.store.settle(settlement(&third, Verdict::Succeeded)).await.unwrap();
    assert!(matches!(done, Settled::Done { state: State::Completed, .. }), "{done:?}");
    test.stop().await;
}

/// Return jobs with the same order key.
fn in_order(count: usize) -> Vec<NewJob> {
    let order = || Order { key: "k".to_owned(), on_failure: OnFailure::default() };
    (0..count)
        .map(|_| NewJob { options: JobOptions { order: Some(order()), ..JobOptions::default() }, ..job() })
        .collect()
}

impl TestStore {
    /// Set a limit for each limit key.
    async fn set_limit(&self, bounds: Bounds) {
        self.set_limit_of("l", SharedBy::Key, bounds).await;
    }

    async fn set_limit_of(&self, name: &str, shared_by: SharedBy, bounds: Bounds) {
        let limit = Limit {
            name: name.parse().unwrap(),
            kind: None,
            queue: None,
            shared_by,
            fair: false,
            breaker: None,
            bounds,
            overrides: BTreeMap::new(),
        };
        self.write_limit(limit).await;
    }

    async fn write_limit(&self, limit: Limit) {
        self.store.set_limit(limit, Condition::Any, &Actor::tickr()).await.unwrap();
        self.store.follow_limits(&Arc::new(self.store.limits().await.unwrap()), Instant::now());
    }

    /// Allow this many attempts of each limit key at the same time, by a limit that has counted those that run.
    async fn set_concurrency(&self, most: u32) {
        self.set_concurrency_of("l", SharedBy::Key, most).await;
    }

    async fn set_concurrency_of(&self, name: &str, shared_by: SharedBy, most: u32) {
        self.set_limit_of(name, shared_by, Bounds { concurrency: Some(most), ..Bounds::default() }).await;
        self.mysql().await.execute("UPDATE limits SET counted = TRUE").await.unwrap();
        self.store.follow_limits(&Arc::new(self.store.limits().await.unwrap()), Instant::now());
    }

    /// Insert jobs with this limit key.
    async fn insert_limited(&self, key: &str, count: usize) -> Vec<JobId> {
        let options = || JobOptions { limit_key: Some(key.to_owned()), ..JobOptions::default() };
        let jobs: Vec<NewJob> = (0..count).map(|_| NewJob { options: options(), ..job() }).collect();
        let ids = jobs.iter().map(|job| job.id).collect();
        self.store.insert(jobs).await.unwrap();
        ids
    }

    /// Claim jobs that find no room at their limit.
    async fn park(&self, ids: &[JobId]) {
        let claims = ids.iter().map(|id| self.claimant.claim(*id, default_queue()));
        for claim in futures_util::future::join_all(claims).await {
            assert!(matches!(claim, Ok(Claim::Parked)), "{claim:?}");
        }
    }

    /// Claim a job in a task of its own.
    fn claim_apart(&self, id: JobId) -> JoinHandle<Claim> {
        let claimant = self.claimant.clone();
        tokio::spawn(async move { claimant.claim(id, default_queue()).await.unwrap() })
    }

    /// Claim a job in a task of its own. The claim is in the queue of its group commit when this returns.
    async fn hand_in_claim(&self, id: JobId) -> JoinHandle<Claim> {
        let claimant = self.claimant.clone();
        handed_in(async move { claimant.claim(id, default_queue()).await.unwrap() }).await
    }

    /// Claim for a runner whose id the test knows from now on.
    fn with_runner(self) -> (Self, RunnerId) {
        let runner = RunnerId::new_for_host("test");
        let kinds = vec!["noop".parse().unwrap()];
        let claimant = self.store.claimant(runner.clone(), kinds, Duration::from_secs(30));
        (Self { claimant, ..self }, runner)
    }

    /// Sweep until the attempts that ran when the limits were set are counted.
    async fn count_by_sweeps(&self) {
        let (mut sweep, began) = (LimitSweep::default(), Instant::now());
        while self.count("SELECT COUNT(*) FROM limits WHERE NOT counted").await > 0 {
            assert!(began.elapsed() < Duration::from_secs(20), "the attempts are not counted");
            if let Some(left) = self.store.until_limits_are_counted() {
                tokio::time::sleep(left).await;
            }
            sweep = self.store.sweep_limits(sweep, false, |_| {}).await.unwrap();
        }
    }

    /// Give back what was claimed and not started. Return the jobs.
    async fn give_back(&self) -> Vec<JobId> {
        self.store.give_back_unanswered().await.unwrap().iter().map(|given| given.id).collect()
    }

    /// End the attempt as a success. Return the jobs that were let go.
    async fn succeed(&self, claimed: &Claimed) -> Vec<JobId> {
        let settled = self.store.settle(settlement(claimed, Verdict::Succeeded)).await.unwrap();
        let Settled::Done { state: State::Completed, released, .. } = settled else { panic!("{settled:?}") };
        released.into_iter().map(|job| job.id).collect()
    }

    /// Return the number of slots of attempts, of slots that are kept, and of parked jobs.
    async fn slots(&self) -> (i64, i64, i64) {
        let slots = self.count("SELECT COUNT(*) FROM limit_slots").await;
        // A slot is kept for five seconds, in which the machine may stand still.
        let kept = self.count("SELECT COUNT(*) FROM limit_slots WHERE kept_until IS NOT NULL").await;
        (slots - kept, kept, self.count("SELECT COUNT(*) FROM limit_waits").await)
    }

    /// End the attempt as a success, and claim the next job of its order key. Return also the jobs that were released.
    async fn end_and_claim_next(&self, claimed: &Claimed) -> (Option<Claimed>, Vec<JobId>) {
        let success = settlement(claimed, Verdict::Succeeded);
        let (settled, next) = self.store.settle_and_claim_next(success, &self.claimant).await.unwrap();
        let Settled::Done { state: State::Completed, released, .. } = settled else { panic!("{settled:?}") };
        let next = next.map(|claim| match claim {
            Claim::Won(claimed) => *claimed,
            other => panic!("{other:?}"),
        });
        (next, released.into_iter().map(|job| job.id).collect())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_job_of_an_order_key_is_claimed_by_the_commit_that_ends_the_one_in_front() {
    let test = TestStore::start().await;
    let jobs = in_order(5);
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    test.store.insert(jobs).await.unwrap();
    let mut claimed = test.claimed(ids[0]).await;
    // Two jobs leave their places before they are at the head.
    for id in [ids[2], ids[4]] {
        assert_eq!(test.store.cancel(id, &Actor::tickr()).await.unwrap(), ActionOutcome::Done(State::Cancelled));
    }
    for id in [ids[1], ids[3]] {
        let (next, released) = test.end_and_claim_next(&claimed).await;
        claimed = next.unwrap();
        assert_eq!((claimed.id, claimed.number, claimed.attempt, released), (id, 1, 1, vec![]));
        assert_eq!(test.count("SELECT COUNT(*) FROM owed WHERE state = 'executing'").await, 1);
        // The reaper finds the attempt if this process dies now.
        let in_batches =
            "SELECT COUNT(*) FROM claim_batches b JOIN owed o ON o.token = b.token AND o.state = 'executing'";
        assert_eq!(test.count(in_batches).await, 1);
    }
    let (next, released) = test.end_and_claim_next(&claimed).await;
    assert!(next.is_none() && released.is_empty(), "{next:?} {released:?}");
    let overlaps = "SELECT COUNT(*) FROM attempts a JOIN attempts b ON a.job_id <> b.job_id \
                    AND a.started_at < b.finished_at AND b.started_at < a.finished_at \
                    AND a.verdict = 'succeeded' AND b.verdict = 'succeeded'";
    let ran = "SELECT COUNT(*) FROM attempts WHERE verdict = 'succeeded'";
    assert_eq!((test.count(ran).await, test.count(overlaps).await), (3, 0));
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commit_that_ends_an_attempt_frees_its_slot_and_lets_the_next_parked_job_go() {
    let (name, url) = migrated_database().await;
    let proxy = Proxy::start(&url).await;
    let test = TestStore::with_flushers(name, url, proxy.url(), 1).await;
    test.set_concurrency(1).await;
    // The first settlement opens its connection.
    let unlimited = job();
    let id = unlimited.id;
    test.store.insert(vec![unlimited]).await.unwrap();
    assert_eq!(test.succeed(&test.claimed(id).await).await, []);
    let ids = test.insert_limited("a", 5).await;
    let mut claimed = test.claimed(ids[0]).await;
    test.park(&ids[1..]).await;
    let mut requests = Vec::new();
    for (place, next) in ids.iter().enumerate().skip(1) {
        let before = proxy.requests();
        assert_eq!(test.succeed(&claimed).await, [*next]);
        requests.push(proxy.requests() - before);
        let parked = i64::try_from(ids.len() - place).unwrap() - 1;
        assert_eq!(test.slots().await, (0, 1, parked));
        claimed = test.claimed(*next).await;
        assert_eq!(test.slots().await, (1, 0, parked));
    }
    assert_eq!(test.succeed(&claimed).await, []);
    assert_eq!(test.slots().await, (0, 0, 0));
    // With a transaction of its own for the slot there are ten. After a rest, a connection is tried and the limits are
    // read besides.
    println!("{requests:?} requests for an end that lets a job go");
    assert!(requests.iter().any(|requests| *requests <= 8), "{requests:?}");
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_to_the_commit_that_ends_an_attempt_lets_one_parked_job_go() {
    let (name, url) = migrated_database().await;
    let proxy = Proxy::start(&url).await;
    let test = TestStore::at(name, url, proxy.url()).await;
    test.set_concurrency(1).await;
    let ids = test.insert_limited("a", 3).await;
    let claimed = test.claimed(ids[0]).await;
    test.park(&ids[1..]).await;
    proxy.cut_after("COMMIT");
    // The run without an answer has let the next job go. The reconciler finds it, because it is due.
    assert_eq!((test.succeed(&claimed).await, proxy.cuts()), (vec![], 1));
    assert_eq!(test.slots().await, (0, 1, 1));
    assert_eq!(test.count("SELECT COUNT(*) FROM attempts").await, 1);
    let claimed = test.claimed(ids[1]).await;
    assert_eq!(test.slots().await, (1, 0, 1));
    assert_eq!(test.succeed(&claimed).await, [ids[2]]);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_an_attempt_waits_for_no_key_of_a_limit_that_another_session_locks() {
    let (name, url) = migrated_database().await;
    let test = TestStore::with_flushers(name, url.clone(), url, 1).await;
    test.set_concurrency(8).await;
    let mut of_a = Vec::new();
    for id in test.insert_limited("a", 6).await {
        of_a.push(test.claimed(id).await);
    }
    let of_b = test.claimed(test.insert_limited("b", 1).await[0]).await;
    let mut session = test.mysql().await;
    session.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await.unwrap();
    let mut tx = session.begin().await.unwrap();
    let lock = "SELECT limit_key FROM limit_keys WHERE limit_name = 'l' AND limit_key = 'a' FOR UPDATE";
    tx.execute(lock).await.unwrap();
    // The transaction after the first end waits for the key in vain. Then the key counts as locked.
    assert_eq!(test.succeed(&of_a[0]).await, []);
    let (machine, began) = (Pulse::at(&test.url).await, tokio::time::Instant::now());
    for claimed in &of_a[1..] {
        assert_eq!(test.succeed(claimed).await, []);
    }
    // Five waits for the key would take five seconds.
    machine.assert_within(Duration::from_secs(4), began, "five ends with a locked key");
    assert_eq!(test.slots().await, (7, 0, 0));
    assert_eq!(test.succeed(&of_b).await, []);
    assert_eq!(test.slots().await, (6, 0, 0));
    tx.rollback().await.unwrap();
    test.store.sweep_limits(LimitSweep::default(), false, |_| {}).await.unwrap();
    assert_eq!(test.slots().await, (0, 0, 0));
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_at_a_limit_that_was_raised_lets_all_parked_jobs_go() {
    let test = TestStore::start().await;
    test.set_concurrency(1).await;
    let ids = test.insert_limited("a", 301).await;
    let claimed = test.claimed(ids[0]).await;
    test.park(&ids[1..]).await;
    test.set_concurrency(1_000).await;
    // The settlement lets some go, and the transaction after it the others.
    let let_go: BTreeSet<JobId> = test.succeed(&claimed).await.into_iter().collect();
    assert_eq!(let_go, ids[1..].iter().copied().collect::<BTreeSet<_>>());
    assert_eq!(test.slots().await, (0, 300, 0));
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sweep_that_counts_for_a_new_limit_lets_its_parked_jobs_go() {
    let test = TestStore::start().await;
    assert_eq!(test.store.until_limits_are_counted(), None);
    test.set_limit(Bounds { concurrency: Some(1), ..Bounds::default() }).await;
    let ids = test.insert_limited("a", 2).await;
    test.park(&ids).await;
    let left = test.store.until_limits_are_counted();
    assert!(left.is_some_and(|left| left <= Duration::from_secs(3)), "{left:?}");
    let mut sweep = LimitSweep::default();
    let let_go = std::sync::Mutex::new(Vec::<JobId>::new());
    let (began, is_counted) = (Instant::now(), "SELECT COUNT(*) FROM limits WHERE counted");
    while test.count(is_counted).await == 0 {
        assert!(let_go.lock().unwrap().is_empty(), "before the attempts are counted");
        assert!(began.elapsed() < Duration::from_secs(20), "the attempts are not counted");
        if let Some(left) = test.store.until_limits_are_counted() {
            tokio::time::sleep(left).await;
        }
        let tell = |jobs: Vec<DueJob>| let_go.lock().unwrap().extend(jobs.into_iter().map(|job| job.id));
        sweep = test.store.sweep_limits(sweep, false, tell).await.unwrap();
    }
    assert_eq!((let_go.into_inner().unwrap(), test.store.until_limits_are_counted()), (vec![ids[0]], None));
    assert_eq!(test.slots().await, (0, 1, 1));
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_slot_behind_thousands_of_others_is_freed_by_sweeps() {
    let test = TestStore::start().await;
    test.set_concurrency(1).await;
    test.claimed(test.insert_limited("b", 1).await[0]).await;
    let mut mysql = test.mysql().await;
    // Jobs of `a` that were let go a moment ago. Each has a slot that is kept for it.
    mysql
        .execute(
            "INSERT INTO owed (id, kind, queue, priority, max_attempts, state, execute_at) \
             WITH RECURSIVE n (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM n WHERE n < 99) \
             SELECT UNHEX(LPAD(HEX(a.n * 100 + b.n), 32, '0')), 'noop', 'let-go', 5, 5, 'waiting', \
             UTC_TIMESTAMP(3) - INTERVAL 1 DAY FROM n a JOIN n b ON b.n < 60",
        )
        .await
        .unwrap();
    mysql
        .execute(
            "INSERT INTO limit_slots (limit_name, limit_key, job_id, kept_until) \
             SELECT 'l', 'a', id, UTC_TIMESTAMP(6) + INTERVAL 60 SECOND FROM owed WHERE queue = 'let-go'",
        )
        .await
        .unwrap();
    mysql.execute("UPDATE limit_slots SET job_id = UNHEX(REPEAT('11', 16)) WHERE limit_key = 'b'").await.unwrap();
    let mut sweep = LimitSweep::default();
    for _ in 0..3 {
        sweep = test.store.sweep_limits(sweep, false, |_| {}).await.unwrap();
    }
    assert_eq!(test.slots().await, (0, 6_000, 0));
    test.stop_broken("most of the rows in owed have none in jobs").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_finds_the_key_behind_one_with_hundreds_of_parked_jobs() {
    let test = TestStore::start().await;
    test.set_concurrency(1).await;
    let (of_a, of_b) = (test.insert_limited("a", 301).await, test.insert_limited("b", 2).await);
    for ids in [&of_a, &of_b] {
        test.claimed(ids[0]).await;
        test.park(&ids[1..]).await;
    }
    test.mysql().await.execute("DELETE FROM limit_slots WHERE limit_key = 'b'").await.unwrap();
    test.store.sweep_limits(LimitSweep::default(), false, |_| {}).await.unwrap();
    // The slot of `b` is kept for its job.
    assert_eq!(test.slots().await, (1, 1, 300));
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_check_and_the_list_of_keys_find_those_behind_one_with_hundreds_of_jobs() {
    let test = TestStore::start().await;
    test.set_concurrency(2).await;
    for id in test.insert_limited("b", 2).await {
        test.claimed(id).await;
    }
    let mut mysql = test.mysql().await;
    let many = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 600) SELECT";
    for sql in [
        format!(
            "INSERT INTO limit_slots (limit_name, limit_key, job_id) {many} 'l', 'a', UNHEX(LPAD(HEX(n), 32, '0')) FROM n"
        ),
        format!(
            "INSERT INTO limit_waits (job_id, limit_name, limit_key, queue, due_at) {many} \
             UNHEX(LPAD(HEX(n), 32, '0')), 'l', IF(n < 600, 'a', 'c'), 'default', UTC_TIMESTAMP(3) FROM n"
        ),
        "UPDATE limits SET concurrency = 1, changed_at = '2026-01-01'".to_owned(),
    ] {
        mysql.execute(sqlx::AssertSqlSafe(sql)).await.unwrap();
    }
    let used = test.store.limit_keys_in_use(&"l".parse().unwrap(), None).await.unwrap();
    let used: Vec<(&str, u32, u32)> = used.iter().map(|of| (&*of.key, of.running, of.parked)).collect();
    assert_eq!(used, [("a", 600, 599), ("b", 2, 0), ("c", 0, 1)]);
    let used = test.store.limit_keys_in_use(&"l".parse().unwrap(), Some("a".to_owned())).await.unwrap();
    assert_eq!(used.iter().map(|of| &*of.key).collect::<Vec<_>>(), ["b", "c"]);
    let mut evidence = test.store.evidence(None).await.unwrap();
    let (mut walk, mut exceeded) = (Walk::From(None), Vec::new());
    while let Walk::From(after) = walk {
        let found;
        (found, walk) = evidence.exceeded_limits(after).await.unwrap();
        exceeded.extend(found.into_iter().map(|(key, running, most)| (key.key, running, most)));
    }
    assert_eq!(exceeded, [("b".to_owned(), 2, 1)]);
    drop(evidence);
    test.stop_broken("most of the slots and the parked jobs are of no job").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_parked_job_is_claimed_by_the_commit_that_ends_the_attempt_before_it() {
    let test = TestStore::start().await;
    test.set_concurrency(2).await;
    let ids = test.insert_limited("a", 6).await;
    let mut running = vec![test.claimed(ids[0]).await, test.claimed(ids[1]).await];
    assert!(!running[0].was_parked());
    test.park(&ids[2..]).await;
    for (place, id) in ids.iter().enumerate().skip(2) {
        let (next, released) = test.end_and_claim_next(&running.remove(0)).await;
        let next = next.unwrap();
        assert_eq!((next.id, next.number, next.attempt, released), (*id, 1, 1, vec![]));
        assert!(next.was_parked());
        running.push(next);
        assert_eq!(test.slots().await, (2, 0, i64::try_from(ids.len() - place).unwrap() - 1));
        // The reaper finds the attempts if this process dies now.
        let in_batches =
            "SELECT COUNT(*) FROM claim_batches b JOIN owed o ON o.token = b.token AND o.state = 'executing'";
        assert_eq!(test.count(in_batches).await, 2);
    }
    for last in running {
        let (next, released) = test.end_and_claim_next(&last).await;
        assert!(next.is_none() && released.is_empty(), "{next:?} {released:?}");
    }
    assert_eq!(test.slots().await, (0, 0, 0));
    let most = "SELECT CAST(MAX(n) AS SIGNED) FROM (SELECT (SELECT COUNT(*) FROM attempts b \
                WHERE b.started_at <= a.started_at AND b.finished_at > a.started_at) n FROM attempts a) x";
    assert_eq!((test.count("SELECT COUNT(*) FROM attempts").await, test.count(most).await), (6, 2));
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parked_job_that_may_not_follow_at_once_is_let_go_and_not_claimed() {
    let test = TestStore::start().await;
    for case in ["another queue", "its last attempt", "an earlier attempt", "a rate", "a fair limit", "two limits"] {
        test.set_concurrency(1).await;
        match case {
            // Its burst is large, so the next job is due at once.
            "a rate" => {
                let rate = Some(Rate { starts: 1_000, period_ms: 1_000, burst: 1_000 });
                test.set_limit_of("l", SharedBy::Key, Bounds { concurrency: Some(1), rate, ..Bounds::default() }).await;
            }
            "a fair limit" => {
                test.mysql().await.execute("UPDATE limits SET fair = TRUE, version = version + 1").await.unwrap();
                test.store.follow_limits(&Arc::new(test.store.limits().await.unwrap()), Instant::now());
            }
            _ => {}
        }
        let first = test.insert_limited("a", 1).await[0];
        let options = JobOptions { limit_key: Some("a".to_owned()), ..JobOptions::default() };
        let mut second = NewJob { options, ..job() };
        match case {
            "another queue" => second.queue = "other".parse().unwrap(),
            "its last attempt" => second.max_attempts = 1,
            // The first has room, so the slot is kept at the second, as if there were no other.
            "two limits" => test.set_concurrency_of("k", SharedBy::All, 2).await,
            _ => {}
        }
        let (id, queue) = (second.id, second.queue.clone());
        test.store.insert(vec![second]).await.unwrap();
        if case == "an earlier attempt" {
            let claimed = test.claimed(id).await;
            let interrupted = Settlement { again: Again::Now, ..settlement(&claimed, Verdict::Interrupted) };
            test.store.settle(interrupted).await.unwrap();
        }
        let claimed = test.claimed(first).await;
        let parked = test.claimant.claim(id, &queue).await.unwrap();
        assert!(matches!(parked, Claim::Parked), "{case}: {parked:?}");
        let (next, released) = test.end_and_claim_next(&claimed).await;
        assert_eq!((next.map(|next| next.id), released), (None, vec![id]), "{case}");
        assert_eq!(test.slots().await, (0, 1, 0), "{case}");
        assert!(matches!(test.store.cancel(id, &Actor::tickr()).await.unwrap(), ActionOutcome::Done(_)));
        // It frees the slot that was kept for the job.
        test.store.sweep_limits(LimitSweep::default(), false, |_| {}).await.unwrap();
        assert_eq!(test.slots().await, (0, 0, 0), "{case}");
    }
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parked_job_of_a_limit_that_was_removed_finds_out_whether_another_one_has_room() {
    let test = TestStore::start().await;
    test.set_concurrency_of("g", SharedBy::All, 2).await;
    test.set_concurrency_of("l", SharedBy::Key, 1).await;
    let of_a = test.claimed(test.insert_limited("a", 1).await[0]).await;
    let of_b = test.claimed(test.insert_limited("b", 1).await[0]).await;
    let second = test.insert_limited("b", 1).await;
    test.park(&second).await;
    assert_eq!(test.count("SELECT COUNT(*) FROM limit_waits WHERE limit_name = 'g'").await, 1);
    test.mysql().await.execute("DELETE FROM limits WHERE name = 'g'").await.unwrap();
    test.store.follow_limits(&Arc::new(test.store.limits().await.unwrap()), Instant::now());
    let (next, released) = test.end_and_claim_next(&of_a).await;
    assert_eq!((next.map(|next| next.id), released), (None, second.clone()));
    let of_l = "SELECT COUNT(*) FROM limit_slots WHERE limit_name = 'l' AND kept_until IS NULL";
    assert_eq!(test.count(of_l).await, 1);
    test.park(&second).await;
    assert!(test.end_and_claim_next(&of_b).await.0.is_some_and(|next| next.id == second[0]));
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_an_attempt_waits_for_no_slot_that_another_session_makes() {
    let test = TestStore::start().await;
    test.set_concurrency(1).await;
    let ids = test.insert_limited("a", 2).await;
    let claimed = test.claimed(ids[0]).await;
    test.park(&ids[1..]).await;
    // As the sweep that counts the attempts of another limit, which is new.
    let mut other = test.mysql().await;
    for sql in ["SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", "BEGIN"] {
        other.execute(sql).await.unwrap();
    }
    sqlx::query("INSERT INTO limit_slots (limit_name, limit_key, job_id) VALUES ('other', 'x', ?)")
        .bind(ids[0].uuid())
        .execute(&mut other)
        .await
        .unwrap();
    let (machine, began) = (Pulse::at(&test.url).await, tokio::time::Instant::now());
    let ended = tokio::time::timeout(DEADLINE, test.succeed(&claimed)).await;
    machine.assert_within(Duration::from_secs(4), began, "an end beside the slot of another key");
    assert_eq!(ended.expect("the end waits for the slot of another key"), ids[1..]);
    other.execute("ROLLBACK").await.unwrap();
    test.stop().await;
}

/// 1. A job runs under the limit `l`, which an operator replaces by `m`. Its attempt ends, and the job waits again.
/// 2. A transaction frees the slot: it has locked the key of `l`, and has read that the job does not execute.
/// 3. The next attempt of the job is claimed under `m`. Nothing locks the key of `m`, so the claim waits for nothing.
/// 4. The transaction deletes the slot at `l`. If it deleted the one at `m` as well, one more job would start there.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_an_attempt_frees_no_slot_at_a_key_that_it_has_not_locked() {
    let (name, url) = migrated_database().await;
    let proxy = Proxy::start(&url).await;
    let test = TestStore::at(name, url, proxy.url()).await;
    test.set_concurrency(1).await;
    let ids = test.insert_limited("a", 2).await;
    let claimed = test.claimed(ids[0]).await;
    test.mysql().await.execute("DELETE FROM limits WHERE name = 'l'").await.unwrap();
    test.set_concurrency_of("m", SharedBy::All, 1).await;
    proxy.hold_back("DELETE s FROM limit_slots");
    let store = test.store.clone();
    let interrupted = Settlement { again: Again::Now, ..settlement(&claimed, Verdict::Interrupted) };
    let ended = tokio::spawn(async move { store.settle(interrupted).await.unwrap() });
    eventually("the slot is to be deleted", || async { proxy.holds_one_back().then_some(()) }).await;
    let again = test.claimed(ids[0]).await;
    proxy.pass_held_back();
    assert!(matches!(ended.await.unwrap(), Settled::Done { .. }));
    let of_l = "SELECT COUNT(*) FROM limit_slots WHERE limit_name = 'l'";
    eventually("the slot is deleted", || async { (test.count(of_l).await == 0).then_some(()) }).await;
    assert_eq!(test.count("SELECT COUNT(*) FROM limit_slots WHERE limit_name = 'm'").await, 1);
    test.park(&ids[1..]).await;
    assert_eq!(test.succeed(&again).await, ids[1..]);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parked_job_whose_claim_was_not_answered_is_given_back_and_has_its_slot_until_then() {
    let (name, url) = migrated_database().await;
    let proxy = Proxy::start(&url).await;
    let test = TestStore::at(name, url, proxy.url()).await;
    test.set_concurrency(1).await;
    let ids = test.insert_limited("a", 3).await;
    let claimed = test.claimed(ids[0]).await;
    test.park(&ids[1..]).await;
    proxy.cut_after("COMMIT");
    let (next, released) = test.end_and_claim_next(&claimed).await;
    assert!(next.is_none() && released.is_empty(), "{next:?} {released:?}");
    assert_eq!((proxy.cuts(), test.store.unanswered_claims()), (1, 1));
    assert_eq!(test.count("SELECT COUNT(*) FROM owed WHERE state = 'executing'").await, 1);
    assert_eq!(test.slots().await, (1, 0, 1));
    let given = test.store.give_back_unanswered().await.unwrap();
    assert_eq!(given.iter().map(|given| given.id).collect::<Vec<_>>(), [ids[1]]);
    // The slot goes to the next job of the line.
    test.store.sweep_limits(LimitSweep::default(), false, |_| {}).await.unwrap();
    assert_eq!(test.slots().await, (0, 1, 0));
    test.park(&[ids[1]]).await;
    let claimed = test.claimed(ids[2]).await;
    assert_eq!((test.slots().await, test.succeed(&claimed).await), ((1, 0, 1), vec![ids[1]]));
    let again = test.claimed(ids[1]).await;
    assert_eq!((again.number, again.attempt), (2, 1));
    test.stop().await;
}

/// 1. A claim reads the host of a job, by which a limit counts it. An operator changes the payload meanwhile.
/// 2. The change is committed: the job calls another host, for which the limit has no room.
/// 3. The claim gets the row. It may not start the job because there is room for the former host, or no limit for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_counts_a_job_by_its_new_host_if_its_payload_is_changed_meanwhile() {
    let test = TestStore::start().await;
    test.set_concurrency_of("h", SharedBy::Host, 1).await;
    let hosts = [Some("busy.example"), Some("free.example"), None];
    let jobs: Vec<NewJob> = hosts.iter().map(|host| NewJob { host: host.map(str::to_owned), ..job() }).collect();
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    test.store.insert(jobs).await.unwrap();
    let running = test.claimed(ids[0]).await;
    for id in &ids[1..] {
        let mut other = test.mysql().await;
        let mut change = hold(&mut other, *id).await;
        let sql = "UPDATE jobs SET host = 'busy.example' WHERE id = ?";
        sqlx::query(sql).bind(id.uuid()).execute(&mut *change).await.unwrap();
        let claim = test.claim_apart(*id);
        test.until_said("UPDATE owed FORCE INDEX", 1).await;
        change.commit().await.unwrap();
        let claim = claim.await.unwrap();
        assert!(!matches!(claim, Claim::Won(_)), "{claim:?}");
        test.park(&[*id]).await;
    }
    assert_eq!(test.slots().await, (1, 0, 2));
    assert_eq!(test.succeed(&running).await.len(), 1);
    test.stop().await;
}

/// Let this job be due in an hour.
async fn put_off(conn: &mut MySqlConnection, id: JobId) {
    let sql = "UPDATE owed SET execute_at = UTC_TIMESTAMP(3) + INTERVAL 1 HOUR WHERE id = ?";
    sqlx::query(sql).bind(id.uuid()).execute(conn).await.unwrap();
}

/// Longer than a claim is sure of its limits.
const LONG: Duration = Duration::from_millis(1_100);

async fn until_held_back(proxy: &Proxy) {
    eventually("the request is held back", || async { proxy.holds_one_back().then_some(()) }).await;
}

/// 1. A runner claims the first job, which is under no limit. The COMMIT is under way for seconds.
/// 2. An operator sets a limit of one. A sweep counts the attempts that run, and cannot see this one.
/// 3. The second job starts: the limit has counted no other.
///
/// Return the claim of the first job, whose COMMIT is still under way, and the attempt of the second one.
async fn count_during_a_commit(test: &TestStore, proxy: &Proxy, ids: &[JobId]) -> (JoinHandle<Claim>, Claimed) {
    proxy.hold_back("INSERT INTO claim_batches");
    let claim = test.claim_apart(ids[0]);
    until_held_back(proxy).await;
    test.set_limit(Bounds { concurrency: Some(1), ..Bounds::default() }).await;
    test.count_by_sweeps().await;
    (claim, test.claimed(ids[1]).await)
}

/// Check that the first job has not started, uses no attempt and waits until the second one has ended.
async fn assert_follows_the_limit(test: TestStore, claim: JoinHandle<Claim>, ids: &[JobId], second: &Claimed) {
    let claim = claim.await.unwrap();
    assert!(matches!(claim, Claim::Gone), "{claim:?}");
    assert_eq!(test.give_back().await, ids[..1]);
    test.park(&ids[..1]).await;
    assert_eq!(test.slots().await, (1, 0, 1));
    assert_eq!(test.succeed(second).await, ids[..1]);
    let again = test.claimed(ids[0]).await;
    assert_eq!((again.number, again.attempt), (2, 1));
    test.stop().await;
}

/// After the steps of [`count_during_a_commit`], the COMMIT is done. Both jobs would run at the same time if the runner
/// did not look at the limits once more.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_commit_took_long_follows_a_limit_that_was_counted_meanwhile() {
    let (name, url) = migrated_database().await;
    let proxy = Proxy::start(&url).await;
    let test = TestStore::at(name, url, proxy.url()).await;
    let ids = test.insert_limited("a", 2).await;
    let (claim, second) = count_during_a_commit(&test, &proxy, &ids).await;
    proxy.pass_held_back();
    assert_follows_the_limit(test, claim, &ids, &second).await;
}

/// After the steps of [`count_during_a_commit`], the COMMIT is done and its answer is lost. The claim runs again and
/// finds what it has claimed. This run knows the limit, and did not claim the job.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_finds_what_it_claimed_before_follows_a_limit_that_was_counted_meanwhile() {
    let (name, url) = migrated_database().await;
    let proxy = Proxy::start(&url).await;
    let test = TestStore::at(name, url, proxy.url()).await;
    let ids = test.insert_limited("a", 2).await;
    let (claim, second) = count_during_a_commit(&test, &proxy, &ids).await;
    proxy.pass_held_back_unanswered();
    assert_follows_the_limit(test, claim, &ids, &second).await;
}

/// After the steps of [`count_during_a_commit`]:
///
/// 4. The connection of the runner breaks, while its COMMIT is still on the way. The claim runs again. It reads that
///    the first job waits, and that the limit has no room for it. To park it, it waits for the row.
/// 5. The COMMIT arrives. The row belongs to an attempt that no handler gets.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_without_room_gives_back_what_its_earlier_run_has_claimed_meanwhile() {
    let (name, url) = migrated_database().await;
    let proxy = Proxy::start(&url).await;
    let test = TestStore::at(name, url, proxy.url()).await;
    let ids = test.insert_limited("a", 2).await;
    let (claim, second) = count_during_a_commit(&test, &proxy, &ids).await;
    proxy.leave_held_back();
    test.until_said("SELECT o.id, o.queue, o.execute_at", 1).await;
    proxy.pass_held_back();
    assert_follows_the_limit(test, claim, &ids, &second).await;
}

/// After the steps of [`count_during_a_commit`], in a batch with a job that does not exist:
///
/// 4. The COMMIT is done. The runner asks why it has not got the other job, and that answer is lost.
/// 5. The claim runs again. It could find room for the first job by now, and hand it out, while another task gives back
///    what the first run has left.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_runs_again_has_left_nothing_before() {
    let (name, url) = migrated_database().await;
    let proxy = Proxy::start(&url).await;
    let test = TestStore::with_flushers(name, url, proxy.url(), 1).await;
    let ids = test.insert_limited("a", 3).await;
    // The only flusher waits for a row, so that the next claims make one batch. The job of the row is put off.
    let mut other = test.mysql().await;
    let mut blocker = hold(&mut other, ids[2]).await;
    put_off(&mut blocker, ids[2]).await;
    let blocked = test.claim_apart(ids[2]);
    test.until_said("UPDATE owed FORCE INDEX", 1).await;
    let (claim, missing) = (test.hand_in_claim(ids[0]).await, test.hand_in_claim(JobId::new()).await);
    proxy.hold_back("INSERT INTO claim_batches");
    blocker.commit().await.unwrap();
    let blocked = blocked.await.unwrap();
    assert!(matches!(blocked, Claim::NotDue(_)), "{blocked:?}");
    until_held_back(&proxy).await;
    test.set_limit(Bounds { concurrency: Some(1), ..Bounds::default() }).await;
    test.count_by_sweeps().await;
    let second = test.claimed(ids[1]).await;
    proxy.cut_after("SELECT id, queue, priority, execute_at, kind, losses");
    proxy.pass_held_back();
    let missing = missing.await.unwrap();
    assert!(matches!(missing, Claim::Gone), "{missing:?}");
    assert_eq!((proxy.cuts(), test.store.unanswered_claims()), (1, 1));
    assert_follows_the_limit(test, claim, &ids, &second).await;
}

/// 1. A process claims a job for a remote worker, which is under no limit. The COMMIT is under way for seconds.
/// 2. An operator sets a limit of one, and a sweep counts the attempts that run. A second job starts.
/// 3. The worker repeats its request at another process, which waits for the claim.
/// 4. The COMMIT is done. Neither process may hand the first job out.
#[tokio::test(flavor = "multi_thread")]
async fn a_remote_claim_whose_commit_took_long_follows_a_limit_that_was_counted_meanwhile() {
    let (name, url) = migrated_database().await;
    let proxy = Proxy::start(&url).await;
    let test = TestStore::at(name, url.clone(), proxy.url()).await;
    let ids = test.insert_limited("a", 2).await;
    let worker = NewWorker {
        id: RunnerId::new_for_host("remote"),
        version: "test".to_owned(),
        host: None,
        pid: None,
        kinds: vec!["noop".parse().unwrap()],
        queues: vec![default_queue().clone()],
        slots: 4,
        lease: Duration::from_secs(120),
    };
    let (worker_id, fetch) = (worker.id.clone(), uuid::Uuid::now_v7());
    test.store.register_worker(worker).await.unwrap();
    let begun = test.store.begin_fetch(worker_id.clone(), fetch, Vec::new(), Duration::ZERO).await.unwrap().unwrap();
    let (store, request, first) = (test.store.clone(), RemoteFetch { worker: begun.worker, id: fetch }, ids[0]);
    proxy.hold_back("UPDATE owed FORCE INDEX");
    let claims = tokio::spawn(async move {
        store.claim_remotely(&request, vec![(first, default_queue().clone())], false, None).await.unwrap()
    });
    until_held_back(&proxy).await;
    test.set_limit(Bounds { concurrency: Some(1), ..Bounds::default() }).await;
    test.count_by_sweeps().await;
    let second = test.claimed(ids[1]).await;
    let settings = StoreSettings { url, connections: 4, flushers: 1, table_prefix: table_prefix() };
    let other = Store::connect(&settings, Duration::from_secs(10)).await.unwrap();
    other.follow_limits(&Arc::new(other.limits().await.unwrap()), Instant::now());
    let through_other = other.clone();
    let repeated = tokio::spawn(async move {
        through_other.begin_fetch(worker_id, fetch, Vec::new(), Duration::ZERO).await.unwrap().unwrap()
    });
    test.until_said("SELECT kinds, queues, lease_ms", 1).await;
    proxy.pass_held_back();
    let (claims, repeated) = (claims.await.unwrap(), repeated.await.unwrap());
    assert!(matches!(claims.claims.as_slice(), [(_, Claim::Gone)]), "{claims:?}");
    assert!(repeated.again.is_empty(), "{repeated:?}");
    let left = claims.unstarted.iter().chain(&repeated.undelivered).flat_map(|(_, ids)| ids.clone());
    assert_eq!(left.collect::<Vec<_>>(), [first, first]);
    for (token, ids) in claims.unstarted {
        test.store.give_back(token, ids, "a limit had no room for it").await.unwrap();
    }
    test.park(&ids[..1]).await;
    assert_eq!((test.slots().await, test.succeed(&second).await), ((1, 0, 1), vec![first]));
    let again = test.claimed(first).await;
    assert_eq!((again.number, again.attempt, test.succeed(&again).await), (2, 1, vec![]));
    other.close().await;
    test.stop().await;
}

/// 1. Two jobs of a key may run, and one does. A runner claims the next one. The COMMIT is under way for seconds.
/// 2. An operator allows one.
/// 3. The COMMIT is done. The job may not start: the limit has held everywhere for a while.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_commit_took_long_follows_a_limit_that_was_lowered_meanwhile() {
    let (name, url) = migrated_database().await;
    let proxy = Proxy::start(&url).await;
    let test = TestStore::at(name, url, proxy.url()).await;
    test.set_concurrency(2).await;
    let ids = test.insert_limited("a", 2).await;
    let first = test.claimed(ids[0]).await;
    proxy.hold_back("INSERT INTO claim_batches");
    let claim = test.claim_apart(ids[1]);
    until_held_back(&proxy).await;
    test.set_concurrency(1).await;
    tokio::time::sleep(LONG).await;
    proxy.pass_held_back();
    let claim = claim.await.unwrap();
    assert!(matches!(claim, Claim::Gone), "{claim:?}");
    assert_eq!(test.give_back().await, ids[1..]);
    test.store.sweep_limits(LimitSweep::default(), false, |_| {}).await.unwrap();
    assert_eq!(test.slots().await, (1, 0, 0));
    test.park(&ids[1..]).await;
    assert_eq!(test.succeed(&first).await, ids[1..]);
    test.stop().await;
}

/// Check that the reaper finds the attempt of this job, which has not started, by the row of its claim, until it is
/// given back. `open` is how many attempts are open before that.
async fn assert_found_until_given_back(test: &TestStore, runner: &RunnerId, left: JobId, open: usize) {
    let now = test.store.unstopped_runners().await.unwrap().reading.moment;
    let open_by_rows = || async {
        test.store.delete_closed_batches(runner).await.unwrap();
        test.store.lapsed_of(runner, None, LapseRule::at(now), Arc::default()).await.unwrap().open
    };
    assert_eq!(open_by_rows().await, open);
    assert_eq!(test.give_back().await, [left]);
    assert_eq!(open_by_rows().await, open - 1);
    assert_eq!(test.count("SELECT COUNT(*) FROM claim_batches").await, open as i64 - 1);
}

/// 1. Two jobs of each key may run. A job of one key runs. A runner claims the next one, and in one batch a job of
///    another key. The COMMIT is under way for seconds.
/// 2. An operator allows one.
/// 3. The COMMIT is done. The job of the other key starts, and ends. Without the row of the claim, no reaper would find
///    the first job if the runner died now.
#[tokio::test(flavor = "multi_thread")]
async fn the_row_of_a_claim_stays_until_what_had_no_room_is_given_back() {
    let (name, url) = migrated_database().await;
    let proxy = Proxy::start(&url).await;
    let (test, runner) = TestStore::with_flushers(name, url, proxy.url(), 1).await.with_runner();
    test.set_concurrency(2).await;
    let (of_a, of_b) = (test.insert_limited("a", 2).await, test.insert_limited("b", 1).await);
    let late = test.insert_limited("c", 1).await[0];
    let first = test.claimed(of_a[0]).await;
    // The only flusher waits for a row, so that the next claims make one batch. The job of the row is put off.
    let mut other = test.mysql().await;
    let mut blocker = hold(&mut other, late).await;
    put_off(&mut blocker, late).await;
    let blocked = test.claim_apart(late);
    test.until_said("UPDATE owed FORCE INDEX", 1).await;
    let (left, started) = (test.hand_in_claim(of_a[1]).await, test.hand_in_claim(of_b[0]).await);
    proxy.hold_back("INSERT INTO claim_batches");
    blocker.commit().await.unwrap();
    let blocked = blocked.await.unwrap();
    assert!(matches!(blocked, Claim::NotDue(_)), "{blocked:?}");
    until_held_back(&proxy).await;
    test.set_concurrency(1).await;
    tokio::time::sleep(LONG).await;
    proxy.pass_held_back();
    let (left, started) = (left.await.unwrap(), started.await.unwrap());
    assert!(matches!(left, Claim::Gone), "{left:?}");
    let Claim::Won(started) = started else { panic!("{started:?}") };
    assert_eq!(test.succeed(&started).await, []);
    assert_found_until_given_back(&test, &runner, of_a[1], 2).await;
    test.park(&of_a[1..]).await;
    assert_eq!(test.succeed(&first).await, of_a[1..]);
    test.stop().await;
}

/// 1. Two jobs of each key may run. In one batch, one of two jobs ends at one key and both of another key, and the same
///    transaction claims the next parked job of each key. The COMMIT is under way for seconds.
/// 2. An operator allows one.
/// 3. The COMMIT is done. The next job of the other key starts, and ends. Without the row of the claim, no reaper would
///    find the next job of the first key if the runner died now.
#[tokio::test(flavor = "multi_thread")]
async fn the_row_of_a_claim_of_next_jobs_stays_until_what_had_no_room_is_given_back() {
    let (name, url) = migrated_database().await;
    let proxy = Proxy::start(&url).await;
    let (test, runner) = TestStore::with_flushers(name, url, proxy.url(), 1).await.with_runner();
    test.set_concurrency(2).await;
    let (of_a, of_b) = (test.insert_limited("a", 3).await, test.insert_limited("b", 3).await);
    let one = job();
    let blocking = one.id;
    test.store.insert(vec![one]).await.unwrap();
    let blocking = test.claimed(blocking).await;
    let [a, running, b, c] = [
        test.claimed(of_a[0]).await,
        test.claimed(of_a[1]).await,
        test.claimed(of_b[0]).await,
        test.claimed(of_b[1]).await,
    ];
    test.park(&[of_a[2], of_b[2]]).await;
    // The only flusher waits for a row, so that the next verdicts make one batch.
    let mut other = test.mysql().await;
    let blocker = hold(&mut other, blocking.id).await;
    let in_front = handed_in({
        let (store, success) = (test.store.clone(), settlement(&blocking, Verdict::Succeeded));
        async move { store.settle(success).await.unwrap() }
    })
    .await;
    test.until_said("DELETE FROM owed", 1).await;
    let mut ends = Vec::new();
    for claimed in [a, b, c] {
        let (store, claimant) = (test.store.clone(), test.claimant.clone());
        let success = settlement(&claimed, Verdict::Succeeded);
        ends.push(handed_in(async move { store.settle_and_claim_next(success, &claimant).await.unwrap() }).await);
    }
    // Only a transaction that frees slots has a request of its own for its tallies.
    proxy.hold_back("INSERT INTO tallies");
    blocker.commit().await.unwrap();
    until_held_back(&proxy).await;
    test.set_concurrency(1).await;
    tokio::time::sleep(LONG).await;
    proxy.pass_held_back();
    assert!(matches!(in_front.await.unwrap(), Settled::Done { .. }));
    let mut next = Vec::new();
    for end in ends {
        let (settled, claim) = end.await.unwrap();
        assert!(matches!(settled, Settled::Done { state: State::Completed, .. }), "{settled:?}");
        next.extend(claim);
    }
    let [Claim::Won(started)] = next.as_slice() else { panic!("{next:?}") };
    assert_eq!((started.id, test.succeed(started).await), (of_b[2], vec![]));
    assert_found_until_given_back(&test, &runner, of_a[2], 2).await;
    test.store.sweep_limits(LimitSweep::default(), false, |_| {}).await.unwrap();
    assert_eq!(test.slots().await, (1, 0, 0));
    assert_eq!(test.succeed(&running).await, []);
    test.stop().await;
}

/// 1. Two jobs of a key run. One ends, and the same transaction claims a parked job. The COMMIT is under way for
///    seconds.
/// 2. An operator allows one.
/// 3. The COMMIT is done. The attempt has ended, and the next job may not start beside the other one.
#[tokio::test(flavor = "multi_thread")]
async fn a_next_parked_job_whose_commit_took_long_follows_a_limit_that_was_lowered_meanwhile() {
    let (name, url) = migrated_database().await;
    let proxy = Proxy::start(&url).await;
    let test = TestStore::at(name, url, proxy.url()).await;
    test.set_concurrency(2).await;
    let ids = test.insert_limited("a", 3).await;
    let [first, second] = [test.claimed(ids[0]).await, test.claimed(ids[1]).await];
    test.park(&ids[2..]).await;
    proxy.hold_back("COMMIT");
    let ((next, released), ()) = tokio::join!(test.end_and_claim_next(&first), async {
        until_held_back(&proxy).await;
        test.set_concurrency(1).await;
        tokio::time::sleep(LONG).await;
        proxy.pass_held_back();
    });
    assert!(next.is_none() && released.is_empty(), "{next:?} {released:?}");
    assert_eq!(test.give_back().await, ids[2..]);
    test.store.sweep_limits(LimitSweep::default(), false, |_| {}).await.unwrap();
    assert_eq!(test.slots().await, (1, 0, 0));
    test.park(&ids[2..]).await;
    assert_eq!(test.succeed(&second).await, ids[2..]);
    let again = test.claimed(ids[2]).await;
    assert_eq!((again.number, again.attempt), (2, 1));
    test.stop().await;
}

/// 1. A job ends, and the same transaction claims the next one of its order key. No limit applies to it. The COMMIT is
///    under way for seconds.
/// 2. An operator sets a limit of one. A sweep counts the attempts that run: that of the first job.
/// 3. The COMMIT is done. The limit does not know the attempt of the next job, and would let another job start beside
///    it.
#[tokio::test(flavor = "multi_thread")]
async fn a_next_job_whose_commit_took_long_follows_a_limit_that_was_counted_meanwhile() {
    let (name, url) = migrated_database().await;
    let proxy = Proxy::start(&url).await;
    let test = TestStore::at(name, url, proxy.url()).await;
    let jobs = in_order(2);
    let [first, second] = [jobs[0].id, jobs[1].id];
    test.store.insert(jobs).await.unwrap();
    let claimed = test.claimed(first).await;
    proxy.hold_back("COMMIT");
    let ((next, released), ()) = tokio::join!(test.end_and_claim_next(&claimed), async {
        until_held_back(&proxy).await;
        test.set_limit_of("m", SharedBy::All, Bounds { concurrency: Some(1), ..Bounds::default() }).await;
        test.count_by_sweeps().await;
        proxy.pass_held_back();
    });
    assert!(next.is_none() && released.is_empty(), "{next:?} {released:?}");
    assert_eq!(test.give_back().await, [second]);
    test.store.sweep_limits(LimitSweep::default(), false, |_| {}).await.unwrap();
    assert_eq!(test.slots().await, (0, 0, 0));
    let again = test.claimed(second).await;
    assert_eq!((again.number, again.attempt, test.slots().await), (2, 1, (1, 0, 0)));
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_next_job_whose_commit_took_long_follows_a_rate_that_was_set_meanwhile() {
    let (name, url) = migrated_database().await;
    let proxy = Proxy::start(&url).await;
    let test = TestStore::at(name, url, proxy.url()).await;
    let jobs = in_order(2);
    let [first, second] = [jobs[0].id, jobs[1].id];
    test.store.insert(jobs).await.unwrap();
    let claimed = test.claimed(first).await;
    proxy.hold_back("COMMIT");
    let ((next, released), ()) = tokio::join!(test.end_and_claim_next(&claimed), async {
        until_held_back(&proxy).await;
        let rate = Rate { starts: 1, period_ms: 600_000, burst: 0 };
        test.set_limit_of("m", SharedBy::All, Bounds { rate: Some(rate), ..Bounds::default() }).await;
        tokio::time::sleep(LONG).await;
        proxy.pass_held_back();
    });
    assert!(next.is_none() && released.is_empty(), "{next:?} {released:?}");
    assert_eq!(test.give_back().await, [second]);
    test.stop().await;
}

/// 1. The answer to the COMMIT of ordered jobs is lost while the COMMIT is under way. It holds the lock of their key.
/// 2. The next run finds no rows, and waits for the lock until the timeout. The jobs go to the slow lane.
/// 3. The COMMIT is done. The slow lane finds the ids of the jobs taken.
#[tokio::test(flavor = "multi_thread")]
async fn ordered_jobs_are_accepted_whose_commit_ended_after_a_wait_for_their_key() {
    let (name, url) = migrated_database().await;
    let proxy = Proxy::start(&url).await;
    let test = TestStore::at(name, url, proxy.url()).await;
    let (jobs, store) = (in_order(2), test.store.clone());
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    proxy.hold_back("COMMIT");
    let accepted = tokio::spawn(async move { store.insert(jobs).await });
    until_held_back(&proxy).await;
    proxy.leave_held_back();
    let waiting = async || {
        let open = open_transactions(&test.url).await;
        open.into_iter().find(|transaction| transaction.state == "LOCK WAIT").map(|transaction| transaction.id)
    };
    let first = eventually("a run waits for the key", &waiting).await;
    eventually("its wait has ended, and another one waits", || async { waiting().await.filter(|next| *next != first) })
        .await;
    proxy.pass_held_back();
    let accepted = accepted.await.unwrap().unwrap();
    assert_eq!(accepted.iter().map(|accepted| accepted.id).collect::<Vec<_>>(), ids);
    assert_eq!(test.count("SELECT COUNT(*) FROM jobs").await, 2);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_next_job_that_may_not_follow_at_once_is_let_go_and_not_claimed() {
    let test = TestStore::start().await;
    let other_queue = |job: &mut NewJob| job.queue = "other".parse().unwrap();
    let other_kind = |job: &mut NewJob| job.kind = "sleep".parse().unwrap();
    let last_attempt = |job: &mut NewJob| job.max_attempts = 1;
    let later = |job: &mut NewJob| job.due = Due::After(Duration::from_secs(600));
    let limited = |_: &mut NewJob| {};
    type Change = fn(&mut NewJob);
    let cases: [(&str, Change); 5] = [
        ("another queue", other_queue),
        ("another kind", other_kind),
        ("its last attempt", last_attempt),
        ("due later", later),
        ("limited", limited),
    ];
    for (case, change) in cases {
        let mut jobs = in_order(2);
        let [first, second] = [jobs[0].id, jobs[1].id];
        change(&mut jobs[1]);
        test.store.insert(jobs).await.unwrap();
        let claimed = test.claimed(first).await;
        if case == "limited" {
            test.set_limit(Bounds { concurrency: Some(1), ..Bounds::default() }).await;
        }
        let (next, released) = test.end_and_claim_next(&claimed).await;
        assert_eq!((next.map(|next| next.id), released), (None, vec![second]), "{case}");
        assert_eq!(test.count("SELECT COUNT(*) FROM owed WHERE state <> 'waiting'").await, 0, "{case}");
        let is_due = test.count("SELECT COUNT(*) FROM owed WHERE execute_at <= UTC_TIMESTAMP(6)").await;
        assert_eq!(is_due, i64::from(case != "due later"), "{case}");
        assert!(matches!(test.store.cancel(second, &Actor::tickr()).await.unwrap(), ActionOutcome::Done(_)));
    }
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_next_job_whose_claim_was_not_answered_is_given_back_and_uses_no_attempt() {
    let (name, url) = migrated_database().await;
    let proxy = Proxy::start(&url).await;
    let test = TestStore::at(name, url, proxy.url()).await;
    let jobs = in_order(2);
    let [first, second] = [jobs[0].id, jobs[1].id];
    test.store.insert(jobs).await.unwrap();
    let claimed = test.claimed(first).await;
    // The job in front is recognised as ended; the claim of the next one has no caller.
    proxy.cut_after("COMMIT");
    let (next, released) = test.end_and_claim_next(&claimed).await;
    assert!(next.is_none() && released.is_empty(), "{next:?} {released:?}");
    assert_eq!((proxy.cuts(), test.store.unanswered_claims()), (1, 1));
    assert_eq!(test.count("SELECT COUNT(*) FROM owed WHERE state = 'executing'").await, 1);
    let given = test.store.give_back_unanswered().await.unwrap();
    assert_eq!(given.iter().map(|given| given.id).collect::<Vec<_>>(), [second]);
    assert_eq!(test.count("SELECT COUNT(*) FROM owed WHERE state <> 'executing' AND attempt = spared").await, 1);
    let again = test.claimed(second).await;
    assert_eq!((again.number, again.attempt), (2, 1));
    test.store.settle(settlement(&again, Verdict::Succeeded)).await.unwrap();
    assert_eq!(test.count("SELECT COUNT(*) FROM attempts WHERE verdict = 'succeeded'").await, 2);
    test.stop().await;
}

/// The successes of a batch are written first, and their callers do not wait for the rest.
#[tokio::test(flavor = "multi_thread")]
async fn a_next_job_that_was_claimed_starts_while_the_rest_of_its_batch_waits_for_a_row() {
    let (name, url) = migrated_database().await;
    let test = TestStore::with_flushers(name, url.clone(), url, 1).await;
    let mut jobs = in_order(2);
    jobs.extend([job(), job()]);
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    test.store.insert(jobs).await.unwrap();
    let [first, fails, blocking] = [test.claimed(ids[0]).await, test.claimed(ids[2]).await, test.claimed(ids[3]).await];
    // The only flusher waits for a row, so that the next writes make one batch. Another row stays locked.
    let (mut other, mut another) = (test.mysql().await, test.mysql().await);
    let (mut blocker, mut locked) = (other.begin().await.unwrap(), another.begin().await.unwrap());
    let lock = "SELECT id FROM owed WHERE id = ? FOR UPDATE";
    sqlx::query(lock).bind(blocking.id.uuid()).execute(&mut *blocker).await.unwrap();
    sqlx::query(lock).bind(fails.id.uuid()).execute(&mut *locked).await.unwrap();
    let settle = |settlement: Settlement| {
        let store = test.store.clone();
        handed_in(async move { store.settle(settlement).await.unwrap() })
    };
    let front = settle(settlement(&blocking, Verdict::Succeeded)).await;
    test.until_said("DELETE FROM owed", 1).await;
    let success = handed_in({
        let (store, claimant) = (test.store.clone(), test.claimant.clone());
        let success = settlement(&first, Verdict::Succeeded);
        async move { store.settle_and_claim_next(success, &claimant).await.unwrap() }
    });
    let success = success.await;
    let failure = settle(settlement(&fails, Verdict::Failed)).await;
    blocker.commit().await.unwrap();
    assert!(matches!(front.await.unwrap(), Settled::Done { .. }));
    let (settled, next) = success.await.unwrap();
    let Settled::Done { state: State::Completed, released, .. } = settled else { panic!("{settled:?}") };
    let Some(Claim::Won(next)) = next else { panic!("the next job was claimed, and then given back: {next:?}") };
    assert_eq!((next.id, released), (ids[1], vec![]));
    assert!(!failure.is_finished());
    locked.commit().await.unwrap();
    assert!(matches!(failure.await.unwrap(), Settled::Done { .. }));
    assert_eq!(test.store.unanswered_claims(), 0);
    assert_eq!(test.succeed(&next).await, []);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_waits_for_another_row_locks_no_tally() {
    let test = TestStore::start().await;
    // The next job of its order key, whether this claims it or only lets it go.
    for claims_next in [true, false] {
        let jobs = in_order(2);
        let [first, second] = [jobs[0].id, jobs[1].id];
        test.store.insert(jobs).await.unwrap();
        let (claimed, store, claimant) = (test.claimed(first).await, test.store.clone(), test.claimant.clone());
        let mut operator = test.mysql().await;
        let held = hold(&mut operator, second).await;
        let end = tokio::spawn(async move {
            let success = settlement(&claimed, Verdict::Succeeded);
            match claims_next {
                true => store.settle_and_claim_next(success, &claimant).await.unwrap(),
                false => (store.settle(success).await.unwrap(), None),
            }
        });
        test.until_said("UPDATE owed", 1).await;
        assert!(!test.is_a_tally_locked().await, "claims: {claims_next}");
        held.rollback().await.unwrap();
        let (settled, next) = end.await.unwrap();
        assert!(matches!(settled, Settled::Done { state: State::Completed, .. }), "{settled:?}");
        let next = match next {
            Some(Claim::Won(next)) => *next,
            None => test.claimed(second).await,
            other => panic!("{other:?}"),
        };
        assert_eq!(test.succeed(&next).await, []);
    }
    // A slot of a limit.
    test.set_concurrency(1).await;
    let claimed = test.claimed(test.insert_limited("a", 1).await[0]).await;
    let mut other = test.mysql().await;
    let mut held = other.begin().await.unwrap();
    let lock = "SELECT job_id FROM limit_slots WHERE limit_name = 'l' AND limit_key = 'a' AND job_id = ? FOR UPDATE";
    sqlx::query(lock).bind(claimed.id.uuid()).execute(&mut *held).await.unwrap();
    let end = tokio::spawn({
        let (store, success) = (test.store.clone(), settlement(&claimed, Verdict::Succeeded));
        async move { store.settle(success).await.unwrap() }
    });
    test.until_said("DELETE s FROM limit_slots", 1).await;
    assert!(!test.is_a_tally_locked().await);
    held.rollback().await.unwrap();
    assert!(matches!(end.await.unwrap(), Settled::Done { state: State::Completed, .. }));
    assert_eq!(test.count("SELECT CAST(SUM(n) AS SIGNED) FROM tallies").await, 5);
    test.store.sweep_limits(LimitSweep::default(), false, |_| {}).await.unwrap();
    test.stop().await;
}

/// Otherwise it would hold up what other processes write, for as long as its connection lives.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_stalls_before_a_commit_locks_no_tally() {
    let (name, url) = migrated_database().await;
    let proxy = Proxy::start(&url).await;
    let test = TestStore::at(name, url, proxy.url()).await;
    for case in ["an attempt", "a cancel"] {
        let one = job();
        let (id, store) = (one.id, test.store.clone());
        test.store.insert(vec![one]).await.unwrap();
        let end = if case == "an attempt" {
            let rejected = settlement(&test.claimed(id).await, Verdict::Rejected);
            proxy.halt_at("COMMIT", 1, Halt::Before);
            tokio::spawn(async move { store.settle(rejected).await.map(drop) })
        } else {
            proxy.halt_at("COMMIT", 1, Halt::Before);
            tokio::spawn(async move { store.cancel(id, &Actor::tickr()).await.map(drop) })
        };
        eventually("the process stalls", || async { proxy.has_halted().then_some(()) }).await;
        assert!(!test.is_a_tally_locked().await, "{case}");
        test.kill_sessions().await;
        proxy.let_in();
        end.await.unwrap().unwrap();
    }
    assert_eq!(test.count("SELECT CAST(SUM(n) AS SIGNED) FROM tallies").await, 2);
    test.stop().await;
}

impl TestStore {
    /// Lock the key `a` of the limit `l` with this session, as a process that froze within a claim.
    async fn lock_key(&self, session: &mut MySqlConnection) {
        for sql in [
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
            "BEGIN",
            "SELECT limit_key FROM limit_keys WHERE limit_name = 'l' AND limit_key = 'a' FOR UPDATE",
        ] {
            session.execute(sql).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_slots_of_a_locked_key_delay_the_verdicts_of_no_other_key() {
    let (name, url) = migrated_database().await;
    let proxy = Proxy::start(&url).await;
    let test = TestStore::with_flushers(name, url, proxy.url(), 1).await;
    test.set_concurrency(1).await;
    let of_a = test.claimed(test.insert_limited("a", 1).await[0]).await;
    let of_b = test.claimed(test.insert_limited("b", 1).await[0]).await;
    let mut session = test.mysql().await;
    test.lock_key(&mut session).await;
    // The connection that is about to wait for the key falls silent, so the wait has no end.
    proxy.silent_from("SET @tickr_lock_wait");
    let fail = |claimed: &Claimed| {
        let (store, failure) = (test.store.clone(), settlement(claimed, Verdict::Failed));
        tokio::spawn(async move { store.settle(failure).await.unwrap() })
    };
    let waits = fail(&of_a);
    eventually("a transaction waits for the key", || async { (proxy.cuts() == 1).then_some(()) }).await;
    let settled = fail(&of_b).await.unwrap();
    assert!(matches!(settled, Settled::Done { state: State::Retrying, .. }), "{settled:?}");
    // Behind that wait, the verdict would be told after five seconds, and its slot would not be free.
    assert_eq!(test.count("SELECT COUNT(*) FROM limit_slots WHERE limit_key = 'b'").await, 0);
    session.execute("ROLLBACK").await.unwrap();
    test.kill_sessions().await;
    assert!(matches!(waits.await.unwrap(), Settled::Done { state: State::Retrying, .. }));
    eventually("the other slot is free", || async { (test.slots().await == (0, 0, 0)).then_some(()) }).await;
    test.stop().await;
}

/// The run without an answer has counted the call, and only that run's next one knows it.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_to_the_end_of_a_call_counts_it_once_also_while_its_key_is_locked() {
    let (name, url) = migrated_database().await;
    let proxy = Proxy::start(&url).await;
    let test = TestStore::at(name, url, proxy.url()).await;
    let limit = Limit {
        name: "l".parse().unwrap(),
        kind: None,
        queue: None,
        shared_by: SharedBy::Key,
        fair: false,
        breaker: Some(Breaker { failures: 5, pause_ms: 1_000, max_pause_ms: 1_000 }),
        bounds: Bounds { concurrency: Some(1), ..Bounds::default() },
        overrides: BTreeMap::new(),
    };
    test.write_limit(limit).await;
    test.mysql().await.execute("UPDATE limits SET counted = TRUE").await.unwrap();
    test.store.follow_limits(&Arc::new(test.store.limits().await.unwrap()), Instant::now());
    let claimed = test.claimed(test.insert_limited("a", 1).await[0]).await;
    let failure = Settlement { call: Some(CallOutcome::Failed), ..settlement(&claimed, Verdict::Failed) };
    proxy.cut_commit_of_and_hold("DELETE s FROM limit_slots");
    let store = test.store.clone();
    let end = tokio::spawn(async move { store.settle(failure).await.unwrap() });
    eventually("the answer is lost", || async { (proxy.cuts() == 1).then_some(()) }).await;
    // It waits until that COMMIT has ended.
    let mut session = test.mysql().await;
    test.lock_key(&mut session).await;
    proxy.let_in();
    test.until_said("SELECT limit_name, limit_key FROM limit_keys", 1).await;
    session.execute("ROLLBACK").await.unwrap();
    assert!(matches!(end.await.unwrap(), Settled::Done { state: State::Retrying, .. }));
    assert_eq!(test.slots().await, (0, 0, 0));
    assert_eq!(test.count("SELECT CAST(failures AS SIGNED) FROM limit_keys WHERE limit_key = 'a'").await, 1);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_to_a_claim_a_cancel_a_retry_or_a_reap_changes_nothing() {
    let (name, url) = migrated_database().await;
    let proxy = Proxy::start(&url).await;
    let test = TestStore::at(name, url, proxy.url()).await;
    let jobs: Vec<NewJob> = (0..4).map(|_| job()).collect();
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    test.store.insert(jobs).await.unwrap();

    // The job is claimed once, under the token of the transaction whose answer was lost. One such transaction was
    // rolled back, the other was not.
    for (id, text) in ids.iter().zip(["BEGIN;UPDATE owed FORCE INDEX", "INSERT INTO claim_batches"]) {
        proxy.cut_after(text);
        let claimed = test.claimed(*id).await;
        assert_eq!((claimed.number, claimed.attempt), (1, 1));
        let seen: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM owed WHERE id = ? AND token = ? AND attempt = 1")
            .bind(id.uuid())
            .bind(claimed.token.uuid())
            .fetch_one(&mut test.mysql().await)
            .await
            .unwrap();
        assert_eq!(seen, 1);
    }
    assert_eq!(proxy.cuts(), 2);

    // A cancel of a waiting job, of a running job, and of a job that is over.
    for (id, answer) in [
        (ids[2], ActionOutcome::Done(State::Cancelled)),
        (ids[0], ActionOutcome::StopRequested),
        (ids[3], ActionOutcome::Done(State::Cancelled)),
        (JobId::new(), ActionOutcome::Missing),
    ] {
        proxy.cut_after("COMMIT");
        assert_eq!(test.store.cancel(id, &Actor::tickr()).await.unwrap(), answer);
    }
    assert_eq!(proxy.cuts(), 6);
    assert_eq!(test.count("SELECT COUNT(*) FROM attempts WHERE end_state = 'cancelled'").await, 2);
    assert_eq!(test.count("SELECT n FROM (SELECT CAST(SUM(n) AS SIGNED) AS n FROM tallies) t").await, 2);

    // The job is retried once.
    proxy.cut_after("COMMIT");
    assert!(
        matches!(test.store.retry(ids[2], &Actor::tickr()).await.unwrap(), ActionOutcome::Waits(receipt) if receipt.id == ids[2])
    );
    proxy.cut_after("COMMIT");
    assert!(
        matches!(test.store.run_now(ids[2], &Actor::tickr()).await.unwrap(), ActionOutcome::Waits(receipt) if receipt.id == ids[2])
    );
    assert_eq!(proxy.cuts(), 8);
    assert_eq!(test.count("SELECT COUNT(*) FROM owed WHERE state = 'waiting' AND attempt = 1 AND spared = 1").await, 1);
    assert_eq!(test.count("SELECT CAST(SUM(n) AS SIGNED) FROM tallies").await, 1);

    // The attempt is lost once.
    test.mysql()
        .await
        .execute("UPDATE owed SET lease_until = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND WHERE state = 'executing'")
        .await
        .unwrap();
    let lapsed = test.lapsed().await;
    assert_eq!(lapsed.len(), 2);
    proxy.cut_after("COMMIT");
    test.reap(lapsed).await;
    assert_eq!(proxy.cuts(), 9);
    assert_eq!(test.count("SELECT COUNT(*) FROM attempts WHERE verdict = 'lost'").await, 2);
    test.until_no_transaction_is_open().await;
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_was_given_up_is_rolled_back_or_given_back_and_burns_nothing() {
    let (name, url) = migrated_database().await;
    let proxy = Proxy::start(&url).await;
    let test = TestStore::at(name, url, proxy.url()).await;
    let jobs: Vec<NewJob> = (0..2).map(|_| NewJob { max_attempts: 1, ..job() }).collect();
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    test.store.insert(jobs).await.unwrap();

    // The write was carried out, and its transaction ends with the connection.
    proxy.cut_and_refuse("BEGIN;UPDATE owed FORCE INDEX");
    assert!(test.claimant.claim(ids[0], default_queue()).await.is_err());
    proxy.let_in();
    assert_eq!(test.store.unanswered_claims(), 1);
    assert!(test.store.give_back_unanswered().await.unwrap().is_empty());
    assert_eq!(test.count("SELECT COUNT(*) FROM owed WHERE state = 'waiting' AND attempt = 0").await, 2);
    assert_eq!(test.count("SELECT COUNT(*) FROM attempts").await, 0);

    // The claim was committed and no answer came, so no handler was started.
    proxy.cut_and_refuse("INSERT INTO claim_batches");
    assert!(test.claimant.claim(ids[1], default_queue()).await.is_err());
    proxy.let_in();
    assert_eq!(test.count("SELECT COUNT(*) FROM owed WHERE state = 'executing'").await, 1);
    let given: Vec<JobId> = test.store.give_back_unanswered().await.unwrap().iter().map(|given| given.id).collect();
    assert_eq!((given, test.store.unanswered_claims()), (vec![ids[1]], 0));
    assert_eq!(test.count("SELECT COUNT(*) FROM attempts WHERE verdict = 'interrupted'").await, 1);
    assert_eq!(proxy.cuts(), 2);
    // Both jobs still have their only attempt.
    for id in ids {
        let claimed = test.claimed(id).await;
        assert_eq!(claimed.attempt, 1);
        let done = test.store.settle(settlement(&claimed, Verdict::Succeeded)).await.unwrap();
        assert!(matches!(done, Settled::Done { state: State::Completed, .. }));
    }
    test.until_no_transaction_is_open().await;
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_of_the_pool_and_of_the_batches_are_read_committed() {
    let test = TestStore::start().await;
    let server: String = sqlx::query_scalar("SELECT VERSION()").fetch_one(&mut test.mysql().await).await.unwrap();
    if !server.contains("MariaDB") {
        // MySQL 9 cannot list transactions while a statement contains binary data (error 3854). The same statement sets
        // up the sessions on both servers.
        return test.stop().await;
    }
    let accepted = test.store.insert(vec![job()]).await.unwrap();
    let claimed = test.claimed(accepted[0].id).await;
    // Another session holds the row, so that both calls stop in the middle of their transactions.
    let mut holder = test.mysql().await;
    let mut held = holder.begin().await.unwrap();
    held.execute("SELECT * FROM owed FOR UPDATE").await.unwrap();
    let cancel = tokio::spawn({
        let store = test.store.clone();
        async move { store.cancel(claimed.id, &Actor::tickr()).await }
    });
    let settle = tokio::spawn({
        let (store, settlement) = (test.store.clone(), settlement(&claimed, Verdict::Succeeded));
        async move { store.settle(settlement).await }
    });
    let levels = eventually("both wait for the row", || async {
        let mut open = transactions(&test.url).await;
        open.retain(|(state, _)| state == "LOCK WAIT");
        let levels: Vec<String> = open.into_iter().map(|(_, level)| level).collect();
        (levels.len() == 2).then_some(levels)
    })
    .await;
    held.rollback().await.unwrap();
    assert_eq!(levels, ["READ COMMITTED"; 2]);
    cancel.await.unwrap().unwrap();
    settle.await.unwrap().unwrap();
    assert_eq!(test.count("SELECT COUNT(*) FROM attempts WHERE end_state = 'completed'").await, 1);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn times_are_utc_on_a_server_that_lives_elsewhere() {
    let options = server_options();
    let own = Services::start(&options.mysql_flag("--default-time-zone=+13:00")).unwrap();
    let url = own.mysql_url("kiritimati");
    Store::create_database(&url).await.unwrap();
    let test = TestStore::at("kiritimati".into(), url.clone(), url).await;
    let accepted = test.store.insert(vec![job()]).await.unwrap();
    let claimed = test.claimed(accepted[0].id).await;
    for moment in [accepted[0].created_at, accepted[0].execute_at, claimed.started_at] {
        let off = (chrono::Utc::now() - moment).num_seconds().abs();
        assert!(off < 60, "{off} s");
    }
    // The server understands a time from a caller in the same way.
    let due = chrono::Utc::now() + chrono::TimeDelta::hours(1);
    let later = test.store.insert(vec![NewJob { due: Due::At(due), ..job() }]).await.unwrap();
    let ms = test.count("SELECT MAX(TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(6), execute_at)) FROM owed").await;
    assert!((3_590..=3_600).contains(&ms), "{ms} s");
    assert!(matches!(test.claimant.claim(later[0].id, default_queue()).await.unwrap(), Claim::NotDue(_)));
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_shows_no_more_busy_workers_than_it_has() {
    let test = TestStore::start().await;
    let attempt = || LiveAttempt {
        id: JobId::new(),
        token: AttemptToken::new(),
        progress: None,
        leased: std::time::Instant::now(),
        has_finish_key: false,
    };
    let live: Vec<LiveAttempt> = std::iter::repeat_with(attempt).take(3).collect();
    // The process of a suspect has no workers of its own and shows its one job.
    for (workers, live, busy) in [(2, &live[..], 2), (8, &live[..], 3), (0, &live[..1], 1)] {
        let mut heartbeat = test.store.heartbeat_connection();
        let row = RunnerRow {
            id: RunnerId::new_for_host("test"),
            version: "0",
            kinds: Vec::new(),
            editions: Editions { options: Edition::for_options(), kinds: BTreeMap::new() },
            queues: Vec::new(),
            workers,
            lease: Duration::from_secs(5),
            host: "test".into(),
            pid: 1,
            parent: None,
        };
        heartbeat.register(&row).await.unwrap();
        heartbeat.beat(&row.id, row.lease, live, &|_| {}).await.unwrap();
        let query = sqlx::query_scalar("SELECT CAST(busy AS SIGNED) FROM runners WHERE id = ?").bind(row.id.as_str());
        let shown: i64 = query.fetch_one(&mut test.mysql().await).await.unwrap();
        assert_eq!(shown, busy, "{workers} workers");
    }
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_batch_takes_few_requests() {
    let (name, url) = migrated_database().await;
    let proxy = Proxy::start(&url).await;
    let test = TestStore::with_flushers(name, url, proxy.url(), 1).await;
    let warm = job();
    test.store.insert(vec![warm.clone()]).await.unwrap();
    let claimed = test.claimed(warm.id).await;
    test.store.settle(settlement(&claimed, Verdict::Succeeded)).await.unwrap();
    // The fewest requests of each sort. A connection that rested for a second, such as while the machine stood still, is
    // tried first.
    let mut fewest = [usize::MAX; 4];
    for _ in 0..4 {
        let delayed = NewJob { due: Due::After(Duration::from_secs(3_600)), ..job() };
        let now = job();
        let mut before = proxy.requests();
        let mut took = || {
            // Requests since the last look.
            let requests = proxy.requests();
            requests - std::mem::replace(&mut before, requests)
        };
        let accepted = test.store.insert(vec![now.clone(), job()]).await.unwrap();
        let due_at_once = took();
        test.store.insert(vec![job(), delayed]).await.unwrap();
        let with_a_due_time = took();
        let claimed = test.claimed(now.id).await;
        let claim = took();
        assert_eq!((claimed.execute_at, claimed.created_at), (accepted[0].execute_at, accepted[0].created_at));
        test.store.settle(settlement(&claimed, Verdict::Succeeded)).await.unwrap();
        for (fewest, took) in fewest.iter_mut().zip([due_at_once, with_a_due_time, claim, took()]) {
            *fewest = took.min(*fewest);
        }
    }
    // Jobs that are due at once are written and committed in one request. Other due times follow from the time of the
    // server, which is read first. A claim and a success take two.
    assert_eq!(fewest, [1, 2, 2, 2]);
    let odd = "SELECT COUNT(*) FROM jobs WHERE execute_at > created_at OR execute_at < created_at - INTERVAL 1000 MICROSECOND";
    assert_eq!(test.count(odd).await, 4, "only the delayed jobs");
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_the_network_forgot_while_it_rested_costs_a_second() {
    let (name, url) = migrated_database().await;
    let proxy = Proxy::start(&url).await;
    let test = TestStore::with_flushers(name, url, proxy.url(), 1).await;
    test.store.insert(vec![job()]).await.unwrap();
    // tickr trusts a connection while it is busy, and tests it after a second without use.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    proxy.forget_connections();
    let (machine, asked) = (Pulse::at(&test.url).await, tokio::time::Instant::now());
    test.store.insert(vec![job()]).await.unwrap();
    machine.assert_within(Duration::from_secs(8), asked, "an insert over a forgotten connection");
    assert_eq!(test.count("SELECT COUNT(*) FROM owed").await, 2);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_survives_a_line_that_falls_silent_at_any_of_its_steps() {
    let test = TestStore::start().await;
    let steps = ["SET SESSION", "SELECT UTC_TIMESTAMP", "SHOW VARIABLES", "SELECT VERSION", "SELECT version"];
    let starts = steps.map(async |step| {
        let proxy = Proxy::start(&test.url).await;
        proxy.silent_from(step);
        let settings = StoreSettings { url: proxy.url(), connections: 2, flushers: 1, table_prefix: table_prefix() };
        let start = async {
            let store = Store::connect(&settings, DEADLINE).await?;
            store.durability().await?;
            store.migrate().await?;
            Ok::<_, tickr::store::StoreError>(store)
        };
        let store = tokio::time::timeout(2 * DEADLINE, start).await.expect(step).expect(step);
        assert_eq!(proxy.cuts(), 1, "{step} was never sent");
        store.close().await;
    });
    futures_util::future::join_all(starts).await;
    test.stop().await;
}

/// Make an attempt of this job that another system may finish within an hour, reporting within a minute. Return it, and
/// the runner that holds it.
async fn deferrable(test: &TestStore, id: JobId) -> (Claimed, RunnerId) {
    let claimed = test.claimed(id).await;
    let deferral = Deferral { within: Duration::from_secs(3_600), report_within: Some(Duration::from_secs(60)) };
    let mut key = [0; 32];
    key[..16].copy_from_slice(id.uuid().as_bytes());
    let attempt = (id, claimed.token, claimed.number);
    test.store.store_finish_key(attempt, key, Some(deferral)).await.unwrap();
    let query = sqlx::query_scalar("SELECT CAST(runner AS CHAR) FROM owed WHERE id = ?").bind(id.uuid());
    let runner: String = query.fetch_one(&mut test.mysql().await).await.unwrap();
    (claimed, RunnerId::from_stored(runner))
}

async fn report(test: &TestStore, id: JobId) {
    let mut key = [0; 32];
    key[..16].copy_from_slice(id.uuid().as_bytes());
    let attempt = test.store.deferred_attempt(key).await.unwrap().unwrap();
    assert!(test.store.report_on(&attempt, None, None).await.unwrap().unwrap().until.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_another_system_finishes_is_not_lost_with_a_lease() {
    let test = TestStore::start().await;
    let asked = job();
    let id = asked.id;
    test.store.insert(vec![asked]).await.unwrap();
    let (claimed, runner) = deferrable(&test, id).await;
    let hour = Deferral { within: Duration::from_secs(3_600), report_within: None };
    let attempt = (id, claimed.token, claimed.number);
    assert!(test.store.defer(attempt, hour, (Arc::default(), None), (None, None)).await.unwrap());
    // The heartbeat listed the attempt before its handler had the key, and renews its lease after it was deferred.
    let leased = Instant::now();
    let live = LiveAttempt { id, token: claimed.token, progress: None, leased, has_finish_key: false };
    let lease = Duration::from_secs(30);
    let mut heartbeat = test.store.heartbeat_connection();
    heartbeat.beat(&runner, lease, std::slice::from_ref(&live), &|_| {}).await.unwrap();
    let later = test.store.unstopped_runners().await.unwrap().reading.moment + chrono::TimeDelta::minutes(10);
    let rule = LapseRule::at(later);
    let lapsed = test.store.walk_owed(None, rule, 1_000).await.unwrap().lapsed;
    assert_eq!(test.reap(lapsed).await, []);
    let page = test.store.lapsed_of(&runner, None, rule, Arc::default()).await.unwrap();
    assert!(page.lapsed.is_empty() && page.open == 0, "{page:?}");
    let death = Death { verdict: Verdict::Lost, error: "its process was killed".into(), policies: Arc::default() };
    assert!(test.store.end_of_child(id, runner, death).await.unwrap().is_none());
    let settled = test.store.settle(settlement(&claimed, Verdict::Succeeded)).await.unwrap();
    assert!(matches!(settled, Settled::Done { .. }), "{settled:?}");
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_that_are_not_reported_on_time_out_also_while_a_long_lease_is_renewed() {
    let test = TestStore::start().await;
    // As many as one call ends.
    let jobs: Vec<NewJob> = (0..100).map(|_| job()).collect();
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    test.store.insert(jobs).await.unwrap();
    let (mut live, mut holder) = (Vec::new(), None);
    for id in &ids {
        let (claimed, runner) = deferrable(&test, *id).await;
        report(&test, *id).await;
        let leased = Instant::now();
        live.push(LiveAttempt { id: *id, token: claimed.token, progress: None, leased, has_finish_key: true });
        holder = Some(runner);
    }
    let mut heartbeat = test.store.heartbeat_connection();
    heartbeat.beat(&holder.unwrap(), Duration::from_secs(300), &live, &|_| {}).await.unwrap();
    let mut mysql = test.mysql().await;
    mysql.execute("UPDATE deferred_attempts SET look_at = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND").await.unwrap();
    let end = async || {
        let (ended, more) = test.store.end_overdue_attempts(Arc::default()).await.unwrap();
        (ended.len(), more)
    };
    // A report that is under way may still move the time of each of them.
    let mut tx = mysql.begin().await.unwrap();
    tx.execute("SELECT id FROM owed FOR UPDATE").await.unwrap();
    assert_eq!(end().await, (0, false), "the next look comes after a pause");
    tx.rollback().await.unwrap();
    assert_eq!(end().await, (100, true));
    assert_eq!(end().await, (0, false));
    assert_eq!(test.count("SELECT COUNT(*) FROM attempts WHERE verdict = 'timed_out'").await, 100);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_whose_row_another_session_locks_waits_for_it_with_no_order_key_locked() {
    let test = TestStore::start().await;
    let job = NewJob { unique_key: Some("u".to_owned()), ..in_order(1).pop().unwrap() };
    let row = job.id.uuid();
    let mut mysql = test.mysql().await;
    let insert = sqlx::query("INSERT INTO tickr_outbox (id, kind, payload) VALUES (?, 'noop', '{}')").bind(row);
    insert.execute(&mut mysql).await.unwrap();
    // Another runner is moving it.
    let mut tx = mysql.begin().await.unwrap();
    tx.execute("SELECT id FROM tickr_outbox FOR UPDATE").await.unwrap();
    let moved = test.store.move_keyed_row(row, job.clone(), WaitsFor::NoOrderKey).await.unwrap();
    assert!(matches!(moved.row, KeyedRow::Locked(None)) && !moved.waited, "{moved:?}");
    tx.rollback().await.unwrap();
    let moved = test.store.move_keyed_row(row, job, WaitsFor::NoOrderKey).await.unwrap();
    assert!(matches!(moved.row, KeyedRow::Moved(_)), "{moved:?}");
    assert_eq!(test.count("SELECT COUNT(*) FROM tickr_outbox").await, 0);
    test.stop().await;
}

impl TestStore {
    async fn create_batch(&self, parent: Option<BatchId>, closed: bool) -> BatchId {
        let id = BatchId::new();
        let new = NewBatch { id, name: None, parent, callbacks: Vec::new(), closed, jobs: Vec::new() };
        let word: ResponseBuilder<BatchCreated> = Arc::new(|_| Answer { status: 201, body: "{}".into() });
        let created = self.store.create_batch(new, &Actor::tickr(), None, word).await.unwrap();
        assert!(matches!(created, IdempotentOutcome::First { .. }));
        id
    }

    async fn accept(&self, jobs: Vec<NewJob>) {
        let accepted = self.store.insert_unique(Producer::tickr(), jobs).await.unwrap();
        assert!(matches!(accepted, EnqueueOutcome::Accepted(_)), "{accepted:?}");
    }

    /// Tell all children of parents that ended. Return the number of looks that it took.
    async fn tell_all(&self) -> u32 {
        let mut looks = 0;
        while let Some(last) = self.store.last_ended_parent().await.unwrap() {
            looks += 1;
            while self.store.tell_children(last).await.unwrap().more {
                looks += 1;
            }
        }
        looks
    }
}

/// One by one, the cancels of these children would take longer than one transaction may last.
#[tokio::test(flavor = "multi_thread")]
async fn children_of_a_parent_that_did_not_complete_are_cancelled_also_when_mysql_answers_slowly() {
    let (name, url) = migrated_database().await;
    let proxy = Proxy::start(&url).await;
    let test = TestStore::at(name, url, proxy.url()).await;
    let (ended, fine) = (job(), job());
    test.store.insert(vec![ended.clone(), fine.clone()]).await.unwrap();
    let batch = test.create_batch(None, false).await;
    let child = |parent: &NewJob, key: usize| {
        let options = JobOptions { after: vec![parent.id], batch: Some(batch), ..JobOptions::default() };
        NewJob { options, ..keyed(&format!("k{key}")) }
    };
    test.accept((0..100).map(|n| child(&ended, n)).chain([child(&fine, 100)]).collect()).await;
    let outcome = test.store.cancel(ended.id, &Actor::tickr()).await.unwrap();
    assert_eq!(outcome, ActionOutcome::Done(State::Cancelled));
    let claimed = test.claimed(fine.id).await;
    test.store.settle(settlement(&claimed, Verdict::Succeeded)).await.unwrap();
    let last = test.store.last_ended_parent().await.unwrap().unwrap();
    proxy.delay(Duration::from_millis(30));
    let told = test.store.tell_children(last).await.unwrap();
    proxy.delay(Duration::ZERO);
    assert_eq!((told.cancelled.len(), told.released.len(), told.left.len()), (100, 1, 0), "{told:?}");
    let lines =
        "SELECT COUNT(*) FROM attempts WHERE end_state = 'cancelled' AND error LIKE 'its parent % was cancelled'";
    assert_eq!(test.count(lines).await, 100);
    assert_eq!(test.count("SELECT CAST(SUM(cancelled) AS SIGNED) FROM batch_changes").await, 100);
    // That of the child that is let go.
    assert_eq!(test.count("SELECT COUNT(*) FROM unique_keys").await, 1);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn children_that_are_added_to_a_failed_parent_are_told_without_a_look_at_its_other_ones() {
    let test = TestStore::start().await;
    let parent = job();
    test.store.insert(vec![parent.clone()]).await.unwrap();
    test.store.cancel(parent.id, &Actor::tickr()).await.unwrap();
    let child = |on_parent_failure| {
        let options = JobOptions { after: vec![parent.id], on_parent_failure, ..JobOptions::default() };
        NewJob { options, ..job() }
    };
    let some = |count: usize| (0..count).map(|_| child(OnParentFailure::Cancel)).collect::<Vec<_>>();
    // More than one look takes. These wait until an operator has mended the parent.
    test.accept((0..600).map(|_| child(OnParentFailure::Hold)).collect()).await;
    assert_eq!(test.tell_all().await, 2);
    for _ in 0..5 {
        test.accept(some(1)).await;
    }
    assert_eq!(test.tell_all().await, 1, "looks at the five new children");
    // The walk for the first of these requests reaches the children of all.
    for _ in 0..3 {
        test.accept(some(300)).await;
    }
    assert_eq!(test.tell_all().await, 2, "looks at the children of three requests");
    // Those that were told are cancelled.
    assert_eq!(test.count("SELECT COUNT(*) FROM blocked_jobs").await, 600);
    test.stop().await;
}

/// Nothing makes sure that a second look comes: the runner may die between the two.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_whose_last_changes_fill_one_look_ends_with_that_look() {
    let test = TestStore::start().await;
    let id = BatchId::new();
    let bytes = format!("UNHEX('{}')", id.uuid().simple());
    let changes = vec![format!("({bytes}, 0, 0, 0, 0)"); 1_999].join(",");
    let mut mysql = test.mysql().await;
    for sql in [
        format!(
            "INSERT INTO batches (id, actor, created_at, closed_at) \
             VALUES ({bytes}, 'test', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))"
        ),
        format!(
            "INSERT INTO batch_changes (batch_id, total, completed, failed, cancelled) \
             VALUES ({bytes}, 1, 1, 0, 0), {changes}"
        ),
    ] {
        mysql.execute(AssertSqlSafe(sql)).await.unwrap();
    }
    let counted = test.store.count_batch(id, true).await.unwrap().unwrap();
    assert!(counted.ended && !counted.more, "{counted:?}");
    assert_eq!(test.count("SELECT COUNT(*) FROM batch_changes").await, 0);
    assert_eq!(test.count("SELECT COUNT(*) FROM batches WHERE succeeded_at IS NOT NULL").await, 1);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_another_runner_counts_is_left_without_a_wait() {
    let test = TestStore::start().await;
    let [id, removed] = [BatchId::new(), BatchId::new()];
    let [bytes, of_removed] = [id, removed].map(|id| format!("UNHEX('{}')", id.uuid().simple()));
    let mut runner = test.mysql().await;
    for sql in [
        format!("INSERT INTO batches (id, actor, created_at) VALUES ({bytes}, 'test', UTC_TIMESTAMP(6))"),
        format!(
            "INSERT INTO batch_changes (batch_id, total, completed, failed, cancelled) \
             VALUES ({bytes}, 1, 0, 0, 0), ({of_removed}, 1, 0, 0, 0)"
        ),
        "BEGIN".to_owned(),
        format!("SELECT id FROM batches WHERE id = {bytes} FOR UPDATE"),
    ] {
        runner.execute(AssertSqlSafe(sql)).await.unwrap();
    }
    let mut took = Vec::new();
    for _ in 0..3 {
        let asked = Instant::now();
        assert!(test.store.count_batch(id, false).await.unwrap().is_none());
        took.push(asked.elapsed());
    }
    // Each wait for the lock lasts 5 s. A busy machine may delay one of the calls.
    assert!(took.iter().min().unwrap() < &Duration::from_secs(3), "{took:?}");
    // The changes of a batch that was removed go.
    assert!(test.store.count_batch(removed, false).await.unwrap().is_some());
    assert_eq!(test.count("SELECT COUNT(*) FROM batch_changes").await, 1);
    runner.execute("ROLLBACK").await.unwrap();
    assert!(test.store.count_batch(id, false).await.unwrap().is_some());
    assert_eq!(test.count("SELECT COUNT(*) FROM batch_changes").await, 0);
    assert_eq!(test.count("SELECT total FROM batches").await, 1);
    // Its job was made up.
    runner.execute("DELETE FROM batches").await.unwrap();
    test.stop().await;
}

/// One runner has read the batch and not yet its changes, while another one counts and a job is added.
#[tokio::test(flavor = "multi_thread")]
async fn two_runners_that_count_a_batch_at_once_lose_no_change_of_it() {
    let (name, url) = migrated_database().await;
    let proxy = Proxy::start(&url).await;
    let test = TestStore::at(name, url, proxy.url()).await;
    let id = BatchId::new();
    let bytes = format!("UNHEX('{}')", id.uuid().simple());
    let mut app = test.mysql().await;
    let change = format!(
        "INSERT INTO batch_changes (batch_id, total, completed, failed, cancelled) VALUES ({bytes}, 1, 0, 0, 0)"
    );
    let batch = format!("INSERT INTO batches (id, actor, created_at) VALUES ({bytes}, 'test', UTC_TIMESTAMP(6))");
    for sql in [&batch, &change] {
        app.execute(AssertSqlSafe(sql.clone())).await.unwrap();
    }
    proxy.hold_back("SELECT id, total, completed");
    let first = tokio::spawn({
        let store = test.store.clone();
        async move { store.count_batch(id, false).await }
    });
    eventually("the first runner has read the batch", || async { proxy.holds_one_back().then_some(()) }).await;
    let second = test.store.count_batch(id, false).await.unwrap();
    app.execute(AssertSqlSafe(change)).await.unwrap();
    proxy.pass_held_back();
    assert!(first.await.unwrap().unwrap().is_some());
    test.store.count_batch(id, true).await.unwrap();
    assert_eq!(test.count("SELECT COUNT(*) FROM batch_changes").await, 0);
    assert_eq!(test.count("SELECT total FROM batches").await, 2, "the second runner: {second:?}");
    // Its jobs were made up.
    app.execute("DELETE FROM batches").await.unwrap();
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_nested_batch_wakes_the_count_of_its_outer_batch() {
    let test = TestStore::start().await;
    let woken = async || {
        let woken = tokio::time::timeout(Duration::from_secs(10), test.store.batches_changed());
        woken.await.expect("the loop that counts is woken");
    };
    let outer = test.create_batch(None, true).await;
    let nested = test.create_batch(Some(outer), true).await;
    woken().await;
    let counted = test.store.count_batch(nested, true).await.unwrap().unwrap();
    assert!(counted.ended && counted.outer_changed, "{counted:?}");
    woken().await;
    let counted = test.store.count_batch(outer, true).await.unwrap().unwrap();
    assert!(counted.ended && !counted.outer_changed, "{counted:?}");
    test.stop().await;
}
