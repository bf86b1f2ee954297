//! Named queries and their parameters: from the JSON of a job to the values that are bound.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chrono::{DateTime, NaiveDate, SubsecRound, Utc};
use serde_json::{Map, Value};

use crate::handlers::Problem;
use crate::job::Timestamp;
use crate::table::Cell;

/// Longest text parameter when the query sets no limit of its own, in characters.
const DEFAULT_MAX_LENGTH: usize = 1_000;

/// A query that reports may run, as the operator configured it.
#[derive(Clone, Debug)]
pub struct Query {
    /// The headline of its reports.
    pub title: String,
    /// One statement that reads, with a `?` for each value.
    pub sql: Arc<str>,
    /// Which parameter each `?` takes, in order. A parameter may be taken more than once.
    pub binds: Vec<String>,
    /// What a job may and must say.
    pub parameters: BTreeMap<String, Parameter>,
}

/// One parameter of a query.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// What fits.
    pub kind: ParameterKind,
    /// What is bound when a job does not give it.
    pub absent: Absent,
}

/// What happens when a parameter is absent or null.
#[derive(Clone, Debug, PartialEq)]
pub enum Absent {
    /// The job is refused.
    Refused,
    /// This is bound; [`Cell::Null`] for a parameter that is simply optional.
    Bind(Cell),
}

/// What values a parameter takes. Limits are inclusive.
#[derive(Clone, Debug)]
pub enum ParameterKind {
    /// Text, limited in characters; at most 1,000 unless the query says otherwise.
    String {
        /// Fewest characters.
        min: Option<usize>,
        /// Most characters.
        max: Option<usize>,
    },
    /// A whole number.
    Integer {
        /// Smallest.
        min: Option<i64>,
        /// Largest.
        max: Option<i64>,
    },
    /// Any number.
    Number {
        /// Smallest.
        min: Option<f64>,
        /// Largest.
        max: Option<f64>,
    },
    /// True or false.
    Boolean,
    /// A day, as `2026-11-21`.
    Date {
        /// First.
        min: Option<NaiveDate>,
        /// Last.
        max: Option<NaiveDate>,
    },
    /// A moment in RFC 3339, kept to microseconds.
    Timestamp {
        /// First.
        min: Option<Timestamp>,
        /// Last.
        max: Option<Timestamp>,
    },
    /// One of these texts.
    Enum {
        /// The texts.
        values: Vec<String>,
    },
}

impl Query {
    /// The values to bind for `params`, or everything that is wrong with them.
    ///
    /// # Errors
    /// A problem for each parameter that is unknown, missing or does not fit, with its pointer below `/params`.
    pub fn bind(&self, params: &Map<String, Value>) -> Result<Vec<Cell>, Vec<Problem>> {
        let mut problems: Vec<Problem> = params
            .keys()
            .filter(|name| !self.parameters.contains_key(*name))
            .map(|name| Problem::at(pointer(name), format!("is no parameter of this query; it has {}", self.names())))
            .collect();

        let mut values = BTreeMap::new();
        for (name, parameter) in &self.parameters {
            match parameter.read(params.get(name)) {
                Ok(value) => {
                    values.insert(name.as_str(), value);
                }
                Err(detail) => problems.push(Problem::at(pointer(name), detail)),
            }
        }

        // The configuration declares every placeholder. Said here all the same, and not while the job runs.
        let undeclared: BTreeSet<_> = self.binds.iter().filter(|name| !self.parameters.contains_key(*name)).collect();
        problems.extend(undeclared.into_iter().map(|name| {
            Problem::at("/query", format!("the query uses a parameter that its configuration does not declare: {name}"))
        }));

        if problems.is_empty() {
            Ok(self.binds.iter().filter_map(|name| values.get(name.as_str()).cloned()).collect())
        } else {
            Err(problems)
        }
    }

    fn names(&self) -> String {
        listed(self.parameters.keys())
    }
}

/// `a, b, c`, or `none`.
pub(super) fn listed<'a>(names: impl IntoIterator<Item = &'a String>) -> String {
    let names: Vec<&str> = names.into_iter().map(String::as_str).collect();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// A JSON pointer to a parameter; `~` and `/` are written as RFC 6901 asks.
fn pointer(name: &str) -> String {
    format!("/params/{}", name.replace('~', "~0").replace('/', "~1"))
}

impl Parameter {
    fn read(&self, given: Option<&Value>) -> Result<Cell, String> {
        match (given, &self.absent) {
            (None | Some(Value::Null), Absent::Bind(value)) => Ok(value.clone()),
            (None | Some(Value::Null), Absent::Refused) => Err(format!("is required: {}", self.kind.wanted())),
            (Some(value), _) => self.kind.read(value).ok_or_else(|| format!("must be {}", self.kind.wanted())),
        }
    }
}

impl ParameterKind {
    /// The value to bind, if it fits.
    fn read(&self, value: &Value) -> Option<Cell> {
        match self {
            Self::String { min, max } => {
                let text = value.as_str()?;
                let max = max.unwrap_or(DEFAULT_MAX_LENGTH);
                within(&text.chars().count(), min.as_ref(), Some(&max)).then(|| Cell::Text(text.to_owned()))
            }
            Self::Integer { min, max } => {
                let number = value.as_i64()?;
                within(&number, min.as_ref(), max.as_ref()).then_some(Cell::Integer(number))
            }
            Self::Number { min, max } => {
                let number = value.as_f64()?;
                within(&number, min.as_ref(), max.as_ref()).then_some(Cell::Float(number))
            }
            Self::Boolean => value.as_bool().map(Cell::Bool),
            Self::Date { min, max } => {
                let date: NaiveDate = value.as_str()?.parse().ok()?;
                within(&date, min.as_ref(), max.as_ref()).then_some(Cell::Date(date))
            }
            Self::Timestamp { min, max } => {
                let moment = DateTime::parse_from_rfc3339(value.as_str()?).ok()?.with_timezone(&Utc).trunc_subsecs(6);
                within(&moment, min.as_ref(), max.as_ref()).then_some(Cell::Timestamp(moment))
            }
            Self::Enum { values } => {
                let text = value.as_str()?;
                values.iter().any(|value| value == text).then(|| Cell::Text(text.to_owned()))
            }
        }
    }

    /// What would be right, in words that follow "must be".
    fn wanted(&self) -> String {
        match self {
            Self::String { min, max } => {
                let max = max.unwrap_or(DEFAULT_MAX_LENGTH);
                format!("a text of {} to {max} characters", min.unwrap_or(0))
            }
            Self::Integer { min, max } => format!("a whole number{}", limits(min.as_ref(), max.as_ref())),
            Self::Number { min, max } => format!("a number{}", limits(min.as_ref(), max.as_ref())),
            Self::Boolean => "true or false".into(),
            Self::Date { min, max } => format!("a day like 2026-11-21{}", limits(min.as_ref(), max.as_ref())),
            Self::Timestamp { min, max } => {
                let (min, max) = (min.map(|at| at.to_rfc3339()), max.map(|at| at.to_rfc3339()));
                format!("a moment like 2026-11-21T09:00:00Z{}", limits(min.as_ref(), max.as_ref()))
            }
            Self::Enum { values } => format!("one of {}", listed(values)),
        }
    }
}

fn within<T: PartialOrd>(value: &T, min: Option<&T>, max: Option<&T>) -> bool {
    min.is_none_or(|min| value >= min) && max.is_none_or(|max| value <= max)
}

fn limits<T: std::fmt::Display>(min: Option<&T>, max: Option<&T>) -> String {
    match (min, max) {
        (None, None) => String::new(),
        (Some(min), None) => format!(", {min} or more"),
        (None, Some(max)) => format!(", {max} or less"),
        (Some(min), Some(max)) => format!(" from {min} to {max}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn query() -> Query {
        let parameter = |kind, absent| Parameter { kind, absent };
        let day = |text: &str| text.parse::<NaiveDate>().unwrap();
        Query {
            title: "Orders".into(),
            sql: "SELECT … ? … ? … ? …".into(),
            binds: ["since", "state", "since", "limit", "note", "rate", "paid", "at"].map(String::from).into(),
            parameters: [
                ("since", parameter(ParameterKind::Date { min: Some(day("2020-01-01")), max: None }, Absent::Refused)),
                (
                    "state",
                    parameter(
                        ParameterKind::Enum { values: vec!["open".into(), "paid".into()] },
                        Absent::Bind(Cell::Text("open".into())),
                    ),
                ),
                (
                    "limit",
                    parameter(ParameterKind::Integer { min: Some(1), max: Some(100) }, Absent::Bind(Cell::Integer(10))),
                ),
                ("note", parameter(ParameterKind::String { min: None, max: Some(3) }, Absent::Bind(Cell::Null))),
                ("rate", parameter(ParameterKind::Number { min: Some(0.0), max: None }, Absent::Bind(Cell::Null))),
                ("paid", parameter(ParameterKind::Boolean, Absent::Bind(Cell::Null))),
                ("at", parameter(ParameterKind::Timestamp { min: None, max: None }, Absent::Bind(Cell::Null))),
            ]
            .map(|(name, parameter)| (name.to_owned(), parameter))
            .into(),
        }
    }

    fn bind(params: &Value) -> Result<Vec<Cell>, Vec<String>> {
        query()
            .bind(params.as_object().unwrap())
            .map_err(|problems| problems.into_iter().map(|problem| problem.pointer).collect())
    }

    #[test]
    fn values_are_bound_in_the_order_of_the_placeholders() {
        let since = Cell::Date("2026-01-31".parse().unwrap());
        let at = DateTime::from_timestamp_micros(1_500_001).unwrap();
        assert_eq!(
            bind(&json!({"since": "2026-01-31", "note": "äöü", "rate": 1, "paid": true,
                         "at": "1970-01-01T01:00:01.5000019+01:00"})),
            Ok(vec![
                since.clone(),
                Cell::Text("open".into()),
                since,
                Cell::Integer(10),
                Cell::Text("äöü".into()),
                Cell::Float(1.0),
                Cell::Bool(true),
                Cell::Timestamp(at),
            ])
        );
    }

    #[test]
    fn every_misfit_is_named_at_once() {
        assert_eq!(
            bind(&json!({"state": "lost", "limit": 0, "note": "four", "rate": -0.1, "paid": "yes", "at": "noon",
                         "x/y": 1})),
            Err(["x~1y", "at", "limit", "note", "paid", "rate", "since", "state"]
                .map(|name| format!("/params/{name}"))
                .into())
        );
        assert_eq!(bind(&json!({"since": "2019-12-31"})), Err(vec!["/params/since".into()]));
        assert_eq!(bind(&json!({"since": "2026-02-30"})), Err(vec!["/params/since".into()]));
        assert_eq!(bind(&json!({"since": null})), Err(vec!["/params/since".into()]));
        assert_eq!(bind(&json!({"since": "2026-01-31", "limit": 1.5})), Err(vec!["/params/limit".into()]));
    }

    #[test]
    fn a_problem_says_what_would_be_right() {
        let problems = query().bind(json!({"limit": 101}).as_object().unwrap()).unwrap_err();
        assert_eq!(problems[0].detail, "must be a whole number from 1 to 100");
        assert_eq!(problems[1].detail, "is required: a day like 2026-11-21, 2020-01-01 or more");
    }
}
