//! Rows of `alerts`: the jobs that deliver the messages of each rule.

use std::collections::BTreeSet;

use sqlx::Row;
use uuid::Uuid;

use crate::sql::batches::{MAX_ROWS, in_list};
use crate::sql::session::Session;

/// Most jobs that a row lists. The size of the column allows no more.
const MAX_DELIVERIES: usize = 16;

/// Return the column of these jobs, the newest first. The oldest ones are left out if they are too many.
pub(crate) fn as_column(jobs: impl IntoIterator<Item = Uuid>) -> Vec<u8> {
    jobs.into_iter().take(MAX_DELIVERIES).flat_map(Uuid::into_bytes).collect()
}

/// Return the jobs of the column.
pub(crate) fn in_column(deliveries: Option<&[u8]>) -> Vec<Uuid> {
    let ids = deliveries.unwrap_or_default().chunks_exact(size_of::<Uuid>());
    ids.filter_map(|id| Uuid::from_slice(id).ok()).collect()
}

/// Return those of these jobs that have an open dead letter.
pub(crate) async fn open_dead_letters_of(conn: &mut Session<'_>, jobs: &[Uuid]) -> Result<BTreeSet<Uuid>, sqlx::Error> {
    let mut open = BTreeSet::new();
    for jobs in jobs.chunks(MAX_ROWS) {
        let sql = "SELECT job_id FROM dead_letters FORCE INDEX (PRIMARY) WHERE standing = 'open' AND job_id IN";
        for row in in_list(sql, jobs, "").fetch_all(&mut *conn).await? {
            open.insert(row.try_get("job_id")?);
        }
    }
    Ok(open)
}

/// Return the jobs of all alerts that have an open dead letter.
pub(crate) async fn failed_deliveries(conn: &mut Session<'_>) -> Result<BTreeSet<Uuid>, sqlx::Error> {
    let sql = "SELECT deliveries FROM alerts WHERE deliveries IS NOT NULL";
    let mut jobs = Vec::new();
    for row in &sqlx::query(sql).fetch_all(&mut *conn).await? {
        jobs.extend(in_column(row.try_get("deliveries")?));
    }
    open_dead_letters_of(conn, &jobs).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_column_of_an_alert_has_its_newest_deliveries_and_no_more_than_it_can_take() {
        let jobs: Vec<Uuid> = (0..20).map(Uuid::from_u128).collect();
        let column = as_column(jobs.iter().copied());
        assert_eq!(column.len(), 256);
        assert_eq!(in_column(Some(&column)), jobs[..16]);
        assert!(in_column(None).is_empty());
    }
}
