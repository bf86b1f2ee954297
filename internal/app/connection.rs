//! One HTTP connection and its time limits.
//!
//! A client may be slow in four ways: sending its request head, sending its body, reading its response, and sending the
//! next request. Each has a limit. The code that reads a body enforces the body's limit (`api/http/body.rs`). The others are
//! enforced here, by a timer of the connection that looks at it from time to time. So a request costs a few atomic
//! stores, and needs no timer of its own.

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
const MAX_HEADERS: usize = 100;
/// Most bytes of a request line with its headers.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Bytes that a client must take within the write time-out to count as reading its response.
const SIGN_OF_READING: u64 = 16 << 10;

/// Time limits of a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// From the first byte of a request to the end of its head.
    pub(super) head: Duration,
    /// Without reading any of the response.
    pub(super) write: Duration,
    /// Between two requests, and before the first one.
    pub(super) idle: Duration,
}

impl Patience {
    /// Return the time between two looks at a connection. A client may exceed its limit by up to this much.
    fn beat(&self) -> Duration {
        let least = self.head.min(self.write).min(self.idle);
        (least / 4).clamp(Duration::from_millis(20), Duration::from_secs(5))
    }
}

/// State of a connection. Times are milliseconds since the connection opened, plus one; zero means never.
#[derive(Debug)]
struct Pulse {
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
enum Overdue {
    Head,
    Write,
    Idle,
}

impl Pulse {
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

    fn has_read(&self) {
        if !self.busy.load(Ordering::Relaxed) && self.head_since.load(Ordering::Relaxed) == 0 {
            self.head_since.store(self.now(), Ordering::Relaxed);
        }
    }

    fn begins_to_answer(&self) {
        self.busy.store(true, Ordering::Relaxed);
        self.head_since.store(0, Ordering::Relaxed);
    }

    fn has_answered(&self) {
        self.idle_since.store(self.now(), Ordering::Relaxed);
        self.busy.store(false, Ordering::Relaxed);
    }

    fn is_blocked(&self) {
        if self.blocked_since.load(Ordering::Relaxed) == 0 {
            self.moved.store(0, Ordering::Relaxed);
            self.blocked_since.store(self.now(), Ordering::Relaxed);
        }
    }

    fn has_moved(&self, bytes: usize) {
        if self.blocked_since.load(Ordering::Relaxed) != 0
            && self.moved.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64 >= SIGN_OF_READING
        {
            self.is_free();
        }
    }

    fn is_free(&self) {
        self.blocked_since.store(0, Ordering::Relaxed);
    }

    fn overdue(&self, patience: &Patience) -> Option<Overdue> {
        let now = self.now();
        let longer = |since: &AtomicU64, limit: Duration| {
            let since = since.load(Ordering::Relaxed);
            since != 0 && now.saturating_sub(since) > limit.as_millis() as u64
        };
        if longer(&self.blocked_since, patience.write) {
            Some(Overdue::Write)
        } else if self.busy.load(Ordering::Relaxed) {
            None
        } else if longer(&self.head_since, patience.head) {
            Some(Overdue::Head)
        } else if self.head_since.load(Ordering::Relaxed) == 0 && longer(&self.idle_since, patience.idle) {
            Some(Overdue::Idle)
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
    patience: Patience,
    leaving: CancellationToken,
) {
    let pulse = Arc::new(Pulse::new());
    let io = TokioIo::new(Paced { stream, pulse: Arc::clone(&pulse) });
    let connection = http1::Builder::new()
        // The timer below enforces this limit. It can tell a slow request head, which is cut off, from an idle
        // connection, which is closed gracefully.
        .header_read_timeout(None)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(io, Answering { service, peer, pulse: Arc::clone(&pulse) });
    tokio::pin!(connection);
    let mut watch = tokio::time::interval(patience.beat());
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
            _ = watch.tick() => match pulse.overdue(&patience) {
                None => {}
                Some(Overdue::Idle) if !told_to_leave => {
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

/// A socket that records its progress in the [`Pulse`].
struct Paced {
    stream: TcpStream,
    pulse: Arc<Pulse>,
}

impl AsyncRead for Paced {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        if buf.filled().len() > before {
            self.pulse.has_read();
        }
        Poll::Ready(Ok(()))
    }
}

impl Paced {
    fn wrote(&self, outcome: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &outcome {
            Poll::Ready(Ok(bytes)) => self.pulse.has_moved(*bytes),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.pulse.is_blocked(),
        }
        outcome
    }
}

impl AsyncWrite for Paced {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.wrote(outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.wrote(outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Called after everything so far was handed to the operating system.
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.pulse.is_free();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The routes, as one connection calls them.
struct Answering {
    service: TowerToHyperService<axum::Router>,
    peer: Peer,
    pulse: Arc<Pulse>,
}

impl Service<Request<Incoming>> for Answering {
    type Response = Response<Told>;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        request.extensions_mut().insert(self.peer);
        self.pulse.begins_to_answer();
        let answering = Busy(Arc::clone(&self.pulse));
        let answer = self.service.call(request.map(Body::new));
        Box::pin(async move { Ok(answer.await?.map(|body| Told { body, _answering: answering })) })
    }
}

/// Held from the head of a request to the end of its response.
struct Busy(Arc<Pulse>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.has_answered();
    }
}

/// The body of a response.
struct Told {
    body: Body,
    _answering: Busy,
}

impl HttpBody for Told {
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

    const PATIENCE: Patience =
        Patience { head: Duration::from_millis(10), write: Duration::from_millis(20), idle: Duration::from_millis(40) };

    fn after(ms: u64, pulse: &Pulse) -> Option<Overdue> {
        let opened = pulse.opened.checked_sub(Duration::from_millis(ms)).unwrap();
        let copy = |at: &AtomicU64| AtomicU64::new(at.load(Ordering::Relaxed));
        let later = Pulse {
            opened,
            busy: AtomicBool::new(pulse.busy.load(Ordering::Relaxed)),
            idle_since: copy(&pulse.idle_since),
            head_since: copy(&pulse.head_since),
            blocked_since: copy(&pulse.blocked_since),
            moved: copy(&pulse.moved),
        };
        later.overdue(&PATIENCE)
    }

    #[test]
    fn each_kind_of_slowness_has_its_own_limit() {
        let pulse = Pulse::new();
        assert_eq!((after(0, &pulse), after(1_000, &pulse)), (None, Some(Overdue::Idle)));
        pulse.has_read();
        assert_eq!(after(1_000, &pulse), Some(Overdue::Head));
        pulse.begins_to_answer();
        // A response may take any time, unless the client does not read it.
        assert_eq!(after(1_000_000, &pulse), None);
        pulse.is_blocked();
        assert_eq!(after(1_000, &pulse), Some(Overdue::Write));
        pulse.has_moved(100);
        assert_eq!(after(1_000, &pulse), Some(Overdue::Write));
        pulse.has_moved(1 << 20);
        assert_eq!(after(1_000, &pulse), None);
        pulse.has_answered();
        assert_eq!(after(1_000, &pulse), Some(Overdue::Idle));
    }
}
