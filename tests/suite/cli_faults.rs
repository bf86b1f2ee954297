//! The commands against servers that restart, redirect, hang or are not tickr.

use std::collections::BTreeSet;
use std::error::Error as _;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use crate::support::program::{command, outcome, tickr};
use crate::support::{DEADLINE, TestApp, eventually};

const ID: &str = "0192f8c0-7f3a-7c4e-9d5b-3e2a1f0c9b8a";

/// A server that is not tickr. It answers each request as the test says, or never, and notes it. It ends when dropped.
struct Stub {
    url: String,
    asked: Arc<Mutex<Vec<String>>>,
    keys: Arc<Mutex<Vec<String>>>,
    serving: JoinHandle<()>,
}

impl Stub {
    /// Start a server. `answers` makes an answer from the number of earlier requests, and from the method and the path
    /// with its query.
    async fn start(answers: impl Fn(usize, &str) -> Option<Response> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (asked, keys) = (Arc::<Mutex<Vec<String>>>::default(), Arc::<Mutex<Vec<String>>>::default());
        let (answers, notes, keyed) = (Arc::new(answers), Arc::clone(&asked), Arc::clone(&keys));
        let take = move |method: Method, uri: Uri, headers: HeaderMap, _: Bytes| {
            let (answers, notes) = (Arc::clone(&answers), Arc::clone(&notes));
            if let Some(key) = headers.get("idempotency-key") {
                keyed.lock().unwrap().push(key.to_str().unwrap().to_owned());
            }
            async move {
                let request = format!("{method} {uri}");
                let before = {
                    let mut notes = notes.lock().unwrap();
                    notes.push(request.clone());
                    notes.len() - 1
                };
                match answers(before, &request) {
                    Some(answer) => answer,
                    None => std::future::pending().await,
                }
            }
        };
        let app = axum::Router::new().fallback(take);
        let serving = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { url, asked, keys, serving }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    /// Return the idempotency keys of the requests that had one.
    fn keys(&self) -> Vec<String> {
        self.keys.lock().unwrap().clone()
    }

    /// Make the command `tickr …`, as a client of this server.
    fn client(&self, args: &[&str]) -> Command {
        let mut command = command(&tickr(), Path::new("/"), args);
        command.env("TICKR_URL", &self.url);
        command
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn answer(status: u16, body: Value) -> Option<Response> {
    Some((StatusCode::from_u16(status).unwrap(), Json(body)).into_response())
}

fn page(status: u16) -> Option<Response> {
    Some((StatusCode::from_u16(status).unwrap(), "<html>an answer of a proxy</html>").into_response())
}

/// Answer for a job in this state.
fn job(status: u16, state: &str) -> Option<Response> {
    answer(status, json!({"id": ID, "state": state}))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_enqueue_that_waits_asks_a_stopping_server_seldom_and_until_its_time_is_up() {
    // The server stops: it answers at once, however long it was asked to wait.
    let stub = Stub::start(|_, request| match request {
        "POST /v1/jobs" => job(201, "waiting"),
        _ => job(202, "waiting"),
    })
    .await;
    let began = Instant::now();
    let (code, out, err) = outcome(stub.client(&["enqueue", "noop", "--wait", "2s"])).await;
    assert_eq!((code, out), (5, format!("{ID} waiting\n")), "{err}");
    assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
    assert!(stub.asked().len() <= 15, "{:?}", stub.asked());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_enqueue_that_waits_outlives_refusals_and_never_calls_an_accepted_job_not_enqueued() {
    // A proxy finds no server for a while, and this server has no place for the wait.
    let stub = Stub::start(|before, request| match request {
        "POST /v1/jobs" => job(201, "waiting"),
        request if request.contains("/result?") => answer(429, json!({"code": "overloaded", "detail": "full"})),
        _ if before < 5 => page(502),
        _ => job(200, "completed"),
    })
    .await;
    let (code, out, err) = outcome(stub.client(&["enqueue", "noop", "--wait", "60s"])).await;
    assert_eq!((code, out), (0, format!("{ID} completed\n")), "{err}");

    // A server that does not come back, and a job that cannot be read: the job is enqueued all the same.
    for (status, wait, said) in [(502, "1s", ""), (404, "60s", "not_found")] {
        let stub = Stub::start(move |_, request| match request {
            "POST /v1/jobs" => job(201, "waiting"),
            _ if status == 404 => answer(404, json!({"code": "not_found", "detail": "no such job"})),
            _ => page(status),
        })
        .await;
        let (code, out, err) = outcome(stub.client(&["enqueue", "noop", "--wait", wait])).await;
        assert_eq!((code, out.trim()), (5, ID), "{status}: {err}");
        assert!(err.contains(&format!("job {ID} is enqueued")) && err.contains(said), "{status}: {err}");
    }

    // A state of a later version.
    let stub = Stub::start(|_, request| job(200, if request == "POST /v1/jobs" { "waiting" } else { "parked" })).await;
    let (code, out, err) = outcome(stub.client(&["enqueue", "noop", "--wait", "0s"])).await;
    assert_eq!((code, out), (5, format!("{ID} parked\n")), "{err}");
    assert!(err.contains(&format!("job {ID} is enqueued")) && err.contains("parked"), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_enqueue_that_waits_names_its_job_before_the_wait() {
    let stub = Stub::start(|_, request| if request == "POST /v1/jobs" { job(201, "waiting") } else { None }).await;
    let waiting = |more: &[&str]| {
        let mut command = stub.client(&[&["enqueue", "noop", "--wait", "60s"][..], more].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut id = [0; ID.len()];
    let mut child = waiting(&[]);
    let read = tokio::time::timeout(DEADLINE, child.stdout.as_mut().unwrap().read_exact(&mut id));
    read.await.expect("an id before the wait ends").unwrap();
    assert_eq!(std::str::from_utf8(&id).unwrap(), ID);
    child.kill().await.unwrap();

    // With --json, standard output is the job alone.
    let mut child = waiting(&["--json"]);
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let line = tokio::time::timeout(DEADLINE, lines.next_line()).await.expect("a line before the wait ends").unwrap();
    assert_eq!(line.unwrap(), format!("tickr: job {ID}"));
    child.kill().await.unwrap();
}

/// Start `tickr top` on a terminal with this many columns, as a client of this server. The file `pid` in the folder
/// gets the id of its process. The program that comes back reads the terminal.
fn top_on_a_terminal(stub: &Stub, dir: &Path, columns: u32) -> Option<Child> {
    let script = format!("stty rows 40 cols {columns}; echo $$ > pid; exec '{}' top", tickr().display());
    let mut on_terminal = command(Path::new("script"), dir, &["-qec", &script, "/dev/null"]);
    on_terminal.env("TICKR_URL", &stub.url).env("TERM", "xterm").stdin(Stdio::piped()).stdout(Stdio::null());
    let child = on_terminal.spawn().ok();
    if child.is_none() {
        println!("without the program `script` there is no terminal to try");
    }
    child
}

/// Send a process the signal of this name.
async fn signal(name: &str, pid: &str) {
    assert!(Command::new("sh").args(["-c", "kill -s $0 $1", name, pid]).status().await.unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn top_is_left_by_a_key_or_a_signal_while_its_server_hangs() {
    for how in ["q", "TERM"] {
        // Each read is four calls. The one before the screen is answered, and those of the screen are not.
        let stub = Stub::start(|before, _| if before < 4 { answer(200, json!({})) } else { None }).await;
        let dir = tempfile::tempdir().unwrap();
        let Some(mut child) = top_on_a_terminal(&stub, dir.path(), 120) else { return };
        let mut keys = child.stdin.take().unwrap();
        eventually("top waits for an answer", async || (stub.asked().len() > 4).then_some(())).await;
        if how == "q" {
            keys.write_all(b"q").await.unwrap();
        } else {
            signal(how, std::fs::read_to_string(dir.path().join("pid")).unwrap().trim()).await;
        }
        let ended = tokio::time::timeout(DEADLINE, child.wait()).await;
        let status = ended.unwrap_or_else(|_| panic!("top does not end by {how}")).unwrap();
        assert_eq!(status.code(), Some(0), "{how}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_is_refused_with_its_target_and_turns_no_enqueue_into_a_read() {
    let elsewhere = "/other/place";
    let redirecting = || {
        Stub::start(move |_, request| match request {
            "GET /other/place" => answer(200, json!({"data": []})),
            _ => Some((StatusCode::MOVED_PERMANENTLY, [("location", elsewhere)]).into_response()),
        })
    };
    for args in [
        &["enqueue", "noop", "--quiet"][..],
        &["batches", "create"],
        &["operations", "start", "cancel", "--all"],
        &["jobs", "list"],
        &["health"],
    ] {
        let stub = redirecting().await;
        let (code, out, err) = outcome(stub.client(args)).await;
        assert_eq!((code, out.as_str()), (1, ""), "{args:?}: {err}");
        assert!(err.contains(&format!("{} redirects to {elsewhere}", stub.url)), "{args:?}: {err}");
        assert_eq!(stub.asked().len(), 1, "{args:?}: {:?}", stub.asked());
    }
    let stub = redirecting().await;
    let refused = tickr::Client::http(&stub.url, None).unwrap().nudge().await.unwrap_err();
    let why = refused.source().unwrap().to_string();
    assert!(matches!(refused, tickr::Error::Setup { .. }) && why.contains(elsewhere), "{refused:?}");
    assert_eq!(stub.asked().len(), 1, "{:?}", stub.asked());

    // An answer without an id is not of tickr. It may be that of a proxy, so it does not say that nothing was made.
    let stub = Stub::start(|_, _| answer(200, json!({"data": []}))).await;
    let (code, out, err) = outcome(stub.client(&["enqueue", "noop", "--quiet"])).await;
    assert!(code == 5 && out.is_empty() && err.contains("no id"), "{code} {out}{err}");
    assert_eq!(stub.asked().len(), 1, "{:?}", stub.asked());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_reads_as_many_pages_as_its_limit_asks_for() {
    let rows = |count: usize| vec![json!({"id": ID, "key": "k"}); count];
    for (args, wanted) in [
        (&["outbox", "rejected"][..], ["limit=200", "limit=100&cursor=c-1"]),
        (&["batches", "list"], ["unfinished=false&limit=200", "unfinished=false&limit=100&cursor=c-1"]),
        (&["operations", "list"], ["limit=200", "limit=100&cursor=c-1"]),
    ] {
        let stub = Stub::start(move |before, _| match before {
            0 => answer(200, json!({"data": rows(200), "next_cursor": "c-1"})),
            _ => answer(200, json!({"data": rows(1), "next_cursor": null})),
        })
        .await;
        let (code, out, err) = outcome(stub.client(&[args, &["--limit", "300", "--json"]].concat())).await;
        assert_eq!(code, 0, "{args:?}: {out}{err}");
        let listed: Value = serde_json::from_str(&out).unwrap();
        let data = if listed.is_array() { &listed } else { &listed["data"] };
        assert_eq!(data.as_array().unwrap().len(), 201, "{args:?}");
        let asked: Vec<String> = stub.asked().iter().map(|uri| uri.split_once('?').unwrap().1.to_owned()).collect();
        assert_eq!(asked, wanted, "{args:?}");
    }
    let stub = Stub::start(move |_, _| answer(200, json!({"data": rows(2), "next": "k/9"}))).await;
    let (code, out, err) = outcome(stub.client(&["limits", "keys", "mail", "--after", "k/7"])).await;
    assert!(code == 0 && out.ends_with("more keys follow: --after k/9\n"), "{code} {out}{err}");
    assert_eq!(stub.asked(), ["GET /v1/limits/mail/keys?after=k%2F7"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_jobs_is_printed_page_by_page_in_columns_of_one_width_and_as_one_array() {
    for args in [&["jobs", "list"][..], &["dead-letters", "list"]] {
        let row = |kind: &str| json!({"id": ID, "kind": kind, "queue": "default", "last_error": "a\nb"});
        let pages = move |before: usize, _: &str| match before {
            0 => answer(200, json!({"data": vec![row("a-long-kind"); 200], "next_cursor": "c-1"})),
            _ => answer(200, json!({"data": vec![row("k"); 150], "next_cursor": "c-2"})),
        };
        let stub = Stub::start(pages).await;
        let (code, out, err) = outcome(stub.client(&[args, &["--limit", "300"]].concat())).await;
        assert_eq!((code, out.lines().count(), stub.asked().len()), (0, 301, 2), "{args:?}: {out}{err}");
        let columns: BTreeSet<Option<usize>> = out.lines().skip(1).map(|line| line.find("default")).collect();
        assert!(columns.len() == 1 && !columns.contains(&None), "{args:?}: {out}");
        let stub = Stub::start(pages).await;
        let (code, out, err) = outcome(stub.client(&[args, &["--limit", "300", "--json"]].concat())).await;
        assert_eq!(code, 0, "{args:?}: {err}");
        let listed: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(listed.as_array().unwrap().len(), 300, "{args:?}");
        assert_eq!(out, format!("{listed:#}\n"), "{args:?}");

        // The first page is printed although the second one does not come.
        let broken = |before: usize, _: &str| match before {
            0 => answer(200, json!({"data": [{"id": ID}], "next_cursor": "c-1"})),
            _ => answer(400, json!({"code": "invalid", "detail": "the cursor is not valid"})),
        };
        let stub = Stub::start(broken).await;
        let (code, out, err) = outcome(stub.client(&[args, &["--limit", "300"]].concat())).await;
        assert!(code != 0 && out.contains(ID), "{args:?}: {out}{err}");
        let stub = Stub::start(|_, _| answer(200, json!({"data": [], "next_cursor": null}))).await;
        let (code, out, err) = outcome(stub.client(&[args, &["--json"]].concat())).await;
        assert_eq!((code, out.as_str()), (0, "[]\n"), "{args:?}: {err}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_not_of_tickr_is_told_with_its_status() {
    let foreign: [fn() -> Option<Response>; 2] =
        [|| page(502), || answer(503, json!({"message": "no healthy upstream", "detail": null}))];
    for (made, status) in foreign.into_iter().zip(["502 Bad Gateway", "503 Service Unavailable"]) {
        let stub = Stub::start(move |_, _| made()).await;
        let said = format!("{} answered {status}, which is not an answer of tickr\n", stub.url);
        for args in [&["jobs", "list"][..], &["health"], &["jobs", "watch", ID]] {
            let (code, out, err) = outcome(stub.client(args)).await;
            assert_eq!((code, out.as_str()), (1, ""), "{args:?}: {err}");
            assert_eq!(err, format!("tickr: {said}"));
        }
        // The proxy may have handed the request on before.
        let (code, out, err) = outcome(stub.client(&["enqueue", "noop", "--patience", "0"])).await;
        assert!((code, out.as_str()) == (5, "") && err.ends_with(&said), "{code} {out}{err}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_whose_answer_is_lost_is_told_as_one_that_may_have_been_made() {
    // It reads each request, and closes the connection without an answer.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let losing = tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut read = vec![0; 1 << 16];
            let _ = socket.read(&mut read).await;
        }
    });
    for (args, wanted, parts) in [
        (&["enqueue", "noop", "--patience", "0"][..], 5, &["not known whether the job is enqueued"][..]),
        (&["enqueue", "noop", "--idempotency-key", "k-7", "--patience", "1"], 5, &["--idempotency-key k-7 finds out"]),
        (&["batches", "create"], 1, &["may have been made", "look before you repeat it"]),
        (&["batches", "create", "--idempotency-key", "k"], 1, &["may have been made", "the same --idempotency-key"]),
        (&["api-keys", "create", "shop", "--scope", "admin", "--yes"], 1, &["revoke the API key shop", "another name"]),
        (&["jobs", "list"], 1, &["no tickr answers"]),
    ] {
        let (code, out, err) =
            outcome(command(&tickr(), Path::new("/"), &[args, &["--url", url.as_str()]].concat())).await;
        assert_eq!((code, out.as_str()), (wanted, ""), "{args:?}: {err}");
        assert!(parts.iter().all(|part| err.contains(part)), "{args:?}: {err}");
    }
    losing.abort();

    // A proxy that lost its server, and a tickr that lost the confirmation of MySQL.
    let open: [fn() -> Option<Response>; 3] =
        [|| page(502), || page(504), || answer(503, json!({"code": "store_unavailable", "detail": "MySQL is out"}))];
    for made in open {
        let stub = Stub::start(move |_, _| made()).await;
        for (args, parts) in [
            (&["batches", "create"][..], &["may have been made", "look before you repeat it"][..]),
            (&["jobs", "retry", ID, "--idempotency-key", "k"], &["may have been made", "the same --idempotency-key"]),
            (&["queues", "set", "mail", "--priority", "1", "--create"], &["may have been made"]),
            (
                &["api-keys", "create", "shop", "--scope", "admin", "--yes"],
                &["revoke the API key shop", "another name"],
            ),
        ] {
            let (code, out, err) = outcome(stub.client(args)).await;
            assert_eq!((code, out.as_str()), (1, ""), "{args:?}: {err}");
            assert!(parts.iter().all(|part| err.contains(part)), "{args:?}: {err}");
        }
        let (_, _, err) = outcome(stub.client(&["jobs", "list"])).await;
        assert!(!err.contains("may have been made"), "{err}");
    }
    // The server is not tickr, and has no token.
    let stub = Stub::start(|_, _| answer(200, json!({}))).await;
    let create = ["api-keys", "create", "shop", "--scope", "admin", "--yes"];
    let (code, out, err) = outcome(stub.client(&create)).await;
    assert!((code, out.as_str()) == (1, "") && err.contains("no token"), "{code} {out}{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_a_proxy_cut_or_emptied_counts_as_lost() {
    let spoilt: [fn() -> Option<Response>; 3] = [
        || Some((StatusCode::CREATED, "{\"id\":\"0192f8c0").into_response()),
        || Some(StatusCode::CREATED.into_response()),
        || Some(StatusCode::NO_CONTENT.into_response()),
    ];
    for made in spoilt {
        let stub = Stub::start(move |before, _| if before == 0 { made() } else { job(201, "waiting") }).await;
        let (code, out, err) = outcome(stub.client(&["enqueue", "noop"])).await;
        assert_eq!((code, out), (0, format!("{ID} waiting\n")), "{err}");
        let keys = stub.keys();
        assert!(keys.len() == 2 && keys[0] == keys[1] && !keys[0].is_empty(), "{keys:?}");
        let stub = Stub::start(move |_, _| made()).await;
        for (args, wanted, parts) in [
            (&["enqueue", "noop", "--patience", "0"][..], 5, &["not known whether the job is enqueued"][..]),
            (
                &["jobs", "retry", ID, "--idempotency-key", "k"],
                1,
                &["may have been made", "the same --idempotency-key"],
            ),
            (&["api-keys", "create", "shop", "--scope", "admin", "--yes"], 1, &["revoke the API key shop"]),
            (&["api-keys", "revoke", "shop"], 1, &["may have been made"]),
        ] {
            let (code, out, err) = outcome(stub.client(args)).await;
            assert_eq!((code, out.as_str()), (wanted, ""), "{args:?}: {err}");
            assert!(parts.iter().all(|part| err.contains(part)), "{args:?}: {err}");
        }
    }
    // Where tickr sends no body, none is missing.
    let stub = Stub::start(|_, _| Some(StatusCode::NO_CONTENT.into_response())).await;
    for args in [&["outbox", "nudge"][..], &["outbox", "replay", ID], &["kinds", "delete", "resize"]] {
        let (code, _, err) = outcome(stub.client(args)).await;
        assert_eq!((code, err.as_str()), (0, ""), "{args:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_emergency_pause_is_not_held_up_by_a_server_whose_reads_are_busy() {
    let stub = Stub::start(|_, request| match request {
        "POST /v1/queues/mail/pause" => answer(200, json!({"name": "mail", "paused": {"by": "ada", "reason": "fire"}})),
        _ => answer(429, json!({"code": "overloaded", "detail": "four searches run"})),
    })
    .await;
    let (code, out, err) = outcome(stub.client(&["queues", "pause", "mail", "--reason", "fire"])).await;
    assert!(code == 0 && out.contains("by ada: fire"), "{code} {out}{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_of_a_queue_that_are_lower_bounds_are_printed_with_a_plus_sign() {
    let mail = json!({"name": "mail", "exact": false, "states": {"waiting": 100_000, "failed": 7}});
    let idle = json!({"name": "idle", "exact": false, "states": {}});
    let whole = json!({"name": "whole", "exact": true, "states": {"waiting": 3}});
    let stub = Stub::start(move |_, request| match request {
        "GET /v1/queues/mail" => answer(200, mail.clone()),
        _ => answer(200, json!({"data": [mail, idle, whole], "exact": false})),
    })
    .await;
    let (code, out, err) = outcome(stub.client(&["queues", "list"])).await;
    let row = |name: &str| out.lines().find(|line| line.contains(name)).unwrap().split_whitespace().collect::<Vec<_>>();
    assert_eq!(code, 0, "{err}");
    assert_eq!(row("mail")[3..8], ["100000+", "0+", "0+", "0", "7"], "{out}");
    assert_eq!(row("idle")[3..6], ["0+", "0+", "0+"], "{out}");
    assert_eq!(row("whole")[3..6], ["3", "0", "0"], "{out}");
    let (code, out, err) = outcome(stub.client(&["queues", "show", "mail"])).await;
    let shown: Vec<String> = out.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(code, 0, "{err}");
    for line in ["waiting 100000+", "retrying 0+", "executing 0+", "failed 7"] {
        assert!(shown.iter().any(|shown| shown == line), "{line} is not in\n{out}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bulk_operation_is_followed_also_when_its_server_restarts_right_after_the_start() {
    let stub = Stub::start(|before, _| match before {
        0 => job(202, "running"),
        1 => page(502),
        _ => job(200, "done"),
    })
    .await;
    let (code, out, err) = outcome(stub.client(&["operations", "start", "retry", "--all", "--watch"])).await;
    assert!(code == 0 && err.contains("is back"), "{code} {out}{err}");
    assert_eq!(stub.asked()[0], "POST /v1/operations");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_enqueue_whose_answer_is_lost_is_one_job_and_exit_code_0() {
    let app = TestApp::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (url, server) = (format!("http://{}", listener.local_addr().unwrap()), app.url("").replace("http://", ""));
    // It passes the requests of three connections on, and loses the answers to the first and the third.
    let losing = tokio::spawn(async move {
        for is_lost in [true, false, true] {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut server = TcpStream::connect(&server).await.unwrap();
            if is_lost {
                let (mut answer, mut request) = server.split();
                tokio::select! {
                    _ = tokio::io::copy(&mut client, &mut request) => {}
                    _ = answer.read_u8() => {}
                }
            } else {
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            }
        }
    });
    let enqueue = ["enqueue", "noop", "--delay-ms", "3600000", "--quiet"];
    let tickr =
        |url: &str, more: &[&str]| command(&tickr(), app.dir.path(), &[&enqueue[..], more, &["--url", url]].concat());
    let (code, out, err) = outcome(tickr(&url, &[])).await;
    assert!(code == 0 && err.contains("trying again"), "{code} {out}{err}");
    let id = app.get("/v1/jobs").await.body["data"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!((out, app.count("SELECT COUNT(*) FROM jobs").await), (format!("{id}\n"), 1));

    // Without a further try it is not known, and the idempotency key finds out.
    let (code, out, err) = outcome(tickr(&url, &["--patience", "0"])).await;
    assert_eq!((code, out.as_str(), app.count("SELECT COUNT(*) FROM jobs").await), (5, "", 2), "{err}");
    let (_, key) = err.split_once("command with --idempotency-key ").unwrap();
    let key = key.split(' ').next().unwrap();
    // A run that reaches no tickr, or one that does not look, does not find out.
    let closed = format!("http://{}", TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap());
    let busy = Stub::start(|_, _| answer(429, json!({"code": "overloaded", "detail": "full"}))).await;
    let stranger = Stub::start(|_, _| answer(200, json!({}))).await;
    for url in [&closed, &busy.url, &stranger.url] {
        let (code, out, err) = outcome(tickr(url, &["--idempotency-key", key])).await;
        assert_eq!((code, out.as_str()), (5, ""), "{err}");
    }
    let (code, out, err) = outcome(tickr(&app.url(""), &["--idempotency-key", key])).await;
    assert_eq!((code, err.as_str(), app.count("SELECT COUNT(*) FROM jobs").await), (0, "", 2));
    assert_ne!(out.trim(), id);
    // A run with another payload and this key must not tell that nothing was enqueued.
    let (code, out, err) = outcome(tickr(&app.url(""), &["--idempotency-key", key, "{\"other\": 1}"])).await;
    assert_eq!((code, out.as_str(), app.count("SELECT COUNT(*) FROM jobs").await), (5, "", 2), "{err}");
    assert!(err.contains("another request was sent with"), "{err}");
    losing.await.unwrap();

    // The job of an id that cannot be printed is enqueued as well.
    let line = format!("exec '{}' enqueue noop --quiet >/dev/full", crate::support::program::tickr().display());
    let mut shell = command(Path::new("bash"), app.dir.path(), &["-c", &line]);
    shell.env("TICKR_URL", app.url(""));
    let (code, _, err) = outcome(shell).await;
    assert_eq!((code, app.count("SELECT COUNT(*) FROM jobs").await), (5, 3), "{err}");
    assert!(err.contains(" is enqueued, but cannot write to standard output"), "{err}");

    // A runner that does not know the kind yet says nothing about a try that another one may have taken.
    for (said, wanted) in [("unknown_kind", 5), ("invalid_payload", 1)] {
        let stub = Stub::start(move |before, _| match before {
            0 => page(502),
            _ => answer(422, json!({"code": said, "detail": "not here"})),
        })
        .await;
        let (code, out, err) = outcome(stub.client(&["enqueue", "noop"])).await;
        assert_eq!((code, out.as_str()), (wanted, ""), "{err}");
    }
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_enqueue_gives_up_soon_at_an_address_that_answers_nothing_and_tells_what_it_knows() {
    // The system takes one connection on its own, and drops the packets of the others.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let silent = socket.listen(0).unwrap();
    let address = silent.local_addr().unwrap();
    let mut taken = Vec::new();
    while let Ok(one) = tokio::time::timeout(Duration::from_millis(500), TcpStream::connect(address)).await {
        taken.push(one.unwrap());
    }
    let silent_url = format!("http://{address}");
    // This one may have handed the first request on, and answers no other.
    let stub = Stub::start(|before, _| if before == 0 { page(502) } else { None }).await;
    let unreached = command(&tickr(), Path::new("/"), &["enqueue", "noop", "--url", &silent_url]);
    let ((code, out, err), (unknown, _, said)) =
        tokio::join!(outcome(unreached), outcome(stub.client(&["enqueue", "noop", "--patience", "1"])));
    assert!((code, out.as_str()) == (1, "") && err.contains("no tickr answers"), "{code} {out}{err}");
    assert!(unknown == 5 && said.contains("not known whether the job is enqueued"), "{unknown} {said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_enqueue_gives_up_in_time_at_a_server_that_takes_requests_and_says_nothing() {
    let mute = Stub::start(|_, _| None).await;
    let froze = Stub::start(|_, request| if request == "POST /v1/jobs" { job(201, "waiting") } else { None }).await;
    let began = Instant::now();
    let timed = async |command: Command| (outcome(command).await, began.elapsed());
    let (sent, waited) = tokio::join!(
        timed(mute.client(&["enqueue", "noop", "--patience", "1"])),
        timed(froze.client(&["enqueue", "noop", "--wait", "1s"]))
    );
    let ((code, out, err), took) = sent;
    assert!((code, out.as_str()) == (5, "") && err.contains("not known whether the job is enqueued"), "{code} {err}");
    // Ten seconds are left for the last answer.
    assert!(took < Duration::from_secs(20), "{took:?}");
    let ((code, out, err), took) = waited;
    assert_eq!((code, out.trim()), (5, ID), "{err}");
    assert!(took < Duration::from_secs(20), "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_follows_ends_by_a_signal_also_while_its_output_is_not_read() {
    let sent = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&sent);
    // An endless stream of events that are all printed.
    let stub = Stub::start(move |_, _| {
        let count = Arc::clone(&count);
        let flood = futures_util::stream::repeat_with(move || {
            count.fetch_add(1, Ordering::SeqCst);
            let note = "x".repeat(4_000);
            Ok::<_, std::io::Error>(format!("event: attempt\ndata: {{\"number\":1,\"runner\":\"{note}\"}}\n\n"))
        });
        Some(([("content-type", "text/event-stream")], Body::from_stream(flood)).into_response())
    })
    .await;
    for (args, code) in [(&["events"][..], 0), (&["jobs", "watch", ID], 143), (&["jobs", "watch", ID, "--json"], 143)] {
        sent.store(0, Ordering::SeqCst);
        let mut child = stub.client(args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        // The test holds the pipe open and reads nothing. Once the server cannot send, the command is stuck.
        let _unread = child.stdout.take();
        eventually("the command is stuck", async || {
            let before = sent.load(Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(500)).await;
            (before > 0 && sent.load(Ordering::SeqCst) == before).then_some(())
        })
        .await;
        signal("TERM", &child.id().unwrap().to_string()).await;
        let ended = tokio::time::timeout(DEADLINE, child.wait()).await;
        let status = ended.unwrap_or_else(|_| panic!("{args:?} does not end by a signal")).unwrap();
        assert_eq!(status.code(), Some(code), "{args:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn top_ends_by_a_signal_also_while_its_terminal_is_not_read() {
    // Each read changes nearly all of a wide screen.
    let stub = Stub::start(|before, request| match request {
        "GET /v1/queues" => {
            let fire = ["─", "│"][before / 4 % 2].repeat(1_900);
            let queue = json!({"name": "mail", "paused": {"by": "ada", "reason": fire}});
            answer(200, json!({"data": vec![queue; 12]}))
        }
        _ => answer(200, json!({"data": []})),
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    let Some(mut child) = top_on_a_terminal(&stub, dir.path(), 2_000) else { return };
    let _keys = child.stdin.take().unwrap();
    eventually("top is on its screen", async || (stub.asked().len() > 8).then_some(())).await;
    let (reader, top) = (child.id().unwrap().to_string(), std::fs::read_to_string(dir.path().join("pid")).unwrap());
    signal("STOP", &reader).await;
    // It reads once a second, until its terminal is full.
    eventually("top is stuck", async || {
        let before = stub.asked().len();
        tokio::time::sleep(Duration::from_secs(2)).await;
        (stub.asked().len() == before).then_some(())
    })
    .await;
    signal("TERM", top.trim()).await;
    eventually("top ends", async || {
        // A process that has ended stays in this list while its parent does not run.
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", top.trim()));
        stat.map_or(true, |stat| stat.contains(") Z ")).then_some(())
    })
    .await;
    signal("CONT", &reader).await;
    let status = tokio::time::timeout(DEADLINE, child.wait()).await.expect("the terminal is left").unwrap();
    assert_eq!(status.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_key_whose_token_cannot_be_printed_is_named_to_be_revoked() {
    let app = TestApp::start().await;
    let tickr = crate::support::program::tickr();
    // The disk is full, or the reader has closed the pipe before the API key is made.
    let full = "exec \"$0\" api-keys create ops --scope admin --yes >/dev/full";
    let closed = "{ while [ ! -e closed ]; do sleep 0.05; done; \
         exec \"$0\" api-keys create ops-2 --scope admin --in-store --json; } | { exec <&-; touch closed; }; \
         exit ${PIPESTATUS[0]}";
    for (line, name, wanted) in [(full, "ops", 1), (closed, "ops-2", 141)] {
        let mut shell = command(Path::new("bash"), app.dir.path(), &["-c", line, tickr.to_str().unwrap()]);
        shell.env("TICKR_URL", app.url("")).env("TICKR_MYSQL_URL", app.config.mysql_url().unwrap().expose());
        let (code, out, err) = outcome(shell).await;
        assert_eq!((code, out.as_str()), (wanted, ""), "{err}");
        let parts = [format!("API key {name} is made"), "its token is lost".into(), format!("revoke {name}`")];
        assert!(parts.iter().all(|part| err.contains(part)), "{err}");
    }
    assert_eq!(app.count("SELECT COUNT(*) FROM api_keys").await, 2);
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_patience_is_too_long_to_count() {
    let stub = Stub::start(|before, _| if before == 0 { page(502) } else { job(201, "waiting") }).await;
    let forever = u64::MAX.to_string();
    let (code, out, err) = outcome(stub.client(&["enqueue", "noop", "--patience", &forever])).await;
    assert_eq!((code, out), (0, format!("{ID} waiting\n")), "{err}");
    let stub = Stub::start(|before, _| match before {
        0 => job(200, "running"),
        1 => page(502),
        _ => job(200, "done"),
    })
    .await;
    let (code, out, err) = outcome(stub.client(&["operations", "watch", ID, "--patience", &forever])).await;
    assert_eq!(code, 0, "{out}{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_loses_no_page_to_a_busy_server_or_a_restart_and_asks_when_the_server_wants() {
    for args in [&["jobs", "list"][..], &["dead-letters", "groups"], &["schedules", "list"], &["outbox", "rejected"]] {
        let times = Arc::<Mutex<Vec<Instant>>>::default();
        let noted = Arc::clone(&times);
        let stub = Stub::start(move |before, _| {
            noted.lock().unwrap().push(Instant::now());
            match before {
                0 => answer(200, json!({"data": vec![json!({"id": ID}); 200], "next_cursor": "c-1"})),
                1 => {
                    let problem = Json(json!({"code": "overloaded", "detail": "four searches run"}));
                    Some((StatusCode::TOO_MANY_REQUESTS, [("retry-after", "1")], problem).into_response())
                }
                2 => page(502),
                _ => answer(200, json!({"data": [{"id": ID}], "next_cursor": null})),
            }
        })
        .await;
        let (code, out, err) = outcome(stub.client(&[args, &["--limit", "300", "--json"]].concat())).await;
        assert_eq!((code, err.as_str()), (0, ""), "{args:?}: {out}");
        assert_eq!(out.matches(ID).count(), 201, "{args:?}");
        let times = times.lock().unwrap();
        assert!(times[2] - times[1] >= Duration::from_secs(1), "{args:?}: {times:?}");
    }
    // Before the first page nothing is lost, so a server that is out is told at once.
    let stub = Stub::start(|_, _| page(502)).await;
    let (code, _, err) = outcome(stub.client(&["jobs", "list"])).await;
    assert_eq!((code, stub.asked().len()), (1, 1), "{err}");
}
