//! The built programs, started as a user starts them: in an empty folder, with an environment of their own. Tests see
//! only their output, their answers and the files that they leave behind.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio_util::task::TaskTracker;

use super::{DEADLINE, answer, eventually, http};

/// Longest wait for the last lines of a program that has ended. On a busy machine they arrive after its exit code.
const LAST_LINES: Duration = Duration::from_secs(5);

/// Return the path of the `tickr` command of this build.
pub(crate) fn tickr() -> PathBuf {
    env!("CARGO_BIN_EXE_tickr").into()
}

/// Return whether the examples are release builds. A suite that is none itself drives them with `TICKR_TEST_RELEASE`:
/// compiling the suite for release takes longer than all of tickr.
pub(crate) fn is_release() -> bool {
    !cfg!(debug_assertions) || std::env::var_os("TICKR_TEST_RELEASE").is_some()
}

/// Return the path of an example. `cargo test` builds examples and tests together, but not when it is run for one test
/// target alone, so this builds it from the current sources. A suite that is run without cargo, as `make mutants` does,
/// takes the example that was built with it.
pub(crate) async fn example(name: &str) -> PathBuf {
    let mut folder = tickr().parent().unwrap().to_owned();
    if is_release() {
        folder.set_file_name("release");
    }
    let example = folder.join("examples").join(name);
    let Some(cargo) = std::env::var_os("CARGO") else {
        assert!(example.exists(), "{} was not built; run `cargo build --examples`", example.display());
        return example;
    };
    let profile = match folder.file_name().unwrap().to_str().unwrap() {
        "debug" => "dev",
        other => other,
    };
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--profile", profile, "--example", name]).current_dir(env!("CARGO_MANIFEST_DIR"));
    // Remove the variables that cargo sets for a test. Otherwise build scripts would see a change: they and everything
    // that depends on them, such as TLS and tickr, would be built again, and once more by the next cargo without these
    // variables.
    for (variable, _) in std::env::vars_os() {
        let text = variable.to_string_lossy();
        if ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"].iter().any(|of| text.starts_with(of)) {
            build.env_remove(&variable);
        }
    }
    assert!(build.status().await.unwrap().success());
    example
}

/// Make a command in a folder, without the settings of the user who runs the tests.
pub(crate) fn command(program: &Path, dir: &Path, args: &[impl AsRef<OsStr>]) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let keep = name == "TICKR_MYSQLD";
        if name.to_string_lossy().starts_with("TICKR_") && !keep {
            command.env_remove(name);
        }
    }
    command.args(args).current_dir(dir).stdin(Stdio::null()).kill_on_drop(true);
    command
}

/// Make a command use these servers and log in JSON. In Redis it has only its prefix to itself.
pub(crate) fn on_servers(command: &mut Command, mysql: &str, redis: &str, prefix: &str) {
    command
        .env("TICKR_MYSQL_URL", mysql)
        .env("TICKR_REDIS_URL", redis)
        .env("TICKR_TABLE_PREFIX", super::table_prefix().as_str())
        .env("TICKR_REDIS_PREFIX", prefix)
        .env("TICKR_LOG_FORMAT", "json")
        .env("TICKR_TEST_KINDS", "1");
}

/// Run a command to its end. Return its exit code, standard output and standard error.
pub(crate) async fn outcome(mut command: Command) -> (i32, String, String) {
    let output = tokio::time::timeout(DEADLINE, command.output()).await.expect("the command ends").unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

/// A program that runs until it is told to stop.
pub(crate) struct Program {
    child: Child,
    said: Arc<Mutex<String>>,
    /// The tasks that read its two channels. They end when every process that holds a channel has closed it.
    readers: TaskTracker,
}

impl Program {
    pub(crate) fn spawn(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let said = Arc::<Mutex<String>>::default();
        let readers = TaskTracker::new();
        readers.spawn(read(child.stdout.take().unwrap(), Arc::clone(&said)));
        readers.spawn(read(child.stderr.take().unwrap(), Arc::clone(&said)));
        readers.close();
        Self { child, said, readers }
    }

    /// Return everything printed so far, on both channels.
    pub(crate) fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Wait for a line that has `mark`. Return the rest of the line.
    pub(crate) async fn says(&mut self, mark: &str) -> String {
        let mut ended = false;
        let deadline = tokio::time::Instant::now() + DEADLINE;
        loop {
            let text = self.said();
            if let Some(rest) = text.lines().find_map(|line| line.split_once(mark).map(|(_, rest)| rest.to_owned())) {
                return rest;
            }
            assert!(!ended, "it ended without saying {mark:?}:\n{text}");
            assert!(tokio::time::Instant::now() < deadline, "it does not say {mark:?}:\n{text}");
            ended = self.child.try_wait().unwrap().is_some();
            if ended {
                self.read_to_the_end().await;
            } else {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    /// Wait until the API of a runner with JSON logs listens, and return its URL.
    pub(crate) async fn url(&mut self) -> String {
        let addr = self.says("\"addr\":\"").await;
        format!("http://{}", addr.split('"').next().unwrap())
    }

    /// Check that it accepts a job and runs it.
    pub(crate) async fn runs_a_job(&mut self) {
        let url = self.url().await;
        let accepted = answer(http().post(format!("{url}/v1/jobs")).json(&json!({"kind": "noop"}))).await;
        assert_eq!(accepted.status, 201, "{:#}", accepted.body);
        let job = format!("{url}/v1/jobs/{}", accepted.body["id"].as_str().unwrap());
        eventually("the job completes", async || {
            (answer(http().get(&job)).await.body["state"] == "completed").then_some(())
        })
        .await;
    }

    /// Stop it with a signal, and check that it ends with 0.
    pub(crate) async fn ends_well(mut self) {
        self.signal("TERM").await;
        assert_eq!(self.ends().await.code(), Some(0), "{}", self.said());
    }

    pub(crate) async fn signal(&self, name: &str) {
        let pid = self.child.id().expect("it runs").to_string();
        assert!(Command::new("sh").args(["-c", "kill -s $0 $1", name, &pid]).status().await.unwrap().success());
    }

    /// Wait until it has ended and everything that it printed is read.
    pub(crate) async fn ends(&mut self) -> ExitStatus {
        let ended = tokio::time::timeout(DEADLINE, self.child.wait()).await;
        let status = ended.unwrap_or_else(|_| panic!("it does not end:\n{}", self.said())).unwrap();
        self.read_to_the_end().await;
        status
    }

    /// Read what an ended program printed last. A process that it started may hold a channel open for longer, so this
    /// gives up after some seconds.
    async fn read_to_the_end(&self) {
        let _ = tokio::time::timeout(LAST_LINES, self.readers.wait()).await;
    }
}

async fn read(channel: impl AsyncRead + Unpin, said: Arc<Mutex<String>>) {
    let mut lines = BufReader::new(channel).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let mut said = said.lock().unwrap();
        said.push_str(&line);
        said.push('\n');
    }
}

/// Wait until no process names this folder in its command line.
pub(crate) async fn nothing_runs_in(dir: &Path) {
    let dir = dir.to_str().unwrap().to_owned();
    eventually(&format!("no process names {dir}"), async || {
        let output = Command::new("ps").args(["-A", "-ww", "-o", "args"]).output().await.unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (!text.lines().any(|line| line.contains(&dir))).then_some(())
    })
    .await;
}
