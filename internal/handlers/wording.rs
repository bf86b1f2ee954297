//! Parser errors of JSON and of queries in words for the client: what would be right, with an example.

/// Description of a time, the same for every field that holds one.
const A_MOMENT: &str = "must be a moment in RFC 3339 with an offset, like 2027-01-01T10:00:00Z";

/// Turn a parser's message into words for the client. `name` is the field, the last part of the pointer. It is empty
/// when the message is not about a field.
#[must_use]
pub fn plain(message: &str, name: &str) -> String {
    let message = without_place(message);
    if message.starts_with("unknown field ") {
        return unknown_field(message);
    }
    if let Some(found) = quoted_after(message, "unknown variant ") {
        return format!("must be {}, not {found}", words_after(message, "expected "));
    }
    if message.starts_with("missing field ") {
        return "is required".to_owned();
    }
    if message.starts_with("duplicate field ") {
        return "is given twice".to_owned();
    }
    if is_about_a_moment(message) {
        return A_MOMENT.to_owned();
    }
    if is_about_digits(message) {
        return format!("must be {}", whole_number(name));
    }
    if message.starts_with("number too large") {
        return format!("is too large; it must be {}", whole_number(name));
    }
    if message == "provided string was not `true` or `false`" {
        return "must be true or false".to_owned();
    }
    mismatch(message, name).unwrap_or_else(|| message.to_owned())
}

/// Return the field that a message names beyond its pointer: a missing field.
#[must_use]
pub fn missing_field(message: &str) -> Option<&str> {
    quoted_after(message, "missing field ")
}

/// Remove the line and column. The pointer names the position, and the client may have sent the JSON in one line.
fn without_place(message: &str) -> &str {
    message.rsplit_once(" at line ").map_or(message, |(before, _)| before)
}

fn quoted_after<'a>(message: &'a str, start: &str) -> Option<&'a str> {
    message.strip_prefix(start)?.strip_prefix('`')?.split('`').next()
}

fn words_after(message: &str, start: &str) -> String {
    message.split_once(start).map_or("", |(_, words)| words).replace('`', "")
}

fn unknown_field(message: &str) -> String {
    let known = words_after(message, "expected ");
    if known.is_empty() {
        return "is not a field here; there are none".to_owned();
    }
    format!("is not a field here; use {}", known.trim_start_matches("one of "))
}

/// True for chrono's messages about texts that are not times.
fn is_about_a_moment(message: &str) -> bool {
    const SAID: [&str; 6] = [
        "premature end of input",
        "input contains invalid characters",
        "trailing input",
        "input is out of range",
        "input is not enough for unique date and time",
        "no possible date and time matching input",
    ];
    SAID.contains(&message) || message.contains("RFC 3339 formatted date and time")
}

fn is_about_digits(message: &str) -> bool {
    message == "invalid digit found in string" || message == "cannot parse integer from empty string"
}

fn whole_number(name: &str) -> &'static str {
    if name.ends_with("_ms") { "a whole number of milliseconds, 0 or more" } else { "a whole number, 0 or more" }
}

/// Turn `invalid type: string "x", expected u64` into words for the client.
fn mismatch(message: &str, name: &str) -> Option<String> {
    let (found, wanted) = message
        .strip_prefix("invalid type: ")
        .or_else(|| message.strip_prefix("invalid value: "))?
        .rsplit_once(", expected ")?;
    let wanted = match wanted {
        "u8" | "u16" | "u32" | "u64" | "usize" | "a nonzero u32" => whole_number(name),
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a sequence" => "an array",
        "a map" | "any valid JSON object" => "an object",
        other if other.starts_with("struct ") => "an object",
        other => other,
    };
    Some(format!("must be {wanted}, not {}", found_in_words(found)))
}

fn found_in_words(found: &str) -> String {
    let kinds = [("integer ", ""), ("floating point ", ""), ("boolean ", ""), ("string ", ""), ("character ", "")];
    for (kind, word) in kinds {
        if let Some(value) = found.strip_prefix(kind) {
            return format!("{word}{}", value.replace('`', ""));
        }
    }
    match found {
        "map" => "an object".to_owned(),
        "sequence" => "an array".to_owned(),
        "unit" | "unit value" | "Option value" => "null".to_owned(),
        other => other.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parsers_message_becomes_what_would_be_right() {
        let cases = [
            ("premature end of input at line 1 column 122", "execute_at", A_MOMENT),
            ("input contains invalid characters at line 1 column 9", "execute_at", A_MOMENT),
            (
                "invalid type: integer `3`, expected an RFC 3339 formatted date and time string at line 1 column 3",
                "from",
                A_MOMENT,
            ),
            (
                "invalid value: integer `-5`, expected u64 at line 1 column 29",
                "delay_ms",
                "must be a whole number of milliseconds, 0 or more, not -5",
            ),
            (
                "invalid type: floating point `1.5`, expected u64",
                "delay_ms",
                "must be a whole number of milliseconds, 0 or more, not 1.5",
            ),
            ("invalid type: string \"10s\", expected u32", "limit", "must be a whole number, 0 or more, not \"10s\""),
            ("invalid type: map, expected a string at line 1 column 9", "kind", "must be a string, not an object"),
            ("invalid type: null, expected struct BatchBody", "", "must be an object, not null"),
            ("missing field `kind` at line 1 column 2", "", "is required"),
            ("unknown field `a`, expected `b`", "a", "is not a field here; use b"),
            ("unknown field `a`, expected one of `b`, `c`", "a", "is not a field here; use b, c"),
            ("unknown field `a`, there are no fields", "a", "is not a field here; there are none"),
            ("unknown variant `x`, expected `y` or `z`", "state", "must be y or z, not x"),
            ("unknown variant `x`, expected one of `y`, `z`, `w`", "state", "must be one of y, z, w, not x"),
            ("invalid digit found in string", "limit", "must be a whole number, 0 or more"),
            ("number too large to fit in target type", "limit", "is too large; it must be a whole number, 0 or more"),
            ("provided string was not `true` or `false`", "all", "must be true or false"),
            ("holds no such thing", "x", "holds no such thing"),
        ];
        for (message, name, words) in cases {
            assert_eq!(plain(message, name), words, "{message}");
        }
        assert_eq!(missing_field("missing field `kind` at line 1 column 2"), Some("kind"));
    }
}
