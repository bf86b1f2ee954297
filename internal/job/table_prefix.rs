//! The prefix of the tables of one tickr.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The text before the name of every table of one tickr, so that it can share a database with other programs: 1 to
/// [`MAX_LEN`](Self::MAX_LEN) of `a-z 0-9 _`, beginning with a letter. The default is no prefix.
///
/// There is no upper case, because servers differ in whether they tell `Shop_jobs` and `shop_jobs` apart.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TablePrefix(Option<Arc<str>>);

/// The error for a text that is not a [`TablePrefix`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a table prefix is 1 to {} of a-z 0-9 _ and begins with a letter", TablePrefix::MAX_LEN)]
pub struct InvalidTablePrefix;

impl TablePrefix {
    /// Longest prefix, in bytes. MySQL allows names of 64 characters, and tables and constraints of later versions need
    /// room as well.
    pub const MAX_LEN: usize = 20;

    /// Return the prefix as text; empty if there is none.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }

    /// Return whether there is no prefix.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

impl FromStr for TablePrefix {
    type Err = InvalidTablePrefix;

    fn from_str(text: &str) -> Result<Self, InvalidTablePrefix> {
        let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
        let starts_well = text.bytes().next().is_some_and(|b| b.is_ascii_lowercase());
        if starts_well && text.len() <= Self::MAX_LEN && text.bytes().all(legal) {
            Ok(Self(Some(text.into())))
        } else {
            Err(InvalidTablePrefix)
        }
    }
}

impl fmt::Display for TablePrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for TablePrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_part_of_a_name_on_every_server() {
        for good in ["tickr_", "a", "shop2_", "a_b_c_d_e_f_g_h_i_j_"] {
            assert_eq!(good.parse::<TablePrefix>().unwrap().as_str(), good);
        }
        let long = "a".repeat(TablePrefix::MAX_LEN + 1);
        for bad in ["", "_a", "1a", "Shop_", "a-b", "a b", "a.b", "a`", "ä_", long.as_str()] {
            assert_eq!(bad.parse::<TablePrefix>(), Err(InvalidTablePrefix), "{bad}");
        }
        assert!(TablePrefix::default().is_empty() && TablePrefix::default().as_str().is_empty());
    }
}
