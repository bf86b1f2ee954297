//! JSON as it was written. A `Value` rounds long numbers and writes others anew, such as `1e2` as `100.0`. So payloads
//! and results are sent and printed from their text, and a `Value` is only for reading fields.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;

use serde::{Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};

/// Most levels that are read of a text with numbers that a `Value` cannot hold. The API refuses deeper bodies.
const MAX_LEVELS: usize = 128;

/// A text of JSON, and the value to read its fields from. `{}` writes it on one line, and `{:#}` on several, with
/// numbers as they are in the text.
#[derive(Clone, Debug)]
pub(crate) struct Json {
    value: Value,
    text: Box<RawValue>,
}

impl Json {
    /// Parse a text.
    ///
    /// # Errors
    ///
    /// The text is not JSON.
    pub(crate) fn parse(text: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(text).map(Self::of)
    }

    fn of(text: Box<RawValue>) -> Self {
        let value = serde_json::from_str(text.get()).unwrap_or_else(|_| readable(&text, MAX_LEVELS));
        Self { value, text }
    }

    /// Make JSON of values that have texts of their own.
    fn of_parts(parts: &impl Serialize) -> Self {
        Self::of(to_raw_value(parts).unwrap_or_default())
    }

    /// Make an array.
    pub(crate) fn list(items: &[Self]) -> Self {
        Self::of_parts(&items)
    }

    /// Return the object with another value of one field.
    pub(crate) fn with(&self, name: &str, value: &Self) -> Self {
        let mut fields = fields(&self.text);
        fields.insert(name.to_owned(), &value.text);
        Self::of_parts(&fields)
    }

    /// Return a field. Nothing when it is missing or null.
    pub(crate) fn part(&self, name: &str) -> Option<Self> {
        let part = fields(&self.text).remove(name).filter(|part| part.get() != "null")?;
        Some(Self::of(part.to_owned()))
    }

    /// Return the items of a field that is an array.
    pub(crate) fn rows(&self, name: &str) -> Vec<Self> {
        let Some(array) = fields(&self.text).remove(name) else { return Vec::new() };
        items(array).into_iter().map(|item| Self::of(item.to_owned())).collect()
    }

    /// Return the value. Its numbers may be rounded.
    pub(crate) fn into_value(self) -> Value {
        self.value
    }
}

impl Deref for Json {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.value
    }
}

impl From<Value> for Json {
    fn from(value: Value) -> Self {
        let text = to_raw_value(&value).unwrap_or_default();
        Self { value, text }
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.text.serialize(serializer)
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&laid_out(self.text.get(), f.alternate()))
    }
}

/// The body of a request: fields, and fields whose JSON is sent as it was written.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Body {
    #[serde(flatten)]
    pub(crate) fields: Map<String, Value>,
    #[serde(flatten)]
    pub(crate) written: BTreeMap<&'static str, Json>,
}

impl Body {
    /// Make a body with one field.
    pub(crate) fn written(name: &'static str, json: Json) -> Self {
        Self { fields: Map::new(), written: BTreeMap::from([(name, json)]) }
    }
}

fn fields(text: &RawValue) -> BTreeMap<String, &RawValue> {
    serde_json::from_str(text.get()).unwrap_or_default()
}

fn items(text: &RawValue) -> Vec<&RawValue> {
    serde_json::from_str(text.get()).unwrap_or_default()
}

/// Read a text that has numbers which a `Value` cannot hold, such as `1e400`. They become null.
fn readable(text: &RawValue, levels: usize) -> Value {
    match text.get().as_bytes().first() {
        Some(b'{') if levels > 0 => {
            fields(text).into_iter().map(|(name, part)| (name, readable(part, levels - 1))).collect()
        }
        Some(b'[') if levels > 0 => items(text).into_iter().map(|item| readable(item, levels - 1)).collect(),
        _ => serde_json::from_str(text.get()).unwrap_or_default(),
    }
}

/// Lay out a text of JSON, on one line or on several. Strings are written anew, so that `\u00e4` is readable, and
/// everything else stays as it is.
fn laid_out(json: &str, in_lines: bool) -> String {
    let mut out = String::with_capacity(json.len());
    let (mut rest, mut level, mut is_empty) = (json.trim_start(), 0_usize, false);
    let next_line = |out: &mut String, level: usize| {
        if in_lines {
            out.push('\n');
            out.push_str(&"  ".repeat(level));
        }
    };
    while let Some(first) = rest.chars().next() {
        let is_end = matches!(first, '}' | ']');
        if is_end {
            level = level.saturating_sub(1);
        }
        // Nothing stands between the brackets of an empty array or object.
        if is_end != is_empty {
            next_line(&mut out, level);
        }
        is_empty = matches!(first, '{' | '[');
        let (token, behind) = rest.split_at(length_of_token(rest));
        match first {
            '"' => match serde_json::from_str::<String>(token).and_then(|text| serde_json::to_string(&text)) {
                Ok(text) => out.push_str(&text),
                Err(_) => out.push_str(token),
            },
            _ => out.push_str(token),
        }
        match first {
            '{' | '[' => level += 1,
            ',' => next_line(&mut out, level),
            ':' if in_lines => out.push(' '),
            _ => {}
        }
        rest = behind.trim_start();
    }
    out
}

/// Return the length in bytes of the bracket, mark, string, number or word at the beginning of a text of JSON.
fn length_of_token(json: &str) -> usize {
    let Some(first) = json.chars().next() else { return 0 };
    if first == '"' {
        let mut is_escaped = true;
        let end = json.bytes().position(|byte| {
            let is_end = byte == b'"' && !is_escaped;
            // The first quotation mark counts as escaped: it begins the string.
            is_escaped = byte == b'\\' && !is_escaped;
            is_end
        });
        return end.map_or(json.len(), |end| end + 1);
    }
    if "{}[],:".contains(first) {
        return first.len_utf8();
    }
    let ends = |c: char| "{}[],:\"".contains(c) || c.is_ascii_whitespace();
    json.find(ends).unwrap_or(json.len())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_are_sent_and_printed_as_they_were_written() {
        let payload = r#"{"n":12345678901234567890123,"d":0.10000000000000000000000000001,"x":1e2,"y":[1e400,-0.0]}"#;
        let json = Json::parse(payload.as_bytes()).unwrap();
        assert_eq!(json.to_string(), payload);
        let body =
            Body { fields: Map::from_iter([("kind".to_owned(), json!("noop"))]), ..Body::written("payload", json) };
        let body = serde_json::to_string(&body).unwrap();
        assert_eq!(body, format!(r#"{{"kind":"noop","payload":{payload}}}"#));

        let job = Json::parse(format!(r#"{{"id": "a", "payload": {payload}, "none": null}}"#).as_bytes()).unwrap();
        // The other fields are readable although a number of the payload does not fit.
        assert_eq!((&job["id"], &job["payload"]["y"]), (&json!("a"), &json!([null, -0.0])));
        assert_eq!(job.part("payload").unwrap().to_string(), payload);
        assert!(job.part("none").is_none() && job.part("other").is_none());
        let page = Json::from(json!({"data": []})).with("data", &Json::list(&[job])).with("next", &json!(1).into());
        assert_eq!(page.rows("data")[0].part("payload").unwrap().to_string(), payload);
        assert_eq!(page["next"], 1);
    }

    #[test]
    fn json_is_laid_out_as_usual() {
        for text in [
            r#"{"a":[1,{"b":[]},{}],"c":{"d":"x, {y}: \"[]\\","e":null},"f":[[true]]}"#,
            r#""a \" b""#,
            "[]",
            "-1.5",
            r#"[{},[],"",{"":""}]"#,
        ] {
            let value: Value = serde_json::from_str(text).unwrap();
            let json = Json::parse(text.as_bytes()).unwrap();
            assert_eq!((format!("{json}"), format!("{json:#}")), (format!("{value}"), format!("{value:#}")));
            // Whatever its white space was.
            let spaced = Json::parse(format!(" {value:#}\r\n").as_bytes()).unwrap();
            assert_eq!(spaced.to_string(), json.to_string());
        }
        assert_eq!(Json::parse(br#"{"a":"\u00e4\u000a"}"#).unwrap().to_string(), "{\"a\":\"ä\\n\"}");
        assert!(Json::parse(b"{").is_err());
    }
}
