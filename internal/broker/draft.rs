//! A job as the caller describes it, before it is checked.

use serde_json::value::RawValue;

use crate::unique_fields::{MAX_UNIQUE_FIELDS, unique_key_from};
use tickr_handlers::{Checked, FollowUp, Panicked, Problem, Registered, Registry};
use tickr_job::{
    BatchId, Due, JobId, JobOptions, Name, NewJob, OnConflict, OnFailure, OnParentFailure, Order, Priority,
    RetryRequest, Tag, Timestamp, TraceContext, UniqueUntil, ceil_ms, limits,
};

/// Request for a job. Everything except the kind and the payload is optional.
#[derive(Clone, Debug)]
pub struct Draft {
    /// Name of the kind.
    pub kind: String,
    /// Input of the handler.
    pub payload: Box<RawValue>,
    /// Name of the queue. Default: that of the kind, which is `default` unless it was declared with another one.
    pub queue: Option<String>,
    /// Time at which the job is due.
    pub due: Due,
    /// When the job expires: no attempt starts then or later.
    pub expires: Option<Due>,
    /// Priority from 0 (first) to 9 (last).
    pub priority: Option<u8>,
    /// Most attempts, 1 to 100. Default: that of the kind.
    pub max_attempts: Option<u32>,
    /// Time limit of one attempt, in milliseconds. Default: that of the kind.
    pub timeout_ms: Option<u64>,
    /// Delays between attempts. What is left out is that of the kind.
    pub retry: Option<RetryRequest>,
    /// Unique key: at most one unfinished job of a kind has it.
    pub unique_key: Option<String>,
    /// Fields of the payload that make the unique key, as JSON pointers. Not together with a unique key.
    pub unique_fields: Vec<String>,
    /// What to do when an unfinished job already has the unique key. Only together with a unique key.
    pub on_conflict: Option<OnConflict>,
    /// When the job gives up its unique key. Only together with a unique key.
    pub unique_until: Option<UniqueUntil>,
    /// Shortest time that the unique key stays taken after the acceptance, in milliseconds, also when the job completes
    /// before. Only together with a unique key.
    pub unique_for_ms: Option<u64>,
    /// Longest time after its acceptance to which other requests put the job off, in milliseconds. Only together with
    /// [`OnConflict::Postpone`].
    pub max_wait_ms: Option<u64>,
    /// Order key: jobs with the same one run one at a time, in the order of their acceptance.
    pub order_key: Option<String>,
    /// Limit key: the limits that operators set count the jobs with the same one.
    pub limit_key: Option<String>,
    /// What the final failure of the job does to the jobs behind it. Only together with an order key.
    pub on_failure: Option<OnFailure>,
    /// Parents: the job waits until all of them have ended.
    pub after: Vec<JobId>,
    /// What happens to the job when a parent does not complete. Only together with parents.
    pub on_parent_failure: Option<OnParentFailure>,
    /// Batch that counts the job.
    pub batch: Option<BatchId>,
    /// Words by which the job can be found, at most ten.
    pub tags: Vec<String>,
    /// Trace that the attempts of the job continue.
    pub trace: Option<TraceContext>,
}

impl Draft {
    /// Create a draft with all defaults.
    #[must_use]
    pub fn new(kind: impl Into<String>, payload: Box<RawValue>) -> Self {
        Self {
            kind: kind.into(),
            payload,
            queue: None,
            due: Due::Now,
            expires: None,
            priority: None,
            max_attempts: None,
            timeout_ms: None,
            retry: None,
            unique_key: None,
            unique_fields: Vec::new(),
            on_conflict: None,
            unique_until: None,
            unique_for_ms: None,
            max_wait_ms: None,
            order_key: None,
            limit_key: None,
            on_failure: None,
            after: Vec::new(),
            on_parent_failure: None,
            batch: None,
            tags: Vec::new(),
            trace: None,
        }
    }

    /// Create the draft of a job that follows another one. It continues this trace, and is in this batch if it asks for
    /// that: both are those of the job before it.
    #[must_use]
    pub fn of_follow_up(follow_up: FollowUp, batch: Option<BatchId>, trace: Option<TraceContext>) -> Self {
        let FollowUp { kind, payload, options, .. } = follow_up;
        Self {
            queue: options.queue,
            due: options.due,
            expires: options.expires,
            priority: options.priority,
            max_attempts: options.max_attempts,
            timeout_ms: options.timeout.map(|limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)),
            retry: options.retry,
            order_key: options.order_key,
            on_failure: options.on_failure,
            limit_key: options.limit_key,
            batch: batch.filter(|_| options.in_batch),
            tags: options.tags,
            trace,
            ..Self::new(kind, payload)
        }
    }
}

/// Everything that is wrong with a draft.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// No handler of that kind is registered.
    #[error("no kind is called {kind:?}; known kinds: {known}")]
    UnknownKind {
        /// Requested kind, cut to 80 bytes.
        kind: String,
        /// Known kinds.
        known: String,
    },
    /// The payload does not fit the kind. Pointers are relative to the payload.
    #[error("the payload does not fit the kind {kind}")]
    Payload {
        /// Name of the kind.
        kind: Name,
        /// The problems.
        problems: Vec<Problem>,
    },
    /// Values other than the payload are wrong. Pointers are relative to the job.
    #[error("the job is not valid")]
    Job {
        /// The problems.
        problems: Vec<Problem>,
    },
    /// The code of the kind panicked on this payload, which shows a defect in that code.
    #[error(transparent)]
    Panicked(#[from] Panicked),
}

impl Invalid {
    /// Return one line with everything that is wrong: all problems, or the message of a panic.
    #[must_use]
    pub fn in_full(&self) -> String {
        let said: Vec<String> = match self {
            Self::UnknownKind { .. } => Vec::new(),
            Self::Payload { problems, .. } | Self::Job { problems } => {
                problems.iter().map(|problem| format!("{} {}", problem.pointer, problem.detail)).collect()
            }
            Self::Panicked(panicked) => vec![panicked.message.clone()],
        };
        if said.is_empty() { self.to_string() } else { format!("{self}: {}", said.join("; ")) }
    }

    /// Return everything that is wrong, with pointers that begin with `prefix`, the place of the job.
    #[must_use]
    pub fn problems_at(self, prefix: &str) -> Vec<Problem> {
        match self {
            Self::UnknownKind { .. } => {
                vec![Problem::at(format!("{prefix}/kind"), "is not a registered kind; see /v1/kinds")]
            }
            Self::Payload { problems, .. } => below(&format!("{prefix}/payload"), problems),
            Self::Job { problems } => below(prefix, problems),
            // The message of the panic may quote data of others.
            Self::Panicked(_) => vec![Problem::at(format!("{prefix}/payload"), self.to_string())],
        }
    }
}

fn below(prefix: &str, problems: Vec<Problem>) -> Vec<Problem> {
    problems.into_iter().map(|problem| Problem::at(format!("{prefix}{}", problem.pointer), problem.detail)).collect()
}

impl Draft {
    /// Check the draft against its kind, and fill in the defaults. `now` is the time of the request, by the clock of
    /// the database.
    pub(super) fn prepare(self, registry: &Registry, now: Timestamp) -> Result<NewJob, Invalid> {
        let Some(kind) = registry.find(&self.kind) else {
            let known: Vec<String> = registry.known_names().iter().map(Name::to_string).collect();
            let mut known = known.join(", ");
            // This built-in kind is not always registered.
            if self.kind == "email" {
                known.push_str("; for email, set [smtp] or outbox_dir");
            }
            let mut asked = self.kind;
            asked.truncate(asked.floor_char_boundary(80));
            return Err(Invalid::UnknownKind { kind: asked, known });
        };
        self.prepare_as(&kind, now)
    }

    /// Do what [`prepare`](Self::prepare) does, for a job that follows work that is done. Its due time may lie behind its
    /// expiry: a refusal would undo nothing of the work, so the job is accepted, and it expires. Its payload comes with no
    /// request, which has a limit, so it is held to that limit here.
    pub(super) fn prepare_follow_up(self, registry: &Registry, now: Timestamp) -> Result<NewJob, Invalid> {
        if let Some(detail) = limits::problem_of_payload(self.payload.get()) {
            return Err(Invalid::Job { problems: vec![Problem::at("/payload", detail)] });
        }
        let in_order = |expires: &Due| problem_of_expiry(*expires, Due::Now, now).is_none();
        let Some(expires) = self.expires.filter(in_order) else { return self.prepare(registry, now) };
        let job = Self { expires: None, ..self }.prepare(registry, now)?;
        Ok(NewJob { expires: Some(expires), ..job })
    }

    /// Check the draft against this kind, and fill in its defaults.
    pub(super) fn prepare_as(self, kind: &Registered, now: Timestamp) -> Result<NewJob, Invalid> {
        let mut problems = Vec::new();
        let mut wrong = |pointer: &str, detail: String| problems.push(Problem::at(pointer, detail));

        let queue = self
            .queue
            .as_deref()
            .unwrap_or_else(|| kind.queue().map_or("default", Name::as_str))
            .parse::<Name>()
            .inspect_err(|e| {
                wrong("/queue", e.to_string());
            });
        let priority = self.priority.map_or(Ok(Priority::NORMAL), Priority::try_from).inspect_err(|e| {
            wrong("/priority", (*e).to_owned());
        });
        let of_table = self.retry.as_ref().and_then(RetryRequest::attempts);
        let max_attempts = self.max_attempts.or(of_table).unwrap_or(kind.defaults().max_attempts);
        if !(1..=limits::MAX_ATTEMPTS).contains(&max_attempts) {
            wrong("/max_attempts", format!("must be 1 to {}", limits::MAX_ATTEMPTS));
        }
        let most_ms = limits::MAX_TIMEOUT.as_millis() as u64;
        if self.timeout_ms.is_some_and(|ms| ms == 0 || ms > most_ms) {
            wrong("/timeout_ms", format!("must be 1 to {most_ms}"));
        }
        let usual = &kind.defaults().retry;
        if let Some((field, why)) = self.retry.as_ref().and_then(|retry| retry.problem(usual)) {
            wrong(&format!("/retry/{field}"), why.to_owned());
        }
        let key_fits = |key: &String| (1..=limits::MAX_KEY_BYTES).contains(&key.len());
        if self.unique_key.as_ref().is_some_and(|key| !key_fits(key)) {
            wrong("/unique_key", format!("must be 1 to {} bytes", limits::MAX_KEY_BYTES));
        }
        if self.unique_fields.len() > MAX_UNIQUE_FIELDS {
            wrong("/unique_fields", format!("must be at most {MAX_UNIQUE_FIELDS}"));
        }
        if self.unique_key.is_some() && !self.unique_fields.is_empty() {
            wrong("/unique_fields", "may not be given together with unique_key".to_owned());
        }
        let keyed = self.unique_key.is_some() || !self.unique_fields.is_empty();
        let only_keyed = "may only be given together with unique_key or unique_fields";
        if self.on_conflict.is_some() && !keyed {
            wrong("/on_conflict", only_keyed.to_owned());
        }
        if self.unique_until.is_some() && !keyed {
            wrong("/unique_until", only_keyed.to_owned());
        }
        let longest_ms = limits::MAX_UNIQUE_FOR.as_millis() as u64;
        if self.unique_for_ms.is_some() && !keyed {
            wrong("/unique_for_ms", only_keyed.to_owned());
        } else if self.unique_for_ms.is_some_and(|ms| ms == 0 || ms > longest_ms) {
            wrong("/unique_for_ms", format!("must be 1 to {longest_ms}"));
        }
        let longest_ms = limits::MAX_AHEAD.as_millis() as u64;
        if self.max_wait_ms.is_some() && self.on_conflict != Some(OnConflict::Postpone) {
            wrong("/max_wait_ms", "may only be given together with on_conflict postpone".to_owned());
        } else if self.max_wait_ms.is_some_and(|ms| ms == 0 || ms > longest_ms) {
            wrong("/max_wait_ms", format!("must be 1 to {longest_ms}"));
        }
        if self.order_key.as_ref().is_some_and(|key| !key_fits(key)) {
            wrong("/order_key", format!("must be 1 to {} bytes", limits::MAX_KEY_BYTES));
        }
        if self.limit_key.as_ref().is_some_and(|key| !key_fits(key)) {
            wrong("/limit_key", format!("must be 1 to {} bytes", limits::MAX_KEY_BYTES));
        }
        if self.on_failure.is_some() && self.order_key.is_none() {
            wrong("/on_failure", "may only be given together with order_key".to_owned());
        }
        if self.after.len() > limits::MAX_PARENTS {
            wrong("/after", format!("must be at most {}", limits::MAX_PARENTS));
        }
        if self.on_parent_failure.is_some() && self.after.is_empty() {
            wrong("/on_parent_failure", "may only be given together with after".to_owned());
        }
        if !self.after.is_empty() && self.order_key.is_some() {
            let why = "may not be given together with order_key: a job that waits for its parents would block its key";
            wrong("/after", why.to_owned());
        }
        if self.tags.len() > limits::MAX_TAGS {
            wrong("/tags", format!("must be at most {}", limits::MAX_TAGS));
        }
        let mut tags: Vec<Tag> = Vec::with_capacity(self.tags.len().min(limits::MAX_TAGS));
        for (place, tag) in self.tags.iter().take(limits::MAX_TAGS).enumerate() {
            match tag.parse::<Tag>() {
                // Drop a repeated tag.
                Ok(tag) if tags.contains(&tag) => {}
                Ok(tag) => tags.push(tag),
                Err(e) => wrong(&format!("/tags/{place}"), e.to_string()),
            }
        }
        problems.extend(problem_of_due(self.due, now));
        problems.extend(self.expires.and_then(|expires| problem_of_expiry(expires, self.due, now)));
        let (Ok(queue), Ok(priority), true) = (queue, priority, problems.is_empty()) else {
            return Err(Invalid::Job { problems });
        };

        let Checked { problems, host } = kind.read(&self.payload)?;
        if !problems.is_empty() {
            return Err(Invalid::Payload { kind: kind.name().clone(), problems });
        }
        let mut unique_key = self.unique_key;
        if !self.unique_fields.is_empty() {
            unique_key = Some(unique_key_from(&self.payload, &self.unique_fields).map_err(|place| {
                let detail = "must be a JSON pointer to a value of the payload, such as /to".to_owned();
                Invalid::Job { problems: vec![Problem::at(format!("/unique_fields/{place}"), detail)] }
            })?);
        }
        let mut after: Vec<JobId> = Vec::with_capacity(self.after.len());
        for parent in self.after {
            if !after.contains(&parent) {
                after.push(parent);
            }
        }
        Ok(NewJob {
            id: JobId::new(),
            kind: kind.name().clone(),
            queue,
            payload: self.payload,
            due: self.due,
            expires: self.expires,
            priority,
            max_attempts,
            unique_key,
            on_conflict: self.on_conflict.unwrap_or_default(),
            host,
            options: JobOptions {
                timeout_ms: self.timeout_ms,
                retry: self.retry.map(|retry| retry.over(usual)),
                tags,
                trace: self.trace,
                unique_until: self.unique_until.unwrap_or_default(),
                unique_for_ms: self.unique_for_ms,
                max_wait_ms: self.max_wait_ms,
                limit_key: self.limit_key,
                after,
                on_parent_failure: self.on_parent_failure.unwrap_or_default(),
                batch: self.batch,
                order: self.order_key.map(|key| Order { key, on_failure: self.on_failure.unwrap_or_default() }),
                of_kind: kind.kept_options(),
                ..JobOptions::default()
            },
            batch: None,
        })
    }
}

/// Days of [`limits::MAX_AHEAD`].
const DAYS_AHEAD: u64 = limits::MAX_AHEAD.as_secs() / 86_400;

/// Check when a job expires that is due at `due`. Pointers are relative to the job.
fn problem_of_expiry(expires: Due, due: Due, now: Timestamp) -> Option<Problem> {
    let (pointer, expires_at) = match expires {
        Due::Now => return None,
        Due::After(time) if time.is_zero() || time > limits::MAX_AHEAD => {
            let most_ms = limits::MAX_AHEAD.as_millis();
            return Some(Problem::at("/expires_in_ms", format!("must be 1 to {most_ms} ({DAYS_AHEAD} days)")));
        }
        Due::After(time) => ("/expires_in_ms", now + time),
        Due::At(moment) if moment <= now || moment > now + limits::MAX_AHEAD => {
            let detail = format!("must lie between now and {DAYS_AHEAD} days from now");
            return Some(Problem::at("/expires_at", detail));
        }
        Due::At(moment) => ("/expires_at", moment),
    };
    let (due_at, what) = match due {
        Due::Now => return None,
        Due::After(delay) => (now + delay.min(limits::MAX_AHEAD), "more than delay_ms"),
        Due::At(moment) => (moment, "later than execute_at"),
    };
    // The store keeps both in whole milliseconds.
    (ceil_ms(expires_at) <= ceil_ms(due_at))
        .then(|| Problem::at(pointer, format!("must be {what}: the job would never start")))
}

/// Check a due time. A past one means now. Pointers are relative to the object that holds it. `now` is the time of the
/// request, by the clock of the database.
#[must_use]
pub fn problem_of_due(due: Due, now: Timestamp) -> Option<Problem> {
    match due {
        Due::After(delay) if delay > limits::MAX_AHEAD => {
            let most_ms = limits::MAX_AHEAD.as_millis();
            Some(Problem::at("/delay_ms", format!("must be at most {most_ms} ({DAYS_AHEAD} days)")))
        }
        Due::At(moment) if moment > now + limits::MAX_AHEAD => {
            Some(Problem::at("/execute_at", format!("must be at most {DAYS_AHEAD} days from now")))
        }
        Due::Now | Due::After(_) | Due::At(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_follow_up_job_that_is_too_large_or_nested_too_deeply_is_refused() {
        let prepared = |payload: String| {
            let draft = Draft::new("none", RawValue::from_string(payload).unwrap());
            draft.prepare_follow_up(&Registry::new(), Timestamp::UNIX_EPOCH).unwrap_err()
        };
        let text = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        // The kind is looked up after that.
        for payload in [text(limits::MAX_PAYLOAD_BYTES), nested(63)] {
            assert!(matches!(prepared(payload), Invalid::UnknownKind { .. }));
        }
        let says = |payload| prepared(payload).in_full();
        let large = says(text(limits::MAX_PAYLOAD_BYTES + 1));
        assert_eq!(large, "the job is not valid: /payload is larger than 1048576 bytes");
        assert_eq!(says(nested(64)), "the job is not valid: /payload is nested more than 63 levels deep");
    }

    #[test]
    fn times_are_compared_by_the_clock_of_the_request_in_each_form() {
        let now = chrono::DateTime::from_timestamp_millis(1_790_000_000_500).unwrap();
        let (ms, ahead) = (Duration::from_millis, |ms| Due::At(now + Duration::from_millis(ms)));
        let longest = 31_622_400_000;
        let due = |due| problem_of_due(due, now).map(|problem| problem.pointer);
        for good in [Due::Now, Due::After(ms(longest)), ahead(longest), Due::At(Timestamp::UNIX_EPOCH)] {
            assert_eq!(due(good), None, "{good:?}");
        }
        assert_eq!(due(Due::At(Timestamp::MIN_UTC)), None);
        assert_eq!(due(Due::After(ms(longest + 1))).as_deref(), Some("/delay_ms"));
        assert_eq!(due(ahead(longest + 1)).as_deref(), Some("/execute_at"));

        let expiry = |expires, due| problem_of_expiry(expires, due, now).map(|problem| problem.pointer);
        for (time, is_good) in [(0, false), (1, true), (longest, true), (longest + 1, false)] {
            assert_eq!(expiry(Due::After(ms(time)), Due::Now).is_none(), is_good, "{time}");
            assert_eq!(expiry(ahead(time), Due::Now).is_none(), is_good, "{time}");
        }
        for (expires, pointer) in [(Due::After(ms(5_000)), "/expires_in_ms"), (ahead(5_000), "/expires_at")] {
            for (time, is_good) in [(4_999, true), (5_000, false), (longest + 1, false)] {
                for due in [Due::After(ms(time)), ahead(time)] {
                    let expected = Some(pointer.to_owned()).filter(|_| !is_good);
                    assert_eq!(expiry(expires, due), expected, "{expires:?} {due:?}");
                }
            }
            assert_eq!(expiry(expires, Due::At(Timestamp::UNIX_EPOCH)), None);
            assert_eq!(expiry(expires, Due::At(Timestamp::MAX_UTC)).as_deref(), Some(pointer));
        }
    }
}
