//! SIGTERM.

use std::time::{Duration, Instant};

use super::Running;
use crate::call::{Action, Call, Fault};
use crate::stage::{Outcome, PATIENCE, SLACK, Stage, broken, expect_verdict};

/// Time after the signal within which a request for jobs may still arrive.
const ON_ITS_WAY: Duration = Duration::from_millis(300);

/// Check the end of the program: in time, with exit code 0, after DELETE, and without a further request for jobs.
async fn ended(stage: &mut Stage, within: Duration) -> Outcome {
    let end = stage.ended_within(within).await?;
    if end != "exit code 0" {
        return broken(format!("the program ended with {end}\n{}", stage.program.output()), "exit code 0");
    }
    let (late, left) = stage.world.read(|state| {
        let stopped = state.stopped_at.unwrap_or_else(Instant::now) + ON_ITS_WAY;
        (state.calls(Call::Fetch).filter(|fetch| fetch.at > stopped).count(), !state.left.is_empty())
    });
    if late > 0 {
        return broken(format!("{late} requests for jobs after SIGTERM"), "no request for jobs");
    }
    if left { Ok(()) } else { broken("the program ended without DELETE", "DELETE /v1/workers/{id}") }
}

/// Check the verdict of a job that was in hand.
fn verdict(stage: &Stage, job: usize, word: &str) -> Outcome {
    match stage.world.read(|state| state.verdict(job).cloned()) {
        Some(verdict) => expect_verdict(&verdict, word),
        None => broken(format!("no verdict of the {}", stage.kind(job)), format!("the verdict {word}")),
    }
}

/// What ends within the grace succeeds, and nothing new begins.
pub(super) fn finishes(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let jobs = [
            stage.job("sleep", serde_json::json!({ "ms": 2_500 })),
            stage.job("block", serde_json::json!({ "ms": 2_500 })),
        ];
        for job in jobs {
            stage.started(job).await?;
        }
        stage.stop().await;
        tokio::time::sleep(ON_ITS_WAY).await;
        let late = stage.job("echo", serde_json::json!("too late"));
        ended(stage, Duration::from_millis(2_500) + Duration::from_secs(2) + SLACK).await?;
        for job in jobs {
            verdict(stage, job, "succeeded")?;
        }
        let taken = stage.world.read(|state| state.verdict(late).is_some());
        if taken { broken("a job that came after SIGTERM was executed", "no further job") } else { Ok(()) }
    })
}

/// What does not end within the grace is given back.
pub(super) fn releases(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let long = [
            stage.job("sleep", serde_json::json!({ "ms": 60_000 })),
            stage.job("block", serde_json::json!({ "ms": 60_000 })),
        ];
        let short = stage.job("sleep", serde_json::json!({ "ms": 1_300 }));
        for job in [long[0], long[1], short] {
            stage.started(job).await?;
        }
        stage.stop().await;
        ended(stage, Duration::from_millis(1_500) + Duration::from_secs(3) + SLACK).await?;
        verdict(stage, short, "succeeded")?;
        for job in long {
            verdict(stage, job, "released")?;
        }
        Ok(())
    })
}

/// The answer to the last verdicts is lost, and the program repeats them before it ends.
pub(super) fn finish_lost(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let job = stage.job("sleep", serde_json::json!({ "ms": 1_500 }));
        stage.started(job).await?;
        stage.stop().await;
        stage.fault(Fault::new(Call::Finish, 2, Action::CutBefore));
        ended(stage, Duration::from_millis(1_500) + Duration::from_secs(3) + SLACK).await?;
        verdict(stage, job, "succeeded")?;
        let answered = stage.world.read(|state| state.delivered(job).is_some_and(|(_, a)| a.answered_at.is_some()));
        if answered {
            Ok(())
        } else {
            broken("the program ended without an answer to its verdict", "the verdict again")
        }
    })
}

/// A request for jobs that waits does not hold up the end.
pub(super) fn while_waiting(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let beaten = |state: &crate::world::State| state.calls(Call::Beat).next().map(|_| ());
        stage.wait(PATIENCE, "a beat", beaten).await?;
        stage.stop().await;
        ended(stage, Duration::from_secs(1) + SLACK).await
    })
}

/// The second signal ends the program at once.
pub(super) fn twice(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let job = stage.job("block", serde_json::json!({ "ms": 60_000 }));
        stage.started(job).await?;
        stage.stop().await;
        // Two signals in a moment would count as one.
        stage.quiet(Duration::from_millis(500)).await?;
        stage.program.signal("TERM").await;
        match stage.ended_within(Duration::from_secs(1) + SLACK).await {
            Ok(_) => Ok(()),
            Err(broken) => Err(crate::stage::Broken {
                expected: "the program ends at once after a second SIGTERM".to_owned(),
                ..broken
            }),
        }
    })
}
