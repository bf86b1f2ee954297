//! All SQL of the chat. The tables are in `schema.sql`, beside those of tickr.
//!
//! A message and the jobs that deliver it are written in one transaction ([`Store::send`]). The rows of an inbox get
//! their places under the lock of the user ([`Store::place`]), whatever order the jobs have.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Context as _;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use sqlx::mysql::{MySqlConnectOptions, MySqlDatabaseError, MySqlPoolOptions, MySqlRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, MySqlConnection, MySqlPool, Row as _};
use tickr::{Client, OnFailure};

use super::kinds::{Deliver, FanOut, user_key};

/// Connections of this process to MySQL, beside those of the runner.
const CONNECTIONS: u32 = 24;
/// A connection that came back to the pool so short a time ago is there: MySQL has just answered over it.
const FRESH: Duration = Duration::from_millis(100);
/// Time in which MySQL must answer over a connection that was not used for a while. The network may have forgotten it.
const TO_ANSWER: Duration = Duration::from_millis(500);
/// Time in which MySQL must answer over a connection that comes back to the pool.
const TO_COME_BACK: Duration = Duration::from_secs(1);
/// Longest time of a transaction with the wait for its connection. It is less than that of a delivery.
const TO_COMMIT: Duration = Duration::from_secs(10);
/// Messages that one answer to a sync has at most.
pub(crate) const BATCH: i64 = 1_000;
/// Conversations that a list has at most.
const LISTED: i64 = 500;
/// Messages that a delivery takes along at most, of those that are not in the inbox yet.
const TOGETHER: i64 = 100;
/// Messages before its own that a delivery pushes at most. Others have deliveries of their own.
const BEFORE: i64 = 200;
/// Messages that a device confirms in one statement.
const CONFIRMED: i64 = 1_000;
/// Whether a message `x` in an inbox `i` has expired: no device has confirmed it, and its time is over. The parameter is
/// the expiry.
const EXPIRED: &str = "(x.sender <> i.user AND i.delivered_at IS NULL \
                       AND x.at <= UTC_TIMESTAMP(3) - INTERVAL ? MICROSECOND \
                       AND NOT EXISTS (SELECT 1 FROM chat_late late \
                        WHERE late.user = i.user AND late.conversation = i.conversation AND late.seq = i.seq))";
/// Reason of the dead letter of a blocked message.
const BLOCKED: &str = "the recipient has blocked the sender";

/// The tables of the chat.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub(crate) pool: MySqlPool,
    /// Age at which a message is not delivered any more.
    expiry: Duration,
    /// Members of the largest groups with inbox rows.
    inboxes_up_to: usize,
}

/// A message as a client sends it.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct NewMessage {
    /// UUID, drawn by the client. The same for each repetition.
    pub(crate) message_id: String,
    /// 1 for the first message of the sender in this conversation, and one more for each further one.
    pub(crate) client_seq: i64,
    pub(crate) content: String,
}

/// The answer to a message that was stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Sent {
    pub(crate) message_id: String,
    pub(crate) conversation_id: String,
    pub(crate) seq: i64,
    pub(crate) client_seq: i64,
    /// Place in the inbox of the sender, for the sender's other devices.
    pub(crate) place: i64,
    pub(crate) at: DateTime<Utc>,
}

/// Reason why a request was not carried out.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// There is no such conversation or user.
    Missing(&'static str),
    /// The user is not a member.
    NotMember,
    /// The client left out a number. This is the right one.
    Nack { expected: i64 },
    /// The request cannot be meant.
    Wrong(String),
    /// A server does not answer.
    Unavailable(anyhow::Error),
}

/// Return whether a text of a client may be an id. The columns of ids are ASCII, and MariaDB compares them with no other
/// text: it reports an error, for which a client would try again.
pub(crate) const fn can_be_id(text: &str) -> bool {
    text.is_ascii()
}

impl<E: Into<anyhow::Error>> From<E> for Refusal {
    fn from(error: E) -> Self {
        Self::Unavailable(error.into())
    }
}

/// A message as clients receive it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Message {
    pub(crate) message_id: String,
    pub(crate) conversation_id: String,
    pub(crate) seq: i64,
    pub(crate) sender: String,
    pub(crate) client_seq: i64,
    pub(crate) content: String,
    pub(crate) at: DateTime<Utc>,
    /// Place in the inbox of the recipient. None in groups without inbox rows.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) place: Option<i64>,
}

impl Message {
    fn of(row: &MySqlRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            message_id: row.try_get("message_id")?,
            conversation_id: row.try_get("conversation")?,
            seq: row.try_get("seq")?,
            sender: row.try_get("sender")?,
            client_seq: row.try_get("client_seq")?,
            content: row.try_get("body")?,
            at: utc(row, "at")?,
            place: row.try_get("place")?,
        })
    }
}

/// The messages that a delivery has to push, or the reason why there are none.
#[derive(Debug)]
pub(crate) enum Placed {
    /// Push these, oldest first. Empty when a device has confirmed them already.
    Push(Vec<Message>),
    /// The message must not reach the recipient. A dead letter says why.
    Refused(&'static str),
}

/// A conversation as a list shows it.
#[derive(Debug, Serialize)]
pub(crate) struct Conversation {
    pub(crate) id: String,
    pub(crate) is_group: bool,
    pub(crate) name: Option<String>,
    pub(crate) receipts: String,
    pub(crate) last_seq: i64,
    pub(crate) read_seq: i64,
    pub(crate) members: Vec<String>,
    /// Number that the next message of this user must have.
    pub(crate) next_client_seq: i64,
}

/// A message of a conversation, with its ticks.
#[derive(Debug, Serialize)]
pub(crate) struct Entry {
    #[serde(flatten)]
    message: Message,
    /// Recipients that a device has confirmed.
    delivered: i64,
    /// Recipients that have read it. In a group with simple receipts 1 at most, with none absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    read: Option<i64>,
    /// Number of recipients.
    of: i64,
}

/// A receipt for what a user has read.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) seq: i64,
    pub(crate) at: DateTime<Utc>,
    pub(crate) receipts: String,
    /// The senders of the messages that were read. With `simple` receipts, only of those that no other recipient has
    /// read.
    pub(crate) senders: Vec<String>,
}

/// A user whose presence may be shown.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) user: String,
    pub(crate) last_seen: Option<DateTime<Utc>>,
}

/// How far the members of a conversation have come. They are read once and counted for each message, so the ticks of
/// many messages to many members cost the sum of both, and not the product.
struct Marks {
    /// The newest message that was pushed, and the newest one that was read.
    by_user: HashMap<String, (i64, i64)>,
    /// Both of all members, least first.
    pushed: Vec<i64>,
    read: Vec<i64>,
}

impl Marks {
    async fn of(pool: &MySqlPool, conversation: &str) -> Result<Self, sqlx::Error> {
        let sql = "SELECT user, delivered_seq, read_seq FROM chat_members WHERE conversation = ?";
        let mut by_user = HashMap::new();
        for row in sqlx::query(sql).bind(conversation).fetch_all(pool).await? {
            by_user.insert(row.try_get("user")?, (row.try_get("delivered_seq")?, row.try_get("read_seq")?));
        }
        let (mut pushed, mut read): (Vec<i64>, Vec<i64>) = by_user.values().copied().unzip();
        pushed.sort_unstable();
        read.sort_unstable();
        Ok(Self { by_user, pushed, read })
    }

    /// Return the numbers of recipients to whom a message was pushed, and who have read it.
    fn beyond(&self, message: &Message) -> (i64, i64) {
        let (own_pushed, own_read) = self.by_user.get(&message.sender).copied().unwrap_or_default();
        let count = |marks: &[i64], own: i64| {
            let count = marks.len() - marks.partition_point(|mark| *mark < message.seq);
            i64::try_from(count).unwrap_or(i64::MAX) - i64::from(own >= message.seq)
        };
        (count(&self.pushed, own_pushed), count(&self.read, own_read))
    }
}

fn utc(row: &MySqlRow, column: &str) -> Result<DateTime<Utc>, sqlx::Error> {
    Ok(row.try_get::<chrono::NaiveDateTime, _>(column)?.and_utc())
}

impl Store {
    /// Connect, and make the tables that are missing.
    pub(crate) async fn connect(url: &str, expiry: Duration, inboxes_up_to: usize) -> anyhow::Result<Self> {
        let options: MySqlConnectOptions = url.parse().context("read the URL of MySQL")?;
        let pool = MySqlPoolOptions::new()
            .max_connections(CONNECTIONS)
            .acquire_timeout(Duration::from_secs(5))
            // The test of sqlx has no limit: a connection that the network has forgotten would use up the whole time.
            .test_before_acquire(false)
            .before_acquire(|conn, meta| {
                Box::pin(async move {
                    if meta.idle_for < FRESH {
                        return Ok(true);
                    }
                    tokio::time::timeout(TO_ANSWER, conn.ping()).await.map_err(|_| out_of_time())??;
                    Ok(true)
                })
            })
            // What waited for MySQL may have been dropped in the middle, within a transaction of which sqlx does not
            // know. A connection that does not answer is closed.
            .after_release(|conn, _| {
                Box::pin(async move {
                    let ended = tokio::time::timeout(TO_COME_BACK, conn.execute("ROLLBACK"));
                    ended.await.map_err(|_| out_of_time())??;
                    Ok(true)
                })
            })
            // Each statement sees what is committed. A lock concerns the rows that it names, and no gap beside them.
            .after_connect(|conn, _| {
                Box::pin(async move {
                    conn.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await?;
                    Ok(())
                })
            })
            .connect_with(options)
            .await
            .context("connect the chat to MySQL")?;
        let mut conn = pool.acquire().await?;
        // Two processes may start at once. `CREATE TABLE IF NOT EXISTS` alone may deadlock with itself.
        sqlx::query("SELECT GET_LOCK('chat_schema', 30)").execute(&mut *conn).await?;
        let made = conn.execute(sqlx::raw_sql(include_str!("schema.sql"))).await;
        sqlx::query("SELECT RELEASE_LOCK('chat_schema')").execute(&mut *conn).await?;
        made.context("make the tables of the chat")?;
        Ok(Self { pool, expiry, inboxes_up_to })
    }

    /// Add a user, or bring a deleted one back. Return who may see when the user was here.
    pub(crate) async fn sign_in(&self, user: &str) -> Result<String, sqlx::Error> {
        let sql = "INSERT INTO chat_users (id) VALUES (?) ON DUPLICATE KEY UPDATE deleted = FALSE";
        sqlx::query(sql).bind(user).execute(&self.pool).await?;
        let sql = "SELECT privacy FROM chat_users WHERE id = ?";
        sqlx::query(sql).bind(user).fetch_one(&self.pool).await?.try_get("privacy")
    }

    /// Mark a user as deleted. Messages to this user are refused from now on.
    pub(crate) async fn delete_user(&self, user: &str) -> Result<(), sqlx::Error> {
        sqlx::query("UPDATE chat_users SET deleted = TRUE WHERE id = ?").bind(user).execute(&self.pool).await.map(drop)
    }

    /// Return whether there is such a user.
    pub(crate) async fn knows(&self, user: &str) -> Result<bool, sqlx::Error> {
        let sql = "SELECT 1 FROM chat_users WHERE id = ? AND NOT deleted";
        Ok(sqlx::query(sql).bind(user).fetch_optional(&self.pool).await?.is_some())
    }

    /// Set who may see when a user was here.
    pub(crate) async fn set_privacy(&self, user: &str, privacy: &str) -> Result<(), sqlx::Error> {
        let sql = "UPDATE chat_users SET privacy = ? WHERE id = ?";
        sqlx::query(sql).bind(privacy).bind(user).execute(&self.pool).await.map(drop)
    }

    /// Add or remove a contact.
    pub(crate) async fn set_contact(&self, user: &str, contact: &str, is: bool) -> Result<(), sqlx::Error> {
        let sql = match is {
            true => "INSERT IGNORE INTO chat_contacts (user, contact) VALUES (?, ?)",
            false => "DELETE FROM chat_contacts WHERE user = ? AND contact = ?",
        };
        sqlx::query(sql).bind(user).bind(contact).execute(&self.pool).await.map(drop)
    }

    /// Refuse the messages of another user, or accept them again.
    pub(crate) async fn set_block(&self, user: &str, blocked: &str, is: bool) -> Result<(), sqlx::Error> {
        let sql = match is {
            true => "INSERT IGNORE INTO chat_blocks (user, blocked) VALUES (?, ?)",
            false => "DELETE FROM chat_blocks WHERE user = ? AND blocked = ?",
        };
        sqlx::query(sql).bind(user).bind(blocked).execute(&self.pool).await.map(drop)
    }

    /// Open the conversation of two users. Both get the same one.
    pub(crate) async fn open_direct(&self, user: &str, other: &str) -> Result<String, Refusal> {
        if user == other {
            return Err(Refusal::Wrong("a conversation needs another user".to_owned()));
        }
        if !self.knows(other).await? {
            return Err(Refusal::Missing("there is no such user"));
        }
        let id = format!("{}~{}", user.min(other), user.max(other));
        let (pool, opened, members) = (self.pool.clone(), id.clone(), [user.to_owned(), other.to_owned()]);
        apart(async move {
            let mut tx = pool.begin().await?;
            let sql = "INSERT IGNORE INTO chat_conversations (id, is_group) VALUES (?, FALSE)";
            sqlx::query(sql).bind(&opened).execute(&mut *tx).await?;
            add_members(&mut tx, &opened, &members).await?;
            tx.commit().await
        })
        .await?;
        Ok(id)
    }

    /// Make a group. Members that are not known are added as users.
    pub(crate) async fn make_group(
        &self,
        id: &str,
        name: &str,
        receipts: &str,
        members: &[String],
    ) -> Result<(), sqlx::Error> {
        let (pool, id, name) = (self.pool.clone(), id.to_owned(), name.to_owned());
        let (receipts, members) = (receipts.to_owned(), members.to_vec());
        apart(async move {
            let mut tx = pool.begin().await?;
            for some in members.chunks(500) {
                let sql = format!("INSERT IGNORE INTO chat_users (id) VALUES {}", vec!["(?)"; some.len()].join(","));
                let insert = some.iter().fold(sqlx::query(AssertSqlSafe(sql)), Query::bind);
                insert.execute(&mut *tx).await?;
            }
            let sql = "INSERT INTO chat_conversations (id, is_group, name, receipts) VALUES (?, TRUE, ?, ?)";
            sqlx::query(sql).bind(&id).bind(name).bind(receipts).execute(&mut *tx).await?;
            add_members(&mut tx, &id, &members).await?;
            tx.commit().await
        })
        .await
    }

    /// List the conversations of a user, those with the newest messages first, or one of them.
    pub(crate) async fn conversations(&self, user: &str, id: Option<&str>) -> Result<Vec<Conversation>, sqlx::Error> {
        if id.is_some_and(|id| !can_be_id(id)) {
            return Ok(Vec::new());
        }
        let one = if id.is_some() { "AND c.id = ?" } else { "" };
        let sql = format!(
            "SELECT c.id, c.is_group, c.name, c.receipts, c.last_seq, m.read_seq, \
             (SELECT COALESCE(MAX(x.client_seq), 0) + 1 FROM chat_messages x \
              WHERE x.conversation = c.id AND x.sender = m.user) AS next_client_seq \
             FROM chat_members m JOIN chat_conversations c ON c.id = m.conversation \
             LEFT JOIN chat_messages newest ON newest.conversation = c.id AND newest.seq = c.last_seq \
             WHERE m.user = ? {one} ORDER BY newest.at DESC, c.id LIMIT ?"
        );
        let select = id.iter().fold(sqlx::query(AssertSqlSafe(sql)).bind(user), Query::bind);
        let rows = select.bind(LISTED).fetch_all(&self.pool).await?;
        let mut members = self.members_of(&rows).await?;
        let conversation = |row: &MySqlRow| {
            let id: String = row.try_get("id")?;
            Ok(Conversation {
                is_group: row.try_get("is_group")?,
                name: row.try_get("name")?,
                receipts: row.try_get("receipts")?,
                last_seq: row.try_get("last_seq")?,
                read_seq: row.try_get("read_seq")?,
                next_client_seq: row.try_get("next_client_seq")?,
                members: members.remove(&id).unwrap_or_default(),
                id,
            })
        };
        rows.iter().map(conversation).collect()
    }

    /// Return the names of the members of these conversations, by conversation.
    async fn members_of(&self, conversations: &[MySqlRow]) -> Result<HashMap<String, Vec<String>>, sqlx::Error> {
        let mut found: HashMap<String, Vec<String>> = HashMap::new();
        if conversations.is_empty() {
            return Ok(found);
        }
        let places = vec!["?"; conversations.len()].join(",");
        let sql = format!("SELECT conversation, user FROM chat_members WHERE conversation IN ({places}) ORDER BY user");
        let mut select = sqlx::query(AssertSqlSafe(sql));
        for row in conversations {
            select = select.bind(row.try_get::<String, _>("id")?);
        }
        for row in select.fetch_all(&self.pool).await? {
            found.entry(row.try_get("conversation")?).or_default().push(row.try_get("user")?);
        }
        Ok(found)
    }

    /// Return the names of all members of a conversation.
    pub(crate) async fn members(&self, conversation: &str) -> Result<Vec<String>, sqlx::Error> {
        if !can_be_id(conversation) {
            return Ok(Vec::new());
        }
        let sql = "SELECT user FROM chat_members WHERE conversation = ? ORDER BY user";
        let rows = sqlx::query(sql).bind(conversation).fetch_all(&self.pool).await?;
        rows.iter().map(|row| row.try_get("user")).collect()
    }

    /// Return the sender of a message, and the time in which it may still be delivered.
    pub(crate) async fn sender(&self, conversation: &str, seq: i64) -> Result<Option<(String, Duration)>, sqlx::Error> {
        let sql = "SELECT sender, TIMESTAMPDIFF(MICROSECOND, at, UTC_TIMESTAMP(3)) AS age FROM chat_messages \
                   WHERE conversation = ? AND seq = ?";
        let row = sqlx::query(sql).bind(conversation).bind(seq).fetch_optional(&self.pool).await?;
        let Some(row) = row else { return Ok(None) };
        let age = Duration::from_micros(u64::try_from(row.try_get::<i64, _>("age")?).unwrap_or(0));
        // An older one has a fan-out because an operator wants it to have one.
        let left = self.expiry.checked_sub(age).filter(|left| !left.is_zero()).unwrap_or(self.expiry);
        Ok(Some((row.try_get("sender")?, left)))
    }

    /// Return whether a user is a member of a conversation.
    pub(crate) async fn is_member(&self, conversation: &str, user: &str) -> Result<bool, sqlx::Error> {
        if !can_be_id(conversation) {
            return Ok(false);
        }
        let sql = "SELECT 1 FROM chat_members WHERE conversation = ? AND user = ?";
        Ok(sqlx::query(sql).bind(conversation).bind(user).fetch_optional(&self.pool).await?.is_some())
    }

    /// Store a message together with the job that delivers it: both exist after the COMMIT, or neither does.
    ///
    /// A message that was stored before gets its first answer again.
    pub(crate) async fn send(
        &self,
        client: &Client,
        conversation: &str,
        sender: &str,
        message: &NewMessage,
    ) -> Result<Sent, Refusal> {
        if !can_be_id(conversation) {
            return Err(Refusal::Missing("there is no such conversation"));
        }
        let (store, client, message) = (self.clone(), client.clone(), message.clone());
        let (conversation, sender) = (conversation.to_owned(), sender.to_owned());
        apart(async move { store.send_here(&client, &conversation, &sender, &message).await }).await
    }

    async fn send_here(
        &self,
        client: &Client,
        conversation: &str,
        sender: &str,
        message: &NewMessage,
    ) -> Result<Sent, Refusal> {
        let mut tx = self.pool.begin().await?;
        // The lock makes the messages of a conversation one after the other, so `seq` has no gap and no inversion. A
        // refusal takes the number back with its transaction.
        let sql = "UPDATE chat_conversations SET last_seq = LAST_INSERT_ID(last_seq + 1) WHERE id = ?";
        let numbered = sqlx::query(sql).bind(conversation).execute(&mut *tx).await?;
        if numbered.rows_affected() == 0 {
            return Err(Refusal::Missing("there is no such conversation"));
        }
        let seq = i64::try_from(numbered.last_insert_id()).unwrap_or(i64::MAX);
        let sql = "SELECT UTC_TIMESTAMP(3) AS now, c.is_group, \
                   EXISTS (SELECT 1 FROM chat_members m JOIN chat_users u ON u.id = m.user AND NOT u.deleted \
                    WHERE m.conversation = ? AND m.user = ?) AS is_member, \
                   (SELECT COALESCE(MAX(client_seq), 0) + 1 FROM chat_messages WHERE conversation = ? AND sender = ?) \
                   AS expected FROM chat_conversations c WHERE c.id = ?";
        let found = sqlx::query(sql).bind(conversation).bind(sender).bind(conversation).bind(sender).bind(conversation);
        let found = found.fetch_one(&mut *tx).await?;
        if found.try_get::<i64, _>("is_member")? == 0 {
            return Err(Refusal::NotMember);
        }
        let is_group: bool = found.try_get("is_group")?;
        let expected: i64 = found.try_get("expected")?;
        if message.client_seq != expected {
            // A message that is sent again has the number of its first time.
            let first = earlier(&mut tx, conversation, sender, &message.message_id).await?;
            return first.ok_or(Refusal::Nack { expected });
        }
        let at: chrono::NaiveDateTime = found.try_get("now")?;
        let sql = "INSERT INTO chat_messages (conversation, seq, message_id, sender, client_seq, body, at) \
                   VALUES (?, ?, ?, ?, ?, ?, ?)";
        let insert = sqlx::query(sql).bind(conversation).bind(seq).bind(&message.message_id).bind(sender);
        let inserted = insert.bind(message.client_seq).bind(&message.content).bind(at).execute(&mut *tx).await;
        if let Err(sqlx::Error::Database(error)) = &inserted
            && error.is_unique_violation()
        {
            let first = earlier(&mut tx, conversation, sender, &message.message_id).await?;
            return first.ok_or_else(|| Refusal::Wrong("another message has this message_id".to_owned()));
        }
        inserted?;
        let place = next_places(&mut tx, sender, 1).await?;
        let sql = "INSERT INTO chat_inbox (user, place, conversation, seq, delivered_at) VALUES (?, ?, ?, ?, ?)";
        let insert = sqlx::query(sql).bind(sender).bind(place).bind(conversation).bind(seq).bind(at);
        insert.execute(&mut *tx).await?;
        self.request_delivery(client, &mut tx, conversation, is_group, sender, seq).await?;
        tx.commit().await?;
        Ok(Sent {
            message_id: message.message_id.clone(),
            conversation_id: conversation.to_owned(),
            seq,
            client_seq: message.client_seq,
            place,
            at: at.and_utc(),
        })
    }

    /// Write the job that delivers a message, in the transaction of the message. Two users need no fan-out: the job is
    /// the delivery itself.
    async fn request_delivery(
        &self,
        client: &Client,
        tx: &mut MySqlConnection,
        conversation: &str,
        is_group: bool,
        sender: &str,
        seq: i64,
    ) -> Result<(), Refusal> {
        let conversation = conversation.to_owned();
        // A failed delivery must not hold up those behind it: the message is in the inbox, and the client fetches it.
        let job = if is_group {
            let key = format!("conv:{conversation}");
            client.enqueue(&FanOut { conversation, seq }).order_key(key)
        } else {
            let (one, two) = conversation.split_once('~').unwrap_or_default();
            let user = if one == sender { two } else { one }.to_owned();
            let key = user_key(&user);
            client.enqueue(&Deliver { conversation, seq, user, stored: true }).order_key(key)
        };
        job.on_failure(OnFailure::Skip).expires_in(self.expiry).within(tx).await?;
        Ok(())
    }

    /// Put a message into the inbox of its recipient, and with it all others of the conversation that are not there
    /// yet.
    ///
    /// Jobs of one recipient run one at a time, but two runners may have taken two messages out of the outbox in the
    /// other order. So the earlier ones come along here. The later ones come along so that a recipient who gets more
    /// messages than jobs can run one after the other has them in time. Their own jobs find them placed.
    ///
    /// A refused message loses the place that an earlier attempt gave it, unless a device has it. A message that has
    /// expired and is delivered all the same gets a new place, because devices may be past the old one.
    pub(crate) async fn place(&self, job: &Deliver) -> Result<Placed, sqlx::Error> {
        let (store, job) = (self.clone(), job.clone());
        apart(async move { store.place_here(&job).await }).await
    }

    async fn place_here(&self, job: &Deliver) -> Result<Placed, sqlx::Error> {
        let Deliver { conversation, seq, user, stored } = job;
        if self.has_all(job).await? {
            return Ok(Placed::Push(Vec::new()));
        }
        let mut tx = self.pool.begin().await?;
        let locked = sqlx::query("SELECT deleted FROM chat_users WHERE id = ? FOR UPDATE").bind(user);
        let Some(found) = locked.fetch_optional(&mut *tx).await? else {
            return Ok(Placed::Refused("there is no such recipient"));
        };
        if found.try_get("deleted")? {
            take_back(&mut tx, job).await?;
            raise_reached(&mut tx, job, *seq).await?;
            tx.commit().await?;
            return Ok(Placed::Refused("the account of the recipient is deleted"));
        }
        let sql = "SELECT m.inbox_seq, i.place, i.delivered_at IS NOT NULL AS confirmed, \
                   x.at <= UTC_TIMESTAMP(3) - INTERVAL ? MICROSECOND AS is_old, \
                   EXISTS (SELECT 1 FROM chat_blocks b WHERE b.user = ? AND b.blocked = x.sender) AS blocked \
                   FROM chat_messages x LEFT JOIN chat_members m ON m.conversation = x.conversation AND m.user = ? \
                   LEFT JOIN chat_inbox i ON i.conversation = x.conversation AND i.seq = x.seq AND i.user = ? \
                   WHERE x.conversation = ? AND x.seq = ?";
        let found = sqlx::query(sql).bind(self.age()).bind(user).bind(user).bind(user).bind(conversation).bind(seq);
        let Some(found) = found.fetch_optional(&mut *tx).await? else {
            return Ok(Placed::Refused("there is no such message"));
        };
        let Some(reached) = found.try_get::<Option<i64>, _>("inbox_seq")? else {
            return Ok(Placed::Refused("the recipient is not a member of the conversation"));
        };
        let blocked = found.try_get::<i64, _>("blocked")? != 0;
        if !stored {
            let sql = "SELECT x.*, NULL AS place FROM chat_messages x WHERE x.conversation = ? AND x.seq = ?";
            let row = sqlx::query(sql).bind(conversation).bind(seq).fetch_one(&mut *tx).await?;
            return Ok(if blocked { Placed::Refused(BLOCKED) } else { Placed::Push(vec![Message::of(&row)?]) });
        }
        let mut has_place = found.try_get::<Option<i64>, _>("place")?.is_some();
        // An attempt begins before the expiry of its job, or because an operator replays it: so this one message is
        // delivered all the same.
        let is_old = found.try_get::<i64, _>("is_old")? != 0;
        if blocked || is_old && note_late(&mut tx, job).await? {
            has_place &= !take_back(&mut tx, job).await?;
        }
        let mut places = self.unplaced(&mut tx, job, reached).await?;
        if !has_place && !blocked && !places.contains(seq) {
            places.push(*seq);
            places.sort_unstable();
        }
        put(&mut tx, user, conversation, &places).await?;
        let last = places.last().map_or(*seq, |last| *last.max(seq));
        raise_reached(&mut tx, job, last).await?;
        tx.commit().await?;
        if blocked && found.try_get::<i64, _>("confirmed")? == 0 {
            return Ok(Placed::Refused(BLOCKED));
        }
        let first = places.first().map_or(*seq, |first| *first.min(seq)) - TOGETHER;
        self.to_push(job, first, last).await.map(Placed::Push)
    }

    /// Return the messages that the delivery of a message pushes, oldest first.
    async fn to_push(&self, job: &Deliver, first: i64, last: i64) -> Result<Vec<Message>, sqlx::Error> {
        let Deliver { conversation, seq, user, .. } = job;
        // Messages that were placed before and that no device has confirmed come first, so that none overtakes them.
        // After a pause there may be many more of them: a socket does not hold all, and the next deliveries push the
        // rest.
        let sql = format!(
            "SELECT x.*, i.place FROM chat_inbox i \
             JOIN chat_messages x ON x.conversation = i.conversation AND x.seq = i.seq \
             WHERE i.conversation = ? AND i.user = ? AND i.seq BETWEEN ? AND ? AND i.delivered_at IS NULL \
             AND (i.seq = ? OR NOT {EXPIRED}) ORDER BY i.seq"
        );
        // The message of the job began its delivery in time, also if its expiry comes between the statements.
        let (until, behind) = (format!("{sql} DESC LIMIT ?"), format!("{sql} LIMIT ?"));
        let mut messages = Vec::new();
        for (sql, from, to, most) in [(until, first, *seq, BEFORE + 1), (behind, *seq + 1, last, TOGETHER)] {
            let found = sqlx::query(AssertSqlSafe(sql)).bind(conversation).bind(user).bind(from).bind(to);
            let found = found.bind(seq).bind(self.age()).bind(most);
            for row in found.fetch_all(&self.pool).await? {
                messages.push(Message::of(&row)?);
            }
        }
        messages.sort_unstable_by_key(|message| message.seq);
        Ok(messages)
    }

    /// Return whether the message of a job is confirmed and no other one of its conversation is behind it. Most jobs of
    /// a user who gets many messages end here, because an earlier one took theirs along.
    async fn has_all(&self, job: &Deliver) -> Result<bool, sqlx::Error> {
        let sql = "SELECT 1 FROM chat_conversations c \
                   JOIN chat_members m ON m.conversation = c.id AND m.user = ? AND m.inbox_seq >= c.last_seq \
                   JOIN chat_inbox i ON i.conversation = c.id AND i.seq = ? AND i.user = m.user \
                   WHERE c.id = ? AND i.delivered_at IS NOT NULL";
        let found = sqlx::query(sql).bind(&job.user).bind(job.seq).bind(&job.conversation);
        Ok(found.fetch_optional(&self.pool).await?.is_some())
    }

    /// Return the messages of a conversation that are neither in the inbox nor refused nor too old.
    async fn unplaced(&self, tx: &mut MySqlConnection, job: &Deliver, reached: i64) -> Result<Vec<i64>, sqlx::Error> {
        let sql = "SELECT x.seq FROM chat_messages x WHERE x.conversation = ? AND x.seq > ? AND x.sender <> ? \
                   AND x.at > UTC_TIMESTAMP(3) - INTERVAL ? MICROSECOND \
                   AND NOT EXISTS (SELECT 1 FROM chat_blocks b WHERE b.user = ? AND b.blocked = x.sender) \
                   ORDER BY x.seq LIMIT ?";
        let found = sqlx::query(sql).bind(&job.conversation).bind(reached).bind(&job.user);
        let rows = found.bind(self.age()).bind(&job.user).bind(TOGETHER).fetch_all(tx).await?;
        rows.iter().map(|row| row.try_get("seq")).collect()
    }

    /// Return the expiry in microseconds.
    fn age(&self) -> i64 {
        i64::try_from(self.expiry.as_micros()).unwrap_or(i64::MAX)
    }

    /// Note that a device has confirmed these messages of one conversation. Others between them have expired and were
    /// not pushed.
    pub(crate) async fn confirm(&self, user: &str, messages: &[Message]) -> Result<(), sqlx::Error> {
        let (Some(first), Some(last)) = (messages.first(), messages.last()) else { return Ok(()) };
        let update = if first.place.is_some() {
            let sql = format!(
                "UPDATE chat_inbox SET delivered_at = UTC_TIMESTAMP(3) \
                 WHERE conversation = ? AND user = ? AND delivered_at IS NULL AND seq IN ({})",
                vec!["?"; messages.len()].join(",")
            );
            let update = sqlx::query(AssertSqlSafe(sql)).bind(&first.conversation_id).bind(user);
            messages.iter().fold(update, |update, message| update.bind(message.seq))
        } else {
            let sql = "UPDATE chat_members SET delivered_seq = GREATEST(delivered_seq, ?) \
                       WHERE conversation = ? AND user = ?";
            sqlx::query(sql).bind(last.seq).bind(&first.conversation_id).bind(user)
        };
        update.execute(&self.pool).await.map(drop)
    }

    /// Return the place up to which a device has confirmed its inbox.
    pub(crate) async fn synced(&self, user: &str, device: &str) -> Result<i64, sqlx::Error> {
        let sql = "SELECT synced_place FROM chat_devices WHERE user = ? AND device = ?";
        let row = sqlx::query(sql).bind(user).bind(device).fetch_optional(&self.pool).await?;
        row.map_or(Ok(0), |row| row.try_get("synced_place"))
    }

    /// Read the inbox behind a place: at most one batch, the place up to which it was read, and whether there is more.
    /// A message that expired before a device had it keeps its place, and is left out.
    pub(crate) async fn inbox(&self, user: &str, after: i64) -> Result<(Vec<Message>, i64, bool), sqlx::Error> {
        // The last place may be that of a message that was refused since. A client must get past it. It is read first:
        // places become visible in their order, so the rows up to it are among those below.
        let newest = sqlx::query("SELECT last_place FROM chat_users WHERE id = ?").bind(user);
        let newest: Option<i64> =
            newest.fetch_optional(&self.pool).await?.map(|row| row.try_get("last_place")).transpose()?;
        let sql = format!(
            "SELECT x.*, i.place, {EXPIRED} AS is_expired FROM chat_inbox i \
             JOIN chat_messages x ON x.conversation = i.conversation AND x.seq = i.seq \
             WHERE i.user = ? AND i.place > ? ORDER BY i.place LIMIT ?"
        );
        let found = sqlx::query(AssertSqlSafe(sql)).bind(self.age()).bind(user).bind(after).bind(BATCH + 1);
        let rows = found.fetch_all(&self.pool).await?;
        let batch = usize::try_from(BATCH).unwrap_or(usize::MAX);
        let (mut messages, mut place) = (Vec::new(), after);
        for row in rows.iter().take(batch) {
            place = row.try_get("place")?;
            if row.try_get::<i64, _>("is_expired")? == 0 {
                messages.push(Message::of(row)?);
            }
        }
        let more = rows.len() > batch;
        if !more {
            place = place.max(newest.unwrap_or(0));
        }
        Ok((messages, place, more))
    }

    /// Move the cursor of a device, and confirm what it has now. Return the messages that were not confirmed before.
    ///
    /// What is before the former place of the device was confirmed when the device reached it, so it is not read again.
    pub(crate) async fn move_cursor(&self, user: &str, device: &str, place: i64) -> Result<Vec<Message>, sqlx::Error> {
        let (store, user, device) = (self.clone(), user.to_owned(), device.to_owned());
        apart(async move { store.move_cursor_here(&user, &device, place).await }).await
    }

    async fn move_cursor_here(&self, user: &str, device: &str, place: i64) -> Result<Vec<Message>, sqlx::Error> {
        let mut from = self.synced(user, device).await?;
        let mut tx = self.pool.begin().await?;
        // A client may name a place that it never got. The cursor stays within the inbox.
        let sql = "INSERT INTO chat_devices (user, device, synced_place) \
                   SELECT id, ?, LEAST(?, last_place) FROM chat_users WHERE id = ? \
                   ON DUPLICATE KEY UPDATE synced_place = GREATEST(synced_place, VALUES(synced_place))";
        sqlx::query(sql).bind(device).bind(place).bind(user).execute(&mut *tx).await?;
        let mut confirmed = Vec::new();
        while from < place {
            let sql = format!(
                "SELECT x.*, i.place FROM chat_inbox i \
                 JOIN chat_messages x ON x.conversation = i.conversation AND x.seq = i.seq \
                 WHERE i.user = ? AND i.place > ? AND i.place <= ? AND i.delivered_at IS NULL AND NOT {EXPIRED} \
                 ORDER BY i.place LIMIT ?"
            );
            let found = sqlx::query(AssertSqlSafe(sql)).bind(user).bind(from).bind(place);
            let rows = found.bind(self.age()).bind(CONFIRMED).fetch_all(&mut *tx).await?;
            let Some(last) = rows.last() else { break };
            let last: i64 = last.try_get("place")?;
            let sql = format!(
                "UPDATE chat_inbox i JOIN chat_messages x ON x.conversation = i.conversation AND x.seq = i.seq \
                 SET i.delivered_at = UTC_TIMESTAMP(3) \
                 WHERE i.user = ? AND i.place > ? AND i.place <= ? AND i.delivered_at IS NULL AND NOT {EXPIRED}"
            );
            let update = sqlx::query(AssertSqlSafe(sql)).bind(user).bind(from).bind(last).bind(self.age());
            update.execute(&mut *tx).await?;
            for row in &rows {
                confirmed.push(Message::of(row)?);
            }
            from = last;
        }
        tx.commit().await?;
        Ok(confirmed)
    }

    /// Note that a user has read a conversation up to a message. Return nothing if that was known.
    pub(crate) async fn read(&self, user: &str, conversation: &str, up_to: &str) -> Result<Option<Read>, sqlx::Error> {
        if !can_be_id(conversation) || !can_be_id(up_to) {
            return Ok(None);
        }
        let (store, user) = (self.clone(), user.to_owned());
        let (conversation, up_to) = (conversation.to_owned(), up_to.to_owned());
        apart(async move { store.read_here(&user, &conversation, &up_to).await }).await
    }

    async fn read_here(&self, user: &str, conversation: &str, up_to: &str) -> Result<Option<Read>, sqlx::Error> {
        let mut tx = self.pool.begin().await?;
        let sql = "SELECT receipts FROM chat_conversations WHERE id = ?";
        let found = sqlx::query(sql).bind(conversation).fetch_optional(&mut *tx).await?;
        let Some(found) = found else { return Ok(None) };
        let receipts: String = found.try_get("receipts")?;
        let is_simple = receipts == "simple";
        if is_simple {
            // The readers take turns, so that exactly one of them is the first.
            let sql = "SELECT id FROM chat_conversations WHERE id = ? FOR UPDATE";
            sqlx::query(sql).bind(conversation).execute(&mut *tx).await?;
        }
        let sql = "SELECT read_seq FROM chat_members WHERE conversation = ? AND user = ? FOR UPDATE";
        let found = sqlx::query(sql).bind(conversation).bind(user).fetch_optional(&mut *tx).await?;
        let Some(found) = found else { return Ok(None) };
        let before: i64 = found.try_get("read_seq")?;
        let sql = "UPDATE chat_members m JOIN chat_messages x ON x.conversation = m.conversation AND x.message_id = ? \
                   SET m.read_seq = x.seq, m.read_at = UTC_TIMESTAMP(3) \
                   WHERE m.conversation = ? AND m.user = ? AND m.read_seq < x.seq";
        let done = sqlx::query(sql).bind(up_to).bind(conversation).bind(user).execute(&mut *tx).await?;
        if done.rows_affected() == 0 {
            tx.commit().await?;
            return Ok(None);
        }
        let sql = "SELECT read_seq, read_at FROM chat_members WHERE conversation = ? AND user = ?";
        let row = sqlx::query(sql).bind(conversation).bind(user).fetch_one(&mut *tx).await?;
        let seq: i64 = row.try_get("read_seq")?;
        // The two other members who have read the most. For messages of the first, the second counts: a sender is no
        // recipient of what is the sender's own.
        let mut others: Vec<(String, i64)> = Vec::new();
        if is_simple {
            let sql = "SELECT user, read_seq FROM chat_members WHERE conversation = ? AND user <> ? \
                       ORDER BY read_seq DESC LIMIT 2";
            for row in sqlx::query(sql).bind(conversation).bind(user).fetch_all(&mut *tx).await? {
                others.push((row.try_get("user")?, row.try_get("read_seq")?));
            }
        }
        let (first, most) = others.first().cloned().unwrap_or_default();
        let next = others.get(1).map_or(0, |(_, read)| *read);
        let sql = "SELECT DISTINCT sender FROM chat_messages \
                   WHERE conversation = ? AND seq > ? AND seq <= ? AND sender <> ? AND seq > IF(sender = ?, ?, ?)";
        let found = sqlx::query(sql).bind(conversation).bind(before).bind(seq).bind(user);
        let senders = found.bind(first).bind(next).bind(most).fetch_all(&mut *tx).await?;
        tx.commit().await?;
        Ok(Some(Read {
            seq,
            at: utc(&row, "read_at")?,
            receipts,
            senders: senders.iter().map(|row| row.try_get("sender")).collect::<Result<_, _>>()?,
        }))
    }

    /// Read a conversation behind a message as a user may see it, with the ticks of each message.
    ///
    /// A message of another user is shown once it is in the inbox of this user, so one that was refused or has expired
    /// is not. In groups without inbox rows it is shown until it expires, and after that if this user has had it
    /// before.
    pub(crate) async fn history(
        &self,
        conversation: &str,
        user: &str,
        after: i64,
    ) -> Result<(Vec<Entry>, bool), sqlx::Error> {
        let marks = Marks::of(&self.pool, conversation).await?;
        let large = marks.by_user.len() > self.inboxes_up_to;
        let sql = format!(
            "SELECT x.*, NULL AS place, c.receipts, c.is_group, \
                   (SELECT COUNT(*) FROM chat_inbox i WHERE i.conversation = x.conversation AND i.seq = x.seq \
                    AND i.user <> x.sender AND i.delivered_at IS NOT NULL) AS confirmed, \
                   IF(?, NULL, (SELECT COUNT(*) FROM chat_inbox i \
                    JOIN chat_members m ON m.conversation = i.conversation AND m.user = i.user \
                    WHERE i.conversation = x.conversation AND i.seq = x.seq AND i.user <> x.sender \
                    AND m.read_seq >= x.seq AND NOT {EXPIRED})) AS readers \
                   FROM chat_messages x JOIN chat_conversations c ON c.id = x.conversation \
                   JOIN chat_members own ON own.conversation = x.conversation AND own.user = ? \
                   WHERE x.conversation = ? AND x.seq > ? AND (x.sender = own.user \
                   OR EXISTS (SELECT 1 FROM chat_inbox i \
                    WHERE i.conversation = x.conversation AND i.seq = x.seq AND i.user = own.user AND NOT {EXPIRED}) \
                   OR ? AND (x.at > UTC_TIMESTAMP(3) - INTERVAL ? MICROSECOND \
                    OR x.seq <= GREATEST(own.read_seq, own.delivered_seq))) \
                   AND NOT EXISTS (SELECT 1 FROM chat_blocks b WHERE b.user = own.user AND b.blocked = x.sender) \
                   ORDER BY x.seq LIMIT ?"
        );
        let found = sqlx::query(AssertSqlSafe(sql)).bind(large).bind(self.age()).bind(user).bind(conversation);
        let found = found.bind(after).bind(self.age()).bind(large).bind(self.age());
        let rows = found.bind(BATCH + 1).fetch_all(&self.pool).await?;
        let batch = usize::try_from(BATCH).unwrap_or(usize::MAX);
        let entry = |row: &MySqlRow| {
            let message = Message::of(row)?;
            let (pushed, beyond) = marks.beyond(&message);
            // Without a row in the inbox, a message was refused or comes later: then its reader has read others only.
            let has_read = row.try_get::<Option<i64>, _>("readers")?.unwrap_or(beyond);
            let (is_group, receipts): (bool, String) = (row.try_get("is_group")?, row.try_get("receipts")?);
            let read = match receipts.as_str() {
                _ if !is_group => Some(has_read),
                "full" => Some(has_read),
                "simple" => Some(has_read.min(1)),
                _ => None,
            };
            let delivered = row.try_get::<i64, _>("confirmed")?.max(pushed);
            let of = i64::try_from(marks.by_user.len()).unwrap_or(i64::MAX) - 1;
            Ok(Entry { message, delivered, read, of })
        };
        let entries = rows.iter().take(batch).map(entry).collect::<Result<_, sqlx::Error>>()?;
        Ok((entries, rows.len() > batch))
    }

    /// Note when the last session of a user ended.
    pub(crate) async fn left(&self, user: &str) -> Result<(), sqlx::Error> {
        let sql = "UPDATE chat_users SET last_seen = UTC_TIMESTAMP(3) WHERE id = ?";
        sqlx::query(sql).bind(user).execute(&self.pool).await.map(drop)
    }

    /// Return those of these users whose presence `viewer` may see.
    ///
    /// A user shows it to all users, to contacts or to none, and sees it only of those to whom it is shown in return. A
    /// block hides both users from each other.
    pub(crate) async fn visible(&self, viewer: &str, users: &[String]) -> Result<Vec<Seen>, sqlx::Error> {
        if users.is_empty() {
            return Ok(Vec::new());
        }
        let sql = format!(
            "SELECT u.id, u.last_seen FROM chat_users u JOIN chat_users v ON v.id = ? \
             WHERE u.id IN ({}) AND NOT u.deleted AND (u.privacy = 'everyone' OR u.privacy = 'contacts' AND EXISTS \
               (SELECT 1 FROM chat_contacts k WHERE k.user = u.id AND k.contact = v.id)) \
             AND (v.privacy = 'everyone' OR v.privacy = 'contacts' AND EXISTS \
               (SELECT 1 FROM chat_contacts k WHERE k.user = v.id AND k.contact = u.id)) \
             AND NOT EXISTS (SELECT 1 FROM chat_blocks b WHERE b.user = u.id AND b.blocked = v.id) \
             AND NOT EXISTS (SELECT 1 FROM chat_blocks b WHERE b.user = v.id AND b.blocked = u.id)",
            vec!["?"; users.len()].join(",")
        );
        let select = users.iter().fold(sqlx::query(AssertSqlSafe(sql)).bind(viewer), Query::bind);
        let seen = |row: &MySqlRow| {
            let last_seen = row.try_get::<Option<chrono::NaiveDateTime>, _>("last_seen")?;
            Ok(Seen { user: row.try_get("id")?, last_seen: last_seen.map(|at| at.and_utc()) })
        };
        select.fetch_all(&self.pool).await?.iter().map(seen).collect()
    }
}

/// Run a transaction in a task of its own, for a limited time. A client that hangs up, a socket that is cut and a
/// delivery that is out of time drop what waits for the transaction. If they dropped it at its BEGIN, a connection
/// within a transaction would come back to the pool: MySQL would answer the next statements and commit none of them.
async fn apart<T, E>(transaction: impl Future<Output = Result<T, E>> + Send + 'static) -> Result<T, E>
where
    T: Send + 'static,
    E: From<sqlx::Error> + Send + 'static,
{
    match tokio::spawn(tokio::time::timeout(TO_COMMIT, transaction)).await {
        Ok(Ok(done)) => done,
        Ok(Err(_)) => Err(out_of_time().into()),
        // The task panicked, or the process ends.
        Err(_) => Err(sqlx::Error::WorkerCrashed.into()),
    }
}

fn out_of_time() -> sqlx::Error {
    sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())
}

/// Return whether MySQL did not answer or took no work, which is a matter of time: it has too many connections (1040,
/// 1203, 1226), stops (1053), ended the connection (1927), or only reads (1290).
pub(crate) fn is_outage(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut => true,
        sqlx::Error::Database(error) => {
            let number = error.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number);
            matches!(number, Some(1040 | 1053 | 1203 | 1226 | 1290 | 1927))
        }
        _ => false,
    }
}

/// Add members to a conversation that is new. Those that it has already stay as they are.
async fn add_members(tx: &mut MySqlConnection, conversation: &str, members: &[String]) -> Result<(), sqlx::Error> {
    for some in members.chunks(500) {
        let values = vec!["(?, ?)"; some.len()].join(",");
        let sql = format!("INSERT IGNORE INTO chat_members (conversation, user) VALUES {values}");
        let insert =
            some.iter().fold(sqlx::query(AssertSqlSafe(sql)), |insert, member| insert.bind(conversation).bind(member));
        insert.execute(&mut *tx).await?;
    }
    Ok(())
}

/// Return the first answer to a message that was stored before.
async fn earlier(
    tx: &mut MySqlConnection,
    conversation: &str,
    sender: &str,
    message_id: &str,
) -> Result<Option<Sent>, sqlx::Error> {
    let sql = "SELECT x.seq, x.client_seq, x.at, i.place FROM chat_messages x JOIN chat_inbox i \
               ON i.conversation = x.conversation AND i.seq = x.seq AND i.user = x.sender \
               WHERE x.message_id = ? AND x.conversation = ? AND x.sender = ?";
    let row = sqlx::query(sql).bind(message_id).bind(conversation).bind(sender).fetch_optional(tx).await?;
    let sent = |row: &MySqlRow| {
        Ok(Sent {
            message_id: message_id.to_owned(),
            conversation_id: conversation.to_owned(),
            seq: row.try_get("seq")?,
            client_seq: row.try_get("client_seq")?,
            place: row.try_get("place")?,
            at: utc(row, "at")?,
        })
    };
    row.as_ref().map(sent).transpose()
}

/// Give a user the next places, and return the first of them. The row of the user stays locked until the COMMIT.
async fn next_places(tx: &mut MySqlConnection, user: &str, count: usize) -> Result<i64, sqlx::Error> {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    let sql = "UPDATE chat_users SET last_place = LAST_INSERT_ID(last_place + ?) WHERE id = ?";
    let done = sqlx::query(sql).bind(count).bind(user).execute(tx).await?;
    let last = i64::try_from(done.last_insert_id()).unwrap_or(i64::MAX);
    Ok(last - count + 1)
}

/// Note that the messages of a conversation up to this one are in the inbox of a user, or were refused.
async fn raise_reached(tx: &mut MySqlConnection, job: &Deliver, seq: i64) -> Result<(), sqlx::Error> {
    let sql = "UPDATE chat_members SET inbox_seq = GREATEST(inbox_seq, ?) WHERE conversation = ? AND user = ?";
    sqlx::query(sql).bind(seq).bind(&job.conversation).bind(&job.user).execute(tx).await.map(drop)
}

/// Remove a message from the inbox of its recipient, unless a device has it. Return whether it was there.
async fn take_back(tx: &mut MySqlConnection, job: &Deliver) -> Result<bool, sqlx::Error> {
    let sql = "DELETE FROM chat_inbox WHERE conversation = ? AND seq = ? AND user = ? AND delivered_at IS NULL";
    let delete = sqlx::query(sql).bind(&job.conversation).bind(job.seq).bind(&job.user);
    Ok(delete.execute(tx).await?.rows_affected() > 0)
}

/// Note that a message is delivered although it has expired. Return whether this is new.
async fn note_late(tx: &mut MySqlConnection, job: &Deliver) -> Result<bool, sqlx::Error> {
    let sql = "INSERT IGNORE INTO chat_late (user, conversation, seq) VALUES (?, ?, ?)";
    let insert = sqlx::query(sql).bind(&job.user).bind(&job.conversation).bind(job.seq);
    Ok(insert.execute(tx).await?.rows_affected() > 0)
}

/// Put messages of one conversation into an inbox.
async fn put(tx: &mut MySqlConnection, user: &str, conversation: &str, seqs: &[i64]) -> Result<(), sqlx::Error> {
    if seqs.is_empty() {
        return Ok(());
    }
    let first = next_places(tx, user, seqs.len()).await?;
    let values = vec!["(?, ?, ?, ?)"; seqs.len()].join(",");
    let sql = format!("INSERT INTO chat_inbox (user, place, conversation, seq) VALUES {values}");
    let insert = (first..).zip(seqs).fold(sqlx::query(AssertSqlSafe(sql)), |insert, (place, seq)| {
        insert.bind(user).bind(place).bind(conversation).bind(seq)
    });
    insert.execute(tx).await.map(drop)
}
