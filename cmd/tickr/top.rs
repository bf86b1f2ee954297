//! `tickr top`: a live view of queues, rates, lateness, runners and the newest dead letters, through the API.

use std::collections::VecDeque;
use std::io::IsTerminal as _;
use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use clap::{Arg, ArgAction, ArgMatches, Command};
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::terminal::disable_raw_mode;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Sparkline, Table};
use ratatui::{Frame, Terminal};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::CommandResult;
use crate::client::{self, Client};
use crate::json::Json;
use crate::print::{duration_text, number, printable, text};
use crate::runners;
use crate::stream::until_signalled;

/// Interval between two reads of the API.
const READ_EVERY: Duration = Duration::from_secs(1);
/// Longest time of one read while the screen is up.
const READ_LIMIT: Duration = Duration::from_secs(15);
/// Number of seconds of rates on the screen.
const HISTORY: usize = 180;
/// Number of dead letters on the screen.
const DEAD_LETTERS: usize = 8;

pub(crate) fn command() -> Command {
    let flag = |name: &'static str, help: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue).help(help);
    client::args(
        Command::new("top")
            .about("Watch queues, rates, lateness, runners and dead letters live")
            .long_about(
                "Read the API once a second and show it. Press q to leave. Rates are those of all runners together, unless \
                 marked otherwise.",
            )
            .arg(flag("once", "Print the screen once and exit; the default when the output is not a terminal"))
            .arg(flag("json", "Print the data of one read as JSON")),
    )
}

pub(crate) fn run(matches: &ArgMatches) -> CommandResult {
    let client = Client::from_matches(matches)?;
    let url = matches.get_one::<String>("url").cloned().unwrap_or_default();
    crate::run_to_end(async {
        if matches.get_flag("json") {
            println!("{:#}", read(&client).await?);
            return Ok(());
        }
        let mut screen = Screen::new(url);
        // A server that cannot be reached is reported before the terminal is taken over.
        screen.take(Ok(read(&client).await?.into_value()), Instant::now());
        if matches.get_flag("once") || !std::io::stdout().is_terminal() {
            print!("{}", screen.as_text(100, 40)?);
            return Ok(());
        }
        let outcome = until_signalled(watch(&client, &mut screen), exit_code).await;
        ratatui::restore();
        outcome?.unwrap_or(Ok(()))?;
        Ok(())
    })?
}

/// Return the exit code for a signal that comes while nothing reads the terminal. Give the terminal back as far as that
/// needs no output, which would wait: the next program there gets keys as it expects them.
fn exit_code(_: &str) -> u8 {
    let _ = disable_raw_mode();
    0
}

/// Read everything that the screen shows.
async fn read(client: &Client) -> anyhow::Result<Json> {
    // Open dead letters, in the order of their failures: a job that was enqueued long ago may have failed just now.
    let failed = format!("/v1/dead-letters?order=time&limit={DEAD_LETTERS}");
    let (stats, queues, runners, dead_letters) =
        tokio::join!(client.get("/v1/stats"), client.get("/v1/queues"), client.get("/v1/runners"), client.get(&failed));
    let mut all = Json::from(json!({})).with("stats", &stats?);
    for (name, answer) in [("queues", queues), ("runners", runners), ("dead_letters", dead_letters)] {
        all = all.with(name, &Json::list(&answer?.rows("data")));
    }
    Ok(all)
}

/// Wait for the next tick of the clock, then read. A server that hangs is an error, after as long as in the dashboard.
async fn next_reading(client: &Client, clock: &mut tokio::time::Interval) -> anyhow::Result<Value> {
    clock.tick().await;
    let reading = tokio::time::timeout(READ_LIMIT, read(client)).await;
    let reading = reading.map(|read| read.map(Json::into_value));
    reading.unwrap_or_else(|_| Err(anyhow!("no answer within {} s", READ_LIMIT.as_secs())))
}

async fn watch(client: &Client, screen: &mut Screen) -> anyhow::Result<()> {
    let mut terminal = ratatui::try_init()?;
    let (keys, mut pressed) = mpsc::channel(16);
    // Reading keys blocks. The thread ends with the process.
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            if keys.blocking_send(event).is_err() {
                return;
            }
        }
    });
    let mut clock = tokio::time::interval(READ_EVERY);
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        // Keys are heard while the server is slow.
        let mut reading = pin!(next_reading(client, &mut clock));
        let reading = loop {
            terminal.draw(|frame| screen.draw(frame))?;
            tokio::select! {
                reading = &mut reading => break reading,
                event = pressed.recv() => match event {
                    Some(Event::Key(key)) if key.kind == KeyEventKind::Press => {
                        let interrupt = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
                        if interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                            return Ok(());
                        }
                    }
                    Some(_) => {}
                    None => return Ok(()),
                },
            }
        };
        screen.take(reading, Instant::now());
    }
}

/// State of the screen.
struct Screen {
    url: String,
    reading: Value,
    /// Error of the last read, if it failed. The data of the read before it stay on the screen.
    trouble: Option<String>,
    /// Total numbers of jobs accepted and ended, and the time of the read.
    totals: Option<(Instant, i64, i64)>,
    /// True when the counts of unfinished jobs were lower bounds at the last read.
    floors: bool,
    /// True when the newest rate of accepted jobs is that of one runner, because lower bounds give no rate.
    own_in: bool,
    /// Jobs accepted and ended per second, the newest last.
    rates: VecDeque<(u64, u64)>,
}

impl Screen {
    fn new(url: String) -> Self {
        let (reading, rates) = (Value::Null, VecDeque::new());
        Self { url, reading, trouble: None, totals: None, floors: false, own_in: false, rates }
    }

    fn take(&mut self, reading: anyhow::Result<Value>, at: Instant) {
        let reading = match reading {
            Ok(reading) => reading,
            Err(error) => {
                self.trouble = Some(printable(&format!("{error:#}")));
                return;
            }
        };
        self.trouble = None;
        let states = reading.pointer("/stats/states").and_then(Value::as_object);
        let count = |name: &str| states.and_then(|states| states.get(name)).and_then(Value::as_i64).unwrap_or(0);
        let ended = count("completed") + count("failed") + count("cancelled");
        let accepted = ended + count("waiting") + count("retrying") + count("executing");
        let exact = reading.pointer("/stats/exact").and_then(Value::as_bool) != Some(false);
        if let Some((before, accepted_before, ended_before)) = self.totals {
            let seconds = at.duration_since(before).as_secs_f64().max(0.001);
            // An operator's retry makes the number of ended jobs smaller.
            let rate = |now: i64, before: i64| ((now - before).max(0) as f64 / seconds).round() as u64;
            // Where the counts of unfinished jobs are lower bounds, the number of accepted jobs cannot be computed from
            // them.
            let own = reading.pointer("/stats/rates/accepted_per_second").and_then(Value::as_f64).unwrap_or(0.0);
            self.own_in = !exact || self.floors;
            let accepted = if self.own_in { own.round() as u64 } else { rate(accepted, accepted_before) };
            self.rates.push_back((accepted, rate(ended, ended_before)));
            if self.rates.len() > HISTORY {
                self.rates.pop_front();
            }
        }
        (self.totals, self.floors) = (Some((at, accepted, ended)), !exact);
        self.reading = reading;
    }

    /// Render the screen as plain text.
    fn as_text(&self, width: u16, height: u16) -> anyhow::Result<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height))?;
        terminal.draw(|frame| self.draw(frame))?;
        let buffer = terminal.backend().buffer();
        let mut lines: Vec<String> = Vec::new();
        for y in 0..height {
            let line: String =
                (0..width).filter_map(|x| buffer.cell((x, y))).map(ratatui::buffer::Cell::symbol).collect();
            lines.push(line.trim_end().to_owned());
        }
        while lines.last().is_some_and(String::is_empty) {
            lines.pop();
        }
        Ok(lines.join("\n") + "\n")
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let list = |name: &str| self.reading.get(name).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let (queues, runners, dead_letters) = (list("queues"), list("runners"), list("dead_letters"));
        let rows = |count: usize| u16::try_from(count.min(12)).unwrap_or(12) + 2;
        let areas = Layout::vertical([
            Constraint::Length(3),
            Constraint::Length(5),
            Constraint::Length(rows(queues.len())),
            Constraint::Length(rows(runners.len())),
            Constraint::Min(2),
        ])
        .split(frame.area());
        frame.render_widget(Paragraph::new(self.headline()), areas[0]);
        self.draw_rates(frame, areas[1]);
        frame.render_widget(queue_table(queues), areas[2]);
        frame.render_widget(runner_table(runners), areas[3]);
        frame.render_widget(dead_letter_table(dead_letters), areas[4]);
    }

    fn headline(&self) -> Vec<Line<'static>> {
        let stats = self.reading.get("stats").cloned().unwrap_or_default();
        let part = |pointer: &str| stats.pointer(pointer).cloned().unwrap_or_default();
        let ms = |value: &Value| value.as_f64().map_or_else(|| "–".to_owned(), |ms| format!("{ms:.1} ms"));
        let states = part("/states");
        let health = part("/index/health").as_str().unwrap_or("unknown").to_owned();
        let lamp = if health == "fast" { Color::Green } else { Color::Yellow };
        let oldest = number(&part("/lateness"), "oldest_due_ms");
        let at = text(&stats, "at");
        let (title, server) = match &self.trouble {
            None => (format!("tickr top · {} · {at}", self.url), Span::raw("")),
            Some(trouble) => {
                let said = format!("{trouble} · figures of {at}");
                (format!("tickr top · {}", self.url), Span::styled(said, Style::new().fg(Color::Red)))
            }
        };
        let counts = ["waiting", "retrying", "executing", "completed", "failed", "cancelled"];
        let open = number(&stats, "open_dead_letters");
        let plus = if self.floors { "+" } else { "" };
        let capped = stats.get("open_dead_letters_exact") == Some(&Value::Bool(false));
        let more_open = if capped { "+" } else { "" };
        let count = |state: &&'static str| match (*state, open) {
            ("failed", open @ 1..) => format!("failed {} ({open}{more_open} open)", number(&states, state)),
            ("waiting" | "retrying" | "executing", _) => format!("{state} {}{plus}", number(&states, state)),
            _ => format!("{state} {}", number(&states, state)),
        };
        let counts: Vec<String> = counts.iter().map(count).collect();
        vec![
            Line::from(vec![Span::styled(title, Style::new().add_modifier(Modifier::BOLD)), Span::raw("  "), server]),
            Line::from(counts.join(" · ")),
            Line::from(vec![
                Span::raw("index "),
                Span::styled(health, Style::new().fg(lamp)),
                Span::raw(format!(
                    " · late p50 {} p99 {} (this runner, last minute) · oldest due {}",
                    ms(&part("/lateness/p50_ms")),
                    ms(&part("/lateness/p99_ms")),
                    duration_text(oldest)
                )),
            ]),
        ]
    }

    fn draw_rates(&self, frame: &mut Frame<'_>, area: Rect) {
        let halves = Layout::horizontal([Constraint::Percentage(50), Constraint::Percentage(50)]).split(area);
        let series = |of: fn(&(u64, u64)) -> u64, width: u16| -> Vec<u64> {
            let skip = self.rates.len().saturating_sub(usize::from(width.saturating_sub(2)));
            self.rates.iter().skip(skip).map(of).collect()
        };
        for (area, name, colour, of) in [
            (
                halves[0],
                if self.own_in { "in (this runner)" } else { "in" },
                Color::Cyan,
                (|rate: &(u64, u64)| rate.0) as fn(&(u64, u64)) -> u64,
            ),
            (halves[1], "out", Color::Green, (|rate: &(u64, u64)| rate.1) as fn(&(u64, u64)) -> u64),
        ] {
            let now = self.rates.back().map_or(0, of);
            let block = Block::new().borders(Borders::TOP).title(format!(" {name} {now}/s "));
            let data = series(of, area.width);
            frame.render_widget(Sparkline::default().block(block).data(data).style(Style::new().fg(colour)), area);
        }
    }
}

fn titled(
    rows: Vec<Row<'static>>,
    header: &[&'static str],
    widths: Vec<Constraint>,
    title: &'static str,
) -> Table<'static> {
    let header = Row::new(header.iter().map(|name| Cell::from(*name))).style(Style::new().add_modifier(Modifier::DIM));
    Table::new(rows, widths).header(header).block(Block::new().borders(Borders::TOP).title(title))
}

fn queue_table(queues: &[Value]) -> Table<'static> {
    let row = |queue: &Value| {
        let states = queue.get("states").cloned().unwrap_or_default();
        let paused = queue.get("paused").filter(|pause| !pause.is_null());
        let note = match paused {
            Some(pause) => printable(&format!("paused by {} {}", text(pause, "by"), text(pause, "reason"))),
            None if number(queue, "runners") == 0 => "no runner serves it".to_owned(),
            None => String::new(),
        };
        let limit = queue.get("concurrency").and_then(Value::as_u64);
        let limit = limit.map_or_else(|| "–".to_owned(), |limit| format!("{}/{limit}", number(queue, "permits")));
        let style = if note.is_empty() { Style::new() } else { Style::new().fg(Color::Yellow) };
        let mut cells = vec![text(queue, "name"), number(queue, "priority").to_string(), limit];
        let plus = if queue.get("exact").and_then(Value::as_bool) == Some(false) { "+" } else { "" };
        cells.extend(["waiting", "retrying", "executing"].map(|state| format!("{}{plus}", number(&states, state))));
        cells.push(number(queue, "open_dead_letters").to_string());
        cells.push(number(&states, "failed").to_string());
        cells.push(note);
        Row::new(cells).style(style)
    };
    // Queues that need attention come first.
    let mut queues: Vec<&Value> = queues.iter().collect();
    queues.sort_by_key(|queue| {
        let states = queue.get("states").cloned().unwrap_or_default();
        let stands = queue.get("paused").is_some_and(|pause| !pause.is_null());
        (!stands, u64::MAX - number(&states, "waiting") - number(&states, "retrying"))
    });
    let widths = [20, 4, 9, 8, 8, 8, 8, 8].map(Constraint::Length).into_iter().chain([Constraint::Min(10)]).collect();
    let header = ["QUEUE", "PRIO", "LIMIT", "WAITING", "RETRYING", "RUNNING", "OPEN", "FAILED", ""];
    titled(queues.into_iter().map(row).collect(), &header, widths, " queues ")
}

fn runner_table(runners: &[Value]) -> Table<'static> {
    let living = runners.iter().filter(|runner| runner.get("stopped_at").is_none_or(Value::is_null));
    let row = |runner: &Value| {
        let age = number(runner, "heartbeat_age_ms");
        let style = if runners::state(runner) == "silent" { Style::new().fg(Color::Red) } else { Style::new() };
        let queues = runner.get("queues").and_then(Value::as_array).into_iter().flatten();
        let queues: Vec<&str> = queues.filter_map(Value::as_str).collect();
        Row::new(vec![
            text(runner, "id"),
            text(runner, "version"),
            format!("{}/{}", number(runner, "busy_workers"), number(runner, "workers")),
            duration_text(age),
            queues.join(" "),
        ])
        .style(style)
    };
    let widths = [34, 10, 12, 10].map(Constraint::Length).into_iter().chain([Constraint::Min(10)]).collect();
    titled(
        living.map(row).collect(),
        &["RUNNER", "VERSION", "BUSY WORKERS", "HEARTBEAT", "QUEUES"],
        widths,
        " runners ",
    )
}

fn dead_letter_table(dead_letters: &[Value]) -> Table<'static> {
    let row = |job: &Value| {
        let error = printable(&text(job, "last_error").chars().take(120).collect::<String>());
        Row::new(vec![text(job, "finished_at"), text(job, "kind"), text(job, "id"), error])
    };
    let widths = [25, 14, 37].map(Constraint::Length).into_iter().chain([Constraint::Min(10)]).collect();
    titled(
        dead_letters.iter().map(row).collect(),
        &["FAILED AT", "KIND", "JOB", "ERROR"],
        widths,
        " newest open dead letters ",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(completed: i64, waiting: i64) -> Value {
        let queue = |name: &str, paused: Value| {
            json!({"name": name, "priority": 5, "concurrency": null, "permits": null, "paused": paused, "runners": 1,
                   "states": {"waiting": waiting}})
        };
        let paused = json!({"at": "2026-01-01T00:00:00Z", "by": "anyone (ada)", "reason": "\u{1b}[2Jdown"});
        json!({
            "stats": {"at": "2026-01-01T00:00:00.000Z", "states": {"completed": completed, "waiting": waiting},
                      "lateness": {"p50_ms": 1.25, "p99_ms": null, "oldest_due_ms": 125_000}, "index": {"health": "degraded"}},
            "queues": [queue("default", Value::Null), queue("mail", paused)],
            "runners": [
                {"id": "box-1", "version": "0.1.0", "busy_workers": 3, "workers": 64, "heartbeat_age_ms": 900, "queues": ["default"], "stopped_at": null},
                {"id": "box-0", "version": "0.1.0", "busy_workers": 0, "workers": 64, "heartbeat_age_ms": 900, "queues": [], "stopped_at": "x"},
            ],
            "dead_letters": [{"finished_at": "2026-01-01T00:00:00Z", "kind": "email", "id": "j-1", "last_error": "no \u{1b}[31msuch box"}],
        })
    }

    #[test]
    fn the_screen_shows_rates_of_all_runners_problems_first_and_no_escapes() {
        let mut screen = Screen::new("http://127.0.0.1:7070".into());
        let start = Instant::now();
        screen.take(Ok(reading(100, 10)), start);
        screen.take(Ok(reading(150, 30)), start + Duration::from_secs(2));
        let shown = screen.as_text(120, 40).unwrap();
        for part in [
            " in 35/s",
            " out 25/s",
            "index degraded",
            "p50 1.2 ms p99 –",
            "oldest due 2 m",
            "waiting 30",
            "box-1",
            "3/64",
            "such box",
            "paused by anyone (ada)",
        ] {
            assert!(shown.contains(part), "{part} is not in\n{shown}");
        }
        assert!(!shown.contains('\u{1b}') && !shown.contains("box-0"), "{shown}");
        assert!(shown.find("mail").unwrap() < shown.find("default  ").unwrap(), "{shown}");

        // A lower bound is shown as one, and no rate is computed from it.
        let mut floor = reading(200, 100_000);
        (floor["stats"]["exact"], floor["queues"][0]["exact"]) = (json!(false), json!(false));
        floor["stats"]["rates"] = json!({"accepted_per_second": 7.2});
        screen.take(Ok(floor), start + Duration::from_secs(4));
        let shown = screen.as_text(120, 40).unwrap();
        for part in [" in (this runner) 7/s", " out 25/s", "waiting 100000+", "100000+ "] {
            assert!(shown.contains(part), "{part} is not in\n{shown}");
        }
        screen.take(Ok(reading(250, 30)), start + Duration::from_secs(6));

        screen.take(Err(anyhow::anyhow!("no tickr answers")), start + Duration::from_secs(7));
        let shown = screen.as_text(120, 40).unwrap();
        assert!(shown.contains("no tickr answers · figures of 2026-01-01T00:00:00.000Z"), "{shown}");
        assert!(shown.contains("waiting 30"), "{shown}");
        // The smallest terminal must not break the drawing.
        screen.as_text(1, 1).unwrap();
    }
}
