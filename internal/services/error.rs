//! Everything that can keep the private servers from running, told to the person at the terminal.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use thiserror::Error;

/// Why the private servers could not be started or acted upon.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServicesError {
    /// A server binary is not on this machine.
    #[error("no {wanted} found (looked for {names} in {searched}); install it with: {install}")]
    MissingProgram {
        /// What is missing, in words.
        wanted: &'static str,
        /// The file names that would do.
        names: String,
        /// The folders that were searched.
        searched: String,
        /// The one command that mends it.
        install: &'static str,
    },

    /// Another process runs its servers in the same folder.
    #[error("the data folder {} is in use by another tickr (process {owner}); stop it or choose another folder", dir.display())]
    InUse {
        /// The folder.
        dir: PathBuf,
        /// The process, as far as the lock tells.
        owner: String,
    },

    /// The folder was to be removed at the end, but there are files in it that tickr did not make.
    #[error("will not use {} for ephemeral servers: it holds files that are not tickr's and would be removed", dir.display())]
    NotOurs {
        /// The folder.
        dir: PathBuf,
    },

    /// A server ended before it answered.
    #[error("{name} ended while starting ({status}); the end of {}:\n{tail}", log.display())]
    EarlyExit {
        /// Which server.
        name: &'static str,
        /// How it ended.
        status: ExitStatus,
        /// Its log.
        log: PathBuf,
        /// The last lines of the log.
        tail: String,
    },

    /// A server runs but does not answer.
    #[error("{name} did not answer within {seconds} s; the end of {}:\n{tail}", log.display())]
    NotReady {
        /// Which server.
        name: &'static str,
        /// How long it was given.
        seconds: u64,
        /// Its log.
        log: PathBuf,
        /// The last lines of the log.
        tail: String,
    },

    /// The MySQL data folder could not be initialised.
    #[error("initialising a MySQL data folder with {} failed ({status}); the end of its output:\n{tail}", program.display())]
    Initialise {
        /// The program that was run.
        program: PathBuf,
        /// How it ended.
        status: ExitStatus,
        /// The last lines of its output.
        tail: String,
    },

    /// Another process has been making the template for too long.
    #[error("another process has been making the template in {} for more than {seconds} s", dir.display())]
    TemplateBusy {
        /// The template folder.
        dir: PathBuf,
        /// How long it was waited for.
        seconds: u64,
    },

    /// The call needs a running server.
    #[error("{name} is not running")]
    NotRunning {
        /// Which server.
        name: &'static str,
    },

    /// The call needs a stopped server.
    #[error("{name} is already running")]
    AlreadyRunning {
        /// Which server.
        name: &'static str,
    },

    /// A server's process is still there after it was killed.
    #[error("{name} did not end within {seconds} s")]
    StillRunning {
        /// Which server.
        name: &'static str,
        /// How long it was waited for.
        seconds: u64,
    },

    /// The operating system refused.
    #[error("{action} {}", path.display())]
    Io {
        /// What was attempted.
        action: &'static str,
        /// On which file or program.
        path: PathBuf,
        /// The refusal.
        source: io::Error,
    },
}

impl ServicesError {
    /// For `map_err`: names the attempt that an I/O error belongs to.
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }
}
