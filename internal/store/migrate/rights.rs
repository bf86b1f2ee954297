//! Check the account's rights before the first statement, so that a migration begins only if it can be completed.
//!
//! Harmless statements find the rights out. SHOW GRANTS would have to be parsed with roles, patterns and partial
//! revokes. Both servers check the right before they look for the table, so a statement about a
//! table that does not exist is refused for the right (1142) or for the table (1146).

use std::collections::BTreeSet;

use sqlx::AssertSqlSafe;

use super::ledger::{DENIED, NO_SUCH_TABLE, TABLE, number};
use super::statement::{Statement, Verb};
use crate::sql::session::Session;

/// A right, and a statement that needs it and does nothing.
const PROBES: [(&str, &str); 6] = [
    ("SELECT", "SELECT 1 FROM tickr_no_such_table"),
    ("INSERT", "INSERT INTO tickr_no_such_table VALUES (1)"),
    ("UPDATE", "UPDATE tickr_no_such_table SET n = 1"),
    ("ALTER", "ALTER TABLE tickr_no_such_table ADD n INT"),
    ("INDEX", "CREATE INDEX n ON tickr_no_such_table (n)"),
    // The table of the applied migrations, which is needed first of all.
    ("CREATE", TABLE),
];

/// Return the rights that the account lacks for these statements. This creates the table of applied migrations.
pub(super) async fn lacking(
    conn: &mut Session<'_>,
    statements: &[Statement],
) -> Result<Vec<&'static str>, sqlx::Error> {
    let needed: BTreeSet<&str> = statements.iter().map(|statement| right(statement.verb)).collect();
    let mut lacking = Vec::new();
    for (right, probe) in PROBES {
        // Every migration reads its own row and writes it with an INSERT that may become an UPDATE.
        if !["SELECT", "INSERT", "UPDATE", "CREATE"].contains(&right) && !needed.contains(right) {
            continue;
        }
        match sqlx::raw_sql(AssertSqlSafe(probe)).execute(&mut *conn).await {
            Ok(_) => {}
            Err(e) if number(&e) == Some(NO_SUCH_TABLE) => {}
            Err(e) if number(&e).is_some_and(|number| DENIED.contains(&number)) => lacking.push(right),
            Err(e) => return Err(e),
        }
    }
    Ok(lacking)
}

const fn right(verb: Verb) -> &'static str {
    match verb {
        Verb::CreateTable => "CREATE",
        Verb::AlterTable => "ALTER",
        Verb::CreateIndex => "INDEX",
        Verb::Update | Verb::Other => "UPDATE",
    }
}

/// Tell the operator which account lacks which right, and the statement that grants it.
pub(super) async fn complaint(conn: &mut Session<'_>, database: &str, lacking: &[&str]) -> Result<String, sqlx::Error> {
    let account: String = sqlx::query_scalar("SELECT CURRENT_USER()").fetch_one(conn).await?;
    let (user, host) = account.rsplit_once('@').unwrap_or((&account, "%"));
    let rights = lacking.join(", ");
    Ok(format!(
        "the MySQL account '{user}'@'{host}' lacks {rights} on the database {database}, which the migration needs; \
         nothing was changed. An administrator gives it with\n  GRANT {rights} ON `{database}`.* TO '{user}'@'{host}';\n\
         or run `tickr migrate` with an account that has it"
    ))
}
