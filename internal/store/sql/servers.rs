//! The servers that one `mysql_url` names, and the one of them that is in use.
//!
//! All connections of a process lead to one server at a time. When that one does not answer, or is a replica that takes
//! no writes, the process goes on to the next one in the order of the URL, and stays there until that one fails. So a
//! process never writes to one server and reads from another, which may be behind.

use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use sqlx::Row;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlRow};

use crate::sql::error::{Fault, fault};

/// Read the addresses of the servers in a URL: `mysql://user:password@first:3306,second:3306/database`. Returns nothing
/// if the driver cannot read one of them.
pub(crate) fn read_servers(url: &str) -> Option<Vec<MySqlConnectOptions>> {
    split(url).iter().map(|url| MySqlConnectOptions::from_str(url).ok()).collect()
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
    in_use: AtomicUsize,
    /// The server that answered last, and why the one before it was left.
    answered: Mutex<(usize, Option<String>)>,
}

impl Servers {
    pub(crate) fn new(each: Vec<MySqlConnectOptions>) -> Self {
        Self { each, in_use: AtomicUsize::new(0), answered: Mutex::new((0, None)) }
    }

    pub(crate) fn len(&self) -> usize {
        self.each.len()
    }

    /// Return whether there is another server to go to.
    pub(crate) fn are_many(&self) -> bool {
        self.each.len() > 1
    }

    /// Return the number of the server that is in use.
    pub(crate) fn in_use(&self) -> usize {
        self.in_use.load(Ordering::Relaxed)
    }

    /// Return the number and the address of the server that is in use.
    pub(crate) fn options(&self) -> (usize, &MySqlConnectOptions) {
        let server = self.in_use();
        (server, &self.each[server])
    }

    /// Go on to the next server, unless another connection has done so.
    pub(crate) fn leave(&self, server: usize, error: &sqlx::Error) {
        if !self.are_many() {
            return;
        }
        let next = (server + 1) % self.each.len();
        if self.in_use.compare_exchange(server, next, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            tracing::debug!(left = %self.name(server), next = %self.name(next), %error, "mysql cannot be used there");
            let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
            if answered.0 == server {
                answered.1 = Some(error.to_string());
            }
        }
    }

    /// Note that a server answered and takes writes. Tell it when it is another one than before.
    pub(crate) fn answered(&self, server: usize) {
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, why) = std::mem::replace(&mut *answered, (server, None));
        drop(answered);
        if before != server {
            metrics::counter!("tickr_store_server_changes_total").increment(1);
            let why = why.unwrap_or_default();
            tracing::warn!(now = %self.name(server), before = %self.name(before), why, "another mysql server is in use");
        }
    }

    /// Return the host and port of a server.
    fn name(&self, server: usize) -> String {
        let options = &self.each[server];
        format!("{}:{}", options.get_host(), options.get_port())
    }
}

/// Check that a server takes writes.
pub(crate) async fn check_writable(conn: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    // MariaDB 12 has words for this setting where other servers have a number.
    let sql = "SELECT CAST(@@GLOBAL.read_only AS CHAR)";
    let read_only: String = sqlx::raw_sql(sql).fetch_one(conn).await?.try_get(0)?;
    if read_only == "0" || read_only.eq_ignore_ascii_case("OFF") {
        return Ok(());
    }
    Err(sqlx::Error::Io(std::io::Error::other("the server is read-only, so it is a replica of another one")))
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
        return Err(sqlx::Error::Io(std::io::Error::other(
            "the server is not in its cluster, or the cluster has no quorum",
        )));
    }
    Ok(())
}

/// Return whether a server that answers has said that it cannot work now, or has said nothing for too long. Then another
/// one may be able to.
pub(crate) fn is_of_no_use(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(_) => fault(error) == Fault::Reconnect,
        sqlx::Error::Io(io) => io.kind() == std::io::ErrorKind::TimedOut,
        _ => false,
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
    fn the_servers_are_used_in_turn_and_one_failure_seen_twice_leaves_one_server() {
        let servers = Servers::new(read_servers("mysql://u@a,b,c/t").unwrap());
        let error = sqlx::Error::PoolTimedOut;
        servers.leave(0, &error);
        servers.leave(0, &error);
        assert_eq!((servers.in_use(), servers.name(servers.in_use()).as_str()), (1, "b:3306"));
        servers.leave(1, &error);
        servers.leave(2, &error);
        assert_eq!(servers.in_use(), 0);
    }
}
