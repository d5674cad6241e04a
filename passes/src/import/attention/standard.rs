//! Attention and what belongs to it: `Attention` (opset 23, 24, 25), `RotaryEmbedding` (23), `LinearAttention` (27),
//! `CausalConvWithState` (27), and `FlexAttention` (`ai.onnx.preview` 1), whose modifiers become steps between its
//! products and its softmax.

use crate::import::lowering::{LowerError, Lowering, Row, row};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::Fact;
use ipuc_formats::ops::scalar::{Scalar, from_scalars};
use ipuc_formats::ops::{
    Arithmetic, Attention, Binary, BinaryFunction, Cast, CausalConvolution, Gather, LinearAttention, Matmul, Program,
    RotaryEmbedding, ScoreStage, ShapeOf, Softmax, SoftmaxFunction, TypeError, Unary, UnaryFunction, UpdateRule,
};
use ipuc_formats::tensor::Tensor;

type Lowered = Result<Vec<Operand>, LowerError>;

/// Attention and what belongs to it.
pub const ROWS: &[Row] = &[
    row("Attention", 23, attention),
    row("Attention", 24, attention),
    row("Attention", 25, attention),
    row("RotaryEmbedding", 23, rotary_embedding),
    row("LinearAttention", 27, linear_attention),
    row("CausalConvWithState", 27, causal_convolution),
    Row { domain: "ai.onnx.preview", name: "FlexAttention", since: 1, lower: flex_attention },
];

fn softmax_precision(node: &mut Lowering<'_, '_>) -> Result<Option<DType>, LowerError> {
    let Some(code) = node.int("softmax_precision")? else { return Ok(None) };
    match i32::try_from(code).ok().and_then(DType::from_onnx) {
        Some(dtype @ (DType::F32 | DType::F16 | DType::F64 | DType::BF16)) => Ok(Some(dtype)),
        Some(_) | None => Err(node.refuse(format!("attribute `softmax_precision` = {code}"))),
    }
}

/// A window attribute, where -1 is none.
fn window(node: &mut Lowering<'_, '_>, name: &str) -> Result<Option<i64>, LowerError> {
    Ok(if node.since() >= 25 { node.int(name)?.filter(|window| *window != -1) } else { None })
}

fn score_stage(node: &mut Lowering<'_, '_>) -> Result<ScoreStage, LowerError> {
    match node.int("qk_matmul_output_mode")?.unwrap_or(0) {
        0 => Ok(ScoreStage::Product),
        1 => Ok(ScoreStage::Softcap),
        2 => Ok(ScoreStage::Bias),
        3 => Ok(ScoreStage::Softmax),
        other => Err(node.refuse(format!("attribute `qk_matmul_output_mode` = {other}"))),
    }
}

fn at_most_inputs(node: &Lowering<'_, '_>, count: usize) -> Result<(), LowerError> {
    if node.input_count() <= count {
        return Ok(());
    }
    let expected = format!("at most {count}");
    Err(TypeError::OperandCount { expected, found: node.input_count() }.into())
}

fn attention(node: &mut Lowering<'_, '_>) -> Lowered {
    at_most_inputs(node, if node.since() >= 24 { 7 } else { 6 })?;
    let stage = score_stage(node)?;
    let present = node.output_used(1) || node.output_used(2);
    let scores = node.output_used(3).then_some(stage);
    let operator = Attention {
        scale: node.float("scale")?,
        causal: node.flag("is_causal", false)?,
        softcap: node.float("softcap")?.unwrap_or(0.0),
        softmax_precision: softmax_precision(node)?,
        query_heads: node.int("q_num_heads")?,
        key_heads: node.int("kv_num_heads")?,
        left_window: window(node, "left_window_size")?,
        right_window: window(node, "right_window_size")?,
        pad_mask: node.since() >= 24,
        present,
        scores,
        arithmetic: Arithmetic::default(),
        program: Program::default(),
    };
    (0..3).try_for_each(|index| node.required(index).map(drop))?;
    let mut results = node.emit(operator, node.inputs())?.into_iter();
    let mut next = |given: bool| if given { results.next() } else { None }.unwrap_or(Operand::Absent);
    Ok(vec![next(true), next(present), next(present), next(scores.is_some())])
}

fn rotary_embedding(node: &mut Lowering<'_, '_>) -> Lowered {
    at_most_inputs(node, 4)?;
    let operator = RotaryEmbedding {
        interleaved: node.flag("interleaved", false)?,
        rotated: node.int("rotary_embedding_dim")?.filter(|rotated| *rotated != 0),
        heads: node.int("num_heads")?.filter(|heads| *heads != 0),
    };
    (0..3).try_for_each(|index| node.required(index).map(drop))?;
    node.emit(operator, node.inputs())
}

pub(super) fn linear_attention(node: &mut Lowering<'_, '_>) -> Lowered {
    at_most_inputs(node, 6)?;
    // A hint for tuning.
    node.ignore("chunk_size");
    let mut heads = |name: &str| node.int(name)?.ok_or_else(|| LowerError::MissingAttribute(name.to_string()));
    let (query_heads, key_heads) = (heads("q_num_heads")?, heads("kv_num_heads")?);
    let operator = LinearAttention {
        rule: node.keyword("update_rule")?.unwrap_or(UpdateRule::GatedDelta),
        query_heads,
        key_heads,
        scale: node.float("scale")?.filter(|scale| *scale != 0.0),
    };
    (0..3).try_for_each(|index| node.required(index).map(drop))?;
    node.emit(operator, node.inputs())
}

fn causal_convolution(node: &mut Lowering<'_, '_>) -> Lowered {
    at_most_inputs(node, 4)?;
    let silu = match node.text("activation")?.as_deref() {
        None | Some("none") => false,
        Some("silu" | "swish") => true,
        Some(other) => return Err(node.refuse(format!("attribute `activation` = \"{other}\""))),
    };
    (0..2).try_for_each(|index| node.required(index).map(drop))?;
    node.emit(CausalConvolution { silu }, node.inputs())
}

/// `FlexAttention`: products around a softmax, with the modifiers' steps before and after it.
fn flex_attention(node: &mut Lowering<'_, '_>) -> Lowered {
    let (query, key, value) = (node.required(0)?, node.required(1)?, node.required(2)?);
    let dtype = node.dtype(&query)?;
    let precision = match softmax_precision(node)? {
        Some(precision) => precision,
        None if dtype == DType::F64 => DType::F64,
        None => DType::F32,
    };
    let [query_root, key_root] = scale_roots(node, query, dtype)?;
    let key = repeated_heads(node, query, key)?;
    let value = repeated_heads(node, query, value)?;
    let multiply = Binary { function: BinaryFunction::Mul };
    let query = node.emit_one(multiply.clone(), vec![query, query_root])?;
    let key = node.emit_one(multiply, vec![key, key_root])?;
    let scores = node.emit_one(Matmul::new(false, true), vec![query, key])?;
    let scores = cast(node, scores, precision)?;
    let scores = modified(node, "score_mod", scores)?;
    let softmax = Softmax { function: SoftmaxFunction::Softmax, axis: -1, trailing: false };
    let weights = node.emit_one(softmax, vec![scores])?;
    let weights = modified(node, "prob_mod", weights)?;
    let value = cast(node, value, precision)?;
    let output = node.emit_one(Matmul::new(false, false), vec![weights, value])?;
    Ok(vec![cast(node, output, dtype)?])
}

fn cast(node: &mut Lowering<'_, '_>, operand: Operand, to: DType) -> Result<Operand, LowerError> {
    if node.dtype(&operand)? == to { Ok(operand) } else { node.emit_one(Cast::to(to), vec![operand]) }
}

/// The roots of the scale that queries and keys are multiplied with.
fn scale_roots(node: &mut Lowering<'_, '_>, query: Operand, dtype: DType) -> Result<[Operand; 2], LowerError> {
    if let Some(scale) = node.float("scale")? {
        let mut constant = |root: f32| {
            let root = from_scalars(dtype, &[], &[Scalar::Float(f64::from(root))]);
            root.map(|root| node.constant(root)).map_err(|error| LowerError::Unsupported(error.to_string()))
        };
        let root = scale.abs().sqrt();
        return Ok([constant(root * scale.signum())?, constant(root)?]);
    }
    // 1 / sqrt(head size), whatever the head size will be.
    let size = node.emit_one(ShapeOf { start: 3, end: Some(4) }, vec![query])?;
    let mut root = cast(node, size, DType::F32)?;
    for function in [UnaryFunction::Sqrt, UnaryFunction::Reciprocal, UnaryFunction::Sqrt] {
        root = node.emit_one(Unary { function }, vec![root])?;
    }
    let root = cast(node, root, dtype)?;
    Ok([root, root])
}

/// Keys or values with each head as often as a group of query heads needs it.
fn repeated_heads(node: &mut Lowering<'_, '_>, query: Operand, operand: Operand) -> Result<Operand, LowerError> {
    let heads = |operand: &Operand| match node.fact(operand).as_ref().and_then(Fact::dims) {
        Some([_, heads, _, _]) => Ok(heads.clone()),
        found => Err(node.refuse(format!("an operand of {found:?} where four axes are needed"))),
    };
    let (wanted, given) = (heads(&query)?, heads(&operand)?);
    if wanted == given {
        return Ok(operand);
    }
    let (Some(wanted), Some(given)) = (wanted.as_known(), given.as_known()) else {
        return Err(node.refuse(format!("{wanted} query heads over {given} key heads")));
    };
    if given < 1 || wanted % given != 0 {
        return Err(node.refuse(format!("{wanted} query heads over {given} key heads")));
    }
    let indices: Vec<i64> = (0..wanted).map(|head| head / (wanted / given)).collect();
    let indices = node.constant(Tensor::vector_i64(&indices));
    node.emit_one(Gather { axis: 1 }, vec![operand, indices])
}

/// What a modifier graph, where there is one, makes of scores or weights.
fn modified(node: &mut Lowering<'_, '_>, attribute: &str, operand: Operand) -> Result<Operand, LowerError> {
    if !node.has(attribute) {
        return Ok(operand);
    }
    let results = node.in_place(attribute, &[operand])?;
    let (&[result], before) = (&results[..], node.dtype(&operand)?) else {
        return Err(node.refuse(format!("`{attribute}` with {} outputs", results.len())));
    };
    if node.dtype(&result)? != before {
        return Err(node.refuse(format!("`{attribute}` that changes the element type")));
    }
    Ok(result)
}
