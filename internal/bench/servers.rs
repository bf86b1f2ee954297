//! The servers of a bench, and the databases and key prefixes on them that belong to the bench. All have one random
//! name.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;

use super::BenchError;
use crate::app::index_of;
use crate::config::{Config, ServerUrl};
use crate::job::TablePrefix;
use crate::store::{Store, StoreSettings};

/// Time limit for reaching a server.
const PATIENCE: Duration = Duration::from_secs(5);

/// The servers. The bench touches only the databases and keys that it created.
#[derive(Debug)]
pub struct BenchServers {
    mysql: reqwest::Url,
    redis: ServerUrl,
    /// Start of all names. A number follows.
    name: String,
    plots: Mutex<UsedNamespaces>,
    private: bool,
    table_prefix: TablePrefix,
}

/// The namespaces that were given out, by number.
#[derive(Debug, Default)]
struct UsedNamespaces {
    next: u32,
    /// Namespaces that may still contain something.
    open: BTreeSet<u32>,
}

/// A database name and a key prefix that were never used before. The database does not exist yet.
#[derive(Debug)]
pub(super) struct Namespace {
    number: u32,
    /// Configuration of a runner in this namespace.
    pub(super) config: Config,
}

/// Versions of the servers, and their durability.
#[derive(Clone, Debug, Serialize)]
pub struct ServerFacts {
    /// Start of the names of this bench's databases and keys.
    pub name: String,
    /// Version of the MySQL server.
    pub mysql: String,
    /// Version of the Redis server.
    pub redis: String,
    /// True when every commit is synced before it is acknowledged.
    pub durable: bool,
    /// The settings that prevent that, otherwise.
    pub weaknesses: Vec<String>,
}

impl BenchServers {
    /// Use the servers at these addresses. A database in the MySQL address is left alone.
    ///
    /// # Errors
    /// [`BenchError::Url`] when an address cannot be used.
    pub fn new(mysql: &str, redis: &str) -> Result<Self, BenchError> {
        let nonce = uuid::Uuid::new_v4().simple().to_string();
        let name = format!("tickr_bench_{}", &nonce[..8]);
        let mysql: reqwest::Url = mysql
            .parse()
            .map_err(|_| BenchError::Url("mysql", "it is not mysql://user:password@host:port".to_owned()))?;
        let redis = ServerUrl::redis(redis).map_err(|e| BenchError::Url("redis", e.to_string()))?;
        let ground =
            Self { mysql, redis, name, plots: Mutex::default(), private: false, table_prefix: TablePrefix::default() };
        ground.mysql_url(&ground.name)?;
        Ok(ground)
    }

    /// Mark the servers as used by this bench alone, so that it may run statements that would slow down other users.
    #[must_use]
    pub fn private(self) -> Self {
        Self { private: true, ..self }
    }

    /// Measure with this prefix before the names of the tables.
    #[must_use]
    pub fn with_table_prefix(self, table_prefix: TablePrefix) -> Self {
        Self { table_prefix, ..self }
    }

    pub(super) fn is_private(&self) -> bool {
        self.private
    }

    pub(super) fn next(&self) -> Result<Namespace, BenchError> {
        let mut plots = self.plots();
        let (number, config) = (plots.next, self.config(plots.next)?);
        plots.next += 1;
        plots.open.insert(number);
        Ok(Namespace { number, config })
    }

    /// Remove everything in a namespace.
    pub(super) async fn clear(&self, plot: &Namespace) -> Result<(), BenchError> {
        if let Some(mysql) = &plot.config.mysql_url {
            Store::drop_database(mysql.expose()).await?;
        }
        index_of(&plot.config)?.forget().await?;
        self.plots().open.remove(&plot.number);
        Ok(())
    }

    fn plots(&self) -> MutexGuard<'_, UsedNamespaces> {
        self.plots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn config(&self, number: u32) -> Result<Config, BenchError> {
        let name = format!("{}_{number}", self.name);
        let mut config = Config::defaults();
        config.mysql_url = Some(self.mysql_url(&name)?);
        config.redis_url = Some(self.redis.clone());
        config.redis_prefix = name;
        config.table_prefix = self.table_prefix.clone();
        Ok(config)
    }

    fn mysql_url(&self, database: &str) -> Result<ServerUrl, BenchError> {
        let mut url = self.mysql.clone();
        url.set_path(database);
        ServerUrl::mysql(url.as_str()).map_err(|e| BenchError::Url("mysql", e.to_string()))
    }

    /// Read the versions and the durability of both servers. This also reports early that a server cannot be reached.
    pub(super) async fn look(&self) -> Result<ServerFacts, BenchError> {
        let plot = self.next()?;
        let index = index_of(&plot.config)?;
        let mysql = self.mysql_url(&plot.config.redis_prefix)?;
        let at_mysql = |error: crate::store::StoreError| BenchError::Server {
            place: mysql.masked().to_owned(),
            cause: error.to_string(),
        };
        Store::create_database(mysql.expose()).await.map_err(at_mysql)?;
        let store = store_of(&plot.config).await?;
        let durability = store.durability().await.map_err(at_mysql)?;
        store.close().await;
        let at_redis = |error: crate::index::IndexError| BenchError::Server {
            place: self.redis.masked().to_owned(),
            cause: error.to_string(),
        };
        let asked = tokio::time::timeout(PATIENCE, async { index.bare().await?.version().await }).await;
        let redis = asked
            .map_err(|_| BenchError::Server {
                place: self.redis.masked().to_owned(),
                cause: format!("redis does not answer within {} s", PATIENCE.as_secs()),
            })?
            .map_err(at_redis)?;
        self.clear(&plot).await?;
        let (durable, weaknesses) = (durability.durable, durability.weaknesses);
        Ok(ServerFacts { name: self.name.clone(), mysql: durability.server, redis, durable, weaknesses })
    }

    /// Remove everything that is left of this bench. Call it only when no task of the bench runs any more.
    ///
    /// # Errors
    /// When a server cannot be reached. Then something may be left over.
    pub async fn sweep(&self) -> Result<(), BenchError> {
        let open: Vec<u32> = self.plots().open.iter().copied().collect();
        for number in open {
            self.clear(&Namespace { number, config: self.config(number)? }).await?;
        }
        Ok(())
    }
}

/// Open a connection to the store of a configuration.
pub(super) async fn store_of(config: &Config) -> Result<Store, BenchError> {
    let url = config.mysql_url().map_err(crate::app::StartError::from)?.expose().to_owned();
    let table_prefix = config.table_prefix.clone();
    Ok(Store::connect(&StoreSettings { url, connections: 4, flushers: 1, table_prefix }, PATIENCE).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_given_database_is_replaced_by_one_of_its_own() {
        for given in
            ["mysql://root:p%40ss@db:3306/production", "mysql://root:p%40ss@db:3306", "mariadb://root:p%40ss@db:3306/"]
        {
            let ground = BenchServers::new(given, "redis://127.0.0.1").unwrap();
            let (first, second) = (ground.next().unwrap().config, ground.next().unwrap().config);
            let url = first.mysql_url.unwrap();
            assert!(url.expose().starts_with("mysql://root:p%40ss@db:3306/tickr_bench_"), "{}", url.masked());
            assert!(url.expose().ends_with("_0") && first.redis_prefix.starts_with("tickr_bench_"));
            assert_ne!(first.redis_prefix, second.redis_prefix);
        }
        let socket = BenchServers::new("mysql://root@localhost/?socket=%2Ftmp%2Fmy.sock", "redis://127.0.0.1").unwrap();
        let url = socket.next().unwrap().config.mysql_url.unwrap();
        assert!(url.expose().ends_with("_0?socket=%2Ftmp%2Fmy.sock"), "{}", url.masked());
    }

    #[test]
    fn addresses_that_cannot_be_used_are_refused_without_being_quoted() {
        for (mysql, redis, part) in [
            ("canary", "redis://127.0.0.1", "mysql url"),
            ("http://canary/x", "redis://127.0.0.1", "mysql url"),
            ("mysql://db/x", "canary", "redis url"),
        ] {
            let error = BenchServers::new(mysql, redis).unwrap_err().to_string();
            assert!(error.contains(part) && !error.contains("canary"), "{error}");
        }
    }
}
