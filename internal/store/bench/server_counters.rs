//! Readings that `tickr bench` takes from the server: its counters, and the outcome of the jobs of a run by the times
//! that MySQL stored. They use a connection of their own, so that they neither wait for the product's pool nor take a
//! connection from it.

use async_recursion::async_recursion as boxed;
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, Row};

use crate::sql::connection;
use crate::sql::session::Session;
use crate::sql::table_names::table_name;
use crate::{Store, StoreError};
use tickr_job::{JobId, Timestamp};

/// A connection for readings.
pub struct CounterConnection {
    pub(super) conn: Session<'static>,
}

impl std::fmt::Debug for CounterConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CounterConnection")
    }
}

/// The rows of the jobs of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobCounts {
    /// Rows in `jobs`.
    pub jobs: u64,
    /// Rows in `owed`.
    pub owed: u64,
    /// Rows in `owed` of jobs that wait and were never started.
    pub untouched: u64,
    /// Rows in `attempts`.
    pub attempts: u64,
    /// Jobs that have ended with an attempt that succeeded, and have no row in `owed`.
    pub completed: u64,
}

impl JobCounts {
    /// Return true if each of `done` jobs completed exactly once and each of `waiting` other jobs is untouched.
    #[must_use]
    pub fn are_exactly_once(&self, done: u64, waiting: u64) -> bool {
        *self == Self { jobs: done + waiting, owed: waiting, untouched: waiting, attempts: done, completed: done }
    }
}

/// Counters of the server since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCounters {
    /// Deadlocks. Absent when the account may not read the counter.
    pub deadlocks: Option<u64>,
    /// Statements of every kind, each one of a text with several, without the packets that close prepared statements.
    /// Those of the connection that reads the counters are left out.
    pub questions: u64,
    /// Transactions that changed or locked rows and have committed (`trx_rw_commits` of InnoDB). A statement that commits
    /// by itself counts, and so do the few transactions of the server itself; a COMMIT after plain reads does not. InnoDB
    /// counts without a lock, so one in thousands is missing when many commit at once. Zero until
    /// [`CounterConnection::count_commits`].
    pub commits: u64,
    /// Statements that had to wait for a row lock, and each further wait of the same statement.
    pub lock_waits: u64,
    /// Transactions whose old row versions are not purged yet (the history list length). Absent where the server does
    /// not publish it.
    pub history: Option<u64>,
}

/// Statements in the general log of the server, counted by what they do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatementCounts {
    /// Statements that take or end work: a claim, a settle, a locking read.
    pub taking_work: u64,
    /// Statements that only read `owed`.
    pub looking: u64,
}

impl Store {
    /// Open a connection for readings.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached.
    #[boxed]
    pub async fn counter_connection(&self) -> Result<CounterConnection, StoreError> {
        let conn = connection::open(&self.shared.options).await;
        conn.map(|conn| CounterConnection { conn })
            .map_err(|e| StoreError::from_driver("open a connection for readings", &e))
    }

    /// Drop the database that `url` names, if it exists. For databases that the caller has created, and for no others.
    ///
    /// # Errors
    /// [`StoreError::Refused`] when the URL names no database, otherwise [`StoreError`] when MySQL cannot be reached or
    /// refuses the statement.
    #[boxed]
    pub async fn drop_database(url: &str) -> Result<(), StoreError> {
        let attempted = "drop the database";
        let (mut conn, name) = Self::outside_of(url, attempted).await?;
        let dropped = sqlx::raw_sql(AssertSqlSafe(format!("DROP DATABASE IF EXISTS {name}"))).execute(&mut conn).await;
        dropped.map(|_| ()).map_err(|e| StoreError::from_driver(attempted, &e))
    }
}

impl CounterConnection {
    /// Count the jobs that have ended so far, and read the server's clock at that moment. This reads only the tallies,
    /// so it is cheap.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement. The same holds for the methods below.
    #[boxed]
    pub async fn ended(&mut self) -> Result<(u64, Timestamp), StoreError> {
        let sql = "SELECT CAST(COALESCE(SUM(n), 0) AS SIGNED), UTC_TIMESTAMP(6) FROM tallies";
        let read = sqlx::query_as(sql).fetch_one(&mut self.conn).await;
        let (ended, now): (i64, Timestamp) = read.map_err(|e| StoreError::from_driver("count ended jobs", &e))?;
        Ok((ended.unsigned_abs(), now))
    }

    /// Read the time when the first job was accepted and the time when the first job was started, of the jobs from id
    /// `first` on.
    #[boxed]
    pub async fn beginnings(&mut self, first: JobId) -> Result<(Option<Timestamp>, Option<Timestamp>), StoreError> {
        let sql = "SELECT (SELECT MIN(created_at) FROM jobs WHERE id >= ?), \
                   (SELECT MIN(started_at) FROM attempts WHERE job_id >= ?)";
        let read = sqlx::query_as(sql).bind(first.uuid()).bind(first.uuid()).fetch_one(&mut self.conn).await;
        read.map_err(|e| StoreError::from_driver("read when jobs began", &e))
    }

    /// Read the lateness of each attempt of the jobs from id `first` on, in microseconds after the due time.
    #[boxed]
    pub async fn lateness_us(&mut self, first: JobId) -> Result<Vec<i64>, StoreError> {
        let sql = "SELECT TIMESTAMPDIFF(MICROSECOND, execute_at, started_at) FROM attempts WHERE job_id >= ?";
        let found = sqlx::query_scalar(sql).bind(first.uuid()).fetch_all(&mut self.conn).await;
        found.map_err(|e| StoreError::from_driver("read lateness", &e))
    }

    /// Count the rows of the jobs from id `first` on.
    #[boxed]
    pub async fn job_counts(&mut self, first: JobId) -> Result<JobCounts, StoreError> {
        let sql = "SELECT (SELECT COUNT(*) FROM jobs WHERE id >= ?) AS jobs, \
                   (SELECT COUNT(*) FROM owed WHERE id >= ?) AS owed, \
                   (SELECT COUNT(*) FROM owed WHERE id >= ? AND state = 'waiting' AND attempt = 0) AS untouched, \
                   (SELECT COUNT(*) FROM attempts WHERE job_id >= ?) AS attempts, \
                   (SELECT COUNT(DISTINCT a.job_id) FROM attempts a JOIN jobs j ON j.id = a.job_id \
                    LEFT JOIN owed o ON o.id = a.job_id WHERE a.job_id >= ? AND a.verdict = 'succeeded' \
                    AND a.end_state = 'completed' AND o.id IS NULL) AS completed";
        let mut query = sqlx::query(sql);
        for _ in 0..5 {
            query = query.bind(first.uuid());
        }
        let read = query.fetch_one(&mut self.conn).await.and_then(|row| {
            let count = |column: &str| row.try_get::<i64, _>(column).map(i64::unsigned_abs);
            let (jobs, owed, untouched) = (count("jobs")?, count("owed")?, count("untouched")?);
            Ok(JobCounts { jobs, owed, untouched, attempts: count("attempts")?, completed: count("completed")? })
        });
        read.map_err(|e| StoreError::from_driver("read the outcome of the jobs", &e))
    }

    /// Switch on the general log, in which the server writes every statement. For servers without other users only,
    /// because it slows all of them.
    #[boxed]
    pub async fn overhear(&mut self) -> Result<(), StoreError> {
        for sql in
            ["SET GLOBAL log_output = 'TABLE'", "TRUNCATE TABLE mysql.general_log", "SET GLOBAL general_log = ON"]
        {
            let done = sqlx::raw_sql(sql).execute(&mut self.conn).await;
            done.map_err(|e| StoreError::from_driver("switch on the general log", &e))?;
        }
        Ok(())
    }

    /// Switch off the general log and count the statements since [`overhear`](Self::overhear).
    #[boxed]
    pub async fn statement_counts(&mut self) -> Result<StatementCounts, StoreError> {
        let read = async {
            sqlx::raw_sql("SET GLOBAL general_log = OFF").execute(&mut self.conn).await?;
            let sql = "SELECT CONVERT(argument USING utf8mb4) FROM mysql.general_log WHERE command_type IN ('Query', 'Execute')";
            let said: Vec<String> = sqlx::query_scalar(sql).fetch_all(&mut self.conn).await?;
            let owed = table_name(self.conn.prefix(), "owed");
            Ok::<_, sqlx::Error>(count_statements(said.iter().map(String::as_str), &owed))
        };
        read.await.map_err(|e| StoreError::from_driver("read the general log", &e))
    }

    /// Let InnoDB count commits from now on, until the server stops. For servers without other users only: InnoDB counts
    /// them in one place, which all connections write. The account needs the right to set global variables.
    #[boxed]
    pub async fn count_commits(&mut self) -> Result<(), StoreError> {
        let done = sqlx::raw_sql("SET GLOBAL innodb_monitor_enable = 'trx_rw_commits'").execute(&mut self.conn).await;
        done.map(|_| ()).map_err(|e| StoreError::from_driver("let the server count commits", &e))
    }

    /// Read the server's counters.
    #[boxed]
    pub async fn counters(&mut self) -> Result<ServerCounters, StoreError> {
        let counters = async {
            let mut counters = ServerCounters::default();
            let sql = "SHOW GLOBAL STATUS WHERE Variable_name IN \
                       ('Innodb_deadlocks', 'Questions', 'Innodb_history_list_length', 'Innodb_row_lock_waits')";
            for (name, value) in self.status(sql).await? {
                match name.as_str() {
                    "Innodb_deadlocks" => counters.deadlocks = Some(value),
                    "Questions" => counters.questions = value,
                    "Innodb_row_lock_waits" => counters.lock_waits = value,
                    _ => counters.history = Some(value),
                }
            }
            // The server shows these only to accounts with the PROCESS privilege. MySQL has deadlocks here alone.
            let sql = "SELECT NAME, CAST(COUNT AS SIGNED) FROM information_schema.INNODB_METRICS \
                       WHERE NAME IN ('lock_deadlocks', 'trx_rw_commits')";
            let found: Result<Vec<(String, i64)>, _> = sqlx::query_as(sql).fetch_all(&mut self.conn).await;
            for (name, value) in found.unwrap_or_default() {
                if name == "trx_rw_commits" {
                    counters.commits = value.unsigned_abs();
                } else if counters.deadlocks.is_none() {
                    counters.deadlocks = Some(value.unsigned_abs());
                }
            }
            // The statements between the two readings of this number are the same in each call, so they cancel out.
            for (_, own) in self.status("SHOW SESSION STATUS WHERE Variable_name = 'Questions'").await? {
                counters.questions = counters.questions.saturating_sub(own);
            }
            Ok::<_, sqlx::Error>(counters)
        };
        counters.await.map_err(|e| StoreError::from_driver("read the server's counters", &e))
    }

    /// Read status variables that are numbers.
    async fn status(&mut self, sql: &'static str) -> Result<Vec<(String, u64)>, sqlx::Error> {
        let rows = sqlx::raw_sql(sql).fetch_all(&mut self.conn).await?;
        let variable = |row: &MySqlRow| -> Result<(String, u64), sqlx::Error> {
            let value: String = row.try_get(1)?;
            Ok((row.try_get(0)?, value.parse().unwrap_or(0)))
        };
        rows.iter().map(variable).collect()
    }
}

fn count_statements<'a>(statements: impl Iterator<Item = &'a str>, owed: &str) -> StatementCounts {
    let mut counts = StatementCounts::default();
    for statement in statements {
        let words: Vec<String> = statement.split_whitespace().map(str::to_ascii_lowercase).collect();
        if !words.iter().any(|word| word == owed) {
            continue;
        }
        let only_reads = words.first().is_some_and(|first| first == "select")
            && !words.windows(2).any(|pair| pair[0] == "for" && pair[1] == "update");
        counts.looking += u64::from(only_reads);
        counts.taking_work += u64::from(!only_reads);
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_takes_work_and_a_look_does_not() {
        let said = [
            "UPDATE owed FORCE INDEX (PRIMARY) SET state = 'executing' WHERE id IN ('x')",
            "SELECT id FROM owed WHERE id IN ('x') ORDER BY id FOR UPDATE",
            "DELETE FROM owed WHERE id IN ('x') ORDER BY id LIMIT 1",
            "SELECT id, queue FROM owed WHERE execute_at <= '2026-01-01' ORDER BY execute_at, id LIMIT 2000",
            "UPDATE runners SET busy = 0",
            "SELECT UTC_TIMESTAMP(6)",
        ];
        assert_eq!(count_statements(said.into_iter(), "owed"), StatementCounts { taking_work: 3, looking: 1 });
    }

    #[test]
    fn exactly_once_means_nothing_missing_and_nothing_twice() {
        let good = JobCounts { jobs: 10, owed: 3, untouched: 3, attempts: 7, completed: 7 };
        assert!(good.are_exactly_once(7, 3));
        for bad in [
            JobCounts { jobs: 9, ..good },
            JobCounts { owed: 2, ..good },
            JobCounts { untouched: 2, ..good },
            JobCounts { attempts: 8, ..good },
            JobCounts { completed: 6, ..good },
        ] {
            assert!(!bad.are_exactly_once(7, 3), "{bad:?}");
        }
    }
}
