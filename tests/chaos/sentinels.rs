//! Redis behind sentinels, as the run sees it: a master, its replica, and three sentinels. Either server of data may be
//! the master.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail};
use tickr::services::{Address, Options, RedisRole, Server, start_redis};

/// Name by which the sentinels know the master.
const NAME: &str = "chaos";
/// Longest time until the sentinels know the replica, and one another.
const KNOWN_WITHIN: Duration = Duration::from_secs(30);

pub(crate) struct Watched {
    data: [Server; 2],
    sentinels: Vec<Server>,
    /// The server of data that the present fault affects.
    hit: AtomicUsize,
}

impl Watched {
    /// Start the servers in `dir`.
    pub(crate) async fn start(dir: &Path) -> anyhow::Result<Self> {
        let dir = dir.to_owned();
        let group = tokio::task::spawn_blocking(move || Self::start_servers(&dir)).await??;
        let until = tokio::time::Instant::now() + KNOWN_WITHIN;
        while !group.is_known().await.unwrap_or(false) {
            if tokio::time::Instant::now() > until {
                bail!("the sentinels do not find one another and the replica");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(group)
    }

    fn start_servers(dir: &Path) -> anyhow::Result<Self> {
        let start = |name: &str, role: RedisRole, lines: &str| -> anyhow::Result<Server> {
            let dir = dir.join(name);
            std::fs::create_dir_all(&dir)?;
            Ok(start_redis(&Options::persistent(dir), role, lines)?)
        };
        let sync = "repl-diskless-sync yes\nrepl-diskless-sync-delay 0\n";
        let master = start("redis0", RedisRole::Data, sync)?;
        let place = format!("127.0.0.1 {}", port(&master)?);
        let replica = start("redis1", RedisRole::Data, &format!("{sync}replicaof {place}\n"))?;
        // A sentinel learns of a replica when it asks the master, which it does seldom. So the replica is there first.
        until_replicated(&replica)?;
        let lines = format!(
            "sentinel monitor {NAME} {place} 2\nsentinel down-after-milliseconds {NAME} 1500\n\
             sentinel failover-timeout {NAME} 5000\n"
        );
        let sentinels = (0..3).map(|number| start(&format!("sentinel{number}"), RedisRole::Sentinel, &lines));
        let sentinels = sentinels.collect::<Result<_, _>>()?;
        Ok(Self { data: [master, replica], sentinels, hit: AtomicUsize::new(0) })
    }

    /// Return the URL for runners.
    pub(crate) fn url(&self) -> anyhow::Result<String> {
        let places: Vec<String> = self
            .sentinels
            .iter()
            .map(|sentinel| Ok(format!("127.0.0.1:{}", port(sentinel)?)))
            .collect::<anyhow::Result<_>>()?;
        Ok(format!("redis+sentinel://{}/{NAME}", places.join(",")))
    }

    /// Let the next fault affect the master. When the sentinels name none, it affects the server of before.
    pub(crate) async fn aim_at_master(&self) -> anyhow::Result<()> {
        let named = self.ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]).await;
        let Ok(named) = named else { return Ok(()) };
        let (_, named): (String, u16) = redis::from_redis_value(named).map_err(|error| anyhow::anyhow!("{error}"))?;
        for (place, server) in self.data.iter().enumerate() {
            if port(server)? == named {
                self.hit.store(place, Ordering::SeqCst);
            }
        }
        Ok(())
    }

    /// Return the server that the present fault affects.
    pub(crate) fn hit(&self) -> &Server {
        &self.data[self.hit.load(Ordering::SeqCst)]
    }

    /// Return the URL of the server that the present fault affects.
    pub(crate) fn hit_url(&self) -> anyhow::Result<String> {
        Ok(format!("redis://127.0.0.1:{}", port(self.hit())?))
    }

    /// Ask a sentinel to make the replica the master. It may refuse, because a failover is under way.
    pub(crate) async fn fail_over(&self) {
        let _ = self.ask(&["SENTINEL", "FAILOVER", NAME]).await;
    }

    async fn is_known(&self) -> anyhow::Result<bool> {
        let said = self.ask(&["SENTINEL", "MASTER", NAME]).await?;
        let said: std::collections::HashMap<String, String> =
            redis::from_redis_value(said).map_err(|error| anyhow::anyhow!("{error}"))?;
        let is = |name: &str, wanted: &str| said.get(name).is_some_and(|value| value == wanted);
        Ok(is("num-slaves", "1") && is("num-other-sentinels", "2"))
    }

    async fn ask(&self, words: &[&str]) -> anyhow::Result<redis::Value> {
        let sentinel = self.sentinels.first().context("a sentinel")?;
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", port(sentinel)?))?;
        let mut conn = client.get_multiplexed_async_connection().await?;
        Ok(redis::cmd(words[0]).arg(&words[1..]).query_async(&mut conn).await?)
    }
}

/// Wait until this replica has the data of its master.
fn until_replicated(replica: &Server) -> anyhow::Result<()> {
    let client = redis::Client::open(format!("redis://127.0.0.1:{}", port(replica)?))?;
    let until = std::time::Instant::now() + KNOWN_WITHIN;
    loop {
        let said = client.get_connection().and_then(|mut conn| redis::cmd("INFO").arg("replication").query(&mut conn));
        if said.is_ok_and(|said: String| said.contains("master_link_status:up")) {
            return Ok(());
        }
        if std::time::Instant::now() > until {
            bail!("the replica does not reach its master");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn port(server: &Server) -> anyhow::Result<u16> {
    match server.address() {
        Address::Tcp(port) => Ok(*port),
        Address::Socket(_) => bail!("these servers listen on ports"),
    }
}
