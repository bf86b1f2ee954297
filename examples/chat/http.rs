//! The listener of the chat: its routes, its page, and who may call.
//!
//! A user is a name without a password, so the listener takes callers of this machine only: it binds to loopback, and
//! it refuses a `Host` or an `Origin` of elsewhere. Otherwise a page of the web could chat in the name of its visitor.

use std::fmt::Display;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Path, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use axum::{Json, Router};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tickr::Client;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::counters::{self, Counters};
use super::presence::Presence;
use super::store::{Conversation, NewMessage, Refusal, Sent, Store};
use super::ws;

/// Users that one question about presence may name.
pub(crate) const MAX_USERS: usize = 500;
/// Members that a group may have.
const MAX_MEMBERS: usize = 10_000;
/// Characters that a message may have.
const MAX_CONTENT: usize = 4_000;
/// Time for which a receipt is told again that Redis did not take.
const TO_TELL: Duration = Duration::from_secs(60);
/// Nothing but the files of this server. The page shows texts of users, and no text becomes a script.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A bubble with a tick.
const ICON: &str = "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 32 32'><rect width='32' height='26' rx='8' \
                    fill='#14694a'/><path d='M9 13l5 5 9-10' stroke='#fff' stroke-width='3' fill='none'/></svg>";

/// The parts of the chat that requests need.
pub(crate) struct Chat {
    pub(crate) store: Store,
    pub(crate) presence: Presence,
    pub(crate) client: Client,
    pub(crate) counters: Counters,
    /// Cancelled when the server stops.
    pub(crate) stop: CancellationToken,
    /// The tasks of sockets, which the stop waits for.
    pub(crate) sockets: TaskTracker,
}

impl Chat {
    /// Store a message, wake the outbox, and show the message to the other devices of its sender.
    pub(crate) async fn send(&self, conversation: &str, user: &str, message: &NewMessage) -> Result<Sent, Refusal> {
        check(message)?;
        let sent = self.store.send(&self.client, conversation, user, message).await?;
        // Both are a matter of speed: runners find the job by themselves, and the message is in the inbox of its
        // sender.
        if let Err(error) = self.client.nudge().await {
            tracing::debug!("the outbox was not nudged: {error}");
        }
        let own = [user.to_owned()];
        if let Err(error) = self.presence.tell(&own, &own_message(&sent, user, &message.content)).await {
            tracing::debug!("the other devices of a sender were not told: {error:#}");
        }
        Ok(sent)
    }

    /// Note that a user has read a conversation, and tell the senders of what was read as its receipts allow.
    pub(crate) async fn read(&self, user: &str, conversation: &str, up_to: &str) -> anyhow::Result<()> {
        let Some(read) = self.store.read(user, conversation, up_to).await? else { return Ok(()) };
        let is_group = !conversation.contains('~');
        let mut frame = json!({
            "type": "read_receipt", "conversation_id": conversation, "read_up_to": up_to, "seq": read.seq,
            "read_at": read.at,
        });
        match read.receipts.as_str() {
            "none" if is_group => return Ok(()),
            // The first reader of a message has no name, and the others are not told.
            "simple" if is_group => {}
            _ => frame["user"] = user.into(),
        }
        self.tell(read.senders.into_iter().map(|sender| (sender, frame.clone())).collect()).await;
        Ok(())
    }

    /// Tell users what was committed. Nothing would tell it again, so what Redis does not take is told again for
    /// [`TO_TELL`], beside the requests that follow.
    pub(crate) async fn tell(&self, mut frames: Vec<(String, Value)>) {
        while let Some((user, frame)) = frames.last() {
            if let Err(error) = self.presence.tell(std::slice::from_ref(user), frame).await {
                tracing::debug!("a receipt was not told yet: {error:#}");
                let (presence, stop) = (self.presence.clone(), self.stop.clone());
                let again = async move { tokio::time::timeout(TO_TELL, tell_again(presence, frames)).await.is_ok() };
                self.sockets.spawn(async move { stop.run_until_cancelled(again).await });
                return;
            }
            frames.pop();
        }
    }
}

/// Tell users until Redis has taken each frame.
async fn tell_again(presence: Presence, mut frames: Vec<(String, Value)>) {
    while let Some((user, frame)) = frames.last() {
        match presence.tell(std::slice::from_ref(user), frame).await {
            Ok(()) => drop(frames.pop()),
            Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
        }
    }
}

/// Make the frame that shows a message to all devices of its sender.
fn own_message(sent: &Sent, sender: &str, content: &str) -> Value {
    let mut frame = serde_json::to_value(sent).unwrap_or_default();
    frame["type"] = "message".into();
    frame["sender"] = sender.into();
    frame["content"] = content.into();
    frame
}

fn check(message: &NewMessage) -> Result<(), Refusal> {
    let wrong = |text: &str| Err(Refusal::Wrong(text.to_owned()));
    if message.message_id.len() != 36 || message.message_id.parse::<Uuid>().is_err() {
        return wrong("message_id must be a UUID in its usual form");
    }
    if message.content.trim().is_empty() || message.content.chars().count() > MAX_CONTENT {
        return wrong("content must have 1 to 4000 characters");
    }
    Ok(())
}

/// Return whether this may be the name of a user or a device.
fn is_name(text: &str) -> bool {
    let legal = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, b'-' | b'_' | b'.');
    (1..=32).contains(&text.len()) && text.bytes().all(legal)
}

fn name(text: &str) -> Result<String, Refusal> {
    let text = text.trim().to_lowercase();
    let wrong = || Refusal::Wrong("a name has 1 to 32 letters a-z, digits and - _ .".to_owned());
    is_name(&text).then_some(text).ok_or_else(wrong)
}

impl Refusal {
    /// Return the status, a word for programs and a text for people.
    pub(crate) fn in_words(&self) -> (StatusCode, &'static str, String) {
        match self {
            Self::Missing(what) => (StatusCode::NOT_FOUND, "not_found", (*what).to_owned()),
            Self::NotMember => {
                (StatusCode::FORBIDDEN, "not_a_member", "you are not a member of this conversation".to_owned())
            }
            Self::Nack { expected } => (StatusCode::CONFLICT, "nack", format!("the next client_seq is {expected}")),
            Self::Wrong(text) => (StatusCode::BAD_REQUEST, "wrong", text.clone()),
            Self::Unavailable(_) => {
                (StatusCode::SERVICE_UNAVAILABLE, "unavailable", "a server does not answer; try again".to_owned())
            }
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, code, detail) = self.in_words();
        let mut body = json!({"code": code, "detail": detail});
        match &self {
            Self::Unavailable(error) => tracing::warn!("a request was not carried out: {error:#}"),
            Self::Nack { expected } => body["expected"] = (*expected).into(),
            _ => {}
        }
        let mut response = (status, Json(body)).into_response();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// A body in JSON, whatever its media type is. One that cannot be read is refused in the words of this listener.
pub(crate) struct Body<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        let bytes = Bytes::from_request(request, state).await.map_err(|error| Refusal::Wrong(error.to_string()))?;
        let wrong = |error| Refusal::Wrong(format!("the body cannot be read: {error}"));
        serde_json::from_slice(&bytes).map(Self).map_err(wrong)
    }
}

/// A part of the address. One that cannot be read is refused in the words of this listener.
pub(crate) struct In<T>(pub(crate) T);

impl<S: Send + Sync, T: FromRequestParts<S, Rejection: Display>> FromRequestParts<S> for In<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        T::from_request_parts(parts, state).await.map(Self).map_err(|error| Refusal::Wrong(error.to_string()))
    }
}

/// The user who calls, from the header `chat-user`. A page of elsewhere cannot set it.
struct User(String);

impl FromRequestParts<Arc<Chat>> for User {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, chat: &Arc<Chat>) -> Result<Self, Refusal> {
        let given = parts.headers.get("chat-user").and_then(|value| value.to_str().ok()).unwrap_or_default();
        let user = name(given)?;
        if !chat.store.knows(&user).await? {
            return Err(Refusal::Missing("there is no such user; sign in first"));
        }
        Ok(Self(user))
    }
}

/// Return all routes.
pub(crate) fn router(chat: Arc<Chat>) -> Router {
    Router::new()
        .route("/", get(|| file("text/html; charset=utf-8", include_str!("page.html"))))
        .route("/page.js", get(|| file("text/javascript; charset=utf-8", include_str!("page.js"))))
        .route("/page.css", get(|| file("text/css; charset=utf-8", include_str!("page.css"))))
        .route("/favicon.svg", get(|| file("image/svg+xml", ICON)))
        .route("/ws", get(socket))
        .route("/sign-in", post(sign_in))
        .route("/account", delete(delete_account))
        .route("/privacy", put(privacy))
        .route("/contacts/{user}", put(add_contact).delete(remove_contact))
        .route("/blocks/{user}", put(block).delete(unblock))
        .route("/presence", get(presence))
        .route("/conversations", get(conversations).post(open))
        .route("/conversations/{id}", get(conversation))
        .route("/conversations/{id}/messages", get(history).post(send))
        .merge(counters::routes())
        .fallback(async || Refusal::Missing("there is no such address"))
        .layer(DefaultBodyLimit::max(1 << 20))
        .layer(from_fn(guard))
        .with_state(chat)
}

async fn file(kind: &'static str, text: &'static str) -> Response {
    ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-cache")], text).into_response()
}

/// Return whether a `Host` or the host of an `Origin` is this machine.
fn is_here(host: &str) -> bool {
    let name = host.rsplit_once(':').map_or(
        host,
        |(name, port)| {
            if port.bytes().all(|c| c.is_ascii_digit()) { name } else { host }
        },
    );
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    name == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// Refuse callers of elsewhere, and give each answer its policy.
async fn guard(request: Request, next: Next) -> Response {
    let said = |headers: &HeaderMap, name| {
        headers.get(name).map(|value: &HeaderValue| value.to_str().unwrap_or("?").to_owned())
    };
    let host = said(request.headers(), header::HOST).unwrap_or_default();
    let origin = said(request.headers(), header::ORIGIN);
    // The page and its calls have the same address.
    let foreign = origin.is_some_and(|origin| origin.split_once("://").map(|(_, host)| host) != Some(&host));
    if !is_here(&host) || foreign {
        let body =
            json!({"code": "foreign", "detail": "this listener answers pages and programs of this machine only"});
        return (StatusCode::FORBIDDEN, Json(body)).into_response();
    }
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

#[derive(Deserialize)]
struct SocketOf {
    user: String,
    device: Option<String>,
}

async fn socket(
    State(chat): State<Arc<Chat>>,
    In(Query(of)): In<Query<SocketOf>>,
    upgrade: WebSocketUpgrade,
) -> Result<Response, Refusal> {
    let (user, device) = (name(&of.user)?, name(of.device.as_deref().unwrap_or("web"))?);
    if !chat.store.knows(&user).await? {
        return Err(Refusal::Missing("there is no such user; sign in first"));
    }
    let upgrade = upgrade.max_message_size(ws::UNREAD_FRAME_BYTES).max_frame_size(ws::UNREAD_FRAME_BYTES);
    Ok(upgrade.on_upgrade(move |socket| {
        let sockets = chat.sockets.clone();
        sockets.track_future(ws::serve(socket, chat, user, device))
    }))
}

#[derive(Deserialize)]
struct SignIn {
    name: String,
}

async fn sign_in(State(chat): State<Arc<Chat>>, Body(body): Body<SignIn>) -> Result<Json<Value>, Refusal> {
    let user = name(&body.name)?;
    let privacy = chat.store.sign_in(&user).await?;
    Ok(Json(json!({"user": user, "last_seen": privacy})))
}

async fn delete_account(State(chat): State<Arc<Chat>>, User(user): User) -> Result<StatusCode, Refusal> {
    chat.store.delete_user(&user).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize)]
struct Privacy {
    last_seen: String,
}

async fn privacy(
    State(chat): State<Arc<Chat>>,
    User(user): User,
    Body(body): Body<Privacy>,
) -> Result<StatusCode, Refusal> {
    if !["everyone", "contacts", "nobody"].contains(&body.last_seen.as_str()) {
        return Err(Refusal::Wrong("last_seen is everyone, contacts or nobody".to_owned()));
    }
    chat.store.set_privacy(&user, &body.last_seen).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn add_contact(
    State(chat): State<Arc<Chat>>,
    User(user): User,
    In(Path(other)): In<Path<String>>,
) -> Result<StatusCode, Refusal> {
    chat.store.set_contact(&user, &name(&other)?, true).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn remove_contact(
    State(chat): State<Arc<Chat>>,
    User(user): User,
    In(Path(other)): In<Path<String>>,
) -> Result<StatusCode, Refusal> {
    chat.store.set_contact(&user, &name(&other)?, false).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn block(
    State(chat): State<Arc<Chat>>,
    User(user): User,
    In(Path(other)): In<Path<String>>,
) -> Result<StatusCode, Refusal> {
    chat.store.set_block(&user, &name(&other)?, true).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn unblock(
    State(chat): State<Arc<Chat>>,
    User(user): User,
    In(Path(other)): In<Path<String>>,
) -> Result<StatusCode, Refusal> {
    chat.store.set_block(&user, &name(&other)?, false).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize)]
struct Users {
    users: String,
}

async fn presence(
    State(chat): State<Arc<Chat>>,
    User(user): User,
    In(Query(Users { users })): In<Query<Users>>,
) -> Result<Response, Refusal> {
    let users = users.split(',').map(name).collect::<Result<Vec<_>, _>>()?;
    if users.len() > MAX_USERS {
        return Err(Refusal::Wrong(format!("ask for {MAX_USERS} users at most")));
    }
    let shown = chat.presence.of(&user, &users).await?;
    // The client may keep the answer for as long as it would take to become old anyway.
    let cache = [(header::CACHE_CONTROL, "private, max-age=30"), (header::VARY, "chat-user")];
    Ok((cache, Json(json!({"users": shown}))).into_response())
}

async fn conversations(State(chat): State<Arc<Chat>>, User(user): User) -> Result<Json<Value>, Refusal> {
    let found = chat.store.conversations(&user, None).await?;
    Ok(Json(json!({"conversations": found})))
}

async fn conversation(
    State(chat): State<Arc<Chat>>,
    User(user): User,
    In(Path(id)): In<Path<String>>,
) -> Result<Json<Conversation>, Refusal> {
    let found = chat.store.conversations(&user, Some(&id)).await?;
    found.into_iter().next().map(Json).ok_or(Refusal::NotMember)
}

/// A conversation with another user, or a group.
#[derive(Deserialize)]
#[serde(untagged)]
enum Opened {
    Direct { with: String },
    Group { name: String, members: Vec<String>, receipts: Option<String> },
}

async fn open(
    State(chat): State<Arc<Chat>>,
    User(user): User,
    Body(body): Body<Opened>,
) -> Result<(StatusCode, Json<Value>), Refusal> {
    let (id, told) = match body {
        Opened::Direct { with } => {
            let other = name(&with)?;
            (chat.store.open_direct(&user, &other).await?, vec![other])
        }
        Opened::Group { name: title, members, receipts } => {
            let receipts = receipts.unwrap_or_else(|| "full".to_owned());
            let wrong = |text: &str| Err(Refusal::Wrong(text.to_owned()));
            if !["full", "simple", "none"].contains(&receipts.as_str()) {
                return wrong("receipts is full, simple or none");
            }
            if title.trim().is_empty() || title.chars().count() > 80 {
                return wrong("name must have 1 to 80 characters");
            }
            let mut members = members.iter().map(|member| name(member)).collect::<Result<Vec<_>, _>>()?;
            members.push(user.clone());
            members.sort_unstable();
            members.dedup();
            if members.len() > MAX_MEMBERS {
                return wrong("a group has 10000 members at most");
            }
            let id = Uuid::now_v7().to_string();
            chat.store.make_group(&id, title.trim(), &receipts, &members).await?;
            (id, members)
        }
    };
    // Clients list their conversations again. One that misses this does so when it connects.
    if let Err(error) = chat.presence.tell(&told, &json!({"type": "conversation", "conversation_id": id})).await {
        tracing::debug!("members were not told of a conversation: {error:#}");
    }
    Ok((StatusCode::CREATED, Json(json!({"id": id}))))
}

async fn send(
    State(chat): State<Arc<Chat>>,
    User(user): User,
    In(Path(id)): In<Path<String>>,
    Body(message): Body<NewMessage>,
) -> Result<Json<Sent>, Refusal> {
    Ok(Json(chat.send(&id, &user, &message).await?))
}

#[derive(Deserialize)]
struct Behind {
    #[serde(default)]
    after: i64,
}

async fn history(
    State(chat): State<Arc<Chat>>,
    User(user): User,
    In(Path(id)): In<Path<String>>,
    In(Query(Behind { after })): In<Query<Behind>>,
) -> Result<Json<Value>, Refusal> {
    if !chat.store.is_member(&id, &user).await? {
        return Err(Refusal::NotMember);
    }
    let (messages, more) = chat.store.history(&id, &user, after).await?;
    Ok(Json(json!({"messages": messages, "more": more})))
}
