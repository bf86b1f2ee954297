//! A whole tickr inside a test, with its own database, key prefix, folders and port.

use std::borrow::Borrow;
use std::fmt::Debug;
use std::future::Future;
use std::ops::RangeBounds;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use reqwest::{Method, RequestBuilder};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection as _, Executor, MySqlConnection};
use tickr::app::App;
use tickr::broker::{Draft, Enqueued};
use tickr::config::Config;
use tickr::engine::Stopped;
use tickr::event::Event;
use tickr::handlers::Registry;
use tickr::index::Health;
use tickr::job::{Due, JobId, State};
use tickr::services::{Options, Services};
use tickr::store::{Store, with_prefix};
use tickr::verify::{VerifySettings, verify};
use tokio_util::sync::CancellationToken;

use super::contract;
use super::halted::{self, Halted};
use super::off_machine::call_to_another_machine;
use super::servers::{connect, drop_database, migrated_database, servers, table_prefix, unique_name};
use super::{DEADLINE, Pulse, eventually, eventually_seen, http, open_transactions, pause_after, until_said};

/// A running tickr. Call `stop` at the end of a test.
pub(crate) struct TestApp {
    pub(crate) app: App,
    pub(crate) config: Config,
    pub(crate) dir: tempfile::TempDir,
    name: String,
    client: reqwest::Client,
    /// Private servers of a test that makes them fail.
    own: Option<Services>,
    /// The test said that Redis is out.
    without_redis: AtomicBool,
}

/// An answer of the API.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) body: Value,
}

impl TestApp {
    pub(crate) async fn start() -> Self {
        Self::start_with(|_| {}, Registry::new()).await
    }

    /// Start with a changed configuration and kinds of the test's own.
    pub(crate) async fn start_with(change: impl FnOnce(&mut Config), own: Registry) -> Self {
        let (name, url) = migrated_database().await;
        Self::start_on(None, name, &url, &servers().redis_url(), change, own).await
    }

    /// Start on a pair of servers that only this test has, and that it may make fail. `before` prepares them.
    pub(crate) async fn start_alone(before: impl FnOnce(&Services), change: impl FnOnce(&mut Config)) -> Self {
        Self::start_alone_as(|options| options, before, change).await
    }

    /// Do the same as [`start_alone`](Self::start_alone), with a MySQL that is started with these flags.
    pub(crate) async fn start_on_servers_with(
        flags: &[&str],
        before: impl FnOnce(&Services),
        change: impl FnOnce(&mut Config),
    ) -> Self {
        let with = |options| flags.iter().fold(options, |options: Options, flag| options.mysql_flag(*flag));
        Self::start_alone_as(with, before, change).await
    }

    /// Do the same as [`start_alone`](Self::start_alone), on servers with other options.
    pub(crate) async fn start_alone_as(
        with: impl FnOnce(Options) -> Options,
        before: impl FnOnce(&Services),
        change: impl FnOnce(&mut Config),
    ) -> Self {
        let options = super::server_options();
        let own = Services::start(&with(options)).unwrap();
        Self::start_with_own(own, before, change, Registry::new()).await
    }

    /// Start on servers that the test has started.
    pub(crate) async fn start_on_own(own: Services, change: impl FnOnce(&mut Config)) -> Self {
        Self::start_with_own(own, |_| {}, change, Registry::new()).await
    }

    /// Start on a pair of servers that only this test has, with these kinds.
    pub(crate) async fn start_alone_with(change: impl FnOnce(&mut Config), kinds: Registry) -> Self {
        let own = Services::start(&super::server_options()).unwrap();
        Self::start_with_own(own, |_| {}, change, kinds).await
    }

    /// Start on servers of the test, in a database that is there.
    pub(crate) async fn start_in(own: Services, name: &str, change: impl FnOnce(&mut Config)) -> Self {
        let (mysql, redis) = (own.mysql_url(name), own.redis_url());
        Self::start_on(Some(own), name.to_owned(), &mysql, &redis, change, Registry::new()).await
    }

    async fn start_with_own(
        own: Services,
        before: impl FnOnce(&Services),
        change: impl FnOnce(&mut Config),
        kinds: Registry,
    ) -> Self {
        let name = unique_name();
        let (mysql, redis) = (own.mysql_url(&name), own.redis_url());
        Store::create_database(&mysql).await.unwrap();
        before(&own);
        Self::start_on(Some(own), name, &mysql, &redis, change, kinds).await
    }

    async fn start_on(
        own: Option<Services>,
        name: String,
        mysql: &str,
        redis: &str,
        change: impl FnOnce(&mut Config),
        kinds: Registry,
    ) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::for_tests(mysql, redis);
        config.table_prefix = table_prefix();
        config.redis_prefix = unique_name();
        config.outbox_dir = Some(dir.path().join("outbox"));
        config.reports_dir = dir.path().join("reports");
        // Many tests write ended jobs of a fixed day in the past. On a slow machine the janitor comes before they are read.
        let decade = Duration::from_secs(3_650 * 86_400);
        (config.retention_completed, config.retention_failed, config.retention_ticks) = (decade, decade, decade);
        config.retention_discarded = decade;
        change(&mut config);
        let app = App::start(&config, kinds).await.unwrap();
        Self { app, config, dir, name, client: http(), own, without_redis: AtomicBool::new(false) }
    }

    /// Return the servers of [`start_alone`](Self::start_alone).
    pub(crate) fn services(&self) -> &Services {
        self.own.as_ref().expect("only a test that started alone may touch its servers")
    }

    /// Start another tickr on the same tables and Redis keys.
    pub(crate) async fn another(&self) -> App {
        self.another_with(|_| {}, Registry::new()).await
    }

    /// Start another tickr on the same tables and Redis keys, with a changed configuration and kinds of its own.
    pub(crate) async fn another_with(&self, change: impl FnOnce(&mut Config), own: Registry) -> App {
        let mut config = self.config.clone();
        change(&mut config);
        App::start(&config, own).await.unwrap()
    }

    /// End the test: check that every promise was kept, and stop the runner.
    pub(crate) async fn stop(self) -> Stopped {
        self.assert_sound().await;
        self.end().await
    }

    /// End a test that broke something on purpose.
    pub(crate) async fn stop_broken(self, why: &str) -> Stopped {
        assert!(!why.is_empty(), "a test that leaves something broken says what");
        self.end().await
    }

    async fn end(self) -> Stopped {
        let stopped = self.app.stop(CancellationToken::new()).await;
        drop_database(self.config.mysql_url().unwrap().expose(), &self.name).await;
        stopped
    }

    /// Stop, and keep the tables and Redis keys as they are.
    pub(crate) async fn halt(self) -> Halted {
        self.assert_sound().await;
        self.halt_broken("asked for by halt, after its check").await
    }

    /// Do the same as [`halt`](Self::halt), after a test broke something on purpose.
    pub(crate) async fn halt_broken(self, why: &str) -> Halted {
        assert!(!why.is_empty(), "a test that leaves something broken says what");
        let Self { app, config, dir, name, .. } = self;
        app.stop(CancellationToken::new()).await;
        Halted::new(config, name, dir).await
    }

    /// Stop, and start again on the same tables and Redis keys.
    pub(crate) async fn restart(self) -> Self {
        self.assert_sound().await;
        let Self { app, config, dir, name, client, own, without_redis } = self;
        app.stop(CancellationToken::new()).await;
        let app = App::start(&config, Registry::new()).await.unwrap();
        Self { app, config, dir, name, client, own, without_redis }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.app.addr())
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        answer(self.request(Method::GET, path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: impl Borrow<Value>) -> Answer {
        answer(self.request(Method::POST, path).json(body.borrow())).await
    }

    pub(crate) async fn put(&self, path: &str, body: impl Borrow<Value>) -> Answer {
        answer(self.request(Method::PUT, path).json(body.borrow())).await
    }

    pub(crate) async fn patch(&self, path: &str, body: impl Borrow<Value>) -> Answer {
        answer(self.request(Method::PATCH, path).json(body.borrow())).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        answer(self.request(Method::DELETE, path)).await
    }

    /// Begin a request, for headers or a body that is no JSON. [`answer`] sends it.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, self.url(path))
    }

    /// Begin a request with an API key.
    pub(crate) fn with_key(&self, key: &str, method: Method, path: &str) -> RequestBuilder {
        self.request(method, path).bearer_auth(key)
    }

    /// Enqueue through the API. Return the id of the new job.
    pub(crate) async fn enqueue(&self, job: Value) -> JobId {
        let answer = self.post("/v1/jobs", job).await;
        assert_eq!(answer.status, 201, "{:#}", answer.body);
        answer.body["id"].as_str().unwrap().parse().unwrap()
    }

    /// Enqueue a job of this kind with this payload.
    pub(crate) async fn enqueue_kind(&self, kind: &str, payload: Value) -> JobId {
        self.enqueue(json!({"kind": kind, "payload": payload})).await
    }

    /// Enqueue any number of jobs through the API, in batches.
    pub(crate) async fn enqueue_many(&self, jobs: impl IntoIterator<Item = Value>) -> Vec<JobId> {
        let jobs: Vec<Value> = jobs.into_iter().collect();
        let mut ids = Vec::with_capacity(jobs.len());
        for batch in jobs.chunks(1_000) {
            let answer = self.post("/v1/jobs/batch", json!({"jobs": batch})).await;
            assert_eq!(answer.status, 201, "{:#}", answer.body);
            let accepted = answer.body["jobs"].as_array().unwrap();
            ids.extend(accepted.iter().map(|job| job["id"].as_str().unwrap().parse::<JobId>().unwrap()));
        }
        ids
    }

    /// Enqueue without HTTP.
    pub(crate) async fn enqueue_draft(&self, draft: Draft) -> JobId {
        let job = self.app.broker().prepare(draft).unwrap();
        match self.app.broker().enqueue(job).await.unwrap() {
            Enqueued::Accepted(accepted) => accepted.id,
            Enqueued::Existing(holder) | Enqueued::KeyConflict(holder) => panic!("the key is held by {}", holder.id),
            Enqueued::LinkRefused(problem) => panic!("{problem}"),
        }
    }

    /// Return the ids of all jobs of a filter, newest first, read by pages of this many.
    pub(crate) async fn walk(&self, filter: &str, page: u32) -> Vec<JobId> {
        let (mut seen, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = self.get(&format!("/v1/jobs?limit={page}&{filter}{cursor}")).await;
            assert_eq!(page.status, 200, "{filter}: {:#}", page.body);
            let data = page.body["data"].as_array().unwrap();
            seen.extend(data.iter().map(|job| job["id"].as_str().unwrap().parse::<JobId>().unwrap()));
            match page.body["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return seen,
            }
        }
    }

    /// Read the job as the API shows it.
    pub(crate) async fn job(&self, id: JobId) -> Value {
        let answer = self.get(&format!("/v1/jobs/{id}")).await;
        assert_eq!(answer.status, 200, "{:#}", answer.body);
        answer.body
    }

    /// Wait until the job is in this state.
    pub(crate) async fn until(&self, id: JobId, state: State) -> Value {
        eventually_seen(&format!("job {id} is {state}"), || async {
            let job = self.job(id).await;
            if job["state"] == state.as_str() { Ok(job) } else { Err(job) }
        })
        .await
    }

    /// Return the verdicts of a job's attempts, in order. An open attempt has the word `open`.
    pub(crate) async fn verdicts(&self, id: JobId) -> Vec<String> {
        let job = self.job(id).await;
        let attempts = job["attempts"].as_array().unwrap();
        attempts.iter().map(|attempt| attempt["verdict"].as_str().unwrap_or("open").to_owned()).collect()
    }

    /// Wait until this many attempts of the job have ended.
    pub(crate) async fn until_attempts(&self, id: JobId, count: usize) -> Value {
        eventually(&format!("{count} attempts of job {id} have ended"), || async {
            let job = self.job(id).await;
            let ended = job["attempts"].as_array().unwrap().iter().filter(|attempt| !attempt["verdict"].is_null());
            (ended.count() >= count).then_some(job)
        })
        .await
    }

    /// Wait until a query gives this number.
    pub(crate) async fn until_count(&self, sql: impl Into<String>, wanted: i64) {
        let sql: &str = &sql.into();
        // One connection for all the questions: making one costs the machine more than a question.
        let mysql = tokio::sync::Mutex::new(self.mysql().await);
        eventually_seen(&format!("{wanted} = {sql}"), || async {
            let asked = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut *mysql.lock().await).await;
            let found: i64 = match asked {
                Ok(found) => found,
                Err(_) => self.count(sql).await,
            };
            if found == wanted { Ok(()) } else { Err(found) }
        })
        .await;
    }

    /// Wait until at least this many sessions run a statement that begins with this text.
    pub(crate) async fn until_said(&self, begins: &str, wanted: usize) {
        until_said(self.config.mysql_url().unwrap().expose(), &self.name, begins, wanted).await;
    }

    /// Return whether the server ends the transaction of a session that says nothing, and tell if it does not. MariaDB
    /// does. MySQL ends it only with its connection: docs/OPERATIONS.md says so.
    pub(crate) async fn ends_silent_transactions(&self) -> bool {
        let server: String = sqlx::query_scalar("SELECT VERSION()").fetch_one(&mut self.mysql().await).await.unwrap();
        let ends = server.contains("MariaDB");
        if !ends {
            println!("MySQL does not end the transaction of a frozen session");
        }
        ends
    }

    /// Wait until every job of the tables has ended. On a busy machine many jobs may take longer than the deadline, so
    /// each job that ends extends it, four times at most.
    pub(crate) async fn until_idle(&self) {
        let began = Instant::now();
        let (mut left, mut deadline) = (i64::MAX, began + DEADLINE);
        loop {
            let owed = match self.app.broker().store().stats().await {
                Ok(stats) => stats.owed,
                // The machine may stand still, or MySQL have come back just now.
                Err(error) => {
                    assert!(Instant::now() < deadline, "gave up asking what is owed: {error}");
                    pause_after(began.elapsed()).await;
                    continue;
                }
            };
            if owed.is_empty() {
                return;
            }
            let now = owed.iter().map(|group| group.jobs).sum();
            if now < left {
                (left, deadline) = (now, (Instant::now() + DEADLINE).min(began + 4 * DEADLINE));
            }
            assert!(Instant::now() < deadline, "gave up waiting until nothing is owed: {owed:#?}");
            pause_after(began.elapsed()).await;
        }
    }

    /// Wait for an event of this process. The subscription begins before `act` causes the event.
    pub(crate) async fn event<T>(
        &self,
        what: &str,
        act: impl Future<Output = ()>,
        mut wanted: impl FnMut(&Event) -> Option<T>,
    ) -> T {
        let mut events = self.app.broker().events().listen();
        act.await;
        let found = async {
            loop {
                match events.recv().await {
                    Ok(event) => {
                        if let Some(found) = wanted(&event) {
                            return found;
                        }
                    }
                    Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => {}
                    Err(closed) => panic!("{closed}"),
                }
            }
        };
        tokio::time::timeout(DEADLINE, found).await.unwrap_or_else(|_| panic!("gave up waiting for {what}"))
    }

    /// Wait until so many sessions of the database wait for a lock.
    pub(crate) async fn until_lock_waits(&self, wanted: impl RangeBounds<usize> + Debug) {
        eventually_seen(&format!("{wanted:?} sessions wait for a lock"), || async {
            let waiting = self.lock_waits().await;
            if wanted.contains(&waiting) { Ok(()) } else { Err(format!("{waiting} wait")) }
        })
        .await;
    }

    /// Count the sessions of the database that wait for the lock of a row.
    pub(crate) async fn lock_waits(&self) -> usize {
        let open = open_transactions(self.config.mysql_url().unwrap().expose()).await;
        open.iter().filter(|transaction| transaction.state == "LOCK WAIT").count()
    }

    /// Check that an enqueue with a unique key and a change of a job are answered soon while these requests wait for a
    /// lock of `session`. Then end its transaction, and return the answers of the requests.
    pub(crate) async fn goes_on_beside<T>(&self, waiting: impl Future<Output = T>, session: &mut MySqlConnection) -> T {
        let job = || json!({"kind": "noop", "unique_key": JobId::new().to_string(), "delay_ms": 3_600_000});
        let other = self.enqueue(job()).await;
        let pulse = Pulse::start(self).await;
        let changes = async {
            self.until_lock_waits(1..).await;
            let began = tokio::time::Instant::now();
            let made = self.post("/v1/jobs", job()).await;
            assert_eq!(made.status, 201, "{:#}", made.body);
            let changed = self.patch(&format!("/v1/jobs/{other}"), json!({"priority": 1})).await;
            assert_eq!(changed.status, 200, "{:#}", changed.body);
            let took = pulse.time_since(began);
            session.execute("ROLLBACK").await.unwrap();
            took
        };
        let (answers, took) = tokio::join!(waiting, changes);
        // A wait for the lock takes five seconds, and the writes of the pulse do not wait for it.
        assert!(took < Duration::from_secs(3), "{took:?} beside stalls of the machine");
        answers
    }

    /// Open a connection of the test's own.
    pub(crate) async fn mysql(&self) -> MySqlConnection {
        connect(self.config.mysql_url().unwrap().expose()).await
    }

    /// Read one number from the tables.
    pub(crate) async fn count(&self, sql: impl Into<String>) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(sql.into())).fetch_one(&mut self.mysql().await).await.unwrap()
    }

    /// Wait until the page of metrics has this line. Other apps of this process set the same gauges.
    pub(crate) async fn until_metric(&self, line: &str) {
        eventually(&format!("the metrics say {line}"), || async {
            let text = http().get(self.url("/metrics")).send().await.unwrap().text().await.unwrap();
            text.lines().any(|said| said == line).then_some(())
        })
        .await;
    }

    /// Change the tables directly, without the API.
    pub(crate) async fn sql(&self, sql: impl Into<String>) {
        let sql = sql.into();
        // The views of a run with a table prefix cannot be altered.
        let (mut conn, sql) = if sql.starts_with("ALTER TABLE") {
            let conn = MySqlConnection::connect(self.config.mysql_url().unwrap().expose()).await.unwrap();
            (conn, with_prefix(&self.config.table_prefix, &sql).into_owned())
        } else {
            (self.mysql().await, sql)
        };
        conn.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await.unwrap();
    }

    /// Return the name of the database.
    pub(crate) fn database(&self) -> &str {
        &self.name
    }

    /// Say that Redis stays out until the end of the test, so its checks are about the tables alone.
    pub(crate) fn redis_stays_out(&self) {
        self.without_redis.store(true, Ordering::SeqCst);
    }

    /// Check what must hold of the tables and the index at any moment, whatever the test did. A check that leaves
    /// anything unchecked fails, except for the index of a Redis of which the test said that it is out.
    pub(crate) async fn assert_sound(&self) {
        let without_redis = self.without_redis.load(Ordering::SeqCst);
        if !without_redis {
            eventually("the index can be checked", || async {
                (self.app.index().health().now() == Health::Fast).then_some(())
            })
            .await;
        }
        let settings = halted::settings(&self.config, VerifySettings::PATIENCE, false);
        let report = verify(self.app.broker().store(), self.app.index(), &settings, |_| {}).await.unwrap();
        let sound = report.ok || (without_redis && halted::only_redis_is_unchecked(&report));
        assert!(sound, "{}\n{:?}", serde_json::to_string_pretty(&report).unwrap(), report.errors);
    }

    /// Check that every job succeeded in one attempt: none was lost, and none ran twice.
    pub(crate) async fn assert_each_ran_once(&self, jobs: i64) {
        assert_eq!(self.count("SELECT COUNT(DISTINCT job_id) FROM attempts WHERE end_state = 'completed'").await, jobs);
        assert_eq!(self.count("SELECT COUNT(*) FROM attempts").await, jobs);
        self.assert_sound().await;
    }

    /// Open a connection to Redis of the test's own.
    pub(crate) async fn redis(&self) -> redis::aio::MultiplexedConnection {
        super::redis_group::open(self.config.redis_url().unwrap().expose()).await
    }

    /// Remove everything from Redis, in a test that started alone: the others share one Redis, and would lose theirs.
    pub(crate) async fn flush_redis(&self) {
        self.services();
        redis::cmd("FLUSHALL").exec_async(&mut self.redis().await).await.unwrap();
    }

    pub(crate) fn key(&self, name: &str) -> String {
        format!("{{{}}}:{name}", self.config.redis_prefix)
    }
}

/// Send a request and read the answer, JSON or not. The OpenAPI document must allow the answer. No request is sent
/// after which tickr would call another machine.
pub(crate) async fn answer(request: reqwest::RequestBuilder) -> Answer {
    let (client, request) = request.build_split();
    let request = request.unwrap();
    let (method, path) = (request.method().to_string(), request.url().path().to_owned());
    let sent: Option<Value> =
        request.body().and_then(reqwest::Body::as_bytes).and_then(|bytes| serde_json::from_slice(bytes).ok());
    if let Some(url) = sent.as_ref().and_then(call_to_another_machine) {
        panic!("tickr would call {url}, which is no address of this machine; give the job a delay_ms of an hour");
    }
    let response = client.execute(request).await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let bytes = response.bytes().await.unwrap();
    let body =
        serde_json::from_slice(&bytes).unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
    contract::hold(&method, &path, status, &headers, &body);
    // If a request was accepted, the document must allow it.
    if let Some(sent) = sent.filter(|_| status < 300) {
        assert_ne!(contract::request_fits(&method, &path, &sent), Some(false), "{method} {path} accepted {sent:#}");
    }
    Answer { status, headers, body }
}

impl Answer {
    /// Return the text of a header, or an empty text if it is missing.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
    }

    /// Return the code of a problem document.
    pub(crate) fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or("")
    }

    /// Return the pointers of the errors in a problem document.
    pub(crate) fn pointers(&self) -> Vec<&str> {
        self.body["errors"].as_array().into_iter().flatten().filter_map(|e| e["pointer"].as_str()).collect()
    }
}

/// Make a draft from a job in the form of the API, as far as tests use it, for enqueueing without HTTP.
pub(crate) fn draft(job: &Value) -> Draft {
    let payload = job.get("payload").map_or_else(|| "{}".to_owned(), Value::to_string);
    let mut draft = Draft::new(job["kind"].as_str().unwrap(), RawValue::from_string(payload).unwrap());
    draft.due = job["delay_ms"].as_u64().map_or(Due::Now, |ms| Due::After(Duration::from_millis(ms)));
    draft.queue = job["queue"].as_str().map(str::to_owned);
    draft.unique_key = job["unique_key"].as_str().map(str::to_owned);
    draft
}
