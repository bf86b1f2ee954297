//! `tickr completions`: what a shell needs to complete the commands.

use clap::{Arg, ArgMatches, Command, value_parser};
use clap_complete::Shell;

use crate::Done;

pub(crate) fn command() -> Command {
    Command::new("completions")
        .about("Print completions for a shell: source <(tickr completions bash)")
        .arg(Arg::new("shell").required(true).value_parser(value_parser!(Shell)).help("The shell"))
}

pub(crate) fn run(matches: &ArgMatches, mut whole: Command) -> Done {
    if let Some(shell) = matches.get_one::<Shell>("shell") {
        // Printed at once: a reader who goes away in the middle ends it as it ends every other command.
        let mut script = Vec::new();
        clap_complete::generate(*shell, &mut whole, "tickr", &mut script);
        print!("{}", String::from_utf8_lossy(&script));
    }
    Ok(())
}
