//! tickr: a durable job runner for teams on MySQL.
//!
//! A job is a payload of a [`Kind`], and a handler is an async function that executes it. [`run`] makes both a whole
//! program: the runner, the HTTP API and the command line.
//!
//! ```no_run
//! use tickr::prelude::*;
//!
//! #[derive(Serialize, Deserialize, JsonSchema)]
//! #[serde(deny_unknown_fields)]
//! struct Thumbnail {
//!     image: String,
//!     width: u32,
//! }
//!
//! impl Kind for Thumbnail {
//!     const NAME: &'static str = "thumbnail";
//! }
//!
//! async fn thumbnail(job: Thumbnail, ctx: Context) -> Outcome {
//!     ctx.progress(50.0, "scaling");
//!     Output::json(&format!("{}-{}px.png", job.image, job.width))
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     let mut kinds = Registry::new();
//!     kinds.register(thumbnail);
//!     tickr::run(kinds)
//! }
//! ```
//!
//! - To enqueue from Rust: [`Client`], in a handler by [`ContextExt::client`].
//! - A handler with state: a closure, or a type that implements [`Handler`].
//! - A runner inside a larger program: [`App`].
//! - To store the lines of handlers with their attempts under a `tracing` subscriber of your own: [`attempt_log_layer`].
//! - To test handlers, alone or with a whole runner: [`testing`].
//! - To leave out what a small service does not need: the features of the crate.
//!
//! Payload types derive their traits with `serde` and `schemars`, so a program needs both as dependencies, in the
//! versions that this crate re-exports. The modules that are not listed here are internal: the command and the tests use
//! them, and they change without notice.
//!
//! # For contributors: the path of a job
//!
//! A client's request becomes a draft, and the draft becomes a checked [`NewJob`](job::NewJob). The [`broker`] commits
//! it to the [`store`] and only then hints it to the [`index`]; the client gets its response after the commit. The id of
//! a job that is due goes to a ready list with the hint. When another job becomes due, the scheduler of the [`engine`]
//! moves its id there. The fetcher takes the id when a seat is free: the right of the runner to claim one more job. The
//! worker claims the job in the store by compare-and-set, and the executor runs its [handler](handlers). The verdict is
//! settled in the store with the token of the attempt. A job under which two runners died in a row is executed in a
//! process of its own. The engine's ticker commits the jobs of [schedules](job::Schedule), which take the same path from
//! there. A job that waits for parents has no due time until they have ended; the engine's loops `dependencies` and
//! `batches` follow the rows that the ends of jobs leave for their children and batches.
//!
//! The modules, from the bottom up. All but [`app`], [`bench`](mod@bench) and [`testing`] are crates of their own, such
//! as `tickr-store` for [`store`]:
//!
//! | module | owns | leaves to others |
//! |---|---|---|
//! | [`job`] | the domain, pure: ids, the state machine, verdicts, retry policy, schedules | all I/O |
//! | [`config`] | settings from flags, environment and file; all mistakes at once | the use of the settings |
//! | [`table`] | rows in transit between a store and a writer | SQL, file formats |
//! | [`event`], [`telemetry`] | events for listeners inside the process; logs, metrics and traces for the outside | reactions to events |
//! | [`store`] | MySQL: every statement | the choice of the statement |
//! | [`index`] | Redis: every command and script | decisions about jobs |
//! | [`handlers`] | kinds: payload types, their schemas, the work; finished reports | retries, verdicts, storage |
//! | [`broker`] | every write that concerns both servers: commit, then hint | reading |
//! | [`client`] | typed jobs from Rust, checked as at the API | everything below the broker |
//! | [`verify`] | proof from the tables that the guarantees hold | repair of anything except the index |
//! | [`engine`] | the loops: scheduler, fetcher, workers, heartbeat, reaper, reconciler, janitor, ticker, expiry, dependencies, batches, outbox, limits, checkpoints, deferred attempts, remote workers, bulk runner, alerts, recorder | HTTP |
//! | [`api`] | HTTP: routes, problem documents, OpenAPI | everything below the broker |
//! | [`dashboard`] | pages for a browser, which use only the API | everything else |
//! | [`app`] | the composition: ordered start, ordered stop, signals | — |
//! | [`bench`](mod@bench) | measurements of the whole system, and of the bare store on the same servers | the speed itself |
//! | `conformance` | the test of a client of remote workers, with a server from memory | all servers |
//! | [`testing`] | a handler alone, or a whole runner on private servers, in a test | production |
//! | [`services`] | private MySQL and Redis servers for `tickr dev`, `tickr bench` and the tests | production |
//!
//! Imports go down only; a test reads the sources and checks it. To read the code, start at [`app::App::start`], then
//! [`engine`](engine::Engine::start), then the executor.

#[doc(hidden)]
pub use tickr_api as api;
#[doc(hidden)]
pub mod app;
#[doc(hidden)]
#[cfg(feature = "bench")]
pub mod bench;
#[doc(hidden)]
pub use tickr_broker as broker;
#[doc(hidden)]
pub use tickr_client as client;
#[doc(hidden)]
pub use tickr_config as config;
#[doc(hidden)]
#[cfg(feature = "conformance")]
pub use tickr_conformance as conformance;
#[doc(hidden)]
#[cfg(feature = "dashboard")]
pub use tickr_dashboard as dashboard;
#[doc(hidden)]
pub use tickr_engine as engine;
#[doc(hidden)]
pub use tickr_event as event;
#[doc(hidden)]
pub use tickr_handlers as handlers;
#[doc(hidden)]
pub use tickr_index as index;
#[doc(hidden)]
pub use tickr_job as job;
#[doc(hidden)]
pub use tickr_services as services;
#[doc(hidden)]
pub use tickr_store as store;
#[doc(hidden)]
pub use tickr_table as table;
#[doc(hidden)]
pub use tickr_telemetry as telemetry;
pub mod testing;
#[doc(hidden)]
pub use tickr_verify as verify;

#[doc(inline)]
pub use app::{App, Signals, StartError, run};
#[doc(inline)]
pub use client::{
    Cancelled, Client, Conflict, Connect, ContextExt, Enqueue, EnqueueChain, EnqueueMany, Enqueued, Error, JobStatus,
};
#[doc(inline)]
pub use config::Config;
#[doc(inline)]
pub use handlers::{
    CheckpointError, Context, Failure, FinishKey, FinishLater, FollowUp, Handler, Kind, KindDefaults, Outcome, Output,
    Problem, Registry,
};
#[doc(inline)]
pub use job::{
    AttemptToken, BatchId, JobId, Name, OnConflict, OnFailure, OnParentFailure, RetryPolicy, State, Timestamp,
    TraceContext, UniqueUntil,
};
#[doc(inline)]
pub use store::MySqlConnection;
#[doc(inline)]
pub use telemetry::attempt_log_layer;
pub use {schemars, serde, serde_json};

/// The names that most handlers and clients use.
///
/// ```
/// use tickr::prelude::*;
/// ```
pub mod prelude {
    #[doc(no_inline)]
    pub use crate::{Client, Context, ContextExt, Failure, FollowUp, Handler, Kind, Outcome, Output, Registry};
    #[doc(no_inline)]
    pub use schemars::JsonSchema;
    #[doc(no_inline)]
    pub use serde::{Deserialize, Serialize};
    #[doc(no_inline)]
    pub use serde_json::json;
}

/// The Rust blocks of the documents, as doctests.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../README.md")]
    struct Readme;

    #[doc = include_str!("../docs/TRANSACTIONS.md")]
    struct Transactions;
    #[doc = include_str!("../docs/HANDLERS.md")]
    struct Handlers;

    #[doc = include_str!("../docs/BATCHES.md")]
    struct Batches;
}
