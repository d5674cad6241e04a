//! Products with matrices as they come: row-major, with outputs or with inputs side by side.
//!
//! With many rows they are packed into panels on the way, a run of inputs of three panels at a time. With few rows the matrix
//! is read once, where it lies:
//!
//! - `[k, n]`: rows of the matrix are added into a block of outputs.
//! - `[n, k]`: 16 rows of the matrix are transposed in registers, 16 inputs at a time.
//!
//! The order of the sums is always that of `product`.

use super::{
    Epilogue, PANEL_OUTPUTS, PlainElements, PlainLayout, PlainMatrix,
    multiply::{Cut, run_all, run_parts},
    task::{Operand, Part, Start, Task},
    thin,
};
use crate::{
    change::RowChange,
    matrix::{Matrix, MatrixMut},
    simd::{Instructions, Simd},
    threads,
};

impl<'a> PlainMatrix<'a> {
    /// The parts that outputs are cut into.
    fn parts(self, panels_each: usize) -> Vec<Part<'a>> {
        let panels = self.outputs.div_ceil(PANEL_OUTPUTS);
        let part = |first: usize| Part {
            operand: Operand::Plain(self),
            inputs: 0..self.inputs,
            panels: panels_each.min(panels - first),
            first_output: first * PANEL_OUTPUTS,
        };
        (0..panels).step_by(panels_each).map(part).collect()
    }
}

/// `out[m, n] (+)= x[m, k] · w`, then the epilogue.
///
/// # Panics
/// If shapes disagree.
pub fn plain_product(
    instructions: Instructions,
    x: Matrix<'_>,
    weight: PlainMatrix<'_>,
    out: MatrixMut<'_>,
    start: Start,
    epilogue: Epilogue<'_>,
) {
    weight.check();
    assert_eq!(x.rows(), out.rows(), "a product's rows");
    assert_eq!((x.columns(), out.columns()), (weight.inputs, weight.outputs), "inputs and outputs of a product");
    if let Some(bias) = epilogue.bias {
        assert_eq!(bias.len(), out.columns(), "a bias is one value for each output");
    }
    if x.rows() == 0 || out.columns() == 0 {
        return;
    }
    if start == Start::Zero && thin::is_thin(x, &out) {
        return thin::thin_product(instructions, x, Operand::Plain(weight), out, epilogue);
    }
    let panels = weight.outputs.div_ceil(PANEL_OUTPUTS);
    let parts = threads::parts(x.rows() * weight.inputs * weight.outputs, usize::MAX);
    let cut = Cut::new(x.rows(), weight.inputs, panels, parts);
    let parts = weight.parts(cut.panels);
    run_parts(instructions, &cut, (x, &parts), out, start, epilogue);
}

/// `out[m, n] (+)= x[m, k] · w` on this thread, within a routine; `out` has a slice a row.
///
/// # Panics
/// If shapes disagree.
#[inline(always)]
pub(crate) fn plain_product_within<'a, S: Simd>(
    simd: S,
    x: Matrix<'a>,
    weight: PlainMatrix<'a>,
    out: &mut [&mut [f32]],
    start: Start,
) {
    weight.check();
    assert_eq!((x.rows(), x.columns()), (out.len(), weight.inputs), "rows and inputs of a product");
    let panels = weight.outputs.div_ceil(PANEL_OUTPUTS);
    let part = Part { operand: Operand::Plain(weight), inputs: 0..weight.inputs, panels, first_output: 0 };
    simd.run(&mut Task { x, first_row: 0, part, out, start, epilogue: Epilogue::default() });
}

/// Products of two stacks of matrices, of the same shapes.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Rows of each left matrix.
    pub rows: usize,
    /// The left matrices, each `[rows, k]` with rows `left_stride` apart.
    pub left: &'a [f32],
    /// Distance between rows of a left matrix.
    pub left_stride: usize,
    /// Where each left matrix begins.
    pub left_places: &'a [usize],
    /// The right matrices: the elements of all, the shape of each.
    pub right: PlainMatrix<'a>,
    /// Where each right matrix begins.
    pub right_places: &'a [usize],
}

impl Batch<'_> {
    /// Matrices by columns as rows by the matrices transposed, whose outputs lie in the same order: vectors hold outputs, of which
    /// each row has one. `None` for other products.
    fn turned(&self) -> Option<Batch<'_>> {
        let Self { rows, left, left_stride, left_places, right, right_places } = *self;
        let inputs = right.inputs;
        let lies_together = right.layout == PlainLayout::InputsInner || right.stride == 1;
        let PlainElements::F32(columns) = right.elements else { return None };
        let elements = PlainElements::F32(left);
        (right.outputs == 1 && rows > 1 && lies_together).then(|| Batch {
            rows: 1,
            left: columns,
            left_stride: inputs,
            left_places: right_places,
            right: PlainMatrix {
                stride: left_stride,
                ..PlainMatrix::new(elements, PlainLayout::InputsInner, inputs, rows)
            },
            right_places: left_places,
        })
    }
}

/// `out[i, m, n] = left_i[m, k] · right_i[k, n]` for all `i`.
///
/// # Panics
/// If shapes disagree.
pub fn batched_product(instructions: Instructions, batch: &Batch<'_>, out: &mut [f32], epilogue: Epilogue<'_>) {
    let (inputs, outputs) = (batch.right.inputs, batch.right.outputs);
    let count = batch.left_places.len();
    assert_eq!(batch.right_places.len(), count, "matrices on both sides");
    assert_eq!(out.len(), count * batch.rows * outputs, "outputs of {count} products");
    if out.is_empty() {
        return;
    }
    // A bias has an element for each column.
    if epilogue.bias.is_none()
        && let Some(turned) = batch.turned()
    {
        let change = epilogue.change.map(|change| RowChange { columns: batch.rows, ..change });
        return batched_product(instructions, &turned, out, Epilogue { change, ..epilogue });
    }
    if let ([left], [right]) = (batch.left_places, batch.right_places) {
        let x = batch.left.get(*left..).unwrap_or_default();
        let x = Matrix::with_stride(x, batch.rows, inputs, batch.left_stride);
        let weight = PlainMatrix { elements: batch.right.elements.from(*right), ..batch.right };
        return plain_product(instructions, x, weight, MatrixMut::new(out, batch.rows, outputs), Start::Zero, epilogue);
    }
    let operations = count * batch.rows * inputs * outputs;
    let parts = threads::parts(operations, usize::MAX).div_ceil(count);
    let cut = Cut::new(batch.rows, inputs, outputs.div_ceil(PANEL_OUTPUTS), parts);
    let weight_of = |right: &usize| PlainMatrix { elements: batch.right.elements.from(*right), ..batch.right };
    let mut products = Vec::new();
    for (right, out) in batch.right_places.iter().zip(out.chunks_mut(batch.rows * outputs)) {
        let weight = weight_of(right);
        weight.check();
        let parts = weight.parts(cut.panels);
        let shares = cut.shares(&parts, MatrixMut::new(out, batch.rows, outputs));
        products.push((parts, shares));
    }
    let mut tasks = Vec::new();
    for (index, (&left, (parts, shares))) in batch.left_places.iter().zip(&mut products).enumerate() {
        let x = Matrix::with_stride(batch.left.get(left..).unwrap_or_default(), batch.rows, inputs, batch.left_stride);
        let epilogue = epilogue.rows_further(index * batch.rows);
        tasks.extend(cut.tasks(x, parts, shares, Start::Zero, epilogue));
    }
    // Small products stay on this thread, all of them.
    if operations < threads::SERIAL_OPERATIONS {
        return tasks.iter_mut().for_each(|task| instructions.run(task));
    }
    run_all(instructions, tasks);
}

/// Where each matrix of an operand begins when its batch axes `operand` are broadcast to `batch` (aligned at the end): `size`
/// is the number of elements of one matrix.
///
/// # Panics
/// If an axis of the operand is neither 1 nor that of the batch.
#[must_use]
pub fn broadcast_places(batch: &[usize], operand: &[usize], size: usize) -> Vec<usize> {
    let mut places = vec![0];
    let mut strides = vec![0; batch.len()];
    let mut stride = size;
    for (axis, &extent) in operand.iter().enumerate().rev() {
        let axis = batch.len() - operand.len() + axis;
        assert!(extent == 1 || extent == batch[axis], "batch axes {operand:?} do not broadcast to {batch:?}");
        strides[axis] = if extent == 1 { 0 } else { stride };
        stride *= extent;
    }
    for (&extent, &stride) in batch.iter().zip(&strides) {
        places = places.iter().flat_map(|&place| (0..extent).map(move |index| place + index * stride)).collect();
    }
    places
}
