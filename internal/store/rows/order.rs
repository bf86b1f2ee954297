//! Rows of `order_keys` and `order_places`: jobs with the same order key run one at a time, in the order in which they
//! were accepted.
//!
//! Each job takes a place when it is accepted. The job at the head may run; every other one is *held*: its `owed` row
//! has the due time [`held_until`], so that claims, the scheduler and the index never meet it. When a job at the head
//! closes its place, the same transaction gives the next one its due time. Ids are made in the callers' processes,
//! whose clocks differ, so their order is not the order of acceptance.
//!
//! The row in `order_keys` is the lock of a key. A transaction locks these rows in key order, before any other row.
//! Only ticks and triggers lock their schedules first. No transaction that holds a key waits for a schedule.
//!
//! A place is open if it is not in front of the head and its flag is set. The flag is cleared when a job leaves its place
//! before it was at the head. To clear it when the head moves as well would cost each job one more write.

use std::collections::{BTreeMap, BTreeSet};

use chrono::DateTime;
use sqlx::Row;
use sqlx::mysql::MySqlRow;
use sqlx::query::Query;
use uuid::Uuid;

use crate::rows::owed::{DueJob, SKIP_LOCKED, due_job};
use crate::sql::batches::{MAX_ROWS, groups, in_list, padded, padded_len, placeholders, statement, tuples};
use crate::sql::error::is_locked_elsewhere;
use crate::sql::script::{Script, Value};
use crate::sql::session::Session;
use tickr_job::{JobId, NewJob, State, Timestamp, floor_ms};

/// The due time in `owed` of a job that is held: 9999-12-31. Bind it as [`naive_utc`](DateTime::naive_utc), because a
/// parameter of the type TIMESTAMP ends in 2038.
pub(crate) fn held_until() -> Timestamp {
    DateTime::from_timestamp_millis(253_402_214_400_000).unwrap_or(Timestamp::MAX_UTC)
}

/// Return the order key of a new job.
pub(crate) fn order_key_of(job: &NewJob) -> Option<&[u8]> {
    job.options.order.as_ref().map(|order| order.key.as_bytes())
}

/// Lock these keys, and make the rows of those that have none.
pub(crate) async fn lock_or_make(conn: &mut Session<'_>, keys: &BTreeSet<&[u8]>) -> Result<(), sqlx::Error> {
    let keys: Vec<&[u8]> = keys.iter().copied().collect();
    for group in groups(&keys) {
        // The update changes nothing, and locks a row that exists.
        let sql = format!(
            "INSERT INTO order_keys (order_key, head, tail) VALUES {} ON DUPLICATE KEY UPDATE tail = tail",
            tuples("(?,1,0)", group.len())
        );
        let query = group.iter().fold(statement(sql), |query, key| query.bind(*key));
        query.execute(&mut *conn).await?;
    }
    Ok(())
}

/// The jobs among those of a transaction that have an order key. The rows of their keys are locked.
#[derive(Debug, Default)]
pub(crate) struct OrderedJobs(BTreeMap<Uuid, Ordered>);

#[derive(Clone, Debug)]
struct Ordered {
    key: Vec<u8>,
    blocks: bool,
}

impl OrderedJobs {
    pub(crate) fn contains(&self, id: JobId) -> bool {
        self.0.contains_key(&id.uuid())
    }

    /// Return whether the job closes its place when it ends in this state.
    pub(crate) fn closes(&self, id: JobId, end: State) -> bool {
        end.is_end() && self.0.get(&id.uuid()).is_some_and(|ordered| end != State::Failed || !ordered.blocks)
    }
}

/// Lock the keys of these jobs.
pub(crate) async fn lock_keys_of(conn: &mut Session<'_>, ids: &[Uuid]) -> Result<OrderedJobs, sqlx::Error> {
    let ordered = keys_of(conn, ids).await?;
    lock(conn, &distinct(&ordered), "").await?;
    Ok(OrderedJobs(ordered))
}

/// Do what [`lock_keys_of`] does, for jobs that may take a place again, and make the rows of keys that have none.
pub(crate) async fn lock_or_make_keys_of(conn: &mut Session<'_>, ids: &[Uuid]) -> Result<OrderedJobs, sqlx::Error> {
    let ordered = keys_of(conn, ids).await?;
    lock_or_make(conn, &ordered.values().map(|job| job.key.as_slice()).collect()).await?;
    Ok(OrderedJobs(ordered))
}

/// Do what [`lock_keys_of`] does, and lock these keys as well, or make their rows. All are locked in key order.
pub(crate) async fn lock_keys_of_and(
    conn: &mut Session<'_>,
    ids: &[Uuid],
    more: BTreeSet<&[u8]>,
) -> Result<OrderedJobs, sqlx::Error> {
    if more.is_empty() {
        return lock_keys_of(conn, ids).await;
    }
    let ordered = keys_of(conn, ids).await?;
    let all = more.into_iter().chain(ordered.values().map(|job| job.key.as_slice())).collect();
    lock_or_make(conn, &all).await?;
    Ok(OrderedJobs(ordered))
}

/// Do what [`lock_keys_of`] does, for those jobs whose places are open.
pub(crate) async fn lock_open_keys_of(conn: &mut Session<'_>, ids: &[Uuid]) -> Result<OrderedJobs, sqlx::Error> {
    let open = open_of(conn, ids).await?;
    lock_keys_of(conn, &open).await
}

/// Do what [`lock_free_keys_of`] does, for those jobs whose places are open.
pub(crate) async fn lock_free_open_keys_of(
    conn: &mut Session<'_>,
    ids: &[Uuid],
) -> Result<(OrderedJobs, BTreeSet<Uuid>), sqlx::Error> {
    let open = open_of(conn, ids).await?;
    lock_free_keys_of(conn, &open).await
}

/// Return those of these jobs whose places are open.
async fn open_of(conn: &mut Session<'_>, ids: &[Uuid]) -> Result<Vec<Uuid>, sqlx::Error> {
    let mut open = Vec::new();
    for ids in ids.chunks(MAX_ROWS) {
        let sql = "SELECT p.job_id FROM order_places p FORCE INDEX (PRIMARY) STRAIGHT_JOIN order_keys k \
                   ON k.order_key = p.order_key WHERE p.open AND p.place >= k.head AND p.job_id IN";
        for row in in_list(sql, ids, "").fetch_all(&mut *conn).await? {
            open.push(row.try_get("job_id")?);
        }
    }
    Ok(open)
}

/// Do what [`lock_keys_of`] does, without the keys that another session locks at this moment. Returns also the jobs
/// that have one of those.
pub(crate) async fn lock_free_keys_of(
    conn: &mut Session<'_>,
    ids: &[Uuid],
) -> Result<(OrderedJobs, BTreeSet<Uuid>), sqlx::Error> {
    let mut ordered = keys_of(conn, ids).await?;
    let locked = lock(conn, &distinct(&ordered), SKIP_LOCKED).await?;
    let others = ordered.iter().filter(|(_, job)| !locked.contains(&job.key)).map(|(id, _)| *id).collect();
    ordered.retain(|_, job| locked.contains(&job.key));
    Ok((OrderedJobs(ordered), others))
}

/// Do what [`lock_or_make_keys_of`] does, without the keys that another session locks at this moment. Returns also the
/// jobs that have one of those.
pub(crate) async fn lock_free_or_make_keys_of(
    conn: &mut Session<'_>,
    ids: &[Uuid],
) -> Result<(OrderedJobs, BTreeSet<Uuid>), sqlx::Error> {
    let mut ordered = keys_of(conn, ids).await?;
    let others = lock_free_or_make(conn, &distinct(&ordered)).await?;
    let busy = ordered.iter().filter(|(_, job)| others.contains(&job.key)).map(|(id, _)| *id).collect();
    ordered.retain(|_, job| !others.contains(&job.key));
    Ok((OrderedJobs(ordered), busy))
}

/// Return the order keys of these jobs, as far as they have one.
pub(crate) async fn order_keys_of(
    conn: &mut Session<'_>,
    ids: &[Uuid],
) -> Result<BTreeMap<Uuid, Vec<u8>>, sqlx::Error> {
    Ok(keys_of(conn, ids).await?.into_iter().map(|(id, job)| (id, job.key)).collect())
}

/// Lock those of these keys that no other session locks at this moment. Returns the others. `keys` are in their order.
pub(crate) async fn lock_free_keys(conn: &mut Session<'_>, keys: &[&[u8]]) -> Result<BTreeSet<Vec<u8>>, sqlx::Error> {
    let locked = lock_rows(conn, keys, SKIP_LOCKED).await?;
    let others: Vec<&[u8]> = keys.iter().copied().filter(|key| !locked.contains(*key)).collect();
    // A key without a row is not locked.
    Ok(read_lines(conn, &others).await?.into_keys().collect())
}

/// Lock these keys without a wait, as far as they have rows. Returns false if another session locks one of them or is
/// making its row. The server may have rolled the transaction back then, so the caller has to end it. `keys` are in
/// their order.
pub(crate) async fn lock_at_once(conn: &mut Session<'_>, keys: &[&[u8]]) -> Result<bool, sqlx::Error> {
    match lock_rows(conn, keys, " NOWAIT").await {
        Ok(_) => Ok(true),
        Err(error) if is_locked_elsewhere(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Return whether another session is making the row of one of these keys. It has not committed the row, so no read
/// shows it, and an INSERT of the same key waits. If this is true, the caller has to end the transaction, as after
/// [`lock_at_once`].
pub(crate) async fn are_being_made(conn: &mut Session<'_>, keys: &BTreeSet<&[u8]>) -> Result<bool, sqlx::Error> {
    let in_order: Vec<&[u8]> = keys.iter().copied().collect();
    let lines = read_lines(conn, &in_order).await?;
    let missing: Vec<&[u8]> = in_order.into_iter().filter(|key| !lines.contains_key(*key)).collect();
    Ok(!lock_at_once(conn, &missing).await?)
}

/// Do what [`lock_or_make`] does, without the keys that another session locks at this moment. Returns those. If another
/// session is making the row of a key, this waits for it.
pub(crate) async fn lock_free_or_make(
    conn: &mut Session<'_>,
    keys: &BTreeSet<&[u8]>,
) -> Result<BTreeSet<Vec<u8>>, sqlx::Error> {
    let in_order: Vec<&[u8]> = keys.iter().copied().collect();
    lock_free_keys_or_make(conn, &in_order).await
}

/// Do what [`lock_free_keys`] does, and make the rows of keys that have none. If another session is making one of
/// these, this waits for it.
pub(crate) async fn lock_free_keys_or_make(
    conn: &mut Session<'_>,
    keys: &[&[u8]],
) -> Result<BTreeSet<Vec<u8>>, sqlx::Error> {
    // These come first, because another session may be making one of them: while this one waits, it has none of the
    // others.
    let lines = read_lines(conn, keys).await?;
    lock_or_make(conn, &keys.iter().copied().filter(|key| !lines.contains_key(*key)).collect()).await?;
    lock_free_keys(conn, keys).await
}

/// Return the keys of these jobs, each once.
fn distinct(ordered: &BTreeMap<Uuid, Ordered>) -> BTreeSet<&[u8]> {
    ordered.values().map(|job| job.key.as_slice()).collect()
}

async fn keys_of(conn: &mut Session<'_>, ids: &[Uuid]) -> Result<BTreeMap<Uuid, Ordered>, sqlx::Error> {
    let mut ordered = BTreeMap::new();
    for ids in ids.chunks(MAX_ROWS) {
        let sql = "SELECT job_id, order_key, blocks FROM order_places FORCE INDEX (PRIMARY) WHERE job_id IN";
        for row in in_list(sql, ids, "").fetch_all(&mut *conn).await? {
            let job = Ordered { key: row.try_get("order_key")?, blocks: row.try_get("blocks")? };
            ordered.insert(row.try_get("job_id")?, job);
        }
    }
    Ok(ordered)
}

async fn lock(
    conn: &mut Session<'_>,
    keys: &BTreeSet<&[u8]>,
    locked_rows: &str,
) -> Result<BTreeSet<Vec<u8>>, sqlx::Error> {
    let keys: Vec<&[u8]> = keys.iter().copied().collect();
    lock_rows(conn, &keys, locked_rows).await
}

async fn lock_rows(
    conn: &mut Session<'_>,
    keys: &[&[u8]],
    locked_rows: &str,
) -> Result<BTreeSet<Vec<u8>>, sqlx::Error> {
    let mut locked = BTreeSet::new();
    for group in groups(keys) {
        let sql = format!(
            "SELECT order_key FROM order_keys FORCE INDEX (PRIMARY) WHERE order_key IN {} ORDER BY order_key \
             FOR UPDATE{locked_rows}",
            placeholders(padded_len(group.len()))
        );
        let query = padded(group).fold(statement(sql), Query::bind);
        for row in query.fetch_all(&mut *conn).await? {
            locked.insert(row.try_get("order_key")?);
        }
    }
    Ok(locked)
}

/// The places in use of one key.
struct KeyPlaces {
    head: u64,
    tail: u64,
}

async fn read_lines(conn: &mut Session<'_>, keys: &[&[u8]]) -> Result<BTreeMap<Vec<u8>, KeyPlaces>, sqlx::Error> {
    let mut lines = BTreeMap::new();
    for group in groups(keys) {
        let sql = format!(
            "SELECT order_key, head, tail FROM order_keys FORCE INDEX (PRIMARY) WHERE order_key IN {}",
            placeholders(padded_len(group.len()))
        );
        let query = padded(group).fold(statement(sql), Query::bind);
        for row in query.fetch_all(&mut *conn).await? {
            lines.insert(
                row.try_get("order_key")?,
                KeyPlaces { head: row.try_get("head")?, tail: row.try_get("tail")? },
            );
        }
    }
    Ok(lines)
}

async fn write_lines(conn: &mut Session<'_>, lines: &BTreeMap<Vec<u8>, KeyPlaces>) -> Result<(), sqlx::Error> {
    let lines: Vec<(&Vec<u8>, &KeyPlaces)> = lines.iter().collect();
    for group in groups(&lines) {
        let sql = format!(
            "INSERT INTO order_keys (order_key, head, tail) VALUES {} \
             ON DUPLICATE KEY UPDATE head = VALUES(head), tail = VALUES(tail)",
            tuples(&placeholders(3), group.len())
        );
        let query = group
            .iter()
            .fold(statement(sql), |query, (key, line)| query.bind(key.as_slice()).bind(line.head).bind(line.tail));
        query.execute(&mut *conn).await?;
    }
    Ok(())
}

/// A job that takes a place.
pub(crate) struct Newcomer<'a> {
    pub(crate) id: Uuid,
    pub(crate) key: &'a [u8],
    /// When it is due, once it is at the head.
    pub(crate) due_at: Timestamp,
    /// True if it keeps its place when it fails for good.
    pub(crate) blocks: bool,
    /// The failed job in whose stead it runs. If that one blocks its key, the newcomer takes its place.
    pub(crate) instead_of: Option<Uuid>,
}

/// Give each of these jobs the next place of its key, in this order. Return those that are held. The keys are locked.
pub(crate) async fn take_places(
    conn: &mut Session<'_>,
    newcomers: &[Newcomer<'_>],
) -> Result<BTreeSet<JobId>, sqlx::Error> {
    if newcomers.is_empty() {
        return Ok(BTreeSet::new());
    }
    let keys: Vec<&[u8]> = newcomers.iter().map(|new| new.key).collect::<BTreeSet<_>>().into_iter().collect();
    let mut lines = read_lines(conn, &keys).await?;
    let replaced: Vec<Uuid> = newcomers.iter().filter_map(|new| new.instead_of).collect();
    let mut handed: BTreeMap<Uuid, u64> = BTreeMap::new();
    if !replaced.is_empty() {
        let open = "SELECT p.job_id, p.place FROM order_places p FORCE INDEX (PRIMARY) STRAIGHT_JOIN order_keys k \
                    ON k.order_key = p.order_key WHERE p.open AND p.place >= k.head AND p.job_id IN";
        for replaced in replaced.chunks(MAX_ROWS) {
            for row in in_list(open, replaced, "").fetch_all(&mut *conn).await? {
                handed.insert(row.try_get("job_id")?, row.try_get("place")?);
            }
        }
        close(conn, &handed.keys().copied().collect::<Vec<_>>()).await?;
    }
    let mut held = BTreeSet::new();
    let mut taken: Vec<(&Newcomer<'_>, u64)> = Vec::with_capacity(newcomers.len());
    for new in newcomers {
        let line = lines.entry(new.key.to_vec()).or_insert(KeyPlaces { head: 1, tail: 0 });
        let place = new.instead_of.and_then(|id| handed.get(&id).copied()).unwrap_or_else(|| {
            line.tail += 1;
            line.tail
        });
        if place != line.head {
            held.insert(JobId::from_uuid(new.id));
        }
        taken.push((new, place));
    }
    for group in groups(&taken) {
        let sql = format!(
            "INSERT INTO order_places (job_id, order_key, place, due_at, blocks) VALUES {} ON DUPLICATE KEY UPDATE \
             place = VALUES(place), due_at = VALUES(due_at), open = TRUE",
            tuples(&placeholders(5), group.len())
        );
        let query = group.iter().fold(statement(sql), |query, (new, place)| {
            query.bind(new.id).bind(new.key).bind(place).bind(new.due_at).bind(new.blocks)
        });
        query.execute(&mut *conn).await?;
    }
    write_lines(conn, &lines).await?;
    Ok(held)
}

/// Give a job that runs again after its end a place. A job that blocks its key still has its own; every other one takes
/// the last. Return whether the job is held. The keys are locked.
pub(crate) async fn place_again(
    conn: &mut Session<'_>,
    OrderedJobs(ordered): &OrderedJobs,
    id: JobId,
    due_at: Timestamp,
) -> Result<bool, sqlx::Error> {
    let Some(Ordered { key, blocks }) = ordered.get(&id.uuid()) else { return Ok(false) };
    let open = "SELECT p.open AND p.place >= k.head FROM order_places p JOIN order_keys k ON k.order_key = p.order_key \
                WHERE p.job_id = ?";
    let open: bool = sqlx::query_scalar(open).bind(id.uuid()).fetch_one(&mut *conn).await?;
    if open {
        // It ran, so it is at the head.
        return Ok(false);
    }
    let newcomer = Newcomer { id: id.uuid(), key, due_at, blocks: *blocks, instead_of: None };
    Ok(take_places(conn, &[newcomer]).await?.contains(&id))
}

/// Add the step that locks these keys, in their order, to a script. It returns one row for each key.
pub(crate) fn lock_step<'a>(script: &mut Script<'a>, keys: &BTreeSet<&'a [u8]>) {
    let (list, values) = script.list(&keys.iter().copied().collect::<Vec<_>>());
    let sql = "SELECT order_key FROM order_keys FORCE INDEX (PRIMARY) WHERE order_key IN";
    script.push(format!("{sql} {list} ORDER BY order_key FOR UPDATE"), values);
}

/// Columns of a next job `p` of a key, with its row in `owed`.
const OF_NEXT: &str = "UTC_TIMESTAMP(6) AS moment, p.place, p.due_at, o.id, o.queue, o.priority, o.execute_at, o.kind, \
                       COALESCE(o.execute_at = ?, FALSE) AS held";

/// Add the step that reads the job at the head of each of these keys, and the job at the next place, to a script.
pub(crate) fn successors_step<'a>(script: &mut Script<'a>, keys: &BTreeSet<&'a [u8]>) {
    let (list, keys) = script.list(&keys.iter().copied().collect::<Vec<_>>());
    let mut values = vec![Value::Moment(held_until())];
    values.extend(keys);
    // Both places are found by equality: a range of places would be searched in all that the key has ever had.
    let sql = format!(
        "SELECT k.order_key, k.head, k.tail, h.job_id AS at_head, {OF_NEXT} FROM order_keys k FORCE INDEX (PRIMARY) \
         STRAIGHT_JOIN order_places h FORCE INDEX (order_places_line) \
         ON h.order_key = k.order_key AND h.place = k.head AND h.open \
         LEFT JOIN order_places p FORCE INDEX (order_places_line) \
         ON p.order_key = k.order_key AND p.place = k.head + 1 AND p.open \
         LEFT JOIN owed o FORCE INDEX (PRIMARY) ON o.id = p.job_id WHERE k.order_key IN {list}"
    );
    script.push(sql, values);
}

/// Add the step that searches the next job of this key behind a place to a script. Closed places in between, of jobs
/// that were cancelled while they were held, are passed over once.
fn search_step<'a>(script: &mut Script<'a>, key: &'a [u8], place: u64) {
    let sql = format!(
        "SELECT p.order_key, {OF_NEXT} FROM order_places p FORCE INDEX (order_places_line) \
         LEFT JOIN owed o FORCE INDEX (PRIMARY) ON o.id = p.job_id \
         WHERE p.order_key = ? AND p.place > ? AND p.open ORDER BY p.place LIMIT 1"
    );
    let place = Value::Number(i64::try_from(place).unwrap_or(i64::MAX));
    script.push(sql, vec![Value::Moment(held_until()), key.into(), place]);
}

/// The next job of a key whose head ended.
pub(crate) struct Successor {
    key: Vec<u8>,
    next: Option<(i64, DueJob)>,
}

impl Successor {
    /// Read the rows of [`successors_step`]. `heads` are the jobs that ended, by key. Returns nothing if the tables are
    /// not as they should be: then the slower way has to decide.
    pub(crate) async fn read_all(
        conn: &mut Session<'_>,
        rows: &[MySqlRow],
        heads: &BTreeMap<&[u8], Uuid>,
    ) -> Result<Option<Vec<Self>>, sqlx::Error> {
        if rows.len() != heads.len() {
            return Ok(None);
        }
        let mut search = Script::about(rows.len(), 0);
        let (mut all, mut searched) = (Vec::with_capacity(rows.len()), BTreeSet::new());
        for row in rows {
            let key: &[u8] = row.try_get("order_key")?;
            if heads.get(key) != Some(&row.try_get("at_head")?) {
                return Ok(None);
            }
            let (head, tail): (u64, u64) = (row.try_get("head")?, row.try_get("tail")?);
            if row.try_get::<Option<u64>, _>("place")?.is_some() {
                all.push(Self::read(row)?);
            } else if head < tail {
                // The next place was closed, or its job has taken another one.
                search_step(&mut search, key, head);
                searched.insert(key);
            } else {
                all.push(Some(Self { key: key.to_vec(), next: None }));
            }
        }
        if !searched.is_empty() {
            for row in search.run(conn).await?.iter().flat_map(|step| &step.rows) {
                searched.remove(row.try_get::<&[u8], _>("order_key")?);
                all.push(Self::read(row)?);
            }
            all.extend(searched.into_iter().map(|key| Some(Self { key: key.to_vec(), next: None })));
        }
        Ok(all.into_iter().collect())
    }

    /// Read a row with the next job. Returns nothing if that job is not held.
    fn read(row: &MySqlRow) -> Result<Option<Self>, sqlx::Error> {
        if !row.try_get::<bool, _>("held")? {
            return Ok(None);
        }
        let (moment, due_at): (Timestamp, Timestamp) = (row.try_get("moment")?, row.try_get("due_at")?);
        let place: u64 = row.try_get("place")?;
        let job = DueJob { execute_at: due_at.max(floor_ms(moment)), ..due_job(row)? };
        let next = Some((i64::try_from(place).unwrap_or(i64::MAX), job));
        Ok(Some(Self { key: row.try_get("order_key")?, next }))
    }

    /// Return the job that is not held any more.
    pub(crate) fn released(self) -> Option<DueJob> {
        self.next.map(|(_, job)| job)
    }

    /// Return the order key, the place of the job that is not held any more, and that job.
    pub(crate) fn of_key(&self) -> Option<(&[u8], i64, &DueJob)> {
        self.next.as_ref().map(|(place, job)| (self.key.as_slice(), *place, job))
    }
}

/// Most jobs behind the head that a claim reads at once.
const MAX_BEHIND: i64 = 16;

/// A job that was held behind the head of its order key when a claim read it, and its place. A later claim has to look
/// whether it is still there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Behind {
    pub(crate) id: Uuid,
    pub(crate) place: i64,
}

impl Behind {
    /// Return whether a row is one of [`behind_step`].
    pub(crate) fn is_in(row: &MySqlRow) -> bool {
        row.try_column("behind").is_ok()
    }

    /// Read the rows of [`behind_step`], as far as no place is missing. A missing place was closed, or was never taken.
    pub(crate) fn read_all(rows: &[&MySqlRow], place: i64) -> Vec<Self> {
        let next = |(row, place): (&&MySqlRow, i64)| {
            let (id, at): (Uuid, u64) = (row.try_get("behind").ok()?, row.try_get("place").ok()?);
            (i64::try_from(at) == Ok(place)).then_some(Self { id, place })
        };
        rows.iter().zip(place + 1..).map_while(next).collect()
    }
}

/// Add the step that reads the jobs behind this place of a key to a script.
pub(crate) fn behind_step<'a>(script: &mut Script<'a>, key: &'a [u8], place: i64) {
    let sql = "SELECT job_id AS behind, place FROM order_places FORCE INDEX (order_places_line) \
               WHERE order_key = ? AND place > ? AND place <= ? AND open ORDER BY place";
    script.push(sql, vec![key.into(), place.into(), (place + MAX_BEHIND).into()]);
}

/// Condition: a job is at this place of its order key, whose row is locked, and it is due there. The values are its id and
/// the place. A statement reads this once, because it does not depend on its rows.
pub(crate) const IS_IN_PLACE: &str = "(SELECT COUNT(*) FROM order_places p FORCE INDEX (PRIMARY) WHERE p.job_id = ? \
                                      AND p.place = ? AND p.open AND p.due_at <= UTC_TIMESTAMP(3)) = 1";

/// Add the step that locks a key and moves its head on to the job behind, if the head is in front of it. It changes one
/// row, or none.
pub(crate) fn pass_head_step<'a>(script: &mut Script<'a>, key: &'a [u8], behind: Behind) {
    let sql = "UPDATE order_keys FORCE INDEX (PRIMARY) SET head = head + 1 WHERE order_key = ? AND head + 1 = ?";
    script.push(sql, vec![key.into(), behind.place.into()]);
}

/// Add the step that moves the heads of the keys to a script.
pub(crate) fn heads_step<'a>(script: &mut Script<'a>, successors: &'a [Successor]) {
    // A head of 0 stands for a key without an open place.
    let head = [
        "INSERT INTO order_keys (order_key, head, tail) VALUES",
        "(?,?,0)",
        "ON DUPLICATE KEY UPDATE head = IF(VALUES(head) = 0, tail + 1, VALUES(head))",
    ];
    let all: Vec<&'a Successor> = successors.iter().collect();
    script.insert(
        head,
        &all,
        |_| 300,
        |&successor, values| {
            let place = successor.next.as_ref().map_or(0, |(place, _)| *place);
            values.extend([Value::Bytes(&successor.key), Value::Number(place)]);
        },
    );
}

/// Add the steps that give those next jobs that are held their due times to a script.
pub(crate) fn due_steps(script: &mut Script<'_>, successors: &[Successor]) {
    let mut due: BTreeMap<Timestamp, Vec<Uuid>> = BTreeMap::new();
    for (_, job) in successors.iter().filter_map(|successor| successor.next.as_ref()) {
        due.entry(job.execute_at).or_default().push(job.id.uuid());
    }
    for (execute_at, mut ids) in due {
        ids.sort_unstable();
        let (list, of_ids) = script.list(&ids);
        let mut values = vec![Value::Moment(execute_at), Value::Moment(held_until())];
        values.extend(of_ids);
        let sql = "UPDATE owed FORCE INDEX (PRIMARY) SET execute_at = ? WHERE execute_at = ? AND id IN";
        script.push(format!("{sql} {list}"), values);
    }
}

async fn close(conn: &mut Session<'_>, ids: &[Uuid]) -> Result<(), sqlx::Error> {
    for ids in ids.chunks(MAX_ROWS) {
        let sql = "UPDATE order_places FORCE INDEX (PRIMARY) SET open = FALSE WHERE job_id IN";
        in_list(sql, ids, "").execute(&mut *conn).await?;
    }
    Ok(())
}

/// Close the places of these jobs, whose keys are locked, and give the next job of each key its due time. Return the
/// jobs that are not held any more.
pub(crate) async fn close_places(
    conn: &mut Session<'_>,
    ids: &[Uuid],
    now: Timestamp,
) -> Result<Vec<DueJob>, sqlx::Error> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let sql = "SELECT DISTINCT k.order_key, k.head, k.tail FROM order_places p FORCE INDEX (PRIMARY) \
               STRAIGHT_JOIN order_keys k ON k.order_key = p.order_key AND k.head = p.place WHERE p.open AND p.job_id IN";
    let mut lines: BTreeMap<Vec<u8>, KeyPlaces> = BTreeMap::new();
    for ids in ids.chunks(MAX_ROWS) {
        for row in in_list(sql, ids, "").fetch_all(&mut *conn).await? {
            lines.insert(
                row.try_get("order_key")?,
                KeyPlaces { head: row.try_get("head")?, tail: row.try_get("tail")? },
            );
        }
    }
    close(conn, ids).await?;
    if lines.is_empty() {
        // None of them was at the head of its key.
        return Ok(Vec::new());
    }
    let mut next: Vec<Uuid> = Vec::with_capacity(lines.len());
    for (key, line) in &mut lines {
        // Closed places in between, of jobs that were cancelled while they were held, are passed over once.
        let found = statement(
            "SELECT job_id, place FROM order_places FORCE INDEX (order_places_line) \
             WHERE order_key = ? AND place > ? AND open ORDER BY place LIMIT 1"
                .to_owned(),
        );
        let found = found.bind(key.as_slice()).bind(line.head).fetch_optional(&mut *conn).await?;
        // Without another open place, the head is behind the tail.
        line.head = line.tail + 1;
        if let Some(row) = found {
            line.head = row.try_get("place")?;
            next.push(row.try_get("job_id")?);
        }
    }
    write_lines(conn, &lines).await?;
    if next.is_empty() {
        return Ok(Vec::new());
    }
    next.sort_unstable();
    let mut released = Vec::with_capacity(next.len());
    for next in next.chunks(MAX_ROWS) {
        let sql = format!(
            "UPDATE owed o FORCE INDEX (PRIMARY) STRAIGHT_JOIN order_places p ON p.job_id = o.id \
             SET o.execute_at = GREATEST(p.due_at, ?) WHERE o.execute_at = ? AND o.id IN {}",
            placeholders(padded_len(next.len()))
        );
        let query = padded(next).fold(statement(sql).bind(floor_ms(now)).bind(held_until().naive_utc()), Query::bind);
        query.execute(&mut *conn).await?;
        let due = "SELECT id, queue, priority, execute_at, kind FROM owed FORCE INDEX (PRIMARY) WHERE id IN";
        for row in in_list(due, next, "").fetch_all(&mut *conn).await? {
            released.push(due_job(&row)?);
        }
    }
    Ok(released)
}
