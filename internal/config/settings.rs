//! The table of settings. To add a setting, add a field to [`Config`] and a row here. Flag, environment variable, file
//! key, help, `tickr config` and the documentation follow from the row.

use std::time::Duration;

use tracing_subscriber::filter::LevelFilter;

use super::setting::{Secrecy, Setting};
use super::url::ServerUrl;
use super::{Config, KeptLogs, LogFormat, callback, duration, parse, size};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

type Row = Setting<Config>;

/// The levels of the lines that are stored with an attempt.
const LOG_LEVELS: &[(&str, LevelFilter)] = &[
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
];

/// All settings outside sections, the most common ones first.
pub static SETTINGS: &[Setting<Config>] = &[
    Row::new(
        "mysql_url",
        "URL",
        "MySQL, the store: mysql://user:password@host:port,host:port/database, one server or several; required to serve",
        |c, t| parse::some(&mut c.mysql_url, ServerUrl::mysql(t).map_err(Into::into)),
    )
    .secrecy(Secrecy::Url),
    Row::new(
        "redis_url",
        "URL",
        "Redis, the index: redis://, redis+unix:///path, redis+sentinel://host,host/name or redis+cluster://host,host; rediss for TLS; required to serve",
        |c, t| parse::some(&mut c.redis_url, ServerUrl::redis(t).map_err(Into::into)),
    )
    .secrecy(Secrecy::Url),
    Row::new(
        "redis_ca_file",
        "FILE",
        "PEM file with certificates of the authorities that connections to Redis trust, in place of the public ones",
        |c, t| parse::some(&mut c.redis_ca_file, parse::line(t).map(Into::into)),
    ),
    Row::new(
        "redis_cert_file",
        "FILE",
        "PEM file with the certificate that tickr shows to Redis, if Redis asks its clients for one",
        |c, t| parse::some(&mut c.redis_cert_file, parse::line(t).map(Into::into)),
    ),
    Row::new("redis_key_file", "FILE", "PEM file with the private key of redis_cert_file", |c, t| {
        parse::some(&mut c.redis_key_file, parse::line(t).map(Into::into))
    }),
    Row::new("http_addr", "HOST:PORT", "Address and port of the API", |c, t| {
        parse::put(&mut c.http_addr, parse::listen_addr(t))
    })
    .default("127.0.0.1:7070"),
    Row::new(
        "api_tokens",
        "TOKENS",
        "Bearer tokens with all rights, 20 characters or more; without tokens and API keys the API is open, on loopback only",
        |c, t| parse::put(&mut c.api_tokens, parse::list(t, parse::token)),
    )
    .secrecy(Secrecy::Secret)
    .list(),
    Row::new(
        "workers",
        "N",
        "Number of jobs that this runner executes at the same time; 0: none, it serves the API and remote workers only",
        |c, t| parse::put(&mut c.workers, parse::number(t, 0..=4096)),
    )
    .default("64"),
    Row::new("queues", "NAMES", "Queues that this runner serves, comma separated", |c, t| {
        parse::put(&mut c.queues, parse::queues(t))
    })
    .default("default")
    .list(),
    Row::new(
        "held",
        "BOOL",
        "Start the API only, to look at a restored database: nothing is executed, fired, moved, ended or removed before a start without it",
        |c, t| parse::put(&mut c.held, parse::switch(t)),
    )
    .switch(),
    Row::new("lease", "DURATION", "Time after which a silent runner loses its jobs", |c, t| {
        parse::put(&mut c.lease, duration::between(t, 2 * SECOND, HOUR))
    })
    .default("30s"),
    Row::new("shutdown_grace", "DURATION", "Time that running jobs get to finish after SIGTERM", |c, t| {
        parse::put(&mut c.shutdown_grace, duration::between(t, Duration::ZERO, HOUR))
    })
    .default("25s"),
    Row::new(
        "shutdown_notice",
        "DURATION",
        "Time that the API keeps serving after SIGTERM, while readiness fails",
        |c, t| parse::put(&mut c.shutdown_notice, duration::between(t, Duration::ZERO, HOUR)),
    )
    .default("1s"),
    Row::new(
        "horizon",
        "DURATION",
        "Jobs due within this time are put into the index; later jobs wait in MySQL only",
        |c, t| parse::put(&mut c.horizon, duration::between(t, 10 * SECOND, DAY)),
    )
    .default("15m"),
    Row::new(
        "table_prefix",
        "PREFIX",
        "First part of the name of every table, like tickr_, in a database that other programs use as well; default: none",
        |c, t| parse::put(&mut c.table_prefix, parse::table_prefix(t)),
    ),
    Row::new(
        "redis_prefix",
        "PREFIX",
        "First part of every index key, as in {tickr}:waiting; default with a table_prefix of shop_: tickr.shop_",
        |c, t| parse::put(&mut c.redis_prefix, parse::key_prefix(t)),
    )
    .default("tickr"),
    Row::new(
        "index_partitions",
        "N",
        "Number of parts of the index, each in one slot of a Redis Cluster, with the queues shared out among them; the same for every runner",
        |c, t| parse::put(&mut c.index_partitions, parse::number(t, 1..=64)),
    )
    .default("1"),
    Row::new("ready_high_water", "N", "Number of entries of a ready list above which no more are moved in", |c, t| {
        parse::put(&mut c.ready_high_water, parse::number(t, 1..=1_000_000))
    })
    .default("10000"),
    Row::new("ready_low_water", "N", "Number of entries of a ready list below which it is refilled", |c, t| {
        parse::put(&mut c.ready_low_water, parse::number(t, 0..=1_000_000))
    })
    .default("2000"),
    Row::new(
        "mysql_connections",
        "N",
        "Connections to MySQL, 5 or more; of 16, 2 are for controls, 5 for loops, 4 for changes, 5 for reads; job writes, heartbeat and reports have their own",
        |c, t| parse::put(&mut c.mysql_connections, parse::number(t, 5..=1024)),
    )
    .default("16"),
    Row::new("strict_durability", "BOOL", "Refuse to start if MySQL does not fsync commits", |c, t| {
        parse::put(&mut c.strict_durability, parse::switch(t))
    })
    .switch(),
    Row::new("retention_completed", "DURATION", "Retention of completed jobs", |c, t| {
        parse::put(&mut c.retention_completed, duration::between(t, SECOND, 3650 * DAY))
    })
    .default("7d"),
    Row::new("retention_failed", "DURATION", "Retention of failed jobs", |c, t| {
        parse::put(&mut c.retention_failed, duration::between(t, SECOND, 3650 * DAY))
    })
    .default("90d"),
    Row::new(
        "retention_cancelled",
        "DURATION",
        "Retention of cancelled jobs; default: that of completed jobs",
        |c, t| parse::some(&mut c.retention_cancelled, duration::between(t, SECOND, 3650 * DAY)),
    ),
    Row::new("purge_hours", "HH:MM-HH:MM", "Hours when ended jobs are removed, in UTC; default: at any time", |c, t| {
        parse::some(&mut c.purge_hours, parse::hours(t))
    }),
    Row::new("retention_discarded", "DURATION", "Retention of discarded dead letters, for the audit", |c, t| {
        parse::put(&mut c.retention_discarded, duration::between(t, SECOND, 3650 * DAY))
    })
    .default("30d"),
    Row::new("retention_idempotency", "DURATION", "Retention of the responses stored for an Idempotency-Key", |c, t| {
        parse::put(&mut c.retention_idempotency, duration::between(t, SECOND, 3650 * DAY))
    })
    .default("7d"),
    Row::new("retention_audit", "DURATION", "Retention of audit records", |c, t| {
        parse::put(&mut c.retention_audit, duration::between(t, SECOND, 3650 * DAY))
    })
    .default("365d"),
    Row::new("retention_ticks", "DURATION", "Retention of the recorded ticks of schedules", |c, t| {
        parse::put(&mut c.retention_ticks, duration::between(t, SECOND, 3650 * DAY))
    })
    .default("30d"),
    Row::new("body_limit", "SIZE", "Largest request body, at most 1MiB", |c, t| {
        parse::put(&mut c.body_limit_bytes, size::between(t, 1 << 10, 1 << 20).map(|bytes| bytes as usize))
    })
    .default("256KiB"),
    Row::new(
        "http_hosts",
        "NAMES",
        "Names of this host, in addition to localhost, that requests to an open API may use",
        |c, t| parse::put(&mut c.http_hosts, parse::list(t, parse::host_name)),
    )
    .list(),
    Row::new(
        "http_connections",
        "N",
        "Maximum number of open connections to the API; further clients are refused",
        |c, t| parse::put(&mut c.http_connections, parse::number(t, 1..=1_000_000)),
    )
    .default("2048"),
    Row::new("http_streams", "N", "Maximum number of open event streams", |c, t| {
        parse::put(&mut c.http_streams, parse::number(t, 0..=100_000))
    })
    .default("256"),
    Row::new("http_polls", "N", "Maximum number of requests for jobs of remote workers that wait", |c, t| {
        parse::put(&mut c.http_polls, parse::number(t, 0..=1_000_000))
    })
    .default("2000"),
    Row::new("http_header_timeout", "DURATION", "Time limit for the head of a request", |c, t| {
        parse::put(&mut c.http_header_timeout, duration::between(t, SECOND / 10, HOUR))
    })
    .default("10s"),
    Row::new(
        "http_body_timeout",
        "DURATION",
        "Time limit for the body of a request, or for each line of an import",
        |c, t| parse::put(&mut c.http_body_timeout, duration::between(t, SECOND / 10, HOUR)),
    )
    .default("30s"),
    Row::new("http_write_timeout", "DURATION", "Time limit for a client that does not read its response", |c, t| {
        parse::put(&mut c.http_write_timeout, duration::between(t, SECOND / 10, HOUR))
    })
    .default("20s"),
    Row::new("http_idle_timeout", "DURATION", "Maximum idle time of a connection between two requests", |c, t| {
        parse::put(&mut c.http_idle_timeout, duration::between(t, SECOND / 10, HOUR))
    })
    .default("75s"),
    Row::new("log", "FILTER", "Log filter: a level, or targets with levels", |c, t| {
        parse::put(&mut c.log, parse::log_filter(t))
    })
    .default("info"),
    Row::new("log_format", "FORMAT", "Log format: text or json", |c, t| {
        parse::put(&mut c.log_format, parse::one_of(t, &[("text", LogFormat::Text), ("json", LogFormat::Json)]))
    })
    .default("text"),
    Row::new(
        "attempt_log",
        "LEVEL",
        "Level of the lines stored with each attempt: off, error, warn, info or debug; whatever log says",
        |c, t| parse::put(&mut c.attempt_log, parse::one_of(t, LOG_LEVELS)),
    )
    .default("info"),
    Row::new("attempt_log_keep", "ATTEMPTS", "Attempts whose log is stored: all, or failed for those that did not succeed", |c, t| {
        let words = [("all", KeptLogs::All), ("failed", KeptLogs::Failed)];
        parse::put(&mut c.attempt_log_keep, parse::one_of(t, &words))
    })
    .default("all"),
    Row::new(
        "otlp_endpoint",
        "URL",
        "Trace collector that accepts OTLP over HTTP, like http://localhost:4318; or OTEL_EXPORTER_OTLP_ENDPOINT",
        |c, t| parse::some(&mut c.otlp_endpoint, parse::web_address(t)),
    )
    .secrecy(Secrecy::Url)
    .also("OTEL_EXPORTER_OTLP_ENDPOINT"),
    Row::new(
        "otlp_headers",
        "HEADERS",
        "Headers for the collector, name=value, comma separated; or OTEL_EXPORTER_OTLP_HEADERS",
        |c, t| parse::put(&mut c.otlp_headers, parse::list(t, parse::header)),
    )
    .secrecy(Secrecy::Secret)
    .list()
    .also("OTEL_EXPORTER_OTLP_HEADERS"),
    Row::new("otlp_sample", "SHARE", "Share of the traces started here that are recorded, 0 to 1", |c, t| {
        parse::put(&mut c.otlp_sample, parse::number(t, 0.0..=1.0))
    })
    .default("1"),
    Row::new("otlp_service", "NAME", "Service name for the collector; or OTEL_SERVICE_NAME", |c, t| {
        parse::put(&mut c.otlp_service, parse::line(t))
    })
    .default("tickr")
    .also("OTEL_SERVICE_NAME"),
    Row::new(
        "email_senders",
        "ADDRESSES",
        "Permitted senders of mails: domains and addresses, comma separated; default: any",
        |c, t| parse::put(&mut c.email_senders, parse::list(t, parse::domain_or_address)),
    )
    .list(),
    Row::new(
        "email_recipients",
        "ADDRESSES",
        "Permitted recipients of mails: domains and addresses, comma separated; default: any",
        |c, t| parse::put(&mut c.email_recipients, parse::list(t, parse::domain_or_address)),
    )
    .list(),
    Row::new("outbox_dir", "DIR", "Write mails to this folder as .eml files instead of sending them", |c, t| {
        parse::some(&mut c.outbox_dir, parse::line(t).map(Into::into))
    }),
    Row::new("reports_dir", "DIR", "Folder for report files", |c, t| {
        parse::put(&mut c.reports_dir, parse::line(t).map(Into::into))
    })
    .default("reports"),
    Row::new(
        "callback_secret",
        "SECRETS",
        "Secret that signs callbacks: whsec_ and base64; two, comma separated, while receivers change to the new one",
        |c, t| parse::put(&mut c.callback_secret, callback::secrets(t)),
    )
    .secrecy(Secrecy::Secret)
    .list(),
    Row::new(
        "callback_host_secrets",
        "PAIRS",
        "Secrets for single hosts, used for no other host: shop.example=whsec_…, or *.shop.example for all names below; in the file also a table",
        |c, t| parse::put(&mut c.callback_host_secrets, callback::host_secrets(t)),
    )
    .secrecy(Secrecy::Secret)
    .pairs(),
    Row::new(
        "callback_allow",
        "HOSTS",
        "Private hosts and networks that callbacks may reach, like 10.20.0.0/16,shop.internal",
        |c, t| parse::put(&mut c.callback_allow, callback::allowed(t)),
    )
    .list(),
    Row::new(
        "callback_allow_private",
        "BOOL",
        "Let callbacks reach all loopback and private addresses except cloud metadata",
        |c, t| parse::put(&mut c.callback_allow_private, parse::switch(t)),
    )
    .switch(),
    Row::new(
        "callback_timeout",
        "DURATION",
        "Longest time that a callback may wait for its answer (timeout_ms); up to 24h",
        |c, t| parse::put(&mut c.callback_timeout, duration::between(t, SECOND, DAY)),
    )
    .default("30s"),
    Row::new(
        "callback_ca_file",
        "FILE",
        "PEM file with certificates of authorities that callbacks trust besides the public ones",
        |c, t| parse::some(&mut c.callback_ca_file, parse::line(t).map(Into::into)),
    ),
    Row::new(
        "test_kinds",
        "BOOL",
        "Register the kinds for tests and benchmarks: noop, sleep, fail, panic, spin, abort, hoard, steps",
        |c, t| parse::put(&mut c.test_kinds, parse::switch(t)),
    )
    .switch(),
];
