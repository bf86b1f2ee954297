//! Addresses of a mail: senders and recipients.

use lettre::message::Mailbox;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One mailbox or a list of them: `"ann@example.com"`, `["Ann Müller <ann@example.com>", "bob@example.com"]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Addresses {
    /// A single mailbox.
    One(String),
    /// A list of mailboxes.
    Many(Vec<String>),
}

impl Addresses {
    /// True when there are no addresses.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.as_slice().is_empty()
    }

    pub(super) fn as_slice(&self) -> &[String] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }

    /// The JSON pointer to the address at `index`. `whole` is the pointer to all addresses.
    pub(super) fn pointer(&self, whole: &str, index: usize) -> String {
        match self {
            Self::One(_) => whole.to_owned(),
            Self::Many(_) => format!("{whole}/{index}"),
        }
    }

    /// Parse all addresses. Return the error of the first one that is not a mailbox.
    pub(super) fn mailboxes(&self) -> Result<Vec<Mailbox>, InvalidMailbox> {
        self.as_slice().iter().map(|text| mailbox(text)).collect()
    }
}

impl Default for Addresses {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl From<&str> for Addresses {
    fn from(one: &str) -> Self {
        Self::One(one.to_owned())
    }
}

/// Reason why a text is not accepted as a mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidMailbox {
    /// A line break or another control character. It may be an attempt to add a header or a command, or a mistake.
    #[error("must not contain line breaks or other control characters")]
    ControlCharacter,
    /// Text that mail readers would decode into something other than the checked text.
    #[error("must not contain encoded words (=?…?=): write the text itself")]
    EncodedWord,
    /// The text is longer than any server accepts.
    #[error("must be at most 320 bytes long")]
    TooLong,
    /// The text is not a mailbox.
    #[error("must be a mailbox like ann@example.com or Ann <ann@example.com>")]
    Malformed,
    /// An address that only servers with SMTPUTF8 accept.
    #[error("must be an ASCII address; write an international domain in its xn-- form")]
    NotAscii,
}

/// Longest text of a mailbox with its name, in bytes.
const MAILBOX_BYTES: usize = 320;

/// Parse one mailbox. It is stricter than the standards where lenient programs had injections: no control characters,
/// no quoted local parts, ASCII addresses only. Names may be in any script.
pub(crate) fn mailbox(text: &str) -> Result<Mailbox, InvalidMailbox> {
    if text.chars().any(char::is_control) {
        return Err(InvalidMailbox::ControlCharacter);
    }
    if has_encoded_word(text) {
        return Err(InvalidMailbox::EncodedWord);
    }
    if text.len() > MAILBOX_BYTES {
        return Err(InvalidMailbox::TooLong);
    }
    let mailbox: Mailbox = text.parse().map_err(|_| InvalidMailbox::Malformed)?;
    let address: &str = mailbox.email.as_ref();
    if !address.is_ascii() {
        return Err(InvalidMailbox::NotAscii);
    }
    if address.bytes().any(|b| !b.is_ascii_graphic() || br#"<>()[]\,;:""#.contains(&b)) {
        return Err(InvalidMailbox::Malformed);
    }
    // The message builder parses the headers that it wrote, and drops those that it cannot parse.
    if mailbox.to_string().parse::<Mailbox>().as_ref().map(|read| &read.email) != Ok(&mailbox.email) {
        return Err(InvalidMailbox::Malformed);
    }
    Ok(mailbox)
}

/// True when the text looks like an encoded word. The message builder passes such text on unchanged, and mail readers
/// would decode it, including control characters. Clients can write text in any script, so they do not need encoded
/// words.
pub(super) fn has_encoded_word(text: &str) -> bool {
    text.split_once("=?").is_some_and(|(_, rest)| rest.contains("?="))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mailboxes_are_read_with_and_without_a_name() {
        for (text, name, address) in [
            ("ann@example.com", None, "ann@example.com"),
            (" ann+tag@mail.example.com ", None, "ann+tag@mail.example.com"),
            ("<ann@example.com>", None, "ann@example.com"),
            ("Ann Müller <ann@example.com>", Some("Ann Müller"), "ann@example.com"),
            ("\"Müller, Ann\" <ann@example.com>", Some("Müller, Ann"), "ann@example.com"),
            ("\"a \\\"quoted\\\" name\" <a@example.com>", Some("a \"quoted\" name"), "a@example.com"),
            ("日本 <jp@xn--wgv71a.example>", Some("日本"), "jp@xn--wgv71a.example"),
            ("root@localhost", None, "root@localhost"),
        ] {
            let mailbox = mailbox(text).unwrap();
            assert_eq!((mailbox.name.as_deref(), mailbox.email.as_ref()), (name, address), "{text}");
        }
    }

    #[test]
    fn nothing_that_could_become_a_second_header_or_command_passes() {
        use InvalidMailbox::{ControlCharacter, EncodedWord, Malformed, NotAscii, TooLong};
        let long = format!("{}@example.com", "a".repeat(320));
        for (text, expected) in [
            ("", Malformed),
            ("ann", Malformed),
            ("ann@", Malformed),
            ("@example.com", Malformed),
            ("ann@example.com, bob@example.com", Malformed),
            ("ann@example.com>", Malformed),
            ("<ann@example.com", Malformed),
            ("<ann@example.com> bob", Malformed),
            ("\"a b\"@example.com", Malformed),
            ("\"a>\"@example.com", Malformed),
            ("ann@exa mple.com", Malformed),
            ("ann@[127.0.0.1]", Malformed),
            ("ann@example.com\r\nBcc: eve@example.com", ControlCharacter),
            ("ann@example.com\nRCPT TO:<eve@example.com>", ControlCharacter),
            ("Ann\r\nBcc: eve@example.com <ann@example.com>", ControlCharacter),
            ("ann@example.com\0", ControlCharacter),
            ("Ann\u{85}X <ann@example.com>", ControlCharacter),
            ("Ann\u{7f} <ann@example.com>", ControlCharacter),
            ("=?utf-8?q?=0D=0ABcc:?= <ann@example.com>", EncodedWord),
            ("\"=?utf-8?b?DQo=?=\" <ann@example.com>", EncodedWord),
            ("äöü@example.com", NotAscii),
            ("ann@bücher.example", NotAscii),
            (&long, TooLong),
        ] {
            assert_eq!(mailbox(text).unwrap_err(), expected, "{text:?}");
        }
    }
}
