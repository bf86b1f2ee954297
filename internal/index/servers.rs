//! The servers that a Redis URL names, and the one of them that holds the index.
//!
//! All keys of an index are in one hash tag, so one server holds them: the one of the URL, the master that sentinels
//! watch, or the master of one slot of a Redis Cluster. Every connection asks anew which server that is. So no
//! connection follows redirections: a server that is the wrong one answers an error, and the error ends the connection.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, ErrorKind, IntoConnectionInfo, RedisConnectionInfo,
    RedisError, RedisResult, TlsCertificates,
};
use tokio::task::JoinSet;

use super::IndexError;
use super::cluster::ClusterNodes;
use super::sentinels::Sentinels;

/// The way in which one server is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexMode {
    /// The URL names one server.
    Single,
    /// Sentinels know the master.
    Sentinel,
    /// The nodes of a Redis Cluster know the master of the slot.
    Cluster,
}

impl IndexMode {
    /// Return the mode as it is written in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Sentinel => "sentinel",
            Self::Cluster => "cluster",
        }
    }
}

/// Files for connections with TLS, each in the PEM format.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexTls {
    /// Certificates of the authorities that are trusted, in place of the public ones.
    pub ca_file: Option<PathBuf>,
    /// Certificate that is shown to a server that asks for one.
    pub cert_file: Option<PathBuf>,
    /// Private key of that certificate.
    pub key_file: Option<PathBuf>,
}

/// Host and port of a server, without account.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

impl Address {
    /// Parse `host:port`, `[v6]:port`, or a host alone.
    fn parse(text: &str, usual_port: u16) -> Option<Self> {
        let (host, port) = match text.rfind(':') {
            Some(colon) if !text.ends_with(']') => (&text[..colon], text[colon + 1..].parse().ok()?),
            _ => (text, usual_port),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        (!host.is_empty()).then_some(Self { host, port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// Everything that a connection needs besides the address.
#[derive(Clone)]
pub(super) struct Access {
    /// User, password and database.
    pub(super) account: RedisConnectionInfo,
    with_tls: bool,
    certificates: Option<TlsCertificates>,
}

impl Access {
    pub(super) fn with_tls(&self) -> bool {
        self.with_tls
    }

    /// Return this access with another account.
    pub(super) fn of(&self, account: RedisConnectionInfo) -> Self {
        Self { account, ..self.clone() }
    }

    pub(super) fn client(&self, address: &Address) -> RedisResult<Client> {
        let Address { host, port } = address.clone();
        let place = if self.with_tls {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(host, port)
        };
        // Many tasks share one connection. Without Nagle's algorithm no call waits for the TCP acknowledgement of
        // another one.
        let tcp = TcpSettings::default().set_nodelay(true);
        let info = place.into_connection_info()?.set_redis_settings(self.account.clone()).set_tcp_settings(tcp);
        match &self.certificates {
            Some(certificates) if self.with_tls => Client::build_with_tls(info, certificates.clone()),
            _ => Client::open(info),
        }
    }
}

/// The servers of one URL. Cheap to clone.
#[derive(Clone)]
pub(super) struct Servers {
    shared: Arc<ServersInner>,
}

struct ServersInner {
    finder: Finder,
    access: Access,
    /// The server that holds the index, as the last connection found it.
    found: Mutex<Option<String>>,
    /// Epoch of the newest word about the master. After a reset of the sentinels it is a lower one.
    epoch: AtomicU64,
}

enum Finder {
    /// The server of the URL, and its name in messages.
    One(Client, String),
    Sentinels(Sentinels),
    Cluster(ClusterNodes),
}

/// The server that holds the index, as of now.
#[derive(Clone)]
pub(super) struct Master {
    client: Client,
    name: String,
    /// Less than half of the servers answered, and another server was named by a newer word before.
    is_doubtful: bool,
}

impl Master {
    /// Return its host and port, or the path of its socket.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Return whether a connection to `server` that works should be ended, because this server is the master by now.
    pub(super) fn replaces(&self, server: &str) -> bool {
        !self.is_doubtful && self.name != server
    }
}

impl Servers {
    /// Read a URL in one of the forms that `config` checks. `key` is a key of the index.
    pub(super) fn new(url: &str, tls: &IndexTls, key: &str) -> Result<Self, IndexError> {
        let url = url.trim();
        let (scheme, rest) = url.split_once("://").ok_or(IndexError::Url)?;
        let with_tls = scheme.starts_with("rediss");
        let certificates = if with_tls { read_certificates(tls)? } else { None };
        let parsed = if scheme.ends_with("+sentinel") {
            Parsed::of_many(rest, 26_379, with_tls)
        } else if scheme.ends_with("+cluster") {
            Parsed::of_many(rest, 6_379, with_tls)
        } else {
            Parsed::of_one(url)
        };
        let Parsed { addresses, account, path, query } = parsed.ok_or(IndexError::Url)?;
        let mut access = Access { account, with_tls, certificates };
        let finder = if scheme.ends_with("+sentinel") {
            let parameters = Parameters::parse(query);
            // Sentinels have accounts of their own, and no databases.
            let asked = access.of(parameters.sentinel);
            access = access.of(access.account.clone().set_db(parameters.database));
            let name = decoded(path.trim_matches('/'));
            Sentinels::new(name, &addresses, &asked).map(Finder::Sentinels)
        } else if scheme.ends_with("+cluster") {
            ClusterNodes::new(key, &addresses, &access).map(Finder::Cluster)
        } else {
            let info = url.into_connection_info().map_err(|_| IndexError::Url)?;
            let name = info.addr().to_string();
            let client = match addresses.first() {
                Some(address) => access.client(address),
                None => Client::open(info),
            };
            client.map(|client| Finder::One(client, name))
        };
        let finder = finder.map_err(|_| IndexError::Url)?;
        let (found, epoch) = (Mutex::default(), AtomicU64::new(0));
        Ok(Self { shared: Arc::new(ServersInner { finder, access, found, epoch }) })
    }

    pub(super) fn mode(&self) -> IndexMode {
        match self.shared.finder {
            Finder::One(..) => IndexMode::Single,
            Finder::Sentinels(_) => IndexMode::Sentinel,
            Finder::Cluster(_) => IndexMode::Cluster,
        }
    }

    /// Return the server that holds the index, as the last connection found it. None before the first one.
    pub(super) fn found(&self) -> Option<String> {
        self.shared.found.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Return whether a connection to this server should be ended, because another one holds the index by now.
    pub(super) fn has_left(&self, name: &str) -> bool {
        self.found().is_some_and(|found| found != name)
    }

    /// Find the server that holds the index. It may not answer.
    pub(super) async fn master(&self) -> RedisResult<Master> {
        let known = self.shared.epoch.load(Ordering::Relaxed);
        let word = match &self.shared.finder {
            Finder::One(client, name) => {
                return Ok(Master { client: client.clone(), name: name.clone(), is_doubtful: false });
            }
            Finder::Sentinels(sentinels) => sentinels.master(known).await?,
            Finder::Cluster(nodes) => nodes.master(known).await?,
        };
        self.judge(&word)
    }

    /// Return the master that a word names. The older word of a minority is doubtful; that of a majority is not,
    /// because an operator may have reset the sentinels.
    fn judge(&self, word: &Word) -> RedisResult<Master> {
        let Word { opinion: Opinion { epoch, master }, is_of_majority } = word;
        let is_doubtful = !is_of_majority && *epoch < self.shared.epoch.load(Ordering::Relaxed);
        if !is_doubtful {
            self.shared.epoch.store(*epoch, Ordering::Relaxed);
        }
        Ok(Master { client: self.shared.access.client(master)?, name: master.to_string(), is_doubtful })
    }

    /// Connect to the server that holds the index. Return the connection, and the name of the server.
    pub(super) async fn connect(&self, config: &AsyncConnectionConfig) -> RedisResult<(MultiplexedConnection, String)> {
        let Master { client, name, .. } = self.master().await?;
        let conn = client.get_multiplexed_async_connection_with_config(config).await?;
        self.note(&name);
        Ok((conn, name))
    }

    /// Note the server that holds the index. Tell it when it is another one than before.
    fn note(&self, name: &str) {
        let mut found = self.shared.found.lock().unwrap_or_else(PoisonError::into_inner);
        if found.as_deref() == Some(name) {
            return;
        }
        let before = found.replace(name.to_owned());
        drop(found);
        if let Some(before) = before {
            metrics::counter!("tickr_index_server_changes_total").increment(1);
            tracing::warn!(now = name, before, "another redis server holds the index");
        }
    }
}

/// The parts of a URL.
struct Parsed<'a> {
    addresses: Vec<Address>,
    account: RedisConnectionInfo,
    path: &'a str,
    query: &'a str,
}

impl<'a> Parsed<'a> {
    /// Read a URL of one server. A server behind a socket has no address.
    fn of_one(url: &'a str) -> Option<Self> {
        let info = url.into_connection_info().ok()?;
        let addresses = match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                vec![Address { host: host.clone(), port: *port }]
            }
            _ => Vec::new(),
        };
        Some(Self { addresses, account: info.redis_settings().clone(), path: "", query: "" })
    }

    /// Read what follows the scheme in a URL of several servers.
    fn of_many(rest: &'a str, usual_port: u16, with_tls: bool) -> Option<Self> {
        let (before_query, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = before_query.split_at(before_query.find('/').unwrap_or(before_query.len()));
        let (account, hosts) = authority.rfind('@').map_or(("", authority), |at| authority.split_at(at + 1));
        let addresses: Option<Vec<Address>> = hosts.split(',').map(|host| Address::parse(host, usual_port)).collect();
        // The driver decodes the user and the password.
        let scheme = if with_tls { "rediss" } else { "redis" };
        let first = hosts.split(',').next()?;
        let info = format!("{scheme}://{account}{first}").into_connection_info().ok()?;
        Some(Self { addresses: addresses?, account: info.redis_settings().clone(), path, query })
    }
}

/// The parameters of a URL with sentinels.
struct Parameters {
    database: i64,
    /// Account for the sentinels themselves.
    sentinel: RedisConnectionInfo,
}

impl Parameters {
    fn parse(query: &str) -> Self {
        let (mut database, mut sentinel) = (0, RedisConnectionInfo::default());
        for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            match name {
                "db" => database = value.parse().unwrap_or(0),
                "sentinel_user" => sentinel = sentinel.set_username(decoded(value)),
                "sentinel_password" => sentinel = sentinel.set_password(decoded(value)),
                _ => {}
            }
        }
        Self { database, sentinel }
    }
}

/// Decode percent escapes. Bytes that are no UTF-8 text are replaced.
fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut plain, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while at < bytes.len() {
        let hex = text.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        if let Some(byte) = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            plain.push(byte);
            at += 3;
        } else {
            plain.push(bytes[at]);
            at += 1;
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}

/// Read the files for TLS. None when there are none, so that the public authorities are trusted.
fn read_certificates(tls: &IndexTls) -> Result<Option<TlsCertificates>, IndexError> {
    let read = |setting: &'static str, file: &Option<PathBuf>, kind: &'static str| {
        let Some(file) = file else { return Ok(None) };
        let wrong = |cause: String| IndexError::Certificates { setting, file: file.clone(), cause };
        let text = std::fs::read(file).map_err(|error| wrong(error.to_string()))?;
        // The driver takes a file without any certificate for a list of authorities that trusts no server.
        if !text.windows(kind.len()).any(|part| part == kind.as_bytes()) {
            return Err(wrong(format!("the file has no {} in the PEM format", kind.to_lowercase())));
        }
        Ok(Some(text))
    };
    let root_cert = read("redis_ca_file", &tls.ca_file, "CERTIFICATE")?;
    let client_cert = read("redis_cert_file", &tls.cert_file, "CERTIFICATE")?;
    let client_key = read("redis_key_file", &tls.key_file, "PRIVATE KEY")?;
    try_out("redis_ca_file", tls.ca_file.as_deref(), None, root_cert.clone())?;
    // Without certificates in front of it, only the key can be wrong.
    let key_alone = client_key.clone().map(|client_key| ClientTlsConfig { client_cert: Vec::new(), client_key });
    try_out("redis_key_file", tls.key_file.as_deref(), key_alone, None)?;
    let client_tls =
        client_cert.zip(client_key).map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
    try_out("redis_cert_file", tls.cert_file.as_deref(), client_tls.clone(), None)?;
    if root_cert.is_none() && client_tls.is_none() {
        return Ok(None);
    }
    Ok(Some(TlsCertificates { client_tls, root_cert }))
}

/// Let the driver parse the text of a file before its first use, so that the error names the setting. Otherwise a wrong
/// file would look like a wrong URL.
fn try_out(
    setting: &'static str,
    file: Option<&Path>,
    client_tls: Option<ClientTlsConfig>,
    root_cert: Option<Vec<u8>>,
) -> Result<(), IndexError> {
    let Some(file) = file else { return Ok(()) };
    let any = ConnectionAddr::TcpTls { host: "localhost".to_owned(), port: 6_379, insecure: false, tls_params: None };
    let built = Client::build_with_tls(any, TlsCertificates { client_tls, root_cert });
    built.map(drop).map_err(|error| {
        let cause = format!("the file cannot be read as PEM, and a key with a passphrase cannot be used: {error}");
        IndexError::Certificates { setting, file: file.to_owned(), cause }
    })
}

/// One server's word about which server is the master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Opinion {
    /// Number of the election that made it the master. A higher one is newer.
    pub(super) epoch: u64,
    pub(super) master: Address,
}

/// The newest opinion of the servers that answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) opinion: Opinion,
    /// More than half of the asked servers answered.
    pub(super) is_of_majority: bool,
}

/// Return the newest opinion of the asked servers as soon as more than half of them have one, and one of these is as
/// new as the `known` epoch. Otherwise return the newest opinion after all of them were asked.
///
/// A server that was cut off from the others keeps an old opinion, and may be the first to answer. Just after an
/// election most of them may have an old one.
pub(super) async fn newest(
    mut asked: JoinSet<Result<Opinion, String>>,
    known: u64,
    whose: &'static str,
) -> RedisResult<Word> {
    let enough = asked.len() / 2 + 1;
    let (mut opinions, mut failures) = (Vec::new(), Vec::new());
    while let Some(answer) = asked.join_next().await {
        match answer {
            Ok(Ok(opinion)) => opinions.push(opinion),
            Ok(Err(failure)) => failures.push(failure),
            Err(error) => failures.push(error.to_string()),
        }
        if opinions.len() >= enough && opinions.iter().any(|opinion| opinion.epoch >= known) {
            break;
        }
    }
    let is_of_majority = opinions.len() >= enough;
    let newest = opinions.into_iter().max_by_key(|opinion| opinion.epoch);
    newest.map(|opinion| Word { opinion, is_of_majority }).ok_or_else(|| {
        failures.sort_unstable();
        RedisError::from((ErrorKind::Client, whose, failures.join("; ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        Address::parse(text, 26_379).unwrap()
    }

    #[test]
    fn addresses_have_the_usual_port_and_survive_the_sixth_version() {
        for (text, shown) in [("a", "a:26379"), ("a:1", "a:1"), ("[::1]", "[::1]:26379"), ("[::1]:7", "[::1]:7")] {
            assert_eq!(address(text).to_string(), shown);
        }
        assert_eq!(address("[::1]:7").host, "::1");
        assert!(Address::parse(":1", 1).is_none() && Address::parse("a:x", 1).is_none());
    }

    #[test]
    fn a_url_of_many_servers_has_one_account() {
        let url = "u%40x:p%2Fw@a:1,b,[::1]:3/main?db=2&sentinel_password=s%26t";
        let parsed = Parsed::of_many(url, 26_379, true).unwrap();
        assert_eq!(parsed.addresses, ["a:1", "b:26379", "[::1]:3"].map(address));
        assert_eq!((parsed.account.username(), parsed.account.password()), (Some("u@x"), Some("p/w")));
        assert_eq!((parsed.path, parsed.query), ("/main", "db=2&sentinel_password=s%26t"));
        assert_eq!(decoded("s%26t%"), "s&t%");
        let parameters = Parameters::parse(parsed.query);
        assert_eq!((parameters.database, parameters.sentinel.password()), (2, Some("s&t")));
        assert_eq!(parameters.sentinel.username(), None);
    }

    #[test]
    fn every_form_of_a_url_has_its_mode() {
        for (url, mode, found) in [
            ("redis://u:p@h/3", IndexMode::Single, Some("h:6379")),
            ("rediss://h:1", IndexMode::Single, Some("h:1")),
            ("redis+unix:///run/r.sock?db=2", IndexMode::Single, Some("/run/r.sock")),
            ("redis+sentinel://u:p@a,b/main?db=1", IndexMode::Sentinel, None),
            ("rediss+cluster://u:p@a:1,b:2", IndexMode::Cluster, None),
        ] {
            let servers = Servers::new(url, &IndexTls::default(), "{tickr}:epoch").unwrap();
            assert_eq!(servers.mode(), mode, "{url}");
            let Finder::One(_, name) = &servers.shared.finder else {
                assert_eq!(found, None);
                continue;
            };
            assert_eq!(Some(name.as_str()), found);
        }
        for url in ["h", "http://h", "redis+sentinel://a,/m"] {
            assert!(Servers::new(url, &IndexTls::default(), "k").is_err(), "{url}");
        }
    }

    #[test]
    fn a_file_without_a_certificate_is_refused_with_the_name_of_its_setting() {
        let tls = IndexTls { ca_file: Some("/dev/null".into()), ..IndexTls::default() };
        let error = Servers::new("rediss://h", &tls, "k").map(drop).unwrap_err().to_string();
        assert!(error.contains("redis_ca_file") && error.contains("/dev/null"), "{error}");
        let tls = IndexTls { key_file: Some("/nowhere".into()), ..IndexTls::default() };
        let error = Servers::new("rediss://h", &tls, "k").map(drop).unwrap_err().to_string();
        assert!(error.contains("redis_key_file") && error.contains("/nowhere"), "{error}");
        assert!(Servers::new("redis://h", &tls, "k").is_ok(), "a URL without TLS needs no file");
    }

    #[test]
    fn a_file_that_the_driver_cannot_parse_is_refused_with_the_name_of_its_setting() {
        let file = |name: &str, kind: &str, body: &str| {
            let path = std::env::temp_dir().join(format!("tickr-{}-{name}", std::process::id()));
            std::fs::write(&path, format!("-----BEGIN {kind}-----\n{body}\n-----END {kind}-----\n")).unwrap();
            path
        };
        let torn = file("torn.pem", "CERTIFICATE", "MII!");
        let encrypted = file("encrypted.pem", "ENCRYPTED PRIVATE KEY", "MIIB");
        let key = file("key.pem", "PRIVATE KEY", "MIIB");
        let none = IndexTls::default();
        for (setting, tls) in [
            ("redis_ca_file", IndexTls { ca_file: Some(torn.clone()), ..none.clone() }),
            ("redis_key_file", IndexTls { key_file: Some(encrypted.clone()), ..none.clone() }),
            (
                "redis_cert_file",
                IndexTls { cert_file: Some(torn.clone()), key_file: Some(key.clone()), ..none.clone() },
            ),
        ] {
            let error = Servers::new("rediss://h", &tls, "k").map(drop).unwrap_err().to_string();
            assert!(error.starts_with(&format!("cannot use {setting} ")), "{setting}: {error}");
        }
        for path in [torn, encrypted, key] {
            std::fs::remove_file(path).unwrap();
        }
    }

    #[tokio::test]
    async fn the_newest_opinion_of_a_majority_counts() {
        let opinion = |epoch, host: &str| Ok(Opinion { epoch, master: address(host) });
        let mut asked = JoinSet::new();
        for said in [opinion(3, "old"), opinion(4, "new"), opinion(3, "old")] {
            asked.spawn(async move { said });
        }
        // Two of three may be those with the old opinion; all but one are read when two fail.
        let newest_of = newest(asked, 0, "no sentinel answers").await.unwrap();
        assert!(newest_of.is_of_majority && newest_of.opinion.epoch >= 3);

        // After an election, a majority that has not heard of it is not enough.
        let mut asked = JoinSet::new();
        for said in [opinion(3, "old"), opinion(3, "old"), opinion(4, "new")] {
            asked.spawn(async move { said });
        }
        assert_eq!(newest(asked, 4, "no sentinel answers").await.unwrap().opinion.master, address("new"));

        let mut asked = JoinSet::new();
        for said in [opinion(3, "old"), opinion(4, "new"), Err("c: out".to_owned()), Err("d: out".to_owned())] {
            asked.spawn(async move { said });
        }
        let newest_of = newest(asked, 0, "no sentinel answers").await.unwrap();
        assert_eq!((newest_of.is_of_majority, newest_of.opinion.master), (false, address("new")));

        let mut asked = JoinSet::new();
        for said in [Err("b: out".to_owned()), Err("a: out".to_owned())] {
            asked.spawn(async move { said });
        }
        let error = newest(asked, 0, "no sentinel answers").await.unwrap_err().to_string();
        assert!(error.contains("no sentinel answers") && error.contains("a: out; b: out"), "{error}");
    }

    #[test]
    fn an_older_word_of_a_minority_ends_no_connection_to_the_master() {
        let servers = Servers::new("redis+sentinel://a,b,c/main", &IndexTls::default(), "k").unwrap();
        let replaces = |epoch, host, is_of_majority| {
            let word = Word { opinion: Opinion { epoch, master: address(host) }, is_of_majority };
            servers.judge(&word).unwrap().replaces("new:26379")
        };
        assert!(!replaces(7, "new", true));
        assert!(!replaces(6, "old", false), "a sentinel was cut off during the last election");
        assert!(replaces(8, "newest", false), "the last sentinel knows of an election");
        assert!(!replaces(7, "old", false));
        assert!(replaces(1, "other", true), "an operator has reset the sentinels");
        assert!(replaces(1, "other", false), "the reset counts from now on");
    }
}
