//! Normalizations that ONNX Runtime's optimizer fuses, of `com.microsoft`: `EmbedLayerNormalization`,
//! `QEmbedLayerNormalization`, `GroupNorm`, `SkipGroupNorm`, `BiasSoftmax`, `GatedRMSNorm`, as ONNX Runtime 1.31 defines them.
//!
//! They are computed in f32 (f64 for f64) and rounded once.

use crate::import::lowering::{LowerError, Lowering, Row};
use crate::import::products::{channels_first, channels_last};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{
    ActivationFunction, BinaryFunction, Compare, CompareRelation, Dequantize, Expand, Gather, GroupNormalization,
    LayerNormalization, Reduce, ReduceFunction, ShapeOf, Softmax, SoftmaxFunction,
};
use ipuc_formats::tensor::Tensor;

type Lowered = Result<Vec<Operand>, LowerError>;

const fn row(name: &'static str, lower: fn(&mut Lowering<'_, '_>) -> Lowered) -> Row {
    Row { domain: "com.microsoft", name, since: 1, lower }
}

/// Fused normalizations.
pub const ROWS: &[Row] = &[
    row("BiasSoftmax", bias_softmax),
    row("EmbedLayerNormalization", embedded),
    row("GatedRMSNorm", gated),
    row("GroupNorm", |node| {
        node.at_most_inputs(3)?;
        let x = node.required(0)?;
        let x = node.cast(x, DType::F32)?;
        Ok(vec![group_normalized(node, x)?])
    }),
    row("QEmbedLayerNormalization", embedded_codes),
    row("SkipGroupNorm", skip_group_normalized),
];

/// The softmax, over all axes from `axis` on, of `data + bias`.
fn bias_softmax(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(2)?;
    // Which axes the bias broadcasts along follows from its shape.
    node.ignore("is_inner_broadcast");
    let axis = node.int("axis")?.unwrap_or(1);
    let (data, bias) = (node.required(0)?, node.required(1)?);
    let (wide, dtype) = (node.wide_type(0)?, node.dtype(&data)?);
    let (data, bias) = (node.cast(data, wide)?, node.cast(bias, wide)?);
    let sum = node.plus(data, bias)?;
    let softmax = Softmax { function: SoftmaxFunction::Softmax, axis, trailing: true };
    let result = node.emit_one(softmax, vec![sum])?;
    Ok(vec![node.cast(result, dtype)?])
}

/// `rms_norm(X) * scale * activation(gate)`.
fn gated(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(3)?;
    let function = match node.text("activation")?.as_deref() {
        None | Some("silu" | "swish") => ActivationFunction::Swish,
        Some("sigmoid") => ActivationFunction::Sigmoid,
        Some(other) => return Err(node.refuse(format!("attribute `activation` = \"{other}\""))),
    };
    let epsilon = node.float("epsilon")?.unwrap_or(1e-5);
    let mut operands = [node.required(0)?, node.required(1)?, node.required(2)?];
    let dtype = node.dtype(&operands[0])?;
    for operand in &mut operands {
        *operand = node.cast(*operand, DType::F32)?;
    }
    let operator = LayerNormalization { axis: -1, epsilon, center: false, stash: DType::F32 };
    let normalized = node.emit_one(operator, operands[..2].to_vec())?;
    let gate = node.activated(operands[2], function)?;
    let result = node.binary(BinaryFunction::Mul, normalized, gate)?;
    Ok(vec![node.cast(result, dtype)?])
}

/// `x` of f32, standardized in groups of channels, in the type of the first input.
fn group_normalized(node: &mut Lowering<'_, '_>, x: Operand) -> Result<Operand, LowerError> {
    let last = node.flag("channels_last", true)?;
    let groups = Some(node.positive("groups")?);
    let epsilon = node.float("epsilon")?.unwrap_or(1e-5);
    let silu = match node.int("activation")? {
        Some(0) => false,
        Some(1) => true,
        Some(other) => return Err(node.refuse(format!("attribute `activation` = {other}"))),
        None => return Err(LowerError::MissingAttribute("activation".to_string())),
    };
    let dtype = node.dtype(&node.required(0)?)?;
    let mut operands = vec![if last { channels_first(node, x)? } else { x }];
    for parameter in [1, 2] {
        let parameter = node.required(parameter)?;
        operands.push(node.cast(parameter, DType::F32)?);
    }
    let operator = GroupNormalization { groups, epsilon, scale_per_group: false, stash: DType::F32, in_blocks: false };
    let mut result = node.emit_one(operator, operands)?;
    if silu {
        result = node.activated(result, ActivationFunction::Swish)?;
    }
    if last {
        result = channels_last(node, result)?;
    }
    node.cast(result, dtype)
}

/// The sum of X, skip and bias (output 1), normalized. Skip may have one element a channel: `[n, c]`.
fn skip_group_normalized(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(5)?;
    let last = node.flag("channels_last", true)?;
    if !last {
        return Err(node.refuse("attribute `channels_last` = 0"));
    }
    let (x, skip) = (node.required(0)?, node.required(3)?);
    let dtype = node.dtype(&x)?;
    let (x, mut skip) = (node.cast(x, DType::F32)?, node.cast(skip, DType::F32)?);
    let bias = node.cast(node.input(4), DType::F32)?;
    if node.rank(&skip)? == 2 {
        skip = node.unsqueezed(skip, &[1, 2])?;
    }
    let sum = node.plus(x, skip)?;
    let sum = node.plus(sum, bias)?;
    let normalized = group_normalized(node, sum)?;
    let sum = if node.output_used(1) { node.cast(sum, dtype)? } else { Operand::Absent };
    Ok(vec![normalized, sum])
}

/// Rows of the embeddings of words, positions and segments, summed (output 2) and normalized (output 0); how many of
/// each sequence are no padding (output 1).
fn embedded(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(9)?;
    let epsilon = node.float("epsilon")?.unwrap_or(1e-12);
    let kind = node.int("mask_index_type")?.unwrap_or(if node.input(7) == Operand::Absent { 0 } else { 1 });
    let (ids, segments, words, positions, segment_table) =
        (node.required(0)?, node.input(1), node.required(2)?, node.required(3)?, node.input(4));
    let dtype = node.dtype(&words)?;
    let mut sum = rows_of(node, words, ids)?;
    let places = match node.input(8) {
        Operand::Absent => counted(node, ids)?,
        given => given,
    };
    let rows = rows_of(node, positions, places)?;
    sum = node.plus(sum, rows)?;
    if segments != Operand::Absent {
        if segment_table == Operand::Absent {
            return Err(node.refuse("input `segment_ids` without `segment_embedding`"));
        }
        let rows = rows_of(node, segment_table, segments)?;
        sum = node.plus(sum, rows)?;
    }
    let mut operands = vec![sum];
    for parameter in [5, 6] {
        let parameter = node.required(parameter)?;
        operands.push(node.cast(parameter, DType::F32)?);
    }
    let operator = LayerNormalization { axis: -1, epsilon, center: true, stash: DType::F32 };
    let normalized = node.emit_one(operator, operands)?;
    let normalized = node.cast(normalized, dtype)?;
    let lengths = if node.output_used(1) { lengths(node, ids, kind)? } else { Operand::Absent };
    let sum = if node.output_used(2) { node.cast(sum, dtype)? } else { Operand::Absent };
    Ok(vec![normalized, lengths, sum])
}

/// As `embedded`, of tables and parameters of codes (inputs 2 to 6), each with a scale and a zero point.
fn embedded_codes(node: &mut Lowering<'_, '_>) -> Lowered {
    node.at_most_inputs(18)?;
    let epsilon = node.float("epsilon")?.unwrap_or(1e-12);
    let (ids, segments) = (node.required(0)?, node.input(1));
    let places = counted(node, ids)?;
    let mut sum = node.coded_rows(0, Some(ids))?;
    let rows = node.coded_rows(1, Some(places))?;
    sum = node.plus(sum, rows)?;
    if segments == Operand::Absent {
        node.refuse_inputs(&[(4, "segment_embedding"), (10, "segment_embedding_scale")])?;
        node.refuse_inputs(&[(15, "segment_embedding_zero_point")])?;
    } else {
        let rows = node.coded_rows(2, Some(segments))?;
        sum = node.plus(sum, rows)?;
    }
    let operands = vec![sum, node.coded_rows(3, None)?, node.coded_rows(4, None)?];
    let operator = LayerNormalization { axis: -1, epsilon, center: true, stash: DType::F32 };
    let normalized = node.emit_one(operator, operands)?;
    let kind = if node.input(7) == Operand::Absent { 0 } else { 1 };
    let lengths = if node.output_used(1) { lengths(node, ids, kind)? } else { Operand::Absent };
    Ok(vec![normalized, lengths])
}

impl Lowering<'_, '_> {
    /// Rows of a table of codes, the one of this number, as f32; without indices all of it.
    fn coded_rows(&mut self, number: usize, indices: Option<Operand>) -> Result<Operand, LowerError> {
        let [codes, scale, zero_point] = [2, 8, 13].map(|first| self.required(first + number));
        let (mut codes, scale, zero_point) = (codes?, scale?, zero_point?);
        if let Some(indices) = indices {
            codes = self.emit_one(Gather { axis: 0 }, vec![codes, indices])?;
        }
        let (scale, zero_point) = (self.reshaped(scale, &[])?, self.reshaped(zero_point, &[])?);
        self.emit_one(Dequantize { to: None, axis: 0, block_size: 0 }, vec![codes, scale, zero_point])
    }
}

/// Rows of a table as f32.
fn rows_of(node: &mut Lowering<'_, '_>, table: Operand, indices: Operand) -> Result<Operand, LowerError> {
    let rows = node.emit_one(Gather { axis: 0 }, vec![table, indices])?;
    node.cast(rows, DType::F32)
}

/// The numbers from 0 up to the length of the sequences `[b, s]`.
fn counted(node: &mut Lowering<'_, '_>, ids: Operand) -> Result<Operand, LowerError> {
    let length = node.emit_one(ShapeOf { start: 1, end: Some(2) }, vec![ids])?;
    node.counted(length)
}

/// For each of the batch: how many elements of the mask are 1, as i32; 0 without a mask.
fn lengths(node: &mut Lowering<'_, '_>, ids: Operand, kind: i64) -> Result<Operand, LowerError> {
    match (node.input(7), kind) {
        (Operand::Absent, _) => {
            let batch = node.emit_one(ShapeOf { start: 0, end: Some(1) }, vec![ids])?;
            let zero = node.constant(Tensor::scalar(0i32));
            node.emit_one(Expand {}, vec![zero, batch])
        }
        (mask, 1) => {
            let one = node.constant(Tensor::scalar(1i32));
            let equal = node.emit_one(Compare { relation: CompareRelation::Equal }, vec![mask, one])?;
            let ones = node.cast(equal, DType::I32)?;
            let axis = node.integers(&[1]);
            let sum = Reduce { function: ReduceFunction::Sum, keep_axes: false, keep_without_axes: false };
            node.emit_one(sum, vec![ones, axis])
        }
        (_, other) => Err(node.refuse(format!("attribute `mask_index_type` = {other} with a mask"))),
    }
}
