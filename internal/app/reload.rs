//! Reads the configuration again while the process runs, when its supervisor asks for it.
//!
//! The filter of the log follows at once. The connections, loops and kinds of a runner are made from the other settings
//! at its start, so they keep their values until a restart, and the log names those that have changed. A configuration
//! with a problem changes nothing.

use crate::config::{Config, Flags, Loaded, Origins};
use crate::telemetry::change_log_filter;

/// The setting that follows without a restart.
const FOLLOWS: &str = "log";

/// Reads the configuration from the sources of the start.
#[derive(Debug)]
pub struct Reload {
    flags: Flags,
    /// The configuration of the start.
    started_with: Origins,
    /// The filter of the log that is in use.
    log: String,
}

impl Reload {
    /// Prepare to read the configuration again. `loaded` is that of the start, which was read with these flags.
    #[must_use]
    pub fn new(flags: Flags, loaded: &Loaded) -> Self {
        Self { flags, started_with: loaded.origins.clone(), log: loaded.config.log.clone() }
    }

    /// Read the flags, the environment of the process and the file, and follow what can be followed. The environment is
    /// that of the start, because a process cannot see a file from which its supervisor made it.
    pub fn carry_out(&mut self) {
        let new = match Config::load(&self.flags, Config::process_env(), Config::usual_file()) {
            Ok(new) => new,
            Err(errors) => {
                for error in &errors.0 {
                    tracing::error!(setting = error.setting, "the new configuration is wrong: {error}");
                }
                tracing::error!(problems = errors.0.len(), "the configuration stays as it was");
                return;
            }
        };
        for warning in &new.warnings {
            tracing::warn!("{warning}");
        }
        if new.config.log != self.log {
            if change_log_filter(&new.config.log) {
                tracing::info!(log = new.config.log, "the filter of the log has changed");
                self.log = new.config.log;
            } else {
                tracing::warn!("the program has a log of its own, so the setting log has no effect");
            }
        }
        let mut changed = new.origins.changes_from(&self.started_with);
        changed.remove(FOLLOWS);
        if changed.is_empty() {
            tracing::info!("the configuration was read again");
        } else {
            let settings = changed.into_iter().collect::<Vec<_>>().join(", ");
            tracing::warn!(
                settings,
                "the configuration was read again; these settings have changed and need a restart"
            );
        }
    }
}
