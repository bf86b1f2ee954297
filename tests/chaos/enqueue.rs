//! Requests that enqueue jobs. The client sends a request once, or with an `Idempotency-Key` until it knows the
//! outcome, and records the outcome in the ledger.

use std::time::Duration;

use rand::Rng as _;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::ledger::Batch;
use crate::request::{Answer, Request, id_of};
use crate::world::World;

/// Largest number of times that a client sends a request with an `Idempotency-Key`. It is enough for the longest fault.
const MAX_TRIES: u32 = 60;

/// One enqueue of one or more jobs: all of them or none.
pub(crate) struct Enqueue {
    /// Names of the jobs.
    names: Vec<String>,
    request: Request,
    /// Whether the job has a unique key, which another job may hold.
    keyed: bool,
    /// Status of the expected refusal, if one is expected.
    refusal: Option<u16>,
    once: bool,
    /// Names of the callbacks of a batch, that of its end first.
    callbacks: Vec<String>,
    /// Whether the batch is nested in one that may be cancelled by now.
    nested: bool,
}

impl Enqueue {
    const fn new(names: Vec<String>, request: Request) -> Self {
        Self { names, request, keyed: false, refusal: None, once: false, callbacks: Vec::new(), nested: false }
    }

    pub(crate) fn job(name: String, job: Value) -> Self {
        let keyed = job.get("unique_key").is_some();
        Self { keyed, ..Self::new(vec![name], Request::post("/v1/jobs").with(job)) }
    }

    pub(crate) fn batch(jobs: Vec<(String, Value)>) -> Self {
        let (names, jobs): (Vec<String>, Vec<Value>) = jobs.into_iter().unzip();
        Self::new(names, Request::post("/v1/jobs/batch").with(json!({"jobs": jobs})))
    }

    /// Create a closed batch of these jobs with these callbacks: the field of the API, the name of the job, and its body.
    pub(crate) fn with_callbacks(jobs: Vec<(String, Value)>, callbacks: [(&str, String, Value); 3]) -> Self {
        let (names, jobs): (Vec<String>, Vec<Value>) = jobs.into_iter().unzip();
        let mut body = json!({"jobs": jobs, "close": true});
        let mut of_callbacks = Vec::new();
        for (event, name, job) in callbacks {
            body[event] = job;
            of_callbacks.push(name);
        }
        Self { callbacks: of_callbacks, ..Self::new(names, Request::post("/v1/batches").with(body)) }
    }

    /// Leave the batch open, so that batches can be nested in it.
    pub(crate) fn open(self) -> Self {
        Self { request: self.request.and("close", json!(false)), ..self }
    }

    /// Nest the batch in this one.
    pub(crate) fn nested_in(self, outer: Uuid) -> Self {
        Self { request: self.request.and("parent", json!(outer)), nested: true, ..self }
    }

    /// Carry the request out at most once: send it with an `Idempotency-Key`, and repeat it until there is an answer.
    pub(crate) fn once(mut self) -> Self {
        self.request = self.request.once(self.names[0].clone());
        self.once = true;
        self
    }

    pub(crate) fn refused_with(mut self, status: u16) -> Self {
        self.refusal = Some(status);
        self
    }

    /// Send the request to any runner that answers and record the outcome. Return the ids of new jobs.
    pub(crate) async fn send(self, world: &World, rng: &mut StdRng) -> Vec<Uuid> {
        // An earlier try may have been carried out although its answer is not known.
        let mut doubt = false;
        for _ in 0..if self.once { MAX_TRIES } else { 1 } {
            let answer = if self.once && rng.random_ratio(1, 10) {
                self.twice_at_once(world, rng).await
            } else {
                world.call(rng, self.request.clone()).await
            };
            match &answer {
                Answer::Said(201, body) => {
                    if self.once && rng.random_ratio(1, 10) {
                        self.again(world, rng, body).await;
                    }
                    return self.accepted(world, body);
                }
                Answer::Said(500.., _) | Answer::Silent => doubt = true,
                Answer::Said(409, body) if body["code"] == "idempotency_in_progress" => {}
                Answer::Said(429, _) | Answer::NotSent => {}
                Answer::Said(..) => {
                    self.refused(world, &answer, doubt);
                    return Vec::new();
                }
            }
            if self.once {
                tokio::time::sleep(Duration::from_millis(rng.random_range(50..500))).await;
            }
        }
        let names = self.names.into_iter().chain(self.callbacks);
        world.ledger.write(|book| if doubt { &mut book.unknown } else { &mut book.refused }.extend(names));
        Vec::new()
    }

    /// Send two requests with one `Idempotency-Key` at the same time, most likely to two runners. The two answers must
    /// agree.
    async fn twice_at_once(&self, world: &World, rng: &mut StdRng) -> Answer {
        let mut other: StdRng = rand::SeedableRng::seed_from_u64(rng.random());
        let pair = tokio::join!(world.call(rng, self.request.clone()), world.call(&mut other, self.request.clone()));
        match pair {
            (Answer::Said(201, one), Answer::Said(201, two)) if one != two => {
                world.ledger.complain(format!("one key was answered with {one} and with {two}"));
                Answer::Said(201, one)
            }
            (Answer::Said(201, one), _) => Answer::Said(201, one),
            (_, Answer::Said(201, two)) => Answer::Said(201, two),
            // An unknown outcome decides: the request that one runner refused may still be under way at the other
            // runner.
            (one, two) => {
                if matches!(one, Answer::Said(400..=499, _)) {
                    two
                } else {
                    one
                }
            }
        }
    }

    /// Repeat an answered request and check that its answer is the same.
    async fn again(&self, world: &World, rng: &mut StdRng, first: &Value) {
        match world.call(rng, self.request.clone()).await {
            Answer::Said(201, second) if second == *first => {}
            Answer::Said(429 | 500.., _) | Answer::Silent | Answer::NotSent => {}
            Answer::Said(409, body) if body["code"] == "idempotency_in_progress" => {}
            other @ Answer::Said(..) => world.ledger.complain(format!("a repeat got {other:?}, not {first}")),
        }
    }

    fn accepted(self, world: &World, body: &Value) -> Vec<Uuid> {
        let ids: Vec<Uuid> = match body["jobs"].as_array() {
            // A batch answers with ids, other requests with receipts.
            Some(receipts) => receipts
                .iter()
                .filter_map(|receipt| receipt.as_str().map_or_else(|| id_of(receipt), |text| text.parse().ok()))
                .collect(),
            None => id_of(body).into_iter().collect(),
        };
        if ids.len() != self.names.len() {
            world.ledger.complain(format!("{:?} were accepted as {ids:?}", self.names));
        }
        if self.refusal.is_some() {
            world.ledger.complain(format!("{:?} make no sense and were accepted", self.names));
        }
        world.ledger.write(|book| {
            if let Some(of_end) = self.callbacks.first() {
                // A parent that fails cancels its children.
                book.children.extend(ids.iter().copied());
                book.callbacks.insert(of_end.clone());
                let (jobs, callbacks) = (ids.clone(), self.callbacks.clone());
                let batch = |id| Batch { id, jobs, callbacks, ..Batch::default() };
                book.batches.extend(id_of(body).map(batch));
            }
            book.unknown.extend(self.callbacks);
            if self.keyed {
                book.keyed.extend(ids.iter().copied());
            }
            book.accepted.extend(ids.iter().copied().zip(self.names));
        });
        ids
    }

    /// Record a refusal, and report an answer that makes no sense.
    fn refused(self, world: &World, answer: &Answer, doubt: bool) {
        let usual = match answer {
            Answer::Said(200, _) => self.keyed,
            Answer::Said(409, body) => self.keyed || (self.nested && body["code"] == "wrong_state"),
            Answer::Said(status, _) => self.refusal == Some(*status),
            Answer::Silent | Answer::NotSent => true,
        };
        if !usual {
            world.ledger.complain(format!("{:?} were answered with {answer:?}", self.names));
        }
        // tickr does not store a refusal with the `Idempotency-Key`, so an earlier try that is still under way may be
        // carried out after it. The answer 200 is different: another job holds the unique key, and that is final.
        let final_word = !doubt || matches!(answer, Answer::Said(200, _));
        let names = self.names.into_iter().chain(self.callbacks);
        world.ledger.write(|book| if final_word { &mut book.refused } else { &mut book.unknown }.extend(names));
    }
}
