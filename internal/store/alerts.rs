//! Alerts about dead letters. Each rule has one row in `alerts`. The decision to send an alert is made under the lock
//! of that row, and the message is a job that is accepted in the same commit.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use sqlx::Row;
use uuid::Uuid;

use crate::dead_letters::discard_all;
use crate::rows::alerts::{as_column, in_column, open_dead_letters_of};
use crate::rows::jobs::{Accepted, insert_owed};
use crate::rows::links::NewLinks;
use crate::sql::clock::read_clock;
use crate::sql::connection::{PriorRun, on_pool, transact};
use crate::sql::error::{Fault, again, fault};
use crate::sql::session::Session;
use crate::{Store, StoreError, StoreInner};
use tickr_job::{Actor, AlertChange, AlertRule, LastAlert, Measured, NewJob, Timestamp};

/// Builds the job that delivers the message of an alert.
pub type Message = Arc<dyn Fn(AlertChange) -> NewJob + Send + Sync>;

impl Store {
    /// Send the alert that `rule` calls for, if no runner has sent it yet. Every runner measures the same thing, and
    /// only one of them sends the alert: its message is accepted as a job in the transaction that records the alert.
    /// Returns nothing when there is nothing to send.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn send_alert(
        &self,
        rule: AlertRule,
        measured: Measured,
        cooldown: Duration,
        message: Message,
    ) -> Result<Option<(AlertChange, Accepted)>, StoreError> {
        // Nearly always there is nothing to send. A plain read finds that out without a lock.
        let (seen, name) = (rule.clone(), rule.name());
        let quiet = on_pool(&self.shared.pools.loops, "read an alert", move |conn, _| {
            let (rule, name) = (seen.clone(), name.clone());
            Box::pin(async move {
                let known = read(conn, &name, "").await?.unwrap_or_default();
                Ok(rule.judge(measured, known.last, cooldown).is_none())
            })
        });
        if quiet.await? {
            return Ok(None);
        }
        let shared = self.shared.clone();
        transact(&self.shared.pools.loops, "send an alert", move |conn, _| {
            let (shared, rule, message) = (shared.clone(), rule.clone(), Arc::clone(&message));
            Box::pin(async move { send_alert(conn, &shared, &rule, measured, cooldown, &message).await })
        })
        .await
    }
}

/// The row of a rule.
#[derive(Default)]
struct Known {
    last: LastAlert,
    /// The jobs that deliver its messages, the newest first.
    deliveries: Vec<Uuid>,
    /// Those of them that have an open dead letter.
    failed: BTreeSet<Uuid>,
}

async fn read(conn: &mut Session<'_>, name: &str, lock: &str) -> Result<Option<Known>, sqlx::Error> {
    let sql = format!(
        "SELECT firing, TIMESTAMPDIFF(MICROSECOND, fired_at, UTC_TIMESTAMP(6)) AS fired_ago_us, \
         TIMESTAMPDIFF(MICROSECOND, IF(firing, fired_at, resolved_at), UTC_TIMESTAMP(6)) AS told_ago_us, deliveries \
         FROM alerts WHERE name = ? {lock}"
    );
    let Some(row) = crate::sql::batches::statement(sql).bind(name).fetch_optional(&mut *conn).await? else {
        return Ok(None);
    };
    let ago = |column: &str| {
        let micros: Option<i64> = row.try_get(column)?;
        Ok::<_, sqlx::Error>(micros.map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or(0))))
    };
    let deliveries = in_column(row.try_get("deliveries")?);
    let failed = open_dead_letters_of(conn, &deliveries).await?;
    let undelivered = deliveries.first().is_some_and(|newest| failed.contains(newest));
    let last = LastAlert {
        firing: row.try_get("firing")?,
        fired_ago: ago("fired_ago_us")?,
        undelivered_for: if undelivered { ago("told_ago_us")? } else { None },
    };
    Ok(Some(Known { last, deliveries, failed }))
}

async fn send_alert(
    conn: &mut Session<'_>,
    shared: &StoreInner,
    rule: &AlertRule,
    measured: Measured,
    cooldown: Duration,
    message: &Message,
) -> Result<Option<(AlertChange, Accepted)>, sqlx::Error> {
    let name = rule.name();
    let known = match read(conn, &name, "FOR UPDATE").await? {
        Some(known) => known,
        None => {
            // This rule has no row yet. Another runner may insert the same row at this moment.
            let sql = "INSERT INTO alerts (name, firing) VALUES (?, FALSE)";
            sqlx::query(sql).bind(&name).execute(&mut *conn).await.map_err(|e| match fault(&e) {
                Fault::Duplicate => again("another runner has just recorded this alert"),
                _ => e,
            })?;
            Known::default()
        }
    };
    let Some(told) = rule.judge(measured, known.last, cooldown) else { return Ok(None) };
    let now: Timestamp = read_clock(conn, &shared.clock).await?;
    let job = message(told);
    let (column, firing) = match told {
        AlertChange::Fired => ("fired_at", true),
        AlertChange::Resolved => ("resolved_at", false),
    };
    crate::sql::batches::statement(format!(
        "UPDATE alerts SET firing = ?, {column} = ?, deliveries = ? WHERE name = ?"
    ))
    .bind(firing)
    .bind(now)
    .bind(as_column(std::iter::once(job.id.uuid()).chain(known.deliveries)))
    .bind(&name)
    .execute(&mut *conn)
    .await?;
    // The new job locks the order key of the alert, and that comes before the rows of the failed jobs.
    let accepted = insert_owed(conn, &[&job], &NewLinks::default(), &shared.clock, PriorRun::Nothing).await?.pop();
    let failed: Vec<Uuid> = known.failed.into_iter().collect();
    if !failed.is_empty() {
        let reason = "a newer message of this alert was sent";
        discard_all(conn, &failed, reason, &Actor::tickr(), now).await?;
    }
    Ok(accepted.map(|accepted| (told, accepted)))
}
