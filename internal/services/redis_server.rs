//! A Redis server alone, for tests of several: a master, a replica, a sentinel, or a node of a cluster.

use std::io;
use std::sync::Arc;

use super::address::{Address, Transport};
use super::folder::Folder;
use super::guard;
use super::programs::Programs;
use super::redis::{program, quote};
use super::server::{Connection, Plan, Server};
use super::{Options, ServicesError};

/// The part that a Redis server plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedisRole {
    /// A server of data.
    Data,
    /// A server of data whose port takes connections with TLS only.
    DataWithTls,
    /// A sentinel, which watches others.
    Sentinel,
}

/// Start a Redis server on a free loopback port, with these lines in its configuration. It may rewrite its configuration,
/// and keeps what it wrote when it is started again.
///
/// # Errors
/// [`ServicesError`] when it does not start.
pub fn start_redis(options: &Options, role: RedisRole, lines: &str) -> Result<Server, ServicesError> {
    let programs = Programs::find(options.mysqld.as_deref())?;
    let folder = Arc::new(Folder::open(options)?);
    Server::start(&folder, "redis", Transport::Tcp, |address| plan(&programs, &folder, address, role, lines))
}

fn plan(
    programs: &Programs,
    folder: &Folder,
    address: &Address,
    role: RedisRole,
    lines: &str,
) -> Result<Plan, ServicesError> {
    let Address::Tcp(port) = address else { return Err(ServicesError::NotRunning { name: "redis" }) };
    let listen = match role {
        RedisRole::DataWithTls => format!("port 0\ntls-port {port}\n"),
        RedisRole::Data | RedisRole::Sentinel => format!("port {port}\n"),
    };
    let data = if role == RedisRole::Sentinel { "" } else { "save \"\"\nappendonly no\n" };
    let dir = quote(folder.path());
    let text = format!("{listen}bind 127.0.0.1\ndir {dir}\ndaemonize no\n{data}{lines}\n");
    let mut args = vec![folder.write_private("redis.conf", &text)?.into_os_string()];
    if role == RedisRole::Sentinel {
        args.push("--sentinel".into());
    }
    Ok(Plan {
        command: guard::command(program(programs, folder)?, args),
        // With TLS, the log says that it listens.
        probe: Box::new(move |stream| if role == RedisRole::DataWithTls { Ok(true) } else { answers(stream) }),
        listening: if role == RedisRole::Sentinel { "Sentinel ID is" } else { "Ready to accept connections" },
    })
}

/// Return whether the server answers. Its answer may be that the caller must name a user first.
fn answers(stream: &mut dyn Connection) -> io::Result<bool> {
    stream.write_all(b"PING\r\n")?;
    let mut bytes = [0; 128];
    let count = stream.read(&mut bytes)?;
    let answer = String::from_utf8_lossy(&bytes[..count]);
    Ok(answer.starts_with("+PONG") || answer.starts_with("-NOAUTH"))
}
