//! Attempts that other systems finish: reports, and verdicts that come later through the API.

use std::sync::Arc;

use async_recursion::async_recursion as boxed;

use crate::Broker;
use crate::remote_workers::parts_of;
use tickr_event::Event;
use tickr_handlers::{FollowUp, Problem, RemoteVerdict};
use tickr_job::{CallOutcome, JobId, ProgressReport, RetryPolicy, State, limits};
use tickr_store::{CheckpointUse, DeferredAttempt, FinishKeyDigest, Reported, Settled, Settlement, StoreError};

/// Outcome of a finish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finished {
    /// The attempt has this verdict now. The same call gave the same answer before, if it was repeated.
    Done {
        /// The job.
        id: JobId,
        /// State of the job.
        state: State,
    },
    /// The attempt had ended otherwise. Nothing was changed.
    Ended(JobId),
    /// No attempt has this finish key.
    Unknown,
    /// The follow-up jobs cannot be enqueued. Nothing was changed, and the attempt waits for a verdict.
    Refused(Vec<Problem>),
}

impl Broker {
    /// Record that the system with the finish key works on its attempt. Returns nothing if no attempt has this key, and
    /// the job without more if the attempt has ended.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn report_on(
        &self,
        key: FinishKeyDigest,
        progress: Option<ProgressReport>,
        checkpoint: Option<Arc<str>>,
    ) -> Result<Option<(JobId, Option<Reported>)>, StoreError> {
        let Some(attempt) = self.store.deferred_attempt(key).await? else { return Ok(None) };
        let reported = self.store.report_on(&attempt, progress, checkpoint).await?;
        Ok(Some((attempt.id, reported)))
    }

    /// Give the attempt with this finish key its verdict, and enqueue the jobs that follow its success in the same
    /// transaction. A repeated call with the same verdict has the same answer, and enqueues nothing more. `refused`
    /// says why the caller may not enqueue them; unless it is empty, none of them is enqueued.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn finish(
        &self,
        key: FinishKeyDigest,
        finish: RemoteVerdict,
        checkpoint: Option<Arc<str>>,
        follow_ups: Vec<FollowUp>,
        refused: Vec<Problem>,
    ) -> Result<Finished, StoreError> {
        let Some(attempt) = self.store.deferred_attempt(key).await? else { return Ok(Finished::Unknown) };
        let jobs = if refused.is_empty() {
            self.prepare_follow_ups(follow_ups, attempt.batch, attempt.trace.as_ref())
        } else {
            Err(refused)
        };
        let jobs = match jobs {
            Ok(jobs) => jobs,
            // The success may be a repetition, and rights and kinds may have changed since. An attempt that has ended
            // gets no other verdict, so this writes nothing, and its answer says how the attempt ended.
            Err(_) if !attempt.open => Vec::new(),
            Err(problems) => return Ok(Finished::Refused(problems)),
        };
        let mut settlement = self.settlement(&attempt, finish, checkpoint);
        settlement.follow_ups = jobs;
        let verdict = settlement.verdict;
        match self.store.settle_and_free(settlement, Arc::clone(&attempt.slots)).await? {
            Settled::NotOurs => Ok(Finished::Ended(attempt.id)),
            Settled::Done { state, execute_at, line, follow_ups, released } => {
                if attempt.open {
                    self.meters.record_settled(Some(&attempt.queue), verdict, state);
                    let kind = attempt.kind.to_string();
                    metrics::counter!("tickr_attempts_total", "kind" => kind, "verdict" => verdict.as_str())
                        .increment(1);
                }
                if let (Some(execute_at), Some((queue, priority))) = (execute_at, line) {
                    self.hint(attempt.id, &queue, priority, execute_at);
                }
                self.announce(&follow_ups);
                released.iter().for_each(|job| self.hint_released(job));
                self.events.emit(Event::Settled { id: attempt.id, verdict, state });
                Ok(Finished::Done { id: attempt.id, state })
            }
        }
    }

    fn settlement(&self, attempt: &DeferredAttempt, finish: RemoteVerdict, checkpoint: Option<Arc<str>>) -> Settlement {
        let policy = || -> RetryPolicy {
            let of_kind = || self.registry.find(attempt.kind.as_str()).map(|kind| kind.defaults().retry.clone());
            attempt.retry.clone().or_else(of_kind).unwrap_or_default()
        };
        let (verdict, result, error, again) = parts_of(finish, policy);
        Settlement {
            id: attempt.id,
            token: attempt.token,
            number: attempt.number,
            opened: None,
            verdict,
            error: error.map(limits::cut),
            exchange: None,
            // The runner stores what the handler wrote.
            log: None,
            result,
            follow_ups: Vec::new(),
            again,
            // The system has got its key, so its host answers. If the deferral counted the call, this does not count.
            call: Some(CallOutcome::Answered),
            checkpoint: checkpoint.map_or(CheckpointUse::Unused, CheckpointUse::Unsaved),
        }
    }
}
