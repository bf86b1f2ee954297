//! A line to MySQL that can lose an answer: the request arrives, the server does its work, and the connection breaks
//! before the reply. What a client makes of that cannot be tried in any other way.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::task::JoinHandle;

/// Commands of the protocol.
const QUERY: u8 = 0x03;
const PREPARE: u8 = 0x16;
const EXECUTE: u8 = 0x17;

/// The running proxy. Ends when dropped.
pub(crate) struct Proxy {
    url: String,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    /// The answer to the next request with this text is lost.
    wanted: Mutex<Option<&'static str>>,
    cuts: AtomicUsize,
}

enum Upstream {
    Socket(PathBuf),
    Tcp(String),
}

impl Proxy {
    /// Between a client and the server of `mysql`, a URL as [`database`](super::database) gives it.
    pub(crate) async fn start(mysql: &str) -> Self {
        let rest = mysql.strip_prefix("mysql://").unwrap();
        let (before, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, database) = before.split_once('/').unwrap();
        let (login, host) = authority.rsplit_once('@').unwrap();
        let upstream = match query.split('&').find_map(|pair| pair.strip_prefix("socket=")) {
            Some(path) => Upstream::Socket(path.replace("%2F", "/").into()),
            None if host.contains(':') => Upstream::Tcp(host.to_owned()),
            None => Upstream::Tcp(format!("{host}:3306")),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::<Shared>::default();
        let task = tokio::spawn(serve(listener, upstream, Arc::clone(&shared)));
        Self { url: format!("mysql://{login}@127.0.0.1:{port}/{database}?ssl-mode=disabled"), shared, task }
    }

    /// The server, through the proxy.
    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }

    /// Lose the answer to the next request whose statement begins with this text.
    pub(crate) fn cut_after(&self, text: &'static str) {
        *self.shared.wanted.lock().unwrap() = Some(text);
    }

    /// How many answers were lost.
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
        let shared = Arc::clone(&shared);
        match &upstream {
            Upstream::Socket(path) => {
                let (reader, writer) = UnixStream::connect(path).await.unwrap().into_split();
                tokio::spawn(relay(client, reader, writer, shared));
            }
            Upstream::Tcp(host) => {
                let (reader, writer) = TcpStream::connect(host).await.unwrap().into_split();
                tokio::spawn(relay(client, reader, writer, shared));
            }
        }
    }
}

/// Pass packets on until either side ends or an answer is to be lost.
async fn relay(
    client: TcpStream,
    mut from_server: impl AsyncRead + Unpin + Send + 'static,
    mut to_server: impl AsyncWrite + Unpin,
    shared: Arc<Shared>,
) {
    let (mut from_client, mut to_client) = client.into_split();
    let lose = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let losing = Arc::clone(&lose);
    let mut answers = tokio::spawn(async move {
        let mut bytes = vec![0; 64 * 1024];
        loop {
            match from_server.read(&mut bytes).await {
                Ok(count) if count > 0 => {
                    // The answer is here, so the work is done. Nobody hears of it.
                    if losing.load(Ordering::SeqCst) || to_client.write_all(&bytes[..count]).await.is_err() {
                        return;
                    }
                }
                _ => return,
            }
        }
    });
    // Executions name their statement by its number, counted from one on each connection.
    let mut prepared: Vec<Vec<u8>> = Vec::new();
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let count = tokio::select! {
            read = from_client.read(&mut bytes) => read.unwrap_or(0),
            _ = &mut answers => 0,
        };
        if count == 0 {
            answers.abort();
            return;
        }
        let request = &bytes[..count];
        let command = request.get(4).copied().unwrap_or(0);
        let wanted = *shared.wanted.lock().unwrap();
        let rest = request.get(5..).unwrap_or_default();
        let statement = match command {
            QUERY => rest,
            EXECUTE => {
                let number = rest.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
                prepared.get((number as usize).wrapping_sub(1)).map_or(&[][..], Vec::as_slice)
            }
            _ => &[],
        };
        if wanted.is_some_and(|text| statement.starts_with(text.as_bytes())) {
            *shared.wanted.lock().unwrap() = None;
            lose.store(true, Ordering::SeqCst);
            shared.cuts.fetch_add(1, Ordering::SeqCst);
        }
        if command == PREPARE {
            prepared.push(rest.to_vec());
        }
        if to_server.write_all(request).await.is_err() {
            answers.abort();
            return;
        }
    }
}
