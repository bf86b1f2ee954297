//! Rows of the outbox that cannot become jobs.

use std::collections::BTreeMap;

use async_recursion::async_recursion as boxed;
use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::audit::{AuditEntry, record, was_recorded};
use crate::outbox::rows::{OutboxRow, WrongTimes, outbox_row};
use crate::sql::batches::{groups_by_bytes, in_list};
use crate::sql::clock::read_clock;
use crate::sql::connection::{PriorRun, on_pool, transact};
use crate::sql::script::{Script, Value};
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::{Actor, Timestamp, limits};

/// A row of the outbox that cannot become a job.
#[derive(Clone, Debug)]
pub struct RejectedRow {
    /// The row as the application wrote it. At most 64 KiB of the payload.
    pub row: OutboxRow,
    /// When it was rejected.
    pub rejected_at: Timestamp,
    /// Why.
    pub reason: String,
}

/// What an operator does with a rejected row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectedAction {
    /// Move it back to the outbox, because what was wrong is right now.
    Replay,
    /// Remove it.
    Discard,
}

const COLUMNS: &str = OutboxRow::COLUMNS;
/// Bytes of a statement that rejects rows, for each of them, besides the reason: its id stands there four times.
const ROW_BYTES: usize = 256;

/// Move these rows, with the reasons, to the rejected ones. A page may have a thousand of them, and its transaction has
/// to end in time also when each answer takes milliseconds. So they are moved in few requests.
pub(super) async fn reject(conn: &mut Session<'_>, rows: &[(Uuid, String)]) -> Result<(), sqlx::Error> {
    // The reason is written in digits, two for each byte.
    for rows in groups_by_bytes(rows, |(_, reason)| ROW_BYTES + 2 * reason.len().min(limits::MAX_ERROR_BYTES)) {
        reject_together(conn, rows).await?;
    }
    Ok(())
}

/// Move these rows to the rejected ones. A due time that is none is left out, and the present time takes the place of a
/// time of the insertion that is none: the server may refuse to store such a value.
async fn reject_together(conn: &mut Session<'_>, rows: &[(Uuid, String)]) -> Result<(), sqlx::Error> {
    let reasons: BTreeMap<Uuid, String> = rows.iter().map(|(id, reason)| (*id, limits::cut(reason.clone()))).collect();
    let ids: Vec<Uuid> = reasons.keys().copied().collect();
    let sql = "SELECT id, execute_at, created_at FROM tickr_outbox FORCE INDEX (PRIMARY) WHERE id IN";
    let (mut there, mut wrong_due, mut wrong_created) = (Vec::with_capacity(ids.len()), Vec::new(), Vec::new());
    for row in in_list(sql, &ids, " ORDER BY id FOR UPDATE").fetch_all(&mut *conn).await? {
        let (id, wrong): (Uuid, _) = (row.try_get("id")?, WrongTimes::of(&row)?);
        there.push(id);
        wrong_due.extend(wrong.execute_at.then_some(id));
        wrong_created.extend(wrong.created_at.then_some(id));
    }
    if there.is_empty() {
        return Ok(());
    }
    let mut script = Script::as_text();
    let (places, values) = script.list(&there);
    // The order and the limit make the server look the ids up. A scan would wait for rows of other sessions.
    let these = format!("WHERE id IN {places} ORDER BY id LIMIT {}", there.len());
    // An earlier row with one of these ids may have been rejected as well. The newest counts.
    script.push(format!("DELETE FROM outbox_rejected {these}"), values.clone());
    let ((due, mut all), (created, of_created)) = (script.list(&wrong_due), script.list(&wrong_created));
    all.extend(of_created);
    for (id, reason) in there.iter().filter_map(|id| reasons.get_key_value(id)) {
        all.extend([Value::from(*id), reason.as_bytes().into()]);
    }
    all.extend(values.clone());
    script.push(
        format!(
            "INSERT INTO outbox_rejected (id, kind, payload, queue, execute_at, options, created_at, copied_from, \
             rejected_at, reason) SELECT id, kind, payload, queue, IF(id IN {due}, NULL, execute_at), options, \
             IF(id IN {created}, UTC_TIMESTAMP(6), created_at), copied_from, UTC_TIMESTAMP(6), \
             CONVERT(CASE id{} END USING utf8mb4) FROM tickr_outbox FORCE INDEX (PRIMARY) WHERE id IN {places}",
            " WHEN ? THEN ?".repeat(there.len())
        ),
        all,
    );
    script.push(format!("DELETE FROM tickr_outbox {these}"), values);
    script.run(conn).await.map(drop)
}

impl Store {
    /// Read a page of the rejected rows, the newest first, behind the row with this time and id.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn rejected_rows(
        &self,
        before: Option<(Timestamp, Uuid)>,
        limit: u32,
    ) -> Result<Vec<RejectedRow>, StoreError> {
        on_pool(&self.shared.pools.reads, "read the rejected rows of the outbox", move |conn, _| {
            Box::pin(async move {
                let (at, id) = before.unwrap_or((Timestamp::MAX_UTC, Uuid::max()));
                let at = at.min(crate::rows::order::held_until());
                let found = sqlx::query(
                    "SELECT id, kind, LEFT(payload, 65536) AS payload, queue, execute_at, options, created_at, copied_from, \
                     rejected_at, reason FROM outbox_rejected FORCE INDEX (outbox_rejected_at) \
                     WHERE rejected_at < ? OR (rejected_at = ? AND id < ?) ORDER BY rejected_at DESC, id DESC LIMIT ?",
                )
                .bind(at.naive_utc())
                .bind(at.naive_utc())
                .bind(id)
                .bind(limit)
                .fetch_all(conn)
                .await?;
                found.iter().map(rejected_row).collect()
            })
        })
        .await
    }

    /// Move a rejected row back to the outbox, or remove it. Returns false if there is no such row.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn act_on_rejected(&self, id: Uuid, action: RejectedAction, by: &Actor) -> Result<bool, StoreError> {
        let name = match action {
            RejectedAction::Replay => "outbox.replay",
            RejectedAction::Discard => "outbox.discard",
        };
        let act = AuditEntry::new(by, name, id.hyphenated().to_string());
        let shared = self.shared.clone();
        transact(&self.shared.pools.controls, "act on a rejected row of the outbox", move |conn, earlier| {
            let (shared, act) = (shared.clone(), act.clone());
            Box::pin(async move {
                if earlier == PriorRun::MayHaveCommitted && was_recorded(conn, &act).await? {
                    return Ok(true);
                }
                let found = sqlx::query("SELECT 1 FROM outbox_rejected WHERE id = ? FOR UPDATE").bind(id);
                if found.fetch_optional(&mut *conn).await?.is_none() {
                    return Ok(false);
                }
                let now = read_clock(conn, &shared.clock).await?;
                if action == RejectedAction::Replay {
                    // The application may have inserted the row again. Both ask for the same job. The row waits from
                    // now on, as a copied one does: so it is left to a runner of another version once more.
                    let sql = format!(
                        "INSERT INTO tickr_outbox ({COLUMNS}, copied_at) SELECT {COLUMNS}, UTC_TIMESTAMP(6) \
                         FROM outbox_rejected WHERE id = ? ON DUPLICATE KEY UPDATE id = VALUES(id)"
                    );
                    sqlx::query(sqlx::AssertSqlSafe(sql)).bind(id).execute(&mut *conn).await?;
                }
                sqlx::query("DELETE FROM outbox_rejected WHERE id = ?").bind(id).execute(&mut *conn).await?;
                record(conn, &act, now).await?;
                Ok(true)
            })
        })
        .await
    }
}

fn rejected_row(row: &MySqlRow) -> Result<RejectedRow, sqlx::Error> {
    let rejected_at = row.try_get("rejected_at")?;
    Ok(RejectedRow { row: outbox_row(row, rejected_at)?, rejected_at, reason: row.try_get("reason")? })
}
