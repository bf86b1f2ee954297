//! Signing secrets by receiver: a receiver's own secrets, or the general ones if it has none.
//!
//! Two receivers that share a secret could sign callbacks to each other. So a receiver with its own secrets gets
//! signatures by those alone, and no other receiver gets signatures by them.

use reqwest::Url;

use super::SigningSecret;
use tickr_config::Allowed;

/// The secrets that sign callbacks, by receiver. Without secrets, callbacks are not signed.
#[derive(Clone, Debug, Default)]
pub struct CallbackSecrets {
    usual: Vec<SigningSecret>,
    by_host: Vec<(Allowed, Vec<SigningSecret>)>,
}

impl CallbackSecrets {
    /// Use these secrets for every receiver: one, or two while receivers change from one to the other.
    #[must_use]
    pub const fn usual(secrets: Vec<SigningSecret>) -> Self {
        Self { usual: secrets, by_host: Vec::new() }
    }

    /// Use these secrets for this host instead of the general ones. If several entries match a host, the most specific
    /// one counts.
    #[must_use]
    pub fn with_host(mut self, host: Allowed, secrets: Vec<SigningSecret>) -> Self {
        self.by_host.push((host, secrets));
        self
    }

    /// Return the secrets that sign callbacks to this URL.
    pub(super) fn for_url(&self, url: &Url) -> &[SigningSecret] {
        let host = url.host_str().unwrap_or_default();
        let own = self.by_host.iter().filter_map(|(name, secrets)| Some((name.closeness(host)?, secrets)));
        own.max_by_key(|(closeness, _)| *closeness).map_or(&self.usual, |(_, secrets)| secrets)
    }
}

#[cfg(test)]
mod tests {
    use super::super::signature::header;
    use super::*;

    /// Sign with the secrets of a configuration that names these hosts. Return the host whose secret made the
    /// signature.
    fn signed_by(hosts: &[&str], url: &str) -> String {
        let usual = CallbackSecrets::usual(vec![SigningSecret::new(b"usual")]);
        let secrets = hosts.iter().fold(usual, |secrets, host| {
            secrets.with_host(Allowed::parse(host).unwrap(), vec![SigningSecret::new(host.as_bytes())])
        });
        let sign = |key: &str| header(&[SigningSecret::new(key.as_bytes())], "id", 1, b"").unwrap();
        let signature = header(secrets.for_url(&Url::parse(url).unwrap()), "id", 1, b"").unwrap();
        let mut known = hosts.iter().chain(&["usual"]);
        known.find(|key| sign(key) == signature).map(|key| (*key).to_owned()).unwrap_or_default()
    }

    #[test]
    fn a_receiver_gets_the_signature_of_its_own_secret_however_its_url_is_written() {
        let hosts = ["*.example", "shop.example", "*.shop.example", "10.0.0.7", "fd00::7"];
        for (url, host) in [
            ("https://shop.example/in", "shop.example"),
            ("http://SHOP.example.:8080/in?x=other.example", "shop.example"),
            ("https://%73hop.example/", "shop.example"),
            ("https://a.b.shop.example/", "*.shop.example"),
            ("https://myshop.example/", "*.example"),
            ("http://10.7/", "10.0.0.7"),
            ("http://0x0a000007/", "10.0.0.7"),
            ("http://[::ffff:10.0.0.7]/", "10.0.0.7"),
            ("http://[fd00:0::0007]/", "fd00::7"),
            ("https://example/", "usual"),
            ("https://shop.example.evil/", "usual"),
            ("https://evil/shop.example", "usual"),
            ("http://10.0.0.70/", "usual"),
        ] {
            assert_eq!(signed_by(&hosts, url), host, "{url}");
            let turned: Vec<&str> = hosts.iter().rev().copied().collect();
            assert_eq!(signed_by(&turned, url), host, "{url}");
        }
    }
}
