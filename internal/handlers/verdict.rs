//! Verdicts that programs in other languages give their attempts: a remote worker in its call, a receiver in its answer.

use std::borrow::Cow;
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::{FollowUp, sent_follow_ups};
use tickr_job::limits;

/// Longest error, in characters.
const MAX_ERROR: usize = 2_000;

/// How an attempt ended, as a program in another language says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictWord {
    /// It succeeded.
    Succeeded,
    /// It failed; another attempt may succeed.
    Failed,
    /// It failed for good.
    Rejected,
    /// The work cannot be done now.
    Snoozed,
    /// The program gives the job back.
    Released,
}

/// The end of an attempt, as it was sent.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SentVerdict {
    /// How it ended.
    pub verdict: VerdictWord,
    /// Result to store with the job. Only with `succeeded`.
    pub result: Option<Box<RawValue>>,
    /// Why the attempt did not succeed.
    pub error: Option<String>,
    /// Time until the job runs again, in milliseconds.
    pub delay_ms: Option<u64>,
    /// The newest lines that the attempt logged.
    pub log: Option<String>,
    /// JSON with which the next attempt begins.
    #[serde(default, deserialize_with = "sent_checkpoint")]
    pub checkpoint: Option<Box<RawValue>>,
    /// Jobs to enqueue with the success. Only with `succeeded`.
    pub follow_ups: Option<Vec<Box<RawValue>>>,
}

/// A verdict with what belongs to it.
#[derive(Clone, Debug)]
pub enum RemoteVerdict {
    /// It succeeded, perhaps with a result.
    Succeeded(Option<Box<RawValue>>),
    /// It failed; another attempt may succeed. The delay overrides the backoff.
    Failed(String, Option<Duration>),
    /// It failed for good.
    Rejected(String),
    /// The work cannot be done now: the job runs again after this delay, and no attempt is used.
    Snoozed(Duration, String),
    /// The program gives the job back. No attempt is used.
    Released(String),
}

/// A verdict that was checked, with what the attempt left behind.
#[derive(Debug)]
pub struct CheckedVerdict {
    /// The verdict.
    pub verdict: RemoteVerdict,
    /// The newest lines of its log, if there are any.
    pub log: Option<String>,
    /// JSON with which the next attempt begins, if it was sent.
    pub checkpoint: Option<Box<RawValue>>,
    /// Jobs to enqueue with the success.
    pub follow_ups: Vec<FollowUp>,
}

/// A problem of a verdict, with its field, or the path to it, such as `follow_ups/2/queue`.
pub type WrongVerdict = (Cow<'static, str>, String);

impl SentVerdict {
    /// Check the verdict.
    ///
    /// # Errors
    /// All its problems, each with its field.
    pub fn check(self) -> Result<CheckedVerdict, Vec<WrongVerdict>> {
        let mut problems = self.problems_of_texts();
        let mut wrong = |field: &'static str, detail: String| problems.push((field.into(), detail));
        let most = u64::try_from(limits::MAX_AHEAD.as_millis()).unwrap_or(u64::MAX);
        match (self.verdict, self.delay_ms) {
            (VerdictWord::Snoozed, None) => wrong("delay_ms", "must be given with the verdict snoozed".to_owned()),
            (VerdictWord::Snoozed | VerdictWord::Failed, Some(ms)) if ms > most => {
                wrong("delay_ms", format!("must be 0 to {most}"));
            }
            (VerdictWord::Succeeded | VerdictWord::Rejected | VerdictWord::Released, Some(_)) => {
                wrong("delay_ms", "may only be given with the verdicts snoozed and failed".to_owned());
            }
            _ => {}
        }
        let succeeded = self.verdict == VerdictWord::Succeeded;
        let follow_ups = sent_follow_ups(self.follow_ups.as_deref(), succeeded).unwrap_or_else(|wrong| {
            let field = |pointer: &str| Cow::Owned(pointer.trim_start_matches('/').to_owned());
            problems.extend(wrong.into_iter().map(|problem| (field(&problem.pointer), problem.detail)));
            Vec::new()
        });
        if !problems.is_empty() {
            return Err(problems);
        }
        let delay = self.delay_ms.map(Duration::from_millis);
        let said = self.error.unwrap_or_default();
        let verdict = match self.verdict {
            VerdictWord::Succeeded => RemoteVerdict::Succeeded(self.result),
            VerdictWord::Failed => RemoteVerdict::Failed(said, delay),
            VerdictWord::Rejected => RemoteVerdict::Rejected(said),
            VerdictWord::Snoozed => RemoteVerdict::Snoozed(delay.unwrap_or_default(), said),
            VerdictWord::Released if said.is_empty() => RemoteVerdict::Released("its worker gave it back".to_owned()),
            VerdictWord::Released => RemoteVerdict::Released(said),
        };
        let log = self.log.filter(|log| !log.is_empty());
        Ok(CheckedVerdict { verdict, log, checkpoint: self.checkpoint, follow_ups })
    }

    /// Return what is wrong with the result, the error, the log and the checkpoint.
    fn problems_of_texts(&self) -> Vec<WrongVerdict> {
        let mut problems = Vec::new();
        let mut wrong = |field: &'static str, detail: String| problems.push((field.into(), detail));
        if self.result.is_some() && self.verdict != VerdictWord::Succeeded {
            wrong("result", "may only be given with the verdict succeeded".to_owned());
        }
        if self.result.as_ref().is_some_and(|result| result.get().len() > limits::MAX_RESULT_BYTES) {
            wrong("result", format!("must have at most {} bytes", limits::MAX_RESULT_BYTES));
        }
        match (&self.error, self.verdict) {
            (Some(_), VerdictWord::Succeeded) => {
                wrong("error", "may not be given with the verdict succeeded".to_owned());
            }
            (Some(text), _) if text.trim().is_empty() || text.chars().count() > MAX_ERROR => {
                wrong("error", format!("must have 1 to {MAX_ERROR} characters"));
            }
            (None, VerdictWord::Failed | VerdictWord::Rejected | VerdictWord::Snoozed) => {
                wrong("error", "must say why the attempt did not succeed".to_owned());
            }
            (Some(_), _) | (None, VerdictWord::Succeeded | VerdictWord::Released) => {}
        }
        for (field, json) in [("result", &self.result), ("checkpoint", &self.checkpoint)] {
            if let Some(detail) = json.as_deref().and_then(wrong_json) {
                wrong(field, detail.to_owned());
            }
        }
        if self.log.as_ref().is_some_and(|log| log.len() > limits::MAX_LOG_BYTES) {
            wrong("log", format!("must have at most {} bytes", limits::MAX_LOG_BYTES));
        }
        if self.checkpoint.as_ref().is_some_and(|json| json.get().len() > limits::MAX_CHECKPOINT_BYTES) {
            wrong("checkpoint", format!("must have at most {} bytes", limits::MAX_CHECKPOINT_BYTES));
        }
        problems
    }
}

/// Return what is wrong with JSON that is to be stored with a job, if parsers of clients may refuse it: a worker that
/// cannot read an answer gets none of its jobs. The depth counts from this value, and not from the document around it.
#[must_use]
pub fn wrong_json(json: &RawValue) -> Option<&'static str> {
    if limits::deeper_than(json.get().as_bytes(), limits::MAX_LEVELS) {
        Some("must be nested at most 64 levels deep")
    } else {
        has_half_a_pair(json.get()).then_some("must have no half of a surrogate pair")
    }
}

/// Return whether a text in this JSON has half of a surrogate pair, such as `"\ud83d"`. That is JSON and spells no text.
fn has_half_a_pair(json: &str) -> bool {
    let unit = |text: &str| text.get(..4).and_then(|digits| u16::from_str_radix(digits, 16).ok());
    let mut rest = json;
    // JSON has backslashes in texts only.
    while let Some((_, escape)) = rest.split_once('\\') {
        rest = escape.get(1..).unwrap_or_default();
        match unit(rest).filter(|_| escape.starts_with('u')) {
            Some(0xDC00..=0xDFFF) => return true,
            Some(0xD800..=0xDBFF) => {
                let other = rest[4..].strip_prefix("\\u");
                if !other.and_then(unit).is_some_and(|unit| (0xDC00..=0xDFFF).contains(&unit)) {
                    return true;
                }
                rest = &rest[10..];
            }
            _ => {}
        }
    }
    false
}

/// Read a checkpoint, which may be left out. A null that was sent is one: it replaces that of an earlier report.
///
/// # Errors
/// The text is no JSON.
pub fn sent_checkpoint<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(text: &str) -> Result<CheckedVerdict, Vec<String>> {
        let sent: SentVerdict = serde_json::from_str(text).unwrap();
        sent.check().map_err(|problems| problems.into_iter().map(|(field, _)| field.into_owned()).collect())
    }

    #[test]
    fn a_checkpoint_of_a_verdict_that_is_null_is_not_left_out() {
        let of = |text: &str| checked(text).unwrap().checkpoint.map(|json| json.get().to_owned());
        assert_eq!(of(r#"{"verdict":"released","checkpoint":null}"#).as_deref(), Some("null"));
        assert_eq!(of(r#"{"verdict":"released"}"#), None);
    }

    #[test]
    fn a_verdict_has_what_belongs_to_it_and_nothing_else() {
        let ok = checked(r#"{"verdict":"failed","error":"no","delay_ms":5,"log":"a","checkpoint":{"at":1}}"#).unwrap();
        assert!(
            matches!(ok.verdict, RemoteVerdict::Failed(error, Some(delay)) if error == "no" && delay.as_millis() == 5)
        );
        assert_eq!((ok.log.as_deref(), ok.checkpoint.unwrap().get()), (Some("a"), r#"{"at":1}"#));
        let released = checked(r#"{"verdict":"released"}"#).unwrap();
        assert!(matches!(released.verdict, RemoteVerdict::Released(why) if !why.is_empty()));
        for (text, fields) in [
            (r#"{"verdict":"failed"}"#, vec!["error"]),
            (r#"{"verdict":"snoozed","error":"later"}"#, vec!["delay_ms"]),
            (r#"{"verdict":"succeeded","error":"x","delay_ms":1}"#, vec!["error", "delay_ms"]),
            (r#"{"verdict":"rejected","error":" ","result":1}"#, vec!["result", "error"]),
            (r#"{"verdict":"failed","error":"no","follow_ups":[]}"#, vec!["follow_ups"]),
            (r#"{"verdict":"succeeded","follow_ups":[{"kind":"a","of":1}]}"#, vec!["follow_ups/0/of"]),
        ] {
            assert_eq!(checked(text).map(drop).unwrap_err(), fields, "{text}");
        }
        let both = || vec!["result".to_owned(), "checkpoint".to_owned()];
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        let deep = |levels: usize| {
            let (result, checkpoint) = (nested(levels), nested(levels));
            checked(&format!(r#"{{"verdict":"succeeded","result":{result},"checkpoint":{checkpoint}}}"#)).map(drop)
        };
        assert_eq!((deep(64), deep(65)), (Ok(()), Err(both())));
        let spelled = |text: &str| {
            checked(&format!(r#"{{"verdict":"succeeded","result":{text},"checkpoint":{{{text}:1}}}}"#)).map(drop)
        };
        for text in [r#""\ud83d""#, r#""a\uDE00""#, r#""\ud83d\n""#, r#""\ud83d\ud83d\ude00""#, r#""\ud83dude00""#] {
            assert_eq!(spelled(text), Err(both()), "{text}");
        }
        for text in [r#""\ud83d\ude00\u00e9""#, r#""\\ud83d""#, r#""\\\"\\ude00 é""#, r#""u12""#] {
            assert_eq!(spelled(text), Ok(()), "{text}");
        }
        let endless = format!(r#"{{"verdict":"succeeded","result":{}}}"#, nested(100_000));
        assert_eq!(checked(&endless).map(drop).unwrap_err(), ["result"]);
    }
}
