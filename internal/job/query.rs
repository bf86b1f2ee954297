//! The text form of a filter: `state:failed kind:email created:>2026-11-01 due:<2h payload.user.id:42`.
//!
//! Words are separated by spaces; a value with spaces must be quoted. All words must hold. A word without a field is a
//! text to search for. Each field can be given once, except tags, ids and payload paths. Moments are dates, RFC 3339,
//! or spans: `created:<2h` means created in the last two hours, `due:<2h` means due within the next two.
//! `created:2h..1h`, `attempt:>2` and `took:>5s` are ranges. A minus in front of a word negates it (`-kind:email`), and
//! `|` separates values of which one must hold (`kind:email|report`). Each error names the word that it is about.

use std::fmt;

use chrono::{DateTime, NaiveDate, NaiveTime, TimeDelta, Utc};

use super::filter::{Choice, Filter, Wanted};
use super::suggest::nearest;
use super::{DeadLetterStatus, State, Timestamp};

/// Maximum length of a filter in text form, in bytes.
pub const MAX_BYTES: usize = 2_000;

/// A word that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct QueryError {
    /// Position of the word: characters from the start.
    pub at: usize,
    /// The word as written, cut to 60 characters.
    pub word: String,
    /// The problem, and a correct form.
    pub why: String,
}

impl fmt::Display for QueryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // An unknown field is named in the sentence.
        if self.why.starts_with(UNKNOWN) {
            return f.write_str(&self.why);
        }
        write!(f, "{:?} at {}: {}", self.word, self.at, self.why)
    }
}

/// The fields of a filter, for help texts.
pub const FIELDS: &str = "state kind queue schedule created due finished unique_key order limit batch host tag error \
                          group dead_letter operation attempt runner took id payload.<path>";

/// Beginning of the error for a word with a field that does not exist.
const UNKNOWN: &str = "Unknown filter: ";

/// Add the conditions in `text` to `filter`. Spans count from `now`.
///
/// # Errors
/// One error for every word that cannot be parsed.
pub fn add(filter: &mut Filter, text: &str, now: Timestamp) -> Result<(), Vec<QueryError>> {
    if text.len() > MAX_BYTES {
        let why = format!("a filter has at most {MAX_BYTES} bytes");
        return Err(vec![QueryError { at: 0, word: cut(text), why }]);
    }
    let mut wrong = Vec::new();
    for (at, word) in words(text) {
        let before = costly(filter);
        if let Err(why) = add_word(filter, word, now).and_then(|()| refuse_more(before, costly(filter))) {
            wrong.push(QueryError { at: text[..at].chars().count(), word: cut(word), why });
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

/// Conditions that MySQL checks by reading other rows or the payload of each job.
#[derive(Clone, Copy)]
struct Costly {
    what: &'static str,
    most: usize,
    count: usize,
}

/// Count the costly conditions of a filter. MySQL checks those of a choice as well, so each of them counts.
fn costly(filter: &Filter) -> [Costly; 3] {
    let counted = |what, most, of: fn(&Filter) -> usize| Costly { what, most, count: filter.parts().map(of).sum() };
    [
        counted("texts without a field", Filter::MAX_TEXTS, |part| part.texts.len()),
        counted("texts to search for in errors", Filter::MAX_TEXTS, |part| usize::from(part.error.is_some())),
        counted("payload paths", Filter::MAX_PATHS, |part| part.payload.len()),
    ]
}

/// Refuse the word that gave the filter more costly conditions than it may have.
fn refuse_more(before: [Costly; 3], now: [Costly; 3]) -> Result<(), String> {
    let mut pairs = before.into_iter().zip(now);
    match pairs.find(|(before, now)| now.count > now.most && now.count > before.count) {
        None => Ok(()),
        Some((_, Costly { what, most, .. })) => {
            Err(format!("a filter has at most {most} {what}, and each value beside a | counts"))
        }
    }
}

fn cut(word: &str) -> String {
    if word.chars().count() <= 60 { word.to_owned() } else { word.chars().take(59).chain(['…']).collect() }
}

/// Split a text into words with their positions in bytes. Spaces within quotes belong to the word. Within quotes a
/// backslash protects the next character.
fn words(text: &str) -> Vec<(usize, &str)> {
    let (mut words, mut start, mut quoted, mut escaped) = (Vec::new(), None, false, false);
    for (at, c) in text.char_indices() {
        if !quoted && c.is_whitespace() {
            if let Some(start) = start.take() {
                words.push((start, &text[start..at]));
            }
            continue;
        }
        start.get_or_insert(at);
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ => {}
        }
    }
    if let Some(start) = start {
        words.push((start, &text[start..]));
    }
    words
}

/// Add one word: a condition, its negation, or a choice of values.
fn add_word(filter: &mut Filter, word: &str, now: Timestamp) -> Result<(), String> {
    let negated = word.strip_prefix('-').filter(|rest| !rest.is_empty());
    let plain = negated.unwrap_or(word);
    let (field, written) = colon_of(plain).map_or(("", plain), |at| plain.split_at(at + 1));
    let values = alternatives(written);
    if negated.is_none() && values.len() == 1 {
        return add_condition(filter, word, now);
    }
    if filter.choices.len() >= Filter::MAX_CHOICES {
        return Err(format!("a filter has at most {} words with - or |", Filter::MAX_CHOICES));
    }
    if values.len() > Filter::MAX_ALTERNATIVES {
        return Err(format!("a word has at most {} values", Filter::MAX_ALTERNATIVES));
    }
    let mut of = Vec::with_capacity(values.len());
    for value in values {
        if value.is_empty() {
            return Err("a value beside | is missing; quote a value that contains |".to_owned());
        }
        let mut one = Filter::default();
        add_condition(&mut one, &format!("{field}{value}"), now)?;
        of.push(one);
    }
    filter.choices.push(Choice { not: negated.is_some(), of });
    Ok(())
}

/// Return the position of the first colon outside quotes. Within quotes a backslash protects the next character.
fn colon_of(word: &str) -> Option<usize> {
    let (mut quoted, mut escaped) = (false, false);
    let is_colon = |(_, c): &(usize, char)| {
        match *c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ => {}
        }
        *c == ':' && !quoted
    };
    word.char_indices().find(is_colon).map(|(at, _)| at)
}

/// Split a value at each `|` outside quotes.
fn alternatives(value: &str) -> Vec<&str> {
    let (mut parts, mut start, mut quoted, mut escaped) = (Vec::new(), 0, false, false);
    for (at, c) in value.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            '|' if !quoted => {
                parts.push(&value[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&value[start..]);
    parts
}

fn add_condition(filter: &mut Filter, word: &str, now: Timestamp) -> Result<(), String> {
    let Some(colon) = colon_of(word) else {
        if let Ok(id) = word.parse() {
            return id_of(filter, id);
        }
        return text_of(filter, &unquoted(word)?);
    };
    let (field, written) = (&word[..colon], &word[colon + 1..]);
    let value = unquoted(written)?;
    if value.is_empty() {
        return Err("the value after the colon is missing".to_owned());
    }
    if let Some(path) = field.strip_prefix("payload.") {
        let path = path.parse().map_err(|e: super::InvalidPath| e.to_string())?;
        let wanted = if written.starts_with('"') { Wanted::Text(value) } else { Wanted::Word { word: value } };
        return match filter.payload.insert(path, wanted) {
            None => Ok(()),
            Some(_) => Err("this payload path is given twice".to_owned()),
        };
    }
    match field {
        "id" => id_of(filter, value.parse().map_err(|_| "is not a job id".to_owned())?),
        "created" | "finished" | "due" => {
            let (after, before) = span(&value, now, field == "due")?;
            let (low, high) = match field {
                "created" => (&mut filter.created_after, &mut filter.created_before),
                "finished" => (&mut filter.finished_after, &mut filter.finished_before),
                _ => (&mut filter.due_after, &mut filter.due_before),
            };
            if let Some(after) = after {
                once(low, after)?;
            }
            before.map_or(Ok(()), |before| once(high, before))
        }
        "attempt" => {
            let help = || "write a number of attempts such as 3, >2, <=4 or 2..4".to_owned();
            let count = |text: &str| text.parse::<u32>().ok().filter(|count| *count <= MAX_ATTEMPTS);
            let (from, below) = range(&value, count, |count| count + 1).ok_or_else(help)?;
            if let Some(from) = from {
                once(&mut filter.attempt_from, from)?;
            }
            // `<0` asks for a job with fewer attempts than none.
            let to = below.map(|below| below.checked_sub(1).ok_or_else(help)).transpose()?;
            to.map_or(Ok(()), |to| once(&mut filter.attempt_to, to))
        }
        "took" => {
            let help = || "write a length of time such as >5s, <200ms or 1m..5m".to_owned();
            let (from, below) = range(&value, length_ms, |ms| ms + 1).ok_or_else(help)?;
            if let Some(from) = from {
                once(&mut filter.took_from_ms, from)?;
            }
            below.map_or(Ok(()), |below| once(&mut filter.took_below_ms, below))
        }
        "runner" if value.len() <= Filter::MAX_RUNNER_BYTES => once(&mut filter.runner, value),
        "runner" => Err(format!("the beginning of a runner's id has at most {} bytes", Filter::MAX_RUNNER_BYTES)),
        _ if !is_field(field) => Err(unknown(field, word)),
        _ => put(filter, field, &value),
    }
}

/// Greatest number of attempts that a filter may name.
const MAX_ATTEMPTS: u32 = 100_000;

/// Parse `3`, `>2`, `>=3`, `<4`, `<=3` or `2..3` into a first value and the one behind the last.
fn range<T: Copy + PartialOrd>(
    text: &str,
    parse: impl Fn(&str) -> Option<T>,
    next: impl Fn(T) -> T,
) -> Option<(Option<T>, Option<T>)> {
    if let Some((from, to)) = text.split_once("..") {
        return Some((Some(parse(from)?), Some(next(parse(to)?))));
    }
    let compared = [(">=", true, false), ("<=", false, true), (">", true, true), ("<", false, false)];
    for (sign, greater, behind) in compared {
        let Some(rest) = text.strip_prefix(sign) else { continue };
        let value = parse(rest)?;
        let bound = if behind { next(value) } else { value };
        return Some(if greater { (Some(bound), None) } else { (None, Some(bound)) });
    }
    let value = parse(text)?;
    Some((Some(value), Some(next(value))))
}

/// Parse `200ms`, `5s`, `2m` or `1h`, up to a year.
fn length_ms(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit())?;
    let number: u64 = text[..end].parse().ok()?;
    let unit = match &text[end..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.checked_mul(unit).filter(|ms| *ms <= 366 * 86_400_000)
}

fn is_field(word: &str) -> bool {
    FIELDS.split(' ').chain(["order_key", "limit_key", "fingerprint"]).any(|field| field == word)
}

/// Describe a word with an unknown field, and the nearest word that has a meaning.
fn unknown(field: &str, word: &str) -> String {
    let value = word.strip_prefix(field).unwrap_or_default();
    let meant = match nearest(field, FIELDS.split(' ')) {
        Some(known) => format!("{known}{}", cut(value)),
        // The text that the client may search for.
        None => format!("\"{}\" in quotes, a text to search for", cut(&word.replace(['"', '\\'], ""))),
    };
    format!("{UNKNOWN}{}. Did you mean {meant}?", cut(field))
}

fn text_of(filter: &mut Filter, text: &str) -> Result<(), String> {
    if text.is_empty() || text.len() > Filter::MAX_ERROR_BYTES {
        return Err(format!("a text to search for has 1 to {} bytes", Filter::MAX_ERROR_BYTES));
    }
    filter.texts.push(text.to_owned());
    Ok(())
}

/// Set one plain text field, by its name in the API.
///
/// # Errors
/// The problem with the value, or that the field does not exist.
pub fn put(filter: &mut Filter, field: &str, value: &str) -> Result<(), String> {
    match field {
        "state" => {
            let words = || State::ALL.map(State::as_str).join(", ");
            once(&mut filter.state, State::from_word(value).ok_or_else(|| format!("is not one of {}", words()))?)
        }
        "kind" => once(&mut filter.kind, value.parse().map_err(|e: super::InvalidName| e.to_string())?),
        "queue" => once(&mut filter.queue, value.parse().map_err(|e: super::InvalidName| e.to_string())?),
        "schedule" => once(&mut filter.schedule, value.parse().map_err(|e: super::InvalidName| e.to_string())?),
        "unique_key" if value.len() <= super::limits::MAX_KEY_BYTES => once(&mut filter.unique_key, value.to_owned()),
        "unique_key" => Err(format!("a unique key has at most {} bytes", super::limits::MAX_KEY_BYTES)),
        "order" | "order_key" if value.len() <= super::limits::MAX_KEY_BYTES => {
            once(&mut filter.order_key, value.to_owned())
        }
        "order" | "order_key" => Err(format!("an order key has at most {} bytes", super::limits::MAX_KEY_BYTES)),
        "limit" | "limit_key" if value.len() <= super::limits::MAX_KEY_BYTES => {
            once(&mut filter.limit_key, value.to_owned())
        }
        "limit" | "limit_key" => Err(format!("a limit key has at most {} bytes", super::limits::MAX_KEY_BYTES)),
        "batch" => once(&mut filter.batch, value.parse().map_err(|_| "is not the id of a batch".to_owned())?),
        "host" if value.len() <= super::limits::MAX_KEY_BYTES => once(&mut filter.host, value.to_owned()),
        "host" => Err(format!("a host has at most {} bytes", super::limits::MAX_KEY_BYTES)),
        "tag" => {
            let tag = value.parse().map_err(|e: super::InvalidTag| e.to_string())?;
            if filter.tags.len() >= Filter::MAX_TAGS {
                return Err(format!("a filter has at most {} tags", Filter::MAX_TAGS));
            }
            filter.tags.push(tag);
            Ok(())
        }
        "operation" => {
            let id =
                value.parse::<uuid::fmt::Hyphenated>().map_err(|_| "is not the id of a bulk operation".to_owned())?;
            once(&mut filter.operation, id.into_uuid())
        }
        "error" if value.len() <= Filter::MAX_ERROR_BYTES => once(&mut filter.error, value.to_owned()),
        "error" => Err(format!("an error text to search for has at most {} bytes", Filter::MAX_ERROR_BYTES)),
        "group" | "fingerprint" => {
            let group = value.parse().map_err(|e: super::InvalidFingerprint| e.to_string())?;
            once(&mut filter.fingerprint, group)
        }
        "dead_letter" => {
            let words = || DeadLetterStatus::ALL.map(DeadLetterStatus::as_str).join(", ");
            once(
                &mut filter.dead_letter,
                DeadLetterStatus::from_word(value).ok_or_else(|| format!("is not one of {}", words()))?,
            )
        }
        _ => Err(format!("there is no such field; the fields are {FIELDS}")),
    }
}

fn once<T>(place: &mut Option<T>, value: T) -> Result<(), String> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err("this field is given twice".to_owned()),
    }
}

fn id_of(filter: &mut Filter, id: super::JobId) -> Result<(), String> {
    if filter.ids.len() >= Filter::MAX_IDS {
        return Err(format!("a filter has at most {} ids", Filter::MAX_IDS));
    }
    filter.ids.push(id);
    Ok(())
}

/// Return a value without its quotes.
fn unquoted(text: &str) -> Result<String, String> {
    let Some(inner) = text.strip_prefix('"') else {
        return if text.contains('"') {
            Err("quotes must enclose the whole value".to_owned())
        } else {
            Ok(text.to_owned())
        };
    };
    let (mut value, mut escaped) = (String::new(), false);
    for (at, c) in inner.char_indices() {
        match c {
            _ if escaped => {
                value.push(c);
                escaped = false;
            }
            '\\' => escaped = true,
            '"' if inner[at + 1..].is_empty() => return Ok(value),
            '"' => return Err("there is text after the closing quote".to_owned()),
            _ => value.push(c),
        }
    }
    Err("the quote is not closed".to_owned())
}

type Span = (Option<Timestamp>, Option<Timestamp>);

/// Parse `>X`, `<X`, `X..Y`, or a whole day. `ahead` gives the direction of spans: due times lie in the future. The
/// other times lie in the past, so `<2h` means less than two hours ago.
fn span(text: &str, now: Timestamp, ahead: bool) -> Result<Span, String> {
    let help = || {
        "write >MOMENT, <MOMENT or MOMENT..MOMENT, where a moment is 2026-11-01, 2026-11-01T10:00:00Z or a span such as 90m, 2h, 7d".to_owned()
    };
    let comparison =
        text.strip_prefix('>').map(|rest| (true, rest)).or(text.strip_prefix('<').map(|rest| (false, rest)));
    let place = |text: &str| match distance(text) {
        Some(span) if ahead => now.checked_add_signed(span),
        Some(age) => now.checked_sub_signed(age),
        None => moment(text),
    };
    if let Some((greater, rest)) = comparison {
        // `>=` and `<=` are accepted too. A moment is a point, so they mean the same.
        let rest = rest.strip_prefix('=').unwrap_or(rest);
        let moment = place(rest).ok_or_else(help)?;
        // A job of a greater age was accepted earlier.
        let later = greater == (ahead || distance(rest).is_none());
        return Ok(if later { (Some(moment), None) } else { (None, Some(moment)) });
    }
    if let Some((from, to)) = text.split_once("..") {
        let (first, second) = (place(from).ok_or_else(help)?, place(to).ok_or_else(help)?);
        // An age of 1 to 2 hours is a range in either order. Dates are in the order of time.
        let spans = distance(from).is_some() && distance(to).is_some();
        let (first, second) = if spans { (first.min(second), first.max(second)) } else { (first, second) };
        return Ok((Some(first), Some(second)));
    }
    let day = text.parse::<NaiveDate>().map_err(|_| help())?;
    let start = storable(day.and_time(NaiveTime::MIN).and_utc()).ok_or_else(help)?;
    Ok((Some(start), start.checked_add_signed(TimeDelta::days(1))))
}

/// Parse a moment: RFC 3339, or a date, which begins at midnight UTC.
#[must_use]
pub fn moment(text: &str) -> Option<Timestamp> {
    let date = || Some(text.parse::<NaiveDate>().ok()?.and_time(NaiveTime::MIN).and_utc());
    let moment = DateTime::parse_from_rfc3339(text).ok().map(|moment| moment.with_timezone(&Utc)).or_else(date)?;
    // A leap second counts as the second after it, because MySQL refuses a second 60.
    storable(DateTime::from_timestamp_micros(moment.timestamp_micros())?)
}

/// Return the moment if the columns can hold it. Any other one would fail in the store.
#[must_use]
pub fn storable(moment: Timestamp) -> Option<Timestamp> {
    (DateTime::UNIX_EPOCH..DateTime::from_timestamp(253_370_764_800, 0)?).contains(&moment).then_some(moment)
}

/// Parse `90m`, `2h`, `7d` or `-5m`, up to ten years.
fn distance(text: &str) -> Option<TimeDelta> {
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |rest| (-1, rest));
    let end = digits.find(|c: char| !c.is_ascii_digit())?;
    let number: i64 = digits[..end].parse().ok()?;
    let seconds = match &digits[end..] {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        "w" => 604_800,
        _ => return None,
    };
    let total = number.checked_mul(seconds).filter(|total| *total <= 10 * 366 * 86_400)?;
    Some(TimeDelta::seconds(sign * total))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(text: &str) -> Timestamp {
        moment(text).unwrap()
    }

    fn parse(text: &str) -> Result<Filter, Vec<QueryError>> {
        let mut filter = Filter::default();
        add(&mut filter, text, at("2026-11-10T12:00:00Z")).map(|()| filter)
    }

    #[test]
    fn a_filter_bar_is_read() {
        let filter = parse(
            r#"state:failed  kind:email queue:mail schedule:nightly unique_key:order-7 order:conv-7 limit:tenant-7 host:example.com:8443 tag:a tag:tenant:42 error:"timed out" payload.user.id:42 payload."odd key":"42""#,
        )
        .unwrap();
        assert_eq!(filter.state, Some(State::Failed));
        assert_eq!(filter.kind.unwrap().as_str(), "email");
        assert_eq!(filter.queue.unwrap().as_str(), "mail");
        assert_eq!(filter.schedule.unwrap().as_str(), "nightly");
        assert_eq!(filter.unique_key.unwrap(), "order-7");
        assert_eq!(filter.order_key.unwrap(), "conv-7");
        assert_eq!(filter.limit_key.unwrap(), "tenant-7");
        assert_eq!(filter.host.unwrap(), "example.com:8443");
        assert_eq!(filter.tags.iter().map(super::super::Tag::as_str).collect::<Vec<_>>(), ["a", "tenant:42"]);
        assert_eq!(filter.error.unwrap(), "timed out");
        assert_eq!(filter.payload[&"user.id".parse().unwrap()], Wanted::Word { word: "42".into() });
        assert_eq!(filter.payload[&"\"odd key\"".parse().unwrap()], Wanted::Text("42".into()));
        assert_eq!(
            parse(r#"deadlock state:failed "timed out" "a:b""#).unwrap().texts,
            ["deadlock", "timed out", "a:b"]
        );
        assert_eq!(parse(r#""5\": too long" -"a\":b""#).unwrap().texts, [r#"5": too long"#]);
        let id = super::super::JobId::new();
        assert_eq!(parse(&format!("{id} id:{id}")).unwrap().ids, [id, id]);
        assert_eq!(parse(r#"unique_key:"a|b""#).unwrap().unique_key.unwrap(), "a|b");
        assert_eq!(parse("-").unwrap().texts, ["-"]);
        assert!(parse("  ").unwrap().is_empty());
    }

    #[test]
    fn negations_choices_and_ranges_are_read() {
        let filter =
            parse(r#"-kind:email kind:sleep|noop -deadlock -tag:a|b error:"a|b"|c attempt:>2 took:>5s"#).unwrap();
        assert_eq!((filter.attempt_from, filter.attempt_to), (Some(3), None));
        assert_eq!((filter.took_from_ms, filter.took_below_ms), (Some(5_001), None));
        let read: Vec<(bool, usize)> = filter.choices.iter().map(|choice| (choice.not, choice.of.len())).collect();
        assert_eq!(read, [(true, 1), (false, 2), (true, 1), (true, 2), (false, 2)]);
        assert_eq!(filter.choices[0].of[0].kind.as_ref().unwrap().as_str(), "email");
        assert_eq!(filter.choices[2].of[0].texts, ["deadlock"]);
        assert_eq!(filter.choices[4].of[0].error.as_deref(), Some("a|b"));
        assert_eq!(filter.kind, None);
        for (text, from, to) in [
            ("attempt:3", Some(3), Some(3)),
            ("attempt:>=3", Some(3), None),
            ("attempt:<3", None, Some(2)),
            ("attempt:<=3", None, Some(3)),
            ("attempt:2..4", Some(2), Some(4)),
            ("attempt:0", Some(0), Some(0)),
        ] {
            let filter = parse(text).unwrap();
            assert_eq!((filter.attempt_from, filter.attempt_to), (from, to), "{text}");
        }
        let filter = parse("took:200ms..1m runner:vm/7").unwrap();
        assert_eq!((filter.took_from_ms, filter.took_below_ms), (Some(200), Some(60_001)));
        assert_eq!(filter.runner.unwrap(), "vm/7");
    }

    #[test]
    fn moments_and_spans_are_read() {
        let bounds = |text: &str| {
            let filter = parse(text).unwrap();
            (
                filter.created_after.or(filter.due_after).or(filter.finished_after),
                filter.created_before.or(filter.due_before).or(filter.finished_before),
            )
        };
        for (text, after, before) in [
            ("created:>2026-11-01", Some("2026-11-01"), None),
            ("created:<=2026-11-01T10:30:00+01:00", None, Some("2026-11-01T09:30:00Z")),
            ("created:2026-11-01", Some("2026-11-01"), Some("2026-11-02")),
            ("finished:2026-11-01..2026-11-03", Some("2026-11-01"), Some("2026-11-03")),
            ("created:<2h", Some("2026-11-10T10:00:00Z"), None),
            ("created:>2d", None, Some("2026-11-08T12:00:00Z")),
            ("due:<2h", None, Some("2026-11-10T14:00:00Z")),
            ("due:>90m", Some("2026-11-10T13:30:00Z"), None),
            ("due:<-5m", None, Some("2026-11-10T11:55:00Z")),
            ("created:2h..1h", Some("2026-11-10T10:00:00Z"), Some("2026-11-10T11:00:00Z")),
            ("finished:1h..2h", Some("2026-11-10T10:00:00Z"), Some("2026-11-10T11:00:00Z")),
            ("created:2026-11-09..1h", Some("2026-11-09"), Some("2026-11-10T11:00:00Z")),
            ("due:1h..2h", Some("2026-11-10T13:00:00Z"), Some("2026-11-10T14:00:00Z")),
            ("due:-5m..5m", Some("2026-11-10T11:55:00Z"), Some("2026-11-10T12:05:00Z")),
        ] {
            assert_eq!(bounds(text), (after.map(at), before.map(at)), "{text}");
        }
        assert_eq!(at("2026-11-01T00:00:60Z"), at("2026-11-01T00:01:00Z"));
        assert_eq!(at("2026-11-01T00:00:00.123456Z").timestamp_subsec_nanos(), 123_456_000);
    }

    /// Each value of a choice is a condition of its own for MySQL.
    #[test]
    fn the_values_of_choices_count_against_the_limits_of_a_filter() {
        for (text, at, part) in [
            ("a|b|c|d|e|f", 0, "at most 5 texts without a field"),
            ("-a|b|c d|e f kind:noop", 12 - 1, "at most 5 texts without a field"),
            ("-error:a|b|c|d|e error:f", 17, "at most 5 texts to search for in errors"),
            ("payload.a:1|2|3 -payload.b:1|2 payload.c:1", 31, "at most 5 payload paths"),
            ("payload.a:1|2|3|4|5|6", 0, "at most 5 payload paths"),
        ] {
            let wrong = parse(text).unwrap_err();
            assert_eq!((wrong.len(), wrong[0].at), (1, at), "{text}: {wrong:?}");
            assert!(wrong[0].why.contains(part), "{text}: {wrong:?}");
        }
        let most = parse("a|b -c d|e error:a|b -error:c|d|e payload.a:1|2|3 -payload.b:1|2 -kind:a|b|c|d|e|f").unwrap();
        assert_eq!(most.choices.len(), 8);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_word() {
        for (text, place, part) in [
            ("state:done", 0, "is not one of"),
            ("sate:failed", 0, "Unknown filter: sate. Did you mean state:failed?"),
            ("größe:1", 0, "Unknown filter: größe. Did you mean \"größe:1\" in quotes, a text to search for?"),
            ("https://example.com", 0, "Did you mean \"https://example.com\" in quotes"),
            ("kind:email  a b c d e f", 22, "at most 5 texts"),
            ("\"\"", 0, "1 to 200 bytes"),
            ("kind:", 0, "is missing"),
            ("kind:\"a", 0, "not closed"),
            ("kind:a kind:b", 7, "twice"),
            ("schedule:a schedule:b", 11, "twice"),
            ("schedule:Nightly!", 0, "a name"),
            ("created:>yesterday", 0, "2026-11-01"),
            ("created:2h..yesterday", 0, "2026-11-01"),
            ("created:>99999999999999999999d", 0, "2026-11-01"),
            ("created:>9999-12-31", 0, "2026-11-01"),
            ("created:9999-12-31", 0, "2026-11-01"),
            ("created:-0001-01-01", 0, "2026-11-01"),
            ("finished:1969-12-31", 0, "2026-11-01"),
            ("due:+100000-01-01", 0, "2026-11-01"),
            ("kind:a|b created:-0001-01-01|2026-11-01", 9, "2026-11-01"),
            ("created:>1d created:>2d", 12, "twice"),
            ("payload.a..b:1", 0, "steps"),
            ("payload.a:1 payload.a:2", 12, "twice"),
            ("error:a\"b\"", 0, "whole value"),
            ("tag:ä", 0, "a tag is"),
            ("id:7", 0, "not a job id"),
            ("kind:a|", 0, "beside | is missing"),
            ("kind:a|B!", 0, "a name"),
            ("-sate:failed", 0, "Unknown filter: sate"),
            ("attempt:<0", 0, "number of attempts"),
            ("attempt:many", 0, "number of attempts"),
            ("took:5", 0, "length of time"),
        ] {
            let wrong = parse(text).unwrap_err();
            let last = wrong.last().unwrap();
            assert!(last.why.contains(part), "{text}: {last}");
            if !text.contains(" x") {
                assert_eq!(last.at, place, "{text}: {wrong:?}");
            }
        }
        assert_eq!(parse("a:b b:c").unwrap_err().len(), 2);
        assert_eq!(parse("größe:1 x:1").unwrap_err()[1].at, 8);
        assert_eq!(
            parse("sate:failed").unwrap_err()[0].to_string(),
            "Unknown filter: sate. Did you mean state:failed?"
        );
        assert!(parse(&"x".repeat(3_000)).unwrap_err()[0].word.len() < 100);
    }

    proptest! {
        #[test]
        fn nothing_makes_the_parser_stumble(text in "\\PC{0,80}") {
            let _ = parse(&text);
        }

        #[test]
        fn a_quoted_value_comes_back_as_it_was(value in "\\PC{1,40}") {
            let quoted = value.replace('\\', "\\\\").replace('"', "\\\"");
            prop_assert_eq!(parse(&format!("error:\"{quoted}\"")).unwrap().error.unwrap(), value.clone());
            prop_assert_eq!(parse(&format!("\"{quoted}\"")).unwrap().texts, [value]);
        }
    }
}
