//! Workers: how many handlers a runner runs at once, and which attempts may be open besides.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::{Executor, MySqlConnection};
use tickr::handlers::{Context, Kind, Output, Registry};
use tokio_util::sync::CancellationToken;

use crate::support::{TestApp, connect, eventually};

/// Verdicts of one worker that may be on their way to MySQL.
const SETTLING: usize = 8;

#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
struct Count {}

impl Kind for Count {
    const NAME: &'static str = "count";
}

/// The handlers of a test: how many have started, how many run, and how many ran at once at the most.
struct Handlers {
    started: AtomicUsize,
    /// The first handlers, in the order of their starts, that do not wait until `open` is cancelled.
    short: AtomicUsize,
    open: CancellationToken,
    run: AtomicUsize,
    most: AtomicUsize,
    /// Transactions that lock the rows of jobs, so that their verdicts cannot be written.
    locks: Mutex<Vec<MySqlConnection>>,
}

impl Default for Handlers {
    fn default() -> Self {
        Self {
            started: AtomicUsize::default(),
            short: AtomicUsize::new(usize::MAX),
            open: CancellationToken::new(),
            run: AtomicUsize::default(),
            most: AtomicUsize::default(),
            locks: Mutex::default(),
        }
    }
}

impl Handlers {
    fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }

    fn started(&self) -> usize {
        self.started.load(Ordering::SeqCst)
    }

    /// Return a registry with handlers that count themselves. With a URL of MySQL, each locks the row of its job before
    /// it returns.
    fn registry(self: &Arc<Self>, mysql: Option<Arc<Mutex<String>>>) -> Registry {
        let mut registry = Registry::new();
        let handlers = Arc::clone(self);
        registry.register(move |_: Count, context: Context| {
            let (handlers, mysql) = (Arc::clone(&handlers), mysql.clone());
            async move {
                let before = handlers.started.fetch_add(1, Ordering::SeqCst);
                handlers.most.fetch_max(handlers.run.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                if let Some(url) = mysql {
                    let url = url.lock().unwrap().clone();
                    let mut lock = connect(&url).await;
                    lock.execute("BEGIN").await.unwrap();
                    let row = sqlx::query("SELECT id FROM owed WHERE id = ? FOR UPDATE");
                    row.bind(context.job_id().uuid()).execute(&mut lock).await.unwrap();
                    handlers.locks.lock().unwrap().push(lock);
                } else if before >= handlers.short.load(Ordering::SeqCst) {
                    handlers.open.cancelled().await;
                } else {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                handlers.run.fetch_sub(1, Ordering::SeqCst);
                Ok(Output::default())
            }
        });
        registry
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_handlers_run_at_once_than_there_are_workers() {
    let handlers = Arc::<Handlers>::default();
    let tickr = TestApp::start_with(|config| config.workers = 8, handlers.registry(None)).await;
    tickr.enqueue_many((0..800).map(|_| json!({"kind": "count"}))).await;
    tickr.until_idle().await;
    assert_eq!(handlers.most(), 8, "never more, and never fewer while jobs wait");
    tickr.assert_each_ran_once(800).await;
    tickr.stop().await;
}

/// Count the claims that are undone from now on: rows of `owed` that wait again with fewer attempts than before.
async fn count_undone(tickr: &TestApp) {
    tickr.sql("CREATE TABLE undone (id INT AUTO_INCREMENT PRIMARY KEY)").await;
    tickr
        .sql(
            "CREATE TRIGGER counts_undone AFTER UPDATE ON owed FOR EACH ROW \
             INSERT INTO undone (id) SELECT NULL FROM DUAL WHERE NEW.attempt < OLD.attempt",
        )
        .await;
}

const EXECUTING: &str = "SELECT COUNT(*) FROM owed WHERE state = 'executing'";
const UNDONE: &str = "SELECT COUNT(*) FROM undone";

#[tokio::test(flavor = "multi_thread")]
async fn jobs_claimed_ahead_wait_again_as_if_unclaimed_when_handlers_become_slow() {
    let handlers = Arc::<Handlers>::default();
    handlers.short.store(500, Ordering::SeqCst);
    let tickr = TestApp::start_with(|config| config.workers = 8, handlers.registry(None)).await;
    count_undone(&tickr).await;
    tickr.enqueue_many((0..800).map(|_| json!({"kind": "count"}))).await;
    // From now on all workers are busy for as long as the test wants, and jobs were claimed ahead for them.
    tickr.until_count("SELECT COUNT(*) > 0 FROM undone", 1).await;
    tickr.until_count(EXECUTING, 8).await;
    assert_eq!(handlers.most(), 8);
    handlers.open.cancel();
    tickr.until_idle().await;
    assert_eq!(handlers.started(), 800, "no handler was started for a job that was given back");
    let once = "SELECT COUNT(*) FROM attempts WHERE number = 1 AND burned = 1 AND verdict = 'succeeded'";
    assert_eq!((tickr.count(once).await, tickr.count("SELECT COUNT(*) FROM attempts").await), (800, 800));
    tickr.sql("DROP TRIGGER counts_undone").await;
    tickr.sql("DROP TABLE undone").await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_on_its_last_attempt_is_claimed_only_when_a_worker_is_free() {
    let handlers = Arc::<Handlers>::default();
    handlers.short.store(700, Ordering::SeqCst);
    let tickr = TestApp::start_with(|config| config.workers = 8, handlers.registry(None)).await;
    count_undone(&tickr).await;
    let ordinary = (0..500).map(|_| json!({"kind": "count"}));
    let last = (0..500).map(|_| json!({"kind": "count", "max_attempts": 1}));
    tickr.enqueue_many(ordinary.chain(last)).await;
    eventually("all workers are busy", || async { (handlers.started() == 708).then_some(()) }).await;
    // A runner that claimed these ahead would hold more of them now, and undo their claims later.
    tickr.until_count(EXECUTING, 8).await;
    let undone = tickr.count(UNDONE).await;
    assert_eq!(undone, 0, "claims of jobs on their last attempt were undone");
    handlers.open.cancel();
    tickr.until_idle().await;
    tickr.assert_each_ran_once(1_000).await;
    tickr.sql("DROP TRIGGER counts_undone").await;
    tickr.sql("DROP TABLE undone").await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_runs_the_next_jobs_while_mysql_writes_the_verdicts_of_the_last_ones() {
    let (handlers, url) = (Arc::<Handlers>::default(), Arc::<Mutex<String>>::default());
    let tickr = TestApp::start_with(
        |config| {
            (config.workers, config.lease) = (1, Duration::from_secs(60));
            config.mysql_url().unwrap().expose().clone_into(&mut url.lock().unwrap());
        },
        handlers.registry(Some(Arc::clone(&url))),
    )
    .await;
    let ids = tickr.enqueue_many((0..SETTLING + 4).map(|_| json!({"kind": "count"}))).await;
    // The last of these keeps the worker, because too many verdicts are on their way.
    eventually("the jobs have started", || async { (handlers.started() == SETTLING + 1).then_some(()) }).await;
    // Longer than any pause of the fetcher.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((handlers.started(), handlers.most()), (SETTLING + 1, 1));
    eventually("all are over", || async {
        // Each handler locks its own row, also those that start now.
        handlers.locks.lock().unwrap().clear();
        tickr.app.broker().store().stats().await.ok()?.owed.is_empty().then_some(())
    })
    .await;
    assert_eq!(handlers.most(), 1);
    tickr.assert_each_ran_once(ids.len().try_into().unwrap()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_counts_against_the_limit_of_its_queue_until_its_verdict_is_written() {
    let (handlers, url) = (Arc::<Handlers>::default(), Arc::<Mutex<String>>::default());
    let tickr = TestApp::start_with(
        |config| {
            (config.workers, config.lease) = (8, Duration::from_secs(60));
            config.mysql_url().unwrap().expose().clone_into(&mut url.lock().unwrap());
        },
        handlers.registry(Some(Arc::clone(&url))),
    )
    .await;
    let one = json!({"concurrency": 1});
    let changed = tickr.patch("/v1/queues/default", one).await;
    assert_eq!(changed.status, 200, "{:#}", changed.body);
    tickr.until_count("SELECT COUNT(*) FROM queue_permits WHERE queue = 'default' AND permits = 1", 1).await;
    let ids = tickr.enqueue_many((0..2).map(|_| json!({"kind": "count"}))).await;
    eventually("the handler has returned", || async { (handlers.locks.lock().unwrap().len() == 1).then_some(()) })
        .await;
    // Longer than any pause of the fetcher and of the loop that adjusts permits.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(handlers.started(), 1, "its verdict is not written, so it is not over");
    handlers.locks.lock().unwrap().clear();
    eventually("the other one starts", || async { (handlers.started() == 2).then_some(()) }).await;
    eventually("both are over", || async {
        handlers.locks.lock().unwrap().clear();
        tickr.app.broker().store().stats().await.ok()?.owed.is_empty().then_some(())
    })
    .await;
    tickr.assert_each_ran_once(ids.len().try_into().unwrap()).await;
    tickr.stop().await;
}
