//! `/v1/forecast`: the jobs and ticks of the next 24 hours.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use chrono::TimeDelta;
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::problem::{Code, Problem};
use crate::http::searches::run_with_seat;
use crate::view::Moment;
use crate::{Api, json};
use tickr_job::{Cadence, Timestamp};
use tickr_store::Store;

/// Number of hours in a forecast.
const HOURS: u32 = 24;

/// The forecast, hour by hour.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Forecast {
    /// Next 24 hours; the first one begins now.
    hours: Vec<HourView>,
    /// Number of active schedules whose ticks are missing, because this runner cannot parse them; see `/v1/schedules`.
    unreadable_schedules: u32,
}

/// One hour of the forecast.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HourView {
    #[schema(value_type = String, format = DateTime)]
    from: Moment,
    /// Number of accepted jobs that become due in this hour, counted up to 50,000.
    jobs: u32,
    /// True when there are more jobs than were counted.
    more: bool,
    /// Number of ticks of schedules in this hour. Each will become a job that is not among `jobs` yet, unless the
    /// schedule is paused or changed before, or its overlap policy skips the tick. Schedules that are paused now are
    /// not counted.
    ticks: u64,
    /// True when there may be more ticks: only the two thousand schedules that tick first are counted.
    more_ticks: bool,
}

/// Show the jobs and ticks of the next 24 hours
///
/// Accepted jobs that become due, and ticks of schedules, hour by hour.
#[utoipa::path(
    get, path = "/v1/forecast", tag = "system", operation_id = "show_forecast",
    responses(
        (status = 200, description = "Hour by hour", body = Forecast),
    )
)]
pub(crate) async fn forecast(State(api): State<Api>) -> Result<Response, Problem> {
    let store = api.broker.store().clone();
    Ok(json(StatusCode::OK, run_with_seat(&api, async move { forecast_from(&store).await }).await?))
}

async fn forecast_from(store: &Store) -> Result<Forecast, Problem> {
    let hours = store.due_by_hour(HOURS).await?;
    let starts: Vec<Timestamp> = hours.iter().map(|hour| hour.from).collect();
    let end = starts.last().map_or_else(|| store.clock().now(), |last| *last + TimeDelta::hours(1));
    let ahead = store.ticking_before(end).await?;
    let cadences = ahead.cadences;
    // Two thousand cron expressions take CPU time, so count them on a thread that no other request waits for.
    let ticks = tokio::task::spawn_blocking(move || ticks_by_hour(&cadences, &starts)).await;
    let ticks = ticks.map_err(|_| Problem::new(Code::Internal, "the ticks could not be counted"))?;
    let hours = hours.into_iter().zip(ticks).map(|(hour, ticks)| HourView {
        from: Moment(hour.from),
        jobs: hour.jobs,
        more: hour.more,
        ticks,
        more_ticks: ahead.more,
    });
    Ok(Forecast { hours: hours.collect(), unreadable_schedules: ahead.unreadable })
}

/// Count the ticks in each of these hours.
fn ticks_by_hour(cadences: &[(Cadence, Timestamp)], starts: &[Timestamp]) -> Vec<u64> {
    let mut ticks = vec![0; starts.len()];
    for (cadence, next_at) in cadences {
        let mut next = Some(*next_at);
        for (count, start) in ticks.iter_mut().zip(starts) {
            let end = *start + TimeDelta::hours(1);
            // Most schedules have no tick in most hours, and this check is cheaper than a count.
            if next.is_some_and(|next| next < end) {
                *count += cadence.ticks_between((*start).max(*next_at), end);
                next = cadence.next_after(end - TimeDelta::microseconds(1));
            }
        }
    }
    ticks
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use tickr_job::{CronExpression, Dst, Zone};

    fn starts() -> Vec<Timestamp> {
        let now: Timestamp = "2026-11-21T10:30:00.250Z".parse().unwrap();
        (0..24).map(|hour| now + TimeDelta::hours(hour)).collect()
    }

    fn cron(text: &str) -> Cadence {
        let cron = CronExpression::parse(text).unwrap();
        Cadence::Cron { cron, zone: Zone::named("Europe/Warsaw").unwrap(), dst: Dst::Once }
    }

    #[test]
    fn ticks_are_counted_in_their_hours_and_from_the_first_that_is_not_seen_to() {
        let starts = starts();
        let first = |cadence: &Cadence| cadence.next_after(starts[0]).unwrap();
        let (second, nightly) = (cron("* * * * * *"), cron("0 3 * * *"));
        let counted = ticks_by_hour(&[(nightly.clone(), first(&nightly))], &starts);
        // 03:00 in Warsaw is 02:00 in UTC, which lies between 01:30 and 02:30.
        assert_eq!((counted.iter().sum::<u64>(), counted[15]), (1, 1), "{counted:?}");
        assert_eq!(ticks_by_hour(&[(second.clone(), first(&second))], &starts), [3_600; 24]);
        let late = starts[1] - TimeDelta::minutes(1);
        let counted = ticks_by_hour(&[(second.clone(), late)], &starts);
        assert_eq!(counted[..2], [60, 3_600]);
        // Overdue ticks are not in the future.
        let counted = ticks_by_hour(&[(second, starts[0] - TimeDelta::days(3))], &starts);
        assert_eq!(counted, [3_600; 24]);
        let every = Cadence::Every { every: Duration::from_secs(1_800), anchor: starts[0] };
        assert_eq!(ticks_by_hour(&[(every, starts[0])], &starts), [2; 24]);
    }

    #[test]
    #[ignore = "a measurement"]
    fn two_thousand_schedules_are_counted() {
        let starts = starts();
        for text in ["* * * * * *", "*/5 * * * *", "30 2 * * *", "0 0 29 2 *"] {
            let cadence = cron(text);
            let cadences = vec![(cadence.clone(), cadence.next_after(starts[0]).unwrap()); 2_000];
            let began = Instant::now();
            let total: u64 = ticks_by_hour(&cadences, &starts).iter().sum();
            println!("{text}: {total} in {:?}", began.elapsed());
        }
    }
}
