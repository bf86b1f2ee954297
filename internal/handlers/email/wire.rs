//! The two streams below the SMTP conversation that the mail library does not provide.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use lettre::transport::smtp::client::AsyncTokioStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// A connection that is encrypted from its first byte.
#[derive(Debug)]
pub(super) struct Encrypted(pub(super) TlsStream<TcpStream>);

impl AsyncTokioStream for Encrypted {
    fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.0.get_ref().0.peer_addr()
    }
}

impl AsyncRead for Encrypted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, out)
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// A plain connection that returns at most one line per read, for conversations that start plain and continue in TLS.
///
/// The library reads into a buffer that survives the change to TLS. Without this type, an attacker between client and
/// server could append lines to the server's answer to STARTTLS. They would stay in that buffer and be taken for
/// encrypted answers. Here they stay in this type's buffer, and the TLS handshake fails on them.
#[derive(Debug)]
pub(super) struct LineWise {
    tcp: TcpStream,
    buffer: Box<[u8]>,
    /// Range of the buffer that was read from the socket and not yet returned.
    unread: std::ops::Range<usize>,
}

impl LineWise {
    pub(super) fn new(tcp: TcpStream) -> Self {
        Self { tcp, buffer: vec![0; 4_096].into_boxed_slice(), unread: 0..0 }
    }
}

impl AsyncTokioStream for LineWise {
    fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.peer_addr()
    }
}

impl AsyncRead for LineWise {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.unread.is_empty() {
            let mut buffer = ReadBuf::new(&mut this.buffer);
            ready!(Pin::new(&mut this.tcp).poll_read(cx, &mut buffer))?;
            this.unread = 0..buffer.filled().len();
        }
        let unread = &this.buffer[this.unread.clone()];
        let line = unread.iter().position(|b| *b == b'\n').map_or(unread.len(), |at| at + 1);
        let length = line.min(out.remaining());
        out.put_slice(&unread[..length]);
        this.unread.start += length;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for LineWise {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}
