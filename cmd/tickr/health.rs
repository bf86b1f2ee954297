//! `tickr health`: ask the probes of a running tickr, for images and units without another HTTP client.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::anyhow;
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::Value;

use crate::client::{self, Client};
use crate::{CommandResult, Failure};

pub(crate) fn command() -> Command {
    let command = Command::new("health").about("Ask a running tickr whether it is ready").long_about(
        "Ask a running tickr for /readyz, or with --live for /livez, and print its status. The exit code is 0 when it \
         is ready, and 1 when it is not or does not answer. It needs no API key. Without --url and TICKR_URL it asks \
         the address in TICKR_HTTP_ADDR, as the check of a container does.",
    );
    client::args(command).arg(
        Arg::new("live")
            .long("live")
            .action(ArgAction::SetTrue)
            .help("Ask only whether the process answers, which does not depend on MySQL"),
    )
}

pub(crate) fn run(matches: &ArgMatches) -> CommandResult {
    let beside = std::env::var("TICKR_HTTP_ADDR").ok().and_then(|addr| beside(&addr));
    let client = Client::from_matches_or(matches, beside.as_deref().unwrap_or(client::DEFAULT_URL))?;
    crate::run_to_end(async {
        if matches.get_flag("live") {
            print!("{}", client.get_text("/livez").await?);
            return Ok(());
        }
        let answer = client.probe("/readyz").await?;
        let (code, body) = (answer.status(), answer.json::<Value>().await.unwrap_or_default());
        let status = body["status"].as_str().ok_or_else(|| anyhow!(client::not_of_tickr(client.url(), code)))?;
        println!("{status}");
        if code.is_success() { Ok(()) } else { Err(Failure::quiet(1)) }
    })?
}

/// Return the URL of the tickr that listens on this address of the same machine. One that listens on every address also
/// listens on loopback.
fn beside(addr: &str) -> Option<String> {
    let addr = addr.trim();
    let host_and_port = match addr.parse::<SocketAddr>() {
        Ok(addr) if addr.port() == 0 => return None,
        Ok(addr) if addr.ip().is_unspecified() && addr.is_ipv4() => format!("{}:{}", Ipv4Addr::LOCALHOST, addr.port()),
        Ok(addr) if addr.ip().is_unspecified() => format!("[{}]:{}", Ipv6Addr::LOCALHOST, addr.port()),
        Ok(addr) => addr.to_string(),
        Err(_) => format!("{}:{}", Ipv4Addr::LOCALHOST, addr.strip_prefix("localhost:")?.parse::<u16>().ok()?),
    };
    Some(format!("http://{host_and_port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_for_all_is_asked_on_loopback_and_a_wrong_one_not_at_all() {
        for (addr, url) in [
            ("0.0.0.0:8080", Some("http://127.0.0.1:8080")),
            ("[::]:8080", Some("http://[::1]:8080")),
            ("10.0.0.5:7070", Some("http://10.0.0.5:7070")),
            (" localhost:7071", Some("http://127.0.0.1:7071")),
            ("127.0.0.1:0", None),
            ("", None),
            ("localhost", None),
        ] {
            assert_eq!(beside(addr).as_deref(), url, "{addr}");
        }
    }
}
