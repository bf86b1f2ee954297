//! `tickr jobs watch ID`: follow one job to its end, through the API.

use std::io::IsTerminal as _;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use crate::client::{self, Client};
use crate::print::{encoded, number, printable, text};
use crate::stream::{self, Stream, StreamEvent, until_signalled};
use crate::{CommandResult, ending};

/// Interval of the spinner on a terminal.
const MOVES_EVERY: Duration = Duration::from_millis(120);

pub(crate) fn command() -> Command {
    client::args(
        Command::new("watch")
            .about("Follow a job to its end; the exit code shows how it ended")
            .long_about(
                "Follow a job to its end. Each change is printed as a line; progress is a bar on a terminal and lines \
                 elsewhere. When the server restarts, the output continues after the last event.\n\n\
                 Exit codes: 0 completed, 3 failed, 4 cancelled, 1 the job could not be followed, 2 wrong usage, \
                 130 interrupted, 143 terminated.",
            )
            .arg(Arg::new("id").required(true).value_name("ID").help("The job's id"))
            .arg(stream::patience())
            .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print one JSON object per line")),
    )
}

pub(crate) fn run(matches: &ArgMatches) -> CommandResult {
    let client = Client::from_matches(matches)?;
    let id = matches.get_one::<String>("id").map_or("", String::as_str);
    let bar = if matches.get_flag("json") || !std::io::stdout().is_terminal() {
        ProgressBar::hidden()
    } else {
        // Drawn on standard error, and only if that is a terminal as well.
        ProgressBar::new(100)
    };
    let mut screen = Screen { bar: bar.clone(), as_json: matches.get_flag("json"), seen: Seen::default() };
    crate::run_to_end(async {
        let following = follow(&client, id, stream::patience_of(matches), &mut screen);
        let ended = until_signalled(following, ending::code_of).await;
        bar.finish_and_clear();
        match ended? {
            Ok(done) => done,
            Err(signal) => Err(ending::stopped(signal)),
        }
    })?
}

async fn follow(client: &Client, id: &str, patience: Duration, screen: &mut Screen) -> CommandResult {
    let path = format!("/v1/jobs/{}", encoded(id));
    let bar = screen.bar.clone();
    let say = move |word: &str| bar.suspend(|| eprintln!("tickr: {word}"));
    let mut stream = Stream::open(client, format!("{path}/events"), patience, say).await?;
    while let Some(event) = stream.next().await? {
        screen.show(&event);
        if event.kind == "end" {
            screen.bar.finish_and_clear();
            return ended(client, &path, &event.data, screen.as_json).await;
        }
    }
    // The stream ended without the event `end`: the server sent it before. Read the job for its state.
    let job = client.get(&path).await?;
    ending::to_exit_code(&job, screen.as_json)
}

/// Exit with the code of the job's end. Events carry no error texts, so the job is read again for operators. If that
/// fails, the state alone has to do.
async fn ended(client: &Client, path: &str, event: &Value, as_json: bool) -> CommandResult {
    if !as_json
        && text(event, "state") == "failed"
        && let Ok(job) = client.get(path).await
    {
        return ending::to_exit_code(&job, as_json);
    }
    ending::to_exit_code(event, as_json)
}

/// Last state and progress that were shown. A stream that was opened again repeats them.
#[derive(Default)]
struct Seen {
    state: Value,
    progress: Value,
}

impl Seen {
    fn is_news(&mut self, event: &StreamEvent) -> bool {
        let said = match event.kind.as_str() {
            "state" => &mut self.state,
            "progress" => &mut self.progress,
            "attempt" => {
                self.progress = Value::Null;
                return true;
            }
            _ => return true,
        };
        let mut data = event.data.clone();
        // The time of the event makes no difference.
        if let Some(fields) = data.as_object_mut() {
            fields.remove("at");
        }
        let news = *said != data;
        *said = data;
        news
    }
}

struct Screen {
    bar: ProgressBar,
    as_json: bool,
    seen: Seen,
}

impl Screen {
    fn show(&mut self, event: &StreamEvent) {
        if !self.seen.is_news(event) {
            return;
        }
        if self.as_json {
            println!("{}", event.as_json());
            return;
        }
        self.draw(event);
        if let Some(line) = line(event).filter(|_| event.kind != "progress" || self.bar.is_hidden()) {
            self.bar.suspend(|| println!("{line}"));
        }
    }

    fn draw(&self, event: &StreamEvent) {
        if self.bar.is_hidden() {
            return;
        }
        let data = &event.data;
        let style = |template: &str| ProgressStyle::with_template(template).unwrap_or(ProgressStyle::default_bar());
        match event.kind.as_str() {
            "progress" => {
                self.bar.set_style(style("{bar:40} {pos:>3} % {elapsed} {wide_msg}"));
                self.bar.set_position(
                    data.get("percent").and_then(Value::as_f64).unwrap_or_default().clamp(0.0, 100.0) as u64,
                );
                self.bar.set_message(printable(&text(data, "note")));
            }
            "state" => {
                self.bar.set_style(style("{spinner} {elapsed} {wide_msg}"));
                self.bar.set_position(0);
                self.bar.reset_elapsed();
                self.bar.set_message(describe_state(data));
                self.bar.enable_steady_tick(MOVES_EVERY);
            }
            _ => {}
        }
    }
}

/// The state of a job, in words.
fn describe_state(state: &Value) -> String {
    let word = text(state, "state");
    let mut words = vec![printable(&word)];
    if ["waiting", "retrying"].contains(&word.as_str()) {
        words.push(format!("due {}", printable(&text(state, "execute_at"))));
    }
    if word == "executing" && !text(state, "cancel_requested_at").is_empty() {
        words.push("asked to stop".to_owned());
    }
    words.join(", ")
}

/// Format an event for operators. `None` for an event that repeats the lines before it, and for a type that this binary
/// does not know.
fn line(event: &StreamEvent) -> Option<String> {
    let data = &event.data;
    let (at, what, more) = match event.kind.as_str() {
        "state" => {
            let said = describe_state(data);
            let (word, more) = said.split_once(", ").unwrap_or((&said, ""));
            let attempt = match number(data, "attempt") {
                0 => String::new(),
                attempt => format!("attempt {attempt}"),
            };
            let parts: Vec<&str> = [attempt.as_str(), more].into_iter().filter(|part| !part.is_empty()).collect();
            (text(data, "at"), word.to_owned(), parts.join(", "))
        }
        "attempt" => {
            let (count, verdict) = (number(data, "number"), text(data, "verdict"));
            if verdict.is_empty() {
                (text(data, "started_at"), "attempt".to_owned(), format!("#{count} begun by {}", text(data, "runner")))
            } else {
                (text(data, "finished_at"), "attempt".to_owned(), format!("#{count} {verdict}"))
            }
        }
        "progress" => {
            let percent = data.get("percent").and_then(Value::as_f64).unwrap_or_default();
            (text(data, "at"), "progress".to_owned(), format!("{percent:.0} % {}", text(data, "note")))
        }
        // The state event before it has shown the end.
        _ => return None,
    };
    Some(printable(format!("{at:<24}  {what:<10}  {more}").trim_end()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(kind: &str, data: Value) -> StreamEvent {
        StreamEvent { kind: kind.into(), id: None, data }
    }

    #[test]
    fn what_is_told_again_after_a_break_is_shown_once() {
        let state = |at: &str, state: &str| event("state", json!({"at": at, "state": state}));
        let progress = |percent: u32| event("progress", json!({"at": "1", "percent": percent}));
        let mut seen = Seen::default();
        assert!(seen.is_news(&state("1", "waiting")) && !seen.is_news(&state("2", "waiting")));
        assert!(seen.is_news(&state("3", "executing")));
        assert!(seen.is_news(&progress(10)) && !seen.is_news(&progress(10)) && seen.is_news(&progress(20)));
        // Another attempt may report the same progress.
        assert!(seen.is_news(&event("attempt", json!({"number": 2}))) && seen.is_news(&progress(20)));
    }

    #[test]
    fn lines_say_when_what_and_how_far() {
        let at = "2026-01-01T00:00:00.000Z";
        let cases = [
            (
                event(
                    "state",
                    json!({"at": at, "state": "waiting", "execute_at": "2026-01-02T00:00:00.000Z", "attempt": 0}),
                ),
                Some("2026-01-01T00:00:00.000Z  waiting     due 2026-01-02T00:00:00.000Z"),
            ),
            (
                event("state", json!({"at": at, "state": "executing", "attempt": 2, "cancel_requested_at": at})),
                Some("2026-01-01T00:00:00.000Z  executing   attempt 2, asked to stop"),
            ),
            (
                event("attempt", json!({"number": 2, "runner": "r\u{7}1", "started_at": at, "verdict": null})),
                Some("2026-01-01T00:00:00.000Z  attempt     #2 begun by r 1"),
            ),
            (
                event("attempt", json!({"number": 2, "started_at": at, "finished_at": at, "verdict": "timed_out"})),
                Some("2026-01-01T00:00:00.000Z  attempt     #2 timed_out"),
            ),
            (
                event("progress", json!({"at": at, "percent": 41.6, "note": "half way"})),
                Some("2026-01-01T00:00:00.000Z  progress    42 % half way"),
            ),
            (event("end", json!({"state": "completed"})), None),
            (event("new_type", json!({"what": "ever"})), None),
        ];
        for (event, expected) in cases {
            assert_eq!(line(&event).as_deref(), expected);
        }
    }
}
