//! The service that `http` jobs call. It records every call, and sometimes it fails on purpose.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::locked;

/// One call and the status of its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) token: Uuid,
    pub(crate) status: u16,
}

/// The running service. It ends when it is dropped.
pub(crate) struct Sink {
    addr: SocketAddr,
    book: Arc<Book>,
    task: JoinHandle<()>,
}

struct Book {
    calls: Mutex<BTreeMap<Uuid, Vec<Call>>>,
    rng: Mutex<StdRng>,
}

impl Sink {
    pub(crate) async fn start(seed: u64) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let addr = listener.local_addr()?;
        let rng = Mutex::new(StdRng::seed_from_u64(seed));
        let book = Arc::new(Book { calls: Mutex::default(), rng });
        let router = Router::new().route("/called", post(called)).with_state(Arc::clone(&book));
        let task = tokio::spawn(async move {
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { addr, book, task })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/called", self.addr)
    }

    /// Return the calls so far, by job.
    pub(crate) fn calls(&self) -> BTreeMap<Uuid, Vec<Call>> {
        locked(&self.book.calls).clone()
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn called(State(book): State<Arc<Book>>, headers: HeaderMap) -> Response {
    let id = |name: &str| headers.get(name)?.to_str().ok()?.parse::<Uuid>().ok();
    let (Some(job), Some(token)) = (id("tickr-job-id"), id("tickr-attempt-token")) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let (chance, pause) = {
        let mut rng = locked(&book.rng);
        (rng.random_range(0..100), rng.random_range(0..600))
    };
    let status = match chance {
        0..5 => StatusCode::INTERNAL_SERVER_ERROR,
        5..8 => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::OK,
    };
    // The call is recorded before the answer: if the runner dies now, it has called all the same.
    locked(&book.calls).entry(job).or_default().push(Call { token, status: status.as_u16() });
    if chance >= 90 {
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
    if status == StatusCode::SERVICE_UNAVAILABLE {
        return (status, [("retry-after", "1")]).into_response();
    }
    status.into_response()
}
