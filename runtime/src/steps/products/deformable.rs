//! Convolutions with displaced taps: the taps of all windows are interpolated side by side, which makes the right matrix of a
//! product with the filters. Of floats in f32; f64 by the reference.

use super::convolution::{bias, window};
use super::floats::{computes_in_f32, produce, widened};
use crate::steps::normalization::reduction::{loaded, reference};
use crate::steps::{Context, Kernel, KernelError, Operand};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{self, DeformableConvolution};
use ipuc_formats::tensor::{TensorError, element_count, filled};
use ipuc_formats::value::Value;
use ipuc_kernels::matrix::{Matrix, MatrixMut};
use ipuc_kernels::product::{Epilogue, PlainElements, PlainLayout, PlainMatrix, Start, plain_product};
use ipuc_kernels::sample::{Planes, Taps, sample};
use ipuc_kernels::simd::Instructions;
use ipuc_kernels::threads::{each, parts};
use ipuc_kernels::window::{self as windows, WindowAxis};

/// About how many operations it takes to find the neighbours of a tap.
const NEIGHBOURS_COST: usize = 32;

impl Kernel for DeformableConvolution {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let inputs = loaded(operands)?;
        let (x, w, offset) = (ops::tensor(&inputs, 0)?, ops::tensor(&inputs, 1)?, ops::tensor(&inputs, 3)?);
        let mask = ops::optional_tensor(&inputs, 4)?;
        let (plan, offset_groups) = self.plan(x, w, offset, mask)?;
        let same_type = [Some(offset), mask].into_iter().flatten().all(|tensor| tensor.dtype() == x.dtype());
        let volume = element_count(&x.shape()[2..]).filter(|&volume| volume < u32::MAX as usize);
        let (Some(volume), true) = (volume, same_type && computes_in_f32(x.dtype())) else {
            return reference(self, inputs, context);
        };
        let axes: Vec<WindowAxis> = plan.axes.iter().map(window).collect();
        let bias = match ops::optional_tensor(&inputs, 2)? {
            None => None,
            Some(given) => {
                bias(&mut [Operand::Absent, Operand::Absent, Operand::Value(given.clone().into())], plan.shape[1])?
            }
        };
        let (offset, mask) = (widened(offset)?, mask.map(widened).transpose()?);
        let displaced = Displaced {
            axes: &axes,
            volume,
            channels: x.shape()[1],
            offset_groups,
            offset: &offset,
            mask: mask.as_deref(),
        };
        let (values, weights) = (widened(x)?, widened(w)?);
        let result = produce(context, x.dtype(), &plan.shape, |out| {
            let size = plan.shape[1] * windows::outputs(&axes);
            if out.is_empty() {
                return Ok(());
            }
            for (image, out) in out.chunks_mut(size).enumerate() {
                let columns = displaced.columns(&values, image)?;
                multiply(plan.groups, &weights, &columns, plan.shape[1], out);
                if let Some(bias) = &bias {
                    let lines = out.chunks_mut(size / plan.shape[1]).zip(bias);
                    lines.for_each(|(line, bias)| line.iter_mut().for_each(|out| *out += bias));
                }
            }
            Ok(())
        })?;
        Ok(vec![result.into()])
    }
}

/// `out: [filters, windows]` of the filters and the taps of all windows, `columns: [channels, taps, windows]`.
fn multiply(groups: usize, weights: &[f32], columns: &[f32], filters: usize, out: &mut [f32]) {
    let (filters, positions) = (filters / groups, out.len() / filters);
    let inputs = columns.len() / positions / groups;
    for (group, out) in out.chunks_mut(filters * positions).enumerate() {
        let x = Matrix::new(&weights[group * filters * inputs..], filters, inputs);
        let columns = PlainElements::F32(&columns[group * inputs * positions..][..inputs * positions]);
        let columns = PlainMatrix::new(columns, PlainLayout::OutputsInner, inputs, positions);
        let out = MatrixMut::new(out, filters, positions);
        plain_product(Instructions::best(), x, columns, out, Start::Zero, Epilogue::default());
    }
}

/// Where taps lie.
struct Displaced<'a> {
    axes: &'a [WindowAxis],
    /// Elements of a plane.
    volume: usize,
    channels: usize,
    offset_groups: usize,
    /// `[n, groups, taps, axes, windows]`.
    offset: &'a [f32],
    /// `[n, groups, taps, windows]`.
    mask: Option<&'a [f32]>,
}

impl Displaced<'_> {
    /// The taps of all windows of an image: `[channels, taps, windows]`.
    fn columns(&self, x: &[f32], image: usize) -> Result<Vec<f32>, KernelError> {
        let samples = windows::taps(self.axes) * windows::outputs(self.axes);
        let shape = [self.channels, samples];
        let count = element_count(&shape);
        let mut columns = Vec::new();
        let no_memory = || TensorError::Memory { dtype: DType::F32, shape: shape.to_vec() };
        columns.try_reserve_exact(count.ok_or_else(no_memory)?).map_err(|_| no_memory())?;
        columns.resize(self.channels * samples, 0.0);
        let channels = self.channels / self.offset_groups;
        if self.volume == 0 || columns.is_empty() {
            return Ok(columns);
        }
        for (group, out) in columns.chunks_mut(channels * samples).enumerate() {
            let x = &x[(image * self.channels + group * channels) * self.volume..][..channels * self.volume];
            let planes = Planes::new(x, self.volume).ok_or_else(no_memory)?;
            sample(&planes, &self.taps(image * self.offset_groups + group)?, out);
        }
        Ok(columns)
    }

    /// The neighbours of the taps of a group of displacements.
    fn taps(&self, group: usize) -> Result<Taps<f32>, TensorError> {
        let (rank, positions) = (self.axes.len(), windows::outputs(self.axes));
        let (taps, per_sample) = (windows::taps(self.axes), 1 << rank);
        let size = (taps * positions).saturating_mul(per_sample);
        let mut found = Taps { per_sample, places: filled(self.volume as u32, size)?, weights: filled(0.0, size)? };
        let step = parts(taps * positions * NEIGHBOURS_COST, taps);
        let step = taps.div_ceil(step) * positions * per_sample;
        let tasks = found.places.chunks_mut(step).zip(found.weights.chunks_mut(step)).enumerate().collect();
        each(tasks, |(part, (places, weights)): (usize, (&mut [u32], &mut [f32]))| {
            let first = part * step / (positions * per_sample);
            let lines = places.chunks_mut(positions * per_sample).zip(weights.chunks_mut(positions * per_sample));
            for (tap, (places, weights)) in (first..).zip(lines) {
                let displacement = group * taps + tap;
                let offset = &self.offset[displacement * rank * positions..][..rank * positions];
                let mask = self.mask.map(|mask| &mask[displacement * positions..][..positions]);
                let each = places.chunks_exact_mut(per_sample).zip(weights.chunks_exact_mut(per_sample));
                for (position, (places, weights)) in each.enumerate() {
                    let factor = mask.map_or(1.0, |mask| mask[position]);
                    let moved = (0..rank).map(|axis| f64::from(offset[axis * positions + position]));
                    self.neighbours(tap, position, moved, factor, places, weights);
                }
            }
        });
        Ok(found)
    }

    /// The elements around a tap that counts `factor` times; those outside stay the zero place.
    fn neighbours(
        &self,
        tap: usize,
        position: usize,
        moved: impl DoubleEndedIterator<Item = f64>,
        factor: f32,
        places: &mut [u32],
        weights: &mut [f32],
    ) {
        let (mut tap, mut position, mut stride) = (tap, position, 1);
        places[0] = 0;
        weights[0] = factor;
        let zero = self.volume as u32;
        let mut count = 1;
        for (axis, moved) in self.axes.iter().rev().zip(moved.rev()) {
            let regular = axis.start(position % axis.output) + (tap % axis.kernel * axis.dilation) as isize;
            (tap, position) = (tap / axis.kernel, position / axis.output);
            let coordinate = regular as f64 + moved;
            let base = coordinate.floor();
            let fraction = coordinate - base;
            for (side, (at, weight)) in [(base + 1.0, fraction), (base, 1.0 - fraction)].into_iter().enumerate() {
                let inside = weight != 0.0 && (0.0..axis.input as f64).contains(&at);
                // The second side is written over the places that both began with.
                let begin = if side == 0 { count } else { 0 };
                for from in 0..count {
                    let outside = !inside || places[from] == zero;
                    places[begin + from] = if outside { zero } else { places[from] + (at as usize * stride) as u32 };
                    weights[begin + from] = if outside { 0.0 } else { weights[from] * weight as f32 };
                }
            }
            count *= 2;
            stride *= axis.input;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::testing::{check, random};
    use ipuc_formats::tensor::Tensor;

    fn scaled(tensor: Option<Tensor>, factor: f32) -> Option<Tensor> {
        let values: Vec<f32> = widened(&tensor?).unwrap().iter().map(|value| value * factor).collect();
        Some(Tensor::from_elements(&[values.len()], &values).unwrap())
    }

    #[test]
    fn displaced_taps_are_those_of_the_reference() {
        let plain =
            DeformableConvolution { strides: vec![], dilations: vec![], pads: vec![], groups: 1, offset_groups: 1 };
        let strided = DeformableConvolution {
            strides: vec![2, 1],
            dilations: vec![1, 2],
            pads: vec![1, 2, 0, 1],
            groups: 2,
            offset_groups: 2,
        };
        type Case<'a> = (&'a DeformableConvolution, &'a [usize], &'a [usize], &'a [usize], usize);
        let cases: [Case<'_>; 5] = [
            (&plain, &[2, 3, 6, 7], &[4, 3, 3, 3], &[4, 5], 1),
            (&strided, &[1, 36, 6, 7], &[4, 18, 2, 3], &[3, 6], 2),
            (&plain, &[1, 2, 9], &[3, 2, 4], &[6], 1),
            (&plain, &[1, 2, 4, 3, 5], &[3, 2, 2, 2, 2], &[3, 2, 4], 1),
            (&plain, &[0, 3, 6, 7], &[4, 3, 3, 3], &[4, 5], 1),
        ];
        for (operator, x, w, output, groups) in cases {
            let taps: usize = w[2..].iter().product();
            let displaced = |channels: usize| [&[x[0], groups * taps * channels], output].concat();
            for has_mask in [false, true] {
                let offset = displaced(output.len());
                let moved = scaled(random(DType::F32, &offset, 5), 3.0).map(|moved| moved.reshaped(&offset).unwrap());
                let mask = random(DType::F32, &displaced(1), 6).filter(|_| has_mask);
                let bias = random(DType::F32, &[w[0]], 7).filter(|_| !has_mask);
                let inputs = [random(DType::F32, x, 3), random(DType::F32, w, 4), bias, moved, mask];
                check(operator, &inputs, 1e-5);
            }
        }
    }
}
