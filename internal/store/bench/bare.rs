//! The store without a runner, for `tickr bench`. It writes the same rows as the product, in whole batches over a
//! connection of its own and with its own statements.
//!
//! The statements are written out here and not shared with the product. So this measure stays the same when the
//! statements of the product change. It leaves out what only a runner needs: the locks before a settle, the state
//! machine, and batches of which a part cannot be claimed.

use async_recursion::async_recursion as boxed;
use sqlx::Row;
use uuid::Uuid;

use crate::sql::batches::{placeholders, statement, tuples};
use crate::sql::connection;
use crate::sql::error::corrupt;
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::{AttemptToken, Due, JobId, NewJob, RunnerId, Timestamp};

/// Duration of a lease, in seconds. No reaper runs beside these batches.
const LEASE_SECONDS: u32 = 30;

/// One connection, and the batches of at most [`FULL`](Self::FULL) jobs that are written on it.
pub struct BareLane {
    conn: Session<'static>,
    runner: RunnerId,
    /// The value of the column `tallies.lane`. Each connection has its own, so that connections do not wait for each
    /// other's rows.
    number: u8,
}

impl std::fmt::Debug for BareLane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BareLane").field("number", &self.number).finish_non_exhaustive()
    }
}

/// Jobs that were claimed in one batch.
#[derive(Debug)]
pub struct BareClaims {
    token: AttemptToken,
    claimed: Vec<BareClaim>,
}

#[derive(Debug)]
struct BareClaim {
    id: Uuid,
    number: u16,
    execute_at: Timestamp,
    started_at: Timestamp,
}

impl Store {
    /// Open a connection for bare batches. Connections that write at the same time need different numbers.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached.
    #[boxed]
    pub async fn bare_lane(&self, number: u8) -> Result<BareLane, StoreError> {
        let conn = connection::open(&self.shared.options).await;
        let conn = conn.map_err(|e| StoreError::from_driver("open a connection for bare batches", &e))?;
        Ok(BareLane { conn, runner: RunnerId::new_for_host("bare"), number })
    }
}

impl BareLane {
    /// The greatest number of jobs in a batch.
    pub const FULL: usize = 250;

    /// Commit new jobs. `jobs` must be sorted by id.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement. Nothing is retried.
    #[boxed]
    pub async fn insert(&mut self, jobs: &[NewJob]) -> Result<(), StoreError> {
        self.try_insert(jobs).await.map_err(|e| StoreError::from_driver("insert a bare batch", &e))
    }

    /// Claim due jobs and read what a handler would need. `ids` must be sorted.
    ///
    /// # Errors
    /// The errors of [`insert`](Self::insert), and an error when not all of these jobs could be claimed.
    #[boxed]
    pub async fn claim(&mut self, ids: &[JobId]) -> Result<BareClaims, StoreError> {
        self.try_claim(ids).await.map_err(|e| StoreError::from_driver("claim a bare batch", &e))
    }

    /// Settle claimed jobs as succeeded.
    ///
    /// # Errors
    /// The errors of [`claim`](Self::claim).
    #[boxed]
    pub async fn settle(&mut self, claims: &BareClaims) -> Result<(), StoreError> {
        self.try_settle(claims).await.map_err(|e| StoreError::from_driver("settle a bare batch", &e))
    }

    async fn try_insert(&mut self, jobs: &[NewJob]) -> Result<(), sqlx::Error> {
        let mut tx = self.conn.begin().await?;
        // A job that is due now gets the time of the statement.
        let tuple = "(?,?,?,?,?,NULL,NULL,?,COALESCE(?, UTC_TIMESTAMP(3)),UTC_TIMESTAMP(6),NULL,NULL)";
        let mut asked = statement(format!(
            "INSERT INTO jobs (id, kind, queue, priority, max_attempts, unique_key, options, payload, execute_at, \
             created_at, batch_id, batch_size) VALUES {}",
            tuples(tuple, jobs.len())
        ));
        for job in jobs {
            asked = asked
                .bind(job.id.uuid())
                .bind(job.kind.as_str())
                .bind(job.queue.as_str())
                .bind(job.priority.level())
                .bind(job.max_attempts)
                .bind(job.payload.get())
                .bind(moment(job));
        }
        asked.execute(&mut *tx).await?;
        let mut owed = statement(format!(
            "INSERT INTO owed (id, kind, queue, priority, max_attempts, keyed, state, execute_at) VALUES {}",
            tuples("(?,?,?,?,?,FALSE,'waiting',COALESCE(?, UTC_TIMESTAMP(3)))", jobs.len())
        ));
        for job in jobs {
            owed = owed
                .bind(job.id.uuid())
                .bind(job.kind.as_str())
                .bind(job.queue.as_str())
                .bind(job.priority.level())
                .bind(job.max_attempts)
                .bind(moment(job));
        }
        owed.execute(&mut *tx).await?;
        tx.commit().await
    }

    async fn try_claim(&mut self, ids: &[JobId]) -> Result<BareClaims, sqlx::Error> {
        let token = AttemptToken::new();
        let list = placeholders(ids.len());
        let mut take = statement(format!(
            "UPDATE owed FORCE INDEX (PRIMARY) SET state = 'executing', attempt = attempt + 1, token = ?, runner = ?, \
             started_at = SYSDATE(6), lease_until = UTC_TIMESTAMP(6) + INTERVAL ? SECOND, progress = NULL \
             WHERE id IN {list} AND state IN ('waiting', 'retrying') AND execute_at <= UTC_TIMESTAMP(6) AND losses < 2"
        ))
        .bind(token.uuid())
        .bind(self.runner.as_str())
        .bind(LEASE_SECONDS);
        for id in ids {
            take = take.bind(id.uuid());
        }
        whole("claim", take.execute(&mut self.conn).await?.rows_affected(), ids.len())?;
        let mut read = statement(format!(
            "SELECT o.id, o.attempt, o.execute_at, o.started_at, o.kind, j.payload FROM owed o FORCE INDEX (PRIMARY) \
             STRAIGHT_JOIN jobs j ON j.id = o.id WHERE o.id IN {list} AND o.token = ?"
        ));
        for id in ids {
            read = read.bind(id.uuid());
        }
        let found = read.bind(token.uuid()).fetch_all(&mut self.conn).await?;
        whole("read", found.len() as u64, ids.len())?;
        let claim = |row: &sqlx::mysql::MySqlRow| {
            // A runner hands these to the handler, so decoding them is part of what the benchmark measures.
            let handed_on: (&str, &str) = (row.try_get("kind")?, row.try_get("payload")?);
            std::hint::black_box(handed_on);
            let (id, number) = (row.try_get("id")?, row.try_get("attempt")?);
            Ok(BareClaim { id, number, execute_at: row.try_get("execute_at")?, started_at: row.try_get("started_at")? })
        };
        Ok(BareClaims { token, claimed: found.iter().map(claim).collect::<Result<_, sqlx::Error>>()? })
    }

    async fn try_settle(&mut self, claims: &BareClaims) -> Result<(), sqlx::Error> {
        let (token, claimed) = (claims.token, &claims.claimed);
        let mut tx = self.conn.begin().await?;
        let sql =
            format!("DELETE FROM owed WHERE id IN {} AND token = ? ORDER BY id LIMIT ?", placeholders(claimed.len()));
        let mut delete = statement(sql);
        for claim in claimed {
            delete = delete.bind(claim.id);
        }
        let most = i64::try_from(claimed.len()).unwrap_or(i64::MAX);
        let deleted = delete.bind(token.uuid()).bind(most).execute(&mut *tx).await?.rows_affected();
        whole("settle", deleted, claimed.len())?;
        let mut ledger = statement(format!(
            "INSERT INTO attempts (job_id, number, burned, runner, execute_at, started_at, finished_at, verdict, end_state, \
             error, result, cancel_requested_at) VALUES {}",
            tuples("(?,?,?,?,?,?,UTC_TIMESTAMP(6),'succeeded','completed',NULL,NULL,NULL)", claimed.len())
        ));
        for claim in claimed {
            ledger = ledger
                .bind(claim.id)
                .bind(claim.number)
                .bind(claim.number)
                .bind(self.runner.as_str())
                .bind(claim.execute_at)
                .bind(claim.started_at);
        }
        ledger.execute(&mut *tx).await?;
        sqlx::query(
            "INSERT INTO tallies (lane, queue, kind, state, n) VALUES (?, 'default', 'noop', 'completed', ?) \
             ON DUPLICATE KEY UPDATE n = n + VALUES(n)",
        )
        .bind(self.number)
        .bind(most)
        .execute(&mut *tx)
        .await?;
        tx.commit().await
    }
}

fn moment(job: &NewJob) -> Option<Timestamp> {
    match job.due {
        Due::At(moment) => Some(moment),
        Due::Now | Due::After(_) => None,
    }
}

/// Return an error unless the whole batch was written. A measurement over a part of a batch would be wrong.
fn whole(step: &str, had: u64, wanted: usize) -> Result<(), sqlx::Error> {
    if had == wanted as u64 { Ok(()) } else { Err(corrupt(format!("the {step} had {had} of {wanted} rows"))) }
}
