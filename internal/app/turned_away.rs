//! The connections beyond the bound. Each gets the answer to one request, and is closed.
//!
//! Probes and scrapes are answered as on any other connection. A supervisor would end a process that is only busy, and
//! operators would not see why it is. All other requests get 429, or the answer of a migration while one is under way.

use std::io;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use super::connection::{MAX_HEAD_BYTES, MAX_HEADERS};
use crate::api::{PROBES, Peer};

/// Longest time until the head of the request has come, and from the answer until the client closes the connection.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest time for all of it. A look at MySQL for `/readyz` may take four seconds.
const LONGEST: Duration = Duration::from_secs(6);

/// The answers to clients beyond the bound. Cheap to clone.
#[derive(Clone)]
pub(super) struct TurnedAway {
    probes: TowerToHyperService<Router>,
    others: TowerToHyperService<Router>,
}

impl TurnedAway {
    /// Answer probes and scrapes by the first routes, and all other requests by the second ones.
    pub(super) const fn new(probes: TowerToHyperService<Router>, others: TowerToHyperService<Router>) -> Self {
        Self { probes, others }
    }

    /// Answer one client within a few seconds.
    pub(super) async fn answer(self, stream: TcpStream, peer: Peer) {
        let _ = tokio::time::timeout(LONGEST, self.answer_once(stream, peer)).await;
    }

    async fn answer_once(&self, mut stream: TcpStream, peer: Peer) {
        let answer = service_fn(|mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer);
            let reads = matches!(*request.method(), Method::GET | Method::HEAD);
            let routes = if reads && PROBES.contains(&request.uri().path()) {
                &self.probes
            } else {
                count();
                &self.others
            };
            routes.call(request.map(Body::new))
        });
        let served = http1::Builder::new()
            .keep_alive(false)
            .timer(TokioTimer::new())
            .header_read_timeout(PATIENCE)
            .max_headers(MAX_HEADERS)
            .max_buf_size(MAX_HEAD_BYTES)
            .serve_connection(TokioIo::new(&mut stream), answer)
            .await;
        if served.is_err_and(|error| error.is_timeout()) {
            // The client sent no request.
            count();
            return;
        }
        let _ = tokio::time::timeout(PATIENCE, read_to_the_end(&mut stream)).await;
    }
}

/// Count a client that was refused.
pub(super) fn count() {
    metrics::counter!("tickr_http_clients_turned_away_total").increment(1);
}

/// Read and forget all that the client still sends. Closing a socket with unread bytes would reset the connection, and
/// the response would be lost.
async fn read_to_the_end(stream: &mut TcpStream) -> io::Result<()> {
    let mut forgotten = [0; 1024];
    while stream.read(&mut forgotten).await? > 0 {}
    Ok(())
}
