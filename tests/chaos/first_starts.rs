//! What happens before a run begins: several migrations at once make the tables and are killed while they do so. The
//! runners then start on the tables that are left.

use std::process::Stdio;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::process::Command;

use crate::servers::Servers;

/// Number of times that migrations are killed, and number of migrations that run at once.
const ROUNDS: usize = 4;
const AT_ONCE: usize = 2;

/// Start migrations of the empty database and kill them repeatedly, at moments that the seed decides.
pub(crate) async fn interrupted(servers: &Servers, seed: u64) -> anyhow::Result<()> {
    let mut rng = StdRng::seed_from_u64(seed);
    for _ in 0..ROUNDS {
        let mut children = Vec::new();
        for _ in 0..AT_ONCE {
            let mut command = Command::new(env!("CARGO_BIN_EXE_tickr"));
            for (name, _) in std::env::vars_os() {
                if name.to_string_lossy().starts_with("TICKR_") {
                    command.env_remove(name);
                }
            }
            command.arg("migrate").env("TICKR_MYSQL_URL", servers.mysql_url());
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
            children.push(command.spawn()?);
        }
        // This is not a wait for an event: the seed draws the moment of the kill.
        tokio::time::sleep(Duration::from_millis(rng.random_range(10..600))).await;
        for mut child in children {
            child.kill().await?;
        }
    }
    Ok(())
}
