//! Statuses of refusals in these interfaces.

use axum::http::StatusCode;

use crate::http::problem::Problem;

/// Return the status by which clients of these interfaces recognise a problem. They know 400 for every request that is
/// not valid.
pub(super) fn status_of(problem: &Problem) -> StatusCode {
    match problem.code.status() {
        StatusCode::UNPROCESSABLE_ENTITY => StatusCode::BAD_REQUEST,
        status => status,
    }
}
