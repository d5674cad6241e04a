//! Which rows of the input the windows of each row of outputs have.

use crate::{
    simd::LANES,
    window::{self, WindowAxis},
};

/// Windows of rows along the last axis, 1 or 2 positions apart.
pub(super) struct Rows {
    pub(super) last: WindowAxis,
    /// Rows of a plane of the input.
    pub(super) inputs: usize,
    /// Rows of the input that the windows of each row of outputs have, one row of outputs after another.
    pub(super) taps: Vec<usize>,
    /// Where those of each row of outputs end.
    pub(super) ends: Vec<usize>,
    /// Elements of each window of a plane.
    pub(super) counts: Vec<f32>,
    /// Values of a row with its padding.
    pub(super) width: usize,
}

impl Rows {
    /// Whether windows are near enough to one another, and their padding short enough, to lay out rows with it.
    pub(super) fn fits(last: &WindowAxis) -> bool {
        let reach = last.kernel.saturating_sub(1).saturating_mul(last.dilation);
        matches!(last.stride, 1 | 2) && reach <= 2 * last.input
    }

    pub(super) fn new(outer: &[WindowAxis], last: WindowAxis, counts: Vec<f32>) -> Rows {
        let (mut taps, mut ends) = (vec![0], vec![1]);
        for axis in outer {
            let (mut inner_taps, mut inner_ends) = (Vec::new(), Vec::new());
            let mut begin = 0;
            for &end in &ends {
                for output in 0..axis.output {
                    for &row in &taps[begin..end] {
                        let positions = axis.taps(output).filter_map(|tap| axis.position(output, tap));
                        inner_taps.extend(positions.map(|position| row * axis.input + position));
                    }
                    inner_ends.push(inner_taps.len());
                }
                begin = end;
            }
            (taps, ends) = (inner_taps, inner_ends);
        }
        let width = last.output.next_multiple_of(LANES) * last.stride + last.kernel.saturating_sub(1) * last.dilation;
        Rows { last, inputs: window::inputs(outer), taps, ends, counts, width }
    }

    /// Copies a plane with its padding before and behind each row.
    #[inline(always)]
    pub(super) fn pad(&self, x: &[f32], padding: f32, padded: &mut [f32]) {
        let begin = self.last.pad_begin.min(self.width);
        let count = self.last.input.min(self.width - begin);
        for (from, to) in x.chunks_exact(self.last.input).zip(padded.chunks_exact_mut(self.width)) {
            to[..begin].fill(padding);
            to[begin..begin + count].copy_from_slice(&from[..count]);
            to[begin + count..].fill(padding);
        }
    }
}
