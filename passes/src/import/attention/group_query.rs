//! `GroupQueryAttention` of `com.microsoft`, as ONNX Runtime computes it on a processor.
//!
//! It becomes rotations, two caches with the new keys and values (`cache_places.rs`), and attention with a number of valid keys
//! for each of the batch. A cache of codes (`cache_codes.rs`) is decoded before it is attended to. f16 and bf16 are attended
//! to in f32.

use crate::import::attention::cache_codes::CacheCodes;
use crate::import::attention::cache_places::Places;
use crate::import::attention::microsoft::cache_columns;
use crate::import::lowering::{LowerError, Lowering, Row};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::Fact;
use ipuc_formats::ops::{
    Attention, BinaryFunction, Expand, Gather, LayerNormalization, RotaryEmbedding, ScoreStage, Select, Split,
    Transpose, TypeError, Unsqueeze,
};
use ipuc_formats::tensor::Tensor;

type Lowered = Result<Vec<Operand>, LowerError>;

/// Attention in groups of ONNX Runtime.
pub const ROWS: &[Row] =
    &[Row { domain: "com.microsoft", name: "GroupQueryAttention", since: 1, lower: group_query_attention }];

/// Inputs of `GroupQueryAttention`.
mod input {
    pub const QUERY: usize = 0;
    pub const KEY: usize = 1;
    pub const VALUE: usize = 2;
    pub const PAST: [usize; 2] = [3, 4];
    pub const COS: usize = 7;
    pub const SIN: usize = 8;
    pub const POSITIONS: usize = 9;
    pub const BIAS: usize = 10;
    pub const SINK: usize = 11;
    pub const NORMS: [usize; 2] = [14, 15];
    pub const COUNT: usize = 17;
}

fn group_query_attention(node: &mut Lowering<'_, '_>) -> Lowered {
    check_operands(node)?;
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
    let sliding = sliding_window(node, left_window)?;
    let scores = score_stage(node, sliding)?;
    let operator = Attention {
        scale: node.float("scale")?.filter(|scale| *scale != 0.0),
        causal,
        softcap: node.float("softcap")?.map_or(0.0, |softcap| softcap.max(0.0)),
        left_window,
        pad_mask: true,
        scores,
        ..Attention::plain()
    };
    let ([query, key, value], size) = heads_of(node, query_heads, key_heads)?;
    let codes = CacheCodes::of(node, [key_heads, size])?;
    let [query, key] = normalized(node, [query, key])?;
    let places = Places::of(node, query, node.input(input::PAST[0]), sliding)?;
    if places.queries != Operand::Absent && !causal {
        return Err(node.refuse("input `query_seqlens` without `causal`"));
    }
    let [query, key] = rotated(node, [query, key], &places)?;
    let sink = sink(node, query_heads)?;
    let (mut present, mut seen) = ([Operand::Absent; 2], [Operand::Absent; 2]);
    for (index, mut new) in [key, value].into_iter().enumerate() {
        if let Some(codes) = &codes[index] {
            new = codes.stored(node, new)?;
        }
        [seen[index], present[index]] = places.kept(node, node.input(input::PAST[index]), new)?;
        if let Some(codes) = &codes[index] {
            seen[index] = codes.decoded(node, seen[index])?;
        }
    }
    let dtype = node.dtype(&query)?;
    let bias = places.bias_of_rows(node, node.input(input::BIAS), seen[0])?;
    let [first, valid] = places.rows(node)?;
    let mut operands = vec![query, seen[0], seen[1], bias, Operand::Absent, Operand::Absent, valid, first, sink];
    for operand in [0, 1, 2, 3, 8] {
        operands[operand] = node.cast(operands[operand], DType::F32)?;
    }
    let results = node.emit(operator, operands)?;
    let output = places.without_padding(node, results[0])?;
    let output = node.cast(output, dtype)?;
    let output = node.emit_one(Transpose { permutation: vec![0, 2, 1, 3] }, vec![output])?;
    let output = node.reshaped(output, &[0, 0, query_heads * size])?;
    let mut outputs = vec![output, present[0], present[1]];
    if let Some(&scores) = results.get(1) {
        let scores = places.scores(node, scores, causal, left_window)?;
        outputs.push(node.cast(scores, dtype)?);
    }
    Ok(outputs)
}

/// Keys of the window of a cache that holds the last tokens only, where the node has such a one.
fn sliding_window(node: &mut Lowering<'_, '_>, left_window: Option<i64>) -> Result<Option<i64>, LowerError> {
    match (node.flag("sliding_window_cache", false)?, left_window) {
        (false, _) => Ok(None),
        (true, Some(left)) => Ok(Some(left + 1)),
        (true, None) => Err(node.refuse("attribute `sliding_window_cache` without `local_window_size`")),
    }
}

/// Which scores output 3 gives, as attribute and output say.
fn score_stage(node: &mut Lowering<'_, '_>, sliding: Option<i64>) -> Result<Option<ScoreStage>, LowerError> {
    let stage = match node.int("qk_output")?.unwrap_or(0) {
        0 => None,
        1 => Some(ScoreStage::Bias),
        2 => Some(ScoreStage::Softmax),
        other => return Err(node.refuse(format!("attribute `qk_output` = {other}"))),
    };
    match (stage, node.output_used(3)) {
        (None, true) => Err(node.refuse("output `output_qk` without attribute `qk_output`")),
        (Some(_), true) if sliding.is_some() => Err(node.refuse("attribute `qk_output` with `sliding_window_cache`")),
        (stage, true) => Ok(stage),
        (Some(_), false) => Err(node.refuse("attribute `qk_output` without the output `output_qk`")),
        (None, false) => Ok(None),
    }
}

fn check_operands(node: &mut Lowering<'_, '_>) -> Result<(), LowerError> {
    if node.input_count() > input::COUNT {
        let expected = format!("at most {}", input::COUNT);
        return Err(TypeError::OperandCount { expected, found: node.input_count() }.into());
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
pub(super) fn heads_of(
    node: &mut Lowering<'_, '_>,
    query_heads: i64,
    key_heads: i64,
) -> Result<([Operand; 3], i64), LowerError> {
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
    let offsets = node.counted(places.steps)?;
    positions = node.binary(BinaryFunction::Add, positions, offsets)?;
    let given = node.input(input::POSITIONS);
    if given != Operand::Absent && places.queries != Operand::Absent {
        positions = given;
    } else if given != Operand::Absent {
        // In a first prompt only the first of them counts.
        let prompt = places.is_prompt(node)?;
        positions = node.emit_one(Select {}, vec![prompt, positions, given])?;
    }
    let mut results = heads;
    for result in &mut results {
        let operator = RotaryEmbedding { interleaved, rotated, heads: None };
        *result = node.emit_one(operator, vec![*result, cos, sin, positions])?;
    }
    Ok(results)
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

/// The first element: `[1]`.
fn first_of(node: &mut Lowering<'_, '_>, operand: Operand) -> Result<Operand, LowerError> {
    let flat = node.reshaped(operand, &[-1])?;
    let place = node.constant(Tensor::vector_i64(&[0]));
    node.emit_one(Gather { axis: 0 }, vec![flat, place])
}
