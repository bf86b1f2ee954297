//! One request to a runner, and its outcome.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use reqwest::Method;
use serde_json::Value;
use uuid::Uuid;

use crate::locked;
use crate::runner::Runner;
use crate::world::World;

/// Longest time that a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The request. It is cheap to clone, so it can be repeated.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    method: Method,
    path: String,
    body: Option<Value>,
    /// Its `Idempotency-Key`.
    key: Option<String>,
    patience: Duration,
}

/// Outcome of the request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answer {
    /// An answer with its status and body.
    Said(u16, Value),
    /// The request was sent, or may have been sent, and no answer came.
    Silent,
    /// The request was never sent, because no process listens at the address.
    NotSent,
}

impl Request {
    pub(crate) fn get(path: impl Into<String>) -> Self {
        Self { method: Method::GET, path: path.into(), body: None, key: None, patience: PATIENCE }
    }

    pub(crate) fn post(path: impl Into<String>) -> Self {
        Self { method: Method::POST, ..Self::get(path) }
    }

    pub(crate) fn patch(path: impl Into<String>) -> Self {
        Self { method: Method::PATCH, ..Self::get(path) }
    }

    pub(crate) fn put(path: impl Into<String>) -> Self {
        Self { method: Method::PUT, ..Self::get(path) }
    }

    pub(crate) fn delete(path: impl Into<String>) -> Self {
        Self { method: Method::DELETE, ..Self::get(path) }
    }

    pub(crate) fn with(self, body: Value) -> Self {
        Self { body: Some(body), ..self }
    }

    /// Set a field of the body.
    pub(crate) fn and(mut self, field: &str, value: Value) -> Self {
        if let Some(body) = self.body.as_mut().and_then(Value::as_object_mut) {
            body.insert(field.to_owned(), value);
        }
        self
    }

    /// Carry the request out at most once, however often and to whichever runner it is sent.
    pub(crate) fn once(self, key: String) -> Self {
        Self { key: Some(key), ..self }
    }

    pub(crate) fn within(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }
}

impl World {
    /// Send the request to a runner that is up, and count the answer.
    pub(crate) async fn call(&self, rng: &mut StdRng, request: Request) -> Answer {
        let up: Vec<SocketAddr> = self.runners.iter().filter_map(Runner::addr).collect();
        let Some(addr) = up.choose(rng) else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            return Answer::NotSent;
        };
        self.ask(*addr, request).await
    }

    /// Send the request to this runner, and count the answer.
    pub(crate) async fn ask(&self, addr: SocketAddr, request: Request) -> Answer {
        let url = format!("http://{addr}{}", request.path);
        let mut http = self.client.request(request.method.clone(), url);
        if let Some(body) = &request.body {
            http = http.json(body);
        }
        if let Some(key) = &request.key {
            http = http.header("idempotency-key", key);
        }
        let sent = async {
            let response = http.timeout(request.patience).send().await?;
            let status = response.status().as_u16();
            let body = if status == 204 { Value::Null } else { response.json::<Value>().await? };
            Ok::<_, reqwest::Error>((status, body))
        };
        let answer = match sent.await {
            Ok((status, body)) => Answer::Said(status, body),
            Err(error) if error.is_connect() => return Answer::NotSent,
            Err(_) => Answer::Silent,
        };
        let status = if let Answer::Said(status, _) = &answer { *status } else { 0 };
        self.ledger.write(|book| *book.answers.entry(status).or_default() += 1);
        if let Answer::Said(500, body) = &answer {
            let mut errors = locked(&self.internal_errors);
            if errors.len() < 20 {
                errors.push(format!("{}: {body}", request.path));
            }
        }
        answer
    }
}

/// Bodies of the answers with an internal error, for the report.
pub(crate) type InternalErrors = Mutex<Vec<String>>;

/// Return the id from the body of a job or a receipt.
pub(crate) fn id_of(job: &Value) -> Option<Uuid> {
    job["id"].as_str()?.parse().ok()
}
