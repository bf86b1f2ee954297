//! Redis that is many: a master with its replica and three sentinels, and a Redis Cluster. All of them on loopback ports,
//! each server in a folder of its own.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tickr::config::ServerUrl;
use tickr::services::{Address, RedisRole, Server, start_redis};

use super::{DEADLINE, eventually, eventually_late, lasting_addr};

/// Accounts of the servers of data. The default user is off, as on a managed Redis.
const USERS: &str = "\
user default off
user tickr on >of-tickr ~* &* +@all
user sentinel on >of-sentinel ~* &* +@all
user replica on >of-replica +psync +replconf +ping
masteruser replica
masterauth of-replica
repl-diskless-sync yes
repl-diskless-sync-delay 0
";

/// Name by which the sentinels know the master.
const NAME: &str = "main";

/// Longest wait for what sentinels and nodes decide. Sentinels that stood still for two seconds decide nothing for half
/// a minute.
const DECIDED: Duration = Duration::from_secs(3 * DEADLINE.as_secs());

/// Start a server without waiting on a thread of the runtime.
pub(crate) async fn start(role: RedisRole, lines: impl Into<String>) -> Server {
    let lines = lines.into();
    let started = tokio::task::spawn_blocking(move || {
        let options = super::server_options();
        start_redis(&options, role, &lines).unwrap_or_else(|error| panic!("{error}"))
    });
    started.await.unwrap()
}

pub(crate) fn port(server: &Server) -> u16 {
    let Address::Tcp(port) = server.address() else { panic!("these servers listen on ports") };
    *port
}

/// Open a connection of the test's own. By itself the client gives up after half a second, for which a machine may
/// stand still.
pub(crate) async fn open(url: &str) -> MultiplexedConnection {
    let limit = Some(Duration::from_secs(10));
    let config = redis::AsyncConnectionConfig::new().set_connection_timeout(limit).set_response_timeout(limit);
    let client = redis::Client::open(url).unwrap();
    client.get_multiplexed_async_connection_with_config(&config).await.unwrap()
}

/// Send a command, written as words.
pub(crate) async fn send<T: redis::FromRedisValue>(conn: &mut MultiplexedConnection, words: &str) -> T {
    try_send(conn, words).await.unwrap_or_else(|error| panic!("{words}: {error}"))
}

pub(crate) async fn try_send<T: redis::FromRedisValue>(
    conn: &mut MultiplexedConnection,
    words: &str,
) -> redis::RedisResult<T> {
    let mut words = words.split(' ');
    let mut command = redis::cmd(words.next().unwrap());
    for word in words {
        command.arg(word);
    }
    command.query_async(conn).await
}

/// Return the value of a line of INFO.
pub(crate) async fn info(conn: &mut MultiplexedConnection, name: &str) -> String {
    let text: String = send(conn, "INFO").await;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().trim().to_owned()
}

/// Wait until a server plays this part: `master` or `slave`. A change of it ends connections, so each look opens one.
pub(crate) async fn until_role(server: &Server, role: &str) {
    eventually_late(DECIDED, &format!("the server is a {role}"), || async {
        let client = redis::Client::open(url_of(server)).unwrap();
        let mut conn = client.get_multiplexed_async_connection().await.ok()?;
        let text: String = try_send(&mut conn, "INFO replication").await.ok()?;
        text.contains(&format!("role:{role}")).then_some(())
    })
    .await;
}

/// A master, its replica, and three sentinels that watch them.
pub(crate) struct Watched {
    /// The two servers of data; the first one begins as the master.
    pub(crate) data: [Server; 2],
    pub(crate) sentinels: Vec<Server>,
}

impl Watched {
    pub(crate) async fn start() -> Self {
        let master = start(RedisRole::Data, USERS).await;
        let replica = start(RedisRole::Data, format!("{USERS}replicaof 127.0.0.1 {}\n", port(&master))).await;
        let conn = open(&url_of(&replica)).await;
        // A sentinel learns of a replica when it asks the master, which it does seldom. So the replica is there first.
        eventually("the replica follows", || {
            let mut conn = conn.clone();
            async move { (info(&mut conn, "master_link_status").await == "up").then_some(()) }
        })
        .await;
        let mut sentinels = Vec::new();
        for _ in 0..3 {
            // A machine that stands still for a second or two must not look like a master that is down. After more than
            // two seconds, sentinels wait by themselves.
            let lines = format!(
                "sentinel monitor {NAME} 127.0.0.1 {} 2\nsentinel down-after-milliseconds {NAME} 2500\n\
                 sentinel failover-timeout {NAME} 4000\nsentinel auth-user {NAME} sentinel\n\
                 sentinel auth-pass {NAME} of-sentinel\n",
                port(&master)
            );
            sentinels.push(start(RedisRole::Sentinel, lines).await);
        }
        let group = Self { data: [master, replica], sentinels };
        for sentinel in &group.sentinels {
            eventually_late(DECIDED, "the sentinels know one another and the replica", || async {
                let said = group.said_by(sentinel).await?;
                let known = |name: &str| said.get(name).map(String::as_str);
                (known("num-other-sentinels") == Some("2") && known("num-slaves") == Some("1")).then_some(())
            })
            .await;
        }
        group
    }

    /// Return the URL for tickr.
    pub(crate) fn url(&self) -> ServerUrl {
        let places: Vec<String> = self.sentinels.iter().map(|s| format!("127.0.0.1:{}", port(s))).collect();
        ServerUrl::redis(&format!("redis+sentinel://tickr:of-tickr@{}/{NAME}", places.join(","))).unwrap()
    }

    /// Return what a sentinel says about the master.
    async fn said_by(&self, sentinel: &Server) -> Option<std::collections::HashMap<String, String>> {
        let mut conn = open(&format!("redis://127.0.0.1:{}", port(sentinel))).await;
        try_send(&mut conn, &format!("SENTINEL MASTER {NAME}")).await.ok()
    }

    /// Wait until two sentinels name this server as the master.
    pub(crate) async fn until_master(&self, server: &Server) {
        let wanted = port(server).to_string();
        eventually_late(DECIDED, "two sentinels name the new master", || async {
            let mut named = 0;
            for sentinel in &self.sentinels {
                let said = self.said_by(sentinel).await?;
                named += usize::from(said.get("port") == Some(&wanted));
            }
            (named >= 2).then_some(())
        })
        .await;
    }

    /// Ask a sentinel to make the replica the master.
    pub(crate) async fn fail_over(&self) {
        let conn = open(&format!("redis://127.0.0.1:{}", port(&self.sentinels[0]))).await;
        eventually_late(DECIDED, "a sentinel begins a failover", || {
            let mut conn = conn.clone();
            async move { try_send::<()>(&mut conn, &format!("SENTINEL FAILOVER {NAME}")).await.ok() }
        })
        .await;
    }
}

/// Return the URL of one server of data.
pub(crate) fn url_of(server: &Server) -> String {
    format!("redis://tickr:of-tickr@127.0.0.1:{}", port(server))
}

/// Three masters with a third of the slots each, and a replica of one of them.
pub(crate) struct Cluster {
    /// The masters, then the replica.
    pub(crate) nodes: Vec<Server>,
    /// The slot of the index of a key prefix.
    pub(crate) slot: u16,
    /// Position of the master of this slot, as of the start.
    pub(crate) owner: usize,
}

impl Cluster {
    /// Start a cluster. The replica follows the master of the slot that this key prefix has.
    pub(crate) async fn start(prefix: &str) -> Self {
        let mut nodes = Vec::new();
        for _ in 0..4 {
            let lines = format!(
                "{USERS}cluster-enabled yes\ncluster-port {}\ncluster-node-timeout 3000\n\
                 cluster-require-full-coverage no\ncluster-replica-validity-factor 0\n",
                lasting_addr().port()
            );
            nodes.push(start(RedisRole::Data, lines).await);
        }
        let mut first = open(&url_of(&nodes[0])).await;
        let slot: u16 = send(&mut first, &format!("CLUSTER KEYSLOT {{{prefix}}}:epoch")).await;
        let owner = usize::from(slot / 5_462);
        for (number, range) in ["0 5461", "5462 10923", "10924 16383"].iter().enumerate() {
            let mut conn = open(&url_of(&nodes[number])).await;
            let _: () = send(&mut conn, &format!("CLUSTER ADDSLOTSRANGE {range}")).await;
            let _: () = send(&mut conn, &format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1)).await;
        }
        for node in &nodes[1..] {
            let bus: u16 = {
                let mut conn = open(&url_of(node)).await;
                let text: String = send(&mut conn, "CLUSTER NODES").await;
                text.split('@').nth(1).unwrap().split([' ', ',']).next().unwrap().parse().unwrap()
            };
            let _: () = send(&mut first, &format!("CLUSTER MEET 127.0.0.1 {} {bus}", port(node))).await;
        }
        let cluster = Self { nodes, slot, owner };
        let id = cluster.id(owner).await;
        let replica = open(&url_of(&cluster.nodes[3])).await;
        eventually("the replica follows the master of the slot", || {
            let (mut replica, id) = (replica.clone(), id.clone());
            async move { try_send::<()>(&mut replica, &format!("CLUSTER REPLICATE {id}")).await.ok() }
        })
        .await;
        eventually("the replica has what its master has", || {
            let mut replica = replica.clone();
            async move { (info(&mut replica, "master_link_status").await == "up").then_some(()) }
        })
        .await;
        for node in &cluster.nodes {
            let conn = open(&url_of(node)).await;
            eventually("each node knows the whole cluster", || {
                let mut conn = conn.clone();
                async move {
                    let text: String = send(&mut conn, "CLUSTER INFO").await;
                    let nodes: String = send(&mut conn, "CLUSTER NODES").await;
                    let whole = text.contains("cluster_state:ok") && text.contains("cluster_known_nodes:4");
                    (whole && nodes.matches(" slave ").count() + nodes.matches(",slave ").count() == 1).then_some(())
                }
            })
            .await;
        }
        cluster
    }

    /// Return the URL for tickr, with these nodes.
    pub(crate) fn url_of(&self, nodes: &[usize]) -> ServerUrl {
        let places: Vec<String> = nodes.iter().map(|node| format!("127.0.0.1:{}", port(&self.nodes[*node]))).collect();
        ServerUrl::redis(&format!("redis+cluster://tickr:of-tickr@{}", places.join(","))).unwrap()
    }

    pub(crate) async fn conn(&self, node: usize) -> MultiplexedConnection {
        open(&url_of(&self.nodes[node])).await
    }

    /// Return the id of a node.
    pub(crate) async fn id(&self, node: usize) -> String {
        send(&mut self.conn(node).await, "CLUSTER MYID").await
    }

    /// Move the slot of the index to another master, as `redis-cli --cluster reshard` does, with a pause while the slot
    /// is on its way.
    pub(crate) async fn move_slot(&self, from: usize, to: usize, pause: Duration) {
        let slot = self.slot;
        let (mut source, mut target) = (self.conn(from).await, self.conn(to).await);
        let (from_id, to_id) = (self.id(from).await, self.id(to).await);
        let _: () = send(&mut target, &format!("CLUSTER SETSLOT {slot} IMPORTING {from_id}")).await;
        let _: () = send(&mut source, &format!("CLUSTER SETSLOT {slot} MIGRATING {to_id}")).await;
        tokio::time::sleep(pause).await;
        loop {
            let keys: Vec<String> = send(&mut source, &format!("CLUSTER GETKEYSINSLOT {slot} 100")).await;
            if keys.is_empty() {
                break;
            }
            let place = format!("127.0.0.1 {} ", port(&self.nodes[to]));
            let keys = keys.join(" ");
            let migrate = format!("MIGRATE {place} 0 8000 REPLACE AUTH2 tickr of-tickr KEYS {keys}");
            // The empty word in front of the number of the database stands for the keys that follow.
            let _: String = send(&mut source, &migrate).await;
        }
        for conn in [&mut target, &mut source] {
            let _: () = send(conn, &format!("CLUSTER SETSLOT {slot} NODE {to_id}")).await;
        }
        for other in 0..3 {
            let mut conn = self.conn(other).await;
            let _: redis::RedisResult<()> = try_send(&mut conn, &format!("CLUSTER SETSLOT {slot} NODE {to_id}")).await;
        }
    }
}
