//! The bodies of the calls: exactly the fields of docs/WORKERS.md, within their bounds.

use crate::call::Call;
use crate::json::Json;

/// Something that a body has wrong: the scenario that it belongs to, what was seen, and what is expected.
pub(crate) type Wrong = (&'static str, String, String);

/// Largest log and result, in bytes; longest error and note, in characters.
pub(crate) const MAX_LOG: usize = 16 << 10;
pub(crate) const MAX_RESULT: usize = 256 << 10;
pub(crate) const MAX_ERROR: usize = 2_000;
pub(crate) const MAX_NOTE: usize = 120;
const MAX_CHECKPOINT: usize = 64 << 10;
const MAX_AHEAD_MS: u64 = 31_622_400_000;

/// Check the body of a call.
pub(crate) fn check(call: Call, body: &Json) -> Vec<Wrong> {
    let mut checker = Checker { call, wrong: Vec::new() };
    match call {
        Call::Register => checker.register(body),
        Call::Fetch => checker.fetch(body),
        Call::Beat => checker.beat(body),
        Call::Finish => checker.finish(body),
        Call::Leave | Call::Enqueue | Call::Other => {}
    }
    checker.wrong
}

struct Checker {
    call: Call,
    wrong: Vec<Wrong>,
}

impl Checker {
    fn wrong(&mut self, seen: impl Into<String>, expected: impl Into<String>) {
        self.wrong_in("bodies", seen, expected);
    }

    fn wrong_in(&mut self, scenario: &'static str, seen: impl Into<String>, expected: impl Into<String>) {
        self.wrong.push((scenario, format!("{}: {}", self.call, seen.into()), expected.into()));
    }

    /// Check that an object has these fields and no others.
    fn fields(&mut self, what: &str, body: &Json, required: &[&str], optional: &[&str]) {
        let Json::Object(fields) = body else {
            return self.wrong(format!("{what} is {}", body.brief()), "an object");
        };
        for (name, _) in fields {
            if !required.contains(&name.as_str()) && !optional.contains(&name.as_str()) {
                self.wrong(format!("{what} has the field {name}"), "exactly the fields of docs/WORKERS.md");
            }
        }
        for name in required {
            if body.get(name).is_none() {
                self.wrong(format!("{what} has no field {name}"), format!("the field {name}"));
            }
        }
    }

    fn text(&mut self, body: &Json, name: &str, most: usize) {
        match body.get(name) {
            None => {}
            Some(Json::Text(text)) if text.chars().count() <= most => {}
            Some(other) => {
                self.wrong(format!("{name} is {}", other.brief()), format!("a text of at most {most} characters"));
            }
        }
    }

    fn integer(&mut self, body: &Json, name: &str, least: u64, most: u64) {
        let Some(value) = body.get(name) else { return };
        if value.as_u64().is_none_or(|number| !(least..=most).contains(&number)) {
            self.wrong(format!("{name} is {}", value.brief()), format!("a whole number, {least} to {most}"));
        }
    }

    fn list<'b>(&mut self, body: &'b Json, name: &str, least: usize, most: usize) -> &'b [Json] {
        match body.get(name) {
            None => &[],
            Some(Json::List(items)) if (least..=most).contains(&items.len()) => items,
            Some(other) => {
                self.wrong(format!("{name} is {}", other.brief()), format!("a list of {least} to {most}"));
                &[]
            }
        }
    }

    fn texts(&mut self, body: &Json, name: &str, least: usize, most: usize) {
        for item in self.list(body, name, least, most) {
            if item.as_text().is_none() {
                self.wrong(format!("{name} has the entry {}", item.brief()), "a list of texts");
            }
        }
    }

    fn register(&mut self, body: &Json) {
        let optional = ["queues", "lease_ms", "host", "pid", "version"];
        self.fields("the body", body, &["name", "kinds", "slots"], &optional);
        self.text(body, "name", 64);
        self.text(body, "host", 255);
        self.text(body, "version", 64);
        self.texts(body, "kinds", 1, 100);
        self.texts(body, "queues", 1, 100);
        self.integer(body, "slots", 1, 1_000);
        self.integer(body, "lease_ms", 10_000, 3_600_000);
        self.integer(body, "pid", 0, u64::from(u32::MAX));
        if body.get("name").and_then(Json::as_text).is_some_and(|name| name.trim().is_empty()) {
            self.wrong("name is empty", "the name of the program");
        }
    }

    fn fetch(&mut self, body: &Json) {
        self.fields("the body", body, &["slots", "holding", "fetch_id"], &["wait_ms"]);
        self.integer(body, "slots", 1, 500);
        self.integer(body, "wait_ms", 0, 60_000);
        self.texts(body, "holding", 0, 1_000);
        let id = body.get("fetch_id");
        if let Some(id) = id
            && id.as_text().is_none_or(|text| uuid::Uuid::parse_str(text).is_err())
        {
            self.wrong(format!("fetch_id is {}", id.brief()), "a UUID");
        }
    }

    fn beat(&mut self, body: &Json) {
        self.fields("the body", body, &["holding"], &[]);
        for held in self.list(body, "holding", 0, 1_000) {
            self.fields("an entry of holding", held, &["token"], &["percent", "note", "checkpoint"]);
            self.text(held, "token", 200);
            if let Some(percent) = held.get("percent") {
                let number = if let Json::Number(text) = percent { text.parse::<f64>().ok() } else { None };
                if number.is_none_or(|number| !(0.0..=100.0).contains(&number)) {
                    self.wrong(format!("percent is {}", percent.brief()), "a number, 0 to 100");
                }
            }
            if let Some(note) = held.get("note") {
                let fits = |text: &str| text.chars().count() <= MAX_NOTE && !text.chars().any(char::is_control);
                if !note.as_text().is_some_and(fits) {
                    let expected = format!("a text of at most {MAX_NOTE} characters, without control characters");
                    self.wrong_in("progress", format!("note is {}", note.brief()), expected);
                }
            }
            if held.get("checkpoint").is_some_and(|checkpoint| checkpoint.to_string().len() > MAX_CHECKPOINT) {
                self.wrong_in("progress", "a checkpoint of more than 64 KiB", "JSON of at most 64 KiB");
            }
        }
    }

    fn finish(&mut self, body: &Json) {
        self.fields("the body", body, &["verdicts"], &[]);
        for verdict in self.list(body, "verdicts", 1, 500) {
            self.verdict(verdict);
        }
    }

    fn verdict(&mut self, verdict: &Json) {
        let optional = ["result", "error", "delay_ms", "log", "checkpoint", "follow_ups"];
        self.fields("a verdict", verdict, &["token", "verdict"], &optional);
        self.text(verdict, "token", 200);
        let word = verdict.get("verdict").and_then(Json::as_text).unwrap_or_default();
        if !["succeeded", "failed", "rejected", "snoozed", "released"].contains(&word) {
            self.wrong(format!("the verdict {word:?}"), "succeeded, failed, rejected, snoozed or released");
        }
        if let Some(result) = verdict.get("result") {
            if word != "succeeded" {
                self.wrong(format!("a result with {word}"), "a result only with succeeded");
            }
            if result.to_string().len() > MAX_RESULT {
                let seen = format!("a result of {} bytes", result.to_string().len());
                self.wrong_in("result-too-large", seen, "JSON of at most 256 KiB");
            }
        }
        if verdict.get("follow_ups").is_some() && word != "succeeded" {
            self.wrong(format!("follow_ups with {word}"), "follow_ups only with succeeded");
        }
        for job in self.list(verdict, "follow_ups", 0, 1_000) {
            if job.get("kind").and_then(Json::as_text).is_none() {
                self.wrong(format!("the follow-up job {}", job.brief()), "an object with the kind of the job");
            }
        }
        match verdict.get("error") {
            None if ["failed", "rejected", "snoozed"].contains(&word) => {
                self.wrong(format!("{word} without an error"), "an error with failed, rejected and snoozed");
            }
            Some(_) if word == "succeeded" => self.wrong("an error with succeeded", "no error"),
            Some(Json::Text(text)) if text.trim().is_empty() || text.chars().count() > MAX_ERROR => {
                let seen = format!("an error of {} characters: {}", text.chars().count(), crate::json::brief(text));
                self.wrong_in("error-length", seen, "1 to 2,000 characters, not only blanks");
            }
            None | Some(Json::Text(_)) => {}
            Some(other) => self.wrong(format!("error is {}", other.brief()), "a text"),
        }
        match (word, verdict.get("delay_ms")) {
            ("snoozed", None) => self.wrong("snoozed without delay_ms", "delay_ms with snoozed"),
            ("snoozed" | "failed", Some(_)) => self.integer(verdict, "delay_ms", 0, MAX_AHEAD_MS),
            (_, Some(_)) => self.wrong(format!("delay_ms with {word}"), "delay_ms only with snoozed and failed"),
            (_, None) => {}
        }
        match verdict.get("log") {
            None => {}
            Some(Json::Text(text)) if text.len() <= MAX_LOG => {}
            Some(Json::Text(text)) => {
                self.wrong_in("log-length", format!("a log of {} bytes", text.len()), "at most 16 KiB");
            }
            Some(other) => self.wrong(format!("log is {}", other.brief()), "a text"),
        }
        if verdict.get("checkpoint").is_some_and(|checkpoint| checkpoint.to_string().len() > MAX_CHECKPOINT) {
            self.wrong("a checkpoint of more than 64 KiB", "JSON of at most 64 KiB");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(call: Call, body: &str) -> Vec<&'static str> {
        check(call, &Json::parse(body.as_bytes()).expect("JSON")).into_iter().map(|(scenario, ..)| scenario).collect()
    }

    #[test]
    fn bodies_of_the_specification_pass_and_others_do_not() {
        let none: Vec<&str> = Vec::new();
        let id = "5f0c0d1e-3a55-4b7e-9d0c-0f6a4d1f0001";
        let fine = [
            (
                Call::Register,
                r#"{"name":"x","kinds":["a"],"slots":4,"queues":["q"],"lease_ms":10000,"pid":1}"#.to_owned(),
            ),
            (Call::Fetch, format!(r#"{{"slots":1,"wait_ms":0,"holding":["t"],"fetch_id":"{id}"}}"#)),
            (Call::Beat, r#"{"holding":[{"token":"t","percent":1.5,"note":"n","checkpoint":[1]}]}"#.to_owned()),
            (Call::Finish, r#"{"verdicts":[{"token":"t","verdict":"released"}]}"#.to_owned()),
            (Call::Finish, r#"{"verdicts":[{"token":"t","verdict":"failed","error":"e","delay_ms":0}]}"#.to_owned()),
            (Call::Finish, r#"{"verdicts":[{"token":"t","verdict":"released","checkpoint":{"at":1}}]}"#.to_owned()),
            (
                Call::Finish,
                r#"{"verdicts":[{"token":"t","verdict":"succeeded","follow_ups":[{"kind":"a"}]}]}"#.to_owned(),
            ),
        ];
        for (call, body) in fine {
            assert_eq!(wrong(call, &body), none, "{body}");
        }
        for (call, body) in [
            (Call::Register, r#"{"name":"x","kinds":[],"slots":4}"#),
            (Call::Fetch, r#"{"slots":0,"holding":[],"fetch_id":"5f0c0d1e-3a55-4b7e-9d0c-0f6a4d1f0001"}"#),
            (Call::Fetch, r#"{"slots":1,"holding":[],"fetch_id":"seven"}"#),
            (Call::Beat, r#"{"holding":[{"token":"t","id":"x"}]}"#),
            (Call::Finish, r#"{"verdicts":[{"token":"t","verdict":"failed"}]}"#),
            (Call::Finish, r#"{"verdicts":[{"token":"t","verdict":"succeeded","error":"e"}]}"#),
            (Call::Finish, r#"{"verdicts":[{"token":"t","verdict":"released","follow_ups":[]}]}"#),
            (Call::Finish, r#"{"verdicts":[{"token":"t","verdict":"succeeded","follow_ups":["a"]}]}"#),
            (Call::Finish, r#"{"verdicts":[]}"#),
        ] {
            assert_eq!(wrong(call, body), ["bodies"], "{body}");
        }
        assert_eq!(wrong(Call::Beat, r#"{"holding":[{"token":"t","note":"a\nb"}]}"#), ["progress"]);
        let long = format!(r#"{{"verdicts":[{{"token":"t","verdict":"failed","error":"{}"}}]}}"#, "é".repeat(2_001));
        assert_eq!(wrong(Call::Finish, &long), ["error-length"]);
    }
}
