//! The calls of docs/WORKERS.md, and the rules that hold for each of them.

use std::time::{Duration, Instant};

use crate::http::Answer;
use crate::json::{Json, brief};
use crate::world::{Attempt, Enqueue, Fetch, LEASE_MS, State, Worker};

/// Time after the answer of a verdict for which requests may still list its token, because they were made before.
pub(crate) const LATE_LISTING: Duration = Duration::from_secs(2);
/// Time after the delivery of an attempt from which beats must list it.
const UNLISTED: Duration = Duration::from_millis(1_500);

/// The start of a request for jobs.
pub(crate) enum FetchStart {
    /// The worker is not registered.
    Missing,
    /// A repeated request, whose jobs are handed out again.
    Again(Vec<String>),
    /// A repeated request, which gets nothing new.
    Nothing,
    /// Wait for jobs, at most this long.
    Wait(Duration),
}

/// The state of a request that waits.
pub(crate) enum FetchPoll {
    Missing,
    /// A newer request has taken its place.
    Superseded,
    /// The worker is drained.
    Drained,
    Ready(Vec<String>),
    Wait,
}

impl State {
    pub(crate) fn register(&mut self, body: Json) -> Answer {
        let id = format!("kit.w-{}", self.registrations.len() + 1);
        let slots = body.get("slots").and_then(Json::as_u64).unwrap_or(1);
        self.registrations.push(body);
        self.workers.insert(id.clone(), Worker { slots, fetch: None });
        let beat_ms = self.setup.beat_ms;
        self.answer(201, serde_json::json!({ "id": id, "lease_ms": LEASE_MS, "beat_ms": beat_ms }))
    }

    /// Make an answer. With `extra_fields` it has a field that the specification does not have.
    fn answer(&self, status: u16, mut body: serde_json::Value) -> Answer {
        if self.setup.extra_fields
            && let Some(object) = body.as_object_mut()
        {
            object.insert("added_later".to_owned(), serde_json::json!({ "by": ["a", "newer", "server"], "at": null }));
        }
        Answer::json(status, &body)
    }

    /// Begin a request for jobs: give back what did not arrive.
    pub(crate) fn begin_fetch(&mut self, worker: &str, number: usize, body: &Json) -> FetchStart {
        let Some(of) = self.workers.get(worker) else { return FetchStart::Missing };
        let (slots, before) = (of.slots, of.fetch.clone());
        let id = body.get("fetch_id").and_then(Json::as_text).unwrap_or_default().to_owned();
        let wait = body.get("wait_ms").and_then(Json::as_u64).unwrap_or(30_000);
        match before.filter(|before| before.id == id) {
            Some(before) if before.answered => {
                let seen = format!("the fetch_id {id} again, after its answer was written");
                self.breach("fetch-id", seen, "a new UUID for each request");
            }
            Some(before) => return self.repeat_fetch(worker, number, body, before),
            None => {}
        }
        self.compare_holding(body, "fetch");
        for token in body.tokens() {
            if let Some(attempt) = self.attempts.get_mut(&token) {
                attempt.listed = true;
            }
        }
        self.give_back_unlisted(&body.tokens());
        self.count_slots(slots, body.get("slots").and_then(Json::as_u64).unwrap_or(1));
        let fetch = Fetch { id, body: body.clone(), tokens: Vec::new(), exchange: number, answered: false };
        if let Some(of) = self.workers.get_mut(worker) {
            of.fetch = Some(fetch);
        }
        FetchStart::Wait(Duration::from_millis(wait))
    }

    fn repeat_fetch(&mut self, worker: &str, number: usize, body: &Json, before: Fetch) -> FetchStart {
        if !body.same(&before.body) {
            let seen = format!("{} and then, with the same fetch_id, {}", before.body.brief(), body.brief());
            self.breach("fetch-lost", seen, "the same body with the same fetch_id");
        }
        if let Some(fetch) = self.workers.get_mut(worker).and_then(|of| of.fetch.as_mut()) {
            fetch.exchange = number;
        }
        let open = |token: &String| self.attempts.get(token).is_some_and(|a| !a.over && a.verdict.is_none());
        let tokens: Vec<String> = before.tokens.into_iter().filter(open).collect();
        if tokens.is_empty() { FetchStart::Nothing } else { FetchStart::Again(tokens) }
    }

    /// Check that a request lists what the program holds, and nothing else.
    fn compare_holding(&mut self, body: &Json, call: &'static str) {
        let rule = if call == "fetch" { "holding" } else { "beats" };
        let (tokens, now) = (body.tokens(), Instant::now());
        let id = body.get("fetch_id").and_then(Json::as_text).unwrap_or_default();
        let made = self.first_asked.get(id).copied().unwrap_or(now);
        let mut wrong = Vec::new();
        for (token, attempt) in &self.attempts {
            let arrived = match attempt.delivered_at {
                // A worker that stops may leave such a job to its DELETE.
                Some(at) if self.stopped_at.is_some_and(|stopped| at > stopped) => false,
                Some(at) if call == "fetch" => at < now,
                Some(at) => now.duration_since(at) > UNLISTED,
                None => false,
            };
            let told = attempt.over || attempt.lost_told_at.is_some();
            if arrived && !told && attempt.answered_at.is_none() && !tokens.contains(token) {
                let job = &self.jobs[attempt.job];
                let state = if attempt.verdict.is_some() { "its verdict is not answered" } else { "it has no verdict" };
                wrong.push((
                    format!("{call} without the token of a {} that was delivered; {state}", job.kind),
                    "every token whose verdict is not answered".to_owned(),
                ));
            }
        }
        for token in &tokens {
            let Some(attempt) = self.attempts.get(token) else {
                wrong.push((format!("{call} lists {}", brief(token)), "tokens that were handed out".to_owned()));
                continue;
            };
            let long_ago = |at: Instant| made.saturating_duration_since(at) > LATE_LISTING;
            if attempt.answered_at.is_some_and(long_ago) {
                let seen = format!("{call} lists a token {LATE_LISTING:?} after its verdict was answered");
                wrong.push((seen, "the attempts whose verdicts are not answered yet".to_owned()));
            }
            if attempt.lost_told_at.is_some_and(|at| made.saturating_duration_since(at) > 2 * LATE_LISTING) {
                let seen = format!("{call} lists a token long after a beat said that it is lost");
                wrong.push((seen, "no token that the worker does not hold any more".to_owned()));
            }
        }
        for (seen, expected) in wrong {
            self.breach(rule, seen, expected);
        }
    }

    /// Give back what was handed out and did not arrive. An attempt that arrived and is not listed was noted as a breach;
    /// it goes on, so that one fault of a client does not look like many.
    fn give_back_unlisted(&mut self, listed: &[String]) {
        let open = |attempt: &Attempt| !attempt.over && attempt.verdict.is_none() && attempt.delivered_at.is_none();
        let gone: Vec<String> =
            self.attempts.iter().filter(|(t, a)| open(a) && !listed.contains(t)).map(|(t, _)| t.clone()).collect();
        self.give_back(&gone);
    }

    /// End attempts without a verdict. Their jobs wait again.
    pub(crate) fn give_back(&mut self, tokens: &[String]) {
        for token in tokens {
            if let Some(attempt) = self.attempts.get_mut(token).filter(|a| !a.over && a.verdict.is_none()) {
                attempt.over = true;
                self.jobs[attempt.job].waits = true;
            }
        }
    }

    fn count_slots(&mut self, slots: u64, asked: u64) {
        let busy = self.attempts.values().filter(|attempt| self.busy(attempt)).count() as u64;
        if asked + busy > slots {
            let seen = format!("a request for {asked} jobs while {busy} of {slots} slots were busy");
            self.breach("slots", seen, "a request for no more than the free slots");
        }
    }

    /// Look whether a request that waits can be answered.
    pub(crate) fn poll_fetch(&mut self, worker: &str, number: usize) -> FetchPoll {
        let Some(fetch) = self.workers.get(worker).and_then(|of| of.fetch.clone()) else { return FetchPoll::Missing };
        if fetch.exchange != number {
            return FetchPoll::Superseded;
        }
        if self.drained {
            return FetchPoll::Drained;
        }
        let most = fetch.body.get("slots").and_then(Json::as_u64).unwrap_or(1);
        let mut tokens: Vec<String> = Vec::new();
        for job in 0..self.jobs.len() {
            if self.jobs[job].waits && (tokens.len() as u64) < most {
                self.jobs[job].waits = false;
                let token =
                    format!("{}{}", uuid::Uuid::new_v4().simple(), &uuid::Uuid::new_v4().simple().to_string()[..16]);
                self.attempts.insert(token.clone(), new_attempt(job));
                tokens.push(token);
            }
        }
        if tokens.is_empty() {
            return FetchPoll::Wait;
        }
        if let Some(fetch) = self.workers.get_mut(worker).and_then(|of| of.fetch.as_mut()) {
            fetch.tokens = tokens.clone();
        }
        // After the new jobs, so that a client sees both in one answer.
        for token in std::mem::take(&mut self.again) {
            self.twice.insert(token.clone());
            tokens.push(token);
        }
        FetchPoll::Ready(tokens)
    }

    /// Make the answer with these attempts to a request that came then.
    pub(crate) fn deliver(&self, tokens: &[String], came: Instant) -> Answer {
        let mut jobs = Vec::new();
        for token in tokens {
            let Some(attempt) = self.attempts.get(token) else { continue };
            let job = &self.jobs[attempt.job];
            let started = chrono::Utc::now() + chrono::TimeDelta::seconds(self.setup.clock_s);
            let deadline = started + chrono::TimeDelta::milliseconds(i64::try_from(job.timeout_ms).unwrap_or(i64::MAX));
            let moment = |at: chrono::DateTime<chrono::Utc>| at.to_rfc3339_opts(chrono::SecondsFormat::Millis, true);
            let used = self.attempts_of(attempt.job).iter().filter(|(_, a)| !a.over).count().max(1);
            let mut fields: Vec<(String, Json)> = vec![
                ("id".to_owned(), Json::text(&job.id)),
                ("kind".to_owned(), Json::text(&job.kind)),
                ("queue".to_owned(), Json::text(crate::world::QUEUE)),
                ("payload".to_owned(), job.payload.clone()),
                ("attempt".to_owned(), Json::Number(used.to_string())),
                ("max_attempts".to_owned(), Json::Number("5".to_owned())),
                ("token".to_owned(), Json::text(token)),
                ("started_at".to_owned(), Json::Text(moment(started))),
                ("deadline_at".to_owned(), Json::Text(moment(deadline))),
                ("timeout_ms".to_owned(), Json::Number(job.timeout_ms.to_string())),
            ];
            if let Some(checkpoint) = &job.checkpoint {
                fields.push(("checkpoint".to_owned(), checkpoint.clone()));
            }
            if self.setup.extra_fields {
                fields.push(("added_later".to_owned(), Json::List(vec![Json::Null])));
            }
            jobs.push(Json::Object(fields));
        }
        let mut fields = vec![("jobs".to_owned(), Json::List(jobs)), ("drain".to_owned(), Json::Bool(self.drained))];
        if self.setup.took {
            fields.push(("took_ms".to_owned(), Json::Number(came.elapsed().as_millis().to_string())));
        }
        if self.setup.extra_fields {
            fields.push(("added_later".to_owned(), Json::Number("7".to_owned())));
        }
        Answer::json(200, &Json::Object(fields))
    }

    /// Note that the answer with these attempts was on its way for so long that it counts as lost.
    pub(crate) fn came_late(&mut self, tokens: &[String]) {
        for token in tokens {
            if let Some(attempt) = self.attempts.get_mut(token) {
                attempt.late = true;
            }
        }
    }

    /// Note that an answer with attempts was written whole.
    pub(crate) fn fetched(&mut self, worker: &str, number: usize, tokens: &[String]) {
        for token in tokens {
            if let Some(attempt) = self.attempts.get_mut(token).filter(|attempt| !attempt.late) {
                attempt.delivered_at.get_or_insert_with(Instant::now);
            }
        }
        if let Some(fetch) = self.workers.get_mut(worker).and_then(|of| of.fetch.as_mut())
            && fetch.exchange == number
        {
            fetch.answered = true;
        }
    }

    pub(crate) fn beat(&mut self, worker: &str, body: &Json) -> Answer {
        if !self.workers.contains_key(worker) {
            return missing();
        }
        self.compare_holding(body, "beat");
        let now = Instant::now();
        let (mut cancel, mut lost, mut unsaved) = (Vec::new(), Vec::new(), Vec::new());
        for held in body.get("holding").and_then(Json::as_list).unwrap_or_default() {
            let Some(token) = held.get("token").and_then(Json::as_text) else { continue };
            let cancelled = self.cancelled.contains(token);
            let Some(attempt) = self.attempts.get_mut(token) else {
                lost.push(token.to_owned());
                continue;
            };
            let job = &mut self.jobs[attempt.job];
            if job.locked && held.get("checkpoint").is_some() {
                job.locked = false;
                attempt.unsaved = Some(attempt.beats.len());
                unsaved.push(token.to_owned());
            }
            attempt.beats.push((now, held.clone()));
            if attempt.over {
                lost.push(token.to_owned());
                attempt.lost_told_at.get_or_insert(now);
                continue;
            }
            let limit = Duration::from_millis(job.timeout_ms);
            if attempt.verdict.is_none() && (cancelled || now.duration_since(attempt.handed_at) > limit) {
                cancel.push(token.to_owned());
                attempt.cancel_told_at.get_or_insert(now);
            }
        }
        let mut answer = serde_json::json!({ "cancel": cancel, "lost": lost, "drain": self.drained });
        if !unsaved.is_empty() {
            answer["unsaved"] = unsaved.into();
        }
        self.answer(200, answer)
    }

    pub(crate) fn finish(&mut self, body: &Json) -> Answer {
        let mut results = Vec::new();
        for verdict in body.get("verdicts").and_then(Json::as_list).unwrap_or_default() {
            let token = verdict.get("token").and_then(Json::as_text).unwrap_or_default();
            let result = self.finish_one(token, verdict);
            let mut answer = serde_json::json!({ "token": token, "result": result });
            if result == "refused" {
                answer["errors"] = serde_json::json!([{ "field": "result", "detail": "is not what the kit expects" }]);
            }
            if result == "settled" {
                answer["state"] = match verdict.get("verdict").and_then(Json::as_text) {
                    Some("succeeded") => "completed",
                    Some("failed") => "retrying",
                    Some("rejected") => "failed",
                    _ => "waiting",
                }
                .into();
            }
            if self.setup.extra_fields {
                answer["added_later"] = true.into();
            }
            results.push(answer);
        }
        self.answer(200, serde_json::json!({ "results": results }))
    }

    fn finish_one(&mut self, token: &str, verdict: &Json) -> &'static str {
        let Some(attempt) = self.attempts.get_mut(token) else {
            self.breach("finish-lost", format!("a verdict for {}", brief(token)), "a token that was handed out");
            return "unknown";
        };
        attempt.verdicts += 1;
        let (answered, over, forced) = (attempt.answered_at.is_some(), attempt.over, attempt.forced);
        let first = attempt.verdict.get_or_insert_with(|| verdict.clone()).clone();
        attempt.verdict_at.get_or_insert_with(Instant::now);
        let same = first.same(verdict);
        let kind = self.jobs[attempt.job].kind.clone();
        let rule = if self.twice.contains(token) { "token-twice" } else { "finish-lost" };
        if let Some(word @ ("refused" | "locked")) = forced {
            // The attempt waits for another verdict, or for the same one once more.
            attempt.refused = attempt.verdict.take();
            (attempt.verdict_at, attempt.forced) = (None, None);
            return word;
        }
        if !same {
            let seen = format!("{} and later, for the same token, {}", first.brief(), verdict.brief());
            self.breach(rule, seen, "the same verdict again");
        }
        if answered {
            let rule = if forced.is_some() { "finish-refused" } else { rule };
            let seen = format!("a second verdict of a {kind} whose first one was answered");
            self.breach(rule, seen, "one verdict for each token, repeated only until it is answered");
        }
        match forced {
            Some(forced) => forced,
            None if over || !same => "lease_lost",
            None => "settled",
        }
    }

    /// Note that the answer to verdicts is on its way to a client that can read it.
    pub(crate) fn finished(&mut self, body: &Json) {
        for verdict in body.get("verdicts").and_then(Json::as_list).unwrap_or_default() {
            let token = verdict.get("token").and_then(Json::as_text).unwrap_or_default();
            if let Some(attempt) = self.attempts.get_mut(token).filter(|attempt| attempt.verdict.is_some()) {
                attempt.answered_at.get_or_insert_with(Instant::now);
            }
        }
    }

    pub(crate) fn leave(&mut self, worker: &str) -> Answer {
        if self.workers.remove(worker).is_none() {
            return missing();
        }
        self.left.push(worker.to_owned());
        let open: Vec<String> = self.attempts.keys().cloned().collect();
        self.give_back(&open);
        Answer::empty(204)
    }

    pub(crate) fn enqueue(&mut self, key: Option<&str>, body: &Json) -> Answer {
        let before = self.enqueues.iter().find(|enqueue| key.is_some() && enqueue.key.as_deref() == key);
        let replayed = before.is_some();
        let (id, changed) = match before {
            Some(before) => (before.id.clone(), !before.body.same(body)),
            None => (uuid::Uuid::now_v7().to_string(), false),
        };
        if changed {
            self.breach("enqueue-repeated", "another body with the same Idempotency-Key", "the same body");
        }
        self.enqueues.push(Enqueue { key: key.map(str::to_owned), body: body.clone(), id: id.clone() });
        let now = chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Millis, true);
        let field = |name: &str| body.get(name).cloned().unwrap_or(Json::Null);
        let queue = body.get("queue").cloned().unwrap_or_else(|| Json::text("default"));
        let answer = format!(
            r#"{{"id":"{id}","kind":{},"queue":{queue},"priority":5,"state":"waiting","payload":{},"attempt":0,"max_attempts":5,"timeout_ms":null,"retry":null,"unique_key":null,"created_at":"{now}","execute_at":"{now}","started_at":null,"finished_at":null,"last_error":null,"result":null,"warnings":[],"attempts":[]}}"#,
            field("kind"),
            field("payload"),
        );
        let mut answer = Answer::json(201, &answer);
        answer.headers.push(("location", format!("/v1/jobs/{id}")));
        if replayed {
            answer.headers.push(("idempotency-replayed", "true".to_owned()));
        }
        answer
    }
}

/// The answer to a worker that is not registered.
pub(crate) fn missing() -> Answer {
    Answer::problem(404, "not_found", "no such worker is registered, or not any more: register again")
}

fn new_attempt(job: usize) -> Attempt {
    Attempt {
        job,
        handed_at: Instant::now(),
        delivered_at: None,
        late: false,
        listed: false,
        over: false,
        verdict: None,
        verdict_at: None,
        verdicts: 0,
        answered_at: None,
        cancel_told_at: None,
        lost_told_at: None,
        beats: Vec::new(),
        unsaved: None,
        forced: None,
        refused: None,
    }
}
