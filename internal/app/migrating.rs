//! The migration during a start. It may take long, and a supervisor without an answer from its probes would kill the
//! process. So `/livez` and `/readyz` are answered meanwhile, on the address that the API uses afterwards.

use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::connection;
use super::server::HttpLimits;
use crate::api::{self, Peer};
use crate::store::{MigrateSettings, Store, StoreError};
use hyper_util::service::TowerToHyperService;

/// Most connections during the migration. They are those of probes and a few others.
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
    let leaving = CancellationToken::new();
    // Dropping this future, as a signal does, ends every connection.
    let mut connections = JoinSet::new();
    loop {
        let room = connections.len() < MAX_CONNECTIONS;
        tokio::select! {
            () = done.cancelled() => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if room => match accepted {
                Ok((stream, peer)) => {
                    let (peer, service) = (Peer(peer.ip()), service.clone());
                    connections.spawn(connection::serve(stream, peer, service, limits.patience, leaving.clone()));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
            },
        }
    }
    leaving.cancel();
    let gone = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(LAST_ANSWERS, gone).await;
}
