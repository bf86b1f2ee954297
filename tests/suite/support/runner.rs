//! `tickr serve` as a process of its own, which tests can signal and kill.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::{TestApp, eventually};

/// A running `tickr serve`. It is killed when dropped.
pub(crate) struct Runner {
    child: Child,
    dir: tempfile::TempDir,
}

impl Runner {
    /// Start the binary on the tables and Redis keys of `tickr`, with the test kinds, a lease of two seconds and `env`.
    pub(crate) fn start(tickr: &TestApp, env: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tickr"));
        command.arg("serve");
        Self::spawn(command, tickr, env)
    }

    /// Do the same as [`start`](Self::start), with this limit on the address space of each process.
    pub(crate) fn start_limited(tickr: &TestApp, kib: u64, env: &[(&str, &str)]) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -v {kib} && exec \"$0\" serve"), env!("CARGO_BIN_EXE_tickr")]);
        Self::spawn(command, tickr, env)
    }

    /// Do the same as [`start`](Self::start), with this soft limit on the open files of the process.
    pub(crate) fn start_with_files(tickr: &TestApp, files: usize, env: &[(&str, &str)]) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -Sn {files} && exec \"$0\" serve"), env!("CARGO_BIN_EXE_tickr")]);
        Self::spawn(command, tickr, env)
    }

    /// Return the number of files that it has open.
    pub(crate) fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().count()
    }

    /// Do the same as [`start`](Self::start), with another program that is a runner without a subcommand.
    pub(crate) fn start_program(tickr: &TestApp, program: &Path, env: &[(&str, &str)]) -> Self {
        Self::spawn(Command::new(program), tickr, env)
    }

    fn spawn(mut command: Command, tickr: &TestApp, env: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let log = File::options().create(true).append(true).open(dir.path().join("log")).unwrap();
        let child = command
            .current_dir(dir.path())
            .env("TICKR_MYSQL_URL", tickr.config.mysql_url().unwrap().expose())
            .env("TICKR_REDIS_URL", tickr.config.redis_url().unwrap().expose())
            .env("TICKR_TABLE_PREFIX", tickr.config.table_prefix.as_str())
            .env("TICKR_REDIS_PREFIX", &tickr.config.redis_prefix)
            .env("TICKR_HTTP_ADDR", "127.0.0.1:0")
            .env("TICKR_TEST_KINDS", "1")
            .env("TICKR_LEASE", "2s")
            .env("RUST_BACKTRACE", "0")
            // If a supervisor started the tests, it names their process.
            .env_remove("SYSTEMD_EXEC_PID")
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { child, dir }
    }

    /// Wait until its API listens, and return the URL.
    pub(crate) async fn base(&self) -> String {
        eventually("the runner listens", || async {
            let log = self.log();
            // If the end of the line is there, the whole line is.
            let (_, rest) = log.split_once(" addr=").or_else(|| log.split_once(r#""addr":""#))?;
            let (addr, _) = rest.split_once(['\n', '"'])?;
            Some(format!("http://{}", addr.trim()))
        })
        .await
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Return the memory that it uses, in KiB.
    pub(crate) fn memory_kib(&self) -> u64 {
        self.status_kib("VmRSS:")
    }

    /// Return the largest amount of memory that it ever used, in KiB.
    pub(crate) fn peak_memory_kib(&self) -> u64 {
        self.status_kib("VmHWM:")
    }

    fn status_kib(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }

    /// Return its log so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    /// Wait until its log has this text.
    pub(crate) async fn until_log(&self, text: &str) {
        eventually(&format!("the runner says {text:?}"), || async { self.log().contains(text).then_some(()) }).await;
    }

    /// Send a signal by its name. After `STOP` it stands still when this returns.
    pub(crate) fn signal(&self, name: &str) {
        tickr::services::signal(name, self.child.id()).unwrap();
    }

    pub(crate) fn kill9(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Return whether the process has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Return the name of each thread and the kernel's function in which it waits, on Linux.
    fn threads(&self) -> String {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid())).into_iter().flatten().flatten();
        let read = |path: std::path::PathBuf| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let one = |dir: std::path::PathBuf| format!("{}: {}", read(dir.join("comm")), read(dir.join("wchan")));
        threads.map(|thread| one(thread.path())).collect::<Vec<_>>().join(", ")
    }

    /// Wait for its end. Return `None` when a signal ended it.
    pub(crate) async fn exit_code(&mut self) -> Option<i32> {
        let deadline = tokio::time::Instant::now() + super::DEADLINE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(tokio::time::Instant::now() < deadline, "the runner does not end:\n{}", self.log());
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        let condition = match self.child.try_wait() {
            Ok(Some(status)) => format!("had ended with {status}"),
            _ if std::thread::panicking() => format!("was running, with its threads in {}", self.threads()),
            _ => String::new(),
        };
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the runner {condition}, and said:\n{}", self.log());
        }
    }
}
