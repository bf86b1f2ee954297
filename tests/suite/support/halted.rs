//! The tables and Redis keys of a tickr that was stopped, which no runner repairs any more.

use sqlx::{AssertSqlSafe, Executor, MySqlConnection};
use tickr::app::connect_store;
use tickr::config::Config;
use tickr::index::Index;
use tickr::store::Store;
use tickr::verify::{Pace, Report, VerifySettings, verify};

use super::servers::{connect, drop_database};

/// The tables, the Redis keys and the configuration.
pub(crate) struct Halted {
    pub(crate) config: Config,
    pub(crate) store: Store,
    pub(crate) index: Index,
    pub(super) name: String,
    pub(crate) dir: tempfile::TempDir,
}

impl Halted {
    pub(super) async fn new(config: Config, name: String, dir: tempfile::TempDir) -> Self {
        let store = connect_store(&config).await.unwrap();
        let index = index(&config);
        Self { config, store, index, name, dir }
    }

    /// Check everything, and report every disagreement at once.
    pub(crate) async fn verify(&self, repair: bool) -> Report {
        let settings = settings(&self.config, std::time::Duration::ZERO, repair);
        verify(&self.store, &self.index, &settings, |_| {}).await.unwrap()
    }

    pub(crate) async fn mysql(&self) -> MySqlConnection {
        connect(self.config.mysql_url().unwrap().expose()).await
    }

    pub(crate) async fn sql(&self, sql: impl Into<String>) {
        self.mysql().await.execute(sqlx::raw_sql(AssertSqlSafe(sql.into()))).await.unwrap();
    }

    pub(crate) async fn redis(&self) -> redis::aio::MultiplexedConnection {
        super::redis_group::open(self.config.redis_url().unwrap().expose()).await
    }

    pub(crate) fn key(&self, name: &str) -> String {
        format!("{{{}}}:{name}", self.config.redis_prefix)
    }

    pub(crate) async fn drop(self) {
        self.store.close().await;
        drop_database(self.config.mysql_url().unwrap().expose(), &self.name).await;
    }
}

/// Connect to the index of a configuration.
pub(crate) fn index(config: &Config) -> Index {
    tickr::app::index_of(config).unwrap()
}

/// Return the settings of a verification with this configuration.
pub(crate) fn settings(config: &Config, patience: std::time::Duration, repair: bool) -> VerifySettings {
    let retention = tickr::app::retention_of(config);
    VerifySettings { since: None, patience, repair, retention, pace: Pace::Full }
}

/// Check every promise that the tables of this database can show, in a test whose store belongs to no index.
pub(crate) async fn assert_sound_without_index(url: &str, name: &str) {
    let mut config = Config::for_tests(url, "redis://127.0.0.1:1");
    name.clone_into(&mut config.redis_prefix);
    // The store of the test may be behind a proxy that still refuses.
    let store = connect_store(&config).await.unwrap();
    let settings = settings(&config, VerifySettings::PATIENCE, false);
    let report = verify(&store, &index(&config), &settings, |_| {}).await.unwrap();
    let sound = only_redis_is_unchecked(&report);
    assert!(sound, "{}", serde_json::to_string_pretty(&report).unwrap());
    store.close().await;
}

/// Return whether a verification found no fault and could check everything except the index, because Redis was out.
pub(crate) fn only_redis_is_unchecked(report: &Report) -> bool {
    let because_of_redis = |why: &String| why.starts_with("Redis does not answer");
    report.faults().is_empty() && !report.unchecked.is_empty() && report.unchecked.iter().all(because_of_redis)
}
