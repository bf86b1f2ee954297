//! Measurement of candidate table layouts ("shapes") for jobs.
//!
//! It creates each shape in its own database (`tickr_shape_a`, `tickr_shape_b1`, …) and runs the statements that a
//! runner would send, in batches over few connections like the store's group commit. It prints jobs per second for each
//! phase of a job's life. There is no runner, no index and no HTTP, so the figures are the limit that MySQL itself
//! sets.
//!
//! ```text
//! cargo bench --bench table_shapes -- --mysql-url mysql://root@127.0.0.1:3306/mysql
//! ```
//!
//! `--help` describes each shape, from A to C11.
//!
//! Absolute figures depend on the machine; the ratios between the shapes are the result. The shapes take turns within a
//! round, and every round starts with a different one, so that a disturbance affects all of them. A cell of a table has
//! the median of the rounds, with the lowest and highest value in parentheses. Two further figures are less noisy than
//! elapsed time: the server's CPU time and the redo bytes for each job. Both include the purge of deleted rows. It runs
//! after the phase, and without it a shape that deletes rows would look too cheap. CPU time needs the server on the
//! same Linux host; everything else works with any server.
//!
//! Over TCP with TLS the figures show the driver, not the tables: sqlx 0.9 leaves Nagle's algorithm on, and a statement
//! longer than one TLS record then waits 40 ms for a delayed acknowledgement. Use a socket, or `?ssl-mode=disabled` on
//! loopback.
//!
//! Each phase checks the number of affected rows, and each round ends with a count of the remaining rows. So a shape
//! that loses a job or skips work cannot win.
//!
//! - `bench.rs`: the phases of a job's life, and the server's counters around them
//! - `lane.rs`: a connection with its statements
//! - `shape.rs`: the shapes: tables, columns, and the statements that differ
//! - `preload.rs`: a history of jobs, created on the server
//! - `report.rs`: the printed tables

mod bench;
mod lane;
mod preload;
mod report;
mod shape;

use anyhow::{Result, ensure};
use clap::{Parser, ValueEnum};

use bench::Bench;
use lane::{Forms, InsertForm, ListForm, Tally};
use preload::preload;
use shape::Shape;

/// The shape on which statement forms are compared.
const CHOSEN: Shape = Shape::C9;

/// Measure table shapes and statement forms on a MySQL or MariaDB server
#[derive(Parser, Clone)]
struct Args {
    /// URL of the server; its account must be allowed to create databases. Only databases named tickr_shape_* are
    /// touched
    #[arg(long, env = "TICKR_MYSQL_URL", hide_env_values = true)]
    mysql_url: String,
    /// Jobs in each measured phase
    #[arg(long, default_value_t = 100_000)]
    jobs: usize,
    /// Finished jobs that are loaded before the growth phases
    #[arg(long, default_value_t = 1_000_000)]
    growth: usize,
    /// Waiting jobs, due in a month, that are loaded with them
    #[arg(long, default_value_t = 200_000)]
    growth_waiting: usize,
    /// Rounds of each comparison
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Jobs in each batch
    #[arg(long, default_value_t = 250)]
    batch: usize,
    /// Connections in phases that do one thing
    #[arg(long, default_value_t = 2)]
    connections: usize,
    /// Shapes to compare
    #[arg(long, value_delimiter = ',', default_values_t = Shape::ALL)]
    shapes: Vec<Shape>,
    /// Comparisons to run
    #[arg(long, value_delimiter = ',', default_values_t = Section::ALL)]
    sections: Vec<Section>,
}

/// One comparison, printed as one set of tables.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Section {
    /// Shapes A to C on empty tables
    Shapes,
    /// Shapes A to C on tables with a history
    Growth,
    /// D: forms of a multi-row insert
    Inserts,
    /// E: lengths of IN lists
    Lists,
    /// F: the cost of counters that each settle updates
    Tallies,
}

impl Section {
    const ALL: [Self; 5] = [Self::Shapes, Self::Growth, Self::Inserts, Self::Lists, Self::Tallies];
}

impl std::fmt::Display for Section {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Shapes => "shapes",
            Self::Growth => "growth",
            Self::Inserts => "inserts",
            Self::Lists => "lists",
            Self::Tallies => "tallies",
        })
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    ensure!(args.batch > 0 && args.rounds > 0 && args.connections > 0, "batch, rounds and connections start at 1");
    let mut bench = Bench::new(args).await?;
    let version: String = sqlx::query_scalar("SELECT VERSION()").fetch_one(&bench.admin).await?;
    let flush: i64 =
        sqlx::query_scalar("SELECT CAST(@@innodb_flush_log_at_trx_commit AS SIGNED)").fetch_one(&bench.admin).await?;
    let Args { jobs, batch, connections, rounds, .. } = &bench.args;
    println!(
        "{version}, innodb_flush_log_at_trx_commit={flush}; {jobs} jobs in batches of {batch} over {connections} \
         connections, {rounds} rounds"
    );
    for section in bench.args.sections.clone() {
        match section {
            Section::Shapes => compare_shapes(&mut bench).await?,
            Section::Growth => compare_grown_shapes(&mut bench).await?,
            Section::Inserts => compare_inserts(&mut bench).await?,
            Section::Lists => compare_lists(&mut bench).await?,
            Section::Tallies => compare_tallies(&mut bench).await?,
        }
    }
    Ok(())
}

/// Compare shapes A to C on empty tables.
async fn compare_shapes(bench: &mut Bench) -> Result<()> {
    for round in 0..bench.args.rounds {
        for shape in bench.turn(round) {
            bench.reset(shape).await?;
            let (row, at) = (shape.name(), (shape, Forms::default()));
            let batches = bench.full_batches();
            bench.insert(row, "insert", at, &batches).await?;
            let claimed = bench.claim(row, "claim", at, &batches).await?;
            bench.settle(row, "settle", at, claimed).await?;
            let backlog = bench.full_batches();
            bench.insert(row, "insert", at, &backlog).await?;
            bench.due_scan(row, "due scan, backlog", shape).await?;
            bench.pipeline(row, "drain", at, &backlog, (false, 1)).await?;
            let backlog = bench.full_batches();
            bench.insert(row, "insert", at, &backlog).await?;
            bench.pipeline(row, "drain, 2 settlers", at, &backlog, (false, 2)).await?;
            let arrivals = bench.full_batches();
            bench.pipeline(row, "whole life", at, &arrivals, (true, 1)).await?;
            bench.check_ended(shape, 4 * bench.args.jobs).await?;
            bench.drop_shape(shape).await?;
        }
    }
    bench.report("Shapes, empty tables", &["insert", "claim", "settle", "drain", "drain, 2 settlers", "whole life"]);
    Ok(())
}

/// Compare shapes A to C on tables with a history, as after a year of use.
async fn compare_grown_shapes(bench: &mut Bench) -> Result<()> {
    for shape in bench.turn(0) {
        bench.reset(shape).await?;
        preload(bench, shape).await?;
        bench.wait_for_purge().await?;
    }
    for round in 0..bench.args.rounds {
        for shape in bench.turn(round) {
            let (row, at) = (shape.name(), (shape, Forms::default()));
            let backlog = bench.full_batches();
            bench.insert(row, "insert", at, &backlog).await?;
            bench.pipeline(row, "drain", at, &backlog, (false, 1)).await?;
            bench.due_scan(row, "due scan", shape).await?;
            let arrivals = bench.full_batches();
            bench.pipeline(row, "whole life", at, &arrivals, (true, 1)).await?;
        }
    }
    for shape in bench.turn(0) {
        bench.check_ended(shape, bench.args.growth + 2 * bench.args.rounds * bench.args.jobs).await?;
        bench.drop_shape(shape).await?;
    }
    let title = format!("Shapes, {} finished and {} waiting jobs", bench.args.growth, bench.args.growth_waiting);
    bench.report(&title, &["insert", "drain", "whole life"]);
    Ok(())
}

/// D: compare forms of a multi-row insert, into the two tables of the chosen shape.
async fn compare_inserts(bench: &mut Bench) -> Result<()> {
    let exact = |statement_cache| Forms { statement_cache, ..Forms::default() };
    let of = |insert| Forms { insert, ..Forms::default() };
    let forms = [
        ("VALUES, exact, cache 100", exact(100)),
        ("VALUES, exact, cache 1024", exact(1024)),
        ("VALUES, powers of two", of(InsertForm::PowersOfTwo)),
        ("JSON_TABLE", of(InsertForm::JsonTable)),
        ("text", of(InsertForm::Text)),
        ("text, one round trip", of(InsertForm::TextOneTrip)),
    ];
    for round in 0..bench.args.rounds {
        for turn in 0..forms.len() {
            let (row, forms) = forms[(round + turn) % forms.len()];
            bench.reset(CHOSEN).await?;
            let full = bench.full_batches();
            bench.insert(row, "full batches", (CHOSEN, forms), &full).await?;
            let natural = bench.natural_batches();
            bench.insert(row, "natural batches", (CHOSEN, forms), &natural).await?;
            bench.drop_shape(CHOSEN).await?;
        }
    }
    bench.report("D: forms of an insert", &["full batches", "natural batches"]);
    Ok(())
}

/// E: compare IN lists that are as long as the batch with lists that are padded to a power of two.
async fn compare_lists(bench: &mut Bench) -> Result<()> {
    let forms = [
        ("C, exact, cache 1024", Shape::C, ListForm::Exact, 1024),
        ("C, padded", Shape::C, ListForm::Padded, 100),
        ("C4, padded", Shape::C4, ListForm::Padded, 100),
        ("C9, exact, cache 1024", Shape::C9, ListForm::Exact, 1024),
        ("C9, padded", Shape::C9, ListForm::Padded, 100),
    ];
    for round in 0..bench.args.rounds {
        for turn in 0..forms.len() {
            let (row, shape, lists, statement_cache) = forms[(round + turn) % forms.len()];
            let at = (shape, Forms { lists, statement_cache, ..Forms::default() });
            bench.reset(shape).await?;
            let batches = bench.natural_batches();
            bench
                .insert("loading", "", (shape, Forms { insert: InsertForm::Text, ..Forms::default() }), &batches)
                .await?;
            let claimed = bench.claim(row, "claim", at, &batches).await?;
            bench.settle(row, "settle", at, claimed).await?;
            bench.drop_shape(shape).await?;
        }
    }
    bench.report("E: IN lists, natural batches", &["claim", "settle"]);
    Ok(())
}

/// F: compare the cost of one counter upsert in a settle.
async fn compare_tallies(bench: &mut Bench) -> Result<()> {
    let forms = [
        ("no tally", Tally::None),
        ("a row for each connection", Tally::OwnRow),
        ("one row for all", Tally::SharedRow),
    ];
    for round in 0..bench.args.rounds {
        for turn in 0..forms.len() {
            let (row, tally) = forms[(round + turn) % forms.len()];
            let at = (CHOSEN, Forms { tally, lists: ListForm::Padded, ..Forms::default() });
            let load = (CHOSEN, Forms { insert: InsertForm::Text, ..at.1 });
            bench.reset(CHOSEN).await?;
            let batches = bench.full_batches();
            bench.insert("loading", "", load, &batches).await?;
            let claimed = bench.claim("loading", "", at, &batches).await?;
            bench.settle(row, "settle, full batches", at, claimed).await?;
            let batches = bench.natural_batches();
            bench.insert("loading", "", load, &batches).await?;
            let claimed = bench.claim("loading", "", at, &batches).await?;
            bench.settle(row, "settle, natural batches", at, claimed).await?;
            bench.drop_shape(CHOSEN).await?;
        }
    }
    bench.report("F: a tally with each settle", &["settle, full batches", "settle, natural batches"]);
    Ok(())
}
