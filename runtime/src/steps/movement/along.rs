//! Single elements chosen or written along an axis by indices that have the extents of the data along all other axes.

use super::count;
use bytemuck::Pod;
use ipuc_formats::dtype::DType;
use ipuc_formats::tensor::Tensor;
use ipuc_kernels::threads::{chunks, each, parts};
use std::sync::atomic::{AtomicBool, Ordering};

/// About how many operations an element costs.
const COST: usize = 4;

/// Data `[outer, extent, inner]` and indices `[outer, chosen, inner]` of its middle axis.
pub(super) struct Along {
    outer: usize,
    extent: usize,
    chosen: usize,
    inner: usize,
}

/// Indices as they come.
pub(super) enum Indices<'a> {
    /// i32.
    Narrow(&'a [i32]),
    /// i64.
    Wide(&'a [i64]),
}

impl<'a> Indices<'a> {
    /// The indices of a tensor; `None` for other types.
    pub(super) fn of(tensor: &'a Tensor) -> Option<Indices<'a>> {
        match tensor.dtype() {
            DType::I32 => tensor.elements().ok().map(Indices::Narrow),
            DType::I64 => tensor.elements().ok().map(Indices::Wide),
            _ => None,
        }
    }
}

impl Along {
    /// `None` where other extents than that of the axis differ.
    pub(super) fn new(data: &[usize], indices: &[usize], axis: usize) -> Option<Along> {
        let same = data.len() == indices.len() && (0..data.len()).all(|at| at == axis || data[at] == indices[at]);
        same.then(|| Along {
            outer: count(&data[..axis]),
            extent: data[axis],
            chosen: indices[axis],
            inner: count(&data[axis + 1..]),
        })
    }

    /// The chosen elements; false, and anything in `out`, where an index is outside.
    pub(super) fn gather<T: Pod + Send + Sync>(&self, data: &[T], indices: &Indices<'_>, out: &mut [T]) -> bool {
        match *indices {
            Indices::Narrow(indices) => self.gather_by(data, indices, out),
            Indices::Wide(indices) => self.gather_by(data, indices, out),
        }
    }

    fn gather_by<T: Pod + Send + Sync, I: Copy + Into<i64> + Sync>(
        &self,
        data: &[T],
        indices: &[I],
        out: &mut [T],
    ) -> bool {
        if out.is_empty() {
            return true;
        }
        let Along { extent, chosen, inner, .. } = *self;
        let all_inside = AtomicBool::new(true);
        let rows = out.len() / inner;
        let rows_each = rows.div_ceil(parts(out.len() * COST, rows));
        chunks(out, rows_each * inner, |part, out| {
            let indices = &indices[part * rows_each * inner..][..out.len()];
            let mut inside = true;
            for (row, (out, indices)) in out.chunks_exact_mut(inner).zip(indices.chunks_exact(inner)).enumerate() {
                let outer = (part * rows_each + row) / chosen;
                let data = &data[outer * extent * inner..][..extent * inner];
                for (place, (out, &index)) in out.iter_mut().zip(indices).enumerate() {
                    let index = from_front(index.into(), extent);
                    if index < extent {
                        *out = data[index * inner + place];
                    } else {
                        inside = false;
                    }
                }
            }
            if !inside {
                all_inside.store(false, Ordering::Relaxed);
            }
        });
        all_inside.into_inner()
    }

    /// Writes `write(old, update)` where the indices say, in order; false, with some written, where an index is outside.
    pub(super) fn scatter<T: Pod + Send + Sync>(
        &self,
        data: &mut [T],
        indices: &Indices<'_>,
        updates: &[T],
        write: impl Fn(T, T) -> T + Sync,
    ) -> bool {
        match *indices {
            Indices::Narrow(indices) => self.scatter_by(data, indices, updates, write),
            Indices::Wide(indices) => self.scatter_by(data, indices, updates, write),
        }
    }

    fn scatter_by<T: Pod + Send + Sync, I: Copy + Into<i64> + Sync>(
        &self,
        data: &mut [T],
        indices: &[I],
        updates: &[T],
        write: impl Fn(T, T) -> T + Sync,
    ) -> bool {
        let Along { outer, extent, chosen, inner } = *self;
        if updates.is_empty() {
            return true;
        }
        if data.is_empty() {
            return false;
        }
        let all_inside = AtomicBool::new(true);
        let each_part = outer.div_ceil(parts(updates.len() * COST, outer));
        let size = each_part * chosen * inner;
        let tasks = data.chunks_mut(each_part * extent * inner).zip(indices.chunks(size).zip(updates.chunks(size)));
        each(tasks.collect(), |(data, (indices, updates)): (&mut [T], (&[I], &[T]))| {
            let mut inside = true;
            let rows = indices.chunks_exact(inner).zip(updates.chunks_exact(inner)).enumerate();
            for (row, (indices, updates)) in rows {
                let data = &mut data[row / chosen * extent * inner..][..extent * inner];
                for (place, (&index, &update)) in indices.iter().zip(updates).enumerate() {
                    let index = from_front(index.into(), extent);
                    if index < extent {
                        let element = &mut data[index * inner + place];
                        *element = write(*element, update);
                    } else {
                        inside = false;
                    }
                }
            }
            if !inside {
                all_inside.store(false, Ordering::Relaxed);
            }
        });
        all_inside.into_inner()
    }
}

/// An index that may count from the back; one that is outside stays so.
#[inline(always)]
fn from_front(index: i64, extent: usize) -> usize {
    let index = if index < 0 { index.wrapping_add(extent as i64) } else { index };
    // Negative ones are far behind the end.
    index as usize
}
