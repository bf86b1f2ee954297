//! Which web page a request comes from. An open API on loopback is reached by every program of this host, browsers among
//! them, and a browser sends requests for any page that it shows. Two defences, both for an open API alone, because a key
//! is never sent by itself: the name under which it is reached must be one of this host (a page elsewhere can give its own
//! name the address 127.0.0.1: "DNS rebinding"), and what changes something must not come from another site's page.

use std::collections::BTreeSet;
use std::net::IpAddr;

use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, Method, Uri, header};

use super::problem::{Code, Problem};

/// What a browser says of the page that made a request: `same-origin`, `none` for its user, or something foreign.
/// <https://www.w3.org/TR/fetch-metadata/>
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The host of `Host` or of the request line, without the port.
fn host<'a>(headers: &'a HeaderMap, uri: &'a Uri) -> Option<String> {
    let written = headers.get(header::HOST).and_then(|value| value.to_str().ok());
    let authority: Authority = written.or(uri.authority().map(Authority::as_str))?.parse().ok()?;
    Some(authority.host().trim_matches(['[', ']']).to_ascii_lowercase())
}

/// Names that nobody elsewhere can give to an address.
fn is_own(host: &str, names: &BTreeSet<String>) -> bool {
    let plain = host.trim_end_matches('.');
    host.parse::<IpAddr>().is_ok() || plain == "localhost" || plain.ends_with(".localhost") || names.contains(plain)
}

/// Refuse what a page of another site asks of an open API.
pub(super) fn check(method: &Method, uri: &Uri, headers: &HeaderMap, names: &BTreeSet<String>) -> Result<(), Problem> {
    // HTTP/1.0 has no Host, and no browser speaks it.
    if let Some(host) = host(headers, uri).filter(|host| !is_own(host, names)) {
        let detail = format!(
            "the API is open to this host alone, and {host:?} is not known as one of its names: make a key \
             (`tickr keys create`), or name it in TICKR_HTTP_HOSTS"
        );
        return Err(Problem::new(Code::Forbidden, detail));
    }
    if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) {
        return Ok(());
    }
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let foreign = match (text(SITE), text(header::ORIGIN)) {
        (Some(site), _) => site != "same-origin" && site != "none",
        // Browsers of before 2023. A page whose origin is hidden says `null`.
        (None, Some(origin)) => {
            let theirs = origin.parse::<Uri>().ok();
            let theirs = theirs.as_ref().and_then(Uri::authority).map(Authority::as_str);
            theirs != text(header::HOST)
        }
        (None, None) => false,
    };
    if foreign {
        let detail =
            "a page of another site asked for this; an API that is open takes changes from its own pages alone";
        return Err(Problem::new(Code::Forbidden, detail));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(method: &Method, host: &str, more: &[(&'static str, &str)]) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        for (name, value) in more {
            headers.insert(*name, value.parse().unwrap());
        }
        let names = BTreeSet::from(["jobs.internal".to_owned()]);
        check(method, &"/v1/jobs".parse().unwrap(), &headers, &names).is_ok()
    }

    #[test]
    fn names_that_anybody_could_give_to_this_host_are_refused() {
        for own in
            ["127.0.0.1:7070", "[::1]:7070", "localhost", "tickr.localhost:80", "jobs.internal:7070", "LOCALHOST."]
        {
            assert!(passes(&Method::GET, own, &[]) && passes(&Method::POST, own, &[]), "{own}");
        }
        for foreign in ["evil.example:7070", "localhost.evil.example", "127.0.0.1.nip.example", "notlocalhost"] {
            assert!(!passes(&Method::GET, foreign, &[]) && !passes(&Method::POST, foreign, &[]), "{foreign}");
        }
    }

    #[test]
    fn pages_of_other_sites_change_nothing() {
        let own = "127.0.0.1:7070";
        for (more, may) in [
            (&[][..], true),
            (&[("sec-fetch-site", "same-origin"), ("origin", "http://127.0.0.1:7070")], true),
            (&[("sec-fetch-site", "none")], true),
            (&[("sec-fetch-site", "cross-site"), ("origin", "https://evil.example")], false),
            (&[("sec-fetch-site", "same-site"), ("origin", "http://127.0.0.1:3000")], false),
            (&[("origin", "http://127.0.0.1:7070")], true),
            (&[("origin", "http://127.0.0.1:3000")], false),
            (&[("origin", "null")], false),
            // A proxy that gives the API another name than the browser knows; the browser knows better.
            (&[("sec-fetch-site", "same-origin"), ("origin", "https://jobs.example")], true),
        ] {
            assert_eq!(passes(&Method::POST, own, more), may, "{more:?}");
            assert!(passes(&Method::GET, own, more), "reading tells another site nothing: {more:?}");
        }
    }
}
