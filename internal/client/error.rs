//! [`Error`], the failures of a client.

use std::fmt;

use tickr_broker::Invalid;
use tickr_handlers::Problem;
use tickr_job::{JobId, State};
use tickr_store::StoreError;

/// A call of a [`Client`](super::Client) that failed. [`source`](std::error::Error::source) has the cause.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kind, the payload or an option is not valid. Nothing was written, and the same call fails again.
    #[error("the job is refused: {detail}{}", Listed(problems))]
    Refused {
        /// Summary in one line.
        detail: String,
        /// The single problems, each with a JSON pointer into the job: `/payload/width`, `/priority`.
        problems: Vec<Problem>,
        /// The check that failed. Absent when the API refused the job.
        #[source]
        source: Option<Invalid>,
    },
    /// Another job or another request is in the way. Nothing was written.
    #[error("nothing was written: {0}")]
    Conflict(Conflict),
    /// The servers do not answer, or take no more calls now. A commit whose confirmation was lost may have been made, so
    /// a repetition needs the same idempotency key. A unique key is free again when the job of the first call has
    /// ended.
    #[error("{attempted}: not possible now; try again later")]
    Unavailable {
        /// The action that was attempted.
        attempted: &'static str,
        /// The cause.
        #[source]
        source: Cause,
    },
    /// A statement within a transaction of the caller failed, and MySQL may have rolled all of it back, as it does
    /// after a deadlock. The connection is outside of a transaction then, and each further statement is committed by
    /// itself: also the INSERT of a repeated call. Roll the transaction back, and run all of it again.
    #[error("{attempted}: not possible now; roll the transaction back, and run all of it again")]
    Transaction {
        /// The action that was attempted.
        attempted: &'static str,
        /// The cause.
        #[source]
        source: Cause,
    },
    /// The settings, the account, the tables or the API token do not allow the call. It fails again until an operator has
    /// corrected them.
    #[error("{attempted}: refused by the server or by its settings")]
    Setup {
        /// The action that was attempted.
        attempted: &'static str,
        /// The cause.
        #[source]
        source: Cause,
    },
}

/// The cause of an [`Error`].
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// A job or a request that is in the way of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Conflict {
    /// An unfinished job of the kind has the unique key, and the new job may not replace it.
    UniqueKey {
        /// The unfinished job.
        holder: JobId,
        /// Its state. Absent when the API does not tell it.
        state: Option<State>,
    },
    /// The idempotency key belongs to another request, which was carried out.
    IdempotencyKey,
    /// A request with this idempotency key is under way. Its outcome is not known yet.
    InProgress,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UniqueKey { holder, state: Some(state) } => {
                write!(f, "the unique key is taken by job {holder}, which is {state}")
            }
            Self::UniqueKey { holder, state: None } => write!(f, "the unique key is taken by job {holder}"),
            Self::IdempotencyKey => f.write_str("the idempotency key belongs to another request"),
            Self::InProgress => f.write_str("a request with this idempotency key is under way"),
        }
    }
}

struct Listed<'a>(&'a [Problem]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, problem) in self.0.iter().enumerate() {
            write!(f, "{}{} {}", if place == 0 { ": " } else { "; " }, problem.pointer, problem.detail)?;
        }
        Ok(())
    }
}

impl Error {
    /// Return true if the same call may succeed later without any change. Repeat it with the same idempotency key.
    /// False for [`Transaction`](Self::Transaction): all of the transaction has to be repeated then, and not the call.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::Conflict(Conflict::InProgress))
    }

    /// Return the problems of a refused job. Empty for every other error.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        match self {
            Self::Refused { problems, .. } => problems,
            _ => &[],
        }
    }

    pub(super) fn refused(problem: Problem) -> Self {
        Self::Refused { detail: "the job is not valid".to_owned(), problems: vec![problem], source: None }
    }

    /// Make the error for a draft that did not pass its check. `prefix` points at the job, within a batch.
    pub(super) fn invalid(prefix: &str, invalid: Invalid) -> Self {
        let (below, problems) = match &invalid {
            Invalid::UnknownKind { .. } => ("/kind", vec![Problem::at("", "is not a kind of this runner")]),
            Invalid::Payload { problems, .. } => ("/payload", problems.clone()),
            Invalid::Job { problems } => ("", problems.clone()),
            Invalid::Panicked(_) => ("/payload", vec![Problem::at("", "makes the code of the kind panic")]),
        };
        let here = |problem: Problem| Problem::at(format!("{prefix}{below}{}", problem.pointer), problem.detail);
        Self::Refused {
            detail: invalid.to_string(),
            problems: problems.into_iter().map(here).collect(),
            source: Some(invalid),
        }
    }

    pub(super) fn from_store(attempted: &'static str, error: &StoreError) -> Self {
        let source = Box::new(error.clone());
        if error.is_transient() { Self::Unavailable { attempted, source } } else { Self::Setup { attempted, source } }
    }

    /// Make the error for a statement within a transaction of the caller.
    pub(super) fn within_transaction(attempted: &'static str, error: &StoreError) -> Self {
        match Self::from_store(attempted, error) {
            Self::Unavailable { attempted, source } => Self::Transaction { attempted, source },
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_within_a_transaction_is_no_reason_to_repeat_the_call_alone() {
        let cause = || "deadlock found".to_owned();
        let deadlock = StoreError::Unavailable { attempted: "insert", cause: cause(), source: None };
        assert!(Error::from_store("enqueue", &deadlock).is_transient());
        let error = Error::within_transaction("enqueue", &deadlock);
        assert!(!error.is_transient() && error.to_string().contains("run all of it again"), "{error}");
        let refused = StoreError::Refused { attempted: "insert", cause: cause(), source: None };
        assert!(matches!(Error::within_transaction("enqueue", &refused), Error::Setup { .. }));
    }
}
