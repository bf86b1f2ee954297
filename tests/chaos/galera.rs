//! The nodes of a Galera cluster, as the run sees them.

use anyhow::{Context as _, bail};
use sqlx::{Executor as _, MySqlConnection, Row as _};

/// Number of nodes: with one of them gone, the other two are a majority.
pub(crate) const NODES: usize = 3;

/// Let this connection see everything that was committed on any node, and check that its node is part of the cluster.
pub(crate) async fn see_all(root: &mut MySqlConnection) -> anyhow::Result<()> {
    let ready = root.fetch_one("SHOW STATUS LIKE 'wsrep_ready'").await?;
    let ready: String = ready.try_get(1).context("wsrep_ready")?;
    if ready != "ON" {
        bail!("the node is not in its cluster");
    }
    root.execute("SET SESSION wsrep_sync_wait = 15").await?;
    Ok(())
}
