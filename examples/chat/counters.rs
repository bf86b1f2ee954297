//! Numbers from Redis, rows that may lag: applications have chats, chats have messages, and each is numbered from 1.
//!
//! The document behind this (`docs/CHAT.md`, *Counters*) takes the next number from a counter in Redis, answers it, and
//! lets a worker write the row up to an hour later. A server that meets a chat for the first time reads the greatest
//! number from MySQL and offers it to Redis by SETNX, so that two such servers do not count twice. That leaves three
//! holes:
//!
//! 1. A server that has met the chat before skips the SETNX. If Redis alone comes back empty, INCR begins at 1, and
//!    numbers repeat. Here no server remembers anything: one script counts only if the counter exists
//!    ([`Counters::draw`]).
//! 2. Rows lag, so the greatest number of the rows is too low while jobs wait to write more. Here the answer is the
//!    commit of the job, not of the row, and the counter begins at the greatest number of both: of the rows and of the
//!    unfinished jobs ([`Counters::floor`]). The job has the number as its unique key. If another request got the same
//!    number all the same, because Redis was emptied between its INCR and its job, the later one draws again.
//! 3. The counter is there and too low: Redis came back with an old copy, or a replica that lagged took over. The
//!    unique key refuses the numbers of the last ten minutes, and the rows refuse older ones. Either way the counter is
//!    raised to the floor before the next draw ([`Counters::raise`]).
//!
//! In this runner the job is a commit in MySQL already. So `UPDATE counter_chats SET next = LAST_INSERT_ID(next + 1)`
//! in the transaction of the job, as `store.rs` does for the places of an inbox, would be simpler and exact: one row,
//! no script, no floor. The counter in Redis is here because the document asks for it, and because a Redis that may
//! vanish at any moment is a good exercise.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use rand::rngs::StdRng;
use rand::{RngCore as _, SeedableRng as _};
use serde_json::Value;
use sqlx::{MySqlPool, Row as _};
use tickr::prelude::*;
use tickr::{Conflict, OnConflict, UniqueUntil};

use super::http::{Body, Chat, In};
use super::link::Link;
use super::store::{Refusal, can_be_id};

/// Draws of a number before a request gives up.
const DRAWS: usize = 16;
/// Longest time from the draw of a number to the commit of its job. It is far below [`KEY_KEPT`].
const TO_COMMIT: Duration = Duration::from_secs(10);
/// Time for which the unique key of a job keeps its number taken, counted from its acceptance, and in any case until
/// the job has ended. After that its row does.
const KEY_KEPT: Duration = Duration::from_secs(600);
/// Seconds for which Redis keeps a counter that is not used, and the word that a chat exists. MySQL has both, so the
/// memory of Redis is that of the chats of a day.
const KEPT_S: u64 = 86_400;

/// Write the row of a chat, or of a message.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Persist {
    token: String,
    chat: i64,
    /// A message of the chat. Without one, the chat itself.
    #[serde(default)]
    message: Option<NumberedMessage>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NumberedMessage {
    number: i64,
    body: String,
    /// Milliseconds since 1970.
    asked_at_ms: i64,
}

impl Kind for Persist {
    const NAME: &'static str = "chat.persist";
}

/// Bring the counts of an application up to date.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Counts {
    token: String,
}

impl Kind for Counts {
    const NAME: &'static str = "chat.counts";
}

impl Counts {
    fn tag(token: &str) -> String {
        format!("counts:{token}")
    }
}

/// The parent of a number, in Redis and in the tags of jobs.
enum Parent<'a> {
    Application(&'a str),
    Chat(&'a str, i64),
}

impl Parent<'_> {
    fn tag(&self) -> String {
        match self {
            Self::Application(token) => format!("chats:{token}"),
            Self::Chat(token, chat) => format!("messages:{token}:{chat}"),
        }
    }
}

/// The numbers of applications, chats and messages.
#[derive(Clone)]
pub(crate) struct Counters {
    pub(crate) pool: MySqlPool,
    pub(crate) link: Link,
    pub(crate) prefix: String,
    pub(crate) client: Client,
    /// Draws the tokens. Tests give two servers the same seed, so that their tokens collide.
    pub(crate) tokens: Arc<Mutex<StdRng>>,
}

/// Make the source of tokens, from a seed if there is one.
pub(crate) fn tokens(seed: Option<u64>) -> Arc<Mutex<StdRng>> {
    Arc::new(Mutex::new(seed.map_or_else(StdRng::from_os_rng, StdRng::seed_from_u64)))
}

impl Counters {
    /// Add an application. A token that is taken is drawn again.
    async fn add_application(&self, name: &str) -> Result<String, Refusal> {
        for _ in 0..DRAWS {
            let mut bytes = [0; 16];
            self.tokens.lock().unwrap_or_else(PoisonError::into_inner).fill_bytes(&mut bytes);
            let token = uuid::Builder::from_random_bytes(bytes).into_uuid().simple().to_string();
            let sql = "INSERT INTO counter_applications (token, name) VALUES (?, ?)";
            match sqlx::query(sql).bind(&token).bind(name).execute(&self.pool).await {
                Ok(_) => return Ok(token),
                Err(sqlx::Error::Database(error)) if error.is_unique_violation() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Refusal::Unavailable(anyhow::anyhow!("{DRAWS} tokens were taken")))
    }

    /// Add a chat. It has its number when this returns, and its row soon.
    async fn add_chat(&self, token: &str) -> Result<i64, Refusal> {
        if !self.is_application(token).await? {
            return Err(Refusal::Missing("there is no such application"));
        }
        let job = |chat| Persist { token: token.to_owned(), chat, message: None };
        let number = self.numbered(&Parent::Application(token), job).await?;
        // A copy for later questions. Without it MySQL answers them.
        self.remember_chat(token, number).await;
        Ok(number)
    }

    /// Add a message to a chat.
    async fn add_message(&self, token: &str, chat: i64, body: &str) -> Result<i64, Refusal> {
        if !self.has_chat(token, chat).await? {
            return Err(Refusal::Missing("there is no such chat"));
        }
        let asked_at_ms = chrono::Utc::now().timestamp_millis();
        let job = |number| {
            let message = NumberedMessage { number, body: body.to_owned(), asked_at_ms };
            Persist { token: token.to_owned(), chat, message: Some(message) }
        };
        self.numbered(&Parent::Chat(token, chat), job).await
    }

    /// Draw a number and commit the job that writes its row.
    async fn numbered(&self, parent: &Parent<'_>, job: impl Fn(i64) -> Persist) -> Result<i64, Refusal> {
        let tag = parent.tag();
        for _ in 0..DRAWS {
            let number = self.draw(parent).await?;
            // The row is written before its job frees the key.
            if self.is_written(parent, number).await? {
                self.raise(parent).await?;
                continue;
            }
            // The newest chats are found by this tag when Redis has forgotten them.
            let own_tag = match parent {
                Parent::Application(token) => format!("chat:{token}:{number}"),
                Parent::Chat(token, _) => format!("application:{token}"),
            };
            let enqueue = self.client.enqueue(&job(number)).unique_key(format!("{tag}/{number}"));
            let enqueue = enqueue.unique_for(KEY_KEPT).on_conflict(OnConflict::Reject).tag(&tag).tag(own_tag);
            // The number was answered, so its row must come: only a MySQL that is out fails an attempt.
            let enqueue = enqueue.max_attempts(100);
            match tokio::time::timeout(TO_COMMIT, enqueue).await {
                Ok(Ok(_)) => return Ok(number),
                Ok(Err(tickr::Error::Conflict(Conflict::UniqueKey { .. }))) => self.raise(parent).await?,
                Ok(Err(error)) => return Err(error.into()),
                Err(_) => return Err(Refusal::Unavailable(anyhow::anyhow!("MySQL takes too long"))),
            }
        }
        Err(Refusal::Unavailable(anyhow::anyhow!("{DRAWS} numbers were taken")))
    }

    /// Count one further. A counter that Redis does not have begins at what MySQL knows.
    async fn draw(&self, parent: &Parent<'_>) -> Result<i64, Refusal> {
        let script = redis::Script::new(
            "if redis.call('EXISTS', KEYS[1]) == 0 then return false end
             redis.call('EXPIRE', KEYS[1], ARGV[1])
             return redis.call('INCR', KEYS[1])",
        );
        let key = self.counter_key(parent);
        let mut redis = self.link.connection();
        for _ in 0..DRAWS {
            if let Some(number) = script.key(&key).arg(KEPT_S).invoke_async::<Option<i64>>(&mut redis).await? {
                return Ok(number);
            }
            // Two servers may come here at once. The first SET counts; the other one does nothing.
            let floor = self.floor(parent).await?;
            let mut set = redis::cmd("SET");
            let set = set.arg(&key).arg(floor).arg("NX").arg("EX").arg(KEPT_S);
            let _: Option<String> = set.query_async(&mut redis).await?;
        }
        Err(Refusal::Unavailable(anyhow::anyhow!("Redis forgets its counters too fast")))
    }

    /// Raise a counter that gave a number which is taken. More of them may follow, so a draw for each would take long.
    async fn raise(&self, parent: &Parent<'_>) -> Result<(), Refusal> {
        let script = redis::Script::new(
            "local now = tonumber(redis.call('GET', KEYS[1]))
             if now and now < tonumber(ARGV[1]) then redis.call('SET', KEYS[1], ARGV[1], 'KEEPTTL') end",
        );
        let floor = self.floor(parent).await?;
        let key = self.counter_key(parent);
        script.key(key).arg(floor).invoke_async::<()>(&mut self.link.connection()).await?;
        Ok(())
    }

    /// Return whether the row of a number is written.
    async fn is_written(&self, parent: &Parent<'_>, number: i64) -> Result<bool, sqlx::Error> {
        let find = match parent {
            Parent::Application(token) => {
                let sql = "SELECT 1 FROM counter_chats WHERE application_token = ? AND number = ?";
                sqlx::query(sql).bind(*token)
            }
            Parent::Chat(token, chat) => {
                let sql = "SELECT 1 FROM counter_messages WHERE application_token = ? AND chat = ? AND number = ?";
                sqlx::query(sql).bind(*token).bind(*chat)
            }
        };
        Ok(find.bind(number).fetch_optional(&self.pool).await?.is_some())
    }

    /// Return the greatest number that was answered: of the jobs that still have to write their rows, and of the rows.
    /// The jobs are read first, because a job ends after its row is written.
    async fn floor(&self, parent: &Parent<'_>) -> Result<i64, sqlx::Error> {
        let path = match parent {
            Parent::Application(_) => "$.chat",
            Parent::Chat(..) => "$.message.number",
        };
        // The payloads of unfinished jobs with this tag. They are few unless the rows lag.
        let sql = "SELECT COALESCE(MAX(CAST(JSON_EXTRACT(j.payload, ?) AS SIGNED)), 0) AS newest \
                   FROM job_tags t JOIN owed o ON o.id = t.job_id JOIN jobs j ON j.id = t.job_id WHERE t.tag = ?";
        let waiting = sqlx::query(sql).bind(path).bind(parent.tag()).fetch_one(&self.pool).await?;
        let rows = match parent {
            Parent::Application(token) => {
                let sql = "SELECT COALESCE(MAX(number), 0) AS newest FROM counter_chats WHERE application_token = ?";
                sqlx::query(sql).bind(*token)
            }
            Parent::Chat(token, chat) => {
                let sql = "SELECT COALESCE(MAX(number), 0) AS newest FROM counter_messages \
                           WHERE application_token = ? AND chat = ?";
                sqlx::query(sql).bind(*token).bind(*chat)
            }
        };
        let written = rows.fetch_one(&self.pool).await?;
        Ok(waiting.try_get::<i64, _>("newest")?.max(written.try_get("newest")?))
    }

    fn counter_key(&self, parent: &Parent<'_>) -> String {
        format!("{}:counter:{}", self.prefix, parent.tag())
    }

    fn chat_key(&self, token: &str, chat: i64) -> String {
        format!("{}:chat:{token}:{chat}", self.prefix)
    }

    async fn is_application(&self, token: &str) -> Result<bool, sqlx::Error> {
        if !can_be_id(token) {
            return Ok(false);
        }
        let sql = "SELECT 1 FROM counter_applications WHERE token = ?";
        Ok(sqlx::query(sql).bind(token).fetch_optional(&self.pool).await?.is_some())
    }

    /// Return whether a chat was answered: Redis may know it, else its row or the job that will write it. A "no" is not
    /// kept, because the chat may come.
    async fn has_chat(&self, token: &str, chat: i64) -> Result<bool, Refusal> {
        if !can_be_id(token) {
            return Ok(false);
        }
        let key = self.chat_key(token, chat);
        let known: Result<i64, _> = redis::cmd("EXISTS").arg(&key).query_async(&mut self.link.connection()).await;
        if known.unwrap_or(0) == 1 {
            return Ok(true);
        }
        // The job first: it ends after its row is written.
        let sql = "SELECT 1 FROM job_tags t JOIN owed o ON o.id = t.job_id WHERE t.tag = ? LIMIT 1";
        let waits = sqlx::query(sql).bind(format!("chat:{token}:{chat}")).fetch_optional(&self.pool).await?;
        let sql = "SELECT 1 FROM counter_chats WHERE application_token = ? AND number = ?";
        let written = sqlx::query(sql).bind(token).bind(chat).fetch_optional(&self.pool).await?;
        if waits.is_none() && written.is_none() {
            return Ok(false);
        }
        self.remember_chat(token, chat).await;
        Ok(true)
    }

    async fn remember_chat(&self, token: &str, chat: i64) {
        let mut set = redis::cmd("SET");
        let set = set.arg(self.chat_key(token, chat)).arg(1).arg("EX").arg(KEPT_S);
        if let Err(error) = set.query_async::<()>(&mut self.link.connection()).await {
            tracing::debug!("Redis does not take a chat: {error}");
        }
    }
}

/// The handlers of both kinds. They start with the runner, before it has a client.
#[derive(Clone)]
pub(crate) struct Writers {
    pub(crate) pool: MySqlPool,
    /// Time from the first change of a count to its update.
    pub(crate) interval: Duration,
}

impl Writers {
    pub(crate) fn register(self, kinds: &mut Registry) {
        let counts = self.clone();
        kinds.register(move |job: Persist, ctx: Context| {
            let writers = self.clone();
            async move { writers.persist(job, ctx).await }
        });
        kinds.register(move |job: Counts, _: Context| {
            let writers = counts.clone();
            async move { writers.count(job).await }
        });
    }

    /// Write a row. An attempt that runs again finds its own row, and changes nothing.
    async fn persist(&self, job: Persist, ctx: Context) -> Outcome {
        let Persist { token, chat, message } = job;
        let id = ctx.job_id().to_string();
        let (insert, find) = match &message {
            None => {
                let insert = "INSERT IGNORE INTO counter_chats (application_token, number, job) VALUES (?, ?, ?)";
                let find = "SELECT job FROM counter_chats WHERE application_token = ? AND number = ?";
                (sqlx::query(insert).bind(&token).bind(chat).bind(&id), sqlx::query(find).bind(&token).bind(chat))
            }
            Some(message) => {
                let insert = "INSERT IGNORE INTO counter_messages \
                              (application_token, chat, number, job, body, asked_at, written_at) \
                              VALUES (?, ?, ?, ?, ?, ?, UTC_TIMESTAMP(3))";
                let find = "SELECT job FROM counter_messages WHERE application_token = ? AND chat = ? AND number = ?";
                let asked_at = chrono::DateTime::from_timestamp_millis(message.asked_at_ms).unwrap_or_default();
                let insert = sqlx::query(insert).bind(&token).bind(chat).bind(message.number).bind(&id);
                (
                    insert.bind(&message.body).bind(asked_at.naive_utc()),
                    sqlx::query(find).bind(&token).bind(chat).bind(message.number),
                )
            }
        };
        if insert.execute(&self.pool).await?.rows_affected() == 0 {
            let holder: String = find.fetch_one(&self.pool).await?.try_get("job")?;
            if holder != id {
                return Err(Failure::reject("another job has written this number"));
            }
        }
        // A job that waits will count this row. One that runs may have counted before it. The look locks nothing; the
        // enqueue locks the unique key, for which the other workers of the application would wait.
        if !self.will_count(&token).await? {
            let counts = ctx.client().enqueue(&Counts { token: token.clone() }).unique_key(&token);
            counts.unique_until(UniqueUntil::Start).delay(self.interval).tag(Counts::tag(&token)).await?;
        }
        Ok(().into())
    }

    /// Return whether a job waits that will count the rows of the application.
    async fn will_count(&self, token: &str) -> Result<bool, sqlx::Error> {
        let sql = "SELECT 1 FROM job_tags t JOIN owed o ON o.id = t.job_id \
                   WHERE t.tag = ? AND o.state IN ('waiting', 'retrying') ORDER BY t.job_id DESC LIMIT 1";
        Ok(sqlx::query(sql).bind(Counts::tag(token)).fetch_optional(&self.pool).await?.is_some())
    }

    /// Count the rows of an application: two statements, however many messages came in the meantime.
    async fn count(&self, job: Counts) -> Outcome {
        let sql = "UPDATE counter_chats c SET messages_count = (SELECT COUNT(*) FROM counter_messages m \
                   WHERE m.application_token = c.application_token AND m.chat = c.number) WHERE c.application_token = ?";
        sqlx::query(sql).bind(&job.token).execute(&self.pool).await?;
        let sql = "UPDATE counter_applications a SET chats_count = (SELECT COUNT(*) FROM counter_chats c \
                   WHERE c.application_token = a.token) WHERE a.token = ?";
        sqlx::query(sql).bind(&job.token).execute(&self.pool).await?;
        Ok(().into())
    }
}

/// Return the routes of the counters.
pub(crate) fn routes() -> Router<Arc<Chat>> {
    Router::new()
        .route("/applications", post(add_application))
        .route("/applications/{token}", get(show_application))
        .route("/applications/{token}/chats", post(add_chat))
        .route("/applications/{token}/chats/{chat}", get(show_chat))
        .route("/applications/{token}/chats/{chat}/messages", post(add_message))
        .route("/applications/{token}/chats/{chat}/messages/{number}", get(show_message))
}

#[derive(Deserialize)]
struct NewApplication {
    name: String,
}

async fn add_application(
    State(chat): State<Arc<Chat>>,
    Body(body): Body<NewApplication>,
) -> Result<(StatusCode, Json<Value>), Refusal> {
    if body.name.trim().is_empty() || body.name.chars().count() > 120 {
        return Err(Refusal::Wrong("name must have 1 to 120 characters".to_owned()));
    }
    let token = chat.counters.add_application(&body.name).await?;
    Ok((StatusCode::CREATED, Json(json!({"token": token}))))
}

async fn show_application(
    State(chat): State<Arc<Chat>>,
    In(Path(token)): In<Path<String>>,
) -> Result<Json<Value>, Refusal> {
    if !can_be_id(&token) {
        return Err(Refusal::Missing("there is no such application"));
    }
    let sql = "SELECT name, chats_count FROM counter_applications WHERE token = ?";
    let row = sqlx::query(sql).bind(&token).fetch_optional(&chat.counters.pool).await?;
    let row = row.ok_or(Refusal::Missing("there is no such application"))?;
    let (name, count): (String, i64) = (row.try_get("name")?, row.try_get("chats_count")?);
    Ok(Json(json!({"token": token, "name": name, "chats_count": count})))
}

async fn add_chat(
    State(chat): State<Arc<Chat>>,
    In(Path(token)): In<Path<String>>,
) -> Result<(StatusCode, Json<Value>), Refusal> {
    let number = chat.counters.add_chat(&token).await?;
    Ok((StatusCode::CREATED, Json(json!({"number": number}))))
}

async fn show_chat(
    State(chat): State<Arc<Chat>>,
    In(Path((token, number))): In<Path<(String, i64)>>,
) -> Result<Json<Value>, Refusal> {
    if !can_be_id(&token) {
        return Err(Refusal::Missing("there is no such chat"));
    }
    let sql = "SELECT messages_count FROM counter_chats WHERE application_token = ? AND number = ?";
    let row = sqlx::query(sql).bind(&token).bind(number).fetch_optional(&chat.counters.pool).await?;
    let count = match row {
        Some(row) => row.try_get("messages_count")?,
        // Its row is still to be written.
        None if chat.counters.has_chat(&token, number).await? => 0,
        None => return Err(Refusal::Missing("there is no such chat")),
    };
    let count: i64 = count;
    Ok(Json(json!({"number": number, "messages_count": count})))
}

#[derive(Deserialize)]
struct NewBody {
    body: String,
}

async fn add_message(
    State(chat): State<Arc<Chat>>,
    In(Path((token, number))): In<Path<(String, i64)>>,
    Body(body): Body<NewBody>,
) -> Result<(StatusCode, Json<Value>), Refusal> {
    if body.body.is_empty() || body.body.chars().count() > 4_000 {
        return Err(Refusal::Wrong("body must have 1 to 4000 characters".to_owned()));
    }
    let number = chat.counters.add_message(&token, number, &body.body).await?;
    Ok((StatusCode::CREATED, Json(json!({"number": number}))))
}

async fn show_message(
    State(chat): State<Arc<Chat>>,
    In(Path((token, number, message))): In<Path<(String, i64, i64)>>,
) -> Result<Json<Value>, Refusal> {
    if !can_be_id(&token) {
        return Err(Refusal::Missing("there is no such message yet"));
    }
    let sql = "SELECT body FROM counter_messages WHERE application_token = ? AND chat = ? AND number = ?";
    let row = sqlx::query(sql).bind(&token).bind(number).bind(message).fetch_optional(&chat.counters.pool).await?;
    let row = row.ok_or(Refusal::Missing("there is no such message yet"))?;
    let body: String = row.try_get("body")?;
    Ok(Json(json!({"number": message, "body": body})))
}
