//! Rows of `unique_keys`, one for each unfinished job with a unique key.

use sqlx::MySqlConnection;
use uuid::Uuid;

use crate::sql::error::{Fault, again, fault};
use tickr_job::Name;

/// Delete the unique key that this job holds. It is found through the job's own row.
pub(crate) async fn release_key_of(conn: &mut MySqlConnection, id: Uuid) -> Result<(), sqlx::Error> {
    sqlx::query(
        "DELETE k FROM unique_keys k JOIN jobs j ON j.kind = k.kind AND j.unique_key = k.unique_key \
         WHERE j.id = ? AND k.job_id = j.id",
    )
    .bind(id)
    .execute(conn)
    .await?;
    Ok(())
}

/// Lock this unique key and return the job that holds it, or take the key for the job `id`.
///
/// # Errors
/// [`again`], when another transaction took the key between the two statements. The refused insert left a shared lock
/// behind. Many transactions that go on from the shared to the exclusive lock would deadlock. So the caller's
/// transaction begins again and waits for the row.
pub(crate) async fn lock_or_take(
    conn: &mut MySqlConnection,
    kind: &Name,
    key: &[u8],
    id: Uuid,
) -> Result<Option<Uuid>, sqlx::Error> {
    let holder: Option<Uuid> =
        sqlx::query_scalar("SELECT job_id FROM unique_keys WHERE kind = ? AND unique_key = ? FOR UPDATE")
            .bind(kind.as_str())
            .bind(key)
            .fetch_optional(&mut *conn)
            .await?;
    if holder.is_some() {
        return Ok(holder);
    }
    match insert(conn, kind, key, id).await {
        Ok(()) => Ok(None),
        Err(e) if fault(&e) == Fault::Duplicate => Err(again("a unique key was taken meanwhile")),
        Err(e) => Err(e),
    }
}

/// Insert the row of a unique key. Fails with 1062 if another job holds the key.
pub(crate) async fn insert(conn: &mut MySqlConnection, kind: &Name, key: &[u8], id: Uuid) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO unique_keys (kind, unique_key, job_id) VALUES (?, ?, ?)")
        .bind(kind.as_str())
        .bind(key)
        .bind(id)
        .execute(conn)
        .await?;
    Ok(())
}
