//! Who may call. Tokens are kept as digests and compared in constant time.

use std::convert::Infallible;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderName, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use subtle::{ConditionallySelectable, ConstantTimeEq};

use super::Api;
use super::problem::{Code, Problem};
use crate::job::Actor;

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

    /// Which token this is, counted from 1.
    fn place(&self, token: &str) -> Option<usize> {
        let given = digest(token);
        // All are compared, whichever matches: the time tells nothing.
        let mut place = 0_u64;
        for (at, digest) in self.digests.iter().enumerate() {
            place.conditional_assign(&(at as u64 + 1), digest.ct_eq(&given));
        }
        usize::try_from(place).ok().filter(|place| *place > 0)
    }
}

/// Whose token a request came with, as a digest. Absent while there are no tokens.
#[derive(Clone, Copy)]
pub(super) struct Caller(pub(super) [u8; 32]);

/// Whom a caller says it acts for: a person, usually. Shown beside what is known of the caller, and believed by nobody.
const ACTS_FOR: HeaderName = HeaderName::from_static("tickr-actor");

/// Who asks, for the audit.
pub(super) struct Who(pub(super) Actor);

impl<S: Send + Sync> FromRequestParts<S> for Who {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let actor = parts.extensions.get::<Actor>().cloned().unwrap_or_else(Actor::anyone);
        let said = parts.headers.get(ACTS_FOR).and_then(|value| std::str::from_utf8(value.as_bytes()).ok());
        Ok(Self(said.map_or(actor.clone(), |said| actor.acting_for(said))))
    }
}

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
        && let Some(place) = api.tokens.place(token.trim())
    {
        let caller = Caller(digest(token.trim()));
        request.extensions_mut().insert(caller);
        request.extensions_mut().insert(Actor::token(place));
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
        assert_eq!((tokens.place("canary-one"), tokens.place("canary-two")), (Some(1), Some(2)));
        assert_eq!((tokens.place("canary"), tokens.place("")), (None, None));
        assert!(!format!("{tokens:?}").contains("canary"));
    }
}
