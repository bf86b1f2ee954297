//! SIGTERM and SIGINT, through signal-hook.

use futures_util::StreamExt;
use signal_hook::consts::{SIGINT, SIGTERM};

/// The signals that ask the process to stop. Registered early, so that a signal during the start is not lost.
pub struct Signals {
    stream: signal_hook_tokio::Signals,
}

impl std::fmt::Debug for Signals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Signals")
    }
}

impl Signals {
    /// Listen from now on. Must be called within a runtime.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn register() -> std::io::Result<Self> {
        Ok(Self { stream: signal_hook_tokio::Signals::new([SIGTERM, SIGINT])? })
    }

    /// The name of the next signal.
    pub async fn next(&mut self) -> &'static str {
        match self.stream.next().await {
            Some(SIGINT) => "SIGINT",
            Some(_) => "SIGTERM",
            // The stream ends only when its handle is closed, which nobody does.
            None => std::future::pending().await,
        }
    }
}
