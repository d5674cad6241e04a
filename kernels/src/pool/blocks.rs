//! Pools over positions of 8 values side by side, as blocks of channels are: the windows of two planes fill a vector.

use super::kind::PoolKind;
use crate::{
    places::places,
    simd::{HALF, Instructions, OUTSIDE, Routine, Simd},
    window::{self, WindowAxis},
};

/// Places that are held at most.
const MOST_PLACES: usize = 1 << 22;

/// Where the taps of all windows of a plane lie.
pub(super) struct Blocks {
    /// `[windows, taps]`, in values; [`OUTSIDE`] in the padding.
    places: Vec<u32>,
    /// Values of a plane of inputs.
    inputs: usize,
    taps: usize,
}

impl Blocks {
    /// Whether each position of the other axes is a line of 8 values, and places are few enough to be numbered and held. Windows
    /// far longer than the plane would mostly see padding.
    pub(super) fn fits(outer: &[WindowAxis], last: &WindowAxis) -> bool {
        let is_line = last.is_identity() && last.input == HALF && !outer.is_empty();
        let is_near = |axis: &WindowAxis| axis.input > 0 && axis.kernel <= 2 * axis.input + 1;
        let inputs = outer.iter().fold(HALF, |count, axis| count.saturating_mul(axis.input));
        let of_axis = |axis: &WindowAxis| axis.output.saturating_mul(axis.kernel);
        let places = outer.iter().fold(1usize, |count, axis| count.saturating_mul(of_axis(axis)));
        is_line && outer.iter().all(is_near) && inputs < OUTSIDE as usize && places <= MOST_PLACES
    }

    pub(super) fn new(outer: &[WindowAxis]) -> Blocks {
        let (windows, taps) = (window::outputs(outer), window::taps(outer));
        let by_tap = places(outer, 0..windows, HALF);
        let places = (0..windows).flat_map(|window| by_tap[window..].iter().step_by(windows).copied()).collect();
        Blocks { places, inputs: window::inputs(outer) * HALF, taps }
    }

    /// Some planes of outputs from those of inputs. `counts` are the elements of each window.
    pub(super) fn pool(&self, kind: PoolKind, counts: &[f32], x: &[f32], out: &mut [f32]) {
        let outputs = counts.len() * HALF;
        let pairs = x.chunks(2 * self.inputs).zip(out.chunks_mut(2 * outputs));
        for (x, out) in pairs {
            let (low, high) = out.split_at_mut(outputs);
            let (x_low, x_high) = x.split_at(self.inputs);
            // The last plane may be without another: it takes its own place.
            let mut alone = vec![0.0; if high.is_empty() { outputs } else { 0 }];
            let (high, x_high) = if high.is_empty() { (&mut alone[..], x_low) } else { (high, x_high) };
            let planes = [x_low.as_chunks().0, x_high.as_chunks().0];
            let out = [low.as_chunks_mut().0, high.as_chunks_mut().0];
            Instructions::best().run(Pair { blocks: self, kind, counts, planes, out });
        }
    }
}

/// All windows of two planes.
struct Pair<'a> {
    blocks: &'a Blocks,
    kind: PoolKind,
    counts: &'a [f32],
    planes: [&'a [[f32; HALF]]; 2],
    out: [&'a mut [[f32; HALF]]; 2],
}

impl Routine for Pair<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Pair { blocks, kind, counts, planes: [low, high], out: [out_low, out_high] } = self;
        let windows = blocks.places.chunks_exact(blocks.taps.max(1)).zip(counts);
        for ((taps, count), (out_low, out_high)) in windows.zip(out_low.iter_mut().zip(out_high)) {
            let mut total = simd.splat(kind.start());
            for &place in taps {
                if place == OUTSIDE {
                    continue;
                }
                let line = place as usize / HALF;
                let values = simd.load_halves(&low[line], &high[line]);
                total = if kind == PoolKind::Max { simd.maximum(total, values) } else { simd.add(total, values) };
            }
            if kind != PoolKind::Max {
                total = simd.divide(total, simd.splat(*count));
            }
            simd.store_halves(total, out_low, out_high);
        }
    }
}
