//! Convolutions of few windows, as products of the inputs of each: vectors hold output channels, as those of positions would
//! be mostly empty.
//!
//! The order of each sum is that of `gather`.

use super::{ConvolutionEpilogue, ConvolutionShape};
use crate::{
    matrix::{Matrix, MatrixMut},
    product::{Epilogue, PANEL_OUTPUTS, PanelPiece, Start, clamp_all, panels_product},
    scratch::scratch,
    simd::{Instructions, Routine, Simd},
    window::{self, WindowAxis},
};

/// Windows of an image up to which vectors of positions are half empty.
const MOST_WINDOWS: usize = 8;

/// Whether a convolution with these pieces of its weight is computed so: pieces hold all inputs of their outputs.
pub(super) fn fits(shape: &ConvolutionShape, pieces: &[PanelPiece<'_>]) -> bool {
    let whole = pieces.iter().all(|piece| piece.inputs.len() == shape.depth());
    shape.groups == 1 && window::outputs(&shape.axes) <= MOST_WINDOWS && whole
}

/// The convolution with whole panels of a weight.
pub(super) fn convolution(
    instructions: Instructions,
    shape: &ConvolutionShape,
    x: &[f32],
    pieces: &[PanelPiece<'_>],
    out: &mut [f32],
    epilogue: ConvolutionEpilogue<'_>,
) {
    let windows = window::outputs(&shape.axes);
    let (rows, depth, outputs) = (shape.batch * windows, shape.depth(), shape.group_outputs);
    let is_image = sees_image(shape);
    let mut gathered = scratch(if is_image { 0 } else { rows * depth });
    let inputs = if is_image {
        x
    } else {
        gather(shape, x, &mut gathered);
        &gathered[..]
    };
    let mut sums = scratch(rows * outputs);
    let product = MatrixMut::new(&mut sums, rows, outputs);
    panels_product(instructions, Matrix::new(inputs, rows, depth), pieces, product, Start::Zero, Epilogue::default());
    for piece in pieces {
        let first = piece.panels.start * PANEL_OUTPUTS;
        let count = outputs.min(piece.panels.end * PANEL_OUTPUTS) - first;
        for image in 0..shape.batch {
            let place = (image * outputs + first) * windows;
            let out = &mut out[place..][..count * windows];
            let sums = &sums[image * windows * outputs + first..];
            instructions.run(Finish { epilogue, sums, row: outputs, first, windows, place, out });
        }
    }
}

/// Whether there is one window, which sees each input of an image once, in order.
fn sees_image(shape: &ConvolutionShape) -> bool {
    let is_whole = |axis: &WindowAxis| {
        axis.output == 1 && axis.kernel == axis.input && axis.start(0) == 0 && (axis.dilation == 1 || axis.kernel == 1)
    };
    shape.axes.iter().all(is_whole)
}

/// The inputs of each window: `[batch * windows, channels * taps]`.
fn gather(shape: &ConvolutionShape, x: &[f32], inputs: &mut [f32]) {
    let plane = window::inputs(&shape.axes);
    let taps = window::taps(&shape.axes);
    let places = places(&shape.axes);
    if plane == 0 || taps == 0 {
        return inputs.fill(0.0);
    }
    let mut rows = inputs.chunks_exact_mut(shape.depth().max(1));
    for image in x.chunks_exact((shape.group_inputs * plane).max(1)) {
        for places in places.chunks_exact(taps) {
            let Some(row) = rows.next() else { return };
            for (row, plane) in row.chunks_exact_mut(taps).zip(image.chunks_exact(plane)) {
                for (input, &place) in row.iter_mut().zip(places) {
                    *input = plane.get(place).copied().unwrap_or_default();
                }
            }
        }
    }
}

/// Where each tap of each window lies in a plane, `usize::MAX` in the padding.
fn places(axes: &[WindowAxis]) -> Vec<usize> {
    // Windows × taps of the axes so far.
    let (mut windows, mut places) = (1, vec![0]);
    for axis in axes {
        let taps = places.len() / windows;
        let mut finer = Vec::with_capacity(places.len() * axis.output * axis.kernel);
        for outer in places.chunks_exact(taps.max(1)) {
            for window in 0..axis.output {
                for &place in outer {
                    let inner = |tap| axis.position(window, tap).map(|position| (place, position));
                    finer.extend((0..axis.kernel).map(|tap| match inner(tap) {
                        Some((place, position)) if place != usize::MAX => place * axis.input + position,
                        Some(_) | None => usize::MAX,
                    }));
                }
            }
        }
        (windows, places) = (windows * axis.output, finer);
    }
    places
}

/// Puts sums `[windows, channels]` in the order of the output, and completes them.
struct Finish<'a> {
    epilogue: ConvolutionEpilogue<'a>,
    /// From the first channel of the first window on.
    sums: &'a [f32],
    /// Channels of a window.
    row: usize,
    /// The first channel.
    first: usize,
    windows: usize,
    /// Where the outputs begin in the whole output.
    place: usize,
    out: &'a mut [f32],
}

impl Routine for Finish<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        if self.windows == 1 {
            return self.run_single(simd);
        }
        // The change comes once for all channels: they lie side by side.
        let each = ConvolutionEpilogue { change: None, ..self.epilogue };
        for (channel, out) in self.out.chunks_exact_mut(self.windows).enumerate() {
            for (window, output) in out.iter_mut().enumerate() {
                *output = self.sums[window * self.row + channel];
            }
            each.apply(simd, self.first + channel, self.place + channel * self.windows, out);
        }
        if let Some(change) = self.epilogue.change {
            change.apply(self.place, self.out);
        }
    }
}

impl Finish<'_> {
    /// As [`Routine::run`] for one window: sums lie in the order of the output.
    #[inline(always)]
    fn run_single<S: Simd>(self, simd: S) {
        let Self { epilogue, sums, first, place, out, .. } = self;
        out.copy_from_slice(&sums[..out.len()]);
        if let Some(bias) = epilogue.bias {
            out.iter_mut().zip(&bias[first..]).for_each(|(output, bias)| *output += bias);
        }
        if let Some(addend) = epilogue.addend {
            out.iter_mut().zip(&addend[place..]).for_each(|(output, addend)| *output += addend);
        }
        clamp_all(simd, epilogue.clamp, out);
        if let Some(change) = epilogue.change {
            change.apply(place, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::product::PanelElements;
    use std::ops::Range;

    /// The shapes with which `kernels/tests/convolution` compares such products with sums of what is gathered.
    #[test]
    fn few_windows_with_whole_panels_fit() {
        let axis = |input, output, stride, pad| WindowAxis {
            input,
            output,
            kernel: 3,
            stride,
            dilation: 1,
            pad_begin: pad,
            pad_end: pad,
        };
        let shape = |axes: [WindowAxis; 2]| ConvolutionShape {
            batch: 2,
            groups: 1,
            group_inputs: 90,
            group_outputs: 37,
            axes: axes.to_vec(),
        };
        let few = [
            shape([axis(3, 2, 2, 1), axis(4, 4, 1, 1)]),
            shape([axis(3, 1, 1, 0), axis(3, 1, 1, 0)]),
            shape([axis(3, 1, 1, 0), axis(4, 1, 2, 0)]),
        ];
        let depth = few[0].depth();
        let weights = vec![0.0; 3 * depth * PANEL_OUTPUTS];
        let piece = |panels: Range<usize>, inputs: Range<usize>| {
            let elements = PanelElements::F32(&weights[..panels.len() * inputs.len() * PANEL_OUTPUTS]);
            [PanelPiece { panels, inputs, elements }]
        };
        for few in few {
            assert!(fits(&few, &piece(0..3, 0..depth)), "{few:?}");
            // Cut along the inputs, or in groups, it is computed otherwise.
            assert!(!fits(&few, &piece(1..2, 0..512)) && !fits(&few, &piece(1..2, 512..depth)), "{few:?}");
            assert!(!fits(&ConvolutionShape { groups: 2, ..few }, &piece(0..3, 0..depth)));
        }
        assert!(!fits(&shape([axis(5, 3, 1, 0), axis(5, 3, 1, 0)]), &piece(0..3, 0..depth)), "more windows");
    }
}
