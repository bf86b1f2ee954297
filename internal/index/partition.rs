//! One partition of the index: the keys of one hash tag, all on one server.
//!
//! An index has one partition, or as many as the setting `index_partitions` says. `lib.rs` puts them together.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use chrono::DateTime;
use redis::aio::MultiplexedConnection;
use redis::{AsyncTypedCommands, RedisResult, ScanOptions, Script, Value};
use tickr_job::{JobId, RunnerId, Timestamp};
use tokio::sync::watch;

use super::keys::{Keys, Lane};
use super::link::Link;
use super::servers::Servers;
use super::{Entry, HintResult, IndexError, IndexHealth, IndexSettings, MoveReport, Refill, RefillPosition};

/// Most ids in one response about several ready lists.
const MAX_LISTED: usize = 20_000;
/// Keys that Redis looks at in one step of a scan. It takes about a millisecond. Redis may hold millions of keys of
/// other programs, and each step is a round trip.
const SCANNED: usize = 5_000;

/// One partition. Cheap to clone.
#[derive(Clone)]
pub(super) struct Partition {
    pub(super) shared: Arc<PartitionInner>,
}

pub(super) struct PartitionInner {
    pub(super) servers: Servers,
    link: Link,
    pub(super) keys: Keys,
    settings: IndexSettings,
    /// MySQL's clock minus Redis's clock, in microseconds, as last measured.
    offset_us: AtomicI64,
    /// Highest value of the `sequence` counter seen since the index lost its data. Zero before the first one.
    sequence: AtomicU64,
    /// Due time of the first entry, as the last move found it.
    next: Mutex<Option<Timestamp>>,
    /// True while a client in the cluster listens to events, as of the last move.
    pub(super) listened: watch::Sender<bool>,
    health: Arc<IndexHealth>,
    /// Problem of the server's settings, as last read.
    weakness: Mutex<Option<String>>,
    hint: Script,
    mover: Script,
    refilled: Script,
    first: Script,
}

impl Partition {
    pub(super) fn new(settings: &IndexSettings, keys: Keys, health: &Arc<IndexHealth>) -> Result<Self, IndexError> {
        let servers = Servers::new(&settings.url, &settings.tls, &keys.epoch)?;
        let shared = PartitionInner {
            link: Link::new(servers.clone(), keys.clone(), Arc::clone(health)),
            servers,
            keys,
            settings: settings.clone(),
            offset_us: AtomicI64::new(0),
            sequence: AtomicU64::new(0),
            next: Mutex::new(None),
            listened: watch::Sender::new(false),
            health: Arc::clone(health),
            weakness: Mutex::new(None),
            hint: Script::new(concat!(include_str!("lists.lua"), include_str!("hint.lua"))),
            mover: Script::new(concat!(include_str!("lists.lua"), include_str!("move.lua"))),
            refilled: Script::new(include_str!("refilled.lua")),
            first: Script::new(include_str!("first.lua")),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Leave the present server if another one holds the partition by now.
    pub(super) async fn follow_master(&self) {
        self.shared.link.follow().await;
    }

    /// Wake the fetcher of this runner if it waits in a blocking pop: what it may take has changed.
    pub(super) async fn nudge(&self, runner: &RunnerId) -> Result<(), IndexError> {
        let key = self.shared.keys.nudge(runner);
        self.call("wake a fetcher", |mut conn| async move {
            // Keep only one wake-up. The key expires soon after its runner is gone.
            let mut pipe = redis::pipe();
            pipe.lpush(&key, "1").ltrim(&key, 0, 0).expire(&key, 60);
            pipe.query_async::<()>(&mut conn).await
        })
        .await
    }

    /// Run commands on the shared connection. Errors are reported to the [`IndexHealth`].
    pub(super) async fn call<T, F>(
        &self,
        attempted: &'static str,
        run: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<T, IndexError>
    where
        F: Future<Output = RedisResult<T>>,
    {
        self.shared.link.call(attempted, run).await
    }

    /// Record that the index has lost its data, as a script or the `sequence` counter shows.
    fn lost_data(&self, attempted: &'static str) -> IndexError {
        // The counter may have started again at zero.
        self.shared.sequence.store(0, Ordering::Relaxed);
        let error = IndexError::Lost { attempted };
        self.shared.health.record_failure(&error);
        error
    }

    /// Add committed jobs to the index.
    pub(super) async fn hint(&self, entries: &[Entry]) -> Result<HintResult, IndexError> {
        let attempted = "hint jobs";
        let mut total = HintResult::default();
        // Pages are bounded, so that no script blocks Redis for long.
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
                Value::Int(_) => return Err(self.lost_data(attempted)),
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

    /// Put due jobs at the front of their ready lists, in this order, however long the lists are. They are jobs that a
    /// dead runner had claimed, that a runner has claimed or taken and not started, or that Redis lost. There are never
    /// more of them than runners claim at a time, or than the lists have room for.
    pub(super) async fn put_first(&self, entries: &[Entry]) -> Result<(), IndexError> {
        let attempted = "put jobs first";
        let shared = &self.shared;
        // Lists are served from their tail: an id pushed last is taken first. So pages and ids are pushed in reverse
        // order.
        for page in entries.rchunks(1_000) {
            let mut call = shared.first.prepare_invoke();
            call.key(&shared.keys.epoch).arg(&shared.keys.ready_prefix);
            for entry in page.iter().rev() {
                call.arg(entry.line.as_str()).arg(entry.id.to_string());
            }
            let pushed: i64 =
                self.call(attempted, |mut conn| async move { call.invoke_async(&mut conn).await }).await?;
            if pushed < 0 {
                return Err(self.lost_data(attempted));
            }
        }
        Ok(())
    }

    /// Move at most `most` due entries to their ready lists. The script always writes, so a success ends an outage.
    /// `store_now` returns MySQL's time for a moment of this process; the offset between the clocks of the two servers
    /// is measured with it.
    pub(super) async fn move_due(
        &self,
        most: usize,
        store_now: &impl Fn(Instant) -> Timestamp,
    ) -> Result<MoveReport, IndexError> {
        let attempted = "move due jobs";
        let shared = &self.shared;
        let mut call = shared.mover.prepare_invoke();
        call.key(&shared.keys.epoch).key(&shared.keys.waiting).key(&shared.keys.overflow).key(&shared.keys.sequence);
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
            Value::Int(_) => return Err(self.lost_data(attempted)),
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
        let sequence: u64 = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        let listened = words.next().is_some_and(|word| word == "1");
        shared.listened.send_if_modified(|known| std::mem::replace(known, listened) != listened);
        if sequence <= shared.sequence.fetch_max(sequence, Ordering::Relaxed) {
            return Err(self.lost_data("check that redis did not go back in time"));
        }
        *shared.next.lock().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(MoveReport { moved, next, refill: words.map(Lane::from_stored).collect() })
    }

    /// Return whether the first entry of the sorted set is the one that the last move found, and nothing points to lost
    /// data.
    pub(super) async fn is_quiet(&self) -> Result<bool, IndexError> {
        type Found = (u8, Option<String>, Vec<(String, f64)>);
        let keys = &self.shared.keys;
        let mut look = redis::pipe();
        // Redis counts a key as often as it is named. So the number shows which of the two keys are there.
        look.cmd("EXISTS").arg(&keys.epoch).arg(&keys.epoch).arg(&keys.listeners);
        look.get(&keys.sequence);
        look.cmd("ZRANGE").arg(&keys.waiting).arg(0).arg(0).arg("WITHSCORES");
        let call = |mut conn| async move { look.query_async::<Found>(&mut conn).await };
        let (marks, sequence, first) = self.call("look for the next entry", call).await?;
        let (is_whole, listened) = (marks >= 2, marks % 2 == 1);
        self.shared.listened.send_if_modified(|known| std::mem::replace(known, listened) != listened);
        let sequence: u64 = sequence.and_then(|sequence| sequence.parse().ok()).unwrap_or(0);
        let first = first.first().and_then(|(_, ms)| DateTime::from_timestamp_millis(*ms as i64));
        let next = *self.shared.next.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(is_whole && sequence >= self.shared.sequence.load(Ordering::Relaxed) && first == next)
    }

    /// Mark the index as complete from now on. The caller must hint what was committed before this call; what is
    /// committed after it is hinted by its own writer. Return true when the mark was missing.
    pub(super) async fn begin_epoch(&self) -> Result<bool, IndexError> {
        let epoch = JobId::new().to_string();
        let options = redis::SetOptions::default().conditional_set(redis::ExistenceCheck::NX);
        let key = &self.shared.keys.epoch;
        let set = self.call("begin an epoch", |mut conn| async move { conn.set_options(key, epoch, options).await });
        Ok(set.await?.is_some())
    }

    /// Delete everything, the epoch first, so that runners rebuild the index. Return how many keys there were.
    ///
    /// The ready lists are looked up before that. The lookup may take seconds beside many keys of other programs, and
    /// without an epoch no job gets into the index meanwhile.
    pub(super) async fn forget(&self) -> Result<usize, IndexError> {
        let keys = &self.shared.keys;
        // Braces have no meaning in a Redis pattern, and the prefix holds no other special characters.
        let ready = format!("{}*", keys.ready_prefix);
        let lists =
            self.call("look for ready lists", |mut conn| async move { find_keys(&mut conn, ready).await }).await?;
        // The counter starts again at zero. Here that is intended, and must not be taken for lost data.
        self.shared.sequence.store(0, Ordering::Relaxed);
        self.call("forget the index", |mut conn| async move {
            let fixed = [&keys.epoch, &keys.waiting, &keys.overflow, &keys.sequence, &keys.events, &keys.listeners];
            let mut gone = conn.del(&fixed[..]).await?;
            if !lists.is_empty() {
                gone += conn.del(lists).await?;
            }
            // A runner may have started a rebuild meanwhile, and the deletions above removed part of it. Delete the
            // epoch again, so that it starts over.
            conn.del(&keys.epoch).await?;
            Ok(gone)
        })
        .await
    }

    /// Delete the keys that hold another value than tickr writes, such as a ready list that a client set as a string. A
    /// rebuild follows, as after every outage, and makes them again.
    pub(super) async fn delete_misshapen(&self) -> Result<(), IndexError> {
        let keys = &self.shared.keys;
        let gone = self
            .call("look for keys of a wrong type", |mut conn| async move {
                let names = find_keys(&mut conn, keys.all.clone()).await?;
                let mut wrong = Vec::new();
                for page in names.chunks(1_000) {
                    let mut pipe = redis::pipe();
                    for name in page {
                        pipe.cmd("TYPE").arg(name);
                    }
                    let types: Vec<String> = pipe.query_async(&mut conn).await?;
                    let other = |name: &str, found: &str| keys.type_of(name).is_some_and(|wanted| wanted != found);
                    // A key that expired since the scan has the type `none`. To delete it does no harm.
                    let of_page = page.iter().zip(&types).filter(|(name, found)| other(name, found));
                    wrong.extend(of_page.map(|(name, _)| name.clone()));
                }
                if !wrong.contains(&keys.sequence) {
                    let sequence = conn.get(&keys.sequence).await?;
                    if sequence.is_some_and(|text| text.parse::<i64>().is_err()) {
                        wrong.push(keys.sequence.clone());
                    }
                }
                if !wrong.is_empty() {
                    conn.del(&wrong).await?;
                }
                Ok(wrong)
            })
            .await;
        if gone.is_err() {
            // The next look tries again.
            self.shared.health.found_misshapen();
        }
        let gone = gone?;
        if !gone.is_empty() {
            tracing::warn!(keys = gone.join(" "), "deleted keys of redis that held values of another program");
        }
        Ok(())
    }

    /// Return the ids in the ready list of a lane.
    pub(super) async fn ready_ids(&self, line: &Lane) -> Result<HashSet<JobId>, IndexError> {
        let list = self.shared.keys.ready(line);
        let ids = self.call("read a ready list", |mut conn| async move { conn.lrange(list, 0, -1).await }).await?;
        Ok(ids.iter().filter_map(|id| id.parse().ok()).collect())
    }

    /// Return the ids in the ready lists of these lanes, in this order. It uses few round trips; each returns a bounded
    /// number of ids, or one list.
    pub(super) async fn ready_lists(&self, lines: &[Lane]) -> Result<Vec<HashSet<JobId>>, IndexError> {
        let (_, lengths) = self.depth(lines).await?;
        let mut lists = vec![HashSet::new(); lines.len()];
        let filled: Vec<(usize, usize)> = lengths.into_iter().enumerate().filter(|(_, length)| *length > 0).collect();
        let mut rest = filled.as_slice();
        while !rest.is_empty() {
            let mut total = 0;
            let fit = rest.iter().take_while(|(_, length)| {
                total += length;
                total <= MAX_LISTED
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

    /// Return at most `most` ids of the ready list of each of these lanes, in this order: those that are taken next.
    pub(super) async fn ready_fronts(&self, lines: &[Lane], most: usize) -> Result<Vec<HashSet<JobId>>, IndexError> {
        if lines.is_empty() || most == 0 {
            return Ok(vec![HashSet::new(); lines.len()]);
        }
        let first = isize::try_from(most).map_or(0, |most| -most);
        let mut pipe = redis::pipe();
        for line in lines {
            // Ids are taken from this end.
            pipe.lrange(self.shared.keys.ready(line), first, -1);
        }
        let attempted = "read the fronts of ready lists";
        let found: Vec<Vec<String>> =
            self.call(attempted, |mut conn| async move { pipe.query_async(&mut conn).await }).await?;
        Ok(found.iter().map(|ids| ids.iter().filter_map(|id| id.parse().ok()).collect()).collect())
    }

    /// Return the score of each of these entries in the sorted set, in unix milliseconds; None for an entry that is not
    /// there.
    pub(super) async fn scores(&self, entries: &[Entry]) -> Result<Vec<Option<i64>>, IndexError> {
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

    /// Return entries of the sorted set, the latest due first, from position `from` on. Positions count from this end,
    /// because moves remove entries at the other end while the caller reads.
    pub(super) async fn scheduled_page(&self, from: usize, most: usize) -> Result<Vec<Entry>, IndexError> {
        let mut ask = redis::cmd("ZREVRANGE");
        ask.arg(&self.shared.keys.waiting).arg(from).arg(from + most.max(1) - 1).arg("WITHSCORES");
        let attempted = "read scheduled jobs";
        let found: Vec<(String, f64)> =
            self.call(attempted, |mut conn| async move { ask.query_async(&mut conn).await }).await?;
        Ok(found.into_iter().filter_map(|(member, ms)| Entry::from_member(&member, ms as i64)).collect())
    }

    /// Remove entries from the sorted set. Return how many there were. Ready lists are not changed: the claims drop
    /// their surplus ids.
    pub(super) async fn unschedule(&self, entries: &[Entry]) -> Result<usize, IndexError> {
        let mut gone = 0;
        for page in entries.chunks(1_000) {
            let members: Vec<String> = page.iter().map(Entry::member).collect();
            let waiting = &self.shared.keys.waiting;
            gone += self.call("unschedule jobs", |mut conn| async move { conn.zrem(waiting, members).await }).await?;
        }
        Ok(gone)
    }

    /// Return whether the index is marked as complete.
    pub(super) async fn is_whole(&self) -> Result<bool, IndexError> {
        let epoch = &self.shared.keys.epoch;
        self.call("look for the epoch", |mut conn| async move { conn.exists(epoch).await }).await
    }

    /// Return the epoch: the mark that the index is complete, with a new value for each rebuild from nothing. None when
    /// the data is lost.
    pub(super) async fn epoch(&self) -> Result<Option<String>, IndexError> {
        let epoch = &self.shared.keys.epoch;
        self.call("read the epoch", |mut conn| async move { conn.get(epoch).await }).await
    }

    /// Return whether this lane left jobs out and its list is now below the low water.
    pub(super) async fn has_run_low(&self, line: &Lane) -> Result<bool, IndexError> {
        let keys = &self.shared.keys;
        let mut pipe = redis::pipe();
        pipe.hexists(&keys.overflow, line.as_str()).llen(keys.ready(line));
        let attempted = "look at a ready list";
        let (left_out, length): (bool, usize) =
            self.call(attempted, |mut conn| async move { pipe.query_async(&mut conn).await }).await?;
        Ok(left_out && length < self.shared.settings.low_water)
    }

    /// Return the lanes that left jobs out of a full list, each with the position in the due order from which it did.
    pub(super) async fn left_out(&self) -> Result<HashMap<Lane, RefillPosition>, IndexError> {
        let overflow = &self.shared.keys.overflow;
        let noted = self.call("read what was left out", |mut conn| async move { conn.hgetall(overflow).await }).await?;
        let place = |(line, text): (String, String)| Some((Lane::from_stored(line), RefillPosition::parse(&text)?));
        Ok(noted.into_iter().filter_map(place).collect())
    }

    /// Start to refill a lane that left jobs out. From here on its list takes new jobs again. None when the lane left
    /// no jobs out or another runner is refilling it.
    pub(super) async fn begin_refill(&self, line: &Lane) -> Result<Option<Refill>, IndexError> {
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
        let place = place.await?.and_then(|text| RefillPosition::parse(&text));
        Ok(place.map(|place| Refill { place, owner }))
    }

    /// End a refill. With `rest`, jobs from that position on were left out again.
    pub(super) async fn end_refill(
        &self,
        line: &Lane,
        refill: Refill,
        rest: Option<RefillPosition>,
    ) -> Result<(), IndexError> {
        let keys = &self.shared.keys;
        let mut call = self.shared.refilled.prepare_invoke();
        call.key(&keys.overflow).key(keys.refill(line)).arg(line.as_str());
        call.arg(rest.map_or(String::new(), |rest| rest.to_string())).arg(refill.owner);
        self.call("end a refill", |mut conn| async move { call.invoke_async(&mut conn).await }).await
    }

    /// Read whether the server may evict keys, and log a change of that. Best effort: many servers do not tell.
    pub(super) async fn look_for_weakness(&self) {
        let asked = self.call("read the settings of the server", |mut conn| async move {
            let told: RedisResult<redis::InfoDict> = redis::cmd("INFO").arg("memory").query_async(&mut conn).await;
            // A refusal is an answer as well, not an outage.
            Ok(told.ok())
        });
        let Ok(Some(info)) = asked.await else { return };
        let limit: u64 = info.get("maxmemory").unwrap_or(0);
        let policy: String = info.get("maxmemory_policy").unwrap_or_default();
        // The `volatile-` policies evict only keys that expire by themselves, and none of those is important.
        let weakness = (limit > 0 && policy.starts_with("allkeys-")).then(|| {
            format!("maxmemory-policy is {policy}: Redis may evict the index, and then jobs start seconds late")
        });
        let mut known = self.shared.weakness.lock().unwrap_or_else(PoisonError::into_inner);
        if *known != weakness {
            if let Some(weakness) = &weakness {
                tracing::warn!(weakness, "set the maxmemory-policy of redis to noeviction");
            }
            *known = weakness;
        }
    }

    /// Return the problem of the server's settings, as last read.
    pub(super) fn weakness(&self) -> Option<String> {
        self.shared.weakness.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Return the number of entries in the sorted set, and the length of each of these ready lists.
    pub(super) async fn depth(&self, lines: &[Lane]) -> Result<(usize, Vec<usize>), IndexError> {
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

/// Return the keys that match a pattern.
async fn find_keys(conn: &mut MultiplexedConnection, pattern: String) -> RedisResult<Vec<String>> {
    let options = ScanOptions::default().with_pattern(pattern).with_count(SCANNED);
    let (mut keys, mut found) = (Vec::new(), conn.scan_options::<String>(options).await?);
    while let Some(key) = found.next_item().await {
        keys.push(key?);
    }
    Ok(keys)
}
