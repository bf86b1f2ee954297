//! A connection with the minimum of HTTP that an enqueue needs. The load shares its cores with the measured product, so
//! it must cost almost nothing.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::BenchError;

/// A request that is encoded once and sent many times.
#[derive(Debug)]
pub(super) struct EncodedRequest {
    path: &'static str,
    bytes: Vec<u8>,
}

impl EncodedRequest {
    pub(super) fn new(path: &'static str, body: &str) -> Self {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        Self { path, bytes: [head.as_bytes(), body.as_bytes()].concat() }
    }
}

/// A connection that stays open.
#[derive(Debug)]
pub(super) struct KeepAliveConnection {
    stream: TcpStream,
    /// Bytes that were read and not yet used.
    buffer: Vec<u8>,
}

impl KeepAliveConnection {
    pub(super) async fn open(addr: SocketAddr) -> Result<Self, BenchError> {
        let opened = async {
            let stream = TcpStream::connect(addr).await?;
            stream.set_nodelay(true)?;
            Ok(stream)
        };
        let stream = opened.await.map_err(BenchError::io("open an HTTP connection"))?;
        Ok(Self { stream, buffer: Vec::with_capacity(16 << 10) })
    }

    /// Send a request and read its complete response, which must be 201.
    pub(super) async fn send(&mut self, post: &EncodedRequest) -> Result<(), BenchError> {
        let (status, _) = self.exchange(post.path, &post.bytes).await?;
        if status == 201 { Ok(()) } else { Err(BenchError::Answered { path: post.path, status }) }
    }

    /// Send a request with a body of JSON. Return the status and the body of the response.
    pub(super) async fn call(&mut self, method: &str, path: &str, body: &str) -> Result<(u16, Vec<u8>), BenchError> {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        self.exchange(path, request.as_bytes()).await
    }

    async fn exchange(&mut self, path: &str, request: &[u8]) -> Result<(u16, Vec<u8>), BenchError> {
        let failed = || BenchError::io("send a request");
        self.stream.write_all(request).await.map_err(failed())?;
        let answer = loop {
            if let Some(answer) = Answer::at_the_front_of(&self.buffer)? {
                break answer;
            }
            if self.stream.read_buf(&mut self.buffer).await.map_err(failed())? == 0 {
                return Err(BenchError::Failed(format!("{path}: the connection was closed")));
            }
        };
        while self.buffer.len() < answer.length {
            if self.stream.read_buf(&mut self.buffer).await.map_err(failed())? == 0 {
                return Err(BenchError::Failed(format!("{path}: the answer is cut short")));
            }
        }
        let body = self.buffer.drain(..answer.length).skip(answer.length - answer.body).collect();
        Ok((answer.status, body))
    }
}

/// Status and length of a response, from its head.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    /// Bytes of head and body.
    length: usize,
    /// Bytes of the body.
    body: usize,
}

impl Answer {
    /// Parse the head at the start of `bytes`. Return `None` while it is incomplete.
    fn at_the_front_of(bytes: &[u8]) -> Result<Option<Self>, BenchError> {
        let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { return Ok(None) };
        let unknown = || BenchError::Failed("an answer is not HTTP with a content-length".to_owned());
        let head = std::str::from_utf8(&bytes[..end]).map_err(|_| unknown())?;
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).ok_or_else(unknown)?;
        let body: usize = lines
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
            .and_then(|(_, value)| value.trim().parse().ok())
            .ok_or_else(unknown)?;
        Ok(Some(Self { status, length: end + 4 + body, body }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_of_answers_are_read_when_they_are_whole() {
        let text = b"HTTP/1.1 201 Created\r\nlocation: /v1/jobs/x\r\nContent-Length: 5\r\n\r\nhellorest";
        let whole = Answer { status: 201, length: text.len() - 4, body: 5 };
        assert_eq!(Answer::at_the_front_of(text).unwrap(), Some(whole));
        assert_eq!(Answer::at_the_front_of(&text[..30]).unwrap(), None);
        assert!(Answer::at_the_front_of(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
        assert!(Answer::at_the_front_of(b"nonsense\r\ncontent-length: 1\r\n\r\n").is_err());
    }
}
