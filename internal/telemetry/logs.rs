//! Logs: one line per event on standard error, as text or as JSON. Never payloads, headers or secrets.
//!
//! A line that is written during a request or a job carries the fields of that scope, also if a dependency writes it.
//! The fields are added when a line is written, not when the work begins, so work that logs nothing costs nothing.
//! `docs/LOGS.md` lists the fields.

use std::cell::Cell;
use std::fmt::{self, Write as _};
use std::future::Future;
use std::io::IsTerminal;
use std::sync::{Arc, OnceLock};

use chrono::{SecondsFormat, Utc};
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, Registry, reload};

use super::attempt_log::{AttemptLog, attempt_log_layer, keep_attempt_logs};
use tickr_job::{JobId, Name, RunnerId, SpanContext};

/// The fields of the lines with their meanings. The fields of every line come first.
pub static LOG_FIELDS: &[(&str, &str)] = &[
    ("timestamp", "Time in UTC with microseconds, by the clock of the host"),
    ("level", "`ERROR`, `WARN`, `INFO`, `DEBUG` or `TRACE`"),
    ("target", "The module that writes the line"),
    ("message", "The event, in a fixed wording"),
    ("runner", "Id of this runner, as in its attempts; present after its start"),
    ("request_id", "During a request: its `x-request-id`"),
    ("job", "Id of the job that the line is about, or that runs"),
    ("kind", "Kind of the job"),
    ("queue", "Queue of the job"),
    ("attempt", "Number of attempts that the job has used, including this one"),
    ("trace_id", "Trace id of the job, if it has one"),
    ("verdict", "Verdict of an attempt"),
    ("state", "State of the job after the event"),
    ("error", "Cause of a failure; never contains the SQL, the URL or the payload"),
    ("elapsed_ms", "Duration in milliseconds"),
    ("method", "HTTP method of a finished request (level `debug`)"),
    ("route", "Route template of the request"),
    ("status", "HTTP status of the response"),
];

/// Return the table of `docs/LOGS.md`.
#[must_use]
pub fn log_fields_table() -> String {
    let mut out = String::from("| Field | Meaning |\n|---|---|\n");
    for (name, meaning) in LOG_FIELDS {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "| `{name}` | {meaning} |");
    }
    out
}

/// Crates that handle data of requests and connections, each with the most detailed level that is written. No filter of
/// an operator can make them log more.
const QUIET: &[(&str, Level)] = &[
    // sqlx logs slow statements with their text.
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

/// The work during which a line is written.
#[derive(Clone, Debug)]
pub enum LogScope {
    /// A request.
    Request {
        /// Id of the request.
        id: Arc<str>,
    },
    /// An attempt of a job.
    Attempt {
        /// The job.
        job: JobId,
        /// Kind of the job.
        kind: Name,
        /// Queue of the job.
        queue: Name,
        /// Number of attempts that the job has used, including this one.
        attempt: u32,
        /// Span context of the attempt.
        span_context: Option<SpanContext>,
        /// The log that is stored with the attempt.
        log: AttemptLog,
    },
}

tokio::task_local! {
    static SCOPE: LogScope;
}

/// The runner of this process; the first one if there are several.
static RUNNER: OnceLock<String> = OnceLock::new();

/// Add the id of this runner to every line from now on.
pub fn log_as(runner: &RunnerId) {
    let _ = RUNNER.set(runner.to_string());
}

/// Do `work` with a log scope, so that its lines carry the fields of the scope.
pub async fn in_log_scope<T>(scope: LogScope, work: impl Future<Output = T>) -> T {
    SCOPE.scope(scope, work).await
}

/// Return the scope of the current task.
fn log_scope() -> Option<LogScope> {
    SCOPE.try_with(Clone::clone).ok()
}

/// Use the log of the attempt that the current task executes, if it executes one.
pub(super) fn with_attempt_log<T>(work: impl FnOnce(&AttemptLog) -> T) -> Option<T> {
    let log = |scope: &LogScope| match scope {
        LogScope::Attempt { log, .. } => Some(work(log)),
        LogScope::Request { .. } => None,
    };
    SCOPE.try_with(log).ok().flatten()
}

impl LogScope {
    fn fields(&self, mut tell: impl FnMut(&'static str, Value)) {
        match self {
            Self::Request { id } => tell("request_id", Value::from(&**id)),
            Self::Attempt { job, kind, queue, attempt, span_context, log: _ } => {
                tell("job", job.to_string().into());
                tell("kind", kind.as_str().into());
                tell("queue", queue.as_str().into());
                tell("attempt", (*attempt).into());
                if let Some(span_context) = span_context {
                    tell("trace_id", span_context.trace_id().into());
                }
            }
        }
    }
}

/// Changes the filter of the log of this process. Absent when the log is not that of [`init_logs`].
static FILTER: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// Set up logging for this process. A second call changes nothing, so tests may call it repeatedly.
///
/// `filter` has the syntax of `tracing` filters, such as `info` or `tickr=debug,info`. A filter that cannot be parsed
/// is replaced by `info`. Lines of `attempts` and above are offered to the logs of attempts, whatever the filter is.
pub fn init_logs(filter: &str, json: bool, attempts: LevelFilter) {
    // The bridge from the crate `log` reads the most detailed level when it is set up, and again when the filter changes
    // (`reload::Handle`).
    keep_attempt_logs(attempts);
    let (filter, handle) = reload::Layer::new(filter_of(filter));
    let lines = if json {
        Lines::Json
    } else {
        // Terminals get colours, files do not.
        Lines::Text(Format::default().with_target(false).with_ansi(std::io::stderr().is_terminal()))
    };
    // Standard error may be closed, for example because the terminal is gone. Another line about a line that was not
    // written would fail as well, and panic.
    let lines = tracing_subscriber::fmt::layer().log_internal_errors(false).event_format(lines);
    let lines = lines.with_writer(std::io::stderr).with_filter(filter);
    if tracing_subscriber::registry().with(lines).with(attempt_log_layer()).try_init().is_ok() {
        let _ = FILTER.set(handle);
        log_panics(json);
    }
}

/// Write lines by this filter from now on. Return false when the log is not that of [`init_logs`], so that its program
/// chooses the lines.
#[must_use]
pub fn change_log_filter(filter: &str) -> bool {
    FILTER.get().is_some_and(|handle| handle.reload(filter_of(filter)).is_ok())
}

fn filter_of(text: &str) -> EnvFilter {
    let filter = EnvFilter::try_new(text).unwrap_or_else(|_| EnvFilter::new("info"));
    // For speed only: lines that are never shown are not formatted. `is_quiet` makes the decision.
    let quiet = |(target, level): &(&str, Level)| format!("{target}={level}").parse().ok();
    QUIET.iter().filter_map(quiet).fold(filter, EnvFilter::add_directive)
}

/// Target of the lines about panics.
pub(super) const PANICS: &str = module_path!();

thread_local! {
    /// This thread calls code whose panic messages may quote a payload.
    static DISCREET: Cell<bool> = const { Cell::new(false) };
}

/// Call code whose panic messages may quote a payload. The log gets the place of a panic in it and no message.
pub fn without_panic_messages<T>(call: impl FnOnce() -> T) -> T {
    /// Sets the former value when it is dropped, also by a panic.
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            DISCREET.set(self.0);
        }
    }
    let _restore = Restore(DISCREET.replace(true));
    call()
}

/// Write panics as log lines. The panic message of a handler may quote its payload, so it is stored with the attempt
/// and in the attempt's log, where payloads are protected, and nowhere else. The same holds for the other code of a
/// kind, which requests and loops call as well: there the caller gets the message alone.
fn log_panics(json: bool) {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let at = panic.location().map(ToString::to_string).unwrap_or_default();
        match log_scope() {
            Some(LogScope::Attempt { log, .. }) => {
                let message = panic.payload_as_str().unwrap_or("without a message");
                log.write(Level::ERROR, format_args!("panicked at {at}: {message}"));
                tracing::error!(at, "a handler panicked; its attempt has the message");
            }
            _ if DISCREET.get() => tracing::error!(at, "the code of a kind panicked; its caller has the message"),
            _ if json => tracing::error!(at, error = panic.payload_as_str().unwrap_or(""), "panicked"),
            _ => usual(panic),
        }
    }));
}

/// Format of the log lines.
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

/// Return whether the line comes from one of the crates in [`QUIET`] and is too detailed.
pub(super) fn is_quiet(target: &str, level: Level) -> bool {
    let root = target.split("::").next().unwrap_or(target);
    // A more detailed level compares as greater.
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
        // These three fields are already written.
        if !matches!(name.as_str(), "timestamp" | "level" | "target") {
            write!(out, ",{}:{value}", Value::from(name.as_str()))?;
        }
    }
    writeln!(out, "}}")
}

/// Collected fields of an event.
#[derive(Default)]
struct Fields {
    told: Map<String, Value>,
}

impl Fields {
    /// Return the target of the event. Events of crates that use `log` have one common target, and their own target in
    /// a field.
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
    fn a_call_without_panic_messages_ends_with_the_call() {
        assert!(!DISCREET.get());
        without_panic_messages(|| {
            without_panic_messages(|| assert!(DISCREET.get()));
            assert!(DISCREET.get());
        });
        let _ = std::panic::catch_unwind(|| without_panic_messages(|| panic!("on purpose")));
        assert!(!DISCREET.get());
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
