//! Programs in other languages write rows of the outbox with the INSERTs of `docs/TRANSACTIONS.md`, while the programs,
//! the leading runner and MySQL are killed and answers to COMMITs are lost.

use std::time::{Duration, Instant};

use tickr::handlers::Registry;

use crate::support::program::Program;
use crate::support::writers::{Target, Writer, writers};
use crate::support::{Proxy, Runner, TestApp, bystander, eventually_seen};

/// The tables of the application: its orders, the ids of the rows that it committed, and the ids of those that it rolled
/// back.
const TABLES: &str = "CREATE TABLE orders (number INT PRIMARY KEY, state VARCHAR(8) NOT NULL);
    INSERT INTO orders VALUES (1001, ''), (1002, ''), (1003, ''), (1004, ''), (1005, '');
    CREATE TABLE sold (id BINARY(16) NOT NULL PRIMARY KEY);
    CREATE TABLE undone (id BINARY(16) NOT NULL PRIMARY KEY)";

/// Rows without a job, jobs without a row, jobs of a transaction that was rolled back, and rows that were refused.
const WRONG: [&str; 4] = [
    "SELECT COUNT(*) FROM sold s LEFT JOIN jobs j ON j.id = s.id WHERE j.id IS NULL",
    "SELECT COUNT(*) FROM jobs j LEFT JOIN sold s ON s.id = j.id WHERE s.id IS NULL",
    "SELECT COUNT(*) FROM jobs j JOIN undone u ON u.id = j.id",
    "SELECT COUNT(*) FROM outbox_rejected",
];

/// Time without progress after which the test gives up.
const STALLED: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_programs_in_other_languages_are_neither_lost_nor_doubled_under_kills() {
    write(600, 5, 8, 0).await;
}

/// `TICKR_OUTBOX_ROWS=1000000 cargo test --test suite -- --ignored --nocapture outbox_writers::`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a million rows take a machine for half an hour"]
async fn a_million_rows_of_programs_in_other_languages_are_neither_lost_nor_doubled_under_kills() {
    let rows = std::env::var("TICKR_OUTBOX_ROWS").map_or(1_000_000, |rows| rows.parse().unwrap());
    write(rows, 20, 240, 4).await;
}

/// A program that runs, and is started again after each kill.
struct Running {
    writer: Writer,
    program: Program,
}

/// Let the programs write this many rows, with so many faults in between. Fail with fewer than `least` languages.
async fn write(rows: i64, most_rows: u32, faults: i64, least: usize) {
    let writers = tokio::task::spawn_blocking(writers).await.unwrap();
    assert!(writers.len() >= least, "{} programs can be started, and the bound is about {least}", writers.len());
    if writers.is_empty() {
        println!("skipped: no program can be started");
        return;
    }
    let languages: Vec<&str> = writers.iter().map(|writer| writer.language).collect();
    let tickr = TestApp::start_alone_with(bystander, Registry::new()).await;
    tickr.sql(TABLES).await;
    let proxy = Proxy::start(tickr.config.mysql_url().unwrap().expose()).await;
    let target = Target { url: proxy.url(), most_rows };
    let mut runners = [Runner::start(&tickr, &[]), Runner::start(&tickr, &[])];
    for runner in &runners {
        runner.base().await;
    }
    let start = |writer: Writer| {
        let program = writer.start(&target);
        Running { writer, program }
    };
    let mut running: Vec<Running> = writers.into_iter().map(start).collect();
    let (began, mut said, mut deadlocks) = (Instant::now(), String::new(), 0);
    let mut kills = [0; 4];
    for fault in 1..=faults {
        until_sold(&tickr, &running, rows * fault / (faults + 1)).await;
        let what = usize::try_from(fault % 4).unwrap();
        kills[what] += 1;
        match what {
            0 => {
                let at = usize::try_from(fault / 4).unwrap() % running.len();
                running[at].program.signal("KILL").await;
                running[at].program.ends().await;
                said.push_str(&running[at].program.said());
                running[at].program = running[at].writer.start(&target);
            }
            1 => {
                let leader = tickr.get("/v1/outbox").await.body["leader"].as_str().unwrap_or_default().to_owned();
                let is_leader = |runner: &Runner| leader.contains(&format!("/{}-", runner.pid()));
                let at = runners.iter().position(is_leader).unwrap_or(0);
                runners[at].kill9();
                runners[at] = Runner::start(&tickr, &[]);
            }
            2 => {
                let cuts = proxy.cuts();
                proxy.cut_after("COMMIT");
                eventually_seen("an answer to a COMMIT is lost", || async {
                    if proxy.cuts() > cuts { Ok(()) } else { Err(proxy.cuts()) }
                })
                .await;
            }
            _ => {
                deadlocks += deadlocks_of(&tickr).await;
                tickr.services().mysql().kill9().unwrap();
                tickr.services().mysql().start_again().unwrap();
            }
        }
    }
    until_sold(&tickr, &running, rows).await;
    // Each program takes part, also one that starts slowly.
    for pad in languages.iter().map(|language| if *language == "js" { "node" } else { language }) {
        tickr.until_count(format!("SELECT COUNT(*) > 0 FROM jobs WHERE payload LIKE '%{pad}%'"), 1).await;
    }
    for one in &running {
        one.writer.tell_to_stop();
    }
    for one in &mut running {
        let status = one.program.ends().await;
        assert!(status.success(), "{}: {}", one.writer.language, one.program.said());
        said.push_str(&one.program.said());
    }
    let wrote = began.elapsed();
    drained(&tickr).await;
    deadlocks += deadlocks_of(&tickr).await;
    let (sold, undone) =
        (tickr.count("SELECT COUNT(*) FROM sold").await, tickr.count("SELECT COUNT(*) FROM undone").await);
    println!(
        "{sold} rows of {languages:?} in {wrote:?}, {undone} rolled back; kills of a program, of the leader, lost answers \
         and kills of MySQL: {kills:?}"
    );
    for wrong in WRONG {
        assert_eq!(tickr.count(wrong).await, 0, "{wrong}");
    }
    assert!(sold >= rows && undone > 0, "{sold} rows and {undone} that were rolled back");
    for counted in ["COUNT(*)", "COUNT(DISTINCT job_id)"] {
        let ends = format!("SELECT {counted} FROM attempts WHERE verdict = 'succeeded' AND end_state = 'completed'");
        assert_eq!(tickr.count(ends).await, sold, "{counted}");
    }
    assert_eq!(deadlocks, 0);
    assert!(!said.to_lowercase().contains("deadlock"), "{said}");
    drop(runners);
    tickr.stop().await;
}

/// Wait until this many rows are committed, as long as there is progress.
async fn until_sold(tickr: &TestApp, running: &[Running], wanted: i64) {
    let (mut seen, mut moved) = (0, Instant::now());
    loop {
        let began = Instant::now();
        let sold = tickr.count("SELECT COUNT(*) FROM sold").await;
        if sold >= wanted {
            return;
        }
        if sold > seen {
            (seen, moved) = (sold, Instant::now());
        }
        let said = || running.iter().map(|one| one.program.said()).collect::<String>();
        assert!(moved.elapsed() < STALLED, "{sold} of {wanted} rows:\n{}", said());
        // The count of a million rows must not become a load.
        tokio::time::sleep(began.elapsed().max(Duration::from_millis(20)) * 2).await;
    }
}

/// Wait until each row is a job and each job has ended, as long as there is progress.
async fn drained(tickr: &TestApp) {
    let (mut seen, mut moved) = (i64::MAX, Instant::now());
    loop {
        let left = tickr.count("SELECT (SELECT COUNT(*) FROM tickr_outbox) + (SELECT COUNT(*) FROM owed)").await;
        if left == 0 {
            return;
        }
        if left < seen {
            (seen, moved) = (left, Instant::now());
        }
        assert!(moved.elapsed() < STALLED, "{left} rows and jobs are left");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Return the number of deadlocks since MySQL was started.
async fn deadlocks_of(tickr: &TestApp) -> u64 {
    let mut counters = tickr.app.broker().store().counter_connection().await.unwrap();
    counters.counters().await.unwrap().deadlocks.unwrap_or(0)
}
