//! The ticker: sees to the ticks of schedules. Sleeps until the next one is due, and carries out what becomes of it.
//!
//! Every runner has one, and the store lets only one of them carry out a tick. So that they do not all run for the same
//! row each time, whoever came too late follows: from then on it looks a little after the others. If it ever finds a tick
//! that nobody has seen to, the one it followed is gone, and it leads itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Shared;
use super::alarm::Alarm;
use crate::job::{Actor, Name, Timestamp};
use crate::store::{Scheduled, StoreError, Ticked, UnreadableSchedule};

/// Most schedules seen to in one transaction.
const MOST_AT_ONCE: u32 = 64;
/// Longest sleep: bounds how long a change through another process goes unnoticed.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
/// How much later a follower looks, before jitter.
const BEHIND: Duration = Duration::from_millis(100);
/// Pauses between tries while the store does not answer, before jitter.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// How long a schedule is left alone whose ticks MySQL refuses to write, and how many are remembered.
const REST: Duration = Duration::from_secs(60);
const MOST_AT_REST: usize = 2_000;

/// Schedules that are left alone, and until when.
type AtRest = BTreeMap<String, Instant>;

/// What a look found.
enum Look {
    /// Ticks were due, and it carried them out, or others had.
    Ticked {
        /// All of them were others'.
        too_late: bool,
    },
    /// Nothing is due for so long, as far as it can see.
    Nothing(Option<Duration>),
}

pub(super) async fn run_until_stopped(shared: Arc<Shared>, alarm: Arc<Alarm>) {
    let runner = Actor::runner(&shared.runner);
    let kinds = shared.registry.names();
    let (mut follows, mut pause, mut unreadable) = (false, FIRST_PAUSE, BTreeSet::new());
    let mut at_rest = AtRest::new();
    loop {
        let sleep = match look(&shared, &kinds, &runner, &mut unreadable, &mut at_rest).await {
            Ok(Look::Ticked { too_late }) => {
                pause = FIRST_PAUSE;
                follows = too_late;
                if shared.stop_loops.is_cancelled() {
                    return;
                }
                continue;
            }
            Ok(Look::Nothing(until_next)) => {
                pause = FIRST_PAUSE;
                let behind = if follows { BEHIND.mul_f64(1.0 + rand::random::<f64>()) } else { Duration::ZERO };
                until_next.map_or(LONGEST_SLEEP, |until| until + behind).min(LONGEST_SLEEP)
            }
            Err(error) => {
                tracing::warn!(%error, "cannot see to the ticks of schedules");
                let jittered = pause.mul_f64(0.5 + rand::random::<f64>() / 2.0);
                pause = (pause * 2).min(LONGEST_PAUSE);
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
    shared: &Shared,
    kinds: &[Name],
    runner: &Actor,
    unreadable: &mut BTreeSet<String>,
    at_rest: &mut AtRest,
) -> Result<Look, StoreError> {
    at_rest.retain(|_, until| Instant::now() < *until);
    let without = at_rest.keys().cloned().collect();
    let found = shared.store.due_schedules(kinds.to_vec(), MOST_AT_ONCE, without).await?;
    let mut rows = Vec::with_capacity(found.due.len());
    for row in found.due {
        match row {
            Ok(row) => rows.push(row),
            // It stays due, and is looked at again and again; it is told once.
            Err(UnreadableSchedule { name, why }) => {
                if unreadable.insert(name.clone()) {
                    tracing::error!(
                        schedule = name,
                        why,
                        "a schedule cannot be understood by this binary, it is left alone"
                    );
                }
            }
        }
    }
    if rows.is_empty() {
        let now = shared.store.clock().now();
        return Ok(Look::Nothing(found.next.map(|next| (next - now).to_std().unwrap_or(Duration::ZERO))));
    }
    let tracer = &shared.settings.tracer;
    let ticked = match shared.broker.tick(rows.clone(), found.now, runner, tracer).await {
        Err(error) if !error.is_transient() => {
            tracing::warn!(%error, schedules = rows.len(), "cannot write ticks together, writing them one by one");
            one_by_one(shared, rows, found.now, runner, at_rest).await?
        }
        ticked => ticked?,
    };
    Ok(Look::Ticked { too_late: ticked.overtaken > 0 && ticked.lines.is_empty() })
}

/// See to the ticks of each schedule in a transaction of its own: one that MySQL refuses must not stop the others.
async fn one_by_one(
    shared: &Shared,
    rows: Vec<Scheduled>,
    now: Timestamp,
    runner: &Actor,
    at_rest: &mut AtRest,
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
                tracing::error!(schedule = name, %error, "cannot write the ticks of a schedule, it is left alone for a minute");
                if at_rest.len() < MOST_AT_REST {
                    at_rest.insert(name, Instant::now() + REST);
                }
            }
        }
    }
    Ok(all)
}
