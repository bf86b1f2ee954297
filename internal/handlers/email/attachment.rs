//! Attachments of a mail: small files inside the payload, or finished reports.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lettre::message::header::ContentType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Problem;
use crate::report::{FindError, FinishedReports};

/// Most attachments of one mail.
pub(super) const MAX_COUNT: usize = 10;
/// Most bytes of base64 in all attachments of one payload. By default a request body has at most 256 KiB; the rest is
/// for the mail itself. Larger files are attached as reports.
pub(super) const MAX_INLINE_BASE64_BYTES: usize = 224 * 1024;
/// Most bytes of all reports of one mail. Many servers refuse larger mails.
pub(super) const MAX_REPORT_BYTES: u64 = 10 * 1024 * 1024;

/// A file to attach: either `content_base64` with a `filename`, or `report`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Attachment {
    /// File name that the recipients see. Default for a report: its own name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 200))]
    pub filename: Option<String>,
    /// Media type, such as `text/csv`. Default: guessed from the file name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 100))]
    pub content_type: Option<String>,
    /// Content of the file in base64. All attachments of a mail together may have 224 KiB of base64 (168 KiB of files).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_base64: Option<String>,
    /// Name of a finished report, without a path. All reports of a mail together may have 10 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 200))]
    pub report: Option<String>,
    /// Address that the mail names in place of a report that another runner alone has. Default: the attempt fails, and
    /// the runner with the report may make the next one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 500))]
    pub or_link: Option<String>,
}

impl Attachment {
    /// Attach the report of this name.
    #[must_use]
    pub fn report(name: impl Into<String>) -> Self {
        Self { report: Some(name.into()), ..Self::default() }
    }

    /// Check the attachment. `pointer` is the JSON pointer to it.
    pub(super) fn problems(&self, pointer: &str, has_reports_dir: bool) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut wrong = |field: &str, detail: &str| problems.push(Problem::at(format!("{pointer}{field}"), detail));
        match (&self.content_base64, &self.report) {
            (Some(content), None) => {
                if self.filename.is_none() {
                    wrong("/filename", "must be given with content_base64");
                }
                if STANDARD.decode(content).is_err() {
                    wrong("/content_base64", "must be base64 with padding and without line breaks");
                }
            }
            (None, Some(report)) => {
                if !is_plain_name(report) || report.starts_with('.') {
                    wrong("/report", "must be the plain name of a report file, without a path");
                } else if !has_reports_dir {
                    wrong("/report", "cannot be attached: no reports folder is configured");
                }
            }
            (Some(_), Some(_)) | (None, None) => wrong("", "must have either content_base64 or report"),
        }
        if self.filename.as_deref().is_some_and(|name| !is_plain_name(name)) {
            wrong("/filename", "must be a plain file name without separators or control characters");
        }
        if let Some(link) = &self.or_link {
            if self.report.is_none() {
                wrong("/or_link", "may only be given with report");
            } else if link.chars().any(char::is_control) {
                wrong("/or_link", "must be one line without control characters");
            }
        }
        if self.content_type.as_deref().is_some_and(|text| media_type(text).is_none()) {
            wrong("/content_type", "must be the media type of a single file, such as text/csv");
        }
        problems
    }

    /// Load the content from the payload or from the report. `budget` is the number of bytes that reports of this mail
    /// may still have.
    pub(super) async fn load(
        &self,
        reports: Option<&FinishedReports>,
        budget: &mut u64,
    ) -> Result<Enclosure, LoadError> {
        let (name, content) = match (&self.content_base64, &self.report) {
            (Some(content), _) => ("attachment", STANDARD.decode(content).map_err(|_| LoadError::NotBase64)?),
            (None, Some(report)) => (report.as_str(), read_report(reports, report, budget).await?),
            (None, None) => return Err(LoadError::Empty),
        };
        let filename = self.filename.as_deref().unwrap_or(name);
        let content_type = self.content_type.as_deref().unwrap_or_else(|| guess(filename));
        let content_type = media_type(content_type).ok_or(LoadError::MediaType)?;
        Ok(Enclosure { filename: filename.to_owned(), content_type, content })
    }
}

/// An attachment with its content.
#[derive(Debug)]
pub(super) struct Enclosure {
    pub(super) filename: String,
    pub(super) content_type: ContentType,
    pub(super) content: Vec<u8>,
}

/// Reason why an attachment cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoadError {
    #[error("attach a file: content_base64 is not base64")]
    NotBase64,
    #[error("attach a file: it has neither content_base64 nor report")]
    Empty,
    #[error("attach a file: content_type is not a media type")]
    MediaType,
    #[error("attach report {0}: no reports folder is configured here")]
    NoReportsDir(String),
    #[error("attach report {0}: there is no such report")]
    NoSuchReport(String),
    #[error("attach report {0}: the reports of one mail must not exceed {limit} bytes", limit = MAX_REPORT_BYTES)]
    TooLarge(String),
    #[error("attach report {0}")]
    Read(String, #[source] FindError),
}

/// Read a report. The name must be that of a report, by the same rule as for downloads, because the folder may hold
/// other files.
async fn read_report(reports: Option<&FinishedReports>, name: &str, budget: &mut u64) -> Result<Vec<u8>, LoadError> {
    let reports = reports.ok_or_else(|| LoadError::NoReportsDir(name.to_owned()))?;
    let content = reports.read(name, *budget).await.map_err(|error| match error {
        FindError::NoSuchReport => LoadError::NoSuchReport(name.to_owned()),
        error => LoadError::Read(name.to_owned(), error),
    })?;
    let content = content.ok_or_else(|| LoadError::TooLarge(name.to_owned()))?;
    *budget -= content.len() as u64;
    Ok(content)
}

/// True for a name without a path and without control characters.
fn is_plain_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.chars().any(|c| c.is_control() || matches!(c, '/' | '\\'))
}

/// Parse the media type of a single file, in plain ASCII. The library's parser alone would also accept `text/` and line
/// breaks.
fn media_type(text: &str) -> Option<ContentType> {
    let (kind, rest) = text.split_once('/')?;
    let one_file = !["multipart", "message"].iter().any(|many| kind.eq_ignore_ascii_case(many));
    let named = rest.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    let plain = text.bytes().all(|b| b == b' ' || b.is_ascii_graphic());
    if one_file && named && plain { ContentType::parse(text).ok() } else { None }
}

fn guess(filename: &str) -> &'static str {
    match filename.rsplit('.').next().unwrap_or_default().to_ascii_lowercase().as_str() {
        "csv" => "text/csv; charset=utf-8",
        "html" => "text/html; charset=utf-8",
        "json" => "application/json",
        "pdf" => "application/pdf",
        "txt" => "text/plain; charset=utf-8",
        "xlsx" => "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pointers(attachment: Value) -> Vec<String> {
        let attachment: Attachment = serde_json::from_value(attachment).unwrap();
        attachment.problems("/a", true).into_iter().map(|problem| problem.pointer).collect()
    }

    #[test]
    fn an_attachment_is_a_named_file_or_a_report() {
        assert!(pointers(json!({"filename": "ä b.csv", "content_base64": "YQ=="})).is_empty());
        assert!(pointers(json!({"report": "0190.csv"})).is_empty());
        assert!(
            pointers(json!({"report": "0190.csv", "filename": "sales.csv", "content_type": "text/csv"})).is_empty()
        );
        assert_eq!(pointers(json!({})), ["/a"]);
        assert_eq!(pointers(json!({"report": "x", "filename": "x", "content_base64": ""})), ["/a"]);
        assert_eq!(pointers(json!({"content_base64": "YQ=="})), ["/a/filename"]);
        assert!(pointers(json!({"report": "x", "or_link": "/v1/reports/x"})).is_empty());
        assert_eq!(pointers(json!({"report": "x", "or_link": "a\r\nb"})), ["/a/or_link"]);
        assert_eq!(pointers(json!({"filename": "x", "content_base64": "", "or_link": "x"})), ["/a/or_link"]);
        for bad in ["YQ", "Y Q==", "YQ==\n", "ä"] {
            assert_eq!(pointers(json!({"filename": "x", "content_base64": bad})), ["/a/content_base64"], "{bad}");
        }
        for bad in ["", ".", "..", "a/b", "a\\b", "a\r\nX: y", "a\0b", "a\u{85}"] {
            assert_eq!(pointers(json!({"filename": bad, "content_base64": ""})), ["/a/filename"], "{bad:?}");
        }
        for bad in ["text", "text/", "multipart/mixed", "Message/rfc822", "text/csv\r\nX: y", "täxt/csv"] {
            assert_eq!(pointers(json!({"report": "x", "content_type": bad})), ["/a/content_type"], "{bad:?}");
        }
    }

    #[test]
    fn a_report_is_named_without_a_path() {
        for bad in ["", ".", "..", "../x", "/etc/passwd", "a/../b", "a\\b", ".hidden", "x\0"] {
            assert_eq!(pointers(json!({"report": bad})), ["/a/report"], "{bad:?}");
        }
        assert_eq!(Attachment::report("x").problems("/a", false)[0].pointer, "/a/report");
    }

    #[tokio::test]
    async fn only_finished_files_of_bearable_size_are_attached() {
        let dir = tempfile::tempdir().unwrap();
        let report = |stem: &str, extension: &str| format!("{stem}-0190b0a3-0000-7000-8000-000000000001.{extension}");
        let write = |name: &str, size: u64| std::fs::write(dir.path().join(name), vec![b'x'; size.try_into().unwrap()]);
        let [full, over, one] = [report("full", "pdf"), report("over", "csv"), report("one", "csv")];
        write(&full, MAX_REPORT_BYTES).unwrap();
        write(&over, MAX_REPORT_BYTES + 1).unwrap();
        write(&one, 1).unwrap();
        let reports = FinishedReports::in_folder(dir.path());
        let load = async |name: &str, budget: &mut u64| Attachment::report(name).load(Some(&reports), budget).await;

        let mut budget = MAX_REPORT_BYTES;
        let loaded = load(&full, &mut budget).await.unwrap();
        assert_eq!((&loaded.filename, loaded.content.len() as u64, budget), (&full, MAX_REPORT_BYTES, 0));
        assert!(matches!(load(&one, &mut budget).await, Err(LoadError::TooLarge(_))));
        assert!(matches!(load(&over, &mut MAX_REPORT_BYTES.clone()).await, Err(LoadError::TooLarge(_))));
        // None of these is a report: other files, hidden files, folders, and links to other places.
        let (hidden, folder, link) = (format!(".{one}"), report("folder", "csv"), report("link", "csv"));
        for other in ["notes.txt", "notes.csv", &hidden] {
            write(other, 1).unwrap();
        }
        std::fs::create_dir(dir.path().join(&folder)).unwrap();
        std::os::unix::fs::symlink(dir.path().join("notes.txt"), dir.path().join(&link)).unwrap();
        let gone = report("gone", "csv");
        for missing in [&gone, &folder, &link, "notes.txt", "notes.csv", "notes", &hidden] {
            assert!(matches!(load(missing, &mut 100).await, Err(LoadError::NoSuchReport(_))), "{missing}");
        }
        assert!(matches!(Attachment::report("x").load(None, &mut 100).await, Err(LoadError::NoReportsDir(_))));
    }
}
