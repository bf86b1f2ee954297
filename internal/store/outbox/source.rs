//! The outbox of an application, on a server of its own: the table `tickr_outbox` in the application's database.
//!
//! It may be any MySQL or MariaDB, and belongs to others. So tickr reads committed rows without locks and deletes by
//! primary key, each statement a transaction of its own. Every statement is sent as text, so the server needs no room for
//! prepared statements. Names of columns are spelled out, so the table may have more of them.
//!
//! A future of this file that is dropped half way closes the connection, so an answer is never taken for that of another
//! statement.

use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, Instant};

use async_recursion::async_recursion as boxed;
use sqlx::mysql::MySqlRow;
use sqlx::{ConnectOptions, Row};
use uuid::Uuid;

use crate::outbox::deletion::Deletion;
use crate::outbox::source_error::SourceError;
use crate::outbox::source_rows::{CopiedRow, RowHead, copied_row, moment, number, row_head, too_large};
use crate::sql::connection::{self, FIRST_WORDS, Target, within};
use crate::sql::error::waited_for_lock;
use crate::sql::script::{Script, StepResult, Value};
use crate::sql::servers::read_server;
use crate::sql::session::Session;
use tickr_job::{Name, TablePrefix, Timestamp};

/// Rows that are copied together at most.
pub(super) const ROWS: usize = 1_000;
/// Bytes of payloads and options that are copied together at most, but one row at least.
const BYTES: usize = 4 << 20;
/// Rows that a page looks at, besides the known ones, as long as little is known of their sizes.
const FIRST_ROWS: usize = 16;
/// Most bytes that are read of a row that is too large: 65,536 characters of its payload and of its options.
const MAX_BEGINNING: usize = 2 * 4 * 65_536;
/// Rows that are counted at most.
const MAX_COUNTED: u32 = 10_000;
/// Longest time for the answer to one statement.
const ANSWER: Duration = Duration::from_secs(10);
/// Idle time after which another connection is opened: a firewall may have dropped this one silently. The runner that
/// copies asks each second.
const RESTED: Duration = Duration::from_secs(5);

/// The statement that makes the table in the database of an application. It has the columns of migration 0039, which are
/// a promise.
pub const OUTBOX_SCHEMA: &str = "\
CREATE TABLE tickr_outbox (
    id         BINARY(16)   NOT NULL PRIMARY KEY,
    kind       VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    payload    MEDIUMTEXT   NOT NULL,
    queue      VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NULL,
    execute_at DATETIME(3)  NULL,
    options    TEXT         NULL,
    created_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;";

/// The outbox of an application, as the configuration names it.
#[derive(Clone)]
pub struct SourceSettings {
    /// Its name.
    pub name: Name,
    /// `mysql://user:password@host:port/database`.
    pub url: String,
}

impl fmt::Debug for SourceSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL contains the password.
        f.debug_struct("SourceSettings").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The outbox of an application, with the one connection to it.
pub struct OutboxSource {
    target: Target,
    conn: Option<Session<'static>>,
    /// Time of the last answer on the connection.
    heard: Instant,
    /// Rows that the next page looks at, besides the known ones.
    looks_at: usize,
}

impl fmt::Debug for OutboxSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The Debug form of the driver's options contains the password.
        f.debug_struct("OutboxSource").field("connected", &self.conn.is_some()).finish_non_exhaustive()
    }
}

/// A page of an outbox.
#[derive(Debug, Default)]
pub struct SourcePage {
    /// The rows with the lowest ids, in their order: at most 1,000, and 4 MiB of payloads and options unless it is one
    /// row.
    pub rows: Vec<CopiedRow>,
    /// By the clock of the source: no row of the page was inserted later, and a row with the same id that was is another
    /// one. None if a row does not say when it was inserted.
    pub until: Option<Timestamp>,
    /// True if there may be more rows.
    pub more: bool,
}

/// The rows that wait in an outbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceBacklog {
    /// Number of committed rows. Counted up to 10,000.
    pub waiting: u32,
    /// When the oldest of the first 10,000 of them was inserted, by the clock of the source.
    pub oldest_at: Option<Timestamp>,
    /// Time since then in microseconds, by the same clock.
    pub oldest_us: u64,
}

impl OutboxSource {
    /// Prepare for the outbox at `url`. No connection is opened before it is needed.
    ///
    /// # Errors
    /// [`SourceError`] when the URL cannot be read. The text does not contain it.
    pub fn new(url: &str) -> Result<Self, SourceError> {
        let options = read_server(url).ok_or_else(SourceError::url)?;
        // Whatever the URL or the server says: times are read as UTC, and texts as UTF-8.
        let options = options.timezone(Some("+00:00".to_owned())).charset("utf8mb4").disable_statement_logging();
        let target = Target::new(vec![options], TablePrefix::default());
        Ok(Self { target, conn: None, heard: Instant::now(), looks_at: FIRST_ROWS })
    }

    /// Check that the outbox is there, has the right form, and may be read and emptied with this account.
    ///
    /// # Errors
    /// [`SourceError`], which says what is missing.
    #[boxed]
    pub async fn check(&mut self) -> Result<(), SourceError> {
        self.conn = Some(self.open().await?);
        self.heard = Instant::now();
        Ok(())
    }

    /// Read the committed rows with the lowest ids, except `known`. Takes no locks. Every page begins with the first
    /// row: a transaction that is committed between two pages may have rows in front of the last one and behind it, and
    /// those in front are copied first. Rows of the page before are deleted at the source, or known.
    ///
    /// The server reads the whole text of a row for its size. So the first page of many looks at few rows, and the next
    /// ones at more while they are small. The page after a failure looks at one row, in case there were too many.
    ///
    /// # Errors
    /// [`SourceError`] when the source cannot be reached or refuses.
    #[boxed]
    pub async fn page(&mut self, known: &BTreeSet<Uuid>) -> Result<SourcePage, SourceError> {
        // It stays so if this page fails, or is given up.
        let looks_at = std::mem::replace(&mut self.looks_at, 1);
        let most = looks_at + known.len();
        let sql = format!(
            "SELECT id, COALESCE(LENGTH(payload), 0) AS payload_bytes, COALESCE(LENGTH(options), 0) AS options_bytes, \
             UTC_TIMESTAMP(6) AS now FROM tickr_outbox FORCE INDEX (PRIMARY) ORDER BY id LIMIT {most}"
        );
        let found = self.ask("read the rows", sql, Vec::new()).await?.rows;
        let heads: Vec<RowHead> = self.read(found.iter().map(row_head))?;
        let Some(last) = heads.last() else {
            self.looks_at = FIRST_ROWS;
            return Ok(SourcePage::default());
        };
        let (mut until, mut more) = (Some(last.now), heads.len() == most);
        let mut next_looks_at = if more { 4 * looks_at } else { FIRST_ROWS };
        let (mut small, mut large, mut bytes) = (Vec::new(), Vec::new(), 0);
        for head in heads.iter().filter(|head| !known.contains(&head.id)) {
            let taken = small.len() + large.len();
            let is_large = too_large(head).is_some();
            bytes += if is_large { MAX_BEGINNING } else { head.payload_bytes + head.options_bytes };
            if taken == ROWS || bytes > BYTES && taken > 0 {
                more = true;
                next_looks_at = 2 * taken;
                break;
            }
            if is_large {
                large.push(head);
            } else {
                small.push(head.id);
            }
        }
        let mut rows = Vec::with_capacity(small.len() + large.len());
        if !small.is_empty() {
            rows.extend(self.rows("payload", "options", &small).await?);
        }
        for head in large {
            // The beginning is enough for the operator who reads why the row was rejected.
            let found = self.rows("LEFT(payload, 65536)", "LEFT(options, 65536)", &[head.id]).await?;
            rows.extend(found.into_iter().map(|row| CopiedRow { unfit: too_large(head), ..row }));
        }
        rows.sort_unstable_by_key(|row| row.id);
        for row in &rows {
            // An application may write any time into the column.
            until = until.zip(row.inserted_at).map(|(until, at)| until.max(at));
        }
        self.looks_at = next_looks_at.min(ROWS);
        Ok(SourcePage { rows, until, more })
    }

    async fn rows(&mut self, payload: &str, options: &str, ids: &[Uuid]) -> Result<Vec<CopiedRow>, SourceError> {
        let (places, values) = Script::as_text().list(ids);
        let sql = format!(
            "SELECT id, LEFT(kind, 200) AS kind, {payload} AS payload, LEFT(queue, 200) AS queue, execute_at, \
             {options} AS options, created_at FROM tickr_outbox FORCE INDEX (PRIMARY) WHERE id IN {places}"
        );
        let found = self.ask("read the rows", sql, values).await?.rows;
        self.read(found.iter().map(copied_row))
    }

    /// Delete these rows, unless a row was inserted after `until`. Returns those that another session locks: they are
    /// still there.
    ///
    /// # Errors
    /// [`SourceError`] when the source cannot be reached or refuses. Some rows may be deleted then.
    #[boxed]
    pub async fn delete(&mut self, ids: &[Uuid], until: Option<Timestamp>) -> Result<BTreeSet<Uuid>, SourceError> {
        let mut some_locked = Vec::new();
        for ids in ids.chunks(ROWS) {
            if !self.delete_unless_locked(ids, until).await? {
                some_locked.extend_from_slice(ids);
            }
        }
        // The others must not wait for the locked ones.
        let mut deletion = Deletion::of(&some_locked);
        while let Some(ids) = deletion.next_list() {
            if !self.delete_unless_locked(&ids, until).await? {
                deletion.waited(&ids);
            }
        }
        Ok(deletion.into_left())
    }

    async fn delete_unless_locked(&mut self, ids: &[Uuid], until: Option<Timestamp>) -> Result<bool, SourceError> {
        // A server scans a small table for a list that is long beside it, and would wait for the rows of open
        // transactions. A join can only look up one id after the other.
        let list = vec!["SELECT CAST(? AS BINARY(16)) AS id"; ids.len().max(1)].join(" UNION ALL ");
        let sql = format!(
            "DELETE t FROM ({list}) x STRAIGHT_JOIN tickr_outbox t FORCE INDEX (PRIMARY) ON t.id = x.id \
             WHERE (t.created_at > ?) IS NOT TRUE"
        );
        let (_, mut values) = Script::as_text().list(ids);
        values.push(until.into());
        match self.ask("delete the copied rows", sql, values).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_lock_wait() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Measure how much waits.
    ///
    /// # Errors
    /// [`SourceError`] when the source cannot be reached or refuses.
    #[boxed]
    pub async fn backlog(&mut self) -> Result<SourceBacklog, SourceError> {
        let sql = "SELECT COUNT(*) AS waiting, MIN(created_at) AS oldest_at, \
                   GREATEST(COALESCE(TIMESTAMPDIFF(MICROSECOND, MIN(created_at), UTC_TIMESTAMP(6)), 0), 0) AS oldest_us \
                   FROM (SELECT created_at FROM tickr_outbox ORDER BY id LIMIT ?) w";
        let found = self.ask("count the rows", sql.to_owned(), vec![MAX_COUNTED.into()]).await?.rows;
        let backlog = found.first().map(|row| -> Result<SourceBacklog, sqlx::Error> {
            Ok(SourceBacklog {
                waiting: u32::try_from(number(row, "waiting")?).unwrap_or(u32::MAX),
                oldest_at: moment(row, "oldest_at")?.ok(),
                oldest_us: number(row, "oldest_us")?,
            })
        });
        Ok(self.read(backlog.into_iter())?.pop().unwrap_or_default())
    }

    /// Close the connection. The next call opens another.
    pub fn disconnect(&mut self) {
        self.conn = None;
    }

    /// Collect values that were read, or say that an answer has another form than expected.
    fn read<T>(&self, values: impl Iterator<Item = Result<T, sqlx::Error>>) -> Result<Vec<T>, SourceError> {
        values.collect::<Result<_, _>>().map_err(|error| SourceError::of("read the rows", &error))
    }

    async fn ask(
        &mut self,
        attempted: &'static str,
        sql: String,
        values: Vec<Value<'_>>,
    ) -> Result<StepResult, SourceError> {
        let mut conn = match self.conn.take().filter(|_| self.heard.elapsed() < RESTED) {
            Some(conn) => conn,
            None => self.open().await?,
        };
        let mut script = Script::as_text();
        script.push(sql, values);
        let answer = within(ANSWER, script.run(&mut conn)).await;
        self.heard = Instant::now();
        if answer.as_ref().err().is_none_or(waited_for_lock) {
            self.conn = Some(conn);
        }
        let mut answer = answer.map_err(|error| SourceError::of(attempted, &error))?;
        Ok(answer.pop().unwrap_or_default())
    }

    async fn open(&self) -> Result<Session<'static>, SourceError> {
        let refused = |attempted: &'static str| move |error| SourceError::of(attempted, &error);
        let mut conn = connection::open(&self.target).await.map_err(refused("connect"))?;
        // A statement each, because the server names the first thing that is missing.
        for (attempted, sql) in [
            ("limit the waits for locks", "SET SESSION innodb_lock_wait_timeout = 1, lock_wait_timeout = 2"),
            (
                "read the table",
                "SELECT id, kind, payload, queue, execute_at, options, created_at FROM tickr_outbox \
                 FORCE INDEX (PRIMARY) WHERE id = x'00'",
            ),
            // The server refuses this deletion in the same way as another one, although it finds no row.
            ("delete from the table", "DELETE FROM tickr_outbox WHERE id = x'00'"),
        ] {
            within(FIRST_WORDS, sqlx::raw_sql(sql).execute(&mut conn)).await.map_err(refused(attempted))?;
        }
        let sql = "SELECT COLUMN_NAME AS name, COLUMN_TYPE AS type, COLUMN_KEY AS place FROM information_schema.COLUMNS \
                   WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'tickr_outbox'";
        let columns = within(FIRST_WORDS, sqlx::raw_sql(sql).fetch_all(&mut conn)).await;
        let columns = columns.and_then(|rows| rows.iter().map(Column::read).collect::<Result<Vec<_>, _>>());
        match problem_of(&columns.map_err(refused("read the columns"))?) {
            Some(problem) => Err(SourceError::form(problem)),
            None => Ok(conn),
        }
    }
}

struct Column {
    name: String,
    form: String,
    in_primary_key: bool,
}

impl Column {
    fn read(row: &MySqlRow) -> Result<Self, sqlx::Error> {
        let text = |column| -> Result<String, sqlx::Error> {
            Ok(String::from_utf8_lossy(&row.try_get_unchecked::<Vec<u8>, _>(column)?).to_lowercase())
        };
        Ok(Self { name: text("name")?, form: text("type")?, in_primary_key: text("place")? == "pri" })
    }
}

/// Return why a table of this form is no outbox of an application.
fn problem_of(columns: &[Column]) -> Option<&'static str> {
    let of_tickr = columns.iter().any(|column| column.name == "copied_from");
    let mut key = columns.iter().filter(|column| column.in_primary_key);
    let has_key = key.next().is_some_and(|column| column.name == "id") && key.next().is_none();
    let has_id = columns.iter().any(|column| column.name == "id" && column.form == "binary(16)");
    if of_tickr {
        // Its rows would be copied onto themselves and then deleted.
        return Some("it is the outbox in the database of a tickr, which moves its rows itself");
    }
    if !has_id {
        return Some("the column id is not BINARY(16)");
    }
    (!has_key).then_some("its primary key is not the column id")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(columns: &[(&str, &str, bool)]) -> Vec<Column> {
        let column = |(name, form, in_primary_key): &(&str, &str, bool)| Column {
            name: (*name).to_owned(),
            form: (*form).to_owned(),
            in_primary_key: *in_primary_key,
        };
        columns.iter().map(column).collect()
    }

    #[test]
    fn a_table_must_have_the_id_as_its_key_and_not_be_that_of_a_tickr() {
        assert_eq!(problem_of(&table(&[("id", "binary(16)", true), ("kind", "text", false)])), None);
        for columns in [
            table(&[("id", "char(36)", true)]),
            table(&[("id", "binary(16)", false), ("number", "int", true)]),
            table(&[("id", "binary(16)", true), ("number", "int", true)]),
            table(&[("id", "binary(16)", true), ("copied_from", "varchar(64)", false)]),
        ] {
            assert!(problem_of(&columns).is_some());
        }
    }

    #[test]
    fn the_table_of_an_application_has_the_columns_of_the_migration() {
        let migration = include_str!("../migrations/0039_outbox.sql");
        let columns = |sql: &str| -> Vec<String> {
            let table = sql.split("CREATE TABLE tickr_outbox (").nth(1).unwrap().split("\n)").next().unwrap();
            let lines = table.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("--"));
            lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
        };
        assert_eq!(columns(OUTBOX_SCHEMA), columns(migration));
    }

    #[test]
    fn no_text_contains_the_password() {
        let url = "mysql://shop:canary@127.0.0.1:1/shop";
        let settings = SourceSettings { name: "shop".parse().unwrap(), url: url.to_owned() };
        let source = OutboxSource::new(url).unwrap();
        let broken = OutboxSource::new("mysql://shop:canary@[::1").unwrap_err();
        let said = format!("{settings:?} {source:?} {broken} {broken:?}");
        assert!(!said.contains("canary"), "{said}");
    }
}
