//! The handlers' own log: a record of the executions that does not depend on tickr. All runners share one file. Each
//! event is one line, appended by a single write. So the order of the lines is the order of the events, even if clocks
//! are wrong and processes are killed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

use uuid::Uuid;

/// The writing end of the journal, in a runner.
pub(crate) struct Journal {
    file: File,
}

impl Journal {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { file: OpenOptions::new().create(true).append(true).open(path)? })
    }

    /// Write that the execution of an attempt begins. The ledger of tickr has no tokens, so the number of the attempt
    /// leads to its row.
    pub(crate) fn write_start(&self, job: Uuid, token: Uuid, attempt: u32) -> io::Result<()> {
        let line = format!("start {job} {token} {} {attempt}\n", std::process::id());
        (&self.file).write_all(line.as_bytes())
    }

    pub(crate) fn write(&self, word: &str, job: Uuid, token: Uuid) -> io::Result<()> {
        let line = format!("{word} {job} {token} {}\n", std::process::id());
        (&self.file).write_all(line.as_bytes())
    }
}

/// One execution of a handler.
#[derive(Debug)]
pub(crate) struct Execution {
    pub(crate) token: Uuid,
    /// Number of the attempt among those that count.
    pub(crate) attempt: u32,
    /// Line number of its start.
    pub(crate) began: usize,
    /// Line number and word of its end; `None` when its process died.
    pub(crate) ended: Option<(usize, String)>,
    /// MySQL had the checkpoint that names the execution.
    pub(crate) saved: bool,
}

/// Everything that the handlers wrote.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// Executions by job, in the order of their starts.
    pub(crate) jobs: BTreeMap<Uuid, Vec<Execution>>,
    /// Jobs and tokens of repeated starts: a token may start its job only once.
    pub(crate) doubled: Vec<(Uuid, Uuid)>,
    /// Ids of processes that a job aborted.
    pub(crate) aborted: BTreeSet<u32>,
    /// Lines that cannot be parsed.
    pub(crate) unreadable: Vec<String>,
}

impl History {
    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        let mut history = Self::default();
        for (at, line) in std::fs::read_to_string(path)?.lines().enumerate() {
            if history.take(at, line).is_none() {
                history.unreadable.push(line.to_owned());
            }
        }
        Ok(history)
    }

    fn take(&mut self, at: usize, line: &str) -> Option<()> {
        let mut words = line.split(' ');
        let (word, job, token) = (words.next()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let process = words.next()?.parse().ok()?;
        let executions = self.jobs.entry(job).or_default();
        let known = executions.iter_mut().find(|execution| execution.token == token);
        match (word, known) {
            ("start", None) => {
                let attempt = words.next()?.parse().ok()?;
                executions.push(Execution { token, attempt, began: at, ended: None, saved: false });
            }
            ("start", Some(_)) => self.doubled.push((job, token)),
            ("saved", Some(execution)) => execution.saved = true,
            (end, Some(execution)) if execution.ended.is_none() => {
                execution.ended = Some((at, end.to_owned()));
                if end == "abort" {
                    self.aborted.insert(process);
                }
            }
            _ => return None,
        }
        Some(())
    }
}

/// Return the current number of lines.
pub(crate) fn lines(path: &Path) -> usize {
    std::fs::read(path).map_or(0, |bytes| bytes.iter().filter(|byte| **byte == b'\n').count())
}
