//! `DFT` (17, 20), `STFT`, `HannWindow`, `HammingWindow`, `BlackmanWindow`, `MelWeightMatrix` (17); `DynamicTimeWarping` of
//! `com.microsoft`.

use crate::import::lowering::{LowerError, Lowering, Row, row};
use crate::import::types::element_type;
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{FourierTransform, MelWeights, ShortTimeFourierTransform, TimeWarping, Window, WindowFunction};
use ipuc_formats::tensor::Tensor;

/// Signals.
pub const ROWS: &[Row] = &[
    row("DFT", 17, transform_axis_attribute),
    row("DFT", 20, transform),
    row("STFT", 17, short_time_transform),
    row("HannWindow", 17, |node| window(node, WindowFunction::Hann)),
    row("HammingWindow", 17, |node| window(node, WindowFunction::Hamming)),
    row("BlackmanWindow", 17, |node| window(node, WindowFunction::Blackman)),
    row("MelWeightMatrix", 17, mel_weights),
    Row {
        domain: "com.microsoft",
        name: "DynamicTimeWarping",
        since: 1,
        lower: |node| {
            node.at_most_inputs(1)?;
            let costs = node.required(0)?;
            node.emit(TimeWarping {}, vec![costs])
        },
    },
];

fn transform_axis_attribute(node: &mut Lowering<'_, '_>) -> Result<Vec<Operand>, LowerError> {
    let axis = node.int("axis")?.unwrap_or(1);
    let axis = node.constant(Tensor::scalar(axis));
    emit_transform(node, axis)
}

fn transform(node: &mut Lowering<'_, '_>) -> Result<Vec<Operand>, LowerError> {
    emit_transform(node, node.input(2))
}

fn emit_transform(node: &mut Lowering<'_, '_>, axis: Operand) -> Result<Vec<Operand>, LowerError> {
    let (inverse, onesided) = (node.flag("inverse", false)?, node.flag("onesided", false)?);
    node.emit(FourierTransform { inverse, onesided }, vec![node.input(0), node.input(1), axis])
}

fn short_time_transform(node: &mut Lowering<'_, '_>) -> Result<Vec<Operand>, LowerError> {
    let onesided = node.flag("onesided", true)?;
    node.emit(ShortTimeFourierTransform { onesided }, node.inputs())
}

fn result_type(node: &mut Lowering<'_, '_>) -> Result<DType, LowerError> {
    let number = node.int("output_datatype")?.unwrap_or(1);
    element_type(Some(i32::try_from(number).unwrap_or(0)))
}

fn window(node: &mut Lowering<'_, '_>, function: WindowFunction) -> Result<Vec<Operand>, LowerError> {
    let (periodic, dtype) = (node.flag("periodic", true)?, result_type(node)?);
    node.emit(Window { function, periodic, dtype }, node.inputs())
}

fn mel_weights(node: &mut Lowering<'_, '_>) -> Result<Vec<Operand>, LowerError> {
    let dtype = result_type(node)?;
    node.emit(MelWeights { dtype }, node.inputs())
}
