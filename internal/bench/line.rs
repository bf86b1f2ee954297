//! One line of the result: a figure, the bare one beside it, and what the checks said.

use serde::Serialize;

use super::Scenario;
use super::figure::{Aim, Figure};
use super::stage::Checked;

/// A figure with everything that belongs to it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// The scenario it belongs to.
    pub scenario: Scenario,
    /// What was measured.
    pub name: String,
    /// In what.
    pub unit: &'static str,
    /// The product's figure.
    pub figure: Figure,
    /// The bare store's, where it can do the like.
    pub bare: Option<Figure>,
    /// The product's median divided by the bare one.
    pub ratio: Option<f64>,
    /// What it should reach.
    pub aims: Vec<AimMet>,
    /// Jobs in all measured runs of the product.
    pub jobs: u64,
    /// Did every one of them complete exactly once? Of jobs that were not to run: does every one of them wait, once?
    pub exactly_once: bool,
    /// Deadlocks that the server counted meanwhile, bare runs included; absent when the account may not know.
    pub deadlocks: Option<u64>,
}

/// An aim, and whether it was reached.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct AimMet {
    /// The aim.
    #[serde(flatten)]
    pub aim: Aim,
    /// Absent when nothing is known.
    pub met: Option<bool>,
}

/// The samples of a line while it is measured.
#[derive(Debug, Default)]
pub(super) struct Samples {
    figure: Vec<f64>,
    bare: Vec<f64>,
    jobs: u64,
    checked: Checked,
}

impl Samples {
    /// A sample of the product.
    pub(super) fn product(&mut self, sample: f64, jobs: u64, checked: Checked) {
        self.figure.push(sample);
        self.jobs += jobs;
        self.checked = self.checked.and(checked);
    }

    /// A sample of the bare store. Its own check counts too: a yardstick that loses jobs measures nothing.
    pub(super) fn bare(&mut self, sample: f64, checked: Checked) {
        self.bare.push(sample);
        self.checked = self.checked.and(checked);
    }

    pub(super) fn line(self, scenario: Scenario, name: impl Into<String>, unit: &'static str, aims: &[Aim]) -> Line {
        let figure = Figure::of(self.figure);
        let bare = (!self.bare.is_empty()).then(|| Figure::of(self.bare));
        let ratio = bare.as_ref().filter(|bare| bare.median > 0.0).map(|bare| figure.median / bare.median);
        let met = |aim: &Aim| AimMet { aim: *aim, met: aim.is_met(figure.median, ratio) };
        let aims = aims.iter().map(met).collect();
        let (name, Checked { exactly_once, deadlocks }) = (name.into(), self.checked);
        Line { scenario, name, unit, figure, bare, ratio, aims, jobs: self.jobs, exactly_once, deadlocks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_compares_medians_and_keeps_every_doubt() {
        let good = Checked { exactly_once: true, deadlocks: Some(0) };
        let mut samples = Samples::default();
        for (product, bare) in [(30.0, 50.0), (35.0, 70.0), (90.0, 60.0)] {
            samples.bare(bare, good);
            samples.product(product, 10, good);
        }
        let line = samples.line(Scenario::Drain, "drain", "jobs/s", &[Aim::at_least(35.0), Aim::of_bare(0.6)]);
        assert_eq!((line.figure.median, line.jobs, line.exactly_once, line.deadlocks), (35.0, 30, true, Some(0)));
        assert_eq!(line.ratio, Some(35.0 / 60.0));
        assert_eq!(line.aims.iter().map(|aim| aim.met).collect::<Vec<_>>(), [Some(true), Some(false)]);

        let mut samples = Samples::default();
        samples.bare(1.0, Checked { exactly_once: false, deadlocks: Some(2) });
        samples.product(1.0, 1, good);
        let line = samples.line(Scenario::Drain, "drain", "jobs/s", &[]);
        assert_eq!((line.exactly_once, line.deadlocks), (false, Some(2)));
    }
}
