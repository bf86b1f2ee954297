//! What can go wrong between tickr and MySQL, sorted by what a caller can do about it.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

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
    /// MySQL refused, and would refuse again until an operator mends it: a defect in tickr, in the schema, in the account's
    /// privileges or in the server's set-up.
    #[error("{attempted}: {cause}")]
    Refused {
        /// What was attempted.
        attempted: &'static str,
        /// The server's reason.
        cause: String,
    },
    /// MySQL does not take what this row says, and never will: a value that does not fit, or a key that another row has.
    #[error("{attempted}: {cause}")]
    Unfit {
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

/// What MySQL says of a statement for tables of another version.
const NO_SUCH_TABLE: u16 = 1146;
const NO_SUCH_COLUMN: u16 = 1054;

/// What a failed statement asks of us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Deadlock, lock wait, snapshot conflict: roll back and run the whole closure again.
    Again,
    /// The connection or the server is gone or cannot write: take a new connection, then run the closure again.
    Reconnect,
    /// A unique key is taken (1062). Expected in some places, a defect elsewhere.
    Duplicate,
    /// The statement is wrong for this schema, or the account may not run it. It can help to run it again only after an
    /// operator has mended that.
    Refused,
    /// The row itself is wrong: running it again cannot help.
    Unfit,
}

/// Sort a driver error by what to do about it. An error that tickr does not know is an outage: servers, proxies and clusters
/// have many ways to say that they cannot write now, and an outage costs patience where a wrong "never" costs a result.
pub(super) fn fault(error: &sqlx::Error) -> Fault {
    match error {
        sqlx::Error::Database(_) => match number(error) {
            Some(number) => fault_of(number),
            None => Fault::Reconnect,
        },
        sqlx::Error::ColumnDecode { .. }
        | sqlx::Error::Decode(_)
        | sqlx::Error::Encode(_)
        | sqlx::Error::RowNotFound
        | sqlx::Error::TypeNotFound { .. }
        | sqlx::Error::ColumnIndexOutOfBounds { .. }
        | sqlx::Error::ColumnNotFound(_)
        | sqlx::Error::InvalidArgument(_) => Fault::Unfit,
        sqlx::Error::Configuration(_) => Fault::Refused,
        sqlx::Error::AnyDriverError(cause) if cause.is::<MovedOn>() => Fault::Again,
        _ => Fault::Reconnect,
    }
}

/// The number of the server's error.
pub(super) fn number(error: &sqlx::Error) -> Option<u16> {
    error.as_database_error().and_then(|db| db.try_downcast_ref::<MySqlDatabaseError>()).map(MySqlDatabaseError::number)
}

fn fault_of(number: u16) -> Fault {
    match number {
        // Deadlock, lock-wait timeout, "record has changed since last read" (MariaDB ≥ 11.6), lock table full, statement
        // must be prepared again, statement timeouts, rolled back by the cluster.
        1213 | 1205 | 1020 | 1206 | 1615 | 1637 | 1969 | 3024 | 3101 => Fault::Again,
        1062 => Fault::Duplicate,
        // A value that is too long, out of range, of another type, not UTF-8 or null; a CHECK; a foreign key; a row or a
        // packet that is too large for the server.
        1406
        | 1264
        | 1265
        | 1292
        | 1300
        | 1366
        | 1367
        | 1411
        | 1690
        | 1048
        | 1364
        | 1118
        | 1153
        | 1162
        | 3819
        | 4025
        | 1216
        | 1217
        | 1451
        | 1452
        | 3140..=3146 => Fault::Unfit,
        // Syntax, tables and columns that are not there, privileges, variables and functions that the server does not know,
        // a binary log whose format forbids every write.
        1064 | 1065 | 1146 | 1051 | 1052 | 1054 | 1055 | 1072 | 1109 | 1136 | 1142 | 1143 | 1227 | 1370 | 1193
        | 1231 | 1210 | 1222 | 1235 | 1295 | 1305 | 1390 | 1419 | 1665 | 1046 | 1175 | 1176 | 1267 | 1288 | 1060
        | 1061 | 1050 | 1091 => Fault::Refused,
        _ => Fault::Reconnect,
    }
}

/// Outages that servers are known for: too many connections, shutting down, connection killed, Galera without quorum,
/// read-only servers, query interrupted, gone away, lost, disconnected by the server, packets torn, and the server's own disk
/// full or failing.
fn is_known_outage(number: u16) -> bool {
    matches!(
        number,
        1040 | 1203
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
            | 1158..=1161 | 1461 | 3032 | 3169 | 1021 | 1030 | 1041 | 1114 | 1180
    )
}

/// Has the server rolled back for certain, even if it said so in answer to a COMMIT? A deadlock, a lost certification and a lock
/// that was not had leave nothing written; about everything else a later run has to look.
pub(super) fn certainly_rolled_back(error: &sqlx::Error) -> bool {
    match number(error) {
        Some(number) => matches!(number, 1213 | 1205 | 1020 | 1206 | 1615 | 1637 | 3024 | 3101),
        None => matches!(error, sqlx::Error::AnyDriverError(cause) if cause.is::<MovedOn>()),
    }
}

/// Has the server answered with an error that is neither an ordinary outage nor a reason to try again?
pub(super) fn is_unusual(error: &sqlx::Error) -> bool {
    number(error).is_some_and(|number| !is_known_outage(number) && fault_of(number) != Fault::Again)
}

/// Has the server no room for another prepared statement?
pub(super) fn is_out_of_statements(error: &sqlx::Error) -> bool {
    number(error) == Some(1461)
}

/// Would the first connection of a process fail again in the same way, because of what its URL says? A running process waits
/// for such an error to end (a password that is being changed); a start says it at once.
pub(super) fn is_wrong_address(error: &sqlx::Error) -> bool {
    matches!(number(error), Some(1044 | 1045 | 1049 | 1130 | 1698 | 1251))
}

/// Say an outage that is not an ordinary one loudly, and each kind of it once a minute at most.
pub(super) fn tell_outage(attempted: &'static str, error: &sqlx::Error) {
    /// More kinds than this are not told apart.
    const MOST_KINDS: usize = 64;
    static TOLD: Mutex<BTreeMap<u16, Instant>> = Mutex::new(BTreeMap::new());
    let Some(number) = number(error).filter(|number| !is_known_outage(*number)) else { return };
    {
        let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
        told.retain(|_, at| at.elapsed() < Duration::from_secs(60));
        if told.contains_key(&number) || told.len() >= MOST_KINDS {
            return;
        }
        told.insert(number, Instant::now());
    }
    tracing::error!(attempted, number, %error, "mysql cannot be used; tickr goes on trying");
}

/// Did a statement wait for a row lock until its time was over?
pub(super) fn waited_for_lock(error: &sqlx::Error) -> bool {
    number(error) == Some(1205)
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
        let mut cause = error.to_string();
        if let Some(NO_SUCH_TABLE | NO_SUCH_COLUMN) = number(error) {
            cause.push_str("; these are not the tables of this version: run `tickr migrate` or start `tickr serve`, which does it as well");
        }
        match (fault(error), error) {
            (Fault::Again | Fault::Reconnect, _) => Self::Unavailable { attempted, cause },
            (Fault::Unfit, sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_)) => {
                Self::Corrupt { attempted, cause }
            }
            (Fault::Duplicate | Fault::Unfit, _) => Self::Unfit { attempted, cause },
            (Fault::Refused, _) => Self::Refused { attempted, cause },
        }
    }

    /// May the same call succeed later without anybody changing anything?
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Unavailable { .. } | Self::Overloaded { .. } => true,
            Self::Refused { .. } | Self::Unfit { .. } | Self::Corrupt { .. } => false,
        }
    }

    /// Is it about this very row, so that the same write fails for ever and its neighbours' writes do not?
    #[must_use]
    pub const fn is_about_the_row(&self) -> bool {
        matches!(self, Self::Unfit { .. } | Self::Corrupt { .. })
    }
}

/// A value in a row that no version of tickr writes, as a driver error, so that it travels the usual way.
pub(super) fn corrupt(what: impl Into<String>) -> sqlx::Error {
    sqlx::Error::Decode(what.into().into())
}
