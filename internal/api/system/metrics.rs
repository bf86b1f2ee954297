//! `/metrics`: the Prometheus page, and the readings of MySQL and Redis that it shows.
//!
//! Most metrics are counted where something happens. A few are read from MySQL and Redis, and only when Prometheus
//! scrapes. A scrape starts a reading unless there is a recent one, waits for it a moment, and shows what is known
//! then. So the page never hangs, whatever the servers do, and it takes only a small share of their time, however often
//! it is scraped.
//!
//! Each server is asked every few seconds whether it answers, and MySQL also whether it commits, by the check of
//! `/readyz`. The counts in MySQL rest for longer when they take long, and do not delay that question.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::future::join_all;
use metrics::gauge;
use tokio_util::task::TaskTracker;

use crate::Api;
use crate::system::readiness::Readiness;
use tickr_event::Health;
use tickr_index::{Index, Lane};
use tickr_job::{Name, State as JobState};
use tickr_store::{HeldCount, HoldReason, RunnerCounts, SourceState, Stats, Store};
use tickr_telemetry::metrics_page;

/// Age of a reading after which a scrape starts another.
const FRESH: Duration = Duration::from_secs(10);
/// The same, after a reading that a server did not answer.
const AGAIN: Duration = Duration::from_secs(2);
/// Counting a large backlog takes time in MySQL. After a count that took a time t, wait for `SHARE` × t, but at most
/// `LONGEST`.
const SHARE: u32 = 50;
const LONGEST: Duration = Duration::from_secs(60);
/// Maximum time for which a scrape waits for a reading.
const PATIENCE: Duration = Duration::from_millis(500);
/// Time for a short query after which a server counts as out.
const LIMIT: Duration = Duration::from_secs(2);
/// Maximum time for counting.
const COUNT_LIMIT: Duration = Duration::from_secs(10);
/// Most Redis servers that get series. Addresses of containers may change with every failover.
const MAX_REDIS_SERVERS: usize = 100;
/// Most queues of remote workers that get a label of their own. A label stays until the process ends.
const MAX_WORKER_QUEUES: usize = 500;
/// Label of queues that no living runner serves, and of further ones of remote workers. Clients may make up any number
/// of queue names, and each label costs memory.
const OTHER: &str = "_other";

/// Reads MySQL and Redis for the page. Cheap to clone; all clones share their readings.
#[derive(Clone, Debug)]
pub struct Readings {
    shared: Arc<ReadingsInner>,
}

#[derive(Debug)]
struct ReadingsInner {
    store: Store,
    index: Index,
    readiness: Readiness,
    /// The queues that this runner serves.
    queues: Vec<Name>,
    /// The outboxes of applications from which this runner copies.
    outboxes: Vec<Name>,
    tasks: TaskTracker,
    made: Instant,
    last: Mutex<Last>,
}

/// The times of one of the readings.
#[derive(Debug, Default)]
struct Turn {
    /// True while it is running.
    under_way: bool,
    /// Time after which the next one may begin; `None` before the first has ended.
    next: Option<Instant>,
}

/// MySQL answers no query at this moment.
#[derive(Debug)]
struct Silent;

/// The state of the newest readings.
#[derive(Debug, Default)]
struct Last {
    /// The question whether MySQL answers and commits, with the runners.
    mysql: Turn,
    /// The counts in MySQL.
    counts: Turn,
    /// The lists in Redis.
    redis: Turn,
    /// Time of the last counts of jobs.
    known: Option<Instant>,
    /// The queues of remote workers that got a label of their own.
    worker_queues: BTreeSet<Name>,
    /// The queues that have series. A queue that is gone gets 0, because its series would otherwise keep its last
    /// value.
    queues: BTreeSet<String>,
    /// The Redis servers that have series.
    redis_servers: BTreeSet<String>,
}

impl Readings {
    /// Make the readings for a runner that serves these queues and copies from these outboxes of applications. Each
    /// reading runs in a task of its own, which `tasks` joins and which ends by its time limits.
    #[must_use]
    pub fn new(
        store: Store,
        index: Index,
        readiness: Readiness,
        queues: Vec<Name>,
        outboxes: Vec<Name>,
        tasks: TaskTracker,
    ) -> Self {
        Self {
            shared: Arc::new(ReadingsInner {
                store,
                index,
                readiness,
                queues,
                outboxes,
                tasks,
                made: Instant::now(),
                last: Mutex::default(),
            }),
        }
    }

    /// Start the readings that are due, wait for them a moment, and set the metrics that need no server.
    async fn refresh(&self) {
        let shared = &self.shared;
        let mysql = shared.begin(|last| &mut last.mysql).then(|| {
            let reading = Arc::clone(shared);
            shared.tasks.spawn(async move { reading.read_mysql().await })
        });
        let redis = shared.begin(|last| &mut last.redis).then(|| {
            let reading = Arc::clone(shared);
            shared.tasks.spawn(async move { reading.read_redis().await })
        });
        // After the timeout the tasks go on by themselves.
        let _ = tokio::time::timeout(PATIENCE, join_all([mysql, redis].into_iter().flatten())).await;
        shared.set_own();
    }
}

impl ReadingsInner {
    fn last(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Return whether this scrape should start a reading: it is due and not running.
    fn begin(&self, which: fn(&mut Last) -> &mut Turn) -> bool {
        let mut last = self.last();
        let turn = which(&mut last);
        let due = !turn.under_way && turn.next.is_none_or(|next| next <= Instant::now());
        turn.under_way |= due;
        due
    }

    fn end(&self, which: fn(&mut Last) -> &mut Turn, next: Instant) {
        *which(&mut self.last()) = Turn { under_way: false, next: Some(next) };
    }

    /// Ask MySQL for the runners, and then for the counts if they are due. The counts may take long, so the next scrape
    /// asks for the runners beside them.
    async fn read_mysql(&self) {
        let began = Instant::now();
        let runners = self.probe().await;
        let rest = if runners.is_some() { FRESH } else { AGAIN };
        self.end(|last| &mut last.mysql, began + rest);
        let Some(runners) = runners else { return };
        if self.begin(|last| &mut last.counts) {
            let counted = self.count(&runners).await;
            let now = Instant::now();
            let next = match counted {
                Ok(()) => (began + FRESH).max(now + ((now - began) * SHARE).min(LONGEST)),
                Err(Silent) => now + AGAIN,
            };
            self.end(|last| &mut last.counts, next);
        }
    }

    /// Ask MySQL for the runners. This short query shows whether it answers: counting a large backlog may take longer.
    /// A server that answers and commits nothing is out as well: no heartbeat is written, so every runner seems silent.
    async fn probe(&self) -> Option<RunnerCounts> {
        let runners = answer_within(LIMIT, self.store.runner_counts()).await;
        let is_up = runners.is_some() && self.commits().await;
        gauge!("tickr_up", "server" => "mysql").set(f64::from(is_up));
        if let Some(runners) = &runners {
            set_runners(runners);
        }
        runners
    }

    async fn commits(&self) -> bool {
        tokio::time::timeout(LIMIT, self.readiness.check()).await.is_ok_and(|check| check.mysql)
    }

    /// Wait for an answer of MySQL. One that does not come in time is left out if MySQL answers a short query then.
    async fn ask<T, E>(&self, limit: Duration, asked: impl Future<Output = Result<T, E>>) -> Result<Option<T>, Silent> {
        if let Ok(answer) = tokio::time::timeout(limit, asked).await {
            return Ok(answer.ok());
        }
        if self.probe().await.is_some() { Ok(None) } else { Err(Silent) }
    }

    async fn count(&self, runners: &RunnerCounts) -> Result<(), Silent> {
        let named = self.named(runners);
        if let Some(stats) = self.ask(COUNT_LIMIT, self.store.stats()).await? {
            let mut last = self.last();
            set_jobs(&stats, &named, &mut last.queues);
            last.known = Some(Instant::now());
        }
        if let Some(open) = self.ask(LIMIT, self.store.open_breakers()).await? {
            gauge!("tickr_breakers_open").set(open as f64);
        }
        if let Some(parked) = self.ask(LIMIT, self.store.parked_jobs()).await? {
            gauge!("tickr_parked_jobs").set(parked as f64);
        }
        if let Some(held) = self.ask(COUNT_LIMIT, self.store.held_jobs()).await? {
            set_held(&held, &named, &self.last().queues);
        }
        if let Some((blocked, batches)) = self.ask(LIMIT, self.store.blocked_and_unfinished()).await? {
            gauge!("tickr_blocked_jobs").set(blocked as f64);
            gauge!("tickr_batches_unfinished").set(batches as f64);
        }
        if let Some(deferred) = self.ask(LIMIT, self.store.deferred_attempts()).await? {
            gauge!("tickr_deferred_attempts").set(deferred as f64);
        }
        if let Some(outbox) = self.ask(LIMIT, self.store.outbox_state()).await? {
            gauge!("tickr_outbox_rejected").set(f64::from(outbox.rejected));
            gauge!("tickr_outbox_oldest_seconds").set(outbox.oldest_us as f64 / 1e6);
        }
        if !self.outboxes.is_empty()
            && let Some(states) = self.ask(LIMIT, self.store.source_states()).await?
        {
            set_sources(&self.outboxes, &states);
        }
        if let Some(blocked) = self.ask(LIMIT, self.store.blocked_order_keys()).await? {
            gauge!("tickr_order_keys_blocked").set(blocked as f64);
        }
        Ok(())
    }

    async fn read_redis(&self) {
        let began = Instant::now();
        let lines = Lane::all_of(&self.queues);
        let depth = answer_within(LIMIT, self.index.depth(&lines)).await;
        gauge!("tickr_up", "server" => "redis").set(f64::from(depth.is_some()));
        let rest = if depth.is_some() { FRESH } else { AGAIN };
        if let Some((waiting, lengths)) = depth {
            self.set_index(waiting, &lengths);
        }
        self.end(|last| &mut last.redis, began + rest);
    }

    /// Return the queues that get a label of their own.
    fn named(&self, runners: &RunnerCounts) -> BTreeSet<Name> {
        let mut named: BTreeSet<Name> = self.queues.iter().chain(&runners.queues).cloned().collect();
        admit(&runners.worker_queues, &mut self.last().worker_queues, &mut named);
        named
    }

    fn set_index(&self, waiting: usize, lengths: &[usize]) {
        gauge!("tickr_index_waiting").set(waiting as f64);
        let mut ready: HashMap<&Name, usize> = HashMap::new();
        // `Lane::all_of` repeats the queues once for each priority.
        for (length, queue) in lengths.iter().zip(self.queues.iter().cycle()) {
            *ready.entry(queue).or_default() += length;
        }
        for (queue, entries) in ready {
            gauge!("tickr_index_ready", "queue" => queue.to_string()).set(entries as f64);
        }
    }

    /// Show the Redis server that holds the index, and that those before it do not.
    fn set_server(&self) {
        let servers = self.index.servers();
        let mut last = self.last();
        for server in &servers {
            if last.redis_servers.len() < MAX_REDIS_SERVERS {
                last.redis_servers.insert(server.clone());
            }
        }
        let mode = self.index.mode().as_str();
        for known in &last.redis_servers {
            let holds = f64::from(servers.contains(known));
            gauge!("tickr_index_server", "mode" => mode, "server" => known.clone()).set(holds);
        }
    }

    /// Set the metrics that this process knows without asking a server.
    fn set_own(&self) {
        for pool in self.store.pool_use() {
            gauge!("tickr_pool_connections", "pool" => pool.pool, "state" => "idle").set(pool.idle as f64);
            gauge!("tickr_pool_connections", "pool" => pool.pool, "state" => "busy").set(pool.busy as f64);
        }
        let now = self.index.health().now();
        for health in [Health::Fast, Health::Rebuilding, Health::Degraded] {
            gauge!("tickr_index_state", "state" => health.as_str()).set(f64::from(health == now));
        }
        self.set_server();
        let last = self.last();
        // Before the first reading that MySQL answered, the age counts from the start.
        gauge!("tickr_reading_age_seconds").set(last.known.unwrap_or(self.made).elapsed().as_secs_f64());
        for (server, turn) in [("mysql", &last.mysql), ("redis", &last.redis)] {
            if turn.next.is_none() {
                // Before the first reading, a server counts as out. `increment` by 0 creates the series but keeps a value
                // that a reading has set.
                gauge!("tickr_up", "server" => server).increment(0.0);
            }
        }
    }
}

async fn answer_within<T, E>(limit: Duration, asked: impl Future<Output = Result<T, E>>) -> Option<T> {
    tokio::time::timeout(limit, asked).await.ok().and_then(Result::ok)
}

/// Set the metrics of these outboxes of applications. Those of other runners have no series here: the configuration bounds
/// their number.
fn set_sources(names: &[Name], states: &[SourceState]) {
    for name in names {
        let state = states.iter().find(|state| state.name == name.as_str());
        let (up, backlog) = state.map_or_else(Default::default, |state| (state.is_up(), state.backlog));
        gauge!("tickr_outbox_source_up", "source" => name.to_string()).set(f64::from(up));
        gauge!("tickr_outbox_source_waiting", "source" => name.to_string()).set(f64::from(backlog.waiting));
        let oldest = backlog.oldest_us as f64 / 1e6;
        gauge!("tickr_outbox_source_oldest_seconds", "source" => name.to_string()).set(oldest);
    }
}

/// Set the metrics of the registered runners. A process that runs one suspect counts as part of the runner that started
/// it.
fn set_runners(runners: &RunnerCounts) {
    gauge!("tickr_runners").set(runners.alive as f64);
    gauge!("tickr_runners_with_workers").set(runners.with_workers as f64);
    gauge!("tickr_runners_silent").set(runners.silent as f64);
    gauge!("tickr_heartbeat_age_seconds").set(runners.oldest_heartbeat.as_secs_f64());
}

/// Give labels to the queues of remote workers: to those that had one before, and to new ones while there is room.
/// Operators choose the queues in `named`. Programs choose these, and may choose new ones again and again.
fn admit(served: &BTreeSet<Name>, admitted: &mut BTreeSet<Name>, named: &mut BTreeSet<Name>) {
    for queue in served {
        if !named.contains(queue) && admitted.len() < MAX_WORKER_QUEUES {
            admitted.insert(queue.clone());
        }
    }
    named.extend(served.intersection(admitted).cloned());
}

fn set_jobs(stats: &Stats, named: &BTreeSet<Name>, known: &mut BTreeSet<String>) {
    let mut counts: BTreeMap<(&str, JobState), i64> = BTreeMap::new();
    for count in stats.owed.iter().chain(&stats.ended) {
        let queue = if named.contains(&count.queue) { count.queue.as_str() } else { OTHER };
        *counts.entry((queue, count.state)).or_default() += count.jobs;
    }
    // The store has added up the counts of queues that it does not name.
    for (state, jobs) in &stats.ended_elsewhere {
        *counts.entry((OTHER, *state)).or_default() += jobs;
    }
    // A queue that lost its last runner is counted under `_other`, and its own series must become 0.
    known.extend(named.iter().map(ToString::to_string));
    known.insert(OTHER.to_owned());
    for queue in known.iter() {
        for state in JobState::ALL {
            let name = if state.is_end() { "tickr_jobs_ended" } else { "tickr_jobs" };
            let jobs = counts.get(&(queue.as_str(), state)).copied().unwrap_or(0);
            gauge!(name, "queue" => queue.clone(), "state" => state.as_str()).set(jobs as f64);
        }
    }
    let overdue = stats.oldest_due.map_or(0.0, |due| (stats.at - due).as_seconds_f64().max(0.0));
    gauge!("tickr_oldest_due_seconds").set(overdue);
}

/// Set the counts of held jobs for the queues that have series.
fn set_held(held: &[HeldCount], named: &BTreeSet<Name>, known: &BTreeSet<String>) {
    let mut counts: BTreeMap<(&str, HoldReason), i64> = BTreeMap::new();
    for count in held {
        let queue = if named.contains(&count.queue) { count.queue.as_str() } else { OTHER };
        *counts.entry((queue, count.reason)).or_default() += count.jobs;
    }
    for queue in known {
        for reason in HoldReason::ALL {
            let jobs = counts.get(&(queue.as_str(), reason)).copied().unwrap_or(0);
            gauge!("tickr_held_jobs", "queue" => queue.clone(), "reason" => reason.as_str()).set(jobs as f64);
        }
    }
}

/// Show the metrics of this runner for Prometheus
///
/// Responds within a second, also while MySQL or Redis does not answer; `tickr_up` shows that. The metrics are listed
/// in `docs/METRICS.md`.
#[utoipa::path(
    get, path = "/metrics", tag = "system",
    responses(
        (status = 200, description = "Prometheus text format", body = String, content_type = "text/plain"),
    )
)]
pub(crate) async fn page(State(api): State<Api>) -> Response {
    api.readings.refresh().await;
    let plain = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    ([(header::CONTENT_TYPE, plain)], metrics_page()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_that_workers_make_up_get_a_bounded_number_of_labels() {
        let names = |prefix: &str, count: usize| -> BTreeSet<Name> {
            (0..count).map(|n| format!("{prefix}{n}").parse().unwrap()).collect()
        };
        let (own, mut admitted) = (names("own-", 3), BTreeSet::new());
        let mut named = |served: &BTreeSet<Name>| {
            let mut named = own.clone();
            admit(served, &mut admitted, &mut named);
            named
        };
        // A worker that serves queues of processes takes none of the room.
        assert_eq!(named(&own), own);
        let first = names("first-", 300);
        assert_eq!(named(&first).len(), 303);
        let second = names("second-", 300);
        assert_eq!(named(&second).len(), 3 + MAX_WORKER_QUEUES - 300);
        // The queues that have a label keep it, and no other gets one.
        assert_eq!(named(&first).len(), 303);
        assert_eq!(named(&names("third-", 300)), own);
    }
}
