//! Kinds for tests and benches, registered only with `TICKR_TEST_KINDS=1`. Their jobs do nothing, take long, fail,
//! panic, block a thread, take memory, abort the process or resume at a checkpoint, as the payload requests.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Context, Failure, Kind, Outcome, Output, Registry};

/// Register all test kinds.
pub fn register(registry: &mut Registry) {
    registry
        .register(noop)
        .register(sleep)
        .register(fail)
        .register(panic)
        .register(spin)
        .register(abort)
        .register(steps)
        .register(hoard);
}

/// A job that does nothing. It accepts any fields, so that benches can choose the payload's size.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct Noop {}

impl Kind for Noop {
    const NAME: &'static str = "noop";
}

async fn noop(_: Noop, _ctx: Context) -> Outcome {
    Ok(().into())
}

/// A job that sleeps and reports progress. It ends when the attempt should stop.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sleep {
    /// Duration in milliseconds.
    #[schemars(range(max = 86_400_000))]
    ms: u64,
    /// Ignore the request to stop, until the future is dropped.
    #[serde(default)]
    stubborn: bool,
}

impl Kind for Sleep {
    const NAME: &'static str = "sleep";
}

async fn sleep(job: Sleep, ctx: Context) -> Outcome {
    let (began, steps) = (tokio::time::Instant::now(), 20);
    for step in 0..steps {
        // Each nap ends at the next whole millisecond of the timer. One after the other they would make a job too long.
        let nap = tokio::time::sleep_until(began + Duration::from_millis(job.ms) * (step + 1) / steps);
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

/// A job that fails the first `times` attempts, then succeeds.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fail {
    /// Number of attempts that fail. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    times: Option<u32>,
    /// Reject the job instead, without a retry.
    #[serde(default)]
    permanent: bool,
    /// Snooze for this many milliseconds instead of failing.
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

/// A job that panics.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Panic {}

impl Kind for Panic {
    const NAME: &'static str = "panic";
}

async fn panic(_: Panic, _ctx: Context) -> Outcome {
    panic!("panicked on request")
}

/// A job that blocks a thread of the runtime, as a badly written handler does.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Spin {
    /// Duration in milliseconds.
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

/// A job that aborts the whole process and so kills its runner.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Abort {
    /// Duration before the abort, in milliseconds.
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

/// A job of many steps, which saves a checkpoint after each one. Its attempts abort the process at these steps, one each.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Steps {
    /// Number of steps.
    #[schemars(range(max = 1_000_000))]
    steps: u32,
    /// Duration of a step, in milliseconds.
    #[serde(default)]
    #[schemars(range(max = 600_000))]
    ms: u64,
    /// The first attempt aborts the process before this step, the second one before the next one of these steps.
    #[serde(default)]
    abort_before: Vec<u32>,
}

impl Kind for Steps {
    const NAME: &'static str = "steps";
}

/// The checkpoint of `steps`, which is also its result.
#[derive(Default, Serialize, Deserialize)]
struct StepsDone {
    /// Number of steps that are done.
    done: u32,
    /// The step at which each attempt began.
    began_at: Vec<u32>,
}

async fn steps(job: Steps, ctx: Context) -> Outcome {
    let mut at = ctx.checkpoint::<StepsDone>()?.unwrap_or_default();
    at.began_at.push(at.done);
    let abort_before = job.abort_before.get(at.began_at.len() - 1);
    while at.done < job.steps {
        if abort_before == Some(&at.done) {
            ctx.checkpoint_saved().await?;
            std::process::abort();
        }
        tokio::time::sleep(Duration::from_millis(job.ms)).await;
        at.done += 1;
        ctx.save_checkpoint(&at)?;
    }
    Output::json(&at)
}

/// A job that allocates memory and keeps it, until the operating system stops the process.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Hoard {
    /// Amount of memory in MiB. The handler does not write to the memory, so only a limit of the address space stops
    /// it.
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
