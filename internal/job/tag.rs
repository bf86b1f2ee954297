//! Tags: words that a client attaches to a job to find it again.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A tag: 1 to 64 of `A-Z a-z 0-9 _ . : / @ = + -`. Compared as bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Tag(String);

/// The error for a text that is not a [`Tag`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a tag is 1 to 64 of A-Z a-z 0-9 _ . : / @ = + -")]
pub struct InvalidTag;

impl Tag {
    /// Longest tag, in bytes; the column has this width.
    pub const MAX_LEN: usize = 64;

    /// Return the tag as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Tag {
    type Err = InvalidTag;

    fn from_str(text: &str) -> Result<Self, InvalidTag> {
        let legal = |b: u8| b.is_ascii_alphanumeric() || b"_.:/@=+-".contains(&b);
        if (1..=Self::MAX_LEN).contains(&text.len()) && text.bytes().all(legal) {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidTag)
        }
    }
}

impl TryFrom<String> for Tag {
    type Error = InvalidTag;

    fn try_from(text: String) -> Result<Self, InvalidTag> {
        text.parse()
    }
}

impl From<Tag> for String {
    fn from(tag: Tag) -> Self {
        tag.0
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_short_and_printable() {
        for good in ["a", "tenant:42", "deploy/2026-11-01", "x=1", "user@example.com", &"x".repeat(64)] {
            assert!(good.parse::<Tag>().is_ok(), "{good}");
        }
        for bad in ["", " ", "a b", "ä", "a\n", "a\"b", "a'b", "a,b", &"x".repeat(65)] {
            assert!(bad.parse::<Tag>().is_err(), "{bad:?}");
        }
    }
}
