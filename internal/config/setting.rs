//! A setting: one row of a table that defines flags, parsing, help and documentation.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use super::error::Wrong;
use super::settings::SETTINGS;
use super::url;

/// One setting of `T`, which is the whole configuration or one of its sections.
pub struct Setting<T: 'static> {
    /// Name in the file.
    pub name: &'static str,
    /// Placeholder for a value in the help.
    pub value: &'static str,
    /// Default value, in the syntax of a flag.
    pub default: Option<&'static str>,
    /// Description in one line.
    pub doc: &'static str,
    /// Rule for showing the value.
    pub secrecy: Secrecy,
    /// One value, a list or a switch.
    pub shape: Shape,
    /// Sources in which it may be set.
    pub reach: Reach,
    /// Environment variable of other programs for the same setting, read after the own variable.
    pub also: Option<&'static str>,
    /// Function that parses a value and stores it.
    pub(super) set: fn(&mut T, &str) -> Result<(), Wrong>,
}

/// Rule for showing the value of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Secrecy {
    /// The value is shown.
    Public,
    /// The value is shown with the password masked.
    Url,
    /// The value is never shown.
    Secret,
}

/// Number of values of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// One value.
    One,
    /// A comma list; a TOML array in the file, and the flag may be repeated.
    List,
    /// A comma list of `name=value`; in the file also a table of names, each with its value or an array of values.
    Pairs,
    /// True or false; the flag without a value means true.
    Switch,
}

/// Sources in which a setting may be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Flag, environment and file.
    Everywhere,
    /// Environment and file: a secret of a section.
    EnvironmentAndFile,
    /// File only.
    File,
}

impl<T> Setting<T> {
    pub(super) const fn new(
        name: &'static str,
        value: &'static str,
        doc: &'static str,
        set: fn(&mut T, &str) -> Result<(), Wrong>,
    ) -> Setting<T> {
        let (secrecy, shape, reach) = (Secrecy::Public, Shape::One, Reach::Everywhere);
        Setting { name, value, default: None, doc, secrecy, shape, reach, also: None, set }
    }

    pub(super) const fn default(self, default: &'static str) -> Setting<T> {
        Setting { default: Some(default), ..self }
    }

    pub(super) const fn secrecy(self, secrecy: Secrecy) -> Setting<T> {
        Setting { secrecy, ..self }
    }

    pub(super) const fn list(self) -> Setting<T> {
        Setting { shape: Shape::List, ..self }
    }

    pub(super) const fn pairs(self) -> Setting<T> {
        Setting { shape: Shape::Pairs, ..self }
    }

    pub(super) const fn switch(self) -> Setting<T> {
        Setting { shape: Shape::Switch, default: Some("false"), ..self }
    }

    pub(super) const fn also(self, variable: &'static str) -> Setting<T> {
        Setting { also: Some(variable), ..self }
    }

    pub(super) const fn file_only(self) -> Setting<T> {
        Setting { reach: Reach::File, ..self }
    }

    pub(super) const fn file_and_environment(self) -> Setting<T> {
        Setting { reach: Reach::EnvironmentAndFile, ..self }
    }

    /// Return the command line flag with its dashes, if the setting has one: `--mysql-url`.
    pub fn flag(&self) -> Option<String> {
        (self.reach == Reach::Everywhere).then(|| format!("--{}", self.name.replace('_', "-")))
    }

    /// Return the environment variable, if the setting has one: `TICKR_WORKERS`, `TICKR_SMTP_PASSWORD`.
    pub fn env(&self, section: &str) -> Option<String> {
        let section = section.replace(['.', '-'], "_");
        let name = if section.is_empty() { self.name.to_owned() } else { format!("{section}_{}", self.name) };
        (self.reach != Reach::File).then(|| format!("TICKR_{}", name.to_ascii_uppercase()))
    }

    /// Return a given value in the form that may be shown.
    pub(super) fn shown(&self, text: &str) -> String {
        match self.secrecy {
            Secrecy::Public => brief(text),
            Secrecy::Url => url::masked(text),
            Secrecy::Secret => "***".to_owned(),
        }
    }
}

/// The flags without their dashes. clap requires names that live as long as the program.
pub(super) static FLAG_NAMES: LazyLock<BTreeMap<&'static str, String>> =
    LazyLock::new(|| SETTINGS.iter().map(|setting| (setting.name, setting.name.replace('_', "-"))).collect());

/// Cut to one line of at most 60 characters, so that the SQL of a report does not hide the other settings.
fn brief(text: &str) -> String {
    // A secret in the wrong setting must be masked too.
    if text.contains("://") || text.contains("whsec_") {
        return url::masked(text);
    }
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= 60 { line } else { line.chars().take(59).chain(['…']).collect() }
}
