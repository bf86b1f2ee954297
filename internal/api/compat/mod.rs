//! Interfaces of other services, for clients that were written for them. The operator turns each one on in the
//! configuration. They are not part of `/openapi.json`, because they may change with their models only.
//!
//! - `accept.rs`: acceptance of jobs
//! - `cancel.rs`: cancels of jobs
//! - `delayed.rs`: messages that are delivered after a delay (`/schedule`, `/cancel/{id}`)
//! - `later.rs`: tasks of Later (`/create`, `/delete`, `/query`)
//! - `refusal.rs`: refusals, in the words of these interfaces

mod accept;
mod cancel;
mod delayed;
mod later;
pub(crate) mod refusal;

use axum::Router;
use axum::routing::{delete, post};

use crate::Api;

/// The interfaces of other services that this process serves.
#[derive(Clone, Debug, Default)]
pub struct CompatRoutes {
    /// URL that delayed messages are delivered to; absent if they are off.
    pub delayed_url: Option<String>,
    /// True to serve the interface of Later.
    pub later: bool,
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
