//! JSON texts that are equal: the order of object keys, white space and the spelling of strings make no difference.
//! Numbers are compared as they are written.

use std::fmt;
use std::io::{self, Write};
use std::marker::PhantomData;

use serde::Deserialize;
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
            let Members(members) = serde_json::from_str::<Members<'_, &RawValue>>(text)?;
            let mut members: Vec<_> = members.into_iter().map(|(name, value)| (string_of(name), value)).collect();
            // The sort is stable: members with the same name keep their order, because the last one counts.
            members.sort_by(|(a, _), (b, _)| a.cmp(b));
            out.write_all(b"{")?;
            for (name, value) in members {
                write_string(out, &name)?;
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
        Some(b'"') => write_string(out, &string_of(json)),
        _ => out.write_all(text.as_bytes()),
    }
}

/// Return the string that this JSON text spells. `Err` is the text itself, if it has half of a surrogate pair: that is
/// valid JSON but no string.
fn string_of(json: &RawValue) -> Result<String, &str> {
    serde_json::from_str(json.get()).map_err(|_| json.get())
}

/// Write a string, or the name of a member. A text that spells no string is written as it is, so that it is equal only
/// to itself.
fn write_string(out: &mut impl Write, string: &Result<String, &str>) -> io::Result<()> {
    match string {
        Ok(string) => Ok(serde_json::to_writer(out, string)?),
        Err(text) => write!(out, "?{text}"),
    }
}

/// Return the members of an object in their order, including repeated names.
///
/// # Errors
/// When the text is no object, or a name has half of a surrogate pair.
pub fn json_members(text: &str) -> serde_json::Result<Vec<(String, &RawValue)>> {
    serde_json::from_str(text).map(|Members(members)| members)
}

/// The members of an object. `N` is the form of their names.
struct Members<'a, N>(Vec<(N, &'a RawValue)>);

impl<'de: 'a, 'a, N: Deserialize<'de>> Deserialize<'de> for Members<'a, N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder<N>(PhantomData<N>);
        impl<'de, N: Deserialize<'de>> Visitor<'de> for InOrder<N> {
            type Value = Vec<(N, &'de RawValue)>;

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
        deserializer.deserialize_map(InOrder(PhantomData)).map(Members)
    }
}
