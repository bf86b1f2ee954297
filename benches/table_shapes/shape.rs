//! The shapes: their tables, their columns, and the statements that differ between them.

use clap::ValueEnum;

use crate::lane::{KIND, LEASE_SECONDS, NewJob, QUEUE, places};

/// A candidate: tables, and the statements that go with them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Shape {
    /// One wide row; index on (state, execute_at, id); a ledger row for each ended attempt
    A,
    /// One wide row; index on due_at, which is NULL unless the job waits; a ledger row for each ended attempt
    B1,
    /// As B1, but the last attempt stays in the row and a success writes no ledger row
    B2,
    /// As B1, but columns that a claim fills have their full width from the start
    B3,
    /// As B3, but the settle updates each row by its own token, without a locking read first
    B4,
    /// Three tables: the request (jobs), a narrow row per unfinished job that is deleted at the end (owed), and a
    /// ledger row for each ended attempt (attempts)
    C,
    /// As C, but the settle deletes by token, without a locking read first; only safe while a flush holds a single
    /// token
    C2,
    /// As C, without the kind in the owed row
    C3,
    /// As C, but the server copies the ledger rows from the owed rows instead of receiving them
    C4,
    /// As C2, but each row is deleted by its own token, so that a flush may mix the jobs of many claims
    C5,
    /// As C, but the end state has its full width from the start, so that writing it does not move the row
    C6,
    /// As C, but the end state is part of the last ledger row, and the row in jobs is never written again
    C7,
    /// As C6, and the owed row has its full width from the start as well
    C8,
    /// As C8, fenced as C5
    C9,
    /// As C9, with the end in the ledger as in C7
    C10,
    /// As C10, with queue and priority before the due time: index on (queue, priority, execute_at)
    C11,
}

impl Shape {
    pub(crate) const ALL: [Self; 16] = [
        Self::A,
        Self::B1,
        Self::B2,
        Self::B3,
        Self::B4,
        Self::C,
        Self::C2,
        Self::C3,
        Self::C4,
        Self::C5,
        Self::C6,
        Self::C7,
        Self::C8,
        Self::C9,
        Self::C10,
        Self::C11,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::A => "A",
            Self::B1 => "B1",
            Self::B2 => "B2",
            Self::B3 => "B3",
            Self::B4 => "B4",
            Self::C => "C",
            Self::C2 => "C2",
            Self::C3 => "C3",
            Self::C4 => "C4",
            Self::C5 => "C5",
            Self::C6 => "C6",
            Self::C7 => "C7",
            Self::C8 => "C8",
            Self::C9 => "C9",
            Self::C10 => "C10",
            Self::C11 => "C11",
        }
    }

    pub(crate) fn database(self) -> String {
        format!("tickr_shape_{}", self.name().to_lowercase())
    }

    pub(crate) fn is_wide(self) -> bool {
        matches!(self, Self::A | Self::B1 | Self::B2 | Self::B3 | Self::B4)
    }

    /// True when columns have a stand-in value instead of NULL. InnoDB stores NULL in no bytes at all, so a row grows
    /// when a NULL column is filled, and growing rows split full pages.
    fn has_full_width(self) -> bool {
        matches!(self, Self::B3 | Self::B4 | Self::C8 | Self::C9 | Self::C10 | Self::C11)
    }

    /// True when the end of a job is written to its ledger row and nowhere else.
    pub(crate) fn ends_in_ledger(self) -> bool {
        matches!(self, Self::C7 | Self::C10 | Self::C11)
    }

    /// True when a settle reads and locks the tokens first, instead of fencing its first write with them.
    pub(crate) fn locks_before_settling(self) -> bool {
        !matches!(self, Self::B4 | Self::C2 | Self::C5 | Self::C9 | Self::C10 | Self::C11)
    }

    /// True when the row in jobs has a stand-in of the same width for the end state.
    pub(crate) fn has_full_width_end(self) -> bool {
        matches!(self, Self::B3 | Self::B4 | Self::C6 | Self::C8 | Self::C9)
    }

    /// The table to which claims and renewals write.
    pub(crate) fn hot_table(self) -> &'static str {
        if self.is_wide() { "jobs" } else { "owed" }
    }

    /// The indexed column that holds the due time of a job.
    pub(crate) fn due_column(self) -> &'static str {
        if matches!(self, Self::B1 | Self::B2 | Self::B3 | Self::B4) { "due_at" } else { "execute_at" }
    }

    pub(crate) fn keeps_ledger(self) -> bool {
        self != Self::B2
    }

    /// The CREATE TABLE statements.
    pub(crate) fn schema(self) -> Vec<String> {
        let attempts = "CREATE TABLE attempts (
            job_id BINARY(16) NOT NULL, number SMALLINT NOT NULL, runner VARBINARY(64) NOT NULL,
            started_at DATETIME(6) NOT NULL, finished_at DATETIME(6) NOT NULL, verdict TINYINT NOT NULL,
            error TEXT NULL, end_state TINYINT NULL, PRIMARY KEY (job_id, number))";
        let lease = if self.has_full_width() {
            "token BINARY(16) NOT NULL DEFAULT '', runner BINARY(16) NOT NULL DEFAULT '',
             started_at DATETIME(6) NOT NULL DEFAULT '1970-01-01', lease_until DATETIME(6) NOT NULL DEFAULT '1970-01-01'"
        } else {
            "token BINARY(16) NULL, runner VARBINARY(64) NULL, started_at DATETIME(6) NULL, lease_until DATETIME(6) NULL"
        };
        let running = format!(
            "attempt SMALLINT NOT NULL DEFAULT 0, spared SMALLINT NOT NULL DEFAULT 0, max_attempts SMALLINT NOT NULL,
             {lease}, cancel_requested_at DATETIME(6) NULL"
        );
        let (state, end) = if self.has_full_width_end() {
            ("state TINYINT NOT NULL DEFAULT 0", "finished_at DATETIME(6) NOT NULL DEFAULT '1970-01-01'")
        } else {
            ("state TINYINT NULL", "finished_at DATETIME(6) NULL")
        };
        let mut tables = vec![attempts.to_owned()];
        if self.is_wide() {
            let due = match self {
                Self::A => "KEY due (state, execute_at, id)",
                _ => "due_at DATETIME(3) NULL, verdict TINYINT NULL, last_error TEXT NULL, KEY due (due_at)",
            };
            tables.push(format!(
                "CREATE TABLE jobs (
                    id BINARY(16) NOT NULL PRIMARY KEY, queue VARBINARY(64) NOT NULL, kind VARBINARY(64) NOT NULL,
                    payload JSON NOT NULL, priority TINYINT NOT NULL, state TINYINT NOT NULL DEFAULT 0,
                    execute_at DATETIME(3) NOT NULL, {running}, timeout_ms INT NOT NULL,
                    created_at DATETIME(6) NOT NULL, {end}, {due})"
            ));
        } else {
            let due = if self == Self::C11 { "queue, priority, execute_at" } else { "execute_at" };
            let kind = if self == Self::C3 { "" } else { "kind VARBINARY(64) NOT NULL," };
            tables.push(format!(
                "CREATE TABLE jobs (
                    id BINARY(16) NOT NULL PRIMARY KEY, queue VARBINARY(64) NOT NULL, kind VARBINARY(64) NOT NULL,
                    payload JSON NOT NULL, priority TINYINT NOT NULL, max_attempts SMALLINT NOT NULL,
                    timeout_ms INT NOT NULL, created_at DATETIME(6) NOT NULL,
                    {state}, {end})"
            ));
            tables.push(format!(
                "CREATE TABLE owed (
                    id BINARY(16) NOT NULL PRIMARY KEY, queue VARBINARY(64) NOT NULL, {kind}
                    priority TINYINT NOT NULL, state TINYINT NOT NULL DEFAULT 0, execute_at DATETIME(3) NOT NULL,
                    {running}, KEY due ({due}))"
            ));
        }
        tables
    }

    /// The inserts of an accepted job: each table with its columns.
    pub(crate) fn inserts(self) -> Vec<(&'static str, Vec<Field>)> {
        use Value::{CreatedAt, Due, Id, Kind, MaxAttempts, Payload, Priority, Queue, TimeoutMs};
        let field = |column, value| Field { column, value };
        let asked = vec![
            field("id", Id),
            field("queue", Queue),
            field("kind", Kind),
            field("payload", Payload),
            field("priority", Priority),
            field("max_attempts", MaxAttempts),
            field("timeout_ms", TimeoutMs),
            field("created_at", CreatedAt),
        ];
        if self.is_wide() {
            let mut wide = asked;
            wide.push(field("execute_at", Due));
            if self.due_column() == "due_at" {
                wide.push(field("due_at", Due));
            }
            return vec![("jobs", wide)];
        }
        let mut owed = vec![
            field("id", Id),
            field("queue", Queue),
            field("kind", Kind),
            field("priority", Priority),
            field("execute_at", Due),
            field("max_attempts", MaxAttempts),
        ];
        if self == Self::C3 {
            owed.retain(|field| field.value != Kind);
        }
        vec![("jobs", asked), ("owed", owed)]
    }

    /// The claim of jobs that are still due. The index hint is necessary, here and in every statement by primary key.
    /// On a table with few rows the optimizer prefers a scan to an IN list, and the hot table has few rows whenever the
    /// system keeps up. A scan waits for rows of other flushes, and causes deadlocks between batches that share no job.
    pub(crate) fn claim_update(self, ids: usize) -> String {
        let (table, due) = (self.hot_table(), self.due_column());
        let leave_queue = if due == "due_at" { "due_at = NULL," } else { "" };
        format!(
            "UPDATE {table} FORCE INDEX (PRIMARY)
             SET {leave_queue} state = 2, attempt = attempt + 1, token = ?, runner = ?,
                 started_at = UTC_TIMESTAMP(6), lease_until = UTC_TIMESTAMP(6) + INTERVAL {LEASE_SECONDS} SECOND
             WHERE id IN ({}) AND state IN (0, 1) AND {due} <= UTC_TIMESTAMP(3)",
            places(ids)
        )
    }

    /// The read of the claimed jobs, with everything that a handler needs.
    pub(crate) fn claim_select(self, ids: usize) -> String {
        let columns = "payload, jobs.kind, jobs.queue, timeout_ms";
        if self.is_wide() {
            format!(
                "SELECT id, attempt, max_attempts, started_at, {columns} FROM jobs WHERE id IN ({}) AND token = ?",
                places(ids)
            )
        } else {
            format!(
                "SELECT owed.id, owed.attempt, owed.max_attempts, owed.started_at, {columns}
                 FROM owed STRAIGHT_JOIN jobs ON jobs.id = owed.id WHERE owed.id IN ({}) AND owed.token = ?",
                places(ids)
            )
        }
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name().to_lowercase())
    }
}

/// A column of an insert, and its value.
#[derive(Clone, Copy)]
pub(crate) struct Field {
    pub(crate) column: &'static str,
    pub(crate) value: Value,
}

/// The values that an insert can write. Times come from the server's clock, so a due time is sent as a delay.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value {
    Id,
    Queue,
    Kind,
    Payload,
    Priority,
    MaxAttempts,
    TimeoutMs,
    Due,
    CreatedAt,
}

impl Value {
    /// The SQL expression around an argument.
    pub(crate) fn sql(self, argument: &str) -> String {
        match self {
            Self::Due => format!("UTC_TIMESTAMP(3) + INTERVAL {argument} MICROSECOND"),
            Self::CreatedAt => "UTC_TIMESTAMP(6)".to_owned(),
            _ => argument.to_owned(),
        }
    }

    /// The column of the JSON document that holds the value.
    pub(crate) fn json_argument(self) -> &'static str {
        match self {
            Self::Id => "UNHEX(id)",
            Self::Queue => "queue",
            Self::Kind => "kind",
            Self::Payload => "payload",
            Self::Priority => "priority",
            Self::MaxAttempts => "max_attempts",
            Self::TimeoutMs => "timeout_ms",
            Self::Due => "delay_us",
            Self::CreatedAt => "",
        }
    }

    /// The literal for the text protocol.
    pub(crate) fn literal(self, job: &NewJob) -> String {
        match self {
            Self::Id => format!("x'{}'", job.id.simple()),
            Self::Queue => format!("'{QUEUE}'"),
            Self::Kind => format!("'{KIND}'"),
            Self::Payload => format!("'{}'", job.payload.replace('\\', "\\\\").replace('\'', "''")),
            Self::MaxAttempts => "5".to_owned(),
            Self::TimeoutMs => "30000".to_owned(),
            Self::Priority | Self::Due => "0".to_owned(),
            Self::CreatedAt => String::new(),
        }
    }
}
