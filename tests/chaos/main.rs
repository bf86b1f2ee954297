//! Chaos: three real runners on real servers, under load, while faults happen one after another. At the end no job may
//! be lost or doubled, and all records must agree.
//!
//!     make chaos SEED=42 MINUTES=10
//!     make chaos STORE=galera
//!     make chaos INDEX=sentinel
//!
//! The suite runs it for two minutes with a seed that it draws and prints. Reading order:
//!
//! - `world` holds the parts of a run: `servers` (with `galera` and `sentinels`), `proxy`, `runner`, `clock`, `kinds` and `sink`.
//! - `first_starts` kills migrations before the run begins.
//! - `driver` makes the load. `enqueue` and `request` send it and record every answer in the `ledger`.
//! - `outbox` is an application that requests jobs with rows in its own transactions.
//! - `remote` are workers in this process that execute jobs over HTTP, and die and fall silent by themselves.
//! - `rates` changes limits by key meanwhile, and knows which of them held when.
//! - `schedules` tick every second meanwhile.
//! - `later` is the system that finishes callbacks which the sink only takes over.
//! - `faults` are drawn and happen, and `recovery` measures how long their effects last.
//! - `check` is the final comparison; `keys` has its conclusions about jobs with order keys and limit keys.
//!
//! The runners are this program as well: it starts itself, and `kinds` is its second role.

mod check;
mod clock;
mod driver;
mod enqueue;
mod faults;
mod first_starts;
mod galera;
mod journal;
mod keys;
mod kinds;
mod later;
mod ledger;
mod outbox;
mod proxy;
mod rates;
mod recovery;
mod remote;
mod request;
mod runner;
mod schedules;
mod sentinels;
mod servers;
mod settings;
mod sink;
mod verify;
mod world;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::faults::Fault;
use crate::settings::{NAME, Settings, Wanted};
use crate::world::World;

/// The part of the run's length that is reserved for the end: the last jobs, the checks, the stop.
const AFTER: Duration = Duration::from_secs(30);
/// Longest time for the last jobs: the longest delay, the attempts of a poisonous job, and the backoffs between them.
const QUIET: Duration = Duration::from_secs(90);
/// Largest number of findings to print.
const MAX_FINDINGS: usize = 40;

fn main() -> ExitCode {
    if let Some(journal) = std::env::var_os(kinds::ROLE) {
        return kinds::run(Path::new(&journal));
    }
    let settings = match Wanted::read() {
        Ok(Wanted::Run(settings)) => settings,
        Ok(Wanted::List) => {
            println!("{NAME}: test\n\n1 test, 0 benchmarks");
            return ExitCode::SUCCESS;
        }
        Ok(Wanted::Others) => {
            println!(
                "\nrunning 0 tests\n\ntest result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 1 filtered out\n"
            );
            return ExitCode::SUCCESS;
        }
        Err(wrong) => {
            eprintln!("{NAME}: {wrong}");
            return ExitCode::from(2);
        }
    };
    println!("\nrunning 1 test\nchaos: seed {}, {} s", settings.seed, settings.length.as_secs());
    let began = std::time::Instant::now();
    let passed = match one_run(settings) {
        Ok(passed) => passed,
        Err(error) => {
            println!("chaos: seed {} could not be run: {error:#}", settings.seed);
            false
        }
    };
    let (word, ok, failed) = if passed { ("ok", 1, 0) } else { ("FAILED", 0, 1) };
    println!("test {NAME} ... {word}\n");
    println!(
        "test result: {word}. {ok} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out; finished in {:.2}s\n",
        began.elapsed().as_secs_f64()
    );
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Execute one run in a folder of its own. The folder stays if something is wrong, or with `CHAOS_KEEP`.
fn one_run(settings: Settings) -> anyhow::Result<bool> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (root, template) = folders();
    let dir = root.join(format!("chaos-{}-{}", settings.seed, std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let passed = runtime.block_on(run(settings, &dir, &template));
    runtime.shutdown_timeout(Duration::from_secs(5));
    // The clocks may have been dropped before the last process ended.
    clock::remove_leftovers();
    let keep = std::env::var_os("CHAOS_KEEP").is_some_and(|text| !text.is_empty());
    if matches!(passed, Ok(true)) && !keep {
        std::fs::remove_dir_all(&dir)?;
    } else {
        println!("logs, journal and data are in {}", dir.display());
    }
    passed
}

/// Return the folder for the runs and the folder for the empty data directory. The system's temporary folder is used if
/// the paths of sockets would be too long.
fn folders() -> (PathBuf, PathBuf) {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let root = if target.as_os_str().len() <= 60 { target.to_owned() } else { std::env::temp_dir() };
    (root, target.join("template"))
}

/// Events of the run, for its summary line.
#[derive(Default)]
struct Story {
    faults: BTreeMap<String, usize>,
    slowest: (Duration, String),
    log: Vec<String>,
}

async fn run(settings: Settings, dir: &Path, template: &Path) -> anyhow::Result<bool> {
    let began = Instant::now();
    let world = Arc::new(World::start(settings, dir, template).await?);
    driver::prepare(&world).await?;
    let (stop, end) = (CancellationToken::new(), CancellationToken::new());
    let mut workers = remote::start(&world, &stop, &end)?;
    workers.push(tokio::spawn(later::finish_until_stopped(Arc::clone(&world), end.clone())));
    let mut callers = driver::start(&world, &stop);
    callers.push(tokio::spawn(rates::change_until_stopped(Arc::clone(&world), stop.clone())));
    callers.push(tokio::spawn(outbox::insert_until_stopped(Arc::clone(&world), stop.clone())));
    let mut rng = StdRng::seed_from_u64(settings.seed);
    let mut story = Story::default();
    let freeze = Fault::long_freeze(&mut rng, settings.length);
    pull(&world, &mut rng, &mut story, settings, began, &freeze, None).await;
    while began.elapsed() + AFTER < settings.length && !story.failed(&world) {
        round(&world, &mut rng, &mut story, settings, began).await;
    }
    stop.cancel();
    for caller in callers {
        caller.await?;
    }
    if let Err(error) = schedules::remove(&world).await {
        world.ledger.complain(format!("the schedules could not be removed: {error:#}"));
    }
    if let Err(owed) = recovery::until_nothing_is_owed(&world, QUIET).await {
        world.ledger.complain(owed);
    }
    end.cancel();
    for worker in workers {
        worker.await?;
    }
    for wrong in verify::run(&world).await? {
        world.ledger.complain(wrong);
    }
    for runner in &world.runners {
        runner.retire().await;
    }
    let found = check::everything(&world).await?;
    report(&world, &story, &found, settings, began);
    std::fs::write(dir.join("faults"), story.log.join("\n"))?;
    Ok(found.wrong.is_empty())
}

impl Story {
    fn failed(&self, world: &World) -> bool {
        world.ledger.write(|book| !book.complaints.is_empty())
    }

    fn tell(&mut self, settings: Settings, began: Instant, what: &str) {
        let line = format!("{:7.2} s  {what}", began.elapsed().as_secs_f64());
        if settings.tell {
            println!("{line}");
        }
        self.log.push(line);
    }
}

/// Let one or two overlapping faults happen, and wait for the recovery.
async fn round(world: &Arc<World>, rng: &mut StdRng, story: &mut Story, settings: Settings, began: Instant) {
    tokio::time::sleep(Duration::from_millis(rng.random_range(200..1_500))).await;
    let first = Fault::draw(rng, world, None);
    let second = rng.random_ratio(1, 2).then(|| Fault::draw(rng, world, Some(&first)));
    pull(world, rng, story, settings, began, &first, second.as_ref()).await;
}

/// Let the faults happen, and wait for the recovery.
async fn pull(
    world: &Arc<World>,
    rng: &mut StdRng,
    story: &mut Story,
    settings: Settings,
    began: Instant,
    first: &Fault,
    second: Option<&Fault>,
) {
    let later = Duration::from_millis(rng.random_range(0..2_000));
    for fault in [Some(first), second].into_iter().flatten() {
        *story.faults.entry(fault.what.name()).or_default() += 1;
        story.tell(settings, began, &fault.to_string());
    }
    let other = async {
        match second {
            Some(second) => {
                tokio::time::sleep(later).await;
                second.happen(world).await
            }
            None => Ok(()),
        }
    };
    let (one, two) = tokio::join!(first.happen(world), other);
    for error in [one, two].into_iter().filter_map(Result::err) {
        world.ledger.complain(format!("a fault could not be made or mended: {error:#}"));
    }
    let names = second.map_or_else(|| first.to_string(), |second| format!("{first} and {second}"));
    match recovery::wait(world, rng).await {
        Ok((took, last)) => {
            story.tell(settings, began, &format!("recovered in {:.2} s; last: {last}", took.as_secs_f64()));
            if took > story.slowest.0 {
                story.slowest = (took, names);
            }
        }
        Err(wrong) => {
            story.tell(settings, began, &wrong);
            world.ledger.complain(format!("after {names}: {wrong}"));
        }
    }
}

fn report(world: &World, story: &Story, found: &check::Findings, settings: Settings, began: Instant) {
    let list = |counts: &BTreeMap<String, usize>| {
        counts.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
    };
    let answers: BTreeMap<String, usize> =
        world.ledger.write(|book| book.answers.iter().map(|(status, count)| (status.to_string(), *count)).collect());
    let lost_answers: usize = world.runners.iter().map(runner::Runner::lost).sum();
    println!("answers (0: none came): {}; answers lost by the proxies: {lost_answers}", list(&answers));
    let rows: BTreeMap<String, usize> =
        world.ledger.write(|book| book.rows.iter().map(|(fate, count)| ((*fate).to_owned(), *count)).collect());
    let lost_commits: usize = world.outbox_lines.iter().map(proxy::Proxy::lost).sum();
    println!("rows of the outbox: {}; answers to their COMMITs lost: {lost_commits}", list(&rows));
    println!("ends: {}; verdicts: {}; aborts: {}", list(&found.ends), list(&found.verdicts), world.ledger.aborts());
    for error in locked(&world.internal_errors).iter() {
        println!("internal error: {error}");
    }
    if !found.wrong.is_empty() {
        println!("{} findings:", found.wrong.len());
        for wrong in found.wrong.iter().take(MAX_FINDINGS) {
            println!("  {wrong}");
        }
        println!("what happened:");
        for line in &story.log {
            println!("  {line}");
        }
    }
    println!(
        "chaos: seed {}, {:.0} s: {} jobs, {} attempts, {} in checkpoints, {} callbacks ({} finished later), {} ticks, {} batches cancelled, {} nested, {} with an order key ({} in an earlier life), {} with a limit key, {} in remote workers ({} answers lost, {} deaths, {} freezes), {} starts at {} rates, {} expired, {} follow-up jobs, {} faults ({}), lost {}, doubled {}, slowest recovery {:.1} s ({})",
        settings.seed,
        began.elapsed().as_secs_f64(),
        found.jobs,
        found.attempts,
        found.checkpoints,
        found.callbacks,
        found.finished_later,
        found.ticks,
        found.cancelled_batches,
        found.nested,
        found.ordered,
        found.without_places,
        found.limited,
        world.deeds.fetched.load(Ordering::Relaxed),
        world.deeds.undelivered.load(Ordering::Relaxed),
        world.deeds.deaths.load(Ordering::Relaxed),
        world.deeds.freezes.load(Ordering::Relaxed),
        found.paced,
        world.ledger.write(|book| book.rules.len()),
        found.expired,
        found.follow_ups,
        story.faults.values().sum::<usize>(),
        list(&story.faults),
        found.lost,
        found.doubled,
        story.slowest.0.as_secs_f64(),
        story.slowest.1,
    );
}

/// Return the value behind a lock. A panic in another task leaves the value as it was, so a poisoned lock is no
/// problem.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
