//! What the evidence about one job proves. Pure.

use chrono::TimeDelta;

use super::Check;
use crate::job::{State, Timestamp, Verdict};
use crate::store::{ClockStep, JobEvidence, LedgerLine, MOST_LOSSES, MOST_SPARED};

/// One thing that is wrong with a job, and what shows it.
pub(super) type Fault = (Check, String);

/// What the snapshot as a whole says, for those checks that need it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment<'a> {
    /// The database's clock at the snapshot.
    pub(super) at: Timestamp,
    /// How long after its end a lease may still stand; absent while no runner lives that could end its attempt.
    pub(super) patience: Option<TimeDelta>,
    /// When the clock was set.
    pub(super) steps: &'a [ClockStep],
}

impl Moment<'_> {
    /// Can what happened first have been given the time `first`, and what came after it the time `then`?
    fn in_order(&self, first: Timestamp, then: Timestamp) -> bool {
        first <= then || self.steps.iter().any(|step| step.explains(first, then))
    }
}

/// How long before the end of `first` the other began, by a clock that may have been set back while no runner watched.
fn too_early(first: Timestamp, then: Timestamp) -> String {
    format!(
        "{} ms before; a clock of MySQL that was set back while no runner ran looks the same",
        (first - then).num_milliseconds()
    )
}

/// Everything that is wrong with one job.
pub(super) fn faults(job: &JobEvidence, moment: &Moment<'_>) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut wrong = |check: Check, what: String| faults.push((check, what));
    let last = job.lines.last();
    match (&job.asked, &job.owed) {
        (None, owed) => {
            wrong(
                Check::Strange,
                format!("{} lines, {}", job.lines.len(), if owed.is_some() { "owed" } else { "not owed" }),
            );
        }
        (Some(_), None) if last.is_none_or(|line| line.end.is_none()) => {
            wrong(Check::Lost, format!("{} lines, none of them last ended it", job.lines.len()));
        }
        (Some(asked), Some(owed)) => {
            if (&asked.kind, asked.max_attempts, asked.keyed) != (&owed.kind, owed.max_attempts, owed.keyed) {
                wrong(Check::Strange, "owed row does not say what was asked".into());
            }
            if !owed.key_held {
                wrong(Check::UniqueKey, "its key is not held as it should be".into());
            }
        }
        (Some(_), None) => {}
    }
    let failed = job.owed.is_none() && last.is_some_and(|line| line.end == Some(State::Failed));
    if failed != job.letter && job.asked.is_some() {
        wrong(
            Check::DeadLetter,
            format!(
                "{}, {} dead letter",
                if failed { "failed" } else { "not failed" },
                if job.letter { "with a" } else { "no" }
            ),
        );
    }
    if let Some(owed) = &job.owed {
        let executing = owed.state == State::Executing;
        let count = job.lines.len() as u32;
        if owed.leased != Some(executing) {
            wrong(Check::OpenAttempt, format!("{} with the wrong lease", owed.state));
        }
        let closed = job.lines.iter().any(|line| line.number >= owed.attempt);
        if executing && closed {
            wrong(Check::OpenAttempt, format!("attempt {} is open and has a line", owed.attempt));
        } else if owed.attempt != count + u32::from(executing) {
            wrong(Check::Contiguous, format!("{count} lines and {} executions", owed.attempt));
        }
        if executing {
            if owed.started_at < owed.execute_at {
                wrong(Check::Early, format!("started {}, due {}", owed.started_at, owed.execute_at));
            }
            if let Some(last) = last.filter(|last| !moment.in_order(last.finished_at, owed.started_at)) {
                let early = too_early(last.finished_at, owed.started_at);
                wrong(Check::Overlap, format!("attempt {} began before the last one ended, {early}", owed.attempt));
            }
            if moment.patience.is_some_and(|patience| owed.lease_until + patience < moment.at) {
                wrong(Check::Abandoned, format!("its lease ended {}", owed.lease_until));
            }
        }
        if last.is_some_and(|line| line.end == Some(State::Completed)) {
            wrong(Check::Final, "owed after it was completed".into());
        }
    }
    ledger(job, moment, &mut wrong);
    faults
}

/// What the lines say by themselves.
fn ledger(job: &JobEvidence, moment: &Moment<'_>, wrong: &mut impl FnMut(Check, String)) {
    let accepted = job.asked.as_ref().map(|asked| asked.created_at);
    let max_attempts = job.asked.as_ref().map(|asked| asked.max_attempts);
    // Counted anew in every life; an operator's retry begins another.
    let mut life = Life::default();
    for (place, line) in job.lines.iter().enumerate() {
        let number = line.number;
        if number as usize != place + 1 {
            wrong(Check::Contiguous, format!("line {} is numbered {number}", place + 1));
        }
        let before = place.checked_sub(1).map(|place| &job.lines[place]);
        if let Some(before) = before.filter(|before| !moment.in_order(before.finished_at, line.started_at)) {
            let early = too_early(before.finished_at, line.started_at);
            wrong(Check::Overlap, format!("attempt {number} began before the one before it ended, {early}"));
        }
        if line.finished_at < line.started_at {
            wrong(Check::Overlap, format!("attempt {number} ended before it began"));
        }
        if line.executed
            && (line.started_at < line.execute_at || accepted.is_some_and(|at| !moment.in_order(at, line.started_at)))
        {
            wrong(Check::Early, format!("attempt {number} started {}, due {}", line.started_at, line.execute_at));
        }
        if before.is_some_and(|before| before.end.is_some()) {
            life = Life::default();
        }
        life.count(line);
        if line.burned != life.burned {
            wrong(Check::Bounded, format!("line {number} says {} burned, its lines {}", line.burned, life.burned));
        }
        if max_attempts.is_some_and(|most| life.burned > most) {
            wrong(Check::Bounded, format!("attempt {number} burned more than allowed"));
        }
        let burned_out = max_attempts.is_some_and(|most| life.burned >= most);
        let spent = burned_out || life.losses >= MOST_LOSSES;
        let again = line.end.is_none() && (place + 1 < job.lines.len() || job.owed.is_some());
        if again && line.verdict.burns_attempt() && spent {
            wrong(Check::Bounded, format!("it went on after attempt {number}, which was its last"));
        }
        if life.losses > MOST_LOSSES || life.snoozes > MOST_SPARED {
            wrong(Check::Bounded, format!("{} losses in a row, {} snoozes", life.losses, life.snoozes));
        }
        if (line.verdict == Verdict::Succeeded) != (line.end == Some(State::Completed)) {
            wrong(Check::Completed, format!("attempt {number}: {} and {:?}", line.verdict, line.end));
        }
        if line.verdict == Verdict::Succeeded
            && job.lines[..place].iter().any(|line| line.verdict == Verdict::Succeeded)
        {
            wrong(Check::Completed, format!("attempt {number} succeeded again"));
        }
        if before.is_some_and(|before| before.end == Some(State::Completed)) {
            wrong(Check::Final, format!("attempt {number} after it was completed"));
        }
        let permanent = line.verdict == Verdict::Rejected;
        let may_be_spent = burned_out || life.losses_at_most >= MOST_LOSSES;
        if line.end == Some(State::Failed) && !permanent && !may_be_spent {
            wrong(
                Check::Failed,
                format!("failed after {} of {max_attempts:?} attempts, {}", life.burned, line.verdict),
            );
        }
        if line.end == Some(State::Cancelled) && line.cancel_requested_at.is_none() {
            wrong(Check::Cancelled, format!("nobody asked before attempt {number} ended"));
        }
    }
}

/// What one life of a job has used up so far.
#[derive(Debug, Default)]
struct Life {
    burned: u32,
    /// In a row, so many at the least.
    losses: u32,
    /// In a row, if each snooze was of a runner that could not read the job, which is no verdict of the job's own.
    losses_at_most: u32,
    snoozes: u32,
}

impl Life {
    fn count(&mut self, line: &LedgerLine) {
        // A line that only closes a waiting job executed nothing.
        if line.executed && line.verdict.burns_attempt() {
            self.burned += 1;
        }
        let count = |losses: u32| match line.verdict {
            Verdict::Lost => losses + 1,
            // No verdict of the job's own: see `decide` in store/settle.rs.
            Verdict::Interrupted => losses,
            _ => 0,
        };
        self.losses = count(self.losses);
        if line.verdict != Verdict::Snoozed {
            self.losses_at_most = count(self.losses_at_most);
        }
        self.snoozes += u32::from(line.verdict == Verdict::Snoozed);
    }
}
