//! The reads of `tickr verify` about limits by key.

use sqlx::Row;

use crate::StoreError;
use crate::rows::limits::{LimitKey, key_in, read_limits};
use crate::sql::connection;
use crate::verify::evidence::{Evidence, PAGE_LIMIT};

impl Evidence {
    /// Return the keys of limits of which more attempts run than the limit allows, with the number of those attempts and
    /// the limit. Attempts that began before the limit was last changed do not count: a lower limit stops no job.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    pub async fn exceeded_limits(&mut self) -> Result<Vec<(LimitKey, i64, u32)>, StoreError> {
        let read = async {
            let limits = read_limits(&mut self.conn).await?;
            let used = sqlx::query(
                "SELECT s.limit_name, s.limit_key, COUNT(*) AS running FROM limit_slots s FORCE INDEX (PRIMARY) \
                 STRAIGHT_JOIN owed o ON o.id = s.job_id AND o.state = 'executing' \
                 STRAIGHT_JOIN limits l ON l.name = s.limit_name \
                 AND o.started_at > l.changed_at + INTERVAL 2 SECOND WHERE s.kept_until IS NULL \
                 GROUP BY s.limit_name, s.limit_key",
            )
            .fetch_all(&mut self.conn)
            .await?;
            let mut exceeded = Vec::new();
            for row in &used {
                let (key, running): (LimitKey, i64) = (key_in(row)?, row.try_get("running")?);
                let set = limits.iter().find(|set| set.limit.name == key.limit);
                if let Some(most) = set.and_then(|set| set.limit.bounds_of(&key.key).concurrency)
                    && running > i64::from(most)
                {
                    exceeded.push((key, running, most));
                }
            }
            Ok(exceeded)
        };
        connection::within(PAGE_LIMIT, read).await.map_err(|e| StoreError::from_driver("read the slots of limits", &e))
    }
}
