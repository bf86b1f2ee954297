//! The ticks of the last day in slots of time, for the strip of schedules on the dashboard.

use async_recursion::async_recursion as boxed;
use sqlx::Row;

use crate::sql::batches::statement;
use crate::sql::clock::read_clock;
use crate::sql::connection::on_pool;
use crate::sql::error::corrupt;
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::{Name, Span, Timestamp, Window};

/// Most schedules of one reading.
pub const MAX_STRIPS: usize = 50;
/// Most records of ticks that are counted, of all schedules together.
const MAX_COUNTED: usize = 50_000;
/// Most records of one schedule. One that ticks each minute has fewer in a day.
const MAX_OF_ONE: usize = 1_500;

/// The ticks of some schedules in the slots of a day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TickStrips {
    /// The database's clock at the time of the read.
    pub at: Timestamp,
    /// The slots.
    pub window: Window,
    /// The schedules, in the order of the request.
    pub strips: Vec<TickStrip>,
}

/// The ticks of one schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TickStrip {
    /// Name of the schedule.
    pub schedule: Name,
    /// The counts, one for each slot.
    pub slots: Vec<TickCounts>,
    /// The oldest tick that was counted, if there are older ones in these slots that were not.
    pub counted_from: Option<Timestamp>,
}

/// The ticks of a schedule in one slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TickCounts {
    /// Number of ticks that made a job.
    pub fired: u32,
    /// Number of these jobs that failed for good.
    pub failed: u32,
    /// Number of ticks that were skipped.
    pub skipped: u32,
}

impl Store {
    /// Count the ticks of these schedules, at most [`MAX_STRIPS`], in the slots of the last day; of the first schedules
    /// by name if none is named. The newest ticks are counted when there are too many.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn tick_strips(&self, names: Vec<Name>) -> Result<TickStrips, StoreError> {
        let shared = self.shared.clone();
        on_pool(&self.shared.pools.reads, "count ticks of schedules", move |conn, _| {
            let (shared, mut names) = (shared.clone(), names.clone());
            Box::pin(async move {
                let at = read_clock(conn, &shared.clock).await?;
                let window = Span::Day.window(at);
                if names.is_empty() {
                    names = first_names(conn).await?;
                }
                names.truncate(MAX_STRIPS);
                let most = (MAX_COUNTED / names.len().max(1)).min(MAX_OF_ONE);
                let mut strips = Vec::new();
                for schedule in names {
                    strips.push(strip(conn, schedule, window, most).await?);
                }
                Ok(TickStrips { at, window, strips })
            })
        })
        .await
    }
}

async fn first_names(conn: &mut Session<'_>) -> Result<Vec<Name>, sqlx::Error> {
    let sql = "SELECT name FROM schedules ORDER BY name LIMIT ?";
    let found = sqlx::query(sql).bind(MAX_STRIPS as u32).fetch_all(conn).await?;
    found.iter().map(|row| row.try_get::<String, _>(0)?.parse().map_err(|_| corrupt("name"))).collect()
}

async fn strip(conn: &mut Session<'_>, schedule: Name, window: Window, most: usize) -> Result<TickStrip, sqlx::Error> {
    let width = i64::from(window.step.seconds());
    let to = window.from + window.step.width() * window.steps as i32;
    // Bounded by the inner SELECT: it reads the newest records by the primary key.
    let sql = format!(
        "SELECT CAST(TIMESTAMPDIFF(SECOND, ?, due_at) DIV {width} AS SIGNED) AS slot, \
         CAST(SUM(outcome = 'fired') AS SIGNED) AS fired, CAST(SUM(d.job_id IS NOT NULL) AS SIGNED) AS failed, \
         CAST(SUM(IF(outcome = 'skipped', many, 0)) AS SIGNED) AS skipped, MIN(due_at) AS oldest, \
         COUNT(*) AS counted FROM (SELECT due_at, outcome, ticks AS many, job_id FROM ticks FORCE INDEX (PRIMARY) \
         WHERE schedule = ? AND due_at >= ? AND due_at < ? ORDER BY due_at DESC, number DESC LIMIT ?) t \
         LEFT JOIN dead_letters d ON d.job_id = t.job_id GROUP BY slot"
    );
    let query = statement(sql).bind(window.from).bind(schedule.as_str().to_owned()).bind(window.from).bind(to);
    let mut slots = vec![TickCounts::default(); window.steps];
    let (mut counted, mut oldest) = (0, None::<Timestamp>);
    for row in &query.bind(most as u32).fetch_all(conn).await? {
        let count = |column| row.try_get::<i64, _>(column).map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        let first: Timestamp = row.try_get("oldest")?;
        counted += row.try_get::<i64, _>("counted")?;
        oldest = Some(oldest.map_or(first, |oldest| oldest.min(first)));
        if let Some(slot) = usize::try_from(row.try_get::<i64, _>("slot")?).ok().and_then(|slot| slots.get_mut(slot)) {
            *slot = TickCounts { fired: count("fired")?, failed: count("failed")?, skipped: count("skipped")? };
        }
    }
    let counted_from = oldest.filter(|_| counted >= most as i64);
    Ok(TickStrip { schedule, slots, counted_from })
}
