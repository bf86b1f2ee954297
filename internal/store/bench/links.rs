//! For the scenarios `batches`, `graphs` and `outbox`: rows of the outbox as an application writes them, and the times of
//! batches and of graphs.

use async_recursion::async_recursion as boxed;
use uuid::Uuid;

use crate::bench::server_counters::CounterConnection;
use crate::outbox::insert::{NewOutboxRow, OutboxPlace, insert_outbox_row};
use crate::sql::connection;
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::{BatchId, JobId, Timestamp};

/// A connection of an application that writes rows of the outbox.
pub struct OutboxWriter {
    conn: Session<'static>,
    place: OutboxPlace,
}

impl std::fmt::Debug for OutboxWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OutboxWriter")
    }
}

impl Store {
    /// Open a connection that writes rows of the outbox.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached.
    #[boxed]
    pub async fn outbox_writer(&self) -> Result<OutboxWriter, StoreError> {
        let conn = connection::open(&self.shared.options).await;
        conn.map(|conn| OutboxWriter { conn, place: OutboxPlace { database: None, ..self.outbox_place() } })
            .map_err(|e| StoreError::from_driver("open a connection", &e))
    }
}

impl OutboxWriter {
    /// Write these rows in one transaction. Return the time of the server after the COMMIT.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn write(&mut self, rows: &[NewOutboxRow]) -> Result<Timestamp, StoreError> {
        let failed = |e: sqlx::Error| StoreError::from_driver("write rows of the outbox", &e);
        let mut tx = self.conn.begin().await.map_err(failed)?;
        for row in rows {
            insert_outbox_row(tx.driver(), &self.place, row).await?;
        }
        tx.commit().await.map_err(failed)?;
        sqlx::query_scalar("SELECT UTC_TIMESTAMP(6)").fetch_one(&mut self.conn).await.map_err(failed)
    }
}

impl CounterConnection {
    /// Read when each job from id `first` on started for the first time.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn starts(&mut self, first: JobId) -> Result<Vec<(JobId, Timestamp)>, StoreError> {
        let sql = "SELECT job_id, MIN(started_at) FROM attempts WHERE job_id >= ? GROUP BY job_id";
        let found: Vec<(Uuid, Timestamp)> = sqlx::query_as(sql)
            .bind(first.uuid())
            .fetch_all(&mut self.conn)
            .await
            .map_err(|e| StoreError::from_driver("read when jobs started", &e))?;
        Ok(found.into_iter().map(|(id, at)| (JobId::from_uuid(id), at)).collect())
    }

    /// Read when each job from id `first` on started for the first time, and when it ended.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn spans(&mut self, first: JobId) -> Result<Vec<(JobId, Timestamp, Timestamp)>, StoreError> {
        let sql = "SELECT job_id, MIN(started_at), MAX(finished_at) FROM attempts WHERE job_id >= ? GROUP BY job_id";
        let found: Vec<(Uuid, Timestamp, Timestamp)> = sqlx::query_as(sql)
            .bind(first.uuid())
            .fetch_all(&mut self.conn)
            .await
            .map_err(|e| StoreError::from_driver("read when jobs started and ended", &e))?;
        Ok(found.into_iter().map(|(id, start, end)| (JobId::from_uuid(id), start, end)).collect())
    }

    /// Read when the last job of a batch ended.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn last_end_of(&mut self, batch: BatchId) -> Result<Option<Timestamp>, StoreError> {
        let sql =
            "SELECT MAX(a.finished_at) FROM batch_jobs m JOIN attempts a ON a.job_id = m.job_id WHERE m.batch_id = ?";
        let found = sqlx::query_scalar(sql).bind(batch.uuid()).fetch_one(&mut self.conn).await;
        found.map_err(|e| StoreError::from_driver("read when a batch ended", &e))
    }

    /// Read when the last job of a batch started.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn last_start_of(&mut self, batch: BatchId) -> Result<Option<Timestamp>, StoreError> {
        let sql = "SELECT MAX(a.started_at) FROM batch_jobs m JOIN attempts a ON a.job_id = m.job_id \
                   WHERE m.batch_id = ? AND a.runner <> ''";
        let found = sqlx::query_scalar(sql).bind(batch.uuid()).fetch_one(&mut self.conn).await;
        found.map_err(|e| StoreError::from_driver("read when jobs of a batch started", &e))
    }

    /// Read the clock of the server.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn now(&mut self) -> Result<Timestamp, StoreError> {
        let read = sqlx::query_scalar("SELECT UTC_TIMESTAMP(6)").fetch_one(&mut self.conn).await;
        read.map_err(|e| StoreError::from_driver("read the clock", &e))
    }
}
