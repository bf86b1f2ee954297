//! `tickr migrate`: create or upgrade the tables. `tickr serve` does it as well.

use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command};
use tickr::app::connect_store;
use tickr::config::{Flags, Subset, parse_duration};
use tickr::store::{MIGRATION_PATIENCE, MigrateSettings};

use crate::CommandResult;

pub(crate) fn command() -> Command {
    let command = Command::new("migrate")
        .about("Create or upgrade the tables")
        .long_about(
            "Create the tables, or add to them what this binary needs. Only one process migrates a database at a time; \
             others wait for it. If it is killed, run it again: it continues with the step that it did not finish. It \
             needs the privileges CREATE and ALTER, and checks them before it changes anything.",
        )
        .arg(Arg::new("patience").long("patience").value_name("DURATION").value_parser(parse_duration).help(
            "How long to retry when other transactions lock a table, such as 30s or 1h [default: 10m]. Those \
             transactions are not interrupted",
        ));
    let command = command.arg(Arg::new("beside-another").long("beside-another").action(ArgAction::SetTrue).help(
        "Create the tables also if the database has those of another tickr with another table_prefix. Needed once: \
             otherwise a changed table_prefix would leave the jobs of the other tables alone",
    ));
    Flags::args(command, Subset::Only(&["mysql_url", "table_prefix", "log", "log_format"]))
}

pub(crate) fn run(matches: &ArgMatches) -> CommandResult {
    let loaded = crate::load(matches, &["mysql_url"])?;
    let patience: Option<Duration> = matches.get_one("patience").copied();
    let beside_another = matches.get_flag("beside-another");
    crate::runtime()?.block_on(async {
        let store = connect_store(&loaded.config).await?;
        let patience = patience.unwrap_or(MIGRATION_PATIENCE);
        let migrated =
            store.migrate_with(&MigrateSettings { patience, beside_another, ..MigrateSettings::default() }).await;
        store.close().await;
        migrated?;
        println!("the tables are up to date");
        Ok(())
    })
}
