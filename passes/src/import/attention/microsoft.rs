//! Attention of `com.microsoft`: `GroupQueryAttention` and `RotaryEmbedding`, as ONNX Runtime computes them on a processor.
//!
//! `GroupQueryAttention` becomes rotations, two cache scatters (its present keys and values), and attention with a number of valid
//! keys for each of the batch. A cache of codes (`cache_codes.rs`) is decoded before it is attended to. A cache that evicts
//! keys and the products as an output are refused.
//! f16 and bf16 are attended to in f32.

use crate::import::attention::cache_codes::CacheCodes;
use crate::import::lowering::{LowerError, Lowering, Row};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::Fact;
use ipuc_formats::ops::{
    Attention, BinaryFunction, CacheScatter, Compare, CompareRelation, Expand, Gather, LayerNormalization, Range,
    RotaryEmbedding, Select, ShapeOf, Split, Transpose, TypeError, Unsqueeze,
};
use ipuc_formats::tensor::Tensor;

type Lowered = Result<Vec<Operand>, LowerError>;

/// Attention of ONNX Runtime.
pub const ROWS: &[Row] = &[
    Row { domain: "com.microsoft", name: "GroupQueryAttention", since: 1, lower: group_query_attention },
    Row { domain: "com.microsoft", name: "RotaryEmbedding", since: 1, lower: rotary_embedding },
];

/// Inputs of `GroupQueryAttention`.
mod input {
    pub const QUERY: usize = 0;
    pub const KEY: usize = 1;
    pub const VALUE: usize = 2;
    pub const PAST: [usize; 2] = [3, 4];
    pub const LENGTHS: usize = 5;
    pub const TOTAL: usize = 6;
    pub const COS: usize = 7;
    pub const SIN: usize = 8;
    pub const POSITIONS: usize = 9;
    pub const BIAS: usize = 10;
    pub const SINK: usize = 11;
    pub const NORMS: [usize; 2] = [14, 15];
    pub const COUNT: usize = 16;
}

/// What the lengths say, as i64.
struct Places {
    /// Position of the first query, for each of the batch.
    first: Operand,
    /// Keys that are no padding with the new ones, for each of the batch.
    valid: Operand,
    /// Number of queries: `[1]`.
    steps: Operand,
    /// The greatest number of keys in the batch: `[]`.
    total: Operand,
}

fn group_query_attention(node: &mut Lowering<'_, '_>) -> Lowered {
    refuse_unsupported(node)?;
    let mut heads = |name: &str| match node.int(name)? {
        Some(heads) if heads > 0 => Ok(heads),
        Some(other) => Err(LowerError::Unsupported(format!("attribute `{name}` = {other}"))),
        None => Err(LowerError::MissingAttribute(name.to_string())),
    };
    let (query_heads, key_heads) = (heads("num_heads")?, heads("kv_num_heads")?);
    let causal = node.flag("causal", true)?;
    let left_window = window(node)?;
    if left_window.is_some() && !causal {
        return Err(node.refuse("attribute `local_window_size` without `causal`"));
    }
    let operator = Attention {
        scale: node.float("scale")?.filter(|scale| *scale != 0.0),
        causal,
        softcap: node.float("softcap")?.map_or(0.0, |softcap| softcap.max(0.0)),
        left_window,
        pad_mask: true,
        ..Attention::plain()
    };
    let ([query, key, value], size) = heads_of(node, query_heads, key_heads)?;
    let codes = CacheCodes::of(node, [key_heads, size])?;
    let [query, key] = normalized(node, [query, key])?;
    let places = places(node, query)?;
    let [query, key] = rotated(node, [query, key], &places)?;
    let sink = sink(node, query_heads)?;
    let (mut present, mut seen) = ([Operand::Absent; 2], [Operand::Absent; 2]);
    for (index, mut new) in [key, value].into_iter().enumerate() {
        if let Some(codes) = &codes[index] {
            new = codes.stored(node, new)?;
        }
        let operands = vec![node.input(input::PAST[index]), new, places.first, places.total];
        present[index] = node.emit_one(CacheScatter {}, operands)?;
        seen[index] = match &codes[index] {
            Some(codes) => codes.decoded(node, present[index])?,
            None => present[index],
        };
    }
    let dtype = node.dtype(&query)?;
    let mut operands = vec![query, seen[0], seen[1], node.input(input::BIAS), Operand::Absent, Operand::Absent];
    operands.extend([places.valid, places.first, sink]);
    for operand in [0, 1, 2, 3, 8] {
        operands[operand] = node.cast(operands[operand], DType::F32)?;
    }
    let output = node.emit_one(operator, operands)?;
    let output = node.cast(output, dtype)?;
    let output = node.emit_one(Transpose { permutation: vec![0, 2, 1, 3] }, vec![output])?;
    let output = node.reshaped(output, &[0, 0, query_heads * size])?;
    Ok(vec![output, present[0], present[1]])
}

/// Refuse what changes the meaning and is not computed.
fn refuse_unsupported(node: &mut Lowering<'_, '_>) -> Result<(), LowerError> {
    if node.input_count() > input::COUNT {
        let expected = format!("at most {}", input::COUNT);
        return Err(TypeError::OperandCount { expected, found: node.input_count() }.into());
    }
    for name in ["sliding_window_cache", "qk_output"] {
        if let Some(value) = node.int(name)?.filter(|value| *value != 0) {
            return Err(node.refuse(format!("attribute `{name}` = {value}")));
        }
    }
    if node.output_used(3) {
        return Err(node.refuse("output `output_qk`"));
    }
    let query = node.required(input::QUERY)?;
    match node.dtype(&query)? {
        DType::F32 | DType::F16 | DType::BF16 => Ok(()),
        found => {
            let expected = "f16, bf16 or f32".to_string();
            Err(TypeError::ElementType { operand: input::QUERY, expected, found }.into())
        }
    }
}

/// Keys before its own that a query sees. The attribute counts its own, too; -1 is no window.
fn window(node: &mut Lowering<'_, '_>) -> Result<Option<i64>, LowerError> {
    match node.int("local_window_size")?.unwrap_or(-1) {
        -1 => Ok(None),
        window if window > 0 => Ok(Some(window - 1)),
        other => Err(node.refuse(format!("attribute `local_window_size` = {other}"))),
    }
}

/// Queries `[b, hq, s, d]`, keys and values `[b, hk, s, d]`, which may come as one operand; and d.
fn heads_of(node: &mut Lowering<'_, '_>, query_heads: i64, key_heads: i64) -> Result<([Operand; 3], i64), LowerError> {
    let query = node.required(input::QUERY)?;
    let packed = node.input(input::KEY) == Operand::Absent && node.input(input::VALUE) == Operand::Absent;
    let shared = if packed { query_heads.saturating_add(key_heads.saturating_mul(2)) } else { query_heads };
    let hidden = match node.fact(&query).as_ref().and_then(Fact::dims) {
        Some([_, _, hidden]) => hidden.as_known(),
        Some(dims) => {
            let expected = "3".to_string();
            return Err(TypeError::Rank { operand: input::QUERY, expected, found: dims.len() }.into());
        }
        None => None,
    };
    let size = match hidden {
        Some(hidden) if hidden % shared == 0 => hidden / shared,
        Some(hidden) => return Err(node.refuse(format!("a hidden size of {hidden} in {shared} heads"))),
        None => return Err(node.refuse("a hidden size that is not known")),
    };
    let operands = if packed {
        let sizes = [query_heads * size, key_heads * size, key_heads * size];
        let sizes = node.constant(Tensor::vector_i64(&sizes));
        node.emit(Split { axis: 2, parts: 3, even: false }, vec![query, sizes])?
    } else {
        vec![query, node.required(input::KEY)?, node.required(input::VALUE)?]
    };
    let mut separate = [Operand::Absent; 3];
    for ((place, operand), heads) in separate.iter_mut().zip(operands).zip([query_heads, key_heads, key_heads]) {
        let operand = node.reshaped(operand, &[0, 0, heads, size])?;
        *place = node.emit_one(Transpose { permutation: vec![0, 2, 1, 3] }, vec![operand])?;
    }
    Ok((separate, size))
}

/// Queries and keys, each head divided by its root mean square where there are weights.
fn normalized(node: &mut Lowering<'_, '_>, heads: [Operand; 2]) -> Result<[Operand; 2], LowerError> {
    let shared = node.float("qk_norm_epsilon")?.unwrap_or(1e-6);
    let epsilons = [node.float("q_norm_epsilon")?.unwrap_or(shared), node.float("k_norm_epsilon")?.unwrap_or(shared)];
    if input::NORMS.iter().all(|&weight| node.input(weight) == Operand::Absent) {
        return Ok(heads);
    }
    let mut results = heads;
    for ((result, weight), epsilon) in results.iter_mut().zip(input::NORMS).zip(epsilons) {
        let weight = node.required(weight)?;
        let operator = LayerNormalization { axis: -1, epsilon, center: false, stash: DType::F32 };
        *result = node.emit_one(operator, vec![*result, weight])?;
    }
    Ok(results)
}

fn places(node: &mut Lowering<'_, '_>, query: Operand) -> Result<Places, LowerError> {
    let (lengths, total) = (node.required(input::LENGTHS)?, node.required(input::TOTAL)?);
    let lengths = node.reshaped(lengths, &[-1])?;
    let lengths = node.cast(lengths, DType::I64)?;
    let total = node.reshaped(total, &[])?;
    let total = node.cast(total, DType::I64)?;
    let steps = node.emit_one(ShapeOf { start: 2, end: Some(3) }, vec![query])?;
    let [zero, one] = [0, 1].map(|number| node.constant(Tensor::vector_i64(&[number])));
    // The lengths are those of all tokens less one. In a first prompt that is padded they are shorter than the queries.
    let valid = node.binary(BinaryFunction::Add, lengths, one)?;
    let first = node.binary(BinaryFunction::Sub, valid, steps)?;
    let first = node.binary(BinaryFunction::Max, first, zero)?;
    Ok(Places { first, valid, steps, total })
}

/// Queries and keys rotated by their positions, where that is asked for.
fn rotated(node: &mut Lowering<'_, '_>, heads: [Operand; 2], places: &Places) -> Result<[Operand; 2], LowerError> {
    let (rotates, interleaved) = (node.flag("do_rotary", false)?, node.flag("rotary_interleaved", false)?);
    if !rotates {
        return Ok(heads);
    }
    let (cos, sin) = (node.required(input::COS)?, node.required(input::SIN)?);
    let rotated = Some(cache_columns(node, cos)?.saturating_mul(2));
    let first_axis = node.constant(Tensor::vector_i64(&[1]));
    let mut positions = match node.input(input::POSITIONS) {
        Operand::Absent => places.first,
        given => first_of(node, given)?,
    };
    positions = node.emit_one(Unsqueeze {}, vec![positions, first_axis])?;
    let offsets = counted(node, places.steps)?;
    positions = node.binary(BinaryFunction::Add, positions, offsets)?;
    if node.input(input::POSITIONS) != Operand::Absent {
        // In a first prompt only the first of them counts.
        let given = node.input(input::POSITIONS);
        let prompt = node.emit_one(Compare { relation: CompareRelation::Equal }, vec![places.steps, places.total])?;
        positions = node.emit_one(Select {}, vec![prompt, positions, given])?;
    }
    let mut results = heads;
    for result in &mut results {
        let operator = RotaryEmbedding { interleaved, rotated, heads: None };
        *result = node.emit_one(operator, vec![*result, cos, sin, positions])?;
    }
    Ok(results)
}

/// Columns of a cache of cosines.
pub(super) fn cache_columns(node: &Lowering<'_, '_>, cache: Operand) -> Result<i64, LowerError> {
    match node.fact(&cache).as_ref().and_then(Fact::dims) {
        Some([_, columns]) => columns.as_known().ok_or_else(|| node.refuse("a rotary cache of unknown width")),
        Some(dims) => Err(node.refuse(format!("a rotary cache of {} axes", dims.len()))),
        None => Err(node.refuse("a rotary cache of unknown shape")),
    }
}

/// The sink of each head, if there is one. A smooth softmax has a sink of 0.
fn sink(node: &mut Lowering<'_, '_>, heads: i64) -> Result<Operand, LowerError> {
    let smooth = match node.int("smooth_softmax")?.unwrap_or(-1) {
        -1 | 0 => false,
        1 => true,
        other => return Err(node.refuse(format!("attribute `smooth_softmax` = {other}"))),
    };
    match node.input(input::SINK) {
        Operand::Absent if smooth => {
            let zero = Tensor::from_elements(&[1], &[0f32])?;
            let operands = [zero, Tensor::vector_i64(&[heads])].map(|tensor| node.constant(tensor));
            node.emit_one(Expand {}, operands.to_vec())
        }
        sink => Ok(sink),
    }
}

/// `RotaryEmbedding` of `com.microsoft`: positions are operand 1, and may be one offset for all.
fn rotary_embedding(node: &mut Lowering<'_, '_>) -> Lowered {
    let interleaved = node.flag("interleaved", false)?;
    let heads = node.int("num_heads")?.filter(|heads| *heads != 0);
    let rotated = node.int("rotary_embedding_dim")?.filter(|rotated| *rotated != 0);
    if rotated.is_some() && heads.is_none() {
        return Err(node.refuse("attribute `rotary_embedding_dim` without `num_heads`"));
    }
    if node.flag("is_packed_batching", false)? {
        return Err(node.refuse("attribute `is_packed_batching` = 1"));
    }
    if let Some(scale) = node.float("scale")?.filter(|scale| *scale != 1.0) {
        return Err(node.refuse(format!("attribute `scale` = {scale}")));
    }
    let [data, positions, cos, sin] = [node.required(0)?, node.required(1)?, node.required(2)?, node.required(3)?];
    let (heads, steps_axis) = heads_and_steps(node, data, cos, heads)?;
    let positions = match node.fact(&positions).as_ref().and_then(Fact::rank) {
        Some(2) => positions,
        Some(1) => behind_offset(node, data, positions, steps_axis)?,
        Some(found) => return Err(TypeError::Rank { operand: 1, expected: "1 or 2".to_string(), found }.into()),
        None => return Err(node.refuse("positions of unknown rank")),
    };
    node.emit(RotaryEmbedding { interleaved, rotated, heads }, vec![data, cos, sin, positions])
}

/// How many heads data has, where that must be said, and which axis its steps are: `[b, s, h*d]` or `[b, h, s, d]`.
pub(super) fn heads_and_steps(
    node: &Lowering<'_, '_>,
    data: Operand,
    cos: Operand,
    heads: Option<i64>,
) -> Result<(Option<i64>, i64), LowerError> {
    match node.fact(&data).as_ref().and_then(Fact::dims) {
        Some([_, _, hidden]) => {
            let whole = cache_columns(node, cos)?.saturating_mul(2);
            let counted = hidden.as_known().and_then(|hidden| hidden.checked_div(whole));
            Ok((Some(heads.or(counted).ok_or_else(|| node.refuse("a hidden size that is not known"))?), 1))
        }
        Some([_, _, _, _]) => Ok((heads, 2)),
        Some(dims) => {
            let expected = "3 or 4".to_string();
            Err(TypeError::Rank { operand: 0, expected, found: dims.len() }.into())
        }
        None => Err(node.refuse("an operand of unknown rank")),
    }
}

/// Positions `[b, s]` from an offset `[1]` on.
fn behind_offset(
    node: &mut Lowering<'_, '_>,
    data: Operand,
    offset: Operand,
    steps_axis: i64,
) -> Result<Operand, LowerError> {
    let axes = node.constant(Tensor::vector_i64(&[0, steps_axis]));
    let shape = node.emit_one(ShapeOf { start: 0, end: None }, vec![data])?;
    let shape = node.emit_one(Gather { axis: 0 }, vec![shape, axes])?;
    let steps = node.emit_one(ShapeOf { start: steps_axis, end: Some(steps_axis + 1) }, vec![data])?;
    let offsets = counted(node, steps)?;
    let offset = node.reshaped(offset, &[1])?;
    let positions = node.binary(BinaryFunction::Add, offset, offsets)?;
    node.emit_one(Expand {}, vec![positions, shape])
}

/// The numbers from 0 up to `count: [1]`.
fn counted(node: &mut Lowering<'_, '_>, count: Operand) -> Result<Operand, LowerError> {
    let count = node.reshaped(count, &[])?;
    let [zero, one] = [0i64, 1].map(|number| node.constant(Tensor::scalar(number)));
    node.emit_one(Range {}, vec![zero, count, one])
}

/// The first element: `[1]`.
fn first_of(node: &mut Lowering<'_, '_>, operand: Operand) -> Result<Operand, LowerError> {
    let flat = node.reshaped(operand, &[-1])?;
    let place = node.constant(Tensor::vector_i64(&[0]));
    node.emit_one(Gather { axis: 0 }, vec![flat, place])
}
