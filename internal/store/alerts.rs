//! Alerts about dead letters. Each rule has one row in `alerts`. The decision to send an alert is made under the lock
//! of that row, and the message is a job that is accepted in the same commit.

use std::sync::Arc;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use sqlx::Row;

use crate::rows::jobs::{Accepted, insert_owed};
use crate::rows::links::NewLinks;
use crate::sql::clock::read_clock;
use crate::sql::connection::{PriorRun, on_pool, transact};
use crate::sql::error::{Fault, again, fault};
use crate::sql::session::Session;
use crate::{Store, StoreError, StoreInner};
use tickr_job::{AlertChange, AlertRule, Measured, NewJob, Timestamp};

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
                let (firing, fired_ago) = read(conn, &name, "").await?.unwrap_or((false, None));
                Ok(rule.judge(measured, firing, fired_ago, cooldown).is_none())
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

type Last = (bool, Option<Duration>);

async fn read(conn: &mut Session<'_>, name: &str, lock: &str) -> Result<Option<Last>, sqlx::Error> {
    let sql = format!(
        "SELECT firing, TIMESTAMPDIFF(MICROSECOND, fired_at, UTC_TIMESTAMP(6)) AS fired_ago_us FROM alerts \
         WHERE name = ? {lock}"
    );
    let Some(row) = crate::sql::batches::statement(sql).bind(name).fetch_optional(conn).await? else {
        return Ok(None);
    };
    let ago: Option<i64> = row.try_get("fired_ago_us")?;
    Ok(Some((row.try_get("firing")?, ago.map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or(0))))))
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
    let (firing, fired_ago) = match read(conn, &name, "FOR UPDATE").await? {
        Some(last) => last,
        None => {
            // This rule has no row yet. Another runner may insert the same row at this moment.
            let sql = "INSERT INTO alerts (name, firing) VALUES (?, FALSE)";
            sqlx::query(sql).bind(&name).execute(&mut *conn).await.map_err(|e| match fault(&e) {
                Fault::Duplicate => again("another runner has just recorded this alert"),
                _ => e,
            })?;
            (false, None)
        }
    };
    let Some(told) = rule.judge(measured, firing, fired_ago, cooldown) else { return Ok(None) };
    let now: Timestamp = read_clock(conn, &shared.clock).await?;
    let (column, firing) = match told {
        AlertChange::Fired => ("fired_at", true),
        AlertChange::Resolved => ("resolved_at", false),
    };
    crate::sql::batches::statement(format!("UPDATE alerts SET firing = ?, {column} = ? WHERE name = ?"))
        .bind(firing)
        .bind(now)
        .bind(&name)
        .execute(&mut *conn)
        .await?;
    let job = message(told);
    let accepted = insert_owed(conn, &[&job], &NewLinks::default(), &shared.clock, PriorRun::Nothing).await?.pop();
    Ok(accepted.map(|accepted| (told, accepted)))
}
