//! Unique keys that are made from fields of the payload.

use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use tickr_job::{json_members, write_canonical};

/// Most fields of one unique key.
pub(super) const MAX_UNIQUE_FIELDS: usize = 10;

/// Make a unique key from these fields of a payload, which are JSON pointers (RFC 6901): `fields:` and a digest of the
/// pointers and the values. Equal values give the same key, as for idempotency keys: the order of object keys and white
/// space make no difference, and `1` is not `1.0`.
///
/// # Errors
/// The position of the first pointer that leads to no value.
pub(super) fn unique_key_from(payload: &RawValue, pointers: &[String]) -> Result<String, usize> {
    let mut digest = Sha256::new();
    for (place, pointer) in pointers.iter().enumerate() {
        let value = value_at(payload, pointer).ok_or(place)?;
        digest.update((pointer.len() as u64).to_be_bytes());
        digest.update(pointer);
        // Writing to a digest cannot fail. A canonical text shows where it ends.
        let _ = write_canonical(&mut digest, value);
        digest.update(b"\n");
    }
    Ok(format!("fields:{:x}", digest.finalize()))
}

/// Return the unique key that these fields of a payload make, whether the job is valid or not. Return nothing if they
/// make none: there are no fields or too many, or one leads to no value.
#[must_use]
pub fn key_of_fields(payload: &RawValue, pointers: &[String]) -> Option<String> {
    let fits = (1..=MAX_UNIQUE_FIELDS).contains(&pointers.len());
    if fits { unique_key_from(payload, pointers).ok() } else { None }
}

fn value_at<'a>(json: &'a RawValue, pointer: &str) -> Option<&'a RawValue> {
    let mut value = json;
    for token in pointer.strip_prefix('/')?.split('/') {
        let token = token.replace("~1", "/").replace("~0", "~");
        let text = value.get();
        value = match text.as_bytes().first()? {
            // Of repeated names the last one counts, as for the handler.
            b'{' => json_members(text).ok()?.into_iter().rev().find(|(name, _)| *name == token)?.1,
            b'[' => {
                let digits =
                    token.bytes().all(|byte| byte.is_ascii_digit()) && (token == "0" || !token.starts_with('0'));
                let at: usize = digits.then(|| token.parse().ok())??;
                serde_json::from_str::<Vec<&RawValue>>(text).ok()?.get(at).copied()?
            }
            _ => return None,
        };
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(payload: &str, pointers: &[&str]) -> Result<String, usize> {
        let payload = RawValue::from_string(payload.to_owned()).unwrap();
        unique_key_from(&payload, &pointers.iter().map(|pointer| (*pointer).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn equal_fields_make_one_key_and_different_ones_do_not() {
        let base = key(r#"{"a": {"x": 1, "y": [2]}, "b": "c", "d/e~": 7}"#, &["/a", "/b"]).unwrap();
        assert_eq!(base.len(), "fields:".len() + 64);
        assert_eq!(key(r#"{"b":"\u0063","other":9,"a":{"y":[2],"x":1}}"#, &["/a", "/b"]).unwrap(), base);
        for (payload, pointers) in [
            (r#"{"a": {"x": 1.0, "y": [2]}, "b": "c"}"#, ["/a", "/b"]),
            (r#"{"a": {"x": 1, "y": [2]}, "b": "d"}"#, ["/a", "/b"]),
            (r#"{"a": {"x": 1, "y": [2]}, "b": "c"}"#, ["/b", "/a"]),
        ] {
            assert_ne!(key(payload, &pointers).unwrap(), base);
        }
        assert_ne!(key(r#"{"a":"1","b":"2"}"#, &["/a"]), key(r#"{"a":"2","b":"1"}"#, &["/a"]));
        assert_eq!(key(r#"{"d/e~":[5,7]}"#, &["/d~1e~0/1"]), key(r#"{"d/e~":[6,7]}"#, &["/d~1e~0/1"]));
    }

    #[test]
    fn a_pointer_without_a_value_is_named() {
        for pointer in ["/c", "", "a", "/a/0", "/b/2", "/b/01", "/b/x", "/b/0/z"] {
            assert_eq!(key(r#"{"a": 1, "b": [1, 2]}"#, &["/a", pointer]), Err(1), "{pointer}");
        }
        assert!(key(r#"{"a": null}"#, &["/a"]).is_ok());
    }
}
