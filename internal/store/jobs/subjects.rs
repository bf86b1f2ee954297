//! The subjects of a change of one job: the job itself, and its keys.

use std::collections::BTreeSet;
use std::time::Duration;

use sqlx::Row;

use crate::sql::connection::on_pool;
use crate::sql::pools::Pools;
use crate::sql::session::Session;
use crate::sql::turns::Subject;
use tickr_job::{JobId, State};

/// Longest wait for the keys of a job.
const PATIENCE: Duration = Duration::from_secs(1);

/// The keys of a job whose rows a change of it may lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockedKeys {
    /// None.
    None,
    /// Its order key.
    Order,
    /// Its order key, and its unique key unless the job is executing.
    OrderAndUnique,
}

/// Return what a change of this job takes turns for. A job never gets other keys, so they are read before the change has
/// a connection. If they cannot be read in time, the change takes turns for the job alone, and meets the outage itself.
pub(crate) async fn subjects_of_change(pools: &Pools, id: JobId, locked: LockedKeys) -> BTreeSet<Subject> {
    let mut subjects = BTreeSet::from([Subject::Job(id), Subject::Change]);
    if locked == LockedKeys::None {
        return subjects;
    }
    let read = on_pool(&pools.reads, "read the keys of a job", move |conn, _| {
        Box::pin(async move { keys_of(conn, id, locked).await })
    });
    if let Ok(Ok(keys)) = tokio::time::timeout(PATIENCE, read).await {
        subjects.extend(keys);
    }
    subjects
}

async fn keys_of(conn: &mut Session<'_>, id: JobId, locked: LockedKeys) -> Result<Vec<Subject>, sqlx::Error> {
    let sql = "SELECT j.kind, j.unique_key, p.order_key, o.state FROM jobs j FORCE INDEX (PRIMARY) \
               LEFT JOIN order_places p FORCE INDEX (PRIMARY) ON p.job_id = j.id \
               LEFT JOIN owed o FORCE INDEX (PRIMARY) ON o.id = j.id WHERE j.id = ?";
    let Some(row) = sqlx::query(sql).bind(id.uuid()).fetch_optional(conn).await? else { return Ok(Vec::new()) };
    let text = |key: Vec<u8>| String::from_utf8_lossy(&key).into_owned();
    let (order, unique): (Option<Vec<u8>>, Option<Vec<u8>>) = (row.try_get("order_key")?, row.try_get("unique_key")?);
    // A handler is asked to stop without a look at the unique key, which the job keeps until its end.
    let executes = row.try_get::<Option<&str>, _>("state")? == Some(State::Executing.as_str());
    let (unique, kind) = (unique.filter(|_| locked == LockedKeys::OrderAndUnique && !executes), row.try_get("kind")?);
    let unique = unique.map(|key| Subject::UniqueKey(kind, text(key)));
    Ok(order.map(|key| Subject::OrderKey(text(key))).into_iter().chain(unique).collect())
}
