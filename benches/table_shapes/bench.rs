//! The phases of a job's life over several connections, and the server's counters around them.

use std::collections::BTreeMap;
use std::str::FromStr as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, MySqlPool, Row as _};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::Args;
use crate::lane::{Claimed, Forms, Lane, expect_rows};
use crate::shape::Shape;

/// Most batches that may wait between two stages of a pipeline. The store's flush queues are bounded as well.
const PIPELINE_DEPTH: usize = 4;

/// The running comparison: the server, and all samples so far.
pub(crate) struct Bench {
    pub(crate) args: Args,
    pub(crate) options: MySqlConnectOptions,
    pub(crate) admin: MySqlPool,
    pub(crate) samples: Vec<Row>,
}

/// The samples of one row of a table, by column.
pub(crate) type Row = (String, BTreeMap<&'static str, Vec<Sample>>);

/// One measured phase.
pub(crate) struct Sample {
    /// Jobs per second. For a due scan: milliseconds.
    pub(crate) figure: f64,
    pub(crate) server_cpu_us: Option<f64>,
    pub(crate) redo_bytes: Option<f64>,
    pub(crate) deadlocks: u64,
}

/// Counters of the server before or after a phase.
struct Gauges {
    cpu: Option<Duration>,
    redo_bytes: Option<u64>,
}

impl Bench {
    pub(crate) async fn new(args: Args) -> Result<Self> {
        let options = MySqlConnectOptions::from_str(&args.mysql_url).context("reading --mysql-url")?;
        let admin = MySqlPoolOptions::new()
            .max_connections(1)
            .connect_with(options.clone())
            .await
            .context("connecting to the server")?;
        Ok(Self { args, options, admin, samples: Vec::new() })
    }

    /// Create the empty tables of a shape.
    pub(crate) async fn reset(&self, shape: Shape) -> Result<()> {
        self.drop_shape(shape).await?;
        let database = shape.database();
        self.admin
            .execute(AssertSqlSafe(format!("CREATE DATABASE {database} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")))
            .await?;
        let mut conn = self.options.clone().database(&database).connect().await?;
        for table in shape.schema() {
            conn.execute(AssertSqlSafe(table)).await?;
        }
        conn.execute(
            "CREATE TABLE tallies (lane TINYINT UNSIGNED NOT NULL, queue VARBINARY(64) NOT NULL,
             state TINYINT NOT NULL, n BIGINT NOT NULL, PRIMARY KEY (lane, queue, state))",
        )
        .await?;
        conn.execute("CREATE TABLE digits (d TINYINT NOT NULL PRIMARY KEY)").await?;
        conn.execute("INSERT INTO digits VALUES (0),(1),(2),(3),(4),(5),(6),(7),(8),(9)").await?;
        conn.close().await?;
        Ok(())
    }

    pub(crate) async fn drop_shape(&self, shape: Shape) -> Result<()> {
        self.admin.execute(AssertSqlSafe(format!("DROP DATABASE IF EXISTS {}", shape.database()))).await?;
        Ok(())
    }

    /// Open connections as the store would.
    async fn lanes(&self, shape: Shape, forms: Forms, count: usize) -> Result<Vec<Lane>> {
        let options = self.options.clone().database(&shape.database()).statement_cache_capacity(forms.statement_cache);
        let mut lanes = Vec::with_capacity(count);
        for number in 0..count {
            let mut conn = options.connect().await?;
            conn.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await?;
            lanes.push(Lane { number: u8::try_from(number)?, shape, forms, conn, deadlocks: 0 });
        }
        Ok(lanes)
    }

    /// Insert all batches over the configured connections.
    pub(crate) async fn insert(
        &mut self,
        row: &str,
        phase: &'static str,
        at: (Shape, Forms),
        batches: &[Vec<Uuid>],
    ) -> Result<()> {
        let lanes = self.lanes(at.0, at.1, self.args.connections).await?;
        let before = self.gauges().await?;
        let start = Instant::now();
        let mut tasks = JoinSet::new();
        for (mut lane, share) in deal(lanes, batches.to_vec()) {
            tasks.spawn(async move {
                for ids in share {
                    lane.insert(&ids).await?;
                }
                anyhow::Ok(lane.deadlocks)
            });
        }
        let deadlocks = finish(tasks).await?.into_iter().sum();
        self.note(row, phase, count(batches), start.elapsed(), &before, deadlocks).await
    }

    /// Claim all batches over the configured connections.
    pub(crate) async fn claim(
        &mut self,
        row: &str,
        phase: &'static str,
        at: (Shape, Forms),
        batches: &[Vec<Uuid>],
    ) -> Result<Vec<Vec<Claimed>>> {
        let lanes = self.lanes(at.0, at.1, self.args.connections).await?;
        let before = self.gauges().await?;
        let start = Instant::now();
        let mut tasks = JoinSet::new();
        for (mut lane, share) in deal(lanes, batches.to_vec()) {
            tasks.spawn(async move {
                let mut claimed = Vec::with_capacity(share.len());
                for ids in share {
                    claimed.push(lane.claim(&ids).await?);
                }
                anyhow::Ok((claimed, lane.deadlocks))
            });
        }
        let shares = finish(tasks).await?;
        let elapsed = start.elapsed();
        self.wait_for_purge().await?;
        let (mut claimed, mut deadlocks) = (Vec::new(), 0);
        for (share, seen) in shares {
            claimed.extend(share);
            deadlocks += seen;
        }
        self.note(row, phase, count(batches), elapsed, &before, deadlocks).await?;
        Ok(claimed)
    }

    /// Settle all batches over the configured connections.
    pub(crate) async fn settle(
        &mut self,
        row: &str,
        phase: &'static str,
        at: (Shape, Forms),
        claimed: Vec<Vec<Claimed>>,
    ) -> Result<()> {
        let lanes = self.lanes(at.0, at.1, self.args.connections).await?;
        let jobs = claimed.iter().map(Vec::len).sum();
        let before = self.gauges().await?;
        let start = Instant::now();
        let mut tasks = JoinSet::new();
        for (mut lane, share) in deal(lanes, claimed) {
            tasks.spawn(async move {
                for batch in share {
                    lane.settle(&batch).await?;
                }
                anyhow::Ok(lane.deadlocks)
            });
        }
        let deadlocks = finish(tasks).await?.into_iter().sum();
        let elapsed = start.elapsed();
        self.wait_for_purge().await?;
        self.note(row, phase, jobs, elapsed, &before, deadlocks).await
    }

    /// Work off a backlog: one connection claims, and one or more connections settle behind it. With `accept`, another
    /// connection inserts ahead of them, so that jobs are inserted, claimed and settled at the same time.
    pub(crate) async fn pipeline(
        &mut self,
        row: &str,
        phase: &'static str,
        at: (Shape, Forms),
        batches: &[Vec<Uuid>],
        (accept, settlers): (bool, usize),
    ) -> Result<()> {
        let mut lanes = self.lanes(at.0, at.1, 2 + settlers).await?;
        let settlers = lanes.split_off(2);
        let Ok([mut inserter, mut claimer]) = <[Lane; 2]>::try_from(lanes) else {
            bail!("a pipeline needs a connection for each stage");
        };
        let (accepted, mut due) = mpsc::channel::<Vec<Uuid>>(PIPELINE_DEPTH);
        let (mut handled, mut verdicts) = (Vec::new(), Vec::new());
        for settler in settlers {
            let (sender, receiver) = mpsc::channel::<Vec<Claimed>>(PIPELINE_DEPTH);
            handled.push(sender);
            verdicts.push((settler, receiver));
        }
        let arrivals = batches.to_vec();
        let before = self.gauges().await?;
        let start = Instant::now();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            for ids in arrivals {
                if accept {
                    inserter.insert(&ids).await?;
                }
                accepted.send(ids).await.context("the claimer has stopped")?;
            }
            anyhow::Ok(inserter.deadlocks)
        });
        tasks.spawn(async move {
            let mut turn = 0;
            while let Some(ids) = due.recv().await {
                let claimed = claimer.claim(&ids).await?;
                let next: &mpsc::Sender<_> = &handled[turn % handled.len()];
                next.send(claimed).await.context("the settler has stopped")?;
                turn += 1;
            }
            anyhow::Ok(claimer.deadlocks)
        });
        for (mut settler, mut verdicts) in verdicts {
            tasks.spawn(async move {
                while let Some(claimed) = verdicts.recv().await {
                    settler.settle(&claimed).await?;
                }
                anyhow::Ok(settler.deadlocks)
            });
        }
        let deadlocks = finish(tasks).await?.into_iter().sum();
        let elapsed = start.elapsed();
        self.wait_for_purge().await?;
        self.note(row, phase, count(batches), elapsed, &before, deadlocks).await
    }

    /// Measure the scheduler's query for jobs that are due soon, in milliseconds.
    pub(crate) async fn due_scan(&mut self, row: &str, phase: &'static str, shape: Shape) -> Result<()> {
        let (table, due) = (shape.hot_table(), shape.due_column());
        let state = match shape {
            Shape::A => "state = 0 AND",
            Shape::B1 | Shape::B2 | Shape::B3 | Shape::B4 => "",
            _ => "state IN (0, 1) AND",
        };
        let sql = format!(
            "SELECT id, queue, {due} FROM {table} WHERE {state} {due} <= UTC_TIMESTAMP(3) + INTERVAL 15 MINUTE
             ORDER BY {due} LIMIT 1000"
        );
        let mut lanes = self.lanes(shape, Forms::default(), 1).await?;
        let lane = lanes.first_mut().context("no lane")?;
        let start = Instant::now();
        sqlx::query(AssertSqlSafe(sql)).fetch_all(&mut lane.conn).await?;
        let sample =
            Sample { figure: start.elapsed().as_secs_f64() * 1e3, server_cpu_us: None, redo_bytes: None, deadlocks: 0 };
        self.keep(row, phase, sample);
        Ok(())
    }

    fn keep(&mut self, row: &str, phase: &'static str, sample: Sample) {
        let at = self.samples.iter().position(|(name, _)| name == row).unwrap_or_else(|| {
            self.samples.push((row.to_owned(), BTreeMap::new()));
            self.samples.len() - 1
        });
        self.samples[at].1.entry(phase).or_default().push(sample);
    }

    /// Add a sample. Phases that leave rows to purge wait for the purge before they call this, so that its cost counts
    /// for them.
    async fn note(
        &mut self,
        row: &str,
        phase: &'static str,
        jobs: usize,
        elapsed: Duration,
        before: &Gauges,
        deadlocks: u64,
    ) -> Result<()> {
        let after = self.gauges().await?;
        let each = |total: f64| total / jobs as f64;
        let sample = Sample {
            figure: jobs as f64 / elapsed.as_secs_f64(),
            server_cpu_us: before
                .cpu
                .zip(after.cpu)
                .map(|(before, after)| each(after.saturating_sub(before).as_secs_f64() * 1e6)),
            redo_bytes: before.redo_bytes.zip(after.redo_bytes).map(|(before, after)| each((after - before) as f64)),
            deadlocks,
        };
        self.keep(row, phase, sample);
        Ok(())
    }

    /// Wait until the purge has removed the old rows of deletes and updates, for at most ten seconds.
    pub(crate) async fn wait_for_purge(&self) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(10) {
            match self.status("Innodb_history_list_length").await? {
                Some(length) if length > 50 => tokio::time::sleep(Duration::from_millis(20)).await,
                // MySQL does not publish the length as a status variable. Wait a moment instead.
                None => {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    return Ok(());
                }
                Some(_) => return Ok(()),
            }
        }
        Ok(())
    }

    async fn gauges(&self) -> Result<Gauges> {
        let redo_bytes = match self.status("Innodb_lsn_current").await? {
            Some(bytes) => Some(bytes),
            None => self.status("Innodb_redo_log_current_lsn").await?,
        };
        let pid_file: String = sqlx::query_scalar("SELECT @@pid_file").fetch_one(&self.admin).await?;
        Ok(Gauges { cpu: cpu_of(&pid_file), redo_bytes })
    }

    async fn status(&self, name: &'static str) -> Result<Option<u64>> {
        let sql = AssertSqlSafe(format!("SHOW GLOBAL STATUS LIKE '{name}'"));
        let row = sqlx::raw_sql(sql).fetch_optional(&self.admin).await?;
        row.map(|row| Ok(row.try_get::<String, _>(1)?.parse()?)).transpose()
    }

    /// Fail unless every job of a shape has ended, with its ledger row.
    pub(crate) async fn check_ended(&self, shape: Shape, jobs: usize) -> Result<()> {
        let count = |condition: &str| AssertSqlSafe(format!("SELECT COUNT(*) FROM {}.{condition}", shape.database()));
        let ended = if shape.ends_in_ledger() { "attempts WHERE end_state = 3" } else { "jobs WHERE state = 3" };
        let ended: i64 = sqlx::query_scalar(count(ended)).fetch_one(&self.admin).await?;
        expect_rows("the end state", ended.try_into()?, jobs)?;
        let ledger: i64 = sqlx::query_scalar(count("attempts")).fetch_one(&self.admin).await?;
        expect_rows("the ledger", ledger.try_into()?, if shape.keeps_ledger() { jobs } else { 0 })
    }

    /// Make ids for one phase, in batches of full size.
    pub(crate) fn full_batches(&self) -> Vec<Vec<Uuid>> {
        new_ids(self.args.jobs).chunks(self.args.batch).map(<[Uuid]>::to_vec).collect()
    }

    /// Make ids for one phase, in batches of all lengths up to the full size, as natural batching would. The lengths
    /// are the same each time, so that forms can be compared.
    pub(crate) fn natural_batches(&self) -> Vec<Vec<Uuid>> {
        let mut rng = StdRng::seed_from_u64(7);
        let ids = new_ids(self.args.jobs);
        let (mut batches, mut rest) = (Vec::new(), ids.as_slice());
        while !rest.is_empty() {
            let (batch, after) = rest.split_at(rng.random_range(1..=self.args.batch).min(rest.len()));
            batches.push(batch.to_vec());
            rest = after;
        }
        batches
    }

    /// The shapes of a round. Each round starts with a different shape.
    pub(crate) fn turn(&self, round: usize) -> Vec<Shape> {
        let mut shapes = self.args.shapes.clone();
        let first = round % shapes.len().max(1);
        shapes.rotate_left(first);
        shapes
    }
}

/// Make new ids in order, as the client side of the store does.
fn new_ids(n: usize) -> Vec<Uuid> {
    (0..n).map(|_| Uuid::now_v7()).collect()
}

fn count(batches: &[Vec<Uuid>]) -> usize {
    batches.iter().map(Vec::len).sum()
}

/// Distribute batches to lanes in turn.
fn deal<T>(lanes: Vec<Lane>, batches: Vec<T>) -> Vec<(Lane, Vec<T>)> {
    let mut dealt: Vec<_> = lanes.into_iter().map(|lane| (lane, Vec::new())).collect();
    let lanes = dealt.len().max(1);
    for (n, batch) in batches.into_iter().enumerate() {
        dealt[n % lanes].1.push(batch);
    }
    dealt
}

/// Join all tasks. The first error ends the others.
async fn finish<T: 'static>(mut tasks: JoinSet<Result<T>>) -> Result<Vec<T>> {
    let mut results = Vec::new();
    while let Some(result) = tasks.join_next().await {
        results.push(result??);
    }
    Ok(results)
}

/// User and system time of a process on this host. `None` when the server runs on another host.
fn cpu_of(pid_file: &str) -> Option<Duration> {
    let pid = std::fs::read_to_string(pid_file).ok()?;
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).ok()?;
    // Fields 14 and 15, in ticks of 10 ms. They are counted from the end of the command, which may contain blanks.
    let ticks: u64 =
        stat.rsplit_once(')')?.1.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum();
    Some(Duration::from_millis(ticks * 10))
}
