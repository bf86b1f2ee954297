//! Whose secret signs a callback: that of its receiver, and of receivers that have none of their own the usual one.
//!
//! A secret that two receivers share lets each of them sign callbacks to the other. So a receiver that has secrets of its own
//! gets no signature by any other secret, and no other receiver gets one by its secrets.

use reqwest::Url;

use super::SigningSecret;
use crate::config::Allowed;

/// The secrets that sign callbacks, by receiver. Without any, callbacks are not signed.
#[derive(Clone, Debug, Default)]
pub struct CallbackSecrets {
    usual: Vec<SigningSecret>,
    by_host: Vec<(Allowed, Vec<SigningSecret>)>,
}

impl CallbackSecrets {
    /// These for every receiver: one, or two while receivers change over.
    #[must_use]
    pub const fn usual(secrets: Vec<SigningSecret>) -> Self {
        Self { usual: secrets, by_host: Vec::new() }
    }

    /// These for this host alone, instead of the usual ones. The entry that names a host most closely counts.
    #[must_use]
    pub fn with_host(mut self, host: Allowed, secrets: Vec<SigningSecret>) -> Self {
        self.by_host.push((host, secrets));
        self
    }

    /// Those that sign what goes to this URL.
    pub(super) fn of(&self, url: &Url) -> &[SigningSecret] {
        let host = url.host_str().unwrap_or_default();
        let own = self.by_host.iter().filter_map(|(name, secrets)| Some((name.closeness(host)?, secrets)));
        own.max_by_key(|(closeness, _)| *closeness).map_or(&self.usual, |(_, secrets)| secrets)
    }
}

#[cfg(test)]
mod tests {
    use super::super::signature::header;
    use super::*;

    /// The secrets of a configuration that names these hosts, told apart by what they sign.
    fn signed_by(hosts: &[&str], url: &str) -> String {
        let usual = CallbackSecrets::usual(vec![SigningSecret::new(b"usual")]);
        let secrets = hosts.iter().fold(usual, |secrets, host| {
            secrets.with_host(Allowed::parse(host).unwrap(), vec![SigningSecret::new(host.as_bytes())])
        });
        let sign = |key: &str| header(&[SigningSecret::new(key.as_bytes())], "id", 1, b"").unwrap();
        let signature = header(secrets.of(&Url::parse(url).unwrap()), "id", 1, b"").unwrap();
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
