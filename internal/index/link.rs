//! The shared connection to Redis.
//!
//! The driver's own reconnecting manager keeps a connection for as long as it answers. A master that was demoted answers
//! READONLY for ever, one that is loading or cut off from its replicas refuses too, and behind the same name a healthy
//! master may stand meanwhile. So here every error ends the connection: the next call resolves the name and connects
//! anew, after a pause that grows while errors last, whoever calls. Everything that goes wrong is told to the
//! [`IndexHealth`], so that no reconnection passes unnoticed: what Redis holds after one may be older than what it held
//! before.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisResult};

use super::{IndexError, IndexHealth};

/// How long a connection may take, and an answer. A Redis that is slower than this is as good as none: the store is
/// asked instead.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between connections, before jitter.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Link {
    client: redis::Client,
    health: Arc<IndexHealth>,
    state: Mutex<State>,
    /// Held by the one who connects; the others wait for what comes of it.
    connecting: tokio::sync::Mutex<()>,
}

struct State {
    wire: Option<Wire>,
    /// Connections opened so far.
    opened: u64,
    pause: Duration,
    not_before: Option<Instant>,
}

#[derive(Clone)]
struct Wire {
    conn: MultiplexedConnection,
    /// Which connection it is: a late error of an old one must not end its successor.
    number: u64,
}

impl Link {
    pub(super) fn new(client: redis::Client, health: Arc<IndexHealth>) -> Self {
        let state = State { wire: None, opened: 0, pause: FIRST_PAUSE, not_before: None };
        Self { client, health, state: Mutex::new(state), connecting: tokio::sync::Mutex::new(()) }
    }

    /// Run commands on the connection, opening one if there is none.
    pub(super) async fn call<T, F>(
        &self,
        attempted: &'static str,
        run: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<T, IndexError>
    where
        F: Future<Output = RedisResult<T>>,
    {
        let result = match self.wire().await {
            Ok(wire) => {
                let number = wire.number;
                let result = run(wire.conn).await;
                self.learn(number, result.is_ok());
                result.map_err(|e| e.to_string())
            }
            Err(cause) => Err(cause),
        };
        result.map_err(|cause| {
            let error = IndexError::Unavailable { attempted, cause };
            self.health.failed(&error);
            error
        })
    }

    async fn wire(&self) -> Result<Wire, String> {
        if let Some(wire) = self.open_wire()? {
            return Ok(wire);
        }
        let _alone = self.connecting.lock().await;
        if let Some(wire) = self.open_wire()? {
            return Ok(wire);
        }
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(Some(PATIENCE)).set_response_timeout(Some(PATIENCE));
        match self.client.get_multiplexed_async_connection_with_config(&config).await {
            Ok(conn) => {
                let mut state = self.state();
                state.opened += 1;
                let wire = Wire { conn, number: state.opened };
                state.wire = Some(wire.clone());
                Ok(wire)
            }
            Err(error) => {
                self.state().wait_longer();
                Err(error.to_string())
            }
        }
    }

    /// The open connection; an error when it is too early for another.
    fn open_wire(&self) -> Result<Option<Wire>, String> {
        let state = self.state();
        if state.wire.is_none() && state.not_before.is_some_and(|moment| Instant::now() < moment) {
            return Err("waiting before the next try".to_owned());
        }
        Ok(state.wire.clone())
    }

    fn learn(&self, number: u64, well: bool) {
        let mut state = self.state();
        if state.opened != number {
            return;
        }
        if well {
            (state.pause, state.not_before) = (FIRST_PAUSE, None);
        } else if state.wire.take().is_some() {
            state.wait_longer();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn wait_longer(&mut self) {
        self.not_before = Some(Instant::now() + self.pause.mul_f64(0.5 + rand::random::<f64>() / 2.0));
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }
}
