//! Rows of `attempt_logs`: the lines that were written during an attempt.

use crate::sql::script::{Script, Value};
use crate::sql::session::Session;
use tickr_job::JobId;

/// The log of an attempt that wrote a line.
#[derive(Clone, Copy)]
pub(crate) struct AttemptLogRow<'a> {
    pub(crate) job: JobId,
    pub(crate) number: u32,
    pub(crate) log: &'a str,
}

impl AttemptLogRow<'_> {
    /// Return the size of the row in a statement.
    pub(crate) fn bytes(&self) -> usize {
        40 + self.log.len()
    }
}

/// Add a step that inserts rows, which must be in key order. Without rows the script stays as it is, so a batch of
/// attempts without logs costs no statement.
pub(crate) fn insert_logs_step<'a>(script: &mut Script<'a>, rows: &[AttemptLogRow<'a>]) {
    if rows.is_empty() {
        return;
    }
    let insert = ["INSERT INTO attempt_logs (job_id, number, size_bytes, log) VALUES", "(?,?,?,?)", ""];
    script.insert(insert, rows, AttemptLogRow::bytes, |row, values| {
        let size = u32::try_from(row.log.len()).unwrap_or(u32::MAX);
        values.extend([Value::from(row.job.uuid()), row.number.into(), size.into(), row.log.into()]);
    });
}

/// Write the log of an attempt that goes on. A repeated call changes nothing.
pub(crate) async fn write_log(conn: &mut Session<'_>, row: AttemptLogRow<'_>) -> Result<(), sqlx::Error> {
    let sql = "INSERT INTO attempt_logs (job_id, number, size_bytes, log) VALUES (?, ?, ?, ?) \
               ON DUPLICATE KEY UPDATE size_bytes = VALUES(size_bytes), log = VALUES(log)";
    let size = u32::try_from(row.log.len()).unwrap_or(u32::MAX);
    let query = sqlx::query(sql).bind(row.job.uuid()).bind(row.number).bind(size).bind(row.log);
    query.execute(conn).await.map(drop)
}
