//! Who holds a table that a migration waits for, as far as this account may see it.
//!
//! A statement that changes a table waits for every transaction that has read it, and every other statement on the
//! table waits behind it. The operator needs the connection that is in the way, so that it can be ended.

use sqlx::{MySqlConnection, Row as _};

/// Most connections that are named.
const MAX_NAMED: usize = 3;

/// Exact, where the server keeps such records and the account may read them (MySQL's default, for administrators).
const BY_LOCKS: &str = "SELECT CAST(t.processlist_id AS SIGNED), t.processlist_user, t.processlist_host, \
     CAST(t.processlist_time AS SIGNED) FROM performance_schema.metadata_locks l \
     JOIN performance_schema.threads t ON t.thread_id = l.owner_thread_id \
     WHERE l.object_schema = DATABASE() AND l.object_name = ? AND l.lock_status = 'GRANTED' \
     AND t.processlist_id IS NOT NULL AND t.processlist_id <> CONNECTION_ID() \
     GROUP BY 1, 2, 3, 4 ORDER BY 4 DESC LIMIT 3";
/// Open transactions, the oldest first, for accounts with the PROCESS right. The text has the same place for a table.
const BY_TRANSACTIONS: &str = "SELECT CAST(t.trx_mysql_thread_id AS SIGNED), p.user, p.host, \
     CAST(TIMESTAMPDIFF(SECOND, t.trx_started, NOW()) AS SIGNED) FROM information_schema.innodb_trx t \
     JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id \
     WHERE t.trx_mysql_thread_id <> CONNECTION_ID() AND ? <> '' ORDER BY t.trx_started LIMIT 3";

/// The transactions in the way of a change of `table`, in words.
pub(super) async fn of(conn: &mut MySqlConnection, table: &str) -> String {
    for sql in [BY_LOCKS, BY_TRANSACTIONS] {
        // A server that does not keep such records, or does not show them to this account, is no reason to fail.
        let Ok(rows) = sqlx::query(sql).bind(table).fetch_all(&mut *conn).await else { continue };
        let named: Vec<String> = rows.iter().take(MAX_NAMED).filter_map(|row| named(row).ok()).collect();
        if !named.is_empty() {
            return format!("open transactions hold it: {}; KILL with such a number ends one", named.join(", "));
        }
    }
    "open transactions hold it; an administrator finds them with SELECT trx_mysql_thread_id, trx_started FROM \
     information_schema.innodb_trx ORDER BY trx_started"
        .to_owned()
}

fn named(row: &sqlx::mysql::MySqlRow) -> Result<String, sqlx::Error> {
    let (id, user, host): (i64, Option<String>, Option<String>) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    let since: Option<i64> = row.try_get(3)?;
    let (user, host) = (user.unwrap_or_default(), host.unwrap_or_default());
    Ok(format!("connection {id} ({user}@{host}, open for {} s)", since.unwrap_or_default()))
}
