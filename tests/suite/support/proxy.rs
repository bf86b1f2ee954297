//! A proxy to MySQL that can lose an answer: the request arrives, the server does its work, and the connection breaks
//! before the reply. It can also fall silent, forget its connections as a network does, and answer with errors of its
//! own as proxies and clusters do. The reaction of a client to this cannot be tested in another way.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tickr::store::with_prefix;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::table_prefix;

/// Commands of the protocol.
const QUERY: u8 = 0x03;
const PREPARE: u8 = 0x16;
const EXECUTE: u8 = 0x17;

/// The running proxy. It ends when dropped.
pub(crate) struct Proxy {
    url: String,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    /// What happens to the next requests with this text, and to how many of them.
    wanted: Mutex<Option<(&'static str, Treatment, usize)>>,
    /// The answers to so many COMMITs behind such a statement are lost.
    commit_of: Mutex<Option<(&'static str, usize)>>,
    /// Everything halts at a request with this text, after so many of them.
    halt: Mutex<Option<(&'static str, usize, Halt)>>,
    halted: AtomicBool,
    /// New connections are refused with this error.
    refuse_connections: Mutex<Option<u16>>,
    refused_connections: AtomicUsize,
    cuts: AtomicUsize,
    requests: AtomicUsize,
    /// Number of times that all connections were forgotten.
    forgotten: AtomicUsize,
    /// Whether new connections are to be refused after the next lost answer.
    refuse_after: AtomicBool,
    refuses: AtomicBool,
    /// Whether requests are to wait after the next lost answer.
    hold_after: AtomicBool,
    holds: watch::Sender<bool>,
    /// Whether a connection stays open behind a lost answer.
    keeps: watch::Sender<bool>,
    /// What happens to a request that is held back by itself.
    held: watch::Sender<Held>,
    /// Number of requests that were held back by themselves so far.
    held_back: AtomicUsize,
    /// Milliseconds by which each request comes later.
    delay_ms: AtomicU64,
}

/// What happens to a request that is held back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Held {
    /// It goes on.
    #[default]
    Passes,
    /// It goes on, and the connection breaks before the answer.
    PassesUnanswered,
    /// It waits.
    Waits,
    /// Its client is told that the connection is broken. The request still waits.
    WaitsAlone,
}

/// The moment of a request at which everything halts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Halt {
    /// It does not arrive.
    Before,
    /// It arrives, and the answer is lost.
    After,
    /// The COMMIT behind it arrives, and the answer to that is lost. It may be in the same request.
    AfterCommit,
    /// It waits like all others, and nothing is lost.
    Held,
}

/// What happens to a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Treatment {
    Passed,
    /// It arrives, and the connection breaks before the answer.
    AnswerLost,
    /// It is dropped, like everything on its connection from now on, and neither side is told.
    Swallowed,
    /// It waits, until the test lets it go on.
    HeldBack,
    /// It is dropped and answered with this error.
    Refused(u16),
    /// It arrives, and is answered with this error whatever the server answers.
    DoneAndRefused(u16),
    /// It waits until requests pass again.
    Held,
}

pub(super) enum Upstream {
    Socket(PathBuf),
    Tcp(String),
}

impl Upstream {
    /// Parse `mysql`, a URL as [`database`](super::database) returns it. Return the server, and the URL of the same
    /// server behind another port.
    pub(super) fn of(mysql: &str, port: u16) -> (Self, String) {
        let rest = mysql.strip_prefix("mysql://").unwrap();
        let (before, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, database) = before.split_once('/').unwrap();
        let (login, host) = authority.rsplit_once('@').unwrap();
        let upstream = match query.split('&').find_map(|pair| pair.strip_prefix("socket=")) {
            Some(path) => Self::Socket(path.replace("%2F", "/").into()),
            None if host.contains(':') => Self::Tcp(host.to_owned()),
            None => Self::Tcp(format!("{host}:3306")),
        };
        (upstream, format!("mysql://{login}@127.0.0.1:{port}/{database}?ssl-mode=disabled"))
    }
}

impl Proxy {
    /// Start a proxy for the server of `mysql`, a URL as [`database`](super::database) returns it.
    pub(crate) async fn start(mysql: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (upstream, url) = Upstream::of(mysql, listener.local_addr().unwrap().port());
        let shared = Arc::<Shared>::default();
        let task = tokio::spawn(serve(listener, upstream, Arc::clone(&shared)));
        Self { url, shared, task }
    }

    /// Return the URL of the server behind the proxy.
    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }

    /// Lose the answer to the next request whose statement begins with this text. A request that is a whole transaction
    /// also counts as COMMIT.
    pub(crate) fn cut_after(&self, text: &'static str) {
        *self.shared.wanted.lock().unwrap() = Some((text, Treatment::AnswerLost, 1));
    }

    /// Do the same as [`cut_after`](Self::cut_after), and refuse new connections from then on, until
    /// [`let_in`](Self::let_in).
    pub(crate) fn cut_and_refuse(&self, text: &'static str) {
        self.shared.refuse_after.store(true, Ordering::SeqCst);
        self.cut_after(text);
    }

    /// Do the same as [`cut_after`](Self::cut_after), and let the requests of all connections wait from then on, until
    /// [`let_in`](Self::let_in).
    pub(crate) fn cut_and_hold(&self, text: &'static str) {
        self.shared.hold_after.store(true, Ordering::SeqCst);
        self.cut_after(text);
    }

    /// Lose the answer to the COMMIT of the next transaction in which a request begins with this text.
    pub(crate) fn cut_commit_of(&self, text: &'static str) {
        self.cut_commits_of(text, 1);
    }

    /// Do the same for this many transactions.
    pub(crate) fn cut_commits_of(&self, text: &'static str, times: usize) {
        *self.shared.commit_of.lock().unwrap() = Some((text, times));
    }

    /// Do the same as [`cut_commit_of`](Self::cut_commit_of), and let the requests of all connections wait from then
    /// on, until [`let_in`](Self::let_in).
    pub(crate) fn cut_commit_of_and_hold(&self, text: &'static str) {
        self.shared.hold_after.store(true, Ordering::SeqCst);
        self.cut_commit_of(text);
    }

    /// Do the same as [`cut_commit_of`](Self::cut_commit_of), and keep the connection open: its client waits for the answer
    /// until [`let_in`](Self::let_in) breaks it. Other requests go on.
    pub(crate) fn keep_commit_of(&self, text: &'static str) {
        self.shared.keeps.send_replace(true);
        self.cut_commit_of(text);
    }

    /// Halt at the `nth` request from now on whose statement begins with this text: the requests of all connections
    /// wait from then on, until [`let_in`](Self::let_in).
    pub(crate) fn halt_at(&self, text: &'static str, nth: usize, moment: Halt) {
        self.shared.halted.store(false, Ordering::SeqCst);
        *self.shared.halt.lock().unwrap() = Some((text, nth, moment));
    }

    /// Return whether the moment of [`halt_at`](Self::halt_at) has come.
    pub(crate) fn has_halted(&self) -> bool {
        self.shared.halted.load(Ordering::SeqCst)
    }

    /// Hold back the next request whose statement begins with this text. Its connection waits, and all others go on.
    pub(crate) fn hold_back(&self, text: &'static str) {
        self.shared.held.send_replace(Held::Waits);
        self.shared.held_back.store(0, Ordering::SeqCst);
        *self.shared.wanted.lock().unwrap() = Some((text, Treatment::HeldBack, 1));
    }

    /// Return whether a request is held back.
    pub(crate) fn holds_one_back(&self) -> bool {
        self.shared.held_back.load(Ordering::SeqCst) > 0
    }

    /// Break the connection to the client of the request that is held back. The request still waits.
    pub(crate) fn leave_held_back(&self) {
        self.shared.held.send_replace(Held::WaitsAlone);
    }

    /// Let the request that is held back go on.
    pub(crate) fn pass_held_back(&self) {
        self.shared.held.send_replace(Held::Passes);
    }

    /// Do the same, and break its connection before the answer.
    pub(crate) fn pass_held_back_unanswered(&self) {
        self.shared.held.send_replace(Held::PassesUnanswered);
    }

    /// Answer new connections with this server error, until [`let_in`](Self::let_in).
    pub(crate) fn refuse_connections(&self, error: u16) {
        *self.shared.refuse_connections.lock().unwrap() = Some(error);
    }

    /// Return the number of connections that were answered with an error.
    pub(crate) fn refused_connections(&self) -> usize {
        self.shared.refused_connections.load(Ordering::SeqCst)
    }

    /// Accept new connections and pass requests on again.
    pub(crate) fn let_in(&self) {
        *self.shared.refuse_connections.lock().unwrap() = None;
        self.shared.refuses.store(false, Ordering::SeqCst);
        self.shared.holds.send_replace(false);
        self.shared.keeps.send_replace(false);
    }

    /// Fall silent, on one connection, with the next request whose statement begins with this text.
    pub(crate) fn silent_from(&self, text: &'static str) {
        *self.shared.wanted.lock().unwrap() = Some((text, Treatment::Swallowed, 1));
    }

    /// Answer this many of the next requests whose statement begins with this text with this server error, without
    /// passing them on.
    pub(crate) fn refuse(&self, text: &'static str, error: u16, times: usize) {
        *self.shared.wanted.lock().unwrap() = Some((text, Treatment::Refused(error), times));
    }

    /// Do the same as [`refuse`](Self::refuse), but let the server carry the request out.
    pub(crate) fn refuse_what_is_done(&self, text: &'static str, error: u16, times: usize) {
        *self.shared.wanted.lock().unwrap() = Some((text, Treatment::DoneAndRefused(error), times));
    }

    /// Pass each request on so much later from now on, as over a slow network.
    pub(crate) fn delay(&self, each: Duration) {
        self.shared.delay_ms.store(u64::try_from(each.as_millis()).unwrap(), Ordering::SeqCst);
    }

    /// Pass everything on again.
    pub(crate) fn pass(&self) {
        *self.shared.wanted.lock().unwrap() = None;
        *self.shared.commit_of.lock().unwrap() = None;
    }

    /// Return whether everything that was ordered has happened.
    pub(crate) fn is_through(&self) -> bool {
        self.shared.wanted.lock().unwrap().is_none()
    }

    /// Forget the open connections: everything that comes on them from now on is dropped, and neither side is told.
    pub(crate) fn forget_connections(&self) {
        self.shared.forgotten.fetch_add(1, Ordering::SeqCst);
    }

    /// Return the number of requests of clients so far.
    pub(crate) fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::SeqCst)
    }

    /// Return the number of answers that were lost plus connections that fell silent.
    pub(crate) fn cuts(&self) -> usize {
        self.shared.cuts.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, upstream: Upstream, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        if shared.refuses.load(Ordering::SeqCst) {
            continue;
        }
        let refused = *shared.refuse_connections.lock().unwrap();
        if let Some(error) = refused {
            shared.refused_connections.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(turn_away(client, error));
            continue;
        }
        let shared = Arc::clone(&shared);
        match &upstream {
            Upstream::Socket(path) => {
                // A test may have killed the server. Then the client is turned away.
                let Ok(stream) = UnixStream::connect(path).await else { continue };
                let (reader, writer) = stream.into_split();
                tokio::spawn(relay(client, reader, writer, shared));
            }
            Upstream::Tcp(host) => {
                let Ok(stream) = TcpStream::connect(host).await else { continue };
                let (reader, writer) = stream.into_split();
                tokio::spawn(relay(client, reader, writer, shared));
            }
        }
    }
}

/// Answer a new connection with an error in place of the greeting, as a server does that accepts none from this host,
/// and wait until the client has hung up. An end that came first could take the answer away.
async fn turn_away(mut client: TcpStream, error: u16) {
    // Before the first words of the client no state of the protocol is known, so the error has none.
    let text = format!("the proxy says {error}");
    let mut packet = vec![u8::try_from(text.len() + 3).unwrap(), 0, 0, 0, 0xff];
    packet.extend(error.to_le_bytes());
    packet.extend(text.as_bytes());
    let _ = client.write_all(&packet).await;
    let mut rest = Vec::new();
    let _ = tokio::time::timeout(std::time::Duration::from_secs(10), client.read_to_end(&mut rest)).await;
}

/// State of a connection that both directions share.
#[derive(Default)]
struct Line {
    /// The statement whose preparation was requested and not answered yet.
    preparing: Option<Vec<u8>>,
    /// Prepared statements by the number that the server gave them.
    prepared: HashMap<u32, Vec<u8>>,
    /// Whether the next answer is dropped.
    lose: bool,
    /// Whether the answer to the next COMMIT is dropped.
    lose_commit: bool,
    /// Whether everything halts at the next COMMIT.
    halt_commit: bool,
    /// The error that replaces the next answer.
    refuse: Option<u16>,
    /// The part that has arrived of an answer that is lost or replaced.
    held: Vec<u8>,
}

/// Pass packets on until either side ends or an answer is to be lost.
async fn relay(
    client: TcpStream,
    mut from_server: impl AsyncRead + Unpin + Send + 'static,
    mut to_server: impl AsyncWrite + Unpin,
    shared: Arc<Shared>,
) {
    let (mut from_client, to_client) = client.into_split();
    // Both directions write to the client: one passes answers on, the other makes its own.
    let to_client = Arc::new(tokio::sync::Mutex::new(to_client));
    let answered = Arc::clone(&to_client);
    let line = Arc::<Mutex<Line>>::default();
    let (other, mut keeps) = (Arc::clone(&line), shared.keeps.subscribe());
    let mut answers = tokio::spawn(async move {
        let mut bytes = vec![0; 64 * 1024];
        loop {
            match from_server.read(&mut bytes).await {
                Ok(count) if count > 0 => {
                    let Some((lose, refuse)) = other.lock().unwrap().hear(&bytes[..count]) else { continue };
                    let answer = refuse.map_or_else(|| bytes[..count].to_vec(), error_packet);
                    // The answer is here, so the server has done the work. The client never receives the answer.
                    if lose {
                        let _ = keeps.wait_for(|keeps| !keeps).await;
                        return;
                    }
                    if answered.lock().await.write_all(&answer).await.is_err() {
                        return;
                    }
                }
                _ => return,
            }
        }
    });
    let known = shared.forgotten.load(Ordering::SeqCst);
    // Bytes from the client that are not yet a whole packet.
    let mut bytes = Vec::new();
    let (mut silent, mut is_left) = (false, false);
    loop {
        let count = tokio::select! {
            read = from_client.read_buf(&mut bytes) => read.unwrap_or(0),
            _ = &mut answers => 0,
        };
        if count == 0 {
            answers.abort();
            return;
        }
        let _ = shared.holds.subscribe().wait_for(|holds| !holds).await;
        if silent || shared.forgotten.load(Ordering::SeqCst) != known {
            bytes.clear();
            continue;
        }
        // Number of bytes that were passed on or dropped.
        let mut whole = 0;
        // Three bytes of length, one of sequence. The driver may send several packets at once.
        while let Some(&[a, b, c, sequence]) = bytes[whole..].first_chunk() {
            let end = whole + 4 + u32::from_le_bytes([a, b, c, 0]) as usize;
            let Some(packet) = bytes.get(whole + 4..end) else { break };
            if sequence == 0 {
                shared.requests.fetch_add(1, Ordering::SeqCst);
                let delay_ms = shared.delay_ms.load(Ordering::SeqCst);
                if delay_ms > 0 {
                    tokio::time::sleep(Duration::from_millis(delay_ms)).await;
                }
                let treatment = line.lock().unwrap().ask(packet, &shared);
                let is_cut = !matches!(treatment, Treatment::Passed | Treatment::Held | Treatment::HeldBack);
                shared.cuts.fetch_add(usize::from(is_cut), Ordering::SeqCst);
                if treatment == Treatment::Held {
                    let _ = shared.holds.subscribe().wait_for(|holds| !holds).await;
                }
                silent |= treatment == Treatment::Swallowed;
                if treatment == Treatment::HeldBack {
                    is_left = hold_back(&shared, &line, &to_client).await;
                }
                if let Treatment::Refused(error) = treatment {
                    let _ = to_client.lock().await.write_all(&error_packet(error)).await;
                    bytes.drain(whole..end);
                    continue;
                }
            }
            if silent {
                break;
            }
            whole = end;
        }
        if to_server.write_all(&bytes[..whole]).await.is_err() {
            answers.abort();
            return;
        }
        if is_left {
            // The server does all of it before its connection ends.
            let _ = (&mut answers).await;
            return;
        }
        bytes.drain(..whole);
    }
}

/// Wait until the test lets a request go on. Return whether its client was told that the connection is broken.
async fn hold_back(shared: &Shared, line: &Mutex<Line>, to_client: &tokio::sync::Mutex<OwnedWriteHalf>) -> bool {
    let (mut held, mut is_left) = (shared.held.subscribe(), false);
    shared.held_back.fetch_add(1, Ordering::SeqCst);
    loop {
        let now = *held.borrow_and_update();
        match now {
            Held::Waits => {}
            Held::WaitsAlone if is_left => {}
            Held::WaitsAlone => {
                is_left = true;
                line.lock().unwrap().lose = true;
                let _ = to_client.lock().await.shutdown().await;
            }
            Held::Passes => return is_left,
            Held::PassesUnanswered => {
                line.lock().unwrap().lose = true;
                return is_left;
            }
        }
        if held.changed().await.is_err() {
            return is_left;
        }
    }
}

/// Return whether the last packet so far says that the answer to another statement of the same request follows. A
/// request that is a transaction ends with the answer to its COMMIT.
fn more_results_follow(answer: &[u8]) -> bool {
    const MORE_RESULTS: u8 = 0x08;
    let (mut rest, mut more) = (answer, false);
    while let Some(&[a, b, c, _]) = rest.first_chunk() {
        let Some(packet) = rest.get(4..4 + u32::from_le_bytes([a, b, c, 0]) as usize) else { return more };
        more = match *packet {
            // OK, with two counts of one byte before its status; and the end of rows.
            [0, _, _, status, ..] | [0xfe, _, _, status, _] => status & MORE_RESULTS != 0,
            [0xff, ..] => false,
            _ => more,
        };
        rest = &rest[4 + packet.len()..];
    }
    more
}

/// Return whether a request begins with this text, or is the text behind `=`. Some transactions are one request: these are
/// found as COMMIT.
fn is_about(statement: &[u8], text: &str) -> bool {
    if let Some(whole) = text.strip_prefix('=') {
        return statement == whole.as_bytes();
    }
    let prefixed = with_prefix(&table_prefix(), text);
    let text = prefixed.as_ref();
    statement.starts_with(text.as_bytes()) || text == "COMMIT" && statement.ends_with(b";COMMIT")
}

/// Let all requests wait from now on if this one is where everything halts, and return the moment. `at_commit` tells of
/// its connection that the next COMMIT is that place.
fn halts(at_commit: &mut bool, statement: &[u8], shared: &Shared) -> Option<Halt> {
    let mut halt = shared.halt.lock().unwrap();
    let here = match *halt {
        Some((text, nth, moment)) if is_about(statement, text) => {
            *halt = (nth > 1).then_some((text, nth - 1, moment));
            halt.is_none().then_some(moment)
        }
        _ => None,
    };
    *at_commit |= here == Some(Halt::AfterCommit);
    let moment = if *at_commit { is_about(statement, "COMMIT").then_some(Halt::AfterCommit) } else { here }?;
    *at_commit = false;
    shared.holds.send_replace(true);
    shared.halted.store(true, Ordering::SeqCst);
    Some(moment)
}

impl Line {
    /// Decide what happens to a command of the client.
    fn ask(&mut self, packet: &[u8], shared: &Shared) -> Treatment {
        let Some((command, rest)) = packet.split_first() else { return Treatment::Passed };
        let statement = match *command {
            QUERY => rest,
            PREPARE => {
                self.preparing = Some(rest.to_vec());
                return Treatment::Passed;
            }
            EXECUTE => {
                let number = rest.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
                self.prepared.get(&number).map_or(&[][..], Vec::as_slice)
            }
            _ => return Treatment::Passed,
        };
        {
            let mut commit_of = shared.commit_of.lock().unwrap();
            if let Some((text, times)) = *commit_of
                && is_about(statement, text)
            {
                *commit_of = (times > 1).then_some((text, times - 1));
                self.lose_commit = true;
            }
        }
        if let Some(moment) = halts(&mut self.halt_commit, statement, shared) {
            match moment {
                Halt::Before => return Treatment::Swallowed,
                Halt::Held => return Treatment::Held,
                Halt::After | Halt::AfterCommit => {}
            }
            self.lose = true;
            return Treatment::AnswerLost;
        }
        if self.lose_commit && is_about(statement, "COMMIT") {
            self.lose_commit = false;
            return self.lose_answer(shared);
        }
        let mut wanted = shared.wanted.lock().unwrap();
        match *wanted {
            Some((text, treatment, times)) if !self.lose && is_about(statement, text) => {
                *wanted = (times > 1).then_some((text, treatment, times - 1));
                if treatment == Treatment::AnswerLost {
                    return self.lose_answer(shared);
                }
                if let Treatment::DoneAndRefused(error) = treatment {
                    self.refuse = Some(error);
                }
                treatment
            }
            _ => Treatment::Passed,
        }
    }

    /// Drop the next answer, and begin what was ordered for that moment.
    fn lose_answer(&mut self, shared: &Shared) -> Treatment {
        self.lose = true;
        if shared.refuse_after.swap(false, Ordering::SeqCst) {
            shared.refuses.store(true, Ordering::SeqCst);
        }
        if shared.hold_after.swap(false, Ordering::SeqCst) {
            shared.holds.send_replace(true);
        }
        Treatment::AnswerLost
    }

    /// Read an answer of the server. Return whether to lose it, and the error that replaces it; nothing while a part of
    /// such an answer is still to come.
    fn hear(&mut self, bytes: &[u8]) -> Option<(bool, Option<u16>)> {
        if let Some(statement) = self.preparing.take() {
            // The header, a zero for success, and the number.
            if let (Some(0), Some(number)) = (bytes.get(4), bytes.get(5..).and_then(|rest| rest.first_chunk())) {
                self.prepared.insert(u32::from_le_bytes(*number), statement);
            }
        }
        if self.lose || self.refuse.is_some() {
            self.held.extend_from_slice(bytes);
            if more_results_follow(&self.held) {
                return None;
            }
            self.held.clear();
        }
        Some((self.lose, self.refuse.take()))
    }
}

/// Build the answer to a failed request: its length, sequence 1, the mark of an error, number, state and text.
fn error_packet(number: u16) -> Vec<u8> {
    let text = format!("#HY000the proxy says {number}");
    let mut packet = vec![u8::try_from(text.len() + 3).unwrap(), 0, 0, 1, 0xff];
    packet.extend(number.to_le_bytes());
    packet.extend(text.as_bytes());
    packet
}
