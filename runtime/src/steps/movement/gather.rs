//! Slices and elements chosen by index.

use super::along::{Along, Indices};
use super::{count, integers, load, position, refer, tensor, with_words, words, words_mut};
use crate::steps::{Context, Kernel, KernelError, Operand, Weight};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{Compress, Gather, GatherElements, GatherNd, ReverseSequence, normalize_axis};
use ipuc_formats::tensor::{Tensor, strides};
use ipuc_formats::value::Value;
use ipuc_kernels::strided::copy_slices;

/// Equal slices of an operand, one behind the other.
struct Slices {
    /// Shape of the result.
    shape: Vec<usize>,
    /// Where each slice begins, in elements.
    starts: Vec<usize>,
    /// Elements of a slice.
    length: usize,
}

/// One result of slices; the reference where there are none.
fn sliced<K: Kernel>(
    operator: &K,
    inputs: Vec<Option<Value>>,
    context: &mut Context<'_>,
    slices: impl Fn(&Tensor, &[Option<Value>]) -> Option<Slices>,
) -> Result<Vec<Value>, KernelError> {
    if let Some(data) = tensor(&inputs, 0)
        && let Some(slices) = slices(data, &inputs)
    {
        with_words!(
            data.dtype(),
            T => {
                let mut target = context.allocate(0, data.dtype(), &slices.shape)?;
                copy_slices(words::<T>(data), &slices.starts, slices.length, words_mut::<T>(&mut target));
                return Ok(vec![target.into()]);
            },
            otherwise {}
        );
    }
    refer(operator, inputs, context)
}

/// `outer` times these positions of an axis, as starts of slices.
fn starts(shape: &[usize], axis: usize, positions: &[usize]) -> (Vec<usize>, usize) {
    let (outer, inner) = (count(&shape[..axis]), count(&shape[axis + 1..]));
    if inner == 0 || positions.is_empty() {
        return (Vec::new(), inner);
    }
    let start = |prefix: usize| positions.iter().map(move |position| (prefix * shape[axis] + position) * inner);
    ((0..outer).flat_map(start).collect(), inner)
}

impl Kernel for Gather {
    fn run(&self, mut operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        if let Some(Operand::Weight(weight)) = operands.first()
            && reads_rows(self, weight)
        {
            let weight = weight.clone();
            let indices = operands.get_mut(1).map(std::mem::take).unwrap_or_default().into_value()?;
            if let Some(result) = rows(&weight, indices.as_ref(), context)? {
                return Ok(vec![result.into()]);
            }
            if let Some(operand) = operands.get_mut(1) {
                *operand = indices.map_or(Operand::Absent, Operand::Value);
            }
        }
        sliced(self, load(operands)?, context, |data, inputs| {
            let axis = normalize_axis(self.axis, data.rank()).ok()?;
            let positions: Option<Vec<usize>> =
                integers(inputs, 1)?.into_iter().map(|index| position(index, data.shape()[axis])).collect();
            let (starts, length) = starts(data.shape(), axis, &positions?);
            let shape = [&data.shape()[..axis], tensor(inputs, 1)?.shape(), &data.shape()[axis + 1..]].concat();
            Some(Slices { shape, starts, length })
        })
    }
}

/// Only the chosen rows of the weight need be read.
fn reads_rows(gather: &Gather, weight: &Weight) -> bool {
    let whole_bytes = weight.dtype() != DType::String && weight.dtype().bits() >= 8;
    let rank = weight.shape().map_or(0, |shape| shape.len());
    // Counted from the back, axis 0 of a vector is -1.
    let first = normalize_axis(gather.axis, rank) == Ok(0);
    first && whole_bytes && weight.has_rows()
}

fn rows(weight: &Weight, indices: Option<&Value>, context: &mut Context<'_>) -> Result<Option<Tensor>, KernelError> {
    let Some(indices) = indices.and_then(Value::as_tensor) else { return Ok(None) };
    let shape = weight.shape()?;
    let Some(elements) = ipuc_formats::fact::integers(indices) else { return Ok(None) };
    let positions: Option<Vec<u64>> =
        elements.into_iter().map(|index| position(index, shape[0]).map(|position| position as u64)).collect();
    let Some(positions) = positions else { return Ok(None) };
    let mut target = context.allocate(0, weight.dtype(), &[indices.shape(), &shape[1..]].concat())?;
    if target.count() > 0 {
        weight.rows(&positions, target.bytes_mut())?;
    }
    Ok(Some(target))
}

impl Kernel for GatherNd {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        sliced(self, load(operands)?, context, |data, inputs| {
            let indices = tensor(inputs, 1)?;
            let (&tuple, outer) = indices.shape().split_last()?;
            let batch = usize::try_from(self.batch_dims).ok()?;
            let indexed = batch..batch.checked_add(tuple)?;
            let fits = tuple > 0 && indexed.end <= data.rank() && batch <= outer.len();
            if !fits || data.shape()[..batch] != outer[..batch] {
                return None;
            }
            let shape = [outer, &data.shape()[indexed.end..]].concat();
            if count(&shape) == 0 {
                return None;
            }
            let own = strides(data.shape());
            let (length, per_batch) = (count(&data.shape()[indexed.end..]), count(&outer[batch..]));
            let batch_stride = count(&data.shape()[batch..]);
            let mut starts = Vec::with_capacity(count(outer));
            for (nth, tuple) in integers(inputs, 1)?.chunks_exact(tuple).enumerate() {
                let mut start = nth / per_batch * batch_stride;
                for (axis, &index) in indexed.clone().zip(tuple) {
                    start += position(index, data.shape()[axis])? * own[axis];
                }
                starts.push(start);
            }
            Some(Slices { shape, starts, length })
        })
    }
}

impl Kernel for GatherElements {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let inputs = load(operands)?;
        if let Some(result) = gathered(self, &inputs, context)? {
            return Ok(vec![result.into()]);
        }
        sliced(self, inputs, context, |data, inputs| {
            let indices = tensor(inputs, 1)?;
            let starts = element_places(data.shape(), indices.shape(), self.axis, &integers(inputs, 1)?)?;
            Some(Slices { shape: indices.shape().to_vec(), starts, length: 1 })
        })
    }
}

/// The result where indices have the extents of the data along all other axes and lie inside; `None` otherwise.
fn gathered(
    operator: &GatherElements,
    inputs: &[Option<Value>],
    context: &mut Context<'_>,
) -> Result<Option<Tensor>, KernelError> {
    let (Some(data), Some(indices)) = (tensor(inputs, 0), tensor(inputs, 1)) else { return Ok(None) };
    let axis = normalize_axis(operator.axis, data.rank()).ok();
    let along = axis.and_then(|axis| Along::new(data.shape(), indices.shape(), axis));
    let (Some(along), Some(chosen)) = (along, Indices::of(indices)) else { return Ok(None) };
    with_words!(
        data.dtype(),
        T => {
            let mut target = context.allocate(0, data.dtype(), indices.shape())?;
            let inside = along.gather(words::<T>(data), &chosen, words_mut::<T>(&mut target));
            Ok(Some(target).filter(|_| inside))
        },
        otherwise Ok(None)
    )
}

/// Places in `data` of single elements whose coordinates are those of the indices but for one axis.
pub(super) fn element_places(data: &[usize], indices: &[usize], axis: i64, chosen: &[i64]) -> Option<Vec<usize>> {
    let axis = normalize_axis(axis, data.len()).ok()?;
    let inside = |at: usize| at == axis || indices[at] <= data[at];
    if indices.len() != data.len() || !(0..data.len()).all(inside) {
        return None;
    }
    let own = strides(data);
    let mut places = Vec::with_capacity(chosen.len());
    let mut coordinates = vec![0usize; data.len()];
    // Place of the coordinates without the chosen axis.
    let mut base = 0;
    for &index in chosen {
        places.push(base + position(index, data[axis])? * own[axis]);
        for at in (0..data.len()).rev() {
            let step = if at == axis { 0 } else { own[at] };
            coordinates[at] += 1;
            base += step;
            if coordinates[at] < indices[at] {
                break;
            }
            base -= step * indices[at];
            coordinates[at] = 0;
        }
    }
    Some(places)
}

impl Kernel for Compress {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        sliced(self, load(operands)?, context, |data, inputs| {
            let condition = tensor(inputs, 1).filter(|condition| condition.rank() == 1)?.bools().ok()?;
            let flat = [data.count()];
            let (mut shape, axis) = match self.axis {
                Some(axis) => (data.shape().to_vec(), normalize_axis(axis, data.rank()).ok()?),
                None => (flat.to_vec(), 0),
            };
            let kept: Vec<usize> = (0..condition.len().min(shape[axis])).filter(|&at| condition[at]).collect();
            let (starts, length) = starts(&shape, axis, &kept);
            shape[axis] = kept.len();
            Some(Slices { shape, starts, length })
        })
    }
}

impl Kernel for ReverseSequence {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        sliced(self, load(operands)?, context, |data, inputs| {
            let shape = data.shape();
            let (batch, time) = self.axes(shape.len()).ok()?;
            let last = batch.max(time);
            let length = count(&shape[last + 1..]);
            let bounded = |length: i64| usize::try_from(length).ok().filter(|&length| length <= shape[time]);
            let lengths: Vec<usize> = integers(inputs, 1)?.into_iter().map(bounded).collect::<Option<_>>()?;
            if lengths.len() != shape[batch] {
                return None;
            }
            let steps = strides(shape);
            let start = |slice: usize| {
                let own = |axis: usize| slice * length / steps[axis] % shape[axis];
                let (at, reversed) = (own(time), lengths[own(batch)]);
                let from = if at < reversed { reversed - 1 - at } else { at };
                slice * length + from * steps[time] - at * steps[time]
            };
            let slices = if length == 0 { 0 } else { count(&shape[..=last]) };
            Some(Slices { shape: shape.to_vec(), starts: (0..slices).map(start).collect(), length })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::testing::{check, random};

    #[test]
    fn elements_along_every_axis() {
        for (axis, extents) in [(0, [7, 4, 3]), (1, [5, 9, 3]), (-1, [5, 4, 2]), (2, [5, 4, 0]), (1, [2, 9, 3])] {
            let count = extents.iter().product::<usize>() as i64;
            let indices: Vec<i64> = (0..count).map(|at| at * 7919 % 6 - 3).collect();
            let narrow: Vec<i32> = indices.iter().map(|&index| index as i32).collect();
            let indices = Tensor::from_elements(&extents, &indices).unwrap();
            let narrow = Tensor::from_elements(&extents, &narrow).unwrap();
            for dtype in [DType::F32, DType::F16, DType::F64] {
                check(&GatherElements { axis }, &[random(dtype, &[5, 4, 3], 1), Some(indices.clone())], 0.0);
                check(&GatherElements { axis }, &[random(dtype, &[5, 4, 3], 1), Some(narrow.clone())], 0.0);
            }
        }
        let far = Tensor::from_elements(&[1, 40_000], &vec![-3i64; 40_000]).unwrap();
        check(&GatherElements { axis: 1 }, &[random(DType::F32, &[1, 3], 1), Some(far)], 0.0);
    }

    #[test]
    fn sequences_in_reverse() {
        for (batch_axis, time_axis) in [(0, 1), (1, 0), (0, 2), (2, 1), (1, 2)] {
            for dtype in [DType::F32, DType::F16, DType::F64] {
                let operator = ReverseSequence { batch_axis, time_axis };
                let lengths = Some(Tensor::vector_i64(&[2, 0, 3, 1]));
                check(&operator, &[random(dtype, &[4, 4, 4, 3], 1), lengths.clone()], 0.0);
                check(&operator, &[random(dtype, &[4, 4, 4], 1), lengths.clone()], 0.0);
                check(&operator, &[random(dtype, &[4, 4, 4, 0], 1), lengths], 0.0);
            }
        }
    }
}
