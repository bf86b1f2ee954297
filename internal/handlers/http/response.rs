//! The response of a receiver, and the outcome of the attempt that follows from it.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, NaiveDateTime, Utc};
use reqwest::header::{CONTENT_TYPE, DATE, HeaderMap, RETRY_AFTER};
use reqwest::{Response, StatusCode};
use serde::Serialize;
use tokio::time::{Instant, timeout_at};

use super::sent_back::{without, without_in_part};
use super::{AnswerRule, AnswerVerdict, Context, Failure, Outcome, Output};
use tickr_job::ExchangeResponse;

/// Bytes read from a body: enough to reuse the connection after ordinary responses, and too few to do harm.
const READ_BYTES: usize = 16 * 1024;
/// Most bytes of a body that decides.
const JUDGED_BYTES: usize = 64 * 1024;
/// Pause of a snooze if neither the receiver nor the rule gives one.
const SNOOZE: Duration = Duration::from_secs(60);
/// Bytes of a body that are stored with the job.
const KEPT_BYTES: usize = 2_000;
/// Time limit for a body that does not decide, after the status. It may be incomplete.
const BODY_TIME: Duration = Duration::from_secs(5);
/// Shortest and longest delay in seconds that a receiver may request with `Retry-After`.
const RETRY_AFTER_SECONDS: (i64, i64) = (1, 24 * 60 * 60);

/// The parts of a response that are used.
#[derive(Debug)]
pub(super) struct Reply {
    status: StatusCode,
    content_type: Option<String>,
    retry_after: Option<Duration>,
    body_snippet: String,
    /// The body, if it decides and is not too long.
    body: Vec<u8>,
    /// Values that must not be shown, if the body decides.
    secrets: Vec<String>,
    /// The body decides, and it broke off or did not come in time.
    broke_off: bool,
}

/// The result of a successful callback.
#[derive(Debug, Serialize)]
struct Success<'a> {
    status: u16,
    duration_ms: u64,
    content_type: Option<&'a str>,
    body_snippet: &'a str,
}

impl Reply {
    /// Read as much of the body as is kept. A body that breaks off or is too slow ends there: the receiver has already
    /// processed the request, and a repeated request would make it do so twice.
    ///
    /// A stop ends the read as well, and not the call: when the status is known, the receiver has taken the call.
    ///
    /// The values in `secrets` were sent to the receiver. They are removed when the receiver sends them back. With
    /// `decides`, a rule needs the body: more of it is read, until the deadline, and without its end the answer says nothing.
    pub(super) async fn read(
        response: &mut Response,
        deadline: Instant,
        secrets: &[String],
        decides: bool,
        ctx: &Context,
    ) -> Self {
        // One byte more shows that a body is too long, whose beginning may be JSON.
        let (deadline, most) =
            if decides { (deadline, JUDGED_BYTES + 1) } else { (deadline.min(Instant::now() + BODY_TIME), READ_BYTES) };
        let (mut body, mut whole, mut broke_off) = (Vec::new(), false, false);
        while body.len() < most {
            let chunk = tokio::select! {
                biased;
                () = ctx.stopped() => None,
                chunk = timeout_at(deadline, response.chunk()) => chunk.ok().and_then(Result::ok),
            };
            match chunk {
                Some(Some(chunk)) => body.extend_from_slice(&chunk[..chunk.len().min(most - body.len())]),
                Some(None) => {
                    whole = true;
                    break;
                }
                None => {
                    broke_off = decides;
                    break;
                }
            }
        }
        let is_judged = decides && body.len() <= JUDGED_BYTES;
        let headers = response.headers();
        Self {
            status: response.status(),
            content_type: content_type(headers, secrets),
            retry_after: retry_after(headers, ctx.now()),
            body_snippet: snippet(&body, whole, secrets),
            body: if is_judged { body } else { Vec::new() },
            secrets: if decides { secrets.to_vec() } else { Vec::new() },
            broke_off,
        }
    }

    /// Make the reply of a response whose body was read before.
    pub(super) fn of_body(response: &Response, body: &[u8], secrets: &[String], ctx: &Context) -> Self {
        let headers = response.headers();
        let start = &body[..body.len().min(READ_BYTES)];
        Self {
            status: response.status(),
            content_type: content_type(headers, secrets),
            retry_after: retry_after(headers, ctx.now()),
            body_snippet: snippet(start, start.len() == body.len(), secrets),
            body: Vec::new(),
            secrets: Vec::new(),
            broke_off: false,
        }
    }

    /// The response for operators, with these headers.
    pub(super) fn shown(&self, headers: BTreeMap<String, String>) -> ExchangeResponse {
        ExchangeResponse { status: self.status.as_u16(), headers, body: self.body_snippet.clone() }
    }

    /// Return whether the receiver said that it cannot serve calls now. Other refusals are about this call.
    pub(super) fn is_receivers_fault(&self) -> bool {
        let status = self.status;
        status.is_server_error() || matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS)
    }

    /// Turn an answer to the push of a job into the outcome of the attempt: one that is neither 200, 202 nor 204. A receiver
    /// says with 400, 413 and 422 that this job cannot be done. All other answers are about the receiver.
    pub(super) fn judge_push(&self, target: &str) -> Outcome {
        let status = self.status;
        let error = self.with_words(format!("{target} answered {status}"));
        Err(match self.retry_after {
            Some(delay) if self.is_receivers_fault() => Failure::snooze(delay, error),
            _ if matches!(
                status,
                StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE | StatusCode::UNPROCESSABLE_ENTITY
            ) =>
            {
                Failure::reject(error)
            }
            _ => Failure::retry(error),
        })
    }

    /// Add the start of the body to a text, on one line.
    fn with_words(&self, answer: String) -> String {
        let words = self.body_snippet.split_whitespace().collect::<Vec<_>>().join(" ");
        if words.is_empty() { answer } else { format!("{answer}: {words}") }
    }

    /// Turn the response into the outcome of the attempt, by this rule if it says something about the response.
    pub(super) fn judge(&self, target: &str, took: Duration, rule: Option<&AnswerRule>) -> Outcome {
        let status = self.status;
        if self.broke_off {
            return Err(Failure::retry(self.with_words(format!("{target} answered {status}, and its body broke off"))));
        }
        let judged = rule.and_then(|rule| rule.judge(status, &self.body, &self.secrets));
        if judged.as_ref().map_or(status.is_success(), |judged| judged.verdict == AnswerVerdict::Success) {
            return Output::json(&Success {
                status: status.as_u16(),
                duration_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
                content_type: self.content_type.as_deref(),
                body_snippet: &self.body_snippet,
            });
        }
        let value = judged.as_ref().and_then(|judged| judged.value.as_deref());
        let answer = match value {
            Some(value) => format!("{target} answered {status} with {value}"),
            None => format!("{target} answered {status}"),
        };
        if status.is_redirection() && judged.is_none() {
            return Err(Failure::reject(format!("{answer}: redirects are not followed")));
        }
        let error = self.with_words(answer);
        if let Some(judged) = judged {
            let pause = rule.and_then(|rule| rule.snooze_ms).map_or(SNOOZE, Duration::from_millis);
            return Err(match judged.verdict {
                AnswerVerdict::Snooze => Failure::snooze(self.retry_after.unwrap_or(pause), error),
                AnswerVerdict::Reject => Failure::reject(error),
                AnswerVerdict::Retry | AnswerVerdict::Success => Failure::retry(error),
            });
        }
        let may_pass = self.is_receivers_fault();
        Err(match self.retry_after {
            Some(delay) if may_pass => Failure::snooze(delay, error),
            None if may_pass => Failure::retry(error),
            Some(_) | None => Failure::reject(error),
        })
    }
}

/// Return the start of a body for operators. One that is not whole may end within a secret.
fn snippet(body: &[u8], whole: bool, secrets: &[String]) -> String {
    let shown = if whole { without(body, secrets) } else { without_in_part(body, secrets) };
    printable(shown.as_bytes(), KEPT_BYTES)
}

fn content_type(headers: &HeaderMap, secrets: &[String]) -> Option<String> {
    Some(printable(without(headers.get(CONTENT_TYPE)?.as_bytes(), secrets).as_bytes(), 100))
}

/// `Retry-After` as a delay between a second and a day. Both forms of the header are understood.
fn retry_after(headers: &HeaderMap, now: DateTime<Utc>) -> Option<Duration> {
    let text = |name| headers.get(name)?.to_str().ok().map(str::trim);
    let value = text(RETRY_AFTER)?;
    let seconds = if value.bytes().all(|b| b.is_ascii_digit()) && !value.is_empty() {
        value.parse().unwrap_or(i64::MAX)
    } else {
        // Compare with the receiver's `Date`, if it sent one, so that a difference between the clocks does not matter.
        let now = text(DATE).and_then(http_date).unwrap_or(now);
        (http_date(value)? - now).num_seconds()
    };
    Some(Duration::from_secs(seconds.clamp(RETRY_AFTER_SECONDS.0, RETRY_AFTER_SECONDS.1).unsigned_abs()))
}

/// Parse a date in today's form or in one of the two old forms that HTTP still accepts.
fn http_date(text: &str) -> Option<DateTime<Utc>> {
    if let Ok(date) = DateTime::parse_from_rfc2822(text) {
        return Some(date.to_utc());
    }
    ["%A, %d-%b-%y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y"]
        .iter()
        .find_map(|form| NaiveDateTime::parse_from_str(text, form).ok())
        .map(|date| date.and_utc())
}

/// Turn foreign bytes into text that is safe to show: valid UTF-8, short, without control characters and direction
/// marks.
pub(super) fn printable(bytes: &[u8], limit: usize) -> String {
    let mut text = String::new();
    for c in String::from_utf8_lossy(bytes).chars() {
        let c = match c {
            '\n' | '\t' => c,
            '\r' => continue,
            '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => char::REPLACEMENT_CHARACTER,
            c if c.is_control() => char::REPLACEMENT_CHARACTER,
            c => c,
        };
        if text.len() + c.len_utf8() > limit {
            break;
        }
        text.push(c);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(status: u16, retry_after: Option<u64>, body: &str) -> Outcome {
        let reply = Reply {
            status: StatusCode::from_u16(status).unwrap(),
            content_type: None,
            retry_after: retry_after.map(Duration::from_secs),
            body_snippet: body.to_owned(),
            body: body.as_bytes().to_vec(),
            secrets: Vec::new(),
            broke_off: false,
        };
        reply.judge("POST https://example.com", Duration::from_millis(5), None)
    }

    #[test]
    fn a_rule_decides_and_says_by_which_value() {
        let judged = |rule: serde_json::Value, status: u16, retry_after: Option<u64>, body: &str| {
            let rule: AnswerRule = serde_json::from_value(rule).unwrap();
            let reply = Reply {
                status: StatusCode::from_u16(status).unwrap(),
                content_type: None,
                retry_after: retry_after.map(Duration::from_secs),
                body_snippet: body.to_owned(),
                body: body.as_bytes().to_vec(),
                secrets: Vec::new(),
                broke_off: false,
            };
            reply.judge("POST https://example.com", Duration::ZERO, Some(&rule))
        };
        let code =
            serde_json::json!({"at": "/code", "success": [100], "snooze": [5], "reject": [9], "snooze_ms": 2_000});
        assert!(judged(code.clone(), 200, None, r#"{"code":100}"#).is_ok());
        let Err(Failure::Retry { error }) = judged(code.clone(), 200, None, r#"{"code":101}"#) else { panic!() };
        assert_eq!(error, "POST https://example.com answered 200 OK with 101 at /code: {\"code\":101}");
        let Err(Failure::Reject { .. }) = judged(code.clone(), 200, None, r#"{"code":9}"#) else { panic!() };
        for (retry_after, seconds) in [(None, 2), (Some(7), 7)] {
            let snoozed = judged(code.clone(), 200, retry_after, r#"{"code":5}"#);
            assert!(matches!(snoozed, Err(Failure::Snooze { delay, .. }) if delay.as_secs() == seconds));
        }
        // The rule says nothing about other statuses.
        assert!(matches!(judged(code.clone(), 500, None, r#"{"code":100}"#), Err(Failure::Retry { .. })));
        assert!(matches!(judged(code, 404, None, r#"{"code":100}"#), Err(Failure::Reject { .. })));
        let status = serde_json::json!({"success": [302, 404]});
        assert!(judged(status.clone(), 302, None, "").is_ok() && judged(status, 404, None, "").is_ok());
    }

    #[test]
    fn the_status_decides() {
        for status in [200, 201, 202, 204, 206, 226] {
            assert!(reply(status, None, "").is_ok(), "{status}");
        }
        for status in [408, 429, 500, 501, 502, 503, 504, 507, 520, 599] {
            assert!(matches!(reply(status, None, ""), Err(Failure::Retry { .. })), "{status}");
            let snoozed = reply(status, Some(7), "");
            assert!(matches!(snoozed, Err(Failure::Snooze { delay, .. }) if delay.as_secs() == 7), "{status}");
        }
        for status in [300, 301, 302, 303, 304, 307, 308, 400, 401, 403, 404, 405, 409, 410, 413, 422, 451, 600, 999] {
            assert!(matches!(reply(status, None, ""), Err(Failure::Reject { .. })), "{status}");
            assert!(matches!(reply(status, Some(7), ""), Err(Failure::Reject { .. })), "{status}");
        }
    }

    #[test]
    fn an_answer_to_a_push_is_about_the_job_or_about_the_receiver() {
        let pushed = |status: u16, retry_after: Option<u64>| {
            let reply = Reply {
                status: StatusCode::from_u16(status).unwrap(),
                content_type: None,
                retry_after: retry_after.map(Duration::from_secs),
                body_snippet: "oh\n no".to_owned(),
                body: Vec::new(),
                secrets: Vec::new(),
                broke_off: false,
            };
            reply.judge_push("POST https://example.com").unwrap_err()
        };
        for status in [400, 413, 422] {
            assert!(matches!(pushed(status, Some(7)), Failure::Reject { .. }), "{status}");
        }
        for status in [201, 301, 401, 403, 404, 409, 500, 503] {
            assert!(matches!(pushed(status, None), Failure::Retry { error } if error.ends_with(": oh no")), "{status}");
        }
        for status in [408, 429, 500, 503] {
            assert!(
                matches!(pushed(status, Some(7)), Failure::Snooze { delay, .. } if delay.as_secs() == 7),
                "{status}"
            );
        }
    }

    #[test]
    fn errors_quote_the_answer_on_one_line() {
        let Err(Failure::Retry { error }) = reply(500, None, "oh\n\n  no\t!") else { panic!("a retry") };
        assert_eq!(error, "POST https://example.com answered 500 Internal Server Error: oh no !");
    }

    #[test]
    fn a_body_that_is_not_whole_shows_no_part_of_a_secret() {
        let secrets = ["abcdefgh/12345678".to_owned(), "k".repeat(3_998) + "/z"];
        assert_eq!(snippet(b"key: abcdefgh/123", false, &secrets), "key: ***");
        // The limit cuts the fifth of them.
        let echoed = secrets[1].repeat(5);
        assert_eq!(snippet(&echoed.as_bytes()[..READ_BYTES], false, &secrets).replace("***", ""), "");
        assert_eq!(snippet(b"key: abcdefgh", true, &secrets), "key: abcdefgh");
    }

    #[test]
    fn retry_after_is_seconds_or_a_date_within_bounds() {
        let now: DateTime<Utc> = "1994-11-06T08:49:00Z".parse().unwrap();
        let of = |value: &str, date: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, value.parse().unwrap());
            if let Some(date) = date {
                headers.insert(DATE, date.parse().unwrap());
            }
            retry_after(&headers, now).map(|delay| delay.as_secs())
        };
        for (value, expected) in [
            ("120", Some(120)),
            (" 120 ", Some(120)),
            ("0", Some(1)),
            ("99999999", Some(86_400)),
            ("99999999999999999999999", Some(86_400)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(37)),
            ("Sunday, 06-Nov-94 08:49:37 GMT", Some(37)),
            ("Sun Nov  6 08:49:37 1994", Some(37)),
            ("Sun, 06 Nov 1994 08:40:00 GMT", Some(1)),
            ("Sun, 06 Nov 2044 08:49:37 GMT", Some(86_400)),
            ("-5", None),
            ("1.5", None),
            ("soon", None),
            ("", None),
        ] {
            assert_eq!(of(value, None), expected, "{value}");
        }
        // The receiver's clock is an hour ahead of the clock of this host.
        assert_eq!(of("Sun, 06 Nov 1994 09:49:37 GMT", Some("Sun, 06 Nov 1994 09:49:00 GMT")), Some(37));
    }

    #[test]
    fn foreign_bytes_become_short_harmless_text() {
        assert_eq!(printable(b"plain\ttext\r\nline", 100), "plain\ttext\nline");
        assert_eq!(printable(b"\x1b[31mred\x00\x7f\xff", 100), "\u{fffd}[31mred\u{fffd}\u{fffd}\u{fffd}");
        assert_eq!(printable("a\u{202e}b\u{85}c".as_bytes(), 100), "a\u{fffd}b\u{fffd}c");
        assert_eq!(printable("äöü".as_bytes(), 5), "äö");
        assert!(printable(&[0xff; 16_384], KEPT_BYTES).len() <= KEPT_BYTES);
    }
}
