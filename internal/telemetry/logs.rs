//! Logs: one line per event on standard error, for people or as JSON. Never payloads, headers or secrets.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Set up logging for this process. The second call changes nothing, so tests may call it freely.
///
/// `filter` is in the syntax of `tracing`'s filters, such as `info` or `tickr=debug,info`; one that cannot be read
/// becomes `info`.
pub fn init_logs(filter: &str, json: bool) {
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new("info"));
    // The driver logs every slow statement with its text; our own errors name what was attempted.
    let quiet = |directive: &str| directive.parse().ok();
    let filter = ["sqlx=error", "hyper=warn", "rustls=warn"]
        .into_iter()
        .filter_map(quiet)
        .fold(filter, EnvFilter::add_directive);
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let outcome = if json {
        builder.json().flatten_event(true).with_current_span(false).try_init()
    } else {
        // Colours are for terminals; in a file they are noise.
        builder.with_target(false).with_ansi(std::io::stderr().is_terminal()).try_init()
    };
    drop(outcome);
}
