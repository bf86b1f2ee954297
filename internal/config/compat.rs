//! `[compat.delayed]` and `[compat.later]`: interfaces of other services, for clients that were written for them.

use std::fmt;

use super::alerts::url;
use super::parse;
use super::setting::Setting;
use super::url::masked;

/// The interfaces of other services that the API serves too.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Compat {
    /// `POST /schedule` and `DELETE /cancel/{id}`, if configured.
    pub delayed: Option<DelayedMessages>,
    /// True to serve `POST /create`, `/delete` and `/query` of Later.
    pub later: bool,
}

/// Delivery of delayed messages. `Debug` masks the URL, which may contain a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct DelayedMessages {
    /// URL of the service that each message is delivered to.
    pub url: String,
}

impl fmt::Debug for DelayedMessages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url } = self;
        f.debug_struct("DelayedMessages").field("url", &masked(url)).finish()
    }
}

/// Delayed messages before it is known that they have a URL.
#[derive(Default)]
pub(super) struct DelayedDraft {
    pub(super) url: Option<String>,
}

/// The settings of `[compat.delayed]`.
pub(super) static DELAYED: &[Setting<DelayedDraft>] = &[Setting::<DelayedDraft>::new(
    "url",
    "URL",
    "Service that receives the messages of POST /schedule; required",
    |delayed, text| parse::some(&mut delayed.url, url(text)),
)
.file_only()];

/// The settings of `[compat.later]`.
pub(super) static LATER: &[Setting<bool>] =
    &[Setting::<bool>::new("enabled", "BOOL", "Serve POST /create, /delete and /query of Later", |later, text| {
        parse::put(later, parse::switch(text))
    })
    .switch()
    .file_only()];

/// `[compat]` has no settings of its own.
pub(super) static COMPAT: &[Setting<()>] = &[];
