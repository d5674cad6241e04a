//! Matrix products of quantized integers: ONNX `MatMulInteger` (opset 10) and the product of `QLinearMatMul` (10, 21).
//!
//! Zero points are subtracted first. A zero point of one axis has an element a row of `a` (a column of `b`); of more
//! axes, it broadcasts as it is. Sums wrap in 32 bits, as the operator page allows; the program begins with them.

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::Fact;
use crate::ops::broadcast::{broadcast_strides, strided_indices};
use crate::ops::products::accumulate::{Accumulator, accumulators, require_same_type};
use crate::ops::products::matmul::{ProductPlan, infer_product, product_spaces};
use crate::ops::{
    Arithmetic, Computes, InferContext, Operator, Picked, Product, Program, ReferenceContext, ReferenceError, Relation,
    Space, StepFacts, TypeError, VectorClass, WeightMatrix, each, optional, optional_tensor, tensor, tensor_operand,
};
use crate::tensor::Tensor;
use crate::value::Value;

attributes! {
    /// `(a - a_zero_point) x (b - b_zero_point)`: `a: [.., m, k]`, `b: [.., k, n]` (i8 or u8 each), optional zero points
    /// `[]`, `[m]` or `[.., m, 1]`, and `[]`, `[n]` or `[.., 1, n]`, to `[.., m, n]` of i32 or what the program gives;
    /// further operands are the program's.
    pub struct IntegerMatmul revision 1 {
        /// What follows on each element of the result.
        1 since 1 => program: Program,
    }
}

pub(crate) fn require_byte(dtype: DType, operand: usize) -> Result<(), TypeError> {
    match dtype {
        DType::I8 | DType::U8 => Ok(()),
        found => Err(TypeError::ElementType { operand, expected: "i8 or u8".to_string(), found }),
    }
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
fn centred(inputs: &[Option<Value>], operand: usize) -> Result<Vec<i128>, ReferenceError> {
    let matrix = tensor(inputs, operand)?;
    let arithmetic = Arithmetic::default();
    let mut elements = accumulators::<i128>(matrix, &arithmetic)?;
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
    let offsets = accumulators::<i128>(zero_point, &arithmetic)?;
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
}

impl Operator for IntegerMatmul {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (a_dtype, a) = tensor_operand(inputs, 0)?;
        let (b_dtype, b) = tensor_operand(inputs, 1)?;
        require_byte(a_dtype, 0)?;
        require_byte(b_dtype, 1)?;
        check_zero_point(inputs, 0, context)?;
        check_zero_point(inputs, 1, context)?;
        let shape = infer_product(a, b, (false, false), context)?;
        let dtype = self.program.infer(DType::I32, DType::I32, &shape, inputs, context)?;
        Ok(vec![Fact::tensor(dtype, shape)])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (a, b): (&Tensor, &Tensor) = (tensor(inputs, 0)?, tensor(inputs, 1)?);
        require_byte(a.dtype(), 0)?;
        require_byte(b.dtype(), 1)?;
        let plan = self.resolve(a.shape(), b.shape())?;
        let (left, right) = (centred(inputs, 0)?, centred(inputs, 1)?);
        let sums = plan.multiply(&left, &right, &Arithmetic::default(), &mut context.macs)?;
        let sums: Vec<_> = sums.into_iter().map(Accumulator::scalar).collect();
        Ok(vec![self.program.finish(DType::I32, DType::I32, &sums, &plan.shape, inputs)?.into()])
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
