//! HTTP/1.1 by hand, because the kit has to cut connections at exact places.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Largest head and body of a request.
const MAX_HEAD: usize = 64 << 10;
const MAX_BODY: usize = 32 << 20;

/// A request of the client.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    /// Return a header by its name in small letters.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str())
    }

    /// Return whether the client ends the connection after the answer.
    pub(crate) fn is_last(&self) -> bool {
        self.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
    }
}

/// An answer of the server.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) content_type: &'static str,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(status: u16, body: &impl ToString) -> Self {
        Self { status, content_type: "application/json", headers: Vec::new(), body: body.to_string() }
    }

    /// A problem document, as the server makes them.
    pub(crate) fn problem(status: u16, code: &str, detail: &str) -> Self {
        let problem = serde_json::json!({
            "type": format!("urn:tickr:problem:{code}"), "title": code.replace('_', " "), "status": status,
            "code": code, "detail": detail,
        });
        Self { content_type: "application/problem+json", ..Self::json(status, &problem) }
    }

    pub(crate) fn empty(status: u16) -> Self {
        Self { status, content_type: "", headers: Vec::new(), body: String::new() }
    }

    /// Return the bytes of the answer. With `pieces` the body is sent in small chunks.
    pub(crate) fn bytes(&self, pieces: bool) -> Vec<u8> {
        let mut head = format!("HTTP/1.1 {} {}\r\n", self.status, reason(self.status));
        if !self.content_type.is_empty() {
            head.push_str(&format!("content-type: {}\r\n", self.content_type));
        }
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if self.status == 204 {
            return format!("{head}\r\n").into_bytes();
        }
        if !pieces {
            return format!("{head}content-length: {}\r\n\r\n{}", self.body.len(), self.body).into_bytes();
        }
        let mut bytes = format!("{head}transfer-encoding: chunked\r\n\r\n").into_bytes();
        for piece in self.body.as_bytes().chunks(7) {
            bytes.extend(format!("{:x}\r\n", piece.len()).into_bytes());
            bytes.extend(piece);
            bytes.extend(b"\r\n");
        }
        bytes.extend(b"0\r\n\r\n");
        bytes
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        204 => "No Content",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        413 => "Content Too Large",
        422 => "Unprocessable Content",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        _ => "Other",
    }
}

/// A connection of a client.
pub(crate) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// True once the client has closed its side.
    ended: bool,
}

impl Connection {
    pub(crate) fn new(stream: TcpStream) -> Self {
        let _ = stream.set_nodelay(true);
        Self { stream, buffer: Vec::new(), ended: false }
    }

    /// Read the next request. `None` when the client has closed the connection between two requests.
    pub(crate) async fn request(&mut self) -> io::Result<Option<Request>> {
        let end = loop {
            if let Some(at) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                break at;
            }
            if self.buffer.len() > MAX_HEAD {
                return Err(io::Error::other("the head of the request has no end"));
            }
            if !self.more().await? {
                return if self.buffer.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        };
        let head = String::from_utf8_lossy(&self.buffer[..end]).into_owned();
        self.buffer.drain(..end + 4);
        let mut lines = head.split("\r\n");
        let mut first = lines.next().unwrap_or_default().split(' ');
        let (method, path) = (first.next().unwrap_or_default(), first.next().unwrap_or_default());
        let header = |line: &str| {
            let (name, value) = line.split_once(':')?;
            Some((name.trim().to_ascii_lowercase(), value.trim().to_owned()))
        };
        let mut request = Request {
            method: method.to_owned(),
            path: path.to_owned(),
            headers: lines.filter_map(header).collect(),
            body: Vec::new(),
        };
        if request.header("expect").is_some_and(|value| value.eq_ignore_ascii_case("100-continue")) {
            self.stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        request.body = match request.header("transfer-encoding") {
            Some(_) => self.chunks().await?,
            None => {
                let length = request.header("content-length").and_then(|value| value.parse().ok()).unwrap_or(0);
                self.exactly(length).await?
            }
        };
        Ok(Some(request))
    }

    async fn exactly(&mut self, length: usize) -> io::Result<Vec<u8>> {
        if length > MAX_BODY {
            return Err(io::Error::other("the body of the request is too large"));
        }
        while self.buffer.len() < length {
            if !self.more().await? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(self.buffer.drain(..length).collect())
    }

    async fn chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let end = loop {
                if let Some(at) = self.buffer.windows(2).position(|two| two == b"\r\n") {
                    break at;
                }
                if !self.more().await? {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            };
            let line = String::from_utf8_lossy(&self.buffer[..end]).into_owned();
            self.buffer.drain(..end + 2);
            let size = line.split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(size, 16).map_err(io::Error::other)?;
            if body.len() + size > MAX_BODY {
                return Err(io::Error::other("the body of the request is too large"));
            }
            body.extend(self.exactly(size).await?);
            self.exactly(2).await?;
            if size == 0 {
                return Ok(body);
            }
        }
    }

    async fn more(&mut self) -> io::Result<bool> {
        let read = self.stream.read_buf(&mut self.buffer).await?;
        self.ended |= read == 0;
        Ok(read > 0)
    }

    /// Return when the client has closed the connection. Bytes that come before are kept.
    pub(crate) async fn closed(&mut self) {
        while !self.ended && self.more().await.unwrap_or(false) {}
    }

    /// Return whether the client closes the connection within this time.
    pub(crate) async fn closes_within(&mut self, time: Duration) -> bool {
        tokio::time::timeout(time, self.closed()).await.is_ok()
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    /// End the connection in order.
    pub(crate) async fn close(mut self) {
        let _ = self.stream.shutdown().await;
    }

    /// End the connection with a reset, as a load balancer does that has forgotten it.
    pub(crate) fn reset(self) {
        let _ = self.stream.set_zero_linger();
    }
}
