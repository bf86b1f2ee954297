//! `[outboxes.<name>]`: outboxes in databases of applications.

use super::parse;
use super::setting::{Secrecy, Setting};
use super::url::ServerUrl;

/// Most outboxes in databases of applications. Each has a task and a connection of its own in every runner.
pub(super) const MAX_OUTBOXES: usize = 16;

/// The table `tickr_outbox` in the database of an application.
#[derive(Debug, Clone)]
pub struct Outbox {
    /// URL of that database, with an account that has SELECT and DELETE on the table.
    pub mysql_url: ServerUrl,
}

/// An outbox before it is known that it has a URL.
#[derive(Default)]
pub(super) struct OutboxDraft {
    pub(super) mysql_url: Option<ServerUrl>,
}

/// The settings of `[outboxes.<name>]`.
pub(super) static OUTBOX: &[Setting<OutboxDraft>] = &[Setting::<OutboxDraft>::new(
    "mysql_url",
    "URL",
    "Database of an application with a table tickr_outbox: mysql://user:password@host:port/database; required",
    |o, t| parse::some(&mut o.mysql_url, ServerUrl::one_mysql(t).map_err(Into::into)),
)
.secrecy(Secrecy::Url)
.file_and_environment()];
