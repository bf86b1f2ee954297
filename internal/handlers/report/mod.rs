//! Kind `report`: write the rows of a configured query into a file, and send the file by mail if the job requests it.
//!
//! A job names a query and gives its parameters; it never contains SQL. Rows are streamed from their source into the
//! file on a blocking thread, so memory does not grow with the table. The file appears under its name only when it is
//! complete. A job that runs again replaces its own file.
//!
//! [`Report`] is the payload, [`Reports`] the handler. The files:
//!
//! - `query.rs`: the parameters of a job, checked and bound to a query
//! - `rows.rs`: the loop that writes rows into a file, and its limits
//! - `file.rs`: files that are written under a hidden name and renamed when they are complete
//! - `finished.rs`: finished reports, in the folder of this runner and in MySQL
//! - `large_result.rs`: results of handlers that are too large for the row of their job
//! - `csv.rs`: CSV
//! - `json.rs`: JSON
//! - `html.rs`: HTML
//! - `xlsx.rs`: workbooks for spreadsheets
//! - `pdf.rs`: PDF
//! - `testing.rs`: tables in memory for tests
//!
//! The head of each format's file tells how it writes NULL, decimals, times and bytes.

mod csv;
mod file;
mod finished;
mod html;
mod json;
mod large_result;
#[cfg(feature = "pdf")]
mod pdf;
mod query;
mod rows;
#[cfg(test)]
mod testing;
#[cfg(feature = "xlsx")]
mod xlsx;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use chrono::{SubsecRound, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use file::ReportFile;
pub use finished::{FindError, FinishedReports, Found, ShareError, SharedReport, SharedReports, Sharing};

use super::email::{AllowedAddresses, RECIPIENTS, mailbox};
use super::{Context, Failure, Handler, Kind, KindDefaults, Outcome, Output, Problem, Registered, Room};
use file::PartFile;
use rows::{Heading, Limits, PourError, Poured, WriteError, pour};
use tickr_config::ReportQuery;
use tickr_job::{JobId, RunnerId};
use tickr_table::{Cell, RowSource, Select, SourceError};

/// Largest file that is attached, in bytes. The email kind and most mail servers refuse larger ones.
const MAX_ATTACHED_BYTES: u64 = 10 << 20;

/// Payload of a report job.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// Name of a configured query.
    #[schemars(length(min = 1, max = 64))]
    pub query: String,
    /// Parameters of the query, by name.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub params: Map<String, Value>,
    /// Format of the file. Default: `csv`.
    #[serde(default)]
    pub format: Format,
    /// Title of the report. Default: the title of the query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 200))]
    pub title: Option<String>,
    /// Start of the file's name: letters, digits, `_ . -`. Default: the name of the query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 100))]
    pub file_name: Option<String>,
    /// Mail with the finished file. Default: no mail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    // Schema without "or null", so that problems point to the field inside and not to the mail as a whole.
    #[schemars(with = "Email")]
    pub email: Option<Email>,
}

impl Kind for Report {
    const NAME: &'static str = "report";
}

/// The mail that a report job requests.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Email {
    /// Addresses of the recipients.
    #[schemars(length(min = 1, max = 50))]
    pub to: Vec<String>,
    /// Addresses of the recipients of a copy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50))]
    pub cc: Vec<String>,
    /// Subject. Default: the title of the report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 200))]
    pub subject: Option<String>,
    /// Text. Default: a line that names the attached file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 20_000))]
    pub text: Option<String>,
}

/// Format of a report file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Comma-separated values that are safe to open in a spreadsheet.
    #[default]
    Csv,
    /// An array of objects with exact values.
    Json,
    /// A page for a browser or a printer.
    Html,
    /// A workbook of at most 1,048,575 rows.
    Xlsx,
    /// Pages to read or print, at most 50,000 rows.
    Pdf,
}

impl Format {
    const ALL: [Self; 5] = [Self::Csv, Self::Json, Self::Html, Self::Xlsx, Self::Pdf];

    /// Extension of the files, which is also the name of the format.
    #[must_use]
    pub fn extension(self) -> &'static str {
        match self {
            Self::Csv => "csv",
            Self::Json => "json",
            Self::Html => "html",
            Self::Xlsx => "xlsx",
            Self::Pdf => "pdf",
        }
    }

    /// Return the format of files with this extension.
    #[must_use]
    pub fn from_extension(extension: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.extension() == extension)
    }

    /// Media type of the files.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Csv => "text/csv; charset=utf-8",
            Self::Json => "application/json",
            Self::Html => "text/html; charset=utf-8",
            Self::Xlsx => "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
            Self::Pdf => "application/pdf",
        }
    }

    /// Most rows in one file of this format.
    #[must_use]
    pub fn max_rows(self) -> u64 {
        match self {
            Self::Csv | Self::Json | Self::Html => u64::MAX,
            #[cfg(feature = "xlsx")]
            Self::Xlsx => xlsx::MAX_ROWS,
            #[cfg(feature = "pdf")]
            Self::Pdf => pdf::MAX_ROWS,
            #[cfg(not(all(feature = "pdf", feature = "xlsx")))]
            _ => 0,
        }
    }

    /// Return whether the file of this format is written when all rows are there.
    fn writes_at_end(self) -> bool {
        match self {
            Self::Xlsx | Self::Pdf => true,
            Self::Csv | Self::Json | Self::Html => false,
        }
    }

    /// Say which feature of the crate this format needs, if the program was built without it.
    fn missing(self) -> Option<String> {
        let built = match self {
            Self::Csv | Self::Json | Self::Html => true,
            Self::Xlsx => cfg!(feature = "xlsx"),
            Self::Pdf => cfg!(feature = "pdf"),
        };
        (!built).then(|| format!("this program was built without the feature `{self}` of tickr"))
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.extension())
    }
}

/// The operator's settings for reports.
#[derive(Clone, Debug)]
pub struct ReportSettings {
    /// Folder of the files. It is created if it is missing.
    pub dir: PathBuf,
    /// Time limit of a query, from its start on the server to its last row in the file.
    pub time_limit: Duration,
    /// Most rows in one report.
    pub max_rows: u64,
    /// Most bytes in one file.
    pub max_bytes: u64,
    /// Configured queries, by name.
    pub queries: BTreeMap<String, ReportQuery>,
}

/// The handler of [`Report`].
pub struct Reports {
    settings: ReportSettings,
    source: Arc<dyn RowSource>,
    finished: FinishedReports,
    /// Addresses that may get a report by mail.
    recipients: AllowedAddresses,
    /// True when jobs may ask for a mail: this program has the kind `email`.
    mails: bool,
    /// A place for each connection of the source. None: the source takes any number of reports.
    room: Option<Room>,
}

impl fmt::Debug for Reports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reports").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// The result stored with the job.
#[derive(Debug, Serialize)]
struct Written {
    file: String,
    format: Format,
    rows: u64,
    bytes: u64,
    query: String,
    /// Path of the download, below the API's address.
    url: String,
    /// Number of cells in an xlsx or pdf file that were too long. They end in `…`.
    #[serde(skip_serializing_if = "is_zero")]
    cut_cells: u64,
    /// The only runner that can serve the file, when MySQL has no copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    only_on: Option<RunnerId>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the shape that serde asks for")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The fields of the email kind's payload that a report fills in. The attachment is given by name, because it may be
/// larger than a payload.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct ReportMail {
    to: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    cc: Vec<String>,
    subject: String,
    text: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    attachments: Vec<Attachment>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct Attachment {
    report: String,
    /// Address of a report that this runner alone has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    or_link: Option<String>,
}

impl Kind for ReportMail {
    const NAME: &'static str = "email";
}

/// Return whether this kind `email` accepts the mail that a report asks for: it knows the fields, and has a sender for
/// a mail that names none. The recipients of each report are checked with the report.
#[must_use]
pub fn can_mail(email: &Registered) -> bool {
    let report = file::name("report", JobId::new(), Format::Csv);
    let mail = ReportMail {
        to: vec!["reports@example.com".to_owned()],
        cc: Vec::new(),
        subject: "Report".to_owned(),
        text: "The report is attached.".to_owned(),
        attachments: vec![Attachment { or_link: Some(format!("/v1/reports/{report}")), report }],
    };
    let problems = serde_json::value::to_raw_value(&mail).map(|mail| email.check(&mail));
    matches!(problems, Ok(Ok(problems)) if problems.iter().all(|problem| problem.pointer.starts_with("/to/")))
}

impl Reports {
    /// Make a handler for these queries. `source` provides their rows.
    #[must_use]
    pub fn new(settings: ReportSettings, source: Arc<dyn RowSource>) -> Self {
        let finished = FinishedReports::in_folder(&settings.dir);
        Self { settings, source, finished, recipients: AllowedAddresses::default(), mails: true, room: None }
    }

    /// Start no more reports at a time than the source has connections. Further ones wait for their turn.
    #[must_use]
    pub fn with_connections(mut self, connections: u32) -> Self {
        self.room = Some(Room::new(Report::NAME, connections));
        self
    }

    /// Keep finished reports in `finished`, instead of only in the folder of the settings.
    #[must_use]
    pub fn keeping(mut self, finished: FinishedReports) -> Self {
        self.finished = finished;
        self
    }

    /// Allow mails to these addresses only. The email kind checks them again; the check here reports the error to the
    /// client that enqueues the report.
    #[must_use]
    pub fn mailing_only_to(mut self, recipients: AllowedAddresses) -> Self {
        self.recipients = recipients;
        self
    }

    /// Refuse jobs that ask for a mail, in a program that cannot send one. Otherwise they would fail after their
    /// queries. Another program may have declared a kind `email`, but its payload need not be the one that a report
    /// fills in, and that would show only when the follow-up is refused.
    #[must_use]
    pub fn without_mails(mut self) -> Self {
        self.mails = false;
        self
    }

    /// Find the query that `report` names, and the values for its parameters.
    fn resolve(&self, report: &Report) -> Result<(&ReportQuery, Vec<Cell>), Vec<Problem>> {
        let Some(query) = self.settings.queries.get(&report.query) else {
            let known = query::quote_list(self.settings.queries.keys());
            return Err(vec![Problem::at("/query", format!("there is no such query; configured queries: {known}"))]);
        };
        Ok((query, query::bind(query, &report.params)?))
    }

    /// Write the file. Afterwards it is complete and durable, but not visible under its name yet.
    async fn write(
        &self,
        report: &Report,
        name: &str,
        select: Select,
        title: &str,
        ctx: &Context,
    ) -> Result<Poured, Failure> {
        let stream = self.source.open(select);
        let stop = stream.stop_token();
        // The stream also stops when this future is dropped. The thread below cannot be dropped, but it ends when its
        // rows end.
        let _stop_on_drop = stop.clone().drop_guard();

        let heading =
            Heading { title: title.to_owned(), query: report.query.clone(), made_at: Utc::now().trunc_subsecs(0) };
        let limits = Limits { max_rows: self.settings.max_rows, max_bytes: self.settings.max_bytes };
        let (dir, name, format, token) = (self.finished.dir().to_owned(), name.to_owned(), report.format, ctx.token());
        let progress = {
            let ctx = ctx.clone();
            // The number of rows is not known in advance, so there is no percentage.
            move |rows, bytes| ctx.progress(0.0, format!("{rows} rows, {bytes} bytes"))
        };
        let mut writing = tokio::task::spawn_blocking(move || {
            let file = PartFile::create(&dir, &name, token).map_err(WriteError::from)?;
            pour(stream, file, format, heading, limits, progress)
        });

        let written = tokio::select! {
            written = &mut writing => written,
            () = ctx.stopped() => {
                stop.cancel();
                writing.await
            }
        };
        match written {
            // The attempt ended while the file was finished, so the file is not used. Dropping it removes it.
            Ok(Ok(_)) | Ok(Err(_)) if ctx.should_stop() => {
                Err(Failure::retry("stopped before the report was complete"))
            }
            Ok(Ok(poured)) => Ok(poured),
            Ok(Err(error)) => Err(failure(&report.query, &error)),
            // The writer panicked: continue the panic, so that the attempt ends as panicked.
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(error) => Err(Failure::retry(format!("write the report: {error}"))),
            },
        }
    }
}

impl Handler for Reports {
    type Payload = Report;

    fn check(&self, report: &Report) -> Vec<Problem> {
        let mut problems = self.resolve(report).err().unwrap_or_default();
        problems.extend(report.format.missing().map(|why| Problem::at("/format", why)));
        if report.file_name.as_deref().is_some_and(|stem| !file::is_plain(stem)) {
            let right = "must consist of letters, digits, _ . and -, and start with a letter or digit";
            problems.push(Problem::at("/file_name", right));
        }
        if report.title.as_deref().is_some_and(has_control_characters) {
            problems.push(Problem::at("/title", "must be one line without control characters"));
        }
        match &report.email {
            Some(_) if !self.mails => {
                problems.push(Problem::at(
                    "/email",
                    "needs a runner that sends mails itself (an operator sets [smtp] with from, or outbox_dir); a \
                     declared kind email does not count",
                ));
            }
            Some(email) => problems.extend(email.check(&self.recipients)),
            None => {}
        }
        problems
    }

    fn defaults(&self) -> KindDefaults {
        // Time for the query, and for finishing a large file after it.
        KindDefaults { timeout: self.settings.time_limit + Duration::from_secs(120), ..KindDefaults::default() }
    }

    fn room(&self) -> Option<&Room> {
        self.room.as_ref()
    }

    async fn run(&self, report: Report, ctx: Context) -> Outcome {
        // The runner that accepted the job may have other settings.
        let (query, values) = self.resolve(&report).map_err(|problems| given_back(&report.query, &problems))?;
        if report.email.is_some() && !self.mails {
            let problem = Problem::at("/email", "cannot be sent by this runner");
            return Err(given_back(&report.query, &[problem]));
        }
        let stem = report.file_name.as_deref().filter(|stem| file::is_plain(stem)).unwrap_or(&report.query);
        let name = file::name(stem, ctx.job_id(), report.format);
        let title = report.title.as_deref().unwrap_or(&query.title);
        let select = Select {
            name: report.query.clone(),
            sql: query.statement.sql.as_str().into(),
            values,
            time_limit: self.settings.time_limit,
        };

        let Poured { file, rows, cut_cells } = self.write(&report, &name, select, title, &ctx).await?;
        let bytes = file.bytes();
        let only_on = self.finished.share(file, &ctx).await?;
        ctx.progress(100.0, format!("{rows} rows, {bytes} bytes"));

        let url = format!("/v1/reports/{name}");
        let (file, format, query) = (name, report.format, report.query);
        let written = Written { file, format, rows, bytes, query, url, cut_cells, only_on };
        let output = Output::json(&written)?;
        match report.email {
            Some(email) => output.then(&email.about(&written, title)),
            None => Ok(output),
        }
    }
}

impl Email {
    fn check(&self, allowed: &AllowedAddresses) -> Vec<Problem> {
        let mut problems = Vec::new();
        for (field, addresses) in [("to", &self.to), ("cc", &self.cc)] {
            for (at, address) in addresses.iter().enumerate() {
                // As the email kind reads it. An address that it refuses would fail the job after its query.
                let wrong = match mailbox(address) {
                    Err(error) => error.to_string(),
                    Ok(mailbox) if !allowed.allows(&mailbox) => allowed.refusal(RECIPIENTS),
                    Ok(_) => continue,
                };
                problems.push(Problem::at(format!("/email/{field}/{at}"), wrong));
            }
        }
        if self.to.len() + self.cc.len() > 50 {
            problems.push(Problem::at("/email", "has more than 50 recipients"));
        }
        // Mail readers would decode `=?`, so the email kind refuses it.
        if self.subject.as_deref().is_some_and(|subject| has_control_characters(subject) || subject.contains("=?")) {
            problems.push(Problem::at("/email/subject", "must be one line without control characters and without =?"));
        }
        problems
    }

    /// Make the mail for a finished file. It has the file as an attachment, or its address if the file is too large. If
    /// MySQL has no copy, the runner that sends the mail decides: another one than this has the address alone.
    fn about(self, written: &Written, title: &str) -> ReportMail {
        let is_attached = written.bytes <= MAX_ATTACHED_BYTES;
        let Written { file, url, bytes, only_on, .. } = written;
        let what = match only_on {
            _ if !is_attached => {
                format!("The report \"{title}\" is too large to attach ({bytes} bytes). It is kept as {url}\n")
            }
            Some(_) => format!("The report \"{title}\" is finished: {file}\n"),
            None => format!("The report \"{title}\" is attached as {file}.\n"),
        };
        let text = match self.text {
            Some(text) if is_attached => text,
            Some(text) => format!("{text}\n\n{what}"),
            None => what,
        };
        let subject = self.subject.unwrap_or_else(|| title.replace("=?", "= ?"));
        let or_link = only_on.as_ref().map(|_| url.clone());
        let attachments = if is_attached { vec![Attachment { report: file.clone(), or_link }] } else { Vec::new() };
        ReportMail { to: self.to, cc: self.cc, subject, text, attachments }
    }
}

fn has_control_characters(text: &str) -> bool {
    text.chars().any(char::is_control)
}

fn given_back(query: &str, problems: &[Problem]) -> Failure {
    let problems: Vec<_> = problems.iter().map(|Problem { pointer, detail }| format!("{pointer} {detail}")).collect();
    Failure::other_settings(format!("prepare report {query}: {}", problems.join("; ")))
}

/// Turn an error into a failure, with or without a retry.
fn failure(query: &str, error: &PourError) -> Failure {
    let text = format!("report {query}: {error}");
    match error {
        // Rare, because the engine starts a report only when a connection is free: the last report is leaving it.
        PourError::Source(SourceError::Busy) => Failure::snooze(Duration::from_secs(5), text),
        PourError::Source(SourceError::TimedOut { .. } | SourceError::Unavailable(_) | SourceError::Stopped)
        | PourError::Write(WriteError::Io(_)) => Failure::retry(text),
        PourError::Source(SourceError::Refused { .. } | SourceError::Unreadable(_))
        | PourError::Write(WriteError::Unfit(_) | WriteError::Library(_))
        | PourError::TooLarge(_) => Failure::reject(text),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use serde_json::json;

    use super::testing::{Memory, column};
    use super::*;
    use crate::{ContextParts, ProgressSlot, Registry};
    use tickr_config::{ParamType, ReportParam, Statement};
    use tickr_job::AttemptToken;
    use tickr_table::ColumnKind;

    fn memory(rows: usize) -> Memory {
        let columns = vec![column("n", ColumnKind::Integer), column("text", ColumnKind::Text)];
        let rows = (0..rows as i64).map(|n| vec![Cell::Integer(n), Cell::Text("x".repeat(10))]).collect();
        Memory { columns, rows, end: Ok(()), hangs: false }
    }

    fn reports(dir: &Path, source: Memory) -> Reports {
        let sql = "SELECT :since";
        let query = ReportQuery {
            title: "All orders".into(),
            description: None,
            sql: sql.into(),
            statement: Statement::parse(sql).unwrap(),
            params: vec![ReportParam {
                name: "since".into(),
                kind: ParamType::Date,
                required: false,
                default: None,
                min: None,
                max: None,
            }],
        };
        let settings = ReportSettings {
            dir: dir.into(),
            time_limit: Duration::from_secs(60),
            max_rows: 1_000,
            max_bytes: 50_000,
            queries: [("orders".to_owned(), query.clone()), ("items".to_owned(), query)].into(),
        };
        Reports::new(settings, Arc::new(source))
    }

    fn payload(payload: Value) -> Report {
        serde_json::from_value(payload).unwrap()
    }

    fn files(dir: &Path) -> Vec<String> {
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_payload_is_checked_at_enqueue() {
        let dir = tempfile::tempdir().unwrap();
        let mut registry = Registry::new();
        registry.register_handler(reports(dir.path(), memory(0)));
        let problems = |payload: Value| {
            let problems =
                registry.get("report").unwrap().check(&serde_json::value::to_raw_value(&payload).unwrap()).unwrap();
            problems.into_iter().map(|problem| (problem.pointer, problem.detail)).collect::<Vec<_>>()
        };
        let pointers = |payload: Value| problems(payload).into_iter().map(|(pointer, _)| pointer).collect::<Vec<_>>();

        assert!(problems(json!({"query": "orders"})).is_empty());
        assert!(problems(json!({"query": "orders", "format": "pdf", "params": {"since": "2026-01-01"}})).is_empty());
        let unknown = problems(json!({"query": "passwords"}));
        assert_eq!(unknown[0].0, "/query");
        assert!(unknown[0].1.ends_with("configured queries: items, orders"), "{unknown:?}");
        assert_eq!(pointers(json!({"query": "orders", "params": {"since": "yesterday"}})), ["/params/since"]);
        assert_eq!(pointers(json!({"query": "orders", "params": {"until": 1}})), ["/params/until"]);
        assert_eq!(pointers(json!({"query": "orders", "format": "doc"})), ["/format"]);
        assert_eq!(pointers(json!({"query": "orders", "sql": "DROP"})), [""]);
        for file_name in ["../x", ".x", "a/b", "ä", "a b"] {
            assert_eq!(pointers(json!({"query": "orders", "file_name": file_name})), ["/file_name"]);
        }
        assert_eq!(
            pointers(json!({"query": "orders", "title": "a\nb",
                            "email": {"to": ["a@example.com", "nobody"], "cc": ["a@b\r\nBcc: x@y"], "subject": "a\rb"}})),
            ["/title", "/email/to/1", "/email/cc/0", "/email/subject"]
        );
        assert_eq!(pointers(json!({"query": "orders", "email": {"to": []}})), ["/email/to"]);
        // The mail is another job, and its kind takes less than the standards allow.
        let long = format!("{} <a@example.com>", "x".repeat(320));
        for odd in ["ann@bücher.example", "\"a b\"@example.com", "=?utf-8?q?Ann?= <a@example.com>", &long] {
            assert_eq!(pointers(json!({"query": "orders", "email": {"to": [odd]}})), ["/email/to/0"], "{odd}");
        }
    }

    #[test]
    fn a_mail_is_refused_at_enqueue_where_none_can_be_sent() {
        let dir = tempfile::tempdir().unwrap();
        let reports = reports(dir.path(), memory(0)).without_mails();
        let problems = reports.check(&payload(json!({"query": "orders", "email": {"to": ["a@example.com"]}})));
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].pointer == "/email" && problems[0].detail.contains("outbox_dir"), "{problems:?}");
        assert!(problems[0].detail.contains("a declared kind email does not count"), "{problems:?}");
        assert!(reports.check(&payload(json!({"query": "orders"}))).is_empty());
    }

    #[tokio::test]
    async fn a_report_that_this_runner_cannot_make_is_given_back_before_its_query_runs() {
        let dir = tempfile::tempdir().unwrap();
        let mail = json!({"query": "orders", "email": {"to": ["a@example.com"]}});
        for (handler, report, why) in [
            (reports(dir.path(), memory(1)), json!({"query": "new"}), "/query there is no such query"),
            (reports(dir.path(), memory(1)), json!({"query": "orders", "params": {"new": 1}}), "/params/new "),
            (reports(dir.path(), memory(1)).without_mails(), mail, "/email cannot be sent by this runner"),
        ] {
            let failure = handler.run(payload(report), Context::detached("report")).await.unwrap_err();
            assert!(matches!(&failure, Failure::Snooze { reason, .. } if reason.contains(why)), "{failure:?}");
            assert!(files(dir.path()).is_empty());
        }
    }

    #[tokio::test]
    async fn a_finished_report_has_a_name_a_result_and_a_mail() {
        let dir = tempfile::tempdir().unwrap();
        let ctx = Context::detached("report");
        let report = payload(json!({
            "query": "orders", "file_name": "october", "email": {"to": ["a@example.com"], "cc": ["b@example.com"]},
        }));
        let output = reports(dir.path(), memory(3)).run(report.clone(), ctx.clone()).await.unwrap();
        let (result, follow_ups) = output.into_parts();

        let file = format!("october-{}.csv", ctx.job_id());
        let bytes = fs::metadata(dir.path().join(&file)).unwrap().len();
        let result: Value = serde_json::from_str(result.unwrap().get()).unwrap();
        assert_eq!(
            result,
            json!({"file": file, "format": "csv", "rows": 3, "bytes": bytes, "query": "orders",
                   "url": format!("/v1/reports/{file}")})
        );
        assert_eq!(follow_ups.len(), 1);
        assert_eq!(follow_ups[0].kind, "email");
        let mail: Value = serde_json::from_str(follow_ups[0].payload.get()).unwrap();
        assert_eq!(
            mail,
            json!({"to": ["a@example.com"], "cc": ["b@example.com"], "subject": "All orders",
                   "text": format!("The report \"All orders\" is attached as {file}.\n"),
                   "attachments": [{"report": file}]})
        );

        reports(dir.path(), memory(5)).run(report, ctx).await.unwrap();
        assert_eq!(files(dir.path()), [file], "another attempt replaces");
    }

    #[tokio::test]
    async fn a_report_that_is_being_written_outlasts_a_short_retention() {
        let dir = tempfile::tempdir().unwrap();
        let name = file::name("orders", JobId::new(), Format::Xlsx);
        let part = PartFile::create(dir.path(), &name, AttemptToken::new()).unwrap();
        // A workbook is written into the file only when the query has ended.
        part.read().unwrap().set_modified(std::time::SystemTime::now() - Duration::from_secs(120)).unwrap();
        FinishedReports::in_folder(dir.path()).sweep(Duration::from_secs(60)).await.unwrap();
        part.publish().unwrap();
        assert_eq!(files(dir.path()), [name]);
    }

    #[tokio::test]
    async fn every_format_can_be_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        for format in Format::ALL {
            let ctx = Context::detached("report");
            let report = payload(json!({"query": "orders", "format": format}));
            reports(dir.path(), memory(10)).run(report, ctx.clone()).await.unwrap();
            let name = file::name("orders", ctx.job_id(), format);
            assert_eq!(file::open(dir.path(), &name).unwrap().content_type, format.content_type());
        }
    }

    #[tokio::test]
    async fn limits_reject_and_leave_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let wide = Memory {
            columns: vec![column("text", ColumnKind::Text)],
            rows: vec![vec![Cell::Text("x".repeat(60_000))]],
            end: Ok(()),
            hangs: false,
        };
        for format in Format::ALL {
            for (source, words) in [
                (memory(1_001), "more than 1000 rows"),
                (memory(1_000), ""),
                (wide_of(&wide), "larger than 50000 bytes"),
            ] {
                let report = payload(json!({"query": "orders", "format": format}));
                let outcome = reports(dir.path(), source).run(report, Context::detached("report")).await;
                if words.is_empty() {
                    for file in files(dir.path()) {
                        fs::remove_file(dir.path().join(file)).unwrap();
                    }
                    continue;
                }
                let Err(Failure::Reject { error }) = outcome else { panic!("{format}: {outcome:?}") };
                assert!(error.starts_with("report orders: ") && error.contains(words), "{format}: {error}");
                assert!(files(dir.path()).is_empty());
            }
        }
    }

    fn wide_of(source: &Memory) -> Memory {
        Memory { columns: source.columns.clone(), rows: source.rows.clone(), end: Ok(()), hangs: false }
    }

    #[tokio::test]
    async fn what_goes_wrong_decides_what_happens_next() {
        let dir = tempfile::tempdir().unwrap();
        for (error, expected) in [
            (SourceError::Refused { number: 1064, reason: "a syntax error" }, "reject"),
            (SourceError::Unreadable("a value".into()), "reject"),
            (SourceError::TimedOut { limit: Duration::from_secs(60) }, "retry"),
            (SourceError::Unavailable("gone".into()), "retry"),
            (SourceError::Busy, "snooze"),
        ] {
            let source = Memory { end: Err(error.clone()), ..memory(10) };
            let outcome =
                reports(dir.path(), source).run(payload(json!({"query": "orders"})), Context::detached("report")).await;
            let (found, text) = match outcome.unwrap_err() {
                Failure::Retry { error } => ("retry", error),
                Failure::Reject { error } => ("reject", error),
                Failure::Snooze { reason, .. } => ("snooze", reason),
            };
            assert_eq!(found, expected);
            assert_eq!(text, format!("report orders: run the query: {error}"));
            assert!(!text.contains("SELECT"));
            assert!(files(dir.path()).is_empty());
        }
    }

    #[tokio::test]
    async fn a_stopped_report_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let stop = tokio_util::sync::CancellationToken::new();
        let ctx = Context::new(ContextParts {
            job: JobId::new(),
            kind: "report".parse().unwrap(),
            queue: "default".parse().unwrap(),
            attempt: 1,
            max_attempts: 5,
            token: AttemptToken::new(),
            deadline: tokio::time::Instant::now() + Duration::from_secs(60),
            started_at: chrono::Utc::now(),
            clock: (chrono::Utc::now(), tokio::time::Instant::now()),
            time_limit: Duration::from_secs(60),
            tags: Vec::new(),
            stop: stop.clone(),
            progress: ProgressSlot::default(),
            checkpoint: Default::default(),
            finish: Default::default(),
            trace: None,
            exchange: Default::default(),
            call: Default::default(),
            log: Default::default(),
        });
        let source = Memory { hangs: true, ..memory(500) };
        let running = tokio::spawn({
            let reports = reports(dir.path(), source);
            async move { reports.run(payload(json!({"query": "orders"})), ctx).await }
        });
        while fs::read_dir(dir.path()).unwrap().next().is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stop.cancel();
        assert!(matches!(running.await.unwrap(), Err(Failure::Retry { .. })));
        assert!(files(dir.path()).is_empty());
    }

    #[test]
    fn a_file_that_is_too_large_to_attach_is_pointed_at() {
        let email = Email { to: vec!["a@example.com".into()], cc: vec![], subject: None, text: Some("Hello.".into()) };
        let mut written = Written {
            file: "f.csv".into(),
            format: Format::Csv,
            rows: 1,
            bytes: MAX_ATTACHED_BYTES,
            query: "orders".into(),
            url: "/v1/reports/f.csv".into(),
            cut_cells: 0,
            only_on: None,
        };
        let mail = email.clone().about(&written, "=?x?=");
        assert_eq!((mail.subject.as_str(), mail.text.as_str(), mail.attachments.len()), ("= ?x?=", "Hello.", 1));
        assert_eq!(mail.attachments[0].or_link, None);
        written.only_on = Some(RunnerId::from_stored("runner".into()));
        let mail = email.clone().about(&written, "All orders");
        assert_eq!(mail.attachments[0].or_link.as_deref(), Some("/v1/reports/f.csv"));
        written.only_on = None;
        written.bytes += 1;
        let mail = serde_json::to_value(email.about(&written, "All orders")).unwrap();
        assert_eq!(
            mail,
            json!({"to": ["a@example.com"], "subject": "All orders", "text": "Hello.\n\nThe report \"All orders\" is too \
                   large to attach (10485761 bytes). It is kept as /v1/reports/f.csv\n"})
        );
    }
}
