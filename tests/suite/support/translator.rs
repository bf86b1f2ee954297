//! A proxy to MySQL that replaces words by others: a word that its client writes is stored as another word, and the
//! other way round for answers. So this client uses other names of fields than the clients beside it, as a binary of
//! another version does.

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::task::JoinHandle;

use super::proxy::Upstream;

type Words = Arc<Vec<[Vec<u8>; 2]>>;

/// The running translator. It ends when dropped.
pub(crate) struct Translator {
    url: String,
    task: JoinHandle<()>,
}

impl Translator {
    /// Start a translator for the server of `mysql`. Both words of a pair have the same length, so that packets keep
    /// theirs.
    pub(crate) async fn start(mysql: &str, words: &[[&str; 2]]) -> Self {
        assert!(words.iter().all(|[one, other]| one.len() == other.len()));
        let words: Words = Arc::new(words.iter().map(|pair| pair.map(|word| word.as_bytes().to_vec())).collect());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (upstream, url) = Upstream::of(mysql, listener.local_addr().unwrap().port());
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (from_client, to_client) = client.into_split();
                match &upstream {
                    Upstream::Socket(path) => {
                        let (from_server, to_server) = UnixStream::connect(path).await.unwrap().into_split();
                        tokio::spawn(translate(from_client, to_server, Arc::clone(&words)));
                        tokio::spawn(translate(from_server, to_client, Arc::clone(&words)));
                    }
                    Upstream::Tcp(host) => {
                        let (from_server, to_server) = TcpStream::connect(host).await.unwrap().into_split();
                        tokio::spawn(translate(from_client, to_server, Arc::clone(&words)));
                        tokio::spawn(translate(from_server, to_client, Arc::clone(&words)));
                    }
                }
            }
        });
        Self { url, task }
    }

    /// Return the URL of the server behind the translator.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Translator {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Pass whole packets on until either side ends. No word is cut in two.
async fn translate(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, words: Words) {
    let mut bytes = Vec::new();
    while from.read_buf(&mut bytes).await.is_ok_and(|count| count > 0) {
        let mut whole = 0;
        // Three bytes of length, one of sequence.
        while let Some(&[a, b, c, _]) = bytes[whole..].first_chunk() {
            let end = whole + 4 + u32::from_le_bytes([a, b, c, 0]) as usize;
            if bytes.len() < end {
                break;
            }
            whole = end;
        }
        let mut packets: Vec<u8> = bytes.drain(..whole).collect();
        exchange(&mut packets, &words);
        if to.write_all(&packets).await.is_err() {
            break;
        }
    }
    let _ = to.shutdown().await;
}

fn exchange(bytes: &mut [u8], words: &[[Vec<u8>; 2]]) {
    let mut at = 0;
    while at < bytes.len() {
        let both_ways = words.iter().flat_map(|[one, other]| [(one, other), (other, one)]);
        let found = both_ways.into_iter().find(|(word, _)| bytes[at..].starts_with(word));
        match found {
            Some((_, other)) => {
                bytes[at..at + other.len()].copy_from_slice(other);
                at += other.len();
            }
            None => at += 1,
        }
    }
}
