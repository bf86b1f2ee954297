//! Requests for jobs: lost and late answers, errors, slots and drains.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::Running;
use crate::call::{Action, Call, Exchange, Fault};
use crate::json::Json;
use crate::stage::{NO_ANSWER, Outcome, PATIENCE, SLACK, Stage, broken, expect_result, expect_verdict};

/// Check that a job that enqueues another one was executed exactly once.
fn executed_once(stage: &Stage) -> Outcome {
    let keys: BTreeSet<Option<String>> =
        stage.world.read(|state| state.enqueues.iter().map(|enqueue| enqueue.key.clone()).collect());
    if keys.len() == 1 {
        return Ok(());
    }
    broken(format!("its handler ran {} times", keys.len()), "one execution for each token")
}

fn enqueue_payload() -> serde_json::Value {
    serde_json::json!({ "kind": "conformance.echo", "payload": { "n": 1 }, "queue": "elsewhere" })
}

/// Answers with jobs are lost before their first byte, and in the middle.
pub(super) fn lost(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        for action in [Action::CutBefore, Action::CutInside] {
            stage.fault(Fault::new(Call::Fetch, 2, action));
            stage.world.change(|state| state.enqueues.clear());
            let job = stage.job("enqueue", enqueue_payload());
            expect_verdict(&stage.settled(job).await?, "succeeded")?;
            executed_once(stage)?;
            // The next fault is for the next job.
            let payload = Json::from(serde_json::json!([1, 2]));
            expect_result(&stage.run("echo", payload.clone()).await?, &payload)?;
        }
        Ok(())
    })
}

/// Several requests after each other.
pub(super) fn several(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let sleeping = stage.job("sleep", serde_json::json!({ "ms": 1_500 }));
        for n in 0..6 {
            let payload = Json::from(serde_json::json!({ "n": n }));
            expect_result(&stage.run("echo", payload.clone()).await?, &payload)?;
        }
        expect_verdict(&stage.settled(sleeping).await?, "succeeded")
    })
}

/// Requests while jobs execute, and while a verdict has no answer.
pub(super) fn holding(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let sleeping = [1_500, 2_000].map(|ms| stage.job("sleep", serde_json::json!({ "ms": ms })));
        for n in 0..3 {
            stage.fault(Fault::new(Call::Finish, 1, Action::CutBefore));
            let payload = Json::from(serde_json::json!({ "n": n }));
            expect_result(&stage.run("echo", payload.clone()).await?, &payload)?;
        }
        for job in sleeping {
            expect_verdict(&stage.settled(job).await?, "succeeded")?;
        }
        Ok(())
    })
}

/// Three slots and seven jobs.
pub(super) fn slots(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let began = Instant::now();
        let jobs: Vec<usize> = (0..3).map(|_| stage.job("block", serde_json::json!({ "ms": 2_000 }))).collect();
        for job in &jobs {
            stage.delivered(*job).await?;
        }
        let more: Vec<usize> = (0..4).map(|_| stage.job("sleep", serde_json::json!({ "ms": 300 }))).collect();
        for job in jobs {
            expect_verdict(&stage.settled(job).await?, "succeeded")?;
        }
        if began.elapsed() > Duration::from_millis(4_000) + SLACK {
            let seen = format!("three jobs of two seconds took {:.1} s", began.elapsed().as_secs_f32());
            return broken(seen, "three jobs at once in three slots");
        }
        for job in more {
            expect_verdict(&stage.settled(job).await?, "succeeded")?;
        }
        Ok(())
    })
}

/// The same token comes again while its attempt executes.
pub(super) fn token_twice(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        // The handler waits for the answer of its enqueue, so it still executes when the token comes again.
        stage.fault(Fault::new(Call::Enqueue, 2, Action::Slow(Duration::from_millis(1_500))));
        let job = stage.job("enqueue", enqueue_payload());
        let sleeping = stage.job("sleep", serde_json::json!({ "ms": 1_500 }));
        let tokens = [stage.delivered(job).await?, stage.delivered(sleeping).await?];
        stage.world.change(|state| state.again.extend(tokens));
        let payload = Json::from(serde_json::json!("beside it"));
        expect_result(&stage.run("echo", payload.clone()).await?, &payload)?;
        expect_verdict(&stage.settled(job).await?, "succeeded")?;
        expect_verdict(&stage.settled(sleeping).await?, "succeeded")?;
        // A second execution would end a moment after the first one.
        stage.quiet(Duration::from_millis(1_700)).await?;
        executed_once(stage)
    })
}

/// Return the requests for jobs.
fn fetches(stage: &Stage) -> Vec<Exchange> {
    stage.world.read(|state| state.calls(Call::Fetch).cloned().collect())
}

/// Check that no request came to an address before its `Retry-After` was over.
fn obeyed(stage: &Stage, status: u16, seconds: u64) -> Outcome {
    let fetches = fetches(stage);
    for (at, refused) in fetches.iter().enumerate().filter(|(_, fetch)| fetch.status == Some(status)) {
        let next = fetches[at + 1..].iter().find(|fetch| fetch.server == refused.server);
        let pause = next.map(|next| next.at.duration_since(refused.answered_at.unwrap_or(refused.at)));
        if let Some(pause) = pause
            && pause < Duration::from_millis(seconds * 1_000 - 50)
        {
            let seen = format!("the next request to this address {} ms after {status}", pause.as_millis());
            return broken(seen, format!("a pause of {seconds} s, or another address"));
        }
    }
    Ok(())
}

/// Both addresses say `status` with a pause of two seconds.
async fn refused(stage: &mut Stage, status: u16) -> Outcome {
    for server in [0, 1] {
        stage.fault(Fault::new(Call::Fetch, 1, Action::Status(status, Some(2))).at(server));
    }
    let payload = Json::from(serde_json::json!([status]));
    // Ends the request that waits, so that the next one meets the fault.
    expect_result(&stage.run("echo", payload.clone()).await?, &payload)?;
    let once =
        move |state: &crate::world::State| state.calls(Call::Fetch).find(|f| f.status == Some(status)).map(|_| ());
    stage.wait(PATIENCE, format!("a request that is answered with {status}"), once).await?;
    let job = stage.job("echo", payload.clone());
    expect_result(&stage.settled_within(job, Duration::from_secs(2 + 5) + SLACK).await?, &payload)?;
    obeyed(stage, status, 2)
}

pub(super) fn unavailable(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move { refused(stage, 503).await })
}

pub(super) fn overloaded(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move { refused(stage, 429).await })
}

/// Each request fails for a time; then the program goes on, and it has not asked in a hurry.
async fn fails_for_a_time(stage: &mut Stage, action: Action, status: u16) -> Outcome {
    const MOST: usize = 25;
    stage.fault(Fault::new(Call::Fetch, usize::MAX, action));
    let payload = Json::from(serde_json::json!([status]));
    expect_result(&stage.run("echo", payload.clone()).await?, &payload)?;
    let failed =
        move |state: &crate::world::State| state.calls(Call::Fetch).find(|f| f.status == Some(status)).map(|_| ());
    stage.wait(PATIENCE, format!("a request that is answered with {status}"), failed).await?;
    let count = fetches(stage).len();
    stage.quiet(Duration::from_secs(4)).await?;
    let count = fetches(stage).len() - count;
    if count > MOST {
        return broken(format!("{count} requests within four seconds"), "growing pauses");
    }
    stage.world.change(|state| state.faults.clear());
    let job = stage.job("echo", payload.clone());
    expect_result(&stage.settled_within(job, Duration::from_secs(5) + SLACK).await?, &payload)
}

pub(super) fn errors(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move { fails_for_a_time(stage, Action::Status(500, None), 500).await })
}

pub(super) fn pages(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move { fails_for_a_time(stage, Action::Page, 502).await })
}

/// The answer with a job comes three seconds after the job was handed out.
pub(super) fn slow(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        stage.fault(Fault::new(Call::Fetch, 1, Action::Slow(Duration::from_secs(3))));
        let job = stage.job("enqueue", enqueue_payload());
        expect_verdict(&stage.settled(job).await?, "succeeded")?;
        executed_once(stage)
    })
}

/// A request for jobs gets no answer at all. The client gives it up, and sends it again.
pub(super) fn no_answer(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let wait = Duration::from_millis(stage.world.read(|state| state.asked_wait_ms));
        let payload = Json::from(serde_json::json!("after it"));
        let job = stage.job("echo", payload.clone());
        expect_result(&stage.settled_within(job, wait + NO_ANSWER).await?, &payload)
    })
}

/// An answer counts although its request was long at the server, or was repeated after a long try. An answer that was
/// long on its way counts as lost.
pub(super) fn late(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        // Longer than a quarter of the lease, which is 2.5 s.
        let long = Duration::from_secs(3);
        for cuts in [0, 1] {
            stage.quiet(long).await?;
            stage.fault(Fault::new(Call::Fetch, cuts, Action::CutBefore));
            let payload = Json::from(serde_json::json!({ "cuts": cuts }));
            let job = stage.job("echo", payload.clone());
            expect_result(&stage.settled(job).await?, &payload)?;
            let dropped = move |state: &crate::world::State| {
                let attempts = state.attempts_of(job);
                attempts.iter().any(|(_, attempt)| attempt.delivered_at.is_some() && attempt.verdict.is_none())
            };
            if stage.world.read(dropped) {
                let seen = format!("the job of an answer after {} s is not begun, and comes back", long.as_secs());
                return broken(seen, "the job of an answer is executed that was not long on its way");
            }
        }
        stage.fault(Fault::new(Call::Fetch, 1, Action::Late(long)));
        // One answer has both.
        let jobs = stage.world.change(|state| {
            let sleep = serde_json::json!({ "ms": 500 });
            [state.add("conformance.enqueue", enqueue_payload().into()), state.add("conformance.sleep", sleep.into())]
        });
        for job in jobs {
            expect_verdict(&stage.settled(job).await?, "succeeded")?;
        }
        let settled_at = Instant::now();
        let beaten = move |state: &crate::world::State| {
            state.calls(Call::Beat).find(|beat| beat.at > settled_at && beat.status.is_some()).map(|_| ())
        };
        stage.wait(PATIENCE, "the next beat", beaten).await?;
        let begun = stage.world.read(|state| {
            let mut late = state.attempts.values().filter(|attempt| attempt.late);
            let begun = late.find(|attempt| attempt.listed || !attempt.beats.is_empty() || attempt.verdict.is_some());
            begun.map(|attempt| state.jobs[attempt.job].kind.clone())
        });
        if let Some(kind) = begun {
            let seen = format!("a {kind} is begun or listed, of an answer that was {} s on its way", long.as_secs());
            return broken(seen, "none of its jobs is begun or listed, and later requests get them again");
        }
        executed_once(stage)
    })
}

/// The server does not know the worker any more. The job that executes goes on.
pub(super) fn not_registered(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let sleeping = stage.job("sleep", serde_json::json!({ "ms": 2_000 }));
        stage.delivered(sleeping).await?;
        stage.world.change(|state| state.workers.clear());
        let again = |state: &crate::world::State| state.registrations.get(1).map(|_| ());
        stage.wait(Duration::from_secs(5) + SLACK, "the program registers again", again).await?;
        expect_verdict(&stage.settled(sleeping).await?, "succeeded")?;
        let payload = Json::from(serde_json::json!("after it"));
        expect_result(&stage.run("echo", payload.clone()).await?, &payload)?;
        let attempts = stage.world.read(|state| state.attempts_of(sleeping).len());
        if attempts == 1 { Ok(()) } else { broken(format!("{attempts} attempts of the job"), "its token in `holding`") }
    })
}

pub(super) fn drain(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let beat = Duration::from_millis(stage.world.read(|state| state.setup.beat_ms));
        let sleeping = stage.job("sleep", serde_json::json!({ "ms": 1_500 }));
        stage.delivered(sleeping).await?;
        let before = stage.world.change(|state| {
            state.drained = true;
            state.calls(Call::Fetch).count()
        });
        let job = stage.job("echo", serde_json::json!(1));
        expect_verdict(&stage.settled(sleeping).await?, "succeeded")?;
        let asked = move |state: &crate::world::State| (state.calls(Call::Fetch).count() >= before + 3).then_some(());
        stage.wait(3 * beat + Duration::from_secs(5), "the drained worker asks again after beat_ms", asked).await?;
        let fetches = fetches(stage);
        for pair in fetches[before..].windows(2) {
            let Some(answered) = pair[0].answered_at else { continue };
            let pause = pair[1].at.saturating_duration_since(answered);
            if pause < beat.mul_f32(0.7) {
                let seen = format!("a request {} ms after the answer with drain", pause.as_millis());
                return broken(seen, format!("the next request after beat_ms, {} ms", beat.as_millis()));
            }
        }
        stage.world.change(|state| state.drained = false);
        expect_result(&stage.settled_within(job, beat + Duration::from_secs(5)).await?, &serde_json::json!(1).into())
    })
}
