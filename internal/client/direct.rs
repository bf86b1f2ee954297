//! Enqueue through a broker of this process: commit to MySQL, then hint to Redis.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::to_raw_value;

use super::declared::Declared;
use super::options::Body;
use super::{Conflict, Enqueued, Error};
use tickr_broker::{Broker, IdempotencyKey};
use tickr_handlers::Problem;
use tickr_job::{JobId, NewJob, Producer, TraceContext, limits};
use tickr_store::{
    Answer, EnqueueOutcome, EnqueueReceipts, EnqueueRefusal, EnqueuedJob, IdempotentOutcome, IdempotentRequest,
    KeyHolder, LinkProblem,
};

/// The caller of every client in Rust, for idempotency keys. They are apart from those of the API.
const CALLER: &[u8] = b"tickr::Client";
const ATTEMPTED: &str = "enqueue";
/// Most problems in one error.
const MAX_PROBLEMS: usize = 50;

/// The jobs of one request, and the way in which their problems are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestShape {
    One,
    Many,
    /// Many, each after the one before it.
    Chain,
}

impl RequestShape {
    fn prefix(self, place: usize) -> String {
        match self {
            Self::One => String::new(),
            Self::Many | Self::Chain => format!("/jobs/{place}"),
        }
    }

    /// Return the request that an idempotency key stands for: a chain is another one than the same jobs beside one another.
    const fn name(self) -> &'static str {
        match self {
            Self::One | Self::Many => ATTEMPTED,
            Self::Chain => "enqueue a chain",
        }
    }
}

/// Check the jobs as the API does, and accept all of them or none.
pub(super) async fn enqueue(
    broker: &Broker,
    declared: &Declared,
    bodies: Vec<Body>,
    shape: RequestShape,
    key: Option<&str>,
    trace: Option<&TraceContext>,
) -> Result<Vec<Enqueued>, Error> {
    let idempotent = idempotent_request(&bodies, shape, key)?;
    let prepared = prepare(broker, declared, &bodies, shape, trace);
    drop(bodies);
    let jobs = match prepared {
        Ok(jobs) => jobs,
        Err(refused) => return find_stored_answer(broker, idempotent, refused).await,
    };
    let producer = Producer::tickr();
    let Some(idempotent) = idempotent else {
        let outcome = broker.enqueue_unique(&producer, jobs).await;
        return match outcome.map_err(|e| Error::from_store(ATTEMPTED, &e))? {
            EnqueueOutcome::Accepted(receipts) => Ok(enqueued(answers(&receipts), false)),
            EnqueueOutcome::Refused(refusal) => Err(refused_by_store(&refusal, shape)),
        };
    };
    let build = |receipts: &EnqueueReceipts| Answer {
        status: 201,
        body: serde_json::to_string(&answers(receipts)).unwrap_or_default(),
    };
    let outcome = broker.enqueue_request(&producer, jobs, Some(idempotent), Arc::new(build)).await;
    match outcome.map_err(|e| Error::from_store(ATTEMPTED, &e))? {
        IdempotentOutcome::First { answer, .. } => read_stored_answer(&answer, false),
        IdempotentOutcome::Replayed(answer) => read_stored_answer(&answer, true),
        IdempotentOutcome::Refused(refusal) => Err(refused_by_store(&refusal, shape)),
        IdempotentOutcome::Conflict => Err(Error::Conflict(Conflict::IdempotencyKey)),
        IdempotentOutcome::Busy => Err(Error::Conflict(Conflict::InProgress)),
    }
}

/// Return the answer to an earlier call with this idempotency key, or else `refused`. Jobs that are refused now may have
/// been accepted before: a repetition may come after their expiry.
async fn find_stored_answer(
    broker: &Broker,
    idempotent: Option<IdempotentRequest>,
    refused: Error,
) -> Result<Vec<Enqueued>, Error> {
    let Some(idempotent) = idempotent else { return Err(refused) };
    let found = broker.store().find_response(idempotent).await;
    match found.map_err(|e| Error::from_store(ATTEMPTED, &e))? {
        Some(IdempotentOutcome::Replayed(answer)) => read_stored_answer(&answer, true),
        _ => Err(refused),
    }
}

/// Check a job as the API does.
pub(super) fn check(
    broker: &Broker,
    declared: &Declared,
    body: &Body,
    trace: Option<&TraceContext>,
) -> Result<(), Error> {
    prepare(broker, declared, std::slice::from_ref(body), RequestShape::One, trace).map(drop)
}

fn idempotent_request(
    bodies: &[Body],
    shape: RequestShape,
    key: Option<&str>,
) -> Result<Option<IdempotentRequest>, Error> {
    let Some(key) = key else { return Ok(None) };
    let refused = |detail: String| Error::refused(Problem::at("/idempotency_key", detail));
    let key = IdempotencyKey::new(CALLER, key.as_bytes()).map_err(|invalid| refused(invalid.to_string()))?;
    let text = to_raw_value(bodies).map_err(|error| refused(format!("the jobs cannot be written as JSON: {error}")))?;
    Ok(Some(key.request(shape.name(), Some(&text))))
}

fn prepare(
    broker: &Broker,
    declared: &Declared,
    bodies: &[Body],
    shape: RequestShape,
    trace: Option<&TraceContext>,
) -> Result<Vec<NewJob>, Error> {
    if bodies.len() > limits::MAX_BATCH {
        let detail = format!("must be at most {} jobs, not {}", limits::MAX_BATCH, bodies.len());
        return Err(Error::refused(Problem::at("/jobs", detail)));
    }
    let mut jobs = Vec::with_capacity(bodies.len());
    let mut refused: Option<Error> = None;
    for (place, body) in bodies.iter().enumerate() {
        let prefix = shape.prefix(place);
        let mut draft = body.draft(trace);
        let is_behind = shape == RequestShape::Chain && place > 0;
        if is_behind {
            // Behind a job that is not valid any id will do, because the request is refused.
            draft.after.push(jobs.last().map_or_else(JobId::new, |before: &NewJob| before.id));
        }
        let checked = body.check_size(&prefix).and_then(|()| {
            let job = match declared.get(broker, &draft.kind) {
                Some(kind) => broker.prepare_as(draft, &kind),
                None => broker.prepare(draft),
            };
            let job = job.map_err(|invalid| Error::invalid(&prefix, invalid))?;
            match job.on_conflict.problem_in_chain().filter(|_| is_behind && job.unique_key.is_some()) {
                Some(why) => Err(Error::refused(Problem::at(format!("{prefix}/unique_key"), why))),
                None => Ok(job),
            }
        });
        match (checked, &mut refused) {
            (Ok(job), _) => jobs.push(job),
            (Err(error), None) => refused = Some(error),
            (Err(error), Some(Error::Refused { problems, .. })) => {
                let room = MAX_PROBLEMS.saturating_sub(problems.len());
                problems.extend(error.problems().iter().take(room).cloned());
            }
            (Err(_), Some(_)) => {}
        }
    }
    refused.map_or(Ok(jobs), Err)
}

fn refused_by_store(refusal: &EnqueueRefusal, shape: RequestShape) -> Error {
    match refusal {
        EnqueueRefusal::KeysTaken(holders) => key_conflict(holders),
        EnqueueRefusal::Links(problems) => links_refused(problems, shape),
    }
}

fn key_conflict(holders: &[(usize, KeyHolder)]) -> Error {
    let conflict = holders.first().map_or(Conflict::InProgress, |(_, holder)| Conflict::UniqueKey {
        holder: holder.id,
        state: Some(holder.state),
    });
    Error::Conflict(conflict)
}

fn links_refused(problems: &[(usize, LinkProblem)], shape: RequestShape) -> Error {
    let problems = problems.iter().take(MAX_PROBLEMS).map(|(place, problem)| {
        let field = if matches!(problem, LinkProblem::UnknownParent(_)) { "after" } else { "batch" };
        Problem::at(format!("{}/{field}", shape.prefix(*place)), problem.to_string())
    });
    Error::Refused {
        detail: "a parent or the batch does not exist, or the batch has ended".to_owned(),
        problems: problems.collect(),
        source: None,
    }
}

/// The answer for one job, as it is stored for a repetition.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Receipt {
    id: JobId,
    #[serde(default)]
    existing: bool,
}

impl Receipt {
    pub(super) fn into_enqueued(self, repeated: bool) -> Enqueued {
        Enqueued { id: self.id, existing: self.existing, repeated }
    }
}

fn answers(receipts: &EnqueueReceipts) -> Vec<Receipt> {
    let answer = |placed: &EnqueuedJob| match placed {
        EnqueuedJob::New(accepted) => Receipt { id: accepted.id, existing: false },
        EnqueuedJob::Existing(holder) => Receipt { id: holder.id, existing: true },
    };
    receipts.jobs.iter().map(answer).collect()
}

fn read_stored_answer(answer: &Answer, repeated: bool) -> Result<Vec<Enqueued>, Error> {
    let receipts: Vec<Receipt> = serde_json::from_str(&answer.body)
        .map_err(|error| Error::Setup { attempted: "read the stored answer", source: Box::new(error) })?;
    Ok(enqueued(receipts, repeated))
}

fn enqueued(receipts: Vec<Receipt>, repeated: bool) -> Vec<Enqueued> {
    receipts.into_iter().map(|it| it.into_enqueued(repeated)).collect()
}
