//! Results of handlers that are too large for the row of their job. They become report files.

use std::io::Write as _;

use serde::Serialize;
use serde_json::value::RawValue;

use super::Format;
use super::file::{self, PartFile};
use super::finished::{FinishedReports, blocking};
use crate::{Context, Failure, Outcome, Output};
use tickr_job::{RunnerId, limits};

/// The result that the job gets in place of a large one.
#[derive(Debug, Serialize)]
struct LargeResult {
    /// Name of the file that holds the result as JSON.
    file: String,
    format: Format,
    bytes: u64,
    /// Path of the download, below the API's address.
    url: String,
    /// The only runner that can serve the file, when MySQL has no copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    only_on: Option<RunnerId>,
}

impl FinishedReports {
    /// Keep the result of a success as a file if it is too large for the row of the job, and give the job a result that
    /// names the file. A file that cannot be written fails the attempt like any other error, and the next attempt makes
    /// the result again. A stop does not end this: a success counts that comes within the time after a stop.
    #[doc(hidden)]
    pub async fn keep_large_result(&self, output: Output, ctx: &Context) -> Outcome {
        let is_large =
            |raw: &RawValue| (limits::MAX_RESULT_BYTES + 1..=limits::MAX_FILED_RESULT_BYTES).contains(&raw.get().len());
        if !output.result().is_some_and(is_large) {
            return Ok(output);
        }
        output.replace_result(async |result: Box<RawValue>| self.keep(result, ctx).await).await
    }

    async fn keep(&self, result: Box<RawValue>, ctx: &Context) -> Result<Box<RawValue>, Failure> {
        let format = Format::Json;
        let name = file::name(&format!("{}-result", ctx.kind()), ctx.job_id(), format);
        let (dir, token, part) = (self.dir().to_owned(), ctx.token(), name.clone());
        let write = move || {
            let mut file = PartFile::create(&dir, &part, token)?;
            file.write_all(result.get().as_bytes())?;
            file.sync()?;
            Ok(file)
        };
        let file =
            blocking(write).await.map_err(|error| Failure::retry(format!("keep the result as a file: {error}")))?;
        let bytes = file.bytes();
        let only_on = self.share_after_work(file, ctx).await?;
        let url = format!("/v1/reports/{name}");
        let kept = LargeResult { file: name, format, bytes, url, only_on };
        serde_json::value::to_raw_value(&kept).map_err(|error| Failure::reject(format!("write the result: {error}")))
    }
}
