//! The dashboard as a user sees it: a real browser on a real server with real jobs. Tests find elements by their
//! visible text. An error that a page does not show fails the test as well.

use std::path::Path;
use std::sync::Arc;

use reqwest::Method;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::Executor;
use tickr::config::{Config, ReportQuery, Statement};
use tickr::handlers::{Context, Failure, Kind, Output, Registry};
use tickr::job::State;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::dashboard_use::open_palette;
use crate::support::browser::{Browser, Page, axe, button, choice, field, heading, link};
use crate::support::{TestApp, answer, broken, call, eventually, http, lasting_addr, make_api_key};

/// A kind whose payload has every sort of field.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Letter {
    /// Name of the recipient.
    to: String,
    /// Number of sheets.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 9))]
    sheets: u32,
    /// A secret, which the dashboard hides at first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("writeOnly" = true))]
    seal: Option<String>,
    /// Outcome of the delivery.
    #[serde(default)]
    fate: Fate,
}

/// Outcome of a delivery.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Fate {
    #[default]
    Arrives,
    Returns,
    Travels,
}

fn one() -> u32 {
    1
}

impl Kind for Letter {
    const NAME: &'static str = "letter";
}

fn kinds() -> Registry {
    let mut kinds = Registry::new();
    kinds.register(|letter: Letter, ctx: Context| async move {
        ctx.log(format_args!("to {}", letter.to));
        match letter.fate {
            Fate::Arrives => Output::json(&json!({"delivered_to": letter.to, "sheets": letter.sheets})),
            Fate::Returns => Err(Failure::reject(format!("nobody called {} lives there", letter.to))),
            Fate::Travels => {
                ctx.progress(40.0, format!("on its way to {}", letter.to));
                ctx.stopped().await;
                Err(Failure::retry("called back"))
            }
        }
    });
    kinds
}

pub(crate) fn letter(payload: &Value) -> Value {
    json!({"kind": "letter", "payload": payload})
}

/// Start a server with letters, and a browser; return `None` where there is no browser.
pub(crate) async fn begin() -> Option<(TestApp, Arc<Browser>)> {
    let browser = Browser::shared().await?;
    let queues = |config: &mut Config| config.queues = ["default", "post", "press"].map(str::to_owned).to_vec();
    Some((TestApp::start_with(queues, kinds()).await, browser))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_screen_that_is_told_to_come_again_waits_and_does_so_by_itself() {
    let Some(browser) = Browser::shared().await else { return };
    // One heavy read at a time.
    let tickr = TestApp::start_with(|config| config.mysql_connections = 8, kinds()).await;
    tickr.enqueue(json!({"kind": "noop", "payload": {}, "queue": "later", "delay_ms": 3_600_000})).await;
    let page = browser.page(&tickr.url("")).await;
    page.visit("/").await;
    page.reads("waiting 1").await;

    // Reads that wait for their table keep the seat.
    let mut operator = tickr.mysql().await;
    operator.execute("LOCK TABLES dead_letters WRITE").await.unwrap();
    let (over, mut readers) = (CancellationToken::new(), JoinSet::new());
    for _ in 0..4 {
        let (over, client, url) = (over.clone(), http(), tickr.url("/v1/dead-letters/groups"));
        readers.spawn(async move {
            while !over.is_cancelled() {
                let _ = answer(client.get(&url)).await;
            }
        });
    }
    let refused = |path: &str| {
        format!(
            "performance.getEntriesByType('resource').filter((one) => one.responseStatus === 429 && \
             one.name.includes('{path}')).length > 2"
        )
    };
    page.until("the overview is refused", &refused("/v1/stats")).await;
    let shown = "__eye.reads('waiting 1') && !document.querySelector('main > .note.bad')";
    page.until("the last values stay", shown).await;
    let _: Value = page.eval("setTimeout(() => location.assign('/queues'), 0)").await;
    let waits = format!(
        "location.pathname === '/queues' && document.querySelector('.skeleton') && !document.querySelector('.note.bad') \
         && {}",
        refused("/v1/queues")
    );
    page.until("a new screen is refused and asks again, without an error", &format!("Boolean({waits})")).await;
    over.cancel();
    operator.execute("UNLOCK TABLES").await.unwrap();
    readers.join_all().await;
    page.has(&link("later")).await;
    drop(page);
    tickr.stop().await;
}

async fn make(tickr: &TestApp, by: &str, name: &str, scope: &str) -> String {
    make_api_key(&tickr.url(""), by, name, json!({"scope": scope})).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_overview_shows_what_is_there_and_hears_of_what_happens() {
    let Some((tickr, browser)) = begin().await else { return };
    let page = browser.page(&tickr.url("")).await;
    page.visit("/").await;
    page.reads("Nothing has been enqueued yet").await;
    page.until("it hears events", "__eye.reads('live')").await;

    // The page updates itself, without a click.
    tickr.enqueue(json!({"kind": "noop", "payload": {}, "queue": "later", "delay_ms": 3_600_000})).await;
    page.reads_not("Nothing has been enqueued yet").await;
    page.reads("waiting 1").await;
    let failed = tickr.enqueue(letter(&json!({"to": "nora", "fate": "returns"}))).await;
    tickr.until(failed, State::Failed).await;
    page.reads("failed 1").await;
    page.reads("letter: nobody called nora lives there").await;

    // The page names stopped queues first, and every figure links to its jobs.
    page.has(&link("later")).await;
    page.reads("no runner").await;
    page.click(&link("nobody called nora").near("Newest dead letters")).await;
    page.has(&heading("letter")).await;
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_found_by_a_filter_in_the_address_and_dealt_with_together() {
    let Some((tickr, browser)) = begin().await else { return };
    let later = |n: u32| json!({"kind": "noop", "payload": {"n": n}, "delay_ms": 7_200_000 + n, "tags": ["bulk"]});
    tickr.enqueue_many((0..60).map(later)).await;
    let failed = tickr.enqueue(letter(&json!({"to": "nora", "fate": "returns"}))).await;
    tickr.until(failed, State::Failed).await;
    let page = browser.page(&tickr.url("")).await;
    page.visit("/jobs").await;
    page.reads("All61").await;

    // The filter completes names of fields, states and kinds, and the filter is part of the address.
    page.fill(&field("Filter"), "sta").await;
    page.has(&choice("state:")).await;
    page.press("Tab").await;
    page.click(&choice("state:failed")).await;
    page.until("only the failed one is there", "document.querySelectorAll('tbody tr').length === 1").await;
    assert_eq!(page.address().await, "/jobs?q=state%3Afailed");
    page.reads("nobody called nora lives there").await;
    page.fill(&field("Filter"), "payload.to:nora kind:let").await;
    page.has(&choice("kind:letter")).await;
    page.press("ArrowDown").await;
    page.press("Enter").await;
    page.until(
        "both words are in the address",
        "location.search.includes('payload.to%3Anora') && location.search.includes('kind%3Aletter')",
    )
    .await;
    page.reads("nobody called nora lives there").await;

    // An unknown field name is refused with an explanation.
    page.fill(&field("Filter"), "colour:blue").await;
    page.press("Enter").await;
    page.reads("colour").await;
    page.until(
        "the field is marked",
        "document.querySelector('[role=combobox]').getAttribute('aria-invalid') === 'true'",
    )
    .await;
    page.expected("422").await;

    // The address alone restores a search. Then act on all matching jobs, not only on those of this page.
    page.visit("/jobs?q=tag%3Abulk").await;
    page.until("a page of them is shown", "document.querySelectorAll('tbody tr').length === 50").await;
    // From here on, no list reads again because some time has passed: a change is seen because it was made.
    page.eval::<()>("void (window.setInterval = () => 0)").await;
    page.follow("/jobs?q=kind%3Anoop+tag%3Abulk").await;
    page.until("a page of them is shown", "document.querySelectorAll('tbody tr').length === 50").await;
    page.click(&field("Select all of this page")).await;
    page.reads("50 jobs selected").await;
    page.click(&button("Select all that match")).await;
    page.reads("All that match selected").await;
    page.click(&button("Set the priority")).await;
    page.reads("60 jobs match").await;
    page.reads("Would be").await;
    // An empty field is no priority, above all not the most urgent one.
    page.fill(&field("Priority"), "").await;
    page.until("it cannot be set", "document.querySelector('dialog[open] button[type=submit]').disabled").await;
    page.fill(&field("Priority"), "2").await;
    page.fill(&field("Reason"), "they are wanted sooner").await;
    page.click(&button("Set the priority")).await;
    page.reads("Set the priority has begun").await;
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE priority = 2", 60).await;
    page.reads("p2").await;

    // Select the jobs one by one.
    page.follow("/jobs?q=state%3Afailed").await;
    page.click(&field(&format!("Select the job {failed}"))).await;
    page.reads("1 job selected").await;
    page.click(&button("Delete")).await;
    page.reads("1 job matches").await;
    page.click(&button("Delete")).await;
    page.reads("No job matches").await;
    eventually("it is deleted", || async {
        (tickr.get(&format!("/v1/jobs/{failed}")).await.status == 404).then_some(())
    })
    .await;
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_says_why_it_waits_shows_its_life_and_runs_again_with_edits() {
    let Some((tickr, browser)) = begin().await else { return };
    let page = browser.page(&tickr.url("")).await;

    // A waiting job: the page shows the reason, and a button starts it at once.
    let job = json!({"kind": "letter", "payload": {"to": "nora", "seal": "wax-4711"}, "delay_ms": 7_200_000});
    let waits = tickr.enqueue(job).await;
    page.visit(&format!("/jobs/{waits}")).await;
    page.reads("Why it does not run").await;
    page.reads("Accepted").await;
    page.click(&button("Run now")).await;
    page.reads("becomes due at once").await;
    page.click(&button("Run now")).await;
    page.reads("What operators did").await;
    page.reads("Outcome").await;
    page.reads("delivered_to: \"nora\"").await;
    page.reads("Attempt 1: succeeded").await;

    // Sensitive fields are hidden until the user reveals them.
    page.reads_not("wax-4711").await;
    page.click(&button("Show seal")).await;
    page.reads("wax-4711").await;

    // A running job: the page shows its progress, and can cancel it.
    let travels = tickr.enqueue(letter(&json!({"to": "ada", "fate": "travels"}))).await;
    page.follow(&format!("/jobs/{travels}")).await;
    page.reads("40 %").await;
    page.reads("on its way to ada").await;
    page.click(&button("Cancel")).await;
    page.reads("its handler is asked to stop").await;
    page.click(&button("Cancel the job")).await;
    page.reads("The handler was asked to stop").await;
    page.reads("Outcome").await;
    tickr.until(travels, State::Cancelled).await;

    // A failed job: the page shows the error, and can run it again with another payload.
    let failed = tickr.enqueue(letter(&json!({"to": "nobody", "sheets": 3, "fate": "returns"}))).await;
    tickr.until(failed, State::Failed).await;
    page.follow(&format!("/jobs/{failed}")).await;
    page.reads("nobody called nobody lives there").await;
    page.click(&button("Duplicate and edit")).await;
    assert_eq!(page.value(&field("sheets")).await, "3");
    page.fill(&field("to"), "somebody").await;
    page.fill(&field("fate"), "arrives").await;
    page.click(&button("Enqueue")).await;
    page.reads("Accepted and durable").await;
    page.reads("completed").await;
    page.click(&button("To the job")).await;
    page.reads("delivered_to: \"somebody\"").await;
    page.reads("sheets: 3").await;
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}

/// The new job does the work of the failed one, so the server refuses to retry that one.
#[tokio::test(flavor = "multi_thread")]
async fn a_replayed_job_offers_no_retry_and_leads_to_the_job_that_does_its_work() {
    let Some((tickr, browser)) = begin().await else { return };
    let failed = tickr.enqueue(letter(&json!({"to": "nora", "fate": "returns"}))).await;
    tickr.until(failed, State::Failed).await;
    let page = browser.page(&tickr.url("")).await;
    page.visit(&format!("/jobs/{failed}")).await;
    page.has(&button("Retry")).await;
    let replay = tickr.post(&format!("/v1/jobs/{failed}/replay"), json!({})).await;
    assert_eq!(replay.status, 201, "{:#}", replay.body);
    let made = replay.body["id"].as_str().unwrap().to_owned();
    page.reads("does its work now").await;
    page.has_not(&button("Retry")).await;
    page.has(&button("Delete")).await;
    page.click(&link(&format!("…{}", &made[made.len() - 8..]))).await;
    page.settles(&format!("/jobs/{made}")).await;
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}

/// The browser sends no API key with a plain link, so the page fetches the file with it.
#[tokio::test(flavor = "multi_thread")]
async fn the_file_of_a_report_is_downloaded_from_its_job_with_the_api_key() {
    let Some(browser) = Browser::shared().await else { return };
    let query = |config: &mut Config| {
        let sql = "SELECT 7 AS number, 'wax' AS text";
        let statement = Statement::parse(sql).unwrap();
        let query =
            ReportQuery { title: "Seals".into(), description: None, sql: sql.into(), statement, params: Vec::new() };
        config.reports.queries.insert("seals".into(), query);
    };
    let tickr = TestApp::start_with(query, Registry::new()).await;
    let report = json!({"kind": "report", "payload": {"query": "seals", "format": "csv"}});
    let report = tickr.enqueue(report).await;
    tickr.until(report, State::Completed).await;
    let key = make(&tickr, "", "ops", "admin").await;
    let page = browser.page(&tickr.url("")).await;
    page.visit("/").await;
    sign_in(&page, &key).await;
    page.follow(&format!("/jobs/{report}")).await;
    // The text of the file is seen where the page makes the address of its download.
    page.eval::<()>(
        "void (window.makeUrl = URL.createObjectURL.bind(URL), \
         URL.createObjectURL = (file) => (file.text().then((text) => (window.saved = text)), makeUrl(file)))",
    )
    .await;
    page.click(&button("Download the report")).await;
    page.until("the file is saved", "/number[^]*7[^]*wax/.test(window.saved ?? '')").await;
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_of_one_cause_are_released_at_a_rate_watched_and_stopped() {
    let Some((tickr, browser)) = begin().await else { return };
    // At the rate below, a minute of them: the release has to last until it is stopped.
    tickr.enqueue_many((0..120).map(|_| letter(&json!({"to": "nora", "fate": "returns"})))).await;
    tickr.until_count("SELECT COUNT(*) FROM attempts WHERE end_state = 'failed'", 120).await;
    let page = browser.page(&tickr.url("")).await;
    page.visit("/dead-letters").await;
    page.reads("120").await;
    page.click(&link("nobody called nora")).await;
    page.reads("120 open").await;

    // Replay one job first, to check whether the cause is gone. It is not.
    page.click(&button("Try one")).await;
    page.click(&button("Try it")).await;
    page.reads("Failed with the same error").await;

    page.click(&button("Release")).await;
    page.reads("Would be").await;
    page.fill(&field("Jobs per second"), "2").await;
    page.fill(&field("Reason"), "the address was mended").await;
    page.click(&button("Release")).await;
    page.reads("at most 2/s").await;
    // The jobs fail again, and the page says so while the operation can still be stopped.
    page.until(
        "the released jobs fail again",
        "/[1-9]\\d* failed again/.test(document.querySelector('[data-released]')?.innerText)",
    )
    .await;
    page.click(&button("Stop")).await;
    page.click(&button("Stop it")).await;
    page.reads("It was stopped").await;
    let operations = tickr.get("/v1/operations").await.body;
    let operation = &operations["data"][0];
    assert_eq!((&operation["state"], &operation["rate"]), (&json!("cancelled"), &json!(2)), "{operation:#}");
    assert!(operation["done"].as_u64().unwrap() < 120, "{operation:#}");

    // Failures that will not be repeated are discarded with a reason.
    page.click(&button("Discard")).await;
    page.reads("Would be").await;
    page.fill(&field("Reason"), "they moved away").await;
    page.click(&button("Discard")).await;
    page.reads("none open").await;
    page.reads("they moved away").await;
    page.assert_calm();

    // The pages of operations and audit show the actor and the action.
    page.follow("/operations").await;
    page.reads("Discard").await;
    page.click(&link("Replay")).await;
    page.reads("Stopped").await;
    page.reads("the address was mended").await;
    page.follow("/audit").await;
    page.reads("job.discard").await;
    page.reads("anyone").await;
    page.fill(&field("Filter by target"), operation["id"].as_str().unwrap()).await;
    page.press("Enter").await;
    page.until("only its own lines are left", "document.querySelectorAll('tbody tr').length === 2").await;
    page.reads("operation.start").await;
    page.reads("operation.cancel").await;
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_a_group_of_expired_jobs_names_no_runner_on_which_one_ran() {
    let Some((tickr, browser)) = begin().await else { return };
    let expired = tickr.enqueue(json!({"kind": "noop", "queue": "unserved", "expires_in_ms": 1})).await;
    tickr.until(expired, State::Failed).await;
    let group = tickr.get("/v1/dead-letters/groups").await.body["data"][0]["fingerprint"].as_str().unwrap().to_owned();
    let page = browser.page(&tickr.url("")).await;
    page.visit(&format!("/dead-letters/{group}")).await;
    page.reads("Ended as").await;
    page.reads_not("Ran on").await;
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_paused_with_a_reason_limited_and_resumed() {
    let Some((tickr, browser)) = begin().await else { return };
    let page = browser.page(&tickr.url("")).await;
    tickr.enqueue_kind("noop", json!({})).await;
    page.visit("/queues").await;
    page.click(&button("Pause default")).await;
    page.fill(&field("Reason"), "the post office is closed").await;
    page.click(&button("Pause")).await;
    page.reads("default is paused").await;
    page.reads("the post office is closed").await;

    // The jobs of the queue give the pause as their reason, and link back to the queue.
    eventually("the runner knows", || async {
        let paused = tickr.get("/v1/queues/default").await.body["paused"].clone();
        paused.is_object().then_some(())
    })
    .await;
    let waits = tickr.enqueue(letter(&json!({"to": "nora"}))).await;
    page.follow(&format!("/jobs/{waits}")).await;
    page.reads("the post office is closed").await;
    page.click(&link("To the queue default")).await;
    page.has(&heading("default")).await;

    page.click(&button("Limit and priority")).await;
    page.fill(&field("Jobs at the same time"), "3").await;
    page.fill(&field("Priority"), "2").await;
    page.click(&button("Save")).await;
    page.reads("default was changed").await;
    page.reads("3 jobs at the same time").await;
    let queue = tickr.get("/v1/queues/default").await.body;
    assert_eq!((&queue["concurrency"], &queue["priority"]), (&json!(3), &json!(2)));

    page.click(&button("Resume")).await;
    page.reads("It was paused because: the post office is closed").await;
    page.click(&button("Resume")).await;
    page.reads("default is resumed").await;
    tickr.until(waits, State::Completed).await;
    page.reads("running").await;
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_shows_the_lines_of_its_handler_when_they_are_unfolded() {
    let Some((tickr, browser)) = begin().await else { return };
    let page = browser.page(&tickr.url("")).await;
    let returned = tickr.enqueue(letter(&json!({"to": "Ada\nLovelace", "fate": "returns"}))).await;
    tickr.until(returned, State::Failed).await;
    page.visit(&format!("/jobs/{returned}")).await;
    page.reads("Log 36 bytes").await;
    page.reads_not("INFO").await;
    page.click(&button("Log").near("Attempt 1")).await;
    page.reads("INFO to Ada\\nLovelace").await;
    // A job whose handler wrote nothing has no such fold.
    let quiet = tickr.enqueue(json!({"kind": "noop", "payload": {}})).await;
    tickr.until(quiet, State::Completed).await;
    page.visit(&format!("/jobs/{quiet}")).await;
    page.reads("Attempt 1").await;
    page.has_not(&button("Log").near("Attempt 1")).await;
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_behind_its_order_key_says_so_and_leads_to_the_others() {
    let Some((tickr, browser)) = begin().await else { return };
    let page = browser.page(&tickr.url("")).await;
    let far = json!({"kind": "noop", "order_key": "conversation 7", "delay_ms": 3_600_000});
    let [first, second] = tickr.enqueue_many([far.clone(), far]).await[..] else { panic!() };
    page.visit(&format!("/jobs/{second}")).await;
    page.reads("behind other jobs with its order key").await;
    page.reads(&format!("the first is job {first}, which is waiting")).await;
    page.click(&link("conversation 7")).await;
    page.has(&heading("Explorer")).await;
    for id in [first, second] {
        page.reads(&id.to_string()[28..]).await;
    }

    // The listing of order keys leads to the job at the head and to those behind it, and to the keys that a failed job
    // holds up.
    let failed = json!({"kind": "letter", "payload": {"to": "nora", "fate": "returns"}, "order_key": "conversation 9"});
    let failed = tickr.enqueue_many([failed.clone(), failed]).await[0];
    tickr.until(failed, State::Failed).await;
    page.follow("/order-keys").await;
    page.reads("conversation 7").await;
    page.click(&button("Behind a failed job")).await;
    page.reads_not("conversation 7").await;
    page.reads("conversation 9").await;
    page.click(&link("1").near("conversation 9")).await;
    page.until("the job behind is shown", "document.querySelectorAll('tbody tr').length === 1").await;
    page.follow("/order-keys?blocked=1").await;
    page.click(&link(&format!("…{}", &failed.to_string()[28..]))).await;
    page.has(&button("Retry")).await;

    page.follow("/enqueue?kind=noop").await;
    page.fill(&field("Order key"), "conversation 8").await;
    page.reads("If it fails for good").await;
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rejected_rows_of_the_outbox_are_shown_replayed_and_discarded() {
    let Some((tickr, browser)) = begin().await else { return };
    let page = browser.page(&tickr.url("")).await;
    page.visit("/outbox").await;
    page.reads("No row is rejected").await;
    page.reads("no runner looks all the time").await;
    let rows = "INSERT INTO tickr_outbox (id, kind, payload) VALUES (UNHEX(REPLACE(?, '-', '')), 'noop', ?)";
    let mut mysql = tickr.mysql().await;
    for payload in ["<b>first</b>", "{second"] {
        sqlx::query(rows).bind(uuid::Uuid::now_v7().to_string()).bind(payload).execute(&mut mysql).await.unwrap();
    }
    page.reads("the payload is not JSON").await;
    page.reads("looks for new ones").await;
    tickr.until_count("SELECT COUNT(*) FROM outbox_rejected", 2).await;
    page.until("both rows are shown", "document.querySelectorAll('tbody tr').length === 2").await;
    // What was wrong is put right, as far as the row is concerned.
    tickr.sql("UPDATE outbox_rejected SET payload = '{}' WHERE payload LIKE '{%'").await;
    for replayed in [true, false] {
        let count = if replayed { 2 } else { 1 };
        page.until("the rows are shown", &format!("document.querySelectorAll('tbody tr').length === {count}")).await;
        let row = if replayed { "document.querySelectorAll('tbody tr').length" } else { "1" };
        assert_eq!(page.eval::<usize>(row).await, count);
        if replayed {
            page.eval::<()>("[...document.querySelectorAll('tbody tr')].find((row) => row.querySelector('pre').textContent.startsWith('{')).querySelector('button').click()").await;
            page.reads("Replay this row?").await;
            assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 0, "the page asks first");
            page.click(&button("Replay it")).await;
            tickr.until_count("SELECT COUNT(*) FROM jobs", 1).await;
        } else {
            page.click(&button("Discard")).await;
            page.click(&button("Discard it")).await;
            page.reads("No row is rejected").await;
        }
    }
    tickr
        .sql(
            "INSERT INTO outbox_sources (name, runner, lease_until, calm_until, turn, copied, waiting, error, failing_since) \
             VALUES ('shop', '', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 1, '', 7, 'no <b>right</b>', UTC_TIMESTAMP(6))",
        )
        .await;
    for text in ["shop", "7", "Cannot be read since", "no <b>right</b>"] {
        page.reads(text).await;
    }
    page.follow("/audit").await;
    page.reads("outbox.discard").await;
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}

/// Create a batch, and return the address of its page.
pub(crate) async fn make_batch(tickr: &TestApp, body: Value) -> String {
    let made = tickr.post("/v1/batches", body).await;
    assert_eq!(made.status, 201, "{:#}", made.body);
    format!("/batches/{}", made.body["id"].as_str().unwrap())
}

/// Wait until a batch counts so many jobs that ended like this.
async fn batch_has(tickr: &TestApp, batch: &str, end: &str, count: u64) {
    eventually(&format!("the batch counts {count} {end}"), || async {
        (tickr.get(&format!("/v1{batch}")).await.body[end] == count).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_shows_its_counts_and_its_tree_and_is_closed_cancelled_and_retried() {
    let Some(browser) = Browser::shared().await else { return };
    let mended = CancellationToken::new();
    let tickr = TestApp::start_with(|_| {}, broken(&mended)).await;
    let page = browser.page(&tickr.url("")).await;
    page.visit("/batches").await;
    page.reads("No batch yet").await;
    let noop = json!({"kind": "noop", "payload": {}});
    let bad = json!({"kind": "broken", "payload": {}, "max_attempts": 1});
    let later = json!({"kind": "noop", "payload": {}, "delay_ms": 7_200_000});
    let outer = json!({"name": "nightly invoices", "jobs": [noop, noop, bad], "on_success": noop, "on_failure": noop});
    let outer = make_batch(&tickr, outer).await;
    let inner = json!({"name": "reminders", "parent": &outer[9..], "jobs": [noop], "close": true});
    let inner = make_batch(&tickr, inner).await;
    make_batch(&tickr, json!({"name": "old news", "jobs": [later, later, noop], "close": true})).await;

    // The list updates itself, and a batch leads to its page.
    let row = "[...document.querySelectorAll('main tr[data-row]')].find((row) => row.innerText.includes('nightly')) \
               ?.innerText.replace(/\\s+/g, ' ')";
    let counted = format!("Boolean({row}?.startsWith('open nightly invoices 4 of 4 1 failed 3 1 0 0 '))");
    page.until("the row has the counts", &counted).await;
    page.click(&button("Unfinished only")).await;
    page.until("the nested one has ended", "document.querySelectorAll('main tr[data-row]').length === 2").await;
    assert_eq!(page.address().await, "/batches?unfinished=1");
    page.click(&link("nightly invoices")).await;
    page.settles(&outer).await;
    page.reads("It does not end before it is closed").await;
    page.reads("4 of 4").await;

    // The callback that has begun leads to its job, and the other one has none yet.
    page.until("on_failure has run", &has_line("on_failure", "completed")).await;
    page.until("on_success waits", &has_line("on_success", "not started")).await;

    // The figures lead to the jobs.
    page.click(&link("Failed 1")).await;
    page.until("the failed job is shown", "document.querySelectorAll('main tr[data-row]').length === 1").await;
    page.follow(&outer).await;
    page.click(&link("Jobs of the batch")).await;
    page.until("its jobs are shown", "document.querySelectorAll('main tr[data-row]').length === 3").await;
    page.click(&link("…")).await;
    // The page of the job draws the batch again while its state comes, so a press and a release may meet two elements.
    let to_batch =
        "[...document.querySelectorAll('main a')].find((a) => a.textContent === 'nightly invoices')?.click()";
    page.until("the page of the batch", &format!("({to_batch}, location.pathname === '{outer}')")).await;
    page.settles(&outer).await;

    // The tree of nested batches goes down on request, and up from each of them.
    page.click(&button("Batches in reminders")).await;
    page.reads("No batch is nested in it").await;
    page.click(&link("reminders")).await;
    page.settles(&inner).await;
    page.reads("All of its jobs have completed").await;
    page.click(&link("nightly invoices")).await;
    page.settles(&outer).await;

    page.click(&button("Close")).await;
    page.click(&button("Close the batch")).await;
    page.reads("The batch is closed").await;
    page.reads("All of its jobs had ended, and some had not completed").await;
    mended.cancel();
    page.click(&button("Retry failed jobs")).await;
    page.reads("1 failed job will get a new life").await;
    page.click(&button("Retry")).await;
    page.reads("The retry has begun").await;
    page.reads("1 retried").await;
    page.reads("It has succeeded").await;
    page.until("on_success has run", &has_line("on_success", "completed")).await;
    page.has_not(&button("Retry failed jobs")).await;
    page.click(&link("Details")).await;
    page.has(&button("Start it again")).await;
    page.click(&link(&format!("failed jobs of the batch {}", &outer[9..]))).await;
    page.until("the filter has the batch", &format!("location.search.includes('batch%3A{}')", &outer[9..])).await;
    page.reads("No job matches").await;

    page.follow("/batches").await;
    page.click(&link("old news")).await;
    page.click(&button("Cancel")).await;
    page.reads("It has 2 unfinished jobs").await;
    page.click(&button("Cancel the batch")).await;
    page.reads("It was cancelled").await;
    page.reads("All of its jobs have ended").await;
    page.follow("/audit").await;
    page.reads("batch.cancel").await;
    page.click(&link(&outer[9..])).await;
    page.settles(&outer).await;
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}

/// Return script that says whether the callback for an event is shown with this text.
fn has_line(event: &str, text: &str) -> String {
    format!(
        "[...document.querySelectorAll('main li')].some((li) => li.innerText.includes('{event}') && \
         li.innerText.includes('{text}'))"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_shows_its_parents_and_its_children() {
    let Some(browser) = Browser::shared().await else { return };
    let mended = CancellationToken::new();
    let tickr = TestApp::start_with(|_| {}, broken(&mended)).await;
    let bad = tickr.enqueue(json!({"kind": "broken", "payload": {}, "max_attempts": 1})).await;
    let far = tickr.enqueue(json!({"kind": "noop", "payload": {}, "delay_ms": 7_200_000})).await;
    let child = json!({"kind": "noop", "payload": {}, "after": [bad, far], "on_parent_failure": "hold"});
    let child = tickr.enqueue(child).await;
    tickr.until(bad, State::Failed).await;
    let page = browser.page(&tickr.url("")).await;
    page.visit(&format!("/jobs/{child}")).await;
    page.reads("It waits for 2 of 2 parents").await;
    page.reads("and waits for its parents").await;
    page.reads("this job waits until that parent is retried and completes").await;
    let short = |id: tickr::job::JobId| format!("…{}", &id.to_string()[28..]);
    page.until("the failed parent is shown", &has_line(&short(bad), "failed")).await;
    page.until("the waiting parent is shown", &has_line(&short(far), "waiting")).await;

    // A parent leads to its children, and the page of a child follows its parents.
    page.click(&link(&short(far))).await;
    page.settles(&format!("/jobs/{far}")).await;
    page.until("the child is shown", &has_line(&short(child), "waiting")).await;
    page.click(&button("Run now")).await;
    page.click(&button("Run now")).await;
    page.reads("Outcome").await;
    page.click(&link(&short(child))).await;
    page.settles(&format!("/jobs/{child}")).await;
    page.until("the parent has completed", &has_line(&short(far), "completed")).await;
    mended.cancel();
    assert_eq!(tickr.post(&format!("/v1/jobs/{bad}/retry"), json!({})).await.status, 200);
    page.until("the other one has completed", &has_line(&short(bad), "completed")).await;
    page.reads("Outcome").await;

    page.follow("/jobs").await;
    page.fill(&field("Filter"), "bat").await;
    page.has(&choice("batch:")).await;
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backoff_is_shown_and_kept_whether_it_is_a_table_a_curve_or_a_part_of_one() {
    let Some((tickr, browser)) = begin().await else { return };
    let page = browser.page(&tickr.url("")).await;
    page.visit("/limits").await;
    let long = json!({"delays_ms": (1..=10).map(|n| n * 1_000).collect::<Vec<_>>()});
    let id = tickr.enqueue(json!({"kind": "noop", "payload": {}, "delay_ms": 7_200_000, "retry": long})).await;
    page.follow(&format!("/jobs/{id}")).await;
    page.reads("8.0 s and 2 more delays; the last delay repeats").await;
    let shown = [
        (json!({"delays_ms": [1_000, 2_000, 90_000]}), "after 1.0 s, 2.0 s, 1 m 30 s; the last delay repeats"),
        (json!({"base_ms": 500, "factor": 3, "cap_ms": 60_000}), "500 ms, × 3 from one delay to the next, at most 1 m"),
        (json!({"cap_ms": 60_000}), "at most 1 m"),
    ];
    for (place, (retry, text)) in shown.into_iter().enumerate() {
        let job = json!({"kind": "noop", "payload": {}, "delay_ms": 7_200_000, "retry": retry});
        let id = tickr.enqueue(job).await;
        page.follow(&format!("/jobs/{id}")).await;
        page.reads(text).await;
        page.follow(&format!("/enqueue?from={id}")).await;
        page.reads("Backoff as that job's").await;
        page.reads(text).await;
        let body = json!({"every_ms": 86_400_000, "kind": "noop", "payload": {}, "retry": retry});
        let name = format!("weekly-{place}");
        let made = tickr.put(&format!("/v1/schedules/{name}"), body).await;
        assert_eq!(made.status, 201, "{:#}", made.body);
        page.follow(&format!("/schedules/{name}")).await;
        page.reads(text).await;
        // The form leaves it as it is.
        page.follow(&format!("/schedules/{name}?edit=1")).await;
        page.fill(&field("Priority"), "4").await;
        page.click(&button("Save")).await;
        page.reads(&format!("{name} was changed")).await;
        let changed = tickr.get(&format!("/v1/schedules/{name}")).await.body;
        assert_eq!((&changed["priority"], &changed["retry"]), (&json!(4), &made.body["retry"]), "{changed:#}");
    }
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_breaker_is_set_shown_and_closed() {
    let Some((tickr, browser)) = begin().await else { return };
    let page = browser.page(&tickr.url("")).await;
    page.visit("/limits?new=1").await;
    page.fill(&field("Name"), "per-host").await;
    page.fill(&field("Shared by"), "host").await;
    page.click(&field("Breaker: after failed calls")).await;
    page.fill(&field("Failures in a row"), "1").await;
    page.fill(&field("First pause in seconds"), "1800").await;
    page.click(&button("Set the limit")).await;
    page.reads("must be 1800000, the first pause, to 86400000").await;
    page.expected("422").await;
    page.fill(&field("Longest pause in seconds"), "3600").await;
    page.click(&button("Set the limit")).await;
    page.reads("per-host was set").await;
    let set = tickr.get("/v1/limits/per-host").await.body;
    assert_eq!(set["breaker"], json!({"failures": 1, "pause_ms": 1_800_000, "max_pause_ms": 3_600_000}));
    page.reads("opens after 1 failure in a row, for 30 m up to 1 h").await;

    // Nothing listens there.
    let gone = lasting_addr();
    let job = json!({"kind": "http", "payload": {"url": format!("http://{gone}/")}, "max_attempts": 1});
    let failed = tickr.enqueue(job.clone()).await;
    tickr.until(failed, State::Failed).await;
    page.reads("could not be called").await;
    let parked = tickr.enqueue(job).await;
    eventually("it is parked", || async { (tickr.job(parked).await["held"] == true).then_some(()) }).await;
    page.follow(&format!("/jobs/{parked}")).await;
    page.reads(&format!("The limit per-host holds back calls to {gone}")).await;
    page.click(&link("To the limit per-host")).await;
    page.click(&button("Close the breaker")).await;
    page.reads("Failures are counted anew").await;
    page.click(&button("Close it")).await;
    page.reads(&format!("The breaker of {gone} was closed")).await;
    tickr.until(parked, State::Failed).await;
    page.assert_calm();
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_is_set_shows_its_keys_with_jobs_and_is_changed_and_removed() {
    let Some((tickr, browser)) = begin().await else { return };
    let page = browser.page(&tickr.url("")).await;
    page.visit("/limits").await;
    page.reads("No limit yet").await;
    page.click(&button("New limit")).await;
    page.fill(&field("Name"), "per-tenant").await;

    // The form shows all refusals of the server at their fields.
    page.fill(&field("Kind"), "Not A Name").await;
    page.fill(&field("Queue"), "Nor This").await;
    page.click(&button("Set the limit")).await;
    page.until(
        "both fields are marked",
        "['kind', 'queue'].every((field) => document.querySelector(`#l-${field}`).getAttribute('aria-invalid') === 'true')",
    )
    .await;
    page.expected("422").await;
    page.fill(&field("Kind"), "letter").await;
    page.fill(&field("Queue"), "").await;
    page.fill(&field("At once"), "1").await;
    page.fill(&field("Starts in a period"), "100").await;
    page.click(&button("Set the limit")).await;
    page.reads("per-tenant was set").await;
    page.reads("No key has jobs").await;
    let set = tickr.get("/v1/limits/per-tenant").await.body;
    assert_eq!((&set["kind"], &set["queue"], &set["concurrency"]), (&json!("letter"), &Value::Null, &json!(1)));
    assert_eq!(set["rate"], json!({"starts": 100, "period_ms": 60_000, "burst": 1}));

    // One job has the slot of its key, two are parked. The key leads to its jobs, whatever characters it has.
    let key = r#"tenant 7 "<b>x</b>" \&'"#;
    let job = |fate: &str| json!({"kind": "letter", "payload": {"to": "ada", "fate": fate}, "limit_key": key});
    let runs = tickr.enqueue(job("travels")).await;
    tickr.until(runs, State::Executing).await;
    let [parked, _] = tickr.enqueue_many([job("arrives"), job("arrives")]).await[..] else { panic!() };
    page.until(
        "the key is shown with its jobs",
        "document.querySelector('main tr[data-row]')?.innerText.replace(/\\s+/g, ' ').includes('1 of 1 2 ')",
    )
    .await;
    page.click(&link("2").near(key)).await;
    page.until("its parked jobs are shown", "document.querySelectorAll('tbody tr').length === 2").await;

    // A parked job names its limit, and leads to it and to the jobs with its key.
    page.follow(&format!("/jobs/{parked}")).await;
    page.reads("The limit per-tenant has no room for the key tenant 7").await;
    page.reads("Became due, and waits for its limit").await;
    page.click(&link(key)).await;
    page.until("the jobs of the key are shown", "document.querySelectorAll('tbody tr').length === 3").await;
    page.follow(&format!("/jobs/{parked}")).await;
    page.click(&link("To the limit per-tenant")).await;
    page.has(&heading("per-tenant")).await;

    // A change keeps the rate of an override, which the form does not edit. Two overrides of one key are not sent.
    let put = async |body: Value| {
        let answer = tickr.put("/v1/limits/per-tenant", body).await;
        assert_eq!(answer.status, 200, "{:#}", answer.body);
    };
    let own = json!({"rate": {"starts": 5, "period_ms": 1_000, "burst": 2}});
    put(json!({"kind": "letter", "concurrency": 1, "overrides": {"__proto__": own}})).await;
    page.click(&button("Change")).await;
    page.reads("Rate 5 in 1 s, burst 2: stays").await;
    page.click(&button("Add an override")).await;
    page.fill(&field("Key of override 2"), "__proto__").await;
    page.reads("This key has an override above").await;
    page.click(&button("Save")).await;
    page.fill(&field("Key of override 2"), key).await;
    page.reads_not("This key has an override above").await;
    page.click(&button("Save")).await;
    page.reads("must have concurrency, rate or weight").await;
    page.expected("422").await;
    page.fill(&field("At once of override 2"), "2").await;
    page.click(&field("Fair: keys with waiting jobs")).await;
    page.fill(&field("Weight of override 2"), "3").await;
    page.click(&button("Save")).await;
    page.reads("per-tenant was changed").await;
    let set = tickr.get("/v1/limits/per-tenant").await.body;
    assert_eq!(set["overrides"]["__proto__"], json!({"concurrency": null, "rate": own["rate"], "weight": null}));
    assert_eq!(set["fair"], true);
    assert_eq!(set["overrides"][key], json!({"concurrency": 2, "rate": null, "weight": 3}));
    // With more room the parked jobs start.
    tickr.until(parked, State::Completed).await;

    // A form does not overwrite what was changed after it was opened.
    page.click(&button("Change")).await;
    page.fill(&field("At once"), "9").await;
    put(json!({"kind": "letter", "concurrency": 7})).await;
    page.click(&button("Save")).await;
    page.reads("Another operator changed or removed it").await;
    page.expected("412").await;
    page.click(&button("Show it as it is now")).await;
    page.until("the form is new", "document.querySelector('#l-concurrency')?.value === '7'").await;
    page.click(&button("Cancel")).await;

    page.follow("/limits").await;
    page.click(&link("per-tenant")).await;
    page.click(&button("Remove")).await;
    page.reads("Jobs that wait for it start within a few seconds").await;
    page.click(&button("Remove")).await;
    page.reads("per-tenant was removed").await;
    page.reads("No limit yet").await;
    assert_eq!(tickr.get("/v1/limits/per-tenant").await.status, 404);

    // A job that runs again with edits keeps its limit key. The form takes unique fields instead of a unique key.
    page.follow(&format!("/enqueue?from={parked}")).await;
    assert_eq!(page.value(&field("Limit key")).await, key);
    page.fill(&field("Unique fields"), "/to, /sheets").await;
    page.until("there is one way to a unique key", "document.querySelector('#option-unique').disabled").await;
    page.reads("If an unfinished job has it").await;
    page.click(&button("Enqueue")).await;
    page.reads("must be a JSON pointer to a value of the payload").await;
    page.expected("422").await;
    page.fill(&field("Unique fields"), "/to").await;
    page.click(&button("Enqueue")).await;
    page.reads("Accepted and durable").await;
    let made = tickr.get("/v1/jobs").await.body["data"][0].clone();
    assert_eq!(made["limit_key"], json!(key), "{made:#}");
    assert!(made["unique_key"].as_str().is_some_and(|key| key.starts_with("fields:")), "{made:#}");
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_is_made_from_its_preview_triggered_and_paused() {
    let Some((tickr, browser)) = begin().await else { return };
    let page = browser.page(&tickr.url("")).await;
    page.visit("/schedules").await;
    page.reads("No schedule yet").await;
    page.click(&button("New schedule")).await;
    page.fill(&field("Name"), "weekly-letter").await;

    // The form reports an error at its field, and shows a valid schedule in words with its next five runs.
    page.fill(&field("Cron expression"), "61 * * * *").await;
    page.reads("That gives no time yet").await;
    page.until("the field is marked", "document.querySelector('#s-cron').getAttribute('aria-invalid') === 'true'")
        .await;
    page.expected("422").await;
    page.fill(&field("Cron expression"), "30 7 * * 1").await;
    page.fill(&field("Time zone"), "Europe/Warsaw").await;
    page.until("five runs are shown", "document.querySelectorAll('[data-preview] tbody tr').length === 5").await;
    page.reads("07:30").await;
    page.fill(&field("Kind"), "letter").await;
    page.fill(&field("to"), "nora").await;
    page.click(&button("Make the schedule")).await;
    page.reads("weekly-letter was made").await;
    let made = tickr.get("/v1/schedules/weekly-letter").await.body;
    assert_eq!((&made["cron"], &made["zone"]), (&json!("30 7 * * 1"), &json!("Europe/Warsaw")));
    assert_eq!(made["payload"]["to"], "nora");

    page.click(&button("Trigger")).await;
    page.click(&button("Trigger")).await;
    page.reads("weekly-letter fired").await;
    page.reads("fired by hand").await;
    let jobs = "[...document.querySelectorAll('main dt')].find((one) => one.textContent === 'Jobs')";
    page.until("its job is counted", &format!("{jobs}?.nextElementSibling.textContent.trim() === '1'")).await;
    tickr.until_count("SELECT COUNT(*) FROM attempts WHERE end_state = 'completed'", 1).await;
    // One that another caller makes is counted as well.
    assert!(tickr.post("/v1/schedules/weekly-letter/trigger", json!({})).await.status < 300);
    page.until("both are counted", &format!("{jobs}?.nextElementSibling.textContent.trim() === '2'")).await;

    page.click(&button("Pause")).await;
    page.fill(&field("Reason"), "nora is away").await;
    page.click(&button("Pause")).await;
    page.reads("weekly-letter is paused").await;
    page.reads("Its ticks pass without firing").await;
    page.follow("/schedules").await;
    page.reads("nora is away").await;
    page.click(&button("Resume weekly-letter")).await;
    page.click(&button("Resume")).await;
    page.reads("weekly-letter ticks again").await;
    page.reads_not("nora is away").await;
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_of_the_form_goes_to_the_queue_of_its_declared_kind() {
    let Some((tickr, browser)) = begin().await else { return };
    let schema = json!({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]});
    let kind = json!({"queue": "pictures", "schema": schema});
    assert_eq!(tickr.put("/v1/kinds/resize", kind).await.status, 201);
    let page = browser.page(&tickr.url("")).await;
    page.visit("/schedules?new=1").await;
    page.fill(&field("Name"), "smaller").await;
    page.fill(&field("Cron expression"), "30 7 * * 1").await;
    page.fill(&field("Kind"), "resize").await;
    page.fill(&field("path"), "a.png").await;
    page.click(&button("Make the schedule")).await;
    page.reads("smaller was made").await;
    assert_eq!(tickr.get("/v1/schedules/smaller").await.body["queue"], "pictures");
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_enqueue_form_comes_from_the_schema_and_shows_refusals_at_their_fields() {
    let Some((tickr, browser)) = begin().await else { return };
    let page = browser.page(&tickr.url("")).await;
    page.visit("/enqueue").await;
    page.fill(&field("What it does"), "letter").await;
    page.reads("Name of the recipient.").await;
    page.fill(&field("to"), "nora").await;
    page.fill(&field("sheets"), "12").await;
    page.reads("The most is 9").await;
    // The server checks again: an error that the form does not catch is shown at its field.
    page.fill(&field("sheets"), "2").await;
    page.fill(&field("Tags"), "a b c d e f g h i j k l").await;
    page.click(&button("Enqueue")).await;
    page.until(
        "the field of the tags is marked",
        "document.querySelector('#option-tags').getAttribute('aria-invalid') === 'true'",
    )
    .await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 0);
    page.expected("422").await;
    page.fill(&field("Tags"), "post").await;
    page.fill(&field("Unique key"), "letter-1").await;
    page.click(&button("Enqueue")).await;
    page.reads("Accepted and durable").await;
    page.reads("completed").await;
    let job = tickr.get("/v1/jobs").await.body["data"][0].clone();
    assert_eq!((&job["tags"], &job["unique_key"]), (&json!(["post"]), &json!("letter-1")), "{job:#}");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 1);
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runners_are_drained_and_the_index_is_rebuilt_and_verified() {
    let Some((tickr, browser)) = begin().await else { return };
    let page = browser.page(&tickr.url("")).await;
    let runner = tickr.app.runner().to_string();
    let travels = tickr.enqueue(letter(&json!({"to": "ada", "fate": "travels"}))).await;
    tickr.until(travels, State::Executing).await;
    page.visit("/runners").await;
    page.reads(&runner).await;
    page.reads("1 of 4").await;
    page.reads("letter").await;
    page.reads("on its way to ada").await;
    page.click(&button(&format!("Drain {runner}"))).await;
    page.fill(&field("Reason"), "its host moves").await;
    page.click(&button("Drain")).await;
    page.reads("takes no new work").await;
    page.reads("All runners drain: nothing starts").await;
    page.reads("its host moves").await;
    page.click(&button(&format!("Resume {runner}"))).await;
    page.click(&button("Resume")).await;
    page.reads("takes work again").await;
    page.reads_not("All runners drain: nothing starts").await;

    page.follow("/index").await;
    page.reads("MySQL answers").await;
    page.reads("Redis is fast").await;
    page.reads("Redis vs. MySQL").await;
    page.click(&button("Rebuild now")).await;
    page.reads("is forgotten").await;
    page.click(&button("Rebuild")).await;
    page.reads("Rebuilt.").await;
    page.click(&button("Verify now")).await;
    page.click(&button("Verify")).await;
    page.reads("Everything is as promised").await;
    tickr.post(&format!("/v1/jobs/{travels}/cancel"), json!({})).await;
    tickr.until(travels, State::Cancelled).await;
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}

/// Fill in the page that asks for an API key.
async fn give_key(page: &Page, key: &str) {
    page.has(&button("Sign in")).await;
    page.fill(&field("API key"), key).await;
    page.click(&button("Sign in")).await;
    page.has_not(&button("Sign in")).await;
}

/// The same, after the server has refused the page without an API key.
pub(crate) async fn sign_in(page: &Page, key: &str) {
    give_key(page, key).await;
    page.expected("401").await;
}

/// Names of the buttons that change something.
const ACTS: &str = "['Retry', 'Cancel', 'Delete', 'Replay', 'Discard', 'Release', 'Pause', 'Resume', 'Drain', 'Trigger', \
    'Rebuild', 'Verify', 'New schedule', 'New limit', 'Change', 'Remove', 'Limit', 'Duplicate', 'Run now', 'Enqueue', \
    'Close'] \
    .filter((name) => __eye.has({role: 'button', name}))";

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_made_used_and_revoked_and_readers_see_no_buttons() {
    let Some((tickr, browser)) = begin().await else { return };
    let failed = tickr.enqueue(letter(&json!({"to": "nora", "fate": "returns"}))).await;
    tickr.until(failed, State::Failed).await;
    let batch = make_batch(&tickr, json!({"jobs": [letter(&json!({"to": "nora", "fate": "returns"}))]})).await;
    batch_has(&tickr, &batch, "failed", 1).await;
    let limit = Some(json!({"concurrency": 2, "overrides": {"ada": {"concurrency": 3}}}));
    assert_eq!(call(&tickr.url(""), Method::PUT, "/v1/limits/per-tenant", "", limit).await.status, 201);
    let page = browser.page(&tickr.url("")).await;
    page.visit("/api-keys").await;
    page.reads("The API is open").await;

    // The first API key closes the API, and the page continues with that key.
    page.click(&button("Make an API key")).await;
    page.fill(&field("Name"), "ops").await;
    page.click(&field("I will copy the API key")).await;
    page.click(&button("Make it")).await;
    page.reads("It is shown now and never again").await;
    let admin: String = page.eval("document.querySelector('#key-token').textContent").await;
    page.click(&button("I have copied it")).await;
    page.reads("yours").await;
    page.reads_not("The API is open").await;
    page.reads_not(&admin).await;

    page.click(&button("Make an API key")).await;
    page.fill(&field("Name"), "board").await;
    page.click(&field("read")).await;
    page.click(&button("Make it")).await;
    page.reads("It is shown now and never again").await;
    let reads: String = page.eval("document.querySelector('#key-token').textContent").await;
    page.click(&button("I have copied it")).await;
    page.has(&button("Revoke board")).await;

    // A user with read scope sees everything and has no buttons for changes.
    let reader = browser.page(&tickr.url("")).await;
    reader.visit("/").await;
    reader.fill(&field("API key"), "tickr_wrong").await;
    reader.click(&button("Sign in")).await;
    reader.reads("Invalid API key").await;
    sign_in(&reader, &reads).await;
    reader.reads("key:board").await;
    // A low window has the same buttons as a high one, and is drawn sooner.
    reader.size(1_280, 300).await;
    for path in [
        "/",
        "/jobs",
        &format!("/jobs/{failed}"),
        "/batches",
        &batch,
        "/dead-letters",
        "/queues",
        "/queues/default",
        "/limits",
        "/limits/per-tenant",
        "/limits/per-tenant?edit=1",
        "/order-keys",
        "/outbox",
        "/schedules",
        "/runners",
        "/index",
        "/operations",
        "/audit",
        "/incident",
    ] {
        reader.follow(path).await;
        let shown: Vec<String> = reader.eval(ACTS).await;
        assert!(shown.is_empty(), "{path} shows to a reader {shown:?}");
        let boxes: usize = reader.eval("document.querySelectorAll('main table input[type=checkbox]').length").await;
        assert_eq!(boxes, 0, "{path}");
    }
    reader.has_not(&link("API keys")).await;
    reader.follow("/api-keys").await;
    reader.reads("This API key sees no API keys").await;

    // A key of a remote worker is none for people. The list says what it is limited to.
    let body = json!({"scope": "work", "kinds": ["letter"], "queues": ["post", "press"]});
    let works = make_api_key(&tickr.url(""), &admin, "courier", body).await;
    let worker = browser.page(&tickr.url("")).await;
    worker.visit("/").await;
    sign_in(&worker, &works).await;
    worker.reads("This API key is good for a remote worker alone").await;
    worker.assert_calm();
    drop(worker);
    page.follow("/queues").await;
    page.follow("/api-keys").await;
    page.reads("kinds: letter").await;
    page.reads("queues: post, press").await;

    // The key is refused from the moment it is revoked, and the page asks for another one.
    page.click(&button("Revoke board")).await;
    page.click(&button("Revoke")).await;
    page.reads("board is refused from now on").await;
    reader.follow("/queues").await;
    reader.has(&button("Sign in")).await;
    reader.expected("401").await;
    reader.assert_calm();

    // After signing out, the page does not have the key any more, even after a reload.
    page.click(&button("Sign out")).await;
    page.has(&button("Sign in")).await;
    page.visit("/").await;
    sign_in(&page, &admin).await;
    page.reads("key:ops").await;
    page.assert_calm();
    drop((page, reader));
    tickr.stop().await;
}

/// Sessions end in many ways: the server refuses the key, or the user signs out, here or in another tab.
#[tokio::test(flavor = "multi_thread")]
async fn a_kept_key_holds_in_all_tabs_until_it_is_signed_out_in_one_of_them() {
    let Some((tickr, browser)) = begin().await else { return };
    let admin = make(&tickr, "", "ops", "admin").await;
    let reads = make(&tickr, &admin, "board", "read").await;
    let page = browser.page(&tickr.url("")).await;
    page.visit("/queues").await;
    sign_in(&page, &reads).await;
    page.reads("key:board").await;

    // The session ends below an open dialog. The next one is kept, and a new document of the tab goes on with it.
    open_palette(&page).await;
    page.eval::<()>(
        "void (window.plainFetch = fetch, window.fetch = async () => { window.fetch = plainFetch; \
             return new Response('{\"code\":\"unauthorized\"}', {status: 401}) }, \
         document.dispatchEvent(new Event('visibilitychange')))",
    )
    .await;
    page.has(&button("Sign in")).await;
    page.click(&field("Keep it on this device")).await;
    give_key(&page, &admin).await;
    page.visit("/queues").await;
    page.reads("key:ops").await;

    // A tab beside it has the key as well, and an answer is on its way to it when the user signs out.
    let second = page.beside().await;
    second.visit("/limits").await;
    second.reads("key:ops").await;
    second
        .eval::<()>(
            "void (window.gate = new Promise((open) => { window.openGate = open }), window.plainFetch = fetch, \
             window.fetch = async (path, options) => { \
                 if (window.held || String(path) !== '/v1/queues') return plainFetch(path, options); \
                 window.held = true; await gate; \
                 return new Response('{\"code\":\"unauthorized\"}', {status: 401}) })",
        )
        .await;
    second.eval::<Value>("__eye.follow('/queues')").await;
    second.until("it waits for an answer", "window.held === true").await;
    page.click(&button("Sign out")).await;
    page.has(&button("Sign in")).await;
    second.has(&button("Sign in")).await;

    // The late answer refuses the key that was signed out, and not the present one.
    give_key(&second, &reads).await;
    second.reads("key:board").await;
    let asks = "__eye.has({role: 'button', name: 'Sign in'})";
    let asked: bool = second
        .eval(&format!(
            "(async () => {{ openGate(); await new Promise((on) => setTimeout(on, 200)); return {asks} }})()"
        ))
        .await;
    assert!(!asked, "the refusal of another key ends the session");
    for tab in [&page, &second] {
        tab.allow("401");
        tab.assert_calm();
    }
    drop((page, second));
    tickr.stop().await;
}

/// Text that tries to become markup, and that would break the layout of a page.
const HOSTILE: &str = concat!(
    r#"<script>alert(top)</script>"'><img src=x onerror="alert(2)"><svg onload=alert(3)></svg>{{7*7}}${alert(4)}"#,
    "\u{202e}&lt;b&gt; WWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWW"
);
/// The part of it that every screen has to show unchanged.
const TELLTALE: &str = "<script>alert(top)</script>";
/// The part of it that a header can carry.
const ACTOR: &str = r#"<script>alert(top)</script><img src=x onerror=alert(2)>"#;

/// Start a service that answers every request with an error and hostile text.
async fn hostile_service() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let app = axum::Router::new().fallback(|| async { (axum::http::StatusCode::BAD_REQUEST, HOSTILE) });
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    format!("http://{addr}/{TELLTALE}")
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_text_is_shown_as_it_is_and_never_runs() {
    let Some((tickr, browser)) = begin().await else { return };
    let act = async |method: Method, path: &str, body: Value| {
        let request = http().request(method, tickr.url(path)).header("tickr-actor", ACTOR).json(&body);
        let answer = answer(request).await;
        assert!(answer.status < 300, "{path}: {:#}", answer.body);
        answer.body
    };
    let post = async |path: &str, body: Value| act(Method::POST, path, body).await;
    let job = |to: &str, fate: &str| json!({"kind": "letter", "payload": {"to": to, "seal": HOSTILE, "fate": fate}});
    let mut one = job(HOSTILE, "returns");
    one["unique_key"] = json!(HOSTILE);
    let failed = tickr.enqueue(one).await;
    let batch = post("/v1/batches", json!({"name": HOSTILE})).await["id"].as_str().unwrap().to_owned();
    post("/v1/batches", json!({"name": HOSTILE, "parent": batch, "on_complete": {"kind": "noop", "payload": {}}}))
        .await;
    let mut member = job(HOSTILE, "arrives");
    member["batch"] = json!(batch);
    let done = tickr.enqueue(member).await;
    act(Method::PUT, "/v1/limits/wild", json!({"concurrency": 1, "overrides": {HOSTILE: {"concurrency": 1}}})).await;
    let mut two = job(HOSTILE, "travels");
    two["limit_key"] = json!(HOSTILE);
    let travels = tickr.enqueue(two.clone()).await;
    let url = hostile_service().await;
    let called = tickr.enqueue(json!({"kind": "http", "payload": {"url": url}, "max_attempts": 1})).await;
    let row = "INSERT INTO tickr_outbox (id, kind, payload, options) VALUES (?, ?, '{}', ?)";
    let row = sqlx::query(row).bind(uuid::Uuid::now_v7()).bind(TELLTALE).bind(HOSTILE);
    row.execute(&mut tickr.mysql().await).await.unwrap();
    tickr.until_count("SELECT COUNT(*) FROM outbox_rejected", 1).await;
    let odd = json!({"kind": "noop", "payload": {HOSTILE: {HOSTILE: [HOSTILE, null]}}, "queue": "attic", "order_key": HOSTILE});
    let odd = tickr.enqueue(odd).await;
    tickr.until(failed, State::Failed).await;
    tickr.until(done, State::Completed).await;
    tickr.until(called, State::Failed).await;
    tickr.until(travels, State::Executing).await;
    let parked = tickr.enqueue(two).await;
    post("/v1/queues/attic/pause", json!({"reason": HOSTILE})).await;
    let schedule = json!({"every_ms": 86_400_000, "kind": "letter", "payload": {"to": HOSTILE}});
    act(Method::PUT, "/v1/schedules/nightly", schedule).await;
    post("/v1/schedules/nightly/pause", json!({"reason": HOSTILE})).await;
    let runner = tickr.app.runner().to_string().replace('/', "%2F");
    post(&format!("/v1/runners/{runner}/drain"), json!({"reason": HOSTILE})).await;
    post("/v1/verify", json!({})).await;
    let operation = json!({"action": "retry", "filter": {"error": TELLTALE, "state": "cancelled"}, "reason": HOSTILE});
    let operation = post("/v1/operations", operation).await["id"].as_str().unwrap().to_owned();
    // This comes last, because the first API key closes the API to clients without one.
    let key =
        act(Method::PUT, "/v1/api-keys/ops", json!({"scope": "admin"})).await["token"].as_str().unwrap().to_owned();
    let groups = call(&tickr.url(""), Method::GET, "/v1/dead-letters/groups?kind=letter", &key, None).await.body;
    let group = groups["data"][0]["fingerprint"].as_str().unwrap().to_owned();

    let page = browser.page(&tickr.url("")).await;
    page.visit("/").await;
    sign_in(&page, &key).await;
    let mut wrong = Vec::new();
    let filter = "/jobs?q=error%3A%22%3Cscript%3Ealert(top)%3C%2Fscript%3E%22";
    for (path, shows) in [
        ("/", true),
        ("/jobs", true),
        (filter, true),
        (&format!("/tail?job={failed}"), true),
        (&format!("/jobs/{failed}"), true),
        (&format!("/jobs/{done}"), true),
        (&format!("/jobs/{travels}"), true),
        (&format!("/jobs/{parked}"), true),
        (&format!("/jobs/{called}"), false),
        (&format!("/jobs/{odd}"), true),
        ("/batches", true),
        (&format!("/batches/{batch}"), true),
        ("/dead-letters", true),
        (&format!("/dead-letters/{group}"), true),
        ("/queues", true),
        ("/queues/attic", true),
        ("/limits", true),
        ("/limits/wild", true),
        ("/limits/wild?edit=1", false),
        ("/order-keys", true),
        ("/outbox", true),
        ("/schedules", true),
        ("/schedules/nightly", true),
        ("/runners", true),
        ("/index", true),
        ("/operations", true),
        (&format!("/operations/{operation}"), true),
        ("/audit", true),
        (&format!("/enqueue?from={failed}"), true),
        ("/api-keys", true),
        ("/incident", true),
    ] {
        // A low window is as wide as a high one, and drawn sooner.
        page.size(1_280, 300).await;
        page.follow(path).await;
        if shows {
            page.reads(TELLTALE).await;
        }
        if path.ends_with(&called.to_string()) {
            page.click(&button("Request and response")).await;
            page.reads(TELLTALE).await;
        }
        if path == format!("/jobs/{failed}") {
            page.click(&button("Log").near("Attempt")).await;
            let shown =
                format!("Boolean(document.querySelector('article pre')?.innerText.includes({}))", json!(TELLTALE));
            page.until("the log is shown", &shown).await;
        }
        let made: Vec<String> = page
            .eval(
                "[...document.querySelectorAll('img[src=x], svg[onload], [onerror], [onload], script:not([src]), \
                 a[href^=\"javascript:\" i]')].map((el) => el.outerHTML)",
            )
            .await;
        assert!(made.is_empty(), "{path} made elements of text: {made:?}");
        wrong.extend(page.overflow().await.into_iter().map(|out| format!("{path}, 1280 px: {out}")));
        page.size(360, 300).await;
        wrong.extend(page.overflow().await.into_iter().map(|out| format!("{path}, 360 px: {out}")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // A dialog also shows the hostile name unchanged.
    page.size(1_280, 900).await;
    page.follow("/queues").await;
    page.click(&button("Resume attic")).await;
    page.reads(&format!("It was paused because: {TELLTALE}")).await;
    page.press("Escape").await;
    page.assert_calm();
    drop(page);
    for job in [parked, travels] {
        call(&tickr.url(""), Method::POST, &format!("/v1/jobs/{job}/cancel"), &key, None).await;
    }
    tickr.stop().await;
}

/// Fill a system with a day's work, of which `delivered` letters have arrived. Its records name `ops`, whose API key is
/// returned.
async fn furnish(tickr: &TestApp, delivered: usize) -> (Vec<(&'static str, String)>, String) {
    let at = |n: u64| json!({"kind": "letter", "payload": {"to": format!("customer {n}")}, "delay_ms": n * 1_700_000});
    let body = json!({"reason": "the press is being cleaned"});
    assert_eq!(tickr.post("/v1/queues/press/pause", body).await.status, 200);
    tickr.enqueue_many((0..40).map(at)).await;
    let names = ["Nora", "Ada", "Grace", "Edsger", "Barbara"];
    let sent = |n: usize| {
        let (to, queue) = (names[n % 5], if n.is_multiple_of(2) { "default" } else { "post" });
        let payload = json!({"to": to, "sheets": n % 9 + 1});
        json!({"kind": "letter", "payload": payload, "queue": queue, "tags": [format!("tenant:{}", n % 3)]})
    };
    tickr.enqueue_many((0..delivered).map(sent)).await;
    let lost =
        |n: usize| json!({"kind": "letter", "payload": {"to": names[n % 2], "fate": "returns"}, "queue": "post"});
    tickr.enqueue_many((0..12).map(lost)).await;
    tickr
        .enqueue_many(
            (0..3).map(|_| json!({"kind": "fail", "payload": {}, "retry": {"base_ms": 600_000, "cap_ms": 600_000}})),
        )
        .await;
    tickr
        .enqueue_many(
            (0..4).map(|n| json!({"kind": "noop", "payload": {"page": n}, "queue": "press", "delay_ms": 3_000})),
        )
        .await;
    for (name, limit) in [
        ("per-customer", json!({"kind": "letter", "concurrency": 1, "overrides": {"customer:7": {"concurrency": 5}}})),
        ("per-host", json!({"kind": "http", "rate": {"starts": 100, "period_ms": 60_000}})),
    ] {
        let answer = tickr.put(&format!("/v1/limits/{name}"), limit).await;
        assert_eq!(answer.status, 201, "{:#}", answer.body);
        // No job of a new limit starts before the attempts that run are counted.
        eventually("the limit has counted what runs", || async {
            (tickr.get(&format!("/v1/limits/{name}")).await.body["counted"] == true).then_some(())
        })
        .await;
    }
    let mut travels = letter(&json!({"to": "Nora", "seal": "wax", "fate": "travels"}));
    travels["limit_key"] = json!("customer:42");
    let parked = travels.clone();
    let travels = tickr.enqueue(travels).await;
    let failed = tickr.enqueue(letter(&json!({"to": "Ada", "sheets": 2, "fate": "returns"}))).await;
    tickr.until(travels, State::Executing).await;
    tickr.enqueue(parked).await;
    tickr.until_count("SELECT COUNT(*) FROM attempts WHERE end_state = 'failed'", 13).await;
    tickr.until_count("SELECT COUNT(*) FROM attempts WHERE verdict = 'failed'", 3).await;
    for (name, cron) in [("morning-round", "0 7 * * 1-5"), ("weekly-report", "30 2 * * 1")] {
        let schedule =
            json!({"cron": cron, "zone": "Europe/Warsaw", "kind": "letter", "payload": {"to": "the editor"}});
        let path = format!("/v1/schedules/{name}");
        assert_eq!(tickr.put(&path, schedule).await.status, 201);
        assert!(tickr.post(&format!("/v1/schedules/{name}/trigger"), json!({})).await.status < 300);
    }
    let operation =
        json!({"action": "replay", "filter": {"kind": "letter"}, "rate": 1, "reason": "the addresses were mended"});
    let operation = tickr.post("/v1/operations", operation).await.body["id"].as_str().unwrap().to_owned();
    let group = tickr.get("/v1/dead-letters/groups").await.body["data"][0]["fingerprint"].as_str().unwrap().to_owned();
    let job = |fate: &str| letter(&json!({"to": "Grace", "fate": fate}));
    let later = json!({"kind": "noop", "payload": {}, "delay_ms": 3_600_000});
    let callback = |name: &str| json!({"kind": "letter", "payload": {"to": name}});
    let batch = make_batch(
        tickr,
        json!({"name": "nightly invoices", "jobs": [job("arrives"), job("arrives"), job("returns"), later],
               "on_success": callback("the press"), "on_failure": callback("the editor")}),
    )
    .await;
    let nested = json!({"name": "reminders", "parent": &batch[9..], "jobs": [job("arrives"), later]});
    make_batch(tickr, nested).await;
    batch_has(tickr, &batch, "completed", 2).await;
    batch_has(tickr, &batch, "failed", 1).await;
    let child = json!({"kind": "noop", "payload": {}, "after": [failed, travels], "on_parent_failure": "hold"});
    let child = tickr.enqueue(child).await;
    let key = make(tickr, "", "ops", "admin").await;
    make(tickr, &key, "shop", "enqueue").await;
    make(tickr, &key, "board", "read").await;
    let screens = [
        ("overview", "/"),
        ("explorer", "/jobs"),
        ("explorer-job", &format!("/jobs?job={failed}")),
        ("tail", "/tail"),
        ("job", &format!("/jobs/{failed}")),
        ("job-running", &format!("/jobs/{travels}")),
        ("job-parents", &format!("/jobs/{child}")),
        ("batches", "/batches"),
        ("batch", &batch),
        ("dead-letters", "/dead-letters"),
        ("dead-letter-group", &format!("/dead-letters/{group}")),
        ("queues", "/queues"),
        ("queue", "/queues/press"),
        ("limits", "/limits"),
        ("limit", "/limits/per-customer"),
        ("limit-change", "/limits/per-customer?edit=1"),
        ("schedules", "/schedules"),
        ("schedule", "/schedules/morning-round"),
        ("schedule-new", "/schedules?new=1"),
        ("runners", "/runners"),
        ("index", "/index"),
        ("operations", "/operations"),
        ("operation", &format!("/operations/{operation}")),
        ("audit", "/audit"),
        ("enqueue", "/enqueue?kind=letter"),
        ("api-keys", "/api-keys"),
        // Links lead on from it with its range, so it is the last.
        ("incident", "/incident"),
    ];
    (screens.map(|(name, path)| (name, path.to_owned())).to_vec(), key)
}

/// Largest sum of bytes that are not answers of the API.
const MAX_BYTES: u64 = 350_000;

/// Return script that lists accessibility violations, each with its rule and its places. Themes differ only in colours,
/// so the second theme of a screen is checked for these alone.
pub(crate) fn barriers(colours_alone: bool) -> String {
    // A part outside of all landmarks is a moderate violation, and the search for it takes long.
    let rules = if colours_alone {
        "runOnly: ['color-contrast', 'link-in-text-block'],"
    } else {
        "rules: {region: {enabled: false}},"
    };
    format!(
        "axe.run(document, {{{rules} resultTypes: ['violations'], preload: false}}).then(({{violations}}) => violations \
         .filter(({{impact}}) => impact === 'serious' || impact === 'critical') \
         .map(({{id, nodes}}) => `${{id}}: ${{nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(' ~ ')}}`))"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn every_screen_is_calm_open_to_everybody_narrow_enough_and_light() {
    Box::pin(look_at_every_screen(1, &[360, 3_840])).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a machine for a minute; the suite looks at each screen in one theme and in fewer widths"]
async fn every_screen_is_calm_open_to_everybody_narrow_enough_and_light_in_both_themes() {
    Box::pin(look_at_every_screen(2, &[360, 768, 3_840])).await;
}

/// Look at each screen in as many themes, light and dark in turn, and in these widths.
async fn look_at_every_screen(themes: usize, widths: &[u32]) {
    let Some((tickr, browser)) = begin().await else { return };
    // With the others there is more than one page of jobs.
    let (screens, key) = furnish(&tickr, 15).await;
    let axe = axe();
    let policy = tickr.get("/").await.header("content-security-policy").to_owned();
    for part in
        ["default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "frame-ancestors 'none'"]
    {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(!policy.contains("unsafe") && !policy.contains("http"), "{policy}");

    let page = browser.page(&tickr.url("")).await;
    page.take_compressed().await;
    page.visit("/").await;
    if let Some(axe) = &axe {
        page.aside::<Value>(&format!("{axe};null")).await;
        assert_eq!(page.aside::<Vec<String>>(&barriers(false)).await, [""; 0], "where the key is asked for");
    }
    sign_in(&page, &key).await;
    let mut wrong = Vec::new();
    for (n, (name, path)) in screens.iter().enumerate() {
        page.follow(path).await;
        // A screen begins in the colours in which the one before it ended.
        let all = if n.is_multiple_of(2) { ["light", "dark"] } else { ["dark", "light"] };
        for (place, theme) in all.into_iter().take(themes).enumerate() {
            page.theme(theme).await;
            if axe.is_some() {
                let found: Vec<String> = page.aside(&barriers(place > 0)).await;
                wrong.extend(found.into_iter().map(|found| format!("{name}, {theme}: {found}")));
            }
        }
        // A low window is as wide as a high one, and drawn sooner.
        for width in widths.iter().copied() {
            page.size(width, 300).await;
            wrong.extend(page.overflow().await.into_iter().map(|out| format!("{name}, {width} px: {out}")));
        }
        page.size(1_280, 900).await;
        let title: String = page.eval("document.title").await;
        if !title.ends_with(" · tickr") || title.starts_with(' ') {
            wrong.push(format!("{name}: titled {title:?}"));
        }
    }
    let bytes = page.bytes(|path| !path.starts_with("/v1/") && path != "/readyz");
    println!("{} screens came in {bytes} bytes", screens.len());
    if bytes >= MAX_BYTES {
        wrong.push(format!("the screens weigh {bytes} bytes"));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_reached_by_keyboard() {
    let Some((tickr, browser)) = begin().await else { return };
    let failed = tickr.enqueue(letter(&json!({"to": "nora", "fate": "returns"}))).await;
    tickr.until(failed, State::Failed).await;
    let page = browser.page(&tickr.url("")).await;
    page.visit("/").await;
    // The first stop of the Tab key skips the menu.
    page.press("Tab").await;
    page.until("the way to the content is first", "document.activeElement.textContent === 'Skip to content'").await;
    page.press("?").await;
    page.has(&heading("Keyboard")).await;
    page.press("Escape").await;
    page.until("the dialog is closed", "document.querySelector('dialog') === null").await;
    // The second key counts for a moment, in which the machine may stand still.
    eventually("the keys lead to the jobs", || async {
        page.press("g").await;
        page.press("j").await;
        page.eval::<bool>("location.pathname === '/jobs'").await.then_some(())
    })
    .await;
    page.settles("/jobs").await;
    page.press("/").await;
    page.until("the filter has the focus", "document.activeElement.getAttribute('role') === 'combobox'").await;
    page.press("Escape").await;
    page.until("the row is there", "document.querySelectorAll('tbody tr').length === 1").await;
    page.press("Escape").await;
    page.until("the filter is left", "document.activeElement.getAttribute('role') !== 'combobox'").await;
    page.press("j").await;
    page.press("x").await;
    page.reads("1 job selected").await;
    page.press("Escape").await;
    page.reads_not("1 job selected").await;
    page.press("j").await;
    page.press("Enter").await;
    page.settles(&format!("/jobs?job={failed}")).await;
    page.has(&button("Close the job")).await;
    page.reads("Attempt 1").await;
    page.press("Escape").await;
    page.has_not(&button("Close the job")).await;
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}

/// Take pictures of every screen in both themes, in a wide and a narrow window, for developers who change the screens:
/// `cargo test --test suite -- --ignored dashboard::pictures_of_every_screen`. They are in `target/tmp/screens`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "makes pictures and proves nothing"]
async fn pictures_of_every_screen() {
    let Some((tickr, browser)) = begin().await else { return };
    let (screens, key) = furnish(&tickr, 60).await;
    // Insert the samples of five minutes of traffic instead of producing it.
    let rows = (1..60).map(|slot| {
        let flow = 400 + (slot * 37) % 90 - 6 * (slot % 11);
        let (failed, late) = (slot % 7, 0x40 + slot % 6);
        format!(
            "(5, FROM_UNIXTIME(5 * FLOOR(UNIX_TIMESTAMP() / 5) - 5 * {slot}), '', 'demo', at + INTERVAL 5 SECOND, \
             {flow}, {}, {failed}, {flow}, UNHEX('2C5A{late:X}04'), UNHEX('2C5A'))",
            flow - failed
        )
    });
    let columns = "step, at, queue, runner, counted_to, accepted, completed, failed, ended, lateness, run_time";
    let rows = rows.collect::<Vec<String>>().join(", ");
    tickr.sql(format!("INSERT INTO samples ({columns}) VALUES {rows}")).await;
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("screens");
    let page = browser.page(&tickr.url("")).await;
    page.visit("/").await;
    sign_in(&page, &key).await;
    for (name, path) in &screens {
        page.follow(path).await;
        for (theme, width) in [("light", 1_440), ("dark", 1_440), ("light", 360), ("dark", 360)] {
            page.theme(theme).await;
            page.size(width, 700).await;
            // The window is as high as its content, so that elements with a fixed position are in their usual place.
            let height: u32 = page.eval("document.documentElement.scrollHeight").await;
            page.size(width, height).await;
            // Charts redraw themselves with the next frame.
            page.eval::<Value>(
                "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(null))))",
            )
            .await;
            page.shot(&folder.join(format!("{name}-{theme}-{width}.png"))).await;
        }
    }
    println!("{}", folder.display());
    drop(page);
    tickr.stop().await;
}
