//! `/v1/reports/{file}`: download a finished report through any runner.

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;
use tokio_util::io::ReaderStream;

use crate::Api;
use crate::http::auth::PermitOwner;
use crate::http::problem::{Code, Problem};
use crate::http::revocation::RequestRight;
use tickr_handlers::report::{FindError, Found};

/// Download a finished report
///
/// The result of a `report` job has the name of the file. Every runner serves reports up to `share_up_to` of
/// `[reports]` (32 MiB by default). A larger report is served only by the runner that made it; other runners respond
/// with 404 and name that runner.
#[utoipa::path(
    get, path = "/v1/reports/{file}", tag = "jobs", operation_id = "download_report", params(("file" = String, Path, description = "The file's name")),
    responses(
        (status = 200, description = "The file, as an attachment", content(
            (String = "text/csv"),
            (serde_json::Value = "application/json"),
            (String = "text/html"),
            (Vec<u8> = "application/pdf"),
            (Vec<u8> = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
        ), headers(("Content-Disposition" = String))),
        (status = 404, description = "not_found: no such report, or only the runner that `detail` names serves it", body = Problem),
        (status = 429, description = "overloaded: too many downloads or connections", body = Problem),
    )
)]
pub(super) async fn download(
    State(api): State<Api>,
    sharing: PermitOwner,
    mut pass: RequestRight,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    // A path that is not valid text cannot name a report.
    let Path(name) = name.map_err(|_| refusal(&FindError::NoSuchReport))?;
    // When the API key is revoked, a slow download ends short of its Content-Length, so that no client takes the part
    // for the whole.
    match api.reports.find(&name).await.map_err(|error| refusal(&error))? {
        Found::Here(report) => {
            let headers = headers(&report.name, report.size_bytes, report.content_type);
            let bytes = ReaderStream::new(tokio::fs::File::from_std(report.file));
            let body = Body::from_stream(bytes.take_until(async move { pass.wait_until_revoked().await }));
            Ok((headers, body).into_response())
        }
        Found::Shared(report) => {
            let place = api.downloads.take(sharing.0);
            let place = place.map_err(|full| full.problem("downloads of reports", "this runner"))?;
            let headers = headers(report.name(), report.size_bytes(), report.content_type());
            let ends = async move {
                // Keep the permit until the last part is sent or the client has closed the connection.
                let _place = place;
                pass.wait_until_revoked().await;
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
    // As an attachment, so that browsers save the file and do not show it: a report may contain markup from untrusted
    // data. The name needs no escaping because tickr builds it from plain characters.
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
