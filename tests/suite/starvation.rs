//! Shares of the servers: a flood of costly reads takes nothing from runners, operators and producers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use sqlx::Executor;
use tickr::app::App;
use tickr::broker::OperatorSettings;
use tickr::config::ServerUrl;
use tickr::handlers::Registry;
use tickr::job::State;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::support::program::{command, outcome, tickr as program};
use crate::support::sink::Sink;
use crate::support::{
    Answer, DEADLINE, Proxy, Pulse, Runner, TestApp, answer, bystander, call, drop_database, eventually, http,
};

/// A token of the configuration, which allows every call.
const TOKEN: &str = "operator-token-of-this-test-0123456789";

/// Check that the call is answered with this status, within the limit, apart from stalls of the machine. Return how
/// long it took. A call that is answered with 503 because the machine stands still, or just did, is repeated.
async fn promptly<F: Future<Output = Answer>>(
    pulse: &Pulse,
    what: &str,
    wanted: u16,
    limit: Duration,
    call: impl Fn() -> F,
) -> Duration {
    loop {
        let began = Instant::now();
        let answer = call().await;
        let took = pulse.time_since(began);
        // A probe gets the result of a check that began up to two and a half seconds before.
        let pause = pulse.longest_pause(began - Duration::from_secs(3), Instant::now());
        if answer.status == 503 && pause > Duration::from_millis(1_500) {
            continue;
        }
        assert_eq!(answer.status, wanted, "{what} after {took:?}: {:#}", answer.body);
        assert!(took < limit, "{what} took {took:?} beside stalls of the machine");
        return took;
    }
}

/// Wait until this runner's copy of the API keys has no valid key of that name.
async fn until_revoked(app: &App, name: &str) {
    let mut copy = app.operator_settings().listen();
    let gone = |settings: &OperatorSettings| {
        settings.api_keys.iter().all(|key| key.name.as_str() != name || key.revoked.is_some())
    };
    let learned = tokio::time::timeout(DEADLINE, copy.wait_for(|settings| gone(settings)));
    learned.await.expect("the runner learns of it").unwrap();
}

/// Insert 500 jobs, due in the next day, double their number so many times, and insert as many dead letters, so that
/// each of the heavy reads takes a while.
async fn many_jobs(tickr: &TestApp, base: &str, doublings: u32) {
    let far = |n: u64| {
        let delay_ms = 7_200_000 + n * 150_000;
        json!({"kind": "noop", "queue": "far", "payload": {"a": "other", "n": n}, "delay_ms": delay_ms})
    };
    let jobs: Vec<Value> = (0..500).map(far).collect();
    let made = call(base, Method::POST, "/v1/jobs/batch", TOKEN, Some(json!({"jobs": jobs}))).await;
    assert_eq!(made.status, 201, "{:#}", made.body);
    let twice = "INSERT INTO jobs (id, kind, queue, priority, max_attempts, payload, execute_at, created_at) SELECT \
                 UNHEX(CONCAT(SUBSTR(HEX(id), 1, 16), SUBSTR(SHA2(CONCAT(HEX(id), RAND()), 256), 1, 16))), \
                 kind, queue, priority, max_attempts, payload, execute_at, created_at FROM jobs";
    for _ in 0..doublings {
        tickr.sql(twice).await;
    }
    tickr
        .sql(
            "INSERT INTO owed (id, kind, queue, priority, max_attempts, state, execute_at) SELECT j.id, j.kind, j.queue, \
             j.priority, j.max_attempts, 'waiting', j.execute_at FROM jobs j LEFT JOIN owed o ON o.id = j.id WHERE o.id IS NULL",
        )
        .await;
    tickr.sql("UPDATE jobs SET batch_id = NULL, batch_size = NULL").await;
    assert!(tickr.count("SELECT COUNT(*) FROM owed").await >= 500 << doublings);
    let letters = "INSERT INTO dead_letters (job_id, kind, queue, fingerprint, failed_at, error, since) SELECT \
                   UNHEX(CONCAT(SUBSTR(HEX(id), 1, 12), '7', SUBSTR(HEX(id), 14, 19))), 'noop', 'parked', \
                   x'0123456789abcdef', UTC_TIMESTAMP(6), 'no', UTC_TIMESTAMP(6) FROM owed";
    tickr.sql(letters).await;
}

/// Number of jobs of the runner that is killed.
const DOOMED: i64 = 4;

/// The lease of a runner that is killed. No stall of the machine ends it before.
const LEASE: Duration = Duration::from_secs(8);

/// Start a runner with work that will be lost, and a schedule that ticks every second.
async fn doomed_runner(tickr: &TestApp, base: &str) -> Runner {
    let lease = format!("{}s", LEASE.as_secs());
    let env = [("TICKR_LEASE", lease.as_str()), ("TICKR_QUEUES", "doomed"), ("TICKR_API_TOKENS", TOKEN)];
    let runner = Runner::start(tickr, &env);
    for _ in 0..DOOMED {
        let doomed = json!({"kind": "sleep", "queue": "doomed", "payload": {"ms": 120_000}});
        assert_eq!(call(base, Method::POST, "/v1/jobs", TOKEN, Some(doomed)).await.status, 201);
    }
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE state = 'executing' AND queue = 'doomed'", DOOMED).await;
    let schedule = json!({"cron": "* * * * * *", "kind": "noop"});
    let put = call(base, Method::PUT, "/v1/schedules/each-second", TOKEN, Some(schedule)).await;
    assert!(put.status < 300, "{:#}", put.body);
    runner
}

/// Kill a runner, and return when, by the clock of MySQL and by that of the test.
async fn kill(tickr: &TestApp, runner: &mut Runner) -> (String, Instant) {
    let (now, began) = ("SELECT CAST(UTC_TIMESTAMP(6) AS CHAR)", Instant::now());
    let killed: String = sqlx::query_scalar(now).fetch_one(&mut tickr.mysql().await).await.unwrap();
    runner.kill9();
    (killed, began)
}

/// Check that the attempts of the killed runner are ended within its lease and five seconds, apart from stalls of the
/// machine. Return how long after the kill that was.
async fn until_reaped(pulse: &Pulse, tickr: &TestApp, (killed, began): (String, Instant)) -> Duration {
    let lost = "SELECT COUNT(*) FROM attempts a JOIN jobs j ON j.id = a.job_id WHERE a.verdict = 'lost' AND j.queue = 'doomed'";
    tickr.until_count(lost, DOOMED).await;
    let last: i64 = sqlx::query_scalar(
        "SELECT MAX(TIMESTAMPDIFF(MICROSECOND, CAST(? AS DATETIME(6)), finished_at)) FROM attempts WHERE verdict = 'lost'",
    )
    .bind(&killed)
    .fetch_one(&mut tickr.mysql().await)
    .await
    .unwrap();
    let (last, lease_s) = (Duration::from_micros(last.unsigned_abs()), i64::try_from(LEASE.as_secs()).unwrap());
    let leeway = Duration::from_millis(pulse.leeway_ms(began, lease_s).unsigned_abs());
    assert!(last < LEASE + Duration::from_secs(5) + leeway, "{last:?}, with {leeway:?} for stalls of the machine");
    last
}

/// Check that the schedule has missed nothing since this moment, and remove it.
async fn assert_it_ticked(pulse: &Pulse, since: Instant, tickr: &TestApp, base: &str) {
    tickr.until_count("SELECT COUNT(*) >= 4 FROM ticks", 1).await;
    let missed = "SELECT COUNT(*) FROM ticks WHERE schedule = 'each-second' AND outcome <> 'fired'";
    assert_eq!(tickr.count(missed).await, 0, "a schedule misses nothing");
    let latest =
        "SELECT MAX(TIMESTAMPDIFF(MICROSECOND, due_at, recorded_at)) FROM ticks WHERE schedule = 'each-second'";
    let latest = Duration::from_micros(tickr.count(latest).await.unsigned_abs());
    let stalled = pulse.stalled_since(since);
    println!("the latest tick was {latest:?} late, with stalls of {stalled:?}");
    assert!(latest.saturating_sub(stalled) < Duration::from_secs(5), "a tick was {latest:?} late");
    let deleted = call(base, Method::DELETE, "/v1/schedules/each-second", TOKEN, None).await;
    assert!(deleted.status < 300, "{:#}", deleted.body);
}

/// The reads that take a seat, each with a word that tells it from the others.
const HEAVY: [&str; 18] = [
    "/v1/audit?from=2026-01-01T00:00:00Z",
    "/v1/batches",
    "/v1/jobs/count?q=payload.a:b",
    "/v1/jobs?q=payload.a:b",
    "/v1/dead-letters?q=payload.a:b",
    "/v1/dead-letters/groups",
    "/v1/dead-letters/groups/0123456789abcdef",
    "/v1/forecast",
    "/v1/history?span=24h",
    "/v1/history/queues?span=24h",
    "/v1/index",
    "/v1/limits/flood/keys",
    "/v1/order-keys",
    "/v1/outbox",
    "/v1/queues",
    "/v1/queues/far",
    "/v1/stats",
    "/v1/jobs/count?kind=noop",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_heavy_reads_stops_nothing_and_its_key_ends_at_once() {
    let change = |config: &mut tickr::config::Config| {
        (config.lease, config.api_tokens) = (LEASE, vec![TOKEN.to_owned().into()]);
        // With so few connections a runner has one seat for heavy reads. So MySQL works on two of them at a time, and
        // the tests beside this one are not slowed down.
        config.mysql_connections = 10;
    };
    let tickr = TestApp::start_with(change, Registry::new()).await;
    let other = tickr.another_with(change, Registry::new()).await;
    let bases = [tickr.url(""), format!("http://{}", other.addr())];
    let (pulse, started) = (Arc::new(Pulse::start(&tickr).await), Instant::now());
    many_jobs(&tickr, &bases[0], 5).await;
    let made = call(&bases[0], Method::PUT, "/v1/api-keys/flooder", TOKEN, Some(json!({"scope": "read"}))).await;
    let key = made.body["token"].as_str().unwrap().to_owned();
    let mut runner = doomed_runner(&tickr, &bases[0]).await;
    let limit = json!({"kind": "noop", "queue": "far", "concurrency": 1});
    let put = call(&bases[0], Method::PUT, "/v1/limits/flood", TOKEN, Some(limit)).await;
    assert!(put.status < 300, "{:#}", put.body);
    let job = json!({"kind": "noop", "queue": "far", "delay_ms": 600_000});
    let job = call(&bases[0], Method::POST, "/v1/jobs", TOKEN, Some(job)).await.body["id"].as_str().unwrap().to_owned();

    let (over, seen) = (CancellationToken::new(), Arc::new(Mutex::new(BTreeMap::<(&str, u16), usize>::new())));
    let mut flood = JoinSet::new();
    for n in 0..16 {
        let (base, key, over, seen) = (bases[n % 2].clone(), key.clone(), over.clone(), Arc::clone(&seen));
        flood.spawn(async move {
            let client = http();
            for path in HEAVY.iter().cycle().skip(n) {
                if over.is_cancelled() {
                    break;
                }
                let answer = answer(client.get(format!("{base}{path}")).bearer_auth(&key)).await;
                if answer.status == 429 {
                    assert_eq!((answer.code(), answer.header("retry-after")), ("overloaded", "1"));
                }
                *seen.lock().unwrap().entry((path, answer.status)).or_default() += 1;
                // The others keep the seats busy. Without this rest they would keep the processors busy as well.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
    }
    eventually("the seats are taken", || async {
        seen.lock().unwrap().keys().any(|(_, status)| *status == 429).then_some(())
    })
    .await;
    // Alone they take some milliseconds, but other tests may keep both cores busy for seconds. When the flood had all
    // connections, the calls failed or took longer than this.
    let soon = Duration::from_secs(5);
    let mut probes = JoinSet::new();
    for base in &bases {
        probes.spawn(probe(Arc::clone(&pulse), base.clone(), over.clone(), DEADLINE));
    }
    let killed = kill(&tickr, &mut runner).await;
    let path = format!("/v1/jobs/{job}");
    let mut fastest = [Duration::MAX; 4];
    for n in 0..4 {
        for base in &bases {
            let ready = || answer(http().get(format!("{base}/readyz")));
            let pause = || call(base, Method::POST, "/v1/queues/idle/pause", TOKEN, Some(json!({})));
            let job = json!({"kind": "noop", "queue": "far", "unique_key": format!("{n} {base}"), "delay_ms": 600_000});
            let unique = || call(base, Method::POST, "/v1/jobs", TOKEN, Some(job.clone()));
            let took = [
                promptly(&pulse, "/readyz", 200, soon, ready).await,
                promptly(&pulse, "one job", 200, soon, || call(base, Method::GET, &path, TOKEN, None)).await,
                promptly(&pulse, "a pause", 200, soon, pause).await,
                promptly(&pulse, "a job with a unique key", 201, soon, unique).await,
            ];
            fastest.iter_mut().zip(took).for_each(|(fastest, took)| *fastest = took.min(*fastest));
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    // None of them has to wait for the flood: the best of eight shows what the flood itself costs.
    println!("the fastest probe, look at a job, pause and job with a unique key took {fastest:?}");
    assert!(fastest.iter().all(|took| *took < Duration::from_secs(1)), "{fastest:?}");
    // The lost jobs of the killed runner are found within a lease plus five seconds.
    let last = until_reaped(&pulse, &tickr, killed).await;

    // On a slow machine each of them is served rarely.
    let lacking = || {
        let seen = seen.lock().unwrap();
        let lacks = |path: &&'static str| ![200, 429].iter().all(|status| seen.contains_key(&(*path, *status)));
        HEAVY.into_iter().filter(lacks).collect::<Vec<_>>()
    };
    let deadline = Instant::now() + 2 * DEADLINE;
    while !lacking().is_empty() {
        assert!(Instant::now() < deadline, "take no seat, or are not served now and then: {:?}", lacking());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let end = || call(&bases[0], Method::DELETE, "/v1/api-keys/flooder", TOKEN, None);
    promptly(&pulse, "the end of a key", 200, soon, end).await;
    // Each runner learns of it within two seconds, and from then on refuses the key. When a flood kept the runners from
    // reading MySQL, the key stayed good.
    let revoked = Instant::now();
    tokio::join!(until_revoked(&tickr.app, "flooder"), until_revoked(&other, "flooder"));
    pulse.assert_within(Duration::from_secs(2), revoked, "both runners knew that the key was revoked");
    for base in &bases {
        promptly(&pulse, "the revoked key", 401, soon, || call(base, Method::GET, "/v1/whoami", &key, None)).await;
    }
    over.cancel();
    while let Some(one) = flood.join_next().await {
        one.unwrap();
    }
    // Each probe was answered with 200.
    let probes: Vec<Duration> = probes.join_all().await.into_iter().flat_map(Took::into_values).flatten().collect();
    println!("{} probes, {:?} at most", probes.len(), probes.iter().max());
    assert!(probes.len() >= 20, "only {} probes", probes.len());
    let seen = seen.lock().unwrap().clone();
    println!("{seen:#?}, lost attempts ended after {last:?}");
    // A read that waits while the machine stands still may be refused.
    let stalled = pulse.stalled_since(started) > Duration::from_secs(1);
    let is_usual = |status: u16| [200, 401, 429].contains(&status) || stalled && status == 503;
    assert!(seen.keys().all(|(_, status)| is_usual(*status)), "{seen:?}");
    tickr.sql("DELETE FROM dead_letters").await;
    assert_it_ticked(&pulse, started, &tickr, &bases[0]).await;
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

/// Longest time that a call of an operator or a producer takes beside a hundred callers.
const WORST: Duration = Duration::from_secs(3);

/// How long the calls of each sort took.
type Took = BTreeMap<&'static str, Vec<Duration>>;

/// Check the times of calls: a hundred callers make one wait now and then, and never for long.
fn assert_prompt(took: Took) {
    for (what, mut took) in took {
        took.sort_unstable();
        let (median, worst) = (took[took.len() / 2], took[took.len() - 1]);
        println!("{what}: {} times, {median:?} in the median, {worst:?} at most", took.len());
        assert!(median < Duration::from_secs(1) && worst < WORST, "{what}: median {median:?}, worst {worst:?}");
    }
}

/// Probe this runner until the flood is over. Each probe must be answered with 200, within the limit.
async fn probe(pulse: Arc<Pulse>, base: String, over: CancellationToken, limit: Duration) -> Took {
    let (client, url, mut took) = (http(), format!("{base}/readyz"), Vec::new());
    while !over.is_cancelled() {
        took.push(promptly(&pulse, "/readyz", 200, limit, || answer(client.get(&url))).await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Took::from([("/readyz", took)])
}

/// Do what operators and producers do until the flood is over: pause and resume a queue, enqueue a job with a unique
/// key, and end an API key, which both runners have to refuse within two seconds.
async fn operate(pulse: Arc<Pulse>, bases: [String; 2], over: CancellationToken) -> Took {
    let mut took = Took::new();
    for n in 0_usize.. {
        if over.is_cancelled() {
            break;
        }
        let base = &bases[n % 2];
        let job = json!({"kind": "noop", "queue": "far", "unique_key": format!("of round {n}"), "delay_ms": 7_200_000});
        let path = format!("/v1/api-keys/short-{n}");
        let pause = || call(base, Method::POST, "/v1/queues/idle/pause", TOKEN, Some(json!({})));
        let resume = || call(base, Method::POST, "/v1/queues/idle/resume", TOKEN, Some(json!({})));
        let unique = || call(base, Method::POST, "/v1/jobs", TOKEN, Some(job.clone()));
        let steps = [
            ("a pause", promptly(&pulse, "a pause", 200, WORST, pause).await),
            ("a resume", promptly(&pulse, "a resume", 200, WORST, resume).await),
            ("a unique job", promptly(&pulse, "a unique job", 201, WORST, unique).await),
        ];
        let made = call(base, Method::PUT, &path, TOKEN, Some(json!({"scope": "read"}))).await;
        assert_eq!(made.status, 201, "{:#}", made.body);
        let key = made.body["token"].as_str().unwrap().to_owned();
        until_known(&bases, &key).await;
        let end = || call(base, Method::DELETE, &path, TOKEN, None);
        let end = promptly(&pulse, "the end of a key", 200, WORST, end).await;
        assert_refused(&pulse, &bases, &key).await;
        for (what, time) in steps.into_iter().chain([("the end of a key", end)]) {
            took.entry(what).or_default().push(time);
        }
    }
    took
}

async fn status_of(base: &str, key: &str) -> u16 {
    call(base, Method::GET, "/v1/whoami", key, None).await.status
}

/// Wait until both runners know an API key.
async fn until_known(bases: &[String; 2], key: &str) {
    for base in bases {
        eventually("the key is known", || async { (status_of(base, key).await == 200).then_some(()) }).await;
    }
}

/// Ask a runner until it refuses an API key that was ended at this moment. Return the time from then to that call,
/// apart from stalls of the machine.
async fn refused_after(pulse: &Pulse, base: &str, key: &str, ended: Instant) -> Duration {
    loop {
        let asked = Instant::now();
        match status_of(base, key).await {
            401 => return pulse.time_between(ended, asked),
            status => assert!(status == 200 && ended.elapsed() < Duration::from_secs(20), "{status} from {base}"),
        }
    }
}

/// Check that both runners refuse an API key within two seconds after its end, which was just now.
async fn assert_refused(pulse: &Pulse, bases: &[String; 2], key: &str) -> (Duration, Duration) {
    let ended = Instant::now();
    let refused =
        tokio::join!(refused_after(pulse, &bases[0], key, ended), refused_after(pulse, &bases[1], key, ended));
    assert!(refused.0.max(refused.1) < Duration::from_secs(2), "{refused:?}");
    refused
}

/// The size of an outage that once happened: then no probe was answered with 200, and the key was good for 4 s after
/// its end. What else an operator or a producer does may not wait for long either.
/// `make test-long ARGS=starvation::`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a machine for itself"]
async fn a_hundred_callers_over_a_hundred_thousand_jobs_stop_no_probe_and_no_end_of_their_key() {
    const CALLERS: usize = 100;
    let change = |config: &mut tickr::config::Config| {
        (config.lease, config.api_tokens) = (LEASE, vec![TOKEN.to_owned().into()]);
        config.mysql_connections = tickr::config::Config::defaults().mysql_connections;
    };
    let tickr = TestApp::start_with(change, Registry::new()).await;
    let other = tickr.another_with(change, Registry::new()).await;
    let bases = [tickr.url(""), format!("http://{}", other.addr())];
    let (pulse, started) = (Arc::new(Pulse::start(&tickr).await), Instant::now());
    many_jobs(&tickr, &bases[0], 8).await;
    let jobs = tickr.count("SELECT COUNT(*) FROM owed").await;
    assert!(jobs >= 100_000, "{jobs}");
    let made = call(&bases[0], Method::PUT, "/v1/api-keys/flooder", TOKEN, Some(json!({"scope": "read"}))).await;
    let key = made.body["token"].as_str().unwrap().to_owned();
    until_known(&bases, &key).await;
    let mut runner = doomed_runner(&tickr, &bases[0]).await;
    let (over, seen) = (CancellationToken::new(), Arc::new(Mutex::new(BTreeMap::<u16, usize>::new())));
    let mut flood = JoinSet::new();
    for n in 0..CALLERS {
        let (base, key, seen) = (bases[n % 2].clone(), key.clone(), Arc::clone(&seen));
        flood.spawn(async move {
            let client = http();
            loop {
                let count = client.get(format!("{base}/v1/jobs/count?q=payload.a:b")).bearer_auth(&key);
                let status = answer(count).await.status;
                *seen.lock().unwrap().entry(status).or_default() += 1;
                if status == 401 {
                    break;
                }
            }
        });
    }
    let mut others = JoinSet::new();
    for base in &bases {
        others.spawn(probe(Arc::clone(&pulse), base.clone(), over.clone(), WORST));
    }
    others.spawn(operate(Arc::clone(&pulse), bases.clone(), over.clone()));
    eventually("the seats are taken", || async { seen.lock().unwrap().contains_key(&429).then_some(()) }).await;
    // The attempts of a killed runner are ended meanwhile, within its lease and five seconds.
    let killed = kill(&tickr, &mut runner).await;
    let reaped = until_reaped(&pulse, &tickr, killed);
    let (reaped, ()) = tokio::join!(reaped, tokio::time::sleep(Duration::from_secs(15)));
    let end = || call(&bases[0], Method::DELETE, "/v1/api-keys/flooder", TOKEN, None);
    let took = promptly(&pulse, "the end of the key", 200, WORST, end).await;
    let refused = assert_refused(&pulse, &bases, &key).await;
    while let Some(caller) = flood.join_next().await {
        caller.unwrap();
    }
    over.cancel();
    let mut calls = Took::new();
    for (what, mut took) in others.join_all().await.into_iter().flatten() {
        calls.entry(what).or_default().append(&mut took);
    }
    let seen = seen.lock().unwrap().clone();
    println!(
        "{jobs} jobs, {CALLERS} callers: answers {seen:?}; lost attempts ended after {reaped:?}; the end of the key took \
         {took:?}, and it was refused {refused:?} later"
    );
    assert!(seen.keys().all(|status| [200, 401, 429].contains(status)) && seen.contains_key(&429), "{seen:?}");
    assert_prompt(calls);
    tickr.sql("DELETE FROM dead_letters").await;
    assert_it_ticked(&pulse, started, &tickr, &bases[0]).await;
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_ended_in_the_store_when_the_api_cannot_be_asked() {
    let tickr = TestApp::start().await;
    let made = answer(http().put(tickr.url("/v1/api-keys/lost")).json(&json!({"scope": "admin"}))).await;
    let key = made.body["token"].as_str().unwrap().to_owned();
    assert_eq!(call(&tickr.url(""), Method::GET, "/v1/stats", &key, None).await.status, 200);
    let revoke = async |name: &str| {
        let url = tickr.config.mysql_url().unwrap().expose().to_owned();
        let mut command = command(&program(), tickr.dir.path(), &["api-keys", "revoke", name, "--in-store", "--json"]);
        command.env("TICKR_MYSQL_URL", url);
        outcome(command).await
    };
    let (pulse, began) = (Pulse::start(&tickr).await, Instant::now());
    let (code, out, err) = revoke("lost").await;
    assert_eq!(code, 0, "{err}");
    let said: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((said["name"].as_str(), said["revoked_at"].is_string()), (Some("lost"), true), "{said}");
    let ended = Instant::now();
    eventually("the key is refused", || async {
        (call(&tickr.url(""), Method::GET, "/v1/stats", &key, None).await.status == 401).then_some(())
    })
    .await;
    println!("refused {:?} after the command began, {:?} after its end", began.elapsed(), ended.elapsed());
    pulse.assert_within(Duration::from_secs(2), ended, "the key is refused after the end of the command");
    let (code, _, err) = revoke("another").await;
    assert!(code != 0 && err.contains("there is no API key another"), "{code} {err}");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM audit WHERE action = 'api_key.revoke'").await, 1);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_hold_for_ten_seconds_when_it_cannot_be_read_whether_they_were_revoked() {
    let tickr = TestApp::start_with(|config| config.api_tokens = vec![TOKEN.to_owned().into()], Registry::new()).await;
    let base = tickr.url("");
    let made = call(&base, Method::PUT, "/v1/api-keys/board", TOKEN, Some(json!({"scope": "read"}))).await;
    let key = made.body["token"].as_str().unwrap().to_owned();
    let mut stream = http().get(format!("{base}/v1/events")).bearer_auth(&key).send().await.unwrap();
    assert_eq!(stream.status(), 200);
    let job = json!({"kind": "sleep", "payload": {"ms": 100}});
    let job = call(&base, Method::POST, "/v1/jobs", TOKEN, Some(job)).await.body["id"].as_str().unwrap().to_owned();
    let wait = json!({"kind": "noop", "delay_ms": 3_600_000});
    let wait = call(&base, Method::POST, "/v1/jobs", TOKEN, Some(wait)).await.body["id"].as_str().unwrap().to_owned();
    assert!(stream.chunk().await.unwrap().is_some(), "the stream tells of {job}");
    let mut wait = JoinSet::from_iter([{
        let asked = http().get(format!("{base}/v1/jobs/{wait}/result?wait=60s")).bearer_auth(&key);
        async move { answer(asked).await }
    }]);
    // The ten seconds begin at the last read. MySQL may rename slowly, and the machine may stand still meanwhile.
    tickr.app.operator_settings().listen().changed().await.unwrap();
    tickr.sql("RENAME TABLE api_keys TO api_keys_away").await;
    let away = Instant::now() - tickr.app.operator_settings().api_keys_age();
    let mut follow = JoinSet::from_iter([async move {
        while stream.chunk().await.unwrap().is_some() {}
        Instant::now()
    }]);
    assert_eq!(call(&base, Method::GET, "/v1/whoami", &key, None).await.status, 200);
    let refused = eventually("the key does not hold any more", || async {
        let answer = call(&base, Method::GET, "/v1/whoami", &key, None).await;
        (answer.status != 200).then_some(answer)
    })
    .await;
    assert_eq!((refused.status, refused.code()), (503, "store_unavailable"), "{:#}", refused.body);
    assert!(away.elapsed() > Duration::from_secs(8), "{:?}", away.elapsed());
    // Neither does it hold for requests that began before.
    let ended = tokio::time::timeout(DEADLINE, follow.join_next()).await.expect("the stream ends").unwrap().unwrap();
    let held = ended.saturating_duration_since(away);
    println!("the stream ended {held:?} after the API keys could not be read any more");
    assert!(held > Duration::from_secs(8), "{held:?}");
    // By itself the wait would end later.
    let refused = tokio::time::timeout(DEADLINE, wait.join_next()).await.expect("the wait ends").unwrap().unwrap();
    assert_eq!((refused.status, refused.code()), (503, "store_unavailable"), "{:#}", refused.body);
    // Tokens of the configuration do not depend on MySQL.
    assert_eq!(call(&base, Method::GET, "/v1/whoami", TOKEN, None).await.status, 200);
    tickr.sql("RENAME TABLE api_keys_away TO api_keys").await;
    eventually("the key holds again", || async {
        (call(&base, Method::GET, "/v1/whoami", &key, None).await.status == 200).then_some(())
    })
    .await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_on_other_settings_holds_up_no_revocation() {
    let tickr = TestApp::start_with(|config| config.api_tokens = vec![TOKEN.to_owned().into()], Registry::new()).await;
    let base = tickr.url("");
    let made = call(&base, Method::PUT, "/v1/api-keys/board", TOKEN, Some(json!({"scope": "read"}))).await;
    let key = made.body["token"].as_str().unwrap().to_owned();
    let mut copy = tickr.app.operator_settings().listen();
    let mut operator = tickr.mysql().await;
    // The summary and each read of all settings wait for this table, longer than the test lasts.
    operator.execute("LOCK TABLES limits WRITE").await.unwrap();
    // The first of these reads may have begun before the lock. After the third one, that of all settings waits.
    for _ in 0..3 {
        tokio::time::timeout(DEADLINE, copy.changed()).await.expect("the API keys are read").unwrap();
    }
    assert_eq!(call(&base, Method::GET, "/v1/whoami", &key, None).await.status, 200);
    tickr.sql("UPDATE api_keys SET revoked_at = UTC_TIMESTAMP(6), revoked_by = 'eve'").await;
    let refused = eventually("the API key ends", || async {
        let answer = call(&base, Method::GET, "/v1/whoami", &key, None).await;
        (answer.status != 200).then_some(answer)
    })
    .await;
    assert_eq!(refused.status, 401, "{:#}", refused.body);
    operator.execute("UNLOCK TABLES").await.unwrap();
    tickr.stop().await;
}

/// A shell gives a program 1,024 open files, and clients may have twice as many connections. Here both are smaller.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_use_up_the_files_of_a_shell_cost_no_attempt_of_a_callback() {
    const FILES: usize = 160;
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    let sink = Sink::start(|_, _| (200, String::new())).await;
    // Clients that send nothing would be cut off after ten seconds.
    let env = [("TICKR_CALLBACK_ALLOW_PRIVATE", "true"), ("TICKR_HTTP_HEADER_TIMEOUT", "60s")];
    let runner = Runner::start_with_files(&tickr, FILES, &env);
    let address = runner.base().await.replace("http://", "");
    let mut clients = Vec::new();
    for _ in 0..FILES {
        clients.push(TcpStream::connect(&address).await.unwrap());
    }
    eventually("the clients have the files of the shell", || async { (runner.open_files() >= FILES).then_some(()) })
        .await;
    let job = json!({"kind": "http", "payload": {"url": sink.url(), "body": {}}, "max_attempts": 1});
    let id = tickr.enqueue(job).await;
    tickr.until(id, State::Completed).await;
    tickr.assert_each_ran_once(1).await;
    drop((clients, runner));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_cannot_reach_mysql_makes_the_next_probe_ask_anew() {
    let behind = TestApp::start_with(|config| config.queues = vec!["elsewhere".into()], Registry::new()).await;
    let proxy = Proxy::start(behind.config.mysql_url().unwrap().expose()).await;
    let through = |config: &mut tickr::config::Config| {
        config.mysql_url = Some(ServerUrl::mysql(&proxy.url()).unwrap());
    };
    let runner = behind.another_with(through, Registry::new()).await;
    let get = async |path: &str| answer(http().get(format!("http://{}{path}", runner.addr()))).await.status;
    let (mut proofs, deadline) = (0, Instant::now() + 4 * DEADLINE);
    while proofs < 3 {
        assert!(Instant::now() < deadline, "only {proofs} rounds proved anything");
        eventually("the runner is ready", || async { (get("/readyz").await == 200).then_some(()) }).await;
        // After this wait, the next probe makes a check of its own, so its result is new when a request fails.
        tokio::time::sleep(Duration::from_millis(600)).await;
        let checked = Instant::now();
        if get("/readyz").await != 200 {
            // The machine stood still.
            continue;
        }
        proxy.refuse("SELECT IF(queue IN", 1053, usize::MAX);
        assert_eq!(get("/v1/stats").await, 503);
        // Now MySQL takes no writes. Only a new check can tell.
        proxy.refuse("BEGIN;INSERT INTO cluster_locks", 1290, usize::MAX);
        assert_eq!(get("/readyz").await, 503, "ready by a check from before the failed request");
        // A check is used for half a second. If it was older, the probe had to ask anew in any case.
        let age = checked.elapsed();
        println!("the check before the failed request was at most {age:?} old");
        proofs += i32::from(age < Duration::from_millis(500));
        proxy.pass();
    }
    runner.stop(CancellationToken::new()).await;
    behind.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_probes_shares_its_looks_at_mysql_and_none_is_told_ready_after_mysql_went() {
    let tickr = TestApp::start_alone(|_| {}, |_| {}).await;
    let mut mysql = tickr.mysql().await;
    for setting in ["SET GLOBAL log_output = 'TABLE'", "SET GLOBAL general_log = 1"] {
        mysql.execute(setting).await.unwrap();
    }
    // Another server watches the machine: the one of the test is killed.
    let (pulse, watched, of_pulse) = Pulse::apart().await;
    let (over, url, began) = (CancellationToken::new(), tickr.url("/readyz"), Instant::now());
    let (mut probes, ready) = (JoinSet::new(), Arc::new(AtomicU32::new(0)));
    for _ in 0..16 {
        let (over, url, ready) = (over.clone(), url.clone(), Arc::clone(&ready));
        probes.spawn(async move {
            // Count the answers with "ready", and return the time of the last request with such an answer.
            let (client, mut last) = (http(), Instant::now());
            while !over.is_cancelled() {
                let asked = Instant::now();
                if client.get(&url).send().await.unwrap().status() == 200 {
                    ready.fetch_add(1, Ordering::SeqCst);
                    last = asked;
                }
                // Probes that come together share a look. More of them would only keep the processors busy.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            last
        });
    }
    eventually("many probes hear in three seconds that tickr is ready", || async {
        (ready.load(Ordering::SeqCst) > 300 && pulse.time_since(began) > Duration::from_secs(3)).then_some(())
    })
    .await;
    mysql.execute("SET GLOBAL general_log = 0").await.unwrap();
    let took = began.elapsed();
    let looks = "SELECT COUNT(*) FROM mysql.general_log WHERE argument LIKE '%cluster_locks (id, turn)%' \
                 AND command_type IN ('Query', 'Execute') AND argument NOT LIKE 'SELECT%'";
    let looks = tickr.count(looks).await;

    tickr.services().mysql().kill9().unwrap();
    let out = Instant::now();
    eventually("probes hear that mysql is out", || async {
        (http().get(&url).send().await.ok()?.status() == 503).then_some(())
    })
    .await;
    let heard = out.elapsed();
    // Wait for longer than a check is used, so that a late "ready" would be seen.
    tokio::time::sleep(Duration::from_secs(1)).await;
    over.cancel();
    let mut last = began;
    while let Some(probe) = probes.join_next().await {
        last = last.max(probe.unwrap());
    }
    let ready = ready.load(Ordering::SeqCst);
    println!("{ready} probes, {looks} looks in {took:?}; heard of the outage after {heard:?}");
    let most = 2 * i64::try_from(took.as_secs()).unwrap() + 3;
    assert!((2..=most).contains(&looks), "{looks} looks in {took:?}");
    let late = pulse.time_between(out, last.max(out));
    assert!(late < Duration::from_millis(700), "told ready {late:?} after mysql was killed, beside stalls");
    drop(pulse);
    drop_database(&of_pulse, &watched).await;
    tickr.services().mysql().start_again().unwrap();
    eventually("probes hear that mysql is back", || async {
        (http().get(&url).send().await.ok()?.status() == 200).then_some(())
    })
    .await;
    tickr.stop().await;
}
