//! The tallies: how many jobs have ended, by queue, kind and state.
//!
//! A tally is a row that many transactions change. So each of them changes its tallies in the request of its COMMIT. If
//! it did so earlier, a runner that stalls before its COMMIT would hold up the ends of all other jobs of the kind, and
//! so would every lock for which the transaction waits after that.

use std::collections::BTreeMap;

use crate::sql::connection::is_in_cluster;
use crate::sql::script::{Script, Value};
use crate::sql::session::Session;
use tickr_job::{Name, State};

/// Tally lanes of one process. A tally lane is a number in the key of the tally rows. Each process draws a small range,
/// which is probably its own, so that processes rarely wait for each other's tally rows. Two processes with the same
/// lane wait for a moment. They cannot deadlock, because a transaction that has written its tallies waits for nothing
/// more: MySQL goes on to its COMMIT.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lanes {
    first: u8,
}

impl Lanes {
    pub(crate) fn drawn() -> Self {
        Self { first: rand::random() }
    }

    pub(crate) fn any(self) -> u8 {
        self.of_turn(rand::random())
    }

    /// Return the tally lanes in turn, so that successive writes, which may overlap, use different lanes.
    pub(crate) fn of_turn(self, turn: u8) -> u8 {
        self.first.wrapping_add(turn % 4)
    }
}

/// Add to the tallies, in key order. The caller does this last in its transaction. The statement goes with the COMMIT.
pub(crate) async fn count(
    conn: &mut Session<'_>,
    lane: u8,
    counts: &BTreeMap<(Name, Name, State), i64>,
) -> Result<(), sqlx::Error> {
    if counts.is_empty() {
        return Ok(());
    }
    let ends = counts.iter().map(|((queue, kind, state), n)| (queue, kind, *state, *n)).collect();
    let mut script = Script::as_text();
    Counts::new(lane, ends).add_step(&mut script);
    // A request has one statement in a cluster.
    if is_in_cluster() || !conn.is_transaction() {
        return script.run(conn).await.map(drop);
    }
    conn.leave_for_commit(script.into_text()?);
    Ok(())
}

/// What a transaction adds to the tallies.
pub(crate) struct Counts<'a> {
    lane: u8,
    /// By queue, kind and state, in this order.
    ends: Vec<(&'a Name, &'a Name, State, i64)>,
}

impl<'a> Counts<'a> {
    /// `ends` must be in key order: by queue, kind and state.
    pub(crate) const fn new(lane: u8, ends: Vec<(&'a Name, &'a Name, State, i64)>) -> Self {
        Self { lane, ends }
    }

    /// Add the step that adds to the tallies to a script. Only the COMMIT comes after it.
    pub(crate) fn add_step(&self, script: &mut Script<'a>) {
        let sql = [
            "INSERT INTO tallies (lane, queue, kind, state, n) VALUES",
            "(?,?,?,?,?)",
            "ON DUPLICATE KEY UPDATE n = n + VALUES(n)",
        ];
        let lane = self.lane;
        script.insert(
            sql,
            &self.ends,
            |_| 100,
            |&(queue, kind, state, n), values| {
                values.extend([
                    Value::from(lane),
                    queue.as_str().into(),
                    kind.as_str().into(),
                    state.as_str().into(),
                    n.into(),
                ]);
            },
        );
    }

    /// Add to the tallies and commit, in one request.
    pub(crate) async fn commit(&self, conn: &mut Session<'_>) -> Result<(), sqlx::Error> {
        let mut script = Script::as_text();
        self.add_step(&mut script);
        script.push("COMMIT", Vec::new());
        script.run(conn).await.map(drop)
    }
}

/// Queue name under which the tallies of old queues are summed up. No queue can have this name.
pub(crate) const OTHER: &str = "_other";
