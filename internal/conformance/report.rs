//! The result of a run.

use serde::Serialize;

/// The result of all scenarios.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// True when no scenario failed.
    pub ok: bool,
    /// Number of scenarios that passed, failed and were skipped.
    pub passed: usize,
    /// See [`passed`](Self::passed).
    pub failed: usize,
    /// See [`passed`](Self::passed).
    pub skipped: usize,
    /// Duration of the run in seconds.
    pub seconds: f64,
    /// The scenarios, in their order.
    pub scenarios: Vec<ScenarioReport>,
}

/// The result of one scenario.
#[derive(Clone, Debug, Serialize)]
pub struct ScenarioReport {
    /// Name of the scenario.
    pub name: &'static str,
    /// True when the program kept the sentence.
    pub ok: bool,
    /// True when the caller left the scenario out.
    pub skipped: bool,
    /// Duration in seconds.
    pub seconds: f64,
    /// The sentence of docs/WORKERS.md.
    pub sentence: &'static str,
    /// How the program broke it. Empty when it did not.
    pub broken: Vec<BrokenSentence>,
    /// The calls of the program and its output, when the scenario failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub traffic: Vec<String>,
    /// Newest output of the program, when the scenario failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub output: String,
}

/// One way in which the program broke a sentence.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BrokenSentence {
    /// The scenario in which it was seen. A sentence about every request is checked in every scenario.
    pub during: &'static str,
    /// What the kit saw.
    pub seen: String,
    /// What the specification says instead.
    pub expected: String,
}
