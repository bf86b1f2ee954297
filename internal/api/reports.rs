//! `/v1/reports/{file}`: fetch a finished report.

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;
use tokio_util::io::ReaderStream;

use super::Api;
use super::pass::Pass;
use super::problem::{Code, Problem};
use crate::handlers::report;

/// Fetch a finished report
///
/// The file's name stands in the result of its `report` job.
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
        (status = 404, description = "not_found", body = Problem),
    )
)]
pub(super) async fn download(
    State(api): State<Api>,
    mut pass: Pass,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    let missing = || Problem::new(Code::NotFound, "there is no report of that name");
    // A path that is not text names no report either.
    let Path(name) = name.map_err(|_| missing())?;
    let dir = api.reports_dir.clone();
    let opened = tokio::task::spawn_blocking(move || report::open(&dir, &name)).await;
    let report = match opened {
        Ok(Ok(report)) => report,
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(missing());
        }
        Ok(Err(error)) => {
            tracing::error!(%error, "cannot open a report");
            return Err(Problem::new(Code::Internal, "the report cannot be read; the log has the details"));
        }
        Err(error) => {
            tracing::error!(%error, "cannot open a report");
            return Err(Problem::new(Code::Internal, "the report cannot be read; the log has the details"));
        }
    };
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(report.content_type));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(report.size_bytes));
    // Saved, not shown: a report may hold markup that somebody else wrote. The name is plain by construction.
    if let Ok(disposition) = HeaderValue::try_from(format!("attachment; filename=\"{}\"", report.name)) {
        headers.insert(header::CONTENT_DISPOSITION, disposition);
    }
    // A slow download ends with the right to it: short of its length, so that no client takes the part for the whole.
    let bytes = ReaderStream::new(tokio::fs::File::from_std(report.file));
    let body = Body::from_stream(bytes.take_until(async move { pass.ends().await }));
    Ok((headers, body).into_response())
}
