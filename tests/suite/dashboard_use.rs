//! The dashboard while an operator works with it: searches among many jobs, filters that are typed, lists that change
//! under the mouse, figures that must be exact, and releases that must be watched.

use serde_json::json;

use crate::dashboard::begin;
use crate::support::browser::button;
use crate::support::{answer, http};

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
