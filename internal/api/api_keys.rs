//! `/v1/api-keys`: API keys.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::http::auth::{RequestActor, digest, is_open};
use crate::http::body::{Body, NamePath};
use crate::http::problem::{Code, Problem};
use crate::view::Moment;
use crate::{Api, json};
use tickr_job::{Name, Scope};
use tickr_store::{ApiKey, MAX_API_KEYS, MadeApiKey, NewApiKey, RevokedApiKey};

/// Prefix of every API key, so that scanners for leaked secrets can recognise it.
const PREFIX: &str = "tickr_";

/// An API key to make.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewApiKeyBody {
    /// Scope. `read`: read everything. `enqueue`: enqueue jobs, and read them by their ids. `admin`: everything.
    #[schema(value_type = ScopeWord)]
    scope: String,
    /// Kinds that the API key may enqueue, or for which it may register remote workers. Default: all. Only with the
    /// scopes `enqueue` and `work`. A report that sends its file needs `email` as well.
    #[schema(min_items = 1, max_items = 50, example = json!(["http", "report"]))]
    kinds: Option<Vec<String>>,
    /// Queues in which the API key may enqueue jobs, or which its remote workers may serve. Default: all. Only with the
    /// scopes `enqueue` and `work`.
    #[schema(min_items = 1, max_items = 50, example = json!(["pictures"]))]
    queues: Option<Vec<String>>,
    /// Producer that the API key belongs to. Default: its own name. Only with the scope `enqueue`. Of the jobs with
    /// unique keys, an API key sees and replaces only those that API keys of the same producer made. So a new API key
    /// can take over from an old one.
    #[schema(pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$", example = "shop")]
    producer: Option<String>,
}

/// Maximum number of kinds, and of queues, of one API key.
const MAX_NAMES: usize = 50;

impl NewApiKeyBody {
    fn read(self, name: Name) -> Result<NewApiKey, Problem> {
        let mut problems = Vec::new();
        let mut wrong = |pointer: &str, detail: String| problems.push(tickr_handlers::Problem::at(pointer, detail));
        let scope = Scope::from_word(&self.scope);
        if scope.is_none() {
            wrong("/scope", "must be read, enqueue, admin or work".to_owned());
        }
        if self.producer.is_some() && scope != Some(Scope::Enqueue) {
            wrong("/producer", "is allowed only for API keys with the scope enqueue".to_owned());
        }
        let mut names = |field: &str, example: &str, names: Option<Vec<String>>| {
            let names = names?;
            if !matches!(scope, Some(Scope::Enqueue | Scope::Work)) {
                wrong(&format!("/{field}"), "is allowed only for API keys with the scopes enqueue and work".to_owned());
            }
            if !(1..=MAX_NAMES).contains(&names.len()) {
                wrong(&format!("/{field}"), format!("must be 1 to {MAX_NAMES} {field}, such as [\"{example}\"]"));
            }
            let read = names.iter().enumerate().filter_map(|(at, name)| {
                name.parse::<Name>().inspect_err(|error| wrong(&format!("/{field}/{at}"), error.to_string())).ok()
            });
            Some(read.collect())
        };
        let (kinds, queues) = (names("kinds", "http", self.kinds), names("queues", "pictures", self.queues));
        let producer = self.producer.and_then(|producer| {
            producer.parse::<Name>().inspect_err(|error| wrong("/producer", error.to_string())).ok()
        });
        match scope.filter(|_| problems.is_empty()) {
            Some(scope) => Ok(NewApiKey { name, scope, kinds, queues, producer }),
            None => Err(Problem::new(Code::InvalidRequest, "invalid API key; `errors` says why").at("", problems)),
        }
    }
}

/// The scope of an API key.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used; the value is the domain's own type")]
pub(super) enum ScopeWord {
    Read,
    Enqueue,
    Admin,
    Work,
}

/// An API key, without its secret.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ApiKeyView {
    name: String,
    #[schema(value_type = ScopeWord)]
    scope: &'static str,
    /// Kinds that it may enqueue or execute. Left out when it may use all of them, or none.
    #[serde(skip_serializing_if = "Option::is_none")]
    kinds: Option<Vec<String>>,
    /// Queues that it may use. Left out when it may use all of them, or none.
    #[serde(skip_serializing_if = "Option::is_none")]
    queues: Option<Vec<String>>,
    /// Producer whose jobs with unique keys it sees and replaces. Left out when the producer has the name of the API
    /// key.
    #[serde(skip_serializing_if = "Option::is_none")]
    producer: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Moment,
    created_by: String,
    /// Time of its last use, accurate to about a minute; null if it was never used.
    #[schema(value_type = Option<String>, format = DateTime)]
    last_used_at: Option<Moment>,
    /// Time of its revocation; null while it is valid.
    #[schema(value_type = Option<String>, format = DateTime)]
    revoked_at: Option<Moment>,
    revoked_by: Option<String>,
}

impl From<ApiKey> for ApiKeyView {
    fn from(key: ApiKey) -> Self {
        let (revoked_at, revoked_by) = key.revoked.map(|(at, by)| (Moment(at), by.to_string())).unzip();
        Self {
            name: key.name.to_string(),
            scope: key.scope.as_str(),
            kinds: key.kinds.map(|kinds| kinds.iter().map(ToString::to_string).collect()),
            queues: key.queues.map(|queues| queues.iter().map(ToString::to_string).collect()),
            producer: key.producer.map(|producer| producer.to_string()),
            created_at: Moment(key.created_at),
            created_by: key.created_by.to_string(),
            last_used_at: key.last_used_at.map(Moment),
            revoked_at,
            revoked_by,
        }
    }
}

/// An API key that was just made, with its secret.
#[derive(Serialize, ToSchema)]
pub(super) struct MadeApiKeyView {
    /// The secret. It is shown only in this response; tickr stores only its digest.
    #[schema(example = "tickr_3q2-7wAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")]
    token: String,
    name: String,
    #[schema(value_type = ScopeWord)]
    scope: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    kinds: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queues: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    producer: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Moment,
    created_by: String,
}

/// The API keys.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ApiKeysAnswer {
    /// At most 2,000 API keys: the valid ones first, then the newest first.
    data: Vec<ApiKeyView>,
}

/// Generate the secret of a new API key: 256 random bits.
pub fn new_api_key() -> String {
    let bytes: [u8; 32] = rand::random();
    format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))
}

/// List the API keys
#[utoipa::path(
    get, path = "/v1/api-keys", tag = "API keys", operation_id = "list_api_keys",
    responses(
        (status = 200, description = "The API keys, without their secrets", body = ApiKeysAnswer),
    )
)]
pub(super) async fn list(State(api): State<Api>) -> Result<Response, Problem> {
    let keys = api.broker.store().listed_keys().await?;
    Ok(json(StatusCode::OK, ApiKeysAnswer { data: keys.into_iter().map(ApiKeyView::from).collect() }))
}

/// Make an API key
///
/// The response shows the secret, only this once. From the first API key on, every request needs one, also on loopback
/// and for `/docs`, `/openapi.json` and `/metrics`. The first API key must have the scope `admin`.
#[utoipa::path(
    put, path = "/v1/api-keys/{name}", tag = "API keys", operation_id = "make_api_key", request_body = NewApiKeyBody,
    params(("name" = String, Path, description = "A name that no API key has or had", pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")),
    responses(
        (status = 201, description = "Made. This process accepts the API key at once, the others within 2 s", body = MadeApiKeyView),
        (status = 409, description = "name_taken: an API key has or had this name", body = Problem),
        (status = 422, description = "invalid_request, too_many", body = Problem),
    )
)]
pub(super) async fn make(
    State(api): State<Api>,
    RequestActor(who): RequestActor,
    NamePath(name): NamePath,
    Body(body, _): Body<NewApiKeyBody>,
) -> Result<Response, Problem> {
    let new = body.read(name.clone())?;
    if new.scope != Scope::Admin && is_open(&api, &api.operator_settings.now()) {
        let detail = "must be admin for the first API key: after it, every request needs one, and only an admin key can make more";
        let here = tickr_handlers::Problem::at("/scope", detail);
        return Err(Problem::new(Code::InvalidRequest, "the first API key would lock its maker out").at("", vec![here]));
    }
    let token = new_api_key();
    let made = api.broker.store().make_limited_api_key(new, digest(&token), &who).await?;
    let key = match made {
        MadeApiKey::Made(key) => key,
        MadeApiKey::NameTaken => {
            let detail = format!("an API key has or had the name {name}, and a name is never used for a second one");
            return Err(Problem::new(Code::NameTaken, detail));
        }
        MadeApiKey::TooMany => {
            let detail = format!("{MAX_API_KEYS} API keys are valid already; revoke those that are not used");
            return Err(Problem::new(Code::TooMany, detail));
        }
    };
    // The API key is made, and no other answer will have its secret. If MySQL fails now, this process follows with the
    // others.
    if let Err(error) = api.operator_settings.refresh().await {
        tracing::warn!(%error, "cannot read the API keys after one was made; this process accepts it within seconds");
    }
    let ApiKeyView { name, scope, kinds, queues, producer, created_at, created_by, .. } = key.into();
    let made = MadeApiKeyView { token, name, scope, kinds, queues, producer, created_at, created_by };
    Ok(json(StatusCode::CREATED, made))
}

/// Revoke an API key
///
/// This process refuses it at once, the others within 2 s. Revoking it again changes nothing.
#[utoipa::path(
    delete, path = "/v1/api-keys/{name}", tag = "API keys", operation_id = "revoke_api_key",
    params(("name" = String, Path, description = "The name of the API key", pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")),
    responses(
        (status = 200, description = "The API key is revoked, by this request or an earlier one", body = ApiKeyView),
        (status = 404, description = "not_found", body = Problem),
        (status = 422, description = "invalid_request", body = Problem),
    )
)]
pub(super) async fn revoke(
    State(api): State<Api>,
    RequestActor(who): RequestActor,
    NamePath(name): NamePath,
) -> Result<Response, Problem> {
    match api.broker.store().revoke_api_key(&name, &who).await? {
        RevokedApiKey::Missing => Err(Problem::not_found("API key", name)),
        RevokedApiKey::Revoked(key) | RevokedApiKey::Before(key) => {
            api.operator_settings.refresh().await?;
            Ok(json(StatusCode::OK, ApiKeyView::from(key)))
        }
    }
}
