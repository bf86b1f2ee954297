//! Counts of ended jobs by queue and state, from the tallies.
//!
//! Clients make up the names of queues, so the tallies may have any number of them. A count names the queues that are
//! shown, and adds up all others.

use std::collections::BTreeSet;

use sqlx::Row;
use sqlx::mysql::MySqlRow;

use crate::jobs::backlog::StateCount;
use crate::jobs::lanes::MAX_BRANCHES;
use crate::rows::tallies::OTHER;
use crate::sql::batches::{bind_padded, padded, padded_len, placeholders, statement};
use crate::sql::error::corrupt;
use crate::sql::session::Session;
use tickr_job::{Name, State};

/// Most queues that one count names. A statement has at most 65,535 values, and lists are padded to a power of two.
const MAX_NAMED: usize = 32_768;

/// Ended jobs by queue and state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ended {
    /// Sorted by queue.
    pub(crate) counts: Vec<StateCount>,
    /// Those of all other queues, by state.
    pub(crate) elsewhere: Vec<(State, i64)>,
}

/// Count the ended jobs, those of the given queues apart. One statement reads all tallies once, so that the counts
/// belong to one moment. MySQL keeps only the sums.
pub(crate) async fn ended(conn: &mut Session<'_>, queues: &BTreeSet<Name>) -> Result<Ended, sqlx::Error> {
    // The list must not be empty.
    let names: Vec<&str> = queues.iter().map(Name::as_str).take(MAX_NAMED - 1).chain([OTHER]).collect();
    let list = placeholders(padded_len(names.len()));
    let sql = format!(
        "SELECT IF(queue IN {list}, queue, '{OTHER}') AS shown, state, CAST(SUM(n) AS SIGNED) AS jobs FROM tallies \
         GROUP BY shown, state ORDER BY shown, state"
    );
    let mut ended = Ended::default();
    for row in &bind_padded(statement(sql), &names).fetch_all(conn).await? {
        match row.try_get::<&str, _>("shown")? {
            OTHER => ended.elsewhere.push((state(row)?, row.try_get("jobs")?)),
            queue => ended.counts.push(StateCount {
                queue: queue.parse().map_err(|_| corrupt("queue"))?,
                state: state(row)?,
                jobs: row.try_get("jobs")?,
            }),
        }
    }
    Ok(ended)
}

/// Count the ended jobs of one queue. The tally lane is the first column of the key, so each lane is looked up.
pub(crate) async fn ended_of(conn: &mut Session<'_>, queue: &Name) -> Result<Ended, sqlx::Error> {
    let lanes = (0..=u8::MAX).map(|lane| lane.to_string()).collect::<Vec<_>>().join(",");
    let sql = format!(
        "SELECT state, CAST(SUM(n) AS SIGNED) AS jobs FROM tallies FORCE INDEX (PRIMARY) WHERE lane IN ({lanes}) \
         AND queue = ? GROUP BY state ORDER BY state"
    );
    let mut ended = Ended::default();
    for row in &statement(sql).bind(queue.as_str()).fetch_all(conn).await? {
        ended.counts.push(StateCount { queue: queue.clone(), state: state(row)?, jobs: row.try_get("jobs")? });
    }
    Ok(ended)
}

/// List the first `most` queues by name that have tallies.
pub(crate) async fn first_ended(conn: &mut Session<'_>, most: usize) -> Result<BTreeSet<Name>, sqlx::Error> {
    let lanes: Vec<u8> =
        sqlx::query_scalar("SELECT DISTINCT lane FROM tallies ORDER BY lane").fetch_all(&mut *conn).await?;
    // One more, because the name that stands for old queues is among them.
    let rows = u32::try_from(most + 1).unwrap_or(u32::MAX);
    let mut queues = BTreeSet::new();
    for lanes in lanes.chunks(MAX_BRANCHES) {
        let branch =
            "(SELECT queue FROM tallies FORCE INDEX (PRIMARY) WHERE lane = ? GROUP BY queue ORDER BY queue LIMIT ?)";
        let mut query = statement(vec![branch; padded_len(lanes.len())].join(" UNION "));
        for lane in padded(lanes) {
            query = query.bind(lane).bind(rows);
        }
        for row in &query.fetch_all(&mut *conn).await? {
            // A name that cannot be read counts among the others.
            queues.extend(row.try_get::<&str, _>("queue")?.parse::<Name>());
        }
    }
    Ok(queues.into_iter().take(most).collect())
}

/// List the queues that have settings, and those that runners serve that have not stopped.
pub(crate) async fn known(conn: &mut Session<'_>) -> Result<BTreeSet<Name>, sqlx::Error> {
    let set: Vec<String> = sqlx::query_scalar("SELECT name FROM queues LIMIT 2000").fetch_all(&mut *conn).await?;
    let mut queues: BTreeSet<Name> = set.iter().filter_map(|name| name.parse().ok()).collect();
    let served = "SELECT DISTINCT queues FROM runners FORCE INDEX (runners_stopped) WHERE stopped_at IS NULL";
    let served: Vec<String> = sqlx::query_scalar(served).fetch_all(conn).await?;
    for list in served {
        // The row of another version may be unreadable for this binary.
        queues.extend(serde_json::from_str::<Vec<Name>>(&list).unwrap_or_default());
    }
    Ok(queues)
}

fn state(row: &MySqlRow) -> Result<State, sqlx::Error> {
    State::from_word(row.try_get("state")?).ok_or_else(|| corrupt("state"))
}
