//! The log of an attempt: the newest lines that were written while it ran, at most 16 KiB.
//!
//! The lines wait in memory until the attempt ends. The executor then takes them and stores them with the verdict. An
//! attempt that writes no line needs no memory for lines and takes no lock.
//!
//! The lines come from [`attempt_log_layer`], a layer of `tracing` with a filter of its own, so what an operator sees on
//! standard error does not decide what is kept. `docs/LOGS.md` shows the form of the lines.

use std::collections::VecDeque;
use std::fmt::{self, Display, Write as _};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use chrono::Utc;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, Filter};
use tracing_subscriber::registry::LookupSpan;

use super::logs::{PANICS, is_quiet, with_attempt_log};
use tickr_job::is_terminal_control;
use tickr_job::limits::MAX_LOG_BYTES;

/// Most bytes of one line, with its line break. So one large value cannot push out all other lines.
const MAX_LINE_BYTES: usize = 4 << 10;
/// Bytes that are kept free for the line that counts the dropped ones.
const NOTE_BYTES: usize = 64;
/// Most bytes of lines.
const ROOM: usize = MAX_LOG_BYTES - NOTE_BYTES;
/// Bytes that the first line reserves, so that a few lines need no second allocation.
const FIRST_BYTES: usize = 512;

/// The log of one attempt. Cheap to clone: the clones share the lines.
#[derive(Clone, Debug)]
pub struct AttemptLog {
    level: LevelFilter,
    shared: Arc<LogState>,
}

#[derive(Debug, Default)]
struct LogState {
    /// The attempt has ended: further lines are not kept.
    closed: AtomicBool,
    lines: OnceLock<Mutex<Lines>>,
}

impl Default for AttemptLog {
    /// Make a log for lines of the level `INFO` and above.
    fn default() -> Self {
        Self::new(LevelFilter::INFO)
    }
}

impl AttemptLog {
    /// Make a log for lines of this level and above.
    #[must_use]
    pub fn new(level: LevelFilter) -> Self {
        Self { level, shared: Arc::default() }
    }

    /// Return whether lines of this level are kept now.
    #[must_use]
    pub fn keeps(&self, level: Level) -> bool {
        level <= self.level && !self.shared.closed.load(Ordering::Relaxed)
    }

    /// Add a line, with the time of day by the clock of the host. Line breaks and control characters of the message are
    /// written out. A line of more than 4 KiB is cut.
    pub fn write(&self, level: Level, message: impl Display) {
        if self.keeps(level) {
            let mut text = Harmless::default();
            // A message that does not fit is cut, so the error means nothing.
            let _ = write!(text, "{message}");
            self.push(level, &text.0, "");
        }
    }

    /// End the log and take the lines out, oldest first. Each ends with a line break. If earlier lines were dropped, the
    /// first line says how many. Return nothing if no line was written.
    #[must_use]
    pub fn close(&self) -> Option<String> {
        self.shared.closed.store(true, Ordering::Relaxed);
        let Lines { text, dropped } = std::mem::take(&mut *lock(self.shared.lines.get()?));
        if text.is_empty() {
            return None;
        }
        let mut log = String::with_capacity(text.len() + if dropped > 0 { NOTE_BYTES } else { 0 });
        if dropped > 0 {
            let _ = writeln!(log, "[{dropped} earlier lines were dropped]");
        }
        // Lines are added and dropped whole, so this is text.
        let (front, back) = text.as_slices();
        log.push_str(&String::from_utf8_lossy(&[front, back].concat()));
        Some(log)
    }

    fn push(&self, level: Level, message: &str, fields: &str) {
        let mut line = String::with_capacity(24 + message.len() + fields.len());
        let now = Utc::now().format("%H:%M:%S%.3f");
        // Writing to a String cannot fail.
        let _ = write!(line, "{now} {:<5} {message}{fields}", level.as_str());
        if line.len() >= MAX_LINE_BYTES {
            line.truncate(line.floor_char_boundary(MAX_LINE_BYTES - "…\n".len()));
            line.push('…');
        }
        line.push('\n');
        lock(self.shared.lines.get_or_init(Mutex::default)).push(&line);
    }
}

fn lock(lines: &Mutex<Lines>) -> MutexGuard<'_, Lines> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The newest lines.
#[derive(Debug, Default)]
struct Lines {
    text: VecDeque<u8>,
    /// Number of lines that were dropped.
    dropped: u64,
}

impl Lines {
    /// Add a line, and drop as many of the oldest ones as it needs room for.
    fn push(&mut self, line: &str) {
        while self.text.len() + line.len() > ROOM {
            let end = self.text.iter().position(|byte| *byte == b'\n').map_or(self.text.len(), |at| at + 1);
            self.text.drain(..end);
            self.dropped += 1;
        }
        let wanted = self.text.len() + line.len();
        if wanted > self.text.capacity() {
            // Grow by doubling, but never beyond the limit.
            let room = (2 * wanted).clamp(FIRST_BYTES, ROOM);
            self.text.reserve_exact(room.saturating_sub(self.text.len()));
        }
        self.text.extend(line.as_bytes());
    }
}

/// A text for terminals and pages: line breaks and characters that could control a terminal are written out. It ends
/// when a line is full, so that a huge value costs no more than a line.
#[derive(Default)]
struct Harmless(String);

impl fmt::Write for Harmless {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            if self.0.len() >= MAX_LINE_BYTES {
                return Err(fmt::Error);
            }
            match c {
                '\n' => self.0.push_str("\\n"),
                '\r' => self.0.push_str("\\r"),
                '\t' => self.0.push_str("\\t"),
                c if is_terminal_control(c) => self.0.extend(c.escape_unicode()),
                c => self.0.push(c),
            }
        }
        Ok(())
    }
}

/// The message and the fields of an event, as text.
#[derive(Default)]
struct EventText {
    message: Harmless,
    fields: Harmless,
    /// The target of an event of the crate `log`, which has it in a field.
    target: Option<String>,
}

impl EventText {
    fn tell(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        let _ = match field.name() {
            "message" => self.message.write_fmt(value),
            // Place of a line of the crate `log` in the sources.
            name if name.starts_with("log.") => Ok(()),
            name => write!(self.fields, " {name}={value}"),
        };
    }
}

impl Visit for EventText {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "log.target" {
            self.target = Some(value.to_owned());
        }
        let plain = |c: char| !c.is_whitespace() && !matches!(c, '"' | '=');
        if field.name() == "message" || (!value.is_empty() && value.chars().all(plain)) {
            self.tell(field, format_args!("{value}"));
        } else {
            self.tell(field, format_args!("{value:?}"));
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.tell(field, format_args!("{value:?}"));
    }
}

/// Most detailed level that a log of an attempt in this process keeps, as a number: `OFF` is 0 and `TRACE` is 5.
static MAX_LEVEL: AtomicUsize = AtomicUsize::new(0);

fn as_number(level: LevelFilter) -> usize {
    level.into_level().map_or(0, |level| match level {
        Level::ERROR => 1,
        Level::WARN => 2,
        Level::INFO => 3,
        Level::DEBUG => 4,
        Level::TRACE => 5,
    })
}

fn most_detailed() -> LevelFilter {
    match MAX_LEVEL.load(Ordering::Relaxed) {
        0 => LevelFilter::OFF,
        1 => LevelFilter::ERROR,
        2 => LevelFilter::WARN,
        3 => LevelFilter::INFO,
        4 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    }
}

/// Let the layer see lines of this level and above. A runner says this at its start. Until then the layer sees none, so
/// that a process without a runner pays nothing for it. The most detailed level of all runners of a process counts.
pub fn keep_attempt_logs(level: LevelFilter) {
    if MAX_LEVEL.fetch_max(as_number(level), Ordering::Relaxed) < as_number(level) {
        // `tracing` remembers for each line whether any layer wants it.
        tracing::callsite::rebuild_interest_cache();
    }
}

/// Return a layer that adds the lines of an attempt to its log. `tickr::run` and `tickr serve` install it themselves. A
/// program with a subscriber of its own adds the layer to it:
///
/// ```no_run
/// use tracing_subscriber::prelude::*;
///
/// tracing_subscriber::registry()
///     .with(tracing_subscriber::fmt::layer())
///     .with(tickr_telemetry::attempt_log_layer())
///     .init();
/// ```
///
/// The layer has its own filter and leaves those of the other layers alone. It sees lines that are written by the task
/// of a handler, and by tasks that a handler starts with `Context::in_scope`. The type is that of `tracing-subscriber`
/// 0.3.
pub fn attempt_log_layer<S>() -> impl Layer<S> + Send + Sync
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    AttemptLogLayer.with_filter(InAttempts)
}

/// Whether some attempt of this process keeps such lines.
fn may_be_kept(metadata: &Metadata<'_>) -> bool {
    // The hook for panics writes to the log itself, with the message of the panic.
    metadata.is_event()
        && *metadata.level() <= most_detailed()
        && metadata.target() != PANICS
        && !is_quiet(metadata.target(), *metadata.level())
}

struct InAttempts;

impl<S> Filter<S> for InAttempts {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        may_be_kept(metadata) && with_attempt_log(|log| log.keeps(*metadata.level())).unwrap_or(false)
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        if may_be_kept(metadata) { Interest::sometimes() } else { Interest::never() }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(most_detailed())
    }
}

struct AttemptLogLayer;

impl<S: Subscriber> Layer<S> for AttemptLogLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let level = *event.metadata().level();
        // The text is made before the lock is taken: the code that shows a value may write a line as well.
        let mut text = EventText::default();
        event.record(&mut text);
        if text.target.as_deref().is_some_and(|target| is_quiet(target, level)) {
            return;
        }
        with_attempt_log(|log| log.push(level, &text.message.0, &text.fields.0));
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::prelude::*;

    use super::*;
    use crate::{LogScope, in_log_scope};

    fn scope(log: &AttemptLog) -> LogScope {
        LogScope::Attempt {
            job: tickr_job::JobId::new(),
            kind: "noop".parse().unwrap(),
            queue: "default".parse().unwrap(),
            attempt: 1,
            span_context: None,
            log: log.clone(),
        }
    }

    /// Do this in an attempt that keeps lines of `level`, and return its lines without their times.
    fn logged(level: LevelFilter, work: impl FnOnce()) -> Option<String> {
        keep_attempt_logs(LevelFilter::DEBUG);
        let log = AttemptLog::new(level);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(attempt_log_layer()), || {
            runtime.block_on(in_log_scope(scope(&log), async { work() }));
        });
        log.close().map(|text| text.lines().map(|line| format!("{}\n", &line[13..])).collect())
    }

    #[test]
    fn a_line_has_its_level_its_message_and_its_fields() {
        let text = logged(LevelFilter::INFO, || {
            tracing::info!(order = 7, shop = "north", note = "a b", empty = "", "sent");
            tracing::warn!(error = %"cannot connect", answer = ?Some("x"), "try again");
            tracing::debug!("not kept");
        });
        let lines = "INFO  sent order=7 shop=north note=\"a b\" empty=\"\"\n\
                     WARN  try again error=cannot connect answer=Some(\"x\")\n";
        assert_eq!(text.as_deref(), Some(lines));
        assert_eq!(logged(LevelFilter::DEBUG, || tracing::debug!("kept")).as_deref(), Some("DEBUG kept\n"));
        assert_eq!(logged(LevelFilter::OFF, || tracing::error!("nothing is kept")), None);
        assert_eq!(logged(LevelFilter::INFO, || {}), None);
        let now = Utc::now().format("%H:").to_string();
        let log = AttemptLog::default();
        log.write(Level::INFO, "by hand");
        let line = log.close().unwrap();
        assert!(line.ends_with(" INFO  by hand\n") && line.len() == "12:00:00.000 INFO  by hand\n".len(), "{line}");
        assert!(line.starts_with(&now) || Utc::now().format("%H:").to_string() != now, "{line}");
    }

    #[test]
    fn values_stay_on_their_line_and_steer_no_terminal() {
        let odd = "a\nb\r\tc\u{1b}[2Jd\u{9b}e\u{202e}f";
        let text = logged(LevelFilter::INFO, || {
            tracing::info!(odd, shown = %odd, "{odd}");
            with_attempt_log(|log| log.write(Level::INFO, odd)).unwrap();
        });
        let text = text.unwrap();
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(!text.contains(|c: char| is_terminal_control(c) && c != '\n'), "{text:?}");
        assert!(text.starts_with("INFO  a\\nb\\r\\tc\\u{1b}[2Jd\\u{9b}e\\u{202e}f odd="), "{text}");
        assert!(text.ends_with("INFO  a\\nb\\r\\tc\\u{1b}[2Jd\\u{9b}e\\u{202e}f\n"), "{text}");
    }

    #[test]
    fn crates_of_the_wire_stay_out_of_it() {
        let text = logged(LevelFilter::DEBUG, || {
            tracing::warn!(target: "sqlx::query", "a statement");
            tracing::info!(target: "hyper::proto", "a header");
            tracing::error!(target: PANICS, "a handler panicked");
            tracing::info!(target: "shop", "mine");
        });
        assert_eq!(text.as_deref(), Some("INFO  mine\n"));
    }

    #[test]
    fn the_newest_lines_are_kept_and_the_others_are_counted() {
        let log = AttemptLog::default();
        for n in 0..2_000 {
            log.write(Level::INFO, format_args!("line {n} ü"));
        }
        let memory = lock(log.shared.lines.get().unwrap()).text.capacity();
        assert!(memory <= MAX_LOG_BYTES, "{memory}");
        let text = log.close().unwrap();
        assert!(text.len() <= MAX_LOG_BYTES && text.len() > MAX_LOG_BYTES - 200, "{}", text.len());
        let lines: Vec<&str> = text.lines().collect();
        let dropped: usize =
            lines[0].strip_prefix('[').unwrap().strip_suffix(" earlier lines were dropped]").unwrap().parse().unwrap();
        assert_eq!(dropped + lines.len() - 1, 2_000);
        for (at, line) in lines[1..].iter().enumerate() {
            assert!(line.ends_with(&format!(" line {} ü", dropped + at)), "{line}");
        }
        log.write(Level::ERROR, "after the end");
        assert_eq!(log.close(), None);
    }

    #[test]
    fn one_line_is_cut_and_leaves_room_for_others() {
        struct Endless;
        impl fmt::Debug for Endless {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                loop {
                    f.write_str("ü")?;
                }
            }
        }
        let text = logged(LevelFilter::INFO, || {
            tracing::info!("first");
            tracing::info!(value = ?Endless, "much");
        });
        let text = text.unwrap();
        let [first, much] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
        assert_eq!(first, "INFO  first");
        assert!(much.starts_with("INFO  much value=üü") && much.ends_with("ü…"), "{much}");
        assert!(much.len() <= MAX_LINE_BYTES - 13, "{}", much.len());
    }
}
