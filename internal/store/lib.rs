//! MySQL, the source of truth. All SQL of tickr is in this folder, and the other folders do not depend on SQL.
//!
//! Three tables are the core: `jobs` (what was requested, inserted once), `owed` (one narrow row for each unfinished
//! job) and `attempts` (the ledger: what was done, and with which outcome). `migrations/` describes every column, and
//! `docs/design/tables.md` explains the choice of these three.
//!
//! The writes that every job needs go through group commit: [`Store::insert`], [`Store::settle`] and
//! [`Claimant::claim`].
//!
//! `jobs/` and `schedules/` have the same names in `api/`. The folders:
//!
//! - `sql/`: connections, statements for many rows, group commit
//! - `rows/`: rows that several of the folders need
//! - `jobs/`: jobs: accepted, read, searched, counted, changed
//! - `attempts/`: attempts: claimed, leased, settled, lost; permits
//! - `schedules/`: schedules and their ticks
//! - `retention/`: removal of old and deleted rows
//! - `batches/`: jobs that belong together, with callbacks
//! - `reports/`: queries and finished files of reports
//! - `verify/`: the reads of `tickr verify`
//! - `bench/`: used by `tickr bench` only
//! - `alerts.rs`: alerts about dead letters.
//! - `api_keys.rs`: API keys.
//! - `audit.rs`: the record of what operators changed.
//! - `breakers.rs`: breakers of hosts, as operators see and close them.
//! - `bulk.rs`: bulk operations.
//! - `bulk_pauses.rs`: pauses of bulk operations.
//! - `canary.rs`: the outcomes of jobs that a canary released, and what follows from them.
//! - `change_summary.rs`: a summary of what runners look at each second.
//! - `dead_letter_causes.rs`: the causes for which jobs failed for good in a range of time.
//! - `dead_letters.rs`: dead letters.
//! - `idempotency.rs`: carries out requests with an idempotency key at most once, and stores their responses.
//! - `index_changes.rs`: when runners lost Redis and had it again.
//! - `kinds.rs`: kinds that remote workers execute.
//! - `limits.rs`: limits by key, made by operators.
//! - `marks.rs`: events that charts mark.
//! - `outbox/`: jobs that other programs request with a plain INSERT.
//! - `migrate/`: changes the tables to the form that this binary needs.
//! - `queues.rs`: settings of queues.
//! - `runners.rs`: the list of runners, the jobs in their workers, drain.
//! - `samples.rs`: counts and durations over time, for charts.

mod alerts;
mod api_keys;
mod attempts;
mod audit;
mod batches;
mod bench;
mod breakers;
mod bulk;
mod bulk_pauses;
mod canary;
mod change_summary;
mod dead_letter_causes;
mod dead_letters;
mod idempotency;
mod index_changes;
mod jobs;
mod kinds;
mod limits;
mod marks;
mod migrate;
mod outbox;
mod queues;
mod reports;
mod retention;
mod rows;
mod runners;
mod samples;
mod schedules;
mod sql;
mod verify;

/// A connection of the caller, for rows of the outbox in the caller's transactions.
pub use sqlx::MySqlConnection;

pub use alerts::Message;
pub use api_keys::{ApiKey, MAX_API_KEYS, MadeApiKey, NewApiKey, RevokedApiKey};
use async_recursion::async_recursion as boxed;
pub use attempts::checkpoints::NewCheckpoint;
use attempts::checkpoints::SaveTurn;
pub use attempts::claim::{Claim, Claimed, Opened, Unreadable};
pub use attempts::claim_batches::{BatchPage, LapseRule, Lapsed};
pub use attempts::deferred::{Deferral, DeferredAttempt, FinishKeyDigest, Reported};
pub use attempts::lease::{
    GiveBack, HeartbeatConnection, OwedPage, Reaped, Returned, RunnerBeat, RunnerRow, ServedKinds, UnstoppedRunners,
};
pub use attempts::limited::LimitSweep;
pub use attempts::permits::{MayJudge, PermitGrant, PermitRequest};
pub use attempts::readers::{Reader, UNREAD};
pub use attempts::remote::{
    BEATS_PER_LEASE, BegunFetch, HANDED_OUT_WITHIN, HeldAttempt, MAX_REMOTE_CLAIM, NewWorker, OverdueAttempt,
    RemoteAttempt, RemoteAttempts, RemoteClaims, RemoteFetch, RemoteWorker, WorkerBeat,
};
use attempts::renewal::Caution;
pub use attempts::renewal::HeartbeatAnswer;
pub use attempts::settlement::{Again, CheckpointUse, Settled, Settlement};
use attempts::settlement::{SettleReply, SettleRequest};
pub use attempts::suspects::Death;
pub use audit::{AuditEntry, AuditFilter, AuditRecord, FoldedActs};
pub use batches::callbacks::{Callback, CallbackEvent};
pub use batches::cancel::{BatchCancelled, CancelMark, LEFT_AT_ONCE};
pub use batches::count::{BatchCounted, ChangedBatches};
pub use batches::create::{BatchCreated, BatchProblems, NewBatch};
pub use batches::read::{MAX_NESTED, MAX_NESTED_LEVELS, MAX_WITH_FAILURES};
pub use batches::rows::{Batch, BatchCounts, BatchState};
pub use bench::bare::{BareClaims, BareLane};
pub use bench::growth::Growth;
pub use bench::links::OutboxWriter;
pub use bench::server_counters::{CounterConnection, JobCounts, ServerCounters, StatementCounts};
pub use bench::waits::{ParkedJobs, StartedJob};
pub use breakers::OpenBreaker;
pub use bulk::{BatchOutcome, CancelOutcome, MAX_OPERATED_JOBS, MadeJobs, OperationLease, ReleaseRunning};
pub use bulk_pauses::{OperationPause, PauseOperation};
pub use canary::CanaryTurn;
pub use change_summary::ChangeSummary;
pub use dead_letter_causes::{CauseFilter, Causes, DeadLetterCause};
pub use dead_letters::{DeadLetterCount, DeadLetterGroup, Original, Refusal, Remake, WholeDeadLetterGroup};
pub use idempotency::{Answer, Digest, IdempotentOutcome, IdempotentRequest, ResponseBuilder};
pub use index_changes::KEEP_INDEX_CHANGES;
pub use jobs::actions::{ActionOutcome, JobAction, UpdatedJob};
pub use jobs::backlog::StateCount;
pub use jobs::change::{Change, ChangeCondition, ChangeOutcome, NewPayload};
pub use jobs::condition::Condition;
pub use jobs::demand::QueueDemand;
pub use jobs::dependencies::{ParentProgress, ToldChildren};
pub use jobs::differences::{FailureSamples, JobSample, ShownFields};
pub use jobs::due::DueWithin;
pub use jobs::expire::{ExpiredJob, ExpiredJobs};
pub use jobs::explain::QueuePosition;
#[doc(hidden)]
pub use jobs::held::held_statement;
pub use jobs::held::{HeldCount, HoldReason};
pub use jobs::key_holders::KeyHolder;
#[doc(hidden)]
pub use jobs::lanes::due_statements;
pub use jobs::lanes::{Depth, DueCursor, DueLane, DueRange, DueRow, DueWalk, LinePage};
pub use jobs::limits::{BreakerSeen, KeyUse, ParkedAt};
pub use jobs::order::OrderPlace;
pub use jobs::order_keys::{MAX_ORDER_KEYS, OrderKeyHead, OrderKeyPage, OrderKeyUse};
pub use jobs::pending::Pending;
pub use jobs::read::JobPage;
pub use jobs::search::{Breakdown, Counted, Order as SearchOrder, Replayed};
pub use jobs::stats::{PoolUse, Stats};
pub use jobs::survey::{Bar, Facet, FacetField, FacetValue, MAX_BARS, Survey};
pub use jobs::unique_keys::{EnqueueOutcome, EnqueueReceipts, EnqueueRefusal, EnqueuedJob, TakenKeys};
pub use jobs::watch::JobRevision;
pub use kinds::{DeclareOutcome, KindSetting, MAX_DECLARED_KINDS};
pub use limits::{LimitOutcome, MAX_LIMITS};
pub use marks::{MAX_MARKS, Marks};
pub use migrate::{MIGRATION_PATIENCE, MigrateSettings};
pub use outbox::copies::{SourceCopy, SourceState, SourceTurn, TakeOver};
pub use outbox::insert::{NewOutboxRow, OutboxPlace, insert_outbox_row};
pub use outbox::leader::OutboxState;
pub use outbox::locks::{NeededLock, WaitsFor};
pub use outbox::pages::{KeyedMove, KeyedRow, OutboxPage, PrepareRow, PreparedRow};
pub use outbox::rejected::{RejectedAction, RejectedRow};
pub use outbox::rows::OutboxRow;
pub use outbox::source::{OUTBOX_SCHEMA, OutboxSource, SourceBacklog, SourcePage, SourceSettings};
pub use outbox::source_error::SourceError;
pub use outbox::source_rows::CopiedRow;
pub use queues::{MAX_QUEUES, Pause, PauseRequest, QueueChange, QueueChangeOutcome, QueueSetting};
pub use reports::files::{PARTS_AT_ONCE, PartsOf, RemovedPlace, RemovedReport};
pub use reports::query::{InvalidUrl, ReportQueries};
pub use retention::forget::{KEEP_RUNNERS, TallyPlace, UniqueKeyPlace};
pub use retention::purge::Purged;
pub use retention::times::{KindRetention, Retention};
pub use rows::jobs::Accepted;
pub use rows::limits::{FairShare, LimitKey, LimitSetting};
pub use rows::links::LinkProblem;
pub use rows::owed::{DueJob, MAX_LOSSES, MAX_SPARED, SUSPECT_FROM};
pub use runners::{DrainOutcome, LiveAttempt, MAX_WORKER_JOBS, RunnerCounts, RunnerSeen, WorkerJob, WorkerJobs};
pub use samples::{Figures, History, MAX_CHARTED, MAX_SAMPLES, Sample};
pub use schedules::day::{MAX_STRIPS, TickCounts, TickStrip, TickStrips};
pub use schedules::forecast::{Ahead, HourDue};
pub use schedules::rows::{ScheduleOrigin, Scheduled, UnreadableSchedule, VersionTag};
pub use schedules::ticks::{PlannedLine, TickLine, TickPage, TickPlan, Ticked, TriggerOutcome};
pub use schedules::{DeleteOutcome, DueSchedules, PauseOutcome, PutOutcome};
pub use sql::clock::{Reading, StoreClock};
pub use sql::clock_steps::ClockStep;
#[doc(hidden)]
pub use sql::connection::{PoolGuard, heavy_read};
pub use sql::durability::Durability;
pub use sql::error::{ServerError, StoreError};
pub use sql::pools::PoolSizes;
#[doc(hidden)]
pub use sql::table_names::with_prefix;
pub use sql::topology::{Topology, TopologyKind};
pub use verify::evidence::{
    Evidence, EvidencePage, JobEvidence, JobRow, LedgerRow, OwedRow, Tallies, TallyKey, TickPlace, Walk,
};
pub use verify::limits::ExceededLimit;
pub use verify::links::ParentRow;
pub use verify::order::{LifeSpan, OrderCursor, PlaceRow};
pub use verify::startable::{Startable, StuckJob};
pub use verify::verifications::{BeginOutcome, Verification};

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sqlx::Row;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tokio_util::task::TaskTracker;

use attempts::breakers::EndedCall;
use attempts::claim::{ClaimRequest, Claims};
use attempts::claim_batches::OpenClaims;
use attempts::limited::{FreedSlots, SlotsOfJob, SlotsReply};
use attempts::settle::Settles;
use jobs::idempotent_inserts::IdempotentInserts;
use jobs::insert::{Inserts, OrderedInserts, together};
use rows::aged::AgedPages;
use rows::limits::KnownLimits;
use rows::tallies::Lanes;
use sql::connection::Target;
use sql::durability::Variables;
use sql::group_commit::GroupCommit;
use sql::page_size::PageSize;
use sql::pools::Pools;
use sql::servers::{read_server, read_servers};

use tickr_job::{JobId, Name, NewJob, RunnerId, TablePrefix};

/// Inserts that may wait for a flusher. Further ones are refused.
const WAITING_INSERTS: usize = 20_000;
/// Claims, or settlements, that may wait for a flusher. A runner cannot have more workers than this.
const WAITING_WORKERS: usize = 8_192;
/// Claims of suspects that may wait. A process makes one at a time.
const WAITING_SUSPECTS: usize = 16;
/// Longest wait until the slots of an attempt that has been settled are free.
const SLOTS_LIMIT: Duration = Duration::from_secs(5);
/// If the first connection takes longer than this, MySQL counts as having been down.
const PROMPT: Duration = Duration::from_secs(1);

/// Settings of the connection to MySQL.
#[derive(Clone)]
pub struct StoreSettings {
    /// `mysql://user:password@host:port/database`, with one server or several: `host:port,host:port`.
    pub url: String,
    /// Number of connections for everything except the group commits and the heartbeat, which have connections of their
    /// own. [`PoolSizes`] divides this number among its uses.
    pub connections: u32,
    /// Number of flushers of each kind of group commit.
    pub flushers: usize,
    /// The prefix of the tables.
    pub table_prefix: TablePrefix,
}

impl std::fmt::Debug for StoreSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The URL contains the password.
        f.debug_struct("StoreSettings").field("connections", &self.connections).finish_non_exhaustive()
    }
}

/// The state that all parts of the store share.
struct StoreInner {
    options: Target,
    pools: Pools,
    clock: Arc<StoreClock>,
    lanes: Lanes,
    flushers: usize,
    tasks: TaskTracker,
    was_out: bool,
    /// The attempts that this process has claimed and not yet settled.
    open_claims: Arc<OpenClaims>,
    /// The limits by key that this process follows.
    limits: Arc<KnownLimits>,
    /// Whether the heartbeats of remote workers leave out locked rows.
    caution: Arc<Caution>,
    /// The turn of saving the checkpoints of heartbeats of remote workers.
    save_turn: SaveTurn,
    /// Notified when jobs have ended for which other jobs wait.
    parents_ended: Notify,
    /// Notified when the counts of batches have changed.
    batches_changed: Notify,
    /// The number of children that one transaction looks at, and of jobs of a batch that one cancels.
    children: PageSize,
    cancelled_jobs: PageSize,
    /// The number of jobs in one batch of a bulk operation.
    operated_jobs: PageSize,
    /// The number of records of ticks that one transaction writes.
    ticks: PageSize,
    /// The number of ledger lines, of discarded jobs, and of rows of other tables, of which one transaction removes the
    /// old ones.
    purged_jobs: PageSize,
    purged_discarded: PageSize,
    aged_pages: AgedPages,
}

impl StoreInner {
    /// Wake the loops that follow the ends of jobs with these links.
    fn links_ended(&self, links: u8) {
        if links & rows::links::AWAITED != 0 {
            self.parents_ended.notify_one();
        }
        if links & rows::links::IN_BATCH != 0 {
            self.batches_changed.notify_one();
        }
    }
}

/// The store. It is cheap to clone.
#[derive(Clone)]
pub struct Store {
    shared: Arc<StoreInner>,
    inserts: Arc<GroupCommit<Inserts>>,
    ordered: Arc<GroupCommit<OrderedInserts>>,
    idempotent_inserts: Arc<GroupCommit<IdempotentInserts>>,
    settles: Arc<GroupCommit<Settles>>,
    freed: Arc<GroupCommit<FreedSlots>>,
    /// For slots of a key of a limit that another session locks at this moment.
    freed_later: Arc<GroupCommit<FreedSlots>>,
}

/// The first questions to the server when tickr starts. They are one attempt, with one time limit, because the
/// connection may stop answering at any of them.
struct FirstWords {
    clock: StoreClock,
    variables: Variables,
}

impl FirstWords {
    async fn exchange(target: &Target) -> Result<Self, sqlx::Error> {
        let mut conn = sql::connection::open(target).await?;
        sql::connection::within(sql::connection::FIRST_WORDS, async {
            let sent = Instant::now();
            // Sent as plain text: nothing is prepared before the server's limit of prepared statements is known.
            let now = sqlx::raw_sql("SELECT UTC_TIMESTAMP(6)").fetch_one(&mut conn).await?.try_get(0)?;
            let clock = StoreClock::starting_at(sent, Instant::now(), now);
            let variables = sql::durability::variables(&mut conn).await?;
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
    #[boxed]
    pub async fn connect(settings: &StoreSettings, patience: Duration) -> Result<Self, StoreError> {
        let attempted = "connect to mysql";
        let refused = |cause: String| StoreError::refused(attempted, cause);
        let options = read_servers(&settings.url)
            // The driver's message may contain the URL.
            .ok_or_else(|| refused("the url is not mysql://user:password@host:port/database".into()))?;
        let options = Target::new(options, settings.table_prefix.clone());
        let (started, mut told) = (Instant::now(), false);
        let first = loop {
            match FirstWords::exchange(&options).await {
                Ok(first) => break first,
                // A wrong password at the start is a mistake of the operator; later it is an outage.
                Err(e) if sql::error::is_wrong_address(&e) => return Err(refused(e.to_string())),
                Err(e) if sql::error::fault(&e) == sql::error::Fault::Reconnect && started.elapsed() < patience => {
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
        // claims, the connections for locked rows (`locked_rows.rs`), the flushers of jobs with order keys and of
        // suspects, those of limits by key with their locked rows and keys, and the heartbeat.
        let pooled = settings.connections.max(PoolSizes::LEAST)
            + sql::pools::FOR_REPORTS
            + sql::pools::FOR_SOURCES
            + sql::pools::FOR_WORKERS;
        let connections = pooled as usize + 7 * settings.flushers + 10;
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
        let shared = Arc::new(StoreInner {
            pools: Pools::new(&options, settings.connections),
            options,
            clock,
            lanes: Lanes::drawn(),
            flushers: settings.flushers,
            tasks: TaskTracker::new(),
            was_out,
            open_claims: Arc::default(),
            limits: Arc::default(),
            caution: Arc::default(),
            save_turn: SaveTurn::default(),
            parents_ended: Notify::new(),
            batches_changed: Notify::new(),
            children: PageSize::new(jobs::dependencies::CHILDREN),
            cancelled_jobs: PageSize::new(batches::cancel::JOBS),
            operated_jobs: PageSize::new(bulk::MAX_OPERATED_JOBS),
            ticks: PageSize::new(schedules::ticks::LINES),
            purged_jobs: PageSize::new(retention::purge::PAGE),
            purged_discarded: PageSize::new(retention::purge::DISCARDED),
            aged_pages: AgedPages::new(),
        });
        let (options, tasks) = (&shared.options, &shared.tasks);
        let inserts = Inserts { clock: shared.clock.clone(), limits: Arc::clone(&shared.limits) };
        let inserts = GroupCommit::start(inserts, options, settings.flushers, WAITING_INSERTS, tasks);
        let ordered = OrderedInserts { clock: shared.clock.clone() };
        let ordered = Arc::new(GroupCommit::start(ordered, options, 1, WAITING_INSERTS, tasks));
        let idempotent_inserts = IdempotentInserts { clock: shared.clock.clone() };
        let idempotent_inserts =
            GroupCommit::start(idempotent_inserts, options, settings.flushers, WAITING_INSERTS, tasks);
        let (open, limits) = (Arc::clone(&shared.open_claims), Arc::clone(&shared.limits));
        let settles = Settles::new(shared.clock.clone(), shared.lanes, open, limits);
        let settles = GroupCommit::start(settles, options, settings.flushers, WAITING_WORKERS, tasks);
        let freed = |waits, flushers| {
            let freed = FreedSlots { limits: Arc::clone(&shared.limits), waits };
            Arc::new(GroupCommit::start(freed, options, flushers, WAITING_WORKERS, tasks))
        };
        let (freed, freed_later) = (freed(false, settings.flushers), freed(true, 1));
        Ok(Self {
            shared,
            inserts: Arc::new(inserts),
            ordered,
            idempotent_inserts: Arc::new(idempotent_inserts),
            settles: Arc::new(settles),
            freed,
            freed_later,
        })
    }

    /// Create the database that `url` names, unless it exists. For private servers, on which no operator has created
    /// it.
    ///
    /// # Errors
    /// [`StoreError::Refused`] when the URL names no database, otherwise [`StoreError`] when MySQL cannot be reached or
    /// refuses the statement.
    #[boxed]
    pub async fn create_database(url: &str) -> Result<(), StoreError> {
        let attempted = "create the database";
        let (mut conn, name) = Self::outside_of(url, attempted).await?;
        let sql = format!("CREATE DATABASE IF NOT EXISTS {name} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin");
        let created = sql::batches::statement(sql).execute(&mut conn).await;
        created.map(|_| ()).map_err(|e| StoreError::from_driver(attempted, &e))
    }

    /// Open a connection to the server of `url` without selecting its database. Returns the connection and the name of
    /// that database.
    async fn outside_of(url: &str, attempted: &'static str) -> Result<(MySqlConnection, String), StoreError> {
        let refused = |cause: &str| StoreError::refused(attempted, cause);
        let options =
            read_server(url).ok_or_else(|| refused("the url is not mysql://user:password@host:port/database"))?;
        let name = options.get_database().unwrap_or_default().to_owned();
        // The name becomes part of the statement's text, because it cannot be bound as a value.
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            return Err(refused("the url must name a database whose name has only letters, digits and underscores"));
        }
        let conn = sql::connection::open_driver(&Target::new(vec![options.database("")], TablePrefix::default()))
            .await
            .map_err(|e| StoreError::from_driver(attempted, &e))?;
        Ok((conn, name))
    }

    /// The estimated clock of the database.
    #[must_use]
    pub fn clock(&self) -> &StoreClock {
        &self.shared.clock
    }

    /// The same clock, for a task that may end after the store.
    #[must_use]
    pub fn shared_clock(&self) -> Arc<StoreClock> {
        Arc::clone(&self.shared.clock)
    }

    /// Accept jobs without unique keys, parents and batches, all or none. They are durable when this returns. The commit
    /// is shared with other callers that insert at the same time.
    ///
    /// # Errors
    /// [`StoreError::Overloaded`] when too many callers wait, otherwise [`StoreError`] when MySQL cannot be reached or
    /// refuses the statement.
    #[boxed]
    pub async fn insert(&self, jobs: Vec<NewJob>) -> Result<Vec<Accepted>, StoreError> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let ordered = jobs.iter().any(|job| job.options.order.is_some());
        let jobs = together(jobs);
        if ordered {
            return self.ordered.submit_or_refuse(jobs).await;
        }
        self.inserts.submit_or_refuse(jobs).await
    }

    /// Create the entrance for the claims of one runner.
    #[must_use]
    pub fn claimant(&self, runner: RunnerId, kinds: Vec<Name>, lease: Duration) -> Claimant {
        let shared = &self.shared;
        let (runner, kinds): (_, Arc<[Name]>) = (Arc::new(runner), kinds.into());
        let claims = |suspects, limited| Claims {
            runner: Arc::clone(&runner),
            kinds: Arc::clone(&kinds),
            lease,
            suspects,
            limits: Arc::clone(&shared.limits),
            limited,
            open: Arc::clone(&shared.open_claims),
            remote: None,
            had_outside: Mutex::default(),
        };
        let start = |claims, flushers, waiting| {
            Arc::new(GroupCommit::start(claims, &shared.options, flushers, waiting, &shared.tasks))
        };
        Claimant {
            claims: start(claims(false, false), shared.flushers, WAITING_WORKERS),
            // Apart from the others, which need not wait for the keys.
            limited: start(claims(false, true), shared.flushers, WAITING_WORKERS),
            // Apart from those, which need not wait for a key that another session locks.
            patient: start(claims(false, true), 1, WAITING_WORKERS),
            suspects: start(claims(true, true), 1, WAITING_SUSPECTS),
            successors: Arc::new(claims(false, false)),
            limits: Arc::clone(&shared.limits),
            let_go: None,
        }
    }

    /// Settle an attempt, if the token still holds its job.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement. The lease then still holds, and the caller
    /// may try again.
    pub async fn settle(&self, settlement: impl Into<Arc<Settlement>>) -> Result<Settled, StoreError> {
        let request = SettleRequest { settlement: settlement.into(), successor_for: None };
        Ok(self.settle_request(request, None).await?.settled)
    }

    /// Settle an attempt as [`settle`](Self::settle) does, and free these slots of limits, for a caller that did not
    /// claim it.
    ///
    /// # Errors
    /// The errors of [`settle`](Self::settle).
    #[boxed]
    pub async fn settle_and_free(&self, settlement: Settlement, slots: Arc<[LimitKey]>) -> Result<Settled, StoreError> {
        let request = SettleRequest { settlement: Arc::new(settlement), successor_for: None };
        Ok(self.settle_request(request, Some(slots)).await?.settled)
    }

    /// Settle an attempt as [`settle`](Self::settle) does, and claim the next job of its order key in the same
    /// transaction. That claim is [`Claim::Won`] or [`Claim::Unreadable`]. Without one, the next job is among the
    /// released ones as usual: there is none, it is in another queue, not due, of another kind, a suspect or in its last
    /// attempt, a limit may apply to it, or the attempt did not succeed.
    ///
    /// If the attempt has no order key and a slot of a limit, a parked job that has room now is claimed instead, if it
    /// has made no attempt and only this limit applies to it, without a rate.
    ///
    /// # Errors
    /// The errors of [`settle`](Self::settle). If the next job was claimed nevertheless, it is given back.
    pub async fn settle_and_claim_next(
        &self,
        settlement: impl Into<Arc<Settlement>>,
        claimant: &Claimant,
    ) -> Result<(Settled, Option<Claim>), StoreError> {
        let successor_for = Some(Arc::clone(&claimant.successors));
        let request = SettleRequest { settlement: settlement.into(), successor_for };
        let SettleReply { settled, next, .. } = self.settle_request(request, None).await?;
        Ok((settled, next))
    }

    async fn settle_request(
        &self,
        request: SettleRequest,
        slots: Option<Arc<[LimitKey]>>,
    ) -> Result<SettleReply, StoreError> {
        let settlement = &request.settlement;
        let (id, token) = (settlement.id, settlement.token);
        let of_claim = || settlement.opened.as_ref().map(|opened| Arc::clone(&opened.slots)).unwrap_or_default();
        // Another system finishes the attempt, and its deferral may have counted the call.
        let in_doubt = slots.is_some();
        let slots = slots.unwrap_or_else(of_claim);
        let call = settlement.call.filter(|_| !slots.is_empty());
        let call = call.map(|outcome| EndedCall { token, outcome, error: settlement.error.clone(), in_doubt });
        let mut reply = self.settles.submit(request).await?;
        self.shared.links_ended(reply.linked);
        if let Settled::Done { released, .. } = &mut reply.settled
            && !slots.is_empty()
            && !reply.freed
        {
            let freed = self.free_slots(SlotsOfJob { id: id.uuid(), keys: slots, call, keeps: false });
            match tokio::time::timeout(SLOTS_LIMIT, freed).await {
                Ok(Ok(gone)) => released.extend(gone),
                Ok(Err(error)) => tracing::debug!(%error, "cannot free the slots of a job, the next sweep does"),
                Err(_) => tracing::debug!("mysql did not free the slots of a job in time, the next sweep does"),
            }
        }
        Ok(reply)
    }

    /// Free the slots of an attempt that has ended. Returns the parked jobs that were let go. If another session locks
    /// one of the keys, this waits for it for a moment, apart from all others.
    async fn free_slots(&self, slots: SlotsOfJob) -> Result<Vec<DueJob>, StoreError> {
        let SlotsReply { mut let_go, busy } = self.freed.submit(slots.clone()).await?;
        if busy {
            let_go.extend(self.freed_later.submit(slots).await?.let_go);
        }
        Ok(let_go)
    }

    /// Wait until this process has ended jobs for which other jobs wait.
    #[boxed]
    pub async fn parents_ended(&self) {
        self.shared.parents_ended.notified().await;
    }

    /// Wait until this process has changed the counts of batches.
    #[boxed]
    pub async fn batches_changed(&self) {
        self.shared.batches_changed.notified().await;
    }

    /// Return true if MySQL answers and accepts writes within `limit`.
    #[boxed]
    pub async fn takes_writes(&self, limit: Duration) -> bool {
        matches!(tokio::time::timeout(limit, self.writable()).await, Ok(Ok(_)))
    }

    /// Check that the server accepts a job with a payload of this size, and the stored response to its request.
    ///
    /// # Errors
    /// [`StoreError::Refused`] when the server's `max_allowed_packet` is too small for that.
    pub fn check_payload_size(&self, payload_bytes: usize) -> Result<(), StoreError> {
        let (packet, wanted) = (self.shared.options.server.packet(), 2 * payload_bytes + (256 << 10));
        if packet >= wanted {
            return Ok(());
        }
        let cause = format!(
            "the server's max_allowed_packet is {packet} bytes, too few for a job of body_limit = {payload_bytes} bytes: raise it to \
             at least {wanted}, for example with SET GLOBAL max_allowed_packet = 16777216, or set a smaller body_limit"
        );
        Err(StoreError::refused("check max_allowed_packet", cause))
    }

    /// Return true if [`connect`](Self::connect) had to wait for MySQL. Then other runners may have lost their
    /// connection as well.
    #[must_use]
    pub fn was_out(&self) -> bool {
        self.shared.was_out
    }

    /// Close the store: finish the writes that were handed in, then close the connections. Call this after all users of
    /// the store have ended.
    #[boxed]
    pub async fn close(self) {
        let Self { shared, inserts, ordered, idempotent_inserts, settles, freed, freed_later } = self;
        drop((inserts, ordered, idempotent_inserts, settles, freed, freed_later));
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
    limited: Arc<GroupCommit<Claims>>,
    /// For jobs with a key of a limit that another session locks at this moment.
    patient: Arc<GroupCommit<Claims>>,
    suspects: Arc<GroupCommit<Claims>>,
    /// For claims in the transaction of a settlement.
    successors: Arc<Claims>,
    limits: Arc<KnownLimits>,
    let_go: Option<UnboundedSender<DueJob>>,
}

impl std::fmt::Debug for Claimant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Claimant")
    }
}

impl Claimant {
    /// Send parked jobs that a claim let go to `let_go`. Without this they wait until a reconciler finds them.
    #[must_use]
    pub fn sending_to(self, let_go: UnboundedSender<DueJob>) -> Self {
        Self { let_go: Some(let_go), ..self }
    }

    /// Start an attempt, if the job waits and is due. The attempt is committed when this returns [`Claim::Won`] (G5).
    /// `queue` is the queue of the job.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement. If the attempt was committed nevertheless,
    /// it ends with its lease.
    #[boxed]
    pub async fn claim(&self, id: JobId, queue: &Name) -> Result<Claim, StoreError> {
        self.submit(self.of_queue(queue), ClaimRequest { id, queue: Some(queue.clone()), ahead: false }).await
    }

    /// Start an attempt as [`claim`](Self::claim) does, for a job that may have to wait for a worker. A job with one
    /// attempt left is not claimed: [`Claim::LastAttempt`].
    ///
    /// # Errors
    /// The errors of [`claim`](Self::claim).
    #[boxed]
    pub async fn claim_ahead(&self, id: JobId, queue: &Name) -> Result<Claim, StoreError> {
        self.submit(self.of_queue(queue), ClaimRequest { id, queue: Some(queue.clone()), ahead: true }).await
    }

    /// Start an attempt as [`claim`](Self::claim) does, and also accept suspects: jobs whose last runners died while
    /// they executed them. For a process that executes nothing else, or for a runner that cannot start such a process.
    ///
    /// # Errors
    /// The errors of [`claim`](Self::claim).
    #[boxed]
    pub async fn claim_suspect(&self, id: JobId) -> Result<Claim, StoreError> {
        self.submit(&self.suspects, ClaimRequest { id, queue: None, ahead: false }).await
    }

    fn of_queue(&self, queue: &Name) -> &GroupCommit<Claims> {
        if self.limits.concern(Some(queue)) { &self.limited } else { &self.claims }
    }

    async fn submit(&self, to: &GroupCommit<Claims>, request: ClaimRequest) -> Result<Claim, StoreError> {
        let (id, ahead) = (request.id, request.ahead);
        let reply = to.submit(request).await?;
        self.send(reply.let_go);
        if !reply.busy {
            return Ok(reply.claim);
        }
        let reply = self.patient.submit(ClaimRequest { id, queue: None, ahead }).await?;
        self.send(reply.let_go);
        Ok(reply.claim)
    }

    fn send(&self, jobs: Vec<DueJob>) {
        if let Some(let_go) = &self.let_go {
            for job in jobs {
                // The engine has stopped if it does not listen any more.
                let _ = let_go.send(job);
            }
        }
    }
}
