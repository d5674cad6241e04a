//! Products with matrices as they come: row-major, with outputs or with inputs side by side.
//!
//! With many rows they are packed into panels on the way, a run of inputs of three panels at a time. With few rows the matrix
//! is read once, where it lies:
//!
//! - `[k, n]`: rows of the matrix are added into a block of outputs.
//! - `[n, k]`: 16 rows of the matrix are transposed in registers, 16 inputs at a time.
//!
//! The order of the sums is always that of `product`.

use std::ops::Range;

use half::{bf16, f16};

use super::{
    Epilogue, PANEL_OUTPUTS, Start,
    multiply::{Cut, run_all},
    panels::Weight,
    task::{Operand, Part, Task},
    tile::{self, RUN},
};
use crate::kernels::{
    matrix::{Matrix, MatrixMut},
    simd::{Instructions, LANES, Routine, Simd},
    threads,
};

/// Outputs of a block that rows are added into: it stays in the first-level cache.
const BLOCK_OUTPUTS: usize = 1024;

/// Rows of a matrix that are added at once.
const ROWS_AT_ONCE: usize = 4;

/// The elements of a matrix.
#[derive(Clone, Copy, Debug)]
pub enum PlainElements<'a> {
    /// f32.
    F32(&'a [f32]),
    /// f16.
    F16(&'a [f16]),
    /// bf16.
    Bf16(&'a [bf16]),
}

impl<'a> PlainElements<'a> {
    /// The number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::F32(elements) => elements.len(),
            Self::F16(elements) => elements.len(),
            Self::Bf16(elements) => elements.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All from `first` on.
    fn from(&self, first: usize) -> Self {
        match self {
            Self::F32(elements) => Self::F32(&elements[first..]),
            Self::F16(elements) => Self::F16(&elements[first..]),
            Self::Bf16(elements) => Self::Bf16(&elements[first..]),
        }
    }
}

/// What lies side by side in a matrix of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlainLayout {
    /// Outputs: `[k, n]`.
    OutputsInner,
    /// Inputs: `[n, k]`.
    InputsInner,
}

/// The right side of a product as it comes.
#[derive(Clone, Copy, Debug)]
pub struct PlainMatrix<'a> {
    /// Rows one behind the other, `stride` apart.
    pub elements: PlainElements<'a>,
    /// What a row is.
    pub layout: PlainLayout,
    /// Distance between rows.
    pub stride: usize,
    /// k.
    pub inputs: usize,
    /// n.
    pub outputs: usize,
}

impl<'a> PlainMatrix<'a> {
    /// A matrix whose rows lie one behind the other.
    #[must_use]
    pub fn new(elements: PlainElements<'a>, layout: PlainLayout, inputs: usize, outputs: usize) -> Self {
        let stride = if layout == PlainLayout::OutputsInner { outputs } else { inputs };
        Self { elements, layout, stride, inputs, outputs }
    }

    /// Panics unless the elements hold it.
    fn check(&self) {
        let (rows, columns) = match self.layout {
            PlainLayout::OutputsInner => (self.inputs, self.outputs),
            PlainLayout::InputsInner => (self.outputs, self.inputs),
        };
        let needed = if rows == 0 { 0 } else { (rows - 1) * self.stride + columns };
        assert!(
            needed <= self.elements.len(),
            "a matrix of {rows} rows, {columns} columns and row stride {} does not lie in {} values",
            self.stride,
            self.elements.len()
        );
    }

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
    let panels = weight.outputs.div_ceil(PANEL_OUTPUTS);
    let parts = threads::parts(x.rows() * weight.inputs * weight.outputs, usize::MAX);
    let cut = Cut::new(x.rows(), weight.inputs, panels, parts);
    run_all(instructions, cut.tasks(x, &weight.parts(cut.panels), out, start, epilogue));
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
    out: Vec<&'a mut [f32]>,
    start: Start,
) {
    weight.check();
    assert_eq!((x.rows(), x.columns()), (out.len(), weight.inputs), "rows and inputs of a product");
    let panels = weight.outputs.div_ceil(PANEL_OUTPUTS);
    let part = Part { operand: Operand::Plain(weight), inputs: 0..weight.inputs, panels, first_output: 0 };
    simd.run(Task { x, first_row: 0, part, out, start, epilogue: Epilogue::default() });
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
    let operations = count * batch.rows * inputs * outputs;
    let parts = threads::parts(operations, usize::MAX).div_ceil(count);
    let cut = Cut::new(batch.rows, inputs, outputs.div_ceil(PANEL_OUTPUTS), parts);
    let mut tasks = Vec::new();
    let places = batch.left_places.iter().zip(batch.right_places);
    for (index, ((&left, &right), out)) in places.zip(out.chunks_mut(batch.rows * outputs)).enumerate() {
        let x = Matrix::with_stride(batch.left.get(left..).unwrap_or_default(), batch.rows, inputs, batch.left_stride);
        let weight = PlainMatrix { elements: batch.right.elements.from(right), ..batch.right };
        weight.check();
        let out = MatrixMut::new(out, batch.rows, outputs);
        let epilogue = epilogue.rows_further(index * batch.rows);
        tasks.extend(cut.tasks(x, &weight.parts(cut.panels), out, Start::Zero, epilogue));
    }
    // Small products stay on this thread, all of them.
    if operations < threads::SERIAL_OPERATIONS {
        return tasks.into_iter().for_each(|task| instructions.run(task));
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

/// The product of few rows with the outputs of a task.
pub(super) struct PlainFew<'t, 'a, W, const ROWS: usize> {
    pub task: &'t mut Task<'a>,
    pub matrix: PlainMatrix<'t>,
    pub elements: &'t [W],
}

impl<W: Weight, const ROWS: usize> Routine for PlainFew<'_, '_, W, ROWS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { task, matrix, elements } = self;
        let mut rows = [&[][..]; ROWS];
        for (row, values) in rows.iter_mut().enumerate() {
            *values = task.x.row(row);
        }
        let first = task.part.first_output;
        match matrix.layout {
            PlainLayout::OutputsInner => {
                let width = task.out[0].len();
                let mut sums = vec![[0.0; BLOCK_OUTPUTS]; ROWS];
                for block in (0..width).step_by(BLOCK_OUTPUTS) {
                    let block = block..width.min(block + BLOCK_OUTPUTS);
                    let elements = elements.get(first + block.start..).unwrap_or_default();
                    add_rows::<S, W, ROWS>(simd, rows, elements, matrix.stride, block, &mut sums, &mut task.out);
                }
            }
            PlainLayout::InputsInner => {
                for output in (0..task.out[0].len()).step_by(LANES) {
                    add_across::<S, W, ROWS>(simd, rows, matrix, elements, first + output, |row, sum| {
                        let out = tile::at_most_a_vector(&mut task.out[row][output..]);
                        simd.store_partial(simd.add(simd.load_partial(out), sum), out);
                    });
                }
            }
        }
    }
}

/// Adds the products of a matrix `[k, n]` with the outputs `block`, of which `elements` begins with the first.
#[inline(always)]
fn add_rows<S: Simd, W: Weight, const ROWS: usize>(
    simd: S,
    rows: [&[f32]; ROWS],
    elements: &[W],
    stride: usize,
    block: Range<usize>,
    sums: &mut [[f32; BLOCK_OUTPUTS]],
    out: &mut [&mut [f32]],
) {
    for first in (0..rows[0].len()).step_by(RUN) {
        let run = first..rows[0].len().min(first + RUN);
        sums.iter_mut().for_each(|sums| sums[..block.len()].fill(0.0));
        let mut input = run.start;
        while input + ROWS_AT_ONCE <= run.end {
            add_inputs::<S, W, ROWS, ROWS_AT_ONCE>(simd, rows, elements, stride, input, block.len(), sums);
            input += ROWS_AT_ONCE;
        }
        while input < run.end {
            add_inputs::<S, W, ROWS, 1>(simd, rows, elements, stride, input, block.len(), sums);
            input += 1;
        }
        for (out, sums) in out.iter_mut().zip(&*sums) {
            out[block.clone()].iter_mut().zip(sums).for_each(|(out, sum)| *out += sum);
        }
    }
}

/// Adds some inputs, in order, to the sums of `width` outputs.
#[inline(always)]
fn add_inputs<S: Simd, W: Weight, const ROWS: usize, const INPUTS: usize>(
    simd: S,
    rows: [&[f32]; ROWS],
    elements: &[W],
    stride: usize,
    first: usize,
    width: usize,
    sums: &mut [[f32; BLOCK_OUTPUTS]],
) {
    let mut factors = [[simd.splat(0.0); INPUTS]; ROWS];
    let mut weights = [&elements[..0]; INPUTS];
    for input in 0..INPUTS {
        weights[input] = &elements[(first + input) * stride..][..width];
        for row in 0..ROWS {
            factors[row][input] = simd.splat(rows[row][first + input]);
        }
    }
    for output in (0..width).step_by(LANES) {
        let mut vectors = [simd.splat(0.0); INPUTS];
        for input in 0..INPUTS {
            vectors[input] = W::load_plain(simd, &weights[input][output..]);
        }
        for row in 0..ROWS {
            // Sums are whole vectors; lanes behind the last output are never read.
            let sums = &mut sums[row][output..output + LANES];
            let mut sum = simd.load_partial(sums);
            for input in 0..INPUTS {
                sum = simd.fused(factors[row][input], vectors[input], sum);
            }
            simd.store_partial(sum, sums);
        }
    }
}

/// Gives `add` the sums of each run of inputs, in order, for the 16 outputs from `first` on of a matrix `[n, k]`.
#[inline(always)]
fn add_across<S: Simd, W: Weight, const ROWS: usize>(
    simd: S,
    rows: [&[f32]; ROWS],
    matrix: PlainMatrix<'_>,
    elements: &[W],
    first: usize,
    mut add: impl FnMut(usize, S::Vector),
) {
    for run in (0..matrix.inputs).step_by(RUN) {
        let end = matrix.inputs.min(run + RUN);
        let mut sums = [simd.splat(0.0); ROWS];
        for begin in (run..end).step_by(LANES) {
            let count = LANES.min(end - begin);
            let columns = transposed::<S, W>(simd, matrix, elements, first, begin..begin + count);
            for (input, &column) in columns.iter().enumerate().take(count) {
                for row in 0..ROWS {
                    sums[row] = simd.fused(simd.splat(rows[row][begin + input]), column, sums[row]);
                }
            }
        }
        for row in 0..ROWS {
            add(row, sums[row]);
        }
    }
}

/// At most 16 inputs, each with 16 outputs from `first` on, of a matrix `[n, k]`; outputs that it does not have are 0.
#[inline(always)]
fn transposed<S: Simd, W: Weight>(
    simd: S,
    matrix: PlainMatrix<'_>,
    elements: &[W],
    first: usize,
    inputs: Range<usize>,
) -> [S::Vector; LANES] {
    let mut rows = [simd.splat(0.0); LANES];
    for (output, row) in rows.iter_mut().enumerate().take(matrix.outputs - first) {
        let values = &elements[(first + output) * matrix.stride..];
        *row = W::load_plain(simd, &values[inputs.clone()]);
    }
    simd.transpose(rows)
}

/// Inputs `inputs` of the 16 outputs from `first` on, as f32; outputs that the matrix does not have are 0.
pub(super) struct FillPanel<'a, W> {
    pub matrix: PlainMatrix<'a>,
    pub elements: &'a [W],
    pub first: usize,
    pub inputs: Range<usize>,
    /// As long as `inputs`.
    pub wide: &'a mut [[f32; LANES]],
}

impl<W: Weight> Routine for FillPanel<'_, W> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { matrix, elements, first, inputs, wide } = self;
        match matrix.layout {
            PlainLayout::OutputsInner => {
                let outputs = PANEL_OUTPUTS.min(matrix.outputs - first);
                for (input, wide) in inputs.zip(wide) {
                    let values = &elements[input * matrix.stride + first..][..outputs];
                    simd.store(W::load_plain(simd, values), wide);
                }
            }
            PlainLayout::InputsInner => {
                let mut full = [[0.0; LANES]; LANES];
                for (block, wide) in wide.chunks_mut(LANES).enumerate() {
                    let begin = inputs.start + block * LANES;
                    let columns = transposed::<S, W>(simd, matrix, elements, first, begin..begin + wide.len());
                    for column in 0..LANES {
                        simd.store(columns[column], &mut full[column]);
                    }
                    wide.copy_from_slice(&full[..wide.len()]);
                }
            }
        }
    }
}
