//! Which keys a query sees: the mask that is an operand, and where queries stand among the keys.

use super::extents::Extents;
use crate::steps::KernelError;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::broadcast::broadcast_strides;
use ipuc_formats::ops::{Attention, integers, optional_tensor};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::tensor::filled;
use ipuc_formats::value::Value;
use ipuc_kernels::attention::{Frontier, Mask};
use std::borrow::Cow;

/// A mask as the kernel reads it.
pub(super) struct ScoreMask<'a> {
    values: Cow<'a, [f32]>,
    strides: [usize; 4],
    keys: usize,
}

impl<'a> ScoreMask<'a> {
    /// Of operand 3, where there is one; an outer `None` where the reference has to run.
    pub(super) fn of(
        operator: &Attention,
        extents: Extents,
        inputs: &'a [Option<Value>],
    ) -> Result<Option<Option<Self>>, KernelError> {
        let Some(mask) = optional_tensor(inputs, 3)? else { return Ok(Some(None)) };
        let total = extents.total();
        let keys = mask.shape().last().copied().filter(|&keys| operator.pad_mask && keys <= total).unwrap_or(total);
        let target = [extents.batch, extents.query_heads, extents.queries, keys];
        let mut axes = mask.shape().iter().rev().zip(target.iter().rev());
        let Some(values) = mask_values(mask)? else { return Ok(None) };
        if mask.rank() > 4 || !axes.all(|(own, wanted)| own == wanted || *own == 1) {
            return Ok(None);
        }
        let strides = broadcast_strides(mask.shape(), &target);
        let strides = [strides[0], strides[1], strides[2], strides[3]];
        Ok(Some(Some(ScoreMask { values, strides, keys })))
    }

    pub(super) fn as_mask(&self) -> Mask<'_> {
        Mask { values: &self.values, strides: self.strides, keys: self.keys }
    }
}

/// A mask as f32: 0 and minus infinity for bools.
fn mask_values(mask: &Tensor) -> Result<Option<Cow<'_, [f32]>>, KernelError> {
    Ok(match mask.dtype() {
        DType::Bool => {
            let value = |&seen: &u8| if seen != 0 { 0.0 } else { f32::NEG_INFINITY };
            Some(mask.bytes().iter().map(value).collect())
        }
        DType::F32 => Some(Cow::Borrowed(mask.elements::<f32>()?)),
        _ => None,
    })
}

/// For each batch, where its first query stands and how many keys are valid.
pub(super) struct Positions {
    offsets: Vec<i64>,
    valid: Option<Vec<i64>>,
}

impl Positions {
    /// Of operands 6 and 7; `None` where the reference has to run.
    pub(super) fn of(extents: Extents, inputs: &[Option<Value>]) -> Result<Option<Self>, KernelError> {
        let counted = |operand: usize| optional_tensor(inputs, operand)?.map(|_| integers(inputs, operand)).transpose();
        let (valid, first) = (counted(6)?, counted(7)?);
        if [&valid, &first].into_iter().flatten().any(|given| given.len() != extents.batch) {
            return Ok(None);
        }
        let offset = |valid: &i64| valid.saturating_sub(extents.queries as i64);
        let offsets = match (first, &valid) {
            (Some(first), _) => first,
            (None, Some(valid)) => valid.iter().map(offset).collect(),
            (None, None) => filled(extents.past as i64, extents.batch)?,
        };
        Ok(Some(Positions { offsets, valid }))
    }

    /// No query sees a key before this one, and no score of one is shown.
    pub(super) fn first_seen(&self, operator: &Attention) -> usize {
        let (Some(left), None) = (operator.left_window, operator.scores) else { return 0 };
        let first = self.offsets.iter().map(|offset| offset.saturating_sub(left)).min().unwrap_or(0);
        usize::try_from(first).unwrap_or(0)
    }

    pub(super) fn frontier(&self, operator: &Attention) -> Frontier<'_> {
        Frontier {
            offsets: &self.offsets,
            valid: self.valid.as_deref(),
            causal: operator.causal,
            left: operator.left_window,
            right: operator.right_window,
        }
    }
}
