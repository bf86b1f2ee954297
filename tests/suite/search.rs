//! Search: every filter finds exactly its jobs, whatever text they contain, and reads a bounded number of rows.

use serde_json::{Value, json};
use tickr::handlers::Registry;
use tickr::job::{JobId, State};
use uuid::Uuid;

use crate::support::{Owed, TestApp, eventually, http};

/// So far ahead that no job starts during a test.
const LATER_MS: u64 = 86_400_000;

/// Encode text for a URL.
pub(crate) fn encoded(text: &str) -> String {
    text.bytes().map(|b| format!("%{b:02X}")).collect()
}

/// Return the jobs of a filter, read page by page, oldest first.
async fn found(tickr: &TestApp, filter: &str) -> Vec<JobId> {
    let mut seen = tickr.walk(filter, 3).await;
    seen.reverse();
    let count = tickr.get(&format!("/v1/jobs/count?{filter}")).await;
    assert_eq!(count.body, json!({"count": seen.len(), "capped": false}), "{filter}");
    seen
}

async fn by_words(tickr: &TestApp, words: &str) -> Vec<JobId> {
    found(tickr, &format!("q={}", encoded(words))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_filter_finds_its_jobs_and_no_others() {
    let queues = ["default", "a", "b"].map(str::to_owned);
    let tickr = TestApp::start_with(|config| config.queues = queues.into(), Registry::new()).await;
    let later = |kind: &str, queue: &str, more: Value| {
        let mut job = json!({"kind": kind, "queue": queue, "delay_ms": LATER_MS});
        job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        job
    };
    let plain = tickr.enqueue(later("noop", "a", json!({}))).await;
    let tagged = tickr.enqueue(later("noop", "a", json!({"tags": ["tenant:42", "x", "x"]}))).await;
    let both = tickr.enqueue(later("noop", "b", json!({"tags": ["tenant:42", "y"]}))).await;
    let keyed = tickr.enqueue(later("noop", "b", json!({"unique_key": "order-7"}))).await;
    let soon = tickr.enqueue(later("sleep", "b", json!({"payload": {"ms": 1}, "delay_ms": 3_600_000}))).await;
    let cancelled = tickr.enqueue(later("noop", "a", json!({"tags": ["tenant:42"]}))).await;
    tickr.post(&format!("/v1/jobs/{cancelled}/cancel"), json!({})).await;
    let failed = tickr.enqueue(json!({"kind": "fail", "payload": {"permanent": true}})).await;
    tickr.until(failed, State::Failed).await;
    let mended = tickr
        .enqueue(json!({"kind": "fail", "payload": {"times": 1}, "unique_key": "order-7",
        "retry": {"base_ms": 1}}))
        .await;
    tickr.until(mended, State::Completed).await;

    let job = tickr.job(tagged).await;
    assert_eq!(job["tags"], json!(["tenant:42", "x"]));
    assert_eq!(tickr.job(plain).await.get("tags"), None);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM job_tags").await, 5);

    for (words, wanted) in [
        ("", vec![plain, tagged, both, keyed, soon, cancelled, failed, mended]),
        ("state:waiting", vec![plain, tagged, both, keyed, soon]),
        ("kind:sleep", vec![soon]),
        ("queue:b", vec![both, keyed, soon]),
        ("queue:b kind:noop", vec![both, keyed]),
        ("state:failed", vec![failed]),
        ("state:completed", vec![mended]),
        ("state:executing", vec![]),
        ("tag:tenant:42", vec![tagged, both, cancelled]),
        ("tag:tenant:42 tag:y", vec![both]),
        ("tag:y tag:tenant:42 state:waiting", vec![both]),
        ("tag:tenant:42 state:cancelled", vec![cancelled]),
        ("tag:TENANT:42", vec![]),
        ("unique_key:order-7", vec![keyed, mended]),
        ("unique_key:order-7 kind:noop state:waiting", vec![keyed]),
        ("unique_key:order-7 kind:noop state:completed", vec![]),
        ("unique_key:ORDER-7", vec![]),
        ("error:\"REJECTED on\"", vec![failed]),
        ("error:\"attempt 1\"", vec![mended]),
        ("error:%", vec![]),
        ("due:<2h state:waiting", vec![soon]),
        ("due:>2h state:waiting", vec![plain, tagged, both, keyed]),
        ("due:<2h", vec![soon, failed, mended]),
        ("finished:<1h", vec![cancelled, failed, mended]),
        ("finished:<1h kind:noop", vec![cancelled]),
        ("finished:>1h", vec![]),
        ("created:<1h kind:sleep", vec![soon]),
        ("created:>1h", vec![]),
        ("created:<2020-01-01", vec![]),
        ("payload.ms:1", vec![soon]),
    ] {
        assert_eq!(by_words(&tickr, words).await, wanted, "{words}");
    }
    assert_eq!(by_words(&tickr, &format!("{plain} id:{failed}")).await, [plain, failed]);
    assert_eq!(by_words(&tickr, &format!("{plain} {failed} state:failed")).await, [failed]);

    // The same filters by name.
    for (query, wanted) in [
        ("tag=tenant%3A42&state=waiting", vec![tagged, both]),
        ("unique_key=order-7&kind=fail", vec![mended]),
        ("error=rejected", vec![failed]),
        ("created_after=2020-01-01&queue=a", vec![plain, tagged, cancelled]),
        ("created_before=2020-01-01T00:00:00Z", vec![]),
        ("finished_after=2020-01-01&state=cancelled", vec![cancelled]),
        ("due_before=2020-01-01", vec![]),
        ("queue=a&q=tag%3Ax", vec![tagged]),
    ] {
        assert_eq!(found(&tickr, query).await, wanted, "{query}");
    }

    // The time of creation is exact and comes from the store's clock, not from the ids that hosts make.
    let created = tickr.job(both).await["created_at"].as_str().unwrap().to_owned();
    let after = found(&tickr, &format!("created_after={created}&state=waiting")).await;
    assert!(after.contains(&both) && after.contains(&soon) && !after.contains(&plain), "{after:?}");
    // The creation time of this job is a day away from the time in its id, as with a host whose clock is wrong. Every
    // filter finds it, except a range of creation times that does not reach its id.
    tickr
        .sql(format!(
            "UPDATE jobs SET created_at = created_at - INTERVAL 1 DAY WHERE id = x'{}'",
            plain.uuid().simple()
        ))
        .await;
    assert_eq!(by_words(&tickr, "created:<1h queue:a state:waiting").await, [tagged]);

    // A retried job has an old end in its ledger, and is found by its current state.
    assert_eq!(tickr.post(&format!("/v1/jobs/{cancelled}/retry"), json!({})).await.status, 200);
    tickr.until(cancelled, State::Completed).await;
    assert_eq!(by_words(&tickr, "state:cancelled").await, []);
    assert_eq!(by_words(&tickr, "state:completed").await, [cancelled, mended]);
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn payloads_are_searched_by_value_whatever_stands_in_them() {
    let tickr = TestApp::start().await;
    let payloads = [
        r#"{"user":{"id":42}}"#,
        r#"{"user":{"id":"42"}}"#,
        r#"{"user":{"id":42.0}}"#,
        r#"{"user":{"id":"forty-two"}}"#,
        r#"{"user":{"id":9007199254740993}}"#,
        r#"{"user":{"id":9007199254740992}}"#,
        r#"{"user":{"id":true}}"#,
        r#"{"user":{"id":"true"}}"#,
        r#"{"user":{"id":null}}"#,
        r#"{"user":{}}"#,
        r#"{"user":{"id":["x"]}}"#,
        r#"{"items":[{"sku":"a"},{"sku":"größe \"b\" \\ '"}]}"#,
        r#"{"odd key":1,"a.b":2,"') OR 1=1 -- ":3,"*":4}"#,
        r#"{"user":{"id":"x "}}"#,
        r#"{"user":{"id":"\ud83d\ude00"}}"#,
    ];
    let mut ids = Vec::new();
    for payload in payloads {
        // The text is sent as it is, because a JSON library would rewrite the numbers.
        let body = format!(r#"{{"kind":"noop","delay_ms":{LATER_MS},"payload":{payload}}}"#);
        let client = http();
        let sent = client.post(tickr.url("/v1/jobs")).header("content-type", "application/json").body(body);
        let answer: Value = sent.send().await.unwrap().json().await.unwrap();
        ids.push(answer["id"].as_str().unwrap_or_else(|| panic!("{payload}: {answer:#}")).parse::<JobId>().unwrap());
    }
    let smile = "payload.user.id:😀";
    for (words, places) in [
        ("payload.user.id:42", vec![0, 1, 2]),
        ("payload.user.id:\"42\"", vec![1]),
        ("payload.user.id:forty-two", vec![3]),
        ("payload.user.id:FORTY-TWO", vec![]),
        ("payload.user.id:9007199254740993", vec![4]),
        ("payload.user.id:true", vec![6, 7]),
        ("payload.user.id:\"true\"", vec![7]),
        ("payload.user.id:null", vec![8]),
        ("payload.user.id:x", vec![]),
        ("payload.user.id:\"x \"", vec![13]),
        ("payload.user.id[0]:x", vec![10]),
        ("payload.items[0].sku:a", vec![11]),
        (r#"payload.items[1].sku:"größe \"b\" \\ '""#, vec![11]),
        ("payload.\"odd key\":1", vec![12]),
        ("payload.\"a.b\":2", vec![12]),
        ("payload.a.b:2", vec![]),
        ("payload.\"') OR 1=1 -- \":3", vec![12]),
        ("payload.\"*\":4", vec![12]),
        ("payload.user.id:\"') OR 1=1 -- \"", vec![]),
        ("payload.user.id:\"%\"", vec![]),
        ("payload.nothing:1", vec![]),
        (smile, vec![14]),
        ("payload.user.id:42 payload.nothing:null", vec![]),
    ] {
        let wanted: Vec<JobId> = places.iter().map(|at| ids[*at]).collect();
        assert_eq!(by_words(&tickr, words).await, wanted, "{words}");
    }
    for (words, part) in [
        ("payload.a.*:1", "steps"),
        ("payload.a[*]:1", "steps"),
        ("payload.$**.x:1", "steps"),
        ("payload.\"a\\\"b\":1", "steps"),
        ("payload.:1", "steps"),
    ] {
        let answer = tickr.get(&format!("/v1/jobs?q={}", encoded(words))).await;
        assert_eq!((answer.status, answer.code()), (422, "invalid_request"), "{words}");
        assert_eq!(answer.pointers(), ["q"]);
        assert!(answer.body["errors"][0]["detail"].as_str().unwrap().contains(part), "{words}: {:#}", answer.body);
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_filter_cannot_mean_is_told_with_its_place() {
    let tickr = TestApp::start().await;
    for (query, pointers) in [
        (
            format!("q={}&state=done&created_after=soon", encoded("bogus:1 kind:Bad")),
            vec!["state", "created_after", "q", "q"],
        ),
        ("tag=a%20b".to_owned(), vec!["tag"]),
        (format!("error={}", "x".repeat(201)), vec!["error"]),
        ("state=failed&q=state%3Afailed".to_owned(), vec!["q"]),
    ] {
        for path in ["/v1/jobs", "/v1/jobs/count"] {
            let answer = tickr.get(&format!("{path}?{query}")).await;
            assert_eq!((answer.status, answer.code()), (422, "invalid_request"), "{query}");
            assert_eq!(answer.pointers(), pointers, "{query}");
        }
    }
    let refused = |tags: Value| json!({"kind": "noop", "tags": tags});
    for (tags, pointer) in [(json!(["a b"]), "/tags/0"), (json!(vec!["a"; 11]), "/tags"), (json!(["a", ""]), "/tags/1")]
    {
        let answer = tickr.post("/v1/jobs", refused(tags)).await;
        assert_eq!((answer.status, answer.pointers()), (422, vec![pointer]));
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_finds_the_jobs_it_made_also_for_an_operation() {
    let tickr = TestApp::start().await;
    for name in ["nightly", "hourly"] {
        let schedule = json!({"cron": "0 0 1 1 *", "kind": "noop", "queue": "nobody-serves-it"});
        let put = tickr.put(&format!("/v1/schedules/{name}"), &schedule).await;
        assert_eq!(put.status, 201);
    }
    let trigger = async |name: &str| -> JobId {
        let fired = tickr.post(&format!("/v1/schedules/{name}/trigger"), json!({})).await;
        assert_eq!(fired.status, 201, "{:#}", fired.body);
        fired.body["id"].as_str().unwrap().parse().unwrap()
    };
    let mut made = Vec::new();
    for _ in 0..5 {
        made.push(trigger("nightly").await);
    }
    let other = trigger("hourly").await;
    tickr.enqueue(json!({"kind": "noop", "queue": "nobody-serves-it"})).await;
    assert_eq!(tickr.post(&format!("/v1/jobs/{}/cancel", made[1]), json!({})).await.status, 200);
    let live = [made[0], made[2], made[3], made[4]];
    assert_eq!(found(&tickr, "schedule=nightly").await, made);
    assert_eq!(by_words(&tickr, "schedule:nightly").await, made);
    assert_eq!(by_words(&tickr, "schedule:nightly state:waiting").await, live);
    assert_eq!(by_words(&tickr, "schedule:nightly state:cancelled").await, [made[1]]);
    assert_eq!(by_words(&tickr, &format!("schedule:nightly {} {other}", made[2])).await, [made[2]]);
    assert_eq!(by_words(&tickr, "schedule:hourly kind:noop").await, [other]);
    assert_eq!(by_words(&tickr, "schedule:weekly").await, []);
    assert_eq!(tickr.get("/v1/jobs?schedule=Nightly!").await.pointers(), ["schedule"]);

    // The same filters select jobs for bulk operations.
    let operate = async |body: Value| -> u64 {
        let started = tickr.post("/v1/operations", body).await;
        assert_eq!(started.status, 202, "{:#}", started.body);
        let path = format!("/v1/operations/{}", started.body["id"].as_str().unwrap());
        let over = eventually("the operation is over", || async {
            let shown = tickr.get(&path).await.body;
            (shown["state"] != "running").then_some(shown)
        })
        .await;
        assert_eq!((&over["state"], &over["failed"]), (&json!("done"), &json!(0)), "{over:#}");
        over["done"].as_u64().unwrap()
    };
    assert_eq!(operate(json!({"action": "cancel", "filter": {"schedule": "nightly"}})).await, 4);
    assert_eq!(by_words(&tickr, "schedule:nightly state:cancelled").await, made);
    assert_eq!(by_words(&tickr, "state:cancelled").await, made);
    // Deleted jobs are not counted, though the ledger still has their ticks.
    assert_eq!(
        operate(json!({"action": "delete", "filter": {"q": "schedule:nightly", "ids": [made[0], made[4]]}})).await,
        2
    );
    assert_eq!(found(&tickr, "schedule=nightly").await, made[1..4]);
    tickr.stop().await;
}

/// Return the number of rows that the server has read from tables so far.
pub(crate) async fn rows_read(tickr: &TestApp) -> i64 {
    let sql = "SELECT CAST(SUM(VARIABLE_VALUE) AS SIGNED) FROM VARIABLES_OF WHERE VARIABLE_NAME IN \
               ('HANDLER_READ_KEY', 'HANDLER_READ_NEXT', 'HANDLER_READ_PREV', 'HANDLER_READ_FIRST', 'HANDLER_READ_LAST', \
               'HANDLER_READ_RND', 'HANDLER_READ_RND_NEXT')";
    let mut conn = tickr.mysql().await;
    let schema =
        if sqlx::query("SELECT 1 FROM performance_schema.global_status LIMIT 1").fetch_one(&mut conn).await.is_ok() {
            "performance_schema.global_status"
        } else {
            "information_schema.global_status"
        };
    sqlx::query_scalar(sqlx::AssertSqlSafe(sql.replace("VARIABLES_OF", schema))).fetch_one(&mut conn).await.unwrap()
}

/// Return the number of rows that a call makes MySQL read. The counters are those of the server, which the loops of the
/// runner use as well. On a slow machine such a loop falls into most of the calls, so the call is repeated until one
/// reads less than `bound`, or thirty read more.
pub(crate) async fn rows_read_by(tickr: &TestApp, path: &str, bound: i64) -> i64 {
    let mut least = i64::MAX;
    for _ in 0..30 {
        let before = rows_read(tickr).await;
        let answer = tickr.get(path).await;
        least = least.min(rows_read(tickr).await - before);
        assert_eq!(answer.status, 200, "{path}: {:#}", answer.body);
        if least < bound {
            break;
        }
    }
    least
}

/// With 60,000 owed and 60,000 ended jobs, no page of any filter reads more rows than its bound, and a walk through all
/// pages still ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_reads_a_bounded_number_of_rows_whatever_it_looks_for() {
    let tickr = TestApp::start_alone(|_| {}, |_| {}).await;
    // The ids cover ten days, one every seven seconds or so. Every second job has ended, one of them with a failure.
    let digits = "(SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL \
                  SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)";
    let numbers = format!(
        "(SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d AS n FROM {digits} a, {digits} b, {digits} c, \
         {digits} e, {digits} f WHERE f.d < 6) s"
    );
    for (half, step) in [(0, 0), (1, 7)] {
        let id = format!(
            "UNHEX(CONCAT(LPAD(HEX(1780000000000 + 14000 * n + 1000 * {step}), 12, '0'), '7000800000000000', LPAD(HEX({half}), 4, '0')))"
        );
        tickr
            .sql(format!(
                "INSERT INTO jobs (id, kind, queue, priority, max_attempts, payload, execute_at, created_at) \
                 SELECT {id}, 'noop', 'default', 5, 1, CONCAT('{{\"n\":', n, '}}'), '2036-01-01', \
                 FROM_UNIXTIME(1780000000 + 14 * n + {step}) FROM {numbers}"
            ))
            .await;
    }
    tickr
        .sql(
            "INSERT INTO owed (id, kind, queue, priority, max_attempts, state, execute_at) \
             SELECT id, kind, queue, priority, max_attempts, 'waiting', execute_at FROM jobs WHERE RIGHT(id, 1) = x'00'; \
             INSERT INTO attempts (job_id, number, burned, runner, execute_at, started_at, finished_at, verdict, end_state, error) \
             SELECT id, 1, 1, 'gone/1-x', created_at, created_at, created_at, \
             IF(JSON_EXTRACT(payload, '$.n') = 100, 'failed', 'succeeded'), \
             IF(JSON_EXTRACT(payload, '$.n') = 100, 'failed', 'completed'), \
             IF(JSON_EXTRACT(payload, '$.n') = 100, 'the needle', NULL) FROM jobs WHERE RIGHT(id, 1) = x'01'",
        )
        .await;
    // Every job comes from one schedule, which has skipped as many ticks.
    tickr
        .sql(
            "INSERT INTO ticks (schedule, due_at, outcome, job_id, recorded_at, recorded_by) \
             SELECT 'busy', created_at, 'fired', id, created_at, 'runner:gone' FROM jobs; \
             INSERT INTO ticks (schedule, due_at, outcome, cause, recorded_at, recorded_by) \
             SELECT 'busy', created_at + INTERVAL 1 SECOND, 'skipped', 'paused', created_at, 'runner:gone' FROM jobs",
        )
        .await;
    for (words, most) in [
        ("", 2_000),
        ("state:waiting", 30_000),
        ("kind:nobody", 180_000),
        ("state:cancelled", 180_000),
        ("state:waiting queue:nobody", 180_000),
        ("unique_key:nobody", 180_000),
        ("unique_key:unused kind:noop state:waiting", 180_000),
        ("tag:nobody", 2_000),
        ("error:needle", 180_000),
        ("due:<2h", 180_000),
        ("finished:>2037-01-01", 180_000),
        ("created:2026-05-30", 40_000),
        ("created:>2040-01-01", 2_000),
        ("payload.n:nothing", 180_000),
        ("schedule:nobody", 2_000),
        ("schedule:busy", 30_000),
        ("schedule:busy state:failed error:needle", 180_000),
        ("schedule:busy tag:nobody", 2_000),
    ] {
        let read = rows_read_by(&tickr, &format!("/v1/jobs?limit=50&q={}", encoded(words)), most).await;
        assert!(read < most, "{words}: {read} rows were read");
        let read = rows_read_by(&tickr, &format!("/v1/jobs/count?q={}", encoded(words)), 800_000).await;
        assert!(read < 800_000, "counting {words}: {read} rows were read");
    }
    let all = tickr.get("/v1/jobs/count").await.body;
    assert_eq!(all, json!({"count": 10_000, "capped": true}));
    let day = tickr.get("/v1/jobs/count?created_after=2026-05-30&created_before=2026-05-31").await.body;
    assert_eq!((day["capped"].as_bool(), day["count"].as_u64().is_some_and(|n| n > 5_000)), (Some(true), true));

    // A client that continues through the pages finds the job, though it takes several pages. Each says how far it went.
    let page = tickr.get(&format!("/v1/jobs?q={}", encoded("state:failed error:needle"))).await.body;
    // A page looks at 20,000 rows, or at fewer if its time is over before.
    assert!((2_000..=20_000).contains(&page["searched"].as_u64().unwrap()), "{}", page["searched"]);
    let (to, oldest) = (page["searched_to"].as_str().unwrap(), tickr.get("/v1/jobs?limit=1").await.body);
    assert!(to < oldest["data"][0]["created_at"].as_str().unwrap() && to > "2026-05-28", "{page:#}");
    let (mut pages, mut hits, mut cursor) = (0, 0, String::new());
    loop {
        let page = tickr.get(&format!("/v1/jobs?q={}{cursor}", encoded("state:failed error:needle"))).await.body;
        pages += 1;
        hits += page["data"].as_array().unwrap().len();
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(hits, 1);
    assert!((2..60).contains(&pages), "{pages}");
    tickr.stop_broken("its jobs were written by hand").await;
}

/// 25 jobs of one queue are older than 50,000 of another one. The first page has all of them, and reads few rows.
#[tokio::test(flavor = "multi_thread")]
async fn the_unfinished_jobs_of_a_small_queue_are_found_at_once_among_many() {
    let tickr = TestApp::start_alone(|_| {}, |_| {}).await;
    let later = |n: u64| json!({"kind": "noop", "queue": "small", "delay_ms": LATER_MS + n});
    let small = tickr.enqueue_many((0..25).map(later)).await;
    let digits = "(SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL \
                  SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)";
    // These ids are of a later time than any that is made now.
    tickr
        .sql(format!(
            "INSERT INTO jobs (id, kind, queue, priority, max_attempts, payload, execute_at, created_at) \
             SELECT UNHEX(CONCAT('0FFFFFFFFFFF70008000', LPAD(HEX(a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d), 12, '0'))), \
             'noop', 'large', 5, 1, '{{}}', '2036-01-01', '2026-01-01' FROM {digits} a, {digits} b, {digits} c, {digits} e, {digits} f \
             WHERE f.d < 5; \
             INSERT INTO owed (id, kind, queue, priority, max_attempts, state, execute_at) \
             SELECT id, kind, queue, priority, max_attempts, 'waiting', execute_at FROM jobs WHERE queue = 'large'"
        ))
        .await;
    for words in ["queue:small state:waiting", "queue:small kind:noop state:waiting"] {
        let path = format!("/v1/jobs?limit=50&q={}", encoded(words));
        let page = tickr.get(&path).await.body;
        assert_eq!((page["data"].as_array().unwrap().len(), &page["next_cursor"]), (25, &Value::Null), "{page:#}");
        assert!(rows_read_by(&tickr, &path, 2_000).await < 2_000, "{words}");
        assert_eq!(by_words(&tickr, words).await, small);
    }
    // The queue that fills the table is found as well, and so is a kind that nothing has: by a walk of several pages.
    assert_eq!(tickr.get("/v1/jobs?q=queue:large%20state:waiting").await.body["data"].as_array().unwrap().len(), 50);
    assert_eq!(by_words(&tickr, "state:waiting kind:nobody").await, []);
    tickr.stop_broken("its jobs were written by hand").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn negations_choices_and_ranges_find_their_jobs_and_no_others() {
    let queues = ["default", "a", "b"].map(str::to_owned);
    let tickr = TestApp::start_with(|config| config.queues = queues.into(), Registry::new()).await;
    let later = |kind: &str, queue: &str, more: Value| {
        let mut job = json!({"kind": kind, "queue": queue, "delay_ms": LATER_MS});
        job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        job
    };
    let plain = tickr.enqueue(later("noop", "a", json!({"tags": ["x"]}))).await;
    let keyed = tickr.enqueue(later("noop", "b", json!({"unique_key": "order|7", "tags": ["x", "y"]}))).await;
    let slow = tickr.enqueue(later("sleep", "b", json!({"payload": {"ms": 1}}))).await;
    let failed = tickr.enqueue(json!({"kind": "fail", "payload": {"permanent": true}})).await;
    tickr.until(failed, State::Failed).await;
    let mended = tickr
        .enqueue(json!({"kind": "fail", "payload": {"times": 2}, "retry": {"base_ms": 1}, "max_attempts": 5}))
        .await;
    tickr.until(mended, State::Completed).await;
    let slept = tickr.enqueue(json!({"kind": "sleep", "payload": {"ms": 300}})).await;
    tickr.until(slept, State::Completed).await;
    let runner =
        tickr.get(&format!("/v1/jobs/{slept}")).await.body["attempts"][0]["runner"].as_str().unwrap().to_owned();

    for (words, wanted) in [
        ("-kind:noop", vec![slow, failed, mended, slept]),
        ("-kind:noop -queue:b", vec![failed, mended, slept]),
        ("kind:sleep|fail", vec![slow, failed, mended, slept]),
        ("kind:sleep|fail -state:completed", vec![slow, failed]),
        ("kind:sleep|fail queue:b|a", vec![slow]),
        ("kind:noop|nobody kind:noop", vec![plain, keyed]),
        ("kind:nobody|nothing", vec![]),
        ("state:failed|completed", vec![failed, mended, slept]),
        ("state:failed|waiting", vec![plain, keyed, slow, failed]),
        ("-state:waiting", vec![failed, mended, slept]),
        ("tag:x -tag:y", vec![plain]),
        ("-tag:x", vec![slow, failed, mended, slept]),
        ("tag:x|y", vec![plain, keyed]),
        // A job without a unique key does not have this one.
        ("-unique_key:\"order|7\" kind:noop", vec![plain]),
        ("unique_key:\"order|7\"|other", vec![keyed]),
        ("-rejected -state:waiting", vec![mended, slept]),
        ("-error:rejected state:failed", vec![]),
        ("attempt:>2", vec![mended]),
        ("attempt:3", vec![mended]),
        ("attempt:1..2", vec![failed, slept]),
        ("attempt:0", vec![plain, keyed, slow]),
        ("-attempt:0", vec![failed, mended, slept]),
        ("took:>=300ms kind:sleep", vec![slept]),
        ("took:<300ms kind:sleep", vec![]),
        ("-created:<1h", vec![]),
        ("-due:<2h", vec![plain, keyed, slow]),
        ("-payload.ms:1 kind:sleep", vec![slept]),
        ("runner:nobody", vec![]),
    ] {
        assert_eq!(by_words(&tickr, words).await, wanted, "{words}");
    }
    assert_eq!(by_words(&tickr, &format!("-{failed} -id:{mended} -kind:noop|sleep")).await, []);
    assert_eq!(by_words(&tickr, &format!("runner:{} kind:sleep", &runner[..runner.len() - 2])).await, [slept]);
    for (words, part) in
        [("kind:a|", "beside | is missing"), ("attempt:x", "number of attempts"), ("took:5", "length of")]
    {
        let answer = tickr.get(&format!("/v1/jobs?q={}", encoded(words))).await;
        assert_eq!(answer.status, 422, "{words}");
        assert!(answer.body["errors"][0]["detail"].as_str().unwrap().contains(part), "{words}: {:#}", answer.body);
    }
    // An operation selects the same jobs.
    let body = json!({"action": "cancel", "filter": {"q": "-kind:sleep state:waiting"}, "dry_run": true});
    let dry = tickr.post("/v1/operations", body).await;
    assert_eq!((dry.status, &dry.body["count"]), (200, &json!(2)), "{:#}", dry.body);
    tickr.stop().await;
}

/// MySQL checks each value of a choice for each job that it looks at.
#[tokio::test(flavor = "multi_thread")]
async fn each_value_of_a_choice_counts_against_the_limits_of_a_filter() {
    let tickr = TestApp::start().await;
    let many_texts: Vec<String> = (1..=20).map(|n| format!("-x{n}|y{n}")).collect();
    for (words, part) in [
        ("a|b|c|d|e|f", "at most 5 texts without a field"),
        (many_texts.join(" ").as_str(), "at most 5 texts without a field"),
        ("-error:a|b|c error:d|e|f", "at most 5 texts to search for in errors"),
        ("payload.a:1|2|3 -payload.b:1|2 payload.c:1", "at most 5 payload paths"),
    ] {
        for path in ["/v1/jobs", "/v1/jobs/count", "/v1/jobs/survey"] {
            let answer = tickr.get(&format!("{path}?q={}", encoded(words))).await;
            assert_eq!((answer.status, answer.code()), (422, "invalid_request"), "{path} {words}: {:#}", answer.body);
            let detail = answer.body["errors"][0]["detail"].as_str().unwrap();
            assert!(detail.contains(part), "{words}: {detail}");
        }
    }
    assert_eq!(by_words(&tickr, "a|b -c d|e error:a|b payload.a:1|2|3|4|5").await, []);
    let filter = json!({"q": "payload.a:1|2|3", "payload": {"b": 1, "c": 1, "d": 1}});
    let answer = tickr.post("/v1/operations", json!({"action": "cancel", "filter": filter, "dry_run": true})).await;
    assert_eq!((answer.status, answer.pointers()), (422, vec!["/filter/payload"]), "{:#}", answer.body);
    tickr.stop().await;
}

/// A job that is unique until its start passes its unique key on, and may wait again.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_waits_again_is_found_by_the_unique_key_that_it_has_passed_on() {
    let tickr = TestApp::start().await;
    assert_eq!(tickr.put("/v1/kinds/resize", json!({})).await.status, 201);
    let worker = tickr.post("/v1/workers", json!({"name": "test", "kinds": ["resize"], "slots": 1})).await;
    assert_eq!(worker.status, 201, "{:#}", worker.body);
    let at = format!("/v1/workers/{}", worker.body["id"].as_str().unwrap());
    let job = |more: Value| {
        let mut job = json!({"kind": "resize", "payload": 1, "unique_key": "x"});
        job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        job
    };
    let first = tickr.enqueue(job(json!({"unique_until": "start"}))).await;
    let fetch = json!({"slots": 1, "wait_ms": 20_000, "holding": [], "fetch_id": Uuid::now_v7()});
    let fetched = tickr.post(&format!("{at}/fetch"), fetch).await.body["jobs"][0].clone();
    assert_eq!(fetched["id"], json!(first));
    let verdict = json!({"token": fetched["token"], "verdict": "snoozed", "error": "busy", "delay_ms": 3_600_000});
    let finished = tickr.post(&format!("{at}/finish"), json!({"verdicts": [verdict]})).await.body;
    assert_eq!(finished["results"][0]["state"], "waiting", "{finished:#}");
    let second = tickr.enqueue(job(json!({"delay_ms": LATER_MS}))).await;

    let words = "state:waiting kind:resize unique_key:x";
    assert_eq!(by_words(&tickr, words).await, [first, second]);
    let dry = json!({"action": "cancel", "filter": {"q": words}, "dry_run": true});
    assert_eq!(tickr.post("/v1/operations", dry).await.body["count"], 2);
    assert_eq!(tickr.post(&format!("/v1/jobs/{second}/cancel"), json!({})).await.status, 200);
    assert_eq!(by_words(&tickr, words).await, [first]);
    tickr.stop().await;
}

/// The ledger names the runner that ended an expired job, and that runner executed nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_expired_is_found_by_its_attempts_and_not_by_the_runner_that_ended_it() {
    let tickr = TestApp::start().await;
    let never = tickr.enqueue(json!({"kind": "noop", "queue": "nowhere", "expires_in_ms": 300})).await;
    let slow = json!({"kind": "sleep", "payload": {"ms": 60_000}, "timeout_ms": 2_000, "expires_in_ms": 8_000,
                      "retry": {"delays_ms": [600_000]}});
    let slow = tickr.enqueue(slow).await;
    let done = tickr.enqueue(json!({"kind": "noop"})).await;
    for (id, state) in [(never, State::Failed), (slow, State::Failed), (done, State::Completed)] {
        tickr.until(id, state).await;
    }
    assert_eq!(tickr.verdicts(never).await, ["expired"]);
    assert_eq!(tickr.verdicts(slow).await, ["timed_out", "expired"]);
    let by_runner = format!("runner:{}", tickr.app.runner());
    for (words, wanted) in
        [(by_runner.as_str(), vec![slow, done]), ("took:>=1500ms", vec![slow]), ("took:<1h", vec![slow, done])]
    {
        assert_eq!(by_words(&tickr, words).await, wanted, "{words}");
    }
    let survey = tickr.get("/v1/jobs/survey").await.body;
    let runners = survey["facets"].as_array().unwrap().iter().find(|facet| facet["field"] == "runner").unwrap();
    assert_eq!(runners["values"], json!([{"value": tickr.app.runner().as_str(), "jobs": 2}]), "{survey:#}");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listing_in_the_order_of_acceptance_reads_every_job_once() {
    let tickr = TestApp::start().await;
    // The ids of these follow one another directly, so a page that begins one id too late leaves one of them out.
    let tomorrow = "UTC_TIMESTAMP(3) + INTERVAL 1 DAY";
    let direct = Owed { kind: "sleep", queue: "'elsewhere'", due: tomorrow, ..Owed::overdue(8) };
    direct.insert(&tickr, 1).await;
    let direct: Vec<JobId> = (0..8).map(|n| format!("01900001-0000-7000-8000-{n:012x}").parse().unwrap()).collect();
    let later = |n: u64| json!({"kind": "noop", "delay_ms": LATER_MS + n, "tags": ["all"]});
    let made = tickr.enqueue_many((0..20).map(later)).await;
    let all = [direct.clone(), made.clone()].concat();
    for (filter, wanted) in [
        ("", &all),
        ("&q=tag:all", &made),
        ("&q=state:waiting", &all),
        ("&q=kind:noop", &made),
        ("&q=-kind:sleep", &made),
        ("&q=kind:sleep", &direct),
    ] {
        let (mut seen, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = tickr.get(&format!("/v1/jobs?limit=3&sort=oldest{filter}{cursor}")).await;
            assert_eq!(page.status, 200, "{:#}", page.body);
            let data = page.body["data"].as_array().unwrap();
            seen.extend(data.iter().map(|job| job["id"].as_str().unwrap().parse::<JobId>().unwrap()));
            let Some(next) = page.body["next_cursor"].as_str() else { break };
            cursor = format!("&cursor={next}");
        }
        assert_eq!(&seen, wanted, "{filter}");
        // A cursor belongs to the order of its listing.
        if !cursor.is_empty() {
            let other = tickr.get(&format!("/v1/jobs?limit=3{filter}{cursor}")).await;
            assert_eq!((other.status, other.code()), (422, "invalid_cursor"));
        }
    }
    Owed::remove(&tickr).await;
    tickr.stop().await;
}

/// 37 ended jobs of a kind and a queue are older than 60,000 others. The first page has all of them, and reads few rows.
#[tokio::test(flavor = "multi_thread")]
async fn the_jobs_of_a_kind_or_a_queue_are_found_at_once_among_many() {
    let tickr = TestApp::start_alone(|_| {}, |_| {}).await;
    let few = |n: u32| {
        let (kind, payload) = if n < 30 { ("sleep", json!({"ms": 1})) } else { ("fail", json!({})) };
        json!({"kind": kind, "payload": payload, "queue": "orphans", "delay_ms": LATER_MS})
    };
    let few = tickr.enqueue_many((0..37).map(few)).await;
    tickr.post("/v1/operations", json!({"action": "cancel", "filter": {"queue": "orphans"}})).await;
    tickr.until_count("SELECT COUNT(*) FROM attempts WHERE end_state = 'cancelled'", 37).await;
    let digits = "(SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL \
                  SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)";
    // These ids are of a later time than any that is made now.
    tickr
        .sql(format!(
            "INSERT INTO jobs (id, kind, queue, priority, max_attempts, payload, execute_at, created_at) \
             SELECT UNHEX(CONCAT('0FFFFFFFFFFF70008000', LPAD(HEX(a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d), 12, '0'))), \
             'noop', CONCAT('q', a.d), 5, 1, '{{}}', '2036-01-01', '2026-01-01' FROM {digits} a, {digits} b, {digits} c, {digits} e, {digits} f \
             WHERE f.d < 6; \
             INSERT INTO owed (id, kind, queue, priority, max_attempts, state, execute_at) \
             SELECT id, kind, queue, priority, max_attempts, 'waiting', execute_at FROM jobs WHERE kind = 'noop'"
        ))
        .await;
    for (words, found) in [
        ("queue:orphans", 37),
        ("kind:sleep", 30),
        ("kind:sleep|fail", 37),
        ("kind:sleep queue:orphans|q1", 30),
        ("-kind:noop", 37),
        ("-kind:noop -kind:sleep", 7),
        ("kind:sleep state:cancelled", 30),
        ("queue:orphans state:failed", 0),
        ("kind:nobody", 0),
        ("kind:nobody|nothing queue:orphans", 0),
    ] {
        let path = format!("/v1/jobs?limit=50&q={}", encoded(words));
        let page = tickr.get(&path).await.body;
        assert_eq!(
            (page["data"].as_array().unwrap().len(), &page["next_cursor"]),
            (found, &Value::Null),
            "{words}: {page:#}"
        );
        assert!(rows_read_by(&tickr, &path, 4_000).await < 4_000, "{words}");
    }
    // The pairs of a kind in many queues are merged in the order of their ids.
    let page = tickr.get("/v1/jobs?limit=50&kind=noop").await.body;
    let ids: Vec<&str> = page["data"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap()).collect();
    assert!(ids.len() == 50 && ids.windows(2).all(|two| two[0] > two[1]), "{ids:?}");
    assert_eq!(by_words(&tickr, "queue:orphans").await, few);
    tickr.stop_broken("its jobs were written by hand").await;
}
