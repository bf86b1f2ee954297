//! Redis, the fast scheduling index. All Redis commands and scripts are here.
//!
//! Everything in Redis is a hint that can be made again from MySQL. All of it may vanish at any moment, and no call
//! here decides anything about a job. Redis may deliver an id twice: then one of the two claims in MySQL fails. Redis
//! must not lose an id for long: the reconciler puts it back.
//!
//! Its files:
//! - this one: [`Index`], for the broker, the scheduler and the reconciler.
//! - `servers.rs`: the servers of the URL, and the one that holds the index.
//! - `sentinels.rs`: the master, as Redis Sentinel knows it.
//! - `cluster.rs`: the master of one slot of a Redis Cluster.
//! - `guide.rs`: a server that is asked for the master.
//! - `partition.rs`: one partition of the index, with every command that is not a fetch.
//! - `link.rs`: the shared connection of a partition.
//! - `rights.rs`: the rights that the Redis user needs.
//! - `keys.rs`: every key.
//! - `health.rs`: the condition of the index, as one runner sees it.
//! - `fetch.rs`: [`Fetch`], the fetcher's own connection, the only one that blocks.
//! - `event_stream.rs`: [`EventStream`], the stream of cluster events.
//! - `bare.rs`: [`BareIndex`], used only by `tickr bench`.
//! - `lists.lua`: the part about ready lists that `hint.lua` and `move.lua` share.
//! - `hint.lua`: adds hinted jobs.
//! - `move.lua`: moves due jobs from the sorted set to the ready lists.
//! - `take.lua`: takes ids from the ready lists.
//! - `first.lua`: puts jobs at the front of their ready lists.
//! - `refilled.lua`: ends a refill of a ready list.
//!
//! Each script starts with its keys, arguments and results.

mod bare;
mod cluster;
mod event_stream;
mod fetch;
mod guide;
mod health;
mod keys;
mod link;
mod partition;
mod rights;
mod sentinels;
mod servers;

pub use bare::BareIndex;
pub use event_stream::{EventStream, LISTENS_FOR, StreamEntry, StreamPage, StreamPosition};
pub use fetch::{Fetch, FetchOrder, Popped, TakenIds};
pub use health::{Drift, IndexHealth, IndexStatus, RebuildTrigger, Rebuilt};
pub use keys::Lane;
pub use rights::rights;
pub use servers::{IndexMode, IndexTls};
pub use tickr_event::Health;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_recursion::async_recursion as boxed;
use chrono::DateTime;

use keys::Keys;
use partition::Partition;
use tickr_job::{JobId, RunnerId, Timestamp};

/// Connection settings of Redis, and limits of the data kept there.
#[derive(Clone)]
pub struct IndexSettings {
    /// URL in one of the forms of the setting `redis_url`.
    pub url: String,
    /// Files for a URL with TLS.
    pub tls: IndexTls,
    /// Prefix of every key.
    pub prefix: String,
    /// Number of partitions. Each is in a hash tag of its own.
    pub partitions: usize,
    /// How far ahead of their due times jobs are kept in Redis.
    pub horizon: Duration,
    /// Most ids in one ready list.
    pub high_water: usize,
    /// A list that left jobs out is refilled when it has fewer ids than this.
    pub low_water: usize,
}

impl std::fmt::Debug for IndexSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The URL may contain a password.
        f.debug_struct("IndexSettings").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// Failure of Redis. It is never an error for a client of the API, because MySQL holds everything.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// The URL cannot be used. The driver's own message is left out, because it may quote the URL.
    #[error(
        "the redis url is not redis://host:port, redis+unix:///path, redis+sentinel://host:port,host:port/name or \
         redis+cluster://host:port,host:port"
    )]
    Url,
    /// A file for TLS cannot be used.
    #[error("cannot use {setting} {}: {cause}", .file.display())]
    Certificates {
        /// The setting that names it.
        setting: &'static str,
        /// The file.
        file: PathBuf,
        /// Reason.
        cause: String,
    },
    /// Redis cannot be reached, is too slow, or refuses.
    #[error("{attempted}: redis: {cause}")]
    Unavailable {
        /// Action that was attempted.
        attempted: &'static str,
        /// Reason given by the driver.
        cause: String,
        /// Error of the driver. Absent while the next connection is not tried yet.
        #[source]
        source: Option<redis::RedisError>,
    },
    /// The data in Redis is gone and must be rebuilt from MySQL. Nothing was changed.
    #[error("{attempted}: the index has lost its data")]
    Lost {
        /// Action that was attempted.
        attempted: &'static str,
    },
}

impl IndexError {
    /// Cause of the error of a call that came too early for another connection.
    const PAUSE: &'static str = "waiting before the next connection";

    fn driver(attempted: &'static str) -> impl FnOnce(redis::RedisError) -> Self {
        move |e| Self::Unavailable { attempted, cause: e.to_string(), source: Some(e) }
    }

    /// Return true if no server was asked, because it is too early for another connection.
    fn is_about_a_pause(&self) -> bool {
        matches!(self, Self::Unavailable { source: None, .. })
    }

    /// Return true if Redis refused because its user may not send a command.
    fn is_about_rights(&self) -> bool {
        matches!(self, Self::Unavailable { source: Some(error), .. } if rights::is_about_rights(error))
    }

    /// Return true if Redis refused because a key holds a value of another type than tickr writes. It refuses for as
    /// long as the key is there, so waiting and connecting again do not help. The code stands in the middle of the text
    /// when a script of an older Redis meets it.
    fn is_about_a_value(&self) -> bool {
        let marks = ["WRONGTYPE", "not an integer"];
        matches!(self, Self::Unavailable { cause, .. } if marks.iter().any(|mark| cause.contains(mark)))
    }
}

/// One job, as the index knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Id of the job.
    pub id: JobId,
    /// Its queue and priority.
    pub line: Lane,
    /// Due time.
    pub execute_at: Timestamp,
}

impl Entry {
    /// Return the member of the sorted set: the lane, a colon and the 36 characters of the id.
    fn member(&self) -> String {
        format!("{}:{}", self.line.as_str(), self.id)
    }

    fn from_member(member: &str, due_ms: i64) -> Option<Self> {
        let (line, id) = member.split_at_checked(member.len().checked_sub(37)?)?;
        let (id, execute_at) = (id.strip_prefix(':')?.parse().ok()?, DateTime::from_timestamp_millis(due_ms)?);
        Some(Self { id, line: Lane::from_stored(line.to_owned()), execute_at })
    }
}

/// Result of a hint: numbers of jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HintResult {
    /// Jobs put into a ready list.
    pub ready: usize,
    /// Jobs put into the sorted set.
    pub waiting: usize,
    /// Jobs beyond the horizon, which were not stored. The reconciler adds them in time.
    pub beyond: usize,
    /// Jobs left out of a full ready list. The refill adds them.
    pub left_out: usize,
    /// Jobs put into the sorted set that it did not have, or had with another time.
    pub changed: usize,
}

/// Result of one move.
#[derive(Clone, Debug, Default)]
pub struct MoveReport {
    /// Number of entries moved.
    pub moved: usize,
    /// Due time of the next entry.
    pub next: Option<Timestamp>,
    /// Lanes that left jobs out and whose ready lists have run low.
    pub refill: Vec<Lane>,
}

/// The index. Cheap to clone.
#[derive(Clone)]
pub struct Index {
    shared: Arc<IndexInner>,
}

struct IndexInner {
    settings: IndexSettings,
    health: Arc<IndexHealth>,
    /// At least one. Each has the lanes of some queues.
    partitions: Vec<Partition>,
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Index")
    }
}

impl Index {
    /// Create an index that connects at its first use, so that a start never waits for Redis.
    ///
    /// # Errors
    /// [`IndexError::Url`] when the URL cannot be used, [`IndexError::Certificates`] when a file for TLS cannot.
    pub fn new(mut settings: IndexSettings) -> Result<Self, IndexError> {
        // With a low water of zero no list would ever count as low, and jobs that were left out would never be added.
        settings.low_water = settings.low_water.max(1);
        let health = Arc::new(IndexHealth::new());
        let partitions: Result<_, _> = Keys::of_partitions(&settings.prefix, settings.partitions)
            .into_iter()
            .map(|keys| Partition::new(&settings, keys, &health))
            .collect();
        Ok(Self { shared: Arc::new(IndexInner { settings, health, partitions: partitions? }) })
    }

    /// Return the condition of the index, as this runner sees it.
    #[must_use]
    pub fn health(&self) -> &IndexHealth {
        &self.shared.health
    }

    /// Return the way in which the server of the index is found.
    #[must_use]
    pub fn mode(&self) -> IndexMode {
        self.first().shared.servers.mode()
    }

    /// Return host and port of each server that holds a part of the index, or the path of its socket, as the last
    /// connections found them. Empty before the first one.
    #[must_use]
    pub fn servers(&self) -> Vec<String> {
        let found: BTreeSet<String> =
            self.shared.partitions.iter().filter_map(|partition| partition.shared.servers.found()).collect();
        found.into_iter().collect()
    }

    /// Look whether another server holds the index by now, and leave the present one then. It does nothing for a URL of
    /// one server. A master that was replaced, and that was cut off before it learned that, ends no connection.
    #[boxed]
    pub async fn follow_master(&self) {
        // A server that hangs costs a second, and the partitions may all have the same servers.
        futures_util::future::join_all(self.shared.partitions.iter().map(Partition::follow_master)).await;
    }

    /// Return how far ahead of their due times jobs are kept in Redis.
    #[must_use]
    pub fn horizon(&self) -> Duration {
        self.shared.settings.horizon
    }

    /// Return the highest number of ids in one ready list.
    #[must_use]
    pub fn high_water(&self) -> usize {
        self.shared.settings.high_water
    }

    /// Return the number of ids below which a ready list is refilled.
    #[must_use]
    pub fn low_water(&self) -> usize {
        self.shared.settings.low_water
    }

    /// Create the fetcher's own connections to Redis.
    #[must_use]
    pub fn fetch(&self, lines: Vec<Lane>, runner: &RunnerId) -> Fetch {
        Fetch::new(&self.shared.partitions, &self.shared.health, lines, runner, self.shared.settings.low_water)
    }

    /// Wake the fetcher of this runner if it waits in a blocking pop: what it may take has changed.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis fails. The pop then ends by itself within a second.
    #[boxed]
    pub async fn nudge(&self, runner: &RunnerId) -> Result<(), IndexError> {
        self.first().nudge(runner).await
    }

    /// Create a connection to the stream of cluster events.
    #[must_use]
    pub fn event_stream(&self) -> EventStream {
        let shared = &self.first().shared;
        EventStream::new(shared.servers.clone(), &shared.keys, shared.listened.subscribe())
    }

    /// Return the partition with the nudges of fetchers and the stream of events.
    fn first(&self) -> &Partition {
        &self.shared.partitions[0]
    }

    /// Return the number of the partition that has this lane.
    fn number_of(&self, line: &Lane) -> usize {
        line.partition(self.shared.partitions.len())
    }

    fn of(&self, line: &Lane) -> &Partition {
        &self.shared.partitions[self.number_of(line)]
    }

    /// Return the places of these items in each partition, for the lanes that `line_of` returns.
    fn split<T>(&self, items: &[T], line_of: impl Fn(&T) -> &Lane) -> Vec<Vec<usize>> {
        let mut places = vec![Vec::new(); self.shared.partitions.len()];
        for (place, item) in items.iter().enumerate() {
            places[self.number_of(line_of(item))].push(place);
        }
        places
    }

    /// Call `run` with each partition and those of the entries that belong to it.
    async fn each_with<T, F>(
        &self,
        entries: &[Entry],
        mut run: impl FnMut(Partition, Vec<Entry>) -> F,
    ) -> Result<Vec<(Vec<usize>, T)>, IndexError>
    where
        F: Future<Output = Result<T, IndexError>>,
    {
        let mut answers = Vec::new();
        for (partition, places) in self.shared.partitions.iter().zip(self.split(entries, |entry| &entry.line)) {
            if !places.is_empty() {
                let own = places.iter().map(|place| entries[*place].clone()).collect();
                answers.push((places, run(partition.clone(), own).await?));
            }
        }
        Ok(answers)
    }

    /// Add committed jobs to the index.
    ///
    /// # Errors
    /// [`IndexError::Lost`] when the index must be rebuilt, [`IndexError::Unavailable`] when Redis fails.
    #[boxed]
    pub async fn hint(&self, entries: &[Entry]) -> Result<HintResult, IndexError> {
        if let [only] = &self.shared.partitions[..] {
            return only.hint(entries).await;
        }
        let run = |partition: Partition, own: Vec<Entry>| async move { partition.hint(&own).await };
        let mut total = HintResult::default();
        for (_, result) in self.each_with(entries, run).await? {
            total.ready += result.ready;
            total.waiting += result.waiting;
            total.beyond += result.beyond;
            total.left_out += result.left_out;
            total.changed += result.changed;
        }
        Ok(total)
    }

    /// Put due jobs at the front of their ready lists, in this order, however long the lists are. They are jobs that a
    /// dead runner had claimed, that a runner has claimed or taken and not started, or that Redis lost. There are never
    /// more of them than runners claim at a time, or than the lists have room for.
    ///
    /// # Errors
    /// The errors of [`hint`](Self::hint).
    #[boxed]
    pub async fn put_first(&self, entries: &[Entry]) -> Result<(), IndexError> {
        if let [only] = &self.shared.partitions[..] {
            return only.put_first(entries).await;
        }
        let run = |partition: Partition, own: Vec<Entry>| async move { partition.put_first(&own).await };
        self.each_with(entries, run).await.map(drop)
    }

    /// Move at most `most` due entries to their ready lists. The script always writes, so a success ends an outage.
    /// `store_now` returns MySQL's time for a moment of this process; the offset between the clocks of the two servers
    /// is measured with it.
    ///
    /// # Errors
    /// The errors of [`hint`](Self::hint).
    pub async fn move_due(
        &self,
        most: usize,
        store_now: impl Fn(Instant) -> Timestamp,
    ) -> Result<MoveReport, IndexError> {
        let health = &self.shared.health;
        let misshapen = health.take_misshapen_report();
        let (mut total, mut out, mut lost) = (MoveReport::default(), None, None);
        for partition in &self.shared.partitions {
            if misshapen {
                partition.delete_misshapen().await?;
            }
            match partition.move_due(most, &store_now).await {
                Ok(report) => {
                    total.moved += report.moved;
                    total.next = total.next.into_iter().chain(report.next).min();
                    total.refill.extend(report.refill);
                }
                // The others go on.
                Err(error @ IndexError::Lost { .. }) => lost = lost.or(Some(error)),
                Err(error) => out = out.or(Some(error)),
            }
        }
        // Only when all of them answer is the outage of any of them over.
        if let Some(error) = out {
            return Err(error);
        }
        if let Some(error) = lost {
            health.answered_empty();
            return Err(error);
        }
        health.wrote();
        Ok(total)
    }

    /// Return whether the first entry of the sorted set is still the one that the last move found, and nothing points to
    /// lost data. This costs Redis a quarter of what [`move_due`](Self::move_due) costs, and moves nothing. When the
    /// answer is no, a move shows the reason. It also shows whether a client listens to the events.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis fails.
    #[boxed]
    pub async fn is_quiet(&self) -> Result<bool, IndexError> {
        for partition in &self.shared.partitions {
            if !partition.is_quiet().await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Mark the index as complete from now on. The caller must hint what was committed before this call; what is
    /// committed after it is hinted by its own writer. Return true when the mark was missing.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis fails.
    #[boxed]
    pub async fn begin_epoch(&self) -> Result<bool, IndexError> {
        let mut was_missing = false;
        for partition in &self.shared.partitions {
            was_missing |= partition.begin_epoch().await?;
        }
        Ok(was_missing)
    }

    /// Delete everything, the epoch first, so that runners rebuild the index. Return how many keys there were.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis fails.
    #[boxed]
    pub async fn forget(&self) -> Result<usize, IndexError> {
        let mut gone = 0;
        for partition in &self.shared.partitions {
            gone += partition.forget().await?;
        }
        Ok(gone)
    }

    /// Return the ids in the ready list of a lane.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis fails.
    #[boxed]
    pub async fn ready_ids(&self, line: &Lane) -> Result<HashSet<JobId>, IndexError> {
        self.of(line).ready_ids(line).await
    }

    /// Return the ids in the ready lists of these lanes, in this order. It uses few round trips; each returns a bounded
    /// number of ids, or one list.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis fails.
    #[boxed]
    pub async fn ready_lists(&self, lines: &[Lane]) -> Result<Vec<HashSet<JobId>>, IndexError> {
        if let [only] = &self.shared.partitions[..] {
            return only.ready_lists(lines).await;
        }
        let mut lists = vec![HashSet::new(); lines.len()];
        for (partition, places) in self.shared.partitions.iter().zip(self.split(lines, |line| line)) {
            let own: Vec<Lane> = places.iter().map(|place| lines[*place].clone()).collect();
            for (place, list) in places.into_iter().zip(partition.ready_lists(&own).await?) {
                lists[place] = list;
            }
        }
        Ok(lists)
    }

    /// Return at most `most` ids of the ready list of each of these lanes, in this order: those that are taken next. It
    /// uses a round trip for each partition, so the caller asks for few lanes at a time.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis fails.
    #[boxed]
    pub async fn ready_fronts(&self, lines: &[Lane], most: usize) -> Result<Vec<HashSet<JobId>>, IndexError> {
        if let [only] = &self.shared.partitions[..] {
            return only.ready_fronts(lines, most).await;
        }
        let mut fronts = vec![HashSet::new(); lines.len()];
        for (partition, places) in self.shared.partitions.iter().zip(self.split(lines, |line| line)) {
            let own: Vec<Lane> = places.iter().map(|place| lines[*place].clone()).collect();
            for (place, front) in places.into_iter().zip(partition.ready_fronts(&own, most).await?) {
                fronts[place] = front;
            }
        }
        Ok(fronts)
    }

    /// Return the score of each of these entries in the sorted set, in unix milliseconds; None for an entry that is not
    /// there.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis fails.
    #[boxed]
    pub async fn scores(&self, entries: &[Entry]) -> Result<Vec<Option<i64>>, IndexError> {
        if let [only] = &self.shared.partitions[..] {
            return only.scores(entries).await;
        }
        let mut scores = vec![None; entries.len()];
        let run = |partition: Partition, own: Vec<Entry>| async move { partition.scores(&own).await };
        for (places, found) in self.each_with(entries, run).await? {
            for (place, score) in places.into_iter().zip(found) {
                scores[place] = score;
            }
        }
        Ok(scores)
    }

    /// Return entries of the sorted set, the latest due first, from position `from` on. Positions count from this end,
    /// because moves remove entries at the other end while the caller reads. Partitions follow one another.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis fails.
    #[boxed]
    pub async fn scheduled_page(&self, from: usize, most: usize) -> Result<Vec<Entry>, IndexError> {
        let mut from = from;
        for partition in &self.shared.partitions {
            let page = partition.scheduled_page(from, most).await?;
            if !page.is_empty() {
                return Ok(page);
            }
            let (waiting, _) = partition.depth(&[]).await?;
            from = from.saturating_sub(waiting);
        }
        Ok(Vec::new())
    }

    /// Remove entries from the sorted set. Return how many there were. Ready lists are not changed: the claims drop
    /// their surplus ids.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis fails.
    #[boxed]
    pub async fn unschedule(&self, entries: &[Entry]) -> Result<usize, IndexError> {
        let run = |partition: Partition, own: Vec<Entry>| async move { partition.unschedule(&own).await };
        let gone = self.each_with(entries, run).await?;
        Ok(gone.into_iter().map(|(_, gone)| gone).sum())
    }

    /// Return whether the index is marked as complete.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis fails.
    #[boxed]
    pub async fn is_whole(&self) -> Result<bool, IndexError> {
        for partition in &self.shared.partitions {
            if !partition.is_whole().await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Return the epoch: the mark that the index is complete, with a new value for each rebuild from nothing. None when
    /// the data is lost. Several partitions have one each, with spaces between.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis fails.
    #[boxed]
    pub async fn epoch(&self) -> Result<Option<String>, IndexError> {
        let mut epochs = Vec::new();
        for partition in &self.shared.partitions {
            let Some(epoch) = partition.epoch().await? else { return Ok(None) };
            epochs.push(epoch);
        }
        Ok(Some(epochs.join(" ")))
    }

    /// Return whether this lane left jobs out and its list is now below the low water.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis fails.
    #[boxed]
    pub async fn has_run_low(&self, line: &Lane) -> Result<bool, IndexError> {
        self.of(line).has_run_low(line).await
    }

    /// Return the lanes that left jobs out of a full list, each with the position in the due order from which it did.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis fails.
    #[boxed]
    pub async fn left_out(&self) -> Result<HashMap<Lane, RefillPosition>, IndexError> {
        let mut noted = HashMap::new();
        for partition in &self.shared.partitions {
            noted.extend(partition.left_out().await?);
        }
        Ok(noted)
    }

    /// Start to refill a lane that left jobs out. From here on its list takes new jobs again. None when the lane left
    /// no jobs out or another runner is refilling it.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis fails.
    #[boxed]
    pub async fn begin_refill(&self, line: &Lane) -> Result<Option<Refill>, IndexError> {
        self.of(line).begin_refill(line).await
    }

    /// End a refill. With `rest`, jobs from that position on were left out again.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis fails. The lock then expires by itself.
    #[boxed]
    pub async fn end_refill(
        &self,
        line: &Lane,
        refill: Refill,
        rest: Option<RefillPosition>,
    ) -> Result<(), IndexError> {
        self.of(line).end_refill(line, refill, rest).await
    }

    /// Read whether the server may evict keys, and log a change of that. Best effort: many servers do not tell.
    #[boxed]
    pub async fn look_for_weakness(&self) {
        for partition in &self.shared.partitions {
            partition.look_for_weakness().await;
        }
    }

    /// Return the problem of the server's settings, as last read.
    #[must_use]
    pub fn weakness(&self) -> Option<String> {
        self.shared.partitions.iter().find_map(Partition::weakness)
    }

    /// Return the number of entries in the sorted set, and the length of each of these ready lists.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`] when Redis fails.
    #[boxed]
    pub async fn depth(&self, lines: &[Lane]) -> Result<(usize, Vec<usize>), IndexError> {
        if let [only] = &self.shared.partitions[..] {
            return only.depth(lines).await;
        }
        let (mut waiting, mut lengths) = (0, vec![0; lines.len()]);
        for (partition, places) in self.shared.partitions.iter().zip(self.split(lines, |line| line)) {
            let own: Vec<Lane> = places.iter().map(|place| lines[*place].clone()).collect();
            let (of_partition, own) = partition.depth(&own).await?;
            waiting += of_partition;
            for (place, length) in places.into_iter().zip(own) {
                lengths[place] = length;
            }
        }
        Ok((waiting, lengths))
    }
}

/// A refill that is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refill {
    /// Position from which to start.
    pub place: RefillPosition,
    /// Owner of its lock.
    owner: String,
}

/// Position from which a refill starts: a due time, and an id within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefillPosition {
    /// Due time.
    pub execute_at: Timestamp,
    /// Last id listed at that time, if there is one.
    pub after: Option<JobId>,
}

impl RefillPosition {
    /// Return whether a refill that starts here lists this job.
    #[must_use]
    pub fn leads_to(&self, entry: &Entry) -> bool {
        match self.after {
            Some(id) => (entry.execute_at, entry.id) > (self.execute_at, id),
            None => entry.execute_at >= self.execute_at,
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let (ms, id) = text.split_once(':').map_or((text, None), |(ms, id)| (ms, Some(id)));
        let execute_at = DateTime::from_timestamp_millis(ms.parse().ok()?)?;
        Some(Self { execute_at, after: id.and_then(|id| id.parse().ok()) })
    }
}

impl std::fmt::Display for RefillPosition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.execute_at.timestamp_millis())?;
        self.after.map_or(Ok(()), |id| write!(f, ":{id}"))
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn an_error_of_the_driver_is_the_source_of_the_indexs_error() {
        let refused = redis::RedisError::from(std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
        let error = IndexError::driver("ask")(refused);
        assert!(error.source().is_some_and(<dyn std::error::Error>::is::<redis::RedisError>), "{error:?}");
    }
}
