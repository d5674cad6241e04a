//! `--html`: a comparison as one page that needs nothing else.

use crate::cli::written::write_text;
use serde::Serialize;
use std::path::Path;

/// The page, with the data of the comparison in place of [`MARK`].
const PAGE: &str = include_str!("page.html");
const MARK: &str = "@DATA@";

/// Elements that are drawn of an output.
const DRAWN_ELEMENTS: usize = 1500;

/// What the page shows.
#[derive(Serialize)]
pub(super) struct Page<'a, Result: Serialize, Plots: Serialize> {
    /// What `--json` prints.
    pub(super) result: &'a Result,
    /// What is drawn beside it.
    #[serde(flatten)]
    pub(super) plots: Plots,
}

impl<Result: Serialize, Plots: Serialize> Page<'_, Result, Plots> {
    /// Write the page to a file.
    pub(super) fn write(&self, path: &Path) -> anyhow::Result<()> {
        // The data ends where the element ends: nothing in it may look like that.
        let data = serde_json::to_string(self)?.replace('<', "\\u003c");
        write_text(path, &PAGE.replace(MARK, &data))
    }
}

/// Some elements of an output beside those of the reference, spread over all data sets.
#[derive(Debug, Default, Clone, PartialEq, Serialize)]
pub(super) struct Sample {
    name: String,
    found: Vec<f64>,
    reference: Vec<f64>,
}

impl Sample {
    /// Nothing yet of the output of this name.
    pub(super) fn of(name: &str) -> Sample {
        Sample { name: name.to_string(), ..Sample::default() }
    }

    /// Take evenly spread elements that are finite on both sides, of one of so many data sets.
    pub(super) fn add(&mut self, found: &[f64], reference: &[f64], data_sets: usize) {
        let share = (DRAWN_ELEMENTS / data_sets.max(1)).max(1);
        let stride = found.len().div_ceil(share).max(1);
        let pairs = found.iter().zip(reference).step_by(stride);
        for (&found, &reference) in pairs.filter(|(found, reference)| found.is_finite() && reference.is_finite()) {
            if self.found.len() < DRAWN_ELEMENTS {
                self.found.push(found);
                self.reference.push(reference);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_spread_and_finite() {
        let reference: Vec<f64> = (0..10_000).map(f64::from).collect();
        let mut found = reference.clone();
        found[7] = f64::NAN;
        let mut sample = Sample::of("y");
        sample.add(&found, &reference, 2);
        assert_eq!((sample.found.len(), sample.found[1]), (715, 14.0));
        sample.add(&found, &reference, 2);
        sample.add(&found, &reference, 2);
        assert_eq!(sample.found.len(), DRAWN_ELEMENTS);
        let mut small = Sample::of("z");
        small.add(&[1.0, f64::INFINITY, 3.0], &[1.0, 2.0, 4.0], 1);
        assert_eq!((small.found, small.reference), (vec![1.0, 3.0], vec![1.0, 4.0]));
    }
}
