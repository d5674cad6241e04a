//! Indices of the largest or smallest elements.

use super::reduction::reference;
use crate::steps::{Context, Kernel, KernelError, Operand, tensor_operand};
use ipuc_formats::dtype::DType;
use ipuc_formats::element::Number;
use ipuc_formats::ops::{ArgReduce, TypeError, normalize_axis};
use ipuc_formats::value::Value;
use ipuc_formats::with_number;
use ipuc_kernels::simd::{Instructions, Routine, Simd};
use ipuc_kernels::threads::{chunks, parts};

impl Kernel for ArgReduce {
    fn run(&self, mut operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let data = tensor_operand(&mut operands, 0)?;
        let axis = normalize_axis(self.axis, data.rank())?;
        if data.count() == 0 {
            return reference(self, vec![Some(data.into())], context);
        }
        let mut extents = data.shape().to_vec();
        let length = extents[axis];
        let inner: usize = extents[axis + 1..].iter().product();
        if self.keep_axis {
            extents[axis] = 1;
        } else {
            extents.remove(axis);
        }
        let mut result = context.allocate(0, DType::I64, &extents)?;
        let out = result.elements_mut::<i64>()?;
        with_number!(
            data.dtype(),
            T => {
                let values = data.elements::<T>()?;
                match (self.smallest, self.last) {
                    (false, false) => find::<T, false, false>(values, length, inner, out),
                    (false, true) => find::<T, false, true>(values, length, inner, out),
                    (true, false) => find::<T, true, false>(values, length, inner, out),
                    (true, true) => find::<T, true, true>(values, length, inner, out),
                }
            },
            otherwise return Err(TypeError::Unsupported(format!("arg_reduce of {}", data.dtype())).into())
        );
        Ok(vec![result.into()])
    }
}

/// About how many operations an element costs that is compared with the one chosen so far.
const COMPARISON_COST: usize = 2;

/// Elements of a row that are compared side by side, each with the one chosen so far in its lane.
const ROW_LANES: usize = 64;

/// The index of the chosen element of each line of `values: [outer, length, inner]`.
fn find<T: Number, const SMALLEST: bool, const LAST: bool>(values: &[T], length: usize, inner: usize, out: &mut [i64]) {
    let lines = out.len().div_ceil(parts(values.len() * COMPARISON_COST, out.len())).max(1);
    chunks(out, lines, |part, out| {
        Instructions::best().run(Find::<T, SMALLEST, LAST> { values, length, inner, first: part * lines, out });
    });
}

/// Lines from `first` on.
struct Find<'a, T, const SMALLEST: bool, const LAST: bool> {
    values: &'a [T],
    length: usize,
    inner: usize,
    first: usize,
    out: &'a mut [i64],
}

#[inline(always)]
fn is_nan<T: Number>(number: T) -> bool {
    number.partial_cmp(&number).is_none()
}

/// Whether a later element is chosen over an earlier one: NaN over all others.
#[inline(always)]
fn wins<T: Number, const SMALLEST: bool, const LAST: bool>(value: T, so_far: T) -> bool {
    let better = if SMALLEST { value < so_far } else { value > so_far };
    let equal = LAST & (value == so_far);
    let (value_is_nan, so_far_is_nan) = (is_nan(value), is_nan(so_far));
    (better | equal) & !so_far_is_nan | value_is_nan & (LAST | !so_far_is_nan)
}

impl<T: Number, const SMALLEST: bool, const LAST: bool> Routine for Find<'_, T, SMALLEST, LAST> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        if self.inner == 1 {
            self.in_rows();
        } else {
            self.in_columns();
        }
    }
}

impl<T: Number, const SMALLEST: bool, const LAST: bool> Find<'_, T, SMALLEST, LAST> {
    /// Finds the chosen value of each row, then where it is.
    #[inline(always)]
    fn in_rows(self) {
        for (line, out) in self.out.iter_mut().enumerate() {
            let row = &self.values[(self.first + line) * self.length..][..self.length];
            let (blocks, rest) = row.as_chunks::<ROW_LANES>();
            let mut lanes = *blocks.first().unwrap_or(&[row[0]; ROW_LANES]);
            for values in blocks {
                for lane in 0..ROW_LANES {
                    let value = values[lane];
                    lanes[lane] = if wins::<T, SMALLEST, false>(value, lanes[lane]) { value } else { lanes[lane] };
                }
            }
            let mut chosen = lanes[0];
            for &value in lanes.iter().chain(rest) {
                chosen = if wins::<T, SMALLEST, false>(value, chosen) { value } else { chosen };
            }
            let is_chosen = |value: T| value == chosen || is_nan(value) && is_nan(chosen);
            let place = match LAST {
                true => row.iter().rposition(|&value| is_chosen(value)),
                false => row.iter().position(|&value| is_chosen(value)),
            };
            *out = place.unwrap_or(0) as i64;
        }
    }

    /// Compares rows with the values chosen so far, column by column.
    #[inline(always)]
    fn in_columns(self) {
        let Find { values, length, inner, first, mut out } = self;
        let mut line = first;
        let mut chosen = Vec::new();
        while !out.is_empty() {
            // To the end of the lines side by side.
            let (outer, column) = (line / inner, line % inner);
            let (places, rest) = out.split_at_mut((inner - column).min(out.len()));
            let rows = &values[outer * length * inner + column..];
            chosen.clear();
            chosen.extend_from_slice(&rows[..places.len()]);
            places.fill(0);
            for step in 1..length {
                let row = &rows[step * inner..][..places.len()];
                for ((place, chosen), &value) in places.iter_mut().zip(&mut chosen).zip(row) {
                    let wins = wins::<T, SMALLEST, LAST>(value, *chosen);
                    *chosen = if wins { value } else { *chosen };
                    *place = if wins { step as i64 } else { *place };
                }
            }
            line += places.len();
            out = rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::testing::{check, random};
    use ipuc_formats::tensor::Tensor;

    #[test]
    fn chosen_indices_agree_with_their_references() {
        let data = Tensor::from_elements(&[2, 3, 2], &[1i64, 5, 3, 5, 3, 0, -1, -1, -1, -1, -2, 7]).unwrap();
        let mut numbers: Vec<f32> = (0..3 * 70 * 5).map(|at| (at * 7919 % 13) as f32 - 6.0).collect();
        numbers[100] = f32::NAN;
        numbers[360] = f32::NAN;
        numbers[365] = f32::NAN;
        let numbers = Tensor::from_elements(&[3, 70, 5], &numbers).unwrap();
        let wide = Tensor::from_elements(&[2, 200], &vec![-0.0f32; 400]).unwrap();
        for (smallest, last) in [(false, false), (true, true), (false, true), (true, false)] {
            for axis in [0, 1, -1] {
                let operator = |keep_axis| ArgReduce { smallest, axis, keep_axis, last };
                check(&operator(true), &[Some(data.clone())], 0.0);
                check(&operator(false), &[Some(numbers.clone())], 0.0);
                check(&operator(false), &[random(DType::F32, &[3, 4, 5], 3)], 0.0);
                check(&operator(false), &[random(DType::F16, &[7, 300], 3)], 0.0);
                check(&operator(false), &[Some(wide.clone())], 0.0);
            }
        }
        check(
            &ArgReduce { smallest: false, axis: 0, keep_axis: false, last: false },
            &[random(DType::F32, &[130_000], 3)],
            0.0,
        );
        check(
            &ArgReduce { smallest: true, axis: 1, keep_axis: true, last: true },
            &[random(DType::F32, &[2, 21, 5000], 3)],
            0.0,
        );
    }
}
