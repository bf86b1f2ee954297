//! Private MySQL and Redis servers for `tickr dev`, `tickr bench` and the tests.
//!
//! [`Services::start`] returns a running pair of servers with their own data folder. They are reachable through Unix
//! sockets or, if a socket path would be too long, through loopback ports with a random password. Nothing else on the
//! machine is changed: no system service, no fixed port, no configuration file outside the folder.
//!
//! - `address`: addresses, password and URLs
//! - `error`: [`ServicesError`]
//! - `folder`: the data folder and its lock
//! - `galera`: a cluster of MariaDB servers
//! - `guard`: the processes that stop a server when its owner dies
//! - `mysql`: data folder and flags of MySQL or MariaDB
//! - `options`: [`Options`], the choices of the caller
//! - `poll`: waiting for processes, sockets and locks
//! - `programs`: the search for the server binaries
//! - `redis`: configuration of Redis
//! - `redis_server`: a Redis server alone, as a master, a sentinel or a node of a cluster
//! - `server`: [`Server`], one running server
//! - `signal`: [`signal()`], which also stops processes whole
//! - `install.sh`: installs the server binaries and the tools of the tests
//! - `schemathesis.txt`: the pinned packages of one of these tools
//!
//! All functions are synchronous and need only the standard library and a POSIX shell. Call them from `main` or through
//! `spawn_blocking`.

mod address;
mod error;
mod folder;
mod galera;
mod guard;
mod mysql;
mod options;
mod poll;
mod programs;
mod redis;
mod redis_server;
mod server;
mod signal;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::thread;

pub use self::address::{Address, Transport};
pub use self::error::ServicesError;
pub use self::galera::start_galera;
pub use self::options::Options;
pub use self::redis_server::{RedisRole, start_redis};
pub use self::server::Server;
pub use self::signal::signal;

use self::address::Password;
use self::folder::Folder;
use self::programs::Programs;

/// A running MySQL and a running Redis that belong to this process.
///
/// Dropping it stops both gracefully and, if the options are ephemeral, removes the data folder. If the process ends
/// without the drop (a crash, `kill -9`, a `static`), the guards do the same.
pub struct Services {
    // The order matters: fields drop from top to bottom, and the folder must outlive both servers.
    mysql: Server,
    redis: Server,
    password: Option<Password>,
    folder: Arc<Folder>,
}

impl Services {
    /// Start both servers and return when they answer.
    ///
    /// This takes about a quarter of a second with an existing template, and one to four seconds for the very first
    /// data folder.
    pub fn start(options: &Options) -> Result<Self, ServicesError> {
        let programs = Programs::find(options.mysqld.as_deref())?;
        let folder = Arc::new(Folder::open(options)?);
        let transport = folder.transport(options.transport);
        let password = match transport {
            Transport::Socket => None,
            Transport::Tcp => Some(folder.password()?),
        };

        mysql::prepare(&programs, &folder, options)?;
        let (mysql, redis) = thread::scope(|scope| {
            let redis = scope.spawn(|| {
                Server::start(&folder, "redis", transport, |address| {
                    redis::plan(&programs, &folder, address, password.as_ref())
                })
            });
            let mysql = Server::start(&folder, "mysql", transport, |address| {
                mysql::plan(&programs, &folder, options, address, password.as_ref())
            });
            let redis = redis.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            (mysql, redis)
        });
        Ok(Self { mysql: mysql?, redis: redis?, password, folder })
    }

    /// Return the URL of `database` on the private MySQL, with full rights. The database need not exist yet.
    pub fn mysql_url(&self, database: &str) -> String {
        self.mysql.address().mysql_url(self.password.as_ref(), database)
    }

    /// Return the URL of the private Redis.
    pub fn redis_url(&self) -> String {
        self.redis.address().redis_url(self.password.as_ref())
    }

    /// Return the MySQL server, to inspect it or to make it fail.
    pub fn mysql(&self) -> &Server {
        &self.mysql
    }

    /// Return the Redis server, to inspect it or to make it fail.
    pub fn redis(&self) -> &Server {
        &self.redis
    }

    /// Return the data folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        // Ask both to stop before the drops of the fields wait for each of them.
        self.mysql.ask_to_stop();
        self.redis.ask_to_stop();
    }
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Services")
            .field("folder", &self.folder.path())
            .field("mysql", &self.mysql)
            .field("redis", &self.redis)
            .finish_non_exhaustive()
    }
}
