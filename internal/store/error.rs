//! What can go wrong between tickr and MySQL, sorted by what a caller can do about it.

use sqlx::mysql::MySqlDatabaseError;

/// A failed call to the store. Texts name what was attempted and the server's own short reason; they may be logged but
/// never reach an HTTP answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// MySQL cannot be reached or cannot write now. Nothing is known to be written; trying again later is right.
    #[error("{attempted}: mysql is unavailable: {cause}")]
    Unavailable {
        /// What was attempted.
        attempted: &'static str,
        /// The last reason seen.
        cause: String,
    },
    /// More calls are in flight than the store takes; try again later.
    #[error("{attempted}: too many calls in flight")]
    Overloaded {
        /// What was attempted.
        attempted: &'static str,
    },
    /// MySQL refused, and would refuse again: a defect in tickr, in the schema or in the server's set-up.
    #[error("{attempted}: {cause}")]
    Refused {
        /// What was attempted.
        attempted: &'static str,
        /// The server's reason.
        cause: String,
    },
    /// A row says something that no version of tickr writes.
    #[error("{attempted}: unreadable row: {cause}")]
    Corrupt {
        /// What was attempted.
        attempted: &'static str,
        /// What could not be read.
        cause: String,
    },
}

/// What a failed statement asks of us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Deadlock, lock wait, snapshot conflict: roll back and run the whole closure again.
    Again,
    /// The connection or the server is gone or cannot write: take a new connection, then run the closure again.
    Reconnect,
    /// A unique key is taken (1062). Expected in some places, a defect elsewhere.
    Duplicate,
    /// Running it again cannot help.
    Final,
}

/// Sort a driver error by what to do about it.
pub(super) fn fault(error: &sqlx::Error) -> Fault {
    match error {
        sqlx::Error::Database(db) => {
            let Some(mysql) = db.try_downcast_ref::<MySqlDatabaseError>() else { return Fault::Final };
            match mysql.number() {
                // Deadlock, lock-wait timeout, "record has changed since last read" (MariaDB ≥ 11.6), lock table full,
                // statement must be prepared again, statement timeouts, rolled back by the cluster.
                1213 | 1205 | 1020 | 1206 | 1615 | 1637 | 1969 | 3024 | 3101 => Fault::Again,
                1062 => Fault::Duplicate,
                // Too many connections, shutting down, connection killed, Galera without quorum, read-only servers,
                // query interrupted, gone away, lost, disconnected by the server, packets torn, too many prepared
                // statements, and the server's own disk full or failing, which somebody will mend.
                1040
                | 1203
                | 1226
                | 1053
                | 1077
                | 1079
                | 1927
                | 1047
                | 1290
                | 1836
                | 1792
                | 1317
                | 2002
                | 2003
                | 2006
                | 2013
                | 4031
                | 1153
                | 1158..=1161
                | 1461
                | 3032
                | 3169
                | 1021
                | 1030
                | 1041
                | 1114
                | 1180 => Fault::Reconnect,
                _ => Fault::Final,
            }
        }
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed => Fault::Reconnect,
        sqlx::Error::AnyDriverError(cause) if cause.is::<MovedOn>() => Fault::Again,
        _ => Fault::Final,
    }
}

/// Did a statement wait for a row lock until its time was over?
pub(super) fn waited_for_lock(error: &sqlx::Error) -> bool {
    let database = error.as_database_error().and_then(|db| db.try_downcast_ref::<MySqlDatabaseError>());
    database.is_some_and(|mysql| mysql.number() == 1205)
}

/// What a closure read at its beginning has changed: roll back and run the whole closure again.
pub(super) fn again(what: &'static str) -> sqlx::Error {
    sqlx::Error::AnyDriverError(Box::new(MovedOn(what)))
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct MovedOn(&'static str);

impl StoreError {
    /// The error for a caller, of a driver error that will not be retried any more.
    pub(super) fn from_driver(attempted: &'static str, error: &sqlx::Error) -> Self {
        let cause = error.to_string();
        match (fault(error), error) {
            (Fault::Again | Fault::Reconnect, _) => Self::Unavailable { attempted, cause },
            (Fault::Final, sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_)) => {
                Self::Corrupt { attempted, cause }
            }
            (Fault::Duplicate | Fault::Final, _) => Self::Refused { attempted, cause },
        }
    }

    /// May the same call succeed later without anybody changing anything?
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Unavailable { .. } | Self::Overloaded { .. } => true,
            Self::Refused { .. } | Self::Corrupt { .. } => false,
        }
    }
}

/// A value in a row that no version of tickr writes, as a driver error, so that it travels the usual way.
pub(super) fn corrupt(what: impl Into<String>) -> sqlx::Error {
    sqlx::Error::Decode(what.into().into())
}
