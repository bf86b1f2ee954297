//! The wall clock of one process, which a fault can set while the process runs. Other processes keep their own wall
//! clock, and all monotonic clocks stay as they are.

use std::path::{Path, PathBuf};

use tokio::process::Command;

/// The clock. Processes read it from a file, again every second.
pub(crate) struct Clock {
    file: PathBuf,
}

impl Clock {
    /// Make a clock with this file, which [`turn`](Self::turn) writes.
    pub(crate) fn new(file: PathBuf) -> Self {
        Self { file }
    }

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
            // Shared memory would stay behind when a process is killed. Version 0.9.10 does not know this word.
            ("FAKETIME_DISABLE_SHM", "1".into()),
        ]
    }
}

/// Drop the clock after the processes that use it.
impl Drop for Clock {
    fn drop(&mut self) {
        remove_leftovers();
    }
}

/// Remove the shared memory of libfaketime that processes have left. A process that ends by itself removes its own, and
/// one that is killed does not. That of living processes stays. The age does not matter: a process takes over what an
/// earlier one with its id has left.
pub(crate) fn remove_leftovers() {
    let Ok(objects) = std::fs::read_dir("/dev/shm") else { return };
    for object in objects.flatten() {
        let name = object.file_name();
        let name = name.to_string_lossy();
        let of = ["faketime_shm_", "sem.faketime_sem_"].into_iter().find_map(|begin| name.strip_prefix(begin));
        let Some(pid) = of.and_then(|pid| pid.parse::<u32>().ok()) else { continue };
        if !Path::new(&format!("/proc/{pid}")).exists() {
            let _ = std::fs::remove_file(object.path());
        }
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
