//! `/v1/keys`: who may call.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::auth::{Who, digest, is_open};
use super::body::{Body, NamePath};
use super::problem::{Code, Problem};
use super::view::Moment;
use super::{Api, json};
use crate::handlers;
use crate::job::{Name, Scope};
use crate::store::{ApiKey, MOST_KEYS, MadeKey, NewKey, RevokedKey};

/// What every key begins with, so that scanners for leaked secrets can know it.
const PREFIX: &str = "tickr_";

/// A key to make.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewKeyBody {
    /// `read`: read everything. `enqueue`: enqueue jobs, and read them back by their ids. `admin`: everything.
    #[schema(value_type = ScopeWord)]
    scope: String,
    /// With the scope `enqueue`: the only kinds that the key may enqueue; all when left out. A report that sends its file
    /// needs `email` as well.
    #[schema(min_items = 1, max_items = 50, example = json!(["http", "report"]))]
    kinds: Option<Vec<String>>,
    /// With the scope `enqueue`: the producer that the key belongs to; its own name when left out. A key sees and replaces
    /// the jobs with unique keys that keys of the same producer made, and no others. So a new key can take over from an old
    /// one.
    #[schema(pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$", example = "shop")]
    producer: Option<String>,
}

/// Most kinds that one key names.
const MOST_KINDS: usize = 50;

impl NewKeyBody {
    fn read(self, name: Name) -> Result<NewKey, Problem> {
        let mut problems = Vec::new();
        let mut wrong = |pointer: &str, detail: String| problems.push(handlers::Problem::at(pointer, detail));
        let scope = Scope::from_word(&self.scope);
        if scope.is_none() {
            wrong("/scope", "must be read, enqueue or admin".to_owned());
        }
        let limited = [("/kinds", self.kinds.is_some()), ("/producer", self.producer.is_some())];
        for (pointer, _) in limited.into_iter().filter(|(_, given)| *given && scope != Some(Scope::Enqueue)) {
            wrong(pointer, "is for keys with the scope enqueue".to_owned());
        }
        let count = self.kinds.as_ref().map_or(1, Vec::len);
        if !(1..=MOST_KINDS).contains(&count) {
            wrong("/kinds", format!("must be 1 to {MOST_KINDS} kinds, such as [\"http\"]"));
        }
        let kinds = self.kinds.map(|kinds| {
            let read = kinds.iter().enumerate().filter_map(|(at, kind)| {
                kind.parse::<Name>().inspect_err(|error| wrong(&format!("/kinds/{at}"), error.to_string())).ok()
            });
            read.collect()
        });
        let producer = self.producer.and_then(|producer| {
            producer.parse::<Name>().inspect_err(|error| wrong("/producer", error.to_string())).ok()
        });
        match scope.filter(|_| problems.is_empty()) {
            Some(scope) => Ok(NewKey { name, scope, kinds, producer }),
            None => Err(Problem::new(Code::InvalidRequest, "there cannot be such a key").at("", problems)),
        }
    }
}

/// What a key is good for.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used; the value is the domain's own type")]
pub(super) enum ScopeWord {
    Read,
    Enqueue,
    Admin,
}

/// A key, without the key.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct KeyView {
    name: String,
    #[schema(value_type = ScopeWord)]
    scope: &'static str,
    /// The only kinds that it may enqueue. Left out when it may enqueue all of them, or none.
    #[serde(skip_serializing_if = "Option::is_none")]
    kinds: Option<Vec<String>>,
    /// Whose jobs with unique keys it sees and replaces. Left out when those are its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    producer: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Moment,
    created_by: String,
    /// To about a minute; null when it was never used.
    #[schema(value_type = Option<String>, format = DateTime)]
    last_used_at: Option<Moment>,
    /// Null while it is good.
    #[schema(value_type = Option<String>, format = DateTime)]
    revoked_at: Option<Moment>,
    revoked_by: Option<String>,
}

impl From<ApiKey> for KeyView {
    fn from(key: ApiKey) -> Self {
        let (revoked_at, revoked_by) = key.revoked.map(|(at, by)| (Moment(at), by.to_string())).unzip();
        Self {
            name: key.name.to_string(),
            scope: key.scope.as_str(),
            kinds: key.kinds.map(|kinds| kinds.iter().map(ToString::to_string).collect()),
            producer: key.producer.map(|producer| producer.to_string()),
            created_at: Moment(key.created_at),
            created_by: key.created_by.to_string(),
            last_used_at: key.last_used_at.map(Moment),
            revoked_at,
            revoked_by,
        }
    }
}

/// A key that was just made.
#[derive(Serialize, ToSchema)]
pub(super) struct MadeKeyView {
    /// The key itself. It is shown now and never again; tickr keeps only its digest.
    #[schema(example = "tickr_3q2-7wAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")]
    token: String,
    name: String,
    #[schema(value_type = ScopeWord)]
    scope: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    kinds: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    producer: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Moment,
    created_by: String,
}

/// All keys.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct KeysAnswer {
    /// Good ones first, then newest first.
    data: Vec<KeyView>,
}

/// A new key: 256 random bits.
pub fn new_key() -> String {
    let bytes: [u8; 32] = rand::random();
    format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))
}

/// List the keys
#[utoipa::path(
    get, path = "/v1/keys", tag = "keys", operation_id = "list_keys",
    responses(
        (status = 200, description = "The keys, without the keys themselves", body = KeysAnswer),
        (status = 401, description = "unauthorized", body = Problem),
        (status = 503, description = "store_unavailable", body = Problem),
    )
)]
pub(super) async fn list(State(api): State<Api>) -> Result<Response, Problem> {
    let keys = api.broker.store().listed_keys().await?;
    Ok(json(StatusCode::OK, KeysAnswer { data: keys.into_iter().map(KeyView::from).collect() }))
}

/// Make a key
///
/// The answer shows the key, once. From the first key on the API asks for one, also on loopback and for `/docs`,
/// `/openapi.json` and `/metrics`. The first key must be an admin's.
#[utoipa::path(
    put, path = "/v1/keys/{name}", tag = "keys", operation_id = "make_key", request_body = NewKeyBody,
    params(("name" = String, Path, description = "A name that no key has or had", pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")),
    responses(
        (status = 201, description = "Made; good on this process at once, on others within 2 s", body = MadeKeyView),
        (status = 400, description = "invalid_json, too_deep", body = Problem),
        (status = 401, description = "unauthorized", body = Problem),
        (status = 408, description = "request_timeout", body = Problem),
        (status = 409, description = "name_taken: a key has or had this name", body = Problem),
        (status = 413, description = "too_large", body = Problem),
        (status = 415, description = "unsupported_media_type", body = Problem),
        (status = 422, description = "invalid_request, too_many", body = Problem),
        (status = 503, description = "store_unavailable", body = Problem),
    )
)]
pub(super) async fn make(
    State(api): State<Api>,
    Who(who): Who,
    NamePath(name): NamePath,
    Body(body, _): Body<NewKeyBody>,
) -> Result<Response, Problem> {
    let new = body.read(name.clone())?;
    if new.scope != Scope::Admin && is_open(&api, &api.controls.now()) {
        let detail =
            "must be admin for the first key: from then on every call needs a key, and only an admin's makes more";
        let here = handlers::Problem::at("/scope", detail);
        return Err(Problem::new(Code::InvalidRequest, "the first key would lock its maker out").at("", vec![here]));
    }
    let token = new_key();
    let made = api.broker.store().make_limited_key(new, digest(&token), &who).await?;
    let key = match made {
        MadeKey::Made(key) => key,
        MadeKey::NameTaken => {
            let detail = format!("a key is or was called {name}, and a name belongs to one key for ever");
            return Err(Problem::new(Code::NameTaken, detail));
        }
        MadeKey::TooMany => {
            let detail = format!("{MOST_KEYS} keys are good already; revoke those that are not used");
            return Err(Problem::new(Code::TooMany, detail));
        }
    };
    api.controls.refresh().await?;
    let KeyView { name, scope, kinds, producer, created_at, created_by, .. } = key.into();
    Ok(json(StatusCode::CREATED, MadeKeyView { token, name, scope, kinds, producer, created_at, created_by }))
}

/// Revoke a key
///
/// It is refused by this process at once, by others within 2 s. Revoking it again changes nothing.
#[utoipa::path(
    delete, path = "/v1/keys/{name}", tag = "keys", operation_id = "revoke_key",
    params(("name" = String, Path, description = "The key's name", pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")),
    responses(
        (status = 200, description = "Revoked, now or before", body = KeyView),
        (status = 401, description = "unauthorized", body = Problem),
        (status = 404, description = "not_found", body = Problem),
        (status = 422, description = "invalid_request", body = Problem),
        (status = 503, description = "store_unavailable", body = Problem),
    )
)]
pub(super) async fn revoke(
    State(api): State<Api>,
    Who(who): Who,
    NamePath(name): NamePath,
) -> Result<Response, Problem> {
    match api.broker.store().revoke_key(&name, &who).await? {
        RevokedKey::Missing => Err(Problem::new(Code::NotFound, format!("there is no key {name}"))),
        RevokedKey::Revoked(key) | RevokedKey::Before(key) => {
            api.controls.refresh().await?;
            Ok(json(StatusCode::OK, KeyView::from(key)))
        }
    }
}
