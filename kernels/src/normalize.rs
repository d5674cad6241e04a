//! Standardization of lines of f32: batch, group and instance normalization.
//!
//! Moments are taken in two passes, each a sum of 64 lanes (element modulo 64) joined in halves, whatever the number of
//! threads. In blocks, channels that are equal modulo 8 are summed together, then these sums in order.

use super::convolution::CHANNEL_BLOCK as BLOCK;
use super::reduce::{column_sums, lane_sum};
use super::simd::{Instructions, Routine, Simd};
use super::threads;

/// What becomes of the elements of a line: `(x - mean) * factor + bias`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// Subtracted.
    pub mean: f32,
    /// Multiplied with.
    pub factor: f32,
    /// Added.
    pub bias: f32,
}

struct Affine<'a> {
    values: &'a mut [f32],
    line: Line,
}

impl Routine for Affine<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let Line { mean, factor, bias } = self.line;
        self.values.iter_mut().for_each(|value| *value = (*value - mean) * factor + bias);
    }
}

struct Moments<'a> {
    values: &'a [f32],
}

impl Routine for Moments<'_> {
    type Output = (f32, f32);

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) -> (f32, f32) {
        let count = self.values.len() as f32;
        let mean = lane_sum(self.values, |value| value) / count;
        let variance = lane_sum(self.values, |value| (value - mean) * (value - mean)) / count;
        (mean, variance)
    }
}

/// Mean and variance of all values.
#[must_use]
pub fn moments(instructions: Instructions, values: &[f32]) -> (f32, f32) {
    instructions.run(Moments { values })
}

/// Groups of a set of whole blocks `[blocks, positions, 8]`: all its channels, or each `channels` of a block.
struct BlockedGroups<'a, L> {
    values: &'a mut [f32],
    positions: usize,
    channels: usize,
    line: L,
}

impl<L: Fn(usize, f32, f32) -> Line> Routine for BlockedGroups<'_, L> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let Self { values, positions, channels, line } = self;
        let own = channels.min(BLOCK);
        let count = (channels * positions) as f32;
        // Lanes of a group have the same mean.
        let joined = |sums: [f32; BLOCK]| -> [f32; BLOCK] {
            std::array::from_fn(|lane| sums[lane / own * own..][..own].iter().sum::<f32>() / count)
        };
        let means = joined(column_sums(values, |_, value| value));
        let variances = joined(column_sums(values, |lane, value| (value - means[lane]) * (value - means[lane])));
        for (block, values) in values.chunks_exact_mut(positions * BLOCK).enumerate() {
            let lines: [Line; BLOCK] =
                std::array::from_fn(|lane| line(block * BLOCK + lane, means[lane], variances[lane]));
            let (mean, factor) = (lines.map(|line| line.mean), lines.map(|line| line.factor));
            let bias = lines.map(|line| line.bias);
            for values in values.as_chunks_mut::<BLOCK>().0 {
                for lane in 0..BLOCK {
                    values[lane] = (values[lane] - mean[lane]) * factor[lane] + bias[lane];
                }
            }
        }
    }
}

/// Standardizes groups of channels of `[blocks, positions, 8]`, in place; `line(channel, mean, variance)` says what becomes of each
/// channel, counted through all blocks.
///
/// # Panics
/// If the values are no whole blocks, groups of so many channels are no whole blocks and blocks no whole groups, or either has nothing.
pub fn standardize_blocks(
    instructions: Instructions,
    values: &mut [f32],
    positions: usize,
    channels: usize,
    line: impl Fn(usize, f32, f32) -> Line + Sync,
) {
    if values.is_empty() {
        return;
    }
    assert!(
        channels.is_multiple_of(BLOCK) || BLOCK.is_multiple_of(channels),
        "groups and blocks of {channels} channels"
    );
    let set_channels = channels.max(BLOCK);
    let set = set_channels * positions;
    let sets = values.len() / set;
    assert_eq!(values.len(), sets * set, "values of whole groups and blocks");
    let each = sets.div_ceil(threads::parts(values.len(), sets)).max(1);
    threads::chunks(values, each * set, |index, chunk| {
        for (at, values) in chunk.chunks_exact_mut(set).enumerate() {
            let first = (index * each + at) * set_channels;
            let line = |channel: usize, mean: f32, variance: f32| line(first + channel, mean, variance);
            instructions.run(BlockedGroups { values, positions, channels, line });
        }
    });
}

/// Applies to each of the lines of `length` elements, in place, what `line` says for its index.
///
/// # Panics
/// If the values are no whole lines.
pub fn affine_lines(
    instructions: Instructions,
    values: &mut [f32],
    length: usize,
    line: impl Fn(usize) -> Line + Sync,
) {
    if values.is_empty() {
        return;
    }
    let lines = values.len() / length;
    assert_eq!(values.len(), lines * length, "values of whole lines");
    let each = lines.div_ceil(threads::parts(values.len(), lines)).max(1);
    threads::chunks(values, each * length, |index, chunk| {
        for (at, values) in chunk.chunks_mut(length).enumerate() {
            instructions.run(Affine { values, line: line(index * each + at) });
        }
    });
}

/// Standardizes sets of `group` elements, in place; `line(set, line, mean, variance)` says what becomes of each line of
/// `length` elements in a set.
///
/// # Panics
/// If the values are no whole sets, or a set is no whole lines.
pub fn standardize_sets(
    instructions: Instructions,
    values: &mut [f32],
    group: usize,
    length: usize,
    line: impl Fn(usize, usize, f32, f32) -> Line + Sync,
) {
    if values.is_empty() {
        return;
    }
    let sets = values.len() / group;
    assert_eq!((values.len(), group % length), (sets * group, 0), "values of whole sets and lines");
    let each = sets.div_ceil(threads::parts(values.len(), sets)).max(1);
    threads::chunks(values, each * group, |index, chunk| {
        for (at, values) in chunk.chunks_mut(group).enumerate() {
            let (mean, variance) = moments(instructions, values);
            for (within, values) in values.chunks_mut(length).enumerate() {
                instructions.run(Affine { values, line: line(index * each + at, within, mean, variance) });
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{numbers, with_threads};

    #[test]
    fn moments_hold_far_from_zero() {
        let values: Vec<f32> = numbers(5, 1000).iter().map(|value| value + 1000.0).collect();
        let exact = values.iter().map(|&value| f64::from(value)).sum::<f64>() / 1000.0;
        let spread = values.iter().map(|&value| (f64::from(value) - exact).powi(2)).sum::<f64>() / 1000.0;
        for instructions in Instructions::available() {
            let (mean, variance) = moments(instructions, &values);
            assert!((f64::from(mean) - exact).abs() < 1e-3);
            assert!((f64::from(variance) - spread).abs() < 1e-4 * spread);
        }
    }

    #[test]
    fn lines_and_sets_by_hand() {
        let mut values = [1.0, 2.0, 3.0, 4.0];
        let line = |index: usize| Line { mean: 1.0, factor: (index + 1) as f32, bias: 0.5 };
        affine_lines(Instructions::best(), &mut values, 2, line);
        assert_eq!(values, [0.5, 1.5, 4.5, 6.5]);
        let mut values = [1.0, 3.0, 10.0, 30.0];
        standardize_sets(Instructions::best(), &mut values, 2, 1, |set, within, mean, variance| Line {
            mean,
            factor: 1.0 / variance.sqrt(),
            bias: (10 * set + within) as f32,
        });
        assert_eq!(values, [-1.0, 2.0, 9.0, 12.0]);
    }

    #[test]
    fn groups_of_blocks_agree_with_groups_of_planes() {
        let line = |channel: usize, mean: f32, variance: f32| Line {
            mean,
            factor: (channel % 24 + 1) as f32 / (variance + 1e-3).sqrt(),
            bias: channel as f32,
        };
        for (channels, positions, each) in [(48, 1, 8), (48, 35, 24), (24, 7, 4), (24, 100, 1), (16, 9, 2), (8, 300, 8)]
        {
            let planes = numbers(3, channels * positions);
            let at = |index: usize| (index / 8 / positions * 8 + index % 8) * positions + index / 8 % positions;
            let mut expected = planes.clone();
            standardize_sets(
                Instructions::best(),
                &mut expected,
                each * positions,
                positions,
                |set, within, mean, variance| line(set * each + within, mean, variance),
            );
            for instructions in Instructions::available() {
                let mut values: Vec<f32> = (0..planes.len()).map(|index| planes[at(index)]).collect();
                standardize_blocks(instructions, &mut values, positions, each, line);
                for (index, value) in values.iter().enumerate() {
                    let wanted = expected[at(index)];
                    assert!(
                        (value - wanted).abs() < 1e-4 * wanted.abs().max(1.0),
                        "{channels} {each}: {value} {wanted}"
                    );
                }
            }
        }
    }

    #[test]
    fn threads_do_not_change_bits_of_blocks() {
        let run = |threads| {
            with_threads(threads, || {
                let mut values = numbers(2, 64 * 2000);
                let line = |_: usize, mean: f32, variance: f32| Line { mean, factor: 1.0 / variance, bias: 0.0 };
                standardize_blocks(Instructions::best(), &mut values, 2000, 4, line);
                values
            })
        };
        assert_eq!(run(1), run(3));
    }

    #[test]
    fn threads_do_not_change_bits() {
        let run = |threads| {
            with_threads(threads, || {
                let mut values = numbers(2, 120 * 1000);
                standardize_sets(Instructions::best(), &mut values, 1000, 100, |_, _, mean, variance| Line {
                    mean,
                    factor: 1.0 / variance,
                    bias: 0.0,
                });
                values
            })
        };
        assert_eq!(run(1), run(3));
    }
}
