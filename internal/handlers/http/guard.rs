//! The addresses that callbacks may reach: the public internet, and what the operator allows in addition.
//!
//! The payload comes from a client, but the request leaves from inside the network. Without a guard every client could
//! read cloud metadata and reach unprotected machines nearby. Names are checked by the addresses that they resolve to
//! at the moment of the connection. [`Guard`] is the only resolver of the HTTP client, so the client connects to
//! checked addresses only, whatever DNS answers the next time. A reused connection still goes to the address that was
//! checked. An address written in the URL never reaches a resolver; [`check_host`] checks it.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};
use std::pin::Pin;
use std::sync::Arc;

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use tickr_config::Allowed;

/// A target that callbacks may not reach, and the setting that would allow it. It travels inside the HTTP client's
/// error, where the handler finds it again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    #[error("{class} addresses are not allowed; {}", how_to_allow(.class, .address))]
    Address { class: &'static str, address: String },
    // The addresses themselves are not in the text: they would show the internal network to every client that may
    // enqueue.
    #[error("the name resolves to {class} addresses only, which are not allowed; {}", how_to_allow(.class, .host))]
    Name { class: &'static str, host: String },
}

fn how_to_allow(class: &str, target: &str) -> String {
    if class == METADATA_CLASS {
        return "an operator can allow one by adding exactly that address to callback_allow".to_owned();
    }
    // Characters that cannot be part of a host name cannot be written into the setting either.
    let shown: String = target.chars().filter(|c| c.is_ascii_graphic() && !"\"'\\".contains(*c)).take(100).collect();
    format!("an operator can allow it with callback_allow = [\"{shown}\"]")
}

/// Function that checks one address. `Err` names the class of a refused address.
type Judge = fn(IpAddr) -> Result<(), &'static str>;

/// The rule for the targets of callbacks.
#[derive(Clone)]
pub(super) struct Rule {
    pub(super) judge: Judge,
    /// True to allow every address except cloud metadata.
    pub(super) wide: bool,
    pub(super) allowed: Arc<[Allowed]>,
}

impl Rule {
    /// Allow the public internet, and what the operator allows in addition.
    pub(super) fn new(wide: bool, allowed: Vec<Allowed>) -> Self {
        Self { judge: public_only, wide, allowed: allowed.into() }
    }

    /// Check whether a callback may connect to this address. The address is written in the URL, or the name `host`
    /// resolves to it. `Err` names the class of a refused address.
    fn judge(&self, host: Option<&str>, address: IpAddr) -> Result<(), &'static str> {
        // The kernel connects to ::ffff:a.b.c.d over IPv4.
        let address = address.to_canonical();
        let any = |fits: &dyn Fn(&Allowed) -> bool| self.allowed.iter().any(fits);
        // Neither a network that contains the address nor a name that points to it is enough. Otherwise any person who
        // may change a DNS zone could get the credentials of the machine.
        if is_metadata(address) {
            return if any(&|entry| entry.is_address(address)) { Ok(()) } else { Err(METADATA_CLASS) };
        }
        let named = || host.is_some_and(|host| any(&|entry| entry.has_host(host)));
        (self.judge)(address).or_else(|class| {
            let may = self.wide || any(&|entry| entry.has_address(address)) || named();
            if may { Ok(()) } else { Err(class) }
        })
    }
}

const METADATA_CLASS: &str = "cloud metadata";

/// Addresses where clouds give every process on a machine data that include credentials, besides those in
/// 169.254.0.0/16. The host of Azure has a public address; the others are private ones, of which the wide switch lets
/// callbacks reach all but these.
const METADATA: &[IpAddr] = &[
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    // Alibaba.
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x100, 0, 0, 0, 0, 0x100, 0x200)),
    // Oracle.
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe)),
    // AWS.
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    // Google.
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
    // Scaleway.
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42)),
    // Akamai, which was Linode. OpenStack has the second one as well.
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0xa9fe, 0xa9fe)),
];

fn is_metadata(address: IpAddr) -> bool {
    // AWS, Azure and Google use 169.254.169.254, AWS also 169.254.170.2 and .23, Tencent 169.254.0.23. Clouds add
    // others, and the link-local network of a machine in a cloud has hardly anything else.
    let gives_out =
        |address: IpAddr| METADATA.contains(&address) || matches!(address, IpAddr::V4(v4) if v4.is_link_local());
    let carries_one = match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(v6) => carried_v4(v6).map(IpAddr::V4).any(gives_out),
    };
    gives_out(address) || carries_one
}

/// Places of the four bytes of an IPv4 address behind a NAT64 prefix of 48, 56, 64 and 96 bits (RFC 6052). Byte 8 is
/// always zero.
static NAT64_PLACES: [[usize; 4]; 4] = [[6, 7, 9, 10], [7, 9, 10, 11], [9, 10, 11, 12], [12, 13, 14, 15]];

/// The IPv4 addresses that a gateway may connect to instead of this one: for NAT64, 6to4 and forms that are no longer
/// in use.
fn carried_v4(address: Ipv6Addr) -> impl Iterator<Item = Ipv4Addr> {
    let places: &[[usize; 4]] = match address.segments() {
        // The prefix for use inside a network (RFC 8215). The network chooses how long its prefix within this one is.
        [0x64, 0xff9b, 1, ..] => &NAT64_PLACES,
        [0x64, 0xff9b, ..] | [0, 0, 0, 0, ..] => &NAT64_PLACES[3..],
        [0x2002, ..] => &[[2, 3, 4, 5]],
        _ => &[],
    };
    let bytes = address.octets();
    places.iter().map(move |place| Ipv4Addr::from(place.map(|at| bytes[at])))
}

/// Allow only addresses of the public internet.
pub(super) fn public_only(address: IpAddr) -> Result<(), &'static str> {
    match address {
        IpAddr::V4(v4) => public_v4(v4),
        IpAddr::V6(v6) => public_v6(v6),
    }
}

/// IPv4 networks that are not part of the public internet: IANA's special-purpose registry, and one public-looking
/// address that the host of a virtual machine answers.
const SPECIAL_V4: &[(Ipv4Addr, u32, &str)] = &[
    (Ipv4Addr::new(0, 0, 0, 0), 8, "unspecified"),
    (Ipv4Addr::new(10, 0, 0, 0), 8, "private"),
    (Ipv4Addr::new(100, 64, 0, 0), 10, "private"),
    (Ipv4Addr::new(127, 0, 0, 0), 8, "loopback"),
    // WireServer of Azure.
    (Ipv4Addr::new(168, 63, 129, 16), 32, METADATA_CLASS),
    (Ipv4Addr::new(169, 254, 0, 0), 16, METADATA_CLASS),
    (Ipv4Addr::new(172, 16, 0, 0), 12, "private"),
    (Ipv4Addr::new(192, 0, 0, 0), 24, "reserved"),
    (Ipv4Addr::new(192, 0, 2, 0), 24, "documentation"),
    // AS112, which answers for private names, and AMT. Both are anycast: any router nearby may answer.
    (Ipv4Addr::new(192, 31, 196, 0), 24, "reserved"),
    (Ipv4Addr::new(192, 52, 193, 0), 24, "reserved"),
    (Ipv4Addr::new(192, 88, 99, 0), 24, "reserved"),
    (Ipv4Addr::new(192, 168, 0, 0), 16, "private"),
    (Ipv4Addr::new(192, 175, 48, 0), 24, "reserved"),
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

/// Networks within 2000::/3 that are not part of the public internet, or whose addresses carry an IPv4 address that
/// [`public_v4`] would not see.
const SPECIAL_V6: &[(Ipv6Addr, u32, &str)] = &[
    // Teredo, benchmarking, ORCHID and the other protocol assignments.
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23, "reserved"),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32, "documentation"),
    // 6to4.
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16, "reserved"),
    // AS112, as for IPv4.
    (Ipv6Addr::new(0x2620, 0x4f, 0x8000, 0, 0, 0, 0, 0), 48, "reserved"),
    // The 6bone, which no longer exists.
    (Ipv6Addr::new(0x3ffe, 0, 0, 0, 0, 0, 0, 0), 16, "reserved"),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20, "documentation"),
];

fn public_v6(address: Ipv6Addr) -> Result<(), &'static str> {
    // The kernel connects to ::ffff:a.b.c.d over IPv4.
    if let Some(v4) = address.to_ipv4_mapped() {
        return public_v4(v4);
    }
    // Public addresses are assigned from 2000::/3 only. Everything else is refused without a list: loopback, fc00::/7,
    // fe80::/10, fec0::/10, multicast, NAT64, IPv4-compatible addresses, and ranges that are reserved later.
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

/// Check what needs no DNS: an address written as the host, and the names of this machine. The URL parser has already
/// turned octal, hexadecimal, single-number and full-width forms into plain addresses.
pub(super) fn check_host(url: &Url, rule: &Rule) -> Result<(), Refused> {
    let host = url.host_str().unwrap_or_default();
    let literal = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if let Ok(address) = literal.parse::<IpAddr>() {
        let address = address.to_canonical();
        return rule.judge(None, address).map_err(|class| Refused::Address { class, address: address.to_string() });
    }
    let name = plain_name(host);
    if name == "localhost" || name.ends_with(".localhost") {
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        return rule.judge(Some(&name), loopback).map_err(|class| Refused::Name { class, host: name });
    }
    Ok(())
}

/// A name in the form that the operator's entries have.
fn plain_name(host: &str) -> String {
    host.trim_end_matches('.').to_ascii_lowercase()
}

/// Return the addresses that the rule allows, and the class of a refused one.
fn sift(rule: &Rule, host: &str, addresses: Vec<SocketAddr>) -> (Vec<SocketAddr>, Option<&'static str>) {
    let (mut may, mut refused) = (Vec::new(), None);
    for address in addresses {
        match rule.judge(Some(host), address.ip()) {
            Ok(()) => may.push(address),
            Err(class) => refused = Some(class),
        }
    }
    (may, refused)
}

/// As [`check_host`], but also resolve the name of the host. A name that cannot be resolved now passes, because it may
/// exist later.
pub(super) async fn check_name(url: &Url, rule: &Rule, lookup: &dyn Lookup) -> Result<(), Refused> {
    check_host(url, rule)?;
    let Some(host) = url.domain().map(plain_name) else { return Ok(()) };
    let Ok(found) = lookup.lookup(host.clone()).await else { return Ok(()) };
    match sift(rule, &host, found) {
        (may, Some(class)) if may.is_empty() => Err(Refused::Name { class, host }),
        _ => Ok(()),
    }
}

type Looking = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// Source of DNS answers. In production it is the system's resolver; tests give their own answers, which may differ
/// each time.
pub(super) trait Lookup: Send + Sync + 'static {
    fn lookup(&self, host: String) -> Looking;
}

/// Most look-ups of this process at the same time: half of the threads that its runtime has for calls that block. The
/// other half is for files and for other names, such as that of the mail server.
const LOOKUPS_AT_ONCE: usize = 256;

/// The turns of the look-ups.
static TURNS: Semaphore = Semaphore::const_new(LOOKUPS_AT_ONCE);

/// The resolver of the operating system.
pub(super) struct SystemLookup;

impl Lookup for SystemLookup {
    fn lookup(&self, host: String) -> Looking {
        Box::pin(in_turn(&TURNS, move || Ok((host, 0).to_socket_addrs()?.collect())))
    }
}

/// Look a name up on a thread of its own, when there is a turn for it. The system waits for a DNS server that does not
/// answer for up to half a minute, and a caller waits for less. So the thread keeps the turn, and not the caller.
async fn in_turn<T: Send + 'static>(
    turns: &'static Semaphore,
    look_up: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let turn = turns.acquire().await.map_err(io::Error::other)?;
    let looking = spawn_blocking(move || {
        let found = look_up();
        drop(turn);
        found
    });
    looking.await.unwrap_or_else(|error| Err(error.into()))
}

/// The HTTP client's resolver. It passes on only the addresses that the rule allows.
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
        let (rule, host) = (self.rule.clone(), plain_name(name.as_str()));
        let looking = self.lookup.lookup(name.as_str().to_owned());
        Box::pin(async move {
            match sift(&rule, &host, looking.await?) {
                (may, Some(class)) if may.is_empty() => Err(Refused::Name { class, host }.into()),
                (may, _) => Ok(Box::new(may.into_iter()) as Addrs),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    fn rule(wide: bool, allowed: &str) -> Rule {
        use tickr_config::{Config, Flags};
        let flags = Flags::default().with("callback_allow", allowed);
        let config = Config::load(&flags, std::iter::empty(), None).unwrap().config;
        Rule::new(wide, config.callback_allow)
    }

    /// URLs, and the result of the check that needs no DNS. `None`: not a URL.
    const HOSTS: &[(&str, Option<bool>)] = &[
        // Loopback, in plain form and in every other form.
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
        // The other special networks of IPv4, with their first and last addresses.
        ("http://10.0.0.1/", Some(false)),
        ("http://10.255.255.255/", Some(false)),
        ("http://012.1.2.3/", Some(false)),
        ("http://100.64.0.1/", Some(false)),
        ("http://100.127.255.255/", Some(false)),
        ("http://169.254.169.254/latest/meta-data/", Some(false)),
        ("http://168.63.129.16/machine/?comp=goalstate", Some(false)),
        ("http://0xa83f8110/", Some(false)),
        ("http://2822734096/", Some(false)),
        ("http://[::ffff:168.63.129.16]/", Some(false)),
        ("http://[64:ff9b::a83f:8110]/", Some(false)),
        ("http://192.31.196.0/", Some(false)),
        ("http://192.31.196.255/", Some(false)),
        ("http://192.52.193.0/", Some(false)),
        ("http://192.52.193.255/", Some(false)),
        ("http://192.175.48.0/", Some(false)),
        ("http://192.175.48.255/", Some(false)),
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
        ("http://[fd00:ec2::23]/", Some(false)),
        ("http://[fd00:ec2::254]/", Some(false)),
        ("http://[fd00:c1::a9fe:a9fe]/opc/v2/", Some(false)),
        ("http://[fd00:c1::a9fe:a9fd]/", Some(false)),
        ("http://[fd00:42::42]/conf", Some(false)),
        ("http://[fd00:a9fe:a9fe::1]/v1/token", Some(false)),
        ("http://[fd00:a9fe:a9fe::2]/", Some(false)),
        ("http://[fd00:100::100:200]/latest/meta-data/", Some(false)),
        ("http://[fe80::a9fe:a9fe]/openstack/", Some(false)),
        ("http://[fe80::1]/", Some(false)),
        ("http://[febf::1]/", Some(false)),
        ("http://[fec0::1]/", Some(false)),
        ("http://[ff02::1]/", Some(false)),
        ("http://[64:ff9b::7f00:1]/", Some(false)),
        ("http://[64:ff9b:1::1]/", Some(false)),
        ("http://[64:ff9b:1::a9fe:a9fe]/", Some(false)),
        ("http://[64:ff9b:1:a9fe:a9:fe00::]/", Some(false)),
        ("http://[64:ff9b:1:a9:fe:a9fe::]/", Some(false)),
        ("http://[64:ff9b:1::a9:fea9:fe00:0]/", Some(false)),
        ("http://[64:ff9b:1:a83f:81:1000::]/", Some(false)),
        ("http://[64:ff9b:1::64:6464:c800:0]/", Some(false)),
        ("http://[64:ff9b:1:a00:7::]/", Some(false)),
        ("http://[100::1]/", Some(false)),
        ("http://[2001::1]/", Some(false)),
        ("http://[2001:0:7f00:1::]/", Some(false)),
        ("http://[2001:2::1]/", Some(false)),
        ("http://[2001:db8::1]/", Some(false)),
        ("http://[2002:7f00:1::]/", Some(false)),
        ("http://[2002:a9fe:a9fe::1]/", Some(false)),
        ("http://[2620:4f:8000::1]/", Some(false)),
        ("http://[2620:4f:8000:ffff::1]/", Some(false)),
        ("http://[3ffe::1]/", Some(false)),
        ("http://[3ffe:ffff::1]/", Some(false)),
        ("http://[3fff::1]/", Some(false)),
        ("http://[5f00::1]/", Some(false)),
        // Zones, and other forms that are not URLs.
        ("http://[fe80::1%25eth0]/", None),
        ("http://[fe80::1%eth0]/", None),
        ("http://[::1%251]/", None),
        ("http://[::ffff:127.0.0.1/", None),
        ("http://127.0.0.256/", None),
        ("http://0x100000000/", None),
        ("http://1.2.3.4.5/", None),
        ("http:///", None),
        // The public internet: the addresses next to the networks above.
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
        ("https://168.63.129.15/", Some(true)),
        ("https://168.63.129.17/", Some(true)),
        ("https://192.0.1.0/", Some(true)),
        ("https://192.31.195.255/", Some(true)),
        ("https://192.31.197.0/", Some(true)),
        ("https://192.52.192.255/", Some(true)),
        ("https://192.52.194.0/", Some(true)),
        ("https://192.175.47.255/", Some(true)),
        ("https://192.175.49.0/", Some(true)),
        ("https://[2620:4f:7fff::1]/", Some(true)),
        ("https://[2620:4f:8001::1]/", Some(true)),
        ("https://[3ffd:ffff::1]/", Some(true)),
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
            let verdict = Url::parse(text).ok().map(|url| check_host(&url, &rule(false, "")).is_ok());
            assert_eq!(verdict, *expected, "{text}");
        }
    }

    /// Forms of the addresses that give out credentials.
    const SECRETS: &[&str] = &[
        "http://169.254.169.254/latest/meta-data/",
        "http://0xa9fea9fe/",
        "http://2852039166/",
        "http://0251.0376.0251.0376/",
        "http://[0:0:0:0:0:ffff:a9fe:a9fe]/",
        "http://[::a9fe:a9fe]/",
        "http://[::ffff:0:169.254.169.254]/",
        "http://[2002:a9fe:a9fe::1]/",
        "http://[64:ff9b::a9fe:a9fe]/",
        "http://[64:ff9b:1::a9fe:a9fe]/",
        "http://[64:ff9b:1:a9fe:a9:fe00::]/",
        "http://[64:ff9b:1:a9:fe:a9fe::]/",
        "http://[64:ff9b:1::a9:fea9:fe00:0]/",
        "http://[64:ff9b:1:a83f:81:1000::]/",
        "http://[64:ff9b:1::64:6464:c800:0]/",
        "http://169.254.170.2/v2/credentials/",
        "http://169.254.170.23/v1/credentials",
        "http://169.254.0.23/latest/meta-data/cam/security-credentials/",
        "http://[::ffff:169.254.0.23]/",
        "http://169.254.255.255/",
        "http://168.63.129.16/machine/?comp=goalstate",
        "http://0xa83f8110/",
        "http://2822734096/",
        "http://[::ffff:168.63.129.16]/",
        "http://[64:ff9b::a83f:8110]/",
        "http://100.100.100.200/",
        "http://192.0.0.192/",
        "http://[fd00:ec2::23]/",
        "http://[fd00:ec2::254]/",
        "http://[fd20:ce::254]/",
        "http://[fd00:c1::a9fe:a9fe]/opc/v2/",
        "http://[fd00:42::42]/conf",
        "http://[fd00:a9fe:a9fe::1]/v1/token",
        "http://[fd00:100::100:200]/latest/meta-data/",
        "http://[fe80::a9fe:a9fe]/openstack/",
    ];

    #[test]
    fn the_wide_switch_allows_private_addresses_but_cloud_metadata() {
        for (text, expected) in HOSTS {
            let verdict = Url::parse(text).ok().map(|url| check_host(&url, &rule(true, "")).is_ok());
            assert_eq!(verdict, expected.map(|_| !SECRETS.contains(text)), "{text}");
        }
    }

    #[test]
    fn cloud_metadata_is_reached_only_by_naming_the_very_address() {
        let around = rule(true, "0.0.0.0/0,::/0,169.254.0.0/16,168.63.129.0/24,100.64.0.0/10,192.0.0.0/24");
        for text in SECRETS {
            for rule in [&rule(false, ""), &rule(true, ""), &around] {
                let refused = check_host(&Url::parse(text).unwrap(), rule).unwrap_err().to_string();
                let class = refused.contains("cloud metadata addresses are not allowed");
                assert!(class || (!rule.wide && !refused.is_empty()), "{text}: {refused}");
            }
        }
        let by_name = rule(false, "169.254.169.254,168.63.129.16,fd00:42::42");
        for text in
            ["http://169.254.169.254/", "http://[::ffff:a9fe:a9fe]/", "http://168.63.129.16/", "http://[fd00:42::42]/"]
        {
            assert_eq!(check_host(&Url::parse(text).unwrap(), &by_name), Ok(()), "{text}");
        }
        for text in ["http://169.254.169.253/", "http://169.254.170.2/", "http://100.100.100.200/"] {
            assert!(check_host(&Url::parse(text).unwrap(), &by_name).is_err(), "{text}");
        }
    }

    #[test]
    fn operators_allow_networks_and_hosts_of_their_own_and_no_others() {
        let own = rule(false, "10.20.0.0/16,fd00:1::/32,localhost,*.pods.localhost");
        let verdict = |text: &str| check_host(&Url::parse(text).unwrap(), &own).is_ok();
        for good in [
            "http://10.20.0.1/",
            "http://10.20.255.255:8080/x",
            "http://0x0a140001/",
            "http://[::ffff:10.20.3.4]/",
            "http://[fd00:1::7]/",
            "http://localhost:3000/",
            "http://LOCALHOST./",
            "http://a.pods.localhost/",
            "https://1.1.1.1/",
            "https://example.com/",
        ] {
            assert!(verdict(good), "{good}");
        }
        for bad in [
            "http://10.21.0.1/",
            "http://10.19.255.255/",
            "http://127.0.0.1/",
            "http://[::1]/",
            "http://[fd00:2::7]/",
            "http://[64:ff9b::a14:1]/",
            "http://pods.localhost/",
            "http://db.localhost/",
        ] {
            assert!(!verdict(bad), "{bad}");
        }
    }

    #[test]
    fn an_address_is_allowed_however_the_operator_writes_it() {
        for entry in ["10.0.0.7", "::ffff:10.0.0.7", "[::ffff:a00:7]"] {
            for text in ["http://10.0.0.7/", "http://[::ffff:10.0.0.7]/"] {
                assert_eq!(check_host(&Url::parse(text).unwrap(), &rule(false, entry)), Ok(()), "{entry} {text}");
            }
        }
    }

    #[test]
    fn a_refusal_names_the_setting_and_what_to_write_into_it() {
        let refused = |text: &str| check_host(&Url::parse(text).unwrap(), &rule(false, "")).unwrap_err().to_string();
        for (text, entry) in [
            ("http://127.0.0.1:9999/x", "127.0.0.1"),
            ("http://0x7f.1/", "127.0.0.1"),
            ("http://[::ffff:10.0.0.7]/", "10.0.0.7"),
            ("http://[fd00::7]:8080/", "fd00::7"),
            ("http://Shop.LOCALHOST./", "shop.localhost"),
        ] {
            let refused = refused(text);
            let said = format!("callback_allow = [\"{entry}\"]");
            assert!(refused.contains("not allowed") && refused.contains(&said), "{refused}");
            // The setting that the refusal names is enough.
            assert_eq!(check_host(&Url::parse(text).unwrap(), &rule(false, entry)), Ok(()));
        }
    }

    #[test]
    fn look_ups_that_hang_leave_threads_to_other_work_also_when_their_callers_are_gone() {
        static FEW: Semaphore = Semaphore::const_new(4);
        let (hang, hanging) = std::sync::mpsc::channel::<()>();
        let hanging = Arc::new(std::sync::Mutex::new(hanging));
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(5).build().unwrap();
        let other = runtime.block_on(async {
            for _ in 0..20 {
                let hanging = Arc::clone(&hanging);
                let look_up = in_turn(&FEW, move || {
                    let hanging = hanging.lock().unwrap();
                    hanging.recv().unwrap_err();
                    Ok(())
                });
                let _ = timeout(Duration::from_millis(10), look_up).await;
            }
            timeout(Duration::from_secs(20), spawn_blocking(|| 7)).await
        });
        // The look-ups end before the runtime, which waits for them.
        drop(hang);
        assert_eq!(other.expect("no thread is left").unwrap(), 7);
        assert_eq!(runtime.block_on(in_turn(&FEW, || Ok(7))).unwrap(), 7);
    }

    struct Answers(Vec<IpAddr>);

    impl Lookup for Answers {
        fn lookup(&self, _host: String) -> Looking {
            let answers = self.0.iter().map(|ip| SocketAddr::new(*ip, 0)).collect();
            Box::pin(std::future::ready(Ok(answers)))
        }
    }

    async fn resolve(answers: &[&str]) -> Result<Vec<String>, String> {
        resolve_by(rule(false, ""), answers).await
    }

    async fn resolve_by(rule: Rule, answers: &[&str]) -> Result<Vec<String>, String> {
        let answers = answers.iter().map(|text| text.parse().unwrap()).collect();
        let guard = Guard { rule, lookup: Arc::new(Answers(answers)) };
        match guard.resolve("Hooks.example".parse().unwrap()).await {
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
    async fn a_name_that_operators_allow_may_be_private_but_no_cloud_metadata() {
        let answers = ["10.1.2.3", "169.254.169.254", "::ffff:168.63.129.16", "fd00:ec2::254", "fe80::1"];
        assert_eq!(resolve_by(rule(false, "hooks.example"), &answers).await.unwrap(), ["10.1.2.3", "fe80::1"]);
        assert_eq!(resolve_by(rule(false, "10.0.0.0/8"), &answers).await.unwrap(), ["10.1.2.3"]);
        assert_eq!(resolve_by(rule(true, ""), &answers[1..4]).await.unwrap_err().matches("cloud metadata").count(), 1);
        assert!(resolve_by(rule(false, "hook.example,*.hooks.example"), &answers).await.is_err());
        let named = resolve_by(rule(false, "169.254.169.254"), &answers).await.unwrap();
        assert_eq!(named, ["169.254.169.254"]);
    }

    #[tokio::test]
    async fn a_name_is_looked_up_before_it_is_called_useless() {
        let url = Url::parse("https://hooks.example/in").unwrap();
        let answers = |list: &[&str]| Answers(list.iter().map(|text| text.parse().unwrap()).collect());
        let refused = check_name(&url, &rule(false, ""), &answers(&["10.1.2.3"])).await.unwrap_err().to_string();
        assert!(refused.contains("private") && refused.contains("callback_allow = [\"hooks.example\"]"), "{refused}");
        for may in [answers(&["10.1.2.3", "1.1.1.1"]), answers(&[])] {
            assert_eq!(check_name(&url, &rule(false, ""), &may).await, Ok(()));
        }
        assert_eq!(check_name(&url, &rule(false, "hooks.example"), &answers(&["10.1.2.3"])).await, Ok(()));
    }

    #[tokio::test]
    async fn a_name_without_public_addresses_is_refused_without_naming_them() {
        let refused = resolve(&["10.1.2.3", "192.168.4.5"]).await.unwrap_err();
        assert!(refused.contains("private") && !refused.contains("10.1") && !refused.contains("192"), "{refused}");
    }
}
