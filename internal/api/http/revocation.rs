//! The right of a request to continue. `auth.rs` checks a request once, at its start, but streams, imports, downloads
//! and long waits last. They end within two seconds when their API key is revoked, or when an open API stops being
//! open.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use tokio::sync::watch;
use uuid::Uuid;

use crate::api::Api;
use crate::api::http::auth::is_open;
use crate::api::http::problem::{Code, Problem};
use crate::broker::Settings;

/// The reason why a request was let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grounds {
    /// The API was open: it needed no API key.
    Open,
    /// A token of the configuration, which is valid as long as the process runs.
    Token,
    /// An API key.
    Key(Uuid),
}

/// The right of a request to continue.
#[derive(Clone)]
pub(crate) struct Pass {
    api: Api,
    grounds: Grounds,
    settings: watch::Receiver<Arc<Settings>>,
}

impl FromRequestParts<Api> for Pass {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Infallible> {
        let grounds = parts.extensions.get::<Grounds>().copied().unwrap_or(Grounds::Open);
        Ok(Self { api: Arc::clone(api), grounds, settings: api.controls.listen() })
    }
}

impl Pass {
    /// Return whether the request may continue.
    pub(crate) fn is_good(&self) -> bool {
        let settings = self.settings.borrow();
        match self.grounds {
            Grounds::Token => true,
            Grounds::Open => is_open(&self.api, &settings),
            Grounds::Key(id) => settings.keys.iter().any(|key| key.id == id && key.revoked.is_none()),
        }
    }

    /// Wait until the request may no longer continue. Dropping this future loses nothing.
    pub(crate) async fn ends(&mut self) {
        loop {
            // Marked as seen before the check, so that a change between the two wakes the wait.
            self.settings.mark_unchanged();
            if !self.is_good() {
                return;
            }
            if self.settings.changed().await.is_err() {
                // The settings are no longer read because the process is stopping, and it ends its requests itself.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Make the problem for a request that may not continue.
    pub(crate) fn refusal(&self) -> Problem {
        let detail = match self.grounds {
            Grounds::Open => {
                "the API has required an API key since this request began; create one with tickr keys create"
            }
            Grounds::Token | Grounds::Key(_) => "the API key of this request was revoked",
        };
        Problem::new(Code::Unauthorized, detail)
    }
}
