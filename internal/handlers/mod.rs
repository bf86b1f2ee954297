//! Handlers: the code that does a job's work, and the registry that finds it by kind.
//!
//! A kind of your own is a payload type, one async function and one `register`:
//!
//! ```
//! use schemars::JsonSchema;
//! use serde::{Deserialize, Serialize};
//! use tickr::handlers::{Context, Kind, Registry};
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
//! async fn greet(greeting: Greeting, ctx: Context) -> tickr::handlers::Outcome {
//!     println!("attempt {}: hello {}", ctx.attempt(), greeting.name);
//!     Ok(().into())
//! }
//!
//! let mut registry = Registry::new();
//! registry.register(greet);
//! ```
//!
//! - [`Kind`], [`Handler`]: what to implement
//! - [`Context`]: what a running handler may ask and say
//! - [`Output`], [`Failure`], [`Outcome`]: how it ends
//! - [`Registry`]: kinds by name, with the JSON Schemas that guard enqueue
//! - [`email`], [`http`]: the kinds that ship, one folder each

pub mod email;
pub mod http;

mod context;
mod outcome;
mod panicked;
mod registry;
pub mod report;
pub mod test_kinds;
pub mod wording;

pub use context::{Context, ContextParts, ExchangeSlot, ProgressSlot};
pub use outcome::{Failure, FollowUp, Outcome, Output};
pub use panicked::{Panicked, panic_message};
pub use registry::{KindDefaults, Problem, Ran, Registered, Registry};

use std::future::Future;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A payload type. It names the kind whose handler takes it; its JSON Schema is served and enforced at enqueue.
///
/// Derive with `#[serde(deny_unknown_fields)]`, so that a misspelt field is refused at enqueue instead of ignored.
pub trait Kind: Serialize + DeserializeOwned + JsonSchema + Send + 'static {
    /// The name of the kind: see [`Name`](crate::job::Name) for what it may contain.
    const NAME: &'static str;
}

/// The code for one kind, with state of its own (a connection pool, a client, configuration).
///
/// For a handler without state a plain async function will do: [`Registry::register`].
pub trait Handler: Send + Sync + 'static {
    /// The input.
    type Payload: Kind;

    /// What the schema cannot say: called at enqueue, after the payload fits the schema. Must not do I/O. A panic refuses
    /// the job, and harms nothing else.
    fn check(&self, payload: &Self::Payload) -> Vec<Problem> {
        let _ = payload;
        Vec::new()
    }

    /// Defaults for jobs of this kind that ask for nothing else.
    fn defaults(&self) -> KindDefaults {
        KindDefaults::default()
    }

    /// Does the work. Runs in a task of its own: a panic fails the attempt, not the worker.
    fn run(&self, payload: Self::Payload, ctx: Context) -> impl Future<Output = Outcome> + Send;
}
