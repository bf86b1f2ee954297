//! API keys: which clients may call the API, and which calls they may make.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tickr::app::{App, StartError};
use tickr::broker::OperatorSettings;
use tickr::handlers::Registry;
use tokio::time::Instant;

use crate::support::program::{command, outcome, tickr as program};
use crate::support::{Pulse, TestApp, call, eventually, make_api_key};

async fn make(url: &str, by: &str, name: &str, scope: &str) -> String {
    make_api_key(url, by, name, json!({"scope": scope})).await
}

#[tokio::test(flavor = "multi_thread")]
async fn api_keys_open_what_their_scope_names_are_stored_as_digests_and_end_when_revoked() {
    let tickr = TestApp::start().await;
    let other = tickr.another().await;
    let (here, there) = (tickr.url(""), format!("http://{}", other.addr()));

    // The API is open until the first API key exists, and needs one from then on.
    assert_eq!(
        call(&here, Method::GET, "/v1/whoami", "", None).await.body,
        json!({"actor": "anyone", "scope": "admin", "open": true})
    );
    let admin = make(&here, "", "ops", "admin").await;
    assert_eq!(call(&here, Method::GET, "/v1/stats", "", None).await.code(), "unauthorized");
    assert_eq!(call(&here, Method::GET, "/livez", "", None).await.status, 200);
    eventually("the other runner asks for a key as well", || async {
        let refused = call(&there, Method::GET, "/v1/stats", "", None).await;
        (refused.status == 401).then_some(())
    })
    .await;
    let (reads, produces) = (make(&here, &admin, "board", "read").await, make(&here, &admin, "shop", "enqueue").await);

    let job = json!({"kind": "noop"});
    let made = call(&here, Method::POST, "/v1/jobs", &produces, Some(job.clone())).await;
    let path = format!("/v1/jobs/{}", made.body["id"].as_str().unwrap());
    for (key, method, path, body, status) in [
        (&produces, Method::GET, path.as_str(), None, 200),
        (&produces, Method::GET, "/v1/jobs", None, 403),
        (&produces, Method::POST, &format!("{path}/run-now"), None, 403),
        (&reads, Method::POST, &format!("{path}/cancel"), None, 403),
        (&reads, Method::GET, "/v1/jobs", None, 200),
        (&reads, Method::POST, "/v1/jobs", Some(job), 403),
        (&reads, Method::GET, "/v1/api-keys", None, 403),
        (&reads, Method::DELETE, "/v1/api-keys/shop", None, 403),
        (&admin, Method::GET, "/v1/api-keys", None, 200),
    ] {
        let answer = call(&here, method.clone(), path, key, body).await;
        assert_eq!(answer.status, status, "{method} {path}: {:#}", answer.body);
        assert_eq!(answer.code(), if status == 403 { "forbidden" } else { "" });
    }
    assert_eq!(
        call(&here, Method::GET, "/v1/whoami", &reads, None).await.body,
        json!({"actor": "key:board", "scope": "read", "open": false})
    );

    // Every API key needs a new name, and a wrong scope is refused with its field.
    let again = call(&here, Method::PUT, "/v1/api-keys/shop", &admin, Some(json!({"scope": "read"}))).await;
    assert_eq!((again.status, again.code()), (409, "name_taken"));
    let wrong = call(&here, Method::PUT, "/v1/api-keys/x", &admin, Some(json!({"scope": "root"}))).await;
    assert_eq!((wrong.code(), wrong.pointers()), ("invalid_request", vec!["/scope"]));
    assert_eq!(
        call(&here, Method::PUT, "/v1/api-keys/X", &admin, Some(json!({"scope": "read"}))).await.pointers(),
        ["name"]
    );

    // No table holds a secret, and the API does not show one a second time.
    let keys = call(&here, Method::GET, "/v1/api-keys", &admin, None).await.body;
    let hex = |key: &str| key.bytes().map(|b| format!("{b:02X}")).collect::<String>();
    for key in [&admin, &reads, &produces] {
        assert!(key.len() > 40 && !keys.to_string().contains(key.as_str()));
        let text = hex(key);
        let sql =
            format!("SELECT COUNT(*) FROM api_keys WHERE INSTR(CONCAT(name, digest, created_by), UNHEX('{text}')) > 0");
        assert_eq!(tickr.count(sql).await, 0);
    }
    let seen = eventually("it is known that the key was used", || async {
        let keys = call(&here, Method::GET, "/v1/api-keys", &admin, None).await.body;
        let shop = keys["data"].as_array().unwrap().iter().find(|key| key["name"] == "shop").unwrap().clone();
        shop["last_used_at"].is_string().then_some(shop)
    })
    .await;
    assert_eq!(
        (&seen["scope"], &seen["created_by"], &seen["revoked_at"]),
        (&json!("enqueue"), &json!("key:ops"), &Value::Null)
    );

    // A revoked API key is refused here at once and on other runners within two seconds. Nothing can restore it.
    let pulse = Pulse::start(&tickr).await;
    eventually("the other runner takes the key", || async {
        (call(&there, Method::GET, "/v1/kinds", &produces, None).await.status == 200).then_some(())
    })
    .await;
    let revoked = call(&here, Method::DELETE, "/v1/api-keys/shop", &admin, None).await;
    let since = Instant::now();
    assert_eq!((revoked.status, &revoked.body["revoked_by"]), (200, &json!("key:ops")));
    assert_eq!(call(&here, Method::GET, "/v1/kinds", &produces, None).await.status, 401);
    // The bound is that of the other runner's copy of the API keys. Its next answer follows that copy.
    let ended = |settings: &OperatorSettings| settings.api_keys.iter().any(|key| key.revoked.is_some());
    let mut copy = other.operator_settings().listen();
    let learned = tokio::time::timeout(Duration::from_secs(10), copy.wait_for(|settings| ended(settings)));
    learned.await.expect("the other runner learns of it").unwrap();
    let after = pulse.time_since(since);
    assert_eq!(call(&there, Method::GET, "/v1/kinds", &produces, None).await.status, 401);
    println!("a revoked key was refused elsewhere after {} ms", after.as_millis());
    assert!(after < Duration::from_secs(2), "{after:?}");
    let again = call(&here, Method::DELETE, "/v1/api-keys/shop", &admin, None).await;
    assert_eq!(again.body["revoked_at"], revoked.body["revoked_at"]);
    assert_eq!(call(&here, Method::DELETE, "/v1/api-keys/nobody", &admin, None).await.status, 404);
    for name in ["board", "ops"] {
        assert_eq!(call(&here, Method::DELETE, &format!("/v1/api-keys/{name}"), &admin, None).await.status, 200);
    }
    assert_eq!(call(&here, Method::GET, "/v1/stats", "", None).await.status, 401);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM audit WHERE action IN ('api_key.create', 'api_key.revoke')").await, 6);
    other.stop(Default::default()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_secret_of_an_api_key_is_shown_also_when_mysql_fails_after_it_was_made() {
    const TOKEN: &str = "a-token-of-the-configuration";
    let tickr = TestApp::start_with(|config| config.api_tokens = vec![TOKEN.to_owned().into()], Registry::new()).await;
    let base = tickr.url("");
    // The process reads this table after it has made the API key.
    tickr.sql("RENAME TABLE declared_kinds TO kinds_away").await;
    let made = call(&base, Method::PUT, "/v1/api-keys/board", TOKEN, Some(json!({"scope": "read"}))).await;
    tickr.sql("RENAME TABLE kinds_away TO declared_kinds").await;
    assert_eq!(made.status, 201, "{:#}", made.body);
    let key = made.body["token"].as_str().unwrap();
    eventually("the API key is accepted", || async {
        (call(&base, Method::GET, "/v1/whoami", key, None).await.status == 200).then_some(())
    })
    .await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_beyond_this_host_needs_a_key_or_a_token() {
    let tickr = TestApp::start().await;
    let mut config = tickr.config.clone();
    config.http_addr = "0.0.0.0:0".parse().unwrap();
    let refused = App::start(&config, Registry::new()).await;
    let Err(StartError::Open(_)) = refused else { panic!("it started without an API key or a token") };

    // The first API key is made without the API, by an operator with access to the database.
    let mut create =
        command(&program(), tickr.dir.path(), &["api-keys", "create", "first", "--scope", "admin", "--in-store"]);
    create.env("TICKR_MYSQL_URL", tickr.config.mysql_url().unwrap().expose());
    let (code, out, err) = outcome(create).await;
    assert_eq!(code, 0, "{err}");
    let key = out.trim();
    let app = App::start(&config, Registry::new()).await.unwrap();
    let url = format!("http://127.0.0.1:{}", app.addr().port());
    assert_eq!(call(&url, Method::GET, "/v1/stats", "", None).await.status, 401);
    assert_eq!(call(&url, Method::GET, "/v1/stats", key, None).await.status, 200);
    app.stop(Default::default()).await;

    // The commands use the API.
    let run = async |args: &[&str]| {
        let mut command = command(&program(), tickr.dir.path(), args);
        command.env("TICKR_URL", tickr.url("")).env("TICKR_TOKEN", key).env("USER", "ada");
        outcome(command).await
    };
    // Until this runner knows the key, its API is open and takes any key.
    eventually("this runner knows the key", || async {
        (call(&tickr.url(""), Method::GET, "/v1/stats", "", None).await.status == 401).then_some(())
    })
    .await;
    let (code, out, err) = run(&["api-keys", "create", "shop", "--scope", "enqueue"]).await;
    assert!(code == 0 && out.starts_with("tickr_") && err.contains("not shown again"), "{out}{err}");
    let (code, list, _) = run(&["keys", "list"]).await;
    assert!(
        code == 0 && list.contains("shop") && list.contains("key:first (ada") && !list.contains(out.trim()),
        "{list}"
    );
    let (code, out, _) = run(&["api-keys", "revoke", "shop"]).await;
    assert_eq!((code, out.as_str()), (0, "revoked shop\n"));
    let (code, _, err) = run(&["api-keys", "create", "shop", "--scope", "read"]).await;
    assert!(code == 1 && err.contains("name_taken"), "{err}");
    let (code, _, err) = run(&["api-keys", "create", "shop", "--scope", "root"]).await;
    assert!(code == 2 && err.contains("enqueue"), "{err}");
    tickr.stop().await;
}
