//! `tickr api-keys list|create|revoke`: API keys.

use std::io::{ErrorKind, Write as _};

use anyhow::{anyhow, bail};
use chrono::SecondsFormat;
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tickr::app::connect_store;
use tickr::config::{Flags, Subset};
use tickr::job::{Actor, Name, Scope};
use tickr::store::{ApiKey, MadeApiKey, NewApiKey, RevokedApiKey, Store, StoreError};

use crate::client::{self, Client};
use crate::print::{encoded, harmless, printable, table, text};
use crate::{CommandResult, Failure, WrongUsage, ending};

pub(crate) fn command() -> Command {
    let json = || Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON");
    let name = || {
        Arg::new("name")
            .value_name("NAME")
            .help("Name of the API key; a name is never used twice, not even after a revocation")
    };
    let scope = Arg::new("scope")
        .long("scope")
        .required(true)
        .value_parser(PossibleValuesParser::new(Scope::ALL.map(Scope::as_str)))
        .help("Scope: read (read everything), enqueue (enqueue jobs and read them back), work (execute jobs) or admin (everything)");
    let in_store = |help: &'static str| Arg::new("in-store").long("in-store").action(ArgAction::SetTrue).help(help);
    let make = "Write to MySQL instead of calling the API: for the first API key, which must have the scope admin, or \
                when no admin key is at hand. Does not ask for --yes. Makes the tables where there are none, and \
                leaves older ones to `tickr migrate`. While another process makes the tables it fails: run it again";
    let end = "Write to MySQL instead of calling the API: when the API does not answer, or the last admin key is lost";
    const STORE: &[&str] = &["mysql_url", "table_prefix", "log", "log_format"];
    let kinds = Arg::new("kinds").long("kinds").value_name("KINDS").value_delimiter(',').help(
        "With --scope enqueue or work: kinds that the API key may enqueue or execute, comma separated [default: all]",
    );
    let queues = Arg::new("queues")
        .long("queues")
        .value_name("QUEUES")
        .value_delimiter(',')
        .help("With --scope enqueue or work: queues that the API key may use, comma separated [default: all]");
    let producer = Arg::new("producer")
        .long("producer")
        .value_name("NAME")
        .help("With --scope enqueue: the producer, whose API keys share unique keys [default: the name of the key]");
    let yes = Arg::new("yes")
        .long("yes")
        .action(ArgAction::SetTrue)
        .help("Confirm the first API key through the API: from then on every call without an API key is refused");
    let create = Command::new("create")
        .about("Create an API key and print its token, which is shown only once")
        .arg(name())
        .arg(scope)
        .arg(kinds)
        .arg(queues)
        .arg(producer)
        .arg(yes)
        .arg(json());
    let create = Flags::args(create.arg(in_store(make)), Subset::Only(STORE));
    let revoke = Command::new("revoke")
        .about("Revoke an API key; within 2 s every runner refuses it")
        .arg(name().required(true))
        .arg(json());
    let revoke = Flags::args(revoke.arg(in_store(end)), Subset::Only(STORE));
    Command::new("api-keys")
        .visible_alias("keys")
        .about("List, create and revoke API keys")
        .subcommand_required(true)
        .subcommand(client::args(Command::new("list").about("List the API keys").arg(json())))
        .subcommand(client::args(create))
        .subcommand(client::args(revoke))
}

pub(crate) fn run(matches: &ArgMatches) -> CommandResult {
    let Some((verb, matches)) = matches.subcommand() else { return Ok(()) };
    let as_json = matches.get_flag("json");
    let name = || matches.get_one::<String>("name").cloned().unwrap_or_default();
    let answer = match verb {
        "create" => create(matches)?,
        "revoke" if matches.get_flag("in-store") => revoke_in_store(matches, &name())?,
        verb => {
            let client = Client::from_matches(matches)?;
            let asked = async {
                match verb {
                    "list" => client.get("/v1/api-keys").await,
                    _ => client.delete_and_read(&format!("/v1/api-keys/{}", encoded(&name()))).await,
                }
            };
            crate::run_to_end(asked)??.into_value()
        }
    };
    if verb == "create" {
        return show_once(&answer, as_json);
    }
    if as_json {
        println!("{answer:#}");
    } else if verb == "list" {
        list(&answer);
    } else {
        println!("revoked {}", text(&answer, "name"));
    }
    Ok(())
}

/// Print a new API key with its token. If that fails, say that the API key exists, because its token is lost.
fn show_once(made: &Value, as_json: bool) -> CommandResult {
    let (name, scope) = (text(made, "name"), text(made, "scope"));
    let said = if as_json { format!("{made:#}") } else { text(made, "token") };
    let mut out = std::io::stdout();
    let printed = writeln!(out, "{}", harmless(said)).and_then(|()| out.flush());
    if let Err(error) = printed {
        let code = if error.kind() == ErrorKind::BrokenPipe { ending::UNREAD } else { 1 };
        let name = printable(&name);
        return Err(Failure::new(
            code,
            anyhow!(
                "the API key {name} is made, and its token is lost, because standard output cannot be written: {error}; \
                 `tickr api-keys revoke {name}` revokes it, with --in-store also when no admin key is at hand; then \
                 choose another name"
            ),
        ));
    }
    if !as_json {
        eprintln!("API key {name} ({scope}); its token is not shown again");
    }
    Ok(())
}

fn create(matches: &ArgMatches) -> Result<Value, crate::Failure> {
    let scope = matches.get_one::<String>("scope").cloned().unwrap_or_default();
    let name = matches.get_one::<String>("name").cloned();
    let name = name.unwrap_or_else(|| format!("{scope}-{:08x}", rand::random::<u32>()));
    if !matches.get_flag("in-store") {
        return create_through_api(matches, &name, &scope);
    }
    let new = asked(matches, &name, &scope)?;
    let config = crate::load(matches, &["mysql_url"])?.config;
    let token = tickr::api::new_api_key();
    let made = crate::runtime()?.block_on(async {
        let store = connect_store(&config).await?;
        let is_first = keys_or_new_tables(&store).await?.is_empty() && config.api_tokens.is_empty();
        if is_first && new.scope != Scope::Admin {
            store.close().await;
            bail!(
                "the first API key must have the scope admin: after it every request needs an API key, and only an \
                 admin key can make more"
            );
        }
        let digest = Sha256::digest(token.as_bytes()).into();
        let made = store.make_limited_api_key(new, digest, &Actor::command()).await;
        store.close().await;
        match made? {
            MadeApiKey::Made(key) => {
                if is_first {
                    eprintln!(
                        "this is the first API key: from now on every request needs one, also those of producers, the \
                         dashboard, /metrics, /docs and /openapi.json"
                    );
                }
                Ok(key)
            }
            MadeApiKey::NameTaken => {
                bail!("an API key has or had the name {name}; choose another, a name is never used twice")
            }
            MadeApiKey::TooMany => bail!("there are too many API keys; revoke those that are not used"),
        }
    })?;
    Ok(json!({"name": made.name.as_str(), "scope": made.scope.as_str(), "token": token}))
}

/// Read the API keys. Make the tables first if there are none: the first API key may be made before the first runner
/// starts. Older tables stay as they are, because a migration may wait long and needs more rights.
async fn keys_or_new_tables(store: &Store) -> Result<Vec<ApiKey>, StoreError> {
    match store.api_keys().await {
        Err(error) if error.lacks_table() => {}
        read => return read,
    }
    store.migrate().await?;
    store.api_keys().await
}

fn create_through_api(matches: &ArgMatches, name: &str, scope: &str) -> Result<Value, crate::Failure> {
    let client = Client::from_matches(matches)?;
    let mut body = json!({"scope": scope});
    for field in ["kinds", "queues"] {
        if let Some(names) = matches.get_many::<String>(field) {
            body[field] = names.map(|name| json!(name)).collect();
        }
    }
    if let Some(producer) = matches.get_one::<String>("producer") {
        body["producer"] = json!(producer);
    }
    let made = crate::run_to_end(async {
        if !matches.get_flag("yes") {
            not_the_first(&client).await?;
        }
        client.put(&format!("/v1/api-keys/{}", encoded(name)), &body).await.map_err(|error| {
            if !client::may_be_done(&error) {
                return error;
            }
            error.context(format!("the token is lost: revoke the API key {name} if it exists, and choose another name"))
        })
    })??;
    if text(&made, "token").is_empty() {
        return Err(anyhow!(
            "the answer has no token: this is not a tickr server; revoke the API key {name} if it exists all the same"
        )
        .into());
    }
    Ok(made.into_value())
}

/// Return the API key that the arguments of `create --in-store` ask for.
fn asked(matches: &ArgMatches, name: &str, scope: &str) -> Result<NewApiKey, WrongUsage> {
    let name = name_in("NAME", name)?;
    let scope = Scope::from_word(scope).ok_or_else(|| WrongUsage(format!("there is no scope {scope:?}")))?;
    let names = |field: &str| {
        let argument = format!("--{field}");
        let names = matches.get_many::<String>(field);
        let read = names.map(|names| names.map(|name| name_in(&argument, name)).collect::<Result<_, WrongUsage>>());
        read.transpose()
    };
    let (kinds, queues) = (names("kinds")?, names("queues")?);
    let producer = matches.get_one::<String>("producer").map(|name| name_in("--producer", name)).transpose()?;
    if scope != Scope::Enqueue && producer.is_some() {
        return Err(WrongUsage("--producer is for API keys with --scope enqueue".into()));
    }
    if !matches!(scope, Scope::Enqueue | Scope::Work) && (kinds.is_some() || queues.is_some()) {
        return Err(WrongUsage("--kinds and --queues are for API keys with --scope enqueue or work".into()));
    }
    Ok(NewApiKey { kinds, queues, producer, ..NewApiKey::new(name, scope) })
}

/// Read the name that an argument gives.
fn name_in(argument: &str, text: &str) -> Result<Name, WrongUsage> {
    text.parse::<Name>().map_err(|why| WrongUsage(format!("{argument} {text:?}: {why}")))
}

/// Refuse to create the first API key without `--yes`: it closes an API that was open until then.
async fn not_the_first(client: &Client) -> anyhow::Result<()> {
    let whoami = client.get("/v1/whoami").await?;
    if whoami.get("open").and_then(Value::as_bool) != Some(true) {
        return Ok(());
    }
    bail!(
        "this is the first API key. From then on every call without an API key gets 401, also calls of producers, the \
         dashboard, /metrics, /docs and /openapi.json. Repeat with --yes, and give each caller an API key",
    )
}

/// Revoke an API key without the API. Every runner refuses it after its next read of the API keys.
fn revoke_in_store(matches: &ArgMatches, name: &str) -> Result<Value, crate::Failure> {
    let name = name_in("NAME", name)?;
    let config = crate::load(matches, &["mysql_url"])?.config;
    let key = crate::runtime()?.block_on(async {
        let store = connect_store(&config).await?;
        let revoked = store.revoke_api_key(&name, &Actor::command()).await;
        store.close().await;
        match revoked? {
            RevokedApiKey::Revoked(key) | RevokedApiKey::Before(key) => Ok(key),
            RevokedApiKey::Missing => bail!("there is no API key {name}; `tickr api-keys list` shows all of them"),
        }
    })?;
    let revoked_at = key.revoked.map(|(at, _)| at.to_rfc3339_opts(SecondsFormat::Millis, true));
    Ok(json!({"name": key.name.as_str(), "scope": key.scope.as_str(), "revoked_at": revoked_at}))
}

fn list(answer: &Value) {
    let mut table = table(["NAME", "SCOPE", "KINDS", "QUEUES", "CREATED", "BY", "LAST USED", "REVOKED"]);
    for key in answer.get("data").and_then(Value::as_array).into_iter().flatten() {
        let names = |field: &str| {
            let names = key.get(field).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
            names.collect::<Vec<_>>().join(",")
        };
        let (kinds, queues) = (names("kinds"), names("queues"));
        let [name, scope, created, by, used, revoked] =
            ["name", "scope", "created_at", "created_by", "last_used_at", "revoked_at"].map(|at| text(key, at));
        table.add_row([name, scope, kinds, queues, created, by, used, revoked]);
    }
    println!("{table}");
}
