//! The time from the end of a fault until tickr has recovered: every runner accepts a job and the job completes, no job
//! waits beyond its time or for a limit that has room, no row of the outbox and no tick of a schedule waits for long, and
//! no lease has expired.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use chrono::{DateTime, Utc};
use rand::Rng as _;
use rand::rngs::StdRng;
use serde_json::json;
use sqlx::Row as _;
use tokio::time::Instant;
use uuid::Uuid;

use crate::driver;
use crate::request::{Answer, Request, id_of};
use crate::schedules;
use crate::world::World;

/// Longest allowed recovery. It covers a lease, the wait of a reaper that was cut off itself, the repair of the index,
/// and a backlog that grew while runners restarted. After a third of it, the clients of the load wait.
pub(crate) const BOUND: Duration = Duration::from_secs(30);

/// Jobs that should have begun a while ago, or whose runner lost them. The backlog that no runner serves is left out.
/// The remote workers die all the time, whatever the fault, so their jobs have the time that a loss takes.
/// The jobs of schedules, which have a priority of their own, come whatever the load is, and have this time as well.
///
/// The second part are jobs that are held although they are at the head of their order key: the transaction that moves
/// the head gives its job a due time. The third are jobs that are blocked although all their parents ended a while ago.
/// Every other job that is held or blocked waits for a job that is looked at itself, that is parked, or that failed and
/// blocks its key.
///
/// A job that waits beyond its expiry must end, whatever it waits for. A runner looks at it about a second after the
/// expiry, and 5 s later once more if an attempt ran then or another session had its row. Until then it is not overdue.
///
/// Parked jobs are counted by [`PARKED_WITH_ROOM`].
const OVERDUE_JOBS: &str = "SELECT * FROM owed WHERE queue <> 'elsewhere' AND ((state <> 'executing' \
    AND IF(expires_at <= UTC_TIMESTAMP(6), expires_at < UTC_TIMESTAMP(6) - INTERVAL 8 SECOND, \
    execute_at < UTC_TIMESTAMP(6) - INTERVAL IF(queue = 'remote' OR priority = 1, 5, 1) SECOND)) OR (state = 'executing' \
    AND lease_until < UTC_TIMESTAMP(6) - INTERVAL IF(queue = 'remote', 5, 0) SECOND)) \
    UNION ALL SELECT o.* FROM owed o STRAIGHT_JOIN order_places p ON p.job_id = o.id \
    STRAIGHT_JOIN order_keys k ON k.order_key = p.order_key \
    WHERE o.execute_at = '9999-12-31 00:00:00' AND p.open AND p.place = k.head \
    UNION ALL SELECT o.* FROM blocked_jobs b STRAIGHT_JOIN owed o ON o.id = b.job_id \
    WHERE NOT EXISTS (SELECT 1 FROM job_parents p JOIN owed q ON q.id = p.parent_id WHERE p.child_id = b.job_id) \
    AND (SELECT MAX(a.finished_at) FROM job_parents p JOIN attempts a ON a.job_id = p.parent_id \
    WHERE p.child_id = b.job_id) < UTC_TIMESTAMP(6) - INTERVAL 5 SECOND";

/// The priority in [`OVERDUE_JOBS`] is that of the jobs of schedules.
const _: () = assert!(schedules::PRIORITY == 1);

/// The first parked job of each key of a limit, if the limit has room for it. Jobs of paused queues stay parked, and
/// those behind the first one wait for it. There is room if all of this is so:
///
/// - Fewer jobs of the key execute, or were let go and keep their slots, than may run.
/// - With a rate, no slot is kept. tickr lets a job go before its turn comes, with the turn as its due time. It lets
///   one go at a time while the rate is below ten starts a second, as all rates of the run are.
/// - With an open breaker, its pause is over, no slot is kept, and the job whose call decides does not execute.
///
/// Such a job is let go when an attempt ends, or by the next sweep of the runners, about a second later. So there are
/// such jobs now and then, and one is forgotten only if it stays.
const PARKED_WITH_ROOM: &str = "SELECT w.job_id, w.parked_at FROM limit_waits w JOIN limits l ON l.name = w.limit_name \
    JOIN owed o ON o.id = w.job_id AND o.execute_at = '9999-12-30 00:00:00' \
    LEFT JOIN limit_keys k ON k.limit_name = w.limit_name AND k.limit_key = w.limit_key \
    WHERE w.parked_at IS NOT NULL AND w.job_id = (SELECT f.job_id FROM limit_waits f WHERE f.limit_name = w.limit_name \
    AND f.limit_key = w.limit_key AND f.queue NOT IN (SELECT name FROM queues WHERE paused_at IS NOT NULL) \
    ORDER BY f.due_at, f.job_id LIMIT 1) AND (l.concurrency IS NULL OR l.concurrency > (SELECT COUNT(*) \
    FROM limit_slots s LEFT JOIN owed r ON r.id = s.job_id WHERE s.limit_name = w.limit_name \
    AND s.limit_key = w.limit_key AND ((s.kept_until IS NULL AND r.state = 'executing') \
    OR s.kept_until > UTC_TIMESTAMP(6)))) AND ((l.rate IS NULL AND k.probe_at IS NULL) OR NOT EXISTS (SELECT 1 \
    FROM limit_slots s WHERE s.limit_name = w.limit_name AND s.limit_key = w.limit_key \
    AND s.kept_until > UTC_TIMESTAMP(6))) AND (k.probe_at IS NULL OR (k.probe_at <= UTC_TIMESTAMP(6) \
    AND NOT EXISTS (SELECT 1 FROM limit_slots s JOIN owed r ON r.id = s.job_id WHERE s.limit_name = w.limit_name \
    AND s.limit_key = w.limit_key AND s.job_id = k.probe_job AND s.kept_until IS NULL AND r.state = 'executing')))";

/// Rows of the outbox that should have become jobs. Another runner follows within six seconds when the one that looks
/// for rows dies. A row that found the lock of another session rests for 10 s at most.
const FORGOTTEN_ROWS: &str =
    "SELECT COUNT(*) FROM tickr_outbox WHERE created_at < UTC_TIMESTAMP(6) - INTERVAL 12 SECOND";

/// Parked jobs, each with the time when it was parked. One that was let go and is parked again counts anew.
type Parked = BTreeSet<(Uuid, DateTime<Utc>)>;

/// What the looks for the recovery have seen so far.
struct Seen {
    /// The fresh job of each runner.
    probes: Vec<Option<Uuid>>,
    /// The parked jobs that each look so far found while their limit had room. None before the first look.
    parked: Option<Parked>,
}

/// Wait for the recovery. Return how long it took and what was repaired last, or what is still wrong after the bound.
pub(crate) async fn wait(world: &World, rng: &mut StdRng) -> Result<(Duration, String), String> {
    let recovered = until_recovered(world, rng).await;
    world.quiet.store(false, Ordering::Relaxed);
    recovered
}

async fn until_recovered(world: &World, rng: &mut StdRng) -> Result<(Duration, String), String> {
    let began = Instant::now();
    let mut counted_from = began;
    let mut aborts = world.ledger.aborts();
    let mut seen = Seen { probes: vec![None; world.runners.len()], parked: None };
    let mut last = "nothing".to_owned();
    loop {
        let missing = missing(world, &mut seen, rng).await;
        let Some(missing) = missing else { return Ok((counted_from.elapsed(), last)) };
        if counted_from.elapsed() > BOUND {
            let overdue = overdue(world).await.unwrap_or_else(|error| vec![format!("{error:#}")]);
            return Err(format!("not recovered after {} s: {missing}: {}", BOUND.as_secs(), overdue.join("; ")));
        }
        // A machine that is too slow for the load always has a backlog. Without new jobs the backlog ends, and a job that
        // tickr forgot stays.
        world.quiet.store(counted_from.elapsed() > BOUND / 3, Ordering::Relaxed);
        last = missing;
        // A job that kills its runners continues to do so after the fault, so the time counts from the last abort.
        if world.ledger.aborts() != aborts {
            aborts = world.ledger.aborts();
            counted_from = Instant::now();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Return how many jobs of each queue and state are overdue, for how long, and what a runner says about the first of
/// each group. A job that is held or blocked is due in the year 9999, so its time is negative.
async fn overdue(world: &World) -> anyhow::Result<Vec<String>> {
    let mut root = world.servers.root().await?;
    let groups = format!(
        "SELECT queue, CAST(state AS CHAR) AS state, COUNT(*) AS jobs, CAST(SUM(losses) AS SIGNED) AS losses, MIN(id) AS first, \
         CAST(TIMESTAMPDIFF(MICROSECOND, MIN(execute_at), UTC_TIMESTAMP(6)) DIV 1000 AS SIGNED) AS oldest_ms \
         FROM ({OVERDUE_JOBS}) overdue GROUP BY 1, 2"
    );
    let mut told = Vec::new();
    for group in sqlx::query(sqlx::AssertSqlSafe(groups)).fetch_all(&mut root).await? {
        let first: Uuid = group.try_get("first")?;
        let says = match world.runners.iter().find_map(crate::runner::Runner::addr) {
            Some(addr) => format!("{:?}", world.ask(addr, Request::get(format!("/v1/jobs/{first}/explain"))).await),
            None => "no runner is up".to_owned(),
        };
        told.push(format!(
            "{} {} jobs of {} with {} losses, the oldest for {} ms; {first}: {says}",
            group.try_get::<i64, _>("jobs")?,
            group.try_get::<String, _>("state")?,
            group.try_get::<String, _>("queue")?,
            group.try_get::<i64, _>("losses")?,
            group.try_get::<i64, _>("oldest_ms")?,
        ));
    }
    Ok(told)
}

/// Return what has not recovered yet.
async fn missing(world: &World, seen: &mut Seen, rng: &mut StdRng) -> Option<String> {
    for (runner, probe) in world.runners.iter().zip(&mut seen.probes) {
        if probe.is_none() {
            let Some(addr) = runner.addr() else { return Some(format!("runner {} is down", runner.number)) };
            let name = format!("probe-{}-{}", runner.number, rng.random::<u64>());
            let job =
                json!({"kind": "record", "payload": {"name": name}, "max_attempts": 10, "retry": driver::quick()});
            let request = Request::post("/v1/jobs").with(job).within(Duration::from_secs(3));
            match world.ask(addr, request).await {
                Answer::Said(201, body) => {
                    *probe = id_of(&body);
                    world.ledger.write(|book| book.accepted.extend(id_of(&body).map(|id| (id, name))));
                }
                other => {
                    world.ledger.write(|book| book.unknown.insert(name));
                    return Some(format!("runner {} does not accept a job: {other:?}", runner.number));
                }
            }
        }
    }
    let looked = async {
        let mut root = world.servers.root().await?;
        let mut waiting = 0;
        for id in seen.probes.iter().flatten() {
            waiting += sqlx::query_scalar::<_, i64>("SELECT COUNT(*) FROM owed WHERE id = ?")
                .bind(id)
                .fetch_one(&mut root)
                .await?;
        }
        let overdue = format!("SELECT COUNT(*) FROM ({OVERDUE_JOBS}) overdue");
        let overdue: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(overdue)).fetch_one(&mut root).await?;
        let parked: Vec<(Uuid, DateTime<Utc>)> = sqlx::query_as(PARKED_WITH_ROOM).fetch_all(&mut root).await?;
        let rows: i64 = sqlx::query_scalar(FORGOTTEN_ROWS).fetch_one(&mut root).await?;
        let ticks = schedules::overdue(&mut root).await?;
        anyhow::Ok((waiting, overdue, rows, ticks, parked))
    };
    let (waiting, overdue, rows, ticks, now) = match looked.await {
        Ok(looked) => looked,
        Err(error) => return Some(format!("{error:#}")),
    };
    let now: Parked = now.into_iter().collect();
    let parked = seen.parked.get_or_insert_with(|| now.clone());
    parked.retain(|job| now.contains(job));
    if (waiting, overdue, rows, ticks) == (0, 0, 0, 0) && parked.is_empty() {
        return None;
    }
    let ids: Vec<String> = parked.iter().map(|(id, _)| id.to_string()).collect();
    Some(format!(
        "{waiting} fresh jobs have not ended, {overdue} are overdue, {rows} rows are in the outbox, {ticks} schedules \
         are overdue, {} jobs are parked while their limit has room: {}",
        ids.len(),
        ids.join(" ")
    ))
}

/// Wait until no job is owed, except in the queue that no runner serves, and no row of the outbox is to become one.
pub(crate) async fn until_nothing_is_owed(world: &World, limit: Duration) -> Result<Duration, String> {
    let began = Instant::now();
    loop {
        let counted = async {
            let mut root = world.servers.root().await?;
            // Failed jobs that block their order keys.
            let blocking = "SELECT p.job_id FROM order_places p JOIN order_keys k ON k.order_key = p.order_key \
                            LEFT JOIN owed o ON o.id = p.job_id WHERE p.open AND p.place >= k.head AND o.id IS NULL";
            for id in sqlx::query_scalar::<_, Uuid>(blocking).fetch_all(&mut root).await? {
                if let Some(addr) = world.runners.iter().find_map(crate::runner::Runner::addr) {
                    world.ask(addr, driver::discard(id)).await;
                }
            }
            // Batches that their clients left open, because they did not learn of them or of their close.
            let open = "SELECT id FROM batches WHERE closed_at IS NULL";
            for id in sqlx::query_scalar::<_, Uuid>(open).fetch_all(&mut root).await? {
                if let Some(addr) = world.runners.iter().find_map(crate::runner::Runner::addr) {
                    world.ask(addr, Request::post(format!("/v1/batches/{id}/close"))).await;
                }
            }
            // The callbacks of a batch become jobs when the ends of its jobs are counted.
            let owed = "SELECT (SELECT COUNT(*) FROM owed WHERE queue <> 'elsewhere') \
                        + (SELECT COUNT(*) FROM tickr_outbox) \
                        + (SELECT COUNT(*) FROM batch_changes) + (SELECT COUNT(*) FROM batch_cancels) \
                        + (SELECT COUNT(*) FROM operations WHERE state = 'running')";
            anyhow::Ok(sqlx::query_scalar::<_, i64>(owed).fetch_one(&mut root).await?)
        };
        match counted.await {
            Ok(0) => return Ok(began.elapsed()),
            other if began.elapsed() > limit => {
                return Err(format!("jobs are still owed after {} s of quiet: {other:?}", limit.as_secs()));
            }
            _ => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}
