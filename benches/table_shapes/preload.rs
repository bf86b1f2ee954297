//! A history of jobs for the growth phases, created on the server.

use anyhow::Result;
use chrono::Utc;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _};

use crate::bench::Bench;
use crate::lane::{KIND, QUEUE, RUNNER};
use crate::shape::Shape;

/// Load finished and waiting jobs that are older than all jobs of the phases.
pub(crate) async fn preload(bench: &Bench, shape: Shape) -> Result<()> {
    const CHUNK: usize = 10_000;
    let mut conn = bench.options.clone().database(&shape.database()).connect().await?;
    let hour_ms = 3_600_000;
    for (total, finished, age_hours) in [(bench.args.growth, true, 72), (bench.args.growth_waiting, false, 24)] {
        let base_ms = Utc::now().timestamp_millis() - age_hours * hour_ms;
        for start in (0..total).step_by(CHUNK) {
            let rows = format!(
                "SELECT UNHEX(CONCAT(LPAD(HEX({base_ms} + n), 12, '0'), '70008', LPAD(HEX(n), 15, '0'))) AS id, n FROM (
                    SELECT {start} + a.d + 10 * b.d + 100 * c.d + 1000 * e.d AS n
                    FROM digits a, digits b, digits c, digits e) AS numbers WHERE n < {total}"
            );
            let payload = "CONCAT('{\"to\":\"', n, '@example.test\",\"body\":\"', REPEAT('x', 160), '\"}')";
            let asked = "id, queue, kind, payload, priority, max_attempts, timeout_ms, created_at";
            let asked_values = format!("id, '{QUEUE}', '{KIND}', {payload}, 0, 5, 30000, UTC_TIMESTAMP(6)");
            let execute_at = if finished { "NOW(3) - INTERVAL 2 DAY" } else { "NOW(3) + INTERVAL 30 DAY" };
            let (state, finished_at) = if finished {
                ("3", "NOW(6) - INTERVAL 1 DAY")
            } else {
                ("0", if shape.has_full_width_end() { "'1970-01-01'" } else { "NULL" })
            };
            let mut statements = Vec::new();
            if shape.is_wide() {
                let (due, due_value) = match (shape.due_column(), finished) {
                    ("due_at", true) => (", due_at", ", NULL".to_owned()),
                    ("due_at", false) => (", due_at", format!(", {execute_at}")),
                    _ => ("", String::new()),
                };
                statements.push(format!(
                    "INSERT INTO jobs ({asked}, state, finished_at, execute_at {due})
                     SELECT {asked_values}, {state}, {finished_at}, {execute_at} {due_value} FROM ({rows}) AS r ORDER BY n"
                ));
            } else {
                let (end, end_values) = if finished && !shape.ends_in_ledger() {
                    (", state, finished_at", format!(", {state}, {finished_at}"))
                } else {
                    ("", String::new())
                };
                statements.push(format!(
                    "INSERT INTO jobs ({asked} {end}) SELECT {asked_values} {end_values} FROM ({rows}) AS r ORDER BY n"
                ));
                if !finished {
                    let (kind, kind_value) =
                        if shape == Shape::C3 { ("", String::new()) } else { ("kind,", format!("'{KIND}',")) };
                    statements.push(format!(
                        "INSERT INTO owed (id, queue, {kind} priority, execute_at, max_attempts)
                         SELECT id, '{QUEUE}', {kind_value} 0, {execute_at}, 5 FROM ({rows}) AS r ORDER BY n"
                    ));
                }
            }
            if finished && shape.keeps_ledger() {
                statements.push(format!(
                    "INSERT INTO attempts (job_id, number, runner, started_at, finished_at, verdict, end_state)
                     SELECT id, 1, '{RUNNER}', {execute_at}, {finished_at}, 0, 3 FROM ({rows}) AS r ORDER BY n"
                ));
            }
            for statement in statements {
                conn.execute(AssertSqlSafe(statement)).await?;
            }
        }
    }
    for table in ["jobs", "attempts", "owed"] {
        if table != "owed" || !shape.is_wide() {
            conn.execute(AssertSqlSafe(format!("ANALYZE TABLE {table}"))).await?;
        }
    }
    conn.close().await?;
    Ok(())
}
