//! The host of a URL, as one text for each receiver.
//!
//! Limits that are shared by host count callbacks by this text. A client must not get around such a limit by writing the
//! same receiver in another way, so every way to write a host that leads to the same connection gives the same text.

use std::net::Ipv6Addr;

use reqwest::Url;

/// Return the host of a URL in lower case, with its port unless that is the usual one of the scheme: `example.com`,
/// `example.com:8443`, `[2001:db8::1]`. International names are in their ASCII form. The dots behind a name are left out,
/// and an IPv6 address that stands for an IPv4 address is written as that.
#[must_use]
pub fn host_of_url(url: &str) -> Option<String> {
    host_of(&Url::parse(url).ok()?)
}

/// Return whether a text is a host as [`host_of_url`] writes it.
#[must_use]
pub fn is_host(text: &str) -> bool {
    // One of them leaves out the port 80, the other the port 443.
    ["http", "https"].iter().any(|scheme| host_of_url(&format!("{scheme}://{text}")).is_some_and(|host| host == text))
}

fn host_of(url: &Url) -> Option<String> {
    let host = url.host_str()?;
    let address = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')?.parse::<Ipv6Addr>().ok());
    let host = match address.and_then(|address| address.to_ipv4_mapped()) {
        // The kernel connects to ::ffff:a.b.c.d over IPv4.
        Some(v4) => v4.to_string(),
        None => host.trim_end_matches('.').to_ascii_lowercase(),
    };
    if host.is_empty() {
        return None;
    }
    Some(match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_write_a_host_gives_the_same_text() {
        let cases = [
            ("https://example.com/hook", "example.com"),
            ("http://example.com:80/", "example.com"),
            ("https://example.com:443?x", "example.com"),
            ("https://EXAMPLE.com.", "example.com"),
            ("https://example.com../a", "example.com"),
            ("https://ex%61mple.com", "example.com"),
            ("https:\\\\example.com\\hook", "example.com"),
            ("https:///example.com", "example.com"),
            ("https://user:pw@example.com#@other.example", "example.com"),
            ("https://example.com:8443", "example.com:8443"),
            ("http://example.com:443", "example.com:443"),
            ("https://Bücher.example", "xn--bcher-kva.example"),
            ("https://xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("https://ｅｘａｍｐｌｅ.com", "example.com"),
            ("http://127.0.0.1:9000/x", "127.0.0.1:9000"),
            ("http://0x7f.1/", "127.0.0.1"),
            ("http://2130706433/", "127.0.0.1"),
            ("http://[::ffff:127.0.0.1]:9000/", "127.0.0.1:9000"),
            ("http://[2001:DB8:0::1]/", "[2001:db8::1]"),
            ("http://[2001:db8::1]:8080/", "[2001:db8::1]:8080"),
        ];
        for (url, host) in cases {
            assert_eq!(host_of_url(url).as_deref(), Some(host), "{url}");
            assert!(is_host(host), "{host}");
        }
        for url in ["", "no url", "/path", "mailto:ada@example.com", "http://", "http://./", "http://a b/"] {
            assert_eq!(host_of_url(url), None, "{url}");
        }
        for text in
            ["", "Example.com", "example.com.", "example.com/", "https://example.com", "a@b", "::1", "[::1", "a:99999"]
        {
            assert!(!is_host(text), "{text}");
        }
    }
}
