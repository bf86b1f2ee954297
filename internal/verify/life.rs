//! The conclusions from the evidence about one job. Pure functions.

use chrono::TimeDelta;

use super::Check;
use tickr_job::{State, Timestamp, Verdict};
use tickr_store::{ClockStep, JobEvidence, LedgerRow, MAX_LOSSES, MAX_SPARED};

/// One fault of a job, with its evidence.
pub(super) type Fault = (Check, String);

/// The facts about the snapshot as a whole that some checks need.
#[derive(Clone, Copy, Debug)]
pub(super) struct SnapshotFacts<'a> {
    /// Time of the snapshot, by the database's clock.
    pub(super) at: Timestamp,
    /// Time after its expiry for which a lease may remain; absent while no living runner could end its attempt.
    pub(super) patience: Option<TimeDelta>,
    /// The same for an attempt whose runner is gone. A remote worker with a long lease that lives has no part in that.
    pub(super) patience_with_departed: Option<TimeDelta>,
    /// Recorded steps of the clock.
    pub(super) steps: &'a [ClockStep],
}

impl SnapshotFacts<'_> {
    /// Return true if an event with the time `first` can have happened before one with the time `then`.
    pub(super) fn in_order(&self, first: Timestamp, then: Timestamp) -> bool {
        first <= then || self.steps.iter().any(|step| step.can_explain(first, then))
    }
}

/// Describe how much earlier `then` is than the end `first`. A clock that was set back while no runner watched looks
/// the same.
fn too_early(first: Timestamp, then: Timestamp) -> String {
    format!(
        "{} ms before; a clock of MySQL that was set back while no runner ran looks the same",
        (first - then).num_milliseconds()
    )
}

/// Return all faults of one job.
pub(super) fn faults(job: &JobEvidence, moment: &SnapshotFacts<'_>) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut wrong = |check: Check, what: String| faults.push((check, what));
    let last = job.lines.last();
    match (&job.row, &job.owed) {
        (None, owed) => {
            wrong(
                Check::Strange,
                format!(
                    "{} attempt rows, {}",
                    job.lines.len(),
                    if owed.is_some() { "unfinished" } else { "not unfinished" }
                ),
            );
        }
        (Some(_), None) if last.is_none_or(|line| line.end.is_none()) => {
            wrong(Check::Lost, format!("{} attempt rows, and the last one does not end it", job.lines.len()));
        }
        (Some(asked), Some(owed)) => {
            if (&asked.kind, asked.max_attempts, asked.keyed) != (&owed.kind, owed.max_attempts, owed.keyed) {
                wrong(Check::Strange, "the owed row differs from the requested job".into());
            }
            if !owed.key_held {
                wrong(Check::UniqueKey, "its unique key is not held correctly".into());
            }
            if !owed.placed && owed.parked {
                wrong(Check::Limit, "it is parked, and waits for no limit".into());
            } else if !owed.placed && owed.blocked {
                wrong(Check::Parents, "it waits for parents, and blocked_jobs has no row of it".into());
            } else if !owed.placed {
                wrong(Check::Order, "it is held or has an order key, and no place with a key is open for it".into());
            }
        }
        (Some(_), None) => {}
    }
    let failed = job.owed.is_none() && last.is_some_and(|line| line.end == Some(State::Failed));
    if failed != job.dead_letter && job.row.is_some() {
        wrong(
            Check::DeadLetter,
            format!(
                "{}, {} dead letter",
                if failed { "failed" } else { "not failed" },
                if job.dead_letter { "with a" } else { "no" }
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
            wrong(Check::OpenAttempt, format!("attempt {} is open and already has a row", owed.attempt));
        } else if owed.attempt != count + u32::from(executing) {
            wrong(Check::Contiguous, format!("{count} attempt rows and {} executions", owed.attempt));
        }
        if executing {
            if owed.started_at < owed.execute_at {
                wrong(Check::Early, format!("started {}, due {}", owed.started_at, owed.execute_at));
            }
            if let Some(last) = last.filter(|last| !moment.in_order(last.finished_at, owed.started_at)) {
                let early = too_early(last.finished_at, owed.started_at);
                wrong(Check::Overlap, format!("attempt {} began before the last one ended, {early}", owed.attempt));
            }
            let is_over =
                |patience: Option<TimeDelta>| patience.is_some_and(|time| owed.lease_until + time < moment.at);
            if owed.departed {
                // Reapers look for these more rarely than for those of runners that live.
                if is_over(moment.patience_with_departed) {
                    wrong(Check::Departed, format!("its runner is gone, and its lease ended {}", owed.lease_until));
                }
            } else if is_over(moment.patience) {
                wrong(Check::Abandoned, format!("its lease ended {}", owed.lease_until));
            }
        }
        if last.is_some_and(|line| line.end == Some(State::Completed)) {
            wrong(Check::Final, "unfinished after it was completed".into());
        }
    }
    ledger(job, moment, &mut wrong);
    faults
}

/// Check the attempt rows by themselves.
fn ledger(job: &JobEvidence, moment: &SnapshotFacts<'_>, wrong: &mut impl FnMut(Check, String)) {
    let accepted = job.row.as_ref().map(|asked| asked.created_at);
    let max_attempts = job.row.as_ref().map(|asked| asked.max_attempts);
    // Counted separately for each life of the job. An operator's retry begins a new life.
    let mut life = Life::default();
    for (place, line) in job.lines.iter().enumerate() {
        let number = line.number;
        if number as usize != place + 1 {
            wrong(Check::Contiguous, format!("attempt row {} has the number {number}", place + 1));
        }
        let before = place.checked_sub(1).map(|place| &job.lines[place]);
        if let Some(before) = before.filter(|before| !moment.in_order(before.finished_at, line.started_at)) {
            let early = too_early(before.finished_at, line.started_at);
            wrong(Check::Overlap, format!("attempt {number} began before the previous one ended, {early}"));
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
            wrong(Check::Bounded, format!("row {number} says {} attempts used, its rows {}", line.burned, life.burned));
        }
        if max_attempts.is_some_and(|most| life.burned > most) {
            wrong(Check::Bounded, format!("attempt {number} used more attempts than allowed"));
        }
        let burned_out = max_attempts.is_some_and(|most| life.burned >= most);
        let spent = burned_out || life.losses >= MAX_LOSSES;
        let again = line.end.is_none() && (place + 1 < job.lines.len() || job.owed.is_some());
        if again && line.verdict.burns_attempt() && spent {
            wrong(Check::Bounded, format!("the job continued after attempt {number}, which was its last"));
        }
        if life.losses > MAX_LOSSES || life.snoozes > MAX_SPARED {
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
        let permanent = matches!(line.verdict, Verdict::Rejected | Verdict::Expired);
        let may_be_spent = burned_out || life.losses_at_most >= MAX_LOSSES;
        if line.end == Some(State::Failed) && !permanent && !may_be_spent {
            wrong(
                Check::Failed,
                format!("failed after {} of {max_attempts:?} attempts, {}", life.burned, line.verdict),
            );
        }
        if line.end == Some(State::Cancelled) && line.cancel_requested_at.is_none() {
            wrong(Check::Cancelled, format!("no cancel was requested before attempt {number} ended"));
        }
    }
}

/// The counts of one life of a job so far.
#[derive(Debug, Default)]
struct Life {
    burned: u32,
    /// Losses in a row, at least.
    losses: u32,
    /// Losses in a row, at most: if each snooze came from a runner that could not read the job, which is not a verdict
    /// of the job itself.
    losses_at_most: u32,
    snoozes: u32,
}

impl Life {
    fn count(&mut self, line: &LedgerRow) {
        // A row that only closes a waiting job executed nothing.
        if line.executed && line.verdict.burns_attempt() {
            self.burned += 1;
        }
        let count = |losses: u32| match line.verdict {
            Verdict::Lost => losses + 1,
            // Not a verdict of the job itself: see `decide` in store/attempts/settle.rs.
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

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use tickr_job::JobId;
    use tickr_store::OwedRow;

    use super::*;

    #[test]
    fn an_attempt_of_a_departed_worker_has_the_longer_time_of_the_reapers_that_look_for_it() {
        let at = DateTime::UNIX_EPOCH;
        let (patience, longer) = (TimeDelta::seconds(20), TimeDelta::seconds(25));
        let moment = SnapshotFacts { at, patience: Some(patience), patience_with_departed: Some(longer), steps: &[] };
        let found = |departed: bool, ended_ago_s: i64| {
            let owed = OwedRow {
                kind: "noop".parse().unwrap(),
                max_attempts: 5,
                keyed: false,
                key_held: true,
                placed: true,
                parked: false,
                blocked: false,
                state: State::Executing,
                execute_at: at - TimeDelta::minutes(5),
                attempt: 1,
                leased: Some(true),
                started_at: at - TimeDelta::minutes(5),
                lease_until: at - TimeDelta::seconds(ended_ago_s),
                departed,
            };
            let job =
                JobEvidence { id: JobId::new(), row: None, owed: Some(owed), lines: Vec::new(), dead_letter: false };
            let checks = faults(&job, &moment).into_iter().map(|(check, _)| check);
            checks.filter(|check| matches!(check, Check::Departed | Check::Abandoned)).collect::<Vec<_>>()
        };
        assert_eq!([found(false, 19), found(true, 19), found(true, 22)], [vec![], vec![], vec![]]);
        assert_eq!(found(false, 22), [Check::Abandoned]);
        assert_eq!(found(true, 26), [Check::Departed]);
    }
}
