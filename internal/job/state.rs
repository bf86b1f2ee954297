//! The life of a job, as one pure function.
//!
//! ```text
//!                                    retrying
//!                                     │    ▲
//!                               claim │    │ failed attempt
//!                                     ▼    │
//!  enqueue ─→ waiting ─── claim ───→ executing ──→ completed
//!              ▲  ▲                   │    │ │
//!              │  └─ interrupted, ────┘    │ └───→ failed ────┐
//!              │     snoozed               └─────→ cancelled ─┤
//!              │                                              │
//!              └───────────────── operator's retry ───────────┘
//! ```

use serde::{Deserialize, Serialize};

use super::Verdict;

/// State of a job. `waiting`, `retrying` and `executing` jobs are *owed* (unfinished); the others have *ended*.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Accepted and not yet started, or given back without using an attempt. Starts at its `execute_at`.
    Waiting,
    /// One attempt is open; its runner holds the lease and the token.
    Executing,
    /// An attempt failed and another is allowed. The job waits for its new `execute_at`.
    Retrying,
    /// The last attempt succeeded. Retained until its retention ends.
    Completed,
    /// No attempts left, or rejected: a dead letter. Retained until its retention ends; an operator may retry it.
    Failed,
    /// Stopped on request. Retained until its retention ends; an operator may retry it.
    Cancelled,
}
words!(State {
    Waiting => "waiting",
    Executing => "executing",
    Retrying => "retrying",
    Completed => "completed",
    Failed => "failed",
    Cancelled => "cancelled",
});

impl State {
    /// Return true if the job has ended. Only an operator's retry changes an end state.
    #[must_use]
    pub const fn is_end(self) -> bool {
        match self {
            Self::Waiting | Self::Executing | Self::Retrying => false,
            Self::Completed | Self::Failed | Self::Cancelled => true,
        }
    }
}

/// An input of the state machine of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateInput {
    /// A worker starts an attempt.
    Claim,
    /// The open attempt ends.
    Settle {
        /// Verdict of the attempt.
        verdict: Verdict,
        /// True if the job, including this attempt, has used up its `max_attempts`.
        spent: bool,
        /// True if a cancel was requested while the attempt ran.
        cancel_requested: bool,
    },
    /// The claim is undone: the handler of the open attempt was not started.
    Undo {
        /// True if an attempt of the job has counted before, so that the job waits for another one.
        tried: bool,
    },
    /// A client requests that the job stops.
    Cancel,
    /// A client requests that no attempt of the job starts any more. An attempt that runs is not stopped.
    CancelUnlessExecuting,
    /// An operator runs an ended job again.
    Retry,
    /// An operator makes a waiting job due now.
    RunNow,
    /// A client changes the due time or the priority of a waiting job.
    Change,
}

/// The error for an illegal move; nothing may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a job that is {state} does not accept this")]
pub struct Refused {
    /// The state of the job, which does not change.
    pub state: State,
}

/// Return the state after `event`, or refuse the move. This is the only place that knows the legal moves.
///
/// Cancelling an executing job leaves it executing: a stop is *requested*, and the settle of the attempt honours it.
///
/// # Errors
/// [`Refused`] with the unchanged state if the move is illegal.
pub const fn next(state: State, event: StateInput) -> Result<State, Refused> {
    use State::{Cancelled, Completed, Executing, Failed, Retrying, Waiting};
    let refused = Err(Refused { state });
    match (state, event) {
        (Waiting, StateInput::Claim) => Ok(Executing),
        (Waiting, StateInput::Settle { .. } | StateInput::Undo { .. }) => refused,
        (Waiting, StateInput::Cancel | StateInput::CancelUnlessExecuting) => Ok(Cancelled),
        (Waiting, StateInput::Retry) => refused,
        (Waiting, StateInput::RunNow) => Ok(Waiting),
        (Waiting, StateInput::Change) => Ok(Waiting),

        (Executing, StateInput::Claim) => refused,
        (Executing, StateInput::Settle { verdict, spent, cancel_requested }) => {
            Ok(settled(verdict, spent, cancel_requested))
        }
        (Executing, StateInput::Undo { tried }) => Ok(if tried { Retrying } else { Waiting }),
        (Executing, StateInput::Cancel) => Ok(Executing),
        (Executing, StateInput::CancelUnlessExecuting) => refused,
        (Executing, StateInput::Retry) => refused,
        (Executing, StateInput::RunNow) => refused,
        (Executing, StateInput::Change) => refused,

        (Retrying, StateInput::Claim) => Ok(Executing),
        (Retrying, StateInput::Settle { .. } | StateInput::Undo { .. }) => refused,
        (Retrying, StateInput::Cancel | StateInput::CancelUnlessExecuting) => Ok(Cancelled),
        (Retrying, StateInput::Retry) => refused,
        (Retrying, StateInput::RunNow) => Ok(Retrying),
        (Retrying, StateInput::Change) => Ok(Retrying),

        (Completed, StateInput::Claim) => refused,
        (Completed, StateInput::Settle { .. } | StateInput::Undo { .. }) => refused,
        (Completed, StateInput::Cancel | StateInput::CancelUnlessExecuting) => refused,
        // A success is not repeated by accident: a client that wants the work again enqueues a new job.
        (Completed, StateInput::Retry) => refused,
        (Completed, StateInput::RunNow) => refused,
        (Completed, StateInput::Change) => refused,

        (Failed, StateInput::Claim) => refused,
        (Failed, StateInput::Settle { .. } | StateInput::Undo { .. }) => refused,
        (Failed, StateInput::Cancel | StateInput::CancelUnlessExecuting) => refused,
        (Failed, StateInput::Retry) => Ok(Waiting),
        (Failed, StateInput::RunNow) => refused,
        (Failed, StateInput::Change) => refused,

        (Cancelled, StateInput::Claim) => refused,
        (Cancelled, StateInput::Settle { .. } | StateInput::Undo { .. }) => refused,
        (Cancelled, StateInput::Cancel | StateInput::CancelUnlessExecuting) => refused,
        (Cancelled, StateInput::Retry) => Ok(Waiting),
        (Cancelled, StateInput::RunNow) => refused,
        (Cancelled, StateInput::Change) => refused,
    }
}

/// Return the state of a job whose open attempt ended with `verdict`.
const fn settled(verdict: Verdict, spent: bool, cancel_requested: bool) -> State {
    match verdict {
        // Finished work stays completed, and work that can never succeed stays failed, also if a cancel came too late.
        Verdict::Succeeded => State::Completed,
        Verdict::Rejected | Verdict::Expired => State::Failed,
        Verdict::Cancelled => State::Cancelled,
        Verdict::Failed | Verdict::TimedOut | Verdict::Panicked | Verdict::Lost => {
            if cancel_requested {
                State::Cancelled
            } else if spent {
                State::Failed
            } else {
                State::Retrying
            }
        }
        Verdict::Interrupted | Verdict::Snoozed => {
            if cancel_requested {
                State::Cancelled
            } else {
                State::Waiting
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_event() -> Vec<StateInput> {
        let mut events = vec![
            StateInput::Claim,
            StateInput::Cancel,
            StateInput::CancelUnlessExecuting,
            StateInput::Retry,
            StateInput::RunNow,
            StateInput::Change,
            StateInput::Undo { tried: false },
            StateInput::Undo { tried: true },
        ];
        for verdict in Verdict::ALL {
            for (spent, cancel_requested) in [(false, false), (false, true), (true, false), (true, true)] {
                events.push(StateInput::Settle { verdict, spent, cancel_requested });
            }
        }
        events
    }

    #[test]
    fn the_end_is_the_end_but_for_an_operators_retry() {
        for state in State::ALL.into_iter().filter(|state| state.is_end()) {
            for event in every_event() {
                let moved = next(state, event);
                if event == StateInput::Retry && state != State::Completed {
                    assert_eq!(moved, Ok(State::Waiting));
                } else {
                    assert_eq!(moved, Err(Refused { state }), "{state} {event:?}");
                }
            }
        }
    }

    #[test]
    fn only_waiting_and_retrying_jobs_are_claimed() {
        for state in State::ALL {
            let claimable = matches!(state, State::Waiting | State::Retrying);
            assert_eq!(next(state, StateInput::Claim).is_ok(), claimable, "{state}");
            // Waiting and retrying jobs can be changed while no runner executes them, and keep their state.
            assert_eq!(next(state, StateInput::Change).ok(), claimable.then_some(state), "{state}");
            let cancelled = claimable.then_some(State::Cancelled);
            assert_eq!(next(state, StateInput::CancelUnlessExecuting).ok(), cancelled, "{state}");
        }
    }

    #[test]
    fn only_an_executing_job_is_settled_and_it_always_is() {
        for state in State::ALL {
            for event in every_event() {
                if let StateInput::Settle { .. } = event {
                    assert_eq!(next(state, event).is_ok(), state == State::Executing, "{state} {event:?}");
                }
            }
        }
    }

    #[test]
    fn only_the_claim_of_an_executing_job_is_undone_and_it_waits_as_before() {
        for state in State::ALL {
            for (tried, before) in [(false, State::Waiting), (true, State::Retrying)] {
                let undone = (state == State::Executing).then_some(before);
                assert_eq!(next(state, StateInput::Undo { tried }).ok(), undone, "{state} {tried}");
            }
        }
    }

    #[test]
    fn a_cancel_that_was_asked_for_is_honoured_unless_the_work_is_over() {
        for verdict in Verdict::ALL {
            let event = StateInput::Settle { verdict, spent: false, cancel_requested: true };
            let expected = match verdict {
                Verdict::Succeeded => State::Completed,
                Verdict::Rejected | Verdict::Expired => State::Failed,
                _ => State::Cancelled,
            };
            assert_eq!(next(State::Executing, event), Ok(expected), "{verdict}");
        }
    }

    #[test]
    fn a_spent_job_never_waits_again_except_when_no_attempt_was_burned() {
        for verdict in Verdict::ALL {
            let event = StateInput::Settle { verdict, spent: true, cancel_requested: false };
            let state = next(State::Executing, event).unwrap();
            // An expired job did not run, and never will.
            assert_eq!(state.is_end(), verdict.burns_attempt() || verdict == Verdict::Expired, "{verdict}");
        }
    }

    #[test]
    fn words_round_trip() {
        for state in State::ALL {
            assert_eq!(State::from_word(state.as_str()), Some(state));
            assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
        }
        for verdict in Verdict::ALL {
            assert_eq!(Verdict::from_word(verdict.as_str()), Some(verdict));
            assert_eq!(serde_json::to_value(verdict).unwrap(), verdict.as_str());
        }
        assert_eq!(State::from_word("running"), None);
    }
}
