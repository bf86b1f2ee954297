//! The definition of a schedule, as clients send it.

use chrono::{DateTime, Utc};
use serde::Deserialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::http::body::{Object, empty_object, or_default};
use crate::schedules::words::{DstWord, MisfireWord, OverlapWord};
use crate::view::{OnFailureWord, RetryView};
use tickr_job::{Dst, Misfire, OnFailure, Overlap, ScheduleDraft};

/// A schedule to create or change.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScheduleBody {
    /// Cron expression of five fields, or of six with seconds first. Not together with `every_ms`.
    #[schema(example = "0 3 * * *", max_length = 255)]
    cron: Option<String>,
    /// Interval in milliseconds, counted from `anchor`, so that it does not drift. Not together with `cron`.
    #[schema(minimum = 1_000, maximum = 31_622_400_000_u64)]
    every_ms: Option<u64>,
    /// Time of a tick from which all others are counted. Without it the interval begins when it is declared, and the
    /// first tick comes one interval later. Only with `every_ms`.
    anchor: Option<DateTime<Utc>>,
    /// IANA time zone. Default: `UTC`.
    #[schema(example = "Europe/Warsaw", max_length = 64)]
    zone: Option<String>,
    /// Rule for the change to and from daylight saving time. `once`: a local time that is skipped runs right after the
    /// gap, and one that occurs twice runs the first time. `skip`: neither runs. `both`: like `once`, but a local time
    /// that occurs twice runs each time. Default: `once`. An expression that runs in every hour is not affected: it
    /// follows elapsed time. Only with `cron`.
    #[schema(value_type = Option<DstWord>)]
    dst: Option<Dst>,
    /// Rule for missed ticks, which no runner processed in time. `skip` fires none of them, `one` the latest, `all`
    /// each of them, but at most the latest thousand. Default: `one`.
    #[schema(value_type = Option<MisfireWord>)]
    misfire: Option<Misfire>,
    /// Time in milliseconds by which a tick may be late without counting as missed. Default: 15,000. At least 100
    /// with `misfire` `skip`: each tick is processed some milliseconds after its due time.
    #[schema(maximum = 86_400_000)]
    misfire_grace_ms: Option<u64>,
    /// Overlap policy for a tick while the previous job of the schedule has not ended. `allow` fires all the same.
    /// `skip` does not fire. `replace` cancels the previous job if it waits, or asks it to stop if it executes, and
    /// fires. Default: `allow`.
    #[schema(value_type = Option<OverlapWord>)]
    overlap: Option<Overlap>,
    /// Kind of the jobs, one of `/v1/kinds`.
    #[schema(example = "http", max_length = 64)]
    kind: String,
    /// Input of the handler. It must fit the schema of the kind. Default: `{}`.
    #[serde(default = "empty_object")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Box<RawValue>,
    /// Queue of the jobs. Default: that of the declared kind, or else `default`. It is chosen when the schedule is put.
    #[schema(pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")]
    queue: Option<String>,
    /// Priority of the jobs: 0 runs first, 9 last. Default: 5.
    #[schema(maximum = 9)]
    priority: Option<u8>,
    /// Number of attempts before a job fails, 1 to 100. Default: that of the kind.
    #[schema(minimum = 1, maximum = 100)]
    max_attempts: Option<u32>,
    /// Time limit of one attempt, in milliseconds. Default: that of the kind.
    #[schema(minimum = 1, maximum = 86_400_000)]
    timeout_ms: Option<u64>,
    /// Backoff between attempts. Default: that of the kind.
    #[schema(value_type = Option<RetryView>)]
    retry: Option<Object<RetryView>>,
    /// Order key of the jobs. They run one at a time, in the order of the ticks, together with all other jobs that have
    /// the same order key.
    #[schema(min_length = 1, max_length = 255)]
    order_key: Option<String>,
    /// What the final failure of a job does to the jobs behind it. `block`: they wait until the failed job is retried,
    /// replayed, discarded or deleted. `skip`: the next one runs. Default: `block`. Only with `order_key`.
    #[schema(value_type = Option<OnFailureWord>)]
    on_failure: Option<OnFailure>,
    /// Limit key of the jobs. The limits that operators set at `/v1/limits` count the jobs with the same limit key.
    #[schema(min_length = 1, max_length = 255)]
    limit_key: Option<String>,
    /// Time after its acceptance, in milliseconds, from which on no attempt of a job starts any more. A job that has
    /// not ended by then and does not run fails.
    #[schema(minimum = 1, maximum = 31_622_400_000_u64)]
    expires_in_ms: Option<u64>,
    /// Tags to find the jobs by, at most ten.
    #[serde(default, deserialize_with = "or_default")]
    #[schema(value_type = Option<Vec<String>>, max_items = 10, example = json!(["tenant:42"]))]
    tags: Vec<String>,
}

impl From<ScheduleBody> for ScheduleDraft {
    fn from(body: ScheduleBody) -> Self {
        Self {
            cron: body.cron,
            every_ms: body.every_ms,
            anchor: body.anchor,
            zone: body.zone,
            dst: body.dst,
            misfire: body.misfire,
            misfire_grace_ms: body.misfire_grace_ms,
            overlap: body.overlap,
            kind: body.kind,
            payload: body.payload,
            queue: body.queue,
            priority: body.priority,
            max_attempts: body.max_attempts,
            timeout_ms: body.timeout_ms,
            retry: body.retry.map(|Object(retry)| retry.into()),
            order_key: body.order_key,
            on_failure: body.on_failure,
            limit_key: body.limit_key,
            expires_in_ms: body.expires_in_ms,
            tags: body.tags,
        }
    }
}
