//! Names of queues and kinds.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::{Arc, PoisonError, RwLock};

use serde::{Deserialize, Serialize};

/// The name of a queue or of a kind: 1 to 64 of `a-z 0-9 _ . -`, beginning with a letter or digit.
///
/// Both use one alphabet, without upper case, spaces and colons, because MySQL compares names as bytes, Redis keys
/// contain them, and operators type them.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(Text);

#[derive(Clone)]
enum Text {
    Shared(Arc<str>),
    /// A text of [`FIXED`].
    Fixed(&'static str),
}

/// The texts of [`Name::fixed`]. They stay until the process ends.
static FIXED: RwLock<BTreeSet<&'static str>> = RwLock::new(BTreeSet::new());

/// Most texts that stay.
const MAX_FIXED: usize = 1_024;

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
        match &self.0 {
            Text::Shared(text) => text,
            Text::Fixed(text) => text,
        }
    }

    /// Return the same name with a text that stays until the process ends. For the kinds and the queues of a runner:
    /// each job clones their names a dozen times, and all workers would count the clones in one place. Beyond 1,024
    /// names a text stays only as long as its clones.
    #[must_use]
    pub fn fixed(self) -> Self {
        let mut fixed = FIXED.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = fixed.get(self.as_str()).copied() {
            return Self(Text::Fixed(text));
        }
        if fixed.len() >= MAX_FIXED {
            return self;
        }
        let text: Box<str> = self.as_str().into();
        let text: &'static str = Box::leak(text);
        fixed.insert(text);
        Self(Text::Fixed(text))
    }

    /// Return the same name with the text of [`fixed`](Self::fixed), if it has one.
    #[must_use]
    pub fn fixed_if_known(self) -> Self {
        let fixed = FIXED.read().unwrap_or_else(PoisonError::into_inner);
        let text = fixed.get(self.as_str()).copied();
        text.map_or(self, |text| Self(Text::Fixed(text)))
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Name {}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Name {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

/// The hash of the text, by which maps find the name.
impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl FromStr for Name {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let bytes = text.as_bytes();
        let legal = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'.' | b'-');
        let starts_well = bytes.first().is_some_and(u8::is_ascii_alphanumeric);
        if starts_well && bytes.len() <= Self::MAX_LEN && bytes.iter().all(legal) {
            Ok(Self(Text::Shared(text.into())))
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
        name.as_str().to_owned()
    }
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
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

    #[test]
    fn a_name_with_a_text_that_stays_equals_one_without() {
        let parsed = || "the.name.of-a_test".parse::<Name>().unwrap();
        assert!(matches!(parsed().fixed_if_known().0, Text::Shared(_)));
        let (shared, fixed) = (parsed(), parsed().fixed());
        assert!(matches!(fixed.0, Text::Fixed(_)) && matches!(parsed().fixed_if_known().0, Text::Fixed(_)));
        assert_eq!((fixed.as_str().as_ptr(), &fixed), (parsed().fixed().as_str().as_ptr(), &shared));
        assert_eq!(fixed.cmp(&shared), Ordering::Equal);
        let names = std::collections::HashMap::from([(fixed.clone(), 1), ("other".parse().unwrap(), 2)]);
        assert_eq!((names.get(&shared), names.get(shared.as_str())), (Some(&1), Some(&1)));
        assert_eq!(serde_json::to_string(&fixed).unwrap(), serde_json::to_string(&shared).unwrap());
        assert_eq!(format!("{fixed} {fixed:?}"), format!("{shared} {shared:?}"));
    }
}
