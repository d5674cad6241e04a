//! Pools over positions of 8 values side by side, as blocks of channels are: the windows of two planes fill a vector.

use super::kind::PoolKind;
use crate::{
    bands::{Band, Planes},
    places::SeenRows,
    scratch::scratch,
    simd::{HALF, Instructions, Routine, Simd},
    window::{self, WindowAxis},
};
use std::ops::Range;

/// Rows that windows see, all that are held.
const MOST_ROWS: usize = 1 << 20;

/// Windows of a plane from which on rows are given to different threads.
const FEWEST_OF_BANDS: usize = 96;

/// Windows over the positions of a plane.
pub(super) struct Blocks {
    /// Rows of positions that rows of windows see.
    seen: SeenRows,
    /// Windows along a row.
    columns: WindowAxis,
    /// Values of a plane of inputs.
    inputs: usize,
    taps: usize,
    /// Windows of a plane.
    windows: usize,
    /// Elements of each of them, the same for all values of a line, where they matter.
    counts: Vec<f32>,
}

impl Blocks {
    /// Whether each position of the other axes is a line of 8 values, and rows are few enough to be held. Windows far longer than the
    /// plane would mostly see padding.
    pub(super) fn fits(outer: &[WindowAxis], last: &WindowAxis) -> bool {
        let is_line = last.is_identity() && last.input == HALF;
        let is_near = |axis: &WindowAxis| axis.input > 0 && axis.kernel <= 2 * axis.input + 1;
        let [rows @ .., _] = outer else { return false };
        let seen =
            rows.iter().fold(1usize, |count, axis| count.saturating_mul(axis.output.saturating_mul(axis.kernel)));
        is_line && outer.iter().all(is_near) && seen <= MOST_ROWS
    }

    /// Of axes that fit; `counts` are the elements of each window, where they matter.
    pub(super) fn new(outer: &[WindowAxis], counts: Vec<f32>) -> Blocks {
        let (columns, rows) = outer.split_last().map_or((WindowAxis::POINT, outer), |(last, rows)| (*last, rows));
        let inputs = window::inputs(rows) * columns.input * HALF;
        let (windows, taps) = (window::outputs(outer), window::taps(outer));
        Blocks { seen: SeenRows::new(rows), columns, inputs, taps, windows, counts }
    }

    /// Planes of outputs, of so many images, from those of inputs.
    pub(super) fn pool(&self, kind: PoolKind, images: usize, x: &[f32], out: &mut [f32]) {
        let (rows, columns) = (self.seen.ends.len(), self.columns.output);
        let planes = out.len() / (self.windows * HALF);
        let row_length = columns * HALF;
        let planes = Planes { images, planes, together: 2, rows, columns, row_length, fewest_windows: FEWEST_OF_BANDS };
        planes.each(out.len().saturating_mul(self.taps), out, |Band { first_row, first_plane, out }| {
            // The last plane may be without another: it takes its own place.
            let mut alone = scratch(out.last().map_or(0, |last| last.len()));
            for (pair, out) in out.chunks_mut(2).enumerate() {
                let x = &x[(*first_plane + 2 * pair) * self.inputs..];
                let x_low = &x[..self.inputs];
                let (out, x_high) = match out {
                    [low, high] => ([&mut **low, &mut **high], &x[self.inputs..][..self.inputs]),
                    [low] => ([&mut **low, &mut alone[..]], x_low),
                    _ => continue,
                };
                let planes = [x_low.as_chunks().0, x_high.as_chunks().0];
                let out = out.map(|out| out.as_chunks_mut().0);
                Instructions::best().run(Pair { blocks: self, kind, first_row: *first_row, planes, out });
            }
        });
    }
}

/// Rows of windows of two planes.
struct Pair<'a> {
    blocks: &'a Blocks,
    kind: PoolKind,
    first_row: usize,
    planes: [&'a [[f32; HALF]]; 2],
    out: [&'a mut [[f32; HALF]]; 2],
}

impl Routine for Pair<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Pair { blocks, kind, first_row, planes, out: [low, high] } = self;
        let columns = blocks.columns;
        let inside = columns.inside(columns.output);
        let rows = low.chunks_exact_mut(columns.output).zip(high.chunks_exact_mut(columns.output));
        for (row, (low, high)) in (first_row..).zip(rows) {
            let lines = blocks.seen.of(row).0;
            for column in 0..columns.output {
                let taps = if inside.contains(&column) { 0..columns.kernel } else { columns.taps(column) };
                let mut total = blocks.window(simd, kind, planes, lines, column, taps);
                if kind != PoolKind::Max {
                    total = simd.divide(total, simd.splat(blocks.counts[row * columns.output + column]));
                }
                simd.store_halves(total, &mut low[column], &mut high[column]);
            }
        }
    }
}

impl Blocks {
    /// The maximum or sum of some taps of a window of each of two planes.
    #[inline(always)]
    fn window<S: Simd>(
        &self,
        simd: S,
        kind: PoolKind,
        [low, high]: [&[[f32; HALF]]; 2],
        lines: &[usize],
        column: usize,
        taps: Range<usize>,
    ) -> S::Vector {
        let WindowAxis { input, stride, dilation, pad_begin, .. } = self.columns;
        let mut total = simd.splat(kind.start());
        for line in lines {
            let (low, high) = (&low[line * input..][..input], &high[line * input..][..input]);
            for tap in taps.clone() {
                let position = column * stride + tap * dilation - pad_begin;
                let values = simd.load_halves(&low[position], &high[position]);
                total = if kind == PoolKind::Max { simd.maximum(total, values) } else { simd.add(total, values) };
            }
        }
        total
    }
}
