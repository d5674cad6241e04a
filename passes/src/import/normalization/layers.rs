//! Normalizations and losses: `LayerNormalization` (opset 17; ONNX Runtime has it in all earlier ones), `RMSNormalization` (23), `BatchNormalization` (1 to 15),
//! `InstanceNormalization` (1 to 22), `GroupNormalization` (18, 21), `LRN` (1, 13), `LpNormalization` (1, 22),
//! `MeanVarianceNormalization` (1, 9, 13), `NegativeLogLikelihoodLoss` (12, 13, 22), `SoftmaxCrossEntropyLoss` (12, 13).
//!
//! Before opset 14 `BatchNormalization` trains where it has more than one output; that mode is refused, since its
//! saved statistics are not defined. `LpNormalization` and `MeanVarianceNormalization` are composed of reductions.

use crate::import::lowering::{LowerError, Lowering, Row, row};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{
    BatchNormalization, Binary, BinaryFunction, Cast, Compare, CompareRelation, GroupNormalization, LayerNormalization,
    LocalResponseNormalization, LossReduction, NegativeLogLikelihood, Reduce, ReduceFunction, Select, Softmax,
    SoftmaxFunction, TypeError, Unary, UnaryFunction,
};
use ipuc_formats::tensor::Tensor;

type Lowered = Result<Vec<Operand>, LowerError>;

/// Normalizations.
pub const ROWS: &[Row] = &[
    row("LayerNormalization", 1, early_layer_normalization),
    row("LayerNormalization", 17, layer_normalization),
    row("RMSNormalization", 23, rms_normalization),
    row("BatchNormalization", 1, batch_normalization),
    row("BatchNormalization", 6, batch_normalization),
    row("BatchNormalization", 7, batch_normalization),
    row("BatchNormalization", 9, batch_normalization),
    row("BatchNormalization", 14, batch_normalization),
    row("BatchNormalization", 15, batch_normalization),
    row("InstanceNormalization", 1, instance_normalization),
    row("InstanceNormalization", 6, instance_normalization),
    row("InstanceNormalization", 22, instance_normalization),
    row("GroupNormalization", 18, group_normalization),
    row("GroupNormalization", 21, group_normalization),
    row("LRN", 1, local_response_normalization),
    row("LRN", 13, local_response_normalization),
    row("LpNormalization", 1, lp_normalization),
    row("LpNormalization", 22, lp_normalization),
    row("MeanVarianceNormalization", 1, mean_variance_normalization_by_flags),
    row("MeanVarianceNormalization", 9, mean_variance_normalization),
    row("MeanVarianceNormalization", 13, mean_variance_normalization),
    row("NegativeLogLikelihoodLoss", 12, negative_log_likelihood_loss),
    row("NegativeLogLikelihoodLoss", 13, negative_log_likelihood_loss),
    row("NegativeLogLikelihoodLoss", 22, negative_log_likelihood_loss),
    row("SoftmaxCrossEntropyLoss", 12, softmax_cross_entropy_loss),
    row("SoftmaxCrossEntropyLoss", 13, softmax_cross_entropy_loss),
];

fn epsilon(node: &mut Lowering<'_, '_>) -> Result<f32, LowerError> {
    Ok(node.float("epsilon")?.unwrap_or(1e-5))
}

fn stash(node: &mut Lowering<'_, '_>) -> Result<DType, LowerError> {
    let code = node.int("stash_type")?.unwrap_or(1);
    let dtype = i32::try_from(code).ok().and_then(DType::from_onnx);
    dtype.ok_or_else(|| node.refuse(format!("attribute `stash_type` = {code}")))
}

fn layer_normalization(node: &mut Lowering<'_, '_>) -> Lowered {
    let axis = node.int("axis")?.unwrap_or(-1);
    let (epsilon, stash) = (epsilon(node)?, stash(node)?);
    let operands = vec![node.required(0)?, node.required(1)?, node.input(2)];
    node.emit(LayerNormalization { axis, epsilon, center: true, stash }, operands)
}

/// Before opset 17, where ONNX Runtime's optimizer writes it: the data may have another type than scale, bias and result.
fn early_layer_normalization(node: &mut Lowering<'_, '_>) -> Lowered {
    let (data, scale) = (node.required(0)?, node.required(1)?);
    if node.dtype(&data)? == node.dtype(&scale)? {
        return layer_normalization(node);
    }
    let axis = node.int("axis")?.unwrap_or(-1);
    let (epsilon, stash) = (epsilon(node)?, stash(node)?);
    let (wide, result) = (node.wide_type(0)?, node.dtype(&scale)?);
    let mut operands = vec![data, scale, node.input(2)];
    for operand in &mut operands {
        *operand = node.cast(*operand, wide)?;
    }
    let mut results = node.emit(LayerNormalization { axis, epsilon, center: true, stash }, operands)?;
    results[0] = node.cast(results[0], result)?;
    Ok(results)
}

fn rms_normalization(node: &mut Lowering<'_, '_>) -> Lowered {
    let axis = node.int("axis")?.unwrap_or(-1);
    let (epsilon, stash) = (epsilon(node)?, stash(node)?);
    let operands = vec![node.required(0)?, node.required(1)?];
    node.emit(LayerNormalization { axis, epsilon, center: false, stash }, operands)
}

fn batch_normalization(node: &mut Lowering<'_, '_>) -> Lowered {
    let epsilon = epsilon(node)?;
    let momentum = node.float("momentum")?.unwrap_or(0.9);
    let mut per_element = false;
    let training = if node.since() >= 14 {
        let training = node.flag("training_mode", false)?;
        if !training {
            node.refuse_outputs(&[(1, "running_mean"), (2, "running_var")])?;
        }
        training
    } else {
        if node.since() < 7 {
            // More than one output is what training is, and that is refused.
            node.ignore("is_test");
        }
        if node.since() <= 7 {
            per_element = !node.flag("spatial", true)?;
        }
        // They are of training.
        node.refuse_outputs(&[(1, "mean"), (2, "var"), (3, "saved_mean"), (4, "saved_var")])?;
        false
    };
    let operands = (0..5).map(|index| node.required(index)).collect::<Result<Vec<_>, _>>()?;
    node.emit(BatchNormalization { epsilon, momentum, training, per_element }, operands)
}

fn instance_normalization(node: &mut Lowering<'_, '_>) -> Lowered {
    let epsilon = epsilon(node)?;
    let operands = (0..3).map(|index| node.required(index)).collect::<Result<Vec<_>, _>>()?;
    node.emit(
        GroupNormalization { groups: None, epsilon, scale_per_group: false, stash: DType::F32, in_blocks: false },
        operands,
    )
}

fn group_normalization(node: &mut Lowering<'_, '_>) -> Lowered {
    let epsilon = epsilon(node)?;
    let groups = node.int("num_groups")?;
    if groups.is_none() {
        return Err(LowerError::MissingAttribute("num_groups".to_string()));
    }
    let scale_per_group = node.since() < 21;
    let stash = if scale_per_group { DType::F32 } else { stash(node)? };
    let operands = (0..3).map(|index| node.required(index)).collect::<Result<Vec<_>, _>>()?;
    node.emit(GroupNormalization { groups, epsilon, scale_per_group, stash, in_blocks: false }, operands)
}

fn local_response_normalization(node: &mut Lowering<'_, '_>) -> Lowered {
    let size = node.int("size")?.ok_or_else(|| LowerError::MissingAttribute("size".to_string()))?;
    let operator = LocalResponseNormalization {
        size,
        alpha: node.float("alpha")?.unwrap_or(1e-4),
        beta: node.float("beta")?.unwrap_or(0.75),
        bias: node.float("bias")?.unwrap_or(1.0),
    };
    let input = node.required(0)?;
    node.emit(operator, vec![input])
}

/// Emit steps over the input in f32 (f64 for f64) and give their result the type of the input.
fn widened(
    node: &mut Lowering<'_, '_>,
    compose: impl FnOnce(&mut Lowering<'_, '_>, Operand, DType) -> Result<Operand, LowerError>,
) -> Lowered {
    let input = node.required(0)?;
    let dtype = node.dtype(&input)?;
    let wide = match dtype {
        DType::F32 | DType::F16 | DType::BF16 => DType::F32,
        DType::F64 => DType::F64,
        found => {
            let expected = "f16, bf16, f32 or f64".to_string();
            return Err(TypeError::ElementType { operand: 0, expected, found }.into());
        }
    };
    if wide == dtype {
        return compose(node, input, wide).map(|result| vec![result]);
    }
    let input = node.emit_one(Cast::to(wide), vec![input])?;
    let result = compose(node, input, wide)?;
    node.emit(Cast::to(dtype), vec![result])
}

fn scalar(node: &mut Lowering<'_, '_>, dtype: DType, value: f64) -> Operand {
    node.constant(if dtype == DType::F64 { Tensor::scalar(value) } else { Tensor::scalar(value as f32) })
}

fn lp_normalization(node: &mut Lowering<'_, '_>) -> Lowered {
    let axis = node.int("axis")?.unwrap_or(-1);
    let function = match node.int("p")?.unwrap_or(2) {
        1 => ReduceFunction::L1,
        2 => ReduceFunction::L2,
        other => return Err(node.refuse(format!("attribute `p` = {other}"))),
    };
    widened(node, |node, input, wide| {
        let axes = node.constant(Tensor::vector_i64(&[axis]));
        let norm = node.emit_one(Reduce { function, keep_axes: true, keep_without_axes: false }, vec![input, axes])?;
        let zero = scalar(node, wide, 0.0);
        let is_zero = node.emit_one(Compare { relation: CompareRelation::Equal }, vec![norm, zero])?;
        let divided = node.emit_one(Binary { function: BinaryFunction::Div }, vec![input, norm])?;
        node.emit_one(Select {}, vec![is_zero, zero, divided])
    })
}

fn mean_variance_normalization(node: &mut Lowering<'_, '_>) -> Lowered {
    let axes = node.ints("axes")?.unwrap_or_else(|| vec![0, 2, 3]);
    let mean = Reduce { function: ReduceFunction::Mean, keep_axes: true, keep_without_axes: false };
    let binary = |function| Binary { function };
    widened(node, |node, input, wide| {
        let axes = if axes.is_empty() { Operand::Absent } else { node.constant(Tensor::vector_i64(&axes)) };
        let center = node.emit_one(mean.clone(), vec![input, axes])?;
        let distance = node.emit_one(binary(BinaryFunction::Sub), vec![input, center])?;
        let square = node.emit_one(binary(BinaryFunction::Mul), vec![distance, distance])?;
        let variance = node.emit_one(mean, vec![square, axes])?;
        let deviation = node.emit_one(Unary { function: UnaryFunction::Sqrt }, vec![variance])?;
        // The function body's guard against a division by zero.
        let least = scalar(node, wide, 1e-9);
        let deviation = node.emit_one(binary(BinaryFunction::Add), vec![deviation, least])?;
        node.emit_one(binary(BinaryFunction::Div), vec![distance, deviation])
    })
}

/// Opset 1: over all axes but the channels, or over them too with `across_channels`; nothing guards the division.
fn mean_variance_normalization_by_flags(node: &mut Lowering<'_, '_>) -> Lowered {
    let across = node.flag("across_channels", false)?;
    let divides = node.flag("normalize_variance", true)?;
    let x = node.required(0)?;
    let rank = node.rank(&x)? as i64;
    if !(2..=4).contains(&rank) {
        // ONNX Runtime leaves out the fifth axis, which no text says.
        return Err(TypeError::Rank { operand: 0, expected: "2 to 4".to_string(), found: rank as usize }.into());
    }
    let axes: Vec<i64> = (0..rank).filter(|&axis| across || axis != 1).collect();
    let mean = Reduce { function: ReduceFunction::Mean, keep_axes: true, keep_without_axes: false };
    widened(node, |node, input, _| {
        let axes = node.integers(&axes);
        let center = node.emit_one(mean.clone(), vec![input, axes])?;
        let distance = node.binary(BinaryFunction::Sub, input, center)?;
        if !divides {
            return Ok(distance);
        }
        let square = node.binary(BinaryFunction::Mul, distance, distance)?;
        let variance = node.emit_one(mean, vec![square, axes])?;
        let deviation = node.emit_one(Unary { function: UnaryFunction::Sqrt }, vec![variance])?;
        node.binary(BinaryFunction::Div, distance, deviation)
    })
}

fn loss(node: &mut Lowering<'_, '_>) -> Result<NegativeLogLikelihood, LowerError> {
    let reduction = node.keyword("reduction")?.unwrap_or(LossReduction::Mean);
    Ok(NegativeLogLikelihood { reduction, ignored_label: node.int("ignore_index")? })
}

fn negative_log_likelihood_loss(node: &mut Lowering<'_, '_>) -> Lowered {
    let operator = loss(node)?;
    let operands = vec![node.required(0)?, node.required(1)?, node.input(2)];
    node.emit(operator, operands)
}

fn softmax_cross_entropy_loss(node: &mut Lowering<'_, '_>) -> Lowered {
    let operator = loss(node)?;
    let (scores, labels, weights) = (node.required(0)?, node.required(1)?, node.input(2));
    let softmax = Softmax { function: SoftmaxFunction::LogSoftmax, axis: 1, trailing: false };
    let log_probability = node.emit_one(softmax, vec![scores])?;
    let loss = node.emit_one(operator, vec![log_probability, labels, weights])?;
    Ok(vec![loss, log_probability])
}
