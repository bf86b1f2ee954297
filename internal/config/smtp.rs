//! `[smtp]`: the server that accepts outgoing mail.

use std::net::Ipv6Addr;
use std::time::Duration;

use secrecy::SecretString;

use super::error::Wrong;
use super::setting::{Secrecy, Setting};
use super::{duration, parse};

/// The mail server. Without it mails can only go to the outbox folder.
#[derive(Debug, Clone)]
pub struct Smtp {
    /// Name or address of the server. Its certificate is checked against it.
    pub host: String,
    /// Port. Default: 465 for [`SmtpTls::Tls`], 587 for [`SmtpTls::Starttls`], 25 for [`SmtpTls::None`].
    pub port: u16,
    /// Protection of the connection.
    pub tls: SmtpTls,
    /// User name, if the server requires one; never without a password.
    pub username: Option<String>,
    /// Password; never without a user name.
    pub password: Option<SecretString>,
    /// Default sender of mails: a mailbox, checked.
    pub from: Option<String>,
    /// Maximum number of open connections.
    pub connections: u32,
    /// Time limit of one delivery, from the first byte to the last response.
    pub timeout: Duration,
}

/// Protection of a connection to the mail server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SmtpTls {
    /// Plain at first, then upgraded; refused if the server does not support the upgrade.
    Starttls,
    /// TLS from the first byte.
    Tls,
    /// No TLS: for a server on this host or in a trusted network.
    None,
}

impl SmtpTls {
    /// Return the usual port of this mode.
    pub fn usual_port(self) -> u16 {
        match self {
            SmtpTls::Starttls => 587,
            SmtpTls::Tls => 465,
            SmtpTls::None => 25,
        }
    }
}

type Row = Setting<Smtp>;

/// The settings of `[smtp]`.
pub(super) static SMTP: &[Setting<Smtp>] = &[
    Row::new("host", "HOST", "Mail server; required", |s, t| parse::put(&mut s.host, host(t))).file_only(),
    Row::new("port", "PORT", "Port; default: 587, 465 with tls, 25 with none", |s, t| {
        parse::put(&mut s.port, parse::number(t, 1..=u16::MAX))
    })
    .file_only(),
    Row::new("tls", "MODE", "Protection of the connection: starttls, tls or none", |s, t| {
        let modes = [("starttls", SmtpTls::Starttls), ("tls", SmtpTls::Tls), ("none", SmtpTls::None)];
        parse::put(&mut s.tls, parse::one_of(t, &modes))
    })
    .default("starttls")
    .file_only(),
    Row::new("username", "NAME", "User name, if the server requires one", |s, t| {
        parse::some(&mut s.username, parse::line(t))
    })
    .file_only(),
    Row::new("password", "PASSWORD", "Password of that user", |s, t| parse::some(&mut s.password, password(t)))
        .secrecy(Secrecy::Secret)
        .file_and_environment(),
    Row::new("from", "MAILBOX", "Default sender of mails", |s, t| parse::some(&mut s.from, parse::mailbox(t)))
        .file_only(),
    Row::new("connections", "N", "Maximum number of open connections", |s, t| {
        parse::put(&mut s.connections, parse::number(t, 1..=64))
    })
    .default("4")
    .file_only(),
    Row::new("timeout", "DURATION", "Time limit of one delivery", |s, t| {
        parse::put(&mut s.timeout, duration::between(t, Duration::from_secs(1), Duration::from_secs(600)))
    })
    .default("30s")
    .file_only(),
];

impl Smtp {
    pub(super) fn blank() -> Smtp {
        Smtp {
            host: String::new(),
            port: 0,
            tls: SmtpTls::Starttls,
            username: None,
            password: None,
            from: None,
            connections: 0,
            timeout: Duration::ZERO,
        }
    }
}

fn host(text: &str) -> Result<String, Wrong> {
    let host = text.trim();
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    let is_name = !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
    // Only an IPv6 address has colons.
    if !is_name && bare.parse::<Ipv6Addr>().is_err() {
        return Err(Wrong::new(
            "not a host",
            "write a name or an address alone, like mail.example.com; the port has its own key",
        ));
    }
    Ok(host.to_owned())
}

fn password(text: &str) -> Result<SecretString, Wrong> {
    if text.is_empty() || text.chars().any(char::is_control) {
        return Err(Wrong::new("empty or with control characters", "write the password as one line"));
    }
    Ok(SecretString::from(text))
}
