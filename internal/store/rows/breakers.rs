//! The breaker of a host: the columns of `limit_keys` that say whether calls to it may start, and the rules that change
//! them.
//!
//! A breaker is *closed* while calls start as usual. After some failed calls in a row it *opens*: the jobs of the host are
//! parked. After a pause it is *half-open*: one job may start, and the end of its call decides. A success closes the
//! breaker, a failure opens it again for twice the pause. An open breaker has times in `opened_at` and `probe_at`.

use chrono::TimeDelta;
use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use tickr_job::{Breaker, CallOutcome, Timestamp};

/// Most bytes of the last error that are kept.
const ERROR_BYTES: usize = 500;

/// Failures further apart are not in a row.
const IN_A_ROW: TimeDelta = TimeDelta::days(1);

/// The breaker of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BreakerRule {
    /// Its values.
    pub(crate) breaker: Breaker,
    /// When the limit got a breaker. Failures from before it belong to a breaker that was removed.
    pub(crate) since: Timestamp,
}

/// What a claim has to know about an open breaker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenGate {
    failed_at: Timestamp,
    probe_at: Timestamp,
    /// True while the call that decides is under way.
    pub(crate) probing: bool,
}

impl OpenGate {
    /// The columns of a row `k` of `limit_keys` that [`in_row`](Self::in_row) reads. The attempt of the call that decides
    /// is under way as long as it has its slot. So a call whose runner died is over when its attempt is recorded as lost.
    /// Most keys have no such job, and no slot is looked up for them.
    pub(crate) const COLUMNS: &str = "k.failed_at, k.probe_at, IF(k.probe_job IS NULL, FALSE, \
         EXISTS (SELECT 1 FROM limit_slots s FORCE INDEX (PRIMARY) WHERE s.limit_name = k.limit_name \
         AND s.limit_key = k.limit_key AND s.job_id = k.probe_job AND s.kept_until IS NULL)) AS probing";

    /// Read the columns. Returns nothing for a closed breaker.
    pub(crate) fn in_row(row: &MySqlRow) -> Result<Option<Self>, sqlx::Error> {
        let times: (Option<Timestamp>, Option<Timestamp>) = (row.try_get("failed_at")?, row.try_get("probe_at")?);
        let (Some(failed_at), Some(probe_at)) = times else { return Ok(None) };
        Ok(Some(Self { failed_at, probe_at, probing: row.try_get::<i64, _>("probing")? != 0 }))
    }

    /// Return whether the breaker that this rule describes is open.
    pub(crate) fn is_open(&self, rule: BreakerRule) -> bool {
        self.failed_at >= rule.since
    }

    /// Return whether the call that decides may start now. A time further ahead than the longest pause dates from before
    /// the clock was set back, or from a longer pause.
    pub(crate) fn may_probe(&self, rule: BreakerRule, now: Timestamp) -> bool {
        let latest = now + TimeDelta::milliseconds(rule.breaker.max_pause_ms.into());
        !self.probing && (self.probe_at <= now || self.probe_at > latest)
    }
}

/// The state of a breaker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BreakerState {
    /// Number of failures in a row.
    pub(crate) failures: u32,
    pub(crate) failed_at: Option<Timestamp>,
    pub(crate) last_error: Option<String>,
    pub(crate) opened_at: Option<Timestamp>,
    /// The pause that an open breaker makes now.
    pub(crate) pause_ms: Option<u32>,
    /// When the call that decides may start.
    pub(crate) probe_at: Option<Timestamp>,
    /// The job whose call decides, once it has started.
    pub(crate) probe_job: Option<Uuid>,
}

/// What the end of a call did to a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It opened.
    Opened,
    /// The call that decides failed, so it stays open for a longer pause.
    StaysOpen,
    /// It closed.
    Closed,
}

impl BreakerState {
    pub(crate) const COLUMNS: &str = "failures, failed_at, last_error, opened_at, pause_ms, probe_at, probe_job";

    /// Read the columns. The state of an earlier breaker does not count.
    pub(crate) fn in_row(row: &MySqlRow, rule: BreakerRule) -> Result<Self, sqlx::Error> {
        let failed_at: Option<Timestamp> = row.try_get("failed_at")?;
        if failed_at.is_none_or(|at| at < rule.since) {
            return Ok(Self::default());
        }
        Ok(Self {
            failures: row.try_get("failures")?,
            failed_at,
            last_error: row.try_get("last_error")?,
            opened_at: row.try_get("opened_at")?,
            pause_ms: row.try_get("pause_ms")?,
            probe_at: row.try_get("probe_at")?,
            probe_job: row.try_get("probe_job")?,
        })
    }

    /// Count the end of a call by this job. Returns what it did to the breaker.
    ///
    /// While the breaker is open, only the call that decides counts. The others began before it opened.
    pub(crate) fn count(
        &mut self,
        rule: BreakerRule,
        (job, outcome): (Uuid, CallOutcome),
        error: Option<&str>,
        now: Timestamp,
    ) -> Option<Turn> {
        let open = self.opened_at.is_some();
        if open && self.probe_job != Some(job) {
            return None;
        }
        if outcome == CallOutcome::NotMade {
            // The next call would probably be refused as well, and cost its job an attempt. So it waits for a pause too.
            if open {
                self.begin_pause(self.pause_ms.unwrap_or(rule.breaker.pause_ms).min(rule.breaker.max_pause_ms), now);
            }
            return None;
        }
        if outcome == CallOutcome::Answered {
            *self = Self::default();
            return open.then_some(Turn::Closed);
        }
        // The janitor forgets such failures, and may not have come to this key yet.
        if !open && self.failed_at.is_some_and(|at| at < now - IN_A_ROW) {
            *self = Self::default();
        }
        self.failures = self.failures.saturating_add(1);
        // The limit got its breaker after this moment if the clock was set back since then. A failure from before that does
        // not count, so with the time of the clock none would.
        self.failed_at = Some(now.max(rule.since));
        self.last_error = error.map(cut);
        if !open && self.failures < rule.breaker.failures {
            return None;
        }
        let longest = rule.breaker.max_pause_ms;
        let pause_ms = self.pause_ms.map_or(rule.breaker.pause_ms, |pause| pause.saturating_mul(2)).min(longest);
        self.begin_pause(pause_ms, now);
        self.opened_at = self.opened_at.or(Some(now));
        Some(if open { Turn::StaysOpen } else { Turn::Opened })
    }

    fn begin_pause(&mut self, pause_ms: u32, now: Timestamp) {
        self.pause_ms = Some(pause_ms);
        self.probe_at = Some(now + TimeDelta::milliseconds(pause_ms.into()));
        self.probe_job = None;
    }
}

fn cut(error: &str) -> String {
    error[..error.floor_char_boundary(ERROR_BYTES)].to_owned()
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;

    const JOB: Uuid = Uuid::from_u128(1);
    const OTHER: Uuid = Uuid::from_u128(2);

    fn at(ms: i64) -> Timestamp {
        DateTime::from_timestamp_millis(1_700_000_000_000 + ms).unwrap()
    }

    fn rule() -> BreakerRule {
        BreakerRule { breaker: Breaker { failures: 3, pause_ms: 1_000, max_pause_ms: 3_000 }, since: at(-1) }
    }

    fn fail(state: &mut BreakerState, job: Uuid, ms: i64) -> Option<Turn> {
        state.count(rule(), (job, CallOutcome::Failed), Some("no"), at(ms))
    }

    fn answer(state: &mut BreakerState, job: Uuid, ms: i64) -> Option<Turn> {
        state.count(rule(), (job, CallOutcome::Answered), None, at(ms))
    }

    #[test]
    fn it_opens_after_its_failures_in_a_row_and_not_before() {
        let mut state = BreakerState::default();
        for _ in 0..5 {
            assert_eq!((fail(&mut state, JOB, 0), fail(&mut state, OTHER, 0)), (None, None));
            assert_eq!(answer(&mut state, JOB, 0), None);
        }
        assert_eq!(state, BreakerState::default());
        assert_eq!((fail(&mut state, JOB, 0), fail(&mut state, JOB, 0)), (None, None));
        assert_eq!(fail(&mut state, JOB, 7), Some(Turn::Opened));
        assert_eq!((state.opened_at, state.probe_at), (Some(at(7)), Some(at(1_007))));
    }

    #[test]
    fn while_it_is_open_only_the_call_that_decides_counts() {
        let mut state = BreakerState::default();
        for _ in 0..3 {
            fail(&mut state, JOB, 0);
        }
        let opened = state.clone();
        assert_eq!((fail(&mut state, JOB, 5), answer(&mut state, JOB, 5)), (None, None));
        assert_eq!(state, opened);
        let pauses: Vec<i64> = [1_000, 4_000, 8_000]
            .into_iter()
            .map(|ms| {
                state.probe_job = Some(OTHER);
                assert_eq!(fail(&mut state, OTHER, ms), Some(Turn::StaysOpen));
                assert_eq!(state.probe_job, None);
                (state.probe_at.unwrap() - at(ms)).num_milliseconds()
            })
            .collect();
        assert_eq!(pauses, [2_000, 3_000, 3_000], "doubled up to the longest");
        assert_eq!((state.opened_at, state.failures), (Some(at(0)), 6));
        state.probe_job = Some(OTHER);
        assert_eq!(answer(&mut state, OTHER, 12_000), Some(Turn::Closed));
        assert_eq!(state, BreakerState::default());
    }

    #[test]
    fn a_call_that_was_refused_here_counts_as_no_failure_and_makes_the_next_one_wait() {
        let refuse = |state: &mut BreakerState, job, ms| state.count(rule(), (job, CallOutcome::NotMade), None, at(ms));
        let mut state = BreakerState::default();
        assert_eq!(refuse(&mut state, JOB, 0), None);
        assert_eq!(state, BreakerState::default());
        for _ in 0..3 {
            fail(&mut state, JOB, 0);
        }
        let opened = state.clone();
        state.probe_job = Some(OTHER);
        assert_eq!((refuse(&mut state, JOB, 1_000), state.probe_job), (None, Some(OTHER)), "it does not decide");
        assert_eq!(refuse(&mut state, OTHER, 1_000), None);
        assert_eq!(state, BreakerState { probe_at: Some(at(2_000)), ..opened });
    }

    #[test]
    fn failures_more_than_a_day_apart_are_not_in_a_row() {
        const DAY_MS: i64 = 24 * 3_600_000;
        let mut state = BreakerState::default();
        for ms in [0, DAY_MS, 2 * DAY_MS + 1, 3 * DAY_MS + 2] {
            assert_eq!(fail(&mut state, JOB, ms), None, "{ms}");
        }
        assert_eq!((state.failures, state.failed_at), (1, Some(at(3 * DAY_MS + 2))));
        assert_eq!((fail(&mut state, JOB, 4 * DAY_MS), fail(&mut state, JOB, 5 * DAY_MS)), (None, Some(Turn::Opened)));
        // The pause of an open breaker has no such end.
        state.probe_job = Some(OTHER);
        assert_eq!(fail(&mut state, OTHER, 9 * DAY_MS), Some(Turn::StaysOpen));
        assert_eq!(state.failures, 4);
    }

    #[test]
    fn it_opens_also_while_the_clock_is_behind_the_time_when_the_limit_got_it() {
        let ahead = BreakerRule { since: at(3_600_000), ..rule() };
        let mut state = BreakerState::default();
        for turn in [None, None, Some(Turn::Opened)] {
            assert_eq!(state.count(ahead, (JOB, CallOutcome::Failed), None, at(0)), turn);
            assert!(state.failed_at >= Some(ahead.since), "counts when it is read again");
        }
        assert_eq!(state.probe_at, Some(at(1_000)), "the pause begins now");
    }

    #[test]
    fn one_call_may_start_after_the_pause() {
        let gate = OpenGate { failed_at: at(0), probe_at: at(1_000), probing: false };
        assert!(gate.is_open(rule()));
        assert!(!gate.may_probe(rule(), at(999)) && gate.may_probe(rule(), at(1_000)));
        assert!(!OpenGate { probing: true, ..gate }.may_probe(rule(), at(1_000)));
        // The clock was set back by an hour.
        assert!(gate.may_probe(rule(), at(-3_600_000)));
        // The breaker was removed and set again.
        assert!(!gate.is_open(BreakerRule { since: at(1), ..rule() }));
    }
}
