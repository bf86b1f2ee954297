//! The builders of [`Client::enqueue`], [`Client::enqueue_many`] and [`Client::enqueue_chain`].

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use serde_json::value::RawValue;

use super::direct::RequestShape;
use super::options::{Options, payload_json};
use super::{Client, Enqueued, Error};
use tickr_handlers::{Kind, Problem};
use tickr_job::{BatchId, Due, JobId, OnConflict, OnFailure, OnParentFailure, RetryPolicy, Timestamp, UniqueUntil};
use tickr_store::MySqlConnection;

/// A job that is about to be enqueued. Set its options, then `await` it.
#[derive(Debug)]
#[must_use = "nothing is enqueued before the await"]
pub struct Enqueue {
    client: Client,
    kind: &'static str,
    payload: Result<Box<RawValue>, Error>,
    options: Options,
}

/// Jobs of one kind that are about to be enqueued, all or none. Set their options, then `await` them.
#[derive(Debug)]
#[must_use = "nothing is enqueued before the await"]
pub struct EnqueueMany {
    client: Client,
    kind: &'static str,
    payloads: Result<Vec<Keyed>, Error>,
    options: Options,
}

/// Jobs that are about to be enqueued, all or none, to run one after the other. Set their options, then `await` them. The
/// options of each job are those of its own builder.
#[derive(Debug)]
#[must_use = "nothing is enqueued before the await"]
pub struct EnqueueChain {
    client: Client,
    jobs: Vec<Enqueue>,
    idempotency_key: Option<String>,
}

/// A payload and the unique key of its job.
type Keyed = (Box<RawValue>, Option<String>);

macro_rules! shared_options {
    ($builder:ty) => {
        impl $builder {
            /// Start this long after the enqueue, by the clock of MySQL. At most 366 days.
            pub fn delay(mut self, delay: Duration) -> Self {
                self.options.due = Due::After(delay);
                self
            }

            /// Start at this moment, by the clock of MySQL. A moment in the past means now.
            pub fn execute_at(mut self, moment: impl Into<Timestamp>) -> Self {
                self.options.due = Due::At(moment.into());
                self
            }

            /// Put the job into this queue. Default: `default`.
            pub fn queue(mut self, queue: impl Into<String>) -> Self {
                self.options.queue = Some(queue.into());
                self
            }

            /// Set the priority within the queue, 0 (first) to 9 (last). Default: 5.
            pub fn priority(mut self, priority: u8) -> Self {
                self.options.priority = Some(priority);
                self
            }

            /// Let the job expire this long after its acceptance: no attempt starts then or later. If it has not ended by
            /// then and does not run, it fails.
            pub fn expires_in(mut self, time: Duration) -> Self {
                self.options.expires = Some(Due::After(time));
                self
            }

            /// Let the job expire at this moment, as [`expires_in`](Self::expires_in) does.
            pub fn expires_at(mut self, moment: Timestamp) -> Self {
                self.options.expires = Some(Due::At(moment));
                self
            }

            /// Set the number of attempts before the job fails, 1 to 100. Default: that of the kind.
            pub fn max_attempts(mut self, most: u32) -> Self {
                self.options.max_attempts = Some(most);
                self
            }

            /// Set the time limit of one attempt. Default: that of the kind.
            pub fn timeout(mut self, limit: Duration) -> Self {
                self.options.timeout = Some(limit);
                self
            }

            /// Set the delays between attempts. Default: those of the kind.
            pub fn retry(mut self, policy: RetryPolicy) -> Self {
                self.options.retry = Some(policy.into());
                self
            }

            /// Set the order key: jobs with the same one run one at a time, in the order in which they were accepted.
            pub fn order_key(mut self, key: impl Into<String>) -> Self {
                self.options.order_key = Some(key.into());
                self
            }

            /// Set the limit key: the limits that operators set count the jobs with the same one.
            pub fn limit_key(mut self, key: impl Into<String>) -> Self {
                self.options.limit_key = Some(key.into());
                self
            }

            /// Set what the final failure of the job does to the jobs behind it with the same order key. Default: it
            /// blocks them. Only together with an order key.
            pub fn on_failure(mut self, action: OnFailure) -> Self {
                self.options.on_failure = Some(action);
                self
            }

            /// Let the job wait until these jobs, its parents, have ended. At most 100. A repeated call adds parents.
            pub fn after(mut self, parents: impl IntoIterator<Item = JobId>) -> Self {
                self.options.after.extend(parents);
                self
            }

            /// Set what happens to the job when a parent fails for good or is cancelled. Default: it is cancelled. Only
            /// together with parents.
            pub fn on_parent_failure(mut self, action: OnParentFailure) -> Self {
                self.options.on_parent_failure = Some(action);
                self
            }

            /// Add the job to a batch, which must not have ended.
            pub fn batch(mut self, batch: BatchId) -> Self {
                self.options.batch = Some(batch);
                self
            }

            /// Add a tag to find the job by. At most ten.
            pub fn tag(mut self, tag: impl Into<String>) -> Self {
                self.options.tags.push(tag.into());
                self
            }

            /// Carry out this request at most once (G8): a repetition with the same key, payload and options enqueues
            /// nothing and gets the first answer.
            pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
                self.options.idempotency_key = Some(key.into());
                self
            }
        }
    };
}

shared_options!(Enqueue);
shared_options!(EnqueueMany);

impl Enqueue {
    pub(super) fn new<K: Kind>(client: Client, payload: &K) -> Self {
        Self { client, kind: K::NAME, payload: payload_json(payload), options: Options::default() }
    }

    /// Set the unique key: at most one unfinished job of the kind has it.
    pub fn unique_key(mut self, key: impl Into<String>) -> Self {
        self.options.unique_key = Some(key.into());
        self
    }

    /// Make the unique key from these fields of the payload, JSON pointers such as `/to`. Instead of
    /// [`unique_key`](Self::unique_key).
    pub fn unique_fields(mut self, pointers: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.options.unique_fields = pointers.into_iter().map(Into::into).collect();
        self
    }

    /// Set when the job gives up its unique key. Default: when it ends. With [`UniqueUntil::Start`], work that is
    /// requested while the job runs becomes a job of its own.
    pub fn unique_until(mut self, until: UniqueUntil) -> Self {
        self.options.unique_until = Some(until);
        self
    }

    /// Keep the unique key taken for at least this long, also when the job completes before. Whole milliseconds, at
    /// most 366 days.
    pub fn unique_for(mut self, time: Duration) -> Self {
        self.options.unique_for = Some(time);
        self
    }

    /// Set how long after its acceptance other requests can put the job off at most. Only with
    /// [`OnConflict::Postpone`]. Whole milliseconds, at most 366 days.
    pub fn max_wait(mut self, time: Duration) -> Self {
        self.options.max_wait = Some(time);
        self
    }

    /// Set the action for an unfinished job that has the unique key. Default: return that job.
    pub fn on_conflict(mut self, action: OnConflict) -> Self {
        self.options.on_conflict = Some(action);
        self
    }
}

impl EnqueueMany {
    pub(super) fn new<'a, K: Kind>(client: Client, payloads: impl IntoIterator<Item = &'a K>) -> Self {
        let payloads = payloads.into_iter().map(|payload| Ok((payload_json(payload)?, None))).collect();
        Self { client, kind: K::NAME, payloads, options: Options::default() }
    }

    /// Set a unique key for each job, in the order of the payloads. A job whose key an unfinished job has is not
    /// written: that job is the answer in its place. Payloads beyond the keys have none.
    pub fn unique_keys(mut self, keys: impl IntoIterator<Item = impl Into<String>>) -> Self {
        if let Ok(payloads) = &mut self.payloads {
            for ((_, place), key) in payloads.iter_mut().zip(keys) {
                *place = Some(key.into());
            }
        }
        self
    }
}

impl EnqueueChain {
    pub(super) fn new(client: Client, jobs: impl IntoIterator<Item = Enqueue>) -> Self {
        Self { client, jobs: jobs.into_iter().collect(), idempotency_key: None }
    }

    /// Carry out this request at most once (G8): a repetition with the same key and the same jobs enqueues nothing and gets
    /// the first answer. A job of the chain has no key of its own.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }
}

impl Enqueue {
    /// Enqueue the job in a transaction of yours, on the MySQL server of tickr: it exists exactly if the transaction is
    /// committed. Returns the id that the job will have. Await this instead of the builder. A client of the API inserts
    /// into the database of the transaction, so that one may also be an outbox in the database of an application.
    ///
    /// The job starts about a tenth of a second after the COMMIT, and the first one after a quiet time within about a
    /// second. After a nudge it starts at once ([`Client::nudge`]; a client with connections of its own has no runner to
    /// wake). A client of this process or with connections of its own checks the job before it is written. An idempotency
    /// key is not possible here: the transaction of the caller is carried out once. A transaction that is repeated because
    /// its COMMIT got no answer makes a job with another id, so give that job a unique key: the first job holds it until
    /// it ends.
    ///
    /// # Errors
    /// See [`Error`]. The transaction can still be rolled back. After [`Error::Transaction`], roll it back and run all
    /// of it again: a repeated call alone could commit the job without the transaction.
    pub async fn within(self, transaction: &mut MySqlConnection) -> Result<JobId, Error> {
        let Self { client, kind, payload, options } = self;
        if options.idempotency_key.is_some() {
            return Err(Error::refused(Problem::at("/idempotency_key", "may not be given within a transaction")));
        }
        let body = options.body(kind, payload?);
        client.insert_within(transaction, body).await
    }
}

impl IntoFuture for Enqueue {
    type Output = Result<Enqueued, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { client, kind, payload, options } = self;
            let body = options.body(kind, payload?);
            client.send_one(body, options.idempotency_key.as_deref()).await
        })
    }
}

impl IntoFuture for EnqueueMany {
    type Output = Result<Vec<Enqueued>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { client, kind, payloads, options } = self;
            let body = |(payload, unique_key): Keyed| Options { unique_key, ..options.clone() }.body(kind, payload);
            let bodies: Vec<_> = payloads?.into_iter().map(body).collect();
            if bodies.is_empty() {
                return Ok(Vec::new());
            }
            client.send_many(bodies, RequestShape::Many, options.idempotency_key.as_deref()).await
        })
    }
}

impl IntoFuture for EnqueueChain {
    type Output = Result<Vec<Enqueued>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { client, jobs, idempotency_key } = self;
            let mut bodies = Vec::with_capacity(jobs.len());
            for (place, Enqueue { kind, payload, options, .. }) in jobs.into_iter().enumerate() {
                if options.idempotency_key.is_some() {
                    let pointer = format!("/jobs/{place}/idempotency_key");
                    return Err(Error::refused(Problem::at(pointer, "may not be given: give the chain one")));
                }
                bodies.push(options.body(kind, payload?));
            }
            if bodies.is_empty() {
                return Ok(Vec::new());
            }
            client.send_many(bodies, RequestShape::Chain, idempotency_key.as_deref()).await
        })
    }
}
