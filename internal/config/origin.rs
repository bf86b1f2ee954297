//! The origin of a value, for error messages and for `tickr config`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
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
pub struct Origins {
    pub(super) list: Vec<Effective>,
    /// A hash of each value as it was given. The shown value of a secret is the same for every secret.
    given: BTreeMap<String, u64>,
}

impl Origins {
    /// Add a setting with the value that its source gives.
    pub(super) fn add(&mut self, effective: Effective, given: Option<&str>) {
        if let Some(given) = given {
            let mut hasher = DefaultHasher::new();
            given.hash(&mut hasher);
            self.given.insert(effective.setting.clone(), hasher.finish());
        }
        self.list.push(effective);
    }

    /// Return the names of the settings whose values differ from those of `others`, secrets included. A setting that
    /// only one of the two has differs as well.
    #[must_use]
    pub fn changes_from<'a>(&'a self, others: &'a Self) -> BTreeSet<&'a str> {
        let differs = |name: &&String| self.given.get(*name) != others.given.get(*name);
        self.given.keys().chain(others.given.keys()).filter(differs).map(String::as_str).collect()
    }

    /// Iterate over the settings in the order of the table, sections last.
    pub fn iter(&self) -> impl Iterator<Item = &Effective> {
        self.list.iter()
    }

    /// Return one setting by its full name, `workers` or `smtp.host`.
    pub fn get(&self, setting: &str) -> Option<&Effective> {
        self.list.iter().find(|effective| effective.setting == setting)
    }
}

impl fmt::Display for Origins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |effective: &Effective| effective.value.clone().unwrap_or_else(|| "-".to_owned());
        let names = self.list.iter().map(|e| e.setting.len()).max().unwrap_or(0);
        let values = self.list.iter().map(|e| shown(e).chars().count()).max().unwrap_or(0).min(60);
        for effective in &self.list {
            writeln!(f, "{:names$}  {:values$}  {}", effective.setting, shown(effective), effective.origin)?;
        }
        Ok(())
    }
}
