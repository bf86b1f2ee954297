//! JSON whose numbers keep their digits: the kit compares what a client sends exactly.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// A JSON value. A number is its text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

/// The fields of an object, in their order, repeated ones included.
struct Fields(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Fields;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Read)
    }
}

impl Json {
    /// Read a body. The error says what is wrong with it.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let raw: Box<RawValue> = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        Self::of_raw(&raw)
    }

    fn of_raw(raw: &RawValue) -> Result<Self, String> {
        let text = raw.get();
        let wrong = |error: serde_json::Error| error.to_string();
        Ok(match text.as_bytes().first() {
            Some(b'{') => {
                let Fields(fields) = serde_json::from_str(text).map_err(wrong)?;
                let mut object: Vec<(String, Self)> = Vec::with_capacity(fields.len());
                for (name, value) in fields {
                    if object.iter().any(|(other, _)| *other == name) {
                        return Err(format!("the field {name} is there twice"));
                    }
                    object.push((name, Self::of_raw(&value)?));
                }
                Self::Object(object)
            }
            Some(b'[') => {
                let items: Vec<Box<RawValue>> = serde_json::from_str(text).map_err(wrong)?;
                Self::List(items.iter().map(|item| Self::of_raw(item)).collect::<Result<_, _>>()?)
            }
            Some(b'"') => Self::Text(serde_json::from_str(text).map_err(wrong)?),
            Some(b't') => Self::Bool(true),
            Some(b'f') => Self::Bool(false),
            Some(b'n') => Self::Null,
            _ => Self::Number(text.to_owned()),
        })
    }

    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// Return the field of an object. A field that is null counts as absent, as it does at the server.
    pub(crate) fn get(&self, name: &str) -> Option<&Self> {
        let Self::Object(fields) = self else { return None };
        fields.iter().find(|(field, value)| field == name && *value != Self::Null).map(|(_, value)| value)
    }

    pub(crate) fn as_text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    pub(crate) fn as_u64(&self) -> Option<u64> {
        if let Self::Number(text) = self { text.parse().ok() } else { None }
    }

    pub(crate) fn as_list(&self) -> Option<&[Self]> {
        if let Self::List(items) = self { Some(items) } else { None }
    }

    /// Return the tokens in the field `holding` of a request.
    pub(crate) fn tokens(&self) -> Vec<String> {
        let items = self.get("holding").and_then(Self::as_list).unwrap_or_default();
        let token = |item: &Self| item.as_text().or_else(|| item.get("token")?.as_text()).map(str::to_owned);
        items.iter().filter_map(token).collect()
    }

    /// Return whether both say the same. `1`, `1.0` and `1e0` are the same number; the order of fields does not matter.
    pub(crate) fn same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Number(a), Self::Number(b)) => decimal(a) == decimal(b),
            (Self::List(a), Self::List(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.same(b)),
            (Self::Object(a), Self::Object(b)) => {
                let has = |name: &str, value: &Self| b.iter().any(|(other, of)| other == name && value.same(of));
                a.len() == b.len() && a.iter().all(|(name, value)| has(name, value))
            }
            (a, b) => a == b,
        }
    }

    /// Return the text, cut for messages.
    pub(crate) fn brief(&self) -> String {
        brief(&self.to_string())
    }
}

/// Cut a text for a message.
pub(crate) fn brief(text: &str) -> String {
    const MOST: usize = 300;
    if text.chars().count() <= MOST {
        return text.to_owned();
    }
    let cut: String = text.chars().take(MOST).collect();
    format!("{cut}… ({} bytes)", text.len())
}

/// Sign, digits without zeros at either end, and the power of ten of the last digit.
fn decimal(text: &str) -> (bool, String, i64) {
    let (negative, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let (mantissa, power) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let mut power: i64 = power.trim_start_matches('+').parse::<i64>().unwrap_or(i64::MAX / 2);
    power = power.saturating_sub(i64::try_from(part.len()).unwrap_or(0));
    let digits = format!("{whole}{part}");
    let digits = digits.trim_start_matches('0');
    let kept = digits.trim_end_matches('0');
    if kept.is_empty() {
        return (false, String::new(), 0);
    }
    power = power.saturating_add(i64::try_from(digits.len() - kept.len()).unwrap_or(0));
    (negative, kept.to_owned(), power)
}

impl From<serde_json::Value> for Json {
    fn from(value: serde_json::Value) -> Self {
        use serde_json::Value;
        match value {
            Value::Null => Self::Null,
            Value::Bool(bool) => Self::Bool(bool),
            Value::Number(number) => Self::Number(number.to_string()),
            Value::String(text) => Self::Text(text),
            Value::Array(items) => Self::List(items.into_iter().map(Self::from).collect()),
            Value::Object(fields) => {
                Self::Object(fields.into_iter().map(|(name, value)| (name, value.into())).collect())
            }
        }
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted = |text: &str| serde_json::to_string(text).unwrap_or_default();
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(bool) => write!(f, "{bool}"),
            Self::Number(text) => f.write_str(text),
            Self::Text(text) => f.write_str(&quoted(text)),
            Self::List(items) => {
                f.write_str("[")?;
                for (at, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if at == 0 { "" } else { "," })?;
                }
                f.write_str("]")
            }
            Self::Object(fields) => {
                f.write_str("{")?;
                for (at, (name, value)) in fields.iter().enumerate() {
                    write!(f, "{}{}:{value}", if at == 0 { "" } else { "," }, quoted(name))?;
                }
                f.write_str("}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_digits_and_are_compared_by_value() {
        let json = |text: &str| Json::parse(text.as_bytes()).expect("JSON");
        for (one, other) in [("1", "1.0"), ("100", "1e2"), ("-0.10", "-1e-1"), ("0", "-0.0")] {
            assert!(json(one).same(&json(other)), "{one} {other}");
        }
        for (one, other) in [
            ("9223372036854775807", "9223372036854775808"),
            ("0.1", "0.10000000000000001"),
            ("1", "-1"),
            ("{}", "[]"),
            (r#"{"a":1}"#, r#"{"a":1,"b":2}"#),
        ] {
            assert!(!json(one).same(&json(other)), "{one} {other}");
        }
        let text = r#"{"a":[1.50,"\u0007é",null,{}]}"#;
        assert_eq!(json(text).to_string(), text);
        assert!(json(r#"{"a":1,"b":[2]}"#).same(&json(r#"{"b":[2],"a":1}"#)));
        assert!(Json::parse(br#"{"a":1,"a":1}"#).is_err());
        assert!(Json::parse(b"{\"a\":\"\xff\"}").is_err());
    }
}
