//! `/v1/reports/{file}`: fetch a finished report, whichever runner made it.

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;
use tokio_util::io::ReaderStream;

use super::Api;
use super::auth::Sharing;
use super::pass::Pass;
use super::problem::{Code, Problem};
use crate::handlers::report::{FindError, Found};

/// Fetch a finished report
///
/// The file's name stands in the result of its `report` job. Every runner serves reports up to `share_up_to` of `[reports]`,
/// which is 32 MiB unless set. Larger ones are served by the runner that made them; others answer 404 and name it.
#[utoipa::path(
    get, path = "/v1/reports/{file}", tag = "jobs", operation_id = "download_report", params(("file" = String, Path, description = "The file's name")),
    responses(
        (status = 200, description = "The file, to be saved", content(
            (String = "text/csv"),
            (serde_json::Value = "application/json"),
            (String = "text/html"),
            (Vec<u8> = "application/pdf"),
            (Vec<u8> = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
        ), headers(("Content-Disposition" = String))),
        (status = 401, description = "unauthorized", body = Problem),
        (status = 404, description = "not_found: no such report, or it is served by the runner that `detail` names alone", body = Problem),
        (status = 429, description = "overloaded: too many downloads or connections", body = Problem),
        (status = 503, description = "store_unavailable", body = Problem),
    )
)]
pub(super) async fn download(
    State(api): State<Api>,
    sharing: Sharing,
    mut pass: Pass,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    // A path that is not text names no report either.
    let Path(name) = name.map_err(|_| refusal(&FindError::NoSuchReport))?;
    // A slow download ends with the right to it: short of its length, so that no client takes the part for the whole.
    match api.reports.find(&name).await.map_err(|error| refusal(&error))? {
        Found::Here(report) => {
            let headers = headers(&report.name, report.size_bytes, report.content_type);
            let bytes = ReaderStream::new(tokio::fs::File::from_std(report.file));
            let body = Body::from_stream(bytes.take_until(async move { pass.ends().await }));
            Ok((headers, body).into_response())
        }
        Found::Shared(report) => {
            let place = api.downloads.take(sharing.0);
            let place = place.map_err(|full| full.problem("downloads of reports", "this runner"))?;
            let headers = headers(report.name(), report.size_bytes(), report.content_type());
            let ends = async move {
                // Held until the last part is sent, or the client is gone.
                let _place = place;
                pass.ends().await;
            };
            let body = Body::from_stream(report.content().take_until(ends));
            Ok((headers, body).into_response())
        }
    }
}

fn headers(name: &str, size_bytes: u64, content_type: &'static str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(size_bytes));
    // Saved, not shown: a report may hold markup of a stranger. The name is plain by construction.
    if let Ok(disposition) = HeaderValue::try_from(format!("attachment; filename=\"{name}\"")) {
        headers.insert(header::CONTENT_DISPOSITION, disposition);
    }
    headers
}

fn refusal(error: &FindError) -> Problem {
    match error {
        FindError::NoSuchReport | FindError::Elsewhere { .. } => Problem::new(Code::NotFound, error.to_string()),
        FindError::Unavailable(_) => {
            tracing::warn!(%error, "cannot find a report");
            Problem::new(Code::StoreUnavailable, "the report is not on this runner, and MySQL cannot be reached")
        }
        FindError::Disk(cause) => {
            tracing::error!(error = %cause, "cannot open a report");
            Problem::new(Code::Internal, "the report cannot be read; the log has the details")
        }
    }
}
