//! Lines of the ledger, which is the table `attempts`.

use crate::rows::owed::MAX_NUMBER;
use crate::sql::batches::{groups_by_bytes, placeholders, statement, tuples};
use crate::sql::session::Session;
use tickr_job::{JobId, State, Timestamp, Verdict};

/// The verdict of a line. The line of an expired job is marked in a column of its own.
pub(crate) const VERDICT: &str = "IF(expired, 'expired', verdict)";

/// One line of the ledger, which is the table `attempts`.
pub(crate) struct AttemptRow<'a> {
    pub(crate) job: JobId,
    pub(crate) number: u32,
    pub(crate) burned: u32,
    pub(crate) runner: &'a str,
    pub(crate) execute_at: Timestamp,
    pub(crate) started_at: Timestamp,
    pub(crate) verdict: Verdict,
    pub(crate) end: Option<State>,
    pub(crate) error: Option<&'a str>,
    pub(crate) result: Option<&'a str>,
    pub(crate) cancel_requested_at: Option<Timestamp>,
    pub(crate) exchange: Option<&'a str>,
}

/// Append lines to the ledger, in key order. A line behind the last number takes the place of the line before it:
/// otherwise the job could never be cancelled and would never expire.
pub(crate) async fn append_to_ledger(
    conn: &mut Session<'_>,
    lines: &[AttemptRow<'_>],
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    for line in lines.iter().filter(|line| line.number > MAX_NUMBER) {
        let sql = "DELETE FROM attempts WHERE job_id = ? AND number = ?";
        sqlx::query(sql).bind(line.job.uuid()).bind(MAX_NUMBER).execute(&mut *conn).await?;
    }
    let text = |text: Option<&str>| text.map_or(0, str::len);
    let bytes = |line: &AttemptRow<'_>| 200 + text(line.result) + text(line.error) + text(line.exchange);
    for group in groups_by_bytes(lines, bytes) {
        let sql = format!(
            "INSERT INTO attempts (job_id, number, burned, runner, execute_at, started_at, finished_at, verdict, \
             end_state, error, result, cancel_requested_at, exchange, expired) VALUES {}",
            tuples(&placeholders(14), group.len())
        );
        let mut query = statement(sql);
        for line in group {
            query = query
                .bind(line.job.uuid())
                .bind(line.number.min(MAX_NUMBER))
                .bind(line.burned)
                .bind(line.runner)
                .bind(line.execute_at)
                .bind(line.started_at)
                // After the clock was set back, an attempt must not end before it began.
                .bind(now.max(line.started_at))
                .bind(if line.verdict == Verdict::Expired { Verdict::Rejected } else { line.verdict }.as_str())
                .bind(line.end.map(State::as_str))
                .bind(line.error)
                .bind(line.result)
                .bind(line.cancel_requested_at)
                .bind(line.exchange)
                .bind((line.verdict == Verdict::Expired).then_some(true));
        }
        query.execute(&mut *conn).await?;
    }
    Ok(())
}
