//! `tickr dev`: a complete tickr on one machine, with private servers in a data folder.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};
use tickr::app::{App, SHUTDOWN, Signals, StartError};
use tickr::broker::{Draft, Enqueued};
use tickr::config::{CallbackSecret, Config, Flags, Loaded, SettingOrigin, Subset};
use tickr::engine::ChildProgram;
use tickr::event::Event;
use tickr::handlers::Registry;
use tickr::job::{Due, JobId, State};
use tickr::services::{Address, Options, Services};

use crate::CommandResult;

/// The sample report. It reads tickr's own tables, whose prefix it gets before it is used.
const SAMPLE_REPORT: &str = r#"
[reports.queries.jobs_by_state]
title = "Jobs by kind and state"
description = "A sample over tickr's own tables"
sql = """
SELECT j.kind, COALESCE(o.state, a.end_state) AS state, COUNT(*) AS jobs,
  MIN(j.created_at) AS oldest, MAX(j.created_at) AS newest
FROM {prefix}jobs j LEFT JOIN {prefix}owed o ON o.id = j.id
  LEFT JOIN {prefix}attempts a ON a.job_id = j.id AND a.end_state IS NOT NULL
    AND a.number = (SELECT MAX(l.number) FROM {prefix}attempts l WHERE l.job_id = j.id)
WHERE j.created_at >= :since GROUP BY 1, 2 ORDER BY 1, 2
"""
params = [{ name = "since", type = "timestamp", default = 1970-01-01T00:00:00Z }]
"#;

/// The settings of servers that are not private. Flags for them would have no effect.
const OF_OTHER_SERVERS: [&str; 5] = ["mysql_url", "redis_url", "redis_ca_file", "redis_cert_file", "redis_key_file"];
/// Time that servers have to become ready, and then to stop in order, when a signal comes during their start.
const PATIENCE_WITH_SERVERS: Duration = Duration::from_secs(5);

pub(crate) fn command() -> Command {
    let command = Command::new("dev")
        .about("Run tickr with private MySQL and Redis servers in a data folder")
        .long_about(
            "Start private MySQL (or MariaDB) and Redis servers in the data folder, create the tables, run jobs and \
             the HTTP API, and enqueue a few sample jobs. Mails are written to an outbox folder, and callbacks may go \
             to this machine. Ctrl-C stops everything; the data folder keeps the jobs.",
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
    Flags::args(command, Subset::AllBut(&OF_OTHER_SERVERS))
}

pub(crate) fn run(matches: &ArgMatches) -> CommandResult {
    let began = Instant::now();
    let dir = matches.get_one::<PathBuf>("dir").cloned().unwrap_or_else(|| ".tickr".into());
    std::fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    let dir = dir.canonicalize().with_context(|| format!("find {}", dir.display()))?;
    // Read the configuration before the servers start, so that a mistake in it is reported at once. The addresses given
    // here are placeholders and are never used.
    let flags = Flags::from_matches(matches);
    let loaded = crate::load_flags(
        &flags.clone().with("mysql_url", "mysql://localhost/tickr").with("redis_url", "redis://placeholder"),
    )?;
    // Register signals before the servers start, so that Ctrl-C during their start also stops them in order.
    let runtime = crate::runtime()?;
    let mut signals = runtime.block_on(async { Signals::register() })?;
    let options = Options::persistent(dir.join("servers"));
    let started = runtime.block_on(async {
        let mut starting = tokio::task::spawn_blocking(move || Services::start(&options));
        tokio::select! {
            services = &mut starting => Some(services),
            signal = signals.next() => {
                tracing::info!(signal, "stopped before the servers were ready");
                tokio::select! {
                    _ = starting => {}
                    () = tokio::time::sleep(PATIENCE_WITH_SERVERS) => {}
                    _ = signals.next() => {}
                }
                None
            }
        }
    });
    let Some(services) = started else {
        // If a server is still starting, its guard stops it when this process ends.
        runtime.shutdown_background();
        return Ok(());
    };
    let services = services??;
    let flags = flags.with("mysql_url", services.mysql_url("tickr")).with("redis_url", services.redis_url());
    let defaults = defaults(&loaded, &dir)?;
    let may_move = is_default(&loaded, "http_addr");
    let outcome = runtime.block_on(async {
        let starting = async {
            tickr::store::Store::create_database(&services.mysql_url("tickr")).await?;
            start(&flags, &defaults, may_move).await
        };
        let (app, config) = tokio::select! {
            started = starting => started?,
            signal = signals.next() => {
                tracing::info!(signal, "stopped before the start was complete");
                return Ok(());
            }
        };
        let addresses = Addresses::write(&app, &config, &dir)?;
        welcome(&app, &config, &services, &dir, &addresses).await;
        if !matches.get_flag("no-samples") {
            // These take milliseconds. A signal that arrives meanwhile stays in the stream and is handled right after.
            let enqueued = enqueue_samples(&app, began).await;
            enqueued.unwrap_or_else(|error| tracing::warn!(%error, "could not enqueue the sample jobs"));
        }
        app.run_until_signalled(&mut signals).await;
        anyhow::Ok(())
    });
    runtime.shutdown_timeout(SHUTDOWN);
    // Stop the servers last, also after a failed start.
    drop(services);
    Ok(outcome?)
}

/// Start tickr. If the usual address is taken and the operator named no other (`may_move`), start on a free port. Only
/// the start itself learns that: after a look at the port, another `tickr dev` may take it before this one listens.
async fn start(flags: &Flags, defaults: &str, may_move: bool) -> anyhow::Result<(App, Config)> {
    let error = match Box::pin(start_with(flags, defaults)).await {
        Err(error) if may_move => error,
        started => return started,
    };
    let Some(StartError::Listen { addr, .. }) = error.downcast_ref::<StartError>() else { return Err(error) };
    tracing::warn!(taken = %addr, "the usual port is taken, using a free one");
    let defaults = format!("http_addr = \"127.0.0.1:0\"\n{defaults}");
    Box::pin(start_with(flags, &defaults)).await
}

async fn start_with(flags: &Flags, defaults: &str) -> anyhow::Result<(App, Config)> {
    let loaded = Config::load_with_defaults(flags, Config::process_env(), Config::usual_file(), defaults)?;
    let Loaded { config, sources, .. } = loaded;
    let child = ChildProgram::from_this_process(sources)?;
    let app = App::start_with(&config, Registry::new(), Some(child)).await?;
    Ok((app, config))
}

/// Return whether the operator left this setting alone.
fn is_default(loaded: &Loaded, name: &str) -> bool {
    loaded.origins.get(name).is_none_or(|effective| effective.origin == SettingOrigin::Default)
}

/// Settings for a development machine, where the operator set nothing else: an outbox, reports in the data folder,
/// signed callbacks to this machine, the sample report. They are written like a configuration file and read below the
/// real one, because the child processes of suspect jobs read the whole configuration again and must get the same.
fn defaults(loaded: &Loaded, dir: &Path) -> anyhow::Result<String> {
    let dir_name = dir.to_str().with_context(|| format!("{} is not UTF-8; name another folder", dir.display()))?;
    let mut values = vec![
        ("outbox_dir", toml::Value::from(format!("{dir_name}/outbox"))),
        ("reports_dir", format!("{dir_name}/reports").into()),
        ("callback_allow_private", true.into()),
    ];
    if is_default(loaded, "callback_secret") {
        values.push(("callback_secret", callback_secret(dir)?.show().into()));
    }
    let lines: String = values.into_iter().map(|(name, value)| format!("{name} = {value}\n")).collect();
    Ok(lines + &SAMPLE_REPORT.replace("{prefix}", loaded.config.table_prefix.as_str()))
}

/// Read the secret that signs the callbacks of this data folder. It is created once, so that receivers have to be
/// configured once.
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
        format!("{} is not a callback secret; delete the file, and the next start creates a new one", path.display())
    })
}

/// The file `env` in the data folder. It gives the addresses of the running servers to other commands, such as `tickr
/// verify`, and lets the shell find that command. The addresses are not printed, because they contain a password where
/// the servers listen on ports. The file is removed at the end, together with the servers.
struct Addresses(PathBuf);

impl Addresses {
    fn write(app: &App, config: &Config, dir: &Path) -> anyhow::Result<Self> {
        let mut text: String = [
            ("TICKR_URL", format!("http://{}", app.addr())),
            ("TICKR_MYSQL_URL", config.mysql_url()?.expose().to_owned()),
            ("TICKR_REDIS_URL", config.redis_url()?.expose().to_owned()),
            ("TICKR_TABLE_PREFIX", config.table_prefix.to_string()),
            ("TICKR_REDIS_PREFIX", config.redis_prefix.clone()),
        ]
        .into_iter()
        .map(|(name, value)| format!("export {name}={}\n", quoted(&value)))
        .collect();
        // `make run` installs nothing, so the shell does not find the command by its name.
        let program = std::env::current_exe().ok();
        if let Some(folder) = program.as_deref().and_then(Path::parent).and_then(Path::to_str) {
            text.push_str(&format!("command -v tickr >/dev/null || export PATH=\"$PATH\":{}\n", quoted(folder)));
        }
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

/// The folders of the samples in other languages. Each has a script that starts a worker and enqueues jobs for it.
const SAMPLES: [&str; 5] = ["django", "go", "laravel", "node", "rails"];

async fn welcome(app: &App, config: &Config, services: &Services, dir: &Path, addresses: &Addresses) {
    let url = format!("http://{}", app.addr());
    // Passwords are masked. Private servers have passwords only where they listen on ports.
    let [mysql, redis] =
        [config.mysql_url(), config.redis_url()].map(|url| url.map(ToString::to_string).unwrap_or_default());
    println!("tickr {} is running; Ctrl-C stops it\n", env!("CARGO_PKG_VERSION"));
    println!("  dashboard  {url}/");
    println!("  API        {url}/docs");
    println!("  OpenAPI    {url}/openapi.json");
    println!("  data       {}", dir.display());
    println!("  mails      {}", config.outbox_dir.as_deref().unwrap_or(dir).display());
    println!("  MySQL      {mysql}");
    println!("  Redis      {redis}");
    // The secret is valid on this machine only, and its receivers need it.
    if let [secret] = config.callback_secret.as_slice() {
        println!("  callbacks are signed with {}", secret.show());
    }
    println!();
    println!("in another terminal, for tickr verify, check, rebuild and all other commands:\n");
    println!("  . {}", quoted(&addresses.0.display().to_string()));
    println!("  tickr verify");
    println!("  tickr kinds list\n");
    println!("to look into the servers:\n");
    println!("  {}", place(services.mysql().address(), "mariadb -u root --socket=", "tickr"));
    println!("  {}\n", place(services.redis().address(), "redis-cli -s ", ""));
    if let Ok(stats) = app.broker().store().stats().await {
        let owed: i64 = stats.owed.iter().map(|count| count.jobs).sum();
        let elsewhere = stats.ended_elsewhere.iter().map(|(_, jobs)| jobs);
        let ended: i64 = stats.ended.iter().map(|count| &count.jobs).chain(elsewhere).sum();
        if owed + ended > 0 {
            println!("found {} jobs from earlier runs, {owed} of them unfinished\n", owed + ended);
        }
    }
    // Beside a checkout of the project, and not beside an installed program.
    let samples = SAMPLES.iter().map(|name| format!("examples/{name}/run.sh"));
    let samples: Vec<String> = samples.filter(|script| Path::new(script).is_file()).collect();
    if !samples.is_empty() {
        println!("run jobs in another language, with any of these samples:\n");
        for script in samples {
            println!("  TICKR_URL={url} sh {script}");
        }
        println!("\nthen list the kinds that the samples have declared, with tickr kinds list --declared\n");
    }
    println!("enqueue a job:\n");
    println!(
        "  curl -s {url}/v1/jobs -H 'content-type: application/json' \\\n    -d '{{\"kind\":\"email\",\"payload\":{{\"to\":\"ada@example.com\",\"subject\":\"Hello\",\"text\":\"It works.\"}}}}'\n"
    );
}

/// Quote a text for a shell. A data folder may have spaces in its path.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Command or address to open a private server by hand.
fn place(address: &Address, client: &str, database: &str) -> String {
    match address {
        Address::Socket(path) => format!("{client}{} {database}", quoted(&path.display().to_string())),
        // The server needs a password, which is not printed. The folder of the servers holds it.
        Address::Tcp(port) => format!("127.0.0.1:{port}"),
    }
}

/// Enqueue one job of each built-in kind, and wait for the end of the first one.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_printed_commands_reach_servers_whose_folder_has_spaces_and_quotes() {
        let socket = Address::Socket(PathBuf::from("/home/ada's data/mysql.sock"));
        let printed = place(&socket, "mariadb -u root --socket=", "tickr");
        assert_eq!(printed, r"mariadb -u root --socket='/home/ada'\''s data/mysql.sock' tickr");
        assert_eq!(place(&Address::Tcp(3307), "mariadb -u root --socket=", "tickr"), "127.0.0.1:3307");
    }
}
