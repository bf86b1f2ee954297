//! The client in Rust: typed jobs, in a runner and from other processes, with the checks of the API.

use std::collections::HashSet;
use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use tickr::prelude::*;
use tickr::{Cancelled, Conflict, Enqueue, Enqueued, Error, OnConflict, OnParentFailure, Problem, State, UniqueUntil};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::support::{TestApp, eventually};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Stamp {
    #[schemars(length(max = 10))]
    word: String,
    #[serde(default)]
    copies: u32,
}

impl Kind for Stamp {
    const NAME: &'static str = "stamp";
}

/// Checks more than the schema: no empty words.
struct Stamps;

impl Handler for Stamps {
    type Payload = Stamp;

    fn check(&self, stamp: &Stamp) -> Vec<Problem> {
        if stamp.word.is_empty() { vec![Problem::at("/word", "must not be empty")] } else { Vec::new() }
    }

    /// A stamp with copies enqueues one stamp without. Its first attempt fails after that one has completed.
    async fn run(&self, stamp: Stamp, ctx: Context) -> Outcome {
        if stamp.copies == 0 {
            return Output::json(&stamp.word);
        }
        let copy = Stamp { copies: 0, ..stamp };
        let client = ctx.client();
        let made = client.enqueue(&copy).idempotency_key(format!("copy:{}", ctx.job_id())).await?;
        if ctx.attempt() > 1 {
            return Output::json(&made.id);
        }
        while client.status(made.id).await?.is_none_or(|copy| copy.state != State::Completed) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Err(Failure::retry("the copy has completed"))
    }
}

fn stamp(word: &str) -> Stamp {
    Stamp { word: word.to_owned(), copies: 0 }
}

fn kinds() -> Registry {
    let mut kinds = Registry::new();
    kinds.register_handler(Stamps);
    kinds
}

async fn tickr() -> TestApp {
    TestApp::start_with(|_| {}, kinds()).await
}

/// Return the clients of all ways: of the runner, with connections of its own, and of the API.
async fn clients(tickr: &TestApp) -> [Client; 3] {
    let (mysql, redis) = (tickr.config.mysql_url().unwrap(), tickr.config.redis_url().unwrap());
    let apart = Client::connect(mysql.expose(), redis.expose())
        .redis_prefix(&tickr.config.redis_prefix)
        .table_prefix(tickr.config.table_prefix.as_str())
        .kinds(kinds());
    [tickr.app.client(), apart.await.unwrap(), Client::http(&tickr.url(""), None).unwrap()]
}

fn pointers(error: &Error) -> Vec<&str> {
    error.problems().iter().map(|problem| problem.pointer.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_every_client_is_run_with_its_options() {
    let tickr = tickr().await;
    for (place, client) in clients(&tickr).await.into_iter().enumerate() {
        let word = format!("w{place}");
        let Enqueued { id, existing, repeated, .. } =
            client.enqueue(&stamp(&word)).priority(2).max_attempts(3).tag("t:1").await.unwrap();
        assert!(!existing && !repeated);
        let job = tickr.until(id, State::Completed).await;
        assert_eq!((&job["result"], &job["priority"], &job["max_attempts"]), (&json!(word), &json!(2), &json!(3)));
        assert_eq!(job["tags"], json!(["t:1"]));
        let status = client.status(id).await.unwrap().unwrap();
        assert_eq!((status.state, status.result_as::<String>().unwrap()), (State::Completed, word));

        // A job for later waits, and a cancel ends it.
        let later = client.enqueue(&stamp("later")).delay(Duration::from_secs(3_600)).timeout(Duration::from_secs(5));
        let later = later.await.unwrap().id;
        assert_eq!(tickr.job(later).await["timeout_ms"], 5_000);
        assert_eq!(client.status(later).await.unwrap().unwrap().state, State::Waiting);
        assert_eq!(client.cancel(later).await.unwrap(), Cancelled::Done);
        assert_eq!(client.cancel(later).await.unwrap(), Cancelled::Ended(State::Cancelled));
        let nowhere = tickr::JobId::new();
        assert_eq!(client.cancel(nowhere).await.unwrap(), Cancelled::Missing);
        assert!(client.status(nowhere).await.unwrap().is_none());
        client.close().await;
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_client_refuses_what_the_api_refuses_and_writes_nothing() {
    let tickr = tickr().await;
    let deep = |levels: usize| Nested {
        deep: serde_json::from_str(&format!("{}{}", "[".repeat(levels), "]".repeat(levels))).unwrap(),
    };
    for client in clients(&tickr).await {
        let long = client.enqueue(&stamp("much too long")).await.unwrap_err();
        assert_eq!(pointers(&long), ["/payload/word"]);
        let empty = client.enqueue(&stamp("")).await.unwrap_err();
        assert_eq!(pointers(&empty), ["/payload/word"], "the handler's own check");
        let options = client.enqueue(&stamp("a")).priority(10).max_attempts(0).queue("No Name");
        let options = options.await.unwrap_err();
        assert_eq!(pointers(&options), ["/queue", "/priority", "/max_attempts"]);
        assert!(options.to_string().contains("/priority a priority is 0"), "{options}");
        let far = client.enqueue(&stamp("a")).delay(Duration::from_secs(400 * 86_400)).await.unwrap_err();
        assert_eq!(pointers(&far), ["/delay_ms"]);
        let batch = [stamp("fine"), stamp("much too long"), stamp("")];
        let batch = client.enqueue_many(&batch).await.unwrap_err();
        assert_eq!(pointers(&batch), ["/jobs/1/payload/word", "/jobs/2/payload/word"]);
        for error in [&long, &empty, &options, &far, &batch] {
            assert!(matches!(error, Error::Refused { .. }) && !error.is_transient(), "{error:?}");
        }
        let many = client.enqueue_many(&vec![stamp("a"); 1_001]).await.unwrap_err();
        assert_eq!(pointers(&many), ["/jobs"], "{many}");
        assert!(client.enqueue_many::<Stamp>([]).await.unwrap().is_empty());
        for error in [client.enqueue(&deep(64)).await.unwrap_err(), client.enqueue(&Unknown {}).await.unwrap_err()] {
            assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        }
        client.close().await;
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_of_every_client_runs_in_its_order_and_once_for_its_key() {
    let tickr = tickr().await;
    for (place, client) in clients(&tickr).await.into_iter().enumerate() {
        let key = format!("chain-{place}");
        let words = ["a", "b", "c"].map(stamp);
        let chain =
            || client.enqueue_chain(words.iter().map(|word| client.enqueue(word).tag("t:1"))).idempotency_key(&key);
        let made = chain().await.unwrap();
        let ids: Vec<String> = made.iter().map(|job| job.id.to_string()).collect();
        for (at, job) in made.iter().enumerate() {
            let shown = tickr.until(job.id, State::Completed).await;
            let parents = shown["after"].as_array().map(Vec::as_slice).unwrap_or_default();
            assert_eq!(parents, at.checked_sub(1).map(|before| json!(ids[before])).as_slice(), "{shown:#}");
            assert_eq!(shown["tags"], json!(["t:1"]));
        }
        let again = chain().await.unwrap();
        assert!(again.iter().zip(&made).all(|(again, made)| again.repeated && again.id == made.id), "{again:?}");
        // The same jobs beside one another are another request.
        let beside = client.enqueue_many(&words).tag("t:1").idempotency_key(&key).await;
        assert!(matches!(beside, Err(Error::Conflict(Conflict::IdempotencyKey))), "{beside:?}");
        let own = [client.enqueue(&words[0]), client.enqueue(&words[1]).idempotency_key("own")];
        assert_eq!(pointers(&client.enqueue_chain(own).await.unwrap_err()), ["/jobs/1/idempotency_key"]);
        let wrong = [client.enqueue(&stamp("")), client.enqueue(&words[0]).order_key("k")];
        let wrong = client.enqueue_chain(wrong).await.unwrap_err();
        assert!(pointers(&wrong).contains(&"/jobs/0/payload/word"), "{wrong:?}");
        // A job behind one that is not valid has a parent all the same.
        let wrong = [client.enqueue(&stamp("")), client.enqueue(&words[0]).on_parent_failure(OnParentFailure::Run)];
        assert_eq!(pointers(&client.enqueue_chain(wrong).await.unwrap_err()), ["/jobs/0/payload/word"]);
        let keyed = [client.enqueue(&words[0]).unique_key("k"), client.enqueue(&words[1]).unique_key("l")];
        assert_eq!(pointers(&client.enqueue_chain(keyed).await.unwrap_err()), ["/jobs/1/unique_key"]);
        assert!(client.enqueue_chain([]).await.unwrap().is_empty());
        client.close().await;
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 9);
    tickr.stop().await;
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct Nested {
    deep: serde_json::Value,
}

impl Kind for Nested {
    const NAME: &'static str = "nested";
}

/// A kind whose name no registry takes.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct Unknown {}

impl Kind for Unknown {
    const NAME: &'static str = "No Kind";
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_mean_the_same_in_every_client() {
    let tickr = tickr().await;
    for (place, client) in clients(&tickr).await.into_iter().enumerate() {
        let hour = Duration::from_secs(3_600);
        let unique = format!("unique {place}");
        let first = client.enqueue(&stamp("a")).unique_key(&unique).delay(hour).await.unwrap();
        let second = client.enqueue(&stamp("b")).unique_key(&unique).await.unwrap();
        assert_eq!((second.id, second.existing), (first.id, true));
        let rejected = client.enqueue(&stamp("b")).unique_key(&unique).on_conflict(OnConflict::Reject).await;
        let state = Some(State::Waiting);
        assert!(
            matches!(rejected, Err(Error::Conflict(Conflict::UniqueKey { holder, state: told })) if holder == first.id && told == state),
            "{rejected:?}"
        );
        let replaced = client.enqueue(&stamp("c")).unique_key(&unique).on_conflict(OnConflict::Replace).delay(hour);
        let replaced = replaced.await.unwrap();
        assert!(!replaced.existing && replaced.id != first.id);
        assert_eq!(tickr.job(first.id).await["state"], "cancelled");

        let kept = format!("kept {place}");
        let first = client.enqueue(&stamp("d")).unique_key(&kept).unique_for(hour).await.unwrap();
        tickr.until(first.id, State::Completed).await;
        let second = client.enqueue(&stamp("d")).unique_key(&kept).unique_until(UniqueUntil::Start).await.unwrap();
        assert_eq!((second.id, second.existing), (first.id, true));

        let once = format!("once-{place}");
        let one = client.enqueue(&stamp("a")).idempotency_key(&once).await.unwrap();
        let again = client.enqueue(&stamp("a")).idempotency_key(&once).await.unwrap();
        assert_eq!((again.id, again.repeated, one.repeated), (one.id, true, false));
        let other = client.enqueue(&stamp("b")).idempotency_key(&once).await;
        assert!(matches!(other, Err(Error::Conflict(Conflict::IdempotencyKey))), "{other:?}");
        let wrong = client.enqueue(&stamp("b")).idempotency_key("with space").await;
        assert!(matches!(wrong, Err(Error::Refused { .. })), "{wrong:?}");

        let words = [stamp("x"), stamp("y")];
        let batch = || client.enqueue_many(&words).unique_keys([format!("x{place}"), unique.clone()]).delay(hour);
        let made = batch().idempotency_key(format!("batch-{place}")).await.unwrap();
        assert_eq!(made.iter().map(|job| job.existing).collect::<Vec<_>>(), [false, true]);
        let repeated = batch().idempotency_key(format!("batch-{place}")).await.unwrap();
        assert!(repeated.iter().zip(&made).all(|(again, first)| again.id == first.id && again.repeated));
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 3 * 5);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repetition_that_comes_after_the_expiry_gets_the_first_answer_in_every_client() {
    let tickr = tickr().await;
    let paused = tickr.post("/v1/queues/default/pause", json!({"reason": "test"})).await;
    assert_eq!(paused.status, 200, "{:#}", paused.body);
    let (clients, stamp) = (clients(&tickr).await, stamp("a"));
    let expires_at = chrono::Utc::now() + Duration::from_secs(3);
    let call =
        |place: usize| clients[place].enqueue(&stamp).expires_at(expires_at).idempotency_key(format!("once-{place}"));
    let mut first = Vec::new();
    for place in 0..clients.len() {
        first.push(call(place).await.unwrap().id);
    }
    for (place, id) in first.into_iter().enumerate() {
        tickr.until(id, State::Failed).await;
        let again = call(place).await.unwrap();
        assert_eq!((again.id, again.repeated), (id, true), "{place}");
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 3);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_runs_again_enqueues_once_with_the_client_of_its_runner() {
    let tickr = tickr().await;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let first = tickr.enqueue(json!({
        "kind": "stamp", "payload": {"word": "a", "copies": 1}, "trace": {"traceparent": trace},
        "retry": {"base_ms": 1}
    }));
    let first = tickr.until(first.await, State::Completed).await;
    let copy: tickr::JobId = first["result"].as_str().unwrap().parse().unwrap();
    let copy = tickr.until(copy, State::Completed).await;
    assert_eq!(copy["result"], "a");
    assert_eq!(first["attempt"], 2);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 2, "the second attempt enqueued no second copy");
    assert!(copy["trace"]["traceparent"].as_str().unwrap().contains("4bf92f3577b34da6a3ce929d0e0e4736"), "{copy:#}");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_runner_has_stopped_says_so() {
    let tickr = tickr().await;
    let client = tickr.app.client();
    tickr.stop().await;
    let error = client.enqueue(&stamp("a")).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }) && error.is_transient());
    assert_eq!(error.source().unwrap().to_string(), "this client belongs to no running runner");
    // The same with the context of a handler's own test.
    let alone = Context::detached("stamp").client().enqueue(&stamp("a")).await.unwrap_err();
    assert!(alone.source().is_some(), "{alone:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_errors_of_servers_and_settings_have_their_causes() {
    let refused = Client::connect("postgres://db/tickr", "redis://cache").await.unwrap_err();
    assert!(matches!(refused, Error::Setup { .. }), "{refused:?}");
    assert!(refused.source().unwrap().to_string().contains("scheme"), "{refused:?}");
    let refused = Client::http("http://a.example,http://b.example", None).unwrap_err();
    assert!(matches!(refused, Error::Setup { .. }), "{refused:?}");
    assert!(refused.source().unwrap().to_string().contains("several servers"), "{refused:?}");

    let tickr = TestApp::start_alone(|_| {}, |_| {}).await;
    let (mysql, redis) = (tickr.config.mysql_url().unwrap(), tickr.config.redis_url().unwrap());
    let connect = || {
        Client::connect(mysql.expose(), redis.expose())
            .redis_prefix(&tickr.config.redis_prefix)
            .table_prefix(tickr.config.table_prefix.as_str())
    };
    let client = connect().await.unwrap();
    let wrong = Client::http(&tickr.url("/no/such/place"), None).unwrap();
    assert!(matches!(wrong.enqueue(&stamp("a")).await, Err(Error::Setup { .. })));
    // Without a handler, the schema of the type still decides; the word "" only the handler refuses.
    assert_eq!(pointers(&client.enqueue(&stamp("much too long")).await.unwrap_err()), ["/payload/word"]);
    let waits = client.enqueue(&stamp("")).await.unwrap();
    assert_eq!(tickr.job(waits.id).await["state"], "waiting", "no runner has the kind");

    // A Redis that is out is no error, and the client hints again when it is back.
    tickr.services().redis().stop().unwrap();
    let during = client.enqueue(&stamp("out")).await.unwrap();
    assert_eq!(tickr.job(during.id).await["state"], "waiting");
    tickr.services().redis().start_again().unwrap();
    eventually("the client's hints reach the index", async || {
        let far = client.enqueue(&stamp("back")).delay(Duration::from_secs(300)).await.unwrap();
        let mut conn = tickr.redis().await;
        let waiting: Vec<String> =
            redis::cmd("ZRANGE").arg(tickr.key("waiting")).arg(0).arg(-1).query_async(&mut conn).await.unwrap();
        waiting.iter().any(|member| member.contains(&far.id.to_string())).then_some(())
    })
    .await;
    client.close().await;
    tickr.stop_broken("the jobs of a kind without a handler wait").await;
}

/// Enqueue these jobs at the same time, and return the answers in their order.
async fn at_once(calls: impl IntoIterator<Item = Enqueue>) -> Vec<Result<Enqueued, Error>> {
    join_all(calls.into_iter().map(IntoFuture::into_future)).await
}

/// Return the number of jobs that came in a request with others.
async fn shared(tickr: &TestApp) -> i64 {
    tickr.count("SELECT COUNT(*) FROM jobs WHERE batch_size > 1").await
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_the_api_that_share_a_request_have_their_own_answers() {
    let tickr = tickr().await;
    let client = Client::http(&tickr.url(""), None).unwrap();
    let mut stamps: Vec<Stamp> = (0..30).map(|place| stamp(&format!("w{place}"))).collect();
    let answers = at_once(stamps.iter().map(|stamp| client.enqueue(stamp))).await;
    let mut ids = HashSet::new();
    for (stamp, answer) in stamps.iter().zip(answers) {
        let Enqueued { id, existing, repeated, .. } = answer.unwrap();
        assert!(!existing && !repeated && ids.insert(id));
        assert_eq!(tickr.job(id).await["payload"]["word"], stamp.word);
    }
    assert!(shared(&tickr).await > 0, "some of the calls shared a request");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 30);

    // A wrong job fails alone, and its problem is told as without company.
    stamps[15].word = "much too long".to_owned();
    stamps[20].word.clear();
    let answers = at_once(stamps.iter().map(|stamp| client.enqueue(stamp))).await;
    for (place, answer) in answers.into_iter().enumerate() {
        if place == 15 || place == 20 {
            assert_eq!(pointers(&answer.unwrap_err()), ["/payload/word"]);
        } else {
            assert!(ids.insert(answer.unwrap().id));
        }
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 58);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_the_api_that_depend_on_others_are_sent_alone() {
    let tickr = tickr().await;
    let client = Client::http(&tickr.url(""), None).unwrap();
    let (one, hour) = (stamp("a"), Duration::from_secs(3_600));
    let unique = || -> Vec<Enqueue> { (0..6).map(|_| client.enqueue(&one).unique_key("one").delay(hour)).collect() };
    let answers: Vec<Enqueued> = at_once(unique()).await.into_iter().map(Result::unwrap).collect();
    assert!(answers.iter().all(|answer| answer.id == answers[0].id));
    assert_eq!(answers.iter().filter(|answer| !answer.existing).count(), 1);
    let rejected = at_once(unique().into_iter().map(|call| call.on_conflict(OnConflict::Reject))).await;
    for answer in rejected {
        assert!(matches!(answer, Err(Error::Conflict(Conflict::UniqueKey { holder, .. })) if holder == answers[0].id));
    }
    let keyed = (0..6).map(|place| client.enqueue(&one).idempotency_key(format!("key-{place}")).delay(hour));
    assert!(at_once(keyed).await.into_iter().all(|answer| answer.is_ok()));
    let ordered = (0..6).map(|_| client.enqueue(&one).order_key("one").delay(hour));
    assert!(at_once(ordered).await.into_iter().all(|answer| answer.is_ok()));
    let own = client.clone().with_own_requests();
    let own = (0..6).map(|_| own.enqueue(&one).delay(hour));
    assert!(at_once(own).await.into_iter().all(|answer| answer.is_ok()));
    assert_eq!(shared(&tickr).await, 0);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 1 + 3 * 6);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_the_api_share_requests_within_the_body_limit_of_the_server() {
    let tickr = TestApp::start_with(|config| config.body_limit_bytes = 1_024, kinds()).await;
    let client = Client::http(&tickr.url(""), None).unwrap();
    let one = stamp("a");
    // The client halves its requests until the server takes them.
    for _ in 0..4 {
        let answers = at_once((0..40).map(|_| client.enqueue(&one))).await;
        assert!(answers.into_iter().all(|answer| answer.is_ok()));
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 160);
    assert!(shared(&tickr).await > 0);
    tickr.stop().await;
}

/// Answer one request. One that carries several jobs gets `answer`, or none, and the others wait for it.
async fn answer_apart(mut socket: TcpStream, answer: Option<&str>, shared: Arc<watch::Sender<bool>>) {
    let is_whole = |request: &str| {
        let Some((head, body)) = request.split_once("\r\n\r\n") else { return false };
        let size = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        size.is_some_and(|size| size.parse::<usize>().is_ok_and(|size| size == body.len()))
    };
    let mut request = String::new();
    while !is_whole(&request) {
        let mut chunk = [0; 1_024];
        let read = socket.read(&mut chunk).await.unwrap();
        assert!(read > 0, "the request ended early: {request}");
        request.push_str(std::str::from_utf8(&chunk[..read]).unwrap());
    }
    if request.starts_with("POST /v1/jobs/batch ") {
        if let Some(answer) = answer {
            socket.write_all(answer.as_bytes()).await.unwrap();
        }
        shared.send_replace(true);
        return;
    }
    let mut shared = shared.subscribe();
    shared.wait_for(|shared| *shared).await.unwrap();
    let body = json!({"id": tickr::JobId::new()}).to_string();
    let head = format!("HTTP/1.1 201 Created\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    socket.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
}

/// Make four calls of a server that answers their shared request so, and return the errors. Two calls are under way
/// until the shared request has come, so the other two go without a permit. Each of the four is sent once.
async fn errors_of_a_shared_request(answer: Option<&'static str>) -> Vec<Error> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::http(&format!("http://{}", listener.local_addr().unwrap()), None).unwrap();
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&requests);
    let server = tokio::spawn(async move {
        let shared = Arc::new(watch::Sender::new(false));
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            counted.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(answer_apart(socket, answer, Arc::clone(&shared)));
        }
    });
    let one = stamp("a");
    let answers = tokio::time::timeout(Duration::from_secs(30), at_once((0..4).map(|_| client.enqueue(&one)))).await;
    server.abort();
    let errors: Vec<Error> = answers.unwrap().into_iter().filter_map(Result::err).collect();
    assert_eq!((errors.len(), requests.load(Ordering::Relaxed)), (2, 3), "{errors:?}");
    errors
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_to_a_shared_request_leaves_its_callers_unsure_and_sends_nothing_again() {
    let unsure = errors_of_a_shared_request(None).await;
    assert!(unsure.iter().all(|error| matches!(error, Error::Unavailable { .. })), "{unsure:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shared_request_to_a_busy_runner_is_not_sent_again_for_each_caller() {
    let answer = "HTTP/1.1 429 Too Many Requests\r\ncontent-length: 37\r\nconnection: close\r\n\r\n\
                  {\"code\":\"overloaded\",\"detail\":\"busy\"}";
    let refused = errors_of_a_shared_request(Some(answer)).await;
    assert!(refused.iter().all(Error::is_transient), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answer_of_a_proxy_that_limits_requests_may_be_asked_for_again() {
    const LIMITED: [&str; 3] = ["408 Request Timeout", "425 Too Early", "429 Too Many Requests"];
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::http(&format!("http://{}", listener.local_addr().unwrap()), None).unwrap();
    let server = tokio::spawn(async move {
        for status in LIMITED.into_iter().chain(["403 Forbidden"]) {
            let answer = format!(
                "HTTP/1.1 {status}\r\ncontent-type: text/html\r\ncontent-length: 8\r\nconnection: close\r\n\r\n<p>no</p"
            );
            let (socket, _) = listener.accept().await.unwrap();
            let shared = Arc::new(watch::Sender::new(true));
            answer_apart(socket, Some(&answer), shared).await;
        }
    });
    for status in LIMITED {
        let error = client.enqueue_many(&[stamp("a")]).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{status}: {error:?}");
    }
    let error = client.enqueue_many(&[stamp("a")]).await.unwrap_err();
    assert!(matches!(error, Error::Setup { .. }), "{error:?}");
    server.await.unwrap();

    let answer = "HTTP/1.1 429 Too Many Requests\r\ncontent-type: text/html\r\ncontent-length: 8\r\n\
                  connection: close\r\n\r\n<p>no</p";
    let limited = errors_of_a_shared_request(Some(answer)).await;
    assert!(limited.iter().all(Error::is_transient), "{limited:?}");
}
