//! The removal of ended jobs, by retention and by operators.
//!
//! The row in `jobs` is the lock, which a retry takes as well. The decision about a job is made only under that lock,
//! because the job may have been retried, and may have ended again, since it was found. If a job of a batch or of a
//! tick is removed, or the callback of a batch, the same transaction records it, so that `tickr verify` can distinguish
//! removed jobs from lost ones.

use std::collections::{BTreeMap, BTreeSet};

use chrono::TimeDelta;
use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::retention::times::Retention;
use crate::rows::order::{OrderedJobs, close_places, lock_free_open_keys_of, lock_open_keys_of};
use crate::rows::owed::{DueJob, SKIP_LOCKED};
use crate::sql::batches::{MAX_ROWS, bind_padded, groups, in_list, padded_len, placeholders, statement, tuples};
use crate::sql::cluster::{Locked, lock_in_cluster};
use crate::sql::error::corrupt;
use crate::sql::session::Session;
use tickr_job::{BatchId, CanaryState, DeadLetterStatus, JobId, JobOptions, State, Timestamp};

/// Most ledger lines removed in one transaction. A single job may have more.
const MAX_LINES: u32 = 20_000;
/// Most schedules whose jobs one transaction removes: the ticks of each are marked by statements of their own.
const MAX_SCHEDULES: usize = 200;
/// The kind whose jobs have reports.
const REPORT: &str = "report";

/// The rule that decides which jobs may be removed.
#[derive(Clone, Copy)]
pub(crate) enum Removal<'a> {
    /// An operator requested it: every job that has ended.
    Asked,
    /// Retention: jobs that are past their retention time. Discarded dead letters have a retention time of their own.
    Aged { keep: &'a Retention, now: Timestamp },
    /// Retention of discarded dead letters: those discarded before this moment.
    Discarded { before: Timestamp },
}

/// Outcome of a removal.
#[derive(Debug, Default)]
pub(crate) struct Removed {
    /// The removed jobs.
    pub(crate) gone: Vec<Uuid>,
    /// Number of ids without a job whose other rows were deleted as well.
    pub(crate) strays: usize,
    /// Set if the transaction reached its limit after this job. The ids behind it were not looked at.
    pub(crate) until: Option<Uuid>,
    /// Jobs that are not held any more, because a removed one blocked their order key.
    pub(crate) released: Vec<DueJob>,
}

/// A locked job, with the facts on which its removal depends.
struct Candidate {
    id: Uuid,
    kind: String,
    owed: bool,
    /// True if it has ended and its children have not all been told yet. They read its end from its ledger.
    untold: bool,
    /// Number, end state and time of its last ledger line.
    last: Option<(u32, Option<State>, Timestamp)>,
    status: Option<(DeadLetterStatus, Timestamp)>,
    batch: Option<(Uuid, u16)>,
    /// The schedule that made the job.
    schedule: Option<String>,
    /// The batch of which the job is a callback.
    callback_of: Option<Uuid>,
}

impl Candidate {
    fn read(row: &MySqlRow) -> Result<Self, sqlx::Error> {
        let (number, end): (Option<u32>, Option<&str>) = (row.try_get("number")?, row.try_get("end_state")?);
        let end = end.map(|word| State::from_word(word).ok_or_else(|| corrupt("end_state"))).transpose()?;
        let finished_at: Option<Timestamp> = row.try_get("finished_at")?;
        let status: Option<&str> = row.try_get("standing")?;
        let status =
            status.map(|word| DeadLetterStatus::from_word(word).ok_or_else(|| corrupt("standing"))).transpose()?;
        let (first, size): (Option<Uuid>, Option<u16>) = (row.try_get("batch_id")?, row.try_get("batch_size")?);
        let options: Option<String> = row.try_get("options")?;
        // Another version may have written options that are unknown here. They name the schedule and the batch all the
        // same.
        let options = options.map(|text| JobOptions::as_far_as_readable(&text)).unwrap_or_default();
        Ok(Self {
            id: row.try_get("id")?,
            kind: row.try_get("kind")?,
            owed: row.try_get("owed")?,
            untold: row.try_get("untold")?,
            last: number.zip(finished_at).map(|(number, finished_at)| (number, end, finished_at)),
            status: status.zip(row.try_get("since")?),
            batch: first.zip(size),
            schedule: options.schedule.map(|by| by.name.to_string()),
            callback_of: options.callback_of.map(BatchId::uuid),
        })
    }

    fn lines(&self) -> u32 {
        self.last.map_or(0, |(number, ..)| number)
    }

    /// Return whether the job has ended and the rule allows its removal.
    fn may_go(&self, removal: Removal<'_>) -> bool {
        if self.untold {
            return false;
        }
        let Some((_, Some(end), finished_at)) = self.last.filter(|_| !self.owed) else { return false };
        let discarded = self.status.filter(|(status, _)| *status == DeadLetterStatus::Discarded);
        match removal {
            Removal::Asked => true,
            Removal::Aged { keep, now } => {
                let age = TimeDelta::from_std(keep.for_end(Some(&self.kind), end)).unwrap_or(TimeDelta::MAX / 4);
                discarded.is_none() && finished_at < now - age
            }
            Removal::Discarded { before } => discarded.is_some_and(|(_, since)| since < before),
        }
    }
}

const CANDIDATE: &str = "SELECT j.id, j.kind, o.id IS NOT NULL AS owed, a.number, a.end_state, a.finished_at, \
     d.standing, d.since, j.batch_id, j.batch_size, \
     IF(j.options LIKE '%\"schedule\"%' OR j.options LIKE '%\"callback_of\"%', j.options, NULL) AS options, \
     EXISTS (SELECT 1 FROM parent_ends e FORCE INDEX (parent_ends_parent) WHERE e.parent_id = j.id) AS untold \
     FROM jobs j FORCE INDEX (PRIMARY) LEFT JOIN owed o ON o.id = j.id \
     LEFT JOIN attempts a ON a.job_id = j.id AND a.number = (SELECT MAX(l.number) FROM attempts l WHERE l.job_id = j.id) \
     LEFT JOIN dead_letters d ON d.job_id = j.id WHERE j.id IN";

/// Remove the jobs that the rule allows, within the caller's transaction. `ids` must be sorted.
pub(crate) async fn remove(
    conn: &mut Session<'_>,
    ids: &[Uuid],
    removal: Removal<'_>,
    now: Timestamp,
) -> Result<Removed, sqlx::Error> {
    let mut removed = Removed::default();
    let (ordered, ids) = lock_keys(conn, ids, removal).await?;
    let mut shrunk = Shrunk::default();
    let mut lines = 0;
    for ids in ids.chunks(MAX_ROWS) {
        let locked = lock_jobs(conn, ids, removal).await?;
        let found = in_list(CANDIDATE, ids, " ORDER BY j.id").fetch_all(&mut *conn).await?;
        let counted = counted_by_canaries(conn, ids).await?;
        let mut strays: BTreeSet<Uuid> = ids.iter().copied().collect();
        let (mut gone, mut reports) = (Vec::new(), Vec::new());
        for row in &found {
            let candidate = Candidate::read(row)?;
            strays.remove(&candidate.id);
            if !locked.contains(&candidate.id) || !candidate.may_go(removal) || counted.contains(&candidate.id) {
                continue;
            }
            let is_full = lines + candidate.lines() > MAX_LINES || !shrunk.has_room_for(&candidate);
            if lines > 0 && is_full {
                removed.until = gone.last().or(removed.gone.last()).copied();
                break;
            }
            lines += candidate.lines();
            gone.push(candidate.id);
            if candidate.kind == REPORT {
                reports.push(candidate.id);
            }
            shrunk.lose(candidate, removal);
        }
        // Ledger lines and dead letters whose job does not exist. The search for an operator's request finds existing
        // jobs only.
        let strays: Vec<Uuid> = match (removal, removed.until) {
            (Removal::Asked, _) | (_, Some(_)) => Vec::new(),
            _ => strays.into_iter().collect(),
        };
        if matches!(removal, Removal::Asked) {
            hide_reports(conn, &reports, now).await?;
        }
        let open = gone.iter().copied().filter(|id| ordered.contains(JobId::from_uuid(*id)));
        removed.released.extend(close_places(conn, &open.collect::<Vec<_>>(), now).await?);
        delete(conn, &gone).await?;
        delete(conn, &strays).await?;
        removed.strays += strays.len();
        removed.gone.extend(gone);
        if removed.until.is_some() {
            break;
        }
    }
    shrunk.write(conn, now).await?;
    Ok(removed)
}

/// Lock the order keys of these jobs: a failed job that blocks its key lets the next one go when it is removed. Return
/// also the jobs that may be removed now.
///
/// An operator's request waits for a locked key. Retention leaves out its jobs until the next walk. A runner that
/// freezes while it removes jobs keeps its locks, and so may an operator's session. They must not stop the removal of
/// all other jobs.
async fn lock_keys(
    conn: &mut Session<'_>,
    ids: &[Uuid],
    removal: Removal<'_>,
) -> Result<(OrderedJobs, Vec<Uuid>), sqlx::Error> {
    if matches!(removal, Removal::Asked) {
        return Ok((lock_open_keys_of(conn, ids).await?, ids.to_vec()));
    }
    let (ordered, busy) = lock_free_open_keys_of(conn, ids).await?;
    Ok((ordered, ids.iter().copied().filter(|id| !busy.contains(id)).collect()))
}

/// Lock the rows of these jobs, without those that another session locks, if retention removes them. Return the jobs
/// whose rows are locked here.
async fn lock_jobs(conn: &mut Session<'_>, ids: &[Uuid], removal: Removal<'_>) -> Result<BTreeSet<Uuid>, sqlx::Error> {
    let or_skip = if matches!(removal, Removal::Asked) { "" } else { SKIP_LOCKED };
    let lock = "SELECT id FROM jobs FORCE INDEX (PRIMARY) WHERE id IN";
    let rows = in_list(lock, ids, &format!(" ORDER BY id FOR UPDATE{or_skip}")).fetch_all(&mut *conn).await?;
    let locked = rows.iter().map(|row| row.try_get("id")).collect::<Result<_, _>>()?;
    lock_in_cluster(conn, Locked::Job, ids).await?;
    Ok(locked)
}

/// Return those of these locked jobs on which a canary that is under way depends: the dead letters that its present step
/// has released, and the jobs that were made of them. The canary finds the outcomes of its step by these rows.
async fn counted_by_canaries(conn: &mut Session<'_>, ids: &[Uuid]) -> Result<BTreeSet<Uuid>, sqlx::Error> {
    let sql = "SELECT id, canary_state FROM operations FORCE INDEX (operations_state) \
               WHERE state = 'running' AND canary IS NOT NULL";
    let mut counted = BTreeSet::new();
    for canary in sqlx::query(sql).fetch_all(&mut *conn).await? {
        let id: Uuid = canary.try_get("id")?;
        let state = canary.try_get::<Option<String>, _>("canary_state")?;
        let state = state.as_deref().map(serde_json::from_str::<CanaryState>).transpose();
        let since = state.map_err(|e| corrupt(format!("canary_state: {e}")))?.unwrap_or_default().since;
        let later = if since.is_some() { "AND since >= ?" } else { "" };
        for (index, column) in [("PRIMARY", "job_id"), ("dead_letters_operation", "replayed_as")] {
            let sql = format!(
                "SELECT {column} AS id FROM dead_letters FORCE INDEX ({index}) WHERE operation = ? {later} \
                 AND {column} IN {}",
                placeholders(padded_len(ids.len()))
            );
            let mut query = statement(sql).bind(id);
            if let Some(since) = since {
                query = query.bind(since);
            }
            for row in bind_padded(query, ids).fetch_all(&mut *conn).await? {
                counted.insert(row.try_get("id")?);
            }
        }
    }
    Ok(counted)
}

/// Hide the reports of jobs that an operator deletes. From now on no runner serves them. Their content is large, so the
/// janitor removes it later, a few parts at a time.
async fn hide_reports(conn: &mut Session<'_>, ids: &[Uuid], now: Timestamp) -> Result<(), sqlx::Error> {
    if ids.is_empty() {
        return Ok(());
    }
    let sql = format!("UPDATE report_files SET removed_at = ? WHERE id IN {}", placeholders(padded_len(ids.len())));
    let query = bind_padded(statement(sql).bind(now), ids);
    query.execute(conn).await.map(drop)
}

async fn delete(conn: &mut Session<'_>, ids: &[Uuid]) -> Result<(), sqlx::Error> {
    // Delete the ledger first. A job without lines would look lost; lines without a job are only invisible.
    for (table, key, index) in [
        ("attempts", "job_id", "PRIMARY"),
        ("attempt_logs", "job_id", "PRIMARY"),
        ("job_tags", "job_id", "job_tags_job"),
        ("dead_letters", "job_id", "PRIMARY"),
        ("checkpoints", "job_id", "PRIMARY"),
        ("deferred_attempts", "job_id", "deferred_attempts_job"),
        ("order_places", "job_id", "PRIMARY"),
        ("job_limit_keys", "job_id", "PRIMARY"),
        ("limit_holds", "job_id", "PRIMARY"),
        ("job_expiries", "job_id", "PRIMARY"),
        ("distant_ids", "job_id", "PRIMARY"),
        // Rows of its children stay, so that they know how it ended.
        ("job_parents", "child_id", "job_parents_child"),
        ("batch_jobs", "job_id", "PRIMARY"),
        ("jobs", "id", "PRIMARY"),
    ] {
        for ids in ids.chunks(MAX_ROWS) {
            if matches!(table, "attempts" | "jobs") {
                delete_from(conn, (table, key, index), ids).await?;
                continue;
            }
            // Few jobs have rows in the other tables, and reading is cheaper than the delete.
            let sql = format!("SELECT DISTINCT {key} AS id FROM {table} FORCE INDEX ({index}) WHERE {key} IN");
            let found = in_list(&sql, ids, "").fetch_all(&mut *conn).await?;
            let found: Vec<Uuid> = found.iter().map(|row| row.try_get("id")).collect::<Result<_, _>>()?;
            if !found.is_empty() {
                delete_from(conn, (table, key, index), &found).await?;
            }
        }
    }
    Ok(())
}

/// Delete the rows of these jobs from one table. MySQL scans a small table for a list that is long beside it, whatever
/// the statement says of indexes, and would wait for rows of other jobs that another session locks. A join can only look
/// up one id after the other.
async fn delete_from(
    conn: &mut Session<'_>,
    (table, key, index): (&str, &str, &str),
    ids: &[Uuid],
) -> Result<(), sqlx::Error> {
    let list = vec!["SELECT CAST(? AS BINARY(16)) AS id"; padded_len(ids.len())].join(" UNION ALL ");
    let sql = format!("DELETE t FROM ({list}) x STRAIGHT_JOIN {table} t FORCE INDEX ({index}) ON t.{key} = x.id");
    bind_padded(statement(sql), ids).execute(conn).await.map(drop)
}

/// Batches and ticks that lose jobs or callbacks by the removal. They are written last in the transaction, in key
/// order.
#[derive(Default)]
struct Shrunk {
    /// Size of the batch, and number of its jobs that are removed now.
    batches: BTreeMap<Uuid, (u16, u16)>,
    /// The jobs of each schedule.
    ticks: BTreeMap<String, BTreeSet<Uuid>>,
    /// The batches that lose a callback, with its job.
    callbacks: Vec<(Uuid, Uuid)>,
}

impl Shrunk {
    fn lose(&mut self, job: Candidate, removal: Removal<'_>) {
        // The audit records what an operator deletes.
        if let Some(batch) = job.callback_of.filter(|_| !matches!(removal, Removal::Asked)) {
            self.callbacks.push((batch, job.id));
        }
        if let Some((first, size)) = job.batch {
            self.batches.entry(first).or_insert((size, 0)).1 += 1;
        }
        if let Some(schedule) = job.schedule {
            self.ticks.entry(schedule).or_default().insert(job.id);
        }
    }

    /// Return whether the transaction may mark the tick of one more job.
    fn has_room_for(&self, job: &Candidate) -> bool {
        let known = |schedule: &String| self.ticks.len() < MAX_SCHEDULES || self.ticks.contains_key(schedule);
        job.schedule.as_ref().is_none_or(known)
    }

    async fn write(mut self, conn: &mut Session<'_>, now: Timestamp) -> Result<(), sqlx::Error> {
        write_callbacks(conn, &self.callbacks, now).await?;
        // A batch that is removed as a whole needs no record.
        self.batches.retain(|_, (size, jobs)| jobs < size);
        let batches: Vec<(Uuid, (u16, u16))> = self.batches.into_iter().collect();
        for group in groups(&batches) {
            let sql = format!(
                "INSERT INTO departures (id, jobs, size, at) VALUES {} \
                 ON DUPLICATE KEY UPDATE jobs = jobs + VALUES(jobs), at = VALUES(at)",
                tuples(&placeholders(4), group.len())
            );
            let mut query = statement(sql);
            for (first, (size, jobs)) in group {
                query = query.bind(first).bind(jobs).bind(size).bind(now);
            }
            query.execute(&mut *conn).await?;
        }
        let firsts: Vec<Uuid> = batches.into_iter().map(|(first, _)| first).collect();
        for firsts in firsts.chunks(MAX_ROWS) {
            let whole =
                in_list("DELETE FROM departures WHERE id IN", firsts, " AND jobs >= size ORDER BY id LIMIT 256");
            whole.execute(&mut *conn).await?;
        }
        for (schedule, jobs) in self.ticks {
            let jobs: Vec<Uuid> = jobs.into_iter().collect();
            for jobs in jobs.chunks(MAX_ROWS) {
                mark_ticks(conn, &schedule, jobs).await?;
            }
        }
        Ok(())
    }
}

/// Note at the ticks of a schedule that these jobs are removed. One statement for each tick would take the whole limit of
/// a transaction when MySQL is some milliseconds away.
async fn mark_ticks(conn: &mut Session<'_>, schedule: &str, jobs: &[Uuid]) -> Result<(), sqlx::Error> {
    let sql = format!(
        "UPDATE ticks FORCE INDEX (ticks_job) SET job_removed = TRUE WHERE schedule = ? AND job_id IN {}",
        placeholders(padded_len(jobs.len()))
    );
    let query = bind_padded(statement(sql).bind(schedule.to_owned()), jobs);
    query.execute(conn).await.map(drop)
}

/// Record the removal of these callbacks for the batches that are left. A callback has a row of its own, in the form of
/// a request of which one more job is there.
async fn write_callbacks(
    conn: &mut Session<'_>,
    callbacks: &[(Uuid, Uuid)],
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    let batches: BTreeSet<Uuid> = callbacks.iter().map(|(batch, _)| *batch).collect();
    let batches: Vec<Uuid> = batches.into_iter().collect();
    let mut left = BTreeSet::new();
    for batches in batches.chunks(MAX_ROWS) {
        let sql = "SELECT id FROM batches FORCE INDEX (PRIMARY) WHERE id IN";
        for row in in_list(sql, batches, "").fetch_all(&mut *conn).await? {
            left.insert(row.try_get::<Uuid, _>("id")?);
        }
    }
    let mut jobs: Vec<Uuid> = callbacks.iter().filter(|(batch, _)| left.contains(batch)).map(|(_, job)| *job).collect();
    jobs.sort_unstable();
    for group in groups(&jobs) {
        let sql = format!(
            "INSERT INTO departures (id, jobs, size, at) VALUES {} ON DUPLICATE KEY UPDATE at = VALUES(at)",
            tuples(&placeholders(4), group.len())
        );
        let mut query = statement(sql);
        for job in group {
            query = query.bind(job).bind(1_u16).bind(2_u16).bind(now);
        }
        query.execute(&mut *conn).await?;
    }
    Ok(())
}
