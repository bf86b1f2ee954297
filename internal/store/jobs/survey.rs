//! A survey of the jobs of a filter: how many there are by time and state, and by their other facts.
//!
//! Few jobs are counted exactly. Of many, each bar of time gets a window, which is the newest rows of its range up to a
//! fixed number, and a sample of the window by a digest of the ids. If one row in twenty is in the sample, each of its
//! jobs stands for twenty; and if the window covers a tenth of the bar, for ten times as many. So a survey reads the same
//! number of rows whatever the size of the tables is, and says which of its figures are estimates. A narrower range of
//! time has narrower bars, and its figures become exact.
//!
//! A window is a range of ids, and each job is in the bar of its acceptance. If the filter has a range of creation
//! times, the jobs whose ids are of another time than that range are read by themselves, and of many of them a sample.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use async_recursion::async_recursion as boxed;
use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::jobs::search::{Chunk, Order, Search, Span};
use crate::rows::dead_letters::group;
use crate::sql::batches::{bind_padded, in_list, padded_len, placeholders, statement};
use crate::sql::connection::on_pool;
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::{Among, Filter, Fingerprint, JobOptions, State, Timestamp, first_id_of, moment_of_id};

/// Most bars of a survey.
pub const MAX_BARS: u32 = 120;
/// A source with at most so many rows is read as a whole.
const FEW: i64 = 5_000;
/// Rows in the windows of all bars together, if there are more.
const WINDOWS: i64 = 120_000;
/// Rows in the samples of all bars together, about.
const SAMPLES: i64 = 6_000;
/// A sample takes so many of a thousand rows, at most all of them.
const ALL_OF_THEM: i64 = 1_000;
/// Bars that one statement reads.
const TOGETHER: usize = 16;
/// Longest time for samples. A survey that has used it up leaves out the older bars.
const PATIENCE: Duration = Duration::from_millis(220);
/// Ids in one lookup of the ledger.
const LOOKUP: usize = 1_000;
/// Most schedules of which the ticks are looked up.
const CHECKED_SCHEDULES: usize = 64;
/// Values of a facet that are named. The others are counted.
const VALUES: usize = 12;

/// Widths of bars, in milliseconds. Between them there is nothing that an operator would call round.
const STEPS_MS: [i64; 21] = [
    1_000,
    5_000,
    10_000,
    30_000,
    60_000,
    120_000,
    300_000,
    600_000,
    900_000,
    1_800_000,
    3_600_000,
    7_200_000,
    10_800_000,
    21_600_000,
    43_200_000,
    86_400_000,
    172_800_000,
    604_800_000,
    1_209_600_000,
    2_419_200_000,
    31_536_000_000,
];

/// How many jobs of a filter there are.
#[derive(Clone, Debug)]
pub struct Survey {
    /// Begin of the first bar.
    pub from: Timestamp,
    /// End of the last bar.
    pub to: Timestamp,
    /// Width of a bar, in milliseconds.
    pub step_ms: i64,
    /// The bars, oldest first.
    pub bars: Vec<Bar>,
    /// Number of jobs in all bars.
    pub jobs: u64,
    /// True if every job was counted. Otherwise the numbers are estimates.
    pub exact: bool,
    /// Number of rows that were looked at.
    pub looked_at: u64,
    /// The values of the jobs, by field.
    pub facets: Vec<Facet>,
}

/// The jobs that were accepted within a range of time, by state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bar {
    /// Begin of the range.
    pub from: Timestamp,
    /// Number of jobs by state.
    pub states: BTreeMap<State, u64>,
    /// True if every job of the range was counted.
    pub exact: bool,
    /// False if there was no time for this bar.
    pub looked: bool,
}

/// The values of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facet {
    /// The field.
    pub field: FacetField,
    /// The most frequent values, the most frequent one first.
    pub values: Vec<FacetValue>,
    /// Number of other values.
    pub others: u64,
}

/// A value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FacetValue {
    /// The value, as a filter has it.
    pub value: String,
    /// The text that an operator knows it by, if that is another one.
    pub text: Option<String>,
    /// Number of jobs.
    pub jobs: u64,
}

/// A field of a job whose values are counted. Each is a field of the filter language.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FacetField {
    /// The state.
    State,
    /// The kind.
    Kind,
    /// The queue.
    Queue,
    /// The group of dead letters of a failed job.
    Group,
    /// The tags.
    Tag,
    /// The number of attempts used.
    Attempt,
    /// The runner of the newest attempt.
    Runner,
    /// The schedule that made the job.
    Schedule,
    /// The host that the job calls.
    Host,
    /// The unique key.
    UniqueKey,
    /// The order key.
    Order,
    /// The limit key.
    Limit,
}

impl FacetField {
    /// Every field, in the order of a survey.
    pub const ALL: [Self; 12] = [
        Self::State,
        Self::Kind,
        Self::Queue,
        Self::Group,
        Self::Tag,
        Self::Attempt,
        Self::Runner,
        Self::Schedule,
        Self::Host,
        Self::UniqueKey,
        Self::Order,
        Self::Limit,
    ];

    /// Return the name of the field in the filter language.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Kind => "kind",
            Self::Queue => "queue",
            Self::Group => "group",
            Self::Tag => "tag",
            Self::Attempt => "attempt",
            Self::Runner => "runner",
            Self::Schedule => "schedule",
            Self::Host => "host",
            Self::UniqueKey => "unique_key",
            Self::Order => "order",
            Self::Limit => "limit",
        }
    }
}

impl Store {
    /// Survey the jobs of a filter in about `bars` bars over the range of its creation times. Without a range it reaches
    /// from the oldest job of the filter to now.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn survey(&self, filter: Filter, bars: u32) -> Result<Survey, StoreError> {
        on_pool(&self.shared.pools.reads, "survey the jobs of a filter", move |conn, _| {
            let filter = filter.clone();
            Box::pin(async move { survey(conn, &filter, bars.clamp(1, MAX_BARS)).await })
        })
        .await
    }
}

const COLUMNS: &str = "j.id, j.kind, j.queue, j.unique_key, j.host, j.options, j.created_at, o.state, o.attempt, \
                       o.spared, o.runner, d.fingerprint, d.error";

/// A job that was looked at.
struct Seen {
    id: Uuid,
    kind: String,
    queue: String,
    unique_key: Option<Vec<u8>>,
    host: Option<Vec<u8>>,
    options: JobOptions,
    state: Option<State>,
    attempt: Option<u32>,
    runner: Option<String>,
    group: Option<(Fingerprint, String)>,
    created_at: Timestamp,
    /// Number of jobs that it stands for.
    weight: f64,
}

async fn survey(conn: &mut Session<'_>, filter: &Filter, most_bars: u32) -> Result<Survey, sqlx::Error> {
    let now: Timestamp = sqlx::query_scalar("SELECT UTC_TIMESTAMP(3)").fetch_one(&mut *conn).await?;
    let mut search = Search::prepare(conn, filter, Order::NewestFirst, Among::All).await?;
    let far = match search.take_distant() {
        Some(distant) => read_distant(conn, distant).await?,
        None => Far::default(),
    };
    let Some(span) = search.span(None) else { return Ok(nothing(filter, now)) };
    search.set_chunk(FEW);
    let all = search.chunk(conn, span).await?;
    let oldest = match &all.rest {
        None => all.oldest,
        Some(_) => search.oldest(conn, span).await?,
    };
    let first_far = far.jobs.iter().map(|job| job.created_at).min();
    let Some(oldest) = oldest.or_else(|| filter.created_after.or(first_far).map(first_id_of)) else {
        return Ok(nothing(filter, now));
    };
    let first = moment_of_id(oldest).unwrap_or(now);
    let scale = Scale::new(filter, first_far.map_or(first, |at| at.min(first)), now, most_bars);
    let mut bars: Vec<Bar> =
        (0..scale.bars).map(|at| Bar { from: scale.begin_of(at), exact: true, ..Bar::default() }).collect();
    let mut seen = far.jobs;
    let mut looked_at = far.rows;
    if all.rest.is_none() {
        for row in &search.matching(COLUMNS, &all, FEW).fetch_all(&mut *conn).await? {
            seen.push(job_of(row, 1.0)?);
        }
        looked_at += all.rows;
        bars.iter_mut().for_each(|bar| bar.looked = true);
    } else {
        let window = (WINDOWS / i64::from(most_bars)).max(1);
        search.set_chunk(window);
        let began = Instant::now();
        // The newest bars first: if there is no time for all of them, these are wanted most.
        let places: Vec<usize> = (0..bars.len()).rev().collect();
        for places in places.chunks(TOGETHER) {
            if began.elapsed() > PATIENCE {
                places.iter().for_each(|place| bars[*place].exact = false);
                continue;
            }
            let spans: Vec<Span> = places.iter().map(|place| scale.span_of(*place, span)).collect();
            let chunks = search.chunks(conn, &spans).await?;
            let samples: Vec<(Search, &Chunk)> =
                chunks.iter().map(|chunk| (search.thinned(part_of(chunk, most_bars)), chunk)).collect();
            let rows = Search::matching_in_each(&samples, COLUMNS, window).fetch_all(&mut *conn).await?;
            let mut found: Vec<Vec<Seen>> = places.iter().map(|_| Vec::new()).collect();
            for row in &rows {
                let at = usize::try_from(row.try_get::<i64, _>("place")?).unwrap_or(usize::MAX);
                let Some(jobs) = found.get_mut(at) else { continue };
                jobs.push(job_of(row, 1.0)?);
            }
            for ((place, chunk), jobs) in places.iter().zip(&chunks).zip(found) {
                looked_at += chunk.rows;
                let (bar, part) = (&mut bars[*place], part_of(chunk, most_bars));
                bar.looked = true;
                bar.exact = chunk.rest.is_none() && part == ALL_OF_THEM;
                let covered = if chunk.rest.is_none() { 1.0 } else { scale.weight(*place, oldest, chunk) };
                // Where every row of the source is a job of the filter, the number of rows in the window is known.
                let each = match jobs.len() {
                    found if found > 0 && !search.is_narrow() => ratio(chunk.rows, found),
                    _ => ratio(ALL_OF_THEM, usize::try_from(part).unwrap_or(1)),
                };
                seen.extend(jobs.into_iter().map(|job| Seen { weight: each * covered, ..job }));
            }
        }
    }
    if far.is_estimate {
        bars.iter_mut().for_each(|bar| bar.exact = false);
    }
    // A job may be in another bar than its window.
    for job in seen.iter().filter(|job| job.weight > 1.0) {
        bars[scale.place_of(job.created_at)].exact = false;
    }
    add_ledgers(conn, &mut seen).await?;
    forget_schedules_without_ticks(conn, &mut seen).await?;
    // A job may have changed its state between the reads, and a job that is purged has none any more.
    seen.retain(|job| job.state.is_some() && filter.state.is_none_or(|state| job.state == Some(state)));
    Ok(sum(&seen, bars, &scale, looked_at.unsigned_abs()))
}

/// Jobs of the filter whose ids are of another time than its range.
#[derive(Default)]
struct Far {
    jobs: Vec<Seen>,
    /// Number of rows that were looked at.
    rows: i64,
    /// True if the jobs are a sample.
    is_estimate: bool,
}

/// Read these jobs. After an outage of an outbox there may be many. Then read a sample of the newest ids, as many as a
/// survey looks at otherwise.
async fn read_distant(conn: &mut Session<'_>, mut search: Search) -> Result<Far, sqlx::Error> {
    let Some(span) = search.span(None) else { return Ok(Far::default()) };
    search.set_chunk(WINDOWS);
    let chunk = search.chunk(conn, span).await?;
    let part = (ALL_OF_THEM * FEW / chunk.rows.max(1)).clamp(1, ALL_OF_THEM);
    let each = ratio(ALL_OF_THEM, usize::try_from(part).unwrap_or(1));
    let mut far = Far { jobs: Vec::new(), rows: chunk.rows, is_estimate: part < ALL_OF_THEM };
    if chunk.rows > 0 {
        for row in &search.thinned(part).matching(COLUMNS, &chunk, 2 * FEW).fetch_all(&mut *conn).await? {
            far.jobs.push(job_of(row, each)?);
        }
    }
    Ok(far)
}

/// The survey of a filter that no job can match.
fn nothing(filter: &Filter, now: Timestamp) -> Survey {
    let scale = Scale::new(filter, now, now, 1);
    sum(&[], Vec::new(), &scale, 0)
}

/// The range of a survey and its bars.
struct Scale {
    from_ms: i64,
    to_ms: i64,
    step_ms: i64,
    bars: usize,
}

impl Scale {
    fn new(filter: &Filter, oldest: Timestamp, now: Timestamp, most_bars: u32) -> Self {
        let to_ms = filter.created_before.unwrap_or(now).timestamp_millis();
        let from_ms = filter.created_after.unwrap_or(oldest).timestamp_millis().min(to_ms - 1);
        let wide = (to_ms - from_ms) / i64::from(most_bars);
        let step_ms = STEPS_MS.into_iter().find(|step| *step >= wide).unwrap_or(wide.max(1));
        // Bars begin at round times.
        let from_ms = from_ms.div_euclid(step_ms) * step_ms;
        let bars = usize::try_from((to_ms - 1 - from_ms) / step_ms + 1).unwrap_or(1);
        Self { from_ms, to_ms, step_ms, bars }
    }

    fn begin_ms(&self, place: usize) -> i64 {
        self.from_ms + self.step_ms * i64::try_from(place).unwrap_or(0)
    }

    fn begin_of(&self, place: usize) -> Timestamp {
        moment(self.begin_ms(place))
    }

    /// Return the bar of a job by its acceptance. Without a range in the filter, the first bar begins at the oldest id,
    /// which a host with a wrong clock may have made of a later time.
    fn place_of(&self, created_at: Timestamp) -> usize {
        let place = (created_at.timestamp_millis() - self.from_ms).div_euclid(self.step_ms);
        usize::try_from(place).unwrap_or(0).min(self.bars - 1)
    }

    /// Return the ids of a bar within `span`. The first and the last bar have everything before and behind them.
    fn span_of(&self, place: usize, span: Span) -> Span {
        let from = if place == 0 { span.from } else { first_id_of(self.begin_of(place)).max(span.from) };
        let last = place + 1 == self.bars;
        let to = if last { span.to } else { first_id_of(self.begin_of(place + 1)).min(span.to) };
        Span { from, to }
    }

    /// Return the ratio of a bar to its window, which has the newest jobs of the bar. The time behind the newest job is
    /// empty, and so is the time before `oldest`, the first job of the filter.
    fn weight(&self, place: usize, oldest: Uuid, window: &Chunk) -> f64 {
        let begin = self.begin_ms(place).max(ms_of(oldest));
        let end = window.newest.map_or(self.to_ms, ms_of).max(begin + 1);
        let covered = (end - window.oldest.map_or(begin, ms_of).clamp(begin, end)).max(1);
        #[expect(clippy::cast_precision_loss, reason = "milliseconds of a bar")]
        let weight = (end - begin) as f64 / covered as f64;
        weight.max(1.0)
    }
}

fn ms_of(id: Uuid) -> i64 {
    i64::try_from(id.as_u128() >> 80).unwrap_or(i64::MAX)
}

fn moment(ms: i64) -> Timestamp {
    Timestamp::from_timestamp_millis(ms).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Return how many of a thousand rows of a window are in its sample.
fn part_of(chunk: &Chunk, most_bars: u32) -> i64 {
    (ALL_OF_THEM * SAMPLES / i64::from(most_bars) / chunk.rows.max(1)).clamp(1, ALL_OF_THEM)
}

#[expect(clippy::cast_precision_loss, reason = "numbers of rows of a window")]
fn ratio(all: i64, some: usize) -> f64 {
    all as f64 / some as f64
}

/// Read a job that stands for so many.
fn job_of(row: &MySqlRow, weight: f64) -> Result<Seen, sqlx::Error> {
    let (begun, spared): (Option<u32>, Option<u32>) = (row.try_get("attempt")?, row.try_get("spared")?);
    let fingerprint = row.try_get::<Option<&[u8]>, _>("fingerprint")?.map(group).transpose()?;
    let options: Option<String> = row.try_get("options")?;
    Ok(Seen {
        id: row.try_get("id")?,
        kind: row.try_get("kind")?,
        queue: row.try_get("queue")?,
        unique_key: row.try_get("unique_key")?,
        host: row.try_get("host")?,
        options: options.as_deref().map(JobOptions::as_far_as_readable).unwrap_or_default(),
        state: row.try_get::<Option<&str>, _>("state")?.and_then(State::from_word),
        attempt: begun.zip(spared).map(|(begun, spared)| begun.saturating_sub(spared)),
        runner: row.try_get::<Option<String>, _>("runner")?.filter(|runner| !runner.is_empty()),
        group: fingerprint.zip(row.try_get("error")?),
        created_at: row.try_get("created_at")?,
        weight,
    })
}

/// Add the facts of the ledger: the end of an ended job, and the newest attempt of every job.
async fn add_ledgers(conn: &mut Session<'_>, seen: &mut [Seen]) -> Result<(), sqlx::Error> {
    let places: HashMap<Uuid, usize> = seen.iter().enumerate().map(|(place, job)| (job.id, place)).collect();
    let mut ids: Vec<Uuid> = places.keys().copied().collect();
    ids.sort_unstable();
    let sql = "SELECT job_id, runner, runner <> '' AND expired IS NULL AS executed, burned, end_state \
               FROM attempts FORCE INDEX (PRIMARY) WHERE job_id IN";
    for ids in ids.chunks(LOOKUP) {
        // The lines of a job come in their order, so the last one stays.
        let mut ends: HashMap<usize, (Option<State>, u32)> = HashMap::new();
        for row in &in_list(sql, ids, " ORDER BY job_id, number").fetch_all(&mut *conn).await? {
            let Some(place) = places.get(&row.try_get::<Uuid, _>("job_id")?) else { continue };
            let end = row.try_get::<Option<&str>, _>("end_state")?.and_then(State::from_word);
            ends.insert(*place, (end, row.try_get("burned")?));
            let job = &mut seen[*place];
            // An executing job has its runner from `owed`.
            if row.try_get::<bool, _>("executed")? && job.state != Some(State::Executing) {
                job.runner = Some(row.try_get("runner")?);
            }
        }
        for (place, (end, burned)) in ends {
            let job = &mut seen[place];
            job.state = job.state.or(end);
            job.attempt = job.attempt.or(Some(burned));
        }
    }
    Ok(())
}

/// Leave the schedule out of jobs whose tick is not kept any more, because the filter finds the jobs of a schedule by its
/// ticks. This looks at the schedules with the most jobs, which are more than a facet names.
async fn forget_schedules_without_ticks(conn: &mut Session<'_>, seen: &mut [Seen]) -> Result<(), sqlx::Error> {
    let mut made: HashMap<String, BTreeMap<Uuid, usize>> = HashMap::new();
    for (place, job) in seen.iter().enumerate() {
        if let Some(schedule) = &job.options.schedule {
            made.entry(schedule.name.to_string()).or_default().insert(job.id, place);
        }
    }
    let mut made: Vec<(String, BTreeMap<Uuid, usize>)> = made.into_iter().collect();
    made.sort_unstable_by(|one, other| other.1.len().cmp(&one.1.len()).then_with(|| one.0.cmp(&other.0)));
    for (schedule, mut places) in made.into_iter().take(CHECKED_SCHEDULES) {
        let ids: Vec<Uuid> = places.keys().copied().collect();
        for ids in ids.chunks(LOOKUP) {
            let sql = format!(
                "SELECT job_id FROM ticks FORCE INDEX (ticks_job) WHERE schedule = ? AND job_id IN {}",
                placeholders(padded_len(ids.len()))
            );
            let query = bind_padded(statement(sql).bind(schedule.clone()), ids);
            for row in &query.fetch_all(&mut *conn).await? {
                places.remove(&row.try_get::<Uuid, _>("job_id")?);
            }
        }
        for place in places.into_values() {
            seen[place].options.schedule = None;
        }
    }
    Ok(())
}

/// The number of jobs with one value.
#[derive(Default)]
struct Sum {
    weight: f64,
    text: Option<String>,
}

fn sum(seen: &[Seen], mut bars: Vec<Bar>, scale: &Scale, looked_at: u64) -> Survey {
    let mut states: Vec<BTreeMap<State, f64>> = vec![BTreeMap::new(); bars.len()];
    let mut values: HashMap<(FacetField, String), Sum> = HashMap::new();
    for job in seen {
        let Some(state) = job.state else { continue };
        if let Some(of_bar) = states.get_mut(scale.place_of(job.created_at)) {
            *of_bar.entry(state).or_default() += job.weight;
        }
        let mut add = |field: FacetField, value: String, text: Option<&str>| {
            let sum = values.entry((field, value)).or_default();
            sum.weight += job.weight;
            if sum.text.is_none() {
                sum.text = text.map(str::to_owned);
            }
        };
        add(FacetField::State, state.to_string(), None);
        add(FacetField::Kind, job.kind.clone(), None);
        add(FacetField::Queue, job.queue.clone(), None);
        add(FacetField::Attempt, job.attempt.unwrap_or(0).to_string(), None);
        if let Some((group, error)) = job.group.as_ref().filter(|_| state == State::Failed) {
            add(FacetField::Group, group.to_string(), Some(&format!("{}: {error}", job.kind)));
        }
        if let Some(runner) = &job.runner {
            add(FacetField::Runner, runner.clone(), None);
        }
        for (field, value) in [(FacetField::UniqueKey, &job.unique_key), (FacetField::Host, &job.host)] {
            if let Some(value) = value {
                add(field, String::from_utf8_lossy(value).into_owned(), None);
            }
        }
        for tag in &job.options.tags {
            add(FacetField::Tag, tag.as_str().to_owned(), None);
        }
        if let Some(order) = &job.options.order {
            add(FacetField::Order, order.key.clone(), None);
        }
        if let Some(key) = &job.options.limit_key {
            add(FacetField::Limit, key.clone(), None);
        }
        if let Some(schedule) = &job.options.schedule {
            add(FacetField::Schedule, schedule.name.to_string(), None);
        }
    }
    for (bar, states) in bars.iter_mut().zip(states) {
        bar.states = states.into_iter().map(|(state, weight)| (state, rounded(weight))).collect();
    }
    Survey {
        from: moment(scale.from_ms),
        to: moment(scale.to_ms),
        step_ms: scale.step_ms,
        jobs: bars.iter().flat_map(|bar| bar.states.values()).sum(),
        exact: bars.iter().all(|bar| bar.exact),
        looked_at,
        bars,
        facets: facets_of(values),
    }
}

fn facets_of(values: HashMap<(FacetField, String), Sum>) -> Vec<Facet> {
    let mut by_field: BTreeMap<FacetField, Vec<FacetValue>> = BTreeMap::new();
    for ((field, value), sum) in values {
        let value = FacetValue { value, text: sum.text, jobs: rounded(sum.weight) };
        by_field.entry(field).or_default().push(value);
    }
    let facet = |(field, mut values): (FacetField, Vec<FacetValue>)| {
        values.sort_by(|one, other| other.jobs.cmp(&one.jobs).then_with(|| one.value.cmp(&other.value)));
        let others = values.len().saturating_sub(VALUES) as u64;
        values.truncate(VALUES);
        Facet { field, values, others }
    };
    by_field.into_iter().map(facet).collect()
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of jobs, at least 1")]
fn rounded(weight: f64) -> u64 {
    weight.round().max(1.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        moment(1_800_000_000_000 + ms)
    }

    #[test]
    fn bars_are_round_and_cover_the_range() {
        for (range_ms, most, step_ms, bars) in [
            (3_600_000, 60, 60_000, 60),
            (86_400_000, 60, 1_800_000, 48),
            (1, 60, 1_000, 1),
            (7 * 86_400_000, 60, 10_800_000, 57),
        ] {
            let filter = Filter { created_after: Some(at(0)), created_before: Some(at(range_ms)), ..Filter::default() };
            let scale = Scale::new(&filter, at(0), at(0), most);
            assert_eq!((scale.step_ms, scale.bars), (step_ms, bars), "{range_ms}");
            let all = Span { from: Uuid::nil(), to: Uuid::max() };
            let ends: Vec<Span> = (0..scale.bars).map(|place| scale.span_of(place, all)).collect();
            assert!(ends.windows(2).all(|two| two[0].to == two[1].from), "no id is between two bars");
            assert_eq!((ends[0].from, ends[scale.bars - 1].to), (all.from, all.to));
            for (ms, place) in [(-range_ms, 0), (0, 0), (range_ms - 1, scale.bars - 1), (range_ms, scale.bars - 1)] {
                assert_eq!(scale.place_of(at(ms)), place, "{range_ms}");
            }
        }
    }

    #[test]
    fn a_window_stands_for_the_part_of_its_bar_that_it_does_not_cover() {
        let filter = Filter { created_after: Some(at(0)), created_before: Some(at(3_600_000)), ..Filter::default() };
        let scale = Scale::new(&filter, at(0), at(0), 60);
        let weight = |oldest: i64, from: i64, to: i64| {
            let (first, last) = (first_id_of(at(from)), first_id_of(at(to)));
            let span = Span { from: first, to: last };
            let (first_row, newest) = (Some(first), Some(last));
            let window = Chunk { span, rest: Some(span), rows: 100, oldest: first_row, newest, is_distant: false };
            scale.weight(0, first_id_of(at(oldest)), &window)
        };
        assert!((weight(0, 45_000, 60_000) - 4.0).abs() < 1e-9);
        // Nothing came in the second half of the bar.
        assert!((weight(0, 15_000, 30_000) - 2.0).abs() < 1e-9);
        // The first job of all came in the middle of the bar.
        assert!((weight(30_000, 45_000, 60_000) - 2.0).abs() < 1e-9);
        assert!((weight(0, 0, 60_000) - 1.0).abs() < 1e-9);
    }
}
