//! `/v1/verify`: the checks of `tickr verify`, run by a runner in the background.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use chrono::DateTime;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::http::auth::RequestActor;
use crate::http::body::OptionalBody;
use crate::http::problem::{Code, Problem};
use crate::view::Moment;
use crate::{Api, json};
use tickr_index::Index;
use tickr_job::{Timestamp, query};
use tickr_store::{BeginOutcome, Retention, Store, Verification};
use tickr_verify::{Finding, Pace, Report, VerifySettings, VerifyVerdict, verify};

/// Maximum time for reading the tables, pauses included.
const READING: Duration = Duration::from_secs(120);
/// Maximum time for the whole verification. What is not checked by then is reported as unchecked.
const ALL: Duration = Duration::from_secs(240);
/// Time after which a verification without a report is given up, because MySQL does not let it begin.
const GIVEN_UP: Duration = Duration::from_secs(270);
/// Time after which a verification without an end no longer blocks the next one, because its runner must be dead.
const PLACE: Duration = Duration::from_secs(300);

/// Runs verifications in the background, in tasks that the process joins when it stops. Cheap to clone.
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
    /// Make the verifier of this process. Its verifications end when `stop` is cancelled.
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
            pace: Pace::Gentle { limit: READING, all: ALL },
        };
        // The check may be dropped at any point: it has a connection of its own, in a read-only transaction.
        let found = tokio::select! {
            () = self.stop.cancelled() => Err("the runner stopped".to_owned()),
            found = tokio::time::timeout(GIVEN_UP, verify(&self.store, &self.index, &settings, |_| {})) => match found {
                Ok(Ok(report)) => Ok(report),
                Ok(Err(error)) => {
                    tracing::warn!(%error, "a requested verification failed");
                    Err("MySQL could not be read; the log of the runner has the details".to_owned())
                }
                Err(_) => Err(format!("it took longer than {} s", GIVEN_UP.as_secs())),
            },
        };
        if let Ok(report) = &found {
            for error in &report.errors {
                tracing::warn!(%error, "a part of a requested verification failed");
            }
            let faults: u64 = report.faults().values().sum();
            tracing::info!(
                verdict = report.verdict.as_str(),
                faults,
                jobs = report.looked_at.jobs,
                "a requested verification ended"
            );
        }
        let found =
            found.and_then(|report| serde_json::to_string(&ReportView::from(report)).map_err(|e| e.to_string()));
        if let Err(error) = self.store.end_verification(id, found).await {
            tracing::warn!(%error, "cannot store the result of a verification");
        }
    }
}

/// The range of a verification.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct VerifyBody {
    /// Check only jobs that were accepted at this time or later. Default: all jobs.
    #[schema(format = DateTime)]
    since: Option<String>,
}

/// A verification that is running.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RunningView {
    /// Id of the verification, a UUIDv7.
    id: String,
    /// Id of the runner that runs it.
    runner: String,
    #[schema(value_type = String, format = DateTime)]
    started_at: Moment,
    /// Caller that requested it.
    by: String,
    /// Only jobs accepted since this time are checked; null for all jobs.
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

/// A verification that has ended.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EndedView {
    /// Id of the verification, a UUIDv7.
    id: String,
    /// Id of the runner that ran it.
    runner: String,
    #[schema(value_type = String, format = DateTime)]
    started_at: Moment,
    /// Caller that requested it.
    by: String,
    /// Only jobs accepted since this time were checked; null for all jobs.
    #[schema(value_type = Option<String>, format = DateTime)]
    since: Option<Moment>,
    #[schema(value_type = String, format = DateTime)]
    finished_at: Moment,
    took_ms: u64,
    /// Reason why there is no report; null when there is one.
    failure: Option<String>,
    /// Report of the verification.
    report: Option<ReportView>,
}

/// The report of a verification: the same content as that of `tickr verify --json`, in the terms of this API.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct ReportView {
    verdict: Verdict,
    /// True when everything was checked and no check found a fault.
    ok: bool,
    /// True when everything was checked. Large tables are read for two minutes, from the oldest job on; use `since` to
    /// check only newer jobs. The whole check ends after four minutes, with the faults found until then.
    complete: bool,
    /// Parts that could not be checked, with the reason: Redis did not answer, MySQL failed, the time was over, a row
    /// could not be read, a lease is too long to wait for its end.
    unchecked: Vec<String>,
    /// Time at which the tables were read, by the clock of the database.
    #[schema(format = DateTime)]
    at: String,
    looked_at: LookedAtView,
    /// All checks, in a fixed order.
    checks: Vec<CheckView>,
    /// Remarks for the operator that are not violations.
    notes: Vec<String>,
}

/// The verdict of a verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = VerifyVerdict)]
pub(crate) enum Verdict {
    /// Everything was checked, and every guarantee holds.
    Kept,
    /// A guarantee was violated.
    Broken,
    /// No fault was found, but not everything could be checked.
    Unchecked,
}

impl From<VerifyVerdict> for Verdict {
    fn from(outcome: VerifyVerdict) -> Self {
        match outcome {
            VerifyVerdict::Kept => Self::Kept,
            VerifyVerdict::Broken => Self::Broken,
            VerifyVerdict::Unchecked => Self::Unchecked,
        }
    }
}

/// The amount of data that was checked.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct LookedAtView {
    jobs: u64,
    /// Number of unfinished jobs among them.
    owed: u64,
    attempts: u64,
    /// Number of entries in Redis for jobs that are due later.
    scheduled: u64,
}

/// The result of one check.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct CheckView {
    #[schema(example = "lost")]
    name: String,
    /// Guarantee that the check belongs to.
    #[schema(example = "G2")]
    guarantee: String,
    /// Statement that is true when there are no faults.
    meaning: String,
    verdict: CheckVerdict,
    /// Reason why the check was skipped.
    skipped: Option<String>,
    /// Number of faults.
    faults: u64,
    /// Examples of the faults, 20 at most.
    examples: Vec<ExampleView>,
}

/// The verdict of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CheckVerdict {
    /// The check found no fault.
    Holds,
    /// The check found faults.
    Broken,
    /// The check could not be run.
    Skipped,
}

/// An example of a fault.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct ExampleView {
    /// Id of the job, if the fault concerns one.
    job: Option<String>,
    /// Description of the fault.
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
        let example = |sample: tickr_verify::Sample| ExampleView {
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

/// The verifications of the cluster.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct VerifyAnswer {
    /// Verification that is running; null when there is none.
    running: Option<RunningView>,
    /// Last verification that ended; null before the first.
    last: Option<EndedView>,
}

/// The response to a request for a verification.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StartedView {
    /// False when a verification was already running; it is shown. The cluster runs one at a time.
    started: bool,
    check: RunningView,
}

/// Show the running and the last verification
///
/// A verification may have been run by any runner.
#[utoipa::path(
    get, path = "/v1/verify", tag = "system", operation_id = "show_verification",
    responses(
        (status = 200, description = "The running and the last verification", body = VerifyAnswer),
    )
)]
pub(crate) async fn show(State(api): State<Api>) -> Result<Response, Problem> {
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
        Some(Err(_)) => (None, Some("the report comes from another version of tickr; request a new one".to_owned())),
        None => (None, failure),
    };
    let took_ms = u64::try_from((finished_at - check.started_at).num_milliseconds()).unwrap_or(0);
    let RunningView { id, runner, started_at, by, since } = check.into();
    EndedView { id, runner, started_at, by, since, finished_at: Moment(finished_at), took_ms, failure, report }
}

/// Parse the time from which on a verification looks at jobs.
fn read_since(text: &str) -> Result<Timestamp, Problem> {
    // A filter also accepts a date without a time of day; the OpenAPI document promises no such thing here.
    DateTime::parse_from_rfc3339(text).ok().and_then(|_| query::moment(text)).ok_or_else(|| {
        let detail = "must be a time such as 2026-01-31T08:00:00Z, not before 1970";
        let here = tickr_handlers::Problem::at("/since", detail);
        Problem::new(Code::InvalidRequest, "invalid time; `errors` says why").at("", vec![here])
    })
}

/// Verify the guarantees now
///
/// Run the checks of `tickr verify` in the background, on this runner. The run only reads, over one connection: each
/// row of the checked jobs once, by primary key, and each page in a snapshot of its own. It pauses for as long as it
/// reads, so it uses at most half a core of MySQL, for at most two minutes. `GET /v1/verify` shows the report.
#[utoipa::path(
    post, path = "/v1/verify", tag = "system", operation_id = "start_verification", request_body = VerifyBody,
    responses(
        (status = 202, description = "A verification begins, or is already running", body = StartedView),
        (status = 422, description = "invalid_request", body = Problem),
    )
)]
pub(crate) async fn start(
    State(api): State<Api>,
    RequestActor(who): RequestActor,
    OptionalBody(body, _): OptionalBody<VerifyBody>,
) -> Result<Response, Problem> {
    let since = body.since.as_deref().map(read_since).transpose()?;
    let begun = api
        .broker
        .store()
        .begin_verification(Uuid::now_v7(), api.operator_settings.runner(), since, PLACE, &who)
        .await?;
    let (started, check) = match begun {
        BeginOutcome::Started(check) => {
            api.verifier.start(check.id, check.since);
            (true, check)
        }
        BeginOutcome::UnderWay(check) => (false, check),
    };
    Ok(json(StatusCode::ACCEPTED, StartedView { started, check: check.into() }))
}
