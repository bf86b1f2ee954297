//! `tickr config`: print the effective settings and their sources, with secrets masked.

use clap::{Arg, ArgAction, ArgMatches, Command};
use tickr::config::{Config, Flags, Subset, markdown_table};

use crate::CommandResult;

pub(crate) fn command() -> Command {
    let command = Command::new("config").about("Show the effective settings and the source of each").arg(
        Arg::new("reference")
            .long("reference")
            .action(ArgAction::SetTrue)
            .help("Print the reference table of all settings as Markdown"),
    );
    Flags::args(command, Subset::All)
}

pub(crate) fn run(matches: &ArgMatches) -> CommandResult {
    if matches.get_flag("reference") {
        print!("{}", markdown_table());
        return Ok(());
    }
    let loaded = Config::load(&Flags::from_matches(matches), Config::process_env(), Config::usual_file())?;
    print!("{}", loaded.origins);
    for warning in &loaded.warnings {
        eprintln!("warning: {}: {}", warning.setting, warning.message);
    }
    Ok(())
}
