//! Jobs that this binary cannot read. They are given back while another living runner may be able to read them, and
//! this runner skips them afterwards.
//!
//! During a deploy, two versions of a payload type are at work. A payload that the newer API accepts may be claimed by
//! an older runner, and the other way round for a field that the newer type has dropped. Such an attempt ends as
//! *snoozed*, which uses no attempt. Its error names the edition of the type that could not read the job, so each
//! edition tries a job once. When every living edition has tried, the job fails, and its error says so.
//!
//! A job that was given back, by this runner or by a process that it started for a suspect, is not claimed by this
//! runner again while another edition lives. Its id goes back to the index, with a pause that grows, until another
//! runner pops it.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use chrono::TimeDelta;
use serde::{Deserialize, Serialize};

use super::EngineState;
use tickr_handlers::{Failure, Registered};
use tickr_job::{Edition, JobId, Name, Priority};
use tickr_store::{Reader, Settled, UNREAD};

/// Pause after a job was given back for the first time. It doubles with every eighth time.
const FIRST_PAUSE: Duration = Duration::from_millis(300);
/// Longest delay of such a job in MySQL, during which no runner starts it. A job that snoozes too often fails; with
/// these pauses that takes at least three quarters of an hour.
const MAX_REST: Duration = Duration::from_secs(60);
/// Longest time for which this runner hides the id in the index. It is hidden from the other runners for as long.
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// Most jobs that are remembered and skipped. Further jobs are claimed and given back again.
const MAX_KNOWN: usize = 16_384;
/// Longest age of the list of living runners when a job is put off. The list is read again before a job fails because
/// no runner can read it.
const STALE: Duration = Duration::from_secs(2);
/// Time between two checks whether a skipped job still waits.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// The part of a job that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum UnreadPart {
    /// The payload. A runner with another version of the kind's type may read it.
    Payload,
    /// The stored options of the job. A runner of another tickr version may read them.
    Options,
}

/// A claimed job that this binary cannot read.
pub(super) struct UnreadJob<'a> {
    pub(super) id: JobId,
    pub(super) kind: &'a Name,
    pub(super) queue: &'a Name,
    /// Number of this attempt.
    pub(super) number: u32,
    pub(super) part: UnreadPart,
    /// Error of the parser.
    pub(super) why: &'a str,
}

/// Decision about its attempt.
pub(super) struct UnreadDecision {
    pub(super) failure: Failure,
    /// To be remembered once the attempt is settled, if the job is given back.
    pub(super) given_back: Option<GivenBack>,
}

/// A job that was given back, with what this runner must know when it pops the job again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct GivenBack {
    kind: Name,
    part: UnreadPart,
    /// Editions that could not read it.
    refused: BTreeSet<Edition>,
}

struct LeftJob {
    job: GivenBack,
    queue: Name,
    priority: Priority,
    skipped: u32,
    looked: Instant,
    rests_until: Instant,
}

/// One decision to put a job off.
struct Skip {
    /// It is time to check whether the job still waits.
    look: bool,
    pause: Duration,
    queue: Name,
    priority: Priority,
}

/// The living runners, and a moment before they were read.
type Readers = Option<(Instant, Arc<Vec<Reader>>)>;

/// The jobs that this runner leaves to other runners.
#[derive(Default)]
pub(super) struct Unread {
    left: Mutex<HashMap<JobId, LeftJob>>,
    /// Number of these jobs. It spares the ordinary claim a lock.
    count: AtomicUsize,
    readers: tokio::sync::Mutex<Readers>,
}

impl Unread {
    fn lock(&self) -> MutexGuard<'_, HashMap<JobId, LeftJob>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Skip a job from now on, if its settlement put it back into a lane. Otherwise skip it no longer.
    pub(super) fn remember(&self, id: JobId, job: GivenBack, settled: Option<&Settled>) {
        match settled {
            Some(Settled::Done { line: Some((queue, priority)), .. }) => {
                self.leave_to_others(id, job, queue.clone(), *priority);
            }
            // The settlement of an earlier run, whose answer was lost, names no lane.
            Some(Settled::Done { state, .. }) if !state.is_end() => {}
            Some(Settled::Done { .. } | Settled::NotOurs) | None => self.forget(id),
        }
    }

    /// Skip a job from now on that waits again, or is about to: once its settlement is committed, any runner may offer it
    /// to this one before the answer comes.
    pub(super) fn leave_to_others(&self, id: JobId, job: GivenBack, queue: Name, priority: Priority) {
        let mut left = self.lock();
        if left.len() < MAX_KNOWN || left.contains_key(&id) {
            let now = Instant::now();
            left.insert(id, LeftJob { job, queue, priority, skipped: 0, looked: now, rests_until: now + FIRST_PAUSE });
            self.count.store(left.len(), Ordering::Relaxed);
        }
    }

    /// Take the record of a job that this process gave back, for the runner that started the process and will pop the
    /// job again.
    pub(super) fn given_back(&self, id: JobId) -> Option<GivenBack> {
        self.lock().remove(&id).map(|left| left.job)
    }

    /// Return whether this job was put off a moment ago, so that there is no point in taking it.
    pub(super) fn is_resting(&self, id: JobId) -> bool {
        self.count.load(Ordering::Relaxed) > 0
            && self.lock().get(&id).is_some_and(|known| Instant::now() < known.rests_until)
    }

    /// Put off a job that was popped here and that another runner may be able to read. Return false when the job should
    /// be claimed: it is not known here, or no runner is left that might read it, and this one has to fail it.
    pub(super) async fn postpone(&self, shared: &EngineState, id: JobId) -> bool {
        if self.count.load(Ordering::Relaxed) == 0 || !self.lock().contains_key(&id) {
            return false;
        }
        let readers = self.readers_since(shared, a_moment_ago()).await;
        let Some(skip) = self.skip(id, readers.as_ref().map(|readers| readers.as_slice())) else { return false };
        // The job may have ended long ago, and be popped only because it is put off again and again.
        if skip.look && shared.store.still_waiting(vec![id]).await.is_ok_and(|waiting| !waiting.contains(&id)) {
            self.forget(id);
        } else {
            let due = shared.store.clock().now() + TimeDelta::from_std(skip.pause).unwrap_or_default();
            shared.broker.hint(id, &skip.queue, skip.priority, due);
        }
        true
    }

    /// Decide how to put a job off. None when no runner may be able to read it; then it is forgotten.
    fn skip(&self, id: JobId, readers: Option<&[Reader]>) -> Option<Skip> {
        let mut left = self.lock();
        let known = left.get_mut(&id)?;
        let LeftJob { job, queue, priority, .. } = &known;
        let (queue, priority) = (queue.clone(), *priority);
        let may = |reader: &Reader| may_read(reader, job.part, &job.kind, &queue, &job.refused);
        if !readers.is_none_or(|readers| readers.iter().any(may)) {
            left.remove(&id);
            self.count.store(left.len(), Ordering::Relaxed);
            return None;
        }
        known.skipped = known.skipped.saturating_add(1);
        let look = known.looked.elapsed() >= LOOK_AGAIN;
        if look {
            known.looked = Instant::now();
        }
        let pause = growing_pause(known.skipped).min(MAX_PAUSE);
        known.rests_until = Instant::now() + pause;
        Some(Skip { look, pause, queue, priority })
    }

    fn forget(&self, id: JobId) {
        let mut left = self.lock();
        left.remove(&id);
        self.count.store(left.len(), Ordering::Relaxed);
    }

    /// Return the living runners, as they were at `moment` or later. None when MySQL does not answer. Many callers at
    /// once share one read.
    async fn readers_since(&self, shared: &EngineState, moment: Option<Instant>) -> Option<Arc<Vec<Reader>>> {
        let mut known = self.readers.lock().await;
        if let Some((_, readers)) = known.as_ref().filter(|(asked, _)| moment.is_none_or(|moment| *asked >= moment)) {
            return Some(Arc::clone(readers));
        }
        let asked = Instant::now();
        let mut readers = match shared.store.readers().await {
            Ok(readers) => readers,
            Err(error) => {
                tracing::warn!(%error, "cannot read the list of living runners");
                return None;
            }
        };
        readers.retain(|reader| reader.id != shared.runner);
        let readers = Arc::new(readers);
        *known = Some((asked, Arc::clone(&readers)));
        Some(readers)
    }
}

/// Decide whether to give the job back or let it fail. If MySQL does not answer, it is given back: a job never fails on
/// a guess.
pub(super) async fn decide(shared: &EngineState, unread_job: UnreadJob<'_>) -> UnreadDecision {
    let UnreadJob { id, kind, queue, number, part, why } = unread_job;
    let own = match part {
        UnreadPart::Payload => shared.registry.get(kind.as_str()).map(Registered::edition),
        UnreadPart::Options => Some(Edition::for_options()),
    };
    let mut refused: BTreeSet<Edition> = own.into_iter().collect();
    if number > 1 {
        match shared.store.given_back_unread(id).await {
            Ok(said) => refused.extend(said.iter().filter_map(|error| Edition::named_in(error))),
            Err(error) => tracing::warn!(job = %id, %error, "cannot read which versions could not read a job"),
        }
    }
    let may = |readers: Option<Arc<Vec<Reader>>>| {
        readers.is_none_or(|readers| readers.iter().any(|reader| may_read(reader, part, kind, queue, &refused)))
    };
    let what = match part {
        UnreadPart::Payload => format!("{UNREAD}payload as {kind}: {why}"),
        UnreadPart::Options => format!("{UNREAD}stored job: {why}"),
    };
    let now = Some(Instant::now());
    let may_be_read = may(shared.unread.readers_since(shared, a_moment_ago()).await)
        || may(shared.unread.readers_since(shared, now).await);
    if !may_be_read {
        tracing::error!(job = %id, %kind, "cannot read a job, and no living runner of another version may be able to");
        let error = format!(
            "{what}; no living runner of another version is left that might read it: start one that can, then retry the job"
        );
        return UnreadDecision { failure: Failure::reject(error), given_back: None };
    }
    tracing::info!(job = %id, %kind, "cannot read a job, given back for a runner of another version");
    let own = own.map(|own| own.to_string()).unwrap_or_default();
    let reason = format!("{what}; given back, as a living runner of another version may be able to [edition {own}]");
    let pause = growing_pause(number.saturating_sub(1)).min(MAX_REST);
    let given_back = GivenBack { kind: kind.clone(), part, refused };
    UnreadDecision { failure: Failure::snooze(pause, reason), given_back: Some(given_back) }
}

fn may_read(reader: &Reader, part: UnreadPart, kind: &Name, queue: &Name, refused: &BTreeSet<Edition>) -> bool {
    let untried = reader.editions.as_ref().is_none_or(|editions| match part {
        UnreadPart::Payload => editions.kinds.get(kind).is_none_or(|edition| !refused.contains(edition)),
        UnreadPart::Options => !refused.contains(&editions.options),
    });
    untried && reader.kinds.contains(kind) && reader.queues.contains(queue)
}

/// Return the moment `STALE` ago. None when the host has been up for less than that, so that everything known is newer.
fn a_moment_ago() -> Option<Instant> {
    Instant::now().checked_sub(STALE)
}

/// Return a pause that doubles with every eighth time, with a jitter of 50 % in both directions.
fn growing_pause(times: u32) -> Duration {
    (FIRST_PAUSE * (1 << (times / 8).min(8))).mul_f64(0.5 + rand::random::<f64>())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use tickr_job::{Editions, RunnerId, State};

    fn edition(text: &str) -> Edition {
        Edition::from_schema(&json!(text))
    }

    fn reader(payload: Option<&str>, options: &str) -> Reader {
        let kind: Name = "mail".parse().unwrap();
        let kinds = BTreeMap::from_iter(payload.map(|text| (kind.clone(), edition(text))));
        Reader {
            id: RunnerId::from_stored("r".into()),
            kinds: [kind].into(),
            queues: ["default".parse().unwrap()].into(),
            editions: Some(Editions { options: edition(options), kinds }),
        }
    }

    #[test]
    fn only_an_edition_that_has_not_tried_may_be_able_to_read_a_job() {
        let (kind, queue): (Name, Name) = ("mail".parse().unwrap(), "default".parse().unwrap());
        let refused = BTreeSet::from([edition("one")]);
        let may = |reader: &Reader, part| may_read(reader, part, &kind, &queue, &refused);
        assert!(!may(&reader(Some("one"), "x"), UnreadPart::Payload));
        assert!(may(&reader(Some("two"), "one"), UnreadPart::Payload));
        assert!(may(&reader(Some("one"), "x"), UnreadPart::Options));
        assert!(!may(&reader(Some("two"), "one"), UnreadPart::Options));
        // The editions of older binaries are not known.
        assert!(may(&Reader { editions: None, ..reader(None, "x") }, UnreadPart::Payload));
        // A runner cannot read a job whose kind or queue it does not have.
        assert!(!may(&Reader { kinds: BTreeSet::new(), ..reader(Some("two"), "x") }, UnreadPart::Payload));
        assert!(!may(&Reader { queues: BTreeSet::new(), ..reader(Some("two"), "x") }, UnreadPart::Payload));
    }

    #[test]
    fn a_job_that_is_given_back_is_skipped_from_before_its_settlement_until_that_says_otherwise() {
        let id = JobId::new();
        let (queue, priority): (Name, Priority) = ("default".parse().unwrap(), Priority::NORMAL);
        let job = GivenBack { kind: "mail".parse().unwrap(), part: UnreadPart::Payload, refused: BTreeSet::new() };
        let done =
            |state, line| Settled::Done { state, execute_at: None, line, follow_ups: Vec::new(), released: Vec::new() };
        let lane = || Some((queue.clone(), priority));
        for (settled, is_skipped) in [
            (Some(done(State::Waiting, lane())), true),
            (Some(done(State::Retrying, None)), true),
            (Some(done(State::Cancelled, None)), false),
            (Some(Settled::NotOurs), false),
            (None, false),
        ] {
            let unread = Unread::default();
            unread.leave_to_others(id, job.clone(), queue.clone(), priority);
            assert!(unread.is_resting(id));
            unread.remember(id, job.clone(), settled.as_ref());
            assert_eq!(unread.is_resting(id), is_skipped, "{settled:?}");
        }
    }

    #[test]
    fn pauses_grow_within_bounds() {
        assert!(growing_pause(0) >= FIRST_PAUSE / 2 && growing_pause(7) <= FIRST_PAUSE * 3 / 2);
        assert!(growing_pause(64) >= MAX_REST / 2 && growing_pause(u32::MAX) < Duration::from_secs(120));
    }
}
