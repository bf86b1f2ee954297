//! Inserts rows of the outbox in a transaction of the caller.

use async_recursion::async_recursion as boxed;
use sqlx::MySqlConnection;

use crate::sql::batches::statement;
use crate::sql::table_names::{OUTBOX, table_name};
use crate::{Store, StoreError};
use tickr_job::{JobId, TablePrefix, Timestamp};

/// A row of the outbox to insert.
#[derive(Clone, Debug)]
pub struct NewOutboxRow {
    /// The id of the job.
    pub id: JobId,
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
}

/// The outbox as a session sees it that is not one of tickr's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutboxPlace {
    /// Database of tickr, if it may be another one than that of the session.
    pub database: Option<String>,
    /// Prefix of the tables of tickr.
    pub prefix: TablePrefix,
}

/// Insert a row of the outbox on this connection, in the transaction that is open there.
///
/// # Errors
/// When MySQL cannot be reached or refuses.
#[boxed]
pub async fn insert_outbox_row(
    conn: &mut MySqlConnection,
    place: &OutboxPlace,
    row: &NewOutboxRow,
) -> Result<(), StoreError> {
    let database = place.database.as_deref().map_or_else(String::new, |name| format!("`{}`.", name.replace('`', "``")));
    let table = table_name(&place.prefix, OUTBOX);
    let sql = format!(
        "INSERT INTO {database}{table} (id, kind, payload, queue, execute_at, options) VALUES (?, ?, ?, ?, ?, ?)"
    );
    statement(sql)
        .bind(row.id.uuid())
        .bind(&row.kind)
        .bind(&row.payload)
        .bind(&row.queue)
        .bind(row.execute_at.map(|at| at.naive_utc()))
        .bind(&row.options)
        .execute(conn)
        .await
        .map(drop)
        .map_err(|error| StoreError::from_driver("insert a row of the outbox", &error))
}

impl Store {
    /// Return where the outbox of tickr is.
    #[must_use]
    pub fn outbox_place(&self) -> OutboxPlace {
        let target = &self.shared.options;
        OutboxPlace { database: target.database(), prefix: target.prefix.clone() }
    }
}
