//! The load: several clients of the API that enqueue, cancel, reschedule and retry jobs through any runner that
//! answers. They record every answer.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::enqueue::Enqueue;
use crate::journal;
use crate::kinds::Act;
use crate::later::WITHIN_MS;
use crate::ledger::Batch;
use crate::rates::{self, PACED, PACED_KEYS};
use crate::remote::{self, REMOTE};
use crate::request::{self, Answer, Request};
use crate::schedules;
use crate::world::World;

/// Number of clients.
const CALLERS: u64 = 6;
/// Longest pause of a client between two requests, in milliseconds. Together the clients enqueue about 100 jobs per
/// second.
const PAUSE_MS: u64 = 130;
/// Tenants: at most `MAX_OF_TENANT` jobs of each may run at once, on all runners together.
const TENANTS: u64 = 8;
pub(crate) const MAX_OF_TENANT: usize = 2;
/// At most `MAX_CALLS` callbacks run at once, on all runners together: all of them go to one host.
pub(crate) const MAX_CALLS: usize = 4;
/// A queue with a limit: at most `MAX_AT_ONCE` of its jobs may run at once, on all runners together.
pub(crate) const NARROW: &str = "narrow";
pub(crate) const MAX_AT_ONCE: usize = 2;
/// A queue that no runner serves. Its jobs have been overdue since the start.
pub(crate) const ELSEWHERE: &str = "elsewhere";
/// Size of that backlog, in batches of 500 jobs.
const ELSEWHERE_BATCHES: usize = 12;
/// Number of unique keys that the clients compete for.
const KEYS: u32 = 20;
/// Longest time that a client waits for the cancel of a batch: tickr answers after 20 s at most.
const CANCEL_WAIT: Duration = Duration::from_secs(25);
/// Number of order keys.
const LINES: u32 = 60;
/// One job in this many has an expiry.
const EXPIRING: u32 = 20;
/// One job in this many has follow-up jobs.
const FOLLOWED: u32 = 20;

/// Start all clients. Their tasks end when the token is cancelled.
pub(crate) fn start(world: &Arc<World>, stop: &CancellationToken) -> Vec<tokio::task::JoinHandle<()>> {
    (0..CALLERS)
        .map(|number| {
            let caller = Caller {
                world: Arc::clone(world),
                number,
                rng: StdRng::seed_from_u64(world.seed.wrapping_mul(CALLERS).wrapping_add(number)),
                made: 0,
                recent: Vec::new(),
            };
            tokio::spawn(caller.call_until_stopped(stop.clone()))
        })
        .collect()
}

/// Prepare the queues before the load begins: set the limit of one queue, and fill another one with a backlog that
/// stays.
pub(crate) async fn prepare(world: &World) -> anyhow::Result<()> {
    let mut rng = StdRng::seed_from_u64(world.seed);
    let limit = Request::patch(format!("/v1/queues/{NARROW}")).with(json!({"concurrency": MAX_AT_ONCE}));
    let answer = world.call(&mut rng, limit).await;
    anyhow::ensure!(matches!(answer, Answer::Said(200, _)), "the limit of {NARROW} was answered with {answer:?}");
    let limit = Request::put("/v1/limits/tenants").with(json!({"concurrency": MAX_OF_TENANT}));
    let answer = world.call(&mut rng, limit).await;
    anyhow::ensure!(matches!(answer, Answer::Said(201, _)), "the limit of tenants was answered with {answer:?}");
    rates::prepare(world, &mut rng).await?;
    remote::prepare(world, &mut rng).await?;
    schedules::prepare(world, &mut rng).await?;
    let breaker = json!({"failures": 4, "pause_ms": 400, "max_pause_ms": 1_600});
    let limit = json!({"kind": "http", "shared_by": "host", "concurrency": MAX_CALLS, "breaker": breaker});
    let answer = world.call(&mut rng, Request::put("/v1/limits/hosts").with(limit)).await;
    anyhow::ensure!(matches!(answer, Answer::Said(201, _)), "the limit of hosts was answered with {answer:?}");
    for batch in 0..ELSEWHERE_BATCHES {
        let job = |number: usize| {
            let name = format!("elsewhere-{batch}-{number}");
            (name.clone(), json!({"kind": "record", "payload": {"name": name}, "queue": ELSEWHERE}))
        };
        let made = Enqueue::batch((0..500).map(job).collect()).once().send(world, &mut rng).await;
        anyhow::ensure!(made.len() == 500, "batch {batch} of the backlog made {} jobs", made.len());
    }
    Ok(())
}

struct Caller {
    world: Arc<World>,
    number: u64,
    rng: StdRng,
    made: u64,
    /// Ids of recently accepted jobs, for requests about them.
    recent: Vec<Uuid>,
}

impl Caller {
    async fn call_until_stopped(mut self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            // The client finishes the request that it has sent, so that it records every answer.
            if !self.world.quiet.load(Ordering::Relaxed) {
                self.one_call().await;
            }
            let pause = Duration::from_millis(self.rng.random_range(0..PAUSE_MS));
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn one_call(&mut self) {
        match self.rng.random_range(0..100) {
            0..50 => {
                let (name, job) = self.job();
                self.enqueue(Enqueue::job(name, job)).await;
            }
            50..58 => {
                let jobs = (0..self.rng.random_range(2..=15)).map(|_| self.job()).collect();
                self.enqueue(Enqueue::batch(jobs)).await;
            }
            58..61 => {
                let batch = self.batch_with_callbacks();
                self.enqueue(batch).await;
            }
            61..62 => self.enqueue_nested_batches().await,
            62..70 => {
                let (name, mut job) = self.job();
                // A request that puts another job off would change the expiry of that one.
                job.as_object_mut().map(|job| job.remove("expires_in_ms"));
                job["unique_key"] = json!(format!("key{}", self.rng.random_range(0..KEYS)));
                if let Some(policy) = ["return", "reject", "replace", "postpone"].choose(&mut self.rng) {
                    job["on_conflict"] = json!(policy);
                }
                if self.rng.random_ratio(1, 4) {
                    job["unique_until"] = json!("start");
                }
                self.enqueue(Enqueue::job(name, job)).await;
            }
            70..75 => self.enqueue_nonsense().await,
            75..83 => self.cancel().await,
            83..87 => self.steer("run-now").await,
            87..90 => self.retry_a_failed_one().await,
            90..91 => self.discard_a_failed_one().await,
            91..93 => self.search().await,
            93..94 => self.cancel_a_batch().await,
            94..95 => self.retry_a_batch().await,
            _ => self.read().await,
        }
    }

    fn name(&mut self) -> String {
        self.made += 1;
        format!("c{}-{}", self.number, self.made)
    }

    /// Make a job, one in twenty with an expiry. Return its name and its body.
    fn job(&mut self) -> (String, Value) {
        let (name, mut job) = self.job_without_expiry();
        if self.rng.random_ratio(1, EXPIRING) {
            // Some expire before a worker is free, some between two attempts, and the others complete in time.
            let delay = job["delay_ms"].as_u64().unwrap_or(0);
            job["expires_in_ms"] = json!(delay + self.rng.random_range(20..3_000));
        }
        (name, job)
    }

    fn job_without_expiry(&mut self) -> (String, Value) {
        let name = self.name();
        if self.rng.random_ratio(1, 8) {
            let mut payload = json!({"url": self.world.sink.url(), "body": {"name": name}, "timeout_ms": 3_000});
            // Each keeps one of the few slots of its host until it is finished.
            if self.rng.random_ratio(1, 10) {
                payload["finish"] = json!({"within_ms": WITHIN_MS});
                if self.rng.random_ratio(1, 2) {
                    payload["finish"]["report_within_ms"] = json!(WITHIN_MS / 2);
                }
            }
            return (name, json!({"kind": "http", "payload": payload, "max_attempts": 10, "retry": quick()}));
        }
        let ms: u64 = match self.rng.random_range(0..100) {
            0..80 => self.rng.random_range(0..40),
            80..97 => self.rng.random_range(100..800),
            // Longer than a lease.
            _ => self.rng.random_range(1_500..3_500),
        };
        let first = match self.rng.random_range(0..100) {
            0..8 => Act::Fail,
            8..10 => Act::Snooze,
            10..12 => Act::Panic,
            12..13 => Act::Reject,
            13..15 => Act::Spin,
            _ => Act::Succeed,
        };
        let ms = if first == Act::Spin { ms.min(300) } else { ms };
        let times = self.rng.random_range(1..=2);
        let mut payload = json!({"name": name, "ms": ms, "first": first, "times": times});
        if self.rng.random_ratio(1, FOLLOWED) {
            payload["then"] = json!(self.rng.random_range(1..=3));
        }
        let attempts = if self.rng.random_ratio(1, 30) { 1 } else { 10 };
        let mut job = json!({"kind": "record", "payload": payload, "max_attempts": attempts, "retry": quick()});
        if self.rng.random_ratio(1, 5) {
            job["delay_ms"] = json!(self.rng.random_range(50..6_000));
        }
        match self.rng.random_range(0..100) {
            0..25 => job["queue"] = json!("side"),
            // The duration is short, so that two executions at a time are enough for this queue.
            25..31 => {
                job["queue"] = json!(NARROW);
                job["payload"]["ms"] = json!(ms.min(60));
            }
            _ => {}
        }
        if self.rng.random_ratio(1, 10) {
            // The jobs of schedules have a priority for themselves.
            let priority = self.rng.random_range(0..=9);
            job["priority"] = json!(if priority == schedules::PRIORITY { 0 } else { priority });
        }
        if self.rng.random_ratio(1, 50) {
            job["timeout_ms"] = json!(400);
        }
        if self.rng.random_ratio(1, 3) {
            job["order_key"] = json!(format!("line{}", self.rng.random_range(0..LINES)));
            job["on_failure"] = json!(["skip", "block"].choose(&mut self.rng));
            // The jobs behind one that holds its line for seconds would be too many for a short run.
            job["payload"]["ms"] = json!(ms.min(60));
            job.as_object_mut().map(|job| job.remove("delay_ms"));
        }
        if self.rng.random_ratio(1, 3) {
            job["limit_key"] = json!(format!("tenant{}", self.rng.random_range(0..TENANTS)));
            // Few jobs of a tenant run at once, and a short run must get through all of them.
            job["payload"]["ms"] = json!(ms.min(60));
        }
        if self.rng.random_ratio(1, 20) {
            job["queue"] = json!(PACED);
            job["limit_key"] = json!(format!("paced{}", self.rng.random_range(0..PACED_KEYS)));
            job["payload"]["ms"] = json!(ms.min(20));
            // Jobs that wait for each other would seldom wait for the rate.
            job.as_object_mut().map(|job| (job.remove("order_key"), job.remove("on_failure")));
        } else if job["queue"] != NARROW && self.rng.random_ratio(1, 6) {
            // Its kind has this default queue.
            job["kind"] = json!(REMOTE);
            job.as_object_mut().map(|job| job.remove("queue"));
            // The verdict of a remote worker has no follow-up jobs.
            job["payload"].as_object_mut().map(|payload| payload.remove("then"));
        }
        (name, job)
    }

    /// Make a closed batch with callbacks. Some of its jobs wait for others of it.
    fn batch_with_callbacks(&mut self) -> Enqueue {
        let mut jobs: Vec<(String, Value)> = (0..self.rng.random_range(2..=12)).map(|_| self.job()).collect();
        for (place, (_, job)) in jobs.iter_mut().enumerate().skip(1) {
            if self.rng.random_ratio(1, 2) {
                let parents: Vec<usize> = (0..3).map(|_| self.rng.random_range(0..place)).collect();
                let policy = ["cancel", "run"].choose(&mut self.rng);
                if let Some(job) = job.as_object_mut() {
                    // A job with parents has no order key.
                    job.remove("order_key");
                    job.remove("on_failure");
                    job.insert("after".to_owned(), json!(parents));
                    job.insert("on_parent_failure".to_owned(), json!(policy));
                }
            }
        }
        let callbacks = ["on_complete", "on_success", "on_failure"].map(|event| {
            let name = format!("{}-{event}", self.name());
            let payload = json!({"name": name, "ms": 1, "first": Act::Succeed, "times": 1});
            (event, name, json!({"kind": "record", "payload": payload, "max_attempts": 10, "retry": quick()}))
        });
        Enqueue::with_callbacks(jobs, callbacks)
    }

    /// Create up to four batches, each nested in the one before it that is open, and close the open ones. Any of them may be
    /// cancelled meanwhile.
    async fn enqueue_nested_batches(&mut self) {
        let mut opened: Vec<Uuid> = Vec::new();
        for _ in 0..self.rng.random_range(2..=4) {
            let mut batch = self.batch_with_callbacks().once();
            if let Some(outer) = opened.last() {
                batch = batch.nested_in(*outer);
            }
            let is_open = opened.is_empty() || self.rng.random_ratio(1, 3);
            let jobs = self.enqueue(if is_open { batch.open() } else { batch }).await;
            let made = self.world.ledger.write(|book| {
                let of_jobs = |batch: &&Batch| !jobs.is_empty() && batch.jobs == jobs;
                book.batches.iter().rev().find(of_jobs).map(|batch| batch.id)
            });
            opened.extend(made.filter(|_| is_open));
            if opened.is_empty() {
                return;
            }
        }
        for id in opened {
            for _ in 0..20 {
                match self.world.call(&mut self.rng, Request::post(format!("/v1/batches/{id}/close"))).await {
                    Answer::Said(200, _) => break,
                    Answer::Said(429 | 500.., _) | Answer::Silent | Answer::NotSent => {}
                    other @ Answer::Said(..) => {
                        self.world.ledger.complain(format!("the close of batch {id} was answered with {other:?}"));
                        break;
                    }
                }
                tokio::time::sleep(Duration::from_millis(self.rng.random_range(50..500))).await;
            }
        }
    }

    /// Retry the failed jobs of one of the newest batches, and those of the batches nested in it.
    async fn retry_a_batch(&mut self) {
        let ledger = &self.world.ledger;
        let newest: Vec<Uuid> = ledger.write(|book| book.batches.iter().rev().take(8).map(|batch| batch.id).collect());
        let Some(id) = newest.choose(&mut self.rng).copied() else { return };
        self.note_of_batch(id, |batch| batch.retry_asked = true);
        let request = Request::post(format!("/v1/batches/{id}/retry"));
        if let Answer::Said(404, _) = self.world.call(&mut self.rng, request).await {
            self.world.ledger.complain(format!("accepted batch {id} was not found to retry"));
        }
    }

    /// Send the jobs with or without an `Idempotency-Key`. Without it, the client cannot repeat the request. Return the ids
    /// of new jobs.
    async fn enqueue(&mut self, enqueue: Enqueue) -> Vec<Uuid> {
        let enqueue = if self.rng.random_ratio(1, 2) { enqueue.once() } else { enqueue };
        let made = enqueue.send(&self.world, &mut self.rng).await;
        self.recent.extend(&made);
        let old = self.recent.len().saturating_sub(30);
        self.recent.drain(..old);
        made
    }

    /// Send a request that the API must refuse, and that must leave nothing behind.
    async fn enqueue_nonsense(&mut self) {
        let (name, mut job) = self.job();
        let mut enqueue = None;
        match self.rng.random_range(0..4) {
            0 => job["kind"] = json!("unheard-of"),
            1 => job["payload"]["surplus"] = json!(1),
            2 => job["max_attempts"] = json!(0),
            _ => {
                job["payload"] = json!("not an object");
                enqueue = Some(Enqueue::batch(vec![self.job(), (name.clone(), job.clone())]));
            }
        }
        self.enqueue(enqueue.unwrap_or_else(|| Enqueue::job(name, job)).refused_with(422)).await;
    }

    async fn cancel(&mut self) {
        let Some(id) = self.recent.choose(&mut self.rng).copied() else { return };
        self.world.ledger.write(|book| book.cancel_asked.insert(id));
        let answer = self.world.call(&mut self.rng, Request::post(format!("/v1/jobs/{id}/cancel"))).await;
        let lines = journal::lines(&self.world.journal());
        match answer {
            Answer::Said(200, body) => {
                if body["state"] != "cancelled" {
                    self.world.ledger.complain(format!("cancel of {id} answered 200 and state {}", body["state"]));
                }
                self.world.ledger.write(|book| book.cancelled.insert(id, lines));
            }
            Answer::Said(409, _) => {
                self.world.ledger.write(|book| book.over.insert(id));
            }
            Answer::Said(404, _) => self.world.ledger.complain(format!("accepted job {id} was not found to cancel")),
            Answer::Said(..) | Answer::Silent | Answer::NotSent => {}
        }
    }

    /// Cancel one of the newest batches, most of which are under way, with all of its jobs.
    async fn cancel_a_batch(&mut self) {
        let ledger = &self.world.ledger;
        let newest: Vec<Uuid> = ledger.write(|book| book.batches.iter().rev().take(4).map(|batch| batch.id).collect());
        let Some(id) = newest.choose(&mut self.rng).copied() else { return };
        self.note_of_batch(id, |batch| batch.cancel_asked = true);
        let request = Request::post(format!("/v1/batches/{id}/cancel")).within(CANCEL_WAIT);
        let answer = self.world.call(&mut self.rng, request).await;
        match answer {
            // The answer to a batch that ended at that moment is 200 as well, and such a batch is not cancelled. 202 says
            // that some jobs are still to be cancelled, so these may start.
            Answer::Said(status @ (200 | 202), body) => {
                let is_cancelled = body["cancelled_at"].is_string();
                self.note_of_batch(id, |batch| batch.cancelled |= is_cancelled);
                if status == 200 {
                    match rates::now(&self.world).await {
                        Ok(now) => self.note_of_batch(id, |batch| batch.still_from = batch.still_from.or(Some(now))),
                        Err(error) => self.world.ledger.complain(format!("mysql does not tell its time: {error:#}")),
                    }
                }
            }
            Answer::Said(404, _) => self.world.ledger.complain(format!("accepted batch {id} was not found to cancel")),
            Answer::Said(..) | Answer::Silent | Answer::NotSent => {}
        }
    }

    fn note_of_batch(&self, id: Uuid, note: impl FnOnce(&mut Batch)) {
        self.world.ledger.write(|book| {
            if let Some(batch) = book.batches.iter_mut().find(|batch| batch.id == id) {
                note(batch);
            }
        });
    }

    async fn steer(&mut self, what: &str) {
        let Some(id) = self.recent.choose(&mut self.rng).copied() else { return };
        let answer = self.world.call(&mut self.rng, Request::post(format!("/v1/jobs/{id}/{what}"))).await;
        if let Answer::Said(404, _) = answer {
            self.world.ledger.complain(format!("accepted job {id} was not found to {what}"));
        }
    }

    async fn a_failed_one(&mut self) -> Option<Uuid> {
        let listing = self.world.call(&mut self.rng, Request::get("/v1/jobs?state=failed&limit=20")).await;
        let Answer::Said(200, page) = listing else { return None };
        let ids: Vec<Uuid> = page["data"].as_array().into_iter().flatten().filter_map(request::id_of).collect();
        ids.choose(&mut self.rng).copied()
    }

    async fn discard_a_failed_one(&mut self) {
        if let Some(id) = self.a_failed_one().await {
            let _ = self.world.call(&mut self.rng, discard(id)).await;
        }
    }

    async fn retry_a_failed_one(&mut self) {
        let Some(id) = self.a_failed_one().await else { return };
        // A job that kills runners is not retried, because the number of runners that it may kill is checked at the
        // end.
        let poison = self.world.ledger.write(|book| {
            let poison = book.accepted.get(&id).is_some_and(|name| book.poison.contains(name));
            if !poison {
                book.retry_asked.insert(id);
            }
            poison
        });
        if !poison {
            let _ = self.world.call(&mut self.rng, Request::post(format!("/v1/jobs/{id}/retry"))).await;
        }
    }

    /// Search all jobs. A runner may refuse the search when too many searches run.
    async fn search(&mut self) {
        let answer = self.world.call(&mut self.rng, Request::get("/v1/jobs/count?q=payload.name:none")).await;
        if let Answer::Said(status @ 400..=499, body) = answer
            && status != 429
        {
            self.world.ledger.complain(format!("a search was answered with {status}: {body}"));
        }
    }

    /// Read an accepted job, which every runner must be able to return at any moment.
    async fn read(&mut self) {
        let Some(id) = self.recent.choose(&mut self.rng).copied() else { return };
        let answer = self.world.call(&mut self.rng, Request::get(format!("/v1/jobs/{id}"))).await;
        if let Answer::Said(404, _) = answer {
            self.world.ledger.complain(format!("accepted job {id} was not found to read"));
        }
    }
}

/// Make the request that discards a failed job, so that it blocks no other one.
pub(crate) fn discard(id: Uuid) -> Request {
    Request::post(format!("/v1/jobs/{id}/discard")).with(json!({"reason": "it blocks its order key"}))
}

/// Return a backoff that fits into a short run.
pub(crate) fn quick() -> Value {
    json!({"base_ms": 200, "cap_ms": 2_000})
}
