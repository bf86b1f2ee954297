//! Heartbeats: their rhythm, what they carry, and what their answers ask for.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::Running;
use crate::call::{Action, Call, Exchange, Fault};
use crate::json::Json;
use crate::protocol::LATE_LISTING;
use crate::stage::{Broken, Outcome, PATIENCE, SLACK, Stage, broken, expect_result, expect_verdict};
use crate::world::{Attempt, LEASE_MS, State};

fn beat(stage: &Stage) -> Duration {
    Duration::from_millis(stage.world.read(|state| state.setup.beat_ms))
}

/// Return the longest pause between two heartbeats from `since` until now.
fn longest_pause(state: &State, since: Instant) -> Duration {
    let mut times = vec![since];
    times.extend(state.calls(Call::Beat).map(|beat| beat.at).filter(|at| *at > since));
    times.push(Instant::now());
    times.windows(2).map(|pair| pair[1].duration_since(pair[0])).max().unwrap_or_default()
}

/// Both slots are blocked, and the beats come all the same.
pub(super) fn regular(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let jobs = [0, 1].map(|_| stage.job("block", serde_json::json!({ "ms": 4_000 })));
        for job in jobs {
            stage.delivered(job).await?;
        }
        let began = Instant::now();
        for job in jobs {
            let verdict = stage.settled(job).await?;
            expect_verdict(&verdict, "succeeded")?;
            expect_result(&verdict, &Json::Null)?;
        }
        let beat = beat(stage);
        let (pause, count) = stage.world.read(|state| {
            (longest_pause(state, began), state.calls(Call::Beat).filter(|beat| beat.at > began).count())
        });
        if pause > beat + SLACK {
            return broken(format!("{} ms without a beat", pause.as_millis()), "a beat every 500 ms");
        }
        let most = (began.elapsed().as_millis() / beat.as_millis()) as usize * 2 + 2;
        if count > most {
            return broken(format!("{count} beats within {:?}", began.elapsed()), "a beat every 500 ms");
        }
        for job in jobs {
            let listed = stage.world.read(|state| state.delivered(job).map(|(_, attempt)| attempt.beats.len()));
            if listed.unwrap_or(0) < 3 {
                return broken(format!("{listed:?} beats list a job of four seconds"), "every beat lists it");
            }
        }
        Ok(())
    })
}

/// Return the payload of a job that reports a checkpoint of nearly the largest size, and waits.
fn large_report(ms: u64) -> Json {
    let checkpoint = "x".repeat(60 << 10);
    Json::from(serde_json::json!({ "percent": 1, "note": "x", "checkpoint": checkpoint, "ms": ms }))
}

/// The checkpoints of the attempts are more than a client sends in one beat.
pub(super) fn large(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let payload = large_report(1_500);
        // Twice, because the first beats may come while few jobs have reported.
        for _ in 0..2 {
            // One answer has them all.
            let add = |state: &mut State| [(); 6].map(|()| state.add("conformance.progress", payload.clone()));
            let jobs = stage.world.change(add);
            let mut tokens = Vec::new();
            for job in jobs {
                tokens.push(stage.delivered(job).await?);
            }
            for job in jobs {
                expect_verdict(&stage.settled(job).await?, "succeeded")?;
            }
            let fewest = stage.world.read(|state| fewest_listed(state, &tokens));
            if let Some(fewest) = fewest.filter(|fewest| *fewest < tokens.len()) {
                let seen = format!("a beat that lists {fewest} of {} attempts with large checkpoints", tokens.len());
                return broken(seen, "every token in every beat, and the checkpoints in several of them");
            }
        }
        Ok(())
    })
}

/// Return the least number of these attempts that a beat listed while it left another one out: one that an earlier beat
/// had listed, and that had no verdict yet. A client makes each beat after the answer to the one before, and so it held
/// that attempt.
fn fewest_listed(state: &State, tokens: &[String]) -> Option<usize> {
    let attempts: Vec<&Attempt> = tokens.iter().filter_map(|token| state.attempts.get(token)).collect();
    let beats: BTreeSet<Instant> = attempts.iter().flat_map(|attempt| &attempt.beats).map(|(at, _)| *at).collect();
    let lists = |attempt: &Attempt, beat: Instant| attempt.beats.iter().any(|(at, _)| *at == beat);
    let leaves_out = |attempt: &Attempt, beat: Instant| {
        let was_listed = attempt.beats.first().is_some_and(|(first, _)| *first < beat);
        was_listed && attempt.verdict_at.is_none_or(|ended| beat < ended) && !lists(attempt, beat)
    };
    let partial = beats.into_iter().filter(|beat| attempts.iter().any(|attempt| leaves_out(attempt, *beat)));
    partial.map(|beat| attempts.iter().filter(|attempt| lists(attempt, beat)).count()).min()
}

pub(super) fn errors(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        stage.fault(Fault::new(Call::Beat, 3, Action::Status(500, None)));
        let sleeping = stage.job("sleep", serde_json::json!({ "ms": 3_000 }));
        stage.delivered(sleeping).await?;
        let fine = |state: &State| state.calls(Call::Beat).filter(|beat| beat.status == Some(200)).nth(1).map(|_| ());
        stage.wait(Duration::from_millis(LEASE_MS), "beats go on after errors, within the lease", fine).await?;
        expect_verdict(&stage.settled(sleeping).await?, "succeeded")
    })
}

/// Both addresses ask for a pause of a minute. A beat does not wait that long.
pub(super) fn unavailable(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        for server in [0, 1] {
            stage.fault(Fault::new(Call::Beat, 1, Action::Status(503, Some(60))).at(server));
        }
        let is = |status: u16| move |beat: &&Exchange| beat.status == Some(status);
        let refused = |state: &State| state.calls(Call::Beat).find(is(503)).map(|beat| beat.at);
        let refused = stage.wait(PATIENCE, "a beat that is answered with 503", refused).await?;
        let again = |state: &State| state.calls(Call::Beat).filter(is(200)).find(|beat| beat.at > refused).map(|_| ());
        stage
            .wait(Duration::from_millis(LEASE_MS), "the beat again within seconds, although 503 asks for more", again)
            .await
    })
}

/// The server takes only small beats. The client learns of it from 413, and sends fewer checkpoints in one.
pub(super) fn too_large(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let payload = large_report(30_000);
        let add = |state: &mut State| [(); 4].map(|()| state.add("conformance.progress", payload.clone()));
        let mut tokens = Vec::new();
        for job in stage.world.change(add) {
            tokens.push(stage.delivered(job).await?);
        }
        let saved = |token: &String, state: &State| {
            let attempt = state.attempts.get(token);
            attempt.is_some_and(|attempt| attempt.beats.iter().any(|(_, held)| held.get("checkpoint").is_some()))
        };
        let all_saved = |state: &State| tokens.iter().all(|token| saved(token, state)).then_some(());
        let lease = Duration::from_millis(LEASE_MS);
        stage.wait(lease, "beats with each checkpoint within the lease, and fewer in one after 413", all_saved).await
    })
}

/// Another session locks the row of the job, so what a beat says of it is not stored.
pub(super) fn unsaved(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let payload = serde_json::json!({ "percent": 42.5, "note": "half of it", "checkpoint": [7], "ms": 30_000 });
        let job = stage.world.change(|state| {
            let job = state.add("conformance.progress", payload.into());
            state.jobs[job].locked = true;
            job
        });
        let unsaved = |state: &State| state.delivered(job)?.1.unsaved;
        stage.wait(PATIENCE, "a beat with the checkpoint", unsaved).await?;
        let again = |state: &State| is_sent_again(state.delivered(job)?.1).then_some(());
        stage.wait(PATIENCE / 2, "a later beat with the report that was not stored", again).await
    })
}

/// Return whether each field of the report that was not stored is in a later beat.
fn is_sent_again(attempt: &Attempt) -> bool {
    let Some((_, unsaved)) = attempt.unsaved.and_then(|place| attempt.beats.get(place)) else { return false };
    let Json::Object(fields) = unsaved else { return false };
    let later = attempt.beats.iter().skip(attempt.unsaved.unwrap_or(0) + 1);
    fields
        .iter()
        .filter(|(name, value)| name != "token" && *value != Json::Null)
        .all(|(name, value)| later.clone().any(|(_, held)| held.get(name).is_some_and(|again| again.same(value))))
}

/// The verdict of an attempt gets no answer, and the job is handed out again. A beat says that the first attempt is
/// lost, and a later one stops the second.
pub(super) fn two_attempts(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let job = stage.job("sleep", serde_json::json!({ "ms": 60_000 }));
        let first = stage.delivered(job).await?;
        stage.fault(Fault::new(Call::Finish, usize::MAX, Action::CutBefore));
        stage.world.change(|state| state.cancelled.insert(first.clone()));
        let verdict = |state: &State| state.attempts.get(&first)?.verdict.clone();
        expect_verdict(&stage.wait(PATIENCE, "a verdict of the attempt that is cancelled", verdict).await?, "failed")?;
        stage.world.change(|state| state.jobs[job].waits = true);
        let newest =
            |state: &State| state.delivered(job).map(|(token, _)| token.clone()).filter(|token| *token != first);
        let second = stage.wait(PATIENCE, "the job is fetched again", newest).await?;

        stage.world.change(|state| {
            if let Some(attempt) = state.attempts.get_mut(&first) {
                (attempt.over, attempt.forced) = (true, Some("settled"));
            }
        });
        let told = |state: &State| state.attempts.get(&first)?.lost_told_at;
        let told = stage.wait(PATIENCE, "a beat that lists the attempt whose verdict has no answer", told).await?;
        stage.world.change(|state| state.faults.clear());
        let listed = |state: &State| {
            let attempt = state.attempts.get(&second)?;
            let goes_on = attempt.verdict.is_none() && attempt.beats.iter().filter(|(at, _)| *at > told).count() > 1;
            goes_on.then_some(())
        };
        stage.wait(PATIENCE / 2, "the second attempt goes on, and beats list it", listed).await?;
        stage.world.change(|state| state.cancelled.insert(second.clone()));
        stopped(stage, job, &second, PATIENCE).await
    })
}

/// A beat gets no answer. The next one must come before the lease is over.
pub(super) fn no_answer(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let sleeping = stage.job("sleep", serde_json::json!({ "ms": 12_000 }));
        stage.delivered(sleeping).await?;
        let fine = |state: &State| state.calls(Call::Beat).find(|beat| beat.status == Some(200)).map(|_| ());
        stage.wait(PATIENCE, "a beat", fine).await?;
        let began = Instant::now();
        stage.fault(Fault::new(Call::Beat, 1, Action::NoAnswer));
        let hung = move |state: &State| state.calls(Call::Beat).find(|beat| beat.at > began).map(|beat| beat.at);
        let hung = stage.wait(PATIENCE, "a beat", hung).await?;
        let again = move |state: &State| state.calls(Call::Beat).find(|beat| beat.at > hung).map(|_| ());
        let lease = Duration::from_millis(LEASE_MS);
        stage.wait(lease, "the next beat within the lease, while one gets no answer", again).await
    })
}

pub(super) fn not_registered(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let sleeping = stage.job("sleep", serde_json::json!({ "ms": 2_500 }));
        stage.delivered(sleeping).await?;
        stage.fault(Fault::new(Call::Beat, 1, Action::Status(404, None)));
        let again = |state: &State| state.registrations.get(1).map(|_| ());
        stage.wait(Duration::from_secs(5) + SLACK, "the program registers again after a beat with 404", again).await?;
        expect_verdict(&stage.settled(sleeping).await?, "succeeded")?;
        let payload = Json::from(serde_json::json!("after it"));
        expect_result(&stage.run("echo", payload.clone()).await?, &payload)
    })
}

pub(super) fn progress(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let note = format!("half of it\nis done {}", "ü".repeat(200));
        let checkpoint = Json::from(serde_json::json!({ "page": 7, "of": ["a", null] }));
        let payload = serde_json::json!({ "percent": 42.5, "note": note, "checkpoint": { "page": 7, "of": ["a", null] },
            "ms": 2_500 });
        let job = stage.job("progress", payload);
        stage.delivered(job).await?;
        let reported = |state: &State| {
            let (_, attempt) = state.delivered(job)?;
            attempt.beats.iter().rev().map(|(_, held)| held.clone()).find(|held| held.get("percent").is_some())
        };
        let held = stage.wait(2 * beat(stage) + SLACK, "a beat with the progress of the job", reported).await?;
        if held.get("percent").is_none_or(|percent| !percent.same(&Json::Number("42.5".to_owned()))) {
            return broken(held.brief(), "percent 42.5");
        }
        if !held.get("note").and_then(Json::as_text).is_some_and(|note| note.starts_with("half of it")) {
            return broken(held.brief(), "the note, at most 120 characters of it");
        }
        let verdict = stage.settled(job).await?;
        expect_result(&verdict, &serde_json::json!({ "began_with": null }).into())?;
        let saved = stage.world.read(|state| {
            let (_, attempt) = state.delivered(job)?;
            attempt.beats.iter().find_map(|(_, held)| held.get("checkpoint").cloned())
        });
        match saved {
            Some(saved) if saved.same(&checkpoint) => Ok(()),
            Some(saved) => broken(format!("the checkpoint {}", saved.brief()), checkpoint.brief()),
            None => broken("no beat with the checkpoint", checkpoint.brief()),
        }
    })
}

pub(super) fn checkpoint(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        // Some languages take a zero, an empty text and an empty list for nothing.
        for text in [r#"{"page":3,"text":"ü","none":null}"#, "0", "false", "\"\"", "[]", "{}"] {
            let checkpoint = Json::parse(text.as_bytes()).unwrap_or(Json::Null);
            let payload = serde_json::json!({ "percent": 1, "note": "x", "checkpoint": 2, "ms": 50 });
            let job = stage.world.change(|state| {
                let job = state.add("conformance.progress", payload.into());
                state.jobs[job].checkpoint = Some(checkpoint.clone());
                job
            });
            let verdict = stage.settled(job).await?;
            expect_result(&verdict, &Json::Object(vec![("began_with".to_owned(), checkpoint)]))?;
        }
        Ok(())
    })
}

/// Wait until a beat has told the program to stop an attempt, and then for its verdict: `failed`, and no other.
async fn stopped(stage: &mut Stage, job: usize, token: &str, within: Duration) -> Outcome {
    let told = |state: &State| state.attempts.get(token)?.cancel_told_at;
    stage.wait(PATIENCE, "a beat that lists the attempt", told).await?;
    let verdict = stage.settled_within(job, within).await?;
    expect_verdict(&verdict, "failed")
}

pub(super) fn cancel(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let job = stage.job("sleep", serde_json::json!({ "ms": 30_000 }));
        let token = stage.delivered(job).await?;
        stage.world.change(|state| state.cancelled.insert(token.clone()));
        stopped(stage, job, &token, 2 * beat(stage) + SLACK).await
    })
}

/// The handler cannot be stopped, and its success comes after the cancel.
pub(super) fn cancel_blocked(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let job = stage.job("block", serde_json::json!({ "ms": 3_000 }));
        let token = stage.delivered(job).await?;
        stage.world.change(|state| state.cancelled.insert(token.clone()));
        stopped(stage, job, &token, Duration::from_secs(3) + 2 * beat(stage) + SLACK).await
    })
}

/// The time of the attempt is over.
pub(super) fn deadline(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let began = Instant::now();
        let job = stage.world.change(|state| {
            let job = state.add("conformance.sleep", serde_json::json!({ "ms": 30_000 }).into());
            state.jobs[job].timeout_ms = 1_500;
            job
        });
        let limit = Duration::from_millis(1_500) + 4 * beat(stage) + SLACK;
        let verdict = stage.settled_within(job, limit).await?;
        expect_verdict(&verdict, "failed")?;
        if began.elapsed() < Duration::from_millis(1_400) {
            return broken(
                format!("the verdict after {:?}", began.elapsed()),
                "the verdict after timeout_ms, 1,500 ms",
            );
        }
        Ok(())
    })
}

/// Let an attempt be lost. Returns its token, and the time at which a beat has told the program so.
async fn lose(stage: &mut Stage, job: usize) -> Result<(String, Instant), Broken> {
    let token = stage.delivered(job).await?;
    stage.world.change(|state| {
        if let Some(attempt) = state.attempts.get_mut(&token) {
            attempt.over = true;
        }
    });
    let told = |state: &State| state.attempts.get(&token)?.lost_told_at;
    let told = stage.wait(PATIENCE, "a beat that lists the attempt", told).await?;
    Ok((token, told))
}

/// The only slot is freed when its attempt is lost.
pub(super) fn lost(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let job = stage.job("sleep", serde_json::json!({ "ms": 30_000 }));
        lose(stage, job).await?;
        let payload = Json::from(serde_json::json!("in the free slot"));
        let job = stage.job("echo", payload.clone());
        let verdict = stage.settled_within(job, 2 * beat(stage) + SLACK).await?;
        expect_result(&verdict, &payload)
    })
}

/// Every beat is refused from some moment on. A handler that can be stopped gives its job back before another worker
/// may start it. One that blocks is ended by force, or its success is sent all the same.
pub(super) fn lease_ends(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let sleeping = stage.job("sleep", serde_json::json!({ "ms": 60_000 }));
        let blocked = stage.job("block", serde_json::json!({ "ms": 11_000 }));
        let tokens = [stage.delivered(sleeping).await?, stage.delivered(blocked).await?];
        let listed = |state: &State| tokens.iter().all(|token| !state.attempts[token].beats.is_empty()).then_some(());
        stage.wait(PATIENCE, "a beat that lists both attempts", listed).await?;
        stage.fault(Fault::new(Call::Beat, usize::MAX, Action::Status(401, None)));
        let lease = Duration::from_millis(LEASE_MS);
        let verdict = |state: &State| state.attempts[&tokens[0]].verdict.clone();
        let expected = "a verdict of the attempt before its lease ends, because no beat is answered";
        expect_verdict(&stage.wait(lease + SLACK, expected, verdict).await?, "released")?;
        let verdict = stage.settled(blocked).await?;
        match verdict.get("verdict").and_then(Json::as_text) {
            Some("succeeded" | "released") => Ok(()),
            _ => broken(verdict.brief(), "the verdict released, or succeeded from a handler that went on to its end"),
        }
    })
}

/// The handler of a lost attempt cannot be stopped.
pub(super) fn lost_blocked(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let job = stage.job("block", serde_json::json!({ "ms": 15_000 }));
        let (token, told) = lose(stage, job).await?;
        // Calls that were made before may arrive a little later.
        let late = told + LATE_LISTING;
        stage.quiet(LATE_LISTING + 2 * beat(stage)).await?;
        // The answer with this job ends a request for jobs that was made before, and the next one is new.
        stage.run("echo", serde_json::json!("beside it")).await?;
        let newest = |state: &State| {
            let mut fetches = state.workers.values().filter_map(|of| of.fetch.as_ref());
            // A repeated request has the list of its first try.
            let new = fetches.find(|fetch| state.first_asked.get(&fetch.id).is_some_and(|made| *made > late))?;
            Some(new.body.tokens().contains(&token))
        };
        let is_fetched = stage.wait(PATIENCE, "another request for jobs", newest).await?;
        let beaten = stage.world.read(|state| {
            let beats = state.attempts.get(&token).map(|attempt| &attempt.beats);
            beats.is_some_and(|beats| beats.iter().any(|(at, _)| *at > late))
        });
        if is_fetched || beaten {
            let call = if beaten { "a beat" } else { "a request for jobs" };
            let seen = format!("{call} lists a token {LATE_LISTING:?} after a beat said that it is lost");
            return broken(seen, "no token that the worker does not hold any more");
        }
        Ok(())
    })
}
