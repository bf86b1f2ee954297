//! A server that is asked which server holds the index: a sentinel, or a node of a Redis Cluster.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisResult};
use tokio::sync::Mutex;

use super::servers::{Access, Address};

/// Longest time for an answer, with the connection. It is that of a call to the index.
const PATIENCE: Duration = Duration::from_secs(1);

pub(super) struct Guide {
    address: Address,
    client: Client,
    /// The connection, kept for the next question.
    conn: Mutex<Option<MultiplexedConnection>>,
    /// The last question has no answer yet. Questions are dropped when other servers have answered.
    unanswered: AtomicBool,
}

impl Guide {
    pub(super) fn new(address: &Address, access: &Access) -> RedisResult<Self> {
        Ok(Self {
            address: address.clone(),
            client: access.client(address)?,
            conn: Mutex::new(None),
            unanswered: AtomicBool::new(false),
        })
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    /// Send a question. The error names the server.
    pub(super) async fn ask<T: redis::FromRedisValue>(&self, question: &redis::Pipeline) -> Result<T, String> {
        // A connection that was silent before may be dead without an error.
        if self.unanswered.swap(true, Ordering::Relaxed) {
            *self.conn.lock().await = None;
        }
        let answer = tokio::time::timeout(PATIENCE, async {
            let mut conn = self.connection().await?;
            question.query_async(&mut conn).await
        });
        let failure = match answer.await {
            Ok(Ok(answer)) => {
                self.unanswered.store(false, Ordering::Relaxed);
                return Ok(answer);
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer within a second".to_owned(),
        };
        *self.conn.lock().await = None;
        Err(format!("{}: {failure}", self.address))
    }

    async fn connection(&self) -> RedisResult<MultiplexedConnection> {
        let kept = self.conn.lock().await.clone();
        if let Some(conn) = kept {
            return Ok(conn);
        }
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(Some(PATIENCE)).set_response_timeout(Some(PATIENCE));
        let conn = self.client.get_multiplexed_async_connection_with_config(&config).await?;
        *self.conn.lock().await = Some(conn.clone());
        Ok(conn)
    }
}
