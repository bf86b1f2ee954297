//! One row of the result: a figure, the figure of the bare store, and the results of the checks.

use serde::Serialize;

use super::Scenario;
use super::environment::RunChecks;
use super::figure::{Figure, Target};

/// A figure with everything that belongs to it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ResultRow {
    /// The scenario of the figure.
    pub scenario: Scenario,
    /// Name of the measured quantity.
    pub name: String,
    /// Unit of the quantity.
    pub unit: &'static str,
    /// Figure of the product.
    pub figure: Figure,
    /// Figure of the bare store, where it can do the same work.
    pub bare: Option<Figure>,
    /// Median of the product divided by that of the bare store.
    pub ratio: Option<f64>,
    /// The targets.
    pub aims: Vec<TargetResult>,
    /// Number of jobs in all measured runs of the product.
    pub jobs: u64,
    /// True when every job completed exactly once. For jobs that were not to run: true when every job waits exactly
    /// once.
    pub exactly_once: bool,
    /// Deadlocks that the server counted meanwhile, bare runs included. Absent when the account may not read the
    /// counter, or other programs use the server.
    pub deadlocks: Option<u64>,
}

/// A target, and the result.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TargetResult {
    /// The target.
    #[serde(flatten)]
    pub aim: Target,
    /// True when the target was met. Absent when that is unknown.
    pub met: Option<bool>,
}

/// Samples of a row during the measurement.
#[derive(Debug, Default)]
pub(super) struct Samples {
    figure: Vec<f64>,
    bare: Vec<f64>,
    jobs: u64,
    checked: RunChecks,
}

impl Samples {
    /// Add a sample of the product.
    pub(super) fn product(&mut self, sample: f64, jobs: u64, checked: RunChecks) {
        self.figure.push(sample);
        self.jobs += jobs;
        self.checked = self.checked.and(checked);
    }

    /// Add a sample of the bare store. Its check counts as well: a comparison that loses jobs is worth nothing.
    pub(super) fn bare(&mut self, sample: f64, checked: RunChecks) {
        self.bare.push(sample);
        self.checked = self.checked.and(checked);
    }

    pub(super) fn line(
        self,
        scenario: Scenario,
        name: impl Into<String>,
        unit: &'static str,
        aims: &[Target],
    ) -> ResultRow {
        let figure = Figure::from_samples(self.figure);
        let bare = (!self.bare.is_empty()).then(|| Figure::from_samples(self.bare));
        let ratio = bare.as_ref().filter(|bare| bare.median > 0.0).map(|bare| figure.median / bare.median);
        let met = |aim: &Target| TargetResult { aim: *aim, met: aim.is_met(figure.median, ratio) };
        let aims = aims.iter().map(met).collect();
        let (name, RunChecks { exactly_once, deadlocks }) = (name.into(), self.checked);
        ResultRow { scenario, name, unit, figure, bare, ratio, aims, jobs: self.jobs, exactly_once, deadlocks }
    }
}

/// Make a row of the deadlocks that the server counted in all runs of these rows. There is none if the count is
/// unknown.
pub(super) fn deadlocks(scenario: Scenario, rows: &[ResultRow]) -> Option<ResultRow> {
    let counted: u64 = rows.iter().map(|row| row.deadlocks).sum::<Option<u64>>()?;
    let mut samples = Samples::default();
    // Those rows have the checks of the runs.
    samples.product(counted as f64, rows.iter().map(|row| row.jobs).sum(), RunChecks::default());
    let name = format!("deadlocks that InnoDB counted in {}", scenario.as_str());
    Some(samples.line(scenario, name, "", &[Target::at_most(0.0)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_compares_medians_and_keeps_every_doubt() {
        let good = RunChecks { exactly_once: true, deadlocks: Some(0) };
        let mut samples = Samples::default();
        for (product, bare) in [(30.0, 50.0), (35.0, 70.0), (90.0, 60.0)] {
            samples.bare(bare, good);
            samples.product(product, 10, good);
        }
        let line =
            samples.line(Scenario::Drain, "drain", "jobs/s", &[Target::at_least(35.0), Target::relative_to_bare(0.6)]);
        assert_eq!((line.figure.median, line.jobs, line.exactly_once, line.deadlocks), (35.0, 30, true, Some(0)));
        assert_eq!(line.ratio, Some(35.0 / 60.0));
        assert_eq!(line.aims.iter().map(|aim| aim.met).collect::<Vec<_>>(), [Some(true), Some(false)]);

        let mut samples = Samples::default();
        samples.bare(1.0, RunChecks { exactly_once: false, deadlocks: Some(2) });
        samples.product(1.0, 1, good);
        let line = samples.line(Scenario::Drain, "drain", "jobs/s", &[]);
        assert_eq!((line.exactly_once, line.deadlocks), (false, Some(2)));
    }

    #[test]
    fn the_deadlocks_of_a_scenario_are_those_of_all_its_rows() {
        let row = |deadlocks| {
            let mut samples = Samples::default();
            samples.product(1.0, 5, RunChecks { exactly_once: true, deadlocks });
            samples.line(Scenario::Keys, "row", "", &[])
        };
        let counted = deadlocks(Scenario::Keys, &[row(Some(1)), row(Some(2))]).unwrap();
        assert_eq!((counted.figure.median, counted.jobs, counted.aims[0].met), (3.0, 10, Some(false)));
        assert_eq!(counted.deadlocks, Some(0), "each deadlock is reported once");
        assert_eq!(deadlocks(Scenario::Keys, &[row(Some(1)), row(None)]), None);
    }
}
