//! How the ends of calls open and close the breakers of their hosts.
//!
//! The end of a call counts in the transaction that frees the slot of its attempt, after its settlement. That
//! transaction has locked the key anyway, so a settlement waits for no key, and jobs without such a limit pay nothing.
//! If a runner dies in between, or another session keeps the key locked, one call is not counted.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::rows::breakers::{BreakerRule, BreakerState, Turn};
use crate::rows::limits::{LimitKey, LimitSetting, any_of, key_in};
use crate::sql::connection::PriorRun;
use crate::sql::script::{Script, Value};
use crate::sql::session::Session;
use tickr_job::{AttemptToken, CallOutcome, Timestamp};

/// The end of a call to a host.
#[derive(Clone, Debug)]
pub(crate) struct EndedCall {
    /// The attempt that made it.
    pub(crate) token: AttemptToken,
    pub(crate) outcome: CallOutcome,
    /// Error of the attempt.
    pub(crate) error: Option<String>,
    /// True if the deferral or the finish of the attempt may have counted the call already. Then it counts while a slot
    /// still names the attempt.
    pub(crate) in_doubt: bool,
}

/// A call that counts for the breaker of a key.
pub(super) struct CountedCall<'a> {
    job: Uuid,
    key: &'a LimitKey,
    rule: BreakerRule,
    call: &'a EndedCall,
}

/// Return for which breakers the call of this job counts. `keys` are those of which its attempt had slots.
pub(super) fn counted<'a>(
    (job, call): (Uuid, &'a EndedCall),
    keys: &'a [LimitKey],
    limits: &[LimitSetting],
) -> Vec<CountedCall<'a>> {
    let rule = |key: &LimitKey| limits.iter().find(|set| set.limit.name == key.limit)?.breaker_rule();
    keys.iter().filter_map(|key| Some(CountedCall { job, key, rule: rule(key)?, call })).collect()
}

/// A breaker that a call opened or closed.
pub(super) struct Turned {
    key: LimitKey,
    turn: Turn,
    state: BreakerState,
}

impl Turned {
    /// Say it to the operator. Call this after the commit. The last error is left out: it quotes the answer of the
    /// receiver, which may repeat the payload.
    pub(super) fn tell(&self) {
        let LimitKey { limit, key: host } = &self.key;
        match self.turn {
            Turn::Opened => {
                metrics::counter!("tickr_breaker_openings_total", "limit" => limit.to_string()).increment(1);
                let (failures, pause_ms) = (self.state.failures, self.state.pause_ms.unwrap_or(0));
                tracing::warn!(%limit, host, failures, pause_ms, "a breaker opened, the jobs of the host wait");
            }
            Turn::StaysOpen => {
                let pause_ms = self.state.pause_ms.unwrap_or(0);
                tracing::debug!(%limit, host, pause_ms, "a breaker stays open");
            }
            Turn::Closed => tracing::info!(%limit, host, "a breaker closed, the jobs of the host go on"),
        }
    }
}

/// Count these calls, in their order. Their keys are locked. Call this before their slots are freed. Returns the breakers
/// that opened or closed.
pub(super) async fn count_calls(
    conn: &mut Session<'_>,
    mut calls: Vec<CountedCall<'_>>,
    earlier: PriorRun,
) -> Result<Vec<Turned>, sqlx::Error> {
    let in_doubt = |call: &CountedCall<'_>| earlier == PriorRun::MayHaveCommitted || call.call.in_doubt;
    if calls.iter().any(in_doubt) {
        let uncounted = uncounted(conn, &calls).await?;
        let counts = |call: &CountedCall<'_>| (call.key.clone(), call.job, call.call.token.uuid());
        // A deferral and the end of the same attempt may come together.
        let mut seen = BTreeSet::new();
        calls.retain(|call| !in_doubt(call) || uncounted.contains(&counts(call)) && seen.insert(counts(call)));
    }
    if calls.is_empty() {
        return Ok(Vec::new());
    }
    let rules: BTreeMap<&LimitKey, BreakerRule> = calls.iter().map(|call| (call.key, call.rule)).collect();
    let keys: Vec<&LimitKey> = rules.keys().copied().collect();
    let mut script = Script::as_text();
    let (any, values) = any_of("", &keys);
    let columns = BreakerState::COLUMNS;
    let sql = format!(
        "SELECT limit_name, limit_key, {columns}, UTC_TIMESTAMP(6) AS moment FROM limit_keys FORCE INDEX (PRIMARY) WHERE {any}"
    );
    script.push(sql, values);
    let found: Vec<MySqlRow> = script.run(conn).await?.into_iter().flat_map(|step| step.rows).collect();
    let mut states: BTreeMap<LimitKey, BreakerState> = BTreeMap::new();
    let mut now: Option<Timestamp> = None;
    for row in &found {
        let key = key_in(row)?;
        now = Some(row.try_get("moment")?);
        if let Some(rule) = rules.get(&key) {
            states.insert(key, BreakerState::in_row(row, *rule)?);
        }
    }
    let before = states.clone();
    let mut turned = Vec::new();
    for CountedCall { job, key, rule, call } in &calls {
        let (Some(state), Some(now)) = (states.get_mut(*key), now) else { continue };
        if let Some(turn) = state.count(*rule, (*job, call.outcome), call.error.as_deref(), now) {
            turned.push(Turned { key: (*key).clone(), turn, state: state.clone() });
        }
    }
    let changed: Vec<(&LimitKey, &BreakerState)> =
        states.iter().filter(|(key, state)| before.get(*key) != Some(*state)).collect();
    if !changed.is_empty() {
        let mut script = Script::as_text();
        for (key, state) in changed {
            write_step(&mut script, key, state);
        }
        script.run(conn).await?;
    }
    Ok(turned)
}

/// Add the step that writes the state of a breaker.
fn write_step<'a>(script: &mut Script<'a>, key: &'a LimitKey, state: &'a BreakerState) {
    let values = vec![
        Value::from(state.failures),
        state.failed_at.into(),
        state.last_error.as_deref().into(),
        state.opened_at.into(),
        state.pause_ms.into(),
        state.probe_at.into(),
        state.probe_job.into(),
        key.limit.as_str().into(),
        Value::from(key.key.as_bytes()),
    ];
    script.push(
        "UPDATE limit_keys SET failures = ?, failed_at = ?, last_error = ?, opened_at = ?, pause_ms = ?, probe_at = ?, \
         probe_job = ? WHERE limit_name = ? AND limit_key = ?",
        values,
    );
}

/// Read for which keys, jobs and attempts a call still has to count. A run that was committed has freed the slots of
/// the calls that it counted, or has taken the attempt out of the slot. The slot of a newer attempt has another token.
async fn uncounted(
    conn: &mut Session<'_>,
    calls: &[CountedCall<'_>],
) -> Result<BTreeSet<(LimitKey, Uuid, Uuid)>, sqlx::Error> {
    let ids: Vec<Uuid> = calls.iter().map(|call| call.job).collect();
    let mut script = Script::as_text();
    let (list, values) = script.list(&ids);
    let sql = format!(
        "SELECT limit_name, limit_key, job_id, call_token FROM limit_slots FORCE INDEX (limit_slots_job) \
         WHERE job_id IN {list} AND kept_until IS NULL AND call_token IS NOT NULL"
    );
    script.push(sql, values);
    let found: Vec<MySqlRow> = script.run(conn).await?.into_iter().flat_map(|step| step.rows).collect();
    found.iter().map(|row| Ok((key_in(row)?, row.try_get("job_id")?, row.try_get("call_token")?))).collect()
}

/// Note that the calls of these attempts, which keep their slots, have counted.
pub(super) async fn mark_counted(conn: &mut Session<'_>, attempts: &[(Uuid, AttemptToken)]) -> Result<(), sqlx::Error> {
    if attempts.is_empty() {
        return Ok(());
    }
    let mut script = Script::as_text();
    for (job, token) in attempts {
        let values = vec![Value::from(*job), token.uuid().into()];
        let sql = "UPDATE limit_slots FORCE INDEX (limit_slots_job) SET call_token = NULL WHERE job_id = ? AND call_token = ?";
        script.push(sql, values);
    }
    script.run(conn).await.map(drop)
}
