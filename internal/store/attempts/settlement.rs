//! What a runner reports about an attempt, and the answer of the store.

use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;

use crate::attempts::claim::{Claim, Claims, Opened};
use crate::rows::jobs::Accepted;
use crate::rows::owed::DueJob;
use tickr_job::{AttemptToken, CallOutcome, JobId, Name, NewJob, Priority, RetryPolicy, State, Timestamp, Verdict};

/// The result of an attempt, as the holder of its token reports it.
#[derive(Clone, Debug)]
pub struct Settlement {
    /// The id of the job.
    pub id: JobId,
    /// The token of the attempt, which allows the settlement.
    pub token: AttemptToken,
    /// The number of this execution, from the claim.
    pub number: u32,
    /// The content of the job at the claim, if it could be read.
    pub opened: Option<Opened>,
    /// The verdict of the attempt.
    pub verdict: Verdict,
    /// The reason, if it did not succeed.
    pub error: Option<String>,
    /// The exchange with another service, as JSON: the request and the answer. It is stored unless the job completes.
    pub exchange: Option<String>,
    /// The newest lines that were written during the attempt, at most
    /// [`MAX_LOG_BYTES`](tickr_job::limits::MAX_LOG_BYTES).
    pub log: Option<String>,
    /// The result that the handler returned. It is stored only if the job completes.
    pub result: Option<Box<RawValue>>,
    /// Jobs to insert if the job completes.
    pub follow_ups: Vec<NewJob>,
    /// Due time of the next attempt, if the job waits again.
    pub again: Again,
    /// How the call to the job's host ended, if it says something about the host.
    pub call: Option<CallOutcome>,
    /// The checkpoint of the attempt.
    pub checkpoint: CheckpointUse,
}

/// What an attempt has done to the checkpoint of its job.
#[derive(Clone, Default)]
pub enum CheckpointUse {
    /// It has saved none.
    #[default]
    Unused,
    /// The newest one is in the store.
    Saved,
    /// This JSON text is not in the store yet. It is saved with the verdict, unless the job completes.
    Unsaved(Arc<str>),
}

impl std::fmt::Debug for CheckpointUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Like a payload, the content must not appear in logs.
        f.write_str(match self {
            Self::Unused => "Unused",
            Self::Saved => "Saved",
            Self::Unsaved(_) => "Unsaved",
        })
    }
}

/// A settlement on its way to the store.
pub(crate) struct SettleRequest {
    pub(crate) settlement: Arc<Settlement>,
    /// Claims the next job of the order key or of the limit key in the same transaction, if it may.
    pub(crate) successor_for: Option<Arc<Claims>>,
}

/// The answer to a settlement.
pub(crate) struct SettleReply {
    pub(crate) settled: Settled,
    /// The claim of the next job of the order key or of the limit key.
    pub(crate) next: Option<Claim>,
    /// The links of the jobs that ended in the same batch of settlements: bits of `owed.links`.
    pub(crate) linked: u8,
    /// True if the slots of limits of the attempt were freed with its end, and the next jobs of their keys let go.
    pub(crate) freed: bool,
}

/// Due time of a job that waits again.
#[derive(Clone, Debug)]
pub enum Again {
    /// After the backoff of this policy. The random number, 0.0..=1.0, was drawn by the caller.
    Backoff(RetryPolicy, f64),
    /// After this delay.
    After(Duration),
    /// After this delay, on a runner of another version, because this one cannot read the job.
    ForAnother(Duration),
    /// At once.
    Now,
    /// At once, but only as often as snoozes are allowed. This is for attempts that were interrupted while their runner
    /// goes on, because that can happen again and again.
    NowWithinBounds,
    /// At once, and after a growing delay once [`MAX_SPARED`](crate::MAX_SPARED) attempts of the job were not used. No
    /// attempt is used in either case: the job did not reach its worker, or the worker left. The random number,
    /// 0.0..=1.0, was drawn by the caller.
    NowOrLater(f64),
    /// At once, as if it had not been claimed: its handler was not started. The ledger gets no row of the attempt.
    Unstarted,
    /// After this delay, as if it had not been claimed. The ledger gets no row of the attempt.
    UnstartedFor(Duration),
}

impl Settlement {
    /// Return whether the handler of the attempt was not started, so that the claim is undone.
    pub(crate) fn is_unstarted(&self) -> bool {
        matches!(self.again, Again::Unstarted | Again::UnstartedFor(_))
    }

    /// Return whether this settlement does not count against `max_attempts` but is bounded by
    /// [`MAX_SPARED`](crate::MAX_SPARED), so that the job cannot go on for ever.
    pub(crate) fn is_counted(&self) -> bool {
        self.verdict == Verdict::Snoozed
            || (self.verdict == Verdict::Interrupted && matches!(self.again, Again::NowWithinBounds))
    }

    /// Return whether the outcome of this settlement depends on how many attempts of the job were not used.
    pub(crate) fn is_bounded(&self) -> bool {
        self.is_counted() || matches!(self.again, Again::NowOrLater(_))
    }
}

/// Outcome of a settlement.
#[derive(Clone, Debug)]
pub enum Settled {
    /// The settlement was written.
    Done {
        /// The state of the job now.
        state: State,
        /// Due time of the next attempt, if the job waits again.
        execute_at: Option<Timestamp>,
        /// Queue and priority for the index, if the job waits again.
        line: Option<(Name, Priority)>,
        /// The follow-up jobs that were inserted with it.
        follow_ups: Vec<Accepted>,
        /// Jobs that are not held any more, because jobs in front of them with the same order key have ended. They may
        /// follow other jobs of the same batch of settlements.
        released: Vec<DueJob>,
    },
    /// The token does not hold the job any more, because the lease was taken away. Nothing was changed.
    NotOurs,
}

impl Settled {
    pub(crate) fn completed(released: Vec<DueJob>) -> Self {
        Self::Done { state: State::Completed, execute_at: None, line: None, follow_ups: Vec::new(), released }
    }
}
