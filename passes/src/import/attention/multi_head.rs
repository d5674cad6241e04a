//! Attention of `com.microsoft` with as many key heads as query heads: `Attention`, `MultiHeadAttention`,
//! `DecoderMaskedMultiHeadAttention`, `QAttention`, as ONNX Runtime 1.31 computes them on a processor.
//!
//! Operands become heads, past keys and values are put before the new ones, and padding becomes a bias of
//! `mask_filter_value`, which is finite: a row of nothing but padding attends to all of it. f16 and bf16 are attended to in
//! f32.

use crate::import::attention::shared_buffer::{Beams, SharedBuffer, beams_of};
use crate::import::lowering::{LowerError, Lowering, Row};
use crate::import::products::with_scalars;
use crate::ir::Operand;
use ipuc_formats::dim::Dim;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{
    Attention, BinaryFunction, Cast, Compare, CompareRelation, Concat, Expand, Gather, IntegerMatmul, Program,
    ScoreStage, Select, ShapeOf, Slice, Split, TypeError,
};
use ipuc_formats::tensor::Tensor;

type Lowered = Result<Vec<Operand>, LowerError>;

const fn row(name: &'static str, lower: fn(&mut Lowering<'_, '_>) -> Lowered) -> Row {
    Row { domain: "com.microsoft", name, since: 1, lower }
}

/// Attention of several heads of ONNX Runtime.
pub const ROWS: &[Row] = &[
    row("Attention", attention),
    row("DecoderMaskedMultiHeadAttention", decoder_attention),
    row("MultiHeadAttention", multi_head_attention),
    row("QAttention", quantized_attention),
];

/// Queries, keys and values, with what belongs to them.
struct Heads {
    /// `[b, h, s, d]`.
    query: Operand,
    /// `[b, h, l, d]`.
    key: Operand,
    /// `[b, h, l, e]`.
    value: Operand,
    /// `[b, h, p, d]` and `[b, h, p, e]`; absent where there is no past.
    past: [Operand; 2],
    /// `[b]`, `[2 * b]`, `[b, t]` or `[b, s, t]`, integers; or absent.
    padding: Operand,
    /// `[b or 1, h or 1, s, t]`, or absent.
    bias: Operand,
    /// Where past and present share a buffer.
    buffer: Option<SharedBuffer>,
}

/// The attributes that all have.
struct Settings {
    heads: i64,
    scale: Option<f32>,
    /// What is added to the scores of padding.
    filter: f32,
    causal: bool,
}

fn settings(node: &mut Lowering<'_, '_>) -> Result<Settings, LowerError> {
    Ok(Settings {
        heads: node.positive("num_heads")?,
        scale: node.float("scale")?.filter(|scale| *scale != 0.0),
        filter: node.float("mask_filter_value")?.unwrap_or(-10000.0),
        causal: node.flag("unidirectional", false)?,
    })
}

/// `[b, s, h * d]` as `[b, h, s, d]`.
fn split_heads(node: &mut Lowering<'_, '_>, operand: Operand, heads: i64) -> Result<Operand, LowerError> {
    let operand = node.reshaped(operand, &[0, 0, heads, -1])?;
    node.transposed(operand, vec![0, 2, 1, 3])
}

/// Heads of an operand that may have three axes, or four: already in heads.
fn in_heads(node: &mut Lowering<'_, '_>, operand: Operand, heads: i64) -> Result<Operand, LowerError> {
    match node.rank(&operand)? {
        3 => split_heads(node, operand, heads),
        4 => Ok(operand),
        found => Err(TypeError::Rank { operand: 1, expected: "3 or 4".to_string(), found }.into()),
    }
}

/// The parts of `[b, s, h, parts, d]`, each `[b, h, s, d]`.
fn unpacked(node: &mut Lowering<'_, '_>, packed: Operand, parts: i64) -> Result<Vec<Operand>, LowerError> {
    let taken = (0..parts).map(|part| {
        let part = node.taken(packed, 3, part)?;
        node.transposed(part, vec![0, 2, 1, 3])
    });
    taken.collect()
}

/// Attention of heads: the result `[b, s, h * e]`, present keys and values, and where asked for the scores.
fn attended(node: &mut Lowering<'_, '_>, settings: &Settings, heads: Heads, scores: bool) -> Lowered {
    let dtype = node.dtype(&heads.query)?;
    if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
        return Err(
            TypeError::ElementType { operand: 0, expected: "f16, bf16 or f32".to_string(), found: dtype }.into()
        );
    }
    let kept = kept(node, settings, &heads)?;
    let padding = padding_bias(node, settings, &heads, kept.present[0])?;
    let bias = node.cast(heads.bias, DType::F32)?;
    let mask = match (bias, padding) {
        (Operand::Absent, mask) | (mask, Operand::Absent) => mask,
        (bias, padding) => node.plus(bias, padding)?,
    };
    let operator = Attention {
        scores: scores.then_some(ScoreStage::Bias),
        scale: settings.scale,
        causal: settings.causal,
        // A mask may have as many columns as there are keys in a buffer.
        pad_mask: heads.buffer.is_some(),
        ..Attention::plain()
    };
    let mut operands = Vec::new();
    for operand in [heads.query, kept.seen[0], kept.seen[1]] {
        operands.push(node.cast(operand, DType::F32)?);
    }
    operands.extend([mask, Operand::Absent, Operand::Absent, kept.valid, kept.first, Operand::Absent]);
    while operands.last() == Some(&Operand::Absent) {
        operands.pop();
    }
    let results = node.emit(operator, operands)?;
    let output = joined_heads(node, results[0], dtype)?;
    let mut scores = results.get(1).copied().unwrap_or(Operand::Absent);
    if scores != Operand::Absent {
        if let Some(buffer) = &heads.buffer {
            scores = buffer.scores(node, scores, heads.query)?;
        }
        // Of keys that a query does not see ONNX Runtime gives the lowest f32.
        let lowest = node.constant(Tensor::scalar(f32::MIN));
        scores = node.binary(BinaryFunction::Max, scores, lowest)?;
    }
    Ok(vec![output, kept.present[0], kept.present[1], scores])
}

/// Keys and values with those of the past.
struct Kept {
    present: [Operand; 2],
    /// The rows of them that queries see.
    seen: [Operand; 2],
    /// Number of keys, and position of the first query, for each of the batch; absent where they follow.
    valid: Operand,
    first: Operand,
}

fn kept(node: &mut Lowering<'_, '_>, settings: &Settings, heads: &Heads) -> Result<Kept, LowerError> {
    let mut present = [heads.key, heads.value];
    if let Some(buffer) = &heads.buffer {
        let [first, valid] = buffer.places(node, heads.query)?;
        let mut seen = present;
        for ((present, seen), past) in present.iter_mut().zip(&mut seen).zip(heads.past) {
            *present = SharedBuffer::scattered(node, [past, *present, first])?;
            *seen = buffer.seen(node, *present)?;
        }
        return Ok(Kept { present, seen, valid, first });
    }
    for (present, past) in present.iter_mut().zip(heads.past) {
        if past != Operand::Absent {
            *present = node.emit_one(Concat { axis: 2 }, vec![past, *present])?;
        }
    }
    let first = if settings.causal { first_positions(node, heads)? } else { Operand::Absent };
    Ok(Kept { present, seen: present, valid: Operand::Absent, first })
}

/// `[b, h, s, e]` as `[b, s, h * e]` of this type.
fn joined_heads(node: &mut Lowering<'_, '_>, heads: Operand, dtype: DType) -> Result<Operand, LowerError> {
    let output = node.cast(heads, dtype)?;
    let output = node.transposed(output, vec![0, 2, 1, 3])?;
    node.reshaped(output, &[0, 0, -1])
}

/// The extent of an axis, at run time: `[1]`.
fn extent_of(node: &mut Lowering<'_, '_>, operand: Operand, axis: i64) -> Result<Operand, LowerError> {
    node.emit_one(ShapeOf { start: axis, end: Some(axis + 1) }, vec![operand])
}

/// Position of the first query, for each of the batch: the length of the past.
fn first_positions(node: &mut Lowering<'_, '_>, heads: &Heads) -> Result<Operand, LowerError> {
    let first = match heads.past[0] {
        Operand::Absent => node.integers(&[0]),
        past => extent_of(node, past, 2)?,
    };
    let batch = extent_of(node, heads.query, 0)?;
    node.emit_one(Expand {}, vec![first, batch])
}

/// The numbers from 0 up to the extent of an axis.
fn counted(node: &mut Lowering<'_, '_>, operand: Operand, axis: i64) -> Result<Operand, LowerError> {
    let count = node.constant(Tensor::scalar(axis));
    let shape = node.emit_one(ShapeOf { start: 0, end: None }, vec![operand])?;
    let count = node.emit_one(Gather { axis: 0 }, vec![shape, count])?;
    node.counted(count)
}

/// What is added to the scores of padding: `[b, 1, s or 1, t]`.
fn padding_bias(
    node: &mut Lowering<'_, '_>,
    settings: &Settings,
    heads: &Heads,
    keys: Operand,
) -> Result<Operand, LowerError> {
    if heads.padding == Operand::Absent {
        return Ok(Operand::Absent);
    }
    let padding = node.cast(heads.padding, DType::I64)?;
    let zero = node.constant(Tensor::scalar(0i64));
    let greater = Compare { relation: CompareRelation::Greater };
    let seen = match node.rank(&padding)? {
        1 => seen_by_length(node, heads, padding, keys)?,
        2 => {
            let padding = node.unsqueezed(padding, &[1, 2])?;
            node.emit_one(greater, vec![padding, zero])?
        }
        3 => {
            let padding = node.unsqueezed(padding, &[1])?;
            node.emit_one(greater, vec![padding, zero])?
        }
        rank => return Err(node.refuse(format!("a mask of {rank} axes"))),
    };
    let [zero, filter] = [0.0, settings.filter].map(|value| node.constant(Tensor::scalar(value)));
    node.emit_one(Select {}, vec![seen, zero, filter])
}

/// Keys before the end of each of the batch, and from its begin on where there is one: `[b, 1, 1, t]`.
fn seen_by_length(
    node: &mut Lowering<'_, '_>,
    heads: &Heads,
    lengths: Operand,
    keys: Operand,
) -> Result<Operand, LowerError> {
    let dim = |operand: &Operand| node.dims(operand).and_then(|dims| dims.first().cloned());
    let (Some(count), Some(batch)) = (dim(&lengths), dim(&heads.query)) else {
        return Err(node.refuse("a mask of lengths of unknown extent"));
    };
    let places = counted(node, keys, 2)?;
    let column = |node: &mut Lowering<'_, '_>, lengths: Operand| node.unsqueezed(lengths, &[1, 2, 3]);
    let less = Compare { relation: CompareRelation::Less };
    if count == batch {
        let ends = column(node, lengths)?;
        return node.emit_one(less, vec![places, ends]);
    }
    if count == &batch * &Dim::known(3) + &Dim::known(2) {
        // Behind them are sums of the lengths of queries and keys, which say no more.
        let batch = extent_of(node, heads.query, 0)?;
        let [zero, axis] = [0, 0].map(|number| node.integers(&[number]));
        let lengths = node.emit_one(Slice {}, vec![lengths, zero, batch, axis])?;
        let ends = column(node, lengths)?;
        return node.emit_one(less, vec![places, ends]);
    }
    if count != batch.clone() + batch {
        return Err(node.refuse(format!("a mask of {} lengths", Dim::to_string(&count))));
    }
    let halves = node.emit(Split { axis: 0, parts: 2, even: true }, vec![lengths])?;
    let (ends, begins) = (column(node, halves[0])?, column(node, halves[1])?);
    let before_end = node.emit_one(less, vec![places, ends])?;
    let from_begin = node.emit_one(Compare { relation: CompareRelation::GreaterOrEqual }, vec![places, begins])?;
    node.binary(BinaryFunction::And, before_end, from_begin)
}

/// `past: [2, b, h, p, d]` as keys and values.
fn split_past(node: &mut Lowering<'_, '_>, past: Operand) -> Result<[Operand; 2], LowerError> {
    match past {
        Operand::Absent => Ok([Operand::Absent; 2]),
        past => Ok([node.taken(past, 0, 0)?, node.taken(past, 0, 1)?]),
    }
}

/// Output 1 of `Attention` and `QAttention`: keys and values as `[2, b, h, t, d]`.
fn joined_present(node: &mut Lowering<'_, '_>, results: &[Operand]) -> Result<Operand, LowerError> {
    if !node.output_used(1) {
        return Ok(Operand::Absent);
    }
    let parts = [node.unsqueezed(results[1], &[0])?, node.unsqueezed(results[2], &[0])?];
    node.emit_one(Concat { axis: 0 }, parts.to_vec())
}

/// Heads of a joint product `[b, s, d + d + e]`.
pub(super) fn split_product(
    node: &mut Lowering<'_, '_>,
    product: Operand,
    sizes: Option<Vec<i64>>,
    heads: i64,
) -> Result<[Operand; 3], LowerError> {
    let (even, sizes) = match sizes.filter(|sizes| !sizes.is_empty()) {
        None => (true, Operand::Absent),
        Some(sizes) if sizes.len() == 3 => (false, node.integers(&sizes)),
        Some(sizes) => return Err(node.refuse(format!("attribute `qkv_hidden_sizes` = {sizes:?}"))),
    };
    let parts = node.emit(Split { axis: 2, parts: 3, even }, vec![product, sizes])?;
    let mut separate = [Operand::Absent; 3];
    for (place, part) in separate.iter_mut().zip(parts) {
        *place = split_heads(node, part, heads)?;
    }
    Ok(separate)
}

fn attention(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(7)?;
    // Of a buffer that past and present share, which ONNX Runtime does not have on a processor.
    node.only_int("past_present_share_buffer", 0)?;
    node.ignore_input(6);
    node.only_int("do_rotary", 0)?;
    node.only_int("rotary_embedding_dim", 0)?;
    let (settings, sizes) = (settings(node)?, node.ints("qkv_hidden_sizes")?);
    let (input, weights, bias) = (node.required(0)?, node.required(1)?, node.input(2));
    let product = node.product(input, weights, false)?;
    let product = node.plus(product, bias)?;
    let [query, key, value] = split_product(node, product, sizes, settings.heads)?;
    let past = split_past(node, node.input(4))?;
    let heads = Heads { query, key, value, past, padding: node.input(3), bias: node.input(5), buffer: None };
    let results = attended(node, &settings, heads, false)?;
    Ok(vec![results[0], joined_present(node, &results)?])
}

/// The joint product is one of integers, scaled by `input_scale * weight_scale`.
fn quantized_attention(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(9)?;
    node.only_int("do_rotary", 0)?;
    node.only_int("past_present_share_buffer", 0)?;
    let settings = settings(node)?;
    let (input, weights, bias) = (node.required(0)?, node.required(1)?, node.required(2)?);
    let (input_scale, weight_scale) = (node.required(3)?, node.required(4)?);
    let operands = vec![input, weights, node.input(6), node.input(7)];
    let operands = with_scalars(node, operands)?;
    let sums = node.emit_one(IntegerMatmul { program: Program::default() }, operands)?;
    let dtype = node.dtype(&bias)?;
    let sums = node.emit_one(Cast::to(DType::F32), vec![sums])?;
    let input_scale = node.reshaped(input_scale, &[])?;
    let mut scales = [input_scale, weight_scale];
    for scale in &mut scales {
        *scale = node.cast(*scale, DType::F32)?;
    }
    let scale = node.binary(BinaryFunction::Mul, scales[0], scales[1])?;
    let product = node.binary(BinaryFunction::Mul, sums, scale)?;
    let bias = node.cast(bias, DType::F32)?;
    let product = node.plus(product, bias)?;
    let product = node.cast(product, dtype)?;
    let [query, key, value] = split_product(node, product, None, settings.heads)?;
    let past = split_past(node, node.input(8))?;
    let heads = Heads { query, key, value, past, padding: node.input(5), bias: Operand::Absent, buffer: None };
    let results = attended(node, &settings, heads, false)?;
    Ok(vec![results[0], joined_present(node, &results)?])
}

/// Queries, keys and values of `MultiHeadAttention` in heads, with the parts of `bias: [d + d + e]` added.
fn operands_in_heads(node: &mut Lowering<'_, '_>, heads: i64, bias: Operand) -> Result<[Operand; 3], LowerError> {
    let (query, key, value) = (node.required(0)?, node.input(1), node.input(2));
    if key == Operand::Absent {
        if value != Operand::Absent {
            return Err(node.refuse("input `value` without `key`"));
        }
        let query = plus_packed(node, query, bias, heads)?;
        return match unpacked(node, query, 3)?[..] {
            [query, key, value] => Ok([query, key, value]),
            _ => Err(node.refuse("packed operands of another number than 3")),
        };
    }
    if value == Operand::Absent {
        if bias != Operand::Absent {
            return Err(node.refuse("input `bias` with packed keys and values"));
        }
        let parts = unpacked(node, key, 2)?;
        return Ok([split_heads(node, query, heads)?, parts[0], parts[1]]);
    }
    let mut operands = [query, key, value];
    if bias != Operand::Absent {
        let mut sizes = Vec::new();
        let d = node.extent(&query, -1, "queries")?;
        sizes.extend([d, d]);
        sizes.push(node.extent(&bias, 0, "input `bias`")? - 2 * d);
        let sizes = node.integers(&sizes);
        let parts = node.emit(Split { axis: 0, parts: 3, even: false }, vec![bias, sizes])?;
        for (operand, part) in operands.iter_mut().zip(parts) {
            let part = match node.rank(operand)? {
                3 => part,
                _ => {
                    let part = node.reshaped(part, &[heads, -1])?;
                    node.unsqueezed(part, &[1])?
                }
            };
            *operand = node.plus(*operand, part)?;
        }
    }
    let mut separate = [Operand::Absent; 3];
    for (place, operand) in separate.iter_mut().zip(operands) {
        *place = in_heads(node, operand, heads)?;
    }
    Ok(separate)
}

/// `packed: [b, s, h, 3, d]` with `bias: [3 * h * d]` added.
fn plus_packed(node: &mut Lowering<'_, '_>, packed: Operand, bias: Operand, heads: i64) -> Result<Operand, LowerError> {
    if bias == Operand::Absent {
        return Ok(packed);
    }
    let bias = node.reshaped(bias, &[3, heads, -1])?;
    let bias = node.transposed(bias, vec![1, 0, 2])?;
    node.plus(packed, bias)
}

fn multi_head_attention(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(10)?;
    let settings = settings(node)?;
    let [query, key, value] = operands_in_heads(node, settings.heads, node.input(3))?;
    let past = [node.input(6), node.input(7)];
    let buffer = match node.input(8) {
        Operand::Absent => {
            node.refuse_inputs(&[(9, "cache_indirection")])?;
            None
        }
        _ if past[0] == Operand::Absent => return Err(node.refuse("input `past_sequence_length` without `past_key`")),
        length => Some(SharedBuffer { beams: beams_of_one_query(node, query)?, ..SharedBuffer::new(node, length)? }),
    };
    let heads = Heads { query, key, value, past, padding: node.input(4), bias: node.input(5), buffer };
    let scores = node.output_used(3);
    attended(node, &settings, heads, scores)
}

/// Input `cache_indirection`, which ONNX Runtime follows where there is one query of each of the batch.
fn beams_of_one_query(node: &mut Lowering<'_, '_>, query: Operand) -> Result<Option<Beams>, LowerError> {
    let sources = node.input(9);
    if sources == Operand::Absent {
        return Ok(None);
    }
    match node.dims(&query).and_then(|dims| dims.get(2)?.as_known()) {
        Some(1) => beams_of(node, sources).map(Some),
        Some(_) | None => Err(node.refuse("input `cache_indirection` where there may be more than one query")),
    }
}

/// One query of each of the batch. Where past and present share a buffer, keys are behind the first
/// `past_sequence_length` of it.
fn decoder_attention(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(11)?;
    let shared = node.flag("past_present_share_buffer", false)?;
    // Whether there is an output for the scores follows from its name.
    node.ignore("output_qk");
    let settings = settings(node)?;
    let [query, key, value] = operands_in_heads(node, settings.heads, node.input(10))?;
    let past = [node.input(5), node.input(6)];
    let (width, sources) = (node.input(8), node.input(9));
    let buffer = match past[0] {
        // All beams see the same keys.
        Operand::Absent => {
            node.ignore_input(7);
            None
        }
        _ if shared => {
            let mut buffer = SharedBuffer::new(node, node.required(7)?)?;
            buffer.beams = match (width, sources) {
                (Operand::Absent, Operand::Absent) => None,
                (Operand::Absent, _) => return Err(node.refuse("input `cache_indirection` without `beam_width`")),
                (_, Operand::Absent) => return Err(node.refuse("input `beam_width` without `cache_indirection`")),
                (width, sources) => {
                    let width = node.cast(width, DType::I64)?;
                    Some(Beams { width: node.reshaped(width, &[1])?, sources })
                }
            };
            Some(buffer)
        }
        _ => {
            let unshared = "without attribute `past_present_share_buffer` = 1";
            for (input, name) in [(8, "beam_width"), (9, "cache_indirection")] {
                if node.input(input) != Operand::Absent {
                    return Err(node.refuse(format!("input `{name}` {unshared}")));
                }
            }
            None
        }
    };
    let heads = Heads { query, key, value, past, padding: node.input(3), bias: node.input(4), buffer };
    let scores = node.output_used(3);
    attended(node, &settings, heads, scores)
}
