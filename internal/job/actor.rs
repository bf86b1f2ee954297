//! The author of a request or change.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::RunnerId;

/// The author of a request, as the audit table and pause records store it: `key:deploy`, `token:1`, `anyone`, `config`,
/// `tickr`. The name that the caller says it acts for may follow in parentheses, as in `key:deploy (ada@build-7)`.
/// tickr does not verify that part.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct Actor(Arc<str>);

impl Actor {
    /// Longest name that a caller may give for itself, in characters.
    pub const MAX_SAID: usize = 64;

    /// Return the actor for a client that uses the API key with this name.
    #[must_use]
    pub fn key(name: &str) -> Self {
        Self(format!("key:{name}").into())
    }

    /// Return the actor for a client that uses the token at this position of the configured list, counted from 1.
    #[must_use]
    pub fn token(place: usize) -> Self {
        Self(format!("token:{place}").into())
    }

    /// Return the actor for any client of an API that requires no token.
    #[must_use]
    pub fn anyone() -> Self {
        Self("anyone".into())
    }

    /// Return the actor for the configuration file.
    #[must_use]
    pub fn config() -> Self {
        Self("config".into())
    }

    /// Return the actor for a `tickr` command that works on the servers directly.
    #[must_use]
    pub fn command() -> Self {
        Self("command".into())
    }

    /// Return the actor for a runner that acts by a rule, without a request.
    #[must_use]
    pub fn runner(runner: &RunnerId) -> Self {
        Self(format!("runner:{runner}").into())
    }

    /// Return the actor for tickr itself, which acts by a rule, without a request.
    #[must_use]
    pub fn tickr() -> Self {
        Self("tickr".into())
    }

    /// Return this actor with the name that the caller says it acts for. The name is cut to
    /// [`MAX_SAID`](Self::MAX_SAID) characters. Characters that control a terminal or reverse the text direction are
    /// removed.
    #[must_use]
    pub fn acting_for(&self, said: &str) -> Self {
        let said: String = said.chars().filter(|c| !is_terminal_control(*c)).take(Self::MAX_SAID).collect();
        let said = said.trim();
        if said.is_empty() { self.clone() } else { Self(format!("{} ({said})", self.0).into()) }
    }

    /// Wrap a stored text, unchecked.
    #[must_use]
    pub fn from_stored(text: String) -> Self {
        Self(text.into())
    }

    /// Return the actor as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for Actor {
    fn from(text: String) -> Self {
        Self::from_stored(text)
    }
}

impl From<Actor> for String {
    fn from(actor: Actor) -> Self {
        actor.as_str().to_owned()
    }
}

/// Return true if this character controls a terminal, or changes the order or the lines in which a text is displayed:
/// control characters (C0 and C1), marks of writing direction, line and paragraph separators.
#[must_use]
pub fn is_terminal_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_caller_says_is_shown_apart_cut_and_harmless() {
        let key = Actor::key("deploy");
        assert_eq!(key.acting_for("ada@build-7").as_str(), "key:deploy (ada@build-7)");
        assert_eq!(key.acting_for(" \u{1b}[2J\n "), Actor::key("deploy").acting_for("[2J"));
        assert_eq!(key.acting_for("\n\t "), key);
        // Direction marks could make one name look like another.
        for mark in ['\u{202e}', '\u{2066}', '\u{2069}', '\u{200f}', '\u{61c}', '\u{9b}', '\u{2028}'] {
            assert_eq!(key.acting_for(&format!("a{mark}d{mark}a")), key.acting_for("ada"), "{mark:?}");
        }
        // The longest API key name with the longest caller name fits the column.
        let longest = Actor::key(&"k".repeat(64)).acting_for(&"ä".repeat(500));
        assert!(longest.as_str().chars().count() <= 160, "{longest}");
    }
}
