//! Remote workers: clients of `/v1/workers` that execute jobs of a declared kind and record them in the journal, as the
//! runners do. They lose answers, die with their jobs, and fall silent for longer than their lease. Each call goes to
//! any runner that is up.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine as _;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::faults::until_done;
use crate::journal::Journal;
use crate::kinds::{Act, Record};
use crate::locked;
use crate::request::{Answer, Request};
use crate::world::World;

/// The declared kind, and the queue of its jobs. No runner serves it.
pub(crate) const REMOTE: &str = "remote";
/// At most this number of its jobs may run at once, on all workers together.
pub(crate) const MAX_REMOTE: usize = 12;
/// Slots of each worker. The last one can have a suspect at any time.
const SLOTS: [usize; 4] = [6, 6, 3, 1];
/// Workers that fall silent. The others keep the jobs going meanwhile.
const FREEZING: usize = 2;
const LEASE_MS: u64 = 10_000;
/// An answer that was on its way for so long counts as lost: tickr may have given its jobs back.
const LONGEST_WAY: Duration = Duration::from_millis(LEASE_MS / 4);
/// Longest wait of a request for jobs.
const WAIT_MS: u64 = 3_000;
/// Time within which every runner knows a new declaration, with a margin for a busy machine.
const HEARD: Duration = Duration::from_millis(2_500);

/// Numbers of the run, for its summary.
#[derive(Debug, Default)]
pub(crate) struct Deeds {
    /// Jobs that were handed to a worker.
    pub(crate) fetched: AtomicUsize,
    /// Answers with jobs that the workers lost.
    pub(crate) undelivered: AtomicUsize,
    /// Workers that died.
    pub(crate) deaths: AtomicUsize,
    /// Workers that were silent for longer than their lease.
    pub(crate) freezes: AtomicUsize,
}

/// Declare the kind, and limit its queue.
pub(crate) async fn prepare(world: &World, rng: &mut StdRng) -> anyhow::Result<()> {
    let schema = json!({
        "type": "object", "required": ["name"], "additionalProperties": false,
        "properties": {
            "name": {"type": "string"}, "ms": {"type": "integer"}, "first": {"type": "string"}, "times": {"type": "integer"},
        },
    });
    let kind = json!({"schema": schema, "queue": REMOTE, "retry": {"base_ms": 200, "cap_ms": 2_000}});
    until_done(world, rng, Request::put(format!("/v1/kinds/{REMOTE}")).with(kind)).await?;
    until_done(world, rng, Request::patch(format!("/v1/queues/{REMOTE}")).with(json!({"concurrency": MAX_REMOTE})))
        .await?;
    // This is not a wait for an event: it is the time that tickr promises.
    tokio::time::sleep(HEARD).await;
    Ok(())
}

/// Start all workers. They die and fall silent until `calm` is cancelled, and leave when `end` is.
pub(crate) fn start(
    world: &Arc<World>,
    calm: &CancellationToken,
    end: &CancellationToken,
) -> anyhow::Result<Vec<tokio::task::JoinHandle<()>>> {
    let journal = Arc::new(Journal::open(&world.journal())?);
    let workers = SLOTS.iter().enumerate().map(|(number, slots)| {
        let worker = Program {
            world: Arc::clone(world),
            journal: Arc::clone(&journal),
            number,
            slots: *slots,
            calm: calm.clone(),
            end: end.clone(),
        };
        tokio::spawn(worker.live_until_the_end())
    });
    Ok(workers.collect())
}

/// A worker program. It is started again whenever it dies.
struct Program {
    world: Arc<World>,
    journal: Arc<Journal>,
    number: usize,
    slots: usize,
    calm: CancellationToken,
    end: CancellationToken,
}

/// What ends a life, or interrupts it.
#[derive(Clone, Copy)]
enum Fate {
    /// The process is gone, with everything that it knows.
    Dies,
    /// The process stands still, and goes on after this time as if nothing had happened.
    Freezes(Duration),
    /// The process gives its jobs back and leaves.
    Leaves,
}

impl Program {
    async fn live_until_the_end(self) {
        let mut rng = StdRng::seed_from_u64(self.world.seed.wrapping_mul(31).wrapping_add(self.number as u64));
        while !self.end.is_cancelled() {
            let life = Arc::new(Life {
                world: Arc::clone(&self.world),
                journal: Arc::clone(&self.journal),
                slots: self.slots,
                held: Mutex::default(),
                freed: Notify::new(),
                frozen: watch::Sender::new(false),
                id: watch::Sender::new(None),
                leaving: CancellationToken::new(),
            });
            let mut tasks = JoinSet::new();
            tasks.spawn(Arc::clone(&life).fetch(StdRng::seed_from_u64(rng.random())));
            tasks.spawn(Arc::clone(&life).beat(StdRng::seed_from_u64(rng.random())));
            tasks.spawn(Arc::clone(&life).finish(StdRng::seed_from_u64(rng.random())));
            loop {
                match self.fate(&mut rng).await {
                    Fate::Freezes(time) => {
                        self.world.deeds.freezes.fetch_add(1, Ordering::Relaxed);
                        life.frozen.send_replace(true);
                        tokio::time::sleep(time).await;
                        life.frozen.send_replace(false);
                    }
                    Fate::Dies => {
                        self.world.deeds.deaths.fetch_add(1, Ordering::Relaxed);
                        life.drop_handlers();
                        tasks.shutdown().await;
                        break;
                    }
                    Fate::Leaves => {
                        life.leaving.cancel();
                        tasks.join_all().await;
                        break;
                    }
                }
            }
            tokio::time::sleep(Duration::from_millis(rng.random_range(0..500))).await;
        }
    }

    async fn fate(&self, rng: &mut StdRng) -> Fate {
        let (calm, end) = (self.calm.clone(), self.end.clone());
        let pause = Duration::from_millis(rng.random_range(4_000..20_000));
        tokio::select! {
            () = end.cancelled() => return Fate::Leaves,
            () = async { calm.cancelled().await; end.cancelled().await } => return Fate::Leaves,
            () = tokio::time::sleep(pause) => {}
        }
        // While the clients of the load wait for the recovery from a fault, nothing else breaks.
        while self.world.quiet.load(Ordering::Relaxed) && !calm.is_cancelled() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        if calm.is_cancelled() {
            end.cancelled().await;
            return Fate::Leaves;
        }
        match rng.random_range(0..10) {
            0..3 if self.number < FREEZING => {
                Fate::Freezes(Duration::from_millis(rng.random_range(LEASE_MS / 2..LEASE_MS * 2)))
            }
            0..7 => Fate::Dies,
            _ => Fate::Leaves,
        }
    }
}

/// One process of a worker, from its registration to its end.
struct Life {
    world: Arc<World>,
    journal: Arc<Journal>,
    slots: usize,
    /// The attempts that it has received and whose verdicts are not answered, by token.
    held: Mutex<BTreeMap<String, Held>>,
    /// Signals that a handler has ended or that a slot is free.
    freed: Notify,
    frozen: watch::Sender<bool>,
    /// Its id and the time between two beats.
    id: watch::Sender<Option<(String, Duration)>>,
    leaving: CancellationToken,
}

/// What the journal needs to know of an attempt, and its time limit.
#[derive(Clone, Copy)]
struct Attempt {
    job: Uuid,
    uuid: Uuid,
    number: u32,
    timeout: Duration,
}

/// Return the part of a token that the runners write to the journal as well: it follows the id of the job.
fn in_journal(token: &str) -> Option<Uuid> {
    let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(token).ok()?;
    Uuid::from_slice(bytes.get(16..32)?).ok()
}

struct Held {
    attempt: Attempt,
    stop: CancellationToken,
    handler: Option<tokio::task::AbortHandle>,
    /// The verdict of the handler, when it has one.
    verdict: Option<Value>,
}

impl Life {
    /// Wait while the process stands still.
    async fn awake(&self) {
        let _ = self.frozen.subscribe().wait_for(|frozen| !frozen).await;
    }

    fn tokens(&self) -> Vec<String> {
        locked(&self.held).keys().cloned().collect()
    }

    fn drop_handlers(&self) {
        for held in locked(&self.held).values() {
            if let Some(handler) = &held.handler {
                handler.abort();
            }
        }
    }

    fn complain(&self, what: &str, answer: &Answer) {
        self.world.ledger.complain(format!("{what} of a remote worker was answered with {answer:?}"));
    }

    async fn register(&self, rng: &mut StdRng) {
        let body =
            json!({"name": "chaos", "kinds": [REMOTE], "queues": [REMOTE], "slots": self.slots, "lease_ms": LEASE_MS});
        while !self.leaving.is_cancelled() {
            self.awake().await;
            match self.world.call(rng, Request::post("/v1/workers").with(body.clone())).await {
                Answer::Said(201, said) => {
                    let (id, beat) = (said["id"].as_str().unwrap_or_default(), said["beat_ms"].as_u64().unwrap_or(1));
                    self.id.send_replace(Some((id.to_owned(), Duration::from_millis(beat))));
                    return;
                }
                Answer::Silent | Answer::NotSent | Answer::Said(429 | 500.., _) => {}
                // Not every runner has heard of the declaration when it has just come up.
                other @ Answer::Said(..) => self.complain("the registration", &other),
            }
            tokio::time::sleep(Duration::from_millis(rng.random_range(50..500))).await;
        }
    }

    /// Request jobs whenever a slot is free, one request at a time.
    async fn fetch(self: Arc<Self>, mut rng: StdRng) {
        self.register(&mut rng).await;
        let mut again: Option<Value> = None;
        while !self.leaving.is_cancelled() {
            self.awake().await;
            let Some((id, beat)) = self.id.borrow().clone() else { return };
            let tokens = self.tokens();
            let free = self.slots.saturating_sub(tokens.len());
            if free == 0 && again.is_none() {
                tokio::select! {
                    () = self.freed.notified() => {}
                    () = self.leaving.cancelled() => {}
                }
                continue;
            }
            let body = again.take().unwrap_or_else(|| {
                let fetch_id = Uuid::now_v7();
                json!({"slots": free, "wait_ms": WAIT_MS, "holding": tokens, "fetch_id": fetch_id})
            });
            let request = Request::post(format!("/v1/workers/{id}/fetch")).with(body.clone());
            let request = request.within(Duration::from_millis(WAIT_MS) + Duration::from_secs(5));
            let sent = Instant::now();
            let answer = tokio::select! {
                answer = self.world.call(&mut rng, request) => answer,
                () = self.leaving.cancelled() => break,
            };
            self.awake().await;
            match answer {
                Answer::Said(200, said) => {
                    let took = said["took_ms"].as_u64().map_or(Duration::MAX, Duration::from_millis);
                    if sent.elapsed().saturating_sub(took) >= LONGEST_WAY {
                        continue;
                    }
                    let jobs = said["jobs"].as_array().cloned().unwrap_or_default();
                    if !jobs.is_empty() && rng.random_ratio(1, 8) {
                        self.world.deeds.undelivered.fetch_add(1, Ordering::Relaxed);
                        again = rng.random_bool(0.5).then_some(body);
                        continue;
                    }
                    for job in &jobs {
                        self.begin(job);
                    }
                    if said["drain"] == true {
                        tokio::time::sleep(beat).await;
                    }
                }
                Answer::Said(404, _) => self.register(&mut rng).await,
                Answer::Silent | Answer::NotSent | Answer::Said(429 | 500.., _) => {
                    // Either is right: the same request again, or a new one, after which the jobs are given back.
                    again = rng.random_bool(0.5).then_some(body);
                    tokio::time::sleep(Duration::from_millis(rng.random_range(50..1_000))).await;
                }
                other @ Answer::Said(..) => self.complain("a request for jobs", &other),
            }
        }
    }

    /// Start the handler of a job, unless it was delivered before.
    fn begin(self: &Arc<Self>, job: &Value) {
        let parsed = (|| {
            let token = job["token"].as_str()?.to_owned();
            let attempt = Attempt {
                job: job["id"].as_str()?.parse().ok()?,
                uuid: in_journal(&token)?,
                number: u32::try_from(job["attempt"].as_u64()?).ok()?,
                timeout: Duration::from_millis(job["timeout_ms"].as_u64()?),
            };
            Some((token, attempt, serde_json::from_value(job["payload"].clone()).ok()?))
        })();
        let Some((token, attempt, record)) = parsed else {
            self.world.ledger.complain(format!("a remote worker was handed {job}"));
            return;
        };
        let mut held = locked(&self.held);
        if held.contains_key(&token) {
            return;
        }
        self.world.deeds.fetched.fetch_add(1, Ordering::Relaxed);
        let stop = CancellationToken::new();
        held.insert(token.clone(), Held { attempt, stop: stop.clone(), handler: None, verdict: None });
        let handler = tokio::spawn(Arc::clone(self).execute(token.clone(), attempt, record, stop));
        if let Some(held) = held.get_mut(&token) {
            held.handler = Some(handler.abort_handle());
        }
    }

    async fn execute(self: Arc<Self>, token: String, attempt: Attempt, record: Record, stop: CancellationToken) {
        let Attempt { job, uuid, number, timeout } = attempt;
        let _ = self.journal.write_start(job, uuid, number);
        let interrupted = async {
            // A third of the handlers stop for nothing.
            if job.as_u128().is_multiple_of(3) {
                std::future::pending::<()>().await;
            }
            let _ = tokio::time::timeout(timeout, stop.cancelled()).await;
        };
        let act = tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(record.ms)) => {
                Some(if number <= record.times { record.first } else { Act::Succeed })
            }
            () = interrupted => None,
        };
        self.awake().await;
        let (word, verdict) = match act {
            // Neither a snooze nor a release counts as an attempt used, so chance ends the series.
            Some(Act::Snooze) if rand::random() => {
                if rand::random() {
                    let delay = json!({"token": token, "verdict": "snoozed", "delay_ms": 300, "error": "on request"});
                    ("failed", delay)
                } else {
                    ("failed", json!({"token": token, "verdict": "released"}))
                }
            }
            Some(Act::Succeed | Act::Spin | Act::Snooze) => {
                ("done", json!({"token": token, "verdict": "succeeded", "result": {"token": uuid}}))
            }
            Some(Act::Reject) => {
                ("failed", json!({"token": token, "verdict": "rejected", "error": "rejected on request"}))
            }
            Some(Act::Fail | Act::Panic | Act::Abort) => {
                ("failed", json!({"token": token, "verdict": "failed", "error": "failed on request"}))
            }
            None => ("stopped", json!({"token": token, "verdict": "failed", "error": "told to stop"})),
        };
        let _ = self.journal.write(word, job, uuid);
        if let Some(held) = locked(&self.held).get_mut(&token) {
            held.verdict = Some(verdict);
        }
        self.freed.notify_waiters();
    }

    /// Renew the lease, and tell the handlers to stop.
    async fn beat(self: Arc<Self>, mut rng: StdRng) {
        loop {
            let Some((id, pause)) = self.id.borrow().clone() else {
                tokio::select! {
                    () = self.leaving.cancelled() => return,
                    () = tokio::time::sleep(Duration::from_millis(50)) => continue,
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.leaving.cancelled() => return,
            }
            loop {
                self.awake().await;
                let holding: Vec<Value> = self.tokens().iter().map(|token| json!({"token": token})).collect();
                let request = Request::post(format!("/v1/workers/{id}/beat")).with(json!({"holding": holding}));
                match self.world.call(&mut rng, request.within(Duration::from_secs(5))).await {
                    Answer::Said(200, said) => {
                        let told = ["cancel", "lost"].iter().filter_map(|word| said[word].as_array()).flatten();
                        for token in told.filter_map(Value::as_str) {
                            if let Some(held) = locked(&self.held).get(token) {
                                held.stop.cancel();
                            }
                        }
                        break;
                    }
                    // The next request for jobs registers it again.
                    Answer::Said(404, _) => break,
                    Answer::Silent | Answer::NotSent | Answer::Said(429 | 500.., _) => {}
                    other @ Answer::Said(..) => self.complain("a beat", &other),
                }
                if self.leaving.is_cancelled() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(rng.random_range(50..1_000))).await;
            }
        }
    }

    /// Send the verdicts, several in a call. After the last one, leave.
    async fn finish(self: Arc<Self>, mut rng: StdRng) {
        loop {
            let left = self.leaving.is_cancelled();
            let verdicts: Vec<Value> = locked(&self.held).values().filter_map(|held| held.verdict.clone()).collect();
            if verdicts.is_empty() {
                if left {
                    break;
                }
                tokio::select! {
                    () = self.freed.notified() => {}
                    () = self.leaving.cancelled() => {}
                    // A handler may have ended just before this waits.
                    () = tokio::time::sleep(Duration::from_millis(50)) => {}
                }
                continue;
            }
            if self.settle(&mut rng, &verdicts).await {
                self.freed.notify_waiters();
            }
        }
        self.leave(&mut rng).await;
    }

    /// Send these verdicts until they are answered, and now and then once more. Return whether they were answered.
    async fn settle(&self, rng: &mut StdRng, verdicts: &[Value]) -> bool {
        self.awake().await;
        let request = Request::post(format!("/v1/workers/{}/finish", self.name())).with(json!({"verdicts": verdicts}));
        let answer = self.world.call(rng, request.clone()).await;
        let Answer::Said(200, said) = &answer else {
            if !matches!(answer, Answer::Silent | Answer::NotSent | Answer::Said(429 | 500.., _)) {
                self.complain("verdicts", &answer);
            }
            tokio::time::sleep(Duration::from_millis(rng.random_range(50..500))).await;
            return false;
        };
        if rng.random_ratio(1, 8) {
            // The answer got lost, so the worker repeats the call.
            return false;
        }
        if rng.random_ratio(1, 8)
            && let Answer::Said(200, repeated) = self.world.call(rng, request).await
        {
            let words = |said: &Value| -> Vec<Value> {
                said["results"].as_array().into_iter().flatten().map(|result| result["result"].clone()).collect()
            };
            // What was locked may have been written meanwhile.
            let is_locked = |word: &Value| word == "locked";
            let is_other = |(a, b): (&Value, &Value)| a != b && !is_locked(a) && !is_locked(b);
            let (first, second) = (words(said), words(&repeated));
            if first.len() != second.len() || first.iter().zip(&second).any(is_other) {
                self.world.ledger.complain(format!("the same verdicts were answered with {said} and with {repeated}"));
            }
        }
        let mut held = locked(&self.held);
        for (verdict, result) in verdicts.iter().zip(said["results"].as_array().into_iter().flatten()) {
            // The row of the job is locked, so the verdict goes out once more.
            if result["result"] == "locked" {
                continue;
            }
            let Some(of) = verdict["token"].as_str().and_then(|token| held.remove(token)) else { continue };
            match result["result"].as_str() {
                Some("settled") if verdict["verdict"] == "succeeded" => {
                    self.world.ledger.write(|book| book.remote_successes.insert(of.attempt.job, of.attempt.uuid));
                }
                Some("settled" | "lease_lost") => {}
                _ => self.world.ledger.complain(format!("the verdict {verdict} was answered with {result}")),
            }
        }
        true
    }

    fn name(&self) -> String {
        self.id.borrow().as_ref().map(|(id, _)| id.clone()).unwrap_or_default()
    }

    /// Give back what the handlers have not ended, and leave.
    async fn leave(&self, rng: &mut StdRng) {
        self.drop_handlers();
        let name = self.name();
        if name.is_empty() {
            return;
        }
        for _ in 0..20 {
            match self.world.call(rng, Request::delete(format!("/v1/workers/{name}"))).await {
                Answer::Said(200..=299 | 404, _) => return,
                Answer::Silent | Answer::NotSent | Answer::Said(429 | 500.., _) => {}
                other @ Answer::Said(..) => self.complain("a goodbye", &other),
            }
            tokio::time::sleep(Duration::from_millis(rng.random_range(50..500))).await;
        }
    }
}
