//! Other tickrs in the same database, known by the ledger of their migrations.
//!
//! A `table_prefix` that was changed, forgotten or misspelt names tables that do not exist. A migration would make them,
//! and the jobs in the tables of the other prefix would wait without a runner. So the first migration of a prefix stops
//! when it finds another tickr, unless the operator wants two.

use std::collections::BTreeSet;

use sqlx::AssertSqlSafe;

use super::ledger::{DENIED, MIGRATIONS, NO_SUCH_TABLE, number};
use crate::sql::session::Session;
use crate::sql::table_names::{LEDGER, TABLES, table_name};
use tickr_job::TablePrefix;

/// Return the prefixes of the other tickrs in this database, as far as the account may read their ledgers.
pub(super) async fn find(conn: &mut Session<'_>) -> Result<Vec<TablePrefix>, sqlx::Error> {
    let sql = "SELECT DISTINCT CAST(table_name AS CHAR) FROM information_schema.columns \
               WHERE table_schema = DATABASE() AND column_name = 'checksum' AND RIGHT(table_name, 10) = 'migrations' \
               ORDER BY 1";
    let named: Vec<String> = sqlx::query_scalar(sql).fetch_all(&mut *conn).await?;
    let mut found = Vec::new();
    for ledger in named {
        let Some(prefix) = prefix_of(&ledger).filter(|prefix| prefix != conn.prefix()) else { continue };
        // The table may belong to another program that uses the same driver. Only a tickr has these first migrations.
        let sql = format!("SELECT CAST(COUNT(*) AS SIGNED) FROM `{ledger}` WHERE version = ? AND checksum = ?");
        let mut of_tickr = 0;
        for migration in MIGRATIONS.iter().take(2) {
            let query = sqlx::query_scalar(AssertSqlSafe(sql.as_str())).bind(migration.version);
            of_tickr += match query.bind(&*migration.checksum).fetch_one(conn.driver()).await {
                Ok(count) => count,
                Err(e) if number(&e).is_some_and(|n| n == NO_SUCH_TABLE || DENIED.contains(&n)) => 0_i64,
                Err(e) => return Err(e),
            };
        }
        if of_tickr > 0 {
            found.push(prefix);
        }
    }
    Ok(found)
}

/// Return the prefix of the tickr with this ledger.
fn prefix_of(ledger: &str) -> Option<TablePrefix> {
    if ledger == LEDGER {
        return Some(TablePrefix::default());
    }
    let prefix = ledger.strip_suffix("migrations")?.parse().ok()?;
    (table_name(&prefix, LEDGER) == ledger).then_some(prefix)
}

/// Describe the prefix of a tickr.
pub(super) fn describe(prefix: &TablePrefix) -> String {
    if prefix.is_empty() { "no table_prefix".to_owned() } else { format!("table_prefix = \"{prefix}\"") }
}

/// Return a table that two tickrs would share, such as `batch_jobs` when one has the prefix `batch_` and the other none.
pub(super) fn shared_table(one: &TablePrefix, other: &TablePrefix) -> Option<String> {
    let names = |prefix| TABLES.iter().map(move |(name, _)| table_name(prefix, name)).collect::<BTreeSet<_>>();
    names(one).intersection(&names(other)).next().cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_names_the_prefix_of_its_tickr() {
        let of = |ledger| prefix_of(ledger).map(|prefix| prefix.to_string());
        assert_eq!(of("_sqlx_migrations"), Some(String::new()));
        assert_eq!(of("shop_migrations"), Some("shop_".to_owned()));
        assert_eq!((of("migrations"), of("Shop_migrations"), of("shop_jobs")), (None, None, None));
    }

    #[test]
    fn prefixes_that_would_share_a_table_are_found() {
        let prefix = |text: &str| text.parse::<TablePrefix>().unwrap_or_default();
        let shared = |one, other| shared_table(&prefix(one), &prefix(other));
        assert_eq!(shared("", "batch_").as_deref(), Some("batch_jobs"));
        assert_eq!(shared("a_", "a_batch_").as_deref(), Some("a_batch_jobs"));
        assert_eq!(shared("tickr_", "").as_deref(), Some("tickr_outbox"));
        assert_eq!((shared("", "shop_"), shared("a_", "b_")), (None, None));
    }
}
