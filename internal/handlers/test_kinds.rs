//! Kinds for tests and benches, registered only with `TICKR_TEST_KINDS=1`: jobs that do nothing, take long, fail, panic,
//! block a thread or abort the process, on request.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Context, Failure, Kind, Outcome, Output, Registry};

/// Register them all.
pub fn register(registry: &mut Registry) {
    registry
        .register(noop)
        .register(sleep)
        .register(fail)
        .register(panic)
        .register(spin)
        .register(abort)
        .register(hoard);
}

/// Does nothing. Takes any fields, so that benches can choose the payload's size.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct Noop {}

impl Kind for Noop {
    const NAME: &'static str = "noop";
}

async fn noop(_: Noop, _ctx: Context) -> Outcome {
    Ok(().into())
}

/// Sleeps, reporting progress, and stops when told to.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sleep {
    /// How long, in milliseconds.
    #[schemars(range(max = 86_400_000))]
    ms: u64,
    /// Go on sleeping when told to stop, until dropped.
    #[serde(default)]
    stubborn: bool,
}

impl Kind for Sleep {
    const NAME: &'static str = "sleep";
}

async fn sleep(job: Sleep, ctx: Context) -> Outcome {
    let steps = 20;
    for step in 0..steps {
        let nap = tokio::time::sleep(Duration::from_millis(job.ms) / steps);
        if job.stubborn {
            nap.await;
        } else {
            tokio::select! {
                () = nap => {}
                () = ctx.stopped() => return Err(Failure::retry("told to stop")),
            }
        }
        ctx.progress(f64::from(step + 1) * 100.0 / f64::from(steps), "sleeping");
    }
    Output::json(&serde_json::json!({"slept_ms": job.ms}))
}

/// Fails the first `times` attempts, then succeeds.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fail {
    /// How many attempts fail; all of them when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    times: Option<u32>,
    /// Reject the job instead: no retry.
    #[serde(default)]
    permanent: bool,
    /// Snooze for this long instead of failing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 86_400_000))]
    snooze_ms: Option<u64>,
}

impl Kind for Fail {
    const NAME: &'static str = "fail";
}

async fn fail(job: Fail, ctx: Context) -> Outcome {
    if job.permanent {
        return Err(Failure::reject("rejected on request"));
    }
    if job.times.is_some_and(|times| ctx.attempt() > times) {
        return Output::json(&serde_json::json!({"attempt": ctx.attempt()}));
    }
    match job.snooze_ms {
        Some(ms) => Err(Failure::snooze(Duration::from_millis(ms), "snoozed on request")),
        None => Err(Failure::retry(format!("failed on request, attempt {}", ctx.attempt()))),
    }
}

/// Panics.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Panic {}

impl Kind for Panic {
    const NAME: &'static str = "panic";
}

async fn panic(_: Panic, _ctx: Context) -> Outcome {
    panic!("panicked on request")
}

/// Blocks a thread of the runtime, as a badly written handler does.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Spin {
    /// How long, in milliseconds.
    #[schemars(range(max = 600_000))]
    ms: u64,
}

impl Kind for Spin {
    const NAME: &'static str = "spin";
}

async fn spin(job: Spin, _ctx: Context) -> Outcome {
    let end = std::time::Instant::now() + Duration::from_millis(job.ms);
    while std::time::Instant::now() < end {
        std::hint::spin_loop();
    }
    Ok(().into())
}

/// Aborts the whole process: the job that kills its runner.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Abort {
    /// How long it runs before, in milliseconds.
    #[serde(default)]
    #[schemars(range(max = 600_000))]
    after_ms: u64,
}

impl Kind for Abort {
    const NAME: &'static str = "abort";
}

async fn abort(job: Abort, _ctx: Context) -> Outcome {
    tokio::time::sleep(Duration::from_millis(job.after_ms)).await;
    std::process::abort()
}

/// Takes memory and gives none back: the job that makes the system stop its process.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Hoard {
    /// How much, in MiB. What the handler takes it does not use, so that only a limit of the address space stops it.
    #[schemars(range(max = 65_536))]
    mib: usize,
}

impl Kind for Hoard {
    const NAME: &'static str = "hoard";
}

async fn hoard(job: Hoard, _ctx: Context) -> Outcome {
    let mut taken = Vec::new();
    for _ in 0..job.mib / 16 {
        taken.push(vec![0_u8; 16 << 20]);
        tokio::task::yield_now().await;
    }
    Output::json(&serde_json::json!({"mib": taken.len() * 16}))
}
