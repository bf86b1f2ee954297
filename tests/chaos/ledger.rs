//! The outer ledger: what tickr answered, written down by those who asked. At the end the tables must agree with it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use uuid::Uuid;

use crate::locked;

/// Most complaints that are kept; after that it is clear that something is wrong.
const MOST_COMPLAINTS: usize = 200;

/// Everything that was said to those outside.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    book: Mutex<Book>,
    aborted: AtomicUsize,
}

#[derive(Debug, Default)]
pub(crate) struct Book {
    /// Ids that were answered with 2xx, with the name that the driver gave the job.
    pub(crate) accepted: BTreeMap<Uuid, String>,
    /// Names of jobs that were refused with 4xx, or never sent at all: they must not exist.
    pub(crate) refused: BTreeSet<String>,
    /// Names of jobs about which nobody knows: the answer did not come, or was a 5xx.
    pub(crate) unknown: BTreeSet<String>,
    /// Jobs with a unique key, which another job may have replaced.
    pub(crate) keyed: BTreeSet<Uuid>,
    /// Jobs whose cancel was asked for, whatever the answer was.
    pub(crate) cancel_asked: BTreeSet<Uuid>,
    /// Jobs whose cancel was answered with 200, and how long the journal was then.
    pub(crate) cancelled: BTreeMap<Uuid, usize>,
    /// Jobs whose cancel was answered with 409: they were over.
    pub(crate) over: BTreeSet<Uuid>,
    /// Jobs that an operator's retry may have given a new life.
    pub(crate) retry_asked: BTreeSet<Uuid>,
    /// Jobs that kill every runner that starts them.
    pub(crate) poison: BTreeSet<String>,
    /// How many answers there were of each status; 0 for those that did not come.
    pub(crate) answers: BTreeMap<u16, usize>,
    /// What was wrong at once.
    pub(crate) complaints: Vec<String>,
}

impl Ledger {
    pub(crate) fn write<T>(&self, note: impl FnOnce(&mut Book) -> T) -> T {
        note(&mut locked(&self.book))
    }

    /// Something that must not happen, happened.
    pub(crate) fn complain(&self, what: String) {
        self.write(|book| {
            if book.complaints.len() < MOST_COMPLAINTS {
                book.complaints.push(what);
            }
        });
    }

    /// A job aborted its runner, as it was asked to.
    pub(crate) fn aborted(&self) {
        self.aborted.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn aborts(&self) -> usize {
        self.aborted.load(Ordering::SeqCst)
    }
}
