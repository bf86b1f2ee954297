//! A connection and the statements that it sends: insert, claim and settle of a batch, in each compared form.

use std::collections::HashSet;

use anyhow::{Context as _, Result, ensure};
use chrono::NaiveDateTime;
use sqlx::mysql::MySqlDatabaseError;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, MySqlConnection, Row as _};
use uuid::Uuid;

use crate::shape::{Field, Shape, Value};

pub(crate) const QUEUE: &str = "default";
pub(crate) const KIND: &str = "email";
pub(crate) const RUNNER: &str = "runner-0198f0c2a";
pub(crate) const LEASE_SECONDS: u32 = 30;

const COMPLETED: i8 = 3;
const SUCCEEDED: i8 = 0;

/// Form in which a batch of new jobs is sent to the server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum InsertForm {
    /// One prepared statement for each batch length that occurs.
    Exact,
    /// Prepared statements of 1, 2, 4, … rows. A batch uses those of its binary digits.
    PowersOfTwo,
    /// One prepared statement with one JSON argument.
    JsonTable,
    /// Literals in the text, one statement for each table.
    Text,
    /// Literals in the text, with BEGIN, all inserts and COMMIT in one round trip.
    TextOneTrip,
}

/// Length of the IN list of a batch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListForm {
    /// As long as the batch.
    Exact,
    /// The next power of two, filled with the last id. Ledger rows are inserted in powers of two.
    Padded,
}

impl ListForm {
    fn pad<T: Copy>(self, mut list: Vec<T>) -> Vec<T> {
        if let (Self::Padded, Some(&last)) = (self, list.last()) {
            list.resize(list.len().next_power_of_two(), last);
        }
        list
    }
}

/// Counters that a settle updates.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tally {
    None,
    /// Each connection adds to its own row.
    OwnRow,
    /// All connections add to one row, and wait for each other's commits.
    SharedRow,
}

/// The statement forms of a lane.
#[derive(Clone, Copy)]
pub(crate) struct Forms {
    pub(crate) insert: InsertForm,
    pub(crate) lists: ListForm,
    pub(crate) tally: Tally,
    /// Prepared statements that a connection keeps. The default of sqlx is 100.
    pub(crate) statement_cache: usize,
}

impl Default for Forms {
    fn default() -> Self {
        Self { insert: InsertForm::Exact, lists: ListForm::Exact, tally: Tally::None, statement_cache: 100 }
    }
}

/// A job to insert.
pub(crate) struct NewJob {
    pub(crate) id: Uuid,
    pub(crate) payload: String,
}

impl NewJob {
    fn new(id: Uuid) -> Self {
        let payload = format!(
            r#"{{"to":"{}@example.test","subject":"Your order has left the house","template":"order-shipped","locale":"en-GB","order":{{"number":"{}","lines":3,"total_cents":12990}}}}"#,
            id.simple(),
            &id.simple().to_string()[..8],
        );
        Self { id, payload }
    }
}

/// The data of a claimed job that its settle needs.
pub(crate) struct Claimed {
    id: Uuid,
    attempt: i16,
    started_at: NaiveDateTime,
    token: Uuid,
}

/// A connection with its statements, like a flusher of the store's group commit.
pub(crate) struct Lane {
    pub(crate) number: u8,
    pub(crate) shape: Shape,
    pub(crate) forms: Forms,
    pub(crate) conn: MySqlConnection,
    pub(crate) deadlocks: u64,
}

impl Lane {
    /// Commit new jobs. Retry after a deadlock.
    pub(crate) async fn insert(&mut self, ids: &[Uuid]) -> Result<()> {
        let jobs: Vec<_> = ids.iter().copied().map(NewJob::new).collect();
        loop {
            match self.try_insert(&jobs).await {
                Ok(()) => return Ok(()),
                Err(error) => self.forgive_deadlock(error).await?,
            }
        }
    }

    /// Claim due jobs by primary key. Retry after a deadlock.
    pub(crate) async fn claim(&mut self, ids: &[Uuid]) -> Result<Vec<Claimed>> {
        loop {
            match self.try_claim(ids).await {
                Ok(claimed) => return Ok(claimed),
                Err(error) => self.forgive_deadlock(error).await?,
            }
        }
    }

    /// Settle claimed jobs. Retry after a deadlock.
    pub(crate) async fn settle(&mut self, claimed: &[Claimed]) -> Result<()> {
        loop {
            match self.try_settle(claimed).await {
                Ok(()) => return Ok(()),
                Err(error) => self.forgive_deadlock(error).await?,
            }
        }
    }

    /// Count a deadlock or lock-wait timeout and roll back. Return every other error.
    async fn forgive_deadlock(&mut self, error: anyhow::Error) -> Result<()> {
        let number = error
            .downcast_ref::<sqlx::Error>()
            .and_then(sqlx::Error::as_database_error)
            .and_then(|error| error.try_downcast_ref::<MySqlDatabaseError>())
            .map(MySqlDatabaseError::number);
        if !matches!(number, Some(1205 | 1213)) {
            return Err(error);
        }
        self.deadlocks += 1;
        self.conn.execute("ROLLBACK").await?;
        Ok(())
    }

    async fn try_insert(&mut self, jobs: &[NewJob]) -> Result<()> {
        let tables = self.shape.inserts();
        if self.forms.insert == InsertForm::TextOneTrip {
            let mut text = "BEGIN;".to_owned();
            for (table, fields) in &tables {
                text.push_str(&insert_text(table, fields, jobs));
                text.push(';');
            }
            text.push_str("COMMIT");
            sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut self.conn).await?;
            return Ok(());
        }

        let document = if self.forms.insert == InsertForm::JsonTable { json_document(jobs)? } else { String::new() };
        let mut tx = self.conn.begin().await?;
        for (table, fields) in &tables {
            let inserted = match self.forms.insert {
                InsertForm::Exact => insert_values(&mut tx, table, fields, jobs).await?,
                InsertForm::PowersOfTwo => {
                    let (mut inserted, mut rest) = (0, jobs);
                    for length in powers_of_two(jobs.len()) {
                        let (chunk, after) = rest.split_at(length);
                        inserted += insert_values(&mut tx, table, fields, chunk).await?;
                        rest = after;
                    }
                    inserted
                }
                InsertForm::JsonTable => {
                    let sql = insert_json(table, fields);
                    sqlx::query(AssertSqlSafe(sql)).bind(&document).execute(&mut *tx).await?.rows_affected()
                }
                InsertForm::Text | InsertForm::TextOneTrip => {
                    let sql = insert_text(table, fields, jobs);
                    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *tx).await?.rows_affected()
                }
            };
            expect_rows("insert", inserted, jobs.len())?;
        }
        tx.commit().await?;
        Ok(())
    }

    async fn try_claim(&mut self, ids: &[Uuid]) -> Result<Vec<Claimed>> {
        let token = Uuid::new_v4();
        let list = self.forms.lists.pad(ids.to_vec());
        let mut update =
            sqlx::query(AssertSqlSafe(self.shape.claim_update(list.len()))).bind(token).bind(RUNNER.as_bytes());
        for id in &list {
            update = update.bind(id);
        }
        let taken = update.execute(&mut self.conn).await?.rows_affected();
        expect_rows("claim", taken, ids.len())?;

        let mut select = sqlx::query(AssertSqlSafe(self.shape.claim_select(list.len())));
        for id in &list {
            select = select.bind(id);
        }
        let rows = select.bind(token).fetch_all(&mut self.conn).await?;
        expect_rows("claim's read", rows.len() as u64, ids.len())?;
        let mut claimed = Vec::with_capacity(rows.len());
        for row in &rows {
            // A runner would give these values to the handler, so their decoding is part of the cost. The read is
            // unchecked, because the payload is text on MariaDB and JSON on MySQL.
            let handed_on: (i16, String, Vec<u8>, Vec<u8>, i32) =
                (row.try_get(2)?, row.try_get_unchecked(4)?, row.try_get(5)?, row.try_get(6)?, row.try_get(7)?);
            std::hint::black_box(handed_on);
            claimed.push(Claimed { id: row.try_get(0)?, attempt: row.try_get(1)?, started_at: row.try_get(3)?, token });
        }
        Ok(claimed)
    }

    async fn try_settle(&mut self, claimed: &[Claimed]) -> Result<()> {
        let (number, forms) = (self.number, self.forms);
        let settle = Settle {
            shape: self.shape,
            lists: forms.lists,
            claimed,
            ids: forms.lists.pad(claimed.iter().map(|job| job.id).collect()),
            pairs: forms.lists.pad(claimed.iter().map(|job| (job.id, job.token)).collect()),
        };
        let mut tx = self.conn.begin().await?;
        if self.shape.locks_before_settling() {
            settle.lock(&mut tx).await?;
        }
        settle.write_ledger(&mut tx).await?;
        if !self.shape.is_wide() {
            settle.delete_owed(&mut tx).await?;
        }
        if !self.shape.ends_in_ledger() {
            settle.end_jobs(&mut tx).await?;
        }
        if forms.tally != Tally::None {
            let row = if forms.tally == Tally::OwnRow { number } else { 0 };
            settle.tally(&mut tx, row).await?;
        }
        tx.commit().await?;
        Ok(())
    }
}

/// The statements of one settle. Every statement is fenced, or runs under locks that a fenced one has taken.
struct Settle<'a> {
    shape: Shape,
    lists: ListForm,
    claimed: &'a [Claimed],
    ids: Vec<Uuid>,
    pairs: Vec<(Uuid, Uuid)>,
}

impl Settle<'_> {
    /// Read the tokens and lock the rows.
    async fn lock(&self, conn: &mut MySqlConnection) -> Result<()> {
        let sql = format!(
            "SELECT id, token FROM {} FORCE INDEX (PRIMARY) WHERE id IN ({}) FOR UPDATE",
            self.shape.hot_table(),
            places(self.ids.len())
        );
        let mut select = sqlx::query(AssertSqlSafe(sql));
        for id in &self.ids {
            select = select.bind(id);
        }
        let mut held = HashSet::new();
        for row in select.fetch_all(conn).await? {
            held.insert((row.try_get::<Uuid, _>(0)?, row.try_get::<Option<Uuid>, _>(1)?));
        }
        ensure!(self.claimed.iter().all(|job| held.contains(&(job.id, Some(job.token)))), "a token is not ours");
        Ok(())
    }

    /// Insert the ended attempts, in powers of two when the lists are padded: rows cannot be repeated like ids.
    async fn write_ledger(&self, conn: &mut MySqlConnection) -> Result<()> {
        if self.shape == Shape::C4 {
            return self.copy_ledger(conn).await;
        }
        if !self.shape.keeps_ledger() {
            return Ok(());
        }
        let lengths = match self.lists {
            ListForm::Exact => vec![self.claimed.len()],
            ListForm::Padded => powers_of_two(self.claimed.len()),
        };
        let end_state = self.shape.ends_in_ledger().then_some(COMPLETED);
        let mut rest = self.claimed;
        for length in lengths {
            let (chunk, after) = rest.split_at(length);
            insert_attempts(conn, chunk, end_state).await?;
            rest = after;
        }
        Ok(())
    }

    /// Insert the ended attempts by a copy of the owed rows, which are locked.
    async fn copy_ledger(&self, conn: &mut MySqlConnection) -> Result<()> {
        let sql = format!(
            "INSERT INTO attempts (job_id, number, runner, started_at, finished_at, verdict)
             SELECT id, attempt, runner, started_at, UTC_TIMESTAMP(6), ? FROM owed WHERE id IN ({})",
            places(self.ids.len())
        );
        let mut copy = sqlx::query(AssertSqlSafe(sql)).bind(SUCCEEDED);
        for id in &self.ids {
            copy = copy.bind(id);
        }
        expect_rows("settle's ledger", copy.execute(conn).await?.rows_affected(), self.claimed.len())
    }

    /// Delete the rows of the jobs from owed. MariaDB accepts no index hint in a DELETE; with ORDER BY and LIMIT it
    /// uses the primary key as well.
    async fn delete_owed(&self, conn: &mut MySqlConnection) -> Result<()> {
        let fence = match self.shape {
            Shape::C2 => "AND token = ?".to_owned(),
            Shape::C5 | Shape::C9 | Shape::C10 | Shape::C11 => self.fence(),
            _ => String::new(),
        };
        let ids = places(self.ids.len());
        let sql = format!("DELETE FROM owed WHERE id IN ({ids}) {fence} ORDER BY id LIMIT ?");
        let mut delete = sqlx::query(AssertSqlSafe(sql));
        for id in &self.ids {
            delete = delete.bind(id);
        }
        match self.shape {
            Shape::C2 => delete = delete.bind(self.claimed.first().context("a settle of nothing")?.token),
            Shape::C5 | Shape::C9 | Shape::C10 | Shape::C11 => {
                for (id, token) in &self.pairs {
                    delete = delete.bind(id).bind(token);
                }
            }
            _ => {}
        }
        let deleted = delete.bind(self.claimed.len() as u64).execute(conn).await?.rows_affected();
        expect_rows("settle's delete", deleted, self.claimed.len())
    }

    /// Write the end state to the row in jobs.
    async fn end_jobs(&self, conn: &mut MySqlConnection) -> Result<()> {
        let clear = match self.shape {
            // Runner and start of the last attempt stay in the row.
            Shape::B2 => ", verdict = 0, token = NULL, lease_until = NULL",
            Shape::A | Shape::B1 => ", token = NULL, runner = NULL, started_at = NULL, lease_until = NULL",
            Shape::B3 | Shape::B4 => ", token = '', lease_until = '1970-01-01'",
            _ => "",
        };
        let fenced = self.shape == Shape::B4;
        let sql = format!(
            "UPDATE jobs FORCE INDEX (PRIMARY) SET state = ?, finished_at = UTC_TIMESTAMP(6) {clear}
             WHERE id IN ({}) {}",
            places(self.ids.len()),
            if fenced { self.fence() } else { String::new() }
        );
        let mut end = sqlx::query(AssertSqlSafe(sql)).bind(COMPLETED);
        for id in &self.ids {
            end = end.bind(id);
        }
        if fenced {
            for (id, token) in &self.pairs {
                end = end.bind(id).bind(token);
            }
        }
        expect_rows("settle's end state", end.execute(conn).await?.rows_affected(), self.claimed.len())
    }

    /// Add to the counters.
    async fn tally(&self, conn: &mut MySqlConnection, row: u8) -> Result<()> {
        sqlx::query(
            "INSERT INTO tallies (lane, queue, state, n) VALUES (?, ?, ?, ?) ON DUPLICATE KEY UPDATE n = n + VALUES(n)",
        )
        .bind(row)
        .bind(QUEUE.as_bytes())
        .bind(COMPLETED)
        .bind(i64::try_from(self.claimed.len())?)
        .execute(conn)
        .await?;
        Ok(())
    }

    /// A condition for each job with its own token. The statement has a list of ids as well, because MariaDB does not
    /// search the primary key by a list of pairs.
    fn fence(&self) -> String {
        format!("AND (id, token) IN ({})", vec!["(?,?)"; self.pairs.len()].join(","))
    }
}

/// Insert rows through a prepared statement with one placeholder per value.
async fn insert_values(conn: &mut MySqlConnection, table: &str, fields: &[Field], jobs: &[NewJob]) -> Result<u64> {
    let row = fields.iter().map(|field| field.value.sql("?")).collect::<Vec<_>>().join(",");
    let row = format!("({row})");
    let sql = format!("{} VALUES {}", insert_head(table, fields), vec![row.as_str(); jobs.len()].join(","));
    let mut insert = sqlx::query(AssertSqlSafe(sql));
    for job in jobs {
        for field in fields {
            insert = match field.value {
                Value::Id => insert.bind(job.id),
                Value::Queue => insert.bind(QUEUE.as_bytes()),
                Value::Kind => insert.bind(KIND.as_bytes()),
                Value::Payload => insert.bind(job.payload.as_str()),
                Value::Priority => insert.bind(0_i8),
                Value::MaxAttempts => insert.bind(5_i16),
                Value::TimeoutMs => insert.bind(30_000_i32),
                Value::Due => insert.bind(0_i64),
                Value::CreatedAt => insert,
            };
        }
    }
    Ok(insert.execute(conn).await?.rows_affected())
}

/// The insert that unpacks one JSON argument on the server.
fn insert_json(table: &str, fields: &[Field]) -> String {
    let values = fields.iter().map(|field| field.value.sql(field.value.json_argument())).collect::<Vec<_>>().join(",");
    format!(
        "{} SELECT {values} FROM JSON_TABLE(?, '$[*]' COLUMNS (
            id CHAR(32) PATH '$[0]', queue VARCHAR(64) PATH '$[1]', kind VARCHAR(64) PATH '$[2]',
            payload LONGTEXT PATH '$[3]', priority TINYINT PATH '$[4]', max_attempts SMALLINT PATH '$[5]',
            timeout_ms INT PATH '$[6]', delay_us BIGINT PATH '$[7]')) AS batch",
        insert_head(table, fields)
    )
}

/// The argument of [`insert_json`]: an array of rows. The payload is a string, so that it stays unchanged.
fn json_document(jobs: &[NewJob]) -> Result<String> {
    let rows: Vec<_> =
        jobs.iter().map(|job| (job.id.simple().to_string(), QUEUE, KIND, &job.payload, 0, 5, 30_000, 0)).collect();
    Ok(serde_json::to_string(&rows)?)
}

/// The insert with literals.
fn insert_text(table: &str, fields: &[Field], jobs: &[NewJob]) -> String {
    let mut sql = insert_head(table, fields);
    sql.push_str(" VALUES ");
    for (n, job) in jobs.iter().enumerate() {
        sql.push_str(if n == 0 { "(" } else { ",(" });
        for (n, field) in fields.iter().enumerate() {
            if n > 0 {
                sql.push(',');
            }
            sql.push_str(&field.value.sql(&field.value.literal(job)));
        }
        sql.push(')');
    }
    sql
}

fn insert_head(table: &str, fields: &[Field]) -> String {
    let columns: Vec<_> = fields.iter().map(|field| field.column).collect();
    format!("INSERT INTO {table} ({})", columns.join(","))
}

async fn insert_attempts(conn: &mut MySqlConnection, claimed: &[Claimed], end_state: Option<i8>) -> Result<()> {
    let sql = format!(
        "INSERT INTO attempts (job_id, number, runner, started_at, finished_at, verdict, error, end_state) VALUES {}",
        vec!["(?,?,?,?,UTC_TIMESTAMP(6),?,?,?)"; claimed.len()].join(",")
    );
    let mut insert = sqlx::query(AssertSqlSafe(sql));
    for job in claimed {
        insert = insert
            .bind(job.id)
            .bind(job.attempt)
            .bind(RUNNER.as_bytes())
            .bind(job.started_at)
            .bind(SUCCEEDED)
            .bind(None::<&str>)
            .bind(end_state);
    }
    expect_rows("settle's ledger", insert.execute(conn).await?.rows_affected(), claimed.len())
}

/// `?,?,?` for this many arguments.
pub(crate) fn places(n: usize) -> String {
    vec!["?"; n].join(",")
}

/// The binary digits of a length, largest first: 250 is 128, 64, 32, 16, 8, 2.
fn powers_of_two(n: usize) -> Vec<usize> {
    (0..usize::BITS).rev().map(|bit| 1 << bit).filter(|power| n & power != 0).collect()
}

pub(crate) fn expect_rows(what: &str, got: u64, wanted: usize) -> Result<()> {
    ensure!(got == wanted as u64, "{what} touched {got} rows instead of {wanted}");
    Ok(())
}
