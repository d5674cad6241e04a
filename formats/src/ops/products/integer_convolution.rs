//! Convolutions of quantized integers: ONNX `ConvInteger` (opset 10) and the sums of `QLinearConv` (10).
//!
//! Zero points are subtracted first, so that padding is the zero point. Sums of integers of 8 bits wrap in 32 bits, as the
//! operator page allows; the program begins with them. Sums of wider ones, and of decoded codes, are as those of
//! `integer_matmul`.

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::Fact;
use crate::ops::products::accumulate::{Accumulator, accumulators, require_same_type};
use crate::ops::products::convolution::{
    ConvolutionPlan, Grouped, add_bias, bias_additions, filter_matrix, require_vector,
};
use crate::ops::products::integer_matmul::{centring, rounded_sums, sums_of, sums_type};
use crate::ops::windows::{AutoPad, Windows};
use crate::ops::{
    Arithmetic, Computes, InferContext, Operator, Picked, Product, Program, ReferenceContext, ReferenceError, Space,
    StepFacts, TypeError, VectorClass, WeightMatrix, optional, optional_tensor, tensor, tensor_operand,
};
use crate::tensor::Tensor;
use crate::value::Value;
use std::ops::SubAssign;

attributes! {
    /// `(x - x_zero_point) * (w - w_zero_point) + bias`: `x: [n, c, d..]`, `w: [m, c / groups, k..]` (i8, u8, i16 or u16 each;
    /// `w` may be f32, decoded codes without a zero point), optional zero points `[]` and `[]` or `[m]`, optional bias `[m]`
    /// (i32; of products of 8 bits only), to `[n, m, o..]` of i32 or what the program gives, which all but products of 8 bits
    /// have; further operands are the program's.
    pub struct IntegerConvolution revision 1 {
        /// Padding that follows from the extents; explicit where absent.
        1 since 1 => auto_pad: Option<AutoPad>,
        /// Distance of windows along each spatial axis; 1 where empty.
        2 since 1 => strides: Vec<i64>,
        /// Distance of taps along each spatial axis; 1 where empty.
        3 since 1 => dilations: Vec<i64>,
        /// Zero points before each spatial axis, then after each; 0 where empty.
        4 since 1 => pads: Vec<i64>,
        /// Channels and filters are in this many groups, which do not mix.
        5 since 1 => groups: i64,
        /// What follows on each element of the result.
        6 since 1 => program: Program,
    }
}

const BIAS: usize = 4;

impl IntegerConvolution {
    /// The walk over operands of these shapes.
    ///
    /// # Errors
    /// [`ReferenceError`] where they do not fit.
    pub fn resolve(&self, x: &[usize], w: &[usize]) -> Result<ConvolutionPlan, ReferenceError> {
        self.grouped().resolve(x, w)
    }

    fn grouped(&self) -> Grouped<'_> {
        let windows = Windows {
            auto_pad: self.auto_pad,
            strides: &self.strides,
            dilations: &self.dilations,
            pads: &self.pads,
            ceil_mode: false,
        };
        Grouped { windows, groups: self.groups }
    }
}

/// A zero point has one element, or (where `filters` are given) one a filter.
fn check_zero_point(
    inputs: &[Option<Fact>],
    operand: usize,
    filters: Option<&Dim>,
    context: &mut InferContext<'_>,
) -> Result<(), TypeError> {
    if optional(inputs, operand + 2).is_none() {
        return Ok(());
    }
    let (dtype, _) = tensor_operand(inputs, operand)?;
    let (found, shape) = tensor_operand(inputs, operand + 2)?;
    require_same_type(operand + 2, found, dtype)?;
    match shape.dims() {
        None | Some([]) => Ok(()),
        Some([length]) if length.as_known() == Some(1) => Ok(()),
        Some([length]) if operand == 1 => match filters {
            Some(filters) => context.require_equal(filters, length, "number of zero points").map(|_| ()),
            None => Ok(()),
        },
        Some([length]) => context.require_equal(&Dim::ONE, length, "number of zero points").map(|_| ()),
        Some(dims) => Err(TypeError::Rank { operand: operand + 2, expected: "0 or 1".to_string(), found: dims.len() }),
    }
}

/// The elements of an operand less its zero point, of which there may be one an element of the first axis.
fn centred<T: Accumulator + SubAssign>(inputs: &[Option<Value>], operand: usize) -> Result<Vec<T>, ReferenceError> {
    let values: &Tensor = tensor(inputs, operand)?;
    let arithmetic = Arithmetic::default();
    let mut elements = accumulators::<T>(values, &arithmetic)?;
    let Some(zero_point) = optional_tensor(inputs, operand + 2)? else { return Ok(elements) };
    require_same_type(operand + 2, zero_point.dtype(), values.dtype())?;
    let offsets = accumulators::<T>(zero_point, &arithmetic)?;
    let per_filter = operand == 1 && zero_point.shape() == [values.shape()[0]];
    if offsets.len() != 1 && !per_filter {
        return Err(TypeError::Dimension {
            subject: format!("zero point of operand {operand}"),
            left: format!("{:?}", zero_point.shape()),
            right: format!("{:?}", values.shape()),
        }
        .into());
    }
    let each = elements.len() / offsets.len().max(1);
    for (index, element) in elements.iter_mut().enumerate() {
        *element -= offsets[index / each];
    }
    Ok(elements)
}

impl Operator for IntegerConvolution {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let ((_, x), (_, w)) = (tensor_operand(inputs, 0)?, tensor_operand(inputs, 1)?);
        let sums = sums_type(inputs, &self.program)?;
        if sums != DType::I32 && optional(inputs, BIAS).is_some() {
            return Err(TypeError::Unsupported(format!("a bias before sums are {sums}")));
        }
        let shape = self.grouped().infer(x, w, context)?;
        let filters = shape.dims().map(|dims| &dims[1]);
        check_zero_point(inputs, 0, None, context)?;
        check_zero_point(inputs, 1, filters, context)?;
        require_vector(inputs, BIAS, DType::I32, filters, context)?;
        let dtype = self.program.infer(sums, sums, &shape, inputs, context)?;
        Ok(vec![Fact::tensor(dtype, shape)])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (x, w, bias) = (tensor(inputs, 0)?, tensor(inputs, 1)?, optional_tensor(inputs, BIAS)?);
        let dtype = sums_of(x.dtype(), w.dtype())?;
        let arithmetic = Arithmetic::default();
        let plan = self.grouped().resolve(x.shape(), w.shape())?;
        let sums = if w.dtype().is_float() {
            let (x, w) = (centred::<f64>(inputs, 0)?, centred::<f64>(inputs, 1)?);
            rounded_sums(plan.convolve(&x, &w, &arithmetic, &mut context.macs)?, dtype)
        } else {
            let (x, w) = (centred::<i128>(inputs, 0)?, centred::<i128>(inputs, 1)?);
            let mut sums = plan.convolve(&x, &w, &arithmetic, &mut context.macs)?;
            add_bias(&mut sums, bias, DType::I32, &plan.shape, &arithmetic)?;
            rounded_sums(sums, dtype)
        };
        Ok(vec![self.program.finish(dtype, dtype, &sums, &plan.shape, inputs)?.into()])
    }
}

impl Computes for IntegerConvolution {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        self.grouped().spaces(facts, BIAS)
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        [bias_additions(facts, BIAS), centring(facts)].concat()
    }
}

impl Product for IntegerConvolution {
    fn weight(&self, operand: usize, shape: &[u64]) -> Option<WeightMatrix> {
        if operand == 1 { filter_matrix(shape, self.groups) } else { None }
    }

    fn arithmetic(&self) -> Arithmetic {
        Arithmetic::default()
    }

    fn picked(&self) -> Option<Picked> {
        None
    }

    fn program(&self) -> Option<&Program> {
        Some(&self.program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::run_optional;
    use crate::ops::{Argument, Function};

    fn plain() -> IntegerConvolution {
        let program = Program::default();
        IntegerConvolution { auto_pad: None, strides: vec![], dilations: vec![], pads: vec![], groups: 1, program }
    }

    #[test]
    fn padding_is_the_zero_point() {
        let x = Some(Tensor::from_elements(&[1, 1, 3, 3], &[2u8, 3, 4, 5, 6, 7, 8, 9, 10]).unwrap());
        let w = Some(Tensor::from_elements(&[1, 1, 2, 2], &[1u8, 1, 1, 1]).unwrap());
        let zero = Some(Tensor::scalar(1u8));
        let result = run_optional(&plain(), &[x.clone(), w.clone(), zero.clone()]).unwrap();
        assert_eq!(result.elements::<i32>().unwrap(), [12, 16, 24, 28]);
        let padded = IntegerConvolution { pads: vec![1; 4], ..plain() };
        let result = run_optional(&padded, &[x, w, zero]).unwrap();
        assert_eq!(result.elements::<i32>().unwrap(), [1, 3, 5, 3, 5, 12, 16, 9, 11, 24, 28, 15, 7, 15, 17, 9]);
    }

    #[test]
    fn wider_sums_begin_as_floats() {
        let mut program = Program::default();
        let value = program.push(Function::Cast, vec![Argument::Input], DType::F32);
        program.results.push(value);
        let op = IntegerConvolution { program, ..plain() };
        let x = Some(Tensor::from_elements(&[1, 1, 3], &[1i16, 1002, 3]).unwrap());
        let w = Some(Tensor::from_elements(&[1, 1, 2], &[0.5f32, 2.0]).unwrap());
        let zero = Some(Tensor::scalar(2i16));
        let result = run_optional(&op, &[x, w, zero]).unwrap();
        assert_eq!(result.elements::<f32>().unwrap(), [1999.5, 502.0]);
    }

    #[test]
    fn zero_points_and_biases_of_filters() {
        let x = Some(Tensor::from_elements(&[1, 1, 2], &[1i8, 2]).unwrap());
        let w = Some(Tensor::from_elements(&[2, 1, 1], &[5u8, 5]).unwrap());
        let zeros = Some(Tensor::from_elements(&[2], &[5u8, 3]).unwrap());
        let bias = Some(Tensor::from_elements(&[2], &[100i32, i32::MAX]).unwrap());
        let result = run_optional(&plain(), &[x.clone(), w.clone(), None, zeros, bias]).unwrap();
        assert_eq!(result.elements::<i32>().unwrap(), [100, 100, i32::MIN + 1, i32::MIN + 3]);
        let wrong = Some(Tensor::from_elements(&[3], &[5u8, 3, 1]).unwrap());
        assert_eq!(
            run_optional(&plain(), &[x, w, None, wrong]).unwrap_err().to_string(),
            "zero point of operand 1: [3] does not fit [2, 1, 1]"
        );
    }
}
