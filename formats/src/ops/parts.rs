//! Cutting tensors along an axis and joining them again, for every element type: what loops, scans and sequences do
//! with tensors. One copy of each element.

use crate::dtype::DType;
use crate::tensor::{Tensor, TensorError, element_count};
use crate::tensor::{filled, room};
use std::borrow::Cow;

/// Elements of a tensor as units of equal width, if it has no strings: packed elements are spread to one byte each.
fn units(tensor: &Tensor) -> (Cow<'_, [u8]>, usize) {
    if tensor.dtype().is_sub_byte() {
        (Cow::Owned(tensor.codes()), 1)
    } else {
        (Cow::Borrowed(tensor.bytes()), tensor.dtype().bits() / 8)
    }
}

fn from_units(dtype: DType, shape: &[usize], units: &[u8]) -> Result<Tensor, TensorError> {
    if dtype.is_sub_byte() { Tensor::from_codes(dtype, shape, units) } else { Tensor::from_bytes(dtype, shape, units) }
}

/// A tensor without elements; a shape such as `[2^60, 0]` must not cost a loop.
fn empty(dtype: DType, shape: &[usize]) -> Result<Tensor, TensorError> {
    if dtype == DType::String { Tensor::from_strings(shape, Vec::new()) } else { Tensor::from_bytes(dtype, shape, &[]) }
}

/// Product of extents; the extents of an existing tensor cannot overflow unless one of them is 0.
fn count(extents: &[usize]) -> usize {
    element_count(extents).unwrap_or(0)
}

/// The tensors joined along an existing axis. `None` where element types, ranks or other extents differ, or there is
/// no tensor, or no such axis.
///
/// # Errors
/// [`TensorError`] where the result is too large.
pub fn concatenate(parts: &[&Tensor], axis: usize) -> Result<Option<Tensor>, TensorError> {
    let Some(first) = parts.first() else { return Ok(None) };
    let fits = |part: &&Tensor| {
        part.dtype() == first.dtype()
            && part.rank() == first.rank()
            && (0..part.rank()).all(|at| at == axis || part.shape()[at] == first.shape()[at])
    };
    if axis >= first.rank() || !parts.iter().all(fits) {
        return Ok(None);
    }
    let mut shape = first.shape().to_vec();
    let total = parts.iter().try_fold(0usize, |sum, part| sum.checked_add(part.shape()[axis]));
    let Some(total) = total else { return Err(TensorError::TooLarge { dtype: first.dtype(), shape }) };
    shape[axis] = total;
    if element_count(&shape).is_none() {
        return Err(TensorError::TooLarge { dtype: first.dtype(), shape });
    }
    if count(&shape) == 0 {
        return empty(first.dtype(), &shape).map(Some);
    }
    let outer = count(&shape[..axis]);
    let runs: Vec<usize> = parts.iter().map(|part| count(&part.shape()[axis..])).collect();
    if first.dtype() == DType::String {
        let mut strings = room(count(&shape))?;
        for index in 0..outer {
            for (part, run) in parts.iter().zip(&runs) {
                strings.extend_from_slice(&part.strings()?[index * run..(index + 1) * run]);
            }
        }
        return Tensor::from_strings(&shape, strings).map(Some);
    }
    let sources: Vec<(Cow<'_, [u8]>, usize)> = parts.iter().map(|part| units(part)).collect();
    if first.dtype().is_sub_byte() {
        let mut codes = filled(0u8, count(&shape))?;
        interleave(&mut codes, &sources, &runs, outer);
        return Tensor::from_codes(first.dtype(), &shape, &codes).map(Some);
    }
    let mut result = Tensor::zeros(first.dtype(), &shape)?;
    interleave(result.bytes_mut(), &sources, &runs, outer);
    Ok(Some(result))
}

fn interleave(target: &mut [u8], sources: &[(Cow<'_, [u8]>, usize)], runs: &[usize], outer: usize) {
    let mut rest = target;
    for index in 0..outer {
        for ((bytes, width), run) in sources.iter().zip(runs) {
            let length = run * width;
            let (head, tail) = rest.split_at_mut(length);
            head.copy_from_slice(&bytes[index * length..(index + 1) * length]);
            rest = tail;
        }
    }
}

/// Tensors of equal shape stacked along a new axis. `None` where types or shapes differ, or there is no tensor, or the
/// axis is above the rank.
///
/// # Errors
/// [`TensorError`] where the result is too large.
pub fn stack(parts: &[&Tensor], axis: usize) -> Result<Option<Tensor>, TensorError> {
    let Some(first) = parts.first() else { return Ok(None) };
    if axis > first.rank() {
        return Ok(None);
    }
    let mut shape = first.shape().to_vec();
    shape.insert(axis, 1);
    let mut widened = Vec::with_capacity(parts.len());
    for part in parts {
        if part.shape() != first.shape() {
            return Ok(None);
        }
        widened.push(part.reshaped(&shape)?);
    }
    concatenate(&widened.iter().collect::<Vec<_>>(), axis)
}

/// `length` positions from `start` of an axis. `None` where they are outside it or there is no such axis.
///
/// # Errors
/// [`TensorError`] never for a tensor that exists; passed on from building the result.
pub fn cut(tensor: &Tensor, axis: usize, start: usize, length: usize) -> Result<Option<Tensor>, TensorError> {
    let Some(&extent) = tensor.shape().get(axis) else { return Ok(None) };
    let Some(end) = start.checked_add(length).filter(|&end| end <= extent) else { return Ok(None) };
    if length == extent {
        return Ok(Some(tensor.clone()));
    }
    let mut shape = tensor.shape().to_vec();
    shape[axis] = length;
    if count(&shape) == 0 {
        return empty(tensor.dtype(), &shape).map(Some);
    }
    let outer = count(&shape[..axis]);
    let inner = count(&shape[axis + 1..]);
    let ranges = (0..outer).map(|index| (index * extent + start) * inner..(index * extent + end) * inner);
    if tensor.dtype() == DType::String {
        let source = tensor.strings()?;
        let strings = ranges.flat_map(|range| source[range].iter().cloned()).collect();
        return Tensor::from_strings(&shape, strings).map(Some);
    }
    let (source, width) = units(tensor);
    if outer == 1 {
        let range = start * inner * width..end * inner * width;
        return from_units(tensor.dtype(), &shape, &source[range]).map(Some);
    }
    let mut chosen = room(count(&shape) * width)?;
    for range in ranges {
        chosen.extend_from_slice(&source[range.start * width..range.end * width]);
    }
    from_units(tensor.dtype(), &shape, &chosen).map(Some)
}

/// Position `index` of an axis, without that axis. `None` where there is no such position or axis.
///
/// # Errors
/// As [`cut`].
pub fn pick(tensor: &Tensor, axis: usize, index: usize) -> Result<Option<Tensor>, TensorError> {
    let Some(slice) = cut(tensor, axis, index, 1)? else { return Ok(None) };
    let mut shape = slice.shape().to_vec();
    shape.remove(axis);
    slice.reshaped(&shape).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cutting_and_joining_give_the_tensor_back() {
        let numbers: Vec<i64> = (0..24).collect();
        let codes: Vec<u8> = (0..24).map(|index| index % 4).collect();
        let strings: Vec<String> = (0..24).map(|index| index.to_string()).collect();
        let shape = [2, 3, 4];
        let tensors = [
            Tensor::from_elements(&shape, &numbers).unwrap(),
            Tensor::from_codes(DType::U2, &shape, &codes).unwrap(),
            Tensor::from_strings(&shape, strings).unwrap(),
        ];
        for tensor in &tensors {
            for (axis, &extent) in shape.iter().enumerate() {
                let slices: Vec<Tensor> =
                    (0..extent).map(|index| pick(tensor, axis, index).unwrap().unwrap()).collect();
                let stacked = stack(&slices.iter().collect::<Vec<_>>(), axis).unwrap().unwrap();
                assert_eq!(&stacked, tensor, "axis {axis}");
                let head = cut(tensor, axis, 0, 1).unwrap().unwrap();
                let tail = cut(tensor, axis, 1, extent - 1).unwrap().unwrap();
                assert_eq!(&concatenate(&[&head, &tail], axis).unwrap().unwrap(), tensor);
            }
        }
        let middle = pick(&tensors[0], 1, 2).unwrap().unwrap();
        assert_eq!(middle.elements::<i64>().unwrap(), [8, 9, 10, 11, 20, 21, 22, 23]);
    }

    #[test]
    fn what_does_not_fit_is_told() {
        let tensor = Tensor::vector_i64(&[1, 2]);
        let matrix = Tensor::from_elements(&[1, 2], &[1i64, 2]).unwrap();
        assert_eq!(concatenate(&[&tensor, &matrix], 0).unwrap(), None);
        assert_eq!(concatenate(&[&tensor], 1).unwrap(), None);
        assert_eq!(concatenate(&[], 0).unwrap(), None);
        assert_eq!(cut(&tensor, 0, 1, 2).unwrap(), None);
        assert_eq!(cut(&tensor, 0, 1, usize::MAX).unwrap(), None);
        assert_eq!(pick(&tensor, 1, 0).unwrap(), None);
        assert_eq!(stack(&[&tensor], 2).unwrap(), None);
        let hollow = Tensor::from_strings(&[1 << 60, 3, 0], Vec::new()).unwrap();
        assert_eq!(cut(&hollow, 1, 0, 1).unwrap().unwrap().shape(), [1 << 60, 1, 0]);
        assert_eq!(concatenate(&[&hollow, &hollow], 1).unwrap().unwrap().shape(), [1 << 60, 6, 0]);
    }
}
