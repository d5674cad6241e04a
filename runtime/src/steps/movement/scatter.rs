//! Slices and elements written by index, over the data where nobody else reads it.

use super::along::{Along, Indices};
use super::gather::element_places;
use super::{count, integers, load, position, refer, tensor, with_words, words, words_mut};
use crate::steps::{Contents, Context, Kernel, KernelError, Operand, run_over_copies, without_versions};
use ipuc_formats::dtype::DType;
use ipuc_formats::element::Element;
use ipuc_formats::ops::{
    self, BinaryFunction, ScatterElements, ScatterNd, ScatterReduction, TensorScatter, normalize_axis,
};
use ipuc_formats::tensor::{Tensor, strides};
use ipuc_formats::value::Value;

/// Where updates go: slices of `length` elements that begin at `starts`.
struct Places {
    starts: Vec<usize>,
    length: usize,
}

impl Places {
    fn targets(&self) -> impl Iterator<Item = usize> {
        let length = self.length;
        self.starts.iter().flat_map(move |&start| start..start + length)
    }

    fn assign<T: bytemuck::Pod>(&self, data: &mut Tensor, updates: &Tensor) {
        if self.length == 0 {
            return;
        }
        let target = words_mut::<T>(data);
        for (&start, slice) in self.starts.iter().zip(words::<T>(updates).chunks_exact(self.length)) {
            target[start..start + self.length].copy_from_slice(slice);
        }
    }

    fn combine<T: Element>(
        &self,
        data: &mut Tensor,
        updates: &Tensor,
        combine: impl Fn(T, T) -> T,
    ) -> Result<(), KernelError> {
        let updates = updates.elements::<T>()?;
        let target = data.elements_mut::<T>()?;
        for (at, &update) in self.targets().zip(updates) {
            target[at] = combine(target[at], update);
        }
        Ok(())
    }

    /// False where there is no loop for the type or the reduction.
    fn apply(&self, data: &mut Tensor, updates: &Tensor, reduction: ScatterReduction) -> Result<bool, KernelError> {
        use ScatterReduction::{Add, Max, Min, Mul, None};
        match (reduction, data.dtype()) {
            (None, dtype) => with_words!(dtype, T => self.assign::<T>(data, updates), otherwise return Ok(false)),
            (Add, DType::F32) => self.combine::<f32>(data, updates, |x, y| x + y)?,
            (Mul, DType::F32) => self.combine::<f32>(data, updates, |x, y| x * y)?,
            (Max, DType::F32) => self.combine::<f32>(data, updates, |x, y| BinaryFunction::Max.apply_f32(x, y))?,
            (Min, DType::F32) => self.combine::<f32>(data, updates, |x, y| BinaryFunction::Min.apply_f32(x, y))?,
            (Add, DType::I64) => self.combine::<i64>(data, updates, i64::wrapping_add)?,
            (Mul, DType::I64) => self.combine::<i64>(data, updates, i64::wrapping_mul)?,
            (Max, DType::I64) => self.combine::<i64>(data, updates, i64::max)?,
            (Min, DType::I64) => self.combine::<i64>(data, updates, i64::min)?,
            (Add, DType::I32) => self.combine::<i32>(data, updates, i32::wrapping_add)?,
            (Mul, DType::I32) => self.combine::<i32>(data, updates, i32::wrapping_mul)?,
            (Max, DType::I32) => self.combine::<i32>(data, updates, i32::max)?,
            (Min, DType::I32) => self.combine::<i32>(data, updates, i32::min)?,
            (Add | Mul | Max | Min, _) => return Ok(false),
        }
        Ok(true)
    }
}

/// The data with updates written; the reference where there are no places.
fn written<K: Kernel>(
    operator: &K,
    operands: Vec<Operand>,
    reduction: ScatterReduction,
    updates_operand: usize,
    context: &mut Context<'_>,
    places: impl Fn(&Tensor, &Tensor, &[Option<Value>]) -> Option<Places>,
) -> Result<Vec<Value>, KernelError> {
    let mut inputs = load(operands)?;
    let found = match (tensor(&inputs, 0), tensor(&inputs, updates_operand)) {
        (Some(data), Some(updates)) if data.dtype() == updates.dtype() => places(data, updates, &inputs),
        _ => None,
    };
    let updates = tensor(&inputs, updates_operand).cloned();
    let (Some(places), Some(updates)) = (found, updates) else { return refer(operator, inputs, context) };
    let applied = match inputs.first_mut() {
        Some(Some(Value::Tensor(data))) => {
            if data.dtype().bits() >= 8 && !data.is_exclusive() {
                let mut copy = context.allocate(0, data.dtype(), data.shape())?;
                copy.bytes_mut().copy_from_slice(data.bytes());
                *data = copy;
            }
            // A type without a loop leaves the data as it was.
            places.apply(data, &updates, reduction)?
        }
        Some(_) | None => false,
    };
    if applied {
        return Ok(inputs.swap_remove(0).into_iter().collect());
    }
    refer(operator, inputs, context)
}

impl Kernel for ScatterElements {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let mut inputs = load(operands)?;
        if let Some(result) = scattered(self, &mut inputs, context)? {
            return Ok(vec![result.into()]);
        }
        let operands = inputs.into_iter().map(|input| input.map_or(Operand::Absent, Operand::Value)).collect();
        written(self, operands, self.reduction, 2, context, |data, updates, inputs| {
            let indices = tensor(inputs, 1).filter(|indices| indices.shape() == updates.shape())?;
            let starts = element_places(data.shape(), indices.shape(), self.axis, &integers(inputs, 1)?)?;
            Some(Places { starts, length: 1 })
        })
    }
}

/// The result where indices have the extents of the data along all other axes, lie inside, and replace elements or are added to
/// f32; `None`, and anything in the data, otherwise: an index outside is refused by the reference.
fn scattered(
    operator: &ScatterElements,
    inputs: &mut [Option<Value>],
    context: &mut Context<'_>,
) -> Result<Option<Tensor>, KernelError> {
    let [Some(Value::Tensor(data)), Some(Value::Tensor(indices)), Some(Value::Tensor(updates))] = inputs else {
        return Ok(None);
    };
    let axis = normalize_axis(operator.axis, data.rank()).ok();
    let along = axis.and_then(|axis| Along::new(data.shape(), indices.shape(), axis));
    let adds = operator.reduction == ScatterReduction::Add && data.dtype() == DType::F32;
    let fits = data.dtype() == updates.dtype() && indices.shape() == updates.shape() && data.dtype().bits() >= 8;
    let fits = fits && (adds || operator.reduction == ScatterReduction::None);
    let (Some(along), Some(chosen), true) = (along, Indices::of(indices), fits) else { return Ok(None) };
    if !data.is_exclusive() {
        let mut copy = context.allocate(0, data.dtype(), data.shape())?;
        copy.bytes_mut().copy_from_slice(data.bytes());
        *data = copy;
    }
    let inside = match adds {
        true => along.scatter(data.elements_mut::<f32>()?, &chosen, updates.elements::<f32>()?, |old, new| old + new),
        false => with_words!(
            data.dtype(),
            T => along.scatter(words_mut::<T>(data), &chosen, words::<T>(updates), |_, new| new),
            otherwise return Ok(None)
        ),
    };
    Ok(inside.then(|| data.clone()))
}

impl Kernel for ScatterNd {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        written(self, operands, self.reduction, 2, context, |data, updates, inputs| {
            let (&tuple, outer) = tensor(inputs, 1)?.shape().split_last()?;
            if !(1..=data.rank()).contains(&tuple) || updates.shape() != [outer, &data.shape()[tuple..]].concat() {
                return None;
            }
            let own = strides(data.shape());
            let mut starts = Vec::with_capacity(count(outer));
            for tuple in integers(inputs, 1)?.chunks_exact(tuple) {
                let mut start = 0;
                for (axis, &index) in tuple.iter().enumerate() {
                    start += position(index, data.shape()[axis])? * own[axis];
                }
                starts.push(start);
            }
            Some(Places { starts, length: count(&data.shape()[tuple..]) })
        })
    }
}

impl Kernel for TensorScatter {
    fn compute(&self, mut operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Contents>, KernelError> {
        let cache = match operands.first() {
            Some(Operand::Version(cache)) if self.cache_axis(cache.shape().len()).ok() == Some(cache.axis()) => {
                cache.clone()
            }
            Some(_) | None => return run_over_copies(self, operands, context),
        };
        operands[0] = Operand::Absent;
        let inputs = load(without_versions(operands, context)?)?;
        let update = ops::tensor(&inputs, 1)?;
        let places = self.places(cache.shape(), &inputs)?;
        Ok(vec![Contents::Version(cache.overwrite(update, &places, context.memory.pages())?)])
    }

    fn reads_pages(&self) -> bool {
        true
    }

    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        written(self, operands, ScatterReduction::None, 1, context, |cache, update, inputs| {
            let axis = self.cache_axis(cache.rank()).ok()?;
            let places = self.places(cache.shape(), inputs).ok()?;
            let (capacity, length) = (cache.shape()[axis], update.shape()[axis]);
            let inner = count(&cache.shape()[axis + 1..]);
            let first = |(row, place): (usize, usize)| (row / length * capacity + place) * inner;
            let places = places.into_iter().enumerate().map(first).collect();
            Some(Places { starts: places, length: inner })
        })
    }
}
