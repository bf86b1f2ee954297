//! The job filter: the one form that listings, counts and bulk operations share.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{BatchId, DeadLetterStatus, Fingerprint, JobId, Name, State, Tag, Timestamp};

/// Conditions that select jobs. A job matches if all given conditions hold; an empty filter matches every job.
///
/// A bulk operation stores its filter as this JSON, so the field names must not change.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Filter {
    /// Only the jobs with these ids, at most [`Filter::MAX_IDS`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<JobId>,
    /// Only jobs in this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// Only jobs of this kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<Name>,
    /// Only jobs of this queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<Name>,
    /// Only jobs accepted at this moment or later, by the store's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_after: Option<Timestamp>,
    /// Only jobs accepted before this moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_before: Option<Timestamp>,
    /// Only jobs due at this moment or later. For an ended job, the due time of its last attempt counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due_after: Option<Timestamp>,
    /// Only jobs due before this moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due_before: Option<Timestamp>,
    /// Only jobs that ended at this moment or later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_after: Option<Timestamp>,
    /// Only jobs that ended before this moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_before: Option<Timestamp>,
    /// Only jobs that this schedule created, by a tick or a trigger. Works while the record of that tick is retained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<Name>,
    /// Only jobs with this unique key, compared byte for byte.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unique_key: Option<String>,
    /// Only jobs with this order key, compared byte for byte.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order_key: Option<String>,
    /// Only jobs with this limit key, compared byte for byte.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_key: Option<String>,
    /// Only jobs that this batch counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<BatchId>,
    /// Only jobs that call this host, compared byte for byte.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Only jobs with all of these tags.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<Tag>,
    /// Only jobs whose last unsuccessful attempt has this text in its error. Case is ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Only failed jobs of this group of dead letters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<Fingerprint>,
    /// Only jobs whose dead letter has this status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letter: Option<DeadLetterStatus>,
    /// Only jobs that this bulk operation made, by replays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<Uuid>,
    /// Only jobs whose payload has these values at these paths.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub payload: BTreeMap<PayloadPath, Wanted>,
    /// Only jobs that have each of these texts in the error of the last unsuccessful attempt, in a key, in the host or
    /// in the id, or as the kind, the queue or a tag.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub texts: Vec<String>,
    /// Only jobs that used at least this number of attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt_from: Option<u32>,
    /// Only jobs that used at most this number of attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt_to: Option<u32>,
    /// Only jobs whose newest attempt is on a runner with an id that begins like this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runner: Option<String>,
    /// Only jobs whose newest ended attempt took at least this long, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub took_from_ms: Option<u64>,
    /// Only jobs whose newest ended attempt took less than this, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub took_below_ms: Option<u64>,
    /// Only jobs for which each of these choices holds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<Choice>,
}

/// Conditions of which at least one must hold, or, with `not`, of which none may hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choice {
    /// True if the job must meet none of the conditions.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub not: bool,
    /// The conditions. Each is a filter with one condition.
    pub of: Vec<Filter>,
}

impl Choice {
    /// Make the choice of the jobs that one of these batches counts.
    #[must_use]
    pub fn of_batches(batches: impl IntoIterator<Item = BatchId>) -> Self {
        let of = batches.into_iter().map(|batch| Filter { batch: Some(batch), ..Filter::default() });
        Self { not: false, of: of.collect() }
    }

    /// Return the batches of a choice of jobs that one of them counts. Nothing for any other choice.
    #[must_use]
    pub fn batches(&self) -> Option<BTreeSet<BatchId>> {
        let batches: BTreeSet<BatchId> = self.of.iter().map_while(|one| one.batch).collect();
        let is_plain = !batches.is_empty() && *self == Self::of_batches(self.of.iter().filter_map(|one| one.batch));
        is_plain.then_some(batches)
    }
}

impl Filter {
    /// Maximum number of ids in one filter.
    pub const MAX_IDS: usize = 1_000;
    /// Maximum number of tags in one filter.
    pub const MAX_TAGS: usize = 10;
    /// Maximum number of payload paths in one filter.
    pub const MAX_PATHS: usize = 5;
    /// Maximum length of the value at a payload path, in bytes.
    pub const MAX_VALUE_BYTES: usize = 2_000;
    /// Maximum length of the error text to search for, in bytes.
    pub const MAX_ERROR_BYTES: usize = 200;
    /// Maximum number of texts without a field in one filter.
    pub const MAX_TEXTS: usize = 5;
    /// Maximum length of the beginning of a runner's id, in bytes.
    pub const MAX_RUNNER_BYTES: usize = 64;
    /// Maximum number of choices in one filter.
    pub const MAX_CHOICES: usize = 20;
    /// Maximum number of conditions in one choice.
    pub const MAX_ALTERNATIVES: usize = 20;

    /// Return true if the filter matches every job.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Return the filters whose conditions this filter needs: itself, and those of its choices.
    pub fn parts(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.choices.iter().flat_map(|choice| &choice.of))
    }
}

/// A path into a payload: `user.id`, `items[0].sku`, `"odd key".x`. It has 1 to 10 steps. A quoted member may contain
/// anything but quotes, backslashes and control characters; an unquoted one may contain letters, digits, `_` and `-`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PayloadPath(Vec<PathSegment>);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PathSegment {
    Member(String),
    Element(u16),
}

/// The error for a text that is not a [`PayloadPath`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a payload path is 1 to 10 steps such as user.id, items[0].sku or \"odd key\".x, at most 200 bytes")]
pub struct InvalidPath;

impl PayloadPath {
    const MAX_STEPS: usize = 10;
    const MAX_BYTES: usize = 200;

    /// Return the path in MySQL's notation. Members are always quoted, and contain nothing that could end the quotes.
    #[must_use]
    pub fn in_mysql(&self) -> String {
        let mut path = "$".to_owned();
        for step in &self.0 {
            path.push_str(&match step {
                PathSegment::Member(name) => format!(".\"{name}\""),
                PathSegment::Element(at) => format!("[{at}]"),
            });
        }
        path
    }
}

impl FromStr for PayloadPath {
    type Err = InvalidPath;

    fn from_str(text: &str) -> Result<Self, InvalidPath> {
        if text.is_empty() || text.len() > Self::MAX_BYTES {
            return Err(InvalidPath);
        }
        let mut steps = Vec::new();
        let mut rest = text;
        loop {
            // Each round reads one member, then any number of elements, then a dot or the end.
            if let Some(quoted) = rest.strip_prefix('"') {
                let (name, after) = quoted.split_once('"').ok_or(InvalidPath)?;
                if name.is_empty() || name.chars().any(|c| c == '\\' || c.is_control()) {
                    return Err(InvalidPath);
                }
                steps.push(PathSegment::Member(name.to_owned()));
                rest = after;
            } else if !rest.starts_with('[') {
                let plain = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
                let end = rest.find(|c| !plain(c)).unwrap_or(rest.len());
                let (name, after) = rest.split_at(end);
                if name.is_empty() {
                    return Err(InvalidPath);
                }
                steps.push(PathSegment::Member(name.to_owned()));
                rest = after;
            }
            while let Some(inner) = rest.strip_prefix('[') {
                let (at, after) = inner.split_once(']').ok_or(InvalidPath)?;
                if at.is_empty() || !at.bytes().all(|b| b.is_ascii_digit()) {
                    return Err(InvalidPath);
                }
                steps.push(PathSegment::Element(at.parse().map_err(|_| InvalidPath)?));
                rest = after;
            }
            if steps.len() > Self::MAX_STEPS {
                return Err(InvalidPath);
            }
            match rest.strip_prefix('.') {
                Some(after) if !after.is_empty() && !after.starts_with('[') => rest = after,
                None if rest.is_empty() => return Ok(Self(steps)),
                _ => return Err(InvalidPath),
            }
        }
    }
}

impl fmt::Display for PayloadPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.0.iter().enumerate() {
            match step {
                PathSegment::Element(index) => write!(f, "[{index}]")?,
                PathSegment::Member(name) => {
                    let dot = if at == 0 { "" } else { "." };
                    let plain = name.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '-');
                    if plain { write!(f, "{dot}{name}")? } else { write!(f, "{dot}\"{name}\"")? }
                }
            }
        }
        Ok(())
    }
}

impl TryFrom<String> for PayloadPath {
    type Error = InvalidPath;

    fn try_from(text: String) -> Result<Self, InvalidPath> {
        text.parse()
    }
}

impl From<PayloadPath> for String {
    fn from(path: PayloadPath) -> Self {
        path.to_string()
    }
}

/// The value that a payload must have at a path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Wanted {
    /// JSON null. A missing member does not match.
    Null(()),
    /// True or false.
    Bool(bool),
    /// This number, in any notation.
    Number(serde_json::Number),
    /// This text.
    Text(String),
    /// An unquoted word: matches this text, or the number, boolean or null with this spelling.
    Word {
        /// The word.
        word: String,
    },
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_a_choice_of_batches_alone_has_batches() {
        let batches = [BatchId::from_uuid(Uuid::from_u128(1)), BatchId::from_uuid(Uuid::from_u128(2))];
        let plain = Choice::of_batches([batches[1], batches[0], batches[1]]);
        assert_eq!(plain.batches(), Some(batches.into()));
        let mut narrower = plain.clone();
        narrower.of[1].state = Some(State::Failed);
        let mut wider = plain.clone();
        wider.of.push(Filter { state: Some(State::Failed), ..Filter::default() });
        for other in [Choice { not: true, ..plain }, narrower, wider, Choice::default()] {
            assert_eq!(other.batches(), None, "{other:?}");
        }
    }

    #[test]
    fn paths_are_read_and_written() {
        for (text, mysql) in [
            ("id", r#"$."id""#),
            ("user.id", r#"$."user"."id""#),
            ("items[0].sku", r#"$."items"[0]."sku""#),
            ("a[1][2]", r#"$."a"[1][2]"#),
            ("[3].x", r#"$[3]."x""#),
            (r#""odd key".x"#, r#"$."odd key"."x""#),
            (r#""a.b""#, r#"$."a.b""#),
            (r#""') OR 1=1 -- ""#, r#"$."') OR 1=1 -- ""#),
            ("größe", r#"$."größe""#),
        ] {
            let path: PayloadPath = text.parse().unwrap();
            assert_eq!(path.in_mysql(), mysql);
            assert_eq!(path.to_string().parse::<PayloadPath>().unwrap(), path, "{text}");
        }
        let long = "a.".repeat(10) + "a";
        for bad in [
            "",
            ".",
            "a.",
            ".a",
            "a..b",
            "a b",
            "a[",
            "a[x]",
            "a[99999]",
            "a]",
            "\"a",
            "\"\"",
            "\"a\\b\"",
            "a\"b",
            "$.a",
            "a.*",
            "a[*]",
            "a.[0]",
            "a\n",
            &long,
            &"x".repeat(201),
        ] {
            assert!(bad.parse::<PayloadPath>().is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_a_path_cannot_leave_its_quotes(text in "\\PC{0,40}") {
            if let Ok(path) = text.parse::<PayloadPath>() {
                let mysql = path.in_mysql();
                prop_assert_eq!(mysql.matches('"').count() % 2, 0);
                prop_assert!(!mysql.contains('\\'));
                prop_assert_eq!(path.to_string().parse::<PayloadPath>().unwrap(), path);
            }
        }
    }

    #[test]
    fn filters_are_kept_as_json() {
        let text = r#"{"state":"failed","kind":"email","created_before":"2026-11-01T00:00:00Z","tags":["a:1"],"payload":{"user.id":42,"x":{"word":"true"},"y":null,"z":"s"}}"#;
        let filter: Filter = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&filter).unwrap(), text);
        assert_eq!(filter.payload[&"y".parse().unwrap()], Wanted::Null(()));
        assert!(Filter::default().is_empty() && !filter.is_empty());
        assert_eq!(serde_json::to_string(&Filter::default()).unwrap(), "{}");
        let text = r#"{"attempt_from":2,"choices":[{"not":true,"of":[{"kind":"email"}]},{"of":[{"queue":"a"},{"queue":"b"}]}]}"#;
        let filter: Filter = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&filter).unwrap(), text);
        assert_eq!(filter.parts().count(), 4);
    }
}
