//! Settlement of attempts that succeeded, without reading their rows first.
//!
//! Most attempts succeed, and the claim has already read everything that the ledger needs. So the rows are deleted by
//! id and token, unless a cancel was requested. The number of deleted rows tells if every attempt still held its job.
//! If one did not, the transaction is rolled back and the whole batch is settled in `settle.rs`, which reads the rows
//! and decides about each one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sqlx::MySqlConnection;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::attempts::claim::Opened;
use crate::attempts::settlement::Settlement;
use crate::rows::order::{Successor, close_steps, lock_step, release_steps};
use crate::rows::owed::DueJob;
use crate::rows::tallies::tally;
use crate::sql::script::{Script, Value};
use tickr_job::{Name, State, Verdict};

/// A success with nothing else to write than its place: no follow-up jobs and no unique key.
pub(crate) struct Success<'a> {
    item: &'a Settlement,
    opened: &'a Opened,
}

impl<'a> Success<'a> {
    /// Return the success if the attempt can be settled without reading its row.
    pub(crate) fn from_settlement(item: &'a Settlement) -> Option<Self> {
        let opened = item.opened.as_ref()?;
        let plain = item.verdict == Verdict::Succeeded && item.follow_ups.is_empty() && !opened.keyed;
        plain.then_some(Self { item, opened })
    }

    fn bytes(&self) -> usize {
        200 + self.item.result.as_ref().map_or(0, |raw| raw.get().len())
    }
}

/// Settle all of them or none. Returns the jobs that are not held any more. Returns nothing, with nothing written, when a
/// token no longer holds its job or a cancel was requested for one of them.
pub(crate) async fn complete(
    conn: &mut MySqlConnection,
    successes: &[Success<'_>],
    lane: u8,
) -> Result<Option<Vec<DueJob>>, sqlx::Error> {
    let mut sorted: Vec<&Success<'_>> = successes.iter().collect();
    sorted.sort_unstable_by_key(|success| success.item.id);
    let bytes = sorted.iter().map(|success| success.bytes()).sum();

    let ids: Vec<Uuid> = sorted.iter().map(|success| success.item.id.uuid()).collect();
    // The fence is the pair of id and token. The token alone is not enough: it belongs to a whole batch of claims, and
    // one job of that batch may have a newer attempt. The primary key of the ledger is a second fence: a lost attempt
    // has its row there, and MySQL refuses another one.
    let pairs: Vec<[u8; 32]> = sorted.iter().map(|success| pair(success.item)).collect();
    let pairs: Vec<&[u8]> = pairs.iter().map(<[u8; 32]>::as_slice).collect();
    let mut take = Script::about(sorted.len(), bytes);
    let ((ids_list, mut values), (pairs_list, pairs)) = (take.list(&ids), take.list(&pairs));
    values.extend(pairs);
    values.push(i64::try_from(ids.len()).unwrap_or(i64::MAX).into());
    take.push("BEGIN", Vec::new());
    let order_key = |success: &&Success<'_>| success.opened.order_key.clone();
    let keys: Vec<Arc<str>> = sorted.iter().filter_map(order_key).collect();
    let keys: BTreeSet<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
    let ordered: Vec<Uuid> = sorted
        .iter()
        .filter(|success| success.opened.order_key.is_some())
        .map(|success| success.item.id.uuid())
        .collect();
    if !keys.is_empty() {
        // Before any other row.
        lock_step(&mut take, &keys);
    }
    // A single-table DELETE accepts no index hint. The ORDER BY and the LIMIT have the same effect.
    let delete = format!(
        "DELETE FROM owed WHERE id IN {ids_list} AND CONCAT(id, token) IN {pairs_list} AND cancel_requested_at IS NULL \
         ORDER BY id LIMIT ?"
    );
    take.push(delete, values);
    let done = take.run(conn).await?;
    let taken = done.last().map_or(0, |deleted| deleted.affected);
    let locked: usize = done.iter().map(|step| step.rows.len()).sum();
    if taken != ids.len() as u64 || locked != keys.len() {
        sqlx::raw_sql("ROLLBACK").execute(conn).await?;
        return Ok(None);
    }
    let mut successors = Vec::new();
    if !ordered.is_empty() {
        let mut close = Script::about(ordered.len(), 0);
        close_steps(&mut close, &ordered);
        let found: Vec<MySqlRow> = close.run(conn).await?.into_iter().flat_map(|step| step.rows).collect();
        match Successor::read_all(&found)? {
            Some(all) if all.len() == ordered.len() => successors = all,
            _ => {
                sqlx::raw_sql("ROLLBACK").execute(conn).await?;
                return Ok(None);
            }
        }
    }

    let mut write = Script::about(sorted.len(), bytes);
    // SYSDATE is read after the locks are taken, so a request that was made while this statement waited comes before
    // the end. GREATEST makes sure that an attempt does not end before it began when the clock was set back.
    let ledger = [
        "INSERT INTO attempts (job_id, number, burned, runner, execute_at, started_at, finished_at, verdict, end_state, \
         result) VALUES",
        "(?,?,?,?,?,?,GREATEST(SYSDATE(6), TIMESTAMP(?)),'succeeded','completed',?)",
        "",
    ];
    write.insert(
        ledger,
        &sorted,
        |success| success.bytes(),
        |success, values| {
            let (item, opened) = (success.item, success.opened);
            values.extend([
                Value::from(item.id.uuid()),
                item.number.into(),
                opened.burned.into(),
                opened.runner.as_str().into(),
                opened.execute_at.into(),
                opened.started_at.into(),
                opened.started_at.into(),
                item.result.as_ref().map(|raw| raw.get()).into(),
            ]);
        },
    );
    let mut counts: BTreeMap<(&Name, &Name), i64> = BTreeMap::new();
    for success in &sorted {
        *counts.entry((&success.opened.queue, &success.opened.kind)).or_default() += 1;
    }
    let counts: Vec<_> = counts.into_iter().map(|((queue, kind), n)| (queue, kind, State::Completed, n)).collect();
    tally(&mut write, lane, &counts);
    if !successors.is_empty() {
        release_steps(&mut write, &successors);
    }
    // In the text form this is the same request. MySQL does not go on to it when a statement before it fails.
    write.push("COMMIT", Vec::new());
    write.run(conn).await?;
    Ok(Some(successors.into_iter().filter_map(Successor::released).collect()))
}

fn pair(item: &Settlement) -> [u8; 32] {
    let mut pair = [0; 32];
    pair[..16].copy_from_slice(item.id.uuid().as_bytes());
    pair[16..].copy_from_slice(item.token.uuid().as_bytes());
    pair
}
