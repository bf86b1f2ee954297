//! Imports: any number of jobs, one per line, committed and answered part by part. With an idempotency key each line is
//! accepted at most once, however often the connection breaks.

use std::time::Duration;

use futures_util::stream;
use serde_json::{Value, json};
use tickr::config::Config;
use tickr::handlers::Registry;
use tickr::job::State;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::support::{DEADLINE, TestApp, answer, contract, eventually, eventually_seen, http};

/// The answer to a whole import: its lines, and its last line.
#[derive(Debug)]
struct Imported {
    status: u16,
    lines: Vec<Value>,
    end: Value,
}

async fn import(tickr: &TestApp, query: &str, key: Option<&str>, body: impl Into<reqwest::Body>) -> Imported {
    let request = http()
        .post(tickr.url(&format!("/v1/jobs/import{query}")))
        .header("Content-Type", "application/x-ndjson")
        .body(body);
    let request = match key {
        Some(key) => request.header("Idempotency-Key", key),
        None => request,
    };
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let text = response.text().await.unwrap();
    if status != 200 {
        let problem = serde_json::from_str(&text).unwrap();
        contract::hold("POST", "/v1/jobs/import", status, &headers, &problem);
        return Imported { status, lines: Vec::new(), end: problem };
    }
    assert_eq!(headers["content-type"], "application/x-ndjson");
    let mut lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let end = lines.pop().unwrap();
    for line in &lines {
        contract::fits_schema("ImportLine", line);
    }
    contract::fits_schema("ImportEnd", &end);
    Imported { status, lines, end }
}

/// Return the lines as NDJSON.
fn bytes_of(lines: &[Value]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn noops(count: u64) -> Vec<Value> {
    (0..count).map(|n| json!({"kind": "noop", "payload": {"n": n}})).collect()
}

fn later(count: u64) -> Vec<Value> {
    (0..count).map(|n| json!({"kind": "noop", "payload": {"n": n}, "delay_ms": 3_600_000})).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_line_is_answered_in_order_and_each_job_runs_once() {
    let tickr = TestApp::start_with(|config| config.workers = 16, Registry::new()).await;
    let imported = import(&tickr, "", None, bytes_of(&noops(1_234))).await;
    assert_eq!(
        imported.end,
        json!({"complete": true, "lines": 1_234, "accepted": 1_234, "existing": 0, "rejected": 0}),
        "{:?}",
        imported.status
    );
    let numbers: Vec<u64> = imported.lines.iter().map(|line| line["line"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=1_234).collect::<Vec<u64>>());
    tickr.until_idle().await;
    tickr.assert_each_ran_once(1_234).await;
    let id = imported.lines[1_100]["id"].as_str().unwrap().parse().unwrap();
    assert_eq!(tickr.job(id).await["payload"], json!({"n": 1_100}));

    let empty = import(&tickr, "", None, "\n \n").await;
    assert_eq!(empty.end, json!({"complete": true, "lines": 2, "accepted": 0, "existing": 0, "rejected": 0}));
    let quiet = import(&tickr, "?receipts=problems", None, bytes_of(&noops(700))).await;
    assert_eq!((quiet.lines.len(), &quiet.end["accepted"]), (0, &json!(700)));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_lines_stop_the_import_before_their_part_or_are_passed_over() {
    let tickr = TestApp::start().await;
    let mut lines: Vec<String> = later(700).iter().map(Value::to_string).collect();
    lines[600] = r#"{"kind": "nobody"}"#.into();
    lines[650] = r#"{"kind": "noop", "payload": {"a": ["#.into();
    let body = lines.join("\n");
    let stopped = import(&tickr, "", Some("k"), body.clone()).await;
    assert_eq!(stopped.lines.len(), 502, "the first part, and what is wrong with the second");
    let refused: Vec<(u64, &str)> = stopped.lines[500..]
        .iter()
        .map(|line| (line["line"].as_u64().unwrap(), line["problem"]["code"].as_str().unwrap()))
        .collect();
    assert_eq!(refused, [(601, "unknown_kind"), (651, "invalid_json")]);
    assert_eq!((&stopped.end["complete"], &stopped.end["accepted"]), (&json!(false), &json!(500)));
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 500);

    // The corrected import is sent again with the same idempotency key, and its first part is not done again.
    lines[600] = later(601)[600].to_string();
    lines[650] = later(651)[650].to_string();
    let mended = import(&tickr, "", Some("k"), lines.join("\n")).await;
    assert_eq!((&mended.end["complete"], &mended.end["accepted"]), (&json!(true), &json!(700)));
    assert!(mended.lines[..500].iter().all(|line| line["replayed"] == true));
    assert!(mended.lines[500..].iter().all(|line| line.get("replayed").is_none()));
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 700);

    let passed = import(&tickr, "?on_error=continue", None, body).await;
    assert_eq!(passed.end, json!({"complete": true, "lines": 700, "accepted": 698, "existing": 0, "rejected": 2}));
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 1_398);

    // These lines are refused for other reasons.
    let large = format!(r#"{{"kind":"noop","payload":{{"a":"{}"}}}}"#, "x".repeat(300_000));
    let odd = ["[]", &"[".repeat(100), &large, "\u{feff}{}", "{\"kind\":\"sleep\"}", "nonsense"].join("\n");
    let odd = import(&tickr, "?on_error=continue", None, odd).await;
    let codes: Vec<&str> = odd.lines.iter().map(|line| line["problem"]["code"].as_str().unwrap()).collect();
    let expected = ["invalid_request", "too_deep", "too_large", "invalid_json", "invalid_payload", "invalid_json"];
    assert_eq!((codes, &odd.end["rejected"]), (expected.to_vec(), &json!(6)));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unique_keys_are_settled_line_by_line() {
    let tickr = TestApp::start().await;
    let keyed = |key: &str, on_conflict: &str| json!({"kind": "noop", "unique_key": key, "on_conflict": on_conflict, "delay_ms": 3_600_000});
    let lines = [
        keyed("a", "reject"),
        keyed("a", "return"),
        keyed("b", "return"),
        keyed("b", "replace"),
        keyed("a", "reject"),
        keyed("c", "reject"),
    ];
    let passed = import(&tickr, "?on_error=continue", Some("k"), bytes_of(&lines)).await;
    let of = |at: usize, name: &str| passed.lines[at][name].clone();
    assert_eq!((of(1, "existing"), of(1, "id")), (json!(true), of(0, "id")));
    assert_eq!((of(4, "problem")["code"].clone(), of(5, "problem")), (json!("unique_key_taken"), Value::Null));
    assert_eq!(passed.end, json!({"complete": true, "lines": 6, "accepted": 4, "existing": 1, "rejected": 1}));
    let replaced = of(2, "id").as_str().unwrap().parse().unwrap();
    tickr.until(replaced, State::Cancelled).await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM unique_keys").await, 3);
    let again = import(&tickr, "?on_error=continue", Some("k"), bytes_of(&lines)).await;
    let ids = |imported: &Imported| imported.lines.iter().map(|line| line["id"].clone()).collect::<Vec<_>>();
    assert_eq!((ids(&again), &again.end), (ids(&passed), &passed.end));
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 4);
    let stopped = import(&tickr, "", None, bytes_of(&[keyed("d", "reject"), keyed("a", "reject")])).await;
    assert_eq!((&stopped.end["accepted"], &stopped.lines[0]["line"]), (&json!(0), &json!(2)));
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 4);
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_behind_one_that_puts_a_job_off_is_answered_with_that_job() {
    let tickr = TestApp::start().await;
    let asks = |delay_ms: u64| json!({"kind": "noop", "unique_key": "k", "on_conflict": "postpone", "delay_ms": delay_ms, "max_wait_ms": 7_200_000});
    let holder = tickr.enqueue(asks(3_600_000)).await;
    let lines = bytes_of(&[asks(9_000_000), json!({"kind": "noop", "unique_key": "k"})]);
    for (key, replayed) in [(None, false), (Some("k"), false), (Some("k"), true)] {
        let imported = import(&tickr, "", key, lines.clone()).await;
        let due = &tickr.job(holder).await["execute_at"];
        for line in &imported.lines {
            assert_eq!((&line["id"], &line["execute_at"]), (&json!(holder), due), "{:#?}", imported.lines);
            assert_eq!((&line["existing"], line["replayed"] == true), (&json!(true), replayed));
        }
        assert_eq!((imported.lines.len(), &imported.end["existing"]), (2, &json!(2)), "{:#}", imported.end);
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 1);
    tickr.stop().await;
}

/// Send an import with these headers and a body of 6 MiB. Read the answer, with its head, only when all is sent. The
/// buffer of the socket is small, so a runner that reads no more would be noticed.
async fn send_all_first(tickr: &TestApp, query: &str, headers: &str) -> std::io::Result<String> {
    let socket = TcpSocket::new_v4()?;
    socket.set_send_buffer_size(64 << 10)?;
    let mut socket = socket.connect(tickr.app.addr()).await?;
    let body = vec![b'\n'; 6 << 20];
    let head = format!(
        "POST /v1/jobs/import{query} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    socket.write_all(head.as_bytes()).await?;
    socket.write_all(&body).await?;
    let mut heard = String::new();
    socket.read_to_string(&mut heard).await?;
    Ok(heard)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_import_is_answered_to_a_client_that_sends_first() {
    let tickr = TestApp::start().await;
    let refused = async |query: &str, headers: &str, status: &str, code: &str| {
        // The body is larger than all buffers on its way. A runner reads on for two seconds, in which a busy machine may
        // stand still.
        let heard = eventually_seen("the answer", || async { send_all_first(&tickr, query, headers).await }).await;
        assert!(heard.starts_with(&format!("HTTP/1.1 {status} ")), "{headers}: {heard}");
        assert!(heard.contains(&format!("\"code\":\"{code}\"")), "{headers}: {heard}");
    };
    let lines = "Content-Type: application/x-ndjson";
    let zipped = format!("{lines}\r\nContent-Encoding: gzip");
    refused("", "Content-Type: text/csv", "415", "unsupported_media_type").await;
    refused("", &zipped, "415", "unsupported_media_type").await;
    refused("", &format!("{lines}\r\nIdempotency-Key: not a key"), "422", "invalid_request").await;
    refused("?on_error=x", lines, "422", "invalid_request").await;

    // Sixteen imports may run at once. The heads of their answers say that they do.
    let mut open = Vec::new();
    for _ in 0..16 {
        let mut socket = TcpStream::connect(tickr.app.addr()).await.unwrap();
        let head = format!("POST /v1/jobs/import HTTP/1.1\r\nHost: localhost\r\n{lines}\r\nContent-Length: 9\r\n\r\n");
        socket.write_all(head.as_bytes()).await.unwrap();
        let begun = tokio::time::timeout(DEADLINE, socket.read(&mut [0; 1])).await.expect("the answer begins");
        assert_eq!(begun.unwrap(), 1);
        open.push(socket);
    }
    refused("", lines, "429", "overloaded").await;
    drop(open);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_that_breaks_off_anywhere_is_sent_again_and_does_nothing_twice() {
    let tickr = TestApp::start().await;
    let other = tickr.another().await;
    let body = bytes_of(&later(2_000));
    for cut in 0..12 {
        // The imports go through both runners and break off at different places. Two of three do not wait for any of
        // the answer.
        let addr = if cut % 2 == 0 { tickr.app.addr() } else { other.addr() };
        let mut socket = TcpStream::connect(addr).await.unwrap();
        let head = format!(
            "POST /v1/jobs/import HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\nIdempotency-Key: cut\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        socket.write_all(head.as_bytes()).await.unwrap();
        let sent = body.len() * cut / 12 + rand::random_range(0..body.len() / 12);
        socket.write_all(&body.as_bytes()[..sent]).await.unwrap();
        if cut % 3 == 0 {
            let _ = tokio::time::timeout(Duration::from_millis(50), socket.read(&mut [0; 100])).await;
        }
        drop(socket);
    }
    // A runner may still be working on the last of those imports.
    let mut whole = import(&tickr, "", Some("cut"), body.clone()).await;
    while whole.end["problem"]["code"] == "idempotency_in_progress" {
        whole = import(&tickr, "", Some("cut"), body.clone()).await;
    }
    assert_eq!((&whole.end["complete"], &whole.end["accepted"]), (&json!(true), &json!(2_000)));
    assert!(whole.lines.iter().any(|line| line["replayed"] == true));
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 2_000);
    assert_eq!(tickr.count("SELECT COUNT(DISTINCT payload) FROM jobs").await, 2_000);
    // Another body with the same idempotency key is refused, and changes nothing.
    let foreign = import(&tickr, "", Some("cut"), bytes_of(&noops(10))).await;
    assert_eq!(foreign.end["problem"]["code"], "idempotency_conflict");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 2_000);
    tickr.assert_sound().await;
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idempotency_key_of_another_call_is_refused_by_an_import_and_the_other_way_round() {
    let tickr = TestApp::start().await;
    let post = async |key: &'static str| {
        let request = http().post(tickr.url("/v1/jobs")).header("Idempotency-Key", key).json(&later(1)[0]);
        answer(request).await
    };
    assert_eq!(post("single").await.status, 201);
    for query in ["", "?on_error=continue"] {
        for lines in [later(1), noops(3), vec![json!({"kind": "missing"})]] {
            let refused = import(&tickr, query, Some("single"), bytes_of(&lines)).await;
            assert_eq!(refused.end["problem"]["code"], "idempotency_conflict", "{:#}", refused.end);
            assert_eq!((&refused.end["accepted"], refused.lines.len()), (&json!(0), 0));
        }
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 1);

    let first = import(&tickr, "", Some("many"), bytes_of(&later(3))).await;
    assert_eq!(first.end["accepted"], 3, "{:#}", first.end);
    let refused = post("many").await;
    assert_eq!((refused.status, refused.code()), (422, "idempotency_conflict"), "{:#}", refused.body);
    // Neither refusal takes the key from the call that it belongs to.
    assert_eq!(post("single").await.header("idempotency-replayed"), "true");
    assert!(import(&tickr, "", Some("many"), bytes_of(&later(3))).await.lines.iter().all(|it| it["replayed"] == true));
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 4);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_behind_a_name_that_is_no_text_belong_to_the_body_of_an_import() {
    let tickr = TestApp::start().await;
    let [one, three, other] = [1, 2, 3].map(|n| json!({"kind": "noop", "payload": {"n": n}, "delay_ms": 3_600_000}));
    // Half of a surrogate pair is valid JSON, and no text.
    let odd = r#"{"kind": "noop", "payload": {"\ud800": 1}}"#;
    let send = async |lines: String| import(&tickr, "?on_error=continue", Some("k"), lines).await;
    let first = send(format!("{one}\n{odd}\n{three}\n")).await;
    assert_eq!((&first.end["accepted"], &first.end["rejected"]), (&json!(2), &json!(1)), "{:#}", first.end);
    for lines in [format!("{one}\n{odd}\n{other}\n"), format!("{one}\n{odd}\n")] {
        let refused = send(lines).await;
        assert_eq!(refused.end["problem"]["code"], "idempotency_conflict", "{:#?}", refused.lines);
        assert_eq!((&refused.end["accepted"], refused.lines.len()), (&json!(0), 0));
    }
    let again = send(format!("{one}\n{odd}\n{three}\n")).await;
    assert_eq!([0, 2].map(|at| &again.lines[at]["id"]), [0, 2].map(|at| &first.lines[at]["id"]));
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 2);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_that_was_carried_out_gets_its_answer_again_when_its_lines_are_not_valid_any_more() {
    let tickr = TestApp::start().await;
    let declare = async |kind: &str| {
        assert_eq!(tickr.put(&format!("/v1/kinds/{kind}"), json!({})).await.status, 201);
    };
    declare("resize").await;
    let of = |kind: &str| json!({"kind": kind, "delay_ms": 3_600_000});
    let keyed = json!({"kind": "resize", "delay_ms": 3_600_000, "unique_key": "a", "on_conflict": "reject"});
    let fields = json!({"kind": "resize", "payload": {"to": 1}, "delay_ms": 3_600_000, "unique_fields": ["/to"],
        "on_conflict": "reject"});
    let cases = [
        ("", "stop", vec![of("noop"), of("resize"), of("noop")]),
        ("?on_error=continue", "continue", vec![of("noop"), of("resize"), of("noop")]),
        ("?on_error=continue", "refused", vec![of("noop"), of("crop"), of("resize")]),
        ("?on_error=continue", "alone", vec![of("resize")]),
        // The second line with the unique key begins another part.
        ("?on_error=continue", "parts", vec![keyed.clone(), keyed, of("noop")]),
        ("?on_error=continue", "fields", vec![fields.clone(), fields, of("noop")]),
    ];
    let mut first = Vec::new();
    for (query, key, lines) in &cases {
        first.push(import(&tickr, query, Some(*key), bytes_of(lines)).await);
    }
    let accepted: Vec<&Value> = first.iter().map(|imported| &imported.end["accepted"]).collect();
    assert_eq!(accepted, [3, 3, 2, 1, 2, 2]);

    // The kind is gone, and the one that did not exist is declared.
    let gone = tickr.delete("/v1/kinds/resize").await;
    assert_eq!(gone.status, 204, "{:#}", gone.body);
    declare("crop").await;
    eventually("the kinds are followed", || async {
        let codes =
            [tickr.post("/v1/jobs", of("resize")).await.status, tickr.post("/v1/jobs", of("crop")).await.status];
        (codes == [422, 201]).then_some(())
    })
    .await;
    let before = tickr.count("SELECT COUNT(*) FROM jobs").await;
    for ((query, key, lines), first) in cases.iter().zip(&first) {
        let again = import(&tickr, query, Some(*key), bytes_of(lines)).await;
        let ids = |imported: &Imported| imported.lines.iter().map(|line| line["id"].clone()).collect::<Vec<_>>();
        assert_eq!((ids(&again), &again.end), (ids(first), &first.end), "{key}: {:#?}", again.lines);
        let replayed = |line: &Value| line["replayed"] == true || line["problem"] != Value::Null;
        assert!(again.lines.iter().all(replayed), "{key}: {:#?}", again.lines);
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, before);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sender_is_slowed_down_to_what_is_committed_and_read() {
    let tickr = TestApp::start().await;
    // The client sends without end and reads nothing of the answer. When all buffers in between are full, the runner
    // stops reading.
    let mut socket = TcpStream::connect(tickr.app.addr()).await.unwrap();
    let head = "POST /v1/jobs/import?on_error=continue HTTP/1.1\r\nHost: localhost\r\n\
                Content-Type: application/x-ndjson\r\nContent-Length: 1000000000\r\n\r\n";
    socket.write_all(head.as_bytes()).await.unwrap();
    // Each part has one job. All other lines are refused, and the long answers to them fill the buffers soon.
    let mut lines = vec![json!({"kind": "missing", "payload": {"pad": "x".repeat(200)}}); 499];
    lines.extend(later(1));
    let part = bytes_of(&lines);
    let mut sent = 0;
    while let Ok(done) = tokio::time::timeout(Duration::from_millis(1_500), socket.write_all(part.as_bytes())).await {
        done.unwrap();
        sent += 500;
        assert!(sent < 400_000, "nothing slows the sender down");
    }
    let committed = tickr.count("SELECT COUNT(*) FROM jobs").await;
    assert!(committed > 0 && committed <= sent / 500, "{committed} parts of {sent} lines");
    // When the client reads, the import continues.
    let (mut reader, _writer) = socket.split();
    let mut heard = vec![0; 1 << 20];
    let more = async {
        while tickr.count("SELECT COUNT(*) FROM jobs").await == committed {
            assert!(reader.read(&mut heard).await.unwrap() > 0);
        }
    };
    tokio::time::timeout(DEADLINE, more).await.unwrap();
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_whose_sender_pauses_gets_its_last_line_when_the_runner_stops() {
    let tickr = TestApp::start().await;
    let (sender, receiver) = mpsc::channel::<Result<String, std::io::Error>>(8);
    let body = stream::unfold(receiver, |mut receiver| async { receiver.recv().await.map(|chunk| (chunk, receiver)) });
    sender.send(Ok(bytes_of(&later(501)))).await.unwrap();
    let request = http().post(tickr.url("/v1/jobs/import")).header("Content-Type", "application/x-ndjson");
    let mut response = request.body(reqwest::Body::wrap_stream(body)).send().await.unwrap();
    let mut heard = String::new();
    while heard.lines().count() < 500 {
        heard.push_str(std::str::from_utf8(&response.chunk().await.unwrap().unwrap()).unwrap());
    }
    // The next part has one line, and the sender neither sends another nor ends the body.
    let rest = tokio::spawn(response.text());
    tickr.stop().await;
    let rest = rest.await.unwrap().expect("the answer has an end");
    let end: Value = serde_json::from_str(rest.lines().last().unwrap()).unwrap();
    assert_eq!((&end["complete"], &end["problem"]["code"]), (&json!(false), &json!("stopping")), "{end:#}");
    assert_eq!(end["accepted"], 500, "{end:#}");
    drop(sender);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_sent_is_answered_before_the_rest_and_a_sender_that_falls_silent_is_told() {
    let tickr = TestApp::start_with(
        |config: &mut Config| config.http_body_timeout = Duration::from_millis(600),
        Registry::new(),
    )
    .await;
    let (sender, receiver) = mpsc::channel::<Result<String, std::io::Error>>(8);
    let body = stream::unfold(receiver, |mut receiver| async { receiver.recv().await.map(|chunk| (chunk, receiver)) });
    sender.send(Ok(bytes_of(&later(600)))).await.unwrap();
    let mut response = http()
        .post(tickr.url("/v1/jobs/import"))
        .header("Content-Type", "application/x-ndjson")
        .body(reqwest::Body::wrap_stream(body))
        .send()
        .await
        .unwrap();
    let mut heard = String::new();
    while heard.lines().count() < 500 {
        heard.push_str(std::str::from_utf8(&response.chunk().await.unwrap().unwrap()).unwrap());
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 500);
    while let Some(chunk) = response.chunk().await.unwrap() {
        heard.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    let end: Value = serde_json::from_str(heard.lines().last().unwrap()).unwrap();
    assert_eq!((&end["complete"], &end["problem"]["code"]), (&json!(false), &json!("request_timeout")));
    // Nothing of an incomplete part is written.
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 500);
    drop(sender);

    // Bytes that come one by one do not keep an import open.
    let trickle = stream::unfold((), |()| async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        Some((Ok::<_, std::io::Error>("\n"), ()))
    });
    let trickled = import(&tickr, "", None, reqwest::Body::wrap_stream(trickle));
    let trickled = tokio::time::timeout(DEADLINE, trickled).await.expect("the import ends");
    assert_eq!(trickled.end["problem"]["code"], "request_timeout", "{:#}", trickled.end);

    let wrong = http().post(tickr.url("/v1/jobs/import")).json(&json!({})).send().await.unwrap();
    assert_eq!(wrong.status(), 415);
    for query in ["?on_error=explode", "?receipts=some", "?colour=red"] {
        let refused = import(&tickr, query, None, "").await;
        assert_eq!((refused.status, &refused.end["code"]), (422, &json!("invalid_request")), "{query}");
    }
    let refused = import(&tickr, "", Some("not a key"), "").await;
    assert_eq!((refused.status, &refused.end["code"]), (422, &json!("invalid_request")));
    tickr.stop().await;
}
