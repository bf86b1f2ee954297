//! The part of the janitor that removes reports: those past their retention, and those of deleted jobs. It removes them
//! from MySQL and from the folder of this runner, which no other runner cleans up.

use std::time::{Duration, Instant};

use super::EngineState;
use super::janitor::PageBudget;
use tickr_handlers::report::FinishedReports;
use tickr_store::{RemovedPlace, StoreError};

/// Shortest time between two rounds, however often the janitor starts one.
const REST: Duration = Duration::from_secs(25);

/// The finished reports of a runner and their retention.
#[derive(Clone, Debug)]
pub struct ReportKeeping {
    /// The finished reports.
    pub finished: FinishedReports,
    /// Retention of finished reports.
    pub keep: Duration,
}

/// State kept between two rounds.
#[derive(Default)]
pub(super) struct OldReports {
    removed: Option<RemovedPlace>,
    last: Option<Instant>,
}

impl OldReports {
    /// Remove a few pages of each sort. The janitor also calls this before its first pause, so that a runner that is
    /// restarted often still removes reports.
    pub(super) async fn round(&mut self, shared: &EngineState) {
        let Some(reports) = &shared.settings.reports else { return };
        if self.last.is_some_and(|last| last.elapsed() < REST) {
            return;
        }
        self.last = Some(Instant::now());
        let eldest = shared.store.is_eldest(&shared.runner).await.unwrap_or(false);
        if let Err(error) = self.of_deleted_jobs(shared, reports, PageBudget::begin(shared, eldest).await).await {
            tracing::warn!(%error, "cannot remove the reports of deleted jobs");
        }
        if let Err(error) = in_mysql(shared, reports, PageBudget::begin(shared, eldest).await).await {
            tracing::warn!(%error, "cannot remove old reports from mysql");
        }
        if let Err(error) = in_folder(reports, PageBudget::outside_of_mysql(shared, eldest)).await {
            tracing::warn!(%error, "cannot remove old reports from the folder of this runner");
        }
    }

    /// Remove the reports of jobs that operators deleted since the last round: their files in this folder, and their
    /// content in MySQL.
    async fn of_deleted_jobs(
        &mut self,
        shared: &EngineState,
        reports: &ReportKeeping,
        mut pages: PageBudget<'_>,
    ) -> Result<(), StoreError> {
        let mut overlap = true;
        loop {
            let (removed, place) = shared.store.removed_reports(self.removed, overlap).await?;
            for report in removed.iter().filter(|report| report.has_parts) {
                while shared.store.empty_removed_report(report.job).await? {
                    if !pages.next_page().await {
                        return Ok(());
                    }
                }
            }
            reports.finished.remove(removed.into_iter().map(|report| report.name).collect()).await;
            if place.is_none() {
                return Ok(());
            }
            (self.removed, overlap) = (place, false);
            if !pages.next_page().await {
                return Ok(());
            }
        }
    }
}

async fn in_mysql(shared: &EngineState, reports: &ReportKeeping, mut pages: PageBudget<'_>) -> Result<(), StoreError> {
    while shared.store.forget_reports(reports.keep).await? && pages.next_page().await {}
    Ok(())
}

async fn in_folder(reports: &ReportKeeping, mut pages: PageBudget<'_>) -> std::io::Result<()> {
    while reports.finished.sweep(reports.keep).await? && pages.next_page().await {}
    Ok(())
}
