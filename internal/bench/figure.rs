//! Samples, their statistics, and the targets they are compared with.

use serde::Serialize;

/// One measured quantity, with one sample per repetition.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figure {
    /// The median. For an even number of samples it is the mean of the two in the middle.
    pub median: f64,
    /// Smallest sample.
    pub min: f64,
    /// Largest sample.
    pub max: f64,
    /// All samples, in the order of measurement.
    pub samples: Vec<f64>,
}

impl Figure {
    /// Compute the figure of these samples. Without samples all values are zero.
    #[must_use]
    pub fn from_samples(samples: Vec<f64>) -> Self {
        let mut sorted = samples.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = match (sorted.len(), sorted.get(middle)) {
            (0, _) | (_, None) => 0.0,
            (count, Some(upper)) if count % 2 == 1 => *upper,
            (_, Some(upper)) => f64::midpoint(sorted[middle - 1], *upper),
        };
        let (min, max) = (sorted.first().copied().unwrap_or(0.0), sorted.last().copied().unwrap_or(0.0));
        Self { median, min, max, samples }
    }
}

/// The value that `percent` of `sorted` do not exceed, by nearest rank. Zero without samples.
#[must_use]
pub fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1).min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

/// The quantity that an aim applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetOf {
    /// The median.
    Median,
    /// The ratio to the bare figure.
    Ratio,
}

/// The side of its bound on which a good value lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetSide {
    /// At least the bound.
    AtLeast,
    /// At most the bound.
    AtMost,
}

/// A target. A missed target is shown, but it does not fail the bench, because speed depends on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Target {
    /// The quantity.
    pub of: TargetOf,
    /// The good side of the bound.
    pub side: TargetSide,
    /// The bound.
    pub bound: f64,
}

impl Target {
    /// A median of at least this value.
    #[must_use]
    pub const fn at_least(bound: f64) -> Self {
        Self { of: TargetOf::Median, side: TargetSide::AtLeast, bound }
    }

    /// A median of at most this value.
    #[must_use]
    pub const fn at_most(bound: f64) -> Self {
        Self { of: TargetOf::Median, side: TargetSide::AtMost, bound }
    }

    /// A ratio to the bare figure of at least this value.
    #[must_use]
    pub const fn relative_to_bare(bound: f64) -> Self {
        Self { of: TargetOf::Ratio, side: TargetSide::AtLeast, bound }
    }

    /// A ratio to the bare figure of at most this value.
    #[must_use]
    pub const fn at_most_of_bare(bound: f64) -> Self {
        Self { of: TargetOf::Ratio, side: TargetSide::AtMost, bound }
    }

    /// True when the aim is met. `None` for an aim on the ratio when there is no ratio.
    #[must_use]
    pub fn is_met(&self, median: f64, ratio: Option<f64>) -> Option<bool> {
        let value = match self.of {
            TargetOf::Median => median,
            TargetOf::Ratio => ratio?,
        };
        Some(match self.side {
            TargetSide::AtLeast => value >= self.bound,
            TargetSide::AtMost => value <= self.bound,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_the_middle_of_its_samples_with_their_range() {
        let figure = Figure::from_samples(vec![3.0, 1.0, 2.0]);
        assert_eq!((figure.median, figure.min, figure.max), (2.0, 1.0, 3.0));
        assert_eq!(figure.samples, [3.0, 1.0, 2.0], "in the order in which they were taken");
        assert_eq!(Figure::from_samples(vec![4.0, 1.0, 3.0, 2.0]).median, 2.5);
        assert_eq!(Figure::from_samples(vec![7.0]).median, 7.0);
        assert_eq!(Figure::from_samples(Vec::new()), Figure::default());
    }

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(percentile(&hundred, 50.0), 50.0);
        assert_eq!(percentile(&hundred, 99.0), 99.0);
        assert_eq!(percentile(&hundred, 100.0), 100.0);
        assert_eq!(percentile(&hundred[..10], 99.0), 10.0);
        assert_eq!(percentile(&[5.0], 50.0), 5.0);
        assert_eq!(percentile(&[], 50.0), 0.0);
    }

    #[test]
    fn aims_look_at_their_own_quantity_and_side() {
        assert_eq!(Target::at_least(10.0).is_met(10.0, None), Some(true));
        assert_eq!(Target::at_most(1.5).is_met(1.6, None), Some(false));
        assert_eq!(Target::relative_to_bare(0.6).is_met(0.0, Some(0.7)), Some(true));
        assert_eq!(Target::relative_to_bare(0.6).is_met(1e9, None), None);
        assert_eq!(Target::at_most_of_bare(2.0).is_met(0.0, Some(2.1)), Some(false));
    }
}
