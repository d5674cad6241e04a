//! Products of integers of 8 bits: exact sums, then the program over them.
//!
//! Where outputs come with all their inputs, a task completes the sums of some rows and outputs and runs the program over them
//! while they lie in the second-level cache. Weights that come in pieces of their inputs add to sums of the whole result first.

use super::exact;
use super::floats::single;
use super::fused;
use super::integer_operands::{byte_types, each_zero, reads_own, reloaded, same_types, single_zero, zero_points};
use super::integer_tasks::{Cut, ROWS_UNIT, outputs_of, sums_of};
use super::panels::{PanelWeight, Run, within};
use super::requantized::{Along, Finish};
use crate::steps::program::{self, Accumulators};
use crate::steps::{Context, Kernel, KernelError, Operand, run_reference, tensor_operand};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{self, IntegerMatmul, ProductPlan, Program};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_kernels::product::{
    ByteType, IntegerLine, IntegerPiece, IntegerRows, IntegerSums, IntegerWeight, PANEL_OUTPUTS, SumOrder,
    integer_product, pack_integers,
};
use ipuc_kernels::scratch::scratch;
use ipuc_kernels::simd::Instructions;
use ipuc_kernels::threads::{each_mut, serially};
use std::ops::Range;

/// Operands of a product itself; further ones are the program's.
const MATMUL_OPERANDS: usize = 4;

/// The right operand: in panels part by part, or whole.
pub(super) enum Weights {
    Panels(PanelWeight),
    Plain(Tensor),
}

impl Weights {
    /// Operand 1. Panels of another matrix than that of the operator, which a file may hold, are decoded.
    pub(super) fn new(operator: &dyn ops::Product, operands: &mut [Operand]) -> Result<Weights, KernelError> {
        if let Some(Operand::Weight(weight)) = operands.get(1)
            && let Some(panels) = PanelWeight::of_integers(weight)
            && panels.is_of(operator, weight.shape()?)
        {
            return Ok(Weights::Panels(panels));
        }
        Ok(Weights::Plain(tensor_operand(operands, 1)?))
    }

    pub(super) fn shape(&self) -> Result<&[usize], KernelError> {
        match self {
            Weights::Panels(weight) => weight.weight.shape(),
            Weights::Plain(tensor) => Ok(tensor.shape()),
        }
    }

    pub(super) fn dtype(&self) -> DType {
        match self {
            Weights::Panels(weight) => weight.weight.dtype(),
            Weights::Plain(tensor) => tensor.dtype(),
        }
    }

    /// Whether each output comes with all its inputs at once.
    pub(super) fn come_whole(&self, inputs: usize) -> bool {
        match self {
            Weights::Panels(weight) => weight.comes_whole(inputs),
            Weights::Plain(_) => true,
        }
    }

    /// Calls `visit` with groups of filters and pieces of them, the panels of which are counted from the group's first.
    pub(super) fn each_group(
        &self,
        [groups, inputs, filters]: [usize; 3],
        mut visit: impl FnMut(usize, &[IntegerPiece<'_>]) + Send,
    ) -> Result<(), KernelError> {
        match self {
            Weights::Panels(weight) => {
                let panels = filters.div_ceil(PANEL_OUTPUTS);
                weight.for_each_run(|runs| {
                    for group in 0..groups {
                        let runs = within(runs, &(group * panels..(group + 1) * panels));
                        if !runs.is_empty() {
                            visit(group, &pieces(&runs));
                        }
                    }
                    Ok(())
                })
            }
            Weights::Plain(tensor) => {
                for (group, filter) in (0..groups).zip((0..).step_by(filters.max(1))) {
                    let matrix = &tensor.bytes()[filter * inputs..(filter + filters) * inputs];
                    let lines = pack_integers(matrix, [inputs, filters], [1, inputs]);
                    let panels = 0..filters.div_ceil(PANEL_OUTPUTS);
                    visit(group, &[IntegerPiece { panels, inputs: 0..inputs, lines: &lines }]);
                }
                Ok(())
            }
        }
    }

    pub(super) fn into_tensor(self) -> Result<Tensor, KernelError> {
        match self {
            Weights::Panels(weight) => weight.weight.tensor(),
            Weights::Plain(tensor) => Ok(tensor),
        }
    }
}

/// Runs of a weight of bytes as the kernel takes them.
pub(super) fn pieces<'a>(runs: &[Run<'a>]) -> Vec<IntegerPiece<'a>> {
    let piece = |run: &Run<'a>| {
        let lines: &[IntegerLine] = run.bytes.as_chunks().0;
        IntegerPiece { panels: run.panels.clone(), inputs: run.inputs.clone(), lines }
    };
    runs.iter().map(piece).collect()
}

/// The result of a program over sums; the sums themselves without one.
pub(super) fn finished(
    program: &Program,
    sums: &[i32],
    shape: &[usize],
    further: &[Option<Value>],
    context: &mut Context<'_>,
) -> Result<Vec<Value>, KernelError> {
    if program.is_empty() {
        let mut result = context.allocate(0, DType::I32, shape)?;
        result.elements_mut::<i32>()?.copy_from_slice(sums);
        return Ok(vec![result.into()]);
    }
    let results = program::apply(program, Accumulators::Integer(sums), shape, further, context)?;
    Ok(vec![single(results)?.into()])
}

impl Kernel for IntegerMatmul {
    fn run(&self, mut operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let Some([a_kind, b_kind]) = byte_types(&operands) else { return exact::matmul(self, operands, context) };
        if reads_own(&self.program, MATMUL_OPERANDS) {
            return run_reference(self, operands, context);
        }
        let further = fused::operands(&mut operands, MATMUL_OPERANDS)?;
        let (a_zero, b_zero) = (zero_points(&mut operands, 2)?, zero_points(&mut operands, 3)?);
        let a = tensor_operand(&mut operands, 0)?;
        let weights = Weights::new(self, &mut operands)?;
        let b_shape = weights.shape()?;
        let plan = context.prepared(&[a.shape(), b_shape], || self.resolve(a.shape(), b_shape))?;
        let columns = plan.b.columns;
        // Zero points of single columns have one axis.
        let known = b_zero.as_ref().is_none_or(|zero| zero.count() == 1 || (zero.rank() == 1 && !plan.b.vector))
            && same_types([a_zero.as_ref(), b_zero.as_ref()], [a.dtype(), weights.dtype()]);
        let zeros = (single_zero(a_zero.as_ref()), each_zero(b_zero.as_ref(), columns));
        let (true, (Some(zero), Some(zeros))) = (known, zeros) else {
            let operands = reloaded([Some(a), Some(weights.into_tensor()?), a_zero, b_zero], further, MATMUL_OPERANDS);
            return run_reference(self, operands, context);
        };
        let weight = IntegerWeight { kind: b_kind, zeros: &zeros };
        let product = Product { plan: &plan, a: a.bytes(), a_kind, zero, weight };
        if weights.come_whole(plan.a.columns)
            && let Some(finish) = Finish::new(&self.program, &plan.shape, Along::Outputs, &further)?
        {
            let mut result = context.allocate(0, finish.dtype(), &plan.shape)?;
            if result.count() > 0 {
                product.finish_all(&weights, &finish, result.bytes_mut())?;
            }
            finish.finish()?;
            return Ok(vec![result.into()]);
        }
        let sums = product.sums(&weights)?;
        finished(&self.program, &sums, &plan.shape, &further, context)
    }
}

/// A matrix product of which the operands are known.
struct Product<'a> {
    plan: &'a ProductPlan,
    a: &'a [u8],
    a_kind: ByteType,
    zero: i32,
    weight: IntegerWeight<'a>,
}

impl Product<'_> {
    /// Writes the results, of which each output comes whole.
    fn finish_all(&self, weights: &Weights, finish: &Finish<'_>, out: &mut [u8]) -> Result<(), KernelError> {
        self.each_matrix(weights, out, |first, x, pieces, out| self.finish_matrix(first, x, pieces, finish, out))
    }

    /// Sums of a product whose outputs come part by part.
    fn sums(&self, weights: &Weights) -> Result<Vec<i32>, KernelError> {
        let mut sums: Vec<i32> = sums_of(&self.plan.shape)?;
        if !sums.is_empty() {
            self.each_matrix(weights, &mut sums, |_, x, pieces, sums| {
                let out = IntegerSums { sums, order: SumOrder::Rows };
                integer_product(Instructions::best(), x, self.zero, self.weight, pieces, out);
            })?;
        }
        Ok(sums)
    }

    /// Calls `visit` with the first row of a matrix of the result, its left operand, pieces of the right one, and its elements.
    fn each_matrix<T: Send>(
        &self,
        weights: &Weights,
        out: &mut [T],
        mut visit: impl FnMut(usize, &IntegerRows<'_>, &[IntegerPiece<'_>], &mut [T]) + Send,
    ) -> Result<(), KernelError> {
        let ProductPlan { a, b, batches, .. } = self.plan;
        let (rows, inputs, columns) = (a.rows, a.columns, b.columns);
        match weights {
            Weights::Panels(weight) => {
                let x = IntegerRows::new(self.a, rows * batches.len(), inputs, self.a_kind);
                weight.for_each_run(|runs| {
                    visit(0, &x, &pieces(runs), out);
                    Ok(())
                })?;
            }
            Weights::Plain(tensor) => {
                let matrices = batches.iter().zip(out.chunks_mut((out.len() / batches.len()).max(1))).enumerate();
                let mut packed: Option<(usize, Vec<IntegerLine>)> = None;
                for (matrix, (&(left, right), out)) in matrices {
                    if packed.as_ref().is_none_or(|(place, _)| *place != right) {
                        let matrix = &tensor.bytes()[right..right + inputs * columns];
                        packed = Some((right, pack_integers(matrix, [inputs, columns], [columns, 1])));
                    }
                    let lines = packed.as_ref().map_or(&[][..], |(_, lines)| lines);
                    let panels = 0..columns.div_ceil(PANEL_OUTPUTS);
                    let piece = IntegerPiece { panels, inputs: 0..inputs, lines };
                    let x = IntegerRows::new(&self.a[left..left + rows * inputs], rows, inputs, self.a_kind);
                    visit(matrix * rows, &x, &[piece], out);
                }
            }
        }
        Ok(())
    }

    /// Writes the results of some outputs of rows, the first of which is `first` of the whole result.
    fn finish_matrix(
        &self,
        first: usize,
        x: &IntegerRows<'_>,
        pieces: &[IntegerPiece<'_>],
        finish: &Finish<'_>,
        out: &mut [u8],
    ) {
        let (columns, size) = (self.plan.b.columns, finish.dtype().bits() / 8);
        let cut = Cut::of_rows(x.rows(), ROWS_UNIT, x.inputs(), pieces);
        let mut shares = cut.shares(out, columns, size);
        let task = |(index, results): (usize, _)| {
            let start = index / cut.outputs.len() * cut.rows;
            let rows = start..x.rows().min(start + cut.rows);
            let pieces = cut.outputs[index % cut.outputs.len()].as_slice();
            Task { first: first + start, rows, pieces, results }
        };
        let tasks: Vec<Task<'_, '_, '_>> = shares.iter_mut().enumerate().map(task).collect();
        each_mut(tasks, |task| serially(|| self.finish_task(x, task, finish)));
    }

    fn finish_task(&self, x: &IntegerRows<'_>, task: &mut Task<'_, '_, '_>, finish: &Finish<'_>) {
        let (x, columns) = (x.part(task.rows.clone()), self.plan.b.columns);
        let (first, size) = (outputs_of(task.pieces, columns).start, finish.dtype().bits() / 8);
        for piece in task.pieces {
            let own = outputs_of(std::slice::from_ref(piece), columns);
            let mut sums = scratch(own.len() * x.rows());
            let sums: &mut [i32] = bytemuck::cast_slice_mut(&mut sums);
            sums.fill(0);
            let weight = IntegerWeight { kind: self.weight.kind, zeros: &self.weight.zeros[own.clone()] };
            let alone = IntegerPiece { panels: 0..piece.panels.len(), ..piece.clone() };
            let out = IntegerSums { sums, order: SumOrder::Rows };
            integer_product(Instructions::best(), &x, self.zero, weight, &[alone], out);
            let places = (task.first..).map(|row| row * columns + own.start);
            let results = (own.start - first) * size..(own.end - first) * size;
            let rows = places.zip(sums.chunks(own.len())).zip(task.results.iter_mut());
            let rows = rows.map(|((place, sums), row)| (place, sums, &mut row[results.clone()]));
            finish.write_rows(own.start, own.len(), rows);
        }
    }
}

/// Some rows by some outputs.
struct Task<'s, 'a, 'w> {
    /// The first row, of the whole result.
    first: usize,
    /// Rows of the left operand.
    rows: Range<usize>,
    pieces: &'a [IntegerPiece<'w>],
    /// The results of each row.
    results: &'s mut [&'a mut [u8]],
}
