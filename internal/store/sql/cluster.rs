//! Locks that hold in a whole cluster.
//!
//! In a Galera cluster, a row that a transaction locks is locked on its own node only. The cluster finds a conflict
//! between two nodes when both have written the same row. So two transactions that lock the same row, to count other
//! rows in peace, would both commit. In a cluster such a transaction also writes a row that stands for its lock. Then one
//! of the two commits, and the other one is told of a deadlock and runs again.
//!
//! A transaction needs this only where its lock protects rows that it reads, or a row that it may leave as it is. Writes of
//! the same row find each other.

use std::collections::BTreeSet;

use sha2::{Digest as _, Sha256};
use sqlx::Row;

use crate::sql::connection::is_in_cluster;
use crate::sql::script::{Script, Value};
use crate::sql::session::Session;
use crate::sql::write_probe::LOCKS;

/// What a transaction has locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Locked {
    /// The key of a limit: the attempts and parked jobs that count against it.
    LimitKey,
    /// A queue: the permits of its runners.
    Queue,
    /// A batch: the jobs that it takes until it ends.
    Batch,
    /// A job: whether it has ended, and whether it exists.
    Job,
    /// A batch of claims for a remote worker: whether an answer hands them out, or they are given back.
    Claims,
}

impl Locked {
    /// Return the row that stands for the lock of this key. Every version of tickr must return the same one.
    fn row(self, key: &[u8]) -> u16 {
        let of: &[u8] = match self {
            Self::LimitKey => b"limit",
            Self::Queue => b"queue",
            Self::Batch => b"batch",
            Self::Job => b"job",
            Self::Claims => b"claims",
        };
        let digest = Sha256::new().chain_update(of).chain_update([0]).chain_update(key).finalize();
        u16::from_be_bytes([digest[0], digest[1]]) % LOCKS
    }
}

/// Add the step that makes the locks of these keys hold in the whole cluster to a script. Outside a cluster it adds none.
fn lock_in_cluster_step<K: AsRef<[u8]>>(script: &mut Script<'_>, locked: Locked, keys: impl IntoIterator<Item = K>) {
    if !is_in_cluster() {
        return;
    }
    // In one order, so that two transactions on one node wait for each other and do not deadlock.
    let mut rows: Vec<u16> = keys.into_iter().map(|key| locked.row(key.as_ref())).collect();
    rows.sort_unstable();
    rows.dedup();
    if !rows.is_empty() {
        let insert =
            ["INSERT INTO cluster_locks (id, turn) VALUES", "(?,1)", "ON DUPLICATE KEY UPDATE turn = turn + 1"];
        script.insert(insert, &rows, |_| 10, |&row, values| values.push(Value::from(row)));
    }
}

/// Make the locks of these keys, which the caller's transaction has, hold in the whole cluster.
pub(crate) async fn lock_in_cluster<K: AsRef<[u8]>>(
    conn: &mut Session<'_>,
    locked: Locked,
    keys: impl IntoIterator<Item = K>,
) -> Result<(), sqlx::Error> {
    if !is_in_cluster() {
        return Ok(());
    }
    let mut script = Script::as_text();
    lock_in_cluster_step(&mut script, locked, keys);
    script.run(conn).await.map(drop)
}

/// Do what [`lock_in_cluster`] does, without the keys whose rows another session of this node locks. Return the other
/// keys. `skip_locked` are the words for that.
pub(crate) async fn lock_free_in_cluster(
    conn: &mut Session<'_>,
    locked: Locked,
    keys: BTreeSet<Vec<u8>>,
    skip_locked: &str,
) -> Result<BTreeSet<Vec<u8>>, sqlx::Error> {
    if !is_in_cluster() || keys.is_empty() {
        return Ok(keys);
    }
    let rows: BTreeSet<u16> = keys.iter().map(|key| locked.row(key)).collect();
    let rows: Vec<u16> = rows.into_iter().collect();
    let mut script = Script::as_text();
    let (list, values) = script.list(&rows);
    let select = format!("SELECT id FROM cluster_locks FORCE INDEX (PRIMARY) WHERE id IN {list}");
    script.push(format!("{select} ORDER BY id FOR UPDATE{skip_locked}"), values.clone());
    script.push(select, values);
    let mut found = Vec::new();
    for step in script.run(conn).await? {
        let ids: BTreeSet<u16> = step.rows.iter().map(|row| row.try_get("id")).collect::<Result<_, _>>()?;
        found.push(ids);
    }
    let (exist, mut busy) = (found.pop().unwrap_or_default(), BTreeSet::new());
    if let Some(free) = found.pop() {
        busy.extend(exist.difference(&free).copied());
    }
    let free: BTreeSet<Vec<u8>> = keys.into_iter().filter(|key| !busy.contains(&locked.row(key))).collect();
    lock_in_cluster(conn, locked, &free).await?;
    Ok(free)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_version_has_the_same_row_for_a_lock() {
        assert_eq!(Locked::LimitKey.row(b"tenant\0a"), 933);
        assert_eq!(Locked::Queue.row(b"default"), 67);
    }
}
