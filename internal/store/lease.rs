//! Leases: renewed by their holder, taken away by the reaper.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use sqlx::{Connection, MySqlConnection, Row};
use uuid::Uuid;

use super::error::corrupt;
use super::insert::read_clock;
use super::link::{Earlier, Step, on_pool, transact};
use super::runners::slot_jobs;
use super::settle::{Again, Owed, Settled, Settlement, decide, lock_held, write_moves};
use super::shape::{MOST_ROWS, pad, padded, places, statement};
use super::{Link, Store, StoreError};
use crate::job::{AttemptToken, Editions, JobId, JobOptions, Name, Progress, RetryPolicy, RunnerId, State, Verdict};

/// One live attempt of this runner, as the heartbeat tells it to the store.
#[derive(Clone, Debug)]
pub struct LiveAttempt {
    /// The job.
    pub id: JobId,
    /// The right to renew.
    pub token: AttemptToken,
    /// Its newest progress, if it said anything since the last beat.
    pub progress: Option<Progress>,
}

/// What the store answers to a beat.
#[derive(Clone, Debug, Default)]
pub struct Beat {
    /// Attempts that this runner does not hold any more: their handlers must stop.
    pub lost: Vec<JobId>,
    /// Attempts that somebody asked to cancel.
    pub cancel_requested: Vec<JobId>,
}

/// What the runner tells about itself with each beat.
#[derive(Clone, Debug)]
pub struct RunnerRow {
    /// Its identity.
    pub id: RunnerId,
    /// Version of the binary.
    pub version: &'static str,
    /// Kinds it can run.
    pub kinds: Vec<Name>,
    /// Which versions of their types it has.
    pub editions: Editions,
    /// Queues it serves.
    pub queues: Vec<Name>,
    /// Its worker slots.
    pub slots: u32,
    /// Its lease.
    pub lease: Duration,
    /// The host it runs on.
    pub host: String,
    /// Its process there.
    pub pid: u32,
    /// The runner whose suspect it runs, if it is such a process.
    pub parent: Option<RunnerId>,
}

/// The heartbeat's own line to MySQL: one connection that nothing else uses.
pub struct Pulse {
    link: Link,
    clock: Arc<super::clock::StoreClock>,
    /// The jobs in the runner's slots as they were last written down.
    told: Option<Vec<u8>>,
}

impl std::fmt::Debug for Pulse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pulse")
    }
}

/// An attempt that the reaper ended.
#[derive(Clone, Debug)]
pub struct Reaped {
    /// The job.
    pub id: JobId,
    /// Its kind.
    pub kind: Name,
    /// Its queue.
    pub queue: Name,
    /// Its state now.
    pub state: State,
    /// What became of the settlement.
    pub settled: Settled,
}

impl Store {
    /// A line for one heartbeat.
    #[must_use]
    pub fn pulse(&self) -> Pulse {
        Pulse { link: Link::new(self.shared.options.clone()), clock: self.shared.clock.clone(), told: None }
    }

    /// Attempts whose lease has expired, at most `limit`. Searches all owed rows.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn expired_attempts(&self, limit: u32) -> Result<Vec<(JobId, AttemptToken)>, StoreError> {
        on_pool(&self.shared.pools.loops, "read expired leases", move |conn, _| {
            Box::pin(async move {
                let found = sqlx::query(
                    "SELECT id, token FROM owed WHERE state = 'executing' AND lease_until < UTC_TIMESTAMP(6) LIMIT ?",
                )
                .bind(limit)
                .fetch_all(conn)
                .await?;
                let pair = |row: &sqlx::mysql::MySqlRow| {
                    Ok((JobId::from_uuid(row.try_get(0)?), AttemptToken::from_uuid(row.try_get(1)?)))
                };
                found.iter().map(pair).collect()
            })
        })
        .await
    }

    /// Have other runners fallen silent, or never said goodbye? Cheap; decides whether the owed rows are searched.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn silent_runners(&self) -> Result<Vec<RunnerId>, StoreError> {
        on_pool(&self.shared.pools.loops, "read silent runners", move |conn, _| {
            Box::pin(async move {
                let found: Vec<String> = sqlx::query_scalar(
                    "SELECT id FROM runners WHERE stopped_at IS NULL \
                     AND heartbeat_at < UTC_TIMESTAMP(6) - INTERVAL lease_ms * 1000 MICROSECOND",
                )
                .fetch_all(conn)
                .await?;
                Ok(found.into_iter().map(RunnerId::from_stored).collect())
            })
        })
        .await
    }

    /// The kinds that living runners can run.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn living_kinds(&self) -> Result<HashSet<Name>, StoreError> {
        on_pool(&self.shared.pools.loops, "read the kinds of living runners", move |conn, _| {
            Box::pin(async move {
                let found: Vec<String> = sqlx::query_scalar(
                    "SELECT DISTINCT kinds FROM runners WHERE stopped_at IS NULL \
                     AND heartbeat_at >= UTC_TIMESTAMP(6) - INTERVAL lease_ms * 1000 MICROSECOND",
                )
                .fetch_all(conn)
                .await?;
                let mut kinds = HashSet::new();
                for text in found {
                    let names: Vec<Name> = serde_json::from_str(&text).map_err(|e| corrupt(e.to_string()))?;
                    kinds.extend(names);
                }
                Ok(kinds)
            })
        })
        .await
    }

    /// Mark a runner that has been silent for two leases as gone, so that nobody looks for its attempts any more. One
    /// lease would be too early: what it claimed after its last beat is leased for longer than its silence.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn bury_runner(&self, runner: RunnerId) -> Result<(), StoreError> {
        on_pool(&self.shared.pools.loops, "mark a silent runner as gone", move |conn, _| {
            let runner = runner.clone();
            Box::pin(async move {
                sqlx::query(
                    "UPDATE runners SET stopped_at = UTC_TIMESTAMP(6) WHERE id = ? AND stopped_at IS NULL \
                     AND heartbeat_at < UTC_TIMESTAMP(6) - INTERVAL lease_ms * 2000 MICROSECOND",
                )
                .bind(runner.as_str())
                .execute(conn)
                .await?;
                Ok(())
            })
        })
        .await
    }

    /// End attempts whose lease has expired as `lost`, as far as token and lease still say so when the row is locked.
    /// A job that lost its first attempt keeps its place in the due order and runs again at once. Those that lost more run
    /// again after their own backoff, or that of their kind in `policies`, or the usual one.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn reap(
        &self,
        expired: Vec<(JobId, AttemptToken)>,
        policies: Arc<HashMap<Name, RetryPolicy>>,
    ) -> Result<Vec<Reaped>, StoreError> {
        let shared = self.shared.clone();
        transact(&self.shared.pools.loops, "end lost attempts", move |conn, _| {
            let (shared, expired, policies) = (shared.clone(), expired.clone(), Arc::clone(&policies));
            Box::pin(async move {
                let own = own_policies(conn, &expired).await?;
                let now = read_clock(conn, &shared.clock).await?;
                let held = lock_held(conn, expired.iter().map(|(id, _)| *id)).await?;
                let policy =
                    |id: &JobId| own.get(id).or_else(|| policies.get(&held[id].kind)).copied().unwrap_or_default();
                let lost: Vec<Settlement> = expired
                    .iter()
                    .filter(|(id, token)| {
                        held.get(id).is_some_and(|owed| owed.token == *token && owed.lease_until < now)
                    })
                    .map(|(id, token)| Settlement {
                        id: *id,
                        token: *token,
                        number: held[id].attempt,
                        opened: None,
                        verdict: Verdict::Lost,
                        error: Some("the runner died or lost its lease".into()),
                        exchange: None,
                        result: None,
                        follow_ups: Vec::new(),
                        again: after_loss(&held[id], policy(id)),
                    })
                    .collect();
                let mut moves = Vec::with_capacity(lost.len());
                for item in &lost {
                    moves.push(decide(0, item, &held[&item.id], now)?);
                }
                moves.sort_unstable_by_key(|step| step.item.id);
                write_moves(conn, &moves, now, &shared.clock, shared.lanes.any()).await?;
                let done = |step: &super::settle::Move<'_>| Reaped {
                    id: step.item.id,
                    kind: step.owed.kind.clone(),
                    queue: step.owed.queue.clone(),
                    state: step.state,
                    settled: Settled::Done {
                        state: step.state,
                        execute_at: step.execute_at,
                        line: step.line(),
                        follow_ups: Vec::new(),
                    },
                };
                Ok(moves.iter().map(done).collect())
            })
        })
        .await
    }
}

/// When a job runs again whose runner died under it. The first loss is no evidence against the job: it does not wait. What
/// lost several together comes back at different times, because each draws its own.
pub(super) fn after_loss(owed: &Owed, policy: RetryPolicy) -> Again {
    if owed.losses == 0 { Again::Now } else { Again::Backoff(policy, rand::random()) }
}

/// The backoff of those jobs that have their own. Options that cannot be read are no reason to leave a job lost.
pub(super) async fn own_policies(
    conn: &mut MySqlConnection,
    expired: &[(JobId, AttemptToken)],
) -> Result<HashMap<JobId, RetryPolicy>, sqlx::Error> {
    let ids: Vec<Uuid> = expired.iter().map(|(id, _)| id.uuid()).collect();
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let sql = format!(
        "SELECT id, options FROM jobs FORCE INDEX (PRIMARY) WHERE id IN {} AND options IS NOT NULL",
        places(padded(ids.len()))
    );
    let mut query = statement(sql);
    for id in pad(&ids) {
        query = query.bind(id);
    }
    let mut own = HashMap::new();
    for row in query.fetch_all(conn).await? {
        let options = serde_json::from_str::<JobOptions>(row.try_get(1)?).unwrap_or_default();
        if let Some(policy) = options.retry {
            own.insert(JobId::from_uuid(row.try_get(0)?), policy);
        }
    }
    Ok(own)
}

impl Pulse {
    /// Enter this runner in the list. Its lease runs from here.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn register(&mut self, runner: &RunnerRow) -> Result<(), StoreError> {
        let names = |names: &[Name]| serde_json::to_string(names).unwrap_or_default();
        let (kinds, queues) = (names(&runner.kinds), names(&runner.queues));
        let editions = serde_json::to_string(&runner.editions).ok();
        let runner = runner.clone();
        self.link
            .run("register the runner", |conn, _| {
                let (runner, kinds, queues, editions) = (runner.clone(), kinds.clone(), queues.clone(), editions.clone());
                Box::pin(async move {
                    sqlx::query(
                        "INSERT INTO runners (id, version, kinds, kind_schemas, queues, slots, lease_ms, host, pid, parent, started_at, heartbeat_at) \
                         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6)) \
                         ON DUPLICATE KEY UPDATE heartbeat_at = UTC_TIMESTAMP(6), stopped_at = NULL",
                    )
                    .bind(runner.id.as_str())
                    .bind(runner.version)
                    .bind(kinds)
                    .bind(editions)
                    .bind(queues)
                    .bind(runner.slots)
                    .bind(u32::try_from(runner.lease.as_millis()).unwrap_or(u32::MAX))
                    .bind(runner.host.as_str())
                    .bind(runner.pid)
                    .bind(runner.parent.as_ref().map(RunnerId::as_str))
                    .execute(conn)
                    .await?;
                    Ok(())
                })
            })
            .await
    }

    /// Renew the leases of all live attempts, and learn which are lost or asked to stop. Of those the first
    /// [`MOST_SLOT_JOBS`](super::MOST_SLOT_JOBS) are written down for people, when they are others than before.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn beat(&mut self, runner: &RunnerId, lease: Duration, live: &[LiveAttempt]) -> Result<Beat, StoreError> {
        let clock = self.clock.clone();
        let (runner, busy) = (runner.clone(), u32::try_from(live.len()).unwrap_or(u32::MAX));
        let in_slots = slot_jobs(live);
        // NULL leaves the column alone, and the statement is the same either way.
        let news = (self.told.as_ref() != Some(&in_slots)).then(|| Arc::new(in_slots));
        self.link
            .run("beat", |conn, _| {
                let (clock, runner, news) = (clock.clone(), runner.clone(), news.clone());
                Box::pin(async move {
                    read_clock(conn, &clock).await?;
                    // By the best of the recent readings: this one may have been held up.
                    let skew = (chrono::Utc::now() - clock.now()).num_milliseconds();
                    sqlx::query(
                        "UPDATE runners SET heartbeat_at = UTC_TIMESTAMP(6), busy = ?, clock_skew_ms = ?, \
                         slot_jobs = COALESCE(?, slot_jobs), stopped_at = NULL WHERE id = ?",
                    )
                    .bind(busy)
                    .bind(skew)
                    .bind(news.as_ref().map(|ids| ids.as_slice()))
                    .bind(runner.as_str())
                    .execute(conn)
                    .await?;
                    Ok(())
                })
            })
            .await?;
        if let Some(news) = news {
            self.told = Some(Arc::unwrap_or_clone(news));
        }
        let mut beat = Beat::default();
        let mut sorted: Vec<LiveAttempt> = live.to_vec();
        sorted.sort_unstable_by_key(|attempt| attempt.id);
        for page in sorted.chunks(MOST_ROWS) {
            let page = Arc::new(page.to_vec());
            let answer =
                self.link.run("renew leases", |conn, earlier| renew(conn, earlier, page.clone(), Some(lease))).await?;
            beat.lost.extend(answer.lost);
            beat.cancel_requested.extend(answer.cancel_requested);
        }
        Ok(beat)
    }

    /// Between beats: learn of cancels, without renewing anything.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn look(&mut self, live: &[LiveAttempt]) -> Result<Beat, StoreError> {
        let mut beat = Beat::default();
        for page in live.chunks(MOST_ROWS) {
            let page = Arc::new(page.to_vec());
            let answer =
                self.link.run("look for cancels", |conn, earlier| renew(conn, earlier, page.clone(), None)).await?;
            beat.lost.extend(answer.lost);
            beat.cancel_requested.extend(answer.cancel_requested);
        }
        Ok(beat)
    }

    /// Write what live attempts said of their progress, in one transaction. Not part of a beat: a lease must not depend
    /// on it.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn write_progress(&mut self, live: &[LiveAttempt]) -> Result<(), StoreError> {
        let said: Vec<(Uuid, Uuid, String)> = live
            .iter()
            .filter_map(|attempt| Some((attempt, attempt.progress.as_ref()?)))
            .map(|(attempt, progress)| (attempt.id.uuid(), attempt.token.uuid(), progress_text(progress)))
            .collect();
        if said.is_empty() {
            return Ok(());
        }
        let said = Arc::new(said);
        self.link
            .run("write progress", |conn, _| {
                let said = said.clone();
                Box::pin(async move {
                    let mut tx = conn.begin().await?;
                    for (id, token, text) in said.iter() {
                        sqlx::query("UPDATE owed SET progress = ? WHERE id = ? AND token = ?")
                            .bind(text)
                            .bind(id)
                            .bind(token)
                            .execute(&mut *tx)
                            .await?;
                    }
                    tx.commit().await
                })
            })
            .await
    }

    /// Give up the connection: what was under way on it was not waited for.
    pub fn disconnect(&mut self) {
        self.link.disconnect();
    }

    /// Strike this runner from the list of the living: its attempts are settled.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn goodbye(&mut self, runner: &RunnerId) -> Result<(), StoreError> {
        let runner = runner.clone();
        self.link
            .run("strike the runner off", |conn, _| {
                let runner = runner.clone();
                Box::pin(async move {
                    sqlx::query(
                        "UPDATE runners SET stopped_at = UTC_TIMESTAMP(6), busy = 0, slot_jobs = NULL WHERE id = ?",
                    )
                    .bind(runner.as_str())
                    .execute(conn)
                    .await?;
                    Ok(())
                })
            })
            .await
    }
}

/// Progress as it is kept. Its column holds 255 characters, which only a note full of quotes exceeds: that one goes.
fn progress_text(progress: &Progress) -> String {
    let text = serde_json::to_string(progress).unwrap_or_default();
    if text.len() <= 255 {
        return text;
    }
    serde_json::to_string(&Progress { percent: progress.percent, note: None }).unwrap_or_default()
}

/// One page of renewals: write, then read back what is still ours.
fn renew(
    conn: &mut MySqlConnection,
    _earlier: Earlier,
    page: Arc<Vec<LiveAttempt>>,
    lease: Option<Duration>,
) -> Step<'_, Beat> {
    Box::pin(async move {
        let ids: Vec<Uuid> = page.iter().map(|attempt| attempt.id.uuid()).collect();
        // Attempts share tokens by the batch that claimed them, so this list is short.
        let mut tokens: Vec<Uuid> = page.iter().map(|attempt| attempt.token.uuid()).collect();
        tokens.sort_unstable();
        tokens.dedup();
        if let Some(lease) = lease {
            let sql = format!(
                "UPDATE owed FORCE INDEX (PRIMARY) SET lease_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND WHERE id IN {} \
                 AND state = 'executing' AND token IN {}",
                places(padded(ids.len())),
                places(padded(tokens.len())),
            );
            let mut query = statement(sql).bind(i64::try_from(lease.as_micros()).unwrap_or(i64::MAX));
            for value in pad(&ids).chain(pad(&tokens)) {
                query = query.bind(value);
            }
            query.execute(&mut *conn).await?;
        }
        let sql = format!(
            "SELECT id, token, cancel_requested_at IS NOT NULL FROM owed FORCE INDEX (PRIMARY) WHERE id IN {}",
            places(padded(ids.len()))
        );
        let mut query = statement(sql);
        for id in pad(&ids) {
            query = query.bind(id);
        }
        let found = query.fetch_all(&mut *conn).await?;
        let mut held: std::collections::BTreeMap<JobId, (Uuid, bool)> = std::collections::BTreeMap::new();
        for row in &found {
            held.insert(JobId::from_uuid(row.try_get(0)?), (row.try_get(1)?, row.try_get(2)?));
        }
        let mut beat = Beat::default();
        for attempt in page.iter() {
            match held.get(&attempt.id) {
                Some((token, cancel)) if *token == attempt.token.uuid() => {
                    if *cancel {
                        beat.cancel_requested.push(attempt.id);
                    }
                }
                _ => beat.lost.push(attempt.id),
            }
        }
        Ok(beat)
    })
}
