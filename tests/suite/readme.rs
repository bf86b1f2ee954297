//! The commands, configurations and requests that the documents show work unchanged.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest::Method;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sqlx::{AssertSqlSafe, Executor as _};
use tickr::config::{CallbackSecret, Config, DelayedMessages, Flags, markdown_table};
use tickr::handlers::{Context, FinishLater, Kind, Output, Registry};
use tickr::job::JobId;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::task::JoinHandle;

use crate::support::documents::{Block, Document, document, documents, root};
use crate::support::program::{Program, command, on_servers, outcome, tickr};
use crate::support::{TestApp, answer, connect, database, drop_database, eventually, http, servers, unique_name};

async fn as_root(sql: String) {
    let mut conn = connect(&servers().mysql_url("information_schema")).await;
    conn.execute(sqlx::raw_sql(AssertSqlSafe(sql.clone()))).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_accounts_of_the_documents_can_migrate_serve_and_verify_and_need_no_more() {
    let name = unique_name();
    let sql = document("docs/OPERATIONS.md").block("sql").replace("tickr", &name);
    as_root(sql).await;
    let dir = tempfile::tempdir().unwrap();
    let (_, place) = servers().mysql_url(&name).split_once('@').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    let run = |args: &[&str]| -> Command {
        let mut command = command(&tickr(), dir.path(), args);
        let mysql = format!("mysql://{name}:a-long-password@{place}");
        on_servers(&mut command, &mysql, &servers().redis_url(), &name);
        command
    };
    let (code, said, log) = outcome(run(&["migrate"])).await;
    assert_eq!((code, said.as_str()), (0, "the tables are up to date\n"), "{log}");
    let mut program = Program::spawn(run(&["serve", "--http-addr", "127.0.0.1:0"]));
    program.runs_a_job().await;
    let (code, said, log) = outcome(run(&["verify"])).await;
    assert_eq!(code, 0, "{said}{log}");
    program.ends_well().await;
    // Keep the rights of `serve` alone, as the document lists them.
    as_root(format!("REVOKE CREATE, ALTER ON {name}.* FROM '{name}'@'%'")).await;
    let mut program = Program::spawn(run(&["serve", "--http-addr", "127.0.0.1:0"]));
    program.runs_a_job().await;
    program.ends_well().await;
    as_root(format!("DROP USER '{name}'@'%'")).await;
    drop_database(&servers().mysql_url(&name), &name).await;
}

/// Return a `toml` block as an operator would use it: with a secret in place of each `whsec_…` placeholder.
fn as_configuration(block: &Block) -> String {
    let mut parts = block.text.split("whsec_");
    let mut toml = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_uppercase() || c == '_');
        assert_ne!(rest, part, "{} shows a real secret", block.place);
        toml.push_str(&CallbackSecret::generate());
        toml.push_str(rest);
    }
    toml
}

/// Return every `toml` block of the documents.
fn configurations() -> Vec<Block> {
    documents().iter().flat_map(|document| document.blocks_of("toml")).collect()
}

/// Return a `tickr serve` in this folder, on the servers of the suite, with the secrets that a file must not hold.
fn serve(dir: &Path, mysql: &str, prefix: &str) -> Command {
    let mut command = command(&tickr(), dir, &["serve", "--http-addr", "127.0.0.1:0"]);
    command
        .env("TICKR_MYSQL_URL", mysql)
        .env("TICKR_REDIS_URL", servers().redis_url())
        .env("TICKR_REDIS_PREFIX", prefix)
        .env("TICKR_LOG_FORMAT", "json")
        .env("TICKR_SMTP_PASSWORD", "x")
        // The documents cannot show one, because a published secret is refused.
        .env("TICKR_CALLBACK_SECRET", "whsec_QSBzZWNyZXQgb2YgdGhlIHRlc3RzLCAzMiBieXRlcyEhISE=");
    command
}

#[test]
fn every_configuration_of_the_documents_is_read() {
    let blocks = configurations();
    assert!(blocks.len() > 5, "only {} blocks were read", blocks.len());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tickr.toml");
    for block in blocks {
        std::fs::write(&file, as_configuration(&block)).unwrap();
        let secrets = [("TICKR_SMTP_PASSWORD".to_owned(), "x".to_owned())];
        let loaded = Config::load(&Flags::default(), secrets.into_iter(), Some(file.clone()));
        let wrong = loaded.err().map(|wrong| wrong.to_string()).unwrap_or_default();
        assert_eq!(wrong, "", "{}", block.place);
    }
}

#[test]
fn every_environment_of_the_documents_is_read() {
    let compose = std::fs::read_to_string(root().join("compose.yaml")).unwrap();
    let blocks = documents().iter().flat_map(|document| document.blocks_of("text")).collect::<Vec<Block>>();
    let texts = blocks.into_iter().map(|block| (block.place, block.text, "="));
    let mut loaded = 0;
    for (place, text, between) in texts.chain([("compose.yaml".to_owned(), compose, ": ")]) {
        let variable = |line: &str| {
            let (name, value) = line.trim().split_once(between)?;
            let is_name = name.starts_with("TICKR_") && name.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
            is_name.then(|| (name.to_owned(), value.to_owned()))
        };
        let variables: Vec<(String, String)> = text.lines().filter_map(variable).collect();
        loaded += variables.len();
        let wrong = Config::load(&Flags::default(), variables.into_iter(), None).err();
        assert_eq!(wrong.map(|wrong| wrong.to_string()).unwrap_or_default(), "", "{place}");
    }
    assert!(loaded >= 9, "only {loaded} variables were read");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_configuration_of_the_documents_with_a_schedule_starts() {
    let with_schedules: Vec<Block> =
        configurations().into_iter().filter(|block| block.text.contains("[schedules.")).collect();
    assert!(with_schedules.len() > 2, "only {} blocks were read", with_schedules.len());
    let receiver = Receiver::start().await;
    for block in with_schedules {
        let (name, mysql) = database().await;
        let dir = tempfile::tempdir().unwrap();
        let configuration = receiver.instead_of_others(&as_configuration(&block));
        std::fs::write(dir.path().join("tickr.toml"), configuration).unwrap();
        let mut serve = serve(dir.path(), &mysql, &name);
        serve.env("TICKR_CALLBACK_ALLOW", "127.0.0.1");
        // A password without a mail server is worth a warning.
        if !block.text.contains("[smtp]") {
            serve.env_remove("TICKR_SMTP_PASSWORD");
        }
        let mut program = Program::spawn(serve);
        let url = program.url().await;
        for schedule in block.text.split("[schedules.").skip(1) {
            let schedule = schedule.split(']').next().unwrap();
            let shown = answer(http().get(format!("{url}/v1/schedules/{schedule}"))).await;
            assert_eq!(shown.status, 200, "{}: {:#}", block.place, shown.body);
        }
        let said = program.said();
        assert!(!said.contains("\"WARN\",\"target\":\"tickr::app::run\""), "{}: {said}", block.place);
        program.ends_well().await;
        drop_database(&mysql, &name).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_payload_in_the_configuration_of_the_documents_is_named() {
    let (name, mysql) = database().await;
    let dir = tempfile::tempdir().unwrap();
    let blocks = document("docs/CONFIGURATION.md").blocks_of("toml");
    let block = blocks.iter().find(|block| block.text.contains("[schedules.orders]")).unwrap();
    let right = as_configuration(block);
    let wrong = right.replace("\"query\": \"orders_by_day\"", "\"report\": \"canary\"");
    assert_ne!(wrong, right);
    std::fs::write(dir.path().join("tickr.toml"), wrong).unwrap();
    let (code, _, said) = outcome(serve(dir.path(), &mysql, &name)).await;
    assert_ne!(code, 0, "{said}");
    for part in
        ["schedules.orders.payload", "'report' was unexpected", "\"query\" is a required property", "GET /v1/kinds"]
    {
        assert!(said.contains(part), "{part} is not in:\n{said}");
    }
    assert!(!said.contains("canary"), "{said}");
    drop_database(&mysql, &name).await;
}

/// Return the commands of the shell blocks of a document, each with its place.
fn commands(document: &Document) -> Vec<(String, Vec<String>)> {
    let blocks = document.blocks_of("sh");
    let found = blocks.iter().flat_map(|block| block.commands().into_iter().map(|words| (block.place.clone(), words)));
    found.map(|(place, words)| (place, as_typed(words))).collect()
}

/// Return the command that `tickr-as-service` runs, by its name, and any other command as it is.
fn as_typed(mut words: Vec<String>) -> Vec<String> {
    if words[0] == "tickr-as-service" {
        words.remove(0);
        words[0] = words[0].rsplit('/').next().unwrap_or_default().to_owned();
    }
    words
}

/// Return the commands between back quotes in the prose that begin with this word. Those with an ellipsis are patterns.
fn quoted_commands(document: &Document, program: &str) -> Vec<(String, Vec<String>)> {
    let spans = document.quoted().into_iter().filter(|span| !span.contains('…'));
    let ours = spans.filter(|span| span.split_whitespace().next() == Some(program));
    // A pipe in a cell of a table is escaped; the command ends before it.
    ours.filter(|span| span.contains(' '))
        .map(|span| {
            let command = span.split(['|', '\\']).next().unwrap_or_default();
            (document.name.clone(), command.split_whitespace().map(str::to_owned).collect())
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_of_the_documents_is_one_that_tickr_takes() {
    let mut seen = BTreeMap::new();
    for document in documents() {
        let all = commands(&document).into_iter().chain(quoted_commands(&document, "tickr"));
        for (place, words) in all.filter(|(_, words)| words[0] == "tickr") {
            seen.entry(words).or_insert(place);
        }
    }
    assert!(seen.len() > 60, "only {} commands were read", seen.len());
    let dir = tempfile::tempdir().unwrap();
    for (words, place) in seen {
        // clap reads and checks everything before `--help`, and then prints the help instead of doing it. What follows
        // `--` are words of another program.
        let own = words[1..].iter().map(String::as_str).take_while(|word| *word != "--");
        let args: Vec<&str> = own.chain(["--help"]).collect();
        let (code, _, said) = outcome(command(&tickr(), dir.path(), &args)).await;
        assert_eq!(code, 0, "{place}: {}\n{said}", words.join(" "));
    }
}

#[test]
fn every_other_command_of_the_documents_names_what_exists() {
    let makefile = std::fs::read_to_string(root().join("Makefile")).unwrap();
    let is_target = |name: &str| makefile.lines().any(|line| line.starts_with(&format!("{name}:")));
    let mut count = 0;
    for document in documents() {
        let quoted = ["make", "cargo"].into_iter().flat_map(|program| quoted_commands(&document, program));
        for (place, words) in commands(&document).into_iter().chain(quoted) {
            let line = words.join(" ");
            count += 1;
            match words[0].as_str() {
                "make" => {
                    let targets = words[1..].iter().filter(|word| !word.contains('='));
                    targets.for_each(|target| assert!(is_target(target), "{place}: {line}: no target {target}"));
                }
                "cargo" => {
                    for (flag, folder) in [("--test", "tests"), ("--example", "examples")] {
                        let names = words.windows(2).filter(|pair| pair[0] == flag).map(|pair| &pair[1]);
                        for name in names {
                            let place_of_it = root().join(folder).join(name);
                            assert!(
                                place_of_it.join("main.rs").exists() || place_of_it.with_extension("rs").exists(),
                                "{place}: {line}: no {name}"
                            );
                        }
                    }
                }
                // `make test-clients` runs those of clients.
                "sh" | "python3" => assert!(root().join(&words[1]).exists(), "{place}: {line}: no {}", words[1]),
                // Their arguments are checked by other tests.
                "tickr" | "curl" => {}
                // The environment: the variables are checked by the test below.
                "export" | "set" | "." => {}
                // The commands of other programs: `packages::` runs those that can run in a chroot.
                "apt-get" | "dpkg-deb" | "editor" | "helm" | "install" | "journalctl" | "kubectl" | "podman" | "rm"
                | "sha256sum" | "systemctl" | "tar"
                    if document.name == "docs/INSTALL.md" => {}
                other => panic!("{place}: no test knows the command {other}: {line}"),
            }
        }
    }
    assert!(count > 50, "only {count} commands were read");
}

#[test]
fn every_variable_of_the_documents_is_read_by_some_program() {
    // Those that no setting has: of the clients and their test, of the tests, and of the build of the private servers.
    const OTHERS: [&str; 14] = [
        "TICKR_CONFIG",
        "TICKR_URL",
        "TICKR_TOKEN",
        "TICKR_OFFLINE",
        "TICKR_MYSQLD",
        "TICKR_SLOTS",
        "TICKR_LEASE_MS",
        "TICKR_GRACE_MS",
        "TICKR_WAIT_MS",
        "TICKR_BLOCK_MS",
        "TICKR_SMTP_PASSWORD",
        "TICKR_REPORTS_MYSQL_URL",
        "TICKR_OUTBOXES_",
        "TICKR_OUTBOXES_SHOP_MYSQL_URL",
    ];
    let settings = markdown_table();
    for document in documents() {
        for (at, _) in document.text.match_indices("TICKR_") {
            let rest = &document.text[at..];
            let end = rest.find(|c: char| !c.is_ascii_uppercase() && c != '_').unwrap_or(rest.len());
            let name = &rest[..end];
            let known = OTHERS.contains(&name)
                || name.starts_with("TICKR_TEST_")
                || name == "TICKR_"
                || settings.contains(&format!("`{name}`"));
            assert!(known, "{}: {name}", document.name);
        }
    }
}

/// A receiver of callbacks on this machine. The examples name hosts of others, and no test may send them a request.
struct Receiver {
    url: String,
    calls: Arc<AtomicUsize>,
    serving: JoinHandle<()>,
}

impl Receiver {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let calls = Arc::<AtomicUsize>::default();
        let called = Arc::clone(&calls);
        let count = move || {
            called.fetch_add(1, Ordering::SeqCst);
            std::future::ready(())
        };
        let app = axum::Router::new().fallback(count);
        let serving = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { url, calls, serving }
    }

    /// Return the text with this receiver in place of every other host.
    fn instead_of_others(&self, text: &str) -> String {
        let mut parts = text.split("https://");
        let mut ours = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let host = part.find(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '.' | '-' | ':'));
            ours.push_str(&self.url);
            ours.push_str(&part[host.unwrap_or(part.len())..]);
        }
        assert!(ours.split("http://").skip(1).all(|rest| rest.starts_with("127.0.0.1:")), "{ours}");
        ours
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// One call of curl, as far as the documents use it.
struct Call {
    method: Option<Method>,
    path: String,
    headers: Vec<(String, String)>,
    body: Option<String>,
}

impl Call {
    /// Read the words of a command line. `files` has the content of the files that it names.
    fn of(words: &[String], files: &BTreeMap<String, String>) -> Result<Self, String> {
        let mut call = Self { method: None, path: String::new(), headers: Vec::new(), body: None };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().cloned().ok_or(format!("nothing behind {word}"));
            match word.as_str() {
                "-s" | "-N" => {}
                "-X" => call.method = Some(value()?.parse().map_err(|_| "not a method".to_owned())?),
                "-H" => {
                    let header = value()?;
                    let (name, value) = header.split_once(": ").ok_or(format!("not a header: {header}"))?;
                    call.headers.push((name.to_owned(), value.to_owned()));
                }
                "-d" => call.body = Some(value()?),
                "--data-binary" => {
                    let name = value()?;
                    let file = name.strip_prefix('@').and_then(|name| files.get(name));
                    call.body = Some(file.ok_or(format!("no block is the content of {name}"))?.clone());
                }
                url => {
                    let path = url.strip_prefix("http://127.0.0.1:7070").ok_or(format!("not an address: {url}"))?;
                    call.path = path.to_owned();
                }
            }
        }
        if call.path.is_empty() { Err("no address".to_owned()) } else { Ok(call) }
    }
}

/// The finish keys of jobs that another system finishes.
#[derive(Default)]
struct FinishKeys(Arc<Mutex<Vec<String>>>);

#[derive(Serialize, Deserialize, JsonSchema)]
struct Keyed {}

impl Kind for Keyed {
    const NAME: &'static str = "keyed";
}

impl FinishKeys {
    fn kinds(&self) -> Registry {
        let (keys, mut kinds) = (Arc::clone(&self.0), Registry::new());
        kinds.register(move |_: Keyed, ctx: Context| {
            let keys = Arc::clone(&keys);
            async move {
                let key = ctx.finish_key().await?;
                keys.lock().unwrap().push(key.expose().to_owned());
                Ok(Output::finished_later(FinishLater::within(Duration::from_secs(60))))
            }
        });
        kinds
    }

    async fn next(&self) -> String {
        eventually("a handler asks for its finish key", || async { self.0.lock().unwrap().pop() }).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_request_of_the_documents_is_carried_out() {
    let mut count = 0;
    let receiver = Receiver::start().await;
    for document in documents() {
        let calls: Vec<_> = commands(&document).into_iter().filter(|(_, words)| words[0] == "curl").collect();
        if calls.is_empty() {
            continue;
        }
        let lines = document.blocks_of("ndjson").into_iter().map(|block| ("jobs.ndjson".to_owned(), block.text));
        let files: BTreeMap<String, String> = lines.collect();
        let keys = FinishKeys::default();
        let compat = |config: &mut Config| {
            config.compat.delayed = Some(DelayedMessages { url: receiver.url.clone() });
            config.compat.later = true;
        };
        let tickr = TestApp::start_with(compat, keys.kinds()).await;
        let mut finish_key = None;
        // The job that the requests name: one of the test, until the document enqueues its own.
        let mut id = tickr.enqueue(serde_json::json!({"kind": "noop"})).await.to_string();
        let secret = CallbackSecret::generate();
        for (place, words) in calls {
            let words = words[1..].iter().map(|word| word.replace("$ID", &id).replace("$SECRET", &secret));
            let mut words: Vec<String> = words.collect();
            if words.iter().any(|word| word.contains("$FINISH_KEY")) {
                if finish_key.is_none() {
                    tickr.enqueue(serde_json::json!({"kind": "keyed"})).await;
                    finish_key = Some(keys.next().await);
                }
                let key = finish_key.as_deref().unwrap();
                words = words.iter().map(|word| word.replace("$FINISH_KEY", key)).collect();
            }
            let call = Call::of(&words, &files).unwrap_or_else(|wrong| panic!("{place}: {wrong}: {words:?}"));
            let usual = if call.body.is_some() { Method::POST } else { Method::GET };
            let mut request = http().request(call.method.unwrap_or(usual), tickr.url(&call.path));
            for (name, value) in call.headers {
                request = request.header(name, value);
            }
            if let Some(body) = call.body {
                request = request.body(receiver.instead_of_others(&body));
            }
            let answer = answer(request).await;
            assert!((200..300).contains(&answer.status), "{place}: {words:?}: {} {:#}", answer.status, answer.body);
            let made = match call.path.as_str() {
                "/v1/jobs" | "/create" => answer.body["id"].as_str(),
                "/schedule" => answer.body["message_id"].as_str(),
                _ => None,
            };
            if let Some(made) = made {
                made.clone_into(&mut id);
            }
            count += 1;
        }
        tickr.stop().await;
    }
    assert!(count > 20, "only {count} requests were read");
    // At least the callback of docs/KEYS.md and the schedule that docs/SCHEDULES.md triggers are for other hosts.
    eventually("the callbacks of the documents arrive here", || async {
        (receiver.calls.load(Ordering::SeqCst) >= 2).then_some(())
    })
    .await;
}

/// The rows are inserted with an id of today, as a program makes them. The runner serves no queue, so that it sends
/// nothing to the hosts of the documents.
#[tokio::test(flavor = "multi_thread")]
async fn every_row_of_the_outbox_in_the_documents_becomes_a_job() {
    let tickr = TestApp::start_with(|config| config.queues = vec!["none".into()], Registry::new()).await;
    let blocks = documents().into_iter().flat_map(|document| document.blocks_of("sql"));
    let mut count = 0;
    for Block { text, place, .. } in blocks.filter(|block| block.text.contains("INSERT INTO tickr_outbox")) {
        let insert = text.split_inclusive(';').find(|one| one.contains("INSERT INTO tickr_outbox")).unwrap();
        let (before, rest) = insert.split_once("UNHEX('").unwrap_or_else(|| panic!("{place}: no id"));
        let (_, after) = rest.split_once('\'').unwrap();
        let id = JobId::new();
        tickr.sql(format!("{before}UNHEX('{}'{after}", id.uuid().simple())).await;
        let made = eventually(&format!("the row of {place} is a job or rejected"), || async {
            let job = tickr.get(&format!("/v1/jobs/{id}")).await;
            let rejected = tickr.get("/v1/outbox/rejected").await.body;
            if job.status == 404 && rejected["data"].as_array().is_some_and(Vec::is_empty) { None } else { Some(job) }
        })
        .await;
        assert_eq!((made.status, &made.body["state"]), (200, &"waiting".into()), "{place}: {:#}", made.body);
        count += 1;
    }
    assert!(count >= 2, "only {count} rows were read");
    tickr.stop().await;
}

/// A test that is ignored is worth nothing if it is never run.
#[test]
fn every_long_test_is_run_by_a_documented_command() {
    let page = document("CONTRIBUTING.md").text;
    let named: Vec<&str> =
        page.split("`make test-long ARGS=").skip(1).map(|rest| rest.split('`').next().unwrap()).collect();
    let (mut long, mut missing) = (BTreeMap::<String, usize>::new(), Vec::new());
    for entry in std::fs::read_dir(root().join("tests/suite")).unwrap() {
        let path = entry.unwrap().path();
        let Some(module) = path.file_name().unwrap().to_str().unwrap().strip_suffix(".rs") else { continue };
        let source = std::fs::read_to_string(&path).unwrap();
        let count = source.lines().filter(|line| line.starts_with("#[ignore = ")).count();
        if count > 0 {
            long.insert(format!("{module}::"), count);
        }
    }
    assert!(long.len() > 10, "{long:?}");
    for module in long.keys().filter(|module| !named.iter().any(|name| module.starts_with(name))) {
        missing.push(format!("no command runs the long tests of {module}"));
    }
    for name in named.iter().filter(|name| !long.keys().any(|module| module.starts_with(**name))) {
        missing.push(format!("no long test is run by ARGS={name}"));
    }
    assert!(missing.is_empty(), "CONTRIBUTING.md: {missing:#?}");
}

/// A function of the suite that stands by itself.
struct Function<'s> {
    name: &'s str,
    lines: Vec<&'s str>,
    is_test: bool,
    is_ignored: bool,
}

fn functions(source: &str) -> Vec<Function<'_>> {
    let (mut found, mut attributes, mut is_open) = (Vec::<Function<'_>>::new(), Vec::new(), false);
    for line in source.lines() {
        if is_open {
            found.last_mut().unwrap().lines.push(line);
            is_open = line != "}";
            continue;
        }
        if line.starts_with("#[") {
            attributes.push(line);
            continue;
        }
        let plain = line.trim_start_matches("pub(crate) ").trim_start_matches("async ");
        if let Some(rest) = plain.strip_prefix("fn ") {
            let name = rest.split(['(', '<']).next().unwrap();
            let has = |word: &str| attributes.iter().any(|attribute| attribute.contains(word));
            let (is_test, is_ignored) = (has("test"), has("#[ignore"));
            found.push(Function { name, lines: vec![line], is_test, is_ignored });
            is_open = !line.ends_with('}');
        }
        attributes.clear();
    }
    found
}

/// The choice between the whole size of a promise and a smaller one.
const SIZE: &str = "is_full()";

impl Function<'_> {
    fn sizes(&self) -> usize {
        self.lines.iter().map(|line| line.matches(SIZE).count()).sum()
    }

    fn calls(&self, name: &str) -> bool {
        let call = format!("{name}(");
        let is_whole = |before: &str| !before.ends_with(|c: char| c.is_alphanumeric() || "_.:".contains(c));
        self.lines[1..].iter().any(|line| line.match_indices(&call).any(|(at, _)| is_whole(&line[..at])))
    }

    /// Return the names of the functions that it calls, also through others, and its own.
    fn reaches<'s>(&'s self, all: &'s [Function<'s>]) -> BTreeSet<&'s str> {
        let (mut reached, mut new) = (BTreeSet::new(), vec![self]);
        while let Some(function) = new.pop() {
            if reached.insert(function.name) {
                new.extend(all.iter().filter(|other| function.calls(other.name)));
            }
        }
        reached
    }
}

/// Return the functions of a module that choose a size by `is_full` and have no long test. `make test-long` runs ignored
/// tests alone. So the function is called by an ignored test; or it is a test, and an ignored test calls all functions
/// of the module that it calls itself.
fn without_long_test(source: &str) -> Vec<&str> {
    let all = functions(source);
    let long: Vec<BTreeSet<&str>> =
        all.iter().filter(|function| function.is_ignored).map(|test| test.reaches(&all)).collect();
    let has_long = |sized: &Function<'_>| {
        let called: Vec<&str> = if sized.is_test {
            all.iter().map(|other| other.name).filter(|name| sized.calls(name)).collect()
        } else {
            vec![sized.name]
        };
        sized.is_ignored
            || !called.is_empty() && long.iter().any(|reached| called.iter().all(|name| reached.contains(name)))
    };
    let sized: Vec<&Function<'_>> = all.iter().filter(|function| function.sizes() > 0).collect();
    let read: usize = sized.iter().map(|function| function.sizes()).sum();
    assert_eq!(read, source.matches(SIZE).count(), "call `is_full` in a function that stands by itself");
    sized.into_iter().filter(|function| !has_long(function)).map(|function| function.name).collect()
}

#[test]
fn every_smaller_size_of_a_promise_has_a_long_test() {
    let (mut sized, mut missing) = (0, Vec::new());
    for entry in std::fs::read_dir(root().join("tests/suite")).unwrap() {
        let path = entry.unwrap().path();
        let Ok(source) = std::fs::read_to_string(&path) else { continue };
        let module = path.file_stem().unwrap().to_str().unwrap();
        if module == "readme" {
            continue;
        }
        sized += source.matches(SIZE).count();
        missing.extend(without_long_test(&source).iter().map(|name| format!("{module}::{name}")));
    }
    assert!(missing.is_empty(), "`make test-long` runs the whole size of none of these: {missing:#?}");
    assert!(sized > 5, "only {sized} sizes were found");
    // The reader finds what it should.
    let (helper, test) = ("async fn fill() {\n    if is_full() {}\n}\n", "#[test]\nfn small() {\n    fill()\n}\n");
    let own =
        "async fn fill(n: u32) {\n}\n#[test]\nfn small() {\n    fill(if support::is_full() { 2 } else { 1 })\n}\n";
    let other = "#[test]\n#[ignore = \"long\"]\nfn whole() {\n    refill(2)\n}\n";
    let whole = "#[test]\n#[ignore = \"long\"]\nfn whole() {\n    fill(2)\n}\n";
    assert_eq!(without_long_test(&[helper, test, other].concat()), ["fill"]);
    assert!(without_long_test(&[helper, test, whole].concat()).is_empty());
    assert_eq!(without_long_test(&[own, other].concat()), ["small"]);
    assert!(without_long_test(&[own, whole].concat()).is_empty());
}

/// A new user reads this page first.
#[test]
fn the_readme_is_short() {
    let readme = document("README.md").text;
    assert!(readme.lines().count() <= 200, "{} lines", readme.lines().count());
    assert!(readme.len() <= 10_240, "{} bytes", readme.len());
}

/// Return the documents whose blocks are doctests of the crate.
fn pages_of_doctests() -> Vec<String> {
    let source = std::fs::read_to_string(root().join("internal/lib.rs")).unwrap();
    let included = source.split(r#"include_str!("../"#).skip(1);
    included.map(|rest| rest.split('"').next().unwrap().to_owned()).collect()
}

/// The published crate includes them in a build of its doctests alone, which `make publish-check` does not make.
#[test]
fn the_package_has_every_document_whose_blocks_are_doctests() {
    let manifest: toml::Table = std::fs::read_to_string(root().join("Cargo.toml")).unwrap().parse().unwrap();
    let packed: Vec<&str> =
        manifest["package"]["include"].as_array().unwrap().iter().map(|path| path.as_str().unwrap()).collect();
    let pages = pages_of_doctests();
    assert!(pages.len() > 3, "{pages:?}");
    for page in pages {
        assert!(packed.contains(&format!("/{page}").as_str()), "the package does not include {page}");
    }
}

/// rustdoc takes a block without a language for Rust, and an indented one as well.
#[test]
fn every_block_of_the_documents_has_a_language() {
    for page in pages_of_doctests() {
        let prose = document(&page).prose();
        assert!(!prose.lines().any(|line| line.starts_with("    ")), "{page} has an indented block");
    }
    for document in documents() {
        for block in document.blocks() {
            assert!(!block.language.is_empty(), "{}", block.place);
        }
    }
}

/// The unit for systemd and the container file give a stop the time that the defaults need, run as another account than
/// root, and stop by the signal that tickr follows.
#[test]
fn the_unit_and_the_container_file_stop_tickr_in_peace() {
    let read = |name: &str| std::fs::read_to_string(root().join(name)).unwrap();
    let unit = read("deploy/debian/tickr.service");
    let set = |name: &str| {
        let lines: Vec<&str> = unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('=')).collect();
        assert_eq!(lines.len(), 1, "{name}: {lines:?}");
        lines[0].to_owned()
    };
    let loaded = Config::load(&Flags::default(), std::iter::empty(), None).unwrap();
    let needed = loaded.config.shutdown_notice + loaded.config.shutdown_grace;
    let patience: u64 = set("TimeoutStopSec").parse().unwrap();
    // The rest is for results while MySQL is out.
    assert!(patience >= needed.as_secs() + 30, "{patience} s for {needed:?}");
    assert_eq!((set("KillSignal").as_str(), set("KillMode").as_str()), ("SIGTERM", "mixed"));
    assert!(set("ExecStart").ends_with("/tickr serve") && set("User") != "root");
    assert_eq!((set("Type").as_str(), set("NotifyAccess").as_str()), ("notify", "main"));
    let container = read("deploy/image/Containerfile");
    for line in ["USER 10001:10001", "STOPSIGNAL SIGTERM", "ENTRYPOINT [\"/usr/bin/tickr\"]", "CMD [\"serve\"]"] {
        assert!(container.lines().any(|one| one == line), "{line}");
    }
    for secret in ["_URL", "TOKEN", "SECRET", "PASSWORD"] {
        assert!(!container.contains(secret) && !unit.contains(secret), "{secret}");
    }
}

/// Every account of the machine can read command lines in the list of processes.
#[test]
fn no_command_line_of_the_documents_carries_a_secret() {
    let pages = documents().into_iter().map(|document| (document.name, document.text));
    let others = ["compose.yaml", "examples/own_kind.rs", "examples/handler_with_state.rs", "examples/follow_ups.rs"];
    let others = others.map(|name| (name.to_owned(), std::fs::read_to_string(root().join(name)).unwrap()));
    let flags = ["--api-tokens ", "--token ", "--callback-secret ", "--otlp-headers "];
    for (name, text) in pages.chain(others) {
        // The table of settings names the flags.
        for line in text.lines().filter(|line| !line.starts_with("| `")) {
            let is_url_with_password = |word: &str| {
                let authority =
                    word.split_once("://").and_then(|(_, rest)| rest.split_once('@')).map(|(login, _)| login);
                authority.is_some_and(|login| login.contains(':'))
            };
            let after = ["--mysql-url", "--redis-url"].into_iter().filter_map(|flag| line.split_once(flag));
            let exposed = after
                .map(|(_, rest)| rest.trim_start_matches(['=', ' ']))
                .any(|rest| is_url_with_password(rest.split_whitespace().next().unwrap_or_default()));
            assert!(!exposed && !flags.iter().any(|flag| line.contains(flag)), "{name}: {line}");
        }
    }
}
