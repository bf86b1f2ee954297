//! What an operator can set, read once at the start and typed from then on.
//!
//! A setting is one row of [`SETTINGS`]. From that row come its flag, its environment variable, its key in
//! the file, its help, its line in `tickr config` and its line in the README. The layers are asked in this order:
//!
//! 1. the flag, `--mysql-url`
//! 2. the environment, `TICKR_MYSQL_URL`; an empty variable counts as not set. A few settings also have a variable that
//!    other programs know, such as `OTEL_SERVICE_NAME`, asked after their own
//! 3. the file, `mysql_url` in `tickr.toml`
//! 4. the default of the row
//!
//! Lists and tables of things (`[smtp]`, `[kinds.<kind>]`, `[reports]`) live in the file only, apart from their
//! secrets. [`Config::load`] reads no global state and reports every problem at once, each with where it came from and
//! what would be right. Secrets never show: not in errors, not in `Debug`, not in [`Origins`].
//!
//! | file | noun |
//! |---|---|
//! | `settings`, `setting` | the table, and what a row is |
//! | `load`, `sections` | the layers and the checks across settings; the sections of the file |
//! | `file`, `flags` | the sources that need reading; the environment is a map |
//! | `sources` | what a configuration was made from, to make it again |
//! | `origin`, `error` | where a value came from, what is wrong with it |
//! | `smtp`, `kinds`, `alerts`, `schedules` | what the sections of that name hold |
//! | `reports`, `param`, `param_draft`, `statement` | the reports, their parameters and their SQL |
//! | `url`, `callback`, `duration`, `size`, `parse` | kinds of value |
//! | `markdown` | the table of the README |

mod alerts;
mod callback;
mod duration;
mod error;
mod file;
mod flags;
mod kinds;
mod load;
mod markdown;
mod origin;
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

use crate::job::{Hours, Name, suggest};

pub use alerts::{Alerts, Threshold};
pub use callback::{Allowed, CallbackSecret, HostSecrets};
pub use duration::parse as parse_duration;
pub use error::{ConfigError, ConfigErrors, ConfigWarning};
pub use flags::{Flags, Subset};
pub use kinds::KindConfig;
pub use markdown::markdown_table;
pub use origin::{Effective, Origin, Origins};
pub use param::{ParamError, ParamType, ParamValue, ReportParam};
pub use reports::{ReportQuery, Reports};
pub use schedules::ScheduleConfig;
pub use setting::{Reach, Secrecy, Setting, Shape};
pub use settings::SETTINGS;
pub use smtp::{Smtp, SmtpTls};
pub use sources::Sources;
pub use statement::{Statement, StatementError};
pub use url::{ServerUrl, UrlError};

/// The whole configuration of a runner. Every field has been checked, alone and together with the others.
#[derive(Debug, Clone)]
pub struct Config {
    /// The store. Set whenever the command required it, see [`Config::mysql_url`].
    pub mysql_url: Option<ServerUrl>,
    /// The index. Set whenever the command required it, see [`Config::redis_url`].
    pub redis_url: Option<ServerUrl>,
    /// Where the API listens; port 0 lets the system choose. Beyond loopback only with `api_tokens` or keys.
    pub http_addr: SocketAddr,
    /// The tokens the API accepts; none means that it is open.
    pub api_tokens: Vec<SecretString>,
    /// Jobs at the same time, 1 to 4096.
    pub workers: usize,
    /// The queues to serve, at least one, each once.
    pub queues: Vec<String>,
    /// How long a runner that stopped renewing keeps its jobs.
    pub lease: Duration,
    /// How long running jobs may finish after SIGTERM.
    pub shutdown_grace: Duration,
    /// How long the API goes on after the signal, so that a balancer that reads readiness can look elsewhere first.
    pub shutdown_notice: Duration,
    /// How far ahead the index looks.
    pub horizon: Duration,
    /// The first part of every index key, without braces.
    pub redis_prefix: String,
    /// Entries of a ready list above which no more are moved in.
    pub ready_high_water: usize,
    /// Entries of a ready list below which it is filled up; less than the high water.
    pub ready_low_water: usize,
    /// Connections to MySQL for everything but the writes of jobs, the heartbeat and reports, which have their own. The store
    /// splits them, so that reads cannot starve the loops.
    pub mysql_connections: u32,
    /// Refuse to start when MySQL does not fsync commits.
    pub strict_durability: bool,
    /// How long completed and cancelled jobs are kept.
    pub retention_completed: Duration,
    /// How long failed jobs are kept.
    pub retention_failed: Duration,
    /// How long cancelled jobs are kept; as completed ones when absent.
    pub retention_cancelled: Option<Duration>,
    /// When ended jobs may be removed, in UTC; at any time when absent.
    pub purge_hours: Option<Hours>,
    /// How long discarded dead letters are kept, since they were discarded.
    pub retention_discarded: Duration,
    /// How long answers are kept for their idempotency keys.
    pub retention_idempotency: Duration,
    /// How long it is known what operators did.
    pub retention_audit: Duration,
    /// How long it is known what became of the ticks of schedules.
    pub retention_ticks: Duration,
    /// The largest request body in bytes.
    pub body_limit_bytes: usize,
    /// Names of this host beside `localhost`, in lower case.
    pub http_hosts: Vec<String>,
    /// Open connections of clients, at least one.
    pub http_connections: usize,
    /// Open streams of events, which count as connections as well.
    pub http_streams: usize,
    /// How long the head of a request may take from its first byte.
    pub http_header_timeout: Duration,
    /// How long the body of a request may take; of an import, each part of it.
    pub http_body_timeout: Duration,
    /// How long a client may leave its answer unread.
    pub http_write_timeout: Duration,
    /// How long a connection may rest between two requests.
    pub http_idle_timeout: Duration,
    /// The log filter, known to parse.
    pub log: String,
    /// How log lines look.
    pub log_format: LogFormat,
    /// The collector of traces, if there is one: where its `/v1/traces` is.
    pub otlp_endpoint: Option<String>,
    /// Headers for the collector: name and value.
    pub otlp_headers: Vec<(String, SecretString)>,
    /// Share of the traces that begin here and are recorded, 0 to 1.
    pub otlp_sample: f64,
    /// What the collector knows this service by.
    pub otlp_service: String,
    /// Domains and addresses that mails may come from; any when empty.
    pub email_senders: Vec<String>,
    /// Domains and addresses that mails may go to; any when empty.
    pub email_recipients: Vec<String>,
    /// Where mails go instead of to a server.
    pub outbox_dir: Option<PathBuf>,
    /// Where report files are written.
    pub reports_dir: PathBuf,
    /// The secrets that sign callbacks, the new one first; none, one or two.
    pub callback_secret: Vec<CallbackSecret>,
    /// The secrets of single hosts, each host once. The usual ones sign nothing that goes there.
    pub callback_host_secrets: Vec<HostSecrets>,
    /// Let callbacks reach loopback and private addresses.
    pub callback_allow_private: bool,
    /// Hosts and networks beside the public internet that callbacks may reach.
    pub callback_allow: Vec<Allowed>,
    /// Register the kinds for tests and benches.
    pub test_kinds: bool,
    /// The mail server, if there is one.
    pub smtp: Option<Smtp>,
    /// Overrides by kind. Whether the kind exists is not known here; the registry checks it.
    pub kinds: BTreeMap<String, KindConfig>,
    /// Whom to tell of dead letters, if anybody.
    pub alerts: Option<Alerts>,
    /// The reports.
    pub reports: Reports,
    /// The schedules that are declared here, by name. Whether their kinds exist and take the payloads is not known here.
    pub schedules: BTreeMap<Name, ScheduleConfig>,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For collectors.
    Json,
}

/// A configuration with what is worth telling about it.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// Every setting in force and where it came from, safe to print.
    pub origins: Origins,
    /// Things that look like mistakes, to be logged as warnings.
    pub warnings: Vec<ConfigWarning>,
    /// What it was made from, for another process of the same binary.
    pub sources: Sources,
}

impl Config {
    /// Loads the configuration from its layers.
    ///
    /// The file is the one of `--config`, else of `TICKR_CONFIG`, else `file`: pass [`Config::usual_file`] there, and
    /// [`Config::process_env`] for `env`.
    pub fn load(
        flags: &Flags,
        env: impl Iterator<Item = (String, String)>,
        file: Option<PathBuf>,
    ) -> Result<Loaded, ConfigErrors> {
        load::load(flags, env, file, "")
    }

    /// As [`Config::load`], for a program with defaults of its own. They are written like the file and stand below it: a
    /// setting that flag, environment and file leave out has its value from there.
    pub fn load_with_defaults(
        flags: &Flags,
        env: impl Iterator<Item = (String, String)>,
        file: Option<PathBuf>,
        defaults: &str,
    ) -> Result<Loaded, ConfigErrors> {
        load::load(flags, env, file, defaults)
    }

    /// The configuration that these sources made once, made again. Reads no file.
    pub fn load_again(sources: &Sources) -> Result<Loaded, ConfigErrors> {
        load::load_again(sources)
    }

    /// `tickr.toml` in the working directory, if it exists.
    pub fn usual_file() -> Option<PathBuf> {
        Some(PathBuf::from(FILE_NAME)).filter(|path| Path::exists(path))
    }

    /// The `TICKR_*` and `OTEL_*` variables of the process. One that is not valid Unicode arrives damaged and is then refused by its
    /// parser, where `std::env::vars` would panic.
    pub fn process_env() -> impl Iterator<Item = (String, String)> {
        let text = |os: std::ffi::OsString| os.to_string_lossy().into_owned();
        std::env::vars_os()
            .map(move |(name, value)| (text(name), text(value)))
            .filter(|(name, _)| name.starts_with("TICKR_") || name.starts_with("OTEL_"))
    }

    /// Every setting at its default, without servers.
    pub fn defaults() -> Config {
        load::defaults()
    }

    /// Small and quick values for tests: a free port, few workers, a short lease, the test kinds.
    ///
    /// # Panics
    /// When a URL does not parse.
    pub fn for_tests(mysql_url: &str, redis_url: &str) -> Config {
        Config {
            mysql_url: Some(ServerUrl::mysql(mysql_url).expect("a MySQL URL")),
            redis_url: Some(ServerUrl::redis(redis_url).expect("a Redis URL")),
            http_addr: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            workers: 4,
            lease: Duration::from_secs(2),
            shutdown_grace: Duration::from_secs(2),
            shutdown_notice: Duration::ZERO,
            mysql_connections: 16,
            callback_allow_private: true,
            callback_allow: Vec::new(),
            test_kinds: true,
            ..Config::defaults()
        }
    }

    /// The store's URL, or the error of a command that forgot to require it.
    pub fn mysql_url(&self) -> Result<&ServerUrl, ConfigErrors> {
        self.mysql_url.as_ref().ok_or_else(|| missing("mysql_url"))
    }

    /// The index's URL, or the error of a command that forgot to require it.
    pub fn redis_url(&self) -> Result<&ServerUrl, ConfigErrors> {
        self.redis_url.as_ref().ok_or_else(|| missing("redis_url"))
    }

    /// What the table writes into. The zeros never get out: a row has a default or its field is optional.
    fn blank() -> Config {
        Config {
            mysql_url: None,
            redis_url: None,
            http_addr: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            api_tokens: Vec::new(),
            workers: 0,
            queues: Vec::new(),
            lease: Duration::ZERO,
            shutdown_grace: Duration::ZERO,
            shutdown_notice: Duration::ZERO,
            horizon: Duration::ZERO,
            redis_prefix: String::new(),
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
            http_header_timeout: Duration::ZERO,
            http_body_timeout: Duration::ZERO,
            http_write_timeout: Duration::ZERO,
            http_idle_timeout: Duration::ZERO,
            log: String::new(),
            log_format: LogFormat::Text,
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
            callback_allow: Vec::new(),
            test_kinds: false,
            smtp: None,
            kinds: BTreeMap::new(),
            alerts: None,
            reports: Reports::blank(),
            schedules: BTreeMap::new(),
        }
    }
}

fn missing(setting: &str) -> ConfigErrors {
    ConfigErrors(vec![ConfigError {
        setting: setting.to_owned(),
        origin: Origin::Default,
        value: None,
        wrong: "required but not set".to_owned(),
        right: format!("give {setting} as a flag, in the environment or in the file"),
    }])
}

/// The file that is read when nobody names one.
const FILE_NAME: &str = "tickr.toml";

#[cfg(test)]
mod tests;
