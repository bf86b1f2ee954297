//! The options of [`Services::start`](super::Services::start).

use std::env;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::Transport;

/// Location and durability of the servers.
#[derive(Clone, Debug)]
pub struct Options {
    pub(super) dir: PathBuf,
    pub(super) ephemeral: bool,
    pub(super) durable: bool,
    pub(super) large: bool,
    pub(super) commit_delay: Duration,
    pub(super) transport: Transport,
    pub(super) template_dir: Option<PathBuf>,
    pub(super) mysqld: Option<PathBuf>,
    pub(super) mysql_flags: Vec<String>,
    pub(super) mysql_environment: Vec<(String, PathBuf)>,
}

impl Options {
    /// Return options for servers that keep their data in `dir` and sync every commit to disk, like a real
    /// installation.
    pub fn persistent(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            ephemeral: false,
            durable: true,
            large: false,
            commit_delay: Duration::ZERO,
            transport: Transport::Socket,
            template_dir: None,
            mysqld: env::var_os("TICKR_MYSQLD").filter(|path| !path.is_empty()).map(PathBuf::from),
            mysql_flags: Vec::new(),
            mysql_environment: Vec::new(),
        }
    }

    /// Return options for servers whose folder is removed at the end. Nothing is synced to disk: a commit survives the
    /// death of the server, which the chaos tests need, but not the death of the machine.
    pub fn ephemeral(dir: impl Into<PathBuf>) -> Self {
        Self { ephemeral: true, durable: false, ..Self::persistent(dir) }
    }

    /// Return options for ephemeral servers in a new folder under `root`, with the template kept beside it. A good
    /// `root` is inside the project's `target`, such as Cargo's `CARGO_TARGET_TMPDIR`.
    pub fn ephemeral_under(root: &Path) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Short names, because the path of a Unix socket is limited to about a hundred bytes.
        let dir = root.join(format!("s{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
        Self::ephemeral(dir).template_dir(root.join("template"))
    }

    /// Sync every commit to disk, or not. A benchmark needs an ephemeral folder with durable commits.
    pub fn durable(mut self, durable: bool) -> Self {
        self.durable = durable;
        self
    }

    /// Give durable servers the memory and the redo log of a small production machine, 1 GiB each. A benchmark then
    /// measures neither a cold buffer pool nor checkpoints that a production server would not have.
    pub fn large(mut self) -> Self {
        self.large = true;
        self
    }

    /// Hold commits for this long, as a slow disk or a replica that acknowledges does. The server writes a binary log,
    /// syncs it, and waits before each sync, by its own setting. Transactions that commit meanwhile share the sync, so the
    /// first of them waits for the whole time and the others for the rest of it.
    ///
    /// MariaDB ends the wait early when a transaction waits for a row lock that a held one has.
    pub fn commit_delay(mut self, delay: Duration) -> Self {
        self.commit_delay = delay;
        self
    }

    /// Choose sockets, the default, or ports. If a socket path would be too long, ports are used instead.
    pub fn transport(mut self, transport: Transport) -> Self {
        self.transport = transport;
        self
    }

    /// Keep an initialised, empty MySQL data folder in `dir`. The next fresh start copies it and saves the seconds of
    /// an initialisation. Several processes may share it.
    pub fn template_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.template_dir = Some(dir.into());
        self
    }

    /// Use this MySQL or MariaDB server instead of the one found on the machine. The default is `TICKR_MYSQLD`.
    pub fn mysqld(mut self, program: impl Into<PathBuf>) -> Self {
        self.mysqld = Some(program.into());
        self
    }

    /// Add a flag for the MySQL server, such as `--innodb-buffer-pool-size=1G`. It overrides the built-in flags.
    pub fn mysql_flag(mut self, flag: impl Into<String>) -> Self {
        self.mysql_flags.push(flag.into());
        self
    }

    /// Add a variable to the environment of the MySQL server, such as a library to preload.
    pub fn mysql_environment(mut self, name: impl Into<String>, value: impl Into<PathBuf>) -> Self {
        self.mysql_environment.push((name.into(), value.into()));
        self
    }
}
