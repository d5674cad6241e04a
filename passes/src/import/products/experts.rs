//! Mixtures of experts of `com.microsoft`: `MoE`, `QMoE`, as ONNX Runtime 1.31 computes them on a processor.
//!
//! The `k` most probable experts of each token are chosen by their index, and only their matrices are read. Codes of `QMoE` are
//! dequantized as a whole, which the pass `quantize` makes a matter of encoding. Of experts that are equally probable the
//! last ones are chosen, as in ONNX Runtime.

use crate::import::lowering::{LowerError, Lowering, Row};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{
    Activation, ActivationFunction, Arithmetic, BinaryFunction, BitCast, Clamp, Dequantize, ExpertMatmul, Gather,
    GatherElements, Reduce, ReduceFunction, Softmax, SoftmaxFunction, TopK, TypeError,
};
use ipuc_formats::tensor::Tensor;

type Lowered = Result<Vec<Operand>, LowerError>;

/// Mixtures of experts.
pub const ROWS: &[Row] = &[
    Row { domain: "com.microsoft", name: "MoE", since: 1, lower: mixture },
    Row { domain: "com.microsoft", name: "QMoE", since: 1, lower: quantized_mixture },
];

/// The weights of a layer of all experts: `[experts, outputs, inputs]`.
enum Weight {
    Floats(Operand),
    /// Codes packed in bytes along the inputs, with a scale, and perhaps a zero point, for each output or each block of
    /// its inputs.
    Codes {
        code: DType,
        block: i64,
        bytes: Operand,
        scales: Operand,
        zero_points: Operand,
    },
}

/// One layer of all experts, with `bias: [experts, outputs]` or none.
struct Layer {
    weight: Weight,
    bias: Operand,
}

fn mixture(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(8)?;
    node.refuse_inputs(&[(6, "fc3_experts_weights"), (7, "fc3_experts_bias")])?;
    let normalize = node.flag("normalize_routing_weights", false)?;
    let mut layers = Vec::new();
    for index in [2, 4] {
        let weight = Weight::Floats(node.required(index)?);
        layers.push(Layer { weight, bias: node.input(index + 1) });
    }
    let routing = routed(node, Operand::Absent, normalize)?;
    mixed(node, &layers, routing)
}

/// Input indices of a quantized layer: codes, scales, bias, zero points.
const QUANTIZED_LAYERS: [[usize; 4]; 2] = [[2, 3, 4, 11], [5, 6, 7, 12]];

/// Probabilities of the chosen experts are always divided by their sum, as in ONNX Runtime; weights apart from the
/// probabilities only where `normalize_routing_weights` says so.
fn quantized_mixture(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(21)?;
    node.refuse_inputs(&[
        (8, "fc3_experts_weights"),
        (9, "fc3_scales"),
        (10, "fc3_experts_bias"),
        (13, "fc3_zero_points"),
        (15, "fc1_global_scale"),
        (16, "fc2_global_scale"),
        (17, "fc1_act_scale"),
        (18, "fc2_act_scale"),
        (19, "fc1_act_block_scale"),
        (20, "fc2_act_block_scale"),
    ])?;
    if let Some(kind) = node.text("quant_type")?.filter(|kind| kind != "int") {
        return Err(node.refuse(format!("attribute `quant_type` = \"{kind}\"")));
    }
    // On a processor both mean the layout that quantizers write.
    if node.int("weights_prepacked")? != Some(0) {
        node.only_int("weights_prepacked", -1)?;
    }
    // A hint for the precision of the products.
    node.ignore("accuracy_level");
    // Of a layer that is refused.
    node.ignore("fc3_expert_weight_bits");
    let weights = node.input(14);
    let normalize = node.flag("normalize_routing_weights", false)? || weights == Operand::Absent;
    let shared_bits = node.int("expert_weight_bits")?.unwrap_or(4);
    let block = node.int("block_size")?.unwrap_or(0);
    let mut layers = Vec::new();
    for (name, inputs) in ["fc1_expert_weight_bits", "fc2_expert_weight_bits"].into_iter().zip(QUANTIZED_LAYERS) {
        let bits = node.int(name)?.filter(|bits| *bits > 0).unwrap_or(shared_bits);
        let code = match bits {
            2 => DType::U2,
            4 => DType::U4,
            8 => DType::U8,
            other => return Err(node.refuse(format!("expert weights of {other} bits"))),
        };
        let [bytes, scales, bias, zero_points] = inputs;
        let (bytes, scales, zero_points) = (node.required(bytes)?, node.required(scales)?, node.input(zero_points));
        layers
            .push(Layer { weight: Weight::Codes { code, block, bytes, scales, zero_points }, bias: node.input(bias) });
    }
    let routing = routed(node, weights, normalize)?;
    mixed(node, &layers, routing)
}

/// Several codes of a byte, from its low bits on, along the last axis.
fn unpacked(node: &mut Lowering<'_, '_>, code: DType, bytes: Operand) -> Result<Operand, LowerError> {
    if node.dtype(&bytes)? != DType::U8 {
        let found = node.dtype(&bytes)?;
        return Err(TypeError::ElementType { operand: 2, expected: "u8".to_string(), found }.into());
    }
    if code == DType::U8 { Ok(bytes) } else { node.emit_one(BitCast { to: code }, vec![bytes]) }
}

impl Weight {
    /// Those of all experts, as f32: `[experts, outputs, inputs]`.
    fn values(&self, node: &mut Lowering<'_, '_>) -> Result<Operand, LowerError> {
        match *self {
            Weight::Floats(weight) => node.cast(weight, DType::F32),
            Weight::Codes { code, block, bytes, scales, zero_points } => {
                dequantized(node, code, block, [bytes, scales, zero_points])
            }
        }
    }

    /// Extent of the inputs.
    fn inputs(&self, node: &Lowering<'_, '_>) -> Result<i64, LowerError> {
        match *self {
            Weight::Floats(weight) => node.extent(&weight, -1, "expert weights"),
            Weight::Codes { code, bytes, .. } => {
                Ok(node.extent(&bytes, -1, "expert weights")? * (8 / code.bits() as i64))
            }
        }
    }
}

/// Codes `[experts, outputs, bytes]` as f32, by scales and zero points `[experts, outputs, blocks]`, or
/// `[experts, outputs]`; zero points are packed along the last axis, too.
fn dequantized(
    node: &mut Lowering<'_, '_>,
    code: DType,
    block: i64,
    [bytes, scales, zero_points]: [Operand; 3],
) -> Result<Operand, LowerError> {
    let codes = unpacked(node, code, bytes)?;
    let inputs = node.extent(&codes, -1, "expert weights")?;
    let mut scales = node.cast(scales, DType::F32)?;
    let by_output = node.rank(&scales)? == 2;
    let parameters = node.extent(&scales, -1, "scales of experts")?;
    if by_output {
        scales = node.unsqueezed(scales, &[2])?;
    }
    let zero_points = match zero_points {
        Operand::Absent => {
            let middle = Tensor::from_codes(code, &[], &[1 << (code.bits() - 1)]);
            node.constant(middle.map_err(|error| LowerError::Unsupported(error.to_string()))?)
        }
        given => {
            let codes = unpacked(node, code, given)?;
            let codes = node.sliced(codes, -1, [0, parameters, 1])?;
            if by_output { node.unsqueezed(codes, &[2])? } else { codes }
        }
    };
    let block_size = match (by_output, block) {
        (true, _) => inputs.max(1),
        (false, 1..) => block,
        (false, other) => return Err(node.refuse(format!("attribute `block_size` = {other} with scales of blocks"))),
    };
    node.emit_one(Dequantize { to: Some(DType::F32), axis: 2, block_size }, vec![codes, scales, zero_points])
}

/// The experts of each token, and what their results are multiplied with: `[tokens, k]` both.
fn routed(node: &mut Lowering<'_, '_>, weights: Operand, normalize: bool) -> Result<[Operand; 2], LowerError> {
    let count = node.int("k")?.unwrap_or(1);
    // On a processor ONNX Runtime routes as without it, and takes two experts only.
    if node.flag("use_sparse_mixer", false)? && count != 2 {
        return Err(node.refuse(format!("attribute `use_sparse_mixer` with `k` = {count}")));
    }
    let scores = node.required(1)?;
    let scores = node.cast(scores, DType::F32)?;
    let experts = node.extent(&scores, -1, "scores of experts")?;
    let scores = node.reshaped(scores, &[-1, experts])?;
    let softmax = Softmax { function: SoftmaxFunction::Softmax, axis: -1, trailing: false };
    let probabilities = node.emit_one(softmax, vec![scores])?;
    // From the last to the first, since the first of equal ones is chosen.
    let backward: Vec<i64> = (0..experts).rev().collect();
    let backward = node.integers(&backward);
    let reversed = node.emit_one(Gather { axis: 1 }, vec![probabilities, backward])?;
    let count = node.integers(&[count]);
    let chosen = node.emit(TopK { axis: -1, largest: true, sorted: true }, vec![reversed, count])?;
    let last = node.integers(&[experts - 1]);
    let index = node.binary(BinaryFunction::Sub, last, chosen[1])?;
    let mut factors = match weights {
        Operand::Absent => chosen[0],
        weights => {
            let weights = node.cast(weights, DType::F32)?;
            let weights = node.reshaped(weights, &[-1, experts])?;
            node.emit_one(GatherElements { axis: 1 }, vec![weights, index])?
        }
    };
    if normalize {
        let axis = node.integers(&[-1]);
        let sum = Reduce { function: ReduceFunction::Sum, keep_axes: true, keep_without_axes: false };
        let sum = node.emit_one(sum, vec![factors, axis])?;
        factors = node.binary(BinaryFunction::Div, factors, sum)?;
    }
    Ok([index, factors])
}

/// The function between the layers of an expert.
enum Between {
    Identity,
    Function(ActivationFunction),
    /// `gate * sigmoid(alpha * gate) * (linear + beta)`, where gates and linear values alternate or follow each other.
    Gated {
        alternate: bool,
        alpha: f32,
        beta: f32,
        limit: Option<f32>,
    },
}

fn between(node: &mut Lowering<'_, '_>) -> Result<Between, LowerError> {
    let fusion = node.int("swiglu_fusion")?.unwrap_or(0);
    let (alpha, beta) = (node.float("activation_alpha")?.unwrap_or(1.0), node.float("activation_beta")?.unwrap_or(0.0));
    let limit = node.float("swiglu_limit")?;
    Ok(match node.text("activation_type")?.as_deref().unwrap_or("relu") {
        "identity" => Between::Identity,
        "relu" => Between::Function(ActivationFunction::Relu),
        "gelu" => Between::Function(ActivationFunction::GeluTanh),
        "silu" => Between::Function(ActivationFunction::Swish),
        "swiglu" => match fusion {
            1 | 2 => Between::Gated { alternate: fusion == 1, alpha, beta, limit },
            other => return Err(node.refuse(format!("attribute `swiglu_fusion` = {other}"))),
        },
        other => return Err(node.refuse(format!("attribute `activation_type` = \"{other}\""))),
    })
}

impl Between {
    fn applied(&self, node: &mut Lowering<'_, '_>, hidden: Operand) -> Result<Operand, LowerError> {
        match *self {
            Between::Identity => Ok(hidden),
            Between::Function(function) => node.activated(hidden, function),
            Between::Gated { alternate, alpha, beta, limit } => {
                let width = node.extent(&hidden, -1, "hidden values of experts")?;
                let places =
                    if alternate { [[0, width, 2], [1, width, 2]] } else { [[0, width / 2, 1], [width / 2, width, 1]] };
                let [gate, linear] = places.map(|place| node.sliced(hidden, -1, place));
                let (mut gate, mut linear) = (gate?, linear?);
                if let Some(limit) = limit {
                    let [least, greatest] = [-limit, limit].map(|bound| node.constant(Tensor::scalar(bound)));
                    gate = node.emit_one(Clamp {}, vec![gate, Operand::Absent, greatest])?;
                    linear = node.emit_one(Clamp {}, vec![linear, least, greatest])?;
                }
                let swish = Activation { function: ActivationFunction::Swish, alpha: Some(alpha), beta: None };
                let gate = node.emit_one(swish, vec![gate])?;
                if beta != 0.0 {
                    let beta = node.constant(Tensor::scalar(beta));
                    linear = node.plus(linear, beta)?;
                }
                node.binary(BinaryFunction::Mul, gate, linear)
            }
        }
    }
}

/// `x: [tokens, k or 1, inputs]` through the experts `index: [tokens, k]`: `[tokens, k, outputs]`.
fn through(node: &mut Lowering<'_, '_>, layer: &Layer, index: Operand, x: Operand) -> Result<Operand, LowerError> {
    let weight = layer.weight.values(node)?;
    let product = node.emit_one(ExpertMatmul { arithmetic: Arithmetic::default() }, vec![x, weight, index])?;
    if layer.bias == Operand::Absent {
        return Ok(product);
    }
    let bias = node.emit_one(Gather { axis: 0 }, vec![layer.bias, index])?;
    let bias = node.cast(bias, DType::F32)?;
    node.plus(product, bias)
}

fn mixed(node: &mut Lowering<'_, '_>, layers: &[Layer], [index, factors]: [Operand; 2]) -> Lowered {
    let (input, between) = (node.required(0)?, between(node)?);
    let dtype = node.dtype(&input)?;
    if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
        return Err(
            TypeError::ElementType { operand: 0, expected: "f16, bf16 or f32".to_string(), found: dtype }.into()
        );
    }
    let size = layers[0].weight.inputs(node)?;
    let tokens = node.cast(input, DType::F32)?;
    let mut hidden = node.reshaped(tokens, &[-1, 1, size])?;
    for (place, layer) in layers.iter().enumerate() {
        hidden = through(node, layer, index, hidden)?;
        if place == 0 {
            hidden = between.applied(node, hidden)?;
        }
    }
    let factors = node.unsqueezed(factors, &[2])?;
    let weighted = node.binary(BinaryFunction::Mul, hidden, factors)?;
    let axis = node.integers(&[1]);
    let sum = Reduce { function: ReduceFunction::Sum, keep_axes: false, keep_without_axes: false };
    let sum = node.emit_one(sum, vec![weighted, axis])?;
    let sum = node.reshaped_like(sum, input)?;
    Ok(vec![node.cast(sum, dtype)?])
}
