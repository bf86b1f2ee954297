//! `tickr migrate`: bring the tables to the shape this binary needs. `serve` does it as well.

use clap::{ArgMatches, Command};
use tickr::app::connect_store;
use tickr::config::{Flags, Subset};

use crate::Done;

pub(crate) fn command() -> Command {
    let command = Command::new("migrate").about("Create or upgrade the tables");
    Flags::args(command, Subset::Only(&["mysql_url", "log", "log_format"]))
}

pub(crate) fn run(matches: &ArgMatches) -> Done {
    let loaded = crate::load(matches, &["mysql_url"])?;
    crate::runtime()?.block_on(async {
        let store = connect_store(&loaded.config).await?;
        let migrated = store.migrate().await;
        store.close().await;
        migrated?;
        println!("the tables are up to date");
        Ok(())
    })
}
