//! The settings of an operator, read once at the start and typed from then on.
//!
//! A setting is one row of [`SETTINGS`]. That row defines its flag, its environment variable, its key in the file, its
//! help, its line in `tickr config` and its line in the documentation. The sources are read in this order:
//!
//! 1. the flag, `--mysql-url`
//! 2. the environment, `TICKR_MYSQL_URL`; an empty variable counts as not set. A few settings also have a variable that
//!    other programs use, such as `OTEL_SERVICE_NAME`, which is read after their own
//! 3. the file, `mysql_url` in `tickr.toml`
//! 4. the default of the row
//!
//! Lists and sections (`[smtp]`, `[kinds.<kind>]`, `[reports]`, `[outboxes.<name>]`) are in the file only, except their
//! secrets.
//! [`Config::load`] reads no global state and reports every problem at once, each with its origin and a correction.
//! Secrets are never shown: not in errors, not in `Debug`, not in [`Origins`].
//!
//! - `alerts`: `[alerts]`, the alerts about dead letters
//! - `callback`: values of the callback settings: secrets and permitted targets
//! - `compat`: `[compat.delayed]` and `[compat.later]`, interfaces of other services
//! - `duration`: values that are durations
//! - `error`: the error and warning types
//! - `file`: the configuration file as a tree with line numbers
//! - `flags`: the command line flags
//! - `kinds`: `[kinds.<kind>]`, overrides for one kind
//! - `load`: the order of the sources, and the checks across settings
//! - `markdown`: the table of the documentation
//! - `origin`: the origin of a value
//! - `outboxes`: `[outboxes.<name>]`, outboxes in databases of applications
//! - `param`: the parameters of a report query and their values
//! - `param_draft`: the declaration of a parameter in the file
//! - `parse`: parsers of simple values
//! - `reports`: `[reports]`, the named queries of reports and their limits
//! - `schedules`: `[schedules.<name>]`, declared schedules
//! - `sections`: the sections of the file, read by their tables
//! - `setting`: the type of one row of a settings table
//! - `settings`: the table of all settings outside sections
//! - `size`: values that are byte sizes
//! - `smtp`: `[smtp]`, the mail server
//! - `sources`: the inputs of a configuration, to load it again in another process
//! - `statement`: the SQL of a report with its placeholders
//! - `tests`: tests of the whole configuration
//! - `url`: server URLs that may contain a password

mod alerts;
mod callback;
mod compat;
mod duration;
mod error;
mod file;
mod flags;
mod kinds;
mod load;
mod markdown;
mod origin;
mod outboxes;
mod param;
mod param_draft;
mod parse;
mod reports;
mod schedules;
mod sections;
mod setting;
mod settings;
mod size;
mod smtp;
mod sources;
mod statement;
mod url;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use secrecy::SecretString;
use tracing_subscriber::filter::LevelFilter;

use tickr_job::{Hours, Name, TablePrefix, suggest};

pub use alerts::{Alerts, Threshold};
pub use callback::{Allowed, CallbackSecret, HostSecrets};
pub use compat::{Compat, DelayedMessages};
pub use duration::parse as parse_duration;
pub use error::{ConfigError, ConfigErrors, ConfigWarning};
pub use flags::{Flags, Subset};
pub use kinds::KindConfig;
pub use markdown::markdown_table;
pub use origin::{Effective, Origins, SettingOrigin};
pub use outboxes::Outbox;
pub use param::{ParamError, ParamType, ParamValue, ReportParam};
pub use reports::{ReportQuery, Reports};
pub use schedules::ScheduleConfig;
pub use setting::{Reach, Secrecy, Setting, Shape};
pub use settings::SETTINGS;
pub use smtp::{Smtp, SmtpTls};
pub use sources::Sources;
pub use statement::{Statement, StatementError};
pub use url::{ServerUrl, UrlError};

/// The whole configuration of a runner. Every field has been checked, alone and in combination with the others.
#[derive(Debug, Clone)]
pub struct Config {
    /// URL of the store. Set if the command required it, see [`Config::mysql_url`].
    pub mysql_url: Option<ServerUrl>,
    /// URL of the index. Set if the command required it, see [`Config::redis_url`].
    pub redis_url: Option<ServerUrl>,
    /// PEM file with the authorities that connections to Redis trust, in place of the public ones.
    pub redis_ca_file: Option<PathBuf>,
    /// PEM file with the certificate of tickr for Redis.
    pub redis_cert_file: Option<PathBuf>,
    /// PEM file with the private key of `redis_cert_file`.
    pub redis_key_file: Option<PathBuf>,
    /// Address of the API; with port 0 the system chooses a port. An address beyond loopback requires `api_tokens` or
    /// API keys.
    pub http_addr: SocketAddr,
    /// The tokens that the API accepts. Without tokens and API keys the API is open.
    pub api_tokens: Vec<SecretString>,
    /// Number of jobs executed at the same time, 1 to 4096.
    pub workers: usize,
    /// The queues to serve, at least one, each once.
    pub queues: Vec<String>,
    /// Serve the API and run no loop that starts, moves, ends or removes anything.
    pub held: bool,
    /// Time after the last renewal at which a runner loses its jobs.
    pub lease: Duration,
    /// Time that running jobs get to finish after SIGTERM.
    pub shutdown_grace: Duration,
    /// Time that the API keeps serving after the signal, so that a load balancer that reads readiness can redirect
    /// clients first.
    pub shutdown_notice: Duration,
    /// Jobs due within this time are put into the index.
    pub horizon: Duration,
    /// The first part of the name of every table.
    pub table_prefix: TablePrefix,
    /// The first part of every index key, without braces.
    pub redis_prefix: String,
    /// Number of partitions of the index.
    pub index_partitions: usize,
    /// Number of entries of a ready list above which no more are moved in.
    pub ready_high_water: usize,
    /// Number of entries of a ready list below which it is refilled; less than `ready_high_water`.
    pub ready_low_water: usize,
    /// MySQL connections for everything except job writes, the heartbeat and reports, which have their own. The store
    /// divides them, so that reads cannot starve the loops.
    pub mysql_connections: u32,
    /// Refuse to start if MySQL does not fsync commits.
    pub strict_durability: bool,
    /// Retention of completed jobs.
    pub retention_completed: Duration,
    /// Retention of failed jobs.
    pub retention_failed: Duration,
    /// Retention of cancelled jobs; that of completed jobs if absent.
    pub retention_cancelled: Option<Duration>,
    /// Hours when ended jobs may be removed, in UTC; at any time if absent.
    pub purge_hours: Option<Hours>,
    /// Retention of discarded dead letters, counted from the discard.
    pub retention_discarded: Duration,
    /// Retention of the responses stored for idempotency keys.
    pub retention_idempotency: Duration,
    /// Retention of audit records.
    pub retention_audit: Duration,
    /// Retention of the recorded ticks of schedules.
    pub retention_ticks: Duration,
    /// Maximum size of a request body in bytes.
    pub body_limit_bytes: usize,
    /// Names of this host in addition to `localhost`, in lower case.
    pub http_hosts: Vec<String>,
    /// Maximum number of open client connections, at least one.
    pub http_connections: usize,
    /// Maximum number of open event streams, which count as connections too.
    pub http_streams: usize,
    /// Maximum number of requests that wait: of remote workers for jobs, and of clients for results.
    pub http_polls: usize,
    /// Time limit for the head of a request, from its first byte.
    pub http_header_timeout: Duration,
    /// Time limit for the body of a request; for an import, for each part of it.
    pub http_body_timeout: Duration,
    /// Time limit for a client that does not read its response.
    pub http_write_timeout: Duration,
    /// Maximum idle time of a connection between two requests.
    pub http_idle_timeout: Duration,
    /// The log filter, checked to be parseable.
    pub log: String,
    /// Format of the log lines.
    pub log_format: LogFormat,
    /// Level of the lines that are stored with each attempt, `DEBUG` at most. It does not depend on `log`.
    pub attempt_log: LevelFilter,
    /// Attempts whose log is stored.
    pub attempt_log_keep: KeptLogs,
    /// Base URL of the trace collector, if there is one: the part before `/v1/traces`.
    pub otlp_endpoint: Option<String>,
    /// Headers for the collector: name and value.
    pub otlp_headers: Vec<(String, SecretString)>,
    /// Share of the traces started here that are recorded, 0 to 1.
    pub otlp_sample: f64,
    /// Service name for the collector.
    pub otlp_service: String,
    /// Permitted senders of mails: domains and addresses; any if empty.
    pub email_senders: Vec<String>,
    /// Permitted recipients of mails: domains and addresses; any if empty.
    pub email_recipients: Vec<String>,
    /// Folder for mails that are written instead of sent.
    pub outbox_dir: Option<PathBuf>,
    /// Folder for report files.
    pub reports_dir: PathBuf,
    /// The secrets that sign callbacks, the new one first; none, one or two.
    pub callback_secret: Vec<CallbackSecret>,
    /// Secrets for single hosts, each host once. Callbacks to these hosts are not signed with `callback_secret`.
    pub callback_host_secrets: Vec<HostSecrets>,
    /// Let callbacks reach loopback and private addresses.
    pub callback_allow_private: bool,
    /// Longest time that a callback may wait for its answer.
    pub callback_timeout: Duration,
    /// File with certificates of authorities that callbacks trust besides the public ones.
    pub callback_ca_file: Option<PathBuf>,
    /// Hosts and networks outside the public internet that callbacks may reach.
    pub callback_allow: Vec<Allowed>,
    /// Register the kinds for tests and benchmarks.
    pub test_kinds: bool,
    /// The mail server, if there is one.
    pub smtp: Option<Smtp>,
    /// Overrides by kind. The registry checks that the kinds exist; that is not known here.
    pub kinds: BTreeMap<String, KindConfig>,
    /// Alerts about dead letters, if configured.
    pub alerts: Option<Alerts>,
    /// The reports.
    pub reports: Reports,
    /// The declared schedules, by name. Their kinds and payloads are checked later, because the kinds are not known
    /// here.
    pub schedules: BTreeMap<Name, ScheduleConfig>,
    /// The outboxes in databases of applications, by name; at most 16, each in another database.
    pub outboxes: BTreeMap<Name, Outbox>,
    /// The interfaces of other services that the API serves too.
    pub compat: Compat,
}

/// Format of the log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// JSON for log collectors.
    Json,
}

/// Attempts whose log is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeptLogs {
    /// All attempts.
    All,
    /// The attempts that did not succeed.
    Failed,
}

/// A configuration with the information to report about it.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// Every effective setting with its origin, safe to print.
    pub origins: Origins,
    /// Likely mistakes, to be logged as warnings.
    pub warnings: Vec<ConfigWarning>,
    /// The inputs of the configuration, for another process of the same binary.
    pub sources: Sources,
}

impl Config {
    /// Load the configuration from its sources.
    ///
    /// The file is the one of `--config`, else of `TICKR_CONFIG`, else `file`: pass [`Config::usual_file`] for `file`,
    /// and [`Config::process_env`] for `env`.
    pub fn load(
        flags: &Flags,
        env: impl Iterator<Item = (String, String)>,
        file: Option<PathBuf>,
    ) -> Result<Loaded, ConfigErrors> {
        load::load(flags, env, file, "")
    }

    /// Load the configuration like [`Config::load`], with defaults of the calling program. They have the syntax of the
    /// file and the lowest precedence above the built-in defaults: they apply to settings without a flag, variable or
    /// line in the file.
    pub fn load_with_defaults(
        flags: &Flags,
        env: impl Iterator<Item = (String, String)>,
        file: Option<PathBuf>,
        defaults: &str,
    ) -> Result<Loaded, ConfigErrors> {
        load::load(flags, env, file, defaults)
    }

    /// Load the configuration of a program that has a runner in it: the `TICKR_*` variables and the `tickr.toml` of `tickr
    /// serve`. `defaults` are settings of the program in the syntax of the file. They apply where the operator set nothing.
    pub fn from_env(defaults: &str) -> Result<Config, ConfigErrors> {
        let loaded = load::load(&Flags::default(), Self::process_env(), Self::usual_file(), defaults)?;
        Ok(loaded.config)
    }

    /// Load the configuration from stored sources. Reads no file.
    pub fn load_again(sources: &Sources) -> Result<Loaded, ConfigErrors> {
        load::load_again(sources)
    }

    /// Return `tickr.toml` in the working directory, if it exists.
    pub fn usual_file() -> Option<PathBuf> {
        Some(PathBuf::from(FILE_NAME)).filter(|path| Path::exists(path))
    }

    /// Return the `TICKR_*` and `OTEL_*` variables of the process. A variable that is not valid Unicode is converted
    /// with replacement characters, and its parser refuses it; `std::env::vars` would panic.
    pub fn process_env() -> impl Iterator<Item = (String, String)> {
        let text = |os: std::ffi::OsString| os.to_string_lossy().into_owned();
        std::env::vars_os()
            .map(move |(name, value)| (text(name), text(value)))
            .filter(|(name, _)| name.starts_with("TICKR_") || name.starts_with("OTEL_"))
    }

    /// Return the default of every setting, without servers.
    pub fn defaults() -> Config {
        load::defaults()
    }

    /// Return small and fast values for tests: a free port, few workers, the test kinds. The lease is longer than a
    /// slow machine stands still: a test must not lose an attempt that it holds.
    ///
    /// # Panics
    /// If a URL does not parse.
    pub fn for_tests(mysql_url: &str, redis_url: &str) -> Config {
        Config {
            mysql_url: Some(ServerUrl::mysql(mysql_url).expect("a MySQL URL")),
            redis_url: Some(ServerUrl::redis(redis_url).expect("a Redis URL")),
            http_addr: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            workers: 4,
            lease: Duration::from_secs(15),
            shutdown_grace: Duration::from_secs(2),
            shutdown_notice: Duration::ZERO,
            mysql_connections: 16,
            callback_allow_private: true,
            callback_timeout: Duration::from_secs(30),
            callback_allow: Vec::new(),
            test_kinds: true,
            ..Config::defaults()
        }
    }

    /// Return the first part of the index keys if the operator set none. Two tickrs with different tables may use one
    /// Redis, and must not take each other's entries for theirs.
    #[must_use]
    pub fn usual_redis_prefix(tables: &TablePrefix) -> String {
        if tables.is_empty() { "tickr".to_owned() } else { format!("tickr.{tables}") }
    }

    /// Return the store's URL, or the error for a command that did not require it.
    pub fn mysql_url(&self) -> Result<&ServerUrl, ConfigErrors> {
        self.mysql_url.as_ref().ok_or_else(|| missing("mysql_url"))
    }

    /// Return the index's URL, or the error for a command that did not require it.
    pub fn redis_url(&self) -> Result<&ServerUrl, ConfigErrors> {
        self.redis_url.as_ref().ok_or_else(|| missing("redis_url"))
    }

    /// Return the initial values that the table overwrites. The zeros are never visible: a row has a default or its
    /// field is optional.
    fn blank() -> Config {
        Config {
            mysql_url: None,
            redis_url: None,
            redis_ca_file: None,
            redis_cert_file: None,
            redis_key_file: None,
            http_addr: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            api_tokens: Vec::new(),
            workers: 0,
            queues: Vec::new(),
            held: false,
            lease: Duration::ZERO,
            shutdown_grace: Duration::ZERO,
            shutdown_notice: Duration::ZERO,
            horizon: Duration::ZERO,
            table_prefix: TablePrefix::default(),
            redis_prefix: String::new(),
            index_partitions: 1,
            ready_high_water: 0,
            ready_low_water: 0,
            mysql_connections: 0,
            strict_durability: false,
            retention_completed: Duration::ZERO,
            retention_failed: Duration::ZERO,
            retention_cancelled: None,
            purge_hours: None,
            retention_discarded: Duration::ZERO,
            retention_idempotency: Duration::ZERO,
            retention_audit: Duration::ZERO,
            retention_ticks: Duration::ZERO,
            body_limit_bytes: 0,
            http_hosts: Vec::new(),
            http_connections: 0,
            http_streams: 0,
            http_polls: 0,
            http_header_timeout: Duration::ZERO,
            http_body_timeout: Duration::ZERO,
            http_write_timeout: Duration::ZERO,
            http_idle_timeout: Duration::ZERO,
            log: String::new(),
            log_format: LogFormat::Text,
            attempt_log: LevelFilter::OFF,
            attempt_log_keep: KeptLogs::All,
            otlp_endpoint: None,
            otlp_headers: Vec::new(),
            otlp_sample: 0.0,
            otlp_service: String::new(),
            email_senders: Vec::new(),
            email_recipients: Vec::new(),
            outbox_dir: None,
            reports_dir: PathBuf::new(),
            callback_secret: Vec::new(),
            callback_host_secrets: Vec::new(),
            callback_allow_private: false,
            callback_timeout: Duration::ZERO,
            callback_ca_file: None,
            callback_allow: Vec::new(),
            test_kinds: false,
            smtp: None,
            kinds: BTreeMap::new(),
            alerts: None,
            reports: Reports::blank(),
            schedules: BTreeMap::new(),
            outboxes: BTreeMap::new(),
            compat: Compat::default(),
        }
    }
}

fn missing(setting: &str) -> ConfigErrors {
    ConfigErrors(vec![ConfigError {
        setting: setting.to_owned(),
        origin: SettingOrigin::Default,
        value: None,
        wrong: "required but not set".to_owned(),
        right: format!("give {setting} as a flag, in the environment or in the file"),
    }])
}

/// The file that is read if none is named.
const FILE_NAME: &str = "tickr.toml";

#[cfg(test)]
mod tests;
