//! Rows of `batches`.

use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::batches::callbacks::{Callback, CallbackEvent, from_text};
use tickr_job::{Actor, BatchId, Timestamp};

/// A batch as it is stored.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The batch.
    pub id: BatchId,
    /// Its name, for people.
    pub name: Option<String>,
    /// The batch that counts this one as one of its jobs.
    pub parent: Option<BatchId>,
    /// Time and actor of its creation.
    pub created: (Timestamp, Actor),
    /// When it was closed: no job is expected from outside any more.
    pub closed_at: Option<Timestamp>,
    /// When it was cancelled.
    pub cancelled_at: Option<Timestamp>,
    /// When a job failed for good for the first time.
    pub failed_at: Option<Timestamp>,
    /// When all jobs had ended for the first time after the batch was closed.
    pub completed_at: Option<Timestamp>,
    /// When all jobs had completed.
    pub succeeded_at: Option<Timestamp>,
    /// Its jobs by their ends.
    pub counts: BatchCounts,
    /// Its callbacks.
    pub callbacks: Vec<Callback>,
}

/// The jobs of a batch by their ends. A nested batch counts as one job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchCounts {
    /// All of them.
    pub total: i64,
    /// Those that completed.
    pub completed: i64,
    /// Those that failed for good and were not retried since.
    pub failed: i64,
    /// Those that were cancelled.
    pub cancelled: i64,
}

impl BatchCounts {
    /// Return the number of unfinished jobs.
    #[must_use]
    pub const fn pending(&self) -> i64 {
        self.total - self.completed - self.failed - self.cancelled
    }
}

/// The state of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchState {
    /// It is not closed, so it cannot end.
    Open,
    /// It is closed and has unfinished jobs.
    Running,
    /// It was cancelled and has unfinished jobs.
    Cancelling,
    /// All jobs have completed.
    Succeeded,
    /// All jobs had ended, and some had failed or were cancelled.
    Failed,
    /// It was cancelled, and all jobs have ended.
    Cancelled,
}

impl BatchState {
    /// Return the word used in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Running => "running",
            Self::Cancelling => "cancelling",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl Batch {
    /// Return when this event happened, if it has.
    #[must_use]
    pub const fn due_at(&self, event: CallbackEvent) -> Option<Timestamp> {
        match event {
            CallbackEvent::Success => self.succeeded_at,
            CallbackEvent::Complete => self.completed_at,
            CallbackEvent::Failure => self.failed_at,
        }
    }

    /// Return its state.
    #[must_use]
    pub const fn state(&self) -> BatchState {
        match (self.cancelled_at.is_some(), self.completed_at.is_some(), self.closed_at.is_some()) {
            (true, true, _) => BatchState::Cancelled,
            (true, false, _) => BatchState::Cancelling,
            (false, true, _) if self.succeeded_at.is_some() => BatchState::Succeeded,
            (false, true, _) => BatchState::Failed,
            (false, false, true) => BatchState::Running,
            (false, false, false) => BatchState::Open,
        }
    }
}

/// Columns of `batches` that [`batch`] reads.
pub(crate) const COLUMNS: &str = "id, name, parent, actor, created_at, closed_at, cancelled_at, failed_at, completed_at, \
                                  succeeded_at, total, completed, failed, cancelled, callbacks";

/// Read a row.
pub(crate) fn batch(row: &MySqlRow) -> Result<Batch, sqlx::Error> {
    let id = BatchId::from_uuid(row.try_get("id")?);
    let parent = row.try_get::<Option<Uuid>, _>("parent")?.map(BatchId::from_uuid);
    let count = |column| row.try_get::<i64, _>(column);
    Ok(Batch {
        id,
        name: row.try_get("name")?,
        parent,
        created: (row.try_get("created_at")?, row.try_get::<String, _>("actor")?.into()),
        closed_at: row.try_get("closed_at")?,
        cancelled_at: row.try_get("cancelled_at")?,
        failed_at: row.try_get("failed_at")?,
        completed_at: row.try_get("completed_at")?,
        succeeded_at: row.try_get("succeeded_at")?,
        counts: BatchCounts {
            total: count("total")?,
            completed: count("completed")?,
            failed: count("failed")?,
            cancelled: count("cancelled")?,
        },
        callbacks: from_text(row.try_get("callbacks")?, id, parent)?,
    })
}
