//! The recorder: writes what this runner counts into the history that all runners share and charts show.
//!
//! One loop ends the open slot every five seconds by MySQL's clock, and never waits for a server. Another loop writes
//! the rows of ended slots, and removes rows that are too old. A slot in which nothing happened has no rows. While
//! MySQL is out or slow, rows wait in memory; when too many wait, the oldest are dropped. Then charts have a gap, and
//! nothing else is affected.
//!
//! The recorder stops after the last request was served, later than the loops of the engine. Then it writes the open
//! slot.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::keep_running;
use crate::broker::Broker;
use crate::job::{Name, RunnerId, Series, Step, Tally, Timestamp};
use crate::store::{MAX_SAMPLES, Sample, StoreError};
use crate::telemetry::Slot;

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
    shared: Arc<Shared>,
    loops: TaskTracker,
    /// Ends the loops, also when the recorder is dropped.
    _stop: DropGuard,
}

struct Shared {
    broker: Broker,
    runner: RunnerId,
    /// Queues that always have a series of their own.
    queues: Vec<Name>,
    book: Mutex<Book>,
    /// Wakes the loop that writes rows.
    filled: Notify,
    stop: CancellationToken,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("runner", &self.runner).finish_non_exhaustive()
    }
}

impl Recorder {
    /// Start to record what this runner counts. `queues` are the queues that it serves.
    #[must_use]
    pub fn start(broker: Broker, runner: RunnerId, queues: Vec<Name>) -> Self {
        let stop = CancellationToken::new();
        let book = Book::open(Step::FiveSeconds.floor(broker.store().clock().now()));
        // What was counted before this moment happened while the process started. It belongs to the first slot as well.
        broker.meters().serve(&queues);
        let (book, filled) = (Mutex::new(book), Notify::new());
        let shared = Arc::new(Shared { broker, runner, queues, book, filled, stop: stop.clone() });
        let loops = TaskTracker::new();
        keep_running(&loops, &shared, "recorder", |shared| async move { shared.turn_until_stopped().await });
        keep_running(&loops, &shared, "samples", |shared| async move { shared.write_until_stopped().await });
        Self { shared, loops, _stop: stop.drop_guard() }
    }

    /// Stop, and write everything counted so far. What MySQL does not accept within two seconds is lost.
    pub async fn stop(self) {
        let Self { shared, loops, _stop } = self;
        shared.stop.cancel();
        loops.close();
        let last_words = async {
            loops.wait().await;
            shared.turn(shared.broker.store().clock().now(), true);
            shared.write().await
        };
        let written = tokio::time::timeout(LAST_WORDS, last_words).await;
        if !matches!(written, Ok(Ok(()))) {
            let rows = shared.book().waiting.len();
            metrics::counter!("tickr_samples_lost_total").increment(rows as u64);
            tracing::debug!(rows, "the last samples were not written");
        }
    }
}

impl Shared {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn turn_until_stopped(&self) {
        let clock = self.broker.store().clock();
        loop {
            let end = self.book().slot + Step::FiveSeconds.width();
            // The estimate of MySQL's clock may move back a little, and the clock itself may be set by any amount.
            let rest = (end - clock.now()).clamp(chrono::TimeDelta::milliseconds(1), Step::FiveSeconds.width());
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(rest.to_std().unwrap_or_default()) => {}
            }
            self.turn(clock.now(), false);
        }
    }

    /// End the open slot if its time is over. With `last`, end it in any case.
    fn turn(&self, now: Timestamp, last: bool) {
        let mut book = self.book();
        let next = Step::FiveSeconds.floor(now);
        let back = book.slot - next;
        if !last && back >= chrono::TimeDelta::zero() && back <= Step::FiveSeconds.width() {
            return;
        }
        // A queue keeps its series for a quarter of an hour, so that its line in a chart does not come and go. After
        // that only the queues served here keep theirs; others get one again with their next event.
        let keep = Step::Quarter.floor(next) == Step::Quarter.floor(book.slot);
        let slot = self.broker.meters().turn(Slot::of(self.queues.iter().cloned()), keep);
        book.take(&slot);
        book.slot = next;
        let lost = book.give_up();
        let filled = !book.waiting.is_empty();
        drop(book);
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
            let samples = self.book().next();
            if samples.is_empty() {
                return Ok(());
            }
            self.broker.store().write_samples(&self.runner, samples.clone()).await?;
            self.book().written(&samples);
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
type Place = (Step, Timestamp, Series);

/// Figures that were counted and are not written yet.
struct Book {
    /// Start of the open slot.
    slot: Timestamp,
    /// The open wide slots: the start of each, and what was counted in it so far.
    growing: [(Timestamp, BTreeMap<Series, Box<Tally>>); 2],
    waiting: BTreeMap<Place, Sample>,
}

/// Widths of the slots that are summed up from slots of five seconds.
const WIDE: [Step; 2] = [Step::Minute, Step::Quarter];

impl Book {
    fn open(slot: Timestamp) -> Self {
        let growing = WIDE.map(|step| (step.floor(slot), BTreeMap::new()));
        Self { slot, growing, waiting: BTreeMap::new() }
    }

    /// Add the slot that has ended.
    fn take(&mut self, slot: &Slot) {
        let (began, counted_to) = (self.slot, self.slot + Step::FiveSeconds.width());
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
            wait(Step::FiveSeconds, began, tally);
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
    fn give_up(&mut self) -> usize {
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
    fn written(&mut self, samples: &[Sample]) {
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
    use crate::telemetry::Meters;

    fn at(text: &str) -> Timestamp {
        format!("2026-03-29T{text}Z").parse().unwrap()
    }

    /// Return a slot in which this many jobs were accepted.
    fn slot(accepted: usize) -> Slot {
        let (meters, queue) = (Meters::default(), "mail".parse().unwrap());
        meters.accepted(std::iter::repeat_n(&queue, accepted));
        meters.turn(Slot::default(), false)
    }

    #[test]
    fn wide_slots_grow_and_begin_anew_and_nothing_is_a_row() {
        let mut book = Book::open(at("12:14:50"));
        book.take(&slot(3));
        book.slot = at("12:14:55");
        book.take(&slot(4));
        book.slot = at("12:15:00");
        book.take(&slot(0));
        book.slot = at("12:15:05");
        book.take(&slot(5));
        let seen: Vec<_> = book
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
        let mut book = Book::open(at("12:00:00"));
        book.take(&slot(3));
        let writing = book.next();
        book.slot = at("12:00:05");
        book.take(&slot(4));
        book.written(&writing);
        assert_eq!(book.next().iter().map(|sample| sample.figures.accepted()).max(), Some(7));
        book.written(&book.next());
        assert!(book.next().is_empty());

        for second in 0..MAX_WAITING {
            book.slot = at("13:00:00") + Step::FiveSeconds.width() * second as i32;
            book.take(&slot(1));
            book.give_up();
        }
        assert_eq!(book.waiting.len(), MAX_WAITING);
        // The oldest rows of the narrowest slots were dropped. The rows behind the charts of an hour and of a day
        // remain.
        assert!(book.waiting.contains_key(&(Step::Quarter, at("13:00:00"), Series::All)));
    }
}
