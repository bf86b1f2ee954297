//! Rows that go by their age.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::TimeDelta;
use sqlx::Row;
use uuid::Uuid;

use crate::sql::batches::{MAX_ROWS, bind_padded, padded_len, placeholders, statement};
use crate::sql::clock::read_clock;
use crate::sql::connection::transact;
use crate::sql::page_size::PageSize;
use crate::sql::session::Session;
use crate::{StoreError, StoreInner};
use tickr_job::{Timestamp, first_id_of};

/// A table whose primary key `id` is a UUIDv7, so that its rows are ordered by the time of their creation.
pub(crate) struct Aged {
    pub(crate) table: &'static str,
    /// The SQL expression for the time from which the age of a row counts, by the database's clock. The ids carry the
    /// time of the hosts' clocks.
    pub(crate) made: &'static str,
    /// The size of its pages.
    pub(crate) page: fn(&AgedPages) -> &PageSize,
}

/// The sizes of the pages of each table. Rows of one may be large, such as stored responses, and those of another
/// small.
#[derive(Debug)]
pub(crate) struct AgedPages {
    pub(crate) answers: PageSize,
    pub(crate) acts: PageSize,
    pub(crate) operations: PageSize,
    pub(crate) departures: PageSize,
}

impl AgedPages {
    /// Begin with the largest pages.
    pub(crate) const fn new() -> Self {
        Self {
            answers: PageSize::new(AGED_PAGE),
            acts: PageSize::new(AGED_PAGE),
            operations: PageSize::new(AGED_PAGE),
            departures: PageSize::new(AGED_PAGE),
        }
    }
}

/// Most rows of an aged table read in one page.
const AGED_PAGE: u32 = 1_000;

/// Remove the rows older than `keep` from one page after `after`, in a transaction of its own. Return the number of
/// removed rows and the position to continue after; absent at the end.
pub(crate) async fn purge_aged(
    shared: &Arc<StoreInner>,
    attempted: &'static str,
    aged: &'static Aged,
    after: Option<Uuid>,
    keep: Duration,
) -> Result<(usize, Option<Uuid>), StoreError> {
    let (inner, size, began) = (Arc::clone(shared), (aged.page)(&shared.aged_pages), Instant::now());
    let most = size.get();
    let purged = transact(&shared.pools.loops, attempted, move |conn, _| {
        let shared = Arc::clone(&inner);
        Box::pin(async move { purge_page(conn, &shared, aged, (after, most), keep).await })
    });
    let purged = purged.await;
    // A page without old rows says nothing about the size.
    if !matches!(purged, Ok((0, _))) {
        size.learn(began, &purged);
    }
    purged
}

async fn purge_page(
    conn: &mut Session<'_>,
    shared: &StoreInner,
    aged: &Aged,
    (after, most): (Option<Uuid>, u32),
    keep: Duration,
) -> Result<(usize, Option<Uuid>), sqlx::Error> {
    let Aged { table, made, .. } = aged;
    let now = read_clock(conn, &shared.clock).await?;
    let before = now - TimeDelta::from_std(keep).unwrap_or(TimeDelta::MAX / 4);
    let found = statement(format!(
        "SELECT id, {made} AS made FROM {table} FORCE INDEX (PRIMARY) WHERE id > ? AND id < ? ORDER BY id LIMIT ?"
    ))
    .bind(after.unwrap_or_default())
    .bind(first_id_of(before))
    .bind(most)
    .fetch_all(&mut *conn)
    .await?;
    let mut old: BTreeSet<Uuid> = BTreeSet::new();
    for row in &found {
        if row.try_get::<Timestamp, _>("made")? < before {
            old.insert(row.try_get("id")?);
        }
    }
    let next = match found.last() {
        Some(last) if found.len() == most as usize => Some(last.try_get("id")?),
        _ => None,
    };
    let old: Vec<Uuid> = old.into_iter().collect();
    for ids in old.chunks(MAX_ROWS) {
        // The order by key and the LIMIT keep MySQL from scanning a small table.
        let sql =
            format!("DELETE FROM {table} WHERE id IN {} ORDER BY id LIMIT ?", placeholders(padded_len(ids.len())));
        let query = bind_padded(statement(sql), ids);
        query.bind(AGED_PAGE).execute(&mut *conn).await?;
    }
    Ok((old.len(), next))
}
