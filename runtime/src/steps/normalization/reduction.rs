//! Reductions, running sums, losses.
//!
//! Reductions of floats fold rows and columns in f32, axis group by axis group from the last one; those of f64 and of integers
//! of 32 and 64 bits are in `numbers`, others run by their reference.

use super::numbers;
use crate::steps::floats::{computed, computes, widened};
use crate::steps::{Context, Kernel, KernelError, Operand, run_reference};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{NegativeLogLikelihood, Operator, Reduce, ReduceFunction, integers};
use ipuc_formats::tensor::{Tensor, strides};
use ipuc_formats::value::Value;
use ipuc_kernels::reduce::{Fold, fold_columns, fold_rows};
use ipuc_kernels::simd::Instructions;
use ipuc_kernels::softmax::log_sum_exp;
use ipuc_kernels::strided::Strided;

impl Kernel for NegativeLogLikelihood {}

/// Adjacent axes of one kind as one: extent, and whether it is reduced. Extents of 1 are left out.
fn groups(shape: &[usize], axes: &[usize]) -> Vec<(usize, bool)> {
    let mut groups: Vec<(usize, bool)> = Vec::new();
    for (axis, &extent) in shape.iter().enumerate().filter(|(_, extent)| **extent != 1) {
        let reduced = axes.contains(&axis);
        match groups.last_mut() {
            Some((merged, kind)) if *kind == reduced => *merged *= extent,
            _ => groups.push((extent, reduced)),
        }
    }
    // A reduction of nothing still maps each element.
    if groups.iter().all(|(_, reduced)| !reduced) {
        groups.push((1, true));
    }
    groups
}

/// The fold behind a function, and what follows on its results.
fn folding(function: ReduceFunction, count: usize) -> Option<(Fold, Option<Finish>)> {
    let count = count as f32;
    Some(match function {
        ReduceFunction::Sum => (Fold::Sum, None),
        ReduceFunction::Product => (Fold::Product, None),
        ReduceFunction::Max => (Fold::Max, None),
        ReduceFunction::Min => (Fold::Min, None),
        ReduceFunction::L1 => (Fold::AbsoluteSum, None),
        ReduceFunction::SumSquare => (Fold::SquareSum, None),
        ReduceFunction::L2 => (Fold::SquareSum, Some(Finish::SquareRoot)),
        ReduceFunction::LogSum => (Fold::Sum, Some(Finish::Logarithm)),
        ReduceFunction::Mean => (Fold::Sum, Some(Finish::Divide(count))),
        ReduceFunction::LogSumExp => return None,
    })
}

#[derive(Clone, Copy)]
enum Finish {
    SquareRoot,
    Logarithm,
    Divide(f32),
}

impl Finish {
    fn apply(self, values: &mut [f32]) {
        match self {
            Finish::SquareRoot => values.iter_mut().for_each(|value| *value = value.sqrt()),
            Finish::Logarithm => values.iter_mut().for_each(|value| *value = value.ln()),
            Finish::Divide(count) => values.iter_mut().for_each(|value| *value /= count),
        }
    }
}

/// Fold the reduced groups, the last one first.
fn fold_groups(mut groups: Vec<(usize, bool)>, fold: Fold, values: &[f32], out: &mut [f32]) {
    let instructions = Instructions::best();
    let mut partial: Option<Vec<f32>> = None;
    let mut fold_now = fold;
    while let Some(at) = groups.iter().rposition(|(_, reduced)| *reduced) {
        let outer: usize = groups[..at].iter().map(|(extent, _)| extent).product();
        let inner: usize = groups[at + 1..].iter().map(|(extent, _)| extent).product();
        groups.remove(at);
        let current = partial.as_deref().unwrap_or(values);
        let last = groups.iter().all(|(_, reduced)| !reduced);
        let mut next = if last { Vec::new() } else { vec![0.0; outer * inner] };
        let target: &mut [f32] = if last { &mut *out } else { &mut next };
        if inner == 1 {
            fold_rows(instructions, fold_now, current, target);
        } else {
            fold_columns(instructions, fold_now, current, inner, target);
        }
        partial = Some(next);
        fold_now = fold.joining();
    }
}

impl Kernel for Reduce {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let inputs = loaded(operands)?;
        let Some(Value::Tensor(data)) = inputs.first().and_then(Option::as_ref) else {
            return reference(self, inputs, context);
        };
        if data.count() == 0 {
            return reference(self, inputs, context);
        }
        let given = inputs.get(1).is_some_and(Option::is_some).then(|| integers(&inputs, 1)).transpose()?;
        let axes = self.axes(given.as_deref(), data.rank())?;
        if !computes(data.dtype()) {
            return match of_numbers(self, data, &axes, context)? {
                Some(result) => Ok(vec![result.into()]),
                None => reference(self, inputs, context),
            };
        }
        if self.function == ReduceFunction::LogSumExp {
            return Ok(vec![log_sums(self, data, &axes, context)?.into()]);
        }
        let count = axes.iter().map(|&axis| data.shape()[axis]).product();
        let Some((fold, finish)) = folding(self.function, count) else { return reference(self, inputs, context) };
        let values = widened(data)?;
        let extents = self.extents(data.shape(), &axes);
        let result = computed(context, 0, data.dtype(), &extents, |out| {
            fold_groups(groups(data.shape(), &axes), fold, &values, out);
            if let Some(finish) = finish {
                finish.apply(out);
            }
            Ok(())
        })?;
        Ok(vec![result.into()])
    }
}

/// The reduction of integers or f64, where there is one.
fn of_numbers(
    operator: &Reduce,
    data: &Tensor,
    axes: &[usize],
    context: &mut Context<'_>,
) -> Result<Option<Tensor>, KernelError> {
    let mut result = match data.dtype() {
        DType::F64 | DType::I32 | DType::I64 => {
            context.allocate(0, data.dtype(), &operator.extents(data.shape(), axes))?
        }
        _ => return Ok(None),
    };
    let groups = groups(data.shape(), axes);
    let is_done = match data.dtype() {
        DType::F64 => numbers::reduce::<f64>(operator.function, &groups, data, &mut result)?,
        DType::I32 => numbers::reduce::<i32>(operator.function, &groups, data, &mut result)?,
        _ => numbers::reduce::<i64>(operator.function, &groups, data, &mut result)?,
    };
    Ok(is_done.then_some(result))
}

/// Logarithms of sums of exponentials, over rows of what is reduced.
fn log_sums(
    operator: &Reduce,
    data: &Tensor,
    axes: &[usize],
    context: &mut Context<'_>,
) -> Result<Tensor, KernelError> {
    let values = widened(data)?;
    let groups = groups(data.shape(), axes);
    // Reduced axes last.
    let extents: Vec<usize> = groups.iter().map(|&(extent, _)| extent).collect();
    let own = strides(&extents);
    let mut order: Vec<usize> = (0..groups.len()).collect();
    order.sort_by_key(|&group| groups[group].1);
    let rows = if order.is_sorted() {
        values
    } else {
        let mut rows = vec![0.0; values.len()];
        let (extents, steps): (Vec<usize>, Vec<isize>) =
            order.iter().map(|&group| (extents[group], own[group] as isize)).unzip();
        Strided::new(&extents, &steps, 0).copy(&values, &mut rows);
        rows.into()
    };
    computed(context, 0, data.dtype(), &operator.extents(data.shape(), axes), |out| {
        log_sum_exp(Instructions::best(), &rows, out);
        Ok(())
    })
}

/// All operands as values, weights loaded.
pub(in crate::steps) fn loaded(operands: Vec<Operand>) -> Result<Vec<Option<Value>>, KernelError> {
    operands.into_iter().map(Operand::into_value).collect()
}

/// The reference over loaded operands.
pub(in crate::steps) fn reference<K: Operator + ?Sized>(
    operator: &K,
    inputs: Vec<Option<Value>>,
    context: &mut Context<'_>,
) -> Result<Vec<Value>, KernelError> {
    let operands = inputs.into_iter().map(|input| input.map_or(Operand::Absent, Operand::Value)).collect();
    run_reference(operator, operands, context)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::testing::{check, random};
    use strum::VariantArray;

    #[test]
    fn reductions_agree_with_their_references() {
        let axes: [Option<&[i64]>; 7] =
            [None, Some(&[-1]), Some(&[0]), Some(&[1]), Some(&[0, 2]), Some(&[1, 3]), Some(&[0, 1, 2, 3])];
        for &function in ReduceFunction::VARIANTS {
            for (index, axes) in axes.into_iter().enumerate() {
                let axes = axes.map(Tensor::vector_i64);
                for dtype in [DType::F32, DType::F16, DType::F64] {
                    let operator = Reduce { function, keep_axes: index % 2 == 0, keep_without_axes: index == 0 };
                    let data = random(dtype, &[3, 5, 1, 70], index as u32 + 1);
                    // Sums near zero make logarithms that no two orders agree on.
                    let data = if function == ReduceFunction::LogSum { positive(data) } else { data };
                    check(&operator, &[data, axes.clone()], if dtype == DType::F16 { 2e-3 } else { 1e-5 });
                }
            }
        }
    }

    #[test]
    fn integers_wrap_and_are_compared() {
        let large: Vec<i64> = (0..3 * 5 * 70).map(|at| (i64::MAX / 7).wrapping_mul(at % 11) - at).collect();
        let narrow: Vec<i32> = large.iter().map(|&value| value as i32).collect();
        let large = Tensor::from_elements(&[3, 5, 1, 70], &large).unwrap();
        let narrow = Tensor::from_elements(&[3, 5, 1, 70], &narrow).unwrap();
        for &function in [ReduceFunction::Sum, ReduceFunction::Max, ReduceFunction::Min, ReduceFunction::Mean].iter() {
            for axes in [&[-1][..], &[0], &[1], &[0, 2], &[1, 3], &[0, 1, 2, 3], &[2]] {
                let operator = Reduce { function, keep_axes: false, keep_without_axes: false };
                check(&operator, &[Some(large.clone()), Some(Tensor::vector_i64(axes))], 0.0);
                check(&operator, &[Some(narrow.clone()), Some(Tensor::vector_i64(axes))], 0.0);
            }
        }
    }

    fn positive(data: Option<Tensor>) -> Option<Tensor> {
        let mut data = data?;
        match data.dtype() {
            DType::F32 => data.elements_mut::<f32>().ok()?.iter_mut().for_each(|value| *value = value.abs() + 0.5),
            DType::F64 => data.elements_mut::<f64>().ok()?.iter_mut().for_each(|value| *value = value.abs() + 0.5),
            _ => {
                let elements = data.elements_mut::<half::f16>().ok()?;
                elements.iter_mut().for_each(|value| *value = half::f16::from_f32(value.to_f32().abs() + 0.5));
            }
        }
        Some(data)
    }
}
