//! Many owed jobs at once, inserted with SQL on the server: backlogs that would take minutes to enqueue.

use std::sync::LazyLock;

use tickr::job::Name;

use super::TestApp;

/// Number of rows of one statement.
const CHUNK: u32 = 100_000;
/// The digits whose combinations are the numbers of a chunk.
const DIGITS: &str = "(SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5 \
                      UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)";

/// Jobs to be inserted, due a millisecond apart.
pub(crate) struct Owed<'a> {
    pub(crate) jobs: u32,
    /// Their queue: a name in quotes, or an SQL expression over `n`, the number of the job.
    pub(crate) queue: &'a str,
    pub(crate) priority: u8,
    pub(crate) kind: &'a str,
    /// Due time of the first job, in SQL.
    pub(crate) due: &'a str,
}

impl Owed<'_> {
    /// Describe overdue no-ops of normal priority.
    pub(crate) fn overdue(jobs: u32) -> Self {
        Self { jobs, queue: "'default'", priority: 5, kind: "noop", due: "UTC_TIMESTAMP(3) - INTERVAL 1 DAY" }
    }

    /// Insert the jobs. Ids of different series differ.
    pub(crate) async fn insert(&self, tickr: &TestApp, series: u16) {
        self.insert_rows(tickr, series, true).await;
    }

    /// Insert only the rows by which the jobs wait, which costs half as much. None of these jobs can be started or shown,
    /// so a test removes them before a worker may take one.
    pub(crate) async fn insert_waiting(&self, tickr: &TestApp, series: u16) {
        self.insert_rows(tickr, series, false).await;
    }

    async fn insert_rows(&self, tickr: &TestApp, series: u16, whole: bool) {
        let Self { jobs, queue, priority, kind, due } = self;
        for first in (0..*jobs).step_by(CHUNK as usize) {
            let numbers = format!(
                "(SELECT {first} + a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d AS n FROM {DIGITS} a, {DIGITS} b, \
                 {DIGITS} c, {DIGITS} e, {DIGITS} f) numbers WHERE n < {jobs}"
            );
            let id = format!("UNHEX(CONCAT('0190{series:04x}0000', '7000', '8000', LPAD(HEX(n), 12, '0')))");
            let due = format!("{due} + INTERVAL n * 1000 MICROSECOND");
            if whole {
                tickr
                    .sql(format!(
                        "INSERT INTO jobs (id, kind, queue, priority, max_attempts, payload, execute_at, created_at) \
                         SELECT {id}, '{kind}', {queue}, {priority}, 5, '{{}}', {due}, UTC_TIMESTAMP(6) FROM {numbers}"
                    ))
                    .await;
            }
            tickr
                .sql(format!(
                    "INSERT INTO owed (id, kind, queue, priority, max_attempts, state, execute_at) \
                     SELECT {id}, '{kind}', {queue}, {priority}, 5, 'waiting', {due} FROM {numbers}"
                ))
                .await;
        }
    }

    /// Remove those of these jobs that are still owed, as if they had never been enqueued.
    pub(crate) async fn remove(tickr: &TestApp) {
        let made = "id >= UNHEX('01900000000000000000000000000000') AND id < UNHEX('01910000000000000000000000000000')";
        tickr
            .sql(format!(
                "DELETE FROM jobs WHERE {made} AND id IN (SELECT id FROM owed WHERE {made}); DELETE FROM owed WHERE {made}"
            ))
            .await;
    }
}

/// Return the queue of jobs that name none.
pub(crate) fn default_queue() -> &'static Name {
    static QUEUE: LazyLock<Name> = LazyLock::new(|| "default".parse().unwrap());
    &QUEUE
}
