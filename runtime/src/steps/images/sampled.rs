//! Elements interpolated at computed positions, in f64 as by the reference, whose positions, weights and order they have. Types
//! that f32 does not hold run by their reference.

use crate::steps::normalization::reduction::{loaded, reference};
use crate::steps::products::floats::{computes_in_f32, produce, widened};
use crate::steps::{Context, Kernel, KernelError, Operand};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{self, GridSample, RoiAlign, RoiFunction};
use ipuc_formats::tensor::{TensorError, element_count, filled};
use ipuc_formats::value::Value;
use ipuc_kernels::sample::{Planes, RegionAxis, Taps, pool_region, sample};
use ipuc_kernels::threads::{chunks, each, parts};

/// About how many operations it takes to find the taps of a sample.
const TAPS_COST: usize = 64;

/// Samples of a region that are listed at most; the reference goes through more of them one by one.
const MOST_SAMPLES: usize = 1 << 16;

/// The product of extents, 0 where it does not fit: such a tensor has no elements.
fn volume(extents: &[usize]) -> usize {
    element_count(extents).unwrap_or(0)
}

/// Planes in the order of samples.
fn planes(x: &[f32], volume: usize) -> Result<Planes, KernelError> {
    let no_memory = || TensorError::Memory { dtype: DType::F32, shape: vec![x.len() / volume.max(1), volume] };
    Ok(Planes::new(x, volume).ok_or_else(no_memory)?)
}

impl Kernel for GridSample {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let inputs = loaded(operands)?;
        let (x, grid) = (ops::tensor(&inputs, 0)?, ops::tensor(&inputs, 1)?);
        if !computes_in_f32(x.dtype()) || !computes_in_f32(grid.dtype()) {
            return reference(self, inputs, context);
        }
        let shape = self.result_shape(x, grid)?;
        let image = &x.shape()[2..];
        let volume = self::volume(image);
        let Some(per_sample) = self.taps_per_sample(image.len()).filter(|_| volume < u32::MAX as usize) else {
            return reference(self, inputs, context);
        };
        let (values, positions) = (widened(x)?, widened(grid)?);
        let result = produce(context, x.dtype(), &shape, |out| {
            if out.is_empty() {
                return Ok(());
            }
            let samples = self::volume(&shape[2..]);
            let images = values.chunks_exact(shape[1] * volume).zip(out.chunks_exact_mut(shape[1] * samples));
            for ((x, out), grid) in images.zip(positions.chunks_exact(samples * image.len())) {
                sample(&planes(x, volume)?, &taps(self, image, per_sample, grid)?, out);
            }
            Ok(())
        })?;
        Ok(vec![result.into()])
    }
}

/// The taps of the samples of one image.
fn taps(operator: &GridSample, image: &[usize], per_sample: usize, grid: &[f32]) -> Result<Taps<f64>, TensorError> {
    let (axes, zero) = (image.len(), volume(image) as u32);
    let samples = grid.len() / axes;
    let count = samples.saturating_mul(per_sample);
    let mut taps = Taps { per_sample, places: filled(0, count)?, weights: filled(0.0, count)? };
    let size = samples.div_ceil(parts(samples * TAPS_COST, samples)).max(1);
    // Of one sample at a time of each part.
    let mut found = filled((None, 0.0), samples.div_ceil(size) * per_sample)?;
    let own = taps.places.chunks_mut(size * per_sample).zip(taps.weights.chunks_mut(size * per_sample));
    let tasks: Vec<_> = own.zip(found.chunks_mut(per_sample)).zip(grid.chunks(size * axes)).collect();
    each(tasks, |(((places, weights), found), grid)| {
        let mut position = vec![0.0; image.len()];
        for (sample, narrow) in grid.chunks_exact(axes).enumerate() {
            position.iter_mut().zip(narrow).for_each(|(wide, &narrow)| *wide = f64::from(narrow));
            operator.taps(image, &position, false, found);
            for (tap, &(place, weight)) in found.iter().enumerate() {
                places[sample * per_sample + tap] = place.map_or(zero, |place| place as u32);
                weights[sample * per_sample + tap] = weight;
            }
        }
    });
    Ok(taps)
}

impl Kernel for RoiAlign {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let inputs = loaded(operands)?;
        let (x, rois, indices) = (ops::tensor(&inputs, 0)?, ops::tensor(&inputs, 1)?, ops::integers(&inputs, 2)?);
        let shape = self.result_shape(x, rois, &indices)?;
        let &[batch, channels, height, width] = x.shape() else { return reference(self, inputs, context) };
        let index_fits = |&index: &i64| usize::try_from(index).is_ok_and(|index| index < batch);
        let usual = computes_in_f32(x.dtype()) && rois.dtype() == x.dtype() && indices.iter().all(index_fits);
        let bins = (shape[2].saturating_mul(shape[3]), channels.saturating_mul(height).saturating_mul(width));
        if !usual || bins.0.saturating_mul(bins.1) == 0 {
            return reference(self, inputs, context);
        }
        let (values, corners) = (widened(x)?, widened(rois)?);
        let mut regions = Vec::with_capacity(indices.len());
        for corners in corners.as_chunks::<4>().0 {
            let axes = self.region(&corners.map(f64::from))?;
            let samples = axes[0].samples.saturating_mul(axes[1].samples).max(1);
            if axes.iter().any(|axis| axis.samples == 0) || samples.saturating_mul(bins.0) > MOST_SAMPLES {
                return reference(self, inputs, context);
            }
            let [rows, columns] = axes;
            regions.push([neighbours(&rows, shape[2], height), neighbours(&columns, shape[3], width)]);
        }
        // Laid out anew they take up to 16 times the memory: only those that regions lie in.
        let image = |(index, x): (usize, &[f32])| {
            let is_used = indices.contains(&(index as i64));
            is_used.then(|| planes(x, height * width)).transpose()
        };
        let images: Vec<Option<Planes>> =
            values.chunks_exact(bins.1).enumerate().map(image).collect::<Result<_, _>>()?;
        let result = produce(context, x.dtype(), &shape, |out| {
            let size = channels * bins.0;
            let samples = |[rows, columns]: &[RegionAxis; 2]| rows.neighbours.len() * columns.neighbours.len();
            let operations: usize = regions.iter().map(samples).sum();
            let count = regions.len().div_ceil(parts(4 * channels * operations, regions.len())).max(1);
            chunks(out, count * size, |part, out| {
                for (region, out) in out.chunks_exact_mut(size).enumerate() {
                    let region = part * count + region;
                    let Some(image) = &images[indices[region] as usize] else { continue };
                    pool_region(image, width, &regions[region], self.function == RoiFunction::Max, out);
                }
            });
            Ok(())
        })?;
        Ok(vec![result.into()])
    }
}

/// Of each sample of each bin its neighbours: of [`MOST_SAMPLES`] at most.
fn neighbours(axis: &ops::RegionAxis, bins: usize, extent: usize) -> RegionAxis {
    let sample = |at: usize| axis.neighbours(at / axis.samples, at % axis.samples, extent);
    RegionAxis { samples: axis.samples, neighbours: (0..(bins * axis.samples).min(MOST_SAMPLES)).map(sample).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::testing::{check, random};
    use ipuc_formats::ops::{GridPadding, ResizeMode};
    use ipuc_formats::tensor::Tensor;
    use strum::VariantArray;

    #[test]
    fn grids_agree_with_their_references() {
        let shapes: [(&[usize], &[usize]); 4] = [
            (&[2, 3, 5, 7], &[2, 4, 6, 2]),
            (&[1, 17, 4, 1], &[1, 9, 11, 2]),
            (&[1, 2, 6], &[1, 70, 1]),
            (&[2, 1, 3, 4, 5], &[2, 2, 3, 3, 3]),
        ];
        for &mode in ResizeMode::VARIANTS {
            for &padding in GridPadding::VARIANTS {
                for (at, (image, grid)) in shapes.into_iter().enumerate() {
                    for dtype in [DType::F32, DType::F16, DType::F64] {
                        let operator = GridSample { mode, padding, align_corners: at % 2 == 0 };
                        // Positions of up to 1.5 lie outside, too.
                        let grid = random(DType::F32, grid, at as u32 + 3).map(|grid| scaled(&grid, 1.5));
                        let tolerance = if dtype == DType::F16 { 1e-3 } else { 0.0 };
                        check(&operator, &[random(dtype, image, 7), grid], tolerance);
                    }
                }
            }
        }
        let operator = GridSample { mode: ResizeMode::Linear, padding: GridPadding::Zeros, align_corners: false };
        check(&operator, &[random(DType::F32, &[0, 3, 5, 7], 1), random(DType::F32, &[0, 4, 6, 2], 1)], 0.0);
        check(&operator, &[random(DType::F32, &[1, 0, 5, 7], 1), random(DType::F32, &[1, 4, 6, 2], 1)], 0.0);
        check(&operator, &[random(DType::F32, &[1, 2, 5, 7], 1), random(DType::F32, &[1, 0, 6, 2], 1)], 0.0);
    }

    fn scaled(tensor: &Tensor, factor: f32) -> Tensor {
        let values: Vec<f32> = tensor.elements::<f32>().unwrap().iter().map(|value| value * factor).collect();
        Tensor::from_elements(tensor.shape(), &values).unwrap()
    }

    #[test]
    fn regions_agree_with_their_references() {
        let corners = [1.0f32, 2.0, 9.0, 11.0, -3.0, 0.5, 4.0, 30.0, 0.0, 0.0, 0.25, 0.25, 5.0, 5.0, 2.0, 2.0];
        for dtype in [DType::F32, DType::F16] {
            let converted: Vec<_> = corners.iter().map(|&corner| ops::scalar::Scalar::Float(corner.into())).collect();
            let rois = ops::scalar::from_scalars(dtype, &[4, 4], &converted).unwrap();
            let indices = Tensor::vector_i64(&[1, 0, 1, 0]);
            for &function in RoiFunction::VARIANTS {
                for (half_pixel, sampling_ratio, channels) in [(false, 2, 3), (true, 0, 17), (true, 3, 1)] {
                    let operator = RoiAlign {
                        function,
                        half_pixel,
                        output_height: 3,
                        output_width: 7,
                        sampling_ratio,
                        spatial_scale: 0.75,
                    };
                    let x = random(dtype, &[2, channels, 8, 10], 5);
                    let tolerance = if dtype == DType::F16 { 1e-3 } else { 0.0 };
                    check(&operator, &[x, Some(rois.clone()), Some(indices.clone())], tolerance);
                }
            }
        }
    }
}
