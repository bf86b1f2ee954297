//! The documentation of the API by itself: its page, the catalogue of problems, the methods, and request ids.

use std::collections::BTreeSet;
use std::path::Path;

use reqwest::Method;
use serde_json::json;
use tickr::broker::EventType;
use tickr::verify::Check;

use crate::support::documents::{document, documents};
use crate::support::{TestApp, answer, contract, http};

#[tokio::test(flavor = "multi_thread")]
async fn the_page_has_every_operation_schema_kind_and_problem_and_needs_no_other_host() {
    let tickr = TestApp::start().await;
    let page = tickr.get("/docs").await;
    let text = page.body.as_str().unwrap();
    let document = contract::document();
    for (path, item) in document["paths"].as_object().unwrap() {
        for operation in item.as_object().unwrap().values() {
            let id = operation["operationId"].as_str().unwrap();
            assert!(text.contains(&format!("<section id=\"{id}\">")), "{path} {id}");
            assert!(text.contains(&format!("href=\"#{id}\"")), "{path} {id}");
        }
    }
    for name in document["components"]["schemas"].as_object().unwrap().keys() {
        assert!(text.contains(&format!("id=\"schema-{name}\"")), "{name}");
    }
    let kinds = tickr.get("/v1/kinds").await;
    for kind in kinds.body["data"].as_array().unwrap() {
        assert!(text.contains(&format!("id=\"kind-{}\"", kind["kind"].as_str().unwrap())));
    }
    // Every link leads to a place on the page or on this host. The page fetches nothing and runs no script.
    for (at, _) in text.match_indices("href=\"") {
        let target = text[at + 6..].split('"').next().unwrap();
        match target.strip_prefix('#') {
            Some(id) => assert!(text.contains(&format!("id=\"{id}\"")), "{target} leads nowhere"),
            None => assert!(target.starts_with('/') || target == "data:,", "{target}"),
        }
    }
    for forbidden in ["<script", "src=", "@import", "url(", "onclick", "javascript:"] {
        assert!(!text.contains(forbidden), "{forbidden}");
    }
    let policy = page.header("content-security-policy");
    assert!(policy.contains("default-src 'none'") && !policy.contains("script"), "{policy}");
    // The examples are requests that fit the document.
    let example = text.split("curl -X POST http://127.0.0.1:7070/v1/jobs \\").nth(1).unwrap();
    let body = example.split("-d '").nth(1).unwrap().split('\'').next().unwrap().replace("&quot;", "\"");
    let body = serde_json::from_str(&body).unwrap();
    assert_eq!(contract::request_fits("POST", "/v1/jobs", &body), Some(true), "{body}");
    tickr.stop().await;
}

#[test]
fn the_types_of_events_are_those_in_the_documents() {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/EVENTS.md")).unwrap();
    let (_, cluster) = page.split_once("## The cluster").unwrap();
    let row = |line: &str| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned());
    let listed: BTreeSet<String> = cluster.lines().filter_map(row).collect();
    let mut known: BTreeSet<String> = EventType::ALL.into_iter().map(|what| what.as_str().to_owned()).collect();
    // The API itself sends this event.
    known.insert("reset".to_owned());
    assert_eq!(listed, known);
    let document = contract::document();
    let told = document["paths"]["/v1/events"]["get"]["description"].as_str().unwrap();
    for word in known {
        assert!(told.contains(&format!("`{word}`")), "{word}");
    }
}

/// The table of docs/OPERATIONS.md has each check of `tickr verify`, with its guarantee and its meaning.
#[test]
fn the_checks_in_the_documents_are_those_of_verify() {
    let page = document("docs/OPERATIONS.md").text;
    let (_, verify) = page.split_once("| check | of | no fault |").unwrap();
    let rows = verify.lines().skip(2).take_while(|line| line.starts_with('|'));
    let known =
        Check::ALL.map(|check| format!("| `{}` | {} | {} |", check.as_str(), check.guarantee(), check.meaning()));
    assert_eq!(rows.collect::<Vec<_>>(), known);
}

/// The calls between back quotes, such as `GET /v1/jobs/{id}`, are those of the OpenAPI document.
#[test]
fn the_calls_in_the_documents_are_those_of_the_api() {
    let paths = contract::document()["paths"].as_object().unwrap();
    let mut named = BTreeSet::new();
    for page in documents() {
        for span in page.quoted() {
            let Some((method, rest)) = span.split_once(' ') else { continue };
            if !["GET", "POST", "PUT", "PATCH", "DELETE"].contains(&method) || !rest.starts_with('/') {
                continue;
            }
            let path = rest.split([' ', '?']).next().unwrap();
            let operation = paths.get(path).and_then(|item| item.get(method.to_ascii_lowercase()));
            if contract::is_of_another_service(path) {
                continue;
            }
            let is_a_page = method == "GET" && contract::UNDOCUMENTED.contains(&path);
            // An example may have a name in the place of a parameter.
            let example = || contract::operation(method, path).is_some_and(|(_, operation)| operation.is_some());
            assert!(operation.is_some() || is_a_page || example(), "{}: {span}", page.name);
            if page.name == "docs/API.md" {
                named.insert(format!("{method} {path}"));
            }
        }
    }
    for (path, item) in paths {
        for method in item.as_object().unwrap().keys() {
            let call = format!("{} {path}", method.to_ascii_uppercase());
            assert!(named.contains(&call), "docs/API.md does not name {call}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_catalogue_of_problems_is_the_one_in_the_documents_and_on_the_page() {
    let tickr = TestApp::start().await;
    let made = tickr::api::problems_as_markdown();
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("PROBLEMS.md");
    std::fs::write(&place, &made).unwrap();
    let kept =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/PROBLEMS.md")).unwrap_or_default();
    assert!(made == kept, "docs/PROBLEMS.md is not what the sources say; copy {}", place.display());
    let page = tickr.get("/docs").await;
    for code in made.lines().filter_map(|line| line.strip_prefix("## `")?.strip_suffix('`')) {
        assert!(page.body.as_str().unwrap().contains(&format!("href=\"/docs/problems/{code}\"")), "{code}");
        let one = http().get(tickr.url(&format!("/docs/problems/{code}"))).send().await.unwrap();
        assert_eq!(one.status(), 200);
        assert!(one.text().await.unwrap().contains(&format!("urn:tickr:problem:{code}")));
    }
    assert_eq!(tickr.get("/docs/problems/nothing").await.status, 404);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_path_says_which_methods_it_takes_and_refuses_all_others() {
    let tickr = TestApp::start().await;
    let document = contract::document()["paths"].as_object().unwrap();
    for (template, item) in document {
        let path = template.replace("{id}", "0192f8c0-7f3a-7c4e-9d5b-3e2a1f0c9b8a").replace(['{', '}'], "");
        let mut taken: BTreeSet<String> =
            item.as_object().unwrap().keys().map(|method| method.to_uppercase()).collect();
        if taken.contains("GET") {
            taken.insert("HEAD".into());
        }
        for method in ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "FROB"] {
            if taken.contains(method) {
                continue;
            }
            let request = http().request(Method::from_bytes(method.as_bytes()).unwrap(), tickr.url(&path));
            // The answer to HEAD has no body to read the code from.
            let (status, allow) = if method == "HEAD" {
                let answer = request.send().await.unwrap();
                (answer.status().as_u16(), answer.headers()["allow"].to_str().unwrap().to_owned())
            } else {
                let answer = answer(request).await;
                (answer.status, answer.header("allow").to_owned())
            };
            assert_eq!(status, if method == "OPTIONS" { 204 } else { 405 }, "{method} {path}");
            let allow: BTreeSet<String> = allow.split(',').map(|word| word.trim().to_owned()).collect();
            assert_eq!(allow, taken, "{method} {path}");
        }
        let reads = taken.contains("HEAD") && !template.ends_with("events");
        if reads {
            let (head, get) = (http().head(tickr.url(&path)), http().get(tickr.url(&path)));
            let (head, get) = (head.send().await.unwrap(), get.send().await.unwrap());
            assert_eq!(head.status(), get.status(), "{path}");
            assert!(head.bytes().await.unwrap().is_empty());
        }
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_has_the_id_of_its_request_and_forged_ones_are_not_taken() {
    let tickr = TestApp::start().await;
    let ask = |id: &'static str| answer(http().get(tickr.url("/v1/stats")).header("x-request-id", id));
    assert_eq!(ask("abc-123").await.header("x-request-id"), "abc-123");
    for odd in ["a b", "{\"x\":1}", &*"x".repeat(200).leak()] {
        let made = ask(odd).await.header("x-request-id").to_owned();
        assert!(made != odd && made.len() == 36, "{made}");
    }
    let (one, other) = (tickr.get("/nowhere").await, tickr.post("/v1/jobs", json!([])).await);
    assert_ne!(one.header("x-request-id"), other.header("x-request-id"));
    assert_eq!(one.header("x-request-id").len(), 36);
    tickr.stop().await;
}
