//! Processor time and memory of a process. Linux only, from `/proc`.

use std::path::PathBuf;
use std::time::Duration;

/// Ticks per second in `/proc/*/stat`. This is USER_HZ, which is 100 on every architecture that runs Linux servers.
const TICKS_PER_SECOND: u64 = 100;

/// A process of this machine.
#[derive(Clone, Debug)]
pub(super) struct Process {
    folder: PathBuf,
}

impl Process {
    /// Find the process with this id. `None` where there is no `/proc`.
    pub(super) fn find(pid: u32) -> Option<Self> {
        let folder = PathBuf::from(format!("/proc/{pid}"));
        folder.join("stat").exists().then_some(Self { folder })
    }

    /// Processor time so far, in the program and in the kernel.
    pub(super) fn cpu(&self) -> Option<Duration> {
        cpu_of(&std::fs::read_to_string(self.folder.join("stat")).ok()?)
    }

    /// Resident memory in bytes.
    pub(super) fn resident_bytes(&self) -> Option<u64> {
        resident_of(&std::fs::read_to_string(self.folder.join("status")).ok()?)
    }
}

fn cpu_of(stat: &str) -> Option<Duration> {
    // The second field is the name in parentheses, which may contain any characters.
    let mut words = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let (user, system): (u64, u64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some(Duration::from_millis((user + system) * 1_000 / TICKS_PER_SECOND))
}

fn resident_of(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_and_memory_are_read_from_the_right_places() {
        let stat =
            "42 (a (b) c) S 1 42 42 0 -1 4194304 100 0 0 0 150 25 0 0 20 0 4 0 12345 1000000 2000 18446744073709551615";
        assert_eq!(cpu_of(stat), Some(Duration::from_millis(1_750)));
        assert_eq!(resident_of("Name:\ttickr\nVmRSS:\t   20480 kB\nThreads:\t4\n"), Some(20 << 20));
        assert_eq!((cpu_of("nonsense"), resident_of("nonsense")), (None, None));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_used_memory() {
        let own = Process::find(std::process::id()).unwrap();
        assert!(own.cpu().is_some() && own.resident_bytes().unwrap() > 1 << 20);
    }
}
