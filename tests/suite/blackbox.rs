//! The built command from outside: a user starts `tickr dev`, stops it, kills it and starts it again.

use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tickr::config::{CallbackSecret, Config};
use tickr::job::JobId;
use tokio::net::unix::pipe;
use tokio::process::Command;

use crate::support::program::{Program, command, example, nothing_runs_in, outcome, tickr};
use crate::support::{TestApp, answer, connect, eventually, http, make_suspects};

/// The machine of a user: a working folder, a home and a folder for temporary files, all of them empty.
struct Desk {
    root: tempfile::TempDir,
}

impl Desk {
    fn new() -> Self {
        let root = tempfile::Builder::new().prefix("tickr").tempdir().unwrap();
        for name in ["work", "home", "tmp"] {
            std::fs::create_dir(root.path().join(name)).unwrap();
        }
        Self { root }
    }

    fn data(&self) -> PathBuf {
        self.root.path().join("data")
    }

    fn dev(&self, more: &[&str]) -> Command {
        self.dev_on_the_usual_port(&[&["--http-addr", "127.0.0.1:0"], more].concat())
    }

    fn dev_on_the_usual_port(&self, more: &[&str]) -> Command {
        let data = self.data();
        let mut args = vec!["dev", "--dir", data.to_str().unwrap()];
        args.extend(more);
        let mut command = command(&tickr(), &self.root.path().join("work"), &args);
        command.env("HOME", self.root.path().join("home")).env("TMPDIR", self.root.path().join("tmp"));
        command
    }

    async fn start(&self, more: &[&str]) -> (Program, String) {
        let mut program = Program::spawn(self.dev(more));
        let docs = program.says("  API        ").await;
        (program, docs.strip_suffix("/docs").unwrap().to_owned())
    }

    /// Check that no process is left, and no file outside the data folder.
    async fn is_tidy(&self) {
        nothing_runs_in(self.root.path()).await;
        for name in ["work", "home", "tmp"] {
            let left: Vec<_> = std::fs::read_dir(self.root.path().join(name)).unwrap().collect();
            assert!(left.is_empty(), "{left:?}");
        }
    }
}

async fn get(url: &str, path: &str) -> Value {
    answer(http().get(format!("{url}{path}"))).await.body
}

async fn jobs(url: &str, state: &str) -> Vec<Value> {
    get(url, &format!("/v1/jobs?state={state}")).await["data"].as_array().unwrap().clone()
}

async fn until(url: &str, id: &str, state: &str) -> Value {
    eventually(&format!("job {id} is {state}"), async || {
        let job = get(url, &format!("/v1/jobs/{id}")).await;
        (job["state"] == state).then_some(job)
    })
    .await
}

/// Read the mails of an outbox: their headers, unfolded, and their bodies.
fn mails(outbox: &Path) -> Vec<(String, String)> {
    let files = std::fs::read_dir(outbox).unwrap().map(|entry| entry.unwrap().path());
    let mails = files.filter(|path| path.extension().is_some_and(|ext| ext == "eml"));
    mails
        .map(|path| {
            let text = std::fs::read_to_string(path).unwrap().replace("\r\n", "\n");
            let (head, body) = text.split_once("\n\n").unwrap();
            (head.replace("\n ", " "), body.to_owned())
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn dev_names_its_dashboard_first_and_hands_its_servers_to_the_other_commands() {
    let desk = Desk::new();
    let (mut program, url) = desk.start(&["--no-samples"]).await;
    let page = program.says("  dashboard  ").await;
    assert_eq!(page, format!("{url}/"));
    let env = program.says("  . ").await;
    program.says("enqueue a job").await;
    let said = program.said();
    let first = said.lines().find(|line| line.contains("http://") && line.starts_with("  ")).unwrap();
    assert!(first.contains("dashboard"), "{said}");
    for part in ["  MySQL      mysql://", "  Redis      redis+unix://"] {
        assert!(said.contains(part), "{part} is not in:\n{said}");
    }
    // The user pastes the lines in another folder. Without them the commands find no server.
    let shell =
        async |line: String| outcome(command("sh".as_ref(), &desk.root.path().join("work"), &["-c", &line])).await;
    let tickr = tickr();
    let tickr = tickr.to_str().unwrap();
    for words in ["verify", "check --pending", "migrate", "rebuild", "jobs list"] {
        // By its name, as the printed lines have it.
        let (code, out, err) = shell(format!(". {env}\ntickr {words}")).await;
        assert_eq!(code, 0, "{words}: {out}{err}");
    }
    assert_eq!(shell(format!("'{tickr}' verify")).await.0, 2);
    program.signal("TERM").await;
    assert_eq!(program.ends().await.code(), Some(0), "{}", program.said());
    assert!(!desk.data().join("env").exists());
    desk.is_tidy().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dev_says_how_to_start_the_sample_of_each_language_and_how_to_list_its_kinds() {
    let desk = Desk::new();
    // The folder of a user who has a checkout of the project.
    let (project, work) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("examples"), desk.root.path().join("work"));
    let folders = std::fs::read_dir(project).unwrap().map(|entry| entry.unwrap().path());
    let mut samples = Vec::new();
    for folder in folders.filter(|folder| folder.join("run.sh").is_file()) {
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        let copy = work.join("examples").join(&name);
        std::fs::create_dir_all(&copy).unwrap();
        std::fs::copy(folder.join("run.sh"), copy.join("run.sh")).unwrap();
        samples.push(name);
    }
    assert!(samples.len() >= 5, "{samples:?}");
    let (mut program, url) = desk.start(&["--no-samples"]).await;
    let env = program.says("  . ").await;
    program.says("enqueue a job").await;
    let said = program.said();
    for name in samples {
        let line = format!("  TICKR_URL={url} sh examples/{name}/run.sh");
        assert!(said.lines().any(|printed| printed == line), "{line} is not in:\n{said}");
    }
    let list = "tickr kinds list --declared";
    assert!(said.contains(list), "{list} is not in:\n{said}");
    let declared = answer(http().put(format!("{url}/v1/kinds/resize")).json(&json!({"queue": "pictures"}))).await;
    assert_eq!(declared.status, 201, "{:#}", declared.body);
    let (code, out, err) = outcome(command("sh".as_ref(), &work, &["-c", &format!(". {env}\n{list}")])).await;
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("resize") && out.contains("pictures"), "{out}");
    program.signal("TERM").await;
    assert_eq!(program.ends().await.code(), Some(0), "{}", program.said());
    std::fs::remove_dir_all(work.join("examples")).unwrap();
    desk.is_tidy().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dev_runs_its_samples_keeps_its_jobs_and_leaves_nothing_behind() {
    let desk = Desk::new();
    let (mut program, url) = desk.start(&[]).await;

    // The samples are a mail, a callback, a report and the mail that carries the report.
    let done = eventually("the samples are done", async || {
        let done = jobs(&url, "completed").await;
        (done.len() == 4).then_some(done)
    })
    .await;
    let mut kinds: Vec<&str> = done.iter().map(|job| job["kind"].as_str().unwrap()).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, ["email", "email", "http", "report"]);
    program.says("the first job completed ").await;
    // Callbacks are signed with a secret that is printed for receivers and that survives a restart.
    let secret = program.says("  callbacks are signed with ").await;
    assert!(CallbackSecret::parse(&secret).is_some(), "{secret}");
    let kept = desk.data().join("callback-secret");
    assert_eq!(std::fs::read_to_string(&kept).unwrap().trim(), secret);
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&kept).unwrap()) & 0o777, 0o600);

    // The report is downloaded over HTTP, and the mail has the same bytes.
    let report = done.iter().find(|job| job["kind"] == "report").unwrap()["id"].as_str().unwrap();
    let report = get(&url, &format!("/v1/jobs/{report}")).await;
    let file = report["result"]["file"].as_str().unwrap();
    let page = http().get(format!("{url}/v1/reports/{file}")).send().await.unwrap().bytes().await.unwrap();
    assert!(page.starts_with(b"<!DOCTYPE html>"));
    let mails_now = mails(&desk.data().join("outbox"));
    assert_eq!(mails_now.len(), 2);
    let (head, body) = mails_now.iter().find(|(head, _)| head.contains("Subject: Your first report")).unwrap();
    assert!(head.contains("To: you@example.com") && head.contains("multipart/mixed"), "{head}");
    let boundary = head.split_once("boundary=\"").unwrap().1.split_once('"').unwrap().0;
    let parts: Vec<&str> = body.split(&format!("--{boundary}")).collect();
    let (part_head, part) = parts[2].trim_start().split_once("\n\n").unwrap();
    assert!(part_head.contains("attachment") && part_head.contains(file), "{part_head}");
    assert_eq!(STANDARD.decode(part.replace('\n', "")).unwrap(), page);

    // The printed command works when it is pasted without changes.
    let said = program.said();
    let curl = &said[said.find("curl -s ").unwrap()..];
    let body = curl.split_once("-d '").unwrap().1.split_once('\'').unwrap().0;
    let line = &curl[..curl.find(body).unwrap() + body.len() + 1];
    let accepted: Value = if Command::new("curl").arg("--version").output().await.is_ok() {
        let (code, out, err) = outcome(command("sh".as_ref(), &desk.root.path().join("work"), &["-c", line])).await;
        assert_eq!(code, 0, "{err}");
        serde_json::from_str(&out).unwrap()
    } else {
        let post = http().post(format!("{url}/v1/jobs")).header("content-type", "application/json");
        answer(post.body(body.to_owned())).await.body
    };
    until(&url, accepted["id"].as_str().unwrap(), "completed").await;

    // Stopped and started again, it still has its unfinished jobs.
    let mail = json!({"to": "ada@example.com", "subject": "Later", "text": "x"});
    let later = json!({"kind": "email", "payload": mail, "delay_ms": 3_000});
    let first_runner = get(&url, "/v1/runners").await["data"][0]["id"].clone();
    let later = answer(http().post(format!("{url}/v1/jobs")).json(&later)).await.body;
    program.signal("INT").await;
    assert_eq!(program.ends().await.code(), Some(0), "{}", program.said());
    desk.is_tidy().await;
    let said = program.said();
    assert!(!said.contains("ERROR"), "{said}");

    let (mut program, url) = desk.start(&["--no-samples"]).await;
    program.says("found 6 jobs from earlier runs").await;
    let job = until(&url, later["id"].as_str().unwrap(), "completed").await;
    assert_eq!(job["attempts"].as_array().unwrap().len(), 1);
    assert_ne!(job["attempts"][0]["runner"], first_runner, "{said}\n{job:#}");
    assert!(job["started_at"].as_str() >= job["execute_at"].as_str(), "never early");
    assert!(mails(&desk.data().join("outbox")).iter().any(|(head, _)| head.contains("Subject: Later")));

    // Two instances of tickr cannot share one folder.
    let (code, _, err) = outcome(desk.dev(&[])).await;
    assert_eq!(code, 1);
    assert!(err.contains("in use by another tickr") && err.contains("data"), "{err}");
    assert_eq!(get(&url, "/readyz").await["status"], "ready");

    // When it is killed, its servers end with it, and it can start again.
    program.signal("KILL").await;
    program.ends().await;
    let (mut program, url) = desk.start(&["--no-samples"]).await;
    assert_eq!(jobs(&url, "completed").await.len(), 6);
    program.signal("KILL").await;
    program.ends().await;
    desk.is_tidy().await;
    let (mut program, url) = desk.start(&["--no-samples"]).await;
    assert_eq!(get(&url, "/v1/stats").await["states"]["completed"], 6);
    program.signal("TERM").await;
    assert_eq!(program.ends().await.code(), Some(0));
    desk.is_tidy().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn under_dev_a_job_that_aborts_its_process_twice_runs_in_a_child_and_fails_and_dev_lives_on() {
    let desk = Desk::new();
    let start = async || {
        let mut dev = desk.dev(&["--no-samples"]);
        dev.env("TICKR_TEST_KINDS", "1").env("TICKR_LEASE", "2s");
        let mut program = Program::spawn(dev);
        let url = program.says("  API        ").await;
        (program, url.strip_suffix("/docs").unwrap().to_owned())
    };
    let (mut program, url) = start().await;
    let retry = json!({"base_ms": 1, "factor": 1.0, "cap_ms": 1, "jitter": 0.0});
    let job = json!({"kind": "abort", "max_attempts": 9, "retry": retry});
    let job = answer(http().post(format!("{url}/v1/jobs")).json(&job)).await.body;
    let id = job["id"].as_str().unwrap();
    // The job kills dev and its servers. When dev is back, the job does it again.
    assert_eq!(program.ends().await.signal(), Some(6), "{}", program.said());
    let (mut program, _) = start().await;
    assert_eq!(program.ends().await.signal(), Some(6), "{}", program.said());
    let (mut program, url) = start().await;
    let failed = until(&url, id, "failed").await;
    let attempts = failed["attempts"].as_array().unwrap();
    let verdicts: Vec<&str> = attempts.iter().map(|one| one["verdict"].as_str().unwrap()).collect();
    assert_eq!(verdicts, ["lost"; 3], "{failed:#}");
    assert!(failed["last_error"].as_str().unwrap().contains("signal 6 (SIGABRT)"), "{failed:#}");
    assert!(program.said().contains("running it in a process of its own"), "{}", program.said());
    eventually("the end of the process is logged", || async {
        program.said().contains("the process of a suspect died").then_some(())
    })
    .await;
    assert_eq!(get(&url, "/readyz").await["status"], "ready");

    // The child process has the configuration of dev, which is in no file: its outbox, its sample report, its secret.
    let mail = json!({"kind": "email", "payload": {"to": "ada@example.com", "subject": "Suspect", "text": "x"}});
    let report = json!({"kind": "report", "payload": {"query": "jobs_by_state", "format": "csv"}});
    let callback = json!({"kind": "http", "payload": {"method": "GET", "url": format!("{url}/livez")}});
    let env = std::fs::read_to_string(desk.data().join("env")).unwrap();
    let mysql = env.lines().find_map(|line| line.strip_prefix("export TICKR_MYSQL_URL='")).unwrap();
    let mut mysql = connect(mysql.strip_suffix('\'').unwrap()).await;
    let mut ids = Vec::new();
    for mut job in [mail, report, callback] {
        job["delay_ms"] = json!(3_600_000);
        let accepted = answer(http().post(format!("{url}/v1/jobs")).json(&job)).await;
        assert_eq!(accepted.status, 201, "{:#}", accepted.body);
        ids.push(accepted.body["id"].as_str().unwrap().parse::<JobId>().unwrap());
    }
    make_suspects(&mut mysql, &ids).await;
    for id in &ids {
        let id = id.to_string();
        assert_eq!(answer(http().post(format!("{url}/v1/jobs/{id}/run-now")).json(&json!({}))).await.status, 200);
        let job = until(&url, &id, "completed").await;
        let ran = job["attempts"][2]["runner"].as_str().unwrap();
        let parent: Option<String> = sqlx::query_scalar("SELECT parent FROM runners WHERE id = ?")
            .bind(ran)
            .fetch_one(&mut mysql)
            .await
            .unwrap();
        assert!(parent.is_some(), "it did not run in a child: {job:#}");
    }
    drop(mysql);
    assert!(mails(&desk.data().join("outbox")).iter().any(|(head, _)| head.contains("Subject: Suspect")));
    let verify = format!(". '{}'\ntickr verify", desk.data().join("env").display());
    let (code, out, err) = outcome(command("sh".as_ref(), &desk.root.path().join("work"), &["-c", &verify])).await;
    assert_eq!(code, 0, "{out}{err}");
    program.signal("TERM").await;
    assert_eq!(program.ends().await.code(), Some(0), "{}", program.said());
    desk.is_tidy().await;
}

/// Wait until a program reads this named pipe. It reads the end of the file when the sender is dropped.
async fn reader_of(path: &Path) -> pipe::Sender {
    eventually("the pipe is read", async || pipe::OpenOptions::new().open_sender(path).ok()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn dev_starts_on_a_free_port_when_another_program_takes_the_usual_one_during_its_start() {
    let desk = Desk::new();
    // dev waits for its settings when it reads them: before the servers start, and again just before it listens.
    let (settings, plain) = (desk.root.path().join("settings"), desk.root.path().join("plain"));
    assert!(Command::new("mkfifo").arg(&settings).status().await.unwrap().success());
    let args = ["--no-samples", "--config", settings.to_str().unwrap()];
    let mut program = Program::spawn(desk.dev_on_the_usual_port(&args));
    drop(reader_of(&settings).await);
    eventually("the servers run", async || desk.data().join("callback-secret").exists().then_some(())).await;
    let waits = reader_of(&settings).await;
    // A program outside the tests may have the port already.
    let usual = Config::defaults().http_addr;
    let other = TcpListener::bind(usual);
    std::fs::write(&plain, "").unwrap();
    std::fs::rename(&plain, &settings).unwrap();
    drop(waits);

    let docs = program.says("  API        ").await;
    assert_ne!(docs, format!("http://{usual}/docs"));
    assert!(program.said().contains("the usual port is taken, using a free one"), "{}", program.said());
    let url = docs.strip_suffix("/docs").unwrap();
    assert_eq!(get(url, "/readyz").await["status"], "ready");
    drop(other);
    program.signal("TERM").await;
    assert_eq!(program.ends().await.code(), Some(0), "{}", program.said());
    desk.is_tidy().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_during_the_start_leaves_nothing_either() {
    let desk = Desk::new();
    let mut program = Program::spawn(desk.dev(&[]));
    eventually("its servers are starting", async || desk.data().join("servers").exists().then_some(())).await;
    program.signal("INT").await;
    assert_eq!(program.ends().await.code(), Some(0), "{}", program.said());
    // It ends instead of completing its start first, and makes no samples.
    assert!(!program.said().contains("dashboard"), "{}", program.said());
    desk.is_tidy().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_of_ones_own_runs_in_a_whole_tickr() {
    let tickr = TestApp::start().await;
    let mysql = tickr.config.mysql_url().unwrap().expose().to_owned();
    let redis = tickr.config.redis_url().unwrap().expose().to_owned();
    let args = ["--http-addr", "127.0.0.1:0", "--queues", "own", "--redis-prefix", &tickr.config.redis_prefix];
    let mut command = command(&example("own_kind").await, tickr.dir.path(), &args);
    command.env("TICKR_MYSQL_URL", mysql).env("TICKR_REDIS_URL", redis).env("TICKR_LOG_FORMAT", "json");
    let mut program = Program::spawn(command);
    let url = program.url().await;

    let kinds = get(&url, "/v1/kinds").await;
    let kind = kinds["data"].as_array().unwrap().iter().find(|kind| kind["kind"] == "thumbnail").unwrap();
    assert_eq!(kind["schema"]["properties"]["width"]["maximum"], 4_096);
    let enqueue = async |payload: Value| {
        let job = json!({"kind": "thumbnail", "payload": payload, "queue": "own"});
        answer(http().post(format!("{url}/v1/jobs")).json(&job)).await
    };
    let refused = enqueue(json!({"image": "cat.png", "width": 0})).await;
    assert_eq!((refused.status, refused.pointers()), (422, vec!["/payload/width"]));
    let accepted = enqueue(json!({"image": "cat.png", "width": 320})).await;
    assert_eq!(accepted.status, 201);
    let job = until(&url, accepted.body["id"].as_str().unwrap(), "completed").await;
    assert_eq!(job["result"], json!({"file": "cat-320px.png", "attempt": 1}));
    let rejected = enqueue(json!({"image": "cat.gif", "width": 320})).await;
    let job = until(&url, rejected.body["id"].as_str().unwrap(), "failed").await;
    assert_eq!((&job["last_error"], &job["attempt"]), (&json!("cat.gif is not a PNG"), &json!(1)));

    program.signal("TERM").await;
    assert_eq!(program.ends().await.code(), Some(0), "{}", program.said());
    tickr.stop().await;
}
