//! One pair of private servers for the whole program, or the servers that the environment names.

use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection};
use tickr::services::{Options, Services};
use tickr::store::Store;

/// The servers of the tests.
pub(crate) enum Servers {
    /// Servers that this program has started.
    Own(Box<Services>),
    /// Servers of `TICKR_TEST_MYSQL_URL` (without a database) and `TICKR_TEST_REDIS_URL`.
    Given { mysql: String, redis: String },
}

impl Servers {
    pub(crate) fn mysql_url(&self, database: &str) -> String {
        match self {
            Self::Own(services) => services.mysql_url(database),
            Self::Given { mysql, .. } => {
                let (base, query) = mysql.split_once('?').map_or((mysql.as_str(), None), |(b, q)| (b, Some(q)));
                let url = format!("{}/{database}", base.trim_end_matches('/'));
                query.map_or(url.clone(), |query| format!("{url}?{query}"))
            }
        }
    }

    pub(crate) fn redis_url(&self) -> String {
        match self {
            Self::Own(services) => services.redis_url(),
            Self::Given { redis, .. } => redis.clone(),
        }
    }
}

/// Return the servers. They end with this program, even if it is killed.
pub(crate) fn servers() -> &'static Servers {
    static SERVERS: OnceLock<Servers> = OnceLock::new();
    SERVERS.get_or_init(|| {
        let given = |name: &str| std::env::var(name).ok().filter(|url| !url.is_empty());
        if let (Some(mysql), Some(redis)) = (given("TICKR_TEST_MYSQL_URL"), given("TICKR_TEST_REDIS_URL")) {
            return Servers::Given { mysql, redis };
        }
        let options = Options::ephemeral_under(Path::new(env!("CARGO_TARGET_TMPDIR")));
        Servers::Own(Box::new(Services::start(&options).unwrap()))
    })
}

/// Return a name that no other test of any run has.
pub(crate) fn unique_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let nonce = uuid::Uuid::new_v4().simple().to_string();
    format!("t{}_{}", NEXT.fetch_add(1, Ordering::Relaxed), &nonce[..8])
}

/// Create an empty database. Return its name and its URL.
pub(crate) async fn database() -> (String, String) {
    let name = unique_name();
    let url = servers().mysql_url(&name);
    Store::create_database(&url).await.unwrap();
    (name, url)
}

/// Open a connection of the test's own, for looking into the tables and for breaking things.
pub(crate) async fn connect(url: &str) -> MySqlConnection {
    MySqlConnection::connect(url).await.unwrap()
}

/// Drop a database, if the servers still answer.
pub(crate) async fn drop_database(url: &str, name: &str) {
    if let Ok(mut conn) = MySqlConnection::connect(url).await {
        let sql = format!("DROP DATABASE IF EXISTS {name}");
        let _ = conn.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await;
    }
}
