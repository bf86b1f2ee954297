//! What a check of everything found.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use serde::ser::Serializer;

use super::Check;
use crate::job::{JobId, Timestamp};
use crate::store::JobEvidence;

/// Samples kept of each kind of fault. All are counted.
const MOST_SAMPLES: usize = 20;

/// The findings, check by check.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Were the promises kept?
    pub verdict: Outcome,
    /// True when everything was looked at, and nothing is wrong that was not repaired.
    pub ok: bool,
    /// Was everything looked at?
    pub complete: bool,
    /// What could not be looked at, and why. Empty when everything was.
    pub unchecked: Vec<String>,
    /// The moment that the tables were looked at, by the database's clock.
    pub at: Timestamp,
    /// Only jobs made since then were looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// How much was looked at.
    pub looked_at: LookedAt,
    /// Every check, in a fixed order.
    pub checks: Vec<Finding>,
    /// What a person should know, though it breaks no promise.
    pub notes: Vec<String>,
    /// How long it took, in milliseconds.
    #[serde(rename = "elapsed_ms", serialize_with = "in_ms")]
    pub elapsed: Duration,
}

/// What a check of everything came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Everything was looked at, and every promise was kept.
    Kept,
    /// A promise was broken.
    Broken,
    /// No fault was found, and not everything could be looked at.
    Unchecked,
}

impl Outcome {
    /// Its word in reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Broken => "broken",
            Self::Unchecked => "unchecked",
        }
    }
}

/// How much was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LookedAt {
    /// Jobs.
    pub jobs: u64,
    /// Unfinished ones among them.
    pub owed: u64,
    /// Lines of the ledger.
    pub attempts: u64,
    /// Entries that the index schedules.
    pub scheduled: u64,
}

/// What one check found.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// The check.
    pub name: Check,
    /// The guarantee that it belongs to.
    pub guarantee: &'static str,
    /// What holds when there are no faults.
    pub meaning: &'static str,
    /// Why it could not be made, if it could not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    /// How many faults there are.
    pub faults: u64,
    /// How many there were and have been mended.
    pub repaired: u64,
    /// Some of the faults.
    pub samples: Vec<Sample>,
}

/// One fault.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// The job, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<JobId>,
    /// What shows it.
    pub what: String,
}

impl Report {
    pub(super) fn new(at: Timestamp, since: Option<Timestamp>) -> Self {
        let finding = |name: Check| Finding {
            name,
            guarantee: name.guarantee(),
            meaning: name.meaning(),
            skipped: None,
            faults: 0,
            repaired: 0,
            samples: Vec::new(),
        };
        Self {
            verdict: Outcome::Kept,
            ok: true,
            complete: true,
            unchecked: Vec::new(),
            at,
            since,
            looked_at: LookedAt::default(),
            checks: Check::ALL.into_iter().map(finding).collect(),
            notes: Vec::new(),
            elapsed: Duration::ZERO,
        }
    }

    /// The faults of each check that found any.
    #[must_use]
    pub fn faults(&self) -> BTreeMap<Check, u64> {
        self.checks.iter().filter(|finding| finding.faults > 0).map(|finding| (finding.name, finding.faults)).collect()
    }

    /// What this check found.
    #[must_use]
    pub fn finding(&self, check: Check) -> &Finding {
        // Every check has its place in the order of `Check::ALL`.
        &self.checks[check as usize]
    }

    pub(super) fn found(&mut self, check: Check, job: JobId, what: String) {
        self.add(check, Sample { job: Some(job), what });
    }

    /// A fault of the tables as a whole.
    pub(super) fn found_in_all(&mut self, check: Check, what: String) {
        self.add(check, Sample { job: None, what });
    }

    fn add(&mut self, check: Check, sample: Sample) {
        (self.verdict, self.ok) = (Outcome::Broken, false);
        let finding = &mut self.checks[check as usize];
        finding.faults += 1;
        if finding.samples.len() < MOST_SAMPLES {
            finding.samples.push(sample);
        }
    }

    pub(super) fn repaired(&mut self, check: Check, entries: u64) {
        self.checks[check as usize].repaired += entries;
    }

    /// Time was over before these checks could be made, which need all of the tables.
    pub(super) fn cut_short(&mut self, checks: &[Check]) {
        for check in checks {
            self.checks[*check as usize].skipped = Some("time was over before all rows were looked at".into());
        }
    }

    /// Something could not be looked at.
    pub(super) fn unchecked(&mut self, why: String) {
        self.complete = false;
        self.ok = false;
        if self.verdict == Outcome::Kept {
            self.verdict = Outcome::Unchecked;
        }
        self.unchecked.push(why);
    }

    pub(super) fn skip_index(&mut self, why: &str) {
        for finding in self.checks.iter_mut().filter(|finding| finding.name.needs_index()) {
            finding.skipped = Some(why.to_owned());
        }
        self.unchecked(format!("Redis does not answer ({why}): jobs run from MySQL, and the index was not checked"));
    }
}

impl LookedAt {
    pub(super) fn count(&mut self, job: &JobEvidence) {
        self.jobs += u64::from(job.asked.is_some());
        self.owed += u64::from(job.owed.is_some());
        self.attempts += job.lines.len() as u64;
    }
}

fn in_ms<S: Serializer>(elapsed: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX))
}
