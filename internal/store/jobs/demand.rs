//! The demand of one queue for workers: its jobs that are due, and those that execute.
//!
//! Due and executing jobs stand at the front of their lanes, in front of jobs for later and of held ones. So a count
//! reads the front of at most ten ranges of one index, whatever else is in the queue.
//!
//! A job that waits for room in a runner, such as a report for a connection, is for a moment later. Another runner may
//! have room for it now, so it counts as due. It is found among the first ten thousand jobs for the next minute.
//!
//! An attempt that another system finishes occupies no worker and is not counted. One of which that system has reported
//! while its handler still runs is one of these already. Any number of them may stand in front of the due jobs, so they
//! do not use up the number of jobs that are counted.

use async_recursion::async_recursion as boxed;
use sqlx::Row;

use crate::jobs::lanes::lines_of;
use crate::rows::owed::RESTS;
use crate::sql::batches::statement;
use crate::sql::connection::on_pool;
use crate::sql::error::corrupt;
use crate::{Store, StoreError};
use tickr_job::{Name, State};

/// Jobs of each priority that are counted at most.
const MAX_COUNTED: i64 = 10_000;
/// The word beside the number of jobs that wait for room, in place of their state.
const RESTING: &str = "resting";

/// The jobs of a queue that need workers now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueDemand {
    /// Jobs that are due and wait for a worker, and those that wait for room in a runner. Other jobs for later and held
    /// jobs are not among them.
    pub due: i64,
    /// Jobs with a running attempt that occupies a worker.
    pub executing: i64,
    /// False if there are more jobs than are counted.
    pub exact: bool,
}

impl Store {
    /// Count the jobs of this queue that are due or execute, whether a runner serves it or not. At most ten thousand
    /// of each priority are counted.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn demand_of(&self, queue: Name) -> Result<QueueDemand, StoreError> {
        on_pool(&self.shared.pools.reads, "count the due jobs of a queue", move |conn, _| {
            let queue = queue.clone();
            Box::pin(async move {
                let mut demand = QueueDemand { exact: true, ..QueueDemand::default() };
                for lane in lines_of(conn, std::slice::from_ref(&queue)).await? {
                    // One statement, so that a job that is given back meanwhile is counted once.
                    let counted = statement(format!(
                        "SELECT state, COUNT(*) AS jobs FROM (SELECT o.state FROM owed o FORCE INDEX (owed_line) \
                         WHERE o.queue = ? AND o.priority = ? AND o.execute_at <= UTC_TIMESTAMP(3) \
                         AND NOT (o.state = 'executing' AND EXISTS (SELECT 1 FROM deferred_attempts f \
                         FORCE INDEX (deferred_attempts_job) WHERE f.job_id = o.id AND f.token = o.token \
                         AND f.look_at IS NOT NULL)) ORDER BY o.execute_at LIMIT ?) j GROUP BY state \
                         UNION ALL SELECT '{RESTING}' AS state, COUNT(*) AS jobs FROM (SELECT o.state, o.links \
                         FROM owed o FORCE INDEX (owed_line) WHERE o.queue = ? AND o.priority = ? \
                         AND o.execute_at > UTC_TIMESTAMP(3) AND o.execute_at < UTC_TIMESTAMP(3) + INTERVAL 61 SECOND \
                         ORDER BY o.execute_at LIMIT ?) r WHERE r.links & {RESTS} <> 0 AND r.state <> 'executing'",
                    ));
                    let counted = counted.bind(lane.queue.as_str()).bind(lane.priority.level()).bind(MAX_COUNTED);
                    let counted = counted.bind(lane.queue.as_str()).bind(lane.priority.level()).bind(MAX_COUNTED);
                    let mut of_lane = 0;
                    for row in &counted.fetch_all(&mut *conn).await? {
                        let (word, jobs): (&str, i64) = (row.try_get("state")?, row.try_get("jobs")?);
                        if word == RESTING {
                            demand.due += jobs;
                            demand.exact &= jobs < MAX_COUNTED;
                            continue;
                        }
                        let state = State::from_word(word).ok_or_else(|| corrupt("state"))?;
                        *if state == State::Executing { &mut demand.executing } else { &mut demand.due } += jobs;
                        of_lane += jobs;
                    }
                    demand.exact &= of_lane < MAX_COUNTED;
                }
                Ok(demand)
            })
        })
        .await
    }
}
