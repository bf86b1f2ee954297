//! The reaper: ends attempts whose runner died, so that their jobs run again or fail. After its first lost attempt a
//! job runs again at once, ahead of the jobs that wait in its lane. After two lost attempts in a row it is a suspect
//! (see `suspects`).
//!
//! There may be any number of unfinished jobs, so the reaper does not search all their rows. It reads the short list of
//! runners to see which are silent, and the batches of claims (`store/attempts/claim_batches.rs`) to see which jobs
//! those runners may hold. Any runner may reap. When two reap at once, both read the same rows, and one of them finds
//! the token changed.
//!
//! A runner must not call others dead for a fault on its own side. After an interruption of its own heartbeat, or a
//! step of MySQL's clock, it waits a full lease before it does. After its start it waits until a living runner would
//! have sent a heartbeat. A stall that is short beside its own lease may let the shorter lease of another runner lapse.
//! So it looks several times in the shortest lease, and waits after a gap between its looks. All these times are those
//! of the lease of the runner that is judged, also where that is the shorter one. See [`HeartbeatHistory`].
//! One reading of MySQL's clock, taken and checked at the beginning, is used for the whole round.
//!
//! Every few seconds it also walks one page further through the rows of unfinished jobs (table `owed`). That finds
//! attempts that no batch names: those of older binaries, which run beside this one during a deploy. While such a runner
//! is registered, every round walks; while it is silent, the walk is fast.
//!
//! What a remote worker still holds after it has left is given back, and no attempt is used. The process that it told
//! does that at once. The reaper does it when that process died, or waited for a locked row in vain.
//!
//! Claims of this runner that MySQL never answered are given back as soon as MySQL answers again: no handler was
//! started for them.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use chrono::TimeDelta;

use super::EngineState;
use tickr_event::Event;
use tickr_index::{Entry, Lane};
use tickr_job::{JobId, RunnerId, Timestamp, Verdict};
use tickr_store::{LapseRule, Lapsed, Reading, Reaped, RunnerBeat, Settled, StoreError, UnstoppedRunners};

/// Time between two looks at the list of runners, before jitter. The second value holds while a silent runner still has
/// open attempts.
const LOOK_EVERY: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Looks in the shortest lease of another runner that is shorter than this runner's own, and the shortest pause between
/// them. Between two looks that are much further apart, such a lease could lapse without the fault of its holder.
const LOOKS_PER_LEASE: u32 = 4;
const SHORTEST_PAUSE: Duration = Duration::from_millis(200);
/// Most attempts ended in one transaction.
const PAGE: usize = 200;
/// Time between two searches for batches of claims whose runner is not in the list of living runners. Such batches
/// exist only if a runner was unregistered while a claim of its own was under way, or a remote worker left and not
/// everything could be given back at once.
const STRAYS_EVERY: Duration = Duration::from_secs(4);
/// Time between two pages of the walk, while no older binary is registered.
const WALK_EVERY: Duration = Duration::from_secs(8);
/// Rows that the walk reads in one round. While an older binary is silent: rows in one page, and pages in one round.
const WALK_ROWS: u32 = 2_000;
const FAST_WALK_ROWS: u32 = 5_000;
const FAST_WALK_PAGES: usize = 100;
/// Time that remote workers with longer leases get after an outage before attempts are ended whose runner is not known.
const REMOTE_PATIENCE: Duration = Duration::from_secs(60);
/// Longest time that a fast walk takes in one round.
const FAST_WALK: Duration = Duration::from_secs(2);
/// Time for which an attempt that MySQL refuses to end is skipped.
const REST: Duration = Duration::from_secs(60);
/// Most such attempts that are remembered.
const MAX_REFUSED: usize = 10_000;
/// Tolerance for times that lie ahead. A heartbeat further ahead of MySQL's clock, or a lease that ends later than a
/// full lease and this from now, dates from before the clock was set back.
const SLACK: TimeDelta = TimeDelta::seconds(5);

/// State that a reaper keeps from round to round.
#[derive(Default)]
struct Reaper {
    /// Runners whose last heartbeat lies ahead of MySQL's clock: that heartbeat, and the moment when it was first seen
    /// here.
    ahead: HashMap<RunnerId, (Timestamp, Instant)>,
    strays_at: Option<Instant>,
    walked_at: Option<Instant>,
    walk: Walk,
    /// Attempts that could not be ended, each with the moment to try again.
    refused: HashMap<JobId, Instant>,
    /// True once the steps of MySQL's clock were read that others noticed before this process watched it.
    knows_steps: bool,
}

/// The walk through the rows of unfinished jobs.
#[derive(Default)]
struct Walk {
    /// Last row of the previous page.
    place: Option<JobId>,
    /// MySQL's time at the start of this walk, and at the start of the last walk that was completed.
    began: Option<Timestamp>,
    whole: Option<Timestamp>,
}

pub(super) async fn run_until_stopped(shared: Arc<EngineState>) {
    let mut reaper = Reaper::default();
    let (mut pause, mut looked) = (LOOK_EVERY, Instant::now());
    loop {
        reaper.learn_steps(&shared).await;
        let pause_now = pause.mul_f64(0.5 + rand::random::<f64>());
        tokio::select! {
            () = shared.stop_loops.cancelled() => return,
            () = tokio::time::sleep(pause_now) => {}
        }
        match reaper.run_once(&shared).await {
            Ok(round) => {
                let usual = if round.open > 0 { LOOK_AGAIN } else { LOOK_EVERY };
                let short = round.shortest.map(|lease| (lease / LOOKS_PER_LEASE).max(SHORTEST_PAUSE));
                pause = short.map_or(usual, |short| short.min(usual));
                if round.attempts > 0 {
                    tracing::warn!(attempts = round.attempts, "ended attempts of dead runners");
                    shared.workers.record_loss();
                    shared.broker.events().emit(Event::Reaped { attempts: round.attempts });
                }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot look for attempts of dead runners");
                shared.heartbeats.record_interruption(looked.elapsed());
            }
        }
        looked = Instant::now();
    }
}

/// Result of one round of the reaper.
#[derive(Default)]
struct Round {
    /// Attempts that the round ended as lost.
    attempts: usize,
    /// Attempts of silent runners that are still open.
    open: usize,
    /// The shortest lease of a runner that is shorter than this runner's own.
    shortest: Option<Duration>,
}

impl Reaper {
    /// Learn of the steps of MySQL's clock from before this process started: at once, and again until all living
    /// runners have had the time to record those that they noticed.
    async fn learn_steps(&mut self, shared: &EngineState) {
        if self.knows_steps {
            return;
        }
        let lease = shared.settings.lease;
        let watched = shared.heartbeats.may_call_dead(lease, lease);
        match shared.store.distinct_clock_steps().await {
            Ok(steps) => {
                shared.heartbeats.learn_steps(&steps);
                self.knows_steps = watched;
            }
            Err(error) => tracing::debug!(%error, "cannot read when the clock of mysql was set"),
        }
    }

    async fn run_once(&mut self, shared: &EngineState) -> Result<Round, StoreError> {
        if let Err(error) = shared.store.delete_closed_batches(&shared.runner).await {
            // A row that outlives its attempts has no effect, and a later round deletes it.
            tracing::debug!(%error, "cannot delete the batches of claims that are over yet");
        }
        let UnstoppedRunners { reading, beats, served } = shared.store.unstopped_runners().await?;
        let may_judge = may_judge(shared, &reading);
        note_steps(shared).await;
        // Kept here because the list of runners is read anyway: the kinds tell for how long a job of a kind unknown to
        // this runner is put off.
        *shared.served.lock().unwrap_or_else(PoisonError::into_inner) = served;
        let lease = shared.settings.lease;
        let shorter = || beats.iter().map(|beat| beat.lease).filter(move |theirs| *theirs < lease);
        let mut round = Round { shortest: shorter().min(), ..Round::default() };
        let at = reading.moment;
        let watched: Vec<&RunnerBeat> =
            beats.iter().filter(|beat| may_judge || may_call_shorter_dead(shared, beat)).collect();
        // The heartbeats of the others were compared with a clock that may have been set since.
        self.ahead.retain(|id, _| watched.iter().any(|beat| beat.id == *id));
        let silent: Vec<(RunnerBeat, TimeDelta)> = watched
            .into_iter()
            .map(|beat| (beat.clone(), self.silence(beat, at)))
            .filter(|(beat, silence)| *silence > delta(beat.lease) && may_call_dead(shared, beat))
            .collect();
        // An attempt found by the walk does not say how long its runner's lease is.
        // Remote workers repeat a heartbeat that fails within seconds, whatever the length of their leases is.
        let patience = |beat: &RunnerBeat| if beat.is_remote { beat.lease.min(REMOTE_PATIENCE) } else { beat.lease };
        let longest = beats.iter().map(patience).max().unwrap_or(lease);
        let judges = |theirs: Duration| shared.heartbeats.may_call_dead(lease, theirs);
        let judges_all = judges(longest) && shorter().all(judges);

        self.reap_silent(shared, &silent, at, &mut round).await?;
        if !may_judge {
            return Ok(round);
        }
        if self.strays_at.is_none_or(|looked| looked.elapsed() >= STRAYS_EVERY) {
            self.strays_at = Some(Instant::now());
            let living: HashSet<&RunnerId> = beats.iter().map(|beat| &beat.id).collect();
            let runners = shared.store.runners_with_batches().await?;
            let strays = runners.iter().filter(|runner| **runner != shared.runner && !living.contains(runner));
            let left = shared.store.workers_that_left(strays.cloned().collect()).await?;
            for runner in runners {
                // What a remote worker still holds after it has left is given back, and needs no end of its lease.
                let rule = if left.contains(&runner) { LapseRule::all(at) } else { LapseRule::at(at) };
                // Among its own batches the runner looks for attempts that do not run here: a claim was carried out
                // twice, or its handler was never started.
                if runner == shared.runner || (judges_all && !living.contains(&runner)) {
                    self.reap_batches_of(shared, (&runner, lease), rule, &mut round).await?;
                }
            }
        }
        let older = silent.iter().any(|(runner, _)| !runner.writes_batches);
        let (pages, rows) = if older { (FAST_WALK_PAGES, FAST_WALK_ROWS) } else { (1, WALK_ROWS) };
        let is_time = beats.iter().any(|beat| !beat.writes_batches)
            || self.walked_at.is_none_or(|walked| walked.elapsed() >= WALK_EVERY);
        if judges_all && is_time {
            self.walked_at = Some(Instant::now());
            self.walk_on(shared, at, (pages, rows), &mut round).await?;
        }
        Ok(round)
    }

    /// End the attempts of these silent runners whose leases have ended, and bury those that hold no more.
    async fn reap_silent(
        &mut self,
        shared: &EngineState,
        silent: &[(RunnerBeat, TimeDelta)],
        at: Timestamp,
        round: &mut Round,
    ) -> Result<(), StoreError> {
        for (runner, silence) in silent {
            // A lease that was taken before the clock was set back ends later than any that is taken now.
            let rule = LapseRule { at, beyond: Some(at + delta(runner.lease) + SLACK) };
            let open = self.reap_batches_of(shared, (&runner.id, judging_lease(shared, runner)), rule, round).await?;
            round.open += open;
            // A lease taken after the runner's last heartbeat ends later than one lease after that heartbeat. After two
            // leases of silence it has ended as well.
            let over = delta(runner.lease * 2);
            let walked =
                runner.writes_batches || self.walk.whole.is_some_and(|whole| whole > runner.heartbeat_at + over);
            if open == 0 && walked && *silence > over {
                shared.store.mark_runner_gone(runner).await?;
            }
        }
        Ok(())
    }

    /// Return for how long a runner has been silent.
    fn silence(&mut self, beat: &RunnerBeat, at: Timestamp) -> TimeDelta {
        if beat.heartbeat_at <= at + SLACK {
            self.ahead.remove(&beat.id);
            return at - beat.heartbeat_at;
        }
        // MySQL's clock was set back after the last heartbeat. A living runner sends another one within a third of a
        // lease.
        let (seen, since) = self.ahead.entry(beat.id.clone()).or_insert((beat.heartbeat_at, Instant::now()));
        if *seen != beat.heartbeat_at {
            (*seen, *since) = (beat.heartbeat_at, Instant::now());
        }
        delta(since.elapsed())
    }

    /// End the lapsed attempts named in the batches of this runner, as long as runners with this lease may be judged.
    /// Return how many attempts are open afterwards.
    async fn reap_batches_of(
        &mut self,
        shared: &EngineState,
        (runner, theirs): (&RunnerId, Duration),
        rule: LapseRule,
        round: &mut Round,
    ) -> Result<usize, StoreError> {
        let (mut after, mut open) = (None, 0);
        let live = Arc::new(shared.live.ids());
        loop {
            let page = shared.store.lapsed_of(runner, after, rule, Arc::clone(&live)).await?;
            open += page.open;
            open -= self.reap(shared, page.lapsed, theirs, round).await?.min(open);
            after = page.next;
            if after.is_none() || shared.stop_loops.is_cancelled() {
                return Ok(open);
            }
        }
    }

    /// Continue the walk through the rows of unfinished jobs, by at most `pages` pages of `rows` rows.
    async fn walk_on(
        &mut self,
        shared: &EngineState,
        at: Timestamp,
        (pages, rows): (usize, u32),
        round: &mut Round,
    ) -> Result<(), StoreError> {
        let began = Instant::now();
        for _ in 0..pages {
            let walk_began = *self.walk.began.get_or_insert(at);
            let page = shared.store.walk_owed(self.walk.place, LapseRule::at(at), rows).await?;
            self.walk.place = page.next;
            self.reap(shared, page.lapsed, shared.settings.lease, round).await?;
            if page.next.is_none() {
                self.walk.whole = Some(walk_began);
                self.walk.began = None;
                return Ok(());
            }
            if shared.stop_loops.is_cancelled() || began.elapsed() >= FAST_WALK {
                return Ok(());
            }
        }
        Ok(())
    }

    /// End these attempts, as long as runners with this lease may be judged. Return how many were ended.
    async fn reap(
        &mut self,
        shared: &EngineState,
        lapsed: Vec<Lapsed>,
        theirs: Duration,
        round: &mut Round,
    ) -> Result<usize, StoreError> {
        self.refused.retain(|_, until| Instant::now() < *until);
        let lapsed: Vec<Lapsed> = lapsed.into_iter().filter(|lapsed| !self.refused.contains_key(&lapsed.id)).collect();
        if lapsed.is_empty() {
            return Ok(0);
        }
        let policies = Arc::new(shared.registry.retry_policies());
        let mut ended = 0;
        for page in lapsed.chunks(PAGE) {
            // Check again before writing: the search may have hung in the same outage that let the leases lapse.
            if !shared.heartbeats.may_call_runner_dead(shared.settings.lease, theirs) {
                tracing::debug!("the heartbeat was interrupted: calling no runner dead for a lease");
                return Ok(ended);
            }
            let (reaped, refused) = shared.store.reap(page.to_vec(), Arc::clone(&policies)).await?;
            ended += reaped.len();
            let (lost, given): (Vec<_>, Vec<_>) = reaped.into_iter().partition(|ended| ended.verdict == Verdict::Lost);
            round.attempts += lost.len();
            tell(shared, lost).await;
            shared.broker.note_given_back(&given);
            for (id, error) in refused {
                tracing::error!(job = %id, %error, "cannot end a lost attempt, skipping it for a minute");
                if self.refused.len() < MAX_REFUSED {
                    self.refused.insert(id, Instant::now() + REST);
                }
            }
            if shared.stop_loops.is_cancelled() {
                break;
            }
        }
        Ok(ended)
    }
}

/// Tell the index of the jobs that wait again. A job that is due at once, because it lost its first attempt, goes to
/// the front of its lane: it was started before the jobs that wait there.
async fn tell(shared: &EngineState, reaped: Vec<Reaped>) {
    let now = shared.store.clock().now();
    let mut first = Vec::new();
    for reaped in reaped {
        shared.attempt_metrics.record_ended(&reaped.kind, Verdict::Lost);
        shared.broker.meters().record_settled(Some(&reaped.queue), Verdict::Lost, reaped.state);
        if let Settled::Done { released, .. } = &reaped.settled {
            released.iter().for_each(|job| shared.broker.hint_released(job));
        }
        let Settled::Done { execute_at: Some(execute_at), line: Some((queue, priority)), .. } = reaped.settled else {
            continue;
        };
        if execute_at <= now {
            first.push(Entry { id: reaped.id, line: Lane::new(&queue, priority), execute_at });
        } else {
            shared.broker.hint(reaped.id, &queue, priority, execute_at);
        }
    }
    first.sort_unstable_by_key(|entry| (entry.execute_at, entry.id));
    shared.broker.put_first(&shared.index, &first).await;
}

/// Record steps of MySQL's clock in MySQL. They are evidence for `tickr verify`, and processes that start later take
/// them off the ages of remote workers' attempts.
async fn note_steps(shared: &EngineState) {
    for step in shared.heartbeats.take_steps() {
        if let Err(error) = shared.store.note_clock_step(&shared.runner, step).await {
            tracing::warn!(%error, "cannot record that the clock of mysql was set: tickr verify may report overlapping attempts");
        }
    }
}

/// Return whether this reading of MySQL's clock allows to call other runners dead.
fn may_judge(shared: &EngineState, reading: &Reading) -> bool {
    let lease = shared.settings.lease;
    if let Some(step) = shared.heartbeats.record_clock(reading, lease) {
        tracing::warn!(
            step_ms = step.num_milliseconds(),
            "the clock of mysql was set, calling no runner dead for a lease"
        );
    }
    let may = shared.heartbeats.may_call_dead(lease, lease);
    if !may {
        tracing::debug!("the heartbeat was interrupted or has just started: calling no runner dead yet");
    }
    may
}

/// Return whether this is a runner with a shorter lease that may be called dead if it is silent.
fn may_call_shorter_dead(shared: &EngineState, beat: &RunnerBeat) -> bool {
    let lease = shared.settings.lease;
    judging_lease(shared, beat) < lease && shared.heartbeats.may_call_runner_dead(lease, beat.lease)
}

/// Return whether this runner or remote worker, which is watched, may be called dead if it is silent.
fn may_call_dead(shared: &EngineState, beat: &RunnerBeat) -> bool {
    let lease = shared.settings.lease;
    let is_shorter = judging_lease(shared, beat) < lease;
    if is_shorter { may_call_shorter_dead(shared, beat) } else { shared.heartbeats.may_call_dead(lease, beat.lease) }
}

/// Return the lease by which this runner or remote worker is judged: the one of this runner, or its own if that is
/// shorter. A remote worker is always judged by the longer one.
fn judging_lease(shared: &EngineState, beat: &RunnerBeat) -> Duration {
    let lease = shared.settings.lease;
    if beat.is_remote { lease } else { beat.lease.min(lease) }
}

fn delta(duration: Duration) -> TimeDelta {
    TimeDelta::from_std(duration).unwrap_or_default()
}

/// Give back, from time to time, what this runner claimed without receiving an answer, or found no room for after its
/// COMMIT. This is a loop of its own, because it may have to wait for a row that another session has locked.
pub(super) async fn give_back_until_stopped(shared: Arc<EngineState>) {
    loop {
        tokio::select! {
            () = shared.stop_loops.cancelled() => return,
            () = tokio::time::sleep(LOOK_AGAIN.mul_f64(0.5 + rand::random::<f64>())) => {}
        }
        if shared.store.unanswered_claims() > 0
            && let Err(error) = give_back_unanswered(&shared).await
        {
            tracing::debug!(%error, "cannot give claims back yet that were not started");
        }
    }
}

/// Give back the jobs that this runner claimed without receiving an answer, or found no room for after its COMMIT.
pub(super) async fn give_back_unanswered(shared: &EngineState) -> Result<(), StoreError> {
    let given = shared.store.give_back_unanswered().await?;
    if !given.is_empty() {
        tracing::warn!(jobs = given.len(), "gave back jobs that were claimed and not started");
    }
    for given in given {
        announce(shared, &given, Verdict::Interrupted);
    }
    Ok(())
}

/// Report an attempt that was ended without its runner to the metrics and to the index.
pub(super) fn announce(shared: &EngineState, ended: &Reaped, verdict: Verdict) {
    shared.broker.meters().record_settled(Some(&ended.queue), verdict, ended.state);
    if let Settled::Done { released, .. } = &ended.settled {
        released.iter().for_each(|job| shared.broker.hint_released(job));
    }
    if let Settled::Done { execute_at: Some(execute_at), line: Some((queue, priority)), .. } = &ended.settled {
        shared.broker.hint(ended.id, queue, *priority, *execute_at);
    }
}
