//! The history of this runner's own heartbeat. It decides whether this runner may call other runners dead because they
//! are silent.
//!
//! While MySQL is out, no runner can renew its leases. When MySQL is back, all leases have lapsed although their
//! holders live. A runner that was suspended sees the same when it wakes. In both cases the heartbeats of this runner
//! have a gap as well. So after a gap it calls no runner dead until a full lease of regular heartbeats has passed; in
//! that time every living runner can renew its leases.
//!
//! MySQL's clock may be set, too. Then leases look lapsed that are not, or the other way round. So each reading of that
//! clock is compared with the monotonic clock of this process, and a step counts as an interruption. A runner that has
//! just started cannot know of a step before its first reading. It calls another runner dead only after it has watched
//! for long enough that a living runner would have sent a heartbeat.
//!
//! How long that is depends on the lease of the other runner: with a longer lease, heartbeats are further apart. And
//! interruptions of a few seconds let no long lease lapse. They keep no runner from judging the holder of one; otherwise a
//! runner with a lease of two seconds would seldom judge remote workers, whose leases are ten seconds or more.
//!
//! Another runner whose lease is shorter is judged by its own lease, so that its jobs do not wait for the longer one:
//! this runner waits as long as one with that lease would. A remote worker sends its heartbeats to a runner, and may
//! need longer to find that one is there again, so its holder is judged by the longer lease.
//!
//! With a shorter lease, heartbeats are closer. A stall that is no gap beside this runner's own lease may let such a
//! lease lapse. So this runner also remembers the longest times in which MySQL answered it neither a heartbeat nor a
//! reading of the clock. After one that is a gap beside the lease of the other runner, it waits for that lease.
//!
//! A step ahead stays in the age of each attempt that started before it, for as long as the attempt runs. So steps
//! ahead are remembered, and taken off the ages of remote workers' attempts. Those from before this process started are
//! known as far as other processes recorded them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use chrono::TimeDelta;

use tickr_broker::ClockTrust;
use tickr_job::Timestamp;
use tickr_store::{ClockStep, Reading};

/// A step of MySQL's clock that is smaller than this, and smaller than a quarter of a lease, does no harm.
const LARGEST_STEP: Duration = Duration::from_secs(2);
/// A step larger than this, plus the drift of the two clocks between two readings, is recorded for
/// `tickr verify`.
const NOTED_STEP: Duration = Duration::from_millis(100);
const DRIFT: f64 = 0.01;
/// Most steps that wait to be recorded.
const MAX_STEPS: usize = 16;
/// The greatest error of the size of a recorded step, which is the least that it may have been.
const RECORDED_ERROR: Duration = Duration::from_secs(2);
/// Most steps ahead that are remembered. Of more, the two oldest count as one.
const MAX_AHEAD: usize = 64;
/// Part of a lease that interruptions within one lease may take and let no such lease lapse. A heartbeat is sent after each
/// third of a lease, and its sender may need seconds to notice that MySQL is back.
const HARMLESS: f64 = 0.2;
/// Most interruptions that are remembered. Of more, the two oldest count as one.
const MAX_INTERRUPTIONS: usize = 64;

/// The history of the heartbeat of one runner.
#[derive(Default)]
pub(super) struct HeartbeatHistory(Mutex<Beats>);

#[derive(Clone, Default)]
struct Beats {
    /// When the newest answered heartbeat was sent.
    last: Option<Instant>,
    /// When this process started to watch MySQL's clock: its first reading, or its first heartbeat.
    began: Option<Instant>,
    /// The newest interruptions, the newest last.
    interruptions: VecDeque<Interruption>,
    /// The moment at which the newest answered heartbeat, or the newest answered reading of the clock, was sent.
    watched: Option<Instant>,
    /// Times without such an answer, the newest last. Each is longer than all that came after it.
    unwatched: VecDeque<Interruption>,
    /// Number of interruptions so long, or steps of the clock so large, that other runners may have called this one
    /// dead.
    gaps: u64,
    /// The newest reading of MySQL's clock, and what the first one showed.
    reading: Option<Reading>,
    first_shown: Option<Timestamp>,
    /// Steps of the clock that are not recorded yet.
    steps: Vec<ClockStep>,
    /// The steps ahead that this process has seen.
    ahead: StepsAhead,
    /// The same from before the first reading, as others recorded them. Absent until they were read.
    earlier: Option<StepsAhead>,
    /// What was taken off `earlier` by steps back that this process has seen. Absent if it has seen none.
    set_back: Option<Duration>,
    /// Recorded steps back that may be from before the first reading or from after it, each with the moment since when
    /// it is known.
    unsure: Vec<(ClockStep, Instant)>,
    /// Begin of the newest turn of the heartbeat's loop, whatever MySQL answered.
    turn: Option<Instant>,
}

/// A time in which leases may have lapsed although their holders lived.
#[derive(Clone, Copy)]
struct Interruption {
    ended: Instant,
    length: Duration,
}

/// A step ahead of MySQL's clock.
#[derive(Clone, Copy)]
struct StepAhead {
    /// What started before the step has no later time than this.
    until: Timestamp,
    /// The greatest size that the step may have had.
    by: Duration,
}

/// The newest steps ahead, the newest last, without what steps back have undone.
#[derive(Clone, Default)]
struct StepsAhead(VecDeque<StepAhead>);

impl StepsAhead {
    fn add(&mut self, step: StepAhead) {
        if self.0.len() == MAX_AHEAD
            && let Some(oldest) = self.0.pop_front()
            && let Some(next) = self.0.front_mut()
        {
            next.by = next.by.saturating_add(oldest.by);
            next.until = next.until.max(oldest.until);
        }
        self.0.push_back(step);
    }

    /// Undo the newest steps ahead, as far as the clock was set back. So ages are right again after a clock was set
    /// ahead and back, and after readings of two loops that came in the wrong order. Returns what is left of the step.
    fn take_back(&mut self, mut by: Duration) -> Duration {
        while let Some(mut newest) = self.0.pop_back() {
            if let Some(rest) = newest.by.checked_sub(by).filter(|rest| !rest.is_zero()) {
                newest.by = rest;
                self.0.push_back(newest);
                return Duration::ZERO;
            }
            by = by.saturating_sub(newest.by);
        }
        by
    }

    fn since(&self, moment: Timestamp) -> Duration {
        let since = self.0.iter().filter(|step| moment <= step.until);
        since.fold(Duration::ZERO, |sum, step| sum.saturating_add(step.by))
    }
}

/// The turns of the heartbeat's loop. They go on while MySQL is out, and end only when the process hangs.
pub struct HeartbeatTurns(pub(super) Arc<HeartbeatHistory>);

impl HeartbeatTurns {
    /// Return whether a turn began within this time before now.
    #[must_use]
    pub fn any_within(&self, limit: Duration) -> bool {
        self.0.lock(|beats| beats.turn.is_some_and(|turn| turn.elapsed() <= limit))
    }
}

impl std::fmt::Debug for HeartbeatTurns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HeartbeatTurns")
    }
}

impl HeartbeatHistory {
    /// Create the history of a runner that found MySQL out when it started. That counts as an interruption.
    pub(super) fn after_an_outage() -> Self {
        let mut beats = Beats::default();
        beats.interrupt(Instant::now(), Duration::MAX);
        Self(Mutex::new(beats))
    }

    /// Record that a heartbeat sent at this moment was answered now.
    pub(super) fn record_beat(&self, sent: Instant, lease: Duration) {
        self.lock(|beats| beats.record_beat(sent, Instant::now(), lease));
    }

    /// Record that a turn of the heartbeat's loop begins.
    pub(super) fn record_turn(&self) {
        self.lock(|beats| beats.turn = Some(Instant::now()));
    }

    /// Record that another call on which leases depend failed. MySQL has answered none of them for this long.
    pub(super) fn record_interruption(&self, length: Duration) {
        self.lock(|beats| beats.interrupt(Instant::now(), length));
    }

    /// Record a reading of MySQL's clock. Return the step if the clock was set since the reading before, by enough to
    /// do harm.
    pub(super) fn record_clock(&self, reading: &Reading, lease: Duration) -> Option<TimeDelta> {
        self.lock(|beats| beats.record_clock(*reading, Instant::now(), lease))
    }

    /// Take the steps of MySQL's clock since the last call.
    pub(super) fn take_steps(&self) -> Vec<ClockStep> {
        self.lock(|beats| std::mem::take(&mut beats.steps))
    }

    /// Return whether a runner with a lease of `theirs` may be called dead if it is silent. It had time to send a
    /// heartbeat since this process started to watch, and a full lease since the newest interruption, or since the
    /// newest time without an answer that was long enough to let its lease lapse. `lease` is this runner's own.
    pub(super) fn may_call_dead(&self, lease: Duration, theirs: Duration) -> bool {
        self.lock(|beats| beats.may_call_dead(Instant::now(), lease, theirs))
    }

    /// Return what [`may_call_dead`](Self::may_call_dead) does about a runner, and not about a remote worker. One with
    /// a shorter lease is judged by its own lease in everything: it had time to send a heartbeat, and a full lease of
    /// its own since the newest interruption.
    pub(super) fn may_call_runner_dead(&self, lease: Duration, theirs: Duration) -> bool {
        self.lock(|beats| beats.may_call_runner_dead(Instant::now(), lease, theirs))
    }

    /// Record a reading of MySQL's clock, and return whether time limits of remote workers' attempts may follow it.
    pub(super) fn trust_clock(&self, reading: &Reading, lease: Duration) -> ClockTrust {
        let now = Instant::now();
        self.lock(|beats| {
            beats.record_clock(*reading, now, lease);
            if beats.earlier.is_none() || beats.interrupted(now, lease) > lease.mul_f64(HARMLESS) {
                ClockTrust::Doubtful
            } else if beats.may_call_dead(now, lease, lease) {
                ClockTrust::Sure
            } else {
                ClockTrust::Unwatched
            }
        })
    }

    /// Learn of the steps of MySQL's clock that processes have recorded, oldest first, as far as this process cannot
    /// have seen them itself.
    pub(super) fn learn_steps(&self, recorded: &[ClockStep]) {
        self.lock(|beats| beats.learn_steps(recorded, Instant::now()));
    }

    /// Return by how much MySQL's clock was set ahead since this moment of it, at most. Steps before this process
    /// started are known if another one has recorded them.
    pub(super) fn set_ahead_since(&self, moment: Timestamp) -> Duration {
        self.lock(|beats| beats.set_ahead_since(moment))
    }

    /// Return whether heartbeats are answered, as far as is known.
    pub(super) fn is_beating(&self, lease: Duration) -> bool {
        self.lock(|beats| beats.last.is_some_and(|last| !is_gap(last.elapsed(), lease)))
    }

    /// Return the number of gaps so far. None when other runners may have called this one dead since its last answered
    /// heartbeat. What other runners agreed to under another number may have been taken away.
    pub(super) fn confirmed_gaps(&self, lease: Duration) -> Option<u64> {
        self.lock(|beats| beats.last.is_some_and(|last| last.elapsed() < lease).then_some(beats.gaps))
    }

    fn lock<T>(&self, with: impl FnOnce(&mut Beats) -> T) -> T {
        with(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Beats {
    fn record_beat(&mut self, sent: Instant, now: Instant, lease: Duration) {
        let pause = self.last.map(|last| now.saturating_duration_since(last));
        if let Some(pause) = pause.filter(|pause| is_gap(*pause, lease)) {
            self.interrupt(now, pause);
            self.gaps += 1;
        }
        self.last = Some(sent);
        self.began.get_or_insert(sent);
        self.watch(sent, now);
    }

    fn record_clock(&mut self, reading: Reading, now: Instant, lease: Duration) -> Option<TimeDelta> {
        self.began.get_or_insert(reading.received);
        self.first_shown.get_or_insert(reading.moment);
        self.watch(reading.sent, reading.received);
        let before = self.reading.replace(reading)?;
        let step = step(&before, &reading)?;
        let between = reading.received.saturating_duration_since(before.sent);
        if step.abs() > TimeDelta::from_std(NOTED_STEP + between.mul_f64(DRIFT)).unwrap_or_default() {
            let error = round_trip(&before) + round_trip(&reading);
            match step.to_std() {
                Ok(ahead) => self.ahead.add(StepAhead { until: reading.moment - step, by: ahead + error }),
                Err(_) => self.step_back(step.abs().to_std().unwrap_or_default()),
            }
            if self.steps.len() < MAX_STEPS {
                self.steps.push(ClockStep { before: before.moment, after: reading.moment, step });
            }
            // A step of a quarter of a lease takes all of what interruptions may take of it. The lease of the runner
            // that is judged may be much shorter than this one's.
            self.interrupt(now, step.abs().to_std().unwrap_or(Duration::MAX).mul_f64(4.0 * HARMLESS));
        }
        let largest = LARGEST_STEP.min(lease / 4);
        (step.abs() > TimeDelta::from_std(largest).unwrap_or_default()).then(|| {
            // Nothing says how long the leases are that look lapsed.
            self.interrupt(now, Duration::MAX);
            self.gaps += 1;
            step
        })
    }

    fn learn_steps(&mut self, recorded: &[ClockStep], now: Instant) {
        let (mut earlier, mut unsure) = (StepsAhead::default(), Vec::new());
        let is_earlier = |moment: Timestamp| self.first_shown.is_none_or(|first| moment < first);
        for step in recorded {
            match step.step.to_std() {
                Ok(by) if is_earlier(step.before) => {
                    earlier.add(StepAhead { until: step.at_most(), by: by + by.min(RECORDED_ERROR) });
                }
                Ok(_) => {}
                Err(_) => {
                    let by = step.step.abs().to_std().unwrap_or_default();
                    // The clock showed up to this when it was set back. A process that saw the step itself takes it off
                    // once, although another runner may have read the clock for the last time before the first reading.
                    if is_earlier(step.at_most()) {
                        earlier.take_back(by);
                    } else if is_earlier(step.after) && by > LARGEST_STEP {
                        let known = self.unsure.iter().find(|(known, _)| known == step);
                        let since = known.map_or(now, |(_, since)| *since);
                        unsure.push((*step, since));
                        if self.has_not_seen_it(since) {
                            earlier.take_back(by);
                        }
                    }
                }
            }
        }
        earlier.take_back(self.set_back.unwrap_or_default());
        (self.earlier, self.unsure) = (Some(earlier), unsure);
    }

    /// Return whether a step back that was recorded at this moment is from before the first reading: this process has
    /// read the clock since, and has seen no step back. The clock was ahead before such a step, so what it showed then
    /// does not tell.
    fn has_not_seen_it(&self, recorded: Instant) -> bool {
        self.set_back.is_none() && self.reading.is_some_and(|reading| reading.sent > recorded)
    }

    fn step_back(&mut self, by: Duration) {
        let rest = self.ahead.take_back(by);
        // What is not known yet is taken off when it is learned.
        let left = self.earlier.as_mut().map_or(Duration::ZERO, |earlier| earlier.take_back(rest));
        let taken = rest.saturating_sub(left);
        self.set_back = Some(self.set_back.unwrap_or_default().saturating_add(taken));
    }

    fn set_ahead_since(&self, moment: Timestamp) -> Duration {
        let earlier = self.earlier.as_ref().map_or(Duration::ZERO, |earlier| earlier.since(moment));
        self.ahead.since(moment).saturating_add(earlier)
    }

    fn interrupt(&mut self, ended: Instant, length: Duration) {
        if self.interruptions.len() == MAX_INTERRUPTIONS
            && let Some(oldest) = self.interruptions.pop_front()
            && let Some(next) = self.interruptions.front_mut()
        {
            next.length = next.length.saturating_add(oldest.length);
        }
        self.interruptions.push_back(Interruption { ended, length });
    }

    /// Note that MySQL has answered a call. Other runners could send heartbeats at this moment as well.
    fn watch(&mut self, sent: Instant, answered: Instant) {
        let before = self.watched;
        self.watched = Some(before.map_or(sent, |before| before.max(sent)));
        let Some(before) = before else { return };
        let length = answered.saturating_duration_since(before);
        // One that is as long and ends later counts wherever an earlier one does.
        while self.unwatched.back().is_some_and(|last| last.length <= length) {
            self.unwatched.pop_back();
        }
        let is_full = self.unwatched.len() == MAX_INTERRUPTIONS;
        let shortest = if is_full { self.unwatched.pop_back() } else { None };
        let length = shortest.map_or(length, |shortest| shortest.length);
        self.unwatched.push_back(Interruption { ended: answered, length });
    }

    /// Return whether a runner with this lease could send heartbeats within its last lease, as far as this process has
    /// watched MySQL.
    fn has_watched(&self, now: Instant, lease: Duration) -> bool {
        let since = |moment: Instant| now.saturating_duration_since(moment);
        let is_late = self.watched.is_none_or(|watched| is_gap(since(watched), lease));
        !is_late && !self.unwatched.iter().any(|time| since(time.ended) < lease && is_gap(time.length, lease))
    }

    fn may_call_dead(&self, now: Instant, lease: Duration, theirs: Duration) -> bool {
        let longer = lease.max(theirs);
        self.may_judge_by(longer, now, lease, theirs)
    }

    /// A runner with the shorter lease itself would judge by it in the same way, except that it would notice a gap
    /// between its heartbeats. This one has fewer, so it looks at the times without an answer instead.
    fn may_call_runner_dead(&self, now: Instant, lease: Duration, theirs: Duration) -> bool {
        self.may_judge_by(theirs, now, lease, theirs)
    }

    /// Return whether this runner has watched for a part of the lease `by`, and waited for all of it after an
    /// interruption.
    fn may_judge_by(&self, by: Duration, now: Instant, lease: Duration, theirs: Duration) -> bool {
        let since = |moment: Instant| now.saturating_duration_since(moment);
        self.last.is_some_and(|last| !is_gap(since(last), lease))
            && self.began.is_some_and(|began| is_gap(since(began), by))
            && self.interrupted(now, by) <= by.mul_f64(HARMLESS)
            && (theirs >= lease || self.has_watched(now, theirs))
    }

    /// Return the sum of the interruptions that ended less than `within` ago.
    fn interrupted(&self, now: Instant, within: Duration) -> Duration {
        let newest = self.interruptions.iter().rev();
        let recent = newest.take_while(|last| now.saturating_duration_since(last.ended) < within);
        recent.fold(Duration::ZERO, |sum, interruption| sum.saturating_add(interruption.length))
    }
}

/// Return the time between the request for a reading and its answer.
fn round_trip(reading: &Reading) -> Duration {
    reading.received.saturating_duration_since(reading.sent)
}

/// Return by how much the clock was set between two readings, at least. Each reading was taken at some moment between
/// its request and its answer, so a delayed reading proves little.
fn step(before: &Reading, after: &Reading) -> Option<TimeDelta> {
    let shown = after.moment - before.moment;
    let delta = |duration| TimeDelta::from_std(duration).ok();
    // Two loops may have taken the readings at the same time, in either order.
    let shortest = delta(after.sent.saturating_duration_since(before.received))?
        - delta(before.received.saturating_duration_since(after.sent))?;
    let longest = delta(after.received.saturating_duration_since(before.sent))?
        - delta(before.sent.saturating_duration_since(after.received))?;
    if shown > longest {
        Some(shown - longest)
    } else if shown < shortest {
        Some(shown - shortest)
    } else {
        Some(TimeDelta::zero())
    }
}

/// Return whether a pause between heartbeats is a gap. Heartbeats are a third of a lease apart. An outage that lets
/// leases lapse is longer than two thirds of a lease, because every lease has a heartbeat at its first and at its
/// second third.
fn is_gap(pause: Duration, lease: Duration) -> bool {
    pause > lease.mul_f64(0.6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heartbeat_that_hangs_makes_no_turn() {
        let history = Arc::new(HeartbeatHistory::default());
        let turns = HeartbeatTurns(Arc::clone(&history));
        assert!(!turns.any_within(Duration::from_secs(60)));
        history.record_turn();
        assert!(turns.any_within(Duration::from_secs(60)));
        std::thread::sleep(Duration::from_millis(5));
        assert!(!turns.any_within(Duration::from_millis(4)));
    }

    const LEASE: Duration = Duration::from_secs(30);

    fn may_judge_at(seconds: &[u64], now: u64) -> bool {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut beats = Beats::default();
        for second in seconds {
            beats.record_beat(at(*second), at(*second), LEASE);
        }
        beats.may_call_dead(at(now), LEASE, LEASE)
    }

    #[test]
    fn a_runner_judges_others_once_they_could_have_beaten_and_until_beats_are_missing() {
        assert!(!may_judge_at(&[], 5));
        assert!(!may_judge_at(&[0, 10], 18));
        assert!(may_judge_at(&[0, 10], 19));
        assert!(may_judge_at(&[0, 10, 20, 30], 40));
        assert!(!may_judge_at(&[0, 10], 29));
    }

    #[test]
    fn a_runner_with_a_longer_lease_has_longer_to_beat() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let (theirs, mut beats) = (4 * LEASE, Beats::default());
        for second in (0..=140).step_by(10) {
            beats.record_beat(at(second), at(second), LEASE);
            // For a lease of its own length it is steady from 18 s on; for the longer lease from 72 s on.
            let steady = [LEASE, theirs].map(|lease| beats.may_call_dead(at(second), LEASE, lease));
            assert_eq!(steady, [second > 18, second > 72], "{second}");
        }
        // After an interruption the wait is one lease of the other runner.
        beats.interrupt(at(100), LEASE);
        assert_eq!([LEASE, theirs].map(|lease| beats.may_call_dead(at(150), LEASE, lease)), [true, false]);
    }

    #[test]
    fn a_gap_that_is_short_beside_a_lease_keeps_no_runner_from_judging_its_holder() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let (own, theirs) = (Duration::from_secs(2), Duration::from_secs(10));
        let mut beats = Beats::default();
        let mut beat = |from: u64, to: u64| {
            (from..=to).step_by(500).for_each(|ms| beats.record_beat(at(ms), at(ms), own));
            [own, theirs].map(|lease| beats.may_call_dead(at(to), own, lease))
        };
        assert_eq!(beat(0, 8_000), [true, true]);
        // One pause of 1.3 s. All leases of two seconds may have lapsed, and none of ten.
        assert_eq!(beat(9_300, 9_300), [false, true]);
        assert_eq!(beat(9_800, 14_300), [true, true]);
        // Another one within ten seconds. Together they may have kept back more than one heartbeat of a longer lease.
        assert_eq!(beat(15_600, 15_600), [false, false]);
        assert_eq!(beat(16_100, 19_100), [true, false]);
        assert_eq!(beat(19_600, 19_600), [true, true]);
    }

    #[test]
    fn a_stall_in_which_only_a_shorter_lease_may_end_keeps_a_runner_from_judging_its_holder() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let theirs = [2, 10].map(Duration::from_secs);
        let mut beats = Beats::default();
        let mut look = |from: u64, to: u64| {
            (from..=to).step_by(500).for_each(|ms| beats.record_beat(at(ms), at(ms), LEASE));
            theirs.map(|lease| beats.may_call_dead(at(to), LEASE, lease))
        };
        assert_eq!(look(0, 20_000), [true, true]);
        // Four seconds without an answer are no gap beside a lease of 30 s.
        assert_eq!(look(24_000, 25_500), [false, true]);
        assert_eq!(look(26_000, 26_000), [true, true]);
        assert_eq!(look(33_000, 34_500), [false, false]);
        assert_eq!(look(35_000, 42_500), [true, false]);
        assert_eq!(look(43_000, 43_000), [true, true]);
        // A call of which the answer is missing still.
        let judged = |ms: u64| theirs.map(|lease| beats.may_call_dead(at(ms), LEASE, lease));
        assert_eq!([44_000, 45_000, 50_000].map(judged), [[true, true], [false, true], [false, false]]);
    }

    #[test]
    fn a_runner_with_a_shorter_lease_is_judged_by_its_own() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let (own, theirs) = (Duration::from_secs(300), Duration::from_secs(5));
        let mut beats = Beats::default();
        let mut look = |from: u64, to: u64| {
            (from..=to).step_by(500).for_each(|ms| beats.record_beat(at(ms), at(ms), own));
            let now = at(to);
            [beats.may_call_runner_dead(now, own, theirs), beats.may_call_dead(now, own, theirs)]
        };
        // It had time to send a heartbeat after three seconds. A remote worker is given the longer lease.
        assert_eq!([look(0, 3_000), look(3_500, 3_500)], [[false, false], [true, false]]);
        // MySQL answers nothing for four seconds.
        assert_eq!(look(7_500, 7_500), [false, false]);
        assert_eq!([look(8_000, 12_000), look(12_500, 12_500)], [[false, false], [true, false]]);
        assert_eq!([look(13_000, 180_000), look(180_500, 180_500)], [[true, false], [true, true]]);
        // A call that fails is an interruption for a lease of the one that is judged.
        beats.interrupt(at(180_500), Duration::from_millis(1_001));
        beats.watch(at(185_400), at(185_400));
        let judged = |beats: &Beats, ms: u64| beats.may_call_runner_dead(at(ms), own, theirs);
        assert_eq!([185_499, 185_500].map(|ms| judged(&beats, ms)), [false, false], "it was not watched until then");
        (186_000..=190_500).step_by(500).for_each(|ms| beats.watch(at(ms), at(ms)));
        assert!(judged(&beats, 190_500));
        beats.interrupt(at(190_500), Duration::from_millis(1_001));
        (191_000..=195_000).step_by(500).for_each(|ms| beats.watch(at(ms), at(ms)));
        assert!(!judged(&beats, 195_000));
        beats.watch(at(195_500), at(195_500));
        assert!(judged(&beats, 195_500));
        // A runner whose own heartbeats are late judges none.
        (196_000..=400_000).step_by(500).for_each(|ms| beats.watch(at(ms), at(ms)));
        assert!(!judged(&beats, 400_000));
    }

    #[test]
    fn a_small_step_of_the_clock_keeps_a_runner_from_judging_short_leases_alone() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut beats = Beats::default();
        let mut read = |ms: u64, ahead_ms: i64| {
            let moment = chrono::DateTime::from_timestamp_millis(1_000_000 + ms as i64 + ahead_ms).unwrap();
            beats.record_clock(Reading { sent: at(ms), received: at(ms), moment }, at(ms), LEASE);
            beats.record_beat(at(ms), at(ms), LEASE);
            [2, 4, 10].map(|lease| beats.may_call_runner_dead(at(ms), LEASE, Duration::from_secs(lease)))
        };
        for ms in (0..20_000).step_by(500) {
            read(ms, 0);
        }
        // Heartbeats are a third of a lease apart, so a step of a quarter makes no runner silent for a whole one.
        assert_eq!(read(20_000, 900), [false, true, true]);
        assert_eq!([20_500, 21_000, 21_500].map(|ms| read(ms, 900)), [[false, true, true]; 3]);
        assert_eq!(read(22_000, 900), [true, true, true]);
        // More steps within one lease count together.
        assert_eq!([read(22_500, 1_800), read(23_000, 0)], [[false, false, true], [false, false, false]]);
    }

    #[test]
    fn an_answer_that_hangs_counts_from_its_request() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut beats = Beats::default();
        (0..=20_000).step_by(500).for_each(|ms| beats.record_beat(at(ms), at(ms), LEASE));
        // Two calls were sent at the same moment. The time without an answer ends with the next one.
        beats.watch(at(20_600), at(24_000));
        beats.watch(at(20_600), at(24_010));
        let judged = |ms: u64| beats.may_call_dead(at(ms), LEASE, Duration::from_secs(2));
        assert!(!judged(24_010));
        beats.watch(at(24_500), at(24_500));
        (25_000..=26_000).step_by(500).for_each(|ms| beats.watch(at(ms), at(ms)));
        let judged = |ms: u64| beats.may_call_dead(at(ms), LEASE, Duration::from_secs(2));
        assert_eq!([26_000, 26_499, 26_500].map(judged), [false, false, true]);
    }

    #[test]
    fn times_without_an_answer_beyond_those_that_are_remembered_count_all_the_same() {
        let (start, mut beats, mut now) = (Instant::now(), Beats::default(), Duration::ZERO);
        beats.watch(start, start);
        for ms in (1..=1_000).rev() {
            now += Duration::from_millis(ms);
            beats.watch(start + now, start + now);
        }
        assert_eq!(beats.unwatched.len(), MAX_INTERRUPTIONS);
        assert!(beats.unwatched.iter().is_sorted_by(|one, next| one.length > next.length && one.ended < next.ended));
        assert_eq!(beats.unwatched.back().map(|last| last.ended), beats.watched);
    }

    #[test]
    fn interruptions_beyond_those_that_are_remembered_count_all_the_same() {
        let (now, mut beats) = (Instant::now(), Beats::default());
        (0..1_000).for_each(|_| beats.interrupt(now, Duration::from_secs(1)));
        assert_eq!(beats.interruptions.len(), MAX_INTERRUPTIONS);
        assert_eq!(beats.interrupted(now, LEASE), Duration::from_secs(1_000));
    }

    #[test]
    fn after_a_gap_it_waits_a_full_lease() {
        assert!(!may_judge_at(&[0, 10, 35], 36));
        assert!(!may_judge_at(&[0, 10, 35, 45, 55, 64], 64));
        assert!(may_judge_at(&[0, 10, 35, 45, 55, 65], 65));
        assert!(!may_judge_at(&[0, 10, 35, 45, 80, 90, 100, 109], 109));
    }

    #[test]
    fn a_failed_call_is_an_interruption() {
        let ago = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
        let watching = |heartbeats: HeartbeatHistory| {
            heartbeats.record_beat(ago(19), LEASE);
            heartbeats.lock(|beats| beats.last = Some(Instant::now()));
            heartbeats
        };
        let heartbeats = watching(HeartbeatHistory::default());
        assert!(heartbeats.may_call_dead(LEASE, LEASE));
        heartbeats.record_interruption(LEASE / 10);
        assert!(heartbeats.may_call_dead(LEASE, LEASE), "it was short");
        heartbeats.record_interruption(LEASE / 5);
        assert!(!heartbeats.may_call_dead(LEASE, LEASE));
        assert!(!watching(HeartbeatHistory::after_an_outage()).may_call_dead(LEASE, LEASE));
    }

    #[test]
    fn what_was_agreed_before_a_gap_stands_no_more() {
        let (start, heartbeats) = (Instant::now(), HeartbeatHistory::default());
        assert_eq!(heartbeats.confirmed_gaps(LEASE), None);
        heartbeats.record_beat(start, LEASE);
        assert_eq!(heartbeats.confirmed_gaps(LEASE), Some(0));
        // The heartbeat was sent long ago: other runners may have called this one dead since.
        let ago = |seconds| start.checked_sub(Duration::from_secs(seconds)).unwrap();
        let heartbeats = HeartbeatHistory::default();
        heartbeats.record_beat(ago(31), LEASE);
        assert_eq!((heartbeats.confirmed_gaps(LEASE), heartbeats.is_beating(LEASE)), (None, false));
        heartbeats.record_beat(start, LEASE);
        assert_eq!((heartbeats.confirmed_gaps(LEASE), heartbeats.is_beating(LEASE)), (Some(1), true));
    }

    #[test]
    fn a_clock_that_is_set_is_an_interruption_and_an_answer_that_is_held_up_is_none() {
        let start = Instant::now();
        let reading = |sent_ms, received_ms, shows_ms: i64| Reading {
            sent: start + Duration::from_millis(sent_ms),
            received: start + Duration::from_millis(received_ms),
            moment: chrono::DateTime::from_timestamp_millis(1_000_000 + shows_ms).unwrap(),
        };
        let mut beats = Beats::default();
        beats.record_beat(start, start, LEASE);
        let mut read = |reading| beats.record_clock(reading, start + Duration::from_secs(1), LEASE);
        assert_eq!(read(reading(0, 10, 5)), None);
        assert_eq!(read(reading(2_000, 2_010, 2_004)), None);
        // One answer is delayed for eight seconds on its way back, and the next request on its way there.
        assert_eq!(read(reading(4_000, 12_000, 4_001)), None);
        assert_eq!(read(reading(13_000, 21_000, 21_000)), None);
        // Two loops read at the same time.
        assert_eq!(read(reading(20_000, 20_002, 20_001)), None);
        assert_eq!(read(reading(22_000, 22_002, 22_001 + 31_000)).map(|step| step.num_seconds()), Some(30));
        assert_eq!(read(reading(24_000, 24_002, 24_001 + 31_000)), None);
        assert_eq!(read(reading(26_000, 26_002, 26_001 - 3_600_000)).map(|step| step.num_seconds()), Some(-3_630));
        assert_eq!(beats.gaps, 2);
        let noted: Vec<i64> = beats.steps.iter().map(|noted| noted.step.num_seconds()).collect();
        assert_eq!(noted, [30, -3_630]);
        assert!(!beats.may_call_dead(start + Duration::from_secs(20), LEASE, LEASE));
    }

    #[test]
    fn a_step_ahead_counts_for_what_began_before_it_until_the_clock_is_set_back() {
        let (start, mut beats) = (Instant::now(), Beats::default());
        let at = |seconds: i64| chrono::DateTime::from_timestamp(1_000_000 + seconds, 0).unwrap();
        // Read the clock this many seconds after the start, when it shows that many more than then.
        let mut read = |after: u64, shows: i64| {
            let taken = start + Duration::from_secs(after);
            beats.record_clock(Reading { sent: taken, received: taken, moment: at(shows) }, taken, LEASE);
            [0, 3_601, 3_700, 7_215].map(|began| beats.set_ahead_since(at(began)).as_secs())
        };
        assert_eq!(read(0, 0), [0; 4]);
        assert_eq!(read(1, 3_601), [3_600, 0, 0, 0]);
        assert_eq!(read(2, 3_602), [3_600, 0, 0, 0]);
        assert_eq!(read(200, 7_400), [7_200, 3_600, 3_600, 0]);
        // Half an hour back, then more than the clock was set ahead in all, then ahead again.
        assert_eq!(read(201, 5_601), [5_400, 1_800, 1_800, 0]);
        assert_eq!(read(202, 2), [0; 4]);
        assert_eq!(read(203, 103), [100, 0, 0, 0]);
    }

    #[test]
    fn recorded_steps_from_before_the_first_reading_count_and_later_ones_do_not() {
        let (start, mut beats) = (Instant::now(), Beats::default());
        let at = |seconds: i64| chrono::DateTime::from_timestamp(1_000_000 + seconds, 0).unwrap();
        let ahead = |before: i64, seconds: i64| {
            let step = TimeDelta::seconds(seconds);
            ClockStep { before: at(before), after: at(before + 1) + step, step }
        };
        let since = |beats: &Beats| [0, 3_700, 5_000].map(|began| beats.set_ahead_since(at(began)).as_secs());
        // The first reading is between the two steps.
        beats.record_clock(Reading { sent: start, received: start, moment: at(4_000) }, start, LEASE);
        beats.learn_steps(&[ahead(0, 3_600), ahead(4_100, 600)], start);
        assert_eq!(since(&beats), [3_602, 0, 0]);
        // The same step is read again, then the clock is set back.
        beats.learn_steps(&[ahead(0, 3_600)], start);
        assert_eq!(since(&beats), [3_602, 0, 0]);
        beats.record_clock(Reading { sent: start, received: start, moment: at(400) }, start, LEASE);
        assert_eq!(since(&beats), [2, 0, 0]);
        // What was taken off stays so when the steps are read once more.
        beats.learn_steps(&[ahead(0, 3_600)], start);
        assert_eq!(since(&beats), [2, 0, 0]);
    }

    #[test]
    fn a_recorded_step_back_from_before_the_first_reading_counts_also_if_the_clock_was_ahead_before_it() {
        let start = Instant::now();
        let at = |seconds: i64| chrono::DateTime::from_timestamp(1_000_000 + seconds, 0).unwrap();
        let step = |before: i64, seconds: i64| {
            let step = TimeDelta::seconds(seconds);
            ClockStep { before: at(before), after: at(before + 1) + step, step }
        };
        let read = |beats: &mut Beats, after: u64, shows: i64| {
            let taken = start + Duration::from_secs(after);
            beats.record_clock(Reading { sent: taken, received: taken, moment: at(shows) }, taken, LEASE);
        };
        let learn = |beats: &mut Beats, after: u64| {
            // An hour ahead, and 500 s later an hour back.
            beats.learn_steps(&[step(0, 3_600), step(4_100, -3_600)], start + Duration::from_secs(after));
            beats.set_ahead_since(at(0)).as_secs()
        };
        // The first reading is after both, and shows less than the second one did.
        let mut beats = Beats::default();
        read(&mut beats, 0, 600);
        assert_eq!(learn(&mut beats, 1), 3_602, "the step back may have come after the first reading");
        assert_eq!(learn(&mut beats, 2), 3_602);
        read(&mut beats, 3, 603);
        assert_eq!([4, 5].map(|after| learn(&mut beats, after)), [2, 2]);
        // The first reading is between them, and nothing is taken off twice.
        let mut beats = Beats::default();
        read(&mut beats, 0, 4_050);
        assert_eq!(learn(&mut beats, 60), 3_602, "another process has recorded the step before this one sees it");
        read(&mut beats, 61, 511);
        assert_eq!(beats.set_ahead_since(at(0)).as_secs(), 2);
        beats.ahead.add(StepAhead { until: at(511), by: Duration::from_secs(100) });
        assert_eq!([62, 63].map(|after| learn(&mut beats, after)), [102, 102]);
    }

    #[test]
    fn steps_ahead_beyond_those_that_are_remembered_count_all_the_same() {
        let mut beats = Beats::default();
        let at = |seconds: i64| chrono::DateTime::from_timestamp(1_000_000 + seconds, 0).unwrap();
        (0..1_000).for_each(|n| beats.ahead.add(StepAhead { until: at(n), by: Duration::from_secs(1) }));
        assert_eq!(beats.ahead.0.len(), MAX_AHEAD);
        assert_eq!([0, 999, 1_000].map(|began| beats.set_ahead_since(at(began)).as_secs()), [1_000, 1, 0]);
    }
}
