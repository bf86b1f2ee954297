//! The HTTP server: it accepts connections up to a limit, and closes them in order at a stop.
//!
//! It speaks HTTP/1.1 only. Its clients are programs and load balancers on the same network, and every further protocol
//! would be one more way to hold a connection open without use.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::connection::{self, ClientTimeouts};
use super::graceful_close::ClosingListener;
use crate::api::{Code, Peer, Problem};

/// Most clients that are being told at the same time that there is no room. Further connections are closed without a
/// response.
const MAX_TURNED_AWAY: usize = 64;
/// Longest time for telling one client.
const TURNING_AWAY: Duration = Duration::from_secs(2);
/// Pause after the operating system refused a connection, as it does when no file descriptors are left.
const REFUSED_PAUSE: Duration = Duration::from_millis(200);

/// Limits of the server.
#[derive(Clone, Copy, Debug)]
pub(super) struct HttpLimits {
    /// Most open connections.
    pub(super) connections: usize,
    /// Time limits of each connection.
    pub(super) patience: ClientTimeouts,
}

/// Serve until `stop`; then close the listener, finish the open requests, and return. Dropping the future ends every
/// connection.
pub(super) async fn serve(listener: TcpListener, router: axum::Router, limits: HttpLimits, stop: CancellationToken) {
    let listening = ClosingListener::new(&listener);
    let closed = async move {
        stop.cancelled().await;
        listening.close().await;
    };
    tokio::pin!(closed);
    let service = TowerToHyperService::new(router);
    let room = Arc::new(Semaphore::new(limits.connections));
    let leaving = CancellationToken::new();
    let (mut connections, mut turned_away) = (JoinSet::new(), JoinSet::new());
    let open = metrics::gauge!("tickr_http_connections");
    loop {
        let (stream, peer) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => (stream, Peer(peer.ip())),
                Err(error) => {
                    if !is_the_clients_doing(error.kind()) {
                        tracing::warn!(%error, "cannot accept a connection");
                        tokio::time::sleep(REFUSED_PAUSE).await;
                    }
                    continue;
                }
            },
            () = &mut closed => break,
            Some(_) = connections.join_next() => {
                open.set(connections.len() as f64);
                continue;
            }
            Some(_) = turned_away.join_next() => continue,
        };
        // Send each response at once, also several small ones in a row as in a stream of events.
        let _ = stream.set_nodelay(true);
        match Arc::clone(&room).try_acquire_owned() {
            Ok(place) => {
                let serving = connection::serve(stream, peer, service.clone(), limits.patience, leaving.clone());
                connections.spawn(async move {
                    serving.await;
                    drop(place);
                });
                open.set(connections.len() as f64);
            }
            Err(_) => {
                metrics::counter!("tickr_http_clients_turned_away_total").increment(1);
                if turned_away.len() < MAX_TURNED_AWAY {
                    turned_away.spawn(tokio::time::timeout(TURNING_AWAY, turn_away(stream)));
                }
            }
        }
    }
    drop(listener);
    leaving.cancel();
    while connections.join_next().await.is_some() {}
    open.set(0.0);
}

/// Return whether an error is about one connection that its client has already given up.
fn is_the_clients_doing(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::ConnectionRefused | ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset)
}

/// Tell a client that there is no room. Its request is read and ignored: closing a socket with unread bytes would reset
/// the connection, and the response would be lost.
async fn turn_away(mut stream: TcpStream) {
    let problem = Problem::new(
        Code::Overloaded,
        "this runner has as many open connections as the setting http_connections (TICKR_HTTP_CONNECTIONS) allows",
    );
    let body = serde_json::to_string(&problem).unwrap_or_default();
    let head = format!(
        "HTTP/1.1 {} Too Many Requests\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\n\
         x-request-id: {}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        problem.status,
        uuid::Uuid::now_v7(),
        body.len()
    );
    let told = async {
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body.as_bytes()).await?;
        stream.shutdown().await?;
        let mut forgotten = [0; 1024];
        while stream.read(&mut forgotten).await? > 0 {}
        std::io::Result::Ok(())
    };
    let _ = told.await;
}
