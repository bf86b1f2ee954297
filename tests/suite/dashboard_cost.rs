//! The cost of open dashboards: the processor time that many tabs take from the server, and the memory of pages that stay
//! open while much happens.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use crate::mysql_faults::used;
use crate::support::browser::{Browser, Held};
use crate::support::{Runner, TestApp};

/// Number of open tabs. All of them are seen, as on the screens of as many users.
const TABS: usize = 100;
/// Largest part of a core that they may take.
const MAX_PART: f64 = 0.05;
/// Screens of the tabs, in turns.
const SCREENS: [&str; 4] = ["/", "/jobs", "/queues", "/dead-letters"];

/// Return the part of a core that a process uses during this time.
async fn part_of_core(pid: u32, during: Duration) -> f64 {
    let (began, before) = (Instant::now(), used(pid));
    tokio::time::sleep(during).await;
    (used(pid) - before).as_secs_f64() / began.elapsed().as_secs_f64()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "opens a hundred tabs and measures; wants a machine of its own and a release build"]
async fn a_hundred_open_tabs_take_at_most_five_percent_of_a_core_from_the_server() {
    let Some(browser) = Browser::of_many_tabs().await else { return };
    let tickr = TestApp::start().await;
    let runner = Runner::start(&tickr, &[]);
    let base = runner.base().await;
    tickr.enqueue_many((0..200).map(|n| json!({"kind": "noop", "delay_ms": 7_200_000 + n}))).await;
    // A runner that has just started does more than later.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let alone = part_of_core(runner.pid(), Duration::from_secs(30)).await;

    let first = browser.page(&base).await;
    first.visit(SCREENS[0]).await;
    let mut tabs = vec![first];
    for screen in SCREENS.iter().cycle().skip(1).take(TABS - 1) {
        let tab = tabs[0].beside().await;
        tab.visit(screen).await;
        tabs.push(tab);
    }
    for tab in &tabs {
        tab.reads("live").await;
        assert!(!tab.eval::<bool>("document.hidden").await, "a hidden tab asks for nothing");
        tab.eval::<()>("performance.clearResourceTimings()").await;
    }
    let open = Instant::now();
    let with_tabs = part_of_core(runner.pid(), Duration::from_secs(60)).await;
    let mut asked = 0.0;
    for tab in &tabs {
        asked += tab.eval::<f64>("performance.getEntriesByType('resource').length").await;
    }
    println!(
        "{TABS} tabs take {:.1} % of a core: {:.1} % with them, {:.1} % without; they ask {:.0} times per second",
        100.0 * (with_tabs - alone),
        100.0 * with_tabs,
        100.0 * alone,
        asked / open.elapsed().as_secs_f64()
    );
    for tab in &tabs {
        tab.assert_calm();
    }
    assert!(with_tabs - alone <= MAX_PART, "{:.1} % of a core", 100.0 * (with_tabs - alone));
    drop(tabs);
    drop(runner);
    tickr.stop_broken("the runner of the tabs was killed").await;
}

/// Seconds until the pages have shown all that they draw, such as charts of five minutes.
const WARM: u64 = 60;
/// Seconds in which they must hold no more.
const LENGTH: u64 = 600;
/// Seconds between two looks at their memory.
const LOOK: u64 = 30;
const JOBS_PER_SECOND: usize = 100;

/// Return the least of these figures: a page may hold more for a moment.
fn least(held: &[Held], figure: impl Fn(&Held) -> f64) -> f64 {
    held.iter().map(figure).fold(f64::INFINITY, f64::min)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "keeps pages open for eleven minutes"]
async fn pages_that_stay_open_for_ten_minutes_of_a_hundred_jobs_per_second_hold_no_more_memory() {
    let Some(browser) = Browser::shared().await else { return };
    let tickr = TestApp::start().await;
    let mut pages = Vec::new();
    for screen in ["/", "/jobs", "/queues/default", "/dead-letters"] {
        // Each page has a profile of its own, and so a process of its own.
        let page = browser.page(&tickr.url("")).await;
        page.visit(screen).await;
        page.reads("live").await;
        pages.push((screen, page, Vec::new()));
    }
    let began = Instant::now();
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    for second in 1..=WARM + LENGTH {
        ticks.tick().await;
        // One in a hundred fails for good.
        let job = |n: usize| match n {
            0 => json!({"kind": "fail", "payload": {"permanent": true}}),
            _ => json!({"kind": "noop", "payload": {"n": n}}),
        };
        tickr.enqueue_many((0..JOBS_PER_SECOND).map(job)).await;
        if second >= WARM && second.is_multiple_of(LOOK) {
            for (_, page, held) in &mut pages {
                held.push(page.held().await);
            }
        }
    }
    let took = began.elapsed();
    assert!(took.as_secs() <= (WARM + LENGTH) * 11 / 10, "the jobs took {took:?}");

    type Figure = fn(&Held) -> f64;
    let figures: [(&str, Figure, f64); 3] = [
        ("bytes", |held| held.bytes, 500_000.0),
        ("nodes", |held| held.nodes, 200.0),
        ("listeners", |held| held.listeners, 50.0),
    ];
    let mut grown = Vec::new();
    for (screen, page, held) in &pages {
        for (name, figure, spare) in figures {
            let (first, last) = (least(&held[..4], figure), least(&held[held.len() - 4..], figure));
            println!("{screen}: {first:.0} {name} in the first two minutes, {last:.0} in the last two");
            if last > 1.1 * first + spare {
                grown.push(format!("{screen}: {first:.0} to {last:.0} {name}"));
            }
        }
        page.assert_calm();
    }
    assert!(grown.is_empty(), "{grown:#?}");
    drop(pages);
    tickr.until_idle().await;
    tickr.stop().await;
}
