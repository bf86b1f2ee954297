//! Errors between tickr and MySQL, sorted by what a caller can do about them.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::mysql::MySqlDatabaseError;

/// A failed call to the store. The texts name what was attempted and the short reason of the server. They may be
/// logged, but they are never part of an HTTP response.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// MySQL cannot be reached or cannot write now. A write may or may not have been committed. The caller can try
    /// again later.
    #[error("{attempted}: mysql is unavailable: {cause}")]
    Unavailable {
        /// The action that was attempted.
        attempted: &'static str,
        /// The last error that was seen.
        cause: String,
        /// The error below, if there is one.
        #[source]
        source: Option<ServerError>,
    },
    /// Too many calls are in flight. The caller can try again later.
    #[error("{attempted}: too many calls in flight")]
    Overloaded {
        /// The action that was attempted.
        attempted: &'static str,
    },
    /// MySQL refused the statement, and will refuse it until an operator corrects the cause: a defect in tickr, the
    /// schema, the privileges of the account or the set-up of the server.
    #[error("{attempted}: {cause}")]
    Refused {
        /// The action that was attempted.
        attempted: &'static str,
        /// The reason of the server.
        cause: String,
        /// The error below, if there is one.
        #[source]
        source: Option<ServerError>,
    },
    /// MySQL will never accept this row: a value does not fit, or another row has its unique value.
    #[error("{attempted}: {cause}")]
    Unfit {
        /// The action that was attempted.
        attempted: &'static str,
        /// The reason of the server.
        cause: String,
        /// The error below, if there is one.
        #[source]
        source: Option<ServerError>,
    },
    /// A row contains a value that no version of tickr writes.
    #[error("{attempted}: unreadable row: {cause}")]
    Corrupt {
        /// The action that was attempted.
        attempted: &'static str,
        /// The unreadable value.
        cause: String,
        /// The error below, if there is one.
        #[source]
        source: Option<ServerError>,
    },
}

/// The error of MySQL, or of the driver, below a [`StoreError`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ServerError {
    /// The number of MySQL's error. Absent when the server did not answer with one.
    pub number: Option<u16>,
    message: String,
}

/// The server's errors for a statement that was written for tables of another version.
const NO_SUCH_TABLE: u16 = 1146;
const NO_SUCH_COLUMN: u16 = 1054;

/// The reaction to a failed statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A deadlock, a lock wait or a snapshot conflict: roll back and run the whole closure again.
    Again,
    /// The connection or the server is gone or cannot write: open a new connection, then run the closure again.
    Reconnect,
    /// A unique value is taken (1062). Some callers expect this; for the others it is a defect.
    Duplicate,
    /// The statement is wrong for this schema, or the account may not run it. Another run only helps after an operator
    /// has corrected the cause.
    Refused,
    /// The row itself is wrong: another run cannot help.
    Unfit,
}

/// Classify a driver error. An unknown error counts as an outage, because servers, proxies and clusters have many ways
/// to say that they cannot write now. An error that is wrongly taken for an outage costs only time, and one that is
/// wrongly taken for permanent loses a result.
pub(crate) fn fault(error: &sqlx::Error) -> Fault {
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

/// Return the number of the server's error.
pub(crate) fn number(error: &sqlx::Error) -> Option<u16> {
    error.as_database_error().and_then(|db| db.try_downcast_ref::<MySqlDatabaseError>()).map(MySqlDatabaseError::number)
}

fn fault_of(number: u16) -> Fault {
    match number {
        // Deadlock, lock-wait timeout, lock not free at once (MySQL; MariaDB answers 1205), "record has changed since
        // last read" (MariaDB ≥ 11.6), lock table full, statement must be prepared again, statement timeouts, rollback
        // by the cluster.
        1213 | 1205 | 3572 | 1020 | 1206 | 1615 | 1637 | 1969 | 3024 | 3101 => Fault::Again,
        1062 => Fault::Duplicate,
        // A value that is too long, out of range, of a wrong type, not UTF-8 or null; a CHECK; a foreign key; a row or
        // a packet that is too large for the server.
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
        // Wrong syntax, missing tables and columns, missing privileges, variables and functions that the server does
        // not know, and a binary log format that forbids every write.
        1064 | 1065 | 1146 | 1051 | 1052 | 1054 | 1055 | 1072 | 1109 | 1136 | 1142 | 1143 | 1227 | 1370 | 1193
        | 1231 | 1210 | 1222 | 1235 | 1295 | 1305 | 1390 | 1419 | 1665 | 1046 | 1175 | 1176 | 1267 | 1288 | 1060
        | 1061 | 1050 | 1091 => Fault::Refused,
        _ => Fault::Reconnect,
    }
}

/// Outages that servers are known for: too many connections, shutdown, killed connection, Galera without quorum,
/// read-only server, interrupted query, server gone away, lost connection, disconnected by the server, broken packets,
/// and a full or failing disk of the server.
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

/// Return true if the server has certainly rolled the transaction back, even when the error is the answer to a COMMIT.
/// A deadlock, a failed certification and a lock that was not granted write nothing. After any other error, a later run
/// has to check what was written.
pub(crate) fn certainly_rolled_back(error: &sqlx::Error) -> bool {
    match number(error) {
        Some(number) => matches!(number, 1213 | 1205 | 3572 | 1020 | 1206 | 1615 | 1637 | 3024 | 3101),
        None => matches!(error, sqlx::Error::AnyDriverError(cause) if cause.is::<MovedOn>()),
    }
}

/// Return true if the server answered with an error that is neither an ordinary outage nor a reason to retry.
pub(crate) fn is_unusual(error: &sqlx::Error) -> bool {
    number(error).is_some_and(|number| !is_known_outage(number) && fault_of(number) != Fault::Again)
}

/// Return true if the account may not run the statement: no right in the database, on the table, on a column, a global
/// right, or a right on a routine.
pub(crate) fn lacks_right(error: &sqlx::Error) -> bool {
    matches!(number(error), Some(1044 | 1142 | 1143 | 1227 | 1370))
}

/// Return true if the server takes no writes, as a replica and a demoted primary do.
pub(crate) fn is_read_only(error: &sqlx::Error) -> bool {
    matches!(number(error), Some(1290 | 1836))
}

/// Return true if the server has no room on its disk for what the statement writes.
pub(crate) fn lacks_room(error: &sqlx::Error) -> bool {
    let said = error.as_database_error().and_then(|db| db.try_downcast_ref::<MySqlDatabaseError>());
    said.is_some_and(|said| says_no_room(said.number(), said.message()))
}

fn says_no_room(number: u16, message: &str) -> bool {
    // A temporary table has a place of its own, and room for other writes may be left.
    let is_temporary = ["#sql", "(temporary)"].iter().any(|mark| message.contains(mark));
    match number {
        // The disk is full, and the table is full.
        1021 | 1114 => !is_temporary,
        // An error of the storage engine with the number that the operating system gave it.
        1030 => message.contains("error 28") && !is_temporary,
        _ => false,
    }
}

/// Return true if the server has no room for another prepared statement.
pub(crate) fn is_out_of_statements(error: &sqlx::Error) -> bool {
    number(error) == Some(1461)
}

/// Return true if the first connection of a process would fail in the same way again, because of its URL. A running
/// process waits for the end of such an error (a password that is being changed); a process that starts reports it at
/// once.
pub(crate) fn is_wrong_address(error: &sqlx::Error) -> bool {
    matches!(number(error), Some(1044 | 1045 | 1049 | 1130 | 1698 | 1251))
}

/// Log an outage of an unusual kind as an error, each kind at most once a minute.
pub(crate) fn tell_outage(attempted: &'static str, error: &sqlx::Error) {
    /// Kinds that are logged in one minute at most.
    const MAX_KINDS: usize = 64;
    static TOLD: Mutex<BTreeMap<u16, Instant>> = Mutex::new(BTreeMap::new());
    let Some(number) = number(error).filter(|number| !is_known_outage(*number)) else { return };
    {
        let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
        told.retain(|_, at| at.elapsed() < Duration::from_secs(60));
        if told.contains_key(&number) || told.len() >= MAX_KINDS {
            return;
        }
        told.insert(number, Instant::now());
    }
    tracing::error!(attempted, number, %error, "mysql cannot be used; tickr keeps trying");
}

/// Return true if a statement waited for a row lock until its timeout.
pub(crate) fn waited_for_lock(error: &sqlx::Error) -> bool {
    number(error) == Some(1205)
}

/// Return true if another session has the lock for which a statement does not wait (MariaDB answers as after a wait).
pub(crate) fn is_locked_elsewhere(error: &sqlx::Error) -> bool {
    matches!(number(error), Some(1205 | 3572))
}

/// The error of a closure whose first reads are out of date: roll back and run the whole closure again.
pub(crate) fn again(what: &'static str) -> sqlx::Error {
    sqlx::Error::AnyDriverError(Box::new(MovedOn(what)))
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct MovedOn(&'static str);

impl StoreError {
    /// Make the caller's error from a driver error that will not be retried any more.
    pub(crate) fn from_driver(attempted: &'static str, error: &sqlx::Error) -> Self {
        let mut cause = error.to_string();
        let source = Some(ServerError { number: number(error), message: cause.clone() });
        if let Some(NO_SUCH_TABLE | NO_SUCH_COLUMN) = number(error) {
            cause.push_str("; the tables do not match this version of tickr: run `tickr migrate`, or start `tickr serve`, which migrates as well");
        }
        match (fault(error), error) {
            (Fault::Again | Fault::Reconnect, _) => Self::Unavailable { attempted, cause, source },
            (Fault::Unfit, sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_)) => {
                Self::Corrupt { attempted, cause, source }
            }
            (Fault::Duplicate | Fault::Unfit, _) => Self::Unfit { attempted, cause, source },
            (Fault::Refused, _) => Self::Refused { attempted, cause, source },
        }
    }

    /// Make the error for a server that cannot be used as it is, without an error of the driver.
    pub(crate) fn refused(attempted: &'static str, cause: impl Into<String>) -> Self {
        Self::Refused { attempted, cause: cause.into(), source: None }
    }

    /// Make the error for a call that may succeed later, without an error of the driver.
    pub(crate) fn unavailable(attempted: &'static str, cause: &str) -> Self {
        Self::Unavailable { attempted, cause: cause.to_owned(), source: None }
    }

    /// Make the error for a value that no version of tickr writes.
    #[must_use]
    pub fn corrupt(attempted: &'static str, cause: &str) -> Self {
        Self::Corrupt { attempted, cause: cause.to_owned(), source: None }
    }

    /// Return true if the same call may succeed later without any change by an operator.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Unavailable { .. } | Self::Overloaded { .. } => true,
            Self::Refused { .. } | Self::Unfit { .. } | Self::Corrupt { .. } => false,
        }
    }

    /// Return true if a table of the statement does not exist, as before the first migration.
    #[must_use]
    pub fn lacks_table(&self) -> bool {
        matches!(self, Self::Refused { source: Some(source), .. } if source.number == Some(NO_SUCH_TABLE))
    }

    /// Return true if the error is about this row alone: the same write fails every time, and writes of other rows do
    /// not.
    #[must_use]
    pub const fn is_about_the_row(&self) -> bool {
        matches!(self, Self::Unfit { .. } | Self::Corrupt { .. })
    }
}

/// Report a value that no version of tickr writes as a driver error, so that it takes the same way as the other errors
/// of a statement.
pub(crate) fn corrupt(what: impl Into<String>) -> sqlx::Error {
    sqlx::Error::Decode(what.into().into())
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn an_error_is_final_only_if_it_is_known_to_be_about_the_row() {
        let all = |numbers: &[u16], wanted: Fault| {
            for number in numbers {
                assert_eq!(fault_of(*number), wanted, "{number}");
            }
        };
        // Refused connections: passwords, hosts, databases, accounts, and the room for connections.
        all(&[1044, 1045, 1130, 1129, 1049, 1698, 1251, 1040, 1203, 1226], Fault::Reconnect);
        // Proxies and clusters without a server, a lost quorum, full disks, read-only servers, and unknown numbers.
        all(&[9001, 9002, 1105, 3100, 1047, 1026, 1598, 1021, 1114, 1290, 1836, 0, u16::MAX], Fault::Reconnect);
        all(&[1213, 1205, 3572, 1020], Fault::Again);
        all(&[1062], Fault::Duplicate);
        all(&[1406, 1264, 1366, 1048, 1153, 3140, 3819, 4025, 1452], Fault::Unfit);
        all(&[1064, 1146, 1054, 1142, 1143], Fault::Refused);
    }

    #[test]
    fn a_full_disk_is_told_from_a_full_temporary_table_and_from_other_errors() {
        for (number, message) in [
            (1021, "Disk full (jobs); waiting for someone to free some space... (errno: 28)"),
            (1114, "The table 'attempts' is full"),
            (1030, "Got error 28 \"No space left on device\" from storage engine InnoDB"),
            (1030, "Got error 28 - 'No space left on device' from storage engine"),
        ] {
            assert!(says_no_room(number, message), "{number} {message}");
        }
        for (number, message) in [
            (1114, "The table '/tmp/#sql1a2b_3_4' is full"),
            (1114, "The table '(temporary)' is full"),
            (1021, "Disk full (/tmp/#sql_1a2b_0.MAI); waiting for someone to free some space..."),
            (1030, "Got error 168 - 'Unknown (generic) error from engine' from storage engine"),
            (1290, "The MariaDB server is running with the --read-only option"),
        ] {
            assert!(!says_no_room(number, message), "{number} {message}");
        }
    }

    #[test]
    fn an_error_of_the_driver_is_the_source_of_the_stores_error() {
        let broken = sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into());
        let error = StoreError::from_driver("read a job", &broken);
        assert!(error.is_transient());
        let below = error.source().and_then(|source| source.downcast_ref::<ServerError>()).unwrap();
        assert_eq!((below.number, below.to_string()), (None, broken.to_string()));
        let own = [StoreError::refused("a", "b"), StoreError::unavailable("a", "b"), StoreError::corrupt("a", "b")];
        assert!(own.iter().all(|error| error.source().is_none()));
    }
}
