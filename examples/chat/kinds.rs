//! The kinds of the chat, beside those that ship with tickr.
//!
//! - `chat.fanout` makes one delivery for each member of a group. Jobs of one conversation run one at a time.
//! - `chat.deliver` puts a message into the inbox of its recipient, and pushes it to the recipient's sockets. Jobs of
//!   one recipient run one at a time.
//! - `http`, which ships with tickr, calls the push service for a recipient who is offline.
//!
//! A recipient who is blocked, deleted or unknown is no matter of time: the job ends at once as a dead letter. A chat
//! server that does not answer may come back: the job is retried after 1, 2 and 4 seconds. Without Redis nothing is
//! known about servers, and without MySQL there is no inbox: the job snoozes, see [`Outage`].

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::value::{RawValue, to_raw_value};
use tickr::prelude::*;
use tickr::{KindDefaults, OnFailure};

use super::presence::{Presence, Reached};
use super::store::{Message, Placed, Store, is_outage};

/// The first pause while Redis or MySQL is out, and the longest one.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Sizes of groups at which the fan-out changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Groups with as many members have inbox rows, one for each member: fan-out on write.
    pub(crate) write: usize,
    /// Larger ones up to this size are pushed to members who are online. Still larger ones are read by their members:
    /// sockets get one word that there is something new.
    pub(crate) push: usize,
}

/// Deliver a message of a group to its members.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FanOut {
    pub(crate) conversation: String,
    pub(crate) seq: i64,
}

impl Kind for FanOut {
    const NAME: &'static str = "chat.fanout";
}

/// Deliver a message to one recipient.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Deliver {
    pub(crate) conversation: String,
    pub(crate) seq: i64,
    pub(crate) user: String,
    /// True if the inbox keeps the message.
    pub(crate) stored: bool,
}

impl Kind for Deliver {
    const NAME: &'static str = "chat.deliver";
}

/// A call to the push service, as a job of the kind `http`. Its schema is that of tickr; this type names what the chat
/// uses of it.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct Push {
    url: String,
    #[schemars(with = "serde_json::Value")]
    body: Box<RawValue>,
    timeout_ms: u64,
}

impl Kind for Push {
    const NAME: &'static str = "http";
}

/// Since when Redis or MySQL is out, as this process sees it. Jobs snooze meanwhile, which uses no attempt.
///
/// A job may snooze a hundred times. So the pauses grow with the outage, and last for more than an hour.
#[derive(Clone)]
pub(crate) struct Outage {
    server: &'static str,
    since: Arc<Mutex<Option<Instant>>>,
}

impl Outage {
    pub(crate) fn of(server: &'static str) -> Self {
        Self { server, since: Arc::default() }
    }

    /// Take the outcome of statements. If MySQL does not answer or takes no work, that becomes a pause. Other errors use
    /// an attempt.
    fn judge_sql<T>(&self, done: Result<T, sqlx::Error>) -> Result<T, Failure> {
        match done {
            Err(error) if !is_outage(&error) => Err(error.into()),
            done => self.judge(done.map_err(anyhow::Error::from)),
        }
    }

    /// Take the outcome of a call. A failure becomes a pause.
    fn judge<T>(&self, called: anyhow::Result<T>) -> Result<T, Failure> {
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        match called {
            Ok(value) => {
                *since = None;
                Ok(value)
            }
            Err(error) => {
                let lasts = since.get_or_insert_with(Instant::now).elapsed();
                let pause = (lasts / 4).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
                Err(Failure::snooze(pause, format!("{} does not answer: {error:#}", self.server)))
            }
        }
    }
}

/// Return the order key of the deliveries to a user.
pub(crate) fn user_key(user: &str) -> String {
    format!("user:{user}")
}

/// Both handlers, with what they need.
#[derive(Clone)]
pub(crate) struct Handlers {
    pub(crate) store: Store,
    pub(crate) presence: Presence,
    pub(crate) sizes: Sizes,
    /// Stub of APNs or FCM. Without one, no push is sent.
    pub(crate) push_url: Option<String>,
    pub(crate) redis: Outage,
    pub(crate) mysql: Outage,
}

impl Handlers {
    pub(crate) fn register(self, kinds: &mut Registry) {
        kinds.register_handler(FanOuts(self.clone())).register_handler(Deliveries(self));
    }
}

struct FanOuts(Handlers);

impl Handler for FanOuts {
    type Payload = FanOut;

    async fn run(&self, job: FanOut, _ctx: Context) -> Outcome {
        let Handlers { store, presence, sizes, redis, mysql, .. } = &self.0;
        let FanOut { conversation, seq } = job;
        let Some((sender, left)) = mysql.judge_sql(store.sender(&conversation, seq).await)? else {
            return Err(Failure::reject("there is no such message"));
        };
        let mut members = mysql.judge_sql(store.members(&conversation).await)?;
        let (size, stored) = (members.len(), members.len() <= sizes.write);
        members.retain(|member| *member != sender);
        if size > sizes.push {
            let news = json!({"type": "news", "conversation_id": conversation, "seq": seq});
            redis.judge(presence.tell(&members, &news).await)?;
            return Output::json(&json!({"told": members.len()}));
        }
        if !stored {
            members = redis.judge(presence.online(&members).await)?;
        }
        let delivery = |user: String| {
            let key = user_key(&user);
            let job = Deliver { conversation: conversation.clone(), seq, user, stored };
            Ok(FollowUp::of(&job)?.order_key(key).on_failure(OnFailure::Skip).expires_in(left))
        };
        let reached = members.len();
        let deliveries = members.into_iter().map(delivery).collect::<Result<Vec<_>, Failure>>()?;
        // They are committed with this success, so a runner that dies here loses none and doubles none.
        Output::json(&json!({"deliveries": reached}))?.then_all(deliveries)
    }
}

struct Deliveries(Handlers);

impl Handler for Deliveries {
    type Payload = Deliver;

    fn defaults(&self) -> KindDefaults {
        // One attempt and three retries. The delays are those of tickr: 1, 2 and 4 s, each ± 10 %.
        KindDefaults { max_attempts: 4, timeout: Duration::from_secs(15), ..KindDefaults::default() }
    }

    async fn run(&self, job: Deliver, _ctx: Context) -> Outcome {
        let Handlers { store, presence, redis, mysql, .. } = &self.0;
        let messages = match mysql.judge_sql(store.place(&job).await)? {
            Placed::Refused(why) => return Err(Failure::reject(why)),
            Placed::Push(messages) if messages.is_empty() => return Output::json(&"confirmed before"),
            Placed::Push(messages) => messages,
        };
        match redis.judge(presence.push(&job.user, &messages).await)? {
            Reached::Confirmed => {
                // The sender is told first: an attempt that ends between the two is repeated, and tells it again. The
                // other way round the repetition would find that there is nothing left to do.
                redis.judge(presence.tell_delivered(&job.user, &messages).await)?;
                mysql.judge_sql(store.confirm(&job.user, &messages).await)?;
                Output::json(&"pushed")
            }
            Reached::Offline => self.offline(&job, &messages),
            Reached::Silent => Err(Failure::retry("the chat server of the recipient does not answer")),
        }
    }
}

impl Deliveries {
    /// The inbox keeps the message, or the group does. Let the push service wake the phone.
    fn offline(&self, job: &Deliver, messages: &[Message]) -> Outcome {
        let done = Output::json(&"offline")?;
        // The others that came along have jobs of their own, and a push each.
        let own = messages.iter().find(|message| message.seq == job.seq);
        let (Some(url), Some(own)) = (&self.0.push_url, own) else { return Ok(done) };
        // The push says who wrote and not what: it travels through the servers of others.
        let body = to_raw_value(&json!({"to": job.user, "from": own.sender, "message_id": own.message_id}))?;
        done.then(&Push { url: url.clone(), body, timeout_ms: 5_000 })
    }
}
