//! A setting: one row of a table from which flags, parsing, help and documentation are all made.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use super::error::Wrong;
use super::settings::SETTINGS;
use super::url;

/// One setting of `T`, which is the whole configuration or one of its sections.
pub struct Setting<T: 'static> {
    /// Its name in the file.
    pub name: &'static str,
    /// What a value looks like, for the help.
    pub value: &'static str,
    /// The value when nobody says anything, spelt as a flag would spell it.
    pub default: Option<&'static str>,
    /// One line about it.
    pub doc: &'static str,
    /// Who may see its value.
    pub secrecy: Secrecy,
    /// One value, a list or a switch.
    pub shape: Shape,
    /// Where it may be set.
    pub reach: Reach,
    /// A variable of the environment that other programs know it by, asked after its own.
    pub also: Option<&'static str>,
    /// Parses a value and stores it.
    pub(super) set: fn(&mut T, &str) -> Result<(), Wrong>,
}

/// Who may see the value of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Secrecy {
    /// Anybody.
    Public,
    /// Anybody, with the password masked.
    Url,
    /// Nobody.
    Secret,
}

/// How many values a setting takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// One value.
    One,
    /// A comma list; a TOML array in the file, and the flag may be repeated.
    List,
    /// A comma list of `name=value`; in the file also a table of names, each with its value or an array of values.
    Pairs,
    /// Yes or no; the bare flag means yes.
    Switch,
}

/// Where a setting may be set.
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

    /// The command line flag with its dashes, when the setting has one: `--mysql-url`.
    pub fn flag(&self) -> Option<String> {
        (self.reach == Reach::Everywhere).then(|| format!("--{}", self.name.replace('_', "-")))
    }

    /// The environment variable, when the setting has one: `TICKR_WORKERS`, `TICKR_SMTP_PASSWORD`.
    pub fn env(&self, section: &str) -> Option<String> {
        let name = if section.is_empty() { self.name.to_owned() } else { format!("{section}_{}", self.name) };
        (self.reach != Reach::File).then(|| format!("TICKR_{}", name.to_ascii_uppercase()))
    }

    /// A given value as it may be shown.
    pub(super) fn shown(&self, text: &str) -> String {
        match self.secrecy {
            Secrecy::Public => brief(text),
            Secrecy::Url => url::masked(text),
            Secrecy::Secret => "***".to_owned(),
        }
    }
}

/// The flags without their dashes. clap wants names that live as long as the program.
pub(super) static FLAG_NAMES: LazyLock<BTreeMap<&'static str, String>> =
    LazyLock::new(|| SETTINGS.iter().map(|setting| (setting.name, setting.name.replace('_', "-"))).collect());

/// One line of at most 60 characters; a report's SQL would drown the rest.
fn brief(text: &str) -> String {
    // A secret that was put in the wrong place is still one.
    if text.contains("://") || text.contains("whsec_") {
        return url::masked(text);
    }
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= 60 { line } else { line.chars().take(59).chain(['…']).collect() }
}
