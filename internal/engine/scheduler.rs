//! The scheduler: sleeps until the next entry of the index is due, moves due entries to the ready lists, and sleeps
//! again. Workers never wait for a due time; they wait for ids.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::EngineState;
use super::alarm::Alarm;
use tickr_index::{Health, IndexError, MoveReport};
use tickr_job::Timestamp;

/// Most entries moved by one script. It bounds how long the script blocks Redis.
const MAX_AT_ONCE: usize = 500;
/// Longest sleep. It bounds how long a flushed index, a clock that was set, or an earlier job of another runner goes
/// unnoticed.
const MAX_SLEEP: Duration = Duration::from_secs(1);
/// Longest time without a whole look, while smaller looks show that nothing has changed. It bounds how long a Redis that
/// takes no writes goes unnoticed.
const MAX_PEEKING: Duration = Duration::from_secs(5);
/// Pauses between tries while Redis does not answer, before jitter.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// Longest pause before the next look at an index that has lost its data.
const LOST_PAUSE: Duration = Duration::from_millis(200);
/// A move of so many entries, with more due at once, is a flood: the next move waits for [`GATHERING`]. Due times are whole
/// milliseconds, so with 10,000 jobs a second each move would find ten entries, and Redis would spend its time on calls.
const FLOOD: usize = 8;
/// Time for which the scheduler gathers due entries in a flood. It is the most that this adds to their lateness.
const GATHERING: Duration = Duration::from_millis(3);

pub(super) async fn run_until_stopped(shared: Arc<EngineState>, alarm: Arc<Alarm>) {
    let mut pause = FIRST_PAUSE;
    let mut asleep_until = i64::MAX;
    // The moment of the last whole look that moved nothing, and the next entry that it found.
    let mut quiet: Option<(Instant, Option<Timestamp>)> = None;
    loop {
        let wake = shared.broker.wake();
        // Count as awake until the look is over: a hint that arrives meanwhile leaves a wake-up, which ends the next
        // sleep at once.
        wake.scheduler_sleeps_until(i64::MAX);
        let unchanged = match quiet.filter(|(looked, next)| is_worth_a_peek(&shared, *looked, *next)) {
            Some((_, next)) => shared.index.is_quiet().await.map(|quiet| quiet.then_some(next)),
            None => Ok(None),
        };
        let looked = match unchanged {
            Ok(Some(next)) => Ok(MoveReport { next, ..MoveReport::default() }),
            Ok(None) => look(&shared).await.inspect(|report| {
                quiet = (report.moved == 0 && report.refill.is_empty()).then(|| (Instant::now(), report.next));
            }),
            Err(error) => Err(error),
        };
        let sleep = match looked {
            Ok(report) => {
                // A Redis that answers this call but fails the rebuild is not healthy yet, so the pauses keep growing.
                if shared.index.health().now() == Health::Fast {
                    pause = FIRST_PAUSE;
                }
                if !report.refill.is_empty() {
                    shared.refill.notify_one();
                }
                // The moves of several partitions add up.
                if report.moved >= MAX_AT_ONCE {
                    continue;
                }
                let now = shared.store.clock().now();
                asleep_until = report.next.map_or(i64::MAX, |next| next.timestamp_millis());
                let until_next = report.next.map(|next| (next - now).to_std().unwrap_or(Duration::ZERO));
                sleep_after(report.moved, until_next)
            }
            Err(error) => {
                quiet = None;
                shared.reconcile.notify_one();
                let jittered = pause.mul_f64(0.5 + rand::random::<f64>() / 2.0);
                pause = (pause * 2).min(MAX_PAUSE);
                match error {
                    IndexError::Lost { .. } => jittered.min(LOST_PAUSE),
                    IndexError::Unavailable { .. } | IndexError::Url | IndexError::Certificates { .. } => jittered,
                }
            }
        };
        wake.scheduler_sleeps_until(asleep_until);
        let deadline = Instant::now() + sleep;
        tokio::select! {
            () = shared.stop_loops.cancelled() => return,
            () = alarm.at(deadline) => {}
            () = wake.scheduler() => quiet = None,
        }
    }
}

/// Return how long to sleep after a move of so many entries, when the next one is due after this time.
fn sleep_after(moved: usize, until_next: Option<Duration>) -> Duration {
    let sleep = until_next.unwrap_or(MAX_SLEEP).min(MAX_SLEEP);
    if moved >= FLOOD && sleep < GATHERING { GATHERING } else { sleep }
}

/// Return whether a small look is enough: the last whole look is not long ago, and the entry that it found is not due.
fn is_worth_a_peek(shared: &EngineState, looked: Instant, next: Option<Timestamp>) -> bool {
    looked.elapsed() < MAX_PEEKING
        && shared.index.health().now() == Health::Fast
        && next.is_none_or(|next| next > shared.store.clock().now())
}

async fn look(shared: &EngineState) -> Result<MoveReport, IndexError> {
    let clock = shared.store.clock();
    let report = shared.index.move_due(MAX_AT_ONCE, |when| clock.at(when)).await?;
    if shared.index.health().now() == Health::Rebuilding {
        shared.reconcile.notify_one();
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheduler_gathers_due_entries_in_a_flood_only() {
        let ms = Duration::from_millis;
        assert_eq!(sleep_after(FLOOD, Some(Duration::ZERO)), GATHERING);
        assert_eq!(sleep_after(FLOOD, Some(ms(1))), GATHERING);
        assert_eq!(sleep_after(FLOOD, Some(ms(20))), ms(20), "the flood is over");
        assert_eq!(sleep_after(FLOOD - 1, Some(ms(1))), ms(1), "a few jobs start on time");
        assert_eq!(sleep_after(0, Some(ms(5_000))), MAX_SLEEP);
        assert_eq!(sleep_after(1, None), MAX_SLEEP);
    }
}
