//! Matrix products that ONNX Runtime's optimizer fuses, of `com.microsoft`: `FusedMatMul`, `FusedMatMulActivation`,
//! `TransposeMatMul`, `FusedGemm`, `GemmFastGelu`; and `Inverse`, `SparseToDenseMatMul`; as ONNX Runtime 1.31 defines them.
//!
//! They are taken apart again; what follows a product is fused with it by the compiler's own passes.

use crate::import::lowering::{LowerError, Lowering, Row};
use crate::import::products::matrices::gemm;
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{
    Activation, ActivationFunction, Inverse, Matmul, Softmax, SoftmaxFunction, TypeError, Unary, UnaryFunction,
};

type Lowered = Result<Vec<Operand>, LowerError>;

const fn row(name: &'static str, lower: fn(&mut Lowering<'_, '_>) -> Lowered) -> Row {
    Row { domain: "com.microsoft", name, since: 1, lower }
}

/// Fused matrix products.
pub const ROWS: &[Row] = &[
    row("FusedGemm", fused_gemm),
    row("FusedMatMul", |node| Ok(vec![fused_matmul(node)?])),
    row("FusedMatMulActivation", fused_matmul_activation),
    row("GemmFastGelu", gemm_fast_gelu),
    row("Inverse", |node| {
        let x = node.required(0)?;
        node.emit(Inverse {}, vec![x])
    }),
    row("MatMulInteger16", |node| {
        node.at_most_inputs(2)?;
        let mut operands = Vec::new();
        for operand in [0, 1] {
            let given = node.required(operand)?;
            match node.dtype(&given)? {
                DType::I16 => operands.push(node.cast(given, DType::I32)?),
                found => {
                    return Err(TypeError::ElementType { operand, expected: "i16".to_string(), found }.into());
                }
            }
        }
        node.emit(Matmul::new(false, false), operands)
    }),
    // A sparse weight is imported as a dense one.
    row("SparseToDenseMatMul", |node| Ok(vec![scaled_matmul(node, [false; 2])?])),
    row("TransposeMatMul", |node| Ok(vec![scaled_matmul(node, [false; 2])?])),
];

fn scaled_matmul(node: &mut Lowering<'_, '_>, batch: [bool; 2]) -> Result<Operand, LowerError> {
    node.at_most_inputs(2)?;
    let alpha = node.float("alpha")?.unwrap_or(1.0);
    let mut operands = [node.required(0)?, node.required(1)?];
    let mut transposed = [node.flag("transA", false)?, node.flag("transB", false)?];
    for (operand, (batch, transposed)) in operands.iter_mut().zip(batch.into_iter().zip(&mut transposed)) {
        if batch {
            *operand = behind_batch(node, *operand, *transposed)?;
            *transposed = false;
        }
    }
    // A vector has nothing to transpose.
    let product = node.emit_one(Matmul::new(transposed[0], transposed[1]), operands.to_vec())?;
    node.times(product, alpha)
}

/// `[rows, batch.., columns]` as `[batch.., rows, columns]`, or as `[batch.., columns, rows]` where it is transposed, too.
fn behind_batch(node: &mut Lowering<'_, '_>, operand: Operand, transposed: bool) -> Result<Operand, LowerError> {
    let rank = node.rank(&operand)? as i64;
    if rank < 3 {
        return Err(TypeError::Rank { operand: 0, expected: "3 or more".to_string(), found: rank as usize }.into());
    }
    let mut permutation: Vec<i64> = (1..rank - 1).collect();
    permutation.extend(if transposed { [rank - 1, 0] } else { [0, rank - 1] });
    node.transposed(operand, permutation)
}

fn fused_matmul(node: &mut Lowering<'_, '_>) -> Result<Operand, LowerError> {
    let batch = [node.flag("transBatchA", false)?, node.flag("transBatchB", false)?];
    scaled_matmul(node, batch)
}

/// The parameters of an activation, as far as they are given.
type Parameters = [Option<f32>; 2];

/// A function that ONNX Runtime fuses, by the name of its ONNX operator; `None` is `Tanh`. Its parameters must be given.
fn activation(
    node: &Lowering<'_, '_>,
    name: &str,
    [alpha, beta]: Parameters,
) -> Result<Option<Activation>, LowerError> {
    let (function, count) = match name {
        "Relu" => (ActivationFunction::Relu, 0),
        "Sigmoid" => (ActivationFunction::Sigmoid, 0),
        "Softplus" => (ActivationFunction::Softplus, 0),
        "Softsign" => (ActivationFunction::Softsign, 0),
        "HardSwish" => (ActivationFunction::HardSwish, 0),
        "LeakyRelu" => (ActivationFunction::LeakyRelu, 1),
        "Elu" => (ActivationFunction::Elu, 1),
        "ThresholdedRelu" => (ActivationFunction::ThresholdedRelu, 1),
        "HardSigmoid" => (ActivationFunction::HardSigmoid, 2),
        "Tanh" => return Ok(None),
        other => return Err(node.refuse(format!("attribute `activation` = \"{other}\""))),
    };
    if [alpha, beta].iter().flatten().count() < count {
        return Err(node.refuse(format!("activation `{name}` without its {count} parameters")));
    }
    let taken = |given: Option<f32>, place: usize| given.filter(|_| place < count);
    Ok(Some(Activation { function, alpha: taken(alpha, 0), beta: taken(beta, 1) }))
}

/// The result of a function of [`activation`].
pub(super) fn applied(
    node: &mut Lowering<'_, '_>,
    name: &str,
    operand: Operand,
    parameters: Parameters,
) -> Result<Operand, LowerError> {
    match activation(node, name, parameters)? {
        Some(activation) => node.emit_one(activation, vec![operand]),
        None => node.emit_one(Unary { function: UnaryFunction::Tanh }, vec![operand]),
    }
}

fn fused_gemm(node: &mut Lowering<'_, '_>) -> Lowered {
    let name = node.text("activation")?.unwrap_or_default();
    let parameters = [node.float("activation_alpha")?, node.float("activation_beta")?];
    if let Some(gamma) = node.float("activation_gamma")?.filter(|gamma| *gamma != 0.0) {
        return Err(node.refuse(format!("attribute `activation_gamma` = {gamma}")));
    }
    let product = gemm(node)?[0];
    if name.is_empty() {
        return Ok(vec![product]);
    }
    Ok(vec![applied(node, &name, product, parameters)?])
}

fn fused_matmul_activation(node: &mut Lowering<'_, '_>) -> Lowered {
    let name = node.text("activation")?.ok_or_else(|| LowerError::MissingAttribute("activation".to_string()))?;
    let parameters = [node.float("activation_alpha")?, node.float("activation_beta")?];
    if let Some(gamma) = node.float("activation_gamma")?.filter(|gamma| *gamma != 0.0) {
        return Err(node.refuse(format!("attribute `activation_gamma` = {gamma}")));
    }
    let axis = node.int("activation_axis")?.unwrap_or(-1);
    let product = fused_matmul(node)?;
    if name == "Softmax" {
        let softmax = Softmax { function: SoftmaxFunction::Softmax, axis, trailing: false };
        return node.emit(softmax, vec![product]);
    }
    Ok(vec![applied(node, &name, product, parameters)?])
}

fn gemm_fast_gelu(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(3)?;
    let (x, weight, bias) = (node.required(0)?, node.required(1)?, node.input(2));
    let product = node.product(x, weight, false)?;
    let sum = node.plus(product, bias)?;
    Ok(vec![node.activated(sum, ActivationFunction::GeluTanh)?])
}
