//! Calls to the receivers of declared kinds: tickr pushes each attempt, and the receiver answers with a verdict or 202.
//!
//! The call carries the document of the attempt. Its token is the finish key: the receiver that answered 202 reports on
//! the attempt and finishes it with that token, through any process. The key is stored before the call, so a finish may
//! come before the answer. A call whose answer is lost is repeated with the same token, so that the receiver can tell a
//! repetition from another attempt.
//!
//! `docs/WORKERS.md` is the specification.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue, USER_AGENT};
use reqwest::{Response, StatusCode, Url};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout, timeout_at};

use super::response::Reply;
use super::{Context, Failure, FinishLater, Outcome, Output, Problem};
use super::{
    HttpHandler, Method, SECRET_CHARS, SigningSecret, check, exchange, failure, header_value, secret_words, signature,
};
use crate::verdict::{CheckedVerdict, RemoteVerdict, SentVerdict};
use tickr_job::{Exchange, Name, Push};

/// Most bytes of an answer with a verdict: as many as a call of a remote worker may have.
const MAX_ANSWER_BYTES: usize = 1 << 20;
/// Time beyond the end of a call for which a report holds the attempt, so that the outcome of the call is written
/// first.
const WRITTEN_WITHIN: Duration = Duration::from_secs(5);
/// Pauses before the repetitions of a call whose answer was lost.
const REPEAT_AFTER: [Duration; 3] =
    [Duration::from_millis(100), Duration::from_millis(500), Duration::from_millis(2_000)];

/// Hands the jobs of one declared kind to its receiver.
pub(crate) struct PushHandler {
    http: Arc<HttpHandler>,
    push: Push,
    /// The secret of the declaration, decoded. Empty: the secrets of the configuration sign.
    secrets: Vec<SigningSecret>,
}

/// The document of an attempt, as the receiver gets it. A remote worker gets the same fields.
#[derive(Serialize)]
struct Document<'a> {
    id: String,
    kind: &'a str,
    queue: &'a str,
    payload: &'a RawValue,
    attempt: u32,
    max_attempts: u32,
    token: &'a str,
    started_at: String,
    deadline_at: String,
    timeout_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    checkpoint: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<String>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    tags: &'a [String],
}

/// An answer that decides.
enum Answer {
    /// 200 with this body.
    Verdict(Vec<u8>),
    /// Any other status, before its body is read.
    Status(Box<Answered>),
}

/// A call whose status decides.
struct Answered {
    response: Response,
    exchange: Exchange,
    /// Values that must not be shown.
    hidden: Vec<String>,
    until: Instant,
}

/// The end of a call.
enum Called {
    Answered(Answer),
    /// The request may have arrived, and its answer did not.
    Lost(String),
    /// The receiver was not reached, or its time was over.
    Failed(Failure),
    /// The call was refused here.
    NotMade(Failure),
}

impl HttpHandler {
    /// Return the reason why a kind cannot be declared with this URL, if there is one.
    #[must_use]
    pub fn problem_of_push(&self, url: &str) -> Option<String> {
        check::url(url, &self.rule).err().map(|problem| problem.detail)
    }
}

impl PushHandler {
    /// Make the handler of a kind that this receiver executes.
    ///
    /// # Errors
    /// When the secret cannot be read.
    pub(crate) fn new(http: Arc<HttpHandler>, push: Push) -> Result<Self, String> {
        let secret = push.secret.as_ref().map(|secret| secret.expose().parse::<SigningSecret>());
        let secrets = secret.transpose().map_err(|error| error.to_string())?.into_iter().collect();
        Ok(Self { http, push, secrets })
    }

    /// Push one attempt.
    pub(crate) async fn run(&self, payload: Box<RawValue>, ctx: Context) -> Outcome {
        // The rule may have changed since the kind was declared, and this check is the one that protects. The job is not
        // at fault, so it is tried again.
        if let Err(problem) = check::url(&self.push.url, &self.http.rule) {
            ctx.host_is_not_called();
            return Err(Failure::retry(format!("call the receiver of the kind: the url {}", problem.detail)));
        }
        let url = Url::parse(&self.push.url).map_err(|e| Failure::retry(format!("read the url of the kind: {e}")))?;
        let target = format!("POST {}", exchange::endpoint(&url));
        let answer = tokio::select! {
            biased;
            () = ctx.stopped() => return Err(Failure::retry("the call was stopped before the receiver answered")),
            answer = self.push(&payload, (&url, &target), &ctx) => answer?,
        };
        match answer {
            Answer::Verdict(body) => verdict(&target, &body, &self.push.follow_ups, &ctx),
            // A stop from here on ends the body, and not the call: the receiver has taken it, and would get it again.
            Answer::Status(answered) => self.judge(*answered, &target, &ctx).await,
        }
    }

    async fn push(&self, payload: &RawValue, (url, target): (&Url, &str), ctx: &Context) -> Result<Answer, Failure> {
        let answer_within = self.push.answer_within.min(self.http.longest);
        // A report during the call holds the attempt until the call has ended, however short the lease is.
        let silence = self.push.lease.map(|lease| lease.max(answer_within + WRITTEN_WITHIN));
        let later = FinishLater { within: ctx.time_left(), report_within: silence };
        ctx.host_call_is_to_come();
        let key = ctx.finish_key_for(later).await?;
        let body = self.document(payload, key.expose(), ctx)?;
        let until = Instant::now() + answer_within.min(ctx.time_left());
        let mut repeats = REPEAT_AFTER.iter();
        loop {
            let said = match self.call((url, target), &body, (key.expose(), ctx), until).await {
                Called::Answered(answer) => return Ok(answer),
                Called::Failed(failure) => {
                    ctx.host_failed();
                    return Err(failure);
                }
                Called::NotMade(failure) => {
                    ctx.host_is_not_called();
                    return Err(failure);
                }
                Called::Lost(said) => said,
            };
            let again = repeats.next().map(|pause| Instant::now() + *pause).filter(|again| *again < until);
            let Some(again) = again else {
                ctx.host_failed();
                return Err(Failure::retry(format!("{target}: the answer was lost: {said}")));
            };
            tokio::time::sleep_until(again).await;
        }
    }

    /// Read the body for operators, and judge the status.
    async fn judge(&self, answered: Answered, target: &str, ctx: &Context) -> Outcome {
        let Answered { mut response, mut exchange, hidden, until } = answered;
        let reply = Reply::read(&mut response, until, &hidden, false, ctx).await;
        exchange.response = Some(reply.shown(exchange::headers(response.headers(), &hidden)));
        ctx.keep_exchange(exchange);
        if reply.is_receivers_fault() {
            ctx.host_failed();
        } else {
            ctx.host_answered();
        }
        match response.status() {
            StatusCode::ACCEPTED => {
                Ok(Output::finished_later(FinishLater { within: ctx.time_left(), report_within: self.push.lease }))
            }
            StatusCode::NO_CONTENT => Ok(Output::default()),
            _ => reply.judge_push(target),
        }
    }

    fn document(&self, payload: &RawValue, token: &str, ctx: &Context) -> Result<Vec<u8>, Failure> {
        let limit = ctx.time_limit();
        let started_at = ctx.started_at();
        let document = Document {
            id: ctx.job_id().to_string(),
            kind: ctx.kind().as_str(),
            queue: ctx.queue().as_str(),
            payload,
            attempt: ctx.attempt(),
            max_attempts: ctx.max_attempts(),
            token,
            started_at: moment(started_at),
            deadline_at: moment(started_at + TimeDelta::from_std(limit).unwrap_or_default()),
            timeout_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
            checkpoint: ctx.checkpoint().map_err(|e| Failure::retry(format!("read the checkpoint: {e}")))?,
            traceparent: ctx.traceparent(),
            tags: ctx.tags(),
        };
        serde_json::to_vec(&document).map_err(|e| Failure::reject(format!("write the job for its receiver: {e}")))
    }

    /// Return the headers of a call, and the values in them that must not be stored if the receiver sends them back.
    fn headers(&self, url: &Url, body: &[u8], ctx: &Context) -> Result<(HeaderMap, Vec<String>), Failure> {
        let mut headers = HeaderMap::new();
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("tickr/", env!("CARGO_PKG_VERSION"))));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let id = ctx.job_id().to_string();
        headers.insert("tickr-job-id", header_value(&id)?);
        headers.insert("tickr-attempt", ctx.attempt().into());
        if let Some(trace) = ctx.trace() {
            headers.insert("traceparent", header_value(&trace.span_context.to_string())?);
            if let Some(state) = &trace.state {
                headers.insert("tracestate", header_value(state)?);
            }
        }
        let secrets = if self.secrets.is_empty() { self.http.secrets.for_url(url) } else { self.secrets.as_slice() };
        let now = ctx.now().timestamp();
        let signature = signature::header(secrets, &id, now, body);
        let hidden = signature.iter().flat_map(|text| secret_words(text)).map(str::to_owned).collect();
        if let Some(signature) = signature {
            headers.insert("webhook-id", header_value(&id)?);
            headers.insert("webhook-timestamp", now.into());
            let mut value = header_value(&signature)?;
            value.set_sensitive(true);
            headers.insert("webhook-signature", value);
        }
        Ok((headers, hidden))
    }

    /// Make one call, and keep its exchange for operators.
    async fn call(
        &self,
        (url, target): (&Url, &str),
        body: &[u8],
        (token, ctx): (&str, &Context),
        until: Instant,
    ) -> Called {
        let (headers, mut hidden) = match self.headers(url, body, ctx) {
            Ok(headers) => headers,
            Err(failure) => return Called::NotMade(failure),
        };
        hidden.push(token.to_owned());
        hidden.retain(|word| word.len() >= SECRET_CHARS);
        let mut exchange = exchange::request(Method::Post, url);
        ctx.keep_exchange(exchange.clone());
        let (began, limit) = (Instant::now(), until.saturating_duration_since(Instant::now()));
        let client = self.http.clients.for_call(url);
        let request = client.post(url.clone()).headers(headers).timeout(limit).body(body.to_vec());
        ctx.host_call_begins();
        let sent = timeout(limit, request.send()).await;
        exchange.took_ms = Some(u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX));
        let mut response = match sent {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => {
                ctx.keep_exchange(exchange);
                let lost = !error.is_connect() && !error.is_timeout() && !error.is_builder();
                return match failure(target, error, limit) {
                    Failure::Retry { error } if lost => Called::Lost(error),
                    // An address that is refused here is a mistake of the declaration, and not of the job.
                    Failure::Reject { error } => Called::NotMade(Failure::retry(error)),
                    failure => Called::Failed(failure),
                };
            }
            Err(_) => {
                ctx.keep_exchange(exchange);
                return Called::Failed(super::timed_out(target, limit));
            }
        };
        match response.status() {
            StatusCode::OK => {
                let whole = read_whole(&mut response, until).await;
                let reply = Reply::of_body(&response, whole.as_deref().unwrap_or_default(), &hidden, ctx);
                exchange.response = Some(reply.shown(exchange::headers(response.headers(), &hidden)));
                ctx.keep_exchange(exchange);
                ctx.host_answered();
                match whole {
                    Ok(body) => Called::Answered(Answer::Verdict(body)),
                    Err(said) => Called::Lost(said),
                }
            }
            _ => Called::Answered(Answer::Status(Box::new(Answered { response, exchange, hidden, until }))),
        }
    }
}

/// Read a body as a whole. The error says why it did not come.
async fn read_whole(response: &mut Response, until: Instant) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    loop {
        match timeout_at(until, response.chunk()).await {
            Ok(Ok(Some(chunk))) => body.extend_from_slice(&chunk),
            Ok(Ok(None)) => return Ok(body),
            Ok(Err(error)) => return Err(error.without_url().to_string()),
            Err(_) => return Err("its body was not complete in time".to_owned()),
        }
        // One byte more, so that the verdict does not parse.
        if body.len() > MAX_ANSWER_BYTES {
            return Ok(body);
        }
    }
}

/// Turn the verdict of the receiver into the outcome of the attempt. Jobs of these kinds may follow a success.
fn verdict(target: &str, body: &[u8], may_follow: &[Name], ctx: &Context) -> Outcome {
    let useless = |why: &str| Failure::retry(format!("{target} answered 200 without a usable verdict: {why}"));
    if body.len() > MAX_ANSWER_BYTES {
        return Err(useless(&format!("the answer has more than {MAX_ANSWER_BYTES} bytes")));
    }
    // A derived `Deserialize` would also accept an array of the values of the fields.
    if !body.trim_ascii_start().starts_with(b"{") {
        return Err(useless("the answer is no JSON object"));
    }
    let mut reader = serde_json::Deserializer::from_slice(body);
    let sent: SentVerdict = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let Problem { pointer, detail } = Problem::in_json(error);
        useless(format!("{pointer} {detail}").trim())
    })?;
    // An error that PHP prints behind its answer is a failure of the receiver.
    reader.end().map_err(|_| useless("something follows the verdict"))?;
    let CheckedVerdict { verdict, log, checkpoint, follow_ups } = sent.check().map_err(|problems| {
        let problems: Vec<String> = problems.iter().map(|(field, detail)| format!("{field} {detail}")).collect();
        useless(&problems.join("; "))
    })?;
    // A receiver has no API key. The operator who declared it has said which kinds it may enqueue.
    if let Some(job) = follow_ups.iter().find(|job| !may_follow.iter().any(|kind| kind.as_str() == job.kind)) {
        let kind: String = job.kind.chars().take(Name::MAX_LEN).collect();
        return Err(useless(&format!("its declaration does not name {kind:?} among the follow_ups")));
    }
    log.iter().flat_map(|log| log.lines()).for_each(|line| ctx.log(line));
    if let Some(checkpoint) = checkpoint {
        ctx.save_checkpoint(&checkpoint).map_err(|error| useless(&error.to_string()))?;
    }
    match verdict {
        RemoteVerdict::Succeeded(Some(result)) => Output::json(&result)?.then_all(follow_ups),
        RemoteVerdict::Succeeded(None) => Output::default().then_all(follow_ups),
        RemoteVerdict::Rejected(error) => Err(Failure::reject(error)),
        RemoteVerdict::Snoozed(delay, reason) => Err(Failure::snooze(delay, reason)),
        RemoteVerdict::Failed(error, None) => Err(Failure::retry(error)),
        ended @ (RemoteVerdict::Failed(_, Some(_)) | RemoteVerdict::Released(_)) => Ok(Output::ended_as(ended)),
    }
}

fn moment(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Millis, true)
}
