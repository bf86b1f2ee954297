//! One HTTP connection and its time limits.
//!
//! A client may be slow in four ways: sending its request head, sending its body, reading its response, and sending the
//! next request. Each has a limit. The code that reads a body enforces the body's limit (`api/http/body.rs`). The
//! others are enforced here, by a timer of the connection that looks at it from time to time. So a request costs a few
//! atomic stores, and needs no timer of its own.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::{Request, Response};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::api::Peer;

/// Most header fields of a request.
pub(super) const MAX_HEADERS: usize = 100;
/// Most bytes of a request line with its headers.
pub(super) const MAX_HEAD_BYTES: usize = 64 << 10;
/// Bytes that a client must take within the write time-out to count as reading its response.
const SIGN_OF_READING: u64 = 16 << 10;

/// Time limits of a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientTimeouts {
    /// From the first byte of a request to the end of its head.
    pub(super) head: Duration,
    /// Without reading any of the response.
    pub(super) write: Duration,
    /// Between two requests, and before the first one.
    pub(super) idle: Duration,
}

impl ClientTimeouts {
    /// Return the time between two looks at a connection. A client may exceed its limit by up to this much.
    fn check_interval(&self) -> Duration {
        let least = self.head.min(self.write).min(self.idle);
        (least / 4).clamp(Duration::from_millis(20), Duration::from_secs(5))
    }
}

/// State of a connection. Times are milliseconds since the connection opened, plus one; zero means never.
#[derive(Debug)]
struct ConnectionState {
    opened: Instant,
    /// A request is being answered.
    busy: AtomicBool,
    /// Start of the present wait for a request.
    idle_since: AtomicU64,
    /// When the first byte of a head arrived that is not complete yet.
    head_since: AtomicU64,
    /// Start of the present wait for the client to take bytes that are ready for it.
    blocked_since: AtomicU64,
    /// Bytes that the client has taken since then.
    moved: AtomicU64,
}

/// Time limit that a client exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExceededLimit {
    Head,
    Write,
    Idle,
}

impl ConnectionState {
    fn new() -> Self {
        let never = || AtomicU64::new(0);
        Self {
            opened: Instant::now(),
            busy: AtomicBool::new(false),
            idle_since: AtomicU64::new(1),
            head_since: never(),
            blocked_since: never(),
            moved: never(),
        }
    }

    fn now(&self) -> u64 {
        self.opened.elapsed().as_millis() as u64 + 1
    }

    fn note_read(&self) {
        if !self.busy.load(Ordering::Relaxed) && self.head_since.load(Ordering::Relaxed) == 0 {
            self.head_since.store(self.now(), Ordering::Relaxed);
        }
    }

    fn begin_response(&self) {
        self.busy.store(true, Ordering::Relaxed);
        self.head_since.store(0, Ordering::Relaxed);
    }

    fn end_response(&self) {
        self.idle_since.store(self.now(), Ordering::Relaxed);
        self.busy.store(false, Ordering::Relaxed);
    }

    fn note_blocked(&self) {
        if self.blocked_since.load(Ordering::Relaxed) == 0 {
            self.moved.store(0, Ordering::Relaxed);
            self.blocked_since.store(self.now(), Ordering::Relaxed);
        }
    }

    fn note_written(&self, bytes: usize) {
        if self.blocked_since.load(Ordering::Relaxed) != 0
            && self.moved.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64 >= SIGN_OF_READING
        {
            self.note_unblocked();
        }
    }

    fn note_unblocked(&self) {
        self.blocked_since.store(0, Ordering::Relaxed);
    }

    fn exceeded_limit(&self, patience: &ClientTimeouts) -> Option<ExceededLimit> {
        let now = self.now();
        let longer = |since: &AtomicU64, limit: Duration| {
            let since = since.load(Ordering::Relaxed);
            since != 0 && now.saturating_sub(since) > limit.as_millis() as u64
        };
        if longer(&self.blocked_since, patience.write) {
            Some(ExceededLimit::Write)
        } else if self.busy.load(Ordering::Relaxed) {
            None
        } else if longer(&self.head_since, patience.head) {
            Some(ExceededLimit::Head)
        } else if self.head_since.load(Ordering::Relaxed) == 0 && longer(&self.idle_since, patience.idle) {
            Some(ExceededLimit::Idle)
        } else {
            None
        }
    }
}

/// Serve one client until it leaves, is cut off, or has its response after `leaving`.
pub(super) async fn serve(
    stream: TcpStream,
    peer: Peer,
    service: TowerToHyperService<axum::Router>,
    patience: ClientTimeouts,
    leaving: CancellationToken,
) {
    let state = Arc::new(ConnectionState::new());
    let io = TokioIo::new(MonitoredStream { stream, state: Arc::clone(&state) });
    let connection = http1::Builder::new()
        // The timer below enforces this limit. It can tell a slow request head, which is cut off, from an idle
        // connection, which is closed gracefully.
        .header_read_timeout(None)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(io, ConnectionService { service, peer, state: Arc::clone(&state) });
    tokio::pin!(connection);
    let mut watch = tokio::time::interval(patience.check_interval());
    watch.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut told_to_leave = false;
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection broke");
                }
                return;
            }
            () = leaving.cancelled(), if !told_to_leave => {
                told_to_leave = true;
                connection.as_mut().graceful_shutdown();
            }
            _ = watch.tick() => match state.exceeded_limit(&patience) {
                None => {}
                Some(ExceededLimit::Idle) if !told_to_leave => {
                    told_to_leave = true;
                    connection.as_mut().graceful_shutdown();
                }
                Some(why) => {
                    metrics::counter!("tickr_http_clients_cut_off_total").increment(1);
                    tracing::debug!(?why, "cut off a client that was too slow");
                    return;
                }
            },
        }
    }
}

/// A socket that records its progress in the [`ConnectionState`].
struct MonitoredStream {
    stream: TcpStream,
    state: Arc<ConnectionState>,
}

impl AsyncRead for MonitoredStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        if buf.filled().len() > before {
            self.state.note_read();
        }
        Poll::Ready(Ok(()))
    }
}

impl MonitoredStream {
    fn note_write(&self, outcome: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &outcome {
            Poll::Ready(Ok(bytes)) => self.state.note_written(*bytes),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.state.note_blocked(),
        }
        outcome
    }
}

impl AsyncWrite for MonitoredStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.note_write(outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.note_write(outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Called after everything so far was handed to the operating system.
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.state.note_unblocked();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The routes, as one connection calls them.
struct ConnectionService {
    service: TowerToHyperService<axum::Router>,
    peer: Peer,
    state: Arc<ConnectionState>,
}

impl Service<Request<Incoming>> for ConnectionService {
    type Response = Response<TrackedBody>;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        request.extensions_mut().insert(self.peer);
        self.state.begin_response();
        let answering = ResponseGuard(Arc::clone(&self.state));
        let answer = self.service.call(request.map(Body::new));
        Box::pin(async move { Ok(answer.await?.map(|body| TrackedBody { body, _answering: answering })) })
    }
}

/// Held from the head of a request to the end of its response.
struct ResponseGuard(Arc<ConnectionState>);

impl Drop for ResponseGuard {
    fn drop(&mut self) {
        self.0.end_response();
    }
}

/// The body of a response.
struct TrackedBody {
    body: Body,
    _answering: ResponseGuard,
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: ClientTimeouts = ClientTimeouts {
        head: Duration::from_millis(10),
        write: Duration::from_millis(20),
        idle: Duration::from_millis(40),
    };

    fn after(ms: u64, state: &ConnectionState) -> Option<ExceededLimit> {
        let opened = state.opened.checked_sub(Duration::from_millis(ms)).unwrap();
        let copy = |at: &AtomicU64| AtomicU64::new(at.load(Ordering::Relaxed));
        let later = ConnectionState {
            opened,
            busy: AtomicBool::new(state.busy.load(Ordering::Relaxed)),
            idle_since: copy(&state.idle_since),
            head_since: copy(&state.head_since),
            blocked_since: copy(&state.blocked_since),
            moved: copy(&state.moved),
        };
        later.exceeded_limit(&PATIENCE)
    }

    #[test]
    fn each_kind_of_slowness_has_its_own_limit() {
        let state = ConnectionState::new();
        assert_eq!((after(0, &state), after(1_000, &state)), (None, Some(ExceededLimit::Idle)));
        state.note_read();
        assert_eq!(after(1_000, &state), Some(ExceededLimit::Head));
        state.begin_response();
        // A response may take any time, unless the client does not read it.
        assert_eq!(after(1_000_000, &state), None);
        state.note_blocked();
        assert_eq!(after(1_000, &state), Some(ExceededLimit::Write));
        state.note_written(100);
        assert_eq!(after(1_000, &state), Some(ExceededLimit::Write));
        state.note_written(1 << 20);
        assert_eq!(after(1_000, &state), None);
        state.end_response();
        assert_eq!(after(1_000, &state), Some(ExceededLimit::Idle));
    }
}
