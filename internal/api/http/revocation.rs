//! The right of a request to continue. `auth.rs` checks a request once, at its start, but streams, imports, downloads,
//! long waits and bodies that arrive slowly last. They end within two seconds when their API key is revoked, or when an
//! open API stops being open.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::Extensions;
use axum::http::request::Parts;
use tokio::sync::watch;
use uuid::Uuid;

use crate::Api;
use crate::http::auth::{AuthMethod, is_open, unreadable_api_keys};
use crate::http::problem::{Code, Problem};
use tickr_broker::{API_KEYS_HOLD, OperatorSettings};

/// Time between two looks at the age of the API keys while none is read.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The right of a request to continue.
#[derive(Clone)]
pub(crate) struct RequestRight {
    api: Api,
    auth_method: AuthMethod,
    settings: watch::Receiver<Arc<OperatorSettings>>,
}

impl FromRequestParts<Api> for RequestRight {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Infallible> {
        let auth_method = parts.extensions.get::<AuthMethod>().copied().unwrap_or(AuthMethod::Open);
        Ok(Self::new(auth_method, api))
    }
}

impl RequestRight {
    fn new(auth_method: AuthMethod, api: &Api) -> Self {
        Self { api: Arc::clone(api), auth_method, settings: api.operator_settings.listen() }
    }

    /// Return the right of a request with these extensions. `None` for a request whose path holds its right, such as one
    /// with a finish key: no revocation ends it.
    pub(crate) fn of(extensions: &Extensions, api: &Api) -> Option<Self> {
        extensions.get::<AuthMethod>().map(|auth_method| Self::new(*auth_method, api))
    }

    /// Return whether the request may continue.
    pub(crate) fn is_good(&self) -> bool {
        match self.auth_method {
            AuthMethod::Token => true,
            AuthMethod::Open => is_open(&self.api, &self.settings.borrow()),
            AuthMethod::Key(id) => self.api.operator_settings.api_keys_age() <= API_KEYS_HOLD && self.is_valid(id),
        }
    }

    /// Return whether this API key was valid when the API keys were last read.
    fn is_valid(&self, id: Uuid) -> bool {
        self.settings.borrow().api_keys.iter().any(|key| key.id == id && key.revoked.is_none())
    }

    /// Wait until the request may no longer continue. Dropping this future loses nothing.
    pub(crate) async fn wait_until_revoked(&mut self) {
        loop {
            // Marked as seen before the check, so that a change between the two wakes the wait.
            self.settings.mark_unchanged();
            if !self.is_good() {
                return;
            }
            // While MySQL cannot be read nothing changes, and only the age of the API keys grows.
            if let Ok(Err(_)) = tokio::time::timeout(LOOK_EVERY, self.settings.changed()).await {
                // The settings are no longer read because the process is stopping, and it ends its requests itself.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Wait for `work` while the request may continue. Otherwise drop `work`, or its result if that came too late.
    pub(crate) async fn wait_for<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Problem> {
        let done = tokio::select! {
            biased;
            () = self.wait_until_revoked() => None,
            done = work => Some(done),
        };
        done.filter(|_| self.is_good()).ok_or_else(|| self.refusal())
    }

    /// Make the problem for a request that may not continue.
    pub(crate) fn refusal(&self) -> Problem {
        let detail = match self.auth_method {
            AuthMethod::Open => {
                "the API has required an API key since this request began; create one with tickr api-keys create"
            }
            AuthMethod::Key(id) if self.is_valid(id) => {
                return unreadable_api_keys(self.api.operator_settings.api_keys_age().max(API_KEYS_HOLD));
            }
            AuthMethod::Token | AuthMethod::Key(_) => "the API key of this request was revoked",
        };
        Problem::new(Code::Unauthorized, detail)
    }
}
