//! The progress bar: one step for each run, and the number of ended jobs within it. It is drawn only when standard
//! error is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{BenchSettings, Repetition, Scenario, runners};

pub(super) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    pub(super) fn new(settings: &BenchSettings) -> Self {
        let (repeat, rounds) = (settings.repeat, settings.repeat + usize::from(!settings.short));
        let steps = settings.scenarios.iter().map(|scenario| match scenario {
            Scenario::Enqueue | Scenario::Batch | Scenario::Drain | Scenario::Flow => 2 * rounds,
            Scenario::Batches | Scenario::Graphs => 3 * rounds,
            Scenario::Keys => 3 * rounds + 4 * repeat,
            Scenario::Limits => 11 * rounds,
            Scenario::Outbox => rounds + repeat,
            Scenario::Rebuild => rounds,
            Scenario::Lateness => 6 * repeat,
            Scenario::Delayed => 2 * repeat,
            Scenario::Callback => 2 * rounds,
            Scenario::Workers => 4 * repeat,
            Scenario::Runners => runners::sizes(settings.short).len() * (rounds + 2 * repeat),
            Scenario::Idle => repeat,
            Scenario::Growth => 1 + 3 * repeat,
        });
        let bar = ProgressBar::with_draw_target(Some(steps.sum::<usize>() as u64), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {elapsed_precise} {prefix}: {msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(500));
        Self { bar }
    }

    pub(super) fn begin(&self, scenario: Scenario) {
        self.bar.set_prefix(scenario.as_str());
    }

    /// Advance to the next run.
    pub(super) fn step(&self, what: &str, round: Repetition) {
        self.bar.inc(1);
        let number = if round.counts() { format!("run {}", round.number) } else { "warm-up".to_owned() };
        self.bar.set_message(format!("{what}, {number}"));
    }

    /// Show the number of jobs of a run that are done.
    pub(super) fn update(&self, done: u64, of: u64) {
        if !self.bar.is_hidden() {
            let message = self.bar.message();
            let text = message.split(" (").next().unwrap_or_default();
            self.bar.set_message(format!("{text} ({done} of {of})"));
        }
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
