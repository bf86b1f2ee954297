//! A relay to a server that can go bad as networks do: stall, vanish silently, be cut, or lead to another server. It
//! knows no protocol.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What the relay does with bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// Pass everything on.
    Pass,
    /// Hold everything back, and deliver it when the relay passes again.
    Stall,
    /// Neither pass anything on nor close anything. Connections of that time stay dead for ever.
    HalfOpen,
    /// Close every connection, and new ones at once.
    Cut,
}

/// The running relay. It ends when dropped.
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
    /// Start a relay without a server.
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

    /// Lead new connections to this Redis, which must not require a password. Open connections stay as they are.
    pub(crate) fn lead_to(&self, redis: &str) {
        let upstream = match redis.strip_prefix("redis+unix://") {
            Some(path) => Upstream::Socket(path.into()),
            None => Upstream::Tcp(redis.trim_start_matches("redis://").trim_end_matches('/').to_owned()),
        };
        *self.shared.upstream.lock().unwrap() = Some(upstream);
    }

    /// Lead new connections to this port on the loopback interface. Open connections stay as they are.
    pub(crate) fn lead_to_port(&self, port: u16) {
        *self.shared.upstream.lock().unwrap() = Some(Upstream::Tcp(format!("127.0.0.1:{port}")));
    }

    /// Return the URL of the Redis behind the relay.
    pub(crate) fn redis_url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Return the port on the loopback interface.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn set(&self, condition: Condition) {
        self.shared.condition.send_replace(condition);
    }

    /// Return the number of connections that clients have requested so far.
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
    // Dropping this task drops the set, and every connection with it.
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

/// Wait until either direction has ended.
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

/// Wait until the condition has changed and passes again. Return false when the connection is cut.
async fn still_passes(condition: &mut watch::Receiver<Condition>) -> bool {
    condition.changed().await.is_ok() && may_pass(condition).await
}

/// Wait until the condition passes. Return false when the connection is cut.
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
