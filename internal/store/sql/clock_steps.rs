//! Steps of the database's clock that runners noticed. `tickr verify` needs them, because it compares times, and so
//! does a runner that starts after a step.

use std::collections::BTreeSet;

use async_recursion::async_recursion as boxed;
use chrono::TimeDelta;
use sqlx::Row;
use sqlx::mysql::MySqlRow;
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

    /// Return what the clock showed at most before it was set.
    #[must_use]
    pub fn at_most(&self) -> Timestamp {
        self.after - self.step
    }

    /// Return true if another runner may have seen the same step like this.
    fn may_be(&self, other: &Self) -> bool {
        (self.step - other.step).abs() <= SLACK.min(self.step.abs() / 2)
            && self.before <= other.at_most() + SLACK
            && other.before <= self.at_most() + SLACK
    }
}

impl Store {
    /// Record a step of the clock. Deletes the oldest rows, so that at most 1,000 remain.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
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

    /// Return the recorded steps, oldest first. A step that several runners recorded counts once.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn distinct_clock_steps(&self) -> Result<Vec<ClockStep>, StoreError> {
        on_pool(&self.shared.pools.loops, "read earlier clock steps", |conn, _| {
            Box::pin(async move {
                let sql = "SELECT runner, before_at, after_at, step_us FROM clock_steps ORDER BY id DESC LIMIT ?";
                let found = sqlx::query(sql).bind(MAX_KEPT).fetch_all(conn).await?;
                let mut recorded: Vec<(String, ClockStep)> = Vec::with_capacity(found.len());
                for row in found.iter().rev() {
                    recorded.push((row.try_get("runner")?, step_of(row)?));
                }
                Ok(distinct(recorded))
            })
        })
        .await
    }

    /// Read the recorded steps, newest first.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn clock_steps(&self) -> Result<Vec<ClockStep>, StoreError> {
        on_pool(&self.shared.pools.reads, "read clock steps", |conn, _| {
            Box::pin(async move {
                let sql = "SELECT before_at, after_at, step_us FROM clock_steps ORDER BY id DESC LIMIT ?";
                let found = sqlx::query(sql).bind(MAX_KEPT).fetch_all(conn).await?;
                found.iter().map(step_of).collect()
            })
        })
        .await
    }
}

fn step_of(row: &MySqlRow) -> Result<ClockStep, sqlx::Error> {
    let step = TimeDelta::microseconds(row.try_get("step_us")?);
    Ok(ClockStep { before: row.try_get("before_at")?, after: row.try_get("after_at")?, step })
}

/// Return each step once. Rows of one runner are different steps. Rows of two runners are the same step if it has the
/// same size and may have happened at the same moment. The row with the greater step is kept.
fn distinct(recorded: Vec<(String, ClockStep)>) -> Vec<ClockStep> {
    let mut steps: Vec<(BTreeSet<String>, ClockStep)> = Vec::new();
    for (runner, step) in recorded {
        let same = steps.iter_mut().find(|(runners, other)| !runners.contains(&runner) && other.may_be(&step));
        let Some((runners, known)) = same else {
            steps.push((BTreeSet::from([runner]), step));
            continue;
        };
        runners.insert(runner);
        if step.step.abs() > known.step.abs() {
            *known = step;
        }
    }
    steps.into_iter().map(|(_, step)| step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_several_runners_saw_counts_once_and_two_steps_count_twice() {
        let at = |ms: i64| chrono::DateTime::from_timestamp_millis(1_800_000_000_000 + ms).unwrap();
        let seen = |runner: &str, before: i64, after: i64, ms: i64| {
            let step = ClockStep { before: at(before), after: at(after + ms), step: TimeDelta::milliseconds(ms) };
            (runner.to_owned(), step)
        };
        let sizes = |recorded| distinct(recorded).iter().map(|step| step.step.num_milliseconds()).collect::<Vec<_>>();
        assert_eq!(sizes(vec![seen("a", 0, 2_000, 3_600_000), seen("b", 1_000, 4_000, 3_599_900)]), [3_600_000]);
        // One runner, another size, another direction, and another time.
        let hour = 3_600_000;
        assert_eq!(sizes(vec![seen("a", 0, 2_000, hour), seen("a", 2_000, 4_000, hour)]), [hour; 2]);
        assert_eq!(sizes(vec![seen("a", 0, 2_000, hour), seen("b", 0, 2_000, hour / 2)]), [hour, hour / 2]);
        assert_eq!(sizes(vec![seen("a", 0, 2_000, 500), seen("b", 0, 2_000, -500)]), [500, -500]);
        assert_eq!(sizes(vec![seen("a", 0, 2_000, hour), seen("b", 60_000, 62_000, hour)]), [hour; 2]);
    }

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
