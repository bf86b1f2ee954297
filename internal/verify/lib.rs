//! The checker: proves from the tables of a live system that the guarantees hold (G11).
//!
//! - `check`: [`Check`], the checks with their names
//! - `drift`: the comparison of the index with the store, and its repair on request
//! - `life`: the conclusions from the evidence about one job, pure functions
//! - `order`: the conclusions from the places of jobs with order keys, pure functions
//! - `report`: [`Report`], the findings
//!
//! The checker reads the tables page by page in primary key order, each page in its own snapshot. It needs bounded
//! memory with tables of any size, and the server keeps old row versions no longer than one page takes. A fault that
//! needs more than one page is examined again before it is reported: a batch that seems incomplete is counted in one
//! statement, and tallies may be lower by the number of jobs that were retried in the meantime. The index has no
//! snapshots: a missing entry may be on its way, so it is a fault only if it stays missing for longer than the repair
//! loops need.
//!
//! The report names everything that could not be checked (Redis did not answer, time was over, MySQL failed, a row
//! cannot be read, another session locks a key, there were more differences than can be looked at again, a lease is too
//! long to wait for its end). A check whose time is over, or during which MySQL fails, reports the faults that it has
//! found until then. The verdict is then never [`VerifyVerdict::Kept`].
//!
//! The checker trusts the database's clock, except around the moments when the clock was set. Runners record these
//! (`store/sql/clock_steps.rs`), and times around them prove no order. A step that no runner recorded looks like a
//! fault; the finding mentions this.

mod check;
mod drift;
mod life;
mod order;
mod report;

pub use check::Check;
pub use report::{Finding, LookedAt, Report, Sample, VerifyVerdict};

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::time::{Duration, Instant};

use chrono::TimeDelta;

use life::SnapshotFacts;
use tickr_index::Index;
use tickr_job::{BatchId, BatchPlace, JobId, Timestamp};
use tickr_store::{
    Evidence, JobEvidence, LimitKey, OrderCursor, Retention, Store, StoreError, TallyKey, TickPlace, Walk,
};

/// Scope and patience of a check.
#[derive(Clone, Debug)]
pub struct VerifySettings {
    /// Only jobs created at this moment or later; all jobs if absent.
    pub since: Option<Timestamp>,
    /// Time that a difference between index and store must last before it is reported. The repair loops need six
    /// seconds (G3).
    pub patience: Duration,
    /// True to repair wrong index entries.
    pub repair: bool,
    /// Retention of ended jobs and of the audit. Batches older than that may have been purged in part.
    pub retention: Retention,
    /// The load on the servers.
    pub pace: Pace,
}

/// The load of a check on the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Check everything at full speed.
    Full,
    /// After each page, rest as long as the page took.
    Gentle {
        /// Time limit for reading the tables, and for reading the index, each including all rests.
        limit: Duration,
        /// Time limit of the whole check.
        all: Duration,
    },
}

impl Pace {
    /// Rest after a page that began at this moment.
    async fn rest(self, page: Instant) {
        if let Self::Gentle { limit, .. } = self {
            tokio::time::sleep(page.elapsed().min(limit)).await;
        }
    }

    /// Rest after a page and begin the next one. Return false if no time is left for it.
    async fn wait_or_stop(self, page: &mut Instant, began: Instant) -> bool {
        self.rest(*page).await;
        *page = Instant::now();
        !self.is_over(began)
    }

    /// Return true if no time is left for reading that began at this moment.
    fn is_over(self, began: Instant) -> bool {
        matches!(self, Self::Gentle { limit, .. } if began.elapsed() >= limit)
    }

    /// Return the time that is left of a check that began at this moment.
    fn left(self, began: Instant) -> Duration {
        match self {
            Self::Full => Duration::MAX,
            Self::Gentle { all, .. } => all.saturating_sub(began.elapsed()),
        }
    }

    /// Return the time for reading the index when this much is left of the check. Differences that are found must last
    /// for `patience` after that.
    fn limit_of_index(self, left: Duration, patience: Duration) -> Duration {
        match self {
            Self::Full => Duration::MAX,
            Self::Gentle { limit, .. } => limit.min(left.saturating_sub(patience + LOOKS)),
        }
    }

    /// Finish a part of a check that began at this moment. What the part has reported until it ends stays in the
    /// report.
    async fn finish(
        self,
        began: Instant,
        part: impl Future<Output = Result<(), StoreError>>,
    ) -> Result<(), Unfinished> {
        match tokio::time::timeout(self.left(began), part).await {
            Ok(done) => done.map_err(Unfinished::Error),
            Err(_) => Err(Unfinished::TimeOver),
        }
    }
}

/// The reason why a part of a check was cut short.
#[derive(Clone, Debug)]
enum Unfinished {
    TimeOver,
    Error(StoreError),
}

impl fmt::Display for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimeOver => f.write_str("time was over"),
            Self::Error(error) if error.is_about_the_row() => write!(f, "a row could not be read ({error})"),
            // The text of such an error names servers and accounts. Reports are shown to callers of the API.
            Self::Error(_) => f.write_str("MySQL failed"),
        }
    }
}

impl VerifySettings {
    /// Default time that a difference must last: the bound of G3 plus one second.
    pub const PATIENCE: Duration = Duration::from_secs(7);
}

/// Time after the expiry of its lease within which an attempt is ended (G3).
const REAPED_WITHIN: TimeDelta = TimeDelta::seconds(5);
/// The same if its runner is gone. Reapers look for such attempts every four seconds, in rounds up to three seconds apart.
const DEPARTED_WITHIN: TimeDelta = TimeDelta::seconds(10);

/// Maximum number of long expired leases that are examined again, and the maximum time for that.
const MAX_EXPIRED: usize = 1_000;
const MAX_WAIT: Duration = Duration::from_secs(90);
/// Time within which runners let go at least some of the parked jobs of a removed limit. They sweep once a second, but
/// a sweep looks at the keys of the limits before it first.
const LET_GO_WITHIN: Duration = Duration::from_secs(30);
/// Maximum number of seemingly incomplete batches that are examined again.
const MAX_TORN: usize = 10_000;
/// Time kept for the looks at differences between index and store, beside the patience with them.
const LOOKS: Duration = Duration::from_secs(10);
/// Checks that need more than the pages of jobs.
const BEYOND_PAGES: [Check; 6] =
    [Check::UniqueKey, Check::Order, Check::Limit, Check::Parents, Check::BatchEnd, Check::Tick];

/// Check everything. `progress` receives the number of jobs read so far.
///
/// # Errors
/// [`StoreError`] if MySQL cannot be read at all. A Redis that does not answer is not an error: the report lists its
/// checks as skipped. Neither is a time limit that is over, nor a MySQL that fails later: the report has the faults
/// found until then, and is not complete.
pub async fn verify(
    store: &Store,
    index: &Index,
    settings: &VerifySettings,
    progress: impl FnMut(u64),
) -> Result<Report, StoreError> {
    let (began, pace, patience) = (Instant::now(), settings.pace, settings.patience);
    let mut evidence = store.evidence(settings.since).await?;
    let mut report = Report::new(evidence.at(), settings.since);
    let mut expired = [Check::Abandoned, Check::Departed].map(|check| ExpiredLeases::new(check, MAX_EXPIRED));
    let reading = tables(store, &mut evidence, (settings, began), &mut expired, &mut report, progress);
    if let Err(why) = pace.finish(began, Box::pin(reading)).await {
        if let Unfinished::Error(error) = &why
            && report.is_untouched()
        {
            return Err(error.clone());
        }
        report.cut_short(&[Check::Batch, Check::Counted, Check::DeadLetter], &why);
        report.cut_short(&BEYOND_PAGES, &why);
        report.record_unchecked(format!("{why} before the tables were read"));
        report.keep_error(why);
    }
    let (unreadable, examples) = evidence.unreadable();
    if unreadable > 0 {
        report.record_unchecked(format!("{unreadable} rows could not be read, such as {}", examples.join(" · ")));
    }
    drop(evidence);
    for expired in expired {
        let (check, suspects) = (expired.check, expired.suspects.len());
        if let Err(why) = pace.finish(began, expired.look_again(store, patience, &mut report)).await
            && suspects > 0
        {
            report.cut_short(&[check], &why);
            let what = format!("{why} before {suspects} leases that ended long ago had been looked at again");
            report.record_unchecked(what);
            report.keep_error(why);
        }
    }
    if let Err(why) = pace.finish(began, stranded(store, patience, &mut report)).await {
        report.cut_short(&[Check::Limit], &why);
        report.record_unchecked(format!("{why} before the parked jobs of removed limits were looked at"));
        report.keep_error(why);
    }
    let left = pace.left(began);
    let comparing = drift::compare(store, index, (settings, left), &mut report);
    if let Err(why) = pace.finish(began, Box::pin(comparing)).await {
        report.cut_short(&[Check::Overdue, Check::IndexMissing, Check::IndexExtra, Check::IndexScore], &why);
        report.record_unchecked(format!("{why} before Redis was compared with MySQL"));
        report.keep_error(why);
    }
    report.elapsed = began.elapsed();
    Ok(report)
}

/// Read the tables, and report the faults that they prove. Leases that expired long ago go to `expired`.
async fn tables(
    store: &Store,
    evidence: &mut Evidence,
    (settings, began): (&VerifySettings, Instant),
    expired: &mut [ExpiredLeases],
    report: &mut Report,
    mut progress: impl FnMut(u64),
) -> Result<(), StoreError> {
    let steps = store.clock_steps().await?;
    if let Some(step) = steps.iter().find(|step| step.step < TimeDelta::zero()) {
        report.notes.push(format!(
            "the clock of MySQL was set back by {:.1} s or more at {}: the times around it prove no order of attempts",
            -step.step.as_seconds_f64(),
            step.before
        ));
    }
    let mut batches = Batches::new(evidence, settings);
    let mut ended: BTreeMap<TallyKey, i64> = BTreeMap::new();
    let mut page = Instant::now();
    let mut whole = true;
    while let Some(found) = evidence.next_page().await? {
        let moment = SnapshotFacts {
            at: found.at,
            // A reaper that has just reconnected to the store gives every runner one more lease.
            steps: &steps,
            patience: found.longest_lease_ms.map(|ms| TimeDelta::milliseconds(i64::from(ms)) + REAPED_WITHIN),
            patience_with_departed: found.longest_pause_ms.map(|ms| TimeDelta::milliseconds(ms) + DEPARTED_WITHIN),
        };
        for job in &found.jobs {
            report.looked_at.count(job);
            for (check, what) in life::faults(job, &moment) {
                match (expired.iter_mut().find(|leases| leases.check == check), &job.owed) {
                    (Some(leases), Some(owed)) => leases.see(job.id, owed.lease_until, what, &moment),
                    _ => report.add_finding(check, job.id, what),
                }
            }
            batches.see(job);
            if let Some(key) = ended_as(job) {
                *ended.entry(key).or_default() += 1;
            }
        }
        progress(report.looked_at.jobs);
        if settings.pace.is_over(began) {
            whole = false;
            break;
        }
        settings.pace.rest(page).await;
        page = Instant::now();
    }
    if whole {
        // Jobs younger than this cannot have been purged.
        let kept_since = batches.kept_since;
        torn(evidence, batches, (settings.pace, began), report).await?;
        let moment = SnapshotFacts { at: evidence.at(), patience: None, patience_with_departed: None, steps: &steps };
        whole = beyond_pages(evidence, kept_since, &moment, (settings.pace, began), report).await?;
    } else {
        report.cut_short(&[Check::Batch], &Unfinished::TimeOver);
    }
    if !whole {
        let note = format!("time was over after the oldest {} jobs; the rest was not looked at", report.looked_at.jobs);
        report.cut_short(&BEYOND_PAGES, &Unfinished::TimeOver);
        report.record_unchecked(note);
    }
    counted(evidence, &ended, report).await
}

/// Attempts whose lease expired long ago. While MySQL is down no runner can end them, and afterwards reapers give every
/// runner one more lease. The tables do not show when MySQL was down, so the attempts are examined again for as long as
/// that takes.
struct ExpiredLeases {
    /// The check that these attempts fail: [`Check::Abandoned`], or [`Check::Departed`] if their runners are gone.
    check: Check,
    suspects: Vec<(JobId, Timestamp, String)>,
    /// Maximum number of suspects.
    most: usize,
    /// Number of further suspects that were not kept.
    more: u64,
    /// Maximum time that a reaper needs after it has reconnected. It may be longer than the check waits.
    needed: Duration,
}

impl ExpiredLeases {
    const fn new(check: Check, most: usize) -> Self {
        Self { check, suspects: Vec::new(), most, more: 0, needed: Duration::ZERO }
    }

    fn see(&mut self, id: JobId, lease_until: Timestamp, what: String, moment: &SnapshotFacts<'_>) {
        if self.suspects.len() >= self.most {
            self.more += 1;
            return;
        }
        let patience = if self.check == Check::Departed { moment.patience_with_departed } else { moment.patience };
        let needed = patience.and_then(|patience| patience.to_std().ok()).unwrap_or_default();
        self.needed = self.needed.max(needed);
        self.suspects.push((id, lease_until, what));
    }

    async fn look_again(mut self, store: &Store, patience: Duration, report: &mut Report) -> Result<(), StoreError> {
        let began = Instant::now();
        while !self.suspects.is_empty() && !patience.is_zero() && began.elapsed() < self.needed.min(MAX_WAIT) {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let leases = store.leases_of(self.suspects.iter().map(|(id, ..)| *id).collect()).await?;
            self.suspects.retain(|(id, lease_until, _)| leases.get(id) == Some(lease_until));
        }
        self.tell(patience, report);
        Ok(())
    }

    /// Report the suspects that are left. Those that were not kept may be there still, also when all others are gone.
    /// A reaper may still end those that were not looked at for as long as it needs: they prove nothing.
    fn tell(self, patience: Duration, report: &mut Report) {
        if self.more > 0 {
            report.record_unchecked(format!("{} more leases that ended long ago were not looked at again", self.more));
        }
        if let Some((first, ..)) = self.suspects.first()
            && !patience.is_zero()
            && self.needed > MAX_WAIT
        {
            report.record_unchecked(format!(
                "{} leases ended long ago, such as that of job {first}; after an outage of MySQL their attempts may \
                 end up to {} s later, and this check waits for {} s: run it again then",
                self.suspects.len(),
                self.needed.as_secs(),
                MAX_WAIT.as_secs()
            ));
            return;
        }
        for (id, _, what) in self.suspects {
            report.add_finding(self.check, id, what);
        }
    }
}

/// Report the parked jobs of limits that do not exist any more. If one of them has been let go meanwhile, report none:
/// sweeps are at work, and a removed limit may have more parked jobs than they let go in this time. Sweeps leave out
/// keys that another session locks, so the jobs of these prove nothing.
async fn stranded(store: &Store, patience: Duration, report: &mut Report) -> Result<(), StoreError> {
    let parked = store.stranded_jobs().await?;
    if parked.is_empty() {
        return Ok(());
    }
    let keys: BTreeSet<LimitKey> = parked.values().cloned().collect();
    let mut locked = store.locked_limit_keys(keys.clone()).await?;
    let began = Instant::now();
    while !patience.is_zero() && began.elapsed() < LET_GO_WITHIN {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let still = store.stranded_jobs().await?;
        if parked.keys().any(|id| !still.contains_key(id)) {
            return Ok(());
        }
    }
    locked.extend(store.locked_limit_keys(keys).await?);
    if let Some(LimitKey { limit, key }) = locked.first() {
        report.record_unchecked(format!(
            "{} keys of removed limits could not be checked: another session locks them, such as {key:?} of {limit}",
            locked.len()
        ));
    }
    for (id, LimitKey { limit, .. }) in parked.into_iter().filter(|(_, key)| !locked.contains(key)) {
        report.add_finding(Check::Limit, id, format!("it is parked under the limit {limit}, which does not exist"));
    }
    Ok(())
}

/// Report batches with missing jobs, unless the jobs were removed after their end.
async fn torn(
    evidence: &mut Evidence,
    batches: Batches,
    (pace, began): (Pace, Instant),
    report: &mut Report,
) -> Result<(), StoreError> {
    for (looked_at, OpenBatch { batch, last, .. }) in batches.open.into_values().enumerate() {
        if pace.is_over(began) {
            report.record_unchecked("time was over before all batches that seem torn were looked at again".into());
            return Ok(());
        }
        if looked_at >= MAX_TORN {
            report.record_unchecked(format!(
                "more than {MAX_TORN} batches seem torn; the others were not looked at again"
            ));
            return Ok(());
        }
        let (there, removed) = evidence.batch_now(batch.first, last).await?;
        // The record of removed jobs is deleted together with the last job of a batch.
        let gone = there == 0 && removed == 0;
        if !gone && there + removed < u64::from(batch.size) {
            let what = format!("{there} of {} jobs are there, {removed} were removed", batch.size);
            report.add_finding(Check::Batch, batch.first, what);
        }
    }
    Ok(())
}

/// Check what is not visible in pages of jobs: unique keys, ticks and replays, each scanned in the order of its own
/// key. Return false if time was over before the end.
async fn beyond_pages(
    evidence: &mut Evidence,
    kept_since: Timestamp,
    moment: &SnapshotFacts<'_>,
    (pace, began): (Pace, Instant),
    report: &mut Report,
) -> Result<bool, StoreError> {
    let mut page = Instant::now();
    let mut keys = Walk::From((String::new(), Vec::new()));
    while let Walk::From(after) = keys {
        let (stray, next) = evidence.stray_unique_keys(after).await?;
        for id in stray {
            report.add_finding(Check::UniqueKey, id, "its unique key is not held correctly".into());
        }
        if !pace.wait_or_stop(&mut page, began).await {
            return Ok(false);
        }
        keys = next;
    }
    let mut places: Walk<OrderCursor> = Walk::From((Vec::new(), 0, JobId::from_uuid(uuid::Uuid::nil())));
    while let Walk::From(after) = places {
        let (rows, next) = evidence.order_places(after).await?;
        for (id, what) in order::faults(&rows, moment) {
            report.add_finding(Check::Order, id, what);
        }
        if !pace.wait_or_stop(&mut page, began).await {
            return Ok(false);
        }
        places = next;
    }
    let mut keys = Walk::From(Vec::new());
    while let Walk::From(after) = keys {
        let (headless, next) = evidence.headless_order_keys(after).await?;
        for key in headless {
            let key = String::from_utf8_lossy(&key).into_owned();
            report.found_in_all(Check::Order, format!("the head of the order key {key:?} has no open place"));
        }
        if !pace.wait_or_stop(&mut page, began).await {
            return Ok(false);
        }
        keys = next;
    }
    let mut keys = Walk::From(None);
    while let Walk::From(after) = keys {
        let (exceeded, next) = evidence.exceeded_limits(after).await?;
        for (key, running, most) in exceeded {
            let what =
                format!("{running} jobs of the key {:?} run, and the limit {} allows {most}", key.key, key.limit);
            report.found_in_all(Check::Limit, what);
        }
        if !pace.wait_or_stop(&mut page, began).await {
            return Ok(false);
        }
        keys = next;
    }
    if !links(evidence, kept_since, moment, (pace, began), report).await? {
        return Ok(false);
    }
    let mut ticks: Walk<TickPlace> = Walk::From((String::new(), Timestamp::UNIX_EPOCH, 0));
    while let Walk::From(after) = ticks {
        let (lost, next) = evidence.ticks_without_jobs(kept_since, after).await?;
        for (id, name, due_at) in lost {
            report.add_finding(
                Check::Tick,
                id,
                format!("the tick of {name} at {due_at} created it, but it is missing"),
            );
        }
        if !pace.wait_or_stop(&mut page, began).await {
            return Ok(false);
        }
        ticks = next;
    }
    let mut replays = Walk::From(JobId::from_uuid(uuid::Uuid::nil()));
    while let Walk::From(after) = replays {
        let (stray, next) = evidence.stray_replays(after).await?;
        for id in stray {
            report.add_finding(Check::DeadLetter, id, "the job it was replayed as is not linked back to it".into());
        }
        if !pace.wait_or_stop(&mut page, began).await {
            return Ok(false);
        }
        replays = next;
    }
    Ok(true)
}

/// Check jobs with parents, and batches. Return false if time was over before the end.
async fn links(
    evidence: &mut Evidence,
    kept_since: Timestamp,
    moment: &SnapshotFacts<'_>,
    (pace, began): (Pace, Instant),
    report: &mut Report,
) -> Result<bool, StoreError> {
    let mut page = Instant::now();
    let first = JobId::from_uuid(uuid::Uuid::nil());
    let mut parents = Walk::From((first, first));
    while let Walk::From(after) = parents {
        let (rows, next) = evidence.parents(after).await?;
        for row in rows {
            let Some(start) = row.first_start.filter(|_| !row.removed) else { continue };
            match row.first_end {
                Some(end) if moment.in_order(end, start) => {}
                Some(_) => {
                    let what = format!("it started before its parent {} had ended", row.parent);
                    report.add_finding(Check::Parents, row.child, what);
                }
                None => {
                    let what = format!("it started, and its parent {} has not ended", row.parent);
                    report.add_finding(Check::Parents, row.child, what);
                }
            }
        }
        if !pace.wait_or_stop(&mut page, began).await {
            return Ok(false);
        }
        parents = next;
    }
    let mut blocked = Walk::From(first);
    while let Walk::From(after) = blocked {
        let (faults, next) = evidence.wrongly_blocked(after).await?;
        for (id, what) in faults {
            report.add_finding(Check::Parents, id, what.to_owned());
        }
        if !pace.wait_or_stop(&mut page, began).await {
            return Ok(false);
        }
        blocked = next;
    }
    let mut batches = Walk::From(BatchId::from_uuid(uuid::Uuid::nil()));
    while let Walk::From(after) = batches {
        let (faults, next) = evidence.wrong_batches(after, kept_since).await?;
        for (id, what) in faults {
            report.found_in_all(Check::BatchEnd, format!("batch {id}: {what}"));
        }
        if !pace.wait_or_stop(&mut page, began).await {
            return Ok(false);
        }
        batches = next;
    }
    Ok(true)
}

/// Compare the tallies with the ended jobs. Purged jobs stay counted, so a tally may be higher than the number of jobs
/// in the tables, never lower. A retry reduces the tally by one, also for a job that was read before its retry.
async fn counted(
    evidence: &mut Evidence,
    ended: &BTreeMap<TallyKey, i64>,
    report: &mut Report,
) -> Result<(), StoreError> {
    let tallies = evidence.tallies().await?;
    if ended.iter().all(|(key, jobs)| tallies.get(key) >= *jobs) {
        return Ok(());
    }
    let retried = evidence.retries_meanwhile().await?;
    for (key, jobs) in ended {
        let counted = tallies.get(key);
        if counted + retried < *jobs {
            let TallyKey { queue, kind, state } = key;
            report.found_in_all(
                Check::Counted,
                format!("{jobs} {state} {kind} jobs of queue {queue}, {counted} counted"),
            );
        }
    }
    Ok(())
}

fn ended_as(job: &JobEvidence) -> Option<TallyKey> {
    let (asked, None, Some(state)) = (job.row.as_ref()?, &job.owed, job.lines.last()?.end) else { return None };
    Some(TallyKey { queue: asked.queue.clone(), kind: asked.kind.clone(), state })
}

/// Counts the jobs of batches. The ids of a batch are close together, so a batch is dropped as soon as it is complete.
struct Batches {
    /// Batches older than this may have been purged in part.
    kept_since: Timestamp,
    /// Batches whose first job is not after this id were not read from their beginning.
    begins_behind: JobId,
    open: BTreeMap<JobId, OpenBatch>,
}

/// A batch of which some jobs were not read yet.
struct OpenBatch {
    batch: BatchPlace,
    seen: u16,
    /// The last job that was read.
    last: JobId,
}

impl Batches {
    fn new(evidence: &Evidence, settings: &VerifySettings) -> Self {
        // Only the audit shows which jobs operators deleted, and it may be kept for less time than jobs.
        let kept = settings.retention.shortest().min(settings.retention.audit);
        let kept = TimeDelta::from_std(kept).unwrap_or(TimeDelta::MAX / 4);
        let kept_since = evidence.at() - kept;
        Self {
            kept_since: settings.since.map_or(kept_since, |since| since.max(kept_since)),
            begins_behind: evidence.begins_behind(),
            open: BTreeMap::new(),
        }
    }

    fn see(&mut self, job: &JobEvidence) {
        let Some(asked) = &job.row else { return };
        let Some(batch) = asked.batch.filter(|_| asked.created_at >= self.kept_since) else { return };
        if batch.first <= self.begins_behind {
            return;
        }
        let open = self.open.entry(batch.first).or_insert(OpenBatch { batch, seen: 0, last: job.id });
        open.seen += 1;
        open.last = open.last.max(job.id);
        if open.seen == batch.size {
            self.open.remove(&batch.first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_that_were_not_looked_at_again_leave_the_check_incomplete() {
        let patience = Some(TimeDelta::zero());
        let moment =
            SnapshotFacts { at: Timestamp::UNIX_EPOCH, patience, patience_with_departed: patience, steps: &[] };
        let told = |seen: u128, reaped: bool| {
            let mut abandoned = ExpiredLeases::new(Check::Abandoned, 1);
            for n in 0..seen {
                let id = JobId::from_uuid(uuid::Uuid::from_u128(n));
                abandoned.see(id, Timestamp::UNIX_EPOCH, "it expired".to_owned(), &moment);
            }
            if reaped {
                abandoned.suspects.clear();
            }
            let mut report = Report::new(Timestamp::UNIX_EPOCH, None);
            abandoned.tell(VerifySettings::PATIENCE, &mut report);
            (report.verdict, report.complete)
        };
        assert_eq!(told(1, true), (VerifyVerdict::Kept, true));
        assert_eq!(told(2, true), (VerifyVerdict::Unchecked, false));
        assert_eq!(told(2, false), (VerifyVerdict::Broken, false));
    }

    #[test]
    fn a_lease_that_outlasts_the_wait_of_the_check_is_not_called_abandoned() {
        let told = |needed: Duration| {
            let patience = TimeDelta::from_std(needed).ok();
            let moment =
                SnapshotFacts { at: Timestamp::UNIX_EPOCH, patience, patience_with_departed: None, steps: &[] };
            let mut abandoned = ExpiredLeases::new(Check::Abandoned, 1);
            abandoned.see(JobId::new(), Timestamp::UNIX_EPOCH, "it expired".to_owned(), &moment);
            let mut report = Report::new(Timestamp::UNIX_EPOCH, None);
            abandoned.tell(VerifySettings::PATIENCE, &mut report);
            (report.verdict, report.finding(Check::Abandoned).faults, report.unchecked.len())
        };
        assert_eq!(told(MAX_WAIT), (VerifyVerdict::Broken, 1, 0));
        assert_eq!(told(MAX_WAIT + Duration::from_secs(1)), (VerifyVerdict::Unchecked, 0, 1));
    }

    #[tokio::test]
    async fn a_part_whose_time_is_over_leaves_what_it_has_reported() {
        let pace = Pace::Gentle { limit: Duration::MAX, all: Duration::ZERO };
        let mut report = Report::new(Timestamp::UNIX_EPOCH, None);
        let hanging = async {
            report.add_finding(Check::Lost, JobId::new(), "it is lost".to_owned());
            std::future::pending().await
        };
        assert!(matches!(pace.finish(Instant::now(), hanging).await, Err(Unfinished::TimeOver)));
        assert_eq!(report.finding(Check::Lost).faults, 1);
    }

    #[test]
    fn the_text_of_an_error_of_mysql_is_in_no_report() {
        let denied = StoreError::Unavailable {
            attempted: "read batches",
            cause: "Access denied for user 'tickr'@'db-7.internal'".to_owned(),
            source: None,
        };
        let unreadable = StoreError::corrupt("read batches", "event \"later\"");
        let mut report = Report::new(Timestamp::UNIX_EPOCH, None);
        for why in [denied, unreadable].map(Unfinished::Error) {
            report.cut_short(&[Check::BatchEnd], &why);
            report.record_unchecked(format!("{why} before the tables were read"));
            report.keep_error(why);
        }
        let told = serde_json::to_string(&report).unwrap();
        assert!(!told.contains("db-7") && told.contains("later"), "{told}");
        assert!(report.errors[0].to_string().contains("db-7"));
    }
}
