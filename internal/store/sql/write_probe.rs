//! The write that shows whether a server takes writes: it changes a row and commits.
//!
//! A write that matches no row shows little. It needs no room on the disk, no binary log, no consent of a cluster and
//! no replica that acknowledges it, so a server that can commit nothing carries it out.
//!
//! The row is changed in place, which needs no new page of its table. `disk_room.rs` knows of a disk that has room for
//! no other write.
//!
//! Each process has a row of its own, so that the probes of many processes wait for nothing. It is beside the rows of
//! `cluster_locks` that stand for locks. A probe that waits for its row in vain says the same as one without an answer:
//! the commit of an earlier probe is still under way.

use std::sync::LazyLock;

use rand::Rng as _;
use sqlx::AssertSqlSafe;

use crate::sql::session::Session;

/// Number of rows that stand for locks. Two locks with the same row exclude each other too, which costs a repetition.
/// The rows of probes come after them.
pub(crate) const LOCKS: u16 = 1_024;
/// Number of rows for probes. Two processes with the same row wait for each other's commit.
const ROWS: u16 = 1_024;

/// The transaction of this process, which takes one round trip.
static TRANSACTION: LazyLock<String> = LazyLock::new(|| transaction(LOCKS + rand::rng().random_range(0..ROWS)));

fn transaction(row: u16) -> String {
    format!(
        "BEGIN;INSERT INTO cluster_locks (id, turn) VALUES ({row},1) ON DUPLICATE KEY UPDATE turn = turn + 1;COMMIT"
    )
}

/// Change the row of this process and commit. The caller sets a limit, and rolls back after an error.
pub(crate) async fn write(conn: &mut Session<'_>) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(TRANSACTION.as_str())).execute(conn).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::table_names::with_prefix;

    #[test]
    fn a_probe_changes_a_row_of_its_own_and_commits() {
        let row = TRANSACTION.split(['(', ',']).find_map(|part| part.parse::<u16>().ok()).unwrap();
        assert!((LOCKS..LOCKS + ROWS).contains(&row), "{row} stands for a lock");
        let prefixed = with_prefix(&"shop_".parse().unwrap(), &TRANSACTION).into_owned();
        assert!(prefixed.contains("INTO shop_cluster_locks (id, turn)"), "{prefixed}");
        assert!(prefixed.ends_with("UPDATE turn = turn + 1;COMMIT"), "{prefixed}");
    }
}
