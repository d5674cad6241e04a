//! The best elements of lines, the places of what is not zero, and triangles of matrices.

use super::{count, load, refer, tensor, with_words, words, words_mut};
use crate::kernels::threads::parts;
use crate::steps::{Context, Kernel, KernelError, Operand};
use half::{bf16, f16};
use ipuc_formats::dtype::DType;
use ipuc_formats::element::Element;
use ipuc_formats::ops::{NonZero, TopK, Trilu, normalize_axis};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use rayon::prelude::*;
use std::cmp::Ordering;

/// A number type with the order of `TopK`: NaN is larger than every number and equal to NaN.
trait Ordered: Element {
    fn order(self, other: Self) -> Ordering;
}

macro_rules! ordered {
    (integers: $($T:ident)*) => { $(
        impl Ordered for $T {
            fn order(self, other: Self) -> Ordering { self.cmp(&other) }
        }
    )* };
    (floats: $($T:ident)*) => { $(
        impl Ordered for $T {
            fn order(self, other: Self) -> Ordering {
                self.partial_cmp(&other).unwrap_or_else(|| self.is_nan().cmp(&other.is_nan()))
            }
        }
    )* };
}
ordered! { integers: u8 i8 u16 i16 u32 i32 u64 i64 }
ordered! { floats: f16 bf16 f32 f64 }

impl Kernel for TopK {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let inputs = load(operands)?;
        if let (Some(data), Some([k])) = (tensor(&inputs, 0), super::integers(&inputs, 1).as_deref()) {
            let axis = normalize_axis(self.axis, data.rank())?;
            if let Some(k) = usize::try_from(*k).ok().filter(|&k| k > 0 && k <= data.shape()[axis]) {
                let best = ipuc_formats::with_number!(
                    data.dtype(),
                    T => Some(best::<T>(self, data, axis, k, context)?),
                    otherwise None
                );
                if let Some(best) = best {
                    return Ok(best);
                }
            }
        }
        refer(self, inputs, context)
    }
}

fn best<T: Ordered>(
    top: &TopK,
    data: &Tensor,
    axis: usize,
    k: usize,
    context: &mut Context<'_>,
) -> Result<Vec<Value>, KernelError> {
    let (total, inner) = (data.shape()[axis], count(&data.shape()[axis + 1..]));
    let mut shape = data.shape().to_vec();
    shape[axis] = k;
    let mut values = context.allocate(0, data.dtype(), &shape)?;
    let mut places = context.allocate(1, DType::I64, &shape)?;
    if values.count() == 0 {
        return Ok(vec![values.into(), places.into()]);
    }
    let source = data.elements::<T>()?;
    let targets = values.elements_mut::<T>()?.par_chunks_mut(k * inner);
    let targets = targets.zip(places.elements_mut::<i64>()?.par_chunks_mut(k * inner)).enumerate();
    let fill = |(outer, (values, places)): (usize, (&mut [T], &mut [i64]))| {
        let source = &source[outer * total * inner..][..total * inner];
        let mut line: Vec<(T, usize)> = Vec::with_capacity(total);
        for within in 0..inner {
            line.clear();
            line.extend((0..total).map(|place| (source[place * inner + within], place)));
            keep_best(top, &mut line, k);
            for (at, &(value, place)) in line.iter().enumerate() {
                values[at * inner + within] = value;
                places[at * inner + within] = place as i64;
            }
        }
    };
    let lines = data.count() / (total * inner);
    let lines_per_part = lines.div_ceil(parts(data.count() * 4, lines));
    targets.with_min_len(lines_per_part).for_each(fill);
    Ok(vec![values.into(), places.into()])
}

/// Leaves the k best of a line, in order or by place.
fn keep_best<T: Ordered>(top: &TopK, line: &mut Vec<(T, usize)>, k: usize) {
    // No two are equal, so that any way of sorting gives the same.
    let better = |left: &(T, usize), right: &(T, usize)| {
        let ascending = left.0.order(right.0);
        let order = if top.largest { ascending.reverse() } else { ascending };
        order.then(left.1.cmp(&right.1))
    };
    if k < line.len() {
        line.select_nth_unstable_by(k, better);
        line.truncate(k);
    }
    if top.sorted {
        line.sort_unstable_by(better);
    } else {
        line.sort_unstable_by_key(|&(_, place)| place);
    }
}

impl Kernel for NonZero {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let inputs = load(operands)?;
        if let Some(data) = tensor(&inputs, 0) {
            let found = match data.dtype() {
                DType::Bool => Some(places(data.bytes(), |&element| element != 0)),
                dtype => ipuc_formats::with_number!(
                    dtype,
                    T => Some(places(data.elements::<T>()?, |element| *element != T::default())),
                    otherwise None
                ),
            };
            if let Some(found) = found {
                return Ok(vec![coordinates(data.shape(), &found, context)?.into()]);
            }
        }
        refer(self, inputs, context)
    }
}

fn places<T>(elements: &[T], chosen: impl Fn(&T) -> bool) -> Vec<usize> {
    elements.iter().enumerate().filter(|(_, element)| chosen(element)).map(|(place, _)| place).collect()
}

/// The coordinates of flat places, one axis after the other: `[rank, places]`.
fn coordinates(shape: &[usize], places: &[usize], context: &mut Context<'_>) -> Result<Tensor, KernelError> {
    let mut target = context.allocate(0, DType::I64, &[shape.len(), places.len()])?;
    if target.count() == 0 {
        return Ok(target);
    }
    let rows = target.elements_mut::<i64>()?.chunks_exact_mut(places.len());
    for (axis, row) in rows.enumerate() {
        let (inner, extent) = (count(&shape[axis + 1..]), shape[axis]);
        row.iter_mut().zip(places).for_each(|(element, place)| *element = (place / inner % extent) as i64);
    }
    Ok(target)
}

impl Kernel for Trilu {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let inputs = load(operands)?;
        let k = match inputs.get(1) {
            Some(Some(_)) => super::integers(&inputs, 1),
            Some(None) | None => Some(vec![0]),
        };
        if let (Some(data), Some([k])) = (tensor(&inputs, 0), k.as_deref())
            && let [.., rows, columns] = *data.shape()
        {
            with_words!(
                data.dtype(),
                T => {
                    let mut target = context.allocate(0, data.dtype(), data.shape())?;
                    if target.count() > 0 {
                        let source = words::<T>(data).chunks_exact(columns);
                        let lines = words_mut::<T>(&mut target).chunks_exact_mut(columns).zip(source);
                        for (line, (target, source)) in lines.enumerate() {
                            // First column that is on the diagonal or right of it; one more ends the lower triangle.
                            let diagonal = (line % rows) as i128 + i128::from(*k) + i128::from(!self.upper);
                            let split = diagonal.clamp(0, columns as i128) as usize;
                            let (zero, kept) = if self.upper { (0..split, split..columns) } else { (split..columns, 0..split) };
                            target[zero].fill(T::default());
                            target[kept.clone()].copy_from_slice(&source[kept]);
                        }
                    }
                    return Ok(vec![target.into()]);
                },
                otherwise {}
            );
        }
        refer(self, inputs, context)
    }
}
