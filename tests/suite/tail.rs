//! The tail of the dashboard: events as they happen, filtered, held still, and bounded however many come.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde_json::json;
use tickr::job::State;

use crate::dashboard::{begin, letter};
use crate::dashboard_use::has_rows;
use crate::support::browser::{Page, button, field, link};
use crate::support::{DEADLINE, eventually};

/// Return script with the ids of the jobs of the rows.
const IDS: &str = "[...document.querySelectorAll('main tr[data-row] [data-open]')].map((a) => a.title)";

/// Open the screen, and wait until the page hears what happens.
async fn open(page: &Page, path: &str) {
    page.visit(path).await;
    page.until(
        "the page hears events",
        "[...document.querySelectorAll('header .light')].some((light) => light.innerText.trim() === 'live')",
    )
    .await;
}

fn now_ms() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64() * 1_000.0
}

/// The machine may be busy for a while, so the test looks at the median of several jobs, and at several medians.
#[tokio::test(flavor = "multi_thread")]
async fn the_tail_shows_events_within_a_second_and_the_errors_of_failures_as_text() {
    let Some((tickr, browser)) = begin().await else { return };
    let page = browser.page(&tickr.url("")).await;
    open(&page, "/tail").await;
    page.eval::<()>(
        "void (window.shownAt = {}, new MutationObserver(() => { \
             for (const a of document.querySelectorAll('main [data-open]')) shownAt[a.title] ??= Date.now(); \
         }).observe(document.querySelector('main tbody'), {childList: true}))",
    )
    .await;
    let mut medians: Vec<f64> = Vec::new();
    while medians.last().is_none_or(|median| *median >= 1_000.0) {
        assert!(medians.len() < 6, "half of the events were shown after {medians:.0?} ms or more");
        let mut took = Vec::new();
        for _ in 0..7 {
            let asked = now_ms();
            let job = tickr.enqueue(json!({"kind": "noop", "delay_ms": 3_600_000})).await;
            page.until("the event is shown", &format!("shownAt['{job}'] !== undefined")).await;
            took.push(page.eval::<f64>(&format!("shownAt['{job}']")).await - asked);
        }
        took.sort_by(f64::total_cmp);
        println!("events were shown after {took:.0?} ms");
        medians.push(took[3]);
    }

    // The stream has no errors: the page reads them from the jobs. They are text, also when they look like a tag.
    let hostile = "<img src=x onerror=alert(1)>\u{202e}nora";
    let failed = tickr.enqueue(letter(&json!({"to": hostile, "fate": "returns"}))).await;
    tickr.until(failed, State::Failed).await;
    page.reads("now failed: nobody called <img src=x onerror=alert(1)>\\u202enora lives there").await;
    let made: bool = page.eval("document.querySelector('img[src=x], [onerror]') !== null").await;
    assert!(!made, "the error made an element");

    // The row leads to the job, which opens beside the list.
    page.press("j").await;
    page.press("Enter").await;
    page.until(
        "the job is beside the list",
        &format!("document.querySelector('.inspector')?.innerText.includes('{failed}') === true"),
    )
    .await;
    assert_eq!(page.address().await, format!("/tail?job={failed}"));
    page.press("Escape").await;
    page.has_not(&button("Close the job")).await;
    for width in [360, 390, 1_440] {
        page.size(width, 900).await;
        assert!(page.overflow().await.is_empty(), "{width} px: {:?}", page.overflow().await);
    }
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_filter_of_the_tail_hides_other_events_and_is_kept_in_the_address() {
    let Some((tickr, browser)) = begin().await else { return };
    let later = |queue: &str| json!({"kind": "noop", "queue": queue, "delay_ms": 3_600_000});
    let page = browser.page(&tickr.url("")).await;
    open(&page, "/tail").await;
    tickr.enqueue_many([later("press"), later("post")]).await;
    has_rows(&page, 2).await;

    // What was shown before is filtered as well.
    page.fill(&field("Filter"), "queue:post").await;
    page.press("Enter").await;
    page.settles("/tail?q=queue%3Apost").await;
    has_rows(&page, 1).await;
    // Events come in their order: when the second job of `post` is shown, the one of `press` was heard.
    tickr.enqueue(later("press")).await;
    tickr.enqueue(later("post")).await;
    has_rows(&page, 2).await;
    let queues: Vec<String> =
        page.eval("[...document.querySelectorAll('main .c-queue a')].map((a) => a.textContent.trim())").await;
    assert_eq!(queues, ["post", "post"]);

    // Words that only jobs have are refused by name, and nothing is shown under a filter that was not understood.
    page.fill(&field("Filter"), "queue:post tag:vip state:faild").await;
    page.press("Enter").await;
    page.reads("Events do not say tag").await;
    page.reads("state:faild is none of waiting, executing").await;
    has_rows(&page, 0).await;
    page.click(&link("Leave these words out")).await;
    page.settles("/tail?q=queue%3Apost").await;
    has_rows(&page, 2).await;

    // The other words stay when a usual choice is added.
    let failed = letter(&json!({"to": "nora", "fate": "returns"}));
    let mut elsewhere = failed.clone();
    elsewhere["queue"] = json!("press");
    let mut here = failed;
    here["queue"] = json!("post");
    page.click(&link("Failures")).await;
    page.until("the choice is marked", "document.querySelector('main nav [aria-current]').textContent === 'Failures'")
        .await;
    has_rows(&page, 0).await;
    let elsewhere = tickr.enqueue(elsewhere).await;
    tickr.until(elsewhere, State::Failed).await;
    let here = tickr.enqueue(here).await;
    has_rows(&page, 1).await;
    assert_eq!(page.eval::<Vec<String>>(IDS).await, [here.to_string()]);
    let address = page.address().await;
    assert!(address.contains("queue%3Apost") && address.contains("verdict%3Afailed"), "{address}");
    tickr.until(here, State::Failed).await;

    // The address is enough for a colleague.
    let colleague = browser.page(&tickr.url("")).await;
    open(&colleague, &address).await;
    let typed = colleague.value(&field("Filter")).await;
    assert!(typed.ends_with(" queue:post"), "{typed}");
    colleague.assert_calm();
    page.assert_calm();
    drop((page, colleague));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tail_stands_still_while_it_is_paused_hovered_or_focused_and_counts() {
    let Some((tickr, browser)) = begin().await else { return };
    let happen = async |count: usize| {
        let later = |_| json!({"kind": "noop", "delay_ms": 7_200_000});
        tickr.enqueue_many((0..count).map(later)).await;
    };
    let page = browser.page(&tickr.url("")).await;
    page.size(1_440, 900).await;
    open(&page, "/tail").await;
    happen(5).await;
    has_rows(&page, 5).await;
    let before: Vec<String> = page.eval(IDS).await;

    page.click(&button("Pause")).await;
    happen(3).await;
    page.reads("3 new").await;
    assert_eq!(page.eval::<Vec<String>>(IDS).await, before, "paused");
    page.click(&button("Show")).await;
    has_rows(&page, 8).await;
    happen(2).await;
    page.reads("2 new").await;
    // Space is the same as the button.
    page.press(" ").await;
    has_rows(&page, 10).await;

    let at: Vec<f64> = page
        .eval("(({x, y}) => [x + 300, y + 10])(document.querySelectorAll('main tr[data-row]')[3].getBoundingClientRect())")
        .await;
    let before: Vec<String> = page.eval(IDS).await;
    page.point(at[0], at[1]).await;
    happen(2).await;
    page.reads("2 new").await;
    assert_eq!(page.eval::<Vec<String>>(IDS).await, before, "hovered");
    page.point(5.0, 5.0).await;
    has_rows(&page, 12).await;

    let before: Vec<String> = page.eval(IDS).await;
    page.press("j").await;
    happen(4).await;
    page.reads("4 new").await;
    assert_eq!(page.eval::<Vec<String>>(IDS).await, before, "focused");
    page.eval::<()>("document.activeElement.blur()").await;
    has_rows(&page, 16).await;

    // So does it while a part of it is above the window. The button leads back to its beginning.
    page.size(1_440, 300).await;
    page.eval::<()>("scrollTo(0, document.documentElement.scrollHeight)").await;
    page.until(
        "the list begins above the window",
        "document.querySelector('main section').getBoundingClientRect().y < 0",
    )
    .await;
    happen(2).await;
    page.reads("2 new").await;
    page.eval::<()>("document.querySelector('.selection button').click()").await;
    page.until("the page is at its beginning", "scrollY === 0").await;
    has_rows(&page, 18).await;
    page.size(1_440, 900).await;

    // An empty list begins anew with what happens next.
    page.click(&button("Clear")).await;
    page.reads("Nothing has happened yet").await;
    happen(1).await;
    has_rows(&page, 1).await;
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}

/// A stream of the test's own tells 5,000 events at once, and then more until the list is full.
#[tokio::test(flavor = "multi_thread")]
async fn the_tail_is_bounded_while_thousands_of_events_happen_and_says_what_it_leaves_out() {
    let Some((tickr, browser)) = begin().await else { return };
    let page = browser.page(&tickr.url("")).await;
    page.beforehand(
        "const plainFetch = fetch; \
         window.fetch = (path, options) => path !== '/v1/events' ? plainFetch(path, options) \
             : Promise.resolve(new Response(new ReadableStream({start: (out) => { window.stream = out; }}))); \
         window.told = 0; \
         window.tell = (count) => { \
             let text = ''; \
             for (let n = 0; n < count; n += 1) { \
                 told += 1; \
                 const job = '00000000-0000-7000-8000-' + String(told).padStart(12, '0'); \
                 const it = {at: new Date().toISOString(), runner: 'web-1', job, kind: 'noop', queue: 'default'}; \
                 const bad = told % 1000 === 7; \
                 if (bad) Object.assign(it, {verdict: 'failed', state: 'failed'}); \
                 text += `id: ${told}-0\\nevent: ${bad ? 'settled' : 'accepted'}\\ndata: ${JSON.stringify(it)}\\n\\n`; \
             } \
             stream.enqueue(new TextEncoder().encode(text)); };",
    )
    .await;
    open(&page, "/tail").await;
    page.eval::<()>(
        "void (window.most = 0, window.added = 0, window.drawn = 0, window.said = '', window.began = performance.now(), \
         window.known = new WeakSet(), new MutationObserver((changes) => { \
             drawn += 1; \
             most = Math.max(most, document.querySelectorAll('main tbody tr').length); \
             const rows = changes.flatMap((change) => [...change.addedNodes]).filter((row) => !known.has(row)); \
             added = Math.max(added, rows.length); \
             for (const row of rows) known.add(row); \
             const says = document.querySelector('main .tools').textContent; \
             if (/showing\\s+[\\d,]+\\s+of\\s+[\\d,]+\\s+events a second/.test(says)) said = says; \
         }).observe(document.querySelector('main tbody'), {childList: true}))",
    )
    .await;

    // Each event is a row, or is counted at the place where it is left out. Failures are rows.
    page.eval::<()>("tell(5000)").await;
    page.until(
        "each of the 5,000 events is accounted for",
        "[...document.querySelectorAll('main tbody tr')].reduce((sum, row) => sum + ('row' in row.dataset ? 1 \
         : Number(/([\\d,]+) more events? here/.exec(row.textContent)[1].replaceAll(',', ''))), 0) === 5000",
    )
    .await;
    let failures: usize = page.eval("document.querySelectorAll('main tbody .badge.failed').length").await;
    assert_eq!(failures, 5);

    // The list is as long as it may be, and stays so.
    let more = "(async () => { tell(1000); await new Promise((done) => setTimeout(done, 250)); \
                return document.querySelectorAll('main tbody tr').length; })()";
    let asked = Instant::now();
    while page.eval::<usize>(more).await < 500 {
        assert!(asked.elapsed() < 3 * DEADLINE, "the list does not have 500 rows");
    }
    for _ in 0..8 {
        assert_eq!(page.eval::<usize>(more).await, 500);
    }
    page.until(
        "the newest event is shown",
        "document.querySelector('main tr[data-row] [data-open]').title.endsWith(String(told).padStart(12, '0'))",
    )
    .await;
    let (most, added, drawn, seconds): (usize, usize, f64, f64) =
        page.eval("[most, added, drawn, (performance.now() - began) / 1000]").await;
    println!("{drawn} drawings in {seconds:.1} s, at most {added} new rows in one and {most} in all");
    assert!(most <= 500, "{most} rows");
    assert!(added <= 51, "{added} new rows in one drawing");
    assert!(drawn <= 4.0 * seconds + 2.0, "{drawn} drawings in {seconds:.1} s");
    page.until("it said how much it showed", "said !== ''").await;

    // A pause counts all of them, also those that the list will never show.
    page.click(&button("Pause")).await;
    page.eval::<()>("tell(2143)").await;
    page.reads("2,143 new").await;
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}

/// Tabs share one stream. The one that reads it asks for what it missed; one that comes back and hears it does not.
#[tokio::test(flavor = "multi_thread")]
async fn the_tail_says_that_events_may_be_missing_in_a_tab_that_comes_back_and_hears_another_one() {
    let Some((tickr, browser)) = begin().await else { return };
    let later = || json!({"kind": "noop", "delay_ms": 3_600_000});
    let first = browser.page(&tickr.url("")).await;
    open(&first, "/tail").await;
    let second = first.beside().await;
    open(&second, "/tail").await;
    eventually("the first tab alone reads a stream", || async {
        ((first.under_way("/v1/events"), second.under_way("/v1/events")) == (1, 0)).then_some(())
    })
    .await;
    tickr.enqueue(later()).await;
    has_rows(&first, 1).await;
    has_rows(&second, 1).await;

    second
        .eval::<()>(
            "void (window.isAway = true, Object.defineProperty(document, 'hidden', {get: () => window.isAway}), \
             document.dispatchEvent(new Event('visibilitychange')))",
        )
        .await;
    second
        .until(
            "the tab hears nothing",
            "![...document.querySelectorAll('header .light')].some((light) => light.innerText.trim() === 'live')",
        )
        .await;
    tickr.enqueue_many([later(), later(), later()]).await;
    has_rows(&first, 4).await;
    second.eval::<()>("void (window.isAway = false, document.dispatchEvent(new Event('visibilitychange')))").await;
    second.reads("Events may be missing here: the stream was away").await;
    tickr.enqueue(later()).await;
    has_rows(&first, 5).await;
    has_rows(&second, 2).await;
    let rows: Vec<bool> =
        second.eval("[...document.querySelectorAll('main tbody tr')].map((row) => row.matches('.gap'))").await;
    assert_eq!(rows, [false, true, false], "the gap is between the events");
    first.reads_not("Events may be missing here").await;
    second.assert_calm();
    first.assert_calm();
    drop((first, second));
    tickr.stop().await;
}
