//! Attention by a state, of `com.microsoft`: `LinearAttention`, `LinearAttentionGate`, `CausalConvWithState`, as ONNX Runtime 1.31 defines them.
//!
//! A dilated kernel becomes one with zeros between its taps. A window of states is refused.

use crate::import::attention::standard::linear_attention;
use crate::import::lowering::{LowerError, Lowering, Row};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{ActivationFunction, BinaryFunction, CausalConvolution, Pad, PadMode};

type Lowered = Result<Vec<Operand>, LowerError>;

/// Attention by a state.
pub const ROWS: &[Row] = &[
    Row { domain: "com.microsoft", name: "CausalConvWithState", since: 1, lower: causal_convolution },
    Row { domain: "com.microsoft", name: "LinearAttentionGate", since: 1, lower: gates },
    Row {
        domain: "com.microsoft",
        name: "LinearAttention",
        since: 1,
        lower: |node| {
            node.only_int("state_window", 0)?;
            linear_attention(node)
        },
    },
];

/// Decays `scale * softplus(a + bias)`, and rates `sigmoid(b)`, in f32 and rounded once.
fn gates(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(4)?;
    let (a, bias, scale) = (node.required(0)?, node.required(1)?, node.required(2)?);
    let dtype = node.dtype(&a)?;
    let a = node.cast(a, DType::F32)?;
    let sum = node.plus(a, bias)?;
    let decay = node.activated(sum, ActivationFunction::Softplus)?;
    let decay = node.binary(BinaryFunction::Mul, decay, scale)?;
    let mut results = vec![node.cast(decay, dtype)?];
    let rates = node.input(3);
    if node.output_used(1) {
        if rates == Operand::Absent {
            return Err(node.refuse("output `beta` without the input `b`"));
        }
        let rates = node.cast(rates, DType::F32)?;
        let rates = node.activated(rates, ActivationFunction::Sigmoid)?;
        results.push(node.cast(rates, dtype)?);
    }
    Ok(results)
}

fn causal_convolution(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(4)?;
    node.only_int("ndim", 1)?;
    node.only_int("state_window", 0)?;
    let silu = match node.text("activation")?.as_deref() {
        None | Some("none" | "") => false,
        Some("silu" | "swish") => true,
        Some(other) => return Err(node.refuse(format!("attribute `activation` = \"{other}\""))),
    };
    let last = node.flag("channels_last", false)?;
    let dilation = if node.has("dilation") { node.positive("dilation")? } else { 1 };
    let (mut x, mut state) = (node.required(0)?, node.input(3));
    let weight = node.required(1)?;
    let weight = dilated(node, weight, dilation)?;
    if last {
        for operand in [&mut x, &mut state].into_iter().filter(|operand| **operand != Operand::Absent) {
            *operand = node.transposed(*operand, vec![0, 2, 1])?;
        }
    }
    let mut operands = vec![x, weight, node.input(2), state];
    while operands.last() == Some(&Operand::Absent) {
        operands.pop();
    }
    let mut results = node.emit(CausalConvolution { silu }, operands)?;
    if last {
        for result in &mut results {
            *result = node.transposed(*result, vec![0, 2, 1])?;
        }
    }
    Ok(results)
}

/// `[c, 1, k]` as `[c, 1, (k - 1) * dilation + 1]`, with zeros between the elements.
fn dilated(node: &mut Lowering<'_, '_>, weight: Operand, dilation: i64) -> Result<Operand, LowerError> {
    if dilation == 1 {
        return Ok(weight);
    }
    let spread = node.unsqueezed(weight, &[3])?;
    let pads = node.integers(&[0, 0, 0, 0, 0, 0, 0, dilation - 1]);
    let spread = node.emit_one(Pad { mode: PadMode::Constant }, vec![spread, pads])?;
    let spread = node.reshaped(spread, &[0, 0, -1])?;
    node.sliced(spread, 2, [0, 1 - dilation, 1])
}
