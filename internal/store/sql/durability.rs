//! Checks of the server's settings: whether a commit is durable (G1), and whether tickr can work with them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_recursion::async_recursion as boxed;
use sqlx::{AssertSqlSafe, Row};

use crate::sql::connection::{FIRST_WORDS, Server, on_pool, within};
use crate::sql::session::Session;
use crate::sql::topology::{ServerFacts, Topology};
use crate::sql::write_probe;
use crate::{Store, StoreError};

/// Time after which a commit that tries a write counts as lost. Its connection is closed then, and the next try has
/// another one.
const PROBE_LIMIT: Duration = Duration::from_secs(3);
/// Pause between two questions whether a server takes writes by now.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The durability of an acknowledged commit, according to the server's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Durability {
    /// True if a commit survives a crash of the machine.
    pub durable: bool,
    /// The settings that make commits less durable. Empty when `durable` is true.
    pub weaknesses: Vec<String>,
    /// The server's version, for the log.
    pub server: String,
    /// The replicas or the cluster behind the server. A commit that is durable there may be lost by a failover all the
    /// same.
    pub topology: Topology,
}

impl Store {
    /// Read the settings that decide if a commit survives a power failure.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn durability(&self) -> Result<Durability, StoreError> {
        let server = Arc::clone(&self.shared.options.server);
        on_pool(&self.shared.pools.loops, "read the server's settings", move |conn, _| {
            let server = Arc::clone(&server);
            Box::pin(async move { settings(conn, &server).await })
        })
        .await
    }

    /// Check that a runner may start on this server: it takes writes, so that no read after a claim asks a replica, and
    /// no other server takes writes of the same rows without its locks. A server that only reads is asked again until
    /// `patience` is over, because a failover may be under way. A running process stays with a server that becomes
    /// read-only, because that is an outage, which ends.
    ///
    /// # Errors
    /// [`StoreError::Refused`] with the reason and what an operator can do, otherwise [`StoreError`] when MySQL cannot
    /// be reached.
    #[boxed]
    pub async fn check_primary(&self, patience: Duration) -> Result<(), StoreError> {
        const ATTEMPTED: &str = "use the mysql server";
        let began = Instant::now();
        let mut is_told = false;
        loop {
            let (may_change, refusal) = on_pool(&self.shared.pools.loops, ATTEMPTED, |conn, _| {
                Box::pin(async move {
                    let facts = within(FIRST_WORDS, ServerFacts::read(conn)).await?;
                    Ok((facts.is_read_only(), facts.refusal()))
                })
            })
            .await?;
            let Some(cause) = refusal else { return Ok(()) };
            if !may_change || began.elapsed() >= patience {
                return Err(StoreError::refused(ATTEMPTED, cause));
            }
            if !is_told {
                tracing::warn!("the mysql server takes no writes, waiting for the end of a failover");
                is_told = true;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Read the settings as [`durability`](Self::durability) does, change a row and commit. A server that was demoted
    /// to a replica, has lost its quorum or has a full disk still answers every read. Both use one connection, one after
    /// the other. A server that takes the change counts as full all the same for some seconds after it had no room for
    /// another write of this process.
    ///
    /// One probe runs at a time. A caller that went away leaves its probe behind, which ends by itself, and the next
    /// caller waits for that. So the probes of a MySQL that does not commit take one connection from the loops.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or accepts no writes.
    #[boxed]
    pub async fn writable(&self) -> Result<Durability, StoreError> {
        const ATTEMPTED: &str = "try a write";
        let alone = Arc::clone(&self.shared.pools.probe).lock_owned().await;
        let server = Arc::clone(&self.shared.options.server);
        let durability = on_pool(&self.shared.pools.loops, ATTEMPTED, move |conn, _| {
            // The task of the probe keeps its turn, also when its caller goes away.
            let _kept = &alone;
            let server = Arc::clone(&server);
            Box::pin(async move {
                let durability = settings(&mut *conn, &server).await?;
                within(PROBE_LIMIT, write_probe::write(conn)).await?;
                Ok(durability)
            })
        })
        .await?;
        // Asked last, so that a write without room during the probe counts as well.
        if self.shared.options.server.room.was_missing() {
            return Err(StoreError::unavailable(ATTEMPTED, "the server had no room for another write a moment ago"));
        }
        Ok(durability)
    }
}

async fn settings(conn: &mut Session<'_>, server: &Server) -> Result<Durability, sqlx::Error> {
    within(FIRST_WORDS, async move {
        let topology = server.topology.get(&mut *conn).await?;
        let row = sqlx::query(
            "SELECT VERSION() AS version, CAST(@@GLOBAL.innodb_flush_log_at_trx_commit AS SIGNED) AS flush_log, \
             CAST(@@GLOBAL.sync_binlog AS SIGNED) AS sync_binlog, CAST(@@GLOBAL.log_bin AS SIGNED) AS log_bin",
        )
        .fetch_one(&mut *conn)
        .await?;
        let (server, flush, sync_binlog, log_bin): (String, i64, i64, i64) =
            (row.try_get("version")?, row.try_get("flush_log")?, row.try_get("sync_binlog")?, row.try_get("log_bin")?);
        let mut weaknesses = Vec::new();
        if flush != 1 {
            weaknesses.push(format!("innodb_flush_log_at_trx_commit is {flush}, not 1"));
        }
        // Without a binary log, its sync setting has no effect.
        if log_bin != 0 && sync_binlog != 1 {
            weaknesses.push(format!("log_bin is on and sync_binlog is {sync_binlog}, not 1"));
        }
        Ok(Durability { durable: weaknesses.is_empty(), weaknesses, server, topology })
    })
    .await
}

/// Settings of the server that tickr has to know before it starts.
pub(crate) struct Variables {
    log_bin: bool,
    statement_format: bool,
    prepared_statements: Option<usize>,
}

/// Read these settings. SHOW VARIABLES simply leaves out a variable that the server does not have; a SELECT of it would
/// fail.
pub(crate) async fn variables(conn: &mut Session<'_>) -> Result<Variables, sqlx::Error> {
    let names = "'log_bin', 'binlog_format', 'max_prepared_stmt_count'";
    let found = sqlx::raw_sql(AssertSqlSafe(format!("SHOW VARIABLES WHERE Variable_name IN ({names})")));
    let mut variables = Variables { log_bin: false, statement_format: false, prepared_statements: None };
    for row in &found.fetch_all(conn).await? {
        let (name, value): (String, String) = (row.try_get(0)?, row.try_get(1)?);
        match name.as_str() {
            "log_bin" => variables.log_bin = value.eq_ignore_ascii_case("ON"),
            "binlog_format" => variables.statement_format = value.eq_ignore_ascii_case("STATEMENT"),
            // A server without a limit may report -1.
            _ => variables.prepared_statements = value.parse().ok(),
        }
    }
    Ok(variables)
}

impl Variables {
    /// Return the reason why the server would refuse every write of a READ COMMITTED session (its error 1665), or
    /// nothing if it accepts them.
    pub(crate) fn refuses_writes(&self) -> Option<String> {
        (self.log_bin && self.statement_format).then(|| {
            "the server's binlog_format is STATEMENT, so it refuses every write of tickr's READ COMMITTED sessions; \
             set binlog_format=ROW"
                .to_owned()
        })
    }

    /// The greatest number of prepared statements on the server, if it has a limit.
    pub(crate) const fn prepared_statements(&self) -> Option<usize> {
        self.prepared_statements
    }
}
