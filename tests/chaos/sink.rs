//! The service that `http` jobs call. It records every call. Sometimes it fails on purpose, and from time to time it is
//! down: then it refuses every call for some seconds.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

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

use crate::later::Promise;
use crate::locked;

/// Time from the beginning of one outage of the service to the next, and the length of each.
const DOWN_EVERY: Duration = Duration::from_secs(45);
const DOWN_FOR: Duration = Duration::from_secs(4);

/// One call, the status of its answer, and its place among the beginnings and ends of all calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) token: Uuid,
    pub(crate) status: u16,
    pub(crate) began: usize,
    /// None while the call is not answered, and if the client hung up.
    pub(crate) ended: Option<usize>,
}

/// The running service. It ends when it is dropped.
pub(crate) struct Sink {
    addr: SocketAddr,
    book: Arc<Book>,
    task: JoinHandle<()>,
}

struct Book {
    calls: Mutex<BTreeMap<Uuid, Vec<Call>>>,
    /// Attempts that were taken over, and that no one has taken from here yet.
    promises: Mutex<Vec<Promise>>,
    rng: Mutex<StdRng>,
    began: Instant,
    /// Number of beginnings and ends of calls so far.
    moments: AtomicUsize,
}

impl Book {
    fn moment(&self) -> usize {
        self.moments.fetch_add(1, Ordering::SeqCst)
    }

    fn is_down(&self) -> bool {
        let elapsed = self.began.elapsed().as_millis();
        elapsed % DOWN_EVERY.as_millis() > (DOWN_EVERY - DOWN_FOR).as_millis()
    }
}

impl Sink {
    pub(crate) async fn start(seed: u64) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let addr = listener.local_addr()?;
        let rng = Mutex::new(StdRng::seed_from_u64(seed));
        let moments = AtomicUsize::new(0);
        let book =
            Arc::new(Book { calls: Mutex::default(), promises: Mutex::default(), rng, began: Instant::now(), moments });
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

    /// Take the attempts that were taken over since the last call of this.
    pub(crate) fn promised(&self) -> Vec<Promise> {
        std::mem::take(&mut locked(&self.book.promises))
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
        (rng.random_range(0..100_u32), rng.random_range(0..600))
    };
    let status = match chance {
        _ if book.is_down() => StatusCode::BAD_GATEWAY,
        0..5 => StatusCode::INTERNAL_SERVER_ERROR,
        5..8 => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::OK,
    };
    // A callback that may be finished later is left to the system behind this service most of the time.
    let key = headers.get("tickr-finish-key").and_then(|key| key.to_str().ok());
    let taken = key.filter(|_| status == StatusCode::OK && !chance.is_multiple_of(4));
    let status = if taken.is_some() { StatusCode::ACCEPTED } else { status };
    // The call is recorded before the answer: if the runner dies now, it has called all the same.
    let began = book.moment();
    let call = Call { token, status: status.as_u16(), began, ended: None };
    locked(&book.calls).entry(job).or_default().push(call);
    locked(&book.promises).extend(taken.map(|key| Promise { key: key.to_owned(), job, token }));
    if chance >= 90 && status != StatusCode::BAD_GATEWAY {
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
    let ended = book.moment();
    for call in locked(&book.calls).entry(job).or_default().iter_mut().filter(|call| call.began == began) {
        call.ended = Some(ended);
    }
    if status == StatusCode::SERVICE_UNAVAILABLE {
        return (status, [("retry-after", "1")]).into_response();
    }
    status.into_response()
}
