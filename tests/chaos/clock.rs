//! The wall clock of one process, which a fault can set while the process runs. Other processes keep their own wall
//! clock, and all monotonic clocks stay as they are.

use std::path::{Path, PathBuf};

use tokio::process::Command;

/// The clock. Processes read it from a file, again every second.
pub(crate) struct Clock {
    pub(crate) file: PathBuf,
}

impl Clock {
    /// Make the clock wrong by this many seconds.
    pub(crate) fn turn(&self, seconds: i64) -> std::io::Result<()> {
        // The rename keeps a process from reading a half-written file.
        let aside = self.file.with_extension("new");
        std::fs::write(&aside, format!("{seconds:+}\n"))?;
        std::fs::rename(aside, &self.file)
    }

    /// Return the environment variables for a process that has to use this clock.
    pub(crate) fn environment(&self, library: &Path) -> Vec<(&'static str, PathBuf)> {
        vec![
            ("LD_PRELOAD", library.to_owned()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.clone()),
            ("FAKETIME_CACHE_DURATION", "1".into()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
            // This correction is for an old glibc. With a newer one, every timed wait of MySQL ends at once: its threads
            // look for work all the time and take all cores.
            ("FAKETIME_FORCE_MONOTONIC_FIX", "0".into()),
            // Shared memory would stay behind when a process is killed.
            ("FAKETIME_DISABLE_SHM", "1".into()),
        ]
    }
}

/// Return the path of libfaketime, if the system has it. Without it the run changes no clock.
pub(crate) async fn faketime() -> Option<PathBuf> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("internal/services/install.sh");
    let output = Command::new("sh").arg(script).arg("--faketime").output().await.ok()?;
    output.status.success().then(|| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
}
