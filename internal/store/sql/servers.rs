//! The servers that one `mysql_url` names, and the one of them that is in use.
//!
//! All connections of a process lead to one server at a time. When that one does not answer, or is a replica that takes
//! no writes, the process goes on to the next one in the order of the URL, and stays there until that one fails. So a
//! process never writes to one server and reads from another, which may be behind.

use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::Row;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlRow};

use crate::sql::error::{Fault, fault, number};

/// Read the addresses of the servers in a URL: `mysql://user:password@first:3306,second:3306/database`. Returns nothing
/// if the driver cannot read one of them.
pub(crate) fn read_servers(url: &str) -> Option<Vec<MySqlConnectOptions>> {
    split(url).iter().map(|url| read_server(url)).collect()
}

/// Read the address of the one server in a URL.
pub(crate) fn read_server(url: &str) -> Option<MySqlConnectOptions> {
    let options = MySqlConnectOptions::from_str(url).ok()?;
    // A URL has an IPv6 address in brackets. The driver leaves them, and connects to no such host.
    let bare = options.get_host().strip_prefix('[').and_then(|host| host.strip_suffix(']')).map(str::to_owned);
    Some(match bare {
        Some(host) => options.host(&host),
        None => options,
    })
}

/// Return one URL for each server that the URL names.
fn split(url: &str) -> Vec<String> {
    let Some((scheme, rest)) = url.split_once("://") else { return vec![url.to_owned()] };
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let (account, hosts) = authority.rfind('@').map_or(("", authority), |at| authority.split_at(at + 1));
    hosts.split(',').map(|host| format!("{scheme}://{account}{host}{path}")).collect()
}

/// The servers of one URL.
pub(crate) struct Servers {
    each: Vec<MySqlConnectOptions>,
    /// Number of changes so far, which tells the server in use. A connection knows the turn in which it was opened, so
    /// that a failure that comes late changes nothing.
    turn: AtomicU64,
    seen: Mutex<Seen>,
    /// Held by the one that settles a doubt.
    pub(crate) doubt: tokio::sync::Mutex<()>,
}

/// What the connections of this process have seen of the servers.
#[derive(Default)]
struct Seen {
    /// The turn whose server was told last.
    told: u64,
    /// Why the server of that turn was left.
    why: Option<String>,
    /// The turn of the last answer, and its time.
    answered: Option<(u64, Instant)>,
    /// The turn in which a server proved that it takes writes, and the time.
    proved: Option<(u64, Instant)>,
}

impl Servers {
    pub(crate) fn new(each: Vec<MySqlConnectOptions>) -> Self {
        Self { each, turn: AtomicU64::new(0), seen: Mutex::default(), doubt: tokio::sync::Mutex::new(()) }
    }

    pub(crate) fn len(&self) -> usize {
        self.each.len()
    }

    /// Return whether there is another server to go to.
    pub(crate) fn are_many(&self) -> bool {
        self.each.len() > 1
    }

    /// Return the present turn.
    pub(crate) fn turn(&self) -> u64 {
        self.turn.load(Ordering::Relaxed)
    }

    /// Return the address of the server of this turn.
    pub(crate) fn options(&self, turn: u64) -> &MySqlConnectOptions {
        let place = usize::try_from(turn % self.each.len() as u64).unwrap_or_default();
        &self.each[place]
    }

    /// Go on to the next server, if this turn is the present one.
    pub(crate) fn leave(&self, turn: u64, error: &sqlx::Error) {
        if !self.are_many() {
            return;
        }
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if self.turn.compare_exchange(turn, turn + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            tracing::debug!(left = %self.name(turn), next = %self.name(turn + 1), %error, "mysql cannot be used there");
            if seen.told == turn {
                seen.why = Some(error.to_string());
            }
        }
    }

    /// Note that the server of this turn answered and takes writes. Tell it when it is another one than before.
    pub(crate) fn answered(&self, turn: u64) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if self.turn() != turn {
            return;
        }
        seen.answered = Some((turn, Instant::now()));
        let before = std::mem::replace(&mut seen.told, turn);
        if before == turn {
            return;
        }
        let why = seen.why.take().unwrap_or_default();
        drop(seen);
        // After a round through all servers it may be the same one.
        if self.name(before) != self.name(turn) {
            metrics::counter!("tickr_store_server_changes_total").increment(1);
            tracing::warn!(now = %self.name(turn), before = %self.name(before), why, "another mysql server is in use");
        }
    }

    /// Note that the server of this turn carried out a write on a new connection.
    pub(crate) fn proved(&self, turn: u64) {
        self.answered(turn);
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).proved = Some((turn, Instant::now()));
    }

    /// Return whether the server of this turn answered within this time.
    pub(crate) fn answered_within(&self, turn: u64, time: Duration) -> bool {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.answered.is_some_and(|(of, at)| of == turn && at.elapsed() < time)
    }

    /// Return whether the server of this turn proved within this time that it takes writes.
    pub(crate) fn proved_within(&self, turn: u64, time: Duration) -> bool {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.proved.is_some_and(|(of, at)| of == turn && at.elapsed() < time)
    }

    /// Return the host and port of the server of a turn.
    fn name(&self, turn: u64) -> String {
        let options = self.options(turn);
        let (host, port) = (options.get_host(), options.get_port());
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

/// The reason why a server that answers cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct OfNoUse(&'static str);

/// Make the error for a server that answers and cannot be used.
pub(crate) fn of_no_use(why: &'static str) -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::other(OfNoUse(why)))
}

fn says_of_no_use(error: &std::io::Error) -> bool {
    match error.get_ref() {
        Some(cause) => cause.is::<OfNoUse>(),
        None => false,
    }
}

/// The reason of a server that takes no writes.
pub(crate) const READ_ONLY: &str = "the server is read-only, so it is a replica of another one";

/// Check that a server takes writes.
pub(crate) async fn check_writable(conn: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    let sql = "SELECT CAST(@@GLOBAL.read_only AS CHAR), CAST(@@GLOBAL.innodb_read_only AS CHAR)";
    let row = sqlx::raw_sql(sql).fetch_one(conn).await?;
    if takes_writes(&row, 0)? { Ok(()) } else { Err(of_no_use(READ_ONLY)) }
}

/// Return whether a server takes writes, from its `read_only` and `innodb_read_only` in two columns from `first` on. Some
/// managed replicas set the second one alone. MySQL sets the first one with `super_read_only`.
pub(crate) fn takes_writes(row: &MySqlRow, first: usize) -> Result<bool, sqlx::Error> {
    let is_off_at = |column: usize| row.try_get::<String, _>(column).map(|text| is_off(&text));
    Ok(is_off_at(first)? && is_off_at(first + 1)?)
}

/// Return whether the value of a setting means off. MariaDB 12 has words where other servers have a number.
pub(crate) fn is_off(text: &str) -> bool {
    text == "0" || text.eq_ignore_ascii_case("OFF")
}

/// Check that a server is part of its Galera cluster, if it is a node of one. A node that is not answers questions about
/// itself, and refuses every statement about a table (its error 1047).
pub(crate) async fn check_member(conn: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    let ready = sqlx::raw_sql("SHOW STATUS LIKE 'wsrep_ready'").fetch_optional(&mut *conn).await?;
    // A server that was built with Galera and runs without it has this value too, and says OFF.
    let wsrep = sqlx::raw_sql("SHOW VARIABLES LIKE 'wsrep_on'").fetch_optional(conn).await?;
    let is = |row: Option<MySqlRow>, word: &str| -> Result<bool, sqlx::Error> {
        let Some(row) = row else { return Ok(false) };
        Ok(row.try_get::<String, _>(1)?.eq_ignore_ascii_case(word))
    };
    if is(wsrep, "ON")? && is(ready, "OFF")? {
        return Err(of_no_use("the server is not in its cluster, or the cluster has no quorum"));
    }
    Ok(())
}

/// What an error says about the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blame {
    /// Nothing: it is about one statement or one connection.
    None,
    /// The server may be unable to work, or may be slow, or have an answer of its own for one statement.
    Doubtful,
    /// The server cannot work now.
    Certain,
}

/// Return what the error of a statement says about the server.
pub(crate) fn blame(error: &sqlx::Error) -> Blame {
    match error {
        sqlx::Error::Io(io) if says_of_no_use(io) => Blame::Certain,
        sqlx::Error::Io(io) if io.kind() == std::io::ErrorKind::TimedOut => Blame::Doubtful,
        sqlx::Error::PoolTimedOut => Blame::Doubtful,
        sqlx::Error::Database(_) => match number(error) {
            // Outside its cluster, shutting down, read-only, offline.
            Some(1047 | 1053 | 1290 | 1836 | 3032) => Blame::Certain,
            // No room for a prepared statement, a killed statement, a killed connection.
            Some(1461 | 1317 | 1927) => Blame::None,
            _ if fault(error) == Fault::Reconnect => Blame::Doubtful,
            _ => Blame::None,
        },
        _ => Blame::None,
    }
}

/// Return what an error says about the server to which a connection could not be opened. `answered` says whether other
/// connections to it work: then it may have no room for one more, or another password already.
pub(crate) fn blame_at_opening(error: &sqlx::Error, answered: bool) -> Blame {
    match (error, blame(error)) {
        (sqlx::Error::PoolTimedOut, _) => Blame::Doubtful,
        (sqlx::Error::PoolClosed, _) => Blame::None,
        (_, Blame::Certain) => Blame::Certain,
        (sqlx::Error::Database(_), _) if answered => Blame::None,
        _ => Blame::Certain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_of_a_url_has_the_account_the_database_and_the_parameters() {
        let query = "tickr?ssl-mode=REQUIRED";
        assert_eq!(
            split(&format!("mysql://u:p%40@a:1,[::1]:2,c/{query}")),
            ["a:1", "[::1]:2", "c"].map(|host| format!("mysql://u:p%40@{host}/{query}"))
        );
        for url in ["mysql://root@localhost/t?socket=/run/a,b.sock", "mysql:///t?socket=/run/m.sock", "mysql://a/b"] {
            assert_eq!(split(url), [url]);
        }
    }

    #[test]
    fn an_ipv6_address_of_a_url_loses_its_brackets_and_is_told_with_them() {
        let each = read_servers("mysql://u@[::1]:2,[fd00::2],a/t").unwrap();
        let hosts: Vec<_> = each.iter().map(MySqlConnectOptions::get_host).collect();
        assert_eq!(hosts, ["::1", "fd00::2", "a"]);
        let servers = Servers::new(each);
        assert_eq!([0, 1, 2].map(|turn| servers.name(turn)), ["[::1]:2", "[fd00::2]:3306", "a:3306"]);
    }

    #[test]
    fn the_servers_are_used_in_turn_and_a_failure_that_comes_late_leaves_none() {
        let servers = Servers::new(read_servers("mysql://u@a,b/t").unwrap());
        let error = sqlx::Error::PoolTimedOut;
        servers.leave(0, &error);
        servers.leave(0, &error);
        assert_eq!((servers.turn(), servers.name(servers.turn()).as_str()), (1, "b:3306"));
        servers.leave(1, &error);
        assert_eq!(servers.name(servers.turn()), "a:3306");
        // The first server is in use again. This failure is from before.
        servers.leave(0, &error);
        assert_eq!(servers.name(servers.turn()), "a:3306");
    }

    #[test]
    fn an_answer_counts_for_its_turn_alone() {
        let servers = Servers::new(read_servers("mysql://u@a,b/t").unwrap());
        servers.answered(0);
        assert!(servers.answered_within(0, Duration::from_secs(60)));
        servers.leave(0, &sqlx::Error::PoolTimedOut);
        servers.answered(0);
        assert!(!servers.answered_within(1, Duration::from_secs(60)));
        assert!(!servers.proved_within(1, Duration::from_secs(60)));
    }
}
