//! The dashboard: pages in the binary that run in the browser. They use only the public API, with the API key that the
//! operator entered. The code here knows nothing about jobs. There is no build step: the files in `assets/` are served
//! as they are.
//!
//! The pages themselves contain no data, so they can be loaded without an API key, like a sign-in page.

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use rust_embed::{EmbeddedFile, RustEmbed};
use tower_http::compression::CompressionLayer;

/// A development build reads the files from the checkout at each request. A release build contains them.
#[derive(RustEmbed)]
#[folder = "assets/"]
struct Assets;

/// Paths of screens. All of them serve the same page, which chooses its screen by the path.
const SCREENS: &[&str] = &[
    "/",
    "/jobs",
    "/jobs/{id}",
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

async fn page(headers: HeaderMap) -> Response {
    let mut page = served("index.html", &headers);
    page.headers_mut().insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    page.headers_mut().insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    page
}

async fn icon(headers: HeaderMap) -> Response {
    served("icon.svg", &headers)
}

async fn asset(Path(path): Path<String>, headers: HeaderMap) -> Response {
    served(&path, &headers)
}

/// Respond with one file, or with 304 if the browser has it already. File names stay the same in all versions, so the
/// browser has to ask each time.
fn served(path: &str, headers: &HeaderMap) -> Response {
    let Some((file, media)) = Assets::get(path).zip(media_of(path)) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let tag = tag_of(&file);
    let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let known = known.is_some_and(|tags| tags.split(',').any(|known| known.trim() == tag));
    let mut response = if known {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        Body::from(file.data.into_owned()).into_response()
    };
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

    #[test]
    fn nothing_outside_of_the_assets_is_served() {
        for path in ["../lib.rs", "vendor/LICENSES.md", "/etc/passwd", "..%2fmod.rs", "", "nothing.js"] {
            assert_eq!(served(path, &HeaderMap::new()).status(), StatusCode::NOT_FOUND, "{path}");
        }
    }
}
