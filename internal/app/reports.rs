//! Finished reports between the handlers, which make them, and MySQL, which keeps them for all runners.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use crate::config::Config;
use crate::engine::{ReportKeeping, host_name};
use crate::handlers::Kind as _;
use crate::handlers::report::{FinishedReports, Report, ShareError, SharedReports, Sharing};
use crate::job::{AttemptToken, JobId, ReportRecord, RunnerId};
use crate::store::{Store, StoreError};

/// Create the access to all finished reports, those of other runners included. `runner` is the one that owns the local
/// folder.
pub(super) fn finished(config: &Config, store: &Store, runner: RunnerId) -> FinishedReports {
    let sharing = Sharing { runner, host: host_name(), up_to_bytes: config.reports.share_up_to };
    FinishedReports::in_folder(&config.reports_dir).shared_through(Arc::new(InStore(store.clone())), sharing)
}

/// Build the janitor's settings for reports.
pub(super) fn keeping(config: &Config, finished: FinishedReports) -> ReportKeeping {
    ReportKeeping { finished, keep: age(config) }
}

fn age(config: &Config) -> Duration {
    let of_its_kind = config.kinds.get(Report::NAME).and_then(|kind| kind.retention_completed);
    config.reports.keep.or(of_its_kind).unwrap_or(config.retention_completed)
}

/// MySQL, behind the interface that the handler of reports uses.
struct InStore(Store);

fn share_error(error: &StoreError) -> ShareError {
    let text = error.to_string();
    if error.is_transient() { ShareError::Unavailable(text) } else { ShareError::Refused(text) }
}

impl SharedReports for InStore {
    fn part_bytes(&self) -> usize {
        self.0.report_part_bytes()
    }

    fn begin(&self, job: JobId, token: AttemptToken) -> BoxFuture<'_, Result<bool, ShareError>> {
        self.0.clear_report(job, token).map(|cleared| cleared.map_err(|error| share_error(&error))).boxed()
    }

    fn put_part(
        &self,
        job: JobId,
        token: AttemptToken,
        number: u32,
        content: Vec<u8>,
    ) -> BoxFuture<'_, Result<(), ShareError>> {
        self.0.put_report_part(job, token, number, content).map(|put| put.map_err(|error| share_error(&error))).boxed()
    }

    fn publish<'a>(&'a self, record: &'a ReportRecord) -> BoxFuture<'a, Result<bool, ShareError>> {
        self.0.publish_report(record).map(|published| published.map_err(|error| share_error(&error))).boxed()
    }

    fn find(&self, job: JobId) -> BoxFuture<'_, Result<Option<ReportRecord>, ShareError>> {
        self.0.report_record(job).map(|found| found.map_err(|error| share_error(&error))).boxed()
    }

    fn part(&self, job: JobId, token: AttemptToken, number: u32) -> BoxFuture<'_, Result<Option<Vec<u8>>, ShareError>> {
        self.0.report_part(job, token, number).map(|part| part.map_err(|error| share_error(&error))).boxed()
    }
}
