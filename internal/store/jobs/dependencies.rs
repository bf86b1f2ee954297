//! Jobs that wait for the ends of other jobs, their parents.
//!
//! The transaction that ends a parent leaves a row in `parent_ends`. Any runner takes it, looks at the children under
//! the locks of their own rows, and lets them run or cancels them. What the children learn is read then, from the rows
//! of all their parents, so neither the order nor the number of these looks matters.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use async_recursion::async_recursion as boxed;
use sqlx::Row;
use sqlx::query::Query;
use uuid::Uuid;

use crate::jobs::actions::{CancelledJobs, cancel_all};
use crate::rows::links::{IN_BATCH, ParentsOutcome, blocked_until, outcomes_of, unblock};
use crate::rows::order::OrderedJobs;
use crate::rows::owed::{DueJob, SKIP_LOCKED, due_job, lock_free};
use crate::rows::tallies::count;
use crate::sql::batches::{MAX_ROWS, in_list, padded, padded_len, placeholders, statement};
use crate::sql::clock::read_clock;
use crate::sql::connection::{on_pool, transact};
use crate::sql::error::corrupt;
use crate::sql::session::Session;
use crate::{Store, StoreError, StoreInner};
use tickr_job::{JobId, OnParentFailure, State, floor_ms};

/// Ended parents that one transaction takes at most.
const PARENTS: u32 = 64;
/// Children that one transaction looks at, at most. While MySQL answers slowly, it looks at fewer.
pub(crate) const CHILDREN: u32 = 512;
/// Rows of one parent that one walk replaces at most.
const REPLACED: u32 = 1_024;
/// In place of the last child that was told, as an older version writes it: all were told, but for some that were left.
/// They may be anywhere, so the walk begins with the first child.
const LEFT_ONES: Uuid = Uuid::max();
/// Parents that are named for a job that waits for them.
const NAMED: u32 = 20;
/// The parents of a job: each with its row in `owed` if it is unfinished, and with that of the job if it is blocked.
const PARENTS_OF: &str = "FROM job_parents p FORCE INDEX (job_parents_child) \
                          LEFT JOIN owed o FORCE INDEX (PRIMARY) ON o.id = p.parent_id \
                          LEFT JOIN blocked_jobs b FORCE INDEX (PRIMARY) ON b.job_id = p.child_id WHERE p.child_id = ?";
/// True for a parent that the job waits for. A job with `run` waits for no parent whose end it has been told, unless the
/// parent was retried since.
const IS_AWAITED: &str = "(p.outcome IS NULL OR (p.outcome <> 'completed' \
                          AND (o.id IS NOT NULL OR COALESCE(b.on_parent_failure, '') <> 'run')))";

/// Outcome of a look at jobs that wait for their parents.
#[derive(Clone, Debug, Default)]
pub struct ToldChildren {
    /// Jobs that do not wait for parents any more.
    pub released: Vec<DueJob>,
    /// Jobs that were cancelled because a parent did not complete.
    pub cancelled: Vec<JobId>,
    /// Jobs that stay as they were: another session locks their rows, or MySQL cannot read one. Their parents stay noted
    /// as ended, behind all others.
    pub left: BTreeSet<Uuid>,
    /// True if there may be more.
    pub more: bool,
}

impl ToldChildren {
    fn add(&mut self, other: Self) {
        self.released.extend(other.released);
        self.cancelled.extend(other.cancelled);
        self.left.extend(other.left);
        self.more |= other.more;
    }
}

/// How far the parents of a job have ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParentProgress {
    /// Number of its parents.
    pub parents: u32,
    /// Number of those that it waits for.
    pub open: u32,
    /// Some of those that it waits for, each with its state. A parent that was removed has none.
    pub waits_for: Vec<(JobId, Option<State>)>,
}

impl Store {
    /// Return the number of the last parent that ended, if children wait to be told.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn last_ended_parent(&self) -> Result<Option<u64>, StoreError> {
        on_pool(&self.shared.pools.loops, "look for parents that ended", |conn, _| {
            Box::pin(async move { sqlx::query_scalar("SELECT MAX(id) FROM parent_ends").fetch_one(conn).await })
        })
        .await
    }

    /// Tell children of jobs that ended, up to this number, a few hundred at most. Parents whose children are left get
    /// higher numbers, so a look that goes on while there are more ends.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn tell_children(&self, up_to: u64) -> Result<ToldChildren, StoreError> {
        let (shared, began, most) = (self.shared.clone(), Instant::now(), self.shared.children.get());
        let told = transact(&self.shared.pools.loops, "tell jobs that their parents ended", move |conn, _| {
            let shared = shared.clone();
            Box::pin(async move { tell_page(conn, &shared, up_to, most).await })
        });
        let told = told.await;
        self.shared.children.learn(began, &told);
        let told = match told {
            // One row of the page is unreadable. The children beside it must not wait for an operator.
            Err(error) if error.is_about_the_row() => self.tell_each_parent(up_to, most).await?,
            told => told?,
        };
        if !told.cancelled.is_empty() {
            self.shared.links_ended(IN_BATCH);
        }
        Ok(told)
    }

    /// Tell the children of the first ended parents one by one, each in a transaction of its own.
    async fn tell_each_parent(&self, up_to: u64, most: u32) -> Result<ToldChildren, StoreError> {
        let parents = on_pool(&self.shared.pools.loops, "read parents that ended", move |conn, _| {
            Box::pin(async move { ended_parents(conn, up_to, "").await })
        });
        let mut all = ToldChildren::default();
        for parent in parents.await? {
            let page = on_pool(&self.shared.pools.loops, "read the children of a parent that ended", move |conn, _| {
                Box::pin(async move { children_behind(conn, &parent, most).await })
            });
            let page = page.await?;
            let told = self.tell_each(&page).await?;
            let left = told.left.clone();
            all.add(told);
            transact(&self.shared.pools.loops, "note which children are told", move |conn, _| {
                let (page, left) = (page.clone(), left.clone());
                Box::pin(async move { note_told(conn, &parent, (&page, most), &left).await })
            })
            .await?;
            all.more = true;
        }
        Ok(all)
    }

    /// Look at these jobs, each in a transaction of its own, and leave those that MySQL cannot read.
    async fn tell_each(&self, ids: &[Uuid]) -> Result<ToldChildren, StoreError> {
        let mut all = ToldChildren::default();
        for id in ids.iter().copied() {
            let shared = self.shared.clone();
            let told = transact(&self.shared.pools.loops, "tell a job that its parents ended", move |conn, _| {
                let shared = shared.clone();
                Box::pin(async move { tell(conn, &shared, &[id]).await })
            });
            match told.await {
                Ok(told) => all.add(told),
                Err(error) if error.is_about_the_row() => {
                    tracing::error!(job = %JobId::from_uuid(id), %error, "a job cannot be told that its parents ended");
                    all.left.insert(id);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    /// Look again at the blocked jobs behind this id, a few hundred at most. This finds those whose parents were ended by
    /// a runner of a version that does not know of children. Returns also the id behind which the next page begins.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn recheck_blocked(&self, after: Option<JobId>) -> Result<(ToldChildren, Option<JobId>), StoreError> {
        let most = self.shared.children.get();
        let page: Vec<Uuid> = on_pool(&self.shared.pools.loops, "read blocked jobs", move |conn, _| {
            Box::pin(async move {
                sqlx::query_scalar(
                    "SELECT job_id FROM blocked_jobs FORCE INDEX (PRIMARY) WHERE job_id > ? ORDER BY job_id LIMIT ?",
                )
                .bind(after.map(JobId::uuid).unwrap_or_default())
                .bind(most)
                .fetch_all(conn)
                .await
            })
        })
        .await?;
        let next = page.last().copied().map(JobId::from_uuid).filter(|_| page.len() as u32 == most);
        if page.is_empty() {
            return Ok((ToldChildren::default(), None));
        }
        let (shared, began) = (self.shared.clone(), Instant::now());
        let looked_at = page.clone();
        let told = transact(&self.shared.pools.loops, "look at blocked jobs", move |conn, _| {
            let (shared, page) = (shared.clone(), looked_at.clone());
            Box::pin(async move { tell(conn, &shared, &page).await })
        });
        let told = told.await;
        self.shared.children.learn(began, &told);
        let told = match told {
            Err(error) if error.is_about_the_row() => self.tell_each(&page).await?,
            told => told?,
        };
        Ok((told, next))
    }

    /// Count the jobs that wait for their parents, and the batches that have not ended, each up to 100,000.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn blocked_and_unfinished(&self) -> Result<(i64, i64), StoreError> {
        on_pool(&self.shared.pools.reads, "count blocked jobs and unfinished batches", |conn, _| {
            Box::pin(async move {
                sqlx::query_as(
                    "SELECT (SELECT COUNT(*) FROM (SELECT 1 FROM blocked_jobs LIMIT 100000) b), \
                     (SELECT COUNT(*) FROM (SELECT 1 FROM batches FORCE INDEX (batches_completed) \
                     WHERE completed_at IS NULL LIMIT 100000) c)",
                )
                .fetch_one(conn)
                .await
            })
        })
        .await
    }

    /// Read how far the parents of a job have ended.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn parent_progress(&self, id: JobId) -> Result<ParentProgress, StoreError> {
        on_pool(&self.shared.pools.reads, "read the parents of a job", move |conn, _| {
            Box::pin(async move {
                let sql = format!(
                    "SELECT COUNT(*) AS parents, CAST(COALESCE(SUM({IS_AWAITED}), 0) AS SIGNED) AS open {PARENTS_OF}"
                );
                let counts = statement(sql).bind(id.uuid()).fetch_one(&mut *conn).await?;
                let sql = format!(
                    "SELECT p.parent_id, IF(EXISTS (SELECT 1 FROM jobs j WHERE j.id = p.parent_id), \
                     COALESCE(o.state, (SELECT a.end_state FROM attempts a WHERE a.job_id = p.parent_id \
                     ORDER BY a.number DESC LIMIT 1), 'failed'), NULL) AS state {PARENTS_OF} \
                     AND {IS_AWAITED} ORDER BY p.parent_id LIMIT ?"
                );
                let found = statement(sql).bind(id.uuid()).bind(NAMED).fetch_all(&mut *conn).await?;
                let number = |column| -> Result<u32, sqlx::Error> {
                    Ok(u32::try_from(counts.try_get::<i64, _>(column)?).unwrap_or(u32::MAX))
                };
                let waits_for = found.iter().map(|row| {
                    let state = row.try_get::<Option<&str>, _>("state")?;
                    let state = state.map(|word| State::from_word(word).ok_or_else(|| corrupt("state"))).transpose()?;
                    Ok((JobId::from_uuid(row.try_get("parent_id")?), state))
                });
                let waits_for = waits_for.collect::<Result<Vec<_>, sqlx::Error>>()?;
                Ok(ParentProgress { parents: number("parents")?, open: number("open")?, waits_for })
            })
        })
        .await
    }

    /// Read the jobs that wait or waited for this one, each with its state, at most `limit`, in id order behind `after`.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn children_of(
        &self,
        id: JobId,
        after: Option<JobId>,
        limit: u32,
    ) -> Result<Vec<(JobId, State)>, StoreError> {
        on_pool(&self.shared.pools.reads, "read the children of a job", move |conn, _| {
            Box::pin(async move {
                let found = sqlx::query(
                    "SELECT p.child_id, COALESCE(o.state, (SELECT a.end_state FROM attempts a \
                     WHERE a.job_id = p.child_id ORDER BY a.number DESC LIMIT 1), 'waiting') AS state \
                     FROM (SELECT child_id FROM job_parents FORCE INDEX (PRIMARY) WHERE parent_id = ? AND child_id > ? \
                     ORDER BY child_id LIMIT ?) p LEFT JOIN owed o ON o.id = p.child_id ORDER BY p.child_id",
                )
                .bind(id.uuid())
                .bind(after.map(JobId::uuid).unwrap_or_default())
                .bind(limit)
                .fetch_all(conn)
                .await?;
                found
                    .iter()
                    .map(|row| {
                        let state = State::from_word(row.try_get("state")?).ok_or_else(|| corrupt("state"))?;
                        Ok((JobId::from_uuid(row.try_get("child_id")?), state))
                    })
                    .collect()
            })
        })
        .await
    }
}

/// A row of `parent_ends`.
#[derive(Clone, Copy)]
struct EndedParent {
    row: u64,
    parent: Uuid,
    /// The children up to this one are told.
    told: Uuid,
}

impl EndedParent {
    /// Return the child behind which the walk goes on.
    fn behind(&self) -> Uuid {
        if self.told == LEFT_ONES { Uuid::nil() } else { self.told }
    }
}

async fn ended_parents(conn: &mut Session<'_>, up_to: u64, locks: &str) -> Result<Vec<EndedParent>, sqlx::Error> {
    let sql = format!("SELECT id, parent_id, told FROM parent_ends WHERE id <= ? ORDER BY id LIMIT ?{locks}");
    let found = statement(sql).bind(up_to).bind(PARENTS).fetch_all(conn).await?;
    let mut parents = Vec::with_capacity(found.len());
    for row in &found {
        let (row, parent, told) = (row.try_get("id")?, row.try_get("parent_id")?, row.try_get("told")?);
        parents.push(EndedParent { row, parent, told });
    }
    Ok(parents)
}

/// Read the next children of a parent that still wait for parents, in id order, behind those that are told.
async fn children_behind(conn: &mut Session<'_>, parent: &EndedParent, most: u32) -> Result<Vec<Uuid>, sqlx::Error> {
    let sql = "SELECT p.child_id FROM job_parents p FORCE INDEX (PRIMARY) \
               STRAIGHT_JOIN blocked_jobs b FORCE INDEX (PRIMARY) ON b.job_id = p.child_id \
               WHERE p.parent_id = ? AND p.child_id > ? ORDER BY p.child_id LIMIT ?";
    sqlx::query_scalar(sql).bind(parent.parent).bind(parent.behind()).bind(most).fetch_all(conn).await
}

/// Return the child behind which the walk over the children of each parent goes on. A parent may have several rows. The
/// walk of one of them reaches all children that those of the others reach.
fn walks_of<'a>(parents: impl Iterator<Item = &'a EndedParent>) -> BTreeMap<Uuid, Uuid> {
    let mut walks: BTreeMap<Uuid, Uuid> = BTreeMap::new();
    for parent in parents {
        let behind = walks.entry(parent.parent).or_insert_with(|| parent.behind());
        *behind = parent.behind().min(*behind);
    }
    walks
}

/// Return the children of these parents behind those that are told, or nothing if there are more than `most`.
async fn few_children(
    conn: &mut Session<'_>,
    parents: &[EndedParent],
    most: u32,
) -> Result<Option<Vec<Uuid>>, sqlx::Error> {
    let walks: Vec<(Uuid, Uuid)> = walks_of(parents.iter()).into_iter().collect();
    let spans = vec!["(parent_id = ? AND child_id > ?)"; padded_len(walks.len())].join(" OR ");
    let sql = format!("SELECT child_id FROM job_parents FORCE INDEX (PRIMARY) WHERE {spans} LIMIT ?");
    let query = padded(&walks).fold(statement(sql), |query, (parent, behind)| query.bind(parent).bind(behind));
    let found = query.bind(most + 1).fetch_all(conn).await?;
    if found.len() > most as usize {
        return Ok(None);
    }
    let children = found.iter().map(|row| row.try_get("child_id")).collect::<Result<BTreeSet<Uuid>, _>>()?;
    Ok(Some(children.into_iter().collect()))
}

/// Return the other rows of a parent whose children the walk of this row reaches, locked, without those that another
/// session locks. Each of these rows was committed with its children, so a page that is read after this shows them.
async fn replaced_by(conn: &mut Session<'_>, parent: &EndedParent) -> Result<Vec<u64>, sqlx::Error> {
    let behind = parent.behind();
    let reached = if behind.is_nil() { "told >= ?" } else { "told >= ? AND told <> ?" };
    let sql = format!(
        "SELECT id FROM parent_ends FORCE INDEX (parent_ends_parent) WHERE parent_id = ? AND id <> ? AND {reached} \
         LIMIT {REPLACED} FOR UPDATE{SKIP_LOCKED}"
    );
    let mut query = statement(sql).bind(parent.parent).bind(parent.row).bind(behind);
    if !behind.is_nil() {
        query = query.bind(LEFT_ONES);
    }
    query.fetch_all(conn).await?.iter().map(|row| row.try_get("id")).collect()
}

/// Delete these rows of `parent_ends`, which are locked.
async fn delete_rows(conn: &mut Session<'_>, rows: &[u64]) -> Result<(), sqlx::Error> {
    for rows in rows.chunks(MAX_ROWS) {
        // In the order of the primary key, because on a small table the servers prefer a scan for an `IN` list. A scan
        // waits for the rows of others, and they may wait for the children that are locked here.
        let places = placeholders(rows.len());
        let query = format!("DELETE FROM parent_ends WHERE id IN {places} ORDER BY id LIMIT {}", rows.len());
        rows.iter().fold(statement(query), Query::bind).execute(&mut *conn).await?;
    }
    Ok(())
}

/// Note that these children of a parent are told. If some were left, the parent is noted once more behind all others,
/// as told up to the first of them. Children that stay blocked are not left, so a walk that leaves none is the last
/// one.
async fn note_told(
    conn: &mut Session<'_>,
    parent: &EndedParent,
    (page, most): (&[Uuid], u32),
    left: &BTreeSet<Uuid>,
) -> Result<(), sqlx::Error> {
    let noted = match page.last().filter(|_| page.len() as u32 == most) {
        Some(last) => {
            let update = sqlx::query("UPDATE parent_ends SET told = ? WHERE id = ?").bind(last).bind(parent.row);
            update.execute(&mut *conn).await?
        }
        None => sqlx::query("DELETE FROM parent_ends WHERE id = ?").bind(parent.row).execute(&mut *conn).await?,
    };
    // Without a row, another runner has told them meanwhile.
    let Some(first) = left.first().filter(|_| noted.rows_affected() > 0) else { return Ok(()) };
    // The walk of another row of the parent, such as that of an earlier page, may reach this child as well.
    let sql = "SELECT 1 FROM parent_ends FORCE INDEX (parent_ends_parent) \
               WHERE parent_id = ? AND id <> ? AND (told < ? OR told = ?) LIMIT 1";
    let other = sqlx::query(sql).bind(parent.parent).bind(parent.row).bind(first).bind(LEFT_ONES);
    if other.fetch_optional(&mut *conn).await?.is_none() {
        let before = Uuid::from_u128(first.as_u128().saturating_sub(1));
        let insert = sqlx::query("INSERT INTO parent_ends (parent_id, told) VALUES (?, ?)");
        insert.bind(parent.parent).bind(before).execute(conn).await?;
    }
    Ok(())
}

async fn tell_page(
    conn: &mut Session<'_>,
    shared: &StoreInner,
    up_to: u64,
    most: u32,
) -> Result<ToldChildren, sqlx::Error> {
    let parents = ended_parents(conn, up_to, &format!(" FOR UPDATE{SKIP_LOCKED}")).await?;
    let Some(first) = parents.first() else { return Ok(ToldChildren::default()) };
    let Some(children) = few_children(conn, &parents, most).await? else {
        // A parent with many children: a part of them at a time.
        let replaced = replaced_by(conn, first).await?;
        let page = children_behind(conn, first, most).await?;
        let mut told = tell(conn, shared, &page).await?;
        delete_rows(conn, &replaced).await?;
        note_told(conn, first, (&page, most), &told.left).await?;
        told.more = true;
        return Ok(told);
    };
    let mut told = tell(conn, shared, &children).await?;
    let waiting = parents_of(conn, &told.left).await?;
    delete_rows(conn, &parents.iter().map(|parent| parent.row).collect::<Vec<_>>()).await?;
    for (parent, behind) in walks_of(parents.iter().filter(|parent| waiting.contains(&parent.parent))) {
        let insert = sqlx::query("INSERT INTO parent_ends (parent_id, told) VALUES (?, ?)");
        insert.bind(parent).bind(behind).execute(&mut *conn).await?;
    }
    told.more = parents.len() as u32 == PARENTS;
    Ok(told)
}

/// Read the parents of these jobs.
async fn parents_of(conn: &mut Session<'_>, children: &BTreeSet<Uuid>) -> Result<BTreeSet<Uuid>, sqlx::Error> {
    let (mut parents, children) = (BTreeSet::new(), children.iter().copied().collect::<Vec<_>>());
    for children in children.chunks(MAX_ROWS) {
        let sql = "SELECT parent_id FROM job_parents FORCE INDEX (job_parents_child) WHERE child_id IN";
        for row in in_list(sql, children, "").fetch_all(&mut *conn).await? {
            parents.insert(row.try_get("parent_id")?);
        }
    }
    Ok(parents)
}

/// Look at these jobs, which are in id order, and let those run or cancel them whose parents allow it.
async fn tell(conn: &mut Session<'_>, shared: &StoreInner, ids: &[Uuid]) -> Result<ToldChildren, sqlx::Error> {
    let mut policies: BTreeMap<Uuid, OnParentFailure> = BTreeMap::new();
    for ids in ids.chunks(MAX_ROWS) {
        let sql = "SELECT job_id, on_parent_failure FROM blocked_jobs FORCE INDEX (PRIMARY) WHERE job_id IN";
        for row in in_list(sql, ids, "").fetch_all(&mut *conn).await? {
            let policy = OnParentFailure::from_word(row.try_get("on_parent_failure")?);
            policies.insert(row.try_get("job_id")?, policy.ok_or_else(|| corrupt("on_parent_failure"))?);
        }
    }
    if policies.is_empty() {
        return Ok(ToldChildren::default());
    }
    // A child that another session locks would hold up all others.
    let mut held = lock_free(conn, policies.keys().copied().map(JobId::from_uuid)).await?;
    let left = policies.keys().copied().filter(|id| !held.contains_key(&JobId::from_uuid(*id))).collect();
    // Another session may have cancelled or told a child since its row was read.
    policies.retain(|id, _| held.get(&JobId::from_uuid(*id)).is_some_and(|owed| owed.execute_at == blocked_until()));
    let now = read_clock(conn, &shared.clock).await?;
    let outcomes = outcomes_of(conn, &policies).await?;
    let satisfied = |(id, outcome): (&Uuid, &ParentsOutcome)| (*outcome == ParentsOutcome::Satisfied).then_some(*id);
    let free: Vec<Uuid> = outcomes.iter().filter_map(satisfied).collect();
    unblock(conn, &free, floor_ms(now)).await?;
    let mut told = ToldChildren { left, ..ToldChildren::default() };
    for free in free.chunks(MAX_ROWS) {
        let sql = "SELECT id, queue, priority, execute_at, kind FROM owed FORCE INDEX (PRIMARY) WHERE id IN";
        for row in in_list(sql, free, "").fetch_all(&mut *conn).await? {
            told.released.push(due_job(&row)?);
        }
    }
    let mut errors: BTreeMap<JobId, String> = BTreeMap::new();
    for (id, outcome) in &outcomes {
        if let ParentsOutcome::Cancel(parent, end) = outcome {
            let how = if *end == State::Cancelled { "was cancelled" } else { "failed" };
            errors.insert(JobId::from_uuid(*id), format!("its parent {parent} {how}"));
        }
    }
    held.retain(|id, _| errors.contains_key(id));
    // A job with parents has no order key.
    let CancelledJobs { cancelled, counts, .. } =
        cancel_all(conn, &held, &OrderedJobs::default(), &errors, now).await?;
    told.cancelled = cancelled;
    count(conn, shared.lanes.any(), &counts).await?;
    Ok(told)
}
