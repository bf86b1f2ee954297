//! Finished reports. They are in the folder of the runner that made them, and up to a configured size also in MySQL, so
//! that every runner can serve and mail them.
//!
//! A report is stored in this order: its content in MySQL, the row that makes it visible there, its name in the folder.
//! Only the holder of the job's token can write that row, so an attempt that has lost its job replaces nothing in
//! either place.
//!
//! MySQL decides which report a name stands for. The folder serves the reports that this runner made, reports that are
//! too large for MySQL, and all of its reports while MySQL does not answer.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{self, Stream, TryStreamExt as _};
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncReadExt as _;
use tokio::sync::Semaphore;

use super::file::{self, PartFile, ReportFile, ReportName};
use crate::{Context, Failure};
use tickr_job::{AttemptToken, JobId, ReportRecord, RunnerId};

/// Number of reports that one runner copies to MySQL at the same time. Each copy holds a part in memory.
const COPIES_AT_ONCE: usize = 2;
/// Time limit for a look into MySQL, after which only the folder is used.
const PATIENCE: Duration = Duration::from_secs(3);
/// Shortest pause between two tries to copy a report while MySQL does not answer. It doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// Number of files removed in one page of a sweep.
const SWEPT_AT_ONCE: usize = 200;
/// Unfinished files that have not changed for this long are removed, because their runner was killed: no attempt takes
/// longer than a day. Some formats change the file only at the end of an attempt.
const UNFINISHED: Duration = Duration::from_secs(86_400);

/// Store of the reports that all runners share.
pub trait SharedReports: Send + Sync + 'static {
    /// Largest size of a part, in bytes.
    fn part_bytes(&self) -> usize;

    /// Remove unfinished parts of earlier attempts of the job. Return false when the token does not hold the job.
    fn begin(&self, job: JobId, token: AttemptToken) -> BoxFuture<'_, Result<bool, ShareError>>;

    /// Write a part. A repeated write replaces it.
    fn put_part(
        &self,
        job: JobId,
        token: AttemptToken,
        number: u32,
        content: Vec<u8>,
    ) -> BoxFuture<'_, Result<(), ShareError>>;

    /// Make a report visible after its parts are written. Return false when the token does not hold the job, or a part
    /// is missing.
    fn publish<'a>(&'a self, record: &'a ReportRecord) -> BoxFuture<'a, Result<bool, ShareError>>;

    /// Return the record of a job's report.
    fn find(&self, job: JobId) -> BoxFuture<'_, Result<Option<ReportRecord>, ShareError>>;

    /// Return a part, or `None` when it no longer exists.
    fn part(&self, job: JobId, token: AttemptToken, number: u32) -> BoxFuture<'_, Result<Option<Vec<u8>>, ShareError>>;
}

/// Reason why a report cannot be shared.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ShareError {
    /// The same call may succeed later.
    #[error("{0}")]
    Unavailable(String),
    /// The same call fails until an operator changes something.
    #[error("{0}")]
    Refused(String),
}

/// The owner of the reports, and the size up to which they are shared.
#[derive(Clone, Debug)]
pub struct Sharing {
    /// Id of the runner. In a child process for a suspect job it is the runner that started the process, which has the
    /// same folder.
    pub runner: RunnerId,
    /// Host of the runner.
    pub host: String,
    /// Largest size of a report that is shared, in bytes. With 0, no report is shared.
    pub up_to_bytes: u64,
}

/// The finished reports that this runner can serve. Cheap to clone.
#[derive(Clone)]
pub struct FinishedReports {
    dir: PathBuf,
    shared: Option<Arc<SharedReportAccess>>,
}

struct SharedReportAccess {
    reports: Arc<dyn SharedReports>,
    sharing: Sharing,
    turns: Semaphore,
}

impl std::fmt::Debug for FinishedReports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FinishedReports").field("dir", &self.dir).finish_non_exhaustive()
    }
}

/// A finished report, by the place of its content.
#[derive(Debug)]
pub enum Found {
    /// The content is in the folder of this runner.
    Here(ReportFile),
    /// The content is in MySQL.
    Shared(SharedReport),
}

/// Reason why a report was not found.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// No runner has a report of this name.
    #[error("there is no report of that name")]
    NoSuchReport,
    /// Another runner has the report, and MySQL has no copy.
    #[error(
        "the report is in the folder of runner {runner} on host {host} alone, and only that host serves it: MySQL keeps \
         reports up to share_up_to of [reports], and this one has {bytes} bytes"
    )]
    Elsewhere {
        /// The runner that made the report.
        runner: RunnerId,
        /// The host of that runner.
        host: String,
        /// Size of the report.
        bytes: u64,
    },
    /// MySQL does not answer, and the folder of this runner does not have the report.
    #[error("look for the report in mysql: {0}")]
    Unavailable(String),
    /// The disk returned an error.
    #[error("read the report")]
    Disk(#[from] io::Error),
}

/// A report whose content is in MySQL.
#[derive(Clone)]
pub struct SharedReport {
    reports: Arc<dyn SharedReports>,
    record: ReportRecord,
    content_type: &'static str,
}

impl std::fmt::Debug for SharedReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedReport").field("record", &self.record).finish_non_exhaustive()
    }
}

impl FinishedReports {
    /// Serve the reports of a folder, without MySQL.
    #[must_use]
    pub fn in_folder(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), shared: None }
    }

    /// Share the reports through `reports`.
    #[must_use]
    pub fn shared_through(mut self, reports: Arc<dyn SharedReports>, sharing: Sharing) -> Self {
        self.shared = Some(Arc::new(SharedReportAccess { reports, sharing, turns: Semaphore::new(COPIES_AT_ONCE) }));
        self
    }

    /// Store a finished file: share it if it is small enough, then give it its name. Return the runner if it is the
    /// only one that has the report.
    ///
    /// While MySQL does not answer, this retries until the attempt ends. Then the attempt fails like any other, and the
    /// next one makes the report again. A report that MySQL refuses stays in the folder only.
    pub(super) async fn share(&self, file: PartFile, ctx: &Context) -> Result<Option<RunnerId>, Failure> {
        let only_on = tokio::select! {
            only_on = self.copy(&file, ctx) => only_on?,
            () = ctx.stopped() => return Err(Failure::retry("stopped before the report was stored")),
        };
        publish(file).await?;
        Ok(only_on)
    }

    /// Store a finished file as [`share`](Self::share) does, also after the attempt was told to stop: its work is done.
    /// The executor drops what takes longer than the time that a handler has after a stop.
    pub(super) async fn share_after_work(&self, file: PartFile, ctx: &Context) -> Result<Option<RunnerId>, Failure> {
        let only_on = self.copy(&file, ctx).await?;
        publish(file).await?;
        Ok(only_on)
    }

    /// Copy a file to MySQL if it is small enough. Return the runner if it is the only one that has the report.
    async fn copy(&self, file: &PartFile, ctx: &Context) -> Result<Option<RunnerId>, Failure> {
        let Some(shared) = &self.shared else { return Ok(None) };
        let is_shared = shared.share(file, ctx).await?;
        Ok((!is_shared).then(|| shared.sharing.runner.clone()))
    }

    /// Find a report by its name.
    ///
    /// # Errors
    /// [`FindError`].
    pub async fn find(&self, name: &str) -> Result<Found, FindError> {
        let wanted = ReportName::parse(name).ok_or(FindError::NoSuchReport)?;
        let here = self.here(name).await;
        let Some(shared) = &self.shared else { return here?.map(Found::Here).ok_or(FindError::NoSuchReport) };
        let asked = tokio::time::timeout(PATIENCE, shared.reports.find(wanted.job)).await;
        let record = match asked.unwrap_or_else(|_| Err(ShareError::Unavailable("no answer in time".into()))) {
            Ok(record) => record.filter(|record| record.name == name),
            Err(error) => return here?.map(Found::Here).ok_or(FindError::Unavailable(error.to_string())),
        };
        // No record: the report was made by a version that wrote no records.
        let Some(record) = record else { return here?.map(Found::Here).ok_or(FindError::NoSuchReport) };
        if record.removed {
            return Err(FindError::NoSuchReport);
        }
        // A file of another attempt may have the same name here: an attempt of a runner that lost the job before its
        // end.
        let is_mine = record.runner == shared.sharing.runner;
        let here =
            here.map(|file| file.filter(|file| file.size_bytes == record.bytes && (is_mine || record.parts == 0)));
        match here {
            Ok(Some(file)) => Ok(Found::Here(file)),
            _ if record.parts > 0 => {
                let content_type = wanted.format.content_type();
                Ok(Found::Shared(SharedReport { reports: Arc::clone(&shared.reports), record, content_type }))
            }
            Err(error) => Err(error.into()),
            Ok(None) if is_mine => Err(FindError::NoSuchReport),
            Ok(None) => {
                let ReportRecord { runner, host, bytes, .. } = record;
                Err(FindError::Elsewhere { runner, host, bytes })
            }
        }
    }

    /// Return the content of a report, or `None` if it has more than `most` bytes.
    ///
    /// # Errors
    /// [`FindError`].
    pub async fn read(&self, name: &str, most: u64) -> Result<Option<Vec<u8>>, FindError> {
        match self.find(name).await? {
            Found::Here(report) => {
                let mut content = Vec::new();
                tokio::fs::File::from_std(report.file).take(most + 1).read_to_end(&mut content).await?;
                Ok(Some(content).filter(|content| content.len() as u64 <= most))
            }
            Found::Shared(report) if report.size_bytes() > most => Ok(None),
            Found::Shared(report) => {
                let mut content = Vec::new();
                let mut parts = std::pin::pin!(report.content());
                while let Some(part) = parts.try_next().await? {
                    content.extend_from_slice(&part);
                }
                Ok(Some(content))
            }
        }
    }

    /// Remove one page of reports in this folder that are older than `keep`, and of files that were left unfinished.
    /// Return true when there may be more. Only files with the name of a report are removed.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub async fn sweep(&self, keep: Duration) -> io::Result<bool> {
        let dir = self.dir.clone();
        let sweep = move || file::sweep(&dir, keep, UNFINISHED, SWEPT_AT_ONCE);
        Ok(blocking(sweep).await? == SWEPT_AT_ONCE)
    }

    /// Remove reports from this folder by their names. A missing report is not an error.
    pub async fn remove(&self, names: Vec<String>) {
        let dir = self.dir.clone();
        let remove = move || {
            for name in names.iter().filter(|name| ReportName::parse(name).is_some()) {
                // A file that cannot be removed now is removed by the sweep when it is old enough.
                let _ = std::fs::remove_file(dir.join(name));
            }
            Ok(())
        };
        let _ = blocking(remove).await;
    }

    async fn here(&self, name: &str) -> io::Result<Option<ReportFile>> {
        let (dir, name): (PathBuf, String) = (self.dir.clone(), name.to_owned());
        match blocking(move || file::open(&dir, &name)).await {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The folder of this runner.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }
}

/// Give a file its name in the folder.
async fn publish(file: PartFile) -> Result<(), Failure> {
    let published = blocking(move || file.publish()).await;
    published.map_err(|error| Failure::retry(format!("publish the report: {error}")))
}

pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(error.into()))
}

/// Reason why a report was not shared.
enum NotShared {
    Error(ShareError),
    /// Another attempt holds the job, or has removed the parts of this one.
    Lost,
    Disk(io::Error),
}

impl From<ShareError> for NotShared {
    fn from(error: ShareError) -> Self {
        Self::Error(error)
    }
}

impl SharedReportAccess {
    /// Share the content of a file, or at least the record of the runner that has it. Return true when MySQL has the
    /// content.
    async fn share(&self, file: &PartFile, ctx: &Context) -> Result<bool, Failure> {
        let Ok(_turn) = self.turns.acquire().await else { return Err(Failure::retry("stopped")) };
        let fits = file.bytes() <= self.sharing.up_to_bytes && self.sharing.up_to_bytes > 0;
        let (mut pause, mut refused) = (FIRST_PAUSE, 0);
        loop {
            // The content is tried twice, because the second try uses parts of the size that the server accepts now.
            let with_content = fits && refused < 2;
            match self.share_once(file, ctx, with_content).await {
                Ok(()) => return Ok(with_content),
                Err(NotShared::Lost) => {
                    return Err(Failure::retry("keep the report: another attempt holds the job now"));
                }
                Err(NotShared::Disk(error)) => return Err(Failure::retry(format!("keep the report: {error}"))),
                Err(NotShared::Error(ShareError::Unavailable(cause))) => {
                    tracing::warn!(cause, "cannot store a report in mysql yet; trying again");
                    tokio::time::sleep(pause).await;
                    pause = (2 * pause).min(MAX_PAUSE);
                }
                Err(NotShared::Error(ShareError::Refused(cause))) => {
                    tracing::error!(cause, "mysql refuses a report, which may stay in the folder of this runner alone");
                    refused += 1;
                    if refused > if fits { 2 } else { 0 } {
                        return Ok(false);
                    }
                }
            }
        }
    }

    async fn share_once(&self, file: &PartFile, ctx: &Context, with_content: bool) -> Result<(), NotShared> {
        let (job, token) = (ctx.job_id(), ctx.token());
        if with_content && !self.reports.begin(job, token).await? {
            return Err(NotShared::Lost);
        }
        let (parts, digest) = match with_content {
            true => self.copy(file, job, token).await.map(|(parts, digest)| (parts, Some(digest)))?,
            false => (0, None),
        };
        let record = ReportRecord {
            job,
            name: file.name().to_owned(),
            bytes: file.bytes(),
            parts,
            digest,
            token,
            runner: self.sharing.runner.clone(),
            host: self.sharing.host.clone(),
            removed: false,
        };
        if !self.reports.publish(&record).await? {
            return Err(NotShared::Lost);
        }
        // Remove the parts of an earlier attempt, which this report replaces. If that fails, the janitor removes them
        // later.
        let _ = self.reports.begin(job, token).await;
        Ok(())
    }

    /// Write the content. Return its number of parts and its digest.
    async fn copy(&self, file: &PartFile, job: JobId, token: AttemptToken) -> Result<(u32, [u8; 32]), NotShared> {
        let mut content = tokio::fs::File::from_std(file.read().map_err(NotShared::Disk)?);
        let (mut digest, mut parts, mut copied) = (Sha256::new(), 0, 0);
        // An empty report has one part as well, because a report without parts counts as not in MySQL.
        while parts == 0 || copied < file.bytes() {
            let mut part = Vec::new();
            let most = self.reports.part_bytes() as u64;
            (&mut content).take(most).read_to_end(&mut part).await.map_err(NotShared::Disk)?;
            if part.is_empty() && copied < file.bytes() {
                return Err(NotShared::Disk(io::ErrorKind::UnexpectedEof.into()));
            }
            digest.update(&part);
            copied += part.len() as u64;
            self.reports.put_part(job, token, parts, part).await?;
            parts += 1;
        }
        Ok((parts, digest.finalize().into()))
    }
}

impl SharedReport {
    /// Name of the file.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.record.name
    }

    /// Size of the report.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.record.bytes
    }

    /// Media type, by the extension of the file.
    #[must_use]
    pub fn content_type(&self) -> &'static str {
        self.content_type
    }

    /// Stream the content. One part at a time is in memory. The stream ends early with an error when the report is
    /// replaced or removed meanwhile, or when the content does not match its digest.
    pub fn content(self) -> impl Stream<Item = io::Result<Vec<u8>>> + Send + 'static {
        let broken = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        stream::try_unfold((self, 0_u32, Sha256::new()), move |(report, number, mut digest)| async move {
            let ReportRecord { job, token, parts, digest: expected, .. } = report.record;
            if number == parts {
                return Ok(None);
            }
            let part = report.reports.part(job, token, number).await.map_err(io::Error::other)?;
            let part = part.ok_or_else(|| broken("the report was replaced or removed while it was read"))?;
            digest.update(&part);
            // Checked before the last part is sent, so that no reader takes a wrong content for the complete report.
            if number + 1 == parts && expected != Some(digest.clone().finalize().into()) {
                tracing::error!(
                    name = report.record.name,
                    "the content of a report in mysql does not match its digest"
                );
                return Err(broken("the report is damaged"));
            }
            Ok(Some((part, (report, number + 1, digest))))
        })
    }
}
