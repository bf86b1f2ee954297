//! A Galera cluster of MariaDB servers on this machine. The nodes talk through loopback ports.

use std::env;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::poll::poll;
use super::server::last_lines;
use super::{Options, Services, ServicesError};

/// Settings of every node.
const FLAGS: [&str; 5] = [
    "--binlog-format=ROW",
    "--innodb-autoinc-lock-mode=2",
    "--wsrep-on=ON",
    "--wsrep-cluster-name=tickr",
    "--wsrep-sst-method=rsync",
];
/// Those that begin with `evs` say how fast the nodes notice that one is gone. With shorter times a cluster lost its quorum
/// on a busy machine.
const PROVIDER_OPTIONS: &str = "gcache.size=64M;evs.keepalive_period=PT0.5S;evs.inactive_check_period=PT0.5S;\
                                evs.suspect_timeout=PT2S;evs.inactive_timeout=PT8S;evs.install_timeout=PT8S";

/// What a node logs when it is part of the cluster, and the longest time until then.
const JOINED: &str = "Synchronized with group, ready for connections";
const JOIN_LIMIT: Duration = Duration::from_secs(60);

/// Loopback ports of one node: for the group, for changes that it missed, and for a copy of all data.
struct Ports {
    group: u16,
    changes: u16,
    copy: u16,
}

/// Start a node with each of these options, one after the other, and return when all of them take statements. Every node
/// has a Redis beside it.
///
/// The first one makes the cluster, and starts again as an ordinary node when the others are there: a node that makes a
/// cluster at each start would make a second one after a crash.
pub fn start_galera(each: &[Options]) -> Result<Vec<Services>, ServicesError> {
    let galera = installed()?;
    let galera = Path::new(&galera);
    let ports: Vec<Ports> = each
        .iter()
        .map(|_| free_ports())
        .collect::<Result<_, _>>()
        .map_err(ServicesError::io("finding ports for", galera))?;
    let members: Vec<String> = ports.iter().map(|ports| format!("127.0.0.1:{}", ports.group)).collect();
    let members = members.join(",");
    let node = |number: usize| with_galera(&each[number], galera, &ports[number], &members);
    let first = joined(&node(0).mysql_flag("--wsrep-new-cluster"))?;
    let mut nodes = Vec::with_capacity(each.len());
    for number in 1..each.len() {
        nodes.push(joined(&node(number))?);
    }
    drop(first);
    nodes.insert(0, joined(&node(0))?);
    Ok(nodes)
}

/// Start a node and wait until it is part of the cluster. It answers before, while it copies the data of another node.
fn joined(options: &Options) -> Result<Services, ServicesError> {
    let node = Services::start(options)?;
    let log = node.mysql().log();
    let said = || fs::read_to_string(log).unwrap_or_default();
    match poll(JOIN_LIMIT, || said().contains(JOINED).then_some(())) {
        Some(()) => Ok(node),
        None => Err(ServicesError::NotReady {
            name: "mysql",
            seconds: JOIN_LIMIT.as_secs(),
            log: log.to_owned(),
            tail: last_lines(&said()),
        }),
    }
}

fn with_galera(options: &Options, galera: &Path, ports: &Ports, members: &str) -> Options {
    let Ports { group, changes, copy } = ports;
    let own = [
        format!("--wsrep-provider={}", galera.join("root/usr/lib/galera/libgalera_smm.so").display()),
        format!("--wsrep-cluster-address=gcomm://{members}"),
        "--wsrep-node-address=127.0.0.1".to_owned(),
        format!("--wsrep-sst-receive-address=127.0.0.1:{copy}"),
        format!(
            "--wsrep-provider-options=base_port={group};gmcast.listen_addr=tcp://127.0.0.1:{group};\
             ist.recv_addr=127.0.0.1:{changes};ist.recv_bind=127.0.0.1:{changes};{PROVIDER_OPTIONS}"
        ),
    ];
    // A node finds the programs that copy data there.
    let mut path = galera.join("bin").into_os_string();
    path.push(":");
    path.push(env::var_os("PATH").unwrap_or_default());
    let options = options.clone().mysql_environment("PATH", path);
    FLAGS.into_iter().map(str::to_owned).chain(own).fold(options, Options::mysql_flag)
}

/// Return ports that were free a moment ago.
fn free_ports() -> std::io::Result<Ports> {
    // All of them are held until the last one is known, so that they differ.
    let held = [listener()?, listener()?, listener()?];
    let [group, changes, copy] = held.each_ref().map(|held| held.local_addr().map(|addr| addr.port()));
    Ok(Ports { group: group?, changes: changes?, copy: copy? })
}

fn listener() -> std::io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
}

/// Return the folder with the library of Galera and the programs that it needs. The first call fetches them.
fn installed() -> Result<String, ServicesError> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("install.sh");
    let output = Command::new("sh").arg(&script).arg("--galera").output();
    let output = output.map_err(ServicesError::io("running", &script))?;
    if !output.status.success() {
        let tail = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
        return Err(ServicesError::Initialise { program: script, status: output.status, tail });
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
