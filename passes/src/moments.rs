//! Second moments of what products read: what calibration measures, and what rounding weighs errors with.

mod spread;

use ipuc_formats::tensor::{Tensor, TensorError};
use ndarray::linalg::general_mat_mul;
use ndarray::{ArrayView2, ArrayViewMut2, Axis, Slice};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
pub use spread::{CodeRange, Spread};
use std::collections::BTreeMap;
use std::fmt;
use std::iter::Sum;
use std::ops::{AddAssign, Mul};

/// Channels up to which moments of pairs are kept; of more, only those of each channel with itself.
pub const MOST_PAIRED_CHANNELS: usize = 8192;

/// Channels whose sums are made together: a product of matrices.
const BAND_CHANNELS: usize = 128;

/// A hundredth of the mean moment is added to each channel's own, so that one that was always zero has one.
const DAMPING: f64 = 0.01;

/// What runs of a model on examples have shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Moments of values that products read, by the number of the value.
    pub moments: BTreeMap<u32, Moments>,
    /// How large the elements of these values are, and of those that convolutions in groups read.
    pub spreads: BTreeMap<u32, Spread>,
    /// The values that all products of matrices with a weight multiply it with, by the number of the constant: later passes give
    /// the products other values, and other entries with them, but not other weights.
    pub factors: BTreeMap<u32, Vec<u32>>,
    /// How far outputs follow an error of what a step with a weight computes, by the number of that value: the share of an
    /// output's squares that is wrong over the share of the value's, of the output where it is greatest.
    pub effects: BTreeMap<u32, f64>,
    /// The part of an error that is asked for which estimates may take, so that what is measured keeps to it.
    pub error_part: f64,
    /// The error of the outputs on the examples with that, where it was measured: the root mean square of the differences
    /// over that of the outputs, of the output where it is greatest.
    pub output_error: Option<f64>,
    /// With a threshold below which activations are zero: the error of the outputs on the examples with it and without it.
    pub threshold_errors: Option<[f64; 2]>,
}

impl Default for Calibration {
    /// Nothing was run.
    fn default() -> Self {
        Calibration {
            moments: BTreeMap::new(),
            spreads: BTreeMap::new(),
            factors: BTreeMap::new(),
            effects: BTreeMap::new(),
            error_part: 1.0,
            output_error: None,
            threshold_errors: None,
        }
    }
}

impl Calibration {
    /// Whether nothing was run.
    pub fn is_empty(&self) -> bool {
        self.moments.is_empty() && self.spreads.is_empty() && self.effects.is_empty()
    }

    /// The share of zeros in what products multiply a weight with, of the product where there are fewest; `None` where one of them
    /// was not run.
    pub fn zero_share(&self, weight: u32) -> Option<f64> {
        let share = |value: &u32| self.moments.get(value).filter(|moments| moments.rows() > 0).map(Moments::zero_share);
        let shares: Option<Vec<f64>> = self.factors.get(&weight)?.iter().map(share).collect();
        shares?.into_iter().reduce(f64::min)
    }
}

/// Sums of products of the channels of a value (its last axis), over all rows that were seen.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "StoredMoments")]
pub struct Moments {
    channels: usize,
    rows: u64,
    /// Elements that were zero.
    zeros: u64,
    /// The sum of each channel, `[channels]`.
    totals: Vec<f32>,
    /// `[channels][channels]`, of which the part with column >= row counts; `[channels]` where only these are kept.
    sums: Vec<f32>,
}

/// [`Moments`] as a file has them, whose sums may be more or fewer than its channels have.
#[derive(Deserialize)]
struct StoredMoments {
    channels: usize,
    rows: u64,
    zeros: u64,
    totals: Vec<f32>,
    sums: Vec<f32>,
}

impl TryFrom<StoredMoments> for Moments {
    type Error = String;

    fn try_from(stored: StoredMoments) -> Result<Moments, String> {
        let StoredMoments { channels, rows, zeros, totals, sums } = stored;
        if sum_count(channels) != Some(sums.len()) || totals.len() != channels {
            return Err(format!("{} and {} sums are none of {channels} channels", sums.len(), totals.len()));
        }
        Ok(Moments { channels, rows, zeros, totals, sums })
    }
}

/// How many sums are kept of so many channels.
fn sum_count(channels: usize) -> Option<usize> {
    if channels <= MOST_PAIRED_CHANNELS { channels.checked_mul(channels) } else { Some(channels) }
}

/// A hash of all that decides how weights are rounded.
pub fn hash_of(calibration: &Calibration) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for (number, moments) in &calibration.moments {
        hasher.update(&number.to_le_bytes());
        hasher.update(&moments.rows.to_le_bytes());
        hasher.update(&moments.zeros.to_le_bytes());
        moments.hash_sums(&mut hasher);
    }
    if !calibration.effects.is_empty() {
        hasher.update(&calibration.error_part.to_le_bytes());
    }
    for (number, spread) in &calibration.spreads {
        hasher.update(&number.to_le_bytes());
        spread.hash(&mut hasher);
    }
    for (weight, values) in &calibration.factors {
        hasher.update(&weight.to_le_bytes());
        values.iter().for_each(|number| {
            hasher.update(&number.to_le_bytes());
        });
    }
    for (number, effect) in &calibration.effects {
        hasher.update(&number.to_le_bytes());
        hasher.update(&effect.to_le_bytes());
    }
    hasher.finalize()
}

/// A hash stands for the sums, which are many: options that hold moments are named by their text.
impl fmt::Debug for Moments {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut hasher = blake3::Hasher::new();
        self.hash_sums(&mut hasher);
        let Moments { channels, rows, zeros, totals: _, sums: _ } = self;
        let sums = hasher.finalize();
        write!(formatter, "Moments {{ channels: {channels}, rows: {rows}, zeros: {zeros}, sums: {sums} }}")
    }
}

impl Moments {
    /// Nothing seen of a value with so many channels.
    pub fn new(channels: usize) -> Moments {
        let length = if channels <= MOST_PAIRED_CHANNELS { channels * channels } else { channels };
        Moments { channels, rows: 0, zeros: 0, totals: vec![0.0; channels], sums: vec![0.0; length] }
    }

    fn hash_sums(&self, hasher: &mut blake3::Hasher) {
        self.totals.iter().chain(&self.sums).for_each(|sum| {
            hasher.update(&sum.to_le_bytes());
        });
    }

    /// Channels of the value.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Rows that were seen.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The share of elements that were zero, from 0 to 1.
    pub fn zero_share(&self) -> f64 {
        self.zeros as f64 / (self.rows as f64 * self.channels as f64).max(1.0)
    }

    fn is_paired(&self) -> bool {
        self.sums.len() == self.channels * self.channels
    }

    /// Count rows `[..][channels]`. The sums do not depend on the number of threads.
    pub fn add(&mut self, rows: &[f32]) {
        let (channels, is_paired) = (self.channels, self.is_paired());
        self.rows += (rows.len() / channels.max(1)) as u64;
        self.zeros += rows.iter().filter(|element| **element == 0.0).count() as u64;
        for row in rows.chunks_exact(channels.max(1)) {
            self.totals.iter_mut().zip(row).for_each(|(total, x)| *total += x);
        }
        if !is_paired {
            for row in rows.chunks_exact(channels) {
                self.sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x * x);
            }
            return;
        }
        let count = rows.len() / channels.max(1);
        // The shapes fit: there is nothing to count in what has no channels or rows.
        let Ok(rows) = ArrayView2::from_shape((count, channels), &rows[..count * channels]) else { return };
        let bands = self.sums.par_chunks_mut((channels * BAND_CHANNELS).max(1)).enumerate();
        bands.for_each(|(band, sums)| {
            let (first, height) = (band * BAND_CHANNELS, sums.len() / channels);
            let Ok(mut sums) = ArrayViewMut2::from_shape((height, channels), sums) else { return };
            let rest = Slice::from(first..);
            let (own, behind) =
                (rows.slice_axis(Axis(1), Slice::from(first..first + height)), rows.slice_axis(Axis(1), rest));
            general_mat_mul(1.0, &own.t(), &behind, 1.0, &mut sums.slice_axis_mut(Axis(1), rest));
        });
    }

    /// Count what another value with the same channels was.
    pub fn merge(&mut self, other: &Moments) {
        self.rows += other.rows;
        self.zeros += other.zeros;
        self.totals.iter_mut().zip(&other.totals).for_each(|(total, other)| *total += other);
        self.sums.iter_mut().zip(&other.sums).for_each(|(sum, other)| *sum += other);
    }

    /// The mean of each channel.
    pub fn means(&self) -> Vec<f64> {
        let rows = self.rows.max(1) as f64;
        self.totals.iter().map(|&total| f64::from(total) / rows).collect()
    }

    /// The mean square of each channel.
    pub fn mean_squares(&self) -> Vec<f64> {
        let (rows, step) = (self.rows.max(1) as f64, if self.is_paired() { self.channels + 1 } else { 1 });
        self.sums.iter().step_by(step).map(|&sum| f64::from(sum) / rows).collect()
    }

    /// The moments of what each channel is off its mean: what errors cost whose mean a bias takes out.
    pub fn centered(&self) -> Moments {
        let means = self.means();
        let mut centered = self.clone();
        let rows = self.rows as f64;
        let without = |sum: &mut f32, one: usize, other: usize| {
            *sum = (f64::from(*sum) - rows * means[one] * means[other]) as f32;
            // Roundings do not make a square negative.
            *sum = if one == other { sum.max(0.0) } else { *sum };
        };
        if self.is_paired() {
            let bands = centered.sums.par_chunks_mut(self.channels.max(1)).enumerate();
            bands.for_each(|(row, sums)| (row..sums.len()).for_each(|at| without(&mut sums[at], row, at)));
        } else {
            centered.sums.iter_mut().enumerate().for_each(|(at, sum)| without(sum, at, at));
        }
        centered.totals.fill(0.0);
        centered
    }

    /// The moments of the channels divided by these numbers, powers of two.
    pub fn divided(&self, divisors: &[f32]) -> Moments {
        let mut divided = self.clone();
        divided.totals.iter_mut().zip(divisors).for_each(|(total, divisor)| *total /= divisor);
        if self.is_paired() {
            for (sums, own) in divided.sums.chunks_exact_mut(self.channels.max(1)).zip(divisors) {
                sums.iter_mut().zip(divisors).for_each(|(sum, divisor)| *sum /= own * divisor);
            }
        } else {
            divided.sums.iter_mut().zip(divisors).for_each(|(sum, divisor)| *sum /= divisor * divisor);
        }
        divided
    }

    /// The sum over `rows: [..][channels]` of the mean square of their products with what was seen; of each channel alone
    /// where only these moments are kept.
    pub fn energy(&self, rows: &[f32]) -> f64 {
        let (channels, seen) = (self.channels, self.rows.max(1) as f64);
        let of_channel = |channel: usize| -> f64 {
            let own = |sum: f32, row: &[f32]| f64::from(sum) * f64::from(row[channel]) * f64::from(row[channel]);
            if !self.is_paired() {
                return rows.chunks_exact(channels).map(|row| own(self.sums[channel], row)).sum();
            }
            let sums = &self.sums[channel * channels + channel..(channel + 1) * channels];
            let with_others = |row: &[f32]| {
                let others: f32 = dot(&sums[1..], &row[channel + 1..]);
                own(sums[0], row) + 2.0 * f64::from(row[channel]) * f64::from(others)
            };
            rows.chunks_exact(channels).map(with_others).sum()
        };
        // In the order of channels, whatever the threads.
        let sums: Vec<f64> = (0..channels).into_par_iter().map(of_channel).collect();
        sums.iter().sum::<f64>().max(0.0) / seen
    }

    /// The upper triangular U with UᵀU the inverse of the damped matrix of mean moments; below its diagonal the same part of
    /// that matrix, and behind it the diagonal of the matrix: `[channels + 1, channels]`. Where only the moments of each channel
    /// are kept, the diagonal of U, `[channels]`.
    ///
    /// An error e of the weight of channel j is made up for best by adding `-e / U[j, j] * U[j, k]` to those of the channels
    /// k > j, and `1 / U[j, j]²` is what its square costs then (GPTQ, Frantar et al. 2022).
    ///
    /// # Errors
    /// [`TensorError`] where the tensor is too large.
    pub fn factor(&self) -> Result<Tensor, TensorError> {
        let count = self.channels;
        let rows = self.rows.max(1) as f64;
        let own = |channel: usize| {
            let at = if self.is_paired() { channel * count + channel } else { channel };
            f64::from(self.sums[at]) / rows
        };
        let mean = (0..count).map(own).sum::<f64>() / count.max(1) as f64;
        // Nothing but zeros was seen: no channel counts more than another.
        let damping = if mean > 0.0 { DAMPING * mean } else { 1.0 };
        if !self.is_paired() {
            let diagonal: Vec<f32> = (0..count).map(|channel| (1.0 / (own(channel) + damping).sqrt()) as f32).collect();
            return Tensor::from_elements(&[count], &diagonal);
        }
        let mut matrix: Vec<f64> = self.sums.iter().map(|&sum| f64::from(sum) / rows).collect();
        (0..count).for_each(|channel| matrix[channel * count + channel] += damping);
        // The sums are those of columns behind rows.
        let moment = |row: usize, column: usize| matrix[row * count + column] as f32;
        let below: Vec<f32> = (0..count).flat_map(|row| (0..row).map(move |column| moment(column, row))).collect();
        let diagonal: Vec<f32> = (0..count).map(|channel| moment(channel, channel)).collect();
        let root = upper_root(matrix, count);
        let mut factor = upper_inverse(&root, count);
        let mut rest = below.as_slice();
        for (row, elements) in factor.chunks_exact_mut(count.max(1)).enumerate() {
            let (own, others) = rest.split_at(row);
            elements[..row].copy_from_slice(own);
            rest = others;
        }
        factor.extend(diagonal);
        Tensor::from_elements(&[count + 1, count], &factor)
    }
}

/// The sum of products, in a fixed order.
fn dot<T>(left: &[T], right: &[T]) -> T
where
    T: Copy + Default + Sum + AddAssign + Mul<Output = T>,
{
    const LANES: usize = 8;
    let mut sums = [T::default(); LANES];
    let (left_lanes, left_rest) = left.as_chunks::<LANES>();
    let (right_lanes, right_rest) = right.as_chunks::<LANES>();
    for (left, right) in left_lanes.iter().zip(right_lanes) {
        for lane in 0..LANES {
            sums[lane] += left[lane] * right[lane];
        }
    }
    let rest = left_rest.iter().zip(right_rest).map(|(&left, &right)| left * right);
    sums.into_iter().chain(rest).sum()
}

/// The upper triangular R with R Rᵀ the symmetric positive matrix whose upper part is given, from the last column on.
fn upper_root(mut matrix: Vec<f64>, count: usize) -> Vec<f64> {
    let mut column_of = vec![0.0; count];
    for column in (0..count).rev() {
        let (above, own) = matrix.split_at_mut(column * count);
        let own = &mut own[..count];
        let rest = column + 1..count;
        // Damping keeps it positive but for roundings.
        let diagonal = (own[column] - dot(&own[rest.clone()], &own[rest.clone()])).max(f64::MIN_POSITIVE).sqrt();
        own[column] = diagonal;
        above.par_chunks_exact(count).zip(column_of.par_iter_mut()).for_each(|(row, value)| {
            *value = (row[column] - dot(&row[rest.clone()], &own[rest.clone()])) / diagonal;
        });
        above.chunks_exact_mut(count).zip(&column_of).for_each(|(row, value)| row[column] = *value);
    }
    matrix
}

/// The inverse of an upper triangular matrix, zero below its diagonal.
fn upper_inverse(root: &[f64], count: usize) -> Vec<f32> {
    // Row i of the inverse: x R = e_i, from column i on.
    let mut inverse = vec![0.0f32; count * count];
    inverse.par_chunks_exact_mut(count.max(1)).enumerate().for_each(|(row, result)| {
        let mut rest = vec![0.0f64; count];
        rest[row] = 1.0;
        for column in row..count {
            let own = &root[column * count..][..count];
            let value = rest[column] / own[column];
            result[column] = value as f32;
            rest[column + 1..].iter_mut().zip(&own[column + 1..]).for_each(|(rest, own)| *rest -= value * own);
        }
    });
    inverse
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(channels: usize, rows: usize) -> (Moments, Vec<f32>) {
        let mut state = 5u32;
        let mut uniform = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        let mut values: Vec<f32> = (0..channels * rows).map(|_| uniform()).collect();
        // Neighbours resemble each other.
        values.chunks_exact_mut(channels).for_each(|row| (1..row.len()).for_each(|at| row[at] += row[at - 1]));
        let mut moments = Moments::new(channels);
        values.chunks(channels * 3).for_each(|rows| moments.add(rows));
        (moments, values)
    }

    #[test]
    fn the_factor_is_the_root_of_the_inverse() {
        let (moments, values) = moments(21, 60);
        assert_eq!((moments.rows(), moments.channels()), (60, 21));
        let factor = moments.factor().unwrap();
        let factor = factor.elements::<f32>().unwrap();
        let mean = |left: usize, right: usize| {
            values.chunks(21).map(|row| f64::from(row[left]) * f64::from(row[right])).sum::<f64>() / 60.0
        };
        let damping = DAMPING * (0..21).map(|channel| mean(channel, channel)).sum::<f64>() / 21.0;
        // UᵀU times the damped moments is the identity.
        for row in 0..21 {
            for column in 0..21 {
                let inverse = |other: usize| -> f64 {
                    let both = row.min(other) + 1;
                    (0..both).map(|k| f64::from(factor[k * 21 + row]) * f64::from(factor[k * 21 + other])).sum()
                };
                let damped = |other: usize| mean(other, column) + if other == column { damping } else { 0.0 };
                let product: f64 = (0..21).map(|other| inverse(other) * damped(other)).sum();
                let expected = f64::from(u8::from(row == column));
                assert!((product - expected).abs() < 1e-3, "{row} {column}: {product}");
            }
            // Below, the moments themselves.
            let near = |found: f32, expected: f64| (f64::from(found) - expected).abs() < 1e-2 * damping;
            assert!((0..row).all(|column| near(factor[row * 21 + column], mean(row, column))));
            assert!(near(factor[21 * 21 + row], mean(row, row) + damping));
        }
    }

    #[test]
    fn moments_are_sums_of_products_whatever_the_threads() {
        for (channels, rows) in [(1, 7), (128, 5), (300, 40)] {
            let (_, values) = moments(channels, rows);
            let with = |threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let mut moments = Moments::new(channels);
                pool.install(|| moments.add(&values));
                moments
            };
            let found = with(1);
            assert_eq!(found, with(3));
            for row in 0..channels {
                for column in row..channels {
                    let product = |x: &[f32]| f64::from(x[row]) * f64::from(x[column]);
                    let expected: f64 = values.chunks_exact(channels).map(product).sum();
                    let size: f64 = values.chunks_exact(channels).map(|x| product(x).abs()).sum();
                    let error = (f64::from(found.sums[row * channels + column]) - expected).abs();
                    assert!(error <= 1e-5 * size, "{row} {column}: off by {error}");
                }
            }
        }
    }

    #[test]
    fn moments_with_other_sums_than_channels_are_refused() {
        let (moments, _) = moments(3, 5);
        let stored = |channels| StoredMoments {
            channels,
            rows: 5,
            zeros: 0,
            totals: moments.totals.clone(),
            sums: moments.sums.clone(),
        };
        assert!(Moments::try_from(stored(3)).unwrap() == Moments { zeros: 0, ..moments.clone() });
        for channels in [0, 2, 4, MOST_PAIRED_CHANNELS + 1, usize::MAX] {
            assert!(Moments::try_from(stored(channels)).is_err(), "{channels}");
        }
        assert!(Moments::try_from(StoredMoments { totals: vec![0.0; 2], ..stored(3) }).is_err());
    }

    #[test]
    fn centered_moments_are_those_of_what_is_off_the_mean() {
        let (_, mut values) = moments(21, 60);
        values.iter_mut().enumerate().for_each(|(at, value)| *value += (at % 21) as f32);
        let mut shifted = Moments::new(21);
        shifted.add(&values);
        let means = shifted.means();
        let mut around = Moments::new(21);
        let off: Vec<f32> = values.iter().enumerate().map(|(at, value)| value - means[at % 21] as f32).collect();
        around.add(&off);
        let rows = &values[..63];
        let (found, expected) = (shifted.centered().energy(rows), around.energy(rows));
        assert!((found / expected - 1.0).abs() < 1e-3, "{found} for {expected}");
        assert!(shifted.centered().means().iter().all(|&mean| mean == 0.0));
        let square = |channel: usize| values.chunks(21).map(|row| f64::from(row[channel]).powi(2)).sum::<f64>() / 60.0;
        for (channel, found) in shifted.mean_squares().into_iter().enumerate() {
            assert!((found / square(channel) - 1.0).abs() < 1e-5, "{channel}: {found}");
        }
    }

    #[test]
    fn divided_moments_are_those_of_divided_channels() {
        let (moments, values) = moments(21, 60);
        let divisors: Vec<f32> = (0..21).map(|at| [0.25, 1.0, 8.0][at % 3]).collect();
        let mut expected = Moments::new(21);
        let divided: Vec<f32> = values.iter().enumerate().map(|(at, value)| value / divisors[at % 21]).collect();
        divided.chunks(21 * 3).for_each(|rows| expected.add(rows));
        // Powers of two round nothing.
        assert!(moments.divided(&divisors) == Moments { rows: 60, zeros: moments.zeros, ..expected });
    }

    #[test]
    fn energy_is_the_mean_square_of_products() {
        let (moments, values) = moments(21, 60);
        let rows: Vec<f32> = values[..42].iter().map(|value| value * value - 0.5).collect();
        let product = |row: &[f32], x: &[f32]| row.iter().zip(x).map(|(w, x)| f64::from(w * x)).sum::<f64>();
        let mean = |row| values.chunks(21).map(|x| product(row, x).powi(2)).sum::<f64>() / 60.0;
        let expected: f64 = rows.chunks(21).map(mean).sum();
        let found = moments.energy(&rows);
        assert!((found / expected - 1.0).abs() < 1e-4, "{found} for {expected}");
        let mut wide = Moments::new(MOST_PAIRED_CHANNELS + 1);
        let ones = vec![1.0; MOST_PAIRED_CHANNELS + 1];
        wide.add(&ones);
        assert_eq!(wide.energy(&ones), (MOST_PAIRED_CHANNELS + 1) as f64);
        assert_eq!(Moments::new(4).energy(&[1.0; 8]), 0.0);
    }

    #[test]
    fn moments_are_shown_by_what_they_are() {
        let (one, other) = (moments(300, 40).0, moments(300, 39).0);
        assert_eq!(format!("{one:?}"), format!("{:?}", one.clone()));
        assert_ne!(format!("{one:?}"), format!("{other:?}"));
        assert!(format!("{one:?}").len() < 200);
    }

    #[test]
    fn channels_without_anything_have_a_factor() {
        let mut moments = Moments::new(3);
        moments.add(&[0.0; 6]);
        assert_eq!(
            moments.factor().unwrap().elements::<f32>().unwrap(),
            [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]
        );
        moments.add(&[2.0, 0.0, 0.0]);
        let factor = moments.factor().unwrap();
        assert!(factor.elements::<f32>().unwrap().iter().all(|value| value.is_finite()));
    }
}
