//! The contract of `/openapi.json`, checked against real answers. Every answer that a test gets must be documented for
//! its method, path and status, and its body must fit the schema there. Undocumented fields do not fit.

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock};

use jsonschema::Validator;
use reqwest::header::HeaderMap;
use serde_json::{Map, Value, json};

/// Paths that are not part of the document.
pub(crate) const UNDOCUMENTED: [&str; 4] = ["/", "/docs", "/openapi.json", "/docs/problems/unique_key_taken"];

/// Paths of the interfaces of other services, which the document leaves out as well.
const OF_OTHER_SERVICES: [&str; 4] = ["/schedule", "/create", "/query", "/delete"];

/// The only header that not all answers of a documented response carry.
const REPLAYED: &str = "Idempotency-Replayed";

/// Return whether the path belongs to the interface of another service.
pub(crate) fn is_of_another_service(path: &str) -> bool {
    OF_OTHER_SERVICES.contains(&path) || path.starts_with("/cancel/")
}

/// Return the document of the library, with every object closed to unknown fields.
pub(crate) fn document() -> &'static Value {
    static DOCUMENT: OnceLock<Value> = OnceLock::new();
    DOCUMENT.get_or_init(|| {
        let mut document = serde_json::to_value(tickr::api::openapi()).unwrap();
        close(&mut document);
        document
    })
}

/// Close every object, because otherwise an undocumented field would fit.
fn close(value: &mut Value) {
    match value {
        Value::Object(map) => {
            if map.get("type") == Some(&json!("object")) && map.contains_key("properties") {
                map.entry("additionalProperties").or_insert(json!(false));
            }
            map.values_mut().for_each(close);
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}

/// Return the documented operation for a request, with its path. The result is `None` when the path is not documented,
/// and a path without an operation when the path does not take the method.
pub(crate) fn operation(method: &str, path: &str) -> Option<(&'static str, Option<&'static Value>)> {
    let paths = document()["paths"].as_object().unwrap();
    let parts: Vec<&str> = path.split('/').collect();
    let fits = |template: &str| {
        let words: Vec<&str> = template.split('/').collect();
        words.len() == parts.len()
            && words.iter().zip(&parts).all(|(word, part)| word == part || (word.starts_with('{') && !part.is_empty()))
    };
    // A literal path takes precedence over a template: in /v1/jobs/batch, `batch` is no job id.
    let exact = paths.get_key_value(path);
    let (template, item) = exact.or_else(|| paths.iter().find(|(template, _)| fits(template)))?;
    let method = if method == "HEAD" { "get" } else { &method.to_ascii_lowercase() };
    Some((template, item.get(method)))
}

/// Fail unless the document allows this answer.
pub(crate) fn hold(method: &str, path: &str, status: u16, headers: &HeaderMap, body: &Value) {
    let content_type = headers.get("content-type").and_then(|value| value.to_str().ok()).unwrap_or("");
    let said = format!("{method} {path} was answered {status} {content_type}");
    if UNDOCUMENTED.contains(&path) && status == 200 {
        return;
    }
    if status != 404 && is_of_another_service(path) {
        return;
    }
    let media = content_type.split(';').next().unwrap_or("").trim();
    let Some((template, Some(operation))) = operation(method, path) else {
        if method == "OPTIONS" && status == 204 {
            assert!(headers.contains_key("allow"), "{said} without Allow");
            return;
        }
        // A missing path or method is not documented, but the answer has the form of all problems.
        assert!(matches!(status, 401 | 404 | 405), "{said}, which no operation documents: {body:#}");
        assert_eq!(media, "application/problem+json", "{said}");
        fits(&format!("problem of {status}"), &json!({"$ref": "#/components/schemas/Problem"}), body, &said);
        return;
    };
    let documented = operation["responses"].get(status.to_string());
    let documented = documented.unwrap_or_else(|| panic!("{said}, which {template} does not document: {body:#}"));
    if method == "HEAD" {
        return;
    }
    if status >= 400 && template != "/readyz" {
        assert_eq!(media, "application/problem+json", "{said}");
    }
    for (name, _) in documented.get("headers").and_then(Value::as_object).into_iter().flatten() {
        assert!(name == REPLAYED || headers.contains_key(name), "{said} without the documented header {name}");
    }
    let replayed = documented.get("headers").is_some_and(|documented| documented.get(REPLAYED).is_some());
    assert!(replayed || !headers.contains_key(REPLAYED), "{said} with {REPLAYED}");
    let Some(content) = documented.get("content").and_then(Value::as_object) else {
        assert!(body.as_str() == Some(""), "{said} with a body that {template} does not document: {body}");
        return;
    };
    let described = content.get(media);
    let described = described.unwrap_or_else(|| panic!("{said}, but {template} documents {:?}", content.keys()));
    if template == "/v1/reports/{file}" && status == 200 {
        // The content of files is not described.
        return;
    }
    fits(&format!("{method} {template} {status}"), &described["schema"], body, &said);
}

/// Return whether the document allows this request body, for accepted and for refused bodies.
pub(crate) fn request_fits(method: &str, path: &str, body: &Value) -> Option<bool> {
    let (template, operation) = operation(method, path)?;
    let schema = operation?.pointer("/requestBody/content/application~1json/schema")?;
    Some(with_validator(&format!("request of {method} {template}"), schema, |validator| validator.is_valid(body)))
}

/// Fail unless the value fits a named schema. Used for the lines of a stream.
pub(crate) fn fits_schema(name: &str, value: &Value) {
    fits(name, &json!({"$ref": format!("#/components/schemas/{name}")}), value, name);
}

fn fits(name: &str, schema: &Value, body: &Value, said: &str) {
    with_validator(name, schema, |validator| {
        let problems: Vec<String> =
            validator.iter_errors(body).map(|e| format!("{}: {e}", e.instance_path())).collect();
        assert!(problems.is_empty(), "{said}, which does not fit its schema: {problems:#?}\n{body:#}");
    });
}

/// Build one validator for each place of the document, and keep it.
fn with_validator<T>(name: &str, schema: &Value, use_it: impl FnOnce(&Validator) -> T) -> T {
    static VALIDATORS: Mutex<BTreeMap<String, &'static Validator>> = Mutex::new(BTreeMap::new());
    let known = VALIDATORS.lock().unwrap().get(name).copied();
    let validator = known.unwrap_or_else(|| {
        let mut root: Map<String, Value> = schema.as_object().unwrap().clone();
        root.insert("components".into(), document()["components"].clone());
        let validator = jsonschema::options().should_validate_formats(true).build(&Value::Object(root)).unwrap();
        let validator: &'static Validator = Box::leak(Box::new(validator));
        VALIDATORS.lock().unwrap().insert(name.to_owned(), validator);
        validator
    });
    use_it(validator)
}
