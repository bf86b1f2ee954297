//! The receiver of a declared kind that tickr calls instead of being asked for jobs.

use std::fmt;
use std::time::Duration;

use super::Name;

/// How tickr hands the jobs of a declared kind to a receiver: by a call to its URL for each attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Push {
    /// URL that is called with each attempt.
    pub url: String,
    /// Secret that signs the calls. None: the secrets of the configuration sign, if there are any for this receiver.
    pub secret: Option<PushSecret>,
    /// Longest time until the receiver answers a call.
    pub answer_within: Duration,
    /// Longest time between two reports of a receiver that answered 202. None: it need not report, and only the time limit
    /// of the attempt counts.
    pub lease: Option<Duration>,
    /// Kinds of the jobs that may follow the receiver's successes. Without one, none may: a receiver has no API key that
    /// would say what it may enqueue.
    pub follow_ups: Vec<Name>,
}

impl Push {
    /// Usual time until the receiver answers, and the longest that can be declared.
    pub const ANSWER_WITHIN: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(24 * 60 * 60));
    /// Shortest and longest time between two reports.
    pub const LEASE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(24 * 60 * 60));
    /// Most bytes of a URL.
    pub const MAX_URL_BYTES: usize = 2_048;
    /// Most kinds of the jobs that may follow.
    pub const MAX_FOLLOW_UP_KINDS: usize = 100;
}

/// The text of a secret that signs calls to a receiver: `whsec_` and base64. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct PushSecret(String);

impl PushSecret {
    /// Most bytes of the text.
    pub const MAX_BYTES: usize = 120;

    /// Wrap the text of a secret.
    #[must_use]
    pub const fn new(text: String) -> Self {
        Self(text)
    }

    /// Return the text, to sign with it or to store it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for PushSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PushSecret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_secret_of_a_push_is_not_printed() {
        let secret = Some(PushSecret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".into()));
        let answer_within = Push::ANSWER_WITHIN.0;
        let (url, follow_ups) = ("https://example.com/".into(), Vec::new());
        let push = Push { url, secret, answer_within, lease: None, follow_ups };
        assert!(!format!("{push:?}").contains("MfKQ"), "{push:?}");
    }
}
