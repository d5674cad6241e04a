//! Matrix products of quantized integers: ONNX `MatMulInteger` (opset 10) and the product of `QLinearMatMul` (10, 21).
//!
//! Zero points are subtracted first. A zero point of one axis has an element a row of `a` (a column of `b`); of more
//! axes, it broadcasts as it is. Sums of integers of 8 bits wrap in 32 bits, as the operator page allows; the program begins
//! with them. Where an operand has 16 bits, or the right one is decoded codes, sums are exact and rounded once to f32, but for
//! codes whose scales vary along the inputs: each of their blocks is scaled by itself, and rounds once more.

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::Fact;
use crate::ops::broadcast::{broadcast_strides, strided_indices};
use crate::ops::products::accumulate::{Accumulator, accumulators, require_same_type};
use crate::ops::products::matmul::{ProductPlan, infer_product, product_spaces};
use crate::ops::scalar::{Scalar, round_to};
use crate::ops::{
    Arithmetic, Computes, InferContext, Operator, Picked, Product, Program, ReferenceContext, ReferenceError, Relation,
    Space, StepFacts, TypeError, VectorClass, WeightMatrix, each, optional, optional_tensor, tensor, tensor_operand,
};
use crate::tensor::Tensor;
use crate::value::Value;
use std::ops::SubAssign;

attributes! {
    /// `(a - a_zero_point) x (b - b_zero_point)`: `a: [.., m, k]`, `b: [.., k, n]` (i8, u8, i16 or u16 each; `b` may be f32,
    /// decoded codes without a zero point), optional zero points `[]`, `[m]` or `[.., m, 1]`, and `[]`, `[n]` or `[.., 1, n]`,
    /// to `[.., m, n]` of i32 or what the program gives, which all but products of 8 bits have; further operands are the
    /// program's.
    pub struct IntegerMatmul revision 1 {
        /// What follows on each element of the result.
        1 since 1 => program: Program,
    }
}

/// The type of the sums that a program begins with: i32 of products of 8 bits, else f32.
pub(crate) fn sums_type(inputs: &[Option<Fact>], program: &Program) -> Result<DType, TypeError> {
    let ((a, _), (b, _)) = (tensor_operand(inputs, 0)?, tensor_operand(inputs, 1)?);
    let sums = sums_of(a, b)?;
    if b == DType::F32 && optional(inputs, 3).is_some() {
        return Err(TypeError::Unsupported("zero points of decoded codes".to_string()));
    }
    if sums == DType::F32 && program.is_empty() {
        return Err(TypeError::Unsupported(format!("a product of {a} and {b} without a program")));
    }
    Ok(sums)
}

/// The type of the sums of products of these types.
pub(crate) fn sums_of(a: DType, b: DType) -> Result<DType, TypeError> {
    let are_bytes = |dtype| matches!(dtype, DType::I8 | DType::U8);
    let are_words = |dtype| matches!(dtype, DType::I16 | DType::U16);
    let wrong =
        |operand, expected: &str, found| TypeError::ElementType { operand, expected: expected.to_string(), found };
    if !are_bytes(a) && !are_words(a) {
        return Err(wrong(0, "i8, u8, i16 or u16", a));
    }
    if !are_bytes(b) && !are_words(b) && b != DType::F32 {
        return Err(wrong(1, "i8, u8, i16, u16 or f32", b));
    }
    Ok(if are_bytes(a) && are_bytes(b) { DType::I32 } else { DType::F32 })
}

/// Sums as a program finds them: those that are not i32 are rounded to f32.
pub(crate) fn rounded_sums<T: Accumulator>(sums: Vec<T>, dtype: DType) -> Vec<Scalar> {
    let rounded = |sum: T| match sum.scalar() {
        sum if dtype == DType::I32 => sum,
        sum => Scalar::Float(round_to(DType::F32, sum.to_f64())),
    };
    sums.into_iter().map(rounded).collect()
}

/// The shape that a zero point broadcasts from: one of an element a row stands before the columns.
fn broadcast_from<T: Clone>(zero_point: &[T], operand: usize, matrix_rank: usize, one: T) -> Vec<T> {
    match zero_point {
        [rows] if operand == 0 && matrix_rank > 1 => vec![rows.clone(), one],
        other => other.to_vec(),
    }
}

fn check_zero_point(inputs: &[Option<Fact>], operand: usize, context: &mut InferContext<'_>) -> Result<(), TypeError> {
    if optional(inputs, operand + 2).is_none() {
        return Ok(());
    }
    let (dtype, matrix) = tensor_operand(inputs, operand)?;
    let (found, zero_point) = tensor_operand(inputs, operand + 2)?;
    require_same_type(operand + 2, found, dtype)?;
    let (Some(dims), Some(zero_point)) = (matrix.dims(), zero_point.dims()) else { return Ok(()) };
    let from = broadcast_from(zero_point, operand, dims.len(), Dim::ONE);
    if from.len() > dims.len() {
        let expected = format!("at most {}", dims.len());
        return Err(TypeError::Rank { operand: operand + 2, expected, found: zero_point.len() });
    }
    for (from, into) in from.iter().rev().zip(dims.iter().rev()) {
        match (from.as_known(), into.as_known()) {
            (Some(1), _) => {}
            (Some(_), _) | (None, Some(1)) => drop(context.require_equal(into, from, "zero points")?),
            // A zero point of unknown extent may be a single one.
            (None, _) => context.oblige(Relation::Broadcastable, into, from, "zero points"),
        }
    }
    Ok(())
}

/// The elements of an operand less its zero point.
fn centred<T: Accumulator + SubAssign>(inputs: &[Option<Value>], operand: usize) -> Result<Vec<T>, ReferenceError> {
    let matrix = tensor(inputs, operand)?;
    let arithmetic = Arithmetic::default();
    let mut elements = accumulators::<T>(matrix, &arithmetic)?;
    let Some(zero_point) = optional_tensor(inputs, operand + 2)? else { return Ok(elements) };
    require_same_type(operand + 2, zero_point.dtype(), matrix.dtype())?;
    let from = broadcast_from(zero_point.shape(), operand, matrix.rank(), 1);
    let fits = from.len() <= matrix.rank()
        && from.iter().rev().zip(matrix.shape().iter().rev()).all(|(&from, &into)| from == 1 || from == into);
    if !fits {
        return Err(TypeError::Dimension {
            subject: format!("zero point of operand {operand}"),
            left: format!("{:?}", zero_point.shape()),
            right: format!("{:?}", matrix.shape()),
        }
        .into());
    }
    let offsets = accumulators::<T>(zero_point, &arithmetic)?;
    let places = strided_indices(matrix.shape(), &broadcast_strides(&from, matrix.shape()));
    elements.iter_mut().zip(places).for_each(|(element, place)| *element -= offsets[place]);
    Ok(elements)
}

impl IntegerMatmul {
    /// The walk over operands of these shapes.
    ///
    /// # Errors
    /// [`ReferenceError`] where they do not fit.
    pub fn resolve(&self, a: &[usize], b: &[usize]) -> Result<ProductPlan, ReferenceError> {
        ProductPlan::new(a, b, (false, false))
    }

    fn sums<T: Accumulator + SubAssign>(
        &self,
        inputs: &[Option<Value>],
        (plan, dtype): (&ProductPlan, DType),
        macs: &mut u64,
    ) -> Result<Vec<Scalar>, ReferenceError> {
        let (left, right) = (centred::<T>(inputs, 0)?, centred::<T>(inputs, 1)?);
        Ok(rounded_sums(plan.multiply(&left, &right, &Arithmetic::default(), macs)?, dtype))
    }
}

impl Operator for IntegerMatmul {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let ((_, a), (_, b)) = (tensor_operand(inputs, 0)?, tensor_operand(inputs, 1)?);
        let sums = sums_type(inputs, &self.program)?;
        check_zero_point(inputs, 0, context)?;
        check_zero_point(inputs, 1, context)?;
        let shape = infer_product(a, b, (false, false), context)?;
        let dtype = self.program.infer(sums, sums, &shape, inputs, context)?;
        Ok(vec![Fact::tensor(dtype, shape)])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (a, b): (&Tensor, &Tensor) = (tensor(inputs, 0)?, tensor(inputs, 1)?);
        let dtype = sums_of(a.dtype(), b.dtype())?;
        let plan = self.resolve(a.shape(), b.shape())?;
        let sums = if b.dtype().is_float() {
            self.sums::<f64>(inputs, (&plan, dtype), &mut context.macs)?
        } else {
            self.sums::<i128>(inputs, (&plan, dtype), &mut context.macs)?
        };
        Ok(vec![self.program.finish(dtype, dtype, &sums, &plan.shape, inputs)?.into()])
    }
}

impl Computes for IntegerMatmul {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        product_spaces(facts, false, false)
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        centring(facts)
    }
}

impl Product for IntegerMatmul {
    fn weight(&self, operand: usize, shape: &[u64]) -> Option<WeightMatrix> {
        match (operand, shape) {
            (1, &[inputs, outputs]) => Some(WeightMatrix { groups: 1, inputs, outputs, output_axis: 1 }),
            _ => None,
        }
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

    fn sums(&self, facts: &StepFacts<'_>) -> Option<DType> {
        sums_type(facts.inputs, &self.program).ok()
    }
}

/// Subtractions of zero points, where there are any.
pub(crate) fn centring(facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
    let centred = [(0, 2), (1, 3)].map(|(operand, zero_point)| match facts.operand(zero_point) {
        Some(_) => facts.elements(operand),
        None => Dim::ZERO,
    });
    each(&Dim::sum(&centred), &[(VectorClass::Arithmetic, 1)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::run_optional;
    use crate::ops::{Argument, BinaryFunction, Function, UnaryFunction};

    fn plain() -> IntegerMatmul {
        IntegerMatmul { program: Program::default() }
    }

    fn bytes(shape: &[usize], elements: &[u8]) -> Option<Tensor> {
        Some(Tensor::from_elements(shape, elements).unwrap())
    }

    #[test]
    fn the_example_of_the_operator_page() {
        let a = bytes(&[4, 3], &[11, 7, 3, 10, 6, 2, 9, 5, 1, 8, 4, 0]);
        let b = bytes(&[3, 2], &[1, 4, 2, 5, 3, 6]);
        let result = run_optional(&plain(), &[a, b, bytes(&[1], &[12]), bytes(&[1], &[0])]).unwrap();
        assert_eq!(result.elements::<i32>().unwrap(), [-38, -83, -44, -98, -50, -113, -56, -128]);
    }

    #[test]
    fn programs_begin_with_the_sums() {
        let mut program = Program::default();
        let value = program.push(Function::Cast, vec![Argument::Input], DType::F32);
        let scaled = Function::Binary(BinaryFunction::Mul);
        let value = program.push(scaled, vec![value, Argument::Operand(4)], DType::F32);
        let value = program.push(Function::Unary(UnaryFunction::Round), vec![value], DType::I8);
        program.results.push(value);
        let scale = Some(Tensor::from_elements(&[2], &[0.5f32, 100.0]).unwrap());
        let a = bytes(&[1, 2], &[255, 255]);
        let b = Some(Tensor::from_elements(&[2, 2], &[0i8, -128, 1, -128]).unwrap());
        let result = run_optional(&IntegerMatmul { program }, &[a, b, None, None, scale]).unwrap();
        assert_eq!(result.elements::<i8>().unwrap(), [127, -128]);
    }

    #[test]
    fn wider_sums_are_exact_and_rounded_once() {
        let mut program = Program::default();
        let value =
            program.push(Function::Binary(BinaryFunction::Mul), vec![Argument::Input, Argument::f32(0.5)], DType::F32);
        program.results.push(value);
        let a = Some(Tensor::from_elements(&[1, 3], &[65535u16, 65535, 1]).unwrap());
        let words = Some(Tensor::from_elements(&[3, 1], &[-32768i16, 32767, 3]).unwrap());
        let op = IntegerMatmul { program };
        let result = run_optional(&op, &[a.clone(), words]).unwrap();
        assert_eq!(result.elements::<f32>().unwrap(), [-65532.0 / 2.0]);
        let decoded = Some(Tensor::from_elements(&[3, 1], &[0.25f32, -0.25, 8.0]).unwrap());
        let zero = Some(Tensor::scalar(2u16));
        let result = run_optional(&op, &[a, decoded, zero]).unwrap();
        assert_eq!(result.elements::<f32>().unwrap(), [-4.0]);
    }

    #[test]
    fn zero_points_of_rows_and_columns() {
        let a = bytes(&[2, 2], &[1, 2, 3, 4]);
        let b = Some(Tensor::from_elements(&[2, 2], &[1i8, -1, 2, -2]).unwrap());
        let columns = Some(Tensor::from_elements(&[2], &[1i8, -1]).unwrap());
        let result = run_optional(&plain(), &[a.clone(), b.clone(), bytes(&[2], &[0, 3]), columns]).unwrap();
        // Rows [1, 2], [0, 1] times columns [0, 1], [0, -1].
        assert_eq!(result.elements::<i32>().unwrap(), [2, -2, 1, -1]);
        assert_eq!(
            run_optional(&plain(), &[a.clone(), b.clone(), bytes(&[3], &[0, 3, 1])]).unwrap_err().to_string(),
            "zero point of operand 0: [3] does not fit [2, 2]"
        );
        let wrong_type = Some(Tensor::scalar(1i8));
        assert_eq!(
            run_optional(&plain(), &[a, b, wrong_type]).unwrap_err().to_string(),
            "operand 2 must be u8, found i8"
        );
    }
}
