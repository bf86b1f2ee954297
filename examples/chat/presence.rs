//! Users who are online, and the way to their sockets. All of it is in Redis and in the memory of the servers: it may
//! be lost at any time, and comes back with the next heartbeat.
//!
//! - `presence:{user}` has a time to live. A server refreshes it for the users of its sockets; the one of a killed
//!   server runs out.
//! - `servers:{user}` names the servers that hold sockets of the user, each with the time until which that holds. The
//!   clocks of the servers must agree within the time to live.
//! - Each server listens to a channel of its own and to one that all share. A delivery is published to the servers of
//!   the recipient, and the server whose client confirms it answers on the channel of the one that asked.
//!
//! Typing, presence and receipts are published and forgotten: no row, no job.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use chrono::{DateTime, Utc};
use futures_util::StreamExt as _;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::link::Link;
use super::store::{Message, Store};

/// Time to make a subscription.
const TO_SUBSCRIBE: Duration = Duration::from_secs(1);
/// Time that a client has to confirm a delivery.
const TO_CONFIRM: Duration = Duration::from_secs(2);
/// Frames that wait for one socket at most. A client that reads slower is disconnected, and fetches its inbox later.
const FRAMES: usize = 1_024;
/// A user may say this often that typing goes on, in each conversation.
const TYPING_EVERY_MS: u64 = 3_000;
/// Clients hide "is typing" after this time.
const TYPING_SHOWN_MS: u64 = 5_000;

/// The sockets of this process, and what it knows of those of others. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Presence {
    parts: Arc<Parts>,
}

struct Parts {
    link: Link,
    store: Store,
    prefix: String,
    /// Name of this process among the servers.
    server: String,
    ttl: Duration,
    sockets: Mutex<Sockets>,
    /// Deliveries of this process that wait for a confirmation.
    waiting: Mutex<HashMap<Uuid, Waiting>>,
}

/// A delivery that waits.
struct Waiting {
    /// Servers that have not said that the user is not there.
    servers: usize,
    tell: oneshot::Sender<Reached>,
}

/// The sockets of this process, by user and number.
#[derive(Default)]
struct Sockets {
    next: u64,
    by_user: HashMap<String, HashMap<u64, Socket>>,
}

struct Socket {
    frames: mpsc::Sender<Arc<str>>,
    /// Cut when the client does not keep up.
    cut: CancellationToken,
    /// Users whose presence the client shows, because one of their conversations is open.
    watches: HashSet<String>,
    /// Deliveries that the client has to confirm, by message.
    unconfirmed: HashMap<String, Unconfirmed>,
}

struct Unconfirmed {
    delivery: Uuid,
    reply: String,
}

/// A socket of a client, as its task holds it. Dropping it does not sign the user off; [`Presence::leave`] does.
pub(crate) struct Joined {
    pub(crate) number: u64,
    pub(crate) frames: mpsc::Receiver<Arc<str>>,
    pub(crate) cut: CancellationToken,
}

/// Outcome of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    /// A device has confirmed it.
    Confirmed,
    /// No server holds a socket of the user, or each one that should hold one says that it does not.
    Offline,
    /// A server should hold one, and no confirmation came.
    Silent,
}

/// A message between servers.
#[derive(Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
enum Envelope {
    /// Push these messages to the sockets of a user, and tell the server `reply` when the last one is confirmed.
    Deliver { to: String, delivery: Uuid, reply: String, messages: Vec<Message> },
    /// A device has confirmed a delivery.
    Confirmed { delivery: Uuid },
    /// The server that was asked for a delivery holds no socket of the user.
    NotHere { delivery: Uuid },
    /// Send a frame to the sockets of these users.
    Frame { to: Vec<String>, frame: Value },
    /// A user came or went.
    Presence { user: String, online: bool },
    /// A word of a server to itself: its subscription works.
    Beat,
}

/// What a viewer may know about a user.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Shown {
    pub(crate) user: String,
    pub(crate) status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_seen: Option<DateTime<Utc>>,
}

impl Presence {
    /// Connect to Redis. `ttl` is the time after which a user of a killed server counts as offline.
    pub(crate) async fn connect(url: &str, prefix: &str, store: Store, ttl: Duration) -> anyhow::Result<Self> {
        let link = Link::connect(url).await?;
        let server = Uuid::now_v7().simple().to_string();
        let (sockets, waiting) = (Mutex::default(), Mutex::default());
        let prefix = format!("{prefix}:chat");
        Ok(Self { parts: Arc::new(Parts { link, store, prefix, server, ttl, sockets, waiting }) })
    }

    /// Return the connection and the first part of the keys, for the counters.
    pub(crate) fn redis(&self) -> (Link, &str) {
        (self.parts.link.clone(), &self.parts.prefix)
    }

    /// Return the time between two heartbeats.
    pub(crate) fn heartbeat(&self) -> Duration {
        self.parts.ttl / 2
    }

    fn key(&self, what: &str, user: &str) -> String {
        format!("{}:{what}:{user}", self.parts.prefix)
    }

    fn channel(&self, server: &str) -> String {
        format!("{}:server:{server}", self.parts.prefix)
    }

    fn sockets(&self) -> MutexGuard<'_, Sockets> {
        self.parts.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<Uuid, Waiting>> {
        self.parts.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn publish(&self, channel: &str, envelope: &Envelope) -> anyhow::Result<u64> {
        let text = serde_json::to_string(envelope)?;
        let mut redis = self.parts.link.connection();
        Ok(redis::cmd("PUBLISH").arg(channel).arg(text).query_async(&mut redis).await?)
    }

    async fn publish_to_all(&self, envelope: &Envelope) -> anyhow::Result<()> {
        self.publish(&self.channel("all"), envelope).await.map(drop)
    }

    /// Add a socket of a user. The user is online when this returns, so a message that is not in the inbox by then is
    /// pushed.
    pub(crate) async fn join(&self, user: &str) -> anyhow::Result<Joined> {
        let (sender, frames) = mpsc::channel(FRAMES);
        let cut = CancellationToken::new();
        let number = {
            let mut sockets = self.sockets();
            sockets.next += 1;
            let number = sockets.next;
            let (watches, unconfirmed) = (HashSet::new(), HashMap::new());
            let socket = Socket { frames: sender, cut: cut.clone(), watches, unconfirmed };
            sockets.by_user.entry(user.to_owned()).or_default().insert(number, socket);
            number
        };
        let told = async {
            self.refresh(&[user.to_owned()]).await?;
            self.publish_to_all(&Envelope::Presence { user: user.to_owned(), online: true }).await
        };
        if let Err(error) = told.await {
            // The client is turned away. A socket that stays here would be refreshed for ever, and get deliveries that
            // no device confirms.
            if let Err(error) = self.leave(user, number).await {
                tracing::debug!("a user who was turned away could not be signed off: {error:#}");
            }
            return Err(error);
        }
        Ok(Joined { number, frames, cut })
    }

    /// Remove a socket from memory. Return whether it was the last one of its user here.
    fn forget(&self, user: &str, number: u64) -> bool {
        let mut sockets = self.sockets();
        let Some(own) = sockets.by_user.get_mut(user) else { return false };
        own.remove(&number);
        let last = own.is_empty();
        if last {
            sockets.by_user.remove(user);
        }
        last
    }

    /// Remove a socket. With the last one on all servers, the user is offline.
    pub(crate) async fn leave(&self, user: &str, number: u64) -> anyhow::Result<()> {
        if !self.forget(user, number) {
            return Ok(());
        }
        if self.sign_off(user).await? {
            self.parts.store.left(user).await?;
            self.publish_to_all(&Envelope::Presence { user: user.to_owned(), online: false }).await?;
        }
        Ok(())
    }

    /// Say that a user has no socket here. Return whether there is none on any server.
    async fn sign_off(&self, user: &str) -> anyhow::Result<bool> {
        let script = redis::Script::new(
            "redis.call('ZREM', KEYS[1], ARGV[1])
             redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[2])
             local left = redis.call('ZCARD', KEYS[1])
             if left == 0 then redis.call('DEL', KEYS[2]) end
             return left",
        );
        let (servers, presence) = (self.key("servers", user), self.key("presence", user));
        let mut call = script.key(servers);
        let call = call.key(presence).arg(&self.parts.server).arg(Utc::now().timestamp_millis());
        let left: u64 = call.invoke_async(&mut self.parts.link.connection()).await?;
        // The user may have come back meanwhile, and the word about it may have come before the script.
        if self.has(user) {
            self.refresh(&[user.to_owned()]).await?;
            return Ok(false);
        }
        Ok(left == 0)
    }

    /// Return whether a user has a socket here.
    fn has(&self, user: &str) -> bool {
        self.sockets().by_user.contains_key(user)
    }

    /// Say that these users have sockets here. Return those of whom Redis did not know it.
    async fn refresh(&self, users: &[String]) -> anyhow::Result<Vec<String>> {
        let ttl = u64::try_from(self.parts.ttl.as_millis()).unwrap_or(u64::MAX);
        let now = Utc::now().timestamp_millis();
        let until = now.saturating_add_unsigned(ttl);
        let value = json!({"status": "online", "last_active": now}).to_string();
        let mut unknown = Vec::new();
        for some in users.chunks(500) {
            let mut pipe = redis::pipe();
            for user in some {
                pipe.cmd("SET").arg(self.key("presence", user)).arg(&value).arg("PX").arg(ttl).ignore();
                pipe.cmd("ZADD").arg(self.key("servers", user)).arg(until).arg(&self.parts.server);
                pipe.cmd("PEXPIRE").arg(self.key("servers", user)).arg(ttl).ignore();
            }
            let added: Vec<u64> = pipe.query_async(&mut self.parts.link.connection()).await?;
            unknown.extend(some.iter().zip(added).filter(|(_, added)| *added > 0).map(|(user, _)| user.clone()));
        }
        Ok(unknown)
    }

    /// Refresh the presence of all users with sockets here, until the stop. Redis may have forgotten them: then
    /// messages were taken for undeliverable, so their clients are told to fetch them. Also say a word to this server,
    /// for [`hear`](Self::hear).
    pub(crate) async fn beat(self, stop: CancellationToken) {
        let mut beat = tokio::time::interval(self.heartbeat());
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // A Redis that does not answer holds up no stop.
        while stop.run_until_cancelled(beat.tick()).await.is_some() {
            if stop.run_until_cancelled(self.beat_once()).await.is_none() {
                return;
            }
        }
    }

    async fn beat_once(&self) {
        if let Err(error) = self.publish(&self.channel(&self.parts.server), &Envelope::Beat).await {
            tracing::debug!("the subscription was not tried: {error:#}");
        }
        let users: Vec<String> = self.sockets().by_user.keys().cloned().collect();
        match self.refresh(&users).await {
            Ok(forgotten) => self.resync(&forgotten),
            Err(error) => {
                tracing::warn!("Redis does not take the presence of users: {error:#}");
                if let Err(error) = self.parts.link.renew().await {
                    tracing::debug!("Redis takes no new connection: {error:#}");
                }
            }
        }
        // Those who left during the refresh may have been registered again after they had signed off.
        for user in users.iter().filter(|user| !self.has(user)) {
            if let Err(error) = self.sign_off(user).await {
                tracing::debug!("a user who has left could not be signed off: {error:#}");
            }
        }
    }

    fn resync(&self, users: &[String]) {
        for user in users {
            self.send_here(user, &json!({"type": "resync"}));
        }
    }

    /// Receive what other servers publish, until the stop. After a break all clients fetch what they may have missed.
    pub(crate) async fn listen(self, ready: oneshot::Sender<()>, stop: CancellationToken) {
        let mut ready = Some(ready);
        loop {
            let heard = stop.run_until_cancelled(self.hear(&mut ready)).await;
            let Some(end) = heard else { return };
            if let Err(error) = end {
                tracing::warn!("Redis ended the subscription: {error:#}");
            }
            if stop.run_until_cancelled(tokio::time::sleep(Duration::from_millis(200))).await.is_none() {
                return;
            }
        }
    }

    /// Make a subscription, and receive until it ends. A subscriber sends nothing, so the system does not notice that
    /// the other end is gone: the subscription also ends when the words of [`beat`](Self::beat) do not come.
    async fn hear(&self, ready: &mut Option<oneshot::Sender<()>>) -> anyhow::Result<()> {
        let subscribed = async {
            let mut subscription = self.parts.link.client().get_async_pubsub().await?;
            subscription.subscribe(self.channel(&self.parts.server)).await?;
            subscription.subscribe(self.channel("all")).await?;
            anyhow::Ok(subscription)
        };
        let mut subscription = tokio::time::timeout(TO_SUBSCRIBE, subscribed).await.context("subscribe")??;
        match ready.take() {
            Some(ready) => drop(ready.send(())),
            None => {
                // The other connection may have died with the subscription.
                self.parts.link.renew().await?;
                let users: Vec<String> = self.sockets().by_user.keys().cloned().collect();
                self.refresh(&users).await?;
                self.resync(&users);
            }
        }
        let mut messages = subscription.on_message();
        let longest = 2 * self.heartbeat() + TO_SUBSCRIBE;
        loop {
            let next = tokio::time::timeout(longest, messages.next()).await;
            let Some(message) = next.context("nothing came for two heartbeats")? else { return Ok(()) };
            match serde_json::from_slice(message.get_payload_bytes()) {
                Ok(envelope) => self.receive(envelope).await,
                Err(error) => tracing::warn!("a message of another server cannot be read: {error}"),
            }
        }
    }

    async fn receive(&self, envelope: Envelope) {
        match envelope {
            Envelope::Deliver { to, delivery, reply, messages } => {
                if !self.deliver_here(&to, delivery, &reply, &messages) {
                    // Not awaited here: other deliveries must not wait for Redis.
                    let presence = self.clone();
                    tokio::spawn(async move {
                        if let Err(error) = presence.is_not_here(&to, delivery, &reply).await {
                            tracing::warn!("a server was not told that a user is not here: {error:#}");
                        }
                    });
                }
            }
            Envelope::Confirmed { delivery } => {
                if let Some(waiting) = self.waiting().remove(&delivery) {
                    let _ = waiting.tell.send(Reached::Confirmed);
                }
            }
            Envelope::NotHere { delivery } => {
                let mut all = self.waiting();
                let Some(waiting) = all.get_mut(&delivery) else { return };
                waiting.servers = waiting.servers.saturating_sub(1);
                if waiting.servers == 0
                    && let Some(waiting) = all.remove(&delivery)
                {
                    let _ = waiting.tell.send(Reached::Offline);
                }
            }
            Envelope::Beat => {}
            Envelope::Frame { to, frame } => to.iter().for_each(|user| self.send_here(user, &frame)),
            Envelope::Presence { user, online } => {
                // Not awaited here: deliveries must not wait for MySQL.
                let presence = self.clone();
                tokio::spawn(async move {
                    if let Err(error) = presence.show(&user, online).await {
                        tracing::warn!("the presence of a user was not shown: {error:#}");
                    }
                });
            }
        }
    }

    /// Tell the clients that watch a user and may know.
    async fn show(&self, user: &str, online: bool) -> anyhow::Result<()> {
        let watchers: Vec<String> = {
            let sockets = self.sockets();
            let watches = |own: &HashMap<u64, Socket>| own.values().any(|socket| socket.watches.contains(user));
            sockets.by_user.iter().filter(|(_, own)| watches(own)).map(|(watcher, _)| watcher.clone()).collect()
        };
        for watcher in watchers {
            let seen = self.parts.store.visible(&watcher, &[user.to_owned()]).await?;
            if let Some(seen) = seen.first() {
                let status = if online { "online" } else { "offline" };
                let last_seen = seen.last_seen.filter(|_| !online);
                let shown = Shown { user: user.to_owned(), status, last_seen };
                self.send_here(&watcher, &json!({"type": "presence", "users": [shown]}));
            }
        }
        Ok(())
    }

    /// Send a frame to the sockets of a user on this server.
    fn send_here(&self, user: &str, frame: &Value) {
        let sockets = self.sockets();
        let Some(own) = sockets.by_user.get(user) else { return };
        let text: Arc<str> = frame.to_string().into();
        own.values().for_each(|socket| socket.send(&text));
    }

    /// Push messages to the sockets of a user on this server. Return whether there are any.
    fn deliver_here(&self, user: &str, delivery: Uuid, reply: &str, messages: &[Message]) -> bool {
        let mut sockets = self.sockets();
        let Some(own) = sockets.by_user.get_mut(user) else { return false };
        let last = messages.last().map(|message| message.message_id.clone());
        let frames: Vec<Arc<str>> = messages.iter().filter_map(message_frame).collect();
        let mut found = false;
        // A socket that is about to end confirms nothing.
        for socket in own.values_mut().filter(|socket| !socket.cut.is_cancelled()) {
            found = true;
            if let Some(last) = &last {
                let unconfirmed = Unconfirmed { delivery, reply: reply.to_owned() };
                socket.unconfirmed.insert(last.clone(), unconfirmed);
                if socket.unconfirmed.len() > FRAMES {
                    socket.cut.cancel();
                }
            }
            frames.iter().for_each(|frame| socket.send(frame));
        }
        found
    }

    /// Answer a delivery to a user who has no socket here. Redis says otherwise, so it is told first.
    async fn is_not_here(&self, user: &str, delivery: Uuid, reply: &str) -> anyhow::Result<()> {
        self.sign_off(user).await?;
        self.publish(&self.channel(reply), &Envelope::NotHere { delivery }).await.map(drop)
    }

    /// Note that a client has a message. The server that waits for it is told.
    pub(crate) async fn confirmed(&self, user: &str, number: u64, message: &str) -> anyhow::Result<()> {
        let found = {
            let mut sockets = self.sockets();
            let socket = sockets.by_user.get_mut(user).and_then(|own| own.get_mut(&number));
            socket.and_then(|socket| socket.unconfirmed.remove(message))
        };
        let Some(Unconfirmed { delivery, reply }) = found else { return Ok(()) };
        self.publish(&self.channel(&reply), &Envelope::Confirmed { delivery }).await.map(drop)
    }

    /// Push messages to all sockets of a user, on whichever servers they are, and wait until a device confirms.
    pub(crate) async fn push(&self, user: &str, messages: &[Message]) -> anyhow::Result<Reached> {
        let mut redis = self.parts.link.connection();
        let now = Utc::now().timestamp_millis();
        let servers: Vec<String> = redis::cmd("ZRANGEBYSCORE")
            .arg(self.key("servers", user))
            .arg(now)
            .arg("+inf")
            .query_async(&mut redis)
            .await?;
        if servers.is_empty() {
            return Ok(Reached::Offline);
        }
        let delivery = Uuid::new_v4();
        let (tell, answered) = oneshot::channel();
        // A server that is dead says nothing, so only all of them can say that the user is nowhere.
        self.waiting().insert(delivery, Waiting { servers: servers.len(), tell });
        let reply = self.parts.server.clone();
        let envelope = Envelope::Deliver { to: user.to_owned(), delivery, reply, messages: messages.to_vec() };
        let told = async {
            let mut listeners = 0;
            for server in servers {
                listeners += self.publish(&self.channel(&server), &envelope).await?;
            }
            anyhow::Ok(listeners)
        };
        let reached = match told.await {
            Ok(0) => Ok(Reached::Silent),
            Ok(_) => match tokio::time::timeout(TO_CONFIRM, answered).await {
                Ok(Ok(reached)) => Ok(reached),
                _ => Ok(Reached::Silent),
            },
            Err(error) => Err(error),
        };
        self.waiting().remove(&delivery);
        reached
    }

    /// Send a frame to these users, wherever they are. Those who are offline miss it.
    pub(crate) async fn tell(&self, users: &[String], frame: &Value) -> anyhow::Result<()> {
        self.publish_to_all(&Envelope::Frame { to: users.to_vec(), frame: frame.clone() }).await
    }

    /// Tell the senders of these messages that they were delivered.
    pub(crate) async fn tell_delivered(&self, user: &str, messages: &[Message]) -> anyhow::Result<()> {
        for (sender, frame) in delivery_receipts(user, messages) {
            self.tell(&[sender], &frame).await?;
        }
        Ok(())
    }

    /// Tell the other members that a user is typing, at most once in three seconds.
    pub(crate) async fn typing(&self, user: &str, conversation: &str) -> anyhow::Result<()> {
        let mut redis = self.parts.link.connection();
        let key = self.key("typing", &format!("{user}:{conversation}"));
        let mut set = redis::cmd("SET");
        set.arg(key).arg(1).arg("NX").arg("PX").arg(TYPING_EVERY_MS);
        let first: Option<String> = set.query_async(&mut redis).await?;
        if first.is_none() {
            return Ok(());
        }
        let mut members = self.parts.store.members(conversation).await?;
        members.retain(|member| member != user);
        let frame = json!({
            "type": "typing", "conversation_id": conversation, "user": user, "expires_ms": TYPING_SHOWN_MS,
        });
        self.tell(&members, &frame).await
    }

    /// Let a socket hear of the presence of these users from now on, and of no others.
    pub(crate) fn watch(&self, user: &str, number: u64, users: &[String]) {
        let mut sockets = self.sockets();
        if let Some(socket) = sockets.by_user.get_mut(user).and_then(|own| own.get_mut(&number)) {
            socket.watches = users.iter().cloned().collect();
        }
    }

    /// Return those of these users who are online, without a look at who may know it.
    pub(crate) async fn online(&self, users: &[String]) -> anyhow::Result<Vec<String>> {
        if users.is_empty() {
            return Ok(Vec::new());
        }
        // One command for all of them.
        let mut get = redis::cmd("MGET");
        for user in users {
            get.arg(self.key("presence", user));
        }
        let found: Vec<Option<String>> = get.query_async(&mut self.parts.link.connection()).await?;
        let online = users.iter().zip(found).filter(|(_, found)| found.is_some());
        Ok(online.map(|(user, _)| user.clone()).collect())
    }

    /// Return what `viewer` may know about these users.
    pub(crate) async fn of(&self, viewer: &str, users: &[String]) -> anyhow::Result<Vec<Shown>> {
        let visible = self.parts.store.visible(viewer, users).await?;
        let names: Vec<String> = visible.iter().map(|seen| seen.user.clone()).collect();
        let online: HashSet<String> = self.online(&names).await?.into_iter().collect();
        let last_seen: HashMap<String, Option<DateTime<Utc>>> =
            visible.into_iter().map(|seen| (seen.user, seen.last_seen)).collect();
        let shown = |user: &String| match last_seen.get(user).copied() {
            _ if online.contains(user) => Shown { user: user.clone(), status: "online", last_seen: None },
            Some(last_seen) => Shown { user: user.clone(), status: "offline", last_seen },
            None => Shown { user: user.clone(), status: "unavailable", last_seen: None },
        };
        Ok(users.iter().map(shown).collect())
    }
}

impl Socket {
    fn send(&self, frame: &Arc<str>) {
        if self.frames.try_send(Arc::clone(frame)).is_err() {
            self.cut.cancel();
        }
    }
}

/// Make the frames that tell the senders of these messages that they were delivered to a user, each with its sender.
pub(crate) fn delivery_receipts(user: &str, messages: &[Message]) -> Vec<(String, Value)> {
    let mut groups: HashMap<(&str, &str), Vec<&str>> = HashMap::new();
    for message in messages.iter().filter(|message| message.sender != user) {
        groups.entry((&message.sender, &message.conversation_id)).or_default().push(&message.message_id);
    }
    let frame = |((sender, conversation), ids): ((&str, &str), Vec<&str>)| {
        let frame = json!({
            "type": "delivery_receipt", "conversation_id": conversation, "message_id": ids.last(),
            "message_ids": ids, "user": user, "delivered_at": Utc::now(),
        });
        (sender.to_owned(), frame)
    };
    groups.into_iter().map(frame).collect()
}

/// Make the frame of a message.
pub(crate) fn message_frame(message: &Message) -> Option<Arc<str>> {
    let mut frame = serde_json::to_value(message).ok()?;
    frame["type"] = "message".into();
    Some(frame.to_string().into())
}
