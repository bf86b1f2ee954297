//! The janitor: removes rows whose retention has ended. It removes a few at a time, by primary key, and only by age:
//! nothing is removed because there is much of it.
//!
//! Every runner removes a few pages of each table in a round. The eldest runner continues as long as there is more, so
//! that removal keeps up with any number of new jobs. It rests after each page for a quarter of the time that the page
//! took, so a busy server slows it down by itself.
//!
//! The tables that grow with the jobs and the calls are emptied side by side, each by a loop of its own. Otherwise each
//! would have to be emptied two or three times as fast as it grows. The other tables take turns in one loop. All loops
//! together remove only as many pages at a time as leave connections to the other loops of the runner.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::SemaphorePermit;

use super::EngineState;
use super::ledger_walk::LedgerWalk;
use super::reports::OldReports;
use tickr_job::{BatchId, JobId};
use tickr_store::{KEEP_RUNNERS, LimitKey, StoreError, TallyPlace, UniqueKeyPlace};

/// Pages of each table in one round of a runner that is not the eldest.
const PAGES: usize = 50;
/// Rest between two pages of such a runner, and the shortest rest of the eldest one.
const BREATH: Duration = Duration::from_millis(20);
const SHORT_BREATH: Duration = Duration::from_millis(2);
/// Longest rest of the eldest runner.
const LONG_BREATH: Duration = Duration::from_secs(2);
/// Time that the eldest runner spends on one table before it goes to the next. A table with a loop of its own follows
/// itself, after a look whether this runner is still the eldest.
const TURN: Duration = Duration::from_secs(10);
/// Time between two searches of all ended jobs for failed jobs without a dead letter, and between two walks through the
/// order keys.
const REST: Duration = Duration::from_secs(3_600);
/// Jobs may be purged late, when there are many or when purges are only allowed at night. Rows that may go only after
/// their jobs are kept for this much longer.
const SLACK: Duration = Duration::from_secs(7 * 86_400);
/// Pages of one round that MySQL may refuse. Each is half as large as the one before it, and the largest has two
/// thousand rows.
const REFUSED: usize = 11;
/// Time for which the outbox of an application is shown after a runner has last copied from it.
const KEEP_SOURCES: Duration = Duration::from_secs(7 * 86_400);

pub(super) async fn run_until_stopped(shared: Arc<EngineState>) {
    let shared = &*shared;
    tokio::join!(
        GrowingTable::Jobs.empty_until_stopped(shared),
        GrowingTable::Answers.empty_until_stopped(shared),
        GrowingTable::Acts.empty_until_stopped(shared),
        empty_others_until_stopped(shared),
    );
}

/// Remove rows of the tables that have no loop of their own, and reports. Look for missing dead letters in between.
async fn empty_others_until_stopped(shared: &EngineState) {
    let mut positions = JanitorPositions::default();
    let mut missing_dead_letters = MissingDeadLetters::default();
    let mut reports = OldReports::default();
    let mut more = false;
    if may_purge(shared) {
        reports.round(shared).await;
    }
    loop {
        if !more && let Err(error) = missing_dead_letters.insert(shared).await {
            tracing::warn!(%error, "cannot look for missing dead letters");
        }
        if !next_round(shared, more).await {
            return;
        }
        more = false;
        if may_purge(shared) {
            reports.round(shared).await;
            more = positions.round(shared).await;
        }
    }
}

fn may_purge(shared: &EngineState) -> bool {
    shared.settings.purge_hours.is_none_or(|hours| hours.contain(shared.store.clock().now().time()))
}

/// Wait for the next round, which begins at once if the last one left something. Return false when the runner stops.
async fn next_round(shared: &EngineState, more: bool) -> bool {
    let pause = if more { BREATH } else { shared.settings.janitor_every.mul_f64(0.5 + rand::random::<f64>()) };
    tokio::select! {
        () = shared.stop_loops.cancelled() => false,
        () = tokio::time::sleep(pause) => true,
    }
}

/// Return whether a table has more to remove. After an error the rest waits for a later round, and other tables do not.
fn is_left(what: &str, outcome: Result<bool, StoreError>) -> bool {
    outcome.unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot purge {what}");
        false
    })
}

/// The pages of one table in one round. They decide when to end and how long to rest between pages.
pub(super) struct PageBudget<'a> {
    shared: &'a EngineState,
    eldest: bool,
    began: Instant,
    page: Instant,
    left: usize,
    /// Permit for a page in MySQL, held from the begin of the page to its end.
    permit: Option<SemaphorePermit<'a>>,
}

impl<'a> PageBudget<'a> {
    /// Begin with the first page as soon as fewer pages are removed than may be at a time.
    pub(super) async fn begin(shared: &'a EngineState, eldest: bool) -> Self {
        let permit = shared.purges.acquire().await.ok();
        Self { permit, ..Self::outside_of_mysql(shared, eldest) }
    }

    /// Begin with pages that are not in MySQL, and need no permit.
    pub(super) fn outside_of_mysql(shared: &'a EngineState, eldest: bool) -> Self {
        let now = Instant::now();
        Self { shared, eldest, began: now, page: now, left: PAGES, permit: None }
    }

    /// Return whether this table's part of the round has lasted for less than the time of the eldest runner.
    fn has_time(&self) -> bool {
        self.began.elapsed() < TURN
    }

    /// Rest after a page. Return false when this table's part of the round is over although there is more to remove.
    pub(super) async fn next_page(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        let over = if self.eldest { self.began.elapsed() >= TURN } else { self.left == 0 };
        if over || self.shared.stop_loops.is_cancelled() {
            return false;
        }
        let rest = if self.eldest { (self.page.elapsed() / 4).clamp(SHORT_BREATH, LONG_BREATH) } else { BREATH };
        // Another table may have its page meanwhile.
        let in_mysql = self.permit.take().is_some();
        tokio::time::sleep(rest).await;
        if in_mysql {
            let shared = self.shared;
            self.permit = shared.purges.acquire().await.ok();
        }
        self.page = Instant::now();
        !self.shared.stop_loops.is_cancelled()
    }
}

/// A table that grows with the jobs or the calls.
#[derive(Clone, Copy)]
enum GrowingTable {
    Jobs,
    /// Stored responses. They are in the order of their age, so those to remove come first.
    Answers,
    /// The audit, which is in the order of its age as well.
    Acts,
}

/// Position in a table that grows with the jobs or the calls.
#[derive(Default)]
struct TablePlace {
    /// The next page begins behind this row. Absent between two walks.
    after: Option<JobId>,
    /// The walk through the ledger. The rows to remove of the other tables are their first ones.
    ledger: LedgerWalk,
}

impl GrowingTable {
    fn what(self) -> &'static str {
        match self {
            Self::Jobs => "ended jobs",
            Self::Answers => "idempotency keys",
            Self::Acts => "audit records",
        }
    }

    async fn empty_until_stopped(self, shared: &EngineState) {
        let (mut place, mut more) = (TablePlace::default(), false);
        while next_round(shared, more).await {
            more = may_purge(shared) && self.round(shared, &mut place).await;
        }
    }

    /// Remove a few pages behind `place`. Return true when the eldest runner left something for the next round.
    async fn round(self, shared: &EngineState, place: &mut TablePlace) -> bool {
        let eldest = shared.store.is_eldest(&shared.runner).await.unwrap_or(false);
        let pages = PageBudget::begin(shared, eldest).await;
        let more = is_left(self.what(), self.pages(shared, place, pages).await);
        eldest && more && !shared.stop_loops.is_cancelled()
    }

    async fn pages(
        self,
        shared: &EngineState,
        place: &mut TablePlace,
        mut pages: PageBudget<'_>,
    ) -> Result<bool, StoreError> {
        let (mut rows, mut refused) = (0, 0);
        let more = loop {
            let (removed, next) = match self.page(shared, place).await {
                Ok(page) => page,
                // MySQL may have refused the page because it was too large. The next one is smaller.
                Err(error) if error.is_transient() && refused < REFUSED && pages.has_time() => {
                    refused += 1;
                    if pages.next_page().await {
                        continue;
                    }
                    return Err(error);
                }
                Err(error) => return Err(error),
            };
            rows += removed;
            place.after = next;
            if next.is_none() {
                break false;
            }
            if !pages.next_page().await {
                break true;
            }
        };
        if rows > 0 && matches!(self, Self::Jobs) {
            tracing::info!(jobs = rows, "removed jobs whose retention has ended");
        }
        Ok(more)
    }

    /// Remove one page behind a place. Return the number of removed rows and the place to continue behind.
    async fn page(self, shared: &EngineState, place: &mut TablePlace) -> Result<(usize, Option<JobId>), StoreError> {
        let (store, settings) = (&shared.store, &shared.settings);
        let after = place.after.map(JobId::uuid);
        let (removed, next) = match self {
            Self::Jobs => {
                let after = place.ledger.next_page(place.after, &settings.retention, store.clock().now());
                let purged = store.purge_page(after, &settings.retention).await?;
                place.ledger.has_read(purged.next);
                metrics::counter!("tickr_jobs_purged_total").increment(purged.jobs as u64);
                purged.released.iter().for_each(|job| shared.broker.hint_released(job));
                return Ok((purged.jobs, purged.next));
            }
            Self::Answers => {
                let (forgotten, next) = store.purge_idempotency_keys(after, settings.keep_answers).await?;
                metrics::counter!("tickr_answers_purged_total").increment(forgotten as u64);
                (forgotten, next)
            }
            Self::Acts => store.purge_audit(after, settings.keep_audit).await?,
        };
        Ok((removed, next.map(JobId::from_uuid)))
    }
}

/// Position in each of the other tables from which the next round continues.
#[derive(Default)]
struct JanitorPositions {
    /// An empty name is the position in front of the first schedule, after a full page of its ticks.
    schedule: Option<String>,
    lanes: Option<TallyPlace>,
    queues: Option<TallyPlace>,
    departures: Option<JobId>,
    batches: Option<BatchId>,
    order_keys: Vec<u8>,
    limit_keys: Option<LimitKey>,
    unique_keys: Option<UniqueKeyPlace>,
    /// The ends of the last walks through the order keys and the keys of limits.
    order_keys_walked: Option<Instant>,
    limit_keys_walked: Option<Instant>,
}

impl JanitorPositions {
    /// Remove a few pages of each table. Return true when the eldest runner left something for the next round.
    async fn round(&mut self, shared: &EngineState) -> bool {
        let eldest = shared.store.is_eldest(&shared.runner).await.unwrap_or(false);
        let mut more = false;
        let mut done = |what: &str, outcome: Result<bool, StoreError>| more |= is_left(what, outcome);
        let pages = || PageBudget::begin(shared, eldest);
        done("discarded dead letters", discarded(shared, pages().await).await);
        done("bulk operations", operations(shared, pages().await).await);
        done("the ticks of schedules", self.ticks(shared, pages().await).await);
        if eldest {
            done("stopped runners", runners(shared, pages().await).await);
            done("tallies", self.tallies(shared, pages().await).await);
            done("the table departures", self.departures(shared, pages().await).await);
            done("order keys", self.order_keys(shared, pages().await).await);
            done("keys of limits", self.limit_keys(shared, pages().await).await);
            done("unique keys", self.unique_keys(shared, pages().await).await);
            done("rejected rows of the outbox", rejected_rows(shared, pages().await).await);
            done("outboxes of applications", sources(shared, pages().await).await);
            done("batches", self.batches(shared, pages().await).await);
        }
        eldest && more && !shared.stop_loops.is_cancelled()
    }

    /// Ticks are in the order of their schedules, so a round continues with the schedule at which the last one stopped.
    async fn ticks(&mut self, shared: &EngineState, mut pages: PageBudget<'_>) -> Result<bool, StoreError> {
        loop {
            let (forgotten, next) = shared.store.purge_ticks(self.schedule.clone(), shared.settings.keep_ticks).await?;
            metrics::counter!("tickr_ticks_purged_total").increment(forgotten);
            self.schedule = next;
            if self.schedule.is_none() {
                return Ok(false);
            }
            if !pages.next_page().await {
                return Ok(true);
            }
        }
    }

    async fn tallies(&mut self, shared: &EngineState, mut pages: PageBudget<'_>) -> Result<bool, StoreError> {
        let keep = shared.settings.retention.longest().saturating_add(SLACK);
        loop {
            let (_, lanes) = shared.store.fold_lanes(self.lanes.take()).await?;
            self.lanes = lanes;
            let (_, queues) = shared.store.fold_queues(self.queues.take(), keep).await?;
            self.queues = queues;
            if self.lanes.is_none() {
                return Ok(false);
            }
            if !pages.next_page().await {
                return Ok(true);
            }
        }
    }

    /// The keys are not in the order of their age, so a walk reads all of them and is followed by a rest.
    async fn order_keys(&mut self, shared: &EngineState, mut pages: PageBudget<'_>) -> Result<bool, StoreError> {
        if self.order_keys_walked.is_some_and(|end| end.elapsed() < REST) {
            return Ok(false);
        }
        loop {
            let next = shared.store.forget_order_keys(std::mem::take(&mut self.order_keys)).await?.1;
            self.order_keys_walked = next.is_none().then(Instant::now);
            self.order_keys = next.unwrap_or_default();
            if self.order_keys_walked.is_some() {
                return Ok(false);
            }
            if !pages.next_page().await {
                return Ok(true);
            }
        }
    }

    async fn limit_keys(&mut self, shared: &EngineState, mut pages: PageBudget<'_>) -> Result<bool, StoreError> {
        if self.limit_keys_walked.is_some_and(|end| end.elapsed() < REST) {
            return Ok(false);
        }
        loop {
            self.limit_keys = shared.store.forget_limit_keys(self.limit_keys.take()).await?.1;
            self.limit_keys_walked = self.limit_keys.is_none().then(Instant::now);
            if self.limit_keys_walked.is_some() {
                return Ok(false);
            }
            if !pages.next_page().await {
                return Ok(true);
            }
        }
    }

    async fn unique_keys(&mut self, shared: &EngineState, mut pages: PageBudget<'_>) -> Result<bool, StoreError> {
        loop {
            self.unique_keys = shared.store.forget_unique_keys(self.unique_keys.take()).await?.1;
            if self.unique_keys.is_none() {
                return Ok(false);
            }
            if !pages.next_page().await {
                return Ok(true);
            }
        }
    }

    async fn departures(&mut self, shared: &EngineState, mut pages: PageBudget<'_>) -> Result<bool, StoreError> {
        let keep = shared.settings.retention.longest().saturating_add(SLACK);
        loop {
            self.departures = shared.store.forget_departures(self.departures, keep).await?.1;
            if self.departures.is_none() {
                return Ok(false);
            }
            if !pages.next_page().await {
                return Ok(true);
            }
        }
    }

    /// A batch stays as long as one of its jobs or nested batches, and at least as long as completed jobs.
    async fn batches(&mut self, shared: &EngineState, mut pages: PageBudget<'_>) -> Result<bool, StoreError> {
        loop {
            self.batches = shared.store.purge_batches(self.batches, shared.settings.retention.completed).await?.1;
            if self.batches.is_none() {
                return Ok(false);
            }
            if !pages.next_page().await {
                return Ok(true);
            }
        }
    }
}

async fn discarded(shared: &EngineState, mut pages: PageBudget<'_>) -> Result<bool, StoreError> {
    loop {
        let (jobs, more) = shared.store.purge_discarded(&shared.settings.retention).await?;
        metrics::counter!("tickr_jobs_purged_total").increment(jobs as u64);
        if !more {
            return Ok(false);
        }
        if !pages.next_page().await {
            return Ok(true);
        }
    }
}

async fn operations(shared: &EngineState, mut pages: PageBudget<'_>) -> Result<bool, StoreError> {
    let mut place = None;
    loop {
        place = shared.store.purge_operations(place, shared.settings.keep_audit).await?.1;
        // There are few bulk operations: the rest waits for the next round.
        if place.is_none() || !pages.next_page().await {
            return Ok(false);
        }
    }
}

/// Rejected rows stay as long as failed jobs.
async fn rejected_rows(shared: &EngineState, mut pages: PageBudget<'_>) -> Result<bool, StoreError> {
    while shared.store.forget_rejected_rows(shared.settings.retention.failed).await? {
        if !pages.next_page().await {
            return Ok(true);
        }
    }
    Ok(false)
}

/// There are few outboxes of applications, so they are one page.
async fn sources(shared: &EngineState, page: PageBudget<'_>) -> Result<bool, StoreError> {
    shared.store.forget_sources(KEEP_SOURCES).await?;
    drop(page);
    Ok(false)
}

async fn runners(shared: &EngineState, mut pages: PageBudget<'_>) -> Result<bool, StoreError> {
    loop {
        let (_, more) = shared.store.forget_runners(KEEP_RUNNERS).await?;
        if !more {
            return Ok(false);
        }
        if !pages.next_page().await {
            return Ok(true);
        }
    }
}

/// The search for failed jobs without a dead letter. Such jobs failed before dead letters existed, or under an older
/// binary during a deploy. The search runs from the newest job to the oldest, a part of it in every round, and starts
/// again after a rest.
#[derive(Default)]
struct MissingDeadLetters {
    place: Option<JobId>,
    rested: Option<Instant>,
}

impl MissingDeadLetters {
    async fn insert(&mut self, shared: &EngineState) -> Result<(), StoreError> {
        if self.rested.is_some_and(|since| since.elapsed() < REST) {
            return Ok(());
        }
        // A part of the search is as long as the round of a runner that is not the eldest.
        let mut pages = PageBudget::begin(shared, false).await;
        loop {
            let (inserted, next) = shared.store.backfill_dead_letters(self.place).await?;
            if inserted > 0 {
                tracing::info!(inserted, "inserted dead letters that were missing");
            }
            self.place = next;
            self.rested = next.is_none().then(Instant::now);
            if next.is_none() || !pages.next_page().await {
                return Ok(());
            }
        }
    }
}
