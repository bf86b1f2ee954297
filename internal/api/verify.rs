//! `/v1/verify`: the checks of `tickr verify`, made by a runner in the background.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use utoipa::ToSchema;
use uuid::Uuid;

use super::auth::Who;
use super::body::Body;
use super::problem::{Code, Problem};
use super::view::Moment;
use super::{Api, json};
use crate::handlers;
use crate::index::Index;
use crate::job::Timestamp;
use crate::store::{Begun, Retention, Store, Verification};
use crate::verify::{Finding, Outcome, Pace, Report, VerifySettings, verify};

/// How long the tables may be read, with all rests.
const READING: Duration = Duration::from_secs(120);
/// How long all of it may take.
const ALL: Duration = Duration::from_secs(240);
/// How long its place is kept: then its runner counts as dead.
const PLACE: Duration = Duration::from_secs(300);

/// Makes checks in the background, joined through the process's tasks. Cheap to clone.
#[derive(Clone)]
pub struct Verifier {
    parts: Arc<Parts>,
}

struct Parts {
    store: Store,
    index: Index,
    retention: Retention,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Verifier")
    }
}

impl Verifier {
    /// For the runner of this process. Its checks end when `stop` comes.
    #[must_use]
    pub fn new(store: Store, index: Index, retention: Retention, tasks: TaskTracker, stop: CancellationToken) -> Self {
        Self { parts: Arc::new(Parts { store, index, retention, tasks, stop }) }
    }

    fn start(&self, id: Uuid, since: Option<Timestamp>) {
        let parts = Arc::clone(&self.parts);
        self.parts.tasks.spawn(async move { parts.make(id, since).await });
    }
}

impl Parts {
    async fn make(&self, id: Uuid, since: Option<Timestamp>) {
        let settings = VerifySettings {
            since,
            patience: VerifySettings::PATIENCE,
            repair: false,
            retention: self.retention.clone(),
            pace: Pace::Gentle { limit: READING },
        };
        // It may be dropped anywhere: it has a connection of its own, in a transaction that only reads.
        let found = tokio::select! {
            () = self.stop.cancelled() => Err("its runner stopped".to_owned()),
            found = tokio::time::timeout(ALL, verify(&self.store, &self.index, &settings, |_| {})) => match found {
                Ok(Ok(report)) => Ok(report),
                Ok(Err(error)) => {
                    tracing::warn!(%error, "a check that was asked for came to nothing");
                    Err("MySQL could not be read; the log of its runner has the details".to_owned())
                }
                Err(_) => Err(format!("it took longer than {} s", ALL.as_secs())),
            },
        };
        if let Ok(report) = &found {
            let faults: u64 = report.faults().values().sum();
            tracing::info!(
                verdict = report.verdict.as_str(),
                faults,
                jobs = report.looked_at.jobs,
                "checked everything that was asked for"
            );
        }
        let found =
            found.and_then(|report| serde_json::to_string(&ReportView::from(report)).map_err(|e| e.to_string()));
        if let Err(error) = self.store.end_verification(id, found).await {
            tracing::warn!(%error, "cannot write down what a check found");
        }
    }
}

/// Which jobs to check.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct VerifyBody {
    /// Only jobs made at this moment or later; all jobs when left out.
    #[schema(format = DateTime)]
    since: Option<String>,
}

/// A check that is under way.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RunningView {
    /// UUIDv7.
    id: String,
    /// Which runner makes it.
    runner: String,
    #[schema(value_type = String, format = DateTime)]
    started_at: Moment,
    /// Who asked for it.
    by: String,
    /// Only jobs made since then are looked at; null for all.
    #[schema(value_type = Option<String>, format = DateTime)]
    since: Option<Moment>,
}

impl From<Verification> for RunningView {
    fn from(check: Verification) -> Self {
        Self {
            id: check.id.to_string(),
            runner: check.runner.to_string(),
            started_at: Moment(check.started_at),
            by: check.by.to_string(),
            since: check.since.map(Moment),
        }
    }
}

/// A check that has ended.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct EndedView {
    /// UUIDv7.
    id: String,
    /// Which runner made it.
    runner: String,
    #[schema(value_type = String, format = DateTime)]
    started_at: Moment,
    /// Who asked for it.
    by: String,
    /// Only jobs made since then were looked at; null for all.
    #[schema(value_type = Option<String>, format = DateTime)]
    since: Option<Moment>,
    #[schema(value_type = String, format = DateTime)]
    finished_at: Moment,
    took_ms: u64,
    /// Why it came to nothing; null when there is a report.
    failure: Option<String>,
    /// What was found.
    report: Option<ReportView>,
}

/// What was found. As `tickr verify --json` tells it, in the words of this API.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct ReportView {
    verdict: Verdict,
    /// True when everything was looked at, and no check found a fault.
    ok: bool,
    /// Was everything looked at? Large tables are looked at for two minutes, from the oldest job on; `since` helps.
    complete: bool,
    /// What could not be looked at, and why: Redis did not answer, time was over, a row could not be read.
    unchecked: Vec<String>,
    /// The moment at which the tables were looked at, by the database's clock.
    #[schema(format = DateTime)]
    at: String,
    looked_at: LookedAtView,
    /// Every check, in a fixed order.
    checks: Vec<CheckView>,
    /// What a person should know, though it breaks no promise.
    notes: Vec<String>,
}

/// What the check came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = VerifyVerdict)]
pub(super) enum Verdict {
    /// Everything was looked at, and every promise was kept.
    Kept,
    /// A promise was broken.
    Broken,
    /// No fault was found, and not everything could be looked at.
    Unchecked,
}

impl From<Outcome> for Verdict {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Kept => Self::Kept,
            Outcome::Broken => Self::Broken,
            Outcome::Unchecked => Self::Unchecked,
        }
    }
}

/// How much was looked at.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct LookedAtView {
    jobs: u64,
    /// Unfinished ones among them.
    owed: u64,
    attempts: u64,
    /// Entries that Redis schedules.
    scheduled: u64,
}

/// What one check found.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct CheckView {
    #[schema(example = "lost")]
    name: String,
    /// The guarantee that it belongs to.
    #[schema(example = "G2")]
    guarantee: String,
    /// What holds when there are no faults.
    meaning: String,
    verdict: CheckVerdict,
    /// Why it could not be made.
    skipped: Option<String>,
    /// How many faults there are.
    faults: u64,
    /// Some of them, 20 at the most.
    examples: Vec<ExampleView>,
}

/// What a check came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum CheckVerdict {
    /// It found no fault.
    Holds,
    /// It found some.
    Broken,
    /// It could not be made.
    Skipped,
}

/// One fault.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct ExampleView {
    /// The job, if it is about one.
    job: Option<String>,
    /// What shows it.
    what: String,
}

impl From<Report> for ReportView {
    fn from(report: Report) -> Self {
        let looked_at = report.looked_at;
        Self {
            verdict: report.verdict.into(),
            ok: report.ok,
            complete: report.complete,
            unchecked: report.unchecked,
            at: report.at.to_rfc3339_opts(chrono::SecondsFormat::Millis, true),
            looked_at: LookedAtView {
                jobs: looked_at.jobs,
                owed: looked_at.owed,
                attempts: looked_at.attempts,
                scheduled: looked_at.scheduled,
            },
            checks: report.checks.into_iter().map(CheckView::from).collect(),
            notes: report.notes,
        }
    }
}

impl From<Finding> for CheckView {
    fn from(finding: Finding) -> Self {
        let verdict = match (finding.faults, &finding.skipped) {
            (1.., _) => CheckVerdict::Broken,
            (0, Some(_)) => CheckVerdict::Skipped,
            (0, None) => CheckVerdict::Holds,
        };
        let example = |sample: crate::verify::Sample| ExampleView {
            job: sample.job.map(|job| job.to_string()),
            what: sample.what,
        };
        Self {
            name: finding.name.as_str().to_owned(),
            guarantee: finding.guarantee.to_owned(),
            meaning: finding.meaning.to_owned(),
            verdict,
            skipped: finding.skipped,
            faults: finding.faults,
            examples: finding.samples.into_iter().map(example).collect(),
        }
    }
}

/// The checks of the cluster.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct VerifyAnswer {
    /// The one that is under way; null when none is.
    running: Option<RunningView>,
    /// The last one that ended; null before the first.
    last: Option<EndedView>,
}

/// A check that was asked for.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct StartedView {
    /// False when one was under way already, which is shown. There is one at a time in the cluster.
    started: bool,
    check: RunningView,
}

/// Show what the last check found
///
/// One that any runner made.
#[utoipa::path(
    get, path = "/v1/verify", tag = "operations", operation_id = "show_verification",
    responses(
        (status = 200, description = "The one under way, and the last one", body = VerifyAnswer),
        (status = 401, description = "unauthorized", body = Problem),
        (status = 503, description = "store_unavailable", body = Problem),
    )
)]
pub(super) async fn show(State(api): State<Api>) -> Result<Response, Problem> {
    let (running, last) = api.broker.store().verifications().await?;
    let answer = VerifyAnswer { running: running.map(RunningView::from), last: last.map(ended) };
    Ok(json(StatusCode::OK, answer))
}

fn ended(mut check: Verification) -> EndedView {
    let finished_at = check.finished_at.unwrap_or(check.started_at);
    let (report, failure) = (check.report.take(), check.failure.take());
    let report = report.map(|text| serde_json::from_str::<ReportView>(&text));
    let (report, failure) = match report {
        Some(Ok(report)) => (Some(report), failure),
        Some(Err(_)) => (None, Some("it was made by another version of tickr; ask for a new one".to_owned())),
        None => (None, failure),
    };
    let took_ms = u64::try_from((finished_at - check.started_at).num_milliseconds()).unwrap_or(0);
    let RunningView { id, runner, started_at, by, since } = check.into();
    EndedView { id, runner, started_at, by, since, finished_at: Moment(finished_at), took_ms, failure, report }
}

/// Check everything now
///
/// Makes the checks of `tickr verify` in the background, on this runner. It only reads, over one connection: each row of
/// the jobs that are looked at once, by primary key, each page in a snapshot of its own, and rests as long as it reads. So
/// it takes half a core of MySQL at the most, for two minutes at the most. `GET /v1/verify` shows what it found.
#[utoipa::path(
    post, path = "/v1/verify", tag = "operations", operation_id = "start_verification", request_body = VerifyBody,
    responses(
        (status = 202, description = "It begins, or one is under way", body = StartedView),
        (status = 400, description = "invalid_json, too_deep", body = Problem),
        (status = 401, description = "unauthorized", body = Problem),
        (status = 408, description = "request_timeout", body = Problem),
        (status = 413, description = "too_large", body = Problem),
        (status = 415, description = "unsupported_media_type", body = Problem),
        (status = 422, description = "invalid_request", body = Problem),
        (status = 503, description = "store_unavailable", body = Problem),
    )
)]
pub(super) async fn start(
    State(api): State<Api>,
    Who(who): Who,
    Body(body, _): Body<VerifyBody>,
) -> Result<Response, Problem> {
    let since = match body.since.as_deref().map(DateTime::parse_from_rfc3339).transpose() {
        Ok(since) => since.map(|since| since.with_timezone(&Utc)),
        Err(_) => {
            let here = handlers::Problem::at("/since", "must be a moment such as 2026-01-31T08:00:00Z");
            return Err(Problem::new(Code::InvalidRequest, "there is no such moment").at("", vec![here]));
        }
    };
    let begun =
        api.broker.store().begin_verification(Uuid::now_v7(), api.controls.runner(), since, PLACE, &who).await?;
    let (started, check) = match begun {
        Begun::Started(check) => {
            api.verifier.start(check.id, check.since);
            (true, check)
        }
        Begun::UnderWay(check) => (false, check),
    };
    Ok(json(StatusCode::ACCEPTED, StartedView { started, check: check.into() }))
}
