//! A chat on tickr: one-to-one and groups, ticks for sent, delivered and read, offline messages, presence, and
//! counters. It is one program with two listeners, the chat's own and the API of tickr, and runs as many times as you
//! like on the same servers. `docs/CHAT.md` says what each part does.
//!
//!     make chat         # on private servers, with two users to try it
//!
//!     export TICKR_MYSQL_URL=mysql://… TICKR_REDIS_URL=redis://…
//!     CHAT_ADDR=127.0.0.1:7081 cargo run --example chat
//!
//! - `main.rs`: puts the parts together, and stops them in order
//! - `settings.rs`: the settings of the chat
//! - `schema.sql`, `store.rs`: the tables, and all SQL of the chat
//! - `kinds.rs`: the jobs: fan-out to a group, delivery to a user, push to a phone
//! - `presence.rs`: users who are online, and the way between the servers, in Redis
//! - `link.rs`: the connection to Redis
//! - `http.rs`, `ws.rs`, `page.*`: the routes, the sockets, the page
//! - `counters.rs`: the second half: numbers from Redis, rows that may lag

mod counters;
mod http;
mod kinds;
mod link;
mod presence;
mod settings;
mod store;
mod ws;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use sqlx::{Connection as _, Executor as _};
use tickr::handlers::http::CallbackSettings;
use tickr::services::{Options, Services};
use tickr::{App, Config, Registry, Signals};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use counters::{Counters, Writers};
use http::Chat;
use kinds::{Handlers, Outage};
use presence::Presence;
use settings::Settings;
use store::Store;

/// Longest time for open requests and sockets at the stop.
const TO_CLOSE: Duration = Duration::from_secs(5);
/// Longest time for the last statement of each connection to MySQL at the stop.
const TO_END: Duration = Duration::from_secs(2);
/// Database on the private servers.
const DATABASE: &str = "chat";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("chat: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let private = match arguments.as_slice() {
        [] => None,
        [flag, dir] if flag == "--private" => Some(PathBuf::from(dir)),
        _ => anyhow::bail!("usage: chat [--private DIR]; every other setting is a variable, see docs/CHAT.md"),
    };
    let settings = Settings::from_env()?;
    let filter = std::env::var("TICKR_LOG").unwrap_or_else(|_| "info".to_owned());
    tracing_subscriber::registry()
        .with(tracing_subscriber::EnvFilter::try_new(filter).context("TICKR_LOG")?)
        .with(tracing_subscriber::fmt::layer().with_ansi(false))
        .with(tickr::attempt_log_layer())
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    // Registered first, so that a signal during the start is not lost.
    let mut signals = runtime.block_on(async { Signals::register() })?;
    let (services, config) = match &private {
        None => (None, Config::from_env("")?),
        Some(dir) => {
            let services = start_servers(dir)?;
            runtime.block_on(make_database(&services))?;
            let config = private_config(&services)?;
            (Some(services), config)
        }
    };
    let outcome = runtime.block_on(serve(&config, settings, private.is_some(), &mut signals));
    runtime.shutdown_timeout(Duration::from_secs(1));
    // The servers stop last, also after a failed start.
    drop(services);
    outcome
}

/// Start a MySQL and a Redis in a folder, as `tickr dev` does. They end with this process, also when it is killed.
fn start_servers(dir: &Path) -> anyhow::Result<Services> {
    std::fs::create_dir_all(dir).with_context(|| format!("make the folder {}", dir.display()))?;
    let dir = dir.canonicalize()?;
    Ok(Services::start(&Options::persistent(dir.join("servers")))?)
}

async fn make_database(services: &Services) -> anyhow::Result<()> {
    let mut conn = sqlx::MySqlConnection::connect(&services.mysql_url("mysql")).await?;
    conn.execute("CREATE DATABASE IF NOT EXISTS chat CHARACTER SET utf8mb4 COLLATE utf8mb4_bin").await?;
    conn.close().await?;
    Ok(())
}

/// Make the configuration of tickr on private servers. The environment may name other servers, so it is not read. As
/// with `tickr dev`, calls may go to this machine: the push service to try is there.
fn private_config(services: &Services) -> anyhow::Result<Config> {
    let text = format!(
        "mysql_url = {:?}\nredis_url = {:?}\nhttp_addr = \"127.0.0.1:0\"\ncallback_allow_private = true\n",
        services.mysql_url(DATABASE),
        services.redis_url()
    );
    let loaded = Config::load_with_defaults(&tickr::config::Flags::default(), std::iter::empty(), None, &text)?;
    Ok(loaded.config)
}

/// Start everything, wait for a signal, and stop everything.
async fn serve(config: &Config, settings: Settings, private: bool, signals: &mut Signals) -> anyhow::Result<()> {
    if let Some(url) = &settings.push_url {
        check_push_url(config, url).await?;
    }
    let store = Store::connect(config.mysql_url()?.expose(), settings.expiry, settings.sizes.write).await?;
    let (url, prefix) = (config.redis_url()?.expose(), &config.redis_prefix);
    let presence = Presence::connect(url, prefix, store.clone(), settings.presence_ttl).await?;
    // Deliveries need both until the last handler has ended, so these two stop after the runner.
    let (ended, background) = (CancellationToken::new(), TaskTracker::new());
    let (ready, listens) = oneshot::channel();
    background.spawn(presence.clone().listen(ready, ended.clone()));
    background.spawn(presence.clone().beat(ended.clone()));
    listens.await.context("listen to the other servers")?;

    let mut kinds = Registry::new();
    let (sizes, push_url) = (settings.sizes, settings.push_url);
    let (store_of_jobs, presence_of_jobs) = (store.clone(), presence.clone());
    let (redis, mysql) = (Outage::of("Redis"), Outage::of("MySQL"));
    Handlers { store: store_of_jobs, presence: presence_of_jobs, sizes, push_url, redis, mysql }.register(&mut kinds);
    Writers { pool: store.pool.clone(), interval: settings.counts_every }.register(&mut kinds);
    let listener = TcpListener::bind(settings.addr).await.with_context(|| format!("listen on {}", settings.addr))?;
    let addr = listener.local_addr()?;
    let app = App::start(config, kinds).await?;

    let (link, prefix) = presence.redis();
    let (prefix, client) = (prefix.to_owned(), app.client());
    let tokens = counters::tokens(settings.token_seed);
    let counters = Counters { pool: store.pool.clone(), link, prefix, client: client.clone(), tokens };
    let (stop, sockets) = (CancellationToken::new(), TaskTracker::new());
    let chat = Chat { store, presence, client, counters, stop: stop.clone(), sockets: sockets.clone() };
    let chat = Arc::new(chat);
    if private {
        add_samples(&chat).await?;
    }
    let router = http::router(Arc::clone(&chat));
    let serving = axum::serve(listener, router).with_graceful_shutdown(stop.clone().cancelled_owned());
    let mut serving = tokio::spawn(serving.into_future());
    println!("the chat listens on http://{addr}");
    println!("tickr listens on http://{}", app.addr());
    if private {
        println!("\nopen both in two windows, and let them talk; Ctrl-C stops everything\n");
        println!("  http://{addr}/?as=ada");
        println!("  http://{addr}/?as=bob\n");
    }

    let signal = signals.next().await;
    tracing::info!(signal, "the chat stops: sockets first, then the runner");
    stop.cancel();
    sockets.close();
    let closed = async {
        sockets.wait().await;
        let _ = (&mut serving).await;
    };
    if tokio::time::timeout(TO_CLOSE, closed).await.is_err() {
        tracing::warn!("some clients did not let go; their connections are cut");
        serving.abort();
    }
    let hurry = CancellationToken::new();
    tokio::select! {
        _ = app.stop(hurry.clone()) => {}
        _ = async { signals.next().await; hurry.cancel(); std::future::pending::<()>().await } => {}
    }
    ended.cancel();
    background.close();
    background.wait().await;
    // A MySQL that does not answer holds up no stop: what it has not committed is not acknowledged either.
    if tokio::time::timeout(TO_END, chat.store.pool.close()).await.is_err() {
        tracing::warn!("MySQL does not answer; its connections are cut");
    }
    Ok(())
}

/// Check that tickr may call the push service. Otherwise each delivery to a user who is offline would be refused
/// together with its push.
async fn check_push_url(config: &Config, url: &str) -> anyhow::Result<()> {
    let (allow_private, allow) = (config.callback_allow_private, config.callback_allow.clone());
    let calls = CallbackSettings { allow_private, allow, ..CallbackSettings::default() };
    match calls.problem_of(url).await {
        Some(problem) => anyhow::bail!("CHAT_PUSH_URL cannot be called: {problem}"),
        None => Ok(()),
    }
}

/// Add two users who know each other, and their conversation.
async fn add_samples(chat: &Chat) -> anyhow::Result<()> {
    for (user, other) in [("ada", "bob"), ("bob", "ada")] {
        chat.store.sign_in(user).await?;
        chat.store.set_contact(user, other, true).await?;
    }
    let opened = chat.store.open_direct("ada", "bob").await;
    opened.map(drop).map_err(|refusal| anyhow::anyhow!("add the sample conversation: {}", refusal.in_words().2))
}
