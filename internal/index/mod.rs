//! Redis, the fast scheduling index. All commands and scripts are here.
//!
//! Everything in Redis is a hint that MySQL can give again: the whole of it may vanish at any moment, and no call here
//! decides anything about a job. Redis may deliver an id twice, which the store's compare-and-set claim drops; it must
//! not forget one for long, which the reconciler sees to.
//!
//! - `keys.rs`: every key · `hint.lua`, `move.lua`, `take.lua`, `refilled.lua`: each headed by its keys, arguments and answers
//! - [`Index`]: what the broker, the scheduler and the reconciler call
//! - [`Fetch`]: the fetcher's own connection, the only one that blocks

mod fetch;
mod health;
mod keys;

pub use crate::event::Health;
pub use fetch::{Fetch, ReadyList, Taken};
pub use health::IndexHealth;
pub use keys::Line;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use chrono::DateTime;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{AsyncTypedCommands, Script, Value};

use crate::job::{JobId, Timestamp};
use keys::Keys;

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
    conn: ConnectionManager,
}

struct Shared {
    client: redis::Client,
    keys: Keys,
    settings: IndexSettings,
    /// The store's clock minus Redis's, in microseconds, as last measured.
    offset_us: AtomicI64,
    health: IndexHealth,
    hint: Script,
    mover: Script,
    refilled: Script,
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
        let client = redis::Client::open(settings.url.as_str()).map_err(|_| IndexError::Url)?;
        let config = ConnectionManagerConfig::new()
            .set_number_of_retries(1)
            .set_min_delay(Duration::from_millis(50))
            .set_max_delay(Duration::from_millis(500))
            .set_connection_timeout(Some(Duration::from_millis(1_000)))
            .set_response_timeout(Some(Duration::from_millis(2_000)));
        let conn = ConnectionManager::new_lazy_with_config(client.clone(), config).map_err(|_| IndexError::Url)?;
        let shared = Shared {
            client,
            keys: Keys::new(&settings.prefix),
            settings,
            offset_us: AtomicI64::new(0),
            health: IndexHealth::new(),
            hint: Script::new(concat!(include_str!("lists.lua"), include_str!("hint.lua"))),
            mover: Script::new(concat!(include_str!("lists.lua"), include_str!("move.lua"))),
            refilled: Script::new(include_str!("refilled.lua")),
        };
        Ok(Self { shared: Arc::new(shared), conn })
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
    pub fn fetch(&self, lines: Vec<Line>) -> Fetch {
        Fetch::new(self.shared.client.clone(), &self.shared.keys, lines, self.shared.settings.low_water)
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
                call.invoke_async(&mut self.conn.clone()).await.map_err(IndexError::driver(attempted))?;
            let counts: Vec<usize> = match answer {
                Value::Int(_) => return Err(IndexError::Lost { attempted }),
                other => redis::from_redis_value(other).map_err(|e| IndexError::driver(attempted)(e.into()))?,
            };
            if let [ready, waiting, beyond, left_out] = counts[..] {
                total.ready += ready;
                total.waiting += waiting;
                total.beyond += beyond;
                total.left_out += left_out;
            }
        }
        Ok(total)
    }

    /// Move entries that are due to their ready lists, at most `most`. `store_now` tells the store's clock for a moment
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
        call.key(&shared.keys.epoch).key(&shared.keys.waiting).key(&shared.keys.overflow);
        call.arg(shared.offset_us.load(Ordering::Relaxed))
            .arg(most)
            .arg(shared.settings.high_water)
            .arg(&shared.keys.ready_prefix)
            .arg(shared.settings.low_water);
        let sent = Instant::now();
        let answer: Value = call.invoke_async(&mut self.conn.clone()).await.map_err(IndexError::driver(attempted))?;
        let received = Instant::now();
        let words: Vec<String> = match answer {
            Value::Int(_) => return Err(IndexError::Lost { attempted }),
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
        let set = self.conn.clone().set_options(&self.shared.keys.epoch, epoch, options).await;
        set.map(|set| set.is_some()).map_err(IndexError::driver("begin an epoch"))
    }

    /// Forget everything, the epoch first: runners then rebuild. How many keys there were.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis did not do it.
    pub async fn forget(&self) -> Result<usize, IndexError> {
        let attempted = "forget the index";
        let keys = &self.shared.keys;
        let mut conn = self.conn.clone();
        let fixed = [&keys.epoch, &keys.waiting, &keys.overflow];
        let mut gone = conn.del(&fixed[..]).await.map_err(IndexError::driver(attempted))?;
        let mut lists = Vec::new();
        {
            // Braces have no meaning in a pattern; the prefix holds no other special characters.
            let pattern = format!("{}*", keys.ready_prefix);
            let mut found = conn.scan_match::<_, String>(pattern).await.map_err(IndexError::driver(attempted))?;
            while let Some(key) = found.next_item().await {
                lists.push(key.map_err(IndexError::driver(attempted))?);
            }
        }
        if !lists.is_empty() {
            gone += conn.del(lists).await.map_err(IndexError::driver(attempted))?;
        }
        // A runner may have begun to rebuild meanwhile, and lost a part of that to the lines above: once more.
        conn.del(&keys.epoch).await.map_err(IndexError::driver(attempted))?;
        Ok(gone)
    }

    /// The ids in the ready list of `line`.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis did not do it.
    pub async fn ready_ids(&self, line: &Line) -> Result<HashSet<JobId>, IndexError> {
        let ids = self.conn.clone().lrange(self.shared.keys.ready(line), 0, -1).await;
        let ids = ids.map_err(IndexError::driver("read a ready list"))?;
        Ok(ids.iter().filter_map(|id| id.parse().ok()).collect())
    }

    /// Which of these entries wait in the sorted set, whatever their score.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis did not do it.
    pub async fn scheduled(&self, entries: &[Entry]) -> Result<HashSet<JobId>, IndexError> {
        let mut found = HashSet::new();
        for page in entries.chunks(1_000) {
            let mut ask = redis::cmd("ZMSCORE");
            ask.arg(&self.shared.keys.waiting);
            for entry in page {
                ask.arg(format!("{}:{}", entry.line.as_str(), entry.id));
            }
            let scores: Result<Vec<Option<f64>>, _> = ask.query_async(&mut self.conn.clone()).await;
            let scores = scores.map_err(IndexError::driver("look for scheduled jobs"))?;
            found.extend(page.iter().zip(scores).filter(|(_, score)| score.is_some()).map(|(entry, _)| entry.id));
        }
        Ok(found)
    }

    /// Did this line leave jobs out, and is its list below the low water now?
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis did not do it.
    pub async fn has_run_low(&self, line: &Line) -> Result<bool, IndexError> {
        let keys = &self.shared.keys;
        let mut pipe = redis::pipe();
        pipe.hexists(&keys.overflow, line.as_str()).llen(keys.ready(line));
        let read: Result<(bool, usize), _> = pipe.query_async(&mut self.conn.clone()).await;
        let (left_out, length) = read.map_err(IndexError::driver("look at a ready list"))?;
        Ok(left_out && length < self.shared.settings.low_water)
    }

    /// The lines that left jobs out of a full list, and from where in the due order.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis did not do it.
    pub async fn left_out(&self) -> Result<HashMap<Line, RefillPlace>, IndexError> {
        let noted = self.conn.clone().hgetall(&self.shared.keys.overflow).await;
        let noted = noted.map_err(IndexError::driver("read what was left out"))?;
        let place = |(line, text): (String, String)| Some((Line::from_stored(line), RefillPlace::parse(&text)?));
        Ok(noted.into_iter().filter_map(place).collect())
    }

    /// Start refilling a line that left jobs out: where to begin, or nothing when there is no need or another runner
    /// is at it. From here on newcomers are listed again.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis did not do it.
    pub async fn begin_refill(&self, line: &Line) -> Result<Option<RefillPlace>, IndexError> {
        let attempted = "begin a refill";
        let mut conn = self.conn.clone();
        let options = redis::SetOptions::default()
            .conditional_set(redis::ExistenceCheck::NX)
            .with_expiration(redis::SetExpiry::PX(3_000));
        let alone = conn.set_options(self.shared.keys.refill(line), "1", options).await;
        if alone.map_err(IndexError::driver(attempted))?.is_none() {
            return Ok(None);
        }
        let (place, _): (Option<String>, usize) = redis::pipe()
            .atomic()
            .hget(&self.shared.keys.overflow, line.as_str())
            .hdel(&self.shared.keys.overflow, line.as_str())
            .query_async(&mut conn)
            .await
            .map_err(IndexError::driver(attempted))?;
        Ok(place.and_then(|text| RefillPlace::parse(&text)))
    }

    /// End a refill. With `rest`, jobs from there on were left out again.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis did not do it; the lock then ends by itself.
    pub async fn end_refill(&self, line: &Line, rest: Option<RefillPlace>) -> Result<(), IndexError> {
        let (keys, mut conn) = (&self.shared.keys, self.conn.clone());
        let ended: Result<(), _> = match rest {
            None => conn.del(keys.refill(line)).await.map(drop),
            Some(rest) => {
                let mut call = self.shared.refilled.prepare_invoke();
                call.key(&keys.overflow).key(keys.refill(line)).arg(line.as_str()).arg(rest.to_string());
                call.invoke_async(&mut conn).await
            }
        };
        ended.map_err(IndexError::driver("end a refill"))
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
        let lengths: Result<Vec<usize>, _> = pipe.query_async(&mut self.conn.clone()).await;
        let mut lengths = lengths.map_err(IndexError::driver("read the depth"))?;
        let waiting = if lengths.is_empty() { 0 } else { lengths.remove(0) };
        Ok((waiting, lengths))
    }
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
