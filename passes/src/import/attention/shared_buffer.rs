//! Keys and values of the past in a buffer that the present shares: new ones are put behind the first
//! `past_sequence_length` of it, and what is behind those stays. Where several beams are decoded, each key of the past may be
//! that of another beam.

use crate::import::lowering::{LowerError, Lowering};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{
    BinaryFunction, CacheMode, Compare, CompareRelation, Concat, Expand, Gather, GatherNd, Reshape, Select, ShapeOf,
    Slice, TensorScatter,
};

/// What is known of a shared buffer.
pub(super) struct SharedBuffer {
    /// Keys of the past: `[]`, i64.
    pub length: Operand,
    /// The beams that keys come from, where there are some.
    pub beams: Option<Beams>,
}

/// Which beam each key of the past comes from.
#[derive(Clone, Copy)]
pub(super) struct Beams {
    /// Number of beams: `[1]`, i64.
    pub width: Operand,
    /// `[b / width, width, extent of the buffer]`, integers.
    pub sources: Operand,
}

impl SharedBuffer {
    /// A buffer with this number of keys in it (one integer), all of the same beam.
    pub(super) fn new(node: &mut Lowering<'_, '_>, length: Operand) -> Result<Self, LowerError> {
        let length = node.cast(length, DType::I64)?;
        Ok(SharedBuffer { length: node.reshaped(length, &[])?, beams: None })
    }

    /// Position of the first query, and keys with the new ones, for each of the batch.
    pub(super) fn places(&self, node: &mut Lowering<'_, '_>, query: Operand) -> Result<[Operand; 2], LowerError> {
        let batch = node.emit_one(ShapeOf { start: 0, end: Some(1) }, vec![query])?;
        let first = node.emit_one(Expand {}, vec![self.length, batch])?;
        let steps = node.emit_one(ShapeOf { start: 2, end: Some(3) }, vec![query])?;
        Ok([first, node.plus(first, steps)?])
    }

    /// The buffer with new rows behind those of the past.
    pub(super) fn scattered(
        node: &mut Lowering<'_, '_>,
        [past, new, first]: [Operand; 3],
    ) -> Result<Operand, LowerError> {
        node.emit_one(TensorScatter { axis: 2, mode: CacheMode::Linear }, vec![past, new, first])
    }

    /// The rows that queries see of `present: [b, h, c, d]`.
    pub(super) fn seen(&self, node: &mut Lowering<'_, '_>, present: Operand) -> Result<Operand, LowerError> {
        let Some(Beams { width, sources }) = self.beams else { return Ok(present) };
        let sources = node.cast(sources, DType::I64)?;
        // A new row is that of its own beam.
        let own = node.counted(width)?;
        let own = node.unsqueezed(own, &[1])?;
        let capacity = node.emit_one(ShapeOf { start: 2, end: Some(3) }, vec![present])?;
        let rows = node.counted(capacity)?;
        let of_past = Compare { relation: CompareRelation::Less };
        let of_past = node.emit_one(of_past, vec![rows, self.length])?;
        let sources = node.emit_one(Select {}, vec![of_past, sources, own])?;
        let sources = node.transposed(sources, vec![2, 0, 1])?;
        let sources = node.unsqueezed(sources, &[3])?;
        let rest = node.emit_one(ShapeOf { start: 1, end: None }, vec![present])?;
        let any = node.integers(&[-1]);
        let beams = node.emit_one(Concat { axis: 0 }, vec![any, width, rest])?;
        let beams = node.emit_one(Reshape { allow_zero: false }, vec![present, beams])?;
        let beams = node.transposed(beams, vec![3, 0, 1, 2, 4])?;
        let seen = node.emit_one(GatherNd { batch_dims: 2 }, vec![beams, sources])?;
        let seen = node.transposed(seen, vec![1, 2, 3, 0, 4])?;
        node.reshaped_like(seen, present)
    }

    /// `scores: [b, h, s, c]` of the keys that there are.
    pub(super) fn scores(
        &self,
        node: &mut Lowering<'_, '_>,
        scores: Operand,
        query: Operand,
    ) -> Result<Operand, LowerError> {
        let steps = node.emit_one(ShapeOf { start: 2, end: Some(3) }, vec![query])?;
        let total = node.binary(BinaryFunction::Add, steps, self.length)?;
        let [zero, axis] = [0, 3].map(|number| node.integers(&[number]));
        node.emit_one(Slice {}, vec![scores, zero, total, axis])
    }
}

/// The beams of `sources: [b / width, width, c]`.
pub(super) fn beams_of(node: &mut Lowering<'_, '_>, sources: Operand) -> Result<Beams, LowerError> {
    let one = node.integers(&[1]);
    let shape = node.emit_one(ShapeOf { start: 0, end: None }, vec![sources])?;
    let width = node.emit_one(Gather { axis: 0 }, vec![shape, one])?;
    Ok(Beams { width, sources })
}
