//! The heat map of lateness and the marks on charts: exact numbers by mouse and by keyboard, the jobs behind a cell, and
//! a line for each event that may be the reason why figures changed.

use std::time::Duration;

use serde_json::{Value, json};
use tickr::config::Config;
use tickr::handlers::Registry;
use tickr::job::{Histogram, RunnerId, Series, SlotWidth, State, Tally, Timestamp, Verdict};
use tickr::store::{Figures, Sample};

use crate::dashboard::{barriers, begin};
use crate::dashboard_use::has_rows;
use crate::support::browser::{Browser, Page, axe, button, link};
use crate::support::{TestApp, eventually};

/// Widths of a phone and of a laptop.
const WIDTHS: [u32; 2] = [390, 1_440];
/// Width of a large monitor.
const WIDE: u32 = 2_560;

/// Return script with the names of the rows of the heat map.
const ROWS: &str = "[...document.querySelectorAll('.sheet tbody th')].map((head) => head.innerText.trim())";

/// Configure a tickr that accepts jobs and runs none of them.
fn bystander(config: &mut Config) {
    config.queues = vec!["elsewhere".into()];
}

/// Record that ten jobs of a queue, or of all of them together for an empty name, started this late in the step that
/// began at `at`.
async fn started_late(tickr: &TestApp, step: SlotWidth, at: Timestamp, queue: &str, late: Duration) {
    let mut tally = Tally::default();
    for _ in 0..10 {
        tally.lateness.count(late);
        tally.record_settled(Verdict::Succeeded, State::Completed);
    }
    let figures = Figures::from(&tally);
    let series = if queue.is_empty() { Series::All } else { Series::Queue(queue.parse().unwrap()) };
    let sample = Sample { step, at, series, counted_to: at + step.width(), figures };
    let runner = RunnerId::from_stored("gone/1-00000000".to_owned());
    tickr.app.broker().store().write_samples(&runner, vec![sample]).await.unwrap();
}

/// Fail if a reader with a handicap meets a barrier. A phone is looked at in the dark theme, other screens in the light
/// one: themes differ only in colours.
async fn is_open_to_all(page: &Page, axe: Option<&str>, width: u32) {
    let Some(axe) = axe else { return };
    let theme = if width == WIDTHS[0] { "dark" } else { "light" };
    page.theme(theme).await;
    page.aside::<Value>(&format!("{axe};null")).await;
    assert_eq!(page.aside::<Vec<String>>(&barriers(false)).await, [""; 0], "{width} px, {theme}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a machine for a quarter of a minute; the suite has the phone and the laptop"]
async fn charts_and_heat_maps_are_used_in_the_same_way_on_a_large_monitor() {
    Box::pin(look_at_the_day_of_the_schedules(&[WIDE])).await;
    Box::pin(use_the_cells(&[WIDE])).await;
    Box::pin(look_at_the_marks(&[WIDE])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_day_of_the_schedules_shows_ticks_that_fired_failed_and_were_skipped() {
    Box::pin(look_at_the_day_of_the_schedules(&WIDTHS)).await;
}

async fn look_at_the_day_of_the_schedules(widths: &[u32]) {
    let Some(browser) = Browser::shared().await else { return };
    let tickr = TestApp::start().await;
    for name in ["hourly", "nightly", "quiet"] {
        let schedule = json!({"cron": "0 3 1 1 *", "kind": "noop", "payload": {}});
        assert_eq!(tickr.put(&format!("/v1/schedules/{name}"), schedule).await.status, 201);
    }
    let now = SlotWidth::Quarter.floor(tickr.app.broker().store().clock().now());
    let ago = |hours: i64| now - chrono::TimeDelta::hours(hours);
    let tick = |schedule: &str, at: Timestamp, job: Option<u8>, ticks: u32| {
        let at = at.format("%F %T");
        let (outcome, cause) = if job.is_some() { ("fired", "NULL") } else { ("skipped", "'missed'") };
        let job = job.map_or("NULL".to_owned(), |job| format!("UNHEX(LPAD('{job:x}', 32, '0'))"));
        format!("('{schedule}', '{at}', '{outcome}', {cause}, {ticks}, {job}, '{at}', 'runner:gone')")
    };
    let rows = [
        tick("hourly", ago(3), Some(1), 1),
        tick("hourly", ago(3) + chrono::TimeDelta::minutes(1), Some(2), 1),
        tick("hourly", ago(2), None, 7),
        tick("hourly", ago(30), Some(3), 1),
        tick("nightly", ago(5), Some(4), 1),
    ];
    tickr
        .sql(format!(
            "INSERT INTO ticks (schedule, due_at, outcome, cause, ticks, job_id, recorded_at, recorded_by) VALUES {}; \
             INSERT INTO dead_letters (job_id, kind, queue, fingerprint, failed_at, error, since) VALUES \
             (UNHEX(LPAD('2', 32, '0')), 'noop', 'default', UNHEX('0000000000000001'), UTC_TIMESTAMP(6), 'no', \
             UTC_TIMESTAMP(6))",
            rows.join(", ")
        ))
        .await;
    let answer = tickr.get("/v1/history/ticks?schedules=nightly,hourly,quiet").await;
    assert_eq!(answer.status, 200, "{:#}", answer.body);
    let strips = &answer.body["schedules"];
    let sums = |strip: &Value| {
        ["fired", "failed", "skipped"].map(|name| {
            let column: Vec<u64> = strip[name].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
            assert_eq!(column.len(), 96, "{name}");
            column.iter().sum::<u64>()
        })
    };
    let names = [0, 1, 2].map(|n| strips[n]["schedule"].clone());
    assert_eq!(names, ["nightly", "hourly", "quiet"].map(|name| json!(name)));
    assert_eq!([0, 1, 2].map(|n| sums(&strips[n])), [[1, 0, 0], [2, 1, 7], [0, 0, 0]]);
    let all = tickr.get("/v1/history/ticks").await.body;
    assert_eq!(all["schedules"][0]["schedule"], "hourly");
    let many = vec!["a"; 51].join(",");
    for wrong in ["No%20Name", &many] {
        let refused = tickr.get(&format!("/v1/history/ticks?schedules={wrong}")).await;
        assert_eq!((refused.status, refused.pointers()), (422, vec!["schedules"]), "{wrong}");
    }

    let page = browser.page(&tickr.url("")).await;
    let axe = axe();
    for width in widths.iter().copied() {
        page.size(width, 900).await;
        page.visit("/schedules").await;
        page.until("the rows with ticks are there", &format!("{ROWS}.join() === 'hourly,nightly'")).await;
        let cells: Vec<(String, String)> = page
            .eval("[...document.querySelectorAll('.sheet td a')].map((cell) => [cell.className, cell.ariaLabel.split(': ')[1]])")
            .await;
        let cells: Vec<(&str, &str)> = cells.iter().map(|(is, text)| (is.as_str(), text.as_str())).collect();
        let wanted =
            [("tick-failed", "2 fired, 1 of them failed"), ("tick-skipped", "7 skipped"), ("tick-fired", "1 fired")];
        assert_eq!(cells, wanted, "{width} px");
        let overflow = page.overflow().await;
        assert!(overflow.is_empty(), "{width} px: {overflow:?}");
        is_open_to_all(&page, axe.as_deref(), width).await;
        page.eval::<()>("document.querySelector('.sheet td a[tabindex=\"0\"]').focus()").await;
        page.press("ArrowLeft").await;
        page.until(
            "its numbers are said",
            "document.querySelector('.sheet .said').innerText.includes('1 of them failed')",
        )
        .await;
        page.press("Enter").await;
        page.settles("/schedules/hourly").await;
    }
    page.assert_calm();
    drop(page);
    tickr.stop_broken("its ticks were written by hand").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_schedule_that_ticks_often_the_newest_ticks_are_counted() {
    let tickr = TestApp::start().await;
    let digits = "(SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL \
                  SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)";
    let at = "UTC_TIMESTAMP() - INTERVAL 10 * (a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 60) SECOND";
    tickr
        .sql(format!(
            "INSERT INTO ticks (schedule, due_at, outcome, job_id, recorded_at, recorded_by) SELECT 'often', {at}, \
             'fired', UNHEX(LPAD(HEX(1 + a.d + 10 * b.d + 100 * c.d + 1000 * e.d), 32, '0')), {at}, 'runner:gone' \
             FROM {digits} a, {digits} b, {digits} c, {digits} e WHERE e.d < 3"
        ))
        .await;
    let answer = tickr.get("/v1/history/ticks?schedules=often").await.body;
    let often = &answer["schedules"][0];
    let fired: u64 = often["fired"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).sum();
    assert_eq!(fired, 1_500);
    let from: Timestamp = often["counted_from"].as_str().unwrap().parse().unwrap();
    let hours = (tickr.app.broker().store().clock().now() - from).num_minutes();
    assert!((258..=264).contains(&hours), "{hours} minutes");
    tickr.stop_broken("its ticks were written by hand").await;
}

/// Return the label of the only cell of a queue, and its class.
async fn cell(page: &Page, queue: &str) -> (String, String) {
    let script = format!(
        "(() => {{ const cells = [...document.querySelectorAll('.sheet td a')] \
         .filter((cell) => cell.ariaLabel.startsWith('{queue}, ')); \
         return cells.map((cell) => [cell.ariaLabel, cell.className]); }})()"
    );
    let cells: Vec<(String, String)> = page.eval(&script).await;
    assert_eq!(cells.len(), 1, "{cells:?}");
    cells[0].clone()
}

/// Return the milliseconds in brackets behind a percentile of a label.
fn exact(label: &str, percentile: &str) -> f64 {
    let (_, behind) = label.split_once(&format!("{percentile} ")).unwrap();
    let (_, number) = behind.split_once('(').unwrap();
    number.split_once(" ms)").unwrap().0.replace(',', "").parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_of_the_heat_map_says_how_late_jobs_started_and_opens_them() {
    Box::pin(use_the_cells(&WIDTHS)).await;
}

async fn use_the_cells(widths: &[u32]) {
    let Some(browser) = Browser::shared().await else { return };
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    let step = SlotWidth::Minute;
    let at = step.floor(tickr.app.broker().store().clock().now()) - step.width() * 5;
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    started_late(&tickr, step, at, "bulk", minutes(15)).await;
    started_late(&tickr, step, at, "mail", Duration::from_secs(4)).await;
    started_late(&tickr, step, at, "quick", Duration::from_millis(20)).await;
    // A job of the queue that was accepted, and due, ten minutes before that step.
    let accepted = at.timestamp_millis() - 600_000;
    let (id, time) = (
        format!("UNHEX(CONCAT(LPAD(HEX({accepted}), 12, '0'), '70008000000000000001'))"),
        format!("FROM_UNIXTIME({accepted} / 1000)"),
    );
    tickr
        .sql(format!(
            "INSERT INTO jobs (id, kind, queue, priority, max_attempts, payload, execute_at, created_at) \
             VALUES ({id}, 'noop', 'bulk', 5, 1, '{{}}', {time}, {time}); \
             INSERT INTO owed (id, kind, queue, priority, max_attempts, state, execute_at) \
             VALUES ({id}, 'noop', 'bulk', 5, 1, 'waiting', {time})"
        ))
        .await;

    let page = browser.page(&tickr.url("")).await;
    let axe = axe();
    for width in widths.iter().copied() {
        page.size(width, 900).await;
        page.visit("/queues").await;
        page.until("the rows are there, the latest first", &format!("{ROWS}.join() === 'bulk,mail,quick'")).await;
        let (bulk, of_bulk) = cell(&page, "bulk").await;
        let (mail, of_mail) = cell(&page, "mail").await;
        let (quick, of_quick) = cell(&page, "quick").await;
        for (label, late) in [(&bulk, 900_000.0), (&mail, 4_000.0)] {
            for percentile in ["p99", "p50"] {
                let read = exact(label, percentile);
                assert!((read - late).abs() <= late * Histogram::MAX_ERROR + 1.0, "{label}");
            }
        }
        assert!(quick.contains("p99 2") || quick.contains("p99 19") || quick.contains("p99 21"), "{quick}");
        assert_eq!((of_bulk.as_str(), of_mail.as_str(), of_quick.as_str()), ("heat-5", "heat-2", "heat-0"));
        page.reads("10 min and more").await;
        page.reads("no start").await;
        let overflow = page.overflow().await;
        assert!(overflow.is_empty(), "{width} px: {overflow:?}");
        is_open_to_all(&page, axe.as_deref(), width).await;

        // By mouse: the numbers of the cell beneath it.
        let said = "document.querySelector('.sheet .said').innerText";
        let numbers = mail.split_once(": ").unwrap().1;
        let wanted = format!("{said}.includes({}) && {said}.startsWith('mail')", json!(numbers));
        point_until(&page, ".sheet tbody tr:nth-child(2) td a", &wanted).await;
        page.point(1.0, 1.0).await;

        // By keyboard: one stop of the Tab key, then the arrow keys.
        assert_eq!(page.eval::<u32>("document.querySelectorAll('.sheet td a[tabindex=\"0\"]').length").await, 1);
        page.eval::<()>("document.querySelector('.sheet td a[tabindex=\"0\"]').focus()").await;
        let focused = |label: &str| format!("document.activeElement.ariaLabel === {}", json!(label));
        // The mouse was at the second row.
        page.until("the focus is at the second row", &focused(&mail)).await;
        page.press("ArrowDown").await;
        page.until("the focus is at the third row", &focused(&quick)).await;
        page.press("ArrowUp").await;
        page.press("ArrowUp").await;
        page.until("the focus is at the first row", &focused(&bulk)).await;
        page.until("its numbers are said", &format!("{said}.startsWith('bulk')")).await;
        page.press("Enter").await;
        page.until("the explorer has the queue", "location.search.startsWith('?q=queue%3Abulk&from=')").await;
        has_rows(&page, 1).await;

        // By a click as well. The range begins as much before the step as jobs were late.
        page.eval::<()>("history.back()").await;
        page.settles("/queues").await;
        page.click(&link("bulk, ")).await;
        has_rows(&page, 1).await;
        let address = page.address().await;
        let moment = |name: &str| {
            let (_, rest) = address.split_once(&format!("{name}=")).unwrap();
            rest.split('&').next().unwrap().replace("%3A", ":").parse::<Timestamp>().unwrap()
        };
        assert_eq!(moment("to"), at + step.width(), "{address}");
        let before = at - moment("from");
        assert!((14..=17).contains(&before.num_minutes()), "{address}");
    }

    // The other percentile, and a span without starts.
    page.visit("/queues?percentile=p50").await;
    page.has(&button("p50")).await;
    page.until("the table says so", "document.querySelector('.sheet table').ariaLabel.startsWith('p50')").await;
    page.click(&button("5 min").near("Lateness by queue")).await;
    page.reads("No job started in this time").await;
    page.assert_calm();
    drop(page);
    tickr.stop_broken("its job was written by hand").await;
}

/// Point at the first such cell until the expression holds. What is above the sheet may still come, and move the cell away
/// from the mouse.
async fn point_until(page: &Page, cell: &str, said: &str) {
    let place = format!(
        "(() => {{ const cell = document.querySelector('{cell}'); \
         cell.scrollIntoView({{block: 'center', inline: 'center', behavior: 'instant'}}); \
         const {{x, y, width, height}} = cell.getBoundingClientRect(); return [x + width / 2, y + height / 2]; }})()"
    );
    eventually("the numbers of the cell are said", || async {
        let (x, y): (f64, f64) = page.eval(&place).await;
        page.point(x, y).await;
        page.eval::<bool>(said).await.then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_heat_map_stands_still_while_a_cell_is_hovered() {
    let Some(browser) = Browser::shared().await else { return };
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    let step = SlotWidth::FiveSeconds;
    let at = step.floor(tickr.app.broker().store().clock().now()) - step.width() * 8;
    started_late(&tickr, step, at, "mail", Duration::from_secs(2)).await;
    let page = browser.page(&tickr.url("")).await;
    page.visit("/queues?span=5m").await;
    page.until("the row is there", &format!("{ROWS}.join() === 'mail'")).await;
    let said = "document.querySelector('.sheet .said').innerText.startsWith('mail')";
    point_until(&page, ".sheet td a", said).await;
    let html = "document.querySelector('.sheet tbody').innerHTML";
    let before: String = page.eval(html).await;
    started_late(&tickr, step, at, "slow", Duration::from_secs(200)).await;
    // Two readings that began after this moment have the new row.
    page.eval::<()>("void performance.clearResourceTimings()").await;
    page.until(
        "the history was read twice",
        "performance.getEntriesByType('resource').filter(({name}) => name.includes('/v1/history/queues')).length >= 2",
    )
    .await;
    assert_eq!(page.eval::<String>(html).await, before);
    page.point(1.0, 1.0).await;
    page.until("the new row is the first", &format!("{ROWS}.join() === 'slow,mail'")).await;

    // The runner that serves the page started no job. The overview tells how late those of the others were.
    let at = step.floor(tickr.app.broker().store().clock().now()) - step.width() * 2;
    started_late(&tickr, step, at, "", Duration::from_secs(7)).await;
    page.visit("/").await;
    page.until(
        "the lateness is that of all",
        "/p99\\s+[67]\\.\\d s · [67]\\.\\d s\\s+start after due, worst 5 s/i.test(__eye.text())",
    )
    .await;
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn charts_mark_what_happened_with_a_line_and_tell_it_in_a_list() {
    Box::pin(look_at_the_marks(&WIDTHS)).await;
}

async fn look_at_the_marks(widths: &[u32]) {
    let Some((tickr, browser)) = begin().await else { return };
    let reason = json!({"reason": "<b>ink</b> \u{202e}everywhere"});
    assert_eq!(tickr.post("/v1/queues/press/pause", reason).await.status, 200);
    let store = tickr.app.broker().store();
    let step = SlotWidth::FiveSeconds;
    let at = step.floor(store.clock().now()) - step.width() * 8;
    started_late(&tickr, step, at, "press", Duration::from_secs(2)).await;
    let page = browser.page(&tickr.url("")).await;
    let text = "anyone paused the queue press: <b>ink</b> \\u202eeverywhere";
    for width in widths.iter().copied() {
        page.size(width, 900).await;
        page.visit("/").await;
        // Both charts have the lines: the start of the runner and the pause, which may be one.
        let lines = "[...document.querySelectorAll('.chart-box .marks')]";
        page.until(
            "both charts are marked",
            &format!("{lines}.length === 2 && {lines}.every((all) => all.querySelector('.mark.bad'))"),
        )
        .await;
        let titles: Vec<String> = page
            .eval(&format!("{lines}.flatMap((all) => [...all.querySelectorAll('.mark.bad')].map((one) => one.title))"))
            .await;
        assert!(titles.len() == 2 && titles.iter().all(|title| title.contains(text)), "{titles:?}");
        // The pause was a moment ago, so its line is near the end of the plot and within it.
        let inside: bool = page
            .eval(&format!(
                "{lines}.every((all) => {{ const plot = all.parentElement.querySelector('.u-over').getBoundingClientRect(); \
                 const line = all.querySelector('.mark.bad').getBoundingClientRect(); \
                 return line.x > plot.x + 0.6 * plot.width && line.x <= plot.right + 1 && \
                 Math.abs(all.getBoundingClientRect().x - plot.x) < 2; }})"
            ))
            .await;
        assert!(inside, "{width} px");
        page.click(&button("marked above")).await;
        page.reads(text).await;
        page.reads("1 runner of version").await;
        let overflow = page.overflow().await;
        assert!(overflow.is_empty(), "{width} px: {overflow:?}");
        page.click(&link("anyone paused the queue press")).await;
        page.settles("/queues/press").await;
        page.until("its charts have the line", "document.querySelector('.chart-box .mark.bad') !== null").await;

        // The heat map has the same lines, and the charts of another queue have not.
        page.follow("/queues?span=5m").await;
        page.until("the heat map is marked", "document.querySelector('.sheet .mark.bad') !== null").await;
        let overflow = page.overflow().await;
        assert!(overflow.is_empty(), "{width} px: {overflow:?}");
        page.follow("/queues/default?span=5m").await;
        page.reads("marked above").await;
        page.until("no pause is marked", "document.querySelector('.chart-box .mark.bad') === null").await;
    }
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}
