//! Several addresses, and connections that break.

use super::Running;
use crate::call::Call;
use crate::json::Json;
use crate::stage::{PATIENCE, Stage, expect_result, expect_verdict};
use crate::world::State;

/// The first address is dead from the start.
pub(super) fn dead(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let payload = Json::from(serde_json::json!("at the other address"));
        expect_result(&stage.run("echo", payload.clone()).await?, &payload)
    })
}

/// The address that the worker uses ends, with its connections; the job that executes goes on.
pub(super) fn failover(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let sleeping = stage.job("sleep", serde_json::json!({ "ms": 2_000 }));
        stage.delivered(sleeping).await?;
        let used = |state: &State| state.calls(Call::Fetch).last().map(|fetch| fetch.server);
        let used = stage.wait(PATIENCE, "a request for jobs", used).await?;
        stage.servers[used].stop();
        expect_verdict(&stage.settled_within(sleeping, PATIENCE).await?, "succeeded")?;
        let payload = Json::from(serde_json::json!("at the other address"));
        let job = stage.job("echo", payload.clone());
        expect_result(&stage.settled_within(job, PATIENCE).await?, &payload)?;
        let beats = |state: &State| {
            state.calls(Call::Beat).filter(|beat| beat.server != used && beat.status == Some(200)).nth(1).map(|_| ())
        };
        stage.wait(PATIENCE, "beats at the other address", beats).await
    })
}

/// Connections that were used before are reset when the next request comes.
pub(super) fn resets(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        for n in 0..4 {
            stage.world.change(|state| state.resets = 2);
            let payload = Json::from(serde_json::json!({ "n": n }));
            let job = stage.job("sleep", serde_json::json!({ "ms": 200 }));
            expect_result(&stage.run("echo", payload.clone()).await?, &payload)?;
            expect_verdict(&stage.settled(job).await?, "succeeded")?;
        }
        Ok(())
    })
}
