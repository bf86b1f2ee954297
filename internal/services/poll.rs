//! Waiting for what the operating system gives no event for: processes, sockets and locks of others.

use std::thread;
use std::time::{Duration, Instant};

/// Asks until `question` has an answer or `limit` is over. The question is asked at least once.
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
