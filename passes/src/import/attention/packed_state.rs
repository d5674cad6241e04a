//! Attention by a state over rows of heads: `GatedDeltaNet` and `EngramGate` of `com.microsoft`, as ONNX Runtime 1.32 computes
//! them on a processor.
//!
//! Gates and norms of `GatedDeltaNet` become steps before the operator of linear attention, whose heads have keys of their own.
//! All is computed in f32. Texts of several lengths in one row of tokens, and captured updates, are refused.

use crate::import::lowering::{LowerError, Lowering, Row};
use crate::ir::Operand;
use ipuc_formats::attribute::Keyword;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{
    ActivationFunction, BinaryFunction, Concat, Expand, LayerNormalization, LinearAttention, Reduce, ReduceFunction,
    Reshape, ShapeOf, Split, TypeError, Unary, UnaryFunction, UpdateRule,
};
use ipuc_formats::tensor::Tensor;

type Lowered = Result<Vec<Operand>, LowerError>;

/// Attention by a state of ONNX Runtime.
pub const ROWS: &[Row] = &[
    Row { domain: "com.microsoft", name: "EngramGate", since: 1, lower: engram_gate },
    Row { domain: "com.microsoft", name: "GatedDeltaNet", since: 1, lower: gated_delta_net },
];

/// Inputs of `GatedDeltaNet`.
const LENGTHS: usize = 3;
const DECAY: usize = 4;
const RATE: usize = 5;
const STATE: usize = 6;
const LOGARITHMS: usize = 7;
const GATE_BIAS: usize = 8;

/// What makes decays of input 4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr, strum::EnumString)]
#[strum(serialize_all = "snake_case")]
enum Gate {
    None,
    #[strum(serialize = "softplus", serialize = "qwen")]
    Softplus,
    #[strum(serialize = "sigmoid", serialize = "kda")]
    Sigmoid,
}
impl Keyword for Gate {}

/// Heads of queries and keys, those of values, and their sizes.
struct Sizes {
    key_heads: i64,
    heads: i64,
    key: i64,
    value: i64,
}

fn gated_delta_net(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(11)?;
    node.refuse_inputs(&[(LENGTHS, "cu_seqlens"), (9, "capture_count"), (10, "state_update_active")])?;
    node.only_int("state_update_capacity", 0)?;
    node.refuse_outputs(&[(2, "state_update")])?;
    // A hint for tuning.
    node.ignore("chunk_size");
    let rule = node.keyword("update_rule")?.unwrap_or(UpdateRule::GatedDelta);
    let scale = node.float("scale")?.filter(|scale| *scale != 0.0);
    let query = node.required(0)?;
    let dtype = node.dtype(&query)?;
    if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
        let expected = "f16, bf16 or f32".to_string();
        return Err(TypeError::ElementType { operand: 0, expected, found: dtype }.into());
    }
    let initial = node.required(STATE)?;
    let (operands, sizes) = operands(node, initial)?;
    let batch = node.emit_one(ShapeOf { start: 0, end: Some(1) }, vec![initial])?;
    let normalizes = node.flag("qk_l2_norm", false)?;
    let mut inputs = Vec::new();
    for (place, (operand, size)) in operands.into_iter().zip([sizes.key, sizes.key, sizes.value]).enumerate() {
        let mut operand = node.cast(operand, DType::F32)?;
        if place < 2 {
            operand = node.reshaped(operand, &[-1, sizes.key_heads, 1, size])?;
            if normalizes {
                operand = normalized(node, operand)?;
            }
            let shape = node.integers(&[1, 1, sizes.heads / sizes.key_heads, 1]);
            operand = node.emit_one(Expand {}, vec![operand, shape])?;
        }
        inputs.push(by_batch(node, operand, batch, sizes.heads * size)?);
    }
    inputs.push(node.transposed(initial, vec![0, 1, 3, 2])?);
    inputs.push(decays(node, &sizes, rule, batch)?);
    inputs.push(rates(node, &sizes, rule, batch)?);
    while inputs.last() == Some(&Operand::Absent) {
        inputs.pop();
    }
    let operator = LinearAttention { rule, query_heads: sizes.heads, key_heads: sizes.heads, scale };
    let results = node.emit(operator, inputs)?;
    let output = node.cast(results[0], dtype)?;
    let output = match node.rank(&query)? {
        4 => node.reshaped(output, &[0, 0, sizes.heads, sizes.value])?,
        _ => node.reshaped(output, &[-1, sizes.heads, sizes.value])?,
    };
    Ok(vec![output, node.transposed(results[1], vec![0, 1, 3, 2])?])
}

/// Queries, keys and values, which may come as one operand, and how many heads of which sizes they have, as those and the state
/// `[b, h, v, k]` say.
fn operands(node: &mut Lowering<'_, '_>, state: Operand) -> Result<([Operand; 3], Sizes), LowerError> {
    let mut extents = Vec::new();
    for axis in 1..4 {
        extents.push(node.extent(&state, axis, "input `initial_state`")?);
    }
    let (heads, value, key) = (extents[0], extents[1], extents[2]);
    if [key, value].iter().any(|&size| heads.checked_mul(size).is_none()) {
        return Err(node.refuse(format!("a state of {heads} heads of {value} by {key}")));
    }
    let query = node.required(0)?;
    let uneven = |node: &Lowering<'_, '_>, found: i64| node.refuse(format!("queries of {found} heads for {heads}"));
    if node.input(1) != Operand::Absent || node.input(2) != Operand::Absent {
        let key_heads = node.extent(&query, -2, "heads of queries")?;
        if key_heads < 1 || heads % key_heads != 0 {
            return Err(uneven(node, key_heads));
        }
        return Ok(([query, node.required(1)?, node.required(2)?], Sizes { key_heads, heads, key, value }));
    }
    if node.rank(&query)? != 2 {
        return Err(node.refuse("packed operands of another rank than 2"));
    }
    let width = node.extent(&query, -1, "packed operands")?;
    let (of_keys, of_values) = (key.saturating_mul(2).max(1), heads.saturating_mul(value));
    let key_heads = width.saturating_sub(of_values) / of_keys;
    if key_heads < 1 || heads % key_heads != 0 || key_heads * of_keys + of_values != width {
        return Err(uneven(node, key_heads));
    }
    let parts = node.integers(&[key_heads * key, key_heads * key, of_values]);
    let parts = node.emit(Split { axis: -1, parts: 3, even: false }, vec![query, parts])?;
    Ok(([parts[0], parts[1], parts[2]], Sizes { key_heads, heads, key, value }))
}

/// Rows of this width, one after the other, as `[b, t, width]`.
fn by_batch(node: &mut Lowering<'_, '_>, operand: Operand, batch: Operand, width: i64) -> Result<Operand, LowerError> {
    let rest = node.integers(&[-1, width]);
    let shape = node.emit_one(Concat { axis: 0 }, vec![batch, rest])?;
    node.emit_one(Reshape { allow_zero: false }, vec![operand, shape])
}

/// Divided by the root of the sum of squares along the last axis.
fn normalized(node: &mut Lowering<'_, '_>, operand: Operand) -> Result<Operand, LowerError> {
    let axis = node.integers(&[-1]);
    let squares = Reduce { function: ReduceFunction::SumSquare, keep_axes: true, keep_without_axes: false };
    let sum = node.emit_one(squares, vec![operand, axis])?;
    let least = node.constant(Tensor::scalar(1e-12f32));
    let sum = node.plus(sum, least)?;
    let root = node.emit_one(Unary { function: UnaryFunction::Sqrt }, vec![sum])?;
    node.binary(BinaryFunction::Div, operand, root)
}

/// Logarithms of decays, `[b, t, h]` or `[b, t, h * k]`; absent where the rule has none.
fn decays(node: &mut Lowering<'_, '_>, sizes: &Sizes, rule: UpdateRule, batch: Operand) -> Result<Operand, LowerError> {
    let gate = node.keyword("gate_activation")?.unwrap_or(Gate::None);
    let bound = node.float("gate_lower_bound")?.unwrap_or(-5.0);
    if !matches!(rule, UpdateRule::Gated | UpdateRule::GatedDelta) {
        node.refuse_inputs(&[(DECAY, "decay"), (LOGARITHMS, "a_log"), (GATE_BIAS, "dt_bias")])?;
        return Ok(Operand::Absent);
    }
    let given = node.required(DECAY)?;
    let given = node.cast(given, DType::F32)?;
    // One of each head, or of each channel of its keys.
    let packed = usize::from(node.input(1) == Operand::Absent);
    let by_channel = node.rank(&given)? == node.rank(&node.required(0)?)? + packed;
    let width = if by_channel { sizes.key } else { 1 };
    let mut decays = node.reshaped(given, &[-1, sizes.heads, width])?;
    if gate == Gate::None {
        node.refuse_inputs(&[(LOGARITHMS, "a_log"), (GATE_BIAS, "dt_bias")])?;
    } else {
        let (logarithms, bias) = (node.required(LOGARITHMS)?, node.required(GATE_BIAS)?);
        let logarithms = node.reshaped(logarithms, &[sizes.heads, 1])?;
        let bias = node.reshaped(bias, &[sizes.heads, -1])?;
        let sum = node.plus(decays, bias)?;
        let factor = node.emit_one(Unary { function: UnaryFunction::Exp }, vec![logarithms])?;
        decays = if gate == Gate::Softplus {
            let sum = node.activated(sum, ActivationFunction::Softplus)?;
            let product = node.binary(BinaryFunction::Mul, sum, factor)?;
            node.times(product, -1.0)?
        } else {
            let product = node.binary(BinaryFunction::Mul, sum, factor)?;
            let share = node.activated(product, ActivationFunction::Sigmoid)?;
            node.times(share, bound)?
        };
    }
    by_batch(node, decays, batch, sizes.heads * width)
}

/// How much of a value is corrected: `[b, t, h]`; absent where the rule does not.
fn rates(node: &mut Lowering<'_, '_>, sizes: &Sizes, rule: UpdateRule, batch: Operand) -> Result<Operand, LowerError> {
    let sigmoid = match node.text("beta_activation")?.as_deref() {
        None | Some("none") => false,
        Some("sigmoid") => true,
        Some(other) => return Err(node.refuse(format!("attribute `beta_activation` = \"{other}\""))),
    };
    if !matches!(rule, UpdateRule::Delta | UpdateRule::GatedDelta) {
        node.refuse_inputs(&[(RATE, "beta")])?;
        return Ok(Operand::Absent);
    }
    let given = node.required(RATE)?;
    let mut rates = node.cast(given, DType::F32)?;
    if sigmoid {
        rates = node.activated(rates, ActivationFunction::Sigmoid)?;
    }
    by_batch(node, rates, batch, sizes.heads)
}

/// Values multiplied by how much keys and queries agree (output 0), and normalized by branch (output 1).
fn engram_gate(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(6)?;
    let epsilon = node.float("epsilon")?.unwrap_or(1e-5);
    let norm = LayerNormalization { axis: -1, epsilon, center: false, stash: DType::F32 };
    let key = node.required(0)?;
    let dtype = node.dtype(&key)?;
    let hidden = node.extent(&key, -1, "keys")?;
    let one = node.constant(Tensor::scalar(1f32));
    let shape = node.integers(&[hidden]);
    let ones = node.emit_one(Expand {}, vec![one, shape])?;
    let normed = |node: &mut Lowering<'_, '_>, operand: Operand, scale: usize| {
        let scale = node.required(scale)?;
        let (operand, scale) = (node.cast(operand, DType::F32)?, node.cast(scale, DType::F32)?);
        let rows = node.emit_one(norm.clone(), vec![operand, ones])?;
        node.binary(BinaryFunction::Mul, rows, scale)
    };
    let query = node.required(1)?;
    let (key, query) = (normed(node, key, 3)?, normed(node, query, 4)?);
    let product = node.binary(BinaryFunction::Mul, key, query)?;
    let axis = node.integers(&[-1]);
    let sum = Reduce { function: ReduceFunction::Sum, keep_axes: true, keep_without_axes: false };
    let sum = node.emit_one(sum, vec![product, axis])?;
    let root = node.constant(Tensor::scalar((hidden as f32).sqrt()));
    let agreement = node.binary(BinaryFunction::Div, sum, root)?;
    let sign = node.emit_one(Unary { function: UnaryFunction::Sign }, vec![agreement])?;
    let size = node.emit_one(Unary { function: UnaryFunction::Abs }, vec![agreement])?;
    let least = node.constant(Tensor::scalar(1e-6f32));
    let size = node.binary(BinaryFunction::Max, size, least)?;
    let size = node.emit_one(Unary { function: UnaryFunction::Sqrt }, vec![size])?;
    let gate = node.binary(BinaryFunction::Mul, sign, size)?;
    let gate = node.activated(gate, ActivationFunction::Sigmoid)?;
    let value = node.required(2)?;
    let value = node.cast(value, DType::F32)?;
    let value = node.unsqueezed(value, &[2])?;
    let gated = node.binary(BinaryFunction::Mul, gate, value)?;
    let mut results = vec![node.cast(gated, dtype)?];
    if node.output_used(1) {
        let rows = normed(node, gated, 5)?;
        results.push(node.cast(rows, dtype)?);
    } else {
        node.ignore_input(5);
    }
    Ok(results)
}
