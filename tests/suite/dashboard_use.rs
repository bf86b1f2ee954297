//! The dashboard while an operator works with it: searches among many jobs, filters that are typed, lists that change
//! under the mouse, figures that must be exact, and releases that must be watched.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tickr::handlers::{Context, Failure, Kind, Output, Registry};
use tickr::job::State;

use crate::dashboard::{begin, letter};
use crate::support::browser::{Browser, Page, button, field, heading, link};
use crate::support::{TestApp, answer, eventually, http};

/// Return script that says how many rows the page shows.
const ROWS: &str = "document.querySelectorAll('main tr[data-row]').length";

async fn has_rows(page: &Page, count: usize) {
    page.until(&format!("{count} rows are shown"), &format!("{ROWS} === {count}")).await;
}

/// Insert so many waiting jobs, each a second newer than the one before.
async fn insert_waiting(tickr: &TestApp, kind: &str, queue: &str, from: u64, count: u64) {
    let digits = "(SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL \
                  SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)";
    let id = "UNHEX(CONCAT(LPAD(HEX(1780000000000 + 1000 * n), 12, '0'), '70008000000000000001'))";
    let numbers = format!(
        "(SELECT {from} + a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d AS n FROM {digits} a, {digits} b, \
         {digits} c, {digits} e, {digits} f WHERE a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d < {count}) s"
    );
    tickr
        .sql(format!(
            "INSERT INTO jobs (id, kind, queue, priority, max_attempts, payload, execute_at, created_at) \
             SELECT {id}, '{kind}', '{queue}', 5, 1, '{{}}', '2036-01-01', FROM_UNIXTIME(1780000000 + n) FROM {numbers}; \
             INSERT INTO owed (id, kind, queue, priority, max_attempts, state, execute_at) \
             SELECT {id}, '{kind}', '{queue}', 5, 1, 'waiting', '2036-01-01' FROM {numbers}"
        ))
        .await;
}

/// The oldest 37 jobs of 50,000 are found by a page that is asked for them once.
#[tokio::test(flavor = "multi_thread")]
async fn a_search_goes_on_until_it_has_a_page_and_says_how_far_it_looked() {
    let Some(browser) = Browser::shared().await else { return };
    let tickr = TestApp::start_alone(|_| {}, |_| {}).await;
    insert_waiting(&tickr, "sleep", "orphans", 0, 37).await;
    insert_waiting(&tickr, "noop", "bulk", 100, 50_000).await;
    let page = browser.page(&tickr.url("")).await;

    // The links of the product itself are answered by an index: one request finds all of them.
    for path in ["/jobs?q=queue%3Aorphans+state%3Awaiting", "/jobs?q=state%3Awaiting+kind%3Asleep"] {
        page.visit(path).await;
        has_rows(&page, 37).await;
        page.reads_not("Looked at").await;
        let asked: usize = page
            .eval("performance.getEntriesByType('resource').filter((one) => one.name.includes('/v1/jobs?')).length")
            .await;
        assert_eq!(asked, 1, "{path}");
    }

    // Any other search goes on by itself, and says how far it has come.
    page.visit("/jobs?q=payload.n%3Anothing").await;
    page.reads("Searching: looked at").await;
    page.click(&button("Stop")).await;
    page.reads("Older ones were not searched").await;
    page.visit("/jobs?q=kind%3Asleep").await;
    has_rows(&page, 37).await;
    page.until("it says how many it looked at", "/Looked at 50,\\d{3} jobs, 37 jobs found/.test(__eye.text())").await;

    // A search that was stopped goes on where it stood.
    page.follow("/jobs").await;
    page.eval::<()>(
        "void (window.gate = new Promise((open) => { window.openGate = open }), window.plainFetch = fetch, \
         window.fetch = async (path, options) => { \
             if (String(path).includes('cursor=')) await window.gate; \
             return plainFetch(path, options); })",
    )
    .await;
    page.fill(&field("Filter"), "kind:sleep").await;
    page.press("Enter").await;
    page.reads("Searching: looked at 20,000 jobs").await;
    page.reads("0 jobs found").await;
    page.click(&button("Stop")).await;
    page.eval::<()>("openGate()").await;
    page.reads("Older ones were not searched").await;
    has_rows(&page, 0).await;
    page.click(&button("Keep searching")).await;
    has_rows(&page, 37).await;
    page.assert_calm();
    drop(page);
    tickr.stop_broken("its jobs were written by hand").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn completed_words_stay_apart_while_the_user_types_on() {
    let Some((tickr, browser)) = begin().await else { return };
    let failed = tickr.enqueue(letter(&json!({"to": "nora", "fate": "returns"}))).await;
    tickr.until(failed, State::Failed).await;
    let page = browser.page(&tickr.url("")).await;
    page.visit("/jobs").await;
    page.fill(&field("Filter"), "state:fai").await;
    page.press("Tab").await;
    page.until("the first word is searched", "location.search === '?q=state%3Afailed'").await;
    has_rows(&page, 1).await;
    page.types("kin").await;
    assert_eq!(page.value(&field("Filter")).await, "state:failed kin");
    page.press("Tab").await;
    page.types("let").await;
    page.has(&crate::support::browser::choice("kind:letter")).await;
    page.press("Tab").await;
    page.until("both words are searched", "location.search === '?q=state%3Afailed+kind%3Aletter'").await;
    page.types("tag:a").await;
    assert_eq!(page.value(&field("Filter")).await, "state:failed kind:letter tag:a");
    page.press("Enter").await;
    page.reads("No job matches").await;
    assert_eq!(page.address().await, "/jobs?q=state%3Afailed+kind%3Aletter+tag%3Aa");

    // With the mouse as well; and a link outside of the box still sets it.
    page.follow("/jobs").await;
    page.until("the box is empty", "document.querySelector('#filter').value === ''").await;
    page.fill(&field("Filter"), "kind:").await;
    page.click(&crate::support::browser::choice("kind:letter")).await;
    page.until("the word is searched", "location.search === '?q=kind%3Aletter'").await;
    page.types("state:").await;
    page.click(&crate::support::browser::choice("state:failed")).await;
    page.until("both are searched", "location.search === '?q=kind%3Aletter+state%3Afailed'").await;
    has_rows(&page, 1).await;
    page.click(&link("All")).await;
    page.until("the box follows", "document.querySelector('#filter').value === 'kind:letter'").await;
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_word_searches_and_an_unknown_filter_is_named_once() {
    let Some((tickr, browser)) = begin().await else { return };
    let failed = tickr.enqueue(letter(&json!({"to": "nora", "fate": "returns"}))).await;
    let keyed = json!({"kind": "noop", "delay_ms": 3_600_000, "unique_key": "order-nora-7"});
    tickr.enqueue(keyed).await;
    tickr.enqueue(json!({"kind": "noop", "delay_ms": 3_600_000, "tags": ["nora"]})).await;
    tickr.enqueue(json!({"kind": "noop", "delay_ms": 3_600_000})).await;
    tickr.until(failed, State::Failed).await;
    let page = browser.page(&tickr.url("")).await;
    page.visit("/").await;
    page.fill(&field("Find a job by id or filter"), "nora").await;
    page.press("Enter").await;
    page.settles("/jobs?q=nora").await;
    has_rows(&page, 3).await;
    page.reads("All3").await;
    page.fill(&field("Filter"), "\"nobody called NORA\"").await;
    page.press("Enter").await;
    has_rows(&page, 1).await;

    // The page shows the end of an id, and finds the job by it.
    page.fill(&field("Filter"), &failed.to_string()[28..]).await;
    page.press("Enter").await;
    has_rows(&page, 1).await;
    page.assert_calm();

    for (words, says) in [
        ("sate:failed", "Unknown filter: sate. Did you mean state:failed?"),
        ("colour:blue", "Unknown filter: colour. Did you mean \"colour:blue\" in quotes"),
    ] {
        page.eval::<()>("performance.clearResourceTimings()").await;
        page.fill(&field("Filter"), words).await;
        page.press("Enter").await;
        page.reads(says).await;
        page.settles("/jobs").await;
        let refused: usize = page
            .eval("performance.getEntriesByType('resource').filter((one) => one.responseStatus === 422).length")
            .await;
        assert_eq!(refused, 1, "the list alone asks for a filter that the server does not understand");
    }
    page.expected("422").await;
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}

/// Return script that lists the ids of the rows, as far as they are shown.
const IDS: &str = "[...document.querySelectorAll('main tr[data-row] td[data-label=Job] a')].map((a) => a.title)";

#[tokio::test(flavor = "multi_thread")]
async fn a_list_stands_still_while_a_row_is_hovered_focused_or_chosen() {
    let Some((tickr, browser)) = begin().await else { return };
    let later = |n: u32| json!({"kind": "noop", "delay_ms": 7_200_000 + n});
    tickr.enqueue_many((0..60).map(later)).await;
    let page = browser.page(&tickr.url("")).await;
    page.visit("/jobs").await;
    page.reads("live").await;
    has_rows(&page, 50).await;
    let stands = async |what: &str, act: &str| {
        let before: Vec<String> = page.eval(IDS).await;
        tickr.enqueue_many((0..5).map(later)).await;
        page.reads("5 new").await;
        assert_eq!(page.eval::<Vec<String>>(IDS).await, before, "{what}");
        // More than one page: they are counted.
        tickr.enqueue_many((0..70).map(later)).await;
        page.reads("75 new").await;
        assert_eq!(page.eval::<Vec<String>>(IDS).await, before, "{what}");
        let _ = page.eval::<Value>(act).await;
        page.reads_not("new").await;
        let now: Vec<String> = page.eval(IDS).await;
        assert!(now.iter().all(|id| !before.contains(id)), "{what}: the new ones are shown afterwards");
    };
    // The mouse is over a row, and then leaves the table.
    let at: Vec<f64> = page
        .eval("(({x, y}) => [x + 300, y + 10])(document.querySelectorAll('main tr[data-row]')[3].getBoundingClientRect())")
        .await;
    page.point(at[0], at[1]).await;
    let hovered = page.eval::<Vec<String>>(IDS).await;
    tickr.enqueue_many((0..5).map(later)).await;
    page.reads("5 new").await;
    assert_eq!(page.eval::<Vec<String>>(IDS).await, hovered);
    page.point(5.0, 5.0).await;
    page.reads_not("5 new").await;

    // The keyboard marks a row, which keeps the focus.
    page.press("j").await;
    stands("focused", "document.activeElement.closest('tr.at') ? document.activeElement.blur() : null").await;

    // A chosen row stays, ticked, until the user asks for the new ones.
    page.eval::<()>("document.querySelectorAll('main tr[data-row] input')[2].click()").await;
    page.reads("1 job chosen").await;
    stands("chosen", "[...document.querySelectorAll('main button')].find((b) => b.innerText === 'Show').click()").await;
    page.reads_not("1 job chosen").await;
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_of_payloads_are_shown_and_copied_as_they_were_sent() {
    let Some((tickr, browser)) = begin().await else { return };
    let exact = ["9007199254740993", "12345678901234567890", "1.10", "-0.1000000000000000055511151231257827", "1e25"];
    let body = format!(
        r#"{{"kind":"noop","delay_ms":3600000,"payload":{{"user_id":{},"list":[{},{}],"deep":{{"x":{},"y":{}}},"said":"1.10 \"2.20\"","plain":42}}}}"#,
        exact[0], exact[1], exact[2], exact[3], exact[4]
    );
    // The text is sent as it is, because a JSON library would rewrite the numbers.
    let sent = http().post(tickr.url("/v1/jobs")).header("content-type", "application/json").body(body);
    let made = answer(sent).await;
    assert_eq!(made.status, 201, "{:#}", made.body);
    let page = browser.page(&tickr.url("")).await;
    page.visit(&format!("/jobs/{}", made.body["id"].as_str().unwrap())).await;
    for number in exact {
        page.reads(number).await;
    }
    page.eval::<()>("void (navigator.clipboard.writeText = async (text) => { window.copied = text })").await;
    page.click(&button("Copy the payload")).await;
    page.until("it is copied", "typeof window.copied === 'string'").await;
    let copied: String = page.eval("window.copied.replace(/\\s+/g, '')").await;
    let wanted = format!(
        r#"{{"user_id":{},"list":[{},{}],"deep":{{"x":{},"y":{}}},"said":"1.10\"2.20\"","plain":42}}"#,
        exact[0], exact[1], exact[2], exact[3], exact[4]
    );
    assert_eq!(copied, wanted);
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}

/// A job that finds its door locked until the test opens it. A `late` one always does.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
struct Visit {
    #[serde(default)]
    late: bool,
}

impl Kind for Visit {
    const NAME: &'static str = "visit";
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_counts_the_released_jobs_alone_and_is_the_only_one_of_its_group() {
    let Some(browser) = Browser::shared().await else { return };
    let open = Arc::new(AtomicBool::new(false));
    let mut kinds = Registry::new();
    let door = open.clone();
    kinds.register(move |visit: Visit, _: Context| {
        let door = door.clone();
        async move {
            if visit.late || !door.load(Ordering::SeqCst) {
                Err(Failure::reject("the door is locked"))
            } else {
                Output::json(&Value::Null)
            }
        }
    });
    let tickr = TestApp::start_with(|_| {}, kinds).await;
    let visit = |late: bool| json!({"kind": "visit", "payload": {"late": late}});
    tickr.enqueue_many((0..8).map(|_| visit(false))).await;
    tickr.until_count("SELECT COUNT(*) FROM dead_letters", 8).await;
    let group = tickr.get("/v1/dead-letters/groups").await.body["data"][0]["fingerprint"].as_str().unwrap().to_owned();
    open.store(true, Ordering::SeqCst);

    let page = browser.page(&tickr.url("")).await;
    page.visit(&format!("/dead-letters/{group}")).await;
    page.click(&button("Release")).await;
    page.reads("Would be").await;
    page.fill(&field("Jobs per second"), "1").await;
    page.click(&button("Release")).await;
    page.reads("at most 1/s").await;

    // Other jobs fail for the same cause meanwhile. They are none of the released ones.
    tickr.enqueue_many((0..5).map(|_| visit(true))).await;
    tickr
        .until_count("SELECT COUNT(*) FROM dead_letters WHERE failed_at > (SELECT MAX(created_at) FROM operations)", 5)
        .await;
    page.until(
        "a second release cannot be asked for",
        "[...document.querySelectorAll('main button')].find((b) => b.innerText === 'Release')?.disabled === true",
    )
    .await;
    let second = tickr.post("/v1/operations", json!({"action": "replay", "filter": {"fingerprint": group}})).await;
    assert_eq!((second.status, second.code()), (409, "release_running"), "{:#}", second.body);
    page.reads("8 released → 8 completed · 0 failed again").await;
    page.click(&link("Particulars")).await;
    page.has(&heading("Replay")).await;
    page.reads("8 released → 8 completed · 0 failed again").await;

    // Those that came late are released, and fail again: both pages say so.
    page.visit(&format!("/dead-letters/{group}")).await;
    page.click(&button("Release")).await;
    page.reads("Would be").await;
    page.click(&button("Release")).await;
    page.reads("5 released → 0 completed · 5 failed again").await;
    page.click(&link("5 failed again")).await;
    has_rows(&page, 5).await;
    page.visit("/operations").await;
    page.click(&link("Replay")).await;
    page.reads("5 released → 0 completed · 5 failed again").await;
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}

/// Of requests that arrive at the same time, one begins a release, and the others name it. After its end the next one
/// may begin.
#[tokio::test(flavor = "multi_thread")]
async fn of_releases_of_a_group_that_begin_at_the_same_time_one_is_accepted() {
    let mut kinds = Registry::new();
    kinds.register(|_: Visit, _: Context| async { Err(Failure::reject("the door is locked")) });
    let tickr = TestApp::start_with(|_| {}, kinds).await;
    tickr.enqueue_many((0..20).map(|_| json!({"kind": "visit", "payload": {}}))).await;
    tickr.until_count("SELECT COUNT(*) FROM dead_letters", 20).await;
    let group = tickr.get("/v1/dead-letters/groups").await.body["data"][0]["fingerprint"].as_str().unwrap().to_owned();
    let release = json!({"action": "replay", "filter": {"fingerprint": group}, "rate": 1});
    let answers = futures_util::future::join_all((0..6).map(|_| tickr.post("/v1/operations", release.clone()))).await;
    let begun: Vec<&str> = answers
        .iter()
        .filter(|answer| answer.status == 202)
        .map(|answer| answer.body["id"].as_str().unwrap())
        .collect();
    assert_eq!(begun.len(), 1, "{answers:#?}");
    for answer in answers.iter().filter(|answer| answer.status != 202) {
        assert_eq!((answer.status, answer.code()), (409, "release_running"), "{:#}", answer.body);
        assert!(answer.body["detail"].as_str().unwrap().contains(begun[0]), "{:#}", answer.body);
    }
    // Other actions on the group, and releases of other jobs, are not held up.
    let discard = json!({"action": "discard", "filter": {"fingerprint": group}, "reason": "late", "dry_run": true});
    assert_eq!(tickr.post("/v1/operations", discard).await.status, 200);
    let other = json!({"action": "replay", "filter": {"fingerprint": "00000000000000ff"}});
    assert_eq!(tickr.post("/v1/operations", other).await.status, 202);
    assert_eq!(tickr.post(&format!("/v1/operations/{}/cancel", begun[0]), json!({})).await.status, 200);
    let next = tickr.post("/v1/operations", json!({"action": "replay", "filter": {"fingerprint": group}})).await;
    assert_eq!(next.status, 202, "{:#}", next.body);
    let path = format!("/v1/operations/{}", next.body["id"].as_str().unwrap());
    eventually("the second release is over", || async {
        (tickr.get(&path).await.body["state"] == "done").then_some(())
    })
    .await;
    let made = eventually("what was released has ended", || async {
        let made = tickr.get(&format!("{path}/made")).await.body;
        (made["failed"] == made["count"]).then_some(made)
    })
    .await;
    assert!(made["count"].as_u64().unwrap() >= 15, "{made:#}");
    let found = tickr.get(&format!("/v1/jobs/count?q=operation:{}", next.body["id"].as_str().unwrap())).await.body;
    assert_eq!(found["count"], made["count"]);
    tickr.stop().await;
}
