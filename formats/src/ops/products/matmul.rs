//! Matrix products: ONNX `MatMul` (opsets 1, 9, 13) and the product of `Gemm` (opsets 7 to 13).
//!
//! Operands of one axis are a row (left) or a column (right), whose axis the result does not have; the axes before
//! the last two broadcast, as `numpy.matmul` does. Leaves alone: scales and additions of `Gemm`, which are steps of
//! their own or of a program.

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::broadcast::{broadcast_extents, broadcast_shapes, broadcast_strides, strided_indices};
use crate::ops::loops::{self, Loops};
use crate::ops::products::accumulate::{Accumulator, accumulators, require_product_type, require_same_type};
use crate::ops::scalar::{Scalar, scalars};
use crate::ops::windows::listed;
use crate::ops::{
    Arithmetic, Computes, InferContext, Operator, Picked, Product, Program, ReferenceContext, ReferenceError, Space,
    StepFacts, TypeError, VectorClass, WeightMatrix, dynamic_row, each, tensor, tensor_operand,
};
use crate::tensor::{Tensor, TensorError, element_count};
use crate::value::Value;

attributes! {
    /// Matrix product: `a: [.., m, k]`, `b: [.., k, n]` to `[.., m, n]`; further operands are the program's.
    pub struct Matmul revision 1 {
        /// The last two axes of `a` are exchanged first: `[.., k, m]` (no effect on one axis).
        1 since 1 => transpose_a: bool,
        /// The last two axes of `b` are exchanged first: `[.., n, k]` (no effect on one axis).
        2 since 1 => transpose_b: bool,
        /// How it computes.
        3 since 1 => arithmetic: Arithmetic,
        /// What follows on each element of the result.
        4 since 1 => program: Program,
    }
}

impl Matmul {
    /// A plain product in ONNX's own arithmetic.
    pub fn new(transpose_a: bool, transpose_b: bool) -> Matmul {
        Matmul { transpose_a, transpose_b, arithmetic: Arithmetic::default(), program: Program::default() }
    }
}

/// One operand as a stack of matrices: extents of the batch, rows and columns after transposing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MatrixOperand<T> {
    /// Axes before the last two.
    pub batch: Vec<T>,
    /// Rows of a matrix.
    pub rows: T,
    /// Columns of a matrix.
    pub columns: T,
    /// The operand has one axis: the other one is not in the result.
    pub vector: bool,
    /// Rows lie side by side.
    pub transposed: bool,
}

impl<T: Clone> MatrixOperand<T> {
    /// Read extents as a stack of matrices; a vector is a row on the left and a column on the right.
    pub(crate) fn new(operand: usize, extents: &[T], transpose: bool, one: T) -> Result<Self, TypeError> {
        match extents {
            [] => Err(TypeError::Rank { operand, expected: "at least 1".to_string(), found: 0 }),
            [length] => {
                let (rows, columns) = if operand == 0 { (one, length.clone()) } else { (length.clone(), one) };
                Ok(MatrixOperand { batch: Vec::new(), rows, columns, vector: true, transposed: false })
            }
            [batch @ .., first, second] => {
                let (rows, columns) = if transpose { (second, first) } else { (first, second) };
                let (rows, columns) = (rows.clone(), columns.clone());
                Ok(MatrixOperand { batch: batch.to_vec(), rows, columns, vector: false, transposed: transpose })
            }
        }
    }
}

impl MatrixOperand<usize> {
    /// Distances between rows and between columns in elements.
    pub fn strides(&self) -> (usize, usize) {
        if self.transposed { (1, self.rows) } else { (self.columns, 1) }
    }
}

/// Shape of a matrix product; gives also rows, shared extent and columns where both ranks are known.
pub(crate) fn infer_product(
    a: &Shape,
    b: &Shape,
    transpose: (bool, bool),
    context: &mut InferContext<'_>,
) -> Result<Shape, TypeError> {
    for (operand, shape) in [a, b].into_iter().enumerate() {
        if shape.rank() == Some(0) {
            return Err(TypeError::Rank { operand, expected: "at least 1".to_string(), found: 0 });
        }
    }
    let (Shape::Ranked(a), Shape::Ranked(b)) = (a, b) else { return Ok(Shape::Unranked) };
    let a = MatrixOperand::new(0, a, transpose.0, Dim::ONE)?;
    let b = MatrixOperand::new(1, b, transpose.1, Dim::ONE)?;
    context.require_equal(&a.columns, &b.rows, "extent summed over by the matrix product")?;
    let batch = broadcast_shapes(&[&Shape::Ranked(a.batch), &Shape::Ranked(b.batch)], context)?;
    let Shape::Ranked(mut result) = batch else { return Ok(Shape::Unranked) };
    result.extend((!a.vector).then_some(a.rows));
    result.extend((!b.vector).then_some(b.columns));
    Ok(Shape::Ranked(result))
}

/// How a product of known shapes walks its operands.
#[derive(Debug, Clone)]
pub struct ProductPlan {
    /// Left matrices.
    pub a: MatrixOperand<usize>,
    /// Right matrices.
    pub b: MatrixOperand<usize>,
    /// Shape of the result.
    pub shape: Vec<usize>,
    /// Offset in elements of each matrix of `a` and of `b`, in order of the result; none where it has no elements.
    pub batches: Vec<(usize, usize)>,
}

impl ProductPlan {
    /// # Errors
    /// [`ReferenceError`] where the shapes do not fit or the result is too large.
    pub(crate) fn new(a: &[usize], b: &[usize], transpose: (bool, bool)) -> Result<ProductPlan, ReferenceError> {
        let left = MatrixOperand::new(0, a, transpose.0, 1)?;
        let right = MatrixOperand::new(1, b, transpose.1, 1)?;
        if left.columns != right.rows {
            return Err(TypeError::Dimension {
                subject: "extent summed over by the matrix product".to_string(),
                left: left.columns.to_string(),
                right: right.rows.to_string(),
            }
            .into());
        }
        let batch = broadcast_extents(&[&left.batch, &right.batch])?;
        let mut shape = batch.clone();
        shape.extend((!left.vector).then_some(left.rows));
        shape.extend((!right.vector).then_some(right.columns));
        let too_large = || TensorError::TooLarge { dtype: DType::F32, shape: shape.clone() };
        let count = element_count(&shape).ok_or_else(too_large)?;
        let offsets = |operand: &MatrixOperand<usize>| {
            let size = operand.rows.saturating_mul(operand.columns);
            let steps = broadcast_strides(&operand.batch, &batch);
            strided_indices(&batch, &steps.iter().map(|step| step.saturating_mul(size)).collect::<Vec<_>>())
        };
        // Without elements there is nothing to walk, whatever the other extents are.
        let mut batches = listed(DType::I64, &batch)?;
        if count > 0 {
            match batch.iter().product() {
                1usize => batches.push((0, 0)),
                _ => batches.extend(offsets(&left).zip(offsets(&right))),
            }
        }
        Ok(ProductPlan { a: left, b: right, shape, batches })
    }

    /// The products of all matrices, element after element.
    pub(crate) fn multiply<T: Accumulator>(
        &self,
        a: &[T],
        b: &[T],
        arithmetic: &Arithmetic,
        macs: &mut u64,
    ) -> Result<Vec<T>, TensorError> {
        let (rows, columns, shared) = (self.a.rows, self.b.columns, self.a.columns);
        let (a_row, a_column) = self.a.strides();
        let (b_row, b_column) = self.b.strides();
        let mut result = listed(DType::F64, &self.shape)?;
        for &(a_offset, b_offset) in &self.batches {
            for row in 0..rows {
                for column in 0..columns {
                    let mut sum = T::ZERO;
                    for inner in 0..shared {
                        let left = a[a_offset + row * a_row + inner * a_column];
                        let right = b[b_offset + inner * b_row + column * b_column];
                        sum = sum.plus(left.times(right), arithmetic);
                        *macs += 1;
                    }
                    result.push(sum);
                }
            }
        }
        Ok(result)
    }
}

impl Operator for Matmul {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, a) = tensor_operand(inputs, 0)?;
        let (found, b) = tensor_operand(inputs, 1)?;
        require_product_type(dtype, 0)?;
        require_same_type(1, found, dtype)?;
        let shape = infer_product(a, b, (self.transpose_a, self.transpose_b), context)?;
        let result = self.program.infer(dtype, self.arithmetic.accumulator_of(dtype), &shape, inputs, context)?;
        if self.arithmetic.dynamic_block().is_some() && (self.transpose_a || !computes_dynamically(dtype)) {
            return Err(TypeError::Unsupported(format!("quantization of transposed rows or of {dtype}")));
        }
        Ok(vec![Fact::tensor(result, shape)])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (a, b) = (tensor(inputs, 0)?, tensor(inputs, 1)?);
        require_product_type(a.dtype(), 0)?;
        require_same_type(1, b.dtype(), a.dtype())?;
        let (shape, sums) = if a.dtype().is_float() {
            self.product::<f64>(a, b, context)?
        } else {
            self.product::<i128>(a, b, context)?
        };
        let accumulator = self.arithmetic.accumulator_of(a.dtype());
        Ok(vec![self.program.finish(a.dtype(), accumulator, &sums, &shape, inputs)?.into()])
    }
}

impl Computes for Matmul {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let rounding = self.arithmetic.dynamic_block().and_then(|block| rounding_space(facts, self.transpose_a, block));
        rounding.into_iter().chain(product_spaces(facts, self.transpose_a, self.transpose_b)).collect()
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        match self.arithmetic.dynamic_block() {
            // Rows are quantized: the greatest magnitude, a product and a rounding for each element.
            Some(_) => each(&facts.elements(0), &[(VectorClass::Arithmetic, 2), (VectorClass::Convert, 1)]),
            None => Vec::new(),
        }
    }
}

impl Product for Matmul {
    fn weight(&self, operand: usize, shape: &[u64]) -> Option<WeightMatrix> {
        let (1, [batch @ .., first, second]) = (operand, shape) else { return None };
        let groups = batch.iter().try_fold(1u64, |groups, extent| groups.checked_mul(*extent))?;
        let matrix = |inputs: &u64, outputs: &u64, output_axis| WeightMatrix {
            groups,
            inputs: *inputs,
            outputs: *outputs,
            output_axis,
        };
        Some(if self.transpose_b { matrix(second, first, 0) } else { matrix(first, second, 1) })
    }

    fn arithmetic(&self) -> Arithmetic {
        self.arithmetic
    }

    fn picked(&self) -> Option<Picked> {
        None
    }

    fn program(&self) -> Option<&Program> {
        Some(&self.program)
    }

    fn sums(&self, facts: &StepFacts<'_>) -> Option<DType> {
        Some(self.arithmetic.accumulator_of(facts.operand(0)?.dtype()?))
    }
}

/// Types whose rows are quantized.
fn computes_dynamically(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// Rows of `length` elements as their codes mean them: code times scale, in blocks of `block`, or whole rows where that is
/// 0. The product of these values is what a kernel computes with one rounding of each sum of codes.
pub(crate) fn dynamic_values(rows: &Tensor, length: usize, block: usize) -> Result<Tensor, ReferenceError> {
    let values: Vec<f32> = scalars(rows)?.into_iter().map(|value| value.to_f64() as f32).collect();
    let mut quantized = Vec::with_capacity(values.len());
    let mut codes = Vec::new();
    for row in values.chunks(length.max(1)) {
        for block in row.chunks(if block == 0 { length.max(1) } else { block }) {
            codes.resize(block.len(), 0i8);
            let scale = f64::from(dynamic_row(block, &mut codes));
            quantized.extend(codes.iter().map(|&code| f64::from(code) * scale));
        }
    }
    Ok(Tensor::from_elements(rows.shape(), &quantized)?)
}

impl Matmul {
    /// The walk over operands of these shapes.
    ///
    /// # Errors
    /// [`ReferenceError`] where they do not fit.
    pub fn resolve(&self, a: &[usize], b: &[usize]) -> Result<ProductPlan, ReferenceError> {
        ProductPlan::new(a, b, (self.transpose_a, self.transpose_b))
    }

    fn product<T: Accumulator>(
        &self,
        a: &Tensor,
        b: &Tensor,
        context: &mut ReferenceContext<'_>,
    ) -> Result<(Vec<usize>, Vec<Scalar>), ReferenceError> {
        let plan = self.resolve(a.shape(), b.shape())?;
        let quantized = self.arithmetic.dynamic_block().map(|block| dynamic_values(a, plan.a.columns, block as usize));
        let a = &quantized.transpose()?.unwrap_or_else(|| a.clone());
        let left = accumulators::<T>(a, &self.arithmetic)?;
        let right = accumulators::<T>(b, &self.arithmetic)?;
        let sums = plan.multiply(&left, &right, &self.arithmetic, &mut context.macs)?;
        Ok((plan.shape, sums.into_iter().map(T::scalar).collect()))
    }
}

/// The nest that finds the largest magnitudes of rows, or of blocks of their inputs, before the product. Tiles that share a row
/// combine theirs: codes are those of the whole row, however the inputs of the product are split.
fn rounding_space(facts: &StepFacts<'_>, transposed: bool, block: u32) -> Option<Space> {
    let inputs = facts.dims(0)?.len().checked_sub(if transposed { 2 } else { 1 })?;
    loops::statistics(facts, |axis| axis == inputs && block == 0)
}

/// The loops of a matrix product: over the batch, rows and columns, and inside over what is summed.
pub(crate) fn product_spaces(facts: &StepFacts<'_>, transpose_a: bool, transpose_b: bool) -> Vec<Space> {
    let (Some(a), Some(b), Some(shape)) = (facts.dims(0), facts.dims(1), facts.result(0)) else {
        return loops::unknown(facts, 1);
    };
    let (Ok(left), Ok(right)) =
        (MatrixOperand::new(0, a, transpose_a, Dim::ONE), MatrixOperand::new(1, b, transpose_b, Dim::ONE))
    else {
        return loops::unknown(facts, 1);
    };
    let rank = shape.len();
    let batch = rank + usize::from(left.vector) + usize::from(right.vector) - 2;
    let aligned = |own: &[Dim], axis: usize| {
        let at = (axis + own.len()).checked_sub(batch)?;
        (own[at] == shape[axis]).then_some(at)
    };
    let mut nest = Loops::new(facts);
    for (axis, extent) in shape[..batch].iter().enumerate() {
        let left = aligned(&left.batch, axis).map(|at| loops::operand(0, at));
        let right = aligned(&right.batch, axis).map(|at| loops::operand(1, at));
        nest = nest.parallel(extent, left.into_iter().chain(right).chain([loops::result(0, axis)]));
    }
    // Axes of rows and columns in a matrix; a vector has only the summed one.
    let place = |operand: usize, matrix: &MatrixOperand<Dim>, column: bool| {
        let rank = if matrix.vector { 1 } else { matrix.batch.len() + 2 };
        let last = matrix.vector || column != matrix.transposed;
        loops::operand(operand, if last { rank - 1 } else { rank - 2 })
    };
    if !left.vector {
        let result = if right.vector { rank - 1 } else { rank - 2 };
        nest = nest.parallel(&left.rows, [place(0, &left, false), loops::result(0, result)]);
    }
    if !right.vector {
        nest = nest.parallel(&right.columns, [place(1, &right, true), loops::result(0, rank - 1)]);
    }
    vec![nest.reduced(&left.columns, [place(0, &left, true), place(1, &right, false)]).products(1)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Ranges;
    use crate::ops::testing::macs;
    use crate::ops::{Activations, Argument, AxisKind, BinaryFunction, Function, NoBlocks};

    fn run(operator: &Matmul, operands: &[&Tensor]) -> (Tensor, u64) {
        let inputs: Vec<Option<Value>> = operands.iter().map(|&tensor| Some(tensor.clone().into())).collect();
        let mut blocks = NoBlocks;
        let mut context = ReferenceContext::new(&mut blocks);
        let result = operator.reference(&inputs, &mut context).unwrap().remove(0);
        let facts: Vec<Option<Fact>> = inputs.iter().flatten().map(|value| Some(Fact::of(value.kind()))).collect();
        let ranges = Ranges::default();
        let mut no_blocks = NoBlocks;
        let outputs = operator.infer(&facts, &mut InferContext::new("matmul", &ranges, &mut no_blocks)).unwrap();
        assert_eq!(outputs[0].kind, result.kind());
        assert_eq!(macs(operator, &facts, &outputs), Dim::known(context.macs as i64));
        (result.as_tensor().unwrap().clone(), context.macs)
    }

    #[test]
    fn rows_that_are_rounded_find_their_largest_magnitude_first() {
        let facts = [[3, 64], [64, 16]].map(|shape| Some(Fact::tensor(DType::F32, shape.map(Dim::known).to_vec())));
        let outputs = [Fact::tensor(DType::F32, [3, 16].map(Dim::known).to_vec())];
        let spaces = |block| {
            let activation = Activations::Dynamic { dtype: DType::I8, block };
            let mut product = Matmul::new(false, false);
            product.arithmetic.activation = activation;
            product.spaces(&StepFacts::new("product", &facts, &outputs))
        };
        let kinds = |space: &Space| space.axes.iter().map(|axis| axis.kind).collect::<Vec<_>>();
        let [rounding, product] = spaces(0).try_into().unwrap();
        assert_eq!(kinds(&rounding), [AxisKind::Parallel, AxisKind::Reduced]);
        assert_eq!(kinds(&product), [AxisKind::Parallel, AxisKind::Parallel, AxisKind::Reduced]);
        assert_eq!((rounding.macs, rounding.points()), (0, Dim::known(192)));
        // Half of the inputs of all rows: the rest of operand 0 is not needed, and no result is written.
        assert_eq!(rounding.footprint(&[0..3, 0..32], 0, &[3, 64]), Some(vec![0..3, 0..32]));
        assert!(rounding.axes.iter().all(|axis| axis.at[2].is_none()));
        assert_eq!(kinds(&spaces(32)[0]), [AxisKind::Parallel, AxisKind::Parallel]);
    }

    fn sequence(shape: &[usize]) -> Tensor {
        let count: usize = shape.iter().product();
        Tensor::from_elements(shape, &(0..count).map(|index| index as f32).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn ranks_and_batches_follow_numpy() {
        let (product, macs) = run(&Matmul::new(false, false), &[&sequence(&[2, 3]), &sequence(&[3, 2])]);
        assert_eq!(product.elements::<f32>().unwrap(), [10.0, 13.0, 28.0, 40.0]);
        assert_eq!(macs, 12);
        let shape = |a: &[usize], b: &[usize]| {
            run(&Matmul::new(false, false), &[&sequence(a), &sequence(b)]).0.shape().to_vec()
        };
        assert_eq!(shape(&[3], &[3]), [0usize; 0]);
        assert_eq!(shape(&[3], &[5, 3, 2]), [5, 2]);
        assert_eq!(shape(&[5, 2, 3], &[3]), [5, 2]);
        assert_eq!(shape(&[4, 1, 2, 3], &[5, 3, 2]), [4, 5, 2, 2]);
        assert_eq!(shape(&[2, 0], &[0, 3]), [2, 3]);
    }

    #[test]
    fn transposed_operands_are_read_across() {
        let (plain, _) = run(&Matmul::new(false, false), &[&sequence(&[2, 3]), &sequence(&[3, 2])]);
        let columns = Tensor::from_elements(&[3, 2], &[0.0f32, 3.0, 1.0, 4.0, 2.0, 5.0]).unwrap();
        let rows = Tensor::from_elements(&[2, 3], &[0.0f32, 2.0, 4.0, 1.0, 3.0, 5.0]).unwrap();
        assert_eq!(run(&Matmul::new(true, true), &[&columns, &rows]).0, plain);
    }

    #[test]
    fn integers_wrap_in_their_own_width() {
        let a = Tensor::from_elements(&[1, 2], &[u64::MAX, 1 << 60]).unwrap();
        let b = Tensor::from_elements(&[2, 1], &[u64::MAX, 3]).unwrap();
        let (product, _) = run(&Matmul::new(false, false), &[&a, &b]);
        assert_eq!(product.elements::<u64>().unwrap(), [1 + (3 << 60)]);
    }

    #[test]
    fn halves_are_summed_wide() {
        let a = Tensor::from_elements(&[1, 4096], &[half::f16::ONE; 4096]).unwrap();
        let (product, _) = run(&Matmul::new(false, true), &[&a, &a]);
        assert_eq!(product.elements::<half::f16>().unwrap(), [half::f16::from_f32(4096.0)]);
        // Summed in f16 itself, 2048 + 1 is 2048.
        let narrow = Arithmetic { accumulator: DType::F16, ..Arithmetic::default() };
        let (product, _) = run(&Matmul { arithmetic: narrow, ..Matmul::new(false, true) }, &[&a, &a]);
        assert_eq!(product.elements::<half::f16>().unwrap(), [half::f16::from_f32(2048.0)]);
    }

    #[test]
    fn the_program_reads_further_operands() {
        let mut program = Program::default();
        let add = Function::Binary(BinaryFunction::Add);
        let sum = program.push(add, vec![Argument::Input, Argument::Operand(2)], DType::F32);
        program.results.push(sum);
        let operator = Matmul { program, ..Matmul::new(false, false) };
        let bias = Tensor::from_elements(&[2], &[100.0f32, 200.0]).unwrap();
        let (product, _) = run(&operator, &[&sequence(&[2, 3]), &sequence(&[3, 2]), &bias]);
        assert_eq!(product.elements::<f32>().unwrap(), [110.0, 213.0, 128.0, 240.0]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let ranges = Ranges::default();
        let mut blocks = NoBlocks;
        let mut context = InferContext::new("matmul", &ranges, &mut blocks);
        let fact = |extents: &[usize]| Some(Fact::tensor(DType::F32, Shape::known(extents)));
        let plain = Matmul::new(false, false);
        assert_eq!(
            plain.infer(&[fact(&[2, 3]), fact(&[4, 2])], &mut context).unwrap_err().to_string(),
            "extent summed over by the matrix product: 3 does not fit 4"
        );
        assert_eq!(
            plain.infer(&[fact(&[]), fact(&[4, 2])], &mut context).unwrap_err().to_string(),
            "operand 0 must have rank at least 1, found 0"
        );
        assert_eq!(
            plain.infer(&[fact(&[2, 2, 3]), fact(&[3, 3, 1])], &mut context).unwrap_err().to_string(),
            "broadcast: 2 does not fit 3"
        );
        let narrow = Some(Fact::tensor(DType::I8, Shape::known(&[2, 2])));
        assert_eq!(
            plain.infer(&[narrow.clone(), narrow], &mut context).unwrap_err().to_string(),
            "operand 0 must be f16, bf16, f32, f64, i32, i64, u32 or u64, found i8"
        );
        let mut blocks = NoBlocks;
        let values = [Some(Value::from(sequence(&[2, 3]))), Some(Value::from(sequence(&[4, 2])))];
        assert_eq!(
            plain.reference(&values, &mut ReferenceContext::new(&mut blocks)).unwrap_err().to_string(),
            "extent summed over by the matrix product: 3 does not fit 4"
        );
    }
}
