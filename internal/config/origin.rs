//! Where a value came from, for error messages and for `tickr config`.

use std::fmt;
use std::path::PathBuf;

/// The layer that decided a setting. An earlier variant wins over a later one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A command line flag, with its dashes.
    Flag(String),
    /// An environment variable, by its name.
    Environment(String),
    /// A line of the configuration file, counted from 1.
    File {
        /// The file as it was named.
        path: PathBuf,
        /// The line of the key.
        line: usize,
    },
    /// Nobody said anything.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag(flag) => write!(f, "flag {flag}"),
            Origin::Environment(name) => write!(f, "environment {name}"),
            Origin::File { path, line } => write!(f, "{} line {line}", path.display()),
            Origin::Default => f.write_str("default"),
        }
    }
}

/// A setting as it is in force, safe to print.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effective {
    /// The setting with its section: `workers`, `smtp.host`.
    pub setting: String,
    /// The value as it was given, masked for secrets; nothing when it is not set.
    pub value: Option<String>,
    /// The layer that decided it.
    pub origin: Origin,
}

/// Every setting in force with its origin, in the order of the settings table: the answer of `tickr config`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origins(pub(super) Vec<Effective>);

impl Origins {
    /// The settings in the order of the table, sections after them.
    pub fn iter(&self) -> impl Iterator<Item = &Effective> {
        self.0.iter()
    }

    /// One setting by its full name, `workers` or `smtp.host`.
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
