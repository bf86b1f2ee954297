//! What the caller of [`Services::start`](super::Services::start) may choose.

use std::env;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Transport;

/// Where the servers live and how carefully they keep what they are given.
#[derive(Clone, Debug)]
pub struct Options {
    pub(super) dir: PathBuf,
    pub(super) ephemeral: bool,
    pub(super) durable: bool,
    pub(super) large: bool,
    pub(super) transport: Transport,
    pub(super) template_dir: Option<PathBuf>,
    pub(super) mysqld: Option<PathBuf>,
    pub(super) mysql_flags: Vec<String>,
    pub(super) mysql_environment: Vec<(String, PathBuf)>,
}

impl Options {
    /// Servers that keep their data in `dir` and sync every commit to disk, as a real installation would.
    pub fn persistent(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            ephemeral: false,
            durable: true,
            large: false,
            transport: Transport::Socket,
            template_dir: None,
            mysqld: env::var_os("TICKR_MYSQLD").filter(|path| !path.is_empty()).map(PathBuf::from),
            mysql_flags: Vec::new(),
            mysql_environment: Vec::new(),
        }
    }

    /// Servers whose folder is removed at the end. Nothing is synced to disk: a commit survives the death of the
    /// server, which the chaos tests rely on, but not the death of the machine.
    pub fn ephemeral(dir: impl Into<PathBuf>) -> Self {
        Self { ephemeral: true, durable: false, ..Self::persistent(dir) }
    }

    /// Ephemeral servers in a new folder under `root`, with the template kept beside it. `root` is best inside the
    /// project's `target`, such as Cargo's `CARGO_TARGET_TMPDIR`.
    pub fn ephemeral_under(root: &Path) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // The names are short because the path of a Unix socket may be about a hundred bytes and no more.
        let dir = root.join(format!("s{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
        Self::ephemeral(dir).template_dir(root.join("template"))
    }

    /// Whether every commit is synced to disk. A benchmark wants a folder that goes away, and honest commits.
    pub fn durable(mut self, durable: bool) -> Self {
        self.durable = durable;
        self
    }

    /// Gives durable servers the memory and the redo log of a small production machine, 1 GiB each, so that a benchmark
    /// measures neither a cold buffer pool nor checkpoints that nobody would have.
    pub fn large(mut self) -> Self {
        self.large = true;
        self
    }

    /// Sockets, which is the default, or ports. Sockets whose path would be too long become ports by themselves.
    pub fn transport(mut self, transport: Transport) -> Self {
        self.transport = transport;
        self
    }

    /// Keeps an initialised, empty MySQL data folder in `dir`, so that the next fresh start copies it instead of
    /// spending seconds on making one. Several processes may share it.
    pub fn template_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.template_dir = Some(dir.into());
        self
    }

    /// The MySQL or MariaDB server to run, in place of the one found on the machine. The default is `TICKR_MYSQLD`.
    pub fn mysqld(mut self, program: impl Into<PathBuf>) -> Self {
        self.mysqld = Some(program.into());
        self
    }

    /// One more flag for the MySQL server, such as `--innodb-buffer-pool-size=1G`. It wins over the built-in ones.
    pub fn mysql_flag(mut self, flag: impl Into<String>) -> Self {
        self.mysql_flags.push(flag.into());
        self
    }

    /// One more variable in the environment of the MySQL server, such as a library to preload.
    pub fn mysql_environment(mut self, name: impl Into<String>, value: impl Into<PathBuf>) -> Self {
        self.mysql_environment.push((name.into(), value.into()));
        self
    }
}
