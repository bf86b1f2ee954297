//! `GET /v1/schedules/{name}/ticks`: the record of each tick.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use chrono::DateTime;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::http::body::{NamePath, QueryParams};
use crate::http::cursor::{Listing, page_size};
use crate::http::problem::{Code, Problem};
use crate::schedules::find;
use crate::schedules::view::TickView;
use crate::schedules::words::OutcomeWord;
use crate::{Api, json};
use tickr_job::Timestamp;

/// Filter and page of a listing of ticks.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TicksQuery {
    /// Only ticks with this outcome.
    #[param(value_type = Option<OutcomeWord>, inline)]
    outcome: Option<String>,
    /// Number of records in one page, 1 to 200.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
    /// `next_cursor` of the last page. It is valid only with the same filter.
    cursor: Option<String>,
}

/// A page of ticks.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TicksAnswer {
    /// Records of ticks, the newest first.
    data: Vec<TickView>,
    /// Cursor of the next page; null on the last page. A page may be short or empty and still have a cursor, because
    /// one page reads only a bounded number of records.
    next_cursor: Option<String>,
}

/// List the ticks of a schedule, newest first
///
/// The ticks of a deleted schedule are listed as well, until their retention ends.
#[utoipa::path(
    get, path = "/v1/schedules/{name}/ticks", tag = "schedules", operation_id = "list_ticks",
    params(
        TicksQuery,
        ("name" = String, Path, description = "The schedule's name", pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$"),
    ),
    responses(
        (status = 200, description = "A page of ticks", body = TicksAnswer),
        (status = 404, description = "not_found: neither the schedule nor a tick of it exists", body = Problem),
        (status = 409, description = "unreadable_schedule: there is no tick of it either", body = Problem),
        (status = 422, description = "invalid_request, invalid_cursor", body = Problem),
    )
)]
pub(crate) async fn ticks(
    State(api): State<Api>,
    NamePath(name): NamePath,
    QueryParams(asked): QueryParams<TicksQuery>,
) -> Result<Response, Problem> {
    let limit = page_size(asked.limit)?;
    let fired = match asked.outcome.as_deref() {
        None => None,
        Some("fired") => Some(true),
        Some("skipped") => Some(false),
        Some(word) => {
            let here = tickr_handlers::Problem::at("outcome", format!("{word:?} is not one of fired, skipped"));
            let detail = "invalid listing; `errors` says why";
            return Err(Problem::new(Code::InvalidRequest, detail).at("", vec![here]));
        }
    };
    let listing = Listing::new("ticks", &(&name, fired));
    let before = match listing.place(asked.cursor.as_deref())? {
        None => None,
        Some(place) => Some(read_place(&place).ok_or_else(|| {
            Problem::new(Code::InvalidCursor, "send next_cursor of a page with the same filter, unchanged")
        })?),
    };
    let page = api.broker.store().ticks(name.clone(), fired, before, limit).await?;
    if page.lines.is_empty() && page.next.is_none() {
        find(&api, &name).await?;
    }
    let next_cursor = page.next.map(|next| listing.cursor(&place_of(next)));
    let data = page.lines.into_iter().map(TickView::from).collect();
    Ok(json(StatusCode::OK, TicksAnswer { data, next_cursor }))
}

fn place_of((due_at, number): (Timestamp, u16)) -> Vec<u8> {
    [&due_at.timestamp_millis().to_be_bytes()[..], &number.to_be_bytes()].concat()
}

fn read_place(place: &[u8]) -> Option<(Timestamp, u16)> {
    let (due_at, number) = place.split_at_checked(8)?;
    let due_at = DateTime::from_timestamp_millis(i64::from_be_bytes(due_at.try_into().ok()?));
    let due_at = due_at.and_then(tickr_job::query::storable)?;
    Some((due_at, u16::from_be_bytes(number.try_into().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_read_back() {
        let place = (DateTime::from_timestamp_millis(1_795_000_000_123).unwrap(), 3);
        assert_eq!(read_place(&place_of(place)), Some(place));
        let year_144_000 = [0, 0x10, 0, 0, 0, 0, 0, 0, 0, 3];
        for other in [&b""[..], b"12345678", b"12345678901", &[0xff; 10], &year_144_000] {
            assert_eq!(read_place(other), None, "{other:?}");
        }
    }
}
