//! Waiting for states without an event of the operating system: processes, sockets and locks of other processes.

use std::thread;
use std::time::{Duration, Instant};

/// Call `question` until it returns an answer or `limit` is over. It is called at least once.
pub(super) fn poll<T>(limit: Duration, mut question: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(answer) = question() {
            return Some(answer);
        }
        if Instant::now() >= deadline {
            return None;
        }
        thread::sleep(Duration::from_millis(5));
    }
}
