//! All failures that prevent the private servers from running, with messages for the user at the terminal.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use thiserror::Error;

/// The reason why the private servers could not be started or controlled.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServicesError {
    /// A server binary is not on this machine.
    #[error("no {wanted} found (looked for {names} in {searched}); install it with: {install}")]
    MissingProgram {
        /// Description of the missing program.
        wanted: &'static str,
        /// Accepted file names.
        names: String,
        /// Folders that were searched.
        searched: String,
        /// The command that installs it.
        install: &'static str,
    },

    /// Another process runs its servers in the same folder.
    #[error("the data folder {} is in use by another tickr (process {owner}); stop it or choose another folder", dir.display())]
    InUse {
        /// The folder.
        dir: PathBuf,
        /// Process id from the lock file.
        owner: String,
    },

    /// The folder is to be removed at the end, but contains files that tickr did not create.
    #[error("will not use {} for ephemeral servers: it holds files that are not tickr's and would be removed", dir.display())]
    NotOurs {
        /// The folder.
        dir: PathBuf,
    },

    /// A server ended before it answered.
    #[error("{name} ended while starting ({status}); the end of {}:\n{tail}", log.display())]
    EarlyExit {
        /// Name of the server.
        name: &'static str,
        /// Exit status.
        status: ExitStatus,
        /// Log file.
        log: PathBuf,
        /// Last lines of the log.
        tail: String,
    },

    /// A server runs but does not answer.
    #[error("{name} did not answer within {seconds} s; the end of {}:\n{tail}", log.display())]
    NotReady {
        /// Name of the server.
        name: &'static str,
        /// Time limit in seconds.
        seconds: u64,
        /// Log file.
        log: PathBuf,
        /// Last lines of the log.
        tail: String,
    },

    /// The MySQL data folder could not be initialised.
    #[error("initialising a MySQL data folder with {} failed ({status}); the end of its output:\n{tail}", program.display())]
    Initialise {
        /// The program that was run.
        program: PathBuf,
        /// Exit status.
        status: ExitStatus,
        /// Last lines of its output.
        tail: String,
    },

    /// Another process has been creating the template for too long.
    #[error("another process has been making the template in {} for more than {seconds} s", dir.display())]
    TemplateBusy {
        /// The template folder.
        dir: PathBuf,
        /// Seconds waited.
        seconds: u64,
    },

    /// The call needs a running server.
    #[error("{name} is not running")]
    NotRunning {
        /// Name of the server.
        name: &'static str,
    },

    /// The call needs a stopped server.
    #[error("{name} is already running")]
    AlreadyRunning {
        /// Name of the server.
        name: &'static str,
    },

    /// The process of a server still exists after it was killed.
    #[error("{name} did not end within {seconds} s")]
    StillRunning {
        /// Name of the server.
        name: &'static str,
        /// Seconds waited.
        seconds: u64,
    },

    /// The operating system reported an error.
    #[error("{action} {}", path.display())]
    Io {
        /// The attempted action.
        action: &'static str,
        /// The file or program of the action.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
}

impl ServicesError {
    /// Return a closure for `map_err` that adds the attempted action to an I/O error.
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }
}
