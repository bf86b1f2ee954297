//! Renews leases and writes reports of progress, for the heartbeats of runners and of remote workers.
//!
//! Another session may keep the row of one attempt locked for long: a runner that froze in a transaction, or an
//! operator. A heartbeat that waited for this row would renew no other lease. So the connections of heartbeats wait for
//! a lock for a second only. After such a wait in vain, renewals lock the free rows first and leave the others out,
//! for a while ([`Caution`]). So any number of locked rows costs the heartbeats of a process one wait in a minute. A
//! locked batch of claims that is over costs none.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::rows::owed::lock_free_executing;
use crate::runners::LiveAttempt;
use crate::sql::batches::MAX_ROWS;
use crate::sql::connection::DbFuture;
use crate::sql::error::is_locked_elsewhere;
use crate::sql::script::{Script, Value};
use crate::sql::session::Session;
use tickr_job::{AttemptToken, JobId, Progress};

/// Time for which renewals leave out locked rows, after one has waited for a row in vain.
const CAUTIOUS_FOR: Duration = Duration::from_secs(60);
/// Number of times that a cautious renewal tries rows, and the pause between two tries: a verdict, a cancel or a
/// request with `after` locks a row for some milliseconds.
pub(super) const TRIES: u32 = 3;
pub(super) const PAUSE: Duration = Duration::from_millis(20);

/// The store's answer to a heartbeat.
#[derive(Clone, Debug, Default)]
pub struct HeartbeatAnswer {
    /// Attempts that this runner does not hold any more. Their handlers must stop.
    pub lost: Vec<(JobId, AttemptToken)>,
    /// Attempts for which a cancel was requested.
    pub cancel_requested: Vec<(JobId, AttemptToken)>,
    /// Attempts whose leases were not renewed, because another session locks their rows.
    pub locked: Vec<(JobId, AttemptToken)>,
    /// True if the row of the runner was written, so that other runners see that it lives.
    pub told: bool,
}

/// Whether renewals leave out rows that other sessions lock, without a wait. This takes more requests, so it is done
/// only for a while after a renewal has waited in vain.
#[derive(Debug, Default)]
pub(crate) struct Caution(Mutex<Option<Instant>>);

impl Caution {
    /// Leave out locked rows from now on, for a while.
    pub(crate) fn begin(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Wait for locked rows again, as before.
    pub(crate) fn end(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Return whether locked rows are left out now.
    pub(crate) fn holds(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|since| since.elapsed() < CAUTIOUS_FOR)
    }
}

/// Return the progress as JSON for its column of 255 characters. Only a note with many escaped characters is too long
/// for it; such a note is left out.
pub(super) fn progress_text(progress: &Progress) -> String {
    let text = serde_json::to_string(progress).unwrap_or_default();
    if text.len() <= 255 {
        return text;
    }
    serde_json::to_string(&Progress { percent: progress.percent, note: None }).unwrap_or_default()
}

/// Write the progress of attempts: the job, the token and the text of each. Return the jobs whose rows were not
/// written, because another session locks them or no attempt is executed any more.
pub(super) async fn write_progress(
    conn: &mut Session<'_>,
    said: &[(Uuid, Uuid, String)],
) -> Result<HashSet<Uuid>, sqlx::Error> {
    let mut left = HashSet::new();
    for page in said.chunks(MAX_ROWS) {
        let mut tx = conn.begin().await?;
        let free = lock_free_executing(&mut tx, page.iter().map(|(id, ..)| *id).collect()).await?;
        for (id, token, text) in page {
            if !free.contains(id) {
                left.insert(*id);
                continue;
            }
            sqlx::query("UPDATE owed SET progress = ? WHERE id = ? AND token = ?")
                .bind(text)
                .bind(id)
                .bind(token)
                .execute(&mut *tx)
                .await?;
        }
        tx.commit().await?;
    }
    Ok(left)
}

/// The end of a lease that is renewed now.
const RENEWED: &str = "UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND";

/// Renew one page of leases: update the rows, then read back which attempts this runner still holds. A row that another
/// session locks keeps the others waiting for the lock wait of the connection at most, and is left out then.
pub(super) fn renew<'c>(
    conn: &'c mut Session<'_>,
    page: Arc<Vec<LiveAttempt>>,
    lease: Duration,
    caution: Arc<Caution>,
) -> DbFuture<'c, HeartbeatAnswer> {
    Box::pin(async move {
        if !caution.holds() {
            match renew_or_look(conn, &page, Some(lease)).await {
                Err(error) if is_locked_elsewhere(&error) => caution.begin(),
                done => return done,
            }
        }
        renew_free(conn, &page, lease).await
    })
}

/// Read which attempts of one page this runner still holds, without renewing their leases.
pub(super) fn look<'c>(conn: &'c mut Session<'_>, page: Arc<Vec<LiveAttempt>>) -> DbFuture<'c, HeartbeatAnswer> {
    Box::pin(async move { renew_or_look(conn, &page, None).await })
}

/// Renew one page of leases, without the rows that another session locks.
async fn renew_free(
    conn: &mut Session<'_>,
    page: &[LiveAttempt],
    lease: Duration,
) -> Result<HeartbeatAnswer, sqlx::Error> {
    let mut left = page.to_vec();
    let mut answer = HeartbeatAnswer::default();
    for turn in 0..TRIES {
        if turn > 0 {
            tokio::time::sleep(PAUSE).await;
        }
        let mut tx = conn.begin().await?;
        let free = lock_free_executing(&mut tx, left.iter().map(|attempt| attempt.id.uuid()).collect()).await?;
        let (ours, others): (Vec<LiveAttempt>, Vec<LiveAttempt>) =
            left.into_iter().partition(|attempt| free.contains(&attempt.id.uuid()));
        if !ours.is_empty() {
            let mut script = Script::about(ours.len(), 0);
            renew_steps(&mut script, &ours, lease);
            script.run(&mut tx).await?;
        }
        tx.commit().await?;
        // A row that could not be locked may also be gone.
        answer = renew_or_look(conn, page, None).await?;
        left = others;
        left.retain(|attempt| !answer.lost.contains(&(attempt.id, attempt.token)));
        if left.is_empty() {
            break;
        }
    }
    answer.locked = left.iter().map(|attempt| (attempt.id, attempt.token)).collect();
    Ok(answer)
}

/// Add the steps that renew the leases of these attempts.
fn renew_steps(script: &mut Script<'_>, attempts: &[LiveAttempt], lease: Duration) {
    // Attempts that were claimed in one batch share a token, so this list is short.
    let mut tokens: Vec<Uuid> = attempts.iter().map(|attempt| attempt.token.uuid()).collect();
    tokens.sort_unstable();
    tokens.dedup();
    // The reports of another system may have given an attempt a longer lease. The others keep the lease that the clock
    // of MySQL gives now, also after that clock was set back.
    for (has_finish_key, until) in [(false, RENEWED.to_owned()), (true, format!("GREATEST(lease_until, {RENEWED})"))] {
        let meant = attempts.iter().filter(|attempt| attempt.has_finish_key == has_finish_key);
        let meant: Vec<Uuid> = meant.map(|attempt| attempt.id.uuid()).collect();
        if meant.is_empty() {
            continue;
        }
        let ((of_meant, meant), (of_tokens, tokens)) = (script.list(&meant), script.list(&tokens));
        let mut values = vec![Value::from(i64::try_from(lease.as_micros()).unwrap_or(i64::MAX))];
        values.extend(meant.into_iter().chain(tokens));
        let renew = format!(
            "UPDATE owed FORCE INDEX (PRIMARY) SET lease_until = {until} WHERE id IN {of_meant} \
             AND state = 'executing' AND token IN {of_tokens}",
        );
        script.push(renew, values);
    }
}

/// Update the rows of one page if there is a lease to give, then read back which attempts this runner still holds.
async fn renew_or_look(
    conn: &mut Session<'_>,
    page: &[LiveAttempt],
    lease: Option<Duration>,
) -> Result<HeartbeatAnswer, sqlx::Error> {
    let ids: Vec<Uuid> = page.iter().map(|attempt| attempt.id.uuid()).collect();
    // One request for up to 64 attempts, so that a heartbeat does not take many round trips.
    let mut script = Script::about(ids.len(), 0);
    if let Some(lease) = lease {
        renew_steps(&mut script, page, lease);
    }
    let (list, of_ids) = script.list(&ids);
    let held = format!(
        "SELECT id, token, cancel_requested_at IS NOT NULL AS cancel_requested FROM owed FORCE INDEX (PRIMARY) \
         WHERE id IN {list}"
    );
    script.push(held, of_ids);
    let found: Vec<MySqlRow> = script.run(conn).await?.into_iter().flat_map(|done| done.rows).collect();
    let mut held: BTreeMap<JobId, (Uuid, bool)> = BTreeMap::new();
    for row in &found {
        held.insert(JobId::from_uuid(row.try_get("id")?), (row.try_get("token")?, row.try_get("cancel_requested")?));
    }
    let mut beat = HeartbeatAnswer::default();
    for attempt in page {
        match held.get(&attempt.id) {
            Some((token, cancel)) if *token == attempt.token.uuid() => {
                if *cancel {
                    beat.cancel_requested.push((attempt.id, attempt.token));
                }
            }
            _ => beat.lost.push((attempt.id, attempt.token)),
        }
    }
    Ok(beat)
}
