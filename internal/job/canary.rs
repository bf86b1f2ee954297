//! Canary releases: a replay of dead letters in steps of rising rates, which goes on only while the released jobs pass.
//!
//! A job has *passed* when it completed. It has *failed again* when it failed for good, or when an attempt of it failed
//! and the next one has not passed yet. A job without either is *waiting*. An attempt that was lost with its runner is
//! no failure of the job.

use serde::{Deserialize, Serialize};

use super::Timestamp;

/// The request for a canary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Canary {
    /// The steps, in their order. The last one has no number of jobs: it releases the rest.
    pub steps: Vec<CanaryStep>,
    /// The canary stops when more than this percentage of the outcomes of a step are failures.
    pub max_failure_pct: u8,
    /// Number of outcomes from which on the percentage counts before the step has all of its outcomes.
    pub min_outcomes: u32,
}

/// One step of a canary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CanaryStep {
    /// Jobs per second.
    pub rate: u32,
    /// Number of jobs that the step releases; absent in the last step.
    pub jobs: Option<u32>,
}

impl Canary {
    /// Most steps of one canary.
    pub const MAX_STEPS: usize = 10;
    /// Most jobs in one step that is not the last.
    pub const MAX_STEP_JOBS: u32 = 2_000;
    /// Most released jobs without an outcome at any time, among those whose outcomes are counted.
    pub const MAX_WAITING: u64 = 2_000;
    /// Number of released jobs of a step, from the newest on, whose outcomes are counted at most.
    pub const MAX_LOOKED_AT: u32 = 4_000;
    /// Number of outcomes, from the newest on, that the percentage is taken of at most. A step that releases a whole
    /// backlog would otherwise need thousands of failures before it stops.
    pub const MAX_OUTCOMES: u64 = 1_000;
    /// Largest number of outcomes to wait for before the percentage counts.
    pub const MAX_MIN_OUTCOMES: u32 = 1_000;
    /// Rates of the steps when the request names none, in jobs per second.
    pub const RATES: [u32; 3] = [5, 20, 100];
    /// Percentage of failures above which a canary stops when the request names none.
    pub const MAX_FAILURE_PCT: u8 = 20;
    /// Number of outcomes from which on the percentage counts when the request names none.
    pub const MIN_OUTCOMES: u32 = 5;

    /// Return the number of jobs of a step whose request names none: those of ten seconds.
    #[must_use]
    pub const fn jobs_of_ten_seconds(rate: u32) -> u32 {
        let jobs = rate.saturating_mul(10);
        if jobs < Self::MAX_STEP_JOBS { jobs } else { Self::MAX_STEP_JOBS }
    }

    /// Return the step at this position, or the last one.
    #[must_use]
    pub fn step(&self, position: usize) -> CanaryStep {
        let rest = CanaryStep { rate: 1, jobs: None };
        self.steps.get(position).or(self.steps.last()).copied().unwrap_or(rest)
    }

    /// Return the highest rate of all steps.
    #[must_use]
    pub fn highest_rate(&self) -> u32 {
        self.steps.iter().map(|step| step.rate).max().unwrap_or(1)
    }

    /// Return how many jobs the present step may still release, of an operation that has released `released`.
    #[must_use]
    pub fn left_in_step(&self, state: &CanaryState, released: u64) -> u64 {
        let of_step = released.saturating_sub(state.released_before);
        self.step(state.step).jobs.map_or(u64::MAX, |jobs| u64::from(jobs).saturating_sub(of_step))
    }

    /// Decide how a canary goes on. `released` is the number of jobs that it has released, and `is_empty` tells that no
    /// dead letter is left to release.
    #[must_use]
    pub fn decide(&self, state: &CanaryState, released: u64, is_empty: bool) -> CanaryDecision {
        let found = &state.outcomes;
        let has_all = found.waiting == 0;
        let is_full = is_empty || self.left_in_step(state, released) == 0;
        let (failures, outcomes) = (found.failed + found.retrying, found.passed + found.failed + found.retrying);
        let counts = outcomes >= u64::from(self.min_outcomes) || (is_full && has_all);
        if counts && failures * 100 > u64::from(self.max_failure_pct) * outcomes {
            return CanaryDecision::Stop;
        }
        match (is_full, has_all) {
            (true, true) if is_empty => CanaryDecision::Finish,
            (true, true) => CanaryDecision::MoveUp,
            (true, false) => CanaryDecision::Wait,
            (false, _) if found.waiting >= Self::MAX_WAITING => CanaryDecision::Wait,
            (false, _) => CanaryDecision::Release,
        }
    }

    /// Return why a canary stopped by itself, for the operator.
    #[must_use]
    pub fn reason_of_stop(&self, state: &CanaryState) -> String {
        let CanaryOutcomes { passed, failed, retrying, .. } = state.outcomes;
        let (failures, outcomes) = (failed + retrying, passed + failed + retrying);
        let pct = (failures * 100).checked_div(outcomes).unwrap_or_default();
        format!(
            "the canary stopped in step {} of {}: {failures} of {outcomes} released jobs failed again ({pct} %), and \
             the limit is {} %",
            state.step + 1,
            self.steps.len(),
            self.max_failure_pct
        )
    }
}

/// The progress of a canary.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CanaryState {
    /// Position of the present step, from 0.
    pub step: usize,
    /// Number of jobs that the steps before it released.
    pub released_before: u64,
    /// Time when the step began, by the clock of the database; absent in the first step.
    pub since: Option<Timestamp>,
    /// Outcomes of the jobs that the step released, as they were counted last.
    pub outcomes: CanaryOutcomes,
    /// Time of that count; absent before the first one.
    pub counted_at: Option<Timestamp>,
    /// True if the next jobs are released only when released ones have outcomes.
    pub waits: bool,
    /// True if the canary stopped because too many jobs failed again.
    pub stopped: bool,
}

/// Counts of released jobs by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CanaryOutcomes {
    /// Completed.
    pub passed: u64,
    /// Failed for good.
    pub failed: u64,
    /// Unfinished, and an attempt has failed.
    pub retrying: u64,
    /// Unfinished, and no attempt has failed.
    pub waiting: u64,
    /// Cancelled by an operator.
    pub cancelled: u64,
}

/// How a canary goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CanaryDecision {
    /// Release more jobs of the step.
    Release,
    /// Release nothing before released jobs have outcomes.
    Wait,
    /// Begin the next step.
    MoveUp,
    /// End: every job is released and has an outcome.
    Finish,
    /// End: too many jobs failed again.
    Stop,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canary() -> Canary {
        let step = |rate, jobs| CanaryStep { rate, jobs };
        Canary {
            steps: vec![step(5, Some(50)), step(20, Some(200)), step(100, None)],
            max_failure_pct: 20,
            min_outcomes: 5,
        }
    }

    fn state(
        step: usize,
        released_before: u64,
        (passed, failed, retrying, waiting): (u64, u64, u64, u64),
    ) -> CanaryState {
        let outcomes = CanaryOutcomes { passed, failed, retrying, waiting, cancelled: 0 };
        CanaryState { step, released_before, outcomes, ..CanaryState::default() }
    }

    #[test]
    fn a_step_ends_only_when_each_of_its_jobs_has_an_outcome() {
        let canary = canary();
        let decide = |counts, released| canary.decide(&state(0, 0, counts), released, false);
        assert_eq!(decide((20, 0, 0, 5), 25), CanaryDecision::Release);
        assert_eq!(decide((45, 0, 0, 5), 50), CanaryDecision::Wait);
        assert_eq!(decide((50, 0, 0, 0), 50), CanaryDecision::MoveUp);
        assert_eq!(canary.left_in_step(&state(1, 50, (0, 0, 0, 0)), 60), 190);
        assert_eq!(canary.left_in_step(&state(2, 250, (0, 0, 0, 0)), 60_000), u64::MAX);
    }

    #[test]
    fn failures_above_the_bound_stop_a_canary_and_a_few_outcomes_do_not() {
        let canary = canary();
        let decide = |counts, released| canary.decide(&state(0, 0, counts), released, false);
        assert_eq!(decide((2, 2, 0, 4), 8), CanaryDecision::Release, "four outcomes are too few");
        assert_eq!(decide((3, 2, 0, 4), 9), CanaryDecision::Stop);
        assert_eq!(decide((3, 0, 2, 4), 9), CanaryDecision::Stop, "a failed attempt counts until the job passes");
        assert_eq!(decide((8, 2, 0, 4), 14), CanaryDecision::Release, "exactly the bound is not above it");
    }

    #[test]
    fn a_step_of_few_jobs_is_judged_when_all_of_them_have_outcomes() {
        let canary = Canary { steps: vec![CanaryStep { rate: 1, jobs: Some(1) }, canary().steps[2]], ..canary() };
        assert_eq!(canary.decide(&state(0, 0, (0, 1, 0, 0)), 1, false), CanaryDecision::Stop);
        assert_eq!(canary.decide(&state(0, 0, (1, 0, 0, 0)), 1, false), CanaryDecision::MoveUp);
        // A group of three that is released whole.
        assert_eq!(canary.decide(&state(1, 1, (1, 1, 0, 0)), 3, true), CanaryDecision::Stop);
    }

    #[test]
    fn a_canary_ends_when_the_last_released_job_has_an_outcome() {
        let canary = canary();
        assert_eq!(canary.decide(&state(2, 250, (40, 1, 0, 3)), 294, true), CanaryDecision::Wait);
        assert_eq!(canary.decide(&state(2, 250, (43, 1, 0, 0)), 294, true), CanaryDecision::Finish);
        assert_eq!(canary.decide(&state(0, 0, (0, 0, 0, 0)), 0, true), CanaryDecision::Finish, "there was nothing");
    }

    #[test]
    fn the_last_step_waits_while_too_many_released_jobs_have_no_outcome() {
        let canary = canary();
        assert_eq!(canary.decide(&state(2, 250, (9, 0, 0, 2_000)), 3_000, false), CanaryDecision::Wait);
        assert_eq!(canary.decide(&state(2, 250, (9, 0, 0, 1_999)), 3_000, false), CanaryDecision::Release);
    }
}
