//! The ticker: processes the ticks of schedules. It sleeps until the next tick is due, and then enqueues its job or
//! records why it was skipped.
//!
//! Every runner has a ticker, and MySQL lets only one of them process a tick. So that they do not all try to lock the
//! same row each time, a ticker that came too late becomes a follower: it looks a little later than the others. When a
//! follower finds a tick that is not processed, the leader is gone, and the follower leads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::EngineState;
use super::alarm::Alarm;
use tickr_job::{Actor, Name, Timestamp};
use tickr_store::{Scheduled, StoreError, Ticked, UnreadableSchedule};

/// Most schedules processed in one transaction.
const MAX_AT_ONCE: u32 = 64;
/// Longest sleep. It bounds how long a change made through another process goes unnoticed.
const MAX_SLEEP: Duration = Duration::from_secs(1);
/// Extra delay of a follower, before jitter.
const BEHIND: Duration = Duration::from_millis(100);
/// Pauses between tries while MySQL does not answer, before jitter.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(2);
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
    /// No tick is due. Holds the time until the next one, if one is known.
    Nothing(Option<Duration>),
}

pub(super) async fn run_until_stopped(shared: Arc<EngineState>, alarm: Arc<Alarm>) {
    let runner = Actor::runner(&shared.runner);
    let kinds = shared.registry.names();
    let (mut follows, mut pause, mut unreadable) = (false, FIRST_PAUSE, BTreeSet::new());
    let mut skipped = SkippedSchedules::new();
    loop {
        let sleep = match look(&shared, &kinds, &runner, &mut unreadable, &mut skipped).await {
            Ok(TickLook::Ticked { too_late }) => {
                pause = FIRST_PAUSE;
                follows = too_late;
                if shared.stop_loops.is_cancelled() {
                    return;
                }
                continue;
            }
            Ok(TickLook::Nothing(until_next)) => {
                pause = FIRST_PAUSE;
                let behind = if follows { BEHIND.mul_f64(1.0 + rand::random::<f64>()) } else { Duration::ZERO };
                until_next.map_or(MAX_SLEEP, |until| until + behind).min(MAX_SLEEP)
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
        let now = shared.store.clock().now();
        return Ok(TickLook::Nothing(found.next.map(|next| (next - now).to_std().unwrap_or(Duration::ZERO))));
    }
    let tracer = &shared.settings.tracer;
    let ticked = match shared.broker.tick(rows.clone(), found.now, runner, tracer).await {
        Err(error) if !error.is_transient() => {
            tracing::warn!(%error, schedules = rows.len(), "cannot write ticks together, writing them one by one");
            one_by_one(shared, rows, found.now, runner, skipped).await?
        }
        ticked => ticked?,
    };
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
