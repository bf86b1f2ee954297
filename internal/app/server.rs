//! The HTTP server: it accepts connections up to a limit, and closes them in order at a stop.
//!
//! It speaks HTTP/1.1 only. Its clients are programs and load balancers on the same network, and every further protocol
//! would be one more way to hold a connection open without use.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::connection::{self, ClientTimeouts};
use super::graceful_close::ClosingListener;
use super::turned_away::{self, TurnedAway};
use crate::api::{self, Peer};

/// Most clients that are being told at the same time that there is no room, probes among them. Further connections are
/// closed without a response.
pub(super) const MAX_TURNED_AWAY: usize = 64;
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
    let beyond = TurnedAway::new(service.clone(), TowerToHyperService::new(api::without_room()));
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
            Err(_) if turned_away.len() < MAX_TURNED_AWAY => {
                turned_away.spawn(beyond.clone().answer(stream, peer));
            }
            Err(_) => turned_away::count(),
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
