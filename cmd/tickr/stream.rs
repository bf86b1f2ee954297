//! Event streams that reconnect. When the connection breaks or the server restarts, the stream continues after the last
//! event, within a limited time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::{Arg, ArgMatches, value_parser};
use reqwest::{Response, StatusCode};
use serde_json::{Map, Value};
use tickr::app::Signals;
use tickr::client::trusting;
use tokio::sync::oneshot;

use crate::client::{Client, FIRST_PAUSE, MAX_PAUSE};

/// Longest time that a connection may take to open.
pub(crate) const CONNECT: Duration = Duration::from_secs(10);
/// Longest time without data. The server sends at least a comment every 15 s.
const SILENCE: Duration = Duration::from_secs(45);
/// Longest patience: ten years. The end of a much longer one is no time that the system knows.
const MAX_PATIENCE: Duration = Duration::from_secs(10 * 365 * 86_400);
/// Time that a command has to end by itself after a signal.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Longest line of a stream, in bytes. The lines of tickr have a few hundred.
const MAX_LINE: usize = 1 << 20;

/// The argument `--patience`: the time during which a broken stream is opened again.
pub(crate) fn patience() -> Arg {
    Arg::new("patience")
        .long("patience")
        .value_name("SECONDS")
        .value_parser(value_parser!(u64))
        .default_value("60")
        .help("Seconds to keep trying when the connection breaks or the server restarts")
}

/// Read the argument `--patience`.
pub(crate) fn patience_of(matches: &ArgMatches) -> Duration {
    let patience = Duration::from_secs(matches.get_one::<u64>("patience").copied().unwrap_or(60));
    patience.min(MAX_PATIENCE)
}

/// One event of a stream.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct StreamEvent {
    pub(crate) kind: String,
    pub(crate) id: Option<String>,
    pub(crate) data: Value,
}

impl StreamEvent {
    /// The event as one JSON object: its type, its id if it has one, and its fields.
    pub(crate) fn as_json(&self) -> Value {
        let mut all = Map::new();
        all.insert("type".into(), self.kind.as_str().into());
        if let Some(id) = &self.id {
            all.insert("id".into(), id.as_str().into());
        }
        if let Value::Object(fields) = &self.data {
            all.extend(fields.iter().map(|(name, value)| (name.clone(), value.clone())));
        }
        all.into()
    }
}

/// An open stream of events.
pub(crate) struct Stream<'a> {
    client: &'a Client,
    http: reqwest::Client,
    path: String,
    response: Option<Response>,
    reader: Reader,
    events: VecDeque<StreamEvent>,
    /// Id of the last event that had one.
    last: Option<String>,
    /// Time during which the stream is opened again after the last data.
    patience: Duration,
    /// Time of the break, while nothing arrives. `None` while the stream delivers.
    lost: Option<Instant>,
    pause: Duration,
    /// Called with a message when the stream breaks, and when it works again.
    say: Box<dyn Fn(&str) + 'a>,
}

/// Outcome of a try to open a stream.
enum Opened {
    Stream(Response),
    /// The server has no more events.
    Over,
    /// Failed, but worth another try.
    Later(anyhow::Error),
}

impl<'a> Stream<'a> {
    /// Open the stream of a path. When the server does not answer, or refuses the caller, this returns the error at
    /// once.
    pub(crate) async fn open(
        client: &'a Client,
        path: String,
        patience: Duration,
        say: impl Fn(&str) + 'a,
    ) -> anyhow::Result<Self> {
        let http =
            trusting(client.base(), || reqwest::Client::builder().connect_timeout(CONNECT).read_timeout(SILENCE))?;
        let mut stream = Self {
            client,
            http,
            path,
            response: None,
            reader: Reader::default(),
            events: VecDeque::new(),
            last: None,
            patience,
            lost: None,
            pause: FIRST_PAUSE,
            say: Box::new(say),
        };
        match stream.ask().await? {
            Opened::Stream(response) => stream.response = Some(response),
            Opened::Over => {}
            Opened::Later(error) => return Err(error),
        }
        Ok(stream)
    }

    /// Return the next event, or `None` when the server has no more events.
    ///
    /// The future can be dropped and the method called again without losing an event.
    pub(crate) async fn next(&mut self) -> anyhow::Result<Option<StreamEvent>> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            let Some(response) = &mut self.response else { return Ok(None) };
            let broken = match response.chunk().await {
                Ok(Some(bytes)) => {
                    (self.lost, self.pause) = (None, FIRST_PAUSE);
                    for event in self.reader.take(&bytes).with_context(|| self.client.url().to_owned())? {
                        if let Some(id) = &event.id {
                            self.last = Some(id.clone());
                        }
                        self.events.push_back(event);
                    }
                    continue;
                }
                Ok(None) => anyhow::anyhow!("the server ended it"),
                Err(error) => error.into(),
            };
            self.reopen(broken).await?;
        }
    }

    /// Open the stream again, after the last event.
    async fn reopen(&mut self, broken: anyhow::Error) -> anyhow::Result<()> {
        let since = *self.lost.get_or_insert_with(Instant::now);
        let url = self.client.url();
        (self.say)(&format!("the stream from {url} broke off ({broken:#}); trying again"));
        self.reader = Reader::default();
        let mut why = broken;
        loop {
            if since.elapsed() >= self.patience {
                return Err(why.context(format!("nothing came from {url} for {} s", self.patience.as_secs())));
            }
            tokio::time::sleep(self.pause.mul_f64(0.5 + rand::random::<f64>() / 2.0)).await;
            self.pause = (self.pause * 2).min(MAX_PAUSE);
            match self.ask().await? {
                Opened::Stream(response) => self.response = Some(response),
                Opened::Over => self.response = None,
                Opened::Later(error) => {
                    why = error;
                    continue;
                }
            }
            (self.say)(&format!("{url} is back"));
            return Ok(());
        }
    }

    async fn ask(&self) -> anyhow::Result<Opened> {
        let request = self.http.get(self.client.address(&self.path)?);
        let request = match &self.last {
            Some(last) => request.header("Last-Event-ID", last),
            None => request,
        };
        let response = match self.client.send(request).await {
            Ok(response) => response,
            Err(error) => return Ok(Opened::Later(error)),
        };
        let status = response.status();
        if status == StatusCode::NO_CONTENT {
            return Ok(Opened::Over);
        }
        if status == StatusCode::OK {
            let kind = response.headers().get(reqwest::header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
            if kind.is_none_or(|kind| !kind.starts_with("text/event-stream")) {
                bail!("{}: this is not a tickr server: its answer is not a stream of events", self.client.url());
            }
            return Ok(Opened::Stream(response));
        }
        let refused = match self.client.read(response).await {
            Ok(_) => anyhow::anyhow!("{}: this is not a tickr server: it answered {status}", self.client.url()),
            Err(error) => error,
        };
        // A server that is busy or stopping, or a proxy that cannot reach its server, may answer in a moment.
        if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() {
            return Ok(Opened::Later(refused));
        }
        Err(refused)
    }
}

/// Run this work until a signal requests the process to stop. Return the name of the signal in that case.
///
/// Work that prints blocks its thread while the reader of standard output does not read, and then hears of no signal. So
/// a task of its own waits for the signal, and ends the process with this exit code if the work does not stop. The code
/// is asked for right before that.
pub(crate) async fn until_signalled<T>(
    work: impl Future<Output = T>,
    exit_code: fn(&str) -> u8,
) -> anyhow::Result<Result<T, &'static str>> {
    let mut signals = Signals::register()?;
    let (tell, told) = oneshot::channel();
    let waiting = tokio::spawn(async move {
        let signal = signals.next().await;
        let _ = tell.send(signal);
        tokio::time::sleep(LAST_WORDS).await;
        std::process::exit(exit_code(signal).into());
    });
    let outcome = tokio::select! {
        done = work => Ok(done),
        Ok(signal) = told => Err(signal),
    };
    waiting.abort();
    Ok(outcome)
}

/// Parser that turns the bytes of a stream into events.
#[derive(Default)]
struct Reader {
    line: Vec<u8>,
    kind: String,
    id: Option<String>,
    data: String,
}

impl Reader {
    /// Parse these bytes and return the events that they complete.
    fn take(&mut self, bytes: &[u8]) -> anyhow::Result<Vec<StreamEvent>> {
        let mut events = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if self.line.len() + self.data.len() > MAX_LINE {
                bail!("this is not a tickr server: an event of its stream does not end");
            }
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                events.extend(self.line(String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r'])));
            }
        }
        Ok(events)
    }

    /// Parse one line and return the event that it completes.
    fn line(&mut self, line: &str) -> Option<StreamEvent> {
        if line.is_empty() {
            let (kind, id, data) = (std::mem::take(&mut self.kind), self.id.take(), std::mem::take(&mut self.data));
            // A block without data is not an event. Data that is not JSON was not sent by tickr.
            let data = serde_json::from_str(&data).ok()?;
            return Some(StreamEvent { kind, id, data });
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.kind),
            "id" => self.id = Some(value.to_owned()),
            "data" => {
                if !self.data.is_empty() {
                    self.data.push('\n');
                }
                self.data.push_str(value);
            }
            // Comments, which the server sends to keep the connection alive, and fields that later versions may add.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_are_read_however_their_bytes_are_cut() {
        let text = ": alive\n\nevent: state\ndata: {\"state\":\"wäiting\"}\n\nid: 1.begin\r\nevent:attempt\r\ndata: {\"a\":\r\n\
                    data: 1}\r\nlater: field\r\n\r\n:\n\ndata: no JSON\n\nevent: half\ndata: {}\n";
        let event =
            |kind: &str, id: Option<&str>, data: Value| StreamEvent { kind: kind.into(), id: id.map(Into::into), data };
        let expected =
            [event("state", None, json!({"state": "wäiting"})), event("attempt", Some("1.begin"), json!({"a": 1}))];
        for size in 1..text.len() {
            let mut reader = Reader::default();
            let found: Vec<StreamEvent> =
                text.as_bytes().chunks(size).flat_map(|bytes| reader.take(bytes).unwrap()).collect();
            assert_eq!(found, expected, "{size}");
        }
    }

    #[test]
    fn a_stream_that_does_not_end_its_line_is_refused() {
        let mut reader = Reader::default();
        let refused = (0..2_000).find_map(|_| reader.take(&[b'x'; 1_024]).err());
        assert!(refused.is_some() && reader.line.len() <= MAX_LINE + 1_024);
    }

    #[test]
    fn json_for_scripts_has_the_type_and_the_id_beside_the_fields() {
        let event = StreamEvent { kind: "attempt".into(), id: Some("1.begin".into()), data: json!({"number": 1}) };
        assert_eq!(event.as_json(), json!({"type": "attempt", "id": "1.begin", "number": 1}));
    }
}
