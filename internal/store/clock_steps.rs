//! When the database's clock was set, as runners noticed it: evidence for a checker, which reads times.

use chrono::TimeDelta;
use sqlx::Row;
use uuid::Uuid;

use super::link::on_pool;
use super::{Store, StoreError};
use crate::job::{RunnerId, Timestamp};

/// Rows that are kept, the newest.
const MOST_KEPT: u32 = 1_000;
/// How far off a reading may be that was held up on its way.
const SLACK: TimeDelta = TimeDelta::seconds(2);

/// The clock was set between two readings of one runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockStep {
    /// What it showed at the reading before.
    pub before: Timestamp,
    /// What it showed at the reading after.
    pub after: Timestamp,
    /// By how much it was set, at the least.
    pub step: TimeDelta,
}

impl ClockStep {
    /// May what happened first have been given the time `first`, and what came later the earlier time `then`?
    #[must_use]
    pub fn explains(&self, first: Timestamp, then: Timestamp) -> bool {
        // The clock was set somewhere between the two readings.
        self.step < TimeDelta::zero()
            && first <= self.after - self.step + SLACK
            && then >= self.before + self.step - SLACK
    }
}

impl Store {
    /// Note that the clock was set.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn note_clock_step(&self, runner: &RunnerId, step: ClockStep) -> Result<(), StoreError> {
        let (id, runner) = (Uuid::now_v7(), runner.clone());
        on_pool(&self.shared.pools.loops, "note that the clock was set", move |conn, _| {
            let runner = runner.clone();
            Box::pin(async move {
                // A repetition finds its own row.
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
                let oldest: Option<Uuid> =
                    sqlx::query_scalar(newest).bind(MOST_KEPT).fetch_optional(&mut *conn).await?;
                if let Some(oldest) = oldest {
                    let delete = sqlx::query("DELETE FROM clock_steps WHERE id <= ? ORDER BY id LIMIT ?");
                    delete.bind(oldest).bind(MOST_KEPT).execute(conn).await?;
                }
                Ok(())
            })
        })
        .await
    }

    /// The steps that are known.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn clock_steps(&self) -> Result<Vec<ClockStep>, StoreError> {
        on_pool(&self.shared.pools.reads, "read when the clock was set", |conn, _| {
            Box::pin(async move {
                let sql = "SELECT before_at, after_at, step_us FROM clock_steps ORDER BY id DESC LIMIT ?";
                let found = sqlx::query(sql).bind(MOST_KEPT).fetch_all(conn).await?;
                let step = |row: &sqlx::mysql::MySqlRow| {
                    let step = TimeDelta::microseconds(row.try_get(2)?);
                    Ok(ClockStep { before: row.try_get(0)?, after: row.try_get(1)?, step })
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
        // Ended a minute before it was set, began again half an hour after.
        assert!(back.explains(at(-60), at(-60) - hour + TimeDelta::minutes(31)));
        assert!(back.explains(at(3), at(0) - hour));
        // By more than the clock was set, or after it had come to this time again.
        assert!(!back.explains(at(-60), at(-60) - hour));
        assert!(!back.explains(at(600), at(500)));
        assert!(!ClockStep { step: hour, ..back }.explains(at(-60), at(-61)));
    }
}
