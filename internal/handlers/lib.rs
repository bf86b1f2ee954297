//! Handlers: the code that does a job's work, and the registry that finds it by kind.
//!
//! Your own kind needs a payload type, one async function and one call of `register`:
//!
//! ```
//! use schemars::JsonSchema;
//! use serde::{Deserialize, Serialize};
//! use tickr_handlers::{Context, Kind, Outcome, Registry};
//!
//! #[derive(Serialize, Deserialize, JsonSchema)]
//! #[serde(deny_unknown_fields)]
//! struct Greeting {
//!     name: String,
//! }
//!
//! impl Kind for Greeting {
//!     const NAME: &'static str = "greeting";
//! }
//!
//! async fn greet(greeting: Greeting, ctx: Context) -> Outcome {
//!     println!("attempt {}: hello {}", ctx.attempt(), greeting.name);
//!     Ok(().into())
//! }
//!
//! let mut registry = Registry::new();
//! registry.register(greet);
//! ```
//!
//! The traits [`Kind`] and [`Handler`] are what a kind implements. The files:
//!
//! - `context.rs`: [`Context`], a running handler's view of its attempt
//! - `finish.rs`: [`FinishKey`], with which another system finishes an attempt
//! - `outcome.rs`: [`Outcome`], [`Output`] and [`Failure`], which a handler returns
//! - `declared.rs`: kinds that programs in other languages execute
//! - `verdict.rs`: [`RemoteVerdict`], how such a program ends an attempt
//! - `sent_follow_ups.rs`: the follow-up jobs that it sends with a success
//! - `room.rs`: [`Room`], for kinds whose jobs need more than a worker each
//! - `registry.rs`: [`Registry`], the kinds by name with the JSON Schemas that enqueue enforces
//! - `panicked.rs`: [`Panicked`], panics in the code of a kind
//! - `sensitive.rs`: fields of a payload whose values are hidden
//! - `wording.rs`: parser errors in words for the client
//! - `email/`: the kind `email`, mails by SMTP
//! - `http/`: the kind `http`, signed callbacks
//! - `later.rs`: the kind `later`, tasks of the API of Later
//! - `report/`: the kind `report`, files made of query results
//! - `test_kinds.rs`: kinds for tests and benches

pub mod email;
pub mod http;
pub mod later;

mod context;
mod declared;
mod finish;
mod outcome;
mod panicked;
mod registry;
pub mod report;
mod room;
mod sensitive;
mod sent_follow_ups;
pub mod test_kinds;
mod verdict;
pub mod wording;

pub use context::{
    CallSlot, CheckpointError, CheckpointSlot, Context, ContextParts, ExchangeSlot, ProgressSlot, UnsavedCheckpoint,
};
pub use declared::{DeclarationVersion, KnownKind};
pub use finish::{FinishKey, FinishKeyStore, FinishLater, FinishSlot};
pub use outcome::{Failure, FollowUp, FollowUpOptions, Outcome, Output};
pub use panicked::{Panicked, panic_message};
pub use registry::{Checked, KindDefaults, Problem, Ran, Registered, Registry};
pub use room::{Place, Room};
pub use sensitive::is_sensitive_field;
pub use sent_follow_ups::sent_follow_ups;
pub use verdict::{CheckedVerdict, RemoteVerdict, SentVerdict, VerdictWord, WrongVerdict, sent_checkpoint, wrong_json};

use std::future::Future;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A payload type. It names its kind. Its JSON Schema is published in the API and enforced at enqueue.
///
/// Derive with `#[serde(deny_unknown_fields)]`, so that enqueue refuses a misspelt field instead of ignoring it.
pub trait Kind: Serialize + DeserializeOwned + JsonSchema + Send + 'static {
    /// The name of the kind: see [`Name`](tickr_job::Name) for what it may contain.
    const NAME: &'static str;

    /// Return the host that a job with this payload calls, in lower case and with a port other than the usual one:
    /// `example.com`, `example.com:8443`, `[2001:db8::1]`. Limits that are shared by host count the jobs by it. It must
    /// not do I/O. tickr calls it once, when it accepts the job. Default: none.
    ///
    /// At most 255 bytes are used. [`http::host_of_url`] makes it from a URL.
    fn host(&self) -> Option<String> {
        None
    }
}

/// The code of one kind, with its own state, such as a connection pool, a client or configuration.
///
/// A handler without state can be a plain async function: see [`Registry::register`].
pub trait Handler: Send + Sync + 'static {
    /// Payload type of the kind.
    type Payload: Kind;

    /// Check what the schema cannot express. Called at enqueue, after the payload has passed the schema. It must not do
    /// I/O. A panic refuses the job and has no other effect.
    fn check(&self, payload: &Self::Payload) -> Vec<Problem> {
        let _ = payload;
        Vec::new()
    }

    /// Defaults for jobs of this kind that set no options of their own.
    fn defaults(&self) -> KindDefaults {
        KindDefaults::default()
    }

    /// The places for jobs of this kind, if there are fewer than workers. The engine starts no handler without a place.
    #[doc(hidden)]
    fn room(&self) -> Option<&Room> {
        None
    }

    /// Do the work. It runs in its own task: a panic fails the attempt and leaves the worker intact.
    fn run(&self, payload: Self::Payload, ctx: Context) -> impl Future<Output = Outcome> + Send;
}

/// A handler that other handlers use too.
impl<H: Handler> Handler for Arc<H> {
    type Payload = H::Payload;

    fn check(&self, payload: &Self::Payload) -> Vec<Problem> {
        H::check(self, payload)
    }

    fn defaults(&self) -> KindDefaults {
        H::defaults(self)
    }

    fn room(&self) -> Option<&Room> {
        H::room(self)
    }

    fn run(&self, payload: Self::Payload, ctx: Context) -> impl Future<Output = Outcome> + Send {
        H::run(self, payload, ctx)
    }
}
