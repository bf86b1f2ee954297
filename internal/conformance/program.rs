//! The program of the client, in a process group of its own.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

use crate::world::{LEASE_MS, QUEUE, World};

/// Bytes that are kept of the output of the program.
const MAX_OUTPUT: usize = 64 << 10;
/// Longest wait for the last output of a program that has ended. A process that it started may hold its output open.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// A running program. Its whole process group ends when this is dropped.
pub(crate) struct Program {
    child: Child,
    group: Option<u32>,
    output: Arc<Mutex<Vec<u8>>>,
    readers: JoinSet<()>,
}

impl Program {
    /// Start the program with the environment of the contract.
    pub(crate) fn start(command: &[String], urls: &str, world: &World) -> io::Result<Self> {
        let Some((name, arguments)) = command.split_first() else {
            return Err(io::Error::other("no command was given"));
        };
        let mut command = Command::new(name);
        for (variable, _) in std::env::vars_os() {
            if variable.to_string_lossy().starts_with("TICKR_") {
                command.env_remove(variable);
            }
        }
        let (token, setup) = world.read(|state| (state.token.clone(), state.setup.clone()));
        let mut child = command
            .args(arguments)
            .env("TICKR_URL", urls)
            .env("TICKR_TOKEN", token)
            .env("TICKR_QUEUES", QUEUE)
            .env("TICKR_SLOTS", setup.slots.to_string())
            .env("TICKR_GRACE_MS", setup.grace_ms.to_string())
            .env("TICKR_LEASE_MS", LEASE_MS.to_string())
            .env("TICKR_WAIT_MS", setup.wait_ms.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let output = Arc::new(Mutex::new(Vec::new()));
        let mut readers = JoinSet::new();
        if let Some(from) = child.stdout.take() {
            readers.spawn(keep(from, output.clone()));
        }
        if let Some(from) = child.stderr.take() {
            readers.spawn(keep(from, output.clone()));
        }
        Ok(Self { group: child.id(), child, output, readers })
    }

    /// Send a signal to the program, as a supervisor does: to its first process alone.
    pub(crate) async fn signal(&self, signal: &str) {
        if let Some(id) = self.child.id() {
            let _ = Command::new("sh").args(["-c", "kill -s $0 $1", signal, &id.to_string()]).status().await;
        }
    }

    /// Wait until the program has ended, and its last output was read.
    pub(crate) async fn ended(&mut self) -> String {
        let end = match self.child.wait().await {
            Ok(status) => said(status),
            Err(error) => error.to_string(),
        };
        let read = async { while self.readers.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(LAST_WORDS, read).await;
        end
    }

    /// Return the newest output.
    pub(crate) fn output(&self) -> String {
        String::from_utf8_lossy(&self.output.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(group) = self.group {
            let mut kill = std::process::Command::new("sh");
            let kill = kill.args(["-c", "kill -s KILL -- -$0", &group.to_string()]);
            let _ = kill.stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
    }
}

/// Say how a program ended.
fn said(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}

async fn keep(mut from: impl AsyncRead + Unpin, output: Arc<Mutex<Vec<u8>>>) {
    let mut piece = [0; 4096];
    while let Ok(read @ 1..) = from.read(&mut piece).await {
        let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
        output.extend(&piece[..read]);
        let surplus = output.len().saturating_sub(MAX_OUTPUT);
        output.drain(..surplus);
    }
}
