//! `tickr check --pending`: check that this binary can run the unfinished jobs, and the jobs that schedules will make.

use clap::{Arg, ArgAction, ArgMatches, Command};
use indicatif::ProgressBar;
use tickr::app::check_pending;
use tickr::config::{Flags, Subset};
use tickr::handlers::Registry;

use crate::{CommandResult, Failure};

pub(crate) fn command() -> Command {
    let command = Command::new("check")
        .about("Before a rollout: check that this binary can run the unfinished jobs and the schedules")
        .long_about(
            "With --pending, decode the payload of every unfinished job with the handlers of this binary, and list the \
             payloads that they would reject. Then check every schedule: its ticks, and the payload of its jobs. The \
             report names the kinds that living runners have in another version: a job that one version cannot read \
             waits for a runner of the other version and uses no attempt. A job of a kind that this binary does not \
             have waits for a runner that has it, and uses no attempt either. At last it connects to each outbox in \
             the database of an application, and says which table or right is missing. The check reads MySQL page by \
             page without locks, changes nothing, and may run beside a live system. It needs the tables of this binary: run \
             `tickr migrate` of it before.\n\n\
             Exit code 0 when nothing would be rejected, 1 when something would be rejected, or MySQL or an outbox \
             cannot be read.",
        )
        .arg(
            Arg::new("pending")
                .long("pending")
                .action(ArgAction::SetTrue)
                .required(true)
                .help("Check unfinished jobs and schedules"),
        )
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON"));
    Flags::args(command, Subset::All)
}

pub(crate) fn run(matches: &ArgMatches) -> CommandResult {
    let config = crate::load(matches, &["mysql_url"])?.config;
    let bar = ProgressBar::new_spinner().with_message("jobs checked");
    let found = crate::runtime()?.block_on(check_pending(&config, Registry::new(), |jobs| {
        bar.set_position(jobs);
        bar.set_message(format!("{jobs} jobs checked"));
        bar.tick();
    }))?;
    bar.finish_and_clear();
    if matches.get_flag("json") {
        println!("{:#}", serde_json::to_value(&found)?);
    } else {
        print!("{found}");
    }
    found.refusal().map_or(Ok(()), |refusal| Err(Failure::new(1, anyhow::anyhow!(refusal))))
}
