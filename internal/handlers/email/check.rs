//! Checks of a mail that its schema cannot express.

use super::address::{has_encoded_word, mailbox};
use super::attachment::{MAX_COUNT, MAX_INLINE_BASE64_BYTES};
use super::{AllowedAddresses, Email, Problem, RECIPIENTS, SENDERS};

/// Most recipients of one mail: `to`, `cc` and `bcc` together.
const MAX_RECIPIENTS: usize = 50;
/// Longest value of an extra header, in bytes.
const HEADER_VALUE_BYTES: usize = 500;

/// Return all problems of a mail that do not depend on the lists of allowed addresses.
pub(super) fn problems(email: &Email, has_default_sender: bool, has_reports_dir: bool) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut wrong = |pointer: String, detail: String| problems.push(Problem::at(pointer, detail));

    let lists = [("/to", &email.to), ("/cc", &email.cc), ("/bcc", &email.bcc)];
    for (whole, addresses) in lists {
        for (index, text) in addresses.as_slice().iter().enumerate() {
            if let Err(error) = mailbox(text) {
                wrong(addresses.pointer(whole, index), error.to_string());
            }
        }
    }
    if email.to.is_empty() {
        wrong("/to".to_owned(), "must name at least one recipient".to_owned());
    }
    if lists.iter().map(|(_, addresses)| addresses.as_slice().len()).sum::<usize>() > MAX_RECIPIENTS {
        wrong(
            "/to".to_owned(),
            format!("must not have more than {MAX_RECIPIENTS} recipients together with cc and bcc"),
        );
    }
    for (pointer, text) in [("/from", &email.from), ("/reply_to", &email.reply_to)] {
        if let Some(error) = text.as_deref().and_then(|text| mailbox(text).err()) {
            wrong(pointer.to_owned(), error.to_string());
        }
    }
    if email.from.is_none() && !has_default_sender {
        wrong("/from".to_owned(), "must be given: no default sender is configured".to_owned());
    }
    if email.subject.chars().any(char::is_control) {
        wrong("/subject".to_owned(), "must not contain line breaks or other control characters".to_owned());
    }
    if has_encoded_word(&email.subject) {
        wrong("/subject".to_owned(), "must not contain encoded words (=?…?=): write the text itself".to_owned());
    }
    if email.text.is_none() && email.html.is_none() {
        wrong("/text".to_owned(), "must be given unless html is".to_owned());
    }
    for (name, value) in &email.headers {
        if let Err(detail) = header(name, value) {
            wrong(format!("/headers/{}", name.replace('~', "~0").replace('/', "~1")), detail);
        }
    }
    if email.attachments.len() > MAX_COUNT {
        wrong("/attachments".to_owned(), format!("must not be more than {MAX_COUNT}"));
    }
    let base64: usize = email.attachments.iter().filter_map(|a| a.content_base64.as_ref()).map(String::len).sum();
    if base64 > MAX_INLINE_BASE64_BYTES {
        wrong("/attachments".to_owned(), format!("must not exceed {MAX_INLINE_BASE64_BYTES} bytes of base64 in all"));
    }
    for (index, attachment) in email.attachments.iter().enumerate() {
        problems.extend(attachment.problems(&format!("/attachments/{index}"), has_reports_dir));
    }
    problems
}

/// Return a problem for each address that the settings do not allow. A text that is not a mailbox is left out, because
/// `problems` reports it.
pub(super) fn not_allowed(email: &Email, senders: &AllowedAddresses, recipients: &AllowedAddresses) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (whole, addresses) in [("/to", &email.to), ("/cc", &email.cc), ("/bcc", &email.bcc)] {
        for (index, text) in addresses.as_slice().iter().enumerate() {
            if mailbox(text).is_ok_and(|mailbox| !recipients.allows(&mailbox)) {
                problems.push(Problem::at(addresses.pointer(whole, index), recipients.refusal(RECIPIENTS)));
            }
        }
    }
    let named = |text: &Option<String>| text.as_deref().and_then(|text| mailbox(text).ok());
    if named(&email.from).is_some_and(|from| !senders.allows(&from)) {
        problems.push(Problem::at("/from", senders.refusal(SENDERS)));
    }
    if named(&email.reply_to).is_some_and(|to| !senders.allows(&to) && !recipients.allows(&to)) {
        problems.push(Problem::at("/reply_to", senders.refusal(SENDERS)));
    }
    problems
}

/// Check an extra header. Few headers are allowed: most others would let a client write in the operator's name or hide
/// recipients.
fn header(name: &str, value: &str) -> Result<(), String> {
    let legal = name.len() <= 64 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    let lower = name.to_ascii_lowercase();
    let known = matches!(lower.as_str(), "list-unsubscribe" | "list-unsubscribe-post");
    if !(legal && (known || lower.strip_prefix("x-").is_some_and(|rest| !rest.is_empty()))) {
        return Err("is not among the headers that may be set: List-Unsubscribe, List-Unsubscribe-Post, X-*".to_owned());
    }
    let printable = value.bytes().all(|b| b == b' ' || b.is_ascii_graphic());
    if value.trim().is_empty() || !printable || has_encoded_word(value) || value.len() > HEADER_VALUE_BYTES {
        return Err(format!("must be 1 to {HEADER_VALUE_BYTES} printable ASCII characters without encoded words"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pointers(changes: &Value) -> Vec<String> {
        let mut mail = json!({"to": "ann@example.com", "subject": "hi", "text": "hello"});
        for (key, value) in changes.as_object().unwrap() {
            mail[key] = value.clone();
        }
        let email: Email = serde_json::from_value(mail).unwrap();
        problems(&email, true, true).into_iter().map(|problem| problem.pointer).collect()
    }

    #[test]
    fn injections_are_refused_where_they_stand() {
        let evil = "x\r\nBcc: eve@example.com";
        assert_eq!(pointers(&json!({"to": evil})), ["/to"]);
        assert_eq!(pointers(&json!({"to": ["ann@example.com", "a@b.c\n"]})), ["/to/1"]);
        assert_eq!(pointers(&json!({"cc": ["a@b.example\0"]})), ["/cc/0"]);
        assert_eq!(pointers(&json!({"bcc": "Eve\r <eve@example.com>"})), ["/bcc"]);
        assert_eq!(pointers(&json!({"from": evil})), ["/from"]);
        assert_eq!(pointers(&json!({"reply_to": evil})), ["/reply_to"]);
        assert_eq!(pointers(&json!({"subject": evil})), ["/subject"]);
        assert_eq!(pointers(&json!({"subject": "a\0b"})), ["/subject"]);
        assert_eq!(pointers(&json!({"subject": "a\u{85}b"})), ["/subject"]);
        assert_eq!(pointers(&json!({"subject": "hi =?utf-8?q?=0D=0ABcc:?="})), ["/subject"]);
        assert!(pointers(&json!({"subject": "a =? b"})).is_empty());
        assert_eq!(pointers(&json!({"headers": {"X-A": evil}})), ["/headers/X-A"]);
        assert_eq!(pointers(&json!({"headers": {"X-A\r\nBcc": "x"}})), ["/headers/X-A\r\nBcc"]);
        let files = json!([{"filename": "a", "content_base64": ""}, {"filename": evil, "content_base64": ""}]);
        assert_eq!(pointers(&json!({"attachments": files})), ["/attachments/1/filename"]);
        // In a body such text is harmless, because the body is encoded.
        assert!(pointers(&json!({"text": evil, "html": "\r\n.\r\nQUIT\0"})).is_empty());
    }

    #[test]
    fn recipients_are_counted_over_all_lists() {
        let many = |n: usize| vec!["ann@example.com"; n];
        assert!(pointers(&json!({"to": many(20), "cc": many(20), "bcc": many(10)})).is_empty());
        assert_eq!(pointers(&json!({"to": many(20), "cc": many(20), "bcc": many(11)})), ["/to"]);
        assert_eq!(pointers(&json!({"to": [], "bcc": many(1)})), ["/to"]);
    }

    #[test]
    fn a_mail_has_a_sender_and_a_body() {
        let bare = |mail: Value| problems(&serde_json::from_value(mail).unwrap(), false, true);
        let mail = json!({"to": "ann@example.com", "subject": "hi"});
        let pointers: Vec<String> = bare(mail).into_iter().map(|problem| problem.pointer).collect();
        assert_eq!(pointers, ["/from", "/text"]);
        assert!(bare(json!({"to": "a@b.example", "from": "c@d.example", "subject": "", "html": "x"})).is_empty());
    }

    #[test]
    fn only_harmless_headers_may_be_added() {
        for good in ["List-Unsubscribe", "list-unsubscribe-post", "X-Campaign", "x-a"] {
            assert!(pointers(&json!({"headers": {good: "<https://example.com/u?a=b>"}})).is_empty(), "{good}");
        }
        for bad in ["Bcc", "From", "Sender", "DKIM-Signature", "X-", "X-ä", "X A", "X:", "", "Received", "x-a/~"] {
            let pointer = format!("/headers/{}", bad.replace('~', "~0").replace('/', "~1"));
            assert_eq!(pointers(&json!({"headers": {bad: "x"}})), [pointer], "{bad}");
        }
        for bad in ["", " ", "ä", "a\tb", &"x".repeat(501)] {
            assert_eq!(pointers(&json!({"headers": {"X-A": bad}})), ["/headers/X-A"], "{bad:?}");
        }
    }

    #[test]
    fn attachments_are_few_and_small() {
        let file = |size: usize| json!({"filename": "a", "content_base64": "A".repeat(size)});
        assert!(pointers(&json!({"attachments": [file(112 * 1024), file(112 * 1024)]})).is_empty());
        assert_eq!(pointers(&json!({"attachments": [file(112 * 1024), file(112 * 1024 + 4)]})), ["/attachments"]);
        assert_eq!(pointers(&json!({"attachments": vec![file(4); 11]})), ["/attachments"]);
    }

    #[test]
    fn senders_and_recipients_may_be_limited() {
        let list = |entries: &[&str]| {
            AllowedAddresses::new(&entries.iter().map(|entry| (*entry).to_owned()).collect::<Vec<_>>())
        };
        let pointers = |changes: &Value| {
            let mut mail = json!({"to": "ann@shop.example", "subject": "hi", "text": "hello"});
            for (key, value) in changes.as_object().unwrap() {
                mail[key] = value.clone();
            }
            let email: Email = serde_json::from_value(mail).unwrap();
            let problems = not_allowed(&email, &list(&["jobs@shop.example"]), &list(&["shop.example", "b@c.example"]));
            problems.into_iter().map(|problem| problem.pointer).collect::<Vec<_>>()
        };
        assert!(pointers(&json!({"cc": "b@c.example", "from": "Jobs <jobs@shop.example>"})).is_empty());
        assert_eq!(pointers(&json!({"from": "ceo@shop.example"})), ["/from"]);
        assert_eq!(pointers(&json!({"to": ["ann@shop.example", "eve@evil.example"]})), ["/to/1"]);
        assert_eq!(pointers(&json!({"cc": "x@c.example", "bcc": ["y@d.example"]})), ["/cc", "/bcc/0"]);
        assert_eq!(pointers(&json!({"reply_to": "eve@evil.example"})), ["/reply_to"]);
        assert!(pointers(&json!({"reply_to": "b@c.example"})).is_empty());
    }
}
