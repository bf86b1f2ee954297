//! Schedules and ticks, as clients see them.

use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::Api;
use crate::http::etag;
use crate::http::problem::Problem;
use crate::schedules::words::{CauseWord, DstWord, MisfireWord, OriginWord, OutcomeWord, OverlapWord};
use crate::view::{Moment, OnFailureWord, RetryView};
use tickr_job::{Cadence, Dst, Misfire, OnFailure, Overlap, Schedule, SkipCause, Timestamp, Zone};
use tickr_store::{Pause, Scheduled, TickLine, VersionTag};

/// Number of next ticks that the view of a schedule has.
pub(super) const NEXT_RUNS: usize = 5;

/// A schedule.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ScheduleView {
    name: String,
    /// Times of the ticks, in words.
    description: String,
    cron: Option<String>,
    every_ms: Option<u64>,
    #[schema(value_type = Option<String>, format = DateTime)]
    anchor: Option<Moment>,
    zone: String,
    /// Rule for the change to and from daylight saving time; null for an interval, which does not depend on local time.
    #[schema(value_type = Option<DstWord>)]
    dst: Option<Dst>,
    #[schema(value_type = MisfireWord)]
    misfire: Misfire,
    misfire_grace_ms: u64,
    #[schema(value_type = OverlapWord)]
    overlap: Overlap,
    kind: String,
    /// Input of the handler. Left out of listings.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Box<RawValue>>,
    queue: String,
    priority: u8,
    /// Null for the default of the kind.
    max_attempts: Option<u32>,
    /// Null for the default of the kind.
    timeout_ms: Option<u64>,
    /// Null for the default of the kind.
    retry: Option<RetryView>,
    /// Order key of the jobs; null when they have none.
    order_key: Option<String>,
    /// What the final failure of a job does to the jobs behind it; null without an order key.
    #[schema(value_type = Option<OnFailureWord>)]
    on_failure: Option<OnFailure>,
    /// Limit key of the jobs; null when they have none.
    limit_key: Option<String>,
    /// Time after its acceptance at which a job expires, in milliseconds; null when the jobs do not expire.
    expires_in_ms: Option<u64>,
    /// Tags of the jobs.
    tags: Vec<String>,
    #[schema(value_type = OriginWord)]
    origin: &'static str,
    /// Set while the schedule is paused; null otherwise.
    paused: Option<SchedulePauseView>,
    /// Time of the first tick that no runner has processed; null when there will be none.
    #[schema(value_type = Option<String>, format = DateTime)]
    next_at: Option<Moment>,
    /// Next ticks, at most five. Left out of listings.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_runs: Option<Vec<RunView>>,
    /// Newest record of its ticks. Left out of listings.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_tick: Option<TickView>,
    /// Id of its last job.
    last_job: Option<Uuid>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Moment,
    created_by: String,
    /// Time of the last change of its settings.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Moment,
    updated_by: String,
}

/// The pause of a schedule.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SchedulePauseView {
    #[schema(value_type = String, format = DateTime)]
    at: Moment,
    /// Caller that paused it.
    by: String,
    reason: Option<String>,
}

/// A future tick.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RunView {
    #[schema(value_type = String, format = DateTime)]
    at: Moment,
    /// The same time in the time zone of the schedule.
    #[schema(value_type = String, format = DateTime)]
    local: String,
}

/// The outcome of a tick.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TickView {
    /// Due time of the tick. When several ticks share the record, that of the first.
    #[schema(value_type = String, format = DateTime)]
    due_at: Moment,
    /// True when the schedule was triggered by hand, so this is not one of its own ticks.
    manual: bool,
    #[schema(value_type = OutcomeWord)]
    outcome: &'static str,
    /// Reason why it was skipped; null when it fired.
    #[schema(value_type = Option<CauseWord>)]
    cause: Option<&'static str>,
    /// The reason in words.
    reason: Option<String>,
    /// Number of ticks that share the record, counted up to ten thousand: after an outage, not every tick gets its own
    /// record.
    ticks: u32,
    /// Id of the job, if it fired.
    job_id: Option<Uuid>,
    #[schema(value_type = String, format = DateTime)]
    recorded_at: Moment,
    /// Runner that processed the tick, or caller that triggered or changed the schedule.
    recorded_by: String,
}

impl From<Pause> for SchedulePauseView {
    fn from(pause: Pause) -> Self {
        Self { at: Moment(pause.at), by: pause.by.to_string(), reason: pause.reason }
    }
}

impl From<TickLine> for TickView {
    fn from(line: TickLine) -> Self {
        Self {
            outcome: line.outcome(),
            due_at: Moment(line.due_at),
            manual: line.number > 0,
            cause: line.cause.map(SkipCause::as_str),
            reason: line.reason,
            ticks: line.ticks,
            job_id: line.job.map(tickr_job::JobId::uuid),
            recorded_at: Moment(line.recorded_at),
            recorded_by: line.recorded_by.to_string(),
        }
    }
}

impl ScheduleView {
    /// Build the view of a schedule in a listing.
    pub(super) fn listed(row: Scheduled) -> Self {
        let Schedule { cadence, zone, misfire, grace, overlap, template, .. } = row.schedule;
        let ms = |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let description = cadence.describe();
        let (cron, every_ms, anchor, dst) = match cadence {
            Cadence::Cron { cron, dst, .. } => (Some(cron.as_str().to_owned()), None, None, Some(dst)),
            Cadence::Every { every, anchor } => (None, Some(ms(every)), Some(Moment(anchor)), None),
        };
        Self {
            name: row.name.to_string(),
            description,
            cron,
            every_ms,
            anchor,
            zone: zone.to_string(),
            dst,
            misfire,
            misfire_grace_ms: ms(grace),
            overlap,
            kind: template.kind.to_string(),
            payload: None,
            queue: template.queue.to_string(),
            priority: template.priority.level(),
            max_attempts: template.max_attempts,
            timeout_ms: template.timeout_ms,
            retry: template.retry.map(RetryView::from),
            on_failure: template.order.as_ref().map(|order| order.on_failure),
            order_key: template.order.map(|order| order.key),
            limit_key: template.limit_key,
            expires_in_ms: template.expires_in_ms,
            tags: template.tags.iter().map(ToString::to_string).collect(),
            origin: row.origin.as_str(),
            paused: row.paused.map(Into::into),
            next_at: row.next_at.map(Moment),
            next_runs: None,
            last_tick: None,
            last_job: row.last_job.map(tickr_job::JobId::uuid),
            created_at: Moment(row.created.0),
            created_by: row.created.1.to_string(),
            updated_at: Moment(row.updated.0),
            updated_by: row.updated.1.to_string(),
        }
    }

    /// Build the response with the whole schedule and its ETag.
    pub(super) async fn shown(api: &Api, status: StatusCode, row: Scheduled) -> Result<Response, Problem> {
        let last = api.broker.store().ticks(row.name.clone(), None, None, 1).await?.lines.pop();
        let now = api.broker.store().clock().now();
        let runs = runs(&row.schedule.cadence, row.schedule.zone, row.next_at, now, NEXT_RUNS);
        let payload = row.schedule.template.payload.clone();
        let tag = tag_text(row.tag());
        let view = Self {
            payload: Some(payload),
            next_runs: Some(runs),
            last_tick: last.map(Into::into),
            ..Self::listed(row)
        };
        Ok(etag::with_tag(status, &tag, view))
    }
}

/// Return the next ticks, beginning with `next_at` unless it is overdue.
pub(super) fn runs(
    cadence: &Cadence,
    zone: Zone,
    next_at: Option<Timestamp>,
    now: Timestamp,
    count: usize,
) -> Vec<RunView> {
    let first = next_at.filter(|next| *next > now).or_else(|| cadence.next_after(now).filter(|_| next_at.is_some()));
    let run = |at: Timestamp| RunView { at: Moment(at), local: zone.local(at) };
    std::iter::successors(first, |tick| cadence.next_after(*tick)).take(count).map(run).collect()
}

pub(super) fn tag_text(tag: VersionTag) -> String {
    format!("\"{tag}\"")
}

pub(super) fn read_tag(text: &str) -> Option<VersionTag> {
    let (created, version) = text.strip_prefix('"')?.strip_suffix('"')?.split_once('-')?;
    Some(VersionTag { created_us: i64::from_str_radix(created, 16).ok()?, version: version.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_read_back() {
        let tag = VersionTag { created_us: 1_795_000_000_123_456, version: 7 };
        assert_eq!(read_tag(&tag_text(tag)), Some(tag));
        for other in ["", "\"\"", "7", "\"x-1\"", "W/\"1-1\"", "\"1-x\""] {
            assert_eq!(read_tag(other), None, "{other}");
        }
    }
}
