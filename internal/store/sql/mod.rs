//! Connections, statements for many rows and group commit: the foundation of every statement.
//!
//! - `batch.rs`: the rules for the batches of one kind of write.
//! - `batches.rs`: statements for many rows, in few variants.
//! - `clock.rs`: reads and estimates of the database's clock.
//! - `clock_steps.rs`: steps of the database's clock that runners noticed.
//! - `cluster.rs`: locks that hold in a whole Galera cluster.
//! - `connection.rs`: connections, and the rules under which every statement runs.
//! - `datetimes.rs`: datetimes in the text form, written and read by hand.
//! - `disk_room.rs`: whether the server lately had no room for what this process wrote.
//! - `durability.rs`: checks of the server's settings.
//! - `error.rs`: classifies the errors of MySQL.
//! - `group_commit.rs`: writes the items of many callers in one transaction.
//! - `locked_rows.rs`: writes that wait for a row that another session locks.
//! - `page_size.rs`: the number of rows that one transaction of a loop takes.
//! - `pools.rs`: divides the connections among their uses.
//! - `read_only.rs`: sightings of a server that takes no writes.
//! - `script.rs`: runs several statements in few round trips.
//! - `servers.rs`: the servers that one URL names, and the one in use.
//! - `session.rs`: a connection that knows the prefix of the tables.
//! - `table_names.rs`: the names of the tables, and the prefix before them.
//! - `topology.rs`: the replicas or the cluster behind the server, and the servers that a runner refuses.
//! - `turns.rs`: changes of one row take turns, so that a locked row leaves connections to others.
//! - `write_probe.rs`: the write that shows whether a server takes writes.

pub(super) mod batch;
pub(super) mod batches;
pub(super) mod clock;
pub(super) mod clock_steps;
pub(super) mod cluster;
pub(super) mod connection;
pub(super) mod datetimes;
pub(super) mod disk_room;
pub(super) mod durability;
pub(super) mod error;
pub(super) mod group_commit;
pub(super) mod locked_rows;
pub(super) mod page_size;
pub(super) mod pools;
pub(super) mod read_only;
pub(super) mod script;
pub(super) mod servers;
pub(super) mod session;
pub(super) mod table_names;
pub(super) mod topology;
pub(super) mod turns;
pub(super) mod write_probe;
