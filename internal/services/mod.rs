//! Private MySQL and Redis servers for `tickr dev`, `tickr bench` and the tests.
//!
//! [`Services::start`] gives a running pair of servers in a data folder of its own, reachable through Unix sockets or,
//! where a socket's path would be too long, through loopback ports behind a random password. Nothing on the machine is
//! touched: no system service, no fixed port, no configuration file outside the folder.
//!
//! The reading order: [`Options`] say what is wanted, `folder` owns the data folder and its lock, `programs` finds the
//! binaries, `mysql` and `redis` know one server each, [`Server`] is a running one, and `guard` makes sure that none
//! of them outlives its owner, whatever happens to the owner.
//!
//! Everything here is synchronous and needs nothing but the standard library and a POSIX shell; call it from `main` or
//! through `spawn_blocking`. What to do with the servers is left to the callers.

mod address;
mod error;
mod folder;
mod guard;
mod mysql;
mod options;
mod poll;
mod programs;
mod redis;
mod server;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::thread;

pub use self::address::{Address, Transport};
pub use self::error::ServicesError;
pub use self::options::Options;
pub use self::server::Server;

use self::address::Password;
use self::folder::Folder;
use self::programs::Programs;

/// A running MySQL and a running Redis that belong to this process.
///
/// Dropping it stops both gracefully and, when the options said ephemeral, removes the data folder. A process that dies
/// without dropping it (a crash, `kill -9`, a `static`) has the same done for it by the guards.
pub struct Services {
    // The order matters: fields drop from top to bottom, and the folder must outlive both servers.
    mysql: Server,
    redis: Server,
    password: Option<Password>,
    folder: Arc<Folder>,
}

impl Services {
    /// Starts both servers and returns once they answer.
    ///
    /// Takes about a quarter of a second with a template at hand, one to four seconds for the very first data folder.
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

    /// The URL of `database` on the private MySQL, with full rights. The database need not exist yet.
    pub fn mysql_url(&self, database: &str) -> String {
        self.mysql.address().mysql_url(self.password.as_ref(), database)
    }

    /// The URL of the private Redis.
    pub fn redis_url(&self) -> String {
        self.redis.address().redis_url(self.password.as_ref())
    }

    /// The MySQL server, to look at it or to make it fail.
    pub fn mysql(&self) -> &Server {
        &self.mysql
    }

    /// The Redis server, to look at it or to make it fail.
    pub fn redis(&self) -> &Server {
        &self.redis
    }

    /// The data folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        // Both are asked before either is waited for, which the fields' own drops do.
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
