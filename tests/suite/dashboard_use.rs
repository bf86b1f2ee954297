//! The dashboard while an operator works with it: searches among many jobs, filters that are typed, lists that change
//! under the mouse, figures that must be exact, and releases that must be watched.

use serde_json::json;
use tickr::job::State;

use crate::dashboard::{begin, letter};
use crate::support::browser::{Page, button, field, link};
use crate::support::{answer, http};

/// Return script that says how many rows the page shows.
const ROWS: &str = "document.querySelectorAll('main tr[data-row]').length";

async fn has_rows(page: &Page, count: usize) {
    page.until(&format!("{count} rows are shown"), &format!("{ROWS} === {count}")).await;
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
