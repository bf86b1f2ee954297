//! Callbacks: the secrets that sign them, in the format of Standard Webhooks, and the private targets that they may
//! reach.

use std::fmt;
use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use secrecy::{ExposeSecret, SecretSlice};

use super::error::Wrong;
use super::parse;

/// The secret from the examples in the Standard Webhooks specification, which is public.
const PUBLISHED: &str = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A signing secret, decoded from `whsec_…` base64.
#[derive(Debug, Clone)]
pub struct CallbackSecret(SecretSlice<u8>);

impl CallbackSecret {
    /// Return the bytes of the secret, for the HMAC only.
    pub fn expose(&self) -> &[u8] {
        self.0.expose_secret()
    }

    /// Generate a new secret in its configured form.
    #[must_use]
    pub fn generate() -> String {
        format!("whsec_{}", STANDARD.encode(rand::random::<[u8; 32]>()))
    }

    /// Return the secret in its configured form, for the screen of a development machine.
    #[must_use]
    pub fn show(&self) -> String {
        format!("whsec_{}", STANDARD.encode(self.expose()))
    }

    /// Parse a secret in its configured form, or return `None` if it is invalid.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        secret(text).ok()
    }

    /// Return true if the text is the sample secret of the Standard Webhooks documents, in its configured form.
    #[must_use]
    pub fn is_published(text: &str) -> bool {
        text.strip_prefix("whsec_") == Some(PUBLISHED)
    }
}

/// Parse one secret, or two while receivers change from the old one to the new one.
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
    if CallbackSecret::is_published(text) {
        let right = "make your own: echo whsec_$(openssl rand -base64 32)";
        return Err(Wrong::new("the secret of the published examples, which is public", right));
    }
    // The decoder's own error names the offending byte, which is a part of the secret.
    let key = STANDARD.decode(encoded).map_err(|_| Wrong::new("not base64", right))?;
    if !(24..=64).contains(&key.len()) {
        return Err(Wrong::new("the key is too short or too long", right));
    }
    Ok(CallbackSecret(SecretSlice::from(key)))
}

/// The secrets of one host, or of all names below one.
#[derive(Debug, Clone)]
pub struct HostSecrets {
    /// The host: a name, all names below one, or an address. Never a network.
    pub host: Allowed,
    /// One or two secrets, the new one first.
    pub secrets: Vec<CallbackSecret>,
}

/// Parse comma-separated pairs of a host and its secret. A host that occurs twice has two secrets.
pub(super) fn host_secrets(text: &str) -> Result<Vec<HostSecrets>, Wrong> {
    let mut all: Vec<HostSecrets> = Vec::new();
    for (host, secret) in parse::list(text, host_secret)? {
        match all.iter_mut().find(|one| one.host == host) {
            Some(one) => one.secrets.push(secret),
            None => all.push(HostSecrets { host, secrets: vec![secret] }),
        }
    }
    match all.iter().find(|one| one.secrets.len() > 2) {
        Some(one) => Err(Wrong::new(
            about(&one.host, "more than two secrets"),
            "write the new secret and, while the receiver changes over, the old one",
        )),
        None => Ok(all),
    }
}

fn host_secret(text: &str) -> Result<(Allowed, CallbackSecret), Wrong> {
    let right = "write the host, = and its secret, like shop.example=whsec_…, or *.shop.example=whsec_… for every name below it";
    // Base64 may end with `=` too, so a secret alone can look like a pair.
    let pair = text.split_once('=').filter(|(host, _)| !host.trim().starts_with("whsec_"));
    let (host, key) = pair.ok_or_else(|| Wrong::new("the host is missing", right))?;
    let host = one_allowed(host.trim()).map_err(|_| Wrong::new("not the name of a host", right))?;
    if matches!(host, Allowed::Network(address, bits) if bits != most_bits(address)) {
        return Err(Wrong::new("a network, which cannot be the host of a callback", right));
    }
    match secret(key.trim()) {
        Ok(secret) => Ok((host, secret)),
        Err(wrong) => Err(Wrong::new(about(&host, &wrong.wrong), wrong.right)),
    }
}

/// Describe a problem together with the host that it is about. A host without a dot or a colon is left out: it could be
/// part of a secret in the wrong position, because base64 has neither dots nor colons.
fn about(host: &Allowed, wrong: &str) -> String {
    let host = host.to_string();
    if host.contains(['.', ':']) { format!("{host}: {wrong}") } else { wrong.to_owned() }
}

/// A target outside the public internet that callbacks may reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Allowed {
    /// A host name, independent of its addresses.
    Host(String),
    /// Every name below this one.
    Below(String),
    /// All addresses that agree with this one in the given number of leading bits.
    Network(IpAddr, u8),
}

impl Allowed {
    /// Parse a network, an address, a name, or `*.` and a name, as configured. Return `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        one_allowed(text).ok()
    }

    /// Return true if the address is in this network.
    #[must_use]
    pub fn has_address(&self, address: IpAddr) -> bool {
        let (same, total) = match (self, address) {
            (Self::Network(IpAddr::V4(net), bits), IpAddr::V4(v4)) => {
                ((net.to_bits() ^ v4.to_bits()).leading_zeros(), u32::from(*bits))
            }
            (Self::Network(IpAddr::V6(net), bits), IpAddr::V6(v6)) => {
                ((net.to_bits() ^ v6.to_bits()).leading_zeros(), u32::from(*bits))
            }
            (Self::Host(_) | Self::Below(_) | Self::Network(..), _) => return false,
        };
        same >= total
    }

    /// Return true if the entry is exactly this address, without a network around it.
    #[must_use]
    pub fn is_address(&self, address: IpAddr) -> bool {
        matches!(self, Self::Network(net, bits) if *net == address && *bits == most_bits(address))
    }

    /// Return how closely the entry matches the host of a URL, in lower case: a higher number is a closer match. Return
    /// `None` if it does not match.
    #[must_use]
    pub fn closeness(&self, host: &str) -> Option<usize> {
        let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        let covers = match bare.parse::<IpAddr>() {
            // The kernel connects to ::ffff:a.b.c.d over IPv4, so the same receiver answers.
            Ok(address) => self.has_address(address.to_canonical()),
            // A trailing dot names the same host, from the DNS root.
            Err(_) => self.has_host(host.strip_suffix('.').unwrap_or(host)),
        };
        covers.then(|| match self {
            Self::Host(_) => usize::MAX,
            Self::Below(name) => name.len(),
            Self::Network(_, bits) => usize::from(*bits),
        })
    }

    /// Return true if the entry names this host. The name must be in lower case, without a dot at its end.
    #[must_use]
    pub fn has_host(&self, host: &str) -> bool {
        match self {
            Self::Host(name) => name == host,
            Self::Below(name) => host.strip_suffix(name.as_str()).is_some_and(|rest| rest.ends_with('.')),
            Self::Network(..) => false,
        }
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(name) => f.write_str(name),
            Self::Below(name) => write!(f, "*.{name}"),
            Self::Network(address, bits) if *bits == most_bits(*address) => write!(f, "{address}"),
            Self::Network(address, bits) => write!(f, "{address}/{bits}"),
        }
    }
}

fn most_bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// Parse comma-separated hosts and networks.
pub(super) fn allowed(text: &str) -> Result<Vec<Allowed>, Wrong> {
    parse::list(text, one_allowed)
}

fn one_allowed(text: &str) -> Result<Allowed, Wrong> {
    let right = "write networks like 10.20.0.0/16, addresses like 10.20.0.7 or fd00::7, names like shop.internal, \
                 or *.shop.internal for every name below it";
    let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
    let bare = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(address);
    if let Ok(address) = bare.parse::<IpAddr>() {
        // Addresses are compared in their IPv4 form where they have one, so ::ffff:a.b.c.d would never match.
        let address = if bits.is_none() { address.to_canonical() } else { address };
        let most = most_bits(address);
        let bits = match bits {
            None => most,
            Some(bits) => match bits.parse::<u8>() {
                Ok(bits) if bits <= most => bits,
                Ok(_) | Err(_) => return Err(Wrong::new(format!("its prefix is not 0 to {most}"), right)),
            },
        };
        let network = Allowed::Network(network_of(address, bits), bits);
        // A network written with an address inside it is as likely to be a mistake as an abbreviation, so it is
        // refused.
        if network != Allowed::Network(address, bits) {
            return Err(Wrong::new("the address has bits beyond its prefix", format!("write {network}")));
        }
        return Ok(network);
    }
    if bits.is_some() {
        return Err(Wrong::new("not a network", right));
    }
    // A name has no port, and a pattern is supported only at the beginning.
    let name =
        parse::host_name(text.strip_prefix("*.").unwrap_or(text)).map_err(|wrong| Wrong::new(wrong.wrong, right))?;
    let name = name.trim_end_matches('.').to_owned();
    // Text that looks like an invalid address would never match a host name.
    if name.is_empty() || name.starts_with('.') || name.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return Err(Wrong::new("neither a network nor the name of a host", right));
    }
    Ok(if text.starts_with("*.") { Allowed::Below(name) } else { Allowed::Host(name) })
}

/// Return the first address of the network.
fn network_of(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => IpAddr::V4((v4.to_bits() & u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0)).into()),
        IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() & u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0)).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_addresses_and_names_are_told_apart() {
        let all = "10.20.0.0/16, 192.168.7.9, fd00:1::/32, [fd00::7], Shop.Internal, *.pods.internal, 0.0.0.0/0";
        let shown: Vec<String> = allowed(all).unwrap().iter().map(ToString::to_string).collect();
        let expected =
            ["10.20.0.0/16", "192.168.7.9", "fd00:1::/32", "fd00::7", "shop.internal", "*.pods.internal", "0.0.0.0/0"];
        assert_eq!(shown, expected);
        assert_eq!(allowed("[::ffff:10.0.0.7], ::ffff:10.0.0.8").unwrap(), allowed("10.0.0.7, 10.0.0.8").unwrap());
        assert!(allowed("").unwrap().is_empty());
        for bad in [
            "10.20.0.0/33",
            "10.20.0.1/16",
            "fd00::/129",
            "10.20",
            "10.20.0.0/",
            "shop.internal/8",
            "shop.internal:80",
            "http://shop.internal",
            "a b",
            "*",
            "*.",
            "*.*.internal",
            "shop.*",
            "10.20.0.256",
            "a,,b",
            ".internal",
        ] {
            let wrong = allowed(bad).unwrap_err();
            assert!(
                wrong.right.contains("10.20.0.0/16") || wrong.right.contains("write 10.20.0.0"),
                "{bad}: {wrong:?}"
            );
        }
    }

    #[test]
    fn an_entry_covers_its_network_or_its_name_and_nothing_else() {
        let one = |text: &str| allowed(text).unwrap().remove(0);
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let net = one("10.20.0.0/16");
        assert!(
            net.has_address(ip("10.20.255.255")) && !net.has_address(ip("10.21.0.0")) && !net.has_address(ip("::1"))
        );
        assert!(one("0.0.0.0/0").has_address(ip("255.1.2.3")) && one("::/0").has_address(ip("fe80::1")));
        assert!(one("10.0.0.7").is_address(ip("10.0.0.7")) && !one("10.0.0.0/8").is_address(ip("10.0.0.0")));
        assert!(one("shop.internal").has_host("shop.internal") && !one("shop.internal").has_host("a.shop.internal"));
        let below = one("*.shop.internal");
        assert!(below.has_host("a.shop.internal") && below.has_host("a.b.shop.internal"));
        assert!(!below.has_host("shop.internal") && !below.has_host("myshop.internal"));
    }

    #[test]
    fn the_closest_entry_names_a_host_best() {
        let entries = allowed("shop.example, *.shop.example, *.eu.shop.example, 10.0.0.7, fd00::7").unwrap();
        let best = |host: &str| {
            let known = entries.iter().filter_map(|one| Some((one.closeness(host)?, one.to_string())));
            known.max().map(|(_, entry)| entry).unwrap_or_default()
        };
        for (host, entry) in [
            ("shop.example", "shop.example"),
            ("shop.example.", "shop.example"),
            ("a.shop.example", "*.shop.example"),
            ("eu.shop.example", "*.shop.example"),
            ("a.b.eu.shop.example", "*.eu.shop.example"),
            ("10.0.0.7", "10.0.0.7"),
            ("[fd00::7]", "fd00::7"),
            ("[::ffff:10.0.0.7]", "10.0.0.7"),
            ("[::ffff:a00:7]", "10.0.0.7"),
            ("10.0.0.8", ""),
            ("example", ""),
            ("myshop.example", ""),
            ("shop.example.evil", ""),
        ] {
            assert_eq!(best(host), entry, "{host}");
        }
    }

    #[test]
    fn secrets_of_hosts_are_pairs_and_two_of_one_host_stand_in_their_order() {
        let (old, new) = (encoded(24), encoded(32));
        let text = format!("Shop.Example={new}, *.shop.example={old},shop.example.={old}, [fd00::7]={new}");
        let all = host_secrets(&text).unwrap();
        let shown: Vec<(String, Vec<usize>)> = all
            .iter()
            .map(|one| (one.host.to_string(), one.secrets.iter().map(|secret| secret.expose().len()).collect()))
            .collect();
        let expected = [("shop.example", vec![32, 24]), ("*.shop.example", vec![24]), ("fd00::7", vec![32])];
        assert_eq!(shown, expected.map(|(host, lengths)| (host.to_owned(), lengths)));
        assert!(host_secrets("").unwrap().is_empty());
    }

    #[test]
    fn mistakes_in_secrets_of_hosts_name_the_host_and_never_the_secret() {
        let good = encoded(24);
        for (text, said) in [
            (good.clone(), "entry 1: the host is missing"),
            ("whsec_canary==".to_owned(), "entry 1: the host is missing"),
            ("shop.example".to_owned(), "entry 1: the host is missing"),
            (format!("shop.example={good},shop.example=canary"), "entry 2: shop.example: does not begin with whsec_"),
            ("shop.example=whsec_canary!".to_owned(), "shop.example: not base64"),
            (format!("shop.example=whsec_{PUBLISHED}"), "shop.example: the secret of the published examples"),
            (format!("http://shop.example={good}"), "not the name of a host"),
            (format!("shop.example:8080={good}"), "not the name of a host"),
            (format!("10.0.0.0/8={good}"), "a network"),
            ([good.as_str(); 3].map(|one| format!("shop.example={one}")).join(","), "shop.example: more than two"),
            // Text that may be part of a secret is not repeated.
            ("canary=".to_owned(), "entry 1: does not begin with whsec_"),
        ] {
            let wrong = host_secrets(&text).unwrap_err();
            assert!(wrong.wrong.contains(said), "{text}: {wrong:?}");
            assert!(
                !format!("{wrong:?}").contains("canary") && !format!("{wrong:?}").contains(&good[6..]),
                "{wrong:?}"
            );
        }
    }

    #[test]
    fn a_secret_that_was_made_is_one_that_is_taken() {
        let made = CallbackSecret::generate();
        assert_ne!(made, CallbackSecret::generate());
        assert_eq!(CallbackSecret::parse(&made).unwrap().show(), made);
        assert_eq!(secrets(&made).unwrap().len(), 1);
    }

    #[test]
    fn the_secret_of_the_published_examples_is_refused() {
        let wrong = secrets(&format!("whsec_{PUBLISHED}")).unwrap_err();
        assert!(wrong.wrong.contains("published") && !format!("{wrong:?}").contains(PUBLISHED), "{wrong:?}");
    }

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
