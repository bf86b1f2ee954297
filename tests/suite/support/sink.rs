//! A receiver of callbacks on loopback. It notes each call, and answers as the test says.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A call to the receiver.
#[derive(Clone, Debug)]
pub(crate) struct SinkCall {
    /// Time when its body had arrived.
    pub(crate) at: DateTime<Utc>,
    /// Time when it was answered; absent if the caller gave up before.
    pub(crate) answered: Option<DateTime<Utc>>,
    pub(crate) headers: HeaderMap,
    /// Its body, byte for byte.
    pub(crate) text: Bytes,
    pub(crate) body: Value,
}

type Answers = dyn Fn(usize, &Value) -> (u16, String) + Send + Sync;

/// The receiver. It ends when it is dropped.
pub(crate) struct Sink {
    addr: SocketAddr,
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

struct Shared {
    calls: Mutex<Vec<SinkCall>>,
    count: AtomicUsize,
    answers: Box<Answers>,
    /// Calls are answered while this is true.
    answering: watch::Sender<bool>,
}

impl Sink {
    /// Start a receiver. `answers` makes the status and the body of an answer from the number of the call, counted from
    /// 0, and its body.
    pub(crate) async fn start(answers: impl Fn(usize, &Value) -> (u16, String) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            calls: Mutex::default(),
            count: AtomicUsize::new(0),
            answers: Box::new(answers),
            answering: watch::Sender::new(true),
        });
        let app = axum::Router::new().fallback(take).with_state(Arc::clone(&shared));
        let serving = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { addr, shared, serving }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/in", self.addr)
    }

    /// Leave calls without an answer, or answer them again.
    pub(crate) fn holds(&self, holds: bool) {
        self.shared.answering.send_replace(!holds);
    }

    pub(crate) fn calls(&self) -> Vec<SinkCall> {
        self.shared.calls.lock().unwrap().clone()
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn take(State(shared): State<Arc<Shared>>, headers: HeaderMap, text: Bytes) -> Response {
    let number = shared.count.fetch_add(1, Ordering::SeqCst);
    let body: Value = serde_json::from_slice(&text).unwrap_or(Value::Null);
    let place = {
        let mut calls = shared.calls.lock().unwrap();
        calls.push(SinkCall { at: Utc::now(), answered: None, headers, text, body: body.clone() });
        calls.len() - 1
    };
    let _ = shared.answering.subscribe().wait_for(|answering| *answering).await;
    let (status, text) = (shared.answers)(number, &body);
    shared.calls.lock().unwrap()[place].answered = Some(Utc::now());
    (StatusCode::from_u16(status).unwrap(), text).into_response()
}
