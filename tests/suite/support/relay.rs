//! A line to a server that can go bad in the ways of networks: stall, vanish without a word, be cut, or lead to another
//! server. Knows no protocol.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What the line does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// Passes everything on.
    Pass,
    /// Holds everything back, and delivers it when it passes again.
    Stall,
    /// Neither passes anything on nor closes anything. Connections of that time stay dead for ever.
    HalfOpen,
    /// Closes every connection, and new ones at once.
    Cut,
}

/// The running relay. Ends when dropped.
pub(crate) struct Relay {
    port: u16,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

struct Shared {
    upstream: Mutex<Option<Upstream>>,
    condition: watch::Sender<Condition>,
    connections: AtomicUsize,
}

#[derive(Clone)]
enum Upstream {
    Socket(PathBuf),
    Tcp(String),
}

impl Relay {
    /// A relay that leads nowhere yet.
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            upstream: Mutex::new(None),
            condition: watch::Sender::new(Condition::Pass),
            connections: AtomicUsize::new(0),
        });
        let task = tokio::spawn(serve(listener, Arc::clone(&shared)));
        Self { port, shared, task }
    }

    /// Lead new connections to this Redis, which must ask for no password. Open ones stay where they are.
    pub(crate) fn lead_to(&self, redis: &str) {
        let upstream = match redis.strip_prefix("redis+unix://") {
            Some(path) => Upstream::Socket(path.into()),
            None => Upstream::Tcp(redis.trim_start_matches("redis://").trim_end_matches('/').to_owned()),
        };
        *self.shared.upstream.lock().unwrap() = Some(upstream);
    }

    /// The Redis behind it, through the relay.
    pub(crate) fn redis_url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Where it listens on the loopback interface.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn set(&self, condition: Condition) {
        self.shared.condition.send_replace(condition);
    }

    /// Connections asked for so far.
    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    // Dropped with this task, and every connection with it.
    let mut lines = tokio::task::JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        shared.connections.fetch_add(1, Ordering::SeqCst);
        let (upstream, condition) = (shared.upstream.lock().unwrap().clone(), shared.condition.subscribe());
        lines.spawn(relay(client, upstream, condition));
    }
}

async fn relay(client: TcpStream, upstream: Option<Upstream>, mut condition: watch::Receiver<Condition>) {
    let Some(upstream) = upstream else { return };
    if !may_pass(&mut condition).await {
        return;
    }
    let (from_client, to_client) = client.into_split();
    match upstream {
        Upstream::Socket(path) => {
            let Ok(server) = UnixStream::connect(path).await else { return };
            let (from_server, to_server) = server.into_split();
            both(pass(from_client, to_server, condition.clone()), pass(from_server, to_client, condition)).await;
        }
        Upstream::Tcp(host) => {
            let Ok(server) = TcpStream::connect(host).await else { return };
            let (from_server, to_server) = server.into_split();
            both(pass(from_client, to_server, condition.clone()), pass(from_server, to_client, condition)).await;
        }
    }
}

/// Until either direction has ended.
async fn both(there: impl Future<Output = ()>, back: impl Future<Output = ()>) {
    tokio::select! {
        () = there => {}
        () = back => {}
    }
}

async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut condition: watch::Receiver<Condition>,
) {
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let count = tokio::select! {
            may = still_passes(&mut condition) => if may { continue } else { return },
            read = from.read(&mut bytes) => read.unwrap_or(0),
        };
        if !may_pass(&mut condition).await || count == 0 || to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}

/// Resolves when the condition has changed and passes again; false when the line is cut.
async fn still_passes(condition: &mut watch::Receiver<Condition>) -> bool {
    condition.changed().await.is_ok() && may_pass(condition).await
}

/// Wait until the line passes; false when it is cut.
async fn may_pass(condition: &mut watch::Receiver<Condition>) -> bool {
    loop {
        let now = *condition.borrow_and_update();
        match now {
            Condition::Pass => return true,
            Condition::Cut => return false,
            Condition::HalfOpen => std::future::pending().await,
            Condition::Stall => {}
        }
        if condition.changed().await.is_err() {
            return false;
        }
    }
}
