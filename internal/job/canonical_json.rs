//! JSON texts that are equal: the order of object keys, white space and the spelling of strings make no difference.
//! Numbers are compared as they are written.

use std::fmt;
use std::io::{self, Write};

use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Return whether two JSON texts are equal. A text that cannot be read is equal only to itself.
#[must_use]
pub fn is_equal_json(one: &RawValue, other: &RawValue) -> bool {
    let canonical = |json: &RawValue| {
        let mut text = Vec::with_capacity(json.get().len());
        write_canonical(&mut text, json).ok().map(|()| text)
    };
    one.get() == other.get() || canonical(one).is_some_and(|one| canonical(other).as_ref() == Some(&one))
}

/// Write JSON text in a canonical form: equal texts give the same bytes, and no others do.
///
/// # Errors
/// When `out` fails, or a part of the text cannot be read.
pub fn write_canonical(out: &mut impl Write, json: &RawValue) -> io::Result<()> {
    let text = json.get();
    match text.as_bytes().first() {
        Some(b'{') => {
            let mut members = json_members(text)?;
            // The sort is stable: members with the same name keep their order, because the last one counts.
            members.sort_by(|(a, _), (b, _)| a.cmp(b));
            out.write_all(b"{")?;
            for (name, value) in members {
                serde_json::to_writer(&mut *out, &name)?;
                out.write_all(b":")?;
                write_canonical(out, value)?;
                out.write_all(b",")?;
            }
            out.write_all(b"}")
        }
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(text)?;
            out.write_all(b"[")?;
            for item in items {
                write_canonical(out, item)?;
                out.write_all(b",")?;
            }
            out.write_all(b"]")
        }
        Some(b'"') => match serde_json::from_str::<String>(text) {
            Ok(string) => Ok(serde_json::to_writer(out, &string)?),
            // Half of a surrogate pair is valid JSON but no string. Write it as it is, so that it is equal only to
            // itself.
            Err(_) => write!(out, "?{text}"),
        },
        _ => out.write_all(text.as_bytes()),
    }
}

/// Return the members of an object in their order, including repeated names.
///
/// # Errors
/// When the text is no object.
pub fn json_members(text: &str) -> serde_json::Result<Vec<(String, &RawValue)>> {
    serde_json::from_str(text).map(|Members(members)| members)
}

struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> serde::Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Vec<(String, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
                let mut read = Vec::new();
                while let Some(member) = members.next_entry()? {
                    read.push(member);
                }
                Ok(read)
            }
        }
        deserializer.deserialize_map(InOrder).map(Members)
    }
}
