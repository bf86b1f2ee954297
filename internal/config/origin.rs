//! The origin of a value, for error messages and for `tickr config`.

use std::fmt;
use std::path::PathBuf;

/// The source that decided a setting. An earlier variant overrides a later one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingOrigin {
    /// A command line flag, with its dashes.
    Flag(String),
    /// An environment variable, by its name.
    Environment(String),
    /// A line of the configuration file, counted from 1.
    File {
        /// Path of the file as given.
        path: PathBuf,
        /// Line of the key.
        line: usize,
    },
    /// The built-in default: no source has a value.
    Default,
}

impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingOrigin::Flag(flag) => write!(f, "flag {flag}"),
            SettingOrigin::Environment(name) => write!(f, "environment {name}"),
            SettingOrigin::File { path, line } => write!(f, "{} line {line}", path.display()),
            SettingOrigin::Default => f.write_str("default"),
        }
    }
}

/// An effective setting, safe to print.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effective {
    /// The setting with its section: `workers`, `smtp.host`.
    pub setting: String,
    /// The value as given, masked for secrets; absent if not set.
    pub value: Option<String>,
    /// The source that decided it.
    pub origin: SettingOrigin,
}

/// Every effective setting with its origin, in the order of the settings table: the output of `tickr config`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origins(pub(super) Vec<Effective>);

impl Origins {
    /// Iterate over the settings in the order of the table, sections last.
    pub fn iter(&self) -> impl Iterator<Item = &Effective> {
        self.0.iter()
    }

    /// Return one setting by its full name, `workers` or `smtp.host`.
    pub fn get(&self, setting: &str) -> Option<&Effective> {
        self.0.iter().find(|effective| effective.setting == setting)
    }
}

impl fmt::Display for Origins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |effective: &Effective| effective.value.clone().unwrap_or_else(|| "-".to_owned());
        let names = self.0.iter().map(|e| e.setting.len()).max().unwrap_or(0);
        let values = self.0.iter().map(|e| shown(e).chars().count()).max().unwrap_or(0).min(60);
        for effective in &self.0 {
            writeln!(f, "{:names$}  {:values$}  {}", effective.setting, shown(effective), effective.origin)?;
        }
        Ok(())
    }
}
