//! The read side of reports: named statements, run read-only on connections of their own, and streamed row by row.
//!
//! These measures keep a report from doing harm, from the outside in: an account with read rights only (set up by the
//! operator), a read-only session and transaction, the prepared protocol (one statement, bound values), a time limit
//! enforced by the server, and the same limit enforced here in case the server does not answer. Reports never share a
//! pool with jobs or the API, so a slow report takes no connection from them.

use std::sync::Arc;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use chrono::{DateTime, NaiveDate, NaiveDateTime, Utc};
use futures_util::TryStreamExt;
use sqlx::mysql::types::{MySqlTime, MySqlTimeSign};
use sqlx::mysql::{
    MySql, MySqlColumn, MySqlConnection, MySqlDatabaseError, MySqlPool, MySqlPoolOptions, MySqlRow, MySqlTypeInfo,
    MySqlValueRef,
};
use sqlx::pool::PoolConnection;
use sqlx::{
    AssertSqlSafe, Column as _, ConnectOptions, Decode, Executor, Row as _, SqlSafeStr, Statement as _, Type, TypeInfo,
    ValueRef,
};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::sql::servers::{check_member, check_writable, read_servers};
use tickr_table::{Cell, Column, ColumnKind, Part, Row, RowSender, RowSource, RowStream, Select, SourceError};

/// Most rows in one batch for the reader.
const BATCH_ROWS: usize = 256;
/// Approximate number of bytes that completes a batch earlier, so that wide rows do not need much memory.
const BATCH_BYTES: usize = 256 << 10;
/// Longest wait of a report for one of its connections.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);
/// Extra time after the server's own time limit, which fires first and gives the better error. The small statements
/// around the query have the same limit.
const GRACE: Duration = Duration::from_secs(2);

/// A [`RowSource`] that reads from MySQL or MariaDB.
#[derive(Debug)]
pub struct ReportQueries {
    /// For each server of the URL.
    pools: Arc<[MySqlPool]>,
    /// Whether to read from the server that takes writes only.
    from_writer: bool,
    tasks: TaskTracker,
}

/// The URL for reports is invalid. The error does not show it, because it may contain a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the mysql url for reports cannot be read; it looks like mysql://user:password@host:3306/database")]
pub struct InvalidUrl;

impl ReportQueries {
    /// Build a pool of at most `connections` connections. They are opened when they are needed, so that the start of
    /// the process does not depend on this server. If the URL names several servers, a report reads from the first one
    /// that can be used, or, with `from_writer`, from the first one that takes writes.
    ///
    /// # Errors
    /// [`InvalidUrl`] when `url` cannot be parsed.
    pub fn connect_lazy(url: &str, connections: u32, from_writer: bool) -> Result<Self, InvalidUrl> {
        // The driver would log slow statements with their text.
        let servers = read_servers(url).ok_or(InvalidUrl)?.into_iter().map(ConnectOptions::disable_statement_logging);
        let pool = MySqlPoolOptions::new()
            .max_connections(connections.max(1))
            .acquire_timeout(ACQUIRE_TIMEOUT)
            .idle_timeout(Duration::from_secs(60))
            .after_connect(|connection, _| {
                Box::pin(async move {
                    connection.execute("SET SESSION TRANSACTION READ ONLY").await?;
                    // The default level would keep one read view until the end, and with it the undo log of all changes
                    // made meanwhile.
                    connection.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await?;
                    Ok(())
                })
            });
        let pools = servers.map(|server| pool.clone().connect_lazy_with(server)).collect();
        Ok(Self { pools, from_writer, tasks: TaskTracker::new() })
    }

    /// Wait until all reads have ended, then close the connections. Call this after the handlers have ended: their
    /// streams are dropped by then, which stops the remaining reads.
    #[boxed]
    pub async fn close(&self) {
        self.tasks.close();
        self.tasks.wait().await;
        futures_util::future::join_all(self.pools.iter().map(MySqlPool::close)).await;
    }
}

impl RowSource for ReportQueries {
    fn open(&self, select: Select) -> RowStream {
        let (sender, stream) = tickr_table::channel();
        let (pools, from_writer) = (Arc::clone(&self.pools), self.from_writer);
        // Run in a task of its own. If a driver future were dropped half-way, its connection could keep an open
        // transaction. Here the connection is either clean or closed, whatever the reader does.
        self.tasks.spawn(async move {
            let last = match answer(&pools, from_writer, &select, &sender).await {
                Ok(()) => Ok(Part::End),
                Err(error) => Err(error),
            };
            // The reader may have been dropped already.
            let _ = sender.send(last).await;
        });
        stream
    }
}

/// Send all columns and rows of `select`. Afterwards the connection is either clean or closed.
async fn answer(
    pools: &[MySqlPool],
    from_writer: bool,
    select: &Select,
    sender: &RowSender,
) -> Result<(), SourceError> {
    let silent = || SourceError::Unavailable("the server does not answer".into());
    let patience = Instant::now() + ACQUIRE_TIMEOUT * u32::try_from(pools.len()).unwrap_or(1) + GRACE;
    let (pool, mut connection) = unless_stopped(sender, patience, silent, acquire_first(pools, from_writer)).await?;

    let thread = match unless_stopped(sender, patience, silent, begin(&mut connection, select)).await {
        Ok(thread) => thread,
        Err(error) => {
            drop(connection.detach());
            return Err(error);
        }
    };

    // The time spent waiting for a connection does not count against the query.
    let started = Instant::now();
    let deadline = started + select.time_limit + GRACE;
    let too_long = || SourceError::TimedOut { limit: select.time_limit };
    match unless_stopped(sender, deadline, too_long, read(&mut connection, select, sender, started)).await {
        Ok(()) => {
            end(connection).await;
            Ok(())
        }
        Err(error) => {
            drop(connection.detach());
            if matches!(error, SourceError::Stopped | SourceError::TimedOut { .. }) {
                kill(pool, thread).await;
            }
            Err(error)
        }
    }
}

/// Run `work` until it ends, the reader stops or the deadline passes.
async fn unless_stopped<T>(
    sender: &RowSender,
    deadline: Instant,
    too_late: impl FnOnce() -> SourceError,
    work: impl Future<Output = Result<T, SourceError>>,
) -> Result<T, SourceError> {
    tokio::select! {
        biased;
        () = sender.stopped() => Err(SourceError::Stopped),
        answer = tokio::time::timeout_at(deadline, work) => {
            answer.unwrap_or_else(|_| Err(too_late()))
        }
    }
}

/// Take a connection to the first of these servers that can be used.
async fn acquire_first(
    pools: &[MySqlPool],
    from_writer: bool,
) -> Result<(&MySqlPool, PoolConnection<MySql>), SourceError> {
    let mut refused = SourceError::Unavailable("no server is named".into());
    for pool in pools {
        match acquire(pool).await {
            Ok(connection) if pools.len() == 1 => return Ok((pool, connection)),
            Ok(mut connection) => match check_usable(&mut connection, from_writer).await {
                Ok(()) => return Ok((pool, connection)),
                Err(error) => refused = SourceError::Unavailable(error.to_string()),
            },
            Err(error @ SourceError::Unavailable(_)) => refused = error,
            Err(error) => return Err(error),
        }
    }
    Err(refused)
}

async fn check_usable(connection: &mut MySqlConnection, from_writer: bool) -> Result<(), sqlx::Error> {
    check_member(connection).await?;
    if from_writer { check_writable(connection).await } else { Ok(()) }
}

async fn acquire(pool: &MySqlPool) -> Result<PoolConnection<MySql>, SourceError> {
    pool.acquire().await.map_err(|error| match error {
        // The driver also reports `PoolTimedOut` if the server refuses connections.
        sqlx::Error::PoolTimedOut if pool.size() >= pool.options().get_max_connections() => SourceError::Busy,
        sqlx::Error::PoolTimedOut => SourceError::Unavailable("no connection within 5 s".into()),
        error => source_error(&error, Duration::ZERO),
    })
}

/// Start a read-only transaction with a time limit. Return the server's id of the connection, which is needed to kill
/// it.
async fn begin(connection: &mut MySqlConnection, select: &Select) -> Result<u64, SourceError> {
    let failed = |error| source_error(&error, select.time_limit);
    let who = connection.fetch_one("SELECT VERSION(), CONNECTION_ID()").await.map_err(failed)?;
    let version: String = who.try_get_unchecked(0).map_err(failed)?;
    let thread: u64 = who.try_get_unchecked(1).map_err(failed)?;
    // Both settings limit the whole statement, including waits for a slow reader. The one of MySQL applies only to
    // SELECT, which is all that a read-only session runs.
    let limit = if version.contains("MariaDB") {
        sqlx::query("SET SESSION max_statement_time = ?").bind(select.time_limit.as_secs_f64().max(0.001))
    } else {
        let limit_ms = u64::try_from(select.time_limit.as_millis()).unwrap_or(u64::MAX);
        // 0 would mean no limit.
        sqlx::query("SET SESSION max_execution_time = ?").bind(limit_ms.clamp(1, u64::from(u32::MAX)))
    };
    limit.execute(&mut *connection).await.map_err(failed)?;
    // Some servers cannot prepare this statement. The session is read-only already; this protects against a statement
    // that has changed the session.
    connection.execute(sqlx::raw_sql("START TRANSACTION READ ONLY")).await.map_err(failed)?;
    Ok(thread)
}

/// Return the connection to the pool without its transaction, or close it. The rows are complete either way.
async fn end(mut connection: PoolConnection<MySql>) {
    let rollback = connection.execute(sqlx::raw_sql("ROLLBACK"));
    if !matches!(tokio::time::timeout(GRACE, rollback).await, Ok(Ok(_))) {
        drop(connection.detach());
    }
}

/// Kill a connection on the server. After its socket is closed, the server notices only with its next write or check;
/// with a sleeping statement that took five seconds and more. This is best effort: the server's own limit ends the
/// statement too.
async fn kill(pool: &MySqlPool, thread: u64) {
    let kill = async {
        let mut connection = pool.acquire().await?;
        connection.execute(sqlx::raw_sql(AssertSqlSafe(format!("KILL CONNECTION {thread}")))).await
    };
    if !matches!(tokio::time::timeout(GRACE, kill).await, Ok(Ok(_))) {
        tracing::debug!(thread, "cannot kill a stopped report on the server; its time limit will end it");
    }
}

/// Run the statement and send its columns and rows.
async fn read(
    connection: &mut MySqlConnection,
    select: &Select,
    sender: &RowSender,
    started: Instant,
) -> Result<(), SourceError> {
    let failed = |error| source_error(&error, select.time_limit);
    // The statement comes from the operator's configuration, never from a job.
    let sql = AssertSqlSafe(Arc::clone(&select.sql)).into_sql_str();
    // Preparing returns the columns even if there are no rows.
    let statement = connection.prepare(sql).await.map_err(failed)?;
    let announced = readings(statement.columns());

    let query = select.values.iter().fold(statement.query(), bind);
    let mut rows = query.fetch(connection);
    let mut row = rows.try_next().await.map_err(failed)?;
    // The columns of an executed statement are more exact, because a parameter's value can decide the type of a column.
    let readings = row.as_ref().map_or(announced, |row| readings(row.columns()));
    let columns = readings.iter().map(|reading| reading.column.clone()).collect();
    sender.send(Ok(Part::Columns(columns))).await?;

    let mut batch = Vec::with_capacity(BATCH_ROWS);
    let mut batch_bytes = 0;
    while let Some(current) = row {
        let cells = cells(&current, &readings)?;
        batch_bytes += cells.iter().map(Cell::size_bytes).sum::<usize>();
        batch.push(cells);
        if batch.len() >= BATCH_ROWS || batch_bytes >= BATCH_BYTES {
            let full = std::mem::replace(&mut batch, Vec::with_capacity(BATCH_ROWS));
            sender.send(Ok(Part::Rows(full))).await?;
            batch_bytes = 0;
        }
        row = rows.try_next().await.map_err(failed)?;
    }
    // At the time limit, MySQL ends a SLEEP or a long function without an error, but with a wrong value.
    if started.elapsed() >= select.time_limit {
        return Err(SourceError::TimedOut { limit: select.time_limit });
    }
    if !batch.is_empty() {
        sender.send(Ok(Part::Rows(batch))).await?;
    }
    Ok(())
}

type Query<'q> = sqlx::query::Query<'q, MySql, sqlx::mysql::MySqlArguments>;

fn bind<'q>(query: Query<'q>, value: &Cell) -> Query<'q> {
    match value {
        Cell::Null => query.bind(None::<String>),
        Cell::Bool(value) => query.bind(*value),
        Cell::Integer(value) => query.bind(*value),
        Cell::Unsigned(value) => query.bind(*value),
        Cell::Float(value) => query.bind(*value),
        Cell::Decimal(text) | Cell::Text(text) | Cell::Json(text) | Cell::Time(text) => query.bind(text.clone()),
        Cell::Bytes(bytes) => query.bind(bytes.clone()),
        Cell::Date(date) => query.bind(*date),
        Cell::DateTime(at) => query.bind(*at),
        Cell::Timestamp(at) => query.bind(*at),
    }
}

/// A column and the way to decode its values. It is found once and used for every row.
struct Reading {
    column: Column,
    wire: Wire,
}

/// The form in which the driver returns a value, where [`ColumnKind`] alone does not decide it.
#[derive(Clone, Copy)]
enum Wire {
    Plain,
    Unsigned,
    SingleFloat,
}

fn readings(columns: &[MySqlColumn]) -> Vec<Reading> {
    columns
        .iter()
        .map(|column| {
            let (kind, wire) = kind_of(column.type_info());
            Reading { column: Column { name: column.name().to_owned(), kind }, wire }
        })
        .collect()
}

fn kind_of(info: &MySqlTypeInfo) -> (ColumnKind, Wire) {
    let kind = match info.name() {
        "FLOAT" => return (ColumnKind::Float, Wire::SingleFloat),
        // The driver gives TINYINT(1) UNSIGNED the same name.
        "BOOLEAN" if <u64 as Type<MySql>>::compatible(info) => return (ColumnKind::Bool, Wire::Unsigned),
        "BOOLEAN" => ColumnKind::Bool,
        "DOUBLE" => ColumnKind::Float,
        "DECIMAL" => ColumnKind::Decimal,
        "DATE" => ColumnKind::Date,
        "TIME" => ColumnKind::Time,
        "DATETIME" => ColumnKind::DateTime,
        "TIMESTAMP" => ColumnKind::Timestamp,
        "JSON" => ColumnKind::Json,
        "NULL" | "SET" => ColumnKind::Text,
        _ if <u64 as Type<MySql>>::compatible(info) => return (ColumnKind::Integer, Wire::Unsigned),
        _ if <i64 as Type<MySql>>::compatible(info) => ColumnKind::Integer,
        // The name of the type is no help: the driver calls text with a `_bin` collation binary. The character set
        // tells text from binary.
        _ if <str as Type<MySql>>::compatible(info) => ColumnKind::Text,
        _ => ColumnKind::Bytes,
    };
    (kind, Wire::Plain)
}

fn cells(row: &MySqlRow, readings: &[Reading]) -> Result<Row, SourceError> {
    readings
        .iter()
        .enumerate()
        .map(|(at, reading)| {
            row.try_get_raw(at)
                .map_err(Into::into)
                .and_then(|raw| if raw.is_null() { Ok(Cell::Null) } else { cell(raw, reading) })
                .map_err(|_| {
                    let Column { name, kind } = &reading.column;
                    SourceError::Unreadable(format!("a value of column {name} cannot be read as {kind:?}"))
                })
        })
        .collect()
}

fn cell(raw: MySqlValueRef<'_>, reading: &Reading) -> Result<Cell, sqlx::error::BoxDynError> {
    let text = |raw| <&str as Decode<MySql>>::decode(raw).map(str::to_owned);
    Ok(match (reading.column.kind, reading.wire) {
        (ColumnKind::Integer, Wire::Unsigned) => Cell::Unsigned(Decode::<MySql>::decode(raw)?),
        (ColumnKind::Integer, _) => Cell::Integer(Decode::<MySql>::decode(raw)?),
        // The only boolean type is TINYINT(1), and some tables keep small numbers in it.
        (ColumnKind::Bool, Wire::Unsigned) => match Decode::<MySql>::decode(raw)? {
            0 => Cell::Bool(false),
            1 => Cell::Bool(true),
            number => Cell::Unsigned(number),
        },
        (ColumnKind::Bool, _) => match Decode::<MySql>::decode(raw)? {
            0 => Cell::Bool(false),
            1 => Cell::Bool(true),
            number => Cell::Integer(number),
        },
        // Convert by way of decimal digits: cast to f64, the f32 nearest to 0.1 becomes 0.10000000149011612.
        (ColumnKind::Float, Wire::SingleFloat) => {
            let single: f32 = Decode::<MySql>::decode(raw)?;
            Cell::Float(single.to_string().parse()?)
        }
        (ColumnKind::Float, _) => Cell::Float(Decode::<MySql>::decode(raw)?),
        (ColumnKind::Decimal, _) => Cell::Decimal(text(raw)?),
        (ColumnKind::Text, _) => Cell::Text(text(raw)?),
        (ColumnKind::Json, _) => Cell::Json(text(raw)?),
        (ColumnKind::Bytes, _) => Cell::Bytes(<&[u8] as Decode<MySql>>::decode(raw)?.to_vec()),
        (ColumnKind::Time, _) => Cell::Time(time(&Decode::<MySql>::decode(raw)?)),
        (ColumnKind::Date, _) => match <NaiveDate as Decode<MySql>>::decode(raw.clone()) {
            Ok(date) => Cell::Date(date),
            Err(error) => incomplete_date(raw).ok_or(error)?,
        },
        (ColumnKind::DateTime, _) => match <NaiveDateTime as Decode<MySql>>::decode(raw.clone()) {
            Ok(at) => Cell::DateTime(at),
            Err(error) => incomplete_date(raw).ok_or(error)?,
        },
        // The driver sets every session to UTC.
        (ColumnKind::Timestamp, _) => match <DateTime<Utc> as Decode<MySql>>::decode(raw.clone()) {
            Ok(at) => Cell::Timestamp(at),
            Err(error) => incomplete_date(raw).ok_or(error)?,
        },
    })
}

fn time(time: &MySqlTime) -> String {
    let sign = if time.sign() == MySqlTimeSign::Negative { "-" } else { "" };
    let clock = format!("{sign}{:02}:{:02}:{:02}", time.hours(), time.minutes(), time.seconds());
    match time.microseconds() {
        0 => clock,
        micros => format!("{clock}.{micros:06}"),
    }
}

/// Return a date that no calendar has, such as `2024-00-00`, as text, with its time. Old schemas contain such dates.
fn incomplete_date(raw: MySqlValueRef<'_>) -> Option<Cell> {
    incomplete_text(<&[u8] as Decode<MySql>>::decode(raw).ok()?).map(Cell::Text)
}

/// The bytes are a length, then year, month and day. Hour, minute, second and the microseconds follow only if one of
/// them is not zero.
fn incomplete_text(bytes: &[u8]) -> Option<String> {
    let [_, low, high, month, day, time @ ..] = bytes else { return None };
    let date = format!("{:04}-{month:02}-{day:02}", u16::from_le_bytes([*low, *high]));
    let [hour, minute, second, micros @ ..] = time else { return Some(date) };
    let clock = format!("{date} {hour:02}:{minute:02}:{second:02}");
    let Ok(micros) = <[u8; 4]>::try_from(micros) else { return Some(clock) };
    Some(format!("{clock}.{:06}", u32::from_le_bytes(micros)))
}

/// Translate an error of the server by its number. The server's own message may quote the statement, so it is not
/// passed on.
fn source_error(error: &sqlx::Error, limit: Duration) -> SourceError {
    let Some(number) = server_number(error) else {
        return match error {
            sqlx::Error::Io(error) => SourceError::Unavailable(format!("the connection failed: {}", error.kind())),
            sqlx::Error::Protocol(_) => SourceError::Unavailable("the server sent an unexpected answer".into()),
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::Encode(_) => {
                SourceError::Unreadable("a value cannot be read or written".into())
            }
            _ => SourceError::Unavailable("no usable connection".into()),
        };
    };
    let refused = |reason| SourceError::Refused { number, reason };
    let unavailable = |reason: &str| SourceError::Unavailable(format!("{reason} (error {number})"));
    match number {
        1969 | 3024 => SourceError::TimedOut { limit },

        1021 | 1037 | 1038 | 1041 | 1114 => unavailable("it is out of disk or memory"),
        1020 | 1205 | 1213 => unavailable("other transactions were changing the same rows"),
        1040 | 1203 | 1226 => unavailable("it has too many connections or users of this account"),
        1045 | 1129 | 1130 => unavailable("it denies access to the account for reports"),
        1047 | 1053 | 1152..=1161 | 1180 | 1317 | 1836 | 1927 | 2006 | 2013 | 3169 => {
            unavailable("it closed the connection or is not ready")
        }

        1064 | 1149 => refused("a syntax error"),
        1054 | 1305 => refused("an unknown column or function"),
        1049 | 1051 | 1146 => refused("an unknown table or database"),
        1044 | 1142 | 1143 | 1227 | 1290 | 1370 => refused("the account for reports may not do that"),
        1207 | 1792 => refused("it writes, but reports are read-only"),
        1210 | 1295 => refused("it cannot be run with bound values"),
        1292 | 1366 | 1367 | 1690 => refused("a value does not fit its type"),
        _ => refused("an error"),
    }
}

fn server_number(error: &sqlx::Error) -> Option<u16> {
    let sqlx::Error::Database(error) = error else { return None };
    Some(error.try_downcast_ref::<MySqlDatabaseError>()?.number())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_url_is_not_repeated() {
        let error = ReportQueries::connect_lazy("mysql://root:hunter2@host:port/db", 2, true).unwrap_err();
        assert!(!error.to_string().contains("hunter2"));
    }

    #[test]
    fn a_date_that_no_calendar_has_keeps_its_time() {
        for (bytes, expected) in [
            (&[4, 0xe8, 7, 2, 0][..], "2024-02-00"),
            (&[7, 0xe8, 7, 2, 0, 10, 0, 0], "2024-02-00 10:00:00"),
            (&[11, 0xe8, 7, 2, 0, 10, 5, 59, 0x40, 0xe2, 1, 0], "2024-02-00 10:05:59.123456"),
        ] {
            assert_eq!(incomplete_text(bytes).as_deref(), Some(expected));
        }
        assert_eq!(incomplete_text(&[0]), None);
    }
}
