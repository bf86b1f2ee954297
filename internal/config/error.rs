//! What is wrong with a configuration, said so that it can be put right in one go.

use std::fmt;

use super::origin::Origin;

/// One thing that is wrong with one setting.
///
/// `value` is already masked when the setting is a secret, so an error may be logged as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting}{} ({origin}): {wrong}; {right}", .value.as_ref().map(|v| format!(" = {v:?}")).unwrap_or_default())]
pub struct ConfigError {
    /// The setting as it is called in the file, with its section: `workers`, `smtp.host`.
    pub setting: String,
    /// Where the value came from.
    pub origin: Origin,
    /// The value as it was given, masked for secrets; nothing when it is missing.
    pub value: Option<String>,
    /// What is wrong with it.
    pub wrong: String,
    /// What would be right.
    pub right: String,
}

/// Every problem of a configuration at once, in the order of the settings table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [one] => write!(f, "the configuration has a problem: {one}"),
            many => {
                write!(f, "the configuration has {} problems:", many.len())?;
                many.iter().try_for_each(|error| write!(f, "\n  {error}"))
            }
        }
    }
}

impl std::error::Error for ConfigErrors {}

/// Something that looks like a mistake but stops nobody from starting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigWarning {
    /// The setting or environment variable it is about.
    pub setting: String,
    /// What is odd about it, and what to do.
    pub message: String,
}

impl fmt::Display for ConfigWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.setting, self.message)
    }
}

/// A parser's verdict. It never repeats the value: whoever reports it knows whether the value is a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wrong {
    pub(super) wrong: String,
    pub(super) right: String,
}

impl Wrong {
    pub(super) fn new(wrong: impl Into<String>, right: impl Into<String>) -> Wrong {
        Wrong { wrong: wrong.into(), right: right.into() }
    }
}
