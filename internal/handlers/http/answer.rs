//! The rule by which a callback judges the answer of its receiver, if the status alone should not decide.
//!
//! Many services answer 200 to everything and say in the body what happened, or use a status for something of their own.

use reqwest::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};

use super::Problem;
use super::sent_back::without;

/// Values in one list of a rule at most.
const MAX_VALUES: usize = 50;
/// Longest pointer of a rule, in bytes.
const MAX_POINTER_BYTES: usize = 200;
/// Shortest and longest pause of a snooze that the receiver gives no `Retry-After` for, in milliseconds.
const SNOOZE_MS: std::ops::RangeInclusive<u64> = 1_000..=86_400_000;

/// How the answer of a receiver is judged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AnswerRule {
    /// JSON pointer to the value in the body that decides, such as `/code`. Without it, the status decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 200))]
    pub at: Option<String>,
    /// Values that mean success.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50))]
    pub success: Vec<Value>,
    /// Values that mean a failure after which the job is tried again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50))]
    pub retry: Vec<Value>,
    /// Values that mean that the job is tried again later, without using up an attempt.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50))]
    pub snooze: Vec<Value>,
    /// Values that mean a failure for good.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50))]
    pub reject: Vec<Value>,
    /// What any other value means, and a body without a value there. Default: with `at` it is `retry`; without it, what the
    /// status means for other callbacks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otherwise: Option<AnswerVerdict>,
    /// True if the body also decides when the status is not 2xx. Default: false. Only with `at`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub any_status: bool,
    /// Pause of a snooze in milliseconds, unless the receiver sends `Retry-After`. Default: 60,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1_000, max = 86_400_000))]
    pub snooze_ms: Option<u64>,
}

/// What an answer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AnswerVerdict {
    /// The callback has succeeded.
    Success,
    /// It is tried again.
    Retry,
    /// It is tried again later, without using up an attempt.
    Snooze,
    /// It has failed for good.
    Reject,
}

/// What a rule says about an answer.
#[derive(Debug, PartialEq)]
pub(super) struct Judged {
    pub(super) verdict: AnswerVerdict,
    /// The value that decided, for people. Absent when the status decided.
    pub(super) value: Option<String>,
}

impl AnswerRule {
    /// Return whether the body of an answer with this status decides.
    pub(super) fn reads_body(&self, status: StatusCode) -> bool {
        self.at.is_some() && (status.is_success() || self.any_status)
    }

    fn lists(&self) -> [(&'static str, AnswerVerdict, &[Value]); 4] {
        [
            ("success", AnswerVerdict::Success, &self.success),
            ("retry", AnswerVerdict::Retry, &self.retry),
            ("snooze", AnswerVerdict::Snooze, &self.snooze),
            ("reject", AnswerVerdict::Reject, &self.reject),
        ]
    }

    /// Judge an answer. Returns nothing if the status decides as for other callbacks. The values in `secrets` were sent
    /// to the receiver, and are hidden in the value that decided.
    pub(super) fn judge(&self, status: StatusCode, body: &[u8], secrets: &[String]) -> Option<Judged> {
        let Some(pointer) = &self.at else {
            let status = Value::from(status.as_u16());
            let verdict = self.listed(&status).or(self.otherwise)?;
            return Some(Judged { verdict, value: None });
        };
        if !self.reads_body(status) {
            return None;
        }
        let otherwise = self.otherwise.unwrap_or(AnswerVerdict::Retry);
        let body: Option<Value> = serde_json::from_slice(body).ok();
        let Some(body) = body else {
            return Some(Judged { verdict: otherwise, value: Some("no JSON".to_owned()) });
        };
        let Some(value) = body.pointer(pointer) else {
            return Some(Judged { verdict: otherwise, value: Some(format!("no value at {pointer}")) });
        };
        // A part of a secret would be left if the value were cut before.
        let shown: String = without(value.to_string().as_bytes(), secrets).chars().take(100).collect();
        let verdict = self.listed(value).unwrap_or(otherwise);
        Some(Judged { verdict, value: Some(format!("{shown} at {pointer}")) })
    }

    fn listed(&self, value: &Value) -> Option<AnswerVerdict> {
        let has = |list: &[Value]| list.iter().any(|listed| same(listed, value));
        self.lists().into_iter().find(|(_, _, list)| has(list)).map(|(_, verdict, _)| verdict)
    }

    /// Return all problems of the rule. Pointers are relative to the payload.
    pub(super) fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut wrong = |pointer: &str, detail: &str| problems.push(Problem::at(format!("/answer{pointer}"), detail));
        if let Some(pointer) = &self.at {
            if pointer.len() > MAX_POINTER_BYTES || !(pointer.is_empty() || pointer.starts_with('/')) {
                wrong("/at", "must be a JSON pointer of at most 200 bytes, such as /code");
            }
        } else if self.any_status {
            wrong("/any_status", "may only be given together with at");
        }
        if self.snooze_ms.is_some_and(|ms| !SNOOZE_MS.contains(&ms)) {
            wrong("/snooze_ms", "must be 1000 to 86400000");
        }
        let lists = self.lists();
        if lists.iter().all(|(_, _, list)| list.is_empty()) {
            wrong("", "must list at least one value");
        }
        for (place, (name, _, list)) in lists.iter().enumerate() {
            if list.len() > MAX_VALUES {
                wrong(&format!("/{name}"), "must be at most 50 values");
            }
            for (at, value) in list.iter().enumerate() {
                let here = format!("/{name}/{at}");
                let is_status = value.as_u64().is_some_and(|status| (100..=599).contains(&status));
                if value.is_object() || value.is_array() {
                    wrong(&here, "must be a number, a text, true, false or null");
                } else if self.at.is_none() && !is_status {
                    wrong(&here, "must be a status, 100 to 599");
                } else if lists[..place].iter().any(|(_, _, earlier)| earlier.iter().any(|other| same(other, value))) {
                    wrong(&here, "is in two lists");
                }
            }
        }
        problems
    }
}

/// Return whether two values are the same. Numbers are compared as numbers: 100 is 100.0, and not the text "100".
fn same(one: &Value, other: &Value) -> bool {
    let (Value::Number(one), Value::Number(other)) = (one, other) else { return one == other };
    match (whole(one), whole(other)) {
        (None, None) => one.as_f64() == other.as_f64(),
        // An f64 has not every number of 64 bits, so whole numbers are not compared as f64.
        (one, other) => one == other,
    }
}

/// Return a whole number, however it is written. Nothing for fractions, and for numbers far beyond 64 bits.
fn whole(number: &Number) -> Option<i128> {
    let is_whole = |float: &f64| float.fract() == 0.0 && float.abs() < 1e30;
    number.as_i128().or_else(|| number.as_f64().filter(is_whole).map(|float| float as i128))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rule(text: Value) -> AnswerRule {
        serde_json::from_value(text).unwrap()
    }

    fn verdict(rule: &AnswerRule, status: u16, body: &str) -> Option<AnswerVerdict> {
        rule.judge(StatusCode::from_u16(status).unwrap(), body.as_bytes(), &[]).map(|judged| judged.verdict)
    }

    #[test]
    fn the_value_in_the_body_decides_as_the_lists_say() {
        use AnswerVerdict::{Reject, Retry, Snooze, Success};
        let code =
            rule(json!({"at": "/code", "success": [100, "ok"], "retry": [101], "snooze": [true], "reject": [null]}));
        for (status, body, expected) in [
            (200, r#"{"code": 100}"#, Some(Success)),
            (200, r#"{"code": 100.0}"#, Some(Success)),
            (200, r#"{"code": "ok"}"#, Some(Success)),
            (200, r#"{"code": "100"}"#, Some(Retry)),
            (200, r#"{"code": 101}"#, Some(Retry)),
            (200, r#"{"code": 102}"#, Some(Retry)),
            (204, r#"{"code": true}"#, Some(Snooze)),
            (200, r#"{"code": null}"#, Some(Reject)),
            (200, r#"{"codes": 100}"#, Some(Retry)),
            (200, "OK", Some(Retry)),
            (200, "", Some(Retry)),
            (500, r#"{"code": 100}"#, None),
            (404, "", None),
        ] {
            assert_eq!(verdict(&code, status, body), expected, "{status} {body}");
        }
        let any = AnswerRule { any_status: true, otherwise: Some(Reject), ..code };
        assert_eq!(verdict(&any, 500, r#"{"code": 100}"#), Some(Success));
        assert_eq!(verdict(&any, 500, "down"), Some(Reject));
        assert_eq!(verdict(&any, 200, r#"{"code": 7}"#), Some(Reject));
        // These pairs are one number as f64.
        let listed = json!([9_007_199_254_740_993_u64, u64::MAX, i64::MIN, 0.5, 1e300]);
        let large = rule(json!({"at": "/code", "success": listed}));
        for (code, expected) in [
            ("9007199254740993", Success),
            ("9007199254740992", Retry),
            ("9007199254740992.0", Retry),
            ("18446744073709551615", Success),
            ("18446744073709551614", Retry),
            ("-9223372036854775808", Success),
            ("-9223372036854775808.0", Success),
            ("-9223372036854775807", Retry),
            ("0.5", Success),
            ("5e-1", Success),
            ("0.25", Retry),
            ("1e300", Success),
            ("1e301", Retry),
        ] {
            assert_eq!(verdict(&large, 200, &format!(r#"{{"code": {code}}}"#)), Some(expected), "{code}");
        }
        let whole = rule(json!({"at": "", "success": ["done"]}));
        assert_eq!(verdict(&whole, 200, r#""done""#), Some(Success));
    }

    #[test]
    fn the_status_decides_without_a_pointer() {
        use AnswerVerdict::{Reject, Retry, Snooze, Success};
        let own = rule(json!({"success": [404, 409], "retry": [400], "snooze": [202], "reject": [503]}));
        for (status, expected) in [(404, Success), (409, Success), (400, Retry), (202, Snooze), (503, Reject)] {
            assert_eq!(verdict(&own, status, ""), Some(expected), "{status}");
        }
        // What is not listed means what it means for other callbacks.
        assert_eq!([200, 500].map(|status| verdict(&own, status, "")), [None, None]);
        let strict = AnswerRule { otherwise: Some(Reject), ..own };
        assert_eq!(verdict(&strict, 500, ""), Some(Reject));
    }

    #[test]
    fn a_rule_that_makes_no_sense_is_refused_with_its_place() {
        for (wrong, pointer) in [
            (json!({}), "/answer"),
            (json!({"at": "code", "success": [1]}), "/answer/at"),
            (json!({"success": [200], "any_status": true}), "/answer/any_status"),
            (json!({"success": ["200"]}), "/answer/success/0"),
            (json!({"retry": [99]}), "/answer/retry/0"),
            (json!({"at": "/a", "success": [[1]]}), "/answer/success/0"),
            (json!({"at": "/a", "success": [1], "reject": [2, 1.0]}), "/answer/reject/1"),
            (json!({"at": "/a", "success": [1], "snooze_ms": 5}), "/answer/snooze_ms"),
            (json!({"at": "/a", "success": vec![1; 51]}), "/answer/success"),
        ] {
            let problems = rule(wrong.clone()).problems();
            let pointers: Vec<&str> = problems.iter().map(|problem| problem.pointer.as_str()).collect();
            assert_eq!(pointers, [pointer], "{wrong}");
        }
        assert!(rule(json!({"at": "/a/b~1c", "success": [1, "x", null, false]})).problems().is_empty());
    }
}
