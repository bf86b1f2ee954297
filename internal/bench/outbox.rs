//! Scenario `outbox`: rows that an application inserts in its own transactions become jobs. First many rows of one
//! transaction, then single rows, from the COMMIT to the start of the job, without and with a nudge.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::value::RawValue;

use super::environment::{RunChecks, RunEnvironment, rate_of, stop, until_whole};
use super::figure::{Target, percentile};
use super::load::payload;
use super::result_row::{ResultRow, Samples};
use super::{Bench, BenchError, Scenario};
use crate::job::JobId;
use crate::store::NewOutboxRow;

/// Time between two single rows.
const BETWEEN: Duration = Duration::from_millis(23);

pub(super) async fn run(bench: &Bench<'_>) -> Result<Vec<ResultRow>, BenchError> {
    let many = bench.jobs(50_000, 2_000);
    let single = bench.pick(500, 20);
    let mut moved = Samples::default();
    let mut late: [Samples; 4] = std::array::from_fn(|_| Samples::default());
    for round in bench.rounds() {
        let count = round.share_of(many);
        bench.progress.step("many rows", round);
        let (rate, checked) = Box::pin(move_many(bench, count)).await?;
        if round.counts() {
            moved.product(rate, count, checked);
        }
    }
    for round in bench.measured_rounds() {
        bench.progress.step("single rows", round);
        let [found, nudged] = singles(bench, single).await?;
        for (at, (late_ms, checked)) in [found, nudged].into_iter().enumerate() {
            late[2 * at].product(percentile(&late_ms, 50.0), single, checked);
            late[2 * at + 1].product(percentile(&late_ms, 99.0), single, checked.counted_before());
        }
    }
    let mut lines = vec![moved.line(
        Scenario::Outbox,
        "rows of the outbox that become jobs",
        "rows/s",
        &[Target::at_least(20_000.0)],
    )];
    let names = ["without a nudge, p50", "without a nudge, p99", "with a nudge, p50", "with a nudge, p99"];
    let aims = [Some(60.0), Some(150.0), None, Some(15.0)];
    for ((samples, name), aim) in late.into_iter().zip(names).zip(aims) {
        let aim = aim.map(Target::at_most);
        lines.push(samples.line(Scenario::Outbox, format!("COMMIT to start, {name}"), "ms", aim.as_slice()));
    }
    Ok(lines)
}

fn row(payload: &RawValue) -> NewOutboxRow {
    NewOutboxRow {
        id: JobId::new(),
        kind: "noop".to_owned(),
        payload: payload.get().to_owned(),
        queue: None,
        execute_at: None,
        options: None,
    }
}

/// Write many rows in one transaction, and wait until they are jobs. No runner starts them.
async fn move_many(bench: &Bench<'_>, count: u64) -> Result<(f64, RunChecks), BenchError> {
    let payload = payload(bench.settings.payload_bytes)?;
    let mut stage = RunEnvironment::open(bench).await?;
    let app = stage.app_without_work().await?;
    let rows: Vec<NewOutboxRow> = (0..count).map(|_| row(&payload)).collect();
    let mut writer = stage.store.outbox_writer().await?;
    writer.write(&rows).await?;
    let began = Instant::now();
    app.broker().nudge_outbox();
    while stage.store.outbox_state().await?.waiting > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let elapsed = began.elapsed();
    stop(app).await;
    let measured = (rate_of(count, elapsed), stage.check(0, count).await?);
    drop(writer);
    stage.close().await?;
    Ok(measured)
}

/// Write rows one by one, half of them with a nudge after the COMMIT. Return the times to the starts of the jobs in
/// milliseconds, sorted, without and with a nudge.
async fn singles(bench: &Bench<'_>, count: u64) -> Result<[(Vec<f64>, RunChecks); 2], BenchError> {
    let payload = payload(bench.settings.payload_bytes)?;
    let mut stage = RunEnvironment::open(bench).await?;
    let app = stage.app().await?;
    until_whole(&app).await?;
    let mut writer = stage.store.outbox_writer().await?;
    // Once a runner has found a row, it leads and looks ten times a second while rows come.
    writer.write(&[row(&payload)]).await?;
    stage.until_ended(1).await?;
    let mut measured = Vec::new();
    let mut done = 1;
    for nudge in [false, true] {
        let mut commits = BTreeMap::new();
        let first = JobId::new();
        for _ in 0..count {
            let row = row(&payload);
            let committed = writer.write(std::slice::from_ref(&row)).await?;
            if nudge {
                app.broker().nudge_outbox();
            }
            commits.insert(row.id, committed);
            tokio::time::sleep(BETWEEN).await;
        }
        done += count;
        stage.until_ended(done).await?;
        let mut late_ms = Vec::new();
        for (id, start) in stage.counter_connection.starts(first).await? {
            if let Some(committed) = commits.remove(&id) {
                late_ms.push((start - committed).num_microseconds().unwrap_or(i64::MAX) as f64 / 1e3);
            }
        }
        late_ms.sort_by(f64::total_cmp);
        let mut checked = stage.check(done, 0).await?;
        checked.exactly_once &= commits.is_empty();
        measured.push((late_ms, checked));
    }
    stop(app).await;
    drop(writer);
    stage.close().await?;
    let mut measured = measured.into_iter();
    let mut next = || measured.next().ok_or_else(|| BenchError::Failed("a measurement is missing".to_owned()));
    Ok([next()?, next()?])
}
