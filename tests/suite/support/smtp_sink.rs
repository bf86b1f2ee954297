//! A small SMTP server that keeps the mails it gets and misbehaves on request.
//!
//! Faults by recipient: `tempfail@` is answered 451, `nouser@` 550, `hangup@` 421 and a closed connection, `stall@` not
//! at all, and for `dropafterdata@` the connection ends after the message without an answer. `latinnouser@` and
//! `othercode@` are answered 550 in Latin-1 and 571. A message is taken with a bare 250 for `bare@`, in Latin-1 for
//! `latin@`, and with a word that is no answer for `garbled@`. For `cutline@` it is taken with an answer whose line does
//! not end before the connection does, and for `toolarge@` the answer 552 and the end of the connection come amid it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// A received mail.
#[derive(Clone, Debug)]
pub(crate) struct Delivered {
    pub(crate) sender: String,
    pub(crate) recipients: Vec<String>,
    /// The message, with dots unstuffed, and with the line breaks as they came.
    pub(crate) bytes: Vec<u8>,
    /// Whether it came over TLS.
    pub(crate) encrypted: bool,
    pub(crate) logged_in: bool,
}

/// Behaviour of the server.
#[derive(Clone, Default)]
pub(crate) struct SinkOptions {
    /// Offer STARTTLS, or speak TLS from the first byte.
    pub(crate) starttls: bool,
    pub(crate) implicit_tls: bool,
    /// Append a line to the answer to STARTTLS, as an attacker on the network could.
    pub(crate) inject_after_starttls: bool,
    /// The only account, and the method of the login: `PLAIN` or `LOGIN`. Without a login no mail is accepted.
    pub(crate) account: Option<(&'static str, &'static str)>,
    pub(crate) mechanism: &'static str,
    /// Close the connection silently after this many mails on it, or give each further sender this answer.
    pub(crate) mails_per_connection: Option<usize>,
    pub(crate) said_beyond: Option<&'static str>,
    /// Take no message before this has a permit.
    pub(crate) gate: Option<Arc<Semaphore>>,
}

/// A running server. It stops when dropped.
pub(crate) struct SmtpSink {
    pub(crate) address: SocketAddr,
    /// The certificate to trust, in PEM, for the name `localhost`.
    pub(crate) ca_pem: Vec<u8>,
    state: Arc<Shared>,
    accepting: JoinHandle<()>,
}

struct Shared {
    options: SinkOptions,
    tls: TlsAcceptor,
    mails: Mutex<Vec<Delivered>>,
    connections: AtomicUsize,
    open: AtomicUsize,
    most_open: AtomicUsize,
}

impl SmtpSink {
    pub(crate) async fn start(options: SinkOptions) -> Self {
        let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![key.cert.der().clone()], key.signing_key.into())
            .unwrap();
        let state = Arc::new(Shared {
            options,
            tls: TlsAcceptor::from(Arc::new(tls)),
            mails: Mutex::default(),
            connections: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            most_open: AtomicUsize::new(0),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::clone(&state);
        let accepting = tokio::spawn(async move {
            // The set is dropped with this task, so that a dropped sink has no conversations left.
            let mut conversations = tokio::task::JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                conversations.spawn(Arc::clone(&shared).serve(socket));
            }
        });
        Self { address, ca_pem: key.cert.pem().into_bytes(), state, accepting }
    }

    /// Return every mail accepted so far.
    pub(crate) fn mails(&self) -> Vec<Delivered> {
        self.state.mails.lock().unwrap().clone()
    }

    /// Return the number of connections that were ever made.
    pub(crate) fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }

    /// Return the largest number of connections that were open at the same time.
    pub(crate) fn most_open(&self) -> usize {
        self.state.most_open.load(Ordering::SeqCst)
    }
}

impl Drop for SmtpSink {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// How a conversation continues.
enum Next {
    Answer(String),
    Starttls,
    HangUp,
}

struct Conversation {
    shared: Arc<Shared>,
    stream: BufReader<Box<dyn Stream>>,
    encrypted: bool,
    logged_in: bool,
    sender: String,
    recipients: Vec<String>,
    mails: usize,
}

impl Shared {
    async fn serve(self: Arc<Self>, socket: TcpStream) {
        self.connections.fetch_add(1, Ordering::SeqCst);
        self.most_open.fetch_max(self.open.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let implicit = self.options.implicit_tls;
        let stream: Option<Box<dyn Stream>> = if implicit {
            self.tls.accept(socket).await.ok().map(|tls| Box::new(tls) as Box<dyn Stream>)
        } else {
            Some(Box::new(socket))
        };
        if let Some(stream) = stream {
            let conversation = Conversation {
                shared: Arc::clone(&self),
                stream: BufReader::new(stream),
                encrypted: implicit,
                logged_in: false,
                sender: String::new(),
                recipients: Vec::new(),
                mails: 0,
            };
            // The client may disconnect at any point, and the sink ignores that.
            let _ = conversation.hold().await;
        }
        self.open.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Conversation {
    async fn hold(mut self) -> std::io::Result<()> {
        self.say("220 sink ready").await?;
        loop {
            let line = self.line().await?;
            match self.answer(&line).await? {
                Next::Answer(answer) => self.say(&answer).await?,
                Next::Starttls => self = self.upgrade().await?,
                Next::HangUp => return Ok(()),
            }
        }
    }

    async fn answer(&mut self, line: &str) -> std::io::Result<Next> {
        let upper = line.to_ascii_uppercase();
        let answer = |text: &str| Ok(Next::Answer(text.to_owned()));
        if upper.starts_with("EHLO ") {
            answer(&self.greeting())
        } else if upper == "STARTTLS" && self.shared.options.starttls && !self.encrypted {
            Ok(Next::Starttls)
        } else if let Some(rest) = upper.strip_prefix("AUTH ") {
            self.login(rest.split(' ').next().unwrap(), line).await
        } else if upper.starts_with("MAIL FROM:") {
            if self.shared.options.account.is_some() && !self.logged_in {
                return answer("530 5.7.0 log in first");
            }
            if let Some(said) = self.shared.options.said_beyond.filter(|_| self.has_enough()) {
                return answer(said);
            }
            (self.sender, self.recipients) = (address(line), Vec::new());
            answer("250 2.1.0 ok")
        } else if upper.starts_with("RCPT TO:") {
            self.recipient(address(line)).await
        } else if upper == "DATA" && !self.recipients.is_empty() {
            self.say("354 go ahead").await?;
            self.message().await
        } else if upper == "RSET" || upper == "NOOP" {
            self.recipients.clear();
            answer("250 2.0.0 ok")
        } else if upper == "QUIT" {
            self.say("221 2.0.0 bye").await?;
            Ok(Next::HangUp)
        } else {
            answer("503 5.5.1 what do you mean")
        }
    }

    fn greeting(&self) -> String {
        let options = &self.shared.options;
        let mut lines = vec!["sink".to_owned(), "8BITMIME".to_owned()];
        if options.starttls && !self.encrypted {
            lines.push("STARTTLS".to_owned());
        }
        if options.account.is_some() {
            lines.push(format!("AUTH {}", options.mechanism));
        }
        let last = lines.pop().unwrap();
        lines.iter().map(|line| format!("250-{line}\r\n")).collect::<String>() + &format!("250 {last}")
    }

    async fn login(&mut self, mechanism: &str, line: &str) -> std::io::Result<Next> {
        let decode = |text: &str| String::from_utf8(STANDARD.decode(text.trim()).unwrap()).unwrap();
        let given = if mechanism == "PLAIN" {
            let parts = decode(line.rsplit(' ').next().unwrap());
            let mut parts = parts.split('\0').skip(1).map(str::to_owned);
            (parts.next().unwrap(), parts.next().unwrap())
        } else {
            self.say("334 VXNlcm5hbWU6").await?;
            let user = decode(&self.line().await?);
            self.say("334 UGFzc3dvcmQ6").await?;
            (user, decode(&self.line().await?))
        };
        self.logged_in = self.shared.options.account == Some((given.0.as_str(), given.1.as_str()));
        let answer = if self.logged_in { "235 2.7.0 welcome" } else { "535 5.7.8 who are you" };
        Ok(Next::Answer(answer.to_owned()))
    }

    async fn recipient(&mut self, address: String) -> std::io::Result<Next> {
        let answer = match address.split('@').next().unwrap() {
            "tempfail" => "451 4.7.1 try later",
            "nouser" => "550 5.1.1 no such user",
            "othercode" => "571 not to you",
            "latinnouser" => {
                self.say_bytes(b"550 5.1.1 Empf\xe4nger unbekannt\r\n").await?;
                ""
            }
            "hangup" => {
                self.say("421 4.3.2 closing").await?;
                return Ok(Next::HangUp);
            }
            "stall" => {
                tokio::time::sleep(Duration::from_secs(3_600)).await;
                return Ok(Next::HangUp);
            }
            _ => {
                self.recipients.push(address);
                "250 2.1.5 ok"
            }
        };
        Ok(Next::Answer(answer.to_owned()))
    }

    /// Return whether this connection had as many mails as it may have.
    fn has_enough(&self) -> bool {
        self.shared.options.mails_per_connection.is_some_and(|most| self.mails >= most)
    }

    async fn message(&mut self) -> std::io::Result<Next> {
        if self.recipients.iter().any(|address| address.starts_with("toolarge@")) {
            self.stream.read_exact(&mut [0; 1_024]).await?;
            self.say("552 5.3.4 too large").await?;
            return Ok(Next::HangUp);
        }
        let mut bytes = Vec::new();
        loop {
            let start = bytes.len();
            if self.stream.read_until(b'\n', &mut bytes).await? == 0 {
                return Ok(Next::HangUp);
            }
            if &bytes[start..] == b".\r\n" {
                bytes.truncate(start);
                break;
            }
            if bytes[start] == b'.' {
                bytes.remove(start);
            }
        }
        if self.recipients.iter().any(|address| address.starts_with("dropafterdata@")) {
            return Ok(Next::HangUp);
        }
        let is_cut = self.recipients[0].starts_with("cutline@");
        let answer = match self.recipients[0].split('@').next().unwrap() {
            "bare" => b"250\r\n".to_vec(),
            "cutline" => b"250 2.0.0 taken".to_vec(),
            "latin" => b"250 2.0.0 angenommen f\xfcr Zustellung\r\n".to_vec(),
            "garbled" => b"thanks\r\n".to_vec(),
            _ => format!("250 2.0.0 taken as {}\r\n", self.mails + 1).into_bytes(),
        };
        if let Some(gate) = &self.shared.options.gate {
            drop(gate.acquire().await);
        }
        self.shared.mails.lock().unwrap().push(Delivered {
            sender: std::mem::take(&mut self.sender),
            recipients: std::mem::take(&mut self.recipients),
            bytes,
            encrypted: self.encrypted,
            logged_in: self.logged_in,
        });
        self.mails += 1;
        self.say_bytes(&answer).await?;
        let closes = is_cut || self.has_enough() && self.shared.options.said_beyond.is_none();
        if closes { Ok(Next::HangUp) } else { Ok(Next::Answer(String::new())) }
    }

    async fn upgrade(mut self) -> std::io::Result<Self> {
        let injected = if self.shared.options.inject_after_starttls { "\r\n250 injected" } else { "" };
        self.say(&format!("220 2.0.0 go ahead{injected}")).await?;
        let tls = self.shared.tls.accept(self.stream.into_inner()).await?;
        Ok(Self { stream: BufReader::new(Box::new(tls)), encrypted: true, logged_in: false, ..self })
    }

    async fn line(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        if (&mut self.stream).take(4_096).read_line(&mut line).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end_matches(['\r', '\n']).to_owned())
    }

    /// Send an answer. An empty one is not sent, because the answer was given already.
    async fn say(&mut self, answer: &str) -> std::io::Result<()> {
        if !answer.is_empty() {
            self.say_bytes(format!("{answer}\r\n").as_bytes()).await?;
        }
        Ok(())
    }

    async fn say_bytes(&mut self, answer: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(answer).await?;
        self.stream.flush().await
    }
}

/// Return the address between the angle brackets.
fn address(line: &str) -> String {
    line.split_once('<')
        .and_then(|(_, rest)| rest.split_once('>'))
        .map_or(String::new(), |(address, _)| address.to_owned())
}
