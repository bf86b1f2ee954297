//! The built command, subcommand by subcommand: its output, its effect and its exit code.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tickr::event::Event;
use tickr::handlers::Registry;
use tickr::job::State;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use crate::support::program::{Program, command, example, outcome, tickr};
use crate::support::{DEADLINE, EventStream, TestApp, answer, broken, eventually, http, lasting_addr};

/// Make the command `tickr …`, to run in a folder of the test.
fn run(dir: &Path, args: &[&str]) -> Command {
    command(&tickr(), dir, args)
}

/// Make the command `tickr …`, as a client of the tickr of the test.
fn client(app: &TestApp, args: &[&str]) -> Command {
    let mut command = run(app.dir.path(), args);
    command.env("TICKR_URL", app.url(""));
    command
}

async fn ok(command: Command) -> String {
    let (code, out, err) = outcome(command).await;
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    out
}

fn servers(app: &TestApp, command: &mut Command) {
    command
        .env("TICKR_MYSQL_URL", app.config.mysql_url().unwrap().expose())
        .env("TICKR_REDIS_URL", app.config.redis_url().unwrap().expose())
        .env("TICKR_REDIS_PREFIX", &app.config.redis_prefix);
}

#[tokio::test(flavor = "multi_thread")]
async fn serve_names_everything_that_is_wrong_with_its_settings_at_once() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tickr.toml"), "horizon = \"never\"\ncolour = \"red\"\n").unwrap();
    let mut serve = run(dir.path(), &["serve", "--lease", "1ms", "--queues", "Bad Name"]);
    serve.env("TICKR_WORKERS", "none").env("TICKR_API_TOKENS", "canary,x").env("TICKR_HTTP_ADDR", "nowhere");
    let (code, out, err) = outcome(serve).await;
    assert_eq!((code, out.as_str()), (2, ""), "{err}");
    for part in [
        "mysql_url",
        "TICKR_MYSQL_URL",
        "redis_url",
        "workers",
        "TICKR_WORKERS",
        "lease",
        "--lease",
        "queues",
        "http_addr",
        "horizon",
        "tickr.toml",
        "colour",
    ] {
        assert!(err.contains(part), "{part} is not in:\n{err}");
    }
    assert!(!err.contains("canary") && !err.contains("backtrace"), "{err}");

    let mut serve = run(dir.path(), &["serve"]);
    serve.env("TICKR_MYSQL_ULR", "mysql://u@h/d");
    let (code, _, err) = outcome(serve).await;
    assert!(code == 2 && err.contains("TICKR_MYSQL_ULR: did you mean TICKR_MYSQL_URL?"), "{err}");

    let (code, _, err) = outcome(run(dir.path(), &["serve", "--no-such-flag"])).await;
    assert_eq!(code, 2, "{err}");
    // The driver alone would refuse this URL, after the start, as if the server could not be reached.
    let mysql = "mysql://tickr:canary@127.0.0.1:1/tickr?ssl-mode=VERIFY-IDENTITY";
    std::fs::write(dir.path().join("tickr.toml"), "").unwrap();
    for command in [vec!["serve"], vec!["migrate"], vec!["verify"], vec!["check", "--pending"], vec!["config"]] {
        let mut command = run(dir.path(), &command);
        command.env("TICKR_MYSQL_URL", mysql).env("TICKR_REDIS_URL", "redis://127.0.0.1:1");
        let (code, out, err) = outcome(command).await;
        assert_eq!(code, 2, "{out}{err}");
        for part in ["mysql_url", "TICKR_MYSQL_URL", "ssl-mode is none of DISABLED"] {
            assert!(err.contains(part), "{part} is not in:\n{err}");
        }
        assert!(!err.contains("canary"), "{err}");
    }
    let (code, _, err) = outcome(run(dir.path(), &[])).await;
    assert!(code == 2 && err.contains("serve") && err.contains("dev"), "{err}");
    let (code, _, err) = outcome(run(dir.path(), &["serve", "--config", "nowhere.toml"])).await;
    assert!(code == 2 && err.contains("nowhere.toml"), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn serve_names_the_files_urls_and_kinds_that_it_cannot_use_at_once_and_without_mysql() {
    let dir = tempfile::tempdir().unwrap();
    let file = "redis_ca_file = \"no-redis-ca\"\ncallback_ca_file = \"no-callback-ca\"\n[kinds.nope]\n\
         max_attempts = 2\n[alerts]\nurl = \"http://10.0.0.5/x\"\ndead_letters = 1\n[compat.delayed]\n\
         url = \"http://10.0.0.6/x\"\n[outboxes.shop]\n\
         mysql_url = \"mysql://127.0.0.1:1/shop?ssl-cert=no-cert&ssl-key=no-key\"\n";
    std::fs::write(dir.path().join("tickr.toml"), file).unwrap();
    let mysql = "mysql://u:canary@127.0.0.1:1/tickr?ssl-mode=VERIFY_IDENTITY&ssl-ca=no-mysql-ca";
    let ran = |args: &[&str]| {
        let mut command = run(dir.path(), args);
        command.env("TICKR_MYSQL_URL", mysql).env("TICKR_REDIS_URL", "rediss://127.0.0.1:1");
        outcome(command)
    };
    let (code, out, err) = ran(&["serve", "--http-addr", "127.0.0.1:0"]).await;
    assert_eq!(code, 2, "{out}{err}");
    for part in [
        "redis_ca_file",
        "no-redis-ca",
        "callback_ca_file",
        "no-callback-ca",
        "[kinds.nope]",
        "the url of [alerts] cannot be called",
        "the url of [compat.delayed] cannot be called",
        "ssl-ca of mysql_url: no-mysql-ca",
        "ssl-cert of outboxes.shop.mysql_url: no-cert",
        "ssl-key of outboxes.shop.mysql_url: no-key",
    ] {
        assert!(err.contains(part), "{part} is not in:\n{err}");
    }
    assert!(!err.contains("canary"), "{err}");
    // A reader of JSON lines gets the same reason.
    let (_, _, err) = ran(&["serve", "--http-addr", "127.0.0.1:0", "--log-format", "json"]).await;
    let line = err.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).find(|l| l["level"] == "ERROR");
    let reason = line.as_ref().and_then(|line| line["reason"].as_str()).unwrap_or_default();
    assert!(reason.contains("no-redis-ca") && reason.contains("[kinds.nope]"), "{err}");
    // Commands that need only MySQL do not look at the other files.
    let (code, out, err) = ran(&["migrate"]).await;
    assert!(code == 2 && err.contains("no-mysql-ca") && !err.contains("no-redis-ca"), "{out}{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_a_mysql_url_without_a_certificate_or_key_is_a_wrong_configuration() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("empty.pem"), "not what it should be\n").unwrap();
    let mut serve = run(dir.path(), &["serve", "--http-addr", "127.0.0.1:0"]);
    let files = "ssl-mode=VERIFY_CA&ssl-ca=empty.pem&ssl-cert=empty.pem&ssl-key=empty.pem";
    serve.env("TICKR_MYSQL_URL", format!("mysql://u:canary@127.0.0.1:1/tickr?{files}"));
    serve.env("TICKR_REDIS_URL", "redis://127.0.0.1:1");
    let (code, out, err) = outcome(serve).await;
    assert_eq!(code, 2, "{out}{err}");
    for part in [
        "ssl-ca of mysql_url: empty.pem: has no certificate",
        "ssl-cert of mysql_url: empty.pem: has no certificate",
        "ssl-key of mysql_url: empty.pem: has no key",
    ] {
        assert!(err.contains(part), "{part} is not in:\n{err}");
    }
    assert!(!err.contains("canary"), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_of_a_url_that_would_have_no_effect_is_a_wrong_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let (mysql, redis) = ("mysql://u@127.0.0.1:1/tickr", "redis://127.0.0.1:1");
    for (name, value, said) in [
        ("TICKR_REDIS_URL", "redis://127.0.0.1:1?db=2", "protocol for one server"),
        ("TICKR_REDIS_URL", "redis://127.0.0.1:1/0?tls=true", "protocol for one server"),
        ("TICKR_REDIS_URL", "redis+unix:///run/r.sock?password=canary", "db, user, pass and protocol for a socket"),
        ("TICKR_REDIS_URL", "redis://canary@127.0.0.1:1", "redis://:password@host"),
        ("TICKR_MYSQL_URL", "mysql://u@127.0.0.1:1/tickr?charset=latin1&collation=latin1_bin", "utf8mb4_bin"),
    ] {
        let mut config = run(dir.path(), &["config"]);
        config.env("TICKR_MYSQL_URL", mysql).env("TICKR_REDIS_URL", redis).env(name, value);
        let (code, out, err) = outcome(config).await;
        assert_eq!((code, out.as_str()), (2, ""), "{name}={value}: {err}");
        assert!(err.contains(name) && err.contains(said) && !err.contains("canary"), "{name}={value}: {err}");
    }
    // Reports may have a character set of their own.
    let mut config = run(dir.path(), &["config"]);
    config.env("TICKR_MYSQL_URL", mysql).env("TICKR_REDIS_URL", redis);
    config.env("TICKR_REPORTS_MYSQL_URL", format!("{mysql}?charset=latin1&collation=latin1_bin"));
    let (code, out, err) = outcome(config).await;
    assert_eq!(code, 0, "{out}{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn dev_refuses_the_flags_of_servers_that_it_would_not_use() {
    let dir = tempfile::tempdir().unwrap();
    for (flag, value) in [
        ("--mysql-url", "mysql://u@127.0.0.1:1/tickr"),
        ("--redis-url", "redis://127.0.0.1:1"),
        ("--redis-ca-file", "ca.pem"),
        ("--redis-cert-file", "cert.pem"),
        ("--redis-key-file", "key.pem"),
    ] {
        let (code, out, err) = outcome(run(dir.path(), &["dev", "--http-addr", "127.0.0.1:0", flag, value])).await;
        assert_eq!((code, out.as_str()), (2, ""), "{flag}: {err}");
        assert!(err.contains(flag), "{flag}: {err}");
    }
    assert!(!dir.path().join(".tickr").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_warns_of_alerts_for_kinds_that_it_does_not_know() {
    let app = TestApp::start().await;
    let declared = app.put("/v1/kinds/resize", json!({"queue": "pictures"})).await;
    assert_eq!(declared.status, 201, "{:#}", declared.body);
    let kinds = ["emial", "htpp", "http", "resize"].map(|kind| format!("[alerts.kinds.{kind}]\ndead_letters = 1\n"));
    let file = format!("[alerts]\nurl = \"http://127.0.0.1:1/x\"\n{}", kinds.concat());
    std::fs::write(app.dir.path().join("tickr.toml"), file).unwrap();
    let mut serve = run(app.dir.path(), &["serve", "--http-addr", "127.0.0.1:0", "--callback-allow-private"]);
    servers(&app, &mut serve);
    serve.env("TICKR_TEST_KINDS", "1").env("TICKR_LOG_FORMAT", "json").env("TICKR_QUEUES", "elsewhere");
    let mut program = Program::spawn(serve);
    program.url().await;
    let said = program.said();
    let warned: Vec<&str> = said.lines().filter(|line| line.contains("alerts.kinds.")).collect();
    assert_eq!(warned.len(), 2, "{said}");
    assert!(warned[0].contains("alerts.kinds.emial") && warned[0].contains("WARN"), "{said}");
    assert!(warned[1].contains("alerts.kinds.htpp") && warned[1].contains("did you mean alerts.kinds.http?"), "{said}");
    program.ends_well().await;
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn health_without_a_url_asks_the_address_that_its_container_listens_on() {
    let app = TestApp::start().await;
    let port = app.app.addr().port();
    let asked = async |addr: String, url: Option<&str>| {
        let mut health = run(app.dir.path(), &["health", "--live"]);
        health.env("TICKR_HTTP_ADDR", addr).envs(url.map(|url| ("TICKR_URL", url)));
        outcome(health).await
    };
    for addr in [format!("127.0.0.1:{port}"), format!("0.0.0.0:{port}")] {
        let (code, out, err) = asked(addr.clone(), None).await;
        assert_eq!(code, 0, "{addr}: {out}{err}");
        // An empty variable counts as not set, and one that is set decides.
        assert_eq!(asked(addr.clone(), Some("")).await.0, 0, "{addr}");
        let (code, _, err) = asked(addr, Some("http://127.0.0.1:1")).await;
        assert!(code == 1 && err.contains("http://127.0.0.1:1"), "{code} {err}");
    }
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_mysql_it_says_what_it_tried_and_how_to_start_one() {
    let dir = tempfile::tempdir().unwrap();
    // The test holds this port without accepting connections, so that no server answers on it.
    let port = lasting_addr().port();
    let mysql = format!("mysql://root:canary@127.0.0.1:{port}/tickr");
    let began = Instant::now();
    let serve = ["serve", "--mysql-url", &mysql, "--redis-url", "redis://127.0.0.1:1", "--http-addr", "127.0.0.1:0"];
    let migrate = ["migrate", "--mysql-url", &mysql];
    let (serve, migrate) = tokio::join!(outcome(run(dir.path(), &serve)), outcome(run(dir.path(), &migrate)));
    for (code, out, err) in [serve, migrate] {
        assert_eq!(code, 1, "{out}{err}");
        for part in [&format!("127.0.0.1:{port}"), "tickr dev", "TICKR_MYSQL_URL", "--mysql-url"] {
            assert!(err.contains(part), "{part} is not in:\n{err}");
        }
        assert!(!format!("{out}{err}").contains("canary"), "{out}{err}");
    }
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_it_serves_all_the_same_and_says_so() {
    let app = TestApp::start().await;
    let args = ["serve", "--redis-url", "redis://127.0.0.1:1", "--http-addr", "127.0.0.1:0", "--queues", "alone"];
    let mut serve = run(app.dir.path(), &args);
    servers(&app, &mut serve);
    serve.env("TICKR_TEST_KINDS", "1").env("TICKR_LOG_FORMAT", "json");
    let mut program = Program::spawn(serve);
    let url = program.url().await;
    let job = json!({"kind": "noop", "queue": "alone"});
    let accepted = answer(http().post(format!("{url}/v1/jobs")).json(&job)).await;
    assert_eq!(accepted.status, 201);
    app.until(accepted.body["id"].as_str().unwrap().parse().unwrap(), State::Completed).await;
    eventually("it knows that Redis is out", async || {
        let ready = answer(http().get(format!("{url}/readyz"))).await;
        assert_eq!(ready.status, 200);
        (ready.body["index"] == "degraded").then_some(())
    })
    .await;
    program.signal("TERM").await;
    assert_eq!(program.ends().await.code(), Some(0), "{}", program.said());
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_under_nohup_outlives_its_terminal() {
    let app = TestApp::start().await;
    let script = "trap '' HUP; exec \"$0\" serve --http-addr 127.0.0.1:0";
    let mut serve = command(Path::new("/bin/sh"), app.dir.path(), &["-c", script, tickr().to_str().unwrap()]);
    servers(&app, &mut serve);
    serve.env("TICKR_TEST_KINDS", "1").env("TICKR_LOG_FORMAT", "json");
    let mut program = Program::spawn(serve);
    program.url().await;
    program.signal("HUP").await;
    program.runs_a_job().await;
    assert!(!program.said().contains("SIGHUP"), "{}", program.said());
    program.ends_well().await;
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taken_port_is_named_with_the_setting_that_changes_it() {
    let app = TestApp::start().await;
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let mut serve = run(app.dir.path(), &["serve", "--http-addr", &addr]);
    servers(&app, &mut serve);
    let (code, _, err) = outcome(serve).await;
    assert_eq!(code, 1, "{err}");
    for part in [addr.as_str(), "cannot listen", "--http-addr", "TICKR_HTTP_ADDR"] {
        assert!(err.contains(part), "{part} is not in:\n{err}");
    }

    // A supervisor starts a runner again after 1, and leaves it after 2: a wrong configuration does not mend itself.
    std::fs::write(app.dir.path().join("tickr.toml"), "[kinds.emial]\nmax_attempts = 3\n[kinds.htpt]\n").unwrap();
    let mut serve = run(app.dir.path(), &["serve", "--http-addr", "127.0.0.1:0"]);
    servers(&app, &mut serve);
    let (code, _, err) = outcome(serve).await;
    assert_eq!(code, 2, "{err}");
    for part in ["[kinds.emial]", "[kinds.htpt]", "http", "report"] {
        assert!(err.contains(part), "{part} is not in:\n{err}");
    }
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn check_ends_with_1_when_something_would_be_rejected_also_in_an_embedding_program() {
    let app = TestApp::start().await;
    let embedding = example("own_kind").await;
    let check = async |wanted: i32, parts: &[&str]| {
        for (program, args) in [(tickr(), &["check", "--pending"][..]), (embedding.clone(), &["check"][..])] {
            let mut check = command(&program, app.dir.path(), args);
            servers(&app, &mut check);
            check.env("TICKR_TEST_KINDS", "1");
            let (code, out, err) = outcome(check).await;
            assert_eq!(code, wanted, "{}:\n{out}{err}", program.display());
            for part in parts {
                assert!(format!("{out}{err}").contains(part), "{part} is not in:\n{out}{err}");
            }
        }
    };
    check(0, &["no unfinished jobs"]).await;
    let later = |kind: &str| json!({"kind": kind, "payload": {"ms": 1}, "delay_ms": 3_600_000});
    app.enqueue(later("noop")).await;
    app.enqueue(later("sleep")).await;
    check(0, &["sleep: 1 unfinished, all can be read"]).await;
    let schedule = json!({"every_ms": 3_600_000, "kind": "sleep", "payload": {"ms": 1}});
    let put = app.put("/v1/schedules/hourly", &schedule).await;
    assert_eq!(put.status, 201, "{:#}", put.body);
    app.sql("UPDATE schedules SET payload = '{\"ms\": \"x\"}'").await;
    check(1, &["1 of 1 schedules would make no job"]).await;
    app.sql("UPDATE jobs SET payload = '{\"ms\": \"x\"}' WHERE kind = 'sleep'").await;
    check(1, &["1 of 2 unfinished jobs and 1 of 1 schedules would be rejected", "/ms"]).await;
    app.sql("DELETE FROM schedules").await;
    check(1, &["1 of 2 unfinished jobs would be rejected"]).await;
    // A wrong configuration is no verdict about jobs.
    let wrong = command(&embedding, app.dir.path(), &["check"]);
    let (code, _, err) = outcome(wrong).await;
    assert!(code == 2 && err.contains("mysql_url"), "{code} {err}");
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn migrate_is_repeatable_and_rebuild_has_redis_fed_again() {
    let app = TestApp::start().await;
    for _ in 0..2 {
        let mut migrate = run(app.dir.path(), &["migrate"]);
        migrate.env("TICKR_MYSQL_URL", app.config.mysql_url().unwrap().expose());
        assert_eq!(ok(migrate).await, "the tables are up to date\n");
    }
    let id = app.enqueue(json!({"kind": "noop", "delay_ms": 1_500})).await;
    let mut rebuild = run(app.dir.path(), &["rebuild"]);
    rebuild
        .env("TICKR_REDIS_URL", app.config.redis_url().unwrap().expose())
        .env("TICKR_REDIS_PREFIX", &app.config.redis_prefix);
    let act = async {
        let said = ok(rebuild).await;
        assert!(said.starts_with("forgot ") && said.contains("feed Redis again"), "{said}");
    };
    app.event("a rebuild", act, |event| matches!(event, Event::Rebuilt { .. }).then_some(())).await;
    let job = app.until(id, State::Completed).await;
    assert_eq!(job["attempts"].as_array().unwrap().len(), 1);
    let (code, _, err) = outcome(run(app.dir.path(), &["rebuild", "--redis-url", "redis://:canary@127.0.0.1:1"])).await;
    assert!(code == 1 && err.contains("127.0.0.1:1") && !err.contains("canary"), "{err}");
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn top_prints_one_read_of_the_api_as_json() {
    let app = TestApp::start().await;
    // The older job fails last.
    let fail = json!({"kind": "fail", "payload": {"permanent": true}, "delay_ms": 600_000});
    let [older, newer] = [app.enqueue(fail.clone()).await, app.enqueue(fail).await];
    for id in [newer, older] {
        assert_eq!(app.post(&format!("/v1/jobs/{id}/run-now"), json!({})).await.status, 200);
        app.until(id, State::Failed).await;
    }
    app.enqueue(json!({"kind": "noop", "delay_ms": 600_000})).await;
    let shown: Value = serde_json::from_str(&ok(client(&app, &["top", "--json"])).await).unwrap();
    let named = |list: &str, field: &str| -> Vec<Value> {
        shown[list].as_array().unwrap().iter().map(|row| row[field].clone()).collect()
    };
    assert!(named("queues", "name").contains(&json!("default")), "{shown:#}");
    assert_eq!(named("runners", "id"), [json!(app.app.runner().as_str())], "{shown:#}");
    // The newest failure is first, although its job is not the newest.
    assert_eq!(named("dead_letters", "id"), [json!(older.to_string()), json!(newer.to_string())], "{shown:#}");
    let stats = app.get("/v1/stats").await.body;
    assert!(stats.as_object().unwrap().keys().eq(shown["stats"].as_object().unwrap().keys()), "{shown:#}");
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn enqueue_takes_a_payload_from_everywhere_and_waits_if_asked() {
    let app = TestApp::start().await;
    let job = async |out: &str| app.job(out.split(' ').next().unwrap().parse().unwrap()).await;
    let bare = ok(client(&app, &["enqueue", "noop"])).await;
    assert!(bare.ends_with(" waiting\n"), "{bare}");
    assert_eq!(job(&bare).await["payload"], json!({}));

    std::fs::write(app.dir.path().join("payload.json"), r#"{"from": "a file"}"#).unwrap();
    let file = ok(client(&app, &["enqueue", "noop", "@payload.json"])).await;
    assert_eq!(job(&file).await["payload"], json!({"from": "a file"}));

    let mut piped = client(&app, &["enqueue", "noop", "-"]);
    piped.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut child = piped.spawn().unwrap();
    child.stdin.take().unwrap().write_all(br#"{"from": "a pipe"}"#).await.unwrap();
    let out = child.wait_with_output().await.unwrap();
    assert!(out.status.success());
    assert_eq!(job(&String::from_utf8(out.stdout).unwrap()).await["payload"], json!({"from": "a pipe"}));

    let waited = ok_out(client(&app, &["enqueue", "sleep", r#"{"ms": 50}"#, "--wait", "30s", "--json"])).await;
    let waited: Value = serde_json::from_str(&waited).unwrap();
    assert_eq!((&waited["state"], &waited["result"]), (&json!("completed"), &json!({"slept_ms": 50})));

    let all = [
        "enqueue",
        "noop",
        r#"{"a": 1}"#,
        "--queue",
        "slow",
        "--delay-ms",
        "3600000",
        "--max-attempts",
        "3",
        "--timeout-ms",
        "500",
        "--priority",
        "1",
        "--unique-key",
        "k",
        "--on-conflict",
        "reject",
        "--idempotency-key",
        "once",
        "--json",
    ];
    let again = ok(client(&app, &all)).await;
    let all: Value = serde_json::from_str(&ok(client(&app, &all)).await).unwrap();
    assert_eq!(all, serde_json::from_str::<Value>(&again).unwrap(), "the same idempotency key gives the same job");
    for (field, value) in [
        ("queue", json!("slow")),
        ("max_attempts", json!(3)),
        ("timeout_ms", json!(500)),
        ("priority", json!(1)),
        ("unique_key", json!("k")),
        ("state", json!("waiting")),
    ] {
        assert_eq!(all[field], value, "{field}");
    }
    let dated = ok(client(&app, &["enqueue", "noop", "--at", "2020-01-01T00:00:00Z", "--wait", "30s"])).await;
    assert!(dated.ends_with(" completed\n"), "{dated}");

    // The API refuses a payload and names the field, text that is not JSON is refused before a request is sent, and an
    // address without a server is reported.
    let (code, out, err) = outcome(client(&app, &["enqueue", "sleep", r#"{"ms": "x"}"#])).await;
    assert!(code == 1 && out.is_empty() && err.contains("/payload/ms") && err.contains("invalid_payload"), "{err}");
    let (code, _, err) = outcome(client(&app, &["enqueue", "noop", "{"])).await;
    assert!(code == 2 && err.contains("not JSON"), "{err}");
    let (code, _, err) = outcome(client(&app, &["enqueue", "noop", "@nowhere.json"])).await;
    assert!(code == 1 && err.contains("nowhere.json"), "{err}");
    let (code, _, err) = outcome(run(app.dir.path(), &["enqueue", "noop", "--url", "http://127.0.0.1:1"])).await;
    assert!(code == 1 && err.contains("http://127.0.0.1:1") && err.contains("tickr dev"), "{err}");
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_send_and_print_the_numbers_of_payloads_as_they_were_written() {
    let app = TestApp::start().await;
    let payload = r#"{"n":12345678901234567890123,"d":0.10000000000000000000000000001,"x":1e2,"y":-0.0}"#;
    let later = ["--delay-ms", "3600000", "--quiet"];
    let id = ok(client(&app, &[&["enqueue", "noop", payload][..], &later].concat())).await.trim().to_owned();
    let text = async |path: &str| http().get(app.url(path)).send().await.unwrap().text().await.unwrap();
    let path = format!("/v1/jobs/{id}");
    let sent = text(&path).await;
    assert!(sent.contains(&format!("\"payload\":{payload}")), "{sent}");

    let shown = ok(client(&app, &["jobs", "show", &id])).await;
    assert!(shown.contains(&format!("payload      {payload}\n")), "{shown}");
    let shown = ok(client(&app, &["jobs", "show", &id, "--json"])).await;
    for number in ["12345678901234567890123,", "0.10000000000000000000000000001,", "1e2,", "-0.0\n"] {
        assert!(shown.contains(&format!(": {number}")), "{number} is not in:\n{shown}");
    }
    assert_eq!(serde_json::from_str::<Value>(&shown).unwrap()["id"], id);

    let other = payload.replace("123,", "124,");
    ok(client(&app, &["jobs", "set-payload", &id, &other])).await;
    let sent = text(&path).await;
    assert!(sent.contains(&format!("\"payload\":{other}")), "{sent}");
    let put = ["schedules", "put", "nightly", "--every", "24h", "--kind", "noop", "--payload", payload];
    let made = ok(client(&app, &put)).await;
    assert!(made.contains(&format!("payload      {payload}\n")), "{made}");
    let sent = text("/v1/schedules/nightly").await;
    assert!(sent.contains(&format!("\"payload\":{payload}")), "{sent}");
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_listed_shown_and_steered() {
    let app = TestApp::start().await;
    let later = || async { app.enqueue(json!({"kind": "noop", "delay_ms": 3_600_000})).await };
    let (first, second) = (later().await, later().await);
    let failed = app.enqueue_kind("fail", json!({"permanent": true})).await;
    app.until(failed, State::Failed).await;

    let list = ok(client(&app, &["jobs", "list"])).await;
    let rows: Vec<&str> = list.lines().collect();
    assert!(rows[0].contains("ID") && rows[0].contains("LAST ERROR"), "{list}");
    assert!(rows[1].contains(&failed.to_string()) && rows[1].contains("rejected on request"), "{list}");
    assert!(rows[3].contains(&first.to_string()), "newest first: {list}");
    let json = ok(client(&app, &["jobs", "list", "--state", "waiting", "--limit", "1", "--json"])).await;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((json.as_array().unwrap().len(), &json[0]["id"]), (1, &json!(second.to_string())));

    let shown = ok(client(&app, &["jobs", "show", &failed.to_string()])).await;
    for part in ["failed", "rejected on request", "1/5", "#1", "rejected"] {
        assert!(shown.contains(part), "{part} is not in:\n{shown}");
    }
    assert!(ok(client(&app, &["jobs", "cancel", &first.to_string()])).await.contains("cancelled"));
    assert_eq!(app.job(first).await["state"], "cancelled");
    ok(client(&app, &["jobs", "run-now", &second.to_string()])).await;
    app.until(second, State::Completed).await;
    ok(client(&app, &["jobs", "retry", &failed.to_string()])).await;
    app.until(failed, State::Failed).await;

    let (code, _, err) = outcome(client(&app, &["jobs", "cancel", &second.to_string()])).await;
    assert!(code == 1 && err.contains("wrong_state") && err.contains("completed"), "{err}");
    let (code, _, err) = outcome(client(&app, &["jobs", "show", "not-an-id"])).await;
    assert!(code == 1 && err.contains("invalid_id"), "{err}");
    let (code, _, err) = outcome(client(&app, &["jobs", "show", "a/../../stats"])).await;
    assert!(code == 1 && err.contains("invalid_id"), "{err}");
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_brings_its_token_and_config_masks_every_secret() {
    let app =
        TestApp::start_with(|config| config.api_tokens = vec!["canary-token".into()], tickr::handlers::Registry::new())
            .await;
    let (code, _, err) = outcome(client(&app, &["enqueue", "noop"])).await;
    assert!(code == 1 && err.contains("unauthorized"), "{err}");
    let mut with_token = client(&app, &["enqueue", "noop"]);
    with_token.env("TICKR_TOKEN", "canary-token");
    ok(with_token).await;

    let dir = tempfile::tempdir().unwrap();
    let file = "workers = 7\n[smtp]\nhost = \"mail.example.com\"\nusername = \"u\"\npassword = \"canary-smtp\"\nfrom = \"a@b.example\"\n";
    std::fs::write(dir.path().join("tickr.toml"), file).unwrap();
    let mut config = run(dir.path(), &["config", "--redis-url", "redis://:canary-redis@cache:6379"]);
    config
        .env("TICKR_MYSQL_URL", "mysql://app:canary-mysql@db:3306/tickr")
        .env("TICKR_API_TOKENS", "canary-token-that-is-long")
        .env("TICKR_CALLBACK_SECRET", "whsec_Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5");
    let (code, out, err) = outcome(config).await;
    assert_eq!(code, 0, "{err}");
    assert!(!format!("{out}{err}").contains("canary") && !out.contains("Y2FuYXJ5"), "{out}{err}");
    for part in [
        "mysql_url",
        "db:3306",
        "TICKR_MYSQL_URL",
        "cache:6379",
        "--redis-url",
        "workers",
        "7",
        "tickr.toml",
        "smtp.host",
    ] {
        assert!(out.contains(part), "{part} is not in:\n{out}");
    }
    let (code, reference, _) = outcome(run(dir.path(), &["config", "--reference"])).await;
    assert!(code == 0 && reference.contains("TICKR_SHUTDOWN_GRACE"), "{reference}");
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn schedules_are_declared_shown_and_steered() {
    let app = TestApp::start().await;
    let put = ["schedules", "put", "nightly", "--cron", "30 2 1 1 *", "--zone", "Europe/Warsaw", "--kind", "sleep"];
    let more = ["--payload", r#"{"ms": 1}"#, "--overlap", "skip", "--timeout", "5s", "--priority", "2"];
    let keys = ["--order-key", "customer:42", "--on-failure", "skip", "--limit-key", "tenant:7", "--expires-in", "1h"];
    let tags = ["--tag", "nightly", "--tag", "eu"];
    let made = ok(client(&app, &[&put[..], &more[..], &keys[..], &tags[..]].concat())).await;
    for part in ["nightly", "Europe/Warsaw", "overlap      skip", r#"payload      {"ms":1}"#, "02:30:00.000+01:00"] {
        assert!(made.contains(part), "{part:?} is missing in {made}");
    }
    for part in
        ["order_key    customer:42", "limit_key    tenant:7", "expires in   3600000 ms", "tags         nightly eu"]
    {
        assert!(made.contains(part), "{part:?} is missing in {made}");
    }
    let schedules = async |args: &[&str]| ok(client(&app, &[&["schedules"], args].concat())).await;
    let listed = schedules(&["list"]).await;
    assert!(listed.contains("nightly") && listed.contains("active"), "{listed}");
    assert!(schedules(&["pause", "nightly", "--reason", "disk full"]).await.contains("disk full"));
    assert!(schedules(&["resume", "nightly"]).await.contains("active"));
    let fired = schedules(&["trigger", "nightly"]).await;
    let id = fired.split(' ').next().unwrap();
    app.until(id.parse().unwrap(), State::Completed).await;
    let ticks = schedules(&["ticks", "nightly", "--outcome", "fired"]).await;
    assert!(ticks.contains(id) && ticks.contains("triggered by anyone"), "{ticks}");
    let json: Value = serde_json::from_str(&schedules(&["show", "nightly", "--json"]).await).unwrap();
    assert_eq!((&json["timeout_ms"], &json["last_job"]), (&json!(5_000), &json!(id)));
    let preview = ["preview", "--cron", "30 2 * * *", "--zone", "Europe/Warsaw", "--from", "2027-03-27T12:00:00Z"];
    assert!(schedules(&preview).await.contains("2027-03-28T03:00:00.000+02:00"));
    assert_eq!(schedules(&["delete", "nightly"]).await, "deleted nightly\n");
    let (code, _, err) = outcome(client(&app, &["schedules", "show", "nightly"])).await;
    assert!(code == 1 && err.contains("not_found"), "{err}");
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_listed_by_any_filter() {
    let app = TestApp::start().await;
    let wanted = app
        .enqueue(json!({"kind": "noop", "payload": {"user": {"id": 42}}, "tags": ["tenant:1"], "delay_ms": 3_600_000}))
        .await;
    app.enqueue(json!({"kind": "noop", "payload": {"user": {"id": 43}}, "delay_ms": 3_600_000})).await;
    for filter in [
        &["-q", "state:waiting payload.user.id:42"][..],
        &["--tag", "tenant:1", "--state", "waiting"],
        &["--created-after", "2020-01-01", "--query", "tag:tenant:1"],
    ] {
        let listed = ok(client(&app, &[&["jobs", "list", "--json"], filter].concat())).await;
        let listed: Value = serde_json::from_str(&listed).unwrap();
        assert_eq!(listed.as_array().unwrap().len(), 1, "{filter:?}");
        assert_eq!(listed[0]["id"], wanted.to_string());
    }
    let (code, _, err) = outcome(client(&app, &["jobs", "list", "-q", "kind:noop bogus:1"])).await;
    assert!(code == 1 && err.contains("Unknown filter: bogus"), "{err}");
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_and_operations_are_handled_from_the_command_line() {
    let app = TestApp::start().await;
    let mut failed = Vec::new();
    for _ in 0..4 {
        let id = app.enqueue(json!({"kind": "fail", "payload": {"permanent": true}})).await;
        app.until(id, State::Failed).await;
        failed.push(id.to_string());
    }
    let listed = ok(client(&app, &["dead-letters", "list", "--kind", "fail"])).await;
    assert!(failed.iter().all(|id| listed.contains(id)), "{listed}");
    let groups: Value = serde_json::from_str(&ok(client(&app, &["dead-letters", "groups", "--json"])).await).unwrap();
    assert_eq!(groups[0]["open"], 4);
    let fingerprint = groups[0]["fingerprint"].as_str().unwrap();
    let shown = ok(client(&app, &["dead-letters", "show", fingerprint])).await;
    assert!(shown.contains("rejected on request"), "{shown}");
    let shown = ok(client(&app, &["dead-letters", "show", &failed[0]])).await;
    assert!(shown.contains("failed") && shown.contains("#1"), "{shown}");

    let made = ok(client(&app, &["dead-letters", "replay", &failed[0], "--payload", r#"{"times":0}"#, "--json"])).await;
    let made: Value = serde_json::from_str(&made).unwrap();
    assert_eq!(made["replay_of"], failed[0]);
    let (code, _, err) = outcome(client(&app, &["dead-letters", "replay", &failed[0]])).await;
    assert!(code == 1 && err.contains("already_replayed"), "{err}");
    ok(client(&app, &["dead-letters", "discard", &failed[1], "--reason", "known"])).await;
    let discarded = ok(client(&app, &["dead", "list", "--status", "discarded"])).await;
    assert!(discarded.contains(&failed[1]) && !discarded.contains(&failed[2]), "{discarded}");

    let start = ["operations", "start", "replay", "-q", "kind:fail"];
    let dry: Value =
        serde_json::from_str(&ok(client(&app, &[&start[..], &["--dry-run", "--json"]].concat())).await).unwrap();
    assert_eq!((&dry["count"], &dry["dry_run"]), (&json!(2), &json!(true)));
    let done = ok_out(client(&app, &[&start[..], &["--rate", "100", "--watch", "--json"]].concat())).await;
    let done: Value = serde_json::from_str(&done).unwrap();
    assert_eq!((&done["state"], &done["done"], &done["rate"]), (&json!("done"), &json!(2), &json!(100)));
    let id = done["id"].as_str().unwrap();
    assert!(ok(client(&app, &["operations", "list"])).await.contains(id));
    assert!(ok(client(&app, &["operations", "show", id])).await.contains("done"));
    ok(client(&app, &["operations", "watch", id])).await;
    let (code, _, err) = outcome(client(&app, &["operations", "cancel", id])).await;
    assert!(code == 1 && err.contains("wrong_state"), "{err}");
    let (code, _, err) = outcome(client(&app, &["operations", "start", "delete"])).await;
    assert!(code == 1 && err.contains("all: true"), "{err}");
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bulk_operation_that_is_followed_in_a_pipe_prints_lines_before_its_end() {
    let app = TestApp::start().await;
    app.enqueue_many((0..50).map(|_| json!({"kind": "noop", "delay_ms": 3_600_000}))).await;
    let args = ["operations", "start", "cancel", "--all"];
    let dry = ok(client(&app, &[&args[..], &["--dry-run"]].concat())).await;
    let rate = |out: &str| out.lines().find(|line| line.starts_with("rate ")).unwrap_or("").to_owned();
    assert!(rate(&dry).ends_with("as fast as possible"), "{dry}");
    let dry = ok(client(&app, &[&args[..], &["--dry-run", "--rate", "7"]].concat())).await;
    assert!(rate(&dry).ends_with(" 7"), "{dry}");

    let mut follow = client(&app, &[&args[..], &["--rate", "1", "--watch"]].concat());
    let mut child = follow.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut first = Vec::new();
    while first.len() < 2 {
        let line = tokio::time::timeout(DEADLINE, lines.next_line()).await.expect("a line").unwrap();
        first.push(line.expect("more than one line before the end"));
    }
    let operation = app.get("/v1/operations").await.body["data"][0].clone();
    assert_eq!(operation["state"], "running", "{first:?}: {operation:#}");
    assert!(first.iter().all(|line| line.contains("/50 running ")) && first[0] != first[1], "{first:?}");
    let id = operation["id"].as_str().unwrap();
    assert_eq!(app.post(&format!("/v1/operations/{id}/cancel"), json!({})).await.status, 200);
    let mut rest = Vec::new();
    while let Some(line) = tokio::time::timeout(DEADLINE, lines.next_line()).await.expect("the end").unwrap() {
        rest.push(line);
    }
    assert!(rest.iter().any(|line| line.starts_with("state ") && line.ends_with("cancelled")), "{rest:?}");
    assert_eq!(child.wait().await.unwrap().code(), Some(1));

    // The same when standard error is a terminal, as it is for a person who writes `| tee`.
    let script = format!("'{}' operations start cancel --all --rate 1 --watch > lines", tickr().display());
    let mut on_terminal = command(Path::new("script"), app.dir.path(), &["-qec", &script, "/dev/null"]);
    on_terminal.env("TICKR_URL", app.url("")).stdout(std::process::Stdio::null());
    let Ok(mut child) = on_terminal.spawn() else {
        println!("without the program `script` there is no terminal to try");
        app.stop().await;
        return;
    };
    let lines = || std::fs::read_to_string(app.dir.path().join("lines")).unwrap_or_default();
    let first = eventually("lines in the pipe", || async { Some(lines()).filter(|said| said.contains('\n')) }).await;
    assert!(first.contains(" running "), "{first}");
    let id = app.get("/v1/operations").await.body["data"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(app.post(&format!("/v1/operations/{id}/cancel"), json!({})).await.status, 200);
    child.wait().await.unwrap();
    assert!(lines().contains("cancelled"), "{}", lines());
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_has_seen_enough_ends_a_command_without_a_word() {
    let app = TestApp::start().await;
    for said in ["config --reference", "completions bash"] {
        let pipe = format!("{} {said} | true; echo ${{PIPESTATUS[0]}}", tickr().display());
        let mut shell = tokio::process::Command::new("bash");
        shell.args(["-c", &pipe]).current_dir(app.dir.path());
        let (_, out, err) = outcome(shell).await;
        // The command may have finished before the pipe is closed.
        assert!(err.is_empty() && ["0\n", "141\n"].contains(&out.as_str()), "{said}: {out}{err}");
    }
    // The logs in JSON have a panic hook of their own, and a full disk is no panic either.
    for (to, codes, said) in [("| true", "0 141", ""), ("> /dev/full", "1", "cannot write to standard output")] {
        let line = format!("{} config {to}; echo ${{PIPESTATUS[0]}} >&2", tickr().display());
        let mut shell = tokio::process::Command::new("bash");
        shell.args(["-c", &line]).current_dir(app.dir.path()).env("TICKR_LOG_FORMAT", "json");
        servers(&app, &mut shell);
        let (_, out, err) = outcome(shell).await;
        let code = err.lines().last().unwrap_or_default();
        assert!(codes.split(' ').any(|one| one == code), "{to}: {out}{err}");
        assert!(!err.contains("panicked") && err.contains(said), "{to}: {out}{err}");
    }
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standard_error_that_cannot_be_written_changes_no_exit_code() {
    let app = TestApp::start().await;
    let missing = "jobs show 0192f8c0-7f3a-7c4e-9d5b-3e2a1f0c9b8a";
    for (args, code) in [(missing, 1), (r#"enqueue fail '{"permanent": true}' --wait 30s"#, 3)] {
        let line = format!("exec '{}' {args} 2>/dev/full", tickr().display());
        let mut shell = command(Path::new("bash"), app.dir.path(), &["-c", &line]);
        shell.env("TICKR_URL", app.url(""));
        let (ended, out, err) = outcome(shell).await;
        assert_eq!((ended, err.as_str()), (code, ""), "{args}: {out}");
    }
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_url_or_token_that_no_server_can_have_is_wrong_usage() {
    let dir = tempfile::tempdir().unwrap();
    for (name, value, said) in [
        ("TICKR_URL", "localhost:7070", "http://"),
        ("TICKR_URL", "http://ada:canary@127.0.0.1:1", "TICKR_TOKEN"),
        ("TICKR_URL", "http://127.0.0.1:1/?a=b", "?"),
        ("TICKR_URL", "http://127.0.0.1:1,http://127.0.0.1:2", "several servers"),
        ("TICKR_URL", "http://a.example, https://b.example", "several servers"),
        ("TICKR_TOKEN", "canary\nx", "TICKR_TOKEN"),
    ] {
        let mut list = run(dir.path(), &["jobs", "list"]);
        list.env(name, value);
        let (code, out, err) = outcome(list).await;
        assert_eq!((code, out.as_str()), (2, ""), "{name}={value}: {err}");
        assert!(err.contains(name) && err.contains(said) && !err.contains("canary"), "{name}={value}: {err}");
    }
    let mut help = run(dir.path(), &["jobs", "list", "--help"]);
    help.env("TICKR_URL", "http://ada:canary@127.0.0.1:1").env("TICKR_TOKEN", "canary");
    let (code, out, err) = outcome(help).await;
    assert!(code == 0 && out.contains("TICKR_URL") && !out.contains("canary"), "{out}{err}");

    // A proxy cannot reach this machine's loopback, an empty variable is one that is not set, and the file of a secret
    // often ends with a newline.
    let app = TestApp::start().await;
    let mut list = client(&app, &["jobs", "list"]);
    list.env("HTTP_PROXY", "http://127.0.0.1:1").env("http_proxy", "http://127.0.0.1:1").env("TICKR_TOKEN", "");
    ok(list).await;
    let mut list = client(&app, &["jobs", "list"]);
    list.env("TICKR_TOKEN", "a-token-that-an-open-api-does-not-read\n");
    ok(list).await;
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_a_flag_cannot_have_is_wrong_usage_before_any_request() {
    let dir = tempfile::tempdir().unwrap();
    // No server answers here, so a command that sent a request would end with 1.
    let nowhere = ["--url", "http://127.0.0.1:1"];
    let put = ["schedules", "put", "nightly", "--kind", "noop"];
    let set = ["limits", "set", "calls"];
    let breaker = ["--shared-by", "host", "--breaker", "3"];
    for (args, more) in [
        (&put[..], &["--every", "10"][..]),
        (&put, &["--every", "10s", "--timeout", "30"]),
        (&put, &["--every", "10s", "--misfire-grace", "x"]),
        (&put, &["--every", "10s", "--expires-in", "5"]),
        (&put, &["--every", "10s", "--payload", "{"]),
        (&["schedules", "preview"], &["--every", "soon"]),
        (&set, &["--rate", "100"]),
        (&set, &["--rate", "many/1m"]),
        (&set, &["--override", "a"]),
        (&set, &["--fair", "--weight", "a=b"]),
        (&[&set[..], &breaker[..]].concat(), &["--breaker-pause", "10"]),
        (&["queues", "set", "mail"], &["--concurrency", "many"]),
        (&["kinds", "declare", "resize"], &["{"]),
        (&["batches", "create"], &["--on-success", "{"]),
        (&["jobs", "set-payload", "0192f8c0-7f3a-7c4e-9d5b-3e2a1f0c9b8a"], &["{"]),
        (&["dead-letters", "replay", "0192f8c0-7f3a-7c4e-9d5b-3e2a1f0c9b8a"], &["--payload", "{"]),
        // A URL with such a part leads to another path.
        (&["jobs", "show", ".."], &[]),
        (&["jobs", "watch", ".."], &[]),
        (&["jobs", "cancel", ""], &[]),
        (&["queues", "pause", "."], &[]),
        (&["schedules", "delete", ".."], &[]),
    ] {
        let (code, out, err) = outcome(run(dir.path(), &[args, more, &nowhere].concat())).await;
        assert_eq!((code, out.as_str()), (2, ""), "{args:?} {more:?}: {err}");
    }
}

/// Return what a command prints as JSON.
async fn json_of(app: &TestApp, args: &[&str]) -> Value {
    serde_json::from_str(&ok(client(app, args)).await).unwrap()
}

/// Return whether a line of a text has these words and no others.
fn has_line(text: &str, words: &[&str]) -> bool {
    text.lines().any(|line| line.split_whitespace().eq(words.iter().copied()))
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_are_made_filled_closed_cancelled_and_retried() {
    let mended = CancellationToken::new();
    let app = TestApp::start_with(|_| {}, broken(&mended)).await;
    let noop = r#"{"kind": "noop", "payload": {}}"#;
    let create = ["batches", "create", "invoices", "--on-complete", noop, "--on-failure", noop];
    let id = ok(client(&app, &create)).await.trim().to_owned();
    let waits = ok(client(&app, &["enqueue", "noop", "--batch", &id, "--delay-ms", "3600000"])).await;
    let waits = waits.split(' ').next().unwrap().parse().unwrap();
    let nested = json_of(&app, &["batches", "create", "--parent", &id, "--json"]).await;
    let nested = nested["id"].as_str().unwrap().to_owned();

    let listed = ok(client(&app, &["batches", "list", "--unfinished"])).await;
    for part in [id.as_str(), nested.as_str(), "invoices", "open"] {
        assert!(listed.contains(part), "{part} is not in:\n{listed}");
    }
    let listed = json_of(&app, &["batches", "list", "--parent", &id, "--json"]).await;
    let ids: Vec<&Value> = listed["data"].as_array().unwrap().iter().map(|batch| &batch["id"]).collect();
    assert_eq!(ids, [&json!(nested)], "{listed:#}");
    let shown = ok(client(&app, &["batches", "show", &id])).await;
    for line in [["name", "invoices"], ["state", "open"], ["total", "2"], ["pending", "2"], ["failed", "0"]] {
        assert!(has_line(&shown, &line), "{line:?} is not in:\n{shown}");
    }
    assert!(shown.contains("on_complete  noop job ") && !shown.contains("closed_at"), "{shown}");
    let same = json_of(&app, &["batches", "show", &id, "--json"]).await;
    assert_eq!(same, app.get(&format!("/v1/batches/{id}")).await.body);

    let closed = ok(client(&app, &["batches", "close", &nested])).await;
    assert!(closed.contains("closed_at"), "{closed}");
    let closed = json_of(&app, &["batches", "close", &id, "--json"]).await;
    assert!(closed["closed_at"].is_string() && closed["state"] == "running", "{closed:#}");
    let cancelled = ok(client(&app, &["batches", "cancel", &id])).await;
    assert!(cancelled.contains("cancelled_at"), "{cancelled}");
    app.until(waits, State::Cancelled).await;
    eventually("the batch is cancelled", async || {
        let shown = json_of(&app, &["batches", "show", &id, "--json"]).await;
        (shown["state"] == "cancelled").then_some(())
    })
    .await;
    let missing = "0192f8c0-7f3a-7c4e-9d5b-3e2a1f0c9b8a";
    let add = format!("--batch={id}");
    for args in [["batches", "cancel", id.as_str()], ["batches", "show", missing], ["enqueue", "noop", add.as_str()]] {
        let (code, out, err) = outcome(client(&app, &args)).await;
        assert_eq!((code, out.as_str()), (1, ""), "{args:?}: {err}");
        assert!(!err.is_empty(), "{args:?}");
    }

    let id = ok(client(&app, &["batches", "create"])).await.trim().to_owned();
    let inner = ok(client(&app, &["batches", "create", "--parent", &id])).await.trim().to_owned();
    for batch in [&inner, &id] {
        ok(client(&app, &["enqueue", "broken", "--batch", batch, "--max-attempts", "1"])).await;
        ok(client(&app, &["batches", "close", batch])).await;
    }
    let until = async |state: &str| {
        eventually(&format!("the batch is {state}"), async || {
            let shown = ok(client(&app, &["batches", "show", &id])).await;
            has_line(&shown, &["state", state]).then_some(())
        })
        .await;
    };
    until("failed").await;
    mended.cancel();
    let alone = json_of(&app, &["batches", "retry", &id, "--alone", "--json"]).await;
    assert_eq!((&alone["action"], &alone["filter"]["batch"]), (&json!("retry"), &json!(id)), "{alone:#}");
    let retries = ok(client(&app, &["batches", "retry", &id])).await;
    let operation = app.get("/v1/operations").await.body["data"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(retries, format!("the operation {operation} retries the failed jobs\n"));
    until("succeeded").await;
    let again = json_of(&app, &["batches", "retry", &id, "--json"]).await;
    assert_eq!((&again["action"], &again["filter"]["batch"]), (&json!("retry"), &json!(id)), "{again:#}");
    app.until_idle().await;
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rejected_rows_of_the_outbox_are_listed_replayed_and_discarded() {
    let app = TestApp::start().await;
    let schema = ok(run(app.dir.path(), &["outbox", "schema"])).await;
    assert!(schema.starts_with("CREATE TABLE tickr_outbox"), "{schema}");
    let rows = [uuid::Uuid::now_v7(), uuid::Uuid::now_v7()];
    for row in rows {
        let id = row.simple();
        app.sql(format!("INSERT INTO tickr_outbox (id, kind, payload) VALUES (UNHEX('{id}'), 'noop', '{{')")).await;
    }
    ok(client(&app, &["outbox", "nudge"])).await;
    app.until_count("SELECT COUNT(*) FROM outbox_rejected", 2).await;
    let ids = rows.map(|row| row.to_string());
    let shown = ok(client(&app, &["outbox", "show"])).await;
    assert!(has_line(&shown, &["waiting", "0"]) && has_line(&shown, &["rejected", "2"]), "{shown}");
    let state = json_of(&app, &["outbox", "show", "--json"]).await;
    assert_eq!((&state["waiting"], &state["rejected"]), (&json!(0), &json!(2)), "{state:#}");
    let listed = ok(client(&app, &["outbox", "rejected"])).await;
    for part in [ids[0].as_str(), &ids[1], "noop", "the payload is not JSON"] {
        assert!(listed.contains(part), "{part} is not in:\n{listed}");
    }
    let listed = json_of(&app, &["outbox", "rejected", "--json"]).await;
    assert_eq!(listed["data"].as_array().unwrap().len(), 2, "{listed:#}");

    app.sql(format!("UPDATE outbox_rejected SET payload = '{{}}' WHERE id = UNHEX('{}')", rows[0].simple())).await;
    let said = ok(client(&app, &["outbox", "replay", &ids[0]])).await;
    assert_eq!(said, "the row is in the outbox again\n");
    app.until_count("SELECT COUNT(*) FROM tickr_outbox", 0).await;
    app.until(ids[0].parse().unwrap(), State::Completed).await;
    assert_eq!(ok(client(&app, &["outbox", "discard", &ids[1]])).await, "the row is gone\n");
    assert_eq!(app.count("SELECT COUNT(*) FROM outbox_rejected").await, 0);
    for verb in ["replay", "discard"] {
        let (code, out, err) = outcome(client(&app, &["outbox", verb, &ids[1]])).await;
        assert_eq!((code, out.as_str()), (1, ""), "{verb}: {err}");
        assert!(!err.is_empty(), "{verb}");
    }
    app.stop().await;
}

/// Start `tickr …` against this server, as a program that keeps running.
fn follower(app: &TestApp, url: &str, args: &[&str]) -> Program {
    let mut command = run(app.dir.path(), args);
    command.env("TICKR_URL", url);
    Program::spawn(command)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_watched_to_its_end_and_the_exit_code_says_how_it_ended() {
    let app = TestApp::start().await;
    let id = app.enqueue(json!({"kind": "sleep", "payload": {"ms": 2_500}, "delay_ms": 1_500})).await.to_string();
    let watched = ok(client(&app, &["jobs", "watch", &id])).await;
    let words: Vec<&str> = watched.lines().map(|line| line[24..].trim()).collect();
    let first = words.first().unwrap();
    assert!(first.starts_with("waiting     due 2"), "{watched}");
    assert!(words.iter().any(|word| word.starts_with("progress    ") && word.contains('%')), "{watched}");
    let begun = format!("attempt     #1 begun by {}", app.app.runner());
    for said in [&begun, "executing   attempt 1", "attempt     #1 succeeded", "completed   attempt 1"] {
        assert_eq!(words.iter().filter(|word| *word == &said).count(), 1, "{said} in {watched}");
    }
    assert!(watched.lines().all(|line| line.starts_with("20") && line.as_bytes()[23] == b'Z'), "{watched}");

    let told = ok(client(&app, &["jobs", "watch", &id, "--json"])).await;
    let told: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let types: Vec<&str> = told.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["attempt", "attempt", "state", "end"]);
    assert!(told[0]["id"].as_str().unwrap().starts_with("1.begin."), "{told:?}");
    assert_eq!(told[3]["state"], "completed");

    let retry = json!({"base_ms": 20, "factor": 1.0, "jitter": 0.0});
    let job = json!({"kind": "fail", "payload": {"times": 9}, "max_attempts": 2, "retry": retry});
    let id = app.enqueue(job).await.to_string();
    let (code, out, err) = outcome(client(&app, &["jobs", "watch", &id])).await;
    assert_eq!(code, 3, "{out}{err}");
    assert!(out.contains("#2 failed") && err.starts_with("tickr: the job is failed: "), "{out}{err}");
    let (code, _, err) = outcome(client(&app, &["jobs", "watch", &id, "--json"])).await;
    assert_eq!((code, err.as_str()), (3, ""));

    let id = app.enqueue(json!({"kind": "noop", "delay_ms": 3_600_000})).await.to_string();
    let mut watch = follower(&app, &app.url(""), &["jobs", "watch", &id]);
    watch.says("waiting").await;
    ok(client(&app, &["jobs", "cancel", &id])).await;
    assert_eq!(watch.ends().await.code(), Some(4), "{}", watch.said());
    watch.says("tickr: the job is cancelled").await;

    let missing = "0192f8c0-7f3a-7c4e-9d5b-3e2a1f0c9b8a";
    let (code, out, err) = outcome(client(&app, &["jobs", "watch", missing])).await;
    assert!(code == 1 && out.is_empty() && err.contains("not_found"), "{code}{out}{err}");
    let nowhere = ["jobs", "watch", missing, "--url", "http://127.0.0.1:1"];
    let (code, _, err) = outcome(client(&app, &nowhere)).await;
    assert!(code == 1 && err.contains("no tickr answers at http://127.0.0.1:1"), "{code}{err}");

    let id = app.enqueue(json!({"kind": "noop", "delay_ms": 3_600_000})).await.to_string();
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let mut watch = follower(&app, &app.url(""), &["jobs", "watch", &id]);
        watch.says("waiting").await;
        watch.signal(signal).await;
        assert_eq!(watch.ends().await.code(), Some(code));
        assert_eq!(watch.said().lines().count(), 1, "{}", watch.said());
    }
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_follow_outlive_a_restart_of_their_server_for_as_long_as_they_were_told() {
    let app = TestApp::start().await;
    // One stream stays open all the time, so that the runners keep publishing events.
    let _held = EventStream::open(&app.url("/v1/events"), None).await;
    let serve = |addr: &str| {
        let args = ["serve", "--http-addr", addr, "--queues", "elsewhere", "--redis-prefix", &app.config.redis_prefix];
        let mut serve = run(app.dir.path(), &args);
        servers(&app, &mut serve);
        serve.env("TICKR_TEST_KINDS", "1").env("TICKR_LOG_FORMAT", "json");
        Program::spawn(serve)
    };
    let addr = lasting_addr().to_string();
    let mut server = serve(&addr);
    server.says("\"addr\":\"").await;
    let url = format!("http://{addr}");
    let id = app.enqueue(json!({"kind": "noop", "delay_ms": 3_600_000})).await.to_string();
    let due = app.get(&format!("/v1/jobs/{id}")).await.body["execute_at"].as_str().unwrap().to_owned();
    let mut watch = follower(&app, &url, &["jobs", "watch", &id]);
    let mut events = follower(&app, &url, &["events", "--queue", "mail"]);
    let mut hasty = follower(&app, &url, &["jobs", "watch", &id, "--patience", "0"]);
    let waits = ["enqueue", "noop", "--delay-ms", "3600000", "--quiet", "--wait", "10m"];
    let mut waits = follower(&app, &url, &waits);
    app.enqueue_many((0..50).map(|_| json!({"kind": "noop", "queue": "bulk", "delay_ms": 3_600_000}))).await;
    let start = ["operations", "start", "cancel", "--queue", "bulk", "--rate", "1", "--watch"];
    let mut operation = follower(&app, &url, &start);
    watch.says("waiting").await;
    hasty.says("waiting").await;
    eventually("the cluster is heard", async || {
        app.post("/v1/queues/mail/pause", json!({})).await;
        app.post("/v1/queues/mail/resume", json!({})).await;
        events.said().contains("queue_resumed").then_some(())
    })
    .await;

    let awaited = waits.says("").await;
    let followed = operation.says("tickr: following the operation ").await;
    let steer = async |verb: &str| app.post(&format!("/v1/operations/{followed}/{verb}"), json!({})).await.status;
    assert_eq!(steer("pause").await, 200);
    operation.says("/s, paused by ").await;
    server.signal("TERM").await;
    assert_eq!(server.ends().await.code(), Some(0), "{}", server.said());
    for program in [&mut watch, &mut events] {
        program.says("broke off").await;
    }
    operation.says("trying again").await;
    assert_eq!(hasty.ends().await.code(), Some(1), "{}", hasty.said());
    hasty.says(&format!("nothing came from {url} for 0 s")).await;
    // The server is down, so it cannot send this change. The commands receive it when the server is back.
    let changed = json!({"concurrency": 7});
    let body = app.patch("/v1/queues/mail", &changed).await;
    assert_eq!(body.status, 200);
    let mut server = serve(&addr);
    for program in [&mut watch, &mut events, &mut operation] {
        program.says("is back").await;
    }
    assert_eq!(steer("cancel").await, 200);
    assert_eq!(operation.ends().await.code(), Some(1), "{}", operation.said());
    operation.says("the operation is cancelled").await;
    events.says("queue_changed").await;
    ok(client(&app, &["jobs", "run-now", &id])).await;
    assert_eq!(watch.ends().await.code(), Some(0), "{}", watch.said());
    watch.says("completed").await;
    ok(client(&app, &["jobs", "run-now", &awaited])).await;
    assert_eq!(waits.ends().await.code(), Some(0), "{}", waits.said());
    let said = watch.said();
    // The server sent the state again after the interruption, and the command showed it once.
    for once in [&format!("waiting     due {due}"), "#1 begun", "#1 succeeded"] {
        assert_eq!(said.matches(once).count(), 1, "{once} in {said}");
    }
    events.signal("INT").await;
    assert_eq!(events.ends().await.code(), Some(0));
    server.signal("TERM").await;
    assert_eq!(server.ends().await.code(), Some(0), "{}", server.said());
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cluster_is_heard_from_the_command_line_by_what_one_wants() {
    let app = TestApp::start().await;
    let mut lines = follower(&app, &app.url(""), &["events"]);
    let mut objects =
        follower(&app, &app.url(""), &["events", "--json", "--type", "settled,schedule_put", "--kind", "noop"]);
    eventually("both hear", async || {
        let id = app.enqueue_kind("noop", json!({})).await;
        app.until(id, State::Completed).await;
        (lines.said().contains("  settled  ") && objects.said().contains("\"settled\"")).then_some(())
    })
    .await;
    let id = app.enqueue_kind("sleep", json!({"ms": 1})).await;
    app.until(id, State::Completed).await;
    let line = lines.says(&format!("settled          job={id}")).await;
    let expected = format!(" kind=sleep queue=default state=completed verdict=succeeded runner={}", app.app.runner());
    assert_eq!(line, expected);
    ok(client(&app, &["queues", "pause", "mail", "--create", "--reason", "canary"])).await;
    let line = lines.says("queue_paused     queue=mail").await;
    assert!(line.starts_with(" paused=true version=1") && !line.contains("canary"), "{line}");
    for program in [&mut lines, &mut objects] {
        program.signal("INT").await;
        assert_eq!(program.ends().await.code(), Some(0));
    }
    for object in objects.said().lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        assert_eq!((&object["type"], &object["kind"]), (&json!("settled"), &json!("noop")), "{object}");
        assert!(object["id"].is_string() && object["at"].is_string(), "{object}");
    }
    let (code, _, err) = outcome(client(&app, &["events", "--type", "nothing"])).await;
    assert!(code == 1 && err.contains("invalid_request") && err.contains("queue_paused"), "{err}");
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runners_are_listed_with_what_they_do() {
    let app = TestApp::start().await;
    let other = app.another_with(|config| config.queues = vec!["mail".into()], Registry::new()).await;
    let gone = other.runner().to_string();
    other.stop(CancellationToken::new()).await;
    let listed = ok(client(&app, &["runners"])).await;
    let row = listed.lines().find(|line| line.contains(&app.app.runner().to_string())).unwrap();
    for part in
        [env!("CARGO_PKG_VERSION"), "running", &format!("0/{}", app.config.workers), " ms ago", "default", "noop,"]
    {
        assert!(row.contains(part), "{part} in {listed}");
    }
    assert!(!listed.contains(&gone), "{listed}");
    let listed = ok(client(&app, &["runners", "--all"])).await;
    let row = listed.lines().find(|line| line.contains(&gone)).unwrap();
    assert!(row.contains("stopped") && row.contains("mail"), "{listed}");
    for (args, count) in [(&["runners", "--json"][..], 1), (&["runners", "--json", "--all"], 2)] {
        let listed: Value = serde_json::from_str(&ok(client(&app, args)).await).unwrap();
        assert_eq!(listed.as_array().unwrap().len(), count);
        let lease = u64::try_from(app.config.lease.as_millis()).unwrap();
        assert_eq!((&listed[0]["id"], &listed[0]["lease_ms"]), (&json!(app.app.runner().to_string()), &json!(lease)));
    }
    let id = app.app.runner().to_string();
    assert!(ok(client(&app, &["runners", "drain", &id, "--reason", "moves"])).await.contains("draining"));
    assert_eq!(app.get("/v1/runners").await.body["data"][0]["draining"]["reason"], "moves");
    assert!(ok(client(&app, &["runners", "resume", &id])).await.contains("running"));
    let (code, _, err) = outcome(client(&app, &["runners", "drain", &gone])).await;
    assert!(code == 1 && err.contains("runner_stopped"), "{err}");
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_exit_code_of_an_enqueue_that_waits_says_how_the_job_ended() {
    let app = TestApp::start().await;
    let (code, out, err) = outcome(client(&app, &["enqueue", "fail", r#"{"permanent": true}"#, "--wait", "30s"])).await;
    assert!(code == 3 && out.ends_with(" failed\n") && err.contains("the job is failed: "), "{code} {out}{err}");
    let (code, out, err) = outcome(client(&app, &["enqueue", "noop", "--delay-ms", "600000", "--wait", "100ms"])).await;
    assert!(code == 5 && out.ends_with(" waiting\n") && err.contains("not over yet"), "{code} {out}{err}");
    // With --quiet, standard output is one id and nothing else, printed before the wait.
    let mut quiet = client(&app, &["enqueue", "noop", "--delay-ms", "600000", "--quiet", "--wait", "60s"]);
    let mut waits = quiet.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let mut id = [0; 37];
    tokio::io::AsyncReadExt::read_exact(waits.stdout.as_mut().unwrap(), &mut id).await.unwrap();
    let id = std::str::from_utf8(&id).unwrap().trim();
    let cancelled = answer(http().post(app.url(&format!("/v1/jobs/{id}/cancel")))).await;
    assert_eq!(cancelled.status, 200);
    let waited = waits.wait_with_output().await.unwrap();
    let err = String::from_utf8_lossy(&waited.stderr).into_owned();
    assert!(waited.status.code() == Some(4) && waited.stdout.is_empty() && err.contains("cancelled"), "{err}");
    // A wrong argument is reported with an example of a right one, before any request is sent.
    for (flags, right) in [
        (&["--at", "tomorrow"], "2027-01-01T10:00:00Z"),
        (&["--delay-ms", "-5"], "whole number of milliseconds, 0 or more"),
        (&["--timeout-ms", "10s"], "whole number of milliseconds"),
        (&["--wait", "30"], "30s"),
    ] {
        let (code, out, err) = outcome(client(&app, &[&["enqueue", "noop"][..], flags].concat())).await;
        assert!(
            code == 2 && out.is_empty() && err.contains(right) && !err.contains("-- -5"),
            "{flags:?}: {code} {err}"
        );
    }
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_explained_counted_and_moved_from_the_command_line() {
    let app = TestApp::start().await;
    let id = ok(client(&app, &["enqueue", "noop", "--delay-ms", "600000", "--quiet"])).await.trim().to_owned();
    let explained = ok(client(&app, &["jobs", "explain", &id])).await;
    assert!(explained.contains("not_due") && explained.contains("it is due in"), "{explained}");
    let json: Value = serde_json::from_str(&ok(client(&app, &["jobs", "explain", &id, "--json"])).await).unwrap();
    assert_eq!(json["reasons"][0]["code"], "not_due");
    let shown = ok(client(&app, &["jobs", "show", &id])).await;
    assert!(shown.contains("why it waits") && shown.contains("not_due"), "{shown}");
    assert_eq!(ok(client(&app, &["jobs", "count", "--state", "waiting"])).await, "1\n");
    assert_eq!(ok(client(&app, &["jobs", "count", "-q", "state:failed"])).await, "0\n");
    ok(client(&app, &["jobs", "set-priority", &id, "1"])).await;
    let moved = ok(client(&app, &["jobs", "reschedule", &id, "--at", "2020-01-01T00:00:00Z", "--json"])).await;
    assert_eq!(serde_json::from_str::<Value>(&moved).unwrap()["priority"], 1);
    let id: tickr::job::JobId = id.parse().unwrap();
    let done = app.until(id, State::Completed).await;
    assert_eq!(done["priority"], 1);
    let (code, _, err) = outcome(client(&app, &["jobs", "reschedule", &id.to_string()])).await;
    assert!(code == 2 && err.contains("--in"), "{err}");
    let (code, _, err) = outcome(client(&app, &["jobs", "reschedule", &id.to_string(), "--in", "2h"])).await;
    assert!(code == 1 && err.contains("wrong_state"), "{err}");
    // A user who enters an unknown queue in a shell learns of it from the enqueue itself.
    let (code, out, err) = outcome(client(&app, &["enqueue", "noop", "--queue", "mails"])).await;
    assert!(
        code == 0 && out.ends_with(" waiting\n") && err.contains("no living runner serves the queue mails"),
        "{err}"
    );
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_was_never_used_is_not_paused_by_a_slip_of_the_finger() {
    let app = TestApp::start().await;
    for verb in [&["pause", "defualt"][..], &["set", "defualt", "--concurrency", "1"]] {
        let (code, out, err) = outcome(client(&app, &[&["queues"][..], verb].concat())).await;
        assert!(code == 1 && out.is_empty() && err.contains("--create") && err.contains("default"), "{out}{err}");
    }
    assert_eq!(app.count("SELECT COUNT(*) FROM queues").await, 0);
    ok(client(&app, &["queues", "pause", "default"])).await;
    ok(client(&app, &["queues", "pause", "later", "--create"])).await;
    // A queue with settings counts as known.
    ok(client(&app, &["queues", "set", "later", "--priority", "1"])).await;
    assert_eq!(app.count("SELECT COUNT(*) FROM queues").await, 2);
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_key_asks_before_it_locks_the_others_out() {
    let app = TestApp::start().await;
    let (code, out, err) = outcome(client(&app, &["api-keys", "create", "ops", "--scope", "admin"])).await;
    assert!(code == 1 && out.is_empty() && err.contains("--yes") && err.contains("401"), "{err}");
    let (code, out, err) = outcome(client(&app, &["api-keys", "create", "shop", "--scope", "enqueue", "--yes"])).await;
    assert!(code == 1 && out.is_empty() && err.contains("admin"), "{err}");
    assert_eq!(app.count("SELECT COUNT(*) FROM api_keys").await, 0);
    let refused = app.put("/v1/api-keys/shop", json!({"scope": "read"})).await;
    assert_eq!((refused.status, refused.code(), refused.pointers()), (422, "invalid_request", vec!["/scope"]));
    let key = ok_out(client(&app, &["api-keys", "create", "ops", "--scope", "admin", "--yes"])).await;
    let mut second = client(&app, &["api-keys", "create", "shop", "--scope", "enqueue"]);
    second.env("TICKR_TOKEN", key.trim());
    ok_out(second).await;
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_the_store_with_a_wrong_name_or_a_flag_of_another_scope_is_wrong_usage() {
    let app = TestApp::start().await;
    for (args, part) in [
        (&["create", "shop", "--scope", "read", "--producer", "shop"][..], "--producer"),
        (&["create", "shop", "--scope", "work", "--producer", "shop"], "--producer"),
        (&["create", "shop", "--scope", "admin", "--kinds", "noop"], "--kinds"),
        (&["create", "shop", "--scope", "read", "--queues", "mail"], "--queues"),
        (&["create", "shop", "--scope", "enqueue", "--kinds", "noop,No"], "--kinds \"No\""),
        (&["create", "a b", "--scope", "admin"], "NAME \"a b\""),
        (&["revoke", "a b"], "NAME \"a b\""),
    ] {
        let mut command = run(app.dir.path(), &[&["api-keys"], args, &["--in-store"]].concat());
        command.env("TICKR_MYSQL_URL", app.config.mysql_url().unwrap().expose());
        let (code, out, err) = outcome(command).await;
        assert!(code == 2 && out.is_empty() && err.contains(part), "{args:?}: {code} {out} {err}");
    }
    assert_eq!(app.count("SELECT COUNT(*) FROM api_keys").await, 0);
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_key_made_in_the_store_is_an_admin_key_and_says_that_it_closes_the_api() {
    let app = TestApp::start().await;
    let create = async |name: &str, scope: &str, tokens: Option<&str>| {
        let mut command = run(app.dir.path(), &["api-keys", "create", name, "--scope", scope, "--in-store"]);
        command.env("TICKR_MYSQL_URL", app.config.mysql_url().unwrap().expose());
        command.envs(tokens.map(|tokens| ("TICKR_API_TOKENS", tokens)));
        outcome(command).await
    };
    for scope in ["enqueue", "read"] {
        let (code, out, err) = create("shop", scope, None).await;
        assert!(code == 1 && out.is_empty() && err.contains("admin"), "{code} {out} {err}");
    }
    assert_eq!(app.count("SELECT COUNT(*) FROM api_keys").await, 0);
    assert_eq!(app.count("SELECT COUNT(*) FROM audit").await, 0);
    assert_eq!(app.get("/v1/stats").await.status, 200, "the API is still open");
    // Tokens of the configuration close the API before the first key, and each of them is an admin key.
    let (code, _, err) = create("shop", "enqueue", Some("a-token-of-this-configuration-01")).await;
    assert!(code == 0 && !err.contains("every request"), "{code} {err}");
    app.sql("DELETE FROM api_keys").await;
    let (code, out, err) = create("ops", "admin", None).await;
    assert!(code == 0 && out.starts_with("tickr_"), "{code} {out} {err}");
    assert!(err.contains("from now on every request needs one"), "{err}");
    // A revoked key counts: it has closed the API.
    app.sql("UPDATE api_keys SET revoked_at = UTC_TIMESTAMP(6), revoked_by = 'command'").await;
    let (code, _, err) = create("shop-2", "enqueue", None).await;
    assert!(code == 0 && !err.contains("every request"), "{code} {err}");
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_enqueued_job_that_is_held_says_so_in_its_json() {
    let app = TestApp::start().await;
    let enqueue = async |more: &[&str]| {
        let args = [&["enqueue", "noop", "--delay-ms", "3600000", "--json"][..], more].concat();
        serde_json::from_str::<Value>(&ok(client(&app, &args)).await).unwrap()
    };
    let first = enqueue(&["--order-key", "k"]).await;
    assert_eq!(first.get("held"), None, "{first:#}");
    let behind = enqueue(&["--order-key", "k"]).await;
    let child = enqueue(&["--after", first["id"].as_str().unwrap()]).await;
    for job in [behind, child] {
        assert_eq!((&job["held"], &job["state"]), (&json!(true), &json!("waiting")), "{job:#}");
    }
    app.stop().await;
}

/// Run a command that may write to standard error as well, and return its standard output.
async fn ok_out(command: Command) -> String {
    let (code, out, err) = outcome(command).await;
    assert_eq!(code, 0, "{out}{err}");
    out
}

#[tokio::test(flavor = "multi_thread")]
async fn completions_know_every_command() {
    let dir = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let made = ok(run(dir.path(), &["completions", shell])).await;
        for word in ["runners", "events", "watch", "patience", "schedules", "enqueue"] {
            assert!(made.contains(word), "{word} is unknown to {shell}");
        }
    }
}
