//! One scenario on its way: the server, the program, and waits with a deadline.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::call::{Call, Fault};
use crate::json::Json;
use crate::program::Program;
use crate::server::Server;
use crate::world::{Setup, State, World};

/// Usual longest wait: a client may pause for five seconds between two tries.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// Longest wait for the registration. Some languages start slowly.
pub(crate) const START: Duration = Duration::from_secs(20);
/// Longest time after which a client takes a call for one that gets no answer. That of a request for jobs is longer by
/// its wait.
pub(crate) const NO_ANSWER: Duration = Duration::from_secs(25);
/// Time that a bound gets on top, because the machine has other work.
pub(crate) const SLACK: Duration = Duration::from_millis(1_000);

/// The reason why a scenario failed.
#[derive(Clone, Debug)]
pub(crate) struct Broken {
    pub(crate) seen: String,
    pub(crate) expected: String,
}

pub(crate) type Outcome = Result<(), Broken>;

/// Make the reason of a failure.
pub(crate) fn broken<T>(seen: impl Into<String>, expected: impl Into<String>) -> Result<T, Broken> {
    Err(Broken { seen: seen.into(), expected: expected.into() })
}

pub(crate) struct Stage {
    pub(crate) world: Arc<World>,
    pub(crate) servers: [Server; 2],
    pub(crate) program: Program,
}

impl Stage {
    /// Start both addresses and the program.
    pub(crate) async fn start(command: &[String], setup: Setup) -> std::io::Result<Self> {
        let dead = setup.dead;
        let world = Arc::new(World::new(setup));
        let mut servers = [Server::start(world.clone(), 0).await?, Server::start(world.clone(), 1).await?];
        let urls = format!("{},{}", servers[0].url(), servers[1].url());
        if let Some(server) = dead.and_then(|index| servers.get_mut(index)) {
            server.stop();
        }
        let program = Program::start(command, &urls, &world)?;
        Ok(Self { world, servers, program })
    }

    /// Wait until the program has registered a worker and asks for jobs, unless the server refuses it.
    pub(crate) async fn ready(&mut self) -> Outcome {
        let refused = |fault: &Fault| fault.call == Call::Register && fault.times == usize::MAX;
        if self.world.read(|state| state.setup.faults.iter().any(refused)) {
            return Ok(());
        }
        let fetched = |state: &State| state.calls(Call::Fetch).next().map(|_| ());
        self.wait(START, "the program registers a worker and asks for jobs", fetched).await
    }

    /// Wait for something in the state. The end of the program ends the wait.
    pub(crate) async fn wait<T>(
        &mut self,
        time: Duration,
        expected: impl Into<String>,
        mut ready: impl FnMut(&State) -> Option<T>,
    ) -> Result<T, Broken> {
        let mut changes = self.world.changes();
        let until = Instant::now() + time;
        let expected = expected.into();
        loop {
            changes.borrow_and_update();
            if let Some(found) = self.world.read(&mut ready) {
                return Ok(found);
            }
            tokio::select! {
                _ = changes.changed() => {}
                end = self.program.ended() => {
                    // The program may have done it just before its end.
                    if let Some(found) = self.world.read(&mut ready) {
                        return Ok(found);
                    }
                    let output = self.program.output();
                    let output: Vec<&str> = output.lines().rev().take(15).collect();
                    let output: Vec<&str> = output.into_iter().rev().collect();
                    return broken(format!("the program ended with {end}\n{}", output.join("\n")), expected);
                }
                () = tokio::time::sleep_until(until.into()) => {
                    return broken(format!("not within {} s", time.as_secs_f32()), expected);
                }
            }
        }
    }

    /// Show that something does not happen for a time.
    pub(crate) async fn quiet(&mut self, time: Duration) -> Outcome {
        match self.wait(time, "the program goes on", |_| None::<()>).await {
            Err(broken) if broken.seen.starts_with("the program ended") => Err(broken),
            _ => Ok(()),
        }
    }

    pub(crate) fn fault(&self, fault: Fault) {
        self.world.change(|state| state.faults.push(fault));
    }

    /// Offer a job. Returns its index.
    pub(crate) fn job(&self, kind: &str, payload: impl Into<Json>) -> usize {
        self.world.change(|state| state.add(&format!("conformance.{kind}"), payload.into()))
    }

    /// Wait until a job has reached the program. Returns its token.
    pub(crate) async fn delivered(&mut self, job: usize) -> Result<String, Broken> {
        let expected = format!("the {} is fetched", self.kind(job));
        self.wait(PATIENCE, expected, |state| state.delivered(job).map(|(token, _)| token.clone())).await
    }

    /// Wait until a job executes for sure: a later request for jobs lists it. The program must have a free slot.
    pub(crate) async fn started(&mut self, job: usize) -> Result<String, Broken> {
        let token = self.delivered(job).await?;
        let listed = |state: &State| state.attempts.get(&token).filter(|attempt| attempt.listed).map(|_| ());
        self.wait(PATIENCE, "the next request for jobs lists the attempt", listed).await?;
        Ok(token)
    }

    /// Wait until the verdict of a job is answered. Returns it.
    pub(crate) async fn settled(&mut self, job: usize) -> Result<Json, Broken> {
        self.settled_within(job, PATIENCE + Duration::from_secs(5)).await
    }

    pub(crate) async fn settled_within(&mut self, job: usize, time: Duration) -> Result<Json, Broken> {
        let expected = format!("a verdict of the {}, repeated until it is answered", self.kind(job));
        self.wait(time, expected, |state| {
            let answered = state.attempts_of(job).into_iter().any(|(_, a)| !a.over && a.answered_at.is_some());
            state.verdict(job).filter(|_| answered).cloned()
        })
        .await
    }

    pub(crate) fn kind(&self, job: usize) -> String {
        self.world.read(|state| state.jobs[job].kind.clone())
    }

    /// Offer a job and wait for its verdict.
    pub(crate) async fn run(&mut self, kind: &str, payload: impl Into<Json>) -> Result<Json, Broken> {
        let job = self.job(kind, payload);
        self.settled(job).await
    }

    /// Tell the program to stop.
    pub(crate) async fn stop(&mut self) {
        self.world.change(|state| state.stopped_at = Some(Instant::now()));
        self.program.signal("TERM").await;
    }

    /// Wait for the end of the program.
    pub(crate) async fn ended_within(&mut self, time: Duration) -> Result<String, Broken> {
        match tokio::time::timeout(time, self.program.ended()).await {
            Ok(end) => Ok(end),
            Err(_) => broken(
                format!("the program runs {} s after SIGTERM", time.as_secs_f32()),
                "the program ends".to_owned(),
            ),
        }
    }
}

/// Check a verdict: its word, and the fields that come with it.
pub(crate) fn expect_verdict(verdict: &Json, word: &str) -> Outcome {
    if verdict.get("verdict").and_then(Json::as_text) == Some(word) {
        return Ok(());
    }
    broken(verdict.brief(), format!("the verdict {word}"))
}

/// Check that an attempt succeeded with exactly this result.
pub(crate) fn expect_result(verdict: &Json, result: &Json) -> Outcome {
    expect_verdict(verdict, "succeeded")?;
    let seen = verdict.get("result").unwrap_or(&Json::Null);
    if seen.same(result) { Ok(()) } else { broken(format!("the result {}", seen.brief()), result.brief()) }
}
