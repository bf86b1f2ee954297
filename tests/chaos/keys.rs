//! The conclusions from the journal of the handlers about jobs with one order key and with one limit key: executions that
//! overlap, that came in the wrong order, or that were too many at once. Pure functions, which the suite tests with made-up
//! records (`tests/suite/chaos_keys.rs`).
//!
//! Every execution counts, whatever became its verdict. The journal says in which order executions began and ended. It
//! does not know leases: a frozen process goes on behind the end of its lease, and a killed one writes no end. Only the
//! ledger of tickr knows when such an attempt was given up. So it is the witness for this exemption, and for nothing
//! else: what was given up before another attempt was claimed does not count beside that one. An attempt with a verdict
//! of its own handler was never given up.
//!
//! The ledger has no tokens. A success is told by the token in its result, and every other execution by the number of the
//! attempt that its handler wrote. Where several rows fit, the one counts that excuses most.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use uuid::Uuid;

/// Verdicts that the handler of an attempt gave. Every other one may come while its process still runs.
const OF_HANDLERS: [&str; 5] = ["succeeded", "failed", "rejected", "snoozed", "panicked"];

/// Verdicts that use up no attempt.
const SPARING: [&str; 3] = ["interrupted", "snoozed", "expired"];

/// A row of the ledger about an attempt that a runner executed.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    /// Number of attempts used up to this one.
    pub(crate) burned: u32,
    pub(crate) claimed_at: DateTime<Utc>,
    pub(crate) ended_at: DateTime<Utc>,
    pub(crate) verdict: String,
    /// The token in the result of a success.
    pub(crate) token: Option<Uuid>,
    /// Lives of the job before this one: an operator's retry begins another.
    pub(crate) life: usize,
}

/// An execution in the journal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    pub(crate) token: Uuid,
    /// Number of the attempt among those that count.
    pub(crate) attempt: u32,
    /// Line numbers of its start and its end.
    pub(crate) began: usize,
    pub(crate) ended: Option<usize>,
}

/// An execution of a job with a key, with what the ledger says about it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) job: Uuid,
    pub(crate) began: usize,
    pub(crate) ended: Option<usize>,
    /// Earliest and latest time of its claim.
    pub(crate) claimed: (DateTime<Utc>, DateTime<Utc>),
    /// The earliest time at which tickr may have given it up.
    pub(crate) given_up: Option<DateTime<Utc>>,
    /// Whether it surely belongs to the last life of its job, which has the place.
    pub(crate) in_last_life: bool,
}

impl Run {
    /// Return whether it ran when the journal got this line.
    fn runs_at(&self, line: usize) -> bool {
        self.began <= line && self.ended.is_none_or(|end| end > line)
    }

    /// Return whether tickr may have given it up before the claim of another execution.
    fn was_given_up_before(&self, claimed_until: DateTime<Utc>) -> bool {
        self.given_up.is_some_and(|at| at <= claimed_until)
    }
}

/// Join the executions of a job with its rows in the ledger. An execution without a row is left out: another check
/// reports it.
pub(crate) fn runs_of(job: Uuid, starts: &[Start], attempts: &[Attempt], last_life: usize) -> Vec<Run> {
    let known: BTreeSet<Uuid> = starts.iter().map(|start| start.token).collect();
    let run = |start: &Start| {
        let own = |attempt: &&Attempt| attempt.token == Some(start.token);
        // The success of another execution is not this one's.
        let others = |attempt: &&Attempt| attempt.token.is_none_or(|token| !known.contains(&token));
        // The row of an attempt that used up none has the number of those before it.
        let fits = |attempt: &&Attempt| {
            attempt.burned == start.attempt
                || (attempt.burned + 1 == start.attempt && SPARING.contains(&attempt.verdict.as_str()))
        };
        let mut rows: Vec<&Attempt> = attempts.iter().filter(own).collect();
        if rows.is_empty() {
            rows = attempts.iter().filter(others).filter(fits).collect();
        }
        if rows.is_empty() {
            rows = attempts.iter().filter(others).collect();
        }
        let given_up = rows.iter().filter(|row| !OF_HANDLERS.contains(&row.verdict.as_str()));
        Some(Run {
            job,
            began: start.began,
            ended: start.ended,
            claimed: (rows.iter().map(|row| row.claimed_at).min()?, rows.iter().map(|row| row.claimed_at).max()?),
            given_up: given_up.map(|row| row.ended_at).min(),
            in_last_life: rows.iter().all(|row| row.life == last_life),
        })
    };
    starts.iter().filter_map(run).collect()
}

/// Return the pairs of executions of one order key that overlap or came in the wrong order, of `runs` with the places of
/// their jobs. The place of an earlier life than the last is not known, so its executions are compared for overlaps only.
pub(crate) fn out_of_line(runs: &[(u64, Run)]) -> Vec<String> {
    let mut runs = runs.to_vec();
    runs.sort_unstable_by_key(|(_, run)| run.began);
    let mut wrong = Vec::new();
    for (at, (place, first)) in runs.iter().enumerate() {
        for (other_place, then) in &runs[at + 1..] {
            if first.job == then.job || then.was_given_up_before(first.claimed.1) {
                continue;
            }
            if first.runs_at(then.began) && !first.was_given_up_before(then.claimed.1) {
                wrong.push(format!(
                    "job {} ran at place {place} when job {} started: {first:?} {then:?}",
                    first.job, then.job
                ));
            }
            if first.in_last_life && then.in_last_life && place > other_place {
                wrong.push(format!(
                    "job {} started at place {place} before job {} at place {other_place}: {first:?} {then:?}",
                    first.job, then.job
                ));
            }
        }
    }
    wrong
}

/// Return the moments at which more executions of one limit key ran than were allowed. `allowed` returns the most that any
/// rule allows which may have held at some moment between two times.
pub(crate) fn too_many(runs: &[Run], allowed: impl Fn(DateTime<Utc>, DateTime<Utc>) -> usize) -> Vec<String> {
    let mut wrong = Vec::new();
    for newest in runs {
        let mut at_once: Vec<&Run> = runs.iter().filter(|run| run.runs_at(newest.began)).collect();
        // All of them held their slots when the last of them was claimed, except those that were given up before.
        let last = at_once.iter().map(|run| run.claimed.1).max().unwrap_or(newest.claimed.1);
        at_once.retain(|run| !run.was_given_up_before(last));
        let Some(from) = at_once.iter().map(|run| run.claimed.0).max() else { continue };
        let most = allowed(from, last);
        if at_once.len() > most {
            wrong.push(format!("{} ran at once, and {most} may: {at_once:?}", at_once.len()));
        }
    }
    wrong
}
