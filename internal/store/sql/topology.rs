//! The topology of MySQL: replicas, a cluster or nothing behind the server that takes the writes. It decides what an
//! acknowledged commit survives (G1), and on which servers no runner may start.
//!
//! An ordinary account may read most of it. What it may not read is unknown, and no reason to ask for more rights.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::Row;

use crate::sql::error::{Fault, fault};
use crate::sql::servers::is_off;
use crate::sql::session::Session;

/// Time for which a topology that was read is used. Probes come more often than replicas do.
const FRESH: Duration = Duration::from_secs(5);

/// Settings and counters that say it, in one request. A server leaves out those that it does not have. MariaDB and
/// MySQL have different names for semi-synchronous replication, and MySQL has no count of its replicas among them.
const FACTS: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('hostname', 'log_bin', 'read_only', \
     'super_read_only', 'innodb_read_only', 'wsrep_on', 'group_replication_group_name', \
     'group_replication_single_primary_mode', 'group_replication_consistency', 'rpl_semi_sync_master_enabled', \
     'rpl_semi_sync_source_enabled', 'version'); SHOW GLOBAL STATUS WHERE Variable_name IN ('Slaves_connected', \
     'Rpl_semi_sync_master_status', 'Rpl_semi_sync_source_status', 'Rpl_semi_sync_master_clients', \
     'Rpl_semi_sync_source_clients')";
/// The question whether the server takes part in its replication group. The answer is NULL if the table is empty.
const IS_MEMBER: &str = "SELECT CAST(SUM(member_id = @@server_uuid AND member_state IN ('ONLINE', 'RECOVERING')) \
     AS SIGNED) FROM performance_schema.replication_group_members";

/// The sort of what stands behind a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TopologyKind {
    /// No replica follows the server now.
    Single,
    /// The server is a node of a Galera cluster.
    Galera,
    /// The server is a member of a group of MySQL's group replication.
    GroupReplication,
    /// The server waits for the acknowledgement of a replica before it answers a commit.
    SemiSync,
    /// Replicas follow, and no commit waits for one.
    AsyncReplicas,
    /// The account may not read whether replicas follow.
    #[default]
    Unknown,
}

impl TopologyKind {
    /// Return its word in answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Galera => "galera",
            Self::GroupReplication => "group_replication",
            Self::SemiSync => "semi_sync",
            Self::AsyncReplicas => "async_replicas",
            Self::Unknown => "unknown",
        }
    }
}

/// The topology of a server, and the cost of a failover.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// Its sort.
    pub kind: TopologyKind,
    /// The loss of acknowledged commits that a failover may bring, if any is known.
    pub note: Option<&'static str>,
}

/// The topology that was read last.
#[derive(Debug, Default)]
pub(crate) struct KnownTopology(Mutex<Option<(Instant, Topology)>>);

impl KnownTopology {
    /// Return the topology, at most some seconds old.
    pub(crate) async fn get(&self, conn: &mut Session<'_>) -> Result<Topology, sqlx::Error> {
        let known = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((read, topology)) = known
            && read.elapsed() < FRESH
        {
            return Ok(topology);
        }
        let topology = ServerFacts::read(conn).await?.topology();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), topology));
        Ok(topology)
    }
}

/// The facts that a server tells about itself, as far as the account may read them.
#[derive(Debug, Default)]
pub(crate) struct ServerFacts {
    /// Settings and counters by name, in small letters.
    told: BTreeMap<String, String>,
    /// Number of replicas that are connected.
    replicas: Option<u64>,
    /// Whether the server takes part in its replication group.
    is_member: Option<bool>,
}

impl ServerFacts {
    /// Ask the server.
    pub(crate) async fn read(conn: &mut Session<'_>) -> Result<Self, sqlx::Error> {
        let mut facts = Self::default();
        let Some(rows) = allowed(sqlx::raw_sql(FACTS).fetch_all(&mut *conn).await)? else { return Ok(facts) };
        for row in &rows {
            let (name, value): (String, String) = (row.try_get(0)?, row.try_get(1)?);
            facts.told.insert(name.to_lowercase(), value);
        }
        facts.replicas = facts.told("slaves_connected").parse().ok();
        if facts.has_group() {
            let told = allowed(sqlx::raw_sql(IS_MEMBER).fetch_one(&mut *conn).await)?;
            let told: Option<i64> = told.map(|row| row.try_get(0)).transpose()?.flatten();
            facts.is_member = told.map(|members| members > 0);
        }
        // MySQL says this to an account with REPLICATION SLAVE alone.
        if facts.topology().kind == TopologyKind::Unknown && !facts.told("version").contains("MariaDB") {
            let told = allowed(sqlx::raw_sql("SHOW REPLICAS").fetch_all(&mut *conn).await)?;
            facts.replicas = told.map(|rows| rows.len() as u64);
        }
        Ok(facts)
    }

    /// Return the value of a setting or a counter. It is empty if the server has none.
    fn told(&self, name: &str) -> &str {
        self.told.get(name).map_or("", String::as_str)
    }

    /// Return whether the server has this setting, and it is on.
    fn is_on(&self, name: &str) -> bool {
        self.told.get(name).is_some_and(|value| !is_off(value) && !value.is_empty())
    }

    /// Return whether the server is set up for a replication group.
    fn has_group(&self) -> bool {
        !self.told("group_replication_group_name").is_empty()
    }

    /// Return whether the server is in a replication group, as far as the account may see. One that is set up for a
    /// group counts as a member, unless the server says that it is none.
    fn is_in_group(&self) -> bool {
        self.has_group() && self.is_member != Some(false)
    }

    /// Return the topology that follows from these facts.
    pub(crate) fn topology(&self) -> Topology {
        const EVENTUAL: &str = "group_replication_consistency is EVENTUAL: after a failover the new primary may \
                                answer before it has applied what the old one had acknowledged; set \
                                BEFORE_ON_PRIMARY_FAILOVER";
        const WAITS: &str = "a failover loses nothing if the replica that acknowledged last is promoted; a commit \
                             that no replica acknowledges within the timeout of semi-synchronous replication is \
                             answered without";
        const ALONE: &str = "no replica is connected that acknowledges: a commit waits for the timeout of \
                             semi-synchronous replication, and the next ones for none";
        const FALLEN_BACK: &str = "semi-synchronous replication is enabled and does not wait now, because no replica \
                                   acknowledged in time: a failover may lose the last acknowledged commits";
        const LATE: &str = "replicas follow asynchronously: a failover may lose the last acknowledged commits";
        const HIDDEN: &str = "the account may not read whether replicas follow: if one does, a failover may lose the \
                              last acknowledged commits";
        let of = |kind, note| Topology { kind, note };
        if self.is_on("wsrep_on") {
            return of(TopologyKind::Galera, None);
        }
        if self.is_in_group() {
            let is_eventual = self.told("group_replication_consistency").eq_ignore_ascii_case("EVENTUAL");
            return of(TopologyKind::GroupReplication, is_eventual.then_some(EVENTUAL));
        }
        for side in ["master", "source"] {
            if !self.is_on(&format!("rpl_semi_sync_{side}_enabled")) {
                continue;
            }
            if !self.is_on(&format!("rpl_semi_sync_{side}_status")) {
                return of(TopologyKind::AsyncReplicas, Some(FALLEN_BACK));
            }
            let is_alone = self.told(&format!("rpl_semi_sync_{side}_clients")) == "0";
            return of(TopologyKind::SemiSync, Some(if is_alone { ALONE } else { WAITS }));
        }
        if self.told.get("log_bin").is_some_and(|value| is_off(value)) {
            return of(TopologyKind::Single, None);
        }
        match self.replicas {
            Some(0) => of(TopologyKind::Single, None),
            Some(_) => of(TopologyKind::AsyncReplicas, Some(LATE)),
            None => of(TopologyKind::Unknown, Some(HIDDEN)),
        }
    }

    /// Return the settings that keep the server from taking writes.
    fn read_only(&self) -> impl Iterator<Item = &'static str> {
        ["super_read_only", "read_only", "innodb_read_only"].into_iter().filter(move |name| self.is_on(name))
    }

    /// Return whether the server takes no writes now. A failover that is under way may end that.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only().next().is_some()
    }

    /// Return the reason why no runner may start on this server, and what an operator can do.
    pub(crate) fn refusal(&self) -> Option<String> {
        let name = self.told("hostname");
        let read_only: Vec<&str> = self.read_only().collect();
        if !read_only.is_empty() {
            let is = if self.is_in_group() {
                "a secondary of a replication group, or one of its members that has failed"
            } else if self.has_group() {
                "a server that has left its replication group"
            } else {
                "a replica, or a primary that was demoted"
            };
            let settings = read_only.join(" and ");
            let off = if self.is_on("innodb_read_only") {
                "start it without innodb_read_only".to_owned()
            } else if self.is_in_group() {
                // A second server that takes writes would part from its group.
                "call the function group_replication_set_as_primary with its server_uuid on a member of the group"
                    .to_owned()
            } else if self.has_group() {
                "let it join its group again, and then call the function group_replication_set_as_primary with its \
                 server_uuid"
                    .to_owned()
            } else {
                let off: Vec<String> = read_only.iter().map(|name| format!("{name} = OFF")).collect();
                format!("SET GLOBAL {}", off.join(", "))
            };
            return Some(format!(
                "the server {name} takes no writes ({settings} on), so it is {is}; what it answers may be old, and \
                 no job can be claimed there; name the primary in mysql_url, or, if this server is to be the \
                 primary: {off}"
            ));
        }
        let has_many_primaries = self.is_in_group()
            && self.told.get("group_replication_single_primary_mode").is_some_and(|value| is_off(value));
        has_many_primaries.then(|| {
            format!(
                "the replication group of the server {name} has several primaries \
                 (group_replication_single_primary_mode is OFF): a row that is locked on one of them is not locked \
                 on the others, so two runners could start one job; the function \
                 group_replication_switch_to_single_primary_mode() makes one of them the primary"
            )
        })
    }
}

/// Return nothing in place of an answer that the server refuses to this account, or does not know.
fn allowed<T>(answer: Result<T, sqlx::Error>) -> Result<Option<T>, sqlx::Error> {
    match answer {
        Err(error) if fault(&error) == Fault::Refused => Ok(None),
        answer => answer.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(told: &[(&str, &str)]) -> ServerFacts {
        let told: BTreeMap<_, _> = told.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let replicas = told.get("slaves_connected").and_then(|count| count.parse().ok());
        ServerFacts { told, replicas, is_member: None }
    }

    /// Return the facts that MySQL 9.7 tells as a member of a group.
    fn member(mode: &'static str) -> ServerFacts {
        facts(&[
            ("hostname", "db1"),
            ("log_bin", "ON"),
            ("read_only", "OFF"),
            ("super_read_only", "OFF"),
            ("group_replication_group_name", "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"),
            ("group_replication_single_primary_mode", mode),
            ("group_replication_consistency", "BEFORE_ON_PRIMARY_FAILOVER"),
        ])
    }

    #[test]
    fn the_topology_follows_from_what_the_account_may_read() {
        let words = |told: &[(&str, &str)]| {
            let topology = facts(told).topology();
            (topology.kind.as_str(), topology.note.is_some())
        };
        assert_eq!(words(&[("log_bin", "OFF"), ("wsrep_on", "OFF"), ("slaves_connected", "0")]), ("single", false));
        // MySQL has a binary log by default, and hides its replicas from an ordinary account.
        assert_eq!(words(&[("log_bin", "ON")]), ("unknown", true));
        assert_eq!(words(&[]), ("unknown", true));
        assert_eq!(words(&[("log_bin", "ON"), ("slaves_connected", "0")]), ("single", false));
        assert_eq!(words(&[("log_bin", "ON"), ("slaves_connected", "2")]), ("async_replicas", true));
        assert_eq!(words(&[("log_bin", "ON"), ("wsrep_on", "ON"), ("slaves_connected", "1")]), ("galera", false));
        for side in ["master", "source"] {
            let (enabled, status) = (format!("rpl_semi_sync_{side}_enabled"), format!("rpl_semi_sync_{side}_status"));
            let semi =
                |on, waits| words(&[("log_bin", "ON"), ("slaves_connected", "1"), (&enabled, on), (&status, waits)]);
            assert_eq!(semi("ON", "ON"), ("semi_sync", true));
            assert_eq!(semi("ON", "OFF"), ("async_replicas", true), "it has fallen back");
            assert_eq!(semi("OFF", "OFF"), ("async_replicas", true));
        }
        assert_eq!(member("ON").topology(), Topology { kind: TopologyKind::GroupReplication, note: None });
        let mut eventual = member("ON");
        eventual.told.insert("group_replication_consistency".to_owned(), "EVENTUAL".to_owned());
        assert!(eventual.topology().note.is_some_and(|note| note.contains("BEFORE_ON_PRIMARY_FAILOVER")));
        let left = ServerFacts { is_member: Some(false), replicas: Some(0), ..member("ON") };
        assert_eq!(left.topology().kind, TopologyKind::Single, "it has left its group");
    }

    #[test]
    fn a_server_that_only_reads_is_refused_with_its_settings_and_their_remedy() {
        assert_eq!(facts(&[("read_only", "OFF"), ("innodb_read_only", "OFF")]).refusal(), None);
        for (told, remedy) in [
            (&[("hostname", "db2"), ("read_only", "ON")][..], "SET GLOBAL read_only = OFF"),
            // MariaDB 12 has words for the ways of being read-only.
            (&[("hostname", "db2"), ("read_only", "NO_LOCK_NO_ADMIN")], "SET GLOBAL read_only = OFF"),
            (
                &[("hostname", "db2"), ("read_only", "ON"), ("super_read_only", "ON")],
                "SET GLOBAL super_read_only = OFF, read_only = OFF",
            ),
            (&[("hostname", "db2"), ("innodb_read_only", "ON")], "start it without innodb_read_only"),
        ] {
            let why = facts(told).refusal().unwrap();
            assert!(why.contains("the server db2 takes no writes") && why.contains("mysql_url"), "{why}");
            assert!(why.ends_with(remedy), "{why}");
        }
        let mut secondary = member("ON");
        secondary.told.extend(["read_only", "super_read_only"].map(|name| (name.to_owned(), "ON".to_owned())));
        assert!(secondary.is_read_only() && !member("ON").is_read_only());
        for (is_member, parts) in [
            (None, ["a secondary of a replication group", "call the function group_replication_set_as_primary"]),
            (Some(true), ["a secondary of a replication group", "call the function group_replication_set_as_primary"]),
            (Some(false), ["a server that has left its replication group", "let it join its group again"]),
        ] {
            secondary.is_member = is_member;
            let why = secondary.refusal().unwrap();
            assert!(parts.iter().all(|part| why.contains(part)), "{why}");
            // Its rows would part from those of the group.
            assert!(!why.contains("SET GLOBAL"), "{why}");
        }
    }

    #[test]
    fn a_group_with_several_primaries_is_refused() {
        assert_eq!(member("ON").refusal(), None);
        let why = member("OFF").refusal().unwrap();
        assert!(why.contains("group_replication_single_primary_mode is OFF"), "{why}");
        assert!(why.contains("group_replication_switch_to_single_primary_mode()"), "{why}");
        // Only a member counts. A server that cannot tell counts as one.
        assert_eq!(ServerFacts { is_member: Some(false), ..member("OFF") }.refusal(), None);
        assert!(ServerFacts { is_member: Some(true), ..member("OFF") }.refusal().is_some());
        // The plugin is there, and no group.
        let mut idle = member("OFF");
        idle.told.insert("group_replication_group_name".to_owned(), String::new());
        assert_eq!(idle.refusal(), None);
    }
}
