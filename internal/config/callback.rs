//! The secrets that sign callbacks, in the form Standard Webhooks gives them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use secrecy::{ExposeSecret, SecretSlice};

use super::error::Wrong;
use super::parse;

/// A signing key, decoded from `whsec_…` base64.
#[derive(Debug, Clone)]
pub struct CallbackSecret(SecretSlice<u8>);

impl CallbackSecret {
    /// The key bytes, for the HMAC and nobody else.
    pub fn expose(&self) -> &[u8] {
        self.0.expose_secret()
    }
}

/// One secret, or two while receivers move from the old one to the new one.
pub(super) fn secrets(text: &str) -> Result<Vec<CallbackSecret>, Wrong> {
    let secrets = parse::list(text, secret)?;
    if secrets.len() > 2 {
        return Err(Wrong::new(
            "more than two secrets",
            "write the new secret and, while receivers change over, the old one",
        ));
    }
    Ok(secrets)
}

fn secret(text: &str) -> Result<CallbackSecret, Wrong> {
    let right = "write whsec_ and the base64 of 24 to 64 random bytes";
    let encoded = text.strip_prefix("whsec_").ok_or_else(|| Wrong::new("does not begin with whsec_", right))?;
    // The decoder's own error names the offending byte, which is a piece of the secret.
    let key = STANDARD.decode(encoded).map_err(|_| Wrong::new("not base64", right))?;
    if !(24..=64).contains(&key.len()) {
        return Err(Wrong::new("the key is too short or too long", right));
    }
    Ok(CallbackSecret(SecretSlice::from(key)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(length: usize) -> String {
        format!("whsec_{}", STANDARD.encode(vec![7; length]))
    }

    #[test]
    fn takes_one_or_two_secrets() {
        assert_eq!(secrets(&encoded(24)).unwrap()[0].expose(), [7; 24]);
        assert_eq!(secrets(&format!("{}, {}", encoded(32), encoded(64))).unwrap().len(), 2);
        assert!(secrets("").unwrap().is_empty());
    }

    #[test]
    fn refuses_weak_and_malformed_secrets_without_quoting_them() {
        let three = [encoded(24), encoded(24), encoded(24)].join(",");
        for bad in ["canary", "whsec_canary!", &encoded(23), &encoded(65), &three] {
            assert!(!format!("{:?}", secrets(bad).unwrap_err()).contains("canary"), "{bad}");
        }
        assert!(!format!("{:?}", secrets(&encoded(24))).contains('7'));
    }
}
