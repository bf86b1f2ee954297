//! Links of jobs: the parents that a job waits for, and the batch that counts it.
//!
//! A job with parents is *blocked* while one of them is unfinished: its `owed` row has the due time [`blocked_until`], so
//! that claims, the scheduler and the index do not meet it. The transaction that ends a job with children inserts one row
//! in `parent_ends`, and the one that ends jobs of a batch inserts one row in `batch_changes`. None of them locks a row of
//! another job or of a batch. What follows from these rows is decided later, in transactions of their own
//! (`jobs/dependencies.rs`, `batches/`).
//!
//! A request that names parents locks their `owed` rows and marks them, in id order. So a parent either has the mark when
//! it ends, or had ended before and is found so.
//!
//! Rows are locked in this order: order keys, unique keys, `owed` rows, batches.

use std::collections::{BTreeMap, BTreeSet};

use chrono::TimeDelta;
use sqlx::Row;
use sqlx::query::Query;
use uuid::Uuid;

use crate::rows::order::held_until;
use crate::sql::batches::{MAX_ROWS, bind_padded, groups, in_list, padded_len, placeholders, statement, tuples};
use crate::sql::cluster::{Locked, lock_in_cluster};
use crate::sql::error::{again, corrupt};
use crate::sql::script::{Script, Value};
use crate::sql::session::Session;
use tickr_job::{BatchId, JobId, NewJob, OnParentFailure, State, Timestamp};

/// Bit of `owed.links`: the job belongs to a batch.
pub(crate) const IN_BATCH: u8 = 1;
/// Bit of `owed.links`: other jobs wait for the end of the job.
pub(crate) const AWAITED: u8 = 2;
/// Most jobs that a replay takes over from a failed job. It locks all of them in one transaction, which has 15 s.
pub(crate) const MAX_HANDED_OVER: u32 = 10_000;

/// The due time in `owed` of a job that waits for its parents: 9999-12-31 at noon, half a day after that of a job that
/// is held for its order.
pub(crate) fn blocked_until() -> Timestamp {
    held_until() + TimeDelta::hours(12)
}

/// A link that a new job cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkProblem {
    /// There is no such parent. It may have been removed after its retention time.
    UnknownParent(JobId),
    /// There is no such batch.
    UnknownBatch(BatchId),
    /// All jobs of the batch have ended, and it was closed.
    EndedBatch(BatchId),
    /// The batch was cancelled.
    CancelledBatch(BatchId),
}

impl std::fmt::Display for LinkProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::UnknownParent(id) => {
                write!(f, "there is no job {id}; it may have been removed after its retention time")
            }
            Self::UnknownBatch(id) => write!(f, "there is no batch {id}"),
            Self::EndedBatch(id) => write!(f, "the batch {id} has ended, so it takes no more jobs"),
            Self::CancelledBatch(id) => write!(f, "the batch {id} was cancelled, so it takes no more jobs"),
        }
    }
}

/// The links of new jobs, checked. The rows on which they depend are locked.
#[derive(Debug, Default)]
pub(crate) struct NewLinks {
    /// The jobs that wait for their parents.
    blocked: BTreeSet<Uuid>,
    /// How parents had ended before, by parent.
    ended: BTreeMap<Uuid, State>,
    /// The jobs for which other jobs wait from the beginning.
    awaited: BTreeSet<Uuid>,
    /// True if some job has a link.
    any: bool,
}

impl NewLinks {
    /// Return the links of replays, for some of which other jobs wait.
    pub(crate) fn of_replays(awaited: BTreeSet<Uuid>) -> Self {
        Self { awaited, any: true, ..Self::default() }
    }

    pub(crate) fn is_blocked(&self, id: JobId) -> bool {
        self.blocked.contains(&id.uuid())
    }

    /// Return the value of `owed.links` of a new job.
    pub(crate) fn bits_of(&self, job: &NewJob) -> u8 {
        let in_batch = if job.options.batch.is_some() { IN_BATCH } else { 0 };
        let awaited = if self.awaited.contains(&job.id.uuid()) { AWAITED } else { 0 };
        in_batch | awaited
    }
}

/// Check the links of new jobs, and lock the rows on which they depend: those of unfinished parents, then the batches.
/// Returns a problem for each link that is not possible, with the position of the job. A batch in `own` takes the job in
/// any case: it is made by this transaction, or counts a job that ends in it. A parent in `completed` counts as
/// completed in any case: retention may have removed its rows.
pub(crate) async fn check_links(
    conn: &mut Session<'_>,
    jobs: &[&NewJob],
    own: &BTreeSet<BatchId>,
    completed: &BTreeSet<Uuid>,
) -> Result<(NewLinks, Vec<(usize, LinkProblem)>), sqlx::Error> {
    let mut links = NewLinks::default();
    let mut problems = Vec::new();
    let linked = |job: &&&NewJob| !job.options.after.is_empty() || job.options.batch.is_some();
    if !jobs.iter().any(|job| linked(&job)) {
        return Ok((links, problems));
    }
    links.any = true;
    let here: BTreeSet<Uuid> = jobs.iter().map(|job| job.id.uuid()).collect();
    let named = || jobs.iter().flat_map(|job| &job.options.after).map(|id| id.uuid());
    links.awaited = named().filter(|id| here.contains(id)).collect();
    let elsewhere: Vec<Uuid> = named().filter(|id| !here.contains(id)).collect::<BTreeSet<_>>().into_iter().collect();
    let unfinished = mark_awaited(conn, &elsewhere).await?;
    // A parent that is awaited already was not written.
    lock_in_cluster(conn, Locked::Job, &unfinished).await?;
    let others: Vec<Uuid> = elsewhere.into_iter().filter(|id| !unfinished.contains(id)).collect();
    links.ended = ends_of(conn, &others).await?;
    let completed = others.iter().filter(|id| completed.contains(*id)).map(|id| (*id, State::Completed));
    links.ended.extend(completed);

    let batches: BTreeSet<BatchId> = jobs.iter().filter_map(|job| job.options.batch).collect();
    let mut closed: BTreeMap<BatchId, LinkProblem> = BTreeMap::new();
    let mut cancelled: BTreeSet<BatchId> = BTreeSet::new();
    for batch in batches {
        match lock_open(conn, batch).await? {
            Some((LinkProblem::CancelledBatch(_), false)) if own.contains(&batch) => drop(cancelled.insert(batch)),
            Some((problem, _)) if !own.contains(&batch) => drop(closed.insert(batch, problem)),
            _ => {}
        }
    }
    for (place, job) in jobs.iter().enumerate() {
        let mut waits = false;
        for parent in &job.options.after {
            let id = parent.uuid();
            // A job would wait for its own end for ever. The answer to the row of a parent may be a job that had the id
            // of this one and was removed.
            let is_other = here.contains(&id) && *parent != job.id;
            if is_other || unfinished.contains(&id) {
                waits = true;
            } else if let Some(end) = links.ended.get(&id) {
                waits |= *end != State::Completed && job.options.on_parent_failure != OnParentFailure::Run;
            } else {
                problems.push((place, LinkProblem::UnknownParent(*parent)));
            }
        }
        // Its cancel ends the job, which must not start before that.
        waits |= job.options.batch.is_some_and(|batch| cancelled.contains(&batch));
        if waits {
            links.blocked.insert(job.id.uuid());
        }
        if let Some(problem) = job.options.batch.and_then(|batch| closed.get(&batch)) {
            problems.push((place, *problem));
        }
    }
    Ok((links, problems))
}

/// Return those of these jobs for which more than [`MAX_HANDED_OVER`] jobs wait.
pub(crate) async fn with_many_children(
    conn: &mut Session<'_>,
    parents: &[Uuid],
) -> Result<BTreeSet<Uuid>, sqlx::Error> {
    // The subquery stops at the first child beyond this number.
    let sql = format!(
        "SELECT j.id, (SELECT 1 FROM job_parents p FORCE INDEX (PRIMARY) \
         STRAIGHT_JOIN blocked_jobs b FORCE INDEX (PRIMARY) ON b.job_id = p.child_id WHERE p.parent_id = j.id \
         LIMIT 1 OFFSET {MAX_HANDED_OVER}) IS NOT NULL AS many FROM jobs j FORCE INDEX (PRIMARY) WHERE j.id IN"
    );
    let mut found = BTreeSet::new();
    for parents in parents.chunks(MAX_ROWS) {
        for row in in_list(&sql, parents, "").fetch_all(&mut *conn).await? {
            if row.try_get("many")? {
                found.insert(row.try_get("id")?);
            }
        }
    }
    Ok(found)
}

/// Let replays take the places of failed jobs: the jobs that wait for a failed job wait for its replay. Returns the
/// replays for which jobs wait.
pub(crate) async fn hand_children_over(
    conn: &mut Session<'_>,
    replays: &BTreeMap<Uuid, Uuid>,
) -> Result<BTreeSet<Uuid>, sqlx::Error> {
    let mut children: BTreeMap<Uuid, BTreeSet<Uuid>> = BTreeMap::new();
    for failed in replays.keys().copied().collect::<Vec<_>>().chunks(MAX_ROWS) {
        let sql = "SELECT p.parent_id, p.child_id FROM job_parents p FORCE INDEX (PRIMARY) \
                   STRAIGHT_JOIN blocked_jobs b FORCE INDEX (PRIMARY) ON b.job_id = p.child_id WHERE p.parent_id IN";
        for row in in_list(sql, failed, "").fetch_all(&mut *conn).await? {
            children.entry(row.try_get("parent_id")?).or_default().insert(row.try_get("child_id")?);
        }
    }
    // A runner that tells a child reads its parents and writes down how they have ended under this lock. Without it,
    // that runner would write the failed job down as one more parent, or let a child go that waits for the replay.
    let all: BTreeSet<Uuid> = children.values().flatten().copied().collect();
    let mut blocked = BTreeSet::new();
    for ids in all.into_iter().collect::<Vec<_>>().chunks(MAX_ROWS) {
        let sql = "SELECT id FROM owed FORCE INDEX (PRIMARY) WHERE id IN";
        let query = in_list(sql, ids, " AND execute_at = ? ORDER BY id FOR UPDATE").bind(blocked_until().naive_utc());
        for row in query.fetch_all(&mut *conn).await? {
            blocked.insert(row.try_get::<Uuid, _>("id")?);
        }
    }
    let mut awaited = BTreeSet::new();
    for (failed, children) in &children {
        let Some(replay) = replays.get(failed) else { continue };
        let children: Vec<Uuid> = children.intersection(&blocked).copied().collect();
        for ids in children.chunks(MAX_ROWS) {
            let sql = format!(
                "UPDATE job_parents FORCE INDEX (PRIMARY) SET parent_id = ?, outcome = NULL WHERE parent_id = ? \
                 AND child_id IN {}",
                placeholders(padded_len(ids.len()))
            );
            bind_padded(statement(sql).bind(*replay).bind(*failed), ids).execute(&mut *conn).await?;
            awaited.insert(*replay);
        }
    }
    Ok(awaited)
}

/// Mark these jobs as awaited, as far as they are unfinished, and return those.
async fn mark_awaited(conn: &mut Session<'_>, ids: &[Uuid]) -> Result<BTreeSet<Uuid>, sqlx::Error> {
    let mut unfinished = BTreeSet::new();
    for ids in ids.chunks(MAX_ROWS) {
        // The update locks them in id order, as settlements do.
        let tail = format!(" ORDER BY id LIMIT {MAX_ROWS}");
        let update = format!("UPDATE owed FORCE INDEX (PRIMARY) SET links = links | {AWAITED} WHERE id IN");
        in_list(&update, ids, &tail).execute(&mut *conn).await?;
        let sql = format!("SELECT id, links & {AWAITED} <> 0 AS marked FROM owed FORCE INDEX (PRIMARY) WHERE id IN");
        for row in in_list(&sql, ids, "").fetch_all(&mut *conn).await? {
            if row.try_get::<i64, _>("marked")? == 0 {
                // An operator has retried it between the two statements. Its next end would tell no child.
                return Err(again("an ended parent is being retried"));
            }
            unfinished.insert(row.try_get("id")?);
        }
    }
    Ok(unfinished)
}

/// Return how these jobs have ended. A job that does not exist is left out.
async fn ends_of(conn: &mut Session<'_>, ids: &[Uuid]) -> Result<BTreeMap<Uuid, State>, sqlx::Error> {
    let mut ends = BTreeMap::new();
    for ids in ids.chunks(MAX_ROWS) {
        let sql = "SELECT j.id, (SELECT a.end_state FROM attempts a WHERE a.job_id = j.id ORDER BY a.number DESC LIMIT 1) \
                   AS end_state FROM jobs j FORCE INDEX (PRIMARY) WHERE j.id IN";
        for row in in_list(sql, ids, "").fetch_all(&mut *conn).await? {
            let word: Option<&str> = row.try_get("end_state")?;
            // Without an end the job is being retried at this moment. The child looks again, as after a failure.
            let end =
                word.map_or(Ok(State::Failed), |word| State::from_word(word).ok_or_else(|| corrupt("end_state")))?;
            ends.insert(row.try_get("id")?, end);
        }
    }
    Ok(ends)
}

/// Lock a batch so that it cannot end before this transaction does. Returns the reason if it takes no job, and whether it
/// has ended.
pub(crate) async fn lock_open(
    conn: &mut Session<'_>,
    batch: BatchId,
) -> Result<Option<(LinkProblem, bool)>, sqlx::Error> {
    let sql = "SELECT cancelled_at IS NOT NULL AS cancelled, completed_at IS NOT NULL AS ended FROM batches \
               WHERE id = ? LOCK IN SHARE MODE";
    let Some(row) = sqlx::query(sql).bind(batch.uuid()).fetch_optional(&mut *conn).await? else {
        return Ok(Some((LinkProblem::UnknownBatch(batch), false)));
    };
    lock_in_cluster(conn, Locked::Batch, [batch.uuid()]).await?;
    Ok(match (row.try_get("cancelled")?, row.try_get("ended")?) {
        (true, ended) => Some((LinkProblem::CancelledBatch(batch), ended)),
        (false, true) => Some((LinkProblem::EndedBatch(batch), true)),
        (false, false) => None,
    })
}

/// Add the steps that write the links of new jobs to a script. `due_at` returns when a job is due apart from its parents.
pub(crate) fn link_steps<'a>(script: &mut Script<'a>, links: &NewLinks, jobs: &[(&'a NewJob, Value<'a>)]) {
    if !links.any {
        return;
    }
    let edges: Vec<(Uuid, Uuid, Option<&'static str>)> = jobs
        .iter()
        .flat_map(|(job, _)| job.options.after.iter().map(|parent| (parent.uuid(), job.id.uuid())))
        .map(|(parent, child)| (parent, child, links.ended.get(&parent).map(|end| end.as_str())))
        .collect();
    if !edges.is_empty() {
        let insert = ["INSERT INTO job_parents (parent_id, child_id, outcome) VALUES", "(?,?,?)", ""];
        script.insert(
            insert,
            &edges,
            |_| 80,
            |&(parent, child, outcome), values| {
                values.extend([Value::from(parent), child.into(), outcome.into()]);
            },
        );
    }
    let blocked: Vec<&(&NewJob, Value<'a>)> = jobs.iter().filter(|(job, _)| links.is_blocked(job.id)).collect();
    if !blocked.is_empty() {
        let insert = ["INSERT INTO blocked_jobs (job_id, due_at, on_parent_failure) VALUES", "(?,?,?)", ""];
        script.insert(
            insert,
            &blocked,
            |_| 80,
            |(job, due_at), values| {
                values.extend([Value::from(job.id.uuid()), *due_at, job.options.on_parent_failure.as_str().into()]);
            },
        );
    }
    // The parent may be retried at this moment, so what its end means for the child is decided again. Its other children
    // have been told of the end, and there may be thousands of them, so the walk begins in front of the new ones.
    let mut told: BTreeMap<Uuid, Uuid> = BTreeMap::new();
    for (parent, child, outcome) in &edges {
        if outcome.is_some_and(|end| end != State::Completed.as_str()) && links.blocked.contains(child) {
            let before = Uuid::from_u128(child.as_u128().saturating_sub(1));
            let first = told.entry(*parent).or_insert(before);
            *first = before.min(*first);
        }
    }
    parent_ends_step(script, &told.into_iter().collect::<Vec<_>>());
    let members: Vec<(Uuid, Uuid)> =
        jobs.iter().filter_map(|(job, _)| Some((job.id.uuid(), job.options.batch?.uuid()))).collect();
    if !members.is_empty() {
        let insert = ["INSERT INTO batch_jobs (job_id, batch_id) VALUES", "(?,?)", ""];
        script.insert(
            insert,
            &members,
            |_| 60,
            |&(job, batch), values| values.extend([Value::from(job), batch.into()]),
        );
    }
    let mut changes = BatchChanges::default();
    for (_, batch) in members {
        changes.of(batch).total += 1;
    }
    changes.add_step(script);
}

/// Add the step that lets a runner tell the children of these parents to a script, each with the child behind which the
/// walk begins.
fn parent_ends_step(script: &mut Script<'_>, parents: &[(Uuid, Uuid)]) {
    if !parents.is_empty() {
        let insert = ["INSERT INTO parent_ends (parent_id, told) VALUES", "(?,?)", ""];
        script.insert(
            insert,
            parents,
            |_| 60,
            |&(parent, told), values| values.extend([Value::from(parent), told.into()]),
        );
    }
}

/// How the counts of one batch change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BatchChange {
    pub(crate) total: i32,
    pub(crate) completed: i32,
    pub(crate) failed: i32,
    pub(crate) cancelled: i32,
}

impl BatchChange {
    /// Count `n` more jobs that ended in this state, or fewer if it is negative.
    pub(crate) fn end(&mut self, state: State, n: i32) {
        match state {
            State::Completed => self.completed += n,
            State::Failed => self.failed += n,
            State::Cancelled => self.cancelled += n,
            State::Waiting | State::Executing | State::Retrying => {}
        }
    }
}

/// How the counts of batches change in one transaction, in order of the batches.
#[derive(Debug, Default)]
pub(crate) struct BatchChanges(BTreeMap<Uuid, BatchChange>);

impl BatchChanges {
    pub(crate) fn of(&mut self, batch: Uuid) -> &mut BatchChange {
        self.0.entry(batch).or_default()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Add the step that records the changes to a script.
    pub(crate) fn add_step(self, script: &mut Script<'_>) {
        let changes: Vec<(Uuid, BatchChange)> = self.0.into_iter().collect();
        if changes.is_empty() {
            return;
        }
        let insert =
            ["INSERT INTO batch_changes (batch_id, total, completed, failed, cancelled) VALUES", "(?,?,?,?,?)", ""];
        script.insert(
            insert,
            &changes,
            |_| 60,
            |&(batch, change), values| {
                let BatchChange { total, completed, failed, cancelled } = change;
                values.push(batch.into());
                values.extend([total, completed, failed, cancelled].map(|n| Value::from(i64::from(n))));
            },
        );
    }

    pub(crate) async fn write(self, conn: &mut Session<'_>) -> Result<(), sqlx::Error> {
        let mut script = Script::about(self.0.len(), 0);
        self.add_step(&mut script);
        script.run(conn).await.map(drop)
    }
}

/// A job that ends in this transaction, or runs again after an end.
#[derive(Clone, Copy)]
pub(crate) struct LinkedEnd {
    pub(crate) id: Uuid,
    /// `owed.links`, as the locked row has it.
    pub(crate) links: u8,
    pub(crate) state: State,
}

/// Record the ends of jobs for their children and batches. The rows in `owed` are locked or deleted. Return the bits of all
/// their links.
pub(crate) async fn record_ends(conn: &mut Session<'_>, ended: &[LinkedEnd]) -> Result<u8, sqlx::Error> {
    let linked: Vec<&LinkedEnd> = ended.iter().filter(|end| end.links != 0).collect();
    if linked.is_empty() {
        return Ok(0);
    }
    let awaited: Vec<Uuid> = linked.iter().filter(|end| end.links & AWAITED != 0).map(|end| end.id).collect();
    let counted: BTreeMap<Uuid, State> =
        linked.iter().filter(|end| end.links & IN_BATCH != 0).map(|end| (end.id, end.state)).collect();
    lock_in_cluster(conn, Locked::Job, &awaited).await?;
    let batches = batches_of(conn, &counted.keys().copied().collect::<Vec<_>>()).await?;
    let mut script = Script::about(linked.len(), 0);
    parent_ends_step(&mut script, &awaited.iter().map(|parent| (*parent, Uuid::nil())).collect::<Vec<_>>());
    let mut changes = BatchChanges::default();
    for (job, batch) in batches {
        if let Some(state) = counted.get(&job) {
            changes.of(batch).end(*state, 1);
        }
    }
    changes.add_step(&mut script);
    script.run(conn).await?;
    Ok(linked.iter().fold(0, |bits, end| bits | end.links))
}

/// Return the batch of each of these jobs that belongs to one.
async fn batches_of(conn: &mut Session<'_>, jobs: &[Uuid]) -> Result<Vec<(Uuid, Uuid)>, sqlx::Error> {
    let mut found = Vec::new();
    for jobs in jobs.chunks(MAX_ROWS) {
        let sql = "SELECT job_id, batch_id FROM batch_jobs FORCE INDEX (PRIMARY) WHERE job_id IN";
        for row in in_list(sql, jobs, "").fetch_all(&mut *conn).await? {
            found.push((row.try_get("job_id")?, row.try_get("batch_id")?));
        }
    }
    Ok(found)
}

/// Record that a job that ended in this state runs again. Returns its new `owed.links`.
pub(crate) async fn record_retry(conn: &mut Session<'_>, id: Uuid, end: State) -> Result<u8, sqlx::Error> {
    let mut links = 0;
    let mut changes = BatchChanges::default();
    for (_, batch) in batches_of(conn, &[id]).await? {
        links |= IN_BATCH;
        changes.of(batch).end(end, -1);
    }
    changes.write(conn).await?;
    let awaited = sqlx::query("SELECT 1 FROM job_parents FORCE INDEX (PRIMARY) WHERE parent_id = ? LIMIT 1").bind(id);
    if awaited.fetch_optional(conn).await?.is_some() {
        links |= AWAITED;
    }
    Ok(links)
}

/// Remove the rows of blocked jobs that end.
pub(crate) async fn forget_blocked(conn: &mut Session<'_>, id: Uuid) -> Result<(), sqlx::Error> {
    sqlx::query("DELETE FROM blocked_jobs WHERE job_id = ?").bind(id).execute(conn).await.map(drop)
}

/// Read how the parents of blocked jobs have ended, and write it down. Returns for each job what follows from it. The
/// `owed` rows of the jobs are locked.
pub(crate) async fn outcomes_of(
    conn: &mut Session<'_>,
    jobs: &BTreeMap<Uuid, OnParentFailure>,
) -> Result<BTreeMap<Uuid, ParentsOutcome>, sqlx::Error> {
    let ids: Vec<Uuid> = jobs.keys().copied().collect();
    let mut outcomes: BTreeMap<Uuid, ParentsOutcome> = ids.iter().map(|id| (*id, ParentsOutcome::Satisfied)).collect();
    let mut with_parents = BTreeSet::new();
    let mut learned: Vec<(Uuid, Uuid, Option<State>)> = Vec::new();
    let mut awaited = BTreeSet::new();
    for ids in ids.chunks(MAX_ROWS) {
        let sql = "SELECT p.child_id, p.parent_id, p.outcome, o.id IS NOT NULL AS unfinished, \
                   CAST(COALESCE(o.links, 0) AS SIGNED) AS links, \
                   (SELECT a.end_state FROM attempts a WHERE a.job_id = p.parent_id ORDER BY a.number DESC LIMIT 1) \
                   AS end_state FROM job_parents p FORCE INDEX (job_parents_child) \
                   LEFT JOIN owed o FORCE INDEX (PRIMARY) ON o.id = p.parent_id WHERE p.child_id IN";
        for row in in_list(sql, ids, " ORDER BY p.parent_id").fetch_all(&mut *conn).await? {
            let (child, parent): (Uuid, Uuid) = (row.try_get("child_id")?, row.try_get("parent_id")?);
            let word = |column| -> Result<Option<State>, sqlx::Error> {
                let word: Option<&str> = row.try_get(column)?;
                word.map(|word| State::from_word(word).ok_or_else(|| corrupt(column))).transpose()
            };
            with_parents.insert(child);
            let known = word("outcome")?;
            if known == Some(State::Completed) {
                continue;
            }
            let end = if row.try_get("unfinished")? { None } else { Some(word("end_state")?.unwrap_or(State::Failed)) };
            if end != known {
                learned.push((parent, child, end));
            }
            let Some(outcome) = outcomes.get_mut(&child) else { continue };
            let policy = jobs.get(&child).copied().unwrap_or_default();
            match (end, policy) {
                (Some(State::Completed), _) | (Some(_), OnParentFailure::Run) => {}
                (None, _) => {
                    if row.try_get::<i64, _>("links")? & i64::from(AWAITED) == 0 {
                        awaited.insert(parent);
                    }
                    outcome.wait();
                }
                (Some(_), OnParentFailure::Hold) => outcome.wait(),
                (Some(end), OnParentFailure::Cancel) => outcome.cancel(JobId::from_uuid(parent), end),
            }
        }
    }
    for group in groups(&learned) {
        let sql = format!(
            "INSERT INTO job_parents (parent_id, child_id, outcome) VALUES {} \
             ON DUPLICATE KEY UPDATE outcome = VALUES(outcome)",
            tuples(&placeholders(3), group.len())
        );
        let query = group.iter().fold(statement(sql), |query, (parent, child, end)| {
            query.bind(parent).bind(child).bind(end.map(State::as_str))
        });
        query.execute(&mut *conn).await?;
    }
    // A job without parents follows from one of a cancelled batch, and is cancelled with that.
    outcomes.iter_mut().filter(|(id, _)| !with_parents.contains(id)).for_each(|(_, outcome)| outcome.wait());
    // A parent may have been retried before it had a child. The others are marked, and are not locked here: a request that
    // names both a job and its parent locks them in the other order.
    mark_awaited(conn, &awaited.into_iter().collect::<Vec<_>>()).await?;
    Ok(outcomes)
}

/// What follows for a job from the ends of its parents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParentsOutcome {
    /// It may run.
    Satisfied,
    /// It waits for one of them.
    Waits,
    /// It is cancelled, because this parent ended in this state.
    Cancel(JobId, State),
}

impl ParentsOutcome {
    fn wait(&mut self) {
        if *self == Self::Satisfied {
            *self = Self::Waits;
        }
    }

    fn cancel(&mut self, parent: JobId, end: State) {
        if !matches!(self, Self::Cancel(..)) {
            *self = Self::Cancel(parent, end);
        }
    }
}

/// Let blocked jobs run: give them the due times that they would have without parents, but not before `now`.
pub(crate) async fn unblock(conn: &mut Session<'_>, ids: &[Uuid], now: Timestamp) -> Result<(), sqlx::Error> {
    for ids in ids.chunks(MAX_ROWS) {
        let sql = format!(
            "UPDATE owed o FORCE INDEX (PRIMARY) STRAIGHT_JOIN blocked_jobs b FORCE INDEX (PRIMARY) ON b.job_id = o.id \
             SET o.execute_at = GREATEST(b.due_at, ?) WHERE o.execute_at = ? AND o.id IN {}",
            placeholders(ids.len())
        );
        let query = statement(sql).bind(now.naive_utc()).bind(blocked_until().naive_utc());
        ids.iter().fold(query, Query::bind).execute(&mut *conn).await?;
        let tail = format!(" ORDER BY job_id LIMIT {MAX_ROWS}");
        in_list("DELETE FROM blocked_jobs WHERE job_id IN", ids, &tail).execute(&mut *conn).await?;
    }
    Ok(())
}
