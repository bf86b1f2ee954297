//! The streams below the SMTP conversation that the mail library does not provide.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use lettre::transport::smtp::client::AsyncTokioStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// Longest line of an answer that is waited for as a whole, in bytes. The library refuses lines of more than 1,000.
const LINE_BYTES: usize = 4_096;

/// A connection whose answers the library can read.
///
/// The library refuses an answer without a space behind its code, in another charset than UTF-8, with a line that has
/// no CR at its end, or with a second digit above 5. It says of each that the answer cannot be read. The mail would be
/// sent once more then, also when the server has taken it, and a final refusal would be retried. So such answers are
/// corrected here, and the code alone decides. The same holds for a last answer whose line the server does not end before
/// it closes the connection.
///
/// It returns at most one line per read. The library reads into a buffer, so all that came behind a line stays here.
#[derive(Debug)]
pub(super) struct Answers<S> {
    stream: S,
    /// Bytes of the server that are no whole line yet, and lines behind the current one.
    unread: Vec<u8>,
    /// The current line, and the number of its bytes that were returned.
    line: Vec<u8>,
    returned: usize,
}

impl<S> Answers<S> {
    pub(super) const fn new(stream: S) -> Self {
        Self { stream, unread: Vec::new(), line: Vec::new(), returned: 0 }
    }

    /// Begin with a greeting that the server does not send. A server greets once, before STARTTLS, and the library
    /// expects a greeting on each connection.
    pub(super) fn greeted(stream: S) -> Self {
        Self { line: b"220 encrypted\r\n".to_vec(), ..Self::new(stream) }
    }

    /// Return the connection, if the server has said nothing that was not read.
    pub(super) fn into_stream(self) -> Option<S> {
        (self.unread.is_empty() && self.returned == self.line.len()).then_some(self.stream)
    }

    /// Take the next line, if all of it came. Pass a line that is too long on in parts.
    fn next_line(&mut self) -> bool {
        let end = self.unread.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
        let Some(end) = end.or((self.unread.len() >= LINE_BYTES).then_some(self.unread.len())) else { return false };
        self.begin_line(end);
        true
    }

    /// Begin the last line, because the connection has ended. End it if it is an answer.
    fn last_line(&mut self) {
        if self.has_answer() {
            self.unread.push(b'\n');
        }
        self.begin_line(self.unread.len());
    }

    /// Return whether the code of a last line came as a whole, in a line that no other one follows.
    fn has_answer(&self) -> bool {
        let code = self.unread.get(..3).is_some_and(|code| code.iter().all(u8::is_ascii_digit));
        code && matches!(self.unread.get(3), None | Some(b' ' | b'\r'))
    }

    fn begin_line(&mut self, end: usize) {
        self.line = readable(&self.unread[..end]);
        self.unread.drain(..end);
        self.returned = 0;
    }
}

/// Write a line of an answer as the library demands it.
fn readable(line: &[u8]) -> Vec<u8> {
    let (text, end) = match line.strip_suffix(b"\n") {
        Some(text) => (text.strip_suffix(b"\r").unwrap_or(text), "\r\n"),
        None => (line, ""),
    };
    let mut readable = match text {
        [a @ b'0'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9', words @ ..] if matches!(words, [] | [b' ' | b'-', ..]) => {
            with_known_code([*a, *b, *c], words)
        }
        _ => text.to_vec(),
    };
    if std::str::from_utf8(&readable).is_err() {
        readable.iter_mut().filter(|byte| !byte.is_ascii()).for_each(|byte| *byte = b'?');
    }
    readable.extend_from_slice(end.as_bytes());
    readable
}

/// Put a space behind a bare code. A client that does not know a code acts by its first digit (RFC 5321, 4.2.1), so a
/// code that the library does not know becomes the one with 50 behind that digit, and stays as a word.
fn with_known_code(code: [u8; 3], words: &[u8]) -> Vec<u8> {
    let (separator, words) = words.split_first().unwrap_or((&b' ', &[]));
    if code[1] <= b'5' {
        return [&code[..], &[*separator], words].concat();
    }
    [&[code[0], b'5', b'0', *separator], &code[..], b" ", words].concat()
}

impl<S: AsyncTokioStream> AsyncTokioStream for Answers<S> {
    fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Answers<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.returned == this.line.len() && !this.next_line() {
            let mut bytes = [0; 1_024];
            let mut buffer = ReadBuf::new(&mut bytes);
            match ready!(Pin::new(&mut this.stream).poll_read(cx, &mut buffer)) {
                // A server often ends an encrypted connection without saying so, and any connection by a reset.
                Err(error) if is_end(&error) && this.has_answer() => {}
                read => read?,
            }
            this.unread.extend_from_slice(buffer.filled());
            if buffer.filled().is_empty() {
                // The connection has ended, perhaps within a line.
                if this.unread.is_empty() {
                    return Poll::Ready(Ok(()));
                }
                this.last_line();
            }
        }
        let rest = &this.line[this.returned..];
        let length = rest.len().min(out.remaining());
        out.put_slice(&rest[..length]);
        this.returned += length;
        Poll::Ready(Ok(()))
    }
}

/// Return whether the server has ended the connection in a way that is an error here.
fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset)
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Answers<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A connection that is encrypted.
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

/// A plain connection that the library uses up to STARTTLS, and that then comes back for the handshake.
///
/// The library could do the handshake itself, but then nothing could stand between it and the encrypted answers. And an
/// attacker between client and server could append lines to the answer to STARTTLS, which the library would take for
/// encrypted ones. Here they stay in [`Answers`], and the connection does not come back.
#[derive(Clone, Debug)]
pub(super) struct Lent(Arc<Mutex<Answers<TcpStream>>>);

impl Lent {
    pub(super) fn new(tcp: TcpStream) -> Self {
        Self(Arc::new(Mutex::new(Answers::new(tcp))))
    }

    /// Return the connection, after its other owner was dropped, if the server has said nothing that was not read.
    pub(super) fn back(self) -> Option<TcpStream> {
        Arc::into_inner(self.0)?.into_inner().unwrap_or_else(PoisonError::into_inner).into_stream()
    }

    fn stream(&self) -> MutexGuard<'_, Answers<TcpStream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsyncTokioStream for Lent {
    fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream().peer_addr()
    }
}

impl AsyncRead for Lent {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream()).poll_read(cx, out)
    }
}

impl AsyncWrite for Lent {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.stream()).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream()).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[test]
    fn the_code_of_an_answer_stays_and_its_form_becomes_readable() {
        for (line, expected) in [
            (&b"250 ok\r\n"[..], "250 ok\r\n"),
            (b"250-first\r\n", "250-first\r\n"),
            ("250 angenommen für ada\r\n".as_bytes(), "250 angenommen für ada\r\n"),
            (b"250\r\n", "250 \r\n"),
            (b"550\n", "550 \r\n"),
            (b"250 angenommen f\xfcr ada\r\n", "250 angenommen f?r ada\r\n"),
            (b"571 not here\r\n", "550 571 not here\r\n"),
            (b"571-not\r\n", "550-571 not\r\n"),
            (b"290\n", "250 290 \r\n"),
            (b"2500 ok\r\n", "2500 ok\r\n"),
            (b"25\r\n", "25\r\n"),
            (b"\r\n", "\r\n"),
            (b"ok\r\n", "ok\r\n"),
            (b"250", "250 "),
        ] {
            assert_eq!(String::from_utf8(readable(line)).unwrap(), expected);
        }
    }

    #[tokio::test]
    async fn a_last_answer_whose_line_the_server_does_not_end_is_read_as_a_whole() {
        for (sent, expected) in [
            (&b"250 2.0.0 ok"[..], "250 2.0.0 ok\r\n"),
            (b"550 5.1.1 not here\r", "550 5.1.1 not here\r\n"),
            (b"250", "250 \r\n"),
            (b"250-first\r\n571 last", "250-first\r\n550 571 last\r\n"),
            (b"250-first", "250-first"),
            (b"25", "25"),
            (b"thanks", "thanks"),
            (b"", ""),
        ] {
            let mut read = String::new();
            Answers::new(sent).read_to_string(&mut read).await.unwrap();
            assert_eq!(read, expected);
        }
    }

    /// A connection that ends with this error.
    struct Ended(io::ErrorKind);

    impl AsyncRead for Ended {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Err(self.0.into()))
        }
    }

    #[tokio::test]
    async fn a_last_answer_is_read_although_the_server_resets_the_connection_behind_it() {
        for kind in [io::ErrorKind::ConnectionReset, io::ErrorKind::UnexpectedEof] {
            for (sent, expected) in [
                (&b"250 2.0.0 ok"[..], Some("250 2.0.0 ok\r\n")),
                (b"250", Some("250 \r\n")),
                (b"250-first", None),
                (b"25", None),
                (b"", None),
            ] {
                let mut bytes = [0; 64];
                let read = Answers::new(sent.chain(Ended(kind))).read(&mut bytes).await;
                match expected {
                    Some(line) => assert_eq!(&bytes[..read.unwrap()], line.as_bytes()),
                    None => assert_eq!(read.unwrap_err().kind(), kind),
                }
            }
        }
    }
}
