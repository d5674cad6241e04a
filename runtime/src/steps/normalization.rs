//! Normalizations over channels, over groups, over the last axes.
//!
//! f32, f16 and bf16 are computed in f32; f64 runs by its reference.

use super::floats::{changed, computed, computes, widened};
use super::reduction::{loaded, reference};
use crate::kernels::normalize::{Line, affine_lines, standardize_sets};
use crate::kernels::simd::Instructions;
use crate::steps::{Context, Kernel, KernelError, Operand};
use ipuc_formats::ops::{
    BatchNormalization, GroupNormalization, LayerNormalization, LocalResponseNormalization, Softmax,
};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;

impl Kernel for Softmax {}
impl Kernel for LayerNormalization {}

/// The tensors behind operands; `None` where one is absent or no tensor.
fn tensors<const N: usize>(inputs: &[Option<Value>]) -> Option<[&Tensor; N]> {
    let found: Option<Vec<&Tensor>> =
        inputs.get(..N)?.iter().map(|input| input.as_ref().and_then(Value::as_tensor)).collect();
    found?.try_into().ok()
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
        let channels = data.shape().get(1).copied().unwrap_or(0);
        let groups = self.groups.map_or(channels, |groups| usize::try_from(groups).unwrap_or(0));
        let per_group = self.scale_per_group && self.groups.is_some();
        let parameters = if per_group { groups } else { channels };
        let fits = data.dtype() == ipuc_formats::dtype::DType::F32
            && [scale, bias].iter().all(|tensor| tensor.shape() == [parameters] && tensor.dtype() == data.dtype());
        if !fits || data.count() == 0 || groups == 0 || channels % groups != 0 {
            return reference(self, inputs, context);
        }
        let (scale, bias) = (widened(scale)?.into_owned(), widened(bias)?.into_owned());
        let Some(Some(Value::Tensor(data))) = inputs.first_mut().map(Option::take) else {
            return reference(self, inputs, context);
        };
        let inner: usize = data.shape()[2..].iter().product();
        let each = channels / groups;
        let epsilon = self.epsilon;
        let result = changed(context, 0, data, |values| {
            let line = |set: usize, within: usize, mean: f32, variance: f32| {
                let parameter = if per_group { set % groups } else { set % groups * each + within };
                let factor = scale[parameter] / (variance + epsilon).sqrt();
                Line { mean, factor, bias: bias[parameter] }
            };
            standardize_sets(Instructions::best(), values, each * inner, inner, line);
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
    use ipuc_formats::dtype::DType;

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
            let stash = DType::F32;
            let operator = GroupNormalization { groups, epsilon: 1e-5, scale_per_group, stash };
            for dtype in [DType::F32, DType::BF16] {
                let parameters = if scale_per_group { 2 } else { 6 };
                let parameter = |seed| random(dtype, &[parameters], seed);
                let inputs = [random(dtype, &[2, 6, 50], 1), parameter(2), parameter(3)];
                check(&operator, &inputs, if dtype == DType::F32 { 1e-5 } else { 1e-2 });
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
}
