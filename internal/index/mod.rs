//! Redis, the fast scheduling index. All commands and scripts are here.
//!
//! Everything in Redis is a hint that MySQL can give again: the whole of it may vanish at any moment, and no call here
//! decides anything about a job. Redis may deliver an id twice, which the store's compare-and-set claim drops; it must
//! not forget one for long, which the reconciler sees to.
//!
//! - `keys.rs`: every key · `hint.lua`, `move.lua`, `take.lua`, `refilled.lua`, `first.lua`: each headed by its keys, arguments and answers
//! - [`Index`]: what the broker, the scheduler and the reconciler call · `link.rs`: its connection
//! - [`Fetch`]: the fetcher's own connection, the only one that blocks
//! - [`FeedLine`]: what happens in the whole cluster, while somebody listens
//! - [`BareIndex`]: for `tickr bench` and nobody else

mod bare;
mod feed;
mod fetch;
mod health;
mod keys;
mod link;

pub use crate::event::Health;
pub use bare::BareIndex;
pub use feed::{FeedEntry, FeedId, FeedLine};
pub use fetch::{Fetch, Order, Popped, Taken};
pub use health::{Bearing, Cause, Drift, IndexHealth, Rebuilt};
pub use keys::Line;

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use chrono::DateTime;
use redis::aio::MultiplexedConnection;
use redis::{AsyncTypedCommands, IntoConnectionInfo, RedisResult, Script, Value};

use crate::job::{JobId, RunnerId, Timestamp};
use keys::Keys;
use link::Link;
use tokio::sync::watch;

/// Most ids in one answer about several ready lists.
const MOST_LISTED: usize = 20_000;

/// How to reach Redis, and how much to keep there.
#[derive(Clone)]
pub struct IndexSettings {
    /// `redis://…`, `rediss://…` or `redis+unix://…`.
    pub url: String,
    /// Stands in every key.
    pub prefix: String,
    /// How far ahead jobs are kept in Redis.
    pub horizon: Duration,
    /// Most ids in one ready list.
    pub high_water: usize,
    /// Below this a list that left jobs out is filled again.
    pub low_water: usize,
}

impl std::fmt::Debug for IndexSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The URL may carry a password.
        f.debug_struct("IndexSettings").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// Redis did not do it. Never an error for a user: the store knows everything.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// The URL is unusable. The driver's own message is left out, because it may quote the URL.
    #[error("the redis url is not redis://host:port, rediss://host:port or redis+unix:///path")]
    Url,
    /// Redis cannot be reached, is too slow or refuses.
    #[error("{attempted}: redis: {cause}")]
    Unavailable {
        /// What was attempted.
        attempted: &'static str,
        /// The driver's reason.
        cause: String,
    },
    /// The state in Redis is gone and must be rebuilt from the store. Nothing was changed.
    #[error("{attempted}: the index has lost its state")]
    Lost {
        /// What was attempted.
        attempted: &'static str,
    },
}

impl IndexError {
    fn driver(attempted: &'static str) -> impl FnOnce(redis::RedisError) -> Self {
        move |e| Self::Unavailable { attempted, cause: e.to_string() }
    }
}

/// One job, as the index knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The job.
    pub id: JobId,
    /// Its queue and priority.
    pub line: Line,
    /// When it is due.
    pub execute_at: Timestamp,
}

impl Entry {
    /// As it stands in the sorted set: the line, a colon and the 36 characters of the id.
    fn member(&self) -> String {
        format!("{}:{}", self.line.as_str(), self.id)
    }

    fn of_member(member: &str, due_ms: i64) -> Option<Self> {
        let (line, id) = member.split_at_checked(member.len().checked_sub(37)?)?;
        let (id, execute_at) = (id.strip_prefix(':')?.parse().ok()?, DateTime::from_timestamp_millis(due_ms)?);
        Some(Self { id, line: Line::from_stored(line.to_owned()), execute_at })
    }
}

/// What became of hinted jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hinted {
    /// Put into a ready list.
    pub ready: usize,
    /// Put into the sorted set.
    pub waiting: usize,
    /// Beyond the horizon; the reconciler brings them in time.
    pub beyond: usize,
    /// Left out of a full ready list; the refill brings them.
    pub left_out: usize,
    /// Those put into the sorted set that it did not have, or had for another time.
    pub changed: usize,
}

/// What one move did.
#[derive(Clone, Debug, Default)]
pub struct MoveReport {
    /// Entries moved.
    pub moved: usize,
    /// Due time of the next entry.
    pub next: Option<Timestamp>,
    /// Lines that left jobs out and have run low.
    pub refill: Vec<Line>,
}

/// The index. Cheap to clone.
#[derive(Clone)]
pub struct Index {
    shared: Arc<Shared>,
}

struct Shared {
    client: redis::Client,
    link: Link,
    keys: Keys,
    settings: IndexSettings,
    /// The store's clock minus Redis's, in microseconds, as last measured.
    offset_us: AtomicI64,
    /// The highest beat seen since the index lost its state; zero before the first.
    beat: AtomicU64,
    /// Does somebody listen to the events? As of the last look.
    listened: watch::Sender<bool>,
    health: Arc<IndexHealth>,
    /// What is wrong with the server's settings, as last read.
    weakness: Mutex<Option<String>>,
    hint: Script,
    mover: Script,
    refilled: Script,
    first: Script,
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Index")
    }
}

impl Index {
    /// An index that connects when it is first used: a start never waits for Redis.
    ///
    /// # Errors
    /// [`IndexError::Url`] when the URL is unusable.
    pub fn new(mut settings: IndexSettings) -> Result<Self, IndexError> {
        // Nothing is shorter than an empty list: at zero, what was left out would never be brought in.
        settings.low_water = settings.low_water.max(1);
        // Calls of many tasks share a connection; none of them waits for the acknowledgement of another's.
        let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
        let info = settings.url.as_str().into_connection_info().map_err(|_| IndexError::Url)?.set_tcp_settings(tcp);
        let client = redis::Client::open(info).map_err(|_| IndexError::Url)?;
        let health = Arc::new(IndexHealth::new());
        let shared = Shared {
            link: Link::new(client.clone(), Arc::clone(&health)),
            client,
            keys: Keys::new(&settings.prefix),
            settings,
            offset_us: AtomicI64::new(0),
            beat: AtomicU64::new(0),
            listened: watch::Sender::new(false),
            health,
            weakness: Mutex::new(None),
            hint: Script::new(concat!(include_str!("lists.lua"), include_str!("hint.lua"))),
            mover: Script::new(concat!(include_str!("lists.lua"), include_str!("move.lua"))),
            refilled: Script::new(include_str!("refilled.lua")),
            first: Script::new(include_str!("first.lua")),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// How the index is doing, as this runner sees it.
    #[must_use]
    pub fn health(&self) -> &IndexHealth {
        &self.shared.health
    }

    /// How far ahead jobs are kept in Redis.
    #[must_use]
    pub fn horizon(&self) -> Duration {
        self.shared.settings.horizon
    }

    /// Most ids in one ready list.
    #[must_use]
    pub fn high_water(&self) -> usize {
        self.shared.settings.high_water
    }

    /// The fetcher's own line to Redis.
    #[must_use]
    pub fn fetch(&self, lines: Vec<Line>, runner: &RunnerId) -> Fetch {
        let Shared { client, keys, settings, health, .. } = &*self.shared;
        Fetch::new(client.clone(), Arc::clone(health), keys, lines, runner, settings.low_water)
    }

    /// Wake the fetcher of this runner, should it wait in a blocking pop: what it may take has changed.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis did not do it; the pop ends by itself within a second.
    pub async fn nudge(&self, runner: &RunnerId) -> Result<(), IndexError> {
        let key = self.shared.keys.nudge(runner);
        self.call("wake a fetcher", |mut conn| async move {
            // One is enough, and none outlives its runner for long.
            let mut pipe = redis::pipe();
            pipe.lpush(&key, "1").ltrim(&key, 0, 0).expire(&key, 60);
            pipe.query_async::<()>(&mut conn).await
        })
        .await
    }

    /// A line to the feed of events.
    #[must_use]
    pub fn feed(&self) -> FeedLine {
        let Shared { client, keys, listened, .. } = &*self.shared;
        FeedLine::new(client.clone(), keys, listened.subscribe())
    }

    /// Run commands on the shared connection; what goes wrong is told to the health.
    async fn call<T, F>(
        &self,
        attempted: &'static str,
        run: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<T, IndexError>
    where
        F: Future<Output = RedisResult<T>>,
    {
        self.shared.link.call(attempted, run).await
    }

    /// The index has lost its state, as a script or the beat says.
    fn lost(&self, attempted: &'static str) -> IndexError {
        // The counter may have begun anew.
        self.shared.beat.store(0, Ordering::Relaxed);
        let error = IndexError::Lost { attempted };
        self.shared.health.failed(&error);
        error
    }

    /// Tell the index about committed jobs.
    ///
    /// # Errors
    /// [`IndexError::Lost`] when the index must be rebuilt, [`IndexError::Unavailable`] when Redis did not do it.
    pub async fn hint(&self, entries: &[Entry]) -> Result<Hinted, IndexError> {
        let attempted = "hint jobs";
        let mut total = Hinted::default();
        // Bounded, so that one script never holds Redis for long.
        for page in entries.chunks(1_000) {
            let shared = &self.shared;
            let mut call = shared.hint.prepare_invoke();
            call.key(&shared.keys.epoch).key(&shared.keys.waiting).key(&shared.keys.overflow);
            call.arg(shared.offset_us.load(Ordering::Relaxed))
                .arg(i64::try_from(shared.settings.horizon.as_millis()).unwrap_or(i64::MAX))
                .arg(shared.settings.high_water)
                .arg(&shared.keys.ready_prefix);
            for entry in page {
                call.arg(entry.line.as_str()).arg(entry.id.to_string()).arg(entry.execute_at.timestamp_millis());
            }
            let answer: Value =
                self.call(attempted, |mut conn| async move { call.invoke_async(&mut conn).await }).await?;
            let counts: Vec<usize> = match answer {
                Value::Int(_) => return Err(self.lost(attempted)),
                other => redis::from_redis_value(other).map_err(|e| IndexError::driver(attempted)(e.into()))?,
            };
            if let [ready, waiting, beyond, left_out, changed] = counts[..] {
                total.ready += ready;
                total.waiting += waiting;
                total.beyond += beyond;
                total.left_out += left_out;
                total.changed += changed;
            }
        }
        Ok(total)
    }

    /// Put due jobs where they are taken next, the first of them first, however long their ready lists are: jobs that a dead
    /// runner had begun, which are never more than runners have workers.
    ///
    /// # Errors
    /// As [`hint`](Self::hint).
    pub async fn put_first(&self, entries: &[Entry]) -> Result<(), IndexError> {
        let attempted = "put jobs first";
        let shared = &self.shared;
        // Lists are served from their tail: what is pushed last is taken first. So are the pages.
        for page in entries.rchunks(1_000) {
            let mut call = shared.first.prepare_invoke();
            call.key(&shared.keys.epoch).arg(&shared.keys.ready_prefix);
            for entry in page.iter().rev() {
                call.arg(entry.line.as_str()).arg(entry.id.to_string());
            }
            let pushed: i64 =
                self.call(attempted, |mut conn| async move { call.invoke_async(&mut conn).await }).await?;
            if pushed < 0 {
                return Err(self.lost(attempted));
            }
        }
        Ok(())
    }

    /// Move entries that are due to their ready lists, at most `most`. Always a write, so that it ends an outage. `store_now` tells the store's clock for a moment
    /// of this process, by which the offset between the two servers' clocks is measured on the way.
    ///
    /// # Errors
    /// As [`hint`](Self::hint).
    pub async fn move_due(
        &self,
        most: usize,
        store_now: impl Fn(Instant) -> Timestamp,
    ) -> Result<MoveReport, IndexError> {
        let attempted = "move due jobs";
        let shared = &self.shared;
        let mut call = shared.mover.prepare_invoke();
        call.key(&shared.keys.epoch).key(&shared.keys.waiting).key(&shared.keys.overflow).key(&shared.keys.beat);
        call.key(&shared.keys.listeners);
        call.arg(shared.offset_us.load(Ordering::Relaxed))
            .arg(most)
            .arg(shared.settings.high_water)
            .arg(&shared.keys.ready_prefix)
            .arg(shared.settings.low_water);
        let sent = Instant::now();
        let answer: Value = self.call(attempted, |mut conn| async move { call.invoke_async(&mut conn).await }).await?;
        let received = Instant::now();
        let words: Vec<String> = match answer {
            Value::Int(_) => return Err(self.lost(attempted)),
            other => redis::from_redis_value(other).map_err(|e| IndexError::driver(attempted)(e.into()))?,
        };
        let mut words = words.into_iter();
        let moved = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        let next = words.next().and_then(|word| word.parse::<f64>().ok());
        let next = next.and_then(|ms| DateTime::from_timestamp_millis(ms as i64));
        if let Some(redis_us) = words.next().and_then(|word| word.parse::<i64>().ok()) {
            let middle = sent + received.duration_since(sent) / 2;
            let store_us = store_now(middle).timestamp_micros();
            shared.offset_us.store(store_us - redis_us, Ordering::Relaxed);
        }
        let beat: u64 = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        let listened = words.next().is_some_and(|word| word == "1");
        shared.listened.send_if_modified(|known| std::mem::replace(known, listened) != listened);
        if beat <= shared.beat.fetch_max(beat, Ordering::Relaxed) {
            return Err(self.lost("see the index go on"));
        }
        shared.health.wrote();
        Ok(MoveReport { moved, next, refill: words.map(Line::from_stored).collect() })
    }

    /// Mark the index as being whole from here on: what is committed before this call must be hinted by the caller,
    /// what is committed after it is hinted by its own writer. True when the mark was missing.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis did not do it.
    pub async fn begin_epoch(&self) -> Result<bool, IndexError> {
        let epoch = JobId::new().to_string();
        let options = redis::SetOptions::default().conditional_set(redis::ExistenceCheck::NX);
        let key = &self.shared.keys.epoch;
        let set = self.call("begin an epoch", |mut conn| async move { conn.set_options(key, epoch, options).await });
        Ok(set.await?.is_some())
    }

    /// Forget everything, the epoch first: runners then rebuild. How many keys there were.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis did not do it.
    pub async fn forget(&self) -> Result<usize, IndexError> {
        let keys = &self.shared.keys;
        // The counter begins anew, and whoever forgets on purpose is not surprised by it.
        self.shared.beat.store(0, Ordering::Relaxed);
        self.call("forget the index", |mut conn| async move {
            let fixed = [&keys.epoch, &keys.waiting, &keys.overflow, &keys.beat, &keys.events, &keys.listeners];
            let mut gone = conn.del(&fixed[..]).await?;
            let mut lists = Vec::new();
            {
                // Braces have no meaning in a pattern; the prefix holds no other special characters.
                let mut found = conn.scan_match::<_, String>(format!("{}*", keys.ready_prefix)).await?;
                while let Some(key) = found.next_item().await {
                    lists.push(key?);
                }
            }
            if !lists.is_empty() {
                gone += conn.del(lists).await?;
            }
            // A runner may have begun to rebuild meanwhile, and lost a part of that to the lines above: once more.
            conn.del(&keys.epoch).await?;
            Ok(gone)
        })
        .await
    }

    /// The ids in the ready list of `line`.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis did not do it.
    pub async fn ready_ids(&self, line: &Line) -> Result<HashSet<JobId>, IndexError> {
        let list = self.shared.keys.ready(line);
        let ids = self.call("read a ready list", |mut conn| async move { conn.lrange(list, 0, -1).await }).await?;
        Ok(ids.iter().filter_map(|id| id.parse().ok()).collect())
    }

    /// The ids in the ready lists of these lines, in this order. As few round trips as fit: each brings a bounded number
    /// of ids, or one list.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis did not do it.
    pub async fn ready_lists(&self, lines: &[Line]) -> Result<Vec<HashSet<JobId>>, IndexError> {
        let (_, lengths) = self.depth(lines).await?;
        let mut lists = vec![HashSet::new(); lines.len()];
        let filled: Vec<(usize, usize)> = lengths.into_iter().enumerate().filter(|(_, length)| *length > 0).collect();
        let mut rest = filled.as_slice();
        while !rest.is_empty() {
            let mut total = 0;
            let fit = rest.iter().take_while(|(_, length)| {
                total += length;
                total <= MOST_LISTED
            });
            let (now, later) = rest.split_at(fit.count().max(1));
            let mut pipe = redis::pipe();
            for (place, _) in now {
                pipe.lrange(self.shared.keys.ready(&lines[*place]), 0, -1);
            }
            let attempted = "read ready lists";
            let found: Vec<Vec<String>> =
                self.call(attempted, |mut conn| async move { pipe.query_async(&mut conn).await }).await?;
            for ((place, _), ids) in now.iter().zip(found) {
                lists[*place] = ids.iter().filter_map(|id| id.parse().ok()).collect();
            }
            rest = later;
        }
        Ok(lists)
    }

    /// The score of each of these entries in the sorted set, unix milliseconds, if it is there.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis did not do it.
    pub async fn scores(&self, entries: &[Entry]) -> Result<Vec<Option<i64>>, IndexError> {
        let mut found = Vec::with_capacity(entries.len());
        for page in entries.chunks(1_000) {
            let mut ask = redis::cmd("ZMSCORE");
            ask.arg(&self.shared.keys.waiting);
            for entry in page {
                ask.arg(entry.member());
            }
            let attempted = "look for scheduled jobs";
            let scores: Vec<Option<f64>> =
                self.call(attempted, |mut conn| async move { ask.query_async(&mut conn).await }).await?;
            found.extend(scores.into_iter().map(|score| score.map(|ms| ms as i64)));
        }
        Ok(found)
    }

    /// Entries of the sorted set, the latest due first, from the place `from` on. Counted from this end, because moves
    /// take entries away at the other while somebody reads.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis did not do it.
    pub async fn scheduled_page(&self, from: usize, most: usize) -> Result<Vec<Entry>, IndexError> {
        let mut ask = redis::cmd("ZREVRANGE");
        ask.arg(&self.shared.keys.waiting).arg(from).arg(from + most.max(1) - 1).arg("WITHSCORES");
        let attempted = "read scheduled jobs";
        let found: Vec<(String, f64)> =
            self.call(attempted, |mut conn| async move { ask.query_async(&mut conn).await }).await?;
        Ok(found.into_iter().filter_map(|(member, ms)| Entry::of_member(&member, ms as i64)).collect())
    }

    /// Take entries out of the sorted set; how many there were. Ready lists are left alone: the claims see to them.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis did not do it.
    pub async fn unschedule(&self, entries: &[Entry]) -> Result<usize, IndexError> {
        let mut gone = 0;
        for page in entries.chunks(1_000) {
            let members: Vec<String> = page.iter().map(Entry::member).collect();
            let waiting = &self.shared.keys.waiting;
            gone += self.call("unschedule jobs", |mut conn| async move { conn.zrem(waiting, members).await }).await?;
        }
        Ok(gone)
    }

    /// Is the index marked as being whole?
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis did not do it.
    pub async fn is_whole(&self) -> Result<bool, IndexError> {
        let epoch = &self.shared.keys.epoch;
        self.call("look for the epoch", |mut conn| async move { conn.exists(epoch).await }).await
    }

    /// The mark of being whole, made anew by each rebuild from nothing; absent when the state is lost.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis did not do it.
    pub async fn epoch(&self) -> Result<Option<String>, IndexError> {
        let epoch = &self.shared.keys.epoch;
        self.call("read the epoch", |mut conn| async move { conn.get(epoch).await }).await
    }

    /// Did this line leave jobs out, and is its list below the low water now?
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis did not do it.
    pub async fn has_run_low(&self, line: &Line) -> Result<bool, IndexError> {
        let keys = &self.shared.keys;
        let mut pipe = redis::pipe();
        pipe.hexists(&keys.overflow, line.as_str()).llen(keys.ready(line));
        let attempted = "look at a ready list";
        let (left_out, length): (bool, usize) =
            self.call(attempted, |mut conn| async move { pipe.query_async(&mut conn).await }).await?;
        Ok(left_out && length < self.shared.settings.low_water)
    }

    /// The lines that left jobs out of a full list, and from where in the due order.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis did not do it.
    pub async fn left_out(&self) -> Result<HashMap<Line, RefillPlace>, IndexError> {
        let overflow = &self.shared.keys.overflow;
        let noted = self.call("read what was left out", |mut conn| async move { conn.hgetall(overflow).await }).await?;
        let place = |(line, text): (String, String)| Some((Line::from_stored(line), RefillPlace::parse(&text)?));
        Ok(noted.into_iter().filter_map(place).collect())
    }

    /// Start refilling a line that left jobs out, or nothing when there is no need or another runner is at it. From here
    /// on newcomers are listed again.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis did not do it.
    pub async fn begin_refill(&self, line: &Line) -> Result<Option<Refill>, IndexError> {
        let keys = &self.shared.keys;
        let owner = JobId::new().to_string();
        let options = redis::SetOptions::default()
            .conditional_set(redis::ExistenceCheck::NX)
            .with_expiration(redis::SetExpiry::PX(3_000));
        let (lock, name) = (keys.refill(line), owner.clone());
        let place = self.call("begin a refill", |mut conn| async move {
            if conn.set_options(lock, name, options).await?.is_none() {
                return Ok(None);
            }
            let (place, _): (Option<String>, usize) = redis::pipe()
                .atomic()
                .hget(&keys.overflow, line.as_str())
                .hdel(&keys.overflow, line.as_str())
                .query_async(&mut conn)
                .await?;
            Ok(place)
        });
        let place = place.await?.and_then(|text| RefillPlace::parse(&text));
        Ok(place.map(|place| Refill { place, owner }))
    }

    /// End a refill. With `rest`, jobs from there on were left out again.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis did not do it; the lock then ends by itself.
    pub async fn end_refill(&self, line: &Line, refill: Refill, rest: Option<RefillPlace>) -> Result<(), IndexError> {
        let keys = &self.shared.keys;
        let mut call = self.shared.refilled.prepare_invoke();
        call.key(&keys.overflow).key(keys.refill(line)).arg(line.as_str());
        call.arg(rest.map_or(String::new(), |rest| rest.to_string())).arg(refill.owner);
        self.call("end a refill", |mut conn| async move { call.invoke_async(&mut conn).await }).await
    }

    /// Read whether the server may evict keys, and say so once in the log. Best effort: many servers do not tell.
    pub async fn look_for_weakness(&self) {
        let asked = self.call("read the server's settings", |mut conn| async move {
            let told: RedisResult<redis::InfoDict> = redis::cmd("INFO").arg("memory").query_async(&mut conn).await;
            // A refusal is an answer.
            Ok(told.ok())
        });
        let Ok(Some(info)) = asked.await else { return };
        let limit: u64 = info.get("maxmemory").unwrap_or(0);
        let policy: String = info.get("maxmemory_policy").unwrap_or_default();
        // The volatile policies evict only keys that expire by themselves, which none of importance does.
        let weakness = (limit > 0 && policy.starts_with("allkeys-")).then(|| {
            format!("maxmemory-policy is {policy}: Redis may evict the index, and jobs are late by seconds then")
        });
        let mut known = self.shared.weakness.lock().unwrap_or_else(PoisonError::into_inner);
        if *known != weakness {
            if let Some(weakness) = &weakness {
                tracing::warn!(weakness, "noeviction is the policy for an index");
            }
            *known = weakness;
        }
    }

    /// What is wrong with the server's settings, as last read.
    #[must_use]
    pub fn weakness(&self) -> Option<String> {
        self.shared.weakness.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many entries wait in the sorted set, and the length of each of these ready lists.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis did not do it.
    pub async fn depth(&self, lines: &[Line]) -> Result<(usize, Vec<usize>), IndexError> {
        let mut pipe = redis::pipe();
        pipe.zcard(&self.shared.keys.waiting);
        for line in lines {
            pipe.llen(self.shared.keys.ready(line));
        }
        let mut lengths: Vec<usize> =
            self.call("read the depth", |mut conn| async move { pipe.query_async(&mut conn).await }).await?;
        let waiting = if lengths.is_empty() { 0 } else { lengths.remove(0) };
        Ok((waiting, lengths))
    }
}

/// A refill that is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refill {
    /// Where to begin.
    pub place: RefillPlace,
    /// Who holds its lock.
    owner: String,
}

/// Where a refill begins: a due time, and within it an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefillPlace {
    /// Due time.
    pub execute_at: Timestamp,
    /// The last id that was listed at that time, if any was.
    pub after: Option<JobId>,
}

impl RefillPlace {
    fn parse(text: &str) -> Option<Self> {
        let (ms, id) = text.split_once(':').map_or((text, None), |(ms, id)| (ms, Some(id)));
        let execute_at = DateTime::from_timestamp_millis(ms.parse().ok()?)?;
        Some(Self { execute_at, after: id.and_then(|id| id.parse().ok()) })
    }
}

impl std::fmt::Display for RefillPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.execute_at.timestamp_millis())?;
        self.after.map_or(Ok(()), |id| write!(f, ":{id}"))
    }
}
