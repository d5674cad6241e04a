//! Sums of overlapping blocks, of floats in f32; other types by the reference.

use crate::steps::normalization::reduction::{loaded, reference};
use crate::steps::products::convolution::window;
use crate::steps::products::floats::{computes_in_f32, produce, widened};
use crate::steps::{Context, Kernel, KernelError, Operand};
use ipuc_formats::ops::{self, Col2im, Col2imPlan};
use ipuc_formats::value::Value;
use ipuc_kernels::convolution::add_windows;

impl Kernel for Col2im {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let inputs = loaded(operands)?;
        let x = ops::tensor(&inputs, 0)?;
        if !computes_in_f32(x.dtype()) {
            return reference(self, inputs, context);
        }
        let Col2imPlan { axes, shape } = self.plan(&inputs)?;
        let axes: Vec<_> = axes.iter().map(window).collect();
        let values = widened(x)?;
        let result = produce(context, x.dtype(), &shape, |out| {
            match values.is_empty() || out.is_empty() {
                true => out.fill(0.0),
                false => add_windows(&axes, &values, out),
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
    use ipuc_formats::tensor::Tensor;

    #[test]
    fn blocks_add_up_as_in_the_reference() {
        type Case<'a> = (Col2im, &'a [usize], &'a [i64], &'a [i64]);
        let plain = || Col2im { strides: Vec::new(), dilations: Vec::new(), pads: Vec::new() };
        let strided = Col2im { strides: vec![2, 1], dilations: vec![1, 2], pads: vec![1, 0, 2, 1] };
        let cases: [Case<'_>; 7] = [
            (plain(), &[2, 3 * 6, 4 * 5], &[5, 7], &[2, 3]),
            (strided, &[1, 6, 4 * 6], &[6, 9], &[2, 3]),
            (plain(), &[1, 4, 3], &[6], &[4]),
            (plain(), &[1, 8, 2 * 3 * 4], &[3, 4, 5], &[2, 2, 2]),
            (plain(), &[0, 18, 20], &[5, 7], &[2, 3]),
            (Col2im { strides: Vec::new(), dilations: Vec::new(), pads: vec![1, 1] }, &[3, 40, 40], &[41], &[4]),
            (Col2im { strides: Vec::new(), dilations: Vec::new(), pads: vec![1, 1] }, &[1, 2, 1], &[0], &[2]),
        ];
        for (operator, x, image, block) in cases {
            for dtype in [DType::F32, DType::F16, DType::F64] {
                let sizes = |sizes| Some(Tensor::vector_i64(sizes));
                let tolerance = if dtype == DType::F16 { 1e-3 } else { 1e-6 };
                check(&operator, &[random(dtype, x, 5), sizes(image), sizes(block)], tolerance);
            }
        }
    }
}
