//! Locks the rows of a page of the outbox, and reads their sizes.
//!
//! MySQL reads the whole text of each row that it locks. So a page locks few rows at first, and more while they are
//! small: a backlog of large rows is not read again for each page that takes a few of them.

use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::outbox::rows::MAX_OPTIONS_BYTES;
use crate::rows::owed::SKIP_LOCKED;
use crate::sql::batches::statement;
use crate::sql::session::Session;
use tickr_job::limits;

/// Rows that one transaction takes at most.
pub(super) const ROWS: u32 = 1_000;
/// Bytes of payloads and options that one transaction takes at most, but one row at least. Those of rows that are too
/// large to become jobs count as well: their text is copied to the rejected rows.
const BYTES: usize = 4 << 20;
/// Rows that the first statement of a page locks at most. Each of the next ones locks four times as many.
const FIRST_ROWS: u32 = 16;
/// Rows that one statement locks at most.
const MAX_ROWS: u32 = 256;

/// The rows that one transaction looks at.
#[derive(Clone, Copy)]
pub(super) enum Rows {
    All,
    /// Those behind this id.
    Behind(Uuid),
    /// This one.
    Only(Uuid),
}

impl Rows {
    pub(super) const fn id(self) -> Uuid {
        match self {
            Self::All => Uuid::nil(),
            Self::Behind(id) | Self::Only(id) => id,
        }
    }

    pub(super) const fn compares(self) -> &'static str {
        match self {
            Self::All => ">=",
            Self::Behind(_) => ">",
            Self::Only(_) => "=",
        }
    }
}

/// The rows of a page, in the order of their ids.
#[derive(Default)]
pub(super) struct Heads {
    /// All rows that are locked. Those behind `last` are of the next page.
    pub(super) found: Vec<Uuid>,
    /// Rows of the page that are small enough.
    pub(super) small: Vec<Uuid>,
    /// Rows of the page that are too large, with the reasons.
    pub(super) large: Vec<(Uuid, String)>,
    /// The last row of the page.
    pub(super) last: Option<Uuid>,
    bytes: usize,
    is_full: bool,
}

impl Heads {
    /// Return the id behind which the next page begins, if there may be one.
    pub(super) fn next(&self) -> Option<Uuid> {
        let is_last = self.last == self.found.last().copied();
        self.last.filter(|_| !is_last || self.found.len() as u32 == ROWS)
    }

    fn add(&mut self, row: &MySqlRow) -> Result<(), sqlx::Error> {
        let size = |column| -> Result<usize, sqlx::Error> {
            Ok(usize::try_from(row.try_get::<i64, _>(column)?).unwrap_or(usize::MAX))
        };
        let (id, payload, options): (Uuid, _, _) = (row.try_get("id")?, size("payload_bytes")?, size("options_bytes")?);
        self.found.push(id);
        self.bytes = self.bytes.saturating_add(payload).saturating_add(options);
        self.is_full |= self.bytes > BYTES && self.last.is_some();
        if self.is_full {
            return Ok(());
        }
        if payload > limits::MAX_PAYLOAD_BYTES {
            let most = limits::MAX_PAYLOAD_BYTES;
            self.large.push((id, format!("the payload has {payload} bytes, and {most} are allowed")));
        } else if options > MAX_OPTIONS_BYTES {
            self.large.push((id, format!("the options have {options} bytes, and {MAX_OPTIONS_BYTES} are allowed")));
        } else {
            self.small.push(id);
        }
        self.last = Some(id);
        Ok(())
    }
}

/// Lock the rows of a page. Rows that another session locks are left out.
pub(super) async fn lock_heads(conn: &mut Session<'_>, mut rows: Rows) -> Result<Heads, sqlx::Error> {
    let (mut heads, mut step) = (Heads::default(), FIRST_ROWS);
    loop {
        let most = step.min(ROWS - heads.found.len() as u32);
        let sql = format!(
            "SELECT id, LENGTH(payload) AS payload_bytes, COALESCE(LENGTH(options), 0) AS options_bytes \
             FROM tickr_outbox FORCE INDEX (PRIMARY) WHERE id {} ? ORDER BY id LIMIT ? FOR UPDATE{SKIP_LOCKED}",
            rows.compares()
        );
        let found = statement(sql).bind(rows.id()).bind(most).fetch_all(&mut *conn).await?;
        for row in &found {
            heads.add(row)?;
        }
        let are_all = (found.len() as u32) < most || heads.found.len() as u32 >= ROWS;
        match heads.found.last() {
            Some(last) if !are_all && !heads.is_full => rows = Rows::Behind(*last),
            _ => return Ok(heads),
        }
        step = (4 * step).min(MAX_ROWS);
    }
}
