//! Who may call. Tokens are kept as digests and compared in constant time.

use axum::extract::{Request, State};
use axum::http::header;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::Api;
use super::problem::{Code, Problem};

/// Digests of the tokens that may call. Without any, everybody who can reach the address may; the configuration then
/// allows only loopback addresses.
#[derive(Clone, Default)]
pub struct Tokens {
    digests: Vec<[u8; 32]>,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokens({})", self.digests.len())
    }
}

impl Tokens {
    /// Keep the digests of these tokens.
    #[must_use]
    pub fn of(tokens: &[SecretString]) -> Self {
        Self { digests: tokens.iter().map(|token| digest(token.expose_secret())).collect() }
    }

    fn knows(&self, token: &str) -> bool {
        let given = digest(token);
        // All are compared, whichever matches: the time tells nothing.
        let mut known = subtle::Choice::from(0);
        for digest in &self.digests {
            known |= digest.ct_eq(&given);
        }
        known.into()
    }
}

/// Whose token a request came with, as a digest. Absent while there are no tokens.
#[derive(Clone, Copy)]
pub(super) struct Caller(pub(super) [u8; 32]);

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// Health is open, everything else needs a token once there are tokens.
pub(super) async fn check(State(api): State<Api>, mut request: Request, next: Next) -> Response {
    let open = matches!(request.uri().path(), "/livez" | "/readyz");
    if open || api.tokens.digests.is_empty() {
        return next.run(request).await;
    }
    let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    // The scheme's name is case-insensitive (RFC 9110).
    let token =
        given.and_then(|value| value.split_once(' ')).filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    if let Some((_, token)) = token
        && api.tokens.knows(token.trim())
    {
        let caller = Caller(digest(token.trim()));
        request.extensions_mut().insert(caller);
        next.run(request).await
    } else {
        Problem::new(Code::Unauthorized, "send Authorization: Bearer with a token of TICKR_API_TOKENS").into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_tokens_pass_and_none_is_shown() {
        let tokens = Tokens::of(&["canary-one".into(), "canary-two".into()]);
        assert!(tokens.knows("canary-one") && tokens.knows("canary-two"));
        assert!(!tokens.knows("canary") && !tokens.knows(""));
        assert!(!format!("{tokens:?}").contains("canary"));
    }
}
