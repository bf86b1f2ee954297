//! Groups of dead letters: failures with the same kind and the same error text, apart from the parts that vary.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Name;

/// The id of a group of dead letters: eight bytes of a digest of the kind and the normalised error, shown as 16 hex
/// digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Fingerprint([u8; 8]);

/// The error for a text that is not a [`Fingerprint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a group of dead letters is 16 hex digits in lower case")]
pub struct InvalidFingerprint;

impl Fingerprint {
    /// Return the group of a failure of this kind with this error text.
    #[must_use]
    pub fn new(kind: &Name, error: &str) -> Self {
        let digest = Sha256::digest(format!("{kind}\n{}", normalise(error)).as_bytes());
        Self(std::array::from_fn(|at| digest[at]))
    }

    /// Return the bytes, for the store.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; 8] {
        &self.0
    }

    /// Build a fingerprint from the bytes in the store.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 8]) -> Self {
        Self(bytes)
    }
}

impl FromStr for Fingerprint {
    type Err = InvalidFingerprint;

    fn from_str(text: &str) -> Result<Self, InvalidFingerprint> {
        let digits = text.len() == 16 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        let number = u64::from_str_radix(text, 16).ok().filter(|_| digits).ok_or(InvalidFingerprint)?;
        Ok(Self(number.to_be_bytes()))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl TryFrom<String> for Fingerprint {
    type Error = InvalidFingerprint;

    fn try_from(text: String) -> Result<Self, InvalidFingerprint> {
        text.parse()
    }
}

impl From<Fingerprint> for String {
    fn from(fingerprint: Fingerprint) -> Self {
        fingerprint.to_string()
    }
}

/// Limits in characters: how much of an error is read, and the length of the normalised text.
const MAX_READ: usize = 1_000;
const MAX_KEPT: usize = 200;
/// Longest quoted text that counts as one value.
const MAX_QUOTED: usize = 200;

/// Words that make the number behind them part of the cause: `status 503` and `status 404` are different failures.
const TELLING: [&str; 12] =
    ["http", "status", "code", "error", "errno", "sqlstate", "signal", "exit", "exited", "reply", "answered", "smtp"];

/// Return the error text without the parts that vary between occurrences: quoted values, ids, numbers, times,
/// addresses, the varying parts of paths. The result is in lower case, has single spaces between words, and is cut. It
/// is meant for people to read as well.
#[must_use]
pub fn normalise(error: &str) -> String {
    let text: Vec<char> = error.trim().chars().take(MAX_READ).collect();
    let mut words: Vec<String> = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let c = text[at];
        if c.is_whitespace() {
            at += 1;
            if words.last().is_some_and(|word| word != " ") {
                words.push(" ".to_owned());
            }
        } else if let Some(end) = quoted(&text, at) {
            words.push("'…'".to_owned());
            at = end;
        } else if is_part(c) {
            let ends_at = |ends: fn(char) -> bool| (at..text.len()).find(|at| ends(text[*at])).unwrap_or(text.len());
            let mut end = ends_at(|c| !is_part(c));
            let mut word: String = text[at..end].iter().collect();
            if word.contains("://") {
                // The query string is part of the address.
                end = ends_at(|c| c.is_whitespace() || "\"'<>()[],".contains(c));
                word = text[at..end].iter().collect();
            }
            // Punctuation at the end of a sentence is not part of the value.
            let core = word.trim_end_matches(['.', ':', '-']);
            let said = plain(core, &words);
            words.push(said);
            words.extend(word[core.len()..].chars().next().map(String::from));
            at = end;
        } else {
            words.push(c.to_string());
            at += 1;
        }
    }
    let text: String = words.concat().trim().to_lowercase();
    text.chars().take(MAX_KEPT).collect()
}

/// Return the end of the quoted value that begins at `at`, if one begins there.
fn quoted(text: &[char], at: usize) -> Option<usize> {
    let close = match text[at] {
        // An apostrophe within a word does not open a quote.
        '\'' if at > 0 && text[at - 1].is_alphanumeric() => return None,
        c @ ('\'' | '"' | '`') => c,
        '“' => '”',
        '«' => '»',
        _ => return None,
    };
    let last = text.len().min(at + MAX_QUOTED);
    (at + 1..last).find(|end| text[*end] == close && text[end - 1] != '\\').map(|end| end + 1)
}

fn is_part(c: char) -> bool {
    c.is_alphanumeric() || "_.:/-@+%?&~$#\\".contains(c)
}

/// Return one word without the parts that vary.
fn plain(word: &str, before: &[String]) -> String {
    if !word.contains(|c: char| c.is_ascii_digit() || c == '@' || c == '/') {
        return if is_token(word) { "<id>".to_owned() } else { word.to_owned() };
    }
    if let Some((scheme, rest)) = word.split_once("://") {
        let rest = rest.split(['?', '#']).next().unwrap_or(rest);
        let (authority, behind) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        return format!("{scheme}://{}{}", place(authority), path(behind));
    }
    if word.contains('@') && !word.starts_with('@') {
        return "<address>".to_owned();
    }
    if word.contains('/') {
        return path(word.split('?').next().unwrap_or(word));
    }
    // `key:value` and `a-b` keep their words. Ids are recognised first, because they may contain hyphens too.
    if is_id(word) {
        return "<id>".to_owned();
    }
    if is_number(word) {
        let told = before.iter().rev().find(|word| word.chars().any(char::is_alphanumeric));
        let telling = told.map_or(word.len() == 3, |told| {
            TELLING.contains(&told.trim_end_matches([':', '=']).to_ascii_lowercase().as_str())
        });
        return if telling { word.to_owned() } else { "#".to_owned() };
    }
    digits(word)
}

/// Normalise the host and port of a URL, which tell where the failure is. An IP address stays as it is. A host name
/// loses its numbers, because all hosts of a pool are one group.
fn place(authority: &str) -> String {
    if is_number(authority) {
        return authority.to_owned();
    }
    let (name, port) = authority.rsplit_once(':').map_or((authority, None), |(name, port)| (name, Some(port)));
    let name = name.split('.').map(|part| if is_id(part) { "#".to_owned() } else { digits(part) }).collect::<Vec<_>>();
    let port = port.map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}{port}", name.join("."))
}

/// Normalise a path. Parts with digits vary, except short ones such as `v1`.
fn path(word: &str) -> String {
    let part = |part: &str| match part {
        _ if is_id(part) || is_token(part) => "#".to_owned(),
        _ if part.len() <= 3 && part.starts_with(|c: char| c.is_alphabetic()) => part.to_owned(),
        _ if is_number(part) => "#".to_owned(),
        _ => digits(part),
    };
    word.split('/').map(part).collect::<Vec<_>>().join("/")
}

/// Return true for UUIDs and hexadecimal digits, also written as `0x…` and after `key:`.
fn is_id(word: &str) -> bool {
    let hex = word.strip_prefix("0x").unwrap_or(word);
    let all = hex.chars().all(|c| c.is_ascii_hexdigit() || c == '-' || c == ':');
    let count = hex.chars().filter(char::is_ascii_hexdigit).count();
    let letters = hex.chars().any(|c| c.is_ascii_alphabetic());
    (all && count >= 8 && letters) || (word.len() > 2 && word.starts_with("0x") && all) || is_token(word)
}

/// Return true for long words of letters and digits that have no meaning to a reader: tokens, ULIDs, base64.
fn is_token(word: &str) -> bool {
    let fits = word.chars().all(|c| c.is_ascii_alphanumeric() || "_-+".contains(c));
    word.len() >= 20 && fits && word.chars().filter(char::is_ascii_digit).count() >= 2
}

/// Return true for numbers, timestamps, durations and IPv4 addresses: digits with separators between them, and a unit.
fn is_number(word: &str) -> bool {
    let body = word.trim_start_matches(['+', '-', '#']);
    let unit = body.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == '%' || c == 'µ');
    let begins = body.starts_with(|c: char| c.is_ascii_digit());
    begins && body.len() - unit.len() <= 5 && unit.chars().all(|c| c.is_ascii_digit() || ".:-+_TZ".contains(c))
}

/// Replace each run of digits, with the points between them, by one `#`.
fn digits(word: &str) -> String {
    let mut said = String::new();
    for c in word.chars() {
        match c {
            '0'..='9' if said.ends_with('#') => {}
            '0'..='9' => said.push('#'),
            c => said.push(c),
        }
    }
    while said.contains("#.#") || said.contains("#:#") || said.contains("#-#") {
        said = said.replace("#.#", "#").replace("#:#", "#").replace("#-#", "#");
    }
    said
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn group(error: &str) -> Fingerprint {
        Fingerprint::new(&"email".parse().unwrap(), error)
    }

    #[test]
    fn errors_that_differ_in_values_are_one_group() {
        for alike in [
            &["user 42 not found", "user 77213 not found", "User 1 not found  "][..],
            &["attempt 3 failed after 1.5s", "attempt 12 failed after 20.25s"],
            &["job 0192f8c0-7f3a-7c4e-9d5b-3e2a1f0c9b8a is gone", "job 01a1ffe3-80fe-760d-a4da-1bb00b22d916 is gone"],
            &["unknown column 'a.b' in 'field list'", "unknown column 'x' in 'where clause'"],
            &["no such file: \"/tmp/a b.csv\"", "no such file: \"/var/c.csv\""],
            &["connect 10.0.0.7:3306: connection refused", "connect 192.168.1.44:3307: Connection refused"],
            &["cannot resolve db-7.internal", "cannot resolve db-12.internal"],
            &[
                "GET https://api.example.com/v1/users/42?token=abc timed out",
                "GET https://api.example.com/v1/users/43 timed out",
            ],
            &["open /var/lib/app/00ab12cd34/out.csv: denied", "open /var/lib/app/77ee99aa01/out.csv: denied"],
            &["rate limited until 2026-11-01T10:00:00Z", "rate limited until 2026-12-24T23:59:59.123Z"],
            &["pointer 0x7ffd1234 is bad", "pointer 0x55aa0000 is bad"],
            &["digest deadbeefcafe0123 differs", "digest 0011223344556677aabb differs"],
            &["mailbox ada@example.com is full", "mailbox grace.hopper@example.org is full"],
            &["token eyJhbGciOiJIUzI1NiIsInR5 expired", "token eyJ0eXAiOiJKV1QiLCJhbGci99000 expired"],
            &["took 15ms", "took 250ms"],
            &["lock order_17 is held", "lock order_9 is held"],
            &["disk 93% full", "disk 97% full"],
        ] {
            let first = group(alike[0]);
            for other in alike {
                assert_eq!(group(other), first, "{:?} and {:?}", normalise(alike[0]), normalise(other));
            }
        }
    }

    #[test]
    fn errors_of_different_causes_are_different_groups() {
        let errors = [
            "the server answered status 503",
            "the server answered status 404",
            "HTTP 500: internal",
            "HTTP 502: internal",
            "exit code 1",
            "exit code 137",
            "550 5.1.1 mailbox unavailable",
            "421 4.3.2 mailbox unavailable",
            "connection refused",
            "connection reset",
            "timed out",
            "user 42 not found",
            "order 42 not found",
            "GET https://api.example.com/v1/users/42 timed out",
            "GET https://api.example.com/v1/orders/42 timed out",
            "GET https://mail.example.com/v1/users/42 timed out",
            "POST http://10.0.0.7:8080/in answered 404",
            "POST http://10.0.0.8:8080/in answered 404",
            "POST http://10.0.0.8:8080/out answered 404",
            "POST http://shop.internal:8080/out answered 404",
            "POST http://shop.internal:8081/out answered 404",
            "don't know how",
            "don't care how",
            "",
        ];
        for (at, one) in errors.iter().enumerate() {
            for other in &errors[at + 1..] {
                assert_ne!(group(one), group(other), "{:?} and {:?}", normalise(one), normalise(other));
            }
        }
        let other_kind = Fingerprint::new(&"http".parse().unwrap(), errors[0]);
        assert_ne!(other_kind, group(errors[0]));
    }

    #[test]
    fn what_is_left_can_be_read() {
        for (error, said) in [
            ("User 42 not found in 'main'", "user # not found in '…'"),
            (
                "GET https://api.example.com/v1/users/42?x=1: status 503",
                "get https://api.example.com/v1/users/#: status 503",
            ),
            (
                "POST http://127.0.0.1:9999/hooks/42 answered 404 Not Found",
                "post http://127.0.0.1:9999/hooks/# answered 404 not found",
            ),
            ("POST http://shop-7.internal:8080/v1/in timed out", "post http://shop-#.internal:8080/v1/in timed out"),
            ("attempt 3\n  failed.", "attempt # failed."),
            ("connect 10.0.0.7:3306 refused", "connect # refused"),
        ] {
            assert_eq!(normalise(error), said);
        }
    }

    #[test]
    fn fingerprints_are_hex_digits() {
        let one = group("x");
        assert_eq!(one.to_string().parse::<Fingerprint>().unwrap(), one);
        assert_eq!(Fingerprint::from_bytes(*one.bytes()), one);
        for bad in ["", "x", "0123456789ABCDEF", "+123456789abcdef", "0123456789abcde", "0123456789abcdef0"] {
            assert!(bad.parse::<Fingerprint>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn normalising_is_bounded_and_total(error in any::<String>()) {
            prop_assert!(normalise(&error).chars().count() <= MAX_KEPT);
        }
    }
}
