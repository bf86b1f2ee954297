//! Searches for jobs by a filter, in bounded steps.
//!
//! A filter picks one *source*: the narrowest place where its jobs can be looked up in order of their ids. Sources
//! include the rows of a tag, the ticks of a schedule, the unfinished jobs, the ledger, and all jobs. A step reads one
//! chunk of the source, which is a bounded number of adjacent rows, and checks all other conditions on these rows. A
//! caller that wants more jobs takes the next step. So no statement depends on the size of a table, whatever the filter
//! matches, and a caller that stops knows the position to continue from.
//!
//! A chunk is first measured and then read between fixed ends. Rows that enter or leave the source in between change
//! the result of the chunk, but never make a search skip rows between two chunks.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use chrono::TimeDelta;
use sqlx::Row;
use uuid::Uuid;

use crate::sql::batches::{Sql, padded, padded_len, placeholders, statement};
use crate::sql::connection::on_pool;
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::{Among, Filter, Name, State, Tag, Timestamp, Wanted, first_id_of};

/// Number of rows of a source in one chunk.
const CHUNK: i64 = 2_000;
/// Number of rows in one chunk when payloads have to be read.
const HEAVY_CHUNK: i64 = 200;
/// Most rows in one chunk of `owed`, when its narrow rows alone decide what matches.
const LIGHT_CHUNK: i64 = 20_000;
/// A queue with at most so many unfinished jobs is read through its index. In a larger one a walk finds jobs soon.
const SMALL_QUEUE: i64 = 20_000;
/// Longest time of one call. The chunk that is under way is finished first.
const PATIENCE: Duration = Duration::from_secs(3);
/// Tolerance for wrong clocks of hosts in a range of creation times. Hosts make the ids, but the creation time that
/// counts is by the store's clock. A job from a host whose clock is further off may be missed.
const SKEW: TimeDelta = TimeDelta::minutes(5);
/// Most rows of a source that one count may look at, and most jobs that it counts.
const MAX_COUNTED_OVER: i64 = 100_000;
const MAX_COUNTED: i64 = 10_000;

/// The condition that the newest error of a job contains a text.
const ERROR_CONTAINS: &str = "LOCATE(LOWER(CAST(? AS CHAR CHARACTER SET utf8mb4)), LOWER((SELECT a.error FROM attempts a \
                              WHERE a.job_id = j.id AND a.error IS NOT NULL ORDER BY a.number DESC LIMIT 1))) > 0";

/// A range of ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// The first id.
    pub(crate) from: Uuid,
    /// The id behind the last one.
    pub(crate) to: Uuid,
}

impl Span {
    const ALL: Self = Self { from: Uuid::nil(), to: Uuid::max() };

    fn is_empty(self) -> bool {
        self.from >= self.to
    }
}

/// The direction of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    NewestFirst,
    OldestFirst,
}

impl Order {
    const fn as_str(self) -> &'static str {
        match self {
            Self::NewestFirst => "DESC",
            Self::OldestFirst => "ASC",
        }
    }
}

/// A value of a statement.
#[derive(Clone, Debug)]
enum Bind {
    Text(String),
    Bytes(Vec<u8>),
    Id(Uuid),
    Moment(Timestamp),
    Number(i64),
}

fn bound(sql: String, binds: Vec<Bind>) -> Sql {
    binds.into_iter().fold(statement(sql), |query, bind| match bind {
        Bind::Text(text) => query.bind(text),
        Bind::Bytes(bytes) => query.bind(bytes),
        Bind::Id(id) => query.bind(id),
        Bind::Moment(moment) => query.bind(moment),
        Bind::Number(number) => query.bind(number),
    })
}

/// A piece of SQL made of constants, with its values.
#[derive(Clone, Debug, Default)]
struct Piece {
    sql: String,
    binds: Vec<Bind>,
}

impl Piece {
    fn add(&mut self, sql: &str, binds: impl IntoIterator<Item = Bind>) {
        self.sql.push_str(sql);
        self.binds.extend(binds);
    }
}

/// A filter, prepared as a search.
#[derive(Clone, Debug)]
pub(crate) struct Search {
    /// `SELECT … FROM … WHERE …`, open for more conditions on `key`.
    source: Piece,
    /// The column of the source that is the job's id.
    key: &'static str,
    /// True if the source is the ledger, with one row per line.
    by_line: bool,
    /// True if rows of the source may belong to deleted jobs. The ledger of ticks outlives the jobs.
    outlives: bool,
    /// `AND …` for the conditions on columns of the source itself. They hold while rows are read, not while a chunk is
    /// measured.
    own: Piece,
    /// True if `own` and the state are all that a row has to meet.
    light: bool,
    /// `AND …` for every other condition, on `w` (the source), `j` (jobs), `o` (owed) and `d` (dead letters).
    conditions: Piece,
    span: Span,
    order: Order,
    chunk: i64,
}

/// A part of a walk.
pub(crate) struct Chunk {
    /// The range to read now.
    span: Span,
    /// The range behind it; absent at the end.
    pub(crate) rest: Option<Span>,
    /// Number of rows in it.
    rows: i64,
}

impl Search {
    /// Build a search in a part of all jobs.
    pub(crate) fn among(filter: &Filter, order: Order, among: Among) -> Self {
        let mut conditions = Piece::default();
        let mut search = Self {
            source: Piece::default(),
            key: "id",
            by_line: false,
            outlives: false,
            own: Piece::default(),
            light: false,
            conditions: Piece::default(),
            span: span_of(filter),
            order,
            chunk: CHUNK,
        };
        search.choose_source(filter, among, &mut conditions);
        match among {
            Among::All => {}
            Among::Owed => conditions.add(" AND o.id IS NOT NULL", []),
            Among::Ended => conditions.add(" AND o.id IS NULL", []),
        }
        narrow(filter, &mut conditions);
        if !filter.payload.is_empty() {
            search.chunk = HEAVY_CHUNK;
        }
        search.conditions = conditions;
        search
    }

    fn choose_source(&mut self, filter: &Filter, among: Among, conditions: &mut Piece) {
        let ended = filter.state.filter(|state| state.is_end());
        let owed = filter.state.filter(|state| !state.is_end());
        // A job that is unique until its start may have lost its key, and then runs or waits for its next attempt.
        let holds = owed.filter(|state| *state == State::Waiting);
        let source = &mut self.source;
        let (mut tags, mut schedule) = (filter.tags.iter(), filter.schedule.as_ref());
        if !filter.ids.is_empty() {
            let ids: Vec<Uuid> = filter.ids.iter().map(|id| id.uuid()).collect();
            source.add("SELECT id FROM jobs FORCE INDEX (PRIMARY) WHERE id IN ", []);
            source.add(&placeholders(padded_len(ids.len())), padded(&ids).map(Bind::Id));
        } else if let Some(tag) = tags.next() {
            source.add("SELECT job_id AS id FROM job_tags FORCE INDEX (PRIMARY) WHERE tag = ?", [text(tag.as_str())]);
            self.key = "job_id";
        } else if let (Some(_), Some(kind), Some(key)) = (holds, &filter.kind, &filter.unique_key) {
            // A job that waits for its first attempt holds its unique key, so `unique_keys` has a row for it.
            source.add(
                "SELECT job_id AS id FROM unique_keys FORCE INDEX (PRIMARY) WHERE kind = ? AND unique_key = ?",
                [text(kind.as_str()), Bind::Bytes(key.clone().into_bytes())],
            );
            self.key = "job_id";
        } else if let Some(batch) = filter.batch {
            source.add(
                "SELECT job_id AS id FROM batch_jobs FORCE INDEX (batch_jobs_batch) WHERE batch_id = ?",
                [Bind::Id(batch.uuid())],
            );
            self.key = "job_id";
        } else if let Some(key) = &filter.order_key {
            source.add(
                "SELECT job_id AS id FROM order_places FORCE INDEX (order_places_job) WHERE order_key = ?",
                [Bind::Bytes(key.clone().into_bytes())],
            );
            self.key = "job_id";
        } else if let Some(key) = &filter.limit_key {
            source.add(
                "SELECT job_id AS id FROM job_limit_keys FORCE INDEX (job_limit_keys_key) WHERE limit_key = ?",
                [Bind::Bytes(key.clone().into_bytes())],
            );
            self.key = "job_id";
        } else if let Some(operation) = filter.operation {
            source.add(
                "SELECT replayed_as AS id FROM dead_letters FORCE INDEX (dead_letters_operation) WHERE operation = ?",
                [Bind::Id(operation)],
            );
            // A dead letter may outlive the job that was made of it.
            (self.key, self.outlives) = ("replayed_as", true);
        } else if let Some(group) = filter.fingerprint {
            source.add(
                "SELECT job_id AS id FROM dead_letters FORCE INDEX (dead_letters_group) WHERE fingerprint = ?",
                [Bind::Bytes(group.bytes().to_vec())],
            );
            self.key = "job_id";
        } else if let Some(status) = filter.dead_letter {
            source.add(
                "SELECT job_id AS id FROM dead_letters FORCE INDEX (dead_letters_standing) WHERE standing = ?",
                [text(status.as_str())],
            );
            self.key = "job_id";
        } else if let Some(schedule) = schedule.take() {
            source.add(
                "SELECT job_id AS id FROM ticks FORCE INDEX (ticks_job) WHERE schedule = ?",
                [text(schedule.as_str())],
            );
            (self.key, self.outlives) = ("job_id", true);
        } else if ended.is_some() {
            source.add(
                "SELECT job_id AS id, number AS line, end_state FROM attempts FORCE INDEX (PRIMARY) WHERE TRUE",
                [],
            );
            (self.key, self.by_line) = ("job_id", true);
        } else if owed.is_some() || among == Among::Owed {
            source.add("SELECT id FROM owed FORCE INDEX (PRIMARY) WHERE TRUE", []);
            self.own = own_columns_of_owed(filter);
            self.light = is_light(filter);
        } else {
            source.add("SELECT id FROM jobs FORCE INDEX (PRIMARY) WHERE TRUE", []);
        }
        for tag in tags {
            let sql = " AND (SELECT COUNT(*) FROM job_tags t WHERE t.tag = ? AND t.job_id = j.id) = 1";
            conditions.add(sql, [text(tag.as_str())]);
        }
        if let Some(schedule) = schedule {
            let sql = " AND (SELECT COUNT(*) FROM ticks t FORCE INDEX (ticks_job) WHERE t.schedule = ? AND t.job_id = j.id) > 0";
            conditions.add(sql, [text(schedule.as_str())]);
        }
        if let Some(state) = owed {
            conditions.add(" AND o.state = ?", [text(state.as_str())]);
        }
        if let Some(state) = ended {
            // The last line has the end state of a job, unless the job is unfinished again.
            if !self.by_line {
                let sql = format!(" AND o.id IS NULL AND {} = ?", last_line("end_state"));
                conditions.add(&sql, [text(state.as_str())]);
            } else {
                conditions.add(" AND o.id IS NULL AND w.end_state = ?", [text(state.as_str())]);
                conditions.add(" AND w.line = (SELECT MAX(a.number) FROM attempts a WHERE a.job_id = w.id)", []);
            }
        }
    }

    /// Read the unfinished jobs of a queue through the index of the lanes, if the queue is small. Among the jobs of
    /// other queues they may be few and far apart.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub(crate) async fn prepare(
        conn: &mut Session<'_>,
        filter: &Filter,
        order: Order,
        among: Among,
    ) -> Result<Self, sqlx::Error> {
        let mut search = Self::among(filter, order, among);
        let Some(queue) = filter.queue.as_ref().filter(|_| search.light) else { return Ok(search) };
        let sql = "SELECT COUNT(*) FROM (SELECT 1 FROM owed FORCE INDEX (owed_line) WHERE queue = ? LIMIT ?) q";
        let jobs: i64 = sqlx::query_scalar(sql).bind(queue.as_str()).bind(SMALL_QUEUE + 1).fetch_one(conn).await?;
        if jobs <= SMALL_QUEUE {
            let mut source = Piece::default();
            source.add("SELECT id FROM owed FORCE INDEX (owed_line) WHERE queue = ?", [text(queue.as_str())]);
            search.source = source;
            search.chunk = LIGHT_CHUNK;
        }
        Ok(search)
    }

    /// Make the next chunk larger, where that costs little.
    pub(crate) fn widen(&mut self) {
        if self.light {
            self.chunk = (4 * self.chunk).min(LIGHT_CHUNK);
        }
    }

    /// Return how many rows one call may look at, if others may look at `most`.
    pub(crate) fn most_looked_at(&self, most: i64) -> i64 {
        if self.light { most * LIGHT_CHUNK / CHUNK } else { most }
    }

    /// Return whether the search may look at more rows than it finds jobs.
    pub(crate) fn is_narrow(&self) -> bool {
        self.outlives || !self.conditions.sql.is_empty()
    }

    /// Return the range of a walk that has come as far as `place`: all jobs before it, or behind it. Nothing if the
    /// walk is at its end.
    pub(crate) fn span(&self, place: Option<Uuid>) -> Option<Span> {
        let span = place.map_or(self.span, |place| self.behind(self.span, place));
        (!span.is_empty()).then_some(span)
    }

    /// Return the rest of `span` after the walk has seen `last`.
    pub(crate) fn behind(&self, span: Span, last: Uuid) -> Span {
        match self.order {
            Order::NewestFirst => Span { to: last.min(span.to), ..span },
            Order::OldestFirst => Span { from: after(last).max(span.from), ..span },
        }
    }

    fn rows_between(&self, own: &Piece, span: Span, limit: i64) -> Piece {
        let mut piece = self.source.clone();
        piece.add(&own.sql, own.binds.iter().cloned());
        let (key, order) = (self.key, self.order.as_str());
        let tail = format!(" AND {key} >= ? AND {key} < ? ORDER BY {key} {order} LIMIT ?");
        piece.add(&tail, [Bind::Id(span.from), Bind::Id(span.to), Bind::Number(limit)]);
        piece
    }

    /// Measure the next chunk.
    pub(crate) async fn chunk(&self, conn: &mut Session<'_>, span: Span) -> Result<Chunk, sqlx::Error> {
        let window = self.rows_between(&Piece::default(), span, self.chunk);
        let sql =
            format!("SELECT MIN(w.id) AS first_id, MAX(w.id) AS last_id, COUNT(*) AS counted FROM ({}) w", window.sql);
        let row = bound(sql, window.binds).fetch_one(conn).await?;
        let (first, last): (Option<Uuid>, Option<Uuid>) = (row.try_get("first_id")?, row.try_get("last_id")?);
        let rows: i64 = row.try_get("counted")?;
        let (Some(first), Some(last)) = (first, last) else { return Ok(Chunk { span, rest: None, rows }) };
        if rows < self.chunk {
            return Ok(Chunk { span, rest: None, rows });
        }
        let (read, rest) = match self.order {
            Order::NewestFirst => (Span { from: first, ..span }, Span { to: first, ..span }),
            Order::OldestFirst => (Span { to: after(last), ..span }, Span { from: after(last), ..span }),
        };
        Ok(Chunk { span: read, rest: (!rest.is_empty()).then_some(rest), rows })
    }

    /// Return a chunk that is not measured, for searches that find every row they look at.
    pub(crate) fn whole(&self, span: Span) -> Chunk {
        Chunk { span, rest: None, rows: 0 }
    }

    /// Build `SELECT columns` for the matching jobs of a chunk, at most `limit` jobs.
    pub(crate) fn matching(&self, columns: &str, chunk: &Chunk, limit: i64) -> Sql {
        // The ends of the chunk bound the rows that are read. Only few rows can have been inserted between them since
        // it was measured.
        let most = if self.is_narrow() && !self.light { 2 * self.chunk } else { limit };
        let window = self.rows_between(&self.own, chunk.span, most);
        let (order, conditions) = (self.order.as_str(), &self.conditions);
        let sql = format!(
            "SELECT {columns} FROM ({}) w STRAIGHT_JOIN jobs j ON j.id = w.id LEFT JOIN owed o ON o.id = j.id \
             LEFT JOIN dead_letters d ON d.job_id = j.id WHERE TRUE{} ORDER BY w.id {order} LIMIT ?",
            window.sql, conditions.sql
        );
        let binds = window.binds.into_iter().chain(conditions.binds.iter().cloned()).chain([Bind::Number(limit)]);
        bound(sql, binds.collect())
    }
}

fn text(text: &str) -> Bind {
    Bind::Text(text.to_owned())
}

/// Build the conditions that the columns of `owed` itself answer.
fn own_columns_of_owed(filter: &Filter) -> Piece {
    let mut own = Piece::default();
    if let Some(state) = filter.state {
        own.add(" AND state = ?", [text(state.as_str())]);
    }
    if let Some(kind) = &filter.kind {
        own.add(" AND kind = ?", [text(kind.as_str())]);
    }
    if let Some(queue) = &filter.queue {
        own.add(" AND queue = ?", [text(queue.as_str())]);
    }
    own
}

/// Return whether the columns of `owed` answer the whole filter.
fn is_light(filter: &Filter) -> bool {
    let plain =
        Filter { state: filter.state, kind: filter.kind.clone(), queue: filter.queue.clone(), ..Filter::default() };
    *filter == plain
}

/// Return the id that follows `id` directly.
fn after(id: Uuid) -> Uuid {
    Uuid::from_u128(id.as_u128().saturating_add(1))
}

/// Return the range of ids that can match, by creation times and by the ids in the filter.
fn span_of(filter: &Filter) -> Span {
    let mut span = Span::ALL;
    if let Some(moment) = filter.created_after.and_then(|moment| moment.checked_sub_signed(SKEW)) {
        span.from = first_id_of(moment);
    }
    if let Some(moment) = filter.created_before.and_then(|moment| moment.checked_add_signed(SKEW)) {
        span.to = first_id_of(moment);
    }
    if let (Some(first), Some(last)) = (filter.ids.iter().min(), filter.ids.iter().max()) {
        span.from = span.from.max(first.uuid());
        span.to = span.to.min(after(last.uuid()));
    }
    span
}

/// Build an expression for a column of the last line in a job's ledger.
fn last_line(column: &str) -> String {
    format!("(SELECT a.{column} FROM attempts a WHERE a.job_id = j.id ORDER BY a.number DESC LIMIT 1)")
}

/// Add the conditions that are checked row by row.
fn narrow(filter: &Filter, conditions: &mut Piece) {
    if let Some(kind) = &filter.kind {
        conditions.add(" AND j.kind = ?", [text(kind.as_str())]);
    }
    if let Some(queue) = &filter.queue {
        conditions.add(" AND j.queue = ?", [text(queue.as_str())]);
    }
    if let Some(key) = &filter.unique_key {
        conditions.add(" AND j.unique_key = ?", [Bind::Bytes(key.clone().into_bytes())]);
    }
    if let Some(batch) = filter.batch {
        let sql = " AND (SELECT COUNT(*) FROM batch_jobs b WHERE b.job_id = j.id AND b.batch_id = ?) = 1";
        conditions.add(sql, [Bind::Id(batch.uuid())]);
    }
    if let Some(operation) = filter.operation {
        let sql = " AND (SELECT COUNT(*) FROM dead_letters x FORCE INDEX (dead_letters_operation) \
                   WHERE x.operation = ? AND x.replayed_as = j.id) > 0";
        conditions.add(sql, [Bind::Id(operation)]);
    }
    if let Some(key) = &filter.order_key {
        let sql = " AND (SELECT COUNT(*) FROM order_places p WHERE p.job_id = j.id AND p.order_key = ?) = 1";
        conditions.add(sql, [Bind::Bytes(key.clone().into_bytes())]);
    }
    if let Some(key) = &filter.limit_key {
        let sql = " AND (SELECT COUNT(*) FROM job_limit_keys l WHERE l.job_id = j.id AND l.limit_key = ?) = 1";
        conditions.add(sql, [Bind::Bytes(key.clone().into_bytes())]);
    }
    if let Some(host) = &filter.host {
        conditions.add(" AND j.host = ?", [Bind::Bytes(host.clone().into_bytes())]);
    }
    let due = format!("COALESCE(o.execute_at, {}, j.execute_at)", last_line("execute_at"));
    let finished = format!("o.id IS NULL AND {}", last_line("finished_at"));
    for (what, from, to) in [
        ("j.created_at", filter.created_after, filter.created_before),
        (due.as_str(), filter.due_after, filter.due_before),
        (finished.as_str(), filter.finished_after, filter.finished_before),
    ] {
        if let Some(moment) = from {
            conditions.add(&format!(" AND {what} >= ?"), [Bind::Moment(moment)]);
        }
        if let Some(moment) = to {
            conditions.add(&format!(" AND {what} < ?"), [Bind::Moment(moment)]);
        }
    }
    if let Some(error) = &filter.error {
        conditions.add(&format!(" AND {ERROR_CONTAINS}"), [text(error)]);
    }
    if filter.fingerprint.is_some() || filter.dead_letter.is_some() {
        // A binary without dead letters may have left an old one behind. It does not count while the job is unfinished.
        conditions.add(" AND o.id IS NULL", []);
    }
    if let Some(group) = filter.fingerprint {
        conditions.add(" AND d.fingerprint = ?", [Bind::Bytes(group.bytes().to_vec())]);
    }
    if let Some(status) = filter.dead_letter {
        conditions.add(" AND d.standing = ?", [text(status.as_str())]);
    }
    for word in &filter.texts {
        text_is_somewhere(word, conditions);
    }
    for (path, wanted) in &filter.payload {
        payload_says(&path.in_mysql(), wanted, conditions);
    }
}

/// Add the condition that a text is in one of the places where an operator sees it. Errors ignore case; kinds, queues
/// and tags are compared whole.
fn text_is_somewhere(word: &str, conditions: &mut Piece) {
    conditions.add(
        &format!(
            " AND ({ERROR_CONTAINS} OR LOCATE(?, j.unique_key) > 0 OR LOCATE(?, j.host) > 0 \
             OR (SELECT COUNT(*) FROM order_places p WHERE p.job_id = j.id AND LOCATE(?, p.order_key) > 0) > 0 \
             OR (SELECT COUNT(*) FROM job_limit_keys l WHERE l.job_id = j.id AND LOCATE(?, l.limit_key) > 0) > 0"
        ),
        std::iter::once(text(word)).chain((0..4).map(|_| Bind::Bytes(word.as_bytes().to_vec()))),
    );
    if word.parse::<Name>().is_ok() {
        conditions.add(" OR j.kind = ? OR j.queue = ?", [text(word), text(word)]);
    }
    if word.parse::<Tag>().is_ok() {
        conditions.add(" OR (SELECT COUNT(*) FROM job_tags t WHERE t.tag = ? AND t.job_id = j.id) > 0", [text(word)]);
    }
    // The dashboard shows the end of an id.
    let digits: String = word.trim_start_matches('…').chars().filter(|c| *c != '-').collect();
    if digits.len() >= 6 && digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        conditions.add(" OR LOCATE(?, HEX(j.id)) > 0", [text(&digits.to_ascii_uppercase())]);
    }
    conditions.add(")", []);
}

/// Add the condition on a value in the payload. Texts are compared byte for byte, numbers as numbers. A payload that
/// this server cannot read as JSON (for example, a text with half of a surrogate pair) does not match.
fn payload_says(path: &str, wanted: &Wanted, conditions: &mut Piece) {
    let value = "JSON_EXTRACT(CASE WHEN JSON_VALID(j.payload) THEN j.payload END, ?)";
    let path = || text(path);
    let is_text =
        format!("(JSON_TYPE({value}) = 'STRING' AND CAST(JSON_UNQUOTE({value}) AS BINARY) = CAST(? AS BINARY))");
    // MariaDB and MySQL use different names for number types. But every JSON type that is not in this list is a number.
    let is_number = format!(
        "(JSON_TYPE({value}) NOT IN ('STRING', 'OBJECT', 'ARRAY', 'BOOLEAN', 'NULL') AND \
         CAST(JSON_UNQUOTE({value}) AS DECIMAL(65,20)) = CAST(? AS DECIMAL(65,20)))"
    );
    let is_bool = format!("(JSON_TYPE({value}) = 'BOOLEAN' AND JSON_UNQUOTE({value}) = ?)");
    let is_null = format!("(JSON_TYPE({value}) = 'NULL')");
    let mut either = Piece::default();
    let mut or = |sql: &str, binds: Vec<Bind>| {
        let gap = if either.sql.is_empty() { "" } else { " OR " };
        either.add(&format!("{gap}{sql}"), binds);
    };
    match wanted {
        Wanted::Null(()) => or(&is_null, vec![path()]),
        Wanted::Bool(flag) => or(&is_bool, vec![path(), path(), text(if *flag { "true" } else { "false" })]),
        Wanted::Number(number) => or(&is_number, vec![path(), path(), text(&number.to_string())]),
        Wanted::Text(wanted) => or(&is_text, vec![path(), path(), text(wanted)]),
        Wanted::Word { word } => {
            or(&is_text, vec![path(), path(), text(word)]);
            match word.as_str() {
                "null" => or(&is_null, vec![path()]),
                "true" | "false" => or(&is_bool, vec![path(), path(), text(word)]),
                _ if word.parse::<serde_json::Number>().is_ok() => {
                    or(&is_number, vec![path(), path(), text(word)]);
                }
                _ => {}
            }
        }
    }
    conditions.add(&format!(" AND ({})", either.sql), either.binds);
}

/// The progress of one call.
pub(crate) struct SearchBudget {
    began: Instant,
    /// Number of rows of the source that were looked at.
    pub(crate) looked_at: i64,
    most: i64,
}

impl SearchBudget {
    pub(crate) fn new(most: i64) -> Self {
        Self { began: Instant::now(), looked_at: 0, most }
    }

    /// Add a chunk to the progress. Return whether there is time and room for another one.
    pub(crate) fn may_continue(&mut self, chunk: &Chunk) -> bool {
        self.looked_at += chunk.rows;
        self.looked_at < self.most && self.began.elapsed() < PATIENCE
    }
}

/// A count with a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Number of jobs that were found.
    pub jobs: u64,
    /// True if there may be more: the count stopped at its limit.
    pub capped: bool,
}

impl Store {
    /// Count the jobs of a filter: up to ten thousand. The number of rows read and the time are bounded.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn count(&self, filter: Filter) -> Result<Counted, StoreError> {
        on_pool(&self.shared.pools.reads, "count jobs of a filter", move |conn, _| {
            let filter = filter.clone();
            Box::pin(async move {
                let search = Search::prepare(conn, &filter, Order::OldestFirst, Among::All).await?;
                count(conn, search).await
            })
        })
        .await
    }
}

/// A count by the facts that decide whether an action is possible: the state of each job, and whether it was replayed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Breakdown {
    /// The count of all jobs.
    pub counted: Counted,
    /// Number of jobs by state, replayed ones counted separately.
    pub states: BTreeMap<(State, Replayed), u64>,
}

/// The answer to whether a new job was made from a failed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Replayed {
    /// A new job was made from it.
    Yes,
    /// No new job was made from it.
    No,
}

/// Count the jobs of a search by state, within the same bounds as [`count`].
pub(crate) async fn break_down(conn: &mut Session<'_>, search: &Search) -> Result<Breakdown, sqlx::Error> {
    let state = format!(
        "COALESCE(CAST(o.state AS CHAR), CAST({} AS CHAR)) AS state, \
         o.id IS NULL AND COALESCE(d.standing = 'replayed', FALSE) AS replayed",
        last_line("end_state")
    );
    let mut found = Breakdown::default();
    let (mut jobs, mut place) = (0, search.span(None));
    let mut budget = SearchBudget::new(MAX_COUNTED_OVER);
    while let Some(span) = place {
        let chunk = search.chunk(conn, span).await?;
        for row in search.matching(&state, &chunk, MAX_COUNTED - jobs).fetch_all(&mut *conn).await? {
            jobs += 1;
            // A job that is purged while the statement reads has no state any more.
            let Some(state) = row.try_get::<Option<String>, _>("state")?.as_deref().and_then(State::from_word) else {
                continue;
            };
            let replayed = if row.try_get::<bool, _>("replayed")? { Replayed::Yes } else { Replayed::No };
            *found.states.entry((state, replayed)).or_default() += 1;
        }
        found.counted.jobs = jobs.unsigned_abs();
        if jobs >= MAX_COUNTED || !budget.may_continue(&chunk) {
            found.counted.capped = jobs >= MAX_COUNTED || chunk.rest.is_some();
            return Ok(found);
        }
        place = chunk.rest;
    }
    Ok(found)
}

/// Count the jobs of a search, within bounds.
pub(crate) async fn count(conn: &mut Session<'_>, mut search: Search) -> Result<Counted, sqlx::Error> {
    let (mut jobs, mut place) = (0, search.span(None));
    let mut budget = SearchBudget::new(MAX_COUNTED_OVER);
    while let Some(span) = place {
        let chunk = search.chunk(conn, span).await?;
        jobs += if search.is_narrow() {
            let left = MAX_COUNTED - jobs;
            i64::try_from(search.matching("1", &chunk, left).fetch_all(&mut *conn).await?.len()).unwrap_or(left)
        } else {
            chunk.rows
        };
        if jobs >= MAX_COUNTED || !budget.may_continue(&chunk) {
            let capped = jobs >= MAX_COUNTED || chunk.rest.is_some();
            return Ok(Counted { jobs: jobs.min(MAX_COUNTED).unsigned_abs(), capped });
        }
        search.widen();
        place = chunk.rest;
    }
    Ok(Counted { jobs: jobs.unsigned_abs(), capped: false })
}
