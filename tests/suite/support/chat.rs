//! The chat of `examples/chat` as tests use it: its servers as processes, its users as clients that keep to the
//! protocol, and a stub of the push service.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use reqwest::Method;
use serde_json::{Value, json};
use tickr::prelude::Registry;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::Message as Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::program::example;
use super::{DEADLINE, Runner, TestApp, bystander, eventually, http};

/// A database, a Redis and the built example. The tickr in the test executes nothing; it reads the tables.
pub(crate) struct World {
    pub(crate) tickr: TestApp,
    alone: bool,
    program: PathBuf,
    pub(crate) stub: Stub,
}

/// A running server of the chat.
pub(crate) struct Server {
    pub(crate) runner: Runner,
    /// Address of the chat.
    pub(crate) url: String,
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::around(TestApp::start_with(bystander, Registry::new()).await, false).await
    }

    /// Make a world on a MySQL and a Redis of its own, which the test may make fail.
    pub(crate) async fn alone() -> Self {
        Self::around(TestApp::start_alone_with(bystander, Registry::new()).await, true).await
    }

    async fn around(tickr: TestApp, alone: bool) -> Self {
        Self { tickr, alone, program: example("chat").await, stub: Stub::start().await }
    }

    /// Start a server with these settings, and wait until it listens.
    pub(crate) async fn server(&self, env: &[(&str, &str)]) -> Server {
        let stub = self.stub.url.clone();
        let mut all = vec![
            ("CHAT_ADDR", "127.0.0.1:0"),
            ("CHAT_PUSH_URL", stub.as_str()),
            ("TICKR_CALLBACK_ALLOW_PRIVATE", "true"),
            ("TICKR_WORKERS", "16"),
            ("TICKR_LOG", "warn,tickr=info,chat=info"),
        ];
        all.extend_from_slice(env);
        let runner = Runner::start_program(&self.tickr, &self.program, &all);
        let url = eventually("the chat listens", || async {
            let log = runner.log();
            let (_, rest) = log.split_once("the chat listens on ")?;
            let (url, _) = rest.split_once('\n')?;
            Some(url.to_owned())
        })
        .await;
        Server { runner, url }
    }

    /// Start a server with these settings, and wait until it ends. Return what it said.
    pub(crate) async fn refused(&self, env: &[(&str, &str)]) -> String {
        let mut runner = Runner::start_program(&self.tickr, &self.program, env);
        assert_eq!(runner.exit_code().await, Some(1), "{}", runner.log());
        runner.log()
    }

    /// Remove all that this world has in Redis, also from that of the chat. On servers of its own it is FLUSHALL; on those
    /// of the suite the keys of other tests stay. A Redis that is too busy to answer is asked again the next time.
    pub(crate) async fn forget(&self) {
        let mut redis = self.tickr.redis().await;
        if self.alone {
            let _ = redis::cmd("FLUSHALL").exec_async(&mut redis).await;
            return;
        }
        let script = redis::Script::new(
            "local keys = redis.call('KEYS', '*' .. ARGV[1] .. '*')
             for at = 1, #keys do redis.call('DEL', keys[at]) end
             return #keys",
        );
        let _: Result<i64, _> = script.arg(&self.tickr.config.redis_prefix).invoke_async(&mut redis).await;
    }

    /// Wait until the outbox is empty and every job has ended.
    pub(crate) async fn until_idle(&self) {
        self.tickr.until_count("SELECT COUNT(*) FROM tickr_outbox", 0).await;
        self.tickr.until_idle().await;
    }

    /// End the servers in order, check that each stops well, and that every promise of tickr was kept.
    pub(crate) async fn end(self, servers: impl IntoIterator<Item = Server>) {
        for mut server in servers {
            server.runner.signal("TERM");
            assert_eq!(server.runner.exit_code().await, Some(0), "{}", server.runner.log());
        }
        self.tickr.stop().await;
    }
}

impl Server {
    /// Call a route as a user. Return the status and the body.
    pub(crate) async fn ask(&self, user: &str, method: Method, path: &str, body: Value) -> (u16, Value) {
        ask(&self.url, user, method, path, body).await
    }

    /// Add users.
    pub(crate) async fn sign_in(&self, users: &[&str]) {
        for user in users {
            let (status, body) = self.ask(user, Method::POST, "/sign-in", json!({"name": user})).await;
            assert_eq!(status, 200, "{body}");
        }
    }

    /// Open the conversation of two users, who may be new. Return its id.
    pub(crate) async fn direct(&self, one: &str, two: &str) -> String {
        self.sign_in(&[one, two]).await;
        let (status, body) = self.ask(one, Method::POST, "/conversations", json!({"with": two})).await;
        assert_eq!(status, 201, "{body}");
        body["id"].as_str().unwrap().to_owned()
    }

    /// Make a group. Return its id.
    pub(crate) async fn group(&self, owner: &str, members: &[String], receipts: &str) -> String {
        self.sign_in(&[owner]).await;
        let body = json!({"name": "a group", "members": members, "receipts": receipts});
        let (status, body) = self.ask(owner, Method::POST, "/conversations", body).await;
        assert_eq!(status, 201, "{body}");
        body["id"].as_str().unwrap().to_owned()
    }

    /// Send a message by HTTP, and expect that it is stored.
    pub(crate) async fn post(&self, user: &str, conversation: &str, client_seq: i64, content: &str) -> Value {
        let body = json!({"message_id": Uuid::new_v4(), "client_seq": client_seq, "content": content});
        let (status, body) = self.send(user, conversation, &body).await;
        assert_eq!(status, 200, "{body}");
        body
    }

    /// Send a message by HTTP.
    pub(crate) async fn send(&self, user: &str, conversation: &str, message: &Value) -> (u16, Value) {
        let path = format!("/conversations/{conversation}/messages");
        self.ask(user, Method::POST, &path, message.clone()).await
    }

    /// Read a conversation with its ticks.
    pub(crate) async fn history(&self, user: &str, conversation: &str) -> Vec<Value> {
        let (status, body) =
            self.ask(user, Method::GET, &format!("/conversations/{conversation}/messages"), Value::Null).await;
        assert_eq!(status, 200, "{body}");
        body["messages"].as_array().unwrap().clone()
    }
}

/// Call a route of the chat.
pub(crate) async fn ask(base: &str, user: &str, method: Method, path: &str, body: Value) -> (u16, Value) {
    let mut request = http().request(method, format!("{base}{path}")).header("chat-user", user);
    if !body.is_null() {
        request = request.json(&body);
    }
    let answer = request.send().await.unwrap();
    let status = answer.status().as_u16();
    let text = answer.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

/// What a client has seen.
#[derive(Default)]
pub(crate) struct Seen {
    /// Messages of others, each once, in the order of their first arrival.
    pub(crate) messages: Vec<Value>,
    /// Moments of the first arrival, by message.
    pub(crate) arrived: HashMap<String, Instant>,
    /// Messages that arrived again and were dropped.
    pub(crate) repeated: usize,
    /// Number of messages in each batch of the inbox.
    pub(crate) batches: Vec<usize>,
    /// Messages of this user that a device of the recipient has confirmed.
    pub(crate) delivered: HashSet<String>,
    pub(crate) reads: Vec<Value>,
    pub(crate) typing: Vec<Value>,
    /// The newest presence of each user.
    pub(crate) presence: HashMap<String, Value>,
    pub(crate) news: Vec<Value>,
    pub(crate) nacks: Vec<Value>,
    pub(crate) errors: Vec<Value>,
    /// Moments at which this user's messages were sent first.
    pub(crate) sent: HashMap<String, Instant>,
    pub(crate) acked: HashMap<String, Value>,
    /// Messages of this user without an acknowledgement, oldest first.
    unacked: Vec<Value>,
    /// Codes with which servers closed the socket. 1006 stands for a broken connection.
    pub(crate) closes: Vec<u16>,
    pub(crate) hellos: usize,
    cursor: Option<i64>,
    newest: i64,
    syncing: bool,
}

/// The behaviour of a client.
#[derive(Clone, Copy)]
pub(crate) struct Manner {
    /// Connect again, to the next server, when a connection ends.
    pub(crate) comes_back: bool,
    /// Ask for the inbox after each hello.
    pub(crate) syncs: bool,
    /// Say how far the inbox was received.
    pub(crate) confirms: bool,
}

impl Default for Manner {
    fn default() -> Self {
        Self { comes_back: true, syncs: true, confirms: true }
    }
}

/// A client of a user: it confirms what it gets, keeps the ids that it knows, fetches what is missing, and sends its
/// messages until they are acknowledged. Dropping it closes the socket.
pub(crate) struct Person {
    pub(crate) user: String,
    seen: Arc<Mutex<Seen>>,
    orders: mpsc::UnboundedSender<Value>,
    stop: CancellationToken,
    task: Option<JoinHandle<()>>,
}

impl Person {
    /// Connect with the device `phone`, and wait for the hello.
    pub(crate) async fn join(user: &str, servers: &[&Server]) -> Self {
        Self::join_as(user, "phone", servers, Manner::default()).await
    }

    pub(crate) async fn join_as(user: &str, device: &str, servers: &[&Server], manner: Manner) -> Self {
        let urls = servers.iter().map(|server| socket_url(&server.url, user, device)).collect();
        let (orders, taken) = mpsc::unbounded_channel();
        let (seen, stop) = (Arc::<Mutex<Seen>>::default(), CancellationToken::new());
        let client = Client { user: user.to_owned(), urls, seen: Arc::clone(&seen), stop: stop.clone(), manner };
        let task = Some(tokio::spawn(client.run(taken)));
        let person = Self { user: user.to_owned(), seen, orders, stop, task };
        person.until("the server says hello", |seen| seen.hellos > 0).await;
        person
    }

    /// Look at what the client has seen. Its task waits meanwhile.
    pub(crate) fn look<T>(&self, of: impl FnOnce(&mut Seen) -> T) -> T {
        of(&mut self.seen.lock().unwrap())
    }

    /// Wait until what the client has seen satisfies a condition.
    pub(crate) async fn until(&self, what: &str, is: impl Fn(&Seen) -> bool) {
        let (user, deadline) = (&self.user, Instant::now() + 2 * DEADLINE);
        while !self.look(|seen| is(seen)) {
            if Instant::now() > deadline {
                let known = self.look(|seen| {
                    let (got, acked, left) = (seen.messages.len(), seen.acked.len(), seen.unacked.len());
                    format!(
                        "{got} messages, {acked} acked, {left} unacked, {} delivered, closes {:?}, nacks {:?}, errors {:?}",
                        seen.delivered.len(),
                        seen.closes,
                        seen.nacks,
                        seen.errors
                    )
                });
                panic!("{user} gave up waiting until {what}: {known}");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Send a frame.
    pub(crate) fn say(&self, frame: Value) {
        self.orders.send(frame).unwrap();
    }

    /// Send a message, and again after each new connection until it is acknowledged. Return its id.
    pub(crate) fn send(&self, conversation: &str, client_seq: i64, content: &str) -> String {
        let id = Uuid::new_v4().to_string();
        self.say(json!({
            "type": "send", "conversation_id": conversation, "message_id": id, "client_seq": client_seq,
            "content": content,
        }));
        id
    }

    /// Return the contents of the messages of a conversation, in the order of their arrival.
    pub(crate) fn contents(&self, conversation: &str) -> Vec<String> {
        self.look(|seen| {
            let own = seen.messages.iter().filter(|message| message["conversation_id"] == conversation);
            own.map(|message| message["content"].as_str().unwrap().to_owned()).collect()
        })
    }

    /// Close the socket, and wait until the server knows.
    pub(crate) async fn leave(mut self) {
        self.stop.cancel();
        self.task.take().unwrap().await.unwrap();
    }
}

impl Drop for Person {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn socket_url(base: &str, user: &str, device: &str) -> String {
    format!("{}/ws?user={user}&device={device}", base.replacen("http", "ws", 1))
}

/// The task of a client.
struct Client {
    user: String,
    urls: Vec<String>,
    seen: Arc<Mutex<Seen>>,
    stop: CancellationToken,
    manner: Manner,
}

impl Client {
    async fn run(self, mut orders: mpsc::UnboundedReceiver<Value>) {
        for url in self.urls.iter().cycle() {
            if let Some(Ok((socket, _))) = self.stop.run_until_cancelled(tokio_tungstenite::connect_async(url)).await {
                self.talk(socket, &mut orders).await;
                if !self.manner.comes_back {
                    return;
                }
            }
            if self.stop.run_until_cancelled(tokio::time::sleep(Duration::from_millis(50))).await.is_none() {
                return;
            }
        }
    }

    async fn talk<S>(&self, socket: tokio_tungstenite::WebSocketStream<S>, orders: &mut mpsc::UnboundedReceiver<Value>)
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    {
        let (mut to, mut from) = socket.split();
        loop {
            let mut said = Vec::new();
            tokio::select! {
                // What the test said is sent before the end.
                biased;
                Some(order) = orders.recv() => {
                    let mut seen = self.seen.lock().unwrap();
                    if order["type"] == "send" {
                        let id = order["message_id"].as_str().unwrap().to_owned();
                        seen.sent.insert(id, Instant::now());
                        seen.unacked.push(order.clone());
                    }
                    said.push(order);
                }
                () = self.stop.cancelled() => {
                    let _ = to.send(Frame::Close(None)).await;
                    while from.next().await.is_some_and(|frame| frame.is_ok()) {}
                    return;
                }
                frame = from.next() => match frame {
                    Some(Ok(Frame::Text(text))) => {
                        let frame = serde_json::from_str(&text).unwrap();
                        said = self.hear(&mut self.seen.lock().unwrap(), frame);
                    }
                    Some(Ok(Frame::Close(frame))) => {
                        let code = frame.map_or(1_005, |frame| u16::from(frame.code));
                        self.seen.lock().unwrap().closes.push(code);
                        return;
                    }
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => {
                        self.seen.lock().unwrap().closes.push(CloseCode::Abnormal.into());
                        return;
                    }
                },
            }
            for frame in said {
                if to.send(Frame::Text(frame.to_string().into())).await.is_err() {
                    self.seen.lock().unwrap().closes.push(CloseCode::Abnormal.into());
                    return;
                }
            }
        }
    }

    /// Take a frame of the server. Return the frames to answer with.
    fn hear(&self, seen: &mut Seen, frame: Value) -> Vec<Value> {
        let text = |name: &str| frame[name].as_str().unwrap_or_default().to_owned();
        match frame["type"].as_str().unwrap_or_default() {
            "hello" => {
                seen.hellos += 1;
                seen.syncing = false;
                let mut said = self.sync(seen);
                said.extend(seen.unacked.iter().cloned());
                said
            }
            "resync" => self.sync(seen),
            "message" => {
                let mut said = Vec::new();
                if text("sender") != self.user {
                    said.push(json!({"type": "ack", "message_id": frame["message_id"]}));
                }
                if let Some(place) = frame["place"].as_i64() {
                    said.extend(self.arrived(seen, place));
                }
                self.keep(seen, &frame);
                said
            }
            "batch" => {
                let messages = frame["messages"].as_array().unwrap();
                messages.iter().for_each(|message| self.keep(seen, message));
                let place = frame["place"].as_i64().unwrap();
                seen.cursor = Some(seen.cursor.unwrap_or(0).max(place));
                seen.syncing = false;
                let mut said = Vec::new();
                if !messages.is_empty() {
                    seen.batches.push(messages.len());
                    if self.manner.confirms {
                        said.push(json!({"type": "synced", "place": seen.cursor}));
                    }
                }
                if frame["more"] == true || seen.newest > seen.cursor.unwrap_or(0) {
                    said.extend(self.sync(seen));
                }
                said
            }
            "ack" => {
                let id = text("message_id");
                seen.unacked.retain(|order| order["message_id"] != frame["message_id"]);
                let place = frame["place"].as_i64().unwrap();
                seen.acked.insert(id, frame);
                self.arrived(seen, place)
            }
            "delivery_receipt" => {
                let ids = frame["message_ids"].as_array().unwrap();
                seen.delivered.extend(ids.iter().map(|id| id.as_str().unwrap().to_owned()));
                Vec::new()
            }
            "presence" => {
                for one in frame["users"].as_array().unwrap() {
                    seen.presence.insert(one["user"].as_str().unwrap().to_owned(), one.clone());
                }
                Vec::new()
            }
            "nack" => {
                seen.unacked.retain(|order| order["message_id"] != frame["message_id"]);
                seen.nacks.push(frame);
                Vec::new()
            }
            "read_receipt" => {
                seen.reads.push(frame);
                Vec::new()
            }
            "typing" => {
                seen.typing.push(frame);
                Vec::new()
            }
            "news" => {
                seen.news.push(frame);
                Vec::new()
            }
            "error" => {
                seen.errors.push(frame);
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    fn sync(&self, seen: &mut Seen) -> Vec<Value> {
        if seen.syncing || !self.manner.syncs {
            return Vec::new();
        }
        seen.syncing = true;
        vec![json!({"type": "sync", "after": seen.cursor})]
    }

    /// Move the cursor, or fetch what is missing behind it.
    fn arrived(&self, seen: &mut Seen, place: i64) -> Vec<Value> {
        seen.newest = seen.newest.max(place);
        match seen.cursor {
            Some(cursor) if place == cursor + 1 => {
                seen.cursor = Some(place);
                Vec::new()
            }
            Some(cursor) if place <= cursor => Vec::new(),
            _ => self.sync(seen),
        }
    }

    fn keep(&self, seen: &mut Seen, message: &Value) {
        if message["sender"] == self.user.as_str() {
            return;
        }
        let id = message["message_id"].as_str().unwrap().to_owned();
        match seen.arrived.entry(id) {
            Entry::Occupied(_) => seen.repeated += 1,
            Entry::Vacant(first) => {
                first.insert(Instant::now());
                seen.messages.push(message.clone());
            }
        }
    }
}

/// A stub of the push service.
pub(crate) struct Stub {
    pub(crate) url: String,
    calls: Arc<Mutex<Vec<Value>>>,
    task: JoinHandle<()>,
}

impl Stub {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/push", listener.local_addr().unwrap());
        let calls = Arc::<Mutex<Vec<Value>>>::default();
        let kept = Arc::clone(&calls);
        let take = move |body: axum::Json<Value>| {
            kept.lock().unwrap().push(body.0);
            async {}
        };
        let app = axum::Router::new().fallback(take);
        let task = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { url, calls, task }
    }

    /// Return the bodies of all calls so far.
    pub(crate) fn calls(&self) -> Vec<Value> {
        self.calls.lock().unwrap().clone()
    }

    /// Wait for this number of calls.
    pub(crate) async fn until(&self, count: usize) {
        eventually(&format!("{count} pushes"), || async { (self.calls().len() >= count).then_some(()) }).await;
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.task.abort();
    }
}
