//! What a configuration was made from: the flags, the environment, the text of the file and the program's own defaults, as
//! they were read.
//!
//! A runner hands them to the processes of its own binary that run suspects. They make the same configuration of them,
//! also when the file has changed since. The texts may hold passwords, so `Debug` shows names only.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::flags::Flags;
use super::settings::SETTINGS;

/// The layers of one configuration.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sources {
    pub(super) flags: BTreeMap<String, String>,
    pub(super) env: BTreeMap<String, String>,
    /// The path of the file and what it said.
    pub(super) file: Option<(PathBuf, String)>,
    /// What the program put in place of the defaults.
    pub(super) defaults: String,
}

impl Sources {
    pub(super) fn of(
        flags: &Flags,
        env: &BTreeMap<String, String>,
        file: Option<(PathBuf, String)>,
        defaults: &str,
    ) -> Self {
        let flags = flags.values.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        Self { flags, env: env.clone(), file, defaults: defaults.to_owned() }
    }

    /// The flags again. A name that this binary does not know comes from another one, and is left out.
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
