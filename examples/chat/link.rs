//! The connection of this process to Redis.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};

/// Time for a connection, and for an answer.
const TO_ANSWER: Duration = Duration::from_secs(1);

/// A connection that can be replaced. Cheap to clone.
///
/// The client of Redis connects again after a break, but goes on to use a connection that the network has forgotten: each
/// command on it waits for its time limit.
#[derive(Clone)]
pub(crate) struct Link {
    client: redis::Client,
    current: Arc<Mutex<ConnectionManager>>,
}

impl Link {
    pub(crate) async fn connect(url: &str) -> anyhow::Result<Self> {
        let client = redis::Client::open(url).context("read the URL of Redis")?;
        let current = Arc::new(Mutex::new(manager(&client).await?));
        Ok(Self { client, current })
    }

    /// Return the client, for subscriptions.
    pub(crate) const fn client(&self) -> &redis::Client {
        &self.client
    }

    /// Return the connection of now.
    pub(crate) fn connection(&self) -> ConnectionManager {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replace the connection.
    pub(crate) async fn renew(&self) -> anyhow::Result<()> {
        let renewed = manager(&self.client).await?;
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = renewed;
        Ok(())
    }
}

async fn manager(client: &redis::Client) -> anyhow::Result<ConnectionManager> {
    let config = ConnectionManagerConfig::new()
        .set_number_of_retries(1)
        .set_max_delay(Duration::from_millis(200))
        .set_connection_timeout(Some(TO_ANSWER))
        .set_response_timeout(Some(TO_ANSWER));
    ConnectionManager::new_with_config(client.clone(), config).await.context("connect to Redis")
}
