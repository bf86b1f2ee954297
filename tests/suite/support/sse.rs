//! A reader of server-sent events.

use std::collections::VecDeque;

use serde_json::Value;

use super::{DEADLINE, http};

/// One event.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) kind: String,
    pub(crate) id: Option<String>,
    pub(crate) data: Value,
}

impl Told {
    /// Return the id of the start or the end of an attempt without the time, such as `1.begin`.
    pub(crate) fn number_and_word(&self) -> String {
        self.id.iter().flat_map(|id| id.split('.').take(2)).collect::<Vec<_>>().join(".")
    }
}

/// An open stream.
pub(crate) struct EventStream {
    response: reqwest::Response,
    text: String,
    told: VecDeque<Told>,
}

impl EventStream {
    /// Open a stream, and check that it is accepted.
    pub(crate) async fn open(url: &str, last: Option<&str>) -> Self {
        let response = Self::ask(url, last).await;
        assert_eq!(response.status(), 200, "{url}");
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { response, text: String::new(), told: VecDeque::new() }
    }

    pub(crate) async fn ask(url: &str, last: Option<&str>) -> reqwest::Response {
        let request = http().get(url);
        let request = match last {
            Some(last) => request.header("Last-Event-ID", last),
            None => request,
        };
        request.send().await.unwrap()
    }

    /// Return the next event, or `None` when the stream has ended.
    pub(crate) async fn next(&mut self) -> Option<Told> {
        loop {
            if let Some(told) = self.told.pop_front() {
                return Some(told);
            }
            let chunk = tokio::time::timeout(DEADLINE, self.response.chunk()).await.expect("an event comes in time");
            let chunk = chunk.ok().flatten()?;
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
            while let Some((block, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
                if let Some(data) = field("data:") {
                    let data = serde_json::from_str(data).unwrap();
                    let (kind, id) = (field("event:").unwrap_or("message").to_owned(), field("id:").map(str::to_owned));
                    self.told.push_back(Told { kind, id, data });
                }
                self.text = rest.to_owned();
            }
        }
    }

    /// Return the next event that fits, and skip the others.
    pub(crate) async fn until(&mut self, what: &str, fits: impl Fn(&Told) -> bool) -> Told {
        // Comments that keep the connection open come for ever, so each event has a deadline and all of them together.
        let deadline = tokio::time::Instant::now() + 2 * DEADLINE;
        let mut seen = Vec::new();
        loop {
            let next = tokio::time::timeout_at(deadline, self.next()).await;
            let next = next.unwrap_or_else(|_| panic!("{what}: not heard of, but {seen:?}"));
            let told = next.unwrap_or_else(|| panic!("the stream ended before {what}"));
            if fits(&told) {
                return told;
            }
            seen.push(told);
        }
    }

    /// Return all events until the stream ends.
    pub(crate) async fn rest(mut self) -> Vec<Told> {
        let mut all = Vec::new();
        while let Some(told) = self.next().await {
            all.push(told);
        }
        all
    }
}
