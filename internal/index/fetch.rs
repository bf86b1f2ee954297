//! The fetcher's own connections, one to each partition of the index. No others block.
//!
//! The driver gives every command a response time-out, also a blocking one. A BRPOP that the client no longer waits for
//! still takes an id when one comes; that job would be late until the reconciler finds it. So such a connection is used
//! by one task only, its time-out is longer than the block time, no call is cancelled while the connection lives, and
//! after any error the connection is dropped before the next try. A new connection also finds the new master after a
//! failover.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_recursion::async_recursion as boxed;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, AsyncTypedCommands, Script};

use super::keys::{Keys, Lane};
use super::partition::Partition;
use super::servers::Servers;
use super::{IndexError, IndexHealth};
use tickr_job::{JobId, RunnerId};

/// Time that one BRPOP blocks, in seconds. A stopping fetcher may have to wait for that long.
const BLOCK_SECONDS: f64 = 1.0;
/// Longest time for a connection, and for a response beyond the block time.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time after which an unused connection is replaced before its next use. Redis (`timeout`) or a device on the way may
/// have ended it, and the error would look like an outage. It is unused while no worker is free.
const IDLE: Duration = Duration::from_secs(5);

/// Ids taken from the ready lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TakenIds {
    /// Due jobs, the most urgent first, each with the position of its lane.
    pub ids: Vec<(usize, JobId)>,
    /// A lane that left jobs out has run low.
    pub refill: bool,
}

/// Result of a blocking pop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Popped {
    /// A due job, and the position of its lane.
    Job(usize, JobId),
    /// The fetcher was woken.
    Nudge,
    /// No id came.
    Nothing,
}

/// The lanes to take from, in order, and the limits of how many ids to take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FetchOrder {
    /// Positions of lanes, the first to be served first. Other lanes are not served.
    pub lines: Vec<usize>,
    /// For each of them the position of its group in `room`, if it belongs to one.
    pub groups: Vec<Option<usize>>,
    /// For each group, the number of ids that may be taken from all its lanes together.
    pub room: Vec<usize>,
}

/// Connections of one fetcher to Redis: one to each partition.
pub struct Fetch {
    partitions: Vec<Partition>,
    connections: Vec<FetchConnection>,
    runner: RunnerId,
    /// For each lane its partition, and its position there.
    places: Vec<(usize, usize)>,
    /// For each partition its lanes.
    lines: Vec<Vec<usize>>,
}

impl std::fmt::Debug for Fetch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fetch").field("lines", &self.lines).finish_non_exhaustive()
    }
}

impl Fetch {
    pub(super) fn new(
        partitions: &[Partition],
        health: &Arc<IndexHealth>,
        lines: Vec<Lane>,
        runner: &RunnerId,
        low_water: usize,
    ) -> Self {
        let mut own: Vec<(Vec<Lane>, Vec<usize>)> = partitions.iter().map(|_| Default::default()).collect();
        let mut places = Vec::with_capacity(lines.len());
        for (place, line) in lines.into_iter().enumerate() {
            let number = line.partition(partitions.len());
            places.push((number, own[number].0.len()));
            own[number].0.push(line);
            own[number].1.push(place);
        }
        let (of_partitions, lines): (Vec<_>, Vec<_>) = own.into_iter().unzip();
        let connection = |(partition, lines): (&Partition, Vec<Lane>)| {
            let servers = partition.shared.servers.clone();
            FetchConnection::new(servers, Arc::clone(health), &partition.shared.keys, lines, runner, low_water)
        };
        let connections = partitions.iter().zip(of_partitions).map(connection).collect();
        Self { partitions: partitions.to_vec(), connections, runner: runner.clone(), places, lines }
    }

    /// Take up to `most` ids without waiting.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`]. The connection is dropped.
    #[boxed]
    pub async fn take(&mut self, most: usize, order: &FetchOrder) -> Result<TakenIds, IndexError> {
        match &mut self.connections[..] {
            [only] => only.take(most, order).await,
            _ => self.take_of_each(most, order).await,
        }
    }

    /// Wait up to a second for one id. A caller that cancels this call must [`abandon`](Self::abandon) the connection.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`]. The connection is dropped.
    #[boxed]
    pub async fn wait(&mut self, order: &FetchOrder) -> Result<Popped, IndexError> {
        match &mut self.connections[..] {
            [only] => only.wait(order).await,
            _ => self.wait_for_each(order).await,
        }
    }

    /// Put back an id that this runner will not run, as the next one to be taken.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`]. The connection is dropped, and the reconciler puts the id back.
    #[boxed]
    pub async fn put_back(&mut self, place: usize, id: JobId) -> Result<(), IndexError> {
        let (number, place) = self.places[place];
        self.connections[number].put_back(place, id).await
    }

    /// Put back ids of one lane, the first of them as the next one to be taken.
    ///
    /// # Errors
    /// [`IndexError::Unavailable`]. The connection is dropped, and the reconciler puts the ids back.
    #[boxed]
    pub async fn put_all_back(&mut self, place: usize, ids: &[JobId]) -> Result<(), IndexError> {
        let (number, place) = self.places[place];
        self.connections[number].put_all_back(place, ids).await
    }

    /// Drop the connections together with the calls on them: their responses would not be read.
    pub fn abandon(&mut self) {
        for connection in &mut self.connections {
            connection.abandon();
        }
    }

    /// Look how long the lists of all partitions are, decide how many ids to take from each, and take them. So lanes are
    /// served in their order, whatever partitions they are in.
    async fn take_of_each(&mut self, most: usize, order: &FetchOrder) -> Result<TakenIds, IndexError> {
        let lengths = self.lengths(order).await?;
        let mut takes = vec![FetchOrder::default(); self.connections.len()];
        for (place, count) in shares(most, order, &lengths) {
            let (number, own) = self.places[place];
            let take = &mut takes[number];
            take.lines.push(own);
            take.groups.push(Some(take.room.len()));
            take.room.push(count);
        }
        let mut calls = FuturesUnordered::new();
        for (number, (connection, take)) in self.connections.iter_mut().zip(takes).enumerate() {
            if !take.lines.is_empty() {
                let most = take.room.iter().sum();
                calls.push(async move { (number, connection.take(most, &take).await) });
            }
        }
        let (mut taken, mut failed) = (TakenIds::default(), None);
        while let Some((number, answer)) = calls.next().await {
            match answer {
                Ok(part) => {
                    taken.refill |= part.refill;
                    taken.ids.extend(part.ids.into_iter().map(|(own, id)| (self.lines[number][own], id)));
                }
                Err(error) => failed = Some(error),
            }
        }
        // Ids that were taken from the other partitions must not be lost with an error.
        if let Some(error) = failed.filter(|_| taken.ids.is_empty()) {
            return Err(error);
        }
        let turn: HashMap<usize, usize> = order.lines.iter().enumerate().map(|(turn, place)| (*place, turn)).collect();
        taken.ids.sort_by_key(|(place, _)| turn.get(place).copied());
        Ok(taken)
    }

    /// Return the lengths of the lists of this order, by the positions of their lanes.
    async fn lengths(&mut self, order: &FetchOrder) -> Result<HashMap<usize, usize>, IndexError> {
        let mut own = vec![Vec::new(); self.connections.len()];
        for place in &order.lines {
            let (number, place) = self.places[*place];
            own[number].push(place);
        }
        let mut calls = FuturesUnordered::new();
        for (number, (connection, own)) in self.connections.iter_mut().zip(own).enumerate() {
            if !own.is_empty() {
                calls.push(async move {
                    let lengths = connection.lengths(&own).await;
                    lengths.map(|lengths| (number, own.into_iter().zip(lengths).collect::<Vec<_>>()))
                });
            }
        }
        let mut lengths = HashMap::with_capacity(order.lines.len());
        while let Some(answer) = calls.next().await {
            let (number, found) = answer?;
            lengths.extend(found.into_iter().map(|(own, length)| (self.lines[number][own], length)));
        }
        Ok(lengths)
    }

    /// Wait in all partitions at the same time. A pop must not be cancelled, so when one ends with an id, nudges end the
    /// others. Ids that these have popped by then go back to the front of their lists.
    async fn wait_for_each(&mut self, order: &FetchOrder) -> Result<Popped, IndexError> {
        let mut own = vec![FetchOrder::default(); self.connections.len()];
        for place in &order.lines {
            let (number, place) = self.places[*place];
            own[number].lines.push(place);
        }
        let mut waits = FuturesUnordered::new();
        let mut waiting = BTreeSet::new();
        for (number, (connection, own)) in self.connections.iter_mut().zip(own).enumerate() {
            // Nudges from outside arrive in the first partition.
            if number == 0 || !own.lines.is_empty() {
                waiting.insert(number);
                waits.push(async move { (number, connection.wait(&own).await) });
            }
        }
        let (mut popped, mut nudged, mut failed, mut ending) = (Vec::new(), false, None, false);
        while let Some((number, answer)) = waits.next().await {
            waiting.remove(&number);
            match answer {
                Ok(Popped::Job(own, id)) => popped.push((self.lines[number][own], id)),
                Ok(Popped::Nudge) => nudged = true,
                Ok(Popped::Nothing) => {}
                Err(error) => failed = Some(error),
            }
            if !ending && (nudged || !popped.is_empty()) {
                ending = true;
                for number in &waiting {
                    // Without the nudge the pop ends within a second.
                    let _ = self.partitions[*number].nudge(&self.runner).await;
                }
            }
        }
        drop(waits);
        let mut popped = popped.into_iter();
        let first = popped.next();
        for (place, id) in popped {
            // The reconciler finds the id if this fails.
            let _ = self.put_back(place, id).await;
        }
        match (first, failed) {
            (Some((place, id)), _) => Ok(Popped::Job(place, id)),
            (None, Some(error)) => Err(error),
            (None, None) => Ok(if nudged { Popped::Nudge } else { Popped::Nothing }),
        }
    }
}

/// Decide how many ids to take from each lane, in the order of service, with these lengths of their lists.
fn shares(most: usize, order: &FetchOrder, lengths: &HashMap<usize, usize>) -> Vec<(usize, usize)> {
    let (mut left, mut room) = (most, order.room.clone());
    let mut shares = Vec::new();
    for (place, group) in order.lines.iter().zip(&order.groups) {
        let length = lengths.get(place).copied().unwrap_or(0);
        let count = group.map_or(left, |group| left.min(room[group])).min(length);
        if count > 0 {
            left -= count;
            if let Some(group) = group {
                room[*group] -= count;
            }
            shares.push((*place, count));
        }
    }
    shares
}

/// Connection of one fetcher to one partition.
struct FetchConnection {
    servers: Servers,
    health: Arc<IndexHealth>,
    /// The connection, and the name of the server to which it leads.
    conn: Option<(MultiplexedConnection, String)>,
    /// Time of the last use.
    used: Instant,
    take: Script,
    overflow: String,
    lines: Vec<Lane>,
    lists: Vec<String>,
    nudge: String,
    low_water: usize,
}

impl FetchConnection {
    fn new(
        servers: Servers,
        health: Arc<IndexHealth>,
        keys: &Keys,
        lines: Vec<Lane>,
        runner: &RunnerId,
        low_water: usize,
    ) -> Self {
        let lists = lines.iter().map(|line| keys.ready(line)).collect();
        let take = Script::new(include_str!("take.lua"));
        let nudge = keys.nudge(runner);
        let (overflow, used) = (keys.overflow.clone(), Instant::now());
        Self { servers, health, conn: None, used, take, overflow, lines, lists, nudge, low_water }
    }

    /// Return the lengths of these ready lists.
    async fn lengths(&mut self, places: &[usize]) -> Result<Vec<usize>, IndexError> {
        let mut conn = self.connection().await?;
        let mut pipe = redis::pipe();
        for place in places {
            pipe.llen(&self.lists[*place]);
        }
        let lengths: Result<Vec<usize>, _> = pipe.query_async(&mut conn).await;
        lengths.map_err(|e| self.broken("look at the ready lists", &e))
    }

    /// Take up to `most` ids without waiting.
    async fn take(&mut self, most: usize, order: &FetchOrder) -> Result<TakenIds, IndexError> {
        let attempted = "take ready jobs";
        let mut conn = self.connection().await?;
        let mut call = self.take.prepare_invoke();
        call.key(&self.overflow);
        for place in &order.lines {
            call.key(&self.lists[*place]);
        }
        call.arg(most).arg(self.low_water);
        for (place, group) in order.lines.iter().zip(&order.groups) {
            call.arg(self.lines[*place].as_str()).arg(group.map_or(0, |group| group + 1));
        }
        for room in &order.room {
            call.arg(*room);
        }
        let words: Result<Vec<String>, _> = call.invoke_async(&mut conn).await;
        let words = words.map_err(|e| self.broken(attempted, &e))?;
        Ok(parse_taken(&words, &order.lines))
    }

    /// Wait up to a second for one id.
    async fn wait(&mut self, order: &FetchOrder) -> Result<Popped, IndexError> {
        let mut conn = self.connection().await?;
        // The wake-up list comes first: the reason of the wake-up may forbid taking from the others.
        let lists = std::iter::once(&self.nudge).chain(order.lines.iter().map(|place| &self.lists[*place]));
        let lists: Vec<&String> = lists.collect();
        match conn.brpop(lists, BLOCK_SECONDS).await {
            Ok(None) => Ok(Popped::Nothing),
            Ok(Some([list, _])) if list == self.nudge => Ok(Popped::Nudge),
            Ok(Some([list, id])) => {
                let place = self.lists.iter().position(|known| *known == list);
                let popped = place.and_then(|place| Some(Popped::Job(place, id.parse().ok()?)));
                Ok(popped.unwrap_or(Popped::Nothing))
            }
            Err(e) => Err(self.broken("wait for ready jobs", &e)),
        }
    }

    /// Put back an id that this runner will not run, as the next one to be taken.
    async fn put_back(&mut self, place: usize, id: JobId) -> Result<(), IndexError> {
        let mut conn = self.connection().await?;
        conn.rpush(&self.lists[place], id.to_string()).await.map(drop).map_err(|e| self.broken("put a job back", &e))
    }

    /// Put back ids of one lane, the first of them as the next one to be taken.
    async fn put_all_back(&mut self, place: usize, ids: &[JobId]) -> Result<(), IndexError> {
        if ids.is_empty() {
            return Ok(());
        }
        let mut conn = self.connection().await?;
        let last_first: Vec<String> = ids.iter().rev().map(JobId::to_string).collect();
        conn.rpush(&self.lists[place], last_first).await.map(drop).map_err(|e| self.broken("put jobs back", &e))
    }

    /// Drop the connection together with the call on it: its response would not be read.
    fn abandon(&mut self) {
        self.conn = None;
    }

    async fn connection(&mut self) -> Result<MultiplexedConnection, IndexError> {
        let idle = std::mem::replace(&mut self.used, Instant::now()).elapsed();
        if let Some((conn, server)) = &self.conn
            && idle < IDLE
            && !self.servers.has_left(server)
        {
            return Ok(conn.clone());
        }
        self.conn = None;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(Duration::from_secs_f64(BLOCK_SECONDS) + PATIENCE));
        let opened = self.servers.connect(&config).await;
        let (conn, server) = opened.map_err(|e| self.broken("connect the fetcher", &e))?;
        self.conn = Some((conn.clone(), server));
        Ok(conn)
    }

    fn broken(&mut self, attempted: &'static str, error: &redis::RedisError) -> IndexError {
        self.conn = None;
        let error = IndexError::Unavailable { attempted, cause: error.to_string(), source: Some(error.clone()) };
        self.health.record_failure(&error);
        error
    }
}

/// Parse the result of take.lua, for lists in this order.
fn parse_taken(words: &[String], order: &[usize]) -> TakenIds {
    let mut words = words.iter();
    let refill = words.next().is_some_and(|word| word == "1");
    let mut ids = Vec::with_capacity(words.len());
    while let (Some(place), Some(count)) = (words.next(), words.next()) {
        let place = place.parse::<usize>().ok().and_then(|place| order.get(place.checked_sub(1)?));
        let (Some(place), Ok(count)) = (place, count.parse::<usize>()) else { break };
        // An element that is no id was not put there by tickr. Skip it.
        ids.extend(words.by_ref().take(count).filter_map(|id| Some((*place, id.parse().ok()?))));
    }
    TakenIds { ids, refill }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_of_all_partitions_are_served_in_their_order_and_within_the_room_of_their_groups() {
        let lengths = HashMap::from([(0, 2), (1, 9), (2, 0), (3, 5), (4, 5)]);
        let order =
            FetchOrder { lines: vec![1, 0, 2, 3, 4], groups: vec![Some(0), None, None, Some(0), None], room: vec![4] };
        assert_eq!(shares(100, &order, &lengths), [(1, 4), (0, 2), (4, 5)]);
        assert_eq!(shares(5, &order, &lengths), [(1, 4), (0, 1)]);
        assert_eq!(shares(0, &order, &lengths), []);
    }
}
