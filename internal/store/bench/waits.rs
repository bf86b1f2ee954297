//! For the scenarios `keys` and `limits`: the times of jobs from their acceptance to their start, and the number of jobs
//! that are parked at limits.

use async_recursion::async_recursion as boxed;
use uuid::Uuid;

use crate::StoreError;
use crate::bench::server_counters::CounterConnection;
use tickr_job::{JobId, Timestamp};

/// The times of a job that has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartedJob {
    /// The job.
    pub id: JobId,
    /// Time at which MySQL wrote the job.
    pub accepted: Timestamp,
    /// Time at which its first attempt started.
    pub started: Timestamp,
}

/// The jobs that are parked at limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParkedJobs {
    /// Number of these jobs.
    pub jobs: u64,
    /// Number of keys that have such jobs.
    pub keys: u64,
}

impl CounterConnection {
    /// Read the times of each job from id `first` on whose first attempt has ended, in the order of the starts.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn started_jobs(&mut self, first: JobId) -> Result<Vec<StartedJob>, StoreError> {
        let sql = "SELECT a.job_id, j.created_at, a.started_at FROM attempts a JOIN jobs j ON j.id = a.job_id \
                   WHERE a.job_id >= ? AND a.number = 1 ORDER BY a.started_at, a.job_id";
        let found: Vec<(Uuid, Timestamp, Timestamp)> = sqlx::query_as(sql)
            .bind(first.uuid())
            .fetch_all(&mut self.conn)
            .await
            .map_err(|e| StoreError::from_driver("read how long jobs waited", &e))?;
        let job = |(id, accepted, started)| StartedJob { id: JobId::from_uuid(id), accepted, started };
        Ok(found.into_iter().map(job).collect())
    }

    /// Count the jobs that are parked at limits.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn parked_jobs(&mut self) -> Result<ParkedJobs, StoreError> {
        let sql = "SELECT COUNT(*), COUNT(DISTINCT limit_name, limit_key) FROM limit_waits";
        let read = sqlx::query_as(sql).fetch_one(&mut self.conn).await;
        let (jobs, keys): (i64, i64) = read.map_err(|e| StoreError::from_driver("count parked jobs", &e))?;
        Ok(ParkedJobs { jobs: jobs.unsigned_abs(), keys: keys.unsigned_abs() })
    }
}
