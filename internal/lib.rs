//! tickr: a durable job runner for teams on MySQL.
//!
//! # The path of a job
//!
//! A caller's request becomes a draft, the draft a checked [`NewJob`](job::NewJob). The [`broker`] commits it to the
//! [`store`] and only then hints it to the [`index`]; the answer goes out after the commit. The scheduler of the
//! [`engine`] moves its id to a ready list when it is due, the fetcher takes it when a worker is free, the worker claims
//! it in the store by compare and set, the executor runs its [handler](handlers), and the verdict is settled in the store
//! by the holder of the attempt's token. A job under which two runners died in a row takes the last steps in a process of its
//! own. Jobs of [schedules](job::Schedule) are committed by the engine's ticker, and go
//! the same way from there.
//!
//! # The modules, from the bottom up
//!
//! | module | owns | leaves to others |
//! |---|---|---|
//! | [`job`] | the domain, pure: ids, the state machine, verdicts, retry policy, schedules | all I/O |
//! | [`config`] | settings from flags, environment and file; all mistakes at once | what they are used for |
//! | [`table`] | rows in motion between a store and a writer | SQL, file formats |
//! | [`event`], [`telemetry`] | what happened, told inside the process and outside | reacting to it |
//! | [`store`] | MySQL: every statement | when to run which |
//! | [`index`] | Redis: every command and script | deciding anything about a job |
//! | [`handlers`] | kinds: payload types, their schemas, the work; finished reports | retries, verdicts, storage |
//! | [`broker`] | every write that concerns both servers: commit, then hint | reading |
//! | [`verify`] | proving from the tables that promises were kept | mending anything but the index |
//! | [`engine`] | the loops: scheduler, fetcher, workers, heartbeat, reaper, reconciler, janitor, ticker, operator, alerts, recorder | HTTP |
//! | [`api`] | HTTP: routes, problem documents, OpenAPI | everything behind the broker |
//! | [`dashboard`] | pages that a browser runs; they speak only the API | everything else |
//! | [`app`] | the composition: ordered start, ordered stop, signals | — |
//! | [`bench`](mod@bench) | how fast all of it is, beside the bare store on the same servers | being fast |
//! | [`services`] | private MySQL and Redis servers for `tickr dev`, `tickr bench` and the tests | production |
//!
//! Imports go down only; a test reads the sources and checks it. Start reading at [`app::App::start`], then
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
