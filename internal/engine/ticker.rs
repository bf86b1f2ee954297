//! The ticker: sees to the ticks of schedules. Sleeps until the next one is due, and carries out what becomes of it.
//!
//! Every runner has one, and the store lets only one of them carry out a tick. So that they do not all run for the same
//! row each time, whoever came too late follows: from then on it looks a little after the others. If it ever finds a tick
//! that nobody has seen to, the one it followed is gone, and it leads itself.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Shared;
use super::alarm::Alarm;
use crate::job::{Actor, Name};
use crate::store::{StoreError, UnreadableSchedule};

/// Most schedules seen to in one transaction.
const MOST_AT_ONCE: u32 = 64;
/// Longest sleep: bounds how long a change through another process goes unnoticed.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
/// How much later a follower looks, before jitter.
const BEHIND: Duration = Duration::from_millis(100);
/// Pauses between tries while the store does not answer, before jitter.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

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
    loop {
        let sleep = match look(&shared, &kinds, &runner, &mut unreadable).await {
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
) -> Result<Look, StoreError> {
    let found = shared.store.due_schedules(kinds.to_vec(), MOST_AT_ONCE).await?;
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
    let ticked = shared.broker.tick(rows, found.now, runner, &shared.settings.tracer).await?;
    Ok(Look::Ticked { too_late: ticked.overtaken > 0 && ticked.lines.is_empty() })
}
