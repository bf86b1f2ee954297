//! `tickr conformance`: test a client of remote workers against the specification.

use std::io::{IsTerminal as _, Write as _};

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use tickr::conformance::{Report, Settings, run as test, scenarios};

use crate::stream::until_signalled;
use crate::{CommandResult, Failure, ending};

pub(crate) fn command() -> Command {
    let names: Vec<&str> = scenarios().map(|(name, _)| name).collect();
    Command::new("conformance")
        .about("Test a client of remote workers against docs/WORKERS.md")
        .long_about(
            "Start a server on the loopback that speaks the protocol of remote workers from memory, and COMMAND, a \
             program that serves the kinds conformance.… with the client's library. The server loses answers, says 503, \
             hands tokens out twice, cancels and drains, and compares every call with docs/WORKERS.md. Each scenario \
             starts COMMAND anew, with TICKR_URL (two addresses), TICKR_TOKEN, TICKR_QUEUES, TICKR_SLOTS, \
             TICKR_GRACE_MS, TICKR_LEASE_MS and TICKR_WAIT_MS, and ends its whole process group. It needs neither MySQL \
             nor Redis.\n\n\
             Signals go to the first process of COMMAND: a shell script must start the program with exec.\n\n\
             Exit code 0 when every scenario passed, 1 when one failed, 130 interrupted, 143 terminated.",
        )
        .arg(
            Arg::new("command")
                .value_name("COMMAND")
                .num_args(1..)
                .last(true)
                .required_unless_present("list")
                .help("Program of the client, with its arguments"),
        )
        .arg(Arg::new("list").long("list").action(ArgAction::SetTrue).help("List the scenarios"))
        .arg(
            Arg::new("only")
                .long("only")
                .value_name("NAME")
                .value_delimiter(',')
                .action(ArgAction::Append)
                .value_parser(PossibleValuesParser::new(names.clone()))
                .hide_possible_values(true)
                .help("Run these scenarios only"),
        )
        .arg(
            Arg::new("skip")
                .long("skip")
                .value_name("NAME")
                .value_delimiter(',')
                .action(ArgAction::Append)
                .value_parser(PossibleValuesParser::new(names))
                .hide_possible_values(true)
                .help("Leave these scenarios out, such as big-decimals for a language without exact decimals"),
        )
        .arg(
            Arg::new("parallel")
                .long("parallel")
                .value_name("N")
                .value_parser(value_parser!(u64).range(1..=64))
                .default_value("4")
                .help("Scenarios that run at the same time"),
        )
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON"))
        .arg(
            Arg::new("verbose")
                .long("verbose")
                .short('v')
                .action(ArgAction::SetTrue)
                .help("Print the calls and the output of the program with each failure"),
        )
}

pub(crate) fn run(matches: &ArgMatches) -> CommandResult {
    if matches.get_flag("list") {
        for (name, sentence) in scenarios() {
            println!("{name:20} {sentence}");
        }
        return Ok(());
    }
    let texts = |name: &str| matches.get_many::<String>(name).into_iter().flatten().cloned().collect::<Vec<String>>();
    let settings = Settings {
        command: texts("command"),
        only: texts("only"),
        skip: texts("skip"),
        parallel: matches.get_one::<u64>("parallel").map_or(4, |n| usize::try_from(*n).unwrap_or(4)),
    };
    let (as_json, verbose) = (matches.get_flag("json"), matches.get_flag("verbose"));
    let watched = std::io::stderr().is_terminal();
    let tested = test(&settings, |ended, of| {
        if watched {
            // The next count overwrites this one; blanks overwrite the last.
            let _ = write!(std::io::stderr(), "\r{ended} of {of} scenarios");
        }
    });
    // The programs are in process groups of their own, which no signal of a terminal reaches. They end with the
    // scenarios, and those end with the runtime.
    let report = crate::runtime()?.block_on(until_signalled(tested, ending::code_of))?;
    if watched {
        let _ = write!(std::io::stderr(), "\r{:40}\r", "");
    }
    let report = match report {
        Ok(report) => report,
        Err(signal) => return Err(ending::stopped(signal)),
    };
    if as_json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print(&report, verbose);
    }
    if report.ok { Ok(()) } else { Err(Failure::quiet(1)) }
}

fn print(report: &Report, verbose: bool) {
    for scenario in report.scenarios.iter().filter(|scenario| !scenario.skipped) {
        println!("{:7} {:20} {:5.1} s", if scenario.ok { "ok" } else { "FAILED" }, scenario.name, scenario.seconds);
    }
    for scenario in report.scenarios.iter().filter(|scenario| !scenario.ok) {
        println!("\nFAILED  {}\n  docs/WORKERS.md: {}", scenario.name, scenario.sentence);
        for broken in &scenario.broken {
            let during =
                if broken.during == scenario.name { String::new() } else { format!(" (during {})", broken.during) };
            println!("  seen{during}: {}\n  expected: {}", broken.seen, broken.expected);
        }
        if verbose {
            for line in &scenario.traffic {
                println!("    {}", line);
            }
            for line in scenario.output.lines() {
                println!("    > {}", line);
            }
        }
    }
    println!(
        "\n{} passed, {} failed, {} left out, in {:.0} s",
        report.passed, report.failed, report.skipped, report.seconds
    );
}
