//! `/v1/jobs/{id}/explain`: the reasons why a job does not run.

use std::time::Duration;

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
use tickr_job::{Bounds, Job, State as JobState, Timestamp};
use tickr_store::{OrderPlace, ParkedAt, QueuePosition, QueueSetting, RunnerSeen, SUSPECT_FROM};

/// A runner without a heartbeat for this long counts as dead until its next heartbeat.
const SILENT: Duration = Duration::from_secs(60);
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
    /// A job in front of it with the same order key has not ended, or failed and blocks the key.
    BehindKey,
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
    /// No living runner that serves the queue has the kind.
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

/// The data that an explanation is made from.
struct Evidence<'a> {
    job: &'a Job,
    at: Timestamp,
    standing: Option<QueuePosition>,
    place: Option<OrderPlace>,
    parked: Option<(ParkedAt, Bounds)>,
    queue: Option<&'a QueueSetting>,
    permits: u32,
    runners: &'a [RunnerSeen],
    health: Health,
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

/// Say which jobs with the same order key are in front.
fn behind_text(place: Option<&OrderPlace>) -> String {
    let Some((place, (head, state))) = place.and_then(|place| Some((place, place.head?))) else {
        return "a job in front of it with the same order key ended a moment ago".to_owned();
    };
    let more = if place.more_ahead { "at least " } else { "" };
    let jobs = if place.ahead == 1 { "1 job".to_owned() } else { format!("{} jobs", place.ahead) };
    let first = match state {
        JobState::Failed => {
            format!("job {head} failed and blocks the key: retry, replay, discard or delete it")
        }
        state => format!("the first is job {head}, which is {state}"),
    };
    format!("{more}{jobs} with the same order key must end before it; {first}")
}

/// Say which limit has no room, and which jobs use it.
fn limit_text(ParkedAt { key, ahead, holders, running }: &ParkedAt, bounds: Bounds) -> String {
    let of_key = if key.key.is_empty() { String::new() } else { format!(" for the key {}", cut(&key.key)) };
    let concurrency = bounds.concurrency.map(|most| {
        let some: Vec<String> = holders.iter().map(ToString::to_string).collect();
        let which = if some.is_empty() { String::new() } else { format!(" (such as {})", some.join(", ")) };
        format!("{running} of {most} run or are about to start{which}")
    });
    let rate = bounds.rate.map(|rate| {
        format!("{} may start in {}", rate.starts, duration_text(TimeDelta::milliseconds(rate.period_ms.into())))
    });
    let bounds: Vec<String> = concurrency.into_iter().chain(rate).collect();
    let bounds = if bounds.is_empty() { "it was changed a moment ago".to_owned() } else { bounds.join("; ") };
    format!("the limit {} has no room{of_key}: {bounds}; {ahead} jobs that were due earlier wait for it", key.limit)
}

fn explain(evidence: &Evidence<'_>) -> Vec<Reason> {
    let job = evidence.job;
    let mut reasons = Vec::new();
    let mut because = |code, text: String| reasons.push(Reason { code, text });
    let last_error = job.last_error.as_deref().map(|error| format!(": {}", cut(error))).unwrap_or_default();
    if job.state.is_end() {
        let when = job.finished_at.map(|at| format!(" {} ago", duration_text(evidence.at - at))).unwrap_or_default();
        let why = if job.state == JobState::Completed { String::new() } else { last_error };
        because(ReasonCode::Ended, format!("it ended as {}{when}, after {}{why}", job.state, attempts(job.attempt)));
        return reasons;
    }
    if job.state == JobState::Executing {
        let since = job.started_at.map(|at| format!(" for {}", duration_text(evidence.at - at))).unwrap_or_default();
        because(ReasonCode::Executing, format!("it runs{since}, attempt {} of {}", job.attempt, job.max_attempts));
        if let Some(at) = job.cancel_requested_at {
            let text = format!("it was asked to stop {} ago and has not ended yet", duration_text(evidence.at - at));
            because(ReasonCode::CancelRequested, text);
        }
        let over = evidence.standing.and_then(|standing| standing.lease_until).filter(|until| *until < evidence.at);
        if let Some(until) = over {
            let text = format!(
                "its runner has not renewed the lease, which ended {} ago: if the runner is dead, the attempt is recorded as lost within 5 s",
                duration_text(evidence.at - until)
            );
            because(ReasonCode::LeaseOver, text);
        }
        return reasons;
    }
    match &evidence.parked {
        Some((parked, bounds)) => because(ReasonCode::LimitReached, limit_text(parked, *bounds)),
        None if job.held => because(ReasonCode::BehindKey, behind_text(evidence.place.as_ref())),
        None => {}
    }
    let due_in = job.execute_at - evidence.at;
    let due = due_in <= TimeDelta::zero();
    if job.state == JobState::Retrying {
        let when = if due { "now".to_owned() } else { format!("in {}", duration_text(due_in)) };
        let text = format!(
            "attempt {} of {} did not succeed{last_error}; the next is due {when}",
            job.attempt, job.max_attempts
        );
        because(ReasonCode::Retrying, text);
    } else if !due {
        because(ReasonCode::NotDue, format!("it is due in {}", duration_text(due_in)));
    }
    if let Some(pause) = evidence.queue.and_then(|queue| queue.pause.as_ref()) {
        let reason = pause.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
        let text = format!(
            "queue {} has been paused for {} by {}{reason}",
            job.queue,
            duration_text(evidence.at - pause.at),
            pause.by
        );
        because(ReasonCode::QueuePaused, text);
    }
    let living: Vec<&RunnerSeen> =
        evidence.runners.iter().filter(|runner| runner.stopped_at.is_none() && runner.heartbeat_age < SILENT).collect();
    // A process that runs one suspect serves no queue, and keeps one worker of its parent runner busy.
    let (children, living): (Vec<&RunnerSeen>, Vec<&RunnerSeen>) =
        living.into_iter().partition(|runner| runner.parent.is_some());
    let serving: Vec<&RunnerSeen> =
        living.iter().filter(|runner| runner.queues.contains(&job.queue)).copied().collect();
    let able: Vec<&RunnerSeen> = serving.iter().filter(|runner| runner.kinds.contains(&job.kind)).copied().collect();
    if living.is_empty() {
        because(ReasonCode::NoRunner, "no runner is alive".to_owned());
    } else if serving.is_empty() {
        let text = match living.len() {
            1 => format!("the only living runner does not serve the queue {}", job.queue),
            count => format!("none of the {count} living runners serves the queue {}", job.queue),
        };
        because(ReasonCode::QueueNotServed, text);
    } else if able.is_empty() {
        let text = match serving.len() {
            1 => format!("the only living runner that serves {} does not have the kind {}", job.queue, job.kind),
            count => format!("none of the {count} living runners that serve {} has the kind {}", job.queue, job.kind),
        };
        because(ReasonCode::KindUnknown, text);
    }
    let willing: Vec<&RunnerSeen> = able.iter().filter(|runner| runner.takes_jobs()).copied().collect();
    if let Some(drain) = able.first().and_then(|runner| runner.drain.as_ref()).filter(|_| willing.is_empty()) {
        let reason = drain.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
        let (when, by) = (duration_text(evidence.at - drain.at), &drain.by);
        let text = match able.len() {
            1 => format!(
                "the only living runner that could run it was drained {when} ago by {by} and takes no new work{reason}"
            ),
            count => format!(
                "all {count} living runners that could run it are drained and take no new work; one was drained {when} ago by {by}{reason}"
            ),
        };
        because(ReasonCode::RunnersDraining, text);
    }
    if !due || job.held {
        // Whether other reasons will apply at the due time is not known now.
        return reasons;
    }
    if let Some(limit) = evidence.queue.and_then(|queue| queue.concurrency).filter(|limit| evidence.permits >= *limit) {
        let text = format!(
            "{} jobs of the queue {} run or are about to start, and its limit is {limit}",
            evidence.permits, job.queue
        );
        because(ReasonCode::QueueFull, text);
    }
    let workers = willing.iter().map(|runner| runner.workers).sum::<u32>();
    let theirs = |child: &&&RunnerSeen| willing.iter().any(|runner| child.parent.as_ref() == Some(&runner.id));
    let busy = willing.iter().chain(children.iter().filter(theirs)).map(|runner| runner.busy_workers).sum::<u32>();
    if !willing.is_empty() && busy >= workers {
        let text = format!("all {workers} workers of the {} runners that could run it are busy", willing.len());
        because(ReasonCode::WorkersBusy, text);
    }
    if let Some(standing) = evidence.standing {
        if standing.losses >= SUSPECT_FROM {
            let text = format!(
                "its last {} runners died while it ran: it runs in a process of its own, when a runner has a free worker for that process",
                standing.losses
            );
            because(ReasonCode::RunsAlone, text);
        }
        if standing.ahead > 0 {
            let more = if standing.more_ahead { "at least " } else { "" };
            let text = format!("{more}{} jobs of its queue were due before it", standing.ahead);
            because(ReasonCode::Behind, text);
        }
    }
    if evidence.health == Health::Degraded {
        because(
            ReasonCode::IndexDegraded,
            "Redis does not answer: runners read due jobs from MySQL a few times a second".to_owned(),
        );
    }
    if reasons.is_empty() || (reasons.len() == 1 && reasons[0].code == ReasonCode::Retrying) {
        let late = duration_text(-due_in);
        let overdue = -due_in > ON_ITS_WAY;
        reasons.push(if overdue {
            let text = format!("it has been due for {late}, and tickr knows of nothing that prevents it from running; `tickr verify` checks more");
            Reason { code: ReasonCode::Overdue, text }
        } else {
            Reason { code: ReasonCode::OnItsWay, text: format!("it has been due for {late} and is on its way to a worker") }
        });
    }
    reasons
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
            let bounds = set.map(|set| set.limit.bounds_of(&parked.key.key)).unwrap_or_default();
            Some((parked, bounds))
        }
        None => None,
    };
    let place = if job.held && parked.is_none() { store.order_place(id).await? } else { None };
    let queue = store.listed_queues().await?.into_iter().find(|queue| queue.name == job.queue);
    let permits = match &queue {
        Some(queue) if queue.concurrency.is_some() => {
            store.permits().await?.get(job.queue.as_str()).copied().unwrap_or(0)
        }
        _ => 0,
    };
    let runners = store.runners(1_000).await?;
    let at = standing.map_or_else(|| store.clock().now(), |standing| standing.at);
    let health = api.index.health().now();
    let reasons = explain(&Evidence {
        job: &job,
        at,
        standing,
        place,
        parked,
        queue: queue.as_ref(),
        permits,
        runners: &runners,
        health,
    });
    let summary = reasons.first().map(|reason| reason.text.clone()).unwrap_or_default();
    Ok(json(StatusCode::OK, Explanation { state: job.state, summary, reasons, at: Moment(at) }))
}

#[cfg(test)]
mod tests {
    use super::*;

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
