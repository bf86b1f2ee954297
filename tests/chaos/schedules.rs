//! Schedules that tick every second while the faults happen. No tick may be missing, and each one makes one job. The
//! check at the end reads the records of the ticks, and knows nothing of how tickr finds those that are due.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use serde_json::json;
use sqlx::{MySqlConnection, Row as _};
use uuid::Uuid;

use crate::driver;
use crate::faults::until_done;
use crate::request::Request;
use crate::world::World;

/// The schedules, with the policy for ticks that no runner could process in time. With `all` each of them fires, as long
/// as they are fewer than a thousand: no fault lasts that long, and no step of the clock is that wide.
const SCHEDULES: [(&str, &str); 2] = [("each", "all"), ("latest", "one")];
/// Priority of their jobs. They come also while the clients of the load wait, so a machine that is too slow for the load
/// has more time for jobs of this priority.
pub(crate) const PRIORITY: u8 = 1;
/// Ticks that are due for longer than this are overdue. Another runner follows within six seconds when the one that looks
/// for them dies.
const OVERDUE: &str = "SELECT COUNT(*) FROM schedules WHERE next_at < UTC_TIMESTAMP(6) - INTERVAL 12 SECOND";

fn path(name: &str) -> String {
    format!("/v1/schedules/{name}")
}

/// Declare the schedules.
pub(crate) async fn prepare(world: &World, rng: &mut StdRng) -> anyhow::Result<()> {
    for (name, misfire) in SCHEDULES {
        let payload = json!({"name": name, "ms": 5});
        let schedule = json!({"cron": "* * * * * *", "kind": "record", "payload": payload, "misfire": misfire,
                              "misfire_grace_ms": 3_000, "max_attempts": 10, "retry": driver::quick(),
                              "priority": PRIORITY});
        until_done(world, rng, Request::put(path(name)).with(schedule)).await?;
    }
    Ok(())
}

/// Remove the schedules, so that no more jobs come. The records of their ticks stay.
pub(crate) async fn remove(world: &World) -> anyhow::Result<()> {
    let mut rng = StdRng::seed_from_u64(world.seed.wrapping_add(11));
    for (name, _) in SCHEDULES {
        until_done(world, &mut rng, Request::delete(path(name))).await?;
    }
    Ok(())
}

/// Count the schedules whose next tick should have been processed a while ago.
pub(crate) async fn overdue(root: &mut MySqlConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar(OVERDUE).fetch_one(root).await
}

/// The jobs of the ticks, with names of their own.
pub(crate) async fn names(root: &mut MySqlConnection) -> anyhow::Result<BTreeMap<Uuid, String>> {
    let mut names = BTreeMap::new();
    let sql = "SELECT job_id, schedule, due_at FROM ticks WHERE outcome = 'fired'";
    for row in sqlx::query(sql).fetch_all(root).await? {
        let (schedule, at): (String, DateTime<Utc>) = (row.try_get(1)?, row.try_get(2)?);
        names.insert(row.try_get(0)?, format!("tick of {schedule} at {at}"));
    }
    Ok(names)
}

/// Check the ticks. Return what is wrong, and the number of ticks that fired.
///
/// The records begin with the first tick of a schedule, and each second after it has a tick: one that fired, or one that
/// a record says was skipped. Under `all` each one fired.
pub(crate) async fn missing(root: &mut MySqlConnection) -> anyhow::Result<(Vec<String>, usize)> {
    let (mut wrong, mut fired) = (Vec::new(), 0);
    for (schedule, misfire) in SCHEDULES {
        let sql = "SELECT due_at, CAST(outcome AS CHAR) AS outcome, CAST(cause AS CHAR) AS cause, ticks FROM ticks \
                   WHERE schedule = ? ORDER BY due_at, number";
        let mut next: Option<DateTime<Utc>> = None;
        let mut of_schedule = 0;
        for row in sqlx::query(sql).bind(schedule).fetch_all(&mut *root).await? {
            let (at, outcome): (DateTime<Utc>, String) = (row.try_get("due_at")?, row.try_get("outcome")?);
            let (cause, ticks): (Option<String>, u32) = (row.try_get("cause")?, row.try_get("ticks")?);
            if let Some(next) = next.filter(|next| *next != at) {
                wrong.push(format!("after the tick of {schedule} before {next} comes that of {at}"));
            }
            if outcome == "fired" {
                of_schedule += 1;
            } else if misfire == "all" || cause.as_deref() != Some("missed") {
                wrong.push(format!("{ticks} ticks of {schedule} from {at} on were skipped: {cause:?}"));
            }
            next = Some(at + TimeDelta::seconds(ticks.into()));
        }
        if of_schedule < 10 {
            wrong.push(format!("{schedule} fired {of_schedule} times only"));
        }
        fired += of_schedule;
    }
    Ok((wrong, fired))
}
