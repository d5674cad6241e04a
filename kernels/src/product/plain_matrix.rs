//! A matrix as it comes, row-major, with outputs or with inputs side by side: how few rows are multiplied with it where it lies,
//! and how its panels are filled for many.

use std::ops::Range;

use half::{bf16, f16};

use super::{
    PANEL_OUTPUTS,
    panels::{RUN, Weight},
    tile,
};
use crate::{
    matrix::Matrix,
    scratch::scratch,
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
    pub(super) fn from(&self, first: usize) -> Self {
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

    /// Rows, and elements of a row.
    fn extents(&self) -> (usize, usize) {
        match self.layout {
            PlainLayout::OutputsInner => (self.inputs, self.outputs),
            PlainLayout::InputsInner => (self.outputs, self.inputs),
        }
    }

    /// Writes inputs `inputs` of the 16 outputs from `first` on as f32 to `wide`, which is as long; outputs that the matrix does not
    /// have become 0.
    #[inline(always)]
    pub(super) fn fill_panel<S: Simd>(&self, simd: S, first: usize, inputs: Range<usize>, wide: &mut [[f32; LANES]]) {
        let matrix = *self;
        match self.elements {
            PlainElements::F32(elements) => simd.run(FillPanel { matrix, elements, first, inputs, wide }),
            PlainElements::F16(elements) => simd.run(FillPanel { matrix, elements, first, inputs, wide }),
            PlainElements::Bf16(elements) => simd.run(FillPanel { matrix, elements, first, inputs, wide }),
        }
    }

    /// Whether no element is NaN or an infinity.
    pub(crate) fn is_finite(&self) -> bool {
        let (rows, columns) = self.extents();
        let mut places = (0..rows).map(|row| row * self.stride..row * self.stride + columns);
        match self.elements {
            PlainElements::F32(values) => places.all(|row| values[row].iter().all(|value| value.is_finite())),
            PlainElements::F16(values) => places.all(|row| values[row].iter().all(|value| value.is_finite())),
            PlainElements::Bf16(values) => places.all(|row| values[row].iter().all(|value| value.is_finite())),
        }
    }

    /// Panics unless the elements hold it.
    pub(super) fn check(&self) {
        let (rows, columns) = self.extents();
        let needed = if rows == 0 { 0 } else { (rows - 1) * self.stride + columns };
        assert!(
            needed <= self.elements.len(),
            "a matrix of {rows} rows, {columns} columns and row stride {} does not lie in {} values",
            self.stride,
            self.elements.len()
        );
    }
}

/// The product of few rows with the outputs of a task.
pub(super) struct PlainFew<'t, 'o, W, const ROWS: usize> {
    pub x: Matrix<'t>,
    pub matrix: PlainMatrix<'t>,
    pub elements: &'t [W],
    pub first_output: usize,
    /// A slice a row, added to.
    pub out: &'t mut [&'o mut [f32]],
}

impl<W: Weight, const ROWS: usize> Routine for PlainFew<'_, '_, W, ROWS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { x, matrix, elements, first_output, out } = self;
        let mut rows = [&[][..]; ROWS];
        for (row, values) in rows.iter_mut().enumerate() {
            *values = x.row(row);
        }
        match matrix.layout {
            PlainLayout::OutputsInner => {
                let width = out[0].len();
                let mut sums = scratch(ROWS * BLOCK_OUTPUTS);
                let sums = sums.as_chunks_mut().0;
                for block in (0..width).step_by(BLOCK_OUTPUTS) {
                    let block = block..width.min(block + BLOCK_OUTPUTS);
                    let elements = elements.get(first_output + block.start..).unwrap_or_default();
                    add_rows::<S, W, ROWS>(simd, rows, elements, matrix.stride, block, sums, out);
                }
            }
            PlainLayout::InputsInner => {
                for output in (0..out[0].len()).step_by(LANES) {
                    add_across::<S, W, ROWS>(simd, rows, matrix, elements, first_output + output, |row, sum| {
                        let out = tile::at_most_a_vector(&mut out[row][output..]);
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
            let inputs = begin..begin + count;
            let columns = match transposed::<S, W>(simd, matrix, elements, first, &inputs) {
                Some(columns) => columns,
                None => {
                    let mut part = [[0.0; LANES]; LANES];
                    simd.run(TransposedPart { matrix, elements, first, inputs, columns: &mut part });
                    let mut columns = [simd.splat(0.0); LANES];
                    for input in 0..LANES {
                        columns[input] = simd.load(&part[input]);
                    }
                    columns
                }
            };
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

/// 16 inputs, each with 16 outputs from `first` on, of a matrix `[n, k]`; `None` where it does not have as many.
#[inline(always)]
fn transposed<S: Simd, W: Weight>(
    simd: S,
    matrix: PlainMatrix<'_>,
    elements: &[W],
    first: usize,
    inputs: &Range<usize>,
) -> Option<[S::Vector; LANES]> {
    if matrix.outputs - first < LANES || inputs.len() < LANES {
        return None;
    }
    let mut rows = [simd.splat(0.0); LANES];
    for output in 0..LANES {
        let values = &elements[(first + output) * matrix.stride + inputs.start..][..LANES];
        rows[output] = W::load_plain(simd, values);
    }
    Some(simd.transpose(rows))
}

/// At most 16 inputs, each with 16 outputs from `first` on; those that the matrix does not have are 0. A routine of its own, since loads
/// of parts of vectors are much code.
struct TransposedPart<'a, W> {
    matrix: PlainMatrix<'a>,
    elements: &'a [W],
    first: usize,
    inputs: Range<usize>,
    columns: &'a mut [[f32; LANES]; LANES],
}

impl<W: Weight> Routine for TransposedPart<'_, W> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { matrix, elements, first, inputs, columns } = self;
        let mut rows = [simd.splat(0.0); LANES];
        for (output, row) in rows.iter_mut().enumerate().take(matrix.outputs - first) {
            let values = &elements[(first + output) * matrix.stride..];
            *row = W::load_plain(simd, &values[inputs.clone()]);
        }
        let vectors = simd.transpose(rows);
        for input in 0..LANES {
            simd.store(vectors[input], &mut columns[input]);
        }
    }
}

/// A matrix of f32 in panels, for products that use it several times.
///
/// # Panics
/// If the elements do not hold it, or are not f32.
#[must_use]
pub fn panels_of(instructions: Instructions, matrix: PlainMatrix<'_>) -> Vec<f32> {
    matrix.check();
    let PlainElements::F32(elements) = matrix.elements else { panic!("panels of f32") };
    let length = matrix.inputs * PANEL_OUTPUTS;
    let mut panels = vec![0.0; matrix.outputs.div_ceil(PANEL_OUTPUTS) * length];
    let count = matrix.outputs.div_ceil(PANEL_OUTPUTS);
    let each = count.div_ceil(threads::parts(panels.len(), count)).max(1);
    threads::chunks(&mut panels, (each * length).max(1), |part, panels| {
        for (index, panel) in panels.chunks_mut(length).enumerate() {
            let (first, inputs) = ((part * each + index) * PANEL_OUTPUTS, 0..matrix.inputs);
            let wide = panel.as_chunks_mut().0;
            instructions.run(FillPanel { matrix, elements, first, inputs, wide });
        }
    });
    panels
}

/// Inputs `inputs` of the 16 outputs from `first` on, as f32; outputs that the matrix does not have are 0.
struct FillPanel<'a, W> {
    matrix: PlainMatrix<'a>,
    elements: &'a [W],
    first: usize,
    inputs: Range<usize>,
    /// As long as `inputs`.
    wide: &'a mut [[f32; LANES]],
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
                for (block, wide) in wide.chunks_mut(LANES).enumerate() {
                    let begin = inputs.start + block * LANES;
                    let inputs = begin..begin + wide.len();
                    if let Some(columns) = transposed::<S, W>(simd, matrix, elements, first, &inputs) {
                        for column in 0..LANES {
                            simd.store(columns[column], &mut wide[column]);
                        }
                        continue;
                    }
                    let mut full = [[0.0; LANES]; LANES];
                    simd.run(TransposedPart { matrix, elements, first, inputs, columns: &mut full });
                    wide.copy_from_slice(&full[..wide.len()]);
                }
            }
        }
    }
}
