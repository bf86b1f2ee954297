//! `/docs`: the reference of the API as one HTML page, made from the OpenAPI document when the process starts. It needs
//! no other host, no script, and nothing that the content security policy forbids.

use std::collections::BTreeMap;

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::response::Html;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde_json::{Map, Value, json};
use utoipa::openapi::OpenApi;

use crate::http::problem::{Code, Problem};
use crate::http::problem_table::Entry;
use tickr_handlers::Registry;

const STYLE: &str = "\
:root{color-scheme:light dark;--line:#8884;--soft:#8882;--get:#2b7a4b;--post:#2b5fa8;--patch:#a06a00;--put:#6b46a8;--delete:#a83232}\
body{font:15px/1.55 system-ui,sans-serif;margin:0;display:grid;grid-template-columns:19rem minmax(0,1fr)}\
nav{position:sticky;top:0;height:100vh;overflow:auto;padding:1rem;border-right:1px solid var(--line);box-sizing:border-box;font-size:13px}\
nav h2{font-size:13px;margin:1rem 0 .2rem}nav a{display:block;padding:.1rem 0;text-decoration:none;color:inherit;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}\
nav a:hover{text-decoration:underline}main{padding:1rem 2rem 6rem;max-width:62rem}\
h1{margin-top:.2rem}h2{margin-top:3rem;border-bottom:1px solid var(--line)}h3{margin-top:2.2rem}h4{margin:1rem 0 .2rem;font-size:14px}\
table{border-collapse:collapse;width:100%}td p{margin:0 0 .2rem}td,th{text-align:left;padding:.3rem .8rem .3rem 0;vertical-align:top;border-bottom:1px solid var(--soft)}\
code,pre{font:13px/1.45 ui-monospace,monospace}pre{background:var(--soft);padding:.7rem;overflow:auto;border-radius:4px}\
.m{font:700 11px ui-monospace,monospace;color:#fff;border-radius:3px;padding:.1rem .35rem;margin-right:.4rem}\
.get{background:var(--get)}.post{background:var(--post)}.patch{background:var(--patch)}.put{background:var(--put)}.delete{background:var(--delete)}\
.dim{opacity:.7}section:target>h3,tr:target{background:var(--soft)}\
@media(max-width:60rem){body{display:block}nav{position:static;height:auto;border:0}}";

fn shell(title: &str, body: &Markup) -> String {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                link rel="icon" href="/ui/icon.svg";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body { (body) }
        }
    }
    .into_string()
}

/// An operation of the OpenAPI document.
struct Operation<'a> {
    method: &'a str,
    path: &'a str,
    value: &'a Value,
}

impl Operation<'_> {
    fn text(&self, name: &str) -> &str {
        self.value[name].as_str().unwrap_or("")
    }
}

/// Build the page of the whole reference.
pub(crate) fn page(document: &OpenApi, registry: &Registry) -> String {
    let document = serde_json::to_value(document).unwrap_or_default();
    let no_schemas = Map::new();
    let schemas = document.pointer("/components/schemas").and_then(Value::as_object).unwrap_or(&no_schemas);
    let mut by_tag: BTreeMap<&str, Vec<Operation<'_>>> = BTreeMap::new();
    for (path, item) in document["paths"].as_object().into_iter().flatten() {
        for (method, value) in item.as_object().into_iter().flatten() {
            let tag = value.pointer("/tags/0").and_then(Value::as_str).unwrap_or("");
            by_tag.entry(tag).or_default().push(Operation { method, path, value });
        }
    }
    let tags: Vec<(&str, &str)> = document["tags"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|tag| Some((tag["name"].as_str()?, tag["description"].as_str().unwrap_or(""))))
        .collect();
    let body = html! {
        nav {
            strong { "tickr " (env!("CARGO_PKG_VERSION")) }
            @for (tag, _) in &tags {
                h2 { (tag) }
                @for operation in by_tag.get(tag).into_iter().flatten() {
                    a href={ "#" (operation.text("operationId")) } { (badge(operation.method)) (operation.path) }
                }
            }
            h2 { "reference" }
            a href="#kinds" { "Kinds" }
            a href="#problems" { "Problems" }
            a href="#schemas" { "Schemas" }
        }
        main {
            h1 { "The API of tickr" }
            p { (document.pointer("/info/description").and_then(Value::as_str).unwrap_or(""))
                " For machines: " a href="/openapi.json" { "/openapi.json" } "." }
            p { "Bodies are JSON in UTF-8. Names are snake_case, times are RFC 3339 in UTC with milliseconds, ids are UUIDs. \
                 Unknown fields are refused. Send an API key as " code { "Authorization: Bearer …" } ". Every response has an "
                 code { "x-request-id" } ": that of the request, if it had a valid one." }
            @for (tag, description) in &tags {
                h2 id={ "tag-" (tag) } { (tag) }
                p class="dim" { (description) }
                @for operation in by_tag.get(tag).into_iter().flatten() { (section(operation, schemas)) }
            }
            h2 id="kinds" { "Kinds" }
            p { "The kinds of jobs that this runner can execute, with the JSON Schema of each payload; also at " code { "GET /v1/kinds" } "." }
            @for kind in registry.iter() {
                section id={ "kind-" (kind.name()) } {
                    h3 { code { (kind.name()) } }
                    p { (kind.defaults().max_attempts) " attempts, " (kind.defaults().timeout.as_secs()) " s each, unless the job sets other values." }
                    pre { (serde_json::to_string_pretty(kind.schema()).unwrap_or_default()) }
                }
            }
            h2 id="problems" { "Problems" }
            p { "Errors are " code { "application/problem+json" } " (RFC 9457). Programs should use the field " code { "code" } "." }
            table {
                thead { tr { th { "Code" } th { "Status" } th { "Meaning and remedy" } th { "Retry" } } }
                tbody { @for &code in Code::ALL { (row(code)) } }
            }
            h2 id="schemas" { "Schemas" }
            @for (name, schema) in schemas {
                section id={ "schema-" (name) } {
                    h3 { code { (name) } }
                    (described(schema))
                }
            }
        }
    };
    shell("The API of tickr", &body)
}

fn badge(method: &str) -> Markup {
    html! { span class={ "m " (method) } { (method.to_uppercase()) } }
}

/// Render a text of the document: paragraphs, and code between back quotes.
fn prose(text: &str) -> Markup {
    html! {
        @for paragraph in text.split("\n\n") {
            p { @for (at, part) in paragraph.split('`').enumerate() {
                @if at % 2 == 1 { code { (part) } } @else { (part) }
            } }
        }
    }
}

fn section(operation: &Operation<'_>, schemas: &Map<String, Value>) -> Markup {
    let parameters: Vec<&Value> = operation.value["parameters"].as_array().into_iter().flatten().collect();
    let body = operation.value.pointer("/requestBody/content").and_then(Value::as_object);
    html! {
        section id=(operation.text("operationId")) {
            h3 { (badge(operation.method)) code { (operation.path) } }
            p { strong { (operation.text("summary")) } }
            @if !operation.text("description").is_empty() { (prose(operation.text("description"))) }
            @if !parameters.is_empty() {
                h4 { "Parameters" }
                table { tbody {
                    @for parameter in parameters {
                        tr {
                            td { code { (parameter["name"].as_str().unwrap_or("")) }
                                @if parameter["required"] == true { " *" } }
                            td class="dim" { (parameter["in"].as_str().unwrap_or("")) }
                            td { (shape(&parameter["schema"])) }
                            td { (prose(parameter["description"].as_str().unwrap_or(""))) }
                        }
                    }
                } }
            }
            @if let Some(content) = body {
                h4 { "Body" }
                @for (media, content) in content {
                    p { code { (media) } ": " (shape(&content["schema"])) }
                }
            }
            h4 { "Responses" }
            table { tbody {
                @for (status, response) in operation.value["responses"].as_object().into_iter().flatten() {
                    tr {
                        td { code { (status) } }
                        td { (prose(response["description"].as_str().unwrap_or(""))) }
                        td { @for (media, content) in response["content"].as_object().into_iter().flatten() {
                            div { (shape(&content["schema"])) " " span class="dim" { (media) } }
                        } }
                    }
                }
            } }
            h4 { "Example" }
            pre { (curl(operation, schemas)) }
        }
    }
}

/// Render a schema in a few words, with a link if it has a name.
fn shape(schema: &Value) -> Markup {
    if let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
        return html! { a href={ "#schema-" (name) } { code { (name) } } };
    }
    for word in ["oneOf", "anyOf", "allOf"] {
        if let Some(parts) = schema[word].as_array() {
            let parts: Vec<&Value> = parts.iter().filter(|part| part["type"] != "null").collect();
            return html! { @for (at, part) in parts.iter().enumerate() { @if at > 0 { " or " } (shape(part)) } };
        }
    }
    if let Some(words) = schema["enum"].as_array() {
        let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
        return html! { @for (at, word) in words.iter().enumerate() { @if at > 0 { ", " } code { (word) } } };
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(many) => many.iter().filter_map(Value::as_str).filter(|word| *word != "null").collect(),
        _ => Vec::new(),
    };
    if types == ["array"] {
        return html! { "list of " (shape(&schema["items"])) };
    }
    if types == ["object"]
        && let Some(values) = schema.get("additionalProperties").filter(|values| values.is_object())
    {
        return html! { "map of " (shape(values)) };
    }
    let mut text = if types.is_empty() { "any JSON".to_owned() } else { types.join(" or ") };
    if let Some(format) = schema["format"].as_str() {
        text = format!("{text} ({format})");
    }
    let bounds: Vec<String> = [
        ("minimum", "from"),
        ("maximum", "to"),
        ("minLength", "minimum length"),
        ("maxLength", "maximum length"),
        ("minItems", "minimum items"),
        ("maxItems", "maximum items"),
        ("pattern", "pattern"),
        ("default", "default"),
    ]
    .iter()
    .filter_map(|(key, word)| {
        let value = schema.get(key).filter(|value| !value.is_null())?;
        Some(format!("{word} {}", value.as_str().map_or_else(|| value.to_string(), str::to_owned)))
    })
    .collect();
    html! { (text) @if !bounds.is_empty() { span class="dim" { " " (bounds.join(", ")) } } }
}

/// Render a named schema with all its fields.
fn described(schema: &Value) -> Markup {
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    html! {
        (prose(schema["description"].as_str().unwrap_or("")))
        @if let Some(fields) = schema["properties"].as_object() {
            table {
                tbody {
                    @for (name, field) in fields {
                        tr {
                            td { code { (name) } @if required.contains(&name.as_str()) { " *" } }
                            td { (shape(field)) }
                            td { (prose(field["description"].as_str().unwrap_or(""))) }
                        }
                    }
                }
            }
        } @else {
            p { (shape(schema)) }
        }
    }
}

/// Build an example command for a shell.
fn curl(operation: &Operation<'_>, schemas: &Map<String, Value>) -> String {
    let path = operation
        .path
        .replace("{id}", "0192f8c0-7f3a-7c4e-9d5b-3e2a1f0c9b8a")
        .replace("{file}", "sales.csv")
        .replace(['{', '}'], "");
    let follows = operation.value.pointer("/responses/200/content/text~1event-stream").is_some();
    let method = match operation.method {
        "get" if follows => "-N ".to_owned(),
        "get" => String::new(),
        other => format!("-X {} ", other.to_uppercase()),
    };
    let mut lines = vec![format!("curl {method}http://127.0.0.1:7070{path}")];
    if operation.value.get("security").is_some() {
        lines.push("-H \"Authorization: Bearer $TICKR_TOKEN\"".to_owned());
    }
    let content = operation.value.pointer("/requestBody/content").and_then(Value::as_object);
    if let Some((media, content)) = content.and_then(|content| content.iter().next()) {
        lines.push(format!("-H 'Content-Type: {media}'"));
        lines.push(match media.as_str() {
            "application/json" => format!("-d '{}'", example(&content["schema"], schemas, 0)),
            _ => "--data-binary @jobs.ndjson".to_owned(),
        });
    }
    lines.join(" \\\n  ")
}

/// Build a value that fits a schema: its own example, or one with the required fields.
fn example(schema: &Value, schemas: &Map<String, Value>, depth: usize) -> Value {
    if let Some(given) = schema.get("example").or_else(|| schema.pointer("/examples/0")) {
        return given.clone();
    }
    if let Some(schema) = schema["$ref"].as_str().and_then(|path| schemas.get(path.rsplit('/').next()?)) {
        return if depth < 6 { example(schema, schemas, depth + 1) } else { Value::Null };
    }
    for word in ["oneOf", "anyOf", "allOf"] {
        if let Some(part) = schema[word].as_array().and_then(|parts| parts.iter().find(|part| part["type"] != "null")) {
            return example(part, schemas, depth + 1);
        }
    }
    if let Some(first) = schema.pointer("/enum/0").or_else(|| schema.get("default")) {
        return first.clone();
    }
    let kind = schema["type"].as_str().or_else(|| schema.pointer("/type/0").and_then(Value::as_str)).unwrap_or("");
    match kind {
        "object" => {
            let required: Vec<&str> =
                schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            let fields = schema["properties"].as_object().into_iter().flatten();
            // If no field is required, include the last one to show how a value is written.
            let last = schema["properties"].as_object().and_then(|fields| fields.keys().next_back().cloned());
            let shown = |name: &str| {
                required.contains(&name) || required.is_empty() && last.as_deref() == Some(name) && depth < 2
            };
            let shown = fields.filter(|(name, _)| shown(name));
            Value::Object(shown.map(|(name, field)| (name.clone(), example(field, schemas, depth + 1))).collect())
        }
        "array" => json!([example(&schema["items"], schemas, depth + 1)]),
        "integer" | "number" => schema.get("minimum").cloned().unwrap_or_else(|| json!(1)),
        "boolean" => json!(true),
        _ => json!("text"),
    }
}

fn row(code: Code) -> Markup {
    let Entry { meaning, remedy, again } = code.entry();
    html! {
        tr id={ "problem-" (code.word()) } {
            td { a href={ "/docs/problems/" (code.word()) } { code { (code.word()) } } }
            td { (code.status().as_u16()) }
            td { (prose(meaning)) (prose(remedy)) }
            td { (prose(again.words())) }
        }
    }
}

/// Serve the page of one problem code.
pub(crate) async fn problem(code: Result<Path<String>, PathRejection>) -> Result<Html<String>, Problem> {
    let known = code.ok().and_then(|Path(word)| Code::ALL.iter().copied().find(|code| code.word() == word));
    let code = known.ok_or_else(|| Problem::new(Code::NotFound, "there is no problem with that code; see /docs"))?;
    let Entry { meaning, remedy, again } = code.entry();
    let body = html! {
        nav { a href="/docs#problems" { "All problems" } }
        main {
            h1 { code { (code.word()) } }
            p { strong { (code.status().as_u16()) " " (code.title()) } }
            (prose(meaning))
            h4 { "Remedy" }
            (prose(remedy))
            h4 { "Retry" }
            (prose(again.words()))
            p class="dim" { "type: " code { "urn:tickr:problem:" (code.word()) } }
        }
    };
    Ok(Html(shell(&code.word(), &body)))
}
