//! `tickr check --pending`: would this binary run what waits, and what schedules will make?

use clap::{Arg, ArgAction, ArgMatches, Command};
use indicatif::ProgressBar;
use tickr::app::check_pending;
use tickr::config::{Flags, Subset};
use tickr::handlers::Registry;

use crate::{Done, Failure};

pub(crate) fn command() -> Command {
    let command = Command::new("check")
        .about("Check with this binary what waits in MySQL, and what is scheduled, before a rollout")
        .long_about(
            "With --pending, decodes the payload of every unfinished job as the handlers of this binary would, and lists \
             what they would reject; then what every schedule asks for: when it ticks, and with which payload. Names the kinds that living runners have in another version: what one version cannot read waits, unburned, for a runner of the other. Reads MySQL page by page without locks, beside running systems, and changes \
             nothing. A job of a kind that this binary does not have waits for a runner that has it, and burns no attempt.\n\n\
             Exit code 0 when nothing would be rejected, 1 when something would, or when MySQL cannot be read.",
        )
        .arg(Arg::new("pending").long("pending").action(ArgAction::SetTrue).required(true).help("Check unfinished jobs and schedules"))
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON"));
    Flags::args(command, Subset::All)
}

pub(crate) fn run(matches: &ArgMatches) -> Done {
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
    let (jobs, schedules) = (found.failing(), &found.schedules);
    let error = match (jobs, schedules.failing) {
        (0, 0) => return Ok(()),
        (jobs, 0) => anyhow::anyhow!("{jobs} of {} unfinished jobs would be rejected", found.jobs()),
        (0, failing) => anyhow::anyhow!("{failing} of {} schedules would make no job", schedules.checked),
        (jobs, failing) => anyhow::anyhow!(
            "{jobs} of {} unfinished jobs and {failing} of {} schedules would be rejected",
            found.jobs(),
            schedules.checked
        ),
    };
    Err(Failure::new(1, error))
}
