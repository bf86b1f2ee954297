//! The tallies: how many jobs have ended, by queue, kind and state.

use std::collections::BTreeMap;

use crate::sql::script::{Script, Value};
use crate::sql::session::Session;
use tickr_job::{Name, State};

/// Tally lanes of one process. A tally lane is a number in the key of the tally rows. Each process draws a small range,
/// which is probably its own, so that processes rarely wait for each other's tally rows. Two processes with the same
/// lane wait for a moment. They cannot deadlock, because a transaction that has written its tallies waits for nothing
/// more.
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

/// Add to the tallies, in key order. The caller does this last in its transaction.
pub(crate) async fn count(
    conn: &mut Session<'_>,
    lane: u8,
    counts: &BTreeMap<(Name, Name, State), i64>,
) -> Result<(), sqlx::Error> {
    let counts: Vec<_> = counts.iter().map(|((queue, kind, state), n)| (queue, kind, *state, *n)).collect();
    let mut script = Script::about(counts.len(), 0);
    tally(&mut script, lane, &counts);
    script.run(conn).await.map(drop)
}

/// Add a step that adds to the tallies to a script. `counts` must be in key order.
pub(crate) fn tally<'a>(script: &mut Script<'a>, lane: u8, counts: &[(&'a Name, &'a Name, State, i64)]) {
    let sql = [
        "INSERT INTO tallies (lane, queue, kind, state, n) VALUES",
        "(?,?,?,?,?)",
        "ON DUPLICATE KEY UPDATE n = n + VALUES(n)",
    ];
    script.insert(
        sql,
        counts,
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

/// Queue name under which the tallies of old queues are summed up. No queue can have this name.
pub(crate) const OTHER: &str = "_other";
