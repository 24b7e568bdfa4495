//! Percentiles, medians and bootstrap intervals.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// The number of bootstrap resamples.
const RESAMPLES: usize = 10_000;

/// Returns a percentile by the nearest rank; 0 without values.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a rank between 1 and the number of values"
)]
pub fn percentile(values: &[f64], percent: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted
        .get(rank.clamp(1, sorted.len().max(1)) - 1)
        .copied()
        .unwrap_or(0.0)
}

/// Returns the median; for an even number of values, the mean of the middle two.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.as_slice() {
        [] => 0.0,
        odd if odd.len() % 2 == 1 => odd[middle],
        even => f64::midpoint(even[middle - 1], even[middle]),
    }
}

/// A median with its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The median.
    pub median: f64,
    /// The lower end of the 95 % interval.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
    /// The number of values.
    pub values: usize,
}

impl Estimate {
    /// Renders the median, and the interval of several values.
    pub fn text(&self, digits: usize, unit: &str) -> String {
        let Self {
            median, low, high, ..
        } = self;
        let mut text = format!("**{median:.digits$}{unit}**");
        if self.values > 1 {
            let _ = write!(text, " ({low:.digits$}–{high:.digits$})");
        }
        text
    }
}

/// Returns the median with a 95 % interval by bootstrap. The same values give the same interval.
pub fn estimate(values: &[f64]) -> Option<Estimate> {
    if values.is_empty() {
        return None;
    }
    let mut dice = fastrand::Rng::with_seed(7);
    let medians: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let drawn: Vec<f64> = values
                .iter()
                .map(|_| values[dice.usize(..values.len())])
                .collect();
            median(&drawn)
        })
        .collect();
    Some(Estimate {
        median: median(values),
        low: percentile(&medians, 2.5),
        high: percentile(&medians, 97.5),
        values: values.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(percentile(&values, 50.0), 50.0);
        assert_eq!(percentile(&values, 99.0), 99.0);
        assert_eq!(percentile(&values, 100.0), 100.0);
        assert_eq!(percentile(&[3.0], 1.0), 3.0);
        assert_eq!(percentile(&[], 50.0), 0.0);
    }

    #[test]
    fn the_median_of_an_even_number_is_between_the_middle_two() {
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median(&[9.0, 1.0, 3.0]), 3.0);
    }

    #[test]
    fn an_interval_holds_the_median_and_is_no_wider_than_the_values() {
        let values = [1.0, 1.1, 1.2, 0.9, 1.05, 1.3, 0.95];
        let estimate = estimate(&values).unwrap();
        assert_eq!(estimate.median, 1.05);
        assert!(0.9 <= estimate.low && estimate.low < 1.05, "{estimate:?}");
        assert!(1.05 < estimate.high && estimate.high <= 1.3, "{estimate:?}");
        assert_eq!(estimate, super::estimate(&values).unwrap());
    }

    #[test]
    fn equal_values_leave_no_doubt_and_no_values_no_estimate() {
        let same = estimate(&[2.0; 5]).unwrap();
        assert_eq!((same.low, same.high), (2.0, 2.0));
        assert_eq!(estimate(&[]), None);
    }
}
