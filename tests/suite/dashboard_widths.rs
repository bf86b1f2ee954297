//! The main action of each screen in a window as wide as that of a phone, of a laptop and of a large monitor. Those of the
//! explorer, of the charts and of the palette are in modules of their own.

use serde_json::{Value, json};
use tickr::job::JobId;

use crate::dashboard::{begin, letter, make_batch, sign_in};
use crate::support::TestApp;
use crate::support::browser::{Page, Thing, button, field, heading};
use crate::support::make_api_key;

const WIDTHS: [u32; 3] = [390, 1_440, 2_560];

/// Script that counts the rows of the screen.
const ROWS: &str = "document.querySelectorAll('main tr[data-row]').length";

/// One step of an action.
enum Step {
    Click(Thing),
    Fill(Thing, String),
    Press(&'static str),
    /// The screen shows this text.
    Reads(String),
    Has(Thing),
    Until(&'static str, String),
    /// A job is accepted meanwhile.
    Happens,
    /// Nothing stands out of the window, here with a dialog open.
    Fits,
    /// The dialog closes without a change.
    Close,
}

use Step::{Click, Close, Fill, Fits, Happens, Has, Press, Reads, Until};

/// The main action of a screen: its name, its address and its steps.
type Action = (&'static str, String, Vec<Step>);

fn reads(text: &str) -> Step {
    Reads(text.to_owned())
}

/// Perform an action, and check that the screen fits into the window afterwards.
async fn perform(tickr: &TestApp, page: &Page, width: u32, (name, path, steps): Action) {
    page.follow(&path).await;
    let fits = async || {
        let overflow = page.overflow().await;
        assert!(overflow.is_empty(), "{name}, {width} px: {overflow:?}");
    };
    for step in steps {
        match step {
            Click(thing) => page.click(&thing).await,
            Fill(thing, text) => page.fill(&thing, &text).await,
            Press(key) => page.press(key).await,
            Reads(text) => page.reads(&text).await,
            Has(thing) => page.has(&thing).await,
            Until(what, script) => page.until(&format!("{name}, {width} px: {what}"), &script).await,
            Happens => {
                tickr.enqueue(json!({"kind": "noop", "delay_ms": 7_200_000})).await;
            }
            Fits => fits().await,
            Close => {
                page.click(&button("Cancel")).await;
                page.until("the dialog is closed", "document.querySelector('dialog') === null").await;
            }
        }
    }
    fits().await;
}

/// What the screens of a width are about. What an action ends is there once for each width.
struct Subjects {
    runner: String,
    group: String,
    job: JobId,
    batch: String,
}

impl Subjects {
    async fn make(tickr: &TestApp) -> Self {
        let mut sealed = letter(&json!({"to": "nora", "seal": "wax-4711"}));
        sealed["delay_ms"] = json!(7_200_000);
        let later = json!({"kind": "noop", "delay_ms": 7_200_000});
        Self {
            runner: tickr.app.runner().to_string(),
            group: tickr.get("/v1/dead-letters/groups").await.body["data"][0]["fingerprint"]
                .as_str()
                .unwrap()
                .to_owned(),
            job: tickr.enqueue(sealed).await,
            batch: make_batch(tickr, json!({"name": "invoices", "jobs": [later]})).await,
        }
    }
}

/// The actions that change how jobs run. Each leaves its subject as it was, or is done with it.
fn of_settings(width: u32, place: usize, of: &Subjects) -> Vec<Action> {
    let (closed, away) = (format!("closed at {width}"), format!("away at {width}"));
    let at_once = place + 2;
    vec![
        (
            "queue",
            "/queues/post".to_owned(),
            vec![
                Click(button("Pause")),
                Fill(field("Reason"), closed.clone()),
                Fits,
                Click(button("Pause")),
                Reads(closed.clone()),
                Click(button("Resume")),
                Reads(format!("It was paused because: {closed}")),
                Click(button("Resume")),
                Has(button("Pause")),
            ],
        ),
        (
            "limit",
            "/limits/per-tenant".to_owned(),
            vec![
                Click(button("Change")),
                Fill(field("At once"), at_once.to_string()),
                Fits,
                Click(button("Save")),
                Reads(format!("{at_once} attempts")),
            ],
        ),
        (
            "schedule",
            "/schedules/weekly-letter".to_owned(),
            vec![
                Click(button("Pause")),
                Fill(field("Reason"), away.clone()),
                Fits,
                Click(button("Pause")),
                Reads(away.clone()),
                Click(button("Resume")),
                Reads(format!("It was paused because: {away}")),
                Click(button("Resume")),
                Has(button("Pause")),
            ],
        ),
        (
            "runners",
            "/runners".to_owned(),
            vec![
                Click(button(&format!("Drain {}", of.runner))),
                Fill(field("Reason"), "its host moves".to_owned()),
                reads("Within 2 s it starts no job any more"),
                Fits,
                Close,
            ],
        ),
        (
            "index",
            "/index".to_owned(),
            vec![Click(button("Rebuild now")), reads("What Redis holds is forgotten"), Fits, Close],
        ),
        (
            "group",
            format!("/dead-letters/{}", of.group),
            vec![
                Click(button("Release as a canary")),
                Until("the jobs are previewed", "document.querySelector('[data-preview]') !== null".to_owned()),
                Fill(field("Jobs per second in each step"), "1, 2".to_owned()),
                Fits,
                Close,
            ],
        ),
    ]
}

/// The actions on jobs, and those that look at them.
fn of_jobs(of: &Subjects) -> Vec<Action> {
    let range = "((query) => Date.parse(query.get('to')) - Date.parse(query.get('from')))\
                 (new URLSearchParams(location.search)) === 24 * 3600000";
    vec![
        // It comes first: the others make events, which would be counted.
        (
            "tail",
            "/tail".to_owned(),
            vec![
                Until("the page hears events", "!__eye.reads('connecting to the stream')".to_owned()),
                Happens,
                Until("an event is shown", format!("{ROWS} > 0")),
                Click(button("Pause")),
                Until("the rows are counted", format!("(window.shown = {ROWS}, true)")),
                Happens,
                reads("1 new"),
                Until("the list stands still", format!("{ROWS} === window.shown")),
                Click(button("Show")),
                Until("the new event is shown", format!("{ROWS} === window.shown + 1")),
                Click(button("Pause")),
                Happens,
                Until("the list follows again", format!("{ROWS} === window.shown + 2")),
            ],
        ),
        (
            "job",
            format!("/jobs/{}", of.job),
            vec![
                // What comes above the payload moves it.
                reads("Why it does not run"),
                Click(button("Show seal")),
                reads("wax-4711"),
                Click(button("Cancel")),
                reads("It will never start"),
                Fits,
                Click(button("Cancel the job")),
                reads("Outcome"),
            ],
        ),
        (
            "batch",
            of.batch.clone(),
            vec![
                Click(button("Close")),
                reads("It cannot be opened again"),
                Fits,
                Click(button("Close the batch")),
                reads("The batch is closed"),
            ],
        ),
        (
            "enqueue",
            "/enqueue?kind=letter".to_owned(),
            vec![Fill(field("to"), "nora".to_owned()), Click(button("Enqueue")), reads("Accepted and durable")],
        ),
        (
            "audit",
            "/audit".to_owned(),
            vec![
                Fill(field("Filter by target"), "weekly-letter".to_owned()),
                Press("Enter"),
                Until("the address has the target", "location.search.includes('target=weekly-letter')".to_owned()),
                reads("schedule.pause"),
            ],
        ),
        (
            "incident",
            "/incident".to_owned(),
            vec![
                Until("the address has both moments", "/from=.*to=/.test(location.search)".to_owned()),
                Fill(field("Range of time"), "24h".to_owned()),
                Until("the range is a day", range.to_owned()),
                Has(heading("Incident")),
                Until("the story is told", "document.querySelector('#incident-verdict') !== null".to_owned()),
            ],
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn the_main_action_of_each_screen_is_done_on_a_phone() {
    Box::pin(do_the_main_actions(&WIDTHS[..1])).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a machine for half a minute; the suite has the phone"]
async fn the_main_action_of_each_screen_is_done_on_a_phone_a_laptop_and_a_large_monitor() {
    Box::pin(do_the_main_actions(&WIDTHS)).await;
}

async fn do_the_main_actions(widths: &[u32]) {
    let Some((tickr, browser)) = begin().await else { return };
    let put = async |path: &str, body: Value| {
        let made = tickr.put(path, body).await;
        assert_eq!(made.status, 201, "{:#}", made.body);
    };
    put("/v1/limits/per-tenant", json!({"kind": "letter", "concurrency": 9})).await;
    let weekly =
        json!({"cron": "30 7 * * 1", "zone": "Europe/Warsaw", "kind": "letter", "payload": {"to": "the editor"}});
    put("/v1/schedules/weekly-letter", weekly).await;
    tickr.enqueue_many((0..12).map(|_| letter(&json!({"to": "ada", "fate": "returns"})))).await;
    tickr.until_count("SELECT COUNT(*) FROM attempts WHERE end_state = 'failed'", 12).await;
    let page = browser.page(&tickr.url("")).await;
    for (place, width) in widths.iter().copied().enumerate() {
        let subjects = Subjects::make(&tickr).await;
        page.size(width, 900).await;
        // A new document has no message of the width before.
        page.visit("/queues").await;
        for action in of_settings(width, place, &subjects).into_iter().chain(of_jobs(&subjects)) {
            perform(&tickr, &page, width, action).await;
        }
    }
    let limit = tickr.get("/v1/limits/per-tenant").await.body;
    assert_eq!(limit["concurrency"], widths.len() + 1, "{limit:#}");
    let done = i64::try_from(widths.len()).unwrap();
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE end_state = 'cancelled'").await, done);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM batches WHERE closed_at IS NOT NULL").await, done);

    // The first API key closes the API, so this comes last, and no page asks without one meanwhile.
    page.blank().await;
    let admin = make_api_key(&tickr.url(""), "", "ops", json!({"scope": "admin"})).await;
    page.visit("/").await;
    sign_in(&page, &admin).await;
    for width in widths.iter().copied() {
        page.size(width, 900).await;
        let name = format!("board-{width}");
        let steps = vec![
            Click(button("Make an API key")),
            Fill(field("Name"), name.clone()),
            Click(field("read")),
            Fits,
            Click(button("Make it")),
            reads("It is shown now and never again"),
            Fits,
            Click(button("I have copied it")),
            Has(button(&format!("Revoke {name}"))),
        ];
        perform(&tickr, &page, width, ("api-keys", "/api-keys".to_owned(), steps)).await;
    }
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}
