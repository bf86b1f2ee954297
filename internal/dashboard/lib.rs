//! The dashboard: pages in the binary that run in the browser. They use only the public API, with the API key that the
//! operator entered. The code here knows nothing about jobs. There is no build step: the files in `assets/` are served
//! as they are.
//!
//! The pages themselves contain no data, so they can be loaded without an API key, like a sign-in page.

use std::sync::LazyLock;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use rust_embed::{EmbeddedFile, RustEmbed};
use tower_http::compression::CompressionLayer;

/// A development build reads the files from the checkout at each request. A release build contains them.
#[derive(RustEmbed)]
#[folder = "assets/"]
struct Assets;

/// Beginning of the addresses that name the edition of the files, so that a browser keeps them and asks no more.
const EDITION: &str = "v-";

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Paths of screens. All of them serve the same page, which chooses its screen by the path.
const SCREENS: &[&str] = &[
    "/",
    "/jobs",
    "/jobs/{id}",
    "/tail",
    "/incident",
    "/batches",
    "/batches/{id}",
    "/dead-letters",
    "/dead-letters/{fingerprint}",
    "/queues",
    "/queues/{name}",
    "/limits",
    "/limits/{name}",
    "/order-keys",
    "/outbox",
    "/schedules",
    "/schedules/{name}",
    "/runners",
    "/index",
    "/operations",
    "/operations/{id}",
    "/audit",
    "/enqueue",
    "/api-keys",
];

/// Content security policy: only files of this host, no script or style within a page, no frame around the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

/// The routes of the screens and of their files.
pub fn router() -> Router {
    let screens = SCREENS.iter().fold(Router::new(), |router, path| router.route(path, get(page)));
    screens
        .route("/ui/{*path}", get(asset))
        .route("/favicon.ico", get(icon))
        // Compression shrinks scripts to a third. The files are not secret, so the compressed length reveals nothing.
        .layer(CompressionLayer::new())
        .layer(middleware::from_fn(set_default_headers))
}

/// Answer with the page where a browser asks for an address that does not exist. The page says so and leads back. Other
/// clients get the answer of the API.
pub async fn show_unknown_paths(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let of_programs = ["/v1/", "/ui/", "/docs", "/metrics", "/openapi"].iter().any(|other| path.starts_with(other));
    let accepts = request.headers().get(header::ACCEPT).and_then(|value| value.to_str().ok());
    let of_browser = request.method() == Method::GET
        && !of_programs
        && accepts.is_some_and(|types| types.split(',').any(|one| one.trim().starts_with("text/html")));
    let response = next.run(request).await;
    if !of_browser || !matches!(response.status(), StatusCode::NOT_FOUND | StatusCode::UNAUTHORIZED) {
        return response;
    }
    let mut page = page(HeaderMap::new()).await;
    *page.status_mut() = StatusCode::NOT_FOUND;
    // The log has the request under this id.
    if let Some(id) = response.headers().get(REQUEST_ID) {
        page.headers_mut().insert(REQUEST_ID, id.clone());
    }
    page
}

/// Return the edition of the files: a digest of all of them. A development build reads files that may change.
fn edition() -> String {
    static EMBEDDED: LazyLock<String> = LazyLock::new(digest_of_all);
    if cfg!(debug_assertions) { digest_of_all() } else { EMBEDDED.clone() }
}

fn digest_of_all() -> String {
    // FNV-1a over digests: this tells editions apart and protects nothing.
    let mut sum: u64 = 0xcbf2_9ce4_8422_2325;
    for path in Assets::iter() {
        let digest = Assets::get(&path).map(|file| file.metadata.sha256_hash()).unwrap_or_default();
        for byte in path.bytes().chain(digest) {
            sum = (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    format!("{sum:016x}")
}

/// Return the page, with the edition in the addresses of its files.
fn page_of(edition: &str) -> String {
    let page = Assets::get("index.html").map(|file| file.data).unwrap_or_default();
    String::from_utf8_lossy(&page).replace("\"/ui/", &format!("\"/ui/{EDITION}{edition}/"))
}

async fn page(headers: HeaderMap) -> Response {
    let edition = edition();
    let mut page = respond(page_of(&edition).into(), "text/html; charset=utf-8", &format!("W/\"{edition}\""), &headers);
    page.headers_mut().insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    page.headers_mut().insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    page
}

async fn icon(headers: HeaderMap) -> Response {
    served("icon.svg", &headers)
}

async fn asset(Path(path): Path<String>, headers: HeaderMap) -> Response {
    served_by_edition(&path, &headers)
}

fn served_by_edition(path: &str, headers: &HeaderMap) -> Response {
    let Some((named, rest)) = path.strip_prefix(EDITION).and_then(|rest| rest.split_once('/')) else {
        return served(path, headers);
    };
    let mut response = served(rest, headers);
    // During a deploy a page may come from another edition than its files. Such files are not kept.
    if response.status() != StatusCode::NOT_FOUND && (cfg!(debug_assertions) || named == edition()) {
        let kept = HeaderValue::from_static("public, max-age=31536000, immutable");
        response.headers_mut().insert(header::CACHE_CONTROL, kept);
    }
    response
}

/// Respond with one file, or with 304 if the browser has it already. The browser has to ask each time.
fn served(path: &str, headers: &HeaderMap) -> Response {
    let Some((file, media)) = Assets::get(path).zip(media_of(path)) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let tag = tag_of(&file);
    respond(file.data.into_owned(), media, &tag, headers)
}

fn respond(content: Vec<u8>, media: &'static str, tag: &str, headers: &HeaderMap) -> Response {
    let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let known = known.is_some_and(|tags| tags.split(',').any(|known| known.trim() == tag));
    let mut response =
        if known { StatusCode::NOT_MODIFIED.into_response() } else { Body::from(content).into_response() };
    let headers = response.headers_mut();
    if !known {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    }
    if let Ok(tag) = HeaderValue::try_from(tag) {
        headers.insert(header::ETAG, tag);
    }
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

fn tag_of(file: &EmbeddedFile) -> String {
    let digest = file.metadata.sha256_hash();
    let hex: String = digest[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    // A weak tag, because the file is the same with and without compression.
    format!("W/\"{hex}\"")
}

/// Media type of a file. Files of other types are not served.
fn media_of(path: &str) -> Option<&'static str> {
    Some(match path.rsplit_once('.')?.1 {
        "html" => "text/html; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        _ => return None,
    })
}

async fn set_default_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_page_names_another_host_or_carries_a_script() {
        for path in Assets::iter().filter(|path| !path.starts_with("vendor/")) {
            let file = Assets::get(&path).unwrap();
            let text = std::str::from_utf8(&file.data).unwrap();
            let named = text.match_indices("://").map(|(at, _)| text[at + 3..].chars().take(25).collect::<String>());
            // A namespace is not an address. The addresses in the command lines that are shown have no host.
            let foreign: Vec<String> =
                named.filter(|host| !host.starts_with("www.w3.org/") && !host.starts_with('…')).collect();
            assert!(foreign.is_empty(), "{path} names {foreign:?}");
            for forbidden in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"]
            {
                assert!(!text.contains(forbidden), "{path} has {forbidden}");
            }
        }
        let page = Assets::get("index.html").unwrap();
        let page = String::from_utf8(page.data.into_owned()).unwrap();
        assert!(
            !page.contains("<script>")
                && !page.contains("<style")
                && !page.contains(" style=")
                && !page.contains(" on")
        );
    }

    /// Return the files that a module imports at its beginning, by their paths.
    fn imports_of(path: &str) -> Vec<String> {
        let file = Assets::get(path).unwrap_or_else(|| panic!("no file {path}"));
        let text = String::from_utf8(file.data.into_owned()).unwrap();
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let named = text.match_indices(" from '").filter_map(|(at, mark)| text[at + mark.len()..].split_once('\''));
        named
            .map(|(name, _)| match (name.strip_prefix("./"), name.strip_prefix("../")) {
                (Some(beside), _) if folder.is_empty() => beside.to_owned(),
                (Some(beside), _) => format!("{folder}/{beside}"),
                (_, Some(above)) => above.to_owned(),
                _ => panic!("{path} imports {name}"),
            })
            .collect()
    }

    /// A browser that learns of a module from another module asks for it a round trip later.
    #[test]
    fn the_page_names_every_module_of_the_frame_and_of_the_overview() {
        let page = String::from_utf8(Assets::get("index.html").unwrap().data.into_owned()).unwrap();
        let named: std::collections::BTreeSet<String> = page
            .split("<link rel=\"modulepreload\" href=\"/ui/")
            .skip(1)
            .map(|rest| rest.split_once('"').unwrap().0.to_owned())
            .collect();
        let mut wanted = std::collections::BTreeSet::new();
        let mut open = vec!["app.js".to_owned(), "pages/overview.js".to_owned()];
        while let Some(path) = open.pop() {
            if wanted.insert(path.clone()) && path.ends_with(".js") {
                open.extend(imports_of(&path));
            }
        }
        wanted.remove("app.js");
        let list: Vec<String> =
            wanted.iter().map(|path| format!("<link rel=\"modulepreload\" href=\"/ui/{path}\">")).collect();
        assert_eq!(named, wanted, "{}", list.join("\n"));
    }

    #[test]
    fn files_of_an_edition_are_kept_and_others_are_asked_for_each_time() {
        let text = page_of(&edition());
        let (_, rest) = text.split_once("src=\"/ui/v-").unwrap();
        let path = format!("v-{}", rest.split_once('"').unwrap().0);
        assert_eq!(text.matches("\"/ui/").count(), text.matches("\"/ui/v-").count(), "{text}");
        for (path, kept) in [(path.as_str(), true), ("app.js", false)] {
            let answer = served_by_edition(path, &HeaderMap::new());
            let cached = answer.headers()[header::CACHE_CONTROL].to_str().unwrap();
            assert_eq!((answer.status(), cached.contains("immutable")), (StatusCode::OK, kept), "{path}");
        }
        assert_eq!(served_by_edition("v-0/nothing.js", &HeaderMap::new()).status(), StatusCode::NOT_FOUND);
    }

    #[test]
    fn nothing_outside_of_the_assets_is_served() {
        for path in ["../lib.rs", "vendor/LICENSES.md", "/etc/passwd", "..%2fmod.rs", "", "nothing.js"] {
            assert_eq!(served(path, &HeaderMap::new()).status(), StatusCode::NOT_FOUND, "{path}");
        }
    }
}
