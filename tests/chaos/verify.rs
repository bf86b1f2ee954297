//! `tickr verify`, as an operator runs it, directly against the servers.

use std::process::Stdio;

use anyhow::Context as _;
use serde_json::Value;
use tokio::process::Command;

use crate::world::World;

/// Run it and return the violations that it found.
pub(crate) async fn run(world: &World) -> anyhow::Result<Vec<String>> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tickr"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TICKR_") {
            command.env_remove(name);
        }
    }
    let output = command
        .args(["verify", "--json"])
        .current_dir(&world.dir)
        .env("TICKR_MYSQL_URL", world.servers.mysql_url())
        .env("TICKR_REDIS_URL", world.servers.redis_url()?)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let report: Value = serde_json::from_str(&said).with_context(|| {
        format!("tickr verify: {} {said} {}", output.status, String::from_utf8_lossy(&output.stderr))
    })?;
    let mut wrong = Vec::new();
    for check in report["checks"].as_array().into_iter().flatten() {
        if check["faults"] != 0 || check.get("skipped").is_some() {
            wrong.push(format!("tickr verify: {check}"));
        }
    }
    if report["ok"] != true || !output.status.success() {
        wrong.push(format!("tickr verify ended with {} and ok: {}", output.status, report["ok"]));
    }
    Ok(wrong)
}
