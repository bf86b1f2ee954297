//! `tickr health`: ask the probes of a running tickr, for images and units without another HTTP client.

use anyhow::anyhow;
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::Value;

use crate::client::{self, Client};
use crate::{CommandResult, Failure};

pub(crate) fn command() -> Command {
    let command = Command::new("health").about("Ask a running tickr whether it is ready").long_about(
        "Ask a running tickr for /readyz, or with --live for /livez, and print its status. The exit code is 0 when it \
         is ready, and 1 when it is not or does not answer. It needs no API key.",
    );
    client::args(command).arg(
        Arg::new("live")
            .long("live")
            .action(ArgAction::SetTrue)
            .help("Ask only whether the process answers, which does not depend on MySQL"),
    )
}

pub(crate) fn run(matches: &ArgMatches) -> CommandResult {
    let client = Client::from_matches(matches)?;
    crate::runtime()?.block_on(async {
        if matches.get_flag("live") {
            print!("{}", client.get_text("/livez").await?);
            return Ok(());
        }
        let answer = client.probe("/readyz").await?;
        let (code, body) = (answer.status(), answer.json::<Value>().await.unwrap_or_default());
        let status = body["status"].as_str().ok_or_else(|| anyhow!(client::not_of_tickr(client.url(), code)))?;
        println!("{status}");
        if code.is_success() { Ok(()) } else { Err(Failure::quiet(1)) }
    })
}
