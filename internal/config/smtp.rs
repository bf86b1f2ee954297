//! `[smtp]`: the server that takes our mail.

use std::time::Duration;

use secrecy::SecretString;

use super::error::Wrong;
use super::setting::{Secrecy, Setting};
use super::{duration, parse};

/// The mail server. Without it mails can only go to the outbox folder.
#[derive(Debug, Clone)]
pub struct Smtp {
    /// Name or address of the server; the certificate is checked against it.
    pub host: String,
    /// Its port. Unless it is set: 465 for [`SmtpTls::Tls`], 587 for [`SmtpTls::Starttls`], 25 for [`SmtpTls::None`].
    pub port: u16,
    /// How the connection is protected.
    pub tls: SmtpTls,
    /// The account, when the server wants one; never without a password.
    pub username: Option<String>,
    /// Its password; never without an account.
    pub password: Option<SecretString>,
    /// The sender of mails that name none: a mailbox, checked.
    pub from: Option<String>,
    /// How many connections may be open at a time.
    pub connections: u32,
    /// How long one delivery may take from the first byte to the last answer.
    pub timeout: Duration,
}

/// How a connection to the mail server is protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SmtpTls {
    /// Plain at first, then upgraded; refused when the server cannot.
    Starttls,
    /// TLS from the first byte.
    Tls,
    /// Never: for a server on this host or in a trusted network.
    None,
}

impl SmtpTls {
    /// The port that goes with it.
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
    Row::new("host", "HOST", "The mail server; required", |s, t| parse::put(&mut s.host, host(t))).file_only(),
    Row::new("port", "PORT", "Its port; 587, 465 with tls, 25 with none", |s, t| {
        parse::put(&mut s.port, parse::number(t, 1..=u16::MAX))
    })
    .file_only(),
    Row::new("tls", "MODE", "How the connection is protected: starttls, tls or none", |s, t| {
        let modes = [("starttls", SmtpTls::Starttls), ("tls", SmtpTls::Tls), ("none", SmtpTls::None)];
        parse::put(&mut s.tls, parse::one_of(t, &modes))
    })
    .default("starttls")
    .file_only(),
    Row::new("username", "NAME", "The account, if the server wants one", |s, t| {
        parse::some(&mut s.username, parse::line(t))
    })
    .file_only(),
    Row::new("password", "PASSWORD", "The password of the account", |s, t| parse::some(&mut s.password, password(t)))
        .secrecy(Secrecy::Secret)
        .file_and_environment(),
    Row::new("from", "MAILBOX", "The sender of mails that name none", |s, t| {
        parse::some(&mut s.from, parse::mailbox(t))
    })
    .file_only(),
    Row::new("connections", "N", "Connections open at a time", |s, t| {
        parse::put(&mut s.connections, parse::number(t, 1..=64))
    })
    .default("4")
    .file_only(),
    Row::new("timeout", "DURATION", "How long one delivery may take", |s, t| {
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
    if host.is_empty() || !host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._:[]".contains(&b)) {
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
