//! Attempts that another system finishes: a handler gives the finish key away, returns [`Output::finished_later`], and
//! the system sends the verdict to the API.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::sync::OnceCell;

use super::Failure;

/// The right to finish one attempt. Give it only to the system that does, over a connection that others cannot read.
///
/// `POST /v1/attempts/{key}/report` and `POST /v1/attempts/{key}/finish` need no other API key.
#[derive(Clone, PartialEq, Eq)]
pub struct FinishKey(String);

/// Bytes of a finish key.
const BYTES: usize = 32;
/// What a finish key begins with.
const PREFIX: &str = "fin_";

impl FinishKey {
    fn new() -> Self {
        use fmt::Write as _;
        let bytes: [u8; BYTES] = rand::random();
        let mut text = String::from(PREFIX);
        for byte in bytes {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        Self(text)
    }

    /// Read a key as a client sends it. Nothing if it cannot be one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let hex = text.strip_prefix(PREFIX)?;
        let legal = hex.len() == 2 * BYTES && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        legal.then(|| Self(text.to_owned()))
    }

    /// Return the text to give away.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Return the SHA-256 digest, the only form in which tickr stores it.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.0.as_bytes()).into()
    }
}

impl fmt::Debug for FinishKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FinishKey")
    }
}

/// How long another system may take to finish an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinishLater {
    /// Time until the attempt must be finished, a second to seven days. Then it has timed out.
    pub within: Duration,
    /// Longest time between two reports, at least a second. Without one for longer, the attempt has timed out. `None`: the
    /// system need not report.
    pub report_within: Option<Duration>,
}

impl FinishLater {
    /// Allow this much time, without reports.
    #[must_use]
    pub const fn within(within: Duration) -> Self {
        Self { within, report_within: None }
    }

    /// Expect a report at least this often.
    #[must_use]
    pub const fn report_within(self, report_within: Duration) -> Self {
        Self { report_within: Some(report_within), ..self }
    }
}

/// Stores the digest of a finish key with its attempt.
pub trait FinishKeyStore: Send + Sync + fmt::Debug {
    /// Store the digest. If the store is out, wait until it is back or the attempt has to stop. `later` counts from this
    /// call. With it, the first report of the system leaves the attempt to it for that time, also before the
    /// handler has returned. The text of an error is shown to operators.
    fn store(
        &self,
        digest: [u8; 32],
        later: Option<FinishLater>,
    ) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + '_>>;
}

/// The finish key of an attempt, made when the handler asks for it.
#[derive(Clone, Debug, Default)]
pub struct FinishSlot {
    keys: Option<Arc<dyn FinishKeyStore>>,
    made: Arc<OnceCell<FinishKey>>,
}

impl FinishSlot {
    /// Make a slot whose key is stored here.
    #[must_use]
    pub fn stored_in(keys: Arc<dyn FinishKeyStore>) -> Self {
        Self { keys: Some(keys), made: Arc::default() }
    }

    /// Return whether the handler has asked for the key.
    #[must_use]
    pub fn is_made(&self) -> bool {
        self.made.initialized()
    }

    pub(crate) async fn key(&self, later: Option<FinishLater>) -> Result<&FinishKey, Failure> {
        let make = || async {
            let key = FinishKey::new();
            if let Some(keys) = &self.keys {
                let stored = keys.store(key.digest(), later).await;
                stored.map_err(|error| Failure::retry(format!("store the finish key: {error}")))?;
            }
            Ok(key)
        };
        self.made.get_or_try_init(make).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finish_key_is_read_again_and_shows_itself_to_no_log() {
        let key = FinishKey::new();
        assert_eq!(FinishKey::parse(key.expose()), Some(key.clone()));
        assert_eq!(format!("{key:?}"), "FinishKey");
        for wrong in
            ["", "fin_", "fin_00", &key.expose().to_uppercase(), &key.expose()[4..], &format!("{}0", key.expose())]
        {
            assert_eq!(FinishKey::parse(wrong), None, "{wrong}");
        }
    }
}
