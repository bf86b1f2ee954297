//! Parameters of report queries: from the JSON of a job to the values that are bound.
//!
//! The [configuration](tickr_config::ReportParam) defines the parameters and the values that fit, and checks the
//! defaults by the same rules. Here each wrong value of a job becomes a problem with its pointer.

use std::collections::BTreeMap;

use chrono::SubsecRound;
use serde_json::{Map, Value};

use crate::Problem;
use tickr_config::{ParamValue, ReportQuery};
use tickr_table::Cell;

/// Return the values to bind, one for each `?` of the statement. If any parameter is unknown, missing or does not fit,
/// return a problem for each of them, with its pointer.
pub(super) fn bind(query: &ReportQuery, params: &Map<String, Value>) -> Result<Vec<Cell>, Vec<Problem>> {
    let names = || quote_list(query.params.iter().map(|param| &param.name));
    let mut problems: Vec<Problem> = params
        .keys()
        .filter(|name| query.param(name).is_none())
        .map(|name| {
            Problem::at(pointer(name), format!("is not a parameter of this query; its parameters are: {}", names()))
        })
        .collect();
    let mut values = BTreeMap::new();
    for param in &query.params {
        match param.value(params.get(&param.name)) {
            Ok(value) => {
                values.insert(param.name.as_str(), cell(value));
            }
            Err(error) => problems.push(Problem::at(pointer(&param.name), error.to_string())),
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    // The configuration declares every placeholder; otherwise it would have been refused.
    Ok(query.statement.params.iter().filter_map(|name| values.get(name.as_str()).cloned()).collect())
}

/// Join names as `a, b, c`; `none` for no names.
pub(super) fn quote_list<'a>(names: impl IntoIterator<Item = &'a String>) -> String {
    let names: Vec<&str> = names.into_iter().map(String::as_str).collect();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// The JSON pointer to a parameter, with `~` and `/` escaped as RFC 6901 requires.
fn pointer(name: &str) -> String {
    format!("/params/{}", name.replace('~', "~0").replace('/', "~1"))
}

fn cell(value: ParamValue) -> Cell {
    match value {
        ParamValue::Null => Cell::Null,
        ParamValue::String(text) => Cell::Text(text),
        ParamValue::Integer(number) => Cell::Integer(number),
        ParamValue::Number(number) => Cell::Float(number),
        ParamValue::Boolean(boolean) => Cell::Bool(boolean),
        ParamValue::Date(day) => Cell::Date(day),
        ParamValue::Timestamp(moment) => Cell::Timestamp(moment.trunc_subsecs(6)),
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use serde_json::json;

    use tickr_config::{ParamType, ReportParam, Statement};

    use super::*;

    fn query() -> ReportQuery {
        let sql = "SELECT :since, :state, :since, :limit, :note, :rate, :paid, :at";
        let param = |name: &str, kind, required| ReportParam {
            name: name.into(),
            kind,
            required,
            default: None,
            min: None,
            max: None,
        };
        let words = ParamType::Enum { values: vec!["open".into(), "paid".into()] };
        ReportQuery {
            title: "Orders".into(),
            description: None,
            sql: sql.into(),
            statement: Statement::parse(sql).unwrap(),
            params: vec![
                ReportParam {
                    min: Some(ParamValue::Date("2020-01-01".parse().unwrap())),
                    ..param("since", ParamType::Date, true)
                },
                ReportParam { default: Some(ParamValue::String("open".into())), ..param("state", words, false) },
                ReportParam {
                    default: Some(ParamValue::Integer(10)),
                    min: Some(ParamValue::Integer(1)),
                    max: Some(ParamValue::Integer(100)),
                    ..param("limit", ParamType::Integer, false)
                },
                ReportParam { max: Some(ParamValue::Integer(3)), ..param("note", ParamType::String, false) },
                param("rate", ParamType::Number, false),
                param("paid", ParamType::Boolean, false),
                param("at", ParamType::Timestamp, false),
            ],
        }
    }

    fn bound(params: &Value) -> Result<Vec<Cell>, Vec<String>> {
        bind(&query(), params.as_object().unwrap())
            .map_err(|problems| problems.into_iter().map(|problem| problem.pointer).collect())
    }

    #[test]
    fn values_are_bound_in_the_order_of_the_placeholders() {
        let since = Cell::Date("2026-01-31".parse().unwrap());
        let at = DateTime::from_timestamp_micros(1_500_001).unwrap();
        assert_eq!(
            bound(&json!({"since": "2026-01-31", "note": "äöü", "rate": 1, "paid": true,
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
            bound(
                &json!({"state": "lost", "limit": 0, "note": "four", "rate": "x", "paid": "yes", "at": "noon", "x/y": 1})
            ),
            Err(["x~1y", "since", "state", "limit", "note", "rate", "paid", "at"]
                .map(|name| format!("/params/{name}"))
                .into())
        );
        assert_eq!(bound(&json!({"since": "2019-12-31"})), Err(vec!["/params/since".into()]));
        assert_eq!(bound(&json!({"since": "2026-02-30"})), Err(vec!["/params/since".into()]));
        assert_eq!(bound(&json!({"since": null})), Err(vec!["/params/since".into()]));
    }

    #[test]
    fn a_text_without_a_limit_of_its_own_is_limited_all_the_same() {
        let mut query = query();
        query.params[3].max = None;
        let with = |length: usize| json!({"since": "2026-01-31", "note": "x".repeat(length)});
        assert!(bind(&query, with(1_000).as_object().unwrap()).is_ok());
        assert!(bind(&query, with(1_001).as_object().unwrap()).is_err());
    }
}
