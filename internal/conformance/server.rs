//! The two addresses of the server, and one loop for each connection.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};

use crate::call::{Action, Call};
use crate::http::{Answer, Connection, Request};
use crate::json::Json;
use crate::protocol::{FetchPoll, FetchStart, missing};
use crate::world::{State, World};

/// Time for which an empty answer to a repeated request is held back.
const CALM: Duration = Duration::from_millis(200);
/// Time within which a client that gave a request up has closed its connection.
const GIVEN_UP: Duration = Duration::from_millis(300);

/// One address of the server.
pub(crate) struct Server {
    world: Arc<World>,
    index: usize,
    addr: SocketAddr,
    accepting: Option<AbortHandle>,
}

impl Server {
    /// Listen on a port of the loopback.
    pub(crate) async fn start(world: Arc<World>, index: usize) -> std::io::Result<Self> {
        let listener = TcpListener::bind((loopback(), 0)).await?;
        let addr = listener.local_addr()?;
        let mut server = Self { world, index, addr, accepting: None };
        server.accept(listener);
        Ok(server)
    }

    fn accept(&mut self, listener: TcpListener) {
        let (world, index) = (self.world.clone(), self.index);
        let accepting = tokio::spawn(async move {
            // The connections end with this task.
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(world.clone(), index, Connection::new(stream)));
                while connections.try_join_next().is_some() {}
            }
        });
        self.accepting = Some(accepting.abort_handle());
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Close the address and all its connections.
    pub(crate) fn stop(&mut self) {
        if let Some(accepting) = self.accepting.take() {
            accepting.abort();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Return an address of the loopback that hardly any other program uses. A worker of an earlier test that looks for its
/// server does not find this one.
fn loopback() -> Ipv4Addr {
    if cfg!(target_os = "linux") {
        let [a, b, c, ..] = uuid::Uuid::new_v4().into_bytes();
        Ipv4Addr::new(127, a | 1, b, c | 1)
    } else {
        Ipv4Addr::LOCALHOST
    }
}

async fn serve(world: Arc<World>, server: usize, mut connection: Connection) {
    let mut used = false;
    while let Ok(Some(request)) = connection.request().await {
        if used && world.quietly(State::take_reset) {
            return connection.reset();
        }
        used = true;
        let last = request.is_last();
        match exchange(&world, server, connection, &request).await {
            Some(kept) if !last => connection = kept,
            Some(kept) => return kept.close().await,
            None => return,
        }
    }
}

/// Answer one request. Returns the connection unless a fault ended it.
async fn exchange(world: &World, server: usize, mut connection: Connection, request: &Request) -> Option<Connection> {
    let came = Instant::now();
    let (call, worker) = Call::of(&request.method, &request.path);
    let (number, body, fault) = world.change(|state| state.arrived(server, call, request));
    match &fault {
        Some(Action::NoAnswer) => {
            world.change(|state| note(state, number, "no answer"));
            connection.closed().await;
            return None;
        }
        Some(Action::Status(status, retry_after)) => {
            let code = match status {
                401 => "unauthorized",
                403 => "forbidden",
                404 => "not_found",
                413 => "too_large",
                429 => "overloaded",
                _ => "unavailable",
            };
            let mut answer = Answer::problem(*status, code, "the conformance kit answers so on purpose");
            answer.headers.extend(retry_after.map(|seconds| ("retry-after", seconds.to_string())));
            return send(world, number, connection, &answer, None).await;
        }
        Some(Action::Page) => {
            let body = "<html><body><h1>502 Bad Gateway</h1></body></html>".to_owned();
            let answer = Answer { status: 502, content_type: "text/html", headers: Vec::new(), body };
            return send(world, number, connection, &answer, None).await;
        }
        _ => {}
    }
    let mut tokens = Vec::new();
    let mut answer = match call {
        Call::Register => world.change(|state| state.register(body.clone())),
        Call::Fetch => {
            let fetched = fetch(world, &mut connection, &worker, number, &body, came).await;
            let Some((answer, of)) = fetched else {
                world.change(|state| note(state, number, "the program closed the connection"));
                return None;
            };
            tokens = of;
            answer
        }
        Call::Beat => world.change(|state| state.beat(&worker, &body)),
        Call::Finish => world.change(|state| state.finish(&body)),
        Call::Leave => world.change(|state| state.leave(&worker)),
        Call::Enqueue => world.change(|state| state.enqueue(request.header("idempotency-key"), &body)),
        Call::Other => Answer::problem(404, "not_found", "the conformance kit does not have this call"),
    };
    let fault = fault.or_else(|| {
        let waits_for_jobs = call == Call::Fetch && !tokens.is_empty();
        world.quietly(|state| waits_for_jobs.then(|| state.fault(server, call, Action::comes_after)).flatten())
    });
    if fault.is_some() && answer.status >= 400 {
        // The fault is for an answer that says something.
        answer.headers.clear();
    }
    let late = matches!(fault, Some(Action::Late(_)));
    match fault {
        Some(Action::CutBefore) => {
            world.change(|state| state.answering(number, &answer, false, "closed before the answer "));
            connection.close().await;
            None
        }
        Some(Action::CutInside) => {
            world.change(|state| state.answering(number, &answer, false, "closed inside the answer "));
            let bytes = answer.bytes(false);
            let _ = connection.write(&bytes[..bytes.len() - answer.body.len().div_ceil(2)]).await;
            connection.close().await;
            None
        }
        Some(Action::Slow(time) | Action::Late(time)) if connection.closes_within(time).await => {
            world.change(|state| {
                note(state, number, "the program closed the connection before a slow answer");
                state.give_back(&tokens);
            });
            None
        }
        _ => {
            if call == Call::Finish {
                world.change(|state| state.finished(&body));
            }
            if late {
                world.change(|state| state.came_late(&tokens));
            }
            let kept = send(world, number, connection, &answer, Some(&tokens)).await;
            world.change(|state| match kept {
                Some(_) if call == Call::Fetch => state.fetched(&worker, number, &tokens),
                Some(_) => {}
                None => state.give_back(&tokens),
            });
            kept
        }
    }
}

fn note(state: &mut State, number: usize, text: &str) {
    if let Some(exchange) = state.exchanges.get_mut(number) {
        exchange.answer = text.to_owned();
    }
}

async fn send(
    world: &World,
    number: usize,
    mut connection: Connection,
    answer: &Answer,
    done: Option<&[String]>,
) -> Option<Connection> {
    let pieces = world.change(|state| {
        let note = if done.is_none() { "instead of doing it " } else { "" };
        state.answering(number, answer, true, note);
        state.setup.pieces
    });
    connection.write(&answer.bytes(pieces)).await.ok()?;
    Some(connection)
}

/// Wait for jobs, for a request that came then. `None` when the client has closed the connection.
async fn fetch(
    world: &World,
    connection: &mut Connection,
    worker: &str,
    number: usize,
    body: &Json,
    came: Instant,
) -> Option<(Answer, Vec<String>)> {
    let until = match world.change(|state| state.begin_fetch(worker, number, body)) {
        FetchStart::Missing => return Some((missing(), Vec::new())),
        FetchStart::Again(tokens) => return Some((world.read(|state| state.deliver(&tokens, came)), tokens)),
        FetchStart::Nothing => {
            if connection.closes_within(CALM).await {
                return None;
            }
            return Some((world.read(|state| state.deliver(&[], came)), Vec::new()));
        }
        FetchStart::Wait(wait) => Instant::now() + wait,
    };
    let mut changes = world.changes();
    loop {
        changes.borrow_and_update();
        match world.quietly(|state| state.poll_fetch(worker, number)) {
            FetchPoll::Missing => return Some((missing(), Vec::new())),
            FetchPoll::Superseded => {
                if connection.closes_within(GIVEN_UP).await {
                    return None;
                }
                world.change(|state| {
                    let seen = "a second request for jobs while the first one still waited on an open connection";
                    state.breach("one-fetch", seen, "one request at a time");
                });
                return Some((world.read(|state| state.deliver(&[], came)), Vec::new()));
            }
            FetchPoll::Drained => return Some((world.read(|state| state.deliver(&[], came)), Vec::new())),
            FetchPoll::Ready(tokens) => return Some((world.change(|state| state.deliver(&tokens, came)), tokens)),
            FetchPoll::Wait => {}
        }
        tokio::select! {
            _ = changes.changed() => {}
            () = connection.closed() => return None,
            () = tokio::time::sleep_until(until.into()) => {
                return Some((world.read(|state| state.deliver(&[], came)), Vec::new()));
            }
        }
    }
}
