//! Operands of steps over elements as they broadcast to blocks.

use super::blocks::Blocks;
use crate::ir::{Constant, Operand, Step};
use ipuc_formats::dim::Dim;
use std::sync::Arc;

/// The largest constant that is reshaped, in elements: values for each channel are few.
const MOST_ELEMENTS: usize = 1 << 16;

impl Blocks<'_> {
    /// An operand that broadcasts to `result: [n, c, d..]`, as it broadcasts to that in blocks; `None` where it does not without
    /// being computed anew.
    pub(super) fn broadcast(&mut self, operand: Operand, result: &[Dim], name: &Arc<str>) -> Option<Operand> {
        if operand == Operand::Absent {
            return Some(operand);
        }
        let dims = self.dims(operand)?;
        let is_one = |dim: &Dim| dim.as_known() == Some(1);
        if dims.iter().all(is_one) {
            return (dims.len() <= result.len()).then_some(operand);
        }
        if dims.as_slice() == result && !matches!(operand, Operand::Constant(_)) {
            return Some(Operand::Value(self.in_blocks(operand, name)?));
        }
        // Axes are counted from the last.
        let channels = (dims.len() + 1).checked_sub(result.len())?;
        let (before, positions) = (&dims[..channels], &dims[channels + 1..]);
        let other = if is_one(&dims[channels]) {
            [&dims[..], &[Dim::ONE]].concat()
        } else {
            (dims[channels] == result[1] && positions.iter().all(is_one)).then_some(())?;
            let channels = result[1].as_known()?;
            let block = self.block_size.block(channels)?;
            [before, &[Dim::known(channels / block)], positions, &[Dim::known(block)]].concat()
        };
        self.with_dims(operand, &other, name)
    }

    /// Operands of a convolution whose result `[n, c, d..]` comes in blocks: the image in the order of ONNX where it is plain, else in
    /// blocks, and those behind its `own` ones as they broadcast to the result.
    pub(super) fn of_convolution(
        &mut self,
        step: &Step,
        own: usize,
        result: &[Dim],
        is_plain: bool,
    ) -> Option<Vec<Operand>> {
        let mut operands = step.operands.clone();
        for operand in operands.iter_mut().skip(own) {
            *operand = self.broadcast(*operand, result, &step.name)?;
        }
        if is_plain {
            self.make_plain(operands[0]).ok()?;
        } else {
            operands[0] = Operand::Value(self.in_blocks(operands[0], &step.name)?);
        }
        Some(operands)
    }

    /// An operand with other extents; a constant stays one.
    fn with_dims(&mut self, operand: Operand, dims: &[Dim], name: &Arc<str>) -> Option<Operand> {
        let Operand::Constant(id) = operand else {
            self.make_plain(operand).ok()?;
            return Some(Operand::Value(self.reshaped(operand, dims, name)?));
        };
        let shape = dims.iter().map(|dim| usize::try_from(dim.as_known()?).ok()).collect::<Option<Vec<usize>>>()?;
        (shape.iter().product::<usize>() <= MOST_ELEMENTS).then_some(())?;
        let tensor = self.graph.load_constant(id).ok()?.reshaped(&shape).ok()?;
        let label = self.graph.constant(id).name.clone();
        Some(Operand::Constant(self.graph.add_constant(Constant::of(tensor, label.as_deref()))))
    }

    /// Whether a value is there in blocks only.
    pub(super) fn is_waiting(&self, operand: Operand) -> bool {
        matches!(operand, Operand::Value(value) if self.waiting.contains_key(&value))
    }

    /// Whether a value is there in blocks, or has its channels from the last axis of another.
    pub(super) fn is_near(&self, operand: Operand) -> bool {
        let Operand::Value(value) = operand else { return false };
        self.blocked.contains_key(&value) || self.transposed.contains_key(&value)
    }
}
