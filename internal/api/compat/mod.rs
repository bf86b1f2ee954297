//! Interfaces of other services, for clients that were written for them. The operator turns each one on in the
//! configuration. They are not part of `/openapi.json`, because they may change with their models only.
//!
//! - `accept.rs`: acceptance of jobs
//! - `any_case.rs`: objects whose names count in any case
//! - `cancel.rs`: cancels of jobs
//! - `delayed.rs`: messages that are delivered after a delay (`/schedule`, `/cancel/{id}`)
//! - `later.rs`: tasks of Later (`/create`, `/delete`, `/query`)
//! - `refusal.rs`: refusals, in the words of these interfaces

mod accept;
mod any_case;
mod cancel;
mod delayed;
mod later;
pub(crate) mod refusal;

use std::fmt;

use axum::Router;
use axum::routing::{delete, post};

use crate::Api;

/// The interfaces of other services that this process serves. `Debug` hides the URL, which may contain a secret.
#[derive(Clone, Default)]
pub struct CompatRoutes {
    /// URL that delayed messages are delivered to; absent if they are off.
    pub delayed_url: Option<String>,
    /// True to serve the interface of Later.
    pub later: bool,
}

impl fmt::Debug for CompatRoutes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { delayed_url, later } = self;
        let delayed_url = delayed_url.as_ref().map(|_| "***");
        f.debug_struct("CompatRoutes").field("delayed_url", &delayed_url).field("later", later).finish()
    }
}

/// Return the routes that are turned on.
pub(super) fn routes(on: &CompatRoutes) -> Router<Api> {
    let mut routes = Router::new();
    if on.delayed_url.is_some() {
        routes = routes.route("/schedule", post(delayed::schedule)).route("/cancel/{id}", delete(delayed::cancel));
    }
    if on.later {
        routes = routes
            .route("/create", post(later::create))
            .route("/delete", post(later::delete))
            .route("/query", post(later::query));
    }
    routes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_hides_the_url_of_delayed_messages() {
        let on = CompatRoutes { delayed_url: Some("https://a.example/in?token=canary".to_owned()), later: true };
        assert_eq!(format!("{on:?}"), "CompatRoutes { delayed_url: Some(\"***\"), later: true }");
    }
}
