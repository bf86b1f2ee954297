//! Calls that read a range of time: the same story at any time.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tickr::config::Config;
use tickr::handlers::Registry;
use tickr::job::{Histogram, RunnerId, Series, SlotWidth, Tally, Timestamp};
use tickr::store::{Figures, Sample};

use crate::support::TestApp;

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
async fn causes_are_bounded_and_read_quickly_among_many() {
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    let digits = "(SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL \
                  SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)";
    let to = now(&tickr) - seconds(60);
    let from = to - seconds(3_600);
    // One in 36 ms, of seventy causes, for the last hour of the range.
    let at = format!("'{}' - INTERVAL 36000 * n MICROSECOND", to.format("%F %T"));
    tickr
        .sql(format!(
            "INSERT INTO dead_letters (job_id, kind, queue, fingerprint, failed_at, error, since) SELECT \
             UNHEX(LPAD(HEX(1 + n), 32, '0')), 'mail', 'post', UNHEX(LPAD(HEX(1 + n % 70), 16, '0')), {at}, 'no', {at} \
             FROM (SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d AS n \
             FROM {digits} a, {digits} b, {digits} c, {digits} e, {digits} f) s"
        ))
        .await;
    let path = format!("/v1/dead-letters/causes?from={}&to={}", text(from), text(to + seconds(1)));
    for filter in ["", "&kind=nothing"] {
        let mut took = Vec::new();
        for _ in 0..5 {
            let began = Instant::now();
            let answer = read(&tickr, &format!("{path}{filter}")).await;
            took.push(began.elapsed());
            let causes = answer["data"].as_array().unwrap().len();
            let wanted = if filter.is_empty() { (50, true) } else { (0, false) };
            assert_eq!((causes, answer["more"] == true), wanted, "{filter}");
            assert_eq!(answer["capped"], true, "{filter}");
        }
        took.sort_unstable();
        println!("causes{filter}: {:?}", took[2]);
        assert!(took[2] < Duration::from_secs(1), "{filter}: {took:?}");
    }
    tickr.stop_broken("its dead letters were written by hand").await;
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
