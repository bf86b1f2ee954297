//! Signals to other processes.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::poll::poll;

/// Time limit for every thread of a process to stop.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// Send a signal by its name to a process. The `kill` of the shell is used, because minimal systems have no other.
///
/// After `STOP`, wait until no thread of the process runs any more: the kernel only notes the signal, and one of the
/// threads has to get a turn on a core before any of them stops. On a system without `/proc` there is no wait.
pub fn signal(name: &str, pid: u32) -> io::Result<()> {
    let output = Command::new("sh")
        .args(["-c", r#"kill -s "$1" "$2""#, "kill", name, &pid.to_string()])
        .stdin(Stdio::null())
        .output()?;
    if !output.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    if name == "STOP" && Path::new("/proc/self/task").exists() {
        let stopped = poll(STOP_LIMIT, || is_stopped(pid).then_some(()));
        return stopped.ok_or_else(|| io::Error::new(io::ErrorKind::TimedOut, "the process still runs"));
    }
    Ok(())
}

/// Return true if every thread of the process is stopped, or has ended.
fn is_stopped(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    threads.flatten().all(|thread| {
        let Ok(stat) = fs::read_to_string(thread.path().join("stat")) else { return true };
        // The state follows the name, which is in parentheses and may have any characters.
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't', 'Z', 'X']))
    })
}
