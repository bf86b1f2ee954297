//! The part of the janitor that removes reports: those past their retention, and those of deleted jobs. It removes them
//! from MySQL and from the folder of this runner, which no other runner cleans up.

use std::time::{Duration, Instant};

use super::EngineState;
use super::janitor::PageBudget;
use tickr_handlers::report::FinishedReports;
use tickr_store::{PARTS_AT_ONCE, PartsOf, RemovedPlace, StoreError};

/// Shortest time between two rounds, however often the janitor starts one.
const REST: Duration = Duration::from_secs(25);
/// Time between two searches for remains among the parts of many reports. Each reads the parts of all reports.
const LONG_REST: Duration = Duration::from_secs(3_600);

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
    remains: RemainsSearch,
}

impl OldReports {
    /// Remove a few pages of each sort. The janitor also calls this before its first pause, so that a runner that is
    /// restarted often still removes reports.
    pub(super) async fn round(&mut self, shared: &EngineState) {
        let Some(reports) = &shared.settings.reports else { return };
        if self.last.is_some_and(|last| last.elapsed() < REST) {
            return;
        }
        let is_first = self.last.is_none();
        self.last = Some(Instant::now());
        let eldest = shared.store.is_eldest(&shared.runner).await.unwrap_or(false);
        if let Err(error) = self.of_deleted_jobs(shared, reports, PageBudget::begin(shared, eldest).await).await {
            tracing::warn!(%error, "cannot remove the reports of deleted jobs");
        }
        // MySQL is the same for all runners, so one of them is enough. But a runner that is killed and restarted is not the
        // eldest while the row of the one before it lives, and may be killed again before it is.
        if (is_first || eldest)
            && let Err(error) = self.in_mysql(shared, reports.keep, PageBudget::begin(shared, eldest).await).await
        {
            tracing::warn!(%error, "cannot remove old reports from mysql");
        }
        if let Err(error) = in_folder(reports, PageBudget::outside_of_mysql(shared, eldest)).await {
            tracing::warn!(%error, "cannot remove old reports from the folder of this runner");
        }
    }

    /// Remove from MySQL what is older than its retention: rows of reports, and parts that are left of them.
    async fn in_mysql(
        &mut self,
        shared: &EngineState,
        keep: Duration,
        mut pages: PageBudget<'_>,
    ) -> Result<(), StoreError> {
        while shared.store.forget_reports(keep).await? {
            if !pages.next_page().await {
                return Ok(());
            }
        }
        while self.remains.is_due() {
            let (left, next) = shared.store.left_parts(keep, self.remains.place).await?;
            let mut room = RoomForParts::default();
            for of in left {
                while room.is_filled_by(shared.store.delete_left_parts(keep, of, room.0).await?) {
                    if !pages.next_page().await {
                        return Ok(());
                    }
                }
            }
            self.remains.go_on(next);
            if next.is_none() || !pages.next_page().await {
                return Ok(());
            }
        }
        Ok(())
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

/// The search for parts that no report has any more, and that no attempt will name.
#[derive(Default)]
struct RemainsSearch {
    place: Option<PartsOf>,
    /// The end of the last search, if there was more than a page of parts.
    rests_since: Option<Instant>,
}

impl RemainsSearch {
    /// Return whether a search goes on or begins.
    fn is_due(&self) -> bool {
        self.rests_since.is_none_or(|since| since.elapsed() >= LONG_REST)
    }

    /// Go on behind a page; absent at the end of the parts.
    fn go_on(&mut self, next: Option<PartsOf>) {
        let was_first_page = self.place.is_none();
        self.place = next;
        self.rests_since = (next.is_none() && !was_first_page).then(Instant::now);
    }
}

/// Number of parts that may be removed before the next rest. The parts of several attempts share it: most reports have
/// one part, and a rest after each would take many times longer than the removal.
struct RoomForParts(u64);

impl Default for RoomForParts {
    fn default() -> Self {
        Self(PARTS_AT_ONCE)
    }
}

impl RoomForParts {
    /// Count removed parts. Return true if there was no room for more: then a rest is due, and the attempt may have more
    /// parts.
    fn is_filled_by(&mut self, removed: u64) -> bool {
        self.0 = self.0.saturating_sub(removed);
        let is_filled = self.0 == 0;
        if is_filled {
            *self = Self::default();
        }
        is_filled
    }
}

async fn in_folder(reports: &ReportKeeping, mut pages: PageBudget<'_>) -> std::io::Result<()> {
    while reports.finished.sweep(reports.keep).await? && pages.next_page().await {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tickr_job::{AttemptToken, JobId};

    #[test]
    fn a_search_for_remains_among_many_parts_is_followed_by_a_rest() {
        let place = || Some(PartsOf { job: JobId::new(), token: AttemptToken::new() });
        let mut search = RemainsSearch::default();
        search.go_on(None);
        assert!(search.is_due(), "all parts were one page");
        search.go_on(place());
        search.go_on(place());
        assert!(search.is_due(), "it goes on in the next round");
        search.go_on(None);
        assert!(!search.is_due());
        search.rests_since = Instant::now().checked_sub(LONG_REST);
        assert!(search.is_due(), "after an hour");
    }

    #[test]
    fn the_parts_of_several_attempts_are_removed_before_a_rest() {
        let mut room = RoomForParts::default();
        let rests = (0..24).filter(|_| room.is_filled_by(1)).count();
        assert_eq!(rests, 3);
        assert!(!room.is_filled_by(5) && room.0 == 3, "no page has more parts than one transaction may have");
        assert!(!room.is_filled_by(0) && room.is_filled_by(3) && room.is_filled_by(PARTS_AT_ONCE));
    }
}
