//! Configuration errors. All problems are reported together, each with a correction.

use std::fmt;

use super::origin::SettingOrigin;

/// One problem of one setting.
///
/// `value` is already masked if the setting is a secret, so the error may be logged as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting}{} ({origin}): {wrong}; {right}", .value.as_ref().map(|v| format!(" = {v:?}")).unwrap_or_default())]
pub struct ConfigError {
    /// Name of the setting in the file, with its section: `workers`, `smtp.host`.
    pub setting: String,
    /// Origin of the value.
    pub origin: SettingOrigin,
    /// The value as given, masked for secrets; absent if the setting is missing.
    pub value: Option<String>,
    /// The problem.
    pub wrong: String,
    /// The correction.
    pub right: String,
}

/// All problems of a configuration, in the order of the settings table.
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

/// A likely mistake that does not prevent the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigWarning {
    /// The setting or environment variable.
    pub setting: String,
    /// The problem and its correction.
    pub message: String,
}

impl fmt::Display for ConfigWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.setting, self.message)
    }
}

/// The error of a parser. It never repeats the value: only its caller knows whether the value is a secret.
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
