//! Migrations: any number of processes at once, killed at any moment, refused for a missing right, delayed by other
//! sessions.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rand::Rng as _;
use serde_json::json;
use sqlx::migrate::Migrator;
use sqlx::{AssertSqlSafe, Executor as _, MySqlConnection, Row as _};
use tickr::services::Services;
use tickr::store::{MigrateSettings, Store, StoreSettings};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::support::program::{Program, command, on_servers, outcome, tickr};
use crate::support::{
    DEADLINE, Proxy, answer, connect, database, drop_database, eventually, http, is_full, lasting_addr,
    migrated_database, server_options, servers, table_prefix,
};

/// The last migration of the binaries whose migrations were run by their driver.
const LAST_OF_THE_DRIVER: i64 = 23;

/// The rights that every runner needs.
const ROWS: &str = "SELECT, INSERT, UPDATE, DELETE";

/// An empty database for one test.
struct Empty {
    name: String,
    url: String,
    dir: tempfile::TempDir,
}

impl Empty {
    async fn new() -> Self {
        let (name, url) = database().await;
        Self { name, url, dir: tempfile::tempdir().unwrap() }
    }

    async fn sql(&self, sql: impl Into<String>) {
        let sql = sql.into();
        let mut conn = connect(&self.url).await;
        conn.execute(sqlx::raw_sql(AssertSqlSafe(sql.clone()))).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
    }

    async fn list(&self, sql: &'static str) -> Vec<String> {
        sqlx::query_scalar(sql).fetch_all(&mut connect(&self.url).await).await.unwrap()
    }

    async fn tables(&self) -> Vec<String> {
        self.list(
            "SELECT CAST(table_name AS CHAR) FROM information_schema.tables WHERE table_schema = DATABASE() ORDER BY 1",
        )
        .await
    }

    /// Return the number of migrations that have their row in the ledger.
    async fn applied(conn: &mut MySqlConnection) -> usize {
        let count: Result<i64, sqlx::Error> =
            sqlx::query_scalar("SELECT COUNT(*) FROM _sqlx_migrations").fetch_one(conn).await;
        // Before the first migration there is no such table.
        usize::try_from(count.unwrap_or_default()).unwrap()
    }

    /// Describe every table as the server does, and every migration as the ledger has it.
    async fn shape(&self) -> Vec<String> {
        let mut shape = Vec::new();
        let mut conn = connect(&self.url).await;
        for table in self.tables().await {
            let sql = format!("SHOW CREATE TABLE {table}");
            let (_, text): (String, String) = sqlx::query_as(AssertSqlSafe(sql)).fetch_one(&mut conn).await.unwrap();
            shape.push(text);
        }
        let ledger = "SELECT CONCAT(version, ' ', description, ' ', success, ' ', HEX(checksum)) FROM _sqlx_migrations ORDER BY version";
        shape.extend(self.list(ledger).await);
        shape
    }

    /// Migrate up to a version as older binaries did.
    async fn migrated_by_the_driver_to(&self, version: i64) {
        let mut conn = connect(&self.url).await;
        driver().await.run_to(version, &mut conn).await.unwrap();
    }

    async fn store(&self) -> Store {
        Self::store_at(self.url.clone()).await
    }

    /// Return the store for another account, which connects without a password.
    async fn store_as(&self, user: &str) -> Store {
        Self::store_at(as_user(&self.url, user, "")).await
    }

    async fn store_at(url: String) -> Store {
        let settings = StoreSettings { url, connections: 2, flushers: 1, table_prefix: table_prefix() };
        Store::connect(&settings, Duration::from_secs(10)).await.unwrap()
    }

    async fn migrate_with(&self, settings: &MigrateSettings) -> Result<(), tickr::store::StoreError> {
        let store = self.store().await;
        let migrated = store.migrate_with(settings).await;
        store.close().await;
        migrated
    }

    /// Make the command `tickr …` for this database.
    fn tickr(&self, args: &[&str]) -> Command {
        let mut command = command(&tickr(), self.dir.path(), args);
        on_servers(&mut command, &self.url, &servers().redis_url(), &self.name);
        command
    }

    /// Make the same command for another account, which connects without a password.
    fn tickr_as(&self, user: &str, args: &[&str]) -> Command {
        let mut command = self.tickr(args);
        command.env("TICKR_MYSQL_URL", as_user(&self.url, user, ""));
        command
    }

    fn serve(&self) -> Program {
        Program::spawn(self.tickr(&["serve", "--http-addr", "127.0.0.1:0"]))
    }

    async fn drop(self) {
        drop_database(&self.url, &self.name).await;
    }
}

/// Return the URL of the same database for another account.
fn as_user(url: &str, user: &str, password: &str) -> String {
    let (_, place) = url.split_once('@').unwrap();
    format!("mysql://{user}:{password}@{place}").replace(":@", "@")
}

fn silent(mut command: Command) -> Command {
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

async fn driver() -> Migrator {
    let mut migrator = Migrator::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations")).await.unwrap();
    migrator.set_ignore_missing(true);
    migrator
}

/// Return the tables that an undisturbed migration makes.
async fn undisturbed() -> Vec<String> {
    let database = Empty::new().await;
    database.migrate_with(&MigrateSettings::default()).await.unwrap();
    let shape = database.shape().await;
    assert!(shape.len() > 40, "{shape:#?}");
    database.drop().await;
    shape
}

#[tokio::test]
async fn the_tables_of_the_tests_are_those_of_the_migrations() {
    let (name, url) = migrated_database().await;
    let copied = Empty { name, url, dir: tempfile::tempdir().unwrap() };
    // MySQL names the character set of a column only if its statement did. The collation says the same.
    let plain = |shape: Vec<String>| -> Vec<String> {
        shape.into_iter().map(|text| text.replace("CHARACTER SET utf8mb4 ", "")).collect()
    };
    assert_eq!(plain(copied.shape().await), plain(undisturbed().await));
    copied.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn four_first_starts_at_once_on_an_empty_database_all_start() {
    let wanted = undisturbed().await;
    let within = Empty::new().await;
    let stores = futures_util::future::join_all((0..4).map(|_| within.store())).await;
    let migrated = futures_util::future::join_all(stores.iter().map(Store::migrate)).await;
    assert!(migrated.iter().all(Result::is_ok), "{migrated:#?}");
    assert_eq!(within.shape().await, wanted);
    for store in stores {
        store.close().await;
    }
    within.drop().await;

    let between = Empty::new().await;
    let mut runners: Vec<Program> = (0..4).map(|_| between.serve()).collect();
    for runner in &mut runners {
        runner.runs_a_job().await;
    }
    assert_eq!(between.shape().await, wanted);
    futures_util::future::join_all(runners.into_iter().map(Program::ends_well)).await;
    between.drop().await;
}

/// A cluster gives each of its nodes a lock of its own, so the lock does not protect one node from another.
#[tokio::test(flavor = "multi_thread")]
async fn migrations_at_once_come_to_the_same_tables_where_a_server_gives_no_lock() {
    let wanted = undisturbed().await;
    let unlocked = MigrateSettings { lock: false, ..MigrateSettings::default() };
    for _ in 0..2 {
        let database = Empty::new().await;
        let at_once = (0..4).map(|_| database.migrate_with(&unlocked));
        let migrated = futures_util::future::join_all(at_once).await;
        assert!(migrated.iter().all(Result::is_ok), "{migrated:#?}");
        assert_eq!(database.shape().await, wanted);
        database.drop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_killed_again_and_again_is_completed_by_the_next_run() {
    kill_migrations().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "has the whole number of kills with TICKR_TEST_FULL, which `make test-long` sets"]
async fn a_migration_killed_two_hundred_times_is_completed_by_the_next_run() {
    kill_migrations().await;
}

/// Kill migrations at random moments. Each database is then migrated to the end.
async fn kill_migrations() {
    const LINES: usize = 3;
    /// Number of kills of one database, before it is migrated to the end.
    const KILLS_OF_ONE: usize = 5;
    /// Longest time between the moment when a migration gets its row and the kill, in milliseconds. The statements of
    /// a migration take about as long, so the kill comes between any two of them.
    const AFTER_A_ROW: u64 = 30;
    let wanted_kills: usize = if is_full() { 200 } else { 15 };
    let wanted = undisturbed().await;
    // The shape has a line for each table, and for each migration.
    let migrations = wanted.iter().filter(|line| !line.starts_with("CREATE TABLE")).count();
    let line = async || {
        let (mut kills, mut half_done) = (0, 0);
        while kills < wanted_kills.div_ceil(LINES) {
            let database = Empty::new().await;
            let mut conn = connect(&database.url).await;
            for _ in 0..KILLS_OF_ONE {
                let done = Empty::applied(&mut conn).await;
                let last = rand::rng().random_range(done..migrations);
                let mut child = silent(database.tickr(&["migrate"])).spawn().unwrap();
                while Empty::applied(&mut conn).await < last && child.try_wait().unwrap().is_none() {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                let moment = Duration::from_millis(rand::rng().random_range(0..=AFTER_A_ROW));
                if tokio::time::timeout(moment, child.wait()).await.is_ok() {
                    break;
                }
                child.kill().await.unwrap();
                kills += 1;
                let done = Empty::applied(&mut conn).await;
                half_done += usize::from((1..migrations).contains(&done));
                if done == migrations {
                    break;
                }
            }
            let (code, said, log) = outcome(database.tickr(&["migrate"])).await;
            assert_eq!((code, said.as_str()), (0, "the tables are up to date\n"), "{log}");
            assert_eq!(database.shape().await, wanted);
            database.drop().await;
        }
        (kills, half_done)
    };
    let lines = futures_util::future::join_all((0..LINES).map(|_| line())).await;
    let (kills, half_done) = lines.into_iter().fold((0, 0), |sum, line| (sum.0 + line.0, sum.1 + line.1));
    println!("{kills} kills, of which {half_done} left a database half done");
    assert!(kills >= wanted_kills, "{kills}");
    // If there are fewer, the kills came before the first change or after the last one.
    assert!(half_done >= wanted_kills / 2, "only {half_done} of {kills} left a database half done");
}

/// An older binary was killed or refused in the middle of a version. It left some of the statements of that version,
/// and a row that says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_an_older_binary_left_half_done_is_completed() {
    let wanted = undisturbed().await;
    let migrations = driver().await;
    let points =
        [(1, 0), (1, 1), (3, 1), (7, 0), (7, 1), (7, 2), (7, 3), (20, 0), (20, 1), (22, 0), (22, 1), (22, 2), (23, 1)];
    let half_done = points.map(async |(version, statements)| {
        let database = Empty::new().await;
        database.migrated_by_the_driver_to(version - 1).await;
        let migration = migrations.iter().find(|migration| migration.version == version).unwrap();
        let mut conn = connect(&database.url).await;
        let dirty = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) VALUES (?, ?, FALSE, ?, -1)";
        let dirty = sqlx::query(dirty).bind(version).bind(&*migration.description).bind(&*migration.checksum);
        dirty.execute(&mut conn).await.unwrap();
        let text = migration.sql.as_str().lines().map(|line| line.split("--").next().unwrap()).collect::<Vec<_>>().join("\n");
        for statement in text.split(';').filter(|statement| !statement.trim().is_empty()).take(statements) {
            conn.execute(sqlx::raw_sql(AssertSqlSafe(statement.to_owned()))).await.unwrap();
        }
        assert!(driver().await.run(&mut conn).await.is_err(), "{version}: the driver goes on by itself");
        let migrated = database.migrate_with(&MigrateSettings::default()).await;
        assert!(migrated.is_ok(), "{version} after {statements} statements: {migrated:?}");
        assert_eq!(database.shape().await, wanted, "{version} after {statements} statements");
        database.drop().await;
    });
    futures_util::future::join_all(half_done).await;

    // In one database every version is marked as incomplete. In the other, an operator has added one column of seven
    // and removed the row by hand.
    let all = Empty::new().await;
    all.migrated_by_the_driver_to(LAST_OF_THE_DRIVER).await;
    all.sql("UPDATE _sqlx_migrations SET success = FALSE").await;
    all.migrate_with(&MigrateSettings::default()).await.unwrap();
    assert_eq!(all.shape().await, wanted);
    all.drop().await;
    let by_hand = Empty::new().await;
    by_hand.migrated_by_the_driver_to(21).await;
    by_hand.sql("ALTER TABLE runners ADD COLUMN pid INT UNSIGNED NULL").await;
    by_hand.migrate_with(&MigrateSettings::default()).await.unwrap();
    let columns = "SELECT CAST(column_name AS CHAR) FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'runners'";
    let columns = by_hand.list(columns).await;
    assert!(
        ["host", "pid", "drain_reason"].iter().all(|column| columns.contains(&(*column).to_owned())),
        "{columns:?}"
    );
    by_hand.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_of_the_first_binaries_stay_as_they_are_and_get_what_is_new() {
    let wanted = undisturbed().await;
    let database = Empty::new().await;
    database.migrated_by_the_driver_to(LAST_OF_THE_DRIVER).await;
    let before: Vec<String> = database
        .list("SELECT CONCAT(version, ' ', installed_on, ' ', execution_time) FROM _sqlx_migrations ORDER BY version")
        .await;
    database.migrate_with(&MigrateSettings::default()).await.unwrap();
    assert_eq!(database.shape().await, wanted);
    let after = database
        .list("SELECT CONCAT(version, ' ', installed_on, ' ', execution_time) FROM _sqlx_migrations ORDER BY version")
        .await;
    assert_eq!(before[..], after[..before.len()]);
    database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_another_program_is_named_and_not_touched() {
    // One is the usual table of a popular framework, the other has a name that a late migration uses.
    let tables = [
        ("jobs", "CREATE TABLE jobs (id BIGINT PRIMARY KEY, queue VARCHAR(255), payload LONGTEXT, attempts TINYINT)"),
        ("verifications", "CREATE TABLE verifications (id BIGINT PRIMARY KEY, mail VARCHAR(255))"),
    ];
    for (name, sql) in tables {
        let database = Empty::new().await;
        database.sql(sql).await;
        let before = database
            .list("SELECT CAST(column_name AS CHAR) FROM information_schema.columns WHERE table_schema = DATABASE() ORDER BY ordinal_position")
            .await;
        let (code, _, said) = outcome(database.tickr(&["migrate"])).await;
        assert_eq!(code, 1, "{said}");
        assert!(
            said.contains(&format!("a table {name} that is not tickr's")) && said.contains("database of its own"),
            "{said}"
        );
        let tables: Vec<String> =
            database.tables().await.into_iter().filter(|table| table != "_sqlx_migrations").collect();
        assert_eq!(tables, [name]);
        let after = database.list("SELECT CAST(column_name AS CHAR) FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name <> '_sqlx_migrations' ORDER BY ordinal_position").await;
        assert_eq!(before, after);
        database.drop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_that_may_not_is_told_the_grant_before_anything_is_changed() {
    for (given, lacks) in [
        ("SELECT, INSERT, UPDATE, DELETE", "CREATE, ALTER"),
        ("SELECT, INSERT, UPDATE, DELETE, CREATE", "ALTER"),
        ("CREATE, ALTER", "SELECT, INSERT, UPDATE, DELETE"),
    ] {
        let database = Empty::new().await;
        let user = &database.name;
        database.sql(format!("CREATE USER '{user}'@'%'; GRANT {given} ON {user}.* TO '{user}'@'%'")).await;
        let (code, _, said) = outcome(database.tickr_as(user, &["migrate"])).await;
        assert_eq!(code, 1, "{said}");
        let named: Vec<&str> = said
            .lines()
            .find_map(|line| line.trim().strip_prefix("GRANT ")?.strip_suffix(';'))
            .unwrap_or_else(|| panic!("{said}"))
            .split(" ON ")
            .collect();
        let rights = |text: &str| {
            let mut words: Vec<String> = text.split(", ").map(str::to_owned).collect();
            words.sort();
            words
        };
        assert_eq!(rights(named[0]), rights(lacks), "{said}");
        assert!(
            database.tables().await.iter().all(|table| table == "_sqlx_migrations"),
            "{:?}",
            database.tables().await
        );
        // A start is refused with the same text.
        let (code, _, serve) = outcome(database.tickr_as(user, &["serve", "--http-addr", "127.0.0.1:0"])).await;
        assert!(code == 1 && serve.contains(named[1]), "{serve}");
        // The printed statement works as it is.
        database.sql(format!("GRANT {}", named.join(" ON "))).await;
        let (code, _, said) = outcome(database.tickr_as(user, &["migrate"])).await;
        assert_eq!(code, 0, "{said}");
        database.sql(format!("DROP USER '{user}'@'%'")).await;
        database.drop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_without_one_of_the_rights_to_rows_is_refused_with_or_without_tables() {
    let empty = Empty::new().await;
    let (name, url) = migrated_database().await;
    let migrated = Empty { name, url, dir: tempfile::tempdir().unwrap() };
    for (database, given) in [(&empty, "SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER"), (&migrated, ROWS)] {
        let user = &database.name;
        database.sql(format!("CREATE USER '{user}'@'%'; GRANT {given} ON {user}.* TO '{user}'@'%'")).await;
    }
    for right in ROWS.split(", ") {
        for database in [&empty, &migrated] {
            let user = &database.name;
            database.sql(format!("REVOKE {right} ON {user}.* FROM '{user}'@'%'")).await;
            let store = database.store_as(user).await;
            let checked = if user == &empty.name { store.migrate().await } else { store.check_rights().await };
            store.close().await;
            let said = checked.expect_err(right).to_string();
            assert!(said.contains(&format!("GRANT {right} ON `{user}`.* TO '{user}'@'%';")), "{said}");
            // Only the account that makes the tables may be another one.
            assert!(!said.contains("with an account that has it"), "{said}");
            if right == "DELETE" {
                // A runner would start jobs, and end none.
                let serve = database.tickr_as(user, &["serve", "--http-addr", "127.0.0.1:0"]);
                let (code, _, said) = outcome(serve).await;
                assert!(code == 1 && said.contains("GRANT DELETE ON "), "{said}");
            }
            database.sql(format!("GRANT {right} ON {user}.* TO '{user}'@'%'")).await;
        }
    }
    assert!(empty.tables().await.iter().all(|table| table == "_sqlx_migrations"), "{:?}", empty.tables().await);

    // An account may also have its rights on single tables.
    let user = &migrated.name;
    let tables = format!("REVOKE {ROWS} ON {user}.* FROM '{user}'@'%'; GRANT {ROWS} ON {user}.owed TO '{user}'@'%'");
    migrated.sql(tables).await;
    let store = migrated.store_as(user).await;
    store.check_rights().await.unwrap();
    store.close().await;
    for database in [empty, migrated] {
        database.sql(format!("DROP USER '{}'@'%'", database.name)).await;
        database.drop().await;
    }
}

/// Open a snapshot of the attempts, as a backup, a report or `tickr verify` holds it. Before it, open as many
/// transactions in another database of the server as a message names: they hold no table of this one. The connections
/// come back, the one with the snapshot first, with its number.
async fn snapshot_of_attempts(database: &Empty) -> (Vec<MySqlConnection>, i64) {
    let begin = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION WITH CONSISTENT SNAPSHOT";
    let mut others = Vec::new();
    for _ in 0..3 {
        let mut other = connect(&database.url).await;
        other.execute("USE information_schema").await.unwrap();
        other.execute(begin).await.unwrap();
        others.push(other);
    }
    // The server counts the age of a transaction in whole seconds.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let mut reader = connect(&database.url).await;
    reader.execute(begin).await.unwrap();
    reader.execute("SELECT COUNT(*) FROM attempts").await.unwrap();
    let id: i64 = sqlx::query_scalar("SELECT CAST(CONNECTION_ID() AS SIGNED)").fetch_one(&mut reader).await.unwrap();
    others.insert(0, reader);
    (others, id)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_waits_for_a_snapshot_lets_settles_pass_and_says_who_is_in_the_way() {
    let database = Empty::new().await;
    database.migrated_by_the_driver_to(LAST_OF_THE_DRIVER - 1).await;
    let (mut readers, id) = snapshot_of_attempts(&database).await;

    // First the patience of the migration ends: it reports what it waits for, stops in time and leaves nothing half
    // done.
    let mut program = Program::spawn(database.tickr(&["migrate", "--patience", "6s"]));
    // Write repeatedly what a settle writes.
    let mut writer = connect(&database.url).await;
    writer.execute("SET SESSION innodb_lock_wait_timeout = 50, lock_wait_timeout = 60").await.unwrap();
    let settle = "INSERT INTO attempts (job_id, number, burned, runner, execute_at, started_at, finished_at, verdict, end_state) \
                  VALUES (UNHEX(REPLACE(UUID(), '-', '')), 1, 1, 'r', NOW(3), NOW(6), NOW(6), 'succeeded', 'completed')";
    let (mut slowest, mut settled) = (Duration::ZERO, 0);
    let ended = loop {
        let began = Instant::now();
        writer.execute(settle).await.unwrap();
        slowest = slowest.max(began.elapsed());
        settled += 1;
        if let Ok(ended) = tokio::time::timeout(Duration::from_millis(20), program.ends()).await {
            break ended;
        }
    };
    let said = program.said();
    assert_eq!(ended.code(), Some(1), "{said}");
    for part in [format!("connection {id} "), "the table attempts".to_owned(), "run `tickr migrate` again".to_owned()] {
        assert!(said.contains(&part), "{part} is not in:\n{said}");
    }
    assert!(settled > 20 && slowest < Duration::from_secs(5), "{settled} settled, the slowest took {slowest:?}");

    // Then the snapshot ends.
    let mut program = Program::spawn(database.tickr(&["migrate"]));
    program.says("waits for a table").await;
    readers[0].execute("COMMIT").await.unwrap();
    assert_eq!(program.ends().await.code(), Some(0), "{}", program.said());
    assert!(database.shape().await.iter().any(|table| table.contains("`exchange`")));
    database.drop().await;
}

/// Return the number of rows of each large table in the test of writes during a migration. The count of copied rows
/// tells also with fewer rows whether a table was copied.
fn many() -> u32 {
    if is_full() { 200_000 } else { 60_000 }
}

/// Longest wait of a write that a busy machine explains. A copy of 200,000 rows takes about four seconds on two cores.
const LONGEST_WRITE: Duration = Duration::from_secs(2);

/// Fill the tables that every job writes with [`many`] rows each.
async fn fill(mysql: &mut MySqlConnection) {
    let many = many();
    let digit = "(SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL \
                 SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)";
    let numbers = format!(
        "(SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d + 100000 * g.d AS n FROM {digit} a, {digit} b, \
         {digit} c, {digit} e, {digit} f, {digit} g WHERE g.d < 2) numbers WHERE n < {many}"
    );
    let id = "UNHEX(CONCAT('01900000000070008000', LPAD(HEX(n), 12, '0')))";
    for sql in [
        format!(
            "INSERT INTO jobs (id, kind, queue, priority, max_attempts, payload, execute_at, created_at) \
             SELECT {id}, 'noop', 'default', 5, 5, RPAD('\"x', 500, 'x'), NOW(3), NOW(6) FROM {numbers}"
        ),
        format!(
            "INSERT INTO owed (id, kind, queue, priority, max_attempts, state, execute_at) \
             SELECT {id}, 'noop', 'default', 5, 5, 'waiting', NOW(3) FROM {numbers}"
        ),
        format!(
            "INSERT INTO attempts (job_id, number, burned, runner, execute_at, started_at, finished_at, verdict, error) \
             SELECT {id}, 1, 1, 'r', NOW(3), NOW(6), NOW(6), 'failed', RPAD('', 500, 'x') FROM {numbers}"
        ),
    ] {
        mysql.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_go_on_while_a_migration_changes_large_tables() {
    write_while_a_migration_changes_large_tables().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "has the whole size with TICKR_TEST_FULL, which `make test-long` sets"]
async fn writes_go_on_while_a_migration_changes_tables_of_the_whole_size() {
    write_while_a_migration_changes_large_tables().await;
}

async fn write_while_a_migration_changes_large_tables() {
    // The server is set to copy each table that is altered, and lets writes wait meanwhile.
    let flag = match std::env::var_os("TICKR_MYSQLD") {
        Some(path) if !path.is_empty() => "--old-alter-table=1",
        _ => "--alter-algorithm=COPY",
    };
    let options = server_options();
    let own = Services::start(&options.mysql_flag(flag)).unwrap();
    let database = Empty { name: "t_large".into(), url: own.mysql_url("t_large"), dir: tempfile::tempdir().unwrap() };
    Store::create_database(&database.url).await.unwrap();
    // The next versions add columns to all three tables, and change an index of one.
    database.migrated_by_the_driver_to(LAST_OF_THE_DRIVER - 1).await;
    fill(&mut connect(&database.url).await).await;
    let written = "SHOW GLOBAL STATUS LIKE 'Handler_write'";
    let written = async || -> u64 {
        let row = connect(&database.url).await.fetch_one(written).await.unwrap();
        row.try_get::<String, _>(1).unwrap().parse().unwrap()
    };
    let before = written().await;
    let mut program = Program::spawn(database.tickr(&["migrate"]));
    let mut writer = connect(&database.url).await;
    let writes = [
        "INSERT INTO jobs (id, kind, queue, priority, max_attempts, payload, execute_at, created_at) \
         VALUES (UNHEX(REPLACE(UUID(), '-', '')), 'noop', 'default', 5, 5, '{}', NOW(3), NOW(6))",
        "INSERT INTO owed (id, kind, queue, priority, max_attempts, state, execute_at) \
         VALUES (UNHEX(REPLACE(UUID(), '-', '')), 'noop', 'default', 5, 5, 'waiting', NOW(3))",
        "INSERT INTO attempts (job_id, number, burned, runner, execute_at, started_at, finished_at, verdict) \
         VALUES (UNHEX(REPLACE(UUID(), '-', '')), 1, 1, 'r', NOW(3), NOW(6), NOW(6), 'failed')",
    ];
    let (mut slowest, mut rows, began) = (Duration::ZERO, 0, Instant::now());
    let ended = loop {
        for sql in writes {
            let asked = Instant::now();
            writer.execute(sql).await.unwrap();
            slowest = slowest.max(asked.elapsed());
            rows += 1;
        }
        if let Ok(ended) = tokio::time::timeout(Duration::from_millis(5), program.ends()).await {
            break ended;
        }
    };
    assert_eq!(ended.code(), Some(0), "{}", program.said());
    let copied = written().await - before - rows;
    println!(
        "migrated within {:?}; {rows} writes meanwhile, the slowest took {slowest:?}; {copied} rows were copied",
        began.elapsed()
    );
    assert!(rows > 30, "{rows}");
    assert!(slowest < LONGEST_WRITE, "a write waited for {slowest:?}");
    assert!(copied < u64::from(many()), "a table was copied: {copied} rows were written by others");
}

#[tokio::test(flavor = "multi_thread")]
async fn serve_answers_probes_while_it_waits_for_a_migration_and_starts_when_it_is_done() {
    let database = Empty::new().await;
    database.migrated_by_the_driver_to(LAST_OF_THE_DRIVER - 1).await;
    let (mut readers, id) = snapshot_of_attempts(&database).await;
    let addresses = [lasting_addr(), lasting_addr()];
    let serve = |at: usize| Program::spawn(database.tickr(&["serve", "--http-addr", &addresses[at].to_string()]));
    let until_it_says = async |at: usize, words: &str| {
        eventually(&format!("/readyz says {words:?}"), async || {
            let asked = http().get(format!("http://{}/readyz", addresses[at])).send().await.ok()?;
            let (status, body) = (asked.status().as_u16(), asked.json::<serde_json::Value>().await.ok()?);
            assert_eq!((status, &body["status"]), (503, &json!("migrating")), "{body:#}");
            body["migration"].as_str().unwrap().contains(words).then_some(())
        })
        .await;
        let url = |path: &str| format!("http://{}{path}", addresses[at]);
        let alive = http().get(url("/livez")).header("x-request-id", "mine").send().await.unwrap();
        assert_eq!((alive.status().as_u16(), alive.headers()["x-request-id"].to_str().unwrap()), (200, "mine"));
        let posted = http().post(url("/livez")).send().await.unwrap();
        let kind = posted.headers()["content-type"].to_str().unwrap();
        assert_eq!((posted.status().as_u16(), kind), (405, "application/problem+json"));
        let early = answer(http().post(url("/v1/jobs")).json(&json!({"kind": "noop"}))).await;
        assert_eq!((early.status, early.code()), (503, "store_unavailable"), "{:#}", early.body);
    };
    let mut first = serve(0);
    until_it_says(0, &format!("connection {id} ")).await;
    // Clients that keep their connections silence no probe. The kernel hands connections over in their order, so that
    // of the probe comes behind all of theirs.
    let mut idle = Vec::new();
    for _ in 0..70 {
        idle.push(TcpStream::connect(addresses[0]).await.unwrap());
    }
    eventually("a probe is answered beside idle clients", async || {
        let mut probe = TcpStream::connect(addresses[0]).await.ok()?;
        probe.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").await.ok()?;
        let mut said = [0; 12];
        tokio::time::timeout(Duration::from_secs(5), probe.read_exact(&mut said)).await.ok()?.ok()?;
        (&said == b"HTTP/1.1 200").then_some(())
    })
    .await;
    drop(idle);
    let mut second = serve(1);
    until_it_says(1, "another process").await;
    // A startup probe gives up and kills the runner.
    first.signal("KILL").await;
    first.ends().await;
    until_it_says(1, &format!("connection {id} ")).await;
    readers[0].execute("COMMIT").await.unwrap();
    second.runs_a_job().await;
    let ready = answer(http().get(format!("http://{}/readyz", addresses[1]))).await;
    assert_eq!((ready.status, &ready.body["status"]), (200, &json!("ready")));
    // With no migration missing, a start does not wait and needs only the usual rights.
    let user = &database.name;
    database
        .sql(format!("CREATE USER '{user}'@'%'; GRANT SELECT, INSERT, UPDATE, DELETE ON {user}.* TO '{user}'@'%'"))
        .await;
    let mut third = Program::spawn(database.tickr_as(user, &["serve", "--http-addr", "127.0.0.1:0"]));
    third.runs_a_job().await;
    third.ends_well().await;
    second.ends_well().await;
    database.sql(format!("DROP USER '{user}'@'%'")).await;
    database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_finds_no_tables_or_old_ones_says_to_run_tickr_migrate() {
    let database = Empty::new().await;
    let hint = "run `tickr migrate`";
    let check = ["check", "--pending"];
    let verify = ["verify"];
    let refused = async |args: &[&str]| {
        let (code, out, said) = outcome(database.tickr(args)).await;
        assert!(code != 0 && said.contains(hint), "{args:?} ended with {code}:\n{out}{said}");
    };
    refused(&check).await;
    refused(&verify).await;
    assert!(database.tables().await.is_empty(), "nothing was created");
    database.migrated_by_the_driver_to(LAST_OF_THE_DRIVER).await;
    refused(&check).await;
    let (code, _, said) = outcome(database.tickr(&["migrate"])).await;
    assert_eq!(code, 0, "{said}");
    for args in [&check[..], &verify[..]] {
        let (code, out, said) = outcome(database.tickr(args)).await;
        assert!(code == 0 && !said.contains(hint), "{args:?} ended with {code}:\n{out}{said}");
    }
    database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_key_is_made_in_older_tables_without_a_migration() {
    let create = ["api-keys", "create", "ops", "--scope", "admin", "--in-store"];
    let (name, url) = migrated_database().await;
    let older = Empty { name, url, dir: tempfile::tempdir().unwrap() };
    older.sql("DELETE FROM _sqlx_migrations ORDER BY version DESC LIMIT 1").await;
    let before = Empty::applied(&mut connect(&older.url).await).await;
    // The account of a runner may change no table.
    let user = &older.name;
    older.sql(format!("CREATE USER '{user}'@'%'; GRANT {ROWS} ON {user}.* TO '{user}'@'%'")).await;
    let (code, out, said) = outcome(older.tickr_as(user, &create)).await;
    assert!(code == 0 && out.starts_with("tickr_"), "{code} {out}{said}");
    assert_eq!(Empty::applied(&mut connect(&older.url).await).await, before);
    older.sql(format!("DROP USER '{user}'@'%'")).await;
    older.drop().await;
    // The first API key may come before the tables.
    let empty = Empty::new().await;
    let (code, out, said) = outcome(empty.tickr(&create)).await;
    assert!(code == 0 && out.starts_with("tickr_"), "{code} {out}{said}");
    assert_eq!(empty.list("SELECT CAST(name AS CHAR) FROM api_keys").await, ["ops"]);
    empty.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_whose_server_vanished_goes_on_at_the_next_one() {
    let wanted = undisturbed().await;
    let database = Empty::new().await;
    // Two addresses of one server.
    let (gone, works) = (Proxy::start(&database.url).await, Proxy::start(&database.url).await);
    let (first, second) = (gone.url(), works.url());
    let (start, end) = first.rsplit_once('/').unwrap();
    let (_, second) = second.rsplit_once('/').and_then(|(start, _)| start.rsplit_once('@')).unwrap();
    let url = format!("{start},{second}/{end}");
    let settings = StoreSettings { url, connections: 5, flushers: 1, table_prefix: table_prefix() };
    let store = Store::connect(&settings, Duration::from_secs(10)).await.unwrap();
    gone.silent_from("CREATE TABLE order_places");
    let look = MigrateSettings { look: Duration::from_secs(1), ..MigrateSettings::default() };
    let vanish = async {
        eventually("a step gets no answer", || async { (gone.cuts() > 0).then_some(()) }).await;
        gone.forget_connections();
        drop(gone);
    };
    let (migrated, ()) = tokio::join!(tokio::time::timeout(DEADLINE, store.migrate_with(&look)), vanish);
    migrated.expect("the migration goes on").unwrap();
    store.close().await;
    assert_eq!(database.shape().await, wanted);
    database.drop().await;
}
