//! The connections to the mail server, and the conversation that hands over a mail.
//!
//! The library's own pool has no limit on open connections, no time limit once connected, and takes back connections
//! whose conversation was cut off. Here a permit stands for every open connection, every wait ends at the delivery's
//! deadline, and a connection goes back among the idle ones only after a complete answer: whoever is cut off anywhere
//! else drops it, which closes it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lettre::transport::smtp::Error as LettreError;
use lettre::transport::smtp::authentication::{Credentials, DEFAULT_MECHANISMS};
use lettre::transport::smtp::client::{
    AsyncSmtpConnection, AsyncTokioStream, Certificate, CertificateStore, TlsParameters,
};
use lettre::transport::smtp::commands::{Data, Mail as MailFrom, Rcpt, Rset};
use lettre::transport::smtp::extension::ClientId;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use secrecy::{ExposeSecret, SecretString};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

use super::Context;
use super::message::Mail;
use super::wire::{Encrypted, LineWise};

/// The server that takes our mail.
#[derive(Clone, Debug)]
pub struct SmtpSettings {
    /// Name or address of the server; its certificate must be for this.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// How the connection is protected.
    pub tls: SmtpTls,
    /// The account, when the server wants one.
    pub login: Option<SmtpLogin>,
    /// How many connections may be open at a time; at least one.
    pub connections: usize,
    /// How long a whole delivery may take, from the connection to the last answer.
    pub timeout: Duration,
    /// Certificates in PEM to trust beside the public authorities: for a server with a certificate of one's own.
    pub ca_pem: Option<Vec<u8>>,
}

/// How a connection to the mail server is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmtpTls {
    /// Plain at first, then upgraded; refused when the server cannot.
    Starttls,
    /// TLS from the first byte.
    Tls,
    /// Never: for a server on this host or in a trusted network.
    None,
}

/// An account at the mail server, for PLAIN or LOGIN.
#[derive(Clone, Debug)]
pub struct SmtpLogin {
    /// Its name.
    pub username: String,
    /// Its password.
    pub password: SecretString,
}

/// The settings of the mail server cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SmtpSetupError {
    /// Not a name or address that a certificate could be for.
    #[error("set up mail: the host {0} is neither a name nor an address")]
    Host(String),
    /// Not certificates.
    #[error("set up mail: read the extra certificate authorities")]
    Authorities,
    /// No TLS configuration is possible.
    #[error("set up mail: prepare tls")]
    Tls(#[from] rustls::Error),
    /// No TLS configuration is possible.
    #[error("set up mail: prepare starttls")]
    Starttls(#[from] LettreError),
}

/// How long an unused connection may still be used. Servers close theirs after five minutes, firewalls forget them
/// sooner.
const IDLE: Duration = Duration::from_secs(60);
/// How long an idle connection has to answer the first command before it counts as dead.
const FIRST_ANSWER: Duration = Duration::from_secs(5);

/// Where in the conversation something happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Connect,
    Login,
    Sender,
    Recipient,
    Data,
    Content,
}

impl fmt::Display for Step {
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

/// Why a mail was not handed over.
#[derive(Debug, thiserror::Error)]
pub(super) enum SmtpError {
    #[error("hand the mail to {server}: it refused {what}")]
    Refused { server: String, what: String, permanent: bool },
    #[error("hand the mail to {server}: the connection failed while {step}: {cause}")]
    Failed { server: String, step: Step, cause: String },
    #[error("hand the mail to {server}: time ran out while {step}")]
    TimedOut { server: String, step: Step },
    #[error("hand the mail to {server}: stopped before the message was sent")]
    Stopped { server: String },
}

impl SmtpError {
    /// Will the server say the same again?
    pub(super) fn is_permanent(&self) -> bool {
        matches!(self, Self::Refused { permanent: true, .. })
    }

    /// Did the connection turn out useless before the message went over it, so that another one may be tried?
    fn is_dead_connection(&self) -> bool {
        match self {
            Self::Failed { step, .. } => *step != Step::Content,
            Self::TimedOut { step, .. } => *step == Step::Sender,
            Self::Refused { .. } | Self::Stopped { .. } => false,
        }
    }
}

/// The connections to one mail server.
pub(super) struct SmtpPool {
    settings: SmtpSettings,
    protection: Protection,
    hello: ClientId,
    permits: Semaphore,
    idle: Mutex<Vec<Idle>>,
}

struct Idle {
    connection: AsyncSmtpConnection,
    since: Instant,
}

enum Protection {
    Starttls(TlsParameters),
    Tls(TlsConnector, ServerName<'static>),
    None,
}

impl SmtpPool {
    pub(super) fn new(settings: SmtpSettings) -> Result<Self, SmtpSetupError> {
        let authorities = settings.ca_pem.as_deref();
        let protection = match settings.tls {
            SmtpTls::Starttls => Protection::Starttls(starttls(host(&settings), authorities)?),
            SmtpTls::Tls => {
                let name = ServerName::try_from(host(&settings).to_owned());
                let name = name.map_err(|_| SmtpSetupError::Host(settings.host.clone()))?;
                Protection::Tls(tls(authorities)?, name)
            }
            SmtpTls::None => Protection::None,
        };
        let permits = Semaphore::new(settings.connections.max(1));
        Ok(Self { settings, protection, hello: hello(), permits, idle: Mutex::default() })
    }

    /// Hands over a mail; returns the server's answer.
    ///
    /// All recipients or none: when the server refuses one of them, the message is not sent to the others, because the
    /// next attempt would send it to them again.
    pub(super) async fn deliver(&self, mail: &Mail, ctx: &Context) -> Result<String, SmtpError> {
        // Waiting for a free connection is not the server's fault and does not count against its time.
        let _permit = tokio::select! {
            biased;
            () = ctx.stopped() => return Err(self.stopped()),
            permit = timeout_at(ctx.deadline(), self.permits.acquire()) => {
                permit.map_err(|_| self.timed_out(Step::Connect))?
            }
        };
        let deadline = ctx.deadline().min(Instant::now() + self.settings.timeout);
        if let Some(connection) = self.take_idle() {
            match self.converse(connection, mail, ctx, deadline.min(Instant::now() + FIRST_ANSWER), deadline).await {
                // It died while it lay idle. The server has not seen the message.
                Err(error) if error.is_dead_connection() => {}
                finished => return finished,
            }
        }
        let connection = self.open(ctx, deadline).await?;
        self.converse(connection, mail, ctx, deadline, deadline).await
    }

    /// One mail over one connection, which is kept for the next if the server is ready for one.
    async fn converse(
        &self,
        mut connection: AsyncSmtpConnection,
        mail: &Mail,
        ctx: &Context,
        first_deadline: Instant,
        deadline: Instant,
    ) -> Result<String, SmtpError> {
        let result = self.exchange(&mut connection, mail, ctx, first_deadline, deadline).await;
        let ready = match &result {
            Ok(_) => true,
            // The server has answered in full and waits; the half-told envelope is taken back, if that is quick.
            Err(SmtpError::Refused { .. }) => {
                timeout_at(deadline.min(Instant::now() + FIRST_ANSWER), connection.command(Rset))
                    .await
                    .is_ok_and(|r| r.is_ok())
            }
            Err(SmtpError::Failed { .. } | SmtpError::TimedOut { .. } | SmtpError::Stopped { .. }) => false,
        };
        if ready {
            self.put_idle(connection);
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
        let answer = self.until_stopped(Step::Sender, ctx, first_deadline, connection.command(from)).await?;
        answer.map_err(|e| self.refused(Step::Sender, &format!("the sender {}", mail.sender), &e))?;

        // Asked for all of them even after a refusal, so that the error names every address to correct.
        let mut refused: Option<(bool, Vec<String>)> = None;
        for recipient in &mail.recipients {
            let to = Rcpt::new(recipient.clone(), Vec::new());
            if let Err(error) = self.until_stopped(Step::Recipient, ctx, deadline, connection.command(to)).await? {
                match self.refused(Step::Recipient, &format!("the recipient {recipient}"), &error) {
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
            return Err(SmtpError::Refused { server: self.server(), what: all.join("; "), permanent });
        }

        let answer = self.until_stopped(Step::Data, ctx, deadline, connection.command(Data)).await?;
        answer.map_err(|e| self.refused(Step::Data, "the message", &e))?;

        // From here on the server may take the mail at any moment. A stop no longer interrupts: it would only turn a
        // mail that was sent into one that nobody knows about.
        let answer = timeout_at(deadline, connection.message(&mail.bytes)).await;
        let answer = answer.map_err(|_| self.timed_out(Step::Content))?;
        let answer = answer.map_err(|e| self.refused(Step::Content, "the message", &e))?;
        Ok(one_line(&format!("{} {}", answer.code(), answer.message().collect::<Vec<_>>().join(" "))))
    }

    async fn open(&self, ctx: &Context, deadline: Instant) -> Result<AsyncSmtpConnection, SmtpError> {
        let connection = self.until_stopped(Step::Connect, ctx, deadline, self.connect()).await?;
        let failed = |step, cause: &dyn fmt::Display| {
            Err(SmtpError::Failed { server: self.server(), step, cause: one_line(&cause.to_string()) })
        };
        let mut connection = match connection {
            Ok(connection) => connection,
            Err(cause) => return failed(Step::Connect, &cause),
        };
        if let Some(login) = &self.settings.login {
            let account = Credentials::new(login.username.clone(), login.password.expose_secret().to_owned());
            let answer = connection.auth(DEFAULT_MECHANISMS, &account);
            // A refused login is our configuration's fault, not the mail's: the mail waits until it is corrected.
            if let Err(cause) = self.until_stopped(Step::Login, ctx, deadline, answer).await? {
                return failed(Step::Login, &cause);
            }
        }
        Ok(connection)
    }

    async fn connect(&self) -> Result<AsyncSmtpConnection, ConnectError> {
        let tcp = TcpStream::connect((host(&self.settings), self.settings.port)).await?;
        // The end of a message is a small write of its own, which would otherwise wait 40 ms for an acknowledgement.
        tcp.set_nodelay(true)?;
        let stream: Box<dyn AsyncTokioStream> = match &self.protection {
            Protection::Starttls(_) => Box::new(LineWise::new(tcp)),
            Protection::Tls(connector, name) => Box::new(Encrypted(connector.connect(name.clone(), tcp).await?)),
            Protection::None => Box::new(tcp),
        };
        let mut connection = AsyncSmtpConnection::connect_with_transport(stream, &self.hello).await?;
        if let Protection::Starttls(parameters) = &self.protection {
            if !connection.can_starttls() {
                return Err(ConnectError::NoStarttls);
            }
            connection.starttls(parameters.clone(), &self.hello).await?;
        }
        Ok(connection)
    }

    /// Waits for one step of the conversation, no longer than until the deadline or a stop.
    async fn until_stopped<T>(
        &self,
        step: Step,
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

    /// The newest idle connection. Those that lay too long are closed.
    fn take_idle(&self) -> Option<AsyncSmtpConnection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|idle| idle.since.elapsed() < IDLE);
        idle.pop().map(|idle| idle.connection)
    }

    fn put_idle(&self, connection: AsyncSmtpConnection) {
        let idle = Idle { connection, since: Instant::now() };
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(idle);
    }

    /// An answer other than yes. 421 announces that the server hangs up, which is as good as having done so.
    fn refused(&self, step: Step, what: &str, error: &LettreError) -> SmtpError {
        use std::error::Error as _;
        match error.status() {
            Some(code) if u16::from(code) != 421 => {
                let words = error.source().map(|words| format!(" {words}")).unwrap_or_default();
                let what = one_line(&format!("{what}: {code}{words}"));
                SmtpError::Refused { server: self.server(), what, permanent: error.is_permanent() }
            }
            _ => SmtpError::Failed { server: self.server(), step, cause: one_line(&error.to_string()) },
        }
    }

    fn timed_out(&self, step: Step) -> SmtpError {
        SmtpError::TimedOut { server: self.server(), step }
    }

    fn stopped(&self) -> SmtpError {
        SmtpError::Stopped { server: self.server() }
    }

    fn server(&self) -> String {
        format!("{}:{}", self.settings.host, self.settings.port)
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Smtp(#[from] LettreError),
    #[error("the server does not offer STARTTLS, and mail is not sent without it")]
    NoStarttls,
}

/// The host without the brackets that an IPv6 address may be written in.
fn host(settings: &SmtpSettings) -> &str {
    settings.host.trim_start_matches('[').trim_end_matches(']')
}

/// How we greet: by host name if it is one that strict servers accept.
fn hello() -> ClientId {
    match ClientId::default() {
        ClientId::Domain(name) if is_host_name(&name) => ClientId::Domain(name),
        _ => ClientId::Ipv4(std::net::Ipv4Addr::LOCALHOST),
    }
}

fn is_host_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-'))
}

fn starttls(host: &str, authorities: Option<&[u8]>) -> Result<TlsParameters, SmtpSetupError> {
    let mut parameters = TlsParameters::builder(host.to_owned()).certificate_store(CertificateStore::WebpkiRoots);
    if let Some(pem) = authorities {
        let authorities = Certificate::from_pem(pem).map_err(|_| SmtpSetupError::Authorities)?;
        parameters = parameters.add_root_certificate(authorities);
    }
    Ok(parameters.build_rustls()?)
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

/// Words of the server as one line that is safe to show.
fn one_line(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(1_000).collect();
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}
