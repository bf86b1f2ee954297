//! Scenario `callback`: a runner works off a backlog of callbacks to one receiver in this process. For comparison, as
//! many callers as the runner has workers send the same requests in a loop and store nothing. A second row counts the
//! connections that the receiver accepted.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use axum::Router;
use axum::serve::ListenerExt as _;
use reqwest::Client;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

use super::environment::{RunChecks, RunEnvironment, rate, rate_of, stop};
use super::figure::Target;
use super::load::{Countdown, join};
use super::result_row::{ResultRow, Samples};
use super::{Bench, BenchError, Repetition, Scenario};
use crate::app::App;
use crate::broker::Draft;
use crate::config::Config;
use crate::handlers::http::HttpCallback;
use crate::handlers::{Kind as _, Registry};

/// Number of jobs in one commit when they are enqueued.
const TOGETHER: u64 = 500;

/// A receiver that answers 200 at once, and counts the connections that it accepts.
struct Receiver {
    addr: SocketAddr,
    connections: Arc<AtomicU64>,
    serving: JoinHandle<()>,
}

impl Receiver {
    async fn start() -> Result<Self, BenchError> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(BenchError::io("start a receiver"))?;
        let addr = listener.local_addr().map_err(BenchError::io("start a receiver"))?;
        let connections = Arc::<AtomicU64>::default();
        let counted = Arc::clone(&connections);
        let listener = listener.tap_io(move |stream| {
            counted.fetch_add(1, Ordering::Relaxed);
            // Without it an answer may wait for the acknowledgement of the one before.
            let _ = stream.set_nodelay(true);
        });
        let app = Router::new().fallback(|| std::future::ready("thanks"));
        let serving = tokio::spawn(async move {
            let _ = axum::serve(listener, app).await;
        });
        Ok(Self { addr, connections, serving })
    }

    fn url(&self) -> String {
        format!("http://{}/", self.addr)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

pub(super) async fn run(bench: &Bench<'_>) -> Result<Vec<ResultRow>, BenchError> {
    let all = bench.jobs(100_000, 500);
    let (mut speed, mut connections) = (Samples::default(), Samples::default());
    for round in bench.rounds() {
        let jobs = round.share_of(all);
        bench.progress.step("a bare loop of requests", round);
        let bare = bare(bench, jobs).await?;
        let (sample, accepted, checked) = Box::pin(product(bench, jobs, round)).await?;
        if round.counts() {
            speed.bare(bare, RunChecks::default());
            speed.product(sample, jobs, checked);
            connections.product(accepted as f64, jobs, checked.counted_before());
        }
    }
    let most = 2.0 * bench.settings.workers as f64;
    Ok(vec![
        speed.line(Scenario::Callback, "callbacks to one receiver", "jobs/s", &[Target::relative_to_bare(0.7)]),
        connections.line(
            Scenario::Callback,
            "callbacks to one receiver, connections",
            "connections",
            &[Target::at_most(most)],
        ),
    ])
}

/// Send the requests with as many callers as the runner has workers. Return the requests per second.
async fn bare(bench: &Bench<'_>, requests: u64) -> Result<f64, BenchError> {
    let receiver = Receiver::start().await?;
    let failed = |error: reqwest::Error| BenchError::Failed(format!("a bare request: {error}"));
    let client = Client::builder().no_proxy().pool_max_idle_per_host(bench.settings.workers).build().map_err(failed)?;
    let left = Arc::new(Countdown::new(requests));
    let (url, body) = (receiver.url(), json!({"content": "x"}).to_string());
    let mut tasks = JoinSet::new();
    let began = Instant::now();
    for _ in 0..bench.settings.workers {
        let (client, left, url, body) = (client.clone(), Arc::clone(&left), url.clone(), body.clone());
        tasks.spawn(async move {
            while left.take() {
                let sent = client.post(&url).header("content-type", "application/json").body(body.clone()).send().await;
                let answer = sent.map_err(failed)?.error_for_status().map_err(failed)?;
                answer.bytes().await.map_err(failed)?;
            }
            Ok(())
        });
    }
    join(tasks).await?;
    Ok(rate_of(requests, began.elapsed()))
}

/// Let a runner work off a backlog. Return the jobs per second and the number of connections.
async fn product(bench: &Bench<'_>, jobs: u64, round: Repetition) -> Result<(f64, u64, RunChecks), BenchError> {
    let receiver = Receiver::start().await?;
    let mut stage = RunEnvironment::open(bench).await?;
    bench.progress.step("callbacks to one receiver", round);
    let config = Config { callback_allow_private: true, ..stage.config().clone() };
    let idle = Config { queues: vec!["elsewhere".to_owned()], ..config.clone() };
    let app = App::start(&idle, Registry::new()).await?;
    let callback = HttpCallback::post(receiver.url(), &json!({"content": "x"}));
    let payload = callback.and_then(|callback| serde_json::value::to_raw_value(&callback));
    let payload = payload.map_err(|error| BenchError::Failed(error.to_string()))?;
    let mut left = jobs;
    while left > 0 {
        let drafts = (0..left.min(TOGETHER)).map(|_| Draft::new(HttpCallback::NAME, payload.clone()));
        let batch = drafts.map(|draft| app.broker().prepare(draft)).collect::<Result<Vec<_>, _>>()?;
        left -= batch.len() as u64;
        app.broker().enqueue_all(batch).await?;
    }
    stop(app).await;

    let app = App::start(&config, Registry::new()).await?;
    let ended = stage.until_ended(jobs).await?;
    stop(app).await;
    let (_, started) = stage.counter_connection.beginnings(stage.first).await?;
    let speed = rate(jobs, started, ended)?;
    let checked = stage.check(jobs, 0).await?;
    stage.close().await?;
    Ok((speed, receiver.connections.load(Ordering::Relaxed), checked))
}
