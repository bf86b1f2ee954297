//! SIGTERM, SIGINT and SIGHUP, received through signal-hook.

use futures_util::StreamExt;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The signals that tell the process to stop. Registered early, so that a signal during the start is not lost.
pub struct Signals {
    stream: signal_hook_tokio::Signals,
}

impl std::fmt::Debug for Signals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Signals")
    }
}

impl Signals {
    /// Start to listen. Must be called within a Tokio runtime.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn register() -> std::io::Result<Self> {
        let hangup = (!is_hangup_ignored()).then_some(SIGHUP);
        Ok(Self { stream: signal_hook_tokio::Signals::new([SIGTERM, SIGINT].into_iter().chain(hangup))? })
    }

    /// Wait for the next signal and return its name.
    pub async fn next(&mut self) -> &'static str {
        match self.stream.next().await {
            Some(SIGINT) => "SIGINT",
            Some(SIGHUP) => "SIGHUP",
            Some(_) => "SIGTERM",
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
