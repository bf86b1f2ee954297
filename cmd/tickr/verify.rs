//! `tickr verify`: check from the tables of a live system that every guarantee was kept.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use chrono::TimeDelta;
use clap::{Arg, ArgAction, ArgMatches, Command};
use comfy_table::{Table, presets};
use tickr::app::{connect_store, index_of, retention_of};
use tickr::config::{Config, Flags, Subset, parse_duration};
use tickr::verify::{Pace, Report, VerifySettings, VerifyVerdict, verify};

use crate::{CommandResult, Failure};

/// Exit code when a guarantee was broken.
const BROKEN: u8 = 1;
/// Exit code when no fault was found but not everything could be checked.
const UNCHECKED: u8 = 3;
/// Number of samples printed for each check. `--json` has more.
const MAX_PRINTED: usize = 5;

pub(crate) fn command() -> Command {
    let command = Command::new("verify")
        .about("Check from the tables that every guarantee was kept")
        .long_about(
            "Read MySQL page by page, each page in its own snapshot, compare it with Redis, and check every guarantee \
             that the tables can prove, each under its own name. It is safe beside a running system: it reads without \
             locks, and reports a difference between Redis and MySQL only when it lasts longer than tickr needs to \
             mend it (7 s). With --repair it mends Redis; it never changes MySQL.\n\n\
             Exit code 0 when every guarantee was kept, 1 when one was broken, 3 when no fault was found but not \
             everything could be checked: Redis did not answer, MySQL cannot be read, or a row cannot be read.",
        )
        .arg(
            Arg::new("since")
                .long("since")
                .value_name("DURATION")
                .value_parser(parse_duration)
                .help("Only jobs created within this time, such as 1h or 7d [default: all jobs]"),
        )
        .arg(Arg::new("repair").long("repair").action(ArgAction::SetTrue).help("Mend the wrong entries of Redis"))
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON"));
    let settings = [
        "mysql_url",
        "table_prefix",
        "redis_url",
        "redis_ca_file",
        "redis_cert_file",
        "redis_key_file",
        "redis_prefix",
        "index_partitions",
        "horizon",
        "retention_completed",
        "retention_cancelled",
        "retention_failed",
        "retention_discarded",
        "retention_audit",
        "log",
        "log_format",
    ];
    Flags::args(command, Subset::Only(&settings))
}

pub(crate) fn run(matches: &ArgMatches) -> CommandResult {
    let config = crate::load(matches, &["mysql_url", "redis_url"])?.config;
    let since: Option<Duration> = matches.get_one("since").copied();
    let (repair, as_json) = (matches.get_flag("repair"), matches.get_flag("json"));
    let report = crate::runtime()?.block_on(check(&config, since, repair))?;
    for error in &report.errors {
        eprintln!("tickr: {error}");
    }
    if as_json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print(&report);
    }
    match report.verdict {
        VerifyVerdict::Kept => Ok(()),
        VerifyVerdict::Broken => {
            let (checks, faults) = (report.faults().len(), report.faults().values().sum::<u64>());
            Err(Failure::new(BROKEN, anyhow::anyhow!("{faults} faults in {checks} of {} checks", report.checks.len())))
        }
        VerifyVerdict::Unchecked => Err(Failure::new(UNCHECKED, anyhow::anyhow!("not everything could be checked"))),
    }
}

async fn check(config: &Config, since: Option<Duration>, repair: bool) -> Result<Report, Failure> {
    let index = index_of(config)?;
    let store = match connect_store(config).await {
        Ok(store) => store,
        Err(error) if error.is_wrong_configuration() => return Err(Failure::from(error)),
        Err(error) => return Err(Failure::new(UNCHECKED, error)),
    };
    let settings = VerifySettings {
        // Before 1970 there was no job, and far before there is no date.
        since: since
            .and_then(|since| store.clock().now().checked_sub_signed(TimeDelta::from_std(since).ok()?))
            .filter(|since| since.timestamp() > 0),
        patience: VerifySettings::PATIENCE,
        repair,
        retention: retention_of(config),
        pace: Pace::Full,
    };
    let watched = std::io::stderr().is_terminal();
    let checked = verify(&store, &index, &settings, |jobs| {
        if watched {
            // The next count overwrites this one; blanks overwrite the last.
            let _ = write!(std::io::stderr(), "\r{jobs} jobs checked");
        }
    })
    .await;
    if watched {
        let _ = write!(std::io::stderr(), "\r{:40}\r", "");
    }
    store.close().await;
    checked.map_err(|error| Failure::new(UNCHECKED, error))
}

fn print(report: &Report) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["", "CHECK", "", "FAULTS", "HOLDS WHEN 0"]);
    for finding in &report.checks {
        let (mark, faults) = match (&finding.skipped, finding.faults) {
            (_, faults @ 1..) => ("✗", faults.to_string()),
            (Some(_), 0) => ("–", "not checked".to_owned()),
            (None, 0) if finding.repaired > 0 => ("✓", format!("0 ({} repaired)", finding.repaired)),
            (None, 0) => ("✓", "0".to_owned()),
        };
        table.add_row([mark, finding.name.as_str(), finding.guarantee, &faults, finding.meaning]);
    }
    println!("{table}");
    for finding in report.checks.iter().filter(|finding| finding.faults > 0) {
        println!("\n{}: {}", finding.name.as_str(), finding.faults);
        for sample in finding.samples.iter().take(MAX_PRINTED) {
            match sample.job {
                Some(job) => println!("  {job}  {}", sample.what),
                None => println!("  {}", sample.what),
            }
        }
        if finding.faults > MAX_PRINTED as u64 {
            println!("  … --json has more");
        }
    }
    println!();
    for why in &report.unchecked {
        println!("not checked: {why}");
    }
    for note in &report.notes {
        println!("note: {note}");
    }
    let looked_at = &report.looked_at;
    println!(
        "{} jobs ({} unfinished), {} attempts and {} scheduled entries, checked in {:.1} s",
        looked_at.jobs,
        looked_at.owed,
        looked_at.attempts,
        looked_at.scheduled,
        report.elapsed.as_secs_f64()
    );
    println!(
        "{}",
        match report.verdict {
            // G1 and G10 are about the answers that clients got, and no table has those.
            VerifyVerdict::Kept => "every promise that the tables can show was kept",
            VerifyVerdict::Broken => "promises were broken",
            VerifyVerdict::Unchecked => "no broken promise was found, but not everything could be checked",
        }
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_retention_on_which_a_check_depends_has_a_flag() {
        for kept in ["completed", "cancelled", "failed", "discarded", "audit"] {
            let flag = format!("--retention-{kept}");
            assert!(command().try_get_matches_from(["verify", &flag, "30d"]).is_ok(), "{flag}");
        }
    }
}
