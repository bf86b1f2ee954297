//! Ids. The client side of the store makes all of them before the write that uses them. A write whose response was lost
//! can then be repeated without effect.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Timestamp;

/// The id of a job: a UUIDv7, so that ids sort by creation time and inserts append to the primary key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(Uuid);

impl JobId {
    /// Return a new id that sorts after all earlier ids of this process.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "every call gives another id, which Default does not suggest")]
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }

    /// Wrap a UUID read from the store.
    #[must_use]
    pub const fn from_uuid(uuid: Uuid) -> Self {
        Self(uuid)
    }

    /// Return the plain UUID, for the store and the wire.
    #[must_use]
    pub const fn uuid(self) -> Uuid {
        self.0
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl FromStr for JobId {
    type Err = uuid::Error;

    /// Parse only the hyphenated form that tickr itself prints, so that one job has one URL.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.parse::<uuid::fmt::Hyphenated>()?.into_uuid()))
    }
}

/// The id of a batch: a UUIDv7, so that ids sort by creation time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BatchId(Uuid);

impl BatchId {
    /// Return a new id that sorts after all earlier ids of this process.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "every call gives another id, which Default does not suggest")]
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }

    /// Wrap a UUID read from the store.
    #[must_use]
    pub const fn from_uuid(uuid: Uuid) -> Self {
        Self(uuid)
    }

    /// Return the plain UUID, for the store and the wire.
    #[must_use]
    pub const fn uuid(self) -> Uuid {
        self.0
    }
}

impl fmt::Display for BatchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl FromStr for BatchId {
    type Err = uuid::Error;

    /// Parse only the hyphenated form that tickr itself prints, so that one batch has one URL.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.parse::<uuid::fmt::Hyphenated>()?.into_uuid()))
    }
}

/// Return the smallest job id of a moment, by the clock of the process that makes ids. A scan of ids by age begins or
/// ends here.
#[must_use]
pub fn first_id_of(moment: Timestamp) -> Uuid {
    let ms = u128::try_from(moment.timestamp_millis()).unwrap_or(0);
    Uuid::from_u128(ms << 80)
}

/// Return the moment of an id, by the clock of the process that made it.
#[must_use]
pub fn moment_of_id(id: Uuid) -> Option<Timestamp> {
    Timestamp::from_timestamp_millis(i64::try_from(id.as_u128() >> 80).ok()?)
}

/// The right to write about one executing job. The store accepts a verdict only with the token that its claim wrote.
/// Tokens are random and never reused. Handlers may pass the token on, as a fencing token, to the systems they change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AttemptToken(Uuid);

impl AttemptToken {
    /// Return a token that was never used before.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "every call gives another token, which Default does not suggest")]
    pub fn new() -> Self {
        Self(Uuid::new_v4())
    }

    /// Wrap a UUID read from the store.
    #[must_use]
    pub const fn from_uuid(uuid: Uuid) -> Self {
        Self(uuid)
    }

    /// Return the plain UUID, for the store and the wire.
    #[must_use]
    pub const fn uuid(self) -> Uuid {
        self.0
    }
}

impl fmt::Display for AttemptToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

/// The id of one tickr process, from its start to its end: `host/pid-xxxxxxxx`. It is readable, because every attempt
/// shows it. It is unique, so that a restarted process is not mistaken for the one that died.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunnerId(String);

impl RunnerId {
    /// Longest form, in bytes; the column has this width.
    pub const MAX_LEN: usize = 32;

    /// Make an id for this process on `host`.
    #[must_use]
    pub fn new_for_host(host: &str) -> Self {
        let legal = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        let host: Vec<char> = host.chars().filter(legal).collect();
        // The end of a host name distinguishes the pods of one deployment; the beginning does not.
        let host: String = host[host.len().saturating_sub(15)..].iter().collect();
        let host = if host.is_empty() { "runner".to_owned() } else { host };
        let nonce = Uuid::new_v4().simple().to_string();
        Self(format!("{host}/{}-{}", std::process::id(), &nonce[..8]))
    }

    /// Make an id for a remote worker with this name: `name.w-xxxxxxxxxxxx`. It has no `/`, because it is part of a path.
    #[must_use]
    pub fn new_for_worker(name: &str) -> Self {
        let legal = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        let name: String = name.chars().filter(legal).take(15).collect();
        let name = if name.is_empty() { "worker".to_owned() } else { name };
        let nonce = Uuid::new_v4().simple().to_string();
        Self(format!("{name}.w-{}", &nonce[..12]))
    }

    /// Wrap a stored runner id, unchecked.
    #[must_use]
    pub fn from_stored(text: String) -> Self {
        Self(text)
    }

    /// Return the id as the tables store it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RunnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_one_process_ascend() {
        let ids: Vec<JobId> = (0..1_000).map(|_| JobId::new()).collect();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn ids_made_later_are_larger_than_the_first_id_of_a_moment() {
        let before = first_id_of(chrono::Utc::now());
        let id = JobId::new().uuid();
        assert!(before < id);
        assert!(chrono::Utc::now() - moment_of_id(id).unwrap() < chrono::TimeDelta::seconds(2));
        assert!(id < first_id_of(chrono::Utc::now() + chrono::TimeDelta::seconds(2)));
    }

    #[test]
    fn only_the_hyphenated_form_is_an_id() {
        let id = JobId::new();
        assert_eq!(id.to_string().parse::<JobId>().unwrap(), id);
        assert!(id.uuid().simple().to_string().parse::<JobId>().is_err());
        assert!("../../etc/passwd".parse::<JobId>().is_err());
    }

    #[test]
    fn runner_ids_fit_their_column_and_differ() {
        let (a, b) = (RunnerId::new_for_host(&"häßlich host".repeat(20)), RunnerId::new_for_host(""));
        assert!(a.as_str().len() <= RunnerId::MAX_LEN && a.as_str().is_ascii());
        assert_ne!(RunnerId::new_for_host("web1"), RunnerId::new_for_host("web1"));
        assert!(b.as_str().starts_with("runner/"));
        let worker = RunnerId::new_for_worker("ein sehr langer/Name ä");
        assert!(worker.as_str().starts_with("einsehrlangerNa.w-") && worker.as_str().len() <= RunnerId::MAX_LEN);
    }
}
