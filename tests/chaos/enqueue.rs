//! Jobs on their way in: sent once, or with an `Idempotency-Key` as often as it takes to know what became of them, and
//! then written down.

use std::time::Duration;

use rand::Rng as _;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::request::{Answer, Request, id_of};
use crate::world::World;

/// How often a request with a key is sent, at the most. Longer than any fault lasts.
const MOST_TRIES: u32 = 60;

/// Jobs to enqueue, all or none.
pub(crate) struct Enqueue {
    /// What the jobs are called.
    names: Vec<String>,
    request: Request,
    /// Does the job have a unique key, which another may hold?
    keyed: bool,
    /// The refusal that is right, if there is one.
    refusal: Option<u16>,
    once: bool,
}

impl Enqueue {
    pub(crate) fn job(name: String, job: Value) -> Self {
        let keyed = job.get("unique_key").is_some();
        let request = Request::post("/v1/jobs").with(job);
        Self { names: vec![name], request, keyed, refusal: None, once: false }
    }

    pub(crate) fn batch(jobs: Vec<(String, Value)>) -> Self {
        let (names, jobs): (Vec<String>, Vec<Value>) = jobs.into_iter().unzip();
        let request = Request::post("/v1/jobs/batch").with(json!({"jobs": jobs}));
        Self { names, request, keyed: false, refusal: None, once: false }
    }

    /// Carried out at most once: asked again until there is an answer.
    pub(crate) fn once(mut self) -> Self {
        self.request = self.request.once(self.names[0].clone());
        self.once = true;
        self
    }

    pub(crate) fn refused_with(mut self, status: u16) -> Self {
        self.refusal = Some(status);
        self
    }

    /// Send it to whatever runner answers, and write down what came of it: the ids of new jobs.
    pub(crate) async fn send(self, world: &World, rng: &mut StdRng) -> Vec<Uuid> {
        // It may have been carried out by a run whose answer is not known.
        let mut doubt = false;
        for _ in 0..if self.once { MOST_TRIES } else { 1 } {
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
        world.ledger.write(|book| if doubt { &mut book.unknown } else { &mut book.refused }.extend(self.names));
        Vec::new()
    }

    /// Two requests with one key at the same time, most likely to two runners. They may not disagree.
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
            // Not known is the stronger word: what was refused here may be under way there.
            (one, two) => {
                if matches!(one, Answer::Said(400..=499, _)) {
                    two
                } else {
                    one
                }
            }
        }
    }

    /// What was answered once is answered again.
    async fn again(&self, world: &World, rng: &mut StdRng, first: &Value) {
        match world.call(rng, self.request.clone()).await {
            Answer::Said(201, second) if second == *first => {}
            Answer::Said(429 | 500.., _) | Answer::Silent | Answer::NotSent => {}
            Answer::Said(409, body) if body["code"] == "idempotency_in_progress" => {}
            other @ Answer::Said(..) => world.ledger.complain(format!("asked again, {first} became {other:?}")),
        }
    }

    fn accepted(self, world: &World, body: &Value) -> Vec<Uuid> {
        let ids: Vec<Uuid> = match body["jobs"].as_array() {
            Some(receipts) => receipts.iter().filter_map(id_of).collect(),
            None => id_of(body).into_iter().collect(),
        };
        if ids.len() != self.names.len() {
            world.ledger.complain(format!("{:?} were accepted as {ids:?}", self.names));
        }
        if self.refusal.is_some() {
            world.ledger.complain(format!("{:?} make no sense and were accepted", self.names));
        }
        world.ledger.write(|book| {
            if self.keyed {
                book.keyed.extend(ids.iter().copied());
            }
            book.accepted.extend(ids.iter().copied().zip(self.names));
        });
        ids
    }

    /// It was refused, or the answer makes no sense.
    fn refused(self, world: &World, answer: &Answer, doubt: bool) {
        let usual = match answer {
            Answer::Said(200 | 409, _) => self.keyed,
            Answer::Said(status, _) => self.refusal == Some(*status),
            Answer::Silent | Answer::NotSent => true,
        };
        if !usual {
            world.ledger.complain(format!("{:?} were answered with {answer:?}", self.names));
        }
        // A refusal is not remembered with the key: a run that is still under way may be carried out after it. That
        // another job has the key is, if it was given as an answer.
        let final_word = !doubt || matches!(answer, Answer::Said(200, _));
        world.ledger.write(|book| if final_word { &mut book.refused } else { &mut book.unknown }.extend(self.names));
    }
}
