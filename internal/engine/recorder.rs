//! The recorder: writes what this runner counts into the history that all runners share and charts show.
//!
//! One loop ends the open slot every five seconds by MySQL's clock, and never waits for a server. It also counts the
//! samples of the histograms of `/metrics`, which would use up the memory of a runner whose page is not read. Another
//! loop writes the rows of ended slots, and removes rows that are too old. A slot in which nothing happened has no
//! rows. While MySQL is out or slow, rows wait in memory; when too many wait, the oldest are dropped. Then charts have
//! a gap, and nothing else is affected.
//!
//! The recorder stops after the last request was served, later than the loops of the engine. Then it writes the open
//! slot. The recorder of a held process ends slots, so that counted figures take no memory, and writes and removes no
//! row.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::keep_running;
use tickr_broker::Broker;
use tickr_job::{Name, RunnerId, Series, SlotWidth, Tally, Timestamp};
use tickr_store::{MAX_SAMPLES, Sample, StoreError};
use tickr_telemetry::Slot;

/// Most rows that may wait for MySQL.
const MAX_WAITING: usize = 5_000;
/// Time between two removals of old rows, before jitter.
const PURGE_EVERY: Duration = Duration::from_secs(60);
/// Longest time before the first removal.
const FIRST_PURGE: Duration = Duration::from_secs(5);
/// Most pages of one removal.
const PAGES: usize = 50;
/// Pause between pages, so that removals leave the disk to jobs.
const BREATH: Duration = Duration::from_millis(20);
/// Longest time that a stop waits until the last rows are written.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The running recorder.
#[derive(Debug)]
pub struct Recorder {
    shared: Arc<RecorderState>,
    loops: TaskTracker,
    /// Ends the loops, also when the recorder is dropped.
    _stop: DropGuard,
}

struct RecorderState {
    broker: Broker,
    runner: RunnerId,
    /// Queues that always have a series of their own.
    queues: Vec<Name>,
    /// The process changes no row of its own accord.
    held: bool,
    unwritten: Mutex<UnwrittenSamples>,
    /// Wakes the loop that writes rows.
    filled: Notify,
    stop: CancellationToken,
}

impl std::fmt::Debug for RecorderState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecorderState").field("runner", &self.runner).finish_non_exhaustive()
    }
}

impl Recorder {
    /// Start to record what this runner counts. `queues` are the queues that it serves. If the process is `held`, what
    /// it counts is forgotten.
    #[must_use]
    pub fn start(broker: Broker, runner: RunnerId, queues: Vec<Name>, held: bool) -> Self {
        let stop = CancellationToken::new();
        let unwritten = UnwrittenSamples::open(SlotWidth::FiveSeconds.floor(broker.store().clock().now()));
        // What was counted before this moment happened while the process started. It belongs to the first slot as well.
        broker.meters().serve(&queues);
        let (unwritten, filled) = (Mutex::new(unwritten), Notify::new());
        let shared = Arc::new(RecorderState { broker, runner, queues, held, unwritten, filled, stop: stop.clone() });
        let loops = TaskTracker::new();
        keep_running(&loops, &shared, "recorder", |shared| async move { shared.turn_until_stopped().await });
        if !held {
            keep_running(&loops, &shared, "samples", |shared| async move { shared.write_until_stopped().await });
        }
        Self { shared, loops, _stop: stop.drop_guard() }
    }

    /// Stop, and write everything counted so far. What MySQL does not accept within two seconds is lost.
    pub async fn stop(self) {
        let Self { shared, loops, _stop } = self;
        shared.stop.cancel();
        loops.close();
        let last_words = async {
            loops.wait().await;
            shared.close_slot(shared.broker.store().clock().now(), true);
            shared.write().await
        };
        let written = tokio::time::timeout(LAST_WORDS, last_words).await;
        if !matches!(written, Ok(Ok(()))) {
            let rows = shared.unwritten().waiting.len();
            metrics::counter!("tickr_samples_lost_total").increment(rows as u64);
            tracing::debug!(rows, "the last samples were not written");
        }
    }
}

impl RecorderState {
    fn unwritten(&self) -> MutexGuard<'_, UnwrittenSamples> {
        self.unwritten.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn turn_until_stopped(&self) {
        let clock = self.broker.store().clock();
        loop {
            let end = self.unwritten().slot + SlotWidth::FiveSeconds.width();
            // The estimate of MySQL's clock may move back a little, and the clock itself may be set by any amount.
            let rest = (end - clock.now()).clamp(chrono::TimeDelta::milliseconds(1), SlotWidth::FiveSeconds.width());
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(rest.to_std().unwrap_or_default()) => {}
            }
            self.close_slot(clock.now(), false);
            tickr_telemetry::count_samples();
        }
    }

    /// End the open slot if its time is over. With `last`, end it in any case.
    fn close_slot(&self, now: Timestamp, last: bool) {
        let mut unwritten = self.unwritten();
        let next = SlotWidth::FiveSeconds.floor(now);
        let back = unwritten.slot - next;
        if !last && back >= chrono::TimeDelta::zero() && back <= SlotWidth::FiveSeconds.width() {
            return;
        }
        // A queue keeps its series for a quarter of an hour, so that its line in a chart does not come and go. After
        // that only the queues served here keep theirs; others get one again with their next event.
        let keep = SlotWidth::Quarter.floor(next) == SlotWidth::Quarter.floor(unwritten.slot);
        let slot = self.broker.meters().close_slot(Slot::new(self.queues.iter().cloned()), keep);
        if !self.held {
            unwritten.take(&slot);
        }
        unwritten.slot = next;
        let lost = unwritten.drop_oldest();
        let filled = !unwritten.waiting.is_empty();
        drop(unwritten);
        if lost > 0 {
            metrics::counter!("tickr_samples_lost_total").increment(lost as u64);
        }
        if filled {
            self.filled.notify_one();
        }
    }

    async fn write_until_stopped(&self) {
        let mut purge = Instant::now() + FIRST_PURGE.mul_f64(rand::random());
        loop {
            let round = async {
                tokio::select! {
                    () = self.filled.notified() => self.write().await,
                    () = tokio::time::sleep_until(purge) => {
                        purge = Instant::now() + PURGE_EVERY.mul_f64(0.5 + rand::random::<f64>());
                        self.purge().await
                    }
                }
            };
            // A stop may interrupt a write. The stop writes the same rows again, which changes nothing.
            let done = tokio::select! {
                () = self.stop.cancelled() => return,
                done = round => done,
            };
            if let Err(error) = done {
                tracing::debug!(%error, "cannot write samples of the history");
                metrics::counter!("tickr_samples_errors_total").increment(1);
            }
        }
    }

    /// Write the rows that wait. A written row leaves the book, unless its figures have grown meanwhile.
    async fn write(&self) -> Result<(), StoreError> {
        loop {
            let samples = self.unwritten().next();
            if samples.is_empty() {
                return Ok(());
            }
            self.broker.store().write_samples(&self.runner, samples.clone()).await?;
            self.unwritten().mark_written(&samples);
        }
    }

    async fn purge(&self) -> Result<(), StoreError> {
        for _ in 0..PAGES {
            if !self.broker.store().purge_samples().await? {
                break;
            }
            tokio::time::sleep(BREATH).await;
        }
        Ok(())
    }
}

/// Identity of a row: width and start of its slot, and its series.
type SampleKey = (SlotWidth, Timestamp, Series);

/// Figures that were counted and are not written yet.
struct UnwrittenSamples {
    /// Start of the open slot.
    slot: Timestamp,
    /// The open wide slots: the start of each, and what was counted in it so far.
    growing: [(Timestamp, BTreeMap<Series, Box<Tally>>); 2],
    waiting: BTreeMap<SampleKey, Sample>,
}

/// Widths of the slots that are summed up from slots of five seconds.
const WIDE: [SlotWidth; 2] = [SlotWidth::Minute, SlotWidth::Quarter];

impl UnwrittenSamples {
    fn open(slot: Timestamp) -> Self {
        let growing = WIDE.map(|step| (step.floor(slot), BTreeMap::new()));
        Self { slot, growing, waiting: BTreeMap::new() }
    }

    /// Add the slot that has ended.
    fn take(&mut self, slot: &Slot) {
        let (began, counted_to) = (self.slot, self.slot + SlotWidth::FiveSeconds.width());
        let mut all = Tally::default();
        let mut happened: Vec<(Series, &Tally)> = Vec::new();
        for (queue, tally) in slot.tallies().filter(|(_, tally)| !tally.is_empty()) {
            all.add(tally);
            happened.push((queue.map_or(Series::Other, |queue| Series::Queue(queue.clone())), tally));
        }
        if happened.is_empty() {
            return;
        }
        happened.push((Series::All, &all));
        for (series, tally) in happened {
            let mut wait = |step, at, tally: &Tally| {
                let place = (step, at, series.clone());
                let sample = Sample { step, at, series: series.clone(), counted_to, figures: tally.into() };
                self.waiting.insert(place, sample);
            };
            wait(SlotWidth::FiveSeconds, began, tally);
            for (step, (at, tallies)) in WIDE.into_iter().zip(&mut self.growing) {
                if *at != step.floor(began) {
                    *at = step.floor(began);
                    tallies.clear();
                }
                let grown = tallies.entry(series.clone()).or_default();
                grown.add(tally);
                wait(step, *at, grown);
            }
        }
    }

    /// Drop the oldest rows beyond the limit, those of the narrowest slots first. Return how many were dropped.
    fn drop_oldest(&mut self) -> usize {
        let lost = self.waiting.len().saturating_sub(MAX_WAITING);
        for _ in 0..lost {
            self.waiting.pop_first();
        }
        lost
    }

    /// Return the next rows to write.
    fn next(&self) -> Vec<Sample> {
        self.waiting.values().take(MAX_SAMPLES).cloned().collect()
    }

    /// Remove rows that were written.
    fn mark_written(&mut self, samples: &[Sample]) {
        for sample in samples {
            let place = (sample.step, sample.at, sample.series.clone());
            if self.waiting.get(&place).is_some_and(|waits| waits.counted_to == sample.counted_to) {
                self.waiting.remove(&place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tickr_telemetry::Meters;

    fn at(text: &str) -> Timestamp {
        format!("2026-03-29T{text}Z").parse().unwrap()
    }

    /// Return a slot in which this many jobs were accepted.
    fn slot(accepted: usize) -> Slot {
        let (meters, queue) = (Meters::default(), "mail".parse().unwrap());
        meters.record_accepted(std::iter::repeat_n(&queue, accepted));
        meters.close_slot(Slot::default(), false)
    }

    #[test]
    fn wide_slots_grow_and_begin_anew_and_nothing_is_a_row() {
        let mut unwritten = UnwrittenSamples::open(at("12:14:50"));
        unwritten.take(&slot(3));
        unwritten.slot = at("12:14:55");
        unwritten.take(&slot(4));
        unwritten.slot = at("12:15:00");
        unwritten.take(&slot(0));
        unwritten.slot = at("12:15:05");
        unwritten.take(&slot(5));
        let seen: Vec<_> = unwritten
            .waiting
            .iter()
            .map(|(place, sample)| {
                (place.0.seconds(), place.1, place.2.as_str().to_owned(), sample.counted_to, sample.figures.accepted())
            })
            .collect();
        let mail =
            seen.iter().filter(|row| row.2 == "mail").map(|row| (row.0, row.1, row.3, row.4)).collect::<Vec<_>>();
        assert_eq!(
            mail,
            [
                (5, at("12:14:50"), at("12:14:55"), 3),
                (5, at("12:14:55"), at("12:15:00"), 4),
                (5, at("12:15:05"), at("12:15:10"), 5),
                (60, at("12:14:00"), at("12:15:00"), 7),
                (60, at("12:15:00"), at("12:15:10"), 5),
                (900, at("12:00:00"), at("12:15:00"), 7),
                (900, at("12:15:00"), at("12:15:10"), 5),
            ]
        );
        // The series of all queues has the same rows.
        assert_eq!(seen.iter().filter(|row| row.2.is_empty()).count(), mail.len());
    }

    #[test]
    fn what_has_grown_during_its_write_is_written_again_and_too_much_is_given_up() {
        let mut unwritten = UnwrittenSamples::open(at("12:00:00"));
        unwritten.take(&slot(3));
        let writing = unwritten.next();
        unwritten.slot = at("12:00:05");
        unwritten.take(&slot(4));
        unwritten.mark_written(&writing);
        assert_eq!(unwritten.next().iter().map(|sample| sample.figures.accepted()).max(), Some(7));
        unwritten.mark_written(&unwritten.next());
        assert!(unwritten.next().is_empty());

        for second in 0..MAX_WAITING {
            unwritten.slot = at("13:00:00") + SlotWidth::FiveSeconds.width() * second as i32;
            unwritten.take(&slot(1));
            unwritten.drop_oldest();
        }
        assert_eq!(unwritten.waiting.len(), MAX_WAITING);
        // The oldest rows of the narrowest slots were dropped. The rows behind the charts of an hour and of a day
        // remain.
        assert!(unwritten.waiting.contains_key(&(SlotWidth::Quarter, at("13:00:00"), Series::All)));
    }
}
