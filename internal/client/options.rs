//! The options of a job as a client sets them, and the forms in which they are sent.

use std::time::Duration;

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};

use super::Error;
use tickr_broker::Draft;
use tickr_handlers::{Kind, Problem};
use tickr_job::{
    BatchId, Due, JobId, OnConflict, OnFailure, OnParentFailure, RetryRequest, Timestamp, TraceContext, UniqueUntil,
    ceil_ms, limits,
};
use tickr_store::NewOutboxRow;

/// The options of a job. Those that are not set have the defaults of the kind.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) queue: Option<String>,
    pub(super) due: Due,
    pub(super) expires: Option<Due>,
    pub(super) priority: Option<u8>,
    pub(super) max_attempts: Option<u32>,
    pub(super) timeout: Option<Duration>,
    pub(super) retry: Option<RetryRequest>,
    pub(super) unique_key: Option<String>,
    pub(super) on_conflict: Option<OnConflict>,
    pub(super) unique_fields: Vec<String>,
    pub(super) unique_until: Option<UniqueUntil>,
    pub(super) unique_for: Option<Duration>,
    pub(super) max_wait: Option<Duration>,
    pub(super) order_key: Option<String>,
    pub(super) limit_key: Option<String>,
    pub(super) on_failure: Option<OnFailure>,
    pub(super) after: Vec<JobId>,
    pub(super) on_parent_failure: Option<OnParentFailure>,
    pub(super) batch: Option<BatchId>,
    pub(super) tags: Vec<String>,
    pub(super) idempotency_key: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            queue: None,
            due: Due::Now,
            expires: None,
            priority: None,
            max_attempts: None,
            timeout: None,
            retry: None,
            unique_key: None,
            on_conflict: None,
            unique_fields: Vec::new(),
            unique_until: None,
            unique_for: None,
            max_wait: None,
            order_key: None,
            limit_key: None,
            on_failure: None,
            after: Vec::new(),
            on_parent_failure: None,
            batch: None,
            tags: Vec::new(),
            idempotency_key: None,
        }
    }
}

/// A job as the API takes it. Its text also identifies a request with an idempotency key.
#[derive(Debug, Serialize)]
pub(super) struct Body {
    kind: String,
    payload: Box<RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    execute_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_in_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_attempts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<RetryRequest>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unique_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_conflict: Option<OnConflict>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unique_fields: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unique_until: Option<UniqueUntil>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unique_for_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_wait_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    order_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_failure: Option<OnFailure>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    after: Vec<JobId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_parent_failure: Option<OnParentFailure>,
    #[serde(skip_serializing_if = "Option::is_none")]
    batch: Option<BatchId>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tags: Vec<String>,
}

impl Options {
    /// Make the body of a job with these options.
    pub(super) fn body(&self, kind: &str, payload: Box<RawValue>) -> Body {
        let (execute_at, delay_ms) = in_words(self.due);
        let (expires_at, expires_in_ms) = self.expires.map(in_words).unwrap_or_default();
        Body {
            kind: kind.to_owned(),
            payload,
            queue: self.queue.clone(),
            execute_at,
            delay_ms,
            expires_at,
            expires_in_ms,
            priority: self.priority,
            max_attempts: self.max_attempts,
            timeout_ms: self.timeout.map(millis),
            retry: self.retry.clone(),
            unique_key: self.unique_key.clone(),
            on_conflict: self.on_conflict,
            unique_fields: self.unique_fields.clone(),
            unique_until: self.unique_until,
            unique_for_ms: self.unique_for.map(millis),
            max_wait_ms: self.max_wait.map(millis),
            order_key: self.order_key.clone(),
            limit_key: self.limit_key.clone(),
            on_failure: self.on_failure,
            after: self.after.clone(),
            on_parent_failure: self.on_parent_failure,
            batch: self.batch,
            tags: self.tags.clone(),
        }
    }
}

impl Body {
    /// Return whether the acceptance of the job depends on no other job and waits for none: without a unique key, an
    /// order key, parents and a batch.
    pub(super) fn is_plain(&self) -> bool {
        self.unique_key.is_none()
            && self.unique_fields.is_empty()
            && self.order_key.is_none()
            && self.after.is_empty()
            && self.batch.is_none()
    }

    /// Make the draft that the broker checks.
    pub(super) fn draft(&self, trace: Option<&TraceContext>) -> Draft {
        let due = from_words(self.execute_at, self.delay_ms).unwrap_or(Due::Now);
        Draft {
            kind: self.kind.clone(),
            payload: self.payload.clone(),
            queue: self.queue.clone(),
            due,
            expires: from_words(self.expires_at, self.expires_in_ms),
            priority: self.priority,
            max_attempts: self.max_attempts,
            timeout_ms: self.timeout_ms,
            retry: self.retry.clone(),
            unique_key: self.unique_key.clone(),
            on_conflict: self.on_conflict,
            unique_fields: self.unique_fields.clone(),
            unique_until: self.unique_until,
            unique_for_ms: self.unique_for_ms,
            max_wait_ms: self.max_wait_ms,
            order_key: self.order_key.clone(),
            limit_key: self.limit_key.clone(),
            on_failure: self.on_failure,
            after: self.after.clone(),
            on_parent_failure: self.on_parent_failure,
            batch: self.batch,
            tags: self.tags.clone(),
            trace: trace.cloned(),
        }
    }

    /// Make the row of the outbox for this job.
    pub(super) fn outbox_row(&self, trace: Option<&TraceContext>) -> Result<NewOutboxRow, Error> {
        let unreadable = |error: serde_json::Error| Error::refused(Problem::at("", error.to_string()));
        let mut options = match serde_json::to_value(self).map_err(unreadable)? {
            Value::Object(fields) => fields,
            _ => Map::new(),
        };
        // These have columns of their own.
        for column in ["kind", "payload", "queue", "execute_at"] {
            options.remove(column);
        }
        if let Some(trace) = trace {
            let trace = json!({"traceparent": trace.span_context.to_string(), "tracestate": trace.state});
            options.insert("trace".to_owned(), trace);
        }
        let options = (!options.is_empty()).then(|| Value::Object(options).to_string());
        Ok(NewOutboxRow {
            id: JobId::new(),
            kind: self.kind.clone(),
            payload: self.payload.get().to_owned(),
            queue: self.queue.clone(),
            // The column has whole milliseconds, and some servers cut the rest off.
            execute_at: self.execute_at.map(ceil_ms),
            options,
        })
    }

    /// Check the limits that the API has for the text of a request.
    pub(super) fn check_size(&self, prefix: &str) -> Result<(), Error> {
        let wrong = |detail| Err(Error::refused(Problem::at(format!("{prefix}/payload"), detail)));
        limits::problem_of_payload(self.payload.get()).map_or(Ok(()), wrong)
    }
}

/// Write a payload as JSON.
pub(super) fn payload_json<K: Kind>(payload: &K) -> Result<Box<RawValue>, Error> {
    to_raw_value(payload)
        .map_err(|error| Error::refused(Problem::at("/payload", format!("cannot be written as JSON: {error}"))))
}

/// Return the fields of a body that give this time: a moment, or a number of milliseconds.
fn in_words(time: Due) -> (Option<Timestamp>, Option<u64>) {
    match time {
        Due::Now => (None, None),
        Due::At(moment) => (Some(moment), None),
        Due::After(delay) => (None, Some(millis(delay))),
    }
}

/// Do the opposite of [`in_words`].
fn from_words(at: Option<Timestamp>, in_ms: Option<u64>) -> Option<Due> {
    at.map(Due::At).or(in_ms.map(|ms| Due::After(Duration::from_millis(ms))))
}

/// A duration in milliseconds, rounded up: a job never starts early.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
