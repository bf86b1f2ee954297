//! `tickr completions`: print the completion script of a shell.

use clap::{Arg, ArgMatches, Command, value_parser};
use clap_complete::Shell;

use crate::CommandResult;

pub(crate) fn command() -> Command {
    Command::new("completions")
        .about("Print the completion script of a shell, to load with: source <(tickr completions bash)")
        .arg(Arg::new("shell").required(true).value_parser(value_parser!(Shell)).help("The shell"))
}

pub(crate) fn run(matches: &ArgMatches, mut whole: Command) -> CommandResult {
    if let Some(shell) = matches.get_one::<Shell>("shell") {
        // Printed in one call, so that a pipe that closes early ends this command like every other command.
        let mut script = Vec::new();
        clap_complete::generate(*shell, &mut whole, "tickr", &mut script);
        print!("{}", String::from_utf8_lossy(&script));
    }
    Ok(())
}
