//! Follow-up jobs as programs in other languages send them: with the success of an attempt, in JSON.
//!
//! The fields are those of a job at enqueue, without those that a follow-up job cannot have: unique keys, parents, a
//! trace of its own, and a time of expiry. A success that is repeated must not be refused because such a time has come.

use std::borrow::Cow;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{FollowUp, FollowUpOptions, Problem};
use tickr_job::{Due, OnFailure, RetryRequest, Timestamp, limits};

/// Most problems of one verdict that are told.
const MAX_PROBLEMS: usize = 20;

/// A follow-up job, as it was sent.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SentFollowUp {
    kind: String,
    payload: Option<Box<RawValue>>,
    queue: Option<String>,
    execute_at: Option<Timestamp>,
    delay_ms: Option<u64>,
    expires_in_ms: Option<u64>,
    priority: Option<u8>,
    max_attempts: Option<u32>,
    timeout_ms: Option<u64>,
    retry: Option<Box<RawValue>>,
    order_key: Option<String>,
    on_failure: Option<OnFailure>,
    limit_key: Option<String>,
    in_batch: Option<bool>,
    tags: Option<Vec<String>>,
}

/// Read the follow-up jobs of a verdict. Whether their kinds take them is checked later.
///
/// # Errors
/// The problems, each with a pointer relative to the verdict, such as `/follow_ups/2/queue`.
pub fn sent_follow_ups(sent: Option<&[Box<RawValue>]>, succeeded: bool) -> Result<Vec<FollowUp>, Vec<Problem>> {
    let Some(sent) = sent else { return Ok(Vec::new()) };
    let refused = |detail: String| Err(vec![Problem::at("/follow_ups", detail)]);
    if !succeeded {
        return refused("may only be given with the verdict succeeded".to_owned());
    }
    if sent.len() > limits::MAX_FOLLOW_UPS {
        return refused(format!("must be at most {}", limits::MAX_FOLLOW_UPS));
    }
    let (mut jobs, mut problems) = (Vec::with_capacity(sent.len()), Vec::new());
    for (place, text) in sent.iter().enumerate() {
        match read(text) {
            Ok(job) => jobs.push(job),
            Err(Problem { pointer, detail }) => {
                problems.push(Problem::at(format!("/follow_ups/{place}{pointer}"), detail));
            }
        }
        if problems.len() >= MAX_PROBLEMS {
            break;
        }
    }
    if problems.is_empty() { Ok(jobs) } else { Err(problems) }
}

fn read(text: &RawValue) -> Result<FollowUp, Problem> {
    let sent: SentFollowUp = object(text)?;
    let due = match (sent.execute_at, sent.delay_ms) {
        (None, None) => Due::Now,
        (Some(moment), None) => Due::At(moment),
        (None, Some(ms)) => Due::After(Duration::from_millis(ms)),
        (Some(_), Some(_)) => return Err(Problem::at("/delay_ms", "give execute_at or delay_ms, not both")),
    };
    let retry: Option<RetryRequest> = sent.retry.as_deref().map(object).transpose().map_err(|problem| {
        let Problem { pointer, detail } = problem;
        Problem::at(format!("/retry{pointer}"), detail)
    })?;
    Ok(FollowUp {
        kind: Cow::Owned(sent.kind),
        payload: sent.payload.unwrap_or_else(|| RawValue::from_string("{}".to_owned()).unwrap_or_default()),
        options: FollowUpOptions {
            queue: sent.queue,
            due,
            expires: sent.expires_in_ms.map(|ms| Due::After(Duration::from_millis(ms))),
            priority: sent.priority,
            max_attempts: sent.max_attempts,
            timeout: sent.timeout_ms.map(Duration::from_millis),
            retry,
            order_key: sent.order_key,
            on_failure: sent.on_failure,
            limit_key: sent.limit_key,
            in_batch: sent.in_batch.unwrap_or(false),
            tags: sent.tags.unwrap_or_default(),
        },
    })
}

/// Read a JSON object. A derived `Deserialize` would also accept an array of the values of its fields.
fn object<'t, T: Deserialize<'t>>(text: &'t RawValue) -> Result<T, Problem> {
    if !text.get().starts_with('{') {
        return Err(Problem::at("", "must be an object"));
    }
    let mut reader = serde_json::Deserializer::from_str(text.get());
    serde_path_to_error::deserialize(&mut reader).map_err(Problem::in_json)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(text: &str) -> Result<Vec<FollowUp>, Vec<String>> {
        let sent: Vec<Box<RawValue>> = serde_json::from_str(text).unwrap();
        sent_follow_ups(Some(&sent), true)
            .map_err(|problems| problems.into_iter().map(|problem| problem.pointer).collect())
    }

    #[test]
    fn a_follow_up_job_has_the_options_that_it_was_sent_with() {
        let jobs = read_all(
            r#"[{"kind":"mail","payload":{"to":7},"queue":"q","delay_ms":5,"expires_in_ms":9,"priority":2,
                "max_attempts":3,"timeout_ms":4,"retry":{"base_ms":6},"order_key":"o","on_failure":"skip",
                "limit_key":"l","in_batch":true,"tags":["t"]},{"kind":"mail"}]"#,
        );
        let jobs = jobs.unwrap();
        let FollowUp { kind, payload, options } = &jobs[0];
        assert_eq!((kind.as_ref(), payload.get()), ("mail", r#"{"to":7}"#));
        assert_eq!((options.queue.as_deref(), options.due), (Some("q"), Due::After(Duration::from_millis(5))));
        assert_eq!((options.priority, options.max_attempts, options.in_batch), (Some(2), Some(3), true));
        assert_eq!((options.order_key.as_deref(), options.limit_key.as_deref()), (Some("o"), Some("l")));
        assert_eq!((options.timeout, options.on_failure), (Some(Duration::from_millis(4)), Some(OnFailure::Skip)));
        assert_eq!(options.retry.as_ref().and_then(|retry| retry.base_ms), Some(6));
        assert_eq!((options.expires, options.tags.len()), (Some(Due::After(Duration::from_millis(9))), 1));
        assert_eq!((jobs[1].payload.get(), jobs[1].options.in_batch), ("{}", false));
    }

    #[test]
    fn a_problem_of_a_follow_up_job_has_its_place() {
        for (text, pointer) in [
            (r#"[{"kind":"a"},{"payload":1}]"#, "/follow_ups/1/kind"),
            (r#"[["a"]]"#, "/follow_ups/0"),
            (r#"[{"kind":"a","unique_key":"x"}]"#, "/follow_ups/0/unique_key"),
            (r#"[{"kind":"a","priority":"high"}]"#, "/follow_ups/0/priority"),
            (r#"[{"kind":"a","delay_ms":1,"execute_at":"2030-01-01T00:00:00Z"}]"#, "/follow_ups/0/delay_ms"),
            (r#"[{"kind":"a","retry":[1]}]"#, "/follow_ups/0/retry"),
            (r#"[{"kind":"a","retry":{"base_ms":"x"}}]"#, "/follow_ups/0/retry/base_ms"),
        ] {
            assert_eq!(read_all(text).map(drop).unwrap_err(), [pointer], "{text}");
        }
        let many = |count: usize| format!("[{}]", vec![r#"{"kind":"a"}"#; count].join(","));
        assert_eq!(read_all(&many(1_000)).unwrap().len(), 1_000);
        assert_eq!(read_all(&many(1_001)).map(drop).unwrap_err(), ["/follow_ups"]);
        assert!(sent_follow_ups(Some(&[]), false).is_err() && sent_follow_ups(None, false).is_ok());
    }
}
