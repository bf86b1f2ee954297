//! Values that were sent to a receiver, hidden where the receiver sends them back.
//!
//! Receivers write what they echo in many ways: PHP's JSON has `\/` for a slash, others `\u0026` for an ampersand,
//! pages `&amp;`, and forms `%2F`. So values are found in the text as it came, and in the text with its escapes undone.
//! An answer may quote a text that quotes the request, such as JSON in a string of JSON. So the escapes of the text
//! without escapes are undone as well, a few times.

use std::ops::Range;

/// Replacement for a hidden value.
const HIDDEN: &str = "***";
/// Most values that a text is searched for. Each of them costs a pass over the text.
const MAX_VALUES: usize = 200;
/// Most times that the escapes of a text are undone.
const MAX_QUOTED: usize = 4;
/// Shortest start of a value that is hidden at the end of a text that was cut, in bytes. A shorter one says little.
const LEAST_START: usize = 4;
/// Longest reference to a character in HTML that is read, in bytes.
const REFERENCE_BYTES: usize = 10;

/// Return foreign bytes as text without these values. With more than [`MAX_VALUES`] of them, no text is shown at all.
pub(super) fn without(bytes: &[u8], values: &[String]) -> String {
    hidden(bytes, values, false)
}

/// Return the start of foreign bytes as [`without`] does. It may end within one of the values, whose start is hidden
/// too.
pub(super) fn without_in_part(bytes: &[u8], values: &[String]) -> String {
    hidden(bytes, values, true)
}

fn hidden(bytes: &[u8], values: &[String], is_cut: bool) -> String {
    if values.len() > MAX_VALUES && !bytes.is_empty() {
        return HIDDEN.to_owned();
    }
    let text = String::from_utf8_lossy(bytes);
    let mut hidden = Places::default();
    for value in values {
        hidden.add(text.match_indices(value.as_str()).map(|(at, value)| at..at + value.len()));
    }
    if is_cut {
        hidden.add(start_at_end(&text, values).map(|at| at..text.len()).into_iter());
    }
    let mut plain = if values.is_empty() { None } else { PlainText::of(&text) };
    for _ in 0..MAX_QUOTED {
        let Some(found) = plain else { break };
        for value in values {
            hidden.add(found.places_of(value));
        }
        if is_cut {
            hidden.add(start_at_end(&found.text, values).map(|at| found.from[at]..text.len()).into_iter());
        }
        plain = found.once_more();
    }
    let (mut shown, mut read) = (String::with_capacity(text.len()), 0);
    for place in hidden.0 {
        shown.push_str(&text[read..place.start]);
        shown.push_str(HIDDEN);
        read = place.end;
    }
    shown.push_str(&text[read..]);
    shown
}

/// Return the place from which a text that was cut is the start of a value, perhaps with a part of an escape or of a
/// character behind it.
fn start_at_end(text: &str, values: &[String]) -> Option<usize> {
    let whole = text.trim_end_matches(char::REPLACEMENT_CHARACTER);
    let escape = whole.rfind(['\\', '%', '&']).filter(|at| unescaped(&whole[*at..]).is_none());
    let ends = [Some(whole.len()), escape.filter(|at| whole.len() - at < REFERENCE_BYTES)];
    let starts = ends.into_iter().flatten().flat_map(|end| {
        let text = &whole.as_bytes()[..end];
        let length = |value: &String| {
            let longest = value.len().saturating_sub(1).min(end);
            (LEAST_START..=longest).rev().find(|length| text.ends_with(&value.as_bytes()[..*length]))
        };
        values.iter().filter_map(length).max().map(|length| end - length)
    });
    // A value begins with a whole character, so this is no place within one.
    starts.min()
}

/// Places in a text, in order. None of them overlaps another, so there are never more than the text has bytes, however
/// many values were found in it.
#[derive(Default)]
struct Places(Vec<Range<usize>>);

impl Places {
    /// Add the places of one value. Those that overlap become one.
    fn add(&mut self, found: impl Iterator<Item = Range<usize>>) {
        let known = self.0.len();
        self.0.extend(found.filter(|place| !place.is_empty()));
        if self.0.len() == known {
            return;
        }
        self.0.sort_by_key(|place| place.start);
        self.0.dedup_by(|next, last| {
            let overlaps = next.start < last.end;
            if overlaps {
                last.end = last.end.max(next.end);
            }
            overlaps
        });
    }
}

/// A text with its escapes undone.
struct PlainText {
    text: String,
    /// For each of its bytes, and for its end, the place in the original text.
    from: Vec<usize>,
}

impl PlainText {
    /// Undo the escapes of a text. Return nothing if it has none.
    fn of(original: &str) -> Option<Self> {
        let (mut plain, mut at) = (Self { text: String::new(), from: Vec::new() }, 0);
        while let Some(first) = original[at..].chars().next() {
            let (char, length) = unescaped(&original[at..]).unwrap_or((first, first.len_utf8()));
            plain.text.push(char);
            plain.from.resize(plain.text.len(), at);
            at += length;
        }
        plain.from.push(at);
        (plain.text != original).then_some(plain)
    }

    /// Undo the escapes that are left. Return nothing if there are none.
    fn once_more(&self) -> Option<Self> {
        let mut plainer = Self::of(&self.text)?;
        for place in &mut plainer.from {
            *place = self.from[*place];
        }
        Some(plainer)
    }

    /// Return the places of a value in the original text.
    fn places_of(&self, value: &str) -> impl Iterator<Item = Range<usize>> {
        self.text.match_indices(value).map(|(at, value)| self.from[at]..self.from[at + value.len()])
    }
}

/// Return the character for which an escape at the start of the text stands, and the length of the escape.
fn unescaped(text: &str) -> Option<(char, usize)> {
    let number = |digits: &str, radix| char::from_u32(u32::from_str_radix(digits, radix).ok()?);
    let bytes = text.as_bytes();
    match bytes.first()? {
        b'\\' => match bytes.get(1)? {
            b'u' => Some((number(text.get(2..6)?, 16)?, 6)),
            byte if byte.is_ascii_punctuation() => Some((char::from(*byte), 2)),
            _ => None,
        },
        b'%' => Some((number(text.get(1..3)?, 16).filter(char::is_ascii)?, 3)),
        b'&' => {
            let end = bytes.iter().take(REFERENCE_BYTES).position(|byte| *byte == b';')?;
            let char = match text.get(1..end)? {
                "amp" => '&',
                "lt" => '<',
                "gt" => '>',
                "quot" => '"',
                "apos" => '\'',
                name => match name.strip_prefix('#')?.strip_prefix(['x', 'X']) {
                    Some(digits) => number(digits, 16)?,
                    None => number(&name[1..], 10)?,
                },
            };
            Some((char, end + 1))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_hidden_however_it_is_escaped() {
        let values = ["abc/defg+hi==", "a&b<c>d\"e'f"].map(str::to_owned);
        for text in [
            "-abc/defg+hi==-",
            r"-abc\/defg+hi==-",
            r"-abc\u002Fdefg\u002bhi\u003d\u003d-",
            "-abc%2Fdefg%2bhi%3D%3d-",
            "-abc&#47;defg&#x2B;hi==-",
            r#"-a&b<c>d"e'f-"#,
            r#"-a\u0026b\u003cc\u003ed\"e\u0027f-"#,
            "-a&amp;b&lt;c&gt;d&quot;e&#39;f-",
            "-a&b<c&gt;d\\\"e&apos;f-",
        ] {
            assert_eq!(without(text.as_bytes(), &values), "-***-", "{text}");
        }
    }

    #[test]
    fn a_value_is_hidden_where_an_answer_quotes_a_text_that_quotes_it() {
        let values = ["a\"b/c&d\\e".to_owned()];
        let quoted = |text: &str| serde_json::to_string(text).unwrap();
        let (once, twice) = (quoted(&values[0]), quoted(&quoted(&values[0])));
        let thrice = quoted(&twice);
        for (text, shown) in [
            (once.as_str(), r#""***""#),
            (twice.as_str(), r#""\"***\"""#),
            (thrice.as_str(), r#""\"\\\"***\\\"\"""#),
            (r#"{"body":"{\"key\":\"a\\\"b\\/c\\u0026d\\\\e\"}"}"#, r#"{"body":"{\"key\":\"***\"}"}"#),
            ("-a&amp;quot;b/c&amp;amp;d\\e-", "-***-"),
            ("-a%2522b%252fc%2526d%255Ce-", "-***-"),
        ] {
            assert_eq!(without(text.as_bytes(), &values), shown, "{text}");
        }
    }

    #[test]
    fn the_rest_of_a_text_stays_as_it_is() {
        let values = ["secret-one", "one-secret-two"].map(str::to_owned);
        for text in ["", "%", "\\", "&", "%zz &; &# &#x; \\u00", r"\u00e4 \n ü &auml; 100 % \\", "&amp;amp; %41"] {
            assert_eq!(without(text.as_bytes(), &values), text);
            assert_eq!(without(text.as_bytes(), &[]), text);
        }
        assert_eq!(without(b"\\u00e4=secret-one-secret-two; %41=secret-one\\n", &values), "\\u00e4=***; %41=***\\n");
        assert_eq!(without(b"ab\xffsecret-one", &values), "ab\u{fffd}***");
    }

    #[test]
    fn the_start_of_a_value_is_hidden_at_the_end_of_a_text_that_was_cut() {
        let values = ["abc/defg+hi==", "défgh&ijkl"].map(str::to_owned);
        for (text, shown) in [
            ("-abc/defg+hi==-abc/defg", "-***-***"),
            ("-abc/defg+hi=", "-***"),
            ("-abc/", "-***"),
            (r"-abc\/defg\u002bh", "-***"),
            (r"-abc\/defg\u00", "-***"),
            (r"-abc\\\/defg\\u00", "-***"),
            ("-abc%2Fdefg%2", "-***"),
            ("-défgh&amp;ij", "-***"),
            ("-défgh&am", "-***"),
            ("-abc", "-abc"),
            ("-abc/defg+hi==-", "-***-"),
            ("-abc/x", "-abc/x"),
            ("", ""),
        ] {
            assert_eq!(without_in_part(text.as_bytes(), &values), shown, "{text}");
        }
        let half = "-abcdé".as_bytes();
        assert_eq!(without_in_part(&half[..half.len() - 1], &["abcdéfgh".to_owned()]), "-***");
        assert_eq!(without("-abc/defg".as_bytes(), &values), "-abc/defg");
    }

    #[test]
    fn values_that_cover_one_another_keep_few_places_and_very_many_hide_the_whole_text() {
        let text = "a".repeat(65_536);
        let mut places = Places::default();
        for _ in 0..50 {
            places.add(text.match_indices("aaaaaaaa").map(|(at, value)| at..at + value.len()));
            assert_eq!(places.0.len(), 65_536 / 8);
        }
        places.add(std::iter::once(4..65_532));
        assert_eq!((places.0.len(), &places.0[0]), (1, &(0..65_536)), "all of them overlap the last one");

        let equal = vec!["aaaaaaaa".to_owned(); 14_560];
        assert_eq!(without(text.as_bytes(), &equal), HIDDEN);
        let distinct = |count: usize| (0..count).map(|n| format!("word-{n:05}")).collect::<Vec<_>>();
        assert_eq!(without(b"harmless", &distinct(MAX_VALUES + 1)), HIDDEN);
        assert_eq!(without(b"", &distinct(MAX_VALUES + 1)), "");
        assert_eq!(without(b"harmless; word-00007", &distinct(MAX_VALUES)), "harmless; ***");
    }
}
