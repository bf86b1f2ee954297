//! One pair of private servers for the whole program, or the servers that the environment names.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection};
use tickr::job::TablePrefix;
use tickr::services::{Options, Services};
use tickr::store::{Store, StoreSettings, with_prefix};

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
        Servers::Own(Box::new(Services::start(&server_options()).unwrap()))
    })
}

/// Return the options of servers for tests. Their data is in memory if the machine has enough of it: each test creates and
/// drops some fifty tables, and the file system of a disk spends a fifth of a run on their files.
pub(crate) fn server_options() -> Options {
    static IN_MEMORY: OnceLock<bool> = OnceLock::new();
    let disk = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let options = Options::ephemeral_under(disk);
    if *IN_MEMORY.get_or_init(|| has_memory_for_servers().unwrap_or(false)) {
        let template = disk.join("template");
        return Options::ephemeral(Path::new(MEMORY).join(format!("tickr-{}", unique_name()))).template_dir(template);
    }
    options
}

/// The file system in memory that Linux has.
const MEMORY: &str = "/dev/shm";

/// Return whether servers can keep their data in memory: 6 GiB are free there, 10 GiB in the whole machine, and as much is
/// allowed to this container. Nothing if the machine does not say.
fn has_memory_for_servers() -> Option<bool> {
    const GIB_IN_KB: u64 = 1 << 20;
    let df = Command::new("df").args(["-Pk", MEMORY]).output().ok()?;
    let free: u64 = String::from_utf8(df.stdout).ok()?.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()?;
    let memory = std::fs::read_to_string("/proc/meminfo").ok()?;
    let available = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let available: u64 = available.split_whitespace().next()?.parse().ok()?;
    // A container without a limit has no file, or the word `max` in it.
    let limit = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|text| text.trim().parse().ok());
    let limit = limit.map_or(u64::MAX, |bytes: u64| bytes / 1_024);
    Some(free >= 6 * GIB_IN_KB && available.min(limit) >= 10 * GIB_IN_KB)
}

/// Return a name that no other test of any run has.
pub(crate) fn unique_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let nonce = uuid::Uuid::new_v4().simple().to_string();
    format!("t{}_{}", NEXT.fetch_add(1, Ordering::Relaxed), &nonce[..8])
}

/// Return an address for a server that the test stops and starts again. Its port is none of those that the system gives
/// to sockets that ask for any, so no other test takes it meanwhile.
pub(crate) fn lasting_addr() -> SocketAddr {
    static NEXT: OnceLock<AtomicU32> = OnceLock::new();
    let next = NEXT.get_or_init(|| AtomicU32::new(20_000 + std::process::id() % 1_000 * 10));
    loop {
        let port = u16::try_from(next.fetch_add(1, Ordering::Relaxed)).expect("a free port");
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(addr).is_ok() {
            return addr;
        }
    }
}

/// Return the prefix of the tables in this run of the tests: `TICKR_TEST_TABLE_PREFIX`, usually none.
pub(crate) fn table_prefix() -> TablePrefix {
    std::env::var("TICKR_TEST_TABLE_PREFIX")
        .ok()
        .filter(|text| !text.is_empty())
        .map_or_else(TablePrefix::default, |text| {
            text.parse().unwrap_or_else(|error| panic!("TICKR_TEST_TABLE_PREFIX: {error}"))
        })
}

/// Create an empty database. Return its name and its URL.
pub(crate) async fn database() -> (String, String) {
    let name = unique_name();
    let url = servers().mysql_url(&name);
    Store::create_database(&url).await.unwrap();
    (name, url)
}

/// Create a database with the tables of this binary. Return its name and its URL.
///
/// The first call migrates a database; the others copy its tables with one statement for each. The test
/// `migrations::the_tables_of_the_tests_are_those_of_the_migrations` compares the two.
pub(crate) async fn migrated_database() -> (String, String) {
    static STATEMENTS: tokio::sync::OnceCell<Vec<String>> = tokio::sync::OnceCell::const_new();
    let (name, url) = database().await;
    let statements = STATEMENTS.get_or_init(template).await;
    let mut conn = MySqlConnection::connect(&url).await.unwrap();
    for statement in statements {
        conn.execute(sqlx::raw_sql(AssertSqlSafe(statement.as_str()))).await.unwrap();
    }
    // MySQL may have closed the socket before the driver does.
    let _ = conn.close().await;
    (name, url)
}

/// Migrate a database. Return the statements that make its tables, and the rows of its applied migrations.
async fn template() -> Vec<String> {
    let (name, url) = database().await;
    let settings = StoreSettings { url: url.clone(), connections: 2, flushers: 1, table_prefix: table_prefix() };
    let store = Store::connect(&settings, std::time::Duration::from_secs(10)).await.unwrap();
    store.migrate().await.unwrap();
    store.close().await;
    let mut conn = MySqlConnection::connect(&url).await.unwrap();
    let tables = "SELECT CAST(table_name AS CHAR) FROM information_schema.tables WHERE table_schema = DATABASE()";
    let tables: Vec<String> = sqlx::query_scalar(tables).fetch_all(&mut conn).await.unwrap();
    let mut statements = Vec::new();
    for table in tables {
        let sql = format!("SHOW CREATE TABLE {table}");
        let (_, text): (String, String) = sqlx::query_as(AssertSqlSafe(sql)).fetch_one(&mut conn).await.unwrap();
        statements.push(text);
    }
    let rows = "SELECT CONCAT('(', version, ',', QUOTE(description), ',', QUOTE(installed_on), ',', success, ',0x', \
                HEX(checksum), ',', execution_time, ')') FROM _sqlx_migrations";
    let rows = with_prefix(&table_prefix(), rows);
    let rows: Vec<String> = sqlx::query_scalar(AssertSqlSafe(rows.as_ref())).fetch_all(&mut conn).await.unwrap();
    let ledger = with_prefix(&table_prefix(), "INSERT INTO _sqlx_migrations VALUES ").into_owned();
    statements.push(ledger + &rows.join(","));
    // MySQL may have closed the socket before the driver does.
    let _ = conn.close().await;
    drop_database(&url, &name).await;
    statements
}

/// Open a connection of the test's own, for looking into the tables and for breaking things.
///
/// In a run with a table prefix, its statements still name the tables without it. So they go to a database with a view of
/// each table, which only the tests know: a statement of tickr that lacks the prefix finds no table.
pub(crate) async fn connect(url: &str) -> MySqlConnection {
    let mut conn = MySqlConnection::connect(url).await.unwrap();
    let prefix = table_prefix();
    if !prefix.is_empty() {
        use_views(&mut conn, prefix.as_str()).await;
    }
    conn
}

/// Select the database with the views, and make those that it lacks.
async fn use_views(conn: &mut MySqlConnection, prefix: &str) {
    let database: Option<String> = sqlx::query_scalar("SELECT DATABASE()").fetch_one(&mut *conn).await.unwrap();
    let Some(database) = database.filter(|name| !name.is_empty()) else { return };
    let views = format!("{database}{VIEWS}");
    let named = "SELECT CAST(table_name AS CHAR) FROM information_schema.tables WHERE table_schema = ?";
    let tables: Vec<String> = sqlx::query_scalar(named).bind(&database).fetch_all(&mut *conn).await.unwrap();
    let made: Vec<String> = sqlx::query_scalar(named).bind(&views).fetch_all(&mut *conn).await.unwrap();
    let tables: Vec<&str> = tables.iter().filter_map(|table| table.strip_prefix(prefix)).collect();
    if tables.is_empty() {
        return;
    }
    let mut sql = format!("CREATE DATABASE IF NOT EXISTS {views}; USE {views}");
    for table in tables {
        let view = match table {
            "migrations" => "_sqlx_migrations",
            "outbox" => "tickr_outbox",
            other => other,
        };
        if !made.iter().any(|made| made == view) {
            sql.push_str(&format!("; CREATE OR REPLACE VIEW {view} AS SELECT * FROM {database}.{prefix}{table}"));
        }
    }
    conn.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await.unwrap();
}

/// End of the name of a database with views.
const VIEWS: &str = "_views";

/// Drop a database, if the servers still answer.
pub(crate) async fn drop_database(url: &str, name: &str) {
    if let Ok(mut conn) = MySqlConnection::connect(url).await {
        let sql = format!("DROP DATABASE IF EXISTS {name}; DROP DATABASE IF EXISTS {name}{VIEWS}");
        let _ = conn.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await;
    }
}
