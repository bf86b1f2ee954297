//! The table of settings. To add one, add a field to [`Config`] and a row here; flag, environment variable, file key,
//! help, `tickr config` and the README follow.

use std::time::Duration;

use super::setting::{Secrecy, Setting};
use super::url::ServerUrl;
use super::{Config, LogFormat, callback, duration, parse, size};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

type Row = Setting<Config>;

/// Every setting outside a section, in the order in which people meet them.
pub static SETTINGS: &[Setting<Config>] = &[
    Row::new(
        "mysql_url",
        "URL",
        "MySQL, the store: mysql://user:password@host:port/database; required to serve",
        |c, t| parse::some(&mut c.mysql_url, ServerUrl::mysql(t).map_err(Into::into)),
    )
    .secrecy(Secrecy::Url),
    Row::new(
        "redis_url",
        "URL",
        "Redis, the index: redis://, rediss:// or redis+unix:///path; required to serve",
        |c, t| parse::some(&mut c.redis_url, ServerUrl::redis(t).map_err(Into::into)),
    )
    .secrecy(Secrecy::Url),
    Row::new("http_addr", "HOST:PORT", "Where the API listens", |c, t| {
        parse::put(&mut c.http_addr, parse::listen_addr(t))
    })
    .default("127.0.0.1:7070"),
    Row::new(
        "api_tokens",
        "TOKENS",
        "Bearer tokens good for everything, 20 characters or more; without them and keys the API is open, on loopback",
        |c, t| parse::put(&mut c.api_tokens, parse::list(t, parse::token)),
    )
    .secrecy(Secrecy::Secret)
    .list(),
    Row::new("workers", "N", "Jobs that run at the same time in this runner", |c, t| {
        parse::put(&mut c.workers, parse::number(t, 1..=4096))
    })
    .default("64"),
    Row::new("queues", "NAMES", "Queues this runner serves, comma separated", |c, t| {
        parse::put(&mut c.queues, parse::queues(t))
    })
    .default("default")
    .list(),
    Row::new("lease", "DURATION", "How long a silent runner keeps its jobs", |c, t| {
        parse::put(&mut c.lease, duration::between(t, 2 * SECOND, HOUR))
    })
    .default("30s"),
    Row::new("shutdown_grace", "DURATION", "How long running jobs may finish after SIGTERM", |c, t| {
        parse::put(&mut c.shutdown_grace, duration::between(t, Duration::ZERO, HOUR))
    })
    .default("25s"),
    Row::new("shutdown_notice", "DURATION", "How long the API goes on after SIGTERM, with readiness red", |c, t| {
        parse::put(&mut c.shutdown_notice, duration::between(t, Duration::ZERO, HOUR))
    })
    .default("1s"),
    Row::new("horizon", "DURATION", "How far ahead the index looks; later jobs wait in MySQL alone", |c, t| {
        parse::put(&mut c.horizon, duration::between(t, 10 * SECOND, DAY))
    })
    .default("15m"),
    Row::new("redis_prefix", "PREFIX", "First part of every index key, as in {tickr}:waiting", |c, t| {
        parse::put(&mut c.redis_prefix, parse::key_prefix(t))
    })
    .default("tickr"),
    Row::new("ready_high_water", "N", "Entries of a ready list above which no more are moved in", |c, t| {
        parse::put(&mut c.ready_high_water, parse::number(t, 1..=1_000_000))
    })
    .default("10000"),
    Row::new("ready_low_water", "N", "Entries of a ready list below which it is filled up", |c, t| {
        parse::put(&mut c.ready_low_water, parse::number(t, 0..=1_000_000))
    })
    .default("2000"),
    Row::new(
        "mysql_connections",
        "N",
        "Connections to MySQL, 5 or more: of 16 are 2 for controls, 5 for loops, 4 for changes, 5 for reads; writes of jobs and reports have others",
        |c, t| parse::put(&mut c.mysql_connections, parse::number(t, 5..=1024)),
    )
    .default("16"),
    Row::new("strict_durability", "BOOL", "Refuse to start when MySQL does not fsync commits", |c, t| {
        parse::put(&mut c.strict_durability, parse::switch(t))
    })
    .switch(),
    Row::new("retention_completed", "DURATION", "How long completed jobs are kept", |c, t| {
        parse::put(&mut c.retention_completed, duration::between(t, SECOND, 3650 * DAY))
    })
    .default("7d"),
    Row::new("retention_failed", "DURATION", "How long failed jobs are kept", |c, t| {
        parse::put(&mut c.retention_failed, duration::between(t, SECOND, 3650 * DAY))
    })
    .default("90d"),
    Row::new(
        "retention_cancelled",
        "DURATION",
        "How long cancelled jobs are kept; as completed ones when not set",
        |c, t| parse::some(&mut c.retention_cancelled, duration::between(t, SECOND, 3650 * DAY)),
    ),
    Row::new("purge_hours", "HH:MM-HH:MM", "When ended jobs are removed, in UTC; at any time when not set", |c, t| {
        parse::some(&mut c.purge_hours, parse::hours(t))
    }),
    Row::new("retention_discarded", "DURATION", "How long discarded dead letters are kept for the audit", |c, t| {
        parse::put(&mut c.retention_discarded, duration::between(t, SECOND, 3650 * DAY))
    })
    .default("30d"),
    Row::new("retention_idempotency", "DURATION", "How long answers are kept for their Idempotency-Key", |c, t| {
        parse::put(&mut c.retention_idempotency, duration::between(t, SECOND, 3650 * DAY))
    })
    .default("7d"),
    Row::new("retention_audit", "DURATION", "How long it is known what operators did", |c, t| {
        parse::put(&mut c.retention_audit, duration::between(t, SECOND, 3650 * DAY))
    })
    .default("365d"),
    Row::new("retention_ticks", "DURATION", "How long it is known what became of the ticks of schedules", |c, t| {
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
        "Names of this host, beside localhost, under which an open API may be reached",
        |c, t| parse::put(&mut c.http_hosts, parse::list(t, parse::host_name)),
    )
    .list(),
    Row::new("http_connections", "N", "Open connections to the API; beyond them clients are turned away", |c, t| {
        parse::put(&mut c.http_connections, parse::number(t, 1..=1_000_000))
    })
    .default("2048"),
    Row::new("http_streams", "N", "Streams of events that may be open at the same time", |c, t| {
        parse::put(&mut c.http_streams, parse::number(t, 0..=100_000))
    })
    .default("256"),
    Row::new("http_header_timeout", "DURATION", "How long a client may take for the head of a request", |c, t| {
        parse::put(&mut c.http_header_timeout, duration::between(t, SECOND / 10, HOUR))
    })
    .default("10s"),
    Row::new(
        "http_body_timeout",
        "DURATION",
        "How long a client may take for a body, or a part of an import",
        |c, t| parse::put(&mut c.http_body_timeout, duration::between(t, SECOND / 10, HOUR)),
    )
    .default("30s"),
    Row::new("http_write_timeout", "DURATION", "How long a client may leave its answer unread", |c, t| {
        parse::put(&mut c.http_write_timeout, duration::between(t, SECOND / 10, HOUR))
    })
    .default("20s"),
    Row::new("http_idle_timeout", "DURATION", "How long a connection may rest between two requests", |c, t| {
        parse::put(&mut c.http_idle_timeout, duration::between(t, SECOND / 10, HOUR))
    })
    .default("75s"),
    Row::new("log", "FILTER", "What is logged: a level, or targets with levels", |c, t| {
        parse::put(&mut c.log, parse::log_filter(t))
    })
    .default("info"),
    Row::new("log_format", "FORMAT", "How it is logged: text or json", |c, t| {
        parse::put(&mut c.log_format, parse::one_of(t, &[("text", LogFormat::Text), ("json", LogFormat::Json)]))
    })
    .default("text"),
    Row::new(
        "otlp_endpoint",
        "URL",
        "Collector of traces that takes OTLP over HTTP, like http://localhost:4318; or OTEL_EXPORTER_OTLP_ENDPOINT",
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
    Row::new("otlp_sample", "SHARE", "Share of the traces that begin here and are recorded, 0 to 1", |c, t| {
        parse::put(&mut c.otlp_sample, parse::number(t, 0.0..=1.0))
    })
    .default("1"),
    Row::new("otlp_service", "NAME", "What the collector knows this service by; or OTEL_SERVICE_NAME", |c, t| {
        parse::put(&mut c.otlp_service, parse::line(t))
    })
    .default("tickr")
    .also("OTEL_SERVICE_NAME"),
    Row::new(
        "email_senders",
        "ADDRESSES",
        "Domains and addresses that mails may come from, comma separated; any when not set",
        |c, t| parse::put(&mut c.email_senders, parse::list(t, parse::domain_or_address)),
    )
    .list(),
    Row::new(
        "email_recipients",
        "ADDRESSES",
        "Domains and addresses that mails may go to, comma separated; any when not set",
        |c, t| parse::put(&mut c.email_recipients, parse::list(t, parse::domain_or_address)),
    )
    .list(),
    Row::new("outbox_dir", "DIR", "Write mails here as .eml files instead of sending them", |c, t| {
        parse::some(&mut c.outbox_dir, parse::line(t).map(Into::into))
    }),
    Row::new("reports_dir", "DIR", "Where report files are written", |c, t| {
        parse::put(&mut c.reports_dir, parse::line(t).map(Into::into))
    })
    .default("reports"),
    Row::new(
        "callback_secret",
        "SECRETS",
        "Signs callbacks: whsec_ and base64; two, comma separated, while changing over",
        |c, t| parse::put(&mut c.callback_secret, callback::secrets(t)),
    )
    .secrecy(Secrecy::Secret)
    .list(),
    Row::new(
        "callback_host_secrets",
        "PAIRS",
        "Secrets of single hosts, which sign for no other: shop.example=whsec_…, or *.shop.example for all names below; in the file also a table",
        |c, t| parse::put(&mut c.callback_host_secrets, callback::host_secrets(t)),
    )
    .secrecy(Secrecy::Secret)
    .pairs(),
    Row::new(
        "callback_allow",
        "HOSTS",
        "Hosts and networks of your own that callbacks may reach, like 10.20.0.0/16,shop.internal",
        |c, t| parse::put(&mut c.callback_allow, callback::allowed(t)),
    )
    .list(),
    Row::new(
        "callback_allow_private",
        "BOOL",
        "Let callbacks reach every loopback and private address but cloud metadata",
        |c, t| parse::put(&mut c.callback_allow_private, parse::switch(t)),
    )
    .switch(),
    Row::new(
        "test_kinds",
        "BOOL",
        "Register the kinds for tests and benches: noop, sleep, fail, panic, spin, abort, hoard",
        |c, t| parse::put(&mut c.test_kinds, parse::switch(t)),
    )
    .switch(),
];
