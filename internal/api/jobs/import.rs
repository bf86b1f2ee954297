//! `POST /v1/jobs/import`: enqueue any number of jobs, one on each line.
//!
//! Lines are read in parts of at most 500. Each part is committed and answered before the next one is read, so TCP
//! slows down a client that sends faster than MySQL commits, and memory stays bounded. The lines alone decide which of
//! them form a part, never timing. So with an idempotency key each part is carried out at most once, and an import that
//! broke off can be sent again.

use std::collections::{HashMap, HashSet, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt as _, stream};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::Instant;
use utoipa::{IntoParams, ToSchema};

use crate::Api;
use crate::http::auth::PermitOwner;
use crate::http::body::{QueryParams, check_encoding, parse};
use crate::http::caller::Requester;
use crate::http::idempotency::Key;
use crate::http::problem::{Code, Problem};
use crate::http::revocation::RequestRight;
use crate::http::shares::RequestPermit;
use crate::http::trace::ImportSpan;
use crate::jobs::{NewJobBody, held_detail, prepare, unique_key_taken};
use crate::view::Moment;
use tickr_broker::{IdempotencyKey, key_of_fields};
use tickr_job::{Name, NewJob, OnConflict};
use tickr_store::{
    Answer, EnqueueReceipts, EnqueueRefusal, EnqueuedJob, IdempotentOutcome, KeyHolder, LinkProblem, StoreError,
};

/// Maximum number of lines in one part.
const MAX_LINES: usize = 500;
/// Maximum size of one part in bytes; a single line may be larger.
const MAX_BYTES: usize = 1 << 20;
/// Maximum number of times that a part is written again without the lines whose unique keys are taken.
const MAX_ROUNDS: usize = 8;
/// Maximum size and time for reading and discarding the rest of the body after the import has ended.
const MAX_FORGOTTEN_BYTES: usize = 8 << 20;
const FORGETTING: Duration = Duration::from_secs(2);
/// The same time after the API key of the import was revoked.
const FORGETTING_STRANGERS: Duration = Duration::from_millis(250);
/// Time that a part has to arrive after the runner was told to stop. Open requests have more time then, so the client
/// gets the last line.
const STOPPING: Duration = Duration::from_secs(1);
/// Maximum number of times that a part is submitted while MySQL is overloaded.
const MAX_TRIES: u32 = 8;
/// End of the text about a batch that has ended or was cancelled. A stored line keeps the text and no code, because older
/// versions that may read it know none there. So the code follows from this end.
const TAKES_NO_MORE: &str = ", so it takes no more jobs";

/// Parameters of an import.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ImportQuery {
    /// Action on a refused line. `stop` ends the import at the first refused line and accepts nothing of its part;
    /// `continue` refuses the line and goes on. Default: `stop`.
    #[param(value_type = Option<OnErrorWord>, inline)]
    on_error: Option<OnError>,
    /// Lines that are answered. `all`: every line. `problems`: only refused lines, for clients that do not read while
    /// they send. Default: `all`.
    #[param(value_type = Option<ReceiptsWord>, inline)]
    receipts: Option<AnsweredLines>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OnError {
    Stop,
    Continue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum AnsweredLines {
    All,
    Problems,
}

/// The action on a refused line.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) enum OnErrorWord {
    Stop,
    Continue,
}

/// The lines that are answered.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) enum ReceiptsWord {
    All,
    Problems,
}

/// The outcome of one line of an import.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ImportLine {
    /// Number of the line, counted from 1; empty lines count.
    line: u64,
    /// Id of the job, unless the line was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    /// Due time of the job. Left out for another producer's job.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    execute_at: Option<Moment>,
    /// True when this is not a new job: an unfinished job, or an earlier line of the import, has the unique key.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    existing: bool,
    /// True when the part was carried out earlier, with the same idempotency key.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    replayed: bool,
    /// Problem of a refused line.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<Problem>,
}

/// The last line of the response to an import.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct ImportEnd {
    /// True when the body was read to its end. Otherwise `problem` says why not, and nothing after the last answered
    /// line was accepted.
    complete: bool,
    /// Number of lines read; empty lines count.
    lines: u64,
    /// Number of new jobs, including those of an earlier try with the same idempotency key.
    accepted: u64,
    /// Number of lines whose unique key an unfinished job has.
    existing: u64,
    /// Number of refused lines.
    rejected: u64,
    /// Reason why the import ended early.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<Problem>,
}

/// The stored outcome of a line under an idempotency key. The names are short because there may be millions of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum StoredLine {
    /// A new job, with its due time.
    New(String, i64),
    /// An existing job, with its due time.
    Held(String, i64),
    /// The detail of a refusal with the code `unique_key_taken`.
    Refused(String),
    /// The detail of a refusal because of a parent or a batch.
    Unlinked(String),
}

/// Import jobs, one on each line
///
/// The body is NDJSON: any number of lines, each with a job as `POST /v1/jobs` accepts it. Lines are committed in
/// order, in parts of at most 500. The response is NDJSON as well: one line for each line of the body, sent while the
/// rest is still being read, and an `ImportEnd` as the last line. So read the response while you send, or use
/// `receipts=problems`. The jobs continue the trace of the request's `traceparent` header, unless their lines name one.
///
/// With an `Idempotency-Key`, each part is carried out at most once. If an import breaks off at any point, send it
/// again with the same key, parameters and body, as often as necessary: accepted lines get the same response as before,
/// and nothing is done twice. After a line was refused with `on_error=stop`, you may also correct that line, because
/// nothing of its part was accepted. You may add lines behind a part that is full. `problem` of the `ImportEnd` is
/// `idempotency_conflict` when the key belongs to other lines or to another call. Once a line of the first part was
/// accepted, another call with the key gets it as well.
#[utoipa::path(
    post, path = "/v1/jobs/import", tag = "jobs", operation_id = "import_jobs", params(ImportQuery),
    request_body(content = String, content_type = "application/x-ndjson", description = "A `NewJobBody` on each line"),
    responses(
        (status = 200, description = "An `ImportLine` for each line, then an `ImportEnd`", body = String, content_type = "application/x-ndjson"),
        (status = 415, description = "unsupported_media_type", body = Problem),
        (status = 422, description = "invalid_request", body = Problem),
        (status = 429, description = "overloaded: too many imports or connections", body = Problem),
        (status = 503, description = "stopping", body = Problem),
    )
)]
pub(crate) async fn import(
    State(api): State<Api>,
    asked: Result<QueryParams<ImportQuery>, Problem>,
    (asker, sharing, pass): (Requester, PermitOwner, RequestRight),
    span: ImportSpan,
    key: Key,
    request: Request,
) -> Response {
    let (head, body) = request.into_parts();
    let lines = LineReader::new(body, api.body_limit_bytes, api.body_timeout);
    let admitted = asked.and_then(|QueryParams(asked)| Ok((asked, admit(&api, &sharing, key, &head.headers)?)));
    let (asked, (key, permit)) = match admitted {
        Ok(admitted) => admitted,
        Err(problem) => return lines.forget_rest_behind(span.refused(problem)),
    };
    let import = Import {
        lines,
        on_error: asked.on_error.unwrap_or(OnError::Stop),
        wanted: asked.receipts.unwrap_or(AnsweredLines::All),
        key,
        part: 0,
        next: None,
        end: ImportEnd::default(),
        state: ImportState::Running,
        span,
        asker,
        pass,
        api,
        _permit: permit,
    };
    let answer = Body::from_stream(stream::unfold(import, Import::answer));
    let media = HeaderValue::from_static("application/x-ndjson");
    ([(header::CONTENT_TYPE, media)], answer).into_response()
}

/// Check the head of an import and take a permit for it.
fn admit(
    api: &Api,
    sharing: &PermitOwner,
    key: Key,
    headers: &HeaderMap,
) -> Result<(Option<IdempotencyKey>, RequestPermit), Problem> {
    let declared = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let media = declared.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    if !matches!(media.as_str(), "application/x-ndjson" | "application/ndjson" | "application/jsonl") {
        let detail = "declare the body with Content-Type: application/x-ndjson";
        return Err(Problem::new(Code::UnsupportedMediaType, detail));
    }
    check_encoding(headers)?;
    let key = key.given()?;
    if *api.stopping.borrow() {
        return Err(Problem::new(Code::Stopping, "this runner is stopping; send the import to another runner"));
    }
    let permit = api.imports.take(sharing.0).map_err(|full| full.problem("imports", "this runner"))?;
    Ok((key, permit))
}

/// The progress of an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ImportState {
    Running,
    /// Only the last line of the response is missing.
    Ending,
    Over,
}

/// An import under way. The HTTP server drives it by polling the response body: while the client does not read the
/// response, no further part of the request is read.
struct Import {
    api: Api,
    lines: LineReader,
    on_error: OnError,
    wanted: AnsweredLines,
    key: Option<IdempotencyKey>,
    /// Number of parts carried out so far.
    part: u64,
    /// A line that was already read and begins the next part.
    next: Option<ImportedLine>,
    end: ImportEnd,
    state: ImportState,
    /// The span of the import, which ends with it.
    span: ImportSpan,
    asker: Requester,
    pass: RequestRight,
    _permit: RequestPermit,
}

/// One line of the body: its number, and its text or the problem with it.
struct ImportedLine {
    number: u64,
    text: Result<Vec<u8>, Problem>,
}

/// One line of a part.
struct PartLine {
    number: u64,
    /// JSON that stands for the line in the digest of the part: the line itself if it has the fields of a job,
    /// otherwise its text as a string. It does not depend on whether the job is valid now, because the kinds that exist
    /// may change before the import is sent again.
    digested: String,
    unique_key: Option<(Name, String)>,
    on_conflict: OnConflict,
    job: Result<NewJob, Problem>,
}

/// Lines that are committed together.
#[derive(Default)]
struct ImportPart {
    bytes: usize,
    lines: Vec<PartLine>,
    /// The unique keys of the part so far.
    keys: HashSet<(Name, String)>,
    /// Set when the body ended. The inner value is the problem, or `None` for a normal end.
    last: Option<Option<Problem>>,
}

impl Import {
    /// Return the next piece of the response.
    async fn answer(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        loop {
            match self.state {
                ImportState::Over => {
                    let patience = if self.pass.is_good() { FORGETTING } else { FORGETTING_STRANGERS };
                    self.lines.forget_rest(patience).await;
                    return None;
                }
                ImportState::Ending => {
                    self.state = ImportState::Over;
                    let text = line_of(&self.end);
                    return Some((Ok(text.into()), self));
                }
                ImportState::Running => {
                    let text = self.process_part().await;
                    if !text.is_empty() {
                        return Some((Ok(text.into()), self));
                    }
                }
            }
        }
    }

    fn finish(&mut self, problem: Option<Problem>) {
        self.state = ImportState::Ending;
        self.end.complete = problem.is_none();
        self.end.problem = problem;
    }

    /// Read, write and answer one part.
    async fn process_part(&mut self) -> String {
        if *self.api.stopping.borrow() {
            self.finish(Some(stopping_problem()));
            return String::new();
        }
        // If the right to send ends while the part is read, or the runner stops and the rest of the part does not come,
        // the part is dropped and the import is over.
        let (mut pass, mut stopping) = (self.pass.clone(), self.api.stopping.clone());
        let stopped = async {
            let _ = stopping.wait_for(|stopping| *stopping).await;
            tokio::time::sleep(STOPPING).await;
        };
        let part = tokio::select! {
            biased;
            () = pass.wait_until_revoked() => None,
            part = self.read_part() => Some(part).filter(|_| pass.is_good()),
            () = stopped => Some(ImportPart { last: Some(Some(stopping_problem())), ..ImportPart::default() }),
        };
        let Some(mut part) = part else {
            self.finish(Some(pass.refusal()));
            return String::new();
        };
        let broken = part.last.take();
        if let Some(Some(problem)) = broken {
            // It is unknown which lines the part would have had, so nothing of it is accepted.
            self.finish(Some(problem));
            return String::new();
        }
        let mut answers = match self.answer_part(std::mem::take(&mut part.lines)).await {
            Ok(answers) => answers,
            Err(problem) => {
                self.finish(Some(problem));
                return String::new();
            }
        };
        self.part += 1;
        answers.sort_by_key(|answer| answer.line);
        let stopped = self.on_error == OnError::Stop && answers.iter().any(|answer| answer.problem.is_some());
        let mut text = String::new();
        for answer in &answers {
            let kind = match answer {
                ImportLine { problem: Some(_), .. } => &mut self.end.rejected,
                ImportLine { existing: true, .. } => &mut self.end.existing,
                _ => &mut self.end.accepted,
            };
            *kind += 1;
            if self.wanted == AnsweredLines::All || answer.problem.is_some() {
                text.push_str(&line_of(answer));
            }
        }
        if stopped {
            let detail = "a line was refused, and nothing of its part was accepted";
            self.finish(Some(Problem::new(Code::InvalidRequest, detail)));
        } else if broken.is_some() {
            self.finish(None);
        }
        text
    }

    async fn read_part(&mut self) -> ImportPart {
        let mut part = ImportPart::default();
        while part.lines.len() < MAX_LINES {
            let read = match self.next.take() {
                Some(line) => Ok(Some(line)),
                None => self.lines.next().await,
            };
            let line = match read {
                Ok(Some(line)) => line,
                Ok(None) => {
                    part.last = Some(None);
                    break;
                }
                Err(problem) => {
                    part.last = Some(Some(problem));
                    break;
                }
            };
            if part.bytes > 0 && part.bytes + line.text.as_ref().map_or(0, Vec::len) > MAX_BYTES {
                self.next = Some(line);
                break;
            }
            part.bytes += line.text.as_ref().map_or(0, Vec::len);
            let read = self.read_line(&line);
            if let Some(key) = &read.unique_key {
                let first = part.keys.insert(key.clone());
                if !first && read.on_conflict != OnConflict::Return {
                    // The line refers to a job of this part, which must be committed first.
                    part.bytes -= line.text.as_ref().map_or(0, Vec::len);
                    self.next = Some(line);
                    break;
                }
            }
            self.end.lines = line.number;
            part.lines.push(read);
        }
        self.end.lines = self.end.lines.max(self.lines.skipped_to(self.next.as_ref()));
        part
    }

    fn read_line(&self, line: &ImportedLine) -> PartLine {
        let number = line.number;
        let parsed = line.text.as_ref().map_err(Clone::clone).and_then(|text| {
            let body: NewJobBody = parse(text)?;
            let raw: Box<RawValue> =
                serde_json::from_slice(text).map_err(|error| Problem::new(Code::InvalidJson, error.to_string()))?;
            Ok((body, raw.get().to_owned()))
        });
        let (body, digested) = match parsed {
            Ok(parsed) => parsed,
            Err(problem) => {
                // The reader has discarded the text of a line that is too long.
                let text = line.text.as_ref().ok().map(|text| String::from_utf8_lossy(text));
                let digested = serde_json::to_string(&text).unwrap_or_default();
                let on_conflict = OnConflict::Return;
                return PartLine { number, digested, unique_key: None, on_conflict, job: Err(problem) };
            }
        };
        let on_conflict = body.on_conflict.unwrap_or(OnConflict::Return);
        // The key of a line that is not valid counts as well, so that the parts do not depend on the kinds that exist.
        let own = body.unique_key.clone().or_else(|| key_of_fields(&body.payload, &body.unique_fields));
        let unique_key = body.kind.parse::<Name>().ok().zip(own);
        let trace = self.span.trace_context();
        let allowed = body.check_requester(&self.api, &self.asker, "");
        let job = allowed.and_then(|()| prepare(&self.api, body, "", trace, &[]));
        PartLine { number, digested, unique_key, on_conflict, job }
    }

    /// Answer the lines of a part. Commit its jobs, unless a refused line ends the import.
    async fn answer_part(&mut self, part: Vec<PartLine>) -> Result<Vec<ImportLine>, Problem> {
        if part.is_empty() {
            return Ok(Vec::new());
        }
        let idempotent = self.key.map(|key| {
            let lines: Vec<&str> = part.iter().map(|line| line.digested.as_str()).collect();
            let body = RawValue::from_string(format!("[{}]", lines.join(","))).ok();
            let call = format!("POST /v1/jobs/import {:?}", self.on_error);
            key.part(self.part).request(&call, body.as_deref())
        });
        let numbers: Vec<u64> = part.iter().map(|line| line.number).collect();
        let (mut jobs, mut invalid) = (Vec::new(), Vec::new());
        for (place, line) in part.into_iter().enumerate() {
            match line.job {
                Ok(job) => jobs.push((place, job)),
                Err(problem) => invalid.push((place, problem)),
            }
        }
        if !jobs.is_empty() && (invalid.is_empty() || self.on_error == OnError::Continue) {
            return self.write(&numbers, jobs, invalid, idempotent).await;
        }
        // Lines that are not valid now may have been valid when this part was carried out.
        let earlier = match idempotent {
            Some(idempotent) => self.api.broker.store().find_response(idempotent).await?,
            None => None,
        };
        match earlier {
            Some(IdempotentOutcome::Replayed(kept)) => {
                Ok(with_refused(import_lines(&numbers, &kept.body, true), &numbers, invalid))
            }
            Some(IdempotentOutcome::Conflict) => Err(other_lines()),
            _ => Ok(refused_lines(&numbers, invalid)),
        }
    }

    /// Commit the jobs of a part, at most once if there is an idempotency key. Each job comes with its place among the
    /// lines of the part; `invalid` are the other lines.
    async fn write(
        &mut self,
        numbers: &[u64],
        mut jobs: Vec<(usize, NewJob)>,
        invalid: Vec<(usize, Problem)>,
        idempotent: Option<tickr_store::IdempotentRequest>,
    ) -> Result<Vec<ImportLine>, Problem> {
        let mut taken: Vec<(usize, Problem)> = Vec::new();
        for _ in 0..MAX_ROUNDS {
            let places: Vec<usize> = jobs.iter().map(|(place, _)| *place).collect();
            let refusals: Vec<(usize, StoredLine)> = taken
                .iter()
                .map(|(place, problem)| {
                    let detail = problem.detail.clone();
                    let taken = problem.code == Code::UniqueKeyTaken;
                    (*place, if taken { StoredLine::Refused(detail) } else { StoredLine::Unlinked(detail) })
                })
                .collect();
            let build = move |receipts: &EnqueueReceipts| stored_lines(&places, &refusals, receipts);
            let all: Vec<NewJob> = jobs.iter().map(|(_, job)| job.clone()).collect();
            let outcome = self.submit(all, idempotent.clone(), Arc::new(build)).await?;
            let (kept, replayed, refused_now): (_, _, Vec<(usize, Problem)>) = match outcome {
                IdempotentOutcome::First { answer, .. } => (answer, false, Vec::new()),
                IdempotentOutcome::Replayed(answer) => (answer, true, Vec::new()),
                IdempotentOutcome::Refused(refusal) => {
                    let refused = match refusal {
                        EnqueueRefusal::KeysTaken(holders) => holders.into_iter().map(key_taken).collect(),
                        EnqueueRefusal::Links(problems) => problems.iter().map(link_refused).collect(),
                    };
                    (Answer { status: 200, body: String::new() }, false, refused)
                }
                IdempotentOutcome::Conflict => return Err(other_lines()),
                IdempotentOutcome::Busy => {
                    return Err(Problem::new(
                        Code::IdempotencyInProgress,
                        "an import with this idempotency key is under way; this import accepted nothing more",
                    ));
                }
            };
            if refused_now.is_empty() {
                return Ok(with_refused(import_lines(numbers, &kept.body, replayed), numbers, invalid));
            }
            for (at, problem) in refused_now {
                match (jobs.get(at), taken.last_mut()) {
                    // A job may have several wrong links.
                    (Some((place, _)), Some((last, earlier))) if last == place => earlier.join(&problem),
                    (Some((place, _)), _) => taken.push((*place, problem)),
                    (None, _) => {}
                }
            }
            jobs.retain(|(place, _)| !taken.iter().any(|(refused, _)| refused == place));
            if self.on_error == OnError::Stop || jobs.is_empty() {
                return Ok(refused_lines(numbers, taken.into_iter().chain(invalid)));
            }
        }
        Err(Problem::new(
            Code::Overloaded,
            "other jobs keep taking the unique keys of these lines; send the rest again",
        ))
    }

    /// Submit a part to the store, again and again until its queue has room. This is what slows the client down.
    async fn submit(
        &mut self,
        jobs: Vec<NewJob>,
        idempotent: Option<tickr_store::IdempotentRequest>,
        build: tickr_store::ResponseBuilder<EnqueueReceipts>,
    ) -> Result<IdempotentOutcome<EnqueueReceipts, EnqueueRefusal>, Problem> {
        let mut pause = Duration::from_millis(50);
        for attempt in 1.. {
            let (producer, build) = (self.asker.producer(), Arc::clone(&build));
            let outcome = self.api.broker.enqueue_request(producer, jobs.clone(), idempotent.clone(), build).await;
            match outcome {
                Err(StoreError::Overloaded { .. }) if attempt < MAX_TRIES => {
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                outcome => return Ok(outcome?),
            }
        }
        Err(Problem::new(Code::Overloaded, "too many requests wait for MySQL"))
    }
}

fn line_of(answer: &impl Serialize) -> String {
    let mut text = serde_json::to_string(answer).unwrap_or_default();
    text.push('\n');
    text
}

fn stopping_problem() -> Problem {
    Problem::new(Code::Stopping, "this runner is stopping; send the rest to another runner")
}

fn other_lines() -> Problem {
    let detail = "this idempotency key belongs to other lines or to another call; nothing more was accepted";
    Problem::new(Code::IdempotencyConflict, detail)
}

fn key_taken((at, holder): (usize, KeyHolder)) -> (usize, Problem) {
    let problem = Problem::new(Code::UniqueKeyTaken, held_detail(&holder, ""));
    (at, problem.at("", vec![unique_key_taken("", &(at, holder))]).held_by(&holder))
}

fn link_refused((at, problem): &(usize, LinkProblem)) -> (usize, Problem) {
    let field = if matches!(problem, LinkProblem::UnknownParent(_)) { "/after" } else { "/batch" };
    let here = tickr_handlers::Problem::at(field, problem.to_string());
    (*at, unlinked(problem.to_string()).at("", vec![here]))
}

/// Make the problem of a line whose job cannot have its parent or its batch, from the text that says why.
fn unlinked(detail: String) -> Problem {
    let code = if detail.ends_with(TAKES_NO_MORE) { Code::WrongState } else { Code::InvalidRequest };
    Problem::new(code, detail)
}

fn refused(line: u64, problem: Problem) -> ImportLine {
    ImportLine { line, id: None, execute_at: None, existing: false, replayed: false, problem: Some(problem) }
}

/// Answer the lines at these places among `numbers` with their problems.
fn refused_lines(numbers: &[u64], problems: impl IntoIterator<Item = (usize, Problem)>) -> Vec<ImportLine> {
    let answer = |(place, problem): (usize, Problem)| numbers.get(place).map(|number| refused(*number, problem));
    problems.into_iter().filter_map(answer).collect()
}

/// Add the lines of a part that its stored outcome does not have: they were not valid when the part was carried out.
/// `invalid` are the lines that are not valid now.
fn with_refused(mut answers: Vec<ImportLine>, numbers: &[u64], invalid: Vec<(usize, Problem)>) -> Vec<ImportLine> {
    let answered: HashSet<u64> = answers.iter().map(|answer| answer.line).collect();
    let mut invalid: HashMap<usize, Problem> = invalid.into_iter().collect();
    for (place, number) in numbers.iter().enumerate().filter(|(_, number)| !answered.contains(number)) {
        let since = "the line was refused when its part was carried out; use another idempotency key to enqueue it now";
        let problem = invalid.remove(&place).unwrap_or_else(|| Problem::new(Code::InvalidRequest, since));
        answers.push(refused(*number, problem));
    }
    answers
}

/// Build the stored outcome of a part: one entry for each line that was submitted or was refused because of its unique
/// key.
fn stored_lines(places: &[usize], refused: &[(usize, StoredLine)], receipts: &EnqueueReceipts) -> Answer {
    let receipt = |placed: &EnqueuedJob| match placed {
        EnqueuedJob::New(accepted) => StoredLine::New(accepted.id.to_string(), accepted.execute_at.timestamp_millis()),
        // The due time of another producer's job is not revealed. No time has this number.
        EnqueuedJob::Existing(holder) if holder.foreign => StoredLine::Held(holder.id.to_string(), i64::MIN),
        EnqueuedJob::Existing(holder) => StoredLine::Held(holder.id.to_string(), holder.execute_at.timestamp_millis()),
    };
    let mut kept: Vec<(usize, StoredLine)> = places.iter().copied().zip(receipts.jobs.iter().map(receipt)).collect();
    kept.extend(refused.iter().cloned());
    kept.sort_by_key(|(place, _)| *place);
    Answer { status: 200, body: serde_json::to_string(&kept).unwrap_or_default() }
}

/// Build the responses to the lines with these numbers from their stored outcomes.
fn import_lines(numbers: &[u64], kept: &str, replayed: bool) -> Vec<ImportLine> {
    let kept: Vec<(usize, StoredLine)> = serde_json::from_str(kept).unwrap_or_default();
    let answer = |(place, kept): (usize, StoredLine)| {
        let line = *numbers.get(place)?;
        let (id, due, existing) = match kept {
            StoredLine::New(id, due) => (id, due, false),
            StoredLine::Held(id, due) => (id, due, true),
            StoredLine::Refused(detail) => return Some(refused(line, Problem::new(Code::UniqueKeyTaken, detail))),
            StoredLine::Unlinked(detail) => return Some(refused(line, unlinked(detail))),
        };
        let execute_at = chrono::DateTime::from_timestamp_millis(due).map(Moment);
        Some(ImportLine { line, id: Some(id), execute_at, existing, replayed, problem: None })
    };
    kept.into_iter().filter_map(answer).collect()
}

/// The lines of a body.
struct LineReader {
    body: BodyDataStream,
    /// Bytes that were read but do not form a complete line yet.
    rest: VecDeque<u8>,
    limit: usize,
    /// Longest time that a line may take to arrive.
    patience: Duration,
    number: u64,
    /// Number of bytes of the rest that have been searched for the end of a line.
    searched: usize,
    ended: bool,
}

impl LineReader {
    fn new(body: Body, limit: usize, patience: Duration) -> Self {
        let rest = VecDeque::new();
        Self { body: body.into_data_stream(), rest, limit, patience, number: 0, searched: 0, ended: false }
    }

    /// Return the number of the last line that was read, not counting `next`.
    fn skipped_to(&self, next: Option<&ImportedLine>) -> u64 {
        next.map_or(self.number, |line| line.number - 1)
    }

    /// Return the next line that is not empty, or `None` at the end. Return an error when the body broke off, or when the
    /// line does not arrive in time. Empty lines in front of it do not prolong its time: otherwise a client that sends a
    /// byte now and then could keep its place among the imports for ever.
    async fn next(&mut self) -> Result<Option<ImportedLine>, Problem> {
        let mut deadline = None;
        // A line that is too long is read to its end and discarded.
        let mut forgotten = false;
        loop {
            let found = self.rest.iter().skip(self.searched).position(|byte| *byte == b'\n');
            let end = found.map(|at| at + self.searched);
            self.searched = self.rest.len();
            let text: Vec<u8> = match end {
                Some(end) => {
                    let text = self.rest.drain(..=end).take(end).collect();
                    self.searched = 0;
                    text
                }
                None if self.ended && self.rest.is_empty() && !forgotten => return Ok(None),
                None if self.ended => self.rest.drain(..).collect(),
                None => {
                    if self.rest.len() > self.limit {
                        forgotten = true;
                        self.rest.clear();
                        self.searched = 0;
                    }
                    self.read(*deadline.get_or_insert_with(|| Instant::now() + self.patience)).await?;
                    continue;
                }
            };
            self.number += 1;
            if forgotten || text.len() > self.limit {
                let detail = format!("the line is larger than {} bytes; TICKR_BODY_LIMIT sets this limit", self.limit);
                return Ok(Some(ImportedLine { number: self.number, text: Err(Problem::new(Code::TooLarge, detail)) }));
            }
            if text.iter().any(|byte| !byte.is_ascii_whitespace()) {
                return Ok(Some(ImportedLine { number: self.number, text: Ok(text) }));
            }
        }
    }

    /// Read on for a moment and discard the rest of the body: closing the connection while the client still sends would
    /// reset it, and the response would be lost.
    async fn forget_rest(&mut self, patience: Duration) {
        let _ = tokio::time::timeout(patience, self.discard_rest()).await;
    }

    /// Read and discard the rest of the body, up to a bound.
    async fn discard_rest(&mut self) {
        let mut most = MAX_FORGOTTEN_BYTES;
        while let (false, Some(Ok(bytes))) = (self.ended, self.body.next().await) {
            most = most.saturating_sub(bytes.len());
            self.ended = most == 0;
        }
    }

    /// Let the response to a refused import end once the body is discarded. A client that reads while it sends gets its
    /// text at once.
    fn forget_rest_behind(mut self, response: Response) -> Response {
        let rest = stream::once(async move {
            self.forget_rest(FORGETTING).await;
            Ok(Bytes::new())
        });
        response.map(|text| Body::from_stream(text.into_data_stream().chain(rest)))
    }

    fn timeout_problem(&self) -> Problem {
        let detail = format!("the next line did not arrive within {} s", self.patience.as_secs_f64());
        Problem::new(Code::RequestTimeout, detail)
    }

    async fn read(&mut self, deadline: Instant) -> Result<(), Problem> {
        let chunk = tokio::time::timeout_at(deadline, self.body.next()).await;
        match chunk.map_err(|_| self.timeout_problem())? {
            Some(Ok(bytes)) => self.rest.extend(bytes),
            Some(Err(_)) => return Err(Problem::new(Code::InvalidJson, "the body ended too early")),
            None => self.ended = true,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lines(chunks: &[&str], limit: usize) -> Vec<(u64, Result<String, Code>)> {
        let chunks: Vec<Result<Bytes, Infallible>> =
            chunks.iter().map(|chunk| Ok(Bytes::copy_from_slice(chunk.as_bytes()))).collect();
        let mut lines = LineReader::new(Body::from_stream(stream::iter(chunks)), limit, Duration::from_secs(9));
        let mut all = Vec::new();
        while let Some(ImportedLine { number, text }) = lines.next().await.unwrap() {
            all.push((number, text.map(|text| String::from_utf8(text).unwrap()).map_err(|problem| problem.code)));
        }
        all
    }

    #[test]
    fn a_stored_line_keeps_the_code_of_its_link_problem() {
        let (job, batch) = (tickr_job::JobId::new(), tickr_job::BatchId::new());
        for (problem, code) in [
            (LinkProblem::UnknownParent(job), Code::InvalidRequest),
            (LinkProblem::UnknownBatch(batch), Code::InvalidRequest),
            (LinkProblem::EndedBatch(batch), Code::WrongState),
            (LinkProblem::CancelledBatch(batch), Code::WrongState),
        ] {
            let (_, first) = link_refused(&(0, problem));
            // Versions that answer each such line with one code read this form.
            let stored = format!(r#"[[0,{{"Unlinked":"{}"}}]]"#, first.detail);
            let kept = serde_json::to_string(&[(0, StoredLine::Unlinked(first.detail))]).unwrap();
            assert_eq!(kept, stored);
            let again = import_lines(&[1], &kept, true).remove(0).problem.unwrap();
            assert_eq!((first.code, again.code), (code, code), "{problem}");
        }
    }

    #[tokio::test]
    async fn a_line_that_trickles_in_ends_its_import() {
        for trickled in ["x", "\n", " \n"] {
            let bytes = stream::unfold((), move |()| async move {
                tokio::time::sleep(Duration::from_millis(20)).await;
                Some((Ok::<_, Infallible>(Bytes::from_static(trickled.as_bytes())), ()))
            });
            let mut lines = LineReader::new(Body::from_stream(bytes), 1 << 20, Duration::from_millis(200));
            let ended = tokio::time::timeout(Duration::from_secs(30), lines.next()).await;
            let problem = ended.expect("the line ends").err().unwrap();
            assert_eq!(problem.code, Code::RequestTimeout, "{trickled:?}");
        }
    }

    #[tokio::test]
    async fn lines_are_the_same_however_they_arrive() {
        let text = "{}\n\n  \r\n[1]\r\n\"long long long\"\nlast";
        let expected = [(1, Ok("{}")), (4, Ok("[1]\r")), (5, Err(Code::TooLarge)), (6, Ok("last"))]
            .map(|(number, text)| (number, text.map(str::to_owned)));
        for size in 1..=text.len() {
            let chunks: Vec<&str> =
                (0..text.len()).step_by(size).map(|at| &text[at..(at + size).min(text.len())]).collect();
            assert_eq!(lines(&chunks, 10).await, expected, "{size}");
        }
        assert_eq!(lines(&[], 10).await, []);
        assert_eq!(lines(&["\n\n"], 10).await, []);
        assert_eq!(lines(&["0123456789"], 10).await, [(1, Ok("0123456789".to_owned()))]);
        assert_eq!(lines(&["01234567890"], 10).await, [(1, Err(Code::TooLarge))]);
    }
}
