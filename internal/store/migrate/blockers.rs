//! Name the transactions that hold a table, as far as this account may see them.
//!
//! A statement that changes a table waits for every transaction that has read it, and every other statement on the
//! table waits behind it. The operator needs the connection's number to end it.

use sqlx::Row as _;

use crate::sql::session::Session;

/// The most connections to name.
const MAX_NAMED: usize = 3;

/// The exact holders, where the server keeps such records and the account may read them (MySQL's default, for administrators).
const BY_LOCKS: &str = "SELECT CAST(t.processlist_id AS SIGNED) AS connection, t.processlist_user AS account, \
     t.processlist_host AS host, CAST(t.processlist_time AS SIGNED) AS seconds \
     FROM performance_schema.metadata_locks l JOIN performance_schema.threads t ON t.thread_id = l.owner_thread_id \
     WHERE l.object_schema = DATABASE() AND l.object_name = ? AND l.lock_status = 'GRANTED' \
     AND t.processlist_id IS NOT NULL AND t.processlist_id <> CONNECTION_ID() \
     GROUP BY 1, 2, 3, 4 ORDER BY 4 DESC LIMIT 3";
/// Open transactions, the oldest first, for accounts with the PROCESS right. The server does not tell which tables they
/// hold. Those of other databases are named only if this database has none: an operator may end what is named here.
/// The text has the same parameter for a table.
const BY_TRANSACTIONS: &str = "SELECT CAST(t.trx_mysql_thread_id AS SIGNED) AS connection, p.user AS account, \
     p.host AS host, CAST(TIMESTAMPDIFF(SECOND, t.trx_started, NOW()) AS SIGNED) AS seconds \
     FROM information_schema.innodb_trx t JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id \
     WHERE t.trx_mysql_thread_id <> CONNECTION_ID() AND ? <> '' \
     AND (p.db = DATABASE() OR NOT EXISTS (SELECT 1 FROM information_schema.innodb_trx o \
     JOIN information_schema.processlist q ON q.id = o.trx_mysql_thread_id \
     WHERE q.db = DATABASE() AND q.id <> CONNECTION_ID())) \
     ORDER BY t.trx_started LIMIT 3";

/// Describe the transactions that block a change of `table`. Fails only with the connection.
pub(super) async fn describe(conn: &mut Session<'_>, table: &str) -> Result<String, sqlx::Error> {
    for sql in [BY_LOCKS, BY_TRANSACTIONS] {
        let rows = match sqlx::query(sql).bind(table).fetch_all(&mut *conn).await {
            Err(error @ sqlx::Error::Io(_)) => return Err(error),
            // A server that does not keep such records, or does not show them to this account, is no reason to fail.
            Err(_) => continue,
            Ok(rows) => rows,
        };
        let named: Vec<String> = rows.iter().take(MAX_NAMED).filter_map(|row| named(row).ok()).collect();
        if !named.is_empty() {
            return Ok(format!("open transactions hold it: {}; KILL with such a number ends one", named.join(", ")));
        }
    }
    Ok("open transactions hold it; an administrator finds them with SELECT trx_mysql_thread_id, trx_started FROM \
     information_schema.innodb_trx ORDER BY trx_started"
        .to_owned())
}

fn named(row: &sqlx::mysql::MySqlRow) -> Result<String, sqlx::Error> {
    let (id, user, host): (i64, Option<String>, Option<String>) =
        (row.try_get("connection")?, row.try_get("account")?, row.try_get("host")?);
    let since: Option<i64> = row.try_get("seconds")?;
    let (user, host) = (user.unwrap_or_default(), host.unwrap_or_default());
    Ok(format!("connection {id} ({user}@{host}, open for {} s)", since.unwrap_or_default()))
}
