//! Standard Webhooks signatures. With them a receiver checks that tickr sent a callback, that it is unchanged, and that
//! it is recent.
//!
//! The signed text is `<webhook-id>.<webhook-timestamp>.<body>`, with the body byte for byte as sent. While receivers
//! change from an old secret to a new one, both secrets sign, and a receiver accepts either signature.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac};
use secrecy::{ExposeSecret, SecretSlice};
use sha2::Sha256;
use tickr_config::CallbackSecret;

/// A secret that signs callbacks. The receivers know it too. It is never printed.
#[derive(Clone)]
pub struct SigningSecret(SecretSlice<u8>);

impl SigningSecret {
    /// Make a secret of these decoded bytes. The specification requires 24 to 64 of them.
    #[must_use]
    pub fn new(key: &[u8]) -> Self {
        Self(SecretSlice::from(key.to_vec()))
    }

    /// Return true if the text is the sample secret of the Standard Webhooks documents. It is public, so every reader of
    /// them could forge calls that it signs.
    #[must_use]
    pub fn is_published(text: &str) -> bool {
        CallbackSecret::is_published(text)
    }

    /// Sign a callback: `v1,<base64 of the HMAC-SHA256>`.
    #[expect(clippy::expect_used, reason = "HMAC takes keys of every length")]
    fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> String {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.0.expose_secret()).expect("a key of any length");
        mac.update(format!("{id}.{timestamp}.").as_bytes());
        mac.update(body);
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    }
}

impl fmt::Debug for SigningSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningSecret(…)")
    }
}

/// Error: a text is not `whsec_` and base64. The error does not quote the text, which may be most of a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("read a signing secret: it must be whsec_ and the base64 of 24 to 64 bytes")]
pub struct InvalidSecret;

impl FromStr for SigningSecret {
    type Err = InvalidSecret;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let encoded = text.strip_prefix("whsec_").ok_or(InvalidSecret)?;
        let key = STANDARD.decode(encoded).map_err(|_| InvalidSecret)?;
        if (24..=64).contains(&key.len()) { Ok(Self::new(&key)) } else { Err(InvalidSecret) }
    }
}

/// The `webhook-signature` header: one signature for each current secret. `None` without secrets.
pub(super) fn header(secrets: &[SigningSecret], id: &str, timestamp: i64, body: &[u8]) -> Option<String> {
    let signatures: Vec<String> = secrets.iter().map(|secret| secret.sign(id, timestamp, body)).collect();
    if signatures.is_empty() { None } else { Some(signatures.join(" ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example that the specification's own libraries use in their tests.
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    const BODY: &[u8] = br#"{"test": 2432232314}"#;

    #[test]
    fn the_published_example_gives_the_published_signature() {
        let secret: SigningSecret = SECRET.parse().unwrap();
        let signature = header(&[secret], ID, 1_614_265_330, BODY).unwrap();
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn two_live_secrets_sign_twice_and_none_not_at_all() {
        let (new, old) = (SECRET.parse().unwrap(), SigningSecret::new(&[7; 24]));
        let both = header(&[new, old.clone()], ID, 1, BODY).unwrap();
        let parts: Vec<&str> = both.split(' ').collect();
        assert_eq!(parts.len(), 2);
        assert_ne!(parts[0], parts[1]);
        assert_eq!(parts[1], old.sign(ID, 1, BODY));
        assert_eq!(header(&[], ID, 1, BODY), None);
    }

    #[test]
    fn malformed_secrets_are_refused_and_no_secret_is_printed() {
        for bad in ["", "whsec_", "whsec_!!!!", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_c2hvcnQ="] {
            assert_eq!(bad.parse::<SigningSecret>().unwrap_err(), InvalidSecret, "{bad}");
        }
        assert!(!format!("{:?}", SECRET.parse::<SigningSecret>().unwrap()).contains("MfKQ"));
    }
}
