//! Finished reports: every runner serves and mails them, and they are removed after their retention.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Executor as _, Row as _};
use tickr::app::App;
use tickr::config::{Config, ReportQuery, ServerUrl, Statement};
use tickr::handlers::{Context, Kind, Output, Registry};
use tickr::job::{AttemptToken, JobId, ReportRecord, State};
use tickr::store::Store;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::{Answer, DEADLINE, Proxy, TestApp, answer, eventually, http, make_api_key};

/// Return a query that gives different bytes each time, a bit more than this many KiB.
fn query(kib: usize) -> ReportQuery {
    let rows = vec!["SELECT 1 AS n"; kib.div_ceil(64)].join(" UNION ALL ");
    let sql = format!("SELECT RAND() AS other, REPEAT('x', 65536) AS text FROM ({rows}) many");
    let statement = Statement::parse(&sql).unwrap();
    ReportQuery { title: "Rows".into(), description: None, sql, statement, params: Vec::new() }
}

fn with_queries(config: &mut Config) {
    for (name, kib) in [("small", 1), ("rows", 1_600), ("large", 8_000)] {
        config.reports.queries.insert(name.into(), query(kib));
    }
}

/// The only runner that makes reports, with a folder of its own.
struct Maker {
    app: App,
    dir: PathBuf,
}

impl Maker {
    async fn start(tickr: &TestApp, change: impl FnOnce(&mut Config)) -> Self {
        let dir = tickr.dir.path().join("made");
        let own = |config: &mut Config| {
            (config.queues, config.reports_dir) = (vec!["make".into()], dir.clone());
            // A long lease keeps a busy machine from interrupting the attempt.
            config.lease = Duration::from_secs(30);
            change(config);
        };
        Self { app: tickr.another_with(own, Registry::new()).await, dir: dir.clone() }
    }

    /// Make a report and return its job.
    async fn made(&self, tickr: &TestApp, query: &str) -> Value {
        let id = tickr.enqueue(job(query)).await;
        tickr.until(id, State::Completed).await
    }

    async fn get(&self, job: &Value) -> Answer {
        answer(http().get(format!("http://{}{}", self.app.addr(), url(job)))).await
    }

    fn file(&self, job: &Value) -> PathBuf {
        self.dir.join(job["result"]["file"].as_str().unwrap())
    }

    async fn stop(self) {
        self.app.stop(CancellationToken::new()).await;
    }
}

fn job(query: &str) -> Value {
    json!({"kind": "report", "queue": "make", "payload": {"query": query}})
}

fn url(job: &Value) -> &str {
    job["result"]["url"].as_str().unwrap_or_else(|| panic!("no report: {job:#}"))
}

/// Download a report. Return the headers that describe it, and the bytes.
async fn download(tickr: &TestApp, job: &Value) -> (Vec<String>, Vec<u8>) {
    let response = http().get(tickr.url(url(job))).send().await.unwrap();
    assert_eq!(response.status(), 200);
    let names = ["content-type", "content-length", "content-disposition", "x-content-type-options", "cache-control"];
    let headers = names.map(|name| response.headers()[name].to_str().unwrap().to_owned()).to_vec();
    (headers, response.bytes().await.unwrap().to_vec())
}

/// Begin to download a report, and read no further than the status. The client has a small buffer, so that the server
/// cannot send it the whole file.
async fn begin_download(addr: SocketAddr, path: &str, key: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    let mut stream = socket.connect(addr).await.unwrap();
    let key = if key.is_empty() { String::new() } else { format!("Authorization: Bearer {key}\r\n") };
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{key}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = [0; 12];
    stream.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    stream
}

/// Read a download to its end. Return the announced length, and the number of bytes that came.
async fn finish_download(mut stream: TcpStream) -> (usize, usize) {
    let mut text = Vec::new();
    // A server that ends a download early may reset the connection.
    let _ = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut text)).await.expect("it ends");
    let head = text.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
    let announced = String::from_utf8(text[..head].to_vec()).unwrap().to_ascii_lowercase();
    let length = announced.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap().parse().unwrap();
    (length, text.len() - head - 4)
}

/// Return the attachment of the mail that a job wrote into the outbox.
fn attached(mail: &Value) -> Vec<u8> {
    let text = fs::read_to_string(mail["result"]["file"].as_str().unwrap()).unwrap().replace("\r\n", "\n");
    let boundary = text.split_once("boundary=\"").unwrap().1.split_once('"').unwrap().0;
    let part = text.split(&format!("--{boundary}")).find(|part| part.contains("attachment")).unwrap();
    STANDARD.decode(part.trim_start().split_once("\n\n").unwrap().1.replace('\n', "")).unwrap()
}

fn mail(job: &Value) -> Value {
    let attachments = json!([{"report": job["result"]["file"]}]);
    json!({"kind": "email", "payload": {"to": "ada@example.com", "subject": "s", "text": "t", "attachments": attachments}})
}

async fn count(tickr: &TestApp, sql: &str) -> i64 {
    tickr.count(sql).await
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn hex(job: &Value) -> String {
    job["id"].as_str().unwrap().replace('-', "")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_runner_serves_and_mails_a_report_also_when_the_one_that_made_it_is_gone() {
    let tickr = TestApp::start_with(with_queries, Registry::new()).await;
    let maker = Maker::start(&tickr, |_| {}).await;
    let report = maker.made(&tickr, "rows").await;
    assert!(report["result"].get("only_on").is_none(), "{report:#}");
    let bytes = fs::read(maker.file(&report)).unwrap();
    assert!(bytes.len() > 1 << 20, "{}", bytes.len());
    let (headers, there) = download(&tickr, &report).await;
    assert!(there == bytes);
    let made = http().get(format!("http://{}{}", maker.app.addr(), url(&report))).send().await.unwrap();
    let names = ["content-type", "content-length", "content-disposition", "x-content-type-options", "cache-control"];
    assert_eq!(headers, names.map(|name| made.headers()[name].to_str().unwrap()));

    // A runner that lost the job before its end has left a file with the same name. That file is not served.
    fs::create_dir_all(&tickr.config.reports_dir).unwrap();
    let stale = tickr.config.reports_dir.join(report["result"]["file"].as_str().unwrap());
    fs::write(&stale, vec![b'y'; bytes.len()]).unwrap();
    assert!(download(&tickr, &report).await.1 == bytes);
    fs::remove_file(stale).unwrap();

    let dir = maker.dir.clone();
    maker.stop().await;
    fs::remove_dir_all(dir).unwrap();
    assert!(download(&tickr, &report).await == (headers, bytes.clone()));
    let head = http().head(tickr.url(url(&report))).send().await.unwrap();
    assert_eq!(
        (head.status().as_u16(), head.headers()["content-length"].to_str().unwrap()),
        (200, &*bytes.len().to_string())
    );
    let id = tickr.enqueue(mail(&report)).await;
    assert!(attached(&tickr.until(id, State::Completed).await) == bytes);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_that_mysql_does_not_keep_is_served_by_its_runner_and_others_name_it() {
    let tickr = TestApp::start_with(with_queries, Registry::new()).await;
    for (up_to, query) in [(64 << 10, "rows"), (0, "small")] {
        let maker = Maker::start(&tickr, |config| config.reports.share_up_to = up_to).await;
        let mut mailed = job(query);
        mailed["payload"]["email"] = json!({"to": ["ada@example.com"]});
        let id = tickr.enqueue(mailed).await;
        let report = tickr.until(id, State::Completed).await;
        assert_eq!(report["result"]["only_on"], maker.app.runner().as_str());
        // The mail that it asked for is sent by the other runner, which does not have the file.
        let mails = tickr.get("/v1/jobs?kind=email").await.body;
        let sent = tickr.until(mails["data"][0]["id"].as_str().unwrap().parse().unwrap(), State::Completed).await;
        let text = fs::read_to_string(sent["result"]["file"].as_str().unwrap()).unwrap().replace("=\r\n", "");
        assert!(text.contains(url(&report)) && !text.contains("attachment"), "{text}");
        assert_eq!(sent["attempt"], 1);
        assert_eq!(maker.get(&report).await.status, 200);
        let elsewhere = tickr.get(url(&report)).await;
        assert_eq!((elsewhere.status, elsewhere.code()), (404, "not_found"));
        let detail = elsewhere.body["detail"].as_str().unwrap();
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        for part in [maker.app.runner().as_str(), host.trim(), "share_up_to of [reports]"] {
            assert!(detail.contains(part), "{part} is not in {detail}");
        }
        assert_eq!(count(&tickr, "SELECT COUNT(*) FROM report_parts").await, 0);
        // The runner that has the file may get the mail at the next attempt.
        let id = tickr.enqueue(mail(&report)).await;
        let refused = tickr.until(id, State::Retrying).await;
        let error = refused["last_error"].as_str().unwrap();
        assert!(error.contains(maker.app.runner().as_str()) && error.contains("share_up_to"), "{error}");
        assert_eq!(tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await.status, 200);
        // A folder that several runners share serves the report too.
        fs::create_dir_all(&tickr.config.reports_dir).unwrap();
        fs::copy(maker.file(&report), tickr.config.reports_dir.join(report["result"]["file"].as_str().unwrap()))
            .unwrap();
        assert_eq!(tickr.get(url(&report)).await.status, 200);
        maker.stop().await;
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_attempt_replaces_a_report_and_a_half_written_one_is_never_served() {
    let tickr = TestApp::start_with(with_queries, Registry::new()).await;
    let maker = Maker::start(&tickr, |_| {}).await;
    let mut later = job("rows");
    (later["delay_ms"], later["retry"]) = (json!(3_600_000), json!({"base_ms": 5_000, "factor": 1.0, "cap_ms": 5_000}));
    let id = tickr.enqueue(later).await;
    // A folder takes the place of the file: the first attempt shares its report in MySQL, and fails after that.
    let name = format!("rows-{id}.csv");
    fs::create_dir_all(maker.dir.join(&name).join("x")).unwrap();
    assert_eq!(tickr.post(&format!("/v1/jobs/{id}/run-now"), json!({})).await.status, 200);
    tickr.until_attempts(id, 1).await;
    let id_hex = id.uuid().simple();
    let token = format!("SELECT HEX(token) FROM report_files WHERE id = x'{id_hex}'");
    let token =
        async || -> String { tickr.mysql().await.fetch_one(AssertSqlSafe(token.clone())).await.unwrap().get(0) };
    let first = token().await;
    // An attempt was killed between two parts.
    let remains = AttemptToken::new().uuid().simple();
    tickr
        .sql(format!(
            "INSERT INTO report_parts SELECT job_id, x'{remains}', number, bytes, content, made_at FROM report_parts \
             WHERE job_id = x'{id_hex}' AND number < 2"
        ))
        .await;
    fs::remove_dir_all(maker.dir.join(&name)).unwrap();
    let report = tickr.until(id, State::Completed).await;
    assert!(report["attempts"].as_array().unwrap().len() >= 2, "{report:#}");
    let second = token().await;
    assert_ne!(first, second);
    let sets = "SELECT COUNT(DISTINCT token) FROM report_parts";
    assert_eq!((count(&tickr, sets).await, count(&tickr, &format!("{sets} WHERE token = x'{second}'")).await), (1, 1));
    let bytes = fs::read(maker.file(&report)).unwrap();
    assert!(download(&tickr, &report).await.1 == bytes);

    // Changed parts end the answer before its end. Parts without their row in `report_files` are no report.
    tickr.sql("UPDATE report_parts SET content = REPEAT('z', bytes) WHERE number = 1").await;
    let torn = http().get(tickr.url(url(&report))).send().await.unwrap();
    assert!(torn.bytes().await.is_err());
    let id = tickr.enqueue(mail(&report)).await;
    assert!(tickr.until(id, State::Retrying).await["last_error"].as_str().unwrap().contains("the report is damaged"));
    tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await;
    tickr.sql("DELETE FROM report_files").await;
    assert_eq!(tickr.get(url(&report)).await.status, 404);
    maker.stop().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_holder_of_a_job_replaces_its_report_and_only_by_a_whole_one() {
    let tickr = TestApp::start().await;
    let store = tickr.app.broker().store();
    let id = tickr.enqueue_kind("sleep", json!({"ms": 600_000})).await;
    tickr.until(id, State::Executing).await;
    let token = tickr.mysql().await.fetch_one("SELECT token FROM owed").await.unwrap().get(0);
    let (holder, former) = (AttemptToken::from_uuid(token), AttemptToken::new());
    let record = |token, parts| ReportRecord {
        job: id,
        name: format!("rows-{id}.csv"),
        bytes: u64::from(parts) * 3,
        parts,
        digest: Some([7; 32]),
        token,
        runner: tickr.app.runner().clone(),
        host: "h".into(),
        removed: false,
    };
    for token in [holder, former] {
        for number in 0..2 {
            store.put_report_part(id, token, number, b"abc".to_vec()).await.unwrap();
        }
    }
    assert!(!store.publish_report(&record(former, 2)).await.unwrap());
    assert!(!store.clear_report(id, former).await.unwrap());
    assert_eq!(tickr.count("SELECT COUNT(*) FROM report_parts").await, 4);
    assert!(!store.publish_report(&record(holder, 3)).await.unwrap(), "a part is missing");
    assert_eq!(store.report_record(id).await.unwrap(), None);
    assert!(store.publish_report(&record(holder, 2)).await.unwrap());
    assert!(store.clear_report(id, holder).await.unwrap());
    assert_eq!(store.report_record(id).await.unwrap(), Some(record(holder, 2)));
    assert_eq!(store.report_part(id, holder, 1).await.unwrap().as_deref(), Some(&b"abc"[..]));
    assert_eq!(tickr.count("SELECT COUNT(*) FROM report_parts").await, 2);
    tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await;
    tickr.until(id, State::Cancelled).await;
    assert!(!store.publish_report(&record(holder, 2)).await.unwrap(), "the end is the end");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_waits_for_mysql_and_what_mysql_refuses_stays_with_its_runner() {
    let tickr = TestApp::start_with(with_queries, Registry::new()).await;
    let proxy = Proxy::start(tickr.config.mysql_url().unwrap().expose()).await;
    let maker = Maker::start(&tickr, |config| config.mysql_url = Some(ServerUrl::mysql(&proxy.url()).unwrap())).await;
    // Three failed tries of one call count as an outage, and the report is copied again.
    proxy.refuse("INSERT INTO report_parts", 1105, 7);
    let report = maker.made(&tickr, "rows").await;
    assert!(proxy.is_through());
    assert_eq!(report["attempts"].as_array().unwrap().len(), 1, "{report:#}");
    assert!(download(&tickr, &report).await.1 == fs::read(maker.file(&report)).unwrap());

    tickr.sql("RENAME TABLE report_parts TO elsewhere").await;
    let alone = maker.made(&tickr, "small").await;
    assert_eq!(alone["result"]["only_on"], maker.app.runner().as_str());
    assert_eq!(alone["attempts"].as_array().unwrap().len(), 1);
    let elsewhere = tickr.get(url(&alone)).await;
    assert!(elsewhere.body["detail"].as_str().unwrap().contains(maker.app.runner().as_str()), "{:#}", elsewhere.body);
    // While MySQL does not answer, a runner serves the files that it has.
    tickr.sql("RENAME TABLE report_files TO elsewhere_too").await;
    assert_eq!(maker.get(&report).await.status, 200);
    assert_eq!(tickr.get(url(&report)).await.status, 503);
    assert_eq!(maker.made(&tickr, "small").await["result"]["only_on"], maker.app.runner().as_str());
    tickr.sql("RENAME TABLE elsewhere TO report_parts, elsewhere_too TO report_files").await;
    maker.stop().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_end_with_their_age_on_disk_and_in_mysql_and_foreign_files_stay() {
    let keep = |config: &mut Config| {
        with_queries(config);
        config.queues = vec!["make".into()];
        config.reports.keep = Some(Duration::from_secs(3_600));
    };
    let tickr = TestApp::start_with(keep, Registry::new()).await;
    let made = async || {
        let id = tickr.enqueue(job("rows")).await;
        tickr.until(id, State::Completed).await
    };
    let (old, young) = (made().await, made().await);
    let dir = tickr.config.reports_dir.clone();
    let part = || format!(".rows-{}.csv.{}.part", JobId::new(), AttemptToken::new().uuid().simple());
    // A killed runner left one of them, and an attempt writes the other one.
    let (unfinished, under_way) = (part(), part());
    let foreign = [".swap.part", "2026-01.csv", "notes.txt", &format!("{}.csv", JobId::new())].map(str::to_owned);
    let two_hours_ago = SystemTime::now() - Duration::from_secs(7_200);
    let two_days_ago = SystemTime::now() - Duration::from_secs(2 * 86_400);
    let file = old["result"]["file"].as_str().unwrap().to_owned();
    for name in foreign.iter().chain([&unfinished, &under_way, &file]) {
        let file = File::options().append(true).create(true).open(dir.join(name)).unwrap();
        file.set_modified(if *name == unfinished { two_days_ago } else { two_hours_ago }).unwrap();
    }
    // One job looks as if it had been enqueued two hours ago. There are also the remains of an attempt that was killed.
    let hex = hex(&old);
    let (past, aged) = ("NOW(6) - INTERVAL 2 HOUR", "UNHEX(CONCAT('0190b0a30000', SUBSTRING(HEX({}), 13)))");
    let id = |column: &str| aged.replace("{}", column);
    tickr
        .sql(format!(
            "SET time_zone = '+00:00'; \
             UPDATE report_files SET id = {}, made_at = {past} WHERE id = x'{hex}'; \
             UPDATE report_parts SET job_id = {}, made_at = {past} WHERE job_id = x'{hex}'; \
             INSERT INTO report_parts SELECT job_id, REVERSE(token), number, bytes, content, made_at FROM report_parts \
             WHERE made_at < NOW(6) - INTERVAL 1 HOUR",
            id("id"),
            id("job_id")
        ))
        .await;
    assert!(tickr.count("SELECT COUNT(*) FROM report_parts").await > 8);
    // A runner checks at its start, and then every minute.
    let tickr = tickr.restart().await;
    let mut left: Vec<String> = foreign.to_vec();
    left.extend([young["result"]["file"].as_str().unwrap().to_owned(), under_way]);
    left.sort();
    eventually("old reports are gone", || async {
        let rows = count(&tickr, "SELECT COUNT(*) FROM report_files").await;
        let sets = count(&tickr, "SELECT COUNT(DISTINCT token) FROM report_parts").await;
        ((rows, sets) == (1, 1) && names(&dir) == left).then_some(())
    })
    .await;
    assert_eq!(tickr.get(url(&old)).await.status, 404);
    fs::remove_file(dir.join(young["result"]["file"].as_str().unwrap())).unwrap();
    assert_eq!(tickr.get(url(&young)).await.status, 200, "the copy of the young one is whole");
    tickr.stop().await;
}

/// Remove the parts that are left of attempts, as the eldest runner does it.
async fn remove_left_parts(store: &Store) {
    let (keep, mut place) = (Duration::from_secs(1), None);
    loop {
        let (left, next) = store.left_parts(keep, place).await.unwrap();
        for of in left {
            while store.delete_left_parts(keep, of, 8).await.unwrap() == 8 {}
        }
        if next.is_none() {
            return;
        }
        place = next;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_parts_of_a_report_that_is_being_copied_outlast_a_short_retention() {
    let tickr = TestApp::start().await;
    let store = tickr.app.broker().store();
    let id = tickr.enqueue_kind("sleep", json!({"ms": 600_000})).await;
    tickr.until(id, State::Executing).await;
    let token = tickr.mysql().await.fetch_one("SELECT token FROM owed").await.unwrap().get(0);
    // The parts of the holder come first.
    let (holder, former) = (AttemptToken::from_uuid(token), AttemptToken::from_uuid(Uuid::max()));
    for token in [holder, former] {
        store.put_report_part(id, token, 0, b"abc".to_vec()).await.unwrap();
    }
    // The holder has more parts than a page.
    tickr
        .sql(format!(
            "INSERT INTO report_parts (job_id, token, number, bytes, content, made_at) \
             WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 600) \
             SELECT p.job_id, p.token, n.n, p.bytes, p.content, p.made_at FROM report_parts p JOIN n \
             WHERE p.token = x'{}'",
            holder.uuid().simple()
        ))
        .await;
    eventually("the part of the former attempt is gone", || async {
        remove_left_parts(store).await;
        store.report_part(id, former, 0).await.unwrap().is_none().then_some(())
    })
    .await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM report_parts").await, 601);
    tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await;
    tickr.until(id, State::Cancelled).await;
    remove_left_parts(store).await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM report_parts").await, 0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_goes_with_its_job_when_an_operator_deletes_it() {
    let make = |config: &mut Config| {
        with_queries(config);
        config.queues = vec!["make".into(), "default".into()];
    };
    let tickr = TestApp::start_with(make, Registry::new()).await;
    let made = async || {
        let id = tickr.enqueue(job("rows")).await;
        tickr.until(id, State::Completed).await
    };
    let (deleted, kept) = (made().await, made().await);
    let other = tickr.another_with(|config| config.reports_dir = tickr.dir.path().join("other"), Registry::new()).await;
    let there = |job: &Value| http().get(format!("http://{}{}", other.addr(), url(job)));
    assert_eq!(answer(there(&deleted)).await.status, 200);
    let operation = json!({"action": "delete", "filter": {"ids": [deleted["id"]]}});
    let started = tickr.post("/v1/operations", operation).await;
    assert!(started.status < 300, "{:#}", started.body);
    eventually("the job is deleted", || async {
        (tickr.get(&format!("/v1/jobs/{}", deleted["id"].as_str().unwrap())).await.status == 404).then_some(())
    })
    .await;
    // The report is gone at once, even from the runner that has the file.
    assert_eq!((tickr.get(url(&deleted)).await.status, answer(there(&deleted)).await.status), (404, 404));
    assert_eq!((tickr.get(url(&kept)).await.status, answer(there(&kept)).await.status), (200, 200));
    other.stop(CancellationToken::new()).await;
    let tickr = tickr.restart().await;
    let (parts, dir) =
        (format!("SELECT COUNT(*) FROM report_parts WHERE job_id = x'{}'", hex(&deleted)), &tickr.config.reports_dir);
    eventually("its content is gone", || async {
        (count(&tickr, &parts).await == 0 && names(dir) == [kept["result"]["file"].as_str().unwrap()]).then_some(())
    })
    .await;
    assert_eq!(tickr.get(url(&deleted)).await.status, 404);
    assert_eq!(tickr.get(url(&kept)).await.status, 200);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_fit_a_server_that_takes_small_packets() {
    let small = |config: &mut Config| {
        with_queries(config);
        config.body_limit_bytes = 64 << 10;
    };
    let tickr = TestApp::start_on_servers_with(&["--max-allowed-packet=524288"], |_| {}, small).await;
    let maker = Maker::start(&tickr, |_| {}).await;
    let report = maker.made(&tickr, "rows").await;
    assert!(report["result"].get("only_on").is_none(), "{report:#}");
    assert!(count(&tickr, "SELECT CAST(MAX(bytes) AS SIGNED) FROM report_parts").await <= 128 << 10);
    assert!(download(&tickr, &report).await.1 == fs::read(maker.file(&report)).unwrap());
    maker.stop().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn downloads_from_mysql_are_bounded_and_ask_for_the_same_keys_as_others() {
    let tickr = TestApp::start_with(with_queries, Registry::new()).await;
    let maker = Maker::start(&tickr, |_| {}).await;
    let report = maker.made(&tickr, "large").await;
    let mut idle = Vec::new();
    for _ in 0..16 {
        idle.push(begin_download(tickr.app.addr(), url(&report), "").await);
    }
    let refused = tickr.get(url(&report)).await;
    assert_eq!((refused.status, refused.code()), (429, "overloaded"));
    assert_eq!(maker.get(&report).await.status, 200, "its own file is not among them");
    idle.clear();
    eventually("there is room again", || async { (tickr.get(url(&report)).await.status == 200).then_some(()) }).await;

    let admin = make_api_key(&tickr.url(""), "", "ops", json!({"scope": "admin"})).await;
    for (scope, status) in [("read", 200), ("enqueue", 403), ("admin", 200)] {
        let key = make_api_key(&tickr.url(""), &admin, &format!("of-{scope}"), json!({"scope": scope})).await;
        let fetched = answer(http().get(tickr.url(url(&report))).bearer_auth(key)).await;
        assert_eq!(fetched.status, status, "{scope}");
    }
    assert_eq!(tickr.get(url(&report)).await.status, 401);
    maker.stop().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn downloads_end_with_their_key_on_the_runner_with_the_file_and_on_others() {
    let tickr = TestApp::start_with(with_queries, Registry::new()).await;
    let maker = Maker::start(&tickr, |_| {}).await;
    let report = maker.made(&tickr, "large").await;
    let addrs = [maker.app.addr(), tickr.app.addr()];
    let admin = make_api_key(&tickr.url(""), "", "ops", json!({"scope": "admin"})).await;
    let key = make_api_key(&tickr.url(""), &admin, "board", json!({"scope": "read"})).await;
    let status = async |addr: SocketAddr, key: &str| {
        answer(http().get(format!("http://{addr}/v1/whoami")).bearer_auth(key)).await.status
    };
    // An open API takes any key, so the admin key alone does not tell that a runner knows the others.
    for (addr, key, wanted) in addrs.iter().flat_map(|addr| [(addr, "none", 401), (addr, &*key, 200)]) {
        eventually("the runner knows the keys", || async { (status(*addr, key).await == wanted).then_some(()) }).await;
    }
    let (mut ended, mut kept) = (Vec::new(), Vec::new());
    for addr in addrs {
        ended.push(begin_download(addr, url(&report), &key).await);
        kept.push(begin_download(addr, url(&report), &admin).await);
    }
    let revoke = http().delete(tickr.url("/v1/api-keys/board")).bearer_auth(&admin);
    assert_eq!(answer(revoke).await.status, 200);
    for addr in addrs {
        eventually("the runner knows of the end", || async { (status(addr, &key).await == 401).then_some(()) }).await;
    }
    for (stream, from) in ended.into_iter().zip(["its own runner", "another runner"]) {
        let (announced, came) = finish_download(stream).await;
        println!("{came} of {announced} bytes came from {from}");
        assert!(announced > 8_000 << 10 && came < announced, "{came} of {announced} bytes came from {from}");
    }
    for stream in kept {
        let (announced, came) = finish_download(stream).await;
        assert_eq!(came, announced, "a download with a valid key is whole");
    }
    maker.stop().await;
    tickr.stop().await;
}

/// A handler whose result has this many bytes of JSON.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct Long {
    bytes: usize,
}

impl Kind for Long {
    const NAME: &'static str = "long";
}

fn long() -> Registry {
    let mut registry = Registry::new();
    // The quotes of the text are two bytes.
    registry.register(|long: Long, _: Context| async move { Output::json(&"x".repeat(long.bytes - 2)) });
    registry
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_is_too_large_for_its_job_becomes_a_file() {
    const MOST: usize = 256 * 1024;
    let tickr = TestApp::start_with(|_| {}, long()).await;
    let folder = tickr.dir.path().join("elsewhere");
    let elsewhere = |config: &mut Config| {
        (config.queues, config.reports_dir) = (vec!["elsewhere".into()], folder.clone());
    };
    let other = tickr.another_with(elsewhere, long()).await;
    for (bytes, is_file) in [(MOST, false), (MOST + 1, true), (5 << 20, true)] {
        let id = tickr.enqueue_kind("long", json!({"bytes": bytes})).await;
        let job = tickr.until(id, State::Completed).await;
        if !is_file {
            assert_eq!(job["result"].as_str().unwrap().len(), bytes - 2);
            continue;
        }
        let name = format!("long-result-{id}.json");
        let expected = json!({"file": name, "format": "json", "bytes": bytes, "url": format!("/v1/reports/{name}")});
        assert_eq!(job["result"], expected);
        for addr in [tickr.app.addr(), other.addr()] {
            let response = http().get(format!("http://{addr}{}", url(&job))).send().await.unwrap();
            assert_eq!(response.status(), 200);
            assert_eq!(response.headers()["content-type"], "application/json");
            let text: String = response.json().await.unwrap();
            assert_eq!(text, "x".repeat(bytes - 2));
        }
    }
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_is_too_large_for_a_file_completes_its_job_with_a_note() {
    const MOST: usize = 64 << 20;
    let tickr = TestApp::start_with(|_| {}, long()).await;
    let id = tickr.enqueue_kind("long", json!({"bytes": MOST + 1})).await;
    let job = tickr.until(id, State::Completed).await;
    let note = json!({"not_kept": format!("the result has more than {MOST} bytes"), "bytes": MOST + 1});
    assert_eq!(job["result"], note);
    assert_eq!(job["attempts"].as_array().unwrap().len(), 1, "{job:#}");
    assert_eq!(tickr.get(&format!("/v1/reports/long-result-{id}.json")).await.status, 404);
    tickr.stop().await;
}

/// A job whose handler returns a large result when it is told to stop.
#[derive(Serialize, Deserialize, JsonSchema)]
struct Late {}

impl Kind for Late {
    const NAME: &'static str = "late";
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_result_that_comes_after_a_cancel_completes_its_job() {
    const BYTES: usize = 300 * 1024;
    let (mut kinds, started) = (Registry::new(), Arc::new(Semaphore::new(0)));
    let running = Arc::clone(&started);
    kinds.register(move |_: Late, ctx: Context| {
        running.add_permits(1);
        async move {
            ctx.stopped().await;
            Output::json(&"x".repeat(BYTES - 2))
        }
    });
    let tickr = TestApp::start_with(|_| {}, kinds).await;
    // The machine may stand still for the two seconds that a handler has after a stop.
    for tries_left in (0..5).rev() {
        let id = tickr.enqueue_kind("late", json!({})).await;
        tokio::time::timeout(DEADLINE, started.acquire()).await.unwrap().unwrap().forget();
        assert_eq!(tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await.status, 202);
        let ended = eventually("the end of the job", || async {
            let job = tickr.job(id).await;
            ["completed", "cancelled"].contains(&job["state"].as_str()?).then_some(job)
        });
        let job = ended.await;
        if job["state"] == "cancelled" && tries_left > 0 {
            continue;
        }
        assert_eq!(job["state"], "completed", "{job:#}");
        let response = http().get(format!("http://{}{}", tickr.app.addr(), url(&job))).send().await.unwrap();
        assert_eq!((response.status().as_u16(), response.bytes().await.unwrap().len()), (200, BYTES));
        break;
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_result_that_cannot_be_written_is_made_again_by_the_next_attempt() {
    let tickr = TestApp::start_with(|config| config.reports_dir = "/dev/null/reports".into(), long()).await;
    let retry = json!({"base_ms": 600_000, "cap_ms": 600_000});
    let id = tickr.enqueue(json!({"kind": "long", "payload": {"bytes": 1 << 20}, "retry": retry})).await;
    let job = tickr.until(id, State::Retrying).await;
    let error = job["last_error"].as_str().unwrap();
    assert!(error.starts_with("keep the result as a file: "), "{error}");
    assert_eq!(tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await.status, 200);
    tickr.stop().await;
}
