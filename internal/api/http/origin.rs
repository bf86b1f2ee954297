//! Protection of an open API against requests of web pages, proxies and foreign host names.
//!
//! Every program of this host can reach an open API on loopback. Browsers are among them, and a browser sends requests
//! for any page that it shows. These checks apply only to an open API, because a browser never sends an API key by
//! itself:
//!
//! - The host name of the request must be one of this host. A page elsewhere can give its own name the address
//!   127.0.0.1 ("DNS rebinding"). A name that cannot be parsed is not a name of this host either.
//! - A page of another site may neither change nor read anything. It cannot see the responses, but it could keep
//!   streams open and make MySQL search. A link from there that a person follows is allowed.
//! - A request through a proxy is refused: the proxy is on this host, but its clients may be anywhere.

use std::collections::BTreeSet;
use std::net::IpAddr;

use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, Method, Uri, header};

use crate::http::problem::{Code, Problem};

/// Header in which a browser says which page made a request: `same-origin`, `none` for its user, or another site.
/// <https://www.w3.org/TR/fetch-metadata/>
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// Header that says what the page does with the response; `navigate` shows it.
const MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
/// Header that says where the page shows the response: as a `document` of its own, or within the page.
const DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// Headers that proxies add, besides all that begin with `x-forwarded-`.
const FORWARDED: [HeaderName; 3] =
    [HeaderName::from_static("forwarded"), HeaderName::from_static("via"), HeaderName::from_static("x-real-ip")];

/// Advice at the end of each refusal.
const WAY_OUT: &str = "make an API key (`tickr api-keys create --scope admin`) and send it with each request";

/// Return the host names of a request, without ports: those of `Host` and of the request line. Return `None` when one
/// of them cannot be parsed, or when there are several `Host` headers, because a proxy may have checked another one
/// than tickr does.
fn hosts(headers: &HeaderMap, uri: &Uri) -> Option<Vec<String>> {
    let mut written = headers.get_all(header::HOST).iter();
    let (first, second) = (written.next(), written.next());
    if second.is_some() {
        return None;
    }
    let mut hosts = Vec::new();
    let given = first.map(|value| std::str::from_utf8(value.as_bytes()).ok());
    for text in given.into_iter().chain(uri.authority().map(|authority| Some(authority.as_str()))) {
        // A user name before the host is not valid in either of them.
        let authority: Authority = text.filter(|text| !text.contains('@'))?.parse().ok()?;
        let port = &authority.as_str()[authority.host().len()..];
        if !port.is_empty() && authority.port_u16().is_none() {
            return None;
        }
        hosts.push(authority.host().trim_matches(['[', ']']).to_ascii_lowercase());
    }
    Some(hosts)
}

/// Return whether a host name is one that no other site can give to an address of this host.
fn is_own(host: &str, names: &BTreeSet<String>) -> bool {
    let plain = host.trim_end_matches('.');
    // An open API listens on loopback alone. For a page at 0.0.0.0, which leads there as well, browsers send none of the
    // headers that the other checks read.
    let is_own_address = |address: IpAddr| address.to_canonical().is_loopback() || names.contains(&address.to_string());
    host.parse().is_ok_and(is_own_address)
        || plain == "localhost"
        || plain.ends_with(".localhost")
        || names.contains(plain)
}

/// Refuse a request that a page of another site or a proxy sends to an open API.
pub(crate) fn check(method: &Method, uri: &Uri, headers: &HeaderMap, names: &BTreeSet<String>) -> Result<(), Problem> {
    let refused = |detail: String| Err(Problem::new(Code::Forbidden, detail));
    // A request without any Host passes: HTTP/1.0 has none, and no browser speaks it.
    let Some(hosts) = hosts(headers, uri) else {
        return refused(format!(
            "the API is open to this host only, and the Host header of the request is invalid or present twice; send one, as in \
             Host: 127.0.0.1:7070, or {WAY_OUT}"
        ));
    };
    if let Some(host) = hosts.into_iter().find(|host| !is_own(host, names)) {
        return refused(format!(
            "the API is open to this host only, and {host:?} is not known as one of its names: {WAY_OUT}, or add it to \
             TICKR_HTTP_HOSTS"
        ));
    }
    if let Some(name) =
        headers.keys().find(|name| FORWARDED.contains(name) || name.as_str().starts_with("x-forwarded-"))
    {
        return refused(format!(
            "the API is open to this host only, and the header {name} says that a proxy sent the request: {WAY_OUT}, because \
             the API cannot tell who may use the proxy"
        ));
    }
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("unreadable"));
    let foreign = match (text(SITE), text(header::ORIGIN)) {
        (Some(site), _) => site != "same-origin" && site != "none",
        // Browsers from before 2023 send only Origin. A page whose origin is hidden sends `null`.
        (None, Some(origin)) => {
            let theirs = origin.parse::<Uri>().ok();
            let theirs = theirs.as_ref().and_then(Uri::authority).map(Authority::as_str);
            theirs.is_none() || theirs != text(header::HOST)
        }
        (None, None) => false,
    };
    let reads = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
    // Such a page does not see the response: the browser leaves the page to show it.
    let followed = reads && text(MODE) == Some("navigate") && text(DEST).is_none_or(|dest| dest == "document");
    if foreign && !followed {
        let which = if reads { "reads" } else { "changes" };
        return refused(format!(
            "a page of another site {which} this API, and an open API serves only its own pages: {WAY_OUT}"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(method: &Method, host: &str, more: &[(&'static str, &str)]) -> bool {
        let host = Some(("host", host)).filter(|(_, host)| *host != "absent");
        let mut headers = HeaderMap::new();
        for (name, value) in host.iter().chain(more) {
            headers.append(*name, value.parse().unwrap());
        }
        let names = BTreeSet::from(["jobs.internal".to_owned()]);
        check(method, &"/v1/jobs".parse().unwrap(), &headers, &names).is_ok()
    }

    #[test]
    fn names_that_anybody_could_give_to_this_host_are_refused() {
        for own in [
            "127.0.0.1:7070",
            "[::1]:7070",
            "localhost",
            "tickr.localhost:80",
            "jobs.internal:7070",
            "LOCALHOST.",
            "127.0.0.2",
            "[::ffff:127.0.0.1]:7070",
            "absent",
        ] {
            assert!(passes(&Method::GET, own, &[]) && passes(&Method::POST, own, &[]), "{own}");
        }
        for foreign in [
            "evil.example:7070",
            "localhost.evil.example",
            "127.0.0.1.nip.example",
            "notlocalhost",
            "0.0.0.0:7070",
            "[::]:7070",
            "192.0.2.1:7070",
        ] {
            assert!(!passes(&Method::GET, foreign, &[]) && !passes(&Method::POST, foreign, &[]), "{foreign}");
        }
    }

    #[test]
    fn a_host_that_cannot_be_read_or_is_there_twice_is_refused() {
        for odd in [
            "a{b.evil.example:7599",
            "a`b.evil.example",
            "a\"b.evil.example",
            "x@127.0.0.1",
            "",
            " ",
            "127.0.0.1:x",
            "ä",
        ] {
            assert!(!passes(&Method::GET, odd, &[]) && !passes(&Method::POST, odd, &[]), "{odd:?}");
        }
        for (one, other) in [("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "evil.example"), ("evil.example", "127.0.0.1")] {
            assert!(!passes(&Method::GET, one, &[("host", other)]), "{one} {other}");
        }
        // The request line may name a host as well; then both must be names of this host.
        let names = BTreeSet::new();
        let absolute = |line: &str, host: &str| {
            let headers = HeaderMap::from_iter([(header::HOST, host.parse().unwrap())]);
            check(&Method::GET, &line.parse().unwrap(), &headers, &names).is_ok()
        };
        assert!(absolute("http://localhost:7070/v1/jobs", "127.0.0.1:7070"));
        assert!(!absolute("http://evil.example/v1/jobs", "127.0.0.1:7070"));
        assert!(!absolute("http://localhost:7070/v1/jobs", "evil.example"));
    }

    #[test]
    fn what_a_proxy_sends_on_is_refused() {
        for name in ["forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "via"] {
            for method in [Method::GET, Method::POST] {
                assert!(!passes(&method, "127.0.0.1:7070", &[(name, "192.0.2.1")]), "{method} {name}");
                assert!(!passes(&method, "absent", &[(name, "")]), "{method} {name}");
            }
        }
    }

    #[test]
    fn pages_of_other_sites_change_nothing_and_ask_for_nothing() {
        let own = "127.0.0.1:7070";
        let (site, mode, dest) = ("sec-fetch-site", "sec-fetch-mode", "sec-fetch-dest");
        // Expected: whether changes are allowed, and whether reads are.
        for (more, may) in [
            (&[][..], (true, true)),
            (&[(site, "same-origin"), ("origin", "http://127.0.0.1:7070")], (true, true)),
            (&[(site, "none"), (mode, "navigate")], (true, true)),
            (&[(site, "cross-site"), ("origin", "https://evil.example")], (false, false)),
            (&[(site, "cross-site"), (mode, "no-cors"), (dest, "image")], (false, false)),
            (&[(site, "cross-site"), (mode, "websocket")], (false, false)),
            (&[(site, "same-site"), ("origin", "http://127.0.0.1:3000")], (false, false)),
            (&[(site, "x")], (false, false)),
            (&[("origin", "http://127.0.0.1:7070")], (true, true)),
            (&[("origin", "http://127.0.0.1:3000")], (false, false)),
            (&[("origin", "null")], (false, false)),
            // A link that a person follows is allowed, but not a frame within the page or a form.
            (&[(site, "cross-site"), (mode, "navigate"), (dest, "document")], (false, true)),
            (&[(site, "same-site"), (mode, "navigate")], (false, true)),
            (&[(site, "cross-site"), (mode, "navigate"), (dest, "iframe")], (false, false)),
            (&[(site, "cross-site"), (mode, "navigate"), (dest, "object")], (false, false)),
            // The browser knows the API under another name than `Host` says; `Sec-Fetch-Site` decides.
            (&[(site, "same-origin"), ("origin", "https://jobs.example")], (true, true)),
        ] {
            assert_eq!((passes(&Method::POST, own, more), passes(&Method::GET, own, more)), may, "{more:?}");
        }
    }
}
