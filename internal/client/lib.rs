//! The client: enqueue typed jobs from Rust, in a runner or in any other process.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use schemars::JsonSchema;
//! use serde::{Deserialize, Serialize};
//! use tickr_client::{Client, Error};
//! use tickr_handlers::Kind;
//!
//! #[derive(Serialize, Deserialize, JsonSchema)]
//! #[serde(deny_unknown_fields)]
//! struct Thumbnail {
//!     image: String,
//!     width: u32,
//! }
//!
//! impl Kind for Thumbnail {
//!     const NAME: &'static str = "thumbnail";
//! }
//!
//! # async fn upload() -> Result<(), Error> {
//! let client = Client::connect("mysql://app@db.internal/tickr", "redis://cache.internal").await?;
//! let job = Thumbnail { image: "cat.png".into(), width: 320 };
//! let enqueued = client.enqueue(&job).delay(Duration::from_secs(60)).unique_key("cat.png").await?;
//! println!("job {}", enqueued.id);
//! client.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! - `authorities.rs`: the authorities that an HTTP client trusts
//! - `connect.rs`: [`Connect`], the connections of a process that is no runner
//! - `declared.rs`: kinds that a process only enqueues
//! - `direct.rs`: enqueue through a broker: commit to MySQL, then hint to Redis
//! - `enqueue.rs`: [`Enqueue`], [`EnqueueMany`] and [`EnqueueChain`], the builders
//! - `error.rs`: [`Error`]
//! - `http.rs`: enqueue through the API
//! - `options.rs`: the options of a job
//! - `shared.rs`: single enqueues that share a request to the API
//! - `status.rs`: [`JobStatus`]

mod authorities;
mod connect;
mod declared;
mod direct;
mod enqueue;
mod error;
mod http;
mod options;
mod shared;
mod status;

/// For the commands of tickr.
#[doc(hidden)]
pub use authorities::trusting;
pub use connect::Connect;
pub use enqueue::{Enqueue, EnqueueChain, EnqueueMany};
pub use error::{Cause, Conflict, Error};
pub use status::JobStatus;

use std::any::Any;
use std::sync::{Arc, Weak};

use connect::Connection;
use declared::Declared;
use direct::RequestShape;
use http::Remote;
use options::Body;
use tickr_broker::Broker;
use tickr_handlers::{Context, Kind};
use tickr_job::{Actor, InvalidTablePrefix, JobId, State, TablePrefix, TraceContext};
use tickr_store::{ActionOutcome, MySqlConnection, OutboxPlace, insert_outbox_row};

/// A client of tickr. Cheap to clone. There are three ways to one:
///
/// - in a runner: [`ContextExt::client`] in a handler, or `App::client`
/// - in any other process, to the same MySQL and Redis: [`Client::connect`] or [`Client::from_env`]
/// - in any other process, to the API of a runner: [`Client::http`]
///
/// Each job is checked as at the API before it is written: the JSON Schema of its kind, the handler's own check, the
/// limits. When a call returns, the job is durable in MySQL.
#[derive(Clone, Debug)]
pub struct Client {
    backend: Backend,
    /// Trace that the jobs continue.
    trace: Option<TraceContext>,
    /// Prefix of the tables of tickr, as far as the backend does not know it.
    table_prefix: TablePrefix,
    /// Single enqueues through the API may share requests.
    shares_requests: bool,
}

/// The way to the servers.
#[derive(Clone, Debug)]
enum Backend {
    /// The broker of a runner in this process. Weak, so that a client does not keep a stopped runner's connections.
    Runner(Weak<Broker>),
    /// Connections of its own.
    Servers(Arc<Connection>),
    /// The API of a runner.
    Http(Arc<Remote>),
}

/// A job that was enqueued, or that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Enqueued {
    /// Id of the job.
    pub id: JobId,
    /// True if nothing was written because an unfinished job, or an earlier job of the batch, has the unique key. The
    /// id is that of this job.
    pub existing: bool,
    /// True if an earlier request with the same idempotency key was carried out. This is its answer.
    pub repeated: bool,
}

/// Outcome of a cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cancelled {
    /// The job was waiting. It is cancelled, and no further attempt starts.
    Done,
    /// The job is executing, and its handler was asked to stop.
    StopRequested,
    /// The job has ended before, in this state.
    Ended(State),
    /// There is no such job.
    Missing,
}

#[derive(Debug, thiserror::Error)]
#[error("this client belongs to no running runner")]
struct NoRunner;

impl Client {
    fn on(backend: Backend, trace: Option<TraceContext>) -> Self {
        Self { backend, trace, table_prefix: TablePrefix::default(), shares_requests: true }
    }

    /// Connect to the MySQL and Redis of the runners. Takes [options](Connect), then `await`.
    ///
    /// Kinds are checked by the JSON Schema of their payload types. [`Connect::kinds`] adds the handlers' own checks.
    /// A Redis that does not answer is no error: its jobs are found in MySQL.
    ///
    /// # Errors
    /// [`Error::Setup`] when a URL, the account or the tables cannot be used, [`Error::Unavailable`] when MySQL does
    /// not answer within ten seconds.
    pub fn connect(mysql_url: &str, redis_url: &str) -> Connect {
        Connect::to(mysql_url, redis_url)
    }

    /// Connect as [`connect`](Self::connect) does, with the `TICKR_*` variables and the `tickr.toml` of `tickr serve`.
    /// Of them, a client uses the URLs, the Redis prefix and the overrides of kinds.
    pub fn from_env() -> Connect {
        Connect::as_configured()
    }

    /// Make a client of the API at this URL, with an API key or token if the API needs one. It connects at its first
    /// call. The URL names one server, or a load balancer in front of several.
    ///
    /// Calls of [`enqueue`](Self::enqueue) that come while two others are under way share requests to `/v1/jobs/batch`:
    /// their jobs wait for the end of one of these two, at most five milliseconds. Each call has the answer that a
    /// request of its own would have. If the answer to a shared request is lost, all of its calls are unsure.
    /// [`with_own_requests`](Self::with_own_requests) turns that off.
    ///
    /// # Errors
    /// [`Error::Setup`] when the URL cannot be used.
    pub fn http(url: &str, token: Option<&str>) -> Result<Self, Error> {
        Ok(Self::on(Backend::Http(Arc::new(Remote::new(url, token)?)), None))
    }

    /// Send each job of [`enqueue`](Self::enqueue) in a request of its own. For clients of the API; the others make no
    /// requests.
    #[must_use]
    pub fn with_own_requests(mut self) -> Self {
        self.shares_requests = false;
        self
    }

    /// Set the prefix of the tables of tickr for a client of the API that enqueues within transactions of yours: its
    /// table has the name `<prefix>outbox`. Without this call, or with an empty prefix, it is `tickr_outbox`, as it always
    /// is in the database of an application. The other clients know the prefix.
    ///
    /// # Errors
    /// [`Error::Setup`] when this is no prefix.
    pub fn with_table_prefix(mut self, prefix: &str) -> Result<Self, Error> {
        let failed = |error| Error::Setup { attempted: "set the table prefix", source: Box::new(error) };
        self.table_prefix = parsed(prefix).map_err(failed)?;
        Ok(self)
    }

    /// Enqueue a job. Takes [options](Enqueue), then `await`.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn enqueue<K: Kind>(&self, payload: &K) -> Enqueue {
        self.declare::<K>();
        Enqueue::new(self.clone(), payload)
    }

    /// Enqueue a job in a transaction of yours, with the default options. [`Enqueue::within`] takes others.
    ///
    /// # Errors
    /// See [`Error`]. The transaction can still be rolled back. After [`Error::Transaction`], roll it back and run all
    /// of it again: a repeated call alone could commit the job without the transaction.
    pub async fn enqueue_in<K: Kind>(&self, transaction: &mut MySqlConnection, payload: &K) -> Result<JobId, Error> {
        self.enqueue(payload).within(transaction).await
    }

    /// Let the jobs of committed transactions start at once. Without this call they start about a tenth of a second after
    /// the COMMIT, and the first one after a quiet time within about a second.
    ///
    /// A client with connections of its own ([`connect`](Self::connect), [`from_env`](Self::from_env)) has no runner to
    /// wake, so the call does nothing. Send `POST /v1/outbox/nudge` to a runner instead.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the API does not answer.
    pub async fn nudge(&self) -> Result<(), Error> {
        match (&self.backend, self.access()) {
            (Backend::Runner(_), Access::Broker(broker, _)) => broker.nudge_outbox(),
            (_, Access::Http(remote)) => remote.nudge().await?,
            (_, Access::Broker(..)) => {}
            (_, Access::None) => return Err(no_runner("nudge the outbox")),
        }
        Ok(())
    }

    /// Enqueue up to 1,000 jobs of one kind, all or none. Takes [options](EnqueueMany), then `await`.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn enqueue_many<'a, K: Kind>(&self, payloads: impl IntoIterator<Item = &'a K>) -> EnqueueMany {
        self.declare::<K>();
        EnqueueMany::new(self.clone(), payloads)
    }

    /// Enqueue up to 1,000 jobs of any kinds that run one after the other, all or none: each waits until the one before it
    /// has ended. When one fails for good or is cancelled, the next one is cancelled, and so on, unless
    /// [`on_parent_failure`](Enqueue::on_parent_failure) of the next one says something else. Takes
    /// [options](EnqueueChain), then `await`.
    ///
    /// ```no_run
    /// # use schemars::JsonSchema;
    /// # use serde::{Deserialize, Serialize};
    /// # use tickr_client::{Client, Error};
    /// # use tickr_handlers::Kind;
    /// # #[derive(Serialize, Deserialize, JsonSchema)]
    /// # struct Fetch {}
    /// # impl Kind for Fetch {
    /// #     const NAME: &'static str = "fetch";
    /// # }
    /// # #[derive(Serialize, Deserialize, JsonSchema)]
    /// # struct Publish {}
    /// # impl Kind for Publish {
    /// #     const NAME: &'static str = "publish";
    /// # }
    /// # async fn release(client: &Client) -> Result<(), Error> {
    /// client.enqueue_chain([client.enqueue(&Fetch {}), client.enqueue(&Publish {}).queue("slow")]).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A job behind the first takes a unique key only with [`OnConflict::Reject`](tickr_job::OnConflict::Reject) or
    /// [`OnConflict::Replace`](tickr_job::OnConflict::Replace): another job that answers in its place would not wait for
    /// the job before it.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn enqueue_chain(&self, jobs: impl IntoIterator<Item = Enqueue>) -> EnqueueChain {
        EnqueueChain::new(self.clone(), jobs)
    }

    /// Read a job. `None` when there is no such job.
    ///
    /// # Errors
    /// [`Error::Unavailable`] and [`Error::Setup`].
    pub async fn status(&self, id: JobId) -> Result<Option<JobStatus>, Error> {
        let broker = match self.access() {
            Access::Broker(broker, _) => broker,
            Access::Http(remote) => return remote.status(id).await,
            Access::None => return Err(no_runner("read a job")),
        };
        let found = broker.store().job(id).await.map_err(|error| Error::from_store("read a job", &error))?;
        Ok(found.map(|(job, _)| job.into()))
    }

    /// Cancel a job (G9).
    ///
    /// # Errors
    /// [`Error::Unavailable`] and [`Error::Setup`].
    pub async fn cancel(&self, id: JobId) -> Result<Cancelled, Error> {
        let broker = match self.access() {
            Access::Broker(broker, _) => broker,
            Access::Http(remote) => return remote.cancel(id).await,
            Access::None => return Err(no_runner("cancel a job")),
        };
        let done =
            broker.cancel(id, &Actor::tickr()).await.map_err(|error| Error::from_store("cancel a job", &error))?;
        Ok(match done {
            ActionOutcome::Done(_) | ActionOutcome::Waits(_) => Cancelled::Done,
            ActionOutcome::StopRequested => Cancelled::StopRequested,
            ActionOutcome::Refused(state)
            | ActionOutcome::Held(state)
            | ActionOutcome::UniqueKeyTaken { state, .. } => Cancelled::Ended(state),
            ActionOutcome::Missing => Cancelled::Missing,
        })
    }

    /// Send the last hints to Redis and close the connections. Other clones keep them open. Without this call, a
    /// process that ends at once may leave its last jobs to the runners' reconciler, which finds them within seconds.
    pub async fn close(self) {
        if let Backend::Servers(connection) = self.backend
            && let Some(connection) = Arc::into_inner(connection)
        {
            connection.close().await;
        }
    }

    fn declare<K: Kind>(&self) {
        if let Backend::Servers(connection) = &self.backend {
            connection.declared.add::<K>();
        }
    }

    fn access(&self) -> Access<'_> {
        match &self.backend {
            Backend::Runner(broker) => {
                broker.upgrade().map_or(Access::None, |broker| Access::Broker(broker.as_ref().clone(), None))
            }
            Backend::Servers(connection) => Access::Broker(connection.broker.clone(), Some(&connection.declared)),
            Backend::Http(remote) => Access::Http(remote),
        }
    }

    async fn insert_within(&self, transaction: &mut MySqlConnection, body: Body) -> Result<JobId, Error> {
        let mut place = OutboxPlace::default();
        match self.access() {
            Access::Broker(broker, declared) => {
                direct::check(&broker, declared.unwrap_or(&Declared::default()), &body, self.trace.as_ref())?;
                place = broker.store().outbox_place();
            }
            Access::Http(_) => {
                body.check_size("")?;
                place.prefix = self.table_prefix.clone();
            }
            Access::None => return Err(no_runner("enqueue")),
        }
        let row = body.outbox_row(self.trace.as_ref())?;
        insert_outbox_row(transaction, &place, &row)
            .await
            .map_err(|error| Error::within_transaction("enqueue within a transaction", &error))?;
        Ok(row.id)
    }

    async fn send_one(&self, body: Body, key: Option<&str>) -> Result<Enqueued, Error> {
        if let Backend::Http(remote) = &self.backend {
            return remote.enqueue_one(&body, key, self.trace.as_ref(), self.shares_requests).await;
        }
        let enqueued = self.send(vec![body], RequestShape::One, key).await?;
        enqueued.into_iter().next().ok_or_else(|| no_runner("read the receipt of a job"))
    }

    async fn send_many(
        &self,
        bodies: Vec<Body>,
        shape: RequestShape,
        key: Option<&str>,
    ) -> Result<Vec<Enqueued>, Error> {
        if let Backend::Http(remote) = &self.backend {
            return remote.enqueue_many(&bodies, shape, key, self.trace.as_ref()).await;
        }
        self.send(bodies, shape, key).await
    }

    async fn send(&self, bodies: Vec<Body>, shape: RequestShape, key: Option<&str>) -> Result<Vec<Enqueued>, Error> {
        let Access::Broker(broker, declared) = self.access() else { return Err(no_runner("enqueue")) };
        let none = Declared::default();
        direct::enqueue(&broker, declared.unwrap_or(&none), bodies, shape, key, self.trace.as_ref()).await
    }
}

/// Parse a prefix; an empty one is none.
fn parsed(prefix: &str) -> Result<TablePrefix, InvalidTablePrefix> {
    if prefix.is_empty() { Ok(TablePrefix::default()) } else { prefix.parse() }
}

enum Access<'a> {
    Broker(Broker, Option<&'a Declared>),
    Http(&'a Remote),
    None,
}

fn no_runner(attempted: &'static str) -> Error {
    Error::Unavailable { attempted, source: Box::new(NoRunner) }
}

/// The client that a runner hands out. Its clones end with it.
#[doc(hidden)]
#[derive(Debug)]
pub struct RunnerClient {
    client: Arc<Client>,
    _broker: Arc<Broker>,
}

impl RunnerClient {
    /// Make the client of the runner that writes through `broker`.
    #[must_use]
    pub fn new(broker: &Broker) -> Self {
        let broker = Arc::new(broker.clone());
        let client = Arc::new(Client::on(Backend::Runner(Arc::downgrade(&broker)), None));
        Self { client, _broker: broker }
    }

    /// Return a clone, which ends with the runner.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.as_ref().clone()
    }

    /// Return the client as the value that a [`Context`] carries for [`ContextExt::client`].
    #[must_use]
    pub fn attachment(&self) -> Arc<dyn Any + Send + Sync> {
        Arc::<Client>::clone(&self.client)
    }
}

/// The client in a [`Context`]. The prelude has this trait.
pub trait ContextExt {
    /// Return a client of the runner that executes this attempt. Its jobs continue the trace of this job.
    ///
    /// A job that is enqueued here stays when this attempt fails, and the next attempt enqueues it again: set an
    /// idempotency key made of [`Context::job_id`], with the same payload and options in each attempt. A unique key is
    /// not enough, because a job gives it up when it ends. A job that must follow exactly one success is a
    /// [follow-up](tickr_handlers::Output::then).
    ///
    /// The client of a context without a runner, as in a test of the handler alone, answers [`Error::Unavailable`].
    #[must_use]
    fn client(&self) -> Client;
}

impl ContextExt for Context {
    fn client(&self) -> Client {
        let backend =
            self.attached::<Client>().map_or_else(|| Backend::Runner(Weak::new()), |client| client.backend.clone());
        Client::on(backend, self.trace().cloned())
    }
}
