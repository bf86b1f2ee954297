//! Rows of the outbox, as applications write them.

use std::fmt;

use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use tickr_job::{Name, Timestamp};

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

/// The keys that the options of a row name, although this binary may not be able to read the row otherwise.
#[derive(Default)]
pub(super) struct NamedKeys {
    pub(super) order_key: Option<String>,
    /// With the kind of the job.
    pub(super) unique_key: Option<(Name, String)>,
}

impl NamedKeys {
    pub(super) fn read(kind: &str, options: &str) -> Self {
        let Ok(options) = serde_json::from_str::<serde_json::Value>(options) else { return Self::default() };
        let named = |key| Some(options.get(key)?.as_str()?.to_owned());
        let unique_key = named("unique_key").and_then(|key| Some((kind.parse().ok()?, key)));
        Self { order_key: named("order_key"), unique_key }
    }
}

/// Read a row. A due time that is none is left out, and `otherwise` takes the place of a time of the insertion that is
/// none: [`WrongTimes`] tells of them.
pub(super) fn outbox_row(row: &MySqlRow, otherwise: Timestamp) -> Result<OutboxRow, sqlx::Error> {
    Ok(OutboxRow {
        id: row.try_get("id")?,
        kind: row.try_get("kind")?,
        payload: row.try_get("payload")?,
        queue: row.try_get("queue")?,
        execute_at: moment(row, "execute_at")?.ok().flatten(),
        options: row.try_get("options")?,
        created_at: moment(row, "created_at")?.ok().flatten().unwrap_or(otherwise),
        copied_from: row.try_get("copied_from")?,
    })
}

/// Times of a row that are none. An application that turns the strict mode of its session off can write `2026-10-00`.
pub(super) struct WrongTimes {
    pub(super) execute_at: bool,
    pub(super) created_at: bool,
}

impl WrongTimes {
    /// Read `execute_at` and `created_at` of a row.
    pub(super) fn of(row: &MySqlRow) -> Result<Self, sqlx::Error> {
        let created_at = !matches!(moment(row, "created_at")?, Ok(Some(_)));
        Ok(Self { execute_at: moment(row, "execute_at")?.is_err(), created_at })
    }

    /// Return why the row cannot become a job.
    pub(super) fn reason(&self) -> Option<String> {
        let column = if self.execute_at { "execute_at" } else { "created_at" };
        (self.execute_at || self.created_at).then(|| format!("the column {column} is no time"))
    }
}

/// The value of a column is no time, such as a day in a month without it.
struct NoTime;

/// Read a time that may be NULL.
fn moment(row: &MySqlRow, column: &str) -> Result<Result<Option<Timestamp>, NoTime>, sqlx::Error> {
    match row.try_get(column) {
        // The driver takes the date `0000-00-00` for NULL, and its bytes for those of a value.
        Ok(None) if row.try_get_unchecked::<Vec<u8>, _>(column).is_ok() => Ok(Err(NoTime)),
        Ok(moment) => Ok(Ok(moment)),
        Err(sqlx::Error::ColumnDecode { .. }) => Ok(Err(NoTime)),
        Err(error) => Err(error),
    }
}
