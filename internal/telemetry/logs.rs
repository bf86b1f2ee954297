//! Logs: one line per event on standard error, for people or as JSON. Never payloads, headers or secrets.
//!
//! A line that is written while a request is answered or a job is run says which, whoever writes it: the fields of the
//! scope are put on the line, not on the work, so that work that logs nothing costs nothing. `docs/LOGS.md` has the fields.

use std::fmt::{self, Write as _};
use std::future::Future;
use std::io::IsTerminal;
use std::sync::{Arc, OnceLock};

use chrono::{SecondsFormat, Utc};
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::job::{JobId, Name, Place, RunnerId};

/// The fields of the lines, and what they mean: those that every line has first.
pub static LOG_FIELDS: &[(&str, &str)] = &[
    ("timestamp", "When, in UTC with microseconds, by the clock of the host"),
    ("level", "`ERROR`, `WARN`, `INFO`, `DEBUG` or `TRACE`"),
    ("target", "The module that speaks"),
    ("message", "What happened, in words that do not vary"),
    ("runner", "This runner, as in its attempts; once it has started"),
    ("request_id", "While a request is answered: the id of its `x-request-id`"),
    ("job", "The job that it is about, or that runs"),
    ("kind", "Its kind"),
    ("queue", "Its queue"),
    ("attempt", "Which attempt counts, 1 for the first"),
    ("trace_id", "The trace of the job, if it is known"),
    ("verdict", "What an attempt came to"),
    ("state", "The job's state after it"),
    ("error", "Why something failed; never the SQL, the URL or the payload"),
    ("elapsed_ms", "How long something took, in milliseconds"),
    ("method", "Of a request that was answered (level `debug`)"),
    ("route", "Its route, as a template"),
    ("status", "Its status"),
];

/// The table of `docs/LOGS.md`.
#[must_use]
pub fn log_fields_table() -> String {
    let mut out = String::from("| Field | Meaning |\n|---|---|\n");
    for (name, meaning) in LOG_FIELDS {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "| `{name}` | {meaning} |");
    }
    out
}

/// Crates that see what goes over the wire, and the least level at which they may speak. No filter that an operator sets
/// at night, looking for something else, makes them tell more.
const QUIET: &[(&str, Level)] = &[
    // It logs slow statements with their text.
    ("sqlx", Level::ERROR),
    ("h2", Level::WARN),
    ("hyper", Level::WARN),
    ("hyper_util", Level::WARN),
    ("lettre", Level::WARN),
    ("redis", Level::WARN),
    ("reqwest", Level::WARN),
    ("rustls", Level::WARN),
    ("tokio_rustls", Level::WARN),
    ("tower_http", Level::WARN),
];

/// What is being done while a line is written.
#[derive(Clone, Debug)]
pub enum LogScope {
    /// A request is answered.
    Request {
        /// Its id.
        id: Arc<str>,
    },
    /// A job is run.
    Attempt {
        /// The job.
        job: JobId,
        /// Its kind.
        kind: Name,
        /// Its queue.
        queue: Name,
        /// Which attempt counts.
        attempt: u32,
        /// Where it stands in its trace.
        place: Option<Place>,
    },
}

tokio::task_local! {
    static SCOPE: LogScope;
}

/// The runner of this process; of several, the first.
static RUNNER: OnceLock<String> = OnceLock::new();

/// From here on every line says which runner writes it.
pub fn log_as(runner: &RunnerId) {
    let _ = RUNNER.set(runner.to_string());
}

/// Do `work` so that its lines say what is being done.
pub async fn in_log_scope<T>(scope: LogScope, work: impl Future<Output = T>) -> T {
    SCOPE.scope(scope, work).await
}

/// The scope of the task that asks.
fn log_scope() -> Option<LogScope> {
    SCOPE.try_with(Clone::clone).ok()
}

impl LogScope {
    fn fields(&self, mut tell: impl FnMut(&'static str, Value)) {
        match self {
            Self::Request { id } => tell("request_id", Value::from(&**id)),
            Self::Attempt { job, kind, queue, attempt, place } => {
                tell("job", job.to_string().into());
                tell("kind", kind.as_str().into());
                tell("queue", queue.as_str().into());
                tell("attempt", (*attempt).into());
                if let Some(place) = place {
                    tell("trace_id", place.trace_id().into());
                }
            }
        }
    }
}

/// Set up logging for this process. The second call changes nothing, so tests may call it freely.
///
/// `filter` is in the syntax of `tracing`'s filters, such as `info` or `tickr=debug,info`; one that cannot be read
/// becomes `info`.
pub fn init_logs(filter: &str, json: bool) {
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new("info"));
    // Here for speed: what never shows need not be made.
    let quiet = |(target, level): &(&str, Level)| format!("{target}={level}").parse().ok();
    let filter = QUIET.iter().filter_map(quiet).fold(filter, EnvFilter::add_directive);
    let lines = if json {
        Lines::Json
    } else {
        // Colours are for terminals; in a file they are noise.
        Lines::Text(Format::default().with_target(false).with_ansi(std::io::stderr().is_terminal()))
    };
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).event_format(lines);
    if builder.try_init().is_ok() {
        log_panics(json);
    }
}

/// Panics as lines like all others. What a handler said when it panicked may quote its payload: it stands with the attempt,
/// where payloads stand.
fn log_panics(json: bool) {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let at = panic.location().map(ToString::to_string).unwrap_or_default();
        match log_scope() {
            Some(LogScope::Attempt { .. }) => tracing::error!(at, "a handler panicked; its attempt has the message"),
            _ if json => tracing::error!(at, error = panic.payload_as_str().unwrap_or(""), "panicked"),
            _ => usual(panic),
        }
    }));
}

/// How lines look.
enum Lines {
    Json,
    Text(Format<Full>),
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, ctx: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let (level, target) = (*event.metadata().level(), fields.target(event.metadata().target()));
        if is_quiet(&target, level) {
            return Ok(());
        }
        match self {
            Self::Json => {
                let told = fields.told;
                write_json(&mut out, level, &target, told)
            }
            Self::Text(format) => {
                let mut line = String::new();
                format.format_event(ctx, Writer::new(&mut line), event)?;
                let line = line.trim_end();
                write!(out, "{line}")?;
                if let Some(scope) = log_scope() {
                    let mut told = String::new();
                    scope.fields(|name, value| {
                        if !fields.told.contains_key(name) {
                            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                            let _ = write!(told, " {name}={text}");
                        }
                    });
                    write!(out, "{told}")?;
                }
                writeln!(out)
            }
        }
    }
}

fn is_quiet(target: &str, level: Level) -> bool {
    let root = target.split("::").next().unwrap_or(target);
    // A level is the greater the more it tells.
    QUIET.iter().any(|(quiet, least)| *quiet == root && level > *least)
}

fn write_json(out: &mut Writer<'_>, level: Level, target: &str, mut told: Map<String, Value>) -> fmt::Result {
    let message = told.remove("message").unwrap_or_else(|| "".into());
    if let Some(scope) = log_scope() {
        scope.fields(|name, value| {
            told.entry(name).or_insert(value);
        });
    }
    if let Some(runner) = RUNNER.get() {
        told.entry("runner").or_insert_with(|| runner.as_str().into());
    }
    let timestamp = Utc::now().to_rfc3339_opts(SecondsFormat::Micros, true);
    let target = Value::from(target);
    write!(out, r#"{{"timestamp":"{timestamp}","level":"{level}","target":{target},"message":{message}"#)?;
    for (name, value) in &told {
        // The four above are ours.
        if !matches!(name.as_str(), "timestamp" | "level" | "target") {
            write!(out, ",{}:{value}", Value::from(name.as_str()))?;
        }
    }
    writeln!(out, "}}")
}

/// The fields of an event.
#[derive(Default)]
struct Fields {
    told: Map<String, Value>,
}

impl Fields {
    /// Who speaks. Crates that use `log` are passed on under one target, with their own in a field.
    fn target(&mut self, target: &str) -> String {
        let own = self.told.get("log.target").and_then(Value::as_str).map(str::to_owned);
        self.told.retain(|name, _| !name.starts_with("log."));
        own.unwrap_or_else(|| target.to_owned())
    }

    fn tell(&mut self, field: &Field, value: impl Into<Value>) {
        self.told.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.tell(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.tell(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.tell(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.tell(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.tell(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.tell(field, format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_of_the_wire_stay_quiet_whatever_is_asked() {
        assert!(is_quiet("sqlx::query", Level::WARN) && !is_quiet("sqlx::query", Level::ERROR));
        assert!(is_quiet("hyper::proto::h1", Level::TRACE) && !is_quiet("hyper::proto::h1", Level::WARN));
        assert!(!is_quiet("tickr::store", Level::TRACE) && !is_quiet("hyperloop", Level::TRACE));
    }

    #[test]
    fn a_line_is_one_object_whatever_is_said() {
        let mut line = String::new();
        let told = Map::from_iter([
            ("message".to_owned(), Value::from("two\nlines \"quoted\"")),
            ("level".to_owned(), Value::from("mine")),
            ("n".to_owned(), Value::from(3)),
        ]);
        write_json(&mut Writer::new(&mut line), Level::INFO, "a\"b", told).unwrap();
        assert_eq!(line.matches('\n').count(), 1);
        let read: Map<String, Value> = serde_json::from_str(&line).unwrap();
        assert_eq!((&read["level"], &read["target"], &read["n"]), (&"INFO".into(), &"a\"b".into(), &3.into()));
        assert_eq!(read["message"], "two\nlines \"quoted\"");
    }
}
