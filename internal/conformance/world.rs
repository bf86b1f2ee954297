//! The state of the kit's server in one scenario: workers, jobs, attempts, and every call that the program made.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::bodies;
use crate::call::{Action, Call, Exchange, Fault};
use crate::http::{Answer, Request};
use crate::json::{Json, brief};

/// Most breaches that are kept of one rule.
const MAX_BREACHES: usize = 5;
/// Most exchanges that are kept.
const MAX_EXCHANGES: usize = 5_000;

/// Settings of the server and of the program in one scenario.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) beat_ms: u64,
    pub(crate) slots: u64,
    pub(crate) grace_ms: u64,
    /// Difference between the clock in the answers and that of this machine, in seconds.
    pub(crate) clock_s: i64,
    /// Index of an address at which no server listens from the start.
    pub(crate) dead: Option<usize>,
    /// Faults that are planned from the start.
    pub(crate) faults: Vec<Fault>,
    /// True to send fields in answers that the specification does not have.
    pub(crate) extra_fields: bool,
    /// True to send answers in small chunks.
    pub(crate) pieces: bool,
    /// Longest wait of a request for jobs that the program is told to use.
    pub(crate) wait_ms: u64,
    /// Largest heartbeat.
    pub(crate) beat_limit: usize,
    /// True to send `took_ms`, which an older process leaves out. In most scenarios a heartbeat is much shorter than a
    /// third of the lease, so that a pause of the machine would make an answer late.
    pub(crate) took: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            beat_ms: 500,
            slots: 4,
            grace_ms: 5_000,
            clock_s: 0,
            dead: None,
            faults: Vec::new(),
            extra_fields: false,
            pieces: false,
            wait_ms: 30_000,
            beat_limit: BEAT_LIMIT,
            took: false,
        }
    }
}

/// Lease of the worker, and the queue and kinds that it serves.
pub(crate) const LEASE_MS: u64 = 10_000;
pub(crate) const QUEUE: &str = "conformance";
pub(crate) const KINDS: [&str; 12] = [
    "conformance.echo",
    "conformance.fail",
    "conformance.reject",
    "conformance.snooze",
    "conformance.release",
    "conformance.throw",
    "conformance.sleep",
    "conformance.block",
    "conformance.progress",
    "conformance.log",
    "conformance.big",
    "conformance.enqueue",
];

/// Largest body, as the setting `body_limit` has it by default.
const BODY_LIMIT: usize = 256 << 10;
/// Largest heartbeat, whatever `body_limit` is.
const BEAT_LIMIT: usize = 1 << 20;

/// A sentence of the specification that the program broke.
#[derive(Clone, Debug)]
pub(crate) struct Breach {
    /// The scenario whose sentence it is.
    pub(crate) rule: &'static str,
    pub(crate) seen: String,
    pub(crate) expected: String,
}

/// A registered worker.
#[derive(Clone, Debug)]
pub(crate) struct Worker {
    pub(crate) slots: u64,
    pub(crate) fetch: Option<Fetch>,
}

/// The newest request of a worker for jobs.
#[derive(Clone, Debug)]
pub(crate) struct Fetch {
    pub(crate) id: String,
    pub(crate) body: Json,
    pub(crate) tokens: Vec<String>,
    /// Number of its newest exchange.
    pub(crate) exchange: usize,
    /// True once its answer was written whole, without a fault.
    pub(crate) answered: bool,
}

/// A job of the scenario.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) id: String,
    pub(crate) kind: String,
    pub(crate) payload: Json,
    pub(crate) timeout_ms: u64,
    pub(crate) checkpoint: Option<Json>,
    pub(crate) waits: bool,
    /// True until a heartbeat has a checkpoint of it: another session locks its row, so that one is not stored.
    pub(crate) locked: bool,
}

/// An attempt that was handed out.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) job: usize,
    pub(crate) handed_at: Instant,
    /// Time at which the answer with it was written whole, unless that was late.
    pub(crate) delivered_at: Option<Instant>,
    /// True when the answer with it was on its way for so long that it counts as lost.
    pub(crate) late: bool,
    /// True once a request for jobs has listed it.
    pub(crate) listed: bool,
    /// Given back, or declared lost: no verdict changes anything.
    pub(crate) over: bool,
    /// The verdict as it came first, and how many times it came.
    pub(crate) verdict: Option<Json>,
    pub(crate) verdict_at: Option<Instant>,
    pub(crate) verdicts: usize,
    /// Time at which its verdict was answered.
    pub(crate) answered_at: Option<Instant>,
    /// Time at which a beat told the program to stop it.
    pub(crate) cancel_told_at: Option<Instant>,
    pub(crate) lost_told_at: Option<Instant>,
    /// Entries of beats about it.
    pub(crate) beats: Vec<(Instant, Json)>,
    /// Place in `beats` of the entry that was not stored.
    pub(crate) unsaved: Option<usize>,
    /// Result of the finish call, if not `settled`.
    pub(crate) forced: Option<&'static str>,
    /// The verdict that the server refused, or did not write for a locked row.
    pub(crate) refused: Option<Json>,
}

/// An enqueue of the program.
#[derive(Clone, Debug)]
pub(crate) struct Enqueue {
    pub(crate) key: Option<String>,
    pub(crate) body: Json,
    pub(crate) id: String,
}

/// Everything that the server knows.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) setup: Setup,
    pub(crate) token: String,
    pub(crate) workers: BTreeMap<String, Worker>,
    pub(crate) jobs: Vec<Job>,
    pub(crate) attempts: BTreeMap<String, Attempt>,
    pub(crate) enqueues: Vec<Enqueue>,
    pub(crate) exchanges: Vec<Exchange>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) breaches: Vec<Breach>,
    pub(crate) drained: bool,
    pub(crate) cancelled: BTreeSet<String>,
    /// Attempts that are handed out once more with the next answer.
    pub(crate) again: BTreeSet<String>,
    /// Attempts that were handed out twice.
    pub(crate) twice: BTreeSet<String>,
    /// Number of requests on used connections that are answered by a reset.
    pub(crate) resets: usize,
    /// The first arrival of each request for jobs, by its id. A repeated request lists what its first one did.
    pub(crate) first_asked: BTreeMap<String, Instant>,
    /// `wait_ms` of the newest request for jobs.
    pub(crate) asked_wait_ms: u64,
    /// Bodies of registrations.
    pub(crate) registrations: Vec<Json>,
    /// Workers that have left.
    pub(crate) left: Vec<String>,
    /// Time at which the program was told to stop.
    pub(crate) stopped_at: Option<Instant>,
}

/// The state, and a wake-up for those who wait for a change of it.
pub(crate) struct World {
    state: Mutex<State>,
    changed: watch::Sender<u64>,
}

impl World {
    pub(crate) fn new(setup: Setup) -> Self {
        let faults = setup.faults.clone();
        let state = State {
            setup,
            token: format!("conformance-{}", uuid::Uuid::new_v4().simple()),
            workers: BTreeMap::new(),
            jobs: Vec::new(),
            attempts: BTreeMap::new(),
            enqueues: Vec::new(),
            exchanges: Vec::new(),
            faults,
            breaches: Vec::new(),
            drained: false,
            cancelled: BTreeSet::new(),
            again: BTreeSet::new(),
            twice: BTreeSet::new(),
            resets: 0,
            first_asked: BTreeMap::new(),
            asked_wait_ms: 0,
            registrations: Vec::new(),
            left: Vec::new(),
            stopped_at: None,
        };
        Self { state: Mutex::new(state), changed: watch::Sender::new(0) }
    }

    /// Read the state.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        read(&self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// Change the state, and wake those who wait for a change.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        self.changed.send_modify(|count| *count += 1);
        changed
    }

    /// Change the state without a wake-up, for polls that usually change nothing.
    pub(crate) fn quietly<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}

impl State {
    /// Note that the program broke a sentence.
    pub(crate) fn breach(&mut self, rule: &'static str, seen: impl Into<String>, expected: impl Into<String>) {
        debug_assert!(crate::scenarios::ALL.iter().any(|scenario| scenario.name == rule), "no scenario {rule}");
        if self.breaches.iter().filter(|breach| breach.rule == rule).count() < MAX_BREACHES {
            self.breaches.push(Breach { rule, seen: seen.into(), expected: expected.into() });
        }
    }

    /// Record a request, and check what holds for every request. Returns its number, its body and the fault that takes the
    /// place of doing it.
    pub(crate) fn arrived(&mut self, server: usize, call: Call, request: &Request) -> (usize, Json, Option<Action>) {
        let body = String::from_utf8_lossy(&request.body).into_owned();
        let number = self.exchanges.len();
        if number < MAX_EXCHANGES {
            let text = format!("{} {} {}", request.method, request.path, brief(&body));
            let at = Instant::now();
            self.exchanges.push(Exchange {
                call,
                server,
                at,
                request: text,
                status: None,
                answered_at: None,
                answer: String::new(),
            });
        }
        let expected = format!("authorization: Bearer {}", self.token);
        match request.header("authorization") {
            Some(value) if value == format!("Bearer {}", self.token) => {}
            Some(value) => {
                let seen = format!("{} {} with authorization: {}", request.method, request.path, brief(value));
                self.breach("token", seen, expected);
            }
            None => {
                let seen = format!("{} {} without authorization", request.method, request.path);
                self.breach("token", seen, expected);
            }
        }
        if request.path.contains(self.token.as_str()) {
            self.breach("token", format!("the token in {}", request.path), "the token in the header alone");
        }
        let posts = !matches!(call, Call::Leave | Call::Other);
        let body = if posts {
            let media = request.header("content-type").unwrap_or_default().to_owned();
            if !media.starts_with("application/json") {
                self.breach("bodies", format!("{call} with the content type {media:?}"), "application/json");
            }
            Json::parse(&request.body).unwrap_or_else(|error| {
                self.breach("bodies", format!("{call} with {}: {error}", brief(&body)), "JSON in UTF-8");
                Json::Null
            })
        } else {
            Json::Null
        };
        if call == Call::Fetch
            && let Some(id) = body.get("fetch_id").and_then(Json::as_text)
        {
            self.first_asked.entry(id.to_owned()).or_insert_with(Instant::now);
            self.asked_wait_ms = body.get("wait_ms").and_then(Json::as_u64).unwrap_or(30_000);
        }
        for (rule, seen, expected) in bodies::check(call, &body) {
            self.breach(rule, seen, expected);
        }
        if self.is_too_large(call, &body, request.body.len()) {
            return (number, body, Some(Action::Status(413, None)));
        }
        let fault = self.fault(server, call, |action| call != Call::Fetch || !action.comes_after());
        (number, body, fault)
    }

    /// Return whether a body of so many bytes has more than the call takes.
    fn is_too_large(&self, call: Call, body: &Json, bytes: usize) -> bool {
        // One verdict alone may be larger: the client cannot make it smaller.
        let several = body.get("verdicts").and_then(Json::as_list).is_some_and(|verdicts| verdicts.len() > 1);
        (several && bytes > BODY_LIMIT) || (call == Call::Beat && bytes > self.setup.beat_limit)
    }

    /// Take a planned fault for a call at an address.
    pub(crate) fn fault(&mut self, server: usize, call: Call, fits: impl Fn(&Action) -> bool) -> Option<Action> {
        let planned = self.faults.iter_mut().find(|fault| {
            fault.call == call && fault.times > 0 && fault.server.is_none_or(|of| of == server) && fits(&fault.action)
        })?;
        planned.times -= 1;
        Some(planned.action.clone())
    }

    /// Return whether the next request on a used connection is answered by a reset.
    pub(crate) fn take_reset(&mut self) -> bool {
        let resets = self.resets > 0;
        self.resets = self.resets.saturating_sub(1);
        resets
    }

    /// Record the answer of an exchange. `clean` is true for an answer that the client can read.
    pub(crate) fn answering(&mut self, number: usize, answer: &Answer, clean: bool, note: &str) {
        let Some(exchange) = self.exchanges.get_mut(number) else { return };
        exchange.answer = format!("{note}{} {}", answer.status, brief(&answer.body));
        if clean {
            exchange.status = Some(answer.status);
            exchange.answered_at = Some(Instant::now());
        }
    }

    /// Add a job. Returns its index.
    pub(crate) fn add(&mut self, kind: &str, payload: Json) -> usize {
        self.jobs.push(Job {
            id: uuid::Uuid::now_v7().to_string(),
            kind: kind.to_owned(),
            payload,
            timeout_ms: 60_000,
            checkpoint: None,
            waits: true,
            locked: false,
        });
        self.jobs.len() - 1
    }

    /// Return the attempts of a job with their tokens.
    pub(crate) fn attempts_of(&self, job: usize) -> Vec<(&String, &Attempt)> {
        let mut of_job: Vec<_> = self.attempts.iter().filter(|(_, attempt)| attempt.job == job).collect();
        of_job.sort_by_key(|(_, attempt)| attempt.handed_at);
        of_job
    }

    /// Return the newest attempt of a job that reached the program.
    pub(crate) fn delivered(&self, job: usize) -> Option<(&String, &Attempt)> {
        self.attempts_of(job).into_iter().rfind(|(_, attempt)| attempt.delivered_at.is_some())
    }

    /// Return the verdict of a job that counts.
    pub(crate) fn verdict(&self, job: usize) -> Option<&Json> {
        let attempts = self.attempts_of(job);
        attempts.into_iter().find_map(|(_, attempt)| attempt.verdict.as_ref().filter(|_| !attempt.over))
    }

    /// Return the exchanges of one call.
    pub(crate) fn calls(&self, call: Call) -> impl Iterator<Item = &Exchange> {
        self.exchanges.iter().filter(move |exchange| exchange.call == call)
    }

    /// Return whether the program has an attempt in hand that surely still executes: by the time in its payload.
    pub(crate) fn busy(&self, attempt: &Attempt) -> bool {
        const MARGIN: Duration = Duration::from_millis(100);
        let job = &self.jobs[attempt.job];
        let time = match job.kind.as_str() {
            "conformance.block" | "conformance.sleep" => job.payload.get("ms").and_then(Json::as_u64),
            _ => None,
        };
        let Some(time) = time else { return false };
        let ends = attempt.handed_at + Duration::from_millis(time);
        let told = attempt.cancel_told_at.is_some() || attempt.lost_told_at.is_some() || attempt.over;
        attempt.delivered_at.is_some()
            && attempt.verdict.is_none()
            && !told
            && self.stopped_at.is_none()
            && Instant::now() + MARGIN < ends
    }
}
