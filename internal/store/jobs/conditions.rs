//! The conditions of a filter that are checked row by row, as SQL on `j` (jobs), `o` (owed) and `d` (dead letters).
//!
//! Every condition of a filter can be written this way. A search answers one of them by its source, and checks the
//! others here.

use uuid::Uuid;

use crate::sql::batches::{Sql, padded, padded_len, placeholders, statement};
use tickr_job::{BatchId, Filter, Name, State, Tag, Timestamp, Wanted};

/// The condition that the newest error of a job contains a text.
const ERROR_CONTAINS: &str = "LOCATE(LOWER(CAST(? AS CHAR CHARACTER SET utf8mb4)), LOWER((SELECT a.error FROM attempts a \
                              WHERE a.job_id = j.id AND a.error IS NOT NULL ORDER BY a.number DESC LIMIT 1))) > 0";

/// When an unfinished job is due, as a read of it shows: a parked job has its due time in `limit_waits`, and one that
/// waits in an order or for its parents has the one that was asked for. Their due times in `owed` are in the year 9999.
/// The date is that of `parked_until`.
pub(crate) const DUE_OF_OWED: &str = "CASE WHEN o.execute_at < '9999-12-30' THEN o.execute_at \
     WHEN o.execute_at = '9999-12-30' THEN COALESCE((SELECT q.due_at FROM limit_waits q FORCE INDEX (PRIMARY) \
     WHERE q.job_id = o.id), j.execute_at) ELSE j.execute_at END";

/// The due time that an ended job shows: that of the last line of a runner, or the one that was asked for. The line that
/// closes a job which waited for its turn has the time of its end.
const DUE_OF_ENDED: &str = "COALESCE((SELECT a.execute_at FROM attempts a WHERE a.job_id = j.id AND a.runner <> '' \
                            ORDER BY a.number DESC LIMIT 1), j.execute_at)";

/// A value of a statement.
#[derive(Clone, Debug)]
pub(crate) enum Bind {
    Text(String),
    Bytes(Vec<u8>),
    Id(Uuid),
    Moment(Timestamp),
    Number(i64),
}

pub(crate) fn bound(sql: String, binds: Vec<Bind>) -> Sql {
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
pub(crate) struct Piece {
    pub(crate) sql: String,
    pub(crate) binds: Vec<Bind>,
}

impl Piece {
    pub(crate) fn add(&mut self, sql: &str, binds: impl IntoIterator<Item = Bind>) {
        self.sql.push_str(sql);
        self.binds.extend(binds);
    }
}

pub(crate) fn text(text: &str) -> Bind {
    Bind::Text(text.to_owned())
}

/// Build an expression for a column of the last line in a job's ledger.
pub(crate) fn last_line(column: &str) -> String {
    format!("(SELECT a.{column} FROM attempts a WHERE a.job_id = j.id ORDER BY a.number DESC LIMIT 1)")
}

/// Add the conditions that are checked row by row.
pub(crate) fn narrow(filter: &Filter, conditions: &mut Piece) {
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
    let due = format!("IF(o.id IS NULL, {DUE_OF_ENDED}, {DUE_OF_OWED})");
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
    let used = format!("COALESCE(o.attempt - o.spared, {}, 0)", last_line("burned"));
    for (sign, count) in [(">=", filter.attempt_from), ("<=", filter.attempt_to)] {
        if let Some(count) = count {
            conditions.add(&format!(" AND {used} {sign} ?"), [Bind::Number(count.into())]);
        }
    }
    if let Some(runner) = &filter.runner {
        let newest = format!("COALESCE(NULLIF(o.runner, ''), {})", last_attempt("a.runner"));
        conditions.add(&format!(" AND LOCATE(?, {newest}) = 1"), [Bind::Bytes(runner.clone().into_bytes())]);
    }
    let took = last_attempt("TIMESTAMPDIFF(MICROSECOND, a.started_at, a.finished_at)");
    for (sign, ms) in [(">=", filter.took_from_ms), ("<", filter.took_below_ms)] {
        if let Some(ms) = ms {
            let us = i64::try_from(ms.saturating_mul(1_000)).unwrap_or(i64::MAX);
            conditions.add(&format!(" AND {took} {sign} ?"), [Bind::Number(us)]);
        }
    }
    for choice in &filter.choices {
        if let Some(batches) = choice.batches() {
            // There may be a hundred of them.
            let ids: Vec<Uuid> = batches.into_iter().map(BatchId::uuid).collect();
            let places = placeholders(padded_len(ids.len()));
            let sql = format!(
                " AND (SELECT COUNT(*) FROM batch_jobs b WHERE b.job_id = j.id AND b.batch_id IN {places}) = 1"
            );
            conditions.add(&sql, padded(&ids).map(Bind::Id));
            continue;
        }
        let mut either = Piece::default();
        if choice.of.is_empty() {
            either.add("FALSE", []);
        }
        for one in &choice.of {
            let gap = if either.sql.is_empty() { "(TRUE" } else { " OR (TRUE" };
            either.add(gap, []);
            everything(one, &mut either);
            either.add(")", []);
        }
        // A comparison with NULL is neither true nor false, and a job without the value does not have it.
        let holds = if choice.not { "IS NOT TRUE" } else { "IS TRUE" };
        conditions.add(&format!(" AND ({}) {holds}", either.sql), either.binds);
    }
}

/// Add every condition of a filter, also those that a search may answer by its source.
pub(crate) fn everything(filter: &Filter, conditions: &mut Piece) {
    if !filter.ids.is_empty() {
        let ids: Vec<Uuid> = filter.ids.iter().map(|id| id.uuid()).collect();
        let sql = format!(" AND j.id IN {}", placeholders(padded_len(ids.len())));
        conditions.add(&sql, padded(&ids).map(Bind::Id));
    }
    if let Some(state) = filter.state {
        in_state(state, conditions);
    }
    for tag in &filter.tags {
        has_tag(tag, conditions);
    }
    if let Some(schedule) = &filter.schedule {
        made_by(schedule, conditions);
    }
    narrow(filter, conditions);
}

/// Add the condition that a job is in this state.
pub(crate) fn in_state(state: State, conditions: &mut Piece) {
    if state.is_end() {
        // The last line has the end state of a job, unless the job is unfinished again.
        let sql = format!(" AND o.id IS NULL AND {} = ?", last_line("end_state"));
        conditions.add(&sql, [text(state.as_str())]);
    } else {
        conditions.add(" AND o.state = ?", [text(state.as_str())]);
    }
}

/// Add the condition that a job has this tag.
pub(crate) fn has_tag(tag: &Tag, conditions: &mut Piece) {
    let sql = " AND (SELECT COUNT(*) FROM job_tags t WHERE t.tag = ? AND t.job_id = j.id) = 1";
    conditions.add(sql, [text(tag.as_str())]);
}

/// Add the condition that this schedule made a job.
pub(crate) fn made_by(schedule: &Name, conditions: &mut Piece) {
    let sql =
        " AND (SELECT COUNT(*) FROM ticks t FORCE INDEX (ticks_job) WHERE t.schedule = ? AND t.job_id = j.id) > 0";
    conditions.add(sql, [text(schedule.as_str())]);
}

/// Build an expression on the last line of a job's ledger that a runner executed. The line of an expired job names the
/// runner that found it, and that runner executed nothing.
pub(crate) fn last_attempt(expression: &str) -> String {
    format!(
        "(SELECT {expression} FROM attempts a WHERE a.job_id = j.id AND a.runner <> '' AND a.expired IS NULL \
         ORDER BY a.number DESC LIMIT 1)"
    )
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
