//! Filters of convolutions that one scale for each output does not suit.
//!
//! Codes of 8 bits lose the small weights of an output that has a large one. Two shares of squares say how much that is:
//! that of the output that loses most, and that of the results if each channel of the input had the same part in them, since a
//! channel with small weights may well have large values. Matrices get scales for blocks of inputs instead (`scheme`); filters
//! have no blocks.

use super::candidates::Candidate;
use super::choice::Choice;
use super::error::{decoded, sampled_outputs, share};
use super::scheme::sample;
use crate::error::PassError;
use crate::ir::Graph;
use crate::options::Precision;
use rayon::prelude::*;
use std::collections::BTreeMap;

/// The root of the largest share that may be lost.
const MOST_LOST: f64 = 0.02;

/// Outputs and channels whose squares are less than this share of the median are dead: training has left nothing of them.
const LEAST_SQUARES: f64 = 1e-8;

/// Of filters with more elements than this, outputs are sampled.
const MOST_READ_ELEMENTS: u64 = 1 << 22;

/// Another choice for the filters among these, of which codes of 8 bits lose too much: f16 where that suits, else they stay.
pub(super) fn spare<'a>(
    graph: &Graph,
    candidates: impl ParallelIterator<Item = (&'a Candidate, &'a mut Choice)>,
) -> Result<(), PassError> {
    candidates.try_for_each(|(candidate, choice)| {
        let Choice::Round(Precision::Codes { bits: 8, block: 0 }, why) = &*choice else { return Ok(()) };
        if !candidate.is_convolution() {
            return Ok(());
        }
        let matrix = candidate.matrix;
        let outputs = match candidate.elements > MOST_READ_ELEMENTS {
            true => sampled_outputs(matrix),
            false => std::iter::once(0..matrix.groups * matrix.outputs).collect(),
        };
        let Some(values) = sample(graph, candidate, &outputs)? else { return Ok(()) };
        let filters = Filters {
            inputs: matrix.inputs as usize,
            channels: candidate.input_channels(),
            groups: outputs.into_iter().flatten().map(|output| (output / matrix.outputs) as usize).collect(),
        };
        let lost = |precision| -> Result<Option<f64>, PassError> {
            let decoded = decoded(graph, candidate, precision, &values, None)?;
            Ok(decoded.map(|decoded| filters.lost_share(&values, &decoded).sqrt()))
        };
        let Some(of_codes) = lost(Precision::Codes { bits: 8, block: 0 })?.filter(|lost| *lost > MOST_LOST) else {
            return Ok(());
        };
        let reason = format!("codes of 8 bits would lose {:.1} % of small weights beside large ones", 100.0 * of_codes);
        *choice = match lost(Precision::F16)? {
            Some(of_floats) if of_floats <= MOST_LOST => Choice::Round(Precision::F16, format!("{why}, but {reason}")),
            Some(_) | None => Choice::Keep(reason),
        };
        Ok(())
    })
}

/// Some filters.
struct Filters {
    /// Weights of an output.
    inputs: usize,
    /// Channels that these belong to, as many each.
    channels: usize,
    /// The group of each output, which has channels of its own.
    groups: Vec<usize>,
}

impl Filters {
    /// The larger one of the two shares that are lost with these decoded values; the filters lie one behind the other.
    fn lost_share(&self, values: &[f32], decoded: &[f32]) -> f64 {
        let taps = self.inputs / self.channels;
        let mut of_channels: BTreeMap<(usize, usize), Squares> = BTreeMap::new();
        let mut of_outputs = Vec::new();
        let filters = values.chunks_exact(self.inputs).zip(decoded.chunks_exact(self.inputs));
        for ((values, decoded), group) in filters.zip(&self.groups) {
            let mut of_output = Squares::default();
            for (channel, (values, decoded)) in values.chunks(taps).zip(decoded.chunks(taps)).enumerate() {
                let mut of_channel = Squares::default();
                values.iter().zip(decoded).for_each(|(value, decoded)| of_channel.add(*value, *decoded));
                of_channels.entry((*group, channel)).or_default().join(of_channel);
                of_output.join(of_channel);
            }
            of_outputs.push(of_output);
        }
        let of_outputs = lost_shares(&of_outputs).into_iter().fold(0.0, f64::max);
        let of_channels = lost_shares(&of_channels.into_values().collect::<Vec<_>>());
        let mean = of_channels.iter().sum::<f64>() / of_channels.len().max(1) as f64;
        of_outputs.max(mean)
    }
}

/// What each loses of its squares, without those that have next to none. Codes that are all zero lose all, and nothing loses more.
fn lost_shares(all: &[Squares]) -> Vec<f64> {
    let mut sizes: Vec<f64> = all.iter().map(|squares| squares.all).collect();
    sizes.sort_by(f64::total_cmp);
    let median = sizes.get(sizes.len() / 2).copied().unwrap_or(0.0);
    let live = all.iter().filter(|squares| squares.all > LEAST_SQUARES * median);
    live.map(|squares| share(squares.wrong, squares.all).min(1.0)).collect()
}

/// Sums of squares.
#[derive(Clone, Copy, Default)]
struct Squares {
    wrong: f64,
    all: f64,
}

impl Squares {
    fn add(&mut self, value: f32, decoded: f32) {
        self.wrong += f64::from(decoded - value).powi(2);
        self.all += f64::from(value).powi(2);
    }

    fn join(&mut self, other: Squares) {
        (self.wrong, self.all) = (self.wrong + other.wrong, self.all + other.all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_count_by_the_worst_and_channels_by_their_mean() {
        let filters = |groups: &[usize]| Filters { inputs: 4, channels: 2, groups: groups.to_vec() };
        let values = [3.0, 4.0, 0.0, 1.0, 3.0, 4.0, 0.0, 1.0];
        assert_eq!(filters(&[0, 0]).lost_share(&values, &values), 0.0);
        // 25 of 26 of an output; 25 of 50 and nothing of its channels.
        let output = [0.0, 0.0, 0.0, 1.0, 3.0, 4.0, 0.0, 1.0];
        assert_eq!(filters(&[0, 0]).lost_share(&values, &output), 25.0 / 26.0);
        // 1 of 26 of each output; one of two channels.
        let channel = [3.0, 4.0, 0.0, 0.0, 3.0, 4.0, 0.0, 0.0];
        assert_eq!(filters(&[0, 0]).lost_share(&values, &channel), 0.5);
        // The channels of another group are others: one of four.
        let group = [3.0, 4.0, 0.0, 0.0, 3.0, 4.0, 0.0, 1.0];
        assert_eq!(filters(&[0, 1]).lost_share(&values, &group), 0.25);
        // Nothing is lost more than once, and a channel of next to nothing does not count.
        assert_eq!(filters(&[0]).lost_share(&[3.0, 4.0, 1.0, 0.0], &[30.0, 4.0, 1.0, 0.0]), 1.0);
        let [tiny, none] = [[3.0, 4.0, 1e-5, 0.0], [3.0, 4.0, 0.0, 0.0]];
        let three = Filters { inputs: 6, channels: 3, groups: vec![0] };
        let with = |last: [f32; 4]| [1.0, 1.0, last[0], last[1], last[2], last[3]];
        assert!(three.lost_share(&with(tiny), &with(none)) < 1e-11);
    }
}
