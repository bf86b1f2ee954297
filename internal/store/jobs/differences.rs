//! Samples of failed jobs and of jobs that passed, to compare their traits.
//!
//! Both samples are walks of a [search](crate::jobs::search), newest jobs first, and bounded like every search: by the
//! number of jobs, by the rows that are looked at, and by the time. Payloads are read in small groups and only counted,
//! so the memory of a comparison does not depend on their size.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use chrono::TimeDelta;
use serde_json::value::RawValue;
use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::jobs::conditions::last_attempt;
use crate::jobs::search::{Order, Search, SearchBudget};
use crate::sql::batches::{MAX_ROWS, bind_padded, in_list, padded_len, placeholders, statement};
use crate::sql::connection::on_pool;
use crate::sql::error::corrupt;
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::{Among, Attribute, Filter, JobTraits, Name, State, Timestamp, TraitCounts};

/// Most jobs in each sample.
const MAX_JOBS: usize = 2_000;
/// Most rows that the walk for one sample looks at.
const MAX_LOOKED_AT: i64 = 40_000;
/// Largest payload that is read, in bytes.
const MAX_PAYLOAD: u32 = 8_192;
/// Most fields of one payload that are traits.
const MAX_FIELDS: usize = 50;
/// Longest value that is a trait, in bytes of JSON.
const MAX_VALUE: usize = 100;
/// Longest name of a field that is a trait, in bytes.
const MAX_NAME: usize = 100;
/// Least time before the first failure and after the last one in which jobs that passed are compared.
const AROUND: TimeDelta = TimeDelta::minutes(5);
/// Longest time for both samples. The group of jobs that is being read is finished first.
const PATIENCE: Duration = Duration::from_secs(6);

/// Says whether the values of a field of the payload may be shown, by kind and name of the field.
pub type ShownFields = Arc<dyn Fn(&Name, &str) -> bool + Send + Sync>;

/// Two samples of jobs.
#[derive(Clone, Debug, Default)]
pub struct FailureSamples {
    /// Failed jobs.
    pub failed: JobSample,
    /// Jobs of the same kinds that passed at the same time.
    pub passed: JobSample,
    /// The time in which jobs that passed were looked for; absent if no job failed.
    pub within: Option<(Timestamp, Timestamp)>,
}

/// A sample of jobs.
#[derive(Clone, Debug, Default)]
pub struct JobSample {
    /// Its jobs and their traits.
    pub counts: TraitCounts,
    /// True if there may be more jobs.
    pub capped: bool,
}

impl Store {
    /// Sample the newest failed jobs of a filter, and jobs that passed: of the same kinds, at the same time, and with
    /// the other conditions of the filter.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn samples_of_failures(&self, filter: Filter, shown: ShownFields) -> Result<FailureSamples, StoreError> {
        on_pool(&self.shared.pools.reads, "compare failed jobs with others", move |conn, _| {
            let (filter, shown) = (filter.clone(), shown.clone());
            Box::pin(async move { samples(conn, filter, &shown).await })
        })
        .await
    }
}

async fn samples(conn: &mut Session<'_>, filter: Filter, shown: &ShownFields) -> Result<FailureSamples, sqlx::Error> {
    let began = std::time::Instant::now();
    let of_failed = Filter { state: Some(State::Failed), ..filter.clone() };
    let (ids, capped) = walk(conn, Search::among(&of_failed, Order::NewestFirst, Among::Ended)).await?;
    let mut samples = FailureSamples::default();
    samples.failed.capped = capped;
    let (mut kinds, mut within) = (BTreeSet::new(), None::<(Timestamp, Timestamp)>);
    for ids in ids.chunks(MAX_ROWS) {
        if began.elapsed() >= PATIENCE / 2 {
            samples.failed.capped = true;
            break;
        }
        for job in read(conn, ids, State::Failed, shown).await? {
            within = Some(within.map_or((job.finished_at, job.finished_at), |(first, last)| {
                (first.min(job.finished_at), last.max(job.finished_at))
            }));
            kinds.insert(job.kind);
            samples.failed.counts.add(&job.traits);
        }
    }
    let Some((first, last)) = within else { return Ok(samples) };
    let around = AROUND.max((last - first) / 10);
    let (from, to) = (first - around, last + around);
    samples.within = Some((from, to));
    let choices = filter.choices.iter().filter(|choice| !choice.of.iter().any(is_about_the_end)).cloned().collect();
    let of_passed = Filter {
        state: Some(State::Completed),
        error: None,
        fingerprint: None,
        dead_letter: None,
        ids: Vec::new(),
        texts: Vec::new(),
        choices,
        finished_after: Some(from),
        finished_before: Some(to),
        // A job was accepted before it ended, so newer ones need no look.
        created_before: Some(filter.created_before.map_or(to, |before| before.min(to))),
        ..filter
    };
    let mut search = Search::among(&of_passed, Order::NewestFirst, Among::Ended);
    search.only_kinds(&kinds);
    let (ids, capped) = walk(conn, search).await?;
    samples.passed.capped = capped;
    for ids in ids.chunks(MAX_ROWS) {
        if began.elapsed() >= PATIENCE {
            samples.passed.capped = true;
            break;
        }
        for job in read(conn, ids, State::Completed, shown).await? {
            samples.passed.counts.add_as_in(&job.traits, &samples.failed.counts);
        }
    }
    Ok(samples)
}

/// Return whether a condition says how a job ended or which job it is. Jobs that passed are not compared by it.
fn is_about_the_end(part: &Filter) -> bool {
    part.state.is_some()
        || part.error.is_some()
        || part.fingerprint.is_some()
        || part.dead_letter.is_some()
        || !part.ids.is_empty()
        || !part.texts.is_empty()
}

/// Return the ids of the newest jobs of a search, and whether there may be more.
async fn walk(conn: &mut Session<'_>, search: Search) -> Result<(Vec<Uuid>, bool), sqlx::Error> {
    let (mut ids, mut rest) = (Vec::new(), search.span(None));
    let mut budget = SearchBudget::new(MAX_LOOKED_AT);
    while let Some(span) = rest {
        let chunk = search.chunk(conn, span).await?;
        let wanted = MAX_JOBS - ids.len();
        let found = search.matching("j.id", &chunk, wanted as i64).fetch_all(&mut *conn).await?;
        for row in &found {
            ids.push(row.try_get("id")?);
        }
        let goes_on = budget.may_continue(&chunk);
        rest = chunk.rest;
        if found.len() >= wanted || !goes_on {
            return Ok((ids, found.len() >= wanted || rest.is_some()));
        }
    }
    Ok((ids, false))
}

/// A job of a sample.
struct Sampled {
    kind: Name,
    finished_at: Timestamp,
    traits: JobTraits,
}

/// Read the traits of these jobs, as far as they are in this state still.
async fn read(
    conn: &mut Session<'_>,
    ids: &[Uuid],
    state: State,
    shown: &ShownFields,
) -> Result<Vec<Sampled>, sqlx::Error> {
    let runner = last_attempt("a.runner");
    let sql = format!(
        "SELECT j.id, j.kind, j.queue, j.host, j.unique_key, \
         IF(OCTET_LENGTH(j.payload) <= {MAX_PAYLOAD}, j.payload, NULL) AS payload, \
         {runner} AS runner, e.burned, e.finished_at FROM jobs j FORCE INDEX (PRIMARY) \
         STRAIGHT_JOIN attempts e FORCE INDEX (PRIMARY) ON e.job_id = j.id AND e.end_state = '{state}' \
         AND e.number = (SELECT MAX(l.number) FROM attempts l WHERE l.job_id = j.id) WHERE j.id IN"
    );
    let rows = in_list(&sql, ids, "").fetch_all(&mut *conn).await?;
    let tags = texts_of(conn, "SELECT job_id, tag AS word FROM job_tags FORCE INDEX (job_tags_job)", ids).await?;
    let orders =
        texts_of(conn, "SELECT job_id, order_key AS word FROM order_places FORCE INDEX (PRIMARY)", ids).await?;
    let limits =
        texts_of(conn, "SELECT job_id, limit_key AS word FROM job_limit_keys FORCE INDEX (PRIMARY)", ids).await?;
    let runners = rows.iter().filter_map(|row| row.try_get::<Option<String>, _>("runner").transpose());
    let runners: BTreeSet<String> = runners.collect::<Result<_, sqlx::Error>>()?;
    let runners = runners_of(conn, runners).await?;
    let mut sampled = Vec::with_capacity(rows.len());
    for row in &rows {
        let id: Uuid = row.try_get("id")?;
        let kind: Name = row.try_get::<String, _>("kind")?.parse().map_err(|_| corrupt("kind"))?;
        let mut traits = JobTraits::default();
        traits.add(Attribute::Kind, kind.as_str());
        traits.add(Attribute::Queue, row.try_get("queue")?);
        add_bytes(&mut traits, Attribute::Host, row.try_get("host")?);
        add_bytes(&mut traits, Attribute::UniqueKey, row.try_get("unique_key")?);
        for (attribute, words) in
            [(Attribute::Tag, &tags), (Attribute::OrderKey, &orders), (Attribute::LimitKey, &limits)]
        {
            for word in words.get(&id).into_iter().flatten() {
                traits.add(attribute.clone(), word);
            }
        }
        // A job that expired before its first attempt was executed by no runner.
        if let Some(runner) = row.try_get::<Option<&str>, _>("runner")? {
            traits.add(Attribute::Runner, runner);
            if let Some((host, version)) = runners.get(runner) {
                traits.add(Attribute::Version, version);
                if let Some(host) = host {
                    traits.add(Attribute::RunnerHost, host);
                }
            }
        }
        traits.values.push((Attribute::Attempts, row.try_get::<u32, _>("burned")?.to_string()));
        add_payload(&mut traits, row, &kind, shown)?;
        sampled.push(Sampled { kind, finished_at: row.try_get("finished_at")?, traits });
    }
    Ok(sampled)
}

fn add_bytes(traits: &mut JobTraits, attribute: Attribute, bytes: Option<Vec<u8>>) {
    if let Some(bytes) = bytes {
        traits.add(attribute, &String::from_utf8_lossy(&bytes));
    }
}

/// Add the fields at the top of the payload that may be shown. A payload that is no object has none.
fn add_payload(traits: &mut JobTraits, row: &MySqlRow, kind: &Name, shown: &ShownFields) -> Result<(), sqlx::Error> {
    let Some(payload) = row.try_get::<Option<&str>, _>("payload")? else { return Ok(()) };
    let Ok(fields) = serde_json::from_str::<BTreeMap<String, &RawValue>>(payload) else { return Ok(()) };
    traits.has_payload = true;
    let mut fields: Vec<(String, &RawValue)> = fields.into_iter().collect();
    fields.retain(|(name, _)| name.len() <= MAX_NAME && shown(kind, name));
    for (name, value) in fields.into_iter().take(MAX_FIELDS) {
        let value = value.get();
        match value.as_bytes().first() {
            Some(b'{' | b'[') => traits.fields.push(name),
            _ if value.len() > MAX_VALUE => traits.fields.push(name),
            // The same text may be written with different escapes.
            Some(b'"') => match serde_json::from_str::<String>(value) {
                Ok(text) => traits.add(Attribute::Payload(name), &text),
                Err(_) => traits.fields.push(name),
            },
            _ => traits.values.push((Attribute::Payload(name), value.to_owned())),
        }
    }
    Ok(())
}

/// Read the texts that a table has for each of these jobs.
async fn texts_of(
    conn: &mut Session<'_>,
    select: &'static str,
    ids: &[Uuid],
) -> Result<BTreeMap<Uuid, Vec<String>>, sqlx::Error> {
    let mut texts: BTreeMap<Uuid, Vec<String>> = BTreeMap::new();
    for row in in_list(&format!("{select} WHERE job_id IN"), ids, "").fetch_all(&mut *conn).await? {
        let word: Vec<u8> = row.try_get_unchecked("word")?;
        texts.entry(row.try_get("job_id")?).or_default().push(String::from_utf8_lossy(&word).into_owned());
    }
    Ok(texts)
}

/// Read host and version of these runners, as far as they are known still.
async fn runners_of(
    conn: &mut Session<'_>,
    ids: BTreeSet<String>,
) -> Result<BTreeMap<String, (Option<String>, String)>, sqlx::Error> {
    let ids: Vec<&str> = ids.iter().map(String::as_str).filter(|id| !id.is_empty()).collect();
    if ids.is_empty() {
        return Ok(BTreeMap::new());
    }
    let sql = format!("SELECT id, host, version FROM runners WHERE id IN {}", placeholders(padded_len(ids.len())));
    let found = bind_padded(statement(sql), &ids).fetch_all(conn).await?;
    found.iter().map(|row| Ok((row.try_get("id")?, (row.try_get("host")?, row.try_get("version")?)))).collect()
}
