//! Names of queues and kinds.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The name of a queue or of a kind: 1 to 64 of `a-z 0-9 _ . -`, beginning with a letter or digit.
///
/// Both use one alphabet, without upper case, spaces and colons, because MySQL compares names as bytes, Redis keys
/// contain them, and operators type them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(Arc<str>);

/// The error for a text that is not a [`Name`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a name is 1 to 64 of a-z 0-9 _ . - and begins with a letter or digit")]
pub struct InvalidName;

impl Name {
    /// Longest name, in bytes; the columns have this width.
    pub const MAX_LEN: usize = 64;

    /// Return the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let bytes = text.as_bytes();
        let legal = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'.' | b'-');
        let starts_well = bytes.first().is_some_and(u8::is_ascii_alphanumeric);
        if starts_well && bytes.len() <= Self::MAX_LEN && bytes.iter().all(legal) {
            Ok(Self(text.into()))
        } else {
            Err(InvalidName)
        }
    }
}

impl TryFrom<String> for Name {
    type Error = InvalidName;

    fn try_from(text: String) -> Result<Self, InvalidName> {
        text.parse()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0.as_ref().to_owned()
    }
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_plain_and_lower_case() {
        for good in ["default", "a", "9", "mail.high", "report_2-b", &"x".repeat(64)] {
            assert!(good.parse::<Name>().is_ok(), "{good}");
        }
        for bad in ["", "Default", "-a", ".a", "a b", "a:b", "a/b", "ä", "a\n", &"x".repeat(65)] {
            assert!(bad.parse::<Name>().is_err(), "{bad:?}");
        }
    }
}
