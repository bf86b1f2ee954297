//! `tickr serve`: run jobs and the API until told to stop.

use clap::{ArgMatches, Command};
use tickr::app::Suspects;
use tickr::config::{Flags, Subset};
use tickr::handlers::Registry;

use crate::Done;

pub(crate) fn command() -> Command {
    let command = Command::new("serve").about("Run jobs and the HTTP API until SIGTERM").long_about(
        "Run jobs and the HTTP API. The first SIGTERM or SIGINT stops fetching and gives running jobs the shutdown grace; \
         a second one gives them back at once. Exits 0 either way.",
    );
    Flags::args(command, Subset::All)
}

pub(crate) fn run(matches: &ArgMatches) -> Done {
    Ok(tickr::app::serve_with(matches, Registry::new(), Suspects::InChildren)?)
}
