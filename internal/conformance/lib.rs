//! The conformance kit: it tests a client of remote workers against docs/WORKERS.md.
//!
//! [`run`] starts a server on two addresses of the loopback that speaks the protocol from memory, without MySQL and
//! Redis, and the client's program. It then loses answers, keeps one on its way, says 503, hands tokens out twice,
//! cancels and drains, and compares every call of the program with the specification. Each scenario has a server and a
//! program of its own, so several run at the same time.
//!
//! What holds for every request (the token in the header, the fields of the bodies, `holding`, the slots) is checked in
//! every scenario, and counts for the scenario of that name.
//!
//! - `json.rs`: JSON that keeps the digits of numbers
//! - `http.rs`: HTTP/1.1 by hand, which can cut an answer in two
//! - `call.rs`: the calls, the record of them, and planned faults
//! - `bodies.rs`: the fields of the bodies and their bounds
//! - `world.rs`: the state of the server
//! - `protocol.rs`: the calls of the protocol, and the rules for all of them
//! - `server.rs`: addresses and connections
//! - `program.rs`: the process of the client
//! - `stage.rs`: waits with deadlines, and comparisons
//! - `scenarios/`: the scenarios
//! - `report.rs`: the result

mod bodies;
mod call;
mod http;
mod json;
mod program;
mod protocol;
mod report;
mod scenarios;
mod server;
mod stage;
mod world;

pub use report::{BrokenSentence, Report, ScenarioReport};

use std::sync::Arc;
use std::time::{Duration, Instant};

use scenarios::{ALL, Scenario};
use stage::{Broken, Stage};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use world::{Breach, State};

/// Longest duration of one scenario, above all its own deadlines.
const LIMIT: Duration = Duration::from_secs(90);

/// Settings of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The program of the client with its arguments.
    pub command: Vec<String>,
    /// Scenarios to run; all if empty.
    pub only: Vec<String>,
    /// Scenarios to leave out.
    pub skip: Vec<String>,
    /// Number of scenarios that run at the same time.
    pub parallel: usize,
}

/// Return the names of all scenarios with their sentences.
pub fn scenarios() -> impl Iterator<Item = (&'static str, &'static str)> {
    ALL.iter().map(|scenario| (scenario.name, scenario.sentence))
}

/// Run the scenarios. `progress` is called with the number of those that have ended, and with the number of all.
pub async fn run(settings: &Settings, mut progress: impl FnMut(usize, usize)) -> Report {
    let began = Instant::now();
    let named = |names: &[String], scenario: &Scenario| names.iter().any(|name| name == scenario.name);
    let wanted = |scenario: &Scenario| {
        (settings.only.is_empty() || named(&settings.only, scenario)) && !named(&settings.skip, scenario)
    };
    let permits = Arc::new(Semaphore::new(settings.parallel.max(1)));
    let mut running = JoinSet::new();
    for (at, scenario) in ALL.iter().enumerate().filter(|(_, scenario)| wanted(scenario)) {
        let (permits, command, scenario) = (permits.clone(), settings.command.clone(), *scenario);
        running.spawn(async move {
            let _permit = permits.acquire_owned().await;
            (at, run_one(&command, scenario).await)
        });
    }
    let all = running.len();
    let mut ran: Vec<Option<Ran>> = ALL.iter().map(|_| None).collect();
    while let Some(ended) = running.join_next().await {
        progress(all - running.len(), all);
        if let Ok((at, one)) = ended {
            ran[at] = Some(one);
        }
    }
    let report = |(scenario, ran): (&Scenario, &Option<Ran>)| match ran {
        Some(ran) => report_of(*scenario, ran),
        None if wanted(scenario) => report_of(*scenario, &panicked()),
        None => skipped(*scenario),
    };
    let mut reports: Vec<ScenarioReport> = ALL.iter().zip(&ran).map(report).collect();
    // A sentence about every request may have been broken in any scenario.
    for (at, one) in ran.iter().enumerate() {
        let Some(one) = one else { continue };
        for breach in one.breaches.iter().filter(|breach| breach.rule != ALL[at].name) {
            let broken =
                BrokenSentence { during: ALL[at].name, seen: breach.seen.clone(), expected: breach.expected.clone() };
            let rule = ALL.iter().position(|scenario| scenario.name == breach.rule);
            let rule = rule.filter(|rule| !named(&settings.skip, &ALL[*rule]));
            let of_rule = rule.and_then(|rule| reports.get_mut(rule));
            if let Some(report) = of_rule {
                report.ok = false;
                report.skipped = false;
                if report.broken.len() < 5 {
                    report.broken.push(broken);
                }
            }
        }
    }
    let ran = |report: &&ScenarioReport| !report.skipped;
    let failed = reports.iter().filter(ran).filter(|report| !report.ok).count();
    let passed = reports.iter().filter(ran).count() - failed;
    Report {
        ok: failed == 0,
        passed,
        failed,
        skipped: reports.len() - passed - failed,
        seconds: began.elapsed().as_secs_f64(),
        scenarios: reports,
    }
}

/// The end of one scenario.
struct Ran {
    outcome: Result<(), Broken>,
    breaches: Vec<Breach>,
    traffic: Vec<String>,
    output: String,
    seconds: f64,
}

/// The end of a scenario that the kit itself could not finish.
fn panicked() -> Ran {
    let broken = Broken { seen: "the kit panicked".to_owned(), expected: "no fault of the kit".to_owned() };
    Ran { outcome: Err(broken), breaches: Vec::new(), traffic: Vec::new(), output: String::new(), seconds: 0.0 }
}

async fn run_one(command: &[String], scenario: Scenario) -> Ran {
    let began = Instant::now();
    let mut stage = match Stage::start(command, (scenario.setup)()).await {
        Ok(stage) => stage,
        Err(error) => {
            let broken =
                Broken { seen: error.to_string(), expected: format!("the program {} starts", command.join(" ")) };
            return Ran {
                outcome: Err(broken),
                breaches: Vec::new(),
                traffic: Vec::new(),
                output: String::new(),
                seconds: 0.0,
            };
        }
    };
    let play = async {
        stage.ready().await?;
        (scenario.run)(&mut stage).await
    };
    let outcome = tokio::time::timeout(LIMIT, play).await.unwrap_or_else(|_| {
        let seen = format!("the scenario has not ended after {} s", LIMIT.as_secs());
        Err(Broken { seen, expected: "an end".to_owned() })
    });
    let (breaches, traffic) = stage.world.read(|state| (state.breaches.clone(), traffic(state)));
    let output = stage.program.output();
    Ran { outcome, breaches, traffic, output, seconds: began.elapsed().as_secs_f64() }
}

/// Write the calls of the program, one line each.
fn traffic(state: &State) -> Vec<String> {
    let Some(first) = state.exchanges.first().map(|exchange| exchange.at) else { return Vec::new() };
    let line = |exchange: &call::Exchange| {
        let at = exchange.at.duration_since(first).as_secs_f64();
        let took = exchange.answered_at.map(|answered| answered.duration_since(exchange.at).as_millis());
        let took = took.map_or_else(String::new, |took| format!(" after {took} ms"));
        let answer = if exchange.answer.is_empty() { "no answer yet" } else { &exchange.answer };
        format!("{at:8.3} [{}] {} -> {answer}{took}", exchange.server, exchange.request)
    };
    state.exchanges.iter().map(line).collect()
}

fn report_of(scenario: Scenario, ran: &Ran) -> ScenarioReport {
    let Scenario { name, sentence, .. } = scenario;
    let outcome = ran.outcome.as_ref().err();
    let broken = outcome.map(|Broken { seen, expected }| (seen, expected)).into_iter();
    let own = ran.breaches.iter().filter(|breach| breach.rule == name);
    let broken = broken.chain(own.map(|breach| (&breach.seen, &breach.expected)));
    let broken: Vec<BrokenSentence> = broken
        .map(|(seen, expected)| BrokenSentence { during: name, seen: seen.clone(), expected: expected.clone() })
        .collect();
    let failed = !broken.is_empty();
    ScenarioReport {
        name,
        ok: !failed,
        skipped: false,
        seconds: ran.seconds,
        sentence,
        broken,
        traffic: if failed { ran.traffic.clone() } else { Vec::new() },
        output: if failed { ran.output.clone() } else { String::new() },
    }
}

/// The report of a scenario that does not run.
fn skipped(scenario: Scenario) -> ScenarioReport {
    let Scenario { name, sentence, .. } = scenario;
    ScenarioReport {
        name,
        ok: true,
        skipped: true,
        seconds: 0.0,
        sentence,
        broken: Vec::new(),
        traffic: Vec::new(),
        output: String::new(),
    }
}
