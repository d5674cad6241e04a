//! Attention to texts of several lengths without padding, of `com.microsoft`: `PackedAttention`, with `RemovePadding` and
//! `RestorePadding` around it, as ONNX Runtime 1.31 defines them; it computes them on graphics processors only.
//!
//! Offsets of tokens are their places in the rows of a padded batch: first those of all tokens, then those of all padding.

use super::multi_head::split_product;
use crate::import::lowering::{LowerError, Lowering, Row};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{
    Attention, BinaryFunction, Compare, CompareRelation, Concat, Cumulative, CumulativeFunction, Expand, Gather,
    NonZero, Reduce, ReduceFunction, Reshape, ScatterNd, ScatterReduction, ShapeOf, Slice, TypeError, Unary,
    UnaryFunction,
};

type Lowered = Result<Vec<Operand>, LowerError>;

const fn row(name: &'static str, lower: fn(&mut Lowering<'_, '_>) -> Lowered) -> Row {
    Row { domain: "com.microsoft", name, since: 1, lower }
}

/// Attention without padding.
pub const ROWS: &[Row] =
    &[row("PackedAttention", attention), row("RemovePadding", remove_padding), row("RestorePadding", restore_padding)];

/// The first extents of an operand, from `start` on before `end`: `[end - start]`.
fn extents(node: &mut Lowering<'_, '_>, operand: Operand, start: i64, end: i64) -> Result<Operand, LowerError> {
    node.emit_one(ShapeOf { start, end: Some(end) }, vec![operand])
}

/// Offsets of the first `[count]` tokens of `offsets: [b, s]`: `[t]`.
fn places(node: &mut Lowering<'_, '_>, offsets: Operand, count: Operand) -> Result<Operand, LowerError> {
    let offsets = node.cast(offsets, DType::I64)?;
    let offsets = node.reshaped(offsets, &[-1])?;
    let [first, axis] = [0, 0].map(|number| node.integers(&[number]));
    node.emit_one(Slice {}, vec![offsets, first, count, axis])
}

/// `tokens: [t, n]` at their offsets, zeros between them: `[b, s, n]`.
fn restored(node: &mut Lowering<'_, '_>, tokens: Operand, offsets: Operand) -> Result<Operand, LowerError> {
    let dtype = node.dtype(&tokens)?;
    let count = extents(node, tokens, 0, 1)?;
    let places = places(node, offsets, count)?;
    let places = node.unsqueezed(places, &[1])?;
    let width = extents(node, tokens, 1, 2)?;
    let batch = extents(node, offsets, 0, 2)?;
    let slots = node.reshaped(offsets, &[-1])?;
    let slots = extents(node, slots, 0, 1)?;
    let shape = node.emit_one(Concat { axis: 0 }, vec![slots, width])?;
    let zero = node.scalar(dtype, 0.0)?;
    let zeros = node.emit_one(Expand {}, vec![zero, shape])?;
    let scatter = ScatterNd { reduction: ScatterReduction::None };
    let rows = node.emit_one(scatter, vec![zeros, places, tokens])?;
    let shape = node.emit_one(Concat { axis: 0 }, vec![batch, width])?;
    node.emit_one(Reshape { allow_zero: true }, vec![rows, shape])
}

fn restore_padding(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(2)?;
    let (tokens, offsets) = (node.required(0)?, node.required(1)?);
    Ok(vec![restored(node, tokens, offsets)?])
}

/// The tokens of `[b, s, n]`, of which the first `counts: [b]` of each row are no padding: tokens, their offsets and those of
/// the padding, sums of the counts from 0 on, the greatest count.
fn remove_padding(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(2)?;
    let (padded, counts) = (node.required(0)?, node.required(1)?);
    let rank = node.rank(&padded)?;
    if rank != 3 {
        return Err(TypeError::Rank { operand: 0, expected: "3".to_string(), found: rank }.into());
    }
    let batch = extents(node, padded, 0, 2)?;
    let steps = extents(node, padded, 1, 2)?;
    let counts = node.cast(counts, DType::I64)?;
    let steps = node.counted(steps)?;
    let column = node.unsqueezed(counts, &[1])?;
    let kept = node.emit_one(Compare { relation: CompareRelation::Less }, vec![steps, column])?;
    let kept = node.reshaped(kept, &[-1])?;
    let padding = node.emit_one(Unary { function: UnaryFunction::Not }, vec![kept])?;
    let mut offsets = Vec::new();
    for flags in [kept, padding] {
        let found = node.emit_one(NonZero {}, vec![flags])?;
        offsets.push(node.reshaped(found, &[-1])?);
    }
    let width = extents(node, padded, 2, 3)?;
    let all = node.integers(&[-1]);
    let shape = node.emit_one(Concat { axis: 0 }, vec![all, width])?;
    let rows = node.emit_one(Reshape { allow_zero: false }, vec![padded, shape])?;
    let tokens = node.emit_one(Gather { axis: 0 }, vec![rows, offsets[0]])?;
    let offsets = node.emit_one(Concat { axis: 0 }, offsets)?;
    let offsets = node.emit_one(Reshape { allow_zero: true }, vec![offsets, batch])?;
    let axis = node.constant(ipuc_formats::tensor::Tensor::scalar(0i64));
    let sum = Cumulative { function: CumulativeFunction::Sum, exclusive: false, reverse: false };
    let sums = node.emit_one(sum, vec![counts, axis])?;
    let zero = node.integers(&[0]);
    let sums = node.emit_one(Concat { axis: 0 }, vec![zero, sums])?;
    let axis = node.integers(&[0]);
    let greatest = Reduce { function: ReduceFunction::Max, keep_axes: true, keep_without_axes: false };
    let greatest = node.emit_one(greatest, vec![counts, axis])?;
    let mut results = vec![tokens];
    for integers in [offsets, sums, greatest] {
        results.push(node.cast(integers, DType::I32)?);
    }
    Ok(results)
}

/// Each token of `[t, n]` attends to those of its text, whose lengths are differences of sums.
fn attention(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(6)?;
    let heads = node.positive("num_heads")?;
    let scale = node.float("scale")?.filter(|scale| *scale != 0.0);
    let (input, weights, bias) = (node.required(0)?, node.required(1)?, node.required(2)?);
    let (offsets, sums) = (node.required(3)?, node.required(4)?);
    let dtype = node.dtype(&input)?;
    let [rows, weights, bias] = [input, weights, bias].map(|operand| node.cast(operand, DType::F32));
    let product = node.product(rows?, weights?, false)?;
    let product = node.plus(product, bias?)?;
    let padded = restored(node, product, offsets)?;
    let sizes = node.ints("qkv_hidden_sizes")?;
    let [query, key, value] = split_product(node, padded, sizes, heads)?;
    let sums = node.cast(sums, DType::I64)?;
    let (ends, begins) = (node.sliced(sums, 0, [1, i64::MAX, 1])?, node.sliced(sums, 0, [0, -1, 1])?);
    let lengths = node.binary(BinaryFunction::Sub, ends, begins)?;
    let bias = node.cast(node.input(5), DType::F32)?;
    let operator = Attention { scale, ..Attention::plain() };
    let operands = vec![query, key, value, bias, Operand::Absent, Operand::Absent, lengths];
    let attended = node.emit_one(operator, operands)?;
    let attended = node.transposed(attended, vec![0, 2, 1, 3])?;
    let attended = node.reshaped(attended, &[0, 0, -1])?;
    let width = extents(node, attended, 2, 3)?;
    let all = node.integers(&[-1]);
    let shape = node.emit_one(Concat { axis: 0 }, vec![all, width])?;
    let rows = node.emit_one(Reshape { allow_zero: false }, vec![attended, shape])?;
    let count = extents(node, input, 0, 1)?;
    let places = places(node, offsets, count)?;
    let tokens = node.emit_one(Gather { axis: 0 }, vec![rows, places])?;
    Ok(vec![node.cast(tokens, dtype)?])
}
