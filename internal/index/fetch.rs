//! The fetcher's own connection, the only one that blocks.
//!
//! The driver gives every command a response timeout, blocking ones too, and a BRPOP that the client gives up on still
//! takes its element when one comes: the job would be late until the reconciler finds it. So this connection is used by
//! one task, its timeout is above the block time, a call is never cancelled while the connection lives on, and after any
//! error the connection is dropped before the next try. Dropping and reconnecting also finds the new master after a
//! failover.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, AsyncTypedCommands, Script};

use super::keys::{Keys, Line};
use super::{IndexError, IndexHealth};
use crate::job::JobId;

/// How long one BRPOP blocks, in seconds. Also how long a stopping fetcher may have to wait for it.
const BLOCK_SECONDS: f64 = 1.0;
/// How long a connection may take, and an answer beyond the block time.
const PATIENCE: Duration = Duration::from_secs(1);

/// Ids taken from the ready lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Due jobs, most urgent first.
    pub ids: Vec<JobId>,
    /// A line that left jobs out has run low.
    pub refill: bool,
}

/// The list that an id came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyList(String);

/// One fetcher's line to Redis.
pub struct Fetch {
    client: redis::Client,
    health: Arc<IndexHealth>,
    conn: Option<MultiplexedConnection>,
    take: Script,
    overflow: String,
    lines: Vec<Line>,
    lists: Vec<String>,
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
        lines: Vec<Line>,
        low_water: usize,
    ) -> Self {
        let lists = lines.iter().map(|line| keys.ready(line)).collect();
        let take = Script::new(include_str!("take.lua"));
        Self { client, health, conn: None, take, overflow: keys.overflow.clone(), lines, lists, low_water }
    }

    /// Take up to `most` ids without waiting.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`]; the connection is dropped.
    pub async fn take(&mut self, most: usize) -> Result<Taken, IndexError> {
        let attempted = "take ready jobs";
        let mut conn = self.connection().await?;
        let mut call = self.take.prepare_invoke();
        call.key(&self.overflow);
        for list in &self.lists {
            call.key(list);
        }
        call.arg(most).arg(self.low_water);
        for line in &self.lines {
            call.arg(line.as_str());
        }
        let words: Result<Vec<String>, _> = call.invoke_async(&mut conn).await;
        let words = words.map_err(|e| self.broken(attempted, &e))?;
        let refill = words.first().is_some_and(|word| word == "1");
        Ok(Taken { ids: words.iter().skip(1).filter_map(|id| id.parse().ok()).collect(), refill })
    }

    /// Wait up to a second for one id. Whoever cancels it must [`abandon`](Self::abandon) the connection. The other half of the answer is the place for
    /// [`put_back`](Self::put_back).
    ///
    /// # Errors
    /// [`IndexError::Unavailable`]; the connection is dropped.
    pub async fn wait(&mut self) -> Result<Option<(JobId, ReadyList)>, IndexError> {
        let mut conn = self.connection().await?;
        match conn.brpop(&self.lists, BLOCK_SECONDS).await {
            Ok(popped) => Ok(popped.and_then(|[list, id]| Some((id.parse().ok()?, ReadyList(list))))),
            Err(e) => Err(self.broken("wait for ready jobs", &e)),
        }
    }

    /// Give back an id that nobody here will run, as the next to be taken.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`]; the connection is dropped, and the reconciler brings the id back.
    pub async fn put_back(&mut self, id: JobId, list: ReadyList) -> Result<(), IndexError> {
        let mut conn = self.connection().await?;
        conn.rpush(list.0, id.to_string()).await.map(drop).map_err(|e| self.broken("put a job back", &e))
    }

    /// Drop the connection, and with it whatever was asked on it: nobody would read the answer.
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
        let error = IndexError::Unavailable { attempted, cause: error.to_string() };
        self.health.failed(&error);
        error
    }
}
