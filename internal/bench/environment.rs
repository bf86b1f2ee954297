//! The environment of one run: its own database and key prefix, the runners in it, and the checks at its end.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::servers::{Namespace, store_of};
use super::{Bench, BenchError};
use crate::app::{App, index_of};
use crate::config::Config;
use crate::event::Health;
use crate::handlers::Registry;
use crate::index::Index;
use crate::job::{Actor, JobId, Limit, Timestamp};
use crate::store::{BareLane, Condition, CounterConnection, ParkedJobs, ServerCounters, Store};

/// Interval between two reads of the number of ended jobs.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Interval between two counts of the parked jobs, which may be a million.
const COUNT_EVERY: Duration = Duration::from_millis(200);
/// Without progress for this long, the run has failed.
pub(super) const STALLED: Duration = Duration::from_secs(60);
/// Most transactions of earlier runs that the server may still have to purge when a run starts, and the time limit of
/// that wait.
const LITTLE_HISTORY: u64 = 1_000;
const PURGE_LIMIT: Duration = Duration::from_secs(10);
/// Time between the enqueue of the jobs and the first due time.
pub(super) const LEAD: Duration = Duration::from_millis(1_000);

/// Results of the checks after a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RunChecks {
    pub(super) exactly_once: bool,
    pub(super) deadlocks: Option<u64>,
}

impl Default for RunChecks {
    fn default() -> Self {
        Self { exactly_once: true, deadlocks: Some(0) }
    }
}

impl RunChecks {
    /// The same, for another row about the same run, whose deadlocks are counted already.
    pub(super) fn counted_before(self) -> Self {
        Self { deadlocks: self.deadlocks.map(|_| 0), ..self }
    }

    /// Combine two results. A failure or an unknown count in either of them stays.
    pub(super) fn and(self, other: Self) -> Self {
        let deadlocks = self.deadlocks.zip(other.deadlocks).map(|(one, two)| one + two);
        Self { exactly_once: self.exactly_once && other.exactly_once, deadlocks }
    }
}

/// The environment of one run.
pub(super) struct RunEnvironment<'a> {
    bench: &'a Bench<'a>,
    plot: Namespace,
    pub(super) store: Store,
    pub(super) counter_connection: CounterConnection,
    before: ServerCounters,
    /// Jobs with smaller ids are not part of the run.
    pub(super) first: JobId,
    /// Number of jobs that had ended when the run began.
    ended_before: u64,
}

impl<'a> RunEnvironment<'a> {
    /// Create a database with empty tables. Wait until the server has purged the old row versions of earlier runs.
    pub(super) async fn open(bench: &'a Bench<'a>) -> Result<Self, BenchError> {
        let mut plot = bench.ground.next()?;
        let config = &mut plot.config;
        config.http_addr = ([127, 0, 0, 1], 0).into();
        config.workers = bench.settings.workers;
        config.shutdown_grace = Duration::from_secs(10);
        config.shutdown_notice = Duration::ZERO;
        config.body_limit_bytes = 1 << 20;
        config.test_kinds = true;
        let url = config.mysql_url().map_err(crate::app::StartError::from)?.expose().to_owned();
        Store::create_database(&url).await?;
        let store = store_of(config).await?;
        store.migrate().await?;
        let mut counter_connection = store.counter_connection().await?;
        let asked = Instant::now();
        let mut before = counter_connection.counters().await?;
        while before.history.is_some_and(|length| length > LITTLE_HISTORY)
            && asked.elapsed() < PURGE_LIMIT
            && !bench.settings.short
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
            before = counter_connection.counters().await?;
        }
        Ok(Self { bench, plot, store, counter_connection, before, first: JobId::new(), ended_before: 0 })
    }

    /// Start the next run on the same tables.
    pub(super) async fn again(&mut self) -> Result<(), BenchError> {
        self.before = self.counter_connection.counters().await?;
        self.ended_before = self.counter_connection.ended().await?.0;
        self.first = JobId::new();
        Ok(())
    }

    /// Configuration of a runner in this environment.
    pub(super) fn config(&self) -> &Config {
        &self.plot.config
    }

    /// Start a complete tickr in this environment. Stop it with [`stop`].
    pub(super) async fn app(&self) -> Result<App, BenchError> {
        Ok(App::start(self.config(), Registry::new()).await?)
    }

    /// Start several runners in this environment, of which each has this many workers. Stop them with [`stop_all`].
    pub(super) async fn apps(&self, runners: usize, workers: usize) -> Result<Vec<App>, BenchError> {
        let config = Config { workers, ..self.config().clone() };
        let mut apps = Vec::with_capacity(runners);
        for _ in 0..runners {
            apps.push(App::start(&config, Registry::new()).await?);
        }
        Ok(apps)
    }

    /// Start a complete tickr that runs none of the jobs.
    pub(super) async fn app_without_work(&self) -> Result<App, BenchError> {
        let config = Config { queues: vec!["elsewhere".to_owned()], ..self.config().clone() };
        Ok(App::start(&config, Registry::new()).await?)
    }

    pub(super) fn index(&self) -> Result<Index, BenchError> {
        Ok(index_of(self.config())?)
    }

    /// Open connections for bare batches.
    pub(super) async fn lanes(&self, count: u8) -> Result<Vec<BareLane>, BenchError> {
        let mut lanes = Vec::with_capacity(count.into());
        for number in 0..count {
            lanes.push(self.store.bare_lane(number).await?);
        }
        Ok(lanes)
    }

    /// Wait until this many jobs of the run have ended. Return the server's time at that moment.
    pub(super) async fn until_ended(&mut self, jobs: u64) -> Result<Timestamp, BenchError> {
        let (mut seen, mut moved) = (0, Instant::now());
        loop {
            let (ended, now) = self.counter_connection.ended().await?;
            let ended = ended.saturating_sub(self.ended_before);
            self.bench.progress.update(ended, jobs);
            if ended >= jobs {
                return Ok(now);
            }
            if ended > seen {
                (seen, moved) = (ended, Instant::now());
            } else if moved.elapsed() > STALLED {
                return Err(BenchError::Failed(format!("{ended} of {jobs} jobs have ended, and none for a minute")));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Set a limit, as an operator does.
    pub(super) async fn set_limit(&self, limit: Limit) -> Result<(), BenchError> {
        self.store.set_limit(limit, Condition::Any, &Actor::command()).await?;
        Ok(())
    }

    /// Wait until the runner has counted the attempts that ran when a limit was set. No job of the limit starts before.
    pub(super) async fn until_limits_count(&self) -> Result<(), BenchError> {
        let asked = Instant::now();
        while self.store.limits().await?.iter().any(|set| !set.counted) {
            if asked.elapsed() > STALLED {
                return Err(BenchError::Failed("a limit is not in force after a minute".to_owned()));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    /// Wait until as many jobs of the run have ended, or are parked at limits, as `enough` wants. Return the server's
    /// time at that moment.
    pub(super) async fn until_parked(
        &mut self,
        enough: impl Fn(u64, ParkedJobs) -> bool,
    ) -> Result<Timestamp, BenchError> {
        let (mut seen, mut moved) = ((0, ParkedJobs::default()), Instant::now());
        loop {
            let parked = self.counter_connection.parked_jobs().await?;
            let (ended, now) = self.counter_connection.ended().await?;
            let ended = ended.saturating_sub(self.ended_before);
            if enough(ended, parked) {
                return Ok(now);
            }
            if (ended, parked) != seen {
                (seen, moved) = ((ended, parked), Instant::now());
            } else if moved.elapsed() > STALLED {
                let parked = parked.jobs;
                return Err(BenchError::Failed(format!("{ended} jobs have ended, {parked} are parked, for a minute")));
            }
            tokio::time::sleep(COUNT_EVERY).await;
        }
    }

    /// Start a complete tickr and let it work off the waiting jobs.
    pub(super) async fn work_off(&mut self, jobs: u64) -> Result<(), BenchError> {
        let app = self.app().await?;
        self.until_ended(jobs).await?;
        stop(app).await;
        Ok(())
    }

    /// Check the jobs of the run: `done` of them must have completed, and `waiting` must wait untouched.
    pub(super) async fn check(&mut self, done: u64, waiting: u64) -> Result<RunChecks, BenchError> {
        let exactly_once = self.counter_connection.job_counts(self.first).await?.are_exactly_once(done, waiting);
        let (before, after) = (self.before.deadlocks, self.counter_connection.counters().await?.deadlocks);
        let deadlocks = before.zip(after).map(|(before, after)| after.saturating_sub(before));
        // The server counts the deadlocks of all its users.
        Ok(RunChecks { exactly_once, deadlocks: deadlocks.filter(|_| self.bench.ground.is_private()) })
    }

    /// Remove everything in this environment.
    pub(super) async fn close(self) -> Result<(), BenchError> {
        let Self { bench, plot, store, counter_connection, .. } = self;
        drop(counter_connection);
        store.close().await;
        bench.ground.clear(&plot).await
    }
}

/// Stop a tickr in order.
pub(super) async fn stop(app: App) {
    app.stop(CancellationToken::new()).await;
}

/// Stop several runners at the same time. A stop may take a second, the longest wait of a runner for an id.
pub(super) async fn stop_all(apps: Vec<App>) {
    futures_util::future::join_all(apps.into_iter().map(|app| Box::pin(stop(app)))).await;
}

/// Wait until the index holds everything that it should.
pub(super) async fn until_whole(app: &App) -> Result<(), BenchError> {
    let asked = Instant::now();
    while app.index().health().now() != Health::Fast {
        if asked.elapsed() > STALLED {
            return Err(BenchError::Failed("the index is not whole after a minute".to_owned()));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}

/// Jobs per second between two times of the server's clock.
pub(super) fn rate(jobs: u64, from: Option<Timestamp>, to: Timestamp) -> Result<f64, BenchError> {
    let from = from.ok_or_else(|| BenchError::Failed("no job of the run is in the tables".to_owned()))?;
    let elapsed_us = (to - from).num_microseconds().unwrap_or(i64::MAX).max(1);
    Ok(jobs as f64 / (elapsed_us as f64 / 1e6))
}

/// Jobs per second by the clock of this process.
pub(super) fn rate_of(jobs: u64, elapsed: Duration) -> f64 {
    jobs as f64 / elapsed.as_secs_f64().max(1e-6)
}
