//! `SparseAttention` of `com.microsoft`: attention with a cache of a capacity, in which a query sees those blocks of keys that a
//! layout names. Layouts come as rows of compressed indices; heads take them in turn.

use crate::import::attention::group_query::heads_of;
use crate::import::attention::microsoft::cache_columns;
use crate::import::lowering::{LowerError, Lowering, Row};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{
    Attention, BinaryFunction, CacheScatter, Compare, CompareRelation, Concat, Expand, Gather, Reduce, ReduceFunction,
    Reshape, RotaryEmbedding, ScatterElements, ScatterReduction, Select, ShapeOf, TypeError,
};
use ipuc_formats::tensor::Tensor;

type Lowered = Result<Vec<Operand>, LowerError>;

/// Attention to blocks of ONNX Runtime.
pub const ROWS: &[Row] = &[Row { domain: "com.microsoft", name: "SparseAttention", since: 1, lower: sparse_attention }];

/// Inputs.
const PAST: [usize; 2] = [3, 4];
const BLOCK_ROWS: usize = 5;
const BLOCK_COLUMNS: usize = 6;
const TOTAL: usize = 7;
const LENGTHS: usize = 8;
const COS: usize = 9;
const SIN: usize = 10;

fn sparse_attention(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(11)?;
    let (query_heads, key_heads) = (node.positive("num_heads")?, node.positive("kv_num_heads")?);
    let block = node.positive("sparse_block_size")?;
    let scale = node.float("scale")?.filter(|scale| *scale != 0.0);
    let ([query, key, value], size) = heads_of(node, query_heads, key_heads)?;
    let dtype = node.dtype(&query)?;
    if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
        let expected = "f16, bf16 or f32".to_string();
        return Err(TypeError::ElementType { operand: 0, expected, found: dtype }.into());
    }
    let mut numbers = Vec::new();
    for (input, shape) in [(LENGTHS, &[-1][..]), (TOTAL, &[])] {
        let given = node.required(input)?;
        let given = node.cast(given, DType::I64)?;
        numbers.push(node.reshaped(given, shape)?);
    }
    let (valid, total) = (numbers[0], numbers[1]);
    let steps = node.emit_one(ShapeOf { start: 2, end: Some(3) }, vec![query])?;
    // A first prompt may be padded on the right.
    let zero = node.integers(&[0]);
    let first = node.binary(BinaryFunction::Sub, valid, steps)?;
    let first = node.binary(BinaryFunction::Max, first, zero)?;
    let offsets = node.counted(steps)?;
    let positions = node.unsqueezed(first, &[1])?;
    let positions = node.plus(positions, offsets)?;
    let [query, key] = rotated(node, [query, key], positions)?;
    let mut present = [Operand::Absent; 2];
    for (index, new) in [key, value].into_iter().enumerate() {
        let past = node.required(PAST[index])?;
        present[index] = node.emit_one(CacheScatter {}, vec![past, new, first, total])?;
    }
    let mask = mask(node, (block, query_heads), positions, present[0])?;
    let mut operands = vec![query, present[0], present[1]];
    for operand in &mut operands {
        *operand = node.cast(*operand, DType::F32)?;
    }
    operands.extend([mask, Operand::Absent, Operand::Absent, valid, first]);
    let output = node.emit_one(Attention { scale, causal: true, ..Attention::plain() }, operands)?;
    let output = node.cast(output, dtype)?;
    let output = node.transposed(output, vec![0, 2, 1, 3])?;
    let output = node.reshaped(output, &[0, 0, query_heads * size])?;
    Ok(vec![output, present[0], present[1]])
}

/// Queries and keys rotated by their positions, where that is asked for.
fn rotated(node: &mut Lowering<'_, '_>, heads: [Operand; 2], positions: Operand) -> Result<[Operand; 2], LowerError> {
    let (rotates, interleaved) = (node.flag("do_rotary", false)?, node.flag("rotary_interleaved", false)?);
    if !rotates {
        return Ok(heads);
    }
    let (cos, sin) = (node.required(COS)?, node.required(SIN)?);
    let rotated = Some(cache_columns(node, cos)?.saturating_mul(2));
    let mut results = heads;
    for result in &mut results {
        let operator = RotaryEmbedding { interleaved, rotated, heads: None };
        *result = node.emit_one(operator, vec![*result, cos, sin, positions])?;
    }
    Ok(results)
}

/// Which keys the queries at `positions: [b, s]` see of a layout's blocks: `[b, heads, s, t]`, bool.
fn mask(
    node: &mut Lowering<'_, '_>,
    (block, heads): (i64, i64),
    positions: Operand,
    keys: Operand,
) -> Result<Operand, LowerError> {
    let blocks = blocks(node)?;
    let size = node.constant(Tensor::scalar(block));
    let rows = node.binary(BinaryFunction::Div, positions, size)?;
    let seen = node.emit_one(Gather { axis: 1 }, vec![blocks, rows])?;
    let keys = node.emit_one(ShapeOf { start: 2, end: Some(3) }, vec![keys])?;
    let keys = node.counted(keys)?;
    let columns = node.binary(BinaryFunction::Div, keys, size)?;
    // Keys behind the last block are not there yet.
    let count = node.emit_one(ShapeOf { start: 2, end: Some(3) }, vec![blocks])?;
    let one = node.constant(Tensor::scalar(1i64));
    let last = node.binary(BinaryFunction::Sub, count, one)?;
    let columns = node.binary(BinaryFunction::Min, columns, last)?;
    let seen = node.emit_one(Gather { axis: 3 }, vec![seen, columns])?;
    let seen = node.transposed(seen, vec![1, 0, 2, 3])?;
    let heads = node.integers(&[heads]);
    let heads = node.counted(heads)?;
    let layouts = node.emit_one(ShapeOf { start: 0, end: Some(1) }, vec![blocks])?;
    let layouts = node.binary(BinaryFunction::Remainder, heads, layouts)?;
    node.emit_one(Gather { axis: 1 }, vec![seen, layouts])
}

/// The layouts of `block_row_indices: [l, n + 1]` and `block_col_indices: [l, m]` as `[l, n, n]`, bool.
fn blocks(node: &mut Lowering<'_, '_>) -> Result<Operand, LowerError> {
    let (rows, columns) = (node.required(BLOCK_ROWS)?, node.required(BLOCK_COLUMNS)?);
    let (rows, columns) = (node.cast(rows, DType::I64)?, node.cast(columns, DType::I64)?);
    let [zero, one] = [0i64, 1].map(|number| node.constant(Tensor::scalar(number)));
    let layouts = node.emit_one(ShapeOf { start: 0, end: Some(1) }, vec![rows])?;
    let bounds = node.emit_one(ShapeOf { start: 1, end: Some(2) }, vec![rows])?;
    let count = node.binary(BinaryFunction::Sub, bounds, one)?;
    // The row of an entry: how many rows have ended before it.
    let entries = node.emit_one(ShapeOf { start: 1, end: Some(2) }, vec![columns])?;
    let entries = node.counted(entries)?;
    let places = node.unsqueezed(entries, &[1])?;
    let ends = node.sliced(rows, 1, [1, i64::MAX, 1])?;
    let ends = node.unsqueezed(ends, &[1])?;
    let ended = node.emit_one(Compare { relation: CompareRelation::LessOrEqual }, vec![ends, places])?;
    let ended = node.cast(ended, DType::I64)?;
    let axis = node.integers(&[2]);
    let sum = Reduce { function: ReduceFunction::Sum, keep_axes: false, keep_without_axes: false };
    let row = node.emit_one(sum, vec![ended, axis])?;
    // Entries behind the last row, and columns that there are not, go to a place of their own behind all blocks.
    let mut there = node.emit_one(Compare { relation: CompareRelation::Less }, vec![row, count])?;
    for (relation, bound) in [(CompareRelation::GreaterOrEqual, zero), (CompareRelation::Less, count)] {
        let inside = node.emit_one(Compare { relation }, vec![columns, bound])?;
        there = node.binary(BinaryFunction::And, there, inside)?;
    }
    let layout = node.counted(layouts)?;
    let layout = node.unsqueezed(layout, &[1])?;
    let place = node.binary(BinaryFunction::Mul, layout, count)?;
    let place = node.plus(place, row)?;
    let place = node.binary(BinaryFunction::Mul, place, count)?;
    let place = node.plus(place, columns)?;
    let square = node.binary(BinaryFunction::Mul, count, count)?;
    let all = node.binary(BinaryFunction::Mul, square, layouts)?;
    let place = node.emit_one(Select {}, vec![there, place, all])?;
    let place = node.reshaped(place, &[-1])?;
    let [nothing, something] = [0u8, 1].map(|number| node.constant(Tensor::scalar(number)));
    let extent = node.plus(all, one)?;
    let empty = node.emit_one(Expand {}, vec![nothing, extent])?;
    let shape = node.emit_one(ShapeOf { start: 0, end: None }, vec![place])?;
    let full = node.emit_one(Expand {}, vec![something, shape])?;
    let scatter = ScatterElements { axis: 0, reduction: ScatterReduction::None };
    let flat = node.emit_one(scatter, vec![empty, place, full])?;
    let flat = node.sliced(flat, 0, [0, -1, 1])?;
    let flat = node.cast(flat, DType::Bool)?;
    let shape = node.emit_one(Concat { axis: 0 }, vec![layouts, count, count])?;
    node.emit_one(Reshape { allow_zero: false }, vec![flat, shape])
}
