//! Jobs that a handler enqueues through the library.

use std::time::Duration;

use super::Running;
use crate::call::{Action, Call, Fault};
use crate::json::Json;
use crate::stage::{Outcome, Stage, broken, expect_result};
use crate::world::Enqueue;

fn payload() -> serde_json::Value {
    serde_json::json!({ "kind": "conformance.echo", "payload": { "n": [1, "ü"] }, "queue": "elsewhere" })
}

/// Check an enqueue, and the result of the job that made it.
fn check(enqueue: &Enqueue, verdict: &Json) -> Outcome {
    for name in ["kind", "payload", "queue"] {
        let expected = Json::from(payload()[name].clone());
        if enqueue.body.get(name).is_none_or(|field| !field.same(&expected)) {
            return broken(format!("the enqueue {}", enqueue.body.brief()), format!("{name} {}", expected.brief()));
        }
    }
    if enqueue.key.as_ref().is_none_or(String::is_empty) {
        return broken("an enqueue without Idempotency-Key", "an Idempotency-Key");
    }
    expect_result(verdict, &Json::Object(vec![("id".to_owned(), Json::text(&enqueue.id))]))
}

pub(super) fn once(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        for count in 1..=2 {
            let verdict = stage.run("enqueue", payload()).await?;
            let enqueues = stage.world.read(|state| state.enqueues.clone());
            if enqueues.len() != count {
                return broken(format!("{} enqueues", enqueues.len()), format!("{count}"));
            }
            check(&enqueues[count - 1], &verdict)?;
            if count == 2 && enqueues[0].key == enqueues[1].key {
                return broken(
                    "the same Idempotency-Key for two jobs",
                    "an Idempotency-Key of its own for each enqueue",
                );
            }
        }
        Ok(())
    })
}

/// The answer is lost, and then a process says 503.
pub(super) fn repeated(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        for action in [Action::CutBefore, Action::Status(503, Some(1)), Action::CutInside] {
            stage.fault(Fault::new(Call::Enqueue, 1, action));
        }
        let job = stage.job("enqueue", payload());
        let verdict = stage.settled_within(job, Duration::from_secs(20)).await?;
        let enqueues = stage.world.read(|state| state.enqueues.clone());
        let Some(first) = enqueues.first() else { return broken("no enqueue", "an enqueue") };
        check(first, &verdict)?;
        if enqueues.iter().any(|enqueue| enqueue.key != first.key) {
            return broken("another Idempotency-Key for the repeated enqueue", "the same Idempotency-Key");
        }
        Ok(())
    })
}
