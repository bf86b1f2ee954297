//! The HTTP client for a server of tickr, and the authorities whose certificates it trusts.

use std::sync::Arc;

/// Build an HTTP client for one server. It trusts the authorities of the system, or the public ones where the system has
/// none, as in an image from scratch. It calls a server on this machine directly, also where `HTTP_PROXY` names a proxy:
/// the proxy cannot reach the loopback of its clients. It follows no redirect: a POST would become a GET, which
/// enqueues nothing and may succeed.
///
/// # Errors
/// When the client cannot be built.
pub fn trusting(
    server: &reqwest::Url,
    builder: impl Fn() -> reqwest::ClientBuilder,
) -> reqwest::Result<reqwest::Client> {
    let builder = || builder().redirect(reqwest::redirect::Policy::none());
    let builder = || if is_on_this_machine(server) { builder().no_proxy() } else { builder() };
    // Without any certificate the system's verifier refuses the client, also one that will speak plain HTTP alone.
    builder().build().or_else(|error| match public_authorities() {
        Ok(tls) => builder().tls_backend_preconfigured(tls).build(),
        Err(_) => Err(error),
    })
}

fn is_on_this_machine(server: &reqwest::Url) -> bool {
    let Some(host) = server.host_str() else { return false };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.parse().map_or(host == "localhost", |ip: std::net::IpAddr| ip.is_loopback())
}

fn public_authorities() -> Result<rustls::ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let roots = rustls::RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(tls)
}
