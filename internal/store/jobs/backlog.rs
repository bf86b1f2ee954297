//! Counts of unfinished jobs by queue and state. The table `owed` is never read as a whole, so a count costs the same
//! behind any backlog.
//!
//! A short table is counted completely. In a longer table each lane (one queue at one priority) is counted separately,
//! up to its share of the rows that one count may read. So a long lane takes nothing from the counts of the others. The
//! count of a lane that has more jobs than its share is a lower bound.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::Row;

use crate::jobs::lanes::{DueLane, MAX_BRANCHES};
use crate::rows::owed::unreadable;
use crate::sql::batches::{padded_len, statement};
use crate::sql::error::corrupt;
use crate::sql::session::Session;
use tickr_job::{Name, State};

/// A table with fewer rows than this is counted completely, whatever the queues of its jobs are.
const FEW: u32 = 20_000;
/// Rows that one count of a long table may read, over all lanes together.
const MAX_COUNTED: usize = 100_000;
/// Rows of each lane that are counted first. What is left of [`MAX_COUNTED`] is then shared by the lanes that have
/// more.
const FIRST_SHARE: usize = 1_000;
/// Lanes that are counted at most. The lanes are sorted by queue.
const MAX_LINES: usize = 2_000;

/// Unfinished jobs by queue and state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Backlog {
    /// Sorted by queue.
    pub(crate) counts: Vec<StateCount>,
    /// True if all jobs of all queues were counted.
    pub(crate) exact: bool,
    /// The queues whose jobs were all counted. Only filled in when the count is not exact.
    pub(crate) whole: BTreeSet<Name>,
}

/// The counted jobs of one lane by state.
type ByState = BTreeMap<State, i64>;

/// Count the unfinished jobs. When the table is long, only the given queues are counted; `lines` are their lanes, and
/// `others` says that there are queues beside these.
pub(crate) async fn backlog(
    conn: &mut Session<'_>,
    queues: &[Name],
    lines: &[DueLane],
    others: bool,
) -> Result<Backlog, sqlx::Error> {
    if let Some(counts) = short(conn).await? {
        return Ok(Backlog { counts, exact: true, whole: BTreeSet::new() });
    }
    backlog_of(conn, queues, lines, others).await
}

/// Count the unfinished jobs of these queues, lane by lane.
pub(crate) async fn backlog_of(
    conn: &mut Session<'_>,
    queues: &[Name],
    lines: &[DueLane],
    others: bool,
) -> Result<Backlog, sqlx::Error> {
    let (counted, left_out) = lines.split_at(lines.len().min(MAX_LINES));
    let first = FIRST_SHARE.min(MAX_COUNTED / counted.len().max(1));
    let mut found = each(conn, counted, first).await?;
    let rows = |of: &ByState| usize::try_from(of.values().sum::<i64>()).unwrap_or(0);
    let long = |found: &[ByState], share: usize| -> Vec<usize> {
        (0..found.len()).filter(|place| rows(&found[*place]) >= share).collect()
    };
    let (mut longer, read) = (long(&found, first), found.iter().map(rows).sum::<usize>());
    if !longer.is_empty() {
        let share = first.max(MAX_COUNTED.saturating_sub(read) / longer.len());
        let again: Vec<DueLane> = longer.iter().map(|place| counted[*place].clone()).collect();
        for (place, more) in longer.iter().zip(each(conn, &again, share).await?) {
            found[*place] = more;
        }
        longer.retain(|place| rows(&found[*place]) >= share);
    }
    let cut = longer.iter().map(|place| &counted[*place]).chain(left_out);
    let cut: BTreeSet<&Name> = cut.map(|line| &line.queue).collect();
    let whole = queues.iter().filter(|queue| !cut.contains(queue)).cloned().collect();
    let mut sums: BTreeMap<(&Name, State), i64> = BTreeMap::new();
    for (line, by_state) in counted.iter().zip(&found) {
        for (state, jobs) in by_state {
            *sums.entry((&line.queue, *state)).or_default() += jobs;
        }
    }
    let count = |((queue, state), jobs): ((&Name, State), i64)| StateCount { queue: queue.clone(), state, jobs };
    Ok(Backlog { counts: sums.into_iter().map(count).collect(), exact: cut.is_empty() && !others, whole })
}

/// Return the counts of a short table, or nothing when the table is long.
async fn short(conn: &mut Session<'_>) -> Result<Option<Vec<StateCount>>, sqlx::Error> {
    let sql = "SELECT queue, state, COUNT(*) AS jobs FROM (SELECT queue, state FROM owed FORCE INDEX (PRIMARY) \
               LIMIT ?) o GROUP BY queue, state ORDER BY queue, state";
    let (mut counts, mut rows) = (Vec::new(), 0);
    for row in &sqlx::query(sql).bind(FEW).fetch_all(conn).await? {
        let jobs: i64 = row.try_get("jobs")?;
        rows += jobs;
        match (row.try_get::<&str, _>("queue")?.parse(), State::from_word(row.try_get("state")?)) {
            (Ok(queue), Some(state)) => counts.push(StateCount { queue, state, jobs }),
            _ => unreadable("the queue or the state of a job"),
        }
    }
    Ok((rows < i64::from(FEW)).then_some(counts))
}

/// Count the first `share` jobs of each lane by state.
async fn each(conn: &mut Session<'_>, lines: &[DueLane], share: usize) -> Result<Vec<ByState>, sqlx::Error> {
    let mut found = Vec::with_capacity(lines.len());
    let most = i64::try_from(share).unwrap_or(i64::MAX);
    for lines in lines.chunks(MAX_BRANCHES) {
        let mut query = statement(counts(padded_len(lines.len())));
        for place in 0..padded_len(lines.len()) {
            // The branches that only pad the statement to its length count nothing.
            let (line, rows) = lines.get(place).map_or((&lines[0], 0), |line| (line, most));
            query = query.bind(line.queue.as_str()).bind(line.priority.level()).bind(rows);
        }
        let mut page: Vec<ByState> = vec![ByState::new(); lines.len()];
        for row in &query.fetch_all(&mut *conn).await? {
            let place = usize::try_from(row.try_get::<i64, _>("place")?).unwrap_or(usize::MAX);
            let Some(of_line) = page.get_mut(place) else { continue };
            let state = State::from_word(row.try_get("state")?).ok_or_else(|| corrupt("state"))?;
            of_line.insert(state, row.try_get("jobs")?);
        }
        found.append(&mut page);
    }
    Ok(found)
}

/// The statement that counts this number of lanes. Executing jobs were due, so they stand at the front of their lane
/// and are always among the counted rows.
fn counts(lines: usize) -> String {
    let branch = |place: usize| {
        format!(
            "SELECT {place} AS place, state, COUNT(*) AS jobs FROM (SELECT state FROM owed FORCE INDEX (owed_line) \
             WHERE queue = ? AND priority = ? ORDER BY execute_at LIMIT ?) o{place} GROUP BY state"
        )
    };
    (0..lines).map(branch).collect::<Vec<_>>().join(" UNION ALL ")
}

/// The number of jobs of one queue in one state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateCount {
    /// The queue.
    pub queue: Name,
    /// The state.
    pub state: State,
    /// Number of jobs.
    pub jobs: i64,
}
