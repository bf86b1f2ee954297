//! Panics in the code of a kind: in its payload type, its check or its handler. A panic ends the attempt or the request
//! that called the code, and nothing else.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tickr_job::Name;
use tickr_telemetry::without_panic_messages;

/// Longest panic message that is kept, in bytes.
const MESSAGE_BYTES: usize = 500;

/// Error: the code of a kind panicked while it checked a payload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the code of the kind {kind} panicked while it checked the payload")]
pub struct Panicked {
    /// The kind.
    pub kind: Name,
    /// Message of the panic. It may quote the payload, so it may be shown to operators and stored with the attempt, but
    /// not logged.
    pub message: String,
}

/// Call code of a kind. Turn a panic into an error with its message, which is not logged.
pub(super) fn caught<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    // `AssertUnwindSafe` is right here. A panicking call may leave the kind's own state half changed, but a handler that
    // panics in its own task leaves the same state to the next call.
    catch_unwind(AssertUnwindSafe(|| without_panic_messages(call))).map_err(panic_message)
}

/// The message of a panic, cut to a length that can be stored.
#[must_use]
pub fn panic_message(payload: Box<dyn Any + Send>) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let Some(mut text) = text.or_else(|| payload.downcast_ref::<String>().cloned()) else {
        // The payload is a value of the kind's own type. Its drop would run the kind's code again, so the value is
        // leaked. Such panics are rare.
        std::mem::forget(payload);
        return "without a message".to_owned();
    };
    if text.len() > MESSAGE_BYTES {
        text.truncate(text.floor_char_boundary(MESSAGE_BYTES));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Spiteful;

    impl Drop for Spiteful {
        fn drop(&mut self) {
            panic!("once more");
        }
    }

    #[test]
    fn a_panic_ends_as_its_message() {
        assert_eq!(caught(|| 7), Ok(7));
        assert_eq!(caught(|| panic!("plain")), Err::<(), _>("plain".to_owned()));
        assert_eq!(caught(|| panic!("{}", 7)), Err::<(), _>("7".to_owned()));
        let long = caught(|| panic!("{}", "ü".repeat(1_000))).map(|()| "").unwrap_err();
        assert!(long.len() < 510 && long.ends_with("ü…"), "{long}");
        assert_eq!(caught(|| std::panic::panic_any(Spiteful)), Err::<(), _>("without a message".to_owned()));
    }
}
