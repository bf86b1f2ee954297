//! Which tables should a job live in? This program answers by measuring.
//!
//! It creates each candidate shape in a database of its own (`tickr_shape_a`, `tickr_shape_b1`, …), drives it with the
//! statements a runner would send, in batches over few connections as the store's group commit would, and prints jobs
//! per second for each phase of a job's life. No runner, no index, no HTTP: what it prints is the ceiling that MySQL
//! itself sets.
//!
//! ```text
//! cargo run --release --example table_shapes -- --mysql-url mysql://root@127.0.0.1:3306/mysql
//! ```
//!
//! `--help` says what each shape is, from A to C11.
//!
//! How to read it. Absolute figures belong to the machine; the ratios between shapes are the finding. Shapes take turns
//! within a round and every round starts with a different one, so that a noisy minute hits all of them; a cell is the
//! median of the rounds with the lowest and highest beside it. Two further figures are less noisy than the clock: the
//! server's CPU time and the redo bytes written for each job. Both include the purge of deleted rows, which runs after
//! the phase and would otherwise be missing from the bill of a shape that deletes. CPU time needs the server on the
//! same Linux host; everything else works on any server by URL.
//!
//! Over TCP with TLS the figures show the driver, not the tables: sqlx 0.9 leaves Nagle's algorithm on, and a statement
//! longer than one TLS record then waits 40 ms for a delayed acknowledgement. Use a socket, or `?ssl-mode=disabled` on
//! loopback.
//!
//! Each phase checks the rows affected, and each round ends by counting the rows left: a shape that loses a job or skips
//! the work cannot win.

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

/// The shape that statement forms are compared on.
const CHOSEN: Shape = Shape::C9;

/// Measures table shapes and statement forms on a MySQL or MariaDB server.
#[derive(Parser, Clone)]
struct Args {
    /// Server to measure; the user must be allowed to create databases. Only databases named tickr_shape_* are touched.
    #[arg(long, env = "TICKR_MYSQL_URL", hide_env_values = true)]
    mysql_url: String,
    /// Jobs in each measured phase.
    #[arg(long, default_value_t = 100_000)]
    jobs: usize,
    /// Finished jobs loaded before the growth phases.
    #[arg(long, default_value_t = 1_000_000)]
    growth: usize,
    /// Waiting jobs, due next month, loaded beside them.
    #[arg(long, default_value_t = 200_000)]
    growth_waiting: usize,
    /// Rounds of each comparison.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Jobs in each batch.
    #[arg(long, default_value_t = 250)]
    batch: usize,
    /// Connections for phases that do one thing.
    #[arg(long, default_value_t = 2)]
    connections: usize,
    /// Shapes to compare.
    #[arg(long, value_delimiter = ',', default_values_t = Shape::ALL)]
    shapes: Vec<Shape>,
    /// Comparisons to run.
    #[arg(long, value_delimiter = ',', default_values_t = Section::ALL)]
    sections: Vec<Section>,
}

/// One comparison, printed as one set of tables.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Section {
    /// A to C on empty tables.
    Shapes,
    /// A to C on top of a history.
    Growth,
    /// D: forms of a multi-row insert.
    Inserts,
    /// E: lengths of IN lists.
    Lists,
    /// F: the price of counting as you go.
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

/// A to C on empty tables.
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

/// A to C on top of a history: what a year of use does to them.
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

/// D: forms of a multi-row insert, into the two tables of the chosen shape.
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

/// E: IN lists as long as the batch, or padded to a power of two.
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

/// F: what one upsert of a counter costs a settle.
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
