//! MySQL, the source of truth. All SQL of tickr is in this folder, and the other folders do not depend on SQL.
//!
//! Three tables are the core: `jobs` (what was requested, inserted once), `owed` (one narrow row for each unfinished
//! job) and `attempts` (the ledger: what was done, and with which outcome). `migrations/` describes every column, and
//! `ARCHITECTURE.md` explains the choice of these three.
//!
//! The writes that every job needs go through group commit: [`Store::insert`], [`Store::settle`] and
//! [`Claimant::claim`].
//!
//! The path of a job:
//! - `insert.rs`: accepts jobs.
//! - `keyed.rs`: accepts jobs with unique keys.
//! - `once.rs`: carries out requests with an idempotency key at most once, and stores their responses.
//! - `claim.rs`: starts attempts.
//! - `claim_batches.rs`: finds the open attempts of a runner.
//! - `complete.rs`: settles plain successes.
//! - `settle.rs`: settles all other attempts.
//! - `lease.rs`: renews leases, and ends attempts whose lease has ended.
//! - `suspects.rs`: ends a suspect at once when its process is known to be dead.
//! - `readers.rs`: the runners that can still try to read a job that another runner cannot read.
//! - `dead.rs`: dead letters.
//!
//! The feed of the index:
//! - `line.rs`: reads lanes of unfinished jobs in the order of their due times.
//! - `due.rs`: looks up and counts unfinished jobs, to compare the index with them.
//!
//! Changes by clients and operators:
//! - `operate.rs`: cancel, retry and run now, for one job.
//! - `change.rs`: changes of the due time or the priority of one job.
//! - `operation.rs`: bulk operations.
//! - `condition.rs`: preconditions of a change.
//! - `queues.rs`: settings of queues.
//! - `permits.rs`: permits of queues with a limit.
//! - `keys.rs`: API keys.
//! - `schedules.rs`: schedules.
//! - `ticks.rs`: the ticks of schedules and their ledger.
//! - `runners.rs`: the list of runners, the jobs in their workers, drain.
//! - `audit.rs`: the record of what operators changed.
//! - `alert.rs`: alerts about dead letters.
//!
//! Reads for people:
//! - `read.rs`: one job with its attempts, or a page of jobs.
//! - `search.rs`: jobs that match a filter.
//! - `glimpse.rs`: revisions of many jobs.
//! - `explain.rs`: the position of a job that waits.
//! - `pending.rs`: payloads of unfinished jobs, to check if a binary can read them.
//! - `stats.rs`: counts for people and for metrics.
//! - `backlog.rs`: counts of unfinished jobs by queue and state.
//! - `forecast.rs`: jobs and ticks that become due in the next hours.
//! - `samples.rs`: counts and durations over time, for charts.
//! - `report_query.rs`: runs the queries of reports.
//! - `report_files.rs`: finished reports.
//!
//! Removal:
//! - `remove.rs`: removes ended jobs.
//! - `purge.rs`: removes what is older than its retention.
//! - `forget.rs`: removes stopped runners and old records of batches, and sums up tallies that no longer change.
//!
//! The checks of `tickr verify`:
//! - `evidence.rs`: the contents of the tables, page by page.
//! - `startable.rs`: jobs that could start now and wait nevertheless.
//! - `clock_steps.rs`: steps of the database's clock that runners noticed.
//! - `verifications.rs`: checks that operators requested, and their results.
//!
//! Used by `tickr bench` only:
//! - `bare.rs`: the writes of the product without a runner.
//! - `gauge.rs`: readings of the server's counters.
//! - `growth.rs`: fills the tables before a run.
//!
//! The foundation:
//! - `link.rs`: connections, and the rules under which every statement runs.
//! - `pools.rs`: divides the connections among their uses.
//! - `group_commit.rs`: writes the items of many callers in one transaction.
//! - `stuck.rs`: writes that wait for a row that another session locks.
//! - `script.rs`: runs several statements in few round trips.
//! - `shape.rs`: statements for many rows, in few variants.
//! - `clock.rs`: an estimate of the database's clock.
//! - `durability.rs`: checks of the server's settings.
//! - `error.rs`: classifies the errors of MySQL.
//! - `migrate/`: changes the tables to the form that this binary needs.

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

/// Inserts that may wait for a flusher. Further ones are refused.
const WAITING_INSERTS: usize = 20_000;
/// Claims, or settlements, that may wait for a flusher. A runner cannot have more workers than this.
const WAITING_WORKERS: usize = 8_192;
/// Claims of suspects that may wait. A process makes one at a time.
const WAITING_SUSPECTS: usize = 16;
/// If the first connection takes longer than this, MySQL counts as having been down.
const PROMPT: Duration = Duration::from_secs(1);

/// Settings of the connection to MySQL.
#[derive(Clone)]
pub struct StoreSettings {
    /// `mysql://user:password@host:port/database`.
    pub url: String,
    /// Number of connections for everything except the group commits and the heartbeat, which have connections of their
    /// own. [`Split`] divides this number among its uses.
    pub connections: u32,
    /// Number of flushers of each kind of group commit.
    pub flushers: usize,
}

impl std::fmt::Debug for StoreSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The URL contains the password.
        f.debug_struct("StoreSettings").field("connections", &self.connections).finish_non_exhaustive()
    }
}

/// The state that all parts of the store share.
struct Shared {
    options: Target,
    pools: Pools,
    clock: Arc<StoreClock>,
    lanes: Lanes,
    flushers: usize,
    tasks: TaskTracker,
    was_out: bool,
    /// The attempts that this process has claimed and not yet settled.
    open_claims: Arc<OpenClaims>,
}

/// The store. It is cheap to clone.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
    inserts: Arc<GroupCommit<Inserts>>,
    onces: Arc<GroupCommit<OnceInserts>>,
    settles: Arc<GroupCommit<Settles>>,
}

/// The first questions to the server when tickr starts. They are one attempt, with one time limit, because the
/// connection may stop answering at any of them.
struct FirstWords {
    clock: StoreClock,
    variables: Variables,
}

impl FirstWords {
    async fn exchange(target: &Target) -> Result<Self, sqlx::Error> {
        let mut conn = link::open(target).await?;
        link::within(link::FIRST_WORDS, async {
            let sent = Instant::now();
            // Sent as plain text: nothing is prepared before the server's limit of prepared statements is known.
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
        // The Debug form of the driver's options contains the password, so nothing of them is printed.
        f.write_str("Store")
    }
}

impl Store {
    /// Connect, read the server's clock and start the flushers. Retries for `patience` while MySQL does not answer.
    ///
    /// # Errors
    /// [`StoreError::Refused`] when the URL or the server's settings cannot be used, [`StoreError::Unavailable`] when
    /// MySQL does not answer within `patience`.
    pub async fn connect(settings: &StoreSettings, patience: Duration) -> Result<Self, StoreError> {
        let attempted = "connect to mysql";
        let refused = |cause: String| StoreError::Refused { attempted, cause };
        let options = MySqlConnectOptions::from_str(&settings.url)
            // The driver's message may contain the URL.
            .map_err(|_| refused("the url is not mysql://user:password@host:port/database".into()))?;
        let options = Target::new(options);
        let (started, mut told) = (Instant::now(), false);
        let first = loop {
            match FirstWords::exchange(&options).await {
                Ok(first) => break first,
                // A wrong password at the start is a mistake of the operator; later it is an outage.
                Err(e) if error::is_wrong_address(&e) => return Err(refused(e.to_string())),
                Err(e) if error::fault(&e) == error::Fault::Reconnect && started.elapsed() < patience => {
                    // Logged once. The caller reports the error at the end of the wait.
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
        // Other connections than those of the pools, rounded up: the flushers of the three group commits and of the
        // claims, the connections for locked rows (`stuck.rs`), the flusher of suspects, and the heartbeat.
        let pooled = settings.connections.max(Split::LEAST) + pools::FOR_REPORTS;
        let connections = pooled as usize + 5 * settings.flushers + 5;
        if let Some(most) = first.variables.prepared_statements() {
            if most < connections {
                return Err(refused(format!(
                    "the server's max_prepared_stmt_count is {most}, but each of the {connections} connections of tickr needs \
                     at least one statement; raise it, for example with SET GLOBAL max_prepared_stmt_count = 16382"
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

    /// Create the database that `url` names, unless it exists. For private servers, on which no operator has created
    /// it.
    ///
    /// # Errors
    /// [`StoreError::Refused`] when the URL names no database, otherwise [`StoreError`] when MySQL cannot be reached or
    /// refuses the statement.
    pub async fn create_database(url: &str) -> Result<(), StoreError> {
        let attempted = "create the database";
        let (mut conn, name) = Self::outside_of(url, attempted).await?;
        let sql = format!("CREATE DATABASE IF NOT EXISTS {name} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin");
        let created = shape::statement(sql).execute(&mut conn).await;
        created.map(|_| ()).map_err(|e| StoreError::from_driver(attempted, &e))
    }

    /// Open a connection to the server of `url` without selecting its database. Returns the connection and the name of
    /// that database.
    async fn outside_of(url: &str, attempted: &'static str) -> Result<(MySqlConnection, String), StoreError> {
        let refused = |cause: &str| StoreError::Refused { attempted, cause: cause.into() };
        let options = MySqlConnectOptions::from_str(url)
            .map_err(|_| refused("the url is not mysql://user:password@host:port/database"))?;
        let name = options.get_database().unwrap_or_default().to_owned();
        // The name becomes part of the statement's text, because it cannot be bound as a value.
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            return Err(refused("the url must name a database whose name has only letters, digits and underscores"));
        }
        let conn =
            link::open(&Target::new(options.database(""))).await.map_err(|e| StoreError::from_driver(attempted, &e))?;
        Ok((conn, name))
    }

    /// The estimated clock of the database.
    #[must_use]
    pub fn clock(&self) -> &StoreClock {
        &self.shared.clock
    }

    /// Accept jobs, all or none. They are durable when this returns. The commit is shared with other callers that
    /// insert at the same time.
    ///
    /// # Errors
    /// [`StoreError::Overloaded`] when too many callers wait, otherwise [`StoreError`] when MySQL cannot be reached or
    /// refuses the statement.
    pub async fn insert(&self, jobs: Vec<NewJob>) -> Result<Vec<Accepted>, StoreError> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        self.inserts.submit_or_refuse(together(jobs)).await
    }

    /// Create the entrance for the claims of one runner.
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

    /// Settle an attempt, if the token still holds its job.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement. The lease then still holds, and the caller
    /// may try again.
    pub async fn settle(&self, settlement: Settlement) -> Result<Settled, StoreError> {
        let (id, token) = (settlement.id, settlement.token);
        let settled = self.settles.submit(settlement).await?;
        self.shared.open_claims.ended(id, token);
        Ok(settled)
    }

    /// Return true if MySQL answers and accepts writes within `limit`.
    pub async fn takes_writes(&self, limit: Duration) -> bool {
        matches!(tokio::time::timeout(limit, self.writable()).await, Ok(Ok(_)))
    }

    /// Check that the server accepts a job with a payload of this size, and the stored response to its request.
    ///
    /// # Errors
    /// [`StoreError::Refused`] when the server's `max_allowed_packet` is too small for that.
    pub fn carries(&self, payload_bytes: usize) -> Result<(), StoreError> {
        let (packet, wanted) = (self.shared.options.server.packet(), 2 * payload_bytes + (256 << 10));
        if packet >= wanted {
            return Ok(());
        }
        let cause = format!(
            "the server's max_allowed_packet is {packet} bytes, too few for a job of body_limit = {payload_bytes} bytes: raise it to \
             at least {wanted}, for example with SET GLOBAL max_allowed_packet = 16777216, or set a smaller body_limit"
        );
        Err(StoreError::Refused { attempted: "check max_allowed_packet", cause })
    }

    /// Return true if [`connect`](Self::connect) had to wait for MySQL. Then other runners may have lost their
    /// connection as well.
    #[must_use]
    pub fn was_out(&self) -> bool {
        self.shared.was_out
    }

    /// Close the store: finish the writes that were handed in, then close the connections. Call this after all users of
    /// the store have ended.
    pub async fn close(self) {
        let Self { shared, inserts, onces, settles } = self;
        drop((inserts, onces, settles));
        shared.tasks.close();
        if tokio::time::timeout(Duration::from_secs(10), shared.tasks.wait()).await.is_err() {
            tracing::warn!("the store closed while a task of tickr still used it");
        }
        // The close of a connection sends COM_QUIT, and over TLS it waits for an answer, which a server that hangs does
        // not give.
        if tokio::time::timeout(Duration::from_secs(2), shared.pools.close()).await.is_err() {
            tracing::warn!("mysql does not answer while its connections close; they are left open");
        }
    }
}

/// The entrance for the claims of one runner. Its id, its kinds and the duration of its lease are the same in every
/// claim.
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
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement. If the attempt was committed nevertheless,
    /// it ends with its lease.
    pub async fn claim(&self, id: JobId) -> Result<Claim, StoreError> {
        self.claims.submit(id).await
    }

    /// Start an attempt as [`claim`](Self::claim) does, and also accept suspects: jobs whose last runners died while
    /// they executed them. For a process that executes nothing else, or for a runner that cannot start such a process.
    ///
    /// # Errors
    /// The errors of [`claim`](Self::claim).
    pub async fn claim_suspect(&self, id: JobId) -> Result<Claim, StoreError> {
        self.suspects.submit(id).await
    }
}
