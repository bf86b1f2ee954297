//! SIGTERM, SIGINT and SIGHUP, received through signal-hook.

use futures_util::StreamExt;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::Supervisor;

/// The signals that tell the process to stop, or to read its configuration again. Registered early, so that a signal
/// during the start is not lost.
pub struct Signals {
    stream: signal_hook_tokio::Signals,
    /// SIGHUP asks for the configuration to be read again.
    hangup_reloads: bool,
}

/// Request of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Stop. The text is the name of the signal.
    Stop(&'static str),
    /// Read the configuration again.
    Reload,
}

impl std::fmt::Debug for Signals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Signals")
    }
}

impl Signals {
    /// Start to listen. SIGHUP stops the process, unless it was ignored at the start. Must be called within a Tokio
    /// runtime.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn register() -> std::io::Result<Self> {
        let hangup = (!is_hangup_ignored()).then_some(SIGHUP);
        Self::listen(hangup, false)
    }

    /// Start to listen as [`register`](Self::register) does, in a process of this supervisor. If the supervisor started
    /// it and hears from it, SIGHUP asks for the configuration to be read again: such a process has no terminal that it
    /// could lose.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    pub fn register_under(supervisor: &Supervisor) -> std::io::Result<Self> {
        if supervisor.reloads() { Self::listen(Some(SIGHUP), true) } else { Self::register() }
    }

    fn listen(hangup: Option<i32>, hangup_reloads: bool) -> std::io::Result<Self> {
        let stream = signal_hook_tokio::Signals::new([SIGTERM, SIGINT].into_iter().chain(hangup))?;
        Ok(Self { stream, hangup_reloads })
    }

    /// Wait for the next signal that tells the process to stop, and return its name. Requests to read the configuration
    /// again are left out: during a start or a stop no part of it could follow.
    pub async fn next(&mut self) -> &'static str {
        loop {
            match self.receive().await {
                Signal::Stop(name) => return name,
                Signal::Reload => {
                    tracing::warn!("SIGHUP during the start or the stop: the configuration is not read again");
                }
            }
        }
    }

    /// Wait for the next signal.
    pub async fn receive(&mut self) -> Signal {
        match self.stream.next().await {
            Some(SIGINT) => Signal::Stop("SIGINT"),
            Some(SIGHUP) if self.hangup_reloads => Signal::Reload,
            Some(SIGHUP) => Signal::Stop("SIGHUP"),
            Some(_) => Signal::Stop("SIGTERM"),
            // The stream ends only when its handle is closed, and no code closes it.
            None => std::future::pending().await,
        }
    }
}

/// Return whether this process was started with SIGHUP ignored, as `nohup` does, so that it outlives its terminal. On a
/// system that does not tell, leave SIGHUP as it is.
fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_none_or(|mask| mask & (1 << (SIGHUP - 1)) != 0)
}
