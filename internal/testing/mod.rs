//! Tests of handlers: one handler alone, or a whole runner on private servers.
//!
//! [`run`] executes a handler as a runner does, without servers:
//!
//! ```
//! use tickr::prelude::*;
//! use tickr::testing;
//!
//! #[derive(Serialize, Deserialize, JsonSchema)]
//! struct Refund {
//!     cents: u32,
//! }
//!
//! impl Kind for Refund {
//!     const NAME: &'static str = "refund";
//! }
//!
//! async fn refund(job: Refund, _ctx: Context) -> Outcome {
//!     if job.cents == 0 {
//!         return Err(Failure::reject("a refund needs an amount"));
//!     }
//!     Output::json(&job.cents)
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let outcome = testing::run(refund, Refund { cents: 0 }).await;
//! assert_eq!(outcome.unwrap_err(), Failure::reject("a refund needs an amount"));
//! # }
//! ```
//!
//! [`start`] starts a runner with a database of its own, on a MySQL and a Redis that only this process uses. It needs the
//! server programs on the machine, and the error says how to install them. `examples/testing.rs` of the repository is a
//! whole test.
//!
//! - `alone.rs`: [`run`], [`run_in`] and [`run_handler`]
//! - `runner.rs`: [`TestRunner`]
//! - `servers.rs`: the private servers of the process

mod alone;
mod runner;
mod servers;

pub use alone::{run, run_handler, run_in};
pub use runner::{Error, TestRunner, assert_enqueued, start, start_with};
