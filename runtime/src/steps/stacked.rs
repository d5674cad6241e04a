//! The rows of several runs behind each other, so that a step takes them, and its weights, once for all.

use super::{Allocate, Context, Kernel, KernelError, Operand};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{BlockRunner, TypeError};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_kernels::product::Skipped;

/// A step of several runs as one.
pub(crate) struct Stacked {
    operands: Vec<Operand>,
    /// The axes before the last one of each run's result, which are those of its rows.
    row_axes: Vec<Vec<usize>>,
}

/// One step over the rows of all runs; gives their operands back where they cannot be one.
///
/// # Errors
/// [`KernelError::Memory`] where the budget has no room.
pub(crate) fn stack(
    kernel: &dyn Kernel,
    mut runs: Vec<Vec<Operand>>,
    memory: &mut dyn Allocate,
) -> Result<Result<Stacked, Vec<Vec<Operand>>>, KernelError> {
    let Some(stacked) = common_rows(kernel, &runs) else { return Ok(Err(runs)) };
    let mut row_axes = Vec::with_capacity(runs.len());
    for run in &runs {
        let Some(tensor) = stacked.first().and_then(|&at| rows(&run[at])) else { return Ok(Err(runs)) };
        row_axes.push(tensor.shape()[..tensor.rank() - 1].to_vec());
    }
    let mut joined = Vec::with_capacity(stacked.len());
    for &at in &stacked {
        let parts: Vec<&Tensor> = runs.iter().filter_map(|run| rows(&run[at])).collect();
        joined.push((at, behind_each_other(&parts, memory)?));
    }
    let mut operands = runs.swap_remove(0);
    for (at, tensor) in joined {
        operands[at] = Operand::Value(tensor.into());
    }
    Ok(Ok(Stacked { operands, row_axes }))
}

impl Stacked {
    /// Run the step; gives the result of each run, in memory that `allocate` gives it, and what was left out for all.
    ///
    /// # Errors
    /// [`KernelError`] as [`Kernel::run`].
    pub(crate) fn run(
        self,
        kernel: &dyn Kernel,
        blocks: &mut dyn BlockRunner,
        memory: &mut dyn Allocate,
        mut allocate: impl FnMut(usize, DType, &[usize]) -> Result<Tensor, KernelError>,
    ) -> Result<(Vec<Tensor>, Skipped), KernelError> {
        let mut context = Context { blocks, memory, random_state: 0, skipped: Skipped::default() };
        let results = kernel.run(self.operands, &mut context)?;
        let [Value::Tensor(all)] = results.as_slice() else {
            return Err(TypeError::MissingOperand { operand: 0 }.into());
        };
        let columns = all.shape().last().copied().unwrap_or(0);
        let mut bytes = all.bytes();
        let mut split = Vec::with_capacity(self.row_axes.len());
        for (run, mut shape) in self.row_axes.into_iter().enumerate() {
            shape.push(columns);
            let mut result = allocate(run, all.dtype(), &shape)?;
            let (own, others) = bytes.split_at(result.bytes().len());
            result.bytes_mut().copy_from_slice(own);
            bytes = others;
            split.push(result);
        }
        Ok((split, context.skipped))
    }
}

/// Operands that are rows in all runs alike: of the same element type, number of axes and columns.
fn common_rows(kernel: &dyn Kernel, runs: &[Vec<Operand>]) -> Option<Vec<usize>> {
    let (first, others) = runs.split_first()?;
    let stacked = kernel.independent_rows(first)?;
    let alike = |one: &Operand, other: &Operand| {
        let kind = |tensor: &Tensor| (tensor.dtype(), tensor.rank(), tensor.shape().last().copied());
        rows(one).map(kind).is_some_and(|one| Some(one) == rows(other).map(kind))
    };
    for run in others {
        if kernel.independent_rows(run)? != stacked || stacked.iter().any(|&at| !alike(&first[at], &run[at])) {
            return None;
        }
    }
    Some(stacked)
}

fn rows(operand: &Operand) -> Option<&Tensor> {
    match operand {
        Operand::Value(Value::Tensor(tensor)) if tensor.rank() > 1 => Some(tensor),
        Operand::Value(_) | Operand::Absent | Operand::Weight(_) | Operand::Version(_) => None,
    }
}

/// The rows of all in one tensor `[1, .., rows, columns]`.
fn behind_each_other(parts: &[&Tensor], memory: &mut dyn Allocate) -> Result<Tensor, KernelError> {
    let first = parts.first().ok_or(TypeError::MissingOperand { operand: 0 })?;
    let columns = first.shape().last().copied().unwrap_or(0);
    let mut shape = vec![1; first.rank()];
    shape[first.rank() - 2] = parts.iter().map(|part| part.shape()[..part.rank() - 1].iter().product::<usize>()).sum();
    shape[first.rank() - 1] = columns;
    let mut joined = memory.scratch(first.dtype(), &shape)?;
    let mut place = joined.bytes_mut();
    for part in parts {
        let (here, behind) = place.split_at_mut(part.bytes().len());
        here.copy_from_slice(part.bytes());
        place = behind;
    }
    Ok(joined)
}
