//! Tests of the handler against a real SMTP server on loopback.

use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use secrecy::SecretString;
use serde_json::{Value, json};

use super::smtp_sink::{SinkOptions, SmtpSink};
use super::*;

fn settings(sink: &SmtpSink, tls: SmtpTls) -> SmtpSettings {
    SmtpSettings {
        host: "localhost".to_owned(),
        port: sink.address.port(),
        tls,
        login: None,
        connections: 2,
        timeout: Duration::from_secs(5),
        ca_pem: Some(sink.ca_pem.clone()),
    }
}

fn handler(smtp: SmtpSettings) -> EmailHandler {
    let from = Some("tickr <jobs@example.org>".to_owned());
    EmailHandler::new(EmailSettings { from, delivery: Delivery::Smtp(smtp), reports: None }).unwrap()
}

async fn plain() -> (SmtpSink, EmailHandler) {
    let sink = SmtpSink::start(SinkOptions::default()).await;
    let handler = handler(settings(&sink, SmtpTls::None));
    (sink, handler)
}

fn mail_to(to: impl Into<Value>) -> Email {
    serde_json::from_value(json!({"to": to.into(), "subject": "hi", "text": "hello"})).unwrap()
}

async fn send(handler: &EmailHandler, to: &str) -> Outcome {
    handler.run(mail_to(to), Context::detached("email")).await
}

fn result(outcome: Outcome) -> Value {
    serde_json::from_str(outcome.unwrap().into_parts().0.unwrap().get()).unwrap()
}

fn retried(outcome: Outcome) -> String {
    match outcome.unwrap_err() {
        Failure::Retry { error } => error,
        other => panic!("not retried: {other:?}"),
    }
}

fn rejected(outcome: Outcome) -> String {
    match outcome.unwrap_err() {
        Failure::Reject { error } => error,
        other => panic!("not rejected: {other:?}"),
    }
}

/// Split a multipart message or part into its parts, each with its headers.
fn parts(source: &str) -> Vec<&str> {
    let (headers, body) = source.split_once("\r\n\r\n").unwrap();
    let unfolded = headers.replace("\r\n ", " ");
    let boundary = unfolded.split("boundary=\"").nth(1).unwrap().split('"').next().unwrap();
    let inner = body.split(&format!("--{boundary}--")).next().unwrap();
    inner.split(&format!("--{boundary}\r\n")).skip(1).map(|part| part.trim_end_matches("\r\n")).collect()
}

fn unbase64(part: &str) -> Vec<u8> {
    STANDARD.decode(part.split_once("\r\n\r\n").unwrap().1.replace("\r\n", "")).unwrap()
}

#[tokio::test]
async fn a_mail_with_everything_arrives_as_it_was_meant() {
    let (sink, mut handler) = plain().await;
    let reports = tempfile::tempdir().unwrap();
    std::fs::write(reports.path().join("sales-0190b0a3-0000-7000-8000-000000000001.csv"), "a,b\r\n1,2\r\n").unwrap();
    handler.reports = Some(FinishedReports::in_folder(reports.path()));
    let email: Email = serde_json::from_value(json!({
        "to": ["Ann Müller <ann@example.com>", "bob@example.com"],
        "cc": "jane@example.com",
        "bcc": ["eve@example.com"],
        "reply_to": "help@example.com",
        "subject": "Grüße",
        "text": "Hällo\n.\n..\nFrom here on: =20\r\n",
        "html": "<p>Hällo</p>",
        "attachments": [
            {"filename": "bild ä.bin", "content_base64": STANDARD.encode([0_u8, 13, 10, 46, 13, 10, 255])},
            {"report": "sales-0190b0a3-0000-7000-8000-000000000001.csv"},
        ],
    }))
    .unwrap();
    let ctx = Context::detached("email");
    let message_id = format!("<{}@example.org>", ctx.job_id());
    let result = result(handler.run(email, ctx).await);
    assert_eq!(result, json!({"message_id": message_id, "accepted": 4, "response": "250 2.0.0 taken as 1"}));

    let delivered = sink.mails().pop().unwrap();
    assert_eq!(delivered.sender, "jobs@example.org");
    assert_eq!(delivered.recipients, ["ann@example.com", "bob@example.com", "jane@example.com", "eve@example.com"]);
    let source = String::from_utf8(delivered.bytes).unwrap();
    assert_eq!(source.matches('\n').count(), source.matches("\r\n").count());
    assert_eq!(source.matches('\r').count(), source.matches("\r\n").count());
    assert!(source.contains(&format!("Message-ID: {message_id}\r\n")) && source.contains("Date: "));
    assert!(source.contains("Cc: jane@example.com\r\n") && source.contains("Reply-To: help@example.com\r\n"));
    assert!(!source.contains("eve@") && !source.to_ascii_lowercase().contains("bcc:"));

    let mixed = parts(&source);
    assert_eq!(mixed.len(), 3);
    let alternatives = parts(mixed[0]);
    assert!(mixed[0].contains("multipart/alternative"));
    assert!(alternatives[0].contains("text/plain") && alternatives[0].contains("quoted-printable"));
    assert!(alternatives[0].ends_with("H=C3=A4llo\r\n.\r\n..\r\nFrom here on: =3D20"), "{}", alternatives[0]);
    assert!(alternatives[1].contains("text/html") && alternatives[1].ends_with("<p>H=C3=A4llo</p>"));
    assert_eq!(unbase64(mixed[1]), [0, 13, 10, 46, 13, 10, 255]);
    assert!(mixed[1].contains("application/octet-stream") && mixed[1].contains("filename"));
    assert_eq!(unbase64(mixed[2]), b"a,b\r\n1,2\r\n");
    assert!(
        mixed[2].contains("text/csv; charset=utf-8")
            && mixed[2].contains("\"sales-0190b0a3-0000-7000-8000-000000000001.csv\"")
    );
}

#[tokio::test]
async fn answers_of_the_server_become_verdicts() {
    let (sink, handler) = plain().await;
    let error = rejected(send(&handler, "nouser@example.com").await);
    assert!(error.contains("the recipient nouser@example.com: 550 5.1.1 no such user"), "{error}");
    let error = retried(send(&handler, "tempfail@example.com").await);
    assert!(error.contains("451 4.7.1 try later"), "{error}");
    let error = retried(send(&handler, "hangup@example.com").await);
    assert!(error.contains("421"), "{error}");
    let error = retried(send(&handler, "dropafterdata@example.com").await);
    assert!(error.contains("may or may not have taken"), "{error}");
    assert!(sink.mails().is_empty());
    result(send(&handler, "ann@example.com").await);
    assert_eq!(sink.mails().len(), 1);
}

/// A server for each way to encrypt, and a handler that uses it.
async fn encrypted_each_way() -> Vec<(SmtpSink, EmailHandler)> {
    let mut ways = Vec::new();
    for tls in [SmtpTls::None, SmtpTls::Starttls, SmtpTls::Tls] {
        let (starttls, implicit_tls) = (tls == SmtpTls::Starttls, tls == SmtpTls::Tls);
        let sink = SmtpSink::start(SinkOptions { starttls, implicit_tls, ..SinkOptions::default() }).await;
        let handler = handler(settings(&sink, tls));
        ways.push((sink, handler));
    }
    ways
}

#[tokio::test]
async fn a_bare_code_after_the_message_sends_the_mail_once() {
    for (sink, handler) in encrypted_each_way().await {
        assert_eq!(result(send(&handler, "bare@example.com").await)["response"], "250");
        let answer = result(send(&handler, "latin@example.com").await);
        assert_eq!(answer["response"], "250 2.0.0 angenommen f?r Zustellung");
        assert_eq!((sink.mails().len(), sink.connections()), (2, 1));
    }
}

#[tokio::test]
async fn a_last_answer_whose_line_does_not_end_sends_the_mail_once() {
    for (sink, handler) in encrypted_each_way().await {
        assert_eq!(result(send(&handler, "cutline@example.com").await)["response"], "250 2.0.0 taken");
        assert_eq!(sink.mails().len(), 1);
    }
}

#[tokio::test]
async fn a_refusal_in_another_charset_is_final() {
    for (sink, handler) in encrypted_each_way().await {
        let error = rejected(send(&handler, "latinnouser@example.com").await);
        assert!(error.contains("latinnouser@example.com: 550 5.1.1 Empf?nger unbekannt"), "{error}");
        let error = rejected(send(&handler, "othercode@example.com").await);
        assert!(error.contains("571 not to you"), "{error}");
        assert!(sink.mails().is_empty());
    }
}

#[tokio::test]
async fn a_mail_whose_answer_cannot_be_read_is_not_sent_again() {
    for (sink, handler) in encrypted_each_way().await {
        let error = rejected(send(&handler, "garbled@example.com").await);
        assert!(error.contains("it may have taken the mail"), "{error}");
        let error = retried(send(&handler, "dropafterdata@example.com").await);
        assert!(error.contains("may or may not have taken"), "{error}");
        assert_eq!(sink.mails().len(), 1);
    }
}

#[tokio::test]
async fn a_mail_goes_to_all_recipients_or_to_none() {
    let (sink, handler) = plain().await;
    let some = mail_to(json!(["ann@example.com", "tempfail@example.com"]));
    retried(handler.run(some, Context::detached("email")).await);
    let all = mail_to(json!(["nouser@a.example", "ann@example.com", "tempfail@b.example", "nouser@c.example"]));
    let error = rejected(handler.run(all, Context::detached("email")).await);
    for refused in ["nouser@a.example", "tempfail@b.example", "nouser@c.example"] {
        assert!(error.contains(refused), "{error}");
    }
    assert!(sink.mails().is_empty());
    // The refused envelope does not stay on the connection.
    result(send(&handler, "bob@example.com").await);
    assert_eq!(sink.mails()[0].recipients, ["bob@example.com"]);
    assert_eq!(sink.connections(), 1);
}

#[tokio::test]
async fn a_connection_serves_many_mails_and_a_limit_holds() {
    let (sink, handler) = plain().await;
    for _ in 0..10 {
        result(send(&handler, "ann@example.com").await);
    }
    assert_eq!(sink.connections(), 1);
    let many = (0..50).map(|_| send(&handler, "ann@example.com"));
    for outcome in futures_util::future::join_all(many).await {
        result(outcome);
    }
    assert_eq!(sink.mails().len(), 60);
    assert_eq!((sink.connections(), sink.most_open()), (2, 2));
}

#[tokio::test]
async fn an_idle_connection_that_died_costs_no_attempt() {
    let sink = SmtpSink::start(SinkOptions { mails_per_connection: Some(1), ..SinkOptions::default() }).await;
    let handler = handler(settings(&sink, SmtpTls::None));
    for _ in 0..3 {
        result(send(&handler, "ann@example.com").await);
    }
    assert_eq!((sink.mails().len(), sink.connections()), (3, 3));
}

#[tokio::test]
async fn a_connection_that_takes_no_more_mails_costs_no_attempt() {
    for said in ["452 4.3.2 too many messages in this session", "550 5.7.0 too many messages in this session"] {
        let options = SinkOptions { mails_per_connection: Some(2), said_beyond: Some(said), ..SinkOptions::default() };
        let sink = SmtpSink::start(options).await;
        let handler = handler(settings(&sink, SmtpTls::None));
        for _ in 0..5 {
            result(send(&handler, "ann@example.com").await);
        }
        assert_eq!((sink.mails().len(), sink.connections()), (5, 3), "{said}");
    }
}

#[tokio::test]
async fn a_server_that_refuses_every_sender_does_so_on_one_connection() {
    let said = Some("550 5.7.1 not from you");
    let options = SinkOptions { mails_per_connection: Some(0), said_beyond: said, ..SinkOptions::default() };
    let sink = SmtpSink::start(options).await;
    let handler = handler(settings(&sink, SmtpTls::None));
    for _ in 0..3 {
        let error = rejected(send(&handler, "ann@example.com").await);
        assert!(error.contains("550 5.7.1 not from you"), "{error}");
    }
    assert_eq!(sink.connections(), 1);
}

#[tokio::test]
async fn a_stalled_server_times_out_and_the_next_mail_is_sent() {
    let sink = SmtpSink::start(SinkOptions::default()).await;
    let handler =
        handler(SmtpSettings { connections: 1, timeout: Duration::from_millis(300), ..settings(&sink, SmtpTls::None) });
    result(send(&handler, "ann@example.com").await);
    let started = Instant::now();
    let error = retried(send(&handler, "stall@example.com").await);
    assert!(error.contains("time ran out while naming the recipients"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(3));
    result(send(&handler, "ann@example.com").await);
    assert_eq!((sink.mails().len(), sink.connections()), (2, 2));
}

#[tokio::test]
async fn a_server_that_accepts_and_says_nothing_times_out() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let sink = SmtpSink::start(SinkOptions::default()).await;
    for tls in [SmtpTls::None, SmtpTls::Starttls, SmtpTls::Tls] {
        let port = listener.local_addr().unwrap().port();
        // An address, because the name may have another one, which refuses.
        let host = "127.0.0.1".to_owned();
        let silent = SmtpSettings { host, port, timeout: Duration::from_millis(200), ..settings(&sink, tls) };
        let error = retried(send(&handler(silent), "ann@example.com").await);
        assert!(error.contains("time ran out while connecting"), "{error}");
    }
}

#[tokio::test]
async fn a_stop_or_a_dropped_delivery_leaves_no_half_used_connection() {
    let sink = SmtpSink::start(SinkOptions::default()).await;
    let handler = handler(SmtpSettings { connections: 1, ..settings(&sink, SmtpTls::None) });
    let ctx = Context::detached("email");
    let stop = ctx.stop_token();
    let (outcome, ()) = tokio::join!(handler.run(mail_to("stall@example.com"), ctx), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        stop.cancel();
    });
    assert!(retried(outcome).contains("stopped before the message was sent"));
    let dropped = tokio::time::timeout(Duration::from_millis(100), send(&handler, "stall@example.com"));
    assert!(dropped.await.is_err());
    result(send(&handler, "ann@example.com").await);
    assert_eq!((sink.mails().len(), sink.connections()), (1, 3));
}

#[tokio::test]
async fn mail_is_encrypted_when_asked_for_or_not_sent() {
    let sink = SmtpSink::start(SinkOptions { starttls: true, ..SinkOptions::default() }).await;
    let trusting = handler(settings(&sink, SmtpTls::Starttls));
    result(send(&trusting, "ann@example.com").await);
    result(send(&trusting, "ann@example.com").await);
    assert!(sink.mails().iter().all(|mail| mail.encrypted) && sink.connections() == 1);
    let distrusting = handler(SmtpSettings { ca_pem: None, ..settings(&sink, SmtpTls::Starttls) });
    let error = retried(send(&distrusting, "ann@example.com").await);
    assert!(error.contains("certificate"), "{error}");
    let elsewhere = handler(SmtpSettings { host: "127.0.0.1".to_owned(), ..settings(&sink, SmtpTls::Starttls) });
    assert!(retried(send(&elsewhere, "ann@example.com").await).contains("certificate"));

    let implicit = SmtpSink::start(SinkOptions { implicit_tls: true, ..SinkOptions::default() }).await;
    result(send(&handler(settings(&implicit, SmtpTls::Tls)), "ann@example.com").await);
    assert!(implicit.mails()[0].encrypted);
    let distrusting = handler(SmtpSettings { ca_pem: None, ..settings(&implicit, SmtpTls::Tls) });
    assert!(retried(send(&distrusting, "ann@example.com").await).contains("certificate"));

    let (unable, _) = plain().await;
    let error = retried(send(&handler(settings(&unable, SmtpTls::Starttls)), "ann@example.com").await);
    assert!(error.contains("does not offer STARTTLS"), "{error}");
    assert_eq!((unable.mails().len(), sink.mails().len(), implicit.mails().len()), (0, 2, 1));
}

#[tokio::test]
async fn nothing_said_before_tls_counts_after_it() {
    let options = SinkOptions { starttls: true, inject_after_starttls: true, ..SinkOptions::default() };
    let sink = SmtpSink::start(options).await;
    retried(send(&handler(settings(&sink, SmtpTls::Starttls)), "ann@example.com").await);
    assert!(sink.mails().is_empty());
}

#[tokio::test]
async fn logins_work_both_ways_and_a_refused_one_is_retried() {
    for mechanism in ["PLAIN", "LOGIN"] {
        let account = Some(("ann", "canary"));
        let sink = SmtpSink::start(SinkOptions { starttls: true, account, mechanism, ..SinkOptions::default() }).await;
        let with = |password: &str| {
            let login = Some(SmtpLogin { username: "ann".to_owned(), password: SecretString::from(password) });
            handler(SmtpSettings { login, ..settings(&sink, SmtpTls::Starttls) })
        };
        result(send(&with("canary"), "ann@example.com").await);
        assert!(sink.mails()[0].logged_in);
        let error = retried(send(&with("canary2"), "ann@example.com").await);
        assert!(error.contains("logging in") && error.contains("535") && !error.contains("canary"), "{error}");
        // The server requires a login. Without an account it refuses the sender permanently.
        rejected(send(&handler(settings(&sink, SmtpTls::Starttls)), "ann@example.com").await);
    }
    assert!(!format!("{:?}", SmtpLogin { username: "ann".into(), password: "canary".into() }).contains("canary"));
}

#[tokio::test]
async fn a_login_the_server_does_not_know_is_retried() {
    let (sink, _) = plain().await;
    let login = Some(SmtpLogin { username: "ann".into(), password: "x".into() });
    let error = retried(send(&handler(SmtpSettings { login, ..settings(&sink, SmtpTls::None) }), "a@b.example").await);
    assert!(error.contains("logging in"), "{error}");
}

#[tokio::test]
async fn a_missing_server_is_retried() {
    let (sink, _) = plain().await;
    let settings = settings(&sink, SmtpTls::None);
    drop(sink);
    tokio::task::yield_now().await;
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let error = retried(send(&handler(SmtpSettings { port: closed, ..settings }), "ann@example.com").await);
    assert!(error.contains("while connecting"), "{error}");
}

#[tokio::test]
async fn a_payload_that_bypassed_the_check_is_rejected_before_it_reaches_the_server() {
    let (sink, handler) = plain().await;
    for email in [
        Email { subject: "x\r\nBcc: eve@example.com".into(), ..mail_to("ann@example.com") },
        mail_to("ann@example.com>\r\nRCPT TO:<eve@example.com"),
        Email { attachments: vec![Attachment::report("../../etc/passwd")], ..mail_to("ann@example.com") },
    ] {
        rejected(handler.run(email, Context::detached("email")).await);
    }
    assert_eq!(sink.connections(), 0);
}

#[tokio::test]
async fn the_outbox_keeps_one_file_for_each_job() {
    let dir = tempfile::tempdir().unwrap();
    let settings = EmailSettings {
        from: Some("jobs@example.org".to_owned()),
        delivery: Delivery::Outbox(dir.path().join("outbox")),
        reports: Some(FinishedReports::in_folder(dir.path())),
    };
    let handler = EmailHandler::new(settings).unwrap();
    let ctx = Context::detached("email");
    let first = result(handler.run(mail_to("ann@example.com"), ctx.clone()).await);
    let again = result(handler.run(mail_to("ann@example.com"), ctx.clone()).await);
    assert_eq!(first, again);
    assert_eq!((&first["accepted"], first.get("response")), (&json!(1), None));
    let source = std::fs::read_to_string(first["file"].as_str().unwrap()).unwrap();
    assert!(source.contains(first["message_id"].as_str().unwrap()) && source.contains("\r\n\r\nhello"));
    assert_eq!(std::fs::read_dir(dir.path().join("outbox")).unwrap().count(), 1);

    let missing = Email {
        attachments: vec![Attachment::report("gone-0190b0a3-0000-7000-8000-000000000001.csv")],
        ..mail_to("ann@example.com")
    };
    assert!(rejected(handler.run(missing, ctx).await).contains("there is no such report"));
}

#[tokio::test]
async fn a_mail_without_a_sender_is_given_back_by_a_runner_without_a_default_sender() {
    let sink = SmtpSink::start(SinkOptions::default()).await;
    let delivery = Delivery::Smtp(settings(&sink, SmtpTls::None));
    let handler = EmailHandler::new(EmailSettings { from: None, delivery, reports: None }).unwrap();
    let failure = send(&handler, "ann@example.com").await.unwrap_err();
    assert!(matches!(&failure, Failure::Snooze { reason, .. } if reason.contains("default sender")), "{failure:?}");
    assert_eq!(sink.connections(), 0);
    let named = Email { from: Some("jobs@example.org".into()), ..mail_to("ann@example.com") };
    result(handler.run(named, Context::detached("email")).await);
    assert_eq!(sink.mails().len(), 1);
}

#[tokio::test]
async fn an_attempt_has_time_for_a_whole_delivery_and_a_place_for_each_connection() {
    let sink = SmtpSink::start(SinkOptions::default()).await;
    for (delivery_s, attempt_s) in [(5, 120), (30, 120), (31, 121), (600, 690), (86_400, 86_400)] {
        let timeout = Duration::from_secs(delivery_s);
        let handler = handler(SmtpSettings { timeout, ..settings(&sink, SmtpTls::None) });
        assert_eq!(handler.defaults().timeout, Duration::from_secs(attempt_s), "{delivery_s}");
        assert!(handler.room().is_some());
    }
    let outbox = EmailSettings { from: None, delivery: Delivery::Outbox("x".into()), reports: None };
    let outbox = EmailHandler::new(outbox).unwrap();
    assert!(outbox.room().is_none() && outbox.defaults().timeout == Duration::from_secs(120));
}

#[test]
fn settings_that_cannot_work_are_refused_at_the_start() {
    let outbox = || Delivery::Outbox("x".into());
    let from = |from: &str| EmailSettings { from: Some(from.to_owned()), delivery: outbox(), reports: None };
    assert!(matches!(EmailHandler::new(from("nobody")).err(), Some(EmailSetupError::From(_))));
    for tls in [SmtpTls::Tls, SmtpTls::Starttls] {
        let smtp = SmtpSettings {
            host: "mail.example.com".into(),
            port: 25,
            tls,
            login: None,
            connections: 1,
            timeout: Duration::from_secs(1),
            ca_pem: Some(b"-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n".to_vec()),
        };
        let settings = EmailSettings { from: None, delivery: Delivery::Smtp(smtp), reports: None };
        assert!(matches!(EmailHandler::new(settings).err(), Some(EmailSetupError::Smtp(SmtpSetupError::Authorities))));
    }
}

#[test]
fn the_schema_describes_the_payload() {
    let mut registry = super::super::Registry::new();
    let settings = EmailSettings { from: None, delivery: Delivery::Outbox("x".into()), reports: None };
    registry.register_handler(EmailHandler::new(settings).unwrap());
    let kind = registry.get("email").unwrap();
    let pointers = |payload: Value| {
        kind.check(&serde_json::value::to_raw_value(&payload).unwrap())
            .unwrap()
            .into_iter()
            .map(|p| p.pointer)
            .collect::<Vec<_>>()
    };
    let good = json!({"to": "ann@example.com", "from": "bob@example.com", "subject": "s", "text": "t"});
    assert!(pointers(good.clone()).is_empty());
    let with = |key: &str, value: Value| {
        let mut mail = good.clone();
        mail[key] = value;
        pointers(mail)
    };
    assert_eq!(with("to", json!(7)), ["/to"]);
    assert_eq!(with("subject", json!("x".repeat(501))), ["/subject"]);
    assert_eq!(with("recipients", json!([])), [""]);
    assert_eq!(with("attachments", json!([{"name": "x"}])), ["/attachments/0"]);
    assert_eq!(with("attachments", json!([{"report": "x"}])), ["/attachments/0/report"]);
    assert_eq!(with("cc", json!(["a@b.example", "x\r\n@y"])), ["/cc/1"]);
}
