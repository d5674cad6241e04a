//! Convolution of channels of integers of 8 bits that do not see one another: groups of one input channel.
//!
//! A code less its zero point is at most 255 away from 0, so that f32 holds every partial sum of up to [`MOST_TAPS`] products exactly:
//! the kernel of floats gives the sums of integers, in whatever order it adds. A task takes channels that stay in the
//! second-level cache as floats, and hands on their sums.

use bytemuck::cast_slice_mut;

use super::{ConvolutionEpilogue, ConvolutionShape, depthwise};
use crate::{
    product::Zero,
    scratch::scratch,
    simd::{Instructions, LANES, Routine, Simd},
    threads, window,
};

/// The most taps whose products f32 sums exactly: 258 · 255 · 255 is less than 2^24.
const MOST_TAPS: usize = 258;

/// Input positions of a task, about: with their sums they stay in the second-level cache.
const TASK_POSITIONS: usize = 1 << 14;

/// A convolution of groups of one input channel.
#[derive(Clone, Copy, Debug)]
pub struct ByteDepthwise<'a> {
    /// Groups of one input channel.
    pub shape: &'a ConvolutionShape,
    /// `[batch, groups, positions..]`.
    pub x: &'a [u8],
    /// The type of `x`, and its zero point, which padding holds.
    pub zero: Zero,
    /// `[groups * group_outputs, taps..]`: codes less their zero points.
    pub weight: &'a [f32],
    /// What is added to the sums of each output channel.
    pub bias: Option<&'a [i32]>,
}

impl ByteDepthwise<'_> {
    /// Whether [`Self::finish`] takes such a convolution.
    #[must_use]
    pub fn takes(shape: &ConvolutionShape) -> bool {
        shape.group_inputs == 1 && window::taps(&shape.axes) <= MOST_TAPS
    }

    /// Calls `finish` for each output channel of each image: with the channel, the place of its first position in the whole result, its
    /// sums, which wrap around in 32 bits where a bias is added, and its part of `out`, whose elements have `size` bytes.
    ///
    /// # Panics
    /// If lengths disagree with the shape, or it is none that [`Self::takes`].
    pub fn finish(
        self,
        instructions: Instructions,
        size: usize,
        out: &mut [u8],
        finish: impl Fn(usize, usize, &[i32], &mut [u8]) + Sync,
    ) {
        let Self { shape, x, weight, .. } = self;
        let (plane, positions, taps) =
            (window::inputs(&shape.axes), window::outputs(&shape.axes), window::taps(&shape.axes));
        let (groups, outputs) = (shape.groups, shape.group_outputs);
        assert!(Self::takes(shape), "groups of one input channel and few taps: {shape:?}");
        assert_eq!(x.len(), shape.inputs(), "inputs of {shape:?}");
        assert_eq!(out.len(), shape.outputs() * size, "outputs of {shape:?}");
        assert_eq!(weight.len(), groups * outputs * taps, "weights of {shape:?}");
        if out.is_empty() {
            return;
        }
        let each = (TASK_POSITIONS / plane.max(1)).clamp(1, LANES);
        let images = out.chunks_mut(groups * outputs * positions * size).enumerate();
        let tasks: Vec<(usize, usize, &mut [u8])> = images
            .flat_map(|(image, out)| {
                let blocks = out.chunks_mut(each * outputs * positions * size).enumerate();
                blocks.map(move |(block, out)| (image, block * each, out))
            })
            .collect();
        let task = |(image, group, out): (usize, usize, &mut [u8])| {
            let count = out.len() / (outputs * positions * size);
            let own = ConvolutionShape { batch: 1, groups: count, ..shape.clone() };
            let mut floats = scratch(count * plane);
            let codes = &x[(image * groups + group) * plane..][..count * plane];
            instructions.run(Centre { zero: self.zero, codes, floats: &mut floats });
            let mut sums = scratch(count * outputs * positions);
            let weight = &weight[group * outputs * taps..][..count * outputs * taps];
            threads::serially(|| {
                depthwise(instructions, &own, &floats, weight, &mut sums, ConvolutionEpilogue::default());
            });
            let mut integers = scratch(positions);
            let integers: &mut [i32] = cast_slice_mut(&mut integers);
            for (index, (sums, out)) in sums.chunks(positions).zip(out.chunks_mut(positions * size)).enumerate() {
                let channel = group * outputs + index;
                let start = self.bias.map_or(0, |bias| bias[channel]);
                instructions.run(Integers { sums, start, integers });
                finish(channel, (image * groups * outputs + channel) * positions, integers, out);
            }
        };
        match threads::parts(shape.outputs() * taps, tasks.len()) {
            1 => tasks.into_iter().for_each(task),
            _ => threads::each(tasks, task),
        }
    }
}

/// Codes less their zero point.
struct Centre<'a> {
    zero: Zero,
    codes: &'a [u8],
    floats: &'a mut [f32],
}

impl Routine for Centre<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Zero { code, kind } = self.zero;
        if kind.signed {
            let zero = f32::from(code.cast_signed());
            for (float, &code) in self.floats.iter_mut().zip(self.codes) {
                *float = f32::from(code.cast_signed()) - zero;
            }
        } else {
            let zero = f32::from(code);
            for (float, &code) in self.floats.iter_mut().zip(self.codes) {
                *float = f32::from(code) - zero;
            }
        }
    }
}

/// Sums that f32 holds as integers, from `start` on.
struct Integers<'a> {
    sums: &'a [f32],
    start: i32,
    integers: &'a mut [i32],
}

impl Routine for Integers<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let start = simd.splat_integer(self.start);
        for (sums, integers) in self.sums.chunks(LANES).zip(self.integers.chunks_mut(LANES)) {
            let sum = simd.add_integers(simd.nearest_integers(simd.load_partial(sums)), start);
            match integers.first_chunk_mut() {
                Some(integers) => simd.store_integers(sum, integers),
                None => {
                    let mut lanes = [0; LANES];
                    simd.store_integers(sum, &mut lanes);
                    integers.copy_from_slice(&lanes[..integers.len()]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{product::ByteType, window::WindowAxis};
    use proptest::prelude::*;
    use std::sync::Mutex;

    fn axis() -> impl Strategy<Value = WindowAxis> {
        (1_usize..40, 1_usize..4, 1_usize..4, 1_usize..3, 0_usize..3, 1_usize..40).prop_map(
            |(input, kernel, stride, dilation, pad_begin, output)| WindowAxis {
                input,
                output,
                kernel,
                stride,
                dilation,
                pad_begin,
                pad_end: 0,
            },
        )
    }

    /// The sum of each window, by definition.
    fn by_definition(convolution: &ByteDepthwise<'_>) -> Vec<i32> {
        let ConvolutionShape { batch, groups, group_outputs, ref axes, .. } = *convolution.shape;
        let (plane, positions, taps) = (window::inputs(axes), window::outputs(axes), window::taps(axes));
        let Zero { code, kind } = convolution.zero;
        let number = |code: u8| if kind.signed { i32::from(code.cast_signed()) } else { i32::from(code) };
        let split = |mut index: usize, extent: &dyn Fn(&WindowAxis) -> usize| {
            let mut places = vec![0; axes.len()];
            for (place, axis) in places.iter_mut().zip(axes).rev() {
                (*place, index) = (index % extent(axis), index / extent(axis));
            }
            places
        };
        let mut sums = Vec::new();
        for image in 0..batch {
            for channel in 0..groups * group_outputs {
                let x = &convolution.x[(image * groups + channel / group_outputs) * plane..][..plane];
                for position in 0..positions {
                    let mut sum = convolution.bias.map_or(0, |bias| bias[channel]);
                    for tap in 0..taps {
                        let (position, taps_of) =
                            (split(position, &|axis| axis.output), split(tap, &|axis| axis.kernel));
                        let mut place = Some(0);
                        for (axis, (&output, &tap)) in axes.iter().zip(position.iter().zip(&taps_of)) {
                            place = place.zip(axis.position(output, tap)).map(|(place, own)| place * axis.input + own);
                        }
                        let value = place.map_or(0, |place: usize| number(x[place]) - number(code));
                        sum = sum.wrapping_add(value * convolution.weight[channel * taps + tap] as i32);
                    }
                    sums.push(sum);
                }
            }
        }
        sums
    }

    #[test]
    fn the_most_taps_sum_exactly() {
        let axis = |input, output, kernel| WindowAxis { input, output, kernel, ..WindowAxis::POINT };
        let axes = vec![axis(1, 1, 1), axis(MOST_TAPS, 1, MOST_TAPS)];
        let shape = ConvolutionShape { batch: 1, groups: 1, group_inputs: 1, group_outputs: 1, axes };
        let wider = ConvolutionShape { axes: vec![axis(MOST_TAPS + 1, 1, MOST_TAPS + 1)], ..shape.clone() };
        assert!(ByteDepthwise::takes(&shape) && !ByteDepthwise::takes(&wider));
        let zero = Zero { code: 0, kind: ByteType { signed: false } };
        let (x, weight) = (vec![255; MOST_TAPS], vec![255.0; MOST_TAPS]);
        let convolution = ByteDepthwise { shape: &shape, x: &x, zero, weight: &weight, bias: None };
        let found = Mutex::new(0);
        convolution.finish(Instructions::best(), 1, &mut [0], |_, _, sums, _| *found.lock().unwrap() = sums[0]);
        assert_eq!(found.into_inner().unwrap(), 258 * 255 * 255);
    }

    proptest! {
        #[test]
        fn sums_are_those_of_the_definition(
            axes in prop::collection::vec(axis(), 1..3), batch in 1_usize..3, groups in 1_usize..20,
            group_outputs in 1_usize..3, signed: bool, code: u8, with_bias: bool, seed: u8,
        ) {
            let shape = ConvolutionShape { batch, groups, group_inputs: 1, group_outputs, axes };
            let channels = groups * group_outputs;
            let x: Vec<u8> = (0..shape.inputs()).map(|index| (index as u8).wrapping_mul(seed | 1) ^ seed).collect();
            let weight: Vec<f32> = (0..channels * window::taps(&shape.axes))
                .map(|index| f32::from((index as u8).wrapping_mul(37)) * if index % 2 == 0 { 1.0 } else { -1.0 })
                .collect();
            let bias: Vec<i32> = (0..channels).map(|channel| i32::MAX - 40 * channel as i32).collect();
            let convolution = ByteDepthwise {
                shape: &shape,
                x: &x,
                zero: Zero { code, kind: ByteType { signed } },
                weight: &weight,
                bias: with_bias.then_some(&bias),
            };
            let expected = by_definition(&convolution);
            for instructions in Instructions::available() {
                let mut out = vec![0; 4 * shape.outputs()];
                convolution.finish(instructions, 4, &mut out, |channel, place, sums, out| {
                    assert_eq!(place / sums.len() % channels, channel);
                    out.copy_from_slice(bytemuck::cast_slice(sums));
                });
                let found: Vec<i32> = out.as_chunks().0.iter().map(|&sum| i32::from_ne_bytes(sum)).collect();
                prop_assert_eq!(&found, &expected);
            }
        }
    }
}
