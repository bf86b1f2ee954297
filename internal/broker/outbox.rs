//! Moves jobs from the outbox, where other programs requested them with a plain INSERT.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use async_recursion::async_recursion as boxed;
use chrono::TimeDelta;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use tokio::sync::watch;
use uuid::Uuid;

use crate::Broker;
use crate::draft::Draft;
use crate::object::Object;
use crate::other_versions::{LEFT_AT_MOST, another_may_read};
use tickr_handlers::Registry;
use tickr_job::{
    BatchId, Due, JobId, Name, NewJob, OnConflict, OnFailure, OnParentFailure, RetryRequest, Timestamp, TraceContext,
    UniqueUntil,
};
use tickr_store::{
    EnqueuedJob, KeyedMove, KeyedRow, NeededLock, OutboxRow, PrepareRow, PreparedRow, StoreError, WaitsFor,
};

/// Longest time between the time in the id of a row and its insertion.
const ID_TOLERANCE: TimeDelta = TimeDelta::days(1);

/// Time after which a row is tried again that has waited for a lock of another session, and the longest such time of a
/// row that has not waited. Until then no other row waits either.
const LOCKED_RESTS: Duration = Duration::from_secs(10);
/// Time after which a row is tried again for the first time that found a lock for which it did not wait.
const FIRST_REST: Duration = Duration::from_millis(250);
/// Time for the rows of a page that are moved one by one, but one of them at least. The rows of the next pages must not
/// wait for all of them.
const KEYED_TIME: Duration = Duration::from_millis(50);
/// Number of unique keys of rows that stay that a walk remembers at most.
const MAX_LEFT_KEYS: usize = 100_000;
/// Time after which a row that was locked is forgotten if no pass has met it again: another process has moved it.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);

/// Outcome for a page of the outbox.
#[derive(Clone, Debug, Default)]
pub struct OutboxPass {
    /// Number of rows that became jobs.
    pub moved: usize,
    /// Rows that were rejected, with the reasons.
    pub rejected: Vec<(Uuid, String)>,
    /// The id behind which the next page begins, if there may be one.
    pub next: Option<Uuid>,
    /// True if rows stay for want of time. They are moved when the pages are looked at again.
    pub unfinished: bool,
}

/// A row that found a lock of another session.
#[derive(Clone, Copy, Debug)]
struct LockedRow {
    /// When it is tried again.
    until: Instant,
    rest: Duration,
    /// Its place among the rows that wait: when it was first found locked, or when the rest after its last turn ends.
    /// Nothing if it has waited for its order key and needs no other lock.
    turn: Option<Instant>,
    /// True if it had its turn to wait.
    has_waited: bool,
    /// The last walk that has met it.
    met: u64,
}

impl LockedRow {
    /// Return what it waits for in its turn. In its first one it waits as a new row does.
    const fn waits_for(&self) -> WaitsFor {
        if self.has_waited { WaitsFor::NoOrderKey } else { WaitsFor::Everything }
    }
}

/// The rows of all pages that found locks of other sessions.
#[derive(Debug, Default)]
pub(crate) struct LockedRows {
    rows: HashMap<Uuid, LockedRow>,
    /// Number of walks through the pages of the outbox that have begun.
    walk: u64,
    /// The unique keys of the rows that this walk has left, as digests, each with the first row that has it. A row
    /// behind that one with the same unique key stays as well: of two, the later one may have to take the place of the
    /// other.
    left_keys: HashMap<u64, Uuid>,
}

impl LockedRows {
    /// Begin with the first page, or go on with the next one.
    fn walk_on(&mut self, is_first: bool) {
        if is_first {
            self.walk += 1;
            self.left_keys.clear();
        }
    }

    /// Note that a row with this unique key stays.
    fn leave_key(&mut self, row: Uuid, key: u64) {
        if self.left_keys.len() < MAX_LEFT_KEYS {
            let first = self.left_keys.entry(key).or_insert(row);
            *first = row.min(*first);
        }
    }

    /// Return whether a row with this unique key may be behind one that stays. If too many stay, each may.
    fn is_behind(&self, row: Uuid, key: u64) -> bool {
        self.left_keys.len() >= MAX_LEFT_KEYS || self.left_keys.get(&key).is_some_and(|first| *first < row)
    }

    /// Note that the rows of a page are still there.
    fn meet(&mut self, rows: impl Iterator<Item = Uuid>) {
        for row in rows {
            if let Some(known) = self.rows.get_mut(&row) {
                known.met = self.walk;
            }
        }
    }

    /// Return the row of all pages that was turned away longest. Another process may have moved one that neither this
    /// walk nor the last one has met.
    fn next_turn(&self, now: Instant) -> Option<Uuid> {
        let met = self.rows.iter().filter(|(_, row)| row.met + 1 >= self.walk);
        let due = met.filter_map(|(id, row)| Some((row.turn.filter(|turn| *turn <= now)?, *id)));
        due.min().map(|(_, id)| id)
    }

    /// Let a row that cannot take its turn come after the others.
    fn pass_turn(&mut self, row: Uuid, now: Instant) {
        if let Some(known) = self.rows.get_mut(&row) {
            known.turn = Some(now + LOCKED_RESTS);
        }
    }

    /// Let a row rest that is locked: for long if it had its turn to wait for more than an order key.
    fn note(&mut self, row: Uuid, waits_for: WaitsFor, needs_more: bool, now: Instant) {
        self.rows.retain(|_, before| now.saturating_duration_since(before.until) < FORGOTTEN_AFTER);
        let before = self.rows.get(&row).copied();
        let had_turn = waits_for != WaitsFor::Nothing;
        let rest = match before {
            _ if had_turn && needs_more => LOCKED_RESTS,
            Some(before) => (2 * before.rest).min(LOCKED_RESTS),
            None => FIRST_REST,
        };
        let turn = match before {
            _ if had_turn => needs_more.then_some(now + LOCKED_RESTS),
            Some(before) => before.turn,
            None => Some(now),
        };
        let has_waited = had_turn || before.is_some_and(|before| before.has_waited);
        self.rows.insert(row, LockedRow { until: now + rest, rest, turn, has_waited, met: self.walk });
    }
}

/// The locks of other sessions that rows of the outbox have found. Any number of rows may need one of them, and each
/// page may have rows that need others.
#[derive(Debug, Default)]
pub(crate) struct FoundLocks {
    /// Each with the time until which no row that needs it is tried, and how long that is.
    locks: HashMap<NeededLock, (Instant, Duration)>,
    /// The time until which no row waits for any lock. There was a wait in vain.
    rests_until: Option<Instant>,
}

impl FoundLocks {
    fn may_wait(&self, now: Instant) -> bool {
        self.rests_until.is_none_or(|until| until <= now)
    }

    /// Return whether one of these locks was found a moment ago.
    fn has_one_of(&self, needed: &[NeededLock], now: Instant) -> bool {
        needed.iter().any(|lock| self.locks.get(lock).is_some_and(|(until, _)| now < *until))
    }

    /// Note that a row has waited for seconds.
    fn rest(&mut self, now: Instant) {
        self.rests_until = Some(now + LOCKED_RESTS);
    }

    /// Note that a row was not moved because of this lock, and whether it has waited for it.
    fn note(&mut self, lock: NeededLock, waited: bool, now: Instant) {
        self.locks.retain(|_, (until, _)| now.saturating_duration_since(*until) < LOCKED_RESTS);
        let rest = match self.locks.get(&lock) {
            _ if waited => LOCKED_RESTS,
            Some((_, before)) => (2 * *before).min(LOCKED_RESTS),
            None => FIRST_REST,
        };
        self.locks.insert(lock, (now + rest, rest));
    }

    /// Note that a row was moved that needs these locks.
    fn forget(&mut self, needed: &[NeededLock]) {
        for lock in needed {
            self.locks.remove(lock);
        }
    }
}

/// Return what the row of this job may have to wait for, besides its order key. Each wait may cost seconds.
fn needed_locks(job: &NewJob) -> Vec<NeededLock> {
    let unique = job.unique_key.iter().map(|key| NeededLock::UniqueKey(job.kind.clone(), key.clone()));
    let parents = job.options.after.iter().copied().map(NeededLock::Parent);
    unique.chain(parents).chain(job.options.batch.map(NeededLock::Batch)).collect()
}

/// The keys of the job of a row. Rows that share one become jobs in their order.
struct RowKeys {
    order_key: Option<String>,
    /// The digest of the unique key.
    unique_key: Option<u64>,
}

impl RowKeys {
    fn of(job: &NewJob) -> Self {
        Self {
            order_key: job.options.order.as_ref().map(|order| order.key.to_string()),
            unique_key: job.unique_key.as_ref().map(|key| digest_of(&job.kind, key)),
        }
    }
}

/// Rows that come after others or stay, and hold up those behind them.
#[derive(Default)]
struct HeldRows {
    rows: HashSet<Uuid>,
    order_keys: HashSet<String>,
    unique_keys: HashSet<u64>,
}

impl HeldRows {
    fn add(&mut self, row: Uuid, keys: RowKeys) {
        self.rows.insert(row);
        self.order_keys.extend(keys.order_key);
        self.unique_keys.extend(keys.unique_key);
    }

    /// Return whether one of them holds up this row behind it: it has the same order key or unique key, or is a parent.
    fn hold_up(&self, row: Uuid, job: &NewJob, keys: &RowKeys) -> bool {
        keys.order_key.as_ref().is_some_and(|key| self.order_keys.contains(key))
            || keys.unique_key.is_some_and(|key| self.unique_keys.contains(&key))
            || has_parent_of(&self.rows, row, job)
    }
}

/// Put the rows that found a lock before behind the others, and with them those that they hold up.
fn locked_last(rows: Vec<(Uuid, NewJob)>, locked: &HashMap<Uuid, LockedRow>) -> Vec<(Uuid, NewJob)> {
    let (mut first, mut then) = (Vec::with_capacity(rows.len()), Vec::new());
    let mut later = HeldRows::default();
    for (row, job) in rows {
        let keys = RowKeys::of(&job);
        if locked.contains_key(&row) || later.hold_up(row, &job, &keys) {
            later.add(row, keys);
            then.push((row, job));
        } else {
            first.push((row, job));
        }
    }
    first.append(&mut then);
    first
}

/// Return whether one of these rows is a parent of the job of `row`. A parent behind the row does not count: two rows
/// could wait for each other.
fn has_parent_of(rows: &HashSet<Uuid>, row: Uuid, job: &NewJob) -> bool {
    let parents = job.options.after.iter().map(|parent| parent.uuid());
    parents.filter(|parent| *parent < row).any(|parent| rows.contains(&parent))
}

/// Return a digest of a unique key. Two that have the same one only wait for each other.
fn digest_of(kind: &Name, unique_key: &str) -> u64 {
    let mut digest = DefaultHasher::new();
    (kind.as_str(), unique_key).hash(&mut digest);
    digest.finish()
}

/// Return whether a wait in vain can only have been for the one lock of this list. Otherwise the lock that is found after
/// it may be merely busy, in front of the one that the row has waited for.
fn is_for_one_lock(needed: &[NeededLock], has_order_key: bool, waits_for: WaitsFor) -> bool {
    needed.len() == 1 && !(has_order_key && waits_for == WaitsFor::Everything)
}

/// The less common options of a row, as in the body of `POST /v1/jobs`.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RowOptions {
    delay_ms: Option<u64>,
    expires_at: Option<Timestamp>,
    expires_in_ms: Option<u64>,
    priority: Option<u8>,
    max_attempts: Option<u32>,
    timeout_ms: Option<u64>,
    #[serde(deserialize_with = "object_or_null")]
    retry: Option<RetryRequest>,
    unique_key: Option<String>,
    #[serde(deserialize_with = "list_or_null")]
    unique_fields: Vec<String>,
    on_conflict: Option<OnConflict>,
    unique_until: Option<UniqueUntil>,
    unique_for_ms: Option<u64>,
    max_wait_ms: Option<u64>,
    order_key: Option<String>,
    limit_key: Option<String>,
    on_failure: Option<OnFailure>,
    #[serde(deserialize_with = "list_or_null")]
    after: Vec<JobId>,
    on_parent_failure: Option<OnParentFailure>,
    batch: Option<BatchId>,
    #[serde(deserialize_with = "list_or_null")]
    tags: Vec<String>,
    #[serde(deserialize_with = "object_or_null")]
    trace: Option<RowTrace>,
}

/// Read an object. Null counts as left out.
fn object_or_null<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    Ok(Option::<Object<T>>::deserialize(deserializer)?.map(|Object(value)| value))
}

/// Read a list. Null counts as left out, as in the body of `POST /v1/jobs`.
fn list_or_null<'de, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RowTrace {
    traceparent: String,
    tracestate: Option<String>,
}

/// Make the job of a row, or say why it cannot become one.
fn prepare(registry: &Registry, row: OutboxRow) -> Result<NewJob, String> {
    if !is_job_id(row.id, row.created_at) {
        return Err("the id must be a UUIDv7 made within a day of the INSERT: it becomes the id of the job".to_owned());
    }
    let payload = RawValue::from_string(row.payload).map_err(|error| format!("the payload is not JSON: {error}"))?;
    let Object(options): Object<RowOptions> = match row.options.as_deref() {
        Some(text) => serde_json::from_str(text).map_err(|error| format!("the options cannot be read: {error}"))?,
        None => Object(RowOptions::default()),
    };
    // Its job would wait for its own end.
    if options.after.contains(&JobId::from_uuid(row.id)) {
        return Err("the row names itself in after: a parent is another job, or a row in front of it".to_owned());
    }
    let twice = |what: &str| Err(format!("give {what}, not both"));
    let due = match (row.execute_at, options.delay_ms) {
        (Some(_), Some(_)) => return twice("execute_at or delay_ms"),
        (Some(moment), None) => Due::At(moment),
        (None, Some(ms)) => Due::After(Duration::from_millis(ms)),
        (None, None) => Due::Now,
    };
    let expires = match (options.expires_at, options.expires_in_ms) {
        (Some(_), Some(_)) => return twice("expires_at or expires_in_ms"),
        (Some(moment), None) => Some(Due::At(moment)),
        (None, ms) => ms.map(|ms| Due::After(Duration::from_millis(ms))),
    };
    let draft = Draft {
        queue: row.queue,
        due,
        expires,
        priority: options.priority,
        max_attempts: options.max_attempts,
        timeout_ms: options.timeout_ms,
        retry: options.retry,
        unique_key: options.unique_key,
        unique_fields: options.unique_fields,
        on_conflict: options.on_conflict,
        unique_until: options.unique_until,
        unique_for_ms: options.unique_for_ms,
        max_wait_ms: options.max_wait_ms,
        order_key: options.order_key,
        limit_key: options.limit_key,
        on_failure: options.on_failure,
        after: options.after,
        on_parent_failure: options.on_parent_failure,
        batch: options.batch,
        tags: options.tags,
        trace: options.trace.and_then(|trace| TraceContext::parse(&trace.traceparent, trace.tracestate.as_deref())),
        ..Draft::new(row.kind, payload)
    };
    // An expiry may pass while the row waits. Then its job has expired, and the row was in order.
    let job = draft.prepare(registry, row.created_at).map_err(|invalid| invalid.in_full())?;
    Ok(NewJob { id: JobId::from_uuid(row.id), ..job })
}

/// Return whether an id of a row can be the id of a job: ids sort by the time of the request.
fn is_job_id(id: Uuid, created_at: Timestamp) -> bool {
    let made = id.get_timestamp().and_then(|time| {
        let (seconds, nanos) = time.to_unix();
        Timestamp::from_timestamp(i64::try_from(seconds).ok()?, nanos)
    });
    id.get_version_num() == 7
        && id.get_variant() == uuid::Variant::RFC4122
        && made.is_some_and(|made| (made - created_at).abs() <= ID_TOLERANCE)
}

impl Broker {
    /// Move a page of the outbox behind this id, and hint the jobs.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn move_outbox(&self, after: Option<Uuid>) -> Result<OutboxPass, StoreError> {
        let registry = Arc::clone(&self.registry);
        let readers = self.store.readers().await?;
        let prepare: PrepareRow = Arc::new(move |row, age| {
            let kind = row.kind.clone();
            match prepare(&registry, row) {
                Ok(job) => PreparedRow::Job(Box::new(job)),
                Err(_) if age < LEFT_AT_MOST && another_may_read(&readers, &registry, &kind) => PreparedRow::ForAnother,
                Err(reason) => PreparedRow::Unfit(reason),
            }
        });
        let locked = self.locked_rows(|locked| {
            locked.walk_on(after.is_none());
            locked.rows.keys().copied().collect()
        });
        let page = self.store.move_outbox_page(after, prepare, locked).await?;
        self.announce(&page.accepted);
        let moved = page.accepted.len() + page.repeated;
        let mut pass = OutboxPass { moved, rejected: page.rejected, next: page.next, unfinished: false };
        self.locked_rows(|locked| {
            page.left_keys.iter().for_each(|(row, kind, key)| locked.leave_key(*row, digest_of(kind, key)));
        });
        let failed = self.move_keyed_rows(page.keyed, &mut pass).await.err();
        metrics::counter!("tickr_outbox_moved_total").increment(pass.moved as u64);
        metrics::counter!("tickr_outbox_rejected_total").increment(pass.rejected.len() as u64);
        for (id, _) in &pass.rejected {
            // The reason may quote the payload, so it is logged at no level.
            tracing::warn!(row = %id, "a row of the outbox was rejected; GET /v1/outbox/rejected says why");
        }
        failed.map_or(Ok(pass), Err)
    }

    /// Move these rows one by one, in their order. A row stays behind one that stays with the same order key or unique
    /// key. Those that found a lock of another session come after the others for a while, and with them the rows that
    /// they hold up. Each wait in vain takes seconds in which no other row is moved. So after one, no row of any page
    /// waits for anything for a while. Of the rows that were locked before, only the one that was turned away longest
    /// waits, and for an order key only in its first turn. No new row waits before it. Rows that need a lock that was
    /// found are not tried for a while, because there may be any number of them. When the time of the page is up, the
    /// rows that are left stay for the next walk. Rows of later pages stay behind those that this page has left if they
    /// have the same unique keys. Those with their order keys, and their children, stay anyway.
    async fn move_keyed_rows(&self, rows: Vec<(Uuid, NewJob)>, pass: &mut OutboxPass) -> Result<(), StoreError> {
        let locked_before = self.locked_rows(|locked| {
            locked.meet(rows.iter().map(|(row, _)| *row));
            locked.rows.clone()
        });
        // A row that is to be tried again holds up those behind it, wherever they are in this list.
        let mut staying = HeldRows::default();
        let mut turn = self.next_turn();
        let mut failed = None;
        let (began, mut any_tried) = (Instant::now(), false);
        let mut rows = locked_last(rows, &locked_before).into_iter();
        while let Some((row, job)) = rows.next() {
            let keys = RowKeys::of(&job);
            let has_order_key = keys.order_key.is_some();
            let waits_for_row = staying.hold_up(row, &job, &keys)
                || keys.unique_key.is_some_and(|key| self.locked_rows(|locked| locked.is_behind(row, key)));
            let before = locked_before.get(&row);
            let now = Instant::now();
            let rests = before.is_some_and(|before| now < before.until);
            let needed = needed_locks(&job);
            let (may_wait, is_found) = self.found_locks(|locks| (locks.may_wait(now), locks.has_one_of(&needed, now)));
            // A row of any page that was turned away longer waits first. It may be one that is never free at once, so it
            // has its turn although other rows have found the same lock meanwhile.
            let may_wait = may_wait && turn.is_none_or(|turn| turn == row);
            let has_turn = may_wait && turn.is_some();
            let waits_for = match before {
                None if may_wait => WaitsFor::Everything,
                Some(before) if has_turn => before.waits_for(),
                _ => WaitsFor::Nothing,
            };
            if waits_for_row || !has_turn && (rests || is_found) {
                if has_turn {
                    // It cannot take its turn, so it is that of another one.
                    self.locked_rows(|locked| locked.pass_turn(row, now));
                    turn = self.next_turn();
                }
                self.leave(&mut staying, row, keys);
                continue;
            }
            if any_tried && began.elapsed() >= KEYED_TIME {
                pass.unfinished = true;
                self.leave_for_now(std::iter::once((row, job)).chain(rows));
                break;
            }
            any_tried = true;
            let moved = self.store.move_keyed_row(row, job, waits_for).await;
            let waited = moved.as_ref().is_ok_and(|moved| moved.waited);
            if waited {
                self.found_locks(|locks| locks.rest(Instant::now()));
            }
            match moved.map(|KeyedMove { row, .. }| row) {
                Ok(KeyedRow::Moved(receipts)) => {
                    debug_assert!(matches!(receipts.jobs[..], [EnqueuedJob::New(_) | EnqueuedJob::Existing(_)]));
                    self.announce_keyed(&receipts).await;
                    self.found_locks(|locks| locks.forget(&needed));
                    pass.moved += 1;
                    self.forget_locked(row);
                }
                Ok(KeyedRow::Repeated) => {
                    pass.moved += 1;
                    self.forget_locked(row);
                }
                Ok(KeyedRow::Rejected(reason)) => {
                    pass.rejected.push((row, reason));
                    self.forget_locked(row);
                }
                Ok(KeyedRow::Left) => {
                    self.leave(&mut staying, row, keys);
                    self.forget_locked(row);
                }
                Ok(KeyedRow::Locked(lock)) => {
                    if let Some(lock) = lock {
                        let waited = waited && is_for_one_lock(&needed, has_order_key, waits_for);
                        self.found_locks(|locks| locks.note(lock, waited, Instant::now()));
                    }
                    self.leave(&mut staying, row, keys);
                    self.locked_rows(|locked| locked.note(row, waits_for, !needed.is_empty(), Instant::now()));
                }
                // Without MySQL, none of the others can be moved either.
                Err(error) if error.is_transient() => return Err(error),
                Err(error) => {
                    self.leave(&mut staying, row, keys);
                    self.forget_locked(row);
                    failed = Some(error);
                }
            }
            if has_turn {
                turn = self.next_turn();
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Leave this row to the next walk, and with it those that it holds up in this page. In the next pages, those with
    /// its unique key stay.
    fn leave(&self, staying: &mut HeldRows, row: Uuid, keys: RowKeys) {
        if let Some(key) = keys.unique_key {
            self.locked_rows(|locked| locked.leave_key(row, key));
        }
        staying.add(row, keys);
    }

    /// Leave these rows to the next walk.
    fn leave_for_now(&self, rows: impl Iterator<Item = (Uuid, NewJob)>) {
        self.locked_rows(|locked| {
            for (row, job) in rows {
                if let Some(key) = &job.unique_key {
                    locked.leave_key(row, digest_of(&job.kind, key));
                }
            }
        });
    }

    fn next_turn(&self) -> Option<Uuid> {
        self.locked_rows(|locked| locked.next_turn(Instant::now()))
    }

    fn locked_rows<T>(&self, with: impl FnOnce(&mut LockedRows) -> T) -> T {
        with(&mut self.outbox_locked.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn found_locks<T>(&self, with: impl FnOnce(&mut FoundLocks) -> T) -> T {
        with(&mut self.outbox_locks.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn forget_locked(&self, row: Uuid) {
        self.locked_rows(|locked| locked.rows.remove(&row));
    }

    /// Let this process move the rows of the outbox now, and copy those of the outboxes of applications.
    pub fn nudge_outbox(&self) {
        self.move_outbox_soon();
        self.source_nudges.send_modify(|nudges| *nudges += 1);
    }

    /// Let this process move the rows of the outbox now, because some were copied to it.
    pub fn move_outbox_soon(&self) {
        self.outbox_nudge.notify_one();
    }

    /// Follow the nudges that concern the outboxes of applications. The value is their number.
    #[must_use]
    pub fn source_nudges(&self) -> watch::Receiver<u64> {
        self.source_nudges.subscribe()
    }

    /// Wait for the next nudge of the outbox.
    #[boxed]
    pub async fn outbox_nudged(&self) {
        self.outbox_nudge.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tickr_job::{JobOptions, Priority};

    #[test]
    fn no_row_waits_for_a_while_after_a_wait_and_only_those_that_need_the_found_lock_are_left() {
        let [a, b] = ["a", "b"].map(|key| NeededLock::UniqueKey("noop".parse().unwrap(), key.to_owned()));
        let (start, mut locks) = (Instant::now(), FoundLocks::default());
        let at = |ms: u64| start + Duration::from_millis(ms);
        assert!(locks.may_wait(at(0)));
        locks.rest(at(0));
        locks.note(a.clone(), true, at(0));
        assert_eq!([0, 9_999, 10_000].map(|ms| locks.may_wait(at(ms))), [false, false, true]);
        let has = |locks: &FoundLocks, lock: &NeededLock, ms| locks.has_one_of(std::slice::from_ref(lock), at(ms));
        assert_eq!([0, 9_999, 10_000].map(|ms| has(&locks, &a, ms)), [true, true, false]);
        assert!(!has(&locks, &b, 0));
        // One that is found without a wait is tried again soon, and then more and more rarely.
        let mut ms = 0;
        for rest in [250, 500, 1_000, 2_000, 4_000, 8_000, 10_000, 10_000] {
            locks.note(b.clone(), false, at(ms));
            assert_eq!([ms, ms + rest - 1, ms + rest].map(|ms| has(&locks, &b, ms)), [true, true, false], "{ms}");
            ms += rest;
        }
        locks.note(b.clone(), false, at(ms));
        locks.forget(std::slice::from_ref(&b));
        assert!(!has(&locks, &b, ms));
    }

    #[test]
    fn the_row_of_all_pages_that_was_turned_away_longest_is_the_next_to_wait() {
        let (start, mut locked) = (Instant::now(), LockedRows::default());
        let at = |ms: u64| start + Duration::from_millis(ms);
        let [frozen, busy, later] = [1, 2, 3].map(Uuid::from_u128);
        locked.walk = 1;
        locked.note(frozen, WaitsFor::Everything, true, at(0));
        assert_eq!([0, 9_999, 10_000].map(|ms| locked.next_turn(at(ms))), [None, None, Some(frozen)]);
        // Those that are found in its rest come first, also if they are tried again and again.
        locked.note(busy, WaitsFor::Nothing, true, at(3_000));
        locked.note(later, WaitsFor::Nothing, true, at(4_000));
        locked.note(busy, WaitsFor::Nothing, true, at(5_000));
        assert_eq!(locked.next_turn(at(10_000)), Some(busy));
        locked.note(busy, WaitsFor::Everything, true, at(15_000));
        assert_eq!(locked.next_turn(at(25_000)), Some(later));
        locked.pass_turn(later, at(25_000));
        assert_eq!(locked.next_turn(at(25_000)), Some(frozen));
        locked.note(frozen, WaitsFor::NoOrderKey, true, at(30_000));
        assert_eq!(locked.next_turn(at(40_000)), Some(busy));
        // One that no walk meets any more leaves its turn to the others.
        locked.walk = 2;
        locked.meet([frozen, later].into_iter());
        assert_eq!(locked.next_turn(at(40_000)), Some(busy));
        locked.walk = 3;
        assert_eq!(locked.next_turn(at(40_000)), Some(later));
    }

    #[test]
    fn a_row_that_is_first_found_locked_in_the_rest_waits_once_for_its_order_key() {
        let (start, mut locked) = (Instant::now(), LockedRows::default());
        let at = |ms: u64| start + Duration::from_millis(ms);
        let [ordered, unique] = [1, 2].map(Uuid::from_u128);
        locked.note(ordered, WaitsFor::Nothing, false, at(0));
        assert_eq!(locked.next_turn(at(0)), Some(ordered));
        assert_eq!(locked.rows[&ordered].waits_for(), WaitsFor::Everything);
        locked.note(ordered, WaitsFor::Everything, false, at(5_000));
        assert_eq!(locked.next_turn(at(600_000)), None);
        // It is tried again soon nevertheless.
        assert_eq!(locked.rows[&ordered].until, at(5_500));
        locked.note(unique, WaitsFor::Nothing, true, at(0));
        assert_eq!(locked.rows[&unique].waits_for(), WaitsFor::Everything);
        locked.note(unique, WaitsFor::Everything, true, at(5_000));
        assert_eq!(locked.rows[&unique].waits_for(), WaitsFor::NoOrderKey);
        assert_eq!(locked.next_turn(at(15_000)), Some(unique));
    }

    fn job(unique_key: &str) -> NewJob {
        NewJob {
            id: JobId::new(),
            kind: "noop".parse().unwrap(),
            queue: "default".parse().unwrap(),
            payload: RawValue::from_string("{}".to_owned()).unwrap(),
            due: Due::Now,
            expires: None,
            priority: Priority::NORMAL,
            max_attempts: 1,
            unique_key: Some(unique_key.to_owned()),
            on_conflict: OnConflict::Replace,
            host: None,
            options: JobOptions::default(),
            batch: None,
        }
    }

    #[test]
    fn rows_with_the_unique_key_of_a_locked_row_come_behind_it_and_no_others_do() {
        let rows = [1, 2, 3, 4, 5].map(Uuid::from_u128);
        let mut locked = LockedRows::default();
        locked.note(rows[1], WaitsFor::Nothing, true, Instant::now());
        let jobs = rows.into_iter().zip(["u", "u", "v", "u", "v"].map(job)).collect();
        let order: Vec<Uuid> = locked_last(jobs, &locked.rows).into_iter().map(|(row, _)| row).collect();
        assert_eq!(order, [rows[0], rows[2], rows[4], rows[1], rows[3]]);
    }

    #[test]
    fn rows_of_a_walk_stay_behind_the_first_row_with_their_unique_key_that_stays() {
        let [first, second, third] = [1, 2, 3].map(Uuid::from_u128);
        let mut locked = LockedRows::default();
        locked.walk_on(true);
        locked.leave_key(third, 7);
        locked.leave_key(second, 7);
        locked.walk_on(false);
        assert_eq!([first, second, third].map(|row| locked.is_behind(row, 7)), [false, false, true]);
        assert!(!locked.is_behind(third, 8));
        locked.walk_on(true);
        assert!(!locked.is_behind(third, 7));
    }

    #[test]
    fn a_lock_that_is_found_after_a_wait_is_blamed_for_it_if_the_row_can_have_waited_for_no_other() {
        let [a, b] = ["a", "b"].map(|key| NeededLock::UniqueKey("noop".parse().unwrap(), key.to_owned()));
        let one = std::slice::from_ref(&a);
        assert!(is_for_one_lock(one, false, WaitsFor::Everything));
        assert!(is_for_one_lock(one, true, WaitsFor::NoOrderKey));
        assert!(!is_for_one_lock(one, true, WaitsFor::Everything));
        assert!(!is_for_one_lock(&[a.clone(), b], false, WaitsFor::Everything));
    }

    #[test]
    fn the_id_of_a_row_is_one_of_a_job_made_about_now() {
        let now = chrono::Utc::now();
        assert!(is_job_id(Uuid::now_v7(), now));
        assert!(is_job_id(Uuid::now_v7(), now + TimeDelta::hours(23)));
        assert!(!is_job_id(Uuid::now_v7(), now + TimeDelta::hours(25)));
        assert!(!is_job_id(Uuid::new_v4(), now));
        assert!(!is_job_id(Uuid::nil(), now) && !is_job_id(Uuid::max(), now));
    }

    #[test]
    fn a_row_that_cannot_become_a_job_says_why() {
        let row = |payload: &str, options: Option<&str>| OutboxRow {
            id: Uuid::now_v7(),
            kind: "noop".to_owned(),
            payload: payload.to_owned(),
            queue: None,
            execute_at: None,
            options: options.map(str::to_owned),
            created_at: chrono::Utc::now(),
            copied_from: None,
        };
        let registry = Registry::new();
        let own_parent = row("{}", None);
        let own_parent = OutboxRow { options: Some(format!(r#"{{"after": ["{}"]}}"#, own_parent.id)), ..own_parent };
        for (row, part) in [
            (row("{", None), "the payload is not JSON"),
            (row("{}", Some("[")), "the options cannot be read"),
            (row("{}", Some("[]")), "expected an object"),
            (row("{}", Some("[600000]")), "expected an object"),
            (row("{}", Some(r#"{"retry": [[5]]}"#)), "expected an object"),
            (row("{}", Some(r#"{"trace": ["00-1", null]}"#)), "expected an object"),
            (row("{}", Some(r#"{"wait": 1}"#)), "unknown field `wait`"),
            (row("{}", Some(r#"{"expires_in_ms": 1, "expires_at": "2026-01-01T00:00:00Z"}"#)), "not both"),
            (OutboxRow { id: Uuid::new_v4(), ..row("{}", None) }, "UUIDv7"),
            (own_parent, "names itself in after"),
            (row("{}", None), "no kind is called \"noop\""),
        ] {
            let reason = prepare(&registry, row).unwrap_err();
            assert!(reason.contains(part), "{reason}");
        }
    }
}
