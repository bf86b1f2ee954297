//! tickr: a durable job runner for teams on MySQL.
//!
//! # The path of a job
//!
//! A client's request becomes a draft, and the draft becomes a checked [`NewJob`](job::NewJob). The [`broker`] commits
//! it to the [`store`] and only then hints it to the [`index`]; the client gets its response after the commit. When the
//! job is due, the scheduler of the [`engine`] moves its id to a ready list. The fetcher takes the id when a worker is
//! free. The worker claims the job in the store by compare-and-set, and the executor runs its [handler](handlers). The
//! verdict is settled in the store with the token of the attempt. A job under which two runners died in a row is
//! executed in a process of its own. The engine's ticker commits the jobs of [schedules](job::Schedule), which take the
//! same path from there.
//!
//! # The modules, from the bottom up
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
//! | [`verify`] | proof from the tables that the guarantees hold | repair of anything except the index |
//! | [`engine`] | the loops: scheduler, fetcher, workers, heartbeat, reaper, reconciler, janitor, ticker, bulk runner, alerts, recorder | HTTP |
//! | [`api`] | HTTP: routes, problem documents, OpenAPI | everything below the broker |
//! | [`dashboard`] | pages for a browser, which use only the API | everything else |
//! | [`app`] | the composition: ordered start, ordered stop, signals | — |
//! | [`bench`](mod@bench) | measurements of the whole system, and of the bare store on the same servers | the speed itself |
//! | [`services`] | private MySQL and Redis servers for `tickr dev`, `tickr bench` and the tests | production |
//!
//! Imports go down only; a test reads the sources and checks it. To read the code, start at [`app::App::start`], then
//! [`engine`](engine::Engine::start), then the executor.

pub mod api;
pub mod app;
pub mod bench;
pub mod broker;
pub mod config;
pub mod dashboard;
pub mod engine;
pub mod event;
pub mod handlers;
pub mod index;
pub mod job;
pub mod services;
pub mod store;
pub mod table;
pub mod telemetry;
pub mod verify;

pub use app::run;

/// The Rust blocks of the documents, as doctests.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../README.md")]
    struct Readme;

    #[doc = include_str!("../docs/HANDLERS.md")]
    struct Handlers;
}
