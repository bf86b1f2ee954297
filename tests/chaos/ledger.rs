//! The outer ledger: the answers of tickr, recorded by the clients. At the end the tables must agree with it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::locked;
use crate::rates::Rule;

/// Largest number of complaints to keep. With so many, it is clear that something is wrong.
const MAX_COMPLAINTS: usize = 200;

/// Everything that tickr answered to the clients.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    book: Mutex<Book>,
    aborted: AtomicUsize,
}

#[derive(Debug, Default)]
pub(crate) struct Book {
    /// Ids that were answered with 2xx, with the name that the driver gave the job.
    pub(crate) accepted: BTreeMap<Uuid, String>,
    /// Names of jobs that were refused with 4xx, or never sent at all. They must not exist.
    pub(crate) refused: BTreeSet<String>,
    /// Names of jobs with an unknown outcome: there was no answer, or a 5xx.
    pub(crate) unknown: BTreeSet<String>,
    /// Jobs with a unique key, which another job may have replaced.
    pub(crate) keyed: BTreeSet<Uuid>,
    /// Jobs of batches, some of which are cancelled when a parent does not complete.
    pub(crate) children: BTreeSet<Uuid>,
    /// Batches that were accepted, in the order of the answers.
    pub(crate) batches: Vec<Batch>,
    /// Names of the jobs that the ends of accepted batches must have started.
    pub(crate) callbacks: BTreeSet<String>,
    /// Jobs whose cancel was requested, whatever the answer was.
    pub(crate) cancel_asked: BTreeSet<Uuid>,
    /// Jobs whose cancel was answered with 200, and the length of the journal at that time, in lines.
    pub(crate) cancelled: BTreeMap<Uuid, usize>,
    /// Jobs whose cancel was answered with 409, because they had already ended.
    pub(crate) over: BTreeSet<Uuid>,
    /// Jobs that an operator's retry may have started again.
    pub(crate) retry_asked: BTreeSet<Uuid>,
    /// Number of rows of the outbox that were committed, undone and unsure.
    pub(crate) rows: BTreeMap<&'static str, usize>,
    /// Rows of the outbox that cannot become jobs, and whether they are known to be committed.
    pub(crate) unfit_rows: BTreeMap<Uuid, bool>,
    /// Names of jobs that kill every runner that starts them.
    pub(crate) poison: BTreeSet<String>,
    /// Jobs whose success a remote worker reported, with the token of that attempt.
    pub(crate) remote_successes: BTreeMap<Uuid, Uuid>,
    /// Attempts of callbacks whose success was sent with a finish key, and whether it was answered with 200.
    pub(crate) finishes: BTreeMap<(Uuid, Uuid), bool>,
    /// The rules of the rate that were set, in their order.
    pub(crate) rules: Vec<Rule>,
    /// Number of answers by status; 0 stands for requests without an answer.
    pub(crate) answers: BTreeMap<u16, usize>,
    /// Violations that were found during the run.
    pub(crate) complaints: Vec<String>,
}

/// A batch with callbacks that was accepted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Batch {
    pub(crate) id: Uuid,
    /// Its jobs, without the follow-up jobs that join it.
    pub(crate) jobs: Vec<Uuid>,
    /// Names of its callbacks: that of its end, that of its success, and that of a failure.
    pub(crate) callbacks: Vec<String>,
    /// Whether its cancel was requested, whatever the answer was.
    pub(crate) cancel_asked: bool,
    /// Whether an answer said that it is cancelled.
    pub(crate) cancelled: bool,
    /// Whether its retry was requested, whatever the answer was.
    pub(crate) retry_asked: bool,
    /// A moment after a cancel was answered with 200, in the time of MySQL. No job of the batch starts after it.
    pub(crate) still_from: Option<DateTime<Utc>>,
}

impl Ledger {
    pub(crate) fn write<T>(&self, note: impl FnOnce(&mut Book) -> T) -> T {
        note(&mut locked(&self.book))
    }

    /// Record a violation.
    pub(crate) fn complain(&self, what: String) {
        self.write(|book| {
            if book.complaints.len() < MAX_COMPLAINTS {
                book.complaints.push(what);
            }
        });
    }

    /// Count a job that aborted its runner, as its payload requests.
    pub(crate) fn aborted(&self) {
        self.aborted.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn aborts(&self) -> usize {
        self.aborted.load(Ordering::SeqCst)
    }
}
