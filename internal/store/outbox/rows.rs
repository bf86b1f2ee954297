//! Rows of the outbox, as applications write them.

use std::fmt;

use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use tickr_job::Timestamp;

/// Maximum size of the options of a row, in bytes.
pub(super) const MAX_OPTIONS_BYTES: usize = 64 << 10;

/// A row of the outbox.
#[derive(Clone)]
pub struct OutboxRow {
    /// The id that the application chose.
    pub id: Uuid,
    /// Name of the kind.
    pub kind: String,
    /// Input of the handler, as JSON text.
    pub payload: String,
    /// Name of the queue.
    pub queue: Option<String>,
    /// Due time.
    pub execute_at: Option<Timestamp>,
    /// The other options, as the text of a JSON object.
    pub options: Option<String>,
    /// When the row was inserted, by the clock of the database in which that was.
    pub created_at: Timestamp,
    /// The outbox of an application from which it was copied. None for a row that was inserted here.
    pub copied_from: Option<String>,
}

impl OutboxRow {
    /// The columns, as [`outbox_row`] reads them.
    pub(super) const COLUMNS: &'static str = "id, kind, payload, queue, execute_at, options, created_at, copied_from";
}

impl fmt::Debug for OutboxRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Payloads must not appear in logs.
        f.debug_struct("OutboxRow").field("id", &self.id).field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// Read a row.
pub(super) fn outbox_row(row: &MySqlRow) -> Result<OutboxRow, sqlx::Error> {
    Ok(OutboxRow {
        id: row.try_get("id")?,
        kind: row.try_get("kind")?,
        payload: row.try_get("payload")?,
        queue: row.try_get("queue")?,
        execute_at: row.try_get("execute_at")?,
        options: row.try_get("options")?,
        created_at: row.try_get("created_at")?,
        copied_from: row.try_get("copied_from")?,
    })
}
