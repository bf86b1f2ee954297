//! Scenario `callback`: a runner works off a backlog of callbacks to one receiver in this process. For comparison, as
//! many callers as the runner has workers send the same requests in a loop and store nothing. A second row counts the
//! connections that the receiver accepted.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use reqwest::Client;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
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

/// The answer to every request.
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nthanks";

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
        let serving = tokio::spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::Relaxed);
                open.spawn(answer(stream));
            }
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

/// Answer the requests of one connection until it is closed.
async fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    // Without it an answer may wait for the acknowledgement of the one before.
    stream.set_nodelay(true)?;
    let mut received = Vec::new();
    loop {
        while let Some(length) = length_of_request(&received) {
            received.drain(..length);
            stream.write_all(ANSWER).await?;
        }
        if stream.read_buf(&mut received).await? == 0 {
            return Ok(());
        }
    }
}

/// Return the length of the first request in these bytes, if it is there as a whole.
fn length_of_request(bytes: &[u8]) -> Option<usize> {
    let head = bytes.windows(4).position(|part| part == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&bytes[..head]).ok()?;
    let lengths = text.lines().filter_map(|line| line.split_once(':'));
    let length = lengths
        .filter(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .find_map(|(_, length)| length.trim().parse::<usize>().ok());
    Some(head + length.unwrap_or(0)).filter(|length| bytes.len() >= *length)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_whole_with_the_last_byte_of_its_body() {
        let request = b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabcPOST";
        assert_eq!(length_of_request(request), Some(request.len() - 4));
        assert_eq!(length_of_request(&request[..request.len() - 5]), None);
        assert_eq!(length_of_request(b"GET / HTTP/1.1\r\n\r\n"), Some(18));
    }
}
