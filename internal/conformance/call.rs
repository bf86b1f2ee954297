//! The calls of the protocol, and the record of each one that a client made.

use std::fmt;
use std::time::Instant;

/// A call of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Register,
    Fetch,
    Beat,
    Finish,
    Leave,
    Enqueue,
    Other,
}

impl Call {
    /// Return the call of a request, and the worker in its path.
    pub(crate) fn of(method: &str, path: &str) -> (Self, String) {
        let path = path.split(['?', '#']).next().unwrap_or_default();
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        match (method, parts.as_slice()) {
            ("POST", ["v1", "workers"]) => (Self::Register, String::new()),
            ("POST", ["v1", "workers", id, "fetch"]) => (Self::Fetch, (*id).to_owned()),
            ("POST", ["v1", "workers", id, "beat"]) => (Self::Beat, (*id).to_owned()),
            ("POST", ["v1", "workers", id, "finish"]) => (Self::Finish, (*id).to_owned()),
            ("DELETE", ["v1", "workers", id]) => (Self::Leave, (*id).to_owned()),
            ("POST", ["v1", "jobs"]) => (Self::Enqueue, String::new()),
            _ => (Self::Other, String::new()),
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Register => "register",
            Self::Fetch => "fetch",
            Self::Beat => "beat",
            Self::Finish => "finish",
            Self::Leave => "leave",
            Self::Enqueue => "enqueue",
            Self::Other => "other",
        })
    }
}

/// A request and its answer.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    pub(crate) call: Call,
    /// Index of the address that it was sent to.
    pub(crate) server: usize,
    pub(crate) at: Instant,
    /// Method, path and body, for people.
    pub(crate) request: String,
    /// Status of the answer, once it was written whole.
    pub(crate) status: Option<u16>,
    /// Time at which the answer was written.
    pub(crate) answered_at: Option<Instant>,
    /// The answer, or the fault in its place, for people.
    pub(crate) answer: String,
}

/// A fault that the kit makes on purpose.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) call: Call,
    /// Index of the address, or any.
    pub(crate) server: Option<usize>,
    /// Number of times.
    pub(crate) times: usize,
    pub(crate) action: Action,
}

impl Fault {
    pub(crate) const fn new(call: Call, times: usize, action: Action) -> Self {
        Self { call, server: None, times, action }
    }

    pub(crate) const fn at(mut self, server: usize) -> Self {
        self.server = Some(server);
        self
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// Do the call, and close the connection without an answer.
    CutBefore,
    /// Do the call, and close the connection in the middle of the answer.
    CutInside,
    /// Do the call, and answer after a time.
    Slow(std::time::Duration),
    /// Do the call, and keep the answer on its way for so long that it counts as lost.
    Late(std::time::Duration),
    /// Neither do the call nor answer.
    NoAnswer,
    /// Do nothing, and answer with this status.
    Status(u16, Option<u32>),
    /// Do nothing, and answer with the error page of a load balancer.
    Page,
}

impl Action {
    /// Return whether the kit does the call first. For a request for jobs such a fault waits until there are jobs.
    pub(crate) const fn comes_after(&self) -> bool {
        matches!(self, Self::CutBefore | Self::CutInside | Self::Slow(_) | Self::Late(_))
    }
}
