//! Steps of the database's clock that runners noticed. `tickr verify` needs them, because it compares times.

use chrono::TimeDelta;
use sqlx::Row;
use uuid::Uuid;

use crate::sql::connection::on_pool;
use crate::{Store, StoreError};
use tickr_job::{RunnerId, Timestamp};

/// Number of rows that are kept: the newest.
const MAX_KEPT: u32 = 1_000;
/// The greatest error of a reading whose answer was delayed.
const SLACK: TimeDelta = TimeDelta::seconds(2);

/// A step of the database's clock between two readings of one runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockStep {
    /// The time of the database at the reading before the step.
    pub before: Timestamp,
    /// The time of the database at the reading after the step.
    pub after: Timestamp,
    /// The least size of the step. Negative when the clock was set back.
    pub step: TimeDelta,
}

impl ClockStep {
    /// Return true if this step can be the reason that an event was recorded at `first` and a later event at the
    /// earlier time `then`.
    #[must_use]
    pub fn can_explain(&self, first: Timestamp, then: Timestamp) -> bool {
        // The clock was set at some moment between the two readings.
        self.step < TimeDelta::zero()
            && first <= self.after - self.step + SLACK
            && then >= self.before + self.step - SLACK
    }
}

impl Store {
    /// Record a step of the clock. Deletes the oldest rows, so that at most 1,000 remain.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    pub async fn note_clock_step(&self, runner: &RunnerId, step: ClockStep) -> Result<(), StoreError> {
        let (id, runner) = (Uuid::now_v7(), runner.clone());
        on_pool(&self.shared.pools.loops, "record a clock step", move |conn, _| {
            let runner = runner.clone();
            Box::pin(async move {
                // A repeated run finds its own row.
                sqlx::query(
                    "INSERT IGNORE INTO clock_steps (id, runner, before_at, after_at, step_us) VALUES (?, ?, ?, ?, ?)",
                )
                .bind(id)
                .bind(runner.as_str())
                .bind(step.before)
                .bind(step.after)
                .bind(step.step.num_microseconds().unwrap_or(i64::MIN))
                .execute(&mut *conn)
                .await?;
                let newest = "SELECT id FROM clock_steps ORDER BY id DESC LIMIT 1 OFFSET ?";
                let oldest: Option<Uuid> = sqlx::query_scalar(newest).bind(MAX_KEPT).fetch_optional(&mut *conn).await?;
                if let Some(oldest) = oldest {
                    let delete = sqlx::query("DELETE FROM clock_steps WHERE id <= ? ORDER BY id LIMIT ?");
                    delete.bind(oldest).bind(MAX_KEPT).execute(conn).await?;
                }
                Ok(())
            })
        })
        .await
    }

    /// Read the recorded steps, newest first.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    pub async fn clock_steps(&self) -> Result<Vec<ClockStep>, StoreError> {
        on_pool(&self.shared.pools.reads, "read clock steps", |conn, _| {
            Box::pin(async move {
                let sql = "SELECT before_at, after_at, step_us FROM clock_steps ORDER BY id DESC LIMIT ?";
                let found = sqlx::query(sql).bind(MAX_KEPT).fetch_all(conn).await?;
                let step = |row: &sqlx::mysql::MySqlRow| {
                    let step = TimeDelta::microseconds(row.try_get("step_us")?);
                    Ok(ClockStep { before: row.try_get("before_at")?, after: row.try_get("after_at")?, step })
                };
                found.iter().map(step).collect()
            })
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_back_explains_what_happened_around_it_and_nothing_else() {
        let at = |seconds: i64| chrono::DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap();
        let hour = TimeDelta::hours(1);
        let back = ClockStep { before: at(0), after: at(3) - hour, step: -hour };
        // An attempt ended a minute before the clock was set back, and the next one began half an hour after.
        assert!(back.can_explain(at(-60), at(-60) - hour + TimeDelta::minutes(31)));
        assert!(back.can_explain(at(3), at(0) - hour));
        // Not explained: a difference greater than the step, and times after the clock had passed its old value again.
        assert!(!back.can_explain(at(-60), at(-60) - hour));
        assert!(!back.can_explain(at(600), at(500)));
        assert!(!ClockStep { step: hour, ..back }.can_explain(at(-60), at(-61)));
    }
}
