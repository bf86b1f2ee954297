//! Redis with accounts and with TLS: a rule that is enough, rights that are missing, and certificates that do not fit.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use redis::aio::MultiplexedConnection;
use serde_json::json;
use tickr::config::ServerUrl;
use tickr::event::Health;
use tickr::handlers::Registry;
use tickr::index::{Index, IndexSettings, IndexTls};
use tickr::job::{State, Timestamp};
use tickr::services::{RedisRole, Server};

use crate::redis_faults::until_health;
use crate::support::documents::document;
use crate::support::redis_group::{open, port, send, start};
use crate::support::{EventStream, TestApp, eventually, eventually_seen, unique_name};

/// Return the words of the rule in docs/OPERATIONS.md, for this prefix of keys.
fn documented_rule(prefix: &str) -> Vec<String> {
    let blocks = document("docs/OPERATIONS.md").blocks_of("text");
    let block = blocks.iter().find(|block| block.text.starts_with("ACL SETUSER")).expect("a rule");
    let words = block.text.split_whitespace().map(|word| word.replace("{tickr}", &format!("{{{prefix}}}")));
    words.collect()
}

/// A Redis whose only users are an operator and the one of the documents.
struct Guarded {
    server: Server,
    operator: MultiplexedConnection,
}

impl Guarded {
    async fn start(prefix: &str) -> Self {
        let server = start(RedisRole::Data, "user default off\nuser operator on >of-operator ~* &* +@all\n").await;
        let operator = open(&format!("redis://operator:of-operator@127.0.0.1:{}", port(&server))).await;
        let mut guarded = Self { server, operator };
        guarded.send(&documented_rule(prefix).join(" ")).await;
        guarded
    }

    async fn send(&mut self, words: &str) {
        let _: () = send(&mut self.operator, words).await;
    }

    fn url(&self) -> ServerUrl {
        ServerUrl::redis(&format!("redis://tickr:a-long-password@127.0.0.1:{}", port(&self.server))).unwrap()
    }
}

/// Return how often clients and scripts have sent this command.
async fn calls_of(operator: &mut MultiplexedConnection, command: &str) -> u64 {
    let stats: String = send(operator, "INFO commandstats").await;
    let calls = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    calls.and_then(|rest| rest.split(',').next()).map_or(0, |calls| calls.parse().unwrap())
}

async fn index_problem(tickr: &TestApp) -> String {
    let ready = tickr.get("/readyz").await;
    assert_eq!(ready.status, 200, "{:#}", ready.body);
    assert!(!ready.body.to_string().contains("a-long-password"), "{:#}", ready.body);
    ready.body["index_problem"].as_str().unwrap_or_default().to_owned()
}

async fn until_problem(tickr: &TestApp, part: &str) {
    eventually_seen(&format!("readiness names {part}"), || async {
        let problem = index_problem(tickr).await;
        if problem.contains(part) { Ok(()) } else { Err(problem) }
    })
    .await;
}

#[test]
fn the_documented_rule_lists_the_commands_that_the_index_sends() {
    let rule = documented_rule("tickr");
    let mut listed: BTreeSet<String> = rule.iter().filter(|word| word.starts_with('+')).cloned().collect();
    assert!(listed.remove("+info"), "the only one that may be left out");
    assert_eq!(listed, tickr::index::rights().into_iter().collect());
    let others: Vec<&str> = rule.iter().map(String::as_str).filter(|word| !word.starts_with('+')).collect();
    assert_eq!(others, ["ACL", "SETUSER", "tickr", "reset", "on", ">a-long-password", "~{tickr}:*"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_rule_is_all_that_tickr_needs() {
    let prefix = unique_name();
    let mut redis = Guarded::start(&prefix).await;
    let tickr = TestApp::start_with(
        |config| {
            config.redis_prefix.clone_from(&prefix);
            config.redis_url = Some(redis.url());
            config.workers = 8;
            (config.ready_high_water, config.ready_low_water) = (100, 30);
        },
        Registry::new(),
    )
    .await;
    until_health(&tickr, Health::Fast).await;
    let mut stream = EventStream::open(&tickr.url("/v1/events"), None).await;
    // More than a list holds, so that one is refilled, and some for later and for other priorities.
    let jobs = (0..600).map(|n| json!({"kind": "noop", "delay_ms": (n % 3) * 200, "priority": n % 4}));
    tickr.enqueue_many(jobs).await;
    let failing = tickr.enqueue(json!({"kind": "fail", "payload": {"times": 1}})).await;
    tickr.until(failing, State::Completed).await;
    stream.until("a job is settled", |told| told.kind == "settled").await;
    tickr.until_idle().await;
    // On a busy machine a late answer of Redis may have cost the index its state for a moment.
    eventually_seen("the rebuild is accepted", || async {
        let answer = tickr.post("/v1/index/rebuild", json!({})).await;
        if answer.status == 202 { Ok(()) } else { Err(answer.body) }
    })
    .await;
    eventually("the index is rebuilt", || async {
        let index = tickr.get("/v1/index").await.body;
        (index["last_rebuild"]["cause"] == "asked").then_some(())
    })
    .await;
    until_health(&tickr, Health::Fast).await;
    // An idle mover looks at its keys with other commands than a busy one does. Of three looks, one at least is idle.
    let looks = calls_of(&mut redis.operator, "zrange").await;
    eventually("an idle mover has looked", || {
        let mut operator = redis.operator.clone();
        async move { (calls_of(&mut operator, "zrange").await >= looks + 3).then_some(()) }
    })
    .await;
    tickr.assert_sound().await;
    // Redis notes every refusal. A newer Redis notes that of the name of the client, which the driver sends first.
    let log: Vec<Vec<redis::Value>> = send(&mut redis.operator, "ACL LOG 100").await;
    let refused: Vec<String> = log.iter().map(|entry| format!("{entry:?}")).collect();
    let refused: Vec<&String> = refused.iter().filter(|entry| !entry.contains("setinfo")).collect();
    assert!(refused.is_empty(), "{refused:#?}");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_is_named_and_costs_no_job() {
    let prefix = unique_name();
    let mut redis = Guarded::start(&prefix).await;
    redis.send("ACL SETUSER tickr -brpop -xadd").await;
    let tickr = TestApp::start_with(
        |config| {
            config.redis_prefix.clone_from(&prefix);
            config.redis_url = Some(redis.url());
            config.workers = 8;
        },
        Registry::new(),
    )
    .await;
    // At the start.
    until_problem(&tickr, "its rule lacks +brpop +xadd").await;
    let mut jobs = 0;
    let mut more = async |tickr: &TestApp| {
        let due = (0..40).map(|n| json!({"kind": "noop", "delay_ms": n * 20}));
        tickr.enqueue_many(due).await;
        tickr.until_idle().await;
        jobs += 40;
        tickr.count("SELECT COUNT(*) FROM attempts WHERE end_state = 'completed'").await == jobs
    };
    assert!(more(&tickr).await);
    let index = tickr.get("/v1/index").await.body;
    assert_eq!((&index["health"], &index["mode"]), (&json!("degraded"), &json!("single")), "{index:#}");
    assert!(index["problem"].as_str().unwrap().contains("+brpop"), "{index:#}");
    redis.send("ACL SETUSER tickr +brpop +xadd").await;
    until_health(&tickr, Health::Fast).await;
    assert_eq!(index_problem(&tickr).await, "");

    // In a script that runs already, and of the keys.
    for (taken, given, named) in [
        ("-zadd -rpop", "+zadd +rpop", "+rpop +zadd".to_owned()),
        ("resetkeys ~another:*", "resetkeys ~{PREFIX}:*", format!("~{{{prefix}}}:*")),
    ] {
        let given = given.replace("PREFIX", &prefix);
        redis.send(&format!("ACL SETUSER tickr {taken}")).await;
        assert!(more(&tickr).await, "{taken}");
        for word in named.split(' ') {
            until_problem(&tickr, word).await;
        }
        redis.send(&format!("ACL SETUSER tickr {given}")).await;
        until_health(&tickr, Health::Fast).await;
    }
    assert!(more(&tickr).await);
    tickr.assert_each_ran_once(160).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_right_of_the_rule_is_needed_and_named() {
    let prefix = unique_name();
    let mut redis = Guarded::start(&prefix).await;
    let settings = IndexSettings {
        url: redis.url().expose().to_owned(),
        tls: IndexTls::default(),
        prefix,
        partitions: 1,
        horizon: Duration::from_secs(60),
        high_water: 100,
        low_water: 10,
    };
    let first_use = async || {
        let index = Index::new(settings.clone()).unwrap();
        let moved = index.move_due(1, |_| Timestamp::UNIX_EPOCH).await;
        moved.err().map(|error| error.to_string()).unwrap_or_default()
    };
    // Everything is there, except the epoch of a whole index.
    assert!(first_use().await.contains("lost its data"));
    for right in tickr::index::rights() {
        redis.send(&format!("ACL SETUSER tickr {}", right.replace('+', "-"))).await;
        let refused = first_use().await;
        assert!(refused.ends_with(&format!("its rule lacks {right}")), "{right}: {refused}");
        redis.send(&format!("ACL SETUSER tickr {right}")).await;
    }
}

/// An authority, and what it signs.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // A certificate with the name of its issuer would count as one that signed itself.
        params.distinguished_name.push(DnType::CommonName, "an authority of the tests");
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// Write a certificate for a host, its key and the authority. Return the paths.
    fn sign(&self, host: &str, dir: &Path) -> [String; 3] {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let files = [("cert", certificate.pem()), ("key", key.serialize_pem()), ("ca", self.pem.clone())];
        files.map(|(name, text)| {
            let path = dir.join(format!("{host}-{name}.pem"));
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_with_an_own_authority_checks_both_sides() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let [cert, key, ca] = authority.sign("127.0.0.1", dir.path());
    let [own_cert, own_key, _] = authority.sign("tickr", dir.path());
    let stranger = tempfile::tempdir().unwrap();
    let [_, _, other_ca] = Authority::new().sign("127.0.0.1", stranger.path());
    let lines = format!("tls-cert-file {cert}\ntls-key-file {key}\ntls-ca-cert-file {ca}\ntls-auth-clients yes\n");
    let redis = start(RedisRole::DataWithTls, lines).await;
    let port = port(&redis);

    // The last ones are refused: by tickr, which does not know the authority or the name of the host, and by Redis, which
    // asks for a certificate.
    let cases = [
        (format!("rediss://127.0.0.1:{port}"), &ca, true, None),
        (format!("rediss://127.0.0.1:{port}"), &other_ca, true, Some("certificate")),
        (format!("rediss://localhost:{port}"), &ca, true, Some("certificate")),
        (format!("rediss://127.0.0.1:{port}"), &ca, false, Some("")),
        (format!("redis://127.0.0.1:{port}"), &ca, false, Some("")),
    ];
    for (url, ca, with_own, refused) in cases {
        let tickr = TestApp::start_with(
            |config| {
                config.redis_url = Some(ServerUrl::redis(&url).unwrap());
                config.redis_ca_file = Some(ca.into());
                config.redis_cert_file = with_own.then(|| own_cert.clone().into());
                config.redis_key_file = with_own.then(|| own_key.clone().into());
            },
            Registry::new(),
        )
        .await;
        match refused {
            None => until_health(&tickr, Health::Fast).await,
            Some(part) => {
                until_health(&tickr, Health::Degraded).await;
                eventually_seen(&format!("the problem of {url} is about a {part}"), || async {
                    let problem = index_problem(&tickr).await;
                    if !problem.is_empty() && problem.contains(part) { Ok(()) } else { Err(problem) }
                })
                .await;
                tickr.redis_stays_out();
            }
        }
        let id = tickr.enqueue_kind("noop", json!({})).await;
        tickr.until(id, State::Completed).await;
        tickr.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_from_nothing_whose_deletion_fails_deletes_later() {
    let prefix = unique_name();
    let mut redis = Guarded::start(&prefix).await;
    let tickr = TestApp::start_with(
        |config| {
            config.redis_prefix.clone_from(&prefix);
            config.redis_url = Some(redis.url());
        },
        Registry::new(),
    )
    .await;
    until_health(&tickr, Health::Fast).await;
    // A list of a queue that no runner serves.
    let list = format!("{{{prefix}}}:ready:ghost");
    redis.send(&format!("RPUSH {list} {}", tickr::job::JobId::new())).await;
    redis.send("ACL SETUSER tickr -scan").await;
    eventually_seen("the rebuild is accepted", || async {
        let answer = tickr.post("/v1/index/rebuild", json!({})).await;
        if answer.status == 202 { Ok(()) } else { Err(answer.body) }
    })
    .await;
    until_problem(&tickr, "scan").await;
    // Without an epoch no job would get into the index, and the lookup of the lists may take seconds.
    let whole: bool = send(&mut redis.operator, &format!("EXISTS {{{prefix}}}:epoch")).await;
    assert!(whole, "the epoch is gone before the lists were looked up");
    redis.send("ACL SETUSER tickr +scan").await;
    until_health(&tickr, Health::Fast).await;
    let left: bool = send(&mut redis.operator, &format!("EXISTS {list}")).await;
    assert!(!left, "the list is still there");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_from_nothing_passes_the_keys_of_other_programs_in_few_steps() {
    let prefix = unique_name();
    let mut redis = Guarded::start(&prefix).await;
    let tickr = TestApp::start_with(
        |config| {
            config.redis_prefix.clone_from(&prefix);
            config.redis_url = Some(redis.url());
        },
        Registry::new(),
    )
    .await;
    until_health(&tickr, Health::Fast).await;
    for page in 0..10 {
        // Ten pages, so that none of them holds up the runner.
        let fill = format!("for n = 1, 10000 do redis.call('SET', 'other:{page}:' .. n, '') end");
        redis::cmd("EVAL").arg(fill).arg(0).exec_async(&mut redis.operator).await.unwrap();
    }
    let before = calls_of(&mut redis.operator, "scan").await;
    eventually_seen("the rebuild is accepted", || async {
        let answer = tickr.post("/v1/index/rebuild", json!({})).await;
        if answer.status == 202 { Ok(()) } else { Err(answer.body) }
    })
    .await;
    eventually("the index is rebuilt", || async {
        let index = tickr.get("/v1/index").await.body;
        (index["last_rebuild"]["cause"] == "asked").then_some(())
    })
    .await;
    // With the usual ten keys in a step there would be 10,000 of them.
    let steps = calls_of(&mut redis.operator, "scan").await - before;
    assert!((10..500).contains(&steps), "{steps} steps");
    until_health(&tickr, Health::Fast).await;
    tickr.stop().await;
}
