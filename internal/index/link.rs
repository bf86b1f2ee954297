//! The shared connection to Redis.
//!
//! The driver's own reconnecting manager keeps a connection as long as it answers. But a demoted master answers
//! READONLY for ever, and one that is loading or cut off from its replicas refuses as well, while a healthy master may
//! already be reachable under the same name. So here every error ends the connection. The next call resolves the name
//! and connects again, after a pause that is shared by all callers and grows while errors last. Every error is reported
//! to the [`IndexHealth`], so that no reconnection goes unnoticed: after one, Redis may hold older data than before.
//!
//! With sentinels or a cluster, the next connection leads to the server that is the master then. A master that was
//! replaced and cut off may go on answering; [`Link::follow`] ends the connection to it.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisResult};

use super::keys::Keys;
use super::servers::{IndexMode, Servers};
use super::{IndexError, IndexHealth, rights};

/// Longest time for a connection, and for a response. A Redis that is slower than this counts as out, and MySQL is read
/// instead.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pauses between connections, before jitter.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Link {
    servers: Servers,
    keys: Keys,
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
    /// The rights that were missing, as last told.
    lacking: Option<String>,
    /// The number of refusals when the rights were last found complete. None before the first check.
    trusted: Option<u64>,
}

#[derive(Clone)]
struct Wire {
    conn: MultiplexedConnection,
    /// Name of the server to which it leads.
    server: String,
    /// Number of this connection. A late error of an old connection must not end its successor.
    number: u64,
}

impl Link {
    pub(super) fn new(servers: Servers, keys: Keys, health: Arc<IndexHealth>) -> Self {
        let state = State { wire: None, opened: 0, pause: FIRST_PAUSE, not_before: None, lacking: None, trusted: None };
        Self { servers, keys, health, state: Mutex::new(state), connecting: tokio::sync::Mutex::new(()) }
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
            let cause = source.as_ref().map_or_else(|| IndexError::PAUSE.to_owned(), ToString::to_string);
            let error = IndexError::Unavailable { attempted, cause, source };
            self.health.record_failure(&error);
            error
        })
    }

    /// End the connection if another server holds the index by now. The next call finds that one.
    ///
    /// A master that is cut off from its sentinels or from its cluster may still answer this runner, and would keep its
    /// connection for as long as that lasts.
    pub(super) async fn follow(&self) {
        if self.servers.mode() == IndexMode::Single {
            return;
        }
        let Some(wire) = self.state().wire.clone() else { return };
        // An error says nothing about the master: it may work well while no sentinel answers. The older word of a few
        // sentinels says nothing either: they may have been cut off.
        let Ok(master) = self.servers.master().await else { return };
        if !master.replaces(&wire.server) {
            return;
        }
        {
            let mut state = self.state();
            if state.opened != wire.number || state.wire.take().is_none() {
                return;
            }
        }
        let cause = format!("{} holds the index by now, and not {}", master.name(), wire.server);
        let source = Some(redis::RedisError::from((redis::ErrorKind::Client, "another server is the master")));
        self.health.record_failure(&IndexError::Unavailable { attempted: "follow the master", cause, source });
    }

    /// Return the connection, or open one. An error without a cause when it is too early for another one.
    async fn wire(&self) -> Result<Wire, Option<redis::RedisError>> {
        if let Some(wire) = self.open_wire()?
            && !self.doubts_rights()
        {
            return Ok(wire);
        }
        let _alone = self.connecting.lock().await;
        let mut wire = match self.open_wire()? {
            Some(wire) => wire,
            None => self.connect().await?,
        };
        if self.doubts_rights() {
            let refusals = self.health.refusals();
            let checked = rights::check(&mut wire.conn, &self.keys).await;
            self.tell_rights(checked.as_ref().err());
            if let Err(error) = checked {
                self.learn(wire.number, false);
                return Err(Some(error));
            }
            self.state().trusted = Some(refusals);
        }
        Ok(wire)
    }

    /// Return whether the rights of the user must be checked before the next call: they never were, or Redis refused a
    /// command since then.
    fn doubts_rights(&self) -> bool {
        let trusted = self.state().trusted;
        trusted != Some(self.health.refusals())
    }

    async fn connect(&self) -> Result<Wire, Option<redis::RedisError>> {
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(Some(PATIENCE)).set_response_timeout(Some(PATIENCE));
        match self.servers.connect(&config).await {
            Ok((conn, server)) => {
                let mut state = self.state();
                state.opened += 1;
                let wire = Wire { conn, server, number: state.opened };
                state.wire = Some(wire.clone());
                Ok(wire)
            }
            Err(error) => {
                self.state().wait_longer();
                Err(Some(error))
            }
        }
    }

    /// Log which rights are missing, when that changes.
    fn tell_rights(&self, error: Option<&redis::RedisError>) {
        let lacking = error.filter(|error| error.kind() == redis::ErrorKind::Client).map(ToString::to_string);
        let mut state = self.state();
        if let Some(now) = &lacking
            && state.lacking.as_ref() != Some(now)
        {
            tracing::error!(lacking = now, "give the redis user the rights of docs/OPERATIONS.md");
        }
        state.lacking = lacking;
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
