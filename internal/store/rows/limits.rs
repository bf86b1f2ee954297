//! Rows of `limit_keys`, `limit_slots` and `limit_waits`: the jobs that count against a limit by key, and those that
//! wait for it.
//!
//! An attempt that counts against a limit of concurrency has a row in `limit_slots` from its claim until some moment
//! after its end. A job that is due and finds no room is *parked*: a row in `limit_waits` keeps its due time, and its
//! `owed` row gets the due time [`parked_until`], so that claims, the scheduler and the index do not meet it. When there
//! is room, the parked job that was due first is let go. A slot is kept for it for a few seconds, so that no other job
//! overtakes it on its way to a runner.
//!
//! The row in `limit_keys` is the lock of a key. A transaction locks these rows in key order, before it locks rows of
//! `owed`. Only the end of an attempt locks them last: it waits for none of them, and for nothing after them but its
//! tallies. The row also has the state of the rate: the generic cell rate algorithm (GCRA) of ATM networks, with one
//! time for each key and no counters that would have to be reset.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use chrono::TimeDelta;
use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::rows::breakers::{BreakerRule, OpenGate};
use crate::rows::locked_keys::LockedKeys;
use crate::rows::order::held_until;
use crate::rows::owed::{DueJob, SKIP_LOCKED, due_job};
use crate::sql::batches::{MAX_ROWS, Sql, placeholders, statement};
use crate::sql::cluster::{Locked, lock_free_in_cluster, lock_in_cluster};
use crate::sql::error::{corrupt, is_locked_elsewhere, waited_for_lock};
use crate::sql::script::{Script, Value, rows_as_text};
use crate::sql::session::Session;
use tickr_job::{Actor, Bounds, Breaker, CountedBy, Limit, Name, Rate, SharedBy, Timestamp, ceil_ms};

/// Time for which a slot is kept for a job that was let go, after its due time.
const KEPT_FOR: TimeDelta = TimeDelta::seconds(5);
/// Jobs of one key that are let go at once at most.
pub(crate) const MAX_AT_ONCE: usize = 256;
/// Parked jobs of one key that are passed over at most because other sessions lock them. A batch cancels as many in one
/// transaction.
const MAX_PASSED_OVER: usize = 1_024;
/// Parked jobs that are locked at once behind those that other sessions lock.
const BEHIND: usize = 128;
/// A rate lets jobs go this long before their turns, so that their way to a runner does not cost starts.
const LET_GO_AHEAD: TimeDelta = TimeDelta::milliseconds(100);
/// Most jobs of one key of a rate, or of a fair limit, that are let go and have not started.
const MAX_KEPT_AHEAD: i64 = 64;
/// A job whose turn is further ahead than this stays parked. A sweep lets it go later.
const FURTHEST_TURN: TimeDelta = TimeDelta::seconds(60);
/// A slot is kept for no longer than this from now. One that is kept for longer dates from before the clock was set back.
pub(crate) const KEPT_AT_MOST_S: i64 = 70;

/// Parked jobs at the front of a line in which a sweep looks for those of paused queues.
const FRONT: usize = 1_024;
/// So many jobs of paused queues may stay at the front of a line. Each search for the next job reads them.
const MAX_PAUSED_IN_FRONT: usize = 512;
/// Time for which a transaction lets jobs of paused queues leave a line. A claim that needs the key waits for a second.
const LEAVING: Duration = Duration::from_millis(250);

/// Age from which the limits of a process are read again before a claim. They are read about once a second. Less than the
/// time after which the attempts of a new limit are counted, by more than a claim takes.
const OLD: Duration = Duration::from_millis(1_500);

/// Lets a statement fail at once at a row that another session locks.
const NOWAIT: &str = " NOWAIT";

/// The due time in `owed` of a parked job: 9999-12-30, a day before that of a job that is held for its order.
pub(crate) fn parked_until() -> Timestamp {
    held_until() - TimeDelta::days(1)
}

/// Return whether a due time in `owed` says that the job waits for a limit.
pub(crate) fn is_parked(execute_at: Timestamp) -> bool {
    execute_at == parked_until()
}

/// Return whether a due time in `owed` says that the job waits for its turn: for its order or for a limit.
pub(crate) fn waits_for_turn(execute_at: Timestamp) -> bool {
    execute_at >= parked_until()
}

/// A limit as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitSetting {
    /// The limit.
    pub limit: Limit,
    /// False until the attempts that ran when the limit was set are counted. No job of a key with a concurrency starts
    /// before that.
    pub counted: bool,
    /// Time and actor of the last change.
    pub changed: (Timestamp, Actor),
    /// The version. Every change increments it.
    pub version: u32,
    /// When the limit got a breaker.
    pub breaker_since: Option<Timestamp>,
    /// What the keys of a fair limit share, as this process last read it. It is not stored.
    pub share: Option<FairShare>,
}

pub(crate) const COLUMNS: &str = "name, kind, queue, shared_by, concurrency, rate, period_ms, burst, fair, overrides, counted, \
                                  changed_at, changed_by, version, breaker_failures, breaker_pause_ms, breaker_max_pause_ms, \
                                  breaker_since";

impl LimitSetting {
    fn change(&self) -> Change {
        (self.limit.name.clone(), self.version, self.changed.0)
    }

    /// Return the breaker of the limit, if it has one.
    pub(crate) fn breaker_rule(&self) -> Option<BreakerRule> {
        Some(BreakerRule { breaker: self.limit.breaker?, since: self.breaker_since? })
    }
}

/// Read all limits, in the order of their names.
pub(crate) async fn read_limits(conn: &mut Session<'_>) -> Result<Vec<LimitSetting>, sqlx::Error> {
    limit_rows(conn).await?.iter().map(setting).collect()
}

/// Read the rows of all limits, for [`setting`].
pub(crate) async fn limit_rows(conn: &mut Session<'_>) -> Result<Vec<MySqlRow>, sqlx::Error> {
    let sql = format!("SELECT {COLUMNS} FROM limits ORDER BY name LIMIT 2000");
    rows_as_text(conn, sql, Vec::new()).await
}

pub(crate) fn setting(row: &MySqlRow) -> Result<LimitSetting, sqlx::Error> {
    let name = |column| -> Result<Option<Name>, sqlx::Error> {
        let text: Option<String> = row.try_get(column)?;
        text.map(|text| text.parse().map_err(|_| corrupt(column))).transpose()
    };
    let (starts, period_ms, burst): (Option<u32>, Option<u32>, Option<u32>) =
        (row.try_get("rate")?, row.try_get("period_ms")?, row.try_get("burst")?);
    let rate = match (starts, period_ms, burst) {
        (Some(starts), Some(period_ms), Some(burst)) => Some(Rate { starts, period_ms, burst }),
        _ => None,
    };
    let breaker: (Option<u32>, Option<u32>, Option<u32>) =
        (row.try_get("breaker_failures")?, row.try_get("breaker_pause_ms")?, row.try_get("breaker_max_pause_ms")?);
    let breaker = match breaker {
        (Some(failures), Some(pause_ms), Some(max_pause_ms)) => Some(Breaker { failures, pause_ms, max_pause_ms }),
        _ => None,
    };
    let overrides: Option<String> = row.try_get("overrides")?;
    Ok(LimitSetting {
        limit: Limit {
            name: name("name")?.ok_or_else(|| corrupt("name"))?,
            kind: name("kind")?,
            queue: name("queue")?,
            shared_by: SharedBy::from_word(row.try_get("shared_by")?).ok_or_else(|| corrupt("shared_by"))?,
            fair: row.try_get("fair")?,
            breaker,
            bounds: Bounds { concurrency: row.try_get("concurrency")?, rate, weight: None },
            overrides: match overrides {
                Some(text) => serde_json::from_str(&text).map_err(|e| corrupt(format!("overrides: {e}")))?,
                None => BTreeMap::new(),
            },
        },
        counted: row.try_get("counted")?,
        changed: (row.try_get("changed_at")?, Actor::from_stored(row.try_get("changed_by")?)),
        version: row.try_get("version")?,
        breaker_since: row.try_get("breaker_since")?,
        share: None,
    })
}

/// What the keys of a fair limit with waiting jobs share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FairShare {
    /// Number of workers that work for these keys, or may.
    pub workers: u64,
    /// Sum of the weights of these keys.
    pub weights: u64,
    /// The largest of these weights.
    pub heaviest: u64,
    /// Number of times its weight that each key may have at least: what it would have if no key left a part of its own
    /// to others. So a key that has such a part, and that is heavier than the others, is not held to theirs.
    pub least_times: u64,
}

impl FairShare {
    /// Divide these workers among keys with waiting jobs, of which each has a weight and perhaps a concurrency of its
    /// own. A key that may not use its part leaves the rest of it to the others.
    pub(crate) fn among(mut workers: u64, keys: &[(u32, Option<u32>)]) -> Self {
        let (mut keys, mut least_times) = (keys.to_vec(), 0);
        loop {
            let weights = keys.iter().map(|(weight, _)| u64::from(*weight));
            let heaviest = weights.clone().max().unwrap_or(0);
            let share = Self { workers, weights: weights.sum(), heaviest, least_times };
            let is_full = |(weight, most): &(u32, Option<u32>)| most.is_some_and(|most| most < share.of(*weight));
            let (full, free): (Vec<_>, Vec<_>) = keys.iter().copied().partition(is_full);
            if full.is_empty() || free.is_empty() {
                return share;
            }
            // No more than their parts: those are rounded up, and the other keys must not lose theirs.
            let used = |(weight, most): &(u32, Option<u32>)| {
                let part = workers.saturating_mul(u64::from(*weight)) / share.weights.max(1);
                most.map_or(part, |most| u64::from(most).min(part))
            };
            let used: u64 = full.iter().map(used).sum();
            workers = workers.saturating_sub(used);
            least_times = least_times.max(share.times(heaviest));
            keys = free;
        }
    }

    /// Return how many jobs of a key with this weight may run, or be on their way to a worker, at the same time: as
    /// many as its weight, or twice as many, and so on. The number is a whole multiple of the weight, because a rounded
    /// part of a few workers is far from the weights: 7 and 2 of 10 for the weights 3 and 1.
    ///
    /// All keys together have more jobs than there are workers, up to a quarter more or as many as the rounding takes.
    /// So the next jobs are on their way when a worker is free. Jobs start in the order in which they were let go, and
    /// so the workers divide by these numbers. With many keys each has as many as its weight: they take turns then,
    /// because a job that ends lets the next one of its key wait behind the other keys.
    fn of(self, weight: u32) -> u32 {
        let weight = u64::from(weight);
        let times = self.times(weight).max(self.least_times);
        u32::try_from(times.saturating_mul(weight)).unwrap_or(u32::MAX)
    }

    /// Return how many times its weight a key may have.
    fn times(self, weight: u64) -> u64 {
        let (weights, heaviest) = (self.weights.max(weight), self.heaviest.max(weight));
        // A key has no more than so many jobs on their way. If the largest one had fewer than its part, the others
        // would have too many workers.
        let kept_ahead = MAX_KEPT_AHEAD.unsigned_abs().saturating_mul(weights) / heaviest.max(1);
        let ahead = (self.workers / 4).min(kept_ahead).max(2);
        let times = (self.workers + ahead) / weights.max(1);
        let is_too_few = times * weights < self.workers + ahead / 2;
        times + u64::from(is_too_few)
    }
}

/// The limits of this process, as they were last read. Claims, inserts and settlements follow them. Beside them, the
/// keys that another session keeps locked.
#[derive(Debug, Default)]
pub(crate) struct KnownLimits {
    followed: RwLock<Followed>,
    /// True if there is a limit. Each claim asks, and most processes follow none.
    any: AtomicBool,
    locked_keys: LockedKeys<LimitKey>,
}

#[derive(Debug, Default)]
struct Followed {
    limits: Arc<Vec<LimitSetting>>,
    /// A moment before they were read. None in a process that follows no limits.
    asked: Option<Instant>,
    /// Since when this process has followed the limits whose attempts are not counted yet.
    uncounted: BTreeMap<Change, Instant>,
}

/// A change of a limit: its name, its version, and when it was changed.
type Change = (Name, u32, Timestamp);

impl KnownLimits {
    pub(crate) fn now(&self) -> Arc<Vec<LimitSetting>> {
        Arc::clone(&self.followed.read().unwrap_or_else(PoisonError::into_inner).limits)
    }

    /// Return the keys that another session keeps locked.
    pub(crate) const fn locked_keys(&self) -> &LockedKeys<LimitKey> {
        &self.locked_keys
    }

    /// Follow these limits, which were read after the moment `asked`. Fair ones keep their shares. An answer that comes
    /// after the one to a later question is not followed: a runner that was suspended while it read may hold one.
    pub(crate) fn follow(&self, limits: &Arc<Vec<LimitSetting>>, asked: Instant) {
        let mut known = self.followed.write().unwrap_or_else(PoisonError::into_inner);
        if known.asked > Some(asked) {
            return;
        }
        known.asked = Some(asked);
        self.any.store(!limits.is_empty(), Ordering::Release);
        let uncounted = limits.iter().filter(|set| !set.counted).map(LimitSetting::change);
        let since = |change: Change| {
            let since = known.uncounted.get(&change).copied().unwrap_or_else(Instant::now);
            (change, since)
        };
        known.uncounted = uncounted.map(since).collect();
        if limits.iter().all(|set| !set.limit.fair) {
            known.limits = Arc::clone(limits);
            return;
        }
        let share = |name: &Name| known.limits.iter().find(|set| set.limit.name == *name).and_then(|set| set.share);
        let limits = limits.iter().map(|set| LimitSetting { share: share(&set.limit.name), ..set.clone() });
        let limits = Arc::new(limits.collect());
        known.limits = limits;
    }

    /// Return the limits whose attempts are not counted, of those that this process has followed for this time.
    pub(crate) fn uncounted_for(&self, time: Duration) -> Vec<LimitSetting> {
        let known = self.followed.read().unwrap_or_else(PoisonError::into_inner);
        let since = |set: &&LimitSetting| known.uncounted.get(&set.change()).filter(|_| !set.counted);
        known.limits.iter().filter(|set| since(set).is_some_and(|since| since.elapsed() >= time)).cloned().collect()
    }

    /// Return the time until this process has followed the next limit whose attempts are not counted for this time.
    /// None if there is none, or if it has.
    pub(crate) fn next_uncounted(&self, time: Duration) -> Option<Duration> {
        let known = self.followed.read().unwrap_or_else(PoisonError::into_inner);
        let left = known.uncounted.values().filter_map(|since| time.checked_sub(since.elapsed()));
        left.filter(|left| !left.is_zero()).min()
    }

    /// Return whether the limits of this process are due to be read again.
    pub(crate) fn are_old(&self) -> bool {
        self.followed.read().unwrap_or_else(PoisonError::into_inner).asked.is_some_and(|asked| asked.elapsed() >= OLD)
    }

    /// Read the limits again if those of this process are old: it was suspended, or its reads fail. Otherwise it would
    /// claim without regard to a limit that was set meanwhile.
    pub(crate) async fn catch_up(&self, conn: &mut Session<'_>) -> Result<(), sqlx::Error> {
        if !self.are_old() {
            return Ok(());
        }
        self.read_again(conn).await
    }

    /// Return whether a limit has been set, changed or removed since these were read.
    async fn differ_from(&self, conn: &mut Session<'_>, earlier: &[LimitSetting]) -> Result<bool, sqlx::Error> {
        self.catch_up(conn).await?;
        Ok(!self.now().iter().map(LimitSetting::change).eq(earlier.iter().map(LimitSetting::change)))
    }

    /// Read the limits, and follow them.
    pub(crate) async fn read_again(&self, conn: &mut Session<'_>) -> Result<(), sqlx::Error> {
        let asked = Instant::now();
        self.follow(&Arc::new(read_limits(conn).await?), asked);
        Ok(())
    }

    /// Set what the keys of fair limits share.
    pub(crate) fn share(&self, shares: &BTreeMap<Name, FairShare>) {
        let mut known = self.followed.write().unwrap_or_else(PoisonError::into_inner);
        let share = |set: &LimitSetting| shares.get(&set.limit.name).copied().or(set.share);
        let limits = known.limits.iter().map(|set| LimitSetting { share: share(set), ..set.clone() });
        let limits = Arc::new(limits.collect());
        known.limits = limits;
    }

    /// Return whether a fair limit applies to jobs of this kind and queue.
    pub(crate) fn shares_fairly(&self, kind: &Name, queue: &Name) -> bool {
        let is_fair = |set: &LimitSetting| {
            set.limit.fair
                && set.limit.concerns_queue(queue)
                && set.limit.kind.as_ref().is_none_or(|of_limit| of_limit == kind)
        };
        self.any.load(Ordering::Acquire) && self.now().iter().any(is_fair)
    }

    /// Return whether a fair limit may apply to jobs of this queue.
    pub(crate) fn may_share_fairly(&self, queue: &Name) -> bool {
        let is_fair = |set: &LimitSetting| set.limit.fair && set.limit.concerns_queue(queue);
        self.any.load(Ordering::Acquire) && self.now().iter().any(is_fair)
    }

    /// Return whether a fair limit has no share yet.
    pub(crate) fn lack_shares(&self) -> bool {
        self.any.load(Ordering::Acquire) && self.now().iter().any(|set| set.limit.fair && set.share.is_none())
    }

    /// Return whether a limit may apply to jobs of this queue, or of any queue.
    pub(crate) fn concern(&self, queue: Option<&Name>) -> bool {
        self.any.load(Ordering::Acquire) && concern(&self.now(), queue)
    }
}

/// Return whether one of these limits may apply to jobs of this queue, or of any queue.
fn concern(limits: &[LimitSetting], queue: Option<&Name>) -> bool {
    limits.iter().any(|set| queue.is_none_or(|queue| set.limit.concerns_queue(queue)))
}

/// The limits that a claim follows, and when it began to follow them.
///
/// When a limit is set, the attempts that run are counted after a time in which all claims that did not know it are
/// over (`HEARD_AFTER` in `attempts/limited.rs`). What a claim knows may be a second and a half old when it begins, and
/// a limit may be set, counted, lowered or removed at any moment after that. So a claim that takes long looks twice
/// whether a limit has changed: before its COMMIT, because it may have waited for a row, and after it, because the
/// COMMIT itself may have been under way for long. A claim of the next job of an order key has both in one request, and
/// looks afterwards only.
pub(crate) struct LimitsOfClaim {
    pub(crate) followed: Arc<Vec<LimitSetting>>,
    /// The hosts by which the claim counts its jobs, as they were read before the rows in `owed` were locked. Empty
    /// unless a limit is shared by host.
    pub(crate) hosts: BTreeMap<Uuid, Option<Vec<u8>>>,
    began: Instant,
}

impl LimitsOfClaim {
    /// Time after which a claim looks again. The limits that it follows are up to a second and a half old.
    const SHORT: Duration = Duration::from_secs(1);

    pub(crate) fn now(known: &KnownLimits) -> Self {
        Self { began: Instant::now(), followed: known.now(), hosts: BTreeMap::new() }
    }

    /// Return whether a limit may apply to jobs of this queue, or of any queue.
    pub(crate) fn concern(&self, queue: Option<&Name>) -> bool {
        concern(&self.followed, queue)
    }

    /// Add the step that reads the hosts of these jobs again, whose rows in `owed` are locked by now, if a limit is
    /// shared by host. Returns whether it did: then [`moved`](Self::moved) reads its rows.
    pub(crate) fn hosts_step(&self, script: &mut Script<'_>, ids: &[Uuid]) -> bool {
        if self.hosts.is_empty() {
            return false;
        }
        let (list, values) = script.list(ids);
        script.push(format!("SELECT id, host FROM jobs FORCE INDEX (PRIMARY) WHERE id IN {list}"), values);
        true
    }

    /// Return whether a job calls another host than the one by which the claim counts it: an operator has changed its
    /// payload meanwhile.
    pub(crate) fn moved(&self, rows: &[MySqlRow]) -> Result<bool, sqlx::Error> {
        for row in rows {
            let (id, host): (Uuid, Option<Vec<u8>>) = (row.try_get("id")?, row.try_get("host")?);
            if self.hosts.get(&id).is_some_and(|counted_by| *counted_by != host) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Return whether the claim has taken so long that attempts may have been counted without it.
    pub(crate) fn took_long(&self) -> bool {
        self.began.elapsed() >= Self::SHORT
    }

    /// Return whether the claim took so long that attempts may have been counted without it, and a limit has changed.
    pub(crate) async fn have_changed(&self, conn: &mut Session<'_>, known: &KnownLimits) -> Result<bool, sqlx::Error> {
        Ok(self.took_long() && known.differ_from(conn, &self.followed).await?)
    }
}

/// A key of a limit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LimitKey {
    /// The name of the limit.
    pub limit: Name,
    /// The key. Empty for a limit that all jobs share.
    pub key: String,
}

/// Return the keys under which a job counts, with the values of their limits.
pub(crate) fn keys_of(
    limits: &[LimitSetting],
    (kind, queue): (&Name, &Name),
    by: CountedBy<'_>,
) -> Vec<(LimitKey, KeyBounds)> {
    let of = |set: &LimitSetting| {
        let key = set.limit.key_of(kind, queue, by)?;
        let bounds = KeyBounds::of(set, key);
        bounds.is_bounded().then(|| (LimitKey { limit: set.limit.name.clone(), key: key.to_owned() }, bounds))
    };
    limits.iter().filter_map(of).collect()
}

/// The values of a limit for one key.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KeyBounds {
    pub(crate) bounds: Bounds,
    /// The concurrency of the limit itself, whatever the share of the key is.
    most: Option<u32>,
    pub(crate) breaker: Option<BreakerRule>,
    /// True if the limit is fair. Then few jobs of a key may be on their way to a runner, ahead of those of other keys.
    fair: bool,
    /// The jobs that share the limit.
    pub(crate) shared_by: SharedBy,
    /// False while the attempts that ran when the limit was set are not counted yet.
    counted: bool,
    /// Version of the limit, and when it was changed last.
    version: u32,
    changed_at: Timestamp,
}

/// The part of a rate that says how the next start follows from the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    interval_us: i64,
    burst: u32,
}

impl Pace {
    fn of(rate: &Rate) -> Self {
        Self { interval_us: rate.interval_us(), burst: rate.burst }
    }

    fn tolerance(self) -> TimeDelta {
        TimeDelta::microseconds(self.interval_us.saturating_mul(i64::from(self.burst)))
    }

    fn interval(self) -> TimeDelta {
        TimeDelta::microseconds(self.interval_us)
    }

    /// Read the columns of a row of `limit_keys`.
    fn in_row(row: &MySqlRow) -> Result<Option<Self>, sqlx::Error> {
        let columns: (Option<i64>, Option<u32>) = (row.try_get("start_interval_us")?, row.try_get("start_burst")?);
        Ok(match columns {
            (Some(interval_us), Some(burst)) => Some(Self { interval_us: interval_us.max(1), burst }),
            _ => None,
        })
    }
}

impl KeyBounds {
    fn of(set: &LimitSetting, key: &str) -> Self {
        let mut bounds = set.limit.bounds_of(key);
        let most = bounds.concurrency;
        let counted = set.counted || bounds.concurrency.is_none();
        if let Some(share) = set.share.filter(|_| set.limit.fair) {
            let share = share.of(bounds.weight.unwrap_or(1));
            bounds.concurrency = Some(bounds.concurrency.map_or(share, |most| most.min(share)));
        }
        Self {
            bounds: Bounds { weight: None, ..bounds },
            most,
            breaker: set.breaker_rule(),
            fair: set.limit.fair,
            shared_by: set.limit.shared_by,
            counted,
            version: set.version,
            changed_at: set.changed.0,
        }
    }

    /// Return whether anything may keep a job of the key from its start.
    fn is_bounded(&self) -> bool {
        self.bounds != Bounds::default() || self.breaker.is_some()
    }

    /// Return whether the attempts of the key have slots: they are counted, or the end of their calls is.
    pub(crate) fn has_slots(&self) -> bool {
        self.bounds.concurrency.is_some() || self.breaker.is_some()
    }

    /// Return whether a claim has to know how many slots of the key are used. Under a breaker without a number, attempts
    /// have slots only for the ends of their calls, and there may be any number of them.
    pub(crate) fn counts_slots(&self) -> bool {
        self.bounds.concurrency.is_some() || self.breaker.is_none()
    }

    /// Return how many attempts of the key may run at the same time by the limit itself, whatever its share is.
    pub(crate) fn most(&self) -> Option<u32> {
        self.most
    }

    /// Return whether the limit bounds how many attempts run, and those that ran when it was set are counted.
    pub(crate) fn has_counted(&self) -> bool {
        self.most.is_some() && self.counted
    }

    /// Return whether fewer jobs share the limit than the other one, as far as the way tells in which they share it.
    pub(crate) fn is_narrower_than(&self, other: &Self) -> bool {
        let width = |bounds: &Self| match bounds.shared_by {
            SharedBy::Key => 0,
            SharedBy::Host => 1,
            SharedBy::Parent => 2,
            SharedBy::All => 3,
        };
        width(self) < width(other)
    }

    /// Return the values of a key, also of one whose limit was removed: that has none.
    pub(crate) fn find(limits: &[LimitSetting], key: &LimitKey) -> Self {
        let set = limits.iter().find(|set| set.limit.name == key.limit);
        set.map_or_else(Self::default, |set| Self::of(set, &key.key))
    }
}

/// The state of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyState {
    /// Number of attempts with a slot.
    pub(crate) running: i64,
    /// Number of jobs for which a slot is kept.
    pub(crate) kept: i64,
    /// When the first of the parked jobs of the key was due. None if none is parked.
    pub(crate) first_due: Option<Timestamp>,
    /// When the rate allows the next start without a burst.
    next_start: Option<Timestamp>,
    /// The rate that the last start followed. None if a binary from before this was written has started it.
    followed: Option<Pace>,
    /// Version of the limit at the reading. None if it was removed.
    version: Option<u32>,
    /// The breaker of the host, if it is open.
    gate: Option<OpenGate>,
    /// The time of the server at the reading.
    pub(crate) now: Timestamp,
}

impl KeyState {
    /// The state of a key for jobs that leave its line, whether there is room or not.
    fn unread() -> Self {
        let (first_due, next_start, followed, version, gate) = (None, None, None, None, None);
        Self { running: 0, kept: 0, first_due, next_start, followed, version, gate, now: Timestamp::default() }
    }

    /// Return whether a job that this key has not let go may start now. If so, count it. `due_at` is the due time of a job
    /// that another key has let go.
    pub(crate) fn admit(&mut self, bounds: KeyBounds, due_at: Option<Timestamp>) -> bool {
        if !self.is_first(due_at) || !self.may_start(bounds) {
            return false;
        }
        self.running += 1;
        self.start(bounds);
        self.call(bounds);
        true
    }

    /// Return whether a job that was let go may start now. If so, count it: the slot that is kept for it becomes that of its
    /// attempt.
    ///
    /// The limit may have been lowered after the job was let go, and then as many attempts may run already. The share of a
    /// fair limit does not count here: it changes with each key that gets or loses jobs.
    pub(crate) fn admit_let_go(&mut self, bounds: KeyBounds) -> bool {
        let has_room = bounds.most.is_none_or(|most| bounds.counted && self.running < i64::from(most));
        if !has_room || !self.conforms(bounds) || !self.passes(bounds) {
            return false;
        }
        self.running += 1;
        self.kept -= 1;
        self.start(bounds);
        self.call(bounds);
        true
    }

    /// Return whether no parked job of the key goes before a job. Parked jobs were due before every new one. A job that
    /// waited for another key may have been due before them: behind them it would lose the slot that the other key keeps
    /// for it, wait for both keys in turn, and leave slots of both unused.
    fn is_first(&self, due_at: Option<Timestamp>) -> bool {
        self.first_due.is_none_or(|first| due_at.is_some_and(|due_at| due_at <= first))
    }

    /// Return whether a job may start now, apart from the parked jobs before it.
    pub(crate) fn may_start(&self, bounds: KeyBounds) -> bool {
        self.has_room(bounds) && self.conforms(bounds) && self.passes(bounds)
    }

    fn has_room(&self, KeyBounds { bounds, counted, .. }: KeyBounds) -> bool {
        bounds.concurrency.is_none_or(|most| counted && self.running + self.kept < i64::from(most))
    }

    fn conforms(&self, bounds: KeyBounds) -> bool {
        self.turn(bounds, 0).is_none_or(|turn| turn <= self.now)
    }

    /// Return whether the breaker lets a job start.
    fn passes(&self, bounds: KeyBounds) -> bool {
        self.open_gate(bounds).is_none_or(|(gate, rule)| gate.may_probe(rule, self.now))
    }

    fn open_gate(&self, bounds: KeyBounds) -> Option<(OpenGate, BreakerRule)> {
        Some((self.gate?, bounds.breaker?)).filter(|(gate, rule)| gate.is_open(*rule))
    }

    /// Return whether the call that decides about an open breaker is under way.
    pub(crate) fn is_probing(&self) -> bool {
        self.gate.is_some_and(|gate| gate.probing)
    }

    /// Note a start. With an open breaker, its call is the one that decides.
    fn call(&mut self, bounds: KeyBounds) {
        if self.open_gate(bounds).is_some()
            && let Some(gate) = &mut self.gate
        {
            gate.probing = true;
        }
    }

    /// Return whether these values of the limit are those at the reading.
    pub(crate) fn is_of(&self, bounds: KeyBounds) -> bool {
        self.version == Some(bounds.version)
    }

    /// Return the even time of the next start. A start is followed by the next within its interval and the tolerance. A
    /// later time dates from before the clock was set back: then the next start may come now.
    ///
    /// When the rate has changed since the last start, the starts before the change count against the new rate: those
    /// that were ahead of their even times then are as many starts ahead under the new one. But the next start waits
    /// for one period at most: no later period has starts of both rates.
    fn even(&self, rate: &Rate, changed_at: Timestamp) -> Timestamp {
        let Some(next) = self.next_start else { return self.now };
        let pace = Pace::of(rate);
        let followed = self.followed.unwrap_or(pace);
        if next > self.now + followed.tolerance() + followed.interval() {
            return self.now + pace.tolerance();
        }
        if followed == pace {
            return next;
        }
        let changed_at = changed_at.min(self.now);
        let ahead_us = (next - changed_at).num_microseconds().unwrap_or(0).max(0);
        let ahead_us = i128::from(ahead_us) * i128::from(pace.interval_us) / i128::from(followed.interval_us);
        let most = pace.tolerance() + TimeDelta::milliseconds(rate.period_ms.into());
        let ahead = i64::try_from(ahead_us).map_or(most, TimeDelta::microseconds);
        changed_at + ahead.min(most)
    }

    /// Return the time from which the rate allows the start after `others` more. None without a rate.
    fn turn(&self, bounds: KeyBounds, others: i64) -> Option<Timestamp> {
        let rate = bounds.bounds.rate?;
        let ahead = rate.interval_us() * others - rate.tolerance_us();
        Some(self.even(&rate, bounds.changed_at) + TimeDelta::microseconds(ahead))
    }

    /// Count a start against the rate.
    pub(crate) fn start(&mut self, bounds: KeyBounds) {
        let Some(rate) = bounds.bounds.rate else { return };
        let even = self.even(&rate, bounds.changed_at).max(self.now);
        self.next_start = Some(even + TimeDelta::microseconds(rate.interval_us()));
        self.followed = Some(Pace::of(&rate));
    }

    /// Return how many parked jobs may be let go.
    pub(crate) fn room(&self, key: KeyBounds) -> usize {
        let KeyBounds { bounds, fair, counted, .. } = key;
        let slots = bounds.concurrency.map(|most| if counted { i64::from(most) - self.running - self.kept } else { 0 });
        let turns = bounds.rate.map(|rate| {
            // Otherwise each sweep would lock the jobs of a slow rate, only to find that it is too early for the first one.
            if self.turn(key, self.kept).is_some_and(|at| at > self.now + FURTHEST_TURN) {
                return 0;
            }
            let ahead = LET_GO_AHEAD.num_microseconds().unwrap_or(0) / rate.interval_us().max(1) + 1;
            ahead.min(MAX_KEPT_AHEAD) - self.kept
        });
        let on_their_way = fair.then(|| MAX_KEPT_AHEAD - self.kept);
        // While a breaker is open, one job at a time may start, once its pause is over.
        let probes =
            self.open_gate(key).map(|(gate, rule)| if gate.may_probe(rule, self.now) { 1 - self.kept } else { 0 });
        let room = slots.into_iter().chain(turns).chain(on_their_way).chain(probes).min().unwrap_or(i64::MAX);
        usize::try_from(room.max(0)).unwrap_or(0).min(MAX_AT_ONCE)
    }
}

/// Condition on a parked job: its queue is not paused. Jobs of a paused queue would keep slots that they cannot use.
pub(crate) const NOT_PAUSED: &str = "queue NOT IN (SELECT name FROM queues WHERE paused_at IS NOT NULL)";

/// Build the condition that a row belongs to one of these keys. The columns have the prefix `alias`.
///
/// The keys of each limit are one list of constants, which MySQL sorts once. It would compare each row with every key of
/// a list of pairs.
pub(crate) fn any_of<'a>(alias: &str, keys: &[&'a LimitKey]) -> (String, Vec<Value<'a>>) {
    let mut of_limits: BTreeMap<&'a str, Vec<Value<'a>>> = BTreeMap::new();
    for key in keys {
        of_limits.entry(key.limit.as_str()).or_default().push(Value::from(key.key.as_bytes()));
    }
    let one = |of_limit: &Vec<Value<'a>>| {
        format!("({alias}limit_name = ? AND {alias}limit_key IN {})", placeholders(of_limit.len()))
    };
    let any: Vec<String> = of_limits.values().map(one).collect();
    let values = of_limits.into_iter().flat_map(|(limit, keys)| iter::once(Value::from(limit)).chain(keys));
    (any.join(" OR "), values.collect())
}

/// Read a key from the columns of a row.
pub(crate) fn key_in(row: &MySqlRow) -> Result<LimitKey, sqlx::Error> {
    let key: Vec<u8> = row.try_get("limit_key")?;
    Ok(LimitKey {
        limit: row.try_get::<&str, _>("limit_name")?.parse().map_err(|_| corrupt("limit_name"))?,
        key: String::from_utf8_lossy(&key).into_owned(),
    })
}

/// The parked jobs and the slots, in the order of their keys.
pub(crate) const WAITS: &str = "limit_waits FORCE INDEX (limit_waits_line)";
pub(crate) const SLOTS: &str = "limit_slots FORCE INDEX (PRIMARY)";
/// Rows of which one statement reads the keys.
pub(crate) const KEYS_READ: usize = 256;

/// Build the statement that reads the keys of the first rows of a table for which `condition` holds. A key may have a
/// million rows. So each statement reads a few, and the next one begins behind the key of the last of them.
pub(crate) fn keys_of_rows(table: &str, condition: &str) -> Sql {
    statement(format!(
        "SELECT limit_name, limit_key, COUNT(*) AS n FROM (SELECT limit_name, limit_key FROM {table} \
         WHERE {condition} ORDER BY limit_name, limit_key LIMIT {KEYS_READ}) k \
         GROUP BY limit_name, limit_key ORDER BY limit_name, limit_key"
    ))
}

/// Add the keys that a statement of [`keys_of_rows`] reads. Return whether there may be more.
pub(crate) async fn add_keys(
    conn: &mut Session<'_>,
    query: Sql,
    keys: &mut BTreeSet<LimitKey>,
) -> Result<bool, sqlx::Error> {
    let mut rows = 0;
    for row in query.fetch_all(&mut *conn).await? {
        keys.insert(key_in(&row)?);
        rows += row.try_get::<i64, _>("n")?;
    }
    Ok(usize::try_from(rows).unwrap_or(0) >= KEYS_READ)
}

/// Read the first `most` keys of a limit that have rows in a table, behind this key.
pub(crate) async fn keys_of_limit(
    conn: &mut Session<'_>,
    table: &str,
    (limit, mut after): (&str, Option<Vec<u8>>),
    most: usize,
) -> Result<BTreeSet<LimitKey>, sqlx::Error> {
    let mut keys = BTreeSet::new();
    loop {
        // Before every key stands nothing, and the empty key is one.
        let rest = if after.is_some() { ">" } else { ">=" };
        let query = keys_of_rows(table, &format!("limit_name = ? AND limit_key {rest} ?"));
        let query = query.bind(limit.to_owned()).bind(after.unwrap_or_default());
        if !add_keys(conn, query, &mut keys).await? || keys.len() >= most {
            return Ok(keys.into_iter().take(most).collect());
        }
        after = keys.last().map(|last| last.key.clone().into_bytes());
    }
}

/// Lock those of these keys that have rows, in their order, in the caller's transaction. Return them.
///
/// An upsert would lock and make rows in one step, but two upserts of neighbouring keys may deadlock.
async fn lock_those_that_exist(conn: &mut Session<'_>, keys: &[&LimitKey]) -> Result<BTreeSet<LimitKey>, sqlx::Error> {
    let found = locked_keys(conn, keys, ("", false)).await?;
    lock_in_cluster(conn, Locked::LimitKey, found.iter().map(name_in_cluster)).await?;
    Ok(found)
}

/// Do what [`lock_those_that_exist`] does, and wait for a second at most for a key that another session locks.
pub(crate) async fn lock_within_a_second(
    conn: &mut Session<'_>,
    keys: &[&LimitKey],
) -> Result<BTreeSet<LimitKey>, sqlx::Error> {
    sqlx::raw_sql(HURRY).execute(&mut *conn).await?;
    let found = lock_those_that_exist(conn, keys).await;
    let as_before = sqlx::raw_sql(AS_BEFORE).execute(&mut *conn).await;
    let found = found?;
    as_before.map(|_| found)
}

/// Do what [`lock_those_that_exist`] does, without the keys that another session locks. Return those that are locked
/// now.
pub(crate) async fn lock_those_that_are_free(
    conn: &mut Session<'_>,
    keys: &[&LimitKey],
) -> Result<BTreeSet<LimitKey>, sqlx::Error> {
    free_ones(conn, keys, false).await
}

/// Do what [`lock_those_that_are_free`] does. With `begins`, the request begins a transaction as well.
async fn free_ones(
    conn: &mut Session<'_>,
    keys: &[&LimitKey],
    begins: bool,
) -> Result<BTreeSet<LimitKey>, sqlx::Error> {
    let mut found = locked_keys(conn, keys, (SKIP_LOCKED, begins)).await?;
    // Only after their rows are locked: the session that has the lock of a key has written its row of the cluster, too.
    let names = found.iter().map(name_in_cluster).collect();
    let names = lock_free_in_cluster(conn, Locked::LimitKey, names, SKIP_LOCKED).await?;
    found.retain(|key| names.contains(&name_in_cluster(key)));
    Ok(found)
}

/// Return the name of the lock of a key in a cluster.
fn name_in_cluster(key: &LimitKey) -> Vec<u8> {
    [key.limit.as_str().as_bytes(), &[0], key.key.as_bytes()].concat()
}

/// Lock the rows of those of these keys that have rows, in their order. Return them. `how` says what to do about locked
/// ones. With `begins`, the request begins a transaction as well.
async fn locked_keys(
    conn: &mut Session<'_>,
    keys: &[&LimitKey],
    (how, begins): (&str, bool),
) -> Result<BTreeSet<LimitKey>, sqlx::Error> {
    let mut script = Script::as_text();
    if begins {
        script.push("BEGIN", Vec::new());
    }
    let (any, values) = any_of("", keys);
    let sql = "SELECT limit_name, limit_key FROM limit_keys FORCE INDEX (PRIMARY) WHERE";
    script.push(format!("{sql} {any} ORDER BY limit_name, limit_key FOR UPDATE{how}"), values);
    script.run(conn).await?.iter().flat_map(|step| &step.rows).map(key_in).collect()
}

/// Do what [`lock_keys`] does, without the keys that another session locks. Return those that are locked now. If another
/// session is making the row of one of them, this waits for it.
pub(crate) async fn lock_free_keys(
    conn: &mut Session<'_>,
    keys: &[&LimitKey],
) -> Result<BTreeSet<LimitKey>, sqlx::Error> {
    let mut locked = lock_those_that_are_free(conn, keys).await?;
    if locked.len() == keys.len() {
        return Ok(locked);
    }
    let missing = without_rows(conn, keys, &locked).await?;
    if !missing.is_empty() {
        make_rows(conn, &missing).await?;
        locked.extend(lock_those_that_are_free(conn, &missing).await?);
    }
    Ok(locked)
}

/// Return those of these keys that another session locks at this moment. The others are locked until the end of the
/// statement, or of the caller's transaction.
pub(crate) async fn keys_locked_elsewhere(
    conn: &mut Session<'_>,
    keys: &[&LimitKey],
) -> Result<BTreeSet<LimitKey>, sqlx::Error> {
    let free = locked_keys(conn, keys, (SKIP_LOCKED, false)).await?;
    if free.len() == keys.len() {
        return Ok(BTreeSet::new());
    }
    let missing = without_rows(conn, keys, &free).await?;
    let locked = keys.iter().copied().filter(|key| !free.contains(*key) && !missing.contains(key));
    Ok(locked.cloned().collect())
}

/// Return those of these keys, apart from the locked ones, that have no rows. At least one of the keys is not locked.
pub(crate) async fn without_rows<'k>(
    conn: &mut Session<'_>,
    keys: &[&'k LimitKey],
    locked: &BTreeSet<LimitKey>,
) -> Result<Vec<&'k LimitKey>, sqlx::Error> {
    let left = not_among(keys, locked);
    let (any, values) = any_of("", &left);
    let mut script = Script::as_text();
    script.push(format!("SELECT limit_name, limit_key FROM limit_keys FORCE INDEX (PRIMARY) WHERE {any}"), values);
    let done = script.run(conn).await?;
    let exist: BTreeSet<LimitKey> = done.iter().flat_map(|step| &step.rows).map(key_in).collect::<Result<_, _>>()?;
    Ok(not_among(&left, &exist))
}

/// Return those of these keys that are not in `found`.
pub(crate) fn not_among<'k>(keys: &[&'k LimitKey], found: &BTreeSet<LimitKey>) -> Vec<&'k LimitKey> {
    keys.iter().copied().filter(|key| !found.contains(*key)).collect()
}

/// Return those of these keys without rows that no other session is making. A row that another session has inserted and
/// not committed yet is invisible, but locked: an insert of the same key would wait for it.
async fn not_in_the_making<'k>(
    conn: &mut Session<'_>,
    keys: Vec<&'k LimitKey>,
) -> Result<Vec<&'k LimitKey>, sqlx::Error> {
    if keys.is_empty() || is_no_row_locked(conn, &keys).await? {
        return Ok(keys);
    }
    let mut free = Vec::with_capacity(keys.len());
    for key in keys {
        if is_no_row_locked(conn, &[key]).await? {
            free.push(key);
        }
    }
    Ok(free)
}

async fn is_no_row_locked(conn: &mut Session<'_>, keys: &[&LimitKey]) -> Result<bool, sqlx::Error> {
    match locked_keys(conn, keys, (NOWAIT, false)).await {
        Ok(_) => Ok(true),
        Err(error) if is_locked_elsewhere(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

async fn make_rows(conn: &mut Session<'_>, keys: &[&LimitKey]) -> Result<(), sqlx::Error> {
    let mut script = Script::as_text();
    script.insert(
        ["INSERT IGNORE INTO limit_keys (limit_name, limit_key) VALUES", "(?,?)", ""],
        keys,
        |_| 300,
        |&key, values| values.extend([Value::from(key.limit.as_str()), Value::from(key.key.as_bytes())]),
    );
    script.run(conn).await.map(drop)
}

/// Begin a transaction with locks on these keys. Make the rows of those that have none before it, so that nothing is
/// locked meanwhile.
pub(crate) async fn begin_with(conn: &mut Session<'_>, keys: &[&LimitKey]) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("BEGIN").execute(&mut *conn).await?;
    let missing = not_among(keys, &lock_those_that_exist(conn, keys).await?);
    if missing.is_empty() {
        return Ok(());
    }
    sqlx::raw_sql("COMMIT").execute(&mut *conn).await?;
    make_rows(conn, &missing).await?;
    sqlx::raw_sql("BEGIN").execute(&mut *conn).await?;
    lock_keys(conn, keys).await
}

/// Do what [`begin_with`] does, without the keys that another session locks. Return those that are locked now.
pub(crate) async fn begin_with_free(
    conn: &mut Session<'_>,
    keys: &[&LimitKey],
) -> Result<BTreeSet<LimitKey>, sqlx::Error> {
    let locked = free_ones(conn, keys, true).await?;
    if locked.len() == keys.len() {
        return Ok(locked);
    }
    let missing = without_rows(conn, keys, &locked).await?;
    if missing.is_empty() {
        return Ok(locked);
    }
    sqlx::raw_sql("COMMIT").execute(&mut *conn).await?;
    let missing = not_in_the_making(conn, missing).await?;
    make_rows(conn, &missing).await?;
    free_ones(conn, keys, true).await
}

/// Do what [`begin_with`] does, but wait for a second at most, and not for keys that count as locked. Return the keys
/// that are locked now. A key for which this has waited in vain counts as locked from now on.
pub(crate) async fn begin_within_a_second(
    conn: &mut Session<'_>,
    keys: &[&LimitKey],
    known: &LockedKeys<LimitKey>,
) -> Result<BTreeSet<LimitKey>, sqlx::Error> {
    let mut got = begin_with_free(conn, keys).await?;
    let missing = known.to_wait_for(keys, &got);
    if !missing.is_empty() {
        sqlx::raw_sql("ROLLBACK").execute(&mut *conn).await?;
        let (waits, tries) = known.split(keys, &got, &missing);
        got = match wait_for_a_second(conn, &waits, &missing).await? {
            Waited::Got(mut got) if got.len() == waits.len() => {
                if !tries.is_empty() {
                    // The order of these does not matter, because this waits for none.
                    got.extend(lock_those_that_are_free(conn, &tries).await?);
                }
                got
            }
            Waited::Got(_) => {
                // A session that was making the row of a key has ended without it.
                sqlx::raw_sql("ROLLBACK").execute(&mut *conn).await?;
                begin_with_free(conn, keys).await?
            }
            Waited::InVain(key) => {
                if let Some(key) = key {
                    known.waited_in_vain(&key);
                }
                begin_with_free(conn, keys).await?
            }
        };
    }
    known.note(keys, &got);
    Ok(got)
}

/// Let this session wait for a second at most for a lock, and as long as before.
const HURRY: &str =
    "SET @tickr_lock_wait = @@SESSION.innodb_lock_wait_timeout; SET SESSION innodb_lock_wait_timeout = 1";
const AS_BEFORE: &str = "SET SESSION innodb_lock_wait_timeout = @tickr_lock_wait";

/// Outcome of a wait for keys.
enum Waited {
    /// A transaction has begun that locks these keys: all those that have rows.
    Got(BTreeSet<LimitKey>),
    /// There is no transaction. This key stayed locked for a second. None if it was free a moment before.
    InVain(Option<LimitKey>),
}

/// Begin a transaction with locks on those of these keys that have rows, unless one of them stays locked for a second.
/// `missing` are those of them that another session locked a moment before.
async fn wait_for_a_second(
    conn: &mut Session<'_>,
    keys: &[&LimitKey],
    missing: &BTreeSet<LimitKey>,
) -> Result<Waited, sqlx::Error> {
    sqlx::raw_sql(HURRY).execute(&mut *conn).await?;
    let waited = lock_in_parts(conn, keys, missing).await;
    if matches!(waited, Ok(Waited::InVain(_))) {
        sqlx::raw_sql("ROLLBACK").execute(&mut *conn).await?;
    }
    let as_before = sqlx::raw_sql(AS_BEFORE).execute(&mut *conn).await;
    let waited = waited?;
    as_before.map(|_| waited)
}

/// Begin a transaction, and lock the keys in parts, each up to a missing one. So it is known for which key a wait was
/// in vain: the last one of the part.
async fn lock_in_parts(
    conn: &mut Session<'_>,
    keys: &[&LimitKey],
    missing: &BTreeSet<LimitKey>,
) -> Result<Waited, sqlx::Error> {
    sqlx::raw_sql("BEGIN").execute(&mut *conn).await?;
    let parts: Vec<&[&LimitKey]> = keys.split_inclusive(|key| missing.contains(*key)).collect();
    let mut got = BTreeSet::new();
    for part in parts {
        match lock_those_that_exist(conn, part).await {
            Ok(found) => got.extend(found),
            Err(error) if waited_for_lock(&error) => {
                let last = part.last().copied().filter(|key| missing.contains(*key));
                return Ok(Waited::InVain(last.cloned()));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Waited::Got(got))
}

/// Lock these keys, in their order, in the caller's transaction, and make the rows of those that have none.
pub(crate) async fn lock_keys(conn: &mut Session<'_>, keys: &[&LimitKey]) -> Result<(), sqlx::Error> {
    let missing = not_among(keys, &lock_those_that_exist(conn, keys).await?);
    if missing.is_empty() {
        return Ok(());
    }
    make_rows(conn, &missing).await?;
    // Another transaction may have made one of them, and then only this locks it.
    lock_those_that_exist(conn, &missing).await.map(drop)
}

/// Add the step that reads the states of these keys. The slots of those that are `counted` are counted in one pass over
/// the table. The others seem to have none.
pub(crate) fn state_step<'a>(script: &mut Script<'a>, keys: &[&'a LimitKey], counted: &[&'a LimitKey]) {
    let (any, mut values) = if counted.is_empty() { ("FALSE".to_owned(), Vec::new()) } else { any_of("", counted) };
    let sql = format!(
        "SELECT {}, CAST(COALESCE(s.running, 0) AS SIGNED) AS running, CAST(COALESCE(s.kept, 0) AS SIGNED) AS kept \
         FROM limit_keys k FORCE INDEX (PRIMARY) LEFT JOIN (SELECT limit_name, limit_key, \
         SUM(kept_until IS NULL) AS running, SUM(kept_until > UTC_TIMESTAMP(6)) AS kept FROM limit_slots \
         FORCE INDEX (PRIMARY) WHERE {any} GROUP BY limit_name, limit_key) s \
         ON s.limit_name = k.limit_name AND s.limit_key = k.limit_key \
         LEFT JOIN limits m FORCE INDEX (PRIMARY) ON m.name = k.limit_name WHERE ",
        state_columns("m.version")
    );
    let (any, of_keys) = any_of("k.", keys);
    values.extend(of_keys);
    script.push(sql + &any, values);
}

/// Add the step that reads the states of those of these keys that have parked jobs. Most keys have none, and a look at
/// their slots would be in vain.
fn state_with_parked_jobs_step<'a>(script: &mut Script<'a>, keys: &[&'a LimitKey]) {
    let (any, values) = any_of("k.", keys);
    let slots = format!("SELECT COUNT(*) FROM limit_slots FORCE INDEX (PRIMARY) WHERE {OF_KEY}");
    let sql = format!(
        "SELECT {}, ({slots} AND kept_until IS NULL) AS running, ({slots} AND kept_until > UTC_TIMESTAMP(6)) AS kept \
         FROM limit_keys k FORCE INDEX (PRIMARY) WHERE ({any}) AND {}",
        state_columns("(SELECT version FROM limits WHERE name = k.limit_name)"),
        has_parked_jobs("TRUE")
    );
    script.push(sql, values);
}

/// The condition that a row of another table belongs to the key `k` of `limit_keys`.
const OF_KEY: &str = "limit_name = k.limit_name AND limit_key = k.limit_key";

/// Build the columns of the state of a key, without the numbers of its slots. `version` is that of its limit: a join
/// finds it with less for many keys, a subquery for the few that a condition leaves.
fn state_columns(version: &str) -> String {
    let gate = OpenGate::COLUMNS;
    format!(
        "k.limit_name, k.limit_key, k.next_start, k.start_interval_us, k.start_burst, UTC_TIMESTAMP(6) AS moment, \
         {version} AS version, {gate}, \
         (SELECT due_at FROM limit_waits FORCE INDEX (limit_waits_line) WHERE {OF_KEY} AND {NOT_PAUSED} \
         ORDER BY due_at LIMIT 1) AS first_due"
    )
}

/// Read the rows of [`state_step`].
pub(crate) fn states_in(rows: &[MySqlRow]) -> Result<BTreeMap<LimitKey, KeyState>, sqlx::Error> {
    rows.iter()
        .map(|row| {
            let state = KeyState {
                running: row.try_get("running")?,
                kept: row.try_get("kept")?,
                first_due: row.try_get("first_due")?,
                next_start: row.try_get("next_start")?,
                followed: Pace::in_row(row)?,
                version: row.try_get("version")?,
                gate: OpenGate::in_row(row)?,
                now: row.try_get("moment")?,
            };
            Ok((key_in(row)?, state))
        })
        .collect()
}

/// Add the step that writes the rates of these keys.
pub(crate) fn write_rates<'a>(script: &mut Script<'a>, keys: &'a BTreeMap<LimitKey, KeyState>) {
    let rated = keys.iter().filter_map(|(key, state)| Some((key, state.next_start?, state.followed)));
    let rated: Vec<_> = rated.collect();
    if rated.is_empty() {
        return;
    }
    let insert = [
        "INSERT INTO limit_keys (limit_name, limit_key, next_start, start_interval_us, start_burst) VALUES",
        "(?,?,?,?,?)",
        "ON DUPLICATE KEY UPDATE next_start = VALUES(next_start), start_interval_us = VALUES(start_interval_us), \
         start_burst = VALUES(start_burst)",
    ];
    script.insert(
        insert,
        &rated,
        |_| 300,
        |&(key, next, followed), values| {
            values.extend([Value::from(key.limit.as_str()), Value::from(key.key.as_bytes()), next.into()]);
            values.push(followed.map(|pace| pace.interval_us).into());
            values.push(followed.map(|pace| pace.burst).into());
        },
    );
}

/// A job that is to be parked.
pub(crate) struct ToPark<'a> {
    pub(crate) id: Uuid,
    pub(crate) key: &'a LimitKey,
    pub(crate) queue: &'a str,
    pub(crate) due_at: Value<'a>,
}

/// Count a job that was parked, for the metrics. There are few limits, so their names may be labels.
pub(crate) fn count_parked(limit: &Name) {
    metrics::counter!("tickr_jobs_parked_total", "limit" => limit.to_string()).increment(1);
}

/// Add the step that makes these jobs wait for their limits. Their `owed` rows need the due time [`parked_until`].
pub(crate) fn park_step<'a>(script: &mut Script<'a>, jobs: &[ToPark<'a>]) {
    let insert = [
        "INSERT INTO limit_waits (job_id, limit_name, limit_key, queue, due_at, parked_at) VALUES",
        "(?,?,?,?,?,UTC_TIMESTAMP(6))",
        "ON DUPLICATE KEY UPDATE limit_name = VALUES(limit_name), limit_key = VALUES(limit_key), due_at = VALUES(due_at)",
    ];
    script.insert(
        insert,
        jobs,
        |_| 400,
        |job, values| {
            values.extend([
                Value::from(job.id),
                job.key.limit.as_str().into(),
                Value::from(job.key.key.as_bytes()),
                job.queue.into(),
                job.due_at,
            ]);
        },
    );
}

/// Build the condition that the key `k` of `limit_keys` has parked jobs for which `condition` holds. It is no EXISTS,
/// because MySQL may turn that into a join, and read all parked jobs.
fn has_parked_jobs(condition: &str) -> String {
    format!(
        "(SELECT 1 FROM limit_waits FORCE INDEX (limit_waits_line) \
         WHERE {OF_KEY} AND {condition} LIMIT 1) = 1"
    )
}

/// Return those of these keys that have parked jobs in queues that are not paused.
pub(crate) async fn keys_with_parked_jobs(
    conn: &mut Session<'_>,
    keys: &[&LimitKey],
) -> Result<Vec<LimitKey>, sqlx::Error> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let (any, values) = any_of("k.", keys);
    let has_parked_jobs = has_parked_jobs(NOT_PAUSED);
    let sql = "SELECT k.limit_name, k.limit_key FROM limit_keys k FORCE INDEX (PRIMARY) WHERE";
    let mut script = Script::as_text();
    script.push(format!("{sql} ({any}) AND {has_parked_jobs}"), values);
    script.run(conn).await?.iter().flat_map(|step| &step.rows).map(key_in).collect()
}

/// Delete the row of a parked job that does not wait any more.
pub(crate) async fn unpark(conn: &mut Session<'_>, id: Uuid) -> Result<(), sqlx::Error> {
    sqlx::query("DELETE FROM limit_waits WHERE job_id = ?").bind(id).execute(conn).await.map(drop)
}

/// Note that a client has given these jobs another due time. Their rows in `owed` are locked. Those that were let go
/// and are parked again before they start are in the line by this time.
pub(crate) async fn note_due_time(conn: &mut Session<'_>, ids: &[Uuid], due_at: Timestamp) -> Result<(), sqlx::Error> {
    let mut script = Script::as_text();
    let (list, of_ids) = script.list(ids);
    let mut values = vec![Value::from(due_at)];
    values.extend(of_ids);
    let sql = format!(
        "UPDATE limit_holds h FORCE INDEX (PRIMARY) STRAIGHT_JOIN owed o FORCE INDEX (PRIMARY) ON o.id = h.job_id \
         AND h.attempt = o.attempt + 1 SET h.due_at = ? WHERE h.job_id IN {list}"
    );
    script.push(sql, values);
    script.run(conn).await.map(drop)
}

/// Let parked jobs of these keys go, as many as have room, those that were due first before others. The keys are locked.
/// Returns the jobs with their due times, and whether there may be more with room.
pub(crate) async fn let_go(
    conn: &mut Session<'_>,
    keys: &BTreeSet<LimitKey>,
    limits: &[LimitSetting],
) -> Result<(Vec<DueJob>, bool), sqlx::Error> {
    let keys: Vec<&LimitKey> = keys.iter().collect();
    if keys.is_empty() {
        return Ok((Vec::new(), false));
    }
    let mut script = Script::as_text();
    state_with_parked_jobs_step(&mut script, &keys);
    let found: Vec<MySqlRow> = script.run(conn).await?.into_iter().flat_map(|step| step.rows).collect();
    let_go_by(conn, &states_in(&found)?, limits, usize::MAX).await
}

/// Delete the slots of these jobs at these keys, and let parked jobs of the keys go: at most [`MAX_AT_ONCE`] in all. The
/// jobs end in the caller's transaction, which has locked the keys. Otherwise this does what [`let_go`] does. There is at
/// least one job and one key.
///
/// A slot at another key is not looked at: a session that has locked that key may be making it, and this must not wait
/// for it. The sweep frees it.
pub(crate) async fn free_and_let_go(
    conn: &mut Session<'_>,
    ended: &[(Uuid, &[LimitKey])],
    keys: &BTreeSet<LimitKey>,
    limits: &[LimitSetting],
) -> Result<(Vec<DueJob>, bool), sqlx::Error> {
    let slots = slots_by_key(ended.iter().map(|(id, keys)| (*id, *keys)));
    let mut script = Script::as_text();
    delete_slots_steps(&mut script, &slots, "");
    let keys: Vec<&LimitKey> = keys.iter().collect();
    state_with_parked_jobs_step(&mut script, &keys);
    let found = script.run(conn).await?.pop().unwrap_or_default().rows;
    let_go_by(conn, &states_in(&found)?, limits, MAX_AT_ONCE).await
}

/// Let parked jobs of keys in these states go, at most `most` of them. Returns the jobs, and whether there may be more
/// with room.
async fn let_go_by(
    conn: &mut Session<'_>,
    states: &BTreeMap<LimitKey, KeyState>,
    limits: &[LimitSetting],
    most: usize,
) -> Result<(Vec<DueJob>, bool), sqlx::Error> {
    let mut all = Vec::new();
    let mut rooms: Vec<(&LimitKey, usize)> = states
        .iter()
        .filter(|(_, state)| state.first_due.is_some())
        .map(|(key, state)| (key, state, KeyBounds::find(limits, key)))
        // A process that has not heard of a change yet would let jobs go by the former values. The sweep of a
        // runner that has heard of it lets them go within a second.
        .filter(|(_, state, bounds)| state.version.is_none() || state.is_of(*bounds))
        .map(|(key, state, bounds)| (key, state.room(bounds)))
        .filter(|(_, room)| *room > 0)
        .collect();
    let (mut left, mut more) = (most, false);
    for (_, room) in &mut rooms {
        more |= *room > left;
        *room = left.min(*room);
        left -= *room;
    }
    rooms.retain(|(_, room)| *room > 0);
    for wanted in rooms.chunks(64) {
        let waiting = first_parked(conn, wanted).await?;
        let mut found = ParkedJobs::lock(conn, &waiting).await?;
        found.look_behind(conn, wanted).await?;
        more |= wanted.iter().any(|(_, room)| *room == MAX_AT_ONCE) && !found.is_empty();
        all.extend(let_go_of(conn, found, states, limits).await?);
    }
    Ok((all, more))
}

/// Let these parked jobs of a limit go, whether it has room or not: it does not cover them any more. No slots are kept for
/// them. Returns those that were parked still. Their keys are locked.
pub(crate) async fn let_uncovered_go(
    conn: &mut Session<'_>,
    parked: &BTreeMap<Uuid, LimitKey>,
) -> Result<Vec<DueJob>, sqlx::Error> {
    let keys: BTreeSet<&LimitKey> = parked.values().collect();
    let ids: Vec<Uuid> = parked.keys().copied().collect();
    let mut script = Script::as_text();
    // The limit bounds none of them any more.
    state_step(&mut script, &keys.into_iter().collect::<Vec<_>>(), &[]);
    let (list, values) = script.list(&ids);
    let sql = "SELECT limit_name, limit_key, job_id, due_at FROM limit_waits FORCE INDEX (PRIMARY) WHERE job_id IN";
    script.push(format!("{sql} {list}"), values);
    let mut done = script.run(conn).await?;
    let found = done.pop().unwrap_or_default().rows;
    let states = states_in(&done.pop().unwrap_or_default().rows)?;
    let mut waiting = Parked::new();
    for row in &found {
        let (id, key) = (row.try_get("job_id")?, key_in(row)?);
        if parked.get(&id) == Some(&key) {
            waiting.insert(id, (key, row.try_get("due_at")?));
        }
    }
    let found = ParkedJobs::lock(conn, &waiting).await?;
    let_go_of(conn, found, &states, &[]).await
}

/// Condition on a job at the front of a line, `w`: its queue is paused.
const PAUSED: &str = "w.queue IN (SELECT name FROM queues WHERE paused_at IS NOT NULL)";

/// Build the source `w` with the jobs at the front of the line of a key.
fn front_of_line() -> String {
    format!(
        "(SELECT limit_name, limit_key, job_id, due_at, queue FROM limit_waits FORCE INDEX (limit_waits_line) \
         WHERE limit_name = ? AND limit_key = ? ORDER BY due_at, job_id LIMIT {FRONT}) w"
    )
}

/// Return those of these keys whose lines begin with many jobs of paused queues.
pub(crate) async fn lines_behind_paused_jobs(
    conn: &mut Session<'_>,
    keys: &[&LimitKey],
) -> Result<Vec<LimitKey>, sqlx::Error> {
    let front = front_of_line();
    let of = |place: usize| {
        format!("(SELECT {place} AS place FROM {front} WHERE {PAUSED} HAVING COUNT(*) > {MAX_PAUSED_IN_FRONT})")
    };
    let parts: Vec<String> = (0..keys.len()).map(of).collect();
    let values = keys.iter().flat_map(|key| [Value::from(key.limit.as_str()), Value::from(key.key.as_bytes())]);
    let mut script = Script::as_text();
    script.push(parts.join(" UNION ALL "), values.collect());
    let mut found = Vec::new();
    for row in script.run(conn).await?.iter().flat_map(|step| &step.rows) {
        let place = usize::try_from(row.try_get::<i64, _>("place")?).unwrap_or(usize::MAX);
        found.extend(keys.get(place).map(|key| (*key).clone()));
    }
    Ok(found)
}

/// Let jobs of paused queues leave the front of this line while there are many. They wait in their queues like any due
/// job, and are parked again after the pause, by their due times. The key is locked. Returns the jobs, and whether
/// there may be more.
pub(crate) async fn let_paused_leave(
    conn: &mut Session<'_>,
    key: &LimitKey,
) -> Result<(Vec<DueJob>, bool), sqlx::Error> {
    let (front, states) = (front_of_line(), BTreeMap::from([(key.clone(), KeyState::unread())]));
    let (mut all, began) = (Vec::new(), Instant::now());
    while began.elapsed() < LEAVING {
        let sql = format!("SELECT w.limit_name, w.limit_key, w.job_id, w.due_at FROM {front} WHERE {PAUSED}");
        let mut script = Script::as_text();
        script.push(sql, vec![Value::from(key.limit.as_str()), Value::from(key.key.as_bytes())]);
        let rows: Vec<MySqlRow> = script.run(conn).await?.into_iter().flat_map(|step| step.rows).collect();
        if rows.len() <= MAX_PAUSED_IN_FRONT {
            return Ok((all, false));
        }
        let mut are_all_locked = true;
        for rows in rows.chunks(MAX_AT_ONCE) {
            let of_row = |row: &MySqlRow| Ok((row.try_get("job_id")?, (key_in(row)?, row.try_get("due_at")?)));
            let waiting: Parked = rows.iter().map(of_row).collect::<Result<_, sqlx::Error>>()?;
            let found = ParkedJobs::lock(conn, &waiting).await?;
            are_all_locked &= found.is_empty();
            all.extend(let_go_of(conn, found, &states, &[]).await?);
        }
        if are_all_locked {
            return Ok((all, false));
        }
    }
    Ok((all, true))
}

/// The keys and the due times of parked jobs.
type Parked = BTreeMap<Uuid, (LimitKey, Timestamp)>;

/// Read the first parked jobs of these keys, as many of each as are wanted.
async fn first_parked(conn: &mut Session<'_>, wanted: &[(&LimitKey, usize)]) -> Result<Parked, sqlx::Error> {
    let one = format!(
        "(SELECT limit_name, limit_key, job_id, due_at FROM limit_waits FORCE INDEX (limit_waits_line) \
         WHERE limit_name = ? AND limit_key = ? AND {NOT_PAUSED} ORDER BY due_at, job_id LIMIT ?)"
    );
    let mut script = Script::as_text();
    let values = wanted.iter().flat_map(|(key, most)| {
        let most = i64::try_from(*most).unwrap_or(0);
        [Value::from(key.limit.as_str()), Value::from(key.key.as_bytes()), most.into()]
    });
    script.push(vec![one.as_str(); wanted.len()].join(" UNION ALL "), values.collect());
    let found: Vec<MySqlRow> = script.run(conn).await?.into_iter().flat_map(|step| step.rows).collect();
    found.iter().map(|row| Ok((row.try_get("job_id")?, (key_in(row)?, row.try_get("due_at")?)))).collect()
}

/// Parked jobs that are to be let go.
#[derive(Default)]
struct ParkedJobs {
    /// Those whose rows in `owed` this transaction has locked, with keys and due times.
    waiting: Parked,
    jobs: Vec<DueJob>,
    /// Those that do not wait any more.
    over: Vec<Uuid>,
    /// Those that another session locks. They stay parked: a runner that was suspended with the lock of one of them
    /// must not hold up the other jobs of its key.
    left: Parked,
}

impl ParkedJobs {
    async fn lock(conn: &mut Session<'_>, waiting: &Parked) -> Result<Self, sqlx::Error> {
        let mut found = Self::default();
        let ids: Vec<Uuid> = waiting.keys().copied().collect();
        if ids.is_empty() {
            return Ok(found);
        }
        let mut script = Script::as_text();
        let (list, values) = script.list(&ids);
        let locked = "SELECT id, queue, priority, execute_at, kind FROM owed FORCE INDEX (PRIMARY) WHERE id IN";
        script.push(format!("{locked} {list} ORDER BY id FOR UPDATE{SKIP_LOCKED}"), values);
        let rows: Vec<MySqlRow> = script.run(conn).await?.into_iter().flat_map(|step| step.rows).collect();
        let mut missing = waiting.clone();
        for row in &rows {
            let id: Uuid = row.try_get("id")?;
            let Some(of_line) = missing.remove(&id) else { continue };
            if is_parked(row.try_get("execute_at")?) {
                found.jobs.push(due_job(row)?);
                found.waiting.insert(id, of_line);
            } else {
                found.over.push(id);
            }
        }
        if missing.is_empty() {
            return Ok(found);
        }
        let ids: Vec<Uuid> = missing.keys().copied().collect();
        let mut script = Script::as_text();
        let (list, values) = script.list(&ids);
        script.push(format!("SELECT id FROM owed FORCE INDEX (PRIMARY) WHERE id IN {list}"), values);
        let rows: Vec<MySqlRow> = script.run(conn).await?.into_iter().flat_map(|step| step.rows).collect();
        let unfinished: BTreeSet<Uuid> = rows.iter().map(|row| row.try_get("id")).collect::<Result<_, _>>()?;
        for (id, of_line) in missing {
            if unfinished.contains(&id) {
                found.left.insert(id, of_line);
            } else {
                found.over.push(id);
            }
        }
        Ok(found)
    }

    /// Lock the next parked jobs of these keys in place of those that another session locks.
    async fn look_behind(&mut self, conn: &mut Session<'_>, wanted: &[(&LimitKey, usize)]) -> Result<(), sqlx::Error> {
        for (key, room) in wanted {
            let mut missing = self.left.values().filter(|(of, _)| of == *key).count();
            if missing == 0 {
                continue;
            }
            let line = first_parked(conn, &[(*key, room + MAX_PASSED_OVER)]).await?;
            let known =
                |id: &Uuid| self.waiting.contains_key(id) || self.left.contains_key(id) || self.over.contains(id);
            let mut line: Vec<(Uuid, (LimitKey, Timestamp))> = line.into_iter().filter(|(id, _)| !known(id)).collect();
            line.sort_by_key(|(id, (_, due_at))| (*due_at, *id));
            for next in line.chunks(BEHIND) {
                if missing == 0 {
                    break;
                }
                let mut next = Self::lock(conn, &next.iter().cloned().collect()).await?;
                next.jobs.sort_by_key(|job| next.waiting.get(&job.id.uuid()).map(|(_, due_at)| (*due_at, job.id)));
                for job in next.jobs.split_off(missing.min(next.jobs.len())) {
                    next.waiting.remove(&job.id.uuid());
                }
                missing -= next.jobs.len();
                self.waiting.append(&mut next.waiting);
                self.jobs.append(&mut next.jobs);
                self.over.append(&mut next.over);
            }
        }
        Ok(())
    }

    /// Return whether no job is to be let go, and none has ended in its line.
    fn is_empty(&self) -> bool {
        self.jobs.is_empty() && self.over.is_empty()
    }
}

/// Mix the jobs of different keys of fair limits by chance. Those of one key keep their order.
///
/// In the order of their due times, the keys whose jobs have waited longest would be in front whenever jobs of several
/// keys are let go together. Then other keys get less than their weights: on four workers, one job for three and a half
/// of a key with the weight 3. Any other fixed order is in favour of some key too.
fn mix_keys(jobs: &mut [DueJob], waiting: &Parked, limits: &[LimitSetting]) {
    let is_fair = |key: &LimitKey| limits.iter().any(|set| set.limit.fair && set.limit.name == key.limit);
    let key_of = |job: &DueJob| waiting.get(&job.id.uuid()).map(|(key, _)| key).filter(|key| is_fair(key));
    let mut places: BTreeMap<Option<&LimitKey>, Vec<u64>> = BTreeMap::new();
    for job in jobs.iter() {
        // The end of an id is random.
        places.entry(key_of(job)).or_default().push(job.id.uuid().as_u64_pair().1 & 0xffff_ffff);
    }
    if places.len() < 2 {
        return;
    }
    for of_key in places.values_mut() {
        of_key.sort_unstable_by(|one, other| other.cmp(one));
    }
    let by_job: BTreeMap<Uuid, Option<u64>> =
        jobs.iter().map(|job| (job.id.uuid(), places.get_mut(&key_of(job)).and_then(Vec::pop))).collect();
    jobs.sort_by_key(|job| by_job.get(&job.id.uuid()).copied());
}

/// Give these parked jobs due times, and keep slots for them.
async fn let_go_of(
    conn: &mut Session<'_>,
    found: ParkedJobs,
    states: &BTreeMap<LimitKey, KeyState>,
    limits: &[LimitSetting],
) -> Result<Vec<DueJob>, sqlx::Error> {
    let ParkedJobs { waiting, mut jobs, over, .. } = found;
    // In the order in which they were due, so that the first one gets the first turn.
    jobs.sort_by_key(|job| waiting.get(&job.id.uuid()).map(|(_, due_at)| (*due_at, job.id)));
    let mut too_early: BTreeSet<Uuid> = BTreeSet::new();
    let mut turns: BTreeMap<&LimitKey, i64> = BTreeMap::new();
    let mut kept: Vec<(&LimitKey, Uuid, Timestamp)> = Vec::with_capacity(jobs.len());
    for job in &mut jobs {
        let Some((key, due_at)) = waiting.get(&job.id.uuid()) else { continue };
        let (Some(state), bounds) = (states.get(key), KeyBounds::find(limits, key)) else { continue };
        job.execute_at = match state.turn(bounds, 0) {
            None => *due_at,
            Some(_) => {
                let turn = turns.entry(key).or_insert(state.kept);
                *turn += 1;
                let at = state.turn(bounds, *turn - 1).unwrap_or(*due_at);
                if at > state.now + FURTHEST_TURN {
                    too_early.insert(job.id.uuid());
                    continue;
                }
                ceil_ms(at).max(*due_at)
            }
        };
        if bounds.is_bounded() {
            kept.push((key, job.id.uuid(), job.execute_at.max(state.now) + KEPT_FOR));
        }
    }
    jobs.retain(|job| !too_early.contains(&job.id.uuid()));
    mix_keys(&mut jobs, &waiting, limits);
    // Also the rows of jobs that do not wait any more.
    let ids: Vec<Uuid> = jobs.iter().map(|job| job.id.uuid()).chain(over).collect();
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let mut script = Script::as_text();
    // The timelines of these jobs show how long they waited. A job that was parked several times before its attempt has
    // one row, so the number of rows is bounded by the number of attempts. It may have been parked again with a turn of a
    // rate as its due time, which is later than the time at which it is due.
    let (list, values) = script.list(&ids);
    script.push(
        format!(
            "INSERT INTO limit_holds (job_id, attempt, limit_name, limit_key, due_at, parked_at, released_at) \
             SELECT w.job_id, o.attempt + 1, w.limit_name, w.limit_key, w.due_at, w.parked_at, UTC_TIMESTAMP(6) \
             FROM limit_waits w FORCE INDEX (PRIMARY) STRAIGHT_JOIN owed o FORCE INDEX (PRIMARY) ON o.id = w.job_id \
             WHERE w.job_id IN {list} AND w.parked_at IS NOT NULL \
             ON DUPLICATE KEY UPDATE due_at = LEAST(limit_holds.due_at, VALUES(due_at)), \
             released_at = VALUES(released_at)"
        ),
        values,
    );
    let (list, values) = script.list(&ids);
    let sql = "DELETE w FROM limit_waits w FORCE INDEX (PRIMARY) WHERE w.job_id IN";
    script.push(format!("{sql} {list}"), values);
    if !jobs.is_empty() {
        let mut values: Vec<Value<'_>> =
            jobs.iter().flat_map(|job| [Value::from(job.id.uuid()), job.execute_at.into()]).collect();
        let (list, of_ids) = script.list(&jobs.iter().map(|job| job.id.uuid()).collect::<Vec<_>>());
        values.extend(of_ids);
        let whens = "WHEN ? THEN CAST(? AS DATETIME(3)) ".repeat(jobs.len());
        script.push(
            format!("UPDATE owed FORCE INDEX (PRIMARY) SET execute_at = CASE id {whens}END WHERE id IN {list}"),
            values,
        );
    }
    if !kept.is_empty() {
        let insert = [
            "INSERT INTO limit_slots (limit_name, limit_key, job_id, kept_until) VALUES",
            "(?,?,?,?)",
            "ON DUPLICATE KEY UPDATE kept_until = VALUES(kept_until)",
        ];
        script.insert(
            insert,
            &kept,
            |_| 400,
            |&(key, id, until), values| {
                let name = key.limit.as_str();
                values.extend([Value::from(name), Value::from(key.key.as_bytes()), id.into(), until.into()]);
            },
        );
    }
    script.run(conn).await?;
    Ok(jobs)
}

/// The beginning of a statement that deletes slots of jobs, up to their list. Only this form of DELETE takes the hint.
/// Without it, MySQL reads the whole table while that is small, and waits for the slots of jobs whose keys others lock.
pub(crate) const DELETE_SLOTS: &str = "DELETE s FROM limit_slots s FORCE INDEX (limit_slots_job) WHERE s.job_id IN";

/// Slots of jobs, by their keys.
pub(crate) type Slots<'k> = [(&'k LimitKey, Vec<Uuid>)];

/// Return the slots of these jobs at these keys.
pub(crate) fn slots_by_key<'k>(
    of_jobs: impl IntoIterator<Item = (Uuid, &'k [LimitKey])>,
) -> Vec<(&'k LimitKey, Vec<Uuid>)> {
    let mut slots: BTreeMap<&'k LimitKey, Vec<Uuid>> = BTreeMap::new();
    for (id, keys) in of_jobs {
        for key in keys {
            slots.entry(key).or_default().push(id);
        }
    }
    slots.into_iter().collect()
}

/// Build the condition that a row of `limit_slots s` is one of these slots, and the values in it.
fn is_among<'a>(script: &Script<'a>, slots: &Slots<'a>) -> (String, Vec<Value<'a>>) {
    let (mut any, mut values) = (Vec::with_capacity(slots.len()), Vec::new());
    for (key, ids) in slots {
        let (list, of_ids) = script.list(ids);
        any.push(format!("(s.limit_name = ? AND s.limit_key = ? AND s.job_id IN {list})"));
        values.extend([Value::from(key.limit.as_str()), Value::from(key.key.as_bytes())]);
        values.extend(of_ids);
    }
    (any.join(" OR "), values)
}

/// Keys of which one statement reads or deletes slots.
const KEYS_AT_ONCE: usize = 64;

/// Add the steps that delete those of these slots for which a condition holds. `and` is empty, or begins with AND.
///
/// A slot at any other key stays. A session that has locked that key may be making it, and this must not wait for it.
/// Or a claim has just made it for a new attempt of a job: a job whose limits have changed since its last attempt
/// counts under other keys.
pub(crate) fn delete_slots_steps<'a>(script: &mut Script<'a>, slots: &Slots<'a>, and: &str) {
    for slots in slots.chunks(KEYS_AT_ONCE) {
        let (any, values) = is_among(script, slots);
        script.push(format!("DELETE s FROM limit_slots s FORCE INDEX (PRIMARY) WHERE ({any}){and}"), values);
    }
}

/// Delete those of these slots whose jobs do not execute, and those that were kept for long enough. Their keys are
/// locked, so none of the jobs gets one of these slots meanwhile. Slots of the jobs at other keys are left to a sweep.
pub(crate) async fn free_slots_of(conn: &mut Session<'_>, slots: &Slots<'_>) -> Result<(), sqlx::Error> {
    let ids: BTreeSet<Uuid> = slots.iter().flat_map(|(_, ids)| ids.iter().copied()).collect();
    let (ids, mut executing): (Vec<Uuid>, BTreeSet<Uuid>) = (ids.into_iter().collect(), BTreeSet::new());
    for ids in ids.chunks(MAX_ROWS) {
        let mut script = Script::as_text();
        let (list, values) = script.list(ids);
        script.push(
            format!("SELECT id FROM owed FORCE INDEX (PRIMARY) WHERE state = 'executing' AND id IN {list}"),
            values,
        );
        for row in script.run(conn).await?.iter().flat_map(|step| &step.rows) {
            executing.insert(row.try_get("id")?);
        }
    }
    let ended = slots.iter().map(|(key, ids)| {
        let ended: Vec<Uuid> = ids.iter().copied().filter(|id| !executing.contains(id)).collect();
        (*key, ended)
    });
    let ended: Vec<(&LimitKey, Vec<Uuid>)> = ended.filter(|(_, ids)| !ids.is_empty()).collect();
    if ended.is_empty() {
        return Ok(());
    }
    let and = format!(
        " AND (s.kept_until IS NULL OR s.kept_until <= UTC_TIMESTAMP(6) \
         OR s.kept_until > UTC_TIMESTAMP(6) + INTERVAL {KEPT_AT_MOST_S} SECOND)"
    );
    let mut script = Script::as_text();
    delete_slots_steps(&mut script, &ended, &and);
    script.run(conn).await.map(drop)
}

/// Build the condition that a slot of `limit_slots s` is kept in vain: its job, which is `owed o` if it is unfinished,
/// has ended, or a client has put it off. A job that was let go is due five seconds before the end of the time for
/// which its slot is kept, or earlier.
pub(crate) fn kept_in_vain() -> String {
    format!("(o.id IS NULL OR s.kept_until < o.execute_at + INTERVAL {} SECOND)", KEPT_FOR.num_seconds())
}

/// Delete those of these slots that are kept in vain. Their keys are locked, so none of them lets a job go meanwhile.
pub(crate) async fn free_slots_kept_in_vain(conn: &mut Session<'_>, slots: &Slots<'_>) -> Result<(), sqlx::Error> {
    for slots in slots.chunks(KEYS_AT_ONCE) {
        let mut script = Script::as_text();
        let (any, values) = is_among(&script, slots);
        let sql = format!(
            "SELECT s.limit_name, s.limit_key, s.job_id FROM limit_slots s FORCE INDEX (PRIMARY) \
             LEFT JOIN owed o FORCE INDEX (PRIMARY) ON o.id = s.job_id \
             WHERE ({any}) AND s.kept_until IS NOT NULL AND {}",
            kept_in_vain()
        );
        script.push(sql, values);
        let mut in_vain: BTreeMap<LimitKey, Vec<Uuid>> = BTreeMap::new();
        for row in script.run(conn).await?.iter().flat_map(|step| &step.rows) {
            in_vain.entry(key_in(row)?).or_default().push(row.try_get("job_id")?);
        }
        if in_vain.is_empty() {
            continue;
        }
        let in_vain: Vec<(&LimitKey, Vec<Uuid>)> = in_vain.iter().map(|(key, ids)| (key, ids.clone())).collect();
        let mut script = Script::as_text();
        delete_slots_steps(&mut script, &in_vain, " AND s.kept_until IS NOT NULL");
        script.run(conn).await?;
    }
    Ok(())
}

/// Read when those of these jobs were let go for which slots are kept, or when their turns of a rate come.
pub(crate) async fn let_go_at(conn: &mut Session<'_>, ids: &[Uuid]) -> Result<BTreeMap<Uuid, Timestamp>, sqlx::Error> {
    let mut script = Script::as_text();
    let (list, values) = script.list(ids);
    let sql = format!(
        "SELECT job_id, kept_until FROM limit_slots FORCE INDEX (limit_slots_job) \
         WHERE job_id IN {list} AND kept_until > UTC_TIMESTAMP(6)"
    );
    script.push(sql, values);
    let mut let_go: BTreeMap<Uuid, Timestamp> = BTreeMap::new();
    for row in script.run(conn).await?.iter().flat_map(|step| &step.rows) {
        let at = row.try_get::<Timestamp, _>("kept_until")? - KEPT_FOR;
        let last = let_go.entry(row.try_get("job_id")?).or_insert(at);
        *last = at.max(*last);
    }
    Ok(let_go)
}

/// When a job of `owed o` that was let go was due, apart from the turn of a rate. NULL if it was not let go since its
/// last attempt, or if a binary from before `limit_holds` let it go.
pub(crate) const HELD_DUE_AT: &str = "(SELECT h.due_at FROM limit_holds h FORCE INDEX (PRIMARY) WHERE h.job_id = o.id \
                                      AND h.attempt = o.attempt + 1)";

/// Do what [`HELD_DUE_AT`] does. A job without a row was due by now.
const DUE_APART: &str = "COALESCE((SELECT h.due_at FROM limit_holds h FORCE INDEX (PRIMARY) WHERE h.job_id = o.id \
                         AND h.attempt = o.attempt + 1), UTC_TIMESTAMP(3))";

/// Park jobs of these keys again that were let go for a turn further ahead than a moment. After a change of a limit their
/// turns may come earlier. The keys are locked.
///
/// Each of them keeps the due time with which it was parked before. The one of its acceptance may be days earlier or
/// later: an attempt has failed since, or a client has made the job due.
///
/// A job whose due time is not that of its turn any more is left alone: a client has put it off meanwhile, and a job must
/// not start before the due time that its client was told. One whose row another session locks keeps its turn.
pub(crate) async fn take_back(conn: &mut Session<'_>, keys: &BTreeSet<LimitKey>) -> Result<(), sqlx::Error> {
    let keys: Vec<&LimitKey> = keys.iter().collect();
    for keys in keys.chunks(64) {
        let (any, mut values) = any_of("s.", keys);
        values.insert(0, parked_until().into());
        let mut script = Script::as_text();
        let sql = format!(
            "SELECT s.limit_name, s.limit_key, o.id, o.queue, {DUE_APART} AS due_at FROM limit_slots s \
             FORCE INDEX (PRIMARY) STRAIGHT_JOIN owed o ON o.id = s.job_id AND o.state IN ('waiting', 'retrying') \
             AND o.execute_at < ? AND o.execute_at > UTC_TIMESTAMP(6) + INTERVAL 1 SECOND \
             WHERE s.kept_until = o.execute_at + INTERVAL {} SECOND AND ({any}) ORDER BY o.id FOR UPDATE{SKIP_LOCKED}",
            KEPT_FOR.num_seconds()
        );
        script.push(sql, values);
        let found: Vec<MySqlRow> = script.run(conn).await?.into_iter().flat_map(|step| step.rows).collect();
        let mut far: Vec<(LimitKey, Uuid, String, Timestamp)> = Vec::with_capacity(found.len());
        for row in &found {
            far.push((key_in(row)?, row.try_get("id")?, row.try_get("queue")?, row.try_get("due_at")?));
        }
        if far.is_empty() {
            continue;
        }
        let parked: Vec<ToPark<'_>> = far
            .iter()
            .map(|(key, id, queue, due_at)| ToPark { id: *id, key, queue, due_at: (*due_at).into() })
            .collect();
        let mut script = Script::as_text();
        park_step(&mut script, &parked);
        park_owed(&mut script, &parked);
        script.run(conn).await?;
    }
    Ok(())
}

/// Add the steps that give the `owed` rows of these jobs the due time of parked jobs, and free slots that were kept for
/// them.
pub(crate) fn park_owed<'a>(script: &mut Script<'a>, parked: &[ToPark<'a>]) {
    let ids: Vec<Uuid> = parked.iter().map(|job| job.id).collect();
    let (list, of_ids) = script.list(&ids);
    let mut values = vec![Value::from(parked_until())];
    values.extend(&of_ids);
    script.push(format!("UPDATE owed FORCE INDEX (PRIMARY) SET execute_at = ? WHERE id IN {list}"), values);
    script.push(format!("{DELETE_SLOTS} {list}"), of_ids);
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;

    fn at(ms: i64) -> Timestamp {
        DateTime::from_timestamp_millis(1_700_000_000_000 + ms).unwrap()
    }

    fn quiet(now: Timestamp) -> KeyState {
        let (next_start, followed, version) = (None, None, Some(1));
        KeyState { running: 0, kept: 0, first_due: None, next_start, followed, version, gate: None, now }
    }

    fn rate(starts: u32, period_ms: u32, burst: u32) -> KeyBounds {
        let rate = Some(Rate { starts, period_ms, burst });
        KeyBounds { bounds: Bounds { rate, ..Bounds::default() }, counted: true, ..KeyBounds::default() }
    }

    /// Ask at these moments, and return the moments of the starts.
    fn starts(bounds: KeyBounds, moments: impl Iterator<Item = i64>) -> Vec<i64> {
        let mut state = quiet(at(0));
        let mut started = Vec::new();
        for moment in moments {
            state.now = at(moment);
            if state.admit(bounds, None) {
                started.push(moment);
            }
        }
        started
    }

    #[test]
    fn in_no_window_start_more_than_the_rate_and_its_burst() {
        for (starts_in_period, period_ms, burst) in [(10, 1_000, 0), (10, 1_000, 3), (7, 100, 1), (1, 500, 5)] {
            let bounds = rate(starts_in_period, period_ms, burst);
            // Every millisecond, after a quiet time, and with a quiet time in between.
            let moments = (0..4_000).chain(9_000..13_000).flat_map(|ms| [ms; 5]);
            let started = starts(bounds, moments);
            let most = started
                .iter()
                .map(|from| started.iter().filter(|at| (*from..from + i64::from(period_ms)).contains(*at)).count());
            let most = most.max().unwrap_or(0);
            assert!(most <= (starts_in_period + burst) as usize, "{most} of {starts_in_period} + {burst}");
            let even = 2 * 4_000 * i64::from(starts_in_period) / i64::from(period_ms);
            assert!(started.len() as i64 >= even, "{} of {even}", started.len());
        }
    }

    #[test]
    fn a_clock_that_is_set_back_or_a_faster_rate_holds_no_key_up() {
        let bounds = rate(10, 1_000, 2);
        let mut state = quiet(at(3_600_000));
        while state.admit(bounds, None) {}
        // An hour back.
        state.now = at(0);
        assert!(state.admit(bounds, None));
        assert!(!state.admit(bounds, None), "no burst of its own");
        state.now = at(100);
        assert!(state.admit(bounds, None));
        // From one in an hour to ten in a second.
        let slow = rate(1, 3_600_000, 0);
        let mut state = quiet(at(0));
        assert!(state.admit(slow, None) && !state.admit(slow, None));
        assert!(state.admit(bounds, None));
    }

    #[test]
    fn in_no_window_with_a_change_start_more_than_the_looser_rate_and_burst() {
        let rates = [(12, 2_000, 4), (3, 2_000, 1), (2, 2_000, 8), (6, 2_000, 0), (1, 10_000, 0), (100, 1_000, 50)];
        for (before, after) in rates.iter().flat_map(|before| rates.iter().map(move |after| (before, after))) {
            let [of_before, of_after] =
                [before, after].map(|(starts, period_ms, burst)| rate(*starts, *period_ms, *burst));
            for changed in [0, 1, 400, 1_999, 5_000] {
                let of_after = KeyBounds { changed_at: at(changed), ..of_after };
                let (mut state, mut started) = (quiet(at(0)), Vec::new());
                for ms in 0..30_000 {
                    state.now = at(ms);
                    while state.admit(if ms < changed { of_before } else { of_after }, None) {
                        started.push(ms);
                    }
                }
                let period = i64::from(before.1.min(after.1));
                let until = |from: &i64| started.partition_point(|at| *at < from + period);
                let most = started.iter().enumerate().map(|(place, from)| until(from) - place).max().unwrap_or(0);
                let allowed = before.0.max(after.0) + before.2.max(after.2);
                assert!(most <= allowed as usize, "{most} from {before:?} to {after:?} at {changed}, {allowed} may");
                // The new rate is used up, from a period after the change on.
                let from = changed + i64::from(after.1);
                let later = started.iter().filter(|at| **at >= from).count() as i64;
                let even = (30_000 - from) * i64::from(after.0) / i64::from(after.1);
                assert!(later >= even - 1, "{later} from {before:?} to {after:?} at {changed}, {even} may");
            }
        }
    }

    #[test]
    fn limits_that_were_read_earlier_and_arrive_later_are_not_followed() {
        let known = KnownLimits::default();
        let limit = Limit {
            name: "l".parse().unwrap(),
            kind: None,
            queue: None,
            shared_by: SharedBy::Key,
            fair: false,
            breaker: None,
            bounds: Bounds { concurrency: Some(1), ..Bounds::default() },
            overrides: BTreeMap::new(),
        };
        let changed = (at(0), Actor::tickr());
        let set = LimitSetting { limit, counted: true, changed, version: 1, breaker_since: None, share: None };
        let newer = Arc::new(vec![set]);
        let earlier = Instant::now();
        assert!(!known.concern(None));
        known.follow(&newer, earlier + Duration::from_secs(1));
        known.follow(&Arc::default(), earlier);
        assert!(known.now().len() == 1 && known.concern(None));
        known.follow(&Arc::default(), earlier + Duration::from_secs(2));
        assert!(known.now().is_empty() && !known.concern(None));
    }

    #[test]
    fn keys_of_a_fair_limit_divide_the_workers_by_their_weights() {
        for workers in [1, 2, 3, 5, 8, 10, 12, 16, 31, 64, 100, 250, 1_024, 5_000] {
            for weights in [vec![1], vec![1, 1], vec![3, 1], vec![3, 1, 1], vec![7, 3, 2], vec![20, 1], vec![1; 40]] {
                let (sum, heaviest) = (weights.iter().sum::<u32>(), weights.iter().copied().max().unwrap());
                let share = FairShare { workers, weights: sum.into(), heaviest: heaviest.into(), least_times: 0 };
                let shares: Vec<u32> = weights.iter().map(|weight| share.of(*weight)).collect();
                let times = shares[0] / weights[0];
                assert!(times >= 1, "{shares:?} of {workers} for {weights:?}");
                for (share, weight) in shares.iter().zip(&weights) {
                    assert_eq!(*share, times * weight, "{shares:?} of {workers} for {weights:?}");
                }
                // No worker waits for work, and the rounding adds less than one job for each unit of the weights.
                let all = u64::from(shares.iter().sum::<u32>());
                assert!(all > workers, "{shares:?} of {workers} for {weights:?}");
                let most = workers + (workers / 4).max(2) + u64::from(sum);
                assert!(all <= most, "{shares:?} of {workers} for {weights:?}");
            }
        }
        // The largest key has no more jobs on their way than a key may have.
        let share = FairShare { workers: 5_000, weights: 4, heaviest: 3, least_times: 0 };
        assert!(i64::from(share.of(3)) - 5_000 * 3 / 4 <= MAX_KEPT_AHEAD, "{}", share.of(3));
        // A key without waiting jobs, and one that has no rivals.
        let alone = FairShare { workers: 8, weights: 0, heaviest: 0, least_times: 0 };
        assert_eq!([alone.of(1), alone.of(3)], [10, 9]);
        let none_free = FairShare { workers: 0, weights: 0, heaviest: 0, least_times: 0 };
        assert_eq!([none_free.of(1), none_free.of(3)], [2, 3]);
    }

    #[test]
    fn a_key_that_may_not_use_its_part_of_the_workers_leaves_it_to_the_others() {
        // One of eight workers for the first key, and seven with two jobs more for the other.
        assert_eq!(FairShare::among(8, &[(1, Some(1)), (1, None)]).of(1), 9);
        // What the first key leaves is more than the second one may use.
        assert_eq!(FairShare::among(12, &[(1, Some(1)), (1, Some(5)), (1, None)]).of(1), 8);
        // No key may use its part.
        let share = FairShare::among(8, &[(1, Some(1)), (3, Some(2))]);
        assert_eq!([share.of(1), share.of(3)], [3, 9]);
        // A heavy key may use all that its own concurrency allows, and no worker is left without a job.
        for (workers, weight) in (8..=100).flat_map(|workers| (1..=10).map(move |weight| (workers, weight))) {
            for most in 1..=u32::try_from(workers).unwrap() {
                let share = FairShare::among(workers, &[(weight, Some(most)), (1, None)]);
                let (heavy, light) = (most.min(share.of(weight)), share.of(1));
                let seen = format!("{heavy} and {light} of {workers} for ({weight}, {most}) and 1");
                assert!(u64::from(heavy + light) >= workers, "{seen}");
                let part = u32::try_from(workers * u64::from(weight) / u64::from(weight + 1)).unwrap();
                assert!(heavy >= most.min(part), "{seen}");
            }
        }
        assert_eq!(FairShare::among(8, &[]), FairShare { workers: 8, weights: 0, heaviest: 0, least_times: 0 });
    }

    #[test]
    fn jobs_are_let_go_while_slots_and_turns_are_left() {
        let most = |concurrency| KeyBounds {
            bounds: Bounds { concurrency: Some(concurrency), ..Bounds::default() },
            counted: true,
            ..KeyBounds::default()
        };
        let mut state = quiet(at(0));
        assert_eq!(state.room(most(3)), 3);
        (state.running, state.kept) = (1, 1);
        assert_eq!(state.room(most(3)), 1);
        assert_eq!(state.room(most(1)), 0, "a lower limit stops no job");
        assert_eq!(state.room(KeyBounds { counted: false, ..most(3) }), 0);
        // A tenth of a second ahead.
        assert_eq!(state.room(rate(100, 1_000, 10)), 10);
        let (day_ms, mut slow) = (86_400_000, quiet(at(0)));
        assert_eq!(slow.room(rate(1, day_ms, 0)), 1);
        slow.start(rate(1, day_ms, 0));
        assert_eq!(slow.room(rate(1, day_ms, 0)), 0, "a day too early");
        slow.now = at(i64::from(day_ms) - 59_000);
        assert_eq!(slow.room(rate(1, day_ms, 0)), 1);
        assert_eq!(state.room(KeyBounds::default()), MAX_AT_ONCE);
    }
}
