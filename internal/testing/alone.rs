//! One handler, executed without servers.

use std::future::Future;

use serde_json::value::to_raw_value;

use crate::handlers::{Context, Failure, Handler, Kind, Outcome, Ran, Registered, Registry};

/// Check a payload as an enqueue does, then execute it with this async function. The context is that of the first of
/// five attempts, with one minute of time and no runner.
///
/// A payload that enqueue refuses is a [`Failure::Reject`] that names its problems. A panic of the handler is a panic of
/// the test.
///
/// # Panics
/// When the kind's name is not legal or the payload cannot be written as JSON.
pub async fn run<P, F, Fut>(handler: F, payload: P) -> Outcome
where
    P: Kind,
    F: Fn(P, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Outcome> + Send + 'static,
{
    run_in(Context::detached(P::NAME), handler, payload).await
}

/// Do what [`run`] does in this context, which has a checkpoint to begin with ([`Context::with_checkpoint`]), or from which
/// the test reads the one that the handler saved ([`Context::checkpoint`]).
///
/// # Panics
/// As [`run`].
pub async fn run_in<P, F, Fut>(context: Context, handler: F, payload: P) -> Outcome
where
    P: Kind,
    F: Fn(P, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Outcome> + Send + 'static,
{
    let mut kinds = Registry::new();
    kinds.register(handler);
    execute(context, kinds.get(P::NAME), &payload).await
}

/// Do what [`run`] does with a handler that has its own state or its own check.
///
/// # Panics
/// As [`run`].
pub async fn run_handler<H: Handler>(handler: H, payload: H::Payload) -> Outcome {
    let mut kinds = Registry::new();
    kinds.register_handler(handler);
    let name = <H::Payload as Kind>::NAME;
    execute(Context::detached(name), kinds.get(name), &payload).await
}

#[expect(clippy::expect_used, reason = "a mistake in the caller's own test")]
async fn execute<P: Kind>(context: Context, kind: Option<&Registered>, payload: &P) -> Outcome {
    let kind = kind.expect("the kind was registered above");
    let raw = to_raw_value(payload).expect("the payload can be written as JSON");
    let refused = |detail: String| Err(Failure::reject(format!("the payload is refused at enqueue: {detail}")));
    match kind.check(&raw) {
        Err(panicked) => return refused(format!("{panicked}: {}", panicked.message)),
        Ok(problems) if !problems.is_empty() => {
            let said: Vec<String> =
                problems.iter().map(|problem| format!("{} {}", problem.pointer, problem.detail)).collect();
            return refused(said.join("; "));
        }
        Ok(_) => {}
    }
    match kind.run(raw, context).await {
        Ran::Returned(outcome) => outcome,
        Ran::Unread(why) => Err(Failure::reject(format!("read the payload as {}: {why}", P::NAME))),
    }
}
