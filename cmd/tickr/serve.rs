//! `tickr serve`: run jobs and the HTTP API until a signal stops the process.

use clap::{ArgMatches, Command};
use tickr::app::Suspects;
use tickr::config::{Flags, Subset};
use tickr::handlers::Registry;

use crate::CommandResult;

pub(crate) fn command() -> Command {
    let command = Command::new("serve").about("Run jobs and the HTTP API until SIGTERM").long_about(
        "Run jobs and the HTTP API. The first SIGTERM, SIGINT or SIGHUP stops fetching and gives running jobs the \
         shutdown grace to finish; a second one returns them to their queues at once. The exit code is 0 in both \
         cases. Under nohup, SIGHUP does nothing; under systemd (NOTIFY_SOCKET) it reads the configuration again: the \
         log filter follows, and the log names the settings that need a restart.",
    );
    Flags::args(command, Subset::All)
}

pub(crate) fn run(matches: &ArgMatches) -> CommandResult {
    Ok(tickr::app::serve_with(matches, Registry::new(), Suspects::InChildren)?)
}
