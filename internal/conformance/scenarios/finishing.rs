//! Verdicts whose answers are lost, late, or say no.

use std::time::Duration;

use super::Running;
use crate::call::{Action, Call, Fault};
use crate::json::Json;
use crate::stage::{NO_ANSWER, Outcome, PATIENCE, Stage, broken, expect_result, expect_verdict};
use crate::world::State;

/// Finish calls fail in these ways; the verdicts come in the end, unchanged and within this time.
async fn repeated(stage: &mut Stage, within: Duration, faults: Vec<Action>) -> Outcome {
    for action in faults {
        stage.fault(Fault::new(Call::Finish, 1, action));
    }
    let payload = Json::from(serde_json::json!({ "a": 1 }));
    let echoed = stage.job("echo", payload.clone());
    let failed = stage.job("fail", serde_json::json!({ "message": "once" }));
    let verdict = stage.settled_within(echoed, within).await?;
    expect_result(&verdict, &payload)?;
    expect_verdict(&stage.settled_within(failed, within).await?, "failed")
}

pub(super) fn lost(stage: &mut Stage) -> Running<'_> {
    let faults = vec![Action::CutBefore, Action::CutInside, Action::CutBefore];
    Box::pin(async move { repeated(stage, 2 * PATIENCE, faults).await })
}

pub(super) fn errors(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let late = Action::Slow(Duration::from_secs(2));
        let faults = vec![Action::Status(503, Some(1)), Action::Status(500, None), Action::Page, late];
        repeated(stage, 2 * PATIENCE, faults).await
    })
}

/// A proxy, or a change of the rights of the API key, refuses the call. That says nothing of the verdicts.
pub(super) fn forbidden(stage: &mut Stage) -> Running<'_> {
    let faults = vec![Action::Status(403, None), Action::Status(401, None)];
    Box::pin(async move { repeated(stage, PATIENCE, faults).await })
}

/// A call gets no answer at all. The client gives it up, and sends the verdicts again.
pub(super) fn no_answer(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move { repeated(stage, NO_ANSWER, vec![Action::NoAnswer]).await })
}

/// The server does not know the worker any more. It registers again, and no verdict is lost.
pub(super) fn not_registered(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        stage.fault(Fault::new(Call::Finish, 1, Action::Status(404, None)));
        // A client that registers again may drop the answer to its former request, so that one must bring no other job.
        let payload = Json::from(serde_json::json!("before it"));
        let job = stage.job("echo", payload.clone());
        let again = |state: &State| state.registrations.get(1).map(|_| ());
        stage.wait(PATIENCE, "the program registers again after a finish with 404", again).await?;
        expect_result(&stage.settled_within(job, PATIENCE).await?, &payload)?;
        let payload = Json::from(serde_json::json!("after it"));
        expect_result(&stage.run("echo", payload.clone()).await?, &payload)
    })
}

/// Large results wait while the finish calls before them have no answer. Together they are more than one body holds.
pub(super) fn large(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        stage.fault(Fault::new(Call::Finish, 2, Action::Slow(Duration::from_millis(800))));
        let jobs: Vec<usize> = (0..8).map(|_| stage.job("big", serde_json::json!({ "bytes": 120_000 }))).collect();
        for job in jobs {
            let verdict = stage.settled(job).await?;
            expect_verdict(&verdict, "succeeded")?;
            let length = verdict.get("result").and_then(Json::as_text).map(str::len);
            if length != Some(120_000) {
                return broken(verdict.brief(), "a text of 120,000 characters");
            }
        }
        Ok(())
    })
}

/// `lease_lost` and `unknown` are answers: the verdict is not sent again, and the worker goes on.
pub(super) fn refused(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let jobs = ["lease_lost", "unknown"].map(|word| (word, stage.job("sleep", serde_json::json!({ "ms": 600 }))));
        for (word, job) in jobs {
            let token = stage.delivered(job).await?;
            stage.world.change(|state| {
                if let Some(attempt) = state.attempts.get_mut(&token) {
                    attempt.forced = Some(word);
                }
            });
        }
        for (_, job) in jobs {
            stage.settled(job).await?;
        }
        let payload = Json::from(serde_json::json!("after it"));
        expect_result(&stage.run("echo", payload.clone()).await?, &payload)?;
        // A client that repeats such a verdict does so within a pause of its repetitions.
        stage.quiet(Duration::from_millis(1_500)).await?;
        let sent = stage.world.read(|state| jobs.map(|(_, job)| state.delivered(job).map_or(0, |(_, a)| a.verdicts)));
        if sent == [1, 1] { Ok(()) } else { broken(format!("{sent:?} verdicts"), "one verdict for each") }
    })
}

/// The server refuses a verdict, and no other of the same call. The program finishes that attempt as failed.
pub(super) fn invalid(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let refused = stage.job("sleep", serde_json::json!({ "ms": 400 }));
        let token = stage.delivered(refused).await?;
        stage.world.change(|state| {
            if let Some(attempt) = state.attempts.get_mut(&token) {
                attempt.forced = Some("refused");
            }
        });
        let payload = Json::from(serde_json::json!("beside it"));
        let echoed = stage.job("echo", payload.clone());
        expect_result(&stage.settled(echoed).await?, &payload)?;
        let again = stage.settled(refused).await?;
        expect_verdict(&again, "failed")?;
        let first = stage.world.read(|state| state.attempts.get(&token).and_then(|attempt| attempt.refused.clone()));
        let Some(first) = first else { return broken("no refused verdict", "a verdict of the sleep") };
        expect_verdict(&first, "succeeded")
    })
}

/// Another session locks the row of a job, so its verdict is not written yet. The program sends it again, and another
/// one meanwhile.
pub(super) fn locked(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let locked = stage.job("sleep", serde_json::json!({ "ms": 400 }));
        let token = stage.delivered(locked).await?;
        stage.world.change(|state| {
            if let Some(attempt) = state.attempts.get_mut(&token) {
                attempt.forced = Some("locked");
            }
        });
        let payload = Json::from(serde_json::json!("beside it"));
        let echoed = stage.job("echo", payload.clone());
        expect_result(&stage.settled(echoed).await?, &payload)?;
        let again = stage.settled(locked).await?;
        expect_verdict(&again, "succeeded")?;
        let first = stage.world.read(|state| state.attempts.get(&token).and_then(|attempt| attempt.refused.clone()));
        match first {
            Some(first) if first.same(&again) => Ok(()),
            Some(first) => broken(format!("{} and then {}", first.brief(), again.brief()), "the same verdict again"),
            None => broken("no verdict that was locked", "a verdict of the sleep"),
        }
    })
}
