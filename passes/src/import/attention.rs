//! Attention and what belongs to it: `Attention` (opset 23, 24, 25), `RotaryEmbedding` (23), `LinearAttention` (27),
//! `CausalConvWithState` (27), and `FlexAttention` (`ai.onnx.preview` 1), whose modifiers become steps between its
//! products and its softmax.

use crate::import::lowering::{LowerError, Lowering, Row, row};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{
    Arithmetic, Attention, CausalConvolution, Epilogue, LinearAttention, RotaryEmbedding, ScoreStage, TypeError,
    UpdateRule,
};

type Lowered = Result<Vec<Operand>, LowerError>;

/// Attention and what belongs to it.
pub const ROWS: &[Row] = &[
    row("Attention", 23, attention),
    row("Attention", 24, attention),
    row("Attention", 25, attention),
    row("RotaryEmbedding", 23, rotary_embedding),
    row("LinearAttention", 27, linear_attention),
    row("CausalConvWithState", 27, causal_convolution),
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
        epilogue: Epilogue::default(),
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

fn linear_attention(node: &mut Lowering<'_, '_>) -> Lowered {
    at_most_inputs(node, 6)?;
    node.ignore("chunk_size", "a hint for tuning");
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
