//! Keys and values as the kernel reads them: where they lie, joined with those of the past, or in pages of state.

use super::extents::Extents;
use crate::steps::floats::computed;
use crate::steps::{Context, KernelError};
use crate::versions::{HeldVersion, Version};
use ipuc_formats::dtype::DType;
use ipuc_formats::element::f16;
use ipuc_formats::ops::{RowScheme, optional_tensor, tensor};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::tensor::filled;
use ipuc_formats::value::Value;
use ipuc_kernels::attention::{HeadElements, Heads, Pages};

/// Keys or values in pages.
pub(super) struct Cached<'a> {
    pages: CachedPages<'a>,
    positions: usize,
}

enum CachedPages<'a> {
    F32(Vec<Vec<&'a [f32]>>),
    F16(Vec<Vec<&'a [f16]>>),
    I8(Vec<Vec<&'a [u8]>>),
}

impl<'a> Cached<'a> {
    pub(super) fn of(version: &Version, held: &'a HeldVersion) -> Result<Cached<'a>, KernelError> {
        let pages = match version.rows() {
            None => CachedPages::F32(held.rows()?),
            Some(RowScheme::F16) => CachedPages::F16(held.rows()?),
            Some(RowScheme::I8) => CachedPages::I8(held.rows()?),
        };
        Ok(Cached { pages, positions: version.page_positions() })
    }

    fn elements(&self) -> HeadElements<'_> {
        let pages = match &self.pages {
            CachedPages::F32(pages) => Pages::F32(pages),
            CachedPages::F16(pages) => Pages::F16(pages),
            CachedPages::I8(pages) => Pages::I8(pages),
        };
        HeadElements::Pages { pages, positions: self.positions }
    }
}

/// Keys (or values) of past and present, as a result where they are one.
pub(super) enum Joined<'a> {
    Borrowed(&'a [f32]),
    Scratch(Vec<f32>),
    Result(Tensor),
    Pages(&'a Cached<'a>),
}

impl<'a> Joined<'a> {
    /// Of operand `operand` and the past in `operand + 3`; result `operand` where `present`.
    pub(super) fn of(
        extents: Extents,
        operand: usize,
        size: usize,
        present: bool,
        inputs: &'a [Option<Value>],
        context: &mut Context<'_>,
    ) -> Result<Self, KernelError> {
        let now = tensor(inputs, operand)?.elements::<f32>()?;
        let past = optional_tensor(inputs, operand + 3)?.map(|past| past.elements::<f32>()).transpose()?;
        let shape = [extents.batch, extents.key_heads, extents.total(), size];
        if present {
            return Ok(Joined::Result(computed(context, operand, DType::F32, &shape, |out| {
                joined(extents, past, now, size, out);
                Ok(())
            })?));
        }
        if past.is_none() {
            return Ok(Joined::Borrowed(now));
        }
        let mut out = filled(0.0, shape.iter().product())?;
        joined(extents, past, now, size, &mut out);
        Ok(Joined::Scratch(out))
    }

    pub(super) fn heads(&self, extents: Extents, size: usize) -> Result<Heads<'_>, KernelError> {
        let total = extents.total();
        let whole = [extents.key_heads * total * size, total * size, size];
        let elements = match self {
            Joined::Borrowed(values) => HeadElements::Whole { values, strides: extents.strides(size) },
            Joined::Scratch(values) => HeadElements::Whole { values, strides: whole },
            Joined::Result(tensor) => HeadElements::Whole { values: tensor.elements::<f32>()?, strides: whole },
            Joined::Pages(cached) => cached.elements(),
        };
        Ok(Heads { elements, size })
    }
}

/// Keys or values behind those of the past: `[batch, heads, past + keys, size]`.
fn joined(extents: Extents, past: Option<&[f32]>, now: &[f32], size: usize, out: &mut [f32]) {
    let [by_batch, by_head, by_key] = extents.strides(size);
    for (index, out) in out.chunks_mut(extents.total() * size).enumerate() {
        let (batch, head) = (index / extents.key_heads, index % extents.key_heads);
        let (before, behind) = out.split_at_mut(extents.past * size);
        if let Some(past) = past {
            before.copy_from_slice(&past[index * before.len()..(index + 1) * before.len()]);
        }
        for (key, row) in behind.chunks_mut(size).enumerate() {
            let first = batch * by_batch + head * by_head + key * by_key;
            row.copy_from_slice(&now[first..first + size]);
        }
    }
}
