//! The dashboard while an operator works with it: searches among many jobs, filters that are typed, lists that change
//! under the mouse, figures that must be exact, and releases that must be watched.

use serde_json::{Value, json};
use tickr::job::State;

use crate::dashboard::{begin, letter};
use crate::support::browser::{Browser, Page, button, field, link};
use crate::support::{TestApp, answer, http};

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
