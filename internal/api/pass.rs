//! The right of a request to go on. A request is let in once (`auth.rs`), but a stream, an import and a long wait last: they
//! end within two seconds when their key is revoked, or when an open API stops being open.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use tokio::sync::watch;
use uuid::Uuid;

use super::Api;
use super::auth::is_open;
use super::problem::{Code, Problem};
use crate::broker::Settings;

/// Why a request was let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grounds {
    /// The API was open.
    Open,
    /// A token of the configuration, which is good as long as the process runs.
    Token,
    /// A key.
    Key(Uuid),
}

/// The right of a request to go on.
#[derive(Clone)]
pub(super) struct Pass {
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
    /// May the request go on?
    pub(super) fn is_good(&self) -> bool {
        let settings = self.settings.borrow();
        match self.grounds {
            Grounds::Token => true,
            Grounds::Open => is_open(&self.api, &settings),
            Grounds::Key(id) => settings.keys.iter().any(|key| key.id == id && key.revoked.is_none()),
        }
    }

    /// Wait until the request may not go on. Nothing is lost when the wait is dropped.
    pub(super) async fn ends(&mut self) {
        loop {
            // Marked as seen before it is looked at: a change in between wakes the wait.
            self.settings.mark_unchanged();
            if !self.is_good() {
                return;
            }
            if self.settings.changed().await.is_err() {
                // Nothing is read any more: the process stops, and ends its requests itself.
                std::future::pending::<()>().await;
            }
        }
    }

    /// What a request is told that may not go on.
    pub(super) fn refusal(&self) -> Problem {
        let detail = match self.grounds {
            Grounds::Open => "the API asks for a key since this request began; make one with tickr keys create",
            Grounds::Token | Grounds::Key(_) => "the key of this request was revoked",
        };
        Problem::new(Code::Unauthorized, detail)
    }
}
