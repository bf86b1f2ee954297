//! The fields of a payload that the schema of its kind calls sensitive: `writeOnly`, `format: password` or
//! `x-sensitive`. The dashboard hides their values, and answers that are made of many payloads leave them out.

use serde_json::Value;

/// Most references and choices that lead from a schema to the one that it means.
const MAX_DEPTH: u8 = 8;

/// Return whether the schema of a kind calls a field at the top of the payload sensitive. A schema that is nested too
/// deeply to tell counts as calling it so.
#[must_use]
pub fn is_sensitive_field(schema: &Value, field: &str) -> bool {
    hides(schema, schema, MAX_DEPTH) || field_is_hidden(schema, schema, field, MAX_DEPTH)
}

fn is_marked(schema: &Value) -> bool {
    let says = |name: &str| schema.get(name).is_some_and(|value| *value != Value::Bool(false) && !value.is_null());
    says("writeOnly") || says("x-sensitive") || schema.get("format").and_then(Value::as_str) == Some("password")
}

/// Return the schemas that hold together with this one: its choices, and the one that it refers to.
fn parts<'s>(schema: &'s Value, root: &'s Value) -> impl Iterator<Item = &'s Value> {
    let choices = ["anyOf", "oneOf", "allOf"].into_iter().filter_map(|word| schema.get(word)?.as_array()).flatten();
    let reference = schema.get("$ref").and_then(Value::as_str).and_then(|target| target.strip_prefix('#'));
    choices.chain(reference.and_then(|pointer| root.pointer(pointer)))
}

fn hides(schema: &Value, root: &Value, depth: u8) -> bool {
    depth == 0 || is_marked(schema) || parts(schema, root).any(|part| hides(part, root, depth - 1))
}

fn field_is_hidden(schema: &Value, root: &Value, field: &str, depth: u8) -> bool {
    if depth == 0 {
        return true;
    }
    let named = schema.get("properties").and_then(|properties| properties.get(field));
    let other = schema.get("additionalProperties").filter(|_| named.is_none());
    let patterns = schema.get("patternProperties").and_then(Value::as_object).into_iter().flat_map(|all| all.values());
    named.into_iter().chain(other).chain(patterns).any(|own| hides(own, root, MAX_DEPTH))
        || parts(schema, root).any(|part| field_is_hidden(part, root, field, depth - 1))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_is_sensitive_by_its_mark_through_references_and_choices() {
        let schema = json!({
            "properties": {
                "token": {"type": "string", "writeOnly": true},
                "pin": {"$ref": "#/$defs/pin"},
                "later": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/pin"}]},
                "note": {"$ref": "#/$defs/plain", "x-sensitive": true},
                "region": {"type": "string", "writeOnly": false},
                "self": {"$ref": "#/properties/self"},
            },
            "allOf": [{"properties": {"card": {"format": "password"}}}],
            "$defs": {"pin": {"type": "string", "format": "password"}, "plain": {"type": "string"}},
        });
        for hidden in ["token", "pin", "later", "note", "card", "self"] {
            assert!(is_sensitive_field(&schema, hidden), "{hidden}");
        }
        for shown in ["region", "unknown"] {
            assert!(!is_sensitive_field(&schema, shown), "{shown}");
        }
    }

    #[test]
    fn a_payload_that_is_sensitive_as_a_whole_shows_no_field() {
        assert!(is_sensitive_field(&json!({"writeOnly": true}), "region"));
        assert!(is_sensitive_field(&json!({"additionalProperties": {"x-sensitive": true}}), "region"));
        assert!(!is_sensitive_field(&json!({}), "region"));
        assert!(!is_sensitive_field(&json!(true), "region"));
    }
}
