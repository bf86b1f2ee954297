//! The page of an incident, and the calls that read a range of time: the same story for every reader and at any time.

use std::time::Duration;

use serde_json::{Value, json};
use tickr::config::Config;
use tickr::handlers::Registry;
use tickr::job::{Histogram, RunnerId, Series, SlotWidth, Tally, Timestamp};
use tickr::store::{Figures, Sample};

use crate::dashboard::{barriers, begin, letter};
use crate::support::browser::{Page, axe, button, link};
use crate::support::{TestApp, eventually};

/// Text that a page must not take for elements, and Markdown not for its own signs.
const HOSTILE: &str = "<img src=x onerror=alert(1)> | `code` *bold*";

/// Return script with the Markdown of the page.
const MARKDOWN: &str = "(document.querySelector('#incident-markdown')?.textContent ?? '')";

/// Configure a tickr that accepts jobs and runs none of them.
fn bystander(config: &mut Config) {
    config.queues = vec!["elsewhere".into()];
}

/// Return a time as addresses have it.
fn text(at: Timestamp) -> String {
    at.format("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
}

fn now(tickr: &TestApp) -> Timestamp {
    tickr.app.broker().store().clock().now()
}

fn seconds(seconds: i64) -> chrono::TimeDelta {
    chrono::TimeDelta::seconds(seconds)
}

/// Read a call that must succeed.
async fn read(tickr: &TestApp, path: &str) -> Value {
    let answer = tickr.get(path).await;
    assert_eq!(answer.status, 200, "{path}: {:#}", answer.body);
    answer.body
}

#[tokio::test(flavor = "multi_thread")]
async fn causes_of_a_range_are_counted_whatever_was_done_about_them_since() {
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    // Whole seconds, as the rows have them.
    let to = SlotWidth::FiveSeconds.floor(now(&tickr)) - seconds(60);
    let from = to - seconds(600);
    let row = |n: u32, cause: &str, kind: &str, queue: &str, at: Timestamp, status: &str| {
        let (at, done) = (at.format("%F %T"), "UTC_TIMESTAMP(6)");
        let rest = match status {
            "replayed" => format!("'replayed', {done}, UNHEX(LPAD('{n:x}', 32, 'f')), 'anyone', NULL"),
            "discarded" => format!("'discarded', {done}, NULL, 'anyone', 'no need'"),
            _ => format!("'open', '{at}', NULL, NULL, NULL"),
        };
        let id = format!("UNHEX(LPAD('{n:x}', 32, '0'))");
        format!("({id}, '{kind}', '{queue}', UNHEX('{cause}'), '{at}', 'error {n} of {kind}', {rest})")
    };
    let (old, new) = ("00000000000000aa", "00000000000000bb");
    let rows = [
        row(1, old, "mail", "post", from - seconds(5), "open"),
        row(2, old, "mail", "post", from, "open"),
        row(3, old, "mail", "post", from + seconds(20), "replayed"),
        row(4, old, "mail", "post", to - seconds(1), "discarded"),
        row(5, old, "mail", "post", to, "open"),
        row(6, new, "http", "default", from + seconds(30), "replayed"),
    ];
    tickr
        .sql(format!(
            "INSERT INTO dead_letters (job_id, kind, queue, fingerprint, failed_at, error, standing, since, \
             replayed_as, actor, reason) VALUES {}",
            rows.join(", ")
        ))
        .await;
    let range = format!("from={}&to={}", text(from), text(to));
    let shown = |answer: &Value| -> Vec<(String, u64, u64)> {
        let causes = answer["data"].as_array().unwrap().iter();
        causes
            .map(|cause| {
                let count = |name: &str| cause[name].as_u64().unwrap();
                (cause["fingerprint"].as_str().unwrap().to_owned(), count("failed"), count("failed_before"))
            })
            .collect()
    };
    let all = read(&tickr, &format!("/v1/dead-letters/causes?{range}")).await;
    let wanted = [(old.to_owned(), 3, 1), (new.to_owned(), 1, 0)];
    assert_eq!(shown(&all), wanted, "those at the ends of the range: {all:#}");
    assert_eq!((&all["more"], &all["capped"]), (&json!(false), &json!(false)));
    assert_eq!(all["data"][1]["known_since"], all["data"][1]["first_at"], "the cause is new: {all:#}");
    let narrow = format!("from={}&to={}", text(from + seconds(10)), text(to - seconds(20)));
    for (filter, wanted) in [
        ("", vec![(new.to_owned(), 1, 0), (old.to_owned(), 1, 2)]),
        ("&kind=http", vec![(new.to_owned(), 1, 0)]),
        ("&queue=post", vec![(old.to_owned(), 1, 2)]),
        ("&fingerprint=00000000000000bb", vec![(new.to_owned(), 1, 0)]),
        ("&kind=nothing", vec![]),
    ] {
        let answer = read(&tickr, &format!("/v1/dead-letters/causes?{narrow}{filter}")).await;
        let mut found = shown(&answer);
        found.sort_by(|one, other| other.0.cmp(&one.0));
        assert_eq!(found, wanted, "{filter}: {answer:#}");
        for cause in answer["data"].as_array().unwrap() {
            let began = cause["known_since"].as_str() >= cause["first_at"].as_str();
            assert_eq!(began, cause["fingerprint"] == new, "{cause:#}");
        }
    }
    // A younger job failed before the time before, when the oldest job had not failed yet.
    let younger = row(9, new, "http", "default", from - seconds(900), "open");
    tickr
        .sql(format!(
            "INSERT INTO dead_letters (job_id, kind, queue, fingerprint, failed_at, error, standing, since, \
             replayed_as, actor, reason) VALUES {younger}"
        ))
        .await;
    let known = read(&tickr, &format!("/v1/dead-letters/causes?{range}&kind=http")).await;
    assert_eq!(known["data"][0]["known_since"], text(from - seconds(900)), "{known:#}");
    for (query, pointer) in [
        (format!("from={}&to={}", text(to), text(from)), "to"),
        (format!("from={}&to={}", text(from - chrono::TimeDelta::days(8)), text(to)), "to"),
        (format!("from=yesterday&to={}", text(to)), "from"),
        (format!("{range}&kind=No%20Name"), "kind"),
        (format!("{range}&fingerprint=xyz"), "fingerprint"),
    ] {
        let refused = tickr.get(&format!("/v1/dead-letters/causes?{query}")).await;
        assert_eq!((refused.status, refused.pointers()), (422, vec![pointer]), "{query}");
    }
    tickr.stop_broken("its dead letters were written by hand").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn causes_are_bounded_among_many() {
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    let digits = "(SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL \
                  SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)";
    let to = now(&tickr) - seconds(60);
    let from = to - seconds(3_600);
    // One in 60 ms, of seventy causes, for the last hour of the range: more of them than one answer counts.
    let at = format!("'{}' - INTERVAL 60000 * n MICROSECOND", to.format("%F %T"));
    tickr
        .sql(format!(
            "INSERT INTO dead_letters (job_id, kind, queue, fingerprint, failed_at, error, since) SELECT \
             UNHEX(LPAD(HEX(1 + n), 32, '0')), 'mail', 'post', UNHEX(LPAD(HEX(1 + n % 70), 16, '0')), {at}, 'no', {at} \
             FROM (SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d AS n \
             FROM {digits} a, {digits} b, {digits} c, {digits} e, {digits} f WHERE f.d < 6) s"
        ))
        .await;
    let path = format!("/v1/dead-letters/causes?from={}&to={}", text(from), text(to + seconds(1)));
    for filter in ["", "&kind=nothing"] {
        let answer = read(&tickr, &format!("{path}{filter}")).await;
        let causes = answer["data"].as_array().unwrap().len();
        let wanted = if filter.is_empty() { (50, true) } else { (0, false) };
        assert_eq!((causes, answer["more"] == true), wanted, "{filter}");
        assert_eq!(answer["capped"], true, "{filter}");
    }
    tickr.stop_broken("its dead letters were written by hand").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_history_that_began_an_hour_ago_is_not_said_to_be_kept_for_a_week() {
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    let step = SlotWidth::Quarter;
    let at = step.floor(now(&tickr) - seconds(3_600));
    let figures = Figures::from(&Tally { accepted: 900, ..Tally::default() });
    let sample = Sample { step, at, series: Series::All, counted_to: at + step.width(), figures };
    let runner = RunnerId::from_stored("gone/1-00000000".to_owned());
    tickr.app.broker().store().write_samples(&runner, vec![sample]).await.unwrap();
    let marks = read(&tickr, "/v1/history/marks?span=1h").await;
    assert_eq!(marks["kept"]["history"], text(at), "{marks:#}");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn history_marks_and_audit_are_read_for_a_range_of_the_past() {
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    let store = tickr.app.broker().store();
    // Three days ago: minutes of that time are gone.
    let step = SlotWidth::Quarter;
    let at = step.floor(now(&tickr) - chrono::TimeDelta::days(3));
    let mut tally = Tally { accepted: 900, ..Tally::default() };
    tally.lateness.count(Duration::from_secs(70));
    let sample = |series: Series, at: Timestamp| Sample {
        step,
        at,
        series,
        counted_to: at + step.width(),
        figures: Figures::from(&tally),
    };
    let press = Series::Queue("press".parse().unwrap());
    let runner = RunnerId::from_stored("gone/1-00000000".to_owned());
    let samples = [sample(Series::All, at), sample(press, at), sample(Series::All, at - step.width())];
    store.write_samples(&runner, samples.to_vec()).await.unwrap();
    let sql_at = |after: i64| (at + seconds(after)).format("'%F %T'").to_string();
    let id = |after: i64| {
        let ms = (at + seconds(after)).timestamp_millis();
        format!("UNHEX(CONCAT(LPAD(HEX({ms}), 12, '0'), '70008000000000000001'))")
    };
    let act = |after: i64, action: &str| {
        format!("({}, {}, 'anyone', '{action}', 'press', '{{\"reason\": \"ink\"}}')", id(after), sql_at(after))
    };
    tickr
        .sql(format!(
            "INSERT INTO audit (id, at, actor, action, target, detail) VALUES {}, {}, {}; \
             INSERT INTO runners (id, version, kinds, queues, slots, lease_ms, started_at, heartbeat_at, stopped_at) \
             VALUES ('gone/1-00000000', '0.0.1', '[]', '[]', 1, 30000, {}, {}, {}), \
             ('gone/2-00000000', '0.0.1', '[]', '[]', 1, 30000, {}, {}, {}); \
             INSERT INTO index_changes (at, runner, what) VALUES ({}, 'gone/1-00000000', 'lost')",
            act(-1, "queue.pause"),
            act(60, "queue.pause"),
            act(900, "queue.resume"),
            // One was found dead, the other one stopped.
            sql_at(-9_000),
            sql_at(100),
            sql_at(170),
            sql_at(30),
            sql_at(200),
            sql_at(201),
            sql_at(50)
        ))
        .await;
    let range = format!("from={}&to={}", text(at), text(at + step.width()));
    let history = read(&tickr, &format!("/v1/history?{range}")).await;
    assert_eq!((&history["span"], &history["step_ms"]), (&json!("range"), &json!(900_000)), "{history:#}");
    assert_eq!(history["points"]["at_ms"], json!([at.timestamp_millis()]));
    assert_eq!(history["points"]["accepted"], json!([1.0]));
    let late = history["points"]["lateness_p99_ms"][0].as_f64().unwrap();
    assert!((late - 70_000.0).abs() <= 70_000.0 * Histogram::MAX_ERROR + 1.0, "{late}");
    let queues = read(&tickr, &format!("/v1/history/queues?{range}")).await;
    assert_eq!((&queues["queues"][0]["queue"], &queues["span"]), (&json!("press"), &json!("range")), "{queues:#}");
    let recent = format!("from={}&to={}", text(now(&tickr) - seconds(600)), text(now(&tickr)));
    assert_eq!(read(&tickr, &format!("/v1/history?{recent}")).await["step_ms"], 60_000);

    let marks = read(&tickr, &format!("/v1/history/marks?{range}")).await;
    let types: Vec<&str> =
        marks["marks"].as_array().unwrap().iter().map(|mark| mark["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["runners_started", "redis_lost", "queue_paused", "runners_lost"], "{marks:#}");
    assert_eq!((&marks["span"], &marks["from"]), (&json!("range"), &json!(text(at))));
    let lost = &marks["marks"][3];
    assert_eq!((&lost["runner"], &lost["runners"]), (&json!("gone/1-00000000"), &json!(1)), "{lost:#}");
    let kept = |name: &str| marks["kept"][name].as_str().unwrap().parse::<Timestamp>().unwrap();
    for name in ["history", "runners", "redis", "audit", "failed"] {
        assert!(kept(name) < at, "{name}: {marks:#}");
    }

    let audit = read(&tickr, &format!("/v1/audit?{range}")).await;
    let acts: Vec<&str> = audit["data"].as_array().unwrap().iter().map(|act| act["action"].as_str().unwrap()).collect();
    assert_eq!(acts, ["queue.pause"], "{audit:#}");
    let open = read(&tickr, &format!("/v1/audit?from={}&target=press&limit=1", text(at))).await;
    assert_eq!(open["data"][0]["action"], "queue.resume", "{open:#}");
    let cursor = open["next_cursor"].as_str().unwrap();
    let next = read(&tickr, &format!("/v1/audit?from={}&target=press&limit=1&cursor={cursor}", text(at))).await;
    assert_eq!((&next["data"][0]["action"], &next["next_cursor"]), (&json!("queue.pause"), &Value::Null), "{next:#}");
    let other = tickr.get(&format!("/v1/audit?target=press&limit=1&cursor={cursor}")).await;
    assert_eq!(other.code(), "invalid_cursor");

    for (path, pointer) in [
        (format!("/v1/history?{range}&span=1h"), "span"),
        (format!("/v1/history?from={}", text(at)), "to"),
        (format!("/v1/history/marks?to={}", text(at)), "from"),
        (format!("/v1/history/queues?from={}&to={}", text(at - seconds(90_000)), text(at)), "to"),
        ("/v1/audit?to=tomorrow".to_owned(), "to"),
    ] {
        let refused = tickr.get(&path).await;
        assert_eq!((refused.status, refused.pointers()), (422, vec![pointer]), "{path}");
    }
    tickr.stop().await;
}

/// Wait until the page tells of the story, and return its Markdown. A machine that stands still loses Redis for a moment,
/// which is part of the story then.
async fn told(page: &Page) -> String {
    page.until(
        "the verdict names each trouble",
        "/^4 jobs failed for good from 3 causes, 3 of them new · the runner gone\\/7-00000000 was lost · \
         (Redis was lost for [^·]+ · )*press was paused for \\d+/.test(document.querySelector('#incident-verdict')?.innerText.replace(/\\s+/g, ' '))",
    )
    .await;
    page.eval(MARKDOWN).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_an_incident_tells_the_same_in_every_tab_and_as_markdown() {
    let Some((tickr, browser)) = begin().await else { return };
    let from = now(&tickr) - seconds(600);
    let pause = json!({"reason": HOSTILE});
    assert_eq!(tickr.post("/v1/queues/press/pause", pause).await.status, 200);
    let returns = |to: &str| letter(&json!({"to": to, "fate": "returns"}));
    let fails = json!({"kind": "fail", "payload": {"permanent": true}});
    tickr.enqueue_many([returns("nora"), returns("nora"), returns(HOSTILE), fails]).await;
    tickr.until_count("SELECT COUNT(*) FROM dead_letters", 4).await;
    tickr
        .sql(format!(
            "INSERT INTO runners (id, version, kinds, queues, slots, lease_ms, started_at, heartbeat_at, stopped_at) \
             VALUES ('gone/7-00000000', '{}', '[]', '[]', 1, 30000, UTC_TIMESTAMP(6) - INTERVAL 2 HOUR, \
             UTC_TIMESTAMP(6) - INTERVAL 90 SECOND, UTC_TIMESTAMP(6))",
            env!("CARGO_PKG_VERSION")
        ))
        .await;
    let to = now(&tickr) + seconds(1);
    let range = format!("from={}&to={}", text(from), text(to));
    // Runners write every five seconds.
    eventually("the history has all jobs", || async {
        let answer = read(&tickr, &format!("/v1/history?{range}")).await;
        let (step, last) = (answer["step_ms"].as_f64().unwrap(), answer["last_ms"].as_f64().unwrap());
        let sum = |name: &str| {
            let rates = answer["points"][name].as_array().unwrap();
            let ms = |place: usize| if place + 1 < rates.len() { step } else { last };
            let parts = rates.iter().enumerate().map(|(place, rate)| rate.as_f64().unwrap() * ms(place) / 1e3);
            parts.sum::<f64>().round()
        };
        (sum("accepted") == 4.0 && sum("failed") == 4.0).then_some(())
    })
    .await;
    let causes = read(&tickr, &format!("/v1/dead-letters/causes?{range}")).await;

    let path = format!("/incident?{range}");
    let page = browser.page(&tickr.url("")).await;
    page.beforehand(
        "Object.defineProperty(navigator, 'clipboard', \
         {value: {writeText: async (text) => { window.copied = text; }}})",
    )
    .await;
    page.visit(&path).await;
    let markdown = told(&page).await;
    for cause in causes["data"].as_array().unwrap() {
        let (failed, kind) = (&cause["failed"], cause["kind"].as_str().unwrap());
        assert!(markdown.contains(&format!("- {failed} × `{kind}`: ")), "{cause:#} {markdown}");
        assert!(markdown.contains(cause["fingerprint"].as_str().unwrap()), "{markdown}");
    }
    for part in [
        "## Incident ",
        "about 4 jobs accepted, 0 completed, 4 attempts failed",
        "The runner gone/7-00000000 was lost.",
        "`queue.pause` `press`: ``<img src=x onerror=alert(1)> | `code` *bold*``",
        "All times are in UTC.",
    ] {
        // A text with the sign of code in it has spaces beside its signs.
        let part = part.replace("``<", "`` <").replace("*``", "* ``");
        assert!(markdown.contains(&part), "{part}: {markdown}");
    }
    let made: usize = page.eval("document.querySelectorAll('img[src=x], [onerror]').length").await;
    assert_eq!(made, 0, "text became elements");
    for name in ["Copy as Markdown", "Copy link"] {
        page.click(&button(name)).await;
        let wanted = if name == "Copy link" { "location.href" } else { MARKDOWN };
        page.until(&format!("{name} copies it"), &format!("window.copied === {wanted}")).await;
    }

    // By link in a fresh tab, with nothing in common but the server.
    let other = browser.page(&tickr.url("")).await;
    other.visit(&path).await;
    told(&other).await;
    // Both read again every 15 seconds: a loss of Redis is recorded after a while.
    eventually("both tell the same", || async {
        (other.eval::<String>(MARKDOWN).await == page.eval::<String>(MARKDOWN).await).then_some(())
    })
    .await;
    drop(other);

    let axe = axe();
    if let Some(axe) = &axe {
        page.aside::<Value>(&format!("{axe};null")).await;
    }
    page.eval::<()>("void (document.querySelector('#incident-text').open = true)").await;
    // Themes differ only in colours, so each width has one of them.
    for (width, theme) in [(390, Some("dark")), (1_440, Some("light")), (2_560, None)] {
        page.size(width, 900).await;
        let overflow = page.overflow().await;
        assert!(overflow.is_empty(), "{width} px: {overflow:?}");
        if let Some(theme) = theme.filter(|_| axe.is_some()) {
            page.theme(theme).await;
            assert_eq!(page.aside::<Vec<String>>(&barriers(false)).await, [""; 0], "{width} px, {theme}");
        }
    }
    page.size(1_280, 900).await;

    // Only one queue, and one cause.
    page.follow(&format!("{path}&queue=press")).await;
    page.until(
        "the story is that of the queue",
        "/^the runner gone\\/7-00000000 was lost · (Redis was lost for [^·]+ · )*press was paused for/\
         .test(document.querySelector('#incident-verdict')?.innerText.replace(/\\s+/g, ' '))",
    )
    .await;
    page.click(&link("Without the queue press")).await;
    told(&page).await;
    let cause = causes["data"][0]["fingerprint"].as_str().unwrap();
    page.visit(&format!("/dead-letters/{cause}")).await;
    page.click(&button("Incident page")).await;
    page.until(
        "the page of the cause is there",
        &format!("location.pathname === '/incident' && location.search.includes('cause={cause}')"),
    )
    .await;
    page.reads("2 jobs failed for good from 1 cause").await;
    // The number leads to the jobs that it counts.
    page.visit(&format!("{path}&queue=default&kind=letter&cause={cause}")).await;
    page.reads("2 jobs failed for good from 1 cause").await;
    let filters: Vec<String> = page
        .eval(
            "[...document.querySelectorAll('#incident-verdict a, .figures a, [data-fingerprint] td.bold a')] \
             .map((a) => new URL(a.href).searchParams.get('q')).filter((q) => q?.includes('finished:'))",
        )
        .await;
    assert_eq!(filters.len(), 3, "{filters:?}");
    for filter in filters {
        assert!(filter.contains(&format!("queue:default kind:letter group:{cause} finished:")), "{filter}");
    }
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}

/// A bulk operation records a change for each of its jobs, more than the page lists.
#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_an_incident_tells_of_pauses_before_a_bulk_operation_of_many_jobs() {
    let Some((tickr, browser)) = begin().await else { return };
    let from = now(&tickr) - seconds(60);
    let jobs = (0..300).map(|_| json!({"kind": "noop", "queue": "press", "delay_ms": 7_200_000}));
    tickr.enqueue_many(jobs).await;
    assert_eq!(tickr.post("/v1/queues/press/pause", json!({"reason": "ink"})).await.status, 200);
    assert_eq!(tickr.post("/v1/queues/press/resume", json!({})).await.status, 200);
    let cancel = json!({"action": "cancel", "filter": {"queue": "press"}});
    assert_eq!(tickr.post("/v1/operations", cancel).await.status, 202);
    tickr.until_count("SELECT COUNT(*) FROM audit WHERE action = 'job.cancel'", 300).await;
    let to = now(&tickr) + seconds(1);
    let page = browser.page(&tickr.url("")).await;
    page.visit(&format!("/incident?from={}&to={}", text(from), text(to))).await;
    page.reads("press was paused for").await;
    page.until("the operation is one action", &format!("{MARKDOWN}.includes('300 jobs by operation')")).await;
    let markdown: String = page.eval(MARKDOWN).await;
    assert!(markdown.contains("`queue.pause` `press`: `ink`"), "{markdown}");
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_an_incident_tells_of_a_pause_around_the_whole_range() {
    let Some((tickr, browser)) = begin().await else { return };
    for queue in ["press", "post"] {
        assert_eq!(tickr.post(&format!("/v1/queues/{queue}/pause"), json!({"reason": "ink"})).await.status, 200);
    }
    assert_eq!(tickr.post("/v1/queues/post/resume", json!({})).await.status, 200);
    // These actions were an hour ago: their times say so, and their ids, which begin with the time.
    tickr
        .sql(
            "UPDATE audit SET at = at - INTERVAL 1 HOUR, \
             id = UNHEX(CONCAT(LPAD(HEX(CAST(CONV(LEFT(HEX(id), 12), 16, 10) AS UNSIGNED) - 3600000), 12, '0'), \
             SUBSTRING(HEX(id), 13)))"
                .to_owned(),
        )
        .await;
    assert_eq!(tickr.post("/v1/queues/press/resume", json!({})).await.status, 200);
    let from = now(&tickr) - seconds(1_800);
    let range = format!("from={}&to={}", text(from), text(from + seconds(600)));
    let marks = read(&tickr, &format!("/v1/history/marks?{range}")).await;
    let before = &marks["paused_before"];
    assert_eq!((before.as_array().unwrap().len(), &before[0]["queue"]), (1, &json!("press")), "{marks:#}");
    assert_eq!(read(&tickr, &format!("/v1/history/marks?{range}&queue=post")).await["paused_before"], json!([]));
    let page = browser.page(&tickr.url("")).await;
    page.visit(&format!("/incident?{range}")).await;
    page.reads("press was paused for 10 m").await;
    page.until("the Markdown has it", &format!("{MARKDOWN}.includes('paused during the whole range, 10 m')")).await;
    page.reads_not("post was paused").await;
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_an_incident_tells_of_losses_before_more_starts_than_are_read() {
    let Some((tickr, browser)) = begin().await else { return };
    let to = now(&tickr);
    let before = |minutes: i64| (to - seconds(60 * minutes)).format("'%F %T'").to_string();
    let runner = |name: &str, started: &str, beat: &str, stopped: &str| {
        format!("('{name}-00000000', '0.0.1', '[]', '[]', 1, 30000, {started}, {beat}, {stopped})")
    };
    // A lost runner, and then a start every minute.
    let mut rows = vec![runner("gone/1", &before(600), &before(120), &before(110))];
    rows.extend((1..=60).map(|n| runner(&format!("new/{n}"), &before(n), &before(n), &before(n))));
    tickr
        .sql(format!(
            "INSERT INTO runners (id, version, kinds, queues, slots, lease_ms, started_at, heartbeat_at, stopped_at) \
             VALUES {}; INSERT INTO index_changes (at, runner, what) VALUES ({}, 'gone/1-00000000', 'lost'), \
             ({}, 'gone/1-00000000', 'back')",
            rows.join(", "),
            before(100),
            before(90)
        ))
        .await;
    let page = browser.page(&tickr.url("")).await;
    page.visit(&format!("/incident?from={}&to={}", text(to - seconds(10_000)), text(to))).await;
    page.reads("the runner gone/1-00000000 was lost").await;
    page.reads("Redis was lost for 10 m").await;
    page.reads("Not all events of runners, Redis and queues were read").await;
    page.until("the Markdown says so", &format!("{MARKDOWN}.includes('Not all events of runners')")).await;
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_an_incident_tells_of_late_jobs_before_the_history_of_queues() {
    let Some((tickr, browser)) = begin().await else { return };
    let step = SlotWidth::Quarter;
    let at = step.floor(now(&tickr) - chrono::TimeDelta::days(3));
    let mut tally = Tally { accepted: 900, ..Tally::default() };
    tally.lateness.count(Duration::from_secs(7_200));
    let sample =
        Sample { step, at, series: Series::All, counted_to: at + step.width(), figures: Figures::from(&tally) };
    let runner = RunnerId::from_stored("gone/1-00000000".to_owned());
    tickr.app.broker().store().write_samples(&runner, vec![sample]).await.unwrap();
    let page = browser.page(&tickr.url("")).await;
    page.visit(&format!("/incident?from={}&to={}", text(at - seconds(3_600)), text(now(&tickr)))).await;
    page.reads("jobs started up to").await;
    page.reads("Queues are judged by the last 24 hours of this range only.").await;
    page.until("the Markdown says so", &format!("{MARKDOWN}.includes('Queues are judged by the last 24 hours')")).await;
    page.reads_not("Nothing stood out").await;
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_without_moments_gets_them_once_and_keeps_them() {
    let Some((tickr, browser)) = begin().await else { return };
    let page = browser.page(&tickr.url("")).await;
    page.visit("/jobs?span=24h").await;
    page.press_with("k", 2).await;
    page.until("the palette is open", "document.activeElement?.closest('.palette') !== null").await;
    page.types("incident").await;
    page.until("the page is first", "document.querySelector('.palette li.at')?.innerText.startsWith('Incident')").await;
    page.press("Enter").await;
    page.until(
        "the range has two moments, a day apart",
        "location.pathname === '/incident' && (() => { const words = new URLSearchParams(location.search); \
         return Date.parse(words.get('to')) - Date.parse(words.get('from')) === 86400000 && !words.has('span'); })()",
    )
    .await;
    // A machine that stands still loses Redis for a moment.
    let told = "/^(Nothing stood out in this range|Redis was lost for )/\
                .test(document.querySelector('#incident-verdict')?.innerText)";
    page.until("the page tells of the range", told).await;
    let address = page.address().await;
    page.visit(&address).await;
    page.until("the page tells of the range", told).await;
    assert_eq!(page.address().await, address);

    // What is not kept any more is said.
    let month = chrono::TimeDelta::days(30);
    let (from, to) = (text(now(&tickr) - month), text(now(&tickr) - month + seconds(3_600)));
    page.visit(&format!("/incident?from={from}&to={to}")).await;
    page.reads("Not kept any more for this range: figures, charts and queues").await;
    page.reads_not("failed jobs and their causes.").await;
    page.visit(&format!("/incident?from={from}&to={}", text(now(&tickr)))).await;
    page.reads("The page shows at most 7 days").await;
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}
