//! Counts and durations per slot of time, for charts. Every runner writes its own rows; readers get the sums over all
//! runners.
//!
//! The key of a row is its slot, queue and runner, and each row says until when it was counted. When a row is written
//! again, in any order, the version counted furthest stays. So a write whose answer was lost is simply repeated.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use async_recursion::async_recursion as boxed;
use futures_util::TryStreamExt as _;
use sqlx::Row;
use sqlx::mysql::MySqlRow;

use crate::sql::batches::{MAX_ROWS, Sql, bind_padded, padded, padded_len, placeholders, statement, tuples};
use crate::sql::clock::read_clock;
use crate::sql::connection::on_pool;
use crate::sql::error::corrupt;
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::{Extent, Histogram, Point, RunnerId, Series, SlotWidth, Tally, Timestamp, Window};

/// Most queues with series of their own in one reading: the busiest ones.
pub const MAX_CHARTED: usize = 100;
/// The percentiles of a [`Point`].
const SHOWN: [f64; 2] = [0.5, 0.99];
/// Most rows removed in one statement.
const PAGE: u32 = 1_000;
/// A statement that sets the largest concatenation of stored durations, in bytes. It is enough for two thousand runners
/// with full histograms.
const SUMS: &str = "SET SESSION group_concat_max_len = 4194304";

/// The figures of one runner for one slot and one series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Width of the slot.
    pub step: SlotWidth,
    /// Beginning of the slot.
    pub at: Timestamp,
    /// The series of the figures.
    pub series: Series,
    /// The time until which they were counted: the end of the slot, or earlier.
    pub counted_to: Timestamp,
    /// The figures, with the durations in their stored form.
    pub figures: Figures,
}

/// Figures in the form in which they are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figures {
    accepted: u32,
    completed: u32,
    failed: u32,
    ended: u32,
    lateness: Vec<u8>,
    run: Vec<u8>,
}

impl Figures {
    /// Return the number of accepted jobs.
    #[must_use]
    pub const fn accepted(&self) -> u32 {
        self.accepted
    }
}

impl From<&Tally> for Figures {
    fn from(tally: &Tally) -> Self {
        let narrow = |count| u32::try_from(count).unwrap_or(u32::MAX);
        Self {
            accepted: narrow(tally.accepted),
            completed: narrow(tally.completed),
            failed: narrow(tally.failed),
            ended: narrow(tally.ended),
            lateness: tally.lateness.to_bytes(),
            run: tally.run.to_bytes(),
        }
    }
}

/// The figures for the steps of a span or a range, all runners together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// The database's clock at the time of the read.
    pub at: Timestamp,
    /// The steps.
    pub window: Window,
    /// The time until which the last step was counted, if it has any figures.
    pub counted_to: Option<Timestamp>,
    /// The requested series, with one point for each step.
    pub series: Vec<(Series, Vec<Point>)>,
    /// True if there are more queues than those with series of their own.
    pub more: bool,
}

impl Store {
    /// Write the samples of a runner, at most [`MAX_SAMPLES`] rows, in one statement.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses. Samples that are written again later do not count twice.
    #[boxed]
    pub async fn write_samples(&self, runner: &RunnerId, samples: Vec<Sample>) -> Result<(), StoreError> {
        let runner = runner.clone();
        on_pool(&self.shared.pools.loops, "write samples", move |conn, _| {
            let (runner, samples) = (runner.clone(), samples.clone());
            Box::pin(async move { write(conn, &runner, &samples).await })
        })
        .await
    }

    /// Remove rows that are too old by the database's clock, at most one page per width. Return whether there are more.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn purge_samples(&self) -> Result<bool, StoreError> {
        on_pool(&self.shared.pools.loops, "purge samples", |conn, _| {
            Box::pin(async move {
                let mut more = false;
                for step in SlotWidth::ALL {
                    // In key order, so that runners that purge at the same time wait for each other instead of
                    // deadlocking.
                    let removed = sqlx::query(
                        "DELETE FROM samples WHERE step = ? AND at < UTC_TIMESTAMP() - INTERVAL ? SECOND \
                         ORDER BY step, at, queue, runner LIMIT ?",
                    )
                    .bind(step.seconds())
                    .bind(step.keep().num_seconds())
                    .bind(PAGE)
                    .execute(&mut *conn)
                    .await?;
                    more |= removed.rows_affected() >= u64::from(PAGE);
                }
                Ok(more)
            })
        })
        .await
    }

    /// Read one series. A queue without samples has only zeros.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn history(&self, extent: Extent, series: Series) -> Result<History, StoreError> {
        let shared = self.shared.clone();
        on_pool(&self.shared.pools.reads, "read the history", move |conn, _| {
            let (shared, series) = (shared.clone(), series.clone());
            Box::pin(async move {
                let at = read_clock(conn, &shared.clock).await?;
                let window = extent.window(at);
                // Name each step of the window: `queue` follows `at` in the key, so rows of other queues are not read.
                let moments: Vec<Timestamp> = window.moments().collect();
                let list = placeholders(padded_len(moments.len()));
                let sql = summed(&format!("step = ? AND at IN {list} AND queue = ?"));
                let query = bind_padded(statement(sql).bind(window.step.seconds()), &moments);
                sqlx::raw_sql(SUMS).execute(&mut *conn).await?;
                let query = query.bind(series.as_str().to_owned());
                let mut history = Charts::read(conn, query, window).await?.history(at);
                if history.series.is_empty() {
                    history.series.push((series, vec![Point::default(); window.steps]));
                }
                Ok(history)
            })
        })
        .await
    }

    /// Read the series of each queue, the busiest first, at most [`MAX_CHARTED`]. The queues that runners count
    /// together as [`Series::Other`] are one of these series.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn history_by_queue(&self, extent: Extent) -> Result<History, StoreError> {
        let shared = self.shared.clone();
        on_pool(&self.shared.pools.reads, "read the history of queues", move |conn, _| {
            let shared = shared.clone();
            Box::pin(async move {
                let at = read_clock(conn, &shared.clock).await?;
                let window = extent.window(at);
                sqlx::raw_sql(SUMS).execute(&mut *conn).await?;
                // One walk through the slots is enough, unless there are more queues than are shown.
                let most = MAX_CHARTED * window.steps;
                let sql = summed("step = ? AND at >= ? AND at < ? AND queue <> ''");
                let query = bound(statement(format!("{sql} LIMIT ?")), window).bind(most as u32 + 1);
                let charts = Charts::read(conn, query, window).await?;
                if charts.rows <= most && charts.series.len() <= MAX_CHARTED {
                    return Ok(charts.history(at).busiest_first());
                }
                drop(charts);
                let (shown, more) = busiest(conn, window).await?;
                if shown.is_empty() {
                    return Ok(Charts::new(window).history(at));
                }
                let sql = summed(&format!(
                    "step = ? AND at >= ? AND at < ? AND queue IN {}",
                    placeholders(padded_len(shown.len()))
                ));
                let query = bound(statement(sql), window);
                let names: Vec<&str> = shown.iter().map(String::as_str).collect();
                let query = bind_padded(query, &names);
                let mut history = Charts::read(conn, query, window).await?.history(at).busiest_first();
                history.more = more;
                Ok(history)
            })
        })
        .await
    }
}

/// Most rows of one [`Store::write_samples`].
pub const MAX_SAMPLES: usize = MAX_ROWS;

async fn write(conn: &mut Session<'_>, runner: &RunnerId, samples: &[Sample]) -> Result<(), sqlx::Error> {
    let mut sorted: Vec<&Sample> = samples.iter().take(MAX_SAMPLES).collect();
    sorted.sort_unstable_by_key(|sample| (sample.step, sample.at, sample.series.as_str()));
    if sorted.is_empty() {
        return Ok(());
    }
    // MySQL makes these assignments from left to right, so `counted_to`, which decides, is the last. The last row may
    // be repeated to pad the statement to one of few lengths; repeating it changes nothing.
    let newer = |column: &str| {
        format!("{column} = IF(VALUES(counted_to) >= samples.counted_to, VALUES({column}), samples.{column})")
    };
    let columns = ["accepted", "completed", "failed", "ended", "lateness", "run_time", "counted_to"].map(newer);
    let sql = format!(
        "INSERT INTO samples (step, at, queue, runner, counted_to, accepted, completed, failed, ended, lateness, run_time) \
         VALUES {} ON DUPLICATE KEY UPDATE {}",
        tuples(&placeholders(11), padded_len(sorted.len())),
        columns.join(", ")
    );
    let mut query = statement(sql);
    for sample in padded(&sorted) {
        let figures = &sample.figures;
        query = query
            .bind(sample.step.seconds())
            .bind(sample.at)
            .bind(sample.series.as_str().to_owned())
            .bind(runner.as_str().to_owned())
            .bind(sample.counted_to)
            .bind(figures.accepted)
            .bind(figures.completed)
            .bind(figures.failed)
            .bind(figures.ended)
            .bind(figures.lateness.clone())
            .bind(figures.run.clone());
    }
    query.execute(conn).await.map(drop)
}

/// Build the statement that adds up the rows of these slots over all runners.
fn summed(condition: &str) -> String {
    format!(
        "SELECT at, queue, CAST(SUM(accepted) AS SIGNED) AS accepted, CAST(SUM(completed) AS SIGNED) AS completed, \
         CAST(SUM(failed) AS SIGNED) AS failed, CAST(SUM(ended) AS SIGNED) AS ended, MAX(counted_to) AS counted_to, \
         GROUP_CONCAT(lateness SEPARATOR '') AS lateness, GROUP_CONCAT(run_time SEPARATOR '') AS run_time \
         FROM samples FORCE INDEX (PRIMARY) WHERE {condition} GROUP BY at, queue"
    )
}

fn bound(query: Sql, window: Window) -> Sql {
    let to = window.from + window.step.width() * window.steps as i32;
    query.bind(window.step.seconds()).bind(window.from).bind(to)
}

/// Read the words of the busiest queues, and whether there are others.
async fn busiest(conn: &mut Session<'_>, window: Window) -> Result<(Vec<String>, bool), sqlx::Error> {
    let sql = "SELECT queue FROM samples FORCE INDEX (PRIMARY) WHERE step = ? AND at >= ? AND at < ? AND queue <> '' \
               GROUP BY queue ORDER BY SUM(accepted) + SUM(ended) + SUM(failed) DESC, queue LIMIT ?";
    let query = bound(sqlx::query(sql), window).bind(MAX_CHARTED as u32 + 1);
    let mut words: Vec<String> =
        query.fetch_all(conn).await?.iter().map(|row| row.try_get(0)).collect::<Result<_, sqlx::Error>>()?;
    let more = words.len() > MAX_CHARTED;
    words.truncate(MAX_CHARTED);
    Ok((words, more))
}

impl History {
    fn busiest_first(mut self) -> Self {
        let happened = |points: &[Point]| points.iter().map(|at| at.accepted + at.ended + at.failed).sum::<u64>();
        self.series.sort_by_cached_key(|(series, points)| (Reverse(happened(points)), series.as_str().to_owned()));
        self
    }
}

/// The points of each series, made row by row. A row has the durations of every runner in its slot, so the rows of a
/// hundred queues would need hundreds of megabytes.
struct Charts {
    window: Window,
    series: BTreeMap<Series, Vec<Point>>,
    counted_to: Option<Timestamp>,
    /// Number of rows that were read.
    rows: usize,
}

impl Charts {
    const fn new(window: Window) -> Self {
        Self { window, series: BTreeMap::new(), counted_to: None, rows: 0 }
    }

    /// Read the rows of a statement, and keep the points of each row as soon as it arrives.
    async fn read(conn: &mut Session<'_>, query: Sql, window: Window) -> Result<Self, sqlx::Error> {
        let mut charts = Self::new(window);
        let mut rows = query.fetch(conn);
        while let Some(row) = rows.try_next().await? {
            charts.add(&row)?;
        }
        Ok(charts)
    }

    fn add(&mut self, row: &MySqlRow) -> Result<(), sqlx::Error> {
        self.rows += 1;
        // One more series than are shown says that there are others.
        if self.series.len() > MAX_CHARTED {
            return Ok(());
        }
        let steps = self.window.steps;
        let Some(place) = self.window.place(row.try_get("at")?) else { return Ok(()) };
        let whose = Series::from_word(row.try_get("queue")?).ok_or_else(|| corrupt("queue"))?;
        let points = self.series.entry(whose).or_insert_with(|| vec![Point::default(); steps]);
        let count = |column| row.try_get::<i64, _>(column).map(i64::unsigned_abs);
        let durations = |column| Histogram::from_bytes(row.try_get(column)?).map_err(|e| corrupt(e.to_string()));
        points[place] = Point {
            accepted: count("accepted")?,
            completed: count("completed")?,
            failed: count("failed")?,
            ended: count("ended")?,
            lateness: durations("lateness")?.percentiles(SHOWN),
            run: durations("run_time")?.percentiles(SHOWN),
        };
        if place + 1 == steps {
            self.counted_to = self.counted_to.max(Some(row.try_get("counted_to")?));
        }
        Ok(())
    }

    fn history(self, at: Timestamp) -> History {
        let Self { window, series, counted_to, .. } = self;
        History { at, window, counted_to, series: series.into_iter().collect(), more: false }
    }
}
