//! The OpenAPI document itself. `support/contract.rs` checks every answer against it.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::support::TestApp;

fn each_operation(document: &Value) -> impl Iterator<Item = (String, String, &Value)> {
    let items = document["paths"].as_object().unwrap().iter();
    items.flat_map(|(path, item)| {
        item.as_object().unwrap().iter().map(|(method, operation)| (path.clone(), method.clone(), operation))
    })
}

fn walk<'a>(value: &'a Value, found: &mut impl FnMut(&'a str, &'a Value)) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| {
            found(key, value);
            walk(value, found);
        }),
        Value::Array(items) => items.iter().for_each(|item| walk(item, found)),
        _ => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_document_is_sound_and_the_same_as_the_library_gives() {
    let tickr = TestApp::start().await;
    let answer = tickr.get("/openapi.json").await;
    assert_eq!((answer.status, answer.header("content-type")), (200, "application/json"));
    let document = answer.body;
    assert_eq!(document, serde_json::to_value(tickr::api::openapi()).unwrap());
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1."));
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(document["info"]["title"], "tickr");

    // All promised routes are documented.
    let routes: BTreeSet<String> =
        each_operation(&document).map(|(path, method, _)| format!("{} {path}", method.to_uppercase())).collect();
    let promised = [
        "GET /livez",
        "GET /metrics",
        "GET /readyz",
        "GET /v1/jobs",
        "GET /v1/jobs/{id}",
        "GET /v1/events",
        "GET /v1/jobs/{id}/events",
        "GET /v1/jobs/{id}/result",
        "GET /v1/kinds",
        "GET /v1/reports/{file}",
        "GET /v1/runners",
        "GET /v1/stats",
        "PATCH /v1/jobs/{id}",
        "POST /v1/jobs",
        "POST /v1/jobs/batch",
        "POST /v1/jobs/import",
        "POST /v1/jobs/{id}/cancel",
        "POST /v1/jobs/{id}/retry",
        "POST /v1/jobs/{id}/run-now",
    ];
    for route in promised {
        assert!(routes.contains(route), "{route} is not documented");
    }

    let tags: Vec<&Value> = document["tags"].as_array().unwrap().iter().map(|tag| &tag["name"]).collect();
    let mut ids = BTreeSet::new();
    for (path, method, operation) in each_operation(&document) {
        let here = format!("{method} {path}");
        assert!(!operation["summary"].as_str().unwrap_or("").is_empty(), "{here} has no summary");
        assert!(ids.insert(operation["operationId"].as_str().unwrap()), "{here} shares its id");
        assert!(operation["tags"].as_array().unwrap().iter().all(|tag| tags.contains(&tag)), "{here}");
        let named: BTreeSet<&str> =
            path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')).collect();
        let parameters = operation["parameters"].as_array().into_iter().flatten();
        let declared: BTreeSet<&str> =
            parameters.clone().filter(|p| p["in"] == "path").map(|p| p["name"].as_str().unwrap()).collect();
        assert_eq!(named, declared, "{here}");
        assert!(parameters.clone().filter(|p| p["in"] == "path").all(|p| p["required"] == true), "{here}");
        assert!(parameters.clone().all(|p| p["schema"].is_object()), "{here}");
        for (status, response) in operation["responses"].as_object().unwrap() {
            assert!(status.parse::<u16>().is_ok_and(|status| (200..600).contains(&status)), "{here} {status}");
            assert!(!response["description"].as_str().unwrap().is_empty(), "{here} {status} has no description");
            if status == "204" || status == "304" {
                assert!(response["content"].as_object().is_none_or(serde_json::Map::is_empty), "{here} {status}");
                continue;
            }
            let content = response["content"].as_object().unwrap();
            assert!(content.values().all(Value::is_object), "{here} {status}");
            if status.starts_with('4') {
                assert_eq!(content.keys().collect::<Vec<_>>(), ["application/problem+json"], "{here} {status}");
            }
        }
        // Every operation that needs a token says so. Health checks need none, nor do calls with a finish key.
        let open = ["/livez", "/readyz"].contains(&path.as_str()) || path.starts_with("/v1/attempts/");
        assert_eq!(operation["responses"].get("401").is_none(), open, "{here}");
    }

    // Every reference has a target, and every schema is valid.
    walk(&document, &mut |key, value| {
        if key == "$ref" {
            let pointer = value.as_str().unwrap().strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{pointer} leads nowhere");
        }
    });
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        assert!(jsonschema::meta::validate(schema).is_ok(), "{name} is no schema");
    }

    // A batch that a job names may have ended.
    for path in ["/v1/jobs", "/v1/jobs/batch"] {
        let refused = document["paths"][path]["post"]["responses"]["409"]["description"].as_str().unwrap();
        assert!(["unique_key_taken", "wrong_state"].iter().all(|code| refused.contains(code)), "{path}: {refused}");
    }

    // The codes of problems are a closed list that programs may match on.
    let codes = document.pointer("/components/schemas/Code").unwrap();
    let text = codes.to_string();
    for code in
        ["invalid_json", "too_deep", "unknown_kind", "invalid_payload", "wrong_state", "unique_key_taken", "overloaded"]
    {
        assert!(text.contains(&format!("\"{code}\"")), "{code}: {text}");
    }
    tickr.stop().await;
}
