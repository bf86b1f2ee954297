//! Who asked for something.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::RunnerId;

/// Who asked, as it stands in the audit table and beside pauses: `key:deploy`, `token:1`, `anyone`, `config`, `tickr`,
/// followed by whom the caller says it acts for, as in `key:deploy (ada@build-7)`. That part nobody has checked.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct Actor(Arc<str>);

impl Actor {
    /// Longest name of a caller's own making, in characters.
    pub const MOST_SAID: usize = 64;

    /// The holder of a key with this name.
    #[must_use]
    pub fn key(name: &str) -> Self {
        Self(format!("key:{name}").into())
    }

    /// The holder of the token at this place of the configuration's list, counted from 1.
    #[must_use]
    pub fn token(place: usize) -> Self {
        Self(format!("token:{place}").into())
    }

    /// Whoever can reach an API that asks for no token.
    #[must_use]
    pub fn anyone() -> Self {
        Self("anyone".into())
    }

    /// The configuration file.
    #[must_use]
    pub fn config() -> Self {
        Self("config".into())
    }

    /// A command that works on the servers themselves.
    #[must_use]
    pub fn command() -> Self {
        Self("command".into())
    }

    /// A runner, by a rule and not because somebody asked.
    #[must_use]
    pub fn runner(runner: &RunnerId) -> Self {
        Self(format!("runner:{runner}").into())
    }

    /// tickr itself, by a rule and not because somebody asked.
    #[must_use]
    pub fn tickr() -> Self {
        Self("tickr".into())
    }

    /// With whom the caller says it acts for: cut, and without characters that steer a terminal or turn a line around.
    #[must_use]
    pub fn acting_for(&self, said: &str) -> Self {
        let said: String = said.chars().filter(|c| !steers(*c)).take(Self::MOST_SAID).collect();
        let said = said.trim();
        if said.is_empty() { self.clone() } else { Self(format!("{} ({said})", self.0).into()) }
    }

    /// As it was stored.
    #[must_use]
    pub fn from_stored(text: String) -> Self {
        Self(text.into())
    }

    /// As text.
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

/// Does this character steer a terminal, or change the order or the lines in which a text is shown? Control characters of
/// both sets, marks of writing direction, line and paragraph separators.
#[must_use]
pub fn steers(c: char) -> bool {
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
        // Marks of direction would let one name pass for another.
        for mark in ['\u{202e}', '\u{2066}', '\u{2069}', '\u{200f}', '\u{61c}', '\u{9b}', '\u{2028}'] {
            assert_eq!(key.acting_for(&format!("a{mark}d{mark}a")), key.acting_for("ada"), "{mark:?}");
        }
        // The longest key and the longest saying fit the column.
        let longest = Actor::key(&"k".repeat(64)).acting_for(&"ä".repeat(500));
        assert!(longest.as_str().chars().count() <= 160, "{longest}");
    }
}
