//! The socket of a client: its frames, and its end.
//!
//! The server closes it with 1001 when it stops, and with 1013 when the client does not keep up. Either way the client
//! connects again and fetches its inbox behind the last place that it has.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message as Frame, WebSocket};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::http::Chat;
use super::presence::{Joined, delivery_receipts};
use super::store::{NewMessage, Refusal, Sent};

/// Most bytes of a frame of a client.
const MAX_FRAME_BYTES: usize = 64 << 10;
/// A larger frame is refused with a word. One of this size ends the connection before it is read.
pub(crate) const UNREAD_FRAME_BYTES: usize = 1 << 20;
/// The server stops.
const GOING_AWAY: u16 = 1_001;
/// The client may come again.
const TRY_AGAIN_LATER: u16 = 1_013;
/// Code and reason with which the server ends a connection.
type End = (u16, &'static str);
const TOO_SLOW: End = (TRY_AGAIN_LATER, "the client is too slow");
/// Time for the last frames of a socket.
const TO_CLOSE: Duration = Duration::from_secs(1);
/// Time in which a frame of a client is answered. It is more than that of a transaction.
const TO_CARRY_OUT: Duration = Duration::from_secs(12);
/// Time that the system has to take a frame. A client that reads nothing fills the buffers, and keeps up no more.
const TO_SEND: Duration = Duration::from_secs(5);

/// A frame of a client.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum FromClient {
    /// Send a message. Answered by `ack` or `nack`.
    Send {
        conversation_id: String,
        #[serde(flatten)]
        message: NewMessage,
    },
    /// Confirm a message that was pushed.
    Ack { message_id: String },
    /// Ask for the inbox behind a place; without one, behind the cursor of this device.
    Sync { after: Option<i64> },
    /// Move the cursor of this device: it has everything up to this place.
    Synced { place: i64 },
    /// The user has read a conversation up to this message.
    Read { conversation_id: String, read_up_to: String },
    /// The user types.
    TypingStart { conversation_id: String },
    /// The user looks at a conversation, and at the presence of its members.
    Open { conversation_id: String },
}

impl FromClient {
    /// Return the type of the frame. An error names it, so that the client knows what to repeat.
    const fn kind(&self) -> &'static str {
        match self {
            Self::Send { .. } => "send",
            Self::Ack { .. } => "ack",
            Self::Sync { .. } => "sync",
            Self::Synced { .. } => "synced",
            Self::Read { .. } => "read",
            Self::TypingStart { .. } => "typing_start",
            Self::Open { .. } => "open",
        }
    }
}

/// Answer to a message that was stored.
#[derive(Serialize)]
struct Ack<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    status: &'static str,
    #[serde(flatten)]
    sent: &'a Sent,
}

/// Serve a socket until its client or the server ends it.
pub(crate) async fn serve(mut socket: WebSocket, chat: Arc<Chat>, user: String, device: String) {
    let joined = match chat.presence.join(&user).await {
        Ok(joined) => joined,
        Err(error) => {
            tracing::warn!("a client was turned away, because Redis does not answer: {error:#}");
            return close(&mut socket, TRY_AGAIN_LATER, "try again soon").await;
        }
    };
    let number = joined.number;
    let session = Session { chat: Arc::clone(&chat), user, device, number };
    session.run(&mut socket, joined, &chat.stop).await;
    if let Err(error) = chat.presence.leave(&session.user, number).await {
        // The time to live of the presence ends it.
        tracing::warn!("a user could not be signed off: {error:#}");
    }
}

/// Close a socket with a code. What the client still sends is read: otherwise the system would reset the connection,
/// and the client would not see the code.
async fn close(socket: &mut WebSocket, code: u16, reason: &'static str) {
    let frame = Frame::Close(Some(CloseFrame { code, reason: reason.into() }));
    let closed = async {
        if socket.send(frame).await.is_ok() {
            while matches!(socket.recv().await, Some(Ok(_))) {}
        }
    };
    // The client may be gone already.
    let _ = tokio::time::timeout(TO_CLOSE, closed).await;
}

struct Session {
    chat: Arc<Chat>,
    user: String,
    device: String,
    number: u64,
}

impl Session {
    /// Talk until the client or the server ends it. Both ends are seen at any moment, also while a frame waits for MySQL,
    /// for Redis or for a client that does not read.
    async fn run(&self, socket: &mut WebSocket, joined: Joined, stop: &CancellationToken) {
        let Joined { mut frames, cut, .. } = joined;
        let end = tokio::select! {
            biased;
            () = stop.cancelled() => Some((GOING_AWAY, "the server stops")),
            () = cut.cancelled() => Some(TOO_SLOW),
            end = self.talk(socket, &mut frames) => end,
        };
        if let Some((code, reason)) = end {
            // Nothing waits for the client any more: deliveries find the user offline.
            cut.cancel();
            close(socket, code, reason).await;
        }
    }

    /// Talk until the client is gone, or return why the server ends it.
    async fn talk(&self, socket: &mut WebSocket, frames: &mut mpsc::Receiver<Arc<str>>) -> Option<End> {
        // The client may fetch its inbox from here on: later messages are pushed.
        let hello = json!({"type": "hello", "user": self.user, "device": self.device});
        if let Err(end) = send(socket, hello.to_string()).await {
            return end;
        }
        let mut ping = tokio::time::interval(self.chat.presence.heartbeat());
        // After a standstill of this process a client has the time of a heartbeat to answer, as ever.
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut heard = true;
        loop {
            let sent = tokio::select! {
                biased;
                Some(frame) = frames.recv() => send(socket, frame.to_string()).await,
                frame = socket.recv() => {
                    heard = true;
                    let answer = match frame {
                        Some(Ok(Frame::Text(text))) => self.answer(&text).await,
                        Some(Ok(Frame::Ping(_) | Frame::Pong(_))) => None,
                        Some(Ok(Frame::Binary(_))) => Some(wrong("send text")),
                        Some(Ok(Frame::Close(_)) | Err(_)) | None => return None,
                    };
                    match answer {
                        Some(answer) => send(socket, answer.to_string()).await,
                        None => Ok(()),
                    }
                }
                _ = ping.tick() => {
                    // A client that is gone without a word answers no ping.
                    if !std::mem::take(&mut heard) {
                        return None;
                    }
                    in_time(socket.send(Frame::Ping(Vec::new().into()))).await
                }
            };
            if let Err(end) = sent {
                return end;
            }
        }
    }

    async fn answer(&self, text: &str) -> Option<Value> {
        if text.len() > MAX_FRAME_BYTES {
            return Some(wrong("a frame may have 65536 bytes"));
        }
        let frame: FromClient = match serde_json::from_str(text) {
            Ok(frame) => frame,
            Err(error) => return Some(wrong(&format!("the frame cannot be read: {error}"))),
        };
        let kind = frame.kind();
        let carried_out = tokio::time::timeout(TO_CARRY_OUT, self.carry_out(frame)).await;
        carried_out.unwrap_or_else(|_| Err(anyhow::anyhow!("MySQL takes too long"))).unwrap_or_else(|error| {
            tracing::warn!("a frame was not carried out: {error:#}");
            Some(json!({"type": "error", "to": kind, "code": "unavailable", "detail": "try again soon"}))
        })
    }

    async fn carry_out(&self, frame: FromClient) -> anyhow::Result<Option<Value>> {
        let Self { chat, user, device, number } = self;
        match frame {
            FromClient::Send { conversation_id, message } => {
                return Ok(Some(self.send_message(&conversation_id, &message).await));
            }
            FromClient::Ack { message_id } => chat.presence.confirmed(user, *number, &message_id).await?,
            FromClient::Sync { after } => return self.inbox(after).await.map(Some),
            FromClient::Synced { place } => {
                let messages = chat.store.move_cursor(user, device, place).await?;
                chat.tell(delivery_receipts(user, &messages)).await;
            }
            FromClient::Read { conversation_id, read_up_to } => chat.read(user, &conversation_id, &read_up_to).await?,
            FromClient::TypingStart { conversation_id } => {
                if chat.store.is_member(&conversation_id, user).await? {
                    chat.presence.typing(user, &conversation_id).await?;
                }
            }
            FromClient::Open { conversation_id } => {
                let mut members = chat.store.members(&conversation_id).await?;
                if !members.contains(user) {
                    return Ok(Some(wrong("you are not a member of this conversation")));
                }
                members.retain(|member| member != user);
                members.truncate(super::http::MAX_USERS);
                chat.presence.watch(user, *number, &members);
                let users = chat.presence.of(user, &members).await?;
                return Ok(Some(json!({"type": "presence", "users": users})));
            }
        }
        Ok(None)
    }

    async fn send_message(&self, conversation: &str, message: &NewMessage) -> Value {
        let id = &message.message_id;
        match self.chat.send(conversation, &self.user, message).await {
            Ok(sent) => serde_json::to_value(Ack { kind: "ack", status: "sent", sent: &sent }).unwrap_or_default(),
            Err(Refusal::Nack { expected }) => json!({
                "type": "nack", "conversation_id": conversation, "message_id": id, "expected": expected,
            }),
            Err(refusal) => {
                let (_, code, detail) = refusal.in_words();
                json!({"type": "error", "to": "send", "code": code, "detail": detail, "message_id": id})
            }
        }
    }

    async fn inbox(&self, after: Option<i64>) -> anyhow::Result<Value> {
        let Self { chat, user, device, .. } = self;
        let after = match after {
            Some(place) => place,
            None => chat.store.synced(user, device).await?,
        };
        let (messages, place, more) = chat.store.inbox(user, after).await?;
        Ok(json!({"type": "batch", "messages": messages, "after": after, "place": place, "more": more}))
    }
}

/// Send a frame. If that fails, say how the connection ends.
async fn send(socket: &mut WebSocket, text: String) -> Result<(), Option<End>> {
    in_time(socket.send(Frame::Text(text.into()))).await
}

async fn in_time(sent: impl Future<Output = Result<(), axum::Error>>) -> Result<(), Option<End>> {
    match tokio::time::timeout(TO_SEND, sent).await {
        Ok(sent) => sent.map_err(|_| None),
        Err(_) => Err(Some(TOO_SLOW)),
    }
}

fn wrong(detail: &str) -> Value {
    json!({"type": "error", "code": "wrong", "detail": detail})
}
