//! `/v1/jobs/{id}/explain`: the reasons why a job does not run.

use std::collections::BTreeSet;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use chrono::TimeDelta;
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::body::IdPath;
use crate::http::problem::Problem;
use crate::view::Moment;
use crate::{Api, json};
use tickr_index::Health;
use tickr_job::{Bounds, Job, JobId, OnParentFailure, RunnerId, State as JobState, Timestamp};
use tickr_store::{
    LimitSetting, OrderPlace, ParentProgress, ParkedAt, QueuePosition, QueueSetting, RunnerSeen, SUSPECT_FROM,
};

/// A job that has been due for less time than this is still on its way to a worker.
const ON_ITS_WAY: TimeDelta = TimeDelta::seconds(2);

/// The reasons why a job does not run, in the order in which they must be removed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Explanation {
    #[schema(value_type = crate::view::StateWord)]
    state: JobState,
    /// Text of the first reason.
    summary: String,
    /// All reasons.
    reasons: Vec<Reason>,
    /// Time of this reading, by the clock of the database.
    #[schema(value_type = String, format = DateTime)]
    at: Moment,
}

/// A reason why a job does not run.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct Reason {
    code: ReasonCode,
    /// The reason in words, for people.
    text: String,
}

/// The codes of reasons. Stable, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ReasonCode {
    /// The job has ended.
    Ended,
    /// The job is executing.
    Executing,
    /// The job is executing and was asked to stop.
    CancelRequested,
    /// The runner has not renewed the lease of the job: the attempt will be recorded as lost.
    LeaseOver,
    /// A parent of the job has not completed.
    WaitsForParents,
    /// A job in front of it with the same order key has not ended, or failed and blocks the key.
    BehindKey,
    /// Calls to the host of the job failed in a row, so its breaker is open.
    BreakerOpen,
    /// A limit by key has no room for the job.
    LimitReached,
    /// The job is not due yet.
    NotDue,
    /// The last attempt did not succeed; the job waits for the next one.
    Retrying,
    /// The queue is paused.
    QueuePaused,
    /// No runner is alive.
    NoRunner,
    /// No living runner serves the queue.
    QueueNotServed,
    /// No living runner that serves the queue has the kind, in a version that can read the job.
    KindUnknown,
    /// Every living runner that could run the job is drained: it takes no new work.
    RunnersDraining,
    /// The queue has reached its limit of running jobs.
    QueueFull,
    /// All workers of the runners that could run the job are busy.
    WorkersBusy,
    /// The last two runners of the job died while it ran. It is a suspect and runs in a process of its own, when a
    /// runner has a worker for that process.
    RunsAlone,
    /// Other jobs of the queue were due earlier.
    Behind,
    /// Redis does not answer, so runners read due jobs from MySQL a few times a second.
    IndexDegraded,
    /// Nothing prevents the job from running.
    OnItsWay,
    /// The job is overdue, and tickr knows of nothing that prevents it from running.
    Overdue,
}

/// Most runners that are read for one explanation.
const MAX_RUNNERS: u32 = 1_000;

/// The data that an explanation is made from.
struct Evidence<'a> {
    job: &'a Job,
    at: Timestamp,
    standing: Option<QueuePosition>,
    place: Option<OrderPlace>,
    /// The limit for which the job waits, and its values for the key of the job.
    parked: Option<(ParkedAt, AtLimit)>,
    parents: Option<ParentProgress>,
    queue: Option<&'a QueueSetting>,
    permits: u32,
    runners: Runners<'a>,
    health: Health,
}

/// What a limit says about one key. A limit that was removed says nothing.
#[derive(Default)]
struct AtLimit {
    bounds: Bounds,
    /// The key shares the workers with others.
    fair: bool,
}

/// The living runners, in narrowing sets.
struct Runners<'a> {
    living: Vec<&'a RunnerSeen>,
    /// Those that serve the queue of the job.
    serving: Vec<&'a RunnerSeen>,
    /// Those that also have its kind.
    knowing: Vec<&'a RunnerSeen>,
    /// Those whose version has not given the job back because it could not read it.
    able: Vec<&'a RunnerSeen>,
    /// Those that also take new work.
    willing: Vec<&'a RunnerSeen>,
    /// Processes that run one suspect. Such a process serves no queue, and keeps one worker of its parent runner busy.
    children: Vec<&'a RunnerSeen>,
    /// There may be more runners than were read. Then nothing is said of what all of them lack.
    are_more: bool,
}

impl<'a> Runners<'a> {
    /// Those in `refused` have a version that cannot read the job.
    fn new(job: &Job, all: &'a [RunnerSeen], refused: &BTreeSet<RunnerId>) -> Self {
        let alive = |runner: &&RunnerSeen| runner.stopped_at.is_none() && !runner.is_silent();
        let (children, living): (Vec<_>, Vec<_>) = all.iter().filter(alive).partition(|runner| runner.parent.is_some());
        let serving: Vec<_> = living.iter().copied().filter(|runner| runner.queues.contains(&job.queue)).collect();
        let knowing: Vec<_> = serving.iter().copied().filter(|runner| runner.kinds.contains(&job.kind)).collect();
        let able: Vec<_> = knowing.iter().copied().filter(|runner| !refused.contains(&runner.id)).collect();
        let willing = able.iter().copied().filter(|runner| runner.takes_jobs()).collect();
        let are_more = all.len() >= MAX_RUNNERS as usize;
        Self { living, serving, knowing, able, willing, children, are_more }
    }

    /// Return the workers of the willing runners, and how many of them are busy.
    fn workers(&self) -> (u32, u32) {
        let theirs = |child: &&&RunnerSeen| self.willing.iter().any(|runner| child.parent.as_ref() == Some(&runner.id));
        let busy = self.willing.iter().chain(self.children.iter().filter(theirs)).map(|runner| runner.busy_workers);
        (self.willing.iter().map(|runner| runner.workers).sum(), busy.sum())
    }
}

impl Evidence<'_> {
    /// Return how long ago a moment was.
    fn since(&self, moment: Timestamp) -> String {
        duration_text(self.at - moment)
    }

    fn due_in(&self) -> TimeDelta {
        self.job.execute_at - self.at
    }

    fn is_due(&self) -> bool {
        self.due_in() <= TimeDelta::zero()
    }

    /// Return the last error of the job, to be put behind a sentence.
    fn last_error(&self) -> String {
        self.job.last_error.as_deref().map(|error| format!(": {}", cut(error))).unwrap_or_default()
    }
}

/// The jobs to which a reason can apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Ended,
    Executing,
    /// Jobs without an open attempt.
    Waiting,
    /// Waiting jobs that are due and not held. It is not known now whether these reasons will apply to others at their
    /// due time.
    Startable,
}

impl Stage {
    fn has(self, evidence: &Evidence<'_>) -> bool {
        let job = evidence.job;
        let waits = !job.state.is_end() && job.state != JobState::Executing;
        match self {
            Self::Ended => job.state.is_end(),
            Self::Executing => job.state == JobState::Executing,
            Self::Waiting => waits,
            Self::Startable => waits && evidence.is_due() && !job.held,
        }
    }
}

/// Return the text of a reason if it applies.
type Rule = fn(&Evidence<'_>) -> Option<String>;

/// Every reason but the two of [`without_reason`], in the order in which they must be removed.
const REASONS: &[(ReasonCode, Stage, Rule)] = &[
    (ReasonCode::Ended, Stage::Ended, ended),
    (ReasonCode::Executing, Stage::Executing, executing),
    (ReasonCode::CancelRequested, Stage::Executing, cancel_requested),
    (ReasonCode::LeaseOver, Stage::Executing, lease_over),
    (ReasonCode::BreakerOpen, Stage::Waiting, breaker_open),
    (ReasonCode::LimitReached, Stage::Waiting, limit_reached),
    (ReasonCode::WaitsForParents, Stage::Waiting, waits_for_parents),
    (ReasonCode::BehindKey, Stage::Waiting, behind_key),
    (ReasonCode::Retrying, Stage::Waiting, retrying),
    (ReasonCode::NotDue, Stage::Waiting, not_due),
    (ReasonCode::QueuePaused, Stage::Waiting, queue_paused),
    (ReasonCode::NoRunner, Stage::Waiting, no_runner),
    (ReasonCode::QueueNotServed, Stage::Waiting, queue_not_served),
    (ReasonCode::KindUnknown, Stage::Waiting, kind_unknown),
    (ReasonCode::RunnersDraining, Stage::Waiting, runners_draining),
    (ReasonCode::QueueFull, Stage::Startable, queue_full),
    (ReasonCode::WorkersBusy, Stage::Startable, workers_busy),
    (ReasonCode::RunsAlone, Stage::Startable, runs_alone),
    (ReasonCode::Behind, Stage::Startable, behind),
    (ReasonCode::IndexDegraded, Stage::Startable, index_degraded),
];

fn explain(evidence: &Evidence<'_>) -> Vec<Reason> {
    let applying = REASONS.iter().filter(|(_, stage, _)| stage.has(evidence));
    let mut reasons: Vec<Reason> =
        applying.filter_map(|&(code, _, text)| text(evidence).map(|text| Reason { code, text })).collect();
    // A retry that is due is no reason by itself.
    if Stage::Startable.has(evidence) && reasons.iter().all(|reason| reason.code == ReasonCode::Retrying) {
        reasons.push(without_reason(evidence));
    }
    reasons
}

fn ended(evidence: &Evidence<'_>) -> Option<String> {
    let job = evidence.job;
    let when = job.finished_at.map(|at| format!(" {} ago", evidence.since(at))).unwrap_or_default();
    let why = if job.state == JobState::Completed { String::new() } else { evidence.last_error() };
    Some(format!("{}{when} after {}{why}", job.state, attempts(job.attempt)))
}

fn executing(evidence: &Evidence<'_>) -> Option<String> {
    let job = evidence.job;
    let since = job.started_at.map(|at| format!(" for {}", evidence.since(at))).unwrap_or_default();
    let elsewhere = job.deferred_until.map(|until| {
        let left = duration_text((until - evidence.at).max(TimeDelta::zero()));
        format!("; another system works on it, and must report or finish within {left}")
    });
    let elsewhere = elsewhere.unwrap_or_default();
    Some(format!("running{since}, attempt {} of {}{elsewhere}", job.attempt, job.max_attempts))
}

fn cancel_requested(evidence: &Evidence<'_>) -> Option<String> {
    let at = evidence.job.cancel_requested_at?;
    Some(format!("it was asked to stop {} ago and has not ended yet", evidence.since(at)))
}

fn lease_over(evidence: &Evidence<'_>) -> Option<String> {
    let until = evidence.standing?.lease_until.filter(|until| *until < evidence.at)?;
    Some(format!(
        "its runner has not renewed the lease, which ended {} ago: if the runner is dead, the attempt is recorded as lost within 5 s",
        evidence.since(until)
    ))
}

/// Say since when the breaker of the host is open, and when it is tried again.
fn breaker_open(evidence: &Evidence<'_>) -> Option<String> {
    let (ParkedAt { key, breaker, .. }, _) = evidence.parked.as_ref()?;
    let breaker = breaker.as_ref()?;
    let (opened_at, next_call_at) = (breaker.opened_at?, breaker.next_call_at?);
    let next = if breaker.half_open {
        "its pause is over, and the next call decides".to_owned()
    } else {
        format!("the next call may start in {}", duration_text(next_call_at - evidence.at))
    };
    let error = breaker.last_error.as_deref().map(|error| format!("; the last error: {}", cut(error)));
    Some(format!(
        "the limit {} holds back calls to {}: its breaker opened {} ago, and {} calls in a row failed; {next}{}",
        key.limit,
        cut(&key.key),
        evidence.since(opened_at),
        breaker.failures,
        error.unwrap_or_default()
    ))
}

/// Say which limit has no room, and which jobs use it.
fn limit_reached(evidence: &Evidence<'_>) -> Option<String> {
    let (ParkedAt { key, ahead, holders, running, breaker }, AtLimit { bounds, fair }) = evidence.parked.as_ref()?;
    if breaker.as_ref().is_some_and(|breaker| breaker.opened_at.is_some()) {
        return None;
    }
    let of_key = if key.key.is_empty() { String::new() } else { format!(" for the key {}", cut(&key.key)) };
    let some: Vec<String> = holders.iter().map(ToString::to_string).collect();
    let which = if some.is_empty() { String::new() } else { format!(" (such as {})", some.join(", ")) };
    let concurrency = match bounds.concurrency {
        // Each runner computes the share anew every second, so no number is told.
        most if *fair && most.is_none_or(|most| *running < most) => {
            Some(format!("its share of the workers is used: {running} run or are about to start{which}"))
        }
        most => most.map(|most| format!("{running} of {most} run or are about to start{which}")),
    };
    let rate = bounds.rate.map(|rate| {
        format!("{} may start in {}", rate.starts, duration_text(TimeDelta::milliseconds(rate.period_ms.into())))
    });
    let bounds: Vec<String> = concurrency.into_iter().chain(rate).collect();
    let bounds = if bounds.is_empty() { "it was changed a moment ago".to_owned() } else { bounds.join("; ") };
    Some(format!(
        "the limit {} has no room{of_key}: {bounds}; {ahead} jobs that were due earlier wait for it",
        key.limit
    ))
}

/// Say which parents have not completed.
fn waits_for_parents(evidence: &Evidence<'_>) -> Option<String> {
    let ParentProgress { parents, open, waits_for } = evidence.parents.as_ref()?;
    let standing = |(id, state): &(JobId, Option<JobState>)| match state {
        Some(state) => format!("{id} is {state}"),
        None => format!("{id} was removed"),
    };
    let some: Vec<String> = waits_for.iter().take(5).map(standing).collect();
    let more = if (*open as usize) > some.len() { ", …" } else { "" };
    let is_removed = waits_for.iter().any(|(_, state)| state.is_none());
    let failed = waits_for.iter().any(|(_, state)| matches!(state, Some(JobState::Failed | JobState::Cancelled)));
    let advice = match (evidence.job.options.on_parent_failure, failed) {
        // A parent that was removed cannot be retried.
        _ if is_removed => "; cancel this job",
        (OnParentFailure::Hold, true) => "; retry the failed parent, or cancel this job",
        _ => "",
    };
    let whom = if *parents == 1 { "its parent".to_owned() } else { format!("{open} of {parents} parents") };
    Some(format!("it waits for {whom}: {}{more}{advice}", some.join(", ")))
}

/// Say which jobs with the same order key are in front.
fn behind_key(evidence: &Evidence<'_>) -> Option<String> {
    if !evidence.job.held || evidence.parked.is_some() || evidence.parents.is_some() {
        return None;
    }
    let Some((place, (head, state))) = evidence.place.as_ref().and_then(|place| Some((place, place.head?))) else {
        return Some("a job in front of it with the same order key ended a moment ago".to_owned());
    };
    let more = if place.more_ahead { "at least " } else { "" };
    let jobs = if place.ahead == 1 { "1 job".to_owned() } else { format!("{} jobs", place.ahead) };
    let first = match state {
        JobState::Failed => {
            format!("job {head} failed and blocks the key: retry, replay, discard or delete it")
        }
        state => format!("the first is job {head}, which is {state}"),
    };
    Some(format!("{more}{jobs} with the same order key must end before it; {first}"))
}

fn retrying(evidence: &Evidence<'_>) -> Option<String> {
    let job = evidence.job;
    let when = if evidence.is_due() { "now".to_owned() } else { format!("in {}", duration_text(evidence.due_in())) };
    (job.state == JobState::Retrying).then(|| {
        let (number, most, error) = (job.attempt, job.max_attempts, evidence.last_error());
        format!("attempt {number} of {most} did not succeed{error}; the next is due {when}")
    })
}

fn not_due(evidence: &Evidence<'_>) -> Option<String> {
    let applies = evidence.job.state != JobState::Retrying && !evidence.is_due();
    applies.then(|| format!("it is due in {}", duration_text(evidence.due_in())))
}

fn queue_paused(evidence: &Evidence<'_>) -> Option<String> {
    let pause = evidence.queue?.pause.as_ref()?;
    let reason = pause.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let (queue, since) = (&evidence.job.queue, evidence.since(pause.at));
    Some(format!("queue {queue} has been paused for {since} by {}{reason}", pause.by))
}

fn no_runner(evidence: &Evidence<'_>) -> Option<String> {
    evidence.runners.living.is_empty().then(|| "no runner is alive".to_owned())
}

fn queue_not_served(Evidence { job, runners, .. }: &Evidence<'_>) -> Option<String> {
    match runners.living.len() {
        0 => None,
        _ if !runners.serving.is_empty() => None,
        _ if runners.are_more => Some(format!("no living runner serves the queue {}", job.queue)),
        1 => Some(format!("the only living runner does not serve the queue {}", job.queue)),
        count => Some(format!("none of the {count} living runners serves the queue {}", job.queue)),
    }
}

fn kind_unknown(Evidence { job, runners, .. }: &Evidence<'_>) -> Option<String> {
    let (queue, kind) = (&job.queue, &job.kind);
    match runners.serving.len() {
        0 => None,
        _ if !runners.able.is_empty() || runners.are_more => None,
        _ if !runners.knowing.is_empty() => {
            Some(format!("no living runner that serves {queue} has a version of the kind {kind} that can read the job"))
        }
        1 => Some(format!("the only living runner that serves {queue} does not have the kind {kind}")),
        count => Some(format!("none of the {count} living runners that serve {queue} has the kind {kind}")),
    }
}

fn runners_draining(evidence: &Evidence<'_>) -> Option<String> {
    let Runners { able, willing, are_more, .. } = &evidence.runners;
    let drain = able.first().and_then(|runner| runner.drain.as_ref()).filter(|_| willing.is_empty() && !are_more)?;
    let reason = drain.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let (when, by) = (evidence.since(drain.at), &drain.by);
    Some(match able.len() {
        1 => format!(
            "the only living runner that could run it was drained {when} ago by {by} and takes no new work{reason}"
        ),
        count => format!(
            "all {count} living runners that could run it are drained and take no new work; one was drained {when} ago by {by}{reason}"
        ),
    })
}

fn queue_full(evidence: &Evidence<'_>) -> Option<String> {
    let limit = evidence.queue?.concurrency.filter(|limit| evidence.permits >= *limit)?;
    let (permits, queue) = (evidence.permits, &evidence.job.queue);
    Some(format!("{permits} jobs of the queue {queue} run or are about to start, and its limit is {limit}"))
}

fn workers_busy(Evidence { runners, .. }: &Evidence<'_>) -> Option<String> {
    let (workers, busy) = runners.workers();
    let count = runners.willing.len();
    (count > 0 && busy >= workers && !runners.are_more)
        .then(|| format!("all {workers} workers of the {count} runners that could run it are busy"))
}

fn runs_alone(evidence: &Evidence<'_>) -> Option<String> {
    let losses = evidence.standing?.losses;
    let able = &evidence.runners.able;
    (losses >= SUSPECT_FROM).then(|| {
        let how = if !able.is_empty() && able.iter().all(|runner| runner.is_remote) {
            "it runs alone, when a remote worker holds no other job"
        } else {
            "it runs in a process of its own, when a runner has a free worker for that process"
        };
        format!("its last {losses} runners died while it ran: {how}")
    })
}

fn behind(evidence: &Evidence<'_>) -> Option<String> {
    let standing = evidence.standing.filter(|standing| standing.ahead > 0)?;
    let more = if standing.more_ahead { "at least " } else { "" };
    Some(format!("{more}{} jobs of its queue were due before it", standing.ahead))
}

fn index_degraded(evidence: &Evidence<'_>) -> Option<String> {
    (evidence.health == Health::Degraded)
        .then(|| "Redis does not answer: runners read due jobs from MySQL a few times a second".to_owned())
}

/// Return the reason for a job that nothing prevents from running.
fn without_reason(evidence: &Evidence<'_>) -> Reason {
    let late = duration_text(-evidence.due_in());
    if -evidence.due_in() > ON_ITS_WAY {
        let text = format!(
            "it has been due for {late}, and tickr knows of nothing that prevents it from running; `tickr verify` checks more"
        );
        return Reason { code: ReasonCode::Overdue, text };
    }
    Reason { code: ReasonCode::OnItsWay, text: format!("it has been due for {late} and is on its way to a worker") }
}

/// Format a length of time in one or two units.
fn duration_text(length: TimeDelta) -> String {
    let ms = length.num_milliseconds().max(0);
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..120_000 => format!("{} s", ms / 1_000),
        120_000..7_200_000 => format!("{} m", ms / 60_000),
        7_200_000..172_800_000 => format!("{} h {} m", ms / 3_600_000, ms / 60_000 % 60),
        _ => format!("{} d", ms / 86_400_000),
    }
}

fn attempts(count: u32) -> String {
    if count == 1 { "one attempt".to_owned() } else { format!("{count} attempts") }
}

/// Cut an error to the length of one line.
fn cut(error: &str) -> String {
    let line: String = error.chars().take(200).collect();
    if line.len() < error.len() { format!("{line}…") } else { line }
}

/// Explain why a job does not run
///
/// The reasons are in the order in which they must pass or be removed.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/explain", tag = "jobs", operation_id = "explain_job",
    params(("id" = Uuid, Path, description = "The job's id")),
    responses(
        (status = 200, description = "The reasons", body = Explanation),
        (status = 404, description = "not_found", body = Problem),
        (status = 422, description = "invalid_id", body = Problem),
    )
)]
pub(crate) async fn show(State(api): State<Api>, IdPath(id): IdPath) -> Result<Response, Problem> {
    let store = api.broker.store();
    let Some((job, _)) = store.job(id).await? else { return Err(Problem::not_found("job", id)) };
    let standing = store.queue_position(id).await?;
    let parked = if job.held { store.parked_at(id).await? } else { None };
    let parked = match parked {
        Some(parked) => {
            let set = store.listed_limits().await?.into_iter().find(|set| set.limit.name == parked.key.limit);
            let of_key =
                |set: LimitSetting| AtLimit { bounds: set.limit.bounds_of(&parked.key.key), fair: set.limit.fair };
            let at_limit = set.map(of_key).unwrap_or_default();
            Some((parked, at_limit))
        }
        None => None,
    };
    let parents = if job.held && !job.options.after.is_empty() { Some(store.parent_progress(id).await?) } else { None };
    // A job may be parked once its parents have ended.
    let parents = parents.filter(|parents| parked.is_none() && parents.open > 0);
    let place = if job.held && parked.is_none() { store.order_place(id).await? } else { None };
    let queue = store.listed_queues().await?.into_iter().find(|queue| queue.name == job.queue);
    let permits = match &queue {
        Some(queue) if queue.concurrency.is_some() => {
            store.permits().await?.get(job.queue.as_str()).copied().unwrap_or(0)
        }
        _ => 0,
    };
    let mut runners = store.runners_of_queue(&job.queue, MAX_RUNNERS).await?;
    if runners.iter().all(|runner| runner.parent.is_some() || runner.is_silent()) {
        // The others say whether any runner is alive.
        runners = store.runners(MAX_RUNNERS).await?;
    }
    let refused = if job.state.is_end() { BTreeSet::new() } else { store.runners_that_refused(id, &job.kind).await? };
    let at = standing.map_or_else(|| store.clock().now(), |standing| standing.at);
    let health = api.index.health().now();
    let reasons = explain(&Evidence {
        job: &job,
        at,
        standing,
        place,
        parked,
        parents,
        queue: queue.as_ref(),
        permits,
        runners: Runners::new(&job, &runners, &refused),
        health,
    });
    let summary = reasons.first().map(|reason| reason.text.clone()).unwrap_or_default();
    Ok(json(StatusCode::OK, Explanation { state: job.state, summary, reasons, at: Moment(at) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_one_rule_and_every_rule_comes_after_those_of_earlier_stages() {
        let mut codes: Vec<String> = REASONS.iter().map(|(code, ..)| format!("{code:?}")).collect();
        codes.extend([ReasonCode::Overdue, ReasonCode::OnItsWay].map(|code| format!("{code:?}")));
        let schema = serde_json::to_value(<ReasonCode as utoipa::PartialSchema>::schema()).unwrap();
        let count = schema["enum"].as_array().or_else(|| schema["oneOf"].as_array()).map_or(0, Vec::len);
        assert_eq!(codes.len(), count, "{schema}");
        codes.sort();
        codes.dedup();
        assert_eq!(codes.len(), count);
        let stages: Vec<u8> = REASONS.iter().map(|(_, stage, _)| *stage as u8).collect();
        assert!(stages.is_sorted(), "{stages:?}");
    }

    #[test]
    fn lengths_are_said_in_one_or_two_units() {
        let cases = [
            (0, "0 ms"),
            (999, "999 ms"),
            (61_000, "61 s"),
            (240_000, "4 m"),
            (9_000_000, "2 h 30 m"),
            (864_000_000, "10 d"),
        ];
        for (ms, text) in cases {
            assert_eq!(duration_text(TimeDelta::milliseconds(ms)), text);
        }
        assert_eq!(cut(&"é".repeat(300)).chars().count(), 201);
    }
}
