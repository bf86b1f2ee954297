//! The permissions of an API key.

/// The permissions of an API key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Read everything, change nothing.
    Read,
    /// Enqueue jobs, and read and cancel a job by its id. No listings: a producer need not see the jobs of other
    /// producers.
    Enqueue,
    /// All requests.
    Admin,
    /// Execute jobs as a remote worker: register, fetch, beat, finish. No enqueues, no listings.
    Work,
}
words!(Scope {
    Read => "read",
    Enqueue => "enqueue",
    Admin => "admin",
    Work => "work",
});
