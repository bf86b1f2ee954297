//! `tickr keys list|create|revoke`: who may call the API.

use anyhow::{Context as _, bail};
use chrono::SecondsFormat;
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tickr::app::connect_store;
use tickr::config::{Flags, Subset};
use tickr::job::{Actor, Name, Scope};
use tickr::store::{MadeKey, NewKey, RevokedKey};

use crate::Done;
use crate::client::{self, Client};
use crate::print::{encoded, table, text};

pub(crate) fn command() -> Command {
    let json = || Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON");
    let name = || Arg::new("name").value_name("NAME").help("The key's name, which no other key has or had");
    let scope = Arg::new("scope")
        .long("scope")
        .required(true)
        .value_parser(PossibleValuesParser::new(Scope::ALL.map(Scope::as_str)))
        .help("read: read everything; enqueue: enqueue jobs and read them back; admin: everything");
    let in_store = |help: &'static str| Arg::new("in-store").long("in-store").action(ArgAction::SetTrue).help(help);
    let make = "Write to MySQL and not through the API: for the first key, and for who locked the door from inside";
    let end = "Write to MySQL and not through the API: for when the API cannot answer, or the last admin key is lost";
    const STORE: &[&str] = &["mysql_url", "log", "log_format"];
    let kinds = Arg::new("kinds")
        .long("kinds")
        .value_name("KINDS")
        .value_delimiter(',')
        .help("With --scope enqueue: the only kinds that it may enqueue, comma separated");
    let producer = Arg::new("producer")
        .long("producer")
        .value_name("NAME")
        .help("With --scope enqueue: whose unique keys it shares; itself alone when left out");
    let yes = Arg::new("yes")
        .long("yes")
        .action(ArgAction::SetTrue)
        .help("Make the first key: from then on every call without a key is refused");
    let create = Command::new("create")
        .about("Make a key and show it, once")
        .arg(name())
        .arg(scope)
        .arg(kinds)
        .arg(producer)
        .arg(yes)
        .arg(json());
    let create = Flags::args(create.arg(in_store(make)), Subset::Only(STORE));
    let revoke =
        Command::new("revoke").about("End a key, within 2 s everywhere").arg(name().required(true)).arg(json());
    let revoke = Flags::args(revoke.arg(in_store(end)), Subset::Only(STORE));
    Command::new("keys")
        .about("List, make and revoke keys of the API")
        .subcommand_required(true)
        .subcommand(client::args(Command::new("list").about("List the keys").arg(json())))
        .subcommand(client::args(create))
        .subcommand(client::args(revoke))
}

pub(crate) fn run(matches: &ArgMatches) -> Done {
    let Some((verb, matches)) = matches.subcommand() else { return Ok(()) };
    let as_json = matches.get_flag("json");
    let name = || matches.get_one::<String>("name").cloned().unwrap_or_default();
    let answer = match verb {
        "create" => create(matches)?,
        "revoke" if matches.get_flag("in-store") => revoke_in_store(matches, &name())?,
        verb => {
            let client = Client::from_matches(matches)?;
            crate::runtime()?.block_on(async {
                match verb {
                    "list" => client.get("/v1/keys").await,
                    _ => client.delete(&format!("/v1/keys/{}", encoded(&name()))).await,
                }
            })?
        }
    };
    if as_json {
        println!("{answer:#}");
    } else if verb == "list" {
        list(&answer);
    } else if verb == "create" {
        println!("{}", text(&answer, "token"));
        eprintln!("key {} ({}); it is not shown again", text(&answer, "name"), text(&answer, "scope"));
    } else {
        println!("revoked {}", text(&answer, "name"));
    }
    Ok(())
}

fn create(matches: &ArgMatches) -> Result<Value, crate::Failure> {
    let scope = matches.get_one::<String>("scope").cloned().unwrap_or_default();
    let name = matches.get_one::<String>("name").cloned();
    let name = name.unwrap_or_else(|| format!("{scope}-{:08x}", rand::random::<u32>()));
    if !matches.get_flag("in-store") {
        let client = Client::from_matches(matches)?;
        if !matches.get_flag("yes") {
            crate::runtime()?.block_on(not_the_first(&client))?;
        }
        let mut body = json!({"scope": scope});
        if let Some(kinds) = matches.get_many::<String>("kinds") {
            body["kinds"] = kinds.map(|kind| json!(kind)).collect();
        }
        if let Some(producer) = matches.get_one::<String>("producer") {
            body["producer"] = json!(producer);
        }
        let made = async { client.put(&format!("/v1/keys/{}", encoded(&name)), &body).await };
        return Ok(crate::runtime()?.block_on(made)?);
    }
    let config = crate::load(matches, &["mysql_url"])?.config;
    let token = tickr::api::new_key();
    let made = crate::runtime()?.block_on(async {
        let name: Name = name.parse().context("the key's name")?;
        let scope = Scope::from_word(&scope).context("the key's scope")?;
        let kinds = matches.get_many::<String>("kinds").map(|kinds| kinds.map(|kind| kind.parse()).collect());
        let kinds = kinds.transpose().context("the key's kinds")?;
        let producer = matches.get_one::<String>("producer").map(|producer| producer.parse()).transpose();
        let producer = producer.context("the key's producer")?;
        if scope != Scope::Enqueue && (kinds.is_some() || producer.is_some()) {
            bail!("--kinds and --producer are for keys with --scope enqueue");
        }
        let store = connect_store(&config).await?;
        store.migrate().await?;
        let digest = Sha256::digest(token.as_bytes()).into();
        let new = NewKey { kinds, producer, ..NewKey::new(name.clone(), scope) };
        let made = store.make_limited_key(new, digest, &Actor::command()).await;
        store.close().await;
        match made? {
            MadeKey::Made(key) => Ok(key),
            MadeKey::NameTaken => bail!("a key is or was called {name}; a name belongs to one key for ever"),
            MadeKey::TooMany => bail!("there are too many keys; revoke those that are not used"),
        }
    })?;
    Ok(json!({"name": made.name.as_str(), "scope": made.scope.as_str(), "token": token}))
}

/// The first key closes an API that was open: that is said before it happens.
async fn not_the_first(client: &Client) -> anyhow::Result<()> {
    let whoami = client.get("/v1/whoami").await?;
    if whoami.get("open").and_then(Value::as_bool) != Some(true) {
        return Ok(());
    }
    bail!(
        "this is the first key. From then on every call without a key gets 401: of producers, the dashboard, /metrics, \
         /docs and /openapi.json too. Repeat with --yes, and give the others keys of their own"
    )
}

/// End a key without the API. Every runner refuses it as soon as it has read its copy of the keys again.
fn revoke_in_store(matches: &ArgMatches, name: &str) -> Result<Value, crate::Failure> {
    let config = crate::load(matches, &["mysql_url"])?.config;
    let key = crate::runtime()?.block_on(async {
        let name: Name = name.parse().context("the key's name")?;
        let store = connect_store(&config).await?;
        let revoked = store.revoke_key(&name, &Actor::command()).await;
        store.close().await;
        match revoked? {
            RevokedKey::Revoked(key) | RevokedKey::Before(key) => Ok(key),
            RevokedKey::Missing => bail!("there is no key {name}; `tickr keys list` shows them"),
        }
    })?;
    let revoked_at = key.revoked.map(|(at, _)| at.to_rfc3339_opts(SecondsFormat::Millis, true));
    Ok(json!({"name": key.name.as_str(), "scope": key.scope.as_str(), "revoked_at": revoked_at}))
}

fn list(answer: &Value) {
    let mut table = table(["NAME", "SCOPE", "KINDS", "CREATED", "BY", "LAST USED", "REVOKED"]);
    for key in answer.get("data").and_then(Value::as_array).into_iter().flatten() {
        let kinds = key.get("kinds").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        let kinds = kinds.collect::<Vec<_>>().join(",");
        let [name, scope, created, by, used, revoked] =
            ["name", "scope", "created_at", "created_by", "last_used_at", "revoked_at"].map(|at| text(key, at));
        table.add_row([name, scope, kinds, created, by, used, revoked]);
    }
    println!("{table}");
}
