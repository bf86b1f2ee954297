//! `/v1/kinds`: the kinds of jobs, the schemas of their payloads, and the declarations of kinds that programs in other
//! languages execute.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::http::auth::RequestActor;
use crate::http::body::{Body, NamePath, Object, or_default};
use crate::http::etag::{self, IfMatch, Preconditions};
use crate::http::problem::{Code, Problem};
use crate::view::{Moment, RetryView};
use crate::{Api, json};
use tickr_handlers::http::{SigningSecret, shown_url};
use tickr_handlers::{KindDefaults, Registered};
use tickr_job::{DeclaredKind, Name, Push, PushSecret, RetryRequest, is_terminal_control, limits};
use tickr_store::{DeclareOutcome, KindSetting, MAX_DECLARED_KINDS};

/// The programs that execute the jobs of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum KindOrigin {
    /// Runners execute it: its handler is part of the program.
    Compiled,
    /// A program in another language executes it: an operator declared it with `PUT /v1/kinds/{kind}`.
    Declared,
}

/// The way in which a program in another language gets the jobs of a declared kind.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(rename_all = "snake_case")]
pub(super) enum KindRunView {
    /// Remote workers fetch them.
    Pull,
    /// Runners call a receiver.
    Push(PushView),
}

/// The receiver of a declared kind.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(super) struct PushView {
    /// URL that is called, without possible secrets: values of the query, and tokens in the path.
    url: String,
    /// True if the declaration has a secret of its own, which signs the calls. It is never shown.
    has_secret: bool,
    /// Longest time until the receiver answers, in milliseconds.
    answer_ms: u64,
    /// Longest time between two reports of a receiver that answered 202, in milliseconds; null if it need not report.
    lease_ms: Option<u64>,
    /// Kinds of the jobs that may follow the successes of the receiver.
    follow_ups: Vec<String>,
}

impl PushView {
    fn new(push: &Push) -> Self {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self {
            url: shown_url(&push.url),
            has_secret: push.secret.is_some(),
            answer_ms: ms(push.answer_within),
            lease_ms: push.lease.map(ms),
            follow_ups: push.follow_ups.iter().map(Name::to_string).collect(),
        }
    }
}

/// The way in which a program in another language gets the jobs: `"pull"`, or an object with `push`.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used; the value accepts no array in place of the object")]
pub(super) enum KindRunBody {
    /// Remote workers fetch them.
    Pull,
    /// Runners call a receiver.
    Push(PushBody),
}

/// The same as it is read.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum KindRunGiven {
    Pull,
    Push(Object<PushBody>),
}

/// A receiver that runners call with each attempt.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PushBody {
    /// URL to call: an absolute `http` or `https` URL without user name and password, at most 2,048 bytes.
    #[schema(max_length = 2_048)]
    url: String,
    /// Secret that signs the calls: `whsec_` and the base64 of 24 to 64 random bytes. The sample secret of the Standard
    /// Webhooks documents is refused. It is stored, and never shown. Default: the secrets of the configuration sign, if
    /// there are any for this receiver.
    #[schema(max_length = 120, pattern = "^whsec_[A-Za-z0-9+/=]+$")]
    secret: Option<String>,
    /// Longest time until the receiver answers, in milliseconds, at most the setting `callback_timeout` of the runner.
    /// Default: 30 seconds.
    #[schema(minimum = 1, maximum = 86_400_000)]
    answer_ms: Option<u64>,
    /// Longest time between two reports of a receiver that answered 202, in milliseconds. Default: it need not report, and
    /// only the time limit of the attempt counts.
    #[schema(minimum = 1_000, maximum = 86_400_000)]
    lease_ms: Option<u64>,
    /// Kinds of the jobs that may follow the successes of the receiver, in any queue. It needs no API key for them.
    /// Default: none.
    #[serde(default, deserialize_with = "or_default")]
    #[schema(value_type = Option<Vec<String>>, max_items = 100)]
    follow_ups: Vec<String>,
}

impl std::fmt::Debug for PushBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PushBody").field("lease_ms", &self.lease_ms).finish_non_exhaustive()
    }
}

impl PushBody {
    /// Check the receiver, and tell each problem to `wrong`.
    fn check(self, api: &Api, wrong: &mut impl FnMut(&str, String)) -> Push {
        let Self { url, secret, answer_ms, lease_ms, follow_ups } = self;
        let problem = api.broker.registry().client().and_then(|client| client.problem_of_push(&url));
        if url.len() > Push::MAX_URL_BYTES {
            wrong("/run/push/url", format!("must have at most {} bytes", Push::MAX_URL_BYTES));
        } else if let Some(problem) = problem {
            wrong("/run/push/url", problem);
        }
        let unusable =
            |secret: &String| secret.len() > PushSecret::MAX_BYTES || secret.parse::<SigningSecret>().is_err();
        if secret.as_deref().is_some_and(SigningSecret::is_published) {
            let right = "make your own: echo whsec_$(openssl rand -base64 32)";
            wrong("/run/push/secret", format!("is the secret of the published examples, which is public; {right}"));
        } else if secret.as_ref().is_some_and(unusable) {
            wrong("/run/push/secret", "must be whsec_ and the base64 of 24 to 64 bytes".to_owned());
        }
        let within = |ms: Option<u64>, (least, most): (Duration, Duration)| {
            let time = ms.map(Duration::from_millis);
            time.is_none_or(|time| (least..=most).contains(&time))
        };
        let (usual, longest) = Push::ANSWER_WITHIN;
        if !within(answer_ms, (Duration::from_millis(1), longest)) {
            wrong("/run/push/answer_ms", format!("must be 1 to {}", longest.as_millis()));
        }
        if !within(lease_ms, Push::LEASE) {
            let (least, most) = (Push::LEASE.0.as_millis(), Push::LEASE.1.as_millis());
            wrong("/run/push/lease_ms", format!("must be {least} to {most}"));
        }
        if follow_ups.len() > Push::MAX_FOLLOW_UP_KINDS {
            wrong("/run/push/follow_ups", format!("must be at most {} kinds", Push::MAX_FOLLOW_UP_KINDS));
        }
        let mut kinds: Vec<Name> = Vec::new();
        for (place, kind) in follow_ups.iter().take(Push::MAX_FOLLOW_UP_KINDS).enumerate() {
            match kind.parse::<Name>() {
                Ok(kind) if kinds.contains(&kind) => {}
                Ok(kind) => kinds.push(kind),
                Err(error) => wrong(&format!("/run/push/follow_ups/{place}"), error.to_string()),
            }
        }
        Push {
            url,
            secret: secret.map(PushSecret::new),
            answer_within: answer_ms.map_or(usual, Duration::from_millis),
            lease: lease_ms.map(Duration::from_millis),
            follow_ups: kinds,
        }
    }
}

/// The kinds that can be enqueued.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct KindsAnswer {
    /// Kinds, in the order of their names.
    data: Vec<KindView>,
}

/// One kind.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct KindView {
    /// Name of the kind.
    kind: String,
    origin: KindOrigin,
    /// The way in which a program in another language gets the jobs; null for a compiled kind.
    run: Option<KindRunView>,
    /// Text for people; null for none.
    description: Option<String>,
    /// Default number of attempts of a job.
    max_attempts: u32,
    /// Default time limit of one attempt, in milliseconds.
    timeout_ms: u64,
    /// Default backoff of a job.
    retry: RetryView,
    /// Queue of jobs that name none.
    queue: String,
    /// JSON Schema (2020-12) of the payload. An empty one accepts any JSON.
    #[schema(value_type = Object)]
    schema: Value,
    /// Time of the last change of a declaration; null for a compiled kind.
    #[schema(value_type = Option<String>, format = DateTime)]
    changed_at: Option<Moment>,
    /// Actor of the last change of a declaration; null for a compiled kind.
    changed_by: Option<String>,
}

impl KindView {
    fn compiled(kind: &Registered) -> Self {
        Self {
            kind: kind.name().to_string(),
            origin: KindOrigin::Compiled,
            run: None,
            description: None,
            max_attempts: kind.defaults().max_attempts,
            timeout_ms: u64::try_from(kind.defaults().timeout.as_millis()).unwrap_or(u64::MAX),
            retry: kind.defaults().retry.clone().into(),
            queue: "default".to_owned(),
            schema: kind.schema().clone(),
            changed_at: None,
            changed_by: None,
        }
    }

    fn declared(set: KindSetting) -> Self {
        let DeclaredKind { name, description, schema, max_attempts, timeout_ms, retry, queue, push } = set.kind;
        Self {
            kind: name.to_string(),
            origin: KindOrigin::Declared,
            run: Some(push.as_ref().map_or(KindRunView::Pull, |push| KindRunView::Push(PushView::new(push)))),
            description,
            max_attempts,
            timeout_ms,
            retry: retry.into(),
            queue: queue.map_or_else(|| "default".to_owned(), |queue| queue.to_string()),
            schema: schema.unwrap_or_else(|| Value::Object(serde_json::Map::new())),
            changed_at: Some(Moment(set.changed.0)),
            changed_by: Some(set.changed.1.to_string()),
        }
    }
}

/// A kind that programs in other languages execute. What is left out is as for a kind without settings of its own.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct KindBody {
    /// Text for people, at most 500 characters.
    #[schema(max_length = 500)]
    description: Option<String>,
    /// JSON Schema (2020-12) of the payload, at most 64 KiB. References to other documents are refused. Default: any
    /// JSON.
    #[schema(value_type = Option<Object>)]
    schema: Option<serde_json::Map<String, Value>>,
    /// Number of attempts that a job may use. Default: 5.
    #[schema(minimum = 1, maximum = 100)]
    max_attempts: Option<u32>,
    /// Time limit of one attempt, in milliseconds. Default: 5 minutes.
    #[schema(minimum = 1, maximum = 86_400_000)]
    timeout_ms: Option<u64>,
    /// Backoff between attempts.
    #[schema(value_type = Option<RetryView>)]
    retry: Option<Object<RetryView>>,
    /// Queue of jobs that name none. With `pull`, a queue that only remote workers serve costs other runners nothing; with
    /// `push`, runners must serve it. Default: `default`.
    #[schema(pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")]
    queue: Option<String>,
    /// Remote workers fetch the jobs (`pull`), or runners call a receiver (`push`). Default: `pull`.
    #[schema(value_type = Option<KindRunBody>)]
    run: Option<KindRunGiven>,
}

impl KindBody {
    /// Check the declaration. Return all problems at once.
    fn check(self, api: &Api, name: Name) -> Result<DeclaredKind, Vec<tickr_handlers::Problem>> {
        let mut problems = Vec::new();
        let mut wrong = |pointer: &str, detail: String| problems.push(tickr_handlers::Problem::at(pointer, detail));
        let usual = KindDefaults::default();
        if self.description.as_ref().is_some_and(|text| {
            text.chars().count() > DeclaredKind::MAX_DESCRIPTION || text.chars().any(is_terminal_control)
        }) {
            let most = DeclaredKind::MAX_DESCRIPTION;
            wrong("/description", format!("must have at most {most} characters, and no control characters"));
        }
        let max_attempts = self.max_attempts;
        if max_attempts.is_some_and(|attempts| !(1..=limits::MAX_ATTEMPTS).contains(&attempts)) {
            wrong("/max_attempts", format!("must be 1 to {}", limits::MAX_ATTEMPTS));
        }
        let most_ms = limits::MAX_TIMEOUT.as_millis() as u64;
        if self.timeout_ms.is_some_and(|ms| ms == 0 || ms > most_ms) {
            wrong("/timeout_ms", format!("must be 1 to {most_ms}"));
        }
        let retry: Option<RetryRequest> = self.retry.map(|Object(retry)| retry.into());
        if let Some((field, why)) = retry.as_ref().and_then(|retry| retry.problem(&usual.retry)) {
            wrong(&format!("/retry/{field}"), why.to_owned());
        }
        let queue = self.queue.map(|queue| queue.parse::<Name>()).transpose().unwrap_or_else(|error| {
            wrong("/queue", error.to_string());
            None
        });
        let schema = self.schema.map(Value::Object);
        if schema.as_ref().is_some_and(|schema| schema.to_string().len() > DeclaredKind::MAX_SCHEMA_BYTES) {
            wrong("/schema", format!("must have at most {} bytes", DeclaredKind::MAX_SCHEMA_BYTES));
        }
        let push = match self.run {
            None | Some(KindRunGiven::Pull) => None,
            Some(KindRunGiven::Push(Object(push))) => Some(push.check(api, &mut wrong)),
        };
        if !problems.is_empty() {
            return Err(problems);
        }
        let of_table = retry.as_ref().and_then(RetryRequest::attempts);
        let kind = DeclaredKind {
            name,
            description: self.description.filter(|text| !text.trim().is_empty()),
            schema,
            max_attempts: max_attempts.or(of_table).unwrap_or(usual.max_attempts),
            timeout_ms: self.timeout_ms.unwrap_or(usual.timeout.as_millis() as u64),
            retry: retry.map_or_else(|| usual.retry.clone(), |retry| retry.over(&usual.retry)),
            queue,
            push,
        };
        match Registered::declared(&kind, None) {
            Ok(_) => Ok(kind),
            Err(error) => Err(vec![tickr_handlers::Problem::at("/schema", format!("is no usable schema: {error}"))]),
        }
    }
}

fn missing(name: &Name) -> Problem {
    Problem::new(Code::NotFound, format!("there is no declared kind {name}"))
}

fn compiled(name: &Name) -> Problem {
    Problem::new(Code::KindCompiled, format!("runners have a handler of the kind {name}; nothing was changed"))
}

fn meanwhile(name: &Name, set: Option<&KindSetting>) -> Problem {
    let detail = match set {
        Some(set) => format!(
            "{name} was changed by {} meanwhile and has the ETag \"{}\" now; nothing was changed",
            set.changed.1, set.version
        ),
        None => format!("there is no declared kind {name}; nothing was changed"),
    };
    Problem::new(Code::PreconditionFailed, detail)
}

fn shown(status: StatusCode, set: KindSetting) -> Response {
    etag::with_tag(status, &etag::from_version(set.version), KindView::declared(set))
}

/// List the kinds with their payload schemas
#[utoipa::path(
    get, path = "/v1/kinds", tag = "kinds", operation_id = "list_kinds",
    responses(
        (status = 200, description = "The kinds that this runner has, and those that are declared", body = KindsAnswer),
    )
)]
pub(super) async fn list(State(api): State<Api>) -> Response {
    let registry = api.broker.registry();
    let declared = api.operator_settings.now();
    let declared = declared.kinds.iter().filter(|set| registry.get(set.kind.name.as_str()).is_none());
    let mut data: Vec<KindView> = registry.iter().map(KindView::compiled).collect();
    data.extend(declared.cloned().map(KindView::declared));
    data.sort_by(|a, b| a.kind.cmp(&b.kind));
    json(StatusCode::OK, KindsAnswer { data })
}

/// Show a kind
///
/// The ETag of a declared kind is its version.
#[utoipa::path(
    get, path = "/v1/kinds/{kind}", tag = "kinds", operation_id = "show_kind",
    params(("kind" = String, Path, description = "The kind", pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")),
    responses(
        (status = 200, description = "The kind", body = KindView, headers(("ETag" = String))),
        (status = 404, description = "not_found", body = Problem),
        (status = 422, description = "invalid_request", body = Problem),
    )
)]
pub(super) async fn show(State(api): State<Api>, NamePath(name): NamePath) -> Result<Response, Problem> {
    if let Some(kind) = api.broker.registry().get(name.as_str()) {
        return Ok(etag::respond_with_etag(StatusCode::OK, &KindView::compiled(kind)));
    }
    let kinds = api.broker.store().listed_kinds().await?;
    let set = kinds.into_iter().find(|set| set.kind.name == name);
    set.map(|set| shown(StatusCode::OK, set))
        .ok_or_else(|| Problem::new(Code::NotFound, format!("there is no kind {name}")))
}

/// Declare a kind
///
/// Programs in other languages execute its jobs: remote workers that fetch them, or a receiver that runners call. The
/// declaration replaces the one with the same name, if there is one. Every runner
/// accepts jobs of it within 2 s, the one that answers at once. Jobs that were accepted before keep their options, also
/// the time limit and the backoff that the declaration had then.
#[utoipa::path(
    put, path = "/v1/kinds/{kind}", tag = "kinds", operation_id = "declare_kind", request_body = KindBody,
    params(
        ("kind" = String, Path, description = "The kind", pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$"),
        ("If-Match" = Option<String>, Header, description = "Only if the declaration has one of these ETags",
            pattern = r#"^(\*|(W/)?"[!#-~]*"( *, *(W/)?"[!#-~]*")*)$"#),
        ("If-None-Match" = Option<String>, Header, description = "With `*`: only if the kind is not declared",
            pattern = r"^\*$"),
    ),
    responses(
        (status = 200, description = "The declaration is changed, or was so already", body = KindView,
            headers(("ETag" = String))),
        (status = 201, description = "The declaration is new", body = KindView, headers(("ETag" = String))),
        (status = 409, description = "kind_compiled: runners have a handler of this kind", body = Problem),
        (status = 412, description = "precondition_failed", body = Problem),
        (status = 422, description = "invalid_request, too_many", body = Problem),
    )
)]
pub(super) async fn put(
    State(api): State<Api>,
    RequestActor(who): RequestActor,
    NamePath(name): NamePath,
    expected: Preconditions,
    Body(body, _): Body<KindBody>,
) -> Result<Response, Problem> {
    let condition = expected.condition(etag::version_of)?;
    let kind = body.check(&api, name.clone()).map_err(|problems| {
        Problem::new(Code::InvalidRequest, "invalid declaration; `errors` says why").at("", problems)
    })?;
    if api.broker.registry().get(name.as_str()).is_some() {
        return Err(compiled(&name));
    }
    let (status, set) = match api.broker.store().declare_kind(kind, condition, &who).await? {
        DeclareOutcome::Done(set, true) => (StatusCode::CREATED, set),
        DeclareOutcome::Done(set, false) | DeclareOutcome::Unchanged(set) => (StatusCode::OK, set),
        DeclareOutcome::Meanwhile(set) => return Err(meanwhile(&name, set.as_ref())),
        DeclareOutcome::Compiled => return Err(compiled(&name)),
        DeclareOutcome::TooMany => {
            return Err(Problem::new(Code::TooMany, format!("there are {MAX_DECLARED_KINDS} declared kinds already")));
        }
    };
    // This process follows the declaration at once, the others within two seconds.
    api.operator_settings.refresh().await?;
    Ok(shown(status, set))
}

/// Remove the declaration of a kind
///
/// No further job of the kind is accepted. Its unfinished jobs stay, and remote workers that were registered with the
/// kind go on to execute them, with the time limit and the backoff that the declaration had when they were accepted.
#[utoipa::path(
    delete, path = "/v1/kinds/{kind}", tag = "kinds", operation_id = "remove_kind",
    params(
        ("kind" = String, Path, description = "The kind", pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$"),
        ("If-Match" = Option<String>, Header, description = "Only if the declaration has one of these ETags",
            pattern = r#"^(\*|(W/)?"[!#-~]*"( *, *(W/)?"[!#-~]*")*)$"#),
    ),
    responses(
        (status = 204, description = "The declaration is removed"),
        (status = 404, description = "not_found", body = Problem),
        (status = 409, description = "kind_compiled: runners have a handler of this kind", body = Problem),
        (status = 412, description = "precondition_failed", body = Problem),
        (status = 422, description = "invalid_request", body = Problem),
    )
)]
pub(super) async fn remove(
    State(api): State<Api>,
    RequestActor(who): RequestActor,
    NamePath(name): NamePath,
    expected: IfMatch,
) -> Result<Response, Problem> {
    let condition = expected.condition(etag::version_of)?;
    match api.broker.store().remove_kind(&name, condition, &who).await? {
        Ok(_) => {}
        Err(Some(set)) => return Err(meanwhile(&name, Some(&set))),
        Err(None) if api.broker.registry().get(name.as_str()).is_some() => return Err(compiled(&name)),
        Err(None) => return Err(missing(&name)),
    }
    api.operator_settings.refresh().await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
