//! Code of a kind that panics: in its payload type, in its check, in its handler. It costs the attempt or the request that
//! called it, and nothing else.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::job::Name;

/// Longest message of a panic that is kept, in bytes.
const MESSAGE_BYTES: usize = 500;

/// The code of a kind panicked while a payload was checked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the code of the kind {kind} panicked while it checked the payload")]
pub struct Panicked {
    /// The kind.
    pub kind: Name,
    /// What the panic said. It may quote the payload: for the ledger and for operators, not for logs.
    pub message: String,
}

/// Call code of a kind; a panic in it ends here, as its message.
pub(super) fn caught<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    // What a panicking call leaves half done is the kind's own state, which its next call meets in any case: a handler
    // that panics in its task leaves the same behind.
    catch_unwind(AssertUnwindSafe(call)).map_err(panic_message)
}

/// What a panic said, cut to a length that can be kept.
#[must_use]
pub fn panic_message(payload: Box<dyn Any + Send>) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let Some(mut text) = text.or_else(|| payload.downcast_ref::<String>().cloned()) else {
        // A value of the kind's own type, whose drop would be the kind's code again. It is leaked, like few others.
        std::mem::forget(payload);
        return "without a message".to_owned();
    };
    if text.len() > MESSAGE_BYTES {
        let end = (0..=MESSAGE_BYTES).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
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
