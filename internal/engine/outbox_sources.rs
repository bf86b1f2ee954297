//! Copies rows from the outbox of an application, on a server of its own, to the outbox of tickr.
//!
//! Each source has a loop of its own with one connection to it, so a source that is down or slow delays neither another one
//! nor the outbox of tickr. One runner at a time copies from a source: it looks about ten times a second, and once a second
//! when nothing was inserted for ten seconds. The others look for its lease every three seconds. A nudged runner takes the
//! source over and looks at once. A runner that cannot read the source leaves it to the others, and tries again after a
//! pause that grows to half a minute.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::Rng;
use uuid::Uuid;

use super::EngineState;
use tickr_job::{Name, Timestamp};
use tickr_store::{CopiedRow, OutboxSource, SourceCopy, SourceError, SourcePage, SourceSettings, StoreError, TakeOver};

/// Time between two looks while rows come.
const LOOK_EVERY: Duration = Duration::from_millis(104);
/// Time between two looks when nothing was inserted for [`BUSY_FOR`].
const LOOK_RARELY: Duration = Duration::from_secs(1);
/// A look that takes long is not repeated before this many times its duration.
const REST: u32 = 5;
/// Time after the last row for which a runner looks often.
const BUSY_FOR: Duration = Duration::from_secs(10);
/// Lease of the runner that copies.
const LEASE: Duration = Duration::from_secs(5);
/// Time between two renewals of the lease. Each reports what waits at the source, unless the runner waits for an answer.
const RENEW_EVERY: Duration = Duration::from_secs(2);
/// Time after which a runner without the source looks for the lease of the one that has it, before jitter.
const LOOK_FOR_LEASE: Duration = Duration::from_secs(3);
/// Time for which no other nudged runner takes the source over. It doubles when a runner loses the source before it could
/// copy, so that a flood of nudges at many runners does not keep all of them from copying.
const CALM: Duration = Duration::from_millis(100);
/// Pauses after a failure: the first and the longest. Each is twice the one before.
const PAUSE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// Number of failures in a row of which one is a warning in the log.
const LOG_EVERY: u32 = 120;
/// Time after a failure for which a nudge is not heard.
const DEAF: Duration = Duration::from_secs(1);
/// Time between two attempts to delete copied rows that another session locks.
const RETRY_LOCKED: Duration = Duration::from_secs(2);
/// Rows that may be copied and locked at the source before copying waits for them.
const MAX_LOCKED: usize = 1_000;

/// Copy rows from this source until the runner stops.
pub(super) async fn copy_until_stopped(shared: Arc<EngineState>, settings: SourceSettings) {
    let SourceSettings { name, url } = settings;
    let source = match OutboxSource::new(&url) {
        Ok(source) => source,
        Err(error) => {
            tracing::error!(outbox = %name, %error, "the outbox of an application cannot be used");
            return;
        }
    };
    let mut nudges = shared.broker.source_nudges();
    let mut copier = Copier {
        shared,
        name,
        source,
        led: None,
        calm: CALM,
        nudge_waits: false,
        failures: 0,
        failed_at: Instant::now(),
        next_try: Instant::now(),
    };
    let stop = copier.shared.stop_loops.clone();
    loop {
        let nudged = tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep_until(copier.next_turn().into()) => false,
            nudged = nudges.changed() => {
                if nudged.is_err() {
                    break;
                }
                true
            }
        };
        if nudged && copier.is_deaf() {
            continue;
        }
        // What is dropped here closes its connection to the source, and what runs in tickr's database ends by itself.
        tokio::select! {
            () = stop.cancelled() => break,
            () = copier.turn(nudged) => {}
        }
    }
    if copier.led.is_some() {
        copier.leave(None).await;
    }
}

/// The loop of one source.
struct Copier {
    shared: Arc<EngineState>,
    name: Name,
    source: OutboxSource,
    /// Present while this runner has the source.
    led: Option<Led>,
    calm: Duration,
    /// A nudge came while another runner had just taken the source over.
    nudge_waits: bool,
    /// Failures in a row, and the last one.
    failures: u32,
    failed_at: Instant,
    /// When a runner without the source does something about it.
    next_try: Instant,
}

/// The state of a runner that has the source.
struct Led {
    turn: u64,
    renewed: Instant,
    /// When this runner found rows. Without any, it looks rarely from the beginning.
    last_row: Option<Instant>,
    next_look: Instant,
    /// Rows that were copied and may still be at the source, and the time up to which such a row is the one that was copied.
    copied: BTreeSet<Uuid>,
    until: Option<Timestamp>,
    /// When they are deleted, if another session locked them.
    retry_locked: Instant,
}

/// Why a turn ended early.
enum Trouble {
    /// The source cannot be read or emptied.
    Source(SourceError),
    /// MySQL, the store, cannot be used.
    Store(StoreError),
    /// Another runner has the source.
    TakenOver,
}

impl From<SourceError> for Trouble {
    fn from(error: SourceError) -> Self {
        Self::Source(error)
    }
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Copier {
    fn next_turn(&self) -> Instant {
        self.led.as_ref().map_or(self.next_try, |led| led.next_look)
    }

    /// A nudge does not shorten the pause after a failure by much: a flood of them must not become a flood of connections.
    fn is_deaf(&self) -> bool {
        self.failures > 0 && self.failed_at.elapsed() < DEAF
    }

    fn pause(&self) -> Duration {
        (PAUSE * 2_u32.saturating_pow(self.failures.saturating_sub(1).min(16))).min(MAX_PAUSE)
    }

    /// Take the source over if it is free, and copy what is there.
    async fn turn(&mut self, nudged: bool) {
        let began = Instant::now();
        let nudged = nudged || std::mem::take(&mut self.nudge_waits);
        let trouble = match self.led_or_taken(nudged).await {
            Ok(false) => {
                // A nudge that came too soon after that of another runner is heard a moment later.
                self.nudge_waits = nudged;
                let wait = if nudged { self.calm } else { LOOK_FOR_LEASE.mul_f64(rand::rng().random_range(0.8..1.2)) };
                self.next_try = Instant::now() + wait;
                if !nudged {
                    // Only the runner that copies needs a connection.
                    self.source.disconnect();
                }
                return;
            }
            Ok(true) => self.copy_all().await,
            Err(trouble) => Err(trouble),
        };
        match trouble {
            Ok(found) => {
                if self.failures > 0 {
                    tracing::info!(outbox = %self.name, "the outbox of an application can be read again");
                }
                (self.failures, self.calm) = (0, CALM);
                let Some(led) = &mut self.led else { return };
                let (now, took) = (Instant::now(), began.elapsed());
                if found {
                    led.last_row = Some(now);
                }
                let busy = led.last_row.is_some_and(|last| last.elapsed() < BUSY_FOR);
                let every = if busy { LOOK_EVERY } else { LOOK_RARELY };
                // Deleted rows that the server has not purged yet make a look slow. Then it must not become a load.
                led.next_look = now + every.max(took * REST).min(LOOK_RARELY).saturating_sub(took.min(every));
            }
            Err(Trouble::TakenOver) => {
                self.led = None;
                self.nudge_waits = nudged;
                self.calm = (self.calm * 2).min(LEASE);
                self.next_try = Instant::now() + self.calm;
            }
            Err(Trouble::Store(error)) => {
                // The lease ends by itself. What was copied stands in the list, which the next turn reads.
                tracing::debug!(outbox = %self.name, %error, "cannot copy rows of the outbox of an application yet");
                self.failed();
            }
            Err(Trouble::Source(error)) => {
                // Logged when it begins, and then about once an hour.
                if self.failures.is_multiple_of(LOG_EVERY) {
                    tracing::warn!(outbox = %self.name, %error, "the outbox of an application cannot be read");
                } else {
                    tracing::debug!(outbox = %self.name, %error, "the outbox of an application cannot be read");
                }
                self.leave(Some(error.to_string())).await;
                self.failed();
            }
        }
    }

    fn failed(&mut self) {
        self.led = None;
        self.source.disconnect();
        self.failures = self.failures.saturating_add(1);
        self.failed_at = Instant::now();
        self.next_try = Instant::now() + self.pause().mul_f64(rand::rng().random_range(0.8..1.2));
    }

    /// Return whether this runner has the source, after it took it over if it may.
    async fn led_or_taken(&mut self, nudged: bool) -> Result<bool, Trouble> {
        if self.led.is_some() {
            return Ok(true);
        }
        let store = &self.shared.store;
        if !nudged && !store.source_is_free(&self.name).await? {
            return Ok(false);
        }
        let how = TakeOver { lease: LEASE, calm: self.calm, nudged };
        let Some(turn) = store.take_source(&self.name, &self.shared.runner, how).await? else { return Ok(false) };
        let now = Instant::now();
        self.led = Some(Led {
            turn: turn.number,
            // Due at once: the first report says that the source can be read.
            renewed: now.checked_sub(RENEW_EVERY).unwrap_or(now),
            // Rows that another runner has copied and not deleted came a moment ago.
            last_row: (!turn.copied.is_empty()).then_some(now),
            next_look: now,
            copied: turn.copied.into_iter().collect(),
            until: turn.until,
            retry_locked: now,
        });
        Ok(true)
    }

    /// Copy all rows that are there. Returns whether there were some. What was copied before and is locked at the
    /// source is deleted after the copy: the deletion may wait for seconds, and new rows must not.
    async fn copy_all(&mut self) -> Result<bool, Trouble> {
        let mut found = false;
        loop {
            let Some(led) = &mut self.led else { return Err(Trouble::TakenOver) };
            let (before, until_before) = (led.copied.clone(), led.until);
            let mut more = false;
            if led.copied.len() < MAX_LOCKED {
                let page = self.page().await?;
                let Some(led) = &mut self.led else { return Err(Trouble::TakenOver) };
                more = page.more;
                if !page.rows.is_empty() {
                    found = true;
                    let bounds = led.until.zip(page.until);
                    led.until =
                        if led.copied.is_empty() { page.until } else { bounds.map(|(one, other)| one.max(other)) };
                    let ids: Vec<Uuid> = page.rows.iter().map(|row| row.id).collect();
                    self.copy(page.rows).await?;
                    let until = self.led.as_ref().and_then(|led| led.until);
                    self.delete(&ids, until).await?;
                }
            }
            self.delete_locked(before, until_before).await?;
            self.renew().await?;
            if !more {
                return Ok(found);
            }
        }
    }

    /// Read a page of the source. The answer may take longer than the lease, which is renewed until it comes. Otherwise
    /// runners would take a slow source from each other before one of them has its rows.
    async fn page(&mut self) -> Result<SourcePage, Trouble> {
        let Some(led) = &self.led else { return Err(Trouble::TakenOver) };
        let page = self.source.page(&led.copied);
        tokio::pin!(page);
        loop {
            if let Ok(page) = tokio::time::timeout(RENEW_EVERY, &mut page).await {
                return Ok(page?);
            }
            if !self.shared.store.extend_source(&self.name, led.turn, LEASE).await? {
                return Err(Trouble::TakenOver);
            }
        }
    }

    /// Copy these rows. A row that MySQL refuses is rejected, and holds up no other.
    async fn copy(&mut self, rows: Vec<CopiedRow>) -> Result<(), Trouble> {
        match self.copy_together(rows.clone()).await {
            Err(Trouble::Store(error)) if error.is_about_the_row() => {}
            copied => return copied,
        }
        for row in rows {
            let refused = match self.copy_together(vec![row.clone()]).await {
                Err(Trouble::Store(error)) if error.is_about_the_row() => error,
                copied => {
                    copied?;
                    continue;
                }
            };
            let row = row.rejected(format!("MySQL refuses the row: {refused}"));
            match self.copy_together(vec![row.clone()]).await {
                Err(Trouble::Store(error)) if error.is_about_the_row() => self.copy_together(vec![row.bare()]).await?,
                rejected => rejected?,
            }
        }
        Ok(())
    }

    async fn copy_together(&mut self, rows: Vec<CopiedRow>) -> Result<(), Trouble> {
        let Some(led) = &mut self.led else { return Err(Trouble::TakenOver) };
        let ids: Vec<Uuid> = rows.iter().map(|row| row.id).collect();
        let unfit: Vec<Uuid> = rows.iter().filter(|row| row.unfit.is_some()).map(|row| row.id).collect();
        let left = led.copied.iter().copied().collect();
        let copy = SourceCopy { turn: led.turn, rows, left, until: led.until };
        let Some(turn) = self.shared.store.copy_rows(&self.name, &self.shared.runner, copy).await? else {
            return Err(Trouble::TakenOver);
        };
        led.turn = turn;
        led.copied.extend(&ids);
        self.shared.broker.move_outbox_soon();
        let copied = (ids.len() - unfit.len()) as u64;
        metrics::counter!("tickr_outbox_copied_total", "source" => self.name.to_string()).increment(copied);
        metrics::counter!("tickr_outbox_rejected_total").increment(unfit.len() as u64);
        for id in unfit {
            let outbox = &self.name;
            tracing::warn!(%outbox, row = %id, "a row of the outbox was rejected; GET /v1/outbox/rejected says why");
        }
        Ok(())
    }

    /// Delete at the source what was copied by an earlier runner, or was locked there by another session. `until` is
    /// the time up to which these rows are the copied ones, from before the copy of others.
    async fn delete_locked(&mut self, copied: BTreeSet<Uuid>, until: Option<Timestamp>) -> Result<(), Trouble> {
        let Some(led) = &mut self.led else { return Err(Trouble::TakenOver) };
        if copied.is_empty() || led.retry_locked > Instant::now() {
            return Ok(());
        }
        let ids: Vec<Uuid> = copied.into_iter().collect();
        let done = self.delete(&ids, until).await;
        if let Some(led) = &mut self.led {
            led.retry_locked = Instant::now() + RETRY_LOCKED;
        }
        done
    }

    /// Delete these rows at the source. Those that another session locks there stay listed.
    async fn delete(&mut self, ids: &[Uuid], until: Option<Timestamp>) -> Result<(), Trouble> {
        let Some(led) = &mut self.led else { return Err(Trouble::TakenOver) };
        let left = self.source.delete(ids, until).await?;
        for id in ids.iter().filter(|id| !left.contains(id)) {
            led.copied.remove(id);
        }
        if led.copied.is_empty() {
            self.shared.store.forget_copied(&self.name, led.turn).await?;
        }
        Ok(())
    }

    /// Renew the lease when it is time, and report what waits at the source.
    async fn renew(&mut self) -> Result<(), Trouble> {
        let Some(led) = &mut self.led else { return Err(Trouble::TakenOver) };
        if led.renewed.elapsed() < RENEW_EVERY {
            return Ok(());
        }
        let began = Instant::now();
        let backlog = self.source.backlog().await?;
        if !self.shared.store.keep_source(&self.name, led.turn, LEASE, backlog).await? {
            return Err(Trouble::TakenOver);
        }
        led.renewed = began;
        Ok(())
    }

    /// Let other runners have the source. `error` says why this one cannot read it.
    async fn leave(&self, error: Option<String>) {
        if let Err(error) = self.shared.store.leave_source(&self.name, &self.shared.runner, error).await {
            tracing::debug!(outbox = %self.name, %error, "cannot leave the outbox of an application, the lease ends by itself");
        }
    }
}
