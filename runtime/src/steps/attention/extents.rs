//! Extents of an attention, from the types of its operands.

use crate::steps::KernelError;
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::{Fact, Type};
use ipuc_formats::ops::Attention;

/// Known extents of an attention that runs here.
#[derive(Clone, Copy)]
pub(super) struct Extents {
    pub(super) batch: usize,
    pub(super) query_heads: usize,
    pub(super) key_heads: usize,
    pub(super) queries: usize,
    pub(super) past: usize,
    /// Keys of this run, behind those of the past.
    pub(super) keys: usize,
    pub(super) size: usize,
    pub(super) value_size: usize,
    /// Operands have three axes.
    pub(super) flat: bool,
}

impl Extents {
    /// Of operands of these types; `None` where the reference has to run (or to refuse).
    pub(super) fn of(operator: &Attention, kinds: &[Option<Type>]) -> Result<Option<Extents>, KernelError> {
        let facts: Vec<Option<Fact>> = kinds.iter().cloned().map(|kind| kind.map(Fact::of)).collect();
        let (dtype, value_type) = operator.check_types(&facts)?;
        let precise = !matches!(operator.softmax_precision, Some(DType::F16 | DType::BF16));
        if dtype != DType::F32 || value_type != DType::F32 || !precise || !operator.arithmetic.is_default() {
            return Ok(None);
        }
        let shape = |operand: usize| {
            let (_, shape) = kinds.get(operand)?.as_ref()?.as_tensor()?;
            shape.as_known()
        };
        let heads = |operand: usize, stated: Option<i64>| {
            let stated = stated.and_then(|heads| usize::try_from(heads).ok());
            match (shape(operand)?.as_slice(), stated) {
                (&[batch, heads, length, size], stated) if stated.is_none_or(|stated| stated == heads) => {
                    Some([batch, heads, length, size])
                }
                (&[batch, length, hidden], Some(heads)) if heads > 0 && hidden % heads == 0 => {
                    Some([batch, heads, length, hidden / heads])
                }
                _ => None,
            }
        };
        let (q, k, v) = (heads(0, operator.query_heads), heads(1, operator.key_heads), heads(2, operator.key_heads));
        let (Some(q), Some(k), Some(v)) = (q, k, v) else { return Ok(None) };
        let ranks = [0, 1, 2].map(|operand| shape(operand).map_or(0, |shape| shape.len()));
        let [batch, query_heads, queries, size] = q;
        let [_, key_heads, keys, value_size] = v;
        let past = shape(4).map_or(0, |past| past.get(2).copied().unwrap_or(0));
        let extents =
            Extents { batch, query_heads, key_heads, queries, past, keys, size, value_size, flat: ranks[0] == 3 };
        let fits_past =
            |operand: usize, size: usize| shape(operand).is_none_or(|found| found == [batch, key_heads, past, size]);
        let fits = k == [batch, key_heads, keys, size]
            && v[0] == batch
            && ranks.iter().all(|rank| *rank == ranks[0])
            && [batch, key_heads, queries, past + keys, size, value_size, query_heads].iter().all(|extent| *extent > 0)
            && query_heads.is_multiple_of(key_heads)
            && fits_past(4, size)
            && fits_past(5, value_size);
        Ok(fits.then_some(extents))
    }

    pub(super) fn total(&self) -> usize {
        self.past + self.keys
    }

    /// Distances between batches, heads and keys of an operand of this run.
    pub(super) fn strides(&self, size: usize) -> [usize; 3] {
        match self.flat {
            true => [self.keys * self.key_heads * size, size, self.key_heads * size],
            false => [self.key_heads * self.keys * size, self.keys * size, size],
        }
    }
}
