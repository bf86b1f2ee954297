//! Kind `later`: a task of the API of Later, delivered as Later delivers it.
//!
//! The handler sends a callback of the kind `http` with the body `{"id", "topic", "content"}`. The receiver has three
//! seconds. Only `{"code": 100}` is a success, whatever the status is. The interface is that of
//! <https://github.com/btfak/later>.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::http::{AnswerRule, AnswerVerdict, HttpCallback, HttpHandler, host_of_url};
use super::{Context, Failure, Handler, Kind, KindDefaults, Outcome, Problem};
use tickr_job::{JobId, RetryPolicy};

/// Time in which a receiver must answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// Code of a success.
const SUCCESS: u32 = 100;
/// Retries of a task that says nothing else.
const RETRIES: u32 = 3;
/// Delay before the first retry. Each further one is twice as long.
const RETRY_BASE: Duration = Duration::from_secs(10);
/// Longest delay between attempts.
const RETRY_CAP: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// A task of Later.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LaterTask {
    /// Class of the task.
    #[serde(default)]
    pub topic: String,
    /// Target: an absolute `http` or `https` URL without user name and password.
    #[schemars(length(min = 1, max = 2_048))]
    pub callback: String,
    /// Text for the receiver.
    #[serde(default)]
    pub content: String,
}

/// The body that the receiver gets.
#[derive(Serialize)]
struct Delivery<'a> {
    id: JobId,
    topic: &'a str,
    content: &'a str,
}

impl LaterTask {
    /// Return the policy of retries: 10, 20, 40, … seconds, at most seven days.
    #[must_use]
    pub fn retry_policy() -> RetryPolicy {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        RetryPolicy {
            base_ms: ms(RETRY_BASE),
            factor: 2.0,
            cap_ms: ms(RETRY_CAP),
            jitter: 0.0,
            ..RetryPolicy::default()
        }
    }

    fn callback(&self, id: JobId, longest: Duration) -> serde_json::Result<HttpCallback> {
        let body = Delivery { id, topic: &self.topic, content: &self.content };
        let limit = ANSWER_TIMEOUT.min(longest);
        let answer = AnswerRule {
            at: Some("/code".to_owned()),
            success: vec![json!(SUCCESS)],
            otherwise: Some(AnswerVerdict::Retry),
            any_status: true,
            ..AnswerRule::default()
        };
        Ok(HttpCallback {
            timeout_ms: u64::try_from(limit.as_millis()).ok(),
            answer: Some(answer),
            ..HttpCallback::post(self.callback.as_str(), &body)?
        })
    }
}

impl Kind for LaterTask {
    const NAME: &'static str = "later";

    fn host(&self) -> Option<String> {
        host_of_url(&self.callback)
    }
}

/// The handler that delivers tasks of Later.
pub struct LaterHandler {
    http: Arc<HttpHandler>,
}

impl LaterHandler {
    /// Make a handler that sends its callbacks with this one.
    #[must_use]
    pub const fn new(http: Arc<HttpHandler>) -> Self {
        Self { http }
    }
}

impl Handler for LaterHandler {
    type Payload = LaterTask;

    fn check(&self, task: &LaterTask) -> Vec<Problem> {
        // The id of the job is not known yet, and makes no difference to the check.
        match task.callback(JobId::new(), self.http.longest()) {
            Ok(callback) => {
                let problems = self.http.check(&callback).into_iter();
                problems
                    .map(|problem| Problem::at(problem.pointer.replace("/url", "/callback"), problem.detail))
                    .collect()
            }
            Err(error) => vec![Problem::at("", error.to_string())],
        }
    }

    fn defaults(&self) -> KindDefaults {
        KindDefaults { max_attempts: RETRIES + 1, retry: LaterTask::retry_policy(), ..KindDefaults::default() }
    }

    async fn run(&self, task: LaterTask, ctx: Context) -> Outcome {
        let callback = task.callback(ctx.job_id(), self.http.longest());
        let callback = callback.map_err(|error| Failure::reject(format!("write the body of the callback: {error}")))?;
        self.http.run(callback, ctx).await
    }
}
