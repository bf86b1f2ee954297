//! The wall clock of one runner, which can be turned while it works. Others keep theirs, and nobody's monotonic clock moves.

use std::path::{Path, PathBuf};

use tokio::process::Command;

/// The clock. Processes read it from a file, again every second.
pub(crate) struct Clock {
    pub(crate) file: PathBuf,
}

impl Clock {
    /// Let it be wrong by this many seconds.
    pub(crate) fn turn(&self, seconds: i64) -> std::io::Result<()> {
        // Never seen half written.
        let aside = self.file.with_extension("new");
        std::fs::write(&aside, format!("{seconds:+}\n"))?;
        std::fs::rename(aside, &self.file)
    }

    /// What a process is started with that lives by it.
    pub(crate) fn environment(&self, library: &Path) -> Vec<(&'static str, PathBuf)> {
        vec![
            ("LD_PRELOAD", library.to_owned()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.clone()),
            ("FAKETIME_CACHE_DURATION", "1".into()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
            // Shared memory would outlive a process that is killed.
            ("FAKETIME_DISABLE_SHM", "1".into()),
        ]
    }
}

/// The library that turns clocks, where there is one. Without it no clock is turned.
pub(crate) async fn faketime() -> Option<PathBuf> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("internal/services/install.sh");
    let output = Command::new("sh").arg(script).arg("--faketime").output().await.ok()?;
    output.status.success().then(|| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
}
