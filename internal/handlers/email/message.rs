//! Build the bytes of a mail from its payload.
//!
//! Line breaks of every body are turned into CRLF, then the body is encoded (quoted-printable or base64). So no text of
//! a client can end the message early (RUSTSEC-2026-0561 concerns bodies without an encoding). The finished bytes are
//! checked once more before they are sent.

use lettre::Address;
use lettre::address::Envelope;
use lettre::message::header::{self, ContentTransferEncoding, ContentType, HeaderName, HeaderValue};
use lettre::message::{Attachment, Body, Mailbox, Mailboxes, Message, MultiPart, SinglePart};

use super::Email;
use super::address::InvalidMailbox;
use super::attachment::Enclosure;
use tickr_job::JobId;

/// A mail that is ready to be sent.
#[derive(Debug)]
pub(super) struct Mail {
    /// The same in every attempt of the job, so that servers and mail readers can recognise a repetition.
    pub(super) message_id: String,
    #[cfg_attr(not(feature = "smtp"), expect(dead_code, reason = "only SMTP has an envelope"))]
    pub(super) sender: Address,
    /// All recipients, including those of `bcc`, each once.
    pub(super) recipients: Vec<Address>,
    pub(super) bytes: Vec<u8>,
}

/// Reason why a mail cannot be built. The check at enqueue finds all of these errors, so no retry helps.
#[derive(Debug, thiserror::Error)]
pub(super) enum MessageError {
    #[error("build the mail: an address {0}")]
    Address(#[from] InvalidMailbox),
    #[error("build the mail: there is no sender")]
    NoSender,
    #[error("build the mail: {0}")]
    Build(#[from] lettre::error::Error),
    #[error("build the mail: the name of an extra header is not legal")]
    HeaderName,
    #[error("build the mail: the result is not plain lines of ASCII")]
    NotPlain,
}

/// Build the mail that `email` describes. With `names_hidden` its bytes name the recipients of `bcc` as well: a file
/// has no envelope, so a program that sends it has no other place to find them.
pub(super) fn build(
    email: &Email,
    default_sender: Option<&Mailbox>,
    job: JobId,
    enclosures: Vec<Enclosure>,
    names_hidden: bool,
) -> Result<Mail, MessageError> {
    let sender = match &email.from {
        Some(from) => super::address::mailbox(from)?,
        None => default_sender.cloned().ok_or(MessageError::NoSender)?,
    };
    let (to, cc, bcc) = (email.to.mailboxes()?, email.cc.mailboxes()?, email.bcc.mailboxes()?);
    let mut recipients: Vec<Address> = Vec::new();
    for mailbox in to.iter().chain(&cc).chain(&bcc) {
        if !recipients.contains(&mailbox.email) {
            recipients.push(mailbox.email.clone());
        }
    }
    // The domain of the sender, not the name of this host: the next attempt may run on another host.
    let message_id = format!("<{job}@{}>", sender.email.domain());

    // Set each list as a whole. The builder's own `to()` parses the header again for every address that it adds.
    let mut builder = Message::builder()
        .header(header::From::from(Mailboxes::from(sender.clone())))
        .header(header::To::from(Mailboxes::from(to)))
        .subject(&email.subject)
        .date_now()
        .message_id(Some(message_id.clone()))
        .envelope(Envelope::new(Some(sender.email.clone()), recipients.clone())?);
    if !cc.is_empty() {
        builder = builder.header(header::Cc::from(Mailboxes::from(cc)));
    }
    if names_hidden && !bcc.is_empty() {
        builder = builder.keep_bcc().header(header::Bcc::from(Mailboxes::from(bcc)));
    }
    if let Some(reply_to) = &email.reply_to {
        builder = builder.reply_to(super::address::mailbox(reply_to)?);
    }
    for (name, value) in &email.headers {
        let name = HeaderName::new_from_ascii(name.clone()).map_err(|_| MessageError::HeaderName)?;
        builder = builder.raw_header(HeaderValue::new(name, value.clone()));
    }
    let message = match (content(email), enclosures) {
        (Content::Single(part), files) if files.is_empty() => builder.singlepart(part)?,
        (Content::Alternative(parts), files) if files.is_empty() => builder.multipart(parts)?,
        (content, files) => {
            let mixed = match content {
                Content::Single(part) => MultiPart::mixed().singlepart(part),
                Content::Alternative(parts) => MultiPart::mixed().multipart(parts),
            };
            builder.multipart(files.into_iter().fold(mixed, |mixed, file| mixed.singlepart(attached(file))))?
        }
    };
    let bytes = message.formatted();
    if !is_plain(&bytes) {
        return Err(MessageError::NotPlain);
    }
    Ok(Mail { message_id, sender: sender.email, recipients, bytes })
}

enum Content {
    Single(SinglePart),
    Alternative(MultiPart),
}

fn content(email: &Email) -> Content {
    let text = |text: &str| part(ContentType::TEXT_PLAIN, quoted_printable(text));
    let html = |html: &str| part(ContentType::TEXT_HTML, quoted_printable(html));
    match (&email.text, &email.html) {
        // The richest form last, as the standard requires.
        (Some(t), Some(h)) => Content::Alternative(MultiPart::alternative().singlepart(text(t)).singlepart(html(h))),
        (None, Some(h)) => Content::Single(html(h)),
        (t, None) => Content::Single(text(t.as_deref().unwrap_or_default())),
    }
}

fn part(content_type: ContentType, body: Body) -> SinglePart {
    SinglePart::builder().header(content_type).body(body)
}

fn attached(file: Enclosure) -> SinglePart {
    Attachment::new(file.filename).body(encoded(file.content, ContentTransferEncoding::Base64), file.content_type)
}

fn quoted_printable(text: &str) -> Body {
    encoded(crlf(text).into_bytes(), ContentTransferEncoding::QuotedPrintable)
}

#[expect(clippy::expect_used, reason = "only the encodings that pass bytes through can refuse any")]
fn encoded(bytes: Vec<u8>, encoding: ContentTransferEncoding) -> Body {
    Body::new_with_encoding(bytes, encoding).expect("an encoding for all bytes")
}

/// Turn every line break into CRLF, also single carriage returns.
fn crlf(text: &str) -> String {
    let mut lines = String::with_capacity(text.len() + text.len() / 32);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\r' => {
                chars.next_if_eq(&'\n');
                lines.push_str("\r\n");
            }
            '\n' => lines.push_str("\r\n"),
            c => lines.push(c),
        }
    }
    lines
}

/// True for lines of at most 998 ASCII bytes that end in CRLF, with neither CR nor LF anywhere else. Every server
/// accepts such text without extensions, and all servers read it in the same way.
fn is_plain(bytes: &[u8]) -> bool {
    let mut lines = bytes.split(|b| *b == b'\n').peekable();
    while let Some(line) = lines.next() {
        let line = match (line, lines.peek()) {
            ([line @ .., b'\r'], Some(_)) => line,
            ([], None) => return true,
            _ => return false,
        };
        if line.len() > 998 || line.iter().any(|b| !b.is_ascii() || matches!(b, b'\r' | 0)) {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn mail(payload: Value) -> Mail {
        let email: Email = serde_json::from_value(payload).unwrap();
        let sender = super::super::address::mailbox("tickr <jobs@example.org>").unwrap();
        build(&email, Some(&sender), JobId::new(), Vec::new(), false).unwrap()
    }

    fn source(payload: Value) -> String {
        String::from_utf8(mail(payload).bytes).unwrap()
    }

    #[test]
    fn every_line_break_becomes_crlf() {
        assert_eq!(crlf("a\nb\r\nc\rd\r\r\ne\n\rf"), "a\r\nb\r\nc\r\nd\r\n\r\ne\r\n\r\nf");
    }

    #[test]
    fn plain_is_what_no_server_reads_in_two_ways() {
        assert!(is_plain(b"a\r\n\r\nb\r\n"));
        for bad in [&b"a\nb\r\n"[..], b"a\rb\r\n", b"a\r\n.\n\r\n", b"a\r\nb", b"a\0\r\n", "ä\r\n".as_bytes(), b"a\r"]
        {
            assert!(!is_plain(bad), "{bad:?}");
        }
        assert!(is_plain(&[&[b'x'; 998][..], b"\r\n"].concat()));
        assert!(!is_plain(&[&[b'x'; 999][..], b"\r\n"].concat()));
    }

    #[test]
    fn bodies_cannot_end_the_message_or_add_headers() {
        let evil = "first\n.\nMAIL FROM:<eve@example.com>\r.\r\n.\r\nBcc: eve\0\u{1b} =2E ü".repeat(50);
        let source = source(json!({"to": "a@b.example", "subject": "s", "text": evil, "html": evil}));
        assert!(is_plain(source.as_bytes()));
        assert_eq!(source.matches("Content-Transfer-Encoding: quoted-printable").count(), 2);
        assert!(source.contains("=3D2E =C3=BC"));
    }

    #[test]
    fn subjects_and_names_are_encoded_and_hidden_recipients_stay_hidden() {
        let mail = mail(json!({
            "to": ["Ann \"x\" Müller <ann@example.com>", "bob@example.com"],
            "cc": "\"Doe, Jane\" <jane@example.com>",
            "bcc": ["eve@example.com", "bob@example.com"],
            "reply_to": "help@example.com",
            "subject": "Grüße: 日本 and a rather long subject that goes on and on until it has to be folded somewhere",
            "text": "x",
            "headers": {"X-Campaign": "a b"},
        }));
        let source = String::from_utf8(mail.bytes).unwrap();
        let recipients: Vec<&str> = mail.recipients.iter().map(AsRef::as_ref).collect();
        assert_eq!(recipients, ["ann@example.com", "bob@example.com", "jane@example.com", "eve@example.com"]);
        for line in
            ["Subject: =?utf-8?b?", "Reply-To: help@example.com", "X-Campaign: a b", "MIME-Version: 1.0", "Date: "]
        {
            assert!(source.contains(line), "{line}\n{source}");
        }
        assert!(source.contains("ann@example.com") && source.contains("bob@example.com"));
        assert!(source.contains("<jane@example.com>"));
        assert!(!source.to_ascii_lowercase().contains("bcc") && !source.contains("eve@"));
        assert!(
            source.contains("From: tickr <jobs@example.org>") || source.contains("From: \"tickr\" <jobs@example.org>")
        );
    }

    #[test]
    fn a_file_names_its_hidden_recipients() {
        let payload = json!({
            "to": "a@b.example", "from": "shop@shop.example", "bcc": ["Eve <eve@example.com>", "bob@example.com"],
            "subject": "s", "text": "x",
        });
        let email: Email = serde_json::from_value(payload).unwrap();
        let mail = build(&email, None, JobId::new(), Vec::new(), true).unwrap();
        let source = String::from_utf8(mail.bytes).unwrap();
        let line = source.lines().find(|line| line.starts_with("Bcc: ")).unwrap_or_else(|| panic!("{source}"));
        assert!(line.contains("eve@example.com") && line.contains("bob@example.com"), "{line}");
    }

    #[test]
    fn the_message_id_is_the_jobs() {
        let job = JobId::new();
        let payload = json!({"to": "a@b.example", "from": "Shop <shop@shop.example>", "subject": "s", "text": "x"});
        let email: Email = serde_json::from_value(payload).unwrap();
        let first = build(&email, None, job, Vec::new(), false).unwrap();
        let second = build(&email, None, job, Vec::new(), false).unwrap();
        assert_eq!(first.message_id, format!("<{job}@shop.example>"));
        assert_eq!(first.message_id, second.message_id);
        assert!(String::from_utf8(first.bytes).unwrap().contains(&format!("Message-ID: <{job}@shop.example>\r\n")));
    }
}
