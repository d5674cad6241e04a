//! Which rows of the input the windows of each row of outputs have.

use crate::{
    places::SeenRows,
    simd::LANES,
    window::{self, WindowAxis},
};

/// Windows of rows along the last axis, 1 or 2 positions apart.
pub(super) struct Rows {
    pub(super) last: WindowAxis,
    /// Rows of a plane of the input.
    pub(super) inputs: usize,
    /// Rows of the input that the windows of each row of outputs have.
    pub(super) seen: SeenRows,
    /// Windows of a plane.
    pub(super) windows: usize,
    /// Elements of each of them, where they matter.
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
        let width = last.output.next_multiple_of(LANES) * last.stride + last.kernel.saturating_sub(1) * last.dilation;
        let windows = window::outputs(outer) * last.output;
        Rows { last, inputs: window::inputs(outer), seen: SeenRows::new(outer), windows, counts, width }
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
