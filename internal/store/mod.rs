//! MySQL, the source of truth. All SQL is here, and nothing outside knows that it is SQL.
//!
//! Three tables that a person can read: `jobs` (what was asked, written once), `owed` (one narrow row per unfinished job),
//! `attempts` (what was done, and how it ended). See `migrations/` for every column and `ARCHITECTURE.md` for why it is these three.
//!
//! - Writes of the hot path go through group commit: [`Store::insert`], [`Store::settle`] and
//!   [`Claimant::claim`]. `insert.rs` · `claim.rs` · `complete.rs`: plain successes · `settle.rs`: every other end ·
//!   `script.rs`: statements in few round trips
//! - `keyed.rs`: unique keys · `once.rs`: requests that are carried out at most once
//! - `keys.rs`: keys of the API · `queues.rs`, `permits.rs`: what is set about queues, and who may run how many of them
//! - `schedules.rs`, `ticks.rs`: jobs that come by the clock
//! - `operate.rs`: cancel, retry, run now · `change.rs`: another due time or priority · `audit.rs`: who asked for what
//! - `runners.rs`: the list of runners, what is in their slots, drain
//! - `lease.rs`: renew and reap · `purge.rs`: retention · `remove.rs`: the removal of ended jobs · `forget.rs`: runners and
//!   tallies that rest · `line.rs`, `due.rs`: what feeds the index
//! - `operation.rs`: what is done to many jobs at once · `alert.rs`: what was told about thresholds
//! - `dead.rs`: jobs that failed for good, replayed or discarded
//! - `read.rs`, `search.rs`, `glimpse.rs`, `stats.rs`, `backlog.rs`, `explain.rs`, `pending.rs`, `durability.rs`: for people
//! - `report_files.rs`: finished reports, for every runner · `report_query.rs`: where their rows come from
//! - `samples.rs`: what happened in slots of time, for charts
//! - `evidence.rs`, `clock_steps.rs`, `verifications.rs`: what the checker reads, and what it found
//! - `bare.rs`, `gauge.rs`, `growth.rs`: for `tickr bench` and nobody else
//! - `migrate/`: brings the tables to the shape of this binary · `pools.rs`: which connections are for what · `link.rs`: the
//!   rules that every statement runs under

mod alert;
mod audit;
mod backlog;
mod bare;
mod change;
mod claim;
mod claim_batches;
mod clock;
mod clock_steps;
mod complete;
mod condition;
mod dead;
mod due;
mod durability;
mod error;
mod evidence;
mod explain;
mod forecast;
mod forget;
mod gauge;
mod glimpse;
mod group_commit;
mod growth;
mod insert;
mod keyed;
mod keys;
mod lease;
mod line;
mod link;
mod migrate;
mod once;
mod operate;
mod operation;
mod pending;
mod permits;
mod pools;
mod purge;
mod queues;
mod read;
mod readers;
mod remove;
mod report_files;
mod report_query;
mod runners;
mod samples;
mod schedules;
mod script;
mod search;
mod settle;
mod shape;
mod startable;
mod stats;
mod stuck;
mod suspects;
mod ticks;
mod verifications;

pub use alert::Message;
pub use audit::{Act, Done};
pub use bare::{BareClaims, BareLane};
pub use change::{Change, Changed, Holds};
pub use claim::{Claim, Claimed, Opened, Unreadable};
pub use claim_batches::{BatchPage, LapseRule};
pub use clock::{Reading, StoreClock};
pub use clock_steps::ClockStep;
pub use condition::Condition;
pub use dead::{DeadCount, DeadGroup, DeadGroupWhole, Original, Refusal, Remake};
pub use due::{DueJob, DueWithin};
pub use durability::Durability;
pub use error::StoreError;
pub use evidence::{
    Asked, Evidence, EvidencePage, JobEvidence, LedgerLine, OwedNow, Tallies, TallyKey, TickPlace, Walk,
};
pub use explain::Standing;
pub use forecast::{Ahead, HourDue};
pub use forget::{KEEP_RUNNERS, TallyPlace};
pub use gauge::{Gauge, Lives, Overheard, ServerCounters};
pub use glimpse::Glimpse;
pub use growth::Growth;
pub use insert::Accepted;
pub use keyed::{Holder, Keyed, Placed, Receipts};
pub use keys::{ApiKey, MOST_KEYS, MadeKey, NewKey, RevokedKey};
pub use lease::{Beat, Lapsed, LiveAttempt, OwedPage, Pulse, Reaped, RunnerBeat, RunnerRow};
#[doc(hidden)]
pub use line::due_statements;
pub use line::{Depth, DueCursor, DueLine, DueRange, DueRow, DueWalk, LinePage};
#[doc(hidden)]
pub use link::rolled_back_on_release;
pub use migrate::{MIGRATION_PATIENCE, MigrateSettings};
pub use once::{Answer, Digest, Once, Outcome, Wording};
pub use operate::{Moved, Steer, Steered};
pub use operation::{Batched, OperationCancelled, OperationLease};
pub use pending::Pending;
pub use permits::{MayJudge, PermitGrant, PermitRequest};
pub use pools::Split;
pub use purge::{KindRetention, Purged, Retention};
pub use queues::{MOST_QUEUES, Pause, Paused, QueueChange, QueueChanged, QueueSetting};
pub use read::JobPage;
pub use readers::{Reader, UNREAD};
pub use report_files::{RemovedPlace, RemovedReport};
pub use report_query::{InvalidUrl, ReportQueries};
pub use runners::{Drained, MOST_SLOT_JOBS, RunnerSeen, SlotJob, Slots};
pub use samples::{Figures, History, MOST_CHARTED, MOST_SAMPLES, Sample};
pub use schedules::{Deleted, DueSchedules, Origin, Put, Scheduled, Switched, UnreadableSchedule, VersionTag};
pub use search::{Breakdown, Counted, Replayed};
pub use settle::{Again, MOST_LOSSES, MOST_SPARED, SUSPECT_FROM, Settled, Settlement};
pub use startable::{Startable, StuckJob};
pub use stats::{PoolUse, StateCount, Stats};
pub use suspects::Death;
pub use ticks::{PlannedLine, TickLine, TickPage, TickPlan, Ticked, Triggered};
pub use verifications::{Begun, Verification};

use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::mysql::MySqlConnectOptions;
use sqlx::{MySqlConnection, Row};
use tokio_util::task::TaskTracker;

use claim::Claims;
use claim_batches::OpenClaims;
use durability::Variables;
use group_commit::GroupCommit;
use insert::{Inserts, together};
use link::{Link, Target};
use once::OnceInserts;
use pools::Pools;
use settle::{Lanes, Settles};

use crate::job::{JobId, Name, NewJob, RunnerId};

/// Callers that may wait for an insert before further ones are refused.
const WAITING_INSERTS: usize = 20_000;
/// Workers that may wait for a claim or settle; more workers than this are not configurable.
const WAITING_WORKERS: usize = 8_192;
/// Claims of suspects that may wait; a process makes one at a time.
const WAITING_SUSPECTS: usize = 16;
/// A MySQL that takes longer to be connected to was out.
const PROMPT: Duration = Duration::from_secs(1);

/// How to reach MySQL.
#[derive(Clone)]
pub struct StoreSettings {
    /// `mysql://user:password@host:port/database`.
    pub url: String,
    /// Connections for everything but the group commits and the heartbeat, which have their own. [`Split`] says how many
    /// of them are for what.
    pub connections: u32,
    /// Flushers per kind of group commit.
    pub flushers: usize,
}

impl std::fmt::Debug for StoreSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The URL carries the password.
        f.debug_struct("StoreSettings").field("connections", &self.connections).finish_non_exhaustive()
    }
}

/// What all parts of the store share.
struct Shared {
    options: Target,
    pools: Pools,
    clock: Arc<StoreClock>,
    lanes: Lanes,
    flushers: usize,
    tasks: TaskTracker,
    was_out: bool,
    /// What this process has claimed and not yet settled.
    open_claims: Arc<OpenClaims>,
}

/// The store. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
    inserts: Arc<GroupCommit<Inserts>>,
    onces: Arc<GroupCommit<OnceInserts>>,
    settles: Arc<GroupCommit<Settles>>,
}

/// What a start asks first. All of it is one try: a line may fall silent at any of its steps.
struct FirstWords {
    clock: StoreClock,
    variables: Variables,
}

impl FirstWords {
    async fn exchange(target: &Target) -> Result<Self, sqlx::Error> {
        let mut conn = link::open(target).await?;
        link::within(link::FIRST_WORDS, async {
            let sent = Instant::now();
            // Nothing is prepared before it is known for how many statements there is room.
            let now = sqlx::raw_sql("SELECT UTC_TIMESTAMP(6)").fetch_one(&mut conn).await?.try_get(0)?;
            let clock = StoreClock::starting_at(sent, Instant::now(), now);
            let variables = durability::variables(&mut conn).await?;
            Ok(Self { clock, variables })
        })
        .await
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The driver's options print the password in their Debug form; say nothing of them.
        f.write_str("Store")
    }
}

impl Store {
    /// Connect, read the server's clock and start the flushers. Tries for `patience` before it gives up.
    ///
    /// # Errors
    /// [`StoreError::Refused`] when the URL is unusable, [`StoreError::Unavailable`] when nobody answers in time.
    pub async fn connect(settings: &StoreSettings, patience: Duration) -> Result<Self, StoreError> {
        let attempted = "connect to mysql";
        let refused = |cause: String| StoreError::Refused { attempted, cause };
        let options = MySqlConnectOptions::from_str(&settings.url)
            // The driver's message may quote the URL.
            .map_err(|_| refused("the url is not mysql://user:password@host:port/database".into()))?;
        let options = Target::new(options);
        let (started, mut told) = (Instant::now(), false);
        let first = loop {
            match FirstWords::exchange(&options).await {
                Ok(first) => break first,
                // A wrong password at a start is a mistake; later it is an outage.
                Err(e) if error::is_wrong_address(&e) => return Err(refused(e.to_string())),
                Err(e) if error::fault(&e) == error::Fault::Reconnect && started.elapsed() < patience => {
                    // Said once; the end of the wait says the rest.
                    if !std::mem::replace(&mut told, true) {
                        tracing::info!(error = %e, patience_s = patience.as_secs(), "mysql does not answer yet");
                    }
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
                Err(e) => return Err(StoreError::from_driver(attempted, &e)),
            }
        };
        let was_out = started.elapsed() > PROMPT;
        if let Some(cause) = first.variables.refuses_writes() {
            return Err(refused(cause));
        }
        // Beside the pools: the flushers of the three group commits and of the claims, those for rows that are locked, one
        // for suspects, the heartbeat.
        let pooled = settings.connections.max(Split::LEAST) + pools::FOR_REPORTS;
        let connections = pooled as usize + 5 * settings.flushers + 5;
        if let Some(most) = first.variables.prepared_statements() {
            if most < connections {
                return Err(refused(format!(
                    "the server's max_prepared_stmt_count is {most}, and each of the {connections} connections of tickr needs \
                     one statement at the least; raise it, as in SET GLOBAL max_prepared_stmt_count = 16382"
                )));
            }
            options.server.share_statements(most, connections);
        }
        let clock = Arc::new(first.clock);
        let shared = Arc::new(Shared {
            pools: Pools::new(&options, settings.connections),
            options,
            clock,
            lanes: Lanes::drawn(),
            flushers: settings.flushers,
            tasks: TaskTracker::new(),
            was_out,
            open_claims: Arc::default(),
        });
        let (options, tasks) = (&shared.options, &shared.tasks);
        let inserts = Inserts { clock: shared.clock.clone() };
        let inserts = GroupCommit::start(inserts, options, settings.flushers, WAITING_INSERTS, tasks);
        let onces = OnceInserts { clock: shared.clock.clone() };
        let onces = GroupCommit::start(onces, options, settings.flushers, WAITING_INSERTS, tasks);
        let settles = Settles::new(shared.clock.clone(), shared.lanes);
        let settles = GroupCommit::start(settles, options, settings.flushers, WAITING_WORKERS, tasks);
        Ok(Self { shared, inserts: Arc::new(inserts), onces: Arc::new(onces), settles: Arc::new(settles) })
    }

    /// Create the database that `url` names, unless it is there: for private servers, where nobody else does it.
    ///
    /// # Errors
    /// [`StoreError::Refused`] when the URL names none, otherwise when MySQL cannot be reached or refuses.
    pub async fn create_database(url: &str) -> Result<(), StoreError> {
        let attempted = "create the database";
        let (mut conn, name) = Self::outside_of(url, attempted).await?;
        let sql = format!("CREATE DATABASE IF NOT EXISTS {name} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin");
        let created = shape::statement(sql).execute(&mut conn).await;
        created.map(|_| ()).map_err(|e| StoreError::from_driver(attempted, &e))
    }

    /// A connection to the server of `url`, outside of the database it names, and that database's name.
    async fn outside_of(url: &str, attempted: &'static str) -> Result<(MySqlConnection, String), StoreError> {
        let refused = |cause: &str| StoreError::Refused { attempted, cause: cause.into() };
        let options = MySqlConnectOptions::from_str(url).map_err(|_| refused("unusable url"))?;
        let name = options.get_database().unwrap_or_default().to_owned();
        // The name goes into the text of a statement, where it cannot be bound.
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            return Err(refused("the name of a database is made of letters, digits and underscores"));
        }
        let conn =
            link::open(&Target::new(options.database(""))).await.map_err(|e| StoreError::from_driver(attempted, &e))?;
        Ok((conn, name))
    }

    /// The database's clock, estimated.
    #[must_use]
    pub fn clock(&self) -> &StoreClock {
        &self.shared.clock
    }

    /// Accept jobs, all or none. Durable when it returns; shares its commit with whoever else is inserting.
    ///
    /// # Errors
    /// [`StoreError::Overloaded`] when too many callers wait, otherwise when MySQL cannot be reached or refuses.
    pub async fn insert(&self, jobs: Vec<NewJob>) -> Result<Vec<Accepted>, StoreError> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        self.inserts.submit_or_refuse(together(jobs)).await
    }

    /// The entrance for claims by one runner.
    #[must_use]
    pub fn claimant(&self, runner: RunnerId, kinds: Vec<Name>, lease: Duration) -> Claimant {
        let shared = &self.shared;
        let runner = Arc::new(runner);
        let claims = |kinds, suspects| Claims {
            runner: Arc::clone(&runner),
            kinds,
            lease,
            suspects,
            open: Arc::clone(&shared.open_claims),
        };
        let (suspects, claims) = (claims(kinds.clone(), true), claims(kinds, false));
        let suspects = GroupCommit::start(suspects, &shared.options, 1, WAITING_SUSPECTS, &shared.tasks);
        let claims = GroupCommit::start(claims, &shared.options, shared.flushers, WAITING_WORKERS, &shared.tasks);
        Claimant { claims: Arc::new(claims), suspects: Arc::new(suspects) }
    }

    /// End an attempt, if the token still holds it.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses; the lease then still holds, and the caller may try again.
    pub async fn settle(&self, settlement: Settlement) -> Result<Settled, StoreError> {
        let (id, token) = (settlement.id, settlement.token);
        let settled = self.settles.submit(settlement).await?;
        self.shared.open_claims.ended(id, token);
        Ok(settled)
    }

    /// Does MySQL answer and take writes, within `limit`?
    pub async fn takes_writes(&self, limit: Duration) -> bool {
        matches!(tokio::time::timeout(limit, self.writable()).await, Ok(Ok(_)))
    }

    /// Does the server take a job whose payload has so many bytes, and the answer that is kept for its request?
    ///
    /// # Errors
    /// [`StoreError::Refused`] when its `max_allowed_packet` is too small for that.
    pub fn carries(&self, payload_bytes: usize) -> Result<(), StoreError> {
        let (packet, wanted) = (self.shared.options.server.packet(), 2 * payload_bytes + (256 << 10));
        if packet >= wanted {
            return Ok(());
        }
        let cause = format!(
            "the server's max_allowed_packet is {packet} bytes, too few for a job of body_limit = {payload_bytes} bytes: it must be \
             {wanted} at the least, as in SET GLOBAL max_allowed_packet = 16777216; or set a smaller body_limit"
        );
        Err(StoreError::Refused { attempted: "check what the server takes", cause })
    }

    /// Did [`connect`](Self::connect) have to wait for MySQL? Then others may have had to as well.
    #[must_use]
    pub fn was_out(&self) -> bool {
        self.shared.was_out
    }

    /// Close: writes that were handed in are finished, then connections end. Call after everything that uses it.
    pub async fn close(self) {
        let Self { shared, inserts, onces, settles } = self;
        drop((inserts, onces, settles));
        shared.tasks.close();
        if tokio::time::timeout(Duration::from_secs(10), shared.tasks.wait()).await.is_err() {
            tracing::warn!("a part of tickr still held the store when it closed");
        }
        // Closing says goodbye on every connection, and over TLS waits for the answer: a server that hangs gives none.
        if tokio::time::timeout(Duration::from_secs(2), shared.pools.close()).await.is_err() {
            tracing::warn!("mysql does not answer a goodbye, leaving its connections behind");
        }
    }
}

/// The entrance for claims by one runner: its identity, its kinds and its lease are the same in every claim.
#[derive(Clone)]
pub struct Claimant {
    claims: Arc<GroupCommit<Claims>>,
    suspects: Arc<GroupCommit<Claims>>,
}

impl std::fmt::Debug for Claimant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Claimant")
    }
}

impl Claimant {
    /// Start an attempt, if the job waits and is due. The attempt is committed when this returns [`Claim::Won`] (G5).
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses. An attempt that was committed all the same ends with its lease.
    pub async fn claim(&self, id: JobId) -> Result<Claim, StoreError> {
        self.claims.submit(id).await
    }

    /// As [`claim`](Self::claim), and also of a job whose last runners died under it: for a process that runs it alone, or
    /// for a runner that has no such process to give it.
    ///
    /// # Errors
    /// As [`claim`](Self::claim).
    pub async fn claim_suspect(&self, id: JobId) -> Result<Claim, StoreError> {
        self.suspects.submit(id).await
    }
}
