//! Pools: of floats in f32, and the largest of integers of 8 bits; indices of these integers, and f64, by the reference.

use crate::steps::products::convolution::{dtype, window};
use crate::steps::products::floats::{computes_in_f32, produce, widened};
use crate::steps::{Context, Kernel, KernelError, Operand, run_reference, tensor_operand};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{Pool, PoolFunction, TypeError};
use ipuc_formats::value::Value;
use ipuc_kernels::pool::{PoolKind, largest_bytes, largest_with_places, pool};

impl Kernel for Pool {
    fn run(&self, mut operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let bytes =
            self.function == PoolFunction::Max && matches!(dtype(operands.first()), Some(DType::I8 | DType::U8));
        let indexes = self.indices && (self.column_major || bytes);
        if indexes || !(bytes || dtype(operands.first()).is_some_and(computes_in_f32)) {
            return run_reference(self, operands, context);
        }
        let x = tensor_operand(&mut operands, 0)?;
        if x.rank() < 2 {
            return Err(TypeError::Rank { operand: 0, expected: "at least 2".to_string(), found: x.rank() }.into());
        }
        let axes: Vec<_> = self.resolve(&x.shape()[2..])?.iter().map(window).collect();
        let mut shape = x.shape()[..2].to_vec();
        shape.extend(axes.iter().map(|axis| axis.output));
        let kind = match self.function {
            PoolFunction::Max => PoolKind::Max,
            PoolFunction::Average if self.count_include_pad => PoolKind::PaddedAverage,
            PoolFunction::Average => PoolKind::Average,
            PoolFunction::Norm => PoolKind::Norm(self.exponent.unwrap_or(2) as f32),
        };
        if bytes {
            let mut result = context.allocate(0, x.dtype(), &shape)?;
            let is_done = match x.dtype() {
                DType::I8 => largest_bytes::<i8>(&axes, x.elements()?, result.elements_mut()?),
                _ => largest_bytes::<u8>(&axes, x.elements()?, result.elements_mut()?),
            };
            if !is_done {
                return run_reference(self, vec![Operand::Value(x.into())], context);
            }
            return Ok(vec![result.into()]);
        }
        let values = widened(&x)?;
        if self.indices {
            if axes.is_empty() || kind != PoolKind::Max {
                return run_reference(self, vec![Operand::Value(x.clone().into())], context);
            }
            let mut places = context.allocate(1, DType::I64, &shape)?;
            let at = places.elements_mut::<i64>()?;
            let result = produce(context, x.dtype(), &shape, |out| {
                largest_with_places(&axes, &values, out, at);
                Ok(())
            })?;
            return Ok(vec![result.into(), places.into()]);
        }
        let result = produce(context, x.dtype(), &shape, |out| {
            pool(kind, &axes, shape.first().copied().unwrap_or(1), &values, out);
            Ok(())
        })?;
        Ok(vec![result.into()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::testing::{check, random};
    use ipuc_formats::tensor::Tensor;

    /// Blocks of channels: the last spatial axis is 8 channels side by side.
    #[test]
    fn pools_over_blocks_of_channels() {
        let pool = |function, kernel: [i64; 2], strides: [i64; 2], dilations: [i64; 2], pads: [i64; 4]| Pool {
            kernel: [&kernel[..], &[1]].concat(),
            strides: [&strides[..], &[1]].concat(),
            dilations: [&dilations[..], &[1]].concat(),
            pads: vec![pads[0], pads[1], 0, pads[2], pads[3], 0],
            ..Pool::global(function)
        };
        for function in [PoolFunction::Max, PoolFunction::Average] {
            let operators = [
                pool(function, [3, 3], [2, 2], [1, 1], [1; 4]),
                pool(function, [2, 3], [1, 3], [1, 1], [0, 2, 1, 0]),
                pool(function, [3, 2], [1, 2], [2, 3], [2, 0, 1, 3]),
                pool(function, [1, 1], [2, 3], [1, 1], [0; 4]),
                pool(function, [9, 7], [1, 1], [1, 1], [0; 4]),
                // Longer than the image, most of it padding.
                pool(function, [40, 2], [1, 2], [1, 1], [39, 0, 0, 1]),
            ];
            for operator in operators {
                for (ceil_mode, count_include_pad) in [(false, false), (false, true), (true, false), (true, true)] {
                    let operator = Pool { ceil_mode, count_include_pad, ..operator.clone() };
                    for (batch, blocks) in [(1, 1), (1, 2), (3, 1), (1, 4), (3, 3)] {
                        let shape = [batch, blocks, 9, 7, 8];
                        let tolerance = if function == PoolFunction::Max { 0.0 } else { 1e-6 };
                        check(&operator, &[random(DType::F32, &shape, 3)], tolerance);
                    }
                }
            }
            let row = Pool { kernel: vec![3, 1], pads: vec![1, 0, 1, 0], ..Pool::global(function) };
            check(&row, &[random(DType::F32, &[1, 3, 11, 8], 4)], 1e-6);
            // NaN and infinities, then what no block is.
            let mut values = vec![f32::NEG_INFINITY; 3 * 4 * 8];
            values.iter_mut().step_by(5).for_each(|value| *value = f32::NAN);
            values.iter_mut().skip(1).step_by(7).for_each(|value| *value = 1.5);
            check(&row, &[Some(Tensor::from_elements(&[1, 3, 4, 8], &values).unwrap())], 0.0);
            check(&row, &[random(DType::F32, &[1, 3, 11, 7], 4)], 1e-6);
            check(&row, &[random(DType::F16, &[1, 3, 11, 8], 4)], 1e-3);
        }
    }

    #[test]
    fn pools_of_padding_alone() {
        for function in [PoolFunction::Max, PoolFunction::Average, PoolFunction::Norm] {
            let pool = |kernel: &[i64], pads: &[i64]| Pool {
                kernel: kernel.to_vec(),
                pads: pads.to_vec(),
                ..Pool::global(function)
            };
            check(&pool(&[2], &[1, 1]), &[random(DType::F32, &[1, 3, 0], 3)], 0.0);
            check(&pool(&[2, 1], &[1, 0, 1, 0]), &[random(DType::F32, &[1, 3, 0, 8], 3)], 0.0);
        }
    }

    #[test]
    fn largest_elements_and_where_they_are() {
        let pool = |kernel: &[i64], strides: &[i64], dilations: &[i64], pads: &[i64]| Pool {
            kernel: kernel.to_vec(),
            strides: strides.to_vec(),
            dilations: dilations.to_vec(),
            pads: pads.to_vec(),
            indices: true,
            ..Pool::global(PoolFunction::Max)
        };
        // Of few different values many are equal.
        let coarse = |shape: &[usize]| {
            let mut values: Vec<f32> = (0..shape.iter().product()).map(|at: usize| (at * 7919 % 5) as f32).collect();
            values.iter_mut().step_by(11).for_each(|value| *value = f32::NEG_INFINITY);
            values.iter_mut().step_by(17).for_each(|value| *value = f32::NAN);
            Some(Tensor::from_elements(shape, &values).unwrap())
        };
        let cases: [(Pool, &[usize]); 5] = [
            (pool(&[3, 3], &[2, 2], &[], &[1, 1, 1, 1]), &[2, 3, 9, 11]),
            (pool(&[2, 3], &[1, 3], &[2, 1], &[0, 2, 1, 0]), &[1, 2, 8, 20]),
            (pool(&[4], &[3], &[2], &[3, 0]), &[2, 2, 17]),
            (pool(&[2, 2, 2], &[2, 1, 2], &[], &[]), &[1, 2, 5, 4, 6]),
            (Pool { indices: true, ..Pool::global(PoolFunction::Max) }, &[2, 3, 5, 7]),
        ];
        for (operator, shape) in cases {
            check(&operator, &[coarse(shape)], 0.0);
            for dtype in [DType::F32, DType::F16, DType::F64] {
                check(&operator, &[random(dtype, shape, 3)], 0.0);
            }
            check(&Pool { column_major: true, ..operator }, &[random(DType::F32, shape, 3)], 0.0);
        }
    }
}
