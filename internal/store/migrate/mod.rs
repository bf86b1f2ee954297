//! Migrate the tables to the shape that this binary needs. No interrupted migration needs repair by hand.
//!
//! MySQL has no transactions for changes of tables. So a migration may end anywhere: a process is killed, a connection
//! breaks, a right is missing. Five rules make that harmless:
//! - A lock of the server lets one process migrate at a time (`lock.rs`).
//! - The migration checks its rights before the first statement (`rights.rs`). It also checks that no other program has
//!   a table of the same name, and that there is no other tickr with another prefix (`neighbours.rs`).
//! - It runs one statement at a time, and each may run again (`statement.rs`). A column that exists already is no error.
//! - A migration counts as applied when all of its statements have run (`ledger.rs`).
//! - A statement waits for other transactions in short turns, because all traffic on the table waits behind it. The
//!   migration names the transactions in its way (`blockers.rs`). After some minutes it gives up; the operator runs it
//!   again later.
//!
//! `progress.rs` tells operators the current step.

mod blockers;
mod ledger;
mod lock;
mod neighbours;
mod progress;
mod rights;
mod statement;

use std::time::{Duration, Instant};

use async_recursion::async_recursion as boxed;
use rand::Rng as _;
use sqlx::AssertSqlSafe;
use sqlx::migrate::Migration;
use tokio::sync::watch;

use super::{Store, StoreError};
use crate::sql::connection::{self, FIRST_WORDS, within};
use crate::sql::error::{Fault, fault, waited_for_lock};
use crate::sql::session::Session;
use crate::sql::table_names::with_prefix;
use ledger::{Ledger, number};
use progress::Progress;
use statement::{Form, Statement, Verb, statements};

/// The default time that a migration waits for tables that other transactions hold.
pub const MIGRATION_PATIENCE: Duration = Duration::from_secs(600);
/// Settings of the one connection that changes tables. `wait_timeout` frees the lock of a host that vanished; between
/// two statements the connection is idle for seconds at most.
const SESSION: &str = "SET SESSION sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION', autocommit = 1, \
                       innodb_lock_wait_timeout = 3, wait_timeout = 60";
/// MariaDB's limit for any statement; MySQL does not know it, and refuses to set it.
const NO_LIMIT: &str = "SET SESSION max_statement_time = 0";
/// A server may be set to copy each table that is altered. MariaDB then copies it even if the statement asks for
/// another way. Servers that no longer have this setting refuse the statement.
const NO_COPY: &str = "SET SESSION old_alter_table = 0";
/// Runs over a broken connection before the migration gives up.
const MAX_RUNS: u32 = 5;
/// Time between two looks at a long statement, from another connection.
const LOOK: Duration = Duration::from_secs(10);
/// Longest time for the answer to a short statement: longer than it may wait for a lock. A server that vanished answers
/// none.
const ANSWER: Duration = Duration::from_secs(30);

/// MySQL has something of that name already: a table, a column, a key, a CHECK (MariaDB's number and MySQL's).
const ALREADY_THERE: [u16; 5] = [1050, 1060, 1061, 1826, 3822];
/// MySQL has nothing of that name: a table, a column or key, a constraint.
const ALREADY_GONE: [u16; 3] = [1051, 1091, 3940];
/// The server cannot change this table in the way that was asked for.
const NOT_IN_THIS_WAY: [u16; 3] = [1800, 1845, 1846];

/// The settings of one migration.
#[derive(Debug)]
pub struct MigrateSettings {
    /// The longest wait for tables that other transactions hold.
    pub patience: Duration,
    /// Receives the current step, in words for people.
    pub progress: watch::Sender<String>,
    /// Take the lock that lets one process migrate at a time. Without it the steps must hold by themselves, as they do
    /// on a cluster that has no such lock.
    #[doc(hidden)]
    pub lock: bool,
    /// The time between two looks at a long statement.
    #[doc(hidden)]
    pub look: Duration,
    /// Make the tables also when the database has those of another tickr, with another prefix. Not needed again once
    /// they are made.
    pub beside_another: bool,
}

impl Default for MigrateSettings {
    fn default() -> Self {
        let progress = watch::Sender::default();
        Self { patience: MIGRATION_PATIENCE, progress, lock: true, look: LOOK, beside_another: false }
    }
}

/// The program that a table belongs to.
enum Owner {
    /// There is no such table.
    Missing,
    /// It has every column of the statement that makes it, and perhaps those of later ones.
    Tickr,
    Another {
        /// The first column that tickr's would have.
        lacks: String,
    },
}

/// The reason that a migration stopped.
enum Halt {
    /// An error of the driver. A broken connection may be tried again.
    Driver(sqlx::Error),
    /// The operator has to change something first.
    Refused(String),
}

impl From<sqlx::Error> for Halt {
    fn from(error: sqlx::Error) -> Self {
        Self::Driver(error)
    }
}

impl Store {
    /// Return whether the tables have the shape that this binary needs. Those of a newer binary have it too.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn is_migrated(&self) -> Result<bool, StoreError> {
        ledger::is_current(&self.shared.pools.loops).await
    }

    /// Bring the tables to the shape this binary needs. Many processes may call this at once: one of them
    /// migrates, the others wait. The next call completes a migration that was killed.
    ///
    /// # Errors
    /// When MySQL cannot be reached, the account lacks a right, other transactions hold a table for ten minutes, or a
    /// migration was changed after it had been applied.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        self.migrate_with(&MigrateSettings::default()).await
    }

    /// Check that the account may read, insert, update and delete rows of the tables, which exist. A server that takes
    /// no writes or does not answer says nothing about rights, so then there is no error.
    ///
    /// # Errors
    /// When the account lacks one of these rights. The text has the statement that grants it.
    pub async fn check_rights(&self) -> Result<(), StoreError> {
        match within(FIRST_WORDS, self.complaint_about_rights()).await {
            Ok(None) => Ok(()),
            Ok(Some(complaint)) => Err(StoreError::refused("check the rights of the account", complaint)),
            Err(error) => {
                tracing::debug!(%error, "cannot check the rights of the account");
                Ok(())
            }
        }
    }

    #[boxed]
    async fn complaint_about_rights(&self) -> Result<Option<String>, sqlx::Error> {
        let options = &self.shared.options;
        let mut conn = connection::open(options).await?;
        let lacking = rights::lacking_for_rows(&mut conn).await?;
        if lacking.is_empty() {
            return Ok(None);
        }
        rights::complaint(&mut conn, &options.database().unwrap_or_default(), &lacking).await.map(Some)
    }

    /// [`migrate`](Self::migrate) with settings.
    ///
    /// # Errors
    /// As [`migrate`](Self::migrate).
    pub async fn migrate_with(&self, settings: &MigrateSettings) -> Result<(), StoreError> {
        let attempted = "migrate the tables";
        // No lock and no other statement when there is nothing to do, which is every start but a few.
        if self.is_migrated().await? {
            return Ok(());
        }
        let mut runs = 0;
        loop {
            runs += 1;
            let mut run =
                Run { store: self, settings, progress: Progress(&settings.progress), blocked_since: None, turn: 0 };
            match run.go().await {
                Ok(()) => return Ok(()),
                Err(Halt::Refused(cause)) => return Err(StoreError::refused(attempted, cause)),
                Err(Halt::Driver(e)) if matches!(fault(&e), Fault::Refused | Fault::Unfit) || runs >= MAX_RUNS => {
                    return Err(StoreError::from_driver(attempted, &e));
                }
                Err(Halt::Driver(error)) => {
                    tracing::warn!(%error, "the migration begins again over a new connection");
                    tokio::time::sleep(Duration::from_millis(500) * runs).await;
                }
            }
        }
    }
}

/// Set the connection up, and return the name of its database.
async fn prepare(conn: &mut Session<'_>) -> Result<String, sqlx::Error> {
    sqlx::raw_sql(SESSION).execute(&mut *conn).await?;
    let _ = sqlx::raw_sql(NO_LIMIT).execute(&mut *conn).await;
    let _ = sqlx::raw_sql(NO_COPY).execute(&mut *conn).await;
    let database: Option<String> = sqlx::query_scalar("SELECT DATABASE()").fetch_one(conn).await?;
    Ok(database.unwrap_or_default())
}

/// One run over one connection. Dropping it closes the connection: the server then ends the statement and releases the
/// lock, and the next run continues from there.
struct Run<'a> {
    store: &'a Store,
    settings: &'a MigrateSettings,
    progress: Progress<'a>,
    /// The moment since which other transactions have blocked the run.
    blocked_since: Option<Instant>,
    /// The turn of the servers in which the connection was opened.
    turn: u64,
}

impl Run<'_> {
    async fn go(&mut self) -> Result<(), Halt> {
        let mut conn = connection::open(&self.store.shared.options).await?;
        self.turn = self.store.shared.options.turn();
        let database = within(ANSWER, prepare(&mut conn)).await?;
        if self.settings.lock {
            lock::take(&mut conn, &database, &self.progress).await?;
        }
        // Another process may have done it while this one waited.
        let ledger = within(ANSWER, Ledger::read(&mut conn)).await?;
        if let Some(version) = ledger.changed() {
            return Err(Halt::Refused(format!(
                "migration {version} was applied with another text than this binary has; use the binary of a release"
            )));
        }
        let prefix = conn.prefix().clone();
        let parsed = |migration: &Migration| statements(&with_prefix(&prefix, migration.sql.as_str()));
        let steps: Vec<(&Migration, Vec<Statement>)> =
            ledger.missing().into_iter().map(|migration| (migration, parsed(migration))).collect();
        if steps.is_empty() {
            return Ok(());
        }
        if ledger.is_empty() {
            self.look_for_others(&mut conn, &database).await?;
        }
        let all: Vec<Statement> = steps.iter().flat_map(|(_, statements)| statements.clone()).collect();
        for statement in all.iter().filter(|statement| statement.verb == Verb::CreateTable) {
            if let Owner::Another { lacks } = within(ANSWER, Self::owner(&mut conn, statement)).await? {
                return Err(Halt::Refused(format!(
                    "the database {database} has a table {} that is not tickr's (it has no column {lacks}); nothing was \
                     changed. Give tickr a database of its own, such as mysql://user@host/tickr, or a prefix for its \
                     tables, such as table_prefix = \"tickr_\"",
                    statement.table
                )));
            }
        }
        let lacking = within(ANSWER, rights::lacking(&mut conn, &all)).await?;
        if !lacking.is_empty() {
            let complaint = within(ANSWER, rights::complaint(&mut conn, &database, &lacking)).await?;
            return Err(Halt::Refused(complaint));
        }
        let (from, to) = (ledger.newest(), steps.last().map_or(0, |(migration, _)| migration.version));
        tracing::info!(from, to, steps = steps.len(), "migrating the tables");
        let (all_began, millis) =
            (Instant::now(), |took: Duration| u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
        for (migration, statements) in &steps {
            let began = Instant::now();
            self.progress.tell(format!("migration {} of {to}: {}", migration.version, migration.description));
            for statement in statements {
                self.apply(&mut conn, migration.version, statement).await?;
            }
            within(ANSWER, ledger::note(&mut conn, migration, began.elapsed())).await?;
            let took_ms = millis(began.elapsed());
            // In a new database every step takes some milliseconds, and the operator has no table that one could lock.
            if from == 0 {
                tracing::debug!(version = migration.version, step = %migration.description, took_ms, "migrated");
            } else {
                tracing::info!(version = migration.version, step = %migration.description, took_ms, "migrated");
            }
        }
        tracing::info!(to, took_ms = millis(all_began.elapsed()), "the tables are migrated");
        let _ = tokio::time::timeout(Duration::from_secs(1), conn.close()).await;
        Ok(())
    }

    /// Refuse the first migration of this prefix if the database has another tickr, unless the operator wants two.
    async fn look_for_others(&self, conn: &mut Session<'_>, database: &str) -> Result<(), Halt> {
        let others = within(ANSWER, neighbours::find(conn)).await?;
        let (Some(first), prefix) = (others.first(), conn.prefix()) else { return Ok(()) };
        let shared = others.iter().find_map(|other| Some((other, neighbours::shared_table(prefix, other)?)));
        if self.settings.beside_another && shared.is_none() {
            return Ok(());
        }
        let other = shared.as_ref().map_or(first, |(other, _)| other);
        let (theirs, ours) = (neighbours::describe(other), neighbours::describe(prefix));
        let second = match shared {
            Some((_, table)) => {
                format!("choose another table_prefix, because both would have the table {table}")
            }
            None => format!("run `tickr migrate --beside-another` once with {ours}"),
        };
        Err(Halt::Refused(format!(
            "the database {database} has the tables of a tickr with {theirs}, and none of one with {ours}; nothing was \
             changed. To use the tables that exist, run with {theirs}. For a second tickr beside the first, {second}"
        )))
    }

    /// Find the owner of the table that a CREATE TABLE would make. Other programs use the name `jobs` as well.
    async fn owner(conn: &mut Session<'_>, statement: &Statement) -> Result<Owner, sqlx::Error> {
        let sql = "SELECT CAST(column_name AS CHAR) FROM information_schema.columns \
                   WHERE table_schema = DATABASE() AND table_name = ?";
        let found: Vec<String> = sqlx::query_scalar(sql).bind(&statement.table).fetch_all(conn).await?;
        Ok(match statement.columns().into_iter().find(|column| !found.contains(column)) {
            _ if found.is_empty() => Owner::Missing,
            None => Owner::Tickr,
            Some(lacks) => Owner::Another { lacks },
        })
    }

    /// Run one statement in the form that blocks the fewest writers. It may have run before.
    async fn apply(&mut self, conn: &mut Session<'_>, version: i64, statement: &Statement) -> Result<(), Halt> {
        let mut forms = statement.forms();
        // The last form is the plain one, whose answer counts.
        let plain = forms.pop();
        for (_, sql) in forms {
            match self.insist(conn, version, statement, sql).await {
                Err(Halt::Driver(e)) if number(&e).is_some_and(|number| NOT_IN_THIS_WAY.contains(&number)) => {}
                outcome => return self.accept(conn, version, statement, outcome).await,
            }
        }
        let Some((form, sql)) = plain else { return Ok(()) };
        if form == Form::Plain && statement.verb == Verb::AlterTable {
            tracing::debug!(
                version,
                table = statement.table,
                "the server copies this table; writes to it wait meanwhile"
            );
        }
        let outcome = self.insist(conn, version, statement, sql).await;
        self.accept(conn, version, statement, outcome).await
    }

    /// Judge a statement's answer, knowing that it may have run before as a whole or in part.
    async fn accept(
        &mut self,
        conn: &mut Session<'_>,
        version: i64,
        statement: &Statement,
        outcome: Result<(), Halt>,
    ) -> Result<(), Halt> {
        let error = match outcome {
            Err(Halt::Driver(error)) => error,
            outcome => return outcome,
        };
        let known = number(&error).is_some_and(|n| ALREADY_THERE.contains(&n) || ALREADY_GONE.contains(&n));
        if !known {
            return Err(Halt::Driver(error));
        }
        tracing::debug!(version, table = statement.table, %error, "this step was done before");
        if statement.verb == Verb::CreateTable {
            // A table of this name, and not only a constraint of it in another table.
            return match within(ANSWER, Self::owner(conn, statement)).await? {
                Owner::Tickr => Ok(()),
                Owner::Missing | Owner::Another { .. } => Err(Halt::Driver(error)),
            };
        }
        // One clause of an ALTER had been applied before, so the server applied none now. Run each clause by itself.
        for clause in statement.by_clause() {
            Box::pin(self.apply(conn, version, &clause)).await?;
        }
        Ok(())
    }

    /// Run a statement in short turns until it gets the table or the patience of the settings ends.
    async fn insist(
        &mut self,
        conn: &mut Session<'_>,
        version: i64,
        statement: &Statement,
        sql: String,
    ) -> Result<(), Halt> {
        let mut turns = 0_u32;
        loop {
            // While this statement waits, all other traffic on the table waits behind it.
            let turn = (1 + u64::from(turns) / 4).min(3);
            let limit = format!("SET SESSION lock_wait_timeout = {turn}");
            within(ANSWER, sqlx::raw_sql(AssertSqlSafe(limit)).execute(&mut *conn)).await?;
            let error = match self.watched(conn, version, statement, sql.clone()).await {
                Ok(()) => {
                    self.blocked_since = None;
                    return Ok(());
                }
                Err(error) if fault(&error) == Fault::Again => error,
                Err(error) => return Err(error.into()),
            };
            turns += 1;
            let since = *self.blocked_since.get_or_insert_with(Instant::now);
            let table = &statement.table;
            let by = if waited_for_lock(&error) {
                within(ANSWER, blockers::describe(conn, table)).await?
            } else {
                error.to_string()
            };
            let waited_s = since.elapsed().as_secs();
            if since.elapsed() >= self.settings.patience {
                return Err(Halt::Refused(format!(
                    "migration {version} has waited {waited_s} s for the table {table}: {by}. What was done so far stays, \
                     and nothing is half done; run `tickr migrate` again when they have ended"
                )));
            }
            tracing::warn!(version, table, waited_s, "the migration waits for a table: {by}");
            self.progress.tell(format!("migration {version} waits for the table {table}: {by}"));
            // Leave the table to the other statements meanwhile.
            let pause = Duration::from_millis((1_000 << turns.min(4)).min(15_000)).min(self.settings.patience);
            tokio::time::sleep(pause.mul_f64(rand::rng().random_range(0.75..1.25))).await;
        }
    }

    /// Run a statement that may take hours. It has no time limit. Another connection checks now and then that the
    /// server still works on it, because a connection that the network dropped would be waited for without an end.
    async fn watched(
        &self,
        conn: &mut Session<'_>,
        version: i64,
        statement: &Statement,
        sql: String,
    ) -> Result<(), sqlx::Error> {
        let id = sqlx::query_scalar::<_, i64>("SELECT CAST(CONNECTION_ID() AS SIGNED)");
        let id = within(ANSWER, id.fetch_one(&mut *conn)).await?;
        let began = Instant::now();
        // The statement has the prefix.
        let work = sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn.driver());
        tokio::pin!(work);
        loop {
            tokio::select! {
                outcome = &mut work => return outcome.map(|_| ()),
                () = tokio::time::sleep(self.settings.look) => {}
            }
            let running_s = began.elapsed().as_secs();
            tracing::info!(version, table = statement.table, running_s, "a step of the migration is under way");
            if !self.is_alive(id).await {
                let gone = std::io::Error::new(std::io::ErrorKind::TimedOut, "its connection to mysql is gone");
                return Err(sqlx::Error::Io(gone));
            }
        }
    }

    /// Return whether the server still knows this connection, and is the one in use. No answer counts as yes.
    async fn is_alive(&self, id: i64) -> bool {
        let asked = connection::on_pool(&self.store.shared.pools.loops, "look after the migration", move |conn, _| {
            let sql = "SELECT COUNT(*) FROM information_schema.processlist WHERE id = ?";
            Box::pin(async move { sqlx::query_scalar::<_, i64>(sql).bind(id).fetch_one(conn).await })
        });
        let is_known = !matches!(asked.await, Ok(0));
        // This process left the server, which did not answer or takes no writes. Another server has other connections.
        is_known && self.turn == self.store.shared.options.turn()
    }
}
