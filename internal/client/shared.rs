//! Single enqueues that share a request to the API.
//!
//! A call that finds fewer than [`UNDER_WAY`] requests under way sends its job at once, alone. Otherwise the job waits
//! for company: the next request takes all jobs that wait. Each caller waits in its own future, and no task waits for
//! callers, so a future that is dropped holds up no other one.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::{Enqueued, Error};

/// Most requests under way while further jobs wait for company.
const UNDER_WAY: usize = 2;
/// Longest time that a job waits for company. A request that gets no answer holds the others up no longer than this.
const PATIENCE: Duration = Duration::from_millis(5);
/// Most jobs in one request.
const MAX_JOBS: usize = 500;
/// Most bytes of the jobs of one request, until the server refuses that many: half of the usual `body_limit`.
const MAX_BYTES: usize = 128 << 10;
/// A job that needs more than this part of a request is sent alone.
const SMALL_PART: usize = 8;

/// The jobs that wait for a request, and the requests under way.
#[derive(Debug)]
pub(super) struct SharedRequests {
    permits: Arc<Semaphore>,
    queue: Mutex<Queue>,
    max_bytes: AtomicUsize,
    patience: Duration,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<WaitingJob>,
    /// Number of jobs that have joined the queue since the start.
    joined: u64,
}

/// A job that waits for a request, as JSON.
#[derive(Debug)]
pub(super) struct WaitingJob {
    pub(super) text: Vec<u8>,
    answer: oneshot::Sender<Shared>,
}

/// Answer to a caller whose job waited.
#[derive(Debug)]
pub(super) enum Shared {
    /// The outcome of the request that carried the job.
    Told(Result<Enqueued, Error>),
    /// Nothing was written for this job. Its caller sends it in a request of its own, which this permit counts.
    Alone(Option<OwnedSemaphorePermit>),
}

/// The task that sent the job has ended with its runtime.
#[derive(Debug, thiserror::Error)]
#[error("the request was given up with the runtime that sent it")]
struct GivenUp;

/// The task that sent the job has not told its outcome: its runtime may stand still.
#[derive(Debug, thiserror::Error)]
#[error("the request that carried the job got no answer in time")]
struct NoAnswer;

impl Default for SharedRequests {
    fn default() -> Self {
        Self {
            permits: Arc::new(Semaphore::new(UNDER_WAY)),
            queue: Mutex::default(),
            max_bytes: AtomicUsize::new(MAX_BYTES),
            patience: PATIENCE,
        }
    }
}

impl SharedRequests {
    /// Return whether a job of this size may share a request.
    pub(super) fn may_share(&self, bytes: usize) -> bool {
        bytes <= self.max_bytes.load(Ordering::Relaxed) / SMALL_PART
    }

    /// Return the permit for a request that need not wait.
    pub(super) fn permit_at_once(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.permits).try_acquire_owned().ok()
    }

    /// Learn that the server refuses requests of this size.
    pub(super) fn is_too_large(&self, bytes: usize) {
        self.max_bytes.fetch_min(bytes / 2, Ordering::Relaxed);
    }

    /// Let a job wait for a request, and return its answer. `send` sends jobs together and tells each its outcome. It
    /// must not depend on the future of this caller.
    ///
    /// The request may be a task of another runtime, and its time limit stands still with that runtime. A thread that
    /// leaves its runtime alone must not hold up the callers of others. So this caller waits for `patience` at most, by
    /// its own runtime.
    pub(super) async fn wait(
        &self,
        text: Vec<u8>,
        patience: Duration,
        send: impl Fn(Vec<WaitingJob>, Option<OwnedSemaphorePermit>),
    ) -> Shared {
        let (number, answer) = self.join(text);
        let told = tokio::time::timeout(patience, self.answer(number, answer, send)).await;
        told.unwrap_or_else(|_| Shared::Told(Err(super::http::unavailable(NoAnswer))))
    }

    /// Send requests until the job with this number is in one, and return its answer.
    async fn answer(
        &self,
        number: u64,
        mut answer: oneshot::Receiver<Shared>,
        send: impl Fn(Vec<WaitingJob>, Option<OwnedSemaphorePermit>),
    ) -> Shared {
        loop {
            let permit = tokio::select! {
                biased;
                told = &mut answer => return read(told),
                permit = self.permit() => permit,
            };
            let (taken, still_waits) = self.take(number);
            match <[WaitingJob; 1]>::try_from(taken) {
                Ok([alone]) => alone.tell(Shared::Alone(permit)),
                Err(none) if none.is_empty() => drop(permit),
                Err(several) => send(several, permit),
            }
            if !still_waits {
                return read(answer.await);
            }
        }
    }

    /// Wait for the permit for a request. `None`: the job has waited long enough, and goes without one.
    async fn permit(&self) -> Option<OwnedSemaphorePermit> {
        let permit = tokio::time::timeout(self.patience, Arc::clone(&self.permits).acquire_owned()).await;
        permit.ok().and_then(Result::ok)
    }

    fn join(&self, text: Vec<u8>) -> (u64, oneshot::Receiver<Shared>) {
        let (answer, told) = oneshot::channel();
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.waiting.push_back(WaitingJob { text, answer });
        queue.joined += 1;
        (queue.joined, told)
    }

    /// Take jobs for one request, in the order in which they joined, if the job with this number waits. Return whether
    /// it still waits then. Jobs whose callers have gone are dropped: they were never sent.
    fn take(&self, number: u64) -> (Vec<WaitingJob>, bool) {
        let max_bytes = self.max_bytes.load(Ordering::Relaxed);
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if !queue.holds(number) {
            return (Vec::new(), false);
        }
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while let Some(next) = queue.waiting.front() {
            let is_wanted = !next.answer.is_closed();
            if is_wanted {
                bytes += next.text.len() + 1;
                if taken.len() == MAX_JOBS || (bytes > max_bytes && !taken.is_empty()) {
                    break;
                }
            }
            taken.extend(queue.waiting.pop_front().filter(|_| is_wanted));
        }
        let still_waits = queue.holds(number);
        (taken, still_waits)
    }
}

impl Queue {
    /// Return whether the job that joined with this number has not been taken. Jobs are taken in their order.
    fn holds(&self, number: u64) -> bool {
        number > self.joined - self.waiting.len() as u64
    }
}

impl WaitingJob {
    /// Answer the caller. A caller that has gone needs no answer.
    pub(super) fn tell(self, answer: Shared) {
        let _ = self.answer.send(answer);
    }
}

fn read(told: Result<Shared, oneshot::error::RecvError>) -> Shared {
    told.unwrap_or_else(|_| Shared::Told(Err(super::http::unavailable(GivenUp))))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::task::JoinHandle;

    use super::*;
    use tickr_job::JobId;

    type Sent = (Vec<WaitingJob>, Option<OwnedSemaphorePermit>);

    /// Requests in which a job waits for company as long as the test needs.
    fn patient() -> Arc<SharedRequests> {
        Arc::new(SharedRequests { patience: Duration::from_secs(60), ..SharedRequests::default() })
    }

    /// A caller that enqueues `text`. The requests go to `requests`.
    fn caller(shared: &Arc<SharedRequests>, text: &str, requests: &mpsc::Sender<Sent>) -> JoinHandle<Shared> {
        caller_for(Duration::from_secs(60), shared, text, requests)
    }

    /// A caller that waits for its answer for this time at most.
    fn caller_for(
        patience: Duration,
        shared: &Arc<SharedRequests>,
        text: &str,
        requests: &mpsc::Sender<Sent>,
    ) -> JoinHandle<Shared> {
        let (shared, text, requests) = (Arc::clone(shared), text.as_bytes().to_vec(), requests.clone());
        let send = move |jobs, permit| requests.send((jobs, permit)).unwrap();
        tokio::spawn(async move { shared.wait(text, patience, send).await })
    }

    /// Let the callers run until this many jobs wait.
    async fn until_waiting(shared: &SharedRequests, jobs: usize) {
        let waits = async {
            while shared.queue.lock().unwrap().waiting.len() != jobs {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), waits).await.expect("the callers run");
    }

    fn texts(jobs: &[WaitingJob]) -> Vec<&str> {
        jobs.iter().map(|job| std::str::from_utf8(&job.text).unwrap()).collect()
    }

    fn accepted(id: JobId) -> Shared {
        Shared::Told(Ok(Enqueued { id, existing: false, repeated: false }))
    }

    #[tokio::test]
    async fn jobs_that_wait_go_together_and_each_caller_gets_its_own_answer() {
        let shared = patient();
        let (requests, sent) = mpsc::channel();
        let (first, second) = (shared.permit_at_once().unwrap(), shared.permit_at_once().unwrap());
        assert!(shared.permit_at_once().is_none());
        let mut callers = Vec::new();
        for text in ["a", "b", "c"] {
            callers.push(caller(&shared, text, &requests));
            until_waiting(&shared, callers.len()).await;
        }
        drop(first);
        until_waiting(&shared, 0).await;
        let (jobs, permit) = sent.try_recv().unwrap();
        assert_eq!(texts(&jobs), ["a", "b", "c"]);
        assert!(permit.is_some() && shared.permit_at_once().is_none(), "the request is one of those under way");
        let ids: Vec<JobId> = jobs.iter().map(|_| JobId::new()).collect();
        for (job, id) in jobs.into_iter().zip(&ids) {
            job.tell(accepted(*id));
        }
        for (caller, id) in callers.into_iter().zip(ids) {
            let told = caller.await.unwrap();
            assert!(matches!(told, Shared::Told(Ok(Enqueued { id: told, .. })) if told == id), "{told:?}");
        }
        drop(second);
    }

    #[tokio::test]
    async fn a_job_without_company_is_left_to_its_caller() {
        let shared = patient();
        let (requests, sent) = mpsc::channel();
        let (first, _second) = (shared.permit_at_once().unwrap(), shared.permit_at_once().unwrap());
        let alone = caller(&shared, "a", &requests);
        until_waiting(&shared, 1).await;
        drop(first);
        assert!(matches!(alone.await.unwrap(), Shared::Alone(Some(_))));
        assert!(sent.try_recv().is_err());
    }

    #[tokio::test]
    async fn a_job_waits_for_requests_without_an_answer_no_longer_than_its_patience() {
        let shared = Arc::new(SharedRequests::default());
        let (requests, _sent) = mpsc::channel();
        let _stuck = (shared.permit_at_once().unwrap(), shared.permit_at_once().unwrap());
        let told = tokio::time::timeout(Duration::from_secs(10), caller(&shared, "a", &requests)).await;
        let told = told.expect("the job goes although no request ends").unwrap();
        assert!(matches!(told, Shared::Alone(None)), "{told:?}");
    }

    #[tokio::test]
    async fn a_caller_that_goes_away_takes_only_its_own_job_with_it() {
        let shared = patient();
        let (requests, sent) = mpsc::channel();
        let (first, _second) = (shared.permit_at_once().unwrap(), shared.permit_at_once().unwrap());
        let mut callers = Vec::new();
        for text in ["leaves", "b", "c"] {
            callers.push(caller(&shared, text, &requests));
            until_waiting(&shared, callers.len()).await;
        }
        let leaves = callers.remove(0);
        leaves.abort();
        assert!(leaves.await.unwrap_err().is_cancelled());
        drop(first);
        until_waiting(&shared, 0).await;
        let (jobs, _permit) = sent.try_recv().unwrap();
        assert_eq!(texts(&jobs), ["b", "c"]);
        // A request that ends without an answer leaves no caller behind.
        drop(jobs);
        for caller in callers {
            let told = caller.await.unwrap();
            assert!(matches!(&told, Shared::Told(Err(error)) if error.is_transient()), "{told:?}");
        }
    }

    #[tokio::test]
    async fn a_caller_waits_no_longer_than_its_call_for_a_request_whose_runtime_stands_still() {
        let shared = patient();
        let (requests, sent) = mpsc::channel();
        let (first, _second) = (shared.permit_at_once().unwrap(), shared.permit_at_once().unwrap());
        let mut callers = Vec::new();
        for text in ["a", "b"] {
            callers.push(caller_for(Duration::from_secs(2), &shared, text, &requests));
            until_waiting(&shared, callers.len()).await;
        }
        drop(first);
        until_waiting(&shared, 0).await;
        // The request is under way, and its task does not go on.
        let (jobs, _permit) = sent.try_recv().unwrap();
        assert_eq!(texts(&jobs), ["a", "b"]);
        for caller in callers {
            let told = tokio::time::timeout(Duration::from_secs(30), caller).await.expect("the call ends").unwrap();
            assert!(matches!(&told, Shared::Told(Err(error)) if error.is_transient()), "{told:?}");
        }
    }

    #[tokio::test]
    async fn a_request_has_a_limit_of_jobs_and_of_bytes_and_leaves_the_rest_to_the_next_one() {
        let shared = patient();
        shared.is_too_large(8_192);
        assert!(shared.may_share(512) && !shared.may_share(513));
        let (requests, sent) = mpsc::channel();
        let (first, second) = (shared.permit_at_once().unwrap(), shared.permit_at_once().unwrap());
        let text = "x".repeat(500);
        let callers: Vec<_> = (0..12).map(|_| caller(&shared, &text, &requests)).collect();
        until_waiting(&shared, 12).await;
        drop((first, second));
        until_waiting(&shared, 0).await;
        let counts: Vec<usize> = sent.try_iter().map(|(jobs, _)| jobs.len()).collect();
        assert_eq!(counts, [8, 4]);
        for caller in callers {
            caller.await.unwrap();
        }

        let shared = patient();
        let _callers: Vec<_> = (0..MAX_JOBS + 2).map(|_| shared.join(b"{}".to_vec())).collect();
        let (taken, still_waits) = shared.take(MAX_JOBS as u64 + 1);
        assert_eq!((taken.len(), still_waits), (MAX_JOBS, true));
        assert_eq!(shared.take(1).0.len(), 0, "the first job has been taken");
        assert_eq!(shared.take(MAX_JOBS as u64 + 2).0.len(), 2);
    }
}
