//! Reports: their queries and their finished files.
//!
//! - `files.rs`: finished reports.
//! - `query.rs`: runs the queries of reports.

pub(super) mod files;
pub(super) mod query;
