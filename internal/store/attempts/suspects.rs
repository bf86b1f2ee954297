//! The end of a suspect's attempt when its process is known to be dead, without waiting for the lease.

use std::collections::HashMap;
use std::sync::Arc;

use async_recursion::async_recursion as boxed;

use crate::attempts::claim_batches::deferred_among;
use crate::attempts::lease::{Reaped, after_loss, own_policies};
use crate::attempts::settle::{decide, write_moves};
use crate::attempts::settlement::{Again, CheckpointUse, Settled, Settlement};
use crate::rows::order::lock_keys_of;
use crate::rows::owed::lock_held;
use crate::sql::clock::read_clock;
use crate::sql::connection::transact;
use crate::{Store, StoreError};
use tickr_job::{JobId, Name, RetryPolicy, RunnerId, State, Verdict};

/// The end of a suspect's process.
#[derive(Clone, Debug)]
pub struct Death {
    /// `lost` if the process died by itself, `interrupted` if the runner ended it.
    pub verdict: Verdict,
    /// A description of the death, for people.
    pub error: String,
    /// Backoffs by kind, for jobs without a backoff of their own.
    pub policies: Arc<HashMap<Name, RetryPolicy>>,
}

impl Store {
    /// End the attempt of this job if the process `child` still holds it, and mark the process as stopped. The caller
    /// has seen the process end, so nothing renews this lease or settles this attempt any more. Return nothing if the
    /// process does not hold the job, or has left it to another system. Then the process stays in the list of runners
    /// until its lease is over, because a claim from its last moment may still arrive.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn end_of_child(&self, job: JobId, child: RunnerId, death: Death) -> Result<Option<Reaped>, StoreError> {
        let shared = self.shared.clone();
        transact(&self.shared.pools.loops, "end the attempt of a dead process", move |conn, _| {
            let (shared, child, death) = (shared.clone(), child.clone(), death.clone());
            Box::pin(async move {
                let ordered = lock_keys_of(conn, &[job.uuid()]).await?;
                let held = lock_held(conn, std::iter::once(job)).await?;
                let ours = |owed: &&crate::rows::owed::Owed| owed.state == State::Executing && owed.runner == child;
                let Some(owed) = held.get(&job).filter(ours) else { return Ok(None) };
                if deferred_among(conn, vec![job.uuid()]).await?.contains(&(job.uuid(), owed.token.uuid())) {
                    return Ok(None);
                }
                let own = own_policies(conn, &[job]).await?;
                let now = read_clock(conn, &shared.clock).await?;
                let policy = own.get(&job).or_else(|| death.policies.get(&owed.kind)).cloned().unwrap_or_default();
                let again = if death.verdict == Verdict::Lost { after_loss(owed, policy) } else { Again::Now };
                let ended = Settlement {
                    id: job,
                    token: owed.token,
                    number: owed.attempt,
                    opened: None,
                    verdict: death.verdict,
                    error: Some(death.error),
                    exchange: None,
                    log: None,
                    result: None,
                    follow_ups: Vec::new(),
                    again,
                    call: None,
                    checkpoint: CheckpointUse::Unused,
                };
                let step = decide(0, &ended, owed, now)?;
                let step = [step];
                let written = write_moves(conn, &step, &ordered, now, &shared.clock, shared.lanes.any()).await?;
                let [step] = step;
                sqlx::query(
                    "UPDATE runners SET stopped_at = UTC_TIMESTAMP(6), busy = 0, slot_jobs = NULL \
                     WHERE id = ? AND stopped_at IS NULL",
                )
                .bind(child.as_str())
                .execute(&mut *conn)
                .await?;
                let settled = Settled::Done {
                    state: step.state,
                    execute_at: step.execute_at,
                    line: step.line(),
                    follow_ups: Vec::new(),
                    released: written.released,
                };
                let (kind, queue) = (owed.kind.clone(), owed.queue.clone());
                Ok(Some(Reaped { id: job, kind, queue, state: step.state, verdict: ended.verdict, settled }))
            })
        })
        .await
    }
}
