//! Authentication and scopes. Tokens and API keys are stored only as digests and compared in constant time.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderName, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use sha2::{Digest, Sha256};
use subtle::{ConditionallySelectable, ConstantTimeEq};
use utoipa::ToSchema;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{OpenApi, RefOr};

use crate::http::failed_logins::Peer;
use crate::http::origin;
use crate::http::problem::{Code, Problem, add_problems};
use crate::{Api, json};
use tickr_broker::{API_KEYS_HOLD, OperatorSettings};
use tickr_job::{Actor, Name, Scope};

/// Header that names the person or system that the caller acts for. It is recorded beside the authenticated caller and
/// gives no rights.
const ACTS_FOR: HeaderName = HeaderName::from_static("tickr-actor");

/// Header with the API key that may enqueue the jobs that follow a success, in the form of `Authorization`. An API key
/// has one scope, so that of a remote worker may not.
const ENQUEUES_BY: HeaderName = HeaderName::from_static("tickr-enqueue-authorization");

/// Paths that need no API key.
const OPEN: [&str; 2] = ["/livez", "/readyz"];

/// Path of the metrics page. Alerts about an outage of MySQL come from this page, so an API key goes on to open it
/// while MySQL cannot be read. It shows figures and no job.
const SCRAPED: &str = "/metrics";

/// Return whether the path of a request holds the right to it, so that no API key is needed.
fn is_opened_by_its_path(path: &str) -> bool {
    path.starts_with(FINISHED_BY_KEY)
}

/// The first part of the paths that hold a finish key.
const FINISHED_BY_KEY: &str = "/v1/attempts/";

/// Problems of the calls with a finish key, beside those that they describe themselves.
const OF_FINISH_KEYS: [(&str, &str); 2] = [
    ("403", "forbidden: the API is open, and a page of another site, a proxy or a foreign host name sent the request"),
    ("503", "store_unavailable"),
];

/// Digests of the API tokens of the configuration. Each token has the scope `admin`.
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
    /// Make the digests of these tokens.
    #[must_use]
    pub fn new(tokens: &[SecretString]) -> Self {
        Self { digests: tokens.iter().map(|token| digest(token.expose_secret())).collect() }
    }
}

/// The reason why a request was let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuthMethod {
    /// The API was open: it needed no API key.
    Open,
    /// A token of the configuration, which is valid as long as the process runs.
    Token,
    /// An API key.
    Key(uuid::Uuid),
}

/// The digest of the API key or token of a request. Absent while the API is open.
#[derive(Clone, Copy)]
pub(crate) struct CallerDigest(pub(crate) [u8; 32]);

/// The caller of a request, for the audit.
pub(crate) struct RequestActor(pub(crate) Actor);

impl<S: Send + Sync> FromRequestParts<S> for RequestActor {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let actor = parts.extensions.get::<Identity>().map_or_else(Actor::anyone, |holder| holder.actor.clone());
        let said = parts.headers.get(ACTS_FOR).and_then(|value| std::str::from_utf8(value.as_bytes()).ok());
        Ok(Self(said.map_or(actor.clone(), |said| actor.acting_for(said))))
    }
}

/// The holder of the API key or token of a request, with its rights.
#[derive(Clone)]
pub(crate) struct Identity {
    actor: Actor,
    scope: Scope,
    /// Id of the API key; `None` for a token of the configuration.
    key: Option<uuid::Uuid>,
    /// The kinds that it may enqueue or execute; `None` for all.
    kinds: Option<Arc<BTreeSet<Name>>>,
    /// The queues that it may use; `None` for all.
    queues: Option<Arc<BTreeSet<Name>>>,
    /// The producer that is stored with its jobs that have unique keys.
    creator: Actor,
}

impl Identity {
    pub(crate) const fn scope(&self) -> Scope {
        self.scope
    }

    pub(crate) fn kinds(&self) -> Option<Arc<BTreeSet<Name>>> {
        self.kinds.clone()
    }

    pub(crate) fn queues(&self) -> Option<Arc<BTreeSet<Name>>> {
        self.queues.clone()
    }

    pub(crate) const fn creator(&self) -> &Actor {
        &self.creator
    }

    /// Return the API key that shares of permits are counted for. Operators have none.
    pub(crate) fn permit_owner(&self) -> Option<uuid::Uuid> {
        self.key.filter(|_| self.scope != Scope::Admin)
    }

    fn auth_method(&self) -> AuthMethod {
        self.key.map_or(AuthMethod::Token, AuthMethod::Key)
    }

    /// Return whether it may enqueue jobs, of the kinds and in the queues that it may use.
    pub(crate) fn may_enqueue(&self) -> bool {
        Need::Enqueue.is_met_by(self.scope)
    }

    pub(crate) const fn actor(&self) -> &Actor {
        &self.actor
    }

    /// Note the use of its API key.
    pub(crate) fn was_used(&self, api: &Api) {
        if let Some(key) = self.key {
            api.operator_settings.key_was_used(key);
        }
    }
}

/// What may let a call that ends attempts enqueue jobs: the API key in the header `tickr-enqueue-authorization`, or the
/// caller's own.
pub(crate) enum Enqueuer {
    /// The API was open when the call came: it needs no API key while the API is.
    Open,
    /// The caller.
    Caller(Identity),
    /// The API key with this digest, which is looked up when the body has arrived. None: the header has no API key.
    Key(Option<[u8; 32]>),
    /// The call has no API key.
    Nothing,
}

impl Enqueuer {
    pub(crate) fn of(parts: &Parts) -> Self {
        if parts.extensions.get::<AuthMethod>() == Some(&AuthMethod::Open) {
            return Self::Open;
        }
        let given = match (parts.headers.get(ENQUEUES_BY), parts.extensions.get::<Identity>()) {
            (Some(given), _) => given,
            (None, Some(holder)) => return Self::Caller(holder.clone()),
            // A call with a finish key has no caller. A proxy on its way may have filled `Authorization`, so that one
            // gives no right.
            (None, None) => return Self::Nothing,
        };
        Self::Key(given.to_str().ok().and_then(bearer))
    }

    /// Return the holder of the API key. Nothing if it is unknown or revoked.
    ///
    /// # Errors
    /// When MySQL was not read for so long that the API key may have been revoked.
    pub(crate) fn holder_of(digest: [u8; 32], api: &Api) -> Result<Option<Identity>, Problem> {
        let holder = identify(&api.tokens, &api.operator_settings.now(), &digest);
        let age = api.operator_settings.api_keys_age();
        match holder {
            Some(holder) if holder.key.is_some() && age > API_KEYS_HOLD => Err(unreadable_api_keys(age)),
            holder => Ok(holder),
        }
    }
}

/// The API key that shares of permits are counted for; `None` for operators.
pub(crate) struct PermitOwner(pub(crate) Option<uuid::Uuid>);

impl<S: Send + Sync> FromRequestParts<S> for PermitOwner {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(parts.extensions.get::<Identity>().and_then(Identity::permit_owner)))
    }
}

/// Return the SHA-256 digest of a token or API key.
pub(crate) fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// Return the digest of the token or API key in the value of a header.
fn bearer(value: &str) -> Option<[u8; 32]> {
    let (scheme, token) = value.split_once(' ')?;
    // The name of the scheme is case-insensitive (RFC 9110).
    scheme.eq_ignore_ascii_case("bearer").then(|| digest(token.trim()))
}

/// Return whether the API is open. It is open only on loopback, without tokens, and until the first API key is made.
/// Revoked API keys count as well.
pub(crate) fn is_open(api: &Api, settings: &OperatorSettings) -> bool {
    api.loopback && api.tokens.digests.is_empty() && settings.api_keys.is_empty()
}

/// Find the holder of the token or API key with this digest.
fn identify(tokens: &Tokens, settings: &OperatorSettings, given: &[u8; 32]) -> Option<Identity> {
    let good = settings.api_keys.iter().filter(|key| key.revoked.is_none());
    // Compare with all of them, whichever matches, so that the time reveals nothing.
    let mut place = 0_u64;
    for (at, digest) in tokens.digests.iter().chain(good.clone().map(|key| &key.digest)).enumerate() {
        place.conditional_assign(&(at as u64 + 1), digest.ct_eq(given));
    }
    let place = usize::try_from(place).ok()?.checked_sub(1)?;
    if place < tokens.digests.len() {
        let actor = Actor::token(place + 1);
        let (key, kinds, queues) = (None, None, None);
        return Some(Identity { creator: actor.clone(), actor, scope: Scope::Admin, key, kinds, queues });
    }
    let key = good.clone().nth(place - tokens.digests.len())?;
    Some(Identity {
        actor: Actor::key(key.name.as_str()),
        scope: key.scope,
        key: Some(key.id),
        kinds: key.kinds.clone(),
        queues: key.queues.clone(),
        creator: key.creator(),
    })
}

/// The scope that a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// Any scope.
    Any,
    /// `read` or `admin`, for requests that read.
    Read,
    /// `enqueue` or `admin`, for requests that enqueue jobs.
    Enqueue,
    /// `read`, `enqueue` or `admin`, for what a producer may read and a remote worker may not.
    ReadOrEnqueue,
    /// `work` or `admin`, for requests of remote workers.
    Work,
    /// `admin`: all requests that are not listed below, because they change something or show what only operators need.
    Admin,
}

impl Need {
    fn for_route(method: &Method, path: &str) -> Self {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let reads = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
        match parts[..] {
            ["v1", "jobs"] | ["v1", "jobs", "batch" | "import"] if *method == Method::POST => Self::Enqueue,
            // By the id of a job, which its producer knows.
            ["v1", "jobs", _, "cancel"] if *method == Method::POST => Self::Enqueue,
            // By the id of a batch, which its producer knows.
            ["v1", "batches"] | ["v1", "batches", _, "close" | "cancel"] if *method == Method::POST => Self::Enqueue,
            // It names the jobs of its callbacks, whose kinds a remote worker may not have.
            ["v1", "batches", _] if reads => Self::ReadOrEnqueue,
            // Those of the interfaces of other services, by the id of a job, which its producer knows.
            ["schedule" | "create" | "delete"] if *method == Method::POST => Self::Enqueue,
            ["cancel", _] if *method == Method::DELETE => Self::Enqueue,
            ["query"] if *method == Method::POST => Self::Any,
            ["v1", "workers"] | ["v1", "workers", _, "fetch" | "beat" | "finish"] if *method == Method::POST => {
                Self::Work
            }
            ["v1", "workers", _] if *method == Method::DELETE => Self::Work,
            ["v1", "outbox", "nudge"] if *method == Method::POST => Self::Enqueue,
            ["v1", "jobs", "count" | "survey" | "differences"] if reads => Self::Read,
            ["v1", "schedules", "preview"] if *method == Method::POST => Self::Read,
            // By the id of a job, which its producer knows.
            ["v1", "jobs", _] | ["v1", "jobs", _, "result" | "events"] if reads => Self::Any,
            ["v1", "jobs", _, "attempts", _, "log"] | ["v1", "kinds" | "whoami"] | ["v1", "kinds", _] if reads => {
                Self::Any
            }
            ["" | "docs" | "openapi.json", ..] if reads => Self::Any,
            ["v1", "api-keys" | "keys", ..] => Self::Admin,
            _ if reads => Self::Read,
            _ => Self::Admin,
        }
    }

    fn is_met_by(self, scope: Scope) -> bool {
        match self {
            Self::Any => true,
            Self::Read => matches!(scope, Scope::Read | Scope::Admin),
            Self::Enqueue => matches!(scope, Scope::Enqueue | Scope::Admin),
            Self::ReadOrEnqueue => scope != Scope::Work,
            Self::Work => matches!(scope, Scope::Work | Scope::Admin),
            Self::Admin => scope == Scope::Admin,
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Read => "read",
            Self::Enqueue => "enqueue",
            Self::ReadOrEnqueue => "read or enqueue",
            Self::Work => "work",
            Self::Admin => "admin",
        }
    }
}

/// Let health checks pass, and refuse every other request whose caller lacks the rights for it.
pub(crate) async fn check(api: &Api, mut request: Request, next: Next) -> Response {
    let settings = api.operator_settings.now();
    if OPEN.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    if is_open(api, &settings) {
        return match origin::check(request.method(), request.uri(), request.headers(), &api.hosts) {
            Ok(()) => {
                request.extensions_mut().insert(AuthMethod::Open);
                next.run(request).await
            }
            Err(problem) => problem.into_response(),
        };
    }
    // The finish key in the path is the right to report on its attempt and to finish it.
    if is_opened_by_its_path(request.uri().path()) {
        return next.run(request).await;
    }
    let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = given.and_then(bearer);
    let Some((token, holder)) = token.and_then(|token| Some((token, identify(&api.tokens, &settings, &token)?))) else {
        metrics::counter!("tickr_unauthorized_total").increment(1);
        if given.is_some() {
            let pause = api.failed_logins.record_failure(request.extensions().get::<Peer>().copied());
            tokio::time::sleep(pause).await;
        }
        let detail =
            "send Authorization: Bearer with an API key (tickr api-keys create) or a token of TICKR_API_TOKENS";
        return Problem::new(Code::Unauthorized, detail).into_response();
    };
    let age = api.operator_settings.api_keys_age();
    if holder.key.is_some() && age > API_KEYS_HOLD && request.uri().path() != SCRAPED {
        return unreadable_api_keys(age).into_response();
    }
    let need = Need::for_route(request.method(), request.uri().path());
    if !need.is_met_by(holder.scope) {
        let detail = format!(
            "this request needs the scope {}, but {} has the scope {}",
            need.as_str(),
            holder.actor,
            holder.scope
        );
        return Problem::new(Code::Forbidden, detail).into_response();
    }
    if let Some(key) = holder.key {
        api.operator_settings.key_was_used(key);
    }
    request.extensions_mut().insert(CallerDigest(token));
    request.extensions_mut().insert(holder.auth_method());
    request.extensions_mut().insert(holder);
    next.run(request).await
}

/// Make the problem for an API key when the API keys were last read so long ago.
pub(crate) fn unreadable_api_keys(age: Duration) -> Problem {
    let detail = format!("tickr could not read for {} s whether this API key was revoked", age.as_secs());
    Problem::new(Code::StoreUnavailable, detail)
}

/// The caller and its rights.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WhoAmI {
    /// Name of the caller, as in the audit.
    #[schema(example = "key:deploy")]
    actor: String,
    /// Scope of the caller: `read`, `enqueue`, `admin` or `work`.
    #[schema(example = "admin")]
    scope: &'static str,
    /// True while the API accepts requests without an API key. The first API key ends that.
    open: bool,
}

/// Show the caller and its scope
#[utoipa::path(
    get, path = "/v1/whoami", tag = "API keys", operation_id = "who_am_i",
    responses(
        (status = 200, description = "The caller", body = WhoAmI),
    )
)]
pub(crate) async fn whoami(who: RequestActor, holder: Option<axum::Extension<Identity>>) -> Response {
    // A request without a holder gets here only while the API is open.
    let open = holder.is_none();
    let scope = holder.map_or(Scope::Admin, |axum::Extension(holder)| holder.scope);
    json(StatusCode::OK, WhoAmI { actor: who.0.to_string(), scope: scope.as_str(), open })
}

/// Describe authentication: every operation except health checks needs an API key or token, and may answer 401, 403 and
/// 503. Those that are opened by their paths need none, so they answer no 401.
pub(crate) fn describe(document: &mut OpenApi) {
    let scheme = SecurityScheme::Http(Http::builder().scheme(HttpAuthScheme::Bearer).build());
    document.components.get_or_insert_default().security_schemes.insert("bearer".to_owned(), RefOr::T(scheme));
    for (path, item) in &mut document.paths.paths {
        if OPEN.contains(&path.as_str()) {
            continue;
        }
        let all = [&mut item.get, &mut item.put, &mut item.post, &mut item.patch, &mut item.delete];
        for operation in all.into_iter().flatten() {
            if is_opened_by_its_path(path) {
                add_problems(operation, &OF_FINISH_KEYS);
                continue;
            }
            operation.security = Some(vec![SecurityRequirement::new("bearer", Vec::<String>::new())]);
            let answers = [
                ("401", "unauthorized"),
                ("403", "forbidden: the API key does not allow this"),
                // Revocations are read from MySQL, and a start may migrate the tables, so every operation can answer
                // 503.
                ("503", "store_unavailable"),
            ];
            add_problems(operation, &answers);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tickr_job::Name;
    use tickr_store::ApiKey;

    fn settings(keys: &[(&str, Scope, bool)]) -> OperatorSettings {
        let key = |(name, scope, good): &(&str, Scope, bool)| ApiKey {
            id: uuid::Uuid::now_v7(),
            name: name.parse::<Name>().unwrap(),
            scope: *scope,
            kinds: None,
            queues: None,
            producer: None,
            digest: digest(&format!("secret of {name}")),
            created_at: chrono::Utc::now(),
            created_by: Actor::tickr(),
            last_used_at: None,
            revoked: (!good).then(|| (chrono::Utc::now(), Actor::tickr())),
        };
        OperatorSettings { api_keys: keys.iter().map(key).collect(), ..OperatorSettings::default() }
    }

    #[test]
    fn only_known_tokens_and_good_keys_pass_and_none_is_shown() {
        let tokens = Tokens::new(&["canary-one".into(), "canary-two".into()]);
        let settings = settings(&[("old", Scope::Admin, false), ("ci", Scope::Enqueue, true)]);
        let known = |token: &str| {
            identify(&tokens, &settings, &digest(token)).map(|holder| (holder.actor.to_string(), holder.scope))
        };
        assert_eq!(known("canary-one"), Some(("token:1".into(), Scope::Admin)));
        assert_eq!(known("canary-two"), Some(("token:2".into(), Scope::Admin)));
        assert_eq!(known("secret of ci"), Some(("key:ci".into(), Scope::Enqueue)));
        for unknown in ["secret of old", "canary", ""] {
            assert_eq!(known(unknown), None, "{unknown}");
        }
        assert!(!format!("{tokens:?} {settings:?}").contains("canary"));
        let shown = format!("{:?}", settings.api_keys[1].digest);
        assert!(!format!("{settings:?}").contains(&shown));
    }

    #[test]
    fn scopes_open_what_they_name_and_nothing_else() {
        let may = |method: Method, path: &str| {
            let need = Need::for_route(&method, path);
            Scope::ALL.map(|scope| if need.is_met_by(scope) { 'y' } else { 'n' }).iter().collect::<String>()
        };
        let id = "/v1/jobs/0192f8c0-7f3a-7c4e-9d5b-3e2a1f0c9b8a";
        // Expected: allowed for `read`, for `enqueue`, for `admin` and for `work`.
        for (method, path, expected) in [
            (Method::GET, "/v1/jobs", "ynyn"),
            (Method::GET, "/v1/jobs/count", "ynyn"),
            (Method::GET, "/v1/jobs/survey", "ynyn"),
            (Method::GET, "/v1/jobs/differences", "ynyn"),
            (Method::POST, "/schedule", "nyyn"),
            (Method::DELETE, "/cancel/0192f8c0-7f3a-7c4e-9d5b-3e2a1f0c9b8a", "nyyn"),
            (Method::POST, "/create", "nyyn"),
            (Method::POST, "/delete", "nyyn"),
            (Method::POST, "/query", "yyyy"),
            (Method::GET, id, "yyyy"),
            (Method::GET, &format!("{id}/result"), "yyyy"),
            (Method::GET, &format!("{id}/attempts/1/log"), "yyyy"),
            (Method::GET, &format!("{id}/explain"), "ynyn"),
            (Method::GET, "/v1/batches/0192f8c0-7f3a-7c4e-9d5b-3e2a1f0c9b8a", "yyyn"),
            (Method::GET, "/v1/kinds", "yyyy"),
            (Method::GET, "/v1/kinds/mail", "yyyy"),
            (Method::PUT, "/v1/kinds/mail", "nnyn"),
            (Method::GET, "/openapi.json", "yyyy"),
            (Method::GET, "/", "yyyy"),
            (Method::GET, "/metrics", "ynyn"),
            (Method::GET, "/v1/audit", "ynyn"),
            (Method::GET, "/v1/api-keys", "nnyn"),
            (Method::GET, "/v1/keys", "nnyn"),
            (Method::POST, "/v1/schedules/preview", "ynyn"),
            (Method::GET, "/v1/schedules/nightly/ticks", "ynyn"),
            (Method::PUT, "/v1/schedules/nightly", "nnyn"),
            (Method::GET, "/v1/reports/x.csv", "ynyn"),
            (Method::POST, "/v1/jobs", "nyyn"),
            (Method::POST, "/v1/jobs/batch", "nyyn"),
            (Method::POST, "/v1/jobs/import", "nyyn"),
            (Method::POST, &format!("{id}/cancel"), "nyyn"),
            (Method::GET, &format!("{id}/cancel"), "ynyn"),
            (Method::POST, &format!("{id}/retry"), "nnyn"),
            (Method::PATCH, id, "nnyn"),
            (Method::DELETE, "/v1/api-keys/ci", "nnyn"),
            (Method::PUT, "/v1/schedules/nightly", "nnyn"),
            (Method::POST, "/v1/jobs/batch/", "nyyn"),
            (Method::POST, "/v1/operations", "nnyn"),
            (Method::POST, "/v1/workers", "nnyy"),
            (Method::POST, "/v1/workers/php.w-1/fetch", "nnyy"),
            (Method::DELETE, "/v1/workers/php.w-1", "nnyy"),
            (Method::GET, "/v1/workers/php.w-1", "ynyn"),
        ] {
            assert_eq!(may(method.clone(), path), expected, "{method} {path}");
        }
    }

    #[test]
    fn a_call_with_a_finish_key_is_described_without_an_api_key_and_with_its_problems() {
        let mut paths = 0;
        for (path, item) in crate::openapi().paths.paths {
            if is_opened_by_its_path(&path) {
                let operation = item.post.unwrap();
                let has = |status: &str| operation.responses.responses.contains_key(status);
                assert!(has("403") && has("503") && !has("401") && operation.security.is_none(), "{path}");
                paths += 1;
            }
        }
        assert_eq!(paths, 2);
    }

    /// Checks every operation of the document, so that new ones are included: an operation that is not listed here
    /// needs `read` if it reads and `admin` if it changes something.
    #[test]
    fn every_documented_call_needs_the_scope_that_its_method_says_but_for_those_named_here() {
        let (mut calls, mut named) = (0, BTreeSet::new());
        for (path, item) in crate::openapi().paths.paths {
            let methods = [
                (Method::GET, item.get),
                (Method::PUT, item.put),
                (Method::POST, item.post),
                (Method::PATCH, item.patch),
                (Method::DELETE, item.delete),
            ];
            for method in methods.into_iter().filter_map(|(method, operation)| operation.map(|_| method)) {
                let usual = if method == Method::GET { Need::Read } else { Need::Admin };
                let need = Need::for_route(&method, &path);
                calls += 1;
                if need != usual && !OPEN.contains(&path.as_str()) && !is_opened_by_its_path(&path) {
                    named.insert(format!("{method} {path} {}", need.as_str()));
                }
            }
        }
        assert!(calls > 50, "{calls}");
        let expected = [
            "GET /v1/jobs/{id} any",
            "GET /v1/jobs/{id}/attempts/{number}/log any",
            "GET /v1/jobs/{id}/events any",
            "GET /v1/jobs/{id}/result any",
            "GET /v1/api-keys admin",
            "GET /v1/kinds any",
            "GET /v1/kinds/{kind} any",
            "GET /v1/whoami any",
            "GET /v1/batches/{id} read or enqueue",
            "POST /v1/batches enqueue",
            "POST /v1/batches/{id}/close enqueue",
            "POST /v1/batches/{id}/cancel enqueue",
            "POST /v1/jobs enqueue",
            "POST /v1/jobs/batch enqueue",
            "POST /v1/jobs/import enqueue",
            "POST /v1/jobs/{id}/cancel enqueue",
            "POST /v1/outbox/nudge enqueue",
            "POST /v1/schedules/preview read",
            "POST /v1/workers work",
            "POST /v1/workers/{id}/fetch work",
            "POST /v1/workers/{id}/beat work",
            "POST /v1/workers/{id}/finish work",
            "DELETE /v1/workers/{id} work",
        ];
        assert_eq!(named, expected.map(str::to_owned).into());
    }
}
