//! The URL of a server. It may contain a password, which must never be shown.

use std::fmt;
use std::path::PathBuf;

use secrecy::{ExposeSecret, SecretString};

use super::error::Wrong;

/// The URL of MySQL or Redis. `Debug` and `Display` mask the password; only [`ServerUrl::expose`] returns it.
#[derive(Clone)]
pub struct ServerUrl {
    url: SecretString,
    masked: String,
}

impl ServerUrl {
    /// Parse a MySQL URL of one server or several: `mysql://user:password@host:port,host:port/database`. `mariadb://` is
    /// rewritten, because the driver knows one scheme.
    pub fn mysql(text: &str) -> Result<ServerUrl, UrlError> {
        let parts = Parts::split(text.trim(), &["mysql", "mariadb"])?;
        parts.check_hosts(parts.query.split('&').any(|pair| pair.starts_with("socket=")))?;
        parts.check_mysql_parameters()?;
        match parts.path.strip_prefix('/') {
            Some(database) if !database.is_empty() && !database.contains('/') => Ok(parts.rebuilt("mysql")),
            _ => Err(UrlError::NoDatabase),
        }
    }

    /// Parse a MySQL URL that may name one server only.
    pub fn one_mysql(text: &str) -> Result<ServerUrl, UrlError> {
        let parts = Parts::split(text.trim(), &["mysql", "mariadb"])?;
        if parts.hosts.len() > 1 { Err(UrlError::SeveralHosts) } else { Self::mysql(text) }
    }

    /// Parse a Redis URL. It has one of these forms, with `rediss` for TLS:
    ///
    /// - `redis://user:password@host:port/db`: one server
    /// - `redis+unix:///path` and `unix:///path`: one server behind a socket
    /// - `redis+sentinel://user:password@host:port,host:port/name?db=0`: the master that these sentinels call `name`
    /// - `redis+cluster://user:password@host:port,host:port`: the Redis Cluster of these nodes
    pub fn redis(text: &str) -> Result<ServerUrl, UrlError> {
        let parts = Parts::split(text.trim(), &REDIS_SCHEMES)?;
        match parts.scheme {
            "redis+unix" | "unix" => parts.check_redis_socket()?,
            "redis+sentinel" | "rediss+sentinel" => parts.check_sentinels()?,
            "redis+cluster" | "rediss+cluster" => parts.check_redis_cluster()?,
            _ => parts.check_one_redis()?,
        }
        Ok(parts.rebuilt(parts.scheme))
    }

    /// Return true if connections to this Redis use TLS.
    pub fn is_redis_with_tls(&self) -> bool {
        self.expose().starts_with("rediss")
    }

    /// Return the whole URL with its password, for the driver only.
    pub fn expose(&self) -> &str {
        self.url.expose_secret()
    }

    /// Return true if a connection goes to another machine without a check of the server's certificate. An attacker
    /// on the network could then impersonate the server, and read and change the traffic.
    pub fn is_unverified(&self) -> bool {
        let Ok(parts) = Parts::split(self.expose(), &["mysql"]) else { return false };
        let are_here = parts.hosts.iter().all(|host| {
            let name = host.name.trim_start_matches('[').trim_end_matches(']');
            name.parse().map_or(name == "localhost", |ip: std::net::IpAddr| ip.is_loopback())
        });
        !are_here && parts.parameter(&["socket"]).is_none() && !parts.reads("ssl-ca")
    }

    /// Return the files that a connection to MySQL reads to check the server and to show who it is, each with the name
    /// of its parameter.
    pub fn tls_files(&self) -> Vec<(&'static str, PathBuf)> {
        let Ok(parts) = Parts::split(self.expose(), &["mysql"]) else { return Vec::new() };
        let files = [["ssl-ca", "sslca"], CERT, KEY].into_iter().filter(|[name, _]| parts.reads(name));
        let named = files.filter_map(|names| Some((names[0], decoded(parts.parameter(&names)?))));
        // The driver takes a certificate in place of a file as well.
        let files = named.filter(|(_, text)| !text.trim_start().starts_with("-----BEGIN"));
        files.map(|(name, file)| (name, PathBuf::from(file))).collect()
    }

    /// Return true if both URLs name the same database, as far as their texts show it. The account does not matter.
    pub fn same_database(&self, other: &ServerUrl) -> bool {
        let places = |url: &ServerUrl| -> Vec<(String, String)> {
            let Ok(parts) = Parts::split(url.expose(), &["mysql"]) else { return Vec::new() };
            let socket = parts.query.split('&').find_map(|pair| pair.strip_prefix("socket="));
            let servers = match socket {
                Some(path) => vec![path.replace("%2F", "/")],
                None => parts.hosts.iter().map(Host::place).collect(),
            };
            servers.into_iter().map(|server| (server, parts.path.to_owned())).collect()
        };
        let others = places(other);
        places(self).iter().any(|place| others.contains(place))
    }

    /// Return true if the URL names a collation of another character set than utf8mb4. MySQL refuses it in a session that
    /// is utf8mb4. MariaDB has collations without a character set in their names, which fit each Unicode one.
    pub fn has_foreign_collation(&self) -> bool {
        let Ok(parts) = Parts::split(self.expose(), &["mysql"]) else { return false };
        let collation = parts.parameter(&["collation"]).map(|name| decoded(name).to_ascii_lowercase());
        collation.is_some_and(|name| !["utf8mb4_", "uca1400_"].iter().any(|beginning| name.starts_with(beginning)))
    }

    /// Return the URL with its password, and every query value that could be one, replaced by `***`.
    pub fn masked(&self) -> &str {
        &self.masked
    }
}

impl fmt::Debug for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerUrl({})", self.masked)
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.masked)
    }
}

/// The reason why a URL was refused. It never quotes the URL, because a broken URL may contain its password anywhere.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// There is no `://`, or the text before it is another scheme.
    #[error("the scheme is not one of {0}")]
    Scheme(String),
    /// A reserved character in a position where none is allowed, most likely in a password.
    #[error("a reserved or invalid character is in the wrong position")]
    Reserved,
    /// No host and no socket.
    #[error("the host is missing")]
    NoHost,
    /// Several servers where only one may be named.
    #[error("the url names several servers")]
    SeveralHosts,
    /// A socket path beside several servers.
    #[error("the url has a socket path and several servers")]
    SocketOfSeveral,
    /// The port is not a number up to 65535.
    #[error("the port is not a port number")]
    BadPort,
    /// A MySQL URL without a database.
    #[error("the database is missing")]
    NoDatabase,
    /// A unix socket URL without a path.
    #[error("the socket path is missing")]
    NoSocketPath,
    /// A Redis database that is not a number.
    #[error("the redis database is not a number")]
    BadRedisDatabase,
    /// A version of the Redis protocol that does not exist.
    #[error("protocol is none of {}", REDIS_PROTOCOLS.join(", "))]
    BadRedisProtocol,
    /// A user of Redis or of its sentinels without a password. The driver would not log in at all.
    #[error("the redis user has no password")]
    UserWithoutPassword,
    /// A URL with sentinels that does not say which master they watch.
    #[error("the name of the master is missing")]
    NoMasterName,
    /// A Redis Cluster with a database.
    #[error("a redis cluster has no databases")]
    ClusterDatabase,
    /// A parameter that such a URL does not have.
    #[error("the url has an unknown parameter")]
    UnknownParameter,
    /// A parameter that a MySQL URL does not have.
    #[error("the url has an unknown parameter")]
    UnknownMysqlParameter,
    /// A parameter without a value that needs one.
    #[error("a parameter of the url has no value")]
    EmptyParameter,
    /// Another word than those for the use of TLS.
    #[error("ssl-mode is none of {}", SSL_MODES.join(", "))]
    BadSslMode,
    /// A certificate without its key, or a key without its certificate.
    #[error("ssl-cert and ssl-key need each other")]
    CertWithoutKey,
    /// A size of the statement cache that is not a number.
    #[error("statement-cache-capacity is not a number")]
    BadStatementCache,
}

impl From<UrlError> for Wrong {
    fn from(error: UrlError) -> Wrong {
        let right = match &error {
            UrlError::Scheme(_) | UrlError::NoHost => "write it like scheme://user:password@host:port/database",
            UrlError::Reserved | UrlError::BadPort => "percent-encode / ? # @ : % in a password, for example # as %23",
            UrlError::SeveralHosts => {
                "name one server; mysql_url and [reports] mysql_url may name several, and redis_url with \
                 redis+sentinel:// or redis+cluster://"
            }
            UrlError::SocketOfSeveral => "name the servers by host and port, or name one socket",
            UrlError::NoDatabase => "name it at the end, like mysql://user@host:3306/tickr",
            UrlError::NoSocketPath => "write it like redis+unix:///run/redis.sock",
            UrlError::BadRedisDatabase => "write it like redis://host:6379/0",
            UrlError::NoMasterName => "write it like redis+sentinel://user:password@host:26379,host:26379/mymaster",
            UrlError::ClusterDatabase => "write it like redis+cluster://user:password@host:6379,host:6379",
            UrlError::BadRedisProtocol => "write it like redis://host:6379/0?protocol=resp3",
            UrlError::UserWithoutPassword => {
                "write it like redis://user:password@host, or redis://:password@host for a password alone; a socket takes \
                 them as ?user=USER&pass=PASSWORD"
            }
            UrlError::UnknownParameter => {
                "the parameters are protocol for one server, whose database is at the end as in redis://host:6379/0; db, \
                 user, pass and protocol for a socket; db, sentinel_user and sentinel_password for sentinels; and none \
                 for a cluster"
            }
            UrlError::UnknownMysqlParameter => {
                "the parameters are ssl-mode, ssl-ca, ssl-cert, ssl-key, socket, charset, collation, timezone and \
                 statement-cache-capacity"
            }
            UrlError::EmptyParameter => "write NAME=VALUE, or leave it out",
            UrlError::BadSslMode => "write it like mysql://user:password@host/tickr?ssl-mode=VERIFY_IDENTITY",
            UrlError::CertWithoutKey => "name both files, or none",
            UrlError::BadStatementCache => "write it like statement-cache-capacity=100",
        };
        Wrong::new(error.to_string(), right)
    }
}

/// Return true for a host, with a port or without one.
pub(super) fn is_host_and_port(text: &str) -> bool {
    Host::split(text).check(false).is_ok()
}

/// Return the text of a URL setting without its secrets. Of an invalid URL, return at most the scheme.
pub(super) fn masked(text: &str) -> String {
    match ServerUrl::mysql(text).or_else(|_| ServerUrl::redis(text)) {
        Ok(url) => url.masked,
        Err(_) => mask_unparsed(text),
    }
}

fn mask_unparsed(text: &str) -> String {
    match text.trim().split_once("://") {
        Some((scheme, _)) if is_scheme(scheme) => format!("{scheme}://***"),
        _ => "***".to_owned(),
    }
}

fn is_scheme(text: &str) -> bool {
    (1..=15).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_lowercase() || b == b'+')
}

/// Schemes of Redis URLs.
const REDIS_SCHEMES: [&str; 8] =
    ["redis", "rediss", "redis+unix", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"];

/// Query parameters whose values are useful to see and cannot be secrets.
const SHOWN_PARAMETERS: [&str; 7] = ["socket", "ssl-mode", "charset", "collation", "timezone", "db", "protocol"];

/// Words for `protocol` of a Redis URL.
const REDIS_PROTOCOLS: [&str; 4] = ["resp2", "resp3", "2", "3"];

/// Words for `ssl-mode`, which is the same in lower case.
const SSL_MODES: [&str; 5] = ["DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY"];

/// Parameters of a MySQL URL whose values are any text, beside `socket`.
const MYSQL_TEXTS: [&str; 10] =
    ["ssl-ca", "sslca", "ssl-cert", "sslcert", "ssl-key", "sslkey", "charset", "collation", "timezone", "time-zone"];

/// Parameters of a MySQL URL for the certificate of the client and its key.
const CERT: [&str; 2] = ["ssl-cert", "sslcert"];
const KEY: [&str; 2] = ["ssl-key", "sslkey"];

struct Parts<'a> {
    scheme: &'a str,
    userinfo: Option<&'a str>,
    /// At least one.
    hosts: Vec<Host<'a>>,
    path: &'a str,
    query: &'a str,
}

struct Host<'a> {
    name: &'a str,
    port: Option<&'a str>,
}

impl<'a> Host<'a> {
    fn split(address: &'a str) -> Self {
        match address.rfind(':') {
            Some(colon) if !address.ends_with(']') => {
                Self { name: &address[..colon], port: Some(&address[colon + 1..]) }
            }
            _ => Self { name: address, port: None },
        }
    }

    fn check(&self, has_socket: bool) -> Result<(), UrlError> {
        if self.name.is_empty() && !has_socket {
            return Err(UrlError::NoHost);
        }
        let bracketed = self.name.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let valid = match bracketed {
            Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
            None => self.name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._%".contains(&b)),
        };
        if !valid {
            return Err(UrlError::Reserved);
        }
        match self.port {
            Some(port) if port.parse::<u16>().is_err() => Err(UrlError::BadPort),
            _ => Ok(()),
        }
    }

    /// Return the host with the port that it means.
    fn place(&self) -> String {
        format!("{}:{}", self.name.to_ascii_lowercase(), self.port.unwrap_or("3306"))
    }
}

impl fmt::Display for Host<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl<'a> Parts<'a> {
    fn split(text: &'a str, schemes: &[&str]) -> Result<Parts<'a>, UrlError> {
        let scheme_error =
            || UrlError::Scheme(schemes.iter().map(|s| format!("{s}://")).collect::<Vec<_>>().join(", "));
        let (scheme, rest) = text.split_once("://").ok_or_else(scheme_error)?;
        if !schemes.contains(&scheme) {
            return Err(scheme_error());
        }
        if !well_encoded(rest) || rest.contains('#') {
            return Err(UrlError::Reserved);
        }
        let (before_query, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = before_query.split_at(before_query.find('/').unwrap_or(before_query.len()));
        // An @ after the authority means that a raw / or ? in the password cut it short, and that the apparent path is
        // the rest of a password.
        if path.contains('@') || query.contains('@') || authority.matches('@').count() > 1 {
            return Err(UrlError::Reserved);
        }
        let (userinfo, address) = match authority.split_once('@') {
            Some((userinfo, address)) => (Some(userinfo), address),
            None => (None, authority),
        };
        let hosts = address.split(',').map(Host::split).collect();
        if userinfo.is_some_and(|userinfo| userinfo.matches(':').count() > 1) {
            return Err(UrlError::Reserved);
        }
        Ok(Parts { scheme, userinfo, hosts, path, query })
    }

    fn check_hosts(&self, has_socket: bool) -> Result<(), UrlError> {
        if has_socket && self.hosts.len() > 1 {
            return Err(UrlError::SocketOfSeveral);
        }
        self.hosts.iter().try_for_each(|host| host.check(has_socket))
    }

    /// Return the value of this parameter. The driver takes the last one.
    fn parameter(&self, names: &[&str]) -> Option<&'a str> {
        let mut pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.rfind(|(name, _)| names.contains(name)).map(|(_, value)| value)
    }

    /// Return whether the driver reads this parameter: `ssl-ca` only to check the server, and the other files with TLS.
    fn reads(&self, name: &str) -> bool {
        let mode = self.parameter(&["ssl-mode", "sslmode"]).unwrap_or_default().to_ascii_lowercase();
        match name {
            "ssl-ca" | "sslca" => ["verify_ca", "verify_identity"].contains(&mode.as_str()),
            "ssl-cert" | "sslcert" | "ssl-key" | "sslkey" => mode != "disabled",
            _ => true,
        }
    }

    /// Check the parameters as the driver reads them. It refuses the whole URL for some wrong values, and ignores
    /// parameters that it does not know, such as a misspelt `ssl-mode`.
    fn check_mysql_parameters(&self) -> Result<(), UrlError> {
        for pair in self.query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "ssl-mode" | "sslmode" if SSL_MODES.iter().any(|mode| mode.eq_ignore_ascii_case(value)) => {}
                "ssl-mode" | "sslmode" => return Err(UrlError::BadSslMode),
                "statement-cache-capacity" if value.parse::<usize>().is_ok() => {}
                "statement-cache-capacity" => return Err(UrlError::BadStatementCache),
                _ if name != "socket" && !MYSQL_TEXTS.contains(&name) => return Err(UrlError::UnknownMysqlParameter),
                _ if value.is_empty() && self.reads(name) => return Err(UrlError::EmptyParameter),
                _ => {}
            }
        }
        if self.reads("ssl-cert") && self.parameter(&CERT).is_some() != self.parameter(&KEY).is_some() {
            return Err(UrlError::CertWithoutKey);
        }
        Ok(())
    }

    fn check_one_redis(&self) -> Result<(), UrlError> {
        if self.hosts.len() > 1 {
            return Err(UrlError::SeveralHosts);
        }
        self.check_hosts(false)?;
        self.check_redis_user()?;
        check_redis_database(self.path.trim_start_matches('/'))?;
        self.redis_parameters().try_for_each(|(name, value)| match name {
            "protocol" => check_redis_protocol(value),
            _ => Err(UrlError::UnknownParameter),
        })
    }

    fn check_redis_socket(&self) -> Result<(), UrlError> {
        let has_host = !self.hosts.iter().all(|host| host.name.is_empty());
        if has_host || self.path.len() < 2 {
            return Err(UrlError::NoSocketPath);
        }
        for (name, value) in self.redis_parameters() {
            match name {
                "db" | "user" | "pass" if value.is_empty() => return Err(UrlError::EmptyParameter),
                "db" => check_redis_database(value)?,
                "protocol" => check_redis_protocol(value)?,
                "user" | "pass" => {}
                _ => return Err(UrlError::UnknownParameter),
            }
        }
        self.check_password_of("user", "pass")
    }

    /// Return the parameters of the query. One without `=` has an empty value.
    fn redis_parameters(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let pairs = self.query.split('&').filter(|pair| !pair.is_empty());
        pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")))
    }

    /// Refuse a user without a password, which is most likely a password without its colon. The driver logs in only with
    /// a password.
    fn check_redis_user(&self) -> Result<(), UrlError> {
        match self.userinfo.map(|userinfo| userinfo.split_once(':').unwrap_or((userinfo, ""))) {
            Some((user, "")) if !user.is_empty() => Err(UrlError::UserWithoutPassword),
            _ => Ok(()),
        }
    }

    /// Refuse a user in this parameter without a password in the other one.
    fn check_password_of(&self, user: &str, password: &str) -> Result<(), UrlError> {
        let is_alone = self.parameter(&[user]).is_some() && self.parameter(&[password]).is_none();
        if is_alone { Err(UrlError::UserWithoutPassword) } else { Ok(()) }
    }

    fn check_sentinels(&self) -> Result<(), UrlError> {
        self.check_hosts(false)?;
        self.check_redis_user()?;
        match self.path.strip_prefix('/') {
            Some(name) if !name.is_empty() && !name.contains('/') => {}
            _ => return Err(UrlError::NoMasterName),
        }
        for pair in self.query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("db", database)) => check_redis_database(database)?,
                Some(("sentinel_user" | "sentinel_password", _)) => {}
                _ => return Err(UrlError::UnknownParameter),
            }
        }
        self.check_password_of("sentinel_user", "sentinel_password")
    }

    fn check_redis_cluster(&self) -> Result<(), UrlError> {
        self.check_hosts(false)?;
        self.check_redis_user()?;
        if !matches!(self.path, "" | "/" | "/0") {
            return Err(UrlError::ClusterDatabase);
        }
        if self.query.is_empty() { Ok(()) } else { Err(UrlError::UnknownParameter) }
    }

    fn rebuilt(&self, scheme: &str) -> ServerUrl {
        let hosts = self.hosts.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let userinfo = self.userinfo.map(|userinfo| format!("{userinfo}@")).unwrap_or_default();
        let query = if self.query.is_empty() { String::new() } else { format!("?{}", self.query) };
        let url = format!("{scheme}://{userinfo}{hosts}{}{query}", self.path);

        let masked_userinfo = match self.userinfo.map(|userinfo| userinfo.split_once(':').unwrap_or((userinfo, ""))) {
            None => String::new(),
            Some((user, "")) => format!("{user}@"),
            Some((user, _)) => format!("{user}:***@"),
        };
        let masked_query = if self.query.is_empty() { String::new() } else { format!("?{}", masked_pairs(self.query)) };
        let masked = format!("{scheme}://{masked_userinfo}{hosts}{}{masked_query}", self.path);
        ServerUrl { url: SecretString::from(url), masked }
    }
}

fn check_redis_database(text: &str) -> Result<(), UrlError> {
    if text.is_empty() || text.parse::<u32>().is_ok() { Ok(()) } else { Err(UrlError::BadRedisDatabase) }
}

fn check_redis_protocol(text: &str) -> Result<(), UrlError> {
    if REDIS_PROTOCOLS.contains(&text) { Ok(()) } else { Err(UrlError::BadRedisProtocol) }
}

/// Return the value of a query parameter without its escapes.
fn decoded(value: &str) -> String {
    let (mut decoded, mut bytes) = (Vec::new(), value.bytes());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'+' => b' ',
            b'%' => {
                let hex: String = bytes.by_ref().take(2).map(char::from).collect();
                u8::from_str_radix(&hex, 16).unwrap_or(b'%')
            }
            _ => byte,
        });
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

fn masked_pairs(query: &str) -> String {
    let pair = |pair: &str| match pair.split_once('=') {
        Some((key, _)) if SHOWN_PARAMETERS.contains(&key) => pair.to_owned(),
        Some((key, _)) => format!("{key}=***"),
        None => "***".to_owned(),
    };
    query.split('&').map(pair).collect::<Vec<_>>().join("&")
}

/// Return true for visible ASCII with complete percent escapes.
fn well_encoded(text: &str) -> bool {
    let escape =
        |at: usize| text.as_bytes().get(at + 1..at + 3).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit));
    text.bytes().enumerate().all(|(at, b)| b.is_ascii_graphic() && (b != b'%' || escape(at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_urls_are_taken_as_they_are() {
        for url in [
            "mysql://root@localhost/tickr",
            "mysql://u:p%40ss@db.example.com:3306/tickr?ssl-mode=REQUIRED",
            "mysql://root@[::1]:3306/tickr",
            "mysql://root@localhost/tickr?socket=%2Frun%2Fmysqld.sock",
            "mysql:///tickr?socket=/run/mysqld.sock",
            "mysql://u:p@db1:3306,db2,[::1]:3307/tickr?ssl-mode=REQUIRED",
        ] {
            assert_eq!(ServerUrl::mysql(url).unwrap().expose(), url);
        }
        for url in [
            "redis://localhost",
            "redis://:secret@localhost:6379/1",
            "rediss://u:p@cache:6380/0?protocol=resp3",
            "redis+unix:///run/redis.sock?db=2",
            "redis+unix:///run/redis.sock?user=u&pass=p%40ss&protocol=3",
            "unix:///run/redis.sock",
            "redis+sentinel://u:p%40ss@s1:26379,s2,[::1]:26380/main?db=2&sentinel_user=w&sentinel_password=x",
            "rediss+sentinel://s1/main",
            "redis+cluster://u:p@n1:6379,n2:6380",
            "rediss+cluster://n1/0",
        ] {
            assert_eq!(ServerUrl::redis(url).unwrap().expose(), url);
        }
    }

    #[test]
    fn mariadb_is_another_word_for_mysql() {
        let url = ServerUrl::mysql("mariadb://u:p@h:3306/d").unwrap();
        assert_eq!(url.expose(), "mysql://u:p@h:3306/d");
    }

    #[test]
    fn passwords_are_masked_in_every_form() {
        let url = ServerUrl::mysql("mysql://u:canary@h/d?ssl-mode=DISABLED&ssl-key=canary").unwrap();
        assert_eq!(url.to_string(), "mysql://u:***@h/d?ssl-mode=DISABLED&ssl-key=***");
        assert_eq!(format!("{url:?}"), "ServerUrl(mysql://u:***@h/d?ssl-mode=DISABLED&ssl-key=***)");
        let url = ServerUrl::mysql("mysql://u:canary@h,i:1/d").unwrap();
        assert_eq!(url.masked(), "mysql://u:***@h,i:1/d");
        let url = ServerUrl::redis("redis+unix:///run/r.sock?pass=canary&db=1").unwrap();
        assert_eq!(url.masked(), "redis+unix:///run/r.sock?pass=***&db=1");
        let url = ServerUrl::redis("redis+sentinel://u:canary@a,b/main?sentinel_password=canary&db=1").unwrap();
        assert_eq!(url.masked(), "redis+sentinel://u:***@a,b/main?sentinel_password=***&db=1");
        assert_eq!(masked("rediss+sentinel://u:canary@a,b"), "rediss+sentinel://***");
    }

    #[test]
    fn only_verified_certificates_make_a_line_to_another_machine_safe() {
        let is_unverified = |url: &str| ServerUrl::mysql(url).unwrap().is_unverified();
        for url in [
            "mysql://u@db/t",
            "mysql://u@localhost,db/t",
            "mysql://u@10.0.0.1:3306/t?ssl-mode=REQUIRED",
            "mysql://u@[fd00::1]/t?ssl-mode=DISABLED",
        ] {
            assert!(is_unverified(url), "{url}");
        }
        for url in [
            "mysql://u@db/t?ssl-mode=VERIFY_IDENTITY",
            "mysql://u@db/t?charset=utf8mb4&sslmode=verify_ca",
            "mysql://u@localhost/t",
            "mysql://u@127.0.0.9:3306/t",
            "mysql://u@[::1]/t",
            "mysql:///t?socket=/run/mysqld.sock",
        ] {
            assert!(!is_unverified(url), "{url}");
        }
    }

    #[test]
    fn files_of_a_url_are_those_that_the_driver_reads() {
        let files = |parameters: &str| ServerUrl::mysql(&format!("mysql://u@h/d?{parameters}")).unwrap().tls_files();
        assert!(files("ssl-ca=/etc/ca.pem").is_empty());
        assert!(files("ssl-mode=REQUIRED&ssl-ca=/etc/ca.pem").is_empty());
        assert!(files("ssl-mode=VERIFY_CA&ssl-ca=-----BEGIN+CERTIFICATE-----").is_empty());
        let ca = [("ssl-ca", PathBuf::from("/etc/a b c.pem"))];
        assert_eq!(files("sslca=/etc/a%20b+c.pem&ssl-mode=verify_identity"), ca);
        // The certificate of the client is read with any TLS.
        let pair = [("ssl-cert", PathBuf::from("c.pem")), ("ssl-key", PathBuf::from("k.pem"))];
        for tls in ["", "&ssl-mode=REQUIRED", "&ssl-mode=VERIFY_CA"] {
            assert_eq!(files(&format!("ssl-cert=c.pem&sslkey=k.pem{tls}")), pair, "{tls}");
        }
        assert!(files("ssl-cert=c.pem&ssl-key=k.pem&ssl-mode=DISABLED").is_empty());
    }

    #[test]
    fn two_urls_name_the_same_database_if_server_and_name_are_the_same() {
        let url = |text| ServerUrl::mysql(text).unwrap();
        for (one, other, same) in [
            ("mysql://a:x@h/d", "mariadb://b@H:3306/d?ssl-mode=REQUIRED", true),
            ("mysql://a@h/d", "mysql://a@h/e", false),
            ("mysql://a@h/d", "mysql://a@h:3307/d", false),
            ("mysql://a@g,h/d", "mysql://a@h:3306/d", true),
            ("mysql:///d?socket=/run/m.sock", "mysql://a@localhost/d?socket=%2Frun%2Fm.sock", true),
        ] {
            assert_eq!(url(one).same_database(&url(other)), same, "{one} {other}");
        }
    }

    #[test]
    fn broken_urls_are_refused_without_being_quoted() {
        for (url, expected) in [
            ("canary", None),
            ("mysql://u:canary@h,/d", Some(UrlError::NoHost)),
            ("mysql://u:canary@h,i/d?socket=/run/m.sock", Some(UrlError::SocketOfSeveral)),
            ("mysql://u:canary@h,i:canary/d", Some(UrlError::BadPort)),
            ("postgres://u:canary@h/d", None),
            ("mysql://u:can/ary@h/d", Some(UrlError::Reserved)),
            ("mysql://u:12/canary@h/d", Some(UrlError::Reserved)),
            ("mysql://u:can?ary@h/d", Some(UrlError::Reserved)),
            ("mysql://u:can#ary@h/d", Some(UrlError::Reserved)),
            ("mysql://u:can@ary@h/d", Some(UrlError::Reserved)),
            ("mysql://u:can:ary@h/d", Some(UrlError::Reserved)),
            ("mysql://u:can%ary@h/d", Some(UrlError::Reserved)),
            ("mysql://u:can ary@h/d", Some(UrlError::Reserved)),
            ("mysql://u:canary", Some(UrlError::BadPort)),
            ("mysql://u:canary@/d", Some(UrlError::NoHost)),
            ("mysql://u:canary@h:99999/d", Some(UrlError::BadPort)),
            ("mysql://u:canary@h", Some(UrlError::NoDatabase)),
        ] {
            let error = ServerUrl::mysql(url).unwrap_err();
            let said = format!("{error} {error:?} {:?} {}", Wrong::from(error.clone()), masked(url));
            assert!(!said.contains("can") && !said.contains("ary"), "{said}");
            assert!(expected.is_none_or(|expected| expected == error), "{url}: {error}");
        }
        assert_eq!(ServerUrl::redis("redis+unix://run").unwrap_err(), UrlError::NoSocketPath);
        assert_eq!(ServerUrl::redis("redis://h/x").unwrap_err(), UrlError::BadRedisDatabase);
    }

    #[test]
    fn parameters_of_mysql_are_those_that_the_driver_reads() {
        for good in [
            "ssl-mode=verify_identity&ssl-ca=/etc/ca.pem",
            "sslmode=DISABLED",
            "charset=utf8mb4&collation=utf8mb4_bin&timezone=%2B00:00",
            "statement-cache-capacity=0",
            "ssl-mode=REQUIRED&ssl-ca=",
            "ssl-ca=",
            "ssl-mode=disabled&ssl-ca=&ssl-cert=&sslkey=",
            "",
        ] {
            assert!(ServerUrl::mysql(&format!("mysql://u@h/d?{good}")).is_ok(), "{good}");
        }
        for (bad, expected) in [
            ("ssl-mode=VERIFY-IDENTITY", UrlError::BadSslMode),
            ("sslmode=canary", UrlError::BadSslMode),
            ("ssl-mode", UrlError::BadSslMode),
            ("ssl_mode=VERIFY_IDENTITY", UrlError::UnknownMysqlParameter),
            ("charset=utf8mb4&canary=canary", UrlError::UnknownMysqlParameter),
            ("statement-cache-capacity=canary", UrlError::BadStatementCache),
            ("ssl-mode=VERIFY_CA&ssl-ca=", UrlError::EmptyParameter),
            ("ssl-cert=&ssl-key=", UrlError::EmptyParameter),
            ("ssl-mode=REQUIRED&ssl-cert=canary", UrlError::CertWithoutKey),
            ("sslkey=canary", UrlError::CertWithoutKey),
        ] {
            let error = ServerUrl::mysql(&format!("mysql://u@h/d?{bad}")).unwrap_err();
            assert_eq!(error, expected, "{bad}");
            let said = format!("{error} {:?}", Wrong::from(error.clone()));
            assert!(!said.contains("canary"), "{said}");
        }
    }

    #[test]
    fn a_url_of_sentinels_or_of_a_cluster_says_what_is_wrong() {
        for (url, expected) in [
            ("redis://a,b", UrlError::SeveralHosts),
            ("redis+sentinel://a,b", UrlError::NoMasterName),
            ("redis+sentinel://a,b/", UrlError::NoMasterName),
            ("redis+sentinel://a,b/main/0", UrlError::NoMasterName),
            ("redis+sentinel://a,b/main?db=x", UrlError::BadRedisDatabase),
            ("redis+sentinel://a,b/main?password=canary", UrlError::UnknownParameter),
            ("redis+sentinel://a,/main", UrlError::NoHost),
            ("redis+cluster://a,b:x", UrlError::BadPort),
            ("redis+cluster://a,b/1", UrlError::ClusterDatabase),
            ("redis+cluster://a,b?db=1", UrlError::UnknownParameter),
        ] {
            let error = ServerUrl::redis(url).unwrap_err();
            assert_eq!(error, expected, "{url}");
            let said = format!("{error} {:?}", Wrong::from(error.clone()));
            assert!(!said.contains("canary"), "{said}");
        }
    }

    #[test]
    fn what_the_driver_would_ignore_in_a_redis_url_is_refused_and_not_quoted() {
        for (url, expected) in [
            ("redis://h?db=2", UrlError::UnknownParameter),
            ("redis://h/0?tls=true", UrlError::UnknownParameter),
            ("rediss://:canary@h?protocol", UrlError::BadRedisProtocol),
            ("redis://h?protocol=canary", UrlError::BadRedisProtocol),
            ("redis+unix:///run/r.sock?password=canary", UrlError::UnknownParameter),
            ("redis+unix:///run/r.sock?canary", UrlError::UnknownParameter),
            ("redis+unix:///run/r.sock?db=canary", UrlError::BadRedisDatabase),
            ("redis+unix:///run/r.sock?pass=", UrlError::EmptyParameter),
            ("unix:///run/r.sock?user=canary", UrlError::UserWithoutPassword),
            ("redis://canary@h", UrlError::UserWithoutPassword),
            ("redis://canary:@h", UrlError::UserWithoutPassword),
            ("rediss+sentinel://canary@a,b/main", UrlError::UserWithoutPassword),
            ("redis+sentinel://a,b/main?sentinel_user=canary", UrlError::UserWithoutPassword),
            ("redis+cluster://canary@a,b", UrlError::UserWithoutPassword),
        ] {
            let error = ServerUrl::redis(url).unwrap_err();
            assert_eq!(error, expected, "{url}");
            let said = format!("{error} {:?} {}", Wrong::from(error.clone()), masked(url));
            assert!(!said.contains("canary"), "{said}");
        }
    }

    #[test]
    fn a_collation_of_another_character_set_is_foreign() {
        let is_foreign =
            |query: &str| ServerUrl::mysql(&format!("mysql://u@h/d{query}")).unwrap().has_foreign_collation();
        for own in
            ["", "?charset=latin1", "?collation=utf8mb4_bin", "?collation=UTF8MB4%5Fbin", "?collation=uca1400_ai_ci"]
        {
            assert!(!is_foreign(own), "{own}");
        }
        for foreign in ["?collation=latin1_bin", "?collation=utf8_bin", "?collation=utf8mb4_bin&collation=binary"] {
            assert!(is_foreign(foreign), "{foreign}");
        }
    }
}
