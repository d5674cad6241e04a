//! Normalizations over channels, over groups, over the last axes.
//!
//! f32, f16 and bf16 are computed in f32; f64 runs by its reference.

use super::reduction::{loaded, reference};
use crate::steps::floats::{changed, computed, computes, rounded, widened};
use crate::steps::{Context, Kernel, KernelError, Operand};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::broadcast::{broadcast_strides, strided_indices};
use ipuc_formats::ops::{
    BatchNormalization, GroupNormalization, LayerNormalization, LocalResponseNormalization, Softmax, SoftmaxFunction,
    normalize_axis,
};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::tensor::filled;
use ipuc_formats::value::Value;
use ipuc_kernels::elementwise::{functions, map_in_place};
use ipuc_kernels::layer_normalization::{RowNormalization, RowStatistics, normalize_rows};
use ipuc_kernels::normalize::{Line, affine_lines, standardize_blocks, standardize_sets};
use ipuc_kernels::simd::Instructions;
use ipuc_kernels::softmax::{SoftmaxKind, softmax_in_place};
use std::borrow::Cow;

/// The tensors behind operands; `None` where one is absent or no tensor.
fn tensors<const N: usize>(inputs: &[Option<Value>]) -> Option<[&Tensor; N]> {
    let found: Option<Vec<&Tensor>> =
        inputs.get(..N)?.iter().map(|input| input.as_ref().and_then(Value::as_tensor)).collect();
    found?.try_into().ok()
}

impl Kernel for Softmax {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let mut inputs = loaded(operands)?;
        let Some([data]) = tensors(&inputs) else { return reference(self, inputs, context) };
        let axis = normalize_axis(self.axis, data.rank())?;
        let end = if self.trailing { data.rank() } else { axis + 1 };
        let length: usize = data.shape()[axis..end].iter().product();
        let inner: usize = data.shape()[end..].iter().product();
        let dtype = data.dtype();
        let kind = match self.function {
            SoftmaxFunction::Softmax if dtype == DType::F32 || (computes(dtype) && inner == 1) => SoftmaxKind::Softmax,
            SoftmaxFunction::LogSoftmax if dtype == DType::F32 => SoftmaxKind::LogSoftmax,
            SoftmaxFunction::Softmax | SoftmaxFunction::LogSoftmax | SoftmaxFunction::Hardmax => {
                return reference(self, inputs, context);
            }
        };
        let Some(Some(Value::Tensor(data))) = inputs.first_mut().map(Option::take) else {
            return reference(self, inputs, context);
        };
        let result = changed(context, 0, data, |values| match dtype {
            DType::F32 => softmax_in_place(Instructions::best(), kind, values, length, inner),
            _ => values.chunks_mut(length.max(1)).for_each(|row| softmax_rounded(dtype, row)),
        })?;
        Ok(vec![result.into()])
    }
}

/// A softmax of 16-bit values, rounded after each operator of the function body but the last.
pub(super) fn softmax_rounded(dtype: DType, row: &mut [f32]) {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, |a, b| if b > a || b.is_nan() { b } else { a });
    row.iter_mut().for_each(|value| *value -= largest);
    rounded(dtype, row);
    map_in_place(Instructions::best(), functions::Exponential {}, row);
    rounded(dtype, row);
    let sum: f32 = row.iter().sum();
    let mut narrow = [sum];
    rounded(dtype, &mut narrow);
    // A sum beyond the narrow type is kept as it is.
    let sum = if narrow[0].is_finite() { narrow[0] } else { sum };
    row.iter_mut().for_each(|value| *value /= sum);
}

/// The elements of a scale or bias for one row of `extents`, where it is the same for all rows.
fn row_vector<'a>(tensor: &'a Tensor, extents: &[usize]) -> Result<Option<Cow<'a, [f32]>>, KernelError> {
    let ones = tensor.rank().saturating_sub(extents.len());
    let (outer, own) = tensor.shape().split_at(ones);
    let fits = own.iter().rev().zip(extents.iter().rev()).all(|(own, wanted)| own == wanted || *own == 1);
    if !fits || outer.iter().any(|extent| *extent != 1) || !computes(tensor.dtype()) {
        return Ok(None);
    }
    let values = widened(tensor)?;
    if own == extents {
        return Ok(Some(values));
    }
    let strides = broadcast_strides(own, extents);
    Ok(Some(strided_indices(extents, &strides).map(|index| values[index]).collect::<Vec<_>>().into()))
}

impl LayerNormalizationRows<'_> {
    /// Rows in the type of the data: statistics in f32, then scale and bias, rounded where the type is narrow.
    fn run(&self, out: &mut [f32], statistics: &mut [RowStatistics]) {
        let Self { operator, values, width, data_type, result_type, scale, bias } = *self;
        let exact = data_type == DType::F32 && result_type == DType::F32;
        let normalization = RowNormalization {
            center: operator.center,
            epsilon: operator.epsilon,
            scale: scale.filter(|_| exact),
            bias: bias.filter(|_| exact),
        };
        normalize_rows(Instructions::best(), normalization, width, values, out, statistics);
        if exact {
            return;
        }
        rounded(data_type, out);
        for row in out.chunks_mut(width.max(1)) {
            if let Some(scale) = scale {
                row.iter_mut().zip(scale).for_each(|(value, scale)| *value *= scale);
                rounded(result_type, row);
            }
            if let Some(bias) = bias {
                row.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
            }
        }
    }
}

/// A layer normalization over rows of `width` elements.
#[derive(Clone, Copy)]
struct LayerNormalizationRows<'a> {
    operator: &'a LayerNormalization,
    values: &'a [f32],
    width: usize,
    data_type: DType,
    result_type: DType,
    scale: Option<&'a [f32]>,
    bias: Option<&'a [f32]>,
}

impl Kernel for LayerNormalization {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let inputs = loaded(operands)?;
        let tensor = |index: usize| inputs.get(index).and_then(Option::as_ref).and_then(Value::as_tensor);
        let Some(data) = tensor(0) else { return reference(self, inputs, context) };
        let axis = normalize_axis(self.axis, data.rank())?;
        let extents = &data.shape()[axis..];
        let scale = tensor(1).map(|scale| row_vector(scale, extents)).transpose()?;
        let bias = tensor(2).map(|bias| row_vector(bias, extents)).transpose()?;
        let known = |vector: &Option<Option<Cow<'_, [f32]>>>| !matches!(vector, Some(None));
        let result_type = tensor(1).map_or(data.dtype(), Tensor::dtype);
        let same = !self.center || result_type == data.dtype();
        let bias_fits = tensor(2).is_none_or(|bias| bias.dtype() == result_type);
        let types = [data.dtype(), result_type, self.stash];
        if data.count() == 0
            || !types.into_iter().all(computes)
            || !known(&scale)
            || !known(&bias)
            || !same
            || !bias_fits
        {
            return reference(self, inputs, context);
        }
        let width: usize = extents.iter().product();
        let mut statistics = filled(RowStatistics::default(), data.count() / width)?;
        let rows = LayerNormalizationRows {
            operator: self,
            values: &widened(data)?,
            width,
            data_type: data.dtype(),
            result_type,
            scale: scale.as_ref().and_then(Option::as_deref),
            bias: bias.as_ref().and_then(Option::as_deref),
        };
        let result = computed(context, 0, result_type, data.shape(), |out| {
            rows.run(out, &mut statistics);
            Ok(())
        })?;
        let mut results = vec![Value::from(result)];
        if self.center {
            let shape: Vec<usize> = (0..data.rank()).map(|at| if at < axis { data.shape()[at] } else { 1 }).collect();
            for (index, value) in
                [|row: &RowStatistics| row.mean, |row: &RowStatistics| row.inverse_deviation].into_iter().enumerate()
            {
                let result = computed(context, index + 1, self.stash, &shape, |out| {
                    out.iter_mut().zip(&statistics).for_each(|(out, row)| *out = value(row));
                    Ok(())
                })?;
                results.push(result.into());
            }
        }
        Ok(results)
    }
}

impl Kernel for BatchNormalization {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let mut inputs = loaded(operands)?;
        let Some([data, scale, bias, mean, variance]) = tensors(&inputs) else {
            return reference(self, inputs, context);
        };
        let all = [data, scale, bias, mean, variance];
        let channels = data.shape().get(1).copied();
        let per_channel =
            all[1..].iter().all(|tensor| Some(tensor.shape()) == channels.as_ref().map(std::slice::from_ref));
        if self.training || self.per_element || !per_channel || all.iter().any(|tensor| !computes(tensor.dtype())) {
            return reference(self, inputs, context);
        }
        let (scale, bias, mean, variance) = (widened(scale)?, widened(bias)?, widened(mean)?, widened(variance)?);
        let lines: Vec<Line> = (0..scale.len())
            .map(|channel| {
                let deviation = (f64::from(variance[channel]) + f64::from(self.epsilon)).sqrt();
                let factor = (f64::from(scale[channel]) / deviation) as f32;
                Line { mean: mean[channel], factor, bias: bias[channel] }
            })
            .collect();
        drop((scale, bias, mean, variance));
        let Some(Some(Value::Tensor(data))) = inputs.first_mut().map(Option::take) else {
            return reference(self, inputs, context);
        };
        let inner: usize = data.shape()[2..].iter().product();
        let result = changed(context, 0, data, |values| {
            affine_lines(Instructions::best(), values, inner, |line| lines[line % lines.len()]);
        })?;
        Ok(vec![result.into()])
    }
}

impl Kernel for GroupNormalization {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let mut inputs = loaded(operands)?;
        let Some([data, scale, bias]) = tensors(&inputs) else { return reference(self, inputs, context) };
        let Ok((channels, inner)) = self.extents(data.shape()) else { return reference(self, inputs, context) };
        let groups = self.groups.map_or(channels, |groups| usize::try_from(groups).unwrap_or(0));
        let per_group = self.scale_per_group && self.groups.is_some();
        let parameters = if per_group { groups } else { channels };
        let fits = data.dtype() == DType::F32
            && [scale, bias].iter().all(|tensor| tensor.shape() == [parameters] && tensor.dtype() == data.dtype());
        if !fits || data.count() == 0 || groups == 0 || channels % groups != 0 {
            return reference(self, inputs, context);
        }
        let each = channels / groups;
        if self.in_blocks && self.group_in_blocks(channels).is_none() {
            return reference(self, inputs, context);
        }
        let (scale, bias) = (widened(scale)?.into_owned(), widened(bias)?.into_owned());
        let Some(Some(Value::Tensor(data))) = inputs.first_mut().map(Option::take) else {
            return reference(self, inputs, context);
        };
        let epsilon = self.epsilon;
        // Channels of all instances are counted through.
        let line = |channel: usize, mean: f32, variance: f32| {
            let parameter = if per_group { channel % channels / each } else { channel % channels };
            let factor = scale[parameter] / (variance + epsilon).sqrt();
            Line { mean, factor, bias: bias[parameter] }
        };
        let result = changed(context, 0, data, |values| match self.in_blocks {
            true => standardize_blocks(Instructions::best(), values, inner, each, line),
            false => {
                standardize_sets(Instructions::best(), values, each * inner, inner, |set, within, mean, variance| {
                    line(set * each + within, mean, variance)
                })
            }
        })?;
        Ok(vec![result.into()])
    }
}

impl Kernel for LocalResponseNormalization {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let inputs = loaded(operands)?;
        let Some([data]) = tensors(&inputs) else { return reference(self, inputs, context) };
        if !computes(data.dtype()) || data.rank() < 2 || data.count() == 0 {
            return reference(self, inputs, context);
        }
        let (below, above) = self.reach()?;
        let channels = data.shape()[1];
        let inner: usize = data.shape()[2..].iter().product();
        let values = widened(data)?;
        let result = computed(context, 0, data.dtype(), data.shape(), |out| {
            let mut sums = vec![0.0f32; inner];
            for (line, out) in out.chunks_mut(inner).enumerate() {
                let channel = line % channels;
                let first = line - channel.min(below);
                let last = line + above.min(channels - 1 - channel);
                sums.fill(0.0);
                for values in values[first * inner..(last + 1) * inner].chunks(inner) {
                    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value * value);
                }
                let own = &values[line * inner..(line + 1) * inner];
                for ((out, sum), value) in out.iter_mut().zip(&sums).zip(own) {
                    *out = value / (self.bias + self.alpha / self.size as f32 * sum).powf(self.beta);
                }
            }
            Ok(())
        })?;
        Ok(vec![result.into()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::testing::{check, random};
    use strum::VariantArray;

    fn positive(shape: &[usize], seed: u32) -> Option<Tensor> {
        let mut tensor = random(DType::F32, shape, seed)?;
        tensor.elements_mut::<f32>().ok()?.iter_mut().for_each(|value| *value = value.abs() + 0.1);
        Some(tensor)
    }

    #[test]
    fn batch_normalization_agrees_with_its_reference() {
        for shape in [vec![2, 3, 5, 7], vec![4, 3], vec![2, 3, 0]] {
            for training in [false, true] {
                if training && shape.contains(&0) {
                    continue;
                }
                let operator = BatchNormalization { epsilon: 1e-5, momentum: 0.9, training, per_element: false };
                let c = |seed| random(DType::F32, &[3], seed);
                let inputs = [random(DType::F32, &shape, 1), c(2), c(3), c(4), positive(&[3], 5)];
                check(&operator, &inputs, 1e-5);
            }
        }
    }

    #[test]
    fn group_normalization_agrees_with_its_reference() {
        for (groups, scale_per_group) in [(None, false), (Some(2), false), (Some(2), true), (Some(1), false)] {
            let operator =
                GroupNormalization { groups, epsilon: 1e-5, scale_per_group, stash: DType::F32, in_blocks: false };
            for dtype in [DType::F32, DType::BF16] {
                let parameters = if scale_per_group { 2 } else { 6 };
                let parameter = |seed| random(dtype, &[parameters], seed);
                let inputs = [random(dtype, &[2, 6, 50], 1), parameter(2), parameter(3)];
                check(&operator, &inputs, if dtype == DType::F32 { 1e-5 } else { 1e-2 });
            }
        }
    }

    #[test]
    fn group_normalization_of_blocks_agrees_with_its_reference() {
        let per_channel = [None, Some(8), Some(6), Some(2), Some(1)].map(|groups| (groups, false));
        for (groups, scale_per_group) in per_channel.into_iter().chain([(Some(12), true), (Some(3), true)]) {
            let operator =
                GroupNormalization { groups, epsilon: 1e-5, scale_per_group, stash: DType::F32, in_blocks: true };
            let parameters = groups.filter(|_| scale_per_group).unwrap_or(24) as usize;
            let parameter = |seed| random(DType::F32, &[parameters], seed);
            for rows in [5, 0] {
                check(&operator, &[random(DType::F32, &[2, 3, rows, 7, 8], 1), parameter(2), parameter(3)], 1e-5);
            }
        }
    }

    #[test]
    fn local_response_normalization_agrees_with_its_reference() {
        for size in [1, 2, 3, 9] {
            let operator = LocalResponseNormalization { size, alpha: 0.5, beta: 0.75, bias: 1.0 };
            check(&operator, &[random(DType::F32, &[2, 5, 3, 4], 1)], 1e-5);
        }
    }

    #[test]
    fn softmax_agrees_with_its_reference() {
        for &function in SoftmaxFunction::VARIANTS {
            for (dtype, tolerance) in [(DType::F32, 1e-6), (DType::F64, 0.0), (DType::F16, 1e-3), (DType::BF16, 1e-2)] {
                for (axis, trailing) in [(-1, false), (1, false), (1, true), (0, true)] {
                    let operator = Softmax { function, axis, trailing };
                    check(&operator, &[random(dtype, &[3, 70, 5], 1)], tolerance);
                }
            }
        }
    }

    #[test]
    fn layer_normalization_agrees_with_its_reference() {
        let shapes: [(&[usize], &[usize]); 5] =
            [(&[6], &[6]), (&[5, 6], &[1]), (&[5, 1], &[5, 6]), (&[1, 6], &[]), (&[3, 1, 1], &[6])];
        for (center, dtype, tolerance) in
            [(true, DType::F32, 1e-5), (false, DType::F32, 1e-5), (true, DType::F16, 2e-3), (false, DType::BF16, 1e-2)]
        {
            for axis in [-1, 1] {
                for (scale, bias) in shapes {
                    let operator = LayerNormalization { axis, epsilon: 1e-5, center, stash: DType::F32 };
                    let inputs = [random(dtype, &[3, 5, 6], 1), random(dtype, scale, 2), random(dtype, bias, 3)];
                    check(&operator, &inputs, tolerance);
                }
            }
        }
        let mixed = LayerNormalization { axis: -1, epsilon: 1e-5, center: false, stash: DType::F32 };
        check(&mixed, &[random(DType::F16, &[3, 6], 1), random(DType::F32, &[6], 2)], 1e-3);
    }
}
