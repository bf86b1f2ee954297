//! The migration during a start. It may take long, and a supervisor without an answer from its probes would kill the
//! process. So `/livez` and `/readyz` are answered meanwhile, on the address that the API uses afterwards.

use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::connection;
use super::server::{HttpLimits, MAX_TURNED_AWAY};
use super::turned_away::{self, TurnedAway};
use crate::api::{self, Peer};
use crate::store::{MigrateSettings, Store, StoreError};
use hyper_util::service::TowerToHyperService;

/// Most connections during the migration. They are those of probes and a few others. Clients beyond them get the answer
/// to one request, so that clients that keep their connections do not silence the probes.
const MAX_CONNECTIONS: usize = 64;
/// Time that open requests have to end once the migration is done.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Migrate the tables to the schema of this binary if needed, and answer probes meanwhile. Then check that the account
/// has the rights of a runner: also if the tables were there, or a process with another account has made them.
pub(super) async fn migrate(store: &Store, listener: &TcpListener, limits: HttpLimits) -> Result<(), StoreError> {
    if !store.is_migrated().await? {
        migrate_and_answer_probes(store, listener, limits).await?;
    }
    store.check_rights().await
}

async fn migrate_and_answer_probes(
    store: &Store,
    listener: &TcpListener,
    limits: HttpLimits,
) -> Result<(), StoreError> {
    let settings = MigrateSettings::default();
    let progress = settings.progress.subscribe();
    let done = CancellationToken::new();
    let migrated = async {
        let outcome = store.migrate_with(&settings).await;
        done.cancel();
        outcome
    };
    let (migrated, ()) = tokio::join!(migrated, answer_probes(listener, progress, limits, &done));
    migrated
}

async fn answer_probes(
    listener: &TcpListener,
    progress: watch::Receiver<String>,
    limits: HttpLimits,
    done: &CancellationToken,
) {
    let service = TowerToHyperService::new(api::while_migrating(progress));
    // Every answer during the migration is cheap, so clients without a place get the same ones.
    let beyond = TurnedAway::new(service.clone(), service.clone());
    let leaving = CancellationToken::new();
    // Dropping this future, as a signal does, ends every connection.
    let (mut connections, mut turned_away) = (JoinSet::new(), JoinSet::new());
    loop {
        let (stream, peer) = tokio::select! {
            () = done.cancelled() => break,
            Some(_) = connections.join_next() => continue,
            Some(_) = turned_away.join_next() => continue,
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => (stream, Peer(peer.ip())),
                Err(_) => {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    continue;
                }
            },
        };
        if connections.len() < MAX_CONNECTIONS {
            connections.spawn(connection::serve(stream, peer, service.clone(), limits.patience, leaving.clone()));
        } else if turned_away.len() < MAX_TURNED_AWAY {
            turned_away.spawn(beyond.clone().answer(stream, peer));
        } else {
            turned_away::count();
        }
    }
    leaving.cancel();
    let gone = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(LAST_ANSWERS, gone).await;
}
