//! `tickr events`: print the events of the whole cluster, through the API.

use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::Value;

use crate::CommandResult;
use crate::client::{self, Client};
use crate::print::{encoded, printable, text};
use crate::stream::{self, Stream, StreamEvent, until_signalled};

/// The parameters of the stream, as flags.
const WANTED: [(&str, &str, &str); 4] = [
    ("kind", "NAME", "Only events about jobs of this kind"),
    ("queue", "NAME", "Only events about this queue or its jobs"),
    ("schedule", "NAME", "Only events about this schedule"),
    ("type", "TYPES", "Only events of these types, such as settled,queue_paused"),
];
/// Fields that are printed first, in this order.
const FIRST: [&str; 4] = ["job", "kind", "queue", "schedule"];

pub(crate) fn command() -> Command {
    let flags = WANTED.map(|(name, value, help)| Arg::new(name).long(name).value_name(value).help(help));
    client::args(
        Command::new("events")
            .about("Follow the events of the whole cluster, one line per event")
            .long_about(
                "Print the events of the whole cluster until it is interrupted. The first events arrive about a second \
                 after the start. When the server restarts, the output continues after the last event. A `gap` event \
                 means that events are missing, a `reset` that the server no longer keeps the last event.",
            )
            .args(flags)
            .arg(stream::patience())
            .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print one JSON object per line")),
    )
}

pub(crate) fn run(matches: &ArgMatches) -> CommandResult {
    let client = Client::from_matches(matches)?;
    let (as_json, patience) = (matches.get_flag("json"), stream::patience_of(matches));
    let wanted = WANTED.iter().filter_map(|(name, ..)| {
        let value = matches.get_one::<String>(name)?;
        Some(format!("{name}={}", encoded(value)))
    });
    let wanted: Vec<String> = wanted.collect();
    let path = format!("/v1/events?{}", wanted.join("&"));
    crate::run_to_end(async {
        // An interrupt is the normal end of this command.
        let followed = until_signalled(follow(&client, path, patience, as_json), |_| 0).await?;
        Ok(followed.unwrap_or(Ok(()))?)
    })?
}

async fn follow(client: &Client, path: String, patience: Duration, as_json: bool) -> anyhow::Result<()> {
    let mut stream = Stream::open(client, path, patience, |word| eprintln!("tickr: {word}")).await?;
    while let Some(event) = stream.next().await? {
        if as_json {
            println!("{}", event.as_json());
        } else {
            println!("{}", line(&event));
        }
    }
    Ok(())
}

/// Format an event for operators: time, type, and every field, also fields that this binary does not know.
fn line(event: &StreamEvent) -> String {
    let fields = event.data.as_object();
    let value = |name: &str, value: &Value| {
        let said = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        format!(" {name}={}", printable(&said))
    };
    let mut line = format!("{:<24}  {:<16}", printable(&text(&event.data, "at")), printable(&event.kind));
    for name in FIRST {
        line.extend(event.data.get(name).map(|found| value(name, found)));
    }
    let last = ["at", "runner"];
    for (name, found) in fields.into_iter().flatten() {
        if !FIRST.contains(&name.as_str()) && !last.contains(&name.as_str()) {
            line.push_str(&value(name, found));
        }
    }
    line.extend(event.data.get("runner").map(|found| value("runner", found)));
    line
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lines_have_every_field_of_events_that_nobody_knows_yet() {
        let data = json!({"at": "2026-01-01T00:00:00.000Z", "runner": "r1", "mood": "\u{1b}[31mgood", "count": 2, "queue": "mail"});
        let event = StreamEvent { kind: "new_type".into(), id: None, data };
        assert_eq!(
            line(&event),
            "2026-01-01T00:00:00.000Z  new_type         queue=mail count=2 mood= [31mgood runner=r1"
        );
        let gap = StreamEvent { kind: "gap".into(), id: None, data: json!({"reason": "redis"}) };
        assert_eq!(line(&gap), format!("{:24}  gap              reason=redis", ""));
    }
}
