//! Inserts rows of the outbox in a transaction of the caller.

use sqlx::MySqlConnection;

use crate::sql::batches::statement;
use crate::{Store, StoreError};
use tickr_job::{JobId, Timestamp};

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

/// Insert a row of the outbox on this connection, in the transaction that is open there. `database` is that of tickr, if
/// it may be another one than that of the connection.
///
/// # Errors
/// When MySQL cannot be reached or refuses.
pub async fn insert_outbox_row(
    conn: &mut MySqlConnection,
    database: Option<&str>,
    row: &NewOutboxRow,
) -> Result<(), StoreError> {
    let database = database.map_or_else(String::new, |name| format!("`{}`.", name.replace('`', "``")));
    let sql = format!(
        "INSERT INTO {database}tickr_outbox (id, kind, payload, queue, execute_at, options) VALUES (?, ?, ?, ?, ?, ?)"
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
    /// Return the name of the database of tickr.
    #[must_use]
    pub fn database_name(&self) -> Option<String> {
        self.shared.pools.reads.connections().connect_options().get_database().map(str::to_owned)
    }
}
