//! The checker: proves from the tables of a live system that the promises were kept (G11).
//!
//! - [`Check`]: what is checked, each under a name of its own
//! - `life.rs`: what the evidence about one job proves, a pure function
//! - `drift.rs`: the index against the store, looked at again before it is believed, and repaired if asked
//! - [`Report`]: what was found
//!
//! The tables are read in one snapshot, page by page in order of their keys, so a checker of any size of tables takes
//! bounded memory, and what it finds was true at one moment. The index cannot be read in a snapshot: what it seems to
//! lack may be on its way, so it is a fault only when it lasts longer than the repair loops need.
//!
//! It trusts the database's clock. A server whose clock was set back shows attempts that seem to begin early.

mod check;
mod drift;
mod life;
mod report;

pub use check::Check;
pub use report::{Finding, LookedAt, Report, Sample};

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use chrono::TimeDelta;

use crate::index::Index;
use crate::job::{BatchPlace, JobId, Timestamp};
use crate::store::{JobEvidence, Retention, Store, StoreError, TallyKey};
use life::Moment;

/// What to check, and how patiently.
#[derive(Clone, Debug)]
pub struct VerifySettings {
    /// Only jobs made at this moment or later; all when absent.
    pub since: Option<Timestamp>,
    /// How long a disagreement of index and store must last to be believed. The repair loops need six seconds (G3).
    pub patience: Duration,
    /// Mend what the index gets wrong.
    pub repair: bool,
    /// How long ended jobs are kept: batches as old as that may have been purged in part.
    pub retention: Retention,
    /// How hard the servers are worked.
    pub pace: Pace,
}

/// How hard a check works the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// As fast as it goes, and everything.
    Full,
    /// After each page it rests as long as the page took, and after `limit` it looks at nothing more.
    Gentle {
        /// How long to read, with all rests.
        limit: Duration,
    },
}

impl Pace {
    /// Rest after a page that was begun at this moment.
    async fn rest(self, page: Instant) {
        if let Self::Gentle { limit } = self {
            tokio::time::sleep(page.elapsed().min(limit)).await;
        }
    }

    /// Is there no time left for what began at this moment?
    fn is_over(self, began: Instant) -> bool {
        matches!(self, Self::Gentle { limit } if began.elapsed() >= limit)
    }
}

impl VerifySettings {
    /// How long a disagreement must last when nobody says otherwise: the bound of G3 and a second.
    pub const PATIENCE: Duration = Duration::from_secs(7);
}

/// After the end of its lease, an attempt is ended within this (G3).
const REAPED_WITHIN: TimeDelta = TimeDelta::seconds(5);

/// Check everything. `progress` is told of the jobs read so far.
///
/// # Errors
/// When MySQL cannot be read. A Redis that is out is no error: its checks are reported as skipped.
pub async fn verify(
    store: &Store,
    index: &Index,
    settings: &VerifySettings,
    mut progress: impl FnMut(u64),
) -> Result<Report, StoreError> {
    let began = Instant::now();
    let mut evidence = store.evidence(settings.since).await?;
    let mut report = Report::new(evidence.at(), settings.since);
    let lease = evidence.longest_living_lease_ms().await?;
    let moment = Moment {
        at: evidence.at(),
        // A reaper that has just come back to its store gives everybody one more lease.
        patience: lease.map(|ms| TimeDelta::milliseconds(i64::from(ms)) + REAPED_WITHIN),
    };
    let mut batches = Batches::new(evidence.at(), settings);
    // What is younger than that cannot have been purged.
    let kept_since = batches.kept_since;
    let mut ended: BTreeMap<TallyKey, i64> = BTreeMap::new();
    let mut page = Instant::now();
    let mut whole = true;
    while let Some(jobs) = evidence.next_page().await? {
        for job in &jobs {
            report.looked_at.count(job);
            for (check, what) in life::faults(job, &moment) {
                report.found(check, job.id, what);
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
        for (batch, seen) in batches.torn() {
            report.found(Check::Batch, batch.first, format!("{seen} of {} jobs are there", batch.size));
        }
        for id in evidence.stray_keys().await? {
            report.found(Check::UniqueKey, id, "its key is not held as it should be".into());
        }
        for (id, name, due_at) in evidence.ticks_without_jobs(kept_since).await? {
            report.found(Check::Tick, id, format!("the tick of {name} at {due_at} made it, and it is not there"));
        }
        for id in evidence.stray_replays().await? {
            report.found(Check::DeadLetter, id, "the job it was replayed as is not linked back to it".into());
        }
    } else {
        let note = format!("time was over after the oldest {} jobs; the rest was not looked at", report.looked_at.jobs);
        report.cut_short(&[Check::Batch, Check::UniqueKey, Check::Tick], note);
    }
    // Purged jobs stay counted, so the tallies may say more than the tables, never less.
    let tallies = evidence.tallies().await?;
    for (key, jobs) in ended {
        let counted = tallies.get(&key).copied().unwrap_or(0);
        if counted < jobs {
            let TallyKey { queue, kind, state } = &key;
            report.found_in_all(
                Check::Counted,
                format!("{jobs} {state} {kind} jobs of queue {queue}, {counted} counted"),
            );
        }
    }
    drop(evidence);
    drift::compare(store, index, settings, &mut report).await?;
    report.elapsed = began.elapsed();
    Ok(report)
}

fn ended_as(job: &JobEvidence) -> Option<TallyKey> {
    let (asked, None, Some(state)) = (job.asked.as_ref()?, &job.owed, job.lines.last()?.end) else { return None };
    Some(TallyKey { queue: asked.queue.clone(), kind: asked.kind.clone(), state })
}

/// Counts the jobs of batches, whose ids lie close together: a batch is forgotten when it is whole.
struct Batches {
    /// Batches older than this may have been purged in part.
    kept_since: Timestamp,
    open: BTreeMap<JobId, (BatchPlace, u16)>,
}

impl Batches {
    fn new(at: Timestamp, settings: &VerifySettings) -> Self {
        let kept = settings.retention.shortest();
        let kept = TimeDelta::from_std(kept).unwrap_or(TimeDelta::MAX / 4);
        let kept_since = at - kept;
        Self { kept_since: settings.since.map_or(kept_since, |since| since.max(kept_since)), open: BTreeMap::new() }
    }

    fn see(&mut self, job: &JobEvidence) {
        let Some(asked) = &job.asked else { return };
        let Some(batch) = asked.batch.filter(|_| asked.created_at >= self.kept_since) else { return };
        let (_, seen) = self.open.entry(batch.first).or_insert((batch, 0));
        *seen += 1;
        if *seen == batch.size {
            self.open.remove(&batch.first);
        }
    }

    fn torn(self) -> impl Iterator<Item = (BatchPlace, u16)> {
        self.open.into_values()
    }
}
