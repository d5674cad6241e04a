//! Tensors made from a few numbers: `Range`, `OneHot`, `EyeLike`.

use super::{count, integers, load, position, refer, tensor, with_words, words, words_mut};
use crate::steps::{Context, Kernel, KernelError, Operand};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{EyeLike, OneHot, Range, normalize_axis};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_kernels::threads::{chunks, parts};

impl Kernel for OneHot {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let inputs = load(operands)?;
        match one_hot(self, &inputs, context)? {
            Some(result) => Ok(vec![result.into()]),
            None => refer(self, inputs, context),
        }
    }
}

/// `None` where the reference has to look at indices, depth or values.
fn one_hot(
    operator: &OneHot,
    inputs: &[Option<Value>],
    context: &mut Context<'_>,
) -> Result<Option<Tensor>, KernelError> {
    let (Some(indices), Some(values)) = (tensor(inputs, 0), tensor(inputs, 2)) else { return Ok(None) };
    let (Some(chosen), Some(depth)) = (integers(inputs, 0), integers(inputs, 1)) else { return Ok(None) };
    let depth = match depth.as_slice() {
        &[depth] => usize::try_from(depth).ok(),
        _ => None,
    };
    let axis = normalize_axis(operator.axis, indices.rank() + 1).ok();
    let (Some(depth), Some(axis), [2]) = (depth, axis, values.shape()) else { return Ok(None) };
    if values.dtype() == DType::String || values.dtype().bits() < 8 {
        return Ok(None);
    }
    let mut shape = indices.shape().to_vec();
    shape.insert(axis, depth);
    let inner = count(&indices.shape()[axis..]);
    let mut result = context.allocate(0, values.dtype(), &shape)?;
    with_words!(values.dtype(), T => {
        let (off, on) = (words::<T>(values)[0], words::<T>(values)[1]);
        let out = words_mut::<T>(&mut result);
        let block = (depth * inner).max(1);
        let outer = out.len() / block;
        let each = outer.div_ceil(parts(out.len(), outer)).max(1);
        chunks(out, each * block, |index, out| {
            out.fill(off);
            for (at, out) in out.chunks_exact_mut(block).enumerate() {
                let chosen = &chosen[(index * each + at) * inner..][..inner];
                for (place, &class) in chosen.iter().enumerate() {
                    if let Some(class) = position(class, depth) {
                        out[class * inner + place] = on;
                    }
                }
            }
        });
    }, otherwise return Ok(None));
    Ok(Some(result))
}

impl Kernel for EyeLike {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let inputs = load(operands)?;
        let shape = tensor(&inputs, 0).map(|like| like.shape().to_vec()).unwrap_or_default();
        let (&[rows, columns], DType::F32) = (shape.as_slice(), self.dtype) else {
            return refer(self, inputs, context);
        };
        let mut result = context.allocate(0, self.dtype, &shape)?;
        let out = result.elements_mut::<f32>()?;
        out.fill(0.0);
        // The first place of the diagonal, if the matrix has it.
        let offset = usize::try_from(self.diagonal.unsigned_abs()).unwrap_or(usize::MAX);
        let (row, column) = if self.diagonal < 0 { (offset, 0) } else { (0, offset) };
        if row < rows && column < columns {
            let length = (rows - row).min(columns - column);
            let places = out[row * columns + column..].iter_mut().step_by(columns + 1);
            places.take(length).for_each(|place| *place = 1.0);
        }
        Ok(vec![result.into()])
    }
}

impl Kernel for Range {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let inputs = load(operands)?;
        let dtype = tensor(&inputs, 0).map_or(DType::String, Tensor::dtype);
        let count = self.count(&inputs)?;
        let mut result = match dtype {
            DType::F32 | DType::I32 | DType::I64 => context.allocate(0, dtype, &[count])?,
            _ => return refer(self, inputs, context),
        };
        let (Some(start), Some(delta)) = (tensor(&inputs, 0), tensor(&inputs, 2)) else {
            return refer(self, inputs, context);
        };
        match dtype {
            DType::F32 => {
                // As the reference: in f64, rounded once.
                let (start, delta) = (f64::from(start.elements::<f32>()?[0]), f64::from(delta.elements::<f32>()?[0]));
                let value = |at: usize| (start + delta * at as f64) as f32;
                result.elements_mut()?.iter_mut().enumerate().for_each(|(at, out)| *out = value(at));
            }
            DType::I32 => {
                let (start, delta) = (start.elements::<i32>()?[0], delta.elements::<i32>()?[0]);
                let value = |at: usize| start.wrapping_add(delta.wrapping_mul(at as i32));
                result.elements_mut()?.iter_mut().enumerate().for_each(|(at, out)| *out = value(at));
            }
            _ => {
                let (start, delta) = (start.elements::<i64>()?[0], delta.elements::<i64>()?[0]);
                let value = |at: usize| start.wrapping_add(delta.wrapping_mul(at as i64));
                result.elements_mut()?.iter_mut().enumerate().for_each(|(at, out)| *out = value(at));
            }
        }
        Ok(vec![result.into()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::testing::{check, random};

    fn vector(elements: &[i64]) -> Option<Tensor> {
        Some(Tensor::vector_i64(elements))
    }

    fn number<T: ipuc_formats::element::Element>(value: T) -> Option<Tensor> {
        Some(Tensor::from_elements(&[], &[value]).unwrap())
    }

    #[test]
    fn classes_along_every_axis() {
        let indices = Some(Tensor::from_elements(&[2, 3], &[0i64, -1, 4, 9, -6, 2]).unwrap());
        let narrow = Some(Tensor::from_elements(&[3], &[1i32, 0, 2]).unwrap());
        let floats = Some(Tensor::from_elements(&[2], &[1.9f32, 7.0]).unwrap());
        for values in [random(DType::F32, &[2], 5), random(DType::F16, &[2], 5), vector(&[3, 8])] {
            for axis in [-1, 0, 1] {
                check(&OneHot { axis }, &[indices.clone(), number(5i64), values.clone()], 0.0);
                check(&OneHot { axis }, &[narrow.clone(), number(3i32), values.clone()], 0.0);
                check(&OneHot { axis }, &[floats.clone(), number(3i64), values.clone()], 0.0);
                check(&OneHot { axis }, &[indices.clone(), number(0i64), values.clone()], 0.0);
            }
        }
        check(&OneHot { axis: -1 }, &[vector(&[0; 0]), number(4i64), vector(&[3, 8])], 0.0);
    }

    #[test]
    fn diagonals_of_matrices() {
        for diagonal in [0, 1, -2, 4, -5, 100, i64::MIN, i64::MAX] {
            for shape in [[5, 4], [3, 9], [0, 3], [1, 1]] {
                for dtype in [DType::F32, DType::I64] {
                    check(&EyeLike { dtype, diagonal }, &[random(DType::F32, &shape, 1)], 0.0);
                }
            }
        }
    }

    #[test]
    fn ranges_of_all_types() {
        for [start, limit, delta] in [[0, 10, 3], [10, 0, -4], [5, 5, 1], [7, 0, 2]] {
            check(&Range {}, &[number(start), number(limit), number(delta)], 0.0);
            let narrow = [start, limit, delta].map(|value: i64| number(value as i32));
            check(&Range {}, &narrow, 0.0);
            check(&Range {}, &[start, limit, delta].map(|value| number(value as f32 * 0.3)), 0.0);
            check(&Range {}, &[start, limit, delta].map(|value| number(value as f64 * 0.3)), 0.0);
        }
    }
}
