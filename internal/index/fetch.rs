//! The fetcher's own connection, the only one that blocks.
//!
//! The driver gives every command a response time-out, also a blocking one. A BRPOP that the client no longer waits for
//! still takes an id when one comes; that job would be late until the reconciler finds it. So this connection is used
//! by one task only, its time-out is longer than the block time, no call is cancelled while the connection lives, and
//! after any error the connection is dropped before the next try. A new connection also finds the new master after a
//! failover.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, AsyncTypedCommands, Script};

use super::keys::{Keys, Lane};
use super::{IndexError, IndexHealth};
use tickr_job::{JobId, RunnerId};

/// Time that one BRPOP blocks, in seconds. A stopping fetcher may have to wait for that long.
const BLOCK_SECONDS: f64 = 1.0;
/// Longest time for a connection, and for a response beyond the block time.
const PATIENCE: Duration = Duration::from_secs(1);

/// Ids taken from the ready lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TakenIds {
    /// Due jobs, the most urgent first, each with the position of its lane.
    pub ids: Vec<(usize, JobId)>,
    /// A lane that left jobs out has run low.
    pub refill: bool,
}

/// Result of a blocking pop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Popped {
    /// A due job, and the position of its lane.
    Job(usize, JobId),
    /// The fetcher was woken.
    Nudge,
    /// No id came.
    Nothing,
}

/// The lanes to take from, in order, and the limits of how many ids to take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FetchOrder {
    /// Positions of lanes, the first to be served first. Other lanes are not served.
    pub lines: Vec<usize>,
    /// For each of them the position of its group in `room`, if it belongs to one.
    pub groups: Vec<Option<usize>>,
    /// For each group, the number of ids that may be taken from all its lanes together.
    pub room: Vec<usize>,
}

/// Connection of one fetcher to Redis.
pub struct Fetch {
    client: redis::Client,
    health: Arc<IndexHealth>,
    conn: Option<MultiplexedConnection>,
    take: Script,
    overflow: String,
    lines: Vec<Lane>,
    lists: Vec<String>,
    nudge: String,
    low_water: usize,
}

impl std::fmt::Debug for Fetch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fetch").field("lines", &self.lines).finish_non_exhaustive()
    }
}

impl Fetch {
    pub(super) fn new(
        client: redis::Client,
        health: Arc<IndexHealth>,
        keys: &Keys,
        lines: Vec<Lane>,
        runner: &RunnerId,
        low_water: usize,
    ) -> Self {
        let lists = lines.iter().map(|line| keys.ready(line)).collect();
        let take = Script::new(include_str!("take.lua"));
        let nudge = keys.nudge(runner);
        Self { client, health, conn: None, take, overflow: keys.overflow.clone(), lines, lists, nudge, low_water }
    }

    /// Take up to `most` ids without waiting.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`]. The connection is dropped.
    pub async fn take(&mut self, most: usize, order: &FetchOrder) -> Result<TakenIds, IndexError> {
        let attempted = "take ready jobs";
        let mut conn = self.connection().await?;
        let mut call = self.take.prepare_invoke();
        call.key(&self.overflow);
        for place in &order.lines {
            call.key(&self.lists[*place]);
        }
        call.arg(most).arg(self.low_water);
        for (place, group) in order.lines.iter().zip(&order.groups) {
            call.arg(self.lines[*place].as_str()).arg(group.map_or(0, |group| group + 1));
        }
        for room in &order.room {
            call.arg(*room);
        }
        let words: Result<Vec<String>, _> = call.invoke_async(&mut conn).await;
        let words = words.map_err(|e| self.broken(attempted, &e))?;
        Ok(parse_taken(&words, &order.lines))
    }

    /// Wait up to a second for one id. A caller that cancels this call must [`abandon`](Self::abandon) the connection.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`]. The connection is dropped.
    pub async fn wait(&mut self, order: &FetchOrder) -> Result<Popped, IndexError> {
        let mut conn = self.connection().await?;
        // The wake-up list comes first: the reason of the wake-up may forbid taking from the others.
        let lists = std::iter::once(&self.nudge).chain(order.lines.iter().map(|place| &self.lists[*place]));
        let lists: Vec<&String> = lists.collect();
        match conn.brpop(lists, BLOCK_SECONDS).await {
            Ok(None) => Ok(Popped::Nothing),
            Ok(Some([list, _])) if list == self.nudge => Ok(Popped::Nudge),
            Ok(Some([list, id])) => {
                let place = self.lists.iter().position(|known| *known == list);
                let popped = place.and_then(|place| Some(Popped::Job(place, id.parse().ok()?)));
                Ok(popped.unwrap_or(Popped::Nothing))
            }
            Err(e) => Err(self.broken("wait for ready jobs", &e)),
        }
    }

    /// Put back an id that this runner will not run, as the next one to be taken.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`]. The connection is dropped, and the reconciler puts the id back.
    pub async fn put_back(&mut self, place: usize, id: JobId) -> Result<(), IndexError> {
        let mut conn = self.connection().await?;
        conn.rpush(&self.lists[place], id.to_string()).await.map(drop).map_err(|e| self.broken("put a job back", &e))
    }

    /// Put back ids of one lane, the first of them as the next one to be taken.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`]. The connection is dropped, and the reconciler puts the ids back.
    pub async fn put_all_back(&mut self, place: usize, ids: &[JobId]) -> Result<(), IndexError> {
        if ids.is_empty() {
            return Ok(());
        }
        let mut conn = self.connection().await?;
        let last_first: Vec<String> = ids.iter().rev().map(JobId::to_string).collect();
        conn.rpush(&self.lists[place], last_first).await.map(drop).map_err(|e| self.broken("put jobs back", &e))
    }

    /// Drop the connection together with the call on it: its response would not be read.
    pub fn abandon(&mut self) {
        self.conn = None;
    }

    async fn connection(&mut self) -> Result<MultiplexedConnection, IndexError> {
        if let Some(conn) = &self.conn {
            return Ok(conn.clone());
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(Duration::from_secs_f64(BLOCK_SECONDS) + PATIENCE));
        let conn = self.client.get_multiplexed_async_connection_with_config(&config).await;
        let conn = conn.map_err(|e| self.broken("connect the fetcher", &e))?;
        self.conn = Some(conn.clone());
        Ok(conn)
    }

    fn broken(&mut self, attempted: &'static str, error: &redis::RedisError) -> IndexError {
        self.conn = None;
        let error = IndexError::Unavailable { attempted, cause: error.to_string(), source: Some(error.clone()) };
        self.health.record_failure(&error);
        error
    }
}

/// Parse the result of take.lua, for lists in this order.
fn parse_taken(words: &[String], order: &[usize]) -> TakenIds {
    let mut words = words.iter();
    let refill = words.next().is_some_and(|word| word == "1");
    let mut ids = Vec::with_capacity(words.len());
    while let (Some(place), Some(count)) = (words.next(), words.next()) {
        let place = place.parse::<usize>().ok().and_then(|place| order.get(place.checked_sub(1)?));
        let (Some(place), Ok(count)) = (place, count.parse::<usize>()) else { break };
        // An element that is no id was not put there by tickr. Skip it.
        ids.extend(words.by_ref().take(count).filter_map(|id| Some((*place, id.parse().ok()?))));
    }
    TakenIds { ids, refill }
}
