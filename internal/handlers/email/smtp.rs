//! The connections to the mail server, and the conversation that hands over a mail.
//!
//! The library's own pool has no limit on open connections, no time limits on a connected socket, and reuses
//! connections whose conversation was interrupted. Here each open connection holds a permit, and every wait ends at the
//! deadline of the delivery. A connection becomes idle only after a complete answer. An interrupted conversation drops
//! its connection, which closes it.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lettre::transport::smtp::Error as LettreError;
use lettre::transport::smtp::authentication::{Credentials, DEFAULT_MECHANISMS};
use lettre::transport::smtp::client::{AsyncSmtpConnection, AsyncTokioStream};
use lettre::transport::smtp::commands::{Data, Mail as MailFrom, Rcpt, Rset, Starttls};
use lettre::transport::smtp::extension::ClientId;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use secrecy::{ExposeSecret, SecretString};
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;

use super::Context;
use super::message::Mail;
use super::wire::{Answers, Encrypted, Lent};
use tickr_job::limits;

/// The operator's settings for the mail server.
#[derive(Clone, Debug)]
pub struct SmtpSettings {
    /// Name or address of the server. Its certificate must be valid for it.
    pub host: String,
    /// Port of the server.
    pub port: u16,
    /// Encryption of the connection.
    pub tls: SmtpTls,
    /// Account, when the server requires one.
    pub login: Option<SmtpLogin>,
    /// Most open connections at the same time, at least one.
    pub connections: usize,
    /// Time limit for a whole delivery, from the connection to the last answer.
    pub timeout: Duration,
    /// Certificates in PEM to trust in addition to the public authorities, for a server with a private certificate.
    pub ca_pem: Option<Vec<u8>>,
}

/// Encryption of a connection to the mail server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmtpTls {
    /// Plain at first, then upgraded to TLS. Mails are not sent when the server cannot upgrade.
    Starttls,
    /// TLS from the first byte.
    Tls,
    /// No encryption: for a server on this host or in a trusted network.
    None,
}

/// Account at the mail server, for PLAIN or LOGIN.
#[derive(Clone, Debug)]
pub struct SmtpLogin {
    /// Name of the account.
    pub username: String,
    /// Password of the account.
    pub password: SecretString,
}

/// Error: the settings of the mail server cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SmtpSetupError {
    /// The host is not a name or an address that a certificate could be for.
    #[error("set up mail: the host {0} is neither a name nor an address")]
    Host(String),
    /// The extra certificate authorities are not PEM certificates.
    #[error("set up mail: read the extra certificate authorities")]
    Authorities,
    /// The TLS configuration could not be built.
    #[error("set up mail: prepare tls")]
    Tls(#[from] rustls::Error),
}

/// Time after which an idle connection is no longer used. Servers close theirs after five minutes, and firewalls forget
/// them earlier.
const IDLE: Duration = Duration::from_secs(60);
/// Time limit of an idle connection for its first answer, after which it counts as dead.
const FIRST_ANSWER: Duration = Duration::from_secs(5);
/// Time limit for a last answer on a connection that broke amid the message.
const LAST_ANSWER: Duration = Duration::from_secs(1);
/// Longest time for a connection to one address of the server, with its greeting, while it has others that were not
/// tried. Some servers greet only after six seconds, to keep out senders of spam that do not wait.
const ONE_ADDRESS: Duration = Duration::from_secs(8);
/// Time of an attempt besides the delivery, in which it reads the reports that it attaches.
const BESIDE_DELIVERY: Duration = Duration::from_secs(90);

/// Step of the conversation, for error texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SmtpStep {
    Connect,
    Login,
    Sender,
    Recipient,
    Data,
    Content,
}

impl fmt::Display for SmtpStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect => "connecting",
            Self::Login => "logging in",
            Self::Sender => "naming the sender",
            Self::Recipient => "naming the recipients",
            Self::Data => "announcing the message",
            Self::Content => "sending the message, which it may or may not have taken",
        })
    }
}

/// Reason why a mail was not handed over.
#[derive(Debug, thiserror::Error)]
pub(super) enum SmtpError {
    #[error("hand the mail to {server}: it refused {what}")]
    Refused { server: String, step: SmtpStep, what: String, permanent: bool },
    #[error("hand the mail to {server}: the connection failed while {step}: {cause}")]
    Failed { server: String, step: SmtpStep, cause: String },
    #[error("hand the mail to {server}: it may have taken the mail, because its answer cannot be read: {cause}")]
    Unreadable { server: String, cause: String },
    #[error("hand the mail to {server}: time ran out while {step}")]
    TimedOut { server: String, step: SmtpStep },
    #[error("hand the mail to {server}: stopped before the message was sent")]
    Stopped { server: String },
}

impl SmtpError {
    /// True when the mail must not be sent again: the server would refuse it again, or would get it twice.
    pub(super) fn is_permanent(&self) -> bool {
        matches!(self, Self::Refused { permanent: true, .. } | Self::Unreadable { .. })
    }

    /// True when a connection that was idle proved useless before the message was sent over it, so that another one may be
    /// tried. Some servers take so many mails on a connection and then refuse the next sender.
    fn is_dead_connection(&self, past: Past) -> bool {
        match self {
            Self::Failed { step, .. } => *step != SmtpStep::Content,
            Self::TimedOut { step, .. } => *step == SmtpStep::Sender,
            Self::Refused { step, .. } => *step == SmtpStep::Sender && past == Past::Mails,
            Self::Unreadable { .. } | Self::Stopped { .. } => false,
        }
    }
}

/// The pool of connections to one mail server.
pub(super) struct SmtpPool {
    settings: SmtpSettings,
    protection: Protection,
    hello: ClientId,
    permits: Semaphore,
    idle: Mutex<Vec<Idle>>,
}

struct Idle {
    connection: AsyncSmtpConnection,
    past: Past,
    since: Instant,
}

/// What a connection was used for before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Past {
    /// Nothing: it is new.
    New,
    /// The server has refused all mails that came over it.
    Refusals,
    /// The server has taken mails over it.
    Mails,
}

enum Protection {
    Starttls(TlsConnector, ServerName<'static>),
    Tls(TlsConnector, ServerName<'static>),
    None,
}

impl SmtpPool {
    pub(super) fn new(settings: SmtpSettings) -> Result<Self, SmtpSetupError> {
        let name = || {
            let name = ServerName::try_from(host(&settings).to_owned());
            name.map_err(|_| SmtpSetupError::Host(settings.host.clone()))
        };
        let authorities = settings.ca_pem.as_deref();
        let protection = match settings.tls {
            SmtpTls::Starttls => Protection::Starttls(tls(authorities)?, name()?),
            SmtpTls::Tls => Protection::Tls(tls(authorities)?, name()?),
            SmtpTls::None => Protection::None,
        };
        let permits = Semaphore::new(settings.connections.max(1));
        Ok(Self { settings, protection, hello: hello(), permits, idle: Mutex::default() })
    }

    /// Return the time that an attempt needs for a whole delivery.
    pub(super) fn attempt_timeout(&self) -> Duration {
        (self.settings.timeout + BESIDE_DELIVERY).min(limits::MAX_TIMEOUT)
    }

    /// Hand over a mail and return the server's answer.
    ///
    /// The mail goes to all recipients or to none. When the server refuses one of them, the message is not sent to the
    /// others, because the next attempt would send it to them again.
    pub(super) async fn deliver(&self, mail: &Mail, ctx: &Context) -> Result<String, SmtpError> {
        // The engine starts no more attempts than there are connections. Other callers wait here, and their wait does
        // not count against the server's time limit.
        let _permit = tokio::select! {
            biased;
            () = ctx.stopped() => return Err(self.stopped()),
            permit = timeout_at(ctx.deadline(), self.permits.acquire()) => {
                permit.map_err(|_| self.timed_out(SmtpStep::Connect))?
            }
        };
        let deadline = ctx.deadline().min(Instant::now() + self.settings.timeout);
        if let Some(Idle { connection, past, .. }) = self.take_idle() {
            match self.converse((connection, past), mail, ctx, deadline).await {
                // The connection died while it was idle, or is used up. The server has not seen the message.
                Err(error) if error.is_dead_connection(past) => {}
                finished => return finished,
            }
        }
        let connection = self.open(ctx, deadline).await?;
        self.converse((connection, Past::New), mail, ctx, deadline).await
    }

    /// Send one mail over one connection. Keep the connection for the next mail if the server is ready for one.
    async fn converse(
        &self,
        (mut connection, past): (AsyncSmtpConnection, Past),
        mail: &Mail,
        ctx: &Context,
        deadline: Instant,
    ) -> Result<String, SmtpError> {
        let first_deadline = match past {
            Past::Refusals | Past::Mails => deadline.min(Instant::now() + FIRST_ANSWER),
            Past::New => deadline,
        };
        let result = self.exchange(&mut connection, mail, ctx, first_deadline, deadline).await;
        let ready = match &result {
            Ok(_) => true,
            // It may refuse every sender from now on.
            Err(SmtpError::Refused { step: SmtpStep::Sender, .. }) if past == Past::Mails => false,
            // The server has answered completely and waits. Reset the half-sent envelope, if the server does so
            // quickly.
            Err(SmtpError::Refused { .. }) => {
                timeout_at(deadline.min(Instant::now() + FIRST_ANSWER), connection.command(Rset))
                    .await
                    .is_ok_and(|r| r.is_ok())
            }
            Err(
                SmtpError::Failed { .. }
                | SmtpError::Unreadable { .. }
                | SmtpError::TimedOut { .. }
                | SmtpError::Stopped { .. },
            ) => false,
        };
        if ready {
            let has_taken = result.is_ok() || past == Past::Mails;
            self.put_idle(connection, if has_taken { Past::Mails } else { Past::Refusals });
        }
        result
    }

    async fn exchange(
        &self,
        connection: &mut AsyncSmtpConnection,
        mail: &Mail,
        ctx: &Context,
        first_deadline: Instant,
        deadline: Instant,
    ) -> Result<String, SmtpError> {
        let from = MailFrom::new(Some(mail.sender.clone()), Vec::new());
        let answer = self.until_stopped(SmtpStep::Sender, ctx, first_deadline, connection.command(from)).await?;
        answer.map_err(|e| self.refused(SmtpStep::Sender, &format!("the sender {}", mail.sender), &e))?;

        // Continue after a refusal, so that the error names every refused address.
        let mut refused: Option<(bool, Vec<String>)> = None;
        for recipient in &mail.recipients {
            let to = Rcpt::new(recipient.clone(), Vec::new());
            if let Err(error) = self.until_stopped(SmtpStep::Recipient, ctx, deadline, connection.command(to)).await? {
                match self.refused(SmtpStep::Recipient, &format!("the recipient {recipient}"), &error) {
                    SmtpError::Refused { what, permanent, .. } => {
                        let (any_permanent, all) = refused.get_or_insert_default();
                        *any_permanent |= permanent;
                        all.push(what);
                    }
                    broken => return Err(broken),
                }
            }
        }
        if let Some((permanent, all)) = refused {
            let (server, step, what) = (self.server(), SmtpStep::Recipient, all.join("; "));
            return Err(SmtpError::Refused { server, step, what, permanent });
        }

        let answer = self.until_stopped(SmtpStep::Data, ctx, deadline, connection.command(Data)).await?;
        answer.map_err(|e| self.refused(SmtpStep::Data, "the message", &e))?;

        // From here on the server may accept the mail at any moment. A stop no longer interrupts: the mail might be
        // sent, and the runner would not know it.
        let answer = timeout_at(deadline, connection.message(&mail.bytes)).await;
        let mut answer = answer.map_err(|_| self.timed_out(SmtpStep::Content))?;
        if answer.as_ref().is_err_and(is_broken) {
            // A server that finds the message too large says so amid it and closes the connection.
            let last = timeout_at(deadline.min(Instant::now() + LAST_ANSWER), connection.read_response()).await;
            answer = last.ok().filter(|last| last.as_ref().is_err_and(|e| e.status().is_some())).unwrap_or(answer);
        }
        let answer = answer.map_err(|e| self.refused(SmtpStep::Content, "the message", &e))?;
        Ok(one_line(&format!("{} {}", answer.code(), answer.message().collect::<Vec<_>>().join(" "))))
    }

    async fn open(&self, ctx: &Context, deadline: Instant) -> Result<AsyncSmtpConnection, SmtpError> {
        let connection = self.until_stopped(SmtpStep::Connect, ctx, deadline, self.connect(deadline)).await?;
        let failed = |step, cause: &dyn fmt::Display| {
            Err(SmtpError::Failed { server: self.server(), step, cause: one_line(&cause.to_string()) })
        };
        let mut connection = match connection {
            Ok(connection) => connection,
            Err(cause) => return failed(SmtpStep::Connect, &cause),
        };
        if let Some(login) = &self.settings.login {
            let account = Credentials::new(login.username.clone(), login.password.expose_secret().to_owned());
            let answer = connection.auth(DEFAULT_MECHANISMS, &account);
            // A refused login is an error of the configuration, not of the mail. So the attempt is retried, and can
            // succeed after the configuration is corrected.
            if let Err(cause) = self.until_stopped(SmtpStep::Login, ctx, deadline, answer).await? {
                return failed(SmtpStep::Login, &cause);
            }
        }
        Ok(connection)
    }

    async fn connect(&self, deadline: Instant) -> Result<AsyncSmtpConnection, ConnectError> {
        let addresses: Vec<SocketAddr> = lookup_host((host(&self.settings), self.settings.port)).await?.collect();
        first_connection(&addresses, deadline, |address| self.greet(address)).await
    }

    /// Connect to one address, and exchange greetings, encrypted if the operator wants that.
    async fn greet(&self, address: SocketAddr) -> Result<AsyncSmtpConnection, ConnectError> {
        let tcp = TcpStream::connect(address).await?;
        // The end of a message is a small write of its own. Without this option it would wait 40 ms for an
        // acknowledgement.
        tcp.set_nodelay(true)?;
        let stream: Box<dyn AsyncTokioStream> = match &self.protection {
            Protection::Starttls(connector, name) => {
                let tcp = self.ask_for_tls(tcp).await?;
                Box::new(Answers::greeted(Encrypted(connector.connect(name.clone(), tcp).await?)))
            }
            Protection::Tls(connector, name) => {
                Box::new(Answers::new(Encrypted(connector.connect(name.clone(), tcp).await?)))
            }
            Protection::None => Box::new(Answers::new(tcp)),
        };
        Ok(AsyncSmtpConnection::connect_with_transport(stream, &self.hello).await?)
    }

    /// Ask for TLS on a plain connection. Return the connection for the handshake.
    async fn ask_for_tls(&self, tcp: TcpStream) -> Result<TcpStream, ConnectError> {
        let lent = Lent::new(tcp);
        let mut plain = AsyncSmtpConnection::connect_with_transport(Box::new(lent.clone()), &self.hello).await?;
        if !plain.can_starttls() {
            return Err(ConnectError::NoStarttls);
        }
        plain.command(Starttls).await?;
        drop(plain);
        lent.back().ok_or(ConnectError::EarlyAnswer)
    }

    /// Wait for one step of the conversation, until the deadline or a stop at the latest.
    async fn until_stopped<T>(
        &self,
        step: SmtpStep,
        ctx: &Context,
        deadline: Instant,
        answer: impl Future<Output = T>,
    ) -> Result<T, SmtpError> {
        tokio::select! {
            biased;
            () = ctx.stopped() => Err(self.stopped()),
            answer = timeout_at(deadline, answer) => answer.map_err(|_| self.timed_out(step)),
        }
    }

    /// Take the newest idle connection. Close those that were idle for too long.
    fn take_idle(&self) -> Option<Idle> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|idle| idle.since.elapsed() < IDLE);
        idle.pop()
    }

    fn put_idle(&self, connection: AsyncSmtpConnection, past: Past) {
        let idle = Idle { connection, past, since: Instant::now() };
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(idle);
    }

    /// Turn a negative answer into an error. 421 announces that the server closes the connection, so it counts as a
    /// broken connection. An answer to the message that cannot be read may mean that the server has taken it.
    fn refused(&self, step: SmtpStep, what: &str, error: &LettreError) -> SmtpError {
        use std::error::Error as _;
        match error.status() {
            Some(code) if u16::from(code) != 421 => {
                let words = error.source().map(|words| format!(" {words}")).unwrap_or_default();
                let what = one_line(&format!("{what}: {code}{words}"));
                SmtpError::Refused { server: self.server(), step, what, permanent: error.is_permanent() }
            }
            None if step == SmtpStep::Content && is_unreadable(error) => {
                SmtpError::Unreadable { server: self.server(), cause: one_line(&error.to_string()) }
            }
            _ => SmtpError::Failed { server: self.server(), step, cause: one_line(&error.to_string()) },
        }
    }

    fn timed_out(&self, step: SmtpStep) -> SmtpError {
        SmtpError::TimedOut { server: self.server(), step }
    }

    fn stopped(&self) -> SmtpError {
        SmtpError::Stopped { server: self.server() }
    }

    fn server(&self) -> String {
        format!("{}:{}", self.settings.host, self.settings.port)
    }
}

/// Reason why there is no connection.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Smtp(#[from] LettreError),
    #[error("the server does not offer STARTTLS, and mail is not sent without it")]
    NoStarttls,
    #[error("the server said more than its answer before TLS")]
    EarlyAnswer,
}

/// Return whether the connection broke, so that no answer was read.
fn is_broken(error: &LettreError) -> bool {
    error.status().is_none() && !error.is_response()
}

/// Return whether an answer came that is none. The library says the same of a connection that ends without an answer,
/// with these words.
fn is_unreadable(error: &LettreError) -> bool {
    use std::error::Error as _;
    error.is_response() && error.source().is_some_and(|cause| cause.to_string() != "incomplete response")
}

/// Return the time for the first of so many addresses that are left. It takes more than an equal part if each of the
/// others has a second: a server may greet only after some seconds, and equal parts of a short time limit would all be
/// too short for that.
fn share_of(time_left: Duration, addresses_left: usize) -> Duration {
    let addresses = u32::try_from(addresses_left).unwrap_or(u32::MAX);
    let beside_others = time_left.saturating_sub(Duration::from_secs(u64::from(addresses.saturating_sub(1))));
    (time_left / addresses.max(1)).max(beside_others).min(ONE_ADDRESS)
}

/// Connect to the first of these addresses that answers. One that never answers leaves time for those behind it. The
/// last one may take all the time that the caller has. The error of several addresses names each of them.
async fn first_connection<T, E: From<io::Error> + fmt::Display, Connecting: Future<Output = Result<T, E>>>(
    addresses: &[SocketAddr],
    deadline: Instant,
    connect: impl Fn(SocketAddr) -> Connecting,
) -> Result<T, E> {
    let Some((last, others)) = addresses.split_last() else {
        return Err(io::Error::new(io::ErrorKind::NotFound, "its name has no address").into());
    };
    let mut failed = Vec::new();
    for (left, address) in (2..=addresses.len()).rev().zip(others) {
        match timeout(share_of(deadline.saturating_duration_since(Instant::now()), left), connect(*address)).await {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(error)) => failed.push(format!("{address}: {error}")),
            Err(_) => failed.push(format!("{address} did not answer")),
        }
    }
    match connect(*last).await {
        Err(error) if !failed.is_empty() => {
            failed.push(format!("{last}: {error}"));
            Err(io::Error::other(failed.join("; ")).into())
        }
        connected => connected,
    }
}

/// The host without the brackets around an IPv6 address.
fn host(settings: &SmtpSettings) -> &str {
    settings.host.trim_start_matches('[').trim_end_matches(']')
}

/// Name of this client in the greeting: the host name, if it has a form that strict servers accept.
fn hello() -> ClientId {
    match ClientId::default() {
        ClientId::Domain(name) if is_host_name(&name) => ClientId::Domain(name),
        _ => ClientId::Ipv4(std::net::Ipv4Addr::LOCALHOST),
    }
}

fn is_host_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-'))
}

fn tls(authorities: Option<&[u8]>) -> Result<TlsConnector, SmtpSetupError> {
    let mut roots = rustls::RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    for authority in authorities.map(CertificateDer::pem_slice_iter).into_iter().flatten() {
        roots.add(authority.map_err(|_| SmtpSetupError::Authorities)?)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Text of the server as one line that is safe to show.
fn one_line(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(1_000).collect();
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::super::smtp_sink::{SinkOptions, SmtpSink};
    use super::*;

    fn addresses(ports: std::ops::RangeInclusive<u16>) -> Vec<SocketAddr> {
        ports.map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect()
    }

    fn pool_of(sink: &SmtpSink, timeout: Duration) -> SmtpPool {
        let settings = SmtpSettings {
            host: "localhost".to_owned(),
            port: sink.address.port(),
            tls: SmtpTls::None,
            login: None,
            connections: 1,
            timeout,
            ca_pem: None,
        };
        SmtpPool::new(settings).unwrap()
    }

    /// The ports 1 and 2 never answer, 3 refuses, and all others answer.
    async fn connect(address: SocketAddr) -> io::Result<u16> {
        match address.port() {
            1 | 2 => std::future::pending().await,
            3 => Err(io::ErrorKind::ConnectionRefused.into()),
            port => Ok(port),
        }
    }

    #[tokio::test]
    async fn an_address_of_the_mail_server_that_never_answers_leaves_time_for_the_next_one() {
        let soon = || Instant::now() + Duration::from_millis(500);
        assert_eq!(first_connection(&addresses(1..=4), soon(), connect).await.unwrap(), 4);
        let refused = first_connection(&addresses(1..=3), soon(), connect).await.unwrap_err();
        let refused = refused.to_string();
        assert!(refused.starts_with("127.0.0.1:1 did not answer; 127.0.0.1:2 did not answer; "), "{refused}");
        assert!(refused.ends_with("; 127.0.0.1:3: connection refused"), "{refused}");
        let none = first_connection(&[], soon(), connect).await.unwrap_err();
        assert_eq!(none.to_string(), "its name has no address");
    }

    #[tokio::test]
    async fn an_address_of_the_mail_server_that_does_not_greet_leaves_the_mail_to_the_next_one() {
        let sink = SmtpSink::start(SinkOptions::default()).await;
        let (silent, busy) =
            (TcpListener::bind("127.0.0.1:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let addresses = [silent.local_addr().unwrap(), busy.local_addr().unwrap(), sink.address];
        let pool = pool_of(&sink, Duration::from_secs(6));
        let answering = async {
            let (mut socket, _) = busy.accept().await.unwrap();
            socket.write_all(b"421 4.3.2 too busy\r\n").await.unwrap();
            std::future::pending::<()>().await;
        };
        let deadline = Instant::now() + Duration::from_secs(6);
        let mut connection = tokio::select! {
            connection = first_connection(&addresses, deadline, |address| pool.greet(address)) => connection.unwrap(),
            () = answering => panic!("the busy server waits for ever"),
        };
        assert!(connection.test_connected().await);
        assert_eq!(sink.connections(), 1);
    }

    #[tokio::test]
    async fn a_refusal_amid_a_message_is_final_although_the_rest_could_not_be_sent() {
        let sink = SmtpSink::start(SinkOptions::default()).await;
        let pool = pool_of(&sink, Duration::from_secs(20));
        let mut mail = Mail {
            message_id: String::new(),
            sender: "jobs@example.org".parse().unwrap(),
            recipients: vec!["toolarge@example.com".parse().unwrap()],
            // More than the buffers between client and server take.
            bytes: vec![b'x'; 32 << 20],
        };
        let error = pool.deliver(&mail, &Context::detached("email")).await.unwrap_err();
        assert!(error.is_permanent() && error.to_string().contains("552 5.3.4 too large"), "{error}");
        // The broken connection is not used again.
        mail.recipients = vec!["ann@example.com".parse().unwrap()];
        mail.bytes.truncate(1_024);
        pool.deliver(&mail, &Context::detached("email")).await.unwrap();
        assert_eq!((sink.mails().len(), sink.connections()), (1, 2));
    }

    #[tokio::test]
    async fn an_address_that_never_answers_has_a_few_seconds_of_a_long_time_limit() {
        let began = Instant::now();
        let late = began + Duration::from_secs(3_600);
        let addresses = [addresses(1..=1), addresses(4..=4)].concat();
        assert_eq!(first_connection(&addresses, late, connect).await.unwrap(), 4);
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    }
}
