//! An application that requests jobs with rows of the outbox, in transactions of its own. It commits most of them and
//! rolls others back on purpose. Sometimes its COMMIT is not answered: then it either leaves it at that, or repeats the
//! transaction with the same ids. Its connections go through proxies, which the faults of MySQL's lines make bad as well.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context as _;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};
use sqlx::{Connection as _, Executor as _, MySqlConnection, Row as _};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::driver;
use crate::kinds::Act;
use crate::servers::ACCOUNT;
use crate::world::World;

/// Longest pause between two transactions, in milliseconds. Each has one to three rows.
const PAUSE_MS: u64 = 600;
/// Longest time that the application waits for MySQL.
const PATIENCE: Duration = Duration::from_secs(5);
/// Largest number of times that it repeats a transaction. It is enough for the longest fault.
const MAX_TRIES: u32 = 60;
/// Number of order keys of the rows.
const LINES: u32 = 6;

/// One row of the outbox.
struct Row {
    id: Uuid,
    name: String,
    payload: Value,
    queue: Option<&'static str>,
    options: Value,
    /// It cannot become a job.
    unfit: bool,
    /// Its parent, a row before it, may cancel it.
    is_child: bool,
}

/// What the application knows of a transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Committed,
    /// It was rolled back, or its connection ended before the COMMIT.
    Undone,
    /// Its COMMIT was not answered.
    Unsure,
}

/// Write rows until the token is cancelled.
pub(crate) async fn insert_until_stopped(world: Arc<World>, stop: CancellationToken) {
    let rng = StdRng::seed_from_u64(world.seed.wrapping_add(11));
    let mut application = Application { world, rng, made: 0, node: 0, conn: None };
    while !stop.is_cancelled() {
        if !application.world.quiet.load(Ordering::Relaxed) {
            application.one_transaction().await;
        }
        let pause = Duration::from_millis(application.rng.random_range(0..PAUSE_MS));
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

struct Application {
    world: Arc<World>,
    rng: StdRng,
    made: u64,
    /// The server to which it is connected.
    node: usize,
    conn: Option<MySqlConnection>,
}

impl Application {
    async fn one_transaction(&mut self) {
        let rows = self.rows();
        let commits = self.rng.random_ratio(4, 5);
        let mut fate = self.write(&rows, commits).await;
        if fate == Fate::Unsure && self.rng.random_ratio(3, 4) {
            fate = self.repeat(&rows).await;
        }
        self.note(rows, fate);
    }

    /// Make the rows of one transaction, in the order of their ids.
    fn rows(&mut self) -> Vec<Row> {
        let mut ids: Vec<Uuid> = (0..self.rng.random_range(1..=3)).map(|_| Uuid::now_v7()).collect();
        ids.sort_unstable();
        let mut rows: Vec<Row> = Vec::with_capacity(ids.len());
        for id in ids {
            let before = rows.last().filter(|row| !row.unfit).map(|row| row.id);
            rows.push(self.row(id, before));
        }
        rows
    }

    fn row(&mut self, id: Uuid, before: Option<Uuid>) -> Row {
        self.made += 1;
        let name = format!("row-{}", self.made);
        let first = if self.rng.random_ratio(1, 10) { Act::Fail } else { Act::Succeed };
        let payload = json!({"name": name, "ms": self.rng.random_range(0..40), "first": first, "times": 1});
        let mut options = json!({"max_attempts": 10, "retry": driver::quick()});
        let unfit = self.rng.random_ratio(1, 20);
        let mut is_child = false;
        match (self.rng.random_range(0..8), before) {
            _ if unfit => options["priority"] = json!(99),
            (0 | 1, _) => options["order_key"] = json!(format!("shop{}", self.rng.random_range(0..LINES))),
            // No other job has it, so the row becomes a job.
            (2, _) => options["unique_key"] = json!(name),
            (3 | 4, Some(parent)) => {
                let cancels: bool = self.rng.random();
                options["after"] = json!([parent]);
                options["on_parent_failure"] = json!(if cancels { "cancel" } else { "run" });
                is_child = cancels;
            }
            _ => {}
        }
        let queue = self.rng.random_ratio(1, 4).then_some("side");
        Row { id, name, payload, queue, options, unfit, is_child }
    }

    /// Write the rows in one transaction. After anything unexpected, the next one uses another connection.
    async fn write(&mut self, rows: &[Row], commits: bool) -> Fate {
        let mut conn = match self.conn.take() {
            Some(conn) => conn,
            None => match self.connect().await {
                Ok(conn) => conn,
                Err(_) => return Fate::Undone,
            },
        };
        match tokio::time::timeout(PATIENCE, insert(&mut conn, rows)).await {
            Ok(Ok(())) => {}
            // Only the same rows can be there, so the transaction was committed before.
            Ok(Err(error)) if matches!(error.as_database_error(), Some(error) if error.is_unique_violation()) => {
                return Fate::Committed;
            }
            // The COMMIT was not sent.
            Ok(Err(_)) | Err(_) => return Fate::Undone,
        }
        if commits && self.rng.random_ratio(1, 10) {
            self.world.outbox_lines[self.node].lose(1);
        }
        let end = if commits { "COMMIT" } else { "ROLLBACK" };
        let answered = tokio::time::timeout(PATIENCE, conn.execute(end)).await;
        let is_done = matches!(answered, Ok(Ok(_)));
        if is_done {
            self.conn = Some(conn);
        }
        match (commits, is_done) {
            (false, _) => Fate::Undone,
            (true, true) => Fate::Committed,
            (true, false) => Fate::Unsure,
        }
    }

    /// Write the rows of an unsure transaction again, until MySQL answers the COMMIT or has the rows.
    async fn repeat(&mut self, rows: &[Row]) -> Fate {
        for _ in 0..MAX_TRIES {
            tokio::time::sleep(Duration::from_millis(self.rng.random_range(50..500))).await;
            if self.write(rows, true).await == Fate::Committed {
                return Fate::Committed;
            }
        }
        Fate::Unsure
    }

    async fn connect(&mut self) -> anyhow::Result<MySqlConnection> {
        let lines = &self.world.outbox_lines;
        self.node = self.rng.random_range(0..lines.len());
        let url = format!("mysql://{ACCOUNT}@127.0.0.1:{}/chaos?ssl-mode=disabled", lines[self.node].port());
        let opened = tokio::time::timeout(PATIENCE, MySqlConnection::connect(&url));
        Ok(opened.await.context("mysql is silent")??)
    }

    /// Record which of the rows must become jobs, and which must not.
    fn note(&self, rows: Vec<Row>, fate: Fate) {
        self.world.ledger.write(|book| {
            let of_fate = match fate {
                Fate::Committed => "committed",
                Fate::Undone => "undone",
                Fate::Unsure => "unsure",
            };
            *book.rows.entry(of_fate).or_default() += rows.len();
            for row in rows {
                if row.unfit && fate != Fate::Undone {
                    book.unfit_rows.insert(row.id, fate == Fate::Committed);
                }
                match fate {
                    Fate::Committed if !row.unfit => {
                        if row.is_child {
                            book.children.insert(row.id);
                        }
                        book.accepted.insert(row.id, row.name);
                    }
                    Fate::Unsure if !row.unfit => {
                        book.unknown.insert(row.name);
                    }
                    Fate::Committed | Fate::Undone | Fate::Unsure => {
                        book.refused.insert(row.name);
                    }
                }
            }
        });
    }
}

/// Begin a transaction and insert the rows.
async fn insert(conn: &mut MySqlConnection, rows: &[Row]) -> Result<(), sqlx::Error> {
    conn.execute("START TRANSACTION").await?;
    for row in rows {
        sqlx::query("INSERT INTO tickr_outbox (id, kind, payload, queue, options) VALUES (?, 'record', ?, ?, ?)")
            .bind(row.id)
            .bind(row.payload.to_string())
            .bind(row.queue)
            .bind(row.options.to_string())
            .execute(&mut *conn)
            .await?;
    }
    Ok(())
}

/// Return what is wrong with the rows that are no jobs: none may wait any more, and the rejected ones are exactly those
/// that cannot become jobs. The rows that became jobs are checked with all other jobs.
pub(crate) async fn left(unfit: &BTreeMap<Uuid, bool>, root: &mut MySqlConnection) -> anyhow::Result<Vec<String>> {
    let mut wrong = Vec::new();
    let waiting: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM tickr_outbox").fetch_one(&mut *root).await?;
    if waiting > 0 {
        wrong.push(format!("{waiting} rows are still in the outbox"));
    }
    let mut rejected: BTreeMap<Uuid, String> = BTreeMap::new();
    for row in sqlx::query("SELECT id, reason FROM outbox_rejected").fetch_all(root).await? {
        rejected.insert(row.try_get(0)?, row.try_get(1)?);
    }
    for (id, is_committed) in unfit {
        if rejected.remove(id).is_none() && *is_committed {
            wrong.push(format!("row {id} cannot become a job, and was not rejected"));
        }
    }
    wrong.extend(rejected.into_iter().map(|(id, reason)| format!("row {id} was rejected: {reason}")));
    Ok(wrong)
}
