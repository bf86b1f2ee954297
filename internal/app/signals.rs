//! SIGTERM and SIGINT, received through signal-hook.

use futures_util::StreamExt;
use signal_hook::consts::{SIGINT, SIGTERM};

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
        Ok(Self { stream: signal_hook_tokio::Signals::new([SIGTERM, SIGINT])? })
    }

    /// Wait for the next signal and return its name.
    pub async fn next(&mut self) -> &'static str {
        match self.stream.next().await {
            Some(SIGINT) => "SIGINT",
            Some(_) => "SIGTERM",
            // The stream ends only when its handle is closed, and no code closes it.
            None => std::future::pending().await,
        }
    }
}
