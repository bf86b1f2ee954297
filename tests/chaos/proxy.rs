//! The connection between one runner and one server, which can be made bad: slow, silent, cut, open on one side only,
//! or broken at the worst moment, after a COMMIT has arrived and before its answer is sent.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// What the proxy does with the bytes that it receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Pass,
    /// All bytes arrive this much later.
    Delay(Duration),
    /// Nothing moves in either direction. Bytes that are sent meanwhile arrive when the connection is good again.
    Stall,
    /// Connections are reset, including new ones.
    Cut,
    /// The server sees the connections end. The client sees nothing: the proxy discards all that it sends.
    HalfOpen,
}

/// Protocol of the requests, which decides which answers can be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// The answer to a COMMIT can be lost.
    Mysql,
    /// The answer to any command can be lost.
    Redis,
}

/// The proxy. It ends when it is dropped.
pub(crate) struct Proxy {
    port: u16,
    line: Arc<Line>,
    task: JoinHandle<()>,
}

struct Line {
    upstream: PathBuf,
    protocol: Protocol,
    mode: watch::Sender<Mode>,
    /// Number of answers that are still to be lost.
    to_lose: AtomicUsize,
    lost: AtomicUsize,
}

impl Proxy {
    /// Start a proxy for the server at this socket.
    pub(crate) async fn start(upstream: &Path, protocol: Protocol) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let line = Arc::new(Line {
            upstream: upstream.to_owned(),
            protocol,
            mode: watch::channel(Mode::Pass).0,
            to_lose: AtomicUsize::new(0),
            lost: AtomicUsize::new(0),
        });
        let task = tokio::spawn(serve(listener, Arc::clone(&line)));
        Ok(Self { port, line, task })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.line.mode.send_replace(mode);
    }

    /// Lose this many answers, each together with its connection. Zero cancels the losses that did not happen yet.
    pub(crate) fn lose(&self, answers: usize) {
        self.line.to_lose.store(answers, Ordering::SeqCst);
    }

    /// Return the number of answers that were lost so far.
    pub(crate) fn lost(&self) -> usize {
        self.line.lost.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, line: Arc<Line>) {
    // The set owns the connections, so they end with this task.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((client, _)) = accepted {
                    connections.spawn(relay(client, Arc::clone(&line)));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// How one direction of a connection ended.
enum End {
    Closed,
    Cut,
    Swallowed,
}

async fn relay(mut client: TcpStream, line: Arc<Line>) {
    let _ = client.set_nodelay(true);
    let mut mode = line.mode.subscribe();
    let end = match allowed(&mut mode).await {
        Some(end) => end,
        // While the server is down, the proxy refuses connections as well.
        None => match UnixStream::connect(&line.upstream).await {
            Err(_) => End::Closed,
            Ok(server) => {
                let losing = AtomicBool::new(false);
                let (from_server, to_server) = server.into_split();
                let (from_client, to_client) = client.split();
                tokio::select! {
                    end = pump(from_client, to_server, mode.clone(), |bytes, packets| {
                        if line.protocol == Protocol::Mysql && !packets.commits(bytes) {
                            return true;
                        }
                        let left = line.to_lose.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
                        if left.is_ok() {
                            losing.store(true, Ordering::SeqCst);
                        }
                        true
                    }) => end,
                    end = pump(from_server, to_client, mode.clone(), |_, _| {
                        // The answer is here, so the server has done the work. The client never receives the answer.
                        if losing.load(Ordering::SeqCst) {
                            line.lost.fetch_add(1, Ordering::SeqCst);
                            return false;
                        }
                        true
                    }) => end,
                }
            }
        },
    };
    match end {
        End::Closed => {}
        End::Cut => {
            let _ = client.set_zero_linger();
        }
        End::Swallowed => {
            let _ = tokio::io::copy(&mut client, &mut tokio::io::sink()).await;
        }
    }
}

/// Pass bytes on in one direction, as the mode allows. `look` sees them first and may cut the connection instead.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut mode: watch::Receiver<Mode>,
    look: impl Fn(&[u8], &mut Packets) -> bool,
) -> End {
    let mut packets = Packets::default();
    let mut bytes = vec![0; 16 * 1024];
    loop {
        let count = loop {
            tokio::select! {
                read = from.read(&mut bytes) => break read.unwrap_or(0),
                changed = mode.changed() => match *mode.borrow_and_update() {
                    _ if changed.is_err() => return End::Closed,
                    Mode::Cut => return End::Cut,
                    Mode::HalfOpen => return End::Swallowed,
                    Mode::Pass | Mode::Delay(_) | Mode::Stall => {}
                },
            }
        };
        if count == 0 {
            return End::Closed;
        }
        if let Some(end) = allowed(&mut mode).await {
            return end;
        }
        if !look(&bytes[..count], &mut packets) {
            return End::Cut;
        }
        if to.write_all(&bytes[..count]).await.is_err() {
            return End::Closed;
        }
    }
}

/// Wait until the mode lets bytes pass, or ends the connection.
async fn allowed(mode: &mut watch::Receiver<Mode>) -> Option<End> {
    loop {
        let now = *mode.borrow_and_update();
        match now {
            Mode::Pass => return None,
            Mode::Cut => return Some(End::Cut),
            Mode::HalfOpen => return Some(End::Swallowed),
            Mode::Delay(time) => {
                tokio::select! {
                    () = tokio::time::sleep(time) => return None,
                    changed = mode.changed() => if changed.is_err() { return Some(End::Closed) },
                }
            }
            Mode::Stall => {
                if mode.changed().await.is_err() {
                    return Some(End::Closed);
                }
            }
        }
    }
}

/// Finds a COMMIT among the packets of a MySQL client, however the reads divide the packets.
#[derive(Default)]
struct Packets {
    /// The part of the packet header that was read: three bytes of length, one of sequence number.
    header: Vec<u8>,
    /// Number of bytes of the packet that are still to come.
    left: usize,
    /// The first bytes of the packet, and the last ones.
    start: Vec<u8>,
    end: VecDeque<u8>,
}

/// A query packet in the text protocol, and the end of a whole transaction in one packet.
const COMMIT: &[u8] = b"\x03COMMIT";
const LAST: &[u8] = b";COMMIT";

impl Packets {
    fn commits(&mut self, bytes: &[u8]) -> bool {
        let mut found = false;
        for &byte in bytes {
            if self.left == 0 {
                self.header.push(byte);
                if let [a, b, c, _] = *self.header {
                    self.left = usize::from(a) | usize::from(b) << 8 | usize::from(c) << 16;
                    self.header.clear();
                    self.start.clear();
                    self.end.clear();
                }
                continue;
            }
            self.left -= 1;
            if self.start.len() < COMMIT.len() {
                self.start.push(byte);
                found |= self.start == COMMIT;
            }
            self.end.push_back(byte);
            if self.end.len() > LAST.len() {
                self.end.pop_front();
            }
            found |= self.left == 0 && self.end == LAST;
        }
        found
    }
}
