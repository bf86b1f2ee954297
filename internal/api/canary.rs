//! The canary of a bulk operation, as clients request and read it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::http::body::Object;
use crate::view::Moment;
use tickr_handlers::Problem;
use tickr_job::{Canary, CanaryState, CanaryStep, operation};

/// The request for a canary: a replay in steps of rising rates that goes on only while the released jobs pass.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CanaryBody {
    /// Steps in their order. Default: 5, 20 and 100 jobs per second.
    #[schema(min_items = 1, max_items = 10, value_type = Option<Vec<CanaryStepBody>>)]
    steps: Option<Vec<Object<CanaryStepBody>>>,
    /// The canary stops when more than this percentage of the outcomes of a step are failures. Default: 20.
    #[schema(maximum = 100)]
    max_failure_pct: Option<u8>,
    /// Number of outcomes from which on the percentage counts before a step has all of its outcomes. Default: 5.
    #[schema(minimum = 1, maximum = 1000)]
    min_outcomes: Option<u32>,
}

/// A requested step of a canary.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CanaryStepBody {
    /// Jobs per second, not less than in the step before.
    #[schema(minimum = 1, maximum = 10_000)]
    rate: u32,
    /// Number of jobs that the step releases. Default: those of ten seconds, at most 2,000. Not allowed in the last
    /// step, which releases the rest.
    #[schema(minimum = 1, maximum = 2_000)]
    jobs: Option<u32>,
}

impl CanaryBody {
    /// Return the canary that the request means, or what is wrong with it.
    pub(super) fn read(self) -> Result<Canary, Vec<Problem>> {
        let asked = self.steps.unwrap_or_else(|| {
            Canary::RATES.into_iter().map(|rate| Object(CanaryStepBody { rate, jobs: None })).collect()
        });
        let mut problems = Vec::new();
        if !(1..=Canary::MAX_STEPS).contains(&asked.len()) {
            problems.push(Problem::at("/canary/steps", format!("must be 1 to {} steps", Canary::MAX_STEPS)));
        }
        let (mut steps, last) = (Vec::new(), asked.len().saturating_sub(1));
        for (place, Object(step)) in asked.into_iter().take(Canary::MAX_STEPS).enumerate() {
            let mut wrong = |field: &str, detail: String| {
                problems.push(Problem::at(format!("/canary/steps/{place}/{field}"), detail));
            };
            let before = steps.last().map_or(1, |step: &CanaryStep| step.rate);
            if !(1..=operation::MAX_RATE).contains(&step.rate) {
                wrong("rate", format!("must be 1 to {}", operation::MAX_RATE));
            } else if step.rate < before {
                wrong("rate", format!("must be {before} at least, the rate of the step before"));
            }
            match step.jobs {
                Some(_) if place == last => {
                    wrong("jobs", "is not allowed in the last step, which releases the rest".into());
                }
                Some(jobs) if !(1..=Canary::MAX_STEP_JOBS).contains(&jobs) => {
                    wrong("jobs", format!("must be 1 to {}", Canary::MAX_STEP_JOBS));
                }
                _ => {}
            }
            let jobs = step.jobs.unwrap_or_else(|| Canary::jobs_of_ten_seconds(step.rate));
            steps.push(CanaryStep { rate: step.rate, jobs: (place != last).then_some(jobs) });
        }
        let max_failure_pct = self.max_failure_pct.unwrap_or(Canary::MAX_FAILURE_PCT);
        if max_failure_pct > 100 {
            problems.push(Problem::at("/canary/max_failure_pct", "must be 0 to 100"));
        }
        let min_outcomes = self.min_outcomes.unwrap_or(Canary::MIN_OUTCOMES);
        if !(1..=Canary::MAX_MIN_OUTCOMES).contains(&min_outcomes) {
            let detail = format!("must be 1 to {}", Canary::MAX_MIN_OUTCOMES);
            problems.push(Problem::at("/canary/min_outcomes", detail));
        }
        if problems.is_empty() { Ok(Canary { steps, max_failure_pct, min_outcomes }) } else { Err(problems) }
    }
}

/// A canary with its progress.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CanaryView {
    steps: Vec<CanaryStepView>,
    max_failure_pct: u8,
    min_outcomes: u32,
    /// Number of the present step, from 1; of the last one that began when the bulk operation has ended.
    step: usize,
    /// Number of jobs that this step has released.
    released: u64,
    outcomes: CanaryOutcomesView,
    /// Time when the outcomes were counted; null before the first count. A runner counts them twice a second.
    #[schema(value_type = Option<String>, format = DateTime)]
    counted_at: Option<Moment>,
    /// True while the next jobs are not released before released ones have outcomes.
    awaits_outcomes: bool,
    /// True if the canary stopped by itself; `last_error` of the bulk operation says why.
    stopped: bool,
}

/// A step of a canary.
#[derive(Debug, Serialize, ToSchema)]
struct CanaryStepView {
    /// Jobs per second.
    rate: u32,
    /// Number of jobs that the step releases; null in the last step, which releases the rest.
    jobs: Option<u32>,
}

/// The jobs that the present step released, by outcome. The newest 4,000 are looked at, and the newest 1,000 outcomes
/// count.
#[derive(Debug, Serialize, ToSchema)]
struct CanaryOutcomesView {
    /// Completed.
    passed: u64,
    /// Failed for good.
    failed: u64,
    /// An attempt failed, and the job has not ended. Counts as a failure until the job completes.
    retrying: u64,
    /// Waits for its first attempt, or for the end of it.
    waiting: u64,
    cancelled: u64,
}

impl CanaryView {
    /// Return the view of a canary whose operation has released `released` jobs in all.
    pub(super) fn new(canary: &Canary, state: &CanaryState, released: u64) -> Self {
        let found = state.outcomes;
        Self {
            steps: canary.steps.iter().map(|step| CanaryStepView { rate: step.rate, jobs: step.jobs }).collect(),
            max_failure_pct: canary.max_failure_pct,
            min_outcomes: canary.min_outcomes,
            step: state.step + 1,
            released: released.saturating_sub(state.released_before),
            outcomes: CanaryOutcomesView {
                passed: found.passed,
                failed: found.failed,
                retrying: found.retrying,
                waiting: found.waiting,
                cancelled: found.cancelled,
            },
            counted_at: state.counted_at.map(Moment),
            awaits_outcomes: state.waits,
            stopped: state.stopped,
        }
    }
}
