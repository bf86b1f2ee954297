//! The ticker: processes the ticks of schedules. It sleeps until the next tick is due, and then enqueues its job or
//! records why it was skipped.
//!
//! Every runner has a ticker, and MySQL lets only one of them process a tick. So that they do not all try to lock the
//! same row each time, a ticker that came too late becomes a follower: it looks a little later than the others. When a
//! follower finds a tick that is not processed, the leader is gone, and the follower leads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::EngineState;
use super::alarm::Alarm;
use tickr_job::{Actor, Name, Timestamp};
use tickr_store::{ChangeSummary, Scheduled, StoreError, Ticked, UnreadableSchedule};

/// Most schedules processed in one transaction.
const MAX_AT_ONCE: u32 = 64;
/// Longest sleep between looks while no summary of changes comes, or while schedules are skipped that a summary shows.
/// It bounds how long a change made through another process goes unnoticed.
const MAX_SLEEP: Duration = Duration::from_millis(1_500);
/// Longest sleep while summaries come. Each of them shows the next tick.
const MAX_SLEEP_WITH_SUMMARIES: Duration = Duration::from_secs(10);
/// Extra delay of a follower, before jitter.
const BEHIND: Duration = Duration::from_millis(100);
/// Pauses between tries while MySQL does not answer, before jitter.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// Time for which a schedule is skipped after another session had it, its order key or its previous job locked, or after
/// its tick was left to a runner of another version.
const LOCKED_RESTS: Duration = Duration::from_millis(250);
/// Time for which a schedule is skipped after MySQL refused to write its ticks, and the most such schedules remembered.
const REST: Duration = Duration::from_secs(60);
const MAX_SKIPPED: usize = 2_000;

/// Skipped schedules, each with the moment when it is tried again.
type SkippedSchedules = BTreeMap<String, Instant>;

/// Result of one look for due ticks.
enum TickLook {
    /// Ticks were due. This ticker or another one processed them.
    Ticked {
        /// Other runners had processed all of them.
        too_late: bool,
    },
    /// No tick is due. Holds the due time of the next one, if one is known.
    Nothing(Option<Timestamp>),
}

pub(super) async fn run_until_stopped(shared: Arc<EngineState>, alarm: Arc<Alarm>) {
    let runner = Actor::runner(&shared.runner);
    let (mut follows, mut pause, mut unreadable) = (false, FIRST_PAUSE, BTreeSet::new());
    let mut skipped = SkippedSchedules::new();
    let mut summaries = shared.operator_settings.summaries();
    loop {
        let looked = Instant::now();
        // Schedules of declared kinds may be fired by any runner.
        let kinds = shared.registry.known_names();
        let sleep = match look(&shared, &kinds, &runner, &mut unreadable, &mut skipped).await {
            Ok(TickLook::Ticked { too_late }) => {
                pause = FIRST_PAUSE;
                follows = too_late;
                if shared.stop_loops.is_cancelled() {
                    return;
                }
                continue;
            }
            Ok(TickLook::Nothing(next)) => {
                pause = FIRST_PAUSE;
                let behind = if follows { BEHIND.mul_f64(1.0 + rand::random::<f64>()) } else { Duration::ZERO };
                let retry = skipped.values().min().copied();
                if !sleep_until_worth_a_look(&shared, &alarm, &mut summaries, (next, behind, retry), looked).await {
                    return;
                }
                continue;
            }
            Err(error) => {
                tracing::warn!(%error, "cannot process the ticks of schedules");
                let jittered = pause.mul_f64(0.5 + rand::random::<f64>() / 2.0);
                pause = (pause * 2).min(MAX_PAUSE);
                jittered
            }
        };
        let deadline = Instant::now() + sleep;
        tokio::select! {
            () = shared.stop_loops.cancelled() => return,
            () = alarm.at(deadline) => {}
            () = shared.broker.wake().ticker() => {}
        }
    }
}

/// Sleep until the next tick is due, a schedule may have changed, or no summary of changes comes. A follower sleeps
/// `behind` longer. `retry` is when a skipped schedule is tried again, and `looked` when the last look began. Return false
/// when the runner stops.
async fn sleep_until_worth_a_look(
    shared: &EngineState,
    alarm: &Alarm,
    summaries: &mut watch::Receiver<Option<Arc<ChangeSummary>>>,
    (next, behind, retry): (Option<Timestamp>, Duration, Option<Instant>),
    looked: Instant,
) -> bool {
    loop {
        // Computed again after each summary, because MySQL's clock may have been set.
        let until_next = next.map(|next| (next - shared.store.clock().now()).to_std().unwrap_or_default() + behind);
        let deadline = Instant::now() + until_next.map_or(MAX_SLEEP, |until_next| until_next.min(MAX_SLEEP));
        let deadline = retry.map_or(deadline, |retry| retry.min(deadline));
        tokio::select! {
            () = shared.stop_loops.cancelled() => return false,
            () = alarm.at(deadline) => return true,
            () = shared.broker.wake().ticker() => return true,
            changed = summaries.changed() => {
                let summary = summaries.borrow_and_update().clone();
                let is_news = summary.is_some_and(|summary| summary.asked > looked && summary.next_tick != next);
                if changed.is_err() || is_news || looked.elapsed() >= MAX_SLEEP_WITH_SUMMARIES {
                    return true;
                }
            }
        }
    }
}

async fn look(
    shared: &EngineState,
    kinds: &[Name],
    runner: &Actor,
    unreadable: &mut BTreeSet<String>,
    skipped: &mut SkippedSchedules,
) -> Result<TickLook, StoreError> {
    skipped.retain(|_, until| Instant::now() < *until);
    let without = skipped.keys().cloned().collect();
    let found = shared.store.due_schedules(kinds.to_vec(), MAX_AT_ONCE, without).await?;
    let mut rows = Vec::with_capacity(found.due.len());
    for row in found.due {
        match row {
            Ok(row) => rows.push(row),
            // It stays due and is found at every look, but it is logged only once.
            Err(UnreadableSchedule { name, why }) => {
                if unreadable.insert(name.clone()) {
                    tracing::error!(schedule = name, why, "this binary cannot read a schedule, skipping it");
                }
            }
        }
    }
    if rows.is_empty() {
        return Ok(TickLook::Nothing(found.next));
    }
    let tracer = &shared.settings.tracer;
    let ticked = match shared.broker.tick(rows.clone(), found.now, runner, tracer).await {
        Err(error) if !error.is_transient() => {
            tracing::warn!(%error, schedules = rows.len(), "cannot write ticks together, writing them one by one");
            one_by_one(shared, rows, found.now, runner, skipped).await?
        }
        ticked => ticked?,
    };
    let rests_until = Instant::now() + LOCKED_RESTS;
    skipped.extend(ticked.left.iter().map(|name| (name.to_string(), rests_until)));
    Ok(TickLook::Ticked { too_late: ticked.overtaken > 0 && ticked.lines.is_empty() })
}

/// Process the ticks of each schedule in a transaction of its own. A schedule that MySQL refuses must not stop the
/// others.
async fn one_by_one(
    shared: &EngineState,
    rows: Vec<Scheduled>,
    now: Timestamp,
    runner: &Actor,
    skipped: &mut SkippedSchedules,
) -> Result<Ticked, StoreError> {
    let mut all = Ticked::default();
    for row in rows {
        let name = row.name.to_string();
        match shared.broker.tick(vec![row], now, runner, &shared.settings.tracer).await {
            Ok(ticked) => {
                all.overtaken += ticked.overtaken;
                all.left.extend(ticked.left);
                all.lines.extend(ticked.lines);
            }
            Err(error) if error.is_transient() => return Err(error),
            Err(error) => {
                tracing::error!(schedule = name, %error, "cannot write the ticks of a schedule, skipping it for a minute");
                if skipped.len() < MAX_SKIPPED {
                    skipped.insert(name, Instant::now() + REST);
                }
            }
        }
    }
    Ok(all)
}
