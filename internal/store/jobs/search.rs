//! Searches for jobs by a filter, in bounded steps.
//!
//! A filter picks one *source*: the narrowest place where its jobs can be looked up in order of their ids. Sources
//! include the rows of a tag, the ticks of a schedule, the unfinished jobs, the ledger, the jobs of one kind in one queue
//! or of a few such pairs, and all jobs. A step reads one
//! chunk of the source, which is a bounded number of adjacent rows, and checks all other conditions on these rows. A
//! caller that wants more jobs takes the next step. So no statement depends on the size of a table, whatever the filter
//! matches, and a caller that stops knows the position to continue from.
//!
//! A chunk is first measured and then read between fixed ends. Rows that enter or leave the source in between change
//! the result of the chunk, but never make a search skip rows between two chunks.
//!
//! Hosts make the ids, and a job is accepted later, by the clock of the store. So a range of creation times is a range
//! of ids with a tolerance, in which the source is read. Before and behind it, a walk reads `distant_ids`: the few jobs
//! whose ids are of another time than their acceptance.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use async_recursion::async_recursion as boxed;
use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::jobs::conditions::{Bind, Piece, bound, everything, has_tag, in_state, last_line, made_by, narrow, text};
use crate::jobs::kind_queues::{KindQueue, WantedPairs};
use crate::rows::jobs::ID_TOLERANCE;
use crate::rows::limits::waits_for_turn;
use crate::sql::batches::{Sql, padded, padded_len, placeholders};
use crate::sql::connection::on_pool;
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::{Action, Among, BatchId, Choice, Filter, Name, State, Timestamp, first_id_of};

/// Number of rows of a source in one chunk.
const CHUNK: i64 = 2_000;
/// Number of rows in one chunk when payloads have to be read.
const HEAVY_CHUNK: i64 = 200;
/// Most rows in one chunk when the columns of the source alone decide what matches.
const LIGHT_CHUNK: i64 = 20_000;
/// A queue with at most so many unfinished jobs is read through its index. In a larger one a walk finds jobs soon.
const SMALL_QUEUE: i64 = 20_000;
/// Longest time of one call. The chunk that is under way is finished first.
const PATIENCE: Duration = Duration::from_secs(3);
/// Most rows of a source that one count may look at, and most jobs that it counts.
const MAX_COUNTED_OVER: i64 = 100_000;
const MAX_COUNTED: i64 = 10_000;

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
    const NONE: Self = Self { from: Uuid::max(), to: Uuid::nil() };

    pub(crate) fn is_empty(self) -> bool {
        self.from >= self.to
    }
}

/// The direction of a walk through jobs, by their ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The newest job first.
    NewestFirst,
    /// The oldest job first.
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

/// A filter, prepared as a search.
#[derive(Clone, Debug)]
pub(crate) struct Search {
    /// `SELECT … FROM … WHERE …`, open for more conditions on `key`. Several have no row in common.
    sources: Vec<Piece>,
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
    /// True if the source is all that is kept: every job, or the whole ledger.
    walks: bool,
    /// `AND …` for every other condition, on `w` (the source), `j` (jobs), `o` (owed) and `d` (dead letters).
    conditions: Piece,
    span: Span,
    /// The part of `span` in which the source is read.
    near: Span,
    /// The search in the rest of `span`, if there is one.
    distant: Option<Box<Self>>,
    order: Order,
    chunk: i64,
}

/// A part of a walk.
pub(crate) struct Chunk {
    /// The range to read now.
    pub(crate) span: Span,
    /// The range behind it; absent at the end.
    pub(crate) rest: Option<Span>,
    /// Number of rows in it.
    pub(crate) rows: i64,
    /// The oldest row in it, as far as it was measured.
    pub(crate) oldest: Option<Uuid>,
    /// The newest row in it, as far as it was measured.
    pub(crate) newest: Option<Uuid>,
    /// True if it has only the jobs with distant ids.
    pub(crate) is_distant: bool,
}

impl Search {
    /// Build a search in a part of all jobs.
    pub(crate) fn among(filter: &Filter, order: Order, among: Among) -> Self {
        Self::with_pairs(filter, order, among, None)
    }

    /// Build a search. `pairs` are the kinds and queues that the jobs of the filter may have, if they are known.
    fn with_pairs(filter: &Filter, order: Order, among: Among, pairs: Option<&[KindQueue]>) -> Self {
        let mut conditions = Piece::default();
        let (span, near) = spans_of(filter);
        let mut search = Self {
            sources: Vec::new(),
            key: "id",
            by_line: false,
            outlives: false,
            own: Piece::default(),
            light: false,
            walks: false,
            conditions: Piece::default(),
            span,
            near,
            distant: (near != span).then(|| Box::new(Self::among_distant(filter, order, among, near))),
            order,
            chunk: chunk_of(filter),
        };
        search.choose_source(filter, among, pairs, &mut conditions);
        in_part(among, &mut conditions);
        narrow(filter, &mut conditions);
        search.conditions = conditions;
        search
    }

    /// Build the search among the jobs with distant ids, without those in `near`. Its source has the rows that were
    /// accepted in the range of the filter, so every other condition is checked row by row.
    fn among_distant(filter: &Filter, order: Order, among: Among, near: Span) -> Self {
        let (mut source, mut conditions) = (Piece::default(), Piece::default());
        // No index is named: the server knows whether the range of times or that of the ids has fewer rows.
        let sql = "SELECT job_id AS id FROM distant_ids WHERE NOT (job_id >= ? AND job_id < ?)";
        source.add(sql, [Bind::Id(near.from), Bind::Id(near.to)]);
        accepted_within(filter, &mut source);
        in_part(among, &mut conditions);
        everything(filter, &mut conditions);
        Self {
            sources: vec![source],
            key: "job_id",
            by_line: false,
            outlives: false,
            own: Piece::default(),
            light: false,
            walks: false,
            conditions,
            span: Span::ALL,
            near: Span::ALL,
            distant: None,
            order,
            chunk: chunk_of(filter),
        }
    }

    /// Take out the search among the jobs with distant ids, if there is one. Without it, the search finds the others.
    pub(crate) fn take_distant(&mut self) -> Option<Self> {
        let distant = self.distant.take()?;
        self.span = self.near;
        Some(*distant)
    }

    fn choose_source(&mut self, filter: &Filter, among: Among, pairs: Option<&[KindQueue]>, conditions: &mut Piece) {
        let ended = filter.state.filter(|state| state.is_end());
        let owed = filter.state.filter(|state| !state.is_end());
        let mut source = Piece::default();
        let (mut tags, mut schedule) = (filter.tags.iter(), filter.schedule.as_ref());
        if !filter.ids.is_empty() {
            let ids: Vec<Uuid> = filter.ids.iter().map(|id| id.uuid()).collect();
            source.add("SELECT id FROM jobs FORCE INDEX (PRIMARY) WHERE id IN ", []);
            source.add(&placeholders(padded_len(ids.len())), padded(&ids).map(Bind::Id));
        } else if let Some(tag) = tags.next() {
            source.add("SELECT job_id AS id FROM job_tags FORCE INDEX (PRIMARY) WHERE tag = ?", [text(tag.as_str())]);
            self.key = "job_id";
        } else if let Some(batch) = filter.batch {
            source = of_batch(batch);
            self.key = "job_id";
        } else if let Some(batches) = filter.choices.iter().find_map(Choice::batches) {
            self.sources = batches.into_iter().map(of_batch).collect();
            self.key = "job_id";
            // Each source is read as far as the whole chunk may reach.
            let sources = i64::try_from(self.sources.len()).unwrap_or(CHUNK).max(1);
            self.chunk = self.chunk.min((CHUNK / sources).max(HEAVY_CHUNK));
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
        } else if let Some(pairs) = pairs.filter(|_| owed.is_none() && among != Among::Owed) {
            self.sources = pairs.iter().map(of_pair).collect();
            let by_pair = Filter { kind: filter.kind.clone(), queue: filter.queue.clone(), ..Filter::default() };
            self.light = among == Among::All && *filter == by_pair;
        } else if ended.is_some() {
            source.add("SELECT job_id AS id FROM attempts s FORCE INDEX (PRIMARY) WHERE TRUE", []);
            (self.key, self.by_line, self.walks) = ("job_id", true, true);
        } else if owed.is_some() || among == Among::Owed {
            source.add("SELECT id FROM owed FORCE INDEX (PRIMARY) WHERE TRUE", []);
            self.own = own_columns_of_owed(filter);
            self.light = *filter == answered_by_owed(filter);
        } else {
            source.add("SELECT id FROM jobs FORCE INDEX (PRIMARY) WHERE TRUE", []);
            (self.own, self.walks) = (own_columns_of_jobs(filter), true);
            self.light = among == Among::All && *filter == answered_by_jobs(filter);
        }
        if !source.sql.is_empty() {
            self.sources.push(source);
        }
        for tag in tags {
            has_tag(tag, conditions);
        }
        if let Some(schedule) = schedule {
            made_by(schedule, conditions);
        }
        if let Some(state) = filter.state {
            if self.by_line {
                conditions.add(" AND o.id IS NULL", []);
                self.own = last_lines_that_end_in(state);
            } else {
                in_state(state, conditions);
            }
        }
    }

    /// Build a search, and look where its jobs are if they may be few among many:
    ///
    /// - the unfinished jobs of a small queue are read through the index of the lanes
    /// - the jobs of a kind or a queue are read through the index of these two, if only a few pairs of them are possible
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
        if search.walks {
            let pairs = match WantedPairs::of(filter) {
                Some(wanted) => wanted.existing(conn).await?,
                None => None,
            };
            return Ok(match pairs {
                Some(pairs) => Self::with_pairs(filter, order, among, Some(&pairs)),
                None => search,
            });
        }
        let Some(queue) = filter.queue.as_ref().filter(|_| search.light) else { return Ok(search) };
        let sql = "SELECT COUNT(*) FROM (SELECT 1 FROM owed FORCE INDEX (owed_line) WHERE queue = ? LIMIT ?) q";
        let jobs: i64 = sqlx::query_scalar(sql).bind(queue.as_str()).bind(SMALL_QUEUE + 1).fetch_one(conn).await?;
        if jobs <= SMALL_QUEUE {
            let mut source = Piece::default();
            source.add("SELECT id FROM owed FORCE INDEX (owed_line) WHERE queue = ?", [text(queue.as_str())]);
            search.sources = vec![source];
            search.chunk = LIGHT_CHUNK;
        }
        Ok(search)
    }

    /// Set the number of rows in one chunk.
    pub(crate) const fn set_chunk(&mut self, rows: i64) {
        self.chunk = rows;
    }

    /// Return this search in a part of its rows: about so many of a thousand, by a digest of their ids.
    pub(crate) fn thinned(&self, per_mille: i64) -> Self {
        let mut part = self.clone();
        part.own.add(&format!(" AND MOD(CRC32({}), 1000) < ?", self.key), [Bind::Number(per_mille)]);
        part
    }

    /// Find only jobs of these kinds.
    pub(crate) fn only_kinds(&mut self, kinds: &BTreeSet<Name>) {
        let sql = format!(" AND j.kind IN {}", placeholders(padded_len(kinds.len())));
        let words: Vec<&str> = kinds.iter().map(Name::as_str).collect();
        self.conditions.add(&sql, padded(&words).map(text));
        if let Some(distant) = &mut self.distant {
            distant.only_kinds(kinds);
        }
    }

    /// Make the next chunk larger, where that costs little.
    pub(crate) fn widen(&mut self) {
        if self.light {
            self.chunk = (4 * self.chunk).min(LIGHT_CHUNK);
        }
    }

    /// Return how many rows one call may look at, if others may look at `most`. A row of `jobs` is wider than one of
    /// `owed` or of an index, so a walk through all jobs gets fewer of them.
    pub(crate) fn most_looked_at(&self, most: i64) -> i64 {
        match (self.light, self.walks) {
            (true, true) => 2 * most,
            (true, false) => most * LIGHT_CHUNK / CHUNK,
            (false, _) => most,
        }
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

    /// Return the place behind which `rest` begins, as [`span`](Self::span) takes it.
    pub(crate) fn place_before(&self, rest: Span) -> Uuid {
        match self.order {
            Order::NewestFirst => rest.to,
            Order::OldestFirst => Uuid::from_u128(rest.from.as_u128().saturating_sub(1)),
        }
    }

    fn rows_between(&self, own: &Piece, span: Span, limit: i64) -> Piece {
        let (key, order) = (self.key, self.order.as_str());
        let tail = format!(" AND {key} >= ? AND {key} < ? ORDER BY {key} {order} LIMIT ?");
        let branch = |source: &Piece| {
            let mut piece = source.clone();
            piece.add(&own.sql, own.binds.iter().cloned());
            piece.add(&tail, [Bind::Id(span.from), Bind::Id(span.to), Bind::Number(limit)]);
            piece
        };
        if let [source] = self.sources.as_slice() {
            return branch(source);
        }
        let mut piece = Piece::default();
        for source in &self.sources {
            let branch = branch(source);
            let gap = if piece.sql.is_empty() { "" } else { " UNION ALL " };
            piece.add(&format!("{gap}({})", branch.sql), branch.binds);
        }
        if self.sources.is_empty() {
            piece.add("SELECT id FROM jobs WHERE FALSE", []);
        }
        piece.add(&format!(" ORDER BY id {order} LIMIT ?"), [Bind::Number(limit)]);
        piece
    }

    /// Return the search that reads a part of the ids.
    fn reader(&self, is_distant: bool) -> &Self {
        self.distant.as_deref().filter(|_| is_distant).unwrap_or(self)
    }

    /// Return the part with which a walk through `span` begins, up to the next end of `near`, whether it is outside of
    /// `near`, and the rest of the walk.
    fn first_part(&self, span: Span) -> (Span, bool, Option<Span>) {
        let Span { from, to } = self.near;
        let is_within = |end: &Uuid| *end > span.from && *end < span.to;
        let (part, rest) = match self.order {
            Order::NewestFirst => {
                let end = [to, from].into_iter().find(is_within).unwrap_or(span.from);
                (Span { from: end, ..span }, Span { to: end, ..span })
            }
            Order::OldestFirst => {
                let end = [from, to].into_iter().find(is_within).unwrap_or(span.to);
                (Span { to: end, ..span }, Span { from: end, ..span })
            }
        };
        let is_distant = part.from < from || part.to > to;
        (part, is_distant, (!rest.is_empty()).then_some(rest))
    }

    /// Measure the next chunk.
    pub(crate) async fn chunk(&self, conn: &mut Session<'_>, mut span: Span) -> Result<Chunk, sqlx::Error> {
        loop {
            let (part, is_distant, behind) = self.first_part(span);
            let reader = self.reader(is_distant);
            let window = reader.rows_between(&Piece::default(), part, reader.chunk);
            let sql = format!(
                "SELECT MIN(w.id) AS first_id, MAX(w.id) AS last_id, COUNT(*) AS counted FROM ({}) w",
                window.sql
            );
            let row = bound(sql, window.binds).fetch_one(&mut *conn).await?;
            let chunk = reader.measured(part, &row)?;
            let rest = match (chunk.rest, behind) {
                // Hardly any walk finds a job with a distant id.
                (None, Some(behind)) if is_distant && chunk.rows == 0 => {
                    span = behind;
                    continue;
                }
                (Some(rest), Some(behind)) => {
                    Some(Span { from: rest.from.min(behind.from), to: rest.to.max(behind.to) })
                }
                (rest, behind) => rest.or(behind),
            };
            return Ok(Chunk { rest, is_distant, ..chunk });
        }
    }

    /// Return the chunk at the beginning of `span` with the first and the last row of its window.
    fn measured(&self, span: Span, row: &MySqlRow) -> Result<Chunk, sqlx::Error> {
        let (first, last): (Option<Uuid>, Option<Uuid>) = (row.try_get("first_id")?, row.try_get("last_id")?);
        let rows: i64 = row.try_get("counted")?;
        let (Some(first), Some(last)) = (first, last) else {
            return Ok(Chunk { rows, ..self.whole(span) });
        };
        if rows < self.chunk {
            return Ok(Chunk { rows, oldest: Some(first), newest: Some(last), ..self.whole(span) });
        }
        let (read, rest) = match self.order {
            Order::NewestFirst => (Span { from: first, ..span }, Span { to: first, ..span }),
            Order::OldestFirst => (Span { to: after(last), ..span }, Span { from: after(last), ..span }),
        };
        Ok(Chunk {
            span: read,
            rest: (!rest.is_empty()).then_some(rest),
            rows,
            oldest: Some(first),
            newest: Some(last),
            is_distant: false,
        })
    }

    /// Return the oldest job of the source in a range. It need not meet the other conditions.
    pub(crate) async fn oldest(&self, conn: &mut Session<'_>, span: Span) -> Result<Option<Uuid>, sqlx::Error> {
        let oldest_first = Self { order: Order::OldestFirst, ..self.clone() };
        let window = oldest_first.rows_between(&Piece::default(), span, 1);
        let row = bound(format!("SELECT w.id FROM ({}) w", window.sql), window.binds).fetch_optional(conn).await?;
        row.map(|row| row.try_get("id")).transpose()
    }

    /// Return a chunk that is not measured, for searches that find every row they look at.
    pub(crate) fn whole(&self, span: Span) -> Chunk {
        Chunk { span, rest: None, rows: 0, oldest: None, newest: None, is_distant: false }
    }

    /// Build `SELECT columns` for the matching jobs of a chunk, at most `limit` jobs.
    pub(crate) fn matching(&self, columns: &str, chunk: &Chunk, limit: i64) -> Sql {
        let piece = self.reader(chunk.is_distant).matching_piece(columns, chunk, limit);
        bound(piece.sql, piece.binds)
    }

    fn matching_piece(&self, columns: &str, chunk: &Chunk, limit: i64) -> Piece {
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
        Piece { sql, binds: binds.collect() }
    }

    /// Measure the next chunk of each of these ranges, with one statement.
    pub(crate) async fn chunks(&self, conn: &mut Session<'_>, spans: &[Span]) -> Result<Vec<Chunk>, sqlx::Error> {
        let pieces = spans.iter().enumerate().map(|(place, span)| {
            let window = self.rows_between(&Piece::default(), *span, self.chunk);
            let sql = format!(
                "SELECT {place} AS place, MIN(w.id) AS first_id, MAX(w.id) AS last_id, COUNT(*) AS counted FROM ({}) w",
                window.sql
            );
            Piece { sql, binds: window.binds }
        });
        let all = together(pieces);
        let mut chunks: Vec<Chunk> = spans.iter().map(|span| self.whole(*span)).collect();
        for row in &bound(all.sql, all.binds).fetch_all(conn).await? {
            let place = usize::try_from(row.try_get::<i64, _>("place")?).unwrap_or(usize::MAX);
            let Some(chunk) = chunks.get_mut(place) else { continue };
            *chunk = self.measured(chunk.span, row)?;
        }
        Ok(chunks)
    }

    /// Build [`matching`](Self::matching) for several searches, each in a chunk of its own, as one statement. The column
    /// `place` says which of them a job belongs to.
    pub(crate) fn matching_in_each(parts: &[(Self, &Chunk)], columns: &str, limit: i64) -> Sql {
        let pieces = parts.iter().enumerate().map(|(place, (search, chunk))| {
            let piece = search.matching_piece(&format!("{place} AS place, {columns}"), chunk, limit);
            Piece { sql: format!("({})", piece.sql), binds: piece.binds }
        });
        let all = together(pieces);
        bound(all.sql, all.binds)
    }
}

/// Join statements to one with the rows of all of them.
fn together(pieces: impl Iterator<Item = Piece>) -> Piece {
    let mut all = Piece::default();
    for piece in pieces {
        let gap = if all.sql.is_empty() { "" } else { " UNION ALL " };
        all.add(&format!("{gap}{}", piece.sql), piece.binds);
    }
    all
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
    if filter.unique_key.is_some() {
        // `unique_keys` does not have all of them: a job that is unique until its start passes its key on, and may wait
        // again after that. The mark stays.
        own.add(" AND keyed", []);
    }
    own
}

/// Build the conditions for the last lines of jobs that ended in this state. They decide which lines are read. A job may
/// have more lines than are read of a chunk, and the other lines must not take the place of its last one.
fn last_lines_that_end_in(state: State) -> Piece {
    let mut own = Piece::default();
    own.add(" AND end_state = ?", [text(state.as_str())]);
    own.add(
        " AND number = (SELECT a.number FROM attempts a WHERE a.job_id = s.job_id ORDER BY a.number DESC LIMIT 1)",
        [],
    );
    own
}

/// Build the conditions that the columns of `jobs` itself answer, so that no other table is read for the other rows.
fn own_columns_of_jobs(filter: &Filter) -> Piece {
    let mut own = Piece::default();
    if let Some(kind) = &filter.kind {
        own.add(" AND kind = ?", [text(kind.as_str())]);
    }
    if let Some(queue) = &filter.queue {
        own.add(" AND queue = ?", [text(queue.as_str())]);
    }
    for (column, value) in [("unique_key", &filter.unique_key), ("host", &filter.host)] {
        if let Some(value) = value {
            own.add(&format!(" AND {column} = ?"), [Bind::Bytes(value.clone().into_bytes())]);
        }
    }
    accepted_within(filter, &mut own);
    own
}

/// Add the range of creation times, for a table with a column `created_at`.
fn accepted_within(filter: &Filter, conditions: &mut Piece) {
    for (sign, moment) in [(">=", filter.created_after), ("<", filter.created_before)] {
        if let Some(moment) = moment {
            conditions.add(&format!(" AND created_at {sign} ?"), [Bind::Moment(moment)]);
        }
    }
}

/// Add the condition that a job is in this part of all jobs.
fn in_part(among: Among, conditions: &mut Piece) {
    match among {
        Among::All => {}
        Among::Owed => conditions.add(" AND o.id IS NOT NULL", []),
        Among::Ended => conditions.add(" AND o.id IS NULL", []),
    }
}

/// Build the source with the jobs of a batch. A job is in one batch at most.
fn of_batch(batch: BatchId) -> Piece {
    let mut source = Piece::default();
    source.add(
        "SELECT job_id AS id FROM batch_jobs FORCE INDEX (batch_jobs_batch) WHERE batch_id = ?",
        [Bind::Id(batch.uuid())],
    );
    source
}

/// Return the number of rows in one chunk.
fn chunk_of(filter: &Filter) -> i64 {
    if filter.parts().any(|part| !part.payload.is_empty()) { HEAVY_CHUNK } else { CHUNK }
}

/// Return the part of a filter that [`own_columns_of_jobs`] answers.
fn answered_by_jobs(filter: &Filter) -> Filter {
    Filter {
        kind: filter.kind.clone(),
        queue: filter.queue.clone(),
        unique_key: filter.unique_key.clone(),
        host: filter.host.clone(),
        created_after: filter.created_after,
        created_before: filter.created_before,
        ..Filter::default()
    }
}

/// Return the part of a filter that [`own_columns_of_owed`] answers.
fn answered_by_owed(filter: &Filter) -> Filter {
    Filter { state: filter.state, kind: filter.kind.clone(), queue: filter.queue.clone(), ..Filter::default() }
}

/// Build the source with the jobs of one kind in one queue.
fn of_pair(pair: &KindQueue) -> Piece {
    let mut source = Piece::default();
    source.add(
        "SELECT id FROM jobs FORCE INDEX (jobs_kind_queue) WHERE kind = ? AND queue = ?",
        [text(&pair.kind), text(&pair.queue)],
    );
    source
}

/// Return the id that follows `id` directly.
fn after(id: Uuid) -> Uuid {
    Uuid::from_u128(id.as_u128().saturating_add(1))
}

/// Return the range of ids that can match, and the part of it where every job is that has no distant id.
fn spans_of(filter: &Filter) -> (Span, Span) {
    if filter.created_after.zip(filter.created_before).is_some_and(|(first, end)| first >= end) {
        return (Span::NONE, Span::NONE);
    }
    if let (Some(first), Some(last)) = (filter.ids.iter().min(), filter.ids.iter().max()) {
        let span = Span { from: first.uuid(), to: after(last.uuid()) };
        return (span, span);
    }
    let mut near = Span::ALL;
    if let Some(moment) = filter.created_after.and_then(|moment| moment.checked_sub_signed(ID_TOLERANCE)) {
        near.from = first_id_of(moment);
    }
    if let Some(moment) = filter.created_before.and_then(|moment| moment.checked_add_signed(ID_TOLERANCE)) {
        near.to = first_id_of(moment);
    }
    (Span::ALL, near)
}

/// The progress of one call.
pub(crate) struct SearchBudget {
    began: Instant,
    /// Number of rows of the source that were looked at.
    pub(crate) looked_at: i64,
    most: i64,
    patience: Duration,
}

impl SearchBudget {
    pub(crate) fn new(most: i64) -> Self {
        Self::within(most, PATIENCE)
    }

    /// Make a budget with less time than a call may otherwise take.
    pub(crate) fn within(most: i64, patience: Duration) -> Self {
        Self { began: Instant::now(), looked_at: 0, most, patience }
    }

    /// Add a chunk to the progress. Return whether there is time and room for another one.
    pub(crate) fn may_continue(&mut self, chunk: &Chunk) -> bool {
        self.looked_at += chunk.rows;
        self.looked_at < self.most && self.began.elapsed() < self.patience
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
    #[boxed]
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
    /// Number of waiting and retrying jobs that wait for their turn, if the action leaves them out. They are not in
    /// `states`.
    pub held: u64,
    /// Number of waiting and retrying jobs that expire by their new due time. They are not in `states`.
    pub expired_by_then: u64,
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
/// `action` is what would be done with them, and `due` the new due time that it would give them.
pub(crate) async fn break_down(
    conn: &mut Session<'_>,
    search: &Search,
    action: Option<Action>,
    due: Option<Timestamp>,
) -> Result<Breakdown, sqlx::Error> {
    let state = format!(
        "COALESCE(CAST(o.state AS CHAR), CAST({} AS CHAR)) AS state, \
         o.id IS NULL AND COALESCE(d.standing = 'replayed', FALSE) AS replayed, o.execute_at, o.expires_at",
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
            let (execute_at, expires_at): (Option<Timestamp>, Option<Timestamp>) =
                (row.try_get("execute_at")?, row.try_get("expires_at")?);
            let waits = matches!(state, State::Waiting | State::Retrying);
            if waits && action.is_some_and(Action::sets_due_time) && execute_at.is_some_and(waits_for_turn) {
                found.held += 1;
                continue;
            }
            if waits && due.zip(expires_at).is_some_and(|(due, expires_at)| due >= expires_at) {
                found.expired_by_then += 1;
                continue;
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_of_many_batches_has_fewer_rows_of_each() {
        let chunk = |batches: usize| {
            let choice = Choice::of_batches((0..batches).map(|_| BatchId::new()));
            let filter = Filter { choices: vec![choice], ..Filter::default() };
            Search::among(&filter, Order::OldestFirst, Among::All).chunk
        };
        assert_eq!([chunk(1), chunk(4), chunk(101)], [CHUNK, CHUNK / 4, HEAVY_CHUNK]);
    }
}
