//! The scenarios, in the order of docs/WORKERS.md.
//!
//! - `verdicts.rs`: each handler of the program, results, errors and logs
//! - `requests.rs`: what holds for every request
//! - `fetching.rs`: requests for jobs, lost and late answers, and errors
//! - `beating.rs`: heartbeats, cancels, progress
//! - `finishing.rs`: verdicts whose answers are lost or say no
//! - `enqueueing.rs`: jobs that a handler enqueues
//! - `addresses.rs`: several addresses, and connections that break
//! - `stopping.rs`: SIGTERM

mod addresses;
mod beating;
mod enqueueing;
mod fetching;
mod finishing;
mod requests;
mod stopping;
mod verdicts;

use std::future::Future;
use std::pin::Pin;

use crate::call::{Action, Call, Fault};
use crate::stage::{Outcome, Stage};
use crate::world::{LEASE_MS, Setup};

/// A scenario on its way.
type Running<'s> = Pin<Box<dyn Future<Output = Outcome> + Send + 's>>;

/// One scenario: how the server behaves, and what the program must do.
#[derive(Clone, Copy)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// The sentence of docs/WORKERS.md that the program breaks when the scenario fails.
    pub(crate) sentence: &'static str,
    pub(crate) setup: fn() -> Setup,
    pub(crate) run: for<'s> fn(&'s mut Stage) -> Running<'s>,
}

impl Scenario {
    const fn new(name: &'static str, sentence: &'static str, run: for<'s> fn(&'s mut Stage) -> Running<'s>) -> Self {
        Self { name, sentence, setup: Setup::default, run }
    }

    const fn with(mut self, setup: fn() -> Setup) -> Self {
        self.setup = setup;
        self
    }
}

const VERDICT: &str = "`succeeded`; `failed`: another attempt may succeed; `rejected`: none can; `snoozed`: again after \
                       `delay_ms`, without using an attempt; `released`: back at once, without using an attempt";
const ERROR: &str = "1 to 2,000 characters, not only blanks, required with `failed`, `rejected` and `snoozed`";
const RESULT: &str = "JSON of at most 256 KiB and 64 levels, with `succeeded`";
const LOG: &str = "the newest lines of the attempt, at most 16 KiB";
const HOLDING: &str = "Every token stays in `holding` until its verdict is answered.";
const AGAIN: &str = "When the answer does not come, send the same body with the same `fetch_id` again";
const LATE: &str = "An answer that comes late counts as lost.";
const AFTER_ERRORS: &str = "After any other failure try again with growing pauses, at most five seconds apart.";
const RETRY_AFTER: &str = "after 429 and 503 wait for `Retry-After` seconds, or try another process";
const REPEATED: &str = "A registration that gets no answer, 429 or a 5xx is repeated with growing pauses";
const DECLARED: &str = "Until a process has heard of a new declaration, for up to two seconds, it answers 422";
const REGISTER_AGAIN: &str = "`POST /v1/workers` when the program starts, and again whenever a call answers 404";
const ONE_REQUEST: &str = "A worker has one request at a time.";
const NEW_ID: &str = "a UUID: new for each request, the same when the request is repeated";
const SLOTS: &str = "most jobs to return: the free slots, 1 to 500";
const DRAIN: &str = "While `drain` is true the worker gets nothing. It goes on with what it has, and asks again after \
                     `beat_ms`.";
const TWICE: &str = "The answer has the same jobs with the same tokens, and nothing new.";
const REFUSED: &str = "It ends a program that was not registered before.";
const BEATS: &str = "`POST /v1/workers/{id}/beat` every `beat_ms`, from a thread or task that no job can block";
const BEAT_LARGE: &str = "large checkpoints go in several, each of which lists every token";
const BEAT_AGAIN: &str = "A beat that fails is repeated within seconds";
const BEAT_PATIENCE: &str = "A beat that fails is repeated within seconds, whatever `Retry-After` says";
const BEAT_LIMIT: &str = "After 413 fewer of them go in one.";
const UNSAVED: &str = "The worker sends it again with the next beat, unless it has a newer one, or with the verdict.";
const TWO_ATTEMPTS: &str = "A worker may list two attempts of one job";
const CANCEL: &str = "`cancel`: stop the attempt and finish it as `failed`.";
const LOST: &str = "`lost`: stop the attempt.";
const LEASE_ENDS: &str = "When nine tenths of `lease_ms` have passed since, the worker stops every attempt that has \
                          not ended, as if it were `lost`.";
const LOST_BLOCKED: &str = "It is listed no more, also while its handler goes on.";
const CHECKPOINT: &str = "`checkpoint` is JSON of at most 64 KiB and 64 levels, with which the next attempt begins.";
const PROGRESS: &str = "`percent` (0 to 100) and `note` (120 characters, no control characters) are shown with the job";
const FINISH_AGAIN: &str = "The same verdict again has the same result, so a call that got no answer is repeated, to any \
                            process, until it is answered.";
const FINISH_404: &str = "After 404 the client registers again, and sends the verdicts once more.";
const FINISH_OTHER: &str = "Any other answer, such as one of a proxy, says nothing of the verdicts: the client repeats \
                            the call.";
const BODY_LIMIT: &str =
    "1 to 500 of them, in a body of at most 1 MiB. After 413 a client sends fewer of them in one call.";
const FINISH_RESULTS: &str = "`lease_lost` (the attempt had ended otherwise, and nothing was changed) or `unknown` (no job \
                              has this token)";
const FINISH_INVALID: &str = "Its attempt still waits for a verdict: the client finishes it as `failed`, with an error that \
                              says so.";
const FINISH_LOCKED: &str = "The attempt still waits for it, stays in `holding`, and the client sends the verdict again, \
                             with growing pauses.";
const ANY_PROCESS: &str = "a worker may go through a load balancer, or through a list of addresses";
const STOP: &str = "On SIGTERM a worker fetches nothing more, finishes what it can, also jobs of an answer that was on its way, \
                    gives back the rest as `released`, and sends `DELETE /v1/workers/{id}`.";
const SECOND_SIGNAL: &str = "A second signal ends the program at once.";
const EVERY_CALL: &str = "Every call is JSON over HTTP/1.1";
const BEARER: &str = "It sends the API key with every call as `Authorization: Bearer`, and never in a URL.";
const UNKNOWN_FIELDS: &str = "A client ignores fields of answers that it does not know.";
const CLOCK: &str = "A client never compares its own clock with `started_at` and `deadline_at`";
const UNKNOWN_KIND: &str = "A job of a kind that the worker does not have is finished as `released` or `failed`.";
const ENQUEUE: &str = "Each enqueue has an `Idempotency-Key` of its own, and the same one when it is repeated.";

/// Every scenario, in the order in which they are printed.
pub(crate) const ALL: &[Scenario] = &[
    Scenario::new("register", "A program that starts again registers again", requests::register),
    Scenario::new("register-503", REPEATED, requests::traffic).with(|| Setup {
        faults: vec![
            Fault::new(Call::Register, 1, Action::Status(503, Some(1))),
            Fault::new(Call::Register, 1, Action::Status(500, None)),
            Fault::new(Call::Register, 1, Action::CutBefore),
        ],
        ..Setup::default()
    }),
    // The server comes long after the program, and hears of the kinds after its first answer.
    Scenario::new("register-422", DECLARED, requests::traffic).with(|| Setup {
        faults: vec![
            Fault::new(Call::Register, 6, Action::Status(503, Some(3))),
            Fault::new(Call::Register, 1, Action::Status(422, None)),
        ],
        ..Setup::default()
    }),
    Scenario::new("register-401", REFUSED, requests::refused).with(|| Setup {
        faults: vec![Fault::new(Call::Register, usize::MAX, Action::Status(401, None))],
        ..Setup::default()
    }),
    Scenario::new("token", BEARER, requests::traffic),
    Scenario::new("bodies", EVERY_CALL, requests::traffic),
    Scenario::new("unknown-fields", UNKNOWN_FIELDS, requests::traffic)
        .with(|| Setup { extra_fields: true, ..Setup::default() }),
    Scenario::new("chunked-answers", EVERY_CALL, requests::traffic).with(|| Setup { pieces: true, ..Setup::default() }),
    Scenario::new("succeeded", VERDICT, verdicts::succeeded),
    Scenario::new("failed", VERDICT, verdicts::failed),
    Scenario::new("rejected", VERDICT, verdicts::rejected),
    Scenario::new("snoozed", VERDICT, verdicts::snoozed),
    Scenario::new("released", VERDICT, verdicts::released),
    Scenario::new("exception", VERDICT, verdicts::exception),
    Scenario::new("results", RESULT, verdicts::results),
    Scenario::new("big-integers", RESULT, verdicts::big_integers),
    Scenario::new("big-decimals", RESULT, verdicts::big_decimals),
    Scenario::new("result-too-large", RESULT, verdicts::result_too_large),
    Scenario::new("error-length", ERROR, verdicts::error_length),
    Scenario::new("log", LOG, verdicts::log),
    Scenario::new("log-length", LOG, verdicts::log_length),
    Scenario::new("unknown-kind", UNKNOWN_KIND, verdicts::unknown_kind),
    Scenario::new("clock", CLOCK, verdicts::clock),
    Scenario::new("fetch-lost", AGAIN, fetching::lost),
    Scenario::new("fetch-id", NEW_ID, fetching::several),
    Scenario::new("one-fetch", ONE_REQUEST, fetching::several),
    Scenario::new("holding", HOLDING, fetching::holding),
    Scenario::new("slots", SLOTS, fetching::slots).with(|| Setup { slots: 3, ..Setup::default() }),
    Scenario::new("token-twice", TWICE, fetching::token_twice),
    Scenario::new("fetch-503", RETRY_AFTER, fetching::unavailable),
    Scenario::new("fetch-429", RETRY_AFTER, fetching::overloaded),
    Scenario::new("fetch-500", AFTER_ERRORS, fetching::errors),
    Scenario::new("fetch-502", AFTER_ERRORS, fetching::pages),
    Scenario::new("fetch-slow", AGAIN, fetching::slow),
    // A short wait, after which the client gives the request up.
    Scenario::new("fetch-no-answer", AGAIN, fetching::no_answer).with(|| Setup {
        wait_ms: 1_000,
        faults: vec![Fault::new(Call::Fetch, 1, Action::NoAnswer)],
        ..Setup::default()
    }),
    // A heartbeat is a third of the lease, so that both bounds of a late answer are the same.
    Scenario::new("fetch-late", LATE, fetching::late).with(|| Setup {
        beat_ms: LEASE_MS / 3,
        took: true,
        ..Setup::default()
    }),
    Scenario::new("fetch-404", REGISTER_AGAIN, fetching::not_registered),
    Scenario::new("drain", DRAIN, fetching::drain),
    Scenario::new("beats", BEATS, beating::regular).with(|| Setup { slots: 2, ..Setup::default() }),
    Scenario::new("beats-large", BEAT_LARGE, beating::large).with(|| Setup { slots: 6, ..Setup::default() }),
    Scenario::new("beat-500", BEAT_AGAIN, beating::errors),
    Scenario::new("beat-503", BEAT_PATIENCE, beating::unavailable),
    Scenario::new("beat-413", BEAT_LIMIT, beating::too_large)
        .with(|| Setup { beat_limit: 100_000, ..Setup::default() }),
    Scenario::new("beat-no-answer", BEAT_AGAIN, beating::no_answer),
    Scenario::new("beat-404", REGISTER_AGAIN, beating::not_registered),
    Scenario::new("beat-unsaved", UNSAVED, beating::unsaved),
    Scenario::new("progress", PROGRESS, beating::progress),
    Scenario::new("checkpoint", CHECKPOINT, beating::checkpoint),
    Scenario::new("cancel", CANCEL, beating::cancel),
    Scenario::new("cancel-blocked", CANCEL, beating::cancel_blocked),
    Scenario::new("deadline", CANCEL, beating::deadline),
    Scenario::new("lost", LOST, beating::lost).with(|| Setup { slots: 1, ..Setup::default() }),
    Scenario::new("lost-blocked", LOST_BLOCKED, beating::lost_blocked),
    Scenario::new("lease-ends", LEASE_ENDS, beating::lease_ends),
    Scenario::new("two-attempts", TWO_ATTEMPTS, beating::two_attempts),
    Scenario::new("finish-lost", FINISH_AGAIN, finishing::lost),
    Scenario::new("finish-no-answer", FINISH_AGAIN, finishing::no_answer),
    Scenario::new("finish-503", FINISH_AGAIN, finishing::errors),
    Scenario::new("finish-403", FINISH_OTHER, finishing::forbidden),
    Scenario::new("finish-404", FINISH_404, finishing::not_registered),
    Scenario::new("finish-large", BODY_LIMIT, finishing::large).with(|| Setup { slots: 8, ..Setup::default() }),
    Scenario::new("finish-refused", FINISH_RESULTS, finishing::refused),
    Scenario::new("finish-invalid", FINISH_INVALID, finishing::invalid),
    Scenario::new("finish-locked", FINISH_LOCKED, finishing::locked),
    Scenario::new("enqueue", ENQUEUE, enqueueing::once),
    Scenario::new("enqueue-repeated", ENQUEUE, enqueueing::repeated),
    Scenario::new("dead-address", ANY_PROCESS, addresses::dead).with(|| Setup { dead: Some(0), ..Setup::default() }),
    Scenario::new("failover", ANY_PROCESS, addresses::failover),
    Scenario::new("connection-reset", AFTER_ERRORS, addresses::resets),
    Scenario::new("stop", STOP, stopping::finishes),
    Scenario::new("stop-releases", STOP, stopping::releases).with(|| Setup { grace_ms: 1_500, ..Setup::default() }),
    Scenario::new("stop-finish-lost", FINISH_AGAIN, stopping::finish_lost),
    Scenario::new("stop-while-waiting", STOP, stopping::while_waiting),
    Scenario::new("stop-twice", SECOND_SIGNAL, stopping::twice).with(|| Setup { grace_ms: 60_000, ..Setup::default() }),
];
