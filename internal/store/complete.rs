//! Ending attempts that succeeded, without reading their rows first.
//!
//! Most attempts succeed, and what the ledger says of them is known since the claim. So the rows are deleted as far as
//! token and all say that they are still held, and the count of the deleted tells whether that was so for each of them.
//! If not, nothing of it is kept, and the batch goes the long way (`settle.rs`), which finds out what became of whom.

use std::collections::BTreeMap;

use sqlx::MySqlConnection;
use uuid::Uuid;

use super::claim::Opened;
use super::insert::commit;
use super::script::{Script, Value};
use super::settle::{Settlement, tally};
use crate::job::{Name, State, Verdict};

/// A success that asks for nothing else.
pub(super) struct Success<'a> {
    item: &'a Settlement,
    opened: &'a Opened,
}

impl<'a> Success<'a> {
    /// Can this attempt be ended without looking?
    pub(super) fn of(item: &'a Settlement) -> Option<Self> {
        let opened = item.opened.as_ref()?;
        let plain = item.verdict == Verdict::Succeeded && item.follow_ups.is_empty() && !opened.keyed;
        plain.then_some(Self { item, opened })
    }

    fn bytes(&self) -> usize {
        200 + self.item.result.as_ref().map_or(0, |raw| raw.get().len())
    }
}

/// End all of them, or none: false when the token of one does not hold its job any more, or somebody asked it to stop.
pub(super) async fn complete(
    conn: &mut MySqlConnection,
    successes: &[Success<'_>],
    lane: u8,
) -> Result<bool, sqlx::Error> {
    let mut sorted: Vec<&Success<'_>> = successes.iter().collect();
    sorted.sort_unstable_by_key(|success| success.item.id);
    let bytes = sorted.iter().map(|success| success.bytes()).sum();

    let ids: Vec<Uuid> = sorted.iter().map(|success| success.item.id.uuid()).collect();
    // The fence is the pair. A token alone is that of a batch of claims, in which a job may be that has moved on. Behind it
    // stands the ledger's key: an attempt that was lost has its line there, and a second one is refused.
    let pairs: Vec<[u8; 32]> = sorted.iter().map(|success| pair(success.item)).collect();
    let pairs: Vec<&[u8]> = pairs.iter().map(<[u8; 32]>::as_slice).collect();
    let mut take = Script::about(sorted.len(), bytes);
    let ((ids_list, mut values), (pairs_list, pairs)) = (take.list(&ids), take.list(&pairs));
    values.extend(pairs);
    values.push(i64::try_from(ids.len()).unwrap_or(i64::MAX).into());
    take.say("BEGIN", Vec::new());
    // A single-table DELETE takes no index hint; the order and the limit have the same effect.
    let delete = format!(
        "DELETE FROM owed WHERE id IN {ids_list} AND CONCAT(id, token) IN {pairs_list} AND cancel_requested_at IS NULL \
         ORDER BY id LIMIT ?"
    );
    take.say(delete, values);
    let taken: u64 = take.run(conn).await?.iter().map(|done| done.affected).sum();
    if taken != ids.len() as u64 {
        sqlx::raw_sql("ROLLBACK").execute(conn).await?;
        return Ok(false);
    }

    let mut write = Script::about(sorted.len(), bytes);
    // The clock is read now, after the locks: what a caller asked for while this waited came before the end. One that was set
    // back must not let an attempt end before it began.
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
    write.run(conn).await?;
    commit(conn).await?;
    Ok(true)
}

fn pair(item: &Settlement) -> [u8; 32] {
    let mut pair = [0; 32];
    pair[..16].copy_from_slice(item.id.uuid().as_bytes());
    pair[16..].copy_from_slice(item.token.uuid().as_bytes());
    pair
}
