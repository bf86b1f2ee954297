//! The condition of the index, as one runner sees it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_recursion::async_recursion as boxed;
use tokio::sync::watch;

use super::IndexError;
use tickr_event::Health;

/// Shared cell with the condition of the index. The index reports every failure of Redis here, and the parts that
/// depend on the index read it.
#[derive(Debug)]
pub struct IndexHealth {
    condition: watch::Sender<Condition>,
    /// The last comparison with MySQL.
    drift: Mutex<Option<Drift>>,
    /// The last failure of Redis.
    problem: Mutex<Option<String>>,
}

/// Longest text of a failure that is kept. Redis may quote a script in its answer.
const MAX_PROBLEM: usize = 300;

/// Reason for which the index is rebuilt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RebuildTrigger {
    /// The runner started, and does not know what the index holds.
    Start,
    /// Redis lost its data, or went back in time.
    LostState,
    /// Redis was out, and hints were dropped.
    Outage,
    /// An operator requested it.
    Asked,
}

impl RebuildTrigger {
    /// Return the reason as it is written in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::LostState => "lost_state",
            Self::Outage => "outage",
            Self::Asked => "asked",
        }
    }
}

/// A rebuild that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rebuilt {
    /// Time of its end.
    pub at: Instant,
    /// Number of jobs that were missing and were hinted.
    pub jobs: usize,
    /// Duration of the rebuild.
    pub took: Duration,
    /// Reason of the rebuild.
    pub cause: RebuildTrigger,
}

/// A comparison with MySQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drift {
    /// Time of the comparison.
    pub at: Instant,
    /// Number of jobs that the index lacked, or had with another time. They were hinted again.
    pub jobs: usize,
}

/// The condition of the index with its history, all at one moment.
#[derive(Clone, Copy, Debug)]
pub struct IndexStatus {
    /// The condition.
    pub health: Health,
    /// Start of this condition.
    pub since: Instant,
    /// Reason of the rebuild that is under way, if there is one.
    pub cause: Option<RebuildTrigger>,
    /// The last rebuild.
    pub last: Option<Rebuilt>,
    /// The last comparison.
    pub drift: Option<Drift>,
}

#[derive(Clone, Copy, Debug)]
struct Condition {
    health: Health,
    since: Instant,
    /// Reason of the rebuild that is under way, or of the last one.
    cause: RebuildTrigger,
    /// The present data must be deleted before the rebuild.
    forget: bool,
    last: Option<Rebuilt>,
    /// Number of failures of Redis, and of requests during a rebuild. A rebuild that started before the last failure
    /// may have missed hints lost since then, and one that started before the last request has kept the data.
    troubles: u64,
    /// Number of times that Redis did not answer, or refused.
    outages: u64,
    /// Redis refused a command because a key holds a value that tickr does not write.
    misshapen: bool,
    /// Number of times that Redis refused a command because its user may not send it.
    refusals: u64,
}

impl IndexHealth {
    pub(super) fn new() -> Self {
        // Nothing is known yet, so the first answer leads to a rebuild. To an index left by an earlier run it adds only
        // what is missing.
        let (since, cause) = (Instant::now(), RebuildTrigger::Start);
        let health = Health::Rebuilding;
        let condition = Condition {
            health,
            since,
            cause,
            forget: false,
            last: None,
            troubles: 0,
            outages: 0,
            misshapen: false,
            refusals: 0,
        };
        Self { condition: watch::Sender::new(condition), drift: Mutex::new(None), problem: Mutex::new(None) }
    }

    /// Return the condition.
    #[must_use]
    pub fn now(&self) -> Health {
        self.condition.borrow().health
    }

    /// Return everything that is known.
    #[must_use]
    pub fn status(&self) -> IndexStatus {
        let Condition { health, since, cause, last, .. } = *self.condition.borrow();
        let drift = *self.drift.lock().unwrap_or_else(PoisonError::into_inner);
        IndexStatus { health, since, cause: (health == Health::Rebuilding).then_some(cause), last, drift }
    }

    /// Record a comparison with MySQL in which the index lacked this many jobs.
    pub fn record_comparison(&self, jobs: usize) {
        *self.drift.lock().unwrap_or_else(PoisonError::into_inner) = Some(Drift { at: Instant::now(), jobs });
    }

    /// Request a rebuild from nothing, for an operator. Return true if it starts; otherwise one is under way, or
    /// follows when Redis is back.
    ///
    /// A rebuild that is under way for another reason only adds to the data. It does not count, and the next one begins
    /// from nothing.
    pub fn ask_for_rebuild(&self) -> bool {
        self.condition.send_if_modified(|condition| {
            let fast = condition.health == Health::Fast;
            if fast {
                condition.forget = true;
                change(condition, Health::Rebuilding, RebuildTrigger::Asked, "an operator requested it");
            } else if condition.health == Health::Rebuilding && condition.cause != RebuildTrigger::Asked {
                condition.forget = true;
                condition.cause = RebuildTrigger::Asked;
                condition.troubles += 1;
            }
            fast
        })
    }

    /// Return whether the rebuild that starts now must first delete the data. The answer is true only once per request,
    /// unless the caller says that it [could not](Self::could_not_empty).
    pub fn take_start_from_empty(&self) -> bool {
        let mut forget = false;
        self.condition.send_if_modified(|condition| {
            forget = std::mem::take(&mut condition.forget);
            false
        });
        forget
    }

    /// Record that the data could not be deleted. The next rebuild tries it again.
    pub fn could_not_empty(&self) {
        self.condition.send_if_modified(|condition| {
            condition.forget = true;
            false
        });
    }

    /// Return the number of failures of Redis so far, and of requests that made a rebuild begin again.
    #[must_use]
    pub fn troubles(&self) -> u64 {
        self.condition.borrow().troubles
    }

    /// Return how often Redis did not answer, or refused.
    #[must_use]
    pub fn outages(&self) -> u64 {
        self.condition.borrow().outages
    }

    /// Wait for an outage that comes after their number was `seen`. Returns also if the outage is already over.
    #[boxed]
    pub async fn out_since(&self, seen: u64) {
        // The sender lives as long as `self`, so there is always a value.
        let _ = self.condition.subscribe().wait_for(|condition| condition.outages > seen).await;
    }

    /// Wait until the condition is another one than `seen`, and return it.
    #[boxed]
    pub async fn other_than(&self, seen: Health) -> Health {
        let mut condition = self.condition.subscribe();
        // The sender lives as long as `self`, so there is always a value.
        condition.wait_for(|condition| condition.health != seen).await.map_or(seen, |condition| condition.health)
    }

    /// Return the last failure of Redis, while it is out.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let problem = self.problem.lock().unwrap_or_else(PoisonError::into_inner).clone();
        problem.filter(|_| self.now() == Health::Degraded)
    }

    /// Record a failure of Redis. Only a change of the condition is logged. Lost data does not end an outage, because
    /// another partition of the index may be out still; see [`answered_empty`](Self::answered_empty).
    pub(super) fn record_failure(&self, error: &IndexError) {
        let to = match error {
            IndexError::Lost { .. } => Health::Rebuilding,
            IndexError::Unavailable { .. } | IndexError::Url | IndexError::Certificates { .. } => Health::Degraded,
        };
        // An error without a source is about the pause before the next connection, and hides the reason of the pause.
        if to == Health::Degraded && !error.is_about_a_pause() {
            let text = error.to_string().chars().take(MAX_PROBLEM).collect();
            *self.problem.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
        }
        self.condition.send_modify(|condition| {
            condition.troubles += 1;
            condition.outages += u64::from(to == Health::Degraded);
            condition.misshapen |= error.is_about_a_value();
            condition.refusals += u64::from(error.is_about_rights());
            if to == Health::Degraded || condition.health != Health::Degraded {
                change(condition, to, RebuildTrigger::LostState, &error.to_string());
            }
        });
    }

    /// Record that all of Redis answers and that data is lost. If Redis was out and comes back empty, the index is
    /// rebuilt as after a flush.
    pub(super) fn answered_empty(&self) {
        self.condition.send_if_modified(|condition| {
            condition.health == Health::Degraded
                && change(condition, Health::Rebuilding, RebuildTrigger::LostState, "redis answers, and is empty")
        });
    }

    /// Return whether a key holds a value that tickr does not write. The answer is true only once per refusal.
    pub(super) fn take_misshapen_report(&self) -> bool {
        let mut misshapen = false;
        self.condition.send_if_modified(|condition| {
            misshapen = std::mem::take(&mut condition.misshapen);
            false
        });
        misshapen
    }

    /// Note that a key holds a value that tickr does not write.
    pub(super) fn found_misshapen(&self) {
        self.condition.send_if_modified(|condition| {
            condition.misshapen = true;
            false
        });
    }

    /// Return how often Redis refused a command because its user may not send it.
    pub(super) fn refusals(&self) -> u64 {
        self.condition.borrow().refusals
    }

    /// Record that Redis took a write. During an outage hints may have been lost, so the index is rebuilt next.
    ///
    /// A read is not enough: a replica and a Redis without free memory answer reads too. A runner that took them for
    /// healthy would go back and forth between the two conditions.
    pub(super) fn wrote(&self) {
        self.condition.send_if_modified(|condition| {
            condition.health == Health::Degraded
                && change(condition, Health::Rebuilding, RebuildTrigger::Outage, "redis takes writes again")
        });
    }

    /// Record that a rebuild is done. `seen` is the number of [`troubles`](Self::troubles) at its start. Return false
    /// if it must be repeated, because Redis failed or an operator requested one from nothing in the meantime.
    pub fn rebuilt(&self, seen: u64, jobs: usize, took: Duration) -> bool {
        self.condition.send_if_modified(|condition| {
            let done = condition.health == Health::Rebuilding && condition.troubles == seen;
            if done {
                let at = Instant::now();
                condition.health = Health::Fast;
                condition.since = at;
                condition.last = Some(Rebuilt { at, jobs, took, cause: condition.cause });
                tracing::info!("index is whole");
            }
            done
        })
    }
}

/// Change the condition. `cause` is the reason of the rebuild, if the new condition is a rebuild.
fn change(condition: &mut Condition, to: Health, cause: RebuildTrigger, why: &str) -> bool {
    let changed = condition.health != to;
    if changed {
        condition.since = Instant::now();
        if to == Health::Rebuilding {
            condition.cause = cause;
        }
        tracing::warn!(from = condition.health.as_str(), to = to.as_str(), why, "index health changed");
        condition.health = to;
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUT: IndexError = IndexError::Unavailable { attempted: "ask", cause: String::new(), source: None };

    #[test]
    fn a_rebuild_that_redis_failed_somebody_during_does_not_count() {
        let health = IndexHealth::new();
        let seen = health.troubles();
        // A hint fails while the rebuild reads MySQL, and Redis is back before it ends.
        health.record_failure(&OUT);
        health.wrote();
        assert_eq!(health.now(), Health::Rebuilding);
        assert!(!health.rebuilt(seen, 0, Duration::ZERO));
        assert_eq!(health.now(), Health::Rebuilding);
        assert!(health.rebuilt(health.troubles(), 0, Duration::ZERO));
        assert_eq!(health.now(), Health::Fast);
    }

    #[test]
    fn only_a_write_ends_an_outage_and_a_rebuild_follows() {
        let health = IndexHealth::new();
        health.record_failure(&OUT);
        assert!(!health.rebuilt(health.troubles(), 0, Duration::ZERO));
        assert_eq!(health.now(), Health::Degraded);
        health.wrote();
        assert_eq!(health.now(), Health::Rebuilding);
    }

    #[test]
    fn data_that_is_lost_beside_an_outage_does_not_end_the_outage() {
        const LOST: IndexError = IndexError::Lost { attempted: "look" };
        let health = IndexHealth::new();
        let source = redis::RedisError::from(std::io::Error::other("refused"));
        let refused = IndexError::Unavailable { attempted: "ask", cause: "refused".to_owned(), source: Some(source) };
        health.record_failure(&refused);
        health.record_failure(&LOST);
        assert_eq!((health.now(), health.problem().as_deref()), (Health::Degraded, Some("ask: redis: refused")));
        health.answered_empty();
        assert_eq!(health.status().cause, Some(RebuildTrigger::LostState));
        // Without an outage, lost data leads to a rebuild at once.
        assert!(health.rebuilt(health.troubles(), 0, Duration::ZERO));
        health.answered_empty();
        assert_eq!(health.now(), Health::Fast);
        health.record_failure(&LOST);
        assert_eq!(health.now(), Health::Rebuilding);
    }

    #[test]
    fn the_reason_of_an_outage_is_shown_until_it_is_over() {
        let health = IndexHealth::new();
        let refused = |cause: &str| {
            let error = redis::RedisError::from(std::io::Error::other("refused"));
            IndexError::Unavailable { attempted: "ask", cause: cause.to_owned(), source: Some(error) }
        };
        health.record_failure(&refused("refused"));
        health.record_failure(&OUT);
        assert_eq!(health.problem().as_deref(), Some("ask: redis: refused"), "a pause is no reason");
        health.record_failure(&refused(&"x".repeat(1_000)));
        assert_eq!(health.problem().map(|text| text.len()), Some(MAX_PROBLEM));
        health.wrote();
        assert_eq!(health.problem(), None);
    }

    #[test]
    fn refusals_of_rights_are_counted_and_other_failures_are_not() {
        let health = IndexHealth::new();
        health.record_failure(&OUT);
        assert_eq!(health.refusals(), 0);
        let cause = "NOPERM: this user has no permissions to run the 'brpop' command".to_owned();
        let source = redis::RedisError::from((redis::ErrorKind::Extension, "NOPERM", cause.clone()));
        health.record_failure(&IndexError::Unavailable { attempted: "wait", cause, source: Some(source) });
        assert_eq!(health.refusals(), 1);
    }

    #[test]
    fn a_rebuild_remembers_why_there_was_one() {
        let health = IndexHealth::new();
        assert_eq!(health.status().cause, Some(RebuildTrigger::Start));
        assert!(health.rebuilt(0, 7, Duration::from_millis(5)));
        let last = health.status().last.unwrap();
        assert_eq!((last.cause, last.jobs, health.status().cause), (RebuildTrigger::Start, 7, None));

        assert!(!health.take_start_from_empty());
        assert!(health.ask_for_rebuild() && !health.ask_for_rebuild());
        assert!(health.take_start_from_empty() && !health.take_start_from_empty());
        health.could_not_empty();
        assert!(health.take_start_from_empty() && !health.take_start_from_empty());
        // The data is deleted on purpose, and another loop notices.
        health.record_failure(&IndexError::Lost { attempted: "look" });
        assert_eq!(health.status().cause, Some(RebuildTrigger::Asked));
        assert!(health.rebuilt(health.troubles(), 8, Duration::ZERO));
        assert_eq!(health.status().last.unwrap().cause, RebuildTrigger::Asked);

        health.record_failure(&OUT);
        assert!(!health.ask_for_rebuild(), "nothing can be fed");
        health.wrote();
        assert_eq!(health.status().cause, Some(RebuildTrigger::Outage));
    }

    #[test]
    fn a_request_during_a_rebuild_that_only_adds_makes_it_begin_from_nothing() {
        let health = IndexHealth::new();
        health.record_failure(&OUT);
        health.wrote();
        let seen = health.troubles();
        assert!(!health.take_start_from_empty(), "after an outage a rebuild only adds");
        assert!(!health.ask_for_rebuild(), "one is under way");
        assert!(!health.rebuilt(seen, 1, Duration::ZERO), "it has deleted nothing");
        // Further requests are served by the next rebuild.
        let seen = health.troubles();
        assert!(health.take_start_from_empty());
        assert!(!health.ask_for_rebuild() && !health.take_start_from_empty());
        assert!(health.rebuilt(seen, 2, Duration::ZERO));
        assert_eq!(health.status().last.unwrap().cause, RebuildTrigger::Asked);
    }
}
