//! Idempotency keys: digests of the caller with its key, and digests of the request.
//!
//! Two requests are the same when they make the same call and their JSON bodies are equal. The order of object keys,
//! white space and the spelling of strings make no difference. Numbers are compared as they are written, because for
//! some clients `1`, `1.0` and numbers that no float can hold are different values.

use std::fmt;

use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use tickr_job::{limits, write_canonical};
use tickr_store::{Digest, IdempotentRequest};

/// An idempotency key: a request with it is carried out at most once. It is compared as bytes, and each caller has its
/// own: the same bytes from two callers are two keys.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct IdempotencyKey(Digest);

impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdempotencyKey")
    }
}

/// Error of an idempotency key that is empty, too long or not visible ASCII.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be 1 to {} visible ASCII characters without spaces", limits::MAX_KEY_BYTES)]
pub struct InvalidKey;

impl IdempotencyKey {
    /// Create the idempotency key of a caller. `caller` are bytes that differ for each caller.
    ///
    /// # Errors
    /// [`InvalidKey`] unless `key` is 1 to 255 visible ASCII characters.
    pub fn new(caller: &[u8], key: &[u8]) -> Result<Self, InvalidKey> {
        if !(1..=limits::MAX_KEY_BYTES).contains(&key.len()) || !key.iter().all(u8::is_ascii_graphic) {
            return Err(InvalidKey);
        }
        let mut digest = Sha256::new();
        // The length of the caller comes first. Without it, the end of the caller could pass for the beginning of the
        // key.
        digest.update((caller.len() as u64).to_be_bytes());
        digest.update(caller);
        digest.update(key);
        Ok(Self(digest.finalize().into()))
    }

    /// Derive the idempotency key of one part of a request that is carried out in parts, counted from 0. The first part
    /// has this key itself. So the key belongs to the request, and another call with it is refused.
    #[must_use]
    pub fn part(self, number: u64) -> Self {
        if number == 0 {
            return self;
        }
        let mut digest = Sha256::new();
        digest.update(b"part");
        digest.update(number.to_be_bytes());
        digest.update(self.0);
        Self(digest.finalize().into())
    }

    /// Combine this idempotency key with a request. `call` names the call and its object; `body` is the JSON text, if
    /// there is one.
    #[must_use]
    pub fn request(self, call: &str, body: Option<&RawValue>) -> IdempotentRequest {
        IdempotentRequest::new(self.0, request_digest(call, body))
    }
}

fn request_digest(call: &str, body: Option<&RawValue>) -> Digest {
    let mut digest = Sha256::new();
    digest.update((call.len() as u64).to_be_bytes());
    digest.update(call);
    if let Some(body) = body {
        // Writing to a digest cannot fail, and each JSON text can be written.
        let _ = write_canonical(&mut digest, body);
    }
    digest.finalize().into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn hash(json: &str) -> Digest {
        request_digest("call", Some(&RawValue::from_string(json.to_owned()).unwrap()))
    }

    #[test]
    fn bodies_that_say_the_same_are_the_same() {
        for (one, other) in [
            (r#"{"a":1,"b":[true,null]}"#, "{ \"b\" : [ true ,\n null ] ,\t\"a\" : 1 }"),
            (r#"{"name":"é😀/"}"#, r#"{"n\u0061me":"\u00e9\ud83d\ude00\/"}"#),
            (r#"{"a":{"y":{},"x":[]}}"#, r#"{"a":{"x":[],"y":{}}}"#),
            (r#"{"\ud800":1,"a":2}"#, r#"{ "a": 2, "\ud800": 1 }"#),
        ] {
            assert_eq!(hash(one), hash(other), "{one} {other}");
        }
    }

    #[test]
    fn bodies_that_say_something_else_differ() {
        let all = [
            "1",
            "1.0",
            "1e0",
            "-0",
            "0",
            "18446744073709551616",
            "18446744073709551617",
            "0.1",
            "0.10000000000000000000000000001",
            r#""1""#,
            "null",
            "{}",
            "[]",
            "[[]]",
            "[{}]",
            r#"{"a":1}"#,
            r#"{"A":1}"#,
            r#"{"a":null}"#,
            r#"{"a":1,"a":2}"#,
            r#"{"a":2,"a":1}"#,
            r#"{"a":2}"#,
            r#"{"a":{"b":1}}"#,
            r#"{"a":{},"b":1}"#,
            "[1,2]",
            "[2,1]",
            "[12]",
            r#"["1,2"]"#,
            r#""é""#,
            "\"e\u{301}\"",
            r#""\ud800""#,
            r#""\udc00""#,
            r#"{"\ud800":1}"#,
            r#"{"\ud800":2}"#,
            r#"{"\udc00":1}"#,
            r#"[{"\ud800":1}]"#,
            r#"[{"\ud800":1},1]"#,
            r#"[{"\ud800":1},2]"#,
            r#""?\"""#,
        ];
        for (at, one) in all.iter().enumerate() {
            for other in &all[at + 1..] {
                assert_ne!(hash(one), hash(other), "{one} {other}");
            }
        }
        let body = RawValue::from_string("{}".into()).unwrap();
        assert_ne!(request_digest("call", None), request_digest("call", Some(&body)));
        assert_ne!(request_digest("call{}", None), request_digest("call", Some(&body)));
    }

    #[test]
    fn keys_are_bytes_and_belong_to_their_caller() {
        let key = |caller: &str, key: &str| IdempotencyKey::new(caller.as_bytes(), key.as_bytes());
        assert_eq!(key("", "abc"), key("", "abc"));
        for other in [key("", "ABC"), key("", "abcd"), key("a", "bc"), key("ab", "c"), key("x", "abc")] {
            assert!(other.is_ok() && other != key("", "abc"));
        }
        for bad in ["", " ", "a b", "a\tb", "ä", "a\u{7f}", &"k".repeat(256)] {
            assert_eq!(key("", bad), Err(InvalidKey), "{bad:?}");
        }
        assert!(key("", &"k".repeat(255)).is_ok() && key("", "!~\"{}").is_ok());
    }

    #[test]
    fn the_first_part_of_a_request_has_its_key_and_the_others_have_keys_of_their_own() {
        let [one, other] = ["one", "other"].map(|key| IdempotencyKey::new(b"", key.as_bytes()).unwrap());
        assert_eq!(one.part(0), one);
        let all = [one, other, one.part(1), one.part(2), other.part(1), one.part(1).part(1)];
        for (at, key) in all.iter().enumerate() {
            assert!(!all[at + 1..].contains(key), "{at}");
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map(".{0,3}", inner, 0..5)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    /// Write the same value with a spelling as different as JSON allows.
    fn spelled_differently(value: &Value) -> String {
        let string = |text: &str| {
            let units: Vec<String> = text.encode_utf16().map(|unit| format!("\\u{unit:04X}")).collect();
            format!("\"{}\"", units.concat())
        };
        match value {
            Value::String(text) => string(text),
            Value::Array(items) => {
                format!("[ {}\n]", items.iter().map(spelled_differently).collect::<Vec<_>>().join(" ,\t"))
            }
            Value::Object(members) => {
                let member =
                    |(name, value): (&String, &Value)| format!("{}:  {}", string(name), spelled_differently(value));
                format!("{{\r\n{} }}", members.iter().rev().map(member).collect::<Vec<_>>().join(" , "))
            }
            other => other.to_string(),
        }
    }

    proptest! {
        #[test]
        fn spelling_makes_no_difference_and_meaning_does(one in any_json(), other in any_json()) {
            let (text, other) = (one.to_string(), other.to_string());
            prop_assert_eq!(hash(&text), hash(&spelled_differently(&one)));
            prop_assert_eq!(hash(&text) == hash(&other), text == other);
        }
    }
}
