//! The survey of the jobs of a filter: exact for few jobs, an honest estimate for many, and bounded for any number.

use serde_json::{Value, json};
use tickr::job::State;

use crate::search::{encoded, rows_read_by};
use crate::support::TestApp;

/// Return the values of a field with their numbers.
fn values(survey: &Value, field: &str) -> Vec<(String, u64)> {
    let facets = survey["facets"].as_array().unwrap();
    let values = facets.iter().find(|facet| facet["field"] == field).map(|facet| facet["values"].as_array().unwrap());
    let pair = |value: &Value| (value["value"].as_str().unwrap().to_owned(), value["jobs"].as_u64().unwrap());
    values.into_iter().flatten().map(pair).collect()
}

/// Return how many jobs of a state the bars have.
fn in_state(survey: &Value, state: &str) -> u64 {
    survey["bars"].as_array().unwrap().iter().filter_map(|bar| bar["states"][state].as_u64()).sum()
}

fn pairs<const N: usize>(pairs: [(&str, u64); N]) -> Vec<(String, u64)> {
    pairs.map(|(value, jobs)| (value.to_owned(), jobs)).to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn few_jobs_are_counted_exactly_by_time_state_and_facts() {
    let tickr = TestApp::start().await;
    let none = tickr.get("/v1/jobs/survey").await.body;
    assert_eq!((&none["jobs"], &none["exact"], &none["facets"]), (&json!(0), &json!(true), &json!([])), "{none:#}");

    let later = |n: u64| json!({"kind": "noop", "queue": "slow", "delay_ms": 86_400_000 + n, "tags": ["tenant:42"]});
    tickr.enqueue_many((0..5).map(later)).await;
    tickr.enqueue(json!({"kind": "noop", "delay_ms": 86_400_000, "order_key": "conv-7", "limit_key": "cust/1"})).await;
    tickr.enqueue(json!({"kind": "noop", "delay_ms": 86_400_000, "unique_key": "once"})).await;
    let done = tickr.enqueue(json!({"kind": "noop", "tags": ["tenant:42", "vip"]})).await;
    tickr.until(done, State::Completed).await;
    let failed = tickr.enqueue(json!({"kind": "fail", "payload": {"permanent": true}})).await;
    tickr.until(failed, State::Failed).await;
    let mended = json!({"kind": "fail", "payload": {"times": 2}, "retry": {"base_ms": 1}, "max_attempts": 5});
    let mended = tickr.enqueue(mended).await;
    tickr.until(mended, State::Completed).await;

    let all = tickr.get("/v1/jobs/survey").await.body;
    assert_eq!((&all["jobs"], &all["exact"], &all["looked_at"]), (&json!(10), &json!(true), &json!(10)), "{all:#}");
    assert_eq!(values(&all, "state"), pairs([("waiting", 7), ("completed", 2), ("failed", 1)]));
    assert_eq!(values(&all, "kind"), pairs([("noop", 8), ("fail", 2)]));
    assert_eq!(values(&all, "queue"), pairs([("default", 5), ("slow", 5)]));
    assert_eq!(values(&all, "tag"), pairs([("tenant:42", 6), ("vip", 1)]));
    assert_eq!(values(&all, "attempt"), pairs([("0", 7), ("1", 2), ("3", 1)]));
    assert_eq!(values(&all, "order"), pairs([("conv-7", 1)]));
    assert_eq!(values(&all, "limit"), pairs([("cust/1", 1)]));
    assert_eq!(values(&all, "unique_key"), pairs([("once", 1)]));
    let group = tickr.get("/v1/dead-letters/groups").await.body["data"][0]["fingerprint"].as_str().unwrap().to_owned();
    assert_eq!(values(&all, "group"), vec![(group.clone(), 1)]);
    let runners = values(&all, "runner");
    assert_eq!((runners.len(), runners[0].1), (1, 3), "{all:#}");
    assert!(all["bars"].as_array().unwrap().iter().all(|bar| bar["exact"] == true && bar["looked"] == true));
    assert_eq!(["waiting", "completed", "failed"].map(|state| in_state(&all, state)), [7, 2, 1]);

    // Each value is a word of a filter that finds as many jobs.
    for facet in all["facets"].as_array().unwrap() {
        for value in facet["values"].as_array().unwrap() {
            let word = format!("{}:{}", facet["field"].as_str().unwrap(), value["value"].as_str().unwrap());
            let path = format!("/v1/jobs/count?q={}", encoded(&word));
            assert_eq!(tickr.get(&path).await.body["count"], value["jobs"], "{word}");
        }
    }
    let narrow = tickr.get(&format!("/v1/jobs/survey?q={}", encoded("queue:slow -tag:vip"))).await.body;
    assert_eq!((&narrow["jobs"], values(&narrow, "state")), (&json!(5), pairs([("waiting", 5)])));

    // The bars cover the range of the filter, and begin at round times.
    let day = "/v1/jobs/survey?bars=24&created_after=2026-03-01T00:30:00Z&created_before=2026-03-02T00:30:00Z";
    let day = tickr.get(day).await.body;
    assert_eq!((&day["jobs"], &day["step_ms"]), (&json!(0), &json!(3_600_000)), "{day:#}");
    assert_eq!(day["bars"].as_array().unwrap().len(), 25);
    assert_eq!((&day["from"], &day["to"]), (&json!("2026-03-01T00:00:00.000Z"), &json!("2026-03-02T00:30:00.000Z")));
    for (query, pointer) in [("bars=0", "bars"), ("bars=121", "bars"), ("q=bogus:1", "q"), ("state=done", "state")] {
        let answer = tickr.get(&format!("/v1/jobs/survey?{query}")).await;
        assert_eq!((answer.status, answer.pointers()), (422, vec![pointer]), "{query}");
    }
    tickr.stop().await;
}

/// Ticks go earlier than failed jobs, and the filter finds the jobs of a schedule by their ticks.
#[tokio::test(flavor = "multi_thread")]
async fn a_survey_counts_for_a_schedule_the_jobs_that_its_filter_finds() {
    let tickr = TestApp::start().await;
    for name in ["yearly", "leap"] {
        let put = tickr.put(&format!("/v1/schedules/{name}"), json!({"cron": "0 0 1 1 *", "kind": "noop"})).await;
        assert_eq!(put.status, 201, "{:#}", put.body);
    }
    for name in ["yearly", "yearly", "yearly", "leap"] {
        let fired = tickr.post(&format!("/v1/schedules/{name}/trigger"), json!({})).await;
        assert_eq!(fired.status, 201, "{:#}", fired.body);
    }
    tickr.until_idle().await;
    let all = tickr.get("/v1/jobs/survey").await.body;
    assert_eq!(values(&all, "schedule"), pairs([("yearly", 3), ("leap", 1)]));
    tickr.sql("DELETE FROM ticks WHERE schedule = 'leap'; DELETE FROM ticks WHERE outcome = 'fired' ORDER BY job_id LIMIT 1").await;
    let late = tickr.get("/v1/jobs/survey").await.body;
    assert_eq!(values(&late, "schedule"), pairs([("yearly", 2)]), "{late:#}");
    for (name, jobs) in [("yearly", 2), ("leap", 0)] {
        assert_eq!(tickr.get(&format!("/v1/jobs/count?schedule={name}")).await.body["count"], jobs, "{name}");
    }
    assert_eq!(late["jobs"], 4);
    tickr.stop().await;
}

/// Return how many of the hundred thousand jobs were accepted in the bars that a survey looked at. On a busy machine a
/// call has no time for the older ones, and says so.
fn accepted_in(survey: &Value) -> u64 {
    let step = survey["step_ms"].as_u64().unwrap() / 1_000;
    let bars = survey["bars"].as_array().unwrap().iter().filter(|bar| bar["looked"] == true);
    let begin = |bar: &Value| -> u64 {
        let from: chrono::DateTime<chrono::Utc> = bar["from"].as_str().unwrap().parse().unwrap();
        from.timestamp().unsigned_abs()
    };
    let of_bar =
        |from: u64| (from + step).clamp(1_780_000_100, 1_780_100_000) - from.clamp(1_780_000_100, 1_780_100_000);
    let jobs = bars.map(|bar| of_bar(begin(bar))).sum();
    assert!(jobs > 10_000, "{:#}", survey["bars"]);
    jobs
}

/// The jobs of rows that waited in an outbox are accepted at once.
#[tokio::test(flavor = "multi_thread")]
async fn many_jobs_with_distant_ids_are_estimated_in_the_bar_of_their_acceptance() {
    let tickr = TestApp::start().await;
    crate::dashboard_use::insert_waiting(&tickr, "noop", "bulk", 0, 20_000).await;
    tickr
        .sql(
            "UPDATE jobs SET created_at = '2026-08-01 10:30:00'; \
             INSERT INTO distant_ids (job_id, created_at) SELECT id, created_at FROM jobs",
        )
        .await;
    let hour = "/v1/jobs/survey?created_after=2026-08-01T10:00:00Z&created_before=2026-08-01T11:00:00Z";
    let survey = tickr.get(hour).await.body;
    assert_eq!((&survey["exact"], &survey["looked_at"]), (&json!(false), &json!(20_000)), "{survey:#}");
    let bars = survey["bars"].as_array().unwrap().iter().filter(|bar| bar["states"] != json!({}));
    let begins: Vec<&str> = bars.map(|bar| bar["from"].as_str().unwrap()).collect();
    assert_eq!(begins, ["2026-08-01T10:30:00.000Z"]);
    let jobs = in_state(&survey, "waiting");
    assert!(jobs.abs_diff(20_000) < 5_000, "{jobs}");
    tickr.stop_broken("its jobs were written by hand").await;
}

/// A hundred thousand jobs, one each second. One in four has a payload of its own, and 37 of them are of another kind.
#[tokio::test(flavor = "multi_thread")]
async fn many_jobs_are_estimated_from_a_bounded_number_of_rows_which_the_answer_says() {
    let tickr = TestApp::start_alone(|_| {}, |_| {}).await;
    crate::dashboard_use::insert_waiting(&tickr, "sleep", "orphans", 0, 37).await;
    crate::dashboard_use::insert_waiting(&tickr, "noop", "bulk", 100, 99_900).await;
    tickr
        .sql("UPDATE jobs SET unique_key = 'fourth' WHERE MOD(CONV(SUBSTR(HEX(id), 1, 12), 16, 10) / 1000, 4) = 0")
        .await;
    let range = "created_after=2026-05-28&created_before=2026-05-31";
    let path = format!("/v1/jobs/survey?{range}");
    let all = tickr.get(&path).await.body;
    let near = |jobs: u64, wanted: u64| jobs.abs_diff(wanted) * 100 <= wanted * 25;
    assert_eq!(all["exact"], false);
    assert!(near(in_state(&all, "waiting"), accepted_in(&all)), "{:#}", all["bars"]);
    assert_eq!(all["jobs"].as_u64().unwrap(), in_state(&all, "waiting"));
    let looked_at = all["looked_at"].as_u64().unwrap();
    assert!((5_000..150_000).contains(&looked_at), "{looked_at} rows were looked at");
    assert!(rows_read_by(&tickr, &path, 200_000).await < 200_000);
    let fourth = tickr.get(&format!("{path}&unique_key=fourth")).await.body;
    assert!(near(fourth["jobs"].as_u64().unwrap(), accepted_in(&fourth) / 4), "{:#}", fourth["bars"]);

    // An index finds the few, so they are exact; and so is a narrower range of time.
    let few = tickr.get(&format!("{path}&q={}", encoded("-kind:noop"))).await.body;
    assert_eq!(
        (&few["jobs"], &few["exact"], values(&few, "queue")),
        (&json!(37), &json!(true), pairs([("orphans", 37)]))
    );
    let hour =
        tickr.get("/v1/jobs/survey?created_after=2026-05-29T10:00:00Z&created_before=2026-05-29T11:00:00Z").await;
    assert_eq!((&hour.body["jobs"], &hour.body["exact"]), (&json!(3_600), &json!(true)), "{:#}", hour.body);
    let bars = hour.body["bars"].as_array().unwrap();
    assert!(bars.len() == 60 && bars.iter().all(|bar| bar["states"]["waiting"] == 60), "{:#}", hour.body["bars"]);
    tickr.stop_broken("its jobs were written by hand").await;
}
