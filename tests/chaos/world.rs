//! All parts of one run.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::clock;
use crate::first_starts;
use crate::ledger::Ledger;
use crate::proxy::{Protocol, Proxy};
use crate::remote::Deeds;
use crate::request::InternalErrors;
use crate::runner::Runner;
use crate::servers::Servers;
use crate::settings::{Index, Settings, Store};
use crate::sink::Sink;

/// Number of runners.
const RUNNERS: usize = 3;

pub(crate) struct World {
    pub(crate) seed: u64,
    /// Folder with the journal, the logs and the servers' data.
    pub(crate) dir: PathBuf,
    pub(crate) servers: Servers,
    pub(crate) runners: Vec<Runner>,
    /// The connections of the application that writes rows of the outbox: one proxy for each MySQL server.
    pub(crate) outbox_lines: Vec<Proxy>,
    pub(crate) sink: Sink,
    pub(crate) ledger: Arc<Ledger>,
    /// What the remote workers did.
    pub(crate) deeds: Deeds,
    pub(crate) client: reqwest::Client,
    pub(crate) internal_errors: InternalErrors,
    /// Whether the clients of the load wait.
    pub(crate) quiet: AtomicBool,
}

impl World {
    /// Start all parts in a folder of their own, and wait until all runners are up.
    pub(crate) async fn start(
        Settings { seed, store, index, .. }: Settings,
        dir: &Path,
        template: &Path,
    ) -> anyhow::Result<Self> {
        let durable = seed.is_multiple_of(3);
        if durable {
            println!("chaos: MySQL syncs every commit and writes a binlog");
        }
        let faketime = clock::faketime().await;
        if faketime.is_none() {
            println!("chaos: there is no libfaketime, so no clock is changed");
        }
        let servers = dir.join("servers");
        let servers = match store {
            Store::One => Servers::start(servers, template, durable, faketime.as_deref()).await?,
            Store::Galera => Servers::start_cluster(servers, template, durable).await?,
        };
        let servers = match index {
            Index::One => servers,
            Index::Sentinel => servers.with_sentinels(&dir.join("servers")).await?,
        };
        // In an odd run each runner writes to a node of its own, and the cluster has to find conflicts.
        let apart = matches!(store, Store::Galera) && !seed.is_multiple_of(2);
        if apart {
            println!("chaos: each runner begins with another node");
        }
        first_starts::interrupted(&servers, seed).await?;
        let ledger = Arc::<Ledger>::default();
        let mut runners = Vec::new();
        std::fs::write(dir.join("journal"), "")?;
        for number in 0..RUNNERS {
            runners.push(Runner::start(number, &servers, apart, dir, &ledger, faketime.as_deref()).await?);
        }
        let mut outbox_lines = Vec::new();
        for socket in servers.mysql_sockets()? {
            outbox_lines.push(Proxy::start(&socket, Protocol::Mysql).await?);
        }
        let client = reqwest::Client::builder().no_proxy().connect_timeout(Duration::from_secs(2)).build()?;
        let sink = Sink::start(seed).await?;
        let (dir, internal_errors) = (dir.to_owned(), InternalErrors::default());
        let (deeds, quiet) = (Deeds::default(), AtomicBool::new(false));
        let world =
            Self { seed, dir, servers, runners, outbox_lines, sink, ledger, deeds, client, internal_errors, quiet };
        for runner in &world.runners {
            let up = tokio::time::timeout(Duration::from_secs(30), runner.until_up()).await;
            up.map_err(|_| anyhow::anyhow!("runner {} does not come up", runner.number))?;
        }
        Ok(world)
    }

    pub(crate) fn journal(&self) -> PathBuf {
        self.dir.join("journal")
    }
}
