//! What holds for every request.

use std::time::Duration;

use super::Running;
use crate::call::Call;
use crate::json::Json;
use crate::stage::{PATIENCE, START, Stage, broken, expect_result, expect_verdict};
use crate::world::{KINDS, LEASE_MS, QUEUE};

/// The program registers what the contract says.
pub(super) fn register(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let body = stage.world.read(|state| state.registrations.first().cloned()).unwrap_or(Json::Null);
        let texts = |name: &str| {
            let mut texts: Vec<String> = body
                .get(name)
                .and_then(Json::as_list)
                .unwrap_or_default()
                .iter()
                .filter_map(|item| item.as_text().map(str::to_owned))
                .collect();
            texts.sort();
            texts
        };
        let mut kinds: Vec<&str> = KINDS.to_vec();
        kinds.sort_unstable();
        if texts("kinds") != kinds {
            return broken(
                format!("the kinds {}", texts("kinds").join(", ")),
                format!("the kinds {}", kinds.join(", ")),
            );
        }
        if texts("queues") != [QUEUE] {
            return broken(format!("the queues {}", texts("queues").join(", ")), format!("TICKR_QUEUES, {QUEUE}"));
        }
        for (name, value) in [("slots", stage.world.read(|state| state.setup.slots)), ("lease_ms", LEASE_MS)] {
            if body.get(name).and_then(Json::as_u64) != Some(value) {
                let seen = body.get(name).unwrap_or(&Json::Null);
                return broken(format!("{name} is {}", seen.brief()), format!("{value}"));
            }
        }
        Ok(())
    })
}

/// The server refuses the API key. The program ends with an error.
pub(super) fn refused(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let asked = |state: &crate::world::State| state.calls(Call::Register).next().map(|_| ());
        stage.wait(START, "the program registers a worker", asked).await?;
        // A client may take the refusal for one of a kind that was declared just now.
        let expected = "the program ends with an error";
        match tokio::time::timeout(PATIENCE, stage.program.ended()).await {
            Ok(end) if end == "exit code 0" => broken("the program ended with exit code 0", expected),
            Ok(_) => Ok(()),
            Err(_) => broken(format!("the program runs {} s after 401", PATIENCE.as_secs()), expected),
        }
    })
}

/// Every call once.
pub(super) fn traffic(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let payload = Json::from(serde_json::json!({ "a": [1, "two", null] }));
        let verdict = stage.run("echo", payload.clone()).await?;
        expect_result(&verdict, &payload)?;
        let payload = serde_json::json!({ "kind": "conformance.echo", "payload": {}, "queue": "elsewhere" });
        let jobs = [
            (stage.job("fail", serde_json::json!({ "message": "no", "delay_ms": 5 })), "failed"),
            (stage.job("snooze", serde_json::json!({ "message": "later", "delay_ms": 5 })), "snoozed"),
            (stage.job("sleep", serde_json::json!({ "ms": 1_200 })), "succeeded"),
            (stage.job("enqueue", payload), "succeeded"),
        ];
        for (job, word) in jobs {
            let verdict = stage.settled(job).await?;
            expect_verdict(&verdict, word)?;
        }
        let count = |state: &crate::world::State| state.calls(Call::Beat).nth(1).map(|_| ());
        stage.wait(Duration::from_secs(5), "heartbeats", count).await
    })
}
