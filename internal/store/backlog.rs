//! How many jobs are owed, by queue and state. The table is never read as a whole: the price is the same behind any backlog.
//!
//! A short table is counted where it stands. Of a longer one each line is counted by itself, up to its share of what one count may
//! read, so that a long line takes nothing from the figures of the others. A line with more jobs than its share has a floor.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::{MySqlConnection, Row};

use super::error::corrupt;
use super::line::{DueLine, MOST_BRANCHES, unreadable};
use super::shape::{padded, statement};
use super::stats::StateCount;
use crate::job::{Name, State};

/// A table with fewer rows is counted where it stands, whatever queues its jobs are of.
const FEW: u32 = 20_000;
/// Rows that are counted line by line, all lines together.
const MOST_COUNTED: usize = 100_000;
/// Rows of each line that are counted before the rest is shared out among the lines that have more.
const FIRST_SHARE: usize = 1_000;
/// Lines that are counted, the first by queue.
const MOST_LINES: usize = 2_000;

/// Unfinished jobs by queue and state.
#[derive(Clone, Debug, Default)]
pub(super) struct Backlog {
    /// Sorted by queue.
    pub(super) counts: Vec<StateCount>,
    /// Were all jobs of all queues counted?
    pub(super) exact: bool,
    /// If not: the queues all of whose jobs were.
    pub(super) whole: BTreeSet<Name>,
}

/// What was counted of one line.
type ByState = BTreeMap<State, i64>;

/// Count. When the table is long, these queues are counted, whose lines these are; `others` says that there are more.
pub(super) async fn backlog(
    conn: &mut MySqlConnection,
    queues: &[Name],
    lines: &[DueLine],
    others: bool,
) -> Result<Backlog, sqlx::Error> {
    if let Some(counts) = short(conn).await? {
        return Ok(Backlog { counts, exact: true, whole: BTreeSet::new() });
    }
    let (counted, left_out) = lines.split_at(lines.len().min(MOST_LINES));
    let first = FIRST_SHARE.min(MOST_COUNTED / counted.len().max(1));
    let mut found = each(conn, counted, first).await?;
    let rows = |of: &ByState| usize::try_from(of.values().sum::<i64>()).unwrap_or(0);
    let long = |found: &[ByState], share: usize| -> Vec<usize> {
        (0..found.len()).filter(|place| rows(&found[*place]) >= share).collect()
    };
    let (mut longer, read) = (long(&found, first), found.iter().map(rows).sum::<usize>());
    if !longer.is_empty() {
        let share = first.max(MOST_COUNTED.saturating_sub(read) / longer.len());
        let again: Vec<DueLine> = longer.iter().map(|place| counted[*place].clone()).collect();
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

/// The counts of a short table; nothing when it is long.
async fn short(conn: &mut MySqlConnection) -> Result<Option<Vec<StateCount>>, sqlx::Error> {
    let sql = "SELECT queue, state, COUNT(*) FROM (SELECT queue, state FROM owed FORCE INDEX (PRIMARY) LIMIT ?) o \
               GROUP BY queue, state ORDER BY queue, state";
    let (mut counts, mut rows) = (Vec::new(), 0);
    for row in &sqlx::query(sql).bind(FEW).fetch_all(conn).await? {
        let jobs: i64 = row.try_get(2)?;
        rows += jobs;
        match (row.try_get::<&str, _>(0)?.parse(), State::from_word(row.try_get(1)?)) {
            (Ok(queue), Some(state)) => counts.push(StateCount { queue, state, jobs }),
            _ => unreadable("the queue or the state of a job"),
        }
    }
    Ok((rows < i64::from(FEW)).then_some(counts))
}

/// The first `share` jobs of each of these lines, by state.
async fn each(conn: &mut MySqlConnection, lines: &[DueLine], share: usize) -> Result<Vec<ByState>, sqlx::Error> {
    let mut found = Vec::with_capacity(lines.len());
    let most = i64::try_from(share).unwrap_or(i64::MAX);
    for lines in lines.chunks(MOST_BRANCHES) {
        let mut query = statement(counts(padded(lines.len())));
        for place in 0..padded(lines.len()) {
            // Branches that fill the statement up count nothing.
            let (line, rows) = lines.get(place).map_or((&lines[0], 0), |line| (line, most));
            query = query.bind(line.queue.as_str()).bind(line.priority.level()).bind(rows);
        }
        let mut page: Vec<ByState> = vec![ByState::new(); lines.len()];
        for row in &query.fetch_all(&mut *conn).await? {
            let place = usize::try_from(row.try_get::<i64, _>(0)?).unwrap_or(usize::MAX);
            let Some(of_line) = page.get_mut(place) else { continue };
            let state = State::from_word(row.try_get(1)?).ok_or_else(|| corrupt("state"))?;
            of_line.insert(state, row.try_get(2)?);
        }
        found.append(&mut page);
    }
    Ok(found)
}

/// Counts of so many lines. What executes was due, so it stands at the front and is always among what is counted.
fn counts(lines: usize) -> String {
    let branch = |place: usize| {
        format!(
            "SELECT {place}, state, COUNT(*) FROM (SELECT state FROM owed FORCE INDEX (owed_line) WHERE queue = ? \
             AND priority = ? ORDER BY execute_at LIMIT ?) o{place} GROUP BY state"
        )
    };
    (0..lines).map(branch).collect::<Vec<_>>().join(" UNION ALL ")
}
