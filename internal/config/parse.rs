//! Parsers of simple values. None of them repeats the value in its errors.

use std::fmt::Display;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;

use secrecy::SecretString;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use super::error::Wrong;
use super::url::is_host_and_port;
use tickr_job::{Hours, TablePrefix};

/// Store a parsed value in its field, so that a row of the settings table fits on one line.
pub(super) fn put<V>(field: &mut V, parsed: Result<V, Wrong>) -> Result<(), Wrong> {
    *field = parsed?;
    Ok(())
}

/// Store a parsed value in an optional field.
pub(super) fn some<V>(field: &mut Option<V>, parsed: Result<V, Wrong>) -> Result<(), Wrong> {
    *field = Some(parsed?);
    Ok(())
}

pub(super) fn number<N: FromStr + PartialOrd + Display>(text: &str, limits: RangeInclusive<N>) -> Result<N, Wrong> {
    let right = || format!("write a number from {} to {}", limits.start(), limits.end());
    let number: N = text.trim().parse().map_err(|_| Wrong::new("not a valid number", right()))?;
    if limits.contains(&number) { Ok(number) } else { Err(Wrong::new("out of range", right())) }
}

pub(super) fn switch(text: &str) -> Result<bool, Wrong> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" => Ok(false),
        _ => Err(Wrong::new("neither yes nor no", "write true or false")),
    }
}

/// Parse one of a few words, each with its value.
pub(super) fn one_of<V: Clone>(text: &str, words: &[(&str, V)]) -> Result<V, Wrong> {
    words.iter().find(|(word, _)| *word == text.trim()).map(|(_, value)| value.clone()).ok_or_else(|| {
        let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        Wrong::new("not a permitted value", format!("write one of {}", words.join(", ")))
    })
}

/// Parse text that is not blank and has no control characters.
pub(super) fn line(text: &str) -> Result<String, Wrong> {
    if text.trim().is_empty() {
        return Err(Wrong::new("empty", "write some text or leave the setting out"));
    }
    if text.chars().any(char::is_control) {
        return Err(Wrong::new("contains a control character", "write it on one line of plain text"));
    }
    Ok(text.trim().to_owned())
}

/// Parse the name of a queue, a kind or a report: `[a-z0-9][a-z0-9_.-]{0,63}`.
pub(super) fn name(text: &str) -> Result<String, Wrong> {
    let fits = text.len() <= 64
        && text.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && text.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-'));
    if fits {
        return Ok(text.to_owned());
    }
    let right = "write 1 to 64 of a-z, 0-9, _, . and -, beginning with a letter or digit";
    Err(Wrong::new("not a usable name", right))
}

/// Parse a comma list. Each entry is trimmed and parsed; an empty text is an empty list.
pub(super) fn list<V>(text: &str, entry: impl Fn(&str) -> Result<V, Wrong>) -> Result<Vec<V>, Wrong> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let parse = |(at, text): (usize, &str)| {
        entry(text.trim()).map_err(|wrong| Wrong::new(format!("entry {}: {}", at + 1, wrong.wrong), wrong.right))
    };
    text.split(',').enumerate().map(parse).collect()
}

/// Parse the queues to serve: at least one, each once.
pub(super) fn queues(text: &str) -> Result<Vec<String>, Wrong> {
    let queues = list(text, name)?;
    if queues.is_empty() {
        return Err(Wrong::new("names no queue", "write at least one, like default or mail,reports"));
    }
    match queues.iter().enumerate().find(|(at, queue)| queues[..*at].contains(queue)) {
        Some((at, _)) => Err(Wrong::new(format!("entry {}: named before", at + 1), "name each queue once")),
        None => Ok(queues),
    }
}

/// Parse a host name or an address without a port. Names are converted to lower case, and addresses to their usual form.
pub(super) fn host_name(text: &str) -> Result<String, Wrong> {
    if let Ok(address) = text.trim_matches(['[', ']']).parse::<std::net::IpAddr>() {
        return Ok(address.to_string());
    }
    let legal = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    if (1..=253).contains(&text.len()) && text.bytes().all(legal) {
        return Ok(text.to_ascii_lowercase());
    }
    Err(Wrong::new("not the name of a host", "write names like jobs.internal, without a port"))
}

/// Minimum length of a token in characters: the length of 120 random bits in base64. A shorter one can be guessed.
const TOKEN_LEAST: usize = 20;

/// Parse a token for an Authorization header.
pub(super) fn token(text: &str) -> Result<SecretString, Wrong> {
    let right =
        "write 20 to 256 visible ASCII characters without spaces and commas, such as what openssl rand -hex 32 prints";
    if text.len() > 256 || !text.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(Wrong::new("not usable as a token", right));
    }
    if text.len() < TOKEN_LEAST {
        return Err(Wrong::new("too short: a token permits every request, so it must be hard to guess", right));
    }
    Ok(SecretString::from(text))
}

/// Parse a mail domain, or a whole address, and convert it to lower case.
pub(super) fn domain_or_address(text: &str) -> Result<String, Wrong> {
    let wrong = || Wrong::new("neither a domain nor an address", "write entries like example.com or jobs@example.com");
    let (user, domain) = text.rsplit_once('@').unwrap_or(("jobs", text));
    let label = |label: &str| {
        (1..=63).contains(&label.len()) && label.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
    };
    if domain.len() > 253 || !domain.split('.').all(label) || mailbox(&format!("{user}@{domain}")).is_err() {
        return Err(wrong());
    }
    Ok(text.to_ascii_lowercase())
}

/// Parse the URL of an HTTP service. Credentials belong in headers, which are kept secret.
pub(super) fn web_address(text: &str) -> Result<String, Wrong> {
    let text = text.trim();
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let host = rest.map(|rest| rest.split(['/', '?', '#']).next().unwrap_or(""));
    // The characters alone would let a port above 65535 pass, and then every call would fail.
    let fits = host.is_some_and(is_host_and_port) && text.len() <= 2_048;
    if fits && text.bytes().all(|b| b.is_ascii_graphic()) && !text.contains(['?', '#']) {
        return Ok(text.to_owned());
    }
    Err(Wrong::new("not a valid address", "write http://HOST:PORT or https://HOST:PORT, without a user and a query"))
}

/// Parse `name=value`, with optional percent escapes in the value, as in `OTEL_EXPORTER_OTLP_HEADERS`.
pub(super) fn header(text: &str) -> Result<(String, SecretString), Wrong> {
    let wrong = || Wrong::new("not a header", "write name=value, with %20 for a space and %2C for a comma");
    let (name, value) = text.split_once('=').ok_or_else(wrong)?;
    let legal = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    let value = unescaped(value.trim()).ok_or_else(wrong)?;
    let printable = (1..=4_096).contains(&value.len()) && value.bytes().all(|b| (b' '..=b'~').contains(&b));
    let name = name.trim();
    if name.is_empty() || name.len() > 128 || !name.bytes().all(legal) || !printable {
        return Err(wrong());
    }
    Ok((name.to_ascii_lowercase(), SecretString::from(value)))
}

fn unescaped(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut out = parts.next()?.to_owned();
    for part in parts {
        let byte = u8::from_str_radix(part.get(..2)?, 16).ok()?;
        out.push(char::from(byte));
        out.push_str(&part[2..]);
    }
    Some(out)
}

/// Parse hours of the day.
pub(super) fn hours(text: &str) -> Result<Hours, Wrong> {
    text.parse().map_err(|()| Wrong::new("not a part of a day", "write two times in UTC, like 01:00-05:30"))
}

/// Parse an address to listen on. Of names only `localhost` is accepted: a parser must not resolve names.
pub(super) fn listen_addr(text: &str) -> Result<SocketAddr, Wrong> {
    let wrong =
        || Wrong::new("not an address", "write ADDRESS:PORT, like 127.0.0.1:7070, [::1]:7070 or localhost:7070");
    match text.trim().strip_prefix("localhost:") {
        Some(port) => Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port.parse::<u16>().map_err(|_| wrong())?))),
        None => text.trim().parse().map_err(|_| wrong()),
    }
}

/// Parse the prefix of the index keys. Few characters are permitted, because the prefix becomes part of a hash tag and
/// of key patterns in other tools.
pub(super) fn key_prefix(text: &str) -> Result<String, Wrong> {
    let fits = (1..=32).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b));
    if fits {
        Ok(text.to_owned())
    } else {
        Err(Wrong::new("not a usable prefix", "write 1 to 32 of A-Z, a-z, 0-9, _, . and -"))
    }
}

/// Parse the prefix of the tables. An empty text means none, as it does in the environment.
pub(super) fn table_prefix(text: &str) -> Result<TablePrefix, Wrong> {
    if text.is_empty() {
        return Ok(TablePrefix::default());
    }
    let right = || {
        let most = TablePrefix::MAX_LEN;
        format!("write 1 to {most} of a-z, 0-9 and _, a letter first and no upper case, like tickr_")
    };
    text.parse().map_err(|_| Wrong::new("not a usable prefix", right()))
}

/// Parse a log filter. It is checked here so that a typing error stops the start instead of silencing the log: the
/// library takes a word that is no level for a target, shows its lines, and hides all others.
pub(super) fn log_filter(text: &str) -> Result<String, Wrong> {
    let is_level = |text: &str| !text.is_empty() && text.parse::<LevelFilter>().is_ok();
    let is_part = |part: &str| match part.rsplit_once('=') {
        Some((target, level)) => !target.contains(char::is_whitespace) && is_level(level),
        None => is_level(part),
    };
    let parts: Vec<&str> = text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    let filter = parts.join(",");
    if !parts.is_empty() && parts.into_iter().all(is_part) && EnvFilter::try_new(&filter).is_ok() {
        return Ok(filter);
    }
    let right = "write a level (off, error, warn, info, debug or trace), or targets with levels, like info,tickr=debug";
    Err(Wrong::new("not a log filter", right))
}

/// Parse a mailbox. It is checked before the text goes into a mail header, where a line break would be an injection.
pub(super) fn mailbox(text: &str) -> Result<String, Wrong> {
    let text = line(text)?;
    match text.parse::<lettre::message::Mailbox>() {
        Ok(_) => Ok(text),
        Err(_) => Err(Wrong::new("not a mailbox", "write one like jobs@example.com or Jobs <jobs@example.com>")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_pattern() {
        for good in ["a", "0", "mail.eu-1_x", &"a".repeat(64)] {
            assert!(name(good).is_ok(), "{good}");
        }
        for bad in ["", "A", "-a", ".a", "a b", "a:b", "ä", &"a".repeat(65)] {
            assert!(name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn queue_lists_name_the_entry_at_fault() {
        assert_eq!(queues("mail, reports").unwrap(), ["mail", "reports"]);
        assert!(queues("").is_err());
        assert_eq!(queues("mail,Bad").unwrap_err().wrong, "entry 2: not a usable name");
        assert_eq!(queues("mail,").unwrap_err().wrong, "entry 2: not a usable name");
        assert_eq!(queues("mail,mail").unwrap_err().wrong, "entry 2: named before");
    }

    #[test]
    fn addresses_may_be_v4_v6_or_localhost() {
        for good in ["127.0.0.1:0", "[::1]:7070", "0.0.0.0:80", "localhost:7070"] {
            assert!(listen_addr(good).is_ok(), "{good}");
        }
        for bad in ["7070", ":7070", "example.com:80", "localhost:99999", "127.0.0.1"] {
            assert!(listen_addr(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn switches_take_the_usual_words() {
        assert_eq!((switch("1"), switch("off")), (Ok(true), Ok(false)));
        assert!(switch("2").is_err() && switch("").is_err());
    }

    #[test]
    fn a_log_filter_has_a_level_in_each_part() {
        for good in ["info", "WARN", "off", "tickr=debug,info", "info,sqlx=warn", "tickr::api=trace", "[job]=debug"] {
            assert_eq!(log_filter(good).as_deref(), Ok(good));
        }
        assert_eq!(log_filter(" info, tickr=debug,").as_deref(), Ok("info,tickr=debug"));
        for bad in ["", ",", "warning", "inof", "error warn", "tickr:debug", "tickr", "tickr=", "tickr=loud", "a b=1"] {
            assert!(log_filter(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn tokens_prefixes_and_mailboxes_are_narrow() {
        let long = |text: &str| format!("{text}{}", "x".repeat(20));
        assert!(token(&long("t0k~en")).is_ok() && token(&"x".repeat(20)).is_ok() && token(&"x".repeat(256)).is_ok());
        for bad in ["", "a", &"x".repeat(19), &long("a b"), &long("ä"), &"x".repeat(257)] {
            let wrong = token(bad).unwrap_err();
            assert!(wrong.right.contains("20 to 256"), "{bad}");
        }
        for good in ["example.com", "Jobs@Example.com", "localhost"] {
            assert_eq!(domain_or_address(good), Ok(good.to_ascii_lowercase()));
        }
        for bad in
            ["", "@example.com", "jobs@", "a b", "*.example.com", "http://example.com", "a@b@c", "x..y", "Jo <j@b>"]
        {
            assert!(domain_or_address(bad).is_err(), "{bad}");
        }
        assert!(table_prefix("tickr_").is_ok() && table_prefix("").is_ok_and(|prefix| prefix.is_empty()));
        assert!(table_prefix("Tickr_").is_err() && table_prefix("_").is_err() && table_prefix("a;b").is_err());
        assert!(key_prefix("tickr").is_ok() && key_prefix("a{b").is_err() && key_prefix("").is_err());
        assert!(mailbox("Jobs <jobs@example.com>").is_ok() && mailbox("jobs").is_err());
        assert!(mailbox("jobs@example.com\r\nBcc: x@example.com").is_err());
    }
}
