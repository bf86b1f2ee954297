//! Rows of the outbox of an application. The application owns the table, so a value may be anything: a row that tickr's own
//! outbox could not hold is unfit, and is kept as far as possible.

use std::fmt;

use chrono::NaiveDateTime;
use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::outbox::rows::MAX_OPTIONS_BYTES;
use crate::sql::error::corrupt;
use tickr_job::{Name, Timestamp, ceil_ms, limits};

/// The seconds that a column of the type TIMESTAMP holds on every server.
const TIMESTAMP_SECONDS: std::ops::Range<i64> = 1..2_147_483_647;

/// A row of the outbox of an application.
#[derive(Clone)]
pub struct CopiedRow {
    /// Its id.
    pub id: Uuid,
    pub(super) kind: String,
    pub(super) payload: String,
    pub(super) queue: Option<String>,
    pub(super) execute_at: Option<Timestamp>,
    pub(super) options: Option<String>,
    /// When it was inserted, as the column says it. None if that is no time.
    pub(super) inserted_at: Option<Timestamp>,
    /// Why it cannot become a job, if that is known already.
    pub unfit: Option<String>,
}

impl CopiedRow {
    /// Return the row as one that cannot become a job, for this reason.
    #[must_use]
    pub fn rejected(self, reason: String) -> Self {
        Self { unfit: Some(reason), ..self }
    }

    /// Return the row without its payload and its options.
    #[must_use]
    pub fn bare(self) -> Self {
        Self { payload: String::new(), options: None, ..self }
    }
}

impl fmt::Debug for CopiedRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Payloads must not appear in logs, and the reason may quote one.
        f.debug_struct("CopiedRow")
            .field("id", &self.id)
            .field("is_unfit", &self.unfit.is_some())
            .finish_non_exhaustive()
    }
}

/// The sizes of a row.
#[derive(Clone, Copy)]
pub(super) struct RowHead {
    pub(super) id: Uuid,
    pub(super) payload_bytes: usize,
    pub(super) options_bytes: usize,
    /// The clock of the source when it read the row.
    pub(super) now: Timestamp,
}

/// Return why a row of this size cannot become a job.
pub(super) fn too_large(head: &RowHead) -> Option<String> {
    let (payload, options, most) = (head.payload_bytes, head.options_bytes, limits::MAX_PAYLOAD_BYTES);
    let kept = "and the first 65,536 characters are kept";
    if payload > most {
        Some(format!("the payload has {payload} bytes, {most} are allowed, {kept}"))
    } else if options > MAX_OPTIONS_BYTES {
        Some(format!("the options have {options} bytes, {MAX_OPTIONS_BYTES} are allowed, {kept}"))
    } else {
        None
    }
}

/// Read the sizes of a row.
pub(super) fn row_head(row: &MySqlRow) -> Result<RowHead, sqlx::Error> {
    let size = |column| number(row, column).map(|size| usize::try_from(size).unwrap_or(usize::MAX));
    Ok(RowHead {
        id: id_of(row)?,
        payload_bytes: size("payload_bytes")?,
        options_bytes: size("options_bytes")?,
        now: moment(row, "now")?.map_err(corrupt)?,
    })
}

/// Read a row.
pub(super) fn copied_row(row: &MySqlRow) -> Result<CopiedRow, sqlx::Error> {
    let mut unfit = None;
    let mut text = |column: &str, value: Option<Vec<u8>>| {
        value.map(|bytes| {
            String::from_utf8(bytes).unwrap_or_else(|error| {
                unfit.get_or_insert_with(|| format!("the column {column} is not UTF-8"));
                String::from_utf8_lossy(error.as_bytes()).into_owned()
            })
        })
    };
    let kind = text("kind", bytes(row, "kind")?).unwrap_or_default();
    let payload = text("payload", bytes(row, "payload")?).unwrap_or_default();
    let queue = text("queue", bytes(row, "queue")?);
    let options = text("options", bytes(row, "options")?);
    let execute_at = match bytes(row, "execute_at")? {
        None => None,
        // The column may be finer than the one of tickr's outbox, and a job never starts early.
        Some(_) => moment(row, "execute_at")?.map(ceil_ms).map_err(|problem| unfit.get_or_insert(problem)).ok(),
    };
    let inserted_at = moment(row, "created_at")?.ok();
    if storable(inserted_at).is_none() {
        unfit.get_or_insert_with(|| "the column created_at is no time that a TIMESTAMP can hold".to_owned());
    }
    let is_name = |name: &String| name.parse::<Name>().is_ok();
    if !is_name(&kind) {
        unfit.get_or_insert_with(|| "the kind is not a name".to_owned());
    }
    if queue.as_ref().is_some_and(|queue| !is_name(queue)) {
        unfit.get_or_insert_with(|| "the queue is not a name".to_owned());
    }
    Ok(CopiedRow {
        id: id_of(row)?,
        kind: printable(kind),
        payload,
        queue: queue.map(printable),
        execute_at,
        options,
        inserted_at,
        unfit,
    })
}

/// Return the time if a column of the type TIMESTAMP can hold it.
pub(super) fn storable(moment: Option<Timestamp>) -> Option<Timestamp> {
    moment.filter(|moment| TIMESTAMP_SECONDS.contains(&moment.timestamp()))
}

/// Make a text fit into a column for names.
fn printable(text: String) -> String {
    if text.parse::<Name>().is_ok() {
        return text;
    }
    text.chars().take(Name::MAX_LEN).map(|c| if c.is_ascii_graphic() { c } else { '?' }).collect()
}

/// Read a whole number that is not negative.
pub(super) fn number(row: &MySqlRow, column: &str) -> Result<u64, sqlx::Error> {
    let text = bytes(row, column)?.unwrap_or_default();
    let number = std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| corrupt(format!("the column {column} is no number")))
}

/// Read a time in UTC, or return why it is none.
pub(super) fn moment(row: &MySqlRow, column: &str) -> Result<Result<Timestamp, String>, sqlx::Error> {
    let text = bytes(row, column)?.unwrap_or_default();
    let text = std::str::from_utf8(&text).unwrap_or_default();
    let moment = NaiveDateTime::parse_from_str(text, "%Y-%m-%d %H:%M:%S%.f");
    Ok(moment.map(|moment| moment.and_utc()).map_err(|_| format!("the column {column} is no time")))
}

fn id_of(row: &MySqlRow) -> Result<Uuid, sqlx::Error> {
    let id = bytes(row, "id")?.and_then(|id| Uuid::from_slice(&id).ok());
    id.ok_or_else(|| corrupt("an id that has not 16 bytes"))
}

/// Read the bytes of a value as the server sent them, whatever the type of the column.
fn bytes(row: &MySqlRow, column: &str) -> Result<Option<Vec<u8>>, sqlx::Error> {
    row.try_get_unchecked(column)
}
