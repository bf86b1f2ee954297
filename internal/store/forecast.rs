//! What is to come: jobs that wait for their time, and the schedules that will make more.

use sqlx::Row;
use sqlx::mysql::MySqlRow;

use super::line::{lines_of, queues_to_show};
use super::link::on_pool;
use super::schedules::read_cadence;
use super::shape::statement;
use super::{Store, StoreError};
use crate::job::{Cadence, Timestamp};

/// Jobs due in one hour that are counted at most.
const MOST_IN_AN_HOUR: i64 = 50_000;
/// Queues whose jobs are counted beside those that runners serve, the first by name.
const MOST_QUEUES: usize = 200;
/// Schedules of a forecast, those that tick first.
const MOST_SCHEDULES: usize = 2_000;

/// Jobs that become due within an hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HourDue {
    /// The beginning of the hour.
    pub from: Timestamp,
    /// How many become due in it.
    pub jobs: u32,
    /// There are more than were counted.
    pub more: bool,
}

/// Schedules that will tick.
#[derive(Debug, Default)]
pub struct Ahead {
    /// When each ticks, and its first tick that nobody has seen to.
    pub cadences: Vec<(Cadence, Timestamp)>,
    /// Those that this binary cannot understand.
    pub unreadable: u32,
    /// There are more schedules than these.
    pub more: bool,
}

impl Store {
    /// What becomes due in each of the next `hours` hours, the first of which begins now.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn due_by_hour(&self, hours: u32) -> Result<Vec<HourDue>, StoreError> {
        on_pool(&self.shared.pools.reads, "count what becomes due", move |conn, _| {
            Box::pin(async move {
                let now: Timestamp = sqlx::query_scalar("SELECT UTC_TIMESTAMP(3)").fetch_one(&mut *conn).await?;
                let (queues, others) = queues_to_show(conn, MOST_QUEUES).await?;
                let start = |hour: u32| now + chrono::TimeDelta::hours(i64::from(hour));
                let mut forecast: Vec<HourDue> =
                    (0..hours).map(|hour| HourDue { from: start(hour), jobs: 0, more: others }).collect();
                if hours == 0 {
                    return Ok(forecast);
                }
                // One statement for each line, with a branch for each hour.
                let branch = |hour| {
                    format!(
                        "SELECT {hour}, COUNT(*) FROM (SELECT 1 FROM owed FORCE INDEX (owed_line) WHERE queue = ? \
                         AND priority = ? AND execute_at >= ? AND execute_at < ? LIMIT ?) o"
                    )
                };
                let sql = (0..hours).map(branch).collect::<Vec<_>>().join(" UNION ALL ");
                for line in lines_of(conn, &queues).await? {
                    let mut query = statement(sql.clone());
                    for (hour, counted) in (0..hours).zip(&forecast) {
                        query = query
                            .bind(line.queue.as_str())
                            .bind(line.priority.level())
                            .bind(counted.from)
                            .bind(start(hour + 1))
                            .bind(MOST_IN_AN_HOUR - i64::from(counted.jobs));
                    }
                    for row in &query.fetch_all(&mut *conn).await? {
                        let hour = usize::try_from(row.try_get::<i64, _>(0)?).unwrap_or(usize::MAX);
                        let Some(counted) = forecast.get_mut(hour) else { continue };
                        counted.jobs += u32::try_from(row.try_get::<i64, _>(1)?).unwrap_or(0);
                        counted.more |= i64::from(counted.jobs) >= MOST_IN_AN_HOUR;
                    }
                }
                Ok(forecast)
            })
        })
        .await
    }

    /// The schedules that are not paused and tick before `end`, at most two thousand, those first that tick first.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn ticking_before(&self, end: Timestamp) -> Result<Ahead, StoreError> {
        on_pool(&self.shared.pools.reads, "read which schedules tick", move |conn, _| {
            Box::pin(async move {
                let sql = "SELECT cron, every_ms, anchor, zone, dst, next_at FROM schedules FORCE INDEX (schedules_next) \
                           WHERE next_at < ? AND paused_at IS NULL ORDER BY next_at LIMIT ?";
                let most = i64::try_from(MOST_SCHEDULES).unwrap_or(i64::MAX);
                let mut rows = statement(sql.to_owned()).bind(end).bind(most + 1).fetch_all(conn).await?;
                let mut ahead = Ahead { more: rows.len() > MOST_SCHEDULES, ..Ahead::default() };
                rows.truncate(MOST_SCHEDULES);
                let understood =
                    |row: &MySqlRow| Ok::<_, sqlx::Error>((read_cadence(row)?.0, row.try_get("next_at")?));
                for row in &rows {
                    match understood(row) {
                        Ok(cadence) => ahead.cadences.push(cadence),
                        Err(_) => ahead.unreadable += 1,
                    }
                }
                Ok(ahead)
            })
        })
        .await
    }
}
