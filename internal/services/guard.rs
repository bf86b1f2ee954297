//! The guard processes, which make sure that no server outlives this program.
//!
//! A program that is killed with `kill -9` cannot clean up, and the ways to detect a parent's death differ between
//! systems. A pipe works everywhere: its reading end sees the end of the file when the last writer is gone, for any
//! reason. So each server runs under a small shell that holds the reading end, and stops the server at the end of the
//! file. The writing end is closed on exec, as Rust does with every file, so that no other child keeps it open by
//! accident.
//!
//! An ephemeral folder has one more shell, the sweeper. It reads from a pipe that this program and every guard hold
//! open, and removes the folder when all of them are gone.
//!
//! Guards and sweeper also hold the lock of the data folder, so that the next owner waits for a server that is still
//! stopping. They have their own process groups, so that a Ctrl-C at the terminal does not reach the servers before the
//! application has stopped.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use super::poll::poll;
use super::signal::signal;

/// `$1` is the pid file, `$2` the log, the rest is the server with its arguments. Standard input is the owner's pipe,
/// standard output the sweeper's pipe, standard error the lock. The last two are only held open, never written to.
const GUARD: &str = r#"
# A group whose owner dies while a member is stopped gets a hang-up from the kernel; the guard has work to do then.
trap '' HUP
exec 3<&0 4>&2 2>/dev/null
pid_file=$1 log=$2
shift 2
"$@" </dev/null >>"$log" 2>&1 3<&- 4>&- &
server=$!
echo "$server" >"$pid_file"
(
    while read -r _; do :; done
    nap=
    trap 'kill "$nap"; exit' TERM
    kill -TERM "$server"
    kill -CONT "$server"
    seconds=0
    while kill -0 "$server" && [ "$seconds" -lt 60 ]; do
        sleep 1 >/dev/null 4>&- &
        nap=$!
        wait "$nap"
        seconds=$((seconds + 1))
    done
    kill -KILL "$server"
) <&3 3<&- &
reader=$!
exec </dev/null 3<&-
wait "$server"
status=$?
kill "$reader"
wait "$reader"
rm -f "$pid_file"
exit "$status"
"#;

/// `$1` is the folder. Standard input is the pipe, standard error the lock.
const SWEEPER: &str = r#"
trap '' HUP
exec 4>&2 2>/dev/null
while read -r _; do :; done
rm -rf -- "$1"
"#;

/// Time limit for a killed process to disappear.
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// The guard of one running server.
#[derive(Debug)]
pub(super) struct Guard {
    shell: Child,
    pid: u32,
}

impl Guard {
    /// Start the server `command` under a guard.
    pub(super) fn spawn(
        command: &[OsString],
        pid_file: &Path,
        log: &Path,
        lock: &File,
        sweeper: Option<&Sweeper>,
    ) -> io::Result<Self> {
        match fs::remove_file(pid_file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let held = match sweeper.and_then(|sweeper| sweeper.pipe.as_ref()) {
            Some(pipe) => Stdio::from(pipe.try_clone()?),
            None => Stdio::null(),
        };
        let mut shell = Command::new("sh")
            .args(["-c", GUARD, "tickr-guard"])
            .args([pid_file, log])
            .args(command)
            .stdin(Stdio::piped())
            .stdout(held)
            .stderr(lock.try_clone()?)
            .process_group(0)
            .spawn()?;
        // The line is complete when it ends with a newline. A guard that cannot write it has ended, or has no server.
        let pid = poll(Duration::from_secs(10), || {
            let text = fs::read_to_string(pid_file).ok().filter(|text| text.ends_with('\n'));
            match text {
                Some(text) => Some(text.trim().parse().map_err(io::Error::other)),
                None if !matches!(shell.try_wait(), Ok(None)) => Some(Ok(0)),
                None => None,
            }
        });
        let pid = pid.unwrap_or_else(|| Err(io::Error::new(io::ErrorKind::TimedOut, "the guard named no process")))?;
        Ok(Self { shell, pid })
    }

    /// Return the process id of the server, not of the guard.
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Return the exit status of the server, if it has ended.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.shell.try_wait().ok().flatten()
    }

    /// Close the pipe: the guard then stops the server, gracefully if possible.
    pub(super) fn ask_to_stop(&mut self) {
        self.shell.stdin = None;
    }

    /// Send a signal to the server.
    pub(super) fn signal(&self, name: &str) -> io::Result<()> {
        signal(name, self.pid)
    }

    /// Kill the server and wait until it is gone. Return `None` if it is still there after the time limit.
    pub(super) fn kill9(&mut self) -> Option<ExitStatus> {
        // An error means that the server is already gone; the wait below confirms it.
        let _ = self.signal("KILL");
        self.wait(KILL_LIMIT)
    }

    /// Wait until the server has ended and its guard has cleaned up.
    pub(super) fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        poll(limit, || self.ended())
    }
}

/// The shell that removes an ephemeral folder once its owner and all guards are gone.
#[derive(Debug)]
pub(super) struct Sweeper {
    shell: Child,
    /// The owner's end of the pipe. Guards get copies.
    pipe: Option<OwnedFd>,
}

impl Sweeper {
    pub(super) fn spawn(dir: &Path, lock: &File) -> io::Result<Self> {
        let mut shell = Command::new("sh")
            .args(["-c", SWEEPER, "tickr-sweeper"])
            .arg(dir)
            // The sweeper must not keep the data folder, or the current folder of this process, busy.
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(lock.try_clone()?)
            .process_group(0)
            .spawn()?;
        let pipe = shell.stdin.take().map(OwnedFd::from);
        Ok(Self { shell, pipe })
    }
}

impl Drop for Sweeper {
    /// Wait for the removal, so that the folder no longer exists for the caller.
    fn drop(&mut self) {
        self.pipe = None;
        poll(Duration::from_secs(30), || self.shell.try_wait().ok().flatten());
    }
}

/// Return the command line of a server, in the order that the guard expects.
pub(super) fn command(program: PathBuf, args: Vec<OsString>) -> Vec<OsString> {
    std::iter::once(program.into_os_string()).chain(args).collect()
}
