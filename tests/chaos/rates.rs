//! A rate that is changed again and again while the faults happen, and the concurrency of the tenants beside it. The
//! check at the end counts the starts in every period by the attempts in the tables. It knows only the rules that were
//! asked for, and nothing of the rows with which tickr keeps them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use chrono::{DateTime, TimeDelta, Utc};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};
use sqlx::{MySqlConnection, Row as _};
use tokio_util::sync::CancellationToken;

use crate::driver::MAX_OF_TENANT;
use crate::faults::until_done;
use crate::request::Request;
use crate::world::World;

/// The queue to which the rate applies, and the number of limit keys of its jobs.
pub(crate) const PACED: &str = "paced";
pub(crate) const PACED_KEYS: u64 = 2;
/// The period of every rule.
const PERIOD_MS: i64 = 2_000;
/// Time after the answer to a change from which every runner follows it, with a margin for a busy machine.
const HEARD: Duration = Duration::from_millis(2_500);

/// A rule that was set, in the time of MySQL.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    starts: usize,
    burst: usize,
    /// The most jobs of a limit key that may run at once.
    of_tenant: usize,
    /// It may hold from here on.
    asked_at: DateTime<Utc>,
    /// From here on it holds everywhere, and no earlier one does.
    heard_at: DateTime<Utc>,
}

/// Starts in a period, and the burst. The load is between the slow rules and the fast one, so that jobs are parked and
/// let go; the first one is set at the end.
const RULES: [(usize, usize); 4] = [(12, 4), (3, 1), (2, 8), (6, 0)];

fn limit((starts, burst): (usize, usize)) -> Value {
    json!({"queue": PACED, "rate": {"starts": starts, "period_ms": PERIOD_MS, "burst": burst}})
}

/// Set the first rule.
pub(crate) async fn prepare(world: &World, rng: &mut StdRng) -> anyhow::Result<()> {
    set(world, rng, RULES[0], 1).await
}

/// Change the rules until the token is cancelled. Then set those with which the jobs that are left get through.
pub(crate) async fn change_until_stopped(world: Arc<World>, stop: CancellationToken) {
    let mut rng = StdRng::seed_from_u64(world.seed.wrapping_add(7));
    while !stop.is_cancelled() {
        let pause = Duration::from_millis(rng.random_range(1_000..5_000));
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
        let rule = *RULES.choose(&mut rng).unwrap_or(&RULES[0]);
        let of_tenant = rng.random_range(1..=MAX_OF_TENANT);
        let (rule, of_tenant) = if stop.is_cancelled() { (RULES[0], MAX_OF_TENANT) } else { (rule, of_tenant) };
        if let Err(error) = set(&world, &mut rng, rule, of_tenant).await {
            world.ledger.complain(format!("the limits could not be changed: {error:#}"));
        }
    }
}

async fn set(world: &World, rng: &mut StdRng, rule: (usize, usize), of_tenant: usize) -> anyhow::Result<()> {
    let asked_at = now(world).await?;
    until_done(world, rng, Request::put("/v1/limits/paces").with(limit(rule))).await?;
    until_done(world, rng, Request::put("/v1/limits/tenants").with(json!({"concurrency": of_tenant}))).await?;
    // This is not a wait for an event: it is the time that tickr promises.
    tokio::time::sleep(HEARD).await;
    let rule = Rule { starts: rule.0, burst: rule.1, of_tenant, asked_at, heard_at: now(world).await? };
    world.ledger.write(|book| book.rules.push(rule));
    Ok(())
}

/// Read the time of MySQL, however long a fault lasts.
pub(crate) async fn now(world: &World) -> anyhow::Result<DateTime<Utc>> {
    let end = tokio::time::Instant::now() + Duration::from_secs(90);
    loop {
        let read = async {
            let mut root = world.servers.root().await?;
            anyhow::Ok(sqlx::query_scalar("SELECT UTC_TIMESTAMP(6)").fetch_one(&mut root).await?)
        };
        match tokio::time::timeout(Duration::from_secs(5), read).await.context("mysql is silent").flatten() {
            Ok(now) => return Ok(now),
            Err(error) if tokio::time::Instant::now() > end => return Err(error),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Return the periods in which more jobs of a key started than the loosest rule that held then allows, and the number
/// of starts.
pub(crate) async fn exceeded(rules: &[Rule], root: &mut MySqlConnection) -> anyhow::Result<(Vec<String>, usize)> {
    let sql = "SELECT k.limit_key, a.started_at FROM jobs j JOIN job_limit_keys k ON k.job_id = j.id \
               JOIN attempts a ON a.job_id = j.id AND a.runner <> '' AND a.expired IS NULL \
               WHERE j.queue = ? ORDER BY a.started_at";
    let mut starts: BTreeMap<Vec<u8>, Vec<DateTime<Utc>>> = BTreeMap::new();
    for row in sqlx::query(sql).bind(PACED).fetch_all(root).await? {
        starts.entry(row.try_get(0)?).or_default().push(row.try_get(1)?);
    }
    let mut wrong = Vec::new();
    for (key, starts) in &starts {
        for (first, from) in starts.iter().enumerate() {
            let until = *from + TimeDelta::milliseconds(PERIOD_MS);
            let within = starts[first..].iter().take_while(|at| **at < until).count();
            let allowed = allowed(rules, *from, until);
            if within > allowed {
                let key = String::from_utf8_lossy(key);
                let held: Vec<&Rule> = holding(rules, *from, until).collect();
                wrong.push(format!("{within} jobs of {key} started from {from} on, and {allowed} may: {held:?}"));
            }
        }
    }
    Ok((wrong, starts.values().map(Vec::len).sum()))
}

/// Return the rules that may have held at some moment of a period: each until the one after it was heard everywhere.
fn holding(rules: &[Rule], from: DateTime<Utc>, until: DateTime<Utc>) -> impl Iterator<Item = &Rule> {
    let over = move |place: usize| rules.get(place + 1).is_some_and(|next| next.heard_at < from);
    rules.iter().enumerate().filter(move |(place, rule)| rule.asked_at <= until && !over(*place)).map(|(_, rule)| rule)
}

/// Return how many jobs of a limit key may run at once by the loosest rule that held then.
pub(crate) fn allowed_at_once(rules: &[Rule], from: DateTime<Utc>, until: DateTime<Utc>) -> usize {
    holding(rules, from, until).map(|rule| rule.of_tenant).max().unwrap_or(MAX_OF_TENANT)
}

fn allowed(rules: &[Rule], from: DateTime<Utc>, until: DateTime<Utc>) -> usize {
    let held = || holding(rules, from, until);
    held().map(|rule| rule.starts).max().unwrap_or(0) + held().map(|rule| rule.burst).max().unwrap_or(0)
}
