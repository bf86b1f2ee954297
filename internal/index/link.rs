//! The shared connection to Redis.
//!
//! The driver's own reconnecting manager keeps a connection as long as it answers. But a demoted master answers
//! READONLY for ever, and one that is loading or cut off from its replicas refuses as well, while a healthy master may
//! already be reachable under the same name. So here every error ends the connection. The next call resolves the name
//! and connects again, after a pause that is shared by all callers and grows while errors last. Every error is reported
//! to the [`IndexHealth`], so that no reconnection goes unnoticed: after one, Redis may hold older data than before.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisResult};

use super::{IndexError, IndexHealth};

/// Longest time for a connection, and for a response. A Redis that is slower than this counts as out, and MySQL is read
/// instead.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pauses between connections, before jitter.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Link {
    client: redis::Client,
    health: Arc<IndexHealth>,
    state: Mutex<State>,
    /// Held by the task that connects. Other tasks wait for its result.
    connecting: tokio::sync::Mutex<()>,
}

struct State {
    wire: Option<Wire>,
    /// Number of connections opened so far.
    opened: u64,
    pause: Duration,
    not_before: Option<Instant>,
}

#[derive(Clone)]
struct Wire {
    conn: MultiplexedConnection,
    /// Number of this connection. A late error of an old connection must not end its successor.
    number: u64,
}

impl Link {
    pub(super) fn new(client: redis::Client, health: Arc<IndexHealth>) -> Self {
        let state = State { wire: None, opened: 0, pause: FIRST_PAUSE, not_before: None };
        Self { client, health, state: Mutex::new(state), connecting: tokio::sync::Mutex::new(()) }
    }

    /// Run commands on the connection. Open one if there is none.
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
                result.map_err(Some)
            }
            Err(source) => Err(source),
        };
        result.map_err(|source| {
            let cause =
                source.as_ref().map_or_else(|| "waiting before the next connection".to_owned(), ToString::to_string);
            let error = IndexError::Unavailable { attempted, cause, source };
            self.health.record_failure(&error);
            error
        })
    }

    /// Return the connection, or open one. An error without a cause when it is too early for another one.
    async fn wire(&self) -> Result<Wire, Option<redis::RedisError>> {
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
                Err(Some(error))
            }
        }
    }

    /// Return the open connection. An error when it is too early for another one.
    fn open_wire(&self) -> Result<Option<Wire>, Option<redis::RedisError>> {
        let state = self.state();
        if state.wire.is_none() && state.not_before.is_some_and(|moment| Instant::now() < moment) {
            return Err(None);
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
        self.pause = (self.pause * 2).min(MAX_PAUSE);
    }
}
