//! `tickr dev`: everything on one machine, with private servers in a data folder.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};
use tickr::app::{App, SHUTDOWN, Signals};
use tickr::broker::{Draft, Enqueued};
use tickr::config::{CallbackSecret, Config, Flags, Loaded, Subset};
use tickr::engine::ChildProgram;
use tickr::event::Event;
use tickr::handlers::Registry;
use tickr::job::{Due, JobId, State};
use tickr::services::{Address, Options, Services};

use crate::Done;

/// The sample report, over tickr's own tables.
const SAMPLE_REPORT: &str = r#"
[reports.queries.jobs_by_state]
title = "Jobs by kind and state"
description = "A sample over tickr's own tables"
sql = """
SELECT j.kind, COALESCE(o.state, a.end_state) AS state, COUNT(*) AS jobs,
  MIN(j.created_at) AS oldest, MAX(j.created_at) AS newest
FROM jobs j LEFT JOIN owed o ON o.id = j.id
  LEFT JOIN attempts a ON a.job_id = j.id AND a.end_state IS NOT NULL
    AND a.number = (SELECT MAX(l.number) FROM attempts l WHERE l.job_id = j.id)
WHERE j.created_at >= :since GROUP BY 1, 2 ORDER BY 1, 2
"""
params = [{ name = "since", type = "timestamp", default = 1970-01-01T00:00:00Z }]
"#;

pub(crate) fn command() -> Command {
    let command = Command::new("dev")
        .about("Run tickr with private MySQL and Redis servers in a data folder")
        .long_about(
            "Starts a private MySQL (or MariaDB) and Redis in the data folder, migrates, serves, and enqueues a few sample \
             jobs. Mails are written to an outbox, callbacks may go to this machine. Ctrl-C stops everything; the data \
             folder keeps the jobs.",
        )
        .arg(
            Arg::new("dir")
                .long("dir")
                .value_name("DIR")
                .default_value(".tickr")
                .value_parser(value_parser!(PathBuf))
                .help("The data folder"),
        )
        .arg(Arg::new("no-samples").long("no-samples").action(ArgAction::SetTrue).help("Enqueue no sample jobs"));
    Flags::args(command, Subset::All)
}

pub(crate) fn run(matches: &ArgMatches) -> Done {
    let began = Instant::now();
    let dir = matches.get_one::<PathBuf>("dir").cloned().unwrap_or_else(|| ".tickr".into());
    std::fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    let dir = dir.canonicalize().with_context(|| format!("find {}", dir.display()))?;
    // The configuration is read before the servers start: a mistake in it is answered at once. What stands in for
    // their addresses here is never used.
    let flags = Flags::from_matches(matches);
    let loaded = crate::load_flags(
        &flags.clone().with("mysql_url", "mysql://localhost/tickr").with("redis_url", "redis://placeholder"),
    )?;
    // Signals before servers: a Ctrl-C during their start stops them in order as well.
    let runtime = crate::runtime()?;
    let mut signals = runtime.block_on(async { Signals::register() })?;
    let services = Services::start(&Options::persistent(dir.join("servers")))?;
    let flags = flags.with("mysql_url", services.mysql_url("tickr")).with("redis_url", services.redis_url());
    let defaults = defaults(&loaded, &dir)?;
    let loaded = Config::load_with_defaults(&flags, Config::process_env(), Config::usual_file(), &defaults)?;
    let Loaded { config, sources, .. } = loaded;
    let child = ChildProgram::of_this_process(sources)?;
    let outcome = runtime.block_on(async {
        tickr::store::Store::create_database(&services.mysql_url("tickr")).await?;
        let app = App::start_with(&config, Registry::new(), Some(child)).await?;
        let addresses = Addresses::write(&app, &config, &dir)?;
        welcome(&app, &config, &services, &dir, &addresses).await;
        if !matches.get_flag("no-samples") {
            // A signal meanwhile is kept by the stream and seen right after.
            let enqueued = enqueue_samples(&app, began).await;
            enqueued.unwrap_or_else(|error| tracing::warn!(%error, "could not enqueue the sample jobs"));
        }
        app.run_until_signalled(&mut signals).await;
        anyhow::Ok(())
    });
    runtime.shutdown_timeout(SHUTDOWN);
    // The servers go last, also after a failed start.
    drop(services);
    Ok(outcome?)
}

/// What a development machine wants and nothing else was said about: an outbox, reports in the data folder, signed
/// callbacks to this machine, a free port, the sample report. Written like a file and read below it, so that processes of
/// suspects, which read all of it again, have the same configuration.
fn defaults(loaded: &Loaded, dir: &Path) -> anyhow::Result<String> {
    let Loaded { config, origins, .. } = loaded;
    let is_default =
        |name: &str| origins.get(name).is_none_or(|effective| effective.origin == tickr::config::Origin::Default);
    let dir_name = dir.to_str().with_context(|| format!("{} is not UTF-8; name another folder", dir.display()))?;
    let mut values = vec![
        ("outbox_dir", toml::Value::from(format!("{dir_name}/outbox"))),
        ("reports_dir", format!("{dir_name}/reports").into()),
        ("callback_allow_private", true.into()),
    ];
    if is_default("callback_secret") {
        values.push(("callback_secret", callback_secret(dir)?.show().into()));
    }
    if is_default("http_addr") && TcpListener::bind(config.http_addr).is_err() {
        tracing::warn!(taken = %config.http_addr, "the usual port is taken, using a free one");
        values.push(("http_addr", "127.0.0.1:0".into()));
    }
    let lines: String = values.into_iter().map(|(name, value)| format!("{name} = {value}\n")).collect();
    Ok(lines + SAMPLE_REPORT)
}

/// The secret that signs the callbacks of this data folder: made once, so that receivers need to be told once.
fn callback_secret(dir: &Path) -> anyhow::Result<CallbackSecret> {
    let path = dir.join("callback-secret");
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let text = CallbackSecret::generate();
            let mut options = std::fs::OpenOptions::new();
            options.write(true).create_new(true);
            #[cfg(unix)]
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
            let mut file = options.open(&path).with_context(|| format!("create {}", path.display()))?;
            writeln!(file, "{text}").with_context(|| format!("write {}", path.display()))?;
            text
        }
        Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
    };
    CallbackSecret::parse(text.trim()).with_context(|| {
        format!("{} holds no callback secret; delete it, and the next start makes another", path.display())
    })
}

/// A file of this folder that names the running servers to the other commands, such as `tickr verify`. It is not for the
/// screen: where the servers listen on ports, their addresses carry a password. Removed at the end, with the servers.
struct Addresses(PathBuf);

impl Addresses {
    fn write(app: &App, config: &Config, dir: &Path) -> anyhow::Result<Self> {
        let quoted = |text: &str| format!("'{}'", text.replace('\'', "'\\''"));
        let text: String = [
            ("TICKR_URL", format!("http://{}", app.addr())),
            ("TICKR_MYSQL_URL", config.mysql_url()?.expose().to_owned()),
            ("TICKR_REDIS_URL", config.redis_url()?.expose().to_owned()),
            ("TICKR_REDIS_PREFIX", config.redis_prefix.clone()),
        ]
        .into_iter()
        .map(|(name, value)| format!("export {name}={}\n", quoted(&value)))
        .collect();
        let path = dir.join("env");
        let _ = std::fs::remove_file(&path);
        let open = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let written = open.and_then(|mut file| file.write_all(text.as_bytes()));
        written.with_context(|| format!("write {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

async fn welcome(app: &App, config: &Config, services: &Services, dir: &Path, addresses: &Addresses) {
    let url = format!("http://{}", app.addr());
    // Passwords are masked; private servers have some only where they listen on ports.
    let [mysql, redis] =
        [config.mysql_url(), config.redis_url()].map(|url| url.map(ToString::to_string).unwrap_or_default());
    println!("tickr {} is running; Ctrl-C stops it\n", env!("CARGO_PKG_VERSION"));
    println!("  dashboard  {url}/");
    println!("  API        {url}/docs");
    println!("  OpenAPI    {url}/openapi.json");
    println!("  data       {}", dir.display());
    println!("  outbox     {}", config.outbox_dir.as_deref().unwrap_or(dir).display());
    println!("  MySQL      {mysql}");
    println!("  Redis      {redis}");
    // Of this machine alone, and its receivers need it.
    if let [secret] = config.callback_secret.as_slice() {
        println!("  callbacks are signed with {}", secret.show());
    }
    println!();
    println!("in another terminal, for tickr verify, check, rebuild and all other commands:\n");
    println!("  . '{}'", addresses.0.display().to_string().replace('\'', "'\\''"));
    println!("  tickr verify\n");
    println!("to look into the servers:\n");
    println!("  {}", place(services.mysql().address(), "mariadb -u root --socket=", "tickr"));
    println!("  {}\n", place(services.redis().address(), "redis-cli -s ", ""));
    if let Ok(stats) = app.broker().store().stats().await {
        let owed: i64 = stats.owed.iter().map(|count| count.jobs).sum();
        let ended: i64 = stats.ended.iter().map(|count| count.jobs).sum();
        if owed + ended > 0 {
            println!("found {} jobs from earlier runs, {owed} of them unfinished\n", owed + ended);
        }
    }
    println!("enqueue a job:\n");
    println!(
        "  curl -s {url}/v1/jobs -H 'content-type: application/json' \\\n    -d '{{\"kind\":\"email\",\"payload\":{{\"to\":\"ada@example.com\",\"subject\":\"Hello\",\"text\":\"It works.\"}}}}'\n"
    );
}

/// How to look into a private server by hand.
fn place(address: &Address, client: &str, database: &str) -> String {
    match address {
        Address::Socket(path) => format!("{client}{} {database}", path.display()),
        // Behind a password, which is not for the screen: the folder of the servers holds it.
        Address::Tcp(port) => format!("127.0.0.1:{port}"),
    }
}

/// One job of each kind that ships, and the first of them watched to its end.
async fn enqueue_samples(app: &App, began: Instant) -> anyhow::Result<()> {
    let raw = |value: serde_json::Value| -> anyhow::Result<Box<RawValue>> { Ok(to_raw_value(&value)?) };
    let mut email = Draft::new(
        "email",
        raw(json!({
            "to": "you@example.com", "subject": "Welcome to tickr", "text": "This mail went through the outbox of tickr dev."
        }))?,
    );
    email.queue = Some("default".into());
    let callback = Draft::new("http", raw(json!({"method": "GET", "url": format!("http://{}/livez", app.addr())}))?);
    let mut report = Draft::new(
        "report",
        raw(json!({
            "query": "jobs_by_state", "format": "html",
            "email": {"to": ["you@example.com"], "subject": "Your first report", "text": "The report is attached."}
        }))?,
    );
    report.due = Due::After(Duration::from_secs(2));
    let mut events = app.broker().events().listen();
    let mut watched: Option<JobId> = None;
    for draft in [email, callback, report] {
        let kind = draft.kind.clone();
        let job = app.broker().prepare(draft).with_context(|| format!("the sample {kind} job"))?;
        if let Enqueued::Accepted(accepted) = app.broker().enqueue(job).await? {
            watched.get_or_insert(accepted.id);
            println!("enqueued a sample {kind} job: http://{}/v1/jobs/{}", app.addr(), accepted.id);
        }
    }
    let done = async {
        loop {
            match events.recv().await {
                Ok(Event::Settled { id, state: State::Completed, .. }) if Some(id) == watched => return,
                Ok(_) | Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => {}
                Err(tokio::sync::broadcast::error::RecvError::Closed) => return,
            }
        }
    };
    if tokio::time::timeout(Duration::from_secs(5), done).await.is_ok() {
        println!("\nthe first job completed {:.1} s after the start", began.elapsed().as_secs_f64());
    }
    Ok(())
}
