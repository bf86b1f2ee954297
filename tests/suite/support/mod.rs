//! Shared parts of the tests: servers, a process per test, waiting for events.

mod app;
pub(crate) mod browser;
mod calls;
pub(crate) mod chat;
#[path = "../../chaos/clock.rs"]
pub(crate) mod clock;
pub(crate) mod contract;
pub(crate) mod documents;
mod gate;
pub(crate) mod halted;
mod lease;
pub(crate) mod limits;
pub(crate) mod off_machine;
mod owed;
pub(crate) mod program;
mod proxy;
mod pulse;
pub(crate) mod redis_group;
mod relay;
mod runner;
mod servers;
pub(crate) mod sink;
#[expect(dead_code, reason = "the unit tests of the email kind use the rest")]
pub(crate) mod smtp_sink;
mod sse;
mod suspects;
mod translator;
pub(crate) mod writers;

pub(crate) use app::{Answer, TestApp, answer, draft};
pub(crate) use calls::{call, make_api_key};
pub(crate) use gate::{broken, gated};
pub(crate) use lease::{SHORT_LEASE, bystander, short_lease};
pub(crate) use owed::{Owed, default_queue};
pub(crate) use proxy::{Halt, Proxy};
pub(crate) use pulse::Pulse;
pub(crate) use relay::{Condition, Relay};
pub(crate) use runner::Runner;
pub(crate) use servers::{
    connect, database, drop_database, lasting_addr, migrated_database, server_options, servers, table_prefix,
    unique_name,
};
pub(crate) use sse::{EventStream, Told};
pub(crate) use suspects::make_suspects;
pub(crate) use translator::Translator;

use std::fmt::Display;
use std::future::Future;
use std::time::Duration;

use sqlx::mysql::MySqlRow;
use sqlx::{Connection, Executor, Row};
use tokio::time::Instant;

/// A transaction that is open.
#[derive(Debug)]
pub(crate) struct OpenTransaction {
    pub(crate) id: String,
    pub(crate) state: String,
    pub(crate) isolation: String,
    /// What its session does: `Sleep` if it does nothing.
    pub(crate) command: String,
}

/// Return the open transactions of the database of this URL.
pub(crate) async fn open_transactions(url: &str) -> Vec<OpenTransaction> {
    static ONE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let _alone = ONE_AT_A_TIME.lock().await;
    let rows: Vec<(String, String, String, String)> = eventually("the server tells its transactions", || async {
        // The server answers from a copy, which it renews only if it was not read for a tenth of a second. MySQL 9
        // fails when the copy holds a statement of any session with binary data. Then the next copy may work.
        tokio::time::sleep(Duration::from_millis(120)).await;
        sqlx::query_as(
            "SELECT CAST(t.trx_id AS CHAR), t.trx_state, t.trx_isolation_level, p.command \
             FROM information_schema.innodb_trx t \
             JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id WHERE p.db = DATABASE()",
        )
        .fetch_all(&mut sqlx::MySqlConnection::connect(url).await.unwrap())
        .await
        .ok()
    })
    .await;
    let open = |(id, state, isolation, command)| OpenTransaction { id, state, isolation, command };
    rows.into_iter().map(open).collect()
}

/// Longest wait for an event that should come soon. It is generous, because the machine may be busy. A test that passes
/// does not wait for it.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Wait until at least this many sessions of a database run a statement that begins with this text. Use SHOW
/// PROCESSLIST, because MySQL 9.7 cannot list a statement that contains binary data in information_schema (its error
/// 3854).
pub(crate) async fn until_said(url: &str, database: &str, begins: &str, wanted: usize) {
    let begins = &*tickr::store::with_prefix(&table_prefix(), begins);
    eventually(&format!("{wanted} or more sessions run {begins}"), || async {
        let sessions = connect(url).await.fetch_all("SHOW PROCESSLIST").await.unwrap();
        let says = |row: &MySqlRow| {
            let text = |name| row.try_get_unchecked::<Option<Vec<u8>>, _>(name).unwrap().unwrap_or_default();
            text("db") == database.as_bytes() && text("Info").starts_with(begins.as_bytes())
        };
        (sessions.iter().filter(|row| says(row)).count() >= wanted).then_some(())
    })
    .await;
}

/// Ask repeatedly until `question` returns a value. Fail after the deadline.
pub(crate) async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, question: impl FnMut() -> F) -> T {
    eventually_late(DEADLINE, what, question).await
}

/// Ask repeatedly until `question` returns a value. Fail after the deadline, with the last thing seen instead. On a busy
/// machine many steps take longer than that, so each thing that is seen anew extends it, four times at most.
pub(crate) async fn eventually_seen<T, S: Display, F: Future<Output = Result<T, S>>>(
    what: &str,
    question: impl FnMut() -> F,
) -> T {
    seen_within(DEADLINE, what, question).await
}

/// Do the same as [`eventually`], with a longer deadline, for what other servers do late after the machine stood still.
pub(crate) async fn eventually_late<T, F: Future<Output = Option<T>>>(
    limit: Duration,
    what: &str,
    mut question: impl FnMut() -> F,
) -> T {
    let question = || {
        let answer = question();
        async { answer.await.ok_or("") }
    };
    seen_within(limit, what, question).await
}

pub(crate) async fn seen_within<T, S: Display, F: Future<Output = Result<T, S>>>(
    limit: Duration,
    what: &str,
    mut question: impl FnMut() -> F,
) -> T {
    let began = Instant::now();
    let (mut before, mut deadline) = (None, began + limit);
    loop {
        let seen = match question().await {
            Ok(answer) => return answer,
            Err(seen) => format!("{seen:#}"),
        };
        if before.as_ref() != Some(&seen) {
            deadline = (Instant::now() + limit).min(began + 4 * limit);
        }
        assert!(Instant::now() < deadline, "gave up waiting until {what}; {seen}");
        before = Some(seen);
        pause_after(began.elapsed()).await;
    }
}

/// Pause between two questions of a loop that has asked for this long: a tenth of that time, between 10 and 100 ms. Each
/// question costs the machine a few milliseconds, and a dozen tests ask at the same time.
pub(crate) async fn pause_after(asked_for: Duration) {
    tokio::time::sleep((asked_for / 10).clamp(Duration::from_millis(10), Duration::from_millis(100))).await;
}

/// Call until the answer is neither 429 nor 503, as clients do. On a busy machine, calls that wait for the same lock use
/// all connections for longer than another call waits for one.
pub(crate) async fn while_unavailable(call: impl AsyncFn() -> Answer) -> Answer {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let answer = call().await;
        if !matches!(answer.status, 429 | 503) || Instant::now() > deadline {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Return whether sizes that are promises are tested whole: `TICKR_TEST_FULL` is set. Otherwise a test takes a smaller
/// size, in which what is broken still shows.
pub(crate) fn is_full() -> bool {
    std::env::var_os("TICKR_TEST_FULL").is_some()
}

/// Return an HTTP client. Its TLS implementation has to be chosen first. It trusts no authority: each client would read
/// all authorities of the machine, and tests call plain HTTP. It uses no proxy of the environment, because all servers of
/// tests are on this machine.
pub(crate) fn http() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().tls_certs_only([]).build().unwrap()
}
