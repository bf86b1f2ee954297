//! Check the account's rights: before the first statement, so that a migration begins only if it can be completed, and
//! at each start of a runner. Without one of the rights to rows, a runner would start jobs and could end none.
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
const PROBES: [(&str, &str); 7] = [
    ("SELECT", "SELECT 1 FROM tickr_no_such_table"),
    ("INSERT", "INSERT INTO tickr_no_such_table VALUES (1)"),
    ("UPDATE", "UPDATE tickr_no_such_table SET n = 1"),
    ("DELETE", "DELETE FROM tickr_no_such_table"),
    ("ALTER", "ALTER TABLE tickr_no_such_table ADD n INT"),
    ("INDEX", "CREATE INDEX n ON tickr_no_such_table (n)"),
    // The table of the applied migrations, which is needed first of all.
    ("CREATE", TABLE),
];

/// The rights that every runner needs, each with a statement that needs no other one and changes no row. An account
/// that has its rights on single tables is refused for a table that does not exist, so the statements name one of
/// tickr's.
const ROW_PROBES: [(&str, &str); 4] = [
    ("SELECT", "SELECT 1 FROM owed WHERE 1 = 0"),
    ("INSERT", "INSERT INTO owed (id) SELECT 1 FROM DUAL WHERE 1 = 0"),
    ("UPDATE", "UPDATE owed SET priority = 0 WHERE 1 = 0"),
    ("DELETE", "DELETE FROM owed WHERE 1 = 0"),
];

/// Return the rights that the account lacks for these statements. This creates the table of applied migrations.
pub(super) async fn lacking(
    conn: &mut Session<'_>,
    statements: &[Statement],
) -> Result<Vec<&'static str>, sqlx::Error> {
    let needed: BTreeSet<&str> = statements.iter().map(|statement| right(statement.verb)).collect();
    let mut lacking = Vec::new();
    for (right, probe) in PROBES {
        // Every migration reads its own row and writes it with an INSERT that may become an UPDATE. A runner also
        // deletes rows, so `tickr serve` must not migrate without that right and then end no job.
        if !["SELECT", "INSERT", "UPDATE", "DELETE", "CREATE"].contains(&right) && !needed.contains(right) {
            continue;
        }
        match is_denied(conn, probe).await {
            Ok(false) => {}
            Ok(true) => lacking.push(right),
            Err(e) if number(&e) == Some(NO_SUCH_TABLE) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(lacking)
}

/// Return the rights to rows that the account lacks, on a database with tables. Another error of the server, such as
/// that it is read-only, says nothing about rights.
pub(super) async fn lacking_for_rows(conn: &mut Session<'_>) -> Result<Vec<&'static str>, sqlx::Error> {
    let mut lacking = Vec::new();
    for (right, probe) in ROW_PROBES {
        match is_denied(conn, probe).await {
            Ok(true) => lacking.push(right),
            Err(e) if number(&e).is_none() => return Err(e),
            Ok(false) | Err(_) => {}
        }
    }
    Ok(lacking)
}

/// Run a probe. Return whether the server refuses it for want of a right.
async fn is_denied(conn: &mut Session<'_>, probe: &'static str) -> Result<bool, sqlx::Error> {
    match sqlx::raw_sql(AssertSqlSafe(probe)).execute(conn).await {
        Ok(_) => Ok(false),
        Err(e) if number(&e).is_some_and(|number| DENIED.contains(&number)) => Ok(true),
        Err(e) => Err(e),
    }
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
    // Runners need the rights to rows themselves, and leave those to tables to another account.
    let is_of_rows = |right: &&&str| ROW_PROBES.iter().any(|(of_rows, _)| of_rows == *right);
    let of_rows: Vec<&str> = lacking.iter().filter(is_of_rows).copied().collect();
    let needs = if of_rows.is_empty() { "the migration needs" } else { "tickr needs" };
    let otherwise = if of_rows.len() == lacking.len() {
        String::new()
    } else if of_rows.is_empty() {
        "\nor run `tickr migrate` with an account that has it".to_owned()
    } else {
        let of_rows = of_rows.join(", ");
        format!("\nor only {of_rows}, and `tickr migrate` runs with an account that has all of them")
    };
    Ok(format!(
        "the MySQL account '{user}'@'{host}' lacks {rights} on the database {database}, which {needs}; nothing was \
         changed. An administrator gives it with\n  GRANT {rights} ON `{database}`.* TO '{user}'@'{host}';{otherwise}"
    ))
}
