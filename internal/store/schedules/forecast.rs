//! The forecast: jobs that wait for their due time, and the schedules that will enqueue more.

use async_recursion::async_recursion as boxed;
use sqlx::Row;
use sqlx::mysql::MySqlRow;

use crate::jobs::lanes::{lines_of, queues_to_show};
use crate::schedules::rows::read_cadence;
use crate::sql::batches::statement;
use crate::sql::connection::on_pool;
use crate::{Store, StoreError};
use tickr_job::{Cadence, Timestamp};

/// Jobs that are counted in one hour at most.
const MAX_IN_AN_HOUR: i64 = 50_000;
/// Queues that are counted at most beside those that runners serve, in the order of their names.
const MAX_QUEUES: usize = 200;
/// Schedules in a forecast at most: those that tick first.
const MAX_SCHEDULES: usize = 2_000;

/// The jobs that become due within one hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HourDue {
    /// The beginning of the hour.
    pub from: Timestamp,
    /// Number of jobs that become due in it.
    pub jobs: u32,
    /// True if there are more than were counted.
    pub more: bool,
}

/// The schedules that will tick.
#[derive(Debug, Default)]
pub struct Ahead {
    /// The cadence of each schedule, and the time of its first tick that is not yet processed.
    pub cadences: Vec<(Cadence, Timestamp)>,
    /// Number of schedules that this binary cannot read.
    pub unreadable: u32,
    /// True if there are more schedules than these.
    pub more: bool,
}

impl Store {
    /// Count the jobs that become due in each of the next `hours` hours. The first hour begins now.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn due_by_hour(&self, hours: u32) -> Result<Vec<HourDue>, StoreError> {
        on_pool(&self.shared.pools.reads, "count what becomes due", move |conn, _| {
            Box::pin(async move {
                let now: Timestamp = sqlx::query_scalar("SELECT UTC_TIMESTAMP(3)").fetch_one(&mut *conn).await?;
                let (queues, others) = queues_to_show(conn, MAX_QUEUES).await?;
                let start = |hour: u32| now + chrono::TimeDelta::hours(i64::from(hour));
                let mut forecast: Vec<HourDue> =
                    (0..hours).map(|hour| HourDue { from: start(hour), jobs: 0, more: others }).collect();
                if hours == 0 {
                    return Ok(forecast);
                }
                // One statement for each lane, with a branch for each hour.
                let branch = |hour| {
                    format!(
                        "SELECT {hour} AS place, COUNT(*) AS jobs FROM (SELECT 1 FROM owed FORCE INDEX (owed_line) \
                         WHERE queue = ? AND priority = ? AND execute_at >= ? AND execute_at < ? LIMIT ?) o"
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
                            .bind(MAX_IN_AN_HOUR - i64::from(counted.jobs));
                    }
                    for row in &query.fetch_all(&mut *conn).await? {
                        let hour = usize::try_from(row.try_get::<i64, _>("place")?).unwrap_or(usize::MAX);
                        let Some(counted) = forecast.get_mut(hour) else { continue };
                        counted.jobs += u32::try_from(row.try_get::<i64, _>("jobs")?).unwrap_or(0);
                        counted.more |= i64::from(counted.jobs) >= MAX_IN_AN_HOUR;
                    }
                }
                Ok(forecast)
            })
        })
        .await
    }

    /// List the schedules that are not paused and tick before `end`, in the order of their next ticks, at most 2,000.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn ticking_before(&self, end: Timestamp) -> Result<Ahead, StoreError> {
        on_pool(&self.shared.pools.reads, "read which schedules tick", move |conn, _| {
            Box::pin(async move {
                let sql = "SELECT cron, every_ms, anchor, zone, dst, next_at FROM schedules FORCE INDEX (schedules_next) \
                           WHERE next_at < ? AND paused_at IS NULL ORDER BY next_at LIMIT ?";
                let most = i64::try_from(MAX_SCHEDULES).unwrap_or(i64::MAX);
                let mut rows = statement(sql.to_owned()).bind(end).bind(most + 1).fetch_all(conn).await?;
                let mut ahead = Ahead { more: rows.len() > MAX_SCHEDULES, ..Ahead::default() };
                rows.truncate(MAX_SCHEDULES);
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
