//! The jobs of a schedule that may be in the way of its next one, under the policies `skip` and `replace`.
//!
//! The row of a schedule names the last job that it made. An earlier one may run longer: an operator triggers the
//! schedule with the policy `allow`, changes the policy while several jobs run, or retries a job that had failed. So
//! the newest jobs in the ledger of ticks are looked at, too. A job behind these is not found.

use std::collections::BTreeMap;

use sqlx::Row;

use crate::schedules::rows::{Scheduled, word};
use crate::sql::batches::{padded_len, statement};
use crate::sql::error::corrupt;
use crate::sql::session::Session;
use tickr_job::{JobId, Name};

/// Newest records with a job of a schedule that are looked at.
const LOOKED_AT: u32 = 200;
/// Most unfinished jobs of these records that count.
const MAX_OPEN: u32 = 16;
/// Most schedules of one statement.
const AT_ONCE: usize = 32;

/// Return the jobs that may be in the way of another job of these schedules, each given with the last job that it made:
/// first this one, which may have ended, and then the unfinished jobs of its newest records.
pub(super) async fn previous_jobs(
    conn: &mut Session<'_>,
    schedules: &[(&Scheduled, Option<JobId>)],
) -> Result<BTreeMap<Name, Vec<JobId>>, sqlx::Error> {
    let mut previous: BTreeMap<Name, Vec<JobId>> =
        schedules.iter().map(|(row, last_job)| (row.name.clone(), last_job.iter().copied().collect())).collect();
    // Bounded by the inner SELECT: it reads the newest records with a job by their index, because ids of jobs are in
    // the order of their time. Ticks that were skipped because of a job push it out of no list. A record from before
    // the schedule was made belongs to an earlier one with its name.
    let branch = format!(
        "(SELECT t.schedule, t.job_id FROM (SELECT schedule, job_id, recorded_at FROM ticks \
         FORCE INDEX (ticks_job) WHERE schedule = ? AND job_id IS NOT NULL ORDER BY schedule DESC, job_id DESC \
         LIMIT {LOOKED_AT}) t JOIN owed o ON o.id = t.job_id WHERE t.recorded_at >= ? \
         ORDER BY t.job_id DESC LIMIT {MAX_OPEN})"
    );
    for part in schedules.chunks(AT_ONCE) {
        // Some are read twice, so that few different statements are prepared.
        let count = padded_len(part.len());
        let mut query = statement(vec![branch.as_str(); count].join(" UNION ALL "));
        for (row, _) in part.iter().cycle().take(count) {
            query = query.bind(row.name.as_str()).bind(row.created.0);
        }
        for found in &query.fetch_all(&mut *conn).await? {
            let name: Name = word(found, "schedule")?.parse().map_err(|_| corrupt("schedule"))?;
            let job = JobId::from_uuid(found.try_get("job_id")?);
            let jobs = previous.entry(name).or_default();
            if !jobs.contains(&job) {
                jobs.push(job);
            }
        }
    }
    Ok(previous)
}
