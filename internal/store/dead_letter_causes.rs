//! The causes for which jobs failed for good in a range of time, whatever was done about them since.

use std::collections::BTreeMap;

use async_recursion::async_recursion as boxed;
use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::rows::dead_letters::group;
use crate::sql::batches::{bind_padded, in_list, padded_len, placeholders, statement};
use crate::sql::connection::on_pool;
use crate::sql::error::corrupt;
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::{Fingerprint, JobId, Name, Timestamp};

/// Most dead letters that are counted in a range, and in the time before it: the newest. A count that reaches this is a
/// lower bound.
const MAX_COUNTED: i64 = 50_000;

/// Conditions for dead letters that failed in a range of time.
#[derive(Clone, Debug)]
pub struct CauseFilter {
    /// Beginning of the range.
    pub from: Timestamp,
    /// End of the range, which is not part of it.
    pub to: Timestamp,
    /// Only jobs of this kind.
    pub kind: Option<Name>,
    /// Only jobs of this queue.
    pub queue: Option<Name>,
    /// Only this cause.
    pub fingerprint: Option<Fingerprint>,
}

/// A cause for which jobs failed for good in a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetterCause {
    /// The fingerprint that names the cause.
    pub fingerprint: Fingerprint,
    /// Kind of the jobs.
    pub kind: Name,
    /// Number of jobs that failed in the range.
    pub failed: u64,
    /// Number of jobs that failed in the time before the range, as long as the range.
    pub before: u64,
    /// Time of the first failure in the range, of those that were counted.
    pub first: Timestamp,
    /// Time of the last failure in the range.
    pub last: Timestamp,
    /// Time of the first failure that is known.
    pub known_since: Timestamp,
    /// The newest of the jobs that failed in the range.
    pub sample: JobId,
    /// The beginning of its error.
    pub error: String,
}

/// The causes of a range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Causes {
    /// The causes, the one with the most failures first.
    pub causes: Vec<DeadLetterCause>,
    /// True if there are other causes.
    pub more: bool,
    /// True if more jobs failed in the range, or before it, than were counted.
    pub capped: bool,
}

impl Store {
    /// Read the causes of the dead letters that failed in a range, at most `limit`.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn dead_letter_causes(&self, filter: CauseFilter, limit: usize) -> Result<Causes, StoreError> {
        on_pool(&self.shared.pools.reads, "read the causes of dead letters", move |conn, _| {
            let filter = filter.clone();
            Box::pin(async move { causes(conn, &filter, limit).await })
        })
        .await
    }
}

/// The failures with one cause in some time.
struct Tally {
    kind: String,
    failed: u64,
    first: Timestamp,
    last: Timestamp,
    sample: Uuid,
}

impl Tally {
    /// Add failures of another queue.
    fn add(&mut self, other: &Self) {
        self.failed += other.failed;
        self.first = self.first.min(other.first);
        self.last = self.last.max(other.last);
        self.sample = self.sample.max(other.sample);
    }
}

async fn causes(conn: &mut Session<'_>, filter: &CauseFilter, limit: usize) -> Result<Causes, sqlx::Error> {
    let (found, capped) = count(conn, filter, filter.from, filter.to).await?;
    let mut found: Vec<(Fingerprint, Tally)> = found.into_iter().collect();
    found.sort_by_key(|(fingerprint, tally)| (std::cmp::Reverse(tally.failed), *fingerprint));
    let more = found.len() > limit;
    found.truncate(limit);
    if found.is_empty() {
        return Ok(Causes { causes: Vec::new(), more, capped });
    }
    let earlier = filter.from - (filter.to - filter.from);
    let (before, capped_before) = count(conn, filter, earlier, filter.from).await?;
    let fingerprints: Vec<Fingerprint> = found.iter().map(|(fingerprint, _)| *fingerprint).collect();
    let oldest = oldest(conn, &fingerprints).await?;
    let samples: Vec<Uuid> = found.iter().map(|(_, tally)| tally.sample).collect();
    let mut errors: BTreeMap<Uuid, String> = BTreeMap::new();
    let sql = "SELECT job_id, error FROM dead_letters FORCE INDEX (PRIMARY) WHERE job_id IN";
    for row in in_list(sql, &samples, "").fetch_all(conn).await? {
        errors.insert(row.try_get("job_id")?, row.try_get("error")?);
    }
    let cause = |(fingerprint, tally): (Fingerprint, Tally)| {
        Ok(DeadLetterCause {
            fingerprint,
            kind: tally.kind.parse().map_err(|_| corrupt("kind"))?,
            failed: tally.failed,
            before: before.get(&fingerprint).map_or(0, |earlier| earlier.failed),
            first: tally.first,
            last: tally.last,
            known_since: [oldest.get(&fingerprint).copied(), before.get(&fingerprint).map(|earlier| earlier.first)]
                .into_iter()
                .flatten()
                .fold(tally.first, Ord::min),
            sample: JobId::from_uuid(tally.sample),
            error: errors.remove(&tally.sample).unwrap_or_default(),
        })
    };
    let causes = found.into_iter().map(cause).collect::<Result<_, sqlx::Error>>()?;
    Ok(Causes { causes, more, capped: capped || capped_before })
}

/// Count the dead letters that failed in some time by their causes. Return true with them if there are more of them
/// than are read. The index `dead_letters_failed` has all columns, so no row is read.
async fn count(
    conn: &mut Session<'_>,
    filter: &CauseFilter,
    from: Timestamp,
    to: Timestamp,
) -> Result<(BTreeMap<Fingerprint, Tally>, bool), sqlx::Error> {
    // The conditions come behind the limit, so that a cause that is rare among many costs no more. The groups are all
    // that the limit lets through, so one pass has their total as well.
    let sql = "SELECT d.fingerprint, d.kind, d.queue, COUNT(*) AS failed, MIN(d.failed_at) AS first_at, \
               MAX(d.failed_at) AS last_at, MAX(d.job_id) AS sample FROM \
               (SELECT failed_at, kind, queue, fingerprint, job_id FROM dead_letters FORCE INDEX (dead_letters_failed) \
               WHERE failed_at >= ? AND failed_at < ? ORDER BY failed_at DESC LIMIT ?) d \
               GROUP BY d.fingerprint, d.kind, d.queue";
    let query = sqlx::query(sql).bind(from).bind(to).bind(MAX_COUNTED);
    let mut tallies: BTreeMap<Fingerprint, Tally> = BTreeMap::new();
    let mut total = 0;
    for row in &query.fetch_all(conn).await? {
        let (fingerprint, part) = tally(row)?;
        total += part.failed;
        let queue: &str = row.try_get("queue")?;
        let is = |wanted: &Option<Name>, name: &str| wanted.as_ref().is_none_or(|wanted| wanted.as_str() == name);
        let is_cause = filter.fingerprint.is_none_or(|wanted| wanted == fingerprint);
        if !is_cause || !is(&filter.kind, &part.kind) || !is(&filter.queue, queue) {
            continue;
        }
        if let Some(all) = tallies.get_mut(&fingerprint) {
            all.add(&part);
        } else {
            tallies.insert(fingerprint, part);
        }
    }
    Ok((tallies, total >= MAX_COUNTED.unsigned_abs()))
}

fn tally(row: &MySqlRow) -> Result<(Fingerprint, Tally), sqlx::Error> {
    let tally = Tally {
        kind: row.try_get("kind")?,
        failed: row.try_get::<i64, _>("failed")?.unsigned_abs(),
        first: row.try_get("first_at")?,
        last: row.try_get("last_at")?,
        sample: row.try_get("sample")?,
    };
    Ok((group(row.try_get("fingerprint")?)?, tally))
}

/// Read when a job first failed for each cause. A retried job that failed again has the time of its first failure.
async fn oldest(
    conn: &mut Session<'_>,
    fingerprints: &[Fingerprint],
) -> Result<BTreeMap<Fingerprint, Timestamp>, sqlx::Error> {
    let these = placeholders(padded_len(fingerprints.len()));
    let failed = format!(
        "SELECT fingerprint, MIN(failed_at) AS first_at FROM dead_letters FORCE INDEX (dead_letters_cause) \
         WHERE fingerprint IN {these} GROUP BY fingerprint"
    );
    let retried = format!(
        "SELECT fingerprint, MIN(first_failed_at) AS first_at FROM dead_letters FORCE INDEX (dead_letters_first) \
         WHERE fingerprint IN {these} AND first_failed_at IS NOT NULL GROUP BY fingerprint, standing"
    );
    let bytes: Vec<&[u8]> = fingerprints.iter().map(|fingerprint| fingerprint.bytes().as_slice()).collect();
    let mut times: BTreeMap<Fingerprint, Timestamp> = BTreeMap::new();
    for sql in [failed, retried] {
        let query = bind_padded(statement(sql), &bytes);
        for row in &query.fetch_all(&mut *conn).await? {
            let first: Timestamp = row.try_get("first_at")?;
            let time = times.entry(group(row.try_get("fingerprint")?)?).or_insert(first);
            *time = first.min(*time);
        }
    }
    Ok(times)
}
