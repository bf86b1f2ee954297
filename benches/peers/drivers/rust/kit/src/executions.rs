//! The file of executions: a line `ID MICROSECONDS` for each start of a handler, by the clock of the machine.

use std::fs::OpenOptions;
use std::io::Write;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Time for which lines are collected before they are written.
const COLLECT: Duration = Duration::from_millis(5);

static LINES: OnceLock<Mutex<Vec<u8>>> = OnceLock::new();

/// Record that the handler of this job runs now.
pub fn ran(id: u64) {
    let at_us = now_us();
    let lines = LINES.get_or_init(|| {
        thread::spawn(write);
        Mutex::default()
    });
    // A write to memory cannot fail.
    let _ = writeln!(lines.lock().unwrap_or_else(PoisonError::into_inner), "{id} {at_us}");
}

pub(crate) fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Append the collected lines to the file, for as long as the process lives. A file that cannot be written ends it,
/// because its jobs would count as lost.
fn write() {
    let opened = crate::variable("PEER_EXECUTIONS")
        .and_then(|path| Ok(OpenOptions::new().create(true).append(true).open(path)?));
    let mut file = opened.unwrap_or_else(|error| fail(&error));
    loop {
        thread::sleep(COLLECT);
        let Some(lines) = LINES.get() else { continue };
        let lines = std::mem::take(&mut *lines.lock().unwrap_or_else(PoisonError::into_inner));
        file.write_all(&lines).unwrap_or_else(|error| fail(&error.into()));
    }
}

fn fail(error: &crate::Error) -> ! {
    eprintln!("the file of executions cannot be written: {error}");
    std::process::exit(1)
}
