//! Running sums and products, side by side for all elements behind the axis.

use super::reduction::{loaded, reference};
use crate::steps::{Context, Kernel, KernelError, Operand};
use half::{bf16, f16};
use ipuc_formats::dtype::DType;
use ipuc_formats::element::Number;
use ipuc_formats::ops::{Cumulative, CumulativeFunction, tensor};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_kernels::threads::{chunks, parts};

impl Kernel for Cumulative {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let inputs = loaded(operands)?;
        let scan = Scan { operator: self, inputs: &inputs };
        let result = match tensor(&inputs, 0)?.dtype() {
            DType::F32 => scan.floats::<f32>(context)?,
            DType::F64 => scan.floats::<f64>(context)?,
            DType::F16 => scan.floats::<f16>(context)?,
            DType::BF16 => scan.floats::<bf16>(context)?,
            DType::I32 => scan.integers::<i32>(context, i64::from, |sum| sum as i32)?,
            DType::I64 => scan.integers::<i64>(context, |value| value, |sum| sum)?,
            _ => return reference(self, inputs, context),
        };
        Ok(vec![result.into()])
    }
}

struct Scan<'a> {
    operator: &'a Cumulative,
    inputs: &'a [Option<Value>],
}

impl Scan<'_> {
    /// In f64, each result rounded once, as the reference does.
    fn floats<T: Number>(&self, context: &mut Context<'_>) -> Result<Tensor, KernelError> {
        let (load, store) = (T::to_f64_lossy, T::from_f64_lossy);
        match self.operator.function {
            CumulativeFunction::Sum => self.run::<T, f64>(context, 0.0, |so_far, x| so_far + load(x), store),
            CumulativeFunction::Product => self.run::<T, f64>(context, 1.0, |so_far, x| so_far * load(x), store),
        }
    }

    /// In 64 bits, which wrap around as fewer do.
    fn integers<T: Number>(
        &self,
        context: &mut Context<'_>,
        load: impl Fn(T) -> i64 + Sync,
        store: impl Fn(i64) -> T + Sync,
    ) -> Result<Tensor, KernelError> {
        match self.operator.function {
            CumulativeFunction::Sum => self.run(context, 0, |so_far: i64, x| so_far.wrapping_add(load(x)), store),
            CumulativeFunction::Product => self.run(context, 1, |so_far: i64, x| so_far.wrapping_mul(load(x)), store),
        }
    }

    fn run<T: Number, A: Copy + Send + Sync>(
        &self,
        context: &mut Context<'_>,
        neutral: A,
        combine: impl Fn(A, T) -> A + Sync,
        store: impl Fn(A) -> T + Sync,
    ) -> Result<Tensor, KernelError> {
        let (data, axis) = (tensor(self.inputs, 0)?, self.operator.axis(self.inputs)?);
        let mut result = context.allocate(0, data.dtype(), data.shape())?;
        if data.count() == 0 {
            return Ok(result);
        }
        let length = data.shape()[axis];
        let inner: usize = data.shape()[axis + 1..].iter().product();
        let values = data.elements::<T>()?;
        let Cumulative { exclusive, reverse, .. } = *self.operator;
        let outer = values.len() / (length * inner);
        let each = outer.div_ceil(parts(values.len(), outer)).max(1);
        chunks(result.elements_mut::<T>()?, each * length * inner, |index, out| {
            let mut so_far = vec![neutral; inner];
            for (at, out) in out.chunks_exact_mut(length * inner).enumerate() {
                let values = &values[(index * each + at) * length * inner..][..length * inner];
                so_far.fill(neutral);
                for step in 0..length {
                    let place = if reverse { length - 1 - step } else { step } * inner;
                    let elements = values[place..][..inner].iter().zip(&mut out[place..][..inner]);
                    for ((&value, out), so_far) in elements.zip(&mut so_far) {
                        let next = combine(*so_far, value);
                        *out = store(if exclusive { *so_far } else { next });
                        *so_far = next;
                    }
                }
            }
        });
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::testing::{check, random};

    #[test]
    fn lines_along_every_axis_have_the_bits_of_the_reference() {
        for function in [CumulativeFunction::Sum, CumulativeFunction::Product] {
            for (exclusive, reverse) in [(false, false), (true, false), (false, true), (true, true)] {
                let operator = Cumulative { function, exclusive, reverse };
                for axis in [0i64, 1, -1] {
                    let along = || Some(Tensor::from_elements(&[], &[axis]).unwrap());
                    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
                        check(&operator, &[random(dtype, &[3, 70, 5], 3), along()], 0.0);
                        check(&operator, &[random(dtype, &[2, 0, 5], 3), along()], 0.0);
                    }
                    let large: Vec<i32> = (0..60i32).map(|at| (i32::MAX / 7).wrapping_mul(at % 11) - at).collect();
                    let wide: Vec<i64> = large.iter().map(|&value| i64::from(value) << 30).collect();
                    check(&operator, &[Some(Tensor::from_elements(&[3, 4, 5], &large).unwrap()), along()], 0.0);
                    check(&operator, &[Some(Tensor::from_elements(&[3, 4, 5], &wide).unwrap()), along()], 0.0);
                }
            }
        }
    }
}
