//! The inputs of a configuration as they were read: flags, environment, text of the file, and the program's own
//! defaults.
//!
//! A runner passes them to its child processes, which run suspects with the same binary. The child processes load the
//! same configuration from them, even if the file has changed in the meantime. The texts may contain passwords, so
//! `Debug` shows only names.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::flags::Flags;
use super::settings::SETTINGS;

/// The inputs of one configuration.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sources {
    pub(super) flags: BTreeMap<String, String>,
    pub(super) env: BTreeMap<String, String>,
    /// Path and text of the file.
    pub(super) file: Option<(PathBuf, String)>,
    /// The program's own defaults, in the syntax of the file.
    pub(super) defaults: String,
}

impl Sources {
    pub(super) fn new(
        flags: &Flags,
        env: &BTreeMap<String, String>,
        file: Option<(PathBuf, String)>,
        defaults: &str,
    ) -> Self {
        let flags = flags.values.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        Self { flags, env: env.clone(), file, defaults: defaults.to_owned() }
    }

    /// Return the flags. A name that this binary does not know is left out, because it comes from another binary.
    pub(super) fn flags(&self) -> Flags {
        let known = |setting: &super::Setting<super::Config>| {
            self.flags.get(setting.name).map(|value| (setting.name, value.clone()))
        };
        Flags { config: None, values: SETTINGS.iter().filter_map(known).collect(), required: Vec::new() }
    }
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources")
            .field("flags", &self.flags.keys().collect::<Vec<_>>())
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .field("file", &self.file.as_ref().map(|(path, _)| path))
            .finish()
    }
}
