//! The life of a job as segments of time, each with its cause: what it waited for, when it ran, when it backed off.

use serde::{Deserialize, Serialize};

use super::{State, Timestamp, Verdict};

/// The cause of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitCause {
    /// The job was not due yet.
    NotDue,
    /// A parent of the job had not ended.
    Parents,
    /// Jobs in front of it had the same order key.
    OrderKey,
    /// The queue was paused.
    QueuePaused,
    /// A limit by key had no room.
    Limit,
    /// No worker took the job: none was free, its queue was at its limit, or no runner served it.
    Worker,
    /// An attempt ran.
    Running,
    /// The backoff after a failed attempt.
    Backoff,
    /// The handler asked to run again later.
    Snoozed,
    /// The job had ended, until an operator retried it.
    Ended,
}
words!(WaitCause {
    NotDue => "not_due",
    Parents => "parents",
    OrderKey => "order_key",
    QueuePaused => "queue_paused",
    Limit => "limit",
    Worker => "worker",
    Running => "running",
    Backoff => "backoff",
    Snoozed => "snoozed",
    Ended => "ended",
});

/// A segment of a timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its beginning.
    pub from: Timestamp,
    /// Its end; the time of the reading if it goes on.
    pub to: Timestamp,
    /// True if it goes on.
    pub open: bool,
    /// Its cause.
    pub cause: WaitCause,
    /// The attempt that ran, or that follows the wait.
    pub attempt: u32,
    /// The limit that had no room.
    pub limit: Option<String>,
    /// The pause of the queue.
    pub pause: Option<QueuePause>,
}

impl Segment {
    /// Return whether the segment follows from other records, such as the pauses of the queue, instead of a record of
    /// the job itself.
    #[must_use]
    pub const fn is_derived(&self) -> bool {
        matches!(self.cause, WaitCause::QueuePaused | WaitCause::Worker)
    }
}

/// An attempt, as a timeline needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedAttempt {
    /// Number of the execution, from 1.
    pub number: u32,
    /// True if a runner executed it. A job that was cancelled or expired while it waited has a closing line.
    pub ran: bool,
    /// Time when it was due. A job that ended while it waited for its turn had none.
    pub due_at: Option<Timestamp>,
    /// Time when it was claimed.
    pub started_at: Timestamp,
    /// Time when it was settled; absent while it runs.
    pub finished_at: Option<Timestamp>,
    /// Verdict; absent while it runs.
    pub verdict: Option<Verdict>,
    /// The state in which it left the job, if it ended the job.
    pub end: Option<State>,
}

/// A time for which a job was parked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitHold {
    /// The attempt that was to begin.
    pub attempt: u32,
    /// Name of the limit.
    pub limit: String,
    /// Due time of the job apart from the limit.
    pub due_at: Timestamp,
    /// Time when it was parked.
    pub from: Timestamp,
    /// Time when it was let go; absent while it is parked.
    pub to: Option<Timestamp>,
}

/// A pause of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuePause {
    /// Time of the pause.
    pub from: Timestamp,
    /// Time of the resume; absent while the queue is paused.
    pub to: Option<Timestamp>,
    /// The actor that paused it.
    pub by: String,
    /// The reason that the actor gave.
    pub reason: Option<String>,
}

/// The facts that a timeline is made from.
#[derive(Clone, Debug)]
pub struct TimelineFacts {
    /// Time of the acceptance.
    pub created_at: Timestamp,
    /// Due time in the request.
    pub due_at: Timestamp,
    /// State of the job.
    pub state: State,
    /// Time of its end, if it has ended. The attempts may not reach that far.
    pub ended_at: Option<Timestamp>,
    /// Due time of the job, if it waits for its turn neither behind others nor for a limit.
    pub next_due: Option<Timestamp>,
    /// True if the job has parents.
    pub has_parents: bool,
    /// True if the job has an order key.
    pub has_order_key: bool,
    /// The attempts in their order, the open one included.
    pub attempts: Vec<TimedAttempt>,
    /// The times for which it was parked.
    pub holds: Vec<LimitHold>,
    /// The pauses of its queue.
    pub pauses: Vec<QueuePause>,
    /// Time of the reading.
    pub now: Timestamp,
}

/// Part of a wait that has a cause of its own. The first one that covers a moment explains it.
struct Cover<'f> {
    from: Timestamp,
    to: Timestamp,
    cause: WaitCause,
    limit: Option<&'f str>,
    pause: Option<&'f QueuePause>,
}

impl Cover<'_> {
    const fn plain(from: Timestamp, to: Timestamp, cause: WaitCause) -> Self {
        Self { from, to, cause, limit: None, pause: None }
    }
}

/// Cut the life of a job into segments, from its acceptance to its end or to the time of the reading.
#[must_use]
pub fn timeline(facts: &TimelineFacts) -> Vec<Segment> {
    let mut segments = Vec::new();
    let mut from = facts.created_at;
    let mut before: Option<&TimedAttempt> = None;
    for attempt in &facts.attempts {
        let begin = if attempt.ran { attempt.started_at } else { attempt.finished_at.unwrap_or(attempt.started_at) };
        wait(facts, (from, begin), before, (attempt.number, Some(attempt)), false, &mut segments);
        if attempt.ran {
            let to = attempt.finished_at.unwrap_or(facts.now);
            segments.push(Segment {
                from: begin,
                to: to.max(begin),
                open: attempt.finished_at.is_none(),
                cause: WaitCause::Running,
                attempt: attempt.number,
                limit: None,
                pause: None,
            });
        }
        from = attempt.finished_at.unwrap_or(facts.now).max(begin);
        before = Some(attempt);
    }
    if matches!(facts.state, State::Waiting | State::Retrying) {
        let number = before.map_or(0, |attempt| attempt.number) + 1;
        wait(facts, (from, facts.now), before, (number, None), true, &mut segments);
    }
    segments
}

/// Explain the wait before an attempt.
fn wait(
    facts: &TimelineFacts,
    (from, to): (Timestamp, Timestamp),
    before: Option<&TimedAttempt>,
    (number, attempt): (u32, Option<&TimedAttempt>),
    open: bool,
    segments: &mut Vec<Segment>,
) {
    if to <= from {
        return;
    }
    let holds = || facts.holds.iter().filter(move |hold| hold.attempt == number);
    // The due time that the ledger has, or that the job has now. A job that waits for its turn has none.
    let due = attempt.map_or(facts.next_due, |attempt| attempt.due_at);
    let apart_from_limit = holds().map(|hold| hold.due_at).min();
    let mut covers = Vec::new();
    match before {
        // A job that ended waits for an operator. The retry makes it due at once.
        Some(last) if last.end.is_some() => {
            let retried = apart_from_limit.or(due).unwrap_or(from);
            covers.push(Cover::plain(from, retried, WaitCause::Ended));
        }
        Some(last) => {
            let cause = match last.verdict {
                Some(Verdict::Snoozed) => WaitCause::Snoozed,
                Some(Verdict::Interrupted) => WaitCause::NotDue,
                _ => WaitCause::Backoff,
            };
            covers.push(Cover::plain(from, apart_from_limit.or(due).unwrap_or(from), cause));
        }
        None => {
            // A job behind others gets its due time when its turn comes, so the ledger has the end of that wait.
            let turn = if facts.has_parents {
                Some(WaitCause::Parents)
            } else if facts.has_order_key {
                Some(WaitCause::OrderKey)
            } else {
                None
            };
            let until = apart_from_limit.or(due);
            match turn {
                None => covers.push(Cover::plain(from, until.unwrap_or(facts.due_at), WaitCause::NotDue)),
                Some(cause) => {
                    let asked = until.map_or(facts.due_at, |until| until.min(facts.due_at));
                    covers.push(Cover::plain(from, asked, WaitCause::NotDue));
                    covers.push(Cover::plain(asked, until.unwrap_or(to), cause));
                }
            }
        }
    }
    for pause in &facts.pauses {
        let pause_to = pause.to.unwrap_or(facts.now);
        covers.push(Cover { pause: Some(pause), ..Cover::plain(pause.from, pause_to, WaitCause::QueuePaused) });
    }
    for hold in holds() {
        // A rate lets a job go a moment ahead of its turn.
        let until = hold.to.map_or(facts.now, |released| due.map_or(released, |due| released.max(due)));
        covers.push(Cover { limit: Some(&hold.limit), ..Cover::plain(hold.from, until, WaitCause::Limit) });
    }
    cut((from, to), &covers, number, open, segments);
}

/// Cut a wait at the ends of its covers. What none of them covers was a wait for a worker.
fn cut(
    (from, to): (Timestamp, Timestamp),
    covers: &[Cover<'_>],
    attempt: u32,
    open: bool,
    segments: &mut Vec<Segment>,
) {
    let mut ends: Vec<Timestamp> = covers.iter().flat_map(|cover| [cover.from, cover.to]).collect();
    ends.retain(|end| *end > from && *end < to);
    ends.push(to);
    ends.sort_unstable();
    ends.dedup();
    let first = segments.len();
    let mut begin = from;
    for end in ends {
        let cover = covers.iter().find(|cover| cover.from <= begin && cover.to >= end);
        let segment = Segment {
            from: begin,
            to: end,
            open: open && end == to,
            cause: cover.map_or(WaitCause::Worker, |cover| cover.cause),
            attempt,
            limit: cover.and_then(|cover| cover.limit).map(str::to_owned),
            pause: cover.and_then(|cover| cover.pause).cloned(),
        };
        begin = end;
        match segments[first..].last_mut() {
            Some(last) if (last.cause, &last.limit, &last.pause) == (segment.cause, &segment.limit, &segment.pause) => {
                (last.to, last.open) = (segment.to, segment.open);
            }
            _ => segments.push(segment),
        }
    }
}

#[cfg(test)]
mod tests {
    use chrono::{TimeDelta, TimeZone as _, Utc};

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Utc.timestamp_opt(1_790_000_000, 0).unwrap() + TimeDelta::seconds(seconds)
    }

    fn facts(now: i64) -> TimelineFacts {
        TimelineFacts {
            created_at: at(0),
            due_at: at(0),
            state: State::Completed,
            ended_at: None,
            next_due: None,
            has_parents: false,
            has_order_key: false,
            attempts: Vec::new(),
            holds: Vec::new(),
            pauses: Vec::new(),
            now: at(now),
        }
    }

    fn attempt(number: u32, (due, start, finish): (i64, i64, i64), verdict: Verdict) -> TimedAttempt {
        TimedAttempt {
            number,
            ran: true,
            due_at: Some(at(due)),
            started_at: at(start),
            finished_at: Some(at(finish)),
            verdict: Some(verdict),
            end: None,
        }
    }

    /// Return causes with their first and last seconds.
    fn causes(facts: &TimelineFacts) -> Vec<(WaitCause, i64, i64)> {
        let seconds = |moment: Timestamp| (moment - at(0)).num_seconds();
        timeline(facts).iter().map(|one| (one.cause, seconds(one.from), seconds(one.to))).collect()
    }

    #[test]
    fn a_job_waits_for_its_time_then_for_a_worker_and_backs_off_between_attempts() {
        let mut facts = facts(100);
        facts.due_at = at(10);
        facts.attempts = vec![attempt(1, (10, 12, 15), Verdict::Failed), attempt(2, (20, 21, 30), Verdict::Succeeded)];
        let wanted = [
            (WaitCause::NotDue, 0, 10),
            (WaitCause::Worker, 10, 12),
            (WaitCause::Running, 12, 15),
            (WaitCause::Backoff, 15, 20),
            (WaitCause::Worker, 20, 21),
            (WaitCause::Running, 21, 30),
        ];
        assert_eq!(causes(&facts), wanted);
        assert!(timeline(&facts).iter().all(|segment| !segment.open));
    }

    #[test]
    fn a_pause_and_a_limit_explain_the_wait_after_the_due_time_alone() {
        let mut facts = facts(100);
        facts.due_at = at(10);
        let pause =
            |from, to: Option<i64>| QueuePause { from: at(from), to: to.map(at), by: "ada".into(), reason: None };
        facts.pauses = vec![pause(5, Some(20)), pause(60, None)];
        let hold = LimitHold { attempt: 1, limit: "tenants".into(), due_at: at(10), from: at(22), to: Some(at(40)) };
        facts.holds = vec![hold];
        facts.attempts = vec![attempt(1, (10, 41, 50), Verdict::Failed)];
        facts.attempts[0].end = None;
        facts.state = State::Retrying;
        facts.next_due = Some(at(55));
        let wanted = [
            (WaitCause::NotDue, 0, 10),
            (WaitCause::QueuePaused, 10, 20),
            (WaitCause::Worker, 20, 22),
            (WaitCause::Limit, 22, 40),
            (WaitCause::Worker, 40, 41),
            (WaitCause::Running, 41, 50),
            (WaitCause::Backoff, 50, 55),
            (WaitCause::Worker, 55, 60),
            (WaitCause::QueuePaused, 60, 100),
        ];
        assert_eq!(causes(&facts), wanted);
        let segments = timeline(&facts);
        assert!(segments.last().is_some_and(|last| last.open && last.pause.is_some()));
        assert_eq!(segments[3].limit.as_deref(), Some("tenants"));
    }

    #[test]
    fn a_job_behind_others_waits_for_its_turn_until_the_due_time_that_it_got_then() {
        let mut facts = facts(100);
        facts.has_order_key = true;
        facts.attempts = vec![attempt(1, (30, 31, 40), Verdict::Succeeded)];
        let wanted = [(WaitCause::OrderKey, 0, 30), (WaitCause::Worker, 30, 31), (WaitCause::Running, 31, 40)];
        assert_eq!(causes(&facts), wanted);
        facts.has_parents = true;
        assert_eq!(causes(&facts)[0], (WaitCause::Parents, 0, 30));
        // While it is held it has no due time.
        facts.attempts.clear();
        facts.state = State::Waiting;
        facts.due_at = at(20);
        assert_eq!(causes(&facts), [(WaitCause::NotDue, 0, 20), (WaitCause::Parents, 20, 100)]);
    }

    #[test]
    fn a_retry_by_an_operator_and_an_open_attempt_are_segments_of_their_own() {
        let mut facts = facts(100);
        facts.state = State::Executing;
        facts.attempts = vec![attempt(1, (0, 1, 2), Verdict::Rejected), attempt(2, (50, 51, 60), Verdict::Lost)];
        facts.attempts[0].end = Some(State::Failed);
        (facts.attempts[1].finished_at, facts.attempts[1].verdict) = (None, None);
        let wanted = [
            (WaitCause::Worker, 0, 1),
            (WaitCause::Running, 1, 2),
            (WaitCause::Ended, 2, 50),
            (WaitCause::Worker, 50, 51),
            (WaitCause::Running, 51, 100),
        ];
        assert_eq!(causes(&facts), wanted);
        assert!(timeline(&facts)[4].open);
    }

    #[test]
    fn a_job_that_was_cancelled_while_it_waited_did_not_run() {
        let mut facts = facts(100);
        facts.due_at = at(60);
        facts.state = State::Cancelled;
        let mut closing = attempt(1, (60, 30, 30), Verdict::Cancelled);
        (closing.ran, closing.end) = (false, Some(State::Cancelled));
        facts.attempts = vec![closing];
        assert_eq!(causes(&facts), [(WaitCause::NotDue, 0, 30)]);
    }
}
