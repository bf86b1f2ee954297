//! The stream of cluster events in Redis. It is capped, and runners append to it only while a client listens.
//!
//! It has a connection of its own, opened at the first use. Nothing else depends on these events, so an error here is
//! not reported to the health of the index.

use std::sync::Arc;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisResult};
use tokio::sync::{Mutex, watch};

use super::IndexError;
use super::keys::Keys;
use super::servers::Servers;

/// Approximate highest number of entries kept: Redis removes whole nodes.
const MAX_KEPT: usize = 10_000;
/// Time for which the stream is kept after the last entry.
const KEPT_FOR: Duration = Duration::from_secs(3_600);
/// Time for which the mark of a listener is valid.
pub const LISTENS_FOR: Duration = Duration::from_secs(5);
/// Longest time for a connection, and for a response.
const PATIENCE: Duration = Duration::from_secs(1);

/// A connection to the stream of cluster events. Cheap to clone.
#[derive(Clone)]
pub struct EventStream {
    shared: Arc<EventStreamInner>,
}

struct EventStreamInner {
    servers: Servers,
    events: String,
    listeners: String,
    listened: watch::Receiver<bool>,
    /// The connection, and the name of the server to which it leads.
    conn: Mutex<Option<(MultiplexedConnection, String)>>,
}

/// One entry of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamEntry {
    /// Position in the stream.
    pub id: StreamPosition,
    /// Text of the entry.
    pub text: String,
}

/// Entries behind a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamPage {
    /// The stream still has the entry at the position. Then it has all entries after it as well.
    pub is_whole: bool,
    /// The entries after the position, in order.
    pub entries: Vec<StreamEntry>,
}

/// A position in the stream: milliseconds and a number. Written with a hyphen between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamPosition(u64, u64);

impl StreamPosition {
    /// The position before all entries.
    pub const START: Self = Self(0, 0);
}

impl std::fmt::Display for StreamPosition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.0, self.1)
    }
}

impl std::str::FromStr for StreamPosition {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (ms, number) = text.split_once('-').unwrap_or((text, "0"));
        Ok(Self(ms.parse()?, number.parse()?))
    }
}

impl std::fmt::Debug for EventStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EventStream")
    }
}

/// Entries as Redis returns them: the position, then field names and values in turn.
type Raw = Vec<(String, Vec<String>)>;

impl EventStream {
    pub(super) fn new(servers: Servers, keys: &Keys, listened: watch::Receiver<bool>) -> Self {
        let (events, listeners) = (keys.events.clone(), keys.listeners.clone());
        Self { shared: Arc::new(EventStreamInner { servers, events, listeners, listened, conn: Mutex::new(None) }) }
    }

    /// Subscribe to whether any client in the cluster listens, as the scheduler last saw it.
    #[must_use]
    pub fn has_listeners(&self) -> watch::Receiver<bool> {
        self.shared.listened.clone()
    }

    /// Set the mark that this process has a listener, for the next seconds. Keep the stream for as long as before: a
    /// listener must not lose its position because nothing happens for an hour.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis fails.
    #[boxed]
    pub async fn mark_listener(&self) -> Result<(), IndexError> {
        let mut pipe = redis::pipe();
        pipe.cmd("SET").arg(&self.shared.listeners).arg(1).arg("PX").arg(LISTENS_FOR.as_millis() as u64).ignore();
        pipe.cmd("EXPIRE").arg(&self.shared.events).arg(KEPT_FOR.as_secs()).ignore();
        let attempted = "mark that a client listens to events";
        self.with(attempted, |mut conn| async move { pipe.query_async(&mut conn).await }).await
    }

    /// Append these texts, in order. A connection that the server has ended while it was idle costs nothing: the call
    /// is made again on another one.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis fails. The texts may be in the stream then.
    #[boxed]
    pub async fn append(&self, texts: &[String]) -> Result<(), IndexError> {
        match self.append_once(texts).await {
            // After a time-out the call may still be carried out, and would be twice.
            Err(IndexError::Unavailable { source: Some(error), .. }) if error.is_connection_dropped() => {
                self.append_once(texts).await
            }
            other => other,
        }
    }

    async fn append_once(&self, texts: &[String]) -> Result<(), IndexError> {
        let key = &self.shared.events;
        let mut pipe = redis::pipe();
        for text in texts {
            pipe.cmd("XADD").arg(key).arg("MAXLEN").arg("~").arg(MAX_KEPT).arg("*").arg("e").arg(text).ignore();
        }
        pipe.cmd("EXPIRE").arg(key).arg(KEPT_FOR.as_secs()).ignore();
        self.with("append events", |mut conn| async move { pipe.query_async(&mut conn).await }).await
    }

    /// Return up to `most` entries after a position, in order, and whether the entry at the position is still there.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis fails.
    #[boxed]
    pub async fn read_after(&self, place: StreamPosition, most: usize) -> Result<StreamPage, IndexError> {
        let mut call = redis::cmd("XRANGE");
        call.arg(&self.shared.events).arg(place.to_string()).arg("+").arg("COUNT").arg(most.saturating_add(1));
        self.call("read events", call).await.map(|found| page_after(place, entries(found), most))
    }

    /// Return the last position, or the start for an empty stream.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis fails.
    #[boxed]
    pub async fn last(&self) -> Result<StreamPosition, IndexError> {
        let mut call = redis::cmd("XREVRANGE");
        call.arg(&self.shared.events).arg("+").arg("-").arg("COUNT").arg(1);
        self.call("look for the last event", call)
            .await
            .map(|found: Raw| entries(found).first().map_or(StreamPosition::START, |entry| entry.id))
    }

    async fn call<T: redis::FromRedisValue>(&self, attempted: &'static str, call: redis::Cmd) -> Result<T, IndexError> {
        self.with(attempted, |mut conn| async move { call.query_async(&mut conn).await }).await
    }

    async fn with<T, F>(
        &self,
        attempted: &'static str,
        run: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<T, IndexError>
    where
        F: Future<Output = RedisResult<T>>,
    {
        let conn = self.connection().await.map_err(IndexError::driver(attempted))?;
        let outcome = run(conn).await;
        if outcome.is_err() {
            *self.shared.conn.lock().await = None;
        }
        outcome.map_err(IndexError::driver(attempted))
    }

    async fn connection(&self) -> RedisResult<MultiplexedConnection> {
        let mut kept = self.shared.conn.lock().await;
        if let Some((conn, server)) = &*kept
            && !self.shared.servers.has_left(server)
        {
            return Ok(conn.clone());
        }
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(Some(PATIENCE)).set_response_timeout(Some(PATIENCE));
        *kept = None;
        let (conn, server) = self.shared.servers.connect(&config).await?;
        *kept = Some((conn.clone(), server));
        Ok(conn)
    }
}

/// Take the entry at the position, if it is there, from the entries that begin with it.
fn page_after(place: StreamPosition, mut entries: Vec<StreamEntry>, most: usize) -> StreamPage {
    let is_whole = entries.first().is_some_and(|entry| entry.id == place);
    if is_whole {
        entries.remove(0);
    }
    entries.truncate(most);
    StreamPage { is_whole, entries }
}

fn entries(found: Raw) -> Vec<StreamEntry> {
    let entry = |(id, fields): (String, Vec<String>)| {
        Some(StreamEntry { id: id.parse().ok()?, text: fields.into_iter().nth(1)? })
    };
    found.into_iter().filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_tells_whether_the_stream_still_has_the_position_behind_which_it_begins() {
        let entry = |n| StreamEntry { id: StreamPosition(n, 0), text: n.to_string() };
        let whole = page_after(StreamPosition(7, 0), vec![entry(7), entry(8), entry(9)], 2);
        assert_eq!(whole, StreamPage { is_whole: true, entries: vec![entry(8), entry(9)] });
        let lost = page_after(StreamPosition(7, 0), vec![entry(8), entry(9), entry(10)], 2);
        assert_eq!(lost, StreamPage { is_whole: false, entries: vec![entry(8), entry(9)] });
        let empty = page_after(StreamPosition(7, 0), Vec::new(), 2);
        assert_eq!(empty, StreamPage { is_whole: false, entries: Vec::new() });
    }

    #[test]
    fn places_are_ordered_as_redis_orders_them() {
        let place = |text: &str| text.parse::<StreamPosition>().unwrap();
        assert!(place("9-1") < place("10-0") && place("10-2") < place("10-10"));
        assert_eq!(place("10-2").to_string(), "10-2");
        for wrong in ["", "-", "x-1", "1-", "-1-2", "1-2-3", "99999999999999999999-0"] {
            assert!(wrong.parse::<StreamPosition>().is_err(), "{wrong}");
        }
    }
}
