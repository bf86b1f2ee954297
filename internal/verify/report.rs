//! The findings of a check.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use serde::ser::Serializer;

use super::{Check, Unfinished};
use tickr_job::{JobId, Timestamp};
use tickr_store::{JobEvidence, StoreError};

/// Maximum number of samples for each check. All faults are counted.
const MAX_SAMPLES: usize = 20;

/// The findings of all checks.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The verdict of the check.
    pub verdict: VerifyVerdict,
    /// True if everything was checked, and no fault remains that was not repaired.
    pub ok: bool,
    /// True if everything was checked.
    pub complete: bool,
    /// The parts that could not be checked, with the reasons. Empty if everything was checked.
    pub unchecked: Vec<String>,
    /// Time at which the tables were read, by the database's clock.
    pub at: Timestamp,
    /// Only jobs created since this time were checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// The amount of data checked.
    pub looked_at: LookedAt,
    /// The findings of every check, in a fixed order.
    pub checks: Vec<Finding>,
    /// Notes for a person that are not faults.
    pub notes: Vec<String>,
    /// Errors of MySQL that cut parts of the check short. Their texts are for logs and terminals only.
    #[serde(skip)]
    pub errors: Vec<StoreError>,
    /// Duration of the check, in milliseconds.
    #[serde(rename = "elapsed_ms", serialize_with = "in_ms")]
    pub elapsed: Duration,
}

/// The verdict of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VerifyVerdict {
    /// Everything was checked, and every guarantee holds.
    Kept,
    /// A guarantee was broken.
    Broken,
    /// No fault was found, but not everything could be checked.
    Unchecked,
}

impl VerifyVerdict {
    /// Return the word used in reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Broken => "broken",
            Self::Unchecked => "unchecked",
        }
    }
}

/// The amount of data checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LookedAt {
    /// Number of jobs.
    pub jobs: u64,
    /// Number of unfinished jobs among them.
    pub owed: u64,
    /// Number of attempt rows.
    pub attempts: u64,
    /// Number of entries that the index schedules.
    pub scheduled: u64,
}

/// The findings of one check.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Name of the check.
    pub name: Check,
    /// The guarantee that it belongs to.
    pub guarantee: &'static str,
    /// The guarantee in one sentence; it holds if there are no faults.
    pub meaning: &'static str,
    /// The reason why the check was skipped, if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    /// Number of faults.
    pub faults: u64,
    /// Number of faults that were repaired.
    pub repaired: u64,
    /// Examples of the faults.
    pub samples: Vec<Sample>,
}

/// One fault.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// The job, if the fault concerns one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<JobId>,
    /// The evidence.
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
            verdict: VerifyVerdict::Kept,
            ok: true,
            complete: true,
            unchecked: Vec::new(),
            at,
            since,
            looked_at: LookedAt::default(),
            checks: Check::ALL.into_iter().map(finding).collect(),
            notes: Vec::new(),
            errors: Vec::new(),
            elapsed: Duration::ZERO,
        }
    }

    /// Return whether nothing was read and nothing was found.
    pub(super) fn is_untouched(&self) -> bool {
        self.looked_at == LookedAt::default() && self.verdict == VerifyVerdict::Kept
    }

    /// Return the number of faults of each check that found any.
    #[must_use]
    pub fn faults(&self) -> BTreeMap<Check, u64> {
        self.checks.iter().filter(|finding| finding.faults > 0).map(|finding| (finding.name, finding.faults)).collect()
    }

    /// Return the findings of this check.
    #[must_use]
    pub fn finding(&self, check: Check) -> &Finding {
        // Every check has its position in the order of `Check::ALL`.
        &self.checks[check as usize]
    }

    pub(super) fn add_finding(&mut self, check: Check, job: JobId, what: String) {
        self.add(check, Sample { job: Some(job), what });
    }

    /// Add a fault of the tables as a whole.
    pub(super) fn found_in_all(&mut self, check: Check, what: String) {
        self.add(check, Sample { job: None, what });
    }

    fn add(&mut self, check: Check, sample: Sample) {
        (self.verdict, self.ok) = (VerifyVerdict::Broken, false);
        let finding = &mut self.checks[check as usize];
        finding.faults += 1;
        if finding.samples.len() < MAX_SAMPLES {
            finding.samples.push(sample);
        }
    }

    pub(super) fn record_repair(&mut self, check: Check, entries: u64) {
        self.checks[check as usize].repaired += entries;
    }

    /// Mark checks that need all of the tables as skipped, for this reason.
    pub(super) fn cut_short(&mut self, checks: &[Check], why: &Unfinished) {
        for check in checks {
            self.checks[*check as usize].skipped = Some(format!("{why} before all rows were looked at"));
        }
    }

    /// Keep the error of MySQL that cut a part short, if it was one.
    pub(super) fn keep_error(&mut self, why: Unfinished) {
        if let Unfinished::Error(error) = why {
            self.errors.push(error);
        }
    }

    /// Record that a part could not be checked.
    pub(super) fn record_unchecked(&mut self, why: String) {
        self.complete = false;
        self.ok = false;
        if self.verdict == VerifyVerdict::Kept {
            self.verdict = VerifyVerdict::Unchecked;
        }
        self.unchecked.push(why);
    }

    pub(super) fn skip_index(&mut self, why: &str) {
        for finding in self.checks.iter_mut().filter(|finding| finding.name.needs_index()) {
            finding.skipped = Some(why.to_owned());
        }
        self.record_unchecked(format!(
            "Redis does not answer ({why}): jobs run from MySQL, and the index was not checked"
        ));
    }
}

impl LookedAt {
    pub(super) fn count(&mut self, job: &JobEvidence) {
        self.jobs += u64::from(job.row.is_some());
        self.owed += u64::from(job.owed.is_some());
        self.attempts += job.lines.len() as u64;
    }
}

fn in_ms<S: Serializer>(elapsed: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX))
}
