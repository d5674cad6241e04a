//! Convolutions of 3 × 3 taps with fewer multiplications: tiles of 4 × 4 outputs from tiles of 6 × 6 inputs, F(4 × 4, 3 × 3) of
//! Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2016).
//!
//! Inputs and weights are transformed to 36 points; at each point channels are multiplied as in a product, and sums are
//! transformed back. That takes 36 multiplications for 16 outputs in place of 144. Weights are transformed in every call, panel by
//! panel for each block of tiles (`blocks`): in a file or in a far cache they would be four times as long.
//!
//! Channels lie one after another here (`planes`), or in blocks (`super::blocked::winograd`).
//!
//! Rounding errors are those of the largest inputs of a tile rather than of a window, about ten times as large as those of the
//! sums that [`super::convolution`] computes otherwise. Inputs that are not finite, or so large that transforms could overflow,
//! are left to these: they would spread over a tile.

mod blocks;
pub(super) mod planes;

pub(super) use self::blocks::{Block, Plan, Transformed};
use super::{ConvolutionEpilogue, ConvolutionShape};
use crate::{
    ahead::CacheLine,
    product::Panels,
    scratch::scratch,
    simd::{Instructions, LANES, Routine, Simd},
    team, threads,
    window::WindowAxis,
};
use std::sync::atomic::{AtomicBool, Ordering};

/// Outputs of a tile along an axis.
pub(super) const OUTPUTS: usize = 4;

/// Inputs of a tile along an axis, and points that they are transformed to.
pub(super) const INPUTS: usize = 6;

/// Taps of a window.
pub(super) const TAPS: usize = 9;

/// Points of a tile.
pub(super) const POINTS: usize = INPUTS * INPUTS;

/// Transformed inputs of a block, 4 bytes each, which stay in the second-level cache.
pub(super) const MOST_INPUTS: usize = 240 << 10;

/// Input channels up to which the transformed weights of a panel stay near.
pub(super) const MOST_CHANNELS: usize = 512;

/// The largest magnitude of an input: transforms multiply by less than 2^10, products of weights below 2^64 stay finite.
const LARGEST: f32 = (1u128 << 40) as f32;

/// Operations on vectors that transforms take: of the weights of a channel and a panel, of a vector of tiles of inputs, and of
/// one of outputs.
pub(super) const WEIGHT_COST: usize = 160;
pub(super) const INPUT_COST: usize = 230;
pub(super) const OUTPUT_COST: usize = 200;

/// Whether windows along an axis can be tiles. None sees padding alone: what is 0 otherwise would be a rounding error of its tile.
pub(super) fn is_plain(axis: &WindowAxis) -> bool {
    let sees_inputs = axis.pad_begin < axis.kernel && axis.pad_end < axis.kernel;
    (axis.kernel, axis.stride, axis.dilation) == (3, 1, 1) && axis.output > 0 && sees_inputs
}

/// Whether all inputs are so small that a tile stays finite.
pub(super) fn are_small(instructions: Instructions, x: &[f32]) -> bool {
    let each = x.len().div_ceil(threads::parts(x.len(), team::count())).max(1);
    let are_small = AtomicBool::new(true);
    threads::each(x.chunks(each).collect(), |part| {
        if !instructions.run(AreSmall(part)) {
            are_small.store(false, Ordering::Relaxed);
        }
    });
    are_small.into_inner()
}

struct AreSmall<'a>(&'a [f32]);

impl Routine for AreSmall<'_> {
    type Output = bool;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> bool {
        // Several at a time, so that none waits for the one before. NaN stays.
        let mut largest = [simd.splat(0.0); 4];
        let (chunks, rest) = self.0.as_chunks::<{ 4 * LANES }>();
        for values in chunks {
            for (largest, values) in largest.iter_mut().zip(values.as_chunks::<LANES>().0) {
                *largest = simd.maximum(*largest, simd.absolute(simd.load(values)));
            }
        }
        for values in rest.chunks(LANES) {
            largest[0] = simd.maximum(largest[0], simd.absolute(simd.load_partial(values)));
        }
        let largest = simd.maximum(simd.maximum(largest[0], largest[1]), simd.maximum(largest[2], largest[3]));
        let mut lanes = [0.0; LANES];
        simd.store(largest, &mut lanes);
        lanes.iter().all(|&lane| lane <= LARGEST)
    }
}

/// Asks for the share of a point in the bytes of panel `panel`, if there is such: transforming waits for memory otherwise, which is idle while
/// points are multiplied.
#[inline(always)]
pub(super) fn ask_for<S: Simd>(simd: S, panels: Panels<'_>, panel: usize, point: usize) {
    if panel < panels.count() {
        let bytes = panels.bytes(panel, 0..panels.inputs());
        let share = bytes.len().div_ceil(POINTS);
        for byte in (point * share..bytes.len().min((point + 1) * share)).step_by(size_of::<CacheLine>()) {
            simd.prefetch_far(bytes, byte);
        }
    }
}

/// The weights of a panel, `[channels, 9 taps, 16]`, to `[36, channels + 1, 16]`: points a line further apart than channels reach.
#[inline(always)]
pub(super) fn transform_weights<S: Simd>(simd: S, panels: Panels<'_>, panel: usize, transformed: &mut [f32]) {
    let depth = panels.inputs();
    let inputs = depth / TAPS;
    let mut wide = scratch(if panels.are_f32() { 0 } else { depth * LANES });
    let taps = panels.in_f32(simd, panel, 0..depth, &mut wide);
    let (transformed, _) = transformed.as_chunks_mut::<LANES>();
    for (channel, taps) in taps.chunks_exact(TAPS).enumerate() {
        let mut half = [[simd.splat(0.0); INPUTS]; 3];
        for row in 0..3 {
            let [first, second, third] = [&taps[3 * row], &taps[3 * row + 1], &taps[3 * row + 2]];
            half[row] = weight_points(simd, [simd.load(first), simd.load(second), simd.load(third)]);
        }
        for column in 0..INPUTS {
            let points = weight_points(simd, [half[0][column], half[1][column], half[2][column]]);
            for row in 0..INPUTS {
                simd.store(points[row], &mut transformed[(row * INPUTS + column) * (inputs + 1) + channel]);
            }
        }
    }
}

/// Three taps at the points 0, 1, -1, 2, -2 and infinity.
#[inline(always)]
fn weight_points<S: Simd>(simd: S, [first, second, third]: [S::Vector; 3]) -> [S::Vector; INPUTS] {
    let sixth = |value| simd.multiply(value, simd.splat(1.0 / 6.0));
    let even = simd.subtract(simd.splat(0.0), sixth(simd.add(first, third)));
    let odd = sixth(second);
    let outer = simd.fused(first, simd.splat(1.0 / 24.0), sixth(third));
    let half = simd.multiply(odd, simd.splat(0.5));
    [
        simd.multiply(first, simd.splat(0.25)),
        simd.subtract(even, odd),
        simd.add(even, odd),
        simd.add(outer, half),
        simd.subtract(outer, half),
        third,
    ]
}

/// Six inputs at the points of the weights.
#[inline(always)]
pub(super) fn input_points<S: Simd>(simd: S, d: [S::Vector; INPUTS]) -> [S::Vector; INPUTS] {
    let (two, four, minus_four, minus_five) = (simd.splat(2.0), simd.splat(4.0), simd.splat(-4.0), simd.splat(-5.0));
    let even = simd.fused(minus_four, d[2], d[4]);
    let odd = simd.fused(minus_four, d[1], d[3]);
    let outer_even = simd.subtract(d[4], d[2]);
    let outer_odd = simd.multiply(two, simd.subtract(d[3], d[1]));
    [
        simd.fused(four, d[0], simd.fused(minus_five, d[2], d[4])),
        simd.add(even, odd),
        simd.subtract(even, odd),
        simd.add(outer_even, outer_odd),
        simd.subtract(outer_even, outer_odd),
        simd.fused(four, d[1], simd.fused(minus_five, d[3], d[5])),
    ]
}

/// Tiles whose rows are at their points, `[6 rows][6 points]`, to all 36 of them, each `point_inputs` values behind the one before.
#[inline(always)]
pub(super) fn store_points<S: Simd>(
    simd: S,
    rows: [[S::Vector; INPUTS]; INPUTS],
    data: &mut [f32],
    point_inputs: usize,
) {
    for column in 0..INPUTS {
        let mut inputs = [simd.splat(0.0); INPUTS];
        for row in 0..INPUTS {
            inputs[row] = rows[row][column];
        }
        let points = input_points(simd, inputs);
        for row in 0..INPUTS {
            let to = &mut data[(row * INPUTS + column) * point_inputs..];
            simd.store(points[row], &mut to.as_chunks_mut().0[0]);
        }
    }
}

/// Four outputs from the sums at six points.
#[inline(always)]
pub(super) fn outputs<S: Simd>(simd: S, m: [S::Vector; INPUTS]) -> [S::Vector; OUTPUTS] {
    let (near, far) = (simd.add(m[1], m[2]), simd.add(m[3], m[4]));
    let (near_odd, far_odd) = (simd.subtract(m[1], m[2]), simd.subtract(m[3], m[4]));
    [
        simd.add(simd.add(m[0], near), far),
        simd.fused(simd.splat(2.0), far_odd, near_odd),
        simd.fused(simd.splat(4.0), far, near),
        simd.add(simd.fused(simd.splat(8.0), far_odd, near_odd), m[5]),
    ]
}
