//! Editions: fingerprints of payload types. Binaries with the same edition can read what the others enqueue.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{JobOptions, Name, RetryPolicy};

/// A digest of a type's JSON Schema and of the version of tickr, shown as 16 hex digits. Two binaries with the same
/// edition have the same type. With different editions they may still read the same payloads, because a changed comment
/// changes the digest too.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Edition(u64);

/// The error for a text that is not an [`Edition`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an edition is 16 hex digits in lower case")]
pub struct InvalidEdition;

impl Edition {
    /// Return the edition of a payload type with this JSON Schema.
    #[must_use]
    pub fn from_schema(schema: &Value) -> Self {
        Self::digest(&schema.to_string())
    }

    /// Return the edition of the options that a job may have beside its payload.
    ///
    /// Every field that a binary without it refuses must have a value here, so that the edition changes with the field:
    /// those of [`RetryPolicy`]. A binary ignores a field of [`JobOptions`] that it does not know.
    #[must_use]
    pub fn for_options() -> Self {
        let retry = RetryPolicy { delays_ms: vec![1], ..RetryPolicy::default() };
        let every = JobOptions { timeout_ms: Some(1), retry: Some(retry), ..JobOptions::default() };
        Self::digest(&serde_json::to_string(&every).unwrap_or_default())
    }

    /// Return the edition that could not read a job. The error of its attempt names it at the end: `[edition …]`.
    #[must_use]
    pub fn named_in(error: &str) -> Option<Self> {
        error.rsplit_once("[edition ")?.1.strip_suffix(']')?.parse().ok()
    }

    fn digest(text: &str) -> Self {
        let digest = Sha256::digest(format!("{}\n{text}", env!("CARGO_PKG_VERSION")).as_bytes());
        Self(u64::from_be_bytes(std::array::from_fn(|at| digest[at])))
    }
}

impl fmt::Display for Edition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for Edition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Edition {
    type Err = InvalidEdition;

    fn from_str(text: &str) -> Result<Self, InvalidEdition> {
        let digits = text.len() == 16 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        u64::from_str_radix(text, 16).ok().filter(|_| digits).map(Self).ok_or(InvalidEdition)
    }
}

impl TryFrom<String> for Edition {
    type Error = InvalidEdition;

    fn try_from(text: String) -> Result<Self, InvalidEdition> {
        text.parse()
    }
}

impl From<Edition> for String {
    fn from(edition: Edition) -> Self {
        edition.to_string()
    }
}

/// The editions of one binary, as its row in `runners` publishes them to other runners.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Editions {
    /// Edition of the job options.
    pub options: Edition,
    /// Edition of each payload type, by kind.
    pub kinds: BTreeMap<Name, Edition>,
}

impl Editions {
    /// Return whether a binary with these editions may be able to read a job of this kind that the editions in `refused`
    /// could not read.
    #[must_use]
    pub fn may_read(&self, kind: &Name, refused: &BTreeSet<Edition>) -> bool {
        !refused.contains(&self.options) && self.kinds.get(kind).is_none_or(|edition| !refused.contains(edition))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn another_field_is_another_edition() {
        let (one, two) = (json!({"properties": {"a": {}}}), json!({"properties": {"a": {}, "b": {}}}));
        assert_eq!(Edition::from_schema(&one), Edition::from_schema(&one.clone()));
        assert_ne!(Edition::from_schema(&one), Edition::from_schema(&two));
        assert_ne!(Edition::for_options(), Edition::from_schema(&one));
    }

    #[test]
    fn an_error_names_the_edition_that_could_not_read() {
        let one = Edition::from_schema(&json!("one"));
        assert_eq!(Edition::named_in(&format!("read the payload as mail: [edition x] [edition {one}]")), Some(one));
        for other in ["", "[edition ]", "[edition 12]", &format!("[edition {one}] and more")] {
            assert_eq!(Edition::named_in(other), None, "{other}");
        }
    }

    #[test]
    fn only_editions_that_have_not_refused_a_job_may_read_it() {
        let [one, two] = ["one", "two"].map(|text| Edition::from_schema(&json!(text)));
        let mail: Name = "mail".parse().unwrap();
        let editions = Editions { options: one, kinds: BTreeMap::from([(mail.clone(), two)]) };
        assert!(editions.may_read(&mail, &BTreeSet::new()));
        assert!(!editions.may_read(&mail, &BTreeSet::from([one])));
        assert!(!editions.may_read(&mail, &BTreeSet::from([two])));
        // Nothing is known about the version of a declared kind.
        assert!(editions.may_read(&"push".parse().unwrap(), &BTreeSet::from([two])));
    }

    #[test]
    fn editions_travel_as_hex_digits() {
        let edition = Edition::from_schema(&json!({}));
        assert_eq!(edition.to_string().parse(), Ok(edition));
        for bad in ["", "x", "0123456789ABCDEF", "+123456789abcdef", "0123456789abcde"] {
            assert_eq!(bad.parse::<Edition>(), Err(InvalidEdition), "{bad}");
        }
        let editions = Editions { options: edition, kinds: BTreeMap::from([("mail".parse().unwrap(), edition)]) };
        let text = serde_json::to_string(&editions).unwrap();
        assert_eq!(serde_json::from_str::<Editions>(&text).unwrap(), editions);
    }
}
