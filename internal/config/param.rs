//! The declared parameters of a report query, and the check of their values.

use chrono::{DateTime, NaiveDate, SecondsFormat, Utc};
use serde_json::Value;

/// Default maximum length of a string parameter, in characters.
const MAX_STRING: i64 = 1_000;

/// A declared parameter.
#[derive(Debug, Clone, PartialEq)]
pub struct ReportParam {
    /// Its name, without the colon.
    pub name: String,
    /// Type of its values.
    pub kind: ParamType,
    /// True if a job must give a value. Never together with a default.
    pub required: bool,
    /// Value if the job gives none. Without a default it is NULL.
    pub default: Option<ParamValue>,
    /// Minimum value; for strings, minimum number of characters.
    pub min: Option<ParamValue>,
    /// Maximum value; for strings, maximum number of characters, 1,000 by default.
    pub max: Option<ParamValue>,
}

/// The type of a parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParamType {
    /// Text.
    String,
    /// A whole number of 64 bits.
    Integer,
    /// A finite number.
    Number,
    /// True or false.
    Boolean,
    /// A day: `2026-01-31`.
    Date,
    /// A moment in RFC 3339: `2026-01-31T12:00:00Z`.
    Timestamp,
    /// One of a few words.
    Enum {
        /// The words.
        values: Vec<String>,
    },
}

/// A checked value, ready to be bound.
#[derive(Debug, Clone, PartialEq)]
pub enum ParamValue {
    /// No value was given and there is no default.
    Null,
    /// Text, or a word of an enum.
    String(String),
    /// A whole number.
    Integer(i64),
    /// A number.
    Number(f64),
    /// True or false.
    Boolean(bool),
    /// A day.
    Date(NaiveDate),
    /// A moment.
    Timestamp(DateTime<Utc>),
}

/// The reason why a value does not fit a parameter, without the parameter's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParamError {
    /// No value and no default.
    #[error("is required")]
    Missing,
    /// The value has another type.
    #[error("must be {0}")]
    Type(String),
    /// Below `min`.
    #[error("must be at least {0}")]
    TooSmall(String),
    /// Above `max`.
    #[error("must be at most {0}")]
    TooLarge(String),
}

impl ReportParam {
    /// Return the value to bind for the value of a job. A missing value or JSON null stands for the default.
    pub fn value(&self, given: Option<&Value>) -> Result<ParamValue, ParamError> {
        match given {
            None | Some(Value::Null) if self.required => Err(ParamError::Missing),
            None | Some(Value::Null) => Ok(self.default.clone().unwrap_or(ParamValue::Null)),
            Some(given) => {
                let value = self.kind.parse_json(given).ok_or_else(|| ParamError::Type(self.kind.describe()))?;
                self.check_limits(&value)?;
                Ok(value)
            }
        }
    }

    pub(super) fn check_limits(&self, value: &ParamValue) -> Result<(), ParamError> {
        let measure = |limit: &ParamValue| match value {
            ParamValue::String(text) => {
                let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
                ParamValue::Integer(length).partial_cmp_same(limit)
            }
            value => value.partial_cmp_same(limit),
        };
        let unit = if matches!(value, ParamValue::String(_)) { " characters long" } else { "" };
        if let Some(min) = self.min.as_ref().filter(|min| measure(min).is_some_and(std::cmp::Ordering::is_lt)) {
            return Err(ParamError::TooSmall(format!("{}{unit}", min.show())));
        }
        let longest = ParamValue::Integer(MAX_STRING);
        let implied = matches!(value, ParamValue::String(_)).then_some(&longest);
        if let Some(max) =
            self.max.as_ref().or(implied).filter(|max| measure(max).is_some_and(std::cmp::Ordering::is_gt))
        {
            return Err(ParamError::TooLarge(format!("{}{unit}", max.show())));
        }
        Ok(())
    }
}

impl ParamType {
    fn parse_json(&self, value: &Value) -> Option<ParamValue> {
        match (self, value) {
            (ParamType::Integer, Value::Number(number)) => number.as_i64().map(ParamValue::Integer),
            (ParamType::Number, Value::Number(number)) => number.as_f64().map(ParamValue::Number),
            (ParamType::Boolean, Value::Bool(boolean)) => Some(ParamValue::Boolean(*boolean)),
            (
                ParamType::String | ParamType::Date | ParamType::Timestamp | ParamType::Enum { .. },
                Value::String(text),
            ) => self.parse_text(text),
            _ => None,
        }
    }

    /// Parse a value in the syntax of the file.
    pub(super) fn parse_text(&self, text: &str) -> Option<ParamValue> {
        match self {
            ParamType::String => Some(ParamValue::String(text.to_owned())),
            ParamType::Integer => text.parse().ok().map(ParamValue::Integer),
            ParamType::Number => text.parse().ok().filter(|number: &f64| number.is_finite()).map(ParamValue::Number),
            ParamType::Boolean => text.parse().ok().map(ParamValue::Boolean),
            ParamType::Date => text.parse().ok().map(ParamValue::Date),
            ParamType::Timestamp => {
                let moment = DateTime::parse_from_rfc3339(text).ok()?;
                Some(ParamValue::Timestamp(moment.with_timezone(&Utc)))
            }
            ParamType::Enum { values } => {
                values.iter().any(|value| value == text).then(|| ParamValue::String(text.to_owned()))
            }
        }
    }

    /// Return the type of `min` and `max`, or `None` if this type has no limits.
    pub(super) fn limit_type(&self) -> Option<ParamType> {
        match self {
            ParamType::String | ParamType::Integer => Some(ParamType::Integer),
            ParamType::Number | ParamType::Date | ParamType::Timestamp => Some(self.clone()),
            ParamType::Boolean | ParamType::Enum { .. } => None,
        }
    }

    /// Describe a valid value in words: "a date like 2026-01-31".
    pub fn describe(&self) -> String {
        match self {
            ParamType::String => "a string".to_owned(),
            ParamType::Integer => "a whole number".to_owned(),
            ParamType::Number => "a number".to_owned(),
            ParamType::Boolean => "true or false".to_owned(),
            ParamType::Date => "a date like 2026-01-31".to_owned(),
            ParamType::Timestamp => "a moment like 2026-01-31T12:00:00Z".to_owned(),
            ParamType::Enum { values } => format!("one of {}", values.join(", ")),
        }
    }
}

impl ParamValue {
    /// Compare two values of one type.
    pub(super) fn partial_cmp_same(&self, other: &ParamValue) -> Option<std::cmp::Ordering> {
        match (self, other) {
            (ParamValue::Integer(a), ParamValue::Integer(b)) => Some(a.cmp(b)),
            (ParamValue::Number(a), ParamValue::Number(b)) => a.partial_cmp(b),
            (ParamValue::Date(a), ParamValue::Date(b)) => Some(a.cmp(b)),
            (ParamValue::Timestamp(a), ParamValue::Timestamp(b)) => Some(a.cmp(b)),
            _ => None,
        }
    }

    fn show(&self) -> String {
        match self {
            ParamValue::Null => "null".to_owned(),
            ParamValue::String(text) => text.clone(),
            ParamValue::Integer(number) => number.to_string(),
            ParamValue::Number(number) => number.to_string(),
            ParamValue::Boolean(boolean) => boolean.to_string(),
            ParamValue::Date(date) => date.to_string(),
            ParamValue::Timestamp(moment) => moment.to_rfc3339_opts(SecondsFormat::AutoSi, true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn param(kind: ParamType, default: Option<ParamValue>, limits: Option<(ParamValue, ParamValue)>) -> ReportParam {
        let (min, max) = limits.unzip();
        ReportParam { name: "p".to_owned(), kind, required: default.is_none(), default, min, max }
    }

    #[test]
    fn values_must_have_the_declared_type() {
        let words = ParamType::Enum { values: vec!["a".to_owned(), "b".to_owned()] };
        for (kind, good, bad) in [
            (ParamType::String, json!("x"), json!(1)),
            (ParamType::Integer, json!(7), json!(7.5)),
            (ParamType::Number, json!(7.5), json!("7.5")),
            (ParamType::Boolean, json!(true), json!(1)),
            (ParamType::Date, json!("2026-01-31"), json!("2026-02-31")),
            (ParamType::Timestamp, json!("2026-01-31T12:00:00+01:00"), json!("2026-01-31 12:00")),
            (words, json!("a"), json!("c")),
        ] {
            let param = param(kind, None, None);
            assert!(param.value(Some(&good)).is_ok(), "{param:?} {good}");
            assert!(matches!(param.value(Some(&bad)), Err(ParamError::Type(_))), "{param:?} {bad}");
            assert_eq!(param.value(None), Err(ParamError::Missing));
        }
    }

    #[test]
    fn a_missing_value_is_the_default_or_null() {
        let seven = param(ParamType::Integer, Some(ParamValue::Integer(7)), None);
        assert_eq!(seven.value(None), Ok(ParamValue::Integer(7)));
        assert_eq!(seven.value(Some(&Value::Null)), Ok(ParamValue::Integer(7)));
        let mut optional = param(ParamType::Date, None, None);
        optional.required = false;
        assert_eq!(optional.value(None), Ok(ParamValue::Null));
    }

    #[test]
    fn limits_hold_for_values_and_for_the_length_of_strings() {
        let days = param(ParamType::Integer, None, Some((ParamValue::Integer(1), ParamValue::Integer(31))));
        assert_eq!(days.value(Some(&json!(0))), Err(ParamError::TooSmall("1".to_owned())));
        assert_eq!(days.value(Some(&json!(32))), Err(ParamError::TooLarge("31".to_owned())));
        let word = param(ParamType::String, None, Some((ParamValue::Integer(2), ParamValue::Integer(3))));
        assert!(word.value(Some(&json!("äöü"))).is_ok());
        assert_eq!(word.value(Some(&json!("a"))), Err(ParamError::TooSmall("2 characters long".to_owned())));
        let day = |text: &str| ParamValue::Date(text.parse().unwrap());
        let since = param(ParamType::Date, None, Some((day("2020-01-01"), day("2030-01-01"))));
        assert_eq!(since.value(Some(&json!("2019-12-31"))), Err(ParamError::TooSmall("2020-01-01".to_owned())));
    }
}
