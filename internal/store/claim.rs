//! Starting attempts: compare and set, by primary key.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use sqlx::mysql::MySqlRow;
use sqlx::{MySqlConnection, Row};
use uuid::Uuid;

use super::claim_batches::OpenClaims;
use super::due::{DueJob, due_job};
use super::error::corrupt;
use super::group_commit::Batch;
use super::line::unreadable;
use super::link::{Earlier, Step};
use super::script::{Script, Value};
use super::settle::SUSPECT_FROM;
use super::shape::{pad, padded, places, statement};
use crate::job::{AttemptToken, JobId, JobOptions, Name, RunnerId, Timestamp};

/// A claim that won: the attempt is committed, the handler may start.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// The job.
    pub id: JobId,
    /// The right to write about this attempt.
    pub token: AttemptToken,
    /// Its kind.
    pub kind: Name,
    /// Its queue.
    pub queue: Name,
    /// Number of this execution, for the ledger.
    pub number: u32,
    /// Which attempt counts now: executions less those that burned nothing.
    pub attempt: u32,
    /// How many may be burned.
    pub max_attempts: u32,
    /// The input.
    pub payload: Box<RawValue>,
    /// The rarer wishes.
    pub options: JobOptions,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// When it was due.
    pub execute_at: Timestamp,
    /// When it was claimed, by the store's clock.
    pub started_at: Timestamp,
    runner: Arc<RunnerId>,
    keyed: bool,
}

/// What a claim found and nobody changes while its attempt is open. With it a success is settled without reading the row
/// again.
#[derive(Clone, Debug)]
pub struct Opened {
    pub(super) kind: Name,
    pub(super) queue: Name,
    pub(super) runner: Arc<RunnerId>,
    pub(super) burned: u32,
    pub(super) execute_at: Timestamp,
    pub(super) started_at: Timestamp,
    /// Does the job hold a unique key?
    pub(super) keyed: bool,
}

impl Claimed {
    /// For the settlement of this attempt.
    #[must_use]
    pub fn opened(&self) -> Opened {
        Opened {
            kind: self.kind.clone(),
            queue: self.queue.clone(),
            runner: Arc::clone(&self.runner),
            burned: self.attempt,
            execute_at: self.execute_at,
            started_at: self.started_at,
            keyed: self.keyed,
        }
    }
}

/// An attempt that was claimed and cannot be run. An answer of its own, because an error would leave its neighbours in
/// the batch claimed and unrun.
#[derive(Clone, Debug)]
pub struct Unreadable {
    /// The job.
    pub id: JobId,
    /// The right to write about this attempt.
    pub token: AttemptToken,
    /// Number of this execution.
    pub number: u32,
    /// Its kind, unless that cannot be read.
    pub kind: Option<Name>,
    /// Its queue, unless that cannot be read.
    pub queue: Option<Name>,
    /// What cannot be read.
    pub error: String,
}

/// What became of one claim.
#[derive(Clone, Debug)]
pub enum Claim {
    /// Ours.
    Won(Box<Claimed>),
    /// Not due yet by the store's clock: the index popped it too early and should have it back.
    NotDue(DueJob),
    /// A kind that this runner does not have. It waits for one that does.
    OtherKind(DueJob),
    /// Its last runners died under it. It is due, and claimed only by a process that runs nothing else, or by a runner that
    /// has no such process to give it.
    Suspect(DueJob),
    /// Ours, but what it asks cannot be read: no handler can run it.
    Unreadable(Box<Unreadable>),
    /// Executing already, or ended: the index delivered it twice. Drop it.
    Gone,
}

/// The group commit of claims by one runner.
pub(super) struct Claims {
    pub(super) runner: Arc<RunnerId>,
    pub(super) kinds: Vec<Name>,
    pub(super) lease: Duration,
    /// Are jobs whose last runners died under them taken as well?
    pub(super) suspects: bool,
    /// What this process has claimed and not yet settled.
    pub(super) open: Arc<OpenClaims>,
}

impl Batch for Claims {
    type Item = JobId;
    type Reply = Claim;
    /// One token for the batch: with the job's id it names one attempt, and one statement can write it.
    type Mark = AttemptToken;
    const ATTEMPTED: &'static str = "claim jobs";
    const FULL: usize = 256;

    fn row(id: &JobId) -> Option<JobId> {
        Some(*id)
    }

    /// The session that holds the row decides about the job; what still waits then is brought back by the reconciler.
    fn left_out() -> Option<Claim> {
        Some(Claim::Gone)
    }

    fn mark(&self) -> AttemptToken {
        AttemptToken::new()
    }

    fn write<'c>(
        &'c self,
        conn: &'c mut MySqlConnection,
        items: &'c [JobId],
        token: AttemptToken,
        earlier: Earlier,
    ) -> Step<'c, Vec<Claim>> {
        Box::pin(async move {
            if earlier == Earlier::MayHaveCommitted {
                self.open.uncertain(token);
            }
            let mut ids: Vec<Uuid> = items.iter().map(|id| id.uuid()).collect();
            ids.sort_unstable();
            ids.dedup();
            // After a lost answer this takes nothing twice, and the token still finds what the lost run took.
            let batch = Uuid::now_v7();
            let mut claims = self.take(conn, &ids, token, batch).await?;
            let lost: Vec<Uuid> = ids.into_iter().filter(|id| !claims.contains_key(&JobId::from_uuid(*id))).collect();
            if !lost.is_empty() {
                claims.extend(self.why_lost(conn, &lost).await?);
            }
            // Whatever was found under the token, each attempt is handed out once: a batch may hold an id twice, and its
            // items may be claimed one by one under the same token.
            let won = |claim: &Claim| matches!(claim, Claim::Won(_) | Claim::Unreadable(_));
            let found: Vec<JobId> = claims.iter().filter(|(_, claim)| won(claim)).map(|(id, _)| *id).collect();
            if !found.is_empty() {
                let fresh = self.open.won(batch, token, &found);
                claims.retain(|id, claim| !won(claim) || fresh.contains(id));
            }
            // Taken out: of two callers with the same id in one batch, only the first may run it.
            Ok(items.iter().map(|id| claims.remove(id).unwrap_or(Claim::Gone)).collect())
        })
    }

    fn gave_up(&self, items: &[JobId], token: AttemptToken, locked: bool) {
        // Of a row that another session holds nothing was claimed; unless it is an earlier run of this claim that holds it,
        // whose COMMIT is still under way.
        if !locked || self.open.is_uncertain(token) {
            self.open.gave_up(token, items);
        }
    }
}

impl Claims {
    /// The write, with the row that lets the reaper find it, and what the token won, with everything a handler needs.
    ///
    /// A transaction, and the COMMIT is only sent when the write has been answered. So a write that its caller has given up
    /// waiting for, and that the server carries out later, is rolled back with its dead connection; and while a COMMIT is
    /// under way, the rows are locked.
    ///
    /// The write may wait for a row that another settles at this moment, and UTC_TIMESTAMP is when it began to wait. The
    /// start is SYSDATE, which is when the row was had: no attempt begins before the last one ended.
    async fn take(
        &self,
        conn: &mut MySqlConnection,
        ids: &[Uuid],
        token: AttemptToken,
        batch: Uuid,
    ) -> Result<HashMap<JobId, Claim>, sqlx::Error> {
        // One request as well, when it is about few jobs: another way there and back costs more than reading the text.
        let mut script = Script::about(ids.len(), 0);
        let (list, places_of_ids) = script.list(ids);
        let lease = i64::try_from(self.lease.as_micros()).unwrap_or(i64::MAX);
        let mut values = vec![Value::from(token.uuid()), self.runner.as_str().into(), lease.into()];
        values.extend(&places_of_ids);
        values.extend(self.kinds.iter().map(|kind| Value::from(kind.as_str())));
        if self.kinds.is_empty() {
            values.push("".into());
        }
        let update = format!(
            "UPDATE owed FORCE INDEX (PRIMARY) SET state = 'executing', attempt = attempt + 1, token = ?, runner = ?, \
             started_at = SYSDATE(6), lease_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, progress = NULL \
             WHERE id IN {list} AND state IN ('waiting', 'retrying') AND execute_at <= UTC_TIMESTAMP(6) AND kind IN {}{}",
            places(self.kinds.len().max(1)),
            if self.suspects { String::new() } else { format!(" AND losses < {SUSPECT_FROM}") },
        );
        script.say("BEGIN", Vec::new());
        script.say(update, values);
        let taken: u64 = script.run(conn).await?.iter().map(|done| done.affected).sum();

        // The rest in one request when there is little of it.
        let mut script = Script::about(ids.len(), 0);
        let bytes: Vec<u8> = ids.iter().flat_map(|id| *id.as_bytes()).collect();
        if taken > 0 {
            // Also those that were not won: which were is not known before the next statement, and this one need not wait.
            let values = vec![
                Value::from(self.runner.as_str()),
                batch.into(),
                token.uuid().into(),
                Value::from(bytes.as_slice()),
            ];
            script.say("INSERT INTO claim_batches (runner, id, token, ids) VALUES (?, ?, ?, ?)", values);
        }
        let (list, mut values) = script.list(ids);
        values.push(token.uuid().into());
        let select = format!(
            "SELECT o.id, o.kind, o.queue, o.attempt, o.spared, o.max_attempts, o.execute_at, o.started_at, \
             j.payload, j.options, o.keyed, j.created_at FROM owed o FORCE INDEX (PRIMARY) STRAIGHT_JOIN jobs j ON j.id = o.id \
             WHERE o.id IN {list} AND o.token = ?",
        );
        script.say(select, values);
        script.say("COMMIT", Vec::new());
        let done = script.run(conn).await?;
        let found = done.iter().flat_map(|done| &done.rows);
        found
            .map(|row| {
                let (id, number) = (JobId::from_uuid(row.try_get(0)?), row.try_get(3)?);
                let claim = match self.claimed(row, token) {
                    Ok(claimed) => Claim::Won(Box::new(claimed)),
                    Err(e) => {
                        let name =
                            |column: usize| row.try_get::<&str, _>(column).ok().and_then(|name| name.parse().ok());
                        let (kind, queue) = (name(1), name(2));
                        Claim::Unreadable(Box::new(Unreadable { id, token, number, kind, queue, error: e.to_string() }))
                    }
                };
                Ok((id, claim))
            })
            .collect()
    }

    /// Why the rest was not won. Not part of the claim: a hint for the index, read a moment later.
    async fn why_lost(&self, conn: &mut MySqlConnection, ids: &[Uuid]) -> Result<Vec<(JobId, Claim)>, sqlx::Error> {
        let sql = format!(
            "SELECT id, queue, priority, execute_at, kind, losses >= {SUSPECT_FROM} AND execute_at <= UTC_TIMESTAMP(6) \
             FROM owed FORCE INDEX (PRIMARY) WHERE id IN {} AND state IN ('waiting', 'retrying')",
            places(padded(ids.len())),
        );
        let mut query = statement(sql);
        for id in pad(ids) {
            query = query.bind(id);
        }
        let found = query.fetch_all(conn).await?;
        // A row that cannot be read must not cost its neighbours the answer.
        let readable = found
            .iter()
            .filter_map(|row| due_job(row).map(|job| (row, job)).map_err(|error| unreadable(&error.to_string())).ok());
        readable
            .map(|(row, job)| {
                let id = job.id;
                let due_suspect: bool = row.try_get(5)?;
                let claim = if !self.kinds.contains(&job.kind) {
                    Claim::OtherKind(job)
                } else if due_suspect && !self.suspects {
                    Claim::Suspect(job)
                } else {
                    Claim::NotDue(job)
                };
                Ok((id, claim))
            })
            .collect()
    }
}

impl Claims {
    fn claimed(&self, row: &MySqlRow, token: AttemptToken) -> Result<Claimed, sqlx::Error> {
        let number: u32 = row.try_get(3)?;
        let spared: u32 = row.try_get(4)?;
        let options: Option<&str> = row.try_get(9)?;
        let kind: &str = row.try_get(1)?;
        let kind = match self.kinds.iter().find(|known| known.as_str() == kind) {
            Some(known) => known.clone(),
            None => kind.parse().map_err(|_| corrupt("kind"))?,
        };
        Ok(Claimed {
            id: JobId::from_uuid(row.try_get(0)?),
            token,
            kind,
            queue: row.try_get::<&str, _>(2)?.parse().map_err(|_| corrupt("queue"))?,
            number,
            attempt: number - spared,
            max_attempts: row.try_get(5)?,
            payload: RawValue::from_string(row.try_get(8)?).map_err(|e| corrupt(format!("payload: {e}")))?,
            options: match options {
                Some(text) => serde_json::from_str(text).map_err(|e| corrupt(format!("options: {e}")))?,
                None => JobOptions::default(),
            },
            created_at: row.try_get(11)?,
            execute_at: row.try_get(6)?,
            started_at: row.try_get(7)?,
            runner: Arc::clone(&self.runner),
            keyed: row.try_get(10)?,
        })
    }
}
