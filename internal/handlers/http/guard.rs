//! Where a callback may go: an address of the public internet, unless the operator allows private ones.
//!
//! A payload comes from a client, the request leaves from inside the network: without a guard every client could read
//! cloud metadata and reach unprotected neighbours. Names are judged by what they resolve to at the moment of the
//! connection ([`Guard`] is the HTTP client's only resolver, so it connects to judged addresses and to nothing else,
//! whatever DNS answers the next time). Addresses written in the URL never reach a resolver and are judged apart, by
//! [`check_host`].

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// A target that callbacks may not reach. Kept inside the client's error, where the handler finds it again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    #[error("{0} addresses are not allowed")]
    Address(&'static str),
    // The addresses themselves stay out of the text: it would map the internal network for whoever may enqueue.
    #[error("the name resolves to {0} addresses only, which are not allowed")]
    Name(&'static str),
}

/// What decides about one address: `Err` names the class of a refused one.
pub(super) type Rule = fn(IpAddr) -> Result<(), &'static str>;

/// Only addresses of the public internet.
pub(super) fn public_only(address: IpAddr) -> Result<(), &'static str> {
    match address {
        IpAddr::V4(v4) => public_v4(v4),
        IpAddr::V6(v6) => public_v6(v6),
    }
}

/// Every address: for operators who call services in their own network.
pub(super) fn anywhere(_: IpAddr) -> Result<(), &'static str> {
    Ok(())
}

/// The nets of IPv4 that are not the public internet (IANA's special-purpose registry).
const SPECIAL_V4: &[(Ipv4Addr, u32, &str)] = &[
    (Ipv4Addr::new(0, 0, 0, 0), 8, "unspecified"),
    (Ipv4Addr::new(10, 0, 0, 0), 8, "private"),
    (Ipv4Addr::new(100, 64, 0, 0), 10, "private"),
    (Ipv4Addr::new(127, 0, 0, 0), 8, "loopback"),
    // Home of the metadata services of the clouds.
    (Ipv4Addr::new(169, 254, 0, 0), 16, "link-local"),
    (Ipv4Addr::new(172, 16, 0, 0), 12, "private"),
    (Ipv4Addr::new(192, 0, 0, 0), 24, "reserved"),
    (Ipv4Addr::new(192, 0, 2, 0), 24, "documentation"),
    (Ipv4Addr::new(192, 88, 99, 0), 24, "reserved"),
    (Ipv4Addr::new(192, 168, 0, 0), 16, "private"),
    (Ipv4Addr::new(198, 18, 0, 0), 15, "benchmarking"),
    (Ipv4Addr::new(198, 51, 100, 0), 24, "documentation"),
    (Ipv4Addr::new(203, 0, 113, 0), 24, "documentation"),
    (Ipv4Addr::new(224, 0, 0, 0), 4, "multicast"),
    (Ipv4Addr::new(240, 0, 0, 0), 4, "reserved"),
];

fn public_v4(address: Ipv4Addr) -> Result<(), &'static str> {
    let within = |net: &Ipv4Addr, bits: u32| (address.to_bits() ^ net.to_bits()) >> (32 - bits) == 0;
    match SPECIAL_V4.iter().find(|(net, bits, _)| within(net, *bits)) {
        Some((_, _, class)) => Err(class),
        None => Ok(()),
    }
}

/// The nets within 2000::/3 that are not the public internet, or that carry an IPv4 address past [`public_v4`].
const SPECIAL_V6: &[(Ipv6Addr, u32, &str)] = &[
    // Teredo, benchmarking, ORCHID and the other protocol assignments.
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23, "reserved"),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32, "documentation"),
    // 6to4.
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16, "reserved"),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20, "documentation"),
];

fn public_v6(address: Ipv6Addr) -> Result<(), &'static str> {
    // The kernel connects ::ffff:a.b.c.d by IPv4.
    if let Some(v4) = address.to_ipv4_mapped() {
        return public_v4(v4);
    }
    // Public addresses are assigned from 2000::/3 only, so everything else is refused without a list: loopback,
    // fc00::/7, fe80::/10, fec0::/10, multicast, NAT64, IPv4-compatible ones, and whatever is reserved next.
    if address.segments()[0] >> 13 != 1 {
        return Err(if address.is_loopback() {
            "loopback"
        } else if address.is_unspecified() {
            "unspecified"
        } else if address.is_unique_local() {
            "private"
        } else if address.is_unicast_link_local() {
            "link-local"
        } else if address.is_multicast() {
            "multicast"
        } else {
            "reserved"
        });
    }
    let within = |net: &Ipv6Addr, bits: u32| (address.to_bits() ^ net.to_bits()) >> (128 - bits) == 0;
    match SPECIAL_V6.iter().find(|(net, bits, _)| within(net, *bits)) {
        Some((_, _, class)) => Err(class),
        None => Ok(()),
    }
}

/// Judges what can be judged without DNS: an address written as the host, and the names of this machine. The URL
/// parser has already turned octal, hexadecimal, one-number and full-width forms into plain addresses.
pub(super) fn check_host(url: &Url, rule: Rule) -> Result<(), Refused> {
    let host = url.host_str().unwrap_or_default();
    let literal = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if let Ok(address) = literal.parse::<IpAddr>() {
        return rule(address).map_err(Refused::Address);
    }
    let name = host.trim_end_matches('.');
    if name.eq_ignore_ascii_case("localhost") || name.to_ascii_lowercase().ends_with(".localhost") {
        return rule(IpAddr::V4(Ipv4Addr::LOCALHOST)).map_err(Refused::Name);
    }
    Ok(())
}

type Looking = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// Who answers for names. The system in production; tests answer themselves, differently each time.
pub(super) trait Lookup: Send + Sync + 'static {
    fn lookup(&self, host: String) -> Looking;
}

/// The resolver of the system.
pub(super) struct SystemLookup;

impl Lookup for SystemLookup {
    fn lookup(&self, host: String) -> Looking {
        Box::pin(async move { Ok(tokio::net::lookup_host((host, 0)).await?.collect()) })
    }
}

/// The HTTP client's resolver: passes on only the addresses that the rule allows.
pub(super) struct Guard {
    pub(super) rule: Rule,
    pub(super) lookup: Arc<dyn Lookup>,
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Guard")
    }
}

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let (rule, looking) = (self.rule, self.lookup.lookup(name.as_str().to_owned()));
        Box::pin(async move {
            let mut refused = None;
            let mut allowed = Vec::new();
            for address in looking.await? {
                match rule(address.ip()) {
                    Ok(()) => allowed.push(address),
                    Err(class) => refused = Some(class),
                }
            }
            match refused {
                Some(class) if allowed.is_empty() => Err(Refused::Name(class).into()),
                _ => Ok(Box::new(allowed.into_iter()) as Addrs),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// URLs and whether they pass the check that needs no DNS. `None`: not a URL at all.
    const HOSTS: &[(&str, Option<bool>)] = &[
        // Plain loopback, and every other way to write it.
        ("http://127.0.0.1/", Some(false)),
        ("http://127.0.0.1:8080/x", Some(false)),
        ("http://127.1/", Some(false)),
        ("http://127.0.1/", Some(false)),
        ("http://127.255.255.254/", Some(false)),
        ("http://127.0.0.1./", Some(false)),
        ("http://2130706433/", Some(false)),
        ("http://0x7f000001/", Some(false)),
        ("http://0X7F.1/", Some(false)),
        ("http://0x7f.0x0.0x0.0x1/", Some(false)),
        ("http://0177.0.0.1/", Some(false)),
        ("http://0177.0.0.01/", Some(false)),
        ("http://017700000001/", Some(false)),
        ("http://00000177.1/", Some(false)),
        ("http://127.0x0.0.01/", Some(false)),
        ("http://１２７.０.０.１/", Some(false)),
        ("http://①②⑦.0.0.1/", Some(false)),
        ("http://127。0。0。1/", Some(false)),
        ("http://%31%32%37.0.0.1/", Some(false)),
        ("http://0/", Some(false)),
        ("http://0.0.0.0/", Some(false)),
        ("http://0x0/", Some(false)),
        ("http://localhost/", Some(false)),
        ("http://LOCALHOST:80/", Some(false)),
        ("http://localhost./", Some(false)),
        ("http://db.localhost/", Some(false)),
        ("http://ｌocalhost/", Some(false)),
        // The other nets of IPv4, edges included.
        ("http://10.0.0.1/", Some(false)),
        ("http://10.255.255.255/", Some(false)),
        ("http://012.1.2.3/", Some(false)),
        ("http://100.64.0.1/", Some(false)),
        ("http://100.127.255.255/", Some(false)),
        ("http://169.254.169.254/latest/meta-data/", Some(false)),
        ("http://0xa9fea9fe/", Some(false)),
        ("http://2852039166/", Some(false)),
        ("http://0251.0376.0251.0376/", Some(false)),
        ("http://172.16.0.1/", Some(false)),
        ("http://172.31.255.255/", Some(false)),
        ("http://192.0.0.192/", Some(false)),
        ("http://192.0.2.1/", Some(false)),
        ("http://192.88.99.1/", Some(false)),
        ("http://192.168.1.1/", Some(false)),
        ("http://3232235777/", Some(false)),
        ("http://198.18.0.1/", Some(false)),
        ("http://198.19.255.255/", Some(false)),
        ("http://198.51.100.7/", Some(false)),
        ("http://203.0.113.7/", Some(false)),
        ("http://224.0.0.1/", Some(false)),
        ("http://239.255.255.250:1900/", Some(false)),
        ("http://240.0.0.1/", Some(false)),
        ("http://255.255.255.255/", Some(false)),
        // IPv6.
        ("http://[::]/", Some(false)),
        ("http://[::1]/", Some(false)),
        ("http://[0:0:0:0:0:0:0:1]/", Some(false)),
        ("http://[0000::0001]:80/", Some(false)),
        ("http://[::ffff:127.0.0.1]/", Some(false)),
        ("http://[::ffff:7f00:1]/", Some(false)),
        ("http://[0:0:0:0:0:ffff:a9fe:a9fe]/", Some(false)),
        ("http://[::ffff:10.0.0.1]/", Some(false)),
        ("http://[::127.0.0.1]/", Some(false)),
        ("http://[::a9fe:a9fe]/", Some(false)),
        ("http://[::ffff:0:127.0.0.1]/", Some(false)),
        ("http://[fc00::1]/", Some(false)),
        ("http://[fd00:ec2::254]/", Some(false)),
        ("http://[fe80::1]/", Some(false)),
        ("http://[febf::1]/", Some(false)),
        ("http://[fec0::1]/", Some(false)),
        ("http://[ff02::1]/", Some(false)),
        ("http://[64:ff9b::7f00:1]/", Some(false)),
        ("http://[64:ff9b:1::1]/", Some(false)),
        ("http://[100::1]/", Some(false)),
        ("http://[2001::1]/", Some(false)),
        ("http://[2001:0:7f00:1::]/", Some(false)),
        ("http://[2001:2::1]/", Some(false)),
        ("http://[2001:db8::1]/", Some(false)),
        ("http://[2002:7f00:1::]/", Some(false)),
        ("http://[2002:a9fe:a9fe::1]/", Some(false)),
        ("http://[3fff::1]/", Some(false)),
        ("http://[5f00::1]/", Some(false)),
        // Zones and other forms that are no URL.
        ("http://[fe80::1%25eth0]/", None),
        ("http://[fe80::1%eth0]/", None),
        ("http://[::1%251]/", None),
        ("http://[::ffff:127.0.0.1/", None),
        ("http://127.0.0.256/", None),
        ("http://0x100000000/", None),
        ("http://1.2.3.4.5/", None),
        ("http:///", None),
        // The public internet: the nearest neighbours of the nets above.
        ("https://example.com/", Some(true)),
        ("https://example.com./", Some(true)),
        ("https://notlocalhost/", Some(true)),
        ("https://localhost.example.com/", Some(true)),
        ("https://1.1.1.1/", Some(true)),
        ("https://9.255.255.255/", Some(true)),
        ("https://11.0.0.0/", Some(true)),
        ("https://100.63.255.255/", Some(true)),
        ("https://100.128.0.0/", Some(true)),
        ("https://126.255.255.255/", Some(true)),
        ("https://128.0.0.0/", Some(true)),
        ("https://169.253.255.255/", Some(true)),
        ("https://172.15.255.255/", Some(true)),
        ("https://172.32.0.0/", Some(true)),
        ("https://192.0.1.0/", Some(true)),
        ("https://198.17.255.255/", Some(true)),
        ("https://198.20.0.0/", Some(true)),
        ("https://223.255.255.255/", Some(true)),
        ("https://134744072/", Some(true)),
        ("https://[2606:4700:4700::1111]/", Some(true)),
        ("https://[2001:4860:4860::8888]/", Some(true)),
        ("https://[2001:200::1]/", Some(true)),
        ("https://[2003::1]/", Some(true)),
        ("https://[::ffff:8.8.8.8]/", Some(true)),
    ];

    #[test]
    fn no_spelling_of_a_private_address_passes_and_public_ones_do() {
        for (text, expected) in HOSTS {
            let verdict = Url::parse(text).ok().map(|url| check_host(&url, public_only).is_ok());
            assert_eq!(verdict, *expected, "{text}");
        }
    }

    #[test]
    fn operators_may_allow_private_addresses() {
        for (text, expected) in HOSTS {
            let verdict = Url::parse(text).ok().map(|url| check_host(&url, anywhere).is_ok());
            assert_eq!(verdict, expected.map(|_| true), "{text}");
        }
    }

    struct Answers(Vec<IpAddr>);

    impl Lookup for Answers {
        fn lookup(&self, _host: String) -> Looking {
            let answers = self.0.iter().map(|ip| SocketAddr::new(*ip, 0)).collect();
            Box::pin(std::future::ready(Ok(answers)))
        }
    }

    async fn resolve(answers: &[&str]) -> Result<Vec<String>, String> {
        let answers = answers.iter().map(|text| text.parse().unwrap()).collect();
        let guard = Guard { rule: public_only, lookup: Arc::new(Answers(answers)) };
        match guard.resolve("hooks.example".parse().unwrap()).await {
            Ok(addresses) => Ok(addresses.map(|address| address.ip().to_string()).collect()),
            Err(refused) => Err(refused.to_string()),
        }
    }

    #[tokio::test]
    async fn of_a_mixed_answer_only_the_public_addresses_remain() {
        let mixed = ["10.0.0.1", "1.1.1.1", "::1", "::ffff:127.0.0.1", "2606:4700::1111"];
        assert_eq!(resolve(&mixed).await.unwrap(), ["1.1.1.1", "2606:4700::1111"]);
    }

    #[tokio::test]
    async fn a_name_without_public_addresses_is_refused_without_naming_them() {
        let refused = resolve(&["10.1.2.3", "192.168.4.5"]).await.unwrap_err();
        assert!(refused.contains("private") && !refused.contains("10.1") && !refused.contains("192"), "{refused}");
    }
}
