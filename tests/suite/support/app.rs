//! A whole tickr inside a test: its own database, key prefix, folders and port.

use std::future::Future;

use serde_json::{Value, json};
use sqlx::MySqlConnection;
use tickr::app::App;
use tickr::broker::{Draft, Enqueued};
use tickr::config::Config;
use tickr::engine::Stopped;
use tickr::event::Event;
use tickr::handlers::Registry;
use tickr::job::{JobId, State};
use tokio_util::sync::CancellationToken;

use super::contract;
use super::servers::{connect, database, drop_database, servers, unique_name};
use super::{DEADLINE, eventually, http};

/// A running tickr. `stop` it at the end of a test.
pub(crate) struct TestApp {
    pub(crate) app: App,
    pub(crate) config: Config,
    pub(crate) dir: tempfile::TempDir,
    name: String,
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

    /// With a changed configuration and kinds of the test's own.
    pub(crate) async fn start_with(change: impl FnOnce(&mut Config), own: Registry) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (name, url) = database().await;
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::for_tests(&url, &servers().redis_url());
        config.redis_prefix = unique_name();
        config.outbox_dir = Some(dir.path().join("outbox"));
        config.reports_dir = dir.path().join("reports");
        change(&mut config);
        let app = App::start(&config, own).await.unwrap();
        Self { app, config, dir, name }
    }

    /// Another tickr on the same tables and keys.
    pub(crate) async fn another(&self) -> App {
        App::start(&self.config, Registry::new()).await.unwrap()
    }

    pub(crate) async fn stop(self) -> Stopped {
        let stopped = self.app.stop(CancellationToken::new()).await;
        drop_database(self.config.mysql_url().unwrap().expose(), &self.name).await;
        stopped
    }

    /// Stop, and start again on the same tables and keys.
    pub(crate) async fn restart(self) -> Self {
        let Self { app, config, dir, name } = self;
        app.stop(CancellationToken::new()).await;
        let app = App::start(&config, Registry::new()).await.unwrap();
        Self { app, config, dir, name }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.app.addr())
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        answer(http().get(self.url(path))).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        answer(http().post(self.url(path)).json(&body)).await
    }

    /// Enqueue through the API; the new job's id.
    pub(crate) async fn enqueue(&self, job: Value) -> JobId {
        let answer = self.post("/v1/jobs", job).await;
        assert_eq!(answer.status, 201, "{:#}", answer.body);
        answer.body["id"].as_str().unwrap().parse().unwrap()
    }

    /// Enqueue a kind with a payload.
    pub(crate) async fn enqueue_kind(&self, kind: &str, payload: Value) -> JobId {
        self.enqueue(json!({"kind": kind, "payload": payload})).await
    }

    /// Enqueue without HTTP.
    pub(crate) async fn enqueue_draft(&self, draft: Draft) -> JobId {
        let job = self.app.broker().prepare(draft).unwrap();
        match self.app.broker().enqueue(job).await.unwrap() {
            Enqueued::Accepted(accepted) => accepted.id,
            Enqueued::KeyTaken { holder } => panic!("the key is held by {holder}"),
        }
    }

    /// The job as the API shows it.
    pub(crate) async fn job(&self, id: JobId) -> Value {
        let answer = self.get(&format!("/v1/jobs/{id}")).await;
        assert_eq!(answer.status, 200, "{:#}", answer.body);
        answer.body
    }

    /// Wait until the job is in this state.
    pub(crate) async fn until(&self, id: JobId, state: State) -> Value {
        eventually(&format!("job {id} is {state}"), || async {
            let job = self.job(id).await;
            (job["state"] == state.as_str()).then_some(job)
        })
        .await
    }

    /// Wait until every job of the tables has ended.
    pub(crate) async fn until_idle(&self) {
        eventually("nothing is owed", || async {
            let stats = self.app.broker().store().stats().await.unwrap();
            stats.owed.is_empty().then_some(())
        })
        .await;
    }

    /// Wait for an event of this process, listening before `act` makes it happen.
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

    /// A connection of the test's own.
    pub(crate) async fn mysql(&self) -> MySqlConnection {
        connect(self.config.mysql_url().unwrap().expose()).await
    }

    /// One number from the tables.
    pub(crate) async fn count(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql).fetch_one(&mut self.mysql().await).await.unwrap()
    }

    /// A connection to Redis of the test's own, and a key under this test's prefix.
    pub(crate) async fn redis(&self) -> redis::aio::MultiplexedConnection {
        let client = redis::Client::open(self.config.redis_url().unwrap().expose()).unwrap();
        client.get_multiplexed_async_connection().await.unwrap()
    }

    pub(crate) fn key(&self, name: &str) -> String {
        format!("{{{}}}:{name}", self.config.redis_prefix)
    }
}

/// Send a request and read the answer, JSON or not. It must be one that the OpenAPI document knows.
pub(crate) async fn answer(request: reqwest::RequestBuilder) -> Answer {
    let (client, request) = request.build_split();
    let request = request.unwrap();
    let (method, path) = (request.method().to_string(), request.url().path().to_owned());
    let sent: Option<Value> =
        request.body().and_then(reqwest::Body::as_bytes).and_then(|bytes| serde_json::from_slice(bytes).ok());
    let response = client.execute(request).await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let bytes = response.bytes().await.unwrap();
    let body =
        serde_json::from_slice(&bytes).unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
    contract::hold(&method, &path, status, &headers, &body);
    // What was accepted, the document must allow.
    if let Some(sent) = sent.filter(|_| status < 300) {
        assert_ne!(contract::request_fits(&method, &path, &sent), Some(false), "{method} {path} accepted {sent:#}");
    }
    Answer { status, headers, body }
}

impl Answer {
    /// A header's text; empty when it is missing.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
    }

    /// The code of a problem document.
    pub(crate) fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or("")
    }

    /// Where the problem says that something is wrong.
    pub(crate) fn pointers(&self) -> Vec<&str> {
        self.body["errors"].as_array().into_iter().flatten().filter_map(|e| e["pointer"].as_str()).collect()
    }
}
