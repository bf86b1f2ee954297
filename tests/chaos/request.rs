//! One request to a runner, and what became of it.

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

/// How long a caller waits for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is asked. Cheap enough to be asked again.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    method: Method,
    path: String,
    body: Option<Value>,
    /// Its `Idempotency-Key`.
    key: Option<String>,
    patience: Duration,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answer {
    /// An answer with its body.
    Said(u16, Value),
    /// It was sent, or may have been, and no answer came.
    Silent,
    /// It was never sent: nobody listens there.
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

    pub(crate) fn with(self, body: Value) -> Self {
        Self { body: Some(body), ..self }
    }

    /// To be carried out at most once, whoever is asked and how often.
    pub(crate) fn once(self, key: String) -> Self {
        Self { key: Some(key), ..self }
    }

    pub(crate) fn within(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }
}

impl World {
    /// Ask a runner that is up, and count the answer.
    pub(crate) async fn call(&self, rng: &mut StdRng, request: Request) -> Answer {
        let up: Vec<SocketAddr> = self.runners.iter().filter_map(Runner::addr).collect();
        let Some(addr) = up.choose(rng) else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            return Answer::NotSent;
        };
        self.ask(*addr, request).await
    }

    /// Ask this runner, and count the answer.
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
            Ok::<_, reqwest::Error>((status, response.json::<Value>().await?))
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

/// The internal errors that were answered, to be looked at.
pub(crate) type InternalErrors = Mutex<Vec<String>>;

/// The id of a job or of a receipt.
pub(crate) fn id_of(job: &Value) -> Option<Uuid> {
    job["id"].as_str()?.parse().ok()
}
